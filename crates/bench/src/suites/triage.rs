//! The triage suite: many dead letters with many causes, and what a person does with them. Every figure is
//! measured on the same store after it was closed and reopened. The redrive runs beside live enqueues, and
//! these are also measured without it in the same run.

use super::measure::{Stopwatch, new_histogram};
use super::printer::{Printer, Row};
use super::size::resident_mb;
use super::store::{bench_actor, open, settle_all};
use super::{BenchArgs, BenchError, BenchResult, failed_at, temp_directory};
use hdrhistogram::Histogram;
use redrive::core::dead_letter::Act;
use redrive::core::failure::{ErrorInfo, FailureReport};
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

/// The number of queues that the letters are spread over.
const QUEUES: u64 = 8;
/// The number of letters created at a time.
const CHUNK: u64 = 8_000;
/// The number of failures per call, and the number of concurrent workers.
const BATCH: usize = 64;
const WORKERS: usize = 4;
/// The number of live producers, and how long each waits between two enqueues.
const PRODUCERS: usize = 8;
const PAUSE: Duration = Duration::from_millis(4);
/// How long live enqueues are measured without the redrive.
const BASELINE: Duration = Duration::from_secs(10);

/// One row of the report.
#[derive(Serialize)]
pub(super) struct Figure {
    what: String,
    /// The number of items, or of measured calls.
    items: u64,
    per_second: f64,
    p50_us: u64,
    p95_us: u64,
    p99_us: u64,
    max_us: u64,
    /// The resident memory of this process afterwards.
    rss_mb: u64,
}

