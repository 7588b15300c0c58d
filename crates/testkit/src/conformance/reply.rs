//! Laws of replies: who asked is answered in the commit of the outcome, once, also when the answer is that it
//! died; and never before that.

use super::Stage;
use super::kit::{BACKOFF, failed, failure, field, fresh, hopeless, new, operator, q, rules, secs};
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

/// The n-th message of a test, whose sender waits at `answers`.
fn asking(n: u64) -> NewMessage {
    NewMessage { reply_to: Some(q("answers")), ..new(n, "q") }
}

fn answer(text: &str) -> Settle {
    Settle::Reply { payload: Payload { bytes: text.into(), content_type: "text/plain".into() } }
}

impl Stage<'_> {
    /// Every message at `answers`, in the order of enqueues.
    async fn answers(&self) -> Vec<Message> {
        let mut all = self.store.messages(Query::default()).await.expect("answers").items;
        all.retain(|m| m.envelope.queue == q("answers"));
        all.sort_by_key(|m| m.envelope.seq);
        all
    }

    /// The payloads of all error replies so far.
    async fn troubles(&self) -> Vec<Value> {
        let read = |m: &Message| serde_json::from_slice(&m.envelope.payload.bytes).expect("JSON");
        self.answers().await.iter().map(read).collect()
    }
}

pub(super) async fn an_answer_goes_out_with_the_ack(stage: &Stage<'_>) {
    let asked = NewMessage {
        trace: Some("00-abc".into()),
        priority: Some(Priority::High),
        kind: "sum".into(),
        ..asking(1)
    };
    let id = stage.send(asked).await;
    assert_eq!(stage.take("answers", 1).await, [], "the place for replies is there from the enqueue on");
    let taken = stage.take_one("q").await;
    assert_eq!(taken.message.envelope.reply_to, Some(q("answers")));
    let now = stage.clock.advance(secs(3));
    let settled = stage.settle(taken.token, answer("42")).await.expect("held");
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
    assert_eq!(stage.answers().await, [fresh(&expected, &QueuePolicy::default(), 2, now)]);
    assert_eq!(stage.take_one("answers").await.message.envelope.payload.bytes, b"42");
    assert_eq!(stage.settle(taken.token, answer("43")).await, Err(Refusal::StaleToken { id }));
    assert_eq!(stage.answers().await.len(), 1, "who is not heard sends nothing");
}

pub(super) async fn a_bare_ack_and_an_answer_nobody_asked_for_send_nothing(stage: &Stage<'_>) {
    stage.send(asking(1)).await;
    let settled = stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    assert_eq!((settled.state, settled.reply), (State::Done, None));
    stage.send(new(2, "q")).await;
    let settled = stage.settle(stage.take_one("q").await.token, answer("42")).await.expect("held");
    assert_eq!((settled.state, settled.reply), (State::Done, None));
    assert_eq!(stage.seen().await.messages, []);
    assert_eq!(stage.counts("q").await.done, 2);
}

