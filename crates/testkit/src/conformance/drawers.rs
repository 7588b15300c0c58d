//! Laws of dead-letter consumers: letters are leased from a drawer like messages from a queue, but a consumer
//! that fails never makes a letter of a letter.

use super::Stage;
use super::kit::{MS, field, large, new, operator, q, refused, rules, secs};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{
    Act, Actor, CONSUMER_BACKOFF, CONSUMER_LEASE, DeadLetter, File, Happening, LetterDelivery, Moment, Note,
    Status,
};
use redrive_core::error::Refusal;
use redrive_core::ids::{LeaseToken, Secret};
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{LetterLeaseRequest, LetterSettle, LetterSettlement, LetterState};
use std::collections::BTreeSet;

fn wish(dlq: &str, max: usize) -> LetterLeaseRequest {
    LetterLeaseRequest { dlq: q(dlq), max, lease_for: None, worker: "c".into() }
}

impl Stage<'_> {
    async fn draw(&self, dlq: &str, max: usize) -> Vec<LetterDelivery> {
        self.store.lease_letters(wish(dlq, max)).await.expect("lease_letters answers")
    }

    pub(super) async fn draw_one(&self, dlq: &str) -> LetterDelivery {
        let mut drawn = self.draw(dlq, 1).await;
        assert_eq!(drawn.len(), 1, "a letter of {dlq} may be leased");
        drawn.remove(0)
    }

    async fn return_letter(&self, token: LeaseToken, what: LetterSettle) -> Result<LetterState, Refusal> {
        let batch = vec![LetterSettlement { token, what }];
        self.store.settle_letters(batch).await.expect("settle_letters answers").remove(0)
    }
}

/// Everything a consumer can say.
fn everything() -> Vec<LetterSettle> {
    vec![
        LetterSettle::Do { act: Act::Resolve, actor: operator() },
        LetterSettle::Do { act: Act::Note, actor: operator() },
        LetterSettle::Fail { note: "late".into() },
        LetterSettle::Release,
        LetterSettle::Extend { by: None },
    ]
}

pub(super) async fn a_leased_letter_is_the_letter_as_it_is_now(stage: &Stage<'_>) {
    let before = stage.dead(new(1, "q"), "Bad").await;
    let now = stage.clock.advance(secs(2));
    let drawn = stage.draw_one("q-dlq").await;
    let held = DeadLetter {
        file: File {
            consumer: Some("c".into()),
            consumer_until: Some(now.plus(CONSUMER_LEASE)),
            ..before.file.clone()
        },
        ..before
    };
    assert_eq!(drawn, LetterDelivery { letter: held.clone(), token: drawn.token });
    assert_eq!(drawn.token.id, message_id(1));
    assert_eq!(stage.letter(message_id(1)).await, held, "its version has not changed");
    assert_eq!(stage.trail().await, []);
}

pub(super) async fn i16_the_oldest_death_first_and_each_once(stage: &Stage<'_>) {
    for n in [5, 3, 4, 1, 2] {
        stage.dead(new(n, "q"), "Bad").await;
    }
    stage.act(message_id(3), Act::Review).await.expect("pending");
    stage.act(message_id(4), Act::retry()).await.expect("pending");
    let ids = |drawn: Vec<LetterDelivery>| -> Vec<_> { drawn.iter().map(|d| d.token.id).collect() };
    assert_eq!(ids(stage.draw("q-dlq", 2).await), [5, 1].map(message_id), "pending ones only");
    assert_eq!(ids(stage.draw("q-dlq", 10).await), [2].map(message_id));
    assert_eq!(stage.draw("q-dlq", 10).await, []);
    stage.clock.advance(CONSUMER_LEASE);
    assert_eq!(
        ids(stage.draw("q-dlq", 10).await),
        [5, 1, 2].map(message_id),
        "run-out leases free themselves"
    );
    assert_eq!(stage.letter(message_id(5)).await.file.version, 1, "and never count against a letter");
}