impl Row for Figure {
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

fn figure(what: impl Into<String>, items: u64, took: Duration, calls: &Histogram<u64>) -> Figure {
    #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
    let per_second = items as f64 / took.as_secs_f64().max(1e-9);
    Figure {
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

/// Runs the suite.
pub(super) async fn run(printer: &Printer, args: BenchArgs) -> BenchResult<()> {
    let root = temp_directory(&args);
    let result = measure(printer, &args, &root).await;
    let _ = std::fs::remove_dir_all(&root);
    printer.figures(&result?)?;
    Ok(())
}

async fn measure(printer: &Printer, args: &BenchArgs, root: &Path) -> BenchResult<Vec<Figure>> {
    printer.note(&format!(
        "triage suite in {}: {} dead letters in {} groups, payloads of {} bytes, {} runs of each query; fsync before reply",
        root.display(),
        args.letters,
        args.groups,
        args.payload,
        args.runs
    ));
    std::fs::create_dir_all(root).map_err(|e| failed_at("make", root, &e))?;
    let directory = root.join("data");
    let store = open(directory.clone()).await?;
    let mut figures = vec![ingest(&store, args).await?];
    drop(store);
    let began = Instant::now();
    let store = open(directory).await?;
    store.letters(Query::default()).await?;
    figures.push(figure("open, first page of letters", 1, began.elapsed(), &new_histogram()));
    printer.note("groups and pages");
    figures.push(groups(store.as_ref(), args).await?);
    figures.extend(pages(store.as_ref(), args).await?);
    figures.push(count(store.as_ref(), args).await?);
    printer.note("text index");
    figures.push(search(store.as_ref(), args, "search, nothing indexed", "order 4711*a").await?);
    figures.push(index(store.as_ref()).await?);
    for (what, filter) in SEARCHES {
        figures.push(search(store.as_ref(), args, what, filter).await?);
    }
    printer.note("redrive");
    figures.extend(redrive(&store, args).await?);
    Ok(figures)
}

/// The searches: text in few letters, in all letters and in none, and text with a filter.
const SEARCHES: [(&str, &str); 5] = [
    ("search, rare text", "\"order 4711a\""),
    ("search, text in every letter", "\"answered 503\""),
    ("search, text in no letter", "\"no such words\""),
    ("search, threes that many have", "\"rd 50x\""),
    ("search, text and filter", "\"order 471\" queue:triage-3 status:pending"),
];

fn queue(n: u64) -> BenchResult<QueueName> {
    let name = format!("triage-{}", n % QUEUES);
    name.parse().map_err(|e| BenchError::from(format!("the queue of the bench: {e}")))
}

fn message(args: &BenchArgs, n: u64) -> BenchResult<NewMessage> {
    let mut bytes = format!("{{\"order\":{{\"id\":{n}}},\"fill\":\"").into_bytes();
    bytes.resize(args.payload.saturating_sub(2).max(bytes.len()), b'x');
    bytes.extend(b"\"}");
    let payload = Payload { bytes, content_type: "application/json".into() };
    let mut new = NewMessage::new(redrive::new_id(), queue(n)?, payload);
    new.kind = format!("kind-{}", n % 5);
    Ok(new)
}

/// A failure. The causes differ in their error type, so there are exactly as many groups.
fn failed(args: &BenchArgs, token: LeaseToken, n: u64) -> Settlement {
    let error = ErrorInfo {
        error_type: format!("Upstream{}Error", n % args.groups.max(1)),
        message: format!("upstream {} answered 503 for order {n}a after {} ms", n % 20, n % 977),
        code: Some("503".into()),
        ..ErrorInfo::default()
    };
    let failure = Box::new(FailureReport { error, permanent: true, ..FailureReport::default() }.analyse());
    Settlement { token, what: Settle::Fail { failure, policy_override: None } }
}

/// From failure to durable dead letter; enqueues and leases are not timed.
pub(super) async fn ingest(store: &Arc<dyn Store>, args: &BenchArgs) -> BenchResult<Figure> {
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
            let request = LeaseRequest {
                queues: queues.clone(),
                max: 1_000,
                lease_for: None,
                worker: "bench".into(),
                ..LeaseRequest::default()
            };
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
            let _ = calls.add(&done.map_err(|error| task_panicked(&error))??);
        }
        took += began.elapsed();
    }
    Ok(figure(format!("failure to dead letter, {BATCH} a call"), args.letters, took, &calls))
}

/// The filter of the n-th query.
type FilterOf<'a> = Box<dyn Fn(u64) -> String + 'a>;

fn task_panicked(error: &tokio::task::JoinError) -> BenchError {
    BenchError::from(format!("a bench task panicked: {error}"))
}

async fn fail_all(
    store: Arc<dyn Store>,
    args: BenchArgs,
    mine: Vec<(u64, LeaseToken)>,
) -> BenchResult<Histogram<u64>> {
    let mut watch = Stopwatch::new();
    for chunk in mine.chunks(BATCH) {
        let began = Instant::now();
        settle_all(store.settle(chunk.iter().map(|(n, token)| failed(&args, *token, *n)).collect()).await?)?;
        watch.lap(began);
    }
    Ok(watch.into_calls())
}

/// The number of times each query is run.
fn rounds(args: &BenchArgs) -> u64 {
    u64::from(args.runs.max(1)) * 10
}

async fn groups(store: &dyn Store, args: &BenchArgs) -> BenchResult<Figure> {
    let (mut watch, began) = (Stopwatch::new(), Instant::now());
    for _ in 0..rounds(args) {
        let asked = Instant::now();
        store.groups(PageRequest::first(200).into()).await?;
        watch.lap(asked);
    }
    Ok(figure("groups, a page of 200", rounds(args), began.elapsed(), &watch.into_calls()))
}

/// Pages of 50 letters, the latest ones and older ones. The filter differs each time.
async fn pages(store: &dyn Store, args: &BenchArgs) -> BenchResult<Vec<Figure>> {
    let ids: Vec<String> = store
        .groups(PageRequest::first(1_000).into())
        .await?
        .items
        .iter()
        .map(|g| g.id.to_string())
        .collect();
    let group =
        |n: u64| ids.get(usize::try_from(n).unwrap_or(0) % ids.len().max(1)).cloned().unwrap_or_default();
    let filters: [(&str, FilterOf<'_>); 5] = [
        ("page, all", Box::new(|_| String::new())),
        ("page, group and status", Box::new(|n| format!("group:{} status:pending", group(n)))),
        (
            "page, queue and kind",
            Box::new(|n| format!("queue:triage-{} kind:kind-{} attempts:1", n % QUEUES, n % 5)),
        ),
        ("page, a rare status", Box::new(|_| "status:review".into())),
        ("page, looks into letters", Box::new(|n| format!("queue:triage-{} code:503 age<30d", n % QUEUES))),
    ];
    let mut figures = Vec::new();
    for (what, filter) in &filters {
        for (position, death) in [("first", None), ("deep", Some(args.letters / 3))] {
            let (mut watch, began) = (Stopwatch::new(), Instant::now());
            for n in 0..rounds(args) {
                let cursor = death.map(|death| Cursor::after("l", death + n));
                let query =
                    Query { filter: parse(&filter(n))?, page: PageRequest { limit: Some(50), cursor } };
                let asked = Instant::now();
                store.letters(query).await?;
                watch.lap(asked);
            }
            figures.push(figure(
                format!("{what}, {position}"),
                rounds(args),
                began.elapsed(),
                &watch.into_calls(),
            ));
        }
    }
    Ok(figures)
}

fn parse(text: &str) -> BenchResult<Filter> {
    Filter::parse(text).map_err(|e| BenchError::from(format!("the filter of the bench: {e}")))
}

/// The exact count that precedes an operation, over a whole queue.
async fn count(store: &dyn Store, args: &BenchArgs) -> BenchResult<Figure> {
    let (mut watch, began) = (Stopwatch::new(), Instant::now());
    for n in 0..u64::from(args.runs.max(1)) {
        let asked = Instant::now();
        let filter = parse(&format!("queue:triage-{} status:pending", n % QUEUES))?;
        store.preview(PreviewRequest::new(Act::retry(), filter, 5)).await?;
        watch.lap(asked);
    }
    Ok(figure("preview of a whole queue", u64::from(args.runs.max(1)), began.elapsed(), &watch.into_calls()))
}

async fn index(store: &dyn Store) -> BenchResult<Figure> {
    let (mut watch, began, mut made) = (Stopwatch::new(), Instant::now(), 0);
    loop {
        let asked = Instant::now();
        let pass = store.index_text(200).await?;
        watch.lap(asked);
        made += pass.indexed;
        if !pass.more {
            return Ok(figure("index text, 200 a commit", made, began.elapsed(), &watch.into_calls()));
        }
    }
}

async fn search(store: &dyn Store, args: &BenchArgs, what: &str, filter: &str) -> BenchResult<Figure> {
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
    Ok(figure(what, watch.count(), began.elapsed(), &watch.into_calls()))
}

/// Enqueues at a steady rate until `stop` is set.
async fn live(store: Arc<dyn Store>, args: BenchArgs, stop: Arc<AtomicBool>) -> BenchResult<Stopwatch> {
    let mut watch = Stopwatch::new();
    let live: QueueName = "live".parse().map_err(|e| BenchError::from(format!("{e}")))?;
    let mut tick = tokio::time::interval(PAUSE);
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

/// Measures live enqueues while another task runs.
async fn live_enqueues_during(
    store: &Arc<dyn Store>,
    args: &BenchArgs,
    what: &str,
    work: impl Future<Output = BenchResult<()>>,
) -> BenchResult<Figure> {
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
        let watch = done.map_err(|error| task_panicked(&error))??;
        items += watch.count();
        let _ = calls.add(watch.into_calls());
    }
    Ok(figure(what, items, began.elapsed(), &calls))
}

async fn redrive(store: &Arc<dyn Store>, args: &BenchArgs) -> BenchResult<Vec<Figure>> {
    let alone = live_enqueues_during(store, args, "live enqueue, alone", async {
        tokio::time::sleep(BASELINE).await;
        Ok(())
    });
    let mut figures = vec![alone.await?];
    let mut done = None;
    let working = async {
        done = Some(redrive_all(store.as_ref()).await?);
        Ok(())
    };
    let live = live_enqueues_during(store, args, "live enqueue, beside the redrive", working).await?;
    figures.extend(done);
    figures.push(live);
    Ok(figures)
}

/// Redrives every letter with one operation, as fast as possible.
async fn redrive_all(store: &dyn Store) -> BenchResult<Figure> {
    let id = OperationId::new(redrive::new_id());
    let spec = OperationSpec::new(id, Act::retry(), parse("status:pending")?, bench_actor());
    let (mut watch, began) = (Stopwatch::new(), Instant::now());
    let mut operation = store.start(spec).await?;
    while operation.stage.is_moving() {
        let asked = Instant::now();
        operation = store.step(operation.id).await?;
        watch.lap(asked);
        // Waits as long as the operation asks for, as every driver of an operation does.
        let nap = operation.next_in.unwrap_or_default().to_std();
        if !nap.is_zero() {
            tokio::time::sleep(nap).await;
        }
    }
    Ok(figure(
        "redrive of everything (calls: steps)",
        operation.members,
        began.elapsed(),
        &watch.into_calls(),
    ))
}
