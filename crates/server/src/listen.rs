//! Accepts connections and answers the requests on them, within limits on how many there are, how long they may be
//! idle and how long a request's head may take. Ends them in order when the server stops. It knows nothing of what is
//! asked.

use crate::access::Peer;
use crate::tls::TlsFiles;
use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// The size of a request's head from which on a connection is given up without a proper answer. The router refuses
/// smaller heads with a problem document (`crate::router`).
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The number of header lines from which on a connection is given up without a proper answer.
const HEADER_LINES_MAX: usize = 256;
/// The number of requests at once on one HTTP/2 connection.
const STREAMS_MAX: u32 = 256;
/// How often a silent HTTP/2 connection is asked whether it is still there, and how long it may take to answer.
const PING_EVERY: Duration = Duration::from_secs(20);
/// How long to wait before accepting again when the system has no more file descriptors.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The limits of a listener.
#[derive(Clone, Copy, Debug)]
pub struct ListenConfig {
    /// The number of connections at once, over all listeners. Others wait to be accepted.
    pub connections_max: usize,
    /// How long a TLS handshake or the head of a request may take, and how long an HTTP/1.1 connection may be idle.
    pub head_within: Duration,
    /// How long a connection may be without any request.
    pub idle_max: Duration,
    /// How long requests that have begun may take once the server stops.
    pub drain_within: Duration,
}

impl Default for ListenConfig {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            head_within: Duration::from_secs(10),
            idle_max: Duration::from_secs(60),
            drain_within: Duration::from_secs(30),
        }
    }
}

/// An address that a server listens on.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    tls: Option<Arc<TlsFiles>>,
}

impl Listener {
    /// Binds an address. Port 0 takes a free port.
    ///
    /// # Errors
    /// Those of the system: the port is in use, or the address is not one of this machine.
    pub async fn bind(address: SocketAddr, tls: Option<Arc<TlsFiles>>) -> io::Result<Self> {
        Ok(Self { tcp: TcpListener::bind(address).await?, tls })
    }

    /// The address, with the real port.
    ///
    /// # Errors
    /// Those of the system.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// Answers requests until `stop` is cancelled. Then it accepts no more connections, lets the requests finish that have
/// begun, and returns. The router should end what waits at that moment, such as long polls.
pub async fn serve(listeners: Vec<Listener>, router: Router, config: ListenConfig, stop: CancellationToken) {
    let room = Arc::new(Semaphore::new(config.connections_max));
    let mut accepting = JoinSet::new();
    for listener in listeners {
        let server = Server { router: router.clone(), config, stop: stop.clone(), tls: listener.tls };
        accepting.spawn(accept(listener.tcp, Arc::clone(&room), server));
    }
    while accepting.join_next().await.is_some() {}
}

/// What the connections of one listener share.
#[derive(Clone)]
struct Server {
    router: Router,
    config: ListenConfig,
    stop: CancellationToken,
    tls: Option<Arc<TlsFiles>>,
}

/// Accepts connections until the server stops, then waits for them to end.
async fn accept(listener: TcpListener, room: Arc<Semaphore>, server: Server) {
    let mut connections = JoinSet::new();
    while !server.stop.is_cancelled() {
        tokio::select! {
            () = server.stop.cancelled() => {}
            // Forget the connections that have ended.
            Some(_) = connections.join_next() => {}
            (accepted, permit) = accept_one(&listener, &room) => match accepted {
                Ok((stream, from)) => {
                    connections.spawn(server.clone().converse(stream, from, permit));
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                }
            },
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(server.config.drain_within, all).await.is_err() {
        tracing::warn!(connections = connections.len(), "requests did not end in time and are cut off");
        connections.shutdown().await;
    }
}

/// Accepts one connection once there is room for it.
async fn accept_one(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> (io::Result<(TcpStream, SocketAddr)>, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed, so there always is a permit.
    let permit = Arc::clone(room).acquire_owned().await.ok();
    (listener.accept().await, permit)
}

impl Server {
    /// Answers the requests of one connection.
    async fn converse(self, stream: TcpStream, from: SocketAddr, _permit: Option<OwnedSemaphorePermit>) {
        // Only an optimisation for small replies, so errors are ignored.
        let _ = stream.set_nodelay(true);
        let peer = Peer(from.ip());
        let Some(files) = self.tls.clone() else { return self.answer(stream, peer).await };
        // Looking whether the files have changed may block for a moment.
        let Ok(tls) = tokio::task::spawn_blocking(move || files.current()).await else { return };
        let handshake = TlsAcceptor::from(tls).accept(stream);
        match tokio::time::timeout(self.config.head_within, handshake).await {
            Ok(Ok(stream)) => self.answer(stream, peer).await,
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn answer<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(self, stream: S, peer: Peer) {
        let requests = Arc::new(Requests::default());
        let counted = Arc::clone(&requests);
        let router = TowerToHyperService::new(self.router);
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            let running = Running::begin(Arc::clone(&counted));
            let reply = router.call(request);
            async move {
                let _running = running;
                reply.await
            }
        });
        let builder = builder(self.config);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let mut ending = false;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(error, "a connection ended early");
                    }
                    return;
                }
                () = self.stop.cancelled(), if !ending => {}
                () = requests.idle_for(self.config.idle_max), if !ending => {}
            }
            // Replies that have begun are still sent.
            connection.as_mut().graceful_shutdown();
            ending = true;
        }
    }
}

fn builder(config: ListenConfig) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.head_within)
        .max_headers(HEADER_LINES_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_EVERY)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).unwrap_or(u32::MAX));
    builder
}

/// Counts the requests of one connection.
#[derive(Default)]
struct Requests {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Requests {
    /// Completes when no request has been there for at least this long, and at most for twice as long.
    async fn idle_for(&self, span: Duration) {
        loop {
            let begun = self.begun.load(Ordering::Relaxed);
            tokio::time::sleep(span).await;
            let (still, ended) = (self.begun.load(Ordering::Relaxed), self.ended.load(Ordering::Relaxed));
            if still == begun && ended == begun {
                return;
            }
        }
    }
}

/// A request that is being answered.
struct Running(Arc<Requests>);

impl Running {
    fn begin(requests: Arc<Requests>) -> Self {
        requests.begun.fetch_add(1, Ordering::Relaxed);
        Self(requests)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}
