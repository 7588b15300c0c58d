//! Laws of acts on one letter: redriving it to another queue, pulling that back, purging and restoring it,
//! and annotating it. At every step it is counted in exactly one place (I11).

use super::LawContext;
use super::kit::{fail, fail_permanently, max_attempts, msg, operator, q, refused, refused_field, secs};
use crate::ids::message_id;
use redrive_core::audit::fingerprint;
use redrive_core::breaker::{BreakerKey, BreakerPolicy};
use redrive_core::dead_letter::{
    Act, ActRequest, Actor, DeadLetter, LetterRecord, Note, RedriveRecord, Retry, Status,
};
use redrive_core::error::Refusal;
use redrive_core::failure::Reason;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::message::{NewMessage, Priority};
use redrive_core::operation::PreviewRequest;
use redrive_core::poison::{PoisonPolicy, Release};
use redrive_core::policy::{OnDead, QueuePolicy};
use redrive_core::store::{Enqueued, KeyState, LetterLeaseRequest, LetterState, Reaped, Settle};
use redrive_core::time::{Span, Time};
use std::collections::BTreeSet;

const EMPTY: Counts = Counts {
    enqueued: 0,
    waiting: 0,
    leased: 0,
    dead: 0,
    done: 0,
    cancelled: 0,
    expired: 0,
    purged: 0,
    bytes: 0,
};

fn retry_to(queue: &str) -> Act {
    Act::Retry(Retry { queue: Some(q(queue)), ..Retry::default() })
}

fn forced_retry() -> Act {
    Act::Retry(Retry { force: true, ..Retry::default() })
}

fn with_key(n: u64, queue: &str) -> NewMessage {
    NewMessage { key: Some("k".into()), ..msg(n, queue) }
}

impl LawContext<'_> {
    async fn key_state(&self, queue: &str) -> Option<KeyState> {
        self.store.key_state(q(queue), "k".into()).await.expect("key_state succeeds")
    }

    async fn letter_status(&self, id: MessageId) -> Status {
        self.letter(id).await.record.status
    }

    async fn lease_letter_ids(&self, dlq: &str) -> Vec<MessageId> {
        let request = LetterLeaseRequest { dlq: q(dlq), max: 10, lease_for: None, worker: "c".into() };
        let leased = self.store.lease_letters(request).await.expect("lease_letters succeeds");
        leased.iter().map(|d| d.token.id).collect()
    }
}

pub(super) async fn trap1_a_redrive_to_another_queue_follows_its_policy(ctx: &LawContext<'_>) {
    ctx.configure("a", max_attempts(1)).await;
    ctx.configure("b", QueuePolicy { dlq: Some(q("bin")), lease: secs(7), ..max_attempts(2) }).await;
    let id = ctx.dead_letter(msg(1, "a"), "Bad").await.id();
    let group = ctx.letter(id).await.group;
    let state = ctx.act(id, retry_to("b")).await;
    assert_eq!(state, Ok(LetterState { id, status: Some(Status::Retrying), version: 2 }));
    let letter = ctx.letter(id).await;
    assert_eq!((letter.message.envelope.queue, letter.record.dlq), (q("a"), q("a-dlq")), "not moved");
    let sent = RedriveRecord { at: ctx.now(), by: "ada".into(), to: Some(q("b")) };
    assert_eq!(letter.record.redriven, Some(sent.clone()));
    let live = ctx.message(id).await.envelope;
    assert_eq!((live.queue, live.origin, live.max_attempts), (q("b"), Some(q("a")), Some(2)));
    assert_eq!(ctx.counts("a").await, EMPTY, "it left this queue");
    assert_eq!(ctx.counts("b").await, Counts { enqueued: 1, waiting: 1, bytes: 9, ..EMPTY });
    let taken = ctx.lease_one("b").await;
    assert_eq!(taken.message.lease_expires_at, Some(ctx.now().plus(secs(7))), "the other queue's lease");
    ctx.settle(taken.token, fail("Bad")).await.expect("held");
    ctx.clock.advance(secs(10));
    let taken = ctx.lease_one("b").await;
    assert_eq!(taken.attempt, 2, "and its attempt limit");
    let settled = ctx.settle(taken.token, fail("Worse")).await.expect("held");
    assert_eq!(settled.reason, Some(Reason::MaxAttempts));
    let letter = ctx.letter(id).await;
    assert_eq!(
        (letter.message.envelope.queue, letter.record.dlq),
        (q("b"), q("bin")),
        "stored where it died"
    );
    assert_eq!(letter.message.envelope.origin, Some(q("a")));
    assert_eq!((letter.record.status, letter.record.redrives), (Status::Pending, 1));
    assert_eq!(letter.record.redriven, Some(sent), "the record keeps the redrive");
    assert_eq!(ctx.counts("a").await, EMPTY);
    assert_eq!(ctx.counts("b").await, Counts { enqueued: 1, dead: 1, ..EMPTY });
    let group = ctx.store.group(group).await.expect("known");
    assert_eq!((group.open, group.total), (0, 1), "it is in the other group now");
    // And back to its first queue.
    ctx.act(id, retry_to("a")).await.expect("pending");
    assert_eq!(ctx.message(id).await.envelope.origin, None);
    assert_eq!(ctx.counts("b").await, EMPTY);
    ctx.settle(ctx.lease_one("a").await.token, Settle::Ack).await.expect("held");
    assert_eq!(ctx.letter(id).await.message.envelope.queue, q("b"), "success closes it in place");
    assert_eq!((ctx.counts("a").await, ctx.counts("b").await.dead), (EMPTY, 1));
}

