//! Conversion between rows and records: the only place that knows the columns. What cannot be read correctly is
//! reported as damage and never replaced by a default (I46).

use super::checksums;
use crate::engine::tables::damaged;
use crate::engine::tables::{Letter, Live, TableResult};
use redrive_core::failure::Failure;
use redrive_core::ids::{LeafId, MessageId, QueueName, Secret};
use redrive_core::lifecycle::{Lease, Lifecycle, Phase};
use redrive_core::message::{MessageLimits, MessageMeta, Priority};
use redrive_core::poison::Indicators;
use redrive_core::progress::Progress;
use redrive_core::time::{Span, Time};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Result as Sql, Row};

/// The columns of a message's metadata, in the order in which [`meta`] reads them.
pub(super) const META: &str = "id, seq, queue, kind, priority, size, key, ordering_key, max_attempts, ttl_ends_at, deadline, breaker, reply_to, origin";
/// The columns of a lifecycle without its lease, in the order in which [`lifecycle`] reads them.
pub(super) const LIFECYCLE: &str = "ready_at, attempts, deliveries, generation, given_back, failed, failing_since, \
     last_delay, first_received_at, updated_at, indicators, progress";

/// The number of columns in [`META`].
const META_COLUMNS: usize = 14;
/// The number of columns in [`LIFECYCLE`].
const LIFECYCLE_COLUMNS: usize = 12;

/// The columns of a lease, in the order in which [`live`] reads them.
pub(super) const LEASE: &str = "phase, secret, worker, granted_at, lease_expires_at, permit";
/// The columns of a letter that repeat values of its record, for SQL to search by.
pub(super) const SEARCH_COLUMNS: &str = "dlq, status, reason, route, category, severity, leaf, redrives, dead_at, last_failed_at, \
     expires_at, quarantined_until, holds_key, available_at, consumer_until, version, snoozed_until, owner, held, owes_reply";
/// The columns that [`failure`] reads of a failure and its stack.
pub(super) const FAILURE: &str = "f.seq, f.n, f.body, f.stack, f.checksum, s.body, s.checksum \
     FROM failures f LEFT JOIN stacks s ON s.hash = f.stack";

/// How many columns of a live message its checksum covers. The checksum follows them.
pub(super) const LIVE_CHECKSUMMED: usize = META_COLUMNS + LIFECYCLE_COLUMNS + 6;
/// How many columns of a letter its checksum covers. The checksum follows them.
pub(super) const LETTER_CHECKSUMMED: usize = META_COLUMNS + LIFECYCLE_COLUMNS + 3 + 20;
/// How many columns [`letter`] reads.
pub(super) const LETTER_COLUMNS: usize = LETTER_CHECKSUMMED + 1;

/// A value of the core as stored by SQLite.
pub(super) struct Cell<T>(pub(super) T);

impl FromSql for Cell<MessageId> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let bytes: [u8; 16] = value.as_blob()?.try_into().map_err(|_| FromSqlError::InvalidType)?;
        Ok(Self(MessageId::from_bytes(bytes)))
    }
}

impl FromSql for Cell<Secret> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let bytes: [u8; 16] = value.as_blob()?.try_into().map_err(|_| FromSqlError::InvalidType)?;
        Ok(Self(Secret::new(bytes)))
    }
}

impl FromSql for Cell<Time> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Self(Time::from_millis(value.as_i64()?)))
    }
}

impl FromSql for Cell<Span> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Self(Span::from_millis(u64::column_result(value)?)))
    }
}

impl FromSql for Cell<QueueName> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_str()?.parse().map(Self).map_err(|_| FromSqlError::InvalidType)
    }
}

impl FromSql for Cell<LeafId> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Ok(Self(LeafId::new(value.as_i64()?.cast_unsigned())))
    }
}

impl FromSql for Cell<Indicators> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        serde_json::from_str(value.as_str()?).map(Self).map_err(|_| FromSqlError::InvalidType)
    }
}

impl FromSql for Cell<Progress> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        serde_json::from_str(value.as_str()?).map(Self).map_err(|_| FromSqlError::InvalidType)
    }
}

