//! Laws of `stats`: every event is counted once, in the commit that causes it, and nothing that was refused is.

use super::Stage;
use super::kit::{BACKOFF, failed, new, operator, q, rules, secs};
use redrive_core::dead_letter::{Act, Retry};
use redrive_core::limits;
use redrive_core::message::{NewMessage, Payload, Priority};
use redrive_core::metrics::{Event, Stats};
use redrive_core::policy::{OnExpire, QueuePolicy};
use redrive_core::store::{LetterLeaseRequest, LetterSettle, LetterSettlement, Settle};

impl Stage<'_> {
    async fn stats(&self) -> Stats {
        self.store.stats().await.expect("stats answers")
    }
}

/// How often, how much and the most, with the labels in their order.
fn shown(stats: &Stats, event: Event) -> Vec<(String, u64, u64, u64)> {
    let of_event = stats.counters.iter().filter(|c| c.event == event);
    let labels = |c: &redrive_core::metrics::Counted| {
        let names = event.number().labels.iter().skip(1);
        names.map(|name| c.labels[*name].clone()).collect::<Vec<_>>().join("/")
    };
    of_event.map(|c| (labels(c), c.tally.count, c.tally.sum, c.tally.max)).collect()
}

fn one(label: &str, count: u64, sum: u64, max: u64) -> Vec<(String, u64, u64, u64)> {
    vec![(label.to_owned(), count, sum, max)]
}

pub(super) async fn an_empty_store_has_counted_nothing(stage: &Stage<'_>) {
    let stats = stage.stats().await;
    assert_eq!((stats.counters, stats.queues, stats.oldest_open_at), (Vec::new(), Vec::new(), None));
    assert_eq!(stats.now, stage.now());
}

pub(super) async fn work_is_counted_by_what_became_of_it(stage: &Stage<'_>) {
    stage.set("q", rules(3)).await;
    let began = stage.now();
    let charge = |n| NewMessage { kind: "charge".into(), priority: Some(Priority::High), ..new(n, "q") };
    for n in 1..=3 {
        stage.send(charge(n)).await;
    }
    stage.clock.advance(secs(2));
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    let second = stage.take_one("q").await;
    stage.clock.advance(secs(1));
    stage.settle(second.token, failed("Bad")).await.expect("held");
    let third = stage.take_one("q").await;
    stage.settle(third.token, Settle::Snooze { span: secs(600) }).await.expect("held");
    stage.clock.advance(BACKOFF);
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    let stale = stage.settle(second.token, Settle::Ack).await;
    assert!(stale.is_err(), "and it is not counted");
    let stats = stage.stats().await;
    assert_eq!(shown(&stats, Event::Enqueued), one("charge/high", 3, 27, 9));
    assert_eq!(shown(&stats, Event::Leased), one("", 4, 2_000 + 2_000 + 3_000, 3_000));
    assert_eq!(shown(&stats, Event::Acked), one("charge", 2, 3, 2));
    let failure = super::kit::failure("Bad");
    let class = format!("{}/{}", failure.route, failure.category);
    assert_eq!(shown(&stats, Event::Failed), one(&class, 1, 1_000, 1_000));
    assert_eq!(shown(&stats, Event::Retried), one("", 1, 10_000, 10_000));
    assert_eq!(shown(&stats, Event::GivenBack), one("", 1, 0, 0));
    assert_eq!(stats.summary().since, Some(began));
    let queue = &stats.queues[0];
    assert_eq!((queue.waiting, queue.leased, queue.peak, queue.letters_peak), (1, 0, 3, 0));
}

