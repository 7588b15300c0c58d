//! Laws of `enqueue`: a message is stored unchanged, once and within the limits, and every entry of a batch
//! has its own result.

use super::LawContext;
use super::kit::{
    MS, expected_message, fail, fail_permanently, max_attempts, msg, operator, q, refused, refused_field,
    secs,
};
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

/// A message with every field set.
fn full_message(n: u64) -> NewMessage {
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
        ..msg(n, "q")
    }
}

pub(super) async fn a_message_is_stored_as_sent(ctx: &LawContext<'_>) {
    let sent = full_message(1);
    let reply = ctx.try_send(sent.clone()).await;
    assert_eq!(reply, Ok(Enqueued { id: sent.id, state: State::Scheduled, duplicate: false }));
    assert_eq!(ctx.message(sent.id).await, expected_message(&sent, &QueuePolicy::default(), 1, START));
}

pub(super) async fn i33_payload_bytes_are_bit_exact(ctx: &LawContext<'_>) {
    let bodies = [vec![], vec![0], b"{\"n\": 1.00}".to_vec(), vec![0xc3, 0x28, 0xff], "\u{feff}é\r\n".into()];
    for (n, bytes) in (1..).zip(bodies) {
        let payload = Payload { bytes, content_type: String::new() };
        let id = ctx.send(NewMessage { payload: payload.clone(), ..msg(n, "q") }).await;
        assert_eq!(ctx.message(id).await.envelope.payload, payload);
        let letter = ctx.kill_next("q", id, "Bad").await;
        assert_eq!(letter.message.envelope.payload, payload);
    }
}

pub(super) async fn the_queue_policy_fills_in_defaults(ctx: &LawContext<'_>) {
    let policy = QueuePolicy {
        priority: Priority::Low,
        ttl: Some(secs(60)),
        max_attempts: 2,
        ..QueuePolicy::default()
    };
    ctx.configure("q", policy.clone()).await;
    let said = NewMessage {
        priority: Some(Priority::Critical),
        ttl: Some(secs(9)),
        max_attempts: Some(7),
        ..msg(1, "q")
    };
    for (seq, sent) in [(1, said), (2, msg(2, "q"))] {
        ctx.send(sent.clone()).await;
        assert_eq!(ctx.message(sent.id).await, expected_message(&sent, &policy, seq, START));
    }
    let lowered = QueuePolicy { max_attempts: 9, ..policy };
    ctx.configure("q", lowered).await;
    assert_eq!(ctx.message(message_id(1)).await.envelope.max_attempts, Some(7), "its own limit");
    assert_eq!(ctx.message(message_id(2)).await.envelope.max_attempts, Some(9), "the limit of its queue");
}

pub(super) async fn an_unknown_queue_is_created_with_the_default_policy(ctx: &LawContext<'_>) {
    let unknown = refused(ctx.store.queue(q("q")).await);
    assert_eq!(unknown, Refusal::NoSuchQueue { queue: q("q") });
    ctx.send(msg(1, "q")).await;
    let queue = ctx.queue("q").await;
    assert_eq!(queue.policy, QueuePolicy::default());
    let counts = Counts { enqueued: 1, waiting: 1, bytes: 9, ..Counts::default() };
    assert_eq!((queue.paused, queue.scheduled, queue.ready, queue.counts), (false, 0, 1, counts));
    assert_eq!(ctx.audit_trail().await, [], "no operator acted");
}

pub(super) async fn i31_a_delayed_message_waits_as_scheduled(ctx: &LawContext<'_>) {
    let sent = NewMessage { delay: Some(secs(5)), ..msg(1, "q") };
    let reply = ctx.try_send(sent.clone()).await.expect("accepted");
    assert_eq!(reply.state, State::Scheduled);
    let no_delay = ctx.try_send(NewMessage { delay: Some(Span::ZERO), ..msg(2, "q") }).await;
    assert_eq!(no_delay.expect("accepted").state, State::Ready);
    let queue = ctx.queue("q").await;
    assert_eq!((queue.scheduled, queue.ready, queue.counts.waiting), (1, 1, 2));
    ctx.clock.advance(secs(5));
    let queue = ctx.queue("q").await;
    assert_eq!(
        (queue.scheduled, queue.ready, queue.counts.waiting),
        (0, 2, 2),
        "becoming due needs no write"
    );
    assert_eq!(ctx.try_send(sent).await.expect("harmless").state, State::Ready);
}