pub(super) async fn success_in_another_queue_closes_the_letter_in_its_own(ctx: &LawContext<'_>) {
    ctx.configure("a", QueuePolicy { retention: secs(60), ..max_attempts(1) }).await;
    ctx.configure("b", QueuePolicy { retention: secs(5), ..max_attempts(1) }).await;
    let id = ctx.dead_letter(with_key(1, "a"), "Bad").await.id();
    ctx.act(id, retry_to("b")).await.expect("pending");
    assert_eq!(
        ctx.key_state("a").await,
        Some(KeyState { id, state: State::Ready }),
        "the key stays in its queue"
    );
    assert_eq!(ctx.key_state("b").await, None);
    ctx.settle(ctx.lease_one("b").await.token, Settle::Ack).await.expect("held");
    let record = ctx.letter(id).await.record;
    assert_eq!((record.status, record.resolution.as_deref()), (Status::Resolved, Some("retried")));
    assert_eq!(record.expires_at, Some(ctx.now().plus(secs(60))), "its own queue's retention");
    assert_eq!(ctx.counts("a").await, Counts { enqueued: 1, dead: 1, ..EMPTY });
    assert_eq!(ctx.counts("b").await, EMPTY);
    assert_eq!(ctx.key_state("a").await, Some(KeyState { id, state: State::Done }));
    let again = ctx.try_send(with_key(1, "a")).await;
    assert_eq!(again, Ok(Enqueued { id, state: State::Done, duplicate: true }));
}

pub(super) async fn a_letter_that_succeeded_keeps_its_counters_and_can_die_again(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(2)).await;
    let id = ctx.send(msg(1, "q")).await;
    ctx.settle(ctx.lease_one("q").await.token, fail_permanently("Bad")).await.expect("held");
    ctx.act(id, Act::retry()).await.expect("pending");
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    ctx.clock.advance(secs(10));
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    let message = ctx.letter(id).await.message;
    assert_eq!(
        (message.deliveries, message.generation, message.failed),
        (3, 2, 2),
        "as at the end of its last run"
    );
    ctx.act(id, Act::Reopen).await.expect("resolved");
    ctx.act(id, Act::retry()).await.expect("pending");
    ctx.settle(ctx.lease_one("q").await.token, fail_permanently("Bad")).await.expect("held");
    let message = ctx.letter(id).await.message;
    assert_eq!((message.deliveries, message.generation, message.failed), (4, 3, 3));
    let attempts: Vec<_> = message.failures.iter().map(|f| (f.generation, f.attempt)).collect();
    assert_eq!(attempts, [(1, 1), (2, 1), (3, 1)], "each failure is numbered");
}

