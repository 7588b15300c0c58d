//! The triage suite: many dead letters of many causes, and what a person does with them. Every figure is taken on
//! the same store, after it was closed and opened again; the redrive runs beside live enqueues, and those are
//! measured without it too, in the same run.

use super::measure::{Stopwatch, new_histogram};
use super::printer::{Printer, Row};
use super::size::resident_mb;
use super::store::{bench_actor, open, settle_all};
use super::{BenchArgs, BenchError, Measured, failed_at, throw_away};
use hdrhistogram::Histogram;
use redrive::core::dead_letter::Act;
use redrive::core::failure::{ErrorInfo, Report};
use redrive::core::filter::Filter;
use redrive::core::ids::{LeaseToken, OperationId, QueueName};
use redrive::core::message::{NewMessage, Payload};
use redrive::core::operation::{OperationSpec, PreviewRequest};
use redrive::core::policy::QueuePolicy;
use redrive::core::query::{Cursor, PageRequest, Query};
use redrive::core::store::{LeaseRequest, Settle, Settlement, Store};
use redrive::core::time::Span;
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Queues the letters are spread over.
const QUEUES: u64 = 8;
/// Letters made at a time.
const CHUNK: u64 = 8_000;
/// Failures per call, from so many workers at once.
const BATCH: usize = 64;
const WORKERS: usize = 4;
/// Live producers, and how long each waits between two enqueues.
const PRODUCERS: usize = 8;
const EVERY: Duration = Duration::from_millis(4);
/// How long live enqueues are measured alone.
const ALONE: Duration = Duration::from_secs(10);

/// One line of the report.
#[derive(Serialize)]
struct Line {
    what: String,
    /// Items, and how many per second; of calls, how many were measured.
    items: u64,
    per_second: f64,
    p50_us: u64,
    p95_us: u64,
    p99_us: u64,
    max_us: u64,
    /// Resident memory of this process after it.
    rss_mb: u64,
}

impl Row for Line {
    const HEADINGS: &'static [&'static str] =
        &["what", "items", "items/s", "p50 us", "p95 us", "p99 us", "max us", "rss MB"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.what.clone(),
            self.items.to_string(),
            format!("{:.0}", self.per_second),
            self.p50_us.to_string(),
            self.p95_us.to_string(),
            self.p99_us.to_string(),
            self.max_us.to_string(),
            self.rss_mb.to_string(),
        ]
    }
}

fn line(what: impl Into<String>, items: u64, took: Duration, calls: &Histogram<u64>) -> Line {
    #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
    let per_second = items as f64 / took.as_secs_f64().max(1e-9);
    Line {
        what: what.into(),
        items,
        per_second,
        p50_us: calls.value_at_quantile(0.50),
        p95_us: calls.value_at_quantile(0.95),
        p99_us: calls.value_at_quantile(0.99),
        max_us: calls.max(),
        rss_mb: resident_mb(),
    }
}

/// Runs it.
pub(super) async fn run(printer: &Printer, args: BenchArgs) -> Measured<()> {
    let root = throw_away(&args);
    let result = measure(printer, &args, &root).await;
    let _ = std::fs::remove_dir_all(&root);
    printer.figures(&result?)?;
    Ok(())
}

async fn measure(printer: &Printer, args: &BenchArgs, root: &Path) -> Measured<Vec<Line>> {
    printer.note(&format!(
        "triage suite in {}: {} dead letters in {} groups, payloads of {} bytes, {} runs of each question; fsync before reply",
        root.display(),
        args.letters,
        args.groups,
        args.payload,
        args.runs
    ));
    std::fs::create_dir_all(root).map_err(|e| failed_at("make", root, &e))?;
    let place = root.join("data");
    let store = open(place.clone()).await?;
    let mut lines = vec![ingest(&store, args).await?];
    drop(store);
    let began = Instant::now();
    let store = open(place).await?;
    store.letters(Query::default()).await?;
    lines.push(line("open, first page of letters", 1, began.elapsed(), &new_histogram()));
    printer.note("groups and pages");
    lines.push(groups(store.as_ref(), args).await?);
    lines.extend(pages(store.as_ref(), args).await?);
    lines.push(count(store.as_ref(), args).await?);
    printer.note("text index");
    lines.push(search(store.as_ref(), args, "search, nothing indexed", "order 4711*a").await?);
    lines.push(index(store.as_ref()).await?);
    for (what, filter) in SEARCHES {
        lines.push(search(store.as_ref(), args, what, filter).await?);
    }
    printer.note("redrive");
    lines.extend(redrive(&store, args).await?);
    Ok(lines)
}

