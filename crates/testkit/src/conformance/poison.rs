//! Laws of poison: who breaks every worker is set aside in time, who only stood beside it is not, and a cause
//! that hits many is no one's poison.

use super::Stage;
use super::kit::{BACKOFF, failed, new, rules, secs};
use redrive_core::dead_letter::{Act, Status};
use redrive_core::failure::{Category, Reason, Route};
use redrive_core::ids::MessageId;
use redrive_core::lifecycle::State;
use redrive_core::message::Delivery;
use redrive_core::poison::{PoisonPolicy, Release};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{Settle, Settled};
use redrive_core::time::Span;

impl Stage<'_> {
    /// Leases the one message that is due as this worker and fails it.
    async fn fail_as(&self, worker: &str, error: &str) -> Settled {
        let mut taken = self.take_as(worker, "q", 1).await;
        assert_eq!(taken.len(), 1, "one is due for {worker}");
        let settled = self.settle(taken.remove(0).token, failed(error)).await.expect("held");
        self.clock.advance(Span::from_secs(300));
        settled
    }

    /// Whoever holds leases never comes back.
    async fn crash(&self) {
        self.clock.advance(secs(30));
        self.store.reap(100).await.expect("reap answers");
        self.clock.advance(BACKOFF);
    }
}

fn ids(taken: &[Delivery]) -> Vec<MessageId> {
    taken.iter().map(|d| d.message.envelope.id).collect()
}

pub(super) async fn ten_in_a_row_are_poison_also_on_one_worker(stage: &Stage<'_>) {
    stage.set("q", rules(100)).await;
    let id = stage.send(new(1, "q")).await;
    for n in 1..10 {
        let settled = stage.fail_as("w", "Bad").await;
        assert_eq!((settled.state, settled.reason), (State::Scheduled, None), "failure {n}");
    }
    let at = stage.now();
    assert_eq!(stage.fail_as("w", "Bad").await.reason, Some(Reason::Poison));
    let letter = stage.letter(id).await;
    assert_eq!(
        (letter.file.status, letter.file.quarantined_until),
        (Status::Quarantined, Some(at.plus(Span::from_hours(24))))
    );
    assert_eq!((letter.file.category, letter.file.route), (Category::Poison, Route::Poison));
    assert_eq!(letter.message.failed, 10);
    stage.clock.advance(Span::from_hours(24));
    stage.store.reap(100).await.expect("reap answers");
    assert_eq!(stage.letter(id).await.file.status, Status::Review, "a person looks; nothing is deleted");
}

pub(super) async fn five_in_a_row_over_two_workers_are_poison(stage: &Stage<'_>) {
    stage.set("q", rules(100)).await;
    stage.send(new(1, "q")).await;
    for n in 1..5 {
        assert_eq!(stage.fail_as(if n % 2 == 0 { "x" } else { "y" }, "Bad").await.reason, None, "{n}");
    }
    assert_eq!(stage.fail_as("y", "Bad").await.reason, Some(Reason::Poison));
    // Another error in between is another row.
    stage.send(new(2, "q")).await;
    for n in 1..=8 {
        let error = if n == 4 { "Other" } else { "Worse" };
        let worker = if n % 2 == 0 { "x" } else { "y" };
        assert_eq!(stage.fail_as(worker, error).await.reason, None, "failure {n}");
    }
}

pub(super) async fn a_cause_that_hits_many_is_not_their_poison(stage: &Stage<'_>) {
    stage.set("q", rules(12)).await;
    for n in 1..=4 {
        stage.send(new(n, "q")).await;
    }
    for round in 1..=12 {
        let taken = stage.take_as(if round % 2 == 0 { "x" } else { "y" }, "q", 9).await;
        assert_eq!(taken.len(), 4, "round {round}");
        for delivery in taken {
            let settled = stage.settle(delivery.token, failed("Bad")).await.expect("held");
            assert_eq!(settled.reason, (round == 12).then_some(Reason::MaxAttempts), "round {round}");
        }
        stage.clock.advance(Span::from_secs(300));
    }
    for n in 1..=4 {
        let letter = stage.letter(new(n, "q").id).await;
        assert_eq!((letter.file.category, letter.file.status), (Category::Systematic, Status::Pending));
    }
}