pub(super) async fn every_death_sends_one_error_and_no_retry_does(stage: &Stage<'_>) {
    stage.set("q", rules(2)).await;
    let trouble = |n, reason: &str, error: (&str, &str), attempts| {
        let error = json!({"type": error.0, "message": error.1, "code": null});
        let (id, status) = (message_id(n), "dead");
        json!({"id": id, "status": status, "reason": reason, "error": error, "attempts": attempts, "generation": 1})
    };
    let lost = ("LeaseExpired", "the worker did not settle before its lease ran out");
    // As many executions as allowed: the first failure is a retry.
    stage.send(asking(1)).await;
    let settled = stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    assert_eq!((settled.state, settled.reply), (State::Scheduled, None));
    assert_eq!(stage.answers().await, [], "nothing is said before it is over");
    stage.clock.advance(BACKOFF);
    let settled = stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    assert_eq!((settled.reason, settled.reply.is_some()), (Some(Reason::MaxAttempts), true));
    // The handler gave up.
    stage.send(asking(2)).await;
    stage.settle(stage.take_one("q").await.token, hopeless("Bad")).await.expect("held");
    // The worker never came back, twice.
    stage.send(asking(3)).await;
    for _ in 0..2 {
        stage.take_one("q").await;
        stage.clock.advance(secs(30));
        stage.store.reap(100).await.expect("reap answers");
        stage.clock.advance(BACKOFF);
    }
    // Its ttl and its deadline.
    stage.send(NewMessage { ttl: Some(secs(5)), ..asking(4) }).await;
    stage.send(NewMessage { deadline: Some(stage.now().plus(secs(6))), ..asking(5) }).await;
    stage.clock.advance(secs(6));
    stage.store.reap(100).await.expect("reap answers");
    let said = "the other side said no";
    let expected = [
        trouble(1, "max_attempts", ("Bad", said), 2),
        trouble(2, "permanent", ("Bad", said), 1),
        trouble(3, "max_attempts", lost, 2),
        trouble(4, "expired", ("TooLate", "the ttl ended before the message was done"), 0),
        trouble(5, "deadline", ("TooLate", "the deadline passed before the message was done"), 0),
    ];
    assert_eq!(stage.troubles().await, expected);
    for (n, reply) in (1..).zip(stage.answers().await) {
        assert_eq!(reply.envelope.headers["in-reply-to"], message_id(n).to_string());
        assert_eq!(reply.envelope.headers["reply-status"], "dead");
        assert_eq!(reply.envelope.payload.content_type, "application/json");
    }
}

pub(super) async fn who_was_given_back_too_often_and_poison_are_errors_too(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    stage.send(asking(1)).await;
    for _ in 0..=limits::GIVE_BACKS_MAX {
        let settled = stage.settle(stage.take_one("q").await.token, Settle::Release).await.expect("held");
        assert_eq!(settled.reply.is_some(), settled.state == State::Dead);
    }
    stage.set("q", rules(100)).await;
    stage.send(asking(2)).await;
    for _ in 0..3 {
        let mut failure = failure("Crash");
        failure.report.crashed = true;
        let what = Settle::Fail { failure: Box::new(failure), said: None };
        stage.settle(stage.take_one("q").await.token, what).await.expect("held");
        stage.clock.advance(secs(300));
    }
    let reasons: Vec<_> = stage.troubles().await.iter().map(|t| t["reason"].clone()).collect();
    assert_eq!(reasons, ["max_attempts", "poison"]);
}

pub(super) async fn what_is_dropped_too_late_is_an_error_with_its_own_status(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { on_expire: OnExpire::Drop, ..rules(3) }).await;
    let late = NewMessage { ttl: Some(secs(5)), ..asking(1) };
    let id = stage.send(late).await;
    // A failure whose retry would come too late is the end too.
    let other = stage.send(NewMessage { deadline: Some(stage.now().plus(secs(5))), ..asking(2) }).await;
    let taken = stage.take("q", 2).await;
    let second = taken.iter().find(|d| d.message.envelope.id == other).expect("both are due");
    let first = taken.iter().find(|d| d.message.envelope.id == id).expect("both are due");
    stage.settle(first.token, Settle::Release).await.expect("held");
    let settled = stage.settle(second.token, failed("Bad")).await.expect("held");
    assert_eq!((settled.state, settled.reply), (State::Expired, Some(reply::id(other, 1, 1))));
    stage.clock.advance(secs(5));
    stage.store.reap(100).await.expect("reap answers");
    let troubles = stage.troubles().await;
    let said: Vec<_> = troubles.iter().map(|t| (t["status"].clone(), t["reason"].clone())).collect();
    assert_eq!(said, [(json!("expired"), json!("deadline")), (json!("expired"), json!("expired"))]);
    assert_eq!(stage.answers().await[0].envelope.headers["reply-status"], "expired");
}

pub(super) async fn who_takes_a_message_away_is_not_told_so(stage: &Stage<'_>) {
    let id = stage.send(asking(1)).await;
    stage.store.cancel(vec![id], operator()).await.expect("answers");
    stage.send(asking(2)).await;
    stage.store.purge(q("q"), operator()).await.expect("answers");
    assert_eq!(stage.seen().await.messages, []);
}

