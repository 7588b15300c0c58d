//! Laws of `settle`: only the holder of the live lease is heard, once, and what it says is judged here.

use super::Stage;
use super::kit::{
    BACKOFF, MS, failed, failure, field, fresh, hopeless, new, q, refused, rules, secs, unwatched,
};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::backoff::{Backoff, Roll};
use redrive_core::error::Refusal;
use redrive_core::failure::Reason;
use redrive_core::ids::{LeaseToken, Secret};
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::message::{Message, NewMessage, Payload};
use redrive_core::policy::{OnExpire, Override, QueuePolicy};
use redrive_core::progress::Progress;
use redrive_core::store::{Settle, Settled, Settlement};
use redrive_core::time::Span;

/// Everything a worker can say.
fn everything() -> Vec<Settle> {
    vec![
        Settle::Ack,
        Settle::Reply { payload: Payload::default() },
        Settle::Progress { progress: Progress::new(1, None, "") },
        failed("Late"),
        hopeless("Late"),
        Settle::Release,
        Settle::Snooze { span: secs(1) },
        Settle::Extend { by: Some(secs(600)) },
    ]
}

pub(super) async fn an_acknowledged_message_is_done(stage: &Stage<'_>) {
    let id = stage.send(new(1, "q")).await;
    let taken = stage.take_one("q").await;
    let settled = stage.settle(taken.token, Settle::Ack).await;
    let done = Settled {
        id,
        state: State::Done,
        ready_at: None,
        lease_expires_at: None,
        reason: None,
        dlq: None,
        reply: None,
    };
    assert_eq!(settled, Ok(done));
    assert_eq!(refused(stage.store.message(id).await), Refusal::NoSuchMessage { id });
    assert_eq!(stage.counts("q").await, Counts { enqueued: 1, done: 1, ..Counts::default() });
    assert_eq!(stage.seen().await.messages, []);
}

pub(super) async fn a_failed_message_waits_for_its_retry(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    let sent = new(1, "q");
    let id = stage.send(sent.clone()).await;
    let taken = stage.take_one("q").await;
    let now = stage.clock.advance(secs(2));
    let settled = stage.settle(taken.token, failed("Bad")).await;
    let ready_at = Some(now.plus(BACKOFF));
    let waits = Settled {
        id,
        state: State::Scheduled,
        ready_at,
        lease_expires_at: None,
        reason: None,
        dlq: None,
        reply: None,
    };
    assert_eq!(settled, Ok(waits));
    let waiting = Message {
        state: State::Scheduled,
        attempts: 1,
        deliveries: 1,
        failed: 1,
        ready_at: now.plus(BACKOFF),
        first_received_at: Some(START),
        updated_at: now,
        failures: vec![failure("Bad").file(1, 1, now, Some("w".into()))],
        ..fresh(&sent, &rules(5), 1, START)
    };
    assert_eq!(stage.message(id).await, waiting);
    assert_eq!(stage.counts("q").await, Counts { enqueued: 1, waiting: 1, bytes: 9, ..Counts::default() });
}

pub(super) async fn i17_a_stale_token_changes_nothing(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    let id = stage.send(new(1, "q")).await;
    let unknown = LeaseToken { id: message_id(99), secret: Secret::new([7; 16]) };
    let waiting = LeaseToken { id, secret: Secret::new([7; 16]) };
    let dead = stage.dead(new(2, "other"), "Bad").await.id();
    let buried = LeaseToken { id: dead, secret: Secret::new([7; 16]) };
    let before = stage.seen().await;
    for token in [unknown, waiting, buried] {
        for what in everything() {
            assert_eq!(stage.settle(token, what).await, Err(Refusal::StaleToken { id: token.id }));
        }
    }
    assert_eq!(stage.seen().await, before);
    let first = stage.take_one("q").await;
    stage.settle(first.token, failed("Bad")).await.expect("held");
    stage.clock.advance(BACKOFF);
    let second = stage.take_one("q").await;
    let before = stage.seen().await;
    for token in [waiting, first.token] {
        for what in everything() {
            assert_eq!(stage.settle(token, what).await, Err(Refusal::StaleToken { id }));
        }
    }
    assert_eq!(stage.seen().await, before, "not even the failure text of the loser is kept");
    stage.settle(second.token, Settle::Ack).await.expect("the winner is not disturbed");
}

pub(super) async fn i20_i22_too_late_is_too_late(stage: &Stage<'_>) {
    let id = stage.send(new(1, "q")).await;
    let taken = stage.take_one("q").await;
    let expired_at = stage.clock.advance(secs(30));
    let before = stage.seen().await;
    for what in everything() {
        assert_eq!(stage.settle(taken.token, what).await, Err(Refusal::LeaseExpired { id, expired_at }));
    }
    assert_eq!(stage.seen().await, before, "an expired lease is not revived");
}

