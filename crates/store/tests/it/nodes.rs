//! A store that another node holds, over TCP: it behaves like any other store, and callers learn the truth when the holder
//! goes away, hands over, stops or is replaced.

use crate::laws::run_all;
use async_trait::async_trait;
use redrive_core::dead_letter::Actor;
use redrive_core::error::{CallError, StoreError, StoreErrorKind, StoreResult};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::message::{NewMessage, Payload};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{Call, Gate, Gated, Store, VerifyRequest, Work as _};
use redrive_core::time::Span;
use redrive_store::entropy::System;
use redrive_store::memory::MemoryStore;
use redrive_store::remote::tcp::{
    FixedHolder, HolderAddress, Holders, Identity, NodeStore, Published, TcpLimits, TcpServer, connect, serve,
};
use redrive_testkit::clock::TestClock;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::server::TlsStream;

/// Longer than anything here takes; only reached if something hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// Limits of time that only a hang reaches.
pub(crate) fn patient() -> TcpLimits {
    TcpLimits { greeting: PATIENCE, ..TcpLimits::default() }
}

/// A holder of a store, and what nodes need to reach it.
pub(crate) struct Holder {
    pub(crate) server: TcpServer,
    pub(crate) published: Published,
}

impl Holder {
    pub(crate) async fn of(store: &Arc<dyn Store>, limits: TcpLimits) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let identity = Identity::new(&System).unwrap();
        let published = identity.published();
        Self { server: serve(store, listener, identity, limits).unwrap(), published }
    }

    pub(crate) fn address(&self) -> String {
        self.server.address().to_string()
    }

    pub(crate) async fn connect(&self) -> NodeStore<FixedHolder> {
        connect(self.address(), self.published.clone()).await.unwrap()
    }
}

pub(crate) fn in_memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::with(TestClock::shared(), Arc::new(System)))
}

pub(crate) fn queue() -> QueueName {
    "q".parse().unwrap()
}

#[test]
fn every_law_holds_over_tcp() {
    let held = Arc::new(std::sync::Mutex::new(None));
    run_all("nodes", move || {
        let held = Arc::clone(&held);
        async move {
            let clock = TestClock::shared();
            let store: Arc<dyn Store> = Arc::new(MemoryStore::with(clock.clone(), Arc::new(System)));
            let holder = Holder::of(&store, patient()).await;
            let node = holder.connect().await;
            // Only the holder of the latest law is needed; the earlier one ends here.
            *held.lock().unwrap() = Some((store, holder));
            (Arc::new(node) as Arc<dyn Store>, clock)
        }
    });
}

#[test]
fn a_store_over_tcp_behaves_like_the_model() {
    let held = std::sync::Mutex::new(None);
    crate::streams::against_the_model(20, |clock| {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::with(clock.clone(), Arc::new(System)));
        let (holder, node) = tokio::runtime::Handle::current().block_on(async {
            let holder = Holder::of(&store, patient()).await;
            let node = holder.connect().await;
            (holder, node)
        });
        *held.lock().unwrap() = Some((store, holder));
        Arc::new(node)
    });
}

/// Where holders publish themselves, in the place of a database.
struct Table(watch::Sender<Option<HolderAddress>>);

impl Table {
    fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(None)))
    }

    fn publish(&self, term: u64, address: String, published: Published) {
        self.0.send_replace(Some(HolderAddress { term, address, published }));
    }

    fn publish_holder(&self, term: u64, holder: &Holder) {
        self.publish(term, holder.address(), holder.published.clone());
    }
}

#[async_trait]
impl Holders for Table {
    async fn current(&self) -> StoreResult<Option<HolderAddress>> {
        Ok(self.0.borrow().clone())
    }

