//! The store suite: the embedded store beside the bare limit of the same run, in a temporary directory.

use super::bare::{Append, BareFile};
use super::measure::{Figure, Run, Stopwatch, processor_time, run_of};
use super::printer::Printer;
use super::worker;
use super::{BenchArgs, BenchError, BenchResult, failed_at, temp_directory};
use redrive::OpenOptions;
use redrive::core::failure::{ErrorInfo, FailureReport};
use redrive::core::ids::{LeaseToken, QueueName};
use redrive::core::message::{NewMessage, Payload, Priority};
use redrive::core::policy::QueuePolicy;
use redrive::core::store::{LeaseRequest, Settle, Settlement, Store};
use redrive::core::time::Span;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

const DURABLE: &str = "fsync before reply";

/// Runs the suite.
pub(super) async fn run(printer: &Printer, args: BenchArgs) -> BenchResult<()> {
    let root = temp_directory(&args);
    let result = measure_all(printer, &args, &root).await;
    let _ = std::fs::remove_dir_all(&root);
    printer.figures(&result?)?;
    Ok(())
}

async fn measure_all(printer: &Printer, args: &BenchArgs, root: &Path) -> BenchResult<Vec<Figure>> {
    let messages = args.messages.unwrap_or(100_000);
    printer.note(&format!(
        "store suite in {}: {} runs, {} producers, {} messages of {} bytes, seed {}",
        root.display(),
        args.runs,
        args.producers,
        messages,
        args.payload,
        args.seed
    ));
    let mut bare = Vec::new();
    let mut plain = Vec::new();
    let mut rich = Vec::new();
    let mut cycle = Vec::new();
    let mut cycle_one = Vec::new();
    let mut handled = Vec::new();
    let mut dead = Vec::new();
    for number in 1..=args.runs.max(1) {
        printer.note(&format!("run {number} of {}", args.runs));
        let directory = root.join(number.to_string());
        std::fs::create_dir_all(&directory).map_err(|e| failed_at("create", &directory, &e))?;
        let limit = bare_run(args, messages, &directory).await?;
        let rate = limit.rate();
        bare.push(limit);
        let beside = |run: Run| Run { bare: Some(rate), ..run };
        let fresh = |name: &str| open(place(args, &directory, number, name));
        plain.push(beside(enqueue_run(fresh("plain").await?, args, messages, false).await?));
        rich.push(beside(enqueue_run(fresh("rich").await?, args, messages, true).await?));
        cycle.push(beside(cycle_run(fresh("cycle").await?, args, messages, 64, 4).await?));
        cycle_one
            .push(beside(cycle_run(fresh("single").await?, args, messages / 20, 1, args.producers).await?));
        handled.push(beside(worker::run(fresh("worker").await?, args, messages).await?));
        dead.push(beside(death_run(fresh("dead").await?, args, messages / 2, 64).await?));
        let _ = std::fs::remove_dir_all(&directory);
    }
    Ok(vec![
        Figure::of("bare file: append", DURABLE, 1, &bare),
        Figure::of("enqueue, bare path", DURABLE, 1, &plain),
        Figure::of("enqueue, all features", DURABLE, 1, &rich),
        Figure::of("enqueue, lease, ack", DURABLE, 64, &cycle),
        Figure::of("enqueue, lease, ack", DURABLE, 1, &cycle_one),
        Figure::of("enqueue, worker, ack", DURABLE, 64, &handled),
        Figure::of("failure to dead letter", DURABLE, 64, &dead),
    ])
}

/// Where a store of this run is created.
fn place(args: &BenchArgs, directory: &Path, run: u32, name: &str) -> PathBuf {
    let schema = |url: &String| format!("{url}?schema=redrive_bench_{}_{run}_{name}", std::process::id());
    args.store.as_ref().map_or_else(|| directory.join(name), |url| schema(url).into())
}

pub(super) async fn open(directory: PathBuf) -> BenchResult<Arc<dyn Store>> {
    let options = OpenOptions::default();
    Ok(redrive::open(&directory, options).await?)
}

pub(super) fn queue() -> BenchResult<QueueName> {
    "bench".parse().map_err(|e| BenchError::from(format!("the queue of the bench: {e}")))
}

