//! Laws of `lease`: which messages a worker gets, when, for how long, and what happens to lost leases.

use super::LawContext;
use super::kit::{
    BACKOFF, MS, expected_message, failure, large_msg, max_attempts, msg, no_poison_check, operator, q,
    refused, refused_field, secs,
};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::error::Refusal;
use redrive_core::failure::{AnalysedFailure, Reason};
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::message::{Delivery, Message, NewMessage, Priority};
use redrive_core::policy::{OnExpire, QueuePolicy};
use redrive_core::scheduler::WEIGHTS;
use redrive_core::store::{LeaseRequest, Settle};
use redrive_core::time::Span;
use std::collections::BTreeSet;

pub(super) async fn a_delivery_is_the_message_as_it_is_now(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { lease: secs(45), ..max_attempts(3) }).await;
    let sent = NewMessage { kind: "charge".into(), ..msg(1, "q") };
    ctx.send(sent.clone()).await;
    let now = ctx.clock.advance(secs(3));
    let taken = ctx.lease_one("q").await;
    let leased = Message {
        state: State::Leased,
        attempts: 1,
        deliveries: 1,
        first_received_at: Some(now),
        updated_at: now,
        leased_by: Some("w".into()),
        lease_expires_at: Some(now.plus(secs(45))),
        ..expected_message(&sent, &max_attempts(3), 1, START)
    };
    assert_eq!(taken, Delivery { message: leased.clone(), token: taken.token, attempt: 1 });
    assert_eq!(taken.token.id, sent.id);
    assert_eq!(ctx.message(sent.id).await, leased);
    let queue = ctx.queue("q").await;
    assert_eq!((queue.ready, queue.scheduled), (0, 0));
    assert_eq!(queue.counts, Counts { enqueued: 1, leased: 1, bytes: 9, ..Counts::default() });
}

pub(super) async fn a_worker_may_choose_the_length_of_its_lease(ctx: &LawContext<'_>) {
    for n in 1..=3 {
        ctx.send(msg(n, "q")).await;
    }
    for span in [limits::LEASE_MIN, secs(90), limits::LEASE_MAX] {
        let request = LeaseRequest { lease_for: Some(span), ..ctx.lease_request(&["q"], 1) };
        let taken = ctx.store.lease(request).await.expect("succeeds");
        assert_eq!(taken[0].message.lease_expires_at, Some(START.plus(span)));
    }
}

pub(super) async fn invalid_lease_requests_are_refused_by_field(ctx: &LawContext<'_>) {
    ctx.send(msg(1, "q")).await;
    let good = ctx.lease_request(&["q"], 1);
    let too_short = Span::from_millis(limits::LEASE_MIN.as_millis() - 1);
    let too_long = Span::from_millis(limits::LEASE_MAX.as_millis() + 1);
    for (name, request) in [
        ("queues", LeaseRequest { queues: Vec::new(), ..good.clone() }),
        ("queues", LeaseRequest { queues: vec![q("q"); limits::LEASE_QUEUES_MAX + 1], ..good.clone() }),
        ("max", LeaseRequest { max: 0, ..good.clone() }),
        ("max", LeaseRequest { max: limits::LEASE_BATCH_MAX + 1, ..good.clone() }),
        ("lease", LeaseRequest { lease_for: Some(too_short), ..good.clone() }),
        ("lease", LeaseRequest { lease_for: Some(too_long), ..good.clone() }),
        ("worker", LeaseRequest { worker: String::new(), ..good.clone() }),
        ("worker", LeaseRequest { worker: "a\tb".into(), ..good.clone() }),
    ] {
        assert_eq!(refused_field(refused(ctx.store.lease(request).await)), name);
    }
    assert_eq!(ctx.lease("q", limits::LEASE_BATCH_MAX).await.len(), 1, "the refused requests leased nothing");
}

pub(super) async fn an_unknown_queue_refuses_the_whole_call(ctx: &LawContext<'_>) {
    ctx.send(msg(1, "q")).await;
    ctx.lease_one("q").await;
    ctx.send(msg(2, "q")).await;
    ctx.clock.advance(secs(31));
    let before = ctx.view().await;
    for queues in [["q", "nowhere"], ["nowhere", "q"], ["q", "q-dlq"]] {
        let missing = queues.into_iter().find(|name| *name != "q").expect("one is missing");
        let refusal = refused(ctx.store.lease(ctx.lease_request(&queues, 5)).await);
        assert_eq!(refusal, Refusal::NoSuchQueue { queue: q(missing) });
    }
    assert_eq!(ctx.view().await, before, "nothing was leased and nothing reaped");
}

