//! Laws of replies: a message with `reply_to` sends one reply in the commit of its outcome, also when the
//! outcome is its death, and never before that.

use super::LawContext;
use super::kit::{
    BACKOFF, expected_message, fail, fail_permanently, failure, max_attempts, msg, operator, q,
    refused_field, secs,
};
use crate::ids::message_id;
use redrive_core::auto_redrive::AutoRedrive;
use redrive_core::dead_letter::Act;
use redrive_core::error::Refusal;
use redrive_core::failure::Reason;
use redrive_core::ids::MessageId;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::message::{Message, NewMessage, Payload, Priority};
use redrive_core::policy::{OnExpire, QueuePolicy};
use redrive_core::query::Query;
use redrive_core::reply;
use redrive_core::store::{HandOver, Settle, Settlement};
use redrive_core::time::Span;
use serde_json::{Value, json};

/// The n-th message of a test, with replies sent to queue `answers`.
fn with_reply_to(n: u64) -> NewMessage {
    NewMessage { reply_to: Some(q("answers")), ..msg(n, "q") }
}

fn answer(text: &str) -> Settle {
    Settle::Reply { payload: Payload { bytes: text.into(), content_type: "text/plain".into() } }
}

impl LawContext<'_> {
    /// Every message in queue `answers`, in the order of enqueues.
    async fn replies(&self) -> Vec<Message> {
        let mut all = self.store.messages(Query::default()).await.expect("succeeds").items;
        all.retain(|m| m.envelope.queue == q("answers"));
        all.sort_by_key(|m| m.envelope.seq);
        all
    }

    /// The payloads of all error replies so far.
    async fn error_replies(&self) -> Vec<Value> {
        let read = |m: &Message| serde_json::from_slice(&m.envelope.payload.bytes).expect("JSON");
        self.replies().await.iter().map(read).collect()
    }
}

pub(super) async fn a_reply_is_sent_with_the_ack(ctx: &LawContext<'_>) {
    let asked = NewMessage {
        trace: Some("00-abc".into()),
        priority: Some(Priority::High),
        kind: "sum".into(),
        ..with_reply_to(1)
    };
    let id = ctx.send(asked).await;
    assert_eq!(ctx.lease("answers", 1).await, [], "the reply queue is created by the enqueue");
    let taken = ctx.lease_one("q").await;
    assert_eq!(taken.message.envelope.reply_to, Some(q("answers")));
    let now = ctx.clock.advance(secs(3));
    let settled = ctx.settle(taken.token, answer("42")).await.expect("held");
    let sent = reply::id(id, 1, 1);
    assert_eq!((settled.state, settled.reply), (State::Done, Some(sent)));
    let expected = NewMessage {
        kind: "reply".into(),
        priority: Some(Priority::High),
        headers: [("in-reply-to".into(), id.to_string()), ("reply-status".into(), "done".into())].into(),
        trace: Some("00-abc".into()),
        enqueued_by: Some("redrive".into()),
        ..NewMessage::new(
            sent,
            q("answers"),
            Payload { bytes: b"42".to_vec(), content_type: "text/plain".into() },
        )
    };
    assert_eq!(ctx.replies().await, [expected_message(&expected, &QueuePolicy::default(), 2, now)]);
    assert_eq!(ctx.lease_one("answers").await.message.envelope.payload.bytes, b"42");
    assert_eq!(ctx.settle(taken.token, answer("43")).await, Err(Refusal::StaleToken { id }));
    assert_eq!(ctx.replies().await.len(), 1, "a refused settlement sends no reply");
}

pub(super) async fn a_plain_ack_and_an_unrequested_reply_send_nothing(ctx: &LawContext<'_>) {
    ctx.send(with_reply_to(1)).await;
    let settled = ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    assert_eq!((settled.state, settled.reply), (State::Done, None));
    ctx.send(msg(2, "q")).await;
    let settled = ctx.settle(ctx.lease_one("q").await.token, answer("42")).await.expect("held");
    assert_eq!((settled.state, settled.reply), (State::Done, None));
    assert_eq!(ctx.view().await.messages, []);
    assert_eq!(ctx.counts("q").await.done, 2);
}

