//! Keeps dead letters in another store than the work. A [`LetterMover`] moves letters from the work store, where
//! messages die, to the letter store, where people look at them. It imports each letter there first, then removes it
//! here, so after a crash in between the move is just repeated. For a replay the letter is imported into the work store
//! and redriven there, so the message keeps its id, reply-to, history and generation.

use crate::runnable::{Heartbeat, Runnable};
use crate::waiting::{GrowingDelay, is_fatal, with_timeout};
use async_trait::async_trait;
use redrive_core::dead_letter::{
    Act, ActRequest, Actor, DeadLetter, Note, Status, StatusChange, next_status,
};
use redrive_core::error::{CallError, Refusal};
use redrive_core::filter::Filter;
use redrive_core::ids::MessageId;
use redrive_core::limits;
use redrive_core::query::{PageRequest, Query};
use redrive_core::store::{HandOver, Store, with_revisions};
use redrive_core::time::{Span, Time};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The result of one pass of a [`LetterMover`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveReport {
    /// Letters that were moved.
    pub moved: u64,
    /// Letters that stay for now: leased, holding their ordering key, or being retried in the letter store.
    pub kept: u64,
}

/// Moves dead letters from the work store to the letter store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::LetterMover;
///
/// let (work, letters) = (redrive::memory(), redrive::memory());
/// let mover = LetterMover::new(work, letters);
/// let report = mover.pass().await?; // or run it in a `LoopGroup`
/// println!("{} moved, {} kept", report.moved, report.kept);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LetterMover {
    work: Arc<dyn Store>,
    letters: Arc<dyn Store>,
    every: Span,
    problem: Arc<Mutex<Option<String>>>,
}

impl std::fmt::Debug for LetterMover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LetterMover").field("every", &self.every).finish_non_exhaustive()
    }
}

/// Letters moved at once. Kept low because letters carry their payloads.
const PAGE: usize = 16;
/// How often the mover beats its heartbeat.
const BEAT: Duration = Duration::from_secs(10);

/// How a letter in the work store compares with the one of the same id in the letter store.
#[derive(Debug)]
enum Counterpart {
    /// The letter store has none.
    Missing,
    /// The letter store has the same letter or a later one.
    UpToDate,
    /// The letter store has an earlier one that is not being retried.
    Older(Box<DeadLetter>),
    /// The letter store has an earlier one that is being retried.
    Busy,
}

impl LetterMover {
    /// Creates a mover from the work store to the letter store.
    #[must_use]
    pub fn new(work: Arc<dyn Store>, letters: Arc<dyn Store>) -> Self {
        Self { work, letters, every: Span::from_secs(1), problem: Arc::default() }
    }

    /// How often it looks for letters when there was nothing to move. Defaults to one second.
    #[must_use]
    pub fn every(mut self, span: Span) -> Self {
        self.every = span;
        self
    }

    fn actor(reason: &str) -> Actor {
        Actor { reason: Some(reason.into()), ..Actor::new("letter mover", "library") }
    }

    /// Moves every letter that can be moved now.
    ///
    /// # Errors
    /// Returns the error of the store that failed. The letters stay where they are.
    pub async fn pass(&self) -> Result<MoveReport, CallError> {
        let result = self.move_all().await;
        let mut problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        *problem = match &result {
            Err(error) => Some(format!("dead letters wait to be moved to their store: {error}")),
            Ok(MoveReport { kept, .. }) if *kept > 0 => {
                Some(format!("{kept} dead letters cannot be moved to their store yet"))
            }
            Ok(_) => None,
        };
        result
    }

    async fn move_all(&self) -> Result<MoveReport, CallError> {
        let text = "status:pending,review,quarantined,resolved,abandoned";
        let filter = Filter::parse(text).map_err(|e| Refusal::invalid("filter", e.to_string()))?;
        let mut query = Query { filter, page: PageRequest::first(PAGE) };
        let mut report = MoveReport::default();
        loop {
            let now = with_timeout(self.work.info()).await?.now;
            let page = with_timeout(self.work.letters(query.clone())).await?;
            let seen = page.items.len() as u64;
            let imported = self.import(page.items, now).await?;
            let moved = self.remove(imported).await?;
            report.moved += moved;
            report.kept += seen - moved;
            let Some(next) = page.next else { return Ok(report) };
            query.page.cursor = Some(next);
        }
    }

