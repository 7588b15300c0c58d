//! The small durable values: lists of them, compare-and-set, and acts on record with the values that they change.

use super::Engine;
use super::tables::{Reads, TableResult, Tables};
use redrive_core::changes::Area;
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::limits;
use redrive_core::query::{Cursor, Page, PageRequest};
use redrive_core::recording::{KvWrite, RecordRequest};
use redrive_core::store::{BatchResults, KvEntry, KvItem};
use redrive_core::time::Time;
use std::ops::Bound;

/// Entries read at once, which bounds the memory for values that do not fit on the page.
const CHUNK: usize = 64;

/// The entries of a namespace whose keys begin with `prefix`.
pub(crate) fn list(
    tables: &dyn Reads,
    namespace: &str,
    prefix: &str,
    page: &PageRequest,
) -> StoreResult<Page<KvItem>> {
    let mut items: Vec<KvItem> = Vec::new();
    let (after, limit, mut bytes) = (page.key("k")?, page.limit(), 0);
    loop {
        let from = match (items.last(), after) {
            (Some(last), _) => Bound::Excluded(last.key.as_str()),
            // A position before the prefix would list keys without it.
            (None, Some(after)) if after >= prefix => Bound::Excluded(after),
            (None, _) => Bound::Included(prefix),
        };
        let chunk = tables.kv_range(namespace, from, CHUNK)?;
        let ended = chunk.len() < CHUNK;
        for item in chunk {
            if !item.key.starts_with(prefix) {
                return Ok(Page::last(items));
            }
            if items.len() >= limit || bytes >= limits::KV_PAGE_BYTES_MAX {
                let next = items.last().map(|last| Cursor::after_key("k", &last.key));
                return Ok(Page { items, next, damaged: Vec::new() });
            }
            bytes += item.value.len();
            items.push(item);
        }
        if ended {
            return Ok(Page::last(items));
        }
    }
}

/// Refuses a namespace that belongs to the store, and what is too long.
fn check(write: &KvWrite) -> Result<(), Refusal> {
    let KvWrite { namespace, key, value, .. } = write;
    let owner = match namespace.as_str() {
        super::trim::NAMESPACE => Some("the audit trail"),
        super::requests::NAMESPACE | super::requests::BY_TIME => Some("the request keys"),
        _ => None,
    };
    if let Some(owner) = owner {
        let why = format!("{namespace:?} belongs to {owner}; use another");
        return Err(Refusal::invalid("namespace", why));
    }
    if namespace.len() + key.len() > limits::KEY_BYTES_MAX {
        return Err(Refusal::invalid("key", format!("at most {} bytes", limits::KEY_BYTES_MAX)));
    }
    if value.as_ref().is_some_and(|v| v.len() > limits::KV_BYTES_MAX) {
        return Err(Refusal::invalid("value", format!("at most {} bytes", limits::KV_BYTES_MAX)));
    }
    Ok(())
}

impl<T: Tables> Engine<T> {
    /// Compare-and-set on a small durable value.
    pub(crate) fn kv_put(&mut self, write: KvWrite) -> StoreResult<u64> {
        self.check_version(&write)??;
        Ok(self.write_kv(write)?)
    }

    /// Records acts, each with the values that belong to it or not at all.
    pub(crate) fn record(&mut self, batch: Vec<RecordRequest>, now: Time) -> StoreResult<BatchResults<()>> {
        let mut results = Vec::with_capacity(batch.len());
        for mut request in batch {
            let checked = self.check_record(&request)?;
            if checked.is_ok() {
                for write in std::mem::take(&mut request.writes) {
                    self.write_kv(write)?;
                }
                self.append_audit(request.entry(now))?;
            }
            results.push(checked);
        }
        Ok(results)
    }

    /// Whether an act may be recorded: all of its values are as expected.
    fn check_record(&self, request: &RecordRequest) -> TableResult<Result<(), Refusal>> {
        if let Err(refusal) = request.check() {
            return Ok(Err(refusal));
        }
        for write in &request.writes {
            if let Err(refusal) = self.check_version(write)? {
                return Ok(Err(refusal));
            }
        }
        Ok(Ok(()))
    }

    /// Whether a value may be written: it is not too long, and the current one has the expected version.
    fn check_version(&self, write: &KvWrite) -> TableResult<Result<(), Refusal>> {
        if let Err(refusal) = check(write) {
            return Ok(Err(refusal));
        }
        let current = self.tables.kv(&write.namespace, &write.key)?.map_or(0, |entry| entry.version);
        if current == write.expected {
            return Ok(Ok(()));
        }
        let (namespace, key) = (write.namespace.clone(), write.key.clone());
        Ok(Err(Refusal::KvConflict { namespace, key }))
    }

    /// Writes a value that was checked. Returns its new version.
    fn write_kv(&mut self, write: KvWrite) -> TableResult<u64> {
        let entry = write.value.map(|value| KvEntry { value, version: write.expected + 1 });
        self.tables.put_kv(&write.namespace, &write.key, entry.as_ref())?;
        self.touched.areas.insert(Area::Kv(write.namespace));
        Ok(entry.map_or(0, |entry| entry.version))
    }
}
