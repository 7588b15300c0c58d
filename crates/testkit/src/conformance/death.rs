//! Laws of death and return: a letter has everything, a redrive starts again without forgetting, and what
//! happens to the message happens to its letter in the same commit (I32).

use super::Stage;
use super::kit::{BACKOFF, failed, failure, fresh, hopeless, new, operator, q, refused, rules, secs};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::dead_letter::{
    Act, ActRequest, Actor, DeadLetter, File, Happening, Moment, Note, Redriven, Status,
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

/// The letter of a message that died at its first execution, written out by hand.
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
            failures: vec![cause.clone().file(1, 1, died, Some("w".into()))],
            ..fresh(sent, policy, 1, START)
        },
        file: File {
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

/// What is recorded of a death in queue `q`.
fn death_event(generation: u32, at: redrive_core::time::Time, reason: Reason) -> Moment {
    let detail = format!("{reason} in queue q, into dead letter queue q-dlq");
    Moment { generation: Some(generation), ..Moment::new(at, Happening::Died).saying(detail) }
}

/// What a file says of a redrive that kept its queue.
fn redriven(at: redrive_core::time::Time) -> Option<Redriven> {
    Some(Redriven { at, by: "ada".into(), to: None })
}

pub(super) async fn i32_i33_a_death_is_one_whole_letter(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let sent =
        NewMessage { kind: "charge".into(), headers: [("h".into(), "v".into())].into(), ..new(1, "q") };
    let id = stage.send(sent.clone()).await;
    let taken = stage.take_one("q").await;
    let died = stage.clock.advance(secs(3));
    let settled = stage.settle(taken.token, failed("Bad")).await;
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
    let letter = first_death(&sent, &rules(1), 1, died);
    assert_eq!(stage.letter(id).await, letter);
    assert_eq!(stage.letters("").await, [letter], "listed as it is shown");
    assert_eq!(refused(stage.store.message(id).await), Refusal::NoSuchMessage { id });
    assert_eq!(stage.counts("q").await, Counts { enqueued: 1, dead: 1, ..Counts::default() });
}

pub(super) async fn i33_i49_history_keeps_its_first_and_last_ten(stage: &Stage<'_>) {
    stage.set("q", rules(25)).await;
    let id = stage.send(new(1, "q")).await;
    let mut all = Vec::new();
    for attempt in 1..=25 {
        let taken = stage.take_one("q").await;
        let error = format!("Error{}", char::from(b'A' + u8::try_from(attempt).expect("small")));
        stage.settle(taken.token, failed(&error)).await.expect("held");
        all.push(failure(&error).file(1, attempt, stage.now(), Some("w".into())));
        if attempt < 25 {
            let kept = stage.message(id).await.failures;
            assert_eq!(kept.len(), all.len().min(20), "after {attempt}");
        }
        stage.clock.advance(BACKOFF);
    }
    let letter = stage.letter(id).await;
    let ends: Vec<_> = all[..10].iter().chain(&all[15..]).cloned().collect();
    // What is thought of a failure changes with those before it; what happened does not.
    let facts = |all: Vec<Failure>| all.into_iter().map(|f| (f.attempt, f.at, f.worker, f.error, f.leaf));
    assert!(facts(letter.message.failures).eq(facts(ends)));
    assert_eq!(letter.message.failed, 25, "the rest is counted");
    assert_eq!(letter.error, all[24].error);
    assert_eq!(stage.seen().await.groups.len(), 25, "and so is every cause");
}

pub(super) async fn a_death_goes_to_the_drawer_of_its_route(stage: &Stage<'_>) {
    let routes = [(Route::Network, q("net")), (Route::Timeout, q("slow"))].into();
    stage.set("q", QueuePolicy { dlq: Some(q("bin")), routes, ..rules(1) }).await;
    for (n, error, drawer) in
        [(1, "ConnectionError", "net"), (2, "Timeout", "slow"), (3, "IndexError", "bin")]
    {
        assert_eq!(stage.dead(new(n, "q"), error).await.file.dlq, q(drawer), "{error}");
    }
    let drawers = stage.store.drawers().await.expect("answers");
    let names: Vec<_> = drawers.iter().map(|d| d.dlq.as_str()).collect();
    assert_eq!(names, ["bin", "net", "slow"]);
    assert!(drawers.iter().all(|d| d.by_status.get(&Status::Pending) == Some(&1)), "{drawers:?}");
}

pub(super) async fn trap2_trap3_a_retry_starts_again_and_forgets_nothing(stage: &Stage<'_>) {
    stage.set("q", rules(2)).await;
    let sent = new(1, "q");
    let id = stage.send(sent.clone()).await;
    for _ in 0..2 {
        stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
        stage.clock.advance(BACKOFF);
    }
    let letter = stage.letter(id).await;
    let now = stage.clock.advance(secs(60));
    let state = stage.act(id, Act::retry()).await;
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
        ..fresh(&sent, &rules(2), 1, START)
    };
    assert_eq!(stage.message(id).await, revived, "id, place and time of enqueue stay");
    let retrying = DeadLetter {
        message: revived,
        file: File {
            status: Status::Retrying,
            redrives: 1,
            redriven: redriven(now),
            history: vec![
                letter.file.history[0].clone(),
                Moment::new(now, Happening::Redriven).by(Some("ada")),
            ],
            version: 2,
            available_at: now,
            ..letter.file
        },
        eligible: false,
        ..letter
    };
    assert_eq!(stage.letter(id).await, retrying, "the letter shows its message as it is");
    assert_eq!(stage.counts("q").await, Counts { enqueued: 1, waiting: 1, bytes: 9, ..Counts::default() });
    let taken = stage.take_one("q").await;
    assert_eq!((taken.attempt, taken.message.deliveries, taken.message.generation), (1, 3, 2));
}

