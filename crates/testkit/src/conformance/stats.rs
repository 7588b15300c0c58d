//! Laws of `stats`: every event is counted once, in the commit that causes it, and refused calls are not
//! counted.

use super::LawContext;
use super::kit::{BACKOFF, fail, max_attempts, msg, operator, q, secs};
use redrive_core::dead_letter::{Act, Retry};
use redrive_core::limits;
use redrive_core::message::{NewMessage, Payload, Priority};
use redrive_core::metrics::{Event, Stats};
use redrive_core::policy::{OnExpire, QueuePolicy};
use redrive_core::store::{LetterLeaseRequest, LetterSettle, LetterSettlement, Settle};

impl LawContext<'_> {
    async fn stats(&self) -> Stats {
        self.store.stats().await.expect("stats succeeds")
    }
}

/// The count, sum and maximum of each counter of an event, with its labels joined in order.
fn counters_of(stats: &Stats, event: Event) -> Vec<(String, u64, u64, u64)> {
    let of_event = stats.counters.iter().filter(|c| c.event == event);
    let labels = |c: &redrive_core::metrics::CounterView| {
        let names = event.number().labels.iter().skip(1);
        names.map(|name| c.labels[*name].clone()).collect::<Vec<_>>().join("/")
    };
    of_event.map(|c| (labels(c), c.totals.count, c.totals.sum, c.totals.max)).collect()
}

fn single(label: &str, count: u64, sum: u64, max: u64) -> Vec<(String, u64, u64, u64)> {
    vec![(label.to_owned(), count, sum, max)]
}

pub(super) async fn an_empty_store_has_counted_nothing(ctx: &LawContext<'_>) {
    let stats = ctx.stats().await;
    assert_eq!((stats.counters, stats.queues, stats.oldest_open_at), (Vec::new(), Vec::new(), None));
    assert_eq!(stats.now, ctx.now());
}

pub(super) async fn work_is_counted_by_outcome(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(3)).await;
    let began = ctx.now();
    let charge = |n| NewMessage { kind: "charge".into(), priority: Some(Priority::High), ..msg(n, "q") };
    for n in 1..=3 {
        ctx.send(charge(n)).await;
    }
    ctx.clock.advance(secs(2));
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    let second = ctx.lease_one("q").await;
    ctx.clock.advance(secs(1));
    ctx.settle(second.token, fail("Bad")).await.expect("held");
    let third = ctx.lease_one("q").await;
    ctx.settle(third.token, Settle::Snooze { span: secs(600) }).await.expect("held");
    ctx.clock.advance(BACKOFF);
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    let stale = ctx.settle(second.token, Settle::Ack).await;
    assert!(stale.is_err(), "a refusal is not counted");
    let stats = ctx.stats().await;
    assert_eq!(counters_of(&stats, Event::Enqueued), single("charge/high", 3, 27, 9));
    assert_eq!(counters_of(&stats, Event::Leased), single("", 4, 2_000 + 2_000 + 3_000, 3_000));
    assert_eq!(counters_of(&stats, Event::Acked), single("charge", 2, 3, 2));
    let failure = super::kit::failure("Bad");
    let class = format!("{}/{}", failure.route, failure.category);
    assert_eq!(counters_of(&stats, Event::Failed), single(&class, 1, 1_000, 1_000));
    assert_eq!(counters_of(&stats, Event::Retried), single("", 1, 10_000, 10_000));
    assert_eq!(counters_of(&stats, Event::GivenBack), single("", 1, 0, 0));
    assert_eq!(stats.summary().since, Some(began));
    let queue = &stats.queues[0];
    assert_eq!((queue.waiting, queue.leased, queue.peak, queue.letters_peak), (1, 0, 3, 0));
}

