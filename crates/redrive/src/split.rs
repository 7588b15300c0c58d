//! Dead letters in another store than the work. A ferry carries letters from the store where messages die to the
//! one where people look at them: it files each letter there first, then removes it here, so a crash in between
//! means only that it is done again. Going back, the letter is filed in the work's store and redriven there, so
//! the message keeps its id, reply-to, history and generation. Nothing here changes a letter on the way.

use crate::pace::{Pace, ask, is_final};
use crate::runnable::{Heartbeat, Runnable};
use async_trait::async_trait;
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter, Move, Note, Status, next_status};
use redrive_core::error::{Error, Refusal};
use redrive_core::filter::Filter;
use redrive_core::ids::MessageId;
use redrive_core::limits;
use redrive_core::query::{PageRequest, Query};
use redrive_core::store::{HandOver, Store};
use redrive_core::time::{Span, Time};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// What a pass of the ferry did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ferried {
    /// Letters that are now there and no longer here.
    pub moved: u64,
    /// Letters that stay for now: in somebody's hands, holding their ordering key, or being retried there.
    pub kept: u64,
}

/// Carries dead letters from the store of the work to the store of the letters.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::LetterFerry;
///
/// let (work, letters) = (redrive::memory(), redrive::memory());
/// let ferry = LetterFerry::new(work, letters);
/// let ferried = ferry.pass().await?; // or run it in a `LoopGroup`
/// println!("{} moved, {} kept", ferried.moved, ferried.kept);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LetterFerry {
    work: Arc<dyn Store>,
    letters: Arc<dyn Store>,
    every: Span,
    trouble: Arc<Mutex<Option<String>>>,
}

impl std::fmt::Debug for LetterFerry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LetterFerry").field("every", &self.every).finish_non_exhaustive()
    }
}

/// Letters carried at once: they have their payloads with them.
const PAGE: usize = 16;
/// A ferry that is well beats at least this often.
const BEAT: Duration = Duration::from_secs(10);

/// How a letter here compares with the one of the same id there.
#[derive(Debug)]
enum There {
    /// None is there.
    Nothing,
    /// The same or a later one is there.
    Already,
    /// An earlier one is there, and at rest.
    Older(Box<DeadLetter>),
    /// One is there that is being worked on.
    Busy,
}

impl LetterFerry {
    /// A ferry from the store of the work to the store of the letters.
    #[must_use]
    pub fn new(work: Arc<dyn Store>, letters: Arc<dyn Store>) -> Self {
        Self { work, letters, every: Span::from_secs(1), trouble: Arc::default() }
    }

    /// How often it looks when there was nothing to carry; a second when not said.
    #[must_use]
    pub fn every(mut self, span: Span) -> Self {
        self.every = span;
        self
    }

    fn actor(reason: &str) -> Actor {
        Actor { reason: Some(reason.into()), ..Actor::new("letter ferry", "library") }
    }

    /// Carries everything that is there to carry, once.
    ///
    /// # Errors
    /// The error of whichever store cannot be asked; the letters stay where they are.
    pub async fn pass(&self) -> Result<Ferried, Error> {
        let done = self.carry_all().await;
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        *trouble = match &done {
            Err(error) => Some(format!("dead letters wait to be moved to their store: {error}")),
            Ok(Ferried { kept, .. }) if *kept > 0 => {
                Some(format!("{kept} dead letters cannot be moved to their store yet"))
            }
            Ok(_) => None,
        };
        done
    }

    async fn carry_all(&self) -> Result<Ferried, Error> {
        let text = "status:pending,review,quarantined,resolved,abandoned";
        let filter = Filter::parse(text).map_err(|e| Refusal::invalid("filter", e.to_string()))?;
        let mut query = Query { filter, page: PageRequest::first(PAGE) };
        let mut ferried = Ferried::default();
        loop {
            let now = ask(self.work.info()).await?.now;
            let page = ask(self.work.letters(query.clone())).await?;
            let seen = page.items.len() as u64;
            let filed = self.file(page.items, now).await?;
            let moved = self.remove(filed).await?;
            ferried.moved += moved;
            ferried.kept += seen - moved;
            let Some(next) = page.next else { return Ok(ferried) };
            query.page.cursor = Some(next);
        }
    }