pub(super) async fn a_retry_can_change_priority_and_attempts(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let (priority, max_attempts) = (Some(Priority::Critical), Some(3));
    ctx.act(id, Act::Retry(Retry { priority, max_attempts, ..Retry::default() })).await.expect("pending");
    for attempt in 1..=3 {
        let taken = ctx.lease_one("q").await;
        let envelope = &taken.message.envelope;
        assert_eq!(
            (taken.attempt, envelope.priority, envelope.max_attempts),
            (attempt, Priority::Critical, Some(3))
        );
        ctx.settle(taken.token, fail("Bad")).await.expect("held");
        ctx.clock.advance(secs(10));
    }
    let letter = ctx.letter(id).await;
    assert_eq!((letter.record.status, letter.message.attempts), (Status::Pending, 3));
    assert_eq!(letter.message.envelope.priority, Priority::Critical, "the changed priority stays");
    for absurd in [0, limits::ATTEMPTS_MAX + 1] {
        let act = Act::Retry(Retry { max_attempts: Some(absurd), ..Retry::default() });
        assert_eq!(refused_field(ctx.act(id, act).await.expect_err("absurd")), "max_attempts");
    }
}

/// A retry resets counters, keeps the identity and continues the history (gbrain, langwatch, good_job, oban).
pub(super) async fn trap2_trap3_a_retry_resets_counters_and_keeps_the_identity(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(2)).await;
    let deadline = Some(ctx.now().plus(secs(60)));
    let id = ctx.send(NewMessage { deadline, ttl: Some(secs(50)), ..msg(1, "q") }).await;
    for _ in 0..2 {
        ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
        ctx.clock.advance(secs(10));
    }
    let before = ctx.letter(id).await;
    ctx.clock.advance(secs(3_600));
    ctx.act(id, Act::retry()).await.expect("pending");
    let taken = ctx.lease_one("q").await;
    assert_eq!((taken.attempt, taken.message.deliveries, taken.message.generation), (1, 3, 2));
    let (was, is) = (&before.message.envelope, &taken.message.envelope);
    assert_eq!((is.id, is.seq, is.enqueued_at), (was.id, was.seq, was.enqueued_at), "the same message");
    ctx.settle(taken.token, fail("Bad")).await.expect("held");
    assert!(ctx.message(id).await.ready_at > ctx.now(), "retried past its old deadline");
    ctx.clock.advance(secs(10));
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    let letter = ctx.letter(id).await;
    let numbered: BTreeSet<_> = letter.message.failures.iter().map(|f| (f.generation, f.attempt)).collect();
    assert_eq!(numbered, [(1, 1), (1, 2), (2, 1), (2, 2)].into(), "attempt numbers are unique");
    assert_eq!(letter.record.first_failed_at, before.record.first_failed_at);
}

pub(super) async fn i37_the_destination_must_be_a_queue_with_room(ctx: &LawContext<'_>) {
    ctx.configure("a", QueuePolicy { max_messages: Some(1), ..max_attempts(1) }).await;
    ctx.configure("b", QueuePolicy { max_bytes: Some(5), ..max_attempts(1) }).await;
    let id = ctx.dead_letter(msg(1, "a"), "Bad").await.id();
    ctx.send(msg(2, "a")).await;
    let before = ctx.view().await;
    let full = |queue: &str, limit: &str, allowed, actual| Refusal::QueueFull {
        queue: q(queue),
        limit: limit.into(),
        allowed,
        actual,
    };
    assert_eq!(ctx.act(id, Act::retry()).await, Err(full("a", "max_messages", 1, 1)), "own queue too");
    let never = ctx.act(id, retry_to("b")).await;
    assert!(
        matches!(&never, Err(Refusal::Invalid { field, .. }) if field == "payload"),
        "a payload that can never fit is invalid: {never:?}"
    );
    assert_eq!(ctx.act(id, retry_to("nowhere")).await, Err(Refusal::NoSuchQueue { queue: q("nowhere") }));
    let dlq = Refusal::IsDlq { queue: q("b-dlq"), owner: q("b") };
    assert_eq!(ctx.act(id, retry_to("b-dlq")).await, Err(dlq));
    assert_eq!(ctx.act(id, forced_retry()).await, Err(full("a", "max_messages", 1, 1)), "even by force");
    assert_eq!(ctx.view().await, before, "a refusal changes nothing");
    ctx.settle(ctx.lease_one("a").await.token, Settle::Ack).await.expect("held");
    ctx.act(id, Act::retry()).await.expect("the queue has room");
}

