//! Checksums of rows. They cover every column with its type, so that a flipped bit is
//! reported and never served (I46). They protect against accidents, not against people,
//! and are cheap enough for every write: one pass of xxh3 without an allocation.

use super::rows::{int, ms};
use super::tables::level;
use redrive_core::ids::QueueName;
use redrive_core::lifecycle::Lifecycle;
use redrive_core::message::MessageMeta;
use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Result as Sql, Row};
use xxhash_rust::xxh3::Xxh3;

/// Computes a checksum. Values are tagged with type and length, so that no two different rows look alike.
struct RowHasher(Xxh3);

impl RowHasher {
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
    let mut hasher = RowHasher::new();
    for column in 0..columns {
        hasher.add(row.get_ref(column)?);
    }
    Ok(hasher.finish())
}

/// The checksum of a row that is about to be written.
pub(super) fn of_values(values: &[&dyn ToSql]) -> Sql<i64> {
    let mut hasher = RowHasher::new();
    for value in values {
        match value.to_sql()? {
            ToSqlOutput::Borrowed(value) => hasher.add(value),
            ToSqlOutput::Owned(value) => hasher.add(ValueRef::from(&value)),
            _ => return Err(rusqlite::Error::ToSqlConversionFailure("a value without a checksum".into())),
        }
    }
    Ok(hasher.finish())
}

/// The checksum of a live message, in the order in which [`super::rows::live`] reads its columns. Written out by
/// hand, because it is computed on every enqueue and every lease.
pub(super) fn of_live(
    meta: &MessageMeta,
    lifecycle: &Lifecycle,
    indicators: Option<&str>,
    progress: Option<&str>,
) -> i64 {
    let mut hasher = RowHasher::new();
    hasher.maybe_blob(Some(&meta.id.to_bytes()));
    hasher.int(int(meta.seq));
    hasher.text(meta.queue.as_str());
    hasher.text(&meta.kind);
    hasher.int(level(meta));
    hasher.int(int(meta.size));
    hasher.maybe_text(meta.key.as_deref());
    hasher.maybe_text(meta.ordering_key.as_deref());
    hasher.maybe_int(meta.limits.max_attempts.map(i64::from));
    hasher.maybe_int(ms(meta.limits.expires_at));
    hasher.maybe_int(ms(meta.limits.deadline));
    hasher.maybe_text(meta.breaker.as_deref());
    hasher.maybe_text(meta.reply_to.as_ref().map(QueueName::as_str));
    hasher.maybe_text(meta.origin.as_ref().map(QueueName::as_str));
    hasher.int(lifecycle.ready_at.as_millis());
    hasher.int(lifecycle.attempts);
    hasher.int(lifecycle.deliveries);
    hasher.int(lifecycle.generation);
    hasher.int(lifecycle.given_back);
    hasher.int(lifecycle.failed);
    hasher.maybe_int(ms(lifecycle.failing_since));
    hasher.maybe_int(lifecycle.last_delay.map(|delay| int(delay.as_millis())));
    hasher.maybe_int(ms(lifecycle.first_received_at));
    hasher.int(lifecycle.updated_at.as_millis());
    hasher.maybe_text(indicators);
    hasher.maybe_text(progress);
    let lease = lifecycle.lease();
    let secret = lease.map(|lease| lease.secret.to_bytes());
    hasher.int(i64::from(lease.is_some()));
    hasher.maybe_blob(secret.as_ref().map(AsRef::as_ref));
    hasher.maybe_text(lease.map(|lease| lease.worker.as_str()));
    hasher.maybe_int(ms(lease.map(|lease| lease.granted_at)));
    hasher.maybe_int(ms(lease.map(|lease| lease.expires_at)));
    hasher.maybe_int(lease.and_then(|lease| lease.permit).map(int));
    hasher.finish()
}

/// The checksum of a failure: its position, its content and which stack it has.
pub(super) fn of_failure(seq: i64, n: i64, body: &str, stack: Option<&[u8]>) -> i64 {
    let mut hasher = RowHasher::new();
    hasher.int(seq);
    hasher.int(n);
    hasher.text(body);
    hasher.maybe_blob(stack);
    hasher.finish()
}

/// The checksum of a stack.
pub(super) fn of_stack(hash: &[u8], body: &str) -> i64 {
    let mut hasher = RowHasher::new();
    hasher.maybe_blob(Some(hash));
    hasher.text(body);
    hasher.finish()
}
