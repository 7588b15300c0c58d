//! Laws of `enqueue`: what comes in stays as it was, once, within the limits, and says so per entry.

use super::Stage;
use super::kit::{MS, failed, field, fresh, hopeless, new, operator, q, refused, rules, secs};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::dead_letter::Act;
use redrive_core::error::Refusal;
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::message::{NewMessage, Payload, Priority};
use redrive_core::policy::{OnExpire, QueuePolicy};
use redrive_core::store::{Enqueued, KeyState, Settle};
use redrive_core::time::Span;

/// A message that says everything a message can say.
fn eloquent(n: u64) -> NewMessage {
    NewMessage {
        kind: "charge".into(),
        priority: Some(Priority::High),
        payload: Payload { bytes: (0..=255).collect(), content_type: "application/x-odd".into() },
        headers: [("a".into(), "1".into()), ("b".into(), String::new())].into(),
        tags: ["x".into(), "y".into()].into(),
        key: Some(format!("key {n}")),
        ordering_key: Some("account 7".into()),
        reply_to: Some(q("replies")),
        trace: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        context: Some(
            serde_json::json!({"tenant": "žluť", "n": 12_345_678_901_234_567_u64, "list": [1.5, null]}),
        ),
        delay: Some(secs(5)),
        ttl: Some(secs(3_600)),
        deadline: Some(START.plus(secs(7_200))),
        max_attempts: Some(3),
        enqueued_by: Some("billing".into()),
        ..new(n, "q")
    }
}

pub(super) async fn a_message_is_kept_as_it_was_handed_in(stage: &Stage<'_>) {
    let sent = eloquent(1);
    let reply = stage.try_send(sent.clone()).await;
    assert_eq!(reply, Ok(Enqueued { id: sent.id, state: State::Scheduled, duplicate: false }));
    assert_eq!(stage.message(sent.id).await, fresh(&sent, &QueuePolicy::default(), 1, START));
}

pub(super) async fn i33_payload_bytes_are_bit_exact(stage: &Stage<'_>) {
    let bodies = [vec![], vec![0], b"{\"n\": 1.00}".to_vec(), vec![0xc3, 0x28, 0xff], "\u{feff}é\r\n".into()];
    for (n, bytes) in (1..).zip(bodies) {
        let payload = Payload { bytes, content_type: String::new() };
        let id = stage.send(NewMessage { payload: payload.clone(), ..new(n, "q") }).await;
        assert_eq!(stage.message(id).await.envelope.payload, payload);
        let letter = stage.die("q", id, "Bad").await;
        assert_eq!(letter.message.envelope.payload, payload);
    }
}

pub(super) async fn the_queue_fills_in_what_is_not_said(stage: &Stage<'_>) {
    let policy = QueuePolicy {
        priority: Priority::Low,
        ttl: Some(secs(60)),
        max_attempts: 2,
        ..QueuePolicy::default()
    };
    stage.set("q", policy.clone()).await;
    let said = NewMessage {
        priority: Some(Priority::Critical),
        ttl: Some(secs(9)),
        max_attempts: Some(7),
        ..new(1, "q")
    };
    for (seq, sent) in [(1, said), (2, new(2, "q"))] {
        stage.send(sent.clone()).await;
        assert_eq!(stage.message(sent.id).await, fresh(&sent, &policy, seq, START));
    }
    let lowered = QueuePolicy { max_attempts: 9, ..policy };
    stage.set("q", lowered).await;
    assert_eq!(stage.message(message_id(1)).await.envelope.max_attempts, Some(7), "its own word");
    assert_eq!(
        stage.message(message_id(2)).await.envelope.max_attempts,
        Some(9),
        "its queue's word, as it is now"
    );
}

pub(super) async fn an_unknown_queue_is_made_with_the_default_rules(stage: &Stage<'_>) {
    let unknown = refused(stage.store.queue(q("q")).await);
    assert_eq!(unknown, Refusal::NoSuchQueue { queue: q("q") });
    stage.send(new(1, "q")).await;
    let queue = stage.queue("q").await;
    assert_eq!(queue.policy, QueuePolicy::default());
    let counts = Counts { enqueued: 1, waiting: 1, bytes: 9, ..Counts::default() };
    assert_eq!((queue.paused, queue.scheduled, queue.ready, queue.counts), (false, 0, 1, counts));
    assert_eq!(stage.trail().await, [], "nobody acted");
}

