//! The commands that a message accepts and the effects they have. A message changes state in no other way.

use super::state::{Final, Lifecycle};
use crate::failure::Reason;
use crate::ids::Secret;
use crate::policy::Verdict;
use crate::progress::Progress;
use crate::time::{Span, Time};

/// A command to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Lease the message to a worker.
    Lease {
        /// The secret of the new lease token.
        secret: Secret,
        /// The name of the worker.
        worker: String,
        /// How long the lease lasts.
        lease_for: Span,
        /// The breaker epoch in which the lease is granted. `None` if no breaker guards the message.
        permit: Option<u64>,
    },
    /// The worker has finished the message.
    Ack {
        /// The secret of the worker's lease.
        secret: Secret,
    },
    /// The worker has failed. The verdict was reached in the same commit.
    Fail {
        /// The secret of the worker's lease.
        secret: Secret,
        /// What happens to the message.
        verdict: Verdict,
    },
    /// The worker gives the message back: a release (ready now) or a snooze (ready later). The attempt does not
    /// count until the message was given back [`limits::GIVE_BACKS_MAX`](crate::limits::GIVE_BACKS_MAX) times
    /// in this generation; from then on it does, so that workers cannot pass a message round for ever.
    GiveBack {
        /// The secret of the worker's lease.
        secret: Secret,
        /// The earliest time of the next lease. `None` makes the message ready at once.
        until: Option<Time>,
        /// The executions allowed, which matters once the attempt counts.
        max_attempts: u32,
    },
    /// The worker needs more time.
    Extend {
        /// The secret of the worker's lease.
        secret: Secret,
        /// How long the lease lasts from now. Never shortens the lease.
        lease_for: Span,
        /// The progress of the handler, if it reports any.
        progress: Option<Progress>,
    },
    /// The store found that the lease has expired. Judged like a failure.
    LoseLease {
        /// What happens to the message.
        verdict: Verdict,
    },
    /// The ttl or deadline passed while the message waited.
    TimeOut {
        /// Whether the message becomes a dead letter or is dropped.
        verdict: Verdict,
    },
    /// The sender cancels the message.
    Cancel,
    /// An operator or retention removes the message.
    Purge,
    /// The dead letter goes back to its queue and starts a new generation.
    Redrive {
        /// The earliest time of the next lease.
        at: Time,
    },
    /// Undo a redrive while the message still waits and no attempt of the new generation counts.
    UndoRedrive,
}

impl Command {
    /// The verb of this command in error texts: "cannot {name} message …".
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

/// What a transition did, for the code that stores it and reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A worker holds the message.
    Granted,
    /// The message waits for another attempt.
    Retried,
    /// The message waits again, and the attempt did not count.
    GivenBack,
    /// The lease lasts longer.
    Extended,
    /// The message became a dead letter.
    Died(Reason),
    /// The message ended.
    Ended(Final),
    /// The dead letter was redriven and waits in its queue.
    Revived,
    /// The message is a dead letter again, as before the redrive.
    PulledBack,
}

/// The result of a legal command: the next lifecycle and its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a transition that is not stored did not happen"]
pub struct Transition {
    /// The lifecycle from now on.
    pub next: Lifecycle,
    /// What the command did.
    pub effect: Effect,
}
