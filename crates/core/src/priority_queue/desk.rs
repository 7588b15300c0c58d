//! Where picks are made: the head of every level, the dated messages and the scheduler. Whoever holds the desk
//! is alone with it, so a pick sees true heads and the rule holds exactly for any number of consumers. It has
//! no clock and shares nothing; what producers write into lies in the levels.

use super::Waiting;
use super::lane::Lane;
use super::level::{Exit, Level, Tally};
use crate::priority::Priority;
use crate::scheduler::{Decision, Head, Heads, PickReason, Scheduler};
use crate::time::Time;
use std::collections::VecDeque;

/// Messages fetched from a ring at once when its last ones are used up: neighbours in a ring lie in the same
/// cache lines, and to fetch a line from the producer's core costs more than a pick. More at once is faster on
/// the whole, but the pick that fetches takes longer: with 64 it took a microsecond, and was one in fifty.
const FETCH: usize = 32;

/// What the desk gives out.
pub(super) enum Given<T> {
    Picked(Waiting<T>, Option<Time>, Decision),
    Expired(Waiting<T>, Time, Priority),
    /// There are messages, but none that may be served now.
    Held,
    Empty,
}

#[derive(Debug)]
pub(super) struct Desk<T> {
    /// The first messages of each ring: rings cannot be looked into, so they are taken out.
    fronts: [VecDeque<Waiting<T>>; 5],
    /// The first of each front, as the scheduler sees it.
    heads: Heads,
    /// Which rings were empty when last asked.
    dry: [bool; 5],
    lanes: [Lane<T>; 5],
    /// Messages in all lanes.
    dated: usize,
    scheduler: Scheduler,
    tallies: [Tally; 5],
}

/// A message as the scheduler sees it. All seqs are 0: numbers of different levels cannot be compared, so heads
/// of one tick of the clock are of one age, and the more urgent level goes first.
const fn head(ready_at: Time) -> Head {
    Head { ready_at, seq: 0 }
}

/// Takes the next lot from a ring whose last messages are used up.
fn fetch<T>(front: &mut VecDeque<Waiting<T>>, dry: &mut bool, level: &Level<T>) -> Option<Head> {
    while front.len() < FETCH
        && let Some(message) = level.pull(*dry && front.is_empty())
    {
        front.push_back(message);
    }
    *dry = front.is_empty();
    front.front().map(|first| head(first.ready_at))
}

/// Takes in the dated messages that came.
fn drain<T>(lane: &mut Lane<T>, level: &Level<T>) -> usize {
    level.drain_dated().map(|(message, deadline)| lane.put(message, deadline)).count()
}

impl<T> Desk<T> {
    pub(super) fn new() -> Self {
        Self {
            fronts: std::array::from_fn(|_| VecDeque::with_capacity(FETCH)),
            heads: Heads::default(),
            dry: [true; 5],
            lanes: std::array::from_fn(|_| Lane::new()),
            dated: 0,
            scheduler: Scheduler::new(),
            tallies: [Tally::default(); 5],
        }
    }

    /// Brings the heads up to date, so that of each producer's messages in a level the first is seen first,
    /// whichever way it came. What was before a message of the ring is in the inbox when that message is seen,
    /// so the inbox is emptied after the ring was asked. What was before a message of the inbox is in the ring
    /// by then; if the ring had nothing when it was asked, it is asked again, and so the inbox once more.
    pub(super) fn refill(&mut self, levels: &[Level<T>; 5]) {
        let rest = self.fronts.iter_mut().zip(&mut self.dry).zip(&mut self.lanes).zip(levels);
        for (seen, (((front, dry), lane), level)) in self.heads.levels.iter_mut().zip(rest) {
            if seen.is_none() {
                *seen = fetch(front, dry, level);
            }
            let came = drain(lane, level);
            self.dated += came;
            if came > 0 && seen.is_none() {
                *seen = fetch(front, dry, level);
                self.dated += drain(lane, level);
            }
        }
    }

    /// Notes that a message left a level.
    pub(super) fn release(&mut self, level: &Level<T>, priority: Priority, exit: Exit) {
        if let Some(tally) = self.tallies.get_mut(priority.level()) {
            level.release(exit, tally);
        }
    }

    /// Gives out the next message.
    pub(super) fn give(&mut self, now: Time, emergency: bool) -> Given<T> {
        let decision = if self.dated > 0 {
            let mut heads = self.heads;
            if let Some(given) = self.look_at_lanes(&mut heads, now, emergency) {
                return given;
            }
            self.scheduler.pick_when(&heads, now, emergency)
        } else {
            self.scheduler.pick_when(&self.heads, now, emergency)
        };
        let Some(decision) = decision else {
            let empty = self.dated == 0 && self.heads.levels.iter().all(Option::is_none);
            return if empty { Given::Empty } else { Given::Held };
        };
        match self.take(decision.level, decision.reason) {
            Some((message, deadline)) => Given::Picked(message, deadline, decision),
            // Cannot happen: the level was picked because it has a head, and nobody else is at the desk.
            None => Given::Held,
        }
    }

    /// Adds the dated messages to the heads, or gives out one whose deadline has passed.
    fn look_at_lanes(&mut self, heads: &mut Heads, now: Time, emergency: bool) -> Option<Given<T>> {
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
        Some(Given::Expired(message, deadline, level))
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
