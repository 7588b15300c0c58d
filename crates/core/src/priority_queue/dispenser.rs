//! The dispenser makes the picks: it holds the head of every level, the messages with a deadline, and the
//! scheduler. The consumer that holds its lock is alone with it, so a pick sees the true heads and the rule
//! holds exactly for any number of consumers. It has no clock and shares nothing; producers write into the
//! levels.

use super::Waiting;
use super::lane::Lane;
use super::level::{Exit, ExitCounts, Level};
use crate::priority::Priority;
use crate::scheduler::{Decision, Head, Heads, PickReason, Scheduler};
use crate::time::Time;
use std::collections::VecDeque;

/// The number of messages fetched from a ring at once, when the last batch is used up. Neighbours in a ring
/// share cache lines, and fetching a line from the producer's core costs more than a pick. A larger batch has
/// more throughput, but the pick that fetches takes longer: with 64 it took a microsecond, and was one in
/// fifty.
const FETCH: usize = 32;

/// What the dispenser returns.
pub(super) enum Dispensed<T> {
    Picked(Waiting<T>, Option<Time>, Decision),
    Expired(Waiting<T>, Time, Priority),
    /// There are messages, but none that may be served now.
    Held,
    Empty,
}

#[derive(Debug)]
pub(super) struct Dispenser<T> {
    /// The first messages of each ring. They are taken out, because rings do not allow a look at their head.
    fronts: [VecDeque<Waiting<T>>; 5],
    /// The first message of each front, as the scheduler sees it.
    heads: Heads,
    /// Which rings were empty when last checked.
    was_empty: [bool; 5],
    lanes: [Lane<T>; 5],
    /// The number of messages in all lanes.
    dated: usize,
    scheduler: Scheduler,
    exit_counts: [ExitCounts; 5],
}

/// A message as the scheduler sees it. Every seq is 0: positions in different levels cannot be compared, so
/// heads of the same tick have the same age and the more urgent level goes first.
const fn head(ready_at: Time) -> Head {
    Head { ready_at, seq: 0 }
}

/// Fetches the next batch from a ring whose last batch is used up.
fn fetch<T>(front: &mut VecDeque<Waiting<T>>, was_empty: &mut bool, level: &Level<T>) -> Option<Head> {
    while front.len() < FETCH
        && let Some(message) = level.pull(*was_empty && front.is_empty())
    {
        front.push_back(message);
    }
    *was_empty = front.is_empty();
    front.front().map(|first| head(first.ready_at))
}

/// Moves the messages with a deadline that have arrived into their lane.
fn drain<T>(lane: &mut Lane<T>, level: &Level<T>) -> usize {
    level.drain_dated().map(|(message, deadline)| lane.put(message, deadline)).count()
}

impl<T> Dispenser<T> {
    pub(super) fn new() -> Self {
        Self {
            fronts: std::array::from_fn(|_| VecDeque::with_capacity(FETCH)),
            heads: Heads::default(),
            was_empty: [true; 5],
            lanes: std::array::from_fn(|_| Lane::new()),
            dated: 0,
            scheduler: Scheduler::new(),
            exit_counts: [ExitCounts::default(); 5],
        }
    }

    /// Brings the heads up to date, so that of each producer's messages in a level the first is seen first,
    /// whichever way it came. Whatever precedes a message of the ring is in the inbox by the time that message
    /// is seen, so the inbox is emptied after the ring was read. Whatever precedes a message of the inbox is in
    /// the ring by then; if the ring was empty when it was read, it is read again, and then the inbox once
    /// more.
    pub(super) fn refill(&mut self, levels: &[Level<T>; 5]) {
        let rest = self.fronts.iter_mut().zip(&mut self.was_empty).zip(&mut self.lanes).zip(levels);
        for (head, (((front, was_empty), lane), level)) in self.heads.levels.iter_mut().zip(rest) {
            if head.is_none() {
                *head = fetch(front, was_empty, level);
            }
            let drained = drain(lane, level);
            self.dated += drained;
            if drained > 0 && head.is_none() {
                *head = fetch(front, was_empty, level);
                self.dated += drain(lane, level);
            }
        }
    }

    /// Counts that a message left its level.
    pub(super) fn release(&mut self, level: &Level<T>, priority: Priority, exit: Exit) {
        if let Some(counts) = self.exit_counts.get_mut(priority.level()) {
            level.release(exit, counts);
        }
    }

    /// Takes out the next message.
    pub(super) fn dispense(&mut self, now: Time, emergency: bool) -> Dispensed<T> {
        let decision = if self.dated > 0 {
            let mut heads = self.heads;
            if let Some(expired) = self.add_dated(&mut heads, now, emergency) {
                return expired;
            }
            self.scheduler.pick_when(&heads, now, emergency)
        } else {
            self.scheduler.pick_when(&self.heads, now, emergency)
        };
        let Some(decision) = decision else {
            let empty = self.dated == 0 && self.heads.levels.iter().all(Option::is_none);
            return if empty { Dispensed::Empty } else { Dispensed::Held };
        };
        match self.take(decision.level, decision.reason) {
            Some((message, deadline)) => Dispensed::Picked(message, deadline, decision),
            // Cannot happen: the level was picked because it has a head, and this consumer holds the lock.
            None => Dispensed::Held,
        }
    }

    /// Adds the messages with a deadline to the heads, or takes out one whose deadline has passed.
    fn add_dated(&mut self, heads: &mut Heads, now: Time, emergency: bool) -> Option<Dispensed<T>> {
        let served = |p: Priority| !emergency || p <= Priority::High;
        let mut overdue: Option<(Time, Priority)> = None;
        let mut urgent: Option<(Time, Priority)> = None;
        let fronts = self.fronts.iter().zip(&mut heads.levels);
        for ((lane, (front, seen)), p) in self.lanes.iter().zip(fronts).zip(Priority::ALL) {
            let Some(deadline) = lane.earliest() else { continue };
            let candidate = Some((deadline, p));
            if deadline <= now && overdue.is_none_or(|first| (deadline, p) < first) {
                overdue = candidate;
            }
            if served(p) && urgent.is_none_or(|first| (deadline, p) < first) {
                urgent = candidate;
            }
            if let Some((ready_at, seq)) = lane.first()
                && front.front().is_none_or(|first| seq < first.seq)
            {
                *seen = Some(head(ready_at));
            }
        }
        heads.urgent = urgent.map(|(deadline, p)| (p, deadline));
        let (_, level) = overdue?;
        let (message, deadline) = self.lanes.get_mut(level.level())?.take_earliest()?;
        self.dated -= 1;
        Some(Dispensed::Expired(message, deadline, level))
    }

    fn take(&mut self, level: Priority, reason: PickReason) -> Option<(Waiting<T>, Option<Time>)> {
        let (front, lane) = (self.fronts.get_mut(level.level())?, self.lanes.get_mut(level.level())?);
        let from_lane = match reason {
            PickReason::DeadlineApproaching => lane.take_earliest(),
            PickReason::PriorityOrder
            | PickReason::StarvationPrevention
            | PickReason::LoadBalancing
            | PickReason::EmergencyMode => match (lane.first(), front.front()) {
                (Some((_, seq)), Some(first)) if first.seq < seq => None,
                (Some(_), _) => lane.take_first(),
                (None, _) => None,
            },
        };
        if let Some((message, deadline)) = from_lane {
            self.dated -= 1;
            return Some((message, Some(deadline)));
        }
        let taken = front.pop_front()?;
        if let Some(seen) = self.heads.levels.get_mut(level.level()) {
            *seen = front.front().map(|first| head(first.ready_at));
        }
        Some((taken, None))
    }
}
