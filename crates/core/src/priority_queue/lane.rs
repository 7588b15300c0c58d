//! The messages of one level that have a deadline: ordered by deadline for urgent picks, and in order of
//! arrival for all others. Pure: one owner at a time, no atomics, no clock.
//!
//! A message lies in a slot; the heap and the arrival queue hold tickets for it, made of slot and generation.
//! Taking a message empties its slot and starts the slot's next generation, so the ticket in the other order is
//! void. A message can therefore be found in two ways and taken once. Void tickets are skipped when they come
//! up and swept when they outnumber the others.

use super::Waiting;
use crate::time::Time;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Below this number, void tickets are not worth a sweep.
const SWEEP_MIN: usize = 64;

/// A claim on what a slot held in one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ticket {
    slot: usize,
    generation: u64,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u64,
    held: Option<(Waiting<T>, Time)>,
}

/// The messages of one level that have a deadline.
#[derive(Debug)]
pub(super) struct Lane<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
    /// Earliest deadline first, then arrival.
    by_deadline: BinaryHeap<Reverse<(Time, u64, Ticket)>>,
    /// In order of arrival.
    arrivals: VecDeque<Ticket>,
    live: usize,
    /// The earliest deadline. Cached, because every pick reads it and few change it.
    earliest: Option<Time>,
    /// The first message to arrive: since when it waits, and its position. Cached for the same reason.
    first: Option<(Time, u64)>,
}

impl<T> Lane<T> {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_deadline: BinaryHeap::new(),
            arrivals: VecDeque::new(),
            live: 0,
            earliest: None,
            first: None,
        }
    }

    /// Adds a message.
    pub(super) fn put(&mut self, message: Waiting<T>, deadline: Time) {
        let seq = message.seq;
        self.earliest = Some(self.earliest.map_or(deadline, |first| first.min(deadline)));
        self.first = self.first.or(Some((message.ready_at, seq)));
        let held = Some((message, deadline));
        let reused = self.free.pop().and_then(|at| self.slots.get_mut(at).map(|slot| (at, slot)));
        let ticket = if let Some((at, slot)) = reused {
            slot.held = held;
            Ticket { slot: at, generation: slot.generation }
        } else {
            self.slots.push(Slot { generation: 0, held });
            Ticket { slot: self.slots.len() - 1, generation: 0 }
        };
        self.live += 1;
        self.by_deadline.push(Reverse((deadline, seq, ticket)));
        self.arrivals.push_back(ticket);
    }

    fn held(&self, ticket: Ticket) -> Option<&Waiting<T>> {
        let slot = self.slots.get(ticket.slot).filter(|slot| slot.generation == ticket.generation)?;
        slot.held.as_ref().map(|(message, _)| message)
    }

    /// Empties a slot and voids every other ticket for it.
    fn redeem(&mut self, ticket: Ticket) -> Option<(Waiting<T>, Time)> {
        let slot = self.slots.get_mut(ticket.slot).filter(|slot| slot.generation == ticket.generation)?;
        let taken = slot.held.take()?;
        slot.generation += 1;
        self.free.push(ticket.slot);
        self.live -= 1;
        self.sweep();
        self.refresh();
        Some(taken)
    }

    /// Drops void tickets when they outnumber the valid ones, so that memory stays bounded by the capacity of
    /// the level. The cost is paid once per ticket.
    fn sweep(&mut self) {
        let bound = SWEEP_MIN.max(self.live * 2);
        let slots = &self.slots;
        let valid = |ticket: Ticket| {
            slots.get(ticket.slot).is_some_and(|s| s.generation == ticket.generation && s.held.is_some())
        };
        if self.by_deadline.len() > bound {
            self.by_deadline.retain(|Reverse((_, _, ticket))| valid(*ticket));
        }
        if self.arrivals.len() > bound {
            self.arrivals.retain(|ticket| valid(*ticket));
        }
    }

    /// Drops the void tickets at the front of both orders and updates the cached values.
    fn refresh(&mut self) {
        self.earliest = loop {
            let Some(Reverse((deadline, _, ticket))) = self.by_deadline.peek().copied() else { break None };
            if self.held(ticket).is_some() {
                break Some(deadline);
            }
            self.by_deadline.pop();
        };
        self.first = loop {
            let Some(ticket) = self.arrivals.front().copied() else { break None };
            if let Some(message) = self.held(ticket) {
                break Some((message.ready_at, message.seq));
            }
            self.arrivals.pop_front();
        };
    }

    /// The earliest deadline.
    pub(super) const fn earliest(&self) -> Option<Time> {
        self.earliest
    }

    /// Takes the message with the earliest deadline.
    pub(super) fn take_earliest(&mut self) -> Option<(Waiting<T>, Time)> {
        while let Some(Reverse((_, _, ticket))) = self.by_deadline.pop() {
            if let Some(taken) = self.redeem(ticket) {
                return Some(taken);
            }
        }
        None
    }

    /// The first message to arrive: since when it waits, and its position.
    pub(super) const fn first(&self) -> Option<(Time, u64)> {
        self.first
    }

    /// Takes the first message to arrive.
    pub(super) fn take_first(&mut self) -> Option<(Waiting<T>, Time)> {
        while let Some(ticket) = self.arrivals.pop_front() {
            if let Some(taken) = self.redeem(ticket) {
                return Some(taken);
            }
        }
        None
    }
}
