//! Checksums of rows: over every column, with its type, so that a flipped bit is reported and never served (I46).
//! Against accidents, not against people. Cheap enough for every write: one pass of xxh3 and no allocation.

use super::rows::{int, ms};
use super::tables::level;
use redrive_core::ids::QueueName;
use redrive_core::lifecycle::Life;
use redrive_core::message::Slip;
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Result as Sql, Row};
use xxhash_rust::xxh3::Xxh3;

/// A checksum in the making. Values are told apart by type and length, so that no two rows look alike.
struct Sum(Xxh3);

impl Sum {
    fn new() -> Self {
        Self(Xxh3::new())
    }

    fn add(&mut self, value: ValueRef<'_>) {
        match value {
            ValueRef::Null => self.tagged(0, 0),
            ValueRef::Integer(n) => self.tagged(1, n.cast_unsigned()),
            ValueRef::Real(n) => self.tagged(2, n.to_bits()),
            ValueRef::Text(bytes) => self.bytes(3, bytes),
            ValueRef::Blob(bytes) => self.bytes(4, bytes),
        }
    }

    fn tagged(&mut self, tag: u8, n: u64) {
        let [a, b, c, d, e, f, g, h] = n.to_le_bytes();
        self.0.update(&[tag, a, b, c, d, e, f, g, h]);
    }

    fn bytes(&mut self, tag: u8, bytes: &[u8]) {
        self.tagged(tag, bytes.len() as u64);
        self.0.update(bytes);
    }

    fn int(&mut self, n: impl Into<i64>) {
        self.add(ValueRef::Integer(n.into()));
    }

    fn text(&mut self, text: &str) {
        self.bytes(3, text.as_bytes());
    }

    fn maybe_int(&mut self, n: Option<i64>) {
        self.add(n.map_or(ValueRef::Null, ValueRef::Integer));
    }

    fn maybe_text(&mut self, text: Option<&str>) {
        self.add(text.map_or(ValueRef::Null, |text| ValueRef::Text(text.as_bytes())));
    }

    fn maybe_blob(&mut self, bytes: Option<&[u8]>) {
        self.add(bytes.map_or(ValueRef::Null, ValueRef::Blob));
    }

    fn finish(self) -> i64 {
        self.0.digest().cast_signed()
    }
}

/// The checksum of the first columns of a row that was read.
pub(super) fn of_row(row: &Row<'_>, columns: usize) -> Sql<i64> {
    let mut sum = Sum::new();
    for column in 0..columns {
        sum.add(row.get_ref(column)?);
    }
    Ok(sum.finish())
}

/// The checksum of a row that is about to be written.
pub(super) fn of_values(values: &[&dyn ToSql]) -> Sql<i64> {
    let mut sum = Sum::new();
    for value in values {
        match value.to_sql()? {
            ToSqlOutput::Borrowed(value) => sum.add(value),
            ToSqlOutput::Owned(value) => sum.add(ValueRef::from(&value)),
            _ => return Err(rusqlite::Error::ToSqlConversionFailure("a value without a checksum".into())),
        }
    }
    Ok(sum.finish())
}

/// The checksum of a live message, in the order in which [`super::rows::live`] reads its columns. Spelled out: it is
/// made on every enqueue and every lease.
pub(super) fn of_live(slip: &Slip, life: &Life, indicators: Option<&str>, progress: Option<&str>) -> i64 {
    let mut sum = Sum::new();
    sum.maybe_blob(Some(&slip.id.to_bytes()));
    sum.int(int(slip.seq));
    sum.text(slip.queue.as_str());
    sum.text(&slip.kind);
    sum.int(level(slip));
    sum.int(int(slip.size));
    sum.maybe_text(slip.key.as_deref());
    sum.maybe_text(slip.ordering_key.as_deref());
    sum.maybe_int(slip.terms.max_attempts.map(i64::from));
    sum.maybe_int(ms(slip.terms.expires_at));
    sum.maybe_int(ms(slip.terms.deadline));
    sum.maybe_text(slip.breaker.as_deref());
    sum.maybe_text(slip.reply_to.as_ref().map(QueueName::as_str));
    sum.maybe_text(slip.origin.as_ref().map(QueueName::as_str));
    sum.int(life.ready_at.as_millis());
    sum.int(life.attempts);
    sum.int(life.deliveries);
    sum.int(life.generation);
    sum.int(life.given_back);
    sum.int(life.failed);
    sum.maybe_int(ms(life.failing_since));
    sum.maybe_int(life.last_delay.map(|delay| int(delay.as_millis())));
    sum.maybe_int(ms(life.first_received_at));
    sum.int(life.updated_at.as_millis());
    sum.maybe_text(indicators);
    sum.maybe_text(progress);
    let lease = life.lease();
    let secret = lease.map(|lease| lease.secret.to_bytes());
    sum.int(i64::from(lease.is_some()));
    sum.maybe_blob(secret.as_ref().map(AsRef::as_ref));
    sum.maybe_text(lease.map(|lease| lease.worker.as_str()));
    sum.maybe_int(ms(lease.map(|lease| lease.granted_at)));
    sum.maybe_int(ms(lease.map(|lease| lease.expires_at)));
    sum.maybe_int(lease.and_then(|lease| lease.permit).map(int));
    sum.finish()
}

/// The checksum of a failure: its place, what it says and which stack it has.
pub(super) fn of_failure(seq: i64, n: i64, body: &str, stack: Option<&[u8]>) -> i64 {
    let mut sum = Sum::new();
    sum.int(seq);
    sum.int(n);
    sum.text(body);
    sum.maybe_blob(stack);
    sum.finish()
}

/// The checksum of a stack.
pub(super) fn of_stack(hash: &[u8], body: &str) -> i64 {
    let mut sum = Sum::new();
    sum.maybe_blob(Some(hash));
    sum.text(body);
    sum.finish()
}
