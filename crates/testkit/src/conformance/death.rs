//! Laws of death and redrive: a letter is complete, a redrive starts again and keeps the history, and what
//! happens to a message happens to its letter in the same commit (I32).

use super::LawContext;
use super::kit::{
    BACKOFF, expected_message, fail, fail_permanently, failure, max_attempts, msg, operator, q, refused, secs,
};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::dead_letter::{
    Act, ActRequest, Actor, DeadLetter, LetterRecord, Note, RedriveRecord, Status, TimelineEntry,
    TimelineEvent,
};
use redrive_core::error::Refusal;
use redrive_core::failure::{Failure, Reason, Route};
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::message::{Message, NewMessage};
use redrive_core::policy::{OnExpire, QueuePolicy};
use redrive_core::store::{LetterState, Settle, Settled};
use std::collections::BTreeSet;

/// The letter of a message that died at its first attempt, written out by hand.
fn first_death(
    sent: &NewMessage,
    policy: &QueuePolicy,
    death: u64,
    died: redrive_core::time::Time,
) -> DeadLetter {
    let cause = failure("Bad");
    DeadLetter {
        message: Message {
            state: State::Dead,
            attempts: 1,
            deliveries: 1,
            failed: 1,
            first_received_at: Some(START),
            updated_at: died,
            failures: vec![cause.clone().into_failure(1, 1, died, Some("w".into()))],
            ..expected_message(sent, policy, 1, START)
        },
        record: LetterRecord {
            dlq: q("q-dlq"),
            status: Status::Pending,
            reason: Reason::MaxAttempts,
            route: cause.route,
            category: cause.category,
            severity: cause.severity,
            recoverability: cause.recoverability,
            alert: false,
            leaf: cause.signature.leaf,
            redrives: 0,
            redriven: None,
            review_requested_by: None,
            review_requested_at: None,
            reviewed_by: None,
            reviewed_at: None,
            quarantined_until: None,
            resolution: None,
            first_failed_at: Some(died),
            last_failed_at: Some(died),
            dead_at: died,
            closed_at: None,
            closed_by: None,
            expires_at: None,
            held: false,
            snoozed_until: None,
            owner: None,
            labels: BTreeSet::new(),
            purged_from: None,
            notes: Vec::new(),
            history: vec![death_event(1, died, Reason::MaxAttempts)],
            history_omitted: 0,
            version: 1,
            holds_key: false,
            available_at: died,
            operation: None,
            consumer: None,
            consumer_until: None,
            edits: Vec::new(),
            erased: None,
            owes_reply: false,
            body_hash: None,
        },
        signature: cause.signature.template.clone(),
        group: cause.signature.leaf,
        error: cause.report.error.clone(),
        eligible: true,
        review_required: false,
        death,
        revisions: Vec::new(),
    }
}

/// The timeline entry of a death in queue `q`.
fn death_event(generation: u32, at: redrive_core::time::Time, reason: Reason) -> TimelineEntry {
    let detail = format!("{reason} in queue q, into dead letter queue q-dlq");
    TimelineEntry {
        generation: Some(generation),
        ..TimelineEntry::new(at, TimelineEvent::Died).with_detail(detail)
    }
}

/// The redrive record of a redrive that kept its queue.
fn redriven(at: redrive_core::time::Time) -> Option<RedriveRecord> {
    Some(RedriveRecord { at, by: "ada".into(), to: None })
}

pub(super) async fn i32_i33_a_death_makes_one_complete_letter(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let sent =
        NewMessage { kind: "charge".into(), headers: [("h".into(), "v".into())].into(), ..msg(1, "q") };
    let id = ctx.send(sent.clone()).await;
    let taken = ctx.lease_one("q").await;
    let died = ctx.clock.advance(secs(3));
    let settled = ctx.settle(taken.token, fail("Bad")).await;
    let reason = Some(Reason::MaxAttempts);
    assert_eq!(
        settled,
        Ok(Settled {
            id,
            state: State::Dead,
            ready_at: None,
            lease_expires_at: None,
            reason,
            dlq: Some(q("q-dlq")),
            reply: None
        })
    );
    let letter = first_death(&sent, &max_attempts(1), 1, died);
    assert_eq!(ctx.letter(id).await, letter);
    assert_eq!(ctx.letters("").await, [letter], "the list and the single letter agree");
    assert_eq!(refused(ctx.store.message(id).await), Refusal::NoSuchMessage { id });
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 1, dead: 1, ..Counts::default() });
}

