//! Fault: operations fail, hang, panic and are withdrawn at random while the wire to the store is cut, stuck, or
//! loses answers at random. Symptom that must not be: an operation that failed for good and is nowhere, or twice.
//! Guarantee: after the last failure each is a letter in the store, once, or counted in the executor's state.

use super::proxy::{Far, Wire};
use super::{Own, all_letters, operation, sound};
use crate::support::PATIENCE;
use redrive::ResilientExecutor;
use redrive::core::ids::MessageId;
use redrive::core::query::PageRequest;
use redrive::core::time::Span;
use redrive::resilient::{CaptureStatus, Failed, OutboxState, Policy};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future as _;
use std::task::Poll;
use std::time::Duration;

/// A small generator, so that a seed replays its choices.
struct Dice(u64);

impl Dice {
    fn jitter_seed(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// How a call ended for whoever made it.
enum HandlerEnd {
    Well,
    Badly(Failed<Own>),
    /// It was given up before it ended.
    Withdrawn,
}

async fn one_call(executor: ResilientExecutor, mut dice: Dice) -> HandlerEnd {
    // Some callers give up: after being woken a few times, which is anywhere between two attempts.
    let mut polls_left = (dice.jitter_seed(10) == 0).then(|| 1 + dice.jitter_seed(6));
    let mut call = std::pin::pin!(executor.execute("p", operation("x"), || {
        let what = dice.jitter_seed(10);
        async move {
            match what {
                0 => std::future::pending().await,
                1 => panic!("at random"),
                2 | 3 => Ok(()),
                n => Err(Own(n)),
            }
        }
    }));
    let ended = std::future::poll_fn(|context| {
        if polls_left == Some(0) {
            return Poll::Ready(None);
        }
        polls_left = polls_left.map(|left| left - 1);
        call.as_mut().poll(context).map(Some)
    });
    match ended.await {
        None => HandlerEnd::Withdrawn,
        Some(ended) => ended.map_or_else(HandlerEnd::Badly, |()| HandlerEnd::Well),
    }
}

async fn torture(seed: u64, room: usize) -> OutboxState {
    let far = Far::new().await;
    let policy = Policy {
        timeout: Some(Span::from_millis(20)),
        ..Policy::exponential(3, Span::from_millis(1), Span::from_millis(5), 50)
    };
    let executor = ResilientExecutor::builder(far.remote.clone())
        .policy("p", policy)
        .patience(Duration::from_millis(50))
        .buffer(room, usize::MAX)
        .build()
        .unwrap();
    let mut dice = Dice(seed);
    let mut calls = Vec::new();
    let (ended, mut seen) = tokio::sync::watch::channel(0_u64);
    for _ in 0..40 {
        let wires = [Wire::Whole, Wire::Whole, Wire::Cut, Wire::Stuck, Wire::LosesAnswers];
        far.set(wires[usize::try_from(dice.jitter_seed(5)).unwrap()]);
        for _ in 0..dice.jitter_seed(20) {
            let (call, ended) =
                (one_call(executor.clone(), Dice(dice.jitter_seed(u64::MAX >> 33))), ended.clone());
            calls.push(tokio::spawn(async move {
                let how = call.await;
                ended.send_modify(|calls| *calls += 1);
                how
            }));
        }
        // The wire stays as it is until this many calls have ended; every call ends, whatever the wire is like.
        let enough = dice.jitter_seed(calls.len() as u64 + 1);
        seen.wait_for(|calls| *calls >= enough).await.unwrap();
    }
    // At last more than a small room holds, whatever chance and the machine's speed made of the rest.
    far.set(Wire::Cut);
    for n in 0..10 {
        let executor = executor.clone();
        calls.push(tokio::spawn(async move {
            let failed = executor.execute("p", operation("x"), || async move { Err::<(), _>(Own(n)) }).await;
            failed.map_or_else(HandlerEnd::Badly, |()| HandlerEnd::Well)
        }));
    }
    let mut told: BTreeMap<MessageId, CaptureStatus> = BTreeMap::new();
    let mut given_up = 0;
    for call in calls {
        match call.await.unwrap() {
            HandlerEnd::Well => {}
            HandlerEnd::Withdrawn => given_up += 1,
            HandlerEnd::Badly(failed) => {
                let (CaptureStatus::Stored(id) | CaptureStatus::Buffered(id) | CaptureStatus::Dropped(id)) =
                    failed.capture
                else {
                    panic!("{failed:?}")
                };
                assert!(told.insert(id, failed.capture).is_none(), "one id, two operations");
            }
        }
    }
    far.set(Wire::Whole);
    let state = executor.shutdown(PATIENCE).await;
    assert_eq!((state.buffered, state.bytes, state.since), (0, 0, None), "seed {seed}: {state:?}");

    let letters = all_letters(far.store.as_ref()).await;
    let found: BTreeSet<MessageId> = letters.iter().map(redrive::core::dead_letter::DeadLetter::id).collect();
    assert_eq!(found.len(), letters.len(), "seed {seed}: a letter twice");
    let dropped: BTreeSet<_> = told
        .iter()
        .filter(|(_, kept)| matches!(kept, CaptureStatus::Dropped(_)))
        .map(|(id, _)| *id)
        .collect();
    let kept: BTreeSet<_> = told.keys().filter(|id| !dropped.contains(id)).copied().collect();
    // A caller may go away while its failure is being written: that letter is there, and nobody was told.
    assert!(found.is_superset(&kept), "seed {seed}: {:?} are nowhere", kept.difference(&found));
    assert!(found.is_disjoint(&dropped), "seed {seed}: counted as lost, and kept");
    assert_eq!(state.stored, found.len() as u64, "seed {seed}");
    // To the last one: whoever was given up had either not failed yet, or is kept and nobody was told.
    let failed = told.len() as u64 + given_up - state.withdrawn;
    assert_eq!(state.stored + state.dropped, failed, "seed {seed}: {state:?}");
    let groups = far.store.groups(PageRequest::first(100).into()).await.unwrap().items;
    let total: i64 = groups.iter().map(|group| i64::try_from(group.total).unwrap()).sum();
    assert_eq!(total, i64::try_from(found.len()).unwrap(), "seed {seed}: groups count each once");
    sound(far.store.as_ref()).await;
    state
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_failed_is_nowhere_or_twice() {
    for seed in [1, 2, 3] {
        let state = torture(seed, 10_000).await;
        assert!(state.stored > 0 && state.dropped == 0, "seed {seed}: {state:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_when_there_is_hardly_any_room() {
    for seed in [4, 5] {
        let state = torture(seed, 5).await;
        assert!(state.stored > 0 && state.dropped > 0, "seed {seed}: {state:?}");
    }
}
