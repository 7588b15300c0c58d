//! A store that cannot be written: what waits, what is lost, what is written in the end, and how often.

use super::proxy::{Far, Wire};
use super::{Own, all_letters, operation, quick, sound, stored};
use crate::support::{PATIENCE, StoppedClock};
use redrive::core::ids::MessageId;
use redrive::resilient::{CaptureStatus, OutboxState, Policy};
use redrive::{Heartbeat, ResilientExecutor, Runnable as _};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// An executor whose callers wait for the store as long as it takes.
fn executor(far: &Far) -> ResilientExecutor {
    let builder = ResilientExecutor::builder(far.remote.clone()).policy("p", quick(1));
    builder.patience(PATIENCE).build().unwrap()
}

async fn fail(executor: &ResilientExecutor, n: u64) -> CaptureStatus {
    let failed = executor.execute("p", operation("x"), || async move { Err::<(), _>(Own(n)) }).await;
    let failed = failed.unwrap_err();
    assert_eq!(failed.error(), Some(&Own(n)), "whatever the store does, the caller has its error");
    failed.capture
}

/// Looks until it is so.
async fn until(executor: &ResilientExecutor, wanted: impl Fn(&OutboxState) -> bool) -> OutboxState {
    let started = Instant::now();
    let mut look = tokio::time::interval(Duration::from_millis(5));
    loop {
        look.tick().await;
        let state = executor.state();
        if wanted(&state) {
            return state;
        }
        assert!(started.elapsed() < PATIENCE, "{state:?}");
    }
}

async fn ids(far: &Far) -> BTreeSet<MessageId> {
    all_letters(far.store.as_ref()).await.iter().map(redrive::core::dead_letter::DeadLetter::id).collect()
}

#[tokio::test]
async fn what_cannot_be_written_waits_in_sight_and_is_written_when_it_can() {
    let far = Far::new().await;
    let executor = executor(&far);
    stored(fail(&executor, 0).await);
    far.set(Wire::Cut);
    let mut kept = BTreeSet::new();
    for n in 1..=5 {
        let CaptureStatus::Buffered(id) = fail(&executor, n).await else {
            panic!("there is nobody to write to")
        };
        kept.insert(id);
    }
    let state = executor.state();
    assert_eq!((state.buffered, state.stored, state.dropped), (5, 1, 0));
    assert!(state.bytes > 0 && state.since.is_some());
    assert!(state.last_error.as_deref().unwrap().contains("answer"), "{state:?}");
    assert_eq!(ids(&far).await.len(), 1);

    far.set(Wire::Whole);
    // No other call is needed: what waits is tried again by itself.
    let state = until(&executor, |state| state.buffered == 0).await;
    let whole = OutboxState { stored: 6, ..OutboxState::default() };
    assert_eq!(state, whole, "and everything is as if nothing had happened");
    assert!(ids(&far).await.is_superset(&kept));
    stored(fail(&executor, 6).await);
    sound(far.store.as_ref()).await;
}

#[tokio::test]
async fn room_is_bounded_and_what_finds_none_is_counted() {
    let far = Far::new().await;
    let builder = ResilientExecutor::builder(far.remote.clone()).policy("p", quick(1));
    let executor = builder.buffer(3, 1_000_000).build().unwrap();
    far.set(Wire::Cut);
    let mut kept = Vec::new();
    for n in 0..5 {
        kept.push(fail(&executor, n).await);
    }
    assert!(kept[..3].iter().all(|kept| matches!(kept, CaptureStatus::Buffered(_))), "{kept:?}");
    assert!(
        kept[3..].iter().all(|kept| matches!(kept, CaptureStatus::Dropped(_))),
        "the oldest are not pushed out"
    );
    let state = executor.state();
    assert_eq!((state.buffered, state.dropped), (3, 2));
    let text = redrive::metrics::prometheus(far.store.as_ref()).await.unwrap();
    // Other tests of this process may be at it too.
    for (name, least) in [("redrive_captured_buffered ", 3), ("redrive_captured_dropped_total ", 2)] {
        let shown = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        assert!(shown.parse::<u64>().unwrap() >= least, "{name}{shown}");
    }
    far.set(Wire::Whole);
    assert_eq!(executor.shutdown(PATIENCE).await.buffered, 0);
    let expected: BTreeSet<_> = kept[..3].iter().filter_map(CaptureStatus::id).collect();
    assert_eq!(ids(&far).await, expected);
    assert_eq!(executor.state().dropped, 2, "not forgotten");

    let tight = ResilientExecutor::builder(far.remote.clone()).policy("p", quick(1));
    let tight = tight.buffer(100, 10).build().unwrap();
    assert!(matches!(fail(&tight, 1).await, CaptureStatus::Dropped(_)), "bytes count too");
}

