//! Captured operations executed again: when, how many, and what becomes of their letters.

use super::{Calls, Own, all_letters, operation, paused_clock, paused_store, quick, sound, stored};
use crate::support::{PATIENCE, virtual_time};
use redrive::core::backoff::{Backoff, Growth, Jitter};
use redrive::core::dead_letter::{Act, ActRequest, Actor, DeadLetter, Status};
use redrive::core::failure::Reason;
use redrive::core::ids::MessageId;
use redrive::core::lifecycle::State;
use redrive::core::store::Store;
use redrive::core::time::{Clock, Span};
use redrive::resilient::{OnSpent, Operation, Processed, Processor, ProcessorBuilder, ProcessorLimits};
use redrive::{Context, HandlerError, Heartbeat, Outcome, ResilientExecutor, Runnable as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

struct Stage {
    clock: Arc<dyn Clock>,
    store: Arc<dyn Store>,
    executor: ResilientExecutor,
}

impl Stage {
    fn new() -> Self {
        let clock = paused_clock();
        let store = paused_store(&clock);
        let builder = ResilientExecutor::builder(store.clone()).clock(clock.clone());
        let executor = builder.policy("p", quick(1)).build().unwrap();
        Self { clock, store, executor }
    }

    /// Captures an operation of this kind.
    async fn capture(&self, kind: &str) -> MessageId {
        let run = || async { Err::<(), _>(Own(1)) };
        stored(self.executor.execute("p", operation(kind), run).await.unwrap_err().capture)
    }

    fn processor(&self) -> ProcessorBuilder {
        Processor::builder(self.store.clone()).queue("p").queue("unheard-of").limits(at_once())
    }

    async fn status(&self, id: MessageId) -> Status {
        self.store.letter(id).await.unwrap().record.status
    }

    async fn act(&self, id: MessageId, act: Act) {
        let request = ActRequest { id, act, actor: Actor::new("ada", "test"), expected_version: None };
        self.store.act(vec![request]).await.unwrap().remove(0).unwrap();
    }
}

/// Everything that is dead is due.
fn at_once() -> ProcessorLimits {
    let backoff =
        Backoff { initial: Span::ZERO, growth: Growth::Fixed, jitter: Jitter::None, ..Backoff::default() };
    ProcessorLimits { backoff, ..ProcessorLimits::default() }
}

async fn done() {}

#[tokio::test(start_paused = true)]
async fn what_is_due_is_executed_and_its_letter_is_resolved() {
    let stage = Stage::new();
    let id = stage.capture("a").await;
    let backoff = Backoff { initial: Span::from_secs(60), jitter: Jitter::None, ..Backoff::default() };
    let seen = Arc::new(std::sync::Mutex::new(None));
    let kept = seen.clone();
    let again = move |context: Context| {
        *kept.lock().unwrap() = Some(Operation::of(context.message()));
        done()
    };
    let processor = stage
        .processor()
        .handler("a", again)
        .limits(ProcessorLimits { backoff, ..ProcessorLimits::default() })
        .build()
        .unwrap();
    assert_eq!(processor.step().await, Ok(Processed::default()), "not due");
    assert_eq!(stage.status(id).await, Status::Pending);
    tokio::time::advance(Duration::from_secs(59)).await;
    assert_eq!(processor.step().await, Ok(Processed::default()), "still not");
    tokio::time::advance(Duration::from_secs(1)).await;
    let expected = Processed { sent_back: 1, succeeded: 1, ..Processed::default() };
    assert_eq!(processor.step().await, Ok(expected));
    let letter = stage.store.letter(id).await.unwrap();
    assert_eq!(
        (letter.record.status, letter.record.resolution.as_deref()),
        (Status::Resolved, Some("retried"))
    );
    assert_eq!(letter.record.closed_by.as_deref(), Some("processor"));
    assert_eq!(seen.lock().unwrap().as_ref().unwrap().payload, operation("a").payload);
    assert_eq!(processor.step().await, Ok(Processed::default()));
    sound(stage.store.as_ref()).await;
}

#[tokio::test(start_paused = true)]
async fn what_fails_again_is_pending_again_with_its_history_and_a_longer_wait() {
    let stage = Stage::new();
    let id = stage.capture("a").await;
    let backoff = Backoff { initial: Span::from_secs(10), jitter: Jitter::None, ..Backoff::default() };
    let calls = Calls::default();
    let made = calls.clone();
    let again = move |_: Context| {
        made.note();
        async { Err::<(), _>(HandlerError::new("Still", "it is still down")) }
    };
    let rules = ProcessorLimits { backoff, max_redrives: 3, ..ProcessorLimits::default() };
    let processor = stage.processor().handler("a", again).limits(rules).build().unwrap();
    for (round, wait) in [(1, 10), (2, 20), (3, 40)] {
        tokio::time::advance(Duration::from_secs(wait) - Duration::from_millis(1)).await;
        assert_eq!(processor.step().await, Ok(Processed::default()), "round {round}: early");
        tokio::time::advance(Duration::from_millis(1)).await;
        let expected = Processed { sent_back: 1, failed: 1, ..Processed::default() };
        assert_eq!(processor.step().await, Ok(expected), "round {round}");
        let letter = stage.store.letter(id).await.unwrap();
        let history: Vec<_> = letter.message.failures.iter().map(|f| (f.generation, f.attempt)).collect();
        assert_eq!(history.len(), 1 + round);
        assert_eq!(history[round], (u32::try_from(round).unwrap() + 1, 1), "one execution per redrive");
        assert_eq!((letter.record.status, letter.record.reason), (Status::Pending, Reason::MaxAttempts));
        assert_eq!(letter.error.error_type, "Still");
    }
    let expected = Processed { abandoned: 1, ..Processed::default() };
    assert_eq!(processor.step().await, Ok(expected), "sent back as often as allowed");
    let letter = stage.store.letter(id).await.unwrap();
    assert_eq!((letter.record.status, calls.made()), (Status::Abandoned, 3));
    assert_eq!(letter.record.resolution.as_deref(), Some("redriven 3 times and failed again"));
    // Whoever opens it again knows better, and decides.
    stage.act(id, Act::Reopen).await;
    assert_eq!(processor.step().await, Ok(Processed::default()));
    assert_eq!(stage.status(id).await, Status::Pending);
    sound(stage.store.as_ref()).await;
}

#[tokio::test(start_paused = true)]
async fn what_must_not_be_sent_back_is_for_a_person_and_what_is_unknown_waits() {
    let stage = Stage::new();
    let run = || async { Err::<(), _>(HandlerError::new("Bad", "no such model").permanent()) };
    let failed = stage.executor.execute("p", operation("a"), run).await.unwrap_err();
    let (permanent, strange) = (stored(failed.capture), stage.capture("z").await);
    let fine = stage.capture("a").await;
    let spent = ProcessorLimits { max_redrives: 0, on_spent: OnSpent::Review, ..at_once() };
    let processor = stage.processor().handler("a", |_: Context| done()).build().unwrap();
    let expected = Processed { sent_back: 1, succeeded: 1, review: 1, ..Processed::default() };
    assert_eq!(processor.step().await, Ok(expected));
    assert_eq!(stage.status(permanent).await, Status::Review);
    assert_eq!(stage.status(strange).await, Status::Pending, "nobody here knows its kind");
    assert_eq!(stage.status(fine).await, Status::Resolved);
    let other = stage.capture("a").await;
    let strict = stage.processor().handler("a", |_: Context| done()).limits(spent).build().unwrap();
    assert_eq!(strict.step().await, Ok(Processed { review: 1, ..Processed::default() }));
    assert_eq!(stage.status(other).await, Status::Review);
}

/// More letters that nobody here can execute than are looked at in one go: the others get their turn.
#[tokio::test(start_paused = true)]
async fn strangers_are_in_nobodys_way() {
    let stage = Stage::new();
    for _ in 0..150 {
        stage.capture("z").await;
    }
    let mine = stage.capture("a").await;
    let processor = stage.processor().handler("a", |_: Context| done()).build().unwrap();
    let expected = Processed { sent_back: 1, succeeded: 1, ..Processed::default() };
    assert_eq!(processor.step().await, Ok(expected));
    assert_eq!(stage.status(mine).await, Status::Resolved);
}

/// How many are at work, and how many ever were at once.
#[derive(Clone, Default)]
struct Gauge {
    now: Arc<AtomicU32>,
    most: Arc<AtomicU32>,
    all: Calls,
}

impl Gauge {
    async fn work(self, span: Duration) {
        self.all.note();
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        virtual_time(span).await;
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn never_more_per_interval_than_the_batch_and_never_more_at_once_than_allowed() {
    let stage = Stage::new();
    for _ in 0..25 {
        stage.capture("a").await;
    }
    // Sent back by an operator, more than a batch: they come out of the same batches.
    let sent: Vec<_> = all_letters(stage.store.as_ref()).await.iter().take(12).map(DeadLetter::id).collect();
    for id in &sent {
        stage.act(*id, Act::retry()).await;
    }
    let gauge = Gauge::default();
    let work = gauge.clone();
    let again = move |_: Context| work.clone().work(Duration::from_millis(700));
    let rules = ProcessorLimits { batch: 7, concurrency: 3, interval: Duration::from_secs(10), ..at_once() };
    let processor = Arc::new(stage.processor().handler("a", again).limits(rules).build().unwrap());
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let (processor, stop) = (processor.clone(), stop.clone());
        async move { processor.run(stop, Heartbeat::default()).await }
    });
    let mut counts = Vec::new();
    let mut timer = tokio::time::interval(Duration::from_secs(10));
    timer.tick().await;
    for _ in 0..5 {
        timer.tick().await;
        counts.push(gauge.all.made());
    }
    assert_eq!(gauge.most.load(Ordering::SeqCst), 3);
    // The processor's interval and this one begin together, so each reading is of a whole interval or the next
    // one's first leases.
    for (n, count) in (1_u32..).zip(&counts) {
        assert!((7 * n).min(25) <= *count && *count <= (7 * n + 3).min(25), "{counts:?}");
    }
    stop.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(stage.status(sent[11]).await, Status::Resolved);
    sound(stage.store.as_ref()).await;
}

/// Longer than the interval and longer than a lease: the lease is kept, and there is no second execution.
#[tokio::test(start_paused = true)]
async fn an_execution_may_take_longer_than_its_lease() {
    let stage = Stage::new();
    let id = stage.capture("a").await;
    let gauge = Gauge::default();
    let work = gauge.clone();
    let again = move |_: Context| work.clone().work(Duration::from_secs(200));
    let processor = stage.processor().handler("a", again).build().unwrap();
    let expected = Processed { sent_back: 1, succeeded: 1, ..Processed::default() };
    assert_eq!(processor.step().await, Ok(expected));
    assert_eq!((gauge.all.made(), stage.status(id).await), (1, Status::Resolved));
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_or_hangs_is_a_failure_of_its_operation_only() {
    let stage = Stage::new();
    let (broken, stuck, fine) =
        (stage.capture("b").await, stage.capture("s").await, stage.capture("a").await);
    let processor = stage
        .processor()
        .handler("a", |_: Context| done())
        .handler("b", |_: Context| async {
            if true {
                panic!("no");
            }
        })
        .handler("s", |_: Context| std::future::pending::<()>())
        .limits(ProcessorLimits { timeout: Duration::from_secs(90), ..at_once() })
        .build()
        .unwrap();
    let expected = Processed { sent_back: 3, succeeded: 1, failed: 2, ..Processed::default() };
    assert_eq!(processor.step().await, Ok(expected));
    assert_eq!(stage.status(fine).await, Status::Resolved);
    for (id, error_type, message) in [(broken, "Panic", "no"), (stuck, "Timeout", "not done within 1m30s")] {
        let letter = stage.store.letter(id).await.unwrap();
        assert_eq!(letter.record.status, Status::Pending);
        assert_eq!((letter.error.error_type.as_str(), letter.error.message.as_str()), (error_type, message));
    }
}

/// A handler that never yields: its time limit is noticed all the same, and so is its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_blocks_its_thread_blocks_nothing_else() {
    let stage = Stage::new();
    let id = stage.capture("a").await;
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new(std::sync::Mutex::new(wait));
    let returned = Arc::new(AtomicU32::new(0));
    let note = Arc::clone(&returned);
    let processor = stage
        .processor()
        .handler("a", move |_: Context| {
            let (wait, note) = (Arc::clone(&wait), Arc::clone(&note));
            async move {
                let _ = wait.lock().unwrap().recv();
                note.fetch_add(1, Ordering::SeqCst);
            }
        })
        .limits(ProcessorLimits { timeout: Duration::from_millis(100), ..at_once() })
        .build()
        .unwrap();
    let ended = processor.step().await;
    assert_eq!(returned.load(Ordering::SeqCst), 0, "nobody waited for it");
    release.send(()).unwrap();
    assert_eq!(ended, Ok(Processed { sent_back: 1, failed: 1, ..Processed::default() }));
    assert_eq!(stage.store.letter(id).await.unwrap().error.error_type, "Timeout");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_snoozes_for_ever_is_put_off_for_as_long_as_may_be() {
    let stage = Stage::new();
    let id = stage.capture("a").await;
    let for_ever = Span::from_millis(u64::MAX);
    let snooze = move |_: Context| async move { Outcome::Snooze(for_ever) };
    let processor = stage.processor().handler("a", snooze).build().unwrap();
    let expected = Processed { sent_back: 1, returned: 1, ..Processed::default() };
    assert_eq!(processor.step().await, Ok(expected));
    assert_eq!(stage.store.message(id).await.unwrap().state, State::Scheduled);
}

#[tokio::test(start_paused = true)]
async fn told_to_stop_it_waits_for_its_grace_and_gives_the_rest_back() {
    let stage = Stage::new();
    let (deaf, listening) = (stage.capture("deaf").await, stage.capture("listening").await);
    let begun = Arc::new(Semaphore::new(0));
    let (one, other) = (begun.clone(), begun.clone());
    let processor = stage
        .processor()
        .handler("deaf", move |_: Context| {
            one.add_permits(1);
            std::future::pending::<()>()
        })
        .handler("listening", move |context: Context| {
            other.add_permits(1);
            async move {
                context.cancelled().await;
                Outcome::Done
            }
        })
        .limits(ProcessorLimits { timeout: Duration::from_secs(3_600), ..at_once() })
        .build()
        .unwrap();
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let stop = stop.clone();
        async move { processor.run(stop, Heartbeat::default()).await }
    });
    begun.acquire_many(2).await.unwrap().forget();
    let before = stage.clock.now();
    stop.cancel();
    running.await.unwrap().unwrap();
    let took = stage.clock.now().since(before);
    assert!(took >= Span::from_secs(30) && took <= Span::from_secs(32), "{took}");
    assert_eq!(stage.status(listening).await, Status::Resolved, "its last word counts");
    let message = stage.store.message(deaf).await.unwrap();
    assert_eq!((message.attempts, message.failed), (0, 1), "given back: no attempt was used");
    assert_eq!(stage.status(deaf).await, Status::Retrying);
    sound(stage.store.as_ref()).await;
}

