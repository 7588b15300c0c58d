//! Laws of `lease`: who gets what, when, for how long, and what happens to leases nobody gave back.

use super::Stage;
use super::kit::{
    BACKOFF, MS, failure, field, fresh, large, new, operator, q, refused, rules, secs, unwatched,
};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::error::Refusal;
use redrive_core::failure::{Analysed, Reason};
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::message::{Delivery, Message, NewMessage, Priority};
use redrive_core::policy::{OnExpire, QueuePolicy};
use redrive_core::scheduler::WEIGHTS;
use redrive_core::store::{LeaseRequest, Settle};
use redrive_core::time::Span;
use std::collections::BTreeSet;

pub(super) async fn a_delivery_is_the_message_as_it_is_now(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { lease: secs(45), ..rules(3) }).await;
    let sent = NewMessage { kind: "charge".into(), ..new(1, "q") };
    stage.send(sent.clone()).await;
    let now = stage.clock.advance(secs(3));
    let taken = stage.take_one("q").await;
    let leased = Message {
        state: State::Leased,
        attempts: 1,
        deliveries: 1,
        first_received_at: Some(now),
        updated_at: now,
        leased_by: Some("w".into()),
        lease_expires_at: Some(now.plus(secs(45))),
        ..fresh(&sent, &rules(3), 1, START)
    };
    assert_eq!(taken, Delivery { message: leased.clone(), token: taken.token, attempt: 1 });
    assert_eq!(taken.token.id, sent.id);
    assert_eq!(stage.message(sent.id).await, leased);
    let queue = stage.queue("q").await;
    assert_eq!((queue.ready, queue.scheduled), (0, 0));
    assert_eq!(queue.counts, Counts { enqueued: 1, leased: 1, bytes: 9, ..Counts::default() });
}

pub(super) async fn a_worker_may_say_for_how_long(stage: &Stage<'_>) {
    for n in 1..=3 {
        stage.send(new(n, "q")).await;
    }
    for span in [limits::LEASE_MIN, secs(90), limits::LEASE_MAX] {
        let request = LeaseRequest { lease_for: Some(span), ..stage.wish(&["q"], 1) };
        let taken = stage.store.lease(request).await.expect("answers");
        assert_eq!(taken[0].message.lease_expires_at, Some(START.plus(span)));
    }
}

pub(super) async fn absurd_requests_are_refused_by_field(stage: &Stage<'_>) {
    stage.send(new(1, "q")).await;
    let good = stage.wish(&["q"], 1);
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
        assert_eq!(field(refused(stage.store.lease(request).await)), name);
    }
    assert_eq!(stage.take("q", limits::LEASE_BATCH_MAX).await.len(), 1, "nothing had been taken");
}

pub(super) async fn an_unknown_queue_refuses_the_whole_call(stage: &Stage<'_>) {
    stage.send(new(1, "q")).await;
    stage.take_one("q").await;
    stage.send(new(2, "q")).await;
    stage.clock.advance(secs(31));
    let before = stage.seen().await;
    for queues in [["q", "nowhere"], ["nowhere", "q"], ["q", "q-dlq"]] {
        let missing = queues.into_iter().find(|name| *name != "q").expect("one is missing");
        let refusal = refused(stage.store.lease(stage.wish(&queues, 5)).await);
        assert_eq!(refusal, Refusal::NoSuchQueue { queue: q(missing) });
    }
    assert_eq!(stage.seen().await, before, "nothing was granted and nothing reaped");
}

pub(super) async fn i31_nothing_is_delivered_early(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    let soon = NewMessage { delay: Some(secs(60)), priority: Some(Priority::Critical), ..new(1, "q") };
    stage.send(soon).await;
    stage.clock.set(START.plus(Span::from_millis(59_999)));
    assert_eq!(stage.take("q", 9).await, [], "priority never shortens a delay");
    stage.clock.advance(MS);
    let taken = stage.take_one("q").await;
    let failed = stage.settle(taken.token, super::kit::failed("Bad")).await.expect("held");
    let due = stage.now().plus(BACKOFF);
    assert_eq!(failed.ready_at, Some(due));
    stage.clock.set(due.minus(MS));
    assert_eq!(stage.take("q", 9).await, [], "nor a backoff");
    stage.clock.advance(MS);
    let taken = stage.take_one("q").await;
    stage.settle(taken.token, Settle::Snooze { span: secs(7) }).await.expect("held");
    stage.clock.advance(Span::from_millis(6_999));
    assert_eq!(stage.take("q", 9).await, [], "nor a snooze");
    stage.clock.advance(MS);
    assert_eq!(stage.take("q", 9).await.len(), 1);
}

