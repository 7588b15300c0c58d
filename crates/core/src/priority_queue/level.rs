//! One level: its ring and the counters beside it. Producers own one cache line, consumers another, so that
//! neither waits for the other's. The counters are what bounds the level: a place is reserved before a message
//! goes in, and given free after it went out, so `accepted - taken` is never less than what is inside.

use super::Waiting;
use crate::sync::{AtomicU64, Inbox, Ordering, Ring};
use crate::time::Time;
use crossbeam_utils::CachePadded;

/// Written by producers.
#[derive(Debug)]
struct Intake {
    /// Places ever reserved. Also the order of arrival inside the level.
    accepted: AtomicU64,
    /// What some producer last saw of `taken`: never more than the truth, so a level that is not full by this
    /// is not full. It spares producers the consumers' cache line until the level fills up.
    seen_taken: AtomicU64,
    overflowed: AtomicU64,
    refused: AtomicU64,
}

/// Written by whoever holds the desk: copies of its [`Tally`].
#[derive(Debug)]
struct Outgo {
    dequeued: AtomicU64,
    expired: AtomicU64,
    starved: AtomicU64,
    urgent: AtomicU64,
}

/// What left a level, counted at the desk.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    dequeued: u64,
    expired: u64,
    starved: u64,
    urgent: u64,
}

/// A reserved place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) seq: u64,
    /// Messages in the level with this one: exact from `look_at` on, at most that many below.
    pub(super) depth: u64,
}

/// What a dequeue counts as.
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
    /// Messages with a deadline that the desk has not seen yet. It grows as needed; the places bound it.
    inbox: Inbox<(Waiting<T>, Time)>,
    intake: CachePadded<Intake>,
    outgo: CachePadded<Outgo>,
}

/// The counters of one level, at one moment each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelStats {
    /// Messages taken in.
    pub enqueued: u64,
    /// Messages handed out to be worked on.
    pub dequeued: u64,
    /// Messages handed back because their deadline had passed.
    pub expired: u64,
    /// Messages given back at the door because the level was full.
    pub overflowed: u64,
    /// Messages given back at the door because of an emergency.
    pub refused: u64,
    /// Of those dequeued: the ones whose head had waited too long and got the pick kept for such.
    pub starvation_events: u64,
    /// Of those dequeued: the ones whose deadline was near.
    pub urgent: u64,
    /// Messages inside.
    pub depth: u64,
}

impl<T> Level<T> {
    pub(super) fn new(capacity: usize) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            ring: Ring::new(capacity),
            inbox: Inbox::new(),
            intake: CachePadded::new(Intake {
                accepted: zero(),
                seen_taken: zero(),
                overflowed: zero(),
                refused: zero(),
            }),
            outgo: CachePadded::new(Outgo {
                dequeued: zero(),
                expired: zero(),
                starved: zero(),
                urgent: zero(),
            }),
        }
    }

    /// Reserves a place, or counts an overflow. `look_at` is the depth from which the answer must be exact.
    pub(super) fn reserve(&self, capacity: u64, look_at: u64) -> Option<Place> {
        let intake = &*self.intake;
        let mut accepted = intake.accepted.load(Ordering::Relaxed);
        loop {
            let mut depth = accepted.saturating_sub(intake.seen_taken.load(Ordering::Acquire));
            if depth + 1 >= look_at {
                let taken = self.taken();
                intake.seen_taken.store(taken, Ordering::Release);
                depth = accepted.saturating_sub(taken);
            }
            if depth >= capacity {
                intake.overflowed.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            let won = intake.accepted.compare_exchange_weak(
                accepted,
                accepted + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            match won {
                Ok(_) => return Some(Place { seq: accepted, depth: depth + 1 }),
                Err(now) => accepted = now,
            }
        }
    }

    /// Messages that left. Acquire: whoever sees a place free also sees the ring's slot free.
    fn taken(&self) -> u64 {
        self.outgo.dequeued.load(Ordering::Acquire) + self.outgo.expired.load(Ordering::Acquire)
    }

    /// Puts a message into the place reserved for it. The ring has room for every place.
    pub(super) fn push(&self, message: Waiting<T>) -> Result<(), Waiting<T>> {
        self.ring.push(message)
    }

    /// Puts a message with a deadline into the place reserved for it.
    pub(super) fn push_dated(&self, message: Waiting<T>, deadline: Time) {
        self.inbox.push((message, deadline));
    }

    /// The dated messages that came: those that are here now, so that producers cannot keep a consumer.
    pub(super) fn drain_dated(&self) -> impl Iterator<Item = (Waiting<T>, Time)> {
        let count = if self.inbox.is_empty() { 0 } else { self.inbox.len() };
        (0..count).map_while(|_| self.inbox.pop())
    }

    /// The next of the ring. Only for whoever holds the desk.
    ///
    /// `look_first` when it is probably empty. A pop in vain costs a full fence, and a look costs the cache
    /// line that producers write, so each is cheap where the other is dear.
    pub(super) fn pull(&self, look_first: bool) -> Option<Waiting<T>> {
        if look_first && self.ring.is_empty() { None } else { self.ring.pop() }
    }

    /// Gives back a place that was not used.
    pub(super) fn give_up(&self) {
        self.intake.accepted.fetch_sub(1, Ordering::AcqRel);
        self.intake.overflowed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_refused(&self) {
        self.intake.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives a message's place free. Only for whoever holds the desk, where the tally lies: the counters here
    /// are copies for others to read, and are written without being read, which would mean to wait for them.
    pub(super) fn release(&self, exit: Exit, tally: &mut Tally) {
        match exit {
            Exit::Ordinary => {}
            Exit::Urgent => {
                tally.urgent += 1;
                self.outgo.urgent.store(tally.urgent, Ordering::Relaxed);
            }
            Exit::Aged => {
                tally.starved += 1;
                self.outgo.starved.store(tally.starved, Ordering::Relaxed);
            }
            Exit::Expired => {
                tally.expired += 1;
                return self.outgo.expired.store(tally.expired, Ordering::Release);
            }
        }
        tally.dequeued += 1;
        self.outgo.dequeued.store(tally.dequeued, Ordering::Release);
    }

    pub(super) fn depth(&self, capacity: u64) -> u64 {
        // What left is read first: what came in is never less. In between more may come and go than fits.
        let taken = self.taken();
        self.intake.accepted.load(Ordering::Acquire).saturating_sub(taken).min(capacity)
    }

    pub(super) fn stats(&self, capacity: u64) -> LevelStats {
        let (dequeued, expired) =
            (self.outgo.dequeued.load(Ordering::Acquire), self.outgo.expired.load(Ordering::Acquire));
        let enqueued = self.intake.accepted.load(Ordering::Acquire);
        LevelStats {
            enqueued,
            dequeued,
            expired,
            overflowed: self.intake.overflowed.load(Ordering::Relaxed),
            refused: self.intake.refused.load(Ordering::Relaxed),
            starvation_events: self.outgo.starved.load(Ordering::Relaxed),
            urgent: self.outgo.urgent.load(Ordering::Relaxed),
            depth: enqueued.saturating_sub(dequeued + expired).min(capacity),
        }
    }
}