pub(super) async fn i49_no_more_bytes_of_letters_than_can_be_sent(stage: &Stage<'_>) {
    for n in 1..=3 {
        stage.dead(large(n, "q"), "Bad").await;
    }
    stage.dead(new(4, "q"), "Bad").await;
    let ids = |drawn: Vec<LetterDelivery>| drawn.iter().map(|d| d.letter.id()).collect::<Vec<_>>();
    assert_eq!(ids(stage.draw("q-dlq", 10).await), [1, 2].map(message_id));
    assert_eq!(ids(stage.draw("q-dlq", 10).await), [3, 4].map(message_id));
}

pub(super) async fn absurd_letter_requests_are_refused_by_field(stage: &Stage<'_>) {
    stage.dead(new(1, "q"), "Bad").await;
    let good = wish("q-dlq", 1);
    for (name, request) in [
        ("max", LetterLeaseRequest { max: 0, ..good.clone() }),
        ("max", LetterLeaseRequest { max: limits::LEASE_BATCH_MAX + 1, ..good.clone() }),
        ("lease", LetterLeaseRequest { lease_for: Some(MS), ..good.clone() }),
        ("worker", LetterLeaseRequest { worker: String::new(), ..good }),
    ] {
        assert_eq!(field(refused(stage.store.lease_letters(request).await)), name);
    }
    assert_eq!(stage.draw("nowhere", 5).await, [], "an unknown drawer is an empty drawer");
    assert_eq!(stage.draw("q", 5).await, [], "a queue is no drawer");
    let drawn = stage.draw_one("q-dlq").await;
    let short = LetterSettle::Extend { by: Some(MS) };
    assert_eq!(field(stage.return_letter(drawn.token, short).await.expect_err("too short")), "lease");
}

pub(super) async fn a_letter_in_a_consumers_hands_is_nobody_elses(stage: &Stage<'_>) {
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let request = LetterLeaseRequest { lease_for: Some(secs(60)), ..wish("q-dlq", 1) };
    stage.store.lease_letters(request).await.expect("answers");
    let until = START.plus(secs(60));
    let before = stage.seen().await;
    for act in [Act::Resolve, Act::retry(), Act::Review, Act::Abandon] {
        let leased = Refusal::LetterLeased { id, worker: "c".into(), until };
        assert_eq!(stage.act(id, act).await, Err(leased));
    }
    assert_eq!(stage.seen().await, before);
    assert_eq!(stage.act(id, Act::Note).await.map(|s| s.version), Ok(2), "but anybody may leave a note");
    assert_eq!(stage.letter(id).await.file.consumer_until, Some(until));
    stage.clock.set(until);
    assert_eq!(stage.act(id, Act::Resolve).await.map(|s| s.version), Ok(3), "until the lease runs out");
}

pub(super) async fn a_consumer_acts_by_its_token(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let cases = [(Act::Resolve, Status::Resolved), (Act::retry(), Status::Retrying)];
    for (n, (act, status)) in (1..).zip(cases) {
        let id = stage.dead(new(n, "q"), "Bad").await.id();
        let drawn = stage.draw_one("q-dlq").await;
        let actor = Actor { reason: Some("mended".into()), ..Actor::new("consumer", "library") };
        let rows = stage.trail().await.len();
        let settled =
            stage.return_letter(drawn.token, LetterSettle::Do { act: act.clone(), actor: actor.clone() });
        assert_eq!(settled.await, Ok(LetterState { id, status: Some(status), version: 2 }));
        let file = stage.letter(id).await.file;
        assert_eq!((file.status, file.consumer, file.consumer_until), (status, None, None));
        assert_eq!(stage.trail().await[rows..], [AuditEntry::new(START, &actor, act.name(), id, 1)]);
        let again = LetterSettle::Do { act, actor };
        assert_eq!(stage.return_letter(drawn.token, again).await, Err(Refusal::StaleToken { id }));
    }
    assert_eq!(stage.message(message_id(2)).await.state, State::Ready);
}