#[tokio::test]
async fn absurd_processors_are_refused_by_field() {
    let builder = || Processor::builder(redrive::memory()).queue("p").handler("a", |_: Context| done());
    let refused = |builder: ProcessorBuilder, field: &str| {
        let why = builder.build().err().unwrap().to_string();
        assert!(why.starts_with(field), "{why}");
    };
    refused(Processor::builder(redrive::memory()).handler("a", |_: Context| done()), "queues");
    refused(Processor::builder(redrive::memory()).queue("p"), "handlers");
    refused(builder().queue("no name!"), "queues");
    refused(builder().name(""), "worker");
    refused(builder().limits(ProcessorLimits { batch: 0, ..ProcessorLimits::default() }), "batch");
    refused(
        builder().limits(ProcessorLimits { concurrency: 0, ..ProcessorLimits::default() }),
        "concurrency",
    );
    refused(
        builder().limits(ProcessorLimits { interval: Duration::ZERO, ..ProcessorLimits::default() }),
        "interval",
    );
}

/// Two processors on one directory, on the machine's clock: every operation is executed once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_them_share_the_work() {
    let directory = tempfile::tempdir().unwrap();
    let store = redrive::open(directory.path(), redrive::OpenOptions::default()).await.unwrap();
    let executor = ResilientExecutor::builder(store.clone()).policy("p", quick(1)).build().unwrap();
    for n in 0..40 {
        executor.execute("p", operation("a"), || async move { Err::<(), _>(Own(n)) }).await.unwrap_err();
    }
    assert_eq!(executor.shutdown(PATIENCE).await.stored, 40);
    let calls = Calls::default();
    let make = |name: &str| {
        let calls = calls.clone();
        let again = move |_: Context| {
            calls.note();
            done()
        };
        let rules = ProcessorLimits { batch: 100, concurrency: 4, ..at_once() };
        Processor::builder(store.clone())
            .name(name)
            .queue("p")
            .handler("a", again)
            .limits(rules)
            .build()
            .unwrap()
    };
    let (a, b) = (make("a"), make("b"));
    let (a, b) = tokio::join!(a.step(), b.step());
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!((a.sent_back + b.sent_back, a.succeeded + b.succeeded), (40, 40));
    assert_eq!(calls.made(), 40);
    assert!(all_letters(store.as_ref()).await.iter().all(|letter| letter.record.status == Status::Resolved));
    sound(store.as_ref()).await;
}
