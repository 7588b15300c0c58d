//! A node: a process that uses a store in PostgreSQL together with others. One node holds the store and applies all
//! writes; the others send theirs to it over the network. Every node reads the database itself. When the holder goes
//! away, one of the nodes that wait takes the store over.

use super::connect::{Address, Session};
use super::open::{Options, Prepared, hold, prepare};
use super::readers::Readers;
use super::writer::PgTables;
use super::{PostgresStore, term};
use crate::access::{Access, ReadVerb, Wants, WriteCost, WriteVerb};
use crate::engine::tables::TableResult;
use crate::holder::Holder;
use crate::remote::tcp::{
    HolderAddress, Holders, Identity, NodeStore, Published, TcpLimits, TcpServer, serve,
};
use crate::verbs::EngineStore;
use async_trait::async_trait;
use redrive_core::audit::AuditKey;
use redrive_core::error::{CallError, StoreError, StoreErrorKind, StoreResult};
use redrive_core::store::{Route, Routed, Store, StoreInfo};
use redrive_core::time::{Clock, Time};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;
use tokio::net::TcpListener;
use uuid::Uuid;

/// How a process joins the nodes of a store.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// How the store is opened.
    pub store: Options,
    /// Where this node listens for the others while it holds the store.
    pub listen: SocketAddr,
    /// The host under which the others reach it, unless it is the address that the database sees.
    pub advertise: Option<String>,
    /// Whether the node takes the store over when nobody holds it. A node that never does can only use a store that
    /// another holds.
    pub may_hold: bool,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            store: Options::default(),
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            advertise: None,
            may_hold: true,
        }
    }
}

/// How often a node that waits looks whether the store is free, and a holder whether it still holds it.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Verbs that read nothing but the database, so that every node carries them out itself. What lives in the memory of the
/// holder (who waits, who works, what changed) is asked of it.
const READS: &[&str] = &[
    "messages",
    "message",
    "key_state",
    "queues",
    "queue",
    "letters",
    "letter",
    "revisions",
    "dlqs",
    "groups",
    "group",
    "group_detail",
    "markers",
    "export",
    "operation",
    "operations",
    "members",
    "audit",
    "audit_verify",
    "kv_get",
    "kv_list",
    "ids_ending",
];

/// Joins the nodes of a store.
///
/// # Errors
/// A [`StoreError`] that says why the store cannot be used, and what to do.
pub async fn join(url: &str, options: NodeOptions) -> Result<Arc<dyn Store>, StoreError> {
    let address: Address = url.parse()?;
    let (at, with) = (address.clone(), options.store.clone());
    let prepared = blocking(move || prepare(&at, &with)).await?;
    let reading = Reading {
        readers: Readers::new(&address),
        clock: options.store.clock.clone(),
        memory: Arc::new(Holder::new()),
        audit_key: prepared.audit_key.clone(),
        place: address.shown(),
    };
    let remote = NodeStore::new(Arc::new(HolderRow { address: address.clone(), session: Mutex::new(None) }));
    let node = Arc::new(Node {
        address,
        options,
        held: RwLock::new(None),
        reader: Arc::new(EngineStore(reading)),
        remote: Arc::new(remote),
    });
    let mut waiting = Some(prepared);
    if node.options.may_hold {
        node.try_to_hold(&mut waiting).await?;
        tokio::spawn(stand_by(Arc::downgrade(&node), waiting));
    }
    Ok(Arc::new(Routed::new(node)))
}

/// Runs something that blocks on a thread where that is allowed.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> TableResult<T> + Send + 'static,
) -> TableResult<T> {
    let panicked = |_| StoreError::new(StoreErrorKind::Stopped, "a connection to PostgreSQL panicked");
    tokio::task::spawn_blocking(work).await.map_err(panicked)?
}

/// The store that this node holds, and its service for the others.
struct Held {
    store: Arc<PostgresStore>,
    /// Dropped first, so that no call arrives at a store that is closing.
    _server: Option<TcpServer>,
}

struct Node {
    address: Address,
    options: NodeOptions,
    held: RwLock<Option<Held>>,
    reader: Arc<dyn Store>,
    remote: Arc<dyn Store>,
}

#[async_trait]
impl Route for Node {
    async fn route(&self, verb: &'static str) -> StoreResult<Arc<dyn Store>> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        Ok(match held.as_ref() {
            Some(held) if !held.store.has_lost_the_store() => Arc::clone(&held.store) as Arc<dyn Store>,
            Some(_) | None if READS.contains(&verb) => Arc::clone(&self.reader),
            Some(_) | None => Arc::clone(&self.remote),
        })
    }
}

/// Takes the store over whenever it is free, for as long as the node exists.
async fn stand_by(node: Weak<Node>, mut waiting: Option<Prepared>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(node) = node.upgrade() else { return };
        if node.still_holds() {
            continue;
        }
        // A database that cannot be reached now may be there at the next look.
        let _ = node.try_to_hold(&mut waiting).await;
    }
}

impl Node {
    /// Whether this node holds the store. If it has lost it, its service for the others ends.
    fn still_holds(&self) -> bool {
        let lost = {
            let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
            if held.as_ref().is_some_and(|held| !held.store.has_lost_the_store()) {
                return true;
            }
            held.take()
        };
        // Closing waits for the writer, which has nothing left to do.
        drop(lost);
        false
    }