pub(super) async fn a_retry_may_wait_for_its_time(stage: &Stage<'_>) {
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let at = stage.now().plus(secs(30));
    stage.act(id, Act::retry_at(at)).await.expect("pending");
    let message = stage.message(id).await;
    assert_eq!((message.state, message.ready_at), (State::Scheduled, at));
    assert_eq!(stage.take("q", 1).await, []);
    stage.clock.set(at);
    assert_eq!(stage.take("q", 1).await.len(), 1);
    let other = stage.dead(new(2, "q"), "Bad").await.id();
    stage.act(other, Act::retry_at(START)).await.expect("pending");
    assert_eq!(stage.message(other).await.ready_at, at, "the past is now");
}

pub(super) async fn success_after_a_retry_closes_the_letter(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let sent = new(1, "q");
    let before = stage.dead(sent.clone(), "Bad").await;
    let id = before.id();
    stage.act(id, Act::retry()).await.expect("pending");
    let taken = stage.take_one("q").await;
    let now = stage.clock.advance(secs(5));
    let settled = stage.settle(taken.token, Settle::Ack).await;
    assert_eq!(settled.map(|s| s.state), Ok(State::Done));
    let letter = stage.letter(id).await;
    let closed = DeadLetter {
        message: Message {
            attempts: 1,
            deliveries: 2,
            generation: 2,
            updated_at: now,
            ready_at: START,
            ..before.message
        },
        file: File {
            status: Status::Resolved,
            redrives: 1,
            redriven: redriven(START),
            version: 3,
            resolution: Some("retried".into()),
            closed_at: Some(now),
            closed_by: Some("w".into()),
            expires_at: Some(now.plus(rules(1).retention)),
            available_at: now,
            history: vec![
                before.file.history[0].clone(),
                Moment::new(START, Happening::Redriven).by(Some("ada")),
                Moment::new(now, Happening::Closed).by(Some("w")).saying("retried"),
            ],
            ..before.file
        },
        eligible: false,
        ..before
    };
    assert_eq!(letter, closed);
    assert_eq!(
        stage.counts("q").await,
        Counts { enqueued: 1, dead: 1, ..Counts::default() },
        "once, not twice"
    );
    assert_eq!(stage.settle(taken.token, Settle::Ack).await, Err(Refusal::StaleToken { id }));
    // Reopened and sent back again, the fencing number goes on.
    stage.act(id, Act::Reopen).await.expect("closed");
    stage.act(id, Act::retry()).await.expect("pending");
    let taken = stage.take_one("q").await;
    assert_eq!((taken.message.deliveries, taken.message.generation), (3, 3));
}