pub(super) async fn i28_a_redrive_to_another_queue_obeys_its_breaker(ctx: &LawContext<'_>) {
    ctx.configure("a", max_attempts(1)).await;
    let breaker = BreakerPolicy { failures: 1, ..BreakerPolicy::new(BreakerKey::Header("host".into())) };
    ctx.configure("b", QueuePolicy { breaker: Some(breaker), ..max_attempts(9) }).await;
    let id = ctx
        .dead_letter(NewMessage { headers: [("host".into(), "x".into())].into(), ..msg(1, "a") }, "Bad")
        .await
        .id();
    ctx.act(id, retry_to("b")).await.expect("pending");
    let breakers = ctx.store.breakers().await.expect("breakers succeeds");
    assert!(breakers.is_empty(), "{breakers:?}");
    ctx.settle(ctx.lease_one("b").await.token, fail("ConnectionError")).await.expect("held");
    let breakers = ctx.store.breakers().await.expect("breakers succeeds");
    assert_eq!(breakers.iter().map(|b| (b.queue.as_str(), b.key.as_str())).collect::<Vec<_>>(), [("b", "x")]);
}

pub(super) async fn i30_a_held_key_is_freed_when_its_letter_dies_in_another_queue(ctx: &LawContext<'_>) {
    let hold = QueuePolicy { on_dead: OnDead::Hold, ..max_attempts(1) };
    ctx.configure("a", hold.clone()).await;
    ctx.configure("b", hold).await;
    let ordered = |n| NewMessage { ordering_key: Some("o".into()), ..msg(n, "a") };
    let id = ctx.dead_letter(ordered(1), "Bad").await.id();
    ctx.send(ordered(2)).await;
    assert_eq!(ctx.lease("a", 9).await.len(), 0, "the letter holds the key");
    ctx.act(id, retry_to("b")).await.expect("pending");
    assert_eq!(ctx.lease("a", 9).await.len(), 0, "until it is closed");
    ctx.settle(ctx.lease_one("b").await.token, fail("Bad")).await.expect("held");
    let next = ctx.lease_one("a").await;
    assert_eq!(next.message.envelope.id, message_id(2), "the key is held in the other queue now");
    ctx.settle(next.token, Settle::Ack).await.expect("held");
    ctx.send(NewMessage { ordering_key: Some("o".into()), ..msg(3, "b") }).await;
    assert_eq!(ctx.lease("b", 9).await.len(), 0, "the other queue is blocked");
    ctx.act(id, Act::Resolve).await.expect("pending");
    assert_eq!(ctx.lease("b", 9).await.len(), 1);
}

pub(super) async fn i41_work_done_under_its_key_is_not_run_again(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let id = ctx.dead_letter(with_key(1, "q"), "Bad").await.id();
    // After the key is forgotten, another message does the work.
    ctx.clock.advance(limits::KEY_WINDOW);
    let other = ctx.send(with_key(2, "q")).await;
    let in_use = Refusal::KeyInUse { id, key: "k".into(), by: other };
    assert_eq!(ctx.act(id, Act::retry()).await, Err(in_use.clone()), "while the other waits");
    let taken = ctx.lease_one("q").await;
    assert_eq!(ctx.act(id, Act::retry()).await, Err(in_use), "while the other is leased");
    ctx.settle(taken.token, Settle::Ack).await.expect("held");
    let actor = Actor { reason: Some("again".into()), ..operator() };
    let request = ActRequest { id, act: Act::retry(), actor, expected_version: Some(1) };
    let closed = ctx.act_as(request).await;
    assert_eq!(closed, Ok(LetterState { id, status: Some(Status::Resolved), version: 2 }));
    let record = ctx.letter(id).await.record;
    assert_eq!((record.resolution.as_deref(), record.redrives), (Some("already done"), 0));
    assert_eq!((record.closed_at, record.closed_by.as_deref()), (Some(ctx.now()), Some("ada")));
    assert_eq!(record.notes, [Note { at: ctx.now(), by: "ada".into(), text: "again".into() }]);
    assert_eq!(ctx.lease("q", 9).await, [], "nothing runs");
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 2, dead: 1, done: 1, ..EMPTY });
    // Its own success counts as well, and a forced retry runs it anyway.
    ctx.act(id, Act::Reopen).await.expect("closed");
    ctx.act(id, forced_retry()).await.expect("pending");
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    assert_eq!(ctx.letter(id).await.record.resolution.as_deref(), Some("retried"));
    let own = ctx.dead_letter(NewMessage { key: Some("own".into()), ..msg(3, "q") }, "Bad").await.id();
    ctx.act(own, Act::retry()).await.expect("pending");
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    ctx.act(own, Act::Reopen).await.expect("closed");
    assert_eq!(ctx.act(own, Act::retry()).await.map(|s| s.status), Ok(Some(Status::Resolved)));
    assert_eq!(ctx.lease("q", 9).await, []);
}

