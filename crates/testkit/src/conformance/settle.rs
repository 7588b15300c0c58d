//! Laws of `settle`: only the holder of the current lease can settle, once, and the store decides what
//! follows.

use super::LawContext;
use super::kit::{
    BACKOFF, MS, expected_message, fail, fail_permanently, failure, max_attempts, msg, no_poison_check, q,
    refused, refused_field, secs,
};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::backoff::{Backoff, JitterSeed};
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

/// Every way to settle a delivery.
fn all_settlements() -> Vec<Settle> {
    vec![
        Settle::Ack,
        Settle::Reply { payload: Payload::default() },
        Settle::Progress { progress: Progress::new(1, None, "") },
        fail("Late"),
        fail_permanently("Late"),
        Settle::Release,
        Settle::Snooze { span: secs(1) },
        Settle::Extend { by: Some(secs(600)) },
    ]
}

pub(super) async fn an_acknowledged_message_is_done(ctx: &LawContext<'_>) {
    let id = ctx.send(msg(1, "q")).await;
    let taken = ctx.lease_one("q").await;
    let settled = ctx.settle(taken.token, Settle::Ack).await;
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
    assert_eq!(refused(ctx.store.message(id).await), Refusal::NoSuchMessage { id });
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 1, done: 1, ..Counts::default() });
    assert_eq!(ctx.view().await.messages, []);
}

pub(super) async fn a_failed_message_waits_for_its_retry(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    let sent = msg(1, "q");
    let id = ctx.send(sent.clone()).await;
    let taken = ctx.lease_one("q").await;
    let now = ctx.clock.advance(secs(2));
    let settled = ctx.settle(taken.token, fail("Bad")).await;
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
        failures: vec![failure("Bad").into_failure(1, 1, now, Some("w".into()))],
        ..expected_message(&sent, &max_attempts(5), 1, START)
    };
    assert_eq!(ctx.message(id).await, waiting);
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 1, waiting: 1, bytes: 9, ..Counts::default() });
}

pub(super) async fn i17_a_stale_token_changes_nothing(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    let id = ctx.send(msg(1, "q")).await;
    let unknown = LeaseToken { id: message_id(99), secret: Secret::new([7; 16]) };
    let waiting = LeaseToken { id, secret: Secret::new([7; 16]) };
    let dead = ctx.dead_letter(msg(2, "other"), "Bad").await.id();
    let buried = LeaseToken { id: dead, secret: Secret::new([7; 16]) };
    let before = ctx.view().await;
    for token in [unknown, waiting, buried] {
        for what in all_settlements() {
            assert_eq!(ctx.settle(token, what).await, Err(Refusal::StaleToken { id: token.id }));
        }
    }
    assert_eq!(ctx.view().await, before);
    let first = ctx.lease_one("q").await;
    ctx.settle(first.token, fail("Bad")).await.expect("held");
    ctx.clock.advance(BACKOFF);
    let second = ctx.lease_one("q").await;
    let before = ctx.view().await;
    for token in [waiting, first.token] {
        for what in all_settlements() {
            assert_eq!(ctx.settle(token, what).await, Err(Refusal::StaleToken { id }));
        }
    }
    assert_eq!(ctx.view().await, before, "not even the failure text is kept");
    ctx.settle(second.token, Settle::Ack).await.expect("the current holder is not affected");
}

pub(super) async fn i20_i22_an_expired_lease_cannot_settle(ctx: &LawContext<'_>) {
    let id = ctx.send(msg(1, "q")).await;
    let taken = ctx.lease_one("q").await;
    let expired_at = ctx.clock.advance(secs(30));
    let before = ctx.view().await;
    for what in all_settlements() {
        assert_eq!(ctx.settle(taken.token, what).await, Err(Refusal::LeaseExpired { id, expired_at }));
    }
    assert_eq!(ctx.view().await, before, "an expired lease is not revived");
}

pub(super) async fn i13_exactly_one_finaliser(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    let id = ctx.send(msg(1, "q")).await;
    let slow = ctx.lease_one("q").await;
    ctx.clock.advance(secs(30));
    assert_eq!(ctx.store.reap(10).await.expect("succeeds").leases_lost, 1);
    // The slow worker finishes after the reaper: whatever it settles, nothing changes.
    assert_eq!(ctx.settle(slow.token, Settle::Ack).await, Err(Refusal::StaleToken { id }));
    ctx.clock.advance(BACKOFF);
    let quick = ctx.lease_one("q").await;
    assert_eq!(ctx.settle(slow.token, fail("Late")).await, Err(Refusal::StaleToken { id }));
    ctx.settle(quick.token, Settle::Ack).await.expect("held");
    for token in [slow.token, quick.token] {
        assert_eq!(ctx.settle(token, Settle::Ack).await, Err(Refusal::StaleToken { id }));
    }
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 1, done: 1, ..Counts::default() });
}