pub(super) async fn first_in_is_first_out_inside_a_priority(stage: &Stage<'_>) {
    for n in [3, 1, 2] {
        stage.send(new(n, "q")).await;
    }
    // Due earlier, though enqueued later, comes first; equally due goes by the order of enqueues.
    stage.send(NewMessage { delay: Some(secs(2)), ..new(4, "q") }).await;
    stage.clock.advance(secs(1));
    stage.send(NewMessage { delay: Some(secs(1)), ..new(5, "q") }).await;
    stage.send(new(6, "q")).await;
    stage.clock.advance(secs(9));
    let order: Vec<_> = stage.take("q", 10).await.iter().map(|d| d.message.envelope.id).collect();
    assert_eq!(order, [3, 1, 2, 6, 4, 5].map(message_id));
}

pub(super) async fn several_queues_are_served_as_one(stage: &Stage<'_>) {
    for (n, queue) in [(1, "b"), (2, "a"), (3, "b"), (4, "c")] {
        stage.send(new(n, queue)).await;
    }
    let wish = stage.wish(&["a", "b", "a"], 10);
    let order: Vec<_> =
        stage.store.lease(wish).await.expect("answers").iter().map(|d| d.message.envelope.id).collect();
    assert_eq!(order, [1, 2, 3].map(message_id), "by time, not by queue; none twice");
    assert_eq!(stage.take("c", 10).await.len(), 1);
}

pub(super) async fn no_more_than_asked_for(stage: &Stage<'_>) {
    for n in 1..=5 {
        stage.send(new(n, "q")).await;
    }
    assert_eq!(stage.take("q", 2).await.len(), 2);
    assert_eq!(stage.take("q", 100).await.len(), 3);
    assert_eq!(stage.take("q", 100).await, []);
}

pub(super) async fn i49_no_more_bytes_than_can_be_sent(stage: &Stage<'_>) {
    for n in 1..=3 {
        stage.send(large(n, "q")).await;
    }
    stage.send(new(4, "q")).await;
    let ids = |taken: Vec<Delivery>| taken.iter().map(|d| d.message.envelope.id).collect::<Vec<_>>();
    assert_eq!(ids(stage.take("q", 10).await), [1, 2].map(message_id), "these are all it may be at once");
    assert_eq!(ids(stage.take("q", 10).await), [3, 4].map(message_id), "the rest comes with the next call");
}

pub(super) async fn i29_each_priority_gets_its_share_of_31(stage: &Stage<'_>) {
    let mut n = 0;
    for priority in Priority::ALL {
        for _ in 0..48 {
            n += 1;
            stage.send(NewMessage { priority: Some(priority), ..new(n, "q") }).await;
        }
    }
    let mut levels = Vec::new();
    for max in [1, 30, 7, 24, 31] {
        let taken = stage.take("q", max).await;
        levels.extend(taken.iter().map(|d| d.message.envelope.priority.level()));
    }
    for window in levels.windows(31) {
        let share = [0, 1, 2, 3, 4].map(|l| window.iter().filter(|level| **level == l).count() as u64);
        assert_eq!(share, WEIGHTS, "in any 31 picks, whatever the size of the calls");
    }
    assert_eq!(levels[0], 0, "the most urgent first");
}