    /// The first half of a move: imports letters into the letter store, and returns those to remove from the work
    /// store.
    async fn import(&self, letters: Vec<DeadLetter>, now: Time) -> Result<Vec<HandOver>, CallError> {
        let mut imported = Vec::new();
        for letter in letters {
            let letter = match with_timeout(with_revisions(&*self.work, letter)).await {
                Ok(letter) => letter,
                // The letter is gone meanwhile.
                Err(CallError::Refused(_)) => continue,
                Err(error) => return Err(error),
            };
            let (id, version) = (letter.id(), letter.record.version);
            if letter.record.check_hand_over(id, version, now).is_ok() && self.import_one(letter).await? {
                imported.push(HandOver { id, version });
            }
        }
        Ok(imported)
    }

    async fn import_one(&self, mut letter: DeadLetter) -> Result<bool, CallError> {
        let id = letter.id();
        match self.counterpart(&letter).await? {
            Counterpart::UpToDate => return Ok(true),
            Counterpart::Busy => return Ok(false),
            Counterpart::Missing => {}
            Counterpart::Older(older) => {
                letter.record.merge_history(&older.record);
                letter.record.notes = merged(&older.record.notes, &letter.record.notes);
                letter.record.version = older.record.version.max(letter.record.version) + 1;
                let version = older.record.version;
                let actor =
                    Self::actor("the same message died again; its later letter has the whole history");
                let gone =
                    with_timeout(self.letters.hand_over(vec![HandOver { id, version }], actor)).await?;
                if !gone.iter().all(Result::is_ok) {
                    return Ok(false);
                }
            }
        }
        // The reply that reports the failure is sent by the work store when the letter leaves it.
        letter.record.owes_reply = false;
        let actor = Self::actor("moved from the work store");
        let imported = with_timeout(self.letters.import(vec![letter], actor)).await?.pop();
        match imported {
            Some(Ok(_)) => Ok(true),
            Some(Err(refusal)) => {
                tracing::warn!(message = %id, %refusal, "a dead letter cannot be imported into the other store");
                Ok(false)
            }
            None => Ok(false),
        }
    }

    async fn counterpart(&self, here: &DeadLetter) -> Result<Counterpart, CallError> {
        let counterpart = match with_timeout(self.letters.letter(here.id())).await {
            Ok(counterpart) => counterpart,
            Err(CallError::Refused(Refusal::NoSuchLetter { .. })) => return Ok(Counterpart::Missing),
            Err(error) => return Err(error),
        };
        Ok(if recency(&counterpart) >= recency(here) {
            Counterpart::UpToDate
        } else if counterpart.record.status == Status::Retrying {
            Counterpart::Busy
        } else {
            Counterpart::Older(Box::new(counterpart))
        })
    }

    /// The second half of a move: removes imported letters from the work store.
    async fn remove(&self, imported: Vec<HandOver>) -> Result<u64, CallError> {
        if imported.is_empty() {
            return Ok(0);
        }
        let actor = Self::actor("moved to the letter store");
        let results = with_timeout(self.work.hand_over(imported, actor)).await?;
        // A letter that changed since its import is moved again by the next pass.
        Ok(results.iter().filter(|result| result.is_ok()).count() as u64)
    }
}

/// Orders two letters of one message: by generation, then by death, then by change.
fn recency(letter: &DeadLetter) -> (u32, Time, u64) {
    (letter.message.generation, letter.record.dead_at, letter.record.version)
}

/// Merges two lists of notes by time, without duplicates.
fn merged(one: &[Note], other: &[Note]) -> Vec<Note> {
    let mut all: Vec<Note> = one.to_vec();
    all.extend(other.iter().filter(|note| !one.contains(note)).cloned());
    all.sort_by_key(|note| note.at);
    let over = all.len().saturating_sub(limits::NOTES_MAX);
    all.split_off(over)
}

#[async_trait]
impl Runnable for LetterMover {
    fn name(&self) -> String {
        "letter mover".into()
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError> {
        let mut idle =
            GrowingDelay::new(self.every.to_std(), self.every.to_std().max(Duration::from_secs(5)));
        let mut retry = GrowingDelay::new(Duration::from_millis(500), Duration::from_secs(30));
        while !stop.is_cancelled() {
            heartbeat.beat();
            let wait = match self.pass().await {
                Ok(MoveReport { moved: 0, .. }) => idle.wait(),
                Ok(_) => {
                    idle.reset();
                    retry.reset();
                    self.every.to_std()
                }
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "dead letters could not be moved; trying again");
                    retry.wait()
                }
            };
            if crate::waiting::pause(&stop, wait.min(BEAT)).await {
                break;
            }
        }
        Ok(())
    }

    fn degraded(&self) -> Vec<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// The result of [`replay_between`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReturnReport {
    /// Letters that were redriven in the work store and closed in the letter store.
    pub replayed: u64,
    /// Letters that an earlier, interrupted replay had redriven already. They are now closed in the letter store.
    pub under_way: u64,
    /// Letters that were left unchanged, and why.
    pub refused: Vec<(MessageId, String)>,
}

