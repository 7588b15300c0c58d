//! Laws of what a person does to one letter: sending it back another way, taking that back, purging it so that it
//! can be taken back, and writing on its file. Everything is counted in exactly one place at every step (I11).

use super::Stage;
use super::kit::{failed, field, hopeless, new, operator, q, refused, rules, secs};
use crate::ids::message_id;
use redrive_core::audit::fingerprint;
use redrive_core::breaker::{BreakerKey, BreakerPolicy};
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter, File, Note, Redriven, Retry, Status};
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

const NONE: Counts = Counts {
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

fn to(queue: &str) -> Act {
    Act::Retry(Retry { queue: Some(q(queue)), ..Retry::default() })
}

fn by_force() -> Act {
    Act::Retry(Retry { force: true, ..Retry::default() })
}

fn keyed(n: u64, queue: &str) -> NewMessage {
    NewMessage { key: Some("k".into()), ..new(n, queue) }
}

impl Stage<'_> {
    async fn holder(&self, queue: &str) -> Option<KeyState> {
        self.store.key_state(q(queue), "k".into()).await.expect("key_state answers")
    }

    async fn stands(&self, id: MessageId) -> Status {
        self.letter(id).await.file.status
    }

    async fn drawn(&self, dlq: &str) -> Vec<MessageId> {
        let wish = LetterLeaseRequest { dlq: q(dlq), max: 10, lease_for: None, worker: "c".into() };
        let drawn = self.store.lease_letters(wish).await.expect("lease_letters answers");
        drawn.iter().map(|d| d.token.id).collect()
    }
}

pub(super) async fn trap1_another_queue_judges_by_its_own_rules(stage: &Stage<'_>) {
    stage.set("a", rules(1)).await;
    stage.set("b", QueuePolicy { dlq: Some(q("bin")), lease: secs(7), ..rules(2) }).await;
    let id = stage.dead(new(1, "a"), "Bad").await.id();
    let group = stage.letter(id).await.group;
    let state = stage.act(id, to("b")).await;
    assert_eq!(state, Ok(LetterState { id, status: Some(Status::Retrying), version: 2 }));
    let letter = stage.letter(id).await;
    assert_eq!((letter.message.envelope.queue, letter.file.dlq), (q("a"), q("a-dlq")), "filed where it was");
    let sent = Redriven { at: stage.now(), by: "ada".into(), to: Some(q("b")) };
    assert_eq!(letter.file.redriven, Some(sent.clone()));
    let live = stage.message(id).await.envelope;
    assert_eq!((live.queue, live.origin, live.max_attempts), (q("b"), Some(q("a")), Some(2)));
    assert_eq!(stage.counts("a").await, NONE, "it has left this queue");
    assert_eq!(stage.counts("b").await, Counts { enqueued: 1, waiting: 1, bytes: 9, ..NONE });
    let taken = stage.take_one("b").await;
    assert_eq!(
        taken.message.lease_expires_at,
        Some(stage.now().plus(secs(7))),
        "the lease of the other queue"
    );
    stage.settle(taken.token, failed("Bad")).await.expect("held");
    stage.clock.advance(secs(10));
    let taken = stage.take_one("b").await;
    assert_eq!(taken.attempt, 2, "and as many attempts as it allows");
    let settled = stage.settle(taken.token, failed("Worse")).await.expect("held");
    assert_eq!(settled.reason, Some(Reason::MaxAttempts));
    let letter = stage.letter(id).await;
    assert_eq!((letter.message.envelope.queue, letter.file.dlq), (q("b"), q("bin")), "filed where it died");
    assert_eq!(letter.message.envelope.origin, Some(q("a")));
    assert_eq!((letter.file.status, letter.file.redrives), (Status::Pending, 1));
    assert_eq!(letter.file.redriven, Some(sent), "how it came here stays on the file");
    assert_eq!(stage.counts("a").await, NONE);
    assert_eq!(stage.counts("b").await, Counts { enqueued: 1, dead: 1, ..NONE });
    let group = stage.store.group(group).await.expect("known");
    assert_eq!((group.open, group.total), (0, 1), "the other cause has it now");
    // Home again, where it came from.
    stage.act(id, to("a")).await.expect("pending");
    assert_eq!(stage.message(id).await.envelope.origin, None);
    assert_eq!(stage.counts("b").await, NONE);
    stage.settle(stage.take_one("a").await.token, Settle::Ack).await.expect("held");
    assert_eq!(stage.letter(id).await.message.envelope.queue, q("b"), "success closes it where it lies");
    assert_eq!((stage.counts("a").await, stage.counts("b").await.dead), (NONE, 1));
}

