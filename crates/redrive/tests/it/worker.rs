//! The worker: every outcome, every way a handler can misbehave, limits, leases and the end.

use crate::support::{
    PATIENCE, StoppedClock, configure, eager, enqueue, eventually, field_of, letters, memory, memory_on,
    message, on_disk, queue, runtime_clock, virtual_time,
};
use redrive::core::failure::Reason;
use redrive::core::message::Payload;
use redrive::core::policy::QueuePolicy;
use redrive::core::query::Query;
use redrive::core::store::Store;
use redrive::core::time::{Clock, Span, Time};
use redrive::{Context, HandlerError, Outcome, Worker};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

fn worker(store: &Arc<dyn Store>) -> redrive::WorkerBuilder {
    Worker::builder(Arc::clone(store)).queue("q").grace(Span::from_secs(5))
}

#[derive(serde::Deserialize)]
struct Say {
    what: String,
}

/// Each kind of outcome leads where it says.
#[tokio::test(start_paused = true)]
async fn every_outcome_leads_where_it_says() {
    let store = memory();
    configure(&store, "q", eager(3)).await;
    let kinds = ["done", "fail", "dead", "flaky", "snooze", "release", "panic", "undecodable", "unknown"];
    let batch = kinds.iter().map(|k| message("q", k, &format!("{{\"what\":\"{k}\"}}"))).collect();
    enqueue(&store, batch).await;
    let runs: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
    let count = {
        let runs = Arc::clone(&runs);
        move |kind: &str| {
            let mut runs = runs.lock().unwrap();
            let n = runs.entry(kind.into()).or_default();
            *n += 1;
            *n
        }
    };
    let handle = {
        let count = count.clone();
        move |say: Say, context: Context| {
            let n = count(&say.what);
            async move {
                assert_eq!(context.message().kind, say.what);
                match say.what.as_str() {
                    "done" => Outcome::Done,
                    "fail" => Outcome::fail(HandlerError::new("Down", "the shop is closed").code(503)),
                    "dead" => Outcome::dead_letter("no such customer"),
                    "flaky" if n == 1 => Outcome::retry_after(Span::from_millis(1), "not yet"),
                    "snooze" if n == 1 => Outcome::Snooze(Span::from_millis(1)),
                    "release" if n == 1 => Outcome::Release,
                    "panic" => panic!("out of cheese"),
                    _ => Outcome::Done,
                }
            }
        }
    };
    let mut builder = worker(&store).concurrency(1).until_empty();
    for kind in kinds.iter().filter(|k| !["undecodable", "unknown"].contains(k)) {
        builder = builder.handler(*kind, handle.clone());
    }
    let counts = builder
        .handler("undecodable", |n: u64| async move { assert_eq!(n, 0, "not in the payload") })
        .build()
        .unwrap()
        .run()
        .await
        .unwrap();
    assert_eq!(counts.done, 4, "done, flaky, snooze, release: {counts:?}");
    assert_eq!((counts.snoozed, counts.released), (1, 1));
    assert_eq!(counts.failed, counts.retried + counts.dead);
    assert_eq!(counts.dead, 5, "{counts:?}");

    let by_kind: BTreeMap<String, _> =
        letters(&store).await.into_iter().map(|l| (l.message.envelope.kind.clone(), l)).collect();
    let reason = |kind: &str| by_kind[kind].record.reason;
    assert_eq!(reason("fail"), Reason::MaxAttempts);
    assert_eq!(reason("dead"), Reason::Permanent);
    assert_eq!(reason("undecodable"), Reason::Undecodable);
    assert_eq!(reason("unknown"), Reason::MaxAttempts);
    assert_eq!(reason("panic"), Reason::Poison, "three crashes");
    assert_eq!(by_kind["undecodable"].message.envelope.payload.bytes, br#"{"what":"undecodable"}"#);
    assert_eq!(by_kind["undecodable"].message.attempts, 1);
    assert_eq!(by_kind["fail"].message.failures[0].error.code.as_deref(), Some("503"));
    let panicked = &by_kind["panic"].message.failures[0].error;
    assert!(panicked.message.contains("out of cheese"));
    assert!(panicked.stack.as_ref().is_some_and(|place| place.contains("worker.rs:")), "{panicked:?}");
    let runs = runs.lock().unwrap().clone();
    assert_eq!((runs["done"], runs["fail"], runs["dead"], runs["flaky"]), (1, 3, 1, 2));
}

/// A handler that hangs has failed after its time, and the others go on meanwhile.
#[tokio::test(start_paused = true)]
async fn a_hanging_handler_fails_alone() {
    let store = memory();
    configure(&store, "q", eager(1)).await;
    let mut batch = vec![message("q", "hang", "1")];
    batch.extend((0..50).map(|n| message("q", "ok", &n.to_string())));
    enqueue(&store, batch).await;
    let counts = worker(&store)
        .concurrency(2)
        .timeout_of("hang", Span::from_secs(60))
        .handler("hang", |_: Context| std::future::pending::<Outcome>())
        .handler("ok", |_: u64| async {})
        .until_empty()
        .build()
        .unwrap()
        .run()
        .await
        .unwrap();
    assert_eq!((counts.done, counts.dead), (50, 1));
    let letter = letters(&store).await.remove(0);
    assert_eq!(letter.message.failures[0].error.error_type, "Timeout");
}

/// An answer that is too large is no reason to do the work again.
#[tokio::test(start_paused = true)]
async fn a_reply_of_a_hundred_megabytes_is_a_dead_letter_at_once() {
    let store = memory();
    enqueue(&store, vec![message("q", "big", "1")]).await;
    let counts = worker(&store)
        .handler("big", |_: Context| async {
            Outcome::Reply(Payload { bytes: vec![0; 100 << 20], content_type: String::new() })
        })
        .until_empty()
        .build()
        .unwrap()
        .run()
        .await
        .unwrap();
    assert_eq!((counts.dead, counts.failed), (1, 1));
    let letter = letters(&store).await.remove(0);
    assert_eq!(letter.message.failures[0].error.error_type, "ReplyTooLarge");
}

/// Leases are extended while a handler runs: nobody else gets the message, however short the lease.
#[tokio::test(start_paused = true)]
async fn heartbeats_keep_a_long_handlers_lease() {
    let store = memory();
    enqueue(&store, vec![message("q", "long", "1")]).await;
    let runs = Arc::new(AtomicU32::new(0));
    let long = {
        let runs = Arc::clone(&runs);
        move |_: Context| {
            runs.fetch_add(1, Ordering::SeqCst);
            virtual_time(Duration::from_secs(100))
        }
    };
    let build = || {
        worker(&store).lease(Span::from_secs(1)).handler("long", long.clone()).until_empty().build().unwrap()
    };
    let (a, b) = (build(), build());
    let (a, b) = tokio::join!(a.run(), b.run());
    assert_eq!(a.unwrap().done + b.unwrap().done, 1);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

/// Never more at once than allowed: in all, of a kind, of a key. And nothing is left lying.
#[tokio::test(start_paused = true)]
async fn limits_hold_by_worker_kind_and_key() {
    let store = memory();
    let mut batch = Vec::new();
    for n in 0..200 {
        let mut m = message("q", if n % 2 == 0 { "mail" } else { "sms" }, &n.to_string());
        m.headers.insert("tenant".into(), format!("t{}", n % 4));
        batch.push(m);
    }
    enqueue(&store, batch).await;
    #[derive(Default)]
    struct Gauge {
        now: BTreeMap<String, usize>,
        peak: BTreeMap<String, usize>,
    }
    let gauge: Arc<Mutex<Gauge>> = Arc::default();
    let seen = Arc::clone(&gauge);
    let handler = move |context: Context| {
        let gauge = Arc::clone(&seen);
        async move {
            let names = ["all", &context.message().kind, &context.message().headers["tenant"]];
            {
                let mut gauge = gauge.lock().unwrap();
                for name in names {
                    let now = gauge.now.entry(name.into()).or_default();
                    *now += 1;
                    let now = *now;
                    let peak = gauge.peak.entry(name.into()).or_default();
                    *peak = now.max(*peak);
                }
            }
            virtual_time(Duration::from_millis(2)).await;
            let mut gauge = gauge.lock().unwrap();
            for name in names {
                *gauge.now.get_mut(name).unwrap() -= 1;
            }
        }
    };
    let counts = worker(&store)
        .concurrency(10)
        .concurrency_of("mail", 2)
        .concurrency_per_key(3, |m| m.headers.get("tenant").cloned())
        .fallback(handler)
        .until_empty()
        .build()
        .unwrap()
        .run()
        .await
        .unwrap();
    assert_eq!((counts.done, counts.leased), (200, 200));
    let peak = &gauge.lock().unwrap().peak;
    assert!(peak["all"] <= 10 && peak["mail"] <= 2 && peak["t0"] <= 3, "{peak:?}");
    assert!(peak["sms"] > 2, "the other kind was not held up: {peak:?}");
}

/// A rate is kept, and leases are not taken ahead of it.
#[tokio::test(start_paused = true)]
async fn a_rate_is_kept() {
    let store = memory();
    enqueue(&store, (0..12).map(|n| message("q", "k", &n.to_string())).collect()).await;
    let begun = Instant::now();
    let worker = worker(&store).rate(20.0).fallback(|_: Context| async {}).until_empty().build().unwrap();
    assert_eq!(worker.run().await.unwrap().done, 12);
    // A burst of two, then one every 50 ms, and a last look that finds nothing.
    let (least, most) = (Duration::from_millis(500), Duration::from_millis(600));
    assert!((least..most).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

/// A waiting worker begins a new message at once, not at its next look.
#[tokio::test]
async fn an_enqueue_wakes_a_waiting_worker() {
    let data = on_disk().await;
    // While no time passes there is no next look.
    let clock = StoppedClock::new();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let worker = worker(&data.store)
        .fallback(move |_: Context| {
            let tell = tell.clone();
            async move { tell.send(()).unwrap() }
        })
        .build()
        .unwrap();
    let handle = worker.handle();
    let run = tokio::spawn(async move { worker.run().await });
    for n in 0..20 {
        enqueue(&data.store, vec![message("q", "k", &n.to_string())]).await;
        told.recv().await.unwrap();
        clock.eventually("it is done", async || handle.counts().done == n + 1).await;
    }
    handle.stop();
    assert_eq!(run.await.unwrap().unwrap().done, 20);
}

/// A hundred starts and stops under load, with handlers that ignore being told to stop: nothing is lost, a
/// message that was given back has as many attempts as before, and every end is within the grace time.
#[tokio::test(start_paused = true)]
async fn a_hundred_stops_under_load_lose_nothing() {
    let store = memory();
    configure(&store, "q", QueuePolicy { max_attempts: 1, ..eager(1) }).await;
    let total = 300_usize;
    enqueue(&store, (0..total).map(|n| message("q", "k", &n.to_string())).collect()).await;
    let done = Arc::new(AtomicUsize::new(0));
    let grace = Duration::from_millis(200);
    let mut released = 0;
    for cycle in 0..100_u64 {
        let (began, done) = (Arc::new(tokio::sync::Semaphore::new(0)), Arc::clone(&done));
        let tell = Arc::clone(&began);
        let worker = Worker::builder(Arc::clone(&store))
            .queue("q")
            .concurrency(8)
            .grace(Span::from_millis(200))
            .fallback(move |n: u64| {
                tell.add_permits(1);
                let done = Arc::clone(&done);
                async move {
                    // One in four ignores everything it is told, the others take no time.
                    if (n + cycle).is_multiple_of(4) {
                        std::future::pending::<()>().await;
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
            })
            .build()
            .unwrap();
        let handle = worker.handle();
        let run = tokio::spawn(async move { worker.run().await });
        if done_or_waiting(&store).await {
            let _begun = tokio::time::timeout(PATIENCE, began.acquire_many(1)).await.expect("work begins");
        }
        let asked = Instant::now();
        handle.stop();
        let counts = run.await.unwrap().unwrap();
        assert!(asked.elapsed() <= grace, "cycle {cycle}: {:?}", asked.elapsed());
        released += counts.released;
        assert_eq!(counts.failed, 0);
        let page = store.messages(Query::default()).await.unwrap();
        for message in page.items {
            assert_eq!(message.attempts, 0, "given back without a count: {:?}", message.envelope.id);
            assert_eq!(message.leased_by, None, "given back, not left leased");
        }
    }
    assert!(released > 0, "handlers were running at the end");
    let left = queue(&store, "q").await;
    let done = done.load(Ordering::SeqCst);
    assert_eq!(usize::try_from(left.ready + left.scheduled).unwrap() + done, total);
    assert_eq!(left.counts.dead, 0);
}

async fn done_or_waiting(store: &Arc<dyn Store>) -> bool {
    queue(store, "q").await.ready > 0
}

/// A handler that blocks its thread keeps its slot, so there are never more than allowed, but its message has
/// failed in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_handler_that_blocks_its_thread_keeps_only_its_slot() {
    let store = memory();
    configure(&store, "q", eager(1)).await;
    enqueue(&store, vec![message("q", "block", "1")]).await;
    let (let_go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    let worker = worker(&store)
        .concurrency(2)
        .timeout_of("block", Span::from_millis(50))
        .handler("block", move |_: Context| {
            let wait = Arc::clone(&wait);
            async move { wait.lock().unwrap().recv().unwrap() }
        })
        .handler("ok", |_: Context| async {})
        .build()
        .unwrap();
    let handle = worker.handle();
    let run = tokio::spawn(async move { worker.run().await });
    eventually("it is a dead letter", async || handle.counts().dead == 1).await;
    assert_eq!(handle.counts().stuck, 1);
    enqueue(&store, (0..10).map(|n| message("q", "ok", &n.to_string())).collect()).await;
    eventually("the others are done", async || handle.counts().done == 10).await;
    let_go.send(()).unwrap();
    eventually("the slot is free again", async || handle.counts().stuck == 0).await;
    handle.stop();
    run.await.unwrap().unwrap();
}

/// A reply goes to where the message says, an error reply only when it is over; both exactly once.
#[tokio::test(start_paused = true)]
async fn replies_go_out_with_the_last_word() {
    let store = memory();
    configure(&store, "q", eager(3)).await;
    let mut batch: Vec<_> = ["answer", "fail"].map(|kind| message("q", kind, "20")).into();
    for message in &mut batch {
        message.reply_to = Some("replies".parse().unwrap());
    }
    let ids: Vec<_> = batch.iter().map(|m| m.id.to_string()).collect();
    enqueue(&store, batch).await;
    let runs = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&runs);
    let counts = worker(&store)
        .handler("answer", |n: u64| async move { Outcome::reply(&(n + 1)) })
        .handler("fail", move |_: Context| {
            count.fetch_add(1, Ordering::SeqCst);
            async { Err::<(), _>(HandlerError::new("Down", "not today")) }
        })
        .until_empty()
        .build()
        .unwrap()
        .run()
        .await
        .unwrap();
    assert_eq!((counts.done, counts.dead, runs.load(Ordering::SeqCst)), (1, 1, 3));
    let replies = Query { filter: "queue:replies".parse().unwrap(), ..Query::default() };
    let replies: BTreeMap<String, String> = store
        .messages(replies)
        .await
        .unwrap()
        .items
        .into_iter()
        .map(|m| {
            (m.envelope.headers["in-reply-to"].clone(), String::from_utf8(m.envelope.payload.bytes).unwrap())
        })
        .collect();
    assert_eq!(replies.len(), 2);
    assert_eq!(replies[&ids[0]], "21");
    assert!(replies[&ids[1]].contains("not today"), "{}", replies[&ids[1]]);
}

/// What a handler reports stays with the message, and its next attempt knows.
#[tokio::test(start_paused = true)]
async fn progress_is_kept_with_the_message() {
    let store = memory();
    configure(&store, "q", eager(3)).await;
    enqueue(&store, vec![message("q", "k", "1")]).await;
    let seen: Arc<Mutex<Vec<Option<u64>>>> = Arc::default();
    let see = Arc::clone(&seen);
    let counts = worker(&store)
        .fallback(move |context: Context| {
            see.lock().unwrap().push(context.last_progress().map(|p| p.done));
            let attempt = u64::from(context.attempt());
            context.progress(attempt * 10, Some(30), "rows");
            async move { if attempt < 3 { Err(HandlerError::new("Down", "again")) } else { Ok(()) } }
        })
        .until_empty()
        .build()
        .unwrap()
        .run()
        .await
        .unwrap();
    assert_eq!(counts.done, 1);
    assert_eq!(*seen.lock().unwrap(), [None, Some(10), Some(20)]);
}

/// And it can be seen while the handler runs.
#[tokio::test(start_paused = true)]
async fn progress_is_seen_while_the_handler_runs() {
    let store = memory();
    let new = message("q", "k", "1");
    let id = new.id;
    enqueue(&store, vec![new]).await;
    let worker = worker(&store)
        .grace(Span::from_millis(100))
        .fallback(|context: Context| async move {
            context.progress(7, None, "rows");
            context.cancelled().await;
            Outcome::Release
        })
        .build()
        .unwrap();
    let handle = worker.handle();
    let run = tokio::spawn(async move { worker.run().await });
    eventually("it is there to see", async || {
        store.message(id).await.unwrap().progress.is_some_and(|p| p.done == 7)
    })
    .await;
    handle.stop();
    assert_eq!(run.await.unwrap().unwrap().released, 1);
    assert_eq!(store.message(id).await.unwrap().attempts, 0);
}

/// The rules of a worker's policy are its queue's, and its own word goes before them.
#[tokio::test(start_paused = true)]
async fn a_dead_letter_policy_rules_and_speaks() {
    let store = memory();
    let batch = ["invalid", "funds", "down"].map(|kind| message("q", kind, "1")).into();
    enqueue(&store, batch).await;
    configure(&store, "q", eager(5)).await;
    let policy =
        redrive::DeadLetterPolicy::new().max_attempts(4).include("Invalid*").apply().should_dead_letter(
            |delivery, failure| (failure.report.error.error_type == "Funds").then_some(delivery.attempt >= 2),
        );
    let counts = worker(&store)
        .dead_letters(policy)
        .handler("invalid", |_: Context| async { Err::<(), _>(HandlerError::new("InvalidCard", "no")) })
        .handler("funds", |_: Context| async { Err::<(), _>(HandlerError::new("Funds", "no")) })
        .handler("down", |_: Context| async { Err::<(), _>(HandlerError::new("Down", "no")) })
        .until_empty()
        .build()
        .unwrap()
        .run()
        .await
        .unwrap();
    assert_eq!(counts.dead, 3);
    let ends: BTreeMap<String, _> = letters(&store)
        .await
        .into_iter()
        .map(|l| (l.message.envelope.kind.clone(), (l.record.reason, l.message.attempts)))
        .collect();
    assert_eq!(ends["invalid"], (Reason::Rule, 1));
    assert_eq!(ends["funds"], (Reason::Manual, 2));
    assert_eq!(ends["down"], (Reason::MaxAttempts, 4));
}

/// Asked not to wait, a worker gives back at once what its handlers have not done, however long its grace time.
#[tokio::test(start_paused = true)]
async fn a_worker_that_is_told_to_hurry_gives_back_at_once() {
    let store = memory();
    enqueue(&store, (0..3).map(|n| message("q", "k", &n.to_string())).collect()).await;
    let worker = worker(&store)
        .grace(Span::from_secs(600))
        .fallback(|_: Context| std::future::pending::<()>())
        .build()
        .unwrap();
    let handle = worker.handle();
    let run = tokio::spawn(async move { worker.run().await });
    eventually("all run", async || handle.counts().running == 3).await;
    handle.stop();
    handle.stop_now();
    let counts = tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap().unwrap();
    assert_eq!(counts.released, 3);
    for message in store.messages(Query::default()).await.unwrap().items {
        assert_eq!((message.attempts, message.leased_by), (0, None));
    }
}

/// The runtime's clock, and how far the store's is ahead of it.
struct Ahead(Arc<dyn Clock>, AtomicU64);

impl Clock for Ahead {
    fn now(&self) -> Time {
        self.0.now().plus(Span::from_millis(self.1.load(Ordering::SeqCst)))
    }
}

/// A handler whose lease ran out before it could be extended: what it says then counts for nothing, the message is
/// delivered again, and nothing stays taken under the limit of its kind.
#[tokio::test(start_paused = true)]
async fn a_lost_lease_leaves_nothing_behind() {
    let clock = Arc::new(Ahead(runtime_clock(), AtomicU64::new(0)));
    let store = memory_on(&(clock.clone() as Arc<dyn Clock>));
    configure(&store, "q", eager(5)).await;
    enqueue(&store, vec![message("q", "k", "1")]).await;
    let runs = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&runs);
    let worker = worker(&store)
        .lease(Span::from_secs(30))
        .concurrency_of("k", 1)
        .handler("k", move |_: Context| {
            if count.fetch_add(1, Ordering::SeqCst) == 0 {
                // As if the process had stood still for a minute.
                clock.1.store(60_000, Ordering::SeqCst);
            }
            async {}
        })
        .build()
        .unwrap();
    let handle = worker.handle();
    let run = tokio::spawn(async move { worker.run().await });
    eventually("it is done by its second delivery", async || handle.counts().done == 1).await;
    assert_eq!(runs.load(Ordering::SeqCst), 2);
    assert_eq!(handle.counts().lost, 1, "{:?}", handle.counts());
    enqueue(&store, (0..3).map(|n| message("q", "k", &n.to_string())).collect()).await;
    eventually("the kind is not held up", async || handle.counts().done == 4).await;
    handle.stop();
    run.await.unwrap().unwrap();
    assert_eq!(queue(&store, "q").await.counts.done, 4);
}

/// The user's own code for the key may panic over a message; the worker does not.
#[tokio::test(start_paused = true)]
async fn a_panic_over_a_key_is_no_panic_of_the_worker() {
    let store = memory();
    let mut with = message("q", "k", "1");
    with.headers.insert("tenant".into(), "a".into());
    enqueue(&store, vec![with, message("q", "k", "2")]).await;
    let counts = worker(&store)
        .concurrency_per_key(1, |m| Some(m.headers["tenant"].clone()))
        .fallback(|_: Context| async {})
        .until_empty()
        .build()
        .unwrap()
        .run()
        .await
        .unwrap();
    assert_eq!(counts.done, 2);
}

/// What cannot be meant is refused by name before anything runs.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_meant_is_refused_by_field() {
    let refused = |builder: redrive::WorkerBuilder| field_of(builder.build().unwrap_err());
    let store = memory();
    let new = || Worker::builder(Arc::clone(&store));
    let ok = |_: Context| async {};
    assert_eq!(refused(new().fallback(ok)), "queues");
    assert_eq!(refused(new().queue("no such name!").fallback(ok)), "queue");
    assert_eq!(refused(new().queue("q")), "handler");
    assert_eq!(refused(new().queue("q").handler("a", ok).handler("a", ok)), "handler");
    assert_eq!(refused(new().queue("q").fallback(ok).concurrency(0)), "concurrency");
    assert_eq!(refused(new().queue("q").fallback(ok).concurrency(100_000)), "max");
    assert_eq!(refused(new().queue("q").fallback(ok).rate(0.0)), "rate");
    assert_eq!(refused(new().queue("q").fallback(ok).timeout(Span::ZERO)), "timeout");
    assert_eq!(refused(new().queue("q").fallback(ok).name("")), "worker");
}