pub(super) fn message(args: &BenchArgs, n: u64, rich: bool) -> BenchResult<NewMessage> {
    // Bytes that do not compress to nothing, the same for every run with this seed.
    let mut x = args.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n;
    let bytes = (0..args.payload).map(|_| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u8::try_from(x >> 56).unwrap_or(0)
    });
    let payload = Payload { bytes: bytes.collect(), content_type: "application/octet-stream".into() };
    let mut new = NewMessage::new(redrive::new_id(), queue()?, payload);
    if rich {
        new.kind = "charge".into();
        new.priority = Some(Priority::from_level(usize::try_from(n % 5).unwrap_or(0)));
        new.key = Some(format!("key-{n}"));
        new.ordering_key = Some(format!("customer-{}", n % 10_000));
        new.headers
            .insert("traceparent".into(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into());
        new.tags.insert("bench".into());
    }
    Ok(new)
}

/// Runs `tasks` copies of a task and times them together.
pub(super) async fn many<F, Fut>(tasks: usize, items: u64, task: F) -> BenchResult<Run>
where
    F: Fn(usize) -> Fut,
    Fut: Future<Output = BenchResult<Stopwatch>> + Send + 'static,
{
    let mut set = JoinSet::new();
    let (began, used) = (Instant::now(), processor_time());
    for n in 0..tasks {
        set.spawn(task(n));
    }
    let mut watches = Vec::new();
    while let Some(done) = set.join_next().await {
        watches.push(done.map_err(|e| BenchError::from(format!("a bench task panicked: {e}")))??);
    }
    let processor = processor_time().zip(used).map(|(after, before)| after.saturating_sub(before));
    Ok(Run { processor, ..run_of(items, began.elapsed(), watches) })
}

async fn bare_run(args: &BenchArgs, messages: u64, directory: &Path) -> BenchResult<Run> {
    let record = args.payload + 64;
    let bytes = messages * record as u64;
    let failed = |e: &std::io::Error| BenchError::from(format!("failed to measure the bare file: {e}"));
    let file = BareFile::start(&directory.join("bare"), bytes).map_err(|e| failed(&e))?;
    let left = Arc::new(AtomicU64::new(messages));
    let run = many(args.producers, messages, |_| {
        let (sender, left) = (file.sender.clone(), Arc::clone(&left));
        async move {
            let mut watch = Stopwatch::new();
            while take(&left) {
                let began = Instant::now();
                let (done, answered) = oneshot::channel();
                let _ = sender.send(Append { bytes: vec![0xA5; record], done }).await;
                let _ = answered.await;
                watch.lap(began);
            }
            Ok(watch)
        }
    })
    .await?;
    file.finish().map_err(|e| failed(&e))?;
    Ok(run)
}

/// Takes one of the remaining items; returns `false` if there is none.
fn take(left: &AtomicU64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
}

pub(super) async fn enqueue_run(
    store: Arc<dyn Store>,
    args: &BenchArgs,
    messages: u64,
    rich: bool,
) -> BenchResult<Run> {
    let share = messages / args.producers as u64;
    // Payloads are generated beforehand, because only the store is measured. Ids are not: an id must be as
    // recent as its enqueue.
    let mut ready = Vec::new();
    for producer in 0..args.producers as u64 {
        let mine: Result<Vec<_>, _> = (0..share).map(|n| message(args, producer * share + n, rich)).collect();
        ready.push(Some(mine?));
    }
    let ready = std::sync::Mutex::new(ready);
    many(args.producers, share * args.producers as u64, |n| {
        let store = Arc::clone(&store);
        let mut ready = ready.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mine = ready.get_mut(n).and_then(Option::take).unwrap_or_default();
        async move {
            let mut watch = Stopwatch::new();
            for mut new in mine {
                let began = Instant::now();
                new.id = redrive::new_id();
                settle_all(store.enqueue(vec![new]).await?)?;
                watch.lap(began);
            }
            Ok(watch)
        }
    })
    .await
}

pub(super) fn settle_all<T>(results: Vec<Result<T, redrive::core::error::Refusal>>) -> BenchResult<()> {
    for result in results {
        result.map_err(redrive::core::error::CallError::Refused)?;
    }
    Ok(())
}