pub(super) async fn a_second_death_reopens_the_same_letter(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let first = stage.dead(new(1, "q"), "Bad").await;
    let id = first.id();
    let other = stage.dead(new(2, "q"), "Bad").await;
    assert_eq!((first.death, other.death), (1, 2));
    let actor = Actor { reason: Some("try again".into()), ..operator() };
    let request = ActRequest { id, act: Act::retry(), actor, expected_version: Some(1) };
    stage.act_as(request).await.expect("pending");
    let taken = stage.take_one("q").await;
    let now = stage.clock.advance(secs(4));
    stage.settle(taken.token, hopeless("Worse")).await.expect("held");
    let cause = failure("Worse");
    let mut failures = first.message.failures.clone();
    failures.push({
        let mut hopeless = cause.clone();
        hopeless.report.permanent = true;
        hopeless.file(2, 1, now, Some("w".into()))
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
        file: File {
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
                Moment::new(START, Happening::Redriven).by(Some("ada")).because(Some("try again")),
                death_event(2, now, Reason::Permanent),
            ],
            version: 3,
            ..first.file.clone()
        },
        signature: cause.signature.template,
        group: cause.signature.leaf,
        error: cause.report.error,
        eligible: false,
        death: 3,
        ..first
    };
    assert_eq!(stage.letter(id).await, again);
    let order: Vec<_> = stage.letters("").await.iter().map(DeadLetter::id).collect();
    assert_eq!(order, [id, other.id()], "one letter per message, latest death first");
    assert_eq!(stage.counts("q").await, Counts { enqueued: 2, dead: 2, ..Counts::default() });
}

pub(super) async fn the_timeline_says_where_a_letter_died_whoever_moved_it_since(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    stage.set("other", rules(1)).await;
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    for act in [
        Act::Move { dlq: q("other-dlq") },
        Act::Quarantine { until: START.plus(secs(600)) },
        Act::Release,
        Act::Resolve,
        Act::Reopen,
        Act::retry(),
    ] {
        stage.clock.advance(secs(1));
        stage.act(id, act).await.expect("it may be done");
    }
    stage.clock.advance(secs(1));
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    let told = stage.letter(id).await.timeline();
    let told: Vec<_> = told.iter().map(|m| (m.what.name(), m.generation, m.detail.as_str())).collect();
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
    assert_eq!(told, expected);
}

pub(super) async fn trap1_a_redrive_obeys_the_rules_of_today(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    stage.set("q", QueuePolicy { dlq: Some(q("new-drawer")), lease: secs(77), ..rules(2) }).await;
    assert_eq!(stage.letter(id).await.file.dlq, q("q-dlq"), "a letter lies where it was put");
    stage.act(id, Act::retry()).await.expect("pending");
    for _ in 0..2 {
        let taken = stage.take_one("q").await;
        assert_eq!(taken.message.lease_expires_at, Some(stage.now().plus(secs(77))));
        stage.settle(taken.token, failed("Bad")).await.expect("held");
        stage.clock.advance(BACKOFF);
    }
    let letter = stage.letter(id).await;
    assert_eq!((letter.file.dlq, letter.message.attempts), (q("new-drawer"), 2));
    let pending: Vec<(String, u64)> = stage
        .seen()
        .await
        .comparable()
        .drawers
        .into_iter()
        .map(|d| (d.dlq.to_string(), d.by_status.values().sum()))
        .collect();
    assert_eq!(
        pending,
        [("new-drawer".to_owned(), 1), ("q-dlq".to_owned(), 0)],
        "the old drawer is remembered"
    );
}

pub(super) async fn what_was_redriven_is_past_its_deadline_and_runs(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let late = NewMessage { ttl: Some(secs(20)), deadline: Some(START.plus(secs(20))), ..new(1, "q") };
    let id = stage.dead(late, "Bad").await.id();
    stage.set("q", QueuePolicy { on_expire: OnExpire::Drop, ..rules(2) }).await;
    stage.clock.set(START.plus(secs(60)));
    stage.act(id, Act::retry()).await.expect("pending");
    assert_eq!(stage.store.purge(q("q"), operator()).await.map(|p| p.purged), Ok(0), "purge skips it");
    let refusal = Refusal::WrongState { id, state: State::Ready, command: "cancel".into() };
    assert_eq!(stage.store.cancel(vec![id], operator()).await, Ok(vec![Err(refusal)]));
    for attempt in 1..=2 {
        let taken = stage.take_one("q").await;
        assert_eq!((taken.token.id, taken.attempt), (id, attempt), "who redrives it wants it to run");
        stage.settle(taken.token, failed("Bad")).await.expect("held");
        stage.clock.advance(BACKOFF);
    }
    let letter = stage.letter(id).await;
    assert_eq!((letter.file.status, letter.file.reason), (Status::Pending, Reason::MaxAttempts));
    assert_eq!(letter.message.failures.last().map(|f| (f.generation, f.attempt)), Some((2, 2)));
    assert_eq!(letter.file.first_failed_at, letter.message.failures.first().map(|f| f.at));
    assert_eq!(stage.counts("q").await, Counts { enqueued: 1, dead: 1, ..Counts::default() });
}