/// What is searched for: what few letters say, what all say, what none says, and text with a filter.
const SEARCHES: [(&str, &str); 5] = [
    ("search, rare text", "\"order 4711a\""),
    ("search, text in every letter", "\"answered 503\""),
    ("search, text in no letter", "\"no such words\""),
    ("search, threes that many have", "\"rd 50x\""),
    ("search, text and filter", "\"order 471\" queue:triage-3 status:pending"),
];

fn queue(n: u64) -> Measured<QueueName> {
    let name = format!("triage-{}", n % QUEUES);
    name.parse().map_err(|e| BenchError::from(format!("the bench's queue: {e}")))
}

fn message(args: &BenchArgs, n: u64) -> Measured<NewMessage> {
    let mut bytes = format!("{{\"order\":{{\"id\":{n}}},\"fill\":\"").into_bytes();
    bytes.resize(args.payload.saturating_sub(2).max(bytes.len()), b'x');
    bytes.extend(b"\"}");
    let payload = Payload { bytes, content_type: "application/json".into() };
    let mut new = NewMessage::new(redrive::new_id(), queue(n)?, payload);
    new.kind = format!("kind-{}", n % 5);
    Ok(new)
}

/// The causes differ by their type, so there are exactly as many groups.
fn failed(args: &BenchArgs, token: LeaseToken, n: u64) -> Settlement {
    let error = ErrorInfo {
        error_type: format!("Upstream{}Error", n % args.groups.max(1)),
        message: format!("upstream {} answered 503 for order {n}a after {} ms", n % 20, n % 977),
        code: Some("503".into()),
        ..ErrorInfo::default()
    };
    let failure = Box::new(Report { error, permanent: true, ..Report::default() }.analyse());
    Settlement { token, what: Settle::Fail { failure, said: None } }
}

/// From failure to durable dead letter; enqueue and lease are not counted.
async fn ingest(store: &Arc<dyn Store>, args: &BenchArgs) -> Measured<Line> {
    let policy = QueuePolicy { lease: Span::from_hours(1), ..QueuePolicy::default() };
    let mut queues = Vec::new();
    for n in 0..QUEUES {
        queues.push(queue(n)?);
        store.configure(queue(n)?, policy.clone(), bench_actor()).await?;
    }
    let (mut took, mut calls) = (Duration::ZERO, new_histogram());
    for first in (0..args.letters).step_by(usize::try_from(CHUNK).unwrap_or(1)) {
        let last = args.letters.min(first + CHUNK);
        for from in (first..last).step_by(1_000) {
            let batch: Result<Vec<_>, _> = (from..last.min(from + 1_000)).map(|n| message(args, n)).collect();
            settle_all(store.enqueue(batch?).await?)?;
        }
        let mut tokens = Vec::new();
        loop {
            let request =
                LeaseRequest { queues: queues.clone(), max: 1_000, lease_for: None, worker: "bench".into() };
            let taken = store.lease(request).await?;
            if taken.is_empty() {
                break;
            }
            tokens.extend(taken.into_iter().map(|delivery| delivery.token));
        }
        let numbered: Vec<(u64, LeaseToken)> = (first..).zip(tokens).collect();
        let share = numbered.len().div_ceil(WORKERS).max(1);
        let began = Instant::now();
        let mut workers = JoinSet::new();
        for mine in numbered.chunks(share) {
            workers.spawn(fail_all(Arc::clone(store), args.clone(), mine.to_vec()));
        }
        while let Some(done) = workers.join_next().await {
            let _ = calls.add(&done.map_err(|error| died(&error))??);
        }
        took += began.elapsed();
    }
    Ok(line(format!("failure to dead letter, {BATCH} a call"), args.letters, took, &calls))
}

