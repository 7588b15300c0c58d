//! The dead-letter consumer: what it does with letters, and what its own failures do to them.

use crate::loops_kit::{
    PATIENCE, all_letters, bury, dead, me, memory, message, name, send, status, take, until,
};
use redrive::core::dead_letter::{Act, ActRequest, CONSUMER_BACKOFF, DeadLetter, Status};
use redrive::core::error::Refusal;
use redrive::core::message::NewMessage;
use redrive::core::store::{LetterLeaseRequest, Settle, Settlement, Store};
use redrive::core::time::Span;
use redrive::{
    DeadLetterConsumer, DeadLetterConsumerBuilder, Disposition, Heartbeat, OpenOptions, Runnable as _, alert,
    discard, replay_each,
};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), redrive::core::error::CallError>>,
}

fn start(builder: DeadLetterConsumerBuilder) -> Running {
    let consumer = builder.dlq("q-dlq").build().expect("complete");
    let stop = CancellationToken::new();
    let token = stop.clone();
    let task = tokio::spawn(async move { consumer.run(token, Heartbeat::default()).await });
    Running { stop, task }
}

impl Running {
    async fn end(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("it ends").expect("no panic").expect("well");
    }
}

fn on(store: &Arc<dyn Store>) -> DeadLetterConsumerBuilder {
    DeadLetterConsumer::builder(Arc::clone(store)).name("mender")
}

#[tokio::test]
async fn every_disposition_is_what_becomes_of_the_letter() {
    let directory = tempfile::tempdir().unwrap();
    let store = redrive::open(directory.path(), OpenOptions::default()).await.unwrap();
    let mut ids = Vec::new();
    for n in 0..7 {
        ids.push(dead(&*store, "q", &json!({"n": n})).await);
    }
    let running = start(on(&store).concurrency(3).handler(async |letter: DeadLetter| {
        let payload: serde_json::Value =
            serde_json::from_slice(&letter.message.envelope.payload.bytes).expect("json");
        match payload["n"].as_u64() {
            Some(0) => Disposition::Resolve { note: "done by hand".into() },
            Some(1) => Disposition::Replay,
            Some(2) => Disposition::ReplayAfter(Span::from_hours(1)),
            Some(3) => Disposition::Discard { reason: "not worth it".into() },
            Some(4) => Disposition::Review { reason: "odd".into() },
            Some(5) => Disposition::Quarantine { span: Span::from_hours(1), reason: "hot".into() },
            _ => Disposition::Leave,
        }
    }));
    let expected = [
        Status::Resolved,
        Status::Retrying,
        Status::Retrying,
        Status::Abandoned,
        Status::Review,
        Status::Quarantined,
    ];
    for (id, wanted) in ids.iter().zip(expected) {
        until("a disposition", || async { status(&*store, *id).await == wanted }).await;
    }
    let left = ids[6];
    until("it is left", || async {
        store.letter(left).await.unwrap().record.available_at > store.info().await.unwrap().now
    })
    .await;
    running.end().await;
    let resolved = store.letter(ids[0]).await.unwrap().record;
    assert_eq!(
        (resolved.resolution.as_deref(), resolved.closed_by.as_deref()),
        (Some("done by hand"), Some("mender"))
    );
    assert_eq!(store.letter(ids[3]).await.unwrap().record.resolution.as_deref(), Some("not worth it"));
    let now = store.info().await.unwrap().now;
    assert!(store.message(ids[1]).await.unwrap().ready_at <= now);
    assert!(store.message(ids[2]).await.unwrap().ready_at > now);
    let left = store.letter(left).await.unwrap().record;
    assert_eq!(
        (left.status, left.version, left.consumer),
        (Status::Pending, 1, None),
        "as if nobody had looked"
    );
}

#[tokio::test(start_paused = true)]
async fn panics_errors_and_lateness_are_noted_and_the_letter_rests() {
    let store = memory();
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(dead(&*store, "q", &json!(n)).await);
    }
    let slow = on(&store).concurrency(3).timeout(Span::from_secs(60));
    let running =
        start(slow.handler(
            async |letter: DeadLetter| match letter.message.envelope.payload.bytes.as_slice() {
                b"0" => panic!("a bug"),
                b"1" => Err(redrive::HandlerError::new("NoRoute", "the pager is down")),
                _ => {
                    std::future::pending::<()>().await;
                    Ok(Disposition::Replay)
                }
            },
        ));
    for id in &ids {
        until("a note", || async { !store.letter(*id).await.unwrap().record.notes.is_empty() }).await;
    }
    running.end().await;
    for (id, words) in ids.iter().zip(["panicked", "NoRoute: the pager is down", "longer than"]) {
        let record = store.letter(*id).await.unwrap().record;
        assert!(record.notes[0].text.contains(words), "{:?}", record.notes);
        assert_eq!((record.status, &*record.notes[0].by), (Status::Pending, "mender"));
        assert_eq!(record.available_at.since(record.notes[0].at), CONSUMER_BACKOFF);
    }
    assert_eq!(all_letters(&*store).await.len(), 3, "nothing died of it");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_done_is_the_handlers_failure() {
    let store = memory();
    let id = dead(&*store, "q", &json!(1)).await;
    let absurd = Disposition::Discard { reason: "x".repeat(100_000) };
    let running = start(on(&store).handler(move |_: DeadLetter| std::future::ready(absurd.clone())));
    until("it is discarded", || async { status(&*store, id).await == Status::Abandoned }).await;
    running.end().await;
    assert!(store.letter(id).await.unwrap().record.resolution.unwrap().len() <= 4_096, "cut, not refused");
}