pub(super) async fn a_redriven_message_answers_after_all_or_dies_once_more(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    for (n, last) in [(1, answer("42")), (2, failed("Worse"))] {
        let id = stage.dead(asking(n), "Bad").await.id();
        stage.act(id, Act::retry()).await.expect("pending");
        let taken = stage.take_one("q").await;
        let settled = stage.settle(taken.token, last).await.expect("held");
        assert_eq!(settled.reply, Some(reply::id(id, 2, 2)));
    }
    let answers = stage.answers().await;
    let status = |m: &Message| m.envelope.headers["reply-status"].clone();
    assert_eq!(answers.iter().map(status).collect::<Vec<_>>(), ["dead", "done", "dead", "dead"]);
    assert_eq!(answers[1].envelope.payload.bytes, b"42");
    let last: Value = serde_json::from_slice(&answers[3].envelope.payload.bytes).expect("JSON");
    assert_eq!((last["generation"].clone(), last["error"]["type"].clone()), (json!(2), json!("Worse")));
}

/// One execution per generation, and two automatic redrives.
fn twice_again() -> QueuePolicy {
    QueuePolicy { auto_redrive: Some(AutoRedrive { limit: 2, backoff: secs(5) }), ..rules(1) }
}

pub(super) async fn only_the_last_of_several_automatic_redrives_is_an_error(stage: &Stage<'_>) {
    stage.set("q", twice_again()).await;
    for (n, answers) in [(1, false), (2, true)] {
        let id = stage.send(asking(n)).await;
        for generation in 1..=3 {
            let taken = stage.take_one("q").await;
            let last = generation == 3;
            let what = if last && answers { answer("42") } else { failed("Bad") };
            let settled = stage.settle(taken.token, what).await.expect("held");
            assert_eq!(settled.reply, last.then(|| reply::id(id, 3, 3)), "generation {generation}");
            if !last {
                assert!(stage.letter(id).await.file.owes_reply, "another attempt is planned");
                stage.clock.advance(secs(20));
                stage.act(id, Act::retry()).await.expect("pending");
            }
        }
        assert!(!stage.letter(id).await.file.owes_reply);
    }
    let status = |m: &Message| m.envelope.headers["reply-status"].clone();
    assert_eq!(stage.answers().await.iter().map(status).collect::<Vec<_>>(), ["dead", "done"]);
    // Nothing brings a hopeless one back, so it is told at once.
    stage.send(asking(3)).await;
    let settled = stage.settle(stage.take_one("q").await.token, hopeless("Bad")).await.expect("held");
    assert!(settled.reply.is_some());
}

pub(super) async fn an_error_that_was_put_off_goes_out_once_nothing_is_planned(stage: &Stage<'_>) {
    stage.set("q", twice_again()).await;
    let mut ids = Vec::new();
    for n in 1..=8 {
        stage.send(asking(n)).await;
        stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
        ids.push(message_id(n));
    }
    let told = async || stage.troubles().await.iter().map(|t| t["id"].clone()).collect::<Vec<_>>();
    assert_eq!(told().await, Vec::<Value>::new(), "all of them are sent back by themselves");
    let until = stage.now().plus(secs(60));
    stage.act(ids[0], Act::Snooze { until }).await.expect("pending");
    stage.act(ids[0], Act::Note).await.expect("pending");
    stage.act(ids[1], Act::retry()).await.expect("pending");
    stage.act(ids[1], Act::PullBack).await.expect("not leased");
    assert_eq!(told().await, Vec::<Value>::new(), "that changes no plan");
    let acts = [Act::Abandon, Act::Resolve, Act::Review, Act::Quarantine { until }, Act::Erase];
    for (n, act) in (2..).zip(acts) {
        stage.act(ids[n], act).await.expect("pending");
        let expected: Vec<Value> = ids[2..=n].iter().map(|id| json!(id)).collect();
        assert_eq!(told().await, expected);
    }
    let version = stage.letter(ids[7]).await.file.version;
    let leaves = vec![HandOver { id: ids[7], version }];
    stage.store.hand_over(leaves, operator()).await.expect("answers");
    assert_eq!(told().await.len(), 6, "it goes where this store does not send it back");
    assert_eq!(stage.store.reap(10).await.expect("answers").replies_sent, 0);
    stage.set("q", rules(1)).await;
    assert_eq!(stage.store.reap(1).await.expect("answers").replies_sent, 1, "bounded");
    assert_eq!(stage.store.reap(10).await.expect("answers").replies_sent, 1);
    assert_eq!(stage.store.reap(10).await.expect("answers").replies_sent, 0, "once");
    let expected: Vec<Value> = [2, 3, 4, 5, 6, 7, 0, 1].iter().map(|n| json!(ids[*n])).collect();
    assert_eq!(told().await, expected);
    let last = stage.troubles().await.pop().expect("told");
    assert_eq!((&last["error"]["type"], &last["reason"]), (&json!("Bad"), &json!("max_attempts")));
    stage.act(ids[3], Act::Reopen).await.expect("closed");
    stage.act(ids[3], Act::Abandon).await.expect("open");
    assert_eq!(told().await.len(), 8, "nobody is told twice of one death");
}