pub(super) async fn a_refused_act_leaves_the_letter_in_the_consumers_hands(stage: &Stage<'_>) {
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let drawn = stage.draw_one("q-dlq").await;
    let before = stage.seen().await;
    let reopen = LetterSettle::Do { act: Act::Reopen, actor: operator() };
    let refusal = stage.return_letter(drawn.token, reopen).await.expect_err("it is open");
    assert!(matches!(refusal, Refusal::WrongStatus { .. }), "{refusal:?}");
    assert_eq!(stage.seen().await, before);
    assert_eq!(stage.return_letter(drawn.token, LetterSettle::Release).await.map(|s| s.id), Ok(id));
}

pub(super) async fn a_failing_consumer_lets_the_letter_rest_for_an_hour(stage: &Stage<'_>) {
    let mut expected = stage.dead(new(1, "q"), "Bad").await;
    let id = expected.id();
    for round in 1..=3 {
        let drawn = stage.draw_one("q-dlq").await;
        let now = stage.clock.advance(secs(5));
        let fail = LetterSettle::Fail { note: "the mender broke".into() };
        expected.file.version += 1;
        let state = LetterState { id, status: Some(Status::Pending), version: expected.file.version };
        assert_eq!(stage.return_letter(drawn.token, fail).await, Ok(state));
        expected.file.available_at = now.plus(CONSUMER_BACKOFF);
        expected.file.notes.push(Note { at: now, by: "c".into(), text: "the mender broke".into() });
        let event = Moment::new(now, Happening::ConsumerFailed).by(Some("c"));
        expected.file.history.push(event.because(Some("the mender broke")));
        assert_eq!(stage.letter(id).await, expected, "round {round}: it never dies of this");
        stage.clock.set(expected.file.available_at.minus(MS));
        assert_eq!(stage.draw("q-dlq", 1).await, []);
        stage.clock.advance(MS);
    }
    assert_eq!(stage.trail().await, [], "nobody acted");
}

pub(super) async fn a_released_letter_is_free_at_once(stage: &Stage<'_>) {
    let before = stage.dead(new(1, "q"), "Bad").await;
    let id = before.id();
    let first = stage.draw_one("q-dlq").await;
    let now = stage.clock.advance(secs(5));
    let released = stage.return_letter(first.token, LetterSettle::Release).await;
    assert_eq!(released, Ok(LetterState { id, status: Some(Status::Pending), version: 1 }));
    let file = File { available_at: now, ..before.file.clone() };
    assert_eq!(stage.letter(id).await, DeadLetter { file, ..before });
    let second = stage.draw_one("q-dlq").await;
    assert_ne!(first.token.secret, second.token.secret);
}

pub(super) async fn a_snoozed_letter_is_given_to_nobody_until_then(stage: &Stage<'_>) {
    let before = stage.dead(new(1, "q"), "Bad").await;
    let id = before.id();
    let drawn = stage.draw_one("q-dlq").await;
    let absurd = LetterSettle::Snooze { span: limits::SPAN_MAX.times(2) };
    assert_eq!(field(stage.return_letter(drawn.token, absurd).await.expect_err("absurd")), "snooze");
    let now = stage.clock.advance(secs(5));
    let snoozed = stage.return_letter(drawn.token, LetterSettle::Snooze { span: secs(60) }).await;
    assert_eq!(snoozed, Ok(LetterState { id, status: Some(Status::Pending), version: 1 }));
    let file = File { available_at: now.plus(secs(60)), ..before.file.clone() };
    assert_eq!(stage.letter(id).await, DeadLetter { file, ..before }, "no note, no version");
    stage.clock.set(now.plus(secs(60)).minus(MS));
    assert_eq!(stage.draw("q-dlq", 1).await, []);
    stage.clock.advance(MS);
    stage.draw_one("q-dlq").await;
    assert_eq!(stage.trail().await, []);
}

pub(super) async fn i20_extending_a_letter_never_shortens(stage: &Stage<'_>) {
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let drawn = stage.draw_one("q-dlq").await;
    let now = stage.clock.advance(secs(100));
    for (by, until) in [
        (Some(secs(1)), START.plus(CONSUMER_LEASE)),
        (None, now.plus(CONSUMER_LEASE)),
        (Some(secs(900)), now.plus(secs(900))),
        (Some(secs(2)), now.plus(secs(900))),
    ] {
        let state = LetterState { id, status: Some(Status::Pending), version: 1 };
        assert_eq!(stage.return_letter(drawn.token, LetterSettle::Extend { by }).await, Ok(state));
        assert_eq!(stage.letter(id).await.file.consumer_until, Some(until), "{by:?}");
    }
}

