//! Who holds the store. The `holder` row is the truth: whoever raised its term last may write, and every commit checks
//! term, nonce and the number of the last commit. The advisory lock only makes a takeover quick: it is free as soon as
//! the holder's session has ended.

use super::connect::Session;
use super::errors::from_postgres;
use crate::engine::tables::{TableResult, damaged};
use redrive_core::error::{StoreError, StoreErrorKind};
use tokio_postgres::Row;
use uuid::Uuid;

/// A holder that has not been seen for this long has lost the store.
pub(super) const SILENCE_MAX_SECS: i32 = 10;

/// The right to write, for as long as nobody raises the term.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub(super) term: i64,
    pub(super) nonce: Uuid,
    /// The number of the last commit.
    pub(super) commit: i64,
    /// The store's time at the last commit.
    pub(super) clock: i64,
    /// The database's time when the term was raised.
    pub(super) wall: i64,
    /// Whether this session has the advisory lock.
    pub(super) locked: bool,
}

/// Why the store cannot be taken now.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) term: i64,
    pub(super) node: String,
    pub(super) seen_ago_ms: i64,
}

/// The database's clock in milliseconds.
pub(super) const WALL: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// The key of the advisory lock: the first number is the same for all stores, the second depends on the schema.
const LOCK: &str = "1380209234, hashtext(current_schema())";

fn read(row: &Row, nonce: Uuid, locked: bool) -> Result<Term, tokio_postgres::Error> {
    Ok(Term {
        term: row.try_get(0)?,
        nonce,
        commit: row.try_get(1)?,
        clock: row.try_get(2)?,
        wall: row.try_get(3)?,
        locked,
    })
}

/// Takes the advisory lock if it is free.
fn try_lock(session: &Session) -> TableResult<bool> {
    session.run(async {
        let row = session.client().query_one(&format!("SELECT pg_try_advisory_lock({LOCK})"), &[]).await?;
        row.try_get(0)
    })
}

fn unlock(session: &Session) -> TableResult<()> {
    session.run(session.client().query_one(&format!("SELECT pg_advisory_unlock({LOCK})"), &[])).map(|_| ())
}

/// Takes the store if nobody holds it, if the holder's session has ended, or if the holder has been silent for too
/// long.
pub(super) fn acquire(session: &Session, node: &str, nonce: Uuid) -> TableResult<Result<Term, Held>> {
    let locked = try_lock(session)?;
    // That the lock is free says that the holder's session has ended only if the holder had it. A stopped process keeps
    // its session and its lock: silence alone is enough to lose the store.
    let sql = format!(
        "WITH held AS (UPDATE holder SET term = term + 1, nonce = $1, node = $2, pid = pg_backend_pid(), \
         seen_at = clock_timestamp(), since = clock_timestamp(), address = NULL, published = NULL, locked = $3 \
         WHERE ($3 AND (locked OR nonce IS NULL)) \
         OR seen_at < clock_timestamp() - make_interval(secs => {SILENCE_MAX_SECS}) \
         RETURNING term, commit, clock), \
         noted AS (INSERT INTO terms(term, last_commit, node) SELECT term, commit, $2 FROM held) \
         SELECT term, commit, clock, {WALL} FROM held"
    );
    let taken = session.run(async {
        let row = session.client().query_opt(&sql, &[&nonce, &node, &locked]).await?;
        row.as_ref().map(|row| read(row, nonce, locked)).transpose()
    })?;
    if let Some(term) = taken {
        return Ok(Ok(term));
    }
    if locked {
        unlock(session)?;
    }
    let sql = "SELECT term, coalesce(node, 'another node'), \
               (extract(epoch FROM clock_timestamp() - seen_at) * 1000)::bigint FROM holder";
    let held = session.run(async {
        let row = session.client().query_opt(sql, &[]).await?;
        let read = |row: Row| {
            Ok(Held { term: row.try_get(0)?, node: row.try_get(1)?, seen_ago_ms: row.try_get(2)? })
        };
        row.map(read).transpose()
    })?;
    held.map(Err).ok_or_else(|| damaged("the row that says who holds the store is missing"))
}

/// Says that the holder is alive. Returns the database's time, or `None` if another node holds the store now.
pub(super) fn heartbeat(session: &Session, term: &Term) -> TableResult<Option<i64>> {
    let sql = format!(
        "UPDATE holder SET seen_at = clock_timestamp() WHERE term = $1 AND nonce = $2 AND commit = $3 RETURNING {WALL}"
    );
    session.run(async {
        let statement = session.prepare(&sql).await?;
        let row = session.client().query_opt(&statement, &[&term.term, &term.nonce, &term.commit]).await?;
        row.map(|row| row.try_get(0)).transpose()
    })
}

