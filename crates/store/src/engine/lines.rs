//! The messages of one breaker in the hot index: which of them leasing may see. All of them while it is closed,
//! none while it is open, the first of each level while it lets probes through.

use super::hot::{Parked, Place};
use redrive_core::ids::MessageId;
use redrive_core::lifecycle::Life;
use redrive_core::message::Slip;
use std::collections::BTreeMap;

/// Messages of a half-open breaker that are held ready in memory for its probes.
const PROBE_CANDIDATES: usize = 1_000;

/// What a breaker lets through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Everything.
    #[default]
    Free,
    /// The first of each level.
    Probing,
    /// Nothing.
    Held,
}

/// Messages by their sequence.
pub(super) type Messages = Vec<(u64, Parked)>;

/// The waiting messages of one breaker.
#[derive(Debug, Default)]
pub(super) struct Line {
    members: [BTreeMap<Place, Parked>; 5],
    pub(super) mode: Mode,
    /// The first message of the line that was left on disk while the line was not free.
    pub(super) on_disk_from: Option<MessageId>,
    /// Whether everything is shown, beside what `shown` says.
    all_shown: bool,
    /// What is shown while probing.
    shown: Messages,
    /// Joined or left since the last time, while everything is shown.
    fresh: Messages,
    left: Messages,
}

impl Line {
    /// A message waits here.
    pub(super) fn join(&mut self, seq: u64, m: Parked) {
        self.fresh.push((seq, m.clone()));
        if let Some(level) = self.members.get_mut(m.priority.level()) {
            level.insert((m.ready_at, seq), m);
        }
    }

    /// Whether it waits here.
    pub(super) fn has(&self, slip: &Slip, life: &Life) -> bool {
        let level = self.members.get(slip.priority.level());
        level.is_some_and(|level| level.contains_key(&(life.ready_at, slip.seq)))
    }

    /// It does not any more; says whether it did.
    pub(super) fn leave(&mut self, seq: u64, m: &Parked) -> bool {
        let level = self.members.get_mut(m.priority.level());
        let Some(m) = level.and_then(|level| level.remove(&(m.ready_at, seq))) else { return false };
        self.left.push((seq, m));
        true
    }

    /// Whether a message of the line that comes from disk may stay there: it could not be leased anyway, and
    /// there are enough for probes.
    pub(super) fn leaves_on_disk(&mut self, id: MessageId) -> bool {
        let enough = match self.mode {
            Mode::Free => false,
            Mode::Probing => self.members.iter().map(BTreeMap::len).sum::<usize>() >= PROBE_CANDIDATES,
            Mode::Held => true,
        };
        if enough {
            self.on_disk_from = Some(self.on_disk_from.map_or(id, |first| first.min(id)));
        }
        enough
    }

    /// Whether it can be forgotten: a free line without members is as good as none.
    pub(super) fn is_idle(&self) -> bool {
        self.mode == Mode::Free && self.on_disk_from.is_none() && self.members.iter().all(BTreeMap::is_empty)
    }

    fn everything(&self) -> Messages {
        self.members.iter().flatten().map(|((_, seq), m)| (*seq, m.clone())).collect()
    }

    /// What must be taken from leasing's sight and what must be put there, to be as the mode says.
    pub(super) fn settle(&mut self) -> (Messages, Messages) {
        let (fresh, left) = (std::mem::take(&mut self.fresh), std::mem::take(&mut self.left));
        let mut gone = std::mem::take(&mut self.shown);
        match (self.all_shown, self.mode) {
            (true, Mode::Free) => {
                gone.extend(left);
                return (gone, fresh);
            }
            (false, Mode::Free) => {
                self.all_shown = true;
                return (gone, self.everything());
            }
            (true, Mode::Probing | Mode::Held) => {
                self.all_shown = false;
                gone.extend(left);
                gone.extend(self.everything());
            }
            (false, Mode::Probing | Mode::Held) => {}
        }
        if self.mode == Mode::Probing {
            let firsts = self.members.iter().filter_map(BTreeMap::first_key_value);
            self.shown = firsts.map(|((_, seq), m)| (*seq, m.clone())).collect();
        }
        (gone, self.shown.clone())
    }
}
