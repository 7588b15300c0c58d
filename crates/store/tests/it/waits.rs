//! Workers that wait, and readers of the change feed: everybody who should be woken is, on every way to a store.

use redrive_core::changes::Area;
use redrive_core::dead_letter::Actor;
use redrive_core::ids::QueueName;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{LeaseRequest, Letters as _, Settle, Settlement, Store, Work as _};
use redrive_core::time::Span;
use redrive_store::memory::MemoryStore;
use redrive_store::remote::RemoteStore;
use redrive_store::sqlite::{Options, SqliteStore};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;

/// Only a hang reaches this.
const PATIENCE: Duration = Duration::from_secs(300);
/// Longer than any test takes.
const LONG: Span = Span::from_secs(600);

fn q(name: &str) -> QueueName {
    name.parse().unwrap()
}

fn message(queue: &str) -> NewMessage {
    NewMessage::new(redrive_store::new_id(), q(queue), Payload::default())
}

fn lease(worker: usize, queue: &str) -> LeaseRequest {
    let worker = format!("w{worker}");
    LeaseRequest { queues: vec![q(queue)], max: 1, worker, ..LeaseRequest::default() }
}

/// The stores under test, with what must live as long as they do.
async fn stores() -> Vec<(&'static str, Arc<dyn Store>, Option<(Arc<dyn Store>, TempDir)>)> {
    let home = TempDir::new().unwrap();
    let sqlite: Arc<dyn Store> = Arc::new(SqliteStore::open(home.path(), Options::default()).unwrap());
    let served = TempDir::new().unwrap();
    let holder = redrive_store::open_serving(served.path(), Options::default()).unwrap();
    let remote: Arc<dyn Store> = Arc::new(RemoteStore::connect(served.path()).await.unwrap());
    vec![
        ("memory", Arc::new(MemoryStore::new()), None),
        ("sqlite", Arc::clone(&sqlite), Some((sqlite, home))),
        ("remote", remote, Some((holder, served))),
    ]
}

async fn create(store: &dyn Store, queue: &str) {
    store.configure(q(queue), QueuePolicy::default(), Actor::new("test", "test")).await.unwrap();
}

/// Begins to wait and returns when the waiter has its place.
fn waiting(set: &mut JoinSet<usize>, store: &Arc<dyn Store>, n: usize, queue: &'static str) {
    let store = Arc::clone(store);
    set.spawn(async move {
        assert!(store.wait(vec![q(queue)], LONG).await.unwrap());
        n
    });
}