/// The progress of a message, as stored.
pub(super) fn progress(lifecycle: &Lifecycle) -> TableResult<Option<String>> {
    lifecycle.progress.as_ref().map(text).transpose()
}

/// The indicators of a failing message, as stored. `None` for a message that has not failed.
pub(super) fn indicators(lifecycle: &Lifecycle) -> TableResult<Option<String>> {
    if lifecycle.indicators == Indicators::default() {
        Ok(None)
    } else {
        text(&lifecycle.indicators).map(Some)
    }
}

impl ToSql for Cell<MessageId> {
    fn to_sql(&self) -> Sql<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Owned(rusqlite::types::Value::Blob(self.0.to_bytes().to_vec())))
    }
}

impl ToSql for Cell<Time> {
    fn to_sql(&self) -> Sql<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::from(self.0.as_millis()))
    }
}

/// The milliseconds of an optional time.
pub(super) fn ms(time: Option<Time>) -> Option<i64> {
    time.map(Time::as_millis)
}

/// An unsigned number as stored by SQLite. No number here comes near the sign bit.
pub(super) fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A leaf id as stored by SQLite: the same 64 bits.
pub(super) fn leaf(id: LeafId) -> i64 {
    id.get().cast_signed()
}

fn time(row: &Row<'_>, column: usize) -> Sql<Option<Time>> {
    Ok(row.get::<_, Option<Cell<Time>>>(column)?.map(|cell| cell.0))
}

/// Reads metadata whose columns begin at `at`.
pub(super) fn meta(row: &Row<'_>, at: usize) -> Sql<MessageMeta> {
    Ok(MessageMeta {
        id: row.get::<_, Cell<MessageId>>(at)?.0,
        seq: row.get(at + 1)?,
        queue: row.get::<_, Cell<QueueName>>(at + 2)?.0,
        kind: row.get(at + 3)?,
        priority: Priority::from_level(row.get(at + 4)?),
        size: row.get(at + 5)?,
        key: row.get(at + 6)?,
        ordering_key: row.get(at + 7)?,
        limits: MessageLimits {
            max_attempts: row.get(at + 8)?,
            expires_at: time(row, at + 9)?,
            deadline: time(row, at + 10)?,
        },
        breaker: row.get(at + 11)?,
        reply_to: row.get::<_, Option<Cell<QueueName>>>(at + 12)?.map(|cell| cell.0),
        origin: row.get::<_, Option<Cell<QueueName>>>(at + 13)?.map(|cell| cell.0),
    })
}

/// Reads a lifecycle whose columns begin at `at`; the phase is given.
fn lifecycle(row: &Row<'_>, at: usize, phase: Phase) -> Sql<Lifecycle> {
    Ok(Lifecycle {
        phase,
        ready_at: row.get::<_, Cell<Time>>(at)?.0,
        attempts: row.get(at + 1)?,
        deliveries: row.get(at + 2)?,
        generation: row.get(at + 3)?,
        given_back: row.get(at + 4)?,
        failed: row.get(at + 5)?,
        failing_since: time(row, at + 6)?,
        last_delay: row.get::<_, Option<Cell<Span>>>(at + 7)?.map(|cell| cell.0),
        first_received_at: time(row, at + 8)?,
        updated_at: row.get::<_, Cell<Time>>(at + 9)?.0,
        indicators: row.get::<_, Option<Cell<Indicators>>>(at + 10)?.map(|cell| cell.0).unwrap_or_default(),
        progress: row.get::<_, Option<Cell<Progress>>>(at + 11)?.map(|cell| cell.0),
    })
}

