//! Rows that the only writer keeps in memory. When the newer half is full, the older half is dropped.

use super::{Bytes, Table};
use std::collections::HashMap;

/// What an entry costs beside its key and row: the maps and the reference counts.
const ENTRY_BYTES: usize = 96;

/// A bounded cache in two halves. `None` means that there is no such row.
#[derive(Debug)]
pub(super) struct Cache {
    newer: HashMap<(Table, Box<[u8]>), Option<Bytes>>,
    older: HashMap<(Table, Box<[u8]>), Option<Bytes>>,
    newer_bytes: usize,
    bytes_max: usize,
}

impl Cache {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { newer: HashMap::new(), older: HashMap::new(), newer_bytes: 0, bytes_max }
    }

    pub(super) fn get(&mut self, table: Table, key: &[u8]) -> Option<Option<Bytes>> {
        let at = (table, Box::from(key));
        if let Some(row) = self.newer.get(&at) {
            return Some(row.clone());
        }
        let row = self.older.remove(&at)?;
        self.put(table, key, row.clone());
        Some(row)
    }

    pub(super) fn put(&mut self, table: Table, key: &[u8], row: Option<Bytes>) {
        if self.bytes_max == 0 {
            return;
        }
        self.newer_bytes += ENTRY_BYTES + key.len() + row.as_ref().map_or(0, |row| row.len());
        self.older.remove(&(table, Box::from(key)));
        self.newer.insert((table, key.into()), row);
        if self.newer_bytes > self.bytes_max / 2 {
            self.older = std::mem::take(&mut self.newer);
            self.newer_bytes = 0;
        }
    }

    pub(super) fn forget(&mut self, table: Table, key: &[u8]) {
        let at = (table, Box::from(key));
        self.newer.remove(&at);
        self.older.remove(&at);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.bytes_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: u8) -> Option<Bytes> {
        Some(vec![n; 100].into())
    }

    #[test]
    fn what_was_used_lately_stays_and_the_rest_goes() {
        let mut cache = Cache::new(2_000);
        for n in 0..100 {
            cache.put(Table::Live, &[n], row(n));
            assert_eq!(cache.get(Table::Live, &[0]), Some(row(0)), "it was asked for all the time");
        }
        assert_eq!(cache.get(Table::Live, &[99]), Some(row(99)));
        assert_eq!(cache.get(Table::Live, &[50]), None);
        assert!(cache.newer.len() + cache.older.len() < 20);
        cache.forget(Table::Live, &[99]);
        assert_eq!(cache.get(Table::Live, &[99]), None);
    }
}