pub(super) async fn letters_are_counted_from_death_to_close(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let mut ids = Vec::new();
    for n in 1..=5 {
        ids.push(stage.dead(new(n, "q"), "Bad").await.id());
        stage.clock.advance(secs(10));
    }
    let oldest = stage.letter(ids[0]).await.file.dead_at;
    assert_eq!(stage.stats().await.oldest_open_at, Some(oldest));
    stage.act(ids[0], Act::retry()).await.expect("pending");
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    stage.act(ids[1], Act::retry()).await.expect("pending");
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    stage.act(ids[2], Act::Resolve).await.expect("pending");
    stage.act(ids[3], Act::Review).await.expect("pending");
    stage.act(ids[3], Act::Abandon).await.expect("under review");
    assert!(stage.act(ids[3], Act::Resolve).await.is_err(), "and it is not counted");
    stage.act(ids[3], Act::Purge).await.expect("closed");
    let drawer = LetterLeaseRequest { dlq: q("q-dlq"), max: 1, lease_for: None, worker: "consumer".into() };
    let token = stage.store.lease_letters(drawer).await.expect("answers")[0].token;
    let what = LetterSettle::Do { act: Act::Abandon, actor: operator() };
    stage.store.settle_letters(vec![LetterSettlement { token, what }]).await.expect("answers");
    let stats = stage.stats().await;
    let class = |reason: &str| {
        let failure = super::kit::failure("Bad");
        format!("{reason}/{}/{}", failure.route, failure.category)
    };
    let deaths = vec![(class("max_attempts"), 1, 1, 1), (class("permanent"), 5, 5, 1)];
    assert_eq!(shown(&stats, Event::Dead), deaths);
    assert_eq!(shown(&stats, Event::DeadByError), one("Bad", 6, 0, 0));
    assert_eq!(shown(&stats, Event::Redriven), one("", 2, 0, 0));
    assert_eq!(shown(&stats, Event::RedriveSucceeded), one("", 1, 50_000, 50_000));
    assert_eq!(shown(&stats, Event::RedriveFailed), one("", 1, 0, 0));
    assert_eq!(shown(&stats, Event::Resolved), one("", 1, 30_000, 30_000));
    assert_eq!(shown(&stats, Event::Abandoned), one("", 2, 30_000, 20_000));
    assert_eq!(shown(&stats, Event::Reviewed), one("", 1, 0, 0));
    assert_eq!(shown(&stats, Event::Discarded), one("letter", 1, 0, 0));
    assert_eq!(shown(&stats, Event::Processed), one("done", 1, 0, 0));
    let summary = stats.summary();
    assert_eq!((summary.retry_success_rate, summary.letters_open), (Some(0.5), 1));
    assert_eq!((stats.queues[0].letters_peak, stats.queues[0].letters_open), (5, 1));
}

pub(super) async fn ends_without_work_are_counted_too(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { on_expire: OnExpire::Drop, ..rules(3) }).await;
    stage.send(NewMessage { ttl: Some(secs(5)), ..new(1, "q") }).await;
    let id = stage.send(new(2, "q")).await;
    stage.store.cancel(vec![id], operator()).await.expect("answers");
    stage.clock.advance(secs(5));
    stage.store.reap(100).await.expect("answers");
    stage.send(new(3, "q")).await;
    stage.store.purge(q("q"), operator()).await.expect("answers");
    stage.send(NewMessage { reply_to: Some(q("answers")), ..new(4, "q") }).await;
    let reply = Settle::Reply { payload: Payload::default() };
    stage.settle(stage.take_one("q").await.token, reply).await.expect("held");
    stage.send(new(5, "q")).await;
    stage.take_one("q").await;
    stage.clock.advance(secs(30));
    stage.store.reap(100).await.expect("answers");
    let stats = stage.stats().await;
    assert_eq!(shown(&stats, Event::Expired), one("", 1, 0, 0));
    assert_eq!(shown(&stats, Event::Cancelled), one("", 1, 0, 0));
    assert_eq!(shown(&stats, Event::Discarded), one("message", 1, 0, 0));
    assert_eq!(shown(&stats, Event::Replied), one("done", 1, 0, 0));
    assert_eq!(shown(&stats, Event::LeasesLost), one("", 1, 0, 0));
    let letter = stage.dead(new(6, "q"), "Bad").await;
    let mut copy = letter.clone();
    copy.message.envelope.id = crate::ids::message_id(7);
    stage.store.import(vec![copy], operator()).await.expect("answers");
    assert_eq!(shown(&stage.stats().await, Event::Imported), one("", 1, 0, 0));
}

pub(super) async fn i49_too_many_kinds_are_counted_together(stage: &Stage<'_>) {
    let many = limits::TALLIES_MAX as u64 + 30;
    let kinds = (1..=many).map(|n| NewMessage { kind: format!("kind{n}"), ..new(n, "q") }).collect();
    stage.store.enqueue(kinds).await.expect("answers");
    let counted = shown(&stage.stats().await, Event::Enqueued);
    assert_eq!(counted.len(), limits::TALLIES_MAX + 1);
    let other = counted.iter().find(|(label, ..)| label == "other/normal").expect("the rest");
    assert_eq!(other.1, 30);
}

