//! One level of the queue: its ring and its counters. Producers own one cache line and consumers another, so
//! that neither waits for the other's. The counters bound the level: a producer reserves a place before it
//! pushes a message, and a consumer frees the place after it took the message, so `accepted - taken` is never
//! less than the number of messages in the level.

use super::Waiting;
use crate::sync::{AtomicU64, Inbox, Ordering, Ring};
use crate::time::Time;
use crossbeam_utils::CachePadded;

/// Counters that producers write.
#[derive(Debug)]
struct EntryCounters {
    /// Places ever reserved. Also the order of arrival in the level.
    accepted: AtomicU64,
    /// The value of `taken` that some producer saw last. Never more than the true value, so a level that is not
    /// full by this number is not full. It spares producers the consumers' cache line until the level fills up.
    seen_taken: AtomicU64,
    overflowed: AtomicU64,
    refused: AtomicU64,
}

/// Counters that the consumer with the dispenser's lock writes: copies of its [`ExitCounts`].
#[derive(Debug)]
struct ExitCounters {
    dequeued: AtomicU64,
    expired: AtomicU64,
    starved: AtomicU64,
    urgent: AtomicU64,
}

/// What left a level. Kept in the dispenser.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExitCounts {
    dequeued: u64,
    expired: u64,
    starved: u64,
    urgent: u64,
}

/// A reserved place in the level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reservation {
    pub(super) seq: u64,
    /// Messages in the level including this one. Exact from `exact_from` on; an upper bound below that.
    pub(super) depth: u64,
}

/// How a message leaves its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    Ordinary,
    Urgent,
    Aged,
    Expired,
}

#[derive(Debug)]
pub(super) struct Level<T> {
    ring: Ring<Waiting<T>>,
    /// Messages with a deadline that the dispenser has not seen yet. It grows as needed; the reservations bound
    /// it.
    inbox: Inbox<(Waiting<T>, Time)>,
    entries: CachePadded<EntryCounters>,
    exits: CachePadded<ExitCounters>,
}

/// The counters of one level. Each is read at its own moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelStats {
    /// Messages enqueued.
    pub enqueued: u64,
    /// Messages dequeued for processing.
    pub dequeued: u64,
    /// Messages returned because their deadline had passed.
    pub expired: u64,
    /// Messages rejected because the level was full.
    pub overflowed: u64,
    /// Messages rejected because of an emergency.
    pub refused: u64,
    /// How many of the dequeued messages got an aged pick because they had waited too long.
    pub starvation_events: u64,
    /// How many of the dequeued messages had a near deadline.
    pub urgent: u64,
    /// Messages in the level now.
    pub depth: u64,
}

impl<T> Level<T> {
    pub(super) fn new(capacity: usize) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            ring: Ring::new(capacity),
            inbox: Inbox::new(),
            entries: CachePadded::new(EntryCounters {
                accepted: zero(),
                seen_taken: zero(),
                overflowed: zero(),
                refused: zero(),
            }),
            exits: CachePadded::new(ExitCounters {
                dequeued: zero(),
                expired: zero(),
                starved: zero(),
                urgent: zero(),
            }),
        }
    }

    /// Reserves a place, or counts an overflow. From the depth `exact_from` on, the depth must be exact.
    pub(super) fn reserve(&self, capacity: u64, exact_from: u64) -> Option<Reservation> {
        let entries = &*self.entries;
        let mut accepted = entries.accepted.load(Ordering::Relaxed);
        loop {
            let mut depth = accepted.saturating_sub(entries.seen_taken.load(Ordering::Acquire));
            if depth + 1 >= exact_from {
                let taken = self.taken();
                entries.seen_taken.store(taken, Ordering::Release);
                depth = accepted.saturating_sub(taken);
            }
            if depth >= capacity {
                entries.overflowed.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            let won = entries.accepted.compare_exchange_weak(
                accepted,
                accepted + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            match won {
                Ok(_) => return Some(Reservation { seq: accepted, depth: depth + 1 }),
                Err(now) => accepted = now,
            }
        }
    }

    /// Messages that left the level. Acquire: a thread that sees a place free also sees the ring's slot free.
    fn taken(&self) -> u64 {
        self.exits.dequeued.load(Ordering::Acquire) + self.exits.expired.load(Ordering::Acquire)
    }

    /// Pushes a message into its reserved place. The ring has a slot for every place.
    pub(super) fn push(&self, message: Waiting<T>) -> Result<(), Waiting<T>> {
        self.ring.push(message)
    }

    /// Pushes a message with a deadline into its reserved place.
    pub(super) fn push_dated(&self, message: Waiting<T>, deadline: Time) {
        self.inbox.push((message, deadline));
    }

    /// Takes the messages with a deadline that have arrived: only those that are there now, so that producers
    /// cannot keep a consumer busy for ever.
    pub(super) fn drain_dated(&self) -> impl Iterator<Item = (Waiting<T>, Time)> {
        let count = if self.inbox.is_empty() { 0 } else { self.inbox.len() };
        (0..count).map_while(|_| self.inbox.pop())
    }

    /// Takes the next message from the ring. Only for the holder of the dispenser's lock.
    ///
    /// `check_first` says that the ring is probably empty. A pop that finds nothing costs a full fence, and a
    /// check costs the cache line that producers write, so each is cheap where the other is expensive.
    pub(super) fn pull(&self, check_first: bool) -> Option<Waiting<T>> {
        if check_first && self.ring.is_empty() { None } else { self.ring.pop() }
    }

    /// Cancels a reservation that was not used.
    pub(super) fn cancel_reservation(&self) {
        self.entries.accepted.fetch_sub(1, Ordering::AcqRel);
        self.entries.overflowed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_refused(&self) {
        self.entries.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Frees the place of a message. Only for the holder of the dispenser's lock, who also owns `counts`: the
    /// atomic counters are copies for other threads, stored without being loaded, because a load would wait for
    /// their cache line.
    pub(super) fn release(&self, exit: Exit, counts: &mut ExitCounts) {
        match exit {
            Exit::Ordinary => {}
            Exit::Urgent => {
                counts.urgent += 1;
                self.exits.urgent.store(counts.urgent, Ordering::Relaxed);
            }
            Exit::Aged => {
                counts.starved += 1;
                self.exits.starved.store(counts.starved, Ordering::Relaxed);
            }
            Exit::Expired => {
                counts.expired += 1;
                return self.exits.expired.store(counts.expired, Ordering::Release);
            }
        }
        counts.dequeued += 1;
        self.exits.dequeued.store(counts.dequeued, Ordering::Release);
    }

    pub(super) fn depth(&self, capacity: u64) -> u64 {
        // Load the exits first, so that the entries are never less. More may come and go in between than fits.
        let taken = self.taken();
        self.entries.accepted.load(Ordering::Acquire).saturating_sub(taken).min(capacity)
    }

    pub(super) fn stats(&self, capacity: u64) -> LevelStats {
        let (dequeued, expired) =
            (self.exits.dequeued.load(Ordering::Acquire), self.exits.expired.load(Ordering::Acquire));
        let enqueued = self.entries.accepted.load(Ordering::Acquire);
        LevelStats {
            enqueued,
            dequeued,
            expired,
            overflowed: self.entries.overflowed.load(Ordering::Relaxed),
            refused: self.entries.refused.load(Ordering::Relaxed),
            starvation_events: self.exits.starved.load(Ordering::Relaxed),
            urgent: self.exits.urgent.load(Ordering::Relaxed),
            depth: enqueued.saturating_sub(dequeued + expired).min(capacity),
        }
    }
}
