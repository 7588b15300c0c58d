//! Reading ranges: rows of the database, as the group that is being applied sees them.

use super::{Base, Bytes, Staged, Table};
use crate::engine::tables::TableResult;
use std::collections::BTreeMap;
use std::ops::Bound;

/// A range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) from: Bound<Vec<u8>>,
    pub(crate) to: Bound<Vec<u8>>,
}

impl KeyRange {
    /// Every key.
    pub(super) const ALL: Self = Self { from: Bound::Unbounded, to: Bound::Unbounded };

    /// Keys that begin with these bytes.
    pub(crate) fn prefix(prefix: &[u8]) -> Self {
        let mut end = prefix.to_vec();
        while end.last() == Some(&u8::MAX) {
            end.pop();
        }
        let to = match end.last_mut() {
            Some(last) => {
                *last += 1;
                Bound::Excluded(end)
            }
            None => Bound::Unbounded,
        };
        Self { from: Bound::Included(prefix.to_vec()), to }
    }

    /// Keys after this one, or every key.
    pub(super) fn after(key: Option<Vec<u8>>) -> Self {
        Self { from: key.map_or(Bound::Unbounded, Bound::Excluded), to: Bound::Unbounded }
    }

    /// Keys before this one.
    pub(super) const fn before(key: Vec<u8>) -> Self {
        Self { from: Bound::Unbounded, to: Bound::Excluded(key) }
    }

    /// Whether no key can be in the range.
    fn is_empty(&self) -> bool {
        match (&self.from, &self.to) {
            (Bound::Included(from), Bound::Included(to)) => from > to,
            (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => {
                from >= to
            }
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        }
    }

    fn contains(&self, key: &[u8]) -> bool {
        let after = match &self.from {
            Bound::Included(from) => key >= from.as_slice(),
            Bound::Excluded(from) => key > from.as_slice(),
            Bound::Unbounded => true,
        };
        let before = match &self.to {
            Bound::Included(to) => key <= to.as_slice(),
            Bound::Excluded(to) => key < to.as_slice(),
            Bound::Unbounded => true,
        };
        after && before
    }
}

impl<B: Base> Staged<B> {
    /// Rows of a table in the order of their keys, or in reverse.
    pub(super) fn range(
        &self,
        table: Table,
        range: &KeyRange,
        reverse: bool,
        limit: usize,
    ) -> TableResult<Vec<(Vec<u8>, Bytes)>> {
        if range.is_empty() || limit == 0 {
            return Ok(Vec::new());
        }
        let of_table = (table, Vec::new())..;
        let changed: Vec<_> = self
            .changes
            .rows
            .range(of_table)
            .take_while(|((of, _), _)| *of == table)
            .filter(|((_, key), _)| range.contains(key))
            .collect();
        if changed.is_empty() && !self.changes.has_dropped(table) {
            let rows = self.base.range(table, range, reverse, limit)?;
            if table == Table::Member {
                // Members are read by range and then changed one by one.
                let mut cache = self.cache.borrow_mut();
                for (key, row) in &rows {
                    cache.put(table, key, Some(row.clone()));
                }
            }
            return Ok(rows);
        }
        // As many more as the group may have removed. What it added beyond the last of them is cut off again, unless
        // there are no more rows in the database.
        let wanted = limit.saturating_add(changed.len());
        let mut merged: BTreeMap<Vec<u8>, Bytes> = BTreeMap::new();
        let mut rest = range.clone();
        loop {
            let found = self.base.range(table, &rest, reverse, wanted)?;
            let all = found.len() < wanted;
            let last = found.last().map(|(key, _)| key.clone());
            merged.extend(found.into_iter().filter(|(key, _)| !self.changes.is_dropped(table, key)));
            if all || merged.len() >= wanted {
                break;
            }
            match (last, reverse) {
                (Some(last), true) => rest.to = Bound::Excluded(last),
                (Some(last), false) => rest.from = Bound::Excluded(last),
                (None, _) => break,
            }
        }
        for ((_, key), change) in changed {
            match &change.row {
                Some(row) => merged.insert(key.clone(), row.clone()),
                None => merged.remove(key),
            };
        }
        let rows = merged.into_iter();
        Ok(if reverse { rows.rev().take(limit).collect() } else { rows.take(limit).collect() })
    }
}