pub(super) async fn a_letter_redriven_too_often_goes_to_review(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { max_redrives: 2, ..max_attempts(1) }).await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    for status in [Status::Pending, Status::Review] {
        ctx.act(id, Act::retry()).await.expect("below the limit");
        ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
        assert_eq!(ctx.letter_status(id).await, status);
    }
    let record = ctx.letter(id).await.record;
    assert_eq!((record.review_requested_by.as_deref(), record.redrives), (Some("system"), 2));
    let often = Refusal::RedrivenTooOften { id, redrives: 2, allowed: 2 };
    assert_eq!(ctx.act(id, Act::retry()).await, Err(often));
    ctx.act(id, forced_retry()).await.expect("forced");
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    assert_eq!((ctx.letter_status(id).await, ctx.letter(id).await.record.redrives), (Status::Review, 3));
    // A queue that releases poison by itself must cope with the refusal.
    let poison = PoisonPolicy { release: Release::Queue, ..PoisonPolicy::default() };
    ctx.configure("q", QueuePolicy { max_redrives: 2, max_messages: Some(1), poison, ..max_attempts(1) })
        .await;
    ctx.act(id, Act::Quarantine { until: ctx.now().plus(secs(5)) }).await.expect("under review");
    ctx.clock.advance(secs(5));
    assert_eq!(ctx.store.reap(10).await, Ok(Reaped { released: 1, ..Reaped::default() }));
    assert_eq!(ctx.letter_status(id).await, Status::Review);
}

/// The letter before the redrive, except for the fields that record that something happened to it.
fn expected_pulled_back(before: &DeadLetter, now: &DeadLetter) -> DeadLetter {
    let mut was = before.clone();
    was.message.updated_at = now.message.updated_at;
    was.record.version = now.record.version;
    was.record.available_at = now.record.available_at;
    was.record.history.clone_from(&now.record.history);
    was
}

pub(super) async fn i37_a_redrive_can_be_pulled_back_until_it_is_leased(ctx: &LawContext<'_>) {
    ctx.configure("a", max_attempts(1)).await;
    ctx.configure("b", max_attempts(3)).await;
    for (n, act) in [(1, Act::retry()), (2, retry_to("b")), (3, Act::retry_at(ctx.now().plus(secs(60))))] {
        let before = ctx.dead_letter(with_key(n, "a"), "Bad").await;
        let (id, counts) = (before.id(), ctx.counts("a").await);
        ctx.act(id, act).await.expect("pending");
        let back = ctx.act(id, Act::PullBack).await;
        assert_eq!(back, Ok(LetterState { id, status: Some(Status::Pending), version: 3 }));
        let letter = ctx.letter(id).await;
        assert_eq!(letter, expected_pulled_back(&before, &letter), "as before the redrive");
        assert_eq!((ctx.counts("a").await, ctx.counts("b").await), (counts, EMPTY));
        assert_eq!(refused(ctx.store.message(id).await), Refusal::NoSuchMessage { id });
        assert_eq!(ctx.key_state("a").await, Some(KeyState { id, state: State::Dead }));
        ctx.clock.advance(limits::KEY_WINDOW);
    }
    let id = message_id(2);
    ctx.act(id, retry_to("b")).await.expect("pending");
    let taken = ctx.lease_one("b").await;
    assert_eq!((taken.message.generation, taken.attempt), (2, 1), "generation 2 again");
    let before = ctx.view().await;
    let leased = Refusal::WrongState { id, state: State::Leased, command: "pull back".into() };
    assert_eq!(ctx.act(id, Act::PullBack).await, Err(leased));
    assert_eq!(ctx.view().await, before);
    // After a release nobody has worked on it. The lease stays counted: it is the fencing number.
    ctx.settle(taken.token, Settle::Release).await.expect("held");
    ctx.act(id, Act::PullBack).await.expect("no attempt was used");
    assert_eq!(ctx.letter(id).await.message.deliveries, 2);
    ctx.act(id, retry_to("b")).await.expect("pending");
    ctx.settle(ctx.lease_one("b").await.token, fail("Bad")).await.expect("held");
    let waits = ctx.act(id, Act::PullBack).await;
    assert!(matches!(waits, Err(Refusal::WrongState { .. })), "an attempt was used: {waits:?}");
}

