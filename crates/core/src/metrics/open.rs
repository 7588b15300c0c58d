//! Counts dead letters that are not closed, by queue, kind and priority. A store updates the counters in the commit
//! that opens or closes a letter, so that nobody has to walk the letters.

use super::stats::OTHER;
use crate::ids::QueueName;
use crate::limits;
use crate::message::MessageMeta;
use crate::priority::Priority;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The key by which open letters are counted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OpenKey {
    /// The queue of the message.
    pub queue: QueueName,
    /// Its kind.
    pub kind: String,
    /// Its priority.
    pub priority: Priority,
}

impl From<&MessageMeta> for OpenKey {
    fn from(meta: &MessageMeta) -> Self {
        Self { queue: meta.queue.clone(), kind: meta.kind.clone(), priority: meta.priority }
    }
}

/// The number of open letters of one queue, kind and priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenLetters {
    /// The queue, kind and priority.
    #[serde(flatten)]
    pub key: OpenKey,
    /// The number of open letters.
    pub open: u64,
}

/// The counters of open letters in a store. Their number per queue is bounded: beyond [`limits::TALLIES_MAX`], new
/// kinds are counted as `other`. A counter that exists is kept, so that a letter leaves the counter it was added to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenCounts {
    rows: BTreeMap<OpenKey, i64>,
}

impl OpenCounts {
    /// The counters that were stored.
    pub fn new(rows: impl IntoIterator<Item = (OpenKey, i64)>) -> Self {
        Self { rows: rows.into_iter().collect() }
    }

    /// Counts letters that were opened, or closed if `by` is negative. Returns the key of their counter.
    pub fn add(&mut self, key: OpenKey, by: i64) -> OpenKey {
        let key = self.counter_of(key);
        *self.rows.entry(key.clone()).or_default() += by;
        key
    }

    fn counter_of(&self, key: OpenKey) -> OpenKey {
        if self.rows.contains_key(&key) {
            return key;
        }
        let first =
            OpenKey { queue: key.queue.clone(), kind: String::new(), priority: Priority::from_level(0) };
        let of_queue = self.rows.range(first..).take_while(|(other, _)| other.queue == key.queue);
        if of_queue.take(limits::TALLIES_MAX).count() < limits::TALLIES_MAX {
            return key;
        }
        OpenKey { kind: OTHER.to_owned(), ..key }
    }

    /// The value of a counter; 0 if it does not exist.
    #[must_use]
    pub fn get(&self, key: &OpenKey) -> i64 {
        self.rows.get(key).copied().unwrap_or(0)
    }

    /// Open letters by queue.
    #[must_use]
    pub fn by_queue(&self) -> BTreeMap<QueueName, i64> {
        let mut sums: BTreeMap<QueueName, i64> = BTreeMap::new();
        for (key, open) in &self.rows {
            *sums.entry(key.queue.clone()).or_default() += open;
        }
        sums
    }

    /// The public view of all counters that are not 0.
    #[must_use]
    pub fn list(&self) -> Vec<OpenLetters> {
        let shown = |(key, open): (&OpenKey, &i64)| {
            let open = u64::try_from(*open).ok().filter(|open| *open > 0)?;
            Some(OpenLetters { key: key.clone(), open })
        };
        self.rows.iter().filter_map(shown).collect()
    }

    /// The counters that differ from this recount: key, stored value and counted value.
    #[must_use]
    pub fn differences(&self, stored: &Self) -> Vec<(OpenKey, i64, i64)> {
        let mut counted: BTreeMap<OpenKey, i64> = BTreeMap::new();
        for (key, open) in &self.rows {
            *counted.entry(stored.counter_of(key.clone())).or_default() += open;
        }
        let keys: BTreeSet<OpenKey> = stored.rows.keys().chain(counted.keys()).cloned().collect();
        let both = keys.into_iter().map(|key| {
            let (stored, counted) = (stored.get(&key), counted.get(&key).copied().unwrap_or(0));
            (key, stored, counted)
        });
        both.filter(|(_, stored, counted)| stored != counted).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: &str) -> OpenKey {
        OpenKey { queue: "q".parse().unwrap(), kind: kind.into(), priority: Priority::Normal }
    }

    #[test]
    fn kinds_beyond_the_limit_share_a_counter_and_leave_the_one_they_were_added_to() {
        let mut counts = OpenCounts::default();
        let mut recount = OpenCounts::default();
        let kinds: Vec<String> = (0..limits::TALLIES_MAX + 50).map(|n| format!("kind {n:04}")).collect();
        for kind in &kinds {
            counts.add(key(kind), 1);
            recount.rows.insert(key(kind), 1);
        }
        assert_eq!(counts.rows.len(), limits::TALLIES_MAX + 1);
        assert_eq!(counts.get(&key(OTHER)), 50);
        assert_eq!(counts.list().iter().map(|counted| counted.open).sum::<u64>(), kinds.len() as u64);
        assert_eq!(recount.differences(&counts), []);
        // A kind whose letters are all closed keeps its counter, and a folded kind gets none of its own.
        for kind in &kinds {
            counts.add(key(kind), -1);
        }
        assert_eq!(counts.list(), []);
        assert_eq!(counts.by_queue()[&key("").queue], 0);
        assert!(counts.rows.values().all(|open| *open == 0));
    }

    #[test]
    fn a_recount_finds_every_wrong_counter() {
        let recount = OpenCounts::new([(key("a"), 2), (key("b"), 1)]);
        let stored = OpenCounts::new([(key("a"), 5), (key("c"), 1)]);
        assert_eq!(recount.differences(&stored), [(key("a"), 5, 2), (key("b"), 0, 1), (key("c"), 1, 0)]);
        assert_eq!(recount.differences(&recount), []);
    }
}