async fn next(set: &mut JoinSet<usize>) -> usize {
    tokio::time::timeout(PATIENCE, set.join_next()).await.unwrap().unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_waits_is_woken_by_whatever_makes_a_message_due() {
    for (name, store, _home) in stores().await {
        println!("{name}");
        create(&*store, "q").await;
        let mut set = JoinSet::new();
        waiting(&mut set, &store, 0, "q");
        store.enqueue(vec![message("q")]).await.unwrap();
        next(&mut set).await;
        let leased = store.lease(lease(0, "q")).await.unwrap().remove(0);
        waiting(&mut set, &store, 1, "q");
        let release = Settlement { token: leased.token, what: Settle::Release };
        store.settle(vec![release]).await.unwrap().remove(0).unwrap();
        next(&mut set).await;
        let leased = store.lease(lease(0, "q")).await.unwrap().remove(0);
        let ack = Settlement { token: leased.token, what: Settle::Ack };
        store.settle(vec![ack]).await.unwrap().remove(0).unwrap();
        waiting(&mut set, &store, 2, "q");
        let delayed = NewMessage { delay: Some(Span::from_millis(30)), ..message("q") };
        store.enqueue(vec![delayed]).await.unwrap();
        next(&mut set).await;
        assert_eq!(store.lease(lease(0, "q")).await.unwrap().len(), 1, "{name}: it is due");
        let actor = || Actor::new("test", "test");
        store.pause(q("q"), true, actor()).await.unwrap();
        store.enqueue(vec![message("q")]).await.unwrap();
        assert!(!store.wait(vec![q("q")], Span::from_millis(5)).await.unwrap(), "{name}: it is paused");
        waiting(&mut set, &store, 3, "q");
        store.pause(q("q"), false, actor()).await.unwrap();
        next(&mut set).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_falls_due_while_others_wait_elsewhere_wakes_its_worker() {
    for (name, store, _home) in stores().await {
        println!("{name}");
        create(&*store, "quiet").await;
        create(&*store, "q").await;
        let mut idle = JoinSet::new();
        for n in 0..20 {
            waiting(&mut idle, &store, n, "quiet");
        }
        let mut set = JoinSet::new();
        let delayed = NewMessage { delay: Some(Span::from_millis(50)), ..message("q") };
        store.enqueue(vec![delayed]).await.unwrap();
        waiting(&mut set, &store, 0, "q");
        next(&mut set).await;
        assert!(idle.try_join_next().is_none(), "{name}: nobody else is woken");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_woken_worker_that_goes_away_does_not_keep_the_message_from_the_others() {
    for (name, store, _home) in stores().await {
        println!("{name}");
        create(&*store, "q").await;
        let mut set = JoinSet::new();
        for n in 0..8 {
            waiting(&mut set, &store, n, "q");
        }
        store.enqueue(vec![message("q")]).await.unwrap();
        // Nobody leases it, so that one after the other is told.
        for _ in 0..8 {
            next(&mut set).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_message_finds_one_of_many_waiting_workers() {
    const WORKERS: usize = 100;
    const MESSAGES: usize = 1_000;
    for (name, store, _home) in stores().await {
        println!("{name}");
        create(&*store, "q").await;
        let (done, mut finished) = tokio::sync::mpsc::unbounded_channel();
        let mut workers = JoinSet::new();
        for n in 0..WORKERS {
            let (store, done) = (Arc::clone(&store), done.clone());
            workers.spawn(async move {
                loop {
                    for delivery in store.lease(lease(n, "q")).await.unwrap() {
                        let ack = Settlement { token: delivery.token, what: Settle::Ack };
                        store.settle(vec![ack]).await.unwrap().remove(0).unwrap();
                        done.send(()).unwrap();
                    }
                    store.wait(vec![q("q")], LONG).await.unwrap();
                }
            });
        }
        // Batches, single messages and delayed ones, so that every way of waking is used.
        for round in 0..MESSAGES / 20 {
            let delay = (round % 3 == 0).then(|| Span::from_millis(7));
            let batch = (0..16).map(|_| NewMessage { delay, ..message("q") }).collect();
            store.enqueue(batch).await.unwrap();
            for _ in 0..4 {
                store.enqueue(vec![message("q")]).await.unwrap();
            }
        }
        for _ in 0..MESSAGES {
            tokio::time::timeout(PATIENCE, finished.recv()).await.expect("no message is left lying").unwrap();
        }
        workers.shutdown().await;
        assert_eq!(store.queue(q("q")).await.unwrap().ready, 0, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_the_feed_is_woken_by_the_next_commit() {
    for (name, store, _home) in stores().await {
        create(&*store, "q").await;
        let at = store.changes(None, LONG).await.unwrap().at;
        let reader = Arc::clone(&store);
        let waits = tokio::spawn(async move { reader.changes(Some(at), LONG).await.unwrap() });
        store.enqueue(vec![message("q")]).await.unwrap();
        let changes = tokio::time::timeout(PATIENCE, waits).await.expect("it is woken").unwrap();
        assert!(changes.areas.contains(&Area::Queue(q("q"))), "{name}: {changes:?}");
        let nothing = store.changes(Some(changes.at), Span::from_millis(5)).await.unwrap();
        assert!(nothing.is_empty(), "{name}: {nothing:?}");
    }
}

#[tokio::test]
async fn a_new_holder_of_the_directory_starts_the_feed_over() {
    let home = TempDir::new().unwrap();
    let store = SqliteStore::open(home.path(), Options::default()).unwrap();
    create(&store, "q").await;
    let at = store.changes(None, Span::ZERO).await.unwrap().at;
    drop(store);
    let store = SqliteStore::open(home.path(), Options::default()).unwrap();
    let changes = store.changes(Some(at), LONG).await.unwrap();
    assert!(changes.everything && changes.at.epoch != at.epoch, "{changes:?}");
}

#[tokio::test]
async fn leases_from_before_a_restart_are_listed() {
    let home = TempDir::new().unwrap();
    let store = SqliteStore::open(home.path(), Options::default()).unwrap();
    let sent = message("q");
    let id = sent.id;
    store.enqueue(vec![sent]).await.unwrap();
    let leased = store.lease(lease(7, "q")).await.unwrap().remove(0);
    drop(store);
    let store = SqliteStore::open(home.path(), Options::default()).unwrap();
    let workers = store.workers().await.unwrap();
    assert_eq!(workers.len(), 1);
    assert_eq!((workers[0].worker.as_str(), workers[0].leases[0].id), ("w7", id));
    let ack = Settlement { token: leased.token, what: Settle::Ack };
    store.settle(vec![ack]).await.unwrap().remove(0).unwrap();
    let workers = store.workers().await.unwrap();
    assert_eq!((workers[0].in_hand, workers[0].done), (0, 1));
}

#[tokio::test]
async fn i42_a_request_key_survives_a_restart() {
    let home = TempDir::new().unwrap();
    let request = redrive_core::dead_letter::RequestKey { key: "k".into(), fingerprint: "f".into() };
    let actor = Actor { request: Some(request), ..Actor::new("ada", "test") };
    for _ in 0..3 {
        let store = SqliteStore::open(home.path(), Options::default()).unwrap();
        let marker = store.mark("deploy".into(), actor.clone()).await.unwrap();
        assert_eq!(marker.n, 1);
    }
}