pub(super) async fn replies_are_not_turned_away_by_a_full_queue(stage: &Stage<'_>) {
    stage.set("answers", QueuePolicy { max_messages: Some(1), max_bytes: Some(1), ..rules(1) }).await;
    for n in 1..=3 {
        stage.send(asking(n)).await;
        let settled = stage.settle(stage.take_one("q").await.token, answer("forty-two")).await.expect("held");
        assert!(settled.reply.is_some(), "{n}");
    }
    assert_eq!(stage.counts("answers").await.waiting, 3);
    let refused = stage.try_send(new(9, "answers")).await;
    assert!(matches!(refused, Err(Refusal::QueueFull { .. })), "others still are: {refused:?}");
}

pub(super) async fn i38_replies_cannot_go_to_a_drawer(stage: &Stage<'_>) {
    let to = |n, queue: &str, place: &str| NewMessage { reply_to: Some(q(place)), ..new(n, queue) };
    // The drawer of its own queue, which is only made with it.
    let own = stage.try_send(to(1, "x", "x-dlq")).await;
    assert_eq!(own, Err(Refusal::IsDrawer { queue: q("x-dlq"), owner: q("x") }));
    let turned = stage.try_send(to(2, "y-dlq", "y")).await;
    assert_eq!(field(turned.expect_err("its drawer would be a queue")), "reply_to");
    assert_eq!(stage.store.queues().await.expect("answers"), [], "a refusal makes nothing");
    stage.set("q", QueuePolicy { dlq: Some(q("bin")), ..rules(1) }).await;
    let known = stage.try_send(to(3, "z", "bin")).await;
    assert_eq!(known, Err(Refusal::IsDrawer { queue: q("bin"), owner: q("q") }));
    // Once it is a place for replies it is no drawer any more.
    stage.send(to(4, "q", "answers")).await;
    let drawer = QueuePolicy { dlq: Some(q("answers")), ..rules(1) };
    assert!(stage.store.configure(q("q"), drawer, operator()).await.is_err());
    // A queue may be its own place for replies.
    stage.send(to(5, "self", "self")).await;
    stage.settle(stage.take_one("self").await.token, answer("42")).await.expect("held");
    assert_eq!(stage.take_one("self").await.message.envelope.payload.bytes, b"42");
}

pub(super) async fn a_reply_that_has_no_place_is_left_out_and_the_outcome_stands(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let mut letter = stage.dead(new(1, "q"), "Bad").await;
    let id = message_id(2);
    letter.message.envelope.id = id;
    letter.message.envelope.reply_to = Some(q("q-dlq"));
    assert_eq!(stage.store.import(vec![letter], operator()).await, Ok(vec![Ok(id)]));
    stage.act(id, Act::retry()).await.expect("pending");
    let taken = stage.take_one("q").await;
    assert_eq!(taken.message.envelope.reply_to, Some(q("q-dlq")));
    let settled = stage.settle(taken.token, answer("42")).await.expect("held");
    assert_eq!((settled.state, settled.reply), (State::Done, None));
    assert_eq!(stage.seen().await.messages, []);
}

