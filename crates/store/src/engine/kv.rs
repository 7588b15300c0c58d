//! The small durable values: lists of them, and compare-and-set.

use super::Engine;
use super::tables::{Reads, Tables};
use redrive_core::changes::Area;
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::limits;
use redrive_core::query::{Cursor, Page, PageRequest};
use redrive_core::store::{KvEntry, KvItem};
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

impl<T: Tables> Engine<T> {
    /// Compare-and-set on a small durable value.
    pub(crate) fn kv_put(
        &mut self,
        namespace: &str,
        key: &str,
        value: Option<Vec<u8>>,
        expected: u64,
    ) -> StoreResult<u64> {
        let owner = match namespace {
            super::trim::NAMESPACE => Some("the audit trail"),
            super::requests::NAMESPACE | super::requests::BY_TIME => Some("the request keys"),
            _ => None,
        };
        if let Some(owner) = owner {
            let why = format!("{namespace:?} belongs to {owner}; use another");
            return Err(Refusal::invalid("namespace", why).into());
        }
        if namespace.len() + key.len() > limits::KEY_BYTES_MAX {
            return Err(Refusal::invalid("key", format!("at most {} bytes", limits::KEY_BYTES_MAX)).into());
        }
        if value.as_ref().is_some_and(|v| v.len() > limits::KV_BYTES_MAX) {
            return Err(Refusal::invalid("value", format!("at most {} bytes", limits::KV_BYTES_MAX)).into());
        }
        let current = self.tables.kv(namespace, key)?.map_or(0, |entry| entry.version);
        if current != expected {
            return Err(Refusal::KvConflict { namespace: namespace.into(), key: key.into() }.into());
        }
        let entry = value.map(|value| KvEntry { value, version: current + 1 });
        self.tables.put_kv(namespace, key, entry.as_ref())?;
        self.touched.areas.insert(Area::Kv(namespace.to_owned()));
        Ok(entry.map_or(0, |e| e.version))
    }
}
