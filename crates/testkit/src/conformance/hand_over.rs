//! Laws of `hand_over`: a letter that another store has leaves nothing behind, and what belongs here stays.

use super::Stage;
use super::kit::{new, operator, q, rules};
use crate::ids::message_id;
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Act, Status};
use redrive_core::error::Refusal;
use redrive_core::ids::MessageId;
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::State;
use redrive_core::message::NewMessage;
use redrive_core::policy::{OnDead, QueuePolicy};
use redrive_core::store::{Enqueued, HandOver, KeyState, Settle};

impl Stage<'_> {
    async fn hand_over(&self, id: MessageId, version: u64) -> Result<MessageId, Refusal> {
        let batch = vec![HandOver { id, version }];
        self.store.hand_over(batch, operator()).await.expect("answers").remove(0)
    }
}

pub(super) async fn a_letter_that_is_elsewhere_leaves_nothing_behind(stage: &Stage<'_>) {
    let letter = stage.dead(new(1, "q"), "Bad").await;
    let id = letter.id();
    assert_eq!(stage.hand_over(id, letter.file.version).await, Ok(id));
    assert_eq!(stage.store.letter(id).await, Err(Refusal::NoSuchLetter { id }.into()));
    assert_eq!(stage.counts("q").await, Counts { enqueued: 1, purged: 1, ..Counts::default() });
    let groups = stage.seen().await.groups;
    assert_eq!((groups[0].open, groups[0].total), (0, 1), "the death is remembered");
    assert_eq!(stage.trail().await, [AuditEntry::new(stage.now(), &operator(), "hand over", id, 1)]);
    assert_eq!(stage.hand_over(id, 1).await, Err(Refusal::NoSuchLetter { id }), "once is enough");
    let closed = stage.dead(new(2, "q"), "Bad").await.id();
    let state = stage.act(closed, Act::Abandon).await.expect("open");
    assert_eq!(stage.hand_over(closed, state.version).await, Ok(closed), "closed ones may leave too");
}

pub(super) async fn what_belongs_here_stays(stage: &Stage<'_>) {
    let changed = stage.dead(new(1, "q"), "Bad").await.id();
    stage.act(changed, Act::Note).await.expect("a note");
    assert!(matches!(stage.hand_over(changed, 1).await, Err(Refusal::VersionConflict { actual: 2, .. })));
    stage.act(changed, Act::Resolve).await.expect("open");
    let drawn = stage.dead(new(2, "q"), "Bad").await;
    stage.draw_one("q-dlq").await;
    let leased = stage.hand_over(drawn.id(), drawn.file.version).await;
    assert!(matches!(leased, Err(Refusal::LetterLeased { .. })), "{leased:?}");
    let retrying = stage.dead(new(3, "q"), "Bad").await.id();
    let state = stage.act(retrying, Act::retry()).await.expect("pending");
    let busy = stage.hand_over(retrying, state.version).await;
    assert!(matches!(busy, Err(Refusal::WrongStatus { status: Status::Retrying, .. })), "{busy:?}");
    stage.set("held", QueuePolicy { on_dead: OnDead::Hold, ..rules(1) }).await;
    let ordered = NewMessage { ordering_key: Some("k".into()), ..new(4, "held") };
    let holds = stage.dead(ordered, "Bad").await;
    let held = stage.hand_over(holds.id(), holds.file.version).await;
    assert!(matches!(held, Err(Refusal::WrongStatus { status: Status::Pending, .. })), "{held:?}");
    assert_eq!(stage.counts("held").await.dead, 1);
}

pub(super) async fn a_letter_that_left_can_come_back(stage: &Stage<'_>) {
    let letter = stage.dead(new(1, "q"), "Bad").await;
    let id = letter.id();
    stage.hand_over(id, letter.file.version).await.expect("at rest");
    let back = stage.store.import(vec![letter.clone()], operator()).await.expect("answers");
    assert_eq!(back, [Ok(id)]);
    stage.act(id, Act::retry()).await.expect("pending");
    let taken = stage.take_one("q").await;
    let generation = letter.message.generation + 1;
    assert_eq!((taken.message.envelope.id, taken.message.generation), (message_id(1), generation));
    stage.settle(taken.token, Settle::Ack).await.expect("held");
    assert_eq!(stage.letter(id).await.file.status, Status::Resolved);
    let counts = Counts { enqueued: 2, purged: 1, dead: 1, ..Counts::default() };
    assert_eq!(stage.counts("q").await, counts, "it left once, came once, and is a closed letter");
}

/// It is open in another store: a sender that asks again must not take it for given up.
pub(super) async fn i41_the_key_of_a_letter_that_left_says_dead(stage: &Stage<'_>) {
    let keyed = NewMessage { key: Some("k".into()), ..new(1, "q") };
    let letter = stage.dead(keyed.clone(), "Bad").await;
    let id = letter.id();
    stage.hand_over(id, letter.file.version).await.expect("at rest");
    let state = stage.store.key_state(q("q"), "k".into()).await.expect("answers");
    assert_eq!(state, Some(KeyState { id, state: State::Dead }));
    let again = stage.try_send(keyed).await;
    assert_eq!(again, Ok(Enqueued { id, state: State::Dead, duplicate: true }));
    let closed = stage.dead(NewMessage { key: Some("c".into()), ..new(2, "q") }, "Bad").await.id();
    stage.act(closed, Act::Abandon).await.expect("open");
    stage.act(closed, Act::Purge).await.expect("closed");
    let purged = stage.store.key_state(q("q"), "c".into()).await.expect("answers");
    assert_eq!(purged, Some(KeyState { id: closed, state: State::Purged }), "what is removed here is over");
}
