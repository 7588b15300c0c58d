//! Laws of ordering keys (I30): one at a time, in the order of enqueues, through everything that can happen.

use super::Stage;
use super::kit::{BACKOFF, failed, hopeless, new, rules, secs};
use crate::ids::message_id;
use redrive_core::dead_letter::Act;
use redrive_core::ids::MessageId;
use redrive_core::message::{NewMessage, Priority};
use redrive_core::policy::{OnDead, QueuePolicy};
use redrive_core::store::Settle;

fn keyed(n: u64, queue: &str, key: &str) -> NewMessage {
    NewMessage { ordering_key: Some(key.into()), ..new(n, queue) }
}

impl Stage<'_> {
    async fn taken(&self, queue: &str) -> Vec<MessageId> {
        self.take(queue, 1_000).await.iter().map(|d| d.message.envelope.id).collect()
    }
}

pub(super) async fn i30_one_at_a_time_in_the_order_of_enqueues(stage: &Stage<'_>) {
    for n in 1..=3 {
        stage.send(keyed(n, "q", "k")).await;
    }
    for n in 1..=3 {
        let taken = stage.take("q", 10).await;
        assert_eq!(taken.iter().map(|d| d.token.id).collect::<Vec<_>>(), [message_id(n)]);
        assert_eq!(stage.take("q", 10).await, []);
        stage.settle(taken[0].token, Settle::Ack).await.expect("held");
    }
}

pub(super) async fn i30_whatever_their_priority_or_delay(stage: &Stage<'_>) {
    let first = NewMessage { priority: Some(Priority::Background), ..keyed(1, "q", "k") };
    stage.send(NewMessage { delay: Some(secs(60)), ..first }).await;
    stage.send(NewMessage { priority: Some(Priority::Critical), ..keyed(2, "q", "k") }).await;
    let urgent = stage.now().plus(secs(62));
    stage.send(NewMessage { deadline: Some(urgent), ..keyed(3, "q", "k") }).await;
    assert_eq!(stage.taken("q").await, [], "the first of the key is not due");
    stage.clock.advance(secs(60));
    assert_eq!(stage.taken("q").await, [message_id(1)]);
}

pub(super) async fn i30_the_order_is_kept_through_retry(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    stage.send(keyed(1, "q", "k")).await;
    stage.send(keyed(2, "q", "k")).await;
    let endings = [failed("Bad"), Settle::Release, Settle::Snooze { span: secs(3) }];
    for ending in endings {
        let taken = stage.take_one("q").await;
        assert_eq!(taken.token.id, message_id(1));
        let settled = stage.settle(taken.token, ending).await.expect("held");
        let due = settled.ready_at.expect("it waits");
        if due > stage.now() {
            assert_eq!(stage.taken("q").await, [], "nobody overtakes who waits for a retry");
            stage.clock.set(due);
        }
    }
    let lost = stage.take_one("q").await;
    assert_eq!(lost.token.id, message_id(1));
    stage.clock.advance(secs(30));
    assert_eq!(stage.taken("q").await, [], "nor who lost a lease");
    stage.clock.advance(BACKOFF);
    let taken = stage.take_one("q").await;
    stage.settle(taken.token, Settle::Ack).await.expect("held");
    assert_eq!(stage.taken("q").await, [message_id(2)]);
}

pub(super) async fn i30_keys_of_different_queues_are_strangers(stage: &Stage<'_>) {
    stage.send(keyed(1, "a", "k")).await;
    stage.send(keyed(2, "b", "k")).await;
    stage.send(keyed(3, "b", "other")).await;
    stage.send(new(4, "b")).await;
    let wish = stage.wish(&["a", "b"], 10);
    assert_eq!(stage.store.lease(wish).await.expect("answers").len(), 4);
}

pub(super) async fn i30_a_thousand_blocked_messages_hide_nobody(stage: &Stage<'_>) {
    let batch: Vec<_> = (1..=1_001).map(|n| keyed(n, "q", "k")).collect();
    stage.store.enqueue(batch).await.expect("answers");
    stage.send(keyed(2_000, "q", "free")).await;
    stage.send(new(2_001, "q")).await;
    assert_eq!(stage.taken("q").await, [1, 2_000, 2_001].map(message_id));
}

