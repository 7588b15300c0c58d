//! How a worker ends: no more leases, what has not begun goes back at once, handlers get most of the grace
//! time, are told to stop, are ended, and their messages are given back. A release costs no attempt.

use super::dispatcher::Dispatcher;
use super::stage::Stage;
use redrive_core::ids::LeaseToken;
use redrive_core::priority_queue::Dequeued;
use redrive_core::time::Span;
use std::time::Duration;
use tokio::time::Instant;

/// The grace time of a worker that was told not to wait.
const HURRY: Span = Span::from_secs(2);
/// How long the store may take to answer the last call when the grace time is over.
const ANSWER: Duration = Duration::from_secs(2);

/// When a stopped worker does what.
#[derive(Clone, Copy)]
pub(super) struct Ending {
    /// Handlers are told to stop.
    pub(super) cancel_at: Instant,
    /// Handlers are ended and their messages given back.
    pub(super) abort_at: Instant,
    /// The worker is gone, whatever the store says.
    pub(super) gone_at: Instant,
}

impl Ending {
    fn of(grace: Span, now: Instant) -> Self {
        let grace = grace.to_std();
        Self { cancel_at: now + grace * 7 / 10, abort_at: now + grace * 8 / 10, gone_at: now + grace }
    }
}

impl Dispatcher {
    /// Whether it has done what it was asked to do.
    pub(super) fn is_through(&self) -> bool {
        self.plan.at_most.is_some_and(|most| self.taken >= most)
            && self.held.is_empty()
            && !self.calls.leasing
    }

    pub(super) fn begin_ending(&mut self) {
        if self.ending.is_some() {
            return;
        }
        // A store that cannot be told anything any more is not worth waiting for.
        let grace = if self.failed.is_some() { Span::ZERO } else { self.plan.grace };
        self.ending = Some(Ending::of(grace, Instant::now()));
        self.hurry();
        if let Some(waiting) = self.calls.waiting.take() {
            waiting.abort();
        }
        // What has not begun goes back at once.
        let unbegun: Vec<LeaseToken> = self
            .held
            .iter()
            .filter(|(_, held)| matches!(held.stage, Stage::Waiting | Stage::Parked))
            .map(|(token, _)| *token)
            .collect();
        self.parked.clear();
        while matches!(self.hand_off.dequeue(), Dequeued::Item(_) | Dequeued::Expired(_)) {}
        for token in unbegun {
            self.give_back(token);
        }
    }

    /// Cuts the grace time short, once somebody asked for that.
    pub(super) fn hurry(&mut self) {
        if let Some(ending) = &mut self.ending
            && self.handle.hurry.is_cancelled()
        {
            let hurried = Ending::of(HURRY, Instant::now());
            if hurried.gone_at < ending.gone_at {
                *ending = Ending { cancel_at: Instant::now(), ..hurried };
            }
        }
    }

    pub(super) fn advance_ending(&mut self) {
        let Some(ending) = self.ending else { return };
        let now = Instant::now();
        if !self.cancelled && now >= ending.cancel_at {
            self.cancelled = true;
            for held in self.held.values() {
                if let Stage::Running(running) = &held.stage {
                    running.cancel.cancel();
                }
            }
        }
        if !self.aborted && now >= ending.abort_at {
            self.aborted = true;
            let mut unfinished = Vec::new();
            for (token, held) in &self.held {
                if let Stage::Running(running) = &held.stage {
                    running.abort.abort();
                    unfinished.push(*token);
                }
            }
            for token in unfinished {
                tracing::warn!(message = %token.id, "handler did not end within the grace time; given back");
                self.give_back(token);
            }
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        let Some(ending) = self.ending else { return false };
        let settled = self.held.is_empty() && !self.calls.leasing && !self.calls.settling;
        // A call that is under way is worth its answer: it may be the one that gives everything back.
        let asking = self.calls.leasing || self.calls.settling || !self.aborted;
        let patience = if asking { ANSWER } else { Duration::ZERO };
        settled || Instant::now() >= ending.gone_at + patience
    }
}