pub(super) async fn success_closes_the_letter_where_it_lies(stage: &Stage<'_>) {
    stage.set("a", QueuePolicy { retention: secs(60), ..rules(1) }).await;
    stage.set("b", QueuePolicy { retention: secs(5), ..rules(1) }).await;
    let id = stage.dead(keyed(1, "a"), "Bad").await.id();
    stage.act(id, to("b")).await.expect("pending");
    assert_eq!(stage.holder("a").await, Some(KeyState { id, state: State::Ready }), "its key is at home");
    assert_eq!(stage.holder("b").await, None);
    stage.settle(stage.take_one("b").await.token, Settle::Ack).await.expect("held");
    let file = stage.letter(id).await.file;
    assert_eq!((file.status, file.resolution.as_deref()), (Status::Resolved, Some("retried")));
    assert_eq!(file.expires_at, Some(stage.now().plus(secs(60))), "kept as long as its own queue says");
    assert_eq!(stage.counts("a").await, Counts { enqueued: 1, dead: 1, ..NONE });
    assert_eq!(stage.counts("b").await, NONE);
    assert_eq!(stage.holder("a").await, Some(KeyState { id, state: State::Done }));
    let again = stage.try_send(keyed(1, "a")).await;
    assert_eq!(again, Ok(Enqueued { id, state: State::Done, duplicate: true }));
}

pub(super) async fn a_letter_that_succeeded_keeps_its_numbers_and_can_die_again(stage: &Stage<'_>) {
    stage.set("q", rules(2)).await;
    let id = stage.send(new(1, "q")).await;
    stage.settle(stage.take_one("q").await.token, hopeless("Bad")).await.expect("held");
    stage.act(id, Act::retry()).await.expect("pending");
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    stage.clock.advance(secs(10));
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    let message = stage.letter(id).await.message;
    assert_eq!(
        (message.deliveries, message.generation, message.failed),
        (3, 2, 2),
        "as it was when it ended"
    );
    stage.act(id, Act::Reopen).await.expect("resolved");
    stage.act(id, Act::retry()).await.expect("pending");
    stage.settle(stage.take_one("q").await.token, hopeless("Bad")).await.expect("held");
    let message = stage.letter(id).await.message;
    assert_eq!((message.deliveries, message.generation, message.failed), (4, 3, 3));
    let attempts: Vec<_> = message.failures.iter().map(|f| (f.generation, f.attempt)).collect();
    assert_eq!(attempts, [(1, 1), (2, 1), (3, 1)], "each failure has its place");
}

pub(super) async fn a_retry_can_change_priority_and_attempts(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let (priority, max_attempts) = (Some(Priority::Critical), Some(3));
    stage.act(id, Act::Retry(Retry { priority, max_attempts, ..Retry::default() })).await.expect("pending");
    for attempt in 1..=3 {
        let taken = stage.take_one("q").await;
        let envelope = &taken.message.envelope;
        assert_eq!(
            (taken.attempt, envelope.priority, envelope.max_attempts),
            (attempt, Priority::Critical, Some(3))
        );
        stage.settle(taken.token, failed("Bad")).await.expect("held");
        stage.clock.advance(secs(10));
    }
    let letter = stage.letter(id).await;
    assert_eq!((letter.file.status, letter.message.attempts), (Status::Pending, 3));
    assert_eq!(letter.message.envelope.priority, Priority::Critical, "what it ran with is what it died with");
    for absurd in [0, limits::ATTEMPTS_MAX + 1] {
        let act = Act::Retry(Retry { max_attempts: Some(absurd), ..Retry::default() });
        assert_eq!(field(stage.act(id, act).await.expect_err("absurd")), "max_attempts");
    }
}

