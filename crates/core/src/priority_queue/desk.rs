//! Where picks are made: the head of every level, the dated messages and the scheduler. Whoever holds the desk
//! is alone with it, so a pick sees true heads and the rule holds exactly for any number of consumers. It has
//! no clock and shares nothing; what producers write into lies in the levels.

use super::Waiting;
use super::lane::Lane;
use super::level::Level;
use crate::priority::Priority;
use crate::scheduler::{Decision, Head, Heads, PickReason, Scheduler};
use crate::time::Time;

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
    /// The first undated message of each level. Rings cannot be looked into, so it is taken out.
    heads: [Option<Waiting<T>>; 5],
    lanes: [Lane<T>; 5],
    /// Messages in all lanes.
    dated: usize,
    scheduler: Scheduler,
}

impl<T> Desk<T> {
    pub(super) fn new() -> Self {
        Self {
            heads: std::array::from_fn(|_| None),
            lanes: std::array::from_fn(|_| Lane::new()),
            dated: 0,
            scheduler: Scheduler::new(),
        }
    }

    /// Brings the heads up to date.
    pub(super) fn refill(&mut self, levels: &[Level<T>; 5]) {
        for (head, level) in self.heads.iter_mut().zip(levels) {
            if head.is_none() {
                *head = level.pull();
            }
        }
    }

    /// Takes in a message with a deadline.
    pub(super) fn put_dated(&mut self, priority: Priority, message: Waiting<T>, deadline: Time) {
        if let Some(lane) = self.lanes.get_mut(priority.level()) {
            lane.put(message, deadline);
            self.dated += 1;
        }
    }

    /// Gives out the next message.
    pub(super) fn give(&mut self, now: Time, emergency: bool) -> Given<T> {
        let mut heads = Heads::default();
        for (seen, head) in heads.levels.iter_mut().zip(&self.heads) {
            // All seqs are 0: numbers of different levels cannot be compared, so heads of one tick of the
            // clock are of one age, and the more urgent level goes first.
            *seen = head.as_ref().map(|h| Head { ready_at: h.ready_at, seq: 0 });
        }
        if self.dated > 0 {
            if let Some(given) = self.look_at_lanes(&mut heads, now, emergency) {
                return given;
            }
        }
        let Some(decision) = self.scheduler.pick_when(&heads, now, emergency) else {
            return if heads.levels.iter().all(Option::is_none) { Given::Empty } else { Given::Held };
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
        let fronts = self.heads.iter().zip(&mut heads.levels);
        for ((lane, (front, seen)), p) in self.lanes.iter_mut().zip(fronts).zip(Priority::ALL) {
            let Some(deadline) = lane.earliest() else { continue };
            let candidate = Some((deadline, p));
            if deadline <= now && overdue.is_none_or(|first| (deadline, p) < first) {
                overdue = candidate;
            }
            if served(p) && urgent.is_none_or(|first| (deadline, p) < first) {
                urgent = candidate;
            }
            if let Some((ready_at, seq)) = lane.first()
                && front.as_ref().is_none_or(|f| seq < f.seq)
            {
                *seen = Some(Head { ready_at, seq: 0 });
            }
        }
        heads.urgent = urgent.map(|(deadline, p)| (p, deadline));
        let (_, level) = overdue?;
        let (message, deadline) = self.lanes.get_mut(level.level())?.take_earliest()?;
        self.dated -= 1;
        Some(Given::Expired(message, deadline, level))
    }

    fn take(&mut self, level: Priority, reason: PickReason) -> Option<(Waiting<T>, Option<Time>)> {
        let (head, lane) = (self.heads.get_mut(level.level())?, self.lanes.get_mut(level.level())?);
        let from_lane = match reason {
            PickReason::DeadlineApproaching => lane.take_earliest(),
            PickReason::PriorityOrder
            | PickReason::StarvationPrevention
            | PickReason::LoadBalancing
            | PickReason::EmergencyMode => {
                if lane.is_empty() {
                    return head.take().map(|message| (message, None));
                }
                match (lane.first(), &*head) {
                    (Some((_, seq)), Some(front)) if front.seq < seq => None,
                    (Some(_), _) => lane.take_first(),
                    (None, _) => None,
                }
            }
        };
        if let Some((message, deadline)) = from_lane {
            self.dated -= 1;
            return Some((message, Some(deadline)));
        }
        head.take().map(|message| (message, None))
    }
}