pub(super) async fn i41_same_key_same_body_is_one_message(ctx: &LawContext<'_>) {
    let sent = NewMessage { key: Some("k".into()), ..msg(1, "q") };
    ctx.send(sent.clone()).await;
    let again = |n| NewMessage { id: message_id(n), ..sent.clone() };
    let before = ctx.view().await;
    let reply = ctx.try_send(again(2)).await;
    assert_eq!(reply, Ok(Enqueued { id: sent.id, state: State::Ready, duplicate: true }));
    assert_eq!(ctx.view().await, before, "nothing was added");
    // Other fields are not part of the body that is compared.
    let other_fields = NewMessage { priority: Some(Priority::Low), tags: ["t".into()].into(), ..again(3) };
    assert_eq!(ctx.try_send(other_fields).await.map(|r| (r.id, r.duplicate)), Ok((sent.id, true)));
    let known = KeyState { id: sent.id, state: State::Ready };
    assert_eq!(ctx.store.key_state(q("q"), "k".into()).await, Ok(Some(known)));
    assert_eq!(ctx.store.key_state(q("q"), "other".into()).await, Ok(None));
    let mut twice = msg(5, "q");
    twice.key = Some("twin".into());
    let batch = vec![twice.clone(), NewMessage { id: message_id(6), ..twice }];
    let each = ctx.store.enqueue(batch).await.expect("succeeds");
    let id = message_id(5);
    assert_eq!(each[0], Ok(Enqueued { id, state: State::Ready, duplicate: false }));
    assert_eq!(each[1], Ok(Enqueued { id, state: State::Ready, duplicate: true }), "also in the same batch");
}

pub(super) async fn i41_same_key_other_body_is_refused(ctx: &LawContext<'_>) {
    let sent = NewMessage { key: Some("k".into()), ..msg(1, "q") };
    ctx.send(sent.clone()).await;
    let before = ctx.view().await;
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
        assert_eq!(ctx.try_send(other).await, Err(conflict));
    }
    assert_eq!(ctx.view().await, before);
}

pub(super) async fn i41_a_key_belongs_to_its_queue(ctx: &LawContext<'_>) {
    for (n, queue) in [(1, "a"), (2, "b")] {
        ctx.send(NewMessage { key: Some("k".into()), ..msg(n, queue) }).await;
    }
    assert_eq!(ctx.view().await.messages.len(), 2);
}

pub(super) async fn i41_a_key_shows_where_its_message_is(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { on_expire: OnExpire::Drop, ..max_attempts(2) }).await;
    let sent = |n: u64| NewMessage { key: Some(format!("k{n}")), ..msg(n, "q") };
    let mut expected = Vec::new();
    let id = ctx.send(sent(1)).await;
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    expected.push((1, State::Done));
    ctx.send(sent(2)).await;
    ctx.settle(ctx.lease_one("q").await.token, fail_permanently("Bad")).await.expect("held");
    expected.push((2, State::Dead));
    let cancelled = ctx.send(sent(3)).await;
    ctx.store.cancel(vec![cancelled], operator()).await.expect("succeeds")[0].clone().expect("it waits");
    expected.push((3, State::Cancelled));
    ctx.send(sent(4)).await;
    ctx.store.purge(q("q"), operator()).await.expect("succeeds");
    expected.push((4, State::Purged));
    ctx.send(NewMessage { ttl: Some(secs(1)), ..sent(5) }).await;
    ctx.clock.advance(secs(1));
    ctx.store.reap(100).await.expect("succeeds");
    expected.push((5, State::Expired));
    ctx.send(NewMessage { delay: Some(secs(60)), ..sent(6) }).await;
    expected.push((6, State::Scheduled));
    ctx.send(sent(7)).await;
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    expected.push((7, State::Scheduled));
    ctx.send(sent(8)).await;
    ctx.lease_one("q").await;
    expected.push((8, State::Leased));
    let removed = ctx.die(sent(9)).await;
    ctx.act(removed, Act::Abandon).await.expect("it is pending");
    ctx.act(removed, Act::Purge).await.expect("it is closed");
    expected.push((9, State::Purged));
    let retried = ctx.die(sent(10)).await;
    ctx.act(retried, Act::retry()).await.expect("it is pending");
    expected.push((10, State::Ready));
    for (n, state) in expected {
        let reply = ctx.try_send(NewMessage { id: message_id(100 + n), ..sent(n) }).await;
        assert_eq!(reply, Ok(Enqueued { id: message_id(n), state, duplicate: true }), "message {n}");
        let known = ctx.store.key_state(q("q"), format!("k{n}")).await;
        assert_eq!(known, Ok(Some(KeyState { id: message_id(n), state })), "message {n}");
    }
    assert_eq!(id, message_id(1));
}