pub(super) async fn i29_an_urgent_deadline_comes_first(stage: &Stage<'_>) {
    let by = |n: u64, priority, deadline: u64| NewMessage {
        priority: Some(priority),
        deadline: Some(START.plus(secs(deadline))),
        ..new(n, "q")
    };
    for n in 10..20 {
        stage.send(NewMessage { priority: Some(Priority::Critical), ..new(n, "q") }).await;
    }
    stage.send(by(1, Priority::Background, 30)).await;
    stage.send(by(2, Priority::Low, 30)).await;
    stage.send(by(3, Priority::Low, 30)).await;
    stage.send(by(4, Priority::Background, 29)).await;
    stage.send(by(5, Priority::High, 90)).await;
    stage.clock.set(START.plus(secs(25)).minus(MS));
    let ids = |taken: Vec<Delivery>| -> Vec<_> { taken.iter().map(|d| d.message.envelope.id).collect() };
    let early = ids(stage.take("q", 1).await);
    assert_eq!(early, [message_id(4)], "29 s is within five seconds already");
    stage.clock.advance(MS);
    // Earliest first, then priority, then the order of enqueues.
    assert_eq!(ids(stage.take("q", 3).await), [2, 3, 1].map(message_id));
    assert!(stage.take("q", 1).await[0].message.envelope.deadline.is_none(), "90 s can wait");
}

pub(super) async fn trap18_an_aged_message_is_served(stage: &Stage<'_>) {
    stage.send(NewMessage { priority: Some(Priority::Background), ..new(1, "q") }).await;
    stage.clock.advance(secs(11));
    for n in 2..60 {
        stage.send(NewMessage { priority: Some(Priority::Critical), ..new(n, "q") }).await;
    }
    let taken = stage.take("q", 35).await;
    assert!(taken.iter().any(|d| d.message.envelope.id == message_id(1)), "within 35 picks");
    assert_eq!(taken[0].message.envelope.priority, Priority::Critical, "ageing never inverts priorities");
}

pub(super) async fn i16_a_leased_message_is_nobody_elses(stage: &Stage<'_>) {
    for n in 1..=20 {
        stage.send(new(n, "q")).await;
    }
    let mut seen = BTreeSet::new();
    for _ in 0..10 {
        for delivery in stage.take("q", 3).await {
            assert!(seen.insert(delivery.message.envelope.id), "leased twice");
        }
    }
    assert_eq!(seen.len(), 20);
    stage.clock.advance(Span::from_millis(29_999));
    assert_eq!(stage.take("q", 3).await, [], "until the last millisecond");
}

pub(super) async fn i16_concurrent_workers_never_share(stage: &Stage<'_>) {
    for n in 1..=30 {
        let ordering_key = (n % 3 == 0).then(|| "o".to_owned());
        stage.send(NewMessage { ordering_key, ..new(n, "q") }).await;
    }
    let ask = || stage.store.lease(stage.wish(&["q"], 7));
    let (a, b, c, d) = tokio::join!(ask(), ask(), ask(), ask());
    let all: Vec<Delivery> = [a, b, c, d].into_iter().flat_map(|r| r.expect("answers")).collect();
    let ids: BTreeSet<_> = all.iter().map(|d| d.token.id).collect();
    assert_eq!((all.len(), ids.len()), (21, 21), "twenty without a key, and the first with one");
    let tokens: Vec<_> = all.iter().map(|d| d.token).collect();
    let settle = |n: usize| stage.settle(tokens[n], Settle::Ack);
    let (a, b, c, d) = tokio::join!(settle(0), settle(0), settle(0), settle(0));
    assert_eq!([a, b, c, d].iter().filter(|r| r.is_ok()).count(), 1, "one of them finalised it");
    assert_eq!(stage.counts("q").await.done, 1);
}

pub(super) async fn i17_i18_every_lease_has_a_new_secret_and_a_higher_number(stage: &Stage<'_>) {
    stage.set("q", unwatched(1_000)).await;
    stage.send(new(1, "q")).await;
    let mut secrets = BTreeSet::new();
    for n in 1..=50 {
        let taken = stage.take_one("q").await;
        assert_eq!(taken.message.deliveries, n);
        assert!(secrets.insert(taken.token.secret.to_bytes()), "a secret came back");
        let ending = if n % 2 == 0 { Settle::Release } else { super::kit::failed("Bad") };
        stage.settle(taken.token, ending).await.expect("held");
        stage.clock.advance(BACKOFF);
    }
}

