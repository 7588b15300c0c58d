//! What a commit touches, collected while it is made and handed to the holder when it is durable (`holder/mod.rs`).

use redrive_core::changes::Area;
use redrive_core::ids::QueueName;
use redrive_core::time::Time;
use std::collections::BTreeSet;

/// What a commit changed, and which queues may have work because of it.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    pub(crate) areas: BTreeSet<Area>,
    pub(crate) available: Vec<Available>,
}

/// Work that a commit made available in a queue.
#[derive(Debug)]
pub(crate) struct Available {
    pub(crate) queue: QueueName,
    /// The time of the commit.
    pub(crate) at: Time,
    /// How many messages are due now, at most.
    pub(crate) due: usize,
    /// When the first of the others is due.
    pub(crate) later: Option<Time>,
}

impl Touched {
    /// Notes a message of a queue that may be leased from `ready_at` on.
    pub(super) fn add_work(&mut self, queue: &QueueName, ready_at: Time, now: Time) {
        // A commit rarely touches more than a few queues, and often the same one many times in a row.
        let known = self.available.iter().rposition(|work| work.queue == *queue);
        let at = known.unwrap_or_else(|| {
            self.available.push(Available { queue: queue.clone(), at: now, due: 0, later: None });
            self.available.len() - 1
        });
        let Some(work) = self.available.get_mut(at) else { return };
        if ready_at <= now {
            work.due += 1;
        } else {
            work.later = Some(work.later.map_or(ready_at, |later| later.min(ready_at)));
        }
    }
}
