//! The state of a message. [`Phase`] is what a store persists. [`State`] is what a user sees at a given
//! instant: a waiting message is `scheduled` until `ready_at` and `ready` from then on, without a write.

use crate::failure::named;
use crate::ids::Secret;
use crate::limits;
use crate::poison::Indicators;
use crate::progress::Progress;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

named! {
    /// The state of a message at a given instant, as shown to users.
    State, "state", {
        /// Waits until `ready_at`, because of a delay, a snooze or a backoff.
        Scheduled = "scheduled",
        /// Can be leased now.
        Ready = "ready",
        /// Leased to a worker.
        Leased = "leased",
        /// A dead letter.
        Dead = "dead",
        /// Acknowledged by a worker.
        Done = "done",
        /// Cancelled by its sender while it waited.
        Cancelled = "cancelled",
        /// Reached its ttl or deadline in a queue whose policy drops such messages.
        Expired = "expired",
        /// Removed by an operator or by retention.
        Purged = "purged",
    }
}

named! {
    /// How a message ended. No command leads out of a final state.
    Final, "final state", {
        /// Acknowledged by a worker.
        Done = "done",
        /// Cancelled by its sender while it waited.
        Cancelled = "cancelled",
        /// Dropped by the queue's policy because its ttl or deadline passed.
        Expired = "expired",
        /// Removed by an operator or by retention.
        Purged = "purged",
    }
}

/// The exclusive right of one worker to settle a message, until it expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The secret part of the lease token. A worker must present it to settle the message.
    pub secret: Secret,
    /// The name of the worker that holds the lease.
    pub worker: String,
    /// When the lease was granted.
    pub granted_at: Time,
    /// When the lease ends unless it is extended.
    pub expires_at: Time,
    /// The breaker epoch in which the lease was granted. `None` if no breaker guards the message.
    pub permit: Option<u64>,
}

/// The phase of a message, as a store persists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In the queue: scheduled or ready, depending on the clock.
    Waiting,
    /// Leased to a worker.
    Leased(Lease),
    /// A dead letter.
    Dead,
    /// The message has ended.
    Over(Final),
}

/// The mutable part of a message: its phase, its counters and its timestamps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    /// The current phase.
    pub phase: Phase,
    /// When the message becomes ready. Within a priority, messages are leased in the order of this time, then
    /// of their sequence number.
    pub ready_at: Time,
    /// Executions started in this generation.
    pub attempts: u32,
    /// Leases ever granted. Never decreases, and serves as the fencing number (I18, I24).
    pub deliveries: u32,
    /// Starts at 1. Every redrive starts the next generation.
    pub generation: u32,
    /// How many attempts of this generation a release or snooze gave back.
    pub given_back: u32,
    /// Failed deliveries in all generations; also the ordinal of the next failure in the history.
    pub failed: u32,
    /// The time of the first failure in this generation.
    pub failing_since: Option<Time>,
    /// The delay before the last retry. Decorrelated jitter builds on it.
    pub last_delay: Option<Span>,
    /// When the message was first leased.
    pub first_received_at: Option<Time>,
    /// When the message last changed.
    pub updated_at: Time,
    /// What the failures so far suggest about the message being poison.
    pub indicators: Indicators,
    /// The progress that the handlers last reported. Kept until the message ends.
    pub progress: Option<Progress>,
}

impl Lifecycle {
    /// The lifecycle of a new message, which waits until `ready_at`.
    #[must_use]
    pub fn new(ready_at: Time, now: Time) -> Self {
        Self {
            phase: Phase::Waiting,
            ready_at,
            attempts: 0,
            deliveries: 0,
            generation: 1,
            given_back: 0,
            failed: 0,
            failing_since: None,
            last_delay: None,
            first_received_at: None,
            updated_at: now,
            indicators: Indicators::default(),
            progress: None,
        }
    }

    /// The state at `now`.
    #[must_use]
    pub fn state(&self, now: Time) -> State {
        match &self.phase {
            Phase::Waiting if self.ready_at > now => State::Scheduled,
            Phase::Waiting => State::Ready,
            Phase::Leased(_) => State::Leased,
            Phase::Dead => State::Dead,
            Phase::Over(Final::Done) => State::Done,
            Phase::Over(Final::Cancelled) => State::Cancelled,
            Phase::Over(Final::Expired) => State::Expired,
            Phase::Over(Final::Purged) => State::Purged,
        }
    }

    /// Returns the lease, or `None` if no worker holds one.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        match &self.phase {
            Phase::Leased(lease) => Some(lease),
            Phase::Waiting | Phase::Dead | Phase::Over(_) => None,
        }
    }

    /// The lifecycle after a redrive was undone: the one at death, except for the fields that only move
    /// forward. Leases may have been granted and given back in the meantime, so `deliveries` and its companions
    /// keep their current values.
    #[must_use]
    pub fn pulled_back(&self, at_death: &Self) -> Self {
        Self {
            deliveries: self.deliveries,
            first_received_at: self.first_received_at,
            updated_at: self.updated_at,
            progress: self.progress.clone(),
            ..at_death.clone()
        }
    }

    /// Whether a release or snooze still gives the attempt back.
    #[must_use]
    pub fn can_give_back(&self) -> bool {
        self.given_back < limits::GIVE_BACKS_MAX
    }
}