pub(super) async fn i49_an_answer_that_is_too_large_changes_nothing(stage: &Stage<'_>) {
    let id = stage.send(asking(1)).await;
    let taken = stage.take_one("q").await;
    let before = stage.seen().await;
    let large = Settle::Reply {
        payload: Payload { bytes: vec![0; limits::PAYLOAD_BYTES_MAX + 1], content_type: String::new() },
    };
    assert_eq!(field(stage.settle(taken.token, large).await.expect_err("too large")), "reply");
    let odd = Settle::Reply { payload: Payload { bytes: Vec::new(), content_type: "\u{1b}".into() } };
    assert_eq!(field(stage.settle(taken.token, odd).await.expect_err("not printable")), "content_type");
    assert_eq!(stage.seen().await, before);
    assert_eq!(stage.settle(taken.token, answer("42")).await.map(|s| s.id), Ok(id), "it may say less");
}

pub(super) async fn i5_each_answer_of_a_batch_finds_its_own_sender(stage: &Stage<'_>) {
    let ids: Vec<MessageId> = (1..=3).map(message_id).collect();
    for n in 1..=3 {
        stage.send(asking(n)).await;
    }
    let taken = stage.take("q", 3).await;
    let say = |n: usize, what| Settlement { token: taken[n].token, what };
    let long = "x".repeat(5_000);
    let batch =
        vec![say(0, answer("one")), say(0, answer("again")), say(1, answer(&long)), say(2, hopeless("Bad"))];
    let each = stage.store.settle(batch).await.expect("answers");
    let sent: Vec<_> = each.into_iter().map(|r| r.ok().and_then(|s| s.reply)).collect();
    let [one, two, three] = [0, 1, 2].map(|n| Some(reply::id(ids[n], 1, 1)));
    assert_eq!(sent, [one, None, two, three]);
    let payloads: Vec<_> = stage.answers().await.into_iter().map(|m| m.envelope.payload.bytes).collect();
    assert_eq!((payloads[0].as_slice(), payloads[1].as_slice()), (&b"one"[..], long.as_bytes()));
}

pub(super) async fn progress_is_kept_through_retry_release_death_and_redrive(stage: &Stage<'_>) {
    use redrive_core::progress::Progress;
    stage.set("q", rules(2)).await;
    let id = stage.send(new(1, "q")).await;
    let taken = stage.take_one("q").await;
    assert_eq!(taken.message.progress, None);
    let now = stage.clock.advance(secs(10));
    let said = Progress::new(3, Some(9), "unpacking");
    let loud = Progress { note: "\u{7}unpacking".into(), ..said.clone() };
    let settled = stage.settle(taken.token, Settle::Progress { progress: loud }).await.expect("held");
    assert_eq!((settled.state, settled.lease_expires_at), (State::Leased, Some(now.plus(secs(30)))));
    let kept = Some(said.clone());
    assert_eq!(stage.message(id).await.progress, kept, "bounded and printable");
    let longer = Settle::Extend { by: Some(secs(600)) };
    stage.settle(taken.token, longer).await.expect("held");
    let again = Progress::new(4, Some(9), "unpacking");
    let settled =
        stage.settle(taken.token, Settle::Progress { progress: again.clone() }).await.expect("held");
    assert_eq!(settled.lease_expires_at, Some(now.plus(secs(600))), "never shorter");
    let kept = Some(again);
    stage.settle(taken.token, Settle::Release).await.expect("held");
    let taken = stage.take_one("q").await;
    assert_eq!(taken.message.progress, kept, "the next one can go on where the last one stopped");
    stage.settle(taken.token, failed("Bad")).await.expect("held");
    assert_eq!(stage.message(id).await.progress, kept);
    stage.clock.advance(BACKOFF);
    let taken = stage.take_one("q").await;
    stage.settle(taken.token, failed("Bad")).await.expect("held");
    assert_eq!(stage.letter(id).await.message.progress, kept);
    stage.act(id, Act::retry()).await.expect("pending");
    let taken = stage.take_one("q").await;
    assert_eq!(taken.message.progress, kept);
    let late = Settle::Progress { progress: Progress::new(9, None, "") };
    stage.clock.advance(Span::from_hours(1));
    assert!(matches!(stage.settle(taken.token, late).await, Err(Refusal::LeaseExpired { .. })));
    stage.store.reap(100).await.expect("reap answers");
    stage.clock.advance(BACKOFF);
    let taken = stage.take_one("q").await;
    stage.settle(taken.token, Settle::Ack).await.expect("held");
    assert_eq!(stage.letter(id).await.message.progress, kept, "a closed letter still shows it");
}
