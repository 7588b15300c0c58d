//! Laws of ordering keys (I30): one message at a time, in the order of enqueues, whatever happens.

use super::LawContext;
use super::kit::{BACKOFF, fail, fail_permanently, max_attempts, msg, secs};
use crate::ids::message_id;
use redrive_core::dead_letter::Act;
use redrive_core::ids::MessageId;
use redrive_core::message::{NewMessage, Priority};
use redrive_core::policy::{OnDead, QueuePolicy};
use redrive_core::store::Settle;

fn keyed(n: u64, queue: &str, key: &str) -> NewMessage {
    NewMessage { ordering_key: Some(key.into()), ..msg(n, queue) }
}

impl LawContext<'_> {
    async fn lease_ids(&self, queue: &str) -> Vec<MessageId> {
        self.lease(queue, 1_000).await.iter().map(|d| d.message.envelope.id).collect()
    }
}

pub(super) async fn i30_one_at_a_time_in_the_order_of_enqueues(ctx: &LawContext<'_>) {
    for n in 1..=3 {
        ctx.send(keyed(n, "q", "k")).await;
    }
    for n in 1..=3 {
        let taken = ctx.lease("q", 10).await;
        assert_eq!(taken.iter().map(|d| d.token.id).collect::<Vec<_>>(), [message_id(n)]);
        assert_eq!(ctx.lease("q", 10).await, []);
        ctx.settle(taken[0].token, Settle::Ack).await.expect("held");
    }
}

pub(super) async fn i30_in_order_whatever_their_priority_or_delay(ctx: &LawContext<'_>) {
    let first = NewMessage { priority: Some(Priority::Background), ..keyed(1, "q", "k") };
    ctx.send(NewMessage { delay: Some(secs(60)), ..first }).await;
    ctx.send(NewMessage { priority: Some(Priority::Critical), ..keyed(2, "q", "k") }).await;
    let urgent = ctx.now().plus(secs(62));
    ctx.send(NewMessage { deadline: Some(urgent), ..keyed(3, "q", "k") }).await;
    assert_eq!(ctx.lease_ids("q").await, [], "the first message of the key is not due");
    ctx.clock.advance(secs(60));
    assert_eq!(ctx.lease_ids("q").await, [message_id(1)]);
}

pub(super) async fn i30_the_order_is_kept_through_retry(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    ctx.send(keyed(1, "q", "k")).await;
    ctx.send(keyed(2, "q", "k")).await;
    let endings = [fail("Bad"), Settle::Release, Settle::Snooze { span: secs(3) }];
    for ending in endings {
        let taken = ctx.lease_one("q").await;
        assert_eq!(taken.token.id, message_id(1));
        let settled = ctx.settle(taken.token, ending).await.expect("held");
        let due = settled.ready_at.expect("it waits");
        if due > ctx.now() {
            assert_eq!(ctx.lease_ids("q").await, [], "nothing overtakes a message that waits for a retry");
            ctx.clock.set(due);
        }
    }
    let lost = ctx.lease_one("q").await;
    assert_eq!(lost.token.id, message_id(1));
    ctx.clock.advance(secs(30));
    assert_eq!(ctx.lease_ids("q").await, [], "nor one that lost its lease");
    ctx.clock.advance(BACKOFF);
    let taken = ctx.lease_one("q").await;
    ctx.settle(taken.token, Settle::Ack).await.expect("held");
    assert_eq!(ctx.lease_ids("q").await, [message_id(2)]);
}

pub(super) async fn i30_ordering_keys_of_different_queues_are_independent(ctx: &LawContext<'_>) {
    ctx.send(keyed(1, "a", "k")).await;
    ctx.send(keyed(2, "b", "k")).await;
    ctx.send(keyed(3, "b", "other")).await;
    ctx.send(msg(4, "b")).await;
    let request = ctx.lease_request(&["a", "b"], 10);
    assert_eq!(ctx.store.lease(request).await.expect("succeeds").len(), 4);
}

pub(super) async fn i30_a_thousand_blocked_messages_hide_no_other_message(ctx: &LawContext<'_>) {
    let batch: Vec<_> = (1..=1_001).map(|n| keyed(n, "q", "k")).collect();
    ctx.store.enqueue(batch).await.expect("succeeds");
    ctx.send(keyed(2_000, "q", "free")).await;
    ctx.send(msg(2_001, "q")).await;
    assert_eq!(ctx.lease_ids("q").await, [1, 2_000, 2_001].map(message_id));
}

