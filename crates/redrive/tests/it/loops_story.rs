//! One program of several loops, from a message that fails to the same message done.

use crate::loops_kit::{PATIENCE, name, status, until};
use redrive::core::dead_letter::{DeadLetter, Status};
use redrive::core::failure::Reason;
use redrive::maintenance::Maintenance;
use redrive::{
    DeadLetterConsumer, DeadLetterPolicy, Disposition, HandlerError, LoopGroup, OpenOptions, Worker,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio_util::sync::CancellationToken;

/// A message that its policy buries at once is in its dead letter queue; when the cause is mended the consumer sends it
/// back; it is done. Worker, consumer and maintenance run as one and stop as one.
#[tokio::test]
async fn what_failed_is_buried_sent_back_and_done() {
    let directory = tempfile::tempdir().unwrap();
    let store = redrive::open(directory.path(), OpenOptions::default()).await.unwrap();
    let mended = Arc::new(AtomicBool::new(false));
    let policy = DeadLetterPolicy::new()
        .max_attempts(7)
        .dlq("broken-mail")
        .should_dead_letter(|_, failure| (failure.report.error.error_type == "NoRelay").then_some(true));
    let relay = Arc::clone(&mended);
    let worker = Worker::builder(Arc::clone(&store)).queue("mail").dead_letters(policy);
    let worker = worker.handler("send", move |_: String| {
        let up = relay.load(Ordering::Relaxed);
        async move { if up { Ok(()) } else { Err(HandlerError::new("NoRelay", "nobody answers")) } }
    });
    let seen = Arc::clone(&mended);
    let consumer = DeadLetterConsumer::builder(Arc::clone(&store)).dlq("broken-mail");
    let consumer = consumer.leave_for(redrive::core::time::Span::from_millis(20));
    let consumer = consumer.handler(move |_: DeadLetter| {
        let up = seen.load(Ordering::Relaxed);
        async move { if up { Disposition::Replay } else { Disposition::Leave } }
    });
    let group = LoopGroup::new(Arc::clone(&store))
        .run(worker.build().unwrap())
        .run(consumer.build().unwrap())
        .run(Maintenance::new(Arc::clone(&store)));
    let stop = CancellationToken::new();
    let running = tokio::spawn(group.bind().await.unwrap().until(stop.clone()));

    let id = redrive::send(&store, "mail", "send", "hello").await.unwrap();
    until("it is buried", || async { store.letter(id).await.is_ok() }).await;
    let letter = store.letter(id).await.unwrap();
    assert_eq!(
        (letter.record.reason, letter.message.attempts),
        (Reason::Manual, 1),
        "at once, by custom code"
    );
    assert_eq!(letter.record.dlq, name("broken-mail"));
    mended.store(true, Ordering::Relaxed);
    until("it is done", || async { status(&*store, id).await == Status::Resolved }).await;
    stop.cancel();
    tokio::time::timeout(PATIENCE, running).await.expect("it ends").unwrap().unwrap();
    let letter = store.letter(id).await.unwrap();
    assert_eq!((letter.record.resolution.as_deref(), letter.record.redrives), (Some("retried"), 1));
    assert!(store.verify(Default::default()).await.unwrap().is_clean());
}
