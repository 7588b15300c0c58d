//! Laws of `import`: a letter that left by export comes back as it was.

use super::Stage;
use super::kit::{BACKOFF, failed, failure, hopeless, new, operator, q, rules, secs};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Act, DeadLetter, File, Status};
use redrive_core::error::Refusal;
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::State;
use redrive_core::message::{Envelope, Message, NewMessage};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{HandOver, LetterLeaseRequest, Settle};

impl Stage<'_> {
    /// Takes a letter out at once; what is purged stays for a while.
    async fn remove(&self, id: redrive_core::ids::MessageId) {
        let version = self.letter(id).await.file.version;
        let each = self.store.hand_over(vec![HandOver { id, version }], operator()).await.expect("answers");
        assert_eq!(each, [Ok(id)]);
    }
}

pub(super) async fn i33_a_letter_comes_back_as_it_left(stage: &Stage<'_>) {
    stage.set("q", rules(25)).await;
    let rich = NewMessage {
        kind: "charge".into(),
        headers: [("h".into(), "v".into())].into(),
        key: Some("k".into()),
        ordering_key: Some("o".into()),
        context: Some(serde_json::json!({"n": 1})),
        ..new(1, "q")
    };
    let id = stage.send(rich).await;
    for n in 0..25 {
        let error = if n % 2 == 0 { "Even" } else { "Odd" };
        stage.settle(stage.take_one("q").await.token, failed(error)).await.expect("held");
        stage.clock.advance(BACKOFF);
    }
    stage.act(id, Act::Review).await.expect("pending");
    let left = stage.letter(id).await;
    let text = serde_json::to_string(&left).expect("an export");
    stage.remove(id).await;
    let rows = stage.trail().await.len();
    let letter: DeadLetter = serde_json::from_str(&text).expect("an import");
    assert_eq!(letter, left, "exports lose nothing");
    assert_eq!(stage.store.import(vec![letter], operator()).await, Ok(vec![Ok(id)]));
    let envelope = Envelope { seq: 2, ..left.message.envelope.clone() };
    let back = DeadLetter { message: Message { envelope, ..left.message.clone() }, death: 2, ..left };
    assert_eq!(stage.letter(id).await, back);
    assert_eq!(stage.trail().await[rows..], [AuditEntry::new(stage.now(), &operator(), "import", id, 1)]);
    let counts = Counts { enqueued: 2, dead: 1, purged: 1, ..Counts::default() };
    assert_eq!(stage.counts("q").await, counts);
    // Its life goes on where it stopped: fencing number, generation and history.
    stage.act(id, Act::retry()).await.expect("under review");
    let taken = stage.take_one("q").await;
    assert_eq!((taken.message.deliveries, taken.message.generation, taken.attempt), (26, 2, 1));
    stage.settle(taken.token, hopeless("Again")).await.expect("held");
    let letter = stage.letter(id).await;
    assert_eq!((letter.message.failed, letter.message.failures.len()), (26, 20));
    assert_eq!(letter.message.failures[..10], back.message.failures[..10]);
    assert_eq!(letter.message.failures[10..19], back.message.failures[11..]);
    assert_eq!(letter.message.failures[19].error.error_type, "Again");
}

pub(super) async fn a_letter_that_is_here_is_left_alone(stage: &Stage<'_>) {
    let dead = stage.dead(new(1, "q"), "Bad").await;
    let mut live = dead.clone();
    live.message.envelope.id = stage.send(new(2, "q")).await;
    let mut fresh = dead.clone();
    fresh.message.envelope.id = message_id(3);
    let before = stage.seen().await;
    let each = stage.store.import(vec![dead.clone(), live.clone()], operator()).await.expect("answers");
    assert_eq!(each, [dead.id(), live.id()].map(|id| Err(Refusal::IdConflict { id })));
    assert_eq!(stage.seen().await, before);
    let each =
        stage.store.import(vec![dead.clone(), fresh.clone(), fresh], operator()).await.expect("answers");
    let conflict = |id| Err(Refusal::IdConflict { id });
    assert_eq!(each, [conflict(dead.id()), Ok(message_id(3)), conflict(message_id(3))], "per entry");
}

