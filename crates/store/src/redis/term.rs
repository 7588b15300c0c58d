//! Who holds the store. The `holder` hash is the truth: whoever raised its term last may write, and every commit checks
//! term, nonce and the number of the last commit.

use super::connect::{Session, function, list, number, text};
use crate::engine::tables::TableResult;
use redis::{Cmd, Value};
use redrive_core::error::{StoreError, StoreErrorKind};

/// A holder that has not been seen for this long has lost the store.
const SILENCE_MAX_MS: i64 = 10_000;

/// A random text that tells holders with the same term apart.
pub(super) type Nonce = [u8; 16];

/// The right to write, for as long as nobody raises the term.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub(super) term: i64,
    pub(super) nonce: Nonce,
    /// The number of the last commit.
    pub(super) commit: i64,
    /// The store's time at the last commit.
    pub(super) clock: i64,
    /// The server's time when the term was raised.
    pub(super) wall: i64,
}

/// Who holds the store instead.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) term: i64,
    pub(super) node: String,
    pub(super) seen_ago_ms: i64,
}

fn gone() -> StoreError {
    let text = "there is no Redrive store under this prefix any more; check that this is the right server and database";
    StoreError::new(StoreErrorKind::NotAStore, text)
}

fn raised(mut reply: impl Iterator<Item = Value>, nonce: Nonce) -> TableResult<Term> {
    let mut next = || number(reply.next().unwrap_or_default());
    Ok(Term { term: next()?, commit: next()?, clock: next()?, wall: next()?, nonce })
}

fn held(reply: &mut impl Iterator<Item = Value>) -> TableResult<Held> {
    let mut next = || reply.next().unwrap_or_default();
    Ok(Held { term: number(next())?, node: text(next())?, seen_ago_ms: number(next())? })
}

/// A call of one of the functions about the holder.
fn call(session: &Session, name: &str, terms: bool) -> Cmd {
    let mut command = redis::cmd("FCALL");
    command.arg(function(name)).arg(if terms { 2 } else { 1 }).arg(session.key("holder"));
    if terms {
        command.arg(session.key("terms"));
    }
    command
}

/// Adds what proves that the caller holds the store.
pub(super) fn prove(command: &mut Cmd, term: &Term) {
    command.arg(term.term).arg(&term.nonce[..]).arg(term.commit);
}

/// Takes the store if nobody holds it, or if the holder has been silent for too long.
pub(super) fn acquire(session: &Session, node: &str, nonce: Nonce) -> TableResult<Result<Term, Held>> {
    let mut command = call(session, "acquire", true);
    command.arg(&nonce[..]).arg(node).arg(SILENCE_MAX_MS);
    let mut reply = list(session.call(&command)?)?.into_iter();
    match number(reply.next().unwrap_or_default())? {
        1 => raised(reply, nonce).map(Ok),
        0 => held(&mut reply).map(Err),
        _ => Err(gone()),
    }
}

/// Says that the holder is alive. Returns the server's time, or `None` if another node holds the store now.
pub(super) fn heartbeat(session: &Session, term: &Term) -> TableResult<Option<i64>> {
    let mut command = call(session, "heartbeat", false);
    prove(&mut command, term);
    let mut reply = list(session.call(&command)?)?.into_iter();
    match number(reply.next().unwrap_or_default())? {
        1 => reply.next().map(number).transpose(),
        _ => Ok(None),
    }
}

/// What became of a commit whose answer was lost.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// This node still holds the store, under a new term; whether the commit happened.
    Known { term: Term, happened: bool },
    /// Another node holds the store; whether the commit had happened by then.
    LostStore { happened: bool, now: Held },
    /// The server has forgotten commits that were acknowledged.
    WentBack(StoreError),
}

fn went_back(before: &Term, (term, commit): (i64, Option<i64>)) -> Outcome {
    let commit = commit.map(|commit| format!(" and commit {commit}")).unwrap_or_default();
    let text = format!(
        "the store in Redis went back: this process had seen term {} and commit {}, and the server has term {term}{commit}; \
         what was acknowledged since then is lost there. Nothing more is acknowledged here: see how the server keeps its \
         data, then start again",
        before.term, before.commit
    );
    Outcome::WentBack(StoreError::new(StoreErrorKind::Stopped, text))
}

/// Finds out whether the commit after `before` happened, on a new session. `nonce` is the same for all tries.
pub(super) fn settle(session: &Session, before: &Term, node: &str, nonce: Nonce) -> TableResult<Outcome> {
    let mut command = call(session, "settle", true);
    command.arg(before.term).arg(&before.nonce[..]).arg(&nonce[..]).arg(node);
    let mut reply = list(session.call(&command)?)?.into_iter();
    match number(reply.next().unwrap_or_default())? {
        1 => {
            let term = raised(reply, nonce)?;
            if term.commit < before.commit {
                return Ok(went_back(before, (term.term, Some(term.commit))));
            }
            let happened = term.commit > before.commit;
            Ok(Outcome::Known { term, happened })
        }
        0 => {
            let now = held(&mut reply)?;
            if now.term < before.term {
                return Ok(went_back(before, (now.term, None)));
            }
            let unknown = || {
                let text = "another node took the store over, and what became of the last commit cannot be read; whether \
                            it took effect is not known: look, then ask again";
                StoreError::new(StoreErrorKind::Unreachable, text)
            };
            let last: i64 = text(reply.next().unwrap_or_default())?.parse().map_err(|_| unknown())?;
            if last < before.commit {
                return Ok(went_back(before, (now.term, Some(last))));
            }
            Ok(Outcome::LostStore { happened: last > before.commit, now })
        }
        _ => Ok(Outcome::WentBack(gone())),
    }
}

/// Gives the store up, so that the next node need not wait.
pub(super) fn release(session: &Session, term: &Term) -> TableResult<()> {
    let mut command = call(session, "release", false);
    prove(&mut command, term);
    session.call(&command).map(|_| ())
}