pub(super) async fn lease(store: &dyn Store, max: usize) -> BenchResult<Vec<LeaseToken>> {
    let request = LeaseRequest {
        queues: vec![queue()?],
        max,
        lease_for: None,
        worker: "bench".into(),
        ..LeaseRequest::default()
    };
    Ok(store.lease(request).await?.into_iter().map(|delivery| delivery.token).collect())
}

/// The whole lifecycle: each task enqueues a batch, leases as many messages and acknowledges them.
pub(super) async fn cycle_run(
    store: Arc<dyn Store>,
    args: &BenchArgs,
    messages: u64,
    batch: usize,
    tasks: usize,
) -> BenchResult<Run> {
    let rounds = messages / (batch * tasks) as u64;
    let mut ready = Vec::new();
    for task in 0..tasks as u64 {
        let mut mine = Vec::new();
        for round in 0..rounds {
            let first = (task * rounds + round) * batch as u64;
            let made: Result<Vec<_>, _> =
                (0..batch as u64).map(|n| message(args, first + n, false)).collect();
            mine.push(made?);
        }
        ready.push(Some(mine));
    }
    let ready = std::sync::Mutex::new(ready);
    many(tasks, rounds * (batch * tasks) as u64, |n| {
        let store = Arc::clone(&store);
        let mut ready = ready.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mine = ready.get_mut(n).and_then(Option::take).unwrap_or_default();
        async move {
            let mut watch = Stopwatch::new();
            for mut new in mine {
                let began = Instant::now();
                new.iter_mut().for_each(|message| message.id = redrive::new_id());
                settle_all(store.enqueue(new).await?)?;
                let tokens = lease(store.as_ref(), batch).await?;
                let acks = tokens.into_iter().map(|token| Settlement { token, what: Settle::Ack }).collect();
                settle_all(store.settle(acks).await?)?;
                watch.lap(began);
            }
            Ok(watch)
        }
    })
    .await
}

/// From failure to durable dead letter, including signature, classification, counters and history.
async fn death_run(store: Arc<dyn Store>, args: &BenchArgs, messages: u64, batch: usize) -> BenchResult<Run> {
    let policy = QueuePolicy { max_attempts: 1, lease: Span::from_hours(1), ..QueuePolicy::default() };
    store.configure(queue()?, policy, bench_actor()).await?;
    let all: Result<Vec<_>, _> = (0..messages).map(|n| message(args, n, false)).collect();
    for chunk in all?.chunks(1_000) {
        settle_all(store.enqueue(chunk.to_vec()).await?)?;
    }
    let mut tokens = Vec::new();
    loop {
        let more = lease(store.as_ref(), 1_000).await?;
        if more.is_empty() {
            break;
        }
        tokens.extend(more);
    }
    let tasks = 4;
    let share = tokens.len().div_ceil(tasks);
    let shares: Vec<Vec<LeaseToken>> = tokens.chunks(share.max(1)).map(<[LeaseToken]>::to_vec).collect();
    let total = tokens.len() as u64;
    many(shares.len(), total, |n| {
        let (store, mine) = (Arc::clone(&store), shares.get(n).cloned().unwrap_or_default());
        async move {
            let mut watch = Stopwatch::new();
            for (round, chunk) in mine.chunks(batch).enumerate() {
                let began = Instant::now();
                let fails =
                    chunk.iter().enumerate().map(|(i, token)| failed(*token, round * batch + i)).collect();
                settle_all(store.settle(fails).await?)?;
                watch.lap(began);
            }
            Ok(watch)
        }
    })
    .await
}

pub(super) fn bench_actor() -> redrive::core::dead_letter::Actor {
    redrive::core::dead_letter::Actor::new("bench", "cli")
}

pub(super) fn failed(token: LeaseToken, n: usize) -> Settlement {
    let error = ErrorInfo {
        error_type: "HttpError".into(),
        message: format!("upstream {} answered 503 for order {n} after {} ms", n % 20, n % 977),
        code: Some("503".into()),
        ..ErrorInfo::default()
    };
    let failure = Box::new(FailureReport { error, ..FailureReport::default() }.analyse());
    Settlement { token, what: Settle::Fail { failure, policy_override: None } }
}