pub(super) async fn peaks_are_those_of_the_whole_store(stage: &Stage<'_>) {
    for queue in ["a", "b"] {
        stage.set(queue, rules(1)).await;
    }
    for (n, queue) in [(1, "a"), (2, "a"), (3, "b")] {
        stage.send(new(n, queue)).await;
    }
    for (n, queue) in [(1, "a"), (2, "a"), (3, "b")] {
        stage.die(queue, crate::ids::message_id(n), "Bad").await;
    }
    let peaks = async || {
        let summary = stage.stats().await.summary();
        (summary.messages_peak, summary.letters_peak)
    };
    assert_eq!(peaks().await, (3, 3), "no queue held as much");
    stage.act(crate::ids::message_id(2), Act::Resolve).await.expect("pending");
    stage.act(crate::ids::message_id(2), Act::Purge).await.expect("closed");
    stage.dead(new(4, "b"), "Bad").await;
    let elsewhere = Act::Retry(Retry { queue: Some(q("b")), ..Retry::default() });
    stage.act(crate::ids::message_id(1), elsewhere).await.expect("pending");
    stage.settle(stage.take_one("b").await.token, failed("Bad")).await.expect("held");
    assert_eq!(peaks().await, (3, 3), "the purged letter made room");
    stage.dead(new(5, "a"), "Bad").await;
    assert_eq!(peaks().await, (3, 4));
}

pub(super) async fn i15_open_letters_are_counted_by_priority_kind_and_dlq(stage: &Stage<'_>) {
    for queue in ["a", "b"] {
        stage.set(queue, rules(1)).await;
    }
    let of = |n, queue, kind: &str, priority| NewMessage {
        kind: kind.into(),
        priority: Some(priority),
        ..new(n, queue)
    };
    let charged = stage.dead(of(1, "a", "charge", Priority::High), "Bad").await.id();
    let sent = stage.dead(of(2, "a", "mail", Priority::Low), "Worse").await.id();
    stage.dead(of(3, "b", "charge", Priority::High), "Bad").await;
    let summary = stage.stats().await.summary();
    assert_eq!(summary.open_by_priority, [(Priority::High, 2), (Priority::Low, 1)].into());
    assert_eq!(summary.open_by_kind, [("charge".into(), 2), ("mail".into(), 1)].into());
    assert_eq!(summary.open_by_dlq, [(q("a-dlq"), 2), (q("b-dlq"), 1)].into());
    stage.act(charged, Act::Resolve).await.expect("pending");
    stage.act(sent, Act::retry()).await.expect("pending");
    let stats = stage.stats().await;
    let counted: Vec<_> =
        stats.open.iter().map(|c| (c.key.queue.as_str(), c.key.kind.as_str(), c.open)).collect();
    assert_eq!(counted, [("a", "mail", 1), ("b", "charge", 1)], "one that is retried is not closed");
    stage.act(charged, Act::Reopen).await.expect("closed");
    stage.settle(stage.take_one("a").await.token, Settle::Ack).await.expect("held");
    let summary = stage.stats().await.summary();
    assert_eq!(summary.open_by_kind, [("charge".into(), 2)].into());
    assert_eq!(summary.open_by_dlq, [(q("a-dlq"), 1), (q("b-dlq"), 1)].into());
    let deaths = shown(&stage.stats().await, Event::DeadByKind);
    let labels: Vec<_> = deaths.iter().map(|(label, count, ..)| (label.as_str(), *count)).collect();
    assert_eq!(labels, [("charge/high/a-dlq", 1), ("mail/low/a-dlq", 1), ("charge/high/b-dlq", 1)]);
}

pub(super) async fn refusals_of_a_full_queue_are_counted(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { max_messages: Some(1), ..rules(1) }).await;
    stage.store.enqueue((1..=3).map(|n| new(n, "q")).collect()).await.expect("answers");
    assert!(stage.try_send(new(4, "q")).await.is_err());
    let stats = stage.stats().await;
    assert_eq!(shown(&stats, Event::Overflowed), one("", 3, 0, 0));
    assert_eq!((stats.summary().overflows, stats.summary().enqueued), (3, 1));
}
