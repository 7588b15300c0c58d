//! Replays from code: exactly what was meant, once, whoever else does the same.

use crate::loops_kit::{all_letters, bury, dead, me, message, name, send, status, take};
use redrive::core::dead_letter::{DeadLetter, Status};
use redrive::core::message::NewMessage;
use redrive::core::store::{LeaseRequest, Settle, Settlement, Store};
use redrive::core::time::Span;
use redrive::{
    OnDuplicate, OpenOptions, ReplayReport, replay, replay_distinct, replay_if, replay_where, resume,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

async fn dead_many(store: &dyn Store, queue: &str, count: usize) {
    for n in 0..count {
        dead(store, queue, &json!({"n": n, "key": n % 10})).await;
    }
}

fn key(letter: &DeadLetter) -> Option<String> {
    let payload: serde_json::Value = serde_json::from_slice(&letter.message.envelope.payload.bytes).ok()?;
    Some(payload["key"].to_string())
}

#[tokio::test]
async fn by_id_each_is_sent_back_once() {
    let store = redrive::memory();
    let reply_to = Some(name("answers"));
    let first = send(&*store, NewMessage { reply_to, ..message("q", &json!(1)) }).await;
    bury(&*store, "q", "Broken").await;
    let second = dead(&*store, "q", &json!(2)).await;
    let unknown = redrive::new_id();
    let done = replay(&store, [first, second, first, unknown], me()).await.unwrap();
    assert_eq!(done, ReplayReport { matched: 3, replayed: 2, skipped: 1, ..ReplayReport::default() });
    let again = replay(&store, [first, second], me()).await.unwrap();
    assert_eq!((again.replayed, again.skipped), (0, 2), "they are under way");
    let delivery = take(&*store, "q").await;
    assert_eq!(delivery.message.envelope.reply_to, Some(name("answers")));
    assert_eq!((delivery.message.envelope.id, delivery.message.generation), (first, 2));
}

#[tokio::test]
async fn by_filter_it_is_an_operation_that_can_be_resumed() {
    let store = redrive::memory();
    dead_many(&*store, "q", 5).await;
    dead_many(&*store, "other", 2).await;
    let done = replay_where(&store, "queue:q".parse().unwrap(), me()).await.unwrap();
    assert_eq!((done.matched, done.replayed, done.skipped), (5, 5, 0));
    assert_eq!(resume(&store, done.operation.unwrap()).await.unwrap(), done, "it is over, and says the same");
    assert_eq!(store.queue(name("q")).await.unwrap().counts.dead, 0);
    assert_eq!(store.queue(name("other")).await.unwrap().counts.dead, 2);
}

#[tokio::test]
async fn a_predicate_picks_and_what_changed_meanwhile_is_left() {
    let store = redrive::memory();
    dead_many(&*store, "q", 6).await;
    let even = |letter: &DeadLetter| letter.death.is_multiple_of(2);
    let done = replay_if(&store, "queue:q".parse().unwrap(), me(), even).await.unwrap();
    assert_eq!((done.matched, done.replayed), (3, 3));
    let again = replay_if(&store, "queue:q".parse().unwrap(), me(), even).await.unwrap();
    assert_eq!((again.matched, again.replayed), (0, 0), "they are under way");
}

#[tokio::test]
async fn one_of_each_key_goes_back_and_the_others_are_left_or_closed() {
    let store = redrive::memory();
    dead_many(&*store, "q", 30).await;
    let q = || "queue:q".parse().unwrap();
    let done = replay_distinct(&store, q(), me(), OnDuplicate::Leave, key).await.unwrap();
    assert_eq!(done, ReplayReport { matched: 30, replayed: 10, skipped: 20, ..ReplayReport::default() });
    let letters = all_letters(&*store).await;
    let first_ten = letters.iter().filter(|l| l.death <= 10).all(|l| l.record.status == Status::Retrying);
    assert!(first_ten, "the one that died first of each key");
    let again = replay_distinct(&store, q(), me(), OnDuplicate::Resolve, key).await.unwrap();
    assert_eq!((again.replayed, again.resolved), (0, 0), "every key is under way");

    let fresh = redrive::memory();
    dead_many(&*fresh, "q", 30).await;
    let done = replay_distinct(&fresh, q(), me(), OnDuplicate::Resolve, key).await.unwrap();
    assert_eq!(done, ReplayReport { matched: 30, replayed: 10, resolved: 20, ..ReplayReport::default() });
    let single = redrive::memory();
    dead_many(&*single, "q", 3).await;
    let done = replay_distinct(&single, q(), me(), OnDuplicate::Resolve, |_| None).await.unwrap();
    assert_eq!(done.replayed, 3, "without a key each is its own");
}

/// RELIABILITY, section 9, traps 4 and 5: three jobs became 106 executions elsewhere, and a walk over what it
/// changed skipped half. Here several replay everything at once while work goes on and dies again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trap4_trap5_replays_at_once_never_multiply_and_skip_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = redrive::open(directory.path(), OpenOptions::default()).await.unwrap();
    dead_many(&*store, "q", 60).await;
    let mut replays = tokio::task::JoinSet::new();
    for n in 0..6 {
        let store = Arc::clone(&store);
        replays.spawn(async move {
            let q = "queue:q".parse().unwrap();
            match n % 3 {
                0 => replay_where(&store, q, me()).await,
                1 => replay_if(&store, q, me(), |_| true).await,
                _ => replay_distinct(&store, q, me(), OnDuplicate::Leave, |l| Some(l.id().to_string())).await,
            }
        });
    }
    let done: Vec<ReplayReport> = replays.join_all().await.into_iter().map(|done| done.unwrap()).collect();
    let replayed: u64 = done.iter().map(|done| done.replayed).sum();
    assert_eq!(replayed, 60, "each once, none left out: {done:?}");
    let mut executions = BTreeMap::new();
    loop {
        let lease_for = Some(Span::from_hours(1));
        let request = LeaseRequest {
            queues: vec![name("q")],
            max: 50,
            lease_for,
            worker: "w".into(),
            ..LeaseRequest::default()
        };
        let deliveries = store.lease(request).await.unwrap();
        if deliveries.is_empty() {
            break;
        }
        for delivery in deliveries {
            *executions.entry(delivery.message.envelope.id).or_insert(0) += 1;
            assert_eq!(delivery.message.generation, 2);
            store.settle(vec![Settlement { token: delivery.token, what: Settle::Ack }]).await.unwrap();
        }
    }
    assert_eq!((executions.len(), executions.values().sum::<u32>()), (60, 60));
    for letter in all_letters(&*store).await {
        assert_eq!(status(&*store, letter.id()).await, Status::Resolved);
    }
}