pub(super) async fn i31_a_delayed_message_waits_as_scheduled(stage: &Stage<'_>) {
    let sent = NewMessage { delay: Some(secs(5)), ..new(1, "q") };
    let reply = stage.try_send(sent.clone()).await.expect("accepted");
    assert_eq!(reply.state, State::Scheduled);
    let no_delay = stage.try_send(NewMessage { delay: Some(Span::ZERO), ..new(2, "q") }).await;
    assert_eq!(no_delay.expect("accepted").state, State::Ready);
    let queue = stage.queue("q").await;
    assert_eq!((queue.scheduled, queue.ready, queue.counts.waiting), (1, 1, 2));
    stage.clock.advance(secs(5));
    let queue = stage.queue("q").await;
    assert_eq!((queue.scheduled, queue.ready, queue.counts.waiting), (0, 2, 2), "becoming due is no write");
    assert_eq!(stage.try_send(sent).await.expect("harmless").state, State::Ready);
}

pub(super) async fn i41_same_key_same_body_is_one_message(stage: &Stage<'_>) {
    let sent = NewMessage { key: Some("k".into()), ..new(1, "q") };
    stage.send(sent.clone()).await;
    let again = |n| NewMessage { id: message_id(n), ..sent.clone() };
    let before = stage.seen().await;
    let reply = stage.try_send(again(2)).await;
    assert_eq!(reply, Ok(Enqueued { id: sent.id, state: State::Ready, duplicate: true }));
    assert_eq!(stage.seen().await, before, "nothing was added");
    // What else a sender may say differently is not part of the body.
    let dressed = NewMessage { priority: Some(Priority::Low), tags: ["t".into()].into(), ..again(3) };
    assert_eq!(stage.try_send(dressed).await.map(|r| (r.id, r.duplicate)), Ok((sent.id, true)));
    let known = KeyState { id: sent.id, state: State::Ready };
    assert_eq!(stage.store.key_state(q("q"), "k".into()).await, Ok(Some(known)));
    assert_eq!(stage.store.key_state(q("q"), "other".into()).await, Ok(None));
    let mut twice = new(5, "q");
    twice.key = Some("twin".into());
    let batch = vec![twice.clone(), NewMessage { id: message_id(6), ..twice }];
    let each = stage.store.enqueue(batch).await.expect("answers");
    let id = message_id(5);
    assert_eq!(each[0], Ok(Enqueued { id, state: State::Ready, duplicate: false }));
    assert_eq!(each[1], Ok(Enqueued { id, state: State::Ready, duplicate: true }), "also within one batch");
}

pub(super) async fn i41_same_key_other_body_is_refused(stage: &Stage<'_>) {
    let sent = NewMessage { key: Some("k".into()), ..new(1, "q") };
    stage.send(sent.clone()).await;
    let before = stage.seen().await;
    let others: [fn(&mut NewMessage); 5] = [
        |m| m.payload.bytes.push(b'!'),
        |m| m.payload.content_type = "x/y".into(),
        |m| m.kind = "other".into(),
        |m| m.headers = [("h".into(), "v".into())].into(),
        |m| m.ordering_key = Some("o".into()),
    ];
    for change in others {
        let mut other = NewMessage { id: message_id(2), ..sent.clone() };
        change(&mut other);
        let conflict = Refusal::KeyConflict { queue: q("q"), key: "k".into(), id: sent.id };
        assert_eq!(stage.try_send(other).await, Err(conflict));
    }
    assert_eq!(stage.seen().await, before);
}

pub(super) async fn i41_a_key_belongs_to_its_queue(stage: &Stage<'_>) {
    for (n, queue) in [(1, "a"), (2, "b")] {
        stage.send(NewMessage { key: Some("k".into()), ..new(n, queue) }).await;
    }
    assert_eq!(stage.seen().await.messages.len(), 2);
}

