//! Sending dead letters back to work from code: some by id, all that match a filter, those a predicate picks,
//! or one of each key. Which letters are meant is fixed before the first one is touched, and each is acted on
//! only as it was then; so what dies again meanwhile is not swept in, and two who replay at once never run a
//! letter twice. Nothing is copied: it is the same message with its id, reply-to and history.

use crate::operate::operate_while;
use crate::pace::ask;
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter, Move, Status, next_status};
use redrive_core::error::Error;
use redrive_core::filter::Filter;
use redrive_core::ids::{MessageId, OperationId};
use redrive_core::operation::OperationSpec;
use redrive_core::query::{PageRequest, Query};
use redrive_core::store::{LetterState, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a replay did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Letters that were meant.
    pub matched: u64,
    /// Sent back to work.
    pub replayed: u64,
    /// Closed because another letter with the same key was sent back.
    pub resolved: u64,
    /// Not sent back: they changed meanwhile, are under way already, their key was taken or its work is done.
    pub skipped: u64,
    /// The operation that did it, where there was one; `redrive op show` knows it.
    pub operation: Option<OperationId>,
}

/// What becomes of the other letters with the key of one that is sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// They stay as they are.
    Leave,
    /// They are closed as dealt with.
    Resolve,
}

/// What operations begun here say they were begun through.
const SOURCE: &str = "library";

/// Letters acted on in one commit.
const PER_COMMIT: usize = 500;
/// Letters looked at in one go: they have their payloads with them.
const PAGE: usize = 100;

/// Sends these letters back, each once however often it is named. One that is under way already is skipped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::core::dead_letter::Actor;
/// use redrive::{Others, replay_distinct, replay_if, replay_where};
///
/// let store = redrive::memory();
/// let me = Actor::new("me", "library");
/// let done = replay_where(&store, "queue:payments error:timeout".parse()?, me.clone()).await?;
/// let fresh = replay_if(&store, "queue:payments".parse()?, me.clone(), |l| l.file.redrives == 0).await?;
/// let once = replay_distinct(&store, "queue:mail".parse()?, me, Others::Resolve, |l| {
///     l.message.envelope.key.clone()
/// })
/// .await?;
/// println!("{} {} {}", done.replayed, fresh.replayed, once.replayed);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The store's error when it cannot be asked; calling again is harmless.
pub async fn replay(
    store: &Arc<dyn Store>,
    ids: impl IntoIterator<Item = MessageId>,
    actor: Actor,
) -> Result<Replayed, Error> {
    let ids: BTreeSet<MessageId> = ids.into_iter().collect();
    let all: Vec<Pick> = ids.into_iter().map(|id| Pick { id, version: None }).collect();
    let (replayed, skipped) = act(store.as_ref(), &all, &Act::retry(), &actor).await?;
    Ok(Replayed { matched: all.len() as u64, replayed, skipped, ..Replayed::default() })
}

/// Sends back what matches, as one durable operation: its members are frozen first, it goes in chunks, and after
/// a crash [`resume`] (or the maintenance) ends it.
///
/// # Errors
/// The store's error when it cannot be asked. What was begun is found with `Letters::operations`.
pub async fn replay_where(store: &Arc<dyn Store>, filter: Filter, actor: Actor) -> Result<Replayed, Error> {
    let id = OperationId::new(redrive_store::new_id());
    let actor = Actor { source: SOURCE.into(), ..actor };
    let spec = OperationSpec::new(id, Act::retry(), filter, actor);
    ask(store.start(spec)).await?;
    carry_out(store.as_ref(), id).await
}

/// Goes on with an operation that was interrupted.
///
/// # Errors
/// The store's error when it cannot be asked; a refusal when there is no such operation.
pub async fn resume(store: &Arc<dyn Store>, id: OperationId) -> Result<Replayed, Error> {
    carry_out(store.as_ref(), id).await
}

/// Goes on until all are sent; what becomes of them is the workers' business.
async fn carry_out(store: &dyn Store, id: OperationId) -> Result<Replayed, Error> {
    let operation = operate_while(store, id, |operation| operation.stage.is_moving()).await?;
    let outcomes = &operation.outcomes;
    Ok(Replayed {
        matched: operation.members,
        replayed: outcomes.sent(),
        resolved: 0,
        skipped: outcomes.skipped + outcomes.conflict,
        operation: Some(operation.id),
    })
}

/// Sends back what matches the filter and the predicate.
///
/// # Errors
/// The store's error when it cannot be asked; calling again is harmless.
pub async fn replay_if(
    store: &Arc<dyn Store>,
    filter: Filter,
    actor: Actor,
    mut wanted: impl FnMut(&DeadLetter) -> bool + Send,
) -> Result<Replayed, Error> {
    let mut picks = Vec::new();
    walk(store.as_ref(), filter, |letter| {
        if can_go_back(letter) && wanted(letter) {
            picks.push(Pick::of(letter));
        }
    })
    .await?;
    let (replayed, skipped) = act(store.as_ref(), &picks, &Act::retry(), &actor).await?;
    Ok(Replayed { matched: picks.len() as u64, replayed, skipped, ..Replayed::default() })
}

