//! The messages of one breaker in the ready index. Leasing sees all of them while the breaker is closed, none while
//! it is open, and the first of each level while it is half open.

use super::ready_index::{IndexEntry, ReadyPosition};
use redrive_core::ids::MessageId;
use redrive_core::lifecycle::Lifecycle;
use redrive_core::message::MessageMeta;
use std::collections::BTreeMap;

/// How many messages of a half-open breaker are kept in memory for its probes.
const PROBE_CANDIDATES: usize = 1_000;

/// Which of its messages a breaker lets through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// All of them.
    #[default]
    Free,
    /// The first of each level.
    Probing,
    /// None of them.
    Held,
}

/// Entries with their sequence numbers.
pub(super) type Messages = Vec<(u64, IndexEntry)>;

/// The waiting messages of one breaker.
#[derive(Debug, Default)]
pub(super) struct BreakerQueue {
    waiting: [BTreeMap<ReadyPosition, IndexEntry>; 5],
    pub(super) mode: Mode,
    /// The first message that a refill left on disk while the breaker was not closed.
    pub(super) on_disk_from: Option<MessageId>,
    /// Whether all entries are visible to leasing; `shown` is not used then.
    all_shown: bool,
    /// The entries that are visible while probing.
    shown: Messages,
    /// Entries added and removed since the last call of `take_changes`, while all are visible.
    added: Messages,
    removed: Messages,
}

impl BreakerQueue {
    pub(super) fn insert(&mut self, seq: u64, entry: IndexEntry) {
        self.added.push((seq, entry.clone()));
        if let Some(level) = self.waiting.get_mut(entry.priority.level()) {
            level.insert((entry.ready_at, seq), entry);
        }
    }

    /// Whether the message is in this queue.
    pub(super) fn has(&self, meta: &MessageMeta, lifecycle: &Lifecycle) -> bool {
        let level = self.waiting.get(meta.priority.level());
        level.is_some_and(|level| level.contains_key(&(lifecycle.ready_at, meta.seq)))
    }

    /// Removes an entry. Returns whether it was there.
    pub(super) fn remove(&mut self, seq: u64, entry: &IndexEntry) -> bool {
        let level = self.waiting.get_mut(entry.priority.level());
        let Some(entry) = level.and_then(|level| level.remove(&(entry.ready_at, seq))) else { return false };
        self.removed.push((seq, entry));
        true
    }

    /// Whether a message found by a refill may stay on disk: it could not be leased anyway, and there are enough
    /// entries in memory for probes.
    pub(super) fn leaves_on_disk(&mut self, id: MessageId) -> bool {
        let enough = match self.mode {
            Mode::Free => false,
            Mode::Probing => self.waiting.iter().map(BTreeMap::len).sum::<usize>() >= PROBE_CANDIDATES,
            Mode::Held => true,
        };
        if enough {
            self.on_disk_from = Some(self.on_disk_from.map_or(id, |first| first.min(id)));
        }
        enough
    }

    /// Whether the queue can be dropped: when the breaker is closed and no message waits, it holds no information.
    pub(super) fn is_idle(&self) -> bool {
        self.mode == Mode::Free && self.on_disk_from.is_none() && self.waiting.iter().all(BTreeMap::is_empty)
    }

    fn all_entries(&self) -> Messages {
        self.waiting.iter().flatten().map(|((_, seq), entry)| (*seq, entry.clone())).collect()
    }

    /// The entries to hide from leasing and the entries to show, for visibility to match the mode.
    pub(super) fn take_changes(&mut self) -> (Messages, Messages) {
        let (added, removed) = (std::mem::take(&mut self.added), std::mem::take(&mut self.removed));
        let mut to_hide = std::mem::take(&mut self.shown);
        match (self.all_shown, self.mode) {
            (true, Mode::Free) => {
                to_hide.extend(removed);
                return (to_hide, added);
            }
            (false, Mode::Free) => {
                self.all_shown = true;
                return (to_hide, self.all_entries());
            }
            (true, Mode::Probing | Mode::Held) => {
                self.all_shown = false;
                to_hide.extend(removed);
                to_hide.extend(self.all_entries());
            }
            (false, Mode::Probing | Mode::Held) => {}
        }
        if self.mode == Mode::Probing {
            let firsts = self.waiting.iter().filter_map(BTreeMap::first_key_value);
            self.shown = firsts.map(|((_, seq), entry)| (*seq, entry.clone())).collect();
        }
        (to_hide, self.shown.clone())
    }
}