    /// The first half: files letters there, and says which may go here.
    async fn file(&self, letters: Vec<DeadLetter>, now: Time) -> Result<Vec<HandOver>, Error> {
        let mut filed = Vec::new();
        for letter in letters {
            let letter = match ask(self.work.with_lineage(letter)).await {
                Ok(letter) => letter,
                // It went meanwhile.
                Err(Error::Refused(_)) => continue,
                Err(error) => return Err(error),
            };
            let (id, version) = (letter.id(), letter.file.version);
            if letter.file.may_leave(id, version, now).is_ok() && self.file_one(letter).await? {
                filed.push(HandOver { id, version });
            }
        }
        Ok(filed)
    }

    async fn file_one(&self, mut letter: DeadLetter) -> Result<bool, Error> {
        let id = letter.id();
        match self.there(&letter).await? {
            There::Already => return Ok(true),
            There::Busy => return Ok(false),
            There::Nothing => {}
            There::Older(older) => {
                letter.file.take_over_history(&older.file);
                letter.file.notes = merged(&older.file.notes, &letter.file.notes);
                letter.file.version = older.file.version.max(letter.file.version) + 1;
                let version = older.file.version;
                let actor =
                    Self::actor("the same message died again; its later letter has the whole history");
                let gone = ask(self.letters.hand_over(vec![HandOver { id, version }], actor)).await?;
                if !gone.iter().all(Result::is_ok) {
                    return Ok(false);
                }
            }
        }
        // Whoever waits for a reply waits at the store of the work: it is sent there when the letter leaves.
        letter.file.owes_reply = false;
        let actor = Self::actor("moved from the store of the work");
        let filed = ask(self.letters.import(vec![letter], actor)).await?.pop();
        match filed {
            Some(Ok(_)) => Ok(true),
            Some(Err(refusal)) => {
                tracing::warn!(message = %id, %refusal, "a dead letter cannot be filed in the other store");
                Ok(false)
            }
            None => Ok(false),
        }
    }

    async fn there(&self, here: &DeadLetter) -> Result<There, Error> {
        let there = match ask(self.letters.letter(here.id())).await {
            Ok(there) => there,
            Err(Error::Refused(Refusal::NoSuchLetter { .. })) => return Ok(There::Nothing),
            Err(error) => return Err(error),
        };
        Ok(if standing(&there) >= standing(here) {
            There::Already
        } else if there.file.status == Status::Retrying {
            There::Busy
        } else {
            There::Older(Box::new(there))
        })
    }

    /// The second half: removes here what is there.
    async fn remove(&self, filed: Vec<HandOver>) -> Result<u64, Error> {
        if filed.is_empty() {
            return Ok(0);
        }
        let actor = Self::actor("moved to the store of the letters");
        let results = ask(self.work.hand_over(filed, actor)).await?;
        // One that changed since it was filed is carried again, as it is then.
        Ok(results.iter().filter(|result| result.is_ok()).count() as u64)
    }
}

/// Which of two letters of one message tells more: the later generation, the later death, the later change.
fn standing(letter: &DeadLetter) -> (u32, Time, u64) {
    (letter.message.generation, letter.file.dead_at, letter.file.version)
}

/// Both lists of notes in the order of time, none twice.
fn merged(one: &[Note], other: &[Note]) -> Vec<Note> {
    let mut all: Vec<Note> = one.to_vec();
    all.extend(other.iter().filter(|note| !one.contains(note)).cloned());
    all.sort_by_key(|note| note.at);
    let over = all.len().saturating_sub(limits::NOTES_MAX);
    all.split_off(over)
}