/// What counts begins again with a retry, what identifies does not, and the history goes on (gbrain, langwatch,
/// good_job, oban).
pub(super) async fn trap2_trap3_a_retry_starts_afresh_and_stays_itself(stage: &Stage<'_>) {
    stage.set("q", rules(2)).await;
    let deadline = Some(stage.now().plus(secs(60)));
    let id = stage.send(NewMessage { deadline, ttl: Some(secs(50)), ..new(1, "q") }).await;
    for _ in 0..2 {
        stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
        stage.clock.advance(secs(10));
    }
    let before = stage.letter(id).await;
    stage.clock.advance(secs(3_600));
    stage.act(id, Act::retry()).await.expect("pending");
    let taken = stage.take_one("q").await;
    assert_eq!((taken.attempt, taken.message.deliveries, taken.message.generation), (1, 3, 2));
    let (was, is) = (&before.message.envelope, &taken.message.envelope);
    assert_eq!((is.id, is.seq, is.enqueued_at), (was.id, was.seq, was.enqueued_at), "it is the same message");
    stage.settle(taken.token, failed("Bad")).await.expect("held");
    assert!(stage.message(id).await.ready_at > stage.now(), "its time was over long ago, and it is retried");
    stage.clock.advance(secs(10));
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    let letter = stage.letter(id).await;
    let numbered: BTreeSet<_> = letter.message.failures.iter().map(|f| (f.generation, f.attempt)).collect();
    assert_eq!(numbered, [(1, 1), (1, 2), (2, 1), (2, 2)].into(), "no two attempts have one number");
    assert_eq!(letter.file.first_failed_at, before.file.first_failed_at);
}

pub(super) async fn i37_where_it_is_sent_must_be_a_queue_with_room(stage: &Stage<'_>) {
    stage.set("a", QueuePolicy { max_messages: Some(1), ..rules(1) }).await;
    stage.set("b", QueuePolicy { max_bytes: Some(5), ..rules(1) }).await;
    let id = stage.dead(new(1, "a"), "Bad").await.id();
    stage.send(new(2, "a")).await;
    let before = stage.seen().await;
    let full = |queue: &str, limit: &str, allowed, actual| Refusal::QueueFull {
        queue: q(queue),
        limit: limit.into(),
        allowed,
        actual,
    };
    assert_eq!(stage.act(id, Act::retry()).await, Err(full("a", "max_messages", 1, 1)), "its own queue too");
    let never = stage.act(id, to("b")).await;
    assert!(
        matches!(&never, Err(Refusal::Invalid { field, .. }) if field == "payload"),
        "what can never fit does not wait for room: {never:?}"
    );
    assert_eq!(stage.act(id, to("nowhere")).await, Err(Refusal::NoSuchQueue { queue: q("nowhere") }));
    let drawer = Refusal::IsDrawer { queue: q("b-dlq"), owner: q("b") };
    assert_eq!(stage.act(id, to("b-dlq")).await, Err(drawer));
    assert_eq!(stage.act(id, by_force()).await, Err(full("a", "max_messages", 1, 1)), "force makes no room");
    assert_eq!(stage.seen().await, before, "a refusal changes nothing");
    stage.settle(stage.take_one("a").await.token, Settle::Ack).await.expect("held");
    stage.act(id, Act::retry()).await.expect("there is room");
}

pub(super) async fn i28_the_breaker_of_the_other_queue_knows_it(stage: &Stage<'_>) {
    stage.set("a", rules(1)).await;
    let breaker = BreakerPolicy { failures: 1, ..BreakerPolicy::new(BreakerKey::Header("host".into())) };
    stage.set("b", QueuePolicy { breaker: Some(breaker), ..rules(9) }).await;
    let id = stage
        .dead(NewMessage { headers: [("host".into(), "x".into())].into(), ..new(1, "a") }, "Bad")
        .await
        .id();
    stage.act(id, to("b")).await.expect("pending");
    let breakers = stage.store.breakers().await.expect("breakers answers");
    assert!(breakers.is_empty(), "{breakers:?}");
    stage.settle(stage.take_one("b").await.token, failed("ConnectionError")).await.expect("held");
    let breakers = stage.store.breakers().await.expect("breakers answers");
    assert_eq!(breakers.iter().map(|b| (b.queue.as_str(), b.key.as_str())).collect::<Vec<_>>(), [("b", "x")]);
}