pub(super) async fn i13_exactly_one_finaliser(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    let id = stage.send(new(1, "q")).await;
    let slow = stage.take_one("q").await;
    stage.clock.advance(secs(30));
    assert_eq!(stage.store.reap(10).await.expect("answers").leases_lost, 1);
    // The slow worker finishes after the reaper: a no-op, whatever it says.
    assert_eq!(stage.settle(slow.token, Settle::Ack).await, Err(Refusal::StaleToken { id }));
    stage.clock.advance(BACKOFF);
    let quick = stage.take_one("q").await;
    assert_eq!(stage.settle(slow.token, failed("Late")).await, Err(Refusal::StaleToken { id }));
    stage.settle(quick.token, Settle::Ack).await.expect("held");
    for token in [slow.token, quick.token] {
        assert_eq!(stage.settle(token, Settle::Ack).await, Err(Refusal::StaleToken { id }));
    }
    assert_eq!(stage.counts("q").await, Counts { enqueued: 1, done: 1, ..Counts::default() });
}

pub(super) async fn i13_dead_is_as_final_as_done(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let id = stage.send(new(1, "q")).await;
    let taken = stage.take_one("q").await;
    stage.settle(taken.token, failed("Bad")).await.expect("held");
    let before = stage.seen().await;
    assert_eq!(stage.settle(taken.token, Settle::Ack).await, Err(Refusal::StaleToken { id }));
    assert_eq!(stage.seen().await, before);
}

pub(super) async fn i26_executions_never_exceed_max_attempts(stage: &Stage<'_>) {
    for (n, max) in [(1, 1), (2, 2), (3, 5)] {
        let queue = format!("q{n}");
        stage.set(&queue, rules(max)).await;
        let id = stage.send(new(n, &queue)).await;
        let mut executions = 0;
        for _ in 0..20 {
            for taken in stage.take(&queue, 10).await {
                executions += 1;
                assert_eq!(taken.attempt, executions);
                // Crash, release and error by turns: the first two must not be a way round the limit.
                if executions % 2 == 0 {
                    stage.clock.advance(secs(30));
                } else {
                    stage.settle(taken.token, failed("Bad")).await.expect("held");
                }
            }
            stage.clock.advance(BACKOFF);
        }
        assert_eq!(executions, max);
        let letter = stage.letter(id).await;
        assert_eq!((letter.file.reason, letter.message.attempts), (Reason::MaxAttempts, max));
    }
}

pub(super) async fn a_message_may_have_a_limit_of_its_own(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let id = stage.send(NewMessage { max_attempts: Some(2), ..new(1, "q") }).await;
    let taken = stage.take_one("q").await;
    assert_eq!(stage.settle(taken.token, failed("Bad")).await.map(|s| s.state), Ok(State::Scheduled));
    stage.clock.advance(BACKOFF);
    let taken = stage.take_one("q").await;
    let settled = stage.settle(taken.token, failed("Bad")).await.expect("held");
    let reason = Some(Reason::MaxAttempts);
    assert_eq!(
        settled,
        Settled {
            id,
            state: State::Dead,
            ready_at: None,
            lease_expires_at: None,
            reason,
            dlq: Some(q("q-dlq")),
            reply: None
        }
    );
}

pub(super) async fn i27_every_delay_is_what_the_backoff_says(stage: &Stage<'_>) {
    let backoff = Backoff::default();
    stage.set("q", QueuePolicy { max_attempts: 12, backoff: backoff.clone(), ..unwatched(1) }).await;
    let id = stage.send(new(1, "q")).await;
    let mut last = None;
    for attempt in 1..=11 {
        let taken = stage.take_one("q").await;
        let now = stage.clock.advance(MS);
        let settled = stage.settle(taken.token, failed("Bad")).await.expect("held");
        let delay = backoff.delay(attempt, last, None, Roll::of(id, taken.message.deliveries));
        assert!(delay <= backoff.cap);
        assert_eq!(settled.ready_at, Some(now.plus(delay)), "retry {attempt}");
        last = Some(delay);
        stage.clock.advance(delay);
    }
}

pub(super) async fn trap8_retry_after_is_bounded_and_counts(stage: &Stage<'_>) {
    stage.set("q", rules(3)).await;
    let id = stage.send(new(1, "q")).await;
    for (hint, waits) in [(secs(60), secs(60)), (Span::from_days(3_000), rules(3).backoff.cap)] {
        let taken = stage.take_one("q").await;
        let mut failure = failure("RateLimited");
        failure.report.retry_after = Some(hint);
        let what = Settle::Fail { failure: Box::new(failure), said: None };
        let settled = stage.settle(taken.token, what).await.expect("held");
        assert_eq!(settled.ready_at, Some(stage.now().plus(waits)));
        stage.clock.advance(waits);
    }
    let taken = stage.take_one("q").await;
    assert_eq!(taken.attempt, 3);
    assert_eq!(stage.settle(taken.token, failed("Bad")).await.map(|s| s.state), Ok(State::Dead));
    assert_eq!(stage.letter(id).await.file.reason, Reason::MaxAttempts);
}

