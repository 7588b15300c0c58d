//! The HTTP suite: the API over real connections beside the library in the same run. Server and clients share the
//! machine, so the figures are what one machine does for both sides together.

use super::measure::{Figure, Run, Stopwatch};
use super::printer::Printer;
use super::store::{lease, many, message, open, queue, settle_all};
use super::{BenchArgs, BenchError, BenchResult, failed_at, temp_directory};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use redrive::CancellationToken;
use redrive::core::access::Access;
use redrive::core::store::{Settle, Settlement, Store};
use redrive_server::{Config, ListenConfig, Listener, router, serve};
use serde::Deserialize;
use std::borrow::Cow;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpStream;

const DURABLE: &str = "fsync before reply";
/// The entries of a batch.
const BATCH: usize = 100;
/// The numbers of connections that are compared.
const CONNECTIONS: [usize; 3] = [1, 8, 64];

/// The version of HTTP that a client speaks.
#[derive(Clone, Copy)]
enum Protocol {
    Http1,
    /// HTTP/2 without TLS, begun with prior knowledge.
    H2c,
}

impl Protocol {
    const fn name(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1.1",
            Self::H2c => "h2c",
        }
    }
}

/// What a client repeats.
#[derive(Clone, Copy)]
enum Job {
    /// Sends messages.
    Send,
    /// Sends messages, leases as many and acknowledges them.
    Life,
}

impl Job {
    const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Life => "send, lease, ack",
        }
    }
}

/// Runs the suite.
pub(super) async fn run(printer: &Printer, args: BenchArgs) -> BenchResult<()> {
    let root = temp_directory(&args);
    let result = measure_all(printer, &args, &root).await;
    let _ = std::fs::remove_dir_all(&root);
    printer.figures(&result?)
}

/// A row of the report and its runs so far.
type Series = (String, usize, Vec<Run>);

async fn measure_all(printer: &Printer, args: &BenchArgs, root: &Path) -> BenchResult<Vec<Figure>> {
    let messages = args.messages.unwrap_or(20_000);
    let mut all: Vec<Series> = Vec::new();
    for number in 1..=args.runs.max(1) {
        printer.note(&format!("run {number} of {}", args.runs));
        let directory = root.join(number.to_string());
        std::fs::create_dir_all(&directory).map_err(|e| failed_at("create", &directory, &e))?;
        for connections in CONNECTIONS {
            for batch in [1, BATCH] {
                for job in [Job::Send, Job::Life] {
                    // A single connection waits for every commit, so it gets fewer messages.
                    let count = if connections == 1 && batch == 1 { messages / 10 } else { messages };
                    let fresh = |name: &str| open(directory.join(format!("{name}-{connections}-{batch}")));
                    let name = |who: &str| format!("{who} x{connections}: {}", job.name());
                    let store = fresh(&format!("library-{}", job.name())).await?;
                    let library = in_library(store, args, job, (connections, batch), count).await?;
                    let rate = library.rate();
                    add(&mut all, name("library"), batch, library);
                    for protocol in [Protocol::Http1, Protocol::H2c] {
                        let store = fresh(&format!("{}-{}", protocol.name().replace('/', ""), job.name()));
                        let run = over_http(store.await?, args, (protocol, job), (connections, batch), count);
                        let run = Run { bare: Some(rate), ..run.await? };
                        add(&mut all, name(protocol.name()), batch, run);
                    }
                }
            }
        }
        let _ = std::fs::remove_dir_all(&directory);
    }
    Ok(all.iter().map(|(what, batch, runs)| Figure::of(what, DURABLE, *batch, runs)).collect())
}

fn add(all: &mut Vec<Series>, what: String, batch: usize, run: Run) {
    match all.iter_mut().find(|(name, of, _)| *name == what && *of == batch) {
        Some((_, _, runs)) => runs.push(run),
        None => all.push((what, batch, vec![run])),
    }
}

async fn in_library(
    store: Arc<dyn Store>,
    args: &BenchArgs,
    job: Job,
    (callers, batch): (usize, usize),
    messages: u64,
) -> BenchResult<Run> {
    let rounds = messages / (callers * batch) as u64;
    many(callers, rounds * (callers * batch) as u64, |caller| {
        let (store, args) = (Arc::clone(&store), args.clone());
        async move {
            let mut watch = Stopwatch::new();
            for round in 0..rounds {
                let first = (caller as u64 * rounds + round) * batch as u64;
                let new: BenchResult<Vec<_>> =
                    (0..batch as u64).map(|n| message(&args, first + n, false)).collect();
                let new = new?;
                let began = Instant::now();
                settle_all(store.enqueue(new).await?)?;
                if matches!(job, Job::Life) {
                    let tokens = lease(store.as_ref(), batch).await?;
                    let ack = |token| Settlement { token, what: Settle::Ack };
                    settle_all(store.settle(tokens.into_iter().map(ack).collect()).await?)?;
                }
                watch.lap(began);
            }
            Ok(watch)
        }
    })
    .await
}