pub(super) async fn i30_a_key_that_is_held_is_free_when_its_letter_dies_elsewhere(stage: &Stage<'_>) {
    let hold = QueuePolicy { on_dead: OnDead::Hold, ..rules(1) };
    stage.set("a", hold.clone()).await;
    stage.set("b", hold).await;
    let ordered = |n| NewMessage { ordering_key: Some("o".into()), ..new(n, "a") };
    let id = stage.dead(ordered(1), "Bad").await.id();
    stage.send(ordered(2)).await;
    assert_eq!(stage.take("a", 9).await.len(), 0, "held by the letter");
    stage.act(id, to("b")).await.expect("pending");
    assert_eq!(stage.take("a", 9).await.len(), 0, "and until it is closed");
    stage.settle(stage.take_one("b").await.token, failed("Bad")).await.expect("held");
    let next = stage.take_one("a").await;
    assert_eq!(next.message.envelope.id, message_id(2), "it holds the key where it lies now");
    stage.settle(next.token, Settle::Ack).await.expect("held");
    stage.send(NewMessage { ordering_key: Some("o".into()), ..new(3, "b") }).await;
    assert_eq!(stage.take("b", 9).await.len(), 0, "which is the other queue");
    stage.act(id, Act::Resolve).await.expect("pending");
    assert_eq!(stage.take("b", 9).await.len(), 1);
}

pub(super) async fn i41_what_is_done_under_its_key_is_not_run_again(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let id = stage.dead(keyed(1, "q"), "Bad").await.id();
    // The key is forgotten, and somebody else does the work.
    stage.clock.advance(limits::KEY_WINDOW);
    let other = stage.send(keyed(2, "q")).await;
    let in_use = Refusal::KeyInUse { id, key: "k".into(), by: other };
    assert_eq!(stage.act(id, Act::retry()).await, Err(in_use.clone()), "while it waits");
    let taken = stage.take_one("q").await;
    assert_eq!(stage.act(id, Act::retry()).await, Err(in_use), "and while it is worked on");
    stage.settle(taken.token, Settle::Ack).await.expect("held");
    let actor = Actor { reason: Some("again".into()), ..operator() };
    let request = ActRequest { id, act: Act::retry(), actor, expected_version: Some(1) };
    let closed = stage.act_as(request).await;
    assert_eq!(closed, Ok(LetterState { id, status: Some(Status::Resolved), version: 2 }));
    let file = stage.letter(id).await.file;
    assert_eq!((file.resolution.as_deref(), file.redrives), (Some("already done"), 0));
    assert_eq!((file.closed_at, file.closed_by.as_deref()), (Some(stage.now()), Some("ada")));
    assert_eq!(file.notes, [Note { at: stage.now(), by: "ada".into(), text: "again".into() }]);
    assert_eq!(stage.take("q", 9).await, [], "nothing runs");
    assert_eq!(stage.counts("q").await, Counts { enqueued: 2, dead: 1, done: 1, ..NONE });
    // Its own success counts as well, and force runs it all the same.
    stage.act(id, Act::Reopen).await.expect("closed");
    stage.act(id, by_force()).await.expect("pending");
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    assert_eq!(stage.letter(id).await.file.resolution.as_deref(), Some("retried"));
    let own = stage.dead(NewMessage { key: Some("own".into()), ..new(3, "q") }, "Bad").await.id();
    stage.act(own, Act::retry()).await.expect("pending");
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    stage.act(own, Act::Reopen).await.expect("closed");
    assert_eq!(stage.act(own, Act::retry()).await.map(|s| s.status), Ok(Some(Status::Resolved)));
    assert_eq!(stage.take("q", 9).await, []);
}