#[tokio::test]
async fn a_write_whose_answer_was_lost_is_repeated_and_counts_once() {
    let far = Far::new().await;
    let executor = executor(&far);
    far.set(Wire::LosesAnswers);
    let CaptureStatus::Buffered(id) = fail(&executor, 1).await else { panic!("the answer was lost") };
    assert_eq!(ids(&far).await, BTreeSet::from([id]), "it was written, and only the answer was lost");
    assert_eq!((executor.state().buffered, executor.state().stored), (1, 0));
    far.set(Wire::Whole);
    let state = until(&executor, |state| state.buffered == 0).await;
    assert_eq!((state.stored, state.since), (1, None));
    assert_eq!(ids(&far).await, BTreeSet::from([id]));
    let groups = far.store.groups(redrive::core::query::PageRequest::first(9).into()).await.unwrap().items;
    let counted: Vec<_> = groups.iter().map(|g| (g.open, g.total, g.failures)).collect();
    assert_eq!(counted, [(1, 1, 1)], "once in the group as well");
    sound(far.store.as_ref()).await;
}

#[tokio::test]
async fn a_store_that_does_not_answer_keeps_a_caller_for_its_patience_only() {
    let far = Far::new().await;
    let builder = ResilientExecutor::builder(far.remote.clone()).policy("p", quick(1));
    let executor = builder.patience(Duration::from_millis(50)).build().unwrap();
    far.set(Wire::Stuck);
    // Nothing but the caller's own patience passes.
    let clock = StoppedClock::new();
    let call = tokio::spawn({
        let executor = executor.clone();
        async move { fail(&executor, 1).await }
    });
    clock.eventually("it is kept", async || executor.state().buffered == 1).await;
    clock.advance(Duration::from_millis(50)).await;
    let CaptureStatus::Buffered(id) = call.await.unwrap() else { panic!("nothing is passed on") };
    drop(clock);
    tokio::time::resume();
    far.set(Wire::Whole);
    assert_eq!(executor.shutdown(PATIENCE).await.buffered, 0);
    assert_eq!(ids(&far).await, BTreeSet::from([id]));
}

/// From the moment the last attempt has failed, the operation no longer depends on its caller.
#[tokio::test]
async fn a_caller_that_goes_away_while_its_failure_is_written_takes_nothing_with_it() {
    let far = Far::new().await;
    let executor = executor(&far);
    far.set(Wire::Stuck);
    let call = tokio::spawn({
        let executor = executor.clone();
        async move { fail(&executor, 1).await }
    });
    until(&executor, |state| state.buffered == 1).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    far.set(Wire::Whole);
    let state = executor.shutdown(PATIENCE).await;
    assert_eq!((state.buffered, state.stored, state.withdrawn), (0, 1, 0));
    assert_eq!(ids(&far).await.len(), 1);
}

#[tokio::test]
async fn a_shutdown_writes_what_it_can_within_its_grace_and_says_what_is_left() {
    let far = Far::new().await;
    let executor = executor(&far);
    far.set(Wire::Cut);
    fail(&executor, 1).await;
    let left = executor.shutdown(Duration::from_millis(300)).await;
    assert_eq!((left.buffered, left.stored), (1, 0));
    // In a group of loops: told to stop, it ends when all is written.
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let (executor, stop) = (executor.clone(), stop.clone());
        async move { executor.run(stop, Heartbeat::default()).await }
    });
    stop.cancel();
    tokio::task::yield_now().await;
    assert!(!running.is_finished());
    far.set(Wire::Whole);
    running.await.unwrap().unwrap();
    assert_eq!((executor.state().buffered, executor.state().stored), (0, 1));
}

/// What the store will not have at all is in nobody's way, and is not thrown away.
#[tokio::test(start_paused = true)]
async fn what_is_refused_goes_to_the_end_and_stays() {
    let store = redrive::memory();
    let dlq = Policy { queue: Some("p-dlq".parse().unwrap()), ..quick(1) };
    let executor =
        ResilientExecutor::builder(store.clone()).policy("p", quick(1)).policy("wrong", dlq).build().unwrap();
    stored(fail(&executor, 1).await);
    let run = || async { Err::<(), _>(Own(2)) };
    let failed = executor.execute("wrong", operation("x"), run).await.unwrap_err();
    assert!(matches!(failed.capture, CaptureStatus::Buffered(_)), "{failed:?}");
    stored(fail(&executor, 3).await);
    let state = executor.state();
    assert_eq!((state.buffered, state.stored, state.dropped), (1, 2, 0));
    assert!(state.last_error.unwrap().contains("dead letter queue"));
}

/// An executor outlives the runtime that wrote for it.
#[test]
fn another_runtime_goes_on_writing() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let world = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let far = world.block_on(Far::new());
    let executor = executor(&far);
    far.set(Wire::Cut);
    assert!(matches!(runtime().block_on(fail(&executor, 1)), CaptureStatus::Buffered(_)));
    assert_eq!(executor.state().buffered, 1, "its runtime is gone, it is not");
    far.set(Wire::Whole);
    let state = runtime().block_on(executor.shutdown(PATIENCE));
    assert_eq!((state.buffered, state.stored), (0, 1));
}