pub(super) async fn i19_a_lost_lease_is_judged_by_whoever_leases_next(stage: &Stage<'_>) {
    stage.set("q", rules(3)).await;
    stage.send(new(9, "other")).await;
    let sent = new(1, "q");
    stage.send(sent.clone()).await;
    let first = stage.take_one("q").await;
    let now = stage.clock.advance(secs(30));
    // Any lease call finds it, also one that asks for another queue.
    let other = stage.take_one("other").await;
    stage.settle(other.token, Settle::Ack).await.expect("held");
    let lost = Analysed::lease_lost(secs(30)).file(1, 1, now, Some("w".into()));
    let waiting = Message {
        state: State::Scheduled,
        attempts: 1,
        deliveries: 1,
        failed: 1,
        ready_at: now.plus(BACKOFF),
        first_received_at: Some(START),
        updated_at: now,
        failures: vec![lost],
        ..fresh(&sent, &rules(3), 2, START)
    };
    assert_eq!(stage.message(sent.id).await, waiting);
    stage.clock.advance(BACKOFF);
    let second = stage.take_one("q").await;
    assert_eq!((second.attempt, second.message.deliveries), (2, 2));
    assert_ne!(first.token, second.token);
}

pub(super) async fn i24_i25_i26_lost_leases_count_and_end_in_the_drawer(stage: &Stage<'_>) {
    stage.set("q", unwatched(3)).await;
    let id = stage.send(new(1, "q")).await;
    for attempt in 1..=3 {
        let taken = stage.take_one("q").await;
        assert_eq!((taken.attempt, taken.message.deliveries), (attempt, attempt), "each grant counts once");
        stage.clock.advance(secs(30));
        assert_eq!(stage.take("q", 9).await, []);
        stage.clock.advance(BACKOFF);
    }
    assert_eq!(stage.take("q", 9).await, []);
    let letter = stage.letter(id).await;
    assert_eq!(
        (letter.file.reason, letter.message.attempts, letter.message.failed),
        (Reason::MaxAttempts, 3, 3)
    );
    assert_eq!(letter.error.error_type, "LeaseExpired");
    assert_eq!(stage.counts("q").await, Counts { enqueued: 1, dead: 1, ..Counts::default() });
}

pub(super) async fn a_paused_queue_grants_nothing_and_is_still_reaped(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    stage.send(new(1, "q")).await;
    let held = stage.take_one("q").await;
    stage.send(new(2, "q")).await;
    stage.send(NewMessage { ttl: Some(secs(5)), ..new(3, "q") }).await;
    stage.send(new(4, "other")).await;
    stage.store.pause(q("q"), true, operator()).await.expect("answers");
    stage.send(new(5, "q")).await;
    stage.settle(held.token, Settle::Extend { by: None }).await.expect("settling goes on");
    stage.clock.advance(secs(30));
    let wish = stage.wish(&["q", "other"], 10);
    let taken = stage.store.lease(wish).await.expect("answers");
    assert_eq!(taken.iter().map(|d| d.message.envelope.id).collect::<Vec<_>>(), [message_id(4)]);
    assert_eq!(stage.message(message_id(1)).await.failed, 1, "its lost lease was found");
    assert_eq!(stage.letter(message_id(3)).await.file.reason, Reason::Expired, "so was what came too late");
    stage.store.pause(q("q"), false, operator()).await.expect("answers");
    assert_eq!(stage.take("q", 10).await.len(), 2);
}