    async fn replaced(&self, term: u64) {
        let later = |now: &Option<HolderAddress>| now.as_ref().is_some_and(|now| now.term > term);
        if self.0.subscribe().wait_for(later).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn node(table: &Arc<Table>) -> Arc<NodeStore<Table>> {
    Arc::new(NodeStore::new(Arc::clone(table)).with_patience(PATIENCE))
}

fn is_unknown(error: &CallError) -> bool {
    let text = error.to_string();
    matches!(error, CallError::Store(e) if e.kind == StoreErrorKind::Unreachable)
        && text.contains("the node that holds the store")
        && text.contains("whether the request took effect is not known")
}

/// A caller that never has to guess: it counts with a call that must not be repeated, and enqueues with keys.
struct Counting {
    store: Arc<NodeStore<Table>>,
    name: String,
    version: u64,
    enqueued: u64,
    unknown: u64,
}

impl Counting {
    fn new(store: Arc<NodeStore<Table>>, n: usize) -> Self {
        Self { store, name: format!("caller-{n}"), version: 0, enqueued: 0, unknown: 0 }
    }

    /// Counts up by one. A call that was carried out twice would find another version than it expects.
    async fn count(&mut self) {
        let value = Some(self.version.to_be_bytes().to_vec());
        match self.store.kv_put("count".into(), self.name.clone(), value, self.version).await {
            Ok(version) => {
                assert_eq!(version, self.version + 1);
                self.version = version;
            }
            Err(error) => {
                assert!(is_unknown(&error), "{}: {error}", self.name);
                self.unknown += 1;
                let found = self.store.kv_get("count".into(), self.name.clone()).await.unwrap();
                let found = found.map_or(0, |entry| entry.version);
                assert!([self.version, self.version + 1].contains(&found), "{found} after {}", self.version);
                self.version = found;
            }
        }
    }

    async fn enqueue(&mut self) {
        let mut new = NewMessage::new(redrive_store::new_id(), queue(), Payload::default());
        new.key = Some(format!("{} {}", self.name, self.enqueued));
        self.store.enqueue(vec![new]).await.unwrap().remove(0).unwrap();
        self.enqueued += 1;
    }
}

/// Lets every call pass.
struct Open;

#[async_trait]
impl Gate for Open {
    async fn admit(&self, _call: &mut Call) -> StoreResult<()> {
        Ok(())
    }
}

/// The store as the holder of one term has it, and its server.
struct Term {
    store: Arc<dyn Store>,
    holder: Holder,
}

impl Term {
    async fn begin(store: &Arc<dyn Store>) -> Self {
        let store: Arc<dyn Store> = Arc::new(Gated::new(Arc::new(Open), Arc::clone(store)));
        let holder = Holder::of(&store, patient()).await;
        Self { store, holder }
    }

    /// Ends the term: when this returns, no call of this term takes effect any more, which is what the fence of a database
    /// sees to. Without it a caller might look before a call that it has given up is carried out.
    async fn end(self, in_peace: bool) {
        let Self { store, holder } = self;
        if in_peace {
            holder.server.hand_over(PATIENCE).await;
        } else {
            drop(holder);
        }
        let in_flight = Arc::downgrade(&store);
        drop(store);
        while in_flight.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

const CALLERS: usize = 64;

/// Lets many callers work while the holder is replaced again and again. Returns how many outcomes were unknown.
async fn replace_holders(replacements: u64, in_peace: impl Fn(u64) -> bool) -> u64 {
    let store = in_memory();
    let table = Table::new();
    let nodes = [node(&table), node(&table), node(&table)];
    let (progress, mut done) = watch::channel(0_u64);
    let progress = Arc::new(progress);
    let stop = watch::Sender::new(false);
    let callers: Vec<_> = (0..CALLERS)
        .map(|n| {
            let mut caller = Counting::new(Arc::clone(&nodes[n % nodes.len()]), n);
            let (progress, stop) = (Arc::clone(&progress), stop.subscribe());
            tokio::spawn(async move {
                while !*stop.borrow() {
                    caller.count().await;
                    caller.enqueue().await;
                    progress.send_modify(|done| *done += 1);
                }
                caller
            })
        })
        .collect();
    let mut last: Option<Term> = None;
    for term in 1..=replacements {
        if let Some(last) = last.take() {
            last.end(in_peace(term)).await;
        }
        let next = Term::begin(&store).await;
        table.publish_holder(term, &next.holder);
        last = Some(next);
        let enough = *done.borrow_and_update() + CALLERS as u64;
        done.wait_for(|done| *done >= enough).await.unwrap();
    }
    stop.send_replace(true);
    let (mut unknown, mut enqueued) = (0, 0);
    for caller in callers {
        let caller = caller.await.unwrap();
        let found = store.kv_get("count".into(), caller.name.clone()).await.unwrap().unwrap();
        assert_eq!(found.version, caller.version, "{}", caller.name);
        unknown += caller.unknown;
        enqueued += caller.enqueued;
    }
    // Nothing was leased, so everything that was accepted is there: once.
    assert_eq!(store.queue(queue()).await.unwrap().counts.waiting, i64::try_from(enqueued).unwrap());
    let verified = store.verify(VerifyRequest { deep: true, repair: false }).await.unwrap();
    assert!(verified.is_clean(), "{:?}", verified.findings);
    println!("{replacements} holders, {enqueued} messages, {unknown} unknown outcomes");
    unknown
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_that_vanish_lose_nothing_and_double_nothing() {
    let story = replace_holders(12, |term| term % 3 == 0);
    tokio::time::timeout(PATIENCE, story).await.expect("work goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_that_hand_over_leave_nothing_in_doubt() {
    let story = replace_holders(12, |_| true);
    assert_eq!(tokio::time::timeout(PATIENCE, story).await.expect("work goes on"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_wait_follow_the_store_to_its_next_holder() {
    let story = async {
        let (store, table) = (in_memory(), Table::new());
        store.configure(queue(), QueuePolicy::default(), Actor::new("ada", "test")).await.unwrap();
        let first = Holder::of(&store, patient()).await;
        table.publish_holder(1, &first);
        let node = node(&table);
        node.queues().await.unwrap();
        let waiting = tokio::spawn({
            let node = Arc::clone(&node);
            async move { node.wait(vec![queue()], Span::from_hours(1)).await }
        });
        first.server.hand_over(PATIENCE).await;
        let second = Holder::of(&store, patient()).await;
        table.publish_holder(2, &second);
        let new = NewMessage::new(MessageId::new(1, [1; 10]), queue(), Payload::default());
        node.enqueue(vec![new]).await.unwrap().remove(0).unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(true));
    };
    tokio::time::timeout(PATIENCE, story).await.expect("it is woken");
}

/// A store of a holder that has lost its term, and notices with the first call.
struct Deposed(AtomicU64);

#[async_trait]
impl Gate for Deposed {
    async fn admit(&self, _call: &mut Call) -> StoreResult<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let text = "this node does not hold the store any more";
        Err(StoreError::new(StoreErrorKind::NotHolder, text).into())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_hold_the_store_any_more_sends_callers_on() {
    let story = async {
        let (store, table) = (in_memory(), Table::new());
        let gate = Arc::new(Deposed(AtomicU64::new(0)));
        let asked = Arc::clone(&gate);
        let deposed: Arc<dyn Store> = Arc::new(Gated::new(gate, Arc::clone(&store)));
        let old = Holder::of(&deposed, patient()).await;
        let new = Holder::of(&store, patient()).await;
        table.publish_holder(1, &old);
        let node = node(&table);
        let caller = tokio::spawn({
            let node = Arc::clone(&node);
            async move { node.kv_put("n".into(), "k".into(), Some(vec![1]), 0).await }
        });
        while asked.0.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        table.publish_holder(2, &new);
        assert_eq!(
            caller.await.unwrap(),
            Ok(1),
            "a call that changes something, and was not carried out before"
        );
        // Without a successor the caller learns that nothing was done.
        let alone = connect(old.address(), old.published.clone()).await.unwrap();
        let error = alone.kv_put("n".into(), "k".into(), Some(vec![2]), 1).await.unwrap_err();
        assert!(matches!(&error, CallError::Store(e) if e.kind == StoreErrorKind::Unreachable), "{error}");
        assert!(error.to_string().ends_with("any more; nothing was done: ask again"), "{error}");
    };
    tokio::time::timeout(PATIENCE, story).await.expect("nothing hangs");
}

/// A holder that is played by the test, with a certificate of its own.
pub(crate) struct FakeHolder {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    pub(crate) published: Published,
}

/// A certificate and its key.
pub(crate) fn certificate() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["fake".to_owned()]).unwrap();
    (made.cert.der().clone(), PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap())
}

impl FakeHolder {
    pub(crate) async fn new() -> Self {
        let (certificate, key) = certificate();
        let fingerprint = Sha256::digest(&certificate).into();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        Self::with(config, Published { fingerprint, secret: [7; 32] }).await
    }

    pub(crate) async fn with(config: ServerConfig, published: Published) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener, acceptor: TlsAcceptor::from(Arc::new(config)), published }
    }

    pub(crate) fn address(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }

    pub(crate) async fn accept(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let (stream, _) = self.listener.accept().await?;
        self.acceptor.accept(stream).await
    }

    /// Accepts a node and greets it with this version, or with its own.
    async fn greet(&self, version: Option<u32>) -> TlsStream<TcpStream> {
        let mut stream = self.accept().await.unwrap();
        let mut proof = [0; 32];
        stream.read_exact(&mut proof).await.unwrap();
        let length = stream.read_u32().await.unwrap();
        let mut hello = vec![0; length as usize];
        stream.read_exact(&mut hello).await.unwrap();
        let hello = version.map_or(hello, |version| format!("{{\"redrive\":{version}}}").into_bytes());
        stream.write_u32(u32::try_from(hello.len()).unwrap()).await.unwrap();
        stream.write_all(&hello).await.unwrap();
        stream.flush().await.unwrap();
        stream
    }
}

/// Reads the frame of a call.
async fn read_call(stream: &mut TlsStream<TcpStream>) {
    let length = stream.read_u32().await.unwrap();
    let mut rest = vec![0; 8 + length as usize];
    stream.read_exact(&mut rest).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_falls_silent_is_left_when_another_takes_its_place() {
    let story = async {
        let (store, table, silent) = (in_memory(), Table::new(), FakeHolder::new().await);
        table.publish(1, silent.address(), silent.published.clone());
        let node = node(&table);
        let reads = tokio::spawn({
            let node = Arc::clone(&node);
            async move { node.queues().await }
        });
        let mut stream = silent.greet(None).await;
        read_call(&mut stream).await;
        let writes = tokio::spawn({
            let node = Arc::clone(&node);
            async move { node.kv_put("n".into(), "k".into(), None, 0).await }
        });
        read_call(&mut stream).await;
        // The silent holder keeps its connection open, as a stopped process does.
        let next = Holder::of(&store, patient()).await;
        table.publish_holder(2, &next);
        assert_eq!(reads.await.unwrap(), Ok(Vec::new()), "a read is repeated");
        let error = writes.await.unwrap().unwrap_err();
        assert!(is_unknown(&error) && error.to_string().contains("was replaced"), "{error}");
        drop(stream);
    };
    tokio::time::timeout(PATIENCE, story).await.expect("nobody waits for a silent holder for ever");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_of_another_version_is_named_in_words() {
    let story = async {
        let other = FakeHolder::new().await;
        let (address, published) = (other.address(), other.published.clone());
        let connecting = tokio::spawn(connect(address, published.clone()));
        other.greet(Some(3)).await;
        let error = connecting.await.unwrap().unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Protocol);
        assert!(
            error.text.starts_with("the node that holds the store speaks version 3 and this one"),
            "{error}"
        );
        assert!(error.text.ends_with("use the same redrive for both"), "{error}");
        // Looking for another holder does not help, so a call does not wait.
        let table = Table::new();
        table.publish(1, other.address(), published);
        let node = node(&table);
        let call = tokio::spawn(async move { node.queues().await });
        other.greet(Some(3)).await;
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(&error, CallError::Store(e) if e.kind == StoreErrorKind::Protocol), "{error}");
    };
    tokio::time::timeout(PATIENCE, story).await.expect("nothing hangs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_finds_no_holder_says_that_nothing_was_done() {
    let table = Table::new();
    let node = NodeStore::new(Arc::clone(&table)).with_patience(Duration::ZERO);
    let error = node.queues().await.unwrap_err();
    assert_eq!(error.to_string(), "no node holds the store right now; nothing was done: ask again");
    // An address where nobody listens.
    let gone = FakeHolder::new().await;
    let (address, published) = (gone.address(), gone.published.clone());
    drop(gone);
    table.publish(1, address.clone(), published);
    let error = node.queues().await.unwrap_err().to_string();
    let begins = format!("the node that holds the store, {address}, cannot be reached: ");
    assert!(error.starts_with(&begins) && error.ends_with("; nothing was done: ask again"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_its_owner_dropped_takes_no_calls() {
    let story = async {
        let (store, table) = (in_memory(), Table::new());
        let holder = Holder::of(&store, patient()).await;
        table.publish_holder(1, &holder);
        let node = NodeStore::new(table).with_patience(Duration::ZERO);
        assert!(!node.is_connected());
        node.queues().await.unwrap();
        assert!(node.is_connected());
        drop(store);
        let error = node.kv_put("n".into(), "k".into(), None, 0).await.unwrap_err();
        assert!(
            error.to_string().ends_with("before it took the request; nothing was done: ask again"),
            "{error}"
        );
    };
    tokio::time::timeout(PATIENCE, story).await.expect("nothing hangs");
}