pub(super) async fn letters_are_counted_from_death_to_close(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let mut ids = Vec::new();
    for n in 1..=5 {
        ids.push(ctx.dead_letter(msg(n, "q"), "Bad").await.id());
        ctx.clock.advance(secs(10));
    }
    let oldest = ctx.letter(ids[0]).await.record.dead_at;
    assert_eq!(ctx.stats().await.oldest_open_at, Some(oldest));
    ctx.act(ids[0], Act::retry()).await.expect("pending");
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    ctx.act(ids[1], Act::retry()).await.expect("pending");
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    ctx.act(ids[2], Act::Resolve).await.expect("pending");
    ctx.act(ids[3], Act::Review).await.expect("pending");
    ctx.act(ids[3], Act::Abandon).await.expect("under review");
    assert!(ctx.act(ids[3], Act::Resolve).await.is_err(), "a refusal is not counted");
    ctx.act(ids[3], Act::Purge).await.expect("closed");
    let dlq = LetterLeaseRequest { dlq: q("q-dlq"), max: 1, lease_for: None, worker: "consumer".into() };
    let token = ctx.store.lease_letters(dlq).await.expect("succeeds")[0].token;
    let what = LetterSettle::Do { act: Act::Abandon, actor: operator() };
    ctx.store.settle_letters(vec![LetterSettlement { token, what }]).await.expect("succeeds");
    let stats = ctx.stats().await;
    let class = |reason: &str| {
        let failure = super::kit::failure("Bad");
        format!("{reason}/{}/{}", failure.route, failure.category)
    };
    let deaths = vec![(class("max_attempts"), 1, 1, 1), (class("permanent"), 5, 5, 1)];
    assert_eq!(counters_of(&stats, Event::Dead), deaths);
    assert_eq!(counters_of(&stats, Event::DeadByError), single("Bad", 6, 0, 0));
    assert_eq!(counters_of(&stats, Event::Redriven), single("", 2, 0, 0));
    assert_eq!(counters_of(&stats, Event::RedriveSucceeded), single("", 1, 50_000, 50_000));
    assert_eq!(counters_of(&stats, Event::RedriveFailed), single("", 1, 0, 0));
    assert_eq!(counters_of(&stats, Event::Resolved), single("", 1, 30_000, 30_000));
    assert_eq!(counters_of(&stats, Event::Abandoned), single("", 2, 30_000, 20_000));
    assert_eq!(counters_of(&stats, Event::Reviewed), single("", 1, 0, 0));
    assert_eq!(counters_of(&stats, Event::Discarded), single("letter", 1, 0, 0));
    assert_eq!(counters_of(&stats, Event::Processed), single("done", 1, 0, 0));
    let summary = stats.summary();
    assert_eq!((summary.retry_success_rate, summary.letters_open), (Some(0.5), 1));
    assert_eq!((stats.queues[0].letters_peak, stats.queues[0].letters_open), (5, 1));
}

pub(super) async fn messages_that_end_without_work_are_counted(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { on_expire: OnExpire::Drop, ..max_attempts(3) }).await;
    ctx.send(NewMessage { ttl: Some(secs(5)), ..msg(1, "q") }).await;
    let id = ctx.send(msg(2, "q")).await;
    ctx.store.cancel(vec![id], operator()).await.expect("succeeds");
    ctx.clock.advance(secs(5));
    ctx.store.reap(100).await.expect("succeeds");
    ctx.send(msg(3, "q")).await;
    ctx.store.purge(q("q"), operator()).await.expect("succeeds");
    ctx.send(NewMessage { reply_to: Some(q("answers")), ..msg(4, "q") }).await;
    let reply = Settle::Reply { payload: Payload::default() };
    ctx.settle(ctx.lease_one("q").await.token, reply).await.expect("held");
    ctx.send(msg(5, "q")).await;
    ctx.lease_one("q").await;
    ctx.clock.advance(secs(30));
    ctx.store.reap(100).await.expect("succeeds");
    let stats = ctx.stats().await;
    assert_eq!(counters_of(&stats, Event::Expired), single("", 1, 0, 0));
    assert_eq!(counters_of(&stats, Event::Cancelled), single("", 1, 0, 0));
    assert_eq!(counters_of(&stats, Event::Discarded), single("message", 1, 0, 0));
    assert_eq!(counters_of(&stats, Event::Replied), single("done", 1, 0, 0));
    assert_eq!(counters_of(&stats, Event::LeasesLost), single("", 1, 0, 0));
    let letter = ctx.dead_letter(msg(6, "q"), "Bad").await;
    let mut copy = letter.clone();
    copy.message.envelope.id = crate::ids::message_id(7);
    ctx.store.import(vec![copy], operator()).await.expect("succeeds");
    assert_eq!(counters_of(&ctx.stats().await, Event::Imported), single("", 1, 0, 0));
}

pub(super) async fn i49_kinds_over_the_limit_are_counted_together(ctx: &LawContext<'_>) {
    let many = limits::TALLIES_MAX as u64 + 30;
    let kinds = (1..=many).map(|n| NewMessage { kind: format!("kind{n}"), ..msg(n, "q") }).collect();
    ctx.store.enqueue(kinds).await.expect("succeeds");
    let counted = counters_of(&ctx.stats().await, Event::Enqueued);
    assert_eq!(counted.len(), limits::TALLIES_MAX + 1);
    let other = counted.iter().find(|(label, ..)| label == "other/normal").expect("the rest");
    assert_eq!(other.1, 30);
}

