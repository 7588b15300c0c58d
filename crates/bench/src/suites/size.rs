//! The size suite: fills a store with messages and as many dead letters, restarts it, and drains the
//! messages. Reports how long opening takes, how much memory it needs, and whether the rates stay the same.

use super::printer::{Printer, Row};
use super::store::{bench_actor, failed, lease, message, open, queue, settle_all};
use super::{BenchArgs, BenchResult, failed_at, temp_directory};
use redrive::core::policy::QueuePolicy;
use redrive::core::store::{Settle, Settlement, Store};
use redrive::core::time::Span;
use serde::Serialize;
use std::path::Path;
use std::time::{Duration, Instant};

/// Items per call.
const BATCH: usize = 1_000;

/// One row of the report.
#[derive(Serialize)]
struct Step {
    what: String,
    items: u64,
    seconds: f64,
    per_second: f64,
    /// Resident memory of this process after the step.
    rss_mb: u64,
}

impl Row for Step {
    const HEADINGS: &'static [&'static str] = &["what", "items", "seconds", "items/s", "rss MB"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.what.clone(),
            self.items.to_string(),
            format!("{:.3}", self.seconds),
            format!("{:.0}", self.per_second),
            self.rss_mb.to_string(),
        ]
    }
}

fn step(what: &str, items: u64, took: Duration) -> Step {
    let seconds = took.as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
    let per_second = items as f64 / seconds.max(1e-9);
    Step { what: what.into(), items, seconds, per_second, rss_mb: resident_mb() }
}

/// The resident memory according to the kernel, or 0 where it is not available.
pub(super) fn resident_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok()).map_or(0, |kb| kb / 1_024)
}

/// Runs the suite.
pub(super) async fn run(printer: &Printer, args: BenchArgs) -> BenchResult<()> {
    let root = temp_directory(&args);
    let result = measure(printer, &args, &root).await;
    let _ = std::fs::remove_dir_all(&root);
    printer.figures(&result?)?;
    Ok(())
}

async fn measure(printer: &Printer, args: &BenchArgs, root: &Path) -> BenchResult<Vec<Step>> {
    let messages = args.messages.unwrap_or(1_000_000);
    printer.note(&format!("size suite in {}: {messages} messages of {} bytes", root.display(), args.payload));
    std::fs::create_dir_all(root).map_err(|e| failed_at("make", root, &e))?;
    let directory = root.join("data");
    let mut steps = Vec::new();

    let store = open(directory.clone()).await?;
    let policy = QueuePolicy { max_attempts: 1, lease: Span::from_hours(1), ..QueuePolicy::default() };
    store.configure(queue()?, policy, bench_actor()).await?;
    steps.push(step("enqueue those that will die", messages, fill(store.as_ref(), args, messages).await?));
    let began = Instant::now();
    drain(store.as_ref(), failed).await?;
    steps.push(step("lease and fail to dead letters", messages, began.elapsed()));
    steps.push(step("enqueue those that will live", messages, fill(store.as_ref(), args, messages).await?));
    let began = Instant::now();
    drop(store);
    steps.push(step("close", 1, began.elapsed()));

    let began = Instant::now();
    let store = open(directory.clone()).await?;
    let page = store.letters(redrive::core::query::Query::default()).await?;
    steps.push(step("open, first page of letters", page.items.len() as u64, began.elapsed()));
    let began = Instant::now();
    let tokens = lease(store.as_ref(), 1).await?;
    steps.push(step("first lease (builds the index)", tokens.len() as u64, began.elapsed()));
    let began = Instant::now();
    let groups = store.groups(redrive::core::group::GroupQuery::default()).await?;
    steps.push(step("groups", groups.items.len() as u64, began.elapsed()));
    let began = Instant::now();
    let left = drain(store.as_ref(), |token, _| Settlement { token, what: Settle::Ack }).await?;
    steps.push(step("lease and ack", left, began.elapsed()));
    Ok(steps)
}

async fn fill(store: &dyn Store, args: &BenchArgs, messages: u64) -> BenchResult<Duration> {
    let mut took = Duration::ZERO;
    for first in (0..messages).step_by(BATCH) {
        let batch: Result<Vec<_>, _> =
            (first..messages.min(first + BATCH as u64)).map(|n| message(args, n, false)).collect();
        let batch = batch?;
        let began = Instant::now();
        settle_all(store.enqueue(batch).await?)?;
        took += began.elapsed();
    }
    Ok(took)
}

/// Leases and settles every message; returns how many there were.
async fn drain(
    store: &dyn Store,
    settle: impl Fn(redrive::core::ids::LeaseToken, usize) -> Settlement,
) -> BenchResult<u64> {
    let mut done = 0;
    loop {
        let tokens = lease(store, BATCH).await?;
        if tokens.is_empty() {
            return Ok(done as u64);
        }
        let batch = tokens.iter().enumerate().map(|(n, token)| settle(*token, done + n)).collect();
        settle_all(store.settle(batch).await?)?;
        done += tokens.len();
    }
}
