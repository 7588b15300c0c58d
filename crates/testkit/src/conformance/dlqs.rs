//! Laws of dead letter consumers: letters are leased from a dead letter queue like messages from a queue, but
//! a consumer that fails never creates a letter about a letter.

use super::LawContext;
use super::kit::{MS, large_msg, max_attempts, msg, operator, q, refused, refused_field, secs};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{
    Act, Actor, CONSUMER_BACKOFF, CONSUMER_LEASE, DeadLetter, LetterDelivery, LetterRecord, Note, Status,
    TimelineEntry, TimelineEvent,
};
use redrive_core::error::Refusal;
use redrive_core::ids::{LeaseToken, Secret};
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{LetterLeaseRequest, LetterSettle, LetterSettlement, LetterState};
use std::collections::BTreeSet;

fn letter_lease(dlq: &str, max: usize) -> LetterLeaseRequest {
    LetterLeaseRequest { dlq: q(dlq), max, lease_for: None, worker: "c".into() }
}

impl LawContext<'_> {
    async fn lease_letters(&self, dlq: &str, max: usize) -> Vec<LetterDelivery> {
        self.store.lease_letters(letter_lease(dlq, max)).await.expect("lease_letters succeeds")
    }

    pub(super) async fn lease_letter(&self, dlq: &str) -> LetterDelivery {
        let mut leased = self.lease_letters(dlq, 1).await;
        assert_eq!(leased.len(), 1, "a letter of {dlq} may be leased");
        leased.remove(0)
    }

    async fn settle_letter(&self, token: LeaseToken, what: LetterSettle) -> Result<LetterState, Refusal> {
        let batch = vec![LetterSettlement { token, what }];
        self.store.settle_letters(batch).await.expect("settle_letters succeeds").remove(0)
    }
}

/// Every way to settle a letter.
fn all_settlements() -> Vec<LetterSettle> {
    vec![
        LetterSettle::Do { act: Act::Resolve, actor: operator() },
        LetterSettle::Do { act: Act::Note, actor: operator() },
        LetterSettle::Fail { note: "late".into() },
        LetterSettle::Release,
        LetterSettle::Extend { by: None },
    ]
}

pub(super) async fn a_leased_letter_is_the_letter_as_it_is_now(ctx: &LawContext<'_>) {
    let before = ctx.dead_letter(msg(1, "q"), "Bad").await;
    let now = ctx.clock.advance(secs(2));
    let leased = ctx.lease_letter("q-dlq").await;
    let held = DeadLetter {
        record: LetterRecord {
            consumer: Some("c".into()),
            consumer_until: Some(now.plus(CONSUMER_LEASE)),
            ..before.record.clone()
        },
        ..before
    };
    assert_eq!(leased, LetterDelivery { letter: held.clone(), token: leased.token });
    assert_eq!(leased.token.id, message_id(1));
    assert_eq!(ctx.letter(message_id(1)).await, held, "the version is unchanged");
    assert_eq!(ctx.audit_trail().await, []);
}

pub(super) async fn i16_letters_are_leased_once_and_oldest_death_first(ctx: &LawContext<'_>) {
    for n in [5, 3, 4, 1, 2] {
        ctx.dead_letter(msg(n, "q"), "Bad").await;
    }
    ctx.act(message_id(3), Act::Review).await.expect("pending");
    ctx.act(message_id(4), Act::retry()).await.expect("pending");
    let ids = |leased: Vec<LetterDelivery>| -> Vec<_> { leased.iter().map(|d| d.token.id).collect() };
    assert_eq!(ids(ctx.lease_letters("q-dlq", 2).await), [5, 1].map(message_id), "only pending letters");
    assert_eq!(ids(ctx.lease_letters("q-dlq", 10).await), [2].map(message_id));
    assert_eq!(ctx.lease_letters("q-dlq", 10).await, []);
    ctx.clock.advance(CONSUMER_LEASE);
    assert_eq!(
        ids(ctx.lease_letters("q-dlq", 10).await),
        [5, 1, 2].map(message_id),
        "expired leases free the letters"
    );
    assert_eq!(
        ctx.letter(message_id(5)).await.record.version,
        1,
        "an expired lease does not change the letter"
    );
}