/// A filter for the nth question.
type Asked<'a> = Box<dyn Fn(u64) -> String + 'a>;

fn died(error: &tokio::task::JoinError) -> BenchError {
    BenchError::from(format!("a bench task died: {error}"))
}

async fn fail_all(
    store: Arc<dyn Store>,
    args: BenchArgs,
    mine: Vec<(u64, LeaseToken)>,
) -> Measured<Histogram<u64>> {
    let mut watch = Stopwatch::new();
    for chunk in mine.chunks(BATCH) {
        let began = Instant::now();
        settle_all(store.settle(chunk.iter().map(|(n, token)| failed(&args, *token, *n)).collect()).await?)?;
        watch.lap(began);
    }
    Ok(watch.into_calls())
}

/// How many times each question is asked.
fn rounds(args: &BenchArgs) -> u64 {
    u64::from(args.runs.max(1)) * 10
}

async fn groups(store: &dyn Store, args: &BenchArgs) -> Measured<Line> {
    let (mut watch, began) = (Stopwatch::new(), Instant::now());
    for _ in 0..rounds(args) {
        let asked = Instant::now();
        store.groups(PageRequest::first(200).into()).await?;
        watch.lap(asked);
    }
    Ok(line("groups, a page of 200", rounds(args), began.elapsed(), &watch.into_calls()))
}