/// A drawer has no limit: whoever dies finds room, however full its queue and its drawer are. A full queue refuses whoever
/// wants something of it; what is dropped is dropped by a rule of the queue, and counted.
pub(super) async fn i35_a_death_is_never_turned_away_and_only_a_rule_drops(stage: &Stage<'_>) {
    let full = QueuePolicy { max_messages: Some(2), max_bytes: Some(20), ..rules(1) };
    stage.set("q", full.clone()).await;
    let too_much = async |n: u64| {
        let refusal = stage.try_send(new(n, "q")).await.expect_err("two are all it takes");
        assert!(matches!(refusal, Refusal::QueueFull { .. }), "{refusal:?}");
        let id = message_id(n);
        assert_eq!(refused(stage.store.message(id).await), Refusal::NoSuchMessage { id });
        assert_eq!(refused(stage.store.letter(id).await), Refusal::NoSuchLetter { id });
    };
    // Forty times what the queue may hold dies: of a failure, and because its time was over.
    let mut sent = Vec::new();
    for n in (10..90).step_by(2) {
        sent.push(stage.send(new(n, "q")).await);
        sent.push(stage.send(NewMessage { ttl: Some(secs(20)), ..new(n + 1, "q") }).await);
        too_much(90).await;
        stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
        stage.clock.advance(secs(20));
        assert_eq!(stage.take("q", 1).await, []);
    }
    let lying =
        async || stage.letters("dlq:q-dlq").await.iter().rev().map(DeadLetter::id).collect::<Vec<_>>();
    assert_eq!(lying().await, sent, "each is there, the first ones too");
    for n in 10..90 {
        assert_eq!(stage.letter(message_id(n)).await.message.envelope.payload, new(n, "q").payload);
    }
    assert_eq!(stage.counts("q").await, Counts { enqueued: 80, dead: 80, ..Counts::default() });

    // What is sent back to a full queue is refused as well, and stays a letter.
    for n in [91, 92] {
        stage.send(new(n, "q")).await;
    }
    let refusal = stage.act(message_id(10), Act::retry()).await.expect_err("there is no room");
    assert!(matches!(refusal, Refusal::QueueFull { .. }), "{refusal:?}");
    assert_eq!(stage.letter(message_id(10)).await.file.status, Status::Pending);
    for taken in stage.take("q", 2).await {
        stage.settle(taken.token, Settle::Ack).await.expect("held");
    }

    // Only a rule drops, and says how many.
    stage.set("q", QueuePolicy { on_expire: OnExpire::Drop, ..full }).await;
    stage.send(NewMessage { ttl: Some(secs(20)), ..new(93, "q") }).await;
    stage.clock.advance(secs(20));
    assert_eq!(stage.take("q", 1).await, []);
    let counts = stage.counts("q").await;
    assert_eq!(counts, Counts { enqueued: 83, dead: 80, done: 2, expired: 1, ..Counts::default() });
    assert_eq!(lying().await, sent);
}

pub(super) async fn i33_history_goes_on_over_generations(stage: &Stage<'_>) {
    stage.set("q", rules(4)).await;
    let id = stage.send(new(1, "q")).await;
    let mut numbers = Vec::new();
    for generation in 1..=6 {
        for attempt in 1..=4 {
            stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
            numbers.push((generation, attempt));
            stage.clock.advance(BACKOFF);
        }
        stage.act(id, Act::retry()).await.expect("pending");
    }
    let message = stage.message(id).await;
    let kept: Vec<_> = message.failures.iter().map(|f| (f.generation, f.attempt)).collect();
    let edge = limits::HISTORY_EDGE as usize;
    let ends: Vec<_> = numbers[..edge].iter().chain(&numbers[numbers.len() - edge..]).copied().collect();
    assert_eq!(kept, ends, "attempt numbers never collide");
    assert_eq!((message.failed, message.deliveries, message.generation), (24, 24, 7));
    assert_eq!(stage.letter(id).await.file.redrives, 6);
    assert_eq!(id, message_id(1));
}
