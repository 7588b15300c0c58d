//! What only the store in PostgreSQL promises: one holder that every commit checks, outcomes that are known although a
//! connection broke, and few round trips.

use crate::pg_proxy::{Cut, Proxy};
use redrive_core::error::{CallError, StoreErrorKind};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::message::{NewMessage, Payload};
use redrive_core::query::Query;
use redrive_core::store::{LeaseRequest, Settle, Settlement, Store, StoreInfo, VerifyRequest, Work as _};
use redrive_store::postgres::{Options, PostgresStore};
use redrive_testkit::ids::message_id;
use redrive_testkit::pg::{self, Server};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

fn named(node: &str) -> Options {
    Options { node: node.into(), ..Options::default() }
}

fn queue() -> QueueName {
    "work".parse().unwrap()
}

fn message(n: u64) -> NewMessage {
    let payload = Payload { bytes: n.to_string().into_bytes(), content_type: "text/plain".into() };
    NewMessage::new(message_id(n), queue(), payload)
}

/// Runs a statement in the schema of a store, as its administrator would.
async fn sql(url: &str, statement: &str) {
    let (server, schema) = url.split_once("?schema=").unwrap();
    let (client, connection) = tokio_postgres::connect(server, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    client.batch_execute(&format!("SET search_path TO {schema}; {statement}")).await.unwrap();
    drop(client);
    connection.await.unwrap().unwrap();
}

async fn lease(store: &dyn Store, max: usize) -> Vec<redrive_core::message::Delivery> {
    let request = LeaseRequest {
        queues: vec![queue()],
        max,
        lease_for: None,
        worker: "w".into(),
        version: None,
        host: None,
    };
    store.lease(request).await.unwrap()
}

/// Every message that the store has, by id.
async fn stored(store: &dyn Store) -> BTreeSet<MessageId> {
    let mut ids = BTreeSet::new();
    let mut query = Query::default();
    loop {
        let page = store.messages(query.clone()).await.unwrap();
        ids.extend(page.items.iter().map(|message| message.envelope.id));
        let Some(next) = page.next else { return ids };
        query.page.cursor = Some(next);
    }
}

async fn assert_clean(store: &dyn Store) {
    let verification = store.verify(VerifyRequest { deep: true, repair: false }).await.unwrap();
    assert!(verification.is_clean(), "{:?}", verification.findings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i45_a_holder_that_was_silent_is_replaced_and_its_late_commit_is_refused() {
    let url = pg::shared().schema();
    let first = PostgresStore::open(&url, named("first")).await.unwrap();
    first.enqueue(vec![message(1)]).await.unwrap();
    let locked = PostgresStore::open(&url, named("second")).await.unwrap_err();
    assert_eq!(locked.kind, StoreErrorKind::Locked);
    assert!(locked.text.contains("first holds this store under term 1"), "{locked}");
    // As if the first had been stopped for longer than a holder may be silent: its session and its lock are still there.
    let silence =
        "UPDATE holder SET seen_at = clock_timestamp() - interval '11 s', term = term, nonce = nonce";
    let second = loop {
        sql(&url, silence).await;
        // The first is alive and may say so at any moment, before the second looks.
        match PostgresStore::open(&url, named("second")).await {
            Ok(second) => break second,
            Err(error) => assert_eq!(error.kind, StoreErrorKind::Locked, "{error}"),
        }
    };
    second.enqueue(vec![message(2)]).await.unwrap();
    let late = first.enqueue(vec![message(3)]).await.unwrap_err();
    assert!(late.to_string().contains("second holds it under term 2"), "{late}");
    assert!(first.enqueue(vec![message(4)]).await.is_err(), "it has lost the store for good");
    let StoreInfo { degraded, .. } = first.info().await.unwrap();
    assert!(degraded.iter().any(|why| why.contains("term 2")), "{degraded:?}");
    assert_eq!(stored(&second).await, BTreeSet::from([message_id(1), message_id(2)]));
    assert_clean(&second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_closed_is_taken_at_once_and_goes_on_where_it_was() {
    let url = pg::shared().schema();
    for round in 0..3 {
        let store = PostgresStore::open(&url, named("one")).await.unwrap();
        store.enqueue(vec![message(round)]).await.unwrap();
        assert_eq!(stored(&store).await.len() as u64, round + 1);
        assert_clean(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_hot_verbs_ask_for_no_row_in_the_middle_of_a_commit() {
    let url = pg::shared().schema();
    let store = PostgresStore::open(&url, Options::default()).await.unwrap();
    let cycle = async |from: u64, store: &PostgresStore| {
        for n in from..from + 20 {
            let keyed = NewMessage { key: Some(format!("key {n}")), ..message(n) };
            store.enqueue(vec![keyed]).await.unwrap();
        }
        let leased = lease(store, 20).await;
        assert_eq!(leased.len(), 20);
        let acks = leased.iter().map(|delivery| Settlement { token: delivery.token, what: Settle::Ack });
        for settled in store.settle(acks.collect()).await.unwrap() {
            settled.unwrap();
        }
    };
    // The first round reads the counters and the queues.
    cycle(0, &store).await;
    let (commits, misses) = store.round_trips();
    cycle(100, &store).await;
    let (commits_after, misses_after) = store.round_trips();
    assert!(commits_after > commits);
    assert_eq!(misses_after, misses, "every row was read ahead");
}

/// Sends messages until told to stop. Returns those that were acknowledged, and those that were certainly not stored.
async fn produce(
    store: Arc<PostgresStore>,
    stop: Arc<AtomicBool>,
    next: Arc<AtomicU64>,
) -> (BTreeSet<MessageId>, BTreeSet<MessageId>) {
    let (mut acknowledged, mut refused) = (BTreeSet::new(), BTreeSet::new());
    while !stop.load(Ordering::SeqCst) {
        let n = next.fetch_add(1, Ordering::SeqCst);
        match store.enqueue(vec![message(n)]).await {
            Ok(_) => acknowledged.insert(message_id(n)),
            Err(CallError::Store(error)) if error.kind == StoreErrorKind::Undone => {
                refused.insert(message_id(n))
            }
            Err(error) => unreachable!("a lost connection is no reason to stop: {error}"),
        };
    }
    (acknowledged, refused)
}

/// Breaks something several times while eight producers send, and compares what they were told with what is there.
async fn broken_under_load(store: PostgresStore, times: u64, mut breaks: impl AsyncFnMut()) {
    let store = Arc::new(store);
    let (stop, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let producers: Vec<_> = (0..8)
        .map(|_| tokio::spawn(produce(Arc::clone(&store), Arc::clone(&stop), Arc::clone(&next))))
        .collect();
    for _ in 0..times {
        let before = next.load(Ordering::SeqCst);
        while next.load(Ordering::SeqCst) < before + 50 {
            tokio::task::yield_now().await;
        }
        breaks().await;
    }
    stop.store(true, Ordering::SeqCst);
    let (mut acknowledged, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for producer in producers {
        let (theirs, not_theirs) = producer.await.unwrap();
        acknowledged.extend(theirs);
        refused.extend(not_theirs);
    }
    let there = stored(store.as_ref()).await;
    assert_eq!(acknowledged, there, "what was acknowledged is there, and nothing else");
    assert!(refused.is_disjoint(&there));
    assert_clean(store.as_ref()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ending_the_holders_session_under_load_loses_nothing_and_doubles_nothing() {
    let url = pg::shared().schema();
    let store = PostgresStore::open(&url, Options::default()).await.unwrap();
    let end = "SELECT pg_terminate_backend(pid) FROM holder WHERE pid IS NOT NULL";
    broken_under_load(store, 10, async || sql(&url, end).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarting_the_server_under_load_loses_nothing_and_doubles_nothing() {
    let home = TempDir::new().unwrap();
    let server = Server::start(&home.path().join("server"));
    let store = PostgresStore::open(&server.schema(), Options::default()).await.unwrap();
    broken_under_load(store, 3, async || {
        let server = server.clone();
        let restart = move || {
            server.stop("immediate");
            server.resume();
        };
        tokio::task::spawn_blocking(restart).await.unwrap();
    })
    .await;
    server.stop("immediate");
}

/// How many places of a workload are tried in one run of the tests; `REDRIVE_CUTS` sets another number.
fn cuts() -> usize {
    std::env::var("REDRIVE_CUTS").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_at_any_message_leaves_every_outcome_known() {
    let server = pg::shared();
    // How many messages the whole workload takes, without a cut.
    let proxy = Proxy::start(server.port(), None).await;
    let url = proxy.url(&server.schema());
    workload(&url).await;
    let total = proxy.messages();
    let step = (total / cuts()).max(1);
    for at in (1..=total).step_by(step) {
        for cut in [Cut::Request(at), Cut::Reply(at)] {
            let schema = server.schema();
            let proxy = Proxy::start(server.port(), Some(cut)).await;
            let acknowledged = workload(&proxy.url(&schema)).await;
            // A session that was cut may take the server a moment to end.
            let after = Options { wait: Duration::from_secs(60), ..named("after") };
            let store = PostgresStore::open(&schema, after).await.unwrap();
            assert_eq!(stored(&store).await, acknowledged, "cut at {cut:?}");
            assert_clean(&store).await;
        }
    }
}

/// Opens a store, sends four messages one by one, and acknowledges one. Returns the ids that must be there.
async fn workload(url: &str) -> BTreeSet<MessageId> {
    let mut there = BTreeSet::new();
    let store = loop {
        // A connection that is cut while the store is opened is an error of opening it, and nothing has happened.
        match PostgresStore::open(url, Options { wait: Duration::from_secs(60), ..named("cut") }).await {
            Ok(store) => break store,
            Err(error) => assert_eq!(error.kind, StoreErrorKind::Unreachable, "{error}"),
        }
    };
    for n in 0..4 {
        while let Err(error) = store.enqueue(vec![message(n)]).await {
            assert!(matches!(&error, CallError::Store(e) if e.kind == StoreErrorKind::Undone), "{error}");
        }
        there.insert(message_id(n));
    }
    let leased = loop {
        let request = LeaseRequest {
            queues: vec![queue()],
            max: 1,
            lease_for: None,
            worker: "w".into(),
            version: None,
            host: None,
        };
        match store.lease(request).await {
            Ok(leased) if !leased.is_empty() => break leased,
            // The body is read after the commit: a lease whose reply was lost hands out the next message.
            Ok(_) | Err(_) => {}
        }
    };
    let ack = |token| vec![Settlement { token, what: Settle::Ack }];
    while let Err(error) = store.settle(ack(leased[0].token)).await {
        assert!(matches!(&error, CallError::Store(e) if e.kind == StoreErrorKind::Undone), "{error}");
    }
    there.remove(&leased[0].message.envelope.id);
    there
}
