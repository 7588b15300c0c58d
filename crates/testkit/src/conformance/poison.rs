//! Laws of poison: a message that breaks every worker is quarantined in time, messages leased alongside it
//! are not, and a cause shared by many messages is not poison.

use super::LawContext;
use super::kit::{BACKOFF, fail, max_attempts, msg, secs};
use redrive_core::dead_letter::{Act, Status};
use redrive_core::failure::{Category, Reason, Route};
use redrive_core::ids::MessageId;
use redrive_core::lifecycle::State;
use redrive_core::message::Delivery;
use redrive_core::poison::{PoisonPolicy, Release};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{Settle, Settled};
use redrive_core::time::Span;

impl LawContext<'_> {
    /// Leases the only message that is due, as this worker, and fails it.
    async fn fail_as(&self, worker: &str, error: &str) -> Settled {
        let mut taken = self.lease_as(worker, "q", 1).await;
        assert_eq!(taken.len(), 1, "one is due for {worker}");
        let settled = self.settle(taken.remove(0).token, fail(error)).await.expect("held");
        self.clock.advance(Span::from_secs(300));
        settled
    }

    /// Lets every held lease expire, as if the workers had crashed.
    async fn crash(&self) {
        self.clock.advance(secs(30));
        self.store.reap(100).await.expect("reap succeeds");
        self.clock.advance(BACKOFF);
    }
}

fn ids(taken: &[Delivery]) -> Vec<MessageId> {
    taken.iter().map(|d| d.message.envelope.id).collect()
}

pub(super) async fn ten_failures_in_a_row_are_poison_even_on_one_worker(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(100)).await;
    let id = ctx.send(msg(1, "q")).await;
    for n in 1..10 {
        let settled = ctx.fail_as("w", "Bad").await;
        assert_eq!((settled.state, settled.reason), (State::Scheduled, None), "failure {n}");
    }
    let at = ctx.now();
    assert_eq!(ctx.fail_as("w", "Bad").await.reason, Some(Reason::Poison));
    let letter = ctx.letter(id).await;
    assert_eq!(
        (letter.record.status, letter.record.quarantined_until),
        (Status::Quarantined, Some(at.plus(Span::from_hours(24))))
    );
    assert_eq!((letter.record.category, letter.record.route), (Category::Poison, Route::Poison));
    assert_eq!(letter.message.failed, 10);
    ctx.clock.advance(Span::from_hours(24));
    ctx.store.reap(100).await.expect("reap succeeds");
    assert_eq!(ctx.letter(id).await.record.status, Status::Review, "sent to review, not deleted");
}

pub(super) async fn five_failures_in_a_row_over_two_workers_are_poison(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(100)).await;
    ctx.send(msg(1, "q")).await;
    for n in 1..5 {
        assert_eq!(ctx.fail_as(if n % 2 == 0 { "x" } else { "y" }, "Bad").await.reason, None, "{n}");
    }
    assert_eq!(ctx.fail_as("y", "Bad").await.reason, Some(Reason::Poison));
    // A different error in between starts a new row.
    ctx.send(msg(2, "q")).await;
    for n in 1..=8 {
        let error = if n == 4 { "Other" } else { "Worse" };
        let worker = if n % 2 == 0 { "x" } else { "y" };
        assert_eq!(ctx.fail_as(worker, error).await.reason, None, "failure {n}");
    }
}

pub(super) async fn a_cause_shared_by_many_messages_is_not_poison(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(12)).await;
    for n in 1..=4 {
        ctx.send(msg(n, "q")).await;
    }
    for round in 1..=12 {
        let taken = ctx.lease_as(if round % 2 == 0 { "x" } else { "y" }, "q", 9).await;
        assert_eq!(taken.len(), 4, "round {round}");
        for delivery in taken {
            let settled = ctx.settle(delivery.token, fail("Bad")).await.expect("held");
            assert_eq!(settled.reason, (round == 12).then_some(Reason::MaxAttempts), "round {round}");
        }
        ctx.clock.advance(Span::from_secs(300));
    }
    for n in 1..=4 {
        let letter = ctx.letter(msg(n, "q").id).await;
        assert_eq!((letter.record.category, letter.record.status), (Category::Systematic, Status::Pending));
    }
}