/// What became of a commit whose answer was lost.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// This node still holds the store, under a new term; whether the commit happened.
    Known { term: Term, happened: bool },
    /// Another node holds the store; whether the commit had happened by then.
    LostStore { happened: bool, now: Held },
}

/// Finds out whether the commit after `before` happened, on a new session. Raising the term waits for a statement that
/// is still running, because both change the same row. If the answer to this is lost too, it is asked again with the same
/// nonce, by which a term that was raised is recognised.
pub(super) fn settle(session: &Session, before: &Term, node: &str, nonce: Uuid) -> TableResult<Outcome> {
    let sql = format!(
        "WITH held AS (UPDATE holder SET term = term + 1, nonce = $1, node = $2, pid = pg_backend_pid(), \
         seen_at = clock_timestamp(), locked = false WHERE (term = $3 AND nonce = $4) OR nonce = $1 \
         RETURNING term, commit, clock), \
         noted AS (INSERT INTO terms(term, last_commit, node) SELECT term, commit, $2 FROM held) \
         SELECT term, commit, clock, {WALL} FROM held"
    );
    let raised = session.run(async {
        let row = session.client().query_opt(&sql, &[&nonce, &node, &before.term, &before.nonce]).await?;
        row.as_ref().map(|row| read(row, nonce, false)).transpose()
    })?;
    if let Some(term) = raised {
        let happened = term.commit > before.commit;
        return Ok(Outcome::Known { term, happened });
    }
    let sql = "SELECT t.last_commit, h.term, coalesce(h.node, 'another node'), \
               (extract(epoch FROM clock_timestamp() - h.seen_at) * 1000)::bigint \
               FROM terms t, holder h WHERE t.term = $1::bigint + 1";
    let row = session.run(session.client().query_opt(sql, &[&before.term]))?;
    let unknown = || {
        let text = "another node took the store over, and what became of the last commit cannot be read; whether it took \
                    effect is not known: look, then ask again";
        StoreError::new(StoreErrorKind::Unreachable, text)
    };
    let row = row.ok_or_else(unknown)?;
    let lost = |error: tokio_postgres::Error| from_postgres(&error);
    let last: i64 = row.try_get(0).map_err(lost)?;
    let now = Held {
        term: row.try_get(1).map_err(lost)?,
        node: row.try_get(2).map_err(lost)?,
        seen_ago_ms: row.try_get(3).map_err(lost)?,
    };
    Ok(Outcome::LostStore { happened: last > before.commit, now })
}

/// Takes the lock for a holder that does not have it yet: the session that had it may end later than its connection.
pub(super) fn take_lock(session: &Session, term: &mut Term) -> TableResult<()> {
    if !term.locked && try_lock(session)? {
        let sql = "UPDATE holder SET locked = true WHERE term = $1 AND nonce = $2";
        session.run(session.client().execute(sql, &[&term.term, &term.nonce]))?;
        term.locked = true;
    }
    Ok(())
}

/// Gives the store up, so that the next node need not wait.
pub(super) fn release(session: &Session, term: &Term) -> TableResult<()> {
    let sql = "UPDATE holder SET nonce = NULL, pid = NULL, address = NULL, published = NULL WHERE term = $1 AND nonce = $2";
    session.run(session.client().execute(sql, &[&term.term, &term.nonce]))?;
    if term.locked { unlock(session) } else { Ok(()) }
}

/// Publishes how the holder is reached.
pub(super) fn publish(
    session: &Session,
    (term, nonce): (i64, Uuid),
    address: &str,
    published: &str,
) -> TableResult<()> {
    let sql = "UPDATE holder SET address = $1, published = $2 WHERE term = $3 AND nonce = $4";
    session.run(session.client().execute(sql, &[&address, &published, &term, &nonce])).map(|_| ())
}

/// The address under which the database sees this process. `None` if they talk without a network.
pub(super) fn seen_as(session: &Session) -> TableResult<Option<String>> {
    session.run(async {
        let row = session.client().query_one("SELECT host(inet_client_addr())", &[]).await?;
        row.try_get(0)
    })
}

/// The holder as others see it: its term, address and what it published. `None` if nobody can be reached.
pub(super) fn current(session: &Session) -> TableResult<Option<(i64, String, String)>> {
    let sql = "SELECT term, address, published FROM holder WHERE nonce IS NOT NULL AND address IS NOT NULL AND \
               published IS NOT NULL";
    session.run(async {
        let row = session.client().query_opt(sql, &[]).await?;
        row.map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))).transpose()
    })
}

/// The store's time as the holder's last commit and the database's clock tell it, in milliseconds.
pub(super) fn store_time(session: &Session) -> TableResult<i64> {
    let sql = "SELECT clock + greatest(0, (extract(epoch FROM clock_timestamp() - seen_at) * 1000)::bigint) FROM holder";
    session.run(async {
        let statement = session.prepare(sql).await?;
        session.client().query_one(&statement, &[]).await?.try_get(0)
    })
}