pub(super) async fn i13_dead_is_as_final_as_done(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let id = ctx.send(msg(1, "q")).await;
    let taken = ctx.lease_one("q").await;
    ctx.settle(taken.token, fail("Bad")).await.expect("held");
    let before = ctx.view().await;
    assert_eq!(ctx.settle(taken.token, Settle::Ack).await, Err(Refusal::StaleToken { id }));
    assert_eq!(ctx.view().await, before);
}

pub(super) async fn i26_executions_never_exceed_max_attempts(ctx: &LawContext<'_>) {
    for (n, max) in [(1, 1), (2, 2), (3, 5)] {
        let queue = format!("q{n}");
        ctx.configure(&queue, max_attempts(max)).await;
        let id = ctx.send(msg(n, &queue)).await;
        let mut executions = 0;
        for _ in 0..20 {
            for taken in ctx.lease(&queue, 10).await {
                executions += 1;
                assert_eq!(taken.attempt, executions);
                // Crashes, releases and errors alternate: the first two must not circumvent the limit.
                if executions % 2 == 0 {
                    ctx.clock.advance(secs(30));
                } else {
                    ctx.settle(taken.token, fail("Bad")).await.expect("held");
                }
            }
            ctx.clock.advance(BACKOFF);
        }
        assert_eq!(executions, max);
        let letter = ctx.letter(id).await;
        assert_eq!((letter.record.reason, letter.message.attempts), (Reason::MaxAttempts, max));
    }
}

pub(super) async fn a_message_may_set_its_own_attempt_limit(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let id = ctx.send(NewMessage { max_attempts: Some(2), ..msg(1, "q") }).await;
    let taken = ctx.lease_one("q").await;
    assert_eq!(ctx.settle(taken.token, fail("Bad")).await.map(|s| s.state), Ok(State::Scheduled));
    ctx.clock.advance(BACKOFF);
    let taken = ctx.lease_one("q").await;
    let settled = ctx.settle(taken.token, fail("Bad")).await.expect("held");
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

pub(super) async fn i27_every_delay_is_what_the_backoff_says(ctx: &LawContext<'_>) {
    let backoff = Backoff::default();
    ctx.configure("q", QueuePolicy { max_attempts: 12, backoff: backoff.clone(), ..no_poison_check(1) })
        .await;
    let id = ctx.send(msg(1, "q")).await;
    let mut last = None;
    for attempt in 1..=11 {
        let taken = ctx.lease_one("q").await;
        let now = ctx.clock.advance(MS);
        let settled = ctx.settle(taken.token, fail("Bad")).await.expect("held");
        let delay = backoff.delay(attempt, last, None, JitterSeed::of(id, taken.message.deliveries));
        assert!(delay <= backoff.cap);
        assert_eq!(settled.ready_at, Some(now.plus(delay)), "retry {attempt}");
        last = Some(delay);
        ctx.clock.advance(delay);
    }
}

pub(super) async fn trap8_retry_after_is_bounded_and_counts(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(3)).await;
    let id = ctx.send(msg(1, "q")).await;
    for (hint, waits) in [(secs(60), secs(60)), (Span::from_days(3_000), max_attempts(3).backoff.cap)] {
        let taken = ctx.lease_one("q").await;
        let mut failure = failure("RateLimited");
        failure.report.retry_after = Some(hint);
        let what = Settle::Fail { failure: Box::new(failure), policy_override: None };
        let settled = ctx.settle(taken.token, what).await.expect("held");
        assert_eq!(settled.ready_at, Some(ctx.now().plus(waits)));
        ctx.clock.advance(waits);
    }
    let taken = ctx.lease_one("q").await;
    assert_eq!(taken.attempt, 3);
    assert_eq!(ctx.settle(taken.token, fail("Bad")).await.map(|s| s.state), Ok(State::Dead));
    assert_eq!(ctx.letter(id).await.record.reason, Reason::MaxAttempts);
}