pub(super) async fn a_purged_letter_can_be_restored_for_a_day(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let id = ctx.dead_letter(with_key(1, "q"), "Bad").await.id();
    let actor = Actor { reason: Some("nonsense".into()), ..operator() };
    let abandon = ActRequest { id, act: Act::Abandon, actor, expected_version: None };
    ctx.act_as(abandon).await.expect("pending");
    let closed = ctx.letter(id).await;
    ctx.clock.advance(secs(10));
    let purged_at = ctx.now();
    ctx.act(id, Act::Purge).await.expect("closed");
    let purged = ctx.letter(id).await;
    let record = LetterRecord {
        status: Status::Purged,
        purged_from: Some(Status::Abandoned),
        expires_at: Some(purged_at.plus(limits::PURGE_UNDO)),
        version: 3,
        history: purged.record.history.clone(),
        ..closed.record.clone()
    };
    assert_eq!(purged, DeadLetter { record, ..closed.clone() }, "nothing is lost yet");
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 1, purged: 1, ..EMPTY }, "purged");
    for (filter, met) in [
        ("", 0),
        ("queue:q", 0),
        ("not status:pending", 0),
        ("status!=pending", 0),
        ("status:purged", 1),
        ("status:abandoned,purged", 1),
        ("status:purged or queue:z", 1),
    ] {
        assert_eq!(ctx.letters(filter).await.len(), met, "{filter:?}");
        let filter = redrive_core::filter::Filter::parse(filter).expect("a filter");
        let look = PreviewRequest::new(Act::Unpurge, filter, 5);
        let preview = ctx.store.preview(look).await.expect("preview succeeds");
        assert_eq!(preview.count, met as u64, "{}", preview.count);
    }
    assert_eq!(ctx.key_state("q").await, Some(KeyState { id, state: State::Purged }));
    let again = ctx.try_send(msg(1, "q")).await;
    assert_eq!(again, Ok(Enqueued { id, state: State::Purged, duplicate: true }), "its id is still taken");
    ctx.clock.set(purged_at.plus(limits::PURGE_UNDO).minus(Span::from_millis(1)));
    assert_eq!(ctx.store.reap(10).await.expect("succeeds").letters_gone, 0);
    ctx.act(id, Act::Unpurge).await.expect("in time");
    let back = ctx.letter(id).await;
    assert_eq!(back, expected_pulled_back(&closed, &back));
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 1, dead: 1, ..EMPTY });
}

pub(super) async fn trap11_a_purged_letter_is_removed_after_its_time(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { retention: secs(60), ..max_attempts(1) }).await;
    let mut ids = Vec::new();
    for (n, act) in [(1, Act::Resolve), (2, Act::Abandon), (3, Act::Resolve)] {
        let id = ctx.dead_letter(NewMessage { key: Some(format!("k{n}")), ..msg(n, "q") }, "Bad").await.id();
        ctx.act(id, act).await.expect("pending");
        ids.push(id);
    }
    ctx.act(ids[0], Act::Purge).await.expect("closed");
    ctx.act(ids[1], Act::Purge).await.expect("closed");
    ctx.clock.advance(secs(60));
    let retention = ctx.store.reap(10).await.expect("succeeds");
    assert_eq!((retention.letters_expired, retention.letters_gone), (1, 0), "the closed one expires");
    ctx.act(ids[0], Act::Unpurge).await.expect("in time");
    let kept = ctx.letter(ids[0]).await.record.expires_at;
    assert_eq!(kept, Some(ctx.now().plus(limits::PURGE_UNDO)), "restored for another day");
    ctx.act(ids[0], Act::Purge).await.expect("closed");
    ctx.clock.advance(limits::PURGE_UNDO);
    let late = ctx.act(ids[0], Act::Unpurge).await;
    assert!(matches!(late, Err(Refusal::WrongStatus { .. })), "{late:?}");
    assert_eq!(ctx.store.reap(10).await.expect("succeeds").letters_gone, 2, "both are removed");
    for id in ids {
        assert_eq!(refused(ctx.store.letter(id).await), Refusal::NoSuchLetter { id });
    }
    assert_eq!(ctx.letters("status:purged").await, []);
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 3, purged: 3, ..EMPTY }, "counted once each");
    assert!(ctx.view().await.comparable().dlqs[0].by_status.is_empty());
    let again = ctx.try_send(msg(2, "q")).await.expect("accepted");
    assert!(!again.duplicate, "no trace is left");
}