pub(super) async fn i41_a_key_shows_where_its_message_is(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { on_expire: OnExpire::Drop, ..rules(2) }).await;
    let sent = |n: u64| NewMessage { key: Some(format!("k{n}")), ..new(n, "q") };
    let mut expected = Vec::new();
    let id = stage.send(sent(1)).await;
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    expected.push((1, State::Done));
    stage.send(sent(2)).await;
    stage.settle(stage.take_one("q").await.token, hopeless("Bad")).await.expect("held");
    expected.push((2, State::Dead));
    let cancelled = stage.send(sent(3)).await;
    stage.store.cancel(vec![cancelled], operator()).await.expect("answers")[0].clone().expect("it waits");
    expected.push((3, State::Cancelled));
    stage.send(sent(4)).await;
    stage.store.purge(q("q"), operator()).await.expect("answers");
    expected.push((4, State::Purged));
    stage.send(NewMessage { ttl: Some(secs(1)), ..sent(5) }).await;
    stage.clock.advance(secs(1));
    stage.store.reap(100).await.expect("answers");
    expected.push((5, State::Expired));
    stage.send(NewMessage { delay: Some(secs(60)), ..sent(6) }).await;
    expected.push((6, State::Scheduled));
    stage.send(sent(7)).await;
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    expected.push((7, State::Scheduled));
    stage.send(sent(8)).await;
    stage.take_one("q").await;
    expected.push((8, State::Leased));
    let removed = stage.dead_keyed(sent(9)).await;
    stage.act(removed, Act::Abandon).await.expect("it is pending");
    stage.act(removed, Act::Purge).await.expect("it is closed");
    expected.push((9, State::Purged));
    let retried = stage.dead_keyed(sent(10)).await;
    stage.act(retried, Act::retry()).await.expect("it is pending");
    expected.push((10, State::Ready));
    for (n, state) in expected {
        let reply = stage.try_send(NewMessage { id: message_id(100 + n), ..sent(n) }).await;
        assert_eq!(reply, Ok(Enqueued { id: message_id(n), state, duplicate: true }), "message {n}");
        let known = stage.store.key_state(q("q"), format!("k{n}")).await;
        assert_eq!(known, Ok(Some(KeyState { id: message_id(n), state })), "message {n}");
    }
    assert_eq!(id, message_id(1));
}

impl Stage<'_> {
    async fn dead_keyed(&self, new: NewMessage) -> redrive_core::ids::MessageId {
        self.dead(new, "Bad").await.id()
    }
}

pub(super) async fn i41_a_key_is_forgotten_after_its_window(stage: &Stage<'_>) {
    let sent = NewMessage { key: Some("k".into()), ..new(1, "q") };
    stage.send(sent.clone()).await;
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    let again = NewMessage { id: message_id(2), ..sent.clone() };
    stage.clock.advance(Span::from_millis(limits::KEY_WINDOW.as_millis() - 1));
    let reply = stage.try_send(again.clone()).await;
    assert_eq!(
        reply,
        Ok(Enqueued { id: sent.id, state: State::Done, duplicate: true }),
        "counted from enqueue"
    );
    stage.clock.advance(MS);
    assert_eq!(stage.store.key_state(q("q"), "k".into()).await, Ok(None));
    stage.send(again).await;
    let known = stage.store.key_state(q("q"), "k".into()).await.expect("answers").expect("known again");
    assert_eq!(known.id, message_id(2));
}

pub(super) async fn i42_the_same_id_again_is_harmless(stage: &Stage<'_>) {
    let sent = new(1, "q");
    stage.send(sent.clone()).await;
    let before = stage.seen().await;
    let again = Ok(Enqueued { id: sent.id, state: State::Ready, duplicate: true });
    assert_eq!(stage.try_send(sent.clone()).await, again);
    let other = NewMessage { kind: "other".into(), ..sent.clone() };
    assert_eq!(stage.try_send(other.clone()).await, Err(Refusal::IdConflict { id: sent.id }));
    assert_eq!(stage.seen().await, before);
    let delivery = stage.take_one("q").await;
    assert_eq!(stage.try_send(sent.clone()).await.map(|r| r.state), Ok(State::Leased));
    stage.settle(delivery.token, hopeless("Bad")).await.expect("held");
    let before = stage.seen().await;
    // Said aloud, so that a dead id never blocks new work silently.
    let dead = Ok(Enqueued { id: sent.id, state: State::Dead, duplicate: true });
    assert_eq!(stage.try_send(sent.clone()).await, dead);
    assert_eq!(stage.try_send(other).await, Err(Refusal::IdConflict { id: sent.id }));
    assert_eq!(stage.seen().await, before);
}