pub(super) async fn every_death_sends_one_error_reply_and_no_retry_does(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(2)).await;
    let error_reply = |n, reason: &str, error: (&str, &str), attempts| {
        let error = json!({"type": error.0, "message": error.1, "code": null});
        let (id, status) = (message_id(n), "dead");
        json!({"id": id, "status": status, "reason": reason, "error": error, "attempts": attempts, "generation": 1})
    };
    let lost = ("LeaseExpired", "the worker did not settle before its lease ran out");
    // The attempt limit: the first failure is only a retry.
    ctx.send(with_reply_to(1)).await;
    let settled = ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    assert_eq!((settled.state, settled.reply), (State::Scheduled, None));
    assert_eq!(ctx.replies().await, [], "no reply before the outcome is final");
    ctx.clock.advance(BACKOFF);
    let settled = ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    assert_eq!((settled.reason, settled.reply.is_some()), (Some(Reason::MaxAttempts), true));
    // The handler failed permanently.
    ctx.send(with_reply_to(2)).await;
    ctx.settle(ctx.lease_one("q").await.token, fail_permanently("Bad")).await.expect("held");
    // The worker lost its lease, twice.
    ctx.send(with_reply_to(3)).await;
    for _ in 0..2 {
        ctx.lease_one("q").await;
        ctx.clock.advance(secs(30));
        ctx.store.reap(100).await.expect("reap succeeds");
        ctx.clock.advance(BACKOFF);
    }
    // The ttl and the deadline.
    ctx.send(NewMessage { ttl: Some(secs(5)), ..with_reply_to(4) }).await;
    ctx.send(NewMessage { deadline: Some(ctx.now().plus(secs(6))), ..with_reply_to(5) }).await;
    ctx.clock.advance(secs(6));
    ctx.store.reap(100).await.expect("reap succeeds");
    let rejected = "the other side said no";
    let expected = [
        error_reply(1, "max_attempts", ("Bad", rejected), 2),
        error_reply(2, "permanent", ("Bad", rejected), 1),
        error_reply(3, "max_attempts", lost, 2),
        error_reply(4, "expired", ("TooLate", "the ttl ended before the message was done"), 0),
        error_reply(5, "deadline", ("TooLate", "the deadline passed before the message was done"), 0),
    ];
    assert_eq!(ctx.error_replies().await, expected);
    for (n, reply) in (1..).zip(ctx.replies().await) {
        assert_eq!(reply.envelope.headers["in-reply-to"], message_id(n).to_string());
        assert_eq!(reply.envelope.headers["reply-status"], "dead");
        assert_eq!(reply.envelope.payload.content_type, "application/json");
    }
}

pub(super) async fn messages_released_too_often_and_poison_send_error_replies(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    ctx.send(with_reply_to(1)).await;
    for _ in 0..=limits::GIVE_BACKS_MAX {
        let settled = ctx.settle(ctx.lease_one("q").await.token, Settle::Release).await.expect("held");
        assert_eq!(settled.reply.is_some(), settled.state == State::Dead);
    }
    ctx.configure("q", max_attempts(100)).await;
    ctx.send(with_reply_to(2)).await;
    for _ in 0..3 {
        let mut failure = failure("Crash");
        failure.report.crashed = true;
        let what = Settle::Fail { failure: Box::new(failure), policy_override: None };
        ctx.settle(ctx.lease_one("q").await.token, what).await.expect("held");
        ctx.clock.advance(secs(300));
    }
    let reasons: Vec<_> = ctx.error_replies().await.iter().map(|t| t["reason"].clone()).collect();
    assert_eq!(reasons, ["max_attempts", "poison"]);
}