pub(super) async fn a_held_letter_never_expires(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { retention: secs(60), open_ttl: Some(secs(100)), ..max_attempts(1) })
        .await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    ctx.act(id, Act::Hold { on: true }).await.expect("any status");
    assert_eq!(ctx.letter(id).await.record.expires_at, None);
    ctx.clock.advance(secs(3_600));
    assert!(ctx.store.reap(10).await.expect("succeeds").is_idle(), "open letters do not expire");
    ctx.act(id, Act::retry()).await.expect("pending");
    ctx.settle(ctx.lease_one("q").await.token, fail_permanently("Bad")).await.expect("held");
    assert_eq!(ctx.letter(id).await.record.expires_at, None, "also after another death");
    ctx.act(id, Act::Resolve).await.expect("pending");
    ctx.clock.advance(secs(3_600));
    assert!(ctx.store.reap(10).await.expect("succeeds").is_idle(), "closed letters do not expire");
    let refusal = ctx.act(id, Act::Purge).await.expect_err("the letter is held");
    assert!(refusal.to_string().contains("unhold"), "{refusal}");
    ctx.act(id, Act::Hold { on: false }).await.expect("any status");
    let expires = ctx.letter(id).await.record.expires_at;
    assert_eq!(expires, Some(ctx.now().plus(limits::PURGE_UNDO)), "expires after a grace period");
    ctx.clock.advance(limits::PURGE_UNDO);
    assert_eq!(ctx.store.reap(10).await.expect("succeeds").letters_expired, 1);
}

pub(super) async fn a_snoozed_letter_is_hidden_from_consumers(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let until = ctx.now().plus(secs(60));
    for n in 1..=3 {
        let id = ctx.dead_letter(msg(n, "q"), "Bad").await.id();
        ctx.act(id, Act::Snooze { until }).await.expect("pending");
    }
    assert_eq!(ctx.letter(message_id(1)).await.record.snoozed_until, Some(until));
    assert_eq!(ctx.lease_letter_ids("q-dlq").await, []);
    assert_eq!((ctx.letters("snoozed:yes").await.len(), ctx.letters("snoozed:no").await.len()), (3, 0));
    // Another act, or the end of the snooze, makes it visible again.
    ctx.act(message_id(1), Act::Review).await.expect("pending");
    ctx.act(message_id(1), Act::Release).await.expect("under review");
    ctx.act(message_id(2), Act::Snooze { until: ctx.now() }).await.expect("pending");
    assert_eq!(ctx.lease_letter_ids("q-dlq").await, [message_id(1), message_id(2)]);
    ctx.clock.set(until);
    assert_eq!(ctx.lease_letter_ids("q-dlq").await, [message_id(3)]);
    assert_eq!(ctx.letters("snoozed:yes").await.len(), 0);
    let absurd = Act::Snooze { until: ctx.now().plus(Span::from_days(4_000)) };
    ctx.clock.advance(secs(600));
    assert_eq!(refused_field(ctx.act(message_id(3), absurd).await.expect_err("absurd")), "until");
}