pub(super) async fn peaks_are_those_of_the_whole_store(ctx: &LawContext<'_>) {
    for queue in ["a", "b"] {
        ctx.configure(queue, max_attempts(1)).await;
    }
    for (n, queue) in [(1, "a"), (2, "a"), (3, "b")] {
        ctx.send(msg(n, queue)).await;
    }
    for (n, queue) in [(1, "a"), (2, "a"), (3, "b")] {
        ctx.kill_next(queue, crate::ids::message_id(n), "Bad").await;
    }
    let peaks = async || {
        let summary = ctx.stats().await.summary();
        (summary.messages_peak, summary.letters_peak)
    };
    assert_eq!(peaks().await, (3, 3), "the peak of all queues together");
    ctx.act(crate::ids::message_id(2), Act::Resolve).await.expect("pending");
    ctx.act(crate::ids::message_id(2), Act::Purge).await.expect("closed");
    ctx.dead_letter(msg(4, "b"), "Bad").await;
    let elsewhere = Act::Retry(Retry { queue: Some(q("b")), ..Retry::default() });
    ctx.act(crate::ids::message_id(1), elsewhere).await.expect("pending");
    ctx.settle(ctx.lease_one("b").await.token, fail("Bad")).await.expect("held");
    assert_eq!(peaks().await, (3, 3), "the purged letter made room");
    ctx.dead_letter(msg(5, "a"), "Bad").await;
    assert_eq!(peaks().await, (3, 4));
}

pub(super) async fn i15_open_letters_are_counted_by_priority_kind_and_dlq(ctx: &LawContext<'_>) {
    for queue in ["a", "b"] {
        ctx.configure(queue, max_attempts(1)).await;
    }
    let of = |n, queue, kind: &str, priority| NewMessage {
        kind: kind.into(),
        priority: Some(priority),
        ..msg(n, queue)
    };
    let charged = ctx.dead_letter(of(1, "a", "charge", Priority::High), "Bad").await.id();
    let sent = ctx.dead_letter(of(2, "a", "mail", Priority::Low), "Worse").await.id();
    ctx.dead_letter(of(3, "b", "charge", Priority::High), "Bad").await;
    let summary = ctx.stats().await.summary();
    assert_eq!(summary.open_by_priority, [(Priority::High, 2), (Priority::Low, 1)].into());
    assert_eq!(summary.open_by_kind, [("charge".into(), 2), ("mail".into(), 1)].into());
    assert_eq!(summary.open_by_dlq, [(q("a-dlq"), 2), (q("b-dlq"), 1)].into());
    ctx.act(charged, Act::Resolve).await.expect("pending");
    ctx.act(sent, Act::retry()).await.expect("pending");
    let stats = ctx.stats().await;
    let counted: Vec<_> =
        stats.open.iter().map(|c| (c.key.queue.as_str(), c.key.kind.as_str(), c.open)).collect();
    assert_eq!(counted, [("a", "mail", 1), ("b", "charge", 1)], "a letter being retried is open");
    ctx.act(charged, Act::Reopen).await.expect("closed");
    ctx.settle(ctx.lease_one("a").await.token, Settle::Ack).await.expect("held");
    let summary = ctx.stats().await.summary();
    assert_eq!(summary.open_by_kind, [("charge".into(), 2)].into());
    assert_eq!(summary.open_by_dlq, [(q("a-dlq"), 1), (q("b-dlq"), 1)].into());
    let deaths = counters_of(&ctx.stats().await, Event::DeadByKind);
    let labels: Vec<_> = deaths.iter().map(|(label, count, ..)| (label.as_str(), *count)).collect();
    assert_eq!(labels, [("charge/high/a-dlq", 1), ("mail/low/a-dlq", 1), ("charge/high/b-dlq", 1)]);
}

pub(super) async fn refusals_of_a_full_queue_are_counted(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { max_messages: Some(1), ..max_attempts(1) }).await;
    ctx.store.enqueue((1..=3).map(|n| msg(n, "q")).collect()).await.expect("succeeds");
    assert!(ctx.try_send(msg(4, "q")).await.is_err());
    let stats = ctx.stats().await;
    assert_eq!(counters_of(&stats, Event::Overflowed), single("", 3, 0, 0));
    assert_eq!((stats.summary().overflows, stats.summary().enqueued), (3, 1));
}
