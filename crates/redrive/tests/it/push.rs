//! Push queues: connections that are used again, signatures that a receiver can verify, and workers that follow the
//! targets of the queues.

use crate::support::{PATIENCE, configure, eager, enqueue, eventually, message, queue};
use redrive::core::policy::QueuePolicy;
use redrive::core::store::Store;
use redrive::core::target::{CommandTarget, HttpTarget, Target};
use redrive::core::time::Span;
use redrive::core::webhook::SecretSource;
use redrive::executor::HttpExecutor;
use redrive::push::{self, PushSettings, PushWorkers};
use redrive::{CancellationToken, Heartbeat, Runnable as _, Worker};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;

/// A request as a receiver sees it.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// A receiver that keeps connections open, as real ones do. The function answers the nth request with a status.
pub(crate) struct Receiver {
    pub(crate) at: SocketAddr,
    pub(crate) received: Arc<Mutex<Vec<Received>>>,
    connections: Arc<AtomicUsize>,
}

impl Receiver {
    pub(crate) async fn new(status: impl Fn(usize) -> u16 + Send + Sync + 'static) -> Self {
        Self::with_tls(None, status).await
    }

    async fn with_tls(
        tls: Option<tokio_rustls::TlsAcceptor>,
        status: impl Fn(usize) -> u16 + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (received, connections) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (seen, count, status) = (Arc::clone(&received), Arc::clone(&connections), Arc::new(status));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (seen, count, status) = (Arc::clone(&seen), Arc::clone(&count), Arc::clone(&status));
                let tls = tls.clone();
                tokio::spawn(async move {
                    match tls {
                        None => {
                            count.fetch_add(1, Ordering::SeqCst);
                            answer_all(stream, &seen, &*status).await;
                        }
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else { return };
                            count.fetch_add(1, Ordering::SeqCst);
                            answer_all(stream, &seen, &*status).await;
                        }
                    }
                });
            }
        });
        Self { at, received, connections }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.at)
    }

    pub(crate) fn all(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

/// Answers every request of a connection.
async fn answer_all<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    seen: &Mutex<Vec<Received>>,
    status: &(impl Fn(usize) -> u16 + ?Sized),
) {
    let mut bytes = Vec::new();
    loop {
        let Some(request) = take_request(&mut bytes) else {
            let mut piece = [0; 4096];
            match stream.read(&mut piece).await {
                Ok(n @ 1..) => bytes.extend_from_slice(&piece[..n]),
                _ => return,
            }
            continue;
        };
        let nth = {
            let mut seen = seen.lock().unwrap();
            seen.push(request);
            seen.len() - 1
        };
        let reply = format!("HTTP/1.1 {} X\r\nContent-Length: 0\r\n\r\n", status(nth));
        if stream.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Takes a complete request off the front of the bytes.
fn take_request(bytes: &mut Vec<u8>) -> Option<Received> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let headers: BTreeMap<String, String> = head
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers.get("content-length").map_or(0, |n| n.parse().unwrap());
    if bytes.len() < end + length {
        return None;
    }
    let body = bytes[end..end + length].to_vec();
    bytes.drain(..end + length);
    Some(Received { headers, body })
}

fn tls_of(directory: &std::path::Path) -> (tokio_rustls::TlsAcceptor, String) {
    let ca_file = directory.join("ca.pem");
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&ca_file, signed.cert.pem()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(signed.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key)
        .unwrap();
    (tokio_rustls::TlsAcceptor::from(Arc::new(config)), ca_file.to_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_thousand_messages_take_as_many_handshakes_as_there_are_handlers() {
    let directory = tempfile::tempdir().unwrap();
    let (tls, ca_file) = tls_of(directory.path());
    let receiver = Receiver::with_tls(Some(tls), |_| 200).await;
    let target = HttpTarget {
        ca_file: Some(ca_file),
        allow_private: true,
        ..HttpTarget::new(format!("https://localhost:{}/", receiver.at.port()))
    };
    let store = redrive::memory();
    enqueue(&store, (0..1_000).map(|n| message("q", "k", &n.to_string())).collect()).await;
    let handler = HttpExecutor::new(target).unwrap();
    let worker = Worker::builder(store).queue("q").fallback(handler).concurrency(8).until_empty();
    assert_eq!(worker.build().unwrap().run().await.unwrap().done, 1_000);
    assert_eq!(receiver.all().len(), 1_000);
    let handshakes = receiver.connections.load(Ordering::SeqCst);
    println!("{handshakes} TLS handshakes for 1000 messages");
    // A handler may begin its next request before the pool has its connection back, and then opens another one, which
    // is kept as well. How many that are depends on the machine; it is never one for each message.
    assert!(handshakes <= 250, "{handshakes} handshakes");
}

#[tokio::test]
async fn a_receiver_that_closes_its_connections_costs_no_message() {
    // The connection is closed after each answer without saying so before.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            while take_request(&mut bytes).is_none() {
                let mut piece = [0; 4096];
                let Ok(n @ 1..) = stream.read(&mut piece).await else { break };
                bytes.extend_from_slice(&piece[..n]);
            }
            let _ = stream.write_all(b"HTTP/1.1 204 No\r\n\r\n").await;
        }
    });
    let store = redrive::memory();
    configure(&store, "q", eager(5)).await;
    enqueue(&store, (0..50).map(|n| message("q", "k", &n.to_string())).collect()).await;
    let target = HttpTarget { allow_private: true, ..HttpTarget::new(format!("http://{at}/")) };
    let handler = HttpExecutor::new(target).unwrap();
    let worker = Worker::builder(store).queue("q").fallback(handler).concurrency(1).until_empty();
    let counts = worker.build().unwrap().run().await.unwrap();
    assert_eq!((counts.done, counts.dead), (50, 0));
}