pub(super) async fn i30_cancel_and_purge_let_the_next_proceed(ctx: &LawContext<'_>) {
    for n in 1..=2 {
        ctx.send(keyed(n, "q", "k")).await;
    }
    ctx.store.cancel(vec![message_id(1)], super::kit::operator()).await.expect("succeeds");
    assert_eq!(ctx.lease_ids("q").await, [message_id(2)]);
}

pub(super) async fn i30_after_a_death_the_next_proceeds(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    for n in 1..=3 {
        ctx.send(keyed(n, "q", "k")).await;
    }
    let first = ctx.lease_one("q").await;
    ctx.settle(first.token, fail("Bad")).await.expect("held");
    assert!(!ctx.letter(message_id(1)).await.record.holds_key);
    let second = ctx.lease_one("q").await;
    assert_eq!(second.token.id, message_id(2));
    // Redriven, the first message is first again among those that wait.
    ctx.act(message_id(1), Act::retry()).await.expect("it is pending");
    assert_eq!(ctx.lease_ids("q").await, [], "still one at a time");
    ctx.settle(second.token, Settle::Ack).await.expect("held");
    assert_eq!(ctx.lease_ids("q").await, [message_id(1)]);
}

pub(super) async fn i30_a_held_key_waits_until_the_letter_is_closed(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { on_dead: OnDead::Hold, ..max_attempts(1) }).await;
    for (key, n, ends) in [("resolve", 10, Act::Resolve), ("abandon", 20, Act::Abandon)] {
        ctx.send(keyed(n, "q", key)).await;
        ctx.send(keyed(n + 1, "q", key)).await;
        let taken = ctx.lease_one("q").await;
        ctx.settle(taken.token, fail("Bad")).await.expect("held");
        assert!(ctx.letter(message_id(n)).await.record.holds_key);
        assert_eq!(ctx.lease_ids("q").await, [], "{key}: held");
        ctx.act(message_id(n), Act::Review).await.expect("pending");
        assert_eq!(ctx.lease_ids("q").await, [], "{key}: a review does not close the letter");
        ctx.act(message_id(n), ends).await.expect("open");
        assert!(!ctx.letter(message_id(n)).await.record.holds_key);
        assert_eq!(ctx.lease_ids("q").await, [message_id(n + 1)], "{key}: closed");
    }
    ctx.send(msg(30, "q")).await;
    assert_eq!(ctx.lease_ids("q").await, [message_id(30)], "a message without a key is not held");
}

pub(super) async fn i30_a_held_key_lets_its_own_redrive_through(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { on_dead: OnDead::Hold, ..max_attempts(1) }).await;
    ctx.send(keyed(1, "q", "k")).await;
    ctx.send(keyed(2, "q", "k")).await;
    for error in ["Bad", "Worse"] {
        let taken = ctx.lease_one("q").await;
        assert_eq!(taken.token.id, message_id(1));
        ctx.settle(taken.token, fail_permanently(error)).await.expect("held");
        ctx.act(message_id(1), Act::retry()).await.expect("pending");
    }
    let taken = ctx.lease_one("q").await;
    assert_eq!(ctx.lease_ids("q").await, []);
    ctx.settle(taken.token, Settle::Ack).await.expect("held");
    assert_eq!(ctx.lease_ids("q").await, [message_id(2)], "success closes the letter and frees the key");
}

pub(super) async fn i30_two_letters_of_one_held_key_can_both_be_sent_back(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { on_dead: OnDead::Hold, ..max_attempts(1) }).await;
    ctx.send(keyed(1, "q", "k")).await;
    ctx.send(NewMessage { ttl: Some(secs(5)), ..keyed(2, "q", "k") }).await;
    let taken = ctx.lease_one("q").await;
    ctx.settle(taken.token, fail("Bad")).await.expect("held");
    ctx.clock.advance(secs(9));
    assert_eq!(ctx.lease_ids("q").await, [], "the second expired while the first held the key");
    for n in [2, 1] {
        assert!(ctx.letter(message_id(n)).await.record.holds_key);
        ctx.act(message_id(n), Act::retry()).await.expect("pending");
    }
    for n in [1, 2] {
        let taken = ctx.lease_one("q").await;
        assert_eq!(taken.token.id, message_id(n), "a letter blocks only later messages");
        ctx.settle(taken.token, Settle::Ack).await.expect("held");
    }
}