/// A page of 50, at the latest death and in the depth; the filter is another one each time.
async fn pages(store: &dyn Store, args: &BenchArgs) -> Measured<Vec<Line>> {
    let ids: Vec<String> = store
        .groups(PageRequest::first(1_000).into())
        .await?
        .items
        .iter()
        .map(|g| g.id.to_string())
        .collect();
    let group =
        |n: u64| ids.get(usize::try_from(n).unwrap_or(0) % ids.len().max(1)).cloned().unwrap_or_default();
    let filters: [(&str, Asked<'_>); 5] = [
        ("page, all", Box::new(|_| String::new())),
        ("page, group and status", Box::new(|n| format!("group:{} status:pending", group(n)))),
        (
            "page, queue and kind",
            Box::new(|n| format!("queue:triage-{} kind:kind-{} attempts:1", n % QUEUES, n % 5)),
        ),
        ("page, a rare status", Box::new(|_| "status:review".into())),
        ("page, looks into letters", Box::new(|n| format!("queue:triage-{} code:503 age<30d", n % QUEUES))),
    ];
    let mut lines = Vec::new();
    for (what, filter) in &filters {
        for (place, death) in [("first", None), ("deep", Some(args.letters / 3))] {
            let (mut watch, began) = (Stopwatch::new(), Instant::now());
            for n in 0..rounds(args) {
                let cursor = death.map(|death| Cursor::after("l", death + n));
                let query =
                    Query { filter: parse(&filter(n))?, page: PageRequest { limit: Some(50), cursor } };
                let asked = Instant::now();
                store.letters(query).await?;
                watch.lap(asked);
            }
            lines.push(line(format!("{what}, {place}"), rounds(args), began.elapsed(), &watch.into_calls()));
        }
    }
    Ok(lines)
}

fn parse(text: &str) -> Measured<Filter> {
    Filter::parse(text).map_err(|e| BenchError::from(format!("the bench's filter: {e}")))
}

/// The exact count before an operation, over a whole queue.
async fn count(store: &dyn Store, args: &BenchArgs) -> Measured<Line> {
    let (mut watch, began) = (Stopwatch::new(), Instant::now());
    for n in 0..u64::from(args.runs.max(1)) {
        let asked = Instant::now();
        let filter = parse(&format!("queue:triage-{} status:pending", n % QUEUES))?;
        store.preview(PreviewRequest::new(Act::retry(), filter, 5)).await?;
        watch.lap(asked);
    }
    Ok(line("preview of a whole queue", u64::from(args.runs.max(1)), began.elapsed(), &watch.into_calls()))
}

async fn index(store: &dyn Store) -> Measured<Line> {
    let (mut watch, began, mut made) = (Stopwatch::new(), Instant::now(), 0);
    loop {
        let asked = Instant::now();
        let pass = store.index_text(200).await?;
        watch.lap(asked);
        made += pass.indexed;
        if !pass.more {
            return Ok(line("index text, 200 a commit", made, began.elapsed(), &watch.into_calls()));
        }
    }
}

async fn search(store: &dyn Store, args: &BenchArgs, what: &str, filter: &str) -> Measured<Line> {
    let (mut watch, began) = (Stopwatch::new(), Instant::now());
    let mut found = 0;
    for _ in 0..rounds(args) {
        let query = Query { filter: parse(filter)?, page: PageRequest::first(50) };
        let asked = Instant::now();
        let page = store.letters(query).await?;
        watch.lap(asked);
        found = page.items.len();
        if page.next.is_some() && found < 50 && asked.elapsed() > Duration::from_millis(150) {
            break;
        }
    }
    let what = format!("{what} ({found} found)");
    Ok(line(what, watch.count(), began.elapsed(), &watch.into_calls()))
}

/// Enqueues at a steady pace until it is told to stop.
async fn live(store: Arc<dyn Store>, args: BenchArgs, stop: Arc<AtomicBool>) -> Measured<Stopwatch> {
    let mut watch = Stopwatch::new();
    let live: QueueName = "live".parse().map_err(|e| BenchError::from(format!("{e}")))?;
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !stop.load(Ordering::Relaxed) {
        tick.tick().await;
        let new = NewMessage { queue: live.clone(), ..message(&args, 1)? };
        let began = Instant::now();
        settle_all(store.enqueue(vec![new]).await?)?;
        watch.lap(began);
    }
    Ok(watch)
}

/// What live enqueues take while something else goes on.
async fn beside(
    store: &Arc<dyn Store>,
    args: &BenchArgs,
    what: &str,
    work: impl Future<Output = Measured<()>>,
) -> Measured<Line> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut set = JoinSet::new();
    for _ in 0..PRODUCERS {
        set.spawn(live(Arc::clone(store), args.clone(), Arc::clone(&stop)));
    }
    let began = Instant::now();
    work.await?;
    stop.store(true, Ordering::Relaxed);
    let (mut calls, mut items) = (new_histogram(), 0);
    while let Some(done) = set.join_next().await {
        let watch = done.map_err(|error| died(&error))??;
        items += watch.count();
        let _ = calls.add(watch.into_calls());
    }
    Ok(line(what, items, began.elapsed(), &calls))
}

async fn redrive(store: &Arc<dyn Store>, args: &BenchArgs) -> Measured<Vec<Line>> {
    let alone = beside(store, args, "live enqueue, alone", async {
        tokio::time::sleep(ALONE).await;
        Ok(())
    });
    let mut lines = vec![alone.await?];
    let mut done = None;
    let working = async {
        done = Some(redrive_all(store.as_ref()).await?);
        Ok(())
    };
    let live = beside(store, args, "live enqueue, beside the redrive", working).await?;
    lines.extend(done);
    lines.push(live);
    Ok(lines)
}

/// Sends every letter back as one operation, as fast as it goes.
async fn redrive_all(store: &dyn Store) -> Measured<Line> {
    let id = OperationId::new(redrive::new_id());
    let spec = OperationSpec::new(id, Act::retry(), parse("status:pending")?, bench_actor());
    let (mut watch, began) = (Stopwatch::new(), Instant::now());
    let mut operation = store.start(spec).await?;
    while operation.stage.is_moving() {
        let asked = Instant::now();
        operation = store.step(operation.id).await?;
        watch.lap(asked);
        // As every driver does: a store that is busy says for how long it wants to be left alone.
        let nap = operation.next_in.unwrap_or_default().to_std();
        if !nap.is_zero() {
            tokio::time::sleep(nap).await;
        }
    }
    Ok(line("redrive of everything (calls: steps)", operation.members, began.elapsed(), &watch.into_calls()))
}