/// Sends back one letter of each key: the one that died first. Letters without a key are their own. A key of
/// which a letter is under way already, whoever sent it, is skipped.
///
/// # Errors
/// The store's error when it cannot be asked; calling again is harmless.
pub async fn replay_distinct(
    store: &Arc<dyn Store>,
    filter: Filter,
    actor: Actor,
    others: Others,
    mut key: impl FnMut(&DeadLetter) -> Option<String> + Send,
) -> Result<Replayed, Error> {
    let mut by_key: BTreeMap<String, Vec<Pick>> = BTreeMap::new();
    let mut single = Vec::new();
    walk(store.as_ref(), filter, |letter| {
        if can_go_back(letter) {
            match key(letter) {
                Some(key) => by_key.entry(key).or_default().push(Pick::of(letter)),
                None => single.push(Pick::of(letter)),
            }
        }
    })
    .await?;
    // Looked at second, so that whoever replays at the same time is seen here, or has changed the very letter
    // that is chosen here too.
    let mut taken = BTreeSet::new();
    let under_way = Filter::parse("status:retrying").map_err(|e| Error::Refused(invalid(&e)))?;
    walk(store.as_ref(), under_way, |letter| taken.extend(key(letter))).await?;
    let matched = (single.len() + by_key.values().map(Vec::len).sum::<usize>()) as u64;
    by_key.retain(|key, _| !taken.contains(key));
    // Pages come latest death first: the last is the one that died first.
    let mut rest = Vec::new();
    for mut picks in by_key.into_values() {
        single.extend(picks.pop());
        rest.push((single.len() - 1, picks));
    }
    let outcomes = act_each(store.as_ref(), &single, &Act::retry(), &actor).await?;
    let replayed = outcomes.iter().filter(|went| **went).count() as u64;
    let mut resolved = 0;
    if others == Others::Resolve {
        let went = |at: usize| outcomes.get(at).copied().unwrap_or(false);
        let rest: Vec<Pick> =
            rest.into_iter().filter(|(at, _)| went(*at)).flat_map(|(_, picks)| picks).collect();
        let reason = Some("another letter with the same key was sent back".to_owned());
        let actor = Actor { reason, ..actor };
        (resolved, _) = act(store.as_ref(), &rest, &Act::Resolve, &actor).await?;
    }
    Ok(Replayed { matched, replayed, resolved, skipped: matched - replayed - resolved, operation: None })
}

fn invalid(error: &redrive_core::filter::FilterError) -> redrive_core::error::Refusal {
    redrive_core::error::Refusal::invalid("filter", error.to_string())
}

/// A letter as it was when it was chosen.
#[derive(Clone, Copy)]
struct Pick {
    id: MessageId,
    version: Option<u64>,
}

impl Pick {
    fn of(letter: &DeadLetter) -> Self {
        Self { id: letter.id(), version: Some(letter.file.version) }
    }
}

fn can_go_back(letter: &DeadLetter) -> bool {
    letter.file.status != Status::Retrying
        && next_status(letter.id(), letter.file.status, Move::Retry).is_ok()
}

/// Shows every letter that matches and had died when the walk began, latest death first.
async fn walk(
    store: &dyn Store,
    filter: Filter,
    mut see: impl FnMut(&DeadLetter) + Send,
) -> Result<(), Error> {
    let mut query = Query { filter, page: PageRequest::first(PAGE) };
    loop {
        let page = ask(store.letters(query.clone())).await?;
        page.items.iter().for_each(&mut see);
        let Some(next) = page.next else { return Ok(()) };
        query.page.cursor = Some(next);
    }
}

async fn act(store: &dyn Store, picks: &[Pick], act: &Act, actor: &Actor) -> Result<(u64, u64), Error> {
    let outcomes = act_each(store, picks, act, actor).await?;
    let done = outcomes.iter().filter(|went| **went).count() as u64;
    Ok((done, outcomes.len() as u64 - done))
}

/// Does it to each, and says for each whether it was done. A refusal of one does not hold up the others.
async fn act_each(store: &dyn Store, picks: &[Pick], act: &Act, actor: &Actor) -> Result<Vec<bool>, Error> {
    let mut outcomes = Vec::with_capacity(picks.len());
    for some in picks.chunks(PER_COMMIT) {
        let request = |pick: &Pick| ActRequest {
            id: pick.id,
            act: act.clone(),
            actor: actor.clone(),
            expected_version: pick.version,
        };
        let each = ask(store.act(some.iter().map(request).collect())).await?;
        // One whose work is done already is closed, not sent back.
        let sends = matches!(act, Act::Retry(_));
        let went = |state: &LetterState| !sends || state.status == Some(Status::Retrying);
        outcomes.extend(each.iter().map(|result| result.as_ref().is_ok_and(went)));
    }
    Ok(outcomes)
}