pub(super) async fn error_rules_and_overrides_decide_before_the_attempt_limit(ctx: &LawContext<'_>) {
    let policy = QueuePolicy {
        include: vec!["Fatal*".parse().expect("a glob")],
        exclude: vec!["FatalButPatient".parse().expect("a type")],
        retry_for: secs(100),
        ..max_attempts(1)
    };
    ctx.configure("q", policy).await;
    let overridden = |said| Settle::Fail { failure: Box::new(failure("Bad")), policy_override: Some(said) };
    let cases = [
        (fail("FatalThing"), Some(Reason::Rule)),
        (fail_permanently("FatalButPatient"), Some(Reason::Permanent)),
        (overridden(Override::DeadLetter), Some(Reason::Manual)),
        (fail("Bad"), Some(Reason::MaxAttempts)),
        (overridden(Override::RetryAfter(secs(7))), None),
        (fail("FatalButPatient"), None),
        (overridden(Override::Retry), None),
    ];
    for (n, (what, reason)) in (1..).zip(cases) {
        let id = ctx.send(msg(n, "q")).await;
        let taken = ctx.lease_one("q").await;
        let settled = ctx.settle(taken.token, what).await.expect("held");
        let state = if reason.is_some() { State::Dead } else { State::Scheduled };
        assert_eq!((settled.id, settled.state, settled.reason), (id, state, reason), "case {n}");
    }
    assert_eq!(ctx.message(message_id(5)).await.ready_at, ctx.now().plus(secs(7)));
    assert_eq!(ctx.message(message_id(7)).await.ready_at, ctx.now().plus(BACKOFF));
    // An error that is excluded from the count is still bounded by the time budget.
    ctx.clock.advance(secs(50));
    for taken in ctx.lease("q", 3).await {
        assert_eq!(ctx.settle(taken.token, fail("FatalButPatient")).await.map(|s| s.reason), Ok(None));
    }
    ctx.clock.advance(secs(50));
    for taken in ctx.lease("q", 3).await {
        let settled = ctx.settle(taken.token, fail("FatalButPatient")).await.expect("held");
        assert_eq!(settled.reason, Some(Reason::RetryBudget));
    }
    assert_eq!(ctx.counts("q").await.dead, 7);
}

pub(super) async fn a_retry_after_the_deadline_is_not_scheduled(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    ctx.configure("drops", QueuePolicy { on_expire: OnExpire::Drop, ..max_attempts(5) }).await;
    let deadline = Some(START.plus(BACKOFF));
    ctx.send(NewMessage { deadline, ..msg(1, "q") }).await;
    let taken = ctx.lease_one("q").await;
    let settled = ctx.settle(taken.token, fail("Bad")).await.expect("held");
    assert_eq!((settled.state, settled.reason), (State::Dead, Some(Reason::Deadline)));
    let id = ctx.send(NewMessage { ttl: Some(BACKOFF), ..msg(2, "drops") }).await;
    let taken = ctx.lease_one("drops").await;
    let settled = ctx.settle(taken.token, fail("Dropped")).await.expect("held");
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
    assert_eq!(ctx.counts("drops").await, Counts { enqueued: 1, expired: 1, ..Counts::default() });
    let groups = ctx.view().await.groups;
    let dropped = groups.iter().find(|g| g.error_type == "Dropped").expect("the failure happened");
    assert_eq!((dropped.open, dropped.total, dropped.failures), (0, 0, 1));
}

pub(super) async fn trap9_release_and_snooze_give_the_attempt_back(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let sent = msg(1, "q");
    let id = ctx.send(sent.clone()).await;
    let taken = ctx.lease_one("q").await;
    let now = ctx.clock.advance(secs(1));
    let settled = ctx.settle(taken.token, Settle::Release).await;
    let ready = |ready_at| Settled {
        id,
        state: State::Ready,
        ready_at,
        lease_expires_at: None,
        reason: None,
        dlq: None,
        reply: None,
    };
    assert_eq!(settled, Ok(ready(Some(START))), "it keeps its position");
    let given_back = Message {
        deliveries: 1,
        first_received_at: Some(START),
        updated_at: now,
        ..expected_message(&sent, &max_attempts(1), 1, START)
    };
    assert_eq!(ctx.message(id).await, given_back);
    let taken = ctx.lease_one("q").await;
    assert_eq!((taken.attempt, taken.message.deliveries), (1, 2), "the fencing number never decreases");
    let settled = ctx.settle(taken.token, Settle::Snooze { span: secs(5) }).await.expect("held");
    assert_eq!((settled.state, settled.ready_at), (State::Scheduled, Some(now.plus(secs(5)))));
    let waiting = ctx.message(id).await;
    assert_eq!((waiting.attempts, waiting.deliveries, waiting.failed), (0, 2, 0));
    ctx.clock.advance(secs(5));
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
}