pub(super) async fn i49_a_letter_lease_returns_a_bounded_number_of_bytes(ctx: &LawContext<'_>) {
    for n in 1..=3 {
        ctx.dead_letter(large_msg(n, "q"), "Bad").await;
    }
    ctx.dead_letter(msg(4, "q"), "Bad").await;
    let ids = |leased: Vec<LetterDelivery>| leased.iter().map(|d| d.letter.id()).collect::<Vec<_>>();
    assert_eq!(ids(ctx.lease_letters("q-dlq", 10).await), [1, 2].map(message_id));
    assert_eq!(ids(ctx.lease_letters("q-dlq", 10).await), [3, 4].map(message_id));
}

pub(super) async fn invalid_letter_lease_requests_are_refused_by_field(ctx: &LawContext<'_>) {
    ctx.dead_letter(msg(1, "q"), "Bad").await;
    let good = letter_lease("q-dlq", 1);
    for (name, request) in [
        ("max", LetterLeaseRequest { max: 0, ..good.clone() }),
        ("max", LetterLeaseRequest { max: limits::LEASE_BATCH_MAX + 1, ..good.clone() }),
        ("lease", LetterLeaseRequest { lease_for: Some(MS), ..good.clone() }),
        ("worker", LetterLeaseRequest { worker: String::new(), ..good }),
    ] {
        assert_eq!(refused_field(refused(ctx.store.lease_letters(request).await)), name);
    }
    assert_eq!(ctx.lease_letters("nowhere", 5).await, [], "an unknown dead letter queue is empty");
    assert_eq!(ctx.lease_letters("q", 5).await, [], "a queue is not a dead letter queue");
    let leased = ctx.lease_letter("q-dlq").await;
    let short = LetterSettle::Extend { by: Some(MS) };
    assert_eq!(refused_field(ctx.settle_letter(leased.token, short).await.expect_err("too short")), "lease");
}

pub(super) async fn others_cannot_act_on_a_leased_letter(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let request = LetterLeaseRequest { lease_for: Some(secs(60)), ..letter_lease("q-dlq", 1) };
    ctx.store.lease_letters(request).await.expect("succeeds");
    let until = START.plus(secs(60));
    let before = ctx.view().await;
    for act in [Act::Resolve, Act::retry(), Act::Review, Act::Abandon] {
        let leased = Refusal::LetterLeased { id, worker: "c".into(), until };
        assert_eq!(ctx.act(id, act).await, Err(leased));
    }
    assert_eq!(ctx.view().await, before);
    assert_eq!(ctx.act(id, Act::Note).await.map(|s| s.version), Ok(2), "notes are still allowed");
    assert_eq!(ctx.letter(id).await.record.consumer_until, Some(until));
    ctx.clock.set(until);
    assert_eq!(ctx.act(id, Act::Resolve).await.map(|s| s.version), Ok(3), "allowed once the lease expired");
}

pub(super) async fn a_consumer_acts_by_its_token(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let cases = [(Act::Resolve, Status::Resolved), (Act::retry(), Status::Retrying)];
    for (n, (act, status)) in (1..).zip(cases) {
        let id = ctx.dead_letter(msg(n, "q"), "Bad").await.id();
        let leased = ctx.lease_letter("q-dlq").await;
        let actor = Actor { reason: Some("mended".into()), ..Actor::new("consumer", "library") };
        let rows = ctx.audit_trail().await.len();
        let settled =
            ctx.settle_letter(leased.token, LetterSettle::Do { act: act.clone(), actor: actor.clone() });
        assert_eq!(settled.await, Ok(LetterState { id, status: Some(status), version: 2 }));
        let record = ctx.letter(id).await.record;
        assert_eq!((record.status, record.consumer, record.consumer_until), (status, None, None));
        assert_eq!(ctx.audit_trail().await[rows..], [AuditEntry::new(START, &actor, act.name(), id, 1)]);
        let again = LetterSettle::Do { act, actor };
        assert_eq!(ctx.settle_letter(leased.token, again).await, Err(Refusal::StaleToken { id }));
    }
    assert_eq!(ctx.message(message_id(2)).await.state, State::Ready);
}

