//! Dead letters that are not closed, counted by queue, kind and priority. A store counts them in the commit that
//! opens or closes one, so that nobody has to walk the letters to know.

use super::stats::OTHER;
use crate::ids::QueueName;
use crate::limits;
use crate::message::Slip;
use crate::priority::Priority;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What open letters are counted by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OpenKey {
    /// The queue of the message.
    pub queue: QueueName,
    /// Its kind.
    pub kind: String,
    /// How urgent it is.
    pub priority: Priority,
}

impl From<&Slip> for OpenKey {
    fn from(slip: &Slip) -> Self {
        Self { queue: slip.queue.clone(), kind: slip.kind.clone(), priority: slip.priority }
    }
}

/// How many letters of one queue, kind and priority are open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenLetters {
    /// The queue, kind and priority.
    #[serde(flatten)]
    pub key: OpenKey,
    /// How many are open.
    pub open: u64,
}

/// The counters of a store. A queue has a bounded number of them: beyond [`limits::TALLIES_MAX`], new kinds are
/// counted as `other`. A counter that was once there stays, so that a letter leaves the counter it came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenCounts {
    rows: BTreeMap<OpenKey, i64>,
}

impl OpenCounts {
    /// The counters as they were stored.
    pub fn new(rows: impl IntoIterator<Item = (OpenKey, i64)>) -> Self {
        Self { rows: rows.into_iter().collect() }
    }

    /// Counts letters that were opened, or closed if `by` is negative, and gives the counter they belong to.
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

    /// What one counter shows; a counter that is not there shows zero.
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

    /// The counters as people see them: those that count at least one letter.
    #[must_use]
    pub fn list(&self) -> Vec<OpenLetters> {
        let shown = |(key, open): (&OpenKey, &i64)| {
            let open = u64::try_from(*open).ok().filter(|open| *open > 0)?;
            Some(OpenLetters { key: key.clone(), open })
        };
        self.rows.iter().filter_map(shown).collect()
    }

    /// Where stored counters differ from this recount: the counter, what it shows and what was counted.
    #[must_use]
    pub fn differences(&self, shown: &Self) -> Vec<(OpenKey, i64, i64)> {
        let mut counted: BTreeMap<OpenKey, i64> = BTreeMap::new();
        for (key, open) in &self.rows {
            *counted.entry(shown.counter_of(key.clone())).or_default() += open;
        }
        let keys: BTreeSet<OpenKey> = shown.rows.keys().chain(counted.keys()).cloned().collect();
        let both = keys.into_iter().map(|key| {
            let (says, counted) = (shown.get(&key), counted.get(&key).copied().unwrap_or(0));
            (key, says, counted)
        });
        both.filter(|(_, says, counted)| says != counted).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: &str) -> OpenKey {
        OpenKey { queue: "q".parse().unwrap(), kind: kind.into(), priority: Priority::Normal }
    }

    #[test]
    fn kinds_beyond_the_bound_are_counted_together_and_leave_the_counter_they_came_to() {
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
        // A kind whose letters are all closed keeps its counter, and a folded one does not get its own.
        for kind in &kinds {
            counts.add(key(kind), -1);
        }
        assert_eq!(counts.list(), []);
        assert_eq!(counts.by_queue()[&key("").queue], 0);
        assert!(counts.rows.values().all(|open| *open == 0));
    }

    #[test]
    fn a_recount_shows_every_counter_that_is_wrong() {
        let recount = OpenCounts::new([(key("a"), 2), (key("b"), 1)]);
        let shown = OpenCounts::new([(key("a"), 5), (key("c"), 1)]);
        assert_eq!(recount.differences(&shown), [(key("a"), 5, 2), (key("b"), 0, 1), (key("c"), 1, 0)]);
        assert_eq!(recount.differences(&recount), []);
    }
}