pub(super) async fn rules_and_words_decide_before_the_count(stage: &Stage<'_>) {
    let policy = QueuePolicy {
        include: vec!["Fatal*".parse().expect("a glob")],
        exclude: vec!["FatalButPatient".parse().expect("a type")],
        retry_for: secs(100),
        ..rules(1)
    };
    stage.set("q", policy).await;
    let said = |said| Settle::Fail { failure: Box::new(failure("Bad")), said: Some(said) };
    let cases = [
        (failed("FatalThing"), Some(Reason::Rule)),
        (hopeless("FatalButPatient"), Some(Reason::Permanent)),
        (said(Override::DeadLetter), Some(Reason::Manual)),
        (failed("Bad"), Some(Reason::MaxAttempts)),
        (said(Override::RetryAfter(secs(7))), None),
        (failed("FatalButPatient"), None),
        (said(Override::Retry), None),
    ];
    for (n, (what, reason)) in (1..).zip(cases) {
        let id = stage.send(new(n, "q")).await;
        let taken = stage.take_one("q").await;
        let settled = stage.settle(taken.token, what).await.expect("held");
        let state = if reason.is_some() { State::Dead } else { State::Scheduled };
        assert_eq!((settled.id, settled.state, settled.reason), (id, state, reason), "case {n}");
    }
    assert_eq!(stage.message(message_id(5)).await.ready_at, stage.now().plus(secs(7)));
    assert_eq!(stage.message(message_id(7)).await.ready_at, stage.now().plus(BACKOFF));
    // Excluded from the count is not excluded for ever: the time budget ends it.
    stage.clock.advance(secs(50));
    for taken in stage.take("q", 3).await {
        assert_eq!(stage.settle(taken.token, failed("FatalButPatient")).await.map(|s| s.reason), Ok(None));
    }
    stage.clock.advance(secs(50));
    for taken in stage.take("q", 3).await {
        let settled = stage.settle(taken.token, failed("FatalButPatient")).await.expect("held");
        assert_eq!(settled.reason, Some(Reason::RetryBudget));
    }
    assert_eq!(stage.counts("q").await.dead, 7);
}

pub(super) async fn a_retry_that_would_come_too_late_is_not_made(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    stage.set("drops", QueuePolicy { on_expire: OnExpire::Drop, ..rules(5) }).await;
    let deadline = Some(START.plus(BACKOFF));
    stage.send(NewMessage { deadline, ..new(1, "q") }).await;
    let taken = stage.take_one("q").await;
    let settled = stage.settle(taken.token, failed("Bad")).await.expect("held");
    assert_eq!((settled.state, settled.reason), (State::Dead, Some(Reason::Deadline)));
    let id = stage.send(NewMessage { ttl: Some(BACKOFF), ..new(2, "drops") }).await;
    let taken = stage.take_one("drops").await;
    let settled = stage.settle(taken.token, failed("Dropped")).await.expect("held");
    let gone = Settled {
        id,
        state: State::Expired,
        ready_at: None,
        lease_expires_at: None,
        reason: None,
        dlq: None,
        reply: None,
    };
    assert_eq!(settled, gone);
    assert_eq!(stage.counts("drops").await, Counts { enqueued: 1, expired: 1, ..Counts::default() });
    let groups = stage.seen().await.groups;
    let dropped = groups.iter().find(|g| g.error_type == "Dropped").expect("the failure happened");
    assert_eq!((dropped.open, dropped.total, dropped.failures), (0, 0, 1));
}

pub(super) async fn trap9_release_and_snooze_give_the_attempt_back(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let sent = new(1, "q");
    let id = stage.send(sent.clone()).await;
    let taken = stage.take_one("q").await;
    let now = stage.clock.advance(secs(1));
    let settled = stage.settle(taken.token, Settle::Release).await;
    let ready = |ready_at| Settled {
        id,
        state: State::Ready,
        ready_at,
        lease_expires_at: None,
        reason: None,
        dlq: None,
        reply: None,
    };
    assert_eq!(settled, Ok(ready(Some(START))), "it keeps its place");
    let given_back = Message {
        deliveries: 1,
        first_received_at: Some(START),
        updated_at: now,
        ..fresh(&sent, &rules(1), 1, START)
    };
    assert_eq!(stage.message(id).await, given_back);
    let taken = stage.take_one("q").await;
    assert_eq!((taken.attempt, taken.message.deliveries), (1, 2), "the fencing number is never given back");
    let settled = stage.settle(taken.token, Settle::Snooze { span: secs(5) }).await.expect("held");
    assert_eq!((settled.state, settled.ready_at), (State::Scheduled, Some(now.plus(secs(5)))));
    let waiting = stage.message(id).await;
    assert_eq!((waiting.attempts, waiting.deliveries, waiting.failed), (0, 2, 0));
    stage.clock.advance(secs(5));
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
}

