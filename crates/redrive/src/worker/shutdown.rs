//! Stops a worker within its grace time. Leasing stops, and deliveries that have not started are released at once.
//! Handlers have 70 % of the grace time to finish; then they are cancelled. At 80 % they are aborted and their
//! messages released. A release does not use up an attempt.

use super::dispatcher::Dispatcher;
use super::messages::Stage;
use redrive_core::ids::LeaseToken;
use redrive_core::priority_queue::Dequeued;
use redrive_core::time::Span;
use std::time::Duration;
use tokio::time::Instant;

/// The grace time after [`WorkerHandle::stop_now`](super::WorkerHandle::stop_now).
const STOP_NOW_GRACE: Span = Span::from_secs(2);
/// How long to wait for the answer of the last store call once the grace time is over.
const LAST_ANSWER: Duration = Duration::from_secs(2);

/// The deadlines of a shutdown.
#[derive(Clone, Copy)]
pub(super) struct ShutdownTimes {
    /// When handlers are cancelled.
    pub(super) cancel_at: Instant,
    /// When handlers are aborted and their messages released.
    pub(super) abort_at: Instant,
    /// When the worker exits, even if the store has not confirmed every settlement.
    pub(super) exit_at: Instant,
}

impl ShutdownTimes {
    fn of(grace: Span, now: Instant) -> Self {
        let grace = grace.to_std();
        Self { cancel_at: now + grace * 7 / 10, abort_at: now + grace * 8 / 10, exit_at: now + grace }
    }
}

impl Dispatcher {
    /// Whether the worker has handled as many deliveries as [`WorkerBuilder::at_most`](super::WorkerBuilder::at_most)
    /// allows.
    pub(super) fn reached_max_deliveries(&self) -> bool {
        self.config.at_most.is_some_and(|most| self.leased_total >= most)
            && self.held.is_empty()
            && !self.in_flight.leasing
    }

    /// Stops leasing and releases every delivery that has not started.
    pub(super) fn begin_shutdown(&mut self) {
        if self.shutdown.is_some() {
            return;
        }
        // After a fatal error nothing can be settled any more, so there is nothing to wait for.
        let grace = if self.fatal_error.is_some() { Span::ZERO } else { self.config.grace };
        self.shutdown = Some(ShutdownTimes::of(grace, Instant::now()));
        self.shorten_grace();
        if let Some(waiting) = self.in_flight.waiting.take() {
            waiting.abort();
        }
        let not_started: Vec<LeaseToken> = self
            .held
            .iter()
            .filter(|(_, held)| matches!(held.stage, Stage::Waiting | Stage::Parked))
            .map(|(token, _)| *token)
            .collect();
        self.parked.clear();
        while matches!(self.hand_off.dequeue(), Dequeued::Item(_) | Dequeued::Expired(_)) {}
        for token in not_started {
            self.release(token);
        }
    }

    /// Shortens the grace time if `stop_now` was called.
    pub(super) fn shorten_grace(&mut self) {
        if let Some(times) = &mut self.shutdown
            && self.handle.stop_now.is_cancelled()
        {
            let shorter = ShutdownTimes::of(STOP_NOW_GRACE, Instant::now());
            if shorter.exit_at < times.exit_at {
                *times = ShutdownTimes { cancel_at: Instant::now(), ..shorter };
            }
        }
    }

    /// Cancels and aborts handlers when their deadlines are reached.
    pub(super) fn advance_shutdown(&mut self) {
        let Some(times) = self.shutdown else { return };
        let now = Instant::now();
        if !self.handlers_cancelled && now >= times.cancel_at {
            self.handlers_cancelled = true;
            for held in self.held.values() {
                if let Stage::Running(running) = &held.stage {
                    running.cancel.cancel();
                }
            }
        }
        if !self.handlers_aborted && now >= times.abort_at {
            self.handlers_aborted = true;
            let mut unfinished = Vec::new();
            for (token, held) in &self.held {
                if let Stage::Running(running) = &held.stage {
                    running.abort.abort();
                    unfinished.push(*token);
                }
            }
            for token in unfinished {
                tracing::warn!(message = %token.id, "the handler did not end in time; its message is released");
                self.release(token);
            }
        }
    }

    /// Whether the worker may exit: everything is settled, or the grace time is over.
    pub(super) fn may_exit(&self) -> bool {
        let Some(times) = self.shutdown else { return false };
        let settled = self.held.is_empty() && !self.in_flight.leasing && !self.in_flight.settling;
        // A call that is under way may be the one that releases everything, so its answer is worth a short wait.
        let call_pending = self.in_flight.leasing || self.in_flight.settling || !self.handlers_aborted;
        let extra = if call_pending { LAST_ANSWER } else { Duration::ZERO };
        settled || Instant::now() >= times.exit_at + extra
    }
}