#[async_trait]
impl Runnable for LetterFerry {
    fn name(&self) -> String {
        "letter ferry".into()
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), Error> {
        let mut idle = Pace::new(self.every.to_std(), self.every.to_std().max(Duration::from_secs(5)));
        let mut down = Pace::new(Duration::from_millis(500), Duration::from_secs(30));
        while !stop.is_cancelled() {
            heartbeat.beat();
            let wait = match self.pass().await {
                Ok(Ferried { moved: 0, .. }) => idle.wait(),
                Ok(_) => {
                    idle.reset();
                    down.reset();
                    self.every.to_std()
                }
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "dead letters could not be moved; trying again");
                    down.wait()
                }
            };
            if crate::pace::pause(&stop, wait.min(BEAT)).await {
                break;
            }
        }
        Ok(())
    }

    fn degraded(&self) -> Vec<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// What a replay from one store to the other did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Returned {
    /// Sent back to work, and closed where they lay.
    pub replayed: u64,
    /// Under way already, from an earlier replay that was interrupted; closed where they lay.
    pub under_way: u64,
    /// Left as they are, and why.
    pub refused: Vec<(MessageId, String)>,
}

/// Sends letters from the store of the letters back to work: files each in the work's store, redrives it there,
/// then closes it where it lay. Harmless to repeat, also after a crash in between.
///
/// # Errors
/// The error of whichever store cannot be asked; calling again goes on where it stopped.
pub async fn replay_between(
    letters: &Arc<dyn Store>,
    work: &Arc<dyn Store>,
    ids: impl IntoIterator<Item = MessageId>,
    actor: Actor,
) -> Result<Returned, Error> {
    let mut returned = Returned::default();
    for id in ids.into_iter().collect::<BTreeSet<_>>() {
        match return_one(letters.as_ref(), work.as_ref(), id, &actor).await? {
            Ok(true) => returned.replayed += 1,
            Ok(false) => returned.under_way += 1,
            Err(refusal) => returned.refused.push((id, refusal.to_string())),
        }
    }
    Ok(returned)
}

/// A ferry may take the letter away between its filing and its redrive; then it is filed again.
const FILINGS: u32 = 5;

/// Says whether it was sent back now, or was under way.
async fn return_one(
    letters: &dyn Store,
    work: &dyn Store,
    id: MessageId,
    actor: &Actor,
) -> Result<Result<bool, Refusal>, Error> {
    let found = match ask(letters.letter(id)).await {
        Ok(letter) => ask(letters.with_lineage(letter)).await,
        Err(error) => Err(error),
    };
    let letter = match found {
        Ok(letter) => letter,
        Err(Error::Refused(refusal)) => return Ok(Err(refusal)),
        Err(error) => return Err(error),
    };
    if letter.file.erased.is_some() {
        return Ok(Err(Refusal::Erased { id, act: Move::Retry.name().into() }));
    }
    if let Err(refusal) = next_status(id, letter.file.status, Move::Retry) {
        return Ok(Err(refusal));
    }
    for _ in 0..FILINGS {
        let sent = match redrive_in(work, &letter, actor).await {
            Ok(sent) => sent,
            // Of this letter alone: its queue is full, it came back too often, its key is in use.
            Err(Error::Refused(refusal)) => return Ok(Err(refusal)),
            Err(error) => return Err(error),
        };
        if let Some(now) = sent {
            let reason = Some("sent back to the store of the work".to_owned());
            let closing = Actor { reason, ..actor.clone() };
            let expected_version = Some(letter.file.version);
            let request = ActRequest { id, act: Act::Resolve, actor: closing, expected_version };
            let closed = ask(letters.act(vec![request])).await?;
            if let Some(Err(refusal)) = closed.into_iter().next() {
                tracing::warn!(message = %id, %refusal, "a letter that was sent back could not be closed");
            }
            return Ok(Ok(now));
        }
    }
    let why = "the store of the work does not keep it; is a ferry between other stores running there?";
    Ok(Err(Refusal::invalid("letter", why)))
}

/// Whether a letter waits for a decision.
fn at_rest(letter: &DeadLetter) -> bool {
    letter.file.status != Status::Retrying && !letter.file.status.is_closed()
}

