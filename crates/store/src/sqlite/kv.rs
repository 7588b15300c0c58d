//! The small durable values: reading one, and a range of a namespace in the order of keys.

use super::reads::SqlTables;
use super::rows::int;
use crate::engine::tables::TableResult;
use redrive_core::store::{KvEntry, KvItem};
use std::ops::Bound;

/// One entry.
pub(super) fn entry(tables: &SqlTables, namespace: &str, key: &str) -> TableResult<Option<KvEntry>> {
    let sql = "SELECT value, version FROM kv WHERE namespace = ?1 AND key = ?2";
    tables.one(sql, &[&namespace, &key], |row| Ok(KvEntry { value: row.get(0)?, version: row.get(1)? }))
}

/// Entries of a namespace from or after a key. SQLite compares text by its bytes, as Rust does.
pub(super) fn range(
    tables: &SqlTables,
    namespace: &str,
    from: Bound<&str>,
    limit: usize,
) -> TableResult<Vec<KvItem>> {
    let (sql, key) = match from {
        Bound::Excluded(key) => (AFTER, key),
        Bound::Included(key) => (FROM, key),
        Bound::Unbounded => (FROM, ""),
    };
    tables.all(sql, &[&namespace, &key, &int(limit as u64)], |row| {
        Ok(KvItem { key: row.get(0)?, value: row.get(1)?, version: row.get(2)? })
    })
}

const FROM: &str =
    "SELECT key, value, version FROM kv WHERE namespace = ?1 AND key >= ?2 ORDER BY key LIMIT ?3";
const AFTER: &str =
    "SELECT key, value, version FROM kv WHERE namespace = ?1 AND key > ?2 ORDER BY key LIMIT ?3";