impl LawContext<'_> {
    async fn die(&self, new: NewMessage) -> redrive_core::ids::MessageId {
        self.dead_letter(new, "Bad").await.id()
    }
}

pub(super) async fn i41_a_key_is_forgotten_after_its_window(ctx: &LawContext<'_>) {
    let sent = NewMessage { key: Some("k".into()), ..msg(1, "q") };
    ctx.send(sent.clone()).await;
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    let again = NewMessage { id: message_id(2), ..sent.clone() };
    ctx.clock.advance(Span::from_millis(limits::KEY_WINDOW.as_millis() - 1));
    let reply = ctx.try_send(again.clone()).await;
    assert_eq!(
        reply,
        Ok(Enqueued { id: sent.id, state: State::Done, duplicate: true }),
        "counted from enqueue"
    );
    ctx.clock.advance(MS);
    assert_eq!(ctx.store.key_state(q("q"), "k".into()).await, Ok(None));
    ctx.send(again).await;
    let known = ctx.store.key_state(q("q"), "k".into()).await.expect("succeeds").expect("known again");
    assert_eq!(known.id, message_id(2));
}

pub(super) async fn i42_the_same_id_again_is_harmless(ctx: &LawContext<'_>) {
    let sent = msg(1, "q");
    ctx.send(sent.clone()).await;
    let before = ctx.view().await;
    let again = Ok(Enqueued { id: sent.id, state: State::Ready, duplicate: true });
    assert_eq!(ctx.try_send(sent.clone()).await, again);
    let other = NewMessage { kind: "other".into(), ..sent.clone() };
    assert_eq!(ctx.try_send(other.clone()).await, Err(Refusal::IdConflict { id: sent.id }));
    assert_eq!(ctx.view().await, before);
    let delivery = ctx.lease_one("q").await;
    assert_eq!(ctx.try_send(sent.clone()).await.map(|r| r.state), Ok(State::Leased));
    ctx.settle(delivery.token, fail_permanently("Bad")).await.expect("held");
    let before = ctx.view().await;
    // A duplicate of a dead message is reported, so that it never blocks new work silently.
    let dead = Ok(Enqueued { id: sent.id, state: State::Dead, duplicate: true });
    assert_eq!(ctx.try_send(sent.clone()).await, dead);
    assert_eq!(ctx.try_send(other).await, Err(Refusal::IdConflict { id: sent.id }));
    assert_eq!(ctx.view().await, before);
}