pub(super) async fn a_letter_that_comes_back_too_often_is_for_a_person(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { max_redrives: 2, ..rules(1) }).await;
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    for status in [Status::Pending, Status::Review] {
        stage.act(id, Act::retry()).await.expect("not too often yet");
        stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
        assert_eq!(stage.stands(id).await, status);
    }
    let file = stage.letter(id).await.file;
    assert_eq!((file.review_requested_by.as_deref(), file.redrives), (Some("system"), 2));
    let often = Refusal::RedrivenTooOften { id, redrives: 2, allowed: 2 };
    assert_eq!(stage.act(id, Act::retry()).await, Err(often));
    stage.act(id, by_force()).await.expect("somebody means it");
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    assert_eq!((stage.stands(id).await, stage.letter(id).await.file.redrives), (Status::Review, 3));
    // A queue that takes poison back by itself must not stumble over it.
    let poison = PoisonPolicy { release: Release::Queue, ..PoisonPolicy::default() };
    stage.set("q", QueuePolicy { max_redrives: 2, max_messages: Some(1), poison, ..rules(1) }).await;
    stage.act(id, Act::Quarantine { until: stage.now().plus(secs(5)) }).await.expect("under review");
    stage.clock.advance(secs(5));
    assert_eq!(stage.store.reap(10).await, Ok(Reaped { released: 1, ..Reaped::default() }));
    assert_eq!(stage.stands(id).await, Status::Review);
}

/// The letter as it was, but for what says that something happened to it.
fn as_it_was(before: &DeadLetter, now: &DeadLetter) -> DeadLetter {
    let mut was = before.clone();
    was.message.updated_at = now.message.updated_at;
    was.file.version = now.file.version;
    was.file.available_at = now.file.available_at;
    was.file.history.clone_from(&now.file.history);
    was
}

pub(super) async fn i37_a_redrive_can_be_taken_back_until_it_is_leased(stage: &Stage<'_>) {
    stage.set("a", rules(1)).await;
    stage.set("b", rules(3)).await;
    for (n, act) in [(1, Act::retry()), (2, to("b")), (3, Act::retry_at(stage.now().plus(secs(60))))] {
        let before = stage.dead(keyed(n, "a"), "Bad").await;
        let (id, counts) = (before.id(), stage.counts("a").await);
        stage.act(id, act).await.expect("pending");
        let back = stage.act(id, Act::PullBack).await;
        assert_eq!(back, Ok(LetterState { id, status: Some(Status::Pending), version: 3 }));
        let letter = stage.letter(id).await;
        assert_eq!(letter, as_it_was(&before, &letter), "redrives and generation as before");
        assert_eq!((stage.counts("a").await, stage.counts("b").await), (counts, NONE));
        assert_eq!(refused(stage.store.message(id).await), Refusal::NoSuchMessage { id });
        assert_eq!(stage.holder("a").await, Some(KeyState { id, state: State::Dead }));
        stage.clock.advance(limits::KEY_WINDOW);
    }
    let id = message_id(2);
    stage.act(id, to("b")).await.expect("pending");
    let taken = stage.take_one("b").await;
    assert_eq!(
        (taken.message.generation, taken.attempt),
        (2, 1),
        "the next one is the second generation again"
    );
    let before = stage.seen().await;
    let leased = Refusal::WrongState { id, state: State::Leased, command: "pull back".into() };
    assert_eq!(stage.act(id, Act::PullBack).await, Err(leased));
    assert_eq!(stage.seen().await, before);
    // Released: nobody has worked on it. The lease stays counted, it is the fencing number.
    stage.settle(taken.token, Settle::Release).await.expect("held");
    stage.act(id, Act::PullBack).await.expect("nobody has worked on it");
    assert_eq!(stage.letter(id).await.message.deliveries, 2);
    stage.act(id, to("b")).await.expect("pending");
    stage.settle(stage.take_one("b").await.token, failed("Bad")).await.expect("held");
    let waits = stage.act(id, Act::PullBack).await;
    assert!(matches!(waits, Err(Refusal::WrongState { .. })), "it was worked on: {waits:?}");
}

