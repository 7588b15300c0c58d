//! The pages suite: every page of the dashboard over a store with many dead letters, made by the real router in this
//! process. For each page it reports how long it took, the processor time, its bytes, and how many records the store
//! handed over for it: a page must not read more because there are more letters.

use super::measure::{Stopwatch, new_histogram};
use super::printer::{Printer, Row};
use super::store::{bench_actor, open};
use super::triage::ingest;
use super::{BenchArgs, BenchError, BenchResult, failed_at, temp_directory};
use axum::Router;
use axum::body::Body;
use http_body_util::BodyExt as _;
use hyper::Request;
use redrive::core::access::Access;
use redrive::core::dead_letter::Act;
use redrive::core::error::StoreResult;
use redrive::core::filter::Filter;
use redrive::core::group::GroupQuery;
use redrive::core::ids::OperationId;
use redrive::core::operation::OperationSpec;
use redrive::core::query::{PageRequest, Query};
use redrive::core::store::{Call, Caller, Store};
use redrive_server::{Config, router};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tower::ServiceExt as _;

/// How often each page is asked for in one run.
const ROUNDS: u32 = 10;

/// One row of the report.
#[derive(Serialize)]
struct Figure {
    page: String,
    p50_us: u64,
    p95_us: u64,
    max_us: u64,
    /// The processor time of the whole process for one page, on average.
    cpu_us: u64,
    /// As it is sent without compression.
    bytes: u64,
    /// Calls of the store.
    calls: u64,
    /// Records that the store handed over.
    records: u64,
}

impl Row for Figure {
    const HEADINGS: &'static [&'static str] =
        &["page", "p50 us", "p95 us", "max us", "cpu us", "bytes", "calls", "records"];

    fn cells(&self) -> Vec<String> {
        let numbers =
            [self.p50_us, self.p95_us, self.max_us, self.cpu_us, self.bytes, self.calls, self.records];
        std::iter::once(self.page.clone()).chain(numbers.map(|n| n.to_string())).collect()
    }
}

/// A store that counts what it hands over.
struct Counting {
    store: Arc<dyn Store>,
    calls: AtomicU64,
    records: AtomicU64,
}

#[redrive::async_trait]
impl Caller for Counting {
    async fn call(&self, call: Call) -> StoreResult<Vec<u8>> {
        let mut reply = Vec::new();
        call.apply(self.store.as_ref(), &mut reply).await?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        let decoded: Value = serde_json::from_slice(&reply).unwrap_or_default();
        self.records.fetch_add(records(decoded.get("Ok").unwrap_or(&decoded)), Ordering::Relaxed);
        Ok(reply)
    }
}

/// The records in a reply: the items of a page, the entries of a list, or one.
fn records(reply: &Value) -> u64 {
    let listed = reply.get("items").unwrap_or(reply);
    listed.as_array().map_or(1, |items| items.len() as u64)
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
        "pages suite in {}: {} dead letters in {} groups, {} requests for each page",
        root.display(),
        args.letters,
        args.groups,
        args.runs.max(1) * ROUNDS
    ));
    std::fs::create_dir_all(root).map_err(|e| failed_at("make", root, &e))?;
    let directory = root.join("data");
    let store = open(directory.clone()).await?;
    ingest(&store, args).await?;
    drop(store);
    let store = open(directory).await?;
    let paths = paths(store.as_ref()).await?;
    let access = Some(Arc::new(Access::everything("bench")));
    let config = Config { without_auth: access, rate_per_token: None, ..Config::default() };
    let counting = Arc::new(Counting {
        store: Arc::clone(&store),
        calls: AtomicU64::default(),
        records: AtomicU64::default(),
    });
    let counted = router(Arc::clone(&counting) as Arc<dyn Store>, config.clone());
    let plain = router(store, config);
    let mut figures = Vec::new();
    for (page, path) in paths {
        figures.push(figure(&plain, (&counted, &counting), page, &path, args.runs.max(1) * ROUNDS).await?);
    }
    Ok(figures)
}

/// Every page with a name, on the largest of everything.
async fn paths(store: &dyn Store) -> BenchResult<Vec<(&'static str, String)>> {
    let none = || BenchError::from("there is nothing to look at; use more letters");
    let letters = store.letters(Query { page: PageRequest::first(1), ..Query::default() }).await?;
    let letter = letters.items.first().ok_or_else(none)?;
    let groups = store.groups(GroupQuery::from(PageRequest::first(1))).await?;
    let group = groups.items.first().ok_or_else(none)?.id;
    let filter = Filter::parse(&format!("id:{}", letter.id()))?;
    let id = OperationId::new(redrive::new_id());
    let operation = store.start(OperationSpec::new(id, Act::Review, filter, bench_actor())).await?;
    let queue = &letter.message.envelope.queue;
    Ok(vec![
        ("overview", "/".into()),
        ("groups", "/groups".into()),
        ("groups by version", "/groups?by=version".into()),
        ("group", format!("/groups/{group}")),
        ("letters", "/dlq".into()),
        ("letters of a group", format!("/dlq?filter=group%3A{group}")),
        ("letters by text", "/dlq?filter=%22answered%20503%22".into()),
        ("letter", format!("/dlq/{}?filter=group%3A{group}", letter.id())),
        ("edit", format!("/dlq/{}/edit", letter.id())),
        ("preview of a group", format!("/act?act=retry&filter=group%3A{group}")),
        ("operations", "/operations".into()),
        ("operation", format!("/operations/{}", operation.id)),
        ("queues", "/queues".into()),
        ("queue", format!("/queues/{queue}")),
        ("breakers", "/breakers".into()),
        ("workers", "/workers".into()),
        ("alerts", "/alerts".into()),
        ("audit", "/audit".into()),
        ("settings", "/settings".into()),
    ])
}

/// Asks for a page and returns its bytes.
async fn ask(router: &Router, path: &str) -> BenchResult<u64> {
    let request = Request::get(path).header("host", "localhost").body(Body::empty())?;
    let response = router.clone().oneshot(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    if !status.is_success() {
        return Err(format!("{path} answered {status}: {}", String::from_utf8_lossy(&body)).into());
    }
    Ok(body.len() as u64)
}

/// The processor time that this process has used, in microseconds.
fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let micros = time.tv_sec * 1_000_000 + time.tv_nsec / 1_000;
    u64::try_from(micros).unwrap_or(0)
}

async fn figure(
    plain: &Router,
    (counted, counting): (&Router, &Counting),
    page: &str,
    path: &str,
    rounds: u32,
) -> BenchResult<Figure> {
    let before = (counting.calls.load(Ordering::Relaxed), counting.records.load(Ordering::Relaxed));
    let bytes = ask(counted, path).await?;
    let after = (counting.calls.load(Ordering::Relaxed), counting.records.load(Ordering::Relaxed));
    ask(plain, path).await?;
    let (mut watch, processor) = (Stopwatch::new(), processor_time());
    for _ in 0..rounds {
        let began = Instant::now();
        ask(plain, path).await?;
        watch.lap(began);
    }
    let cpu_us = (processor_time() - processor) / u64::from(rounds.max(1));
    let mut calls = new_histogram();
    let _ = calls.add(watch.into_calls());
    Ok(Figure {
        page: page.to_owned(),
        p50_us: calls.value_at_quantile(0.50),
        p95_us: calls.value_at_quantile(0.95),
        max_us: calls.max(),
        cpu_us,
        bytes,
        calls: after.0 - before.0,
        records: after.1 - before.1,
    })
}