pub(super) async fn three_crashes_are_poison_and_the_neighbour_is_not(stage: &Stage<'_>) {
    stage.set("q", rules(100)).await;
    let bad = stage.send(new(1, "q")).await;
    let innocent = stage.send(new(2, "q")).await;
    assert_eq!(stage.take("q", 9).await.len(), 2);
    stage.crash().await;
    let mut crashes = 1;
    while crashes < 3 {
        let taken = stage.take("q", 9).await;
        assert_eq!(taken.len(), 1, "suspects run alone");
        if ids(&taken) == [innocent] {
            stage.settle(taken[0].token, Settle::Ack).await.expect("held");
        } else {
            crashes += 1;
            stage.crash().await;
        }
    }
    let letter = stage.letter(bad).await;
    assert_eq!((letter.file.reason, letter.file.status), (Reason::Poison, Status::Quarantined));
    if let Some(last) = stage.take("q", 9).await.first() {
        assert_eq!(last.message.envelope.id, innocent);
        stage.settle(last.token, Settle::Ack).await.expect("held");
    }
    assert_eq!(stage.counts("q").await.done, 1);
}

pub(super) async fn a_suspect_goes_to_an_idle_worker_and_nothing_beside_it(stage: &Stage<'_>) {
    stage.set("q", rules(100)).await;
    let suspect = stage.send(new(1, "q")).await;
    stage.send(new(2, "other")).await;
    stage.send(new(3, "other")).await;
    stage.take("q", 1).await;
    stage.crash().await;
    stage.take_as("busy", "other", 1).await;
    assert!(stage.take_as("busy", "q", 9).await.is_empty(), "it has something in its hands");
    let alone = stage.take_as("idle", "q", 9).await;
    assert_eq!(ids(&alone), [suspect]);
    assert!(stage.take_as("idle", "other", 9).await.is_empty(), "nothing beside a suspect");
    stage.settle(alone[0].token, Settle::Ack).await.expect("held");
    assert_eq!(stage.take_as("idle", "other", 9).await.len(), 1);
}

pub(super) async fn a_busy_worker_is_emptied_for_a_suspect_that_waits(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { lease: secs(600), ..rules(100) }).await;
    let suspect = stage.send(new(1, "q")).await;
    stage.take("q", 1).await;
    stage.clock.advance(secs(600));
    stage.store.reap(100).await.expect("reap answers");
    for n in 2..=9 {
        stage.send(new(n, "q")).await;
    }
    let mine = stage.take_as("x", "q", 2).await;
    let theirs = stage.take_as("y", "q", 2).await;
    assert_eq!((mine.len(), theirs.len()), (2, 2));
    stage.clock.advance(BACKOFF);
    stage.clock.advance(secs(11));
    assert!(stage.take_as("x", "q", 2).await.is_empty(), "it is being emptied");
    assert_eq!(stage.take_as("y", "q", 1).await.len(), 1, "one worker is enough");
    for delivery in mine {
        stage.settle(delivery.token, Settle::Ack).await.expect("held");
    }
    assert_eq!(ids(&stage.take_as("x", "q", 2).await), [suspect]);
}

pub(super) async fn trap2_a_redrive_forgets_the_crashes(stage: &Stage<'_>) {
    stage.set("q", rules(100)).await;
    let id = stage.send(new(1, "q")).await;
    for _ in 0..3 {
        stage.take("q", 1).await;
        stage.crash().await;
    }
    assert_eq!(stage.letter(id).await.file.reason, Reason::Poison);
    stage.act(id, Act::retry()).await.expect("an explicit retry is allowed");
    stage.send(new(2, "q")).await;
    assert_eq!(stage.take("q", 9).await.len(), 2, "it is no suspect any more");
}

pub(super) async fn a_quarantine_can_end_in_the_queue(stage: &Stage<'_>) {
    let poison = PoisonPolicy { quarantine: secs(60), release: Release::Queue, ..PoisonPolicy::default() };
    stage.set("q", QueuePolicy { poison, ..rules(100) }).await;
    let id = stage.send(new(1, "q")).await;
    for _ in 0..3 {
        stage.take("q", 1).await;
        stage.crash().await;
    }
    stage.clock.advance(secs(60));
    let reaped = stage.store.reap(100).await.expect("reap answers");
    assert_eq!((reaped.released, stage.letter(id).await.file.status), (1, Status::Retrying));
    let again = stage.take_one("q").await;
    assert_eq!((again.message.generation, again.attempt), (2, 1));
}
