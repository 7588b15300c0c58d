//! Laws of `hand_over`: a letter that was moved to another store leaves nothing behind, and a letter in use
//! is not handed over.

use super::LawContext;
use super::kit::{max_attempts, msg, operator, q};
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

impl LawContext<'_> {
    async fn hand_over(&self, id: MessageId, version: u64) -> Result<MessageId, Refusal> {
        let batch = vec![HandOver { id, version }];
        self.store.hand_over(batch, operator()).await.expect("succeeds").remove(0)
    }
}

pub(super) async fn a_handed_over_letter_leaves_nothing_behind(ctx: &LawContext<'_>) {
    let letter = ctx.dead_letter(msg(1, "q"), "Bad").await;
    let id = letter.id();
    assert_eq!(ctx.hand_over(id, letter.record.version).await, Ok(id));
    assert_eq!(ctx.store.letter(id).await, Err(Refusal::NoSuchLetter { id }.into()));
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 1, purged: 1, ..Counts::default() });
    let groups = ctx.view().await.groups;
    assert_eq!((groups[0].open, groups[0].total), (0, 1), "the death stays counted");
    assert_eq!(ctx.audit_trail().await, [AuditEntry::new(ctx.now(), &operator(), "hand over", id, 1)]);
    assert_eq!(
        ctx.hand_over(id, 1).await,
        Err(Refusal::NoSuchLetter { id }),
        "a second hand-over is refused"
    );
    let closed = ctx.dead_letter(msg(2, "q"), "Bad").await.id();
    let state = ctx.act(closed, Act::Abandon).await.expect("open");
    assert_eq!(
        ctx.hand_over(closed, state.version).await,
        Ok(closed),
        "closed letters can be handed over too"
    );
}

pub(super) async fn letters_in_use_are_not_handed_over(ctx: &LawContext<'_>) {
    let changed = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    ctx.act(changed, Act::Note).await.expect("a note");
    assert!(matches!(ctx.hand_over(changed, 1).await, Err(Refusal::VersionConflict { actual: 2, .. })));
    ctx.act(changed, Act::Resolve).await.expect("open");
    let leased = ctx.dead_letter(msg(2, "q"), "Bad").await;
    ctx.lease_letter("q-dlq").await;
    let leased = ctx.hand_over(leased.id(), leased.record.version).await;
    assert!(matches!(leased, Err(Refusal::LetterLeased { .. })), "{leased:?}");
    let retrying = ctx.dead_letter(msg(3, "q"), "Bad").await.id();
    let state = ctx.act(retrying, Act::retry()).await.expect("pending");
    let busy = ctx.hand_over(retrying, state.version).await;
    assert!(matches!(busy, Err(Refusal::WrongStatus { status: Status::Retrying, .. })), "{busy:?}");
    ctx.configure("held", QueuePolicy { on_dead: OnDead::Hold, ..max_attempts(1) }).await;
    let ordered = NewMessage { ordering_key: Some("k".into()), ..msg(4, "held") };
    let holds = ctx.dead_letter(ordered, "Bad").await;
    let held = ctx.hand_over(holds.id(), holds.record.version).await;
    assert!(matches!(held, Err(Refusal::WrongStatus { status: Status::Pending, .. })), "{held:?}");
    assert_eq!(ctx.counts("held").await.dead, 1);
}

pub(super) async fn a_handed_over_letter_can_be_imported_again(ctx: &LawContext<'_>) {
    let letter = ctx.dead_letter(msg(1, "q"), "Bad").await;
    let id = letter.id();
    ctx.hand_over(id, letter.record.version).await.expect("the letter is not in use");
    let back = ctx.store.import(vec![letter.clone()], operator()).await.expect("succeeds");
    assert_eq!(back, [Ok(id)]);
    ctx.act(id, Act::retry()).await.expect("pending");
    let taken = ctx.lease_one("q").await;
    let generation = letter.message.generation + 1;
    assert_eq!((taken.message.envelope.id, taken.message.generation), (message_id(1), generation));
    ctx.settle(taken.token, Settle::Ack).await.expect("held");
    assert_eq!(ctx.letter(id).await.record.status, Status::Resolved);
    let counts = Counts { enqueued: 2, purged: 1, dead: 1, ..Counts::default() };
    assert_eq!(ctx.counts("q").await, counts, "counted once as a closed letter");
}

/// The letter is open in another store: a sender that asks again must not be told that it was purged.
pub(super) async fn i41_the_key_of_a_handed_over_letter_stays_dead(ctx: &LawContext<'_>) {
    let keyed = NewMessage { key: Some("k".into()), ..msg(1, "q") };
    let letter = ctx.dead_letter(keyed.clone(), "Bad").await;
    let id = letter.id();
    ctx.hand_over(id, letter.record.version).await.expect("the letter is not in use");
    let state = ctx.store.key_state(q("q"), "k".into()).await.expect("succeeds");
    assert_eq!(state, Some(KeyState { id, state: State::Dead }));
    let again = ctx.try_send(keyed).await;
    assert_eq!(again, Ok(Enqueued { id, state: State::Dead, duplicate: true }));
    let closed = ctx.dead_letter(NewMessage { key: Some("c".into()), ..msg(2, "q") }, "Bad").await.id();
    ctx.act(closed, Act::Abandon).await.expect("open");
    ctx.act(closed, Act::Purge).await.expect("closed");
    let purged = ctx.store.key_state(q("q"), "c".into()).await.expect("succeeds");
    assert_eq!(purged, Some(KeyState { id: closed, state: State::Purged }), "a letter purged here is purged");
}