/// Replays letters of the letter store: imports each into the work store, redrives it there, then closes it in the
/// letter store. Harmless to repeat, even after a crash in between.
///
/// # Errors
/// Returns the error of the store that failed. Calling again continues where it stopped.
pub async fn replay_between(
    letters: &Arc<dyn Store>,
    work: &Arc<dyn Store>,
    ids: impl IntoIterator<Item = MessageId>,
    actor: Actor,
) -> Result<ReturnReport, CallError> {
    let mut returned = ReturnReport::default();
    for id in ids.into_iter().collect::<BTreeSet<_>>() {
        match return_one(letters.as_ref(), work.as_ref(), id, &actor).await? {
            Ok(true) => returned.replayed += 1,
            Ok(false) => returned.under_way += 1,
            Err(refusal) => returned.refused.push((id, refusal.to_string())),
        }
    }
    Ok(returned)
}

/// How often a letter is imported. A mover may move it away between its import and its redrive.
const IMPORT_ATTEMPTS: u32 = 5;

/// Returns `true` if the letter was redriven now, `false` if it had been redriven before.
async fn return_one(
    letters: &dyn Store,
    work: &dyn Store,
    id: MessageId,
    actor: &Actor,
) -> Result<Result<bool, Refusal>, CallError> {
    let found = match with_timeout(letters.letter(id)).await {
        Ok(letter) => with_timeout(with_revisions(letters, letter)).await,
        Err(error) => Err(error),
    };
    let letter = match found {
        Ok(letter) => letter,
        Err(CallError::Refused(refusal)) => return Ok(Err(refusal)),
        Err(error) => return Err(error),
    };
    if letter.record.erased.is_some() {
        return Ok(Err(Refusal::Erased { id, act: StatusChange::Retry.name().into() }));
    }
    if let Err(refusal) = next_status(id, letter.record.status, StatusChange::Retry) {
        return Ok(Err(refusal));
    }
    for _ in 0..IMPORT_ATTEMPTS {
        let sent = match redrive_in(work, &letter, actor).await {
            Ok(sent) => sent,
            // Refusals concern this letter only: its queue is full, it was redriven too often, its key is in use.
            Err(CallError::Refused(refusal)) => return Ok(Err(refusal)),
            Err(error) => return Err(error),
        };
        if let Some(now) = sent {
            let reason = Some("redriven in the work store".to_owned());
            let closing = Actor { reason, ..actor.clone() };
            let expected_version = Some(letter.record.version);
            let request = ActRequest { id, act: Act::Resolve, actor: closing, expected_version };
            let closed = with_timeout(letters.act(vec![request])).await?;
            if let Some(Err(refusal)) = closed.into_iter().next() {
                tracing::warn!(message = %id, %refusal, "a replayed letter could not be closed");
            }
            return Ok(Ok(now));
        }
    }
    let why =
        "the letter disappears from the work store again and again; is another letter mover running there?";
    Ok(Err(Refusal::invalid("letter", why)))
}

/// Whether a letter is open and not being retried.
fn at_rest(letter: &DeadLetter) -> bool {
    letter.record.status != Status::Retrying && !letter.record.status.is_closed()
}