pub(super) async fn a_finished_message_leaves_nothing_behind(stage: &Stage<'_>) {
    let policy = QueuePolicy { on_expire: OnExpire::Drop, ..rules(9) };
    stage.set("q", policy.clone()).await;
    let sent = NewMessage { ttl: Some(secs(60)), ..new(1, "q") };
    for (seq, end) in [(2, "ack"), (4, "cancel"), (6, "purge"), (8, "drop")] {
        stage.send(sent.clone()).await;
        stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
        stage.clock.advance(secs(10));
        match end {
            "ack" => drop(stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held")),
            "cancel" => drop(stage.store.cancel(vec![sent.id], operator()).await.expect("answers")),
            "purge" => drop(stage.store.purge(q("q"), operator()).await.expect("answers")),
            _ => {
                stage.clock.advance(secs(60));
                stage.store.reap(10).await.expect("answers");
            }
        }
        let again = stage.send(sent.clone()).await;
        assert_eq!(stage.message(again).await, fresh(&sent, &policy, seq, stage.now()), "after {end}");
        stage.store.purge(q("q"), operator()).await.expect("answers");
    }
}

pub(super) async fn i41_concurrent_senders_make_one_message(stage: &Stage<'_>) {
    let sent = |n| vec![NewMessage { id: message_id(n), key: Some("k".into()), ..new(1, "q") }];
    let store = stage.store;
    let (a, b, c, d) = tokio::join!(
        store.enqueue(sent(1)),
        store.enqueue(sent(2)),
        store.enqueue(sent(3)),
        store.enqueue(sent(4))
    );
    let all: Vec<Enqueued> =
        [a, b, c, d].into_iter().map(|r| r.expect("answers").remove(0).expect("accepted")).collect();
    assert_eq!(all.iter().filter(|sent| !sent.duplicate).count(), 1, "{all:?}");
    assert!(all.iter().all(|sent| sent.id == all[0].id), "{all:?}");
    assert_eq!(stage.counts("q").await.enqueued, 1);
}

pub(super) async fn a_full_queue_refuses_by_count(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { max_messages: Some(2), ..rules(1) }).await;
    let batch = (1..=3).map(|n| new(n, "q")).collect();
    let each = stage.store.enqueue(batch).await.expect("answers");
    let full = Refusal::QueueFull { queue: q("q"), limit: "max_messages".into(), allowed: 2, actual: 2 };
    assert!(each[0].is_ok() && each[1].is_ok(), "{each:?}");
    assert_eq!(each[2], Err(full.clone()), "earlier entries of the same batch count");
    let delivery = stage.take_one("q").await;
    assert_eq!(stage.try_send(new(3, "q")).await, Err(full), "leased ones count");
    assert_eq!(stage.try_send(new(1, "q")).await.map(|r| r.duplicate), Ok(true), "a repeat needs no room");
    stage.settle(delivery.token, hopeless("Bad")).await.expect("held");
    stage.send(new(3, "q")).await;
    assert!(stage.act(delivery.token.id, Act::retry()).await.is_err(), "a redrive needs room as well");
    assert_eq!(stage.counts("q").await.waiting, 2);
}

pub(super) async fn a_full_queue_refuses_by_bytes(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { max_bytes: Some(20), ..rules(1) }).await;
    let sized = |n: u64, size: usize| {
        let payload = Payload { bytes: vec![b'x'; size], content_type: String::new() };
        NewMessage { payload, ..new(n, "q") }
    };
    stage.send(sized(1, 12)).await;
    let full = Refusal::QueueFull { queue: q("q"), limit: "max_bytes".into(), allowed: 20, actual: 12 };
    assert_eq!(stage.try_send(sized(2, 9)).await, Err(full));
    stage.send(sized(2, 8)).await;
    stage.send(sized(3, 0)).await;
    assert_eq!(stage.counts("q").await.bytes, 20);
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    assert_eq!(stage.counts("q").await.bytes, 8);
}

pub(super) async fn i5_each_entry_has_its_own_result(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let bad = NewMessage { max_attempts: Some(0), ..new(2, "q") };
    let batch = vec![new(1, "q"), bad, new(3, "q-dlq"), new(1, "q"), new(4, "fresh")];
    let each = stage.store.enqueue(batch).await.expect("answers");
    let ok = |n, duplicate| Ok(Enqueued { id: message_id(n), state: State::Ready, duplicate });
    assert_eq!(each.len(), 5);
    assert_eq!((&each[0], &each[3], &each[4]), (&ok(1, false), &ok(1, true), &ok(4, false)));
    assert_eq!(field(each[1].clone().expect_err("no executions at all")), "max_attempts");
    assert_eq!(each[2], Err(Refusal::IsDrawer { queue: q("q-dlq"), owner: q("q") }));
    let ids: Vec<_> = stage.seen().await.messages.iter().map(|m| m.envelope.id).collect();
    assert_eq!(ids, [message_id(1), message_id(4)]);
    assert_eq!(stage.store.enqueue(Vec::new()).await, Ok(Vec::new()));
}