pub(super) async fn a_finished_message_leaves_nothing_behind(ctx: &LawContext<'_>) {
    let policy = QueuePolicy { on_expire: OnExpire::Drop, ..max_attempts(9) };
    ctx.configure("q", policy.clone()).await;
    let sent = NewMessage { ttl: Some(secs(60)), ..msg(1, "q") };
    for (seq, end) in [(2, "ack"), (4, "cancel"), (6, "purge"), (8, "drop")] {
        ctx.send(sent.clone()).await;
        ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
        ctx.clock.advance(secs(10));
        match end {
            "ack" => drop(ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held")),
            "cancel" => drop(ctx.store.cancel(vec![sent.id], operator()).await.expect("succeeds")),
            "purge" => drop(ctx.store.purge(q("q"), operator()).await.expect("succeeds")),
            _ => {
                ctx.clock.advance(secs(60));
                ctx.store.reap(10).await.expect("succeeds");
            }
        }
        let again = ctx.send(sent.clone()).await;
        assert_eq!(ctx.message(again).await, expected_message(&sent, &policy, seq, ctx.now()), "after {end}");
        ctx.store.purge(q("q"), operator()).await.expect("succeeds");
    }
}

pub(super) async fn i41_concurrent_senders_make_one_message(ctx: &LawContext<'_>) {
    let sent = |n| vec![NewMessage { id: message_id(n), key: Some("k".into()), ..msg(1, "q") }];
    let store = ctx.store;
    let (a, b, c, d) = tokio::join!(
        store.enqueue(sent(1)),
        store.enqueue(sent(2)),
        store.enqueue(sent(3)),
        store.enqueue(sent(4))
    );
    let all: Vec<Enqueued> =
        [a, b, c, d].into_iter().map(|r| r.expect("succeeds").remove(0).expect("accepted")).collect();
    assert_eq!(all.iter().filter(|sent| !sent.duplicate).count(), 1, "{all:?}");
    assert!(all.iter().all(|sent| sent.id == all[0].id), "{all:?}");
    assert_eq!(ctx.counts("q").await.enqueued, 1);
}

pub(super) async fn a_full_queue_refuses_by_count(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { max_messages: Some(2), ..max_attempts(1) }).await;
    let batch = (1..=3).map(|n| msg(n, "q")).collect();
    let each = ctx.store.enqueue(batch).await.expect("succeeds");
    let full = Refusal::QueueFull { queue: q("q"), limit: "max_messages".into(), allowed: 2, actual: 2 };
    assert!(each[0].is_ok() && each[1].is_ok(), "{each:?}");
    assert_eq!(each[2], Err(full.clone()), "earlier entries of the same batch count");
    let delivery = ctx.lease_one("q").await;
    assert_eq!(ctx.try_send(msg(3, "q")).await, Err(full), "leased messages count");
    assert_eq!(ctx.try_send(msg(1, "q")).await.map(|r| r.duplicate), Ok(true), "a duplicate needs no room");
    ctx.settle(delivery.token, fail_permanently("Bad")).await.expect("held");
    ctx.send(msg(3, "q")).await;
    assert!(ctx.act(delivery.token.id, Act::retry()).await.is_err(), "a redrive needs room too");
    assert_eq!(ctx.counts("q").await.waiting, 2);
}

pub(super) async fn a_full_queue_refuses_by_bytes(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { max_bytes: Some(20), ..max_attempts(1) }).await;
    let sized = |n: u64, size: usize| {
        let payload = Payload { bytes: vec![b'x'; size], content_type: String::new() };
        NewMessage { payload, ..msg(n, "q") }
    };
    ctx.send(sized(1, 12)).await;
    let full = Refusal::QueueFull { queue: q("q"), limit: "max_bytes".into(), allowed: 20, actual: 12 };
    assert_eq!(ctx.try_send(sized(2, 9)).await, Err(full));
    ctx.send(sized(2, 8)).await;
    ctx.send(sized(3, 0)).await;
    assert_eq!(ctx.counts("q").await.bytes, 20);
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    assert_eq!(ctx.counts("q").await.bytes, 8);
}