pub(super) async fn a_letter_comes_to_a_store_that_knows_nothing_of_it(stage: &Stage<'_>) {
    let mut letter = stage.dead(new(1, "q"), "Bad").await;
    stage.remove(letter.id()).await;
    letter.message.envelope.queue = q("elsewhere");
    letter.file.dlq = q("elsewhere-dlq");
    let id = letter.id();
    assert_eq!(stage.store.import(vec![letter], operator()).await, Ok(vec![Ok(id)]));
    let queue = stage.queue("elsewhere").await;
    assert_eq!(queue.policy, QueuePolicy::default(), "the queue is made");
    assert_eq!(queue.counts, Counts { enqueued: 1, dead: 1, ..Counts::default() });
    let group = stage.store.group(failure("Bad").signature.leaf).await.expect("the cause is known");
    assert_eq!((group.open, group.total, group.failures), (1, 2, 2));
    assert_eq!(group.queues, [q("elsewhere"), q("q")].into());
    let drawn = LetterLeaseRequest { dlq: q("elsewhere-dlq"), max: 1, lease_for: None, worker: "c".into() };
    assert_eq!(stage.store.lease_letters(drawn).await.expect("answers").len(), 1);
}

pub(super) async fn i38_a_letter_is_not_imported_into_a_drawer(stage: &Stage<'_>) {
    let mut letter = stage.dead(new(1, "q"), "Bad").await;
    stage.remove(letter.id()).await;
    letter.message.envelope.queue = q("q-dlq");
    let each = stage.store.import(vec![letter], operator()).await.expect("answers");
    assert_eq!(each, [Err(Refusal::IsDrawer { queue: q("q-dlq"), owner: q("q") })]);
}

pub(super) async fn what_was_in_flight_comes_back_pending(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    stage.act(id, Act::retry()).await.expect("pending");
    let retrying = stage.letter(id).await;
    assert_eq!(retrying.message.state, State::Ready);
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    stage.remove(id).await;
    stage.store.import(vec![retrying.clone()], operator()).await.expect("answers")[0]
        .clone()
        .expect("unknown");
    let letter = stage.letter(id).await;
    assert_eq!(letter.file, File { status: Status::Pending, ..retrying.file });
    assert_eq!((letter.message.state, letter.message.generation), (State::Dead, 2));
    let held = stage.dead(new(2, "other"), "Bad").await;
    let wish = LetterLeaseRequest { dlq: q("other-dlq"), max: 1, lease_for: None, worker: "c".into() };
    let drawn = stage.store.lease_letters(wish).await.expect("answers").remove(0);
    stage.clock.advance(secs(600));
    stage.remove(held.id()).await;
    stage.store.import(vec![drawn.letter], operator()).await.expect("answers")[0].clone().expect("unknown");
    assert_eq!(stage.letter(held.id()).await.file, held.file, "nobody has it in hands");
}

pub(super) async fn closed_letters_come_back_closed(stage: &Stage<'_>) {
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    stage.act(id, Act::Resolve).await.expect("pending");
    let closed = stage.letter(id).await;
    stage.remove(id).await;
    stage.clock.advance(secs(5));
    stage.store.import(vec![closed.clone()], operator()).await.expect("answers")[0].clone().expect("unknown");
    assert_eq!(stage.letter(id).await.file, closed.file, "retention goes on from closing");
    let group = stage.store.group(closed.group).await.expect("known");
    assert_eq!((group.open, group.total), (0, 2));
    stage.clock.set(START.plus(QueuePolicy::default().retention));
    assert_eq!(stage.store.reap(10).await.expect("answers").letters_expired, 1);
}