pub(super) async fn i30_cancel_and_purge_let_the_next_proceed(stage: &Stage<'_>) {
    for n in 1..=2 {
        stage.send(keyed(n, "q", "k")).await;
    }
    stage.store.cancel(vec![message_id(1)], super::kit::operator()).await.expect("answers");
    assert_eq!(stage.taken("q").await, [message_id(2)]);
}

pub(super) async fn i30_after_a_death_the_next_proceeds(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    for n in 1..=3 {
        stage.send(keyed(n, "q", "k")).await;
    }
    let first = stage.take_one("q").await;
    stage.settle(first.token, failed("Bad")).await.expect("held");
    assert!(!stage.letter(message_id(1)).await.file.holds_key);
    let second = stage.take_one("q").await;
    assert_eq!(second.token.id, message_id(2));
    // Sent back, the first is first again among those that wait.
    stage.act(message_id(1), Act::retry()).await.expect("it is pending");
    assert_eq!(stage.taken("q").await, [], "one at a time also now");
    stage.settle(second.token, Settle::Ack).await.expect("held");
    assert_eq!(stage.taken("q").await, [message_id(1)]);
}

pub(super) async fn i30_a_held_key_waits_until_the_letter_is_closed(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { on_dead: OnDead::Hold, ..rules(1) }).await;
    for (key, n, ends) in [("resolve", 10, Act::Resolve), ("abandon", 20, Act::Abandon)] {
        stage.send(keyed(n, "q", key)).await;
        stage.send(keyed(n + 1, "q", key)).await;
        let taken = stage.take_one("q").await;
        stage.settle(taken.token, failed("Bad")).await.expect("held");
        assert!(stage.letter(message_id(n)).await.file.holds_key);
        assert_eq!(stage.taken("q").await, [], "{key}: held");
        stage.act(message_id(n), Act::Review).await.expect("pending");
        assert_eq!(stage.taken("q").await, [], "{key}: a look does not close it");
        stage.act(message_id(n), ends).await.expect("open");
        assert!(!stage.letter(message_id(n)).await.file.holds_key);
        assert_eq!(stage.taken("q").await, [message_id(n + 1)], "{key}: closed");
    }
    stage.send(new(30, "q")).await;
    assert_eq!(stage.taken("q").await, [message_id(30)], "who has no key is not held");
}

pub(super) async fn i30_a_held_key_lets_its_own_redrive_through(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { on_dead: OnDead::Hold, ..rules(1) }).await;
    stage.send(keyed(1, "q", "k")).await;
    stage.send(keyed(2, "q", "k")).await;
    for error in ["Bad", "Worse"] {
        let taken = stage.take_one("q").await;
        assert_eq!(taken.token.id, message_id(1));
        stage.settle(taken.token, hopeless(error)).await.expect("held");
        stage.act(message_id(1), Act::retry()).await.expect("pending");
    }
    let taken = stage.take_one("q").await;
    assert_eq!(stage.taken("q").await, []);
    stage.settle(taken.token, Settle::Ack).await.expect("held");
    assert_eq!(stage.taken("q").await, [message_id(2)], "its success closes the letter and frees the key");
}

pub(super) async fn i30_two_letters_of_one_held_key_can_both_be_sent_back(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { on_dead: OnDead::Hold, ..rules(1) }).await;
    stage.send(keyed(1, "q", "k")).await;
    stage.send(NewMessage { ttl: Some(secs(5)), ..keyed(2, "q", "k") }).await;
    let taken = stage.take_one("q").await;
    stage.settle(taken.token, failed("Bad")).await.expect("held");
    stage.clock.advance(secs(9));
    assert_eq!(stage.taken("q").await, [], "the second died of its ttl while the first held the key");
    for n in [2, 1] {
        assert!(stage.letter(message_id(n)).await.file.holds_key);
        stage.act(message_id(n), Act::retry()).await.expect("pending");
    }
    for n in [1, 2] {
        let taken = stage.take_one("q").await;
        assert_eq!(taken.token.id, message_id(n), "each holds only those behind it");
        stage.settle(taken.token, Settle::Ack).await.expect("held");
    }
}