pub(super) async fn i31_nothing_is_delivered_early(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    let soon = NewMessage { delay: Some(secs(60)), priority: Some(Priority::Critical), ..msg(1, "q") };
    ctx.send(soon).await;
    ctx.clock.set(START.plus(Span::from_millis(59_999)));
    assert_eq!(ctx.lease("q", 9).await, [], "priority never shortens a delay");
    ctx.clock.advance(MS);
    let taken = ctx.lease_one("q").await;
    let failed = ctx.settle(taken.token, super::kit::fail("Bad")).await.expect("held");
    let due = ctx.now().plus(BACKOFF);
    assert_eq!(failed.ready_at, Some(due));
    ctx.clock.set(due.minus(MS));
    assert_eq!(ctx.lease("q", 9).await, [], "nor a backoff");
    ctx.clock.advance(MS);
    let taken = ctx.lease_one("q").await;
    ctx.settle(taken.token, Settle::Snooze { span: secs(7) }).await.expect("held");
    ctx.clock.advance(Span::from_millis(6_999));
    assert_eq!(ctx.lease("q", 9).await, [], "nor a snooze");
    ctx.clock.advance(MS);
    assert_eq!(ctx.lease("q", 9).await.len(), 1);
}

pub(super) async fn first_in_is_first_out_inside_a_priority(ctx: &LawContext<'_>) {
    for n in [3, 1, 2] {
        ctx.send(msg(n, "q")).await;
    }
    // A message that is due earlier comes first, even if it was enqueued later. Messages due at the same time
    // are leased in the order of enqueues.
    ctx.send(NewMessage { delay: Some(secs(2)), ..msg(4, "q") }).await;
    ctx.clock.advance(secs(1));
    ctx.send(NewMessage { delay: Some(secs(1)), ..msg(5, "q") }).await;
    ctx.send(msg(6, "q")).await;
    ctx.clock.advance(secs(9));
    let order: Vec<_> = ctx.lease("q", 10).await.iter().map(|d| d.message.envelope.id).collect();
    assert_eq!(order, [3, 1, 2, 6, 4, 5].map(message_id));
}

pub(super) async fn several_queues_are_served_as_one(ctx: &LawContext<'_>) {
    for (n, queue) in [(1, "b"), (2, "a"), (3, "b"), (4, "c")] {
        ctx.send(msg(n, queue)).await;
    }
    let request = ctx.lease_request(&["a", "b", "a"], 10);
    let order: Vec<_> =
        ctx.store.lease(request).await.expect("succeeds").iter().map(|d| d.message.envelope.id).collect();
    assert_eq!(order, [1, 2, 3].map(message_id), "ordered by time, not by queue, without duplicates");
    assert_eq!(ctx.lease("c", 10).await.len(), 1);
}

pub(super) async fn no_more_messages_are_leased_than_requested(ctx: &LawContext<'_>) {
    for n in 1..=5 {
        ctx.send(msg(n, "q")).await;
    }
    assert_eq!(ctx.lease("q", 2).await.len(), 2);
    assert_eq!(ctx.lease("q", 100).await.len(), 3);
    assert_eq!(ctx.lease("q", 100).await, []);
}

pub(super) async fn i49_a_lease_returns_a_bounded_number_of_bytes(ctx: &LawContext<'_>) {
    for n in 1..=3 {
        ctx.send(large_msg(n, "q")).await;
    }
    ctx.send(msg(4, "q")).await;
    let ids = |taken: Vec<Delivery>| taken.iter().map(|d| d.message.envelope.id).collect::<Vec<_>>();
    assert_eq!(ids(ctx.lease("q", 10).await), [1, 2].map(message_id), "two messages reach the byte limit");
    assert_eq!(ids(ctx.lease("q", 10).await), [3, 4].map(message_id), "the rest comes with the next call");
}

pub(super) async fn i29_each_priority_gets_its_share_of_31(ctx: &LawContext<'_>) {
    let mut n = 0;
    for priority in Priority::ALL {
        for _ in 0..48 {
            n += 1;
            ctx.send(NewMessage { priority: Some(priority), ..msg(n, "q") }).await;
        }
    }
    let mut levels = Vec::new();
    for max in [1, 30, 7, 24, 31] {
        let taken = ctx.lease("q", max).await;
        levels.extend(taken.iter().map(|d| d.message.envelope.priority.level()));
    }
    for window in levels.windows(31) {
        let share = [0, 1, 2, 3, 4].map(|l| window.iter().filter(|level| **level == l).count() as u64);
        assert_eq!(share, WEIGHTS, "in any 31 picks, whatever the batch size");
    }
    assert_eq!(levels[0], 0, "the most urgent level first");
}