pub(super) async fn i33_i49_history_keeps_its_first_and_last_ten(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(25)).await;
    let id = ctx.send(msg(1, "q")).await;
    let mut all = Vec::new();
    for attempt in 1..=25 {
        let taken = ctx.lease_one("q").await;
        let error = format!("Error{}", char::from(b'A' + u8::try_from(attempt).expect("small")));
        ctx.settle(taken.token, fail(&error)).await.expect("held");
        all.push(failure(&error).into_failure(1, attempt, ctx.now(), Some("w".into())));
        if attempt < 25 {
            let kept = ctx.message(id).await.failures;
            assert_eq!(kept.len(), all.len().min(20), "after {attempt}");
        }
        ctx.clock.advance(BACKOFF);
    }
    let letter = ctx.letter(id).await;
    let ends: Vec<_> = all[..10].iter().chain(&all[15..]).cloned().collect();
    // The analysis of a failure depends on earlier failures; the facts do not.
    let facts = |all: Vec<Failure>| all.into_iter().map(|f| (f.attempt, f.at, f.worker, f.error, f.leaf));
    assert!(facts(letter.message.failures).eq(facts(ends)));
    assert_eq!(letter.message.failed, 25, "every failure is counted");
    assert_eq!(letter.error, all[24].error);
    assert_eq!(ctx.view().await.groups.len(), 25, "and every cause");
}

pub(super) async fn a_letter_goes_to_the_dlq_of_its_route(ctx: &LawContext<'_>) {
    let routes = [(Route::Network, q("net")), (Route::Timeout, q("slow"))].into();
    ctx.configure("q", QueuePolicy { dlq: Some(q("bin")), routes, ..max_attempts(1) }).await;
    for (n, error, dlq) in [(1, "ConnectionError", "net"), (2, "Timeout", "slow"), (3, "IndexError", "bin")] {
        assert_eq!(ctx.dead_letter(msg(n, "q"), error).await.record.dlq, q(dlq), "{error}");
    }
    let dlqs = ctx.store.dlqs().await.expect("succeeds");
    let names: Vec<_> = dlqs.iter().map(|d| d.dlq.as_str()).collect();
    assert_eq!(names, ["bin", "net", "slow"]);
    assert!(dlqs.iter().all(|d| d.by_status.get(&Status::Pending) == Some(&1)), "{dlqs:?}");
}

pub(super) async fn trap2_trap3_a_retry_resets_attempts_and_keeps_the_history(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(2)).await;
    let sent = msg(1, "q");
    let id = ctx.send(sent.clone()).await;
    for _ in 0..2 {
        ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
        ctx.clock.advance(BACKOFF);
    }
    let letter = ctx.letter(id).await;
    let now = ctx.clock.advance(secs(60));
    let state = ctx.act(id, Act::retry()).await;
    assert_eq!(state, Ok(LetterState { id, status: Some(Status::Retrying), version: 2 }));
    let revived = Message {
        state: State::Ready,
        attempts: 0,
        deliveries: 2,
        generation: 2,
        failed: 2,
        ready_at: now,
        first_received_at: Some(START),
        updated_at: now,
        failures: letter.message.failures.clone(),
        ..expected_message(&sent, &max_attempts(2), 1, START)
    };
    assert_eq!(ctx.message(id).await, revived, "id, order and enqueue time stay");
    let retrying = DeadLetter {
        message: revived,
        record: LetterRecord {
            status: Status::Retrying,
            redrives: 1,
            redriven: redriven(now),
            history: vec![
                letter.record.history[0].clone(),
                TimelineEntry::new(now, TimelineEvent::Redriven).by(Some("ada")),
            ],
            version: 2,
            available_at: now,
            ..letter.record
        },
        eligible: false,
        ..letter
    };
    assert_eq!(ctx.letter(id).await, retrying, "the letter shows its live message");
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 1, waiting: 1, bytes: 9, ..Counts::default() });
    let taken = ctx.lease_one("q").await;
    assert_eq!((taken.attempt, taken.message.deliveries, taken.message.generation), (1, 3, 2));
}