pub(super) async fn i26_free_releases_are_limited(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(2)).await;
    let id = ctx.send(msg(1, "q")).await;
    for n in 0..limits::GIVE_BACKS_MAX {
        let taken = ctx.lease_one("q").await;
        assert_eq!(taken.attempt, 1, "this release is free ({n})");
        let what = if n % 2 == 0 { Settle::Release } else { Settle::Snooze { span: Span::ZERO } };
        assert_eq!(ctx.settle(taken.token, what).await.map(|s| s.state), Ok(State::Ready));
    }
    let taken = ctx.lease_one("q").await;
    ctx.settle(taken.token, Settle::Release).await.expect("held");
    let taken = ctx.lease_one("q").await;
    assert_eq!(taken.attempt, 2, "the last release counted");
    ctx.clock.advance(secs(4));
    let settled = ctx.settle(taken.token, Settle::Release).await.expect("held");
    assert_eq!((settled.state, settled.reason), (State::Dead, Some(Reason::MaxAttempts)));
    let letter = ctx.letter(id).await;
    assert_eq!((letter.message.deliveries, letter.message.attempts, letter.message.failed), (102, 2, 1));
    assert_eq!(letter.error.error_type, "LeaseExpired");
    assert_eq!(letter.message.failures[0].duration, Some(secs(4)));
}

pub(super) async fn i20_extending_never_shortens_and_ends_after_twelve_hours(ctx: &LawContext<'_>) {
    let id = ctx.send(msg(1, "q")).await;
    let taken = ctx.lease_one("q").await;
    let now = ctx.clock.advance(secs(10));
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
        let settled = ctx.settle(taken.token, Settle::Extend { by }).await;
        assert_eq!(settled, Ok(extended(until)), "{by:?}");
        assert_eq!(ctx.message(id).await.lease_expires_at, Some(until));
    }
    ctx.clock.set(START.plus(limits::LEASE_MAX).minus(MS));
    let settled = ctx.settle(taken.token, Settle::Extend { by: Some(secs(60)) }).await;
    assert_eq!(settled, Ok(extended(START.plus(limits::LEASE_MAX))), "a lease has a maximum length");
    let message = ctx.message(id).await;
    assert_eq!((message.attempts, message.deliveries), (1, 1));
}

pub(super) async fn i5_each_settlement_has_its_own_result(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    for n in 1..=4 {
        ctx.send(msg(n, "q")).await;
    }
    let taken = ctx.lease("q", 3).await;
    let settlement = |n: usize, what| Settlement { token: taken[n].token, what };
    let stranger = LeaseToken { id: message_id(4), secret: Secret::new([1; 16]) };
    let batch = vec![
        settlement(0, Settle::Ack),
        settlement(0, Settle::Ack),
        settlement(1, Settle::Snooze { span: Span::from_days(4_000) }),
        Settlement { token: stranger, what: Settle::Ack },
        settlement(2, Settle::Extend { by: Some(MS) }),
        settlement(1, fail("Bad")),
        settlement(2, fail_permanently("Worse")),
    ];
    let each = ctx.store.settle(batch).await.expect("succeeds");
    let states: Vec<_> = each.iter().map(|r| r.as_ref().ok().map(|s| s.state)).collect();
    let (done, waits, dead) = (Some(State::Done), Some(State::Scheduled), Some(State::Dead));
    assert_eq!(states, [done, None, None, None, None, waits, dead]);
    assert_eq!(each[1], Err(Refusal::StaleToken { id: message_id(1) }), "the same token twice");
    assert_eq!(refused_field(each[2].clone().expect_err("too long")), "snooze");
    assert_eq!(each[3], Err(Refusal::StaleToken { id: message_id(4) }));
    assert_eq!(refused_field(each[4].clone().expect_err("too short")), "lease");
    let counts = Counts { enqueued: 4, waiting: 2, dead: 1, done: 1, bytes: 18, ..Counts::default() };
    assert_eq!(ctx.counts("q").await, counts);
    assert_eq!(ctx.store.settle(Vec::new()).await, Ok(Vec::new()));
}