pub(super) async fn i29_an_urgent_deadline_comes_first(ctx: &LawContext<'_>) {
    let by = |n: u64, priority, deadline: u64| NewMessage {
        priority: Some(priority),
        deadline: Some(START.plus(secs(deadline))),
        ..msg(n, "q")
    };
    for n in 10..20 {
        ctx.send(NewMessage { priority: Some(Priority::Critical), ..msg(n, "q") }).await;
    }
    ctx.send(by(1, Priority::Background, 30)).await;
    ctx.send(by(2, Priority::Low, 30)).await;
    ctx.send(by(3, Priority::Low, 30)).await;
    ctx.send(by(4, Priority::Background, 29)).await;
    ctx.send(by(5, Priority::High, 90)).await;
    ctx.clock.set(START.plus(secs(25)).minus(MS));
    let ids = |taken: Vec<Delivery>| -> Vec<_> { taken.iter().map(|d| d.message.envelope.id).collect() };
    let early = ids(ctx.lease("q", 1).await);
    assert_eq!(early, [message_id(4)], "its deadline is the nearest");
    ctx.clock.advance(MS);
    // Earliest deadline first, then priority, then the order of enqueues.
    assert_eq!(ids(ctx.lease("q", 3).await), [2, 3, 1].map(message_id));
    assert!(ctx.lease("q", 1).await[0].message.envelope.deadline.is_none(), "90 s can wait");
}

pub(super) async fn trap18_an_aged_message_is_served(ctx: &LawContext<'_>) {
    ctx.send(NewMessage { priority: Some(Priority::Background), ..msg(1, "q") }).await;
    ctx.clock.advance(secs(11));
    for n in 2..60 {
        ctx.send(NewMessage { priority: Some(Priority::Critical), ..msg(n, "q") }).await;
    }
    let taken = ctx.lease("q", 35).await;
    assert!(taken.iter().any(|d| d.message.envelope.id == message_id(1)), "within 35 picks");
    assert_eq!(taken[0].message.envelope.priority, Priority::Critical, "ageing never inverts priorities");
}

pub(super) async fn i16_a_leased_message_is_not_leased_again(ctx: &LawContext<'_>) {
    for n in 1..=20 {
        ctx.send(msg(n, "q")).await;
    }
    let mut seen = BTreeSet::new();
    for _ in 0..10 {
        for delivery in ctx.lease("q", 3).await {
            assert!(seen.insert(delivery.message.envelope.id), "leased twice");
        }
    }
    assert_eq!(seen.len(), 20);
    ctx.clock.advance(Span::from_millis(29_999));
    assert_eq!(ctx.lease("q", 3).await, [], "leased until the last millisecond");
}

pub(super) async fn i16_concurrent_workers_never_share(ctx: &LawContext<'_>) {
    for n in 1..=30 {
        let ordering_key = (n % 3 == 0).then(|| "o".to_owned());
        ctx.send(NewMessage { ordering_key, ..msg(n, "q") }).await;
    }
    let lease = || ctx.store.lease(ctx.lease_request(&["q"], 7));
    let (a, b, c, d) = tokio::join!(lease(), lease(), lease(), lease());
    let all: Vec<Delivery> = [a, b, c, d].into_iter().flat_map(|r| r.expect("succeeds")).collect();
    let ids: BTreeSet<_> = all.iter().map(|d| d.token.id).collect();
    assert_eq!((all.len(), ids.len()), (21, 21), "twenty without an ordering key, and the first of the key");
    let tokens: Vec<_> = all.iter().map(|d| d.token).collect();
    let settle = |n: usize| ctx.settle(tokens[n], Settle::Ack);
    let (a, b, c, d) = tokio::join!(settle(0), settle(0), settle(0), settle(0));
    assert_eq!([a, b, c, d].iter().filter(|r| r.is_ok()).count(), 1, "exactly one settlement succeeds");
    assert_eq!(ctx.counts("q").await.done, 1);
}