pub(super) async fn what_is_too_late_is_not_delivered(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    let at = |s: u64| Some(START.plus(secs(s)));
    stage.send(NewMessage { ttl: Some(secs(10)), ..new(1, "q") }).await;
    stage.send(NewMessage { deadline: at(10), ..new(2, "q") }).await;
    // Both are over: the deadline is the harder promise and is named.
    stage.send(NewMessage { deadline: at(10), ttl: Some(secs(5)), ..new(3, "q") }).await;
    stage.send(NewMessage { ttl: Some(secs(10)), delay: Some(secs(60)), ..new(4, "q") }).await;
    stage.clock.set(START.plus(secs(10)).minus(MS));
    stage.send(NewMessage { ttl: Some(secs(10)), ..new(5, "q") }).await;
    let now = stage.clock.advance(MS);
    let taken = stage.take_one("q").await;
    assert_eq!(taken.message.envelope.id, message_id(5));
    for (n, reason) in
        [(1, Reason::Expired), (2, Reason::Deadline), (3, Reason::Deadline), (4, Reason::Expired)]
    {
        let letter = stage.letter(message_id(n)).await;
        assert_eq!((letter.file.reason, letter.file.dead_at, letter.message.attempts), (reason, now, 0));
        let filed = Analysed::too_late(reason).file(1, 0, now, None);
        assert_eq!((letter.message.failures, letter.message.failed), (vec![filed], 1), "message {n}");
    }
    assert_eq!(stage.counts("q").await.dead, 4);
}

pub(super) async fn what_is_too_late_is_dropped_if_the_queue_says_so(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { on_expire: OnExpire::Drop, ..rules(5) }).await;
    let id = stage.send(NewMessage { ttl: Some(secs(10)), ..new(1, "q") }).await;
    stage.clock.advance(secs(10));
    assert_eq!(stage.take("q", 1).await, []);
    assert_eq!(refused(stage.store.message(id).await), Refusal::NoSuchMessage { id });
    assert_eq!(refused(stage.store.letter(id).await), Refusal::NoSuchLetter { id });
    assert_eq!(stage.counts("q").await, Counts { enqueued: 1, expired: 1, ..Counts::default() });
    assert_eq!(stage.seen().await.groups, [], "nothing failed");
}

pub(super) async fn trap7_a_leased_message_does_not_time_out(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    let id = stage.send(NewMessage { ttl: Some(secs(10)), ..new(1, "q") }).await;
    let taken = stage.take_one("q").await;
    stage.clock.advance(secs(20));
    stage.take("q", 1).await;
    assert_eq!(stage.message(id).await.state, State::Leased, "its worker may still finish");
    stage.settle(taken.token, Settle::Ack).await.expect("held");
    assert_eq!(stage.counts("q").await.done, 1);
    let late = stage.send(NewMessage { ttl: Some(secs(10)), ..new(2, "q") }).await;
    let taken = stage.take_one("q").await;
    stage.clock.advance(secs(20));
    let failed = Settle::Fail { failure: Box::new(failure("Bad")), said: None };
    let settled = stage.settle(taken.token, failed).await.expect("held");
    assert_eq!((settled.state, settled.reason), (State::Dead, Some(Reason::Expired)), "but not try again");
    assert_eq!(stage.letter(late).await.error.error_type, "Bad");
}

pub(super) async fn i23_long_leases_do_not_hide_expired_ones(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    for n in 1..=300 {
        stage.send(new(n, "q")).await;
    }
    let long = LeaseRequest { lease_for: Some(limits::LEASE_MAX), ..stage.wish(&["q"], 299) };
    assert_eq!(stage.store.lease(long).await.expect("answers").len(), 299);
    let last = stage.take_one("q").await;
    stage.clock.advance(secs(30));
    assert_eq!(stage.take("q", 1).await, []);
    assert_eq!(stage.message(last.token.id).await.failed, 1);
}

pub(super) async fn wait_sees_due_work(stage: &Stage<'_>) {
    stage.send(new(1, "q")).await;
    stage.send(new(2, "idle")).await;
    let taken = stage.take_one("idle").await;
    assert_eq!(stage.store.wait(vec![q("q")], MS).await, Ok(true));
    assert_eq!(stage.store.wait(vec![q("idle")], MS).await, Ok(false));
    stage.store.pause(q("q"), true, operator()).await.expect("answers");
    assert_eq!(stage.store.wait(vec![q("q")], MS).await, Ok(false));
    stage.settle(taken.token, Settle::Release).await.expect("held");
    assert_eq!(stage.store.wait(vec![q("q"), q("idle")], MS).await, Ok(true));
}
