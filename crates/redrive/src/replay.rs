//! Replays dead letters from code: by id, by filter, by predicate, or one of each key. The letters are selected before
//! the first one is changed, and each is changed only if it still has the version that was selected. So messages that
//! die again meanwhile are not included, and two replays at once never run a letter twice. Nothing is copied: the
//! message keeps its id, reply-to and history.

use crate::operate::operate_while;
use crate::waiting::with_timeout;
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter, Status, StatusChange, next_status};
use redrive_core::error::CallError;
use redrive_core::filter::Filter;
use redrive_core::ids::{MessageId, OperationId};
use redrive_core::operation::OperationSpec;
use redrive_core::query::{PageRequest, Query};
use redrive_core::store::{LetterState, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What a replay did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayReport {
    /// Letters that were selected.
    pub matched: u64,
    /// Letters that were redriven.
    pub replayed: u64,
    /// Letters that were resolved because another letter with the same key was redriven.
    pub resolved: u64,
    /// Letters that were not redriven: they changed meanwhile, are being retried already, or their key is in use or its
    /// work is done.
    pub skipped: u64,
    /// The operation that redrove them, if there was one. `redrive op show` shows it.
    pub operation: Option<OperationId>,
}

/// What to do with the other letters that have the same key as a redriven letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDuplicate {
    /// Leave them unchanged.
    Leave,
    /// Close them as resolved.
    Resolve,
}

/// The source of operations that are started here.
const SOURCE: &str = "library";

/// Letters changed in one commit.
const ACTS_PER_COMMIT: usize = 500;
/// Letters per page. Kept low because letters carry their payloads.
const PAGE: usize = 100;

/// Redrives these letters, each once even if it is named more often. A letter that is being retried already is skipped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::core::dead_letter::Actor;
/// use redrive::{OnDuplicate, replay_distinct, replay_if, replay_where};
///
/// let store = redrive::memory();
/// let me = Actor::new("me", "library");
/// let done = replay_where(&store, "queue:payments error:timeout".parse()?, me.clone()).await?;
/// let fresh = replay_if(&store, "queue:payments".parse()?, me.clone(), |l| l.record.redrives == 0).await?;
/// let once = replay_distinct(&store, "queue:mail".parse()?, me, OnDuplicate::Resolve, |l| {
///     l.message.envelope.key.clone()
/// })
/// .await?;
/// println!("{} {} {}", done.replayed, fresh.replayed, once.replayed);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Returns the error of the store. Calling again is harmless.
pub async fn replay(
    store: &Arc<dyn Store>,
    ids: impl IntoIterator<Item = MessageId>,
    actor: Actor,
) -> Result<ReplayReport, CallError> {
    let ids: BTreeSet<MessageId> = ids.into_iter().collect();
    let all: Vec<Pick> = ids.into_iter().map(|id| Pick { id, version: None }).collect();
    let (replayed, skipped) = act(store.as_ref(), &all, &Act::retry(), &actor).await?;
    Ok(ReplayReport { matched: all.len() as u64, replayed, skipped, ..ReplayReport::default() })
}

/// Redrives the letters that match, as one durable operation: its members are fixed first, and it proceeds in chunks.
/// After a crash, [`resume`] or maintenance finishes it.
///
/// # Errors
/// Returns the error of the store. An operation that was started is listed by `Letters::operations`.
pub async fn replay_where(
    store: &Arc<dyn Store>,
    filter: Filter,
    actor: Actor,
) -> Result<ReplayReport, CallError> {
    let id = OperationId::new(redrive_store::new_id());
    let actor = Actor { source: SOURCE.into(), ..actor };
    let spec = OperationSpec::new(id, Act::retry(), filter, actor);
    with_timeout(store.start(spec)).await?;
    drive(store.as_ref(), id).await
}

/// Continues an operation that was interrupted.
///
/// # Errors
/// Returns the error of the store, or a refusal if there is no such operation.
pub async fn resume(store: &Arc<dyn Store>, id: OperationId) -> Result<ReplayReport, CallError> {
    drive(store.as_ref(), id).await
}

/// Drives the operation until every member is sent. Does not wait for the workers that handle them.
async fn drive(store: &dyn Store, id: OperationId) -> Result<ReplayReport, CallError> {
    let operation = operate_while(store, id, |operation| operation.stage.is_moving()).await?;
    let outcomes = &operation.outcomes;
    Ok(ReplayReport {
        matched: operation.members,
        replayed: outcomes.sent(),
        resolved: 0,
        skipped: outcomes.skipped + outcomes.conflict,
        operation: Some(operation.id),
    })
}

/// Redrives the letters that match both the filter and the predicate.
///
/// # Errors
/// Returns the error of the store. Calling again is harmless.
pub async fn replay_if(
    store: &Arc<dyn Store>,
    filter: Filter,
    actor: Actor,
    mut wanted: impl FnMut(&DeadLetter) -> bool + Send,
) -> Result<ReplayReport, CallError> {
    let mut picks = Vec::new();
    walk(store.as_ref(), filter, |letter| {
        if can_be_redriven(letter) && wanted(letter) {
            picks.push(Pick::of(letter));
        }
    })
    .await?;
    let (replayed, skipped) = act(store.as_ref(), &picks, &Act::retry(), &actor).await?;
    Ok(ReplayReport { matched: picks.len() as u64, replayed, skipped, ..ReplayReport::default() })
}