pub(super) async fn owners_and_labels_stay_with_the_letter(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let tagged = NewMessage { tags: ["vip".to_owned()].into(), ..msg(1, "q") };
    let id = ctx.dead_letter(tagged, "Bad").await.id();
    let label = |add: &[&str], remove: &[&str]| {
        let set = |all: &[&str]| all.iter().map(|l| (*l).to_owned()).collect();
        Act::Label { add: set(add), remove: set(remove) }
    };
    ctx.act(id, Act::Assign { to: Some("eve".into()) }).await.expect("any status");
    ctx.act(id, label(&["bug-7", "seen"], &[])).await.expect("any status");
    ctx.act(id, label(&["late"], &["seen", "never"])).await.expect("any status");
    let labels = BTreeSet::from(["bug-7".to_owned(), "late".to_owned()]);
    let record = ctx.letter(id).await.record;
    assert_eq!((record.owner.as_deref(), &record.labels), (Some("eve"), &labels));
    for filter in ["tag:bug-7", "tag:vip", "owner:eve", "held:no"] {
        assert_eq!(ctx.letters(filter).await.len(), 1, "{filter}");
    }
    assert_eq!(ctx.letters("tag:seen").await.len() + ctx.letters("owner:bob").await.len(), 0);
    ctx.act(id, Act::retry()).await.expect("pending");
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    let record = ctx.letter(id).await.record;
    assert_eq!((record.owner.as_deref(), &record.labels), (Some("eve"), &labels), "kept");
    ctx.act(id, Act::Assign { to: None }).await.expect("any status");
    assert_eq!(ctx.letter(id).await.record.owner, None);
    let wordy = "x".repeat(limits::LABEL_BYTES_MAX + 1);
    let many: Vec<String> = (0..limits::TAGS_MAX).map(|n| format!("l{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (act, named) in [
        (Act::Assign { to: Some(wordy.clone()) }, "to"),
        (Act::Assign { to: Some(String::new()) }, "to"),
        (label(&[&wordy], &[]), "add"),
        (label(&["a\u{7}b"], &[]), "add"),
        (label(&many, &[]), "add"),
    ] {
        assert_eq!(refused_field(ctx.act(id, act).await.expect_err("out of bounds")), named);
    }
}

pub(super) async fn i38_a_letter_moves_only_to_dlqs(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    ctx.configure("other", QueuePolicy { dlq: Some(q("bin")), ..max_attempts(1) }).await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let before = ctx.view().await;
    for (dlq, why) in [("q", "a queue"), ("other", "a queue"), ("nowhere", "unknown")] {
        let refusal = ctx.act(id, Act::Move { dlq: q(dlq) }).await.expect_err(why);
        assert_eq!(refused_field(refusal), "dlq");
    }
    let there = ctx.act(id, Act::Move { dlq: q("q-dlq") }).await;
    assert!(matches!(there, Err(Refusal::WrongStatus { .. })), "{there:?}");
    assert_eq!(ctx.view().await, before);
    ctx.act(id, Act::Move { dlq: q("bin") }).await.expect("pending");
    let letter = ctx.letter(id).await;
    assert_eq!((letter.record.dlq, letter.message.envelope.queue), (q("bin"), q("q")), "queue unchanged");
    let counted = ctx.view().await.comparable().dlqs.into_iter().filter(|d| !d.by_status.is_empty());
    assert_eq!(counted.map(|d| d.dlq).collect::<Vec<QueueName>>(), [q("bin")]);
    assert_eq!(ctx.lease_letter_ids("bin").await, [id]);
    let held: Time = ctx.now().plus(secs(300));
    let leased = Refusal::LetterLeased { id, worker: "c".into(), until: held };
    assert_eq!(ctx.act(id, Act::Move { dlq: q("q-dlq") }).await, Err(leased.clone()));
    assert_eq!(ctx.act(id, Act::Snooze { until: held }).await, Err(leased));
    for act in [Act::Hold { on: true }, Act::Assign { to: Some("eve".into()) }, Act::Note] {
        ctx.act(id, act).await.expect("it only changes the record");
    }
    assert_eq!(ctx.letter(id).await.record.consumer.as_deref(), Some("c"), "the lease is kept");
}

pub(super) async fn i48_an_audit_row_fingerprints_the_record_before_and_after(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let acts = [
        Act::Note,
        Act::Assign { to: Some("eve".into()) },
        Act::retry_at(ctx.now().plus(secs(9))),
        Act::PullBack,
        Act::Resolve,
        Act::Purge,
        Act::Unpurge,
    ];
    let skip = ctx.audit_entries().await.len();
    let mut states = vec![Some(fingerprint(&ctx.letter(id).await.record))];
    for act in acts.clone() {
        ctx.act(id, act).await.expect("allowed");
        states.push(Some(fingerprint(&ctx.letter(id).await.record)));
    }
    let rows = ctx.audit_entries().await.split_off(skip);
    assert_eq!(rows.len(), acts.len());
    for (n, (row, act)) in rows.iter().zip(&acts).enumerate() {
        assert_eq!((&row.before, &row.after), (&states[n], &states[n + 1]), "{}", row.act);
        assert_eq!((row.act.as_str(), &row.detail), (act.name(), &act.detail()));
    }
}