pub(super) async fn a_refused_act_keeps_the_consumers_lease(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let leased = ctx.lease_letter("q-dlq").await;
    let before = ctx.view().await;
    let reopen = LetterSettle::Do { act: Act::Reopen, actor: operator() };
    let refusal =
        ctx.settle_letter(leased.token, reopen).await.expect_err("an open letter cannot be reopened");
    assert!(matches!(refusal, Refusal::WrongStatus { .. }), "{refusal:?}");
    assert_eq!(ctx.view().await, before);
    assert_eq!(ctx.settle_letter(leased.token, LetterSettle::Release).await.map(|s| s.id), Ok(id));
}

pub(super) async fn a_letter_rests_for_an_hour_after_its_consumer_fails(ctx: &LawContext<'_>) {
    let mut expected = ctx.dead_letter(msg(1, "q"), "Bad").await;
    let id = expected.id();
    for round in 1..=3 {
        let leased = ctx.lease_letter("q-dlq").await;
        let now = ctx.clock.advance(secs(5));
        let fail = LetterSettle::Fail { note: "the consumer broke".into() };
        expected.record.version += 1;
        let state = LetterState { id, status: Some(Status::Pending), version: expected.record.version };
        assert_eq!(ctx.settle_letter(leased.token, fail).await, Ok(state));
        expected.record.available_at = now.plus(CONSUMER_BACKOFF);
        expected.record.notes.push(Note { at: now, by: "c".into(), text: "the consumer broke".into() });
        let event = TimelineEntry::new(now, TimelineEvent::ConsumerFailed).by(Some("c"));
        expected.record.history.push(event.with_reason(Some("the consumer broke")));
        assert_eq!(ctx.letter(id).await, expected, "round {round}: the letter is otherwise unchanged");
        ctx.clock.set(expected.record.available_at.minus(MS));
        assert_eq!(ctx.lease_letters("q-dlq", 1).await, []);
        ctx.clock.advance(MS);
    }
    assert_eq!(ctx.audit_trail().await, [], "no operator acted");
}

pub(super) async fn a_released_letter_is_free_at_once(ctx: &LawContext<'_>) {
    let before = ctx.dead_letter(msg(1, "q"), "Bad").await;
    let id = before.id();
    let first = ctx.lease_letter("q-dlq").await;
    let now = ctx.clock.advance(secs(5));
    let released = ctx.settle_letter(first.token, LetterSettle::Release).await;
    assert_eq!(released, Ok(LetterState { id, status: Some(Status::Pending), version: 1 }));
    let record = LetterRecord { available_at: now, ..before.record.clone() };
    assert_eq!(ctx.letter(id).await, DeadLetter { record, ..before });
    let second = ctx.lease_letter("q-dlq").await;
    assert_ne!(first.token.secret, second.token.secret);
}

pub(super) async fn a_letter_snoozed_by_its_consumer_is_not_leased_until_then(ctx: &LawContext<'_>) {
    let before = ctx.dead_letter(msg(1, "q"), "Bad").await;
    let id = before.id();
    let leased = ctx.lease_letter("q-dlq").await;
    let absurd = LetterSettle::Snooze { span: limits::SPAN_MAX.times(2) };
    assert_eq!(refused_field(ctx.settle_letter(leased.token, absurd).await.expect_err("absurd")), "snooze");
    let now = ctx.clock.advance(secs(5));
    let snoozed = ctx.settle_letter(leased.token, LetterSettle::Snooze { span: secs(60) }).await;
    assert_eq!(snoozed, Ok(LetterState { id, status: Some(Status::Pending), version: 1 }));
    let record = LetterRecord { available_at: now.plus(secs(60)), ..before.record.clone() };
    assert_eq!(ctx.letter(id).await, DeadLetter { record, ..before }, "no note and no new version");
    ctx.clock.set(now.plus(secs(60)).minus(MS));
    assert_eq!(ctx.lease_letters("q-dlq", 1).await, []);
    ctx.clock.advance(MS);
    ctx.lease_letter("q-dlq").await;
    assert_eq!(ctx.audit_trail().await, []);
}

pub(super) async fn i20_extending_a_letter_never_shortens(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let leased = ctx.lease_letter("q-dlq").await;
    let now = ctx.clock.advance(secs(100));
    for (by, until) in [
        (Some(secs(1)), START.plus(CONSUMER_LEASE)),
        (None, now.plus(CONSUMER_LEASE)),
        (Some(secs(900)), now.plus(secs(900))),
        (Some(secs(2)), now.plus(secs(900))),
    ] {
        let state = LetterState { id, status: Some(Status::Pending), version: 1 };
        assert_eq!(ctx.settle_letter(leased.token, LetterSettle::Extend { by }).await, Ok(state));
        assert_eq!(ctx.letter(id).await.record.consumer_until, Some(until), "{by:?}");
    }
}

