//! Where a message is in its life. [`Phase`] is what a store writes down; [`State`] is what people see at an
//! instant: waiting work is `scheduled` until its time and `ready` from then on, without anybody touching it.

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
    /// Where a message is, as people see it.
    State, "state", {
        /// Waiting for its time: a delay, a snooze or a backoff.
        Scheduled = "scheduled",
        /// May be leased now.
        Ready = "ready",
        /// A worker has it.
        Leased = "leased",
        /// A dead letter.
        Dead = "dead",
        /// Acknowledged.
        Done = "done",
        /// Taken back by its owner.
        Cancelled = "cancelled",
        /// Its time was over and its queue drops such messages.
        Expired = "expired",
        /// Removed by an operator or by retention.
        Purged = "purged",
    }
}

named! {
    /// How a message ended. From here nothing leads back.
    Final, "final state", {
        /// Acknowledged.
        Done = "done",
        /// Taken back.
        Cancelled = "cancelled",
        /// Too late, and dropped by policy.
        Expired = "expired",
        /// Removed.
        Purged = "purged",
    }
}

/// The exclusive, expiring right to work on a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// What the holder must show.
    pub secret: Secret,
    /// Who holds it.
    pub worker: String,
    /// Since when.
    pub granted_at: Time,
    /// Until when.
    pub expires_at: Time,
    /// The epoch of its breaker in which it was granted, if it has one.
    pub permit: Option<u64>,
}

/// What a store writes down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// In the queue: scheduled or ready, depending on the clock.
    Waiting,
    /// With a worker.
    Leased(Lease),
    /// A dead letter.
    Dead,
    /// Over.
    Over(Final),
}

/// The changing part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Where it is.
    pub phase: Phase,
    /// When it may be leased; inside a priority the order is by this, then by sequence.
    pub ready_at: Time,
    /// Executions begun in this generation.
    pub attempts: u32,
    /// Leases granted ever: never decreases, the fencing number (I18, I24).
    pub deliveries: u32,
    /// 1 at first; every redrive starts a new one.
    pub generation: u32,
    /// Attempts given back by release and snooze in this generation.
    pub given_back: u32,
    /// Failed deliveries ever; the ordinal of the next failure in the history.
    pub failed: u32,
    /// When the first failure of this generation was.
    pub failing_since: Option<Time>,
    /// The delay before the last retry, for decorrelated jitter.
    pub last_delay: Option<Span>,
    /// When it was first leased.
    pub first_received_at: Option<Time>,
    /// When it last changed.
    pub updated_at: Time,
    /// What its failures say about it.
    pub indicators: Indicators,
    /// How far its handlers said they are; kept until it is over.
    pub progress: Option<Progress>,
}

impl Life {
    /// The beginning of a life: waiting until `ready_at`.
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

    /// What people see now.
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

    /// The lease, if a worker has the message.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        match &self.phase {
            Phase::Leased(lease) => Some(lease),
            Phase::Waiting | Phase::Dead | Phase::Over(_) => None,
        }
    }

    /// The life of a letter whose redrive was taken back: as it was at death. Only what never goes back stays as it
    /// is now: leases that were granted meanwhile and given back.
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