/// HMAC-SHA256 by its definition, so that the test does not trust the code it tests.
fn hmac_sha256(key: &[u8], message: &[u8]) -> Vec<u8> {
    use sha2::Digest as _;
    assert!(key.len() <= 64);
    let pad = |with: u8| -> Vec<u8> { (0..64).map(|n| key.get(n).copied().unwrap_or(0) ^ with).collect() };
    let inner = sha2::Sha256::digest([pad(0x36), message.to_vec()].concat());
    sha2::Sha256::digest([pad(0x5c), inner.to_vec()].concat()).to_vec()
}

/// Base64 by its definition.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits =
            three.iter().fold(0u32, |bits, byte| (bits << 8) | u32::from(*byte)) << (8 * (3 - three.len()));
        for n in 0..4 {
            let letter = LETTERS[usize::try_from((bits >> (18 - 6 * n)) & 63).unwrap()];
            text.push(if n <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// The secret of the tests: 32 bytes from 0 to 31.
pub(crate) fn secret() -> (String, Vec<u8>) {
    let key: Vec<u8> = (0..32).collect();
    (format!("whsec_{}", base64(&key)), key)
}

/// Verifies a signed request as a receiver would.
pub(crate) fn assert_signed(request: &Received, key: &[u8]) {
    let header = |name: &str| request.headers.get(name).unwrap_or_else(|| panic!("no {name}: {request:?}"));
    let (id, at) = (header("webhook-id"), header("webhook-timestamp"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(at.parse::<u64>().unwrap().abs_diff(now) < PATIENCE.as_secs(), "{at} is not now, {now}");
    let signed = [format!("{id}.{at}.").as_bytes(), &request.body].concat();
    assert_eq!(header("webhook-signature"), &format!("v1,{}", base64(&hmac_sha256(key, &signed))));
}

#[tokio::test]
async fn a_signed_request_can_be_verified_and_its_id_stays_the_same() {
    let receiver = Receiver::new(|nth| if nth == 0 { 503 } else { 200 }).await;
    let (secret, key) = secret();
    let target = HttpTarget {
        secret: Some(SecretSource::new(secret)),
        allow_private: true,
        ..HttpTarget::new(receiver.url())
    };
    let store = redrive::memory();
    configure(&store, "q", eager(3)).await;
    enqueue(&store, vec![message("q", "charge", "{\"n\": 1}")]).await;
    let worker = Worker::builder(store).queue("q").fallback(HttpExecutor::new(target).unwrap()).until_empty();
    assert_eq!(worker.build().unwrap().run().await.unwrap().done, 1);
    let all = receiver.all();
    assert_eq!(all.len(), 2);
    for request in &all {
        assert_signed(request, &key);
        assert_eq!(request.body, b"{\"n\": 1}");
        assert_eq!(request.headers["redrive-kind"], "charge");
    }
    assert_eq!(all[0].headers["webhook-id"], all[1].headers["webhook-id"]);
    let mut changed = all[0].clone();
    changed.body.push(b' ');
    assert!(std::panic::catch_unwind(|| assert_signed(&changed, &key)).is_err());
}

#[tokio::test]
async fn a_secret_that_this_process_does_not_have_is_a_failure_and_nothing_is_sent() {
    let receiver = Receiver::new(|_| 200).await;
    let target = HttpTarget {
        secret: Some(SecretSource::new("${env.NO_SUCH_SECRET_HERE}")),
        allow_private: true,
        ..HttpTarget::new(receiver.url())
    };
    let store = redrive::memory();
    configure(&store, "q", eager(1)).await;
    enqueue(&store, vec![message("q", "k", "1")]).await;
    let handler = HttpExecutor::new(target).unwrap();
    let worker = Worker::builder(store).queue("q").fallback(handler).until_empty();
    assert_eq!(worker.build().unwrap().run().await.unwrap().dead, 1);
    assert!(receiver.all().is_empty());
}

/// Push workers that look for new targets all the time, until they are dropped.
struct Pushing {
    workers: Arc<PushWorkers>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Pushing {
    fn begin(store: &Arc<dyn Store>, commands: bool) -> Self {
        let settings = PushSettings { commands, look_every: Span::from_millis(5), ..PushSettings::default() };
        let workers = Arc::new(push::workers(Arc::clone(store), settings));
        let (stop, running) = (CancellationToken::new(), Arc::clone(&workers));
        let stopped = stop.clone();
        let task = tokio::spawn(async move { running.run(stopped, Heartbeat::default()).await.unwrap() });
        Self { workers, stop, task }
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

fn pushed_to(target: Target) -> QueuePolicy {
    QueuePolicy { target: Some(target), ..eager(3) }
}

#[tokio::test]
async fn workers_follow_the_targets_of_the_queues() {
    let (first, second) = (Receiver::new(|_| 200).await, Receiver::new(|_| 204).await);
    let to = |receiver: &Receiver| {
        pushed_to(Target::Http(HttpTarget { allow_private: true, ..HttpTarget::new(receiver.url()) }))
    };
    let store = redrive::memory();
    configure(&store, "early", to(&first)).await;
    configure(&store, "own", QueuePolicy::default()).await;
    let pushing = Pushing::begin(&store, false);
    enqueue(&store, vec![message("early", "k", "1"), message("own", "k", "2")]).await;
    eventually("the message was pushed", async || first.all().len() == 1).await;
    // A queue that gets a target later.
    enqueue(&store, vec![message("late", "k", "3")]).await;
    configure(&store, "late", to(&first)).await;
    eventually("the late queue is pushed", async || first.all().len() == 2).await;
    // A target that changes.
    configure(&store, "early", to(&second)).await;
    eventually("the new target gets the messages", async || {
        enqueue(&store, vec![message("early", "k", "4")]).await;
        !second.all().is_empty()
    })
    .await;
    // A queue that loses its target keeps its messages.
    configure(&store, "late", QueuePolicy::default()).await;
    eventually("nobody takes the messages any more", async || {
        enqueue(&store, vec![message("late", "k", "5")]).await;
        queue(&store, "late").await.ready > 0
    })
    .await;
    pushing.end().await;
    assert_eq!(queue(&store, "own").await.ready, 1, "a queue without a target is left to its own workers");
    assert!(queue(&store, "early").await.counts.leased == 0, "nothing stays leased after a stop");
}

#[tokio::test]
async fn commands_run_only_where_they_are_allowed() {
    let store = redrive::memory();
    configure(&store, "q", pushed_to(Target::Command(CommandTarget::argv(["true"])))).await;
    enqueue(&store, vec![message("q", "k", "1")]).await;
    let pushing = Pushing::begin(&store, false);
    eventually("the problem is reported", async || !pushing.workers.degraded().is_empty()).await;
    assert!(pushing.workers.degraded()[0].contains("commands = true"), "{:?}", pushing.workers.degraded());
    pushing.end().await;
    assert_eq!(queue(&store, "q").await.ready, 1);
    let pushing = Pushing::begin(&store, true);
    eventually("the command ran", async || queue(&store, "q").await.counts.done == 1).await;
    assert!(pushing.workers.degraded().is_empty());
    pushing.end().await;
}