pub(super) async fn a_dropped_expired_message_sends_an_error_reply_with_its_own_status(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { on_expire: OnExpire::Drop, ..max_attempts(3) }).await;
    let late = NewMessage { ttl: Some(secs(5)), ..with_reply_to(1) };
    let id = ctx.send(late).await;
    // A failure whose retry would come after the deadline ends the message too.
    let other = ctx.send(NewMessage { deadline: Some(ctx.now().plus(secs(5))), ..with_reply_to(2) }).await;
    let taken = ctx.lease("q", 2).await;
    let second = taken.iter().find(|d| d.message.envelope.id == other).expect("both are due");
    let first = taken.iter().find(|d| d.message.envelope.id == id).expect("both are due");
    ctx.settle(first.token, Settle::Release).await.expect("held");
    let settled = ctx.settle(second.token, fail("Bad")).await.expect("held");
    assert_eq!((settled.state, settled.reply), (State::Expired, Some(reply::id(other, 1, 1))));
    ctx.clock.advance(secs(5));
    ctx.store.reap(100).await.expect("reap succeeds");
    let error_replies = ctx.error_replies().await;
    let statuses: Vec<_> = error_replies.iter().map(|t| (t["status"].clone(), t["reason"].clone())).collect();
    assert_eq!(statuses, [(json!("expired"), json!("deadline")), (json!("expired"), json!("expired"))]);
    assert_eq!(ctx.replies().await[0].envelope.headers["reply-status"], "expired");
}

pub(super) async fn cancel_and_purge_send_no_reply(ctx: &LawContext<'_>) {
    let id = ctx.send(with_reply_to(1)).await;
    ctx.store.cancel(vec![id], operator()).await.expect("succeeds");
    ctx.send(with_reply_to(2)).await;
    ctx.store.purge(q("q"), operator()).await.expect("succeeds");
    assert_eq!(ctx.view().await.messages, []);
}

pub(super) async fn a_redriven_message_sends_its_reply_or_another_error_reply(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    for (n, last) in [(1, answer("42")), (2, fail("Worse"))] {
        let id = ctx.dead_letter(with_reply_to(n), "Bad").await.id();
        ctx.act(id, Act::retry()).await.expect("pending");
        let taken = ctx.lease_one("q").await;
        let settled = ctx.settle(taken.token, last).await.expect("held");
        assert_eq!(settled.reply, Some(reply::id(id, 2, 2)));
    }
    let answers = ctx.replies().await;
    let status = |m: &Message| m.envelope.headers["reply-status"].clone();
    assert_eq!(answers.iter().map(status).collect::<Vec<_>>(), ["dead", "done", "dead", "dead"]);
    assert_eq!(answers[1].envelope.payload.bytes, b"42");
    let last: Value = serde_json::from_slice(&answers[3].envelope.payload.bytes).expect("JSON");
    assert_eq!((last["generation"].clone(), last["error"]["type"].clone()), (json!(2), json!("Worse")));
}

/// A policy with one attempt per generation and two automatic redrives.
fn two_automatic_redrives() -> QueuePolicy {
    QueuePolicy { auto_redrive: Some(AutoRedrive { limit: 2, backoff: secs(5) }), ..max_attempts(1) }
}

