//! The waits suite: what those who only wait and watch cost those who send. Each run measures the same enqueues with
//! nobody around, beside a thousand workers that wait for another queue, and beside two hundred clients of the live
//! events, in alternating order on stores of their own.

use super::measure::{Figure, Run};
use super::printer::Printer;
use super::store::{enqueue_run, open};
use super::{BenchArgs, BenchError, BenchResult, failed_at, temp_directory};
use redrive::CancellationToken;
use redrive::core::access::Access;
use redrive::core::dead_letter::Actor;
use redrive::core::ids::QueueName;
use redrive::core::policy::QueuePolicy;
use redrive::core::store::Store;
use redrive::core::time::Span;
use redrive_server::{Config, ListenConfig, Listener, router};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

const DURABLE: &str = "fsync before reply";
/// Workers that wait.
const WAITING: usize = 1_000;
/// Clients of the live events.
const WATCHING: usize = 200;

/// Runs the suite.
pub(super) async fn run(printer: &Printer, args: BenchArgs) -> BenchResult<()> {
    let root = temp_directory(&args);
    let result = measure_all(printer, &args, &root).await;
    let _ = std::fs::remove_dir_all(&root);
    printer.figures(&result?)?;
    Ok(())
}

async fn measure_all(printer: &Printer, args: &BenchArgs, root: &Path) -> BenchResult<Vec<Figure>> {
    let messages = args.messages.unwrap_or(50_000);
    printer.note(&format!(
        "waits suite in {}: {} runs, {} producers, {messages} messages of {} bytes",
        root.display(),
        args.runs,
        args.producers,
        args.payload
    ));
    let (mut alone, mut waited, mut watched) = (Vec::new(), Vec::new(), Vec::new());
    let (mut wait_ratios, mut watch_ratios) = (Vec::new(), Vec::new());
    for number in 1..=args.runs.max(1) {
        let directory = root.join(number.to_string());
        std::fs::create_dir_all(&directory).map_err(|e| failed_at("create", &directory, &e))?;
        // Nobody is measured before and after the others, so that a drift of the machine shows.
        let before = plain(args, directory.join("before"), messages).await?;
        let beside_waits = with_waits(args, directory.join("waits"), messages).await?;
        let beside_clients = with_clients(args, directory.join("events"), messages).await?;
        let after = plain(args, directory.join("after"), messages).await?;
        let rate = before.rate().midpoint(after.rate());
        let p99 = before.calls.value_at_quantile(0.99).midpoint(after.calls.value_at_quantile(0.99));
        wait_ratios.push(ratio(beside_waits.calls.value_at_quantile(0.99), p99));
        watch_ratios.push(beside_clients.rate() / rate);
        let beside = |run: Run| Run { bare: Some(rate), ..run };
        alone.extend([before, after]);
        waited.push(beside(beside_waits));
        watched.push(beside(beside_clients));
        let _ = std::fs::remove_dir_all(&directory);
    }
    printer.note(&format!(
        "p99 with {WAITING} idle waits, of that without, by run: {}",
        listed(&mut wait_ratios)
    ));
    printer.note(&format!(
        "rate with {WATCHING} event clients, of that without, by run: {}",
        listed(&mut watch_ratios)
    ));
    Ok(vec![
        Figure::of("enqueue, nobody waits", DURABLE, 1, &alone),
        Figure::of("enqueue, 1,000 workers wait", DURABLE, 1, &waited),
        Figure::of("enqueue, 200 clients watch", DURABLE, 1, &watched),
    ])
}

#[expect(clippy::cast_precision_loss, reason = "a ratio is not exact")]
fn ratio(one: u64, other: u64) -> f64 {
    one as f64 / (other as f64).max(1.0)
}

/// Ratios in ascending order, so that the middle one is the median.
fn listed(ratios: &mut [f64]) -> String {
    ratios.sort_by(f64::total_cmp);
    let texts: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
    texts.join(" ")
}

async fn plain(args: &BenchArgs, directory: PathBuf, messages: u64) -> BenchResult<Run> {
    enqueue_run(open(directory).await?, args, messages, false).await
}

/// Enqueues beside workers that wait for a queue to which nothing is sent.
async fn with_waits(args: &BenchArgs, directory: PathBuf, messages: u64) -> BenchResult<Run> {
    let store = open(directory).await?;
    let idle: QueueName = "idle".parse().map_err(|e| BenchError::from(format!("a queue: {e}")))?;
    store.configure(idle.clone(), QueuePolicy::default(), Actor::new("bench", "bench")).await?;
    let mut waiting = JoinSet::new();
    for _ in 0..WAITING {
        let (store, queues) = (Arc::clone(&store), vec![idle.clone()]);
        waiting.spawn(async move { while store.wait(queues.clone(), Span::from_secs(20)).await.is_ok() {} });
    }
    let run = enqueue_run(store, args, messages, false).await;
    waiting.shutdown().await;
    run
}

/// Enqueues beside clients that read the live events over connections of their own.
async fn with_clients(args: &BenchArgs, directory: PathBuf, messages: u64) -> BenchResult<Run> {
    let store = open(directory).await?;
    let (address, serving) = serve(Arc::clone(&store)).await?;
    let mut watching = JoinSet::new();
    for _ in 0..WATCHING {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET /api/v1/events HTTP/1.1\r\nhost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut buffer = [0; 4_096];
        // The beginning of the reply: from here on the client gets every event.
        let _ = stream.read(&mut buffer).await?;
        watching.spawn(async move { while stream.read(&mut buffer).await.is_ok_and(|n| n > 0) {} });
    }
    let run = enqueue_run(store, args, messages, false).await;
    watching.shutdown().await;
    serving.abort();
    run
}

async fn serve(store: Arc<dyn Store>) -> BenchResult<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)), None).await?;
    let address = listener.address()?;
    let access = Some(Arc::new(Access::everything("bench")));
    let server = router(store, Config { without_auth: access, ..Config::default() });
    let stop = CancellationToken::new();
    let serving = tokio::spawn(redrive_server::serve(vec![listener], server, ListenConfig::default(), stop));
    Ok((address, serving))
}