pub(super) async fn three_crashes_are_poison_and_messages_leased_alongside_are_not(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(100)).await;
    let bad = ctx.send(msg(1, "q")).await;
    let innocent = ctx.send(msg(2, "q")).await;
    assert_eq!(ctx.lease("q", 9).await.len(), 2);
    ctx.crash().await;
    let mut crashes = 1;
    while crashes < 3 {
        let taken = ctx.lease("q", 9).await;
        assert_eq!(taken.len(), 1, "suspects run alone");
        if ids(&taken) == [innocent] {
            ctx.settle(taken[0].token, Settle::Ack).await.expect("held");
        } else {
            crashes += 1;
            ctx.crash().await;
        }
    }
    let letter = ctx.letter(bad).await;
    assert_eq!((letter.record.reason, letter.record.status), (Reason::Poison, Status::Quarantined));
    if let Some(last) = ctx.lease("q", 9).await.first() {
        assert_eq!(last.message.envelope.id, innocent);
        ctx.settle(last.token, Settle::Ack).await.expect("held");
    }
    assert_eq!(ctx.counts("q").await.done, 1);
}

pub(super) async fn a_suspect_is_leased_alone_to_an_idle_worker(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(100)).await;
    let suspect = ctx.send(msg(1, "q")).await;
    ctx.send(msg(2, "other")).await;
    ctx.send(msg(3, "other")).await;
    ctx.lease("q", 1).await;
    ctx.crash().await;
    ctx.lease_as("busy", "other", 1).await;
    assert!(ctx.lease_as("busy", "q", 9).await.is_empty(), "a busy worker gets no suspect");
    let alone = ctx.lease_as("idle", "q", 9).await;
    assert_eq!(ids(&alone), [suspect]);
    assert!(ctx.lease_as("idle", "other", 9).await.is_empty(), "nothing is leased alongside a suspect");
    ctx.settle(alone[0].token, Settle::Ack).await.expect("held");
    assert_eq!(ctx.lease_as("idle", "other", 9).await.len(), 1);
}

pub(super) async fn a_busy_worker_is_drained_for_a_waiting_suspect(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { lease: secs(600), ..max_attempts(100) }).await;
    let suspect = ctx.send(msg(1, "q")).await;
    ctx.lease("q", 1).await;
    ctx.clock.advance(secs(600));
    ctx.store.reap(100).await.expect("reap succeeds");
    for n in 2..=9 {
        ctx.send(msg(n, "q")).await;
    }
    let mine = ctx.lease_as("x", "q", 2).await;
    let theirs = ctx.lease_as("y", "q", 2).await;
    assert_eq!((mine.len(), theirs.len()), (2, 2));
    ctx.clock.advance(BACKOFF);
    ctx.clock.advance(secs(11));
    assert!(ctx.lease_as("x", "q", 2).await.is_empty(), "the worker is being drained");
    assert_eq!(ctx.lease_as("y", "q", 1).await.len(), 1, "only one worker is drained");
    for delivery in mine {
        ctx.settle(delivery.token, Settle::Ack).await.expect("held");
    }
    assert_eq!(ids(&ctx.lease_as("x", "q", 2).await), [suspect]);
}

pub(super) async fn trap2_a_redrive_resets_the_crash_count(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(100)).await;
    let id = ctx.send(msg(1, "q")).await;
    for _ in 0..3 {
        ctx.lease("q", 1).await;
        ctx.crash().await;
    }
    assert_eq!(ctx.letter(id).await.record.reason, Reason::Poison);
    ctx.act(id, Act::retry()).await.expect("an explicit retry is allowed");
    ctx.send(msg(2, "q")).await;
    assert_eq!(ctx.lease("q", 9).await.len(), 2, "it is not a suspect any more");
}

pub(super) async fn a_quarantine_can_end_in_the_queue(ctx: &LawContext<'_>) {
    let poison = PoisonPolicy { quarantine: secs(60), release: Release::Queue, ..PoisonPolicy::default() };
    ctx.configure("q", QueuePolicy { poison, ..max_attempts(100) }).await;
    let id = ctx.send(msg(1, "q")).await;
    for _ in 0..3 {
        ctx.lease("q", 1).await;
        ctx.crash().await;
    }
    ctx.clock.advance(secs(60));
    let reaped = ctx.store.reap(100).await.expect("reap succeeds");
    assert_eq!((reaped.released, ctx.letter(id).await.record.status), (1, Status::Retrying));
    let again = ctx.lease_one("q").await;
    assert_eq!((again.message.generation, again.attempt), (2, 1));
}