pub(super) async fn a_retry_can_be_scheduled(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let at = ctx.now().plus(secs(30));
    ctx.act(id, Act::retry_at(at)).await.expect("pending");
    let message = ctx.message(id).await;
    assert_eq!((message.state, message.ready_at), (State::Scheduled, at));
    assert_eq!(ctx.lease("q", 1).await, []);
    ctx.clock.set(at);
    assert_eq!(ctx.lease("q", 1).await.len(), 1);
    let other = ctx.dead_letter(msg(2, "q"), "Bad").await.id();
    ctx.act(other, Act::retry_at(START)).await.expect("pending");
    assert_eq!(ctx.message(other).await.ready_at, at, "a time in the past means now");
}

pub(super) async fn success_after_a_retry_closes_the_letter(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let sent = msg(1, "q");
    let before = ctx.dead_letter(sent.clone(), "Bad").await;
    let id = before.id();
    ctx.act(id, Act::retry()).await.expect("pending");
    let taken = ctx.lease_one("q").await;
    let now = ctx.clock.advance(secs(5));
    let settled = ctx.settle(taken.token, Settle::Ack).await;
    assert_eq!(settled.map(|s| s.state), Ok(State::Done));
    let letter = ctx.letter(id).await;
    let closed = DeadLetter {
        message: Message {
            attempts: 1,
            deliveries: 2,
            generation: 2,
            updated_at: now,
            ready_at: START,
            ..before.message
        },
        record: LetterRecord {
            status: Status::Resolved,
            redrives: 1,
            redriven: redriven(START),
            version: 3,
            resolution: Some("retried".into()),
            closed_at: Some(now),
            closed_by: Some("w".into()),
            expires_at: Some(now.plus(max_attempts(1).retention)),
            available_at: now,
            history: vec![
                before.record.history[0].clone(),
                TimelineEntry::new(START, TimelineEvent::Redriven).by(Some("ada")),
                TimelineEntry::new(now, TimelineEvent::Closed).by(Some("w")).with_detail("retried"),
            ],
            ..before.record
        },
        eligible: false,
        ..before
    };
    assert_eq!(letter, closed);
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 1, dead: 1, ..Counts::default() }, "counted once");
    assert_eq!(ctx.settle(taken.token, Settle::Ack).await, Err(Refusal::StaleToken { id }));
    // Reopened and redriven again, the fencing number continues.
    ctx.act(id, Act::Reopen).await.expect("closed");
    ctx.act(id, Act::retry()).await.expect("pending");
    let taken = ctx.lease_one("q").await;
    assert_eq!((taken.message.deliveries, taken.message.generation), (3, 3));
}

pub(super) async fn a_second_death_reopens_the_same_letter(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let first = ctx.dead_letter(msg(1, "q"), "Bad").await;
    let id = first.id();
    let other = ctx.dead_letter(msg(2, "q"), "Bad").await;
    assert_eq!((first.death, other.death), (1, 2));
    let actor = Actor { reason: Some("try again".into()), ..operator() };
    let request = ActRequest { id, act: Act::retry(), actor, expected_version: Some(1) };
    ctx.act_as(request).await.expect("pending");
    let taken = ctx.lease_one("q").await;
    let now = ctx.clock.advance(secs(4));
    ctx.settle(taken.token, fail_permanently("Worse")).await.expect("held");
    let cause = failure("Worse");
    let mut failures = first.message.failures.clone();
    failures.push({
        let mut hopeless = cause.clone();
        hopeless.report.permanent = true;
        hopeless.into_failure(2, 1, now, Some("w".into()))
    });
    let again = DeadLetter {
        message: Message {
            attempts: 1,
            deliveries: 2,
            generation: 2,
            failed: 2,
            updated_at: now,
            failures,
            ..first.message.clone()
        },
        record: LetterRecord {
            reason: Reason::Permanent,
            leaf: cause.signature.leaf,
            route: cause.route,
            category: cause.category,
            severity: cause.severity,
            recoverability: cause.recoverability,
            alert: false,
            redrives: 1,
            redriven: redriven(START),
            last_failed_at: Some(now),
            dead_at: now,
            available_at: now,
            notes: vec![Note { at: START, by: "ada".into(), text: "try again".into() }],
            history: vec![
                death_event(1, START, Reason::Permanent),
                TimelineEntry::new(START, TimelineEvent::Redriven)
                    .by(Some("ada"))
                    .with_reason(Some("try again")),
                death_event(2, now, Reason::Permanent),
            ],
            version: 3,
            ..first.record.clone()
        },
        signature: cause.signature.template,
        group: cause.signature.leaf,
        error: cause.report.error,
        eligible: false,
        death: 3,
        ..first
    };
    assert_eq!(ctx.letter(id).await, again);
    let order: Vec<_> = ctx.letters("").await.iter().map(DeadLetter::id).collect();
    assert_eq!(order, [id, other.id()], "one letter per message, latest death first");
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 2, dead: 2, ..Counts::default() });
}