pub(super) async fn i17_i22_a_stale_or_late_consumer_changes_nothing(stage: &Stage<'_>) {
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let unknown = LeaseToken { id: message_id(9), secret: Secret::new([1; 16]) };
    let guessed = LeaseToken { id, secret: Secret::new([1; 16]) };
    let before = stage.seen().await;
    for token in [unknown, guessed] {
        for what in everything() {
            assert_eq!(stage.return_letter(token, what).await, Err(Refusal::StaleToken { id: token.id }));
        }
    }
    assert_eq!(stage.seen().await, before);
    let slow = stage.draw_one("q-dlq").await;
    let expired_at = stage.clock.advance(CONSUMER_LEASE);
    let before = stage.seen().await;
    for what in everything() {
        assert_eq!(
            stage.return_letter(slow.token, what).await,
            Err(Refusal::LeaseExpired { id, expired_at })
        );
    }
    assert_eq!(stage.seen().await, before);
    let quick = stage.draw_one("q-dlq").await;
    let before = stage.seen().await;
    for token in [slow.token, guessed] {
        for what in everything() {
            assert_eq!(stage.return_letter(token, what).await, Err(Refusal::StaleToken { id }));
        }
    }
    assert_eq!(stage.seen().await, before);
    stage.return_letter(quick.token, LetterSettle::Release).await.expect("the holder is not disturbed");
}

pub(super) async fn i22_a_late_consumer_is_told_so_whoever_changed_the_letter(stage: &Stage<'_>) {
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let slow = stage.draw_one("q-dlq").await;
    let expired_at = stage.clock.advance(CONSUMER_LEASE);
    for act in [Act::Assign { to: None }, Act::Hold { on: true }, Act::Erase] {
        stage.act(id, act.clone()).await.expect("nobody holds it");
        let told = stage.return_letter(slow.token, LetterSettle::Release).await;
        assert_eq!(told, Err(Refusal::LeaseExpired { id, expired_at }), "{}", act.name());
    }
}

pub(super) async fn a_letters_token_is_no_messages_token(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let drawn = stage.draw_one("q-dlq").await;
    let ack = redrive_core::store::Settle::Ack;
    assert_eq!(stage.settle(drawn.token, ack.clone()).await, Err(Refusal::StaleToken { id }));
    let retry = LetterSettle::Do { act: Act::retry(), actor: operator() };
    stage.return_letter(drawn.token, retry).await.expect("held");
    let taken = stage.take_one("q").await;
    assert_eq!(stage.settle(drawn.token, ack).await, Err(Refusal::StaleToken { id }));
    let release = LetterSettle::Release;
    assert_eq!(stage.return_letter(taken.token, release).await, Err(Refusal::StaleToken { id }));
}

pub(super) async fn i5_each_return_has_its_own_result(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { dlq: Some(q("bin")), ..rules(1) }).await;
    for n in 1..=3 {
        stage.dead(new(n, "q"), "Bad").await;
    }
    let drawn = stage.draw("bin", 3).await;
    let secrets: BTreeSet<_> = drawn.iter().map(|d| d.token.secret.to_bytes()).collect();
    assert_eq!(secrets.len(), 3);
    let say = |n: usize, what| LetterSettlement { token: drawn[n].token, what };
    let resolve = || LetterSettle::Do { act: Act::Resolve, actor: operator() };
    let batch = vec![
        say(0, resolve()),
        say(0, resolve()),
        say(1, LetterSettle::Fail { note: "no".into() }),
        say(2, LetterSettle::Release),
    ];
    let each = stage.store.settle_letters(batch).await.expect("answers");
    assert_eq!(each.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, true], "{each:?}");
    assert_eq!(stage.draw("bin", 9).await.iter().map(|d| d.token.id).collect::<Vec<_>>(), [message_id(3)]);
}
