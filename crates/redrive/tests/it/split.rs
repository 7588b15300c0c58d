//! Letters and replies that live in another store than the work, with that store going away and coming back.

use crate::loops_kit::{PATIENCE, all_letters, dead, me, memory, message, name, send, take, until};
use redrive::core::error::StoreErrorKind;
use redrive::core::ids::QueueName;
use redrive::core::store::Store;
use redrive::{
    HealthStatus, Heartbeat, LetterMover, LoopGroup, OpenOptions, ReplyForwarder, ReplyTarget, Runnable as _,
    replay_between,
};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

async fn open(directory: &Path) -> Arc<dyn Store> {
    redrive::open(directory, OpenOptions::default()).await.expect("a store")
}

/// A store that another handle holds, reached through its socket: it goes away with that handle.
async fn away(directory: &Path) -> (Arc<dyn Store>, Arc<dyn Store>) {
    let holder = open(directory).await;
    let remote = redrive::store::remote::RemoteStore::connect(directory).await.expect("served");
    (holder, Arc::new(remote))
}

#[tokio::test]
async fn while_the_letter_store_is_down_letters_stay_and_the_group_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let (holder, letters) = away(directory.path()).await;
    let work = memory();
    let first = dead(&*work, "q", &json!(1)).await;
    let mover = LetterMover::new(Arc::clone(&work), letters);
    assert_eq!(mover.pass().await.unwrap().moved, 1);
    assert!(mover.degraded().is_empty());
    drop(holder);
    let second = dead(&*work, "q", &json!(2)).await;
    until("the store is gone", || async {
        matches!(&mover.pass().await, Err(redrive::core::error::CallError::Store(e)) if e.kind == StoreErrorKind::Unreachable)
    })
    .await;
    assert_eq!(all_letters(&*work).await.len(), 1, "it stays where it is");
    assert!(mover.degraded()[0].contains("wait to be moved"), "{:?}", mover.degraded());
    let group = LoopGroup::new(Arc::clone(&work)).run(mover.clone()).bind().await.unwrap();
    let report = group.health().ready().await;
    assert_eq!(report.status, HealthStatus::Degraded);
    assert!(report.reasons[0].contains("wait to be moved"));

    let holder = open(directory.path()).await;
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let (mover, stop) = (mover.clone(), stop.clone());
        async move { mover.run(stop, Heartbeat::default()).await }
    });
    until("it crosses", || async {
        holder.letter(second).await.is_ok() && all_letters(&*work).await.is_empty()
    })
    .await;
    stop.cancel();
    tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();
    assert!(mover.degraded().is_empty());
    let back = replay_between(&holder, &work, [first, second], me()).await.unwrap();
    assert_eq!((back.replayed, back.refused.len()), (2, 0));
    assert_eq!(work.queue(name("q")).await.unwrap().ready, 2);
}

#[tokio::test(start_paused = true)]
async fn two_ferries_at_once_carry_each_letter_once() {
    let (work, letters) = (memory(), memory());
    for n in 0..40 {
        dead(&*work, "q", &json!(n)).await;
    }
    let mover = || LetterMover::new(Arc::clone(&work), Arc::clone(&letters));
    let (one, other) = tokio::join!(async { mover().pass().await }, async { mover().pass().await });
    assert_eq!(one.unwrap().moved + other.unwrap().moved, 40);
    assert_eq!((all_letters(&*work).await.len(), all_letters(&*letters).await.len()), (0, 40));
    for store in [work, letters] {
        assert!(store.verify(Default::default()).await.unwrap().is_clean());
    }
}

#[tokio::test(start_paused = true)]
async fn replies_reach_a_sender_in_another_store_once() {
    let (work, theirs) = (memory(), memory());
    let id = send(&*work, message("answers", &json!({"answer": 42}))).await;
    send(&*work, message("lost", &json!(1))).await;
    let there = Arc::clone(&theirs);
    let resolver = move |queue: &QueueName| {
        (queue.as_str() == "answers").then(|| ReplyTarget { store: there.clone(), queue: name("inbox") })
    };
    let forwarder = ReplyForwarder::new(Arc::clone(&work), ["answers", "lost"], resolver).unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let (forwarder, stop) = (forwarder.clone(), stop.clone());
        async move { forwarder.run(stop, Heartbeat::default()).await }
    });
    until("it arrives", || async { work.queue(name("answers")).await.unwrap().counts.done == 1 }).await;
    let reply = take(&*theirs, "inbox").await;
    assert_eq!(
        (reply.message.envelope.id, &*reply.message.envelope.payload.bytes),
        (id, &b"{\"answer\":42}"[..])
    );
    until("the other waits", || async { work.queue(name("lost")).await.unwrap().scheduled == 1 }).await;
    assert!(forwarder.degraded()[0].contains("knows no target"), "{:?}", forwarder.degraded());
    stop.cancel();
    tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap().unwrap();
    assert!(ReplyForwarder::new(work, ["?"], |_: &QueueName| None).is_err());
}