pub(super) async fn the_timeline_says_where_a_letter_died_even_after_a_move(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    ctx.configure("other", max_attempts(1)).await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    for act in [
        Act::Move { dlq: q("other-dlq") },
        Act::Quarantine { until: START.plus(secs(600)) },
        Act::Release,
        Act::Resolve,
        Act::Reopen,
        Act::retry(),
    ] {
        ctx.clock.advance(secs(1));
        ctx.act(id, act).await.expect("the act is allowed");
    }
    ctx.clock.advance(secs(1));
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    let timeline = ctx.letter(id).await.timeline();
    let timeline: Vec<_> =
        timeline.iter().map(|m| (m.what.name(), m.generation, m.detail.as_str())).collect();
    let died = |reason: &str| format!("{reason} in queue q, into dead letter queue q-dlq");
    let (first, second) = (died("permanent"), died("max_attempts"));
    let until = format!("until {}", START.plus(secs(600)));
    let expected = [
        ("enqueued", None, "to queue q"),
        ("first_leased", None, ""),
        ("failed", Some(1), "Bad: the other side said no"),
        ("died", Some(1), first.as_str()),
        ("moved", None, "from dead letter queue q-dlq to other-dlq"),
        ("quarantined", None, until.as_str()),
        ("released", None, "from quarantined to pending"),
        ("closed", None, "resolved"),
        ("reopened", None, ""),
        ("redriven", None, ""),
        ("failed", Some(2), "Bad: the other side said no"),
        ("died", Some(2), second.as_str()),
    ];
    assert_eq!(timeline, expected);
}

pub(super) async fn trap1_a_redrive_obeys_the_current_policy(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    ctx.configure("q", QueuePolicy { dlq: Some(q("new-dlq")), lease: secs(77), ..max_attempts(2) }).await;
    assert_eq!(ctx.letter(id).await.record.dlq, q("q-dlq"), "a letter stays in its dead letter queue");
    ctx.act(id, Act::retry()).await.expect("pending");
    for _ in 0..2 {
        let taken = ctx.lease_one("q").await;
        assert_eq!(taken.message.lease_expires_at, Some(ctx.now().plus(secs(77))));
        ctx.settle(taken.token, fail("Bad")).await.expect("held");
        ctx.clock.advance(BACKOFF);
    }
    let letter = ctx.letter(id).await;
    assert_eq!((letter.record.dlq, letter.message.attempts), (q("new-dlq"), 2));
    let pending: Vec<(String, u64)> = ctx
        .view()
        .await
        .comparable()
        .dlqs
        .into_iter()
        .map(|d| (d.dlq.to_string(), d.by_status.values().sum()))
        .collect();
    assert_eq!(
        pending,
        [("new-dlq".to_owned(), 1), ("q-dlq".to_owned(), 0)],
        "the old dead letter queue is still listed"
    );
}

pub(super) async fn a_redriven_message_runs_after_its_deadline(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let late = NewMessage { ttl: Some(secs(20)), deadline: Some(START.plus(secs(20))), ..msg(1, "q") };
    let id = ctx.dead_letter(late, "Bad").await.id();
    ctx.configure("q", QueuePolicy { on_expire: OnExpire::Drop, ..max_attempts(2) }).await;
    ctx.clock.set(START.plus(secs(60)));
    ctx.act(id, Act::retry()).await.expect("pending");
    assert_eq!(ctx.store.purge(q("q"), operator()).await.map(|p| p.purged), Ok(0), "purge skips it");
    let refusal = Refusal::WrongState { id, state: State::Ready, command: "cancel".into() };
    assert_eq!(ctx.store.cancel(vec![id], operator()).await, Ok(vec![Err(refusal)]));
    for attempt in 1..=2 {
        let taken = ctx.lease_one("q").await;
        assert_eq!(
            (taken.token.id, taken.attempt),
            (id, attempt),
            "a redriven message runs after its deadline"
        );
        ctx.settle(taken.token, fail("Bad")).await.expect("held");
        ctx.clock.advance(BACKOFF);
    }
    let letter = ctx.letter(id).await;
    assert_eq!((letter.record.status, letter.record.reason), (Status::Pending, Reason::MaxAttempts));
    assert_eq!(letter.message.failures.last().map(|f| (f.generation, f.attempt)), Some((2, 2)));
    assert_eq!(letter.record.first_failed_at, letter.message.failures.first().map(|f| f.at));
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 1, dead: 1, ..Counts::default() });
}