pub(super) async fn i17_i22_a_stale_or_late_consumer_changes_nothing(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let unknown = LeaseToken { id: message_id(9), secret: Secret::new([1; 16]) };
    let guessed = LeaseToken { id, secret: Secret::new([1; 16]) };
    let before = ctx.view().await;
    for token in [unknown, guessed] {
        for what in all_settlements() {
            assert_eq!(ctx.settle_letter(token, what).await, Err(Refusal::StaleToken { id: token.id }));
        }
    }
    assert_eq!(ctx.view().await, before);
    let slow = ctx.lease_letter("q-dlq").await;
    let expired_at = ctx.clock.advance(CONSUMER_LEASE);
    let before = ctx.view().await;
    for what in all_settlements() {
        assert_eq!(ctx.settle_letter(slow.token, what).await, Err(Refusal::LeaseExpired { id, expired_at }));
    }
    assert_eq!(ctx.view().await, before);
    let quick = ctx.lease_letter("q-dlq").await;
    let before = ctx.view().await;
    for token in [slow.token, guessed] {
        for what in all_settlements() {
            assert_eq!(ctx.settle_letter(token, what).await, Err(Refusal::StaleToken { id }));
        }
    }
    assert_eq!(ctx.view().await, before);
    ctx.settle_letter(quick.token, LetterSettle::Release).await.expect("the current holder is not affected");
}

pub(super) async fn i22_a_late_consumer_is_refused_even_after_others_changed_the_letter(
    ctx: &LawContext<'_>,
) {
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let slow = ctx.lease_letter("q-dlq").await;
    let expired_at = ctx.clock.advance(CONSUMER_LEASE);
    for act in [Act::Assign { to: None }, Act::Hold { on: true }, Act::Erase] {
        ctx.act(id, act.clone()).await.expect("the letter is not leased");
        let refusal = ctx.settle_letter(slow.token, LetterSettle::Release).await;
        assert_eq!(refusal, Err(Refusal::LeaseExpired { id, expired_at }), "{}", act.name());
    }
}

pub(super) async fn a_letter_token_cannot_settle_a_message(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let leased = ctx.lease_letter("q-dlq").await;
    let ack = redrive_core::store::Settle::Ack;
    assert_eq!(ctx.settle(leased.token, ack.clone()).await, Err(Refusal::StaleToken { id }));
    let retry = LetterSettle::Do { act: Act::retry(), actor: operator() };
    ctx.settle_letter(leased.token, retry).await.expect("held");
    let taken = ctx.lease_one("q").await;
    assert_eq!(ctx.settle(leased.token, ack).await, Err(Refusal::StaleToken { id }));
    let release = LetterSettle::Release;
    assert_eq!(ctx.settle_letter(taken.token, release).await, Err(Refusal::StaleToken { id }));
}

pub(super) async fn i5_each_letter_settlement_has_its_own_result(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { dlq: Some(q("bin")), ..max_attempts(1) }).await;
    for n in 1..=3 {
        ctx.dead_letter(msg(n, "q"), "Bad").await;
    }
    let leased = ctx.lease_letters("bin", 3).await;
    let secrets: BTreeSet<_> = leased.iter().map(|d| d.token.secret.to_bytes()).collect();
    assert_eq!(secrets.len(), 3);
    let settlement = |n: usize, what| LetterSettlement { token: leased[n].token, what };
    let resolve = || LetterSettle::Do { act: Act::Resolve, actor: operator() };
    let batch = vec![
        settlement(0, resolve()),
        settlement(0, resolve()),
        settlement(1, LetterSettle::Fail { note: "no".into() }),
        settlement(2, LetterSettle::Release),
    ];
    let each = ctx.store.settle_letters(batch).await.expect("succeeds");
    assert_eq!(each.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, true], "{each:?}");
    assert_eq!(
        ctx.lease_letters("bin", 9).await.iter().map(|d| d.token.id).collect::<Vec<_>>(),
        [message_id(3)]
    );
}