pub(super) async fn only_the_last_automatic_redrive_sends_an_error_reply(ctx: &LawContext<'_>) {
    ctx.configure("q", two_automatic_redrives()).await;
    for (n, answers) in [(1, false), (2, true)] {
        let id = ctx.send(with_reply_to(n)).await;
        for generation in 1..=3 {
            let taken = ctx.lease_one("q").await;
            let last = generation == 3;
            let what = if last && answers { answer("42") } else { fail("Bad") };
            let settled = ctx.settle(taken.token, what).await.expect("held");
            assert_eq!(settled.reply, last.then(|| reply::id(id, 3, 3)), "generation {generation}");
            if !last {
                assert!(ctx.letter(id).await.record.owes_reply, "an automatic redrive is planned");
                ctx.clock.advance(secs(20));
                ctx.act(id, Act::retry()).await.expect("pending");
            }
        }
        assert!(!ctx.letter(id).await.record.owes_reply);
    }
    let status = |m: &Message| m.envelope.headers["reply-status"].clone();
    assert_eq!(ctx.replies().await.iter().map(status).collect::<Vec<_>>(), ["dead", "done"]);
    // A permanent failure is not redriven automatically, so its reply is sent at once.
    ctx.send(with_reply_to(3)).await;
    let settled = ctx.settle(ctx.lease_one("q").await.token, fail_permanently("Bad")).await.expect("held");
    assert!(settled.reply.is_some());
}

pub(super) async fn a_deferred_error_reply_is_sent_once_no_redrive_is_planned(ctx: &LawContext<'_>) {
    ctx.configure("q", two_automatic_redrives()).await;
    let mut ids = Vec::new();
    for n in 1..=8 {
        ctx.send(with_reply_to(n)).await;
        ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
        ids.push(message_id(n));
    }
    let replied_ids = async || ctx.error_replies().await.iter().map(|t| t["id"].clone()).collect::<Vec<_>>();
    assert_eq!(replied_ids().await, Vec::<Value>::new(), "automatic redrives are planned for all");
    let until = ctx.now().plus(secs(60));
    ctx.act(ids[0], Act::Snooze { until }).await.expect("pending");
    ctx.act(ids[0], Act::Note).await.expect("pending");
    ctx.act(ids[1], Act::retry()).await.expect("pending");
    ctx.act(ids[1], Act::PullBack).await.expect("not leased");
    assert_eq!(replied_ids().await, Vec::<Value>::new(), "the planned redrives stay");
    let acts = [Act::Abandon, Act::Resolve, Act::Review, Act::Quarantine { until }, Act::Erase];
    for (n, act) in (2..).zip(acts) {
        ctx.act(ids[n], act).await.expect("pending");
        let expected: Vec<Value> = ids[2..=n].iter().map(|id| json!(id)).collect();
        assert_eq!(replied_ids().await, expected);
    }
    let version = ctx.letter(ids[7]).await.record.version;
    let leaves = vec![HandOver { id: ids[7], version }];
    ctx.store.hand_over(leaves, operator()).await.expect("succeeds");
    assert_eq!(replied_ids().await.len(), 6, "the reply is sent when the letter is handed over");
    assert_eq!(ctx.store.reap(10).await.expect("succeeds").replies_sent, 0);
    ctx.configure("q", max_attempts(1)).await;
    assert_eq!(ctx.store.reap(1).await.expect("succeeds").replies_sent, 1, "bounded");
    assert_eq!(ctx.store.reap(10).await.expect("succeeds").replies_sent, 1);
    assert_eq!(ctx.store.reap(10).await.expect("succeeds").replies_sent, 0, "once");
    let expected: Vec<Value> = [2, 3, 4, 5, 6, 7, 0, 1].iter().map(|n| json!(ids[*n])).collect();
    assert_eq!(replied_ids().await, expected);
    let last = ctx.error_replies().await.pop().expect("replied_ids");
    assert_eq!((&last["error"]["type"], &last["reason"]), (&json!("Bad"), &json!("max_attempts")));
    ctx.act(ids[3], Act::Reopen).await.expect("closed");
    ctx.act(ids[3], Act::Abandon).await.expect("open");
    assert_eq!(replied_ids().await.len(), 8, "one reply per death");
}