/// A dead letter queue has no limit: a message that dies is always stored, however full its queue is. A full
/// queue refuses new messages and redrives. Messages are dropped only by the policy of the queue, and are
/// counted.
pub(super) async fn i35_a_dlq_never_refuses_a_letter_and_only_a_policy_drops_messages(ctx: &LawContext<'_>) {
    let full = QueuePolicy { max_messages: Some(2), max_bytes: Some(20), ..max_attempts(1) };
    ctx.configure("q", full.clone()).await;
    let too_much = async |n: u64| {
        let refusal = ctx.try_send(msg(n, "q")).await.expect_err("the queue holds two");
        assert!(matches!(refusal, Refusal::QueueFull { .. }), "{refusal:?}");
        let id = message_id(n);
        assert_eq!(refused(ctx.store.message(id).await), Refusal::NoSuchMessage { id });
        assert_eq!(refused(ctx.store.letter(id).await), Refusal::NoSuchLetter { id });
    };
    // Forty times the limit of the queue dies: some of failures, some because they expired.
    let mut sent = Vec::new();
    for n in (10..90).step_by(2) {
        sent.push(ctx.send(msg(n, "q")).await);
        sent.push(ctx.send(NewMessage { ttl: Some(secs(20)), ..msg(n + 1, "q") }).await);
        too_much(90).await;
        ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
        ctx.clock.advance(secs(20));
        assert_eq!(ctx.lease("q", 1).await, []);
    }
    let letter_ids =
        async || ctx.letters("dlq:q-dlq").await.iter().rev().map(DeadLetter::id).collect::<Vec<_>>();
    assert_eq!(letter_ids().await, sent, "every letter is stored, also the first ones");
    for n in 10..90 {
        assert_eq!(ctx.letter(message_id(n)).await.message.envelope.payload, msg(n, "q").payload);
    }
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 80, dead: 80, ..Counts::default() });

    // A redrive to a full queue is refused too, and the letter stays.
    for n in [91, 92] {
        ctx.send(msg(n, "q")).await;
    }
    let refusal = ctx.act(message_id(10), Act::retry()).await.expect_err("the queue is full");
    assert!(matches!(refusal, Refusal::QueueFull { .. }), "{refusal:?}");
    assert_eq!(ctx.letter(message_id(10)).await.record.status, Status::Pending);
    for taken in ctx.lease("q", 2).await {
        ctx.settle(taken.token, Settle::Ack).await.expect("held");
    }

    // Only the policy drops messages, and they are counted.
    ctx.configure("q", QueuePolicy { on_expire: OnExpire::Drop, ..full }).await;
    ctx.send(NewMessage { ttl: Some(secs(20)), ..msg(93, "q") }).await;
    ctx.clock.advance(secs(20));
    assert_eq!(ctx.lease("q", 1).await, []);
    let counts = ctx.counts("q").await;
    assert_eq!(counts, Counts { enqueued: 83, dead: 80, done: 2, expired: 1, ..Counts::default() });
    assert_eq!(letter_ids().await, sent);
}

pub(super) async fn i33_history_continues_over_generations(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(4)).await;
    let id = ctx.send(msg(1, "q")).await;
    let mut numbers = Vec::new();
    for generation in 1..=6 {
        for attempt in 1..=4 {
            ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
            numbers.push((generation, attempt));
            ctx.clock.advance(BACKOFF);
        }
        ctx.act(id, Act::retry()).await.expect("pending");
    }
    let message = ctx.message(id).await;
    let kept: Vec<_> = message.failures.iter().map(|f| (f.generation, f.attempt)).collect();
    let edge = limits::HISTORY_EDGE as usize;
    let ends: Vec<_> = numbers[..edge].iter().chain(&numbers[numbers.len() - edge..]).copied().collect();
    assert_eq!(kept, ends, "attempt numbers are unique");
    assert_eq!((message.failed, message.deliveries, message.generation), (24, 24, 7));
    assert_eq!(ctx.letter(id).await.record.redrives, 6);
    assert_eq!(id, message_id(1));
}