/// Imports the letter and redrives it. Returns whether that was done now (`true`) or before (`false`), or `None` if the
/// letter was moved away in between.
async fn redrive_in(work: &dyn Store, letter: &DeadLetter, actor: &Actor) -> Result<Option<bool>, CallError> {
    let id = letter.id();
    match with_timeout(work.import(vec![letter.clone()], actor.clone())).await?.pop() {
        Some(Ok(_)) | None => {}
        Some(Err(Refusal::IdConflict { .. })) => match with_timeout(work.letter(id)).await {
            // An interrupted replay left it there, and the original was edited since: import the edited letter instead.
            Ok(known) if at_rest(&known) && known.record.edits.len() < letter.record.edits.len() => {
                let stale = HandOver { id, version: known.record.version };
                with_timeout(work.hand_over(vec![stale], actor.clone())).await?;
                return Ok(None);
            }
            // An interrupted replay left it there, or it died there since.
            Ok(known) if at_rest(&known) => {}
            Ok(_) | Err(CallError::Refused(Refusal::NoSuchLetter { .. })) => return Ok(Some(false)),
            Err(error) => return Err(error),
        },
        Some(Err(refusal)) => return Err(refusal.into()),
    }
    let request = ActRequest { id, act: Act::retry(), actor: actor.clone(), expected_version: None };
    match with_timeout(work.act(vec![request])).await?.pop() {
        Some(Ok(_)) | None => Ok(Some(true)),
        Some(Err(Refusal::NoSuchLetter { .. })) => Ok(None),
        Some(Err(Refusal::WrongStatus { status: Status::Retrying, .. })) => Ok(Some(false)),
        Some(Err(refusal)) => Err(refusal.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::failure::FailureReport;
    use redrive_core::ids::QueueName;
    use redrive_core::message::{NewMessage, Payload};
    use redrive_core::policy::Override;
    use redrive_core::store::{LeaseRequest, Settle, Settlement};

    fn me() -> Actor {
        Actor::new("tester", "library")
    }

    fn q() -> QueueName {
        "q".parse().unwrap()
    }

    async fn settle(store: &dyn Store, what: Settle) {
        let request = LeaseRequest {
            queues: vec![q()],
            max: 1,
            lease_for: None,
            worker: "w".into(),
            ..LeaseRequest::default()
        };
        let token = store.lease(request).await.unwrap().pop().expect("work").token;
        store.settle(vec![Settlement { token, what }]).await.unwrap().pop().unwrap().unwrap();
    }

    async fn die(store: &dyn Store) {
        let failure = Box::new(FailureReport::default().analyse());
        settle(store, Settle::Fail { failure, policy_override: Some(Override::DeadLetter) }).await;
    }

    async fn dead(store: &dyn Store) -> MessageId {
        let payload = Payload { bytes: vec![0xff, 0, 1], content_type: "x/y".into() };
        let reply_to = Some("answers".parse().unwrap());
        let new = NewMessage { reply_to, ..NewMessage::new(crate::new_id(), q(), payload) };
        let id = new.id;
        store.enqueue(vec![new]).await.unwrap();
        die(store).await;
        id
    }

    async fn act(store: &dyn Store, id: MessageId, act: Act) {
        let request =
            ActRequest { id, act, actor: Actor { reason: Some("r".into()), ..me() }, expected_version: None };
        store.act(vec![request]).await.unwrap().pop().unwrap().unwrap();
    }

    fn pair() -> (Arc<dyn Store>, Arc<dyn Store>, LetterMover) {
        let (work, letters) = (crate::memory(), crate::memory());
        let mover = LetterMover::new(Arc::clone(&work), Arc::clone(&letters));
        (work, letters, mover)
    }

    async fn is_clean(store: &dyn Store) {
        let found = store.verify(Default::default()).await.unwrap();
        assert!(found.is_clean(), "{:?}", found.findings);
    }

    #[tokio::test]
    async fn a_letter_is_moved_complete_and_once() {
        let (work, letters, mover) = pair();
        let id = dead(&*work).await;
        let before = work.letter(id).await.unwrap();
        assert_eq!(mover.pass().await.unwrap(), MoveReport { moved: 1, kept: 0 });
        assert_eq!(mover.pass().await.unwrap(), MoveReport::default());
        let after = letters.letter(id).await.unwrap();
        let (mut was, mut is) = (before.message.clone(), after.message.clone());
        (was.envelope.seq, is.envelope.seq) = (0, 0);
        was.failures.iter_mut().chain(&mut is.failures).for_each(|f| f.leaf = before.record.leaf);
        assert_eq!(was, is, "the message and its failures");
        assert_eq!((after.record.dead_at, after.record.status), (before.record.dead_at, Status::Pending));
        assert!(work.letter(id).await.is_err());
        is_clean(&*work).await;
        is_clean(&*letters).await;
    }

    /// Fault: the process dies after the letter was imported and before it was removed from the work store.
    #[tokio::test]
    async fn a_crash_between_import_and_removal_is_harmless() {
        let (work, letters, mover) = pair();
        let ids = [dead(&*work).await, dead(&*work).await];
        for _ in 0..2 {
            let page = work.letters(Query::default()).await.unwrap().items;
            let imported = mover.import(page, work.info().await.unwrap().now).await.unwrap();
            assert_eq!(imported.len(), 2, "imported there, still here, however often");
        }
        act(&*letters, ids[0], Act::Note).await;
        assert_eq!(mover.pass().await.unwrap(), MoveReport { moved: 2, kept: 0 });
        let noted = letters.letter(ids[0]).await.unwrap().record;
        assert_eq!((noted.notes.len(), noted.version), (1, 2), "what was done there meanwhile stays");
        assert_eq!(letters.queue(q()).await.unwrap().counts.dead, 2);
        is_clean(&*letters).await;
    }

    #[tokio::test]
    async fn a_letter_that_changed_after_its_import_is_moved_again() {
        let (work, letters, mover) = pair();
        let id = dead(&*work).await;
        let page = work.letters(Query::default()).await.unwrap().items;
        let imported = mover.import(page, work.info().await.unwrap().now).await.unwrap();
        act(&*work, id, Act::Review).await;
        assert_eq!(mover.remove(imported).await.unwrap(), 0, "it changed");
        assert_eq!(mover.pass().await.unwrap(), MoveReport { moved: 1, kept: 0 });
        assert_eq!(letters.letter(id).await.unwrap().record.status, Status::Review);
        is_clean(&*letters).await;
    }

    #[tokio::test]
    async fn the_letter_of_a_second_death_replaces_the_first_and_keeps_its_notes() {
        let (work, letters, mover) = pair();
        let id = dead(&*work).await;
        mover.pass().await.unwrap();
        act(&*letters, id, Act::Note).await;
        let back = replay_between(&letters, &work, [id, id], me()).await.unwrap();
        assert_eq!(back, ReturnReport { replayed: 1, ..ReturnReport::default() });
        assert_eq!(letters.letter(id).await.unwrap().record.status, Status::Resolved);
        let message = work.message(id).await.unwrap();
        assert_eq!((message.generation, message.envelope.reply_to), (2, Some("answers".parse().unwrap())));
        die(&*work).await;
        mover.pass().await.unwrap();
        let letter = letters.letter(id).await.unwrap();
        assert_eq!((letter.message.generation, letter.message.failures.len()), (2, 2));
        assert_eq!((letter.record.status, letter.record.redrives), (Status::Pending, 1));
        assert!(letter.record.notes.iter().any(|note| note.text == "r"), "{:?}", letter.record.notes);
        is_clean(&*work).await;
        is_clean(&*letters).await;
    }

    #[tokio::test]
    async fn success_after_a_replay_resolves_the_letter_in_the_letter_store() {
        let (work, letters, mover) = pair();
        let id = dead(&*work).await;
        mover.pass().await.unwrap();
        replay_between(&letters, &work, [id], me()).await.unwrap();
        mover.pass().await.unwrap();
        settle(&*work, Settle::Ack).await;
        mover.pass().await.unwrap();
        let record = letters.letter(id).await.unwrap().record;
        assert_eq!((record.status, record.resolution.as_deref()), (Status::Resolved, Some("retried")));
    }

    /// Faults: the process dies after the import, and after the redrive, of a replay.
    #[tokio::test]
    async fn an_interrupted_replay_continues() {
        let (work, letters, mover) = pair();
        let id = dead(&*work).await;
        mover.pass().await.unwrap();
        let letter = letters.letter(id).await.unwrap();
        work.import(vec![letter.clone()], me()).await.unwrap();
        let back = replay_between(&letters, &work, [id], me()).await.unwrap();
        assert_eq!(back.replayed, 1);

        let id = dead(&*letters).await;
        assert_eq!(redrive_in(&*work, &letters.letter(id).await.unwrap(), &me()).await.unwrap(), Some(true));
        let back = replay_between(&letters, &work, [id], me()).await.unwrap();
        assert_eq!(back, ReturnReport { under_way: 1, ..ReturnReport::default() });
        assert_eq!(letters.letter(id).await.unwrap().record.status, Status::Resolved);
        let unknown = crate::new_id();
        let back = replay_between(&letters, &work, [id, unknown], me()).await.unwrap();
        assert_eq!((back.replayed, back.under_way, back.refused.len()), (0, 0, 2));
        assert_eq!(work.queue(q()).await.unwrap().ready, 2);
    }
}