pub(super) async fn a_full_queue_accepts_replies(ctx: &LawContext<'_>) {
    ctx.configure("answers", QueuePolicy { max_messages: Some(1), max_bytes: Some(1), ..max_attempts(1) })
        .await;
    for n in 1..=3 {
        ctx.send(with_reply_to(n)).await;
        let settled = ctx.settle(ctx.lease_one("q").await.token, answer("forty-two")).await.expect("held");
        assert!(settled.reply.is_some(), "{n}");
    }
    assert_eq!(ctx.counts("answers").await.waiting, 3);
    let refused = ctx.try_send(msg(9, "answers")).await;
    assert!(
        matches!(refused, Err(Refusal::QueueFull { .. })),
        "other messages are still refused: {refused:?}"
    );
}

pub(super) async fn i38_replies_cannot_go_to_a_dlq(ctx: &LawContext<'_>) {
    let to = |n, queue: &str, place: &str| NewMessage { reply_to: Some(q(place)), ..msg(n, queue) };
    // The dead letter queue of its own queue, which would be created with it.
    let own = ctx.try_send(to(1, "x", "x-dlq")).await;
    assert_eq!(own, Err(Refusal::IsDlq { queue: q("x-dlq"), owner: q("x") }));
    let refused_reply = ctx.try_send(to(2, "y-dlq", "y")).await;
    assert_eq!(refused_field(refused_reply.expect_err("its dead letter queue would be a queue")), "reply_to");
    assert_eq!(ctx.store.queues().await.expect("succeeds"), [], "a refusal creates nothing");
    ctx.configure("q", QueuePolicy { dlq: Some(q("bin")), ..max_attempts(1) }).await;
    let known = ctx.try_send(to(3, "z", "bin")).await;
    assert_eq!(known, Err(Refusal::IsDlq { queue: q("bin"), owner: q("q") }));
    // A reply queue cannot be a dead letter queue any more.
    ctx.send(to(4, "q", "answers")).await;
    let dlq = QueuePolicy { dlq: Some(q("answers")), ..max_attempts(1) };
    assert!(ctx.store.configure(q("q"), dlq, operator()).await.is_err());
    // A queue may receive its own replies.
    ctx.send(to(5, "self", "self")).await;
    ctx.settle(ctx.lease_one("self").await.token, answer("42")).await.expect("held");
    assert_eq!(ctx.lease_one("self").await.message.envelope.payload.bytes, b"42");
}

pub(super) async fn a_reply_without_a_valid_queue_is_dropped_and_the_outcome_stands(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let mut letter = ctx.dead_letter(msg(1, "q"), "Bad").await;
    let id = message_id(2);
    letter.message.envelope.id = id;
    letter.message.envelope.reply_to = Some(q("q-dlq"));
    assert_eq!(ctx.store.import(vec![letter], operator()).await, Ok(vec![Ok(id)]));
    ctx.act(id, Act::retry()).await.expect("pending");
    let taken = ctx.lease_one("q").await;
    assert_eq!(taken.message.envelope.reply_to, Some(q("q-dlq")));
    let settled = ctx.settle(taken.token, answer("42")).await.expect("held");
    assert_eq!((settled.state, settled.reply), (State::Done, None));
    assert_eq!(ctx.view().await.messages, []);
}

pub(super) async fn i49_a_reply_that_is_too_large_changes_nothing(ctx: &LawContext<'_>) {
    let id = ctx.send(with_reply_to(1)).await;
    let taken = ctx.lease_one("q").await;
    let before = ctx.view().await;
    let large = Settle::Reply {
        payload: Payload { bytes: vec![0; limits::PAYLOAD_BYTES_MAX + 1], content_type: String::new() },
    };
    assert_eq!(refused_field(ctx.settle(taken.token, large).await.expect_err("too large")), "reply");
    let odd = Settle::Reply { payload: Payload { bytes: Vec::new(), content_type: "\u{1b}".into() } };
    assert_eq!(refused_field(ctx.settle(taken.token, odd).await.expect_err("not printable")), "content_type");
    assert_eq!(ctx.view().await, before);
    assert_eq!(
        ctx.settle(taken.token, answer("42")).await.map(|s| s.id),
        Ok(id),
        "a smaller reply is accepted"
    );
}