pub(super) async fn i17_i18_every_lease_has_a_new_secret_and_a_higher_number(ctx: &LawContext<'_>) {
    ctx.configure("q", no_poison_check(1_000)).await;
    ctx.send(msg(1, "q")).await;
    let mut secrets = BTreeSet::new();
    for n in 1..=50 {
        let taken = ctx.lease_one("q").await;
        assert_eq!(taken.message.deliveries, n);
        assert!(secrets.insert(taken.token.secret.to_bytes()), "a secret was used twice");
        let ending = if n % 2 == 0 { Settle::Release } else { super::kit::fail("Bad") };
        ctx.settle(taken.token, ending).await.expect("held");
        ctx.clock.advance(BACKOFF);
    }
}

pub(super) async fn i19_a_lost_lease_is_found_by_the_next_lease_call(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(3)).await;
    ctx.send(msg(9, "other")).await;
    let sent = msg(1, "q");
    ctx.send(sent.clone()).await;
    let first = ctx.lease_one("q").await;
    let now = ctx.clock.advance(secs(30));
    // Any lease call finds the lost lease, even one for another queue.
    let other = ctx.lease_one("other").await;
    ctx.settle(other.token, Settle::Ack).await.expect("held");
    let lost = AnalysedFailure::lease_lost(secs(30)).into_failure(1, 1, now, Some("w".into()));
    let waiting = Message {
        state: State::Scheduled,
        attempts: 1,
        deliveries: 1,
        failed: 1,
        ready_at: now.plus(BACKOFF),
        first_received_at: Some(START),
        updated_at: now,
        failures: vec![lost],
        ..expected_message(&sent, &max_attempts(3), 2, START)
    };
    assert_eq!(ctx.message(sent.id).await, waiting);
    ctx.clock.advance(BACKOFF);
    let second = ctx.lease_one("q").await;
    assert_eq!((second.attempt, second.message.deliveries), (2, 2));
    assert_ne!(first.token, second.token);
}

pub(super) async fn i24_i25_i26_lost_leases_count_and_end_in_the_dlq(ctx: &LawContext<'_>) {
    ctx.configure("q", no_poison_check(3)).await;
    let id = ctx.send(msg(1, "q")).await;
    for attempt in 1..=3 {
        let taken = ctx.lease_one("q").await;
        assert_eq!((taken.attempt, taken.message.deliveries), (attempt, attempt), "each lease counts once");
        ctx.clock.advance(secs(30));
        assert_eq!(ctx.lease("q", 9).await, []);
        ctx.clock.advance(BACKOFF);
    }
    assert_eq!(ctx.lease("q", 9).await, []);
    let letter = ctx.letter(id).await;
    assert_eq!(
        (letter.record.reason, letter.message.attempts, letter.message.failed),
        (Reason::MaxAttempts, 3, 3)
    );
    assert_eq!(letter.error.error_type, "LeaseExpired");
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 1, dead: 1, ..Counts::default() });
}

pub(super) async fn a_paused_queue_grants_nothing_and_is_still_reaped(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    ctx.send(msg(1, "q")).await;
    let held = ctx.lease_one("q").await;
    ctx.send(msg(2, "q")).await;
    ctx.send(NewMessage { ttl: Some(secs(5)), ..msg(3, "q") }).await;
    ctx.send(msg(4, "other")).await;
    ctx.store.pause(q("q"), true, operator()).await.expect("succeeds");
    ctx.send(msg(5, "q")).await;
    ctx.settle(held.token, Settle::Extend { by: None }).await.expect("settling is not paused");
    ctx.clock.advance(secs(30));
    let request = ctx.lease_request(&["q", "other"], 10);
    let taken = ctx.store.lease(request).await.expect("succeeds");
    assert_eq!(taken.iter().map(|d| d.message.envelope.id).collect::<Vec<_>>(), [message_id(4)]);
    assert_eq!(ctx.message(message_id(1)).await.failed, 1, "its lost lease was found");
    assert_eq!(
        ctx.letter(message_id(3)).await.record.reason,
        Reason::Expired,
        "and so was the expired message"
    );
    ctx.store.pause(q("q"), false, operator()).await.expect("succeeds");
    assert_eq!(ctx.lease("q", 10).await.len(), 2);
}