pub(super) async fn i5_each_entry_has_its_own_result(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let bad = NewMessage { max_attempts: Some(0), ..msg(2, "q") };
    let batch = vec![msg(1, "q"), bad, msg(3, "q-dlq"), msg(1, "q"), msg(4, "fresh")];
    let each = ctx.store.enqueue(batch).await.expect("succeeds");
    let ok = |n, duplicate| Ok(Enqueued { id: message_id(n), state: State::Ready, duplicate });
    assert_eq!(each.len(), 5);
    assert_eq!((&each[0], &each[3], &each[4]), (&ok(1, false), &ok(1, true), &ok(4, false)));
    assert_eq!(refused_field(each[1].clone().expect_err("zero attempts")), "max_attempts");
    assert_eq!(each[2], Err(Refusal::IsDlq { queue: q("q-dlq"), owner: q("q") }));
    let ids: Vec<_> = ctx.view().await.messages.iter().map(|m| m.envelope.id).collect();
    assert_eq!(ids, [message_id(1), message_id(4)]);
    assert_eq!(ctx.store.enqueue(Vec::new()).await, Ok(Vec::new()));
}

pub(super) async fn i49_a_batch_that_is_too_large_is_refused_whole(ctx: &LawContext<'_>) {
    let many = (0..=limits::BATCH_ENTRIES_MAX as u64).map(|n| msg(n, "q")).collect();
    assert_eq!(refused_field(refused(ctx.store.enqueue(many).await)), "batch");
    let payload = Payload { bytes: vec![0; limits::PAYLOAD_BYTES_MAX], content_type: String::new() };
    let heavy = (0..9).map(|n| NewMessage { payload: payload.clone(), ..msg(n, "q") }).collect();
    assert_eq!(refused_field(refused(ctx.store.enqueue(heavy).await)), "batch");
    assert_eq!(ctx.store.queues().await, Ok(Vec::new()), "not even the queue was created");
}

pub(super) async fn i49_values_over_a_limit_are_refused_by_field(ctx: &LawContext<'_>) {
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
        let mut message = msg(1, "q");
        change(&mut message);
        assert_eq!(refused_field(ctx.try_send(message).await.expect_err(name)), name);
    }
    assert_eq!(ctx.store.queues().await, Ok(Vec::new()));
    let mut full = msg(2, "q");
    full.payload.bytes = vec![7; limits::PAYLOAD_BYTES_MAX];
    full.key = Some("k".repeat(limits::KEY_BYTES_MAX));
    ctx.send(full.clone()).await;
    assert_eq!(ctx.message(full.id).await, expected_message(&full, &QueuePolicy::default(), 1, START));
}

pub(super) async fn i38_a_dlq_cannot_be_enqueued_to(ctx: &LawContext<'_>) {
    let routes = [(redrive_core::failure::Route::Network, q("net"))].into();
    ctx.configure("b", QueuePolicy { dlq: Some(q("bin")), routes, ..max_attempts(1) }).await;
    ctx.send(msg(1, "plain")).await;
    let before = ctx.view().await;
    for (dlq, owner) in [("bin", "b"), ("net", "b"), ("plain-dlq", "plain")] {
        let refusal = Refusal::IsDlq { queue: q(dlq), owner: q(owner) };
        assert_eq!(ctx.try_send(msg(9, dlq)).await, Err(refusal));
    }
    // Two queues may share a dead letter queue; the refusal names the first of them.
    ctx.configure("a", QueuePolicy { dlq: Some(q("bin")), ..max_attempts(1) }).await;
    let refusal = Refusal::IsDlq { queue: q("bin"), owner: q("a") };
    assert_eq!(ctx.try_send(msg(9, "bin")).await, Err(refusal));
    assert_eq!(ctx.view().await.messages, before.messages);
}

pub(super) async fn i38_no_queue_is_created_whose_dlq_is_a_queue(ctx: &LawContext<'_>) {
    ctx.send(msg(1, "q-dlq")).await;
    assert_eq!(
        refused_field(ctx.try_send(msg(2, "q")).await.expect_err("its dead letter queue would be a queue")),
        "dlq"
    );
    assert_eq!(refused(ctx.store.queue(q("q")).await), Refusal::NoSuchQueue { queue: q("q") });
    let apart = QueuePolicy { dlq: Some(q("q-letters")), ..max_attempts(1) };
    ctx.configure("q", apart).await;
    ctx.send(msg(2, "q")).await;
}