async fn over_http(
    store: Arc<dyn Store>,
    args: &BenchArgs,
    (protocol, job): (Protocol, Job),
    (connections, batch): (usize, usize),
    messages: u64,
) -> BenchResult<Run> {
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)), None).await?;
    let address = listener.address()?;
    // What is measured is HTTP, not the look-up of a token, which is remembered for a second anyway.
    let trusted = Some(Arc::new(Access::everything("bench")));
    let server = router(store, Config { without_auth: trusted, ..Config::default() });
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve(vec![listener], server, ListenConfig::default(), stop));
    let rounds = messages / (connections * batch) as u64;
    let run = many(connections, rounds * (connections * batch) as u64, |_| {
        let payload = "x".repeat(args.payload);
        async move {
            let mut client = Client::connect(protocol, address).await?;
            let queue = queue()?;
            let (send, lease) =
                (format!("/api/v1/queues/{queue}/messages"), format!("/api/v1/queues/{queue}/lease"));
            let one = serde_json::json!({"payload": payload});
            let body = if batch == 1 { one } else { serde_json::json!({"messages": vec![one; batch]}) };
            let (body, wanted) = (Bytes::from(body.to_string()), Bytes::from(format!("{{\"max\":{batch}}}")));
            let mut watch = Stopwatch::new();
            for _ in 0..rounds {
                let began = Instant::now();
                client.post(&send, body.clone()).await?;
                if matches!(job, Job::Life) {
                    let leased = client.post(&lease, wanted.clone()).await?;
                    ack(&mut client, &serde_json::from_slice(&leased)?, batch).await?;
                }
                watch.lap(began);
            }
            Ok(watch)
        }
    })
    .await;
    serving.abort();
    run
}

/// What a worker reads of a lease.
#[derive(Deserialize)]
struct Leased<'a> {
    #[serde(borrow)]
    items: Vec<LeasedItem<'a>>,
}

#[derive(Deserialize)]
struct LeasedItem<'a> {
    token: &'a str,
    /// A worker reads the payload, too.
    #[serde(borrow)]
    payload: Cow<'a, str>,
}

/// Acknowledges what was leased: one delivery by its own route, several in one call.
async fn ack(client: &mut Client, leased: &Leased<'_>, batch: usize) -> BenchResult<()> {
    if leased.items.iter().any(|item| item.payload.is_empty()) {
        return Err("a delivery has no payload".into());
    }
    match leased.items.as_slice() {
        [] => {}
        [item] if batch == 1 => {
            let path = format!("/api/v1/deliveries/{}/ack", item.token);
            client.post(&path, Bytes::from_static(b"{}")).await?;
        }
        many => {
            let entries: Vec<String> =
                many.iter().map(|item| format!(r#"{{"token":"{}","ack":{{}}}}"#, item.token)).collect();
            let body = format!(r#"{{"settle":[{}]}}"#, entries.join(","));
            client.post("/api/v1/deliveries/settle", Bytes::from(body)).await?;
        }
    }
    Ok(())
}

/// One connection.
struct Client {
    sender: Sender,
    host: String,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    async fn connect(protocol: Protocol, address: SocketAddr) -> BenchResult<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let io = TokioIo::new(stream);
        let sender = match protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await?;
                tokio::spawn(connection);
                Sender::Http1(sender)
            }
            Protocol::H2c => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                tokio::spawn(connection);
                Sender::Http2(sender)
            }
        };
        Ok(Self { sender, host: address.to_string() })
    }

    /// Posts JSON and returns the body of a reply that reports success.
    async fn post(&mut self, path: &str, body: Bytes) -> BenchResult<Bytes> {
        let uri = match self.sender {
            Sender::Http1(_) => path.to_owned(),
            Sender::Http2(_) => format!("http://{}{path}", self.host),
        };
        let request = Request::post(uri).header("content-type", "application/json");
        let request = match self.sender {
            Sender::Http1(_) => request.header("host", &self.host),
            Sender::Http2(_) => request,
        };
        let request = request.body(Full::new(body))?;
        let response: Response<Incoming> = match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
            Sender::Http2(sender) => {
                sender.ready().await?;
                sender.send_request(request).await?
            }
        };
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            return Err(BenchError::from(format!("{status}: {}", String::from_utf8_lossy(&body))));
        }
        Ok(body)
    }
}