pub(super) async fn i26_giving_back_has_an_end(stage: &Stage<'_>) {
    stage.set("q", rules(2)).await;
    let id = stage.send(new(1, "q")).await;
    for n in 0..limits::GIVE_BACKS_MAX {
        let taken = stage.take_one("q").await;
        assert_eq!(taken.attempt, 1, "free so far ({n})");
        let what = if n % 2 == 0 { Settle::Release } else { Settle::Snooze { span: Span::ZERO } };
        assert_eq!(stage.settle(taken.token, what).await.map(|s| s.state), Ok(State::Ready));
    }
    let taken = stage.take_one("q").await;
    stage.settle(taken.token, Settle::Release).await.expect("held");
    let taken = stage.take_one("q").await;
    assert_eq!(taken.attempt, 2, "the one before counted");
    stage.clock.advance(secs(4));
    let settled = stage.settle(taken.token, Settle::Release).await.expect("held");
    assert_eq!((settled.state, settled.reason), (State::Dead, Some(Reason::MaxAttempts)));
    let letter = stage.letter(id).await;
    assert_eq!((letter.message.deliveries, letter.message.attempts, letter.message.failed), (102, 2, 1));
    assert_eq!(letter.error.error_type, "LeaseExpired");
    assert_eq!(letter.message.failures[0].duration, Some(secs(4)));
}

pub(super) async fn i20_extending_never_shortens_and_ends_after_twelve_hours(stage: &Stage<'_>) {
    let id = stage.send(new(1, "q")).await;
    let taken = stage.take_one("q").await;
    let now = stage.clock.advance(secs(10));
    let extended = |until| Settled {
        id,
        state: State::Leased,
        ready_at: None,
        lease_expires_at: Some(until),
        reason: None,
        dlq: None,
        reply: None,
    };
    for (by, until) in [
        (None, now.plus(secs(30))),
        (Some(secs(5)), now.plus(secs(30))),
        (Some(secs(600)), now.plus(secs(600))),
        (None, now.plus(secs(600))),
        (Some(limits::LEASE_MAX), START.plus(limits::LEASE_MAX)),
    ] {
        let settled = stage.settle(taken.token, Settle::Extend { by }).await;
        assert_eq!(settled, Ok(extended(until)), "{by:?}");
        assert_eq!(stage.message(id).await.lease_expires_at, Some(until));
    }
    stage.clock.set(START.plus(limits::LEASE_MAX).minus(MS));
    let settled = stage.settle(taken.token, Settle::Extend { by: Some(secs(60)) }).await;
    assert_eq!(settled, Ok(extended(START.plus(limits::LEASE_MAX))), "a forgotten worker lets go in the end");
    let message = stage.message(id).await;
    assert_eq!((message.attempts, message.deliveries), (1, 1));
}

pub(super) async fn i5_each_settlement_has_its_own_result(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    for n in 1..=4 {
        stage.send(new(n, "q")).await;
    }
    let taken = stage.take("q", 3).await;
    let say = |n: usize, what| Settlement { token: taken[n].token, what };
    let stranger = LeaseToken { id: message_id(4), secret: Secret::new([1; 16]) };
    let batch = vec![
        say(0, Settle::Ack),
        say(0, Settle::Ack),
        say(1, Settle::Snooze { span: Span::from_days(4_000) }),
        Settlement { token: stranger, what: Settle::Ack },
        say(2, Settle::Extend { by: Some(MS) }),
        say(1, failed("Bad")),
        say(2, hopeless("Worse")),
    ];
    let each = stage.store.settle(batch).await.expect("answers");
    let states: Vec<_> = each.iter().map(|r| r.as_ref().ok().map(|s| s.state)).collect();
    let (done, waits, dead) = (Some(State::Done), Some(State::Scheduled), Some(State::Dead));
    assert_eq!(states, [done, None, None, None, None, waits, dead]);
    assert_eq!(each[1], Err(Refusal::StaleToken { id: message_id(1) }), "the same token twice");
    assert_eq!(field(each[2].clone().expect_err("too long")), "snooze");
    assert_eq!(each[3], Err(Refusal::StaleToken { id: message_id(4) }));
    assert_eq!(field(each[4].clone().expect_err("too short")), "lease");
    let counts = Counts { enqueued: 4, waiting: 2, dead: 1, done: 1, bytes: 18, ..Counts::default() };
    assert_eq!(stage.counts("q").await, counts);
    assert_eq!(stage.store.settle(Vec::new()).await, Ok(Vec::new()));
}