/// Reads a row if its checksum, which follows the first `columns` columns, matches.
fn verified<T>(row: &Row<'_>, columns: usize, read: impl FnOnce() -> Sql<T>) -> Result<T, &'static str> {
    let matches =
        |sum: Sql<i64>| sum.is_ok_and(|sum| row.get::<_, i64>(columns).is_ok_and(|stored| stored == sum));
    if !matches(checksums::of_row(row, columns)) {
        return Err("is not what was written");
    }
    read().map_err(|_| "cannot be read")
}

/// Reads a live message (metadata, lifecycle, lease, checksum), or reports that its row is damaged.
pub(super) fn live(row: &Row<'_>) -> Sql<(MessageId, TableResult<Live>)> {
    let id = row.get::<_, Cell<MessageId>>(0)?.0;
    let live = verified(row, LIVE_CHECKSUMMED, || read_live(row));
    Ok((id, live.map_err(|why| damaged(format!("the record of message {id} {why}")))))
}

fn read_live(row: &Row<'_>) -> Sql<Live> {
    let lease_at = META_COLUMNS + LIFECYCLE_COLUMNS;
    let phase = if row.get::<_, i64>(lease_at)? == 0 {
        Phase::Waiting
    } else {
        Phase::Leased(Lease {
            secret: row.get::<_, Cell<Secret>>(lease_at + 1)?.0,
            worker: row.get(lease_at + 2)?,
            granted_at: row.get::<_, Cell<Time>>(lease_at + 3)?.0,
            expires_at: row.get::<_, Cell<Time>>(lease_at + 4)?.0,
            permit: row.get(lease_at + 5)?,
        })
    };
    Ok(Live { meta: meta(row, 0)?, lifecycle: lifecycle(row, META_COLUMNS, phase)? })
}

/// Reads a letter (metadata, lifecycle, death, record, secret,
/// search columns, checksum), or reports that its row is damaged.
pub(super) fn letter(row: &Row<'_>) -> Sql<(u64, TableResult<Letter>)> {
    let at = META_COLUMNS + LIFECYCLE_COLUMNS;
    let death: u64 = row.get(at)?;
    let named = || match row.get::<_, Cell<MessageId>>(0) {
        Ok(id) => format!("the record of dead letter {}", id.0),
        Err(_) => format!("the record of the dead letter of death {death}"),
    };
    let read = || {
        let secret = row.get::<_, Option<Cell<Secret>>>(at + 2)?.map(|cell| cell.0);
        Ok((meta(row, 0)?, lifecycle(row, META_COLUMNS, Phase::Dead)?, row.get::<_, String>(at + 1)?, secret))
    };
    let letter = match verified(row, LETTER_CHECKSUMMED, read) {
        Ok((meta, lifecycle, record, secret)) => {
            json(&record, &named()).map(|record| Letter { death, meta, lifecycle, record, secret })
        }
        Err(why) => Err(damaged(format!("{} {why}", named()))),
    };
    Ok((death, letter))
}

/// Whether a failure is what was written, whatever the state of its stack.
pub(super) fn failure_is_intact(row: &Row<'_>) -> Sql<bool> {
    let (body, hash) = (row.get_ref(2)?.as_str()?, row.get_ref(3)?.as_blob_or_null()?);
    Ok(checksums::of_failure(row.get(0)?, row.get(1)?, body, hash) == row.get::<_, i64>(4)?)
}

/// Reads a failure with its stack from the columns of [`FAILURE`]. `None` if either is damaged or the stack is missing.
pub(super) fn failure(row: &Row<'_>) -> Option<Failure> {
    if !failure_is_intact(row).unwrap_or(false) {
        return None;
    }
    let mut failure: Failure = serde_json::from_str(row.get_ref(2).ok()?.as_str().ok()?).ok()?;
    if let Some(hash) = row.get_ref(3).ok()?.as_blob_or_null().ok()? {
        let stack = row.get_ref(5).ok()?.as_str().ok()?;
        if checksums::of_stack(hash, stack) != row.get::<_, i64>(6).ok()? {
            return None;
        }
        failure.error.stack = Some(stack.to_owned());
    }
    Some(failure)
}

/// Parses JSON that the store has written.
pub(super) fn json<T: serde::de::DeserializeOwned>(text: &str, what: &str) -> TableResult<T> {
    serde_json::from_str(text).map_err(|e| damaged(format!("{what} cannot be read: {e}")))
}

/// Serializes a value to JSON for the store to read back.
pub(super) fn text<T: serde::Serialize>(value: &T) -> TableResult<String> {
    serde_json::to_string(value).map_err(|e| damaged(format!("a row cannot be written: {e}")))
}