/// Redrives one letter of each key: the one that died first. Letters without a key are all redriven. A key that has a
/// letter in retry already is skipped.
///
/// # Errors
/// Returns the error of the store. Calling again is harmless.
pub async fn replay_distinct(
    store: &Arc<dyn Store>,
    filter: Filter,
    actor: Actor,
    others: OnDuplicate,
    mut key: impl FnMut(&DeadLetter) -> Option<String> + Send,
) -> Result<ReplayReport, CallError> {
    let mut by_key: BTreeMap<String, Vec<Pick>> = BTreeMap::new();
    let mut single = Vec::new();
    walk(store.as_ref(), filter, |letter| {
        if can_be_redriven(letter) {
            match key(letter) {
                Some(key) => by_key.entry(key).or_default().push(Pick::of(letter)),
                None => single.push(Pick::of(letter)),
            }
        }
    })
    .await?;
    // Read the letters in retry second: then a concurrent replay either shows up here, or has changed the version of
    // the letter that was selected above.
    let mut taken = BTreeSet::new();
    let under_way = Filter::parse("status:retrying").map_err(|e| CallError::Refused(invalid(&e)))?;
    walk(store.as_ref(), under_way, |letter| taken.extend(key(letter))).await?;
    let matched = (single.len() + by_key.values().map(Vec::len).sum::<usize>()) as u64;
    by_key.retain(|key, _| !taken.contains(key));
    // Pages are sorted by latest death first, so the last letter of a key died first.
    let mut rest = Vec::new();
    for mut picks in by_key.into_values() {
        single.extend(picks.pop());
        rest.push((single.len() - 1, picks));
    }
    let outcomes = act_each(store.as_ref(), &single, &Act::retry(), &actor).await?;
    let replayed = outcomes.iter().filter(|done| **done).count() as u64;
    let mut resolved = 0;
    if others == OnDuplicate::Resolve {
        let done = |at: usize| outcomes.get(at).copied().unwrap_or(false);
        let rest: Vec<Pick> =
            rest.into_iter().filter(|(at, _)| done(*at)).flat_map(|(_, picks)| picks).collect();
        let reason = Some("another letter with the same key was sent back".to_owned());
        let actor = Actor { reason, ..actor };
        (resolved, _) = act(store.as_ref(), &rest, &Act::Resolve, &actor).await?;
    }
    Ok(ReplayReport { matched, replayed, resolved, skipped: matched - replayed - resolved, operation: None })
}

fn invalid(error: &redrive_core::filter::FilterError) -> redrive_core::error::Refusal {
    redrive_core::error::Refusal::invalid("filter", error.to_string())
}

/// A selected letter, with the version it had then.
#[derive(Clone, Copy)]
struct Pick {
    id: MessageId,
    version: Option<u64>,
}

impl Pick {
    fn of(letter: &DeadLetter) -> Self {
        Self { id: letter.id(), version: Some(letter.record.version) }
    }
}

fn can_be_redriven(letter: &DeadLetter) -> bool {
    letter.record.status != Status::Retrying
        && next_status(letter.id(), letter.record.status, StatusChange::Retry).is_ok()
}

/// Calls `visit` with every letter that matches and was dead when the walk started, latest death first.
async fn walk(
    store: &dyn Store,
    filter: Filter,
    mut visit: impl FnMut(&DeadLetter) + Send,
) -> Result<(), CallError> {
    let mut query = Query { filter, page: PageRequest::first(PAGE) };
    loop {
        let page = with_timeout(store.letters(query.clone())).await?;
        page.items.iter().for_each(&mut visit);
        let Some(next) = page.next else { return Ok(()) };
        query.page.cursor = Some(next);
    }
}

async fn act(store: &dyn Store, picks: &[Pick], act: &Act, actor: &Actor) -> Result<(u64, u64), CallError> {
    let outcomes = act_each(store, picks, act, actor).await?;
    let done = outcomes.iter().filter(|done| **done).count() as u64;
    Ok((done, outcomes.len() as u64 - done))
}

/// Applies an act to each letter, and returns for each whether it succeeded. A refusal does not affect the others.
async fn act_each(
    store: &dyn Store,
    picks: &[Pick],
    act: &Act,
    actor: &Actor,
) -> Result<Vec<bool>, CallError> {
    let mut outcomes = Vec::with_capacity(picks.len());
    for some in picks.chunks(ACTS_PER_COMMIT) {
        let request = |pick: &Pick| ActRequest {
            id: pick.id,
            act: act.clone(),
            actor: actor.clone(),
            expected_version: pick.version,
        };
        let each = with_timeout(store.act(some.iter().map(request).collect())).await?;
        // A letter whose work is done already is closed, not redriven.
        let sends = matches!(act, Act::Retry(_));
        let done = |state: &LetterState| !sends || state.status == Some(Status::Retrying);
        outcomes.extend(each.iter().map(|result| result.as_ref().is_ok_and(done)));
    }
    Ok(outcomes)
}
