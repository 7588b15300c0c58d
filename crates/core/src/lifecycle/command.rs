//! What can be asked of a message, and what comes of it. These are the only ways its state changes.

use super::state::{Final, Life};
use crate::failure::Reason;
use crate::ids::Secret;
use crate::policy::Verdict;
use crate::progress::Progress;
use crate::time::{Span, Time};

/// What is asked of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Hand it to a worker.
    Lease {
        /// The secret of the new token.
        secret: Secret,
        /// Who gets it.
        worker: String,
        /// For how long.
        lease_for: Span,
        /// The permit of its breaker, if it has one.
        permit: Option<u64>,
    },
    /// The worker is done.
    Ack {
        /// The holder's secret.
        secret: Secret,
    },
    /// The worker failed; the verdict was judged in the same commit.
    Fail {
        /// The holder's secret.
        secret: Secret,
        /// What becomes of it.
        verdict: Verdict,
    },
    /// The worker gives it back: a release (now) or a snooze (later). The attempt does not count, up to a
    /// limit; after that it does, so that a message cannot be passed round for ever.
    GiveBack {
        /// The holder's secret.
        secret: Secret,
        /// Not before then; at once when not said.
        until: Option<Time>,
        /// Executions allowed, for when the attempt counts after all.
        max_attempts: u32,
    },
    /// The worker needs longer.
    Extend {
        /// The holder's secret.
        secret: Secret,
        /// How much longer from now; never shortens.
        lease_for: Span,
        /// How far it is, when it says so.
        progress: Option<Progress>,
    },
    /// The store found the lease run out; judged like a failure.
    LoseLease {
        /// What becomes of it.
        verdict: Verdict,
    },
    /// Its ttl or deadline passed while it waited.
    TimeOut {
        /// Dead or dropped.
        verdict: Verdict,
    },
    /// Its owner takes it back.
    Cancel,
    /// An operator or retention removes it.
    Purge,
    /// Back to work with a new generation.
    Redrive {
        /// Not before then.
        at: Time,
    },
    /// Pull a redriven message back, if nobody has leased it yet.
    UndoRedrive,
}

impl Command {
    /// The verb for messages: "cannot {name} message …".
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Lease { .. } => "lease",
            Self::Ack { .. } => "ack",
            Self::Fail { .. } => "fail",
            Self::GiveBack { .. } => "release",
            Self::Extend { .. } => "extend",
            Self::LoseLease { .. } => "reap",
            Self::TimeOut { .. } => "expire",
            Self::Cancel => "cancel",
            Self::Purge => "purge",
            Self::Redrive { .. } => "redrive",
            Self::UndoRedrive => "pull back",
        }
    }
}

/// What a transition means for everybody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A worker has it.
    Granted,
    /// It waits for another attempt.
    Retried,
    /// It waits again, and the attempt did not count.
    GivenBack,
    /// The lease is longer.
    Extended,
    /// It became a dead letter.
    Died(Reason),
    /// It is over.
    Ended(Final),
    /// It is work again.
    Revived,
    /// It is a dead letter again, as before the redrive.
    PulledBack,
}

/// The next life and what it means.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a transition that is not stored did not happen"]
pub struct Transition {
    /// The life from now on.
    pub next: Life,
    /// What it means.
    pub effect: Effect,
}