#[tokio::test(start_paused = true)]
async fn a_replay_keeps_id_reply_to_and_history() {
    let store = memory();
    let reply_to = Some(name("answers"));
    let id = send(&*store, NewMessage { reply_to, ..message("q", &json!(1)) }).await;
    bury(&*store, "q", "Timeout").await;
    let running = start(on(&store).handler(replay_each(2)));
    for generation in 2..=3 {
        until("it is back", || async { status(&*store, id).await == Status::Retrying }).await;
        let delivery = take(&*store, "q").await;
        let message = &delivery.message;
        assert_eq!((message.envelope.id, message.generation, delivery.attempt), (id, generation, 1));
        assert_eq!(message.envelope.reply_to, Some(name("answers")));
        let failure = redrive::core::failure::FailureReport::default().analyse();
        let what = Settle::Fail {
            failure: Box::new(failure),
            policy_override: Some(redrive::core::policy::Override::DeadLetter),
        };
        store.settle(vec![Settlement { token: delivery.token, what }]).await.unwrap();
    }
    until("a person is asked", || async { status(&*store, id).await == Status::Review }).await;
    running.end().await;
    assert_eq!(store.letter(id).await.unwrap().message.failures.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn ready_made_handlers_alert_and_discard() {
    let store = memory();
    let id = dead(&*store, "q", &json!(1)).await;
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    let running = start(on(&store).handler(alert(move |letter: DeadLetter| {
        let count = Arc::clone(&count);
        async move {
            assert_eq!(letter.error.error_type, "Broken");
            count.fetch_add(1, Ordering::Relaxed);
            Ok::<_, redrive::HandlerError>(())
        }
    })));
    until("review", || async { status(&*store, id).await == Status::Review }).await;
    running.end().await;
    assert_eq!(told.load(Ordering::Relaxed), 1);
    store.act(vec![ActRequest { id, act: Act::Release, actor: me(), expected_version: None }]).await.unwrap();
    let running = start(on(&store).handler(discard("too old")));
    until("abandoned", || async { status(&*store, id).await == Status::Abandoned }).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_long_handler_keeps_its_letter_and_nobody_else_gets_it() {
    let store = memory();
    let id = dead(&*store, "q", &json!(1)).await;
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (began, may_go) = (Arc::clone(&begun), Arc::clone(&go));
    let short = on(&store).lease(Span::from_millis(300));
    let running = start(short.handler(move |_: DeadLetter| {
        began.notify_one();
        let may_go = Arc::clone(&may_go);
        async move {
            may_go.notified().await;
            Disposition::Resolve { note: "slowly".into() }
        }
    }));
    tokio::time::timeout(PATIENCE, begun.notified()).await.expect("it begins");
    let first = store.letter(id).await.unwrap().record.consumer_until.expect("leased");
    until("it is extended twice", || async {
        store.letter(id).await.unwrap().record.consumer_until.expect("leased")
            >= first.plus(Span::from_millis(200))
    })
    .await;
    let request = LetterLeaseRequest { dlq: name("q-dlq"), max: 1, lease_for: None, worker: "rival".into() };
    assert_eq!(store.lease_letters(request).await.unwrap(), []);
    go.notify_one();
    until("resolved", || async { status(&*store, id).await == Status::Resolved }).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn stopping_gives_back_what_does_not_end_in_time() {
    let store = memory();
    let id = dead(&*store, "q", &json!(1)).await;
    let begun = Arc::new(Notify::new());
    let began = Arc::clone(&begun);
    let running = start(on(&store).grace(Span::from_millis(50)).handler(move |_: DeadLetter| {
        began.notify_one();
        std::future::pending::<Disposition>()
    }));
    tokio::time::timeout(PATIENCE, begun.notified()).await.expect("it begins");
    running.end().await;
    let record = store.letter(id).await.unwrap().record;
    assert_eq!(
        (record.consumer, record.status, record.version, record.notes.len()),
        (None, Status::Pending, 1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_or_absurd_is_refused_when_it_is_built() {
    let store = memory();
    let field = |built: Result<DeadLetterConsumer, Refusal>| match built {
        Err(Refusal::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let whole = || on(&store).dlq("q-dlq").handler(discard("no"));
    assert!(whole().build().is_ok());
    assert_eq!(field(on(&store).handler(discard("no")).build()), "dlq");
    assert_eq!(field(on(&store).dlq("q-dlq").build()), "handler");
    assert_eq!(field(whole().dlq("?").build()), "dlq");
    assert_eq!(field(whole().concurrency(0).build()), "max");
    assert_eq!(field(whole().lease(Span::ZERO).build()), "lease");
    assert_eq!(field(whole().name("\n").build()), "worker");
}
