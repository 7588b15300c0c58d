//! The side that holds the store: takes connections of nodes that know the secret of its term, and carries out their
//! calls. Whoever does not know it costs a bounded time and a bounded number of places, and learns nothing.

use super::identity::{Identity, PROOF_BYTES};
use super::prepare;
use crate::remote::peer::Peer;
use crate::remote::protocol::{Hello, Incoming, write};
use crate::remote::server::{ACCEPT_AGAIN_AFTER, Service, converse, hang_up};
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::limits;
use redrive_core::store::Store;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// What a server of nodes accepts at once.
#[derive(Clone, Copy, Debug)]
pub struct TcpLimits {
    /// Connections of nodes.
    pub connections: usize,
    /// Callers that wait for messages, on all connections together.
    pub waits: usize,
    /// Connections that have not proved anything yet.
    pub handshakes: usize,
    /// How long a connection may take to prove that it is a node, and as long again to greet.
    pub greeting: Duration,
}

impl Default for TcpLimits {
    fn default() -> Self {
        Self {
            connections: limits::CONNECTIONS_MAX,
            waits: limits::WAITS_MAX,
            handshakes: limits::HANDSHAKES_MAX,
            greeting: limits::GREETING_MAX,
        }
    }
}

/// What became of the connections to a server since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Nodes that were let in.
    pub accepted: u64,
    /// Connections that did not speak TLS, or said nothing for too long.
    pub failed_handshakes: u64,
    /// Connections that did not prove that they know the secret of this term.
    pub wrong_proofs: u64,
    /// Connections that were one too many.
    pub over_limit: u64,
}

#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicU64,
    failed_handshakes: AtomicU64,
    wrong_proofs: AtomicU64,
    over_limit: AtomicU64,
}

impl Counters {
    fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Serves a store to nodes until it is dropped. Then all of its connections are closed, and nodes do not know what became
/// of the calls that were on their way; [`Self::hand_over`] leaves no such doubt.
#[derive(Debug)]
pub struct TcpServer {
    address: SocketAddr,
    counters: Arc<Counters>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for TcpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TcpServer {
    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// What became of the connections so far.
    #[must_use]
    pub fn counts(&self) -> ConnectionCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ConnectionCounts {
            accepted: read(&self.counters.accepted),
            failed_handshakes: read(&self.counters.failed_handshakes),
            wrong_proofs: read(&self.counters.wrong_proofs),
            over_limit: read(&self.counters.over_limit),
        }
    }

    /// Ends in peace: takes no more connections and calls, carries out and answers the calls that were taken, tells every
    /// node that the others were not, and returns when all connections are closed, or after `at_most`, because a node may
    /// have stopped reading. Nodes then ask who holds the store.
    pub async fn hand_over(mut self, at_most: Duration) {
        self.stop.send_replace(true);
        let _ = tokio::time::timeout(at_most, &mut self.task).await;
    }
}

/// What the connections of one server share.
struct Shared {
    service: Service,
    identity: Identity,
    limits: TcpLimits,
    places: Arc<Semaphore>,
    counters: Arc<Counters>,
    stop: watch::Receiver<bool>,
}

/// Begins to serve a store to nodes. Must be called on a runtime. The store is held weakly: when its owner drops it,
/// nodes are told that their calls are not taken any more.
///
/// # Errors
/// [`StoreErrorKind::Io`] if the listener has no address.
pub fn serve(
    store: &Arc<dyn Store>,
    listener: TcpListener,
    identity: Identity,
    limits: TcpLimits,
) -> Result<TcpServer, StoreError> {
    let no_address =
        |e| StoreError::new(StoreErrorKind::Io, format!("cannot serve the store to other nodes: {e}"));
    let address = listener.local_addr().map_err(no_address)?;
    let (stop, stopping) = watch::channel(false);
    let counters = Arc::new(Counters::default());
    let shared = Arc::new(Shared {
        service: Service::new(store, Peer::Node, limits.waits, limits.greeting),
        identity,
        limits,
        places: Arc::new(Semaphore::new(limits.connections)),
        counters: Arc::clone(&counters),
        stop: stopping,
    });
    let task = tokio::spawn(accept_all(listener, shared));
    Ok(TcpServer { address, counters, stop, task })
}

/// Returns when the server is to stop.
async fn stopped(mut stop: watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // The server was dropped, which ends this task as well.
        std::future::pending::<()>().await;
    }
}

/// Takes connections until the server is to stop, then waits for those that it has.
async fn accept_all(listener: TcpListener, shared: Arc<Shared>) {
    let handshakes = Arc::new(Semaphore::new(shared.limits.handshakes));
    // All of them end when this task does.
    let mut connections = JoinSet::new();
    let mut stop = std::pin::pin!(stopped(shared.stop.clone()));
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match (accepted, Arc::clone(&handshakes).try_acquire_owned()) {
                (Ok((stream, _)), Ok(handshake)) => {
                    connections.spawn(serve_one(stream, handshake, Arc::clone(&shared)));
                }
                (Ok(_), Err(_)) => Counters::count(&shared.counters.over_limit),
                (Err(_), _) => tokio::time::sleep(ACCEPT_AGAIN_AFTER).await,
            },
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection, if it proves to be a node's.
async fn serve_one(stream: TcpStream, handshake: OwnedSemaphorePermit, shared: Arc<Shared>) {
    prepare(&stream);
    let admitted = tokio::time::timeout(shared.limits.greeting, admit(stream, &shared)).await;
    drop(handshake);
    let stream = match admitted {
        Ok(Some(stream)) => stream,
        Ok(None) => return,
        Err(_too_slow) => return Counters::count(&shared.counters.failed_handshakes),
    };
    let (from, mut to) = tokio::io::split(stream);
    let Ok(_place) = shared.places.try_acquire() else {
        Counters::count(&shared.counters.over_limit);
        let why = Peer::Node.no_more_connections(shared.limits.connections);
        if let Ok(frame) = Hello::refusing(why).pack()
            && write(&mut to, &frame).await.is_ok()
        {
            hang_up(Incoming::new(from, Peer::Node), to, shared.limits.greeting).await;
        }
        return;
    };
    Counters::count(&shared.counters.accepted);
    let _ = converse(from, to, &shared.service, stopped(shared.stop.clone())).await;
}

/// Speaks TLS and checks that the other end knows the secret. Counts those who fail, and says nothing to them.
async fn admit(stream: TcpStream, shared: &Shared) -> Option<TlsStream<TcpStream>> {
    let Ok(mut stream) = TlsAcceptor::from(shared.identity.tls()).accept(stream).await else {
        Counters::count(&shared.counters.failed_handshakes);
        return None;
    };
    let mut proof = [0; PROOF_BYTES];
    let read = stream.read_exact(&mut proof).await;
    if read.is_ok() && shared.identity.accepts(&proof, stream.get_ref().1) {
        return Some(stream);
    }
    Counters::count(&shared.counters.wrong_proofs);
    None
}