pub(super) async fn a_purged_letter_can_be_taken_back_for_a_day(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let id = stage.dead(keyed(1, "q"), "Bad").await.id();
    let actor = Actor { reason: Some("nonsense".into()), ..operator() };
    let abandon = ActRequest { id, act: Act::Abandon, actor, expected_version: None };
    stage.act_as(abandon).await.expect("pending");
    let closed = stage.letter(id).await;
    stage.clock.advance(secs(10));
    let purged_at = stage.now();
    stage.act(id, Act::Purge).await.expect("closed");
    let purged = stage.letter(id).await;
    let file = File {
        status: Status::Purged,
        purged_from: Some(Status::Abandoned),
        expires_at: Some(purged_at.plus(limits::PURGE_UNDO)),
        version: 3,
        history: purged.file.history.clone(),
        ..closed.file.clone()
    };
    assert_eq!(purged, DeadLetter { file, ..closed.clone() }, "nothing of it is lost yet");
    assert_eq!(stage.counts("q").await, Counts { enqueued: 1, purged: 1, ..NONE }, "but it counts as gone");
    for (filter, met) in [
        ("", 0),
        ("queue:q", 0),
        ("not status:pending", 0),
        ("status!=pending", 0),
        ("status:purged", 1),
        ("status:abandoned,purged", 1),
        ("status:purged or queue:z", 1),
    ] {
        assert_eq!(stage.letters(filter).await.len(), met, "{filter:?}");
        let filter = redrive_core::filter::Filter::parse(filter).expect("a filter");
        let look = PreviewRequest::new(Act::Unpurge, filter, 5);
        let preview = stage.store.preview(look).await.expect("preview answers");
        assert_eq!(preview.count, met as u64, "{}", preview.count);
    }
    assert_eq!(stage.holder("q").await, Some(KeyState { id, state: State::Purged }));
    let again = stage.try_send(new(1, "q")).await;
    assert_eq!(again, Ok(Enqueued { id, state: State::Purged, duplicate: true }), "its id is not free yet");
    stage.clock.set(purged_at.plus(limits::PURGE_UNDO).minus(Span::from_millis(1)));
    assert_eq!(stage.store.reap(10).await.expect("answers").letters_gone, 0);
    stage.act(id, Act::Unpurge).await.expect("just in time");
    let back = stage.letter(id).await;
    assert_eq!(back, as_it_was(&closed, &back));
    assert_eq!(stage.counts("q").await, Counts { enqueued: 1, dead: 1, ..NONE });
}

pub(super) async fn trap11_what_is_purged_is_gone_after_its_time(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { retention: secs(60), ..rules(1) }).await;
    let mut ids = Vec::new();
    for (n, act) in [(1, Act::Resolve), (2, Act::Abandon), (3, Act::Resolve)] {
        let id = stage.dead(NewMessage { key: Some(format!("k{n}")), ..new(n, "q") }, "Bad").await.id();
        stage.act(id, act).await.expect("pending");
        ids.push(id);
    }
    stage.act(ids[0], Act::Purge).await.expect("closed");
    stage.act(ids[1], Act::Purge).await.expect("closed");
    stage.clock.advance(secs(60));
    let retention = stage.store.reap(10).await.expect("answers");
    assert_eq!((retention.letters_expired, retention.letters_gone), (1, 0), "retention takes the closed one");
    stage.act(ids[0], Act::Unpurge).await.expect("in time");
    let kept = stage.letter(ids[0]).await.file.expires_at;
    assert_eq!(kept, Some(stage.now().plus(limits::PURGE_UNDO)), "who takes it back has a day to look at it");
    stage.act(ids[0], Act::Purge).await.expect("closed");
    stage.clock.advance(limits::PURGE_UNDO);
    let late = stage.act(ids[0], Act::Unpurge).await;
    assert!(matches!(late, Err(Refusal::WrongStatus { .. })), "{late:?}");
    assert_eq!(
        stage.store.reap(10).await.expect("answers").letters_gone,
        2,
        "every way of closing is covered"
    );
    for id in ids {
        assert_eq!(refused(stage.store.letter(id).await), Refusal::NoSuchLetter { id });
    }
    assert_eq!(stage.letters("status:purged").await, []);
    assert_eq!(stage.counts("q").await, Counts { enqueued: 3, purged: 3, ..NONE }, "each is counted once");
    assert!(stage.seen().await.comparable().drawers[0].by_status.is_empty());
    let again = stage.try_send(new(2, "q")).await.expect("accepted");
    assert!(!again.duplicate, "nothing is left of it");
}