/// Files the letter and redrives it. Says whether that was done now or had been done before; nothing when the
/// letter was taken away in between.
async fn redrive_in(work: &dyn Store, letter: &DeadLetter, actor: &Actor) -> Result<Option<bool>, Error> {
    let id = letter.id();
    match ask(work.import(vec![letter.clone()], actor.clone())).await?.pop() {
        Some(Ok(_)) | None => {}
        Some(Err(Refusal::IdConflict { .. })) => match ask(work.letter(id)).await {
            // Left there by a replay that was interrupted, and edited since: what is sent back is the letter as it is.
            Ok(known) if at_rest(&known) && known.file.edits.len() < letter.file.edits.len() => {
                let stale = HandOver { id, version: known.file.version };
                ask(work.hand_over(vec![stale], actor.clone())).await?;
                return Ok(None);
            }
            // Left there by a replay that was interrupted, or died there since.
            Ok(known) if at_rest(&known) => {}
            Ok(_) | Err(Error::Refused(Refusal::NoSuchLetter { .. })) => return Ok(Some(false)),
            Err(error) => return Err(error),
        },
        Some(Err(refusal)) => return Err(refusal.into()),
    }
    let request = ActRequest { id, act: Act::retry(), actor: actor.clone(), expected_version: None };
    match ask(work.act(vec![request])).await?.pop() {
        Some(Ok(_)) | None => Ok(Some(true)),
        Some(Err(Refusal::NoSuchLetter { .. })) => Ok(None),
        Some(Err(Refusal::WrongStatus { status: Status::Retrying, .. })) => Ok(Some(false)),
        Some(Err(refusal)) => Err(refusal.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::failure::Report;
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
        let request = LeaseRequest { queues: vec![q()], max: 1, lease_for: None, worker: "w".into() };
        let token = store.lease(request).await.unwrap().pop().expect("work").token;
        store.settle(vec![Settlement { token, what }]).await.unwrap().pop().unwrap().unwrap();
    }

    async fn die(store: &dyn Store) {
        let failure = Box::new(Report::default().analyse());
        settle(store, Settle::Fail { failure, said: Some(Override::DeadLetter) }).await;
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

    fn pair() -> (Arc<dyn Store>, Arc<dyn Store>, LetterFerry) {
        let (work, letters) = (crate::memory(), crate::memory());
        let ferry = LetterFerry::new(Arc::clone(&work), Arc::clone(&letters));
        (work, letters, ferry)
    }

    async fn is_clean(store: &dyn Store) {
        let found = store.verify(Default::default()).await.unwrap();
        assert!(found.is_clean(), "{:?}", found.findings);
    }

    #[tokio::test]
    async fn a_letter_crosses_whole_and_once() {
        let (work, letters, ferry) = pair();
        let id = dead(&*work).await;
        let before = work.letter(id).await.unwrap();
        assert_eq!(ferry.pass().await.unwrap(), Ferried { moved: 1, kept: 0 });
        assert_eq!(ferry.pass().await.unwrap(), Ferried::default());
        let after = letters.letter(id).await.unwrap();
        let (mut was, mut is) = (before.message.clone(), after.message.clone());
        (was.envelope.seq, is.envelope.seq) = (0, 0);
        was.failures.iter_mut().chain(&mut is.failures).for_each(|f| f.leaf = before.file.leaf);
        assert_eq!(was, is, "the message and its failures");
        assert_eq!((after.file.dead_at, after.file.status), (before.file.dead_at, Status::Pending));
        assert!(work.letter(id).await.is_err());
        is_clean(&*work).await;
        is_clean(&*letters).await;
    }

    /// Fault: the process dies after the letter was filed there and before it was removed here.
    #[tokio::test]
    async fn a_crash_between_the_halves_is_harmless() {
        let (work, letters, ferry) = pair();
        let ids = [dead(&*work).await, dead(&*work).await];
        for _ in 0..2 {
            let page = work.letters(Query::default()).await.unwrap().items;
            let filed = ferry.file(page, work.info().await.unwrap().now).await.unwrap();
            assert_eq!(filed.len(), 2, "filed there, still here, however often");
        }
        act(&*letters, ids[0], Act::Note).await;
        assert_eq!(ferry.pass().await.unwrap(), Ferried { moved: 2, kept: 0 });
        let noted = letters.letter(ids[0]).await.unwrap().file;
        assert_eq!((noted.notes.len(), noted.version), (1, 2), "what was done there meanwhile stays");
        assert_eq!(letters.queue(q()).await.unwrap().counts.dead, 2);
        is_clean(&*letters).await;
    }

    #[tokio::test]
    async fn what_changed_here_after_it_was_filed_is_carried_again() {
        let (work, letters, ferry) = pair();
        let id = dead(&*work).await;
        let page = work.letters(Query::default()).await.unwrap().items;
        let filed = ferry.file(page, work.info().await.unwrap().now).await.unwrap();
        act(&*work, id, Act::Review).await;
        assert_eq!(ferry.remove(filed).await.unwrap(), 0, "it changed");
        assert_eq!(ferry.pass().await.unwrap(), Ferried { moved: 1, kept: 0 });
        assert_eq!(letters.letter(id).await.unwrap().file.status, Status::Review);
        is_clean(&*letters).await;
    }

    #[tokio::test]
    async fn a_second_death_replaces_the_first_with_all_that_was_said() {
        let (work, letters, ferry) = pair();
        let id = dead(&*work).await;
        ferry.pass().await.unwrap();
        act(&*letters, id, Act::Note).await;
        let back = replay_between(&letters, &work, [id, id], me()).await.unwrap();
        assert_eq!(back, Returned { replayed: 1, ..Returned::default() });
        assert_eq!(letters.letter(id).await.unwrap().file.status, Status::Resolved);
        let message = work.message(id).await.unwrap();
        assert_eq!((message.generation, message.envelope.reply_to), (2, Some("answers".parse().unwrap())));
        die(&*work).await;
        ferry.pass().await.unwrap();
        let letter = letters.letter(id).await.unwrap();
        assert_eq!((letter.message.generation, letter.message.failures.len()), (2, 2));
        assert_eq!((letter.file.status, letter.file.redrives), (Status::Pending, 1));
        assert!(letter.file.notes.iter().any(|note| note.text == "r"), "{:?}", letter.file.notes);
        is_clean(&*work).await;
        is_clean(&*letters).await;
    }

    #[tokio::test]
    async fn success_after_a_replay_is_known_there() {
        let (work, letters, ferry) = pair();
        let id = dead(&*work).await;
        ferry.pass().await.unwrap();
        replay_between(&letters, &work, [id], me()).await.unwrap();
        ferry.pass().await.unwrap();
        settle(&*work, Settle::Ack).await;
        ferry.pass().await.unwrap();
        let file = letters.letter(id).await.unwrap().file;
        assert_eq!((file.status, file.resolution.as_deref()), (Status::Resolved, Some("retried")));
    }

    /// Faults: the process dies after the filing, and after the redrive, of a replay.
    #[tokio::test]
    async fn an_interrupted_replay_goes_on() {
        let (work, letters, ferry) = pair();
        let id = dead(&*work).await;
        ferry.pass().await.unwrap();
        let letter = letters.letter(id).await.unwrap();
        work.import(vec![letter.clone()], me()).await.unwrap();
        let back = replay_between(&letters, &work, [id], me()).await.unwrap();
        assert_eq!(back.replayed, 1);

        let id = dead(&*letters).await;
        assert_eq!(redrive_in(&*work, &letters.letter(id).await.unwrap(), &me()).await.unwrap(), Some(true));
        let back = replay_between(&letters, &work, [id], me()).await.unwrap();
        assert_eq!(back, Returned { under_way: 1, ..Returned::default() });
        assert_eq!(letters.letter(id).await.unwrap().file.status, Status::Resolved);
        let unknown = crate::new_id();
        let back = replay_between(&letters, &work, [id, unknown], me()).await.unwrap();
        assert_eq!((back.replayed, back.under_way, back.refused.len()), (0, 0, 2));
        assert_eq!(work.queue(q()).await.unwrap().ready, 2);
    }
}
