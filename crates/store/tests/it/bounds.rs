//! The cost of one commit or one page is bounded, however much data there is.

use redrive_core::dead_letter::Actor;
use redrive_core::failure::FailureReport;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::limits;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::policy::QueuePolicy;
use redrive_core::query::Query;
use redrive_core::store::{
    LeaseRequest, LetterLeaseRequest, Letters as _, Purged, Settle, Settlement, Work as _,
};
use redrive_store::memory::MemoryStore;
use redrive_store::sqlite::{Options, SqliteStore};
use tempfile::TempDir;

fn q(name: &str) -> QueueName {
    name.parse().unwrap()
}

fn new(n: u64, queue: &str) -> NewMessage {
    NewMessage::new(MessageId::new(n, [0; 10]), q(queue), Payload::default())
}

fn actor() -> Actor {
    Actor::new("ada", "test")
}

#[tokio::test]
async fn a_purge_looks_at_a_bounded_number_of_messages_in_one_commit() {
    let store = MemoryStore::new();
    let others = limits::REAP_MAX as u64;
    store.enqueue((1..=others).map(|n| new(n, "busy")).collect()).await.unwrap();
    store.enqueue(vec![new(others + 1, "small"), new(others + 2, "small")]).await.unwrap();
    let first = store.purge(q("small"), actor()).await.unwrap();
    assert_eq!(first, Purged { purged: 0, more: true }, "one page of the other queue");
    let second = store.purge(q("small"), actor()).await.unwrap();
    assert_eq!(second, Purged { purged: 2, more: false }, "it continued after that page");
    assert_eq!(store.queue(q("small")).await.unwrap().counts.waiting, 0);
    assert_eq!(store.queue(q("busy")).await.unwrap().counts.waiting, i64::try_from(others).unwrap());
}

#[tokio::test]
async fn leasing_many_letters_does_not_read_the_policies_for_each() {
    let home = TempDir::new().unwrap();
    let store = SqliteStore::open(home.path(), Options::default()).unwrap();
    store.configure(q("other"), QueuePolicy::default(), actor()).await.unwrap();
    store.enqueue(vec![new(1, "jobs"), new(2, "jobs")]).await.unwrap();
    let lease = LeaseRequest {
        queues: vec![q("jobs")],
        max: 2,
        lease_for: None,
        worker: "w".into(),
        ..LeaseRequest::default()
    };
    for delivery in store.lease(lease).await.unwrap() {
        let failure = FailureReport { permanent: true, ..FailureReport::default() }.analyse();
        let what = Settle::Fail { failure: Box::new(failure), policy_override: None };
        store.settle(vec![Settlement { token: delivery.token, what }]).await.unwrap();
    }
    let dlq = store.letters(Query::default()).await.unwrap().items[0].record.dlq.clone();
    // From now on, reading the policies fails.
    let beside = rusqlite::Connection::open(home.path().join("redrive.db")).unwrap();
    beside.execute("UPDATE queues SET policy = 'no policy' WHERE name = 'other'", []).unwrap();
    let lease = LetterLeaseRequest { dlq, max: 2, lease_for: None, worker: "c".into() };
    assert_eq!(store.lease_letters(lease).await.unwrap().len(), 2);
}