pub(super) async fn a_held_letter_never_expires(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { retention: secs(60), open_ttl: Some(secs(100)), ..rules(1) }).await;
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    stage.act(id, Act::Hold { on: true }).await.expect("any status");
    assert_eq!(stage.letter(id).await.file.expires_at, None);
    stage.clock.advance(secs(3_600));
    assert!(stage.store.reap(10).await.expect("answers").is_idle(), "open ones do not");
    stage.act(id, Act::retry()).await.expect("pending");
    stage.settle(stage.take_one("q").await.token, hopeless("Bad")).await.expect("held");
    assert_eq!(stage.letter(id).await.file.expires_at, None, "also when it dies again");
    stage.act(id, Act::Resolve).await.expect("pending");
    stage.clock.advance(secs(3_600));
    assert!(stage.store.reap(10).await.expect("answers").is_idle(), "closed ones do not");
    let refusal = stage.act(id, Act::Purge).await.expect_err("it is held");
    assert!(refusal.to_string().contains("unhold"), "{refusal}");
    stage.act(id, Act::Hold { on: false }).await.expect("any status");
    let expires = stage.letter(id).await.file.expires_at;
    assert_eq!(expires, Some(stage.now().plus(limits::PURGE_UNDO)), "its retention is over, but not at once");
    stage.clock.advance(limits::PURGE_UNDO);
    assert_eq!(stage.store.reap(10).await.expect("answers").letters_expired, 1);
}

pub(super) async fn a_snoozed_letter_is_hidden_from_consumers_until_then(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let until = stage.now().plus(secs(60));
    for n in 1..=3 {
        let id = stage.dead(new(n, "q"), "Bad").await.id();
        stage.act(id, Act::Snooze { until }).await.expect("pending");
    }
    assert_eq!(stage.letter(message_id(1)).await.file.snoozed_until, Some(until));
    assert_eq!(stage.drawn("q-dlq").await, []);
    assert_eq!((stage.letters("snoozed:yes").await.len(), stage.letters("snoozed:no").await.len()), (3, 0));
    // Another decision, or a time that is over, wakes it.
    stage.act(message_id(1), Act::Review).await.expect("pending");
    stage.act(message_id(1), Act::Release).await.expect("under review");
    stage.act(message_id(2), Act::Snooze { until: stage.now() }).await.expect("pending");
    assert_eq!(stage.drawn("q-dlq").await, [message_id(1), message_id(2)]);
    stage.clock.set(until);
    assert_eq!(stage.drawn("q-dlq").await, [message_id(3)]);
    assert_eq!(stage.letters("snoozed:yes").await.len(), 0);
    let absurd = Act::Snooze { until: stage.now().plus(Span::from_days(4_000)) };
    stage.clock.advance(secs(600));
    assert_eq!(field(stage.act(message_id(3), absurd).await.expect_err("absurd")), "until");
}