    /// Takes the store if nobody holds it, and serves it to the others.
    async fn try_to_hold(&self, waiting: &mut Option<Prepared>) -> TableResult<()> {
        let (address, options) = (self.address.clone(), self.options.store.clone());
        let prepared = waiting.take();
        let (prepared, taken) = blocking(move || {
            let prepared = prepared.map_or_else(|| prepare(&address, &options), Ok)?;
            let mut nonce = [0; 16];
            options.entropy.fill(&mut nonce);
            let taken = term::acquire(&prepared.session, &options.node, Uuid::from_bytes(nonce))?;
            Ok((prepared, taken))
        })
        .await?;
        let Ok(term) = taken else {
            *waiting = Some(prepared);
            return Ok(());
        };
        let (address, options) = (self.address.clone(), self.options.store.clone());
        let fence = (term.term, term.nonce);
        let store = blocking(move || hold(&address, prepared, term, &options)).await?;
        let store = Arc::new(EngineStore(store));
        let server = self.serve(&store, fence).await?;
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        *held = Some(Held { store, _server: Some(server) });
        Ok(())
    }

    /// Listens for the other nodes and publishes how they reach this one.
    async fn serve(&self, store: &Arc<PostgresStore>, fence: (i64, Uuid)) -> TableResult<TcpServer> {
        let cannot = |e: std::io::Error| {
            let text = format!(
                "cannot listen for other nodes on {}: {e}; choose another address",
                self.options.listen
            );
            StoreError::new(StoreErrorKind::Io, text)
        };
        let listener = TcpListener::bind(self.options.listen).await.map_err(cannot)?;
        let port = listener.local_addr().map_err(cannot)?.port();
        let identity = Identity::new(self.options.store.entropy.as_ref())?;
        let unreadable =
            |e| StoreError::new(StoreErrorKind::Stopped, format!("an identity cannot be written: {e}"));
        let published = serde_json::to_string(&identity.published()).map_err(unreadable)?;
        let store: Arc<dyn Store> = Arc::clone(store) as _;
        let server = serve(&store, listener, identity, TcpLimits::default())?;
        let (address, advertise) = (self.address.clone(), self.options.advertise.clone());
        blocking(move || {
            let session = address.connect()?;
            let host = match advertise {
                Some(host) => host,
                None => term::seen_as(&session)?.unwrap_or_else(|| Ipv4Addr::LOCALHOST.to_string()),
            };
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            term::publish(&session, fence, &format!("{host}:{port}"), &published)
        })
        .await?;
        Ok(server)
    }
}

/// Who holds the store, as the database says.
struct HolderRow {
    address: Address,
    session: Mutex<Option<Session>>,
}

#[async_trait]
impl Holders for HolderRow {
    async fn current(&self) -> StoreResult<Option<HolderAddress>> {
        let kept = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        let address = self.address.clone();
        let (session, current) = blocking(move || {
            if let Some(session) = kept
                && let Ok(current) = term::current(&session)
            {
                return Ok((session, current));
            }
            let session = address.connect()?;
            let current = term::current(&session)?;
            Ok((session, current))
        })
        .await?;
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        let Some((term, address, published)) = current else { return Ok(None) };
        let published: Published = serde_json::from_str(&published).map_err(|_| {
            StoreError::new(StoreErrorKind::Protocol, "what the holder of the store published cannot be read")
        })?;
        Ok(Some(HolderAddress { term: term.cast_unsigned(), address, published }))
    }
}

/// The database as a node reads it that does not hold the store.
struct Reading {
    readers: Readers,
    clock: Option<Arc<dyn Clock>>,
    memory: Arc<Holder>,
    audit_key: AuditKey,
    place: String,
}

/// The error of a write on a node that does not hold the store.
fn not_here() -> StoreError {
    StoreError::new(StoreErrorKind::NotHolder, "this node does not hold the store, and nothing was done")
}

#[async_trait]
impl Access for Reading {
    type Tables = PgTables;

    async fn commit(&self, _: WriteCost, _: Wants, _: WriteVerb<PgTables>) -> StoreResult<()> {
        Err(not_here().into())
    }

    async fn view(&self, verb: ReadVerb) -> StoreResult<()> {
        let clock = self.clock.clone();
        let read = move |reader: &crate::staged::Staged<super::base::PgBase>| {
            let now = match clock {
                Some(clock) => clock.now(),
                None => Time::from_millis(term::store_time(&reader.base.session)?),
            };
            verb(reader, now)
        };
        self.readers.view(read).await
    }

    fn holder(&self) -> &Arc<Holder> {
        &self.memory
    }

    fn now(&self) -> Time {
        self.clock.as_ref().map_or_else(|| crate::clock::Wall.now(), |clock| clock.now())
    }

    fn audit_key(&self) -> AuditKey {
        self.audit_key.clone()
    }

    fn describe(&self) -> StoreInfo {
        StoreInfo {
            backend: "postgres".into(),
            durable: true,
            place: self.place.clone(),
            now: self.now(),
            skew_ms: 0,
            degraded: Vec::new(),
        }
    }

    async fn copy_to(&self, _: String) -> StoreResult<u64> {
        Err(CallError::Store(not_here()))
    }
}

#[cfg(test)]
mod tests {
    use super::READS;
    use redrive_core::store::VERBS;

    #[test]
    fn every_verb_that_a_node_reads_itself_is_a_verb_that_names_nobody() {
        for name in READS {
            let verb = VERBS.iter().find(|verb| verb.name == *name);
            assert!(verb.is_some_and(|verb| !verb.names_actor), "{name}");
        }
    }
}
