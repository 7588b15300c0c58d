//! The number of counters per leaf is bounded, and they are still exact.

use redrive_core::dead_letter::{Act, ActRequest, Actor};
use redrive_core::failure::FailureReport;
use redrive_core::ids::MessageId;
use redrive_core::limits::LEAF_COUNTERS_MAX;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::query::Query;
use redrive_core::store::{
    LeaseRequest, Letters as _, Settle, Settlement, Store as _, VerifyRequest, Work as _,
};
use redrive_store::sqlite::{Options, SqliteStore};
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread")]
async fn i15_a_kind_per_message_does_not_make_a_counter_per_message() {
    const MESSAGES: usize = LEAF_COUNTERS_MAX + 40;
    let home = TempDir::new().unwrap();
    let store = SqliteStore::open(home.path(), Options::default()).unwrap();
    let queue: redrive_core::ids::QueueName = "q".parse().unwrap();
    let new = |n: usize| {
        let id = MessageId::new(n as u64 + 1, [1; 10]);
        NewMessage { kind: format!("kind-{n}"), ..NewMessage::new(id, queue.clone(), Payload::default()) }
    };
    store.enqueue((0..MESSAGES).map(new).collect()).await.unwrap();
    let mut failed = 0;
    while failed < MESSAGES {
        let request = LeaseRequest {
            queues: vec![queue.clone()],
            max: 50,
            lease_for: None,
            worker: "w".into(),
            ..LeaseRequest::default()
        };
        let leased = store.lease(request).await.unwrap();
        assert!(!leased.is_empty(), "{failed} failed so far");
        failed += leased.len();
        let fail = |token| {
            let failure = Box::new(FailureReport { permanent: true, ..FailureReport::default() }.analyse());
            Settlement { token, what: Settle::Fail { failure, policy_override: None } }
        };
        let settled = leased.into_iter().map(|delivery| fail(delivery.token)).collect();
        store.settle(settled).await.unwrap();
    }
    let check = async |open: u64| {
        let verified = store.verify(VerifyRequest { deep: false, repair: false }).await.unwrap();
        assert!(verified.is_clean(), "{:?}", verified.findings);
        let groups = store.groups(Default::default()).await.unwrap().items;
        assert_eq!(groups.iter().map(|group| group.open).collect::<Vec<_>>(), [open]);
    };
    check(MESSAGES as u64).await;
    let database = rusqlite::Connection::open(home.path().join("redrive.db")).unwrap();
    let rows = |sql: &str| database.query_row(sql, [], |row| row.get::<_, usize>(0)).unwrap();
    assert_eq!(rows("SELECT count(*) FROM leaf_counts"), LEAF_COUNTERS_MAX + 1);
    assert_eq!(rows("SELECT open FROM leaf_counts WHERE kind = '(other kinds)'"), 40);
    // Letters with and without a counter of their own are subtracted alike.
    let letters = store.letters(Query::default()).await.unwrap().items;
    let actor = Actor::new("ann", "test");
    let resolve = |id| ActRequest { id, act: Act::Resolve, actor: actor.clone(), expected_version: None };
    let resolved = store.act(letters.iter().map(|letter| resolve(letter.id())).collect()).await.unwrap();
    check((MESSAGES - resolved.len()) as u64).await;
}