pub(super) async fn owners_and_labels_stay_with_the_letter(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let tagged = NewMessage { tags: ["vip".to_owned()].into(), ..new(1, "q") };
    let id = stage.dead(tagged, "Bad").await.id();
    let label = |add: &[&str], remove: &[&str]| {
        let set = |all: &[&str]| all.iter().map(|l| (*l).to_owned()).collect();
        Act::Label { add: set(add), remove: set(remove) }
    };
    stage.act(id, Act::Assign { to: Some("eve".into()) }).await.expect("any status");
    stage.act(id, label(&["bug-7", "seen"], &[])).await.expect("any status");
    stage.act(id, label(&["late"], &["seen", "never"])).await.expect("any status");
    let labels = BTreeSet::from(["bug-7".to_owned(), "late".to_owned()]);
    let file = stage.letter(id).await.file;
    assert_eq!((file.owner.as_deref(), &file.labels), (Some("eve"), &labels));
    for filter in ["tag:bug-7", "tag:vip", "owner:eve", "held:no"] {
        assert_eq!(stage.letters(filter).await.len(), 1, "{filter}");
    }
    assert_eq!(stage.letters("tag:seen").await.len() + stage.letters("owner:bob").await.len(), 0);
    stage.act(id, Act::retry()).await.expect("pending");
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    let file = stage.letter(id).await.file;
    assert_eq!((file.owner.as_deref(), &file.labels), (Some("eve"), &labels), "also through another death");
    stage.act(id, Act::Assign { to: None }).await.expect("any status");
    assert_eq!(stage.letter(id).await.file.owner, None);
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
        assert_eq!(field(stage.act(id, act).await.expect_err("out of bounds")), named);
    }
}

pub(super) async fn i38_a_letter_moves_to_drawers_only(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    stage.set("other", QueuePolicy { dlq: Some(q("bin")), ..rules(1) }).await;
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let before = stage.seen().await;
    for (dlq, why) in [("q", "a queue"), ("other", "a queue"), ("nowhere", "nobody's")] {
        let refusal = stage.act(id, Act::Move { dlq: q(dlq) }).await.expect_err(why);
        assert_eq!(field(refusal), "dlq");
    }
    let there = stage.act(id, Act::Move { dlq: q("q-dlq") }).await;
    assert!(matches!(there, Err(Refusal::WrongStatus { .. })), "{there:?}");
    assert_eq!(stage.seen().await, before);
    stage.act(id, Act::Move { dlq: q("bin") }).await.expect("pending");
    let letter = stage.letter(id).await;
    assert_eq!(
        (letter.file.dlq, letter.message.envelope.queue),
        (q("bin"), q("q")),
        "the queue is as before"
    );
    let lying = stage.seen().await.comparable().drawers.into_iter().filter(|d| !d.by_status.is_empty());
    assert_eq!(lying.map(|d| d.dlq).collect::<Vec<QueueName>>(), [q("bin")]);
    assert_eq!(stage.drawn("bin").await, [id]);
    let held: Time = stage.now().plus(secs(300));
    let leased = Refusal::LetterLeased { id, worker: "c".into(), until: held };
    assert_eq!(stage.act(id, Act::Move { dlq: q("q-dlq") }).await, Err(leased.clone()));
    assert_eq!(stage.act(id, Act::Snooze { until: held }).await, Err(leased));
    for act in [Act::Hold { on: true }, Act::Assign { to: Some("eve".into()) }, Act::Note] {
        stage.act(id, act).await.expect("it only writes on the file");
    }
    assert_eq!(stage.letter(id).await.file.consumer.as_deref(), Some("c"), "the consumer still has it");
}

pub(super) async fn i48_a_row_tells_the_file_before_from_the_file_after(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let acts = [
        Act::Note,
        Act::Assign { to: Some("eve".into()) },
        Act::retry_at(stage.now().plus(secs(9))),
        Act::PullBack,
        Act::Resolve,
        Act::Purge,
        Act::Unpurge,
    ];
    let skip = stage.entries().await.len();
    let mut states = vec![Some(fingerprint(&stage.letter(id).await.file))];
    for act in acts.clone() {
        stage.act(id, act).await.expect("the way is open");
        states.push(Some(fingerprint(&stage.letter(id).await.file)));
    }
    let rows = stage.entries().await.split_off(skip);
    assert_eq!(rows.len(), acts.len());
    for (n, (row, act)) in rows.iter().zip(&acts).enumerate() {
        assert_eq!((&row.before, &row.after), (&states[n], &states[n + 1]), "{}", row.act);
        assert_eq!((row.act.as_str(), &row.detail), (act.name(), &act.detail()));
    }
}