pub(super) async fn an_expired_message_is_not_delivered(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    let at = |s: u64| Some(START.plus(secs(s)));
    ctx.send(NewMessage { ttl: Some(secs(10)), ..msg(1, "q") }).await;
    ctx.send(NewMessage { deadline: at(10), ..msg(2, "q") }).await;
    // Both limits have passed: the deadline is the stronger one, so the reason names it.
    ctx.send(NewMessage { deadline: at(10), ttl: Some(secs(5)), ..msg(3, "q") }).await;
    ctx.send(NewMessage { ttl: Some(secs(10)), delay: Some(secs(60)), ..msg(4, "q") }).await;
    ctx.clock.set(START.plus(secs(10)).minus(MS));
    ctx.send(NewMessage { ttl: Some(secs(10)), ..msg(5, "q") }).await;
    let now = ctx.clock.advance(MS);
    let taken = ctx.lease_one("q").await;
    assert_eq!(taken.message.envelope.id, message_id(5));
    for (n, reason) in
        [(1, Reason::Expired), (2, Reason::Deadline), (3, Reason::Deadline), (4, Reason::Expired)]
    {
        let letter = ctx.letter(message_id(n)).await;
        assert_eq!((letter.record.reason, letter.record.dead_at, letter.message.attempts), (reason, now, 0));
        let filed = AnalysedFailure::too_late(reason).into_failure(1, 0, now, None);
        assert_eq!((letter.message.failures, letter.message.failed), (vec![filed], 1), "message {n}");
    }
    assert_eq!(ctx.counts("q").await.dead, 4);
}

pub(super) async fn an_expired_message_is_dropped_if_the_policy_says_so(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { on_expire: OnExpire::Drop, ..max_attempts(5) }).await;
    let id = ctx.send(NewMessage { ttl: Some(secs(10)), ..msg(1, "q") }).await;
    ctx.clock.advance(secs(10));
    assert_eq!(ctx.lease("q", 1).await, []);
    assert_eq!(refused(ctx.store.message(id).await), Refusal::NoSuchMessage { id });
    assert_eq!(refused(ctx.store.letter(id).await), Refusal::NoSuchLetter { id });
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 1, expired: 1, ..Counts::default() });
    assert_eq!(ctx.view().await.groups, [], "nothing failed");
}

pub(super) async fn trap7_a_leased_message_does_not_time_out(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    let id = ctx.send(NewMessage { ttl: Some(secs(10)), ..msg(1, "q") }).await;
    let taken = ctx.lease_one("q").await;
    ctx.clock.advance(secs(20));
    ctx.lease("q", 1).await;
    assert_eq!(ctx.message(id).await.state, State::Leased, "its worker may still finish");
    ctx.settle(taken.token, Settle::Ack).await.expect("held");
    assert_eq!(ctx.counts("q").await.done, 1);
    let late = ctx.send(NewMessage { ttl: Some(secs(10)), ..msg(2, "q") }).await;
    let taken = ctx.lease_one("q").await;
    ctx.clock.advance(secs(20));
    let failed = Settle::Fail { failure: Box::new(failure("Bad")), policy_override: None };
    let settled = ctx.settle(taken.token, failed).await.expect("held");
    assert_eq!(
        (settled.state, settled.reason),
        (State::Dead, Some(Reason::Expired)),
        "but it is not retried"
    );
    assert_eq!(ctx.letter(late).await.error.error_type, "Bad");
}

pub(super) async fn i23_long_leases_do_not_hide_expired_ones(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    for n in 1..=300 {
        ctx.send(msg(n, "q")).await;
    }
    let long = LeaseRequest { lease_for: Some(limits::LEASE_MAX), ..ctx.lease_request(&["q"], 299) };
    assert_eq!(ctx.store.lease(long).await.expect("succeeds").len(), 299);
    let last = ctx.lease_one("q").await;
    ctx.clock.advance(secs(30));
    assert_eq!(ctx.lease("q", 1).await, []);
    assert_eq!(ctx.message(last.token.id).await.failed, 1);
}

pub(super) async fn wait_reports_due_work(ctx: &LawContext<'_>) {
    ctx.send(msg(1, "q")).await;
    ctx.send(msg(2, "idle")).await;
    let taken = ctx.lease_one("idle").await;
    assert_eq!(ctx.store.wait(vec![q("q")], MS).await, Ok(true));
    assert_eq!(ctx.store.wait(vec![q("idle")], MS).await, Ok(false));
    assert_eq!(ctx.store.wait(vec![q("nowhere")], MS).await, Ok(false), "nobody has sent there yet");
    ctx.store.pause(q("q"), true, operator()).await.expect("succeeds");
    assert_eq!(ctx.store.wait(vec![q("q")], MS).await, Ok(false));
    ctx.settle(taken.token, Settle::Release).await.expect("held");
    assert_eq!(ctx.store.wait(vec![q("q"), q("idle")], MS).await, Ok(true));
}