pub(super) async fn i49_a_batch_that_is_too_large_is_refused_whole(stage: &Stage<'_>) {
    let many = (0..=limits::BATCH_ENTRIES_MAX as u64).map(|n| new(n, "q")).collect();
    assert_eq!(field(refused(stage.store.enqueue(many).await)), "batch");
    let payload = Payload { bytes: vec![0; limits::PAYLOAD_BYTES_MAX], content_type: String::new() };
    let heavy = (0..9).map(|n| NewMessage { payload: payload.clone(), ..new(n, "q") }).collect();
    assert_eq!(field(refused(stage.store.enqueue(heavy).await)), "batch");
    assert_eq!(stage.store.queues().await, Ok(Vec::new()), "not even the queue was made");
}

pub(super) async fn i49_what_is_over_a_limit_is_refused_by_field(stage: &Stage<'_>) {
    type Case = (&'static str, fn(&mut NewMessage));
    let cases: [Case; 12] = [
        ("payload", |m| m.payload.bytes = vec![0; limits::PAYLOAD_BYTES_MAX + 1]),
        ("content_type", |m| m.payload.content_type = "x".repeat(limits::LABEL_BYTES_MAX + 1)),
        ("kind", |m| m.kind = "\u{1b}[31m".into()),
        ("headers", |m| m.headers = (0..65).map(|n| (n.to_string(), String::new())).collect()),
        ("tags", |m| m.tags = (0..33).map(|n| n.to_string()).collect()),
        ("key", |m| m.key = Some(String::new())),
        ("ordering_key", |m| m.ordering_key = Some("x".repeat(limits::KEY_BYTES_MAX + 1))),
        ("context", |m| m.context = Some("x".repeat(limits::CONTEXT_BYTES_MAX).into())),
        ("delay", |m| m.delay = Some(Span::from_millis(limits::SPAN_MAX.as_millis() + 1))),
        ("ttl", |m| m.ttl = Some(Span::ZERO)),
        ("max_attempts", |m| m.max_attempts = Some(limits::ATTEMPTS_MAX + 1)),
        ("enqueued_by", |m| m.enqueued_by = Some("a\nb".into())),
    ];
    for (name, change) in cases {
        let mut message = new(1, "q");
        change(&mut message);
        assert_eq!(field(stage.try_send(message).await.expect_err(name)), name);
    }
    assert_eq!(stage.store.queues().await, Ok(Vec::new()));
    let mut full = new(2, "q");
    full.payload.bytes = vec![7; limits::PAYLOAD_BYTES_MAX];
    full.key = Some("k".repeat(limits::KEY_BYTES_MAX));
    stage.send(full.clone()).await;
    assert_eq!(stage.message(full.id).await, fresh(&full, &QueuePolicy::default(), 1, START));
}

pub(super) async fn i38_a_drawer_cannot_be_enqueued_to(stage: &Stage<'_>) {
    let routes = [(redrive_core::failure::Route::Network, q("net"))].into();
    stage.set("b", QueuePolicy { dlq: Some(q("bin")), routes, ..rules(1) }).await;
    stage.send(new(1, "plain")).await;
    let before = stage.seen().await;
    for (drawer, owner) in [("bin", "b"), ("net", "b"), ("plain-dlq", "plain")] {
        let refusal = Refusal::IsDrawer { queue: q(drawer), owner: q(owner) };
        assert_eq!(stage.try_send(new(9, drawer)).await, Err(refusal));
    }
    // Two queues may share a drawer; the first by name answers for it.
    stage.set("a", QueuePolicy { dlq: Some(q("bin")), ..rules(1) }).await;
    let refusal = Refusal::IsDrawer { queue: q("bin"), owner: q("a") };
    assert_eq!(stage.try_send(new(9, "bin")).await, Err(refusal));
    assert_eq!(stage.seen().await.messages, before.messages);
}

pub(super) async fn i38_no_queue_is_made_whose_drawer_is_a_queue(stage: &Stage<'_>) {
    stage.send(new(1, "q-dlq")).await;
    assert_eq!(
        field(stage.try_send(new(2, "q")).await.expect_err("its letters would lie among work")),
        "dlq"
    );
    assert_eq!(refused(stage.store.queue(q("q")).await), Refusal::NoSuchQueue { queue: q("q") });
    let apart = QueuePolicy { dlq: Some(q("q-letters")), ..rules(1) };
    stage.set("q", apart).await;
    stage.send(new(2, "q")).await;
}