pub(super) async fn i5_each_reply_of_a_batch_goes_to_its_own_sender(ctx: &LawContext<'_>) {
    let ids: Vec<MessageId> = (1..=3).map(message_id).collect();
    for n in 1..=3 {
        ctx.send(with_reply_to(n)).await;
    }
    let taken = ctx.lease("q", 3).await;
    let settlement = |n: usize, what| Settlement { token: taken[n].token, what };
    let long = "x".repeat(5_000);
    let batch = vec![
        settlement(0, answer("one")),
        settlement(0, answer("again")),
        settlement(1, answer(&long)),
        settlement(2, fail_permanently("Bad")),
    ];
    let each = ctx.store.settle(batch).await.expect("succeeds");
    let sent: Vec<_> = each.into_iter().map(|r| r.ok().and_then(|s| s.reply)).collect();
    let [one, two, three] = [0, 1, 2].map(|n| Some(reply::id(ids[n], 1, 1)));
    assert_eq!(sent, [one, None, two, three]);
    let payloads: Vec<_> = ctx.replies().await.into_iter().map(|m| m.envelope.payload.bytes).collect();
    assert_eq!((payloads[0].as_slice(), payloads[1].as_slice()), (&b"one"[..], long.as_bytes()));
}

pub(super) async fn progress_is_kept_through_retry_release_death_and_redrive(ctx: &LawContext<'_>) {
    use redrive_core::progress::Progress;
    ctx.configure("q", max_attempts(2)).await;
    let id = ctx.send(msg(1, "q")).await;
    let taken = ctx.lease_one("q").await;
    assert_eq!(taken.message.progress, None);
    let now = ctx.clock.advance(secs(10));
    let sent = Progress::new(3, Some(9), "unpacking");
    let loud = Progress { note: "\u{7}unpacking".into(), ..sent.clone() };
    let settled = ctx.settle(taken.token, Settle::Progress { progress: loud }).await.expect("held");
    assert_eq!((settled.state, settled.lease_expires_at), (State::Leased, Some(now.plus(secs(30)))));
    let kept = Some(sent.clone());
    assert_eq!(ctx.message(id).await.progress, kept, "bounded and printable");
    let longer = Settle::Extend { by: Some(secs(600)) };
    ctx.settle(taken.token, longer).await.expect("held");
    let again = Progress::new(4, Some(9), "unpacking");
    let settled = ctx.settle(taken.token, Settle::Progress { progress: again.clone() }).await.expect("held");
    assert_eq!(settled.lease_expires_at, Some(now.plus(secs(600))), "never shorter");
    let kept = Some(again);
    ctx.settle(taken.token, Settle::Release).await.expect("held");
    let taken = ctx.lease_one("q").await;
    assert_eq!(taken.message.progress, kept, "the next attempt sees the last progress");
    ctx.settle(taken.token, fail("Bad")).await.expect("held");
    assert_eq!(ctx.message(id).await.progress, kept);
    ctx.clock.advance(BACKOFF);
    let taken = ctx.lease_one("q").await;
    ctx.settle(taken.token, fail("Bad")).await.expect("held");
    assert_eq!(ctx.letter(id).await.message.progress, kept);
    ctx.act(id, Act::retry()).await.expect("pending");
    let taken = ctx.lease_one("q").await;
    assert_eq!(taken.message.progress, kept);
    let late = Settle::Progress { progress: Progress::new(9, None, "") };
    ctx.clock.advance(Span::from_hours(1));
    assert!(matches!(ctx.settle(taken.token, late).await, Err(Refusal::LeaseExpired { .. })));
    ctx.store.reap(100).await.expect("reap succeeds");
    ctx.clock.advance(BACKOFF);
    let taken = ctx.lease_one("q").await;
    ctx.settle(taken.token, Settle::Ack).await.expect("held");
    assert_eq!(ctx.letter(id).await.message.progress, kept, "a closed letter shows the progress");
}
