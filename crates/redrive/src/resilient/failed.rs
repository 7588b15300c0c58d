//! What a caller is told when its call failed for good: its own error, as it was, and where the operation is now.

use crate::handler::{HandlerError, short_name_of};
use redrive_core::error::Refusal;
use redrive_core::ids::MessageId;
use redrive_core::time::{Span, Time};
use std::error::Error as StdError;
use std::fmt;

/// A call that failed for good.
#[derive(Debug, PartialEq)]
pub struct Failed<E> {
    /// Why.
    pub why: Why<E>,
    /// Executions made.
    pub attempts: u32,
    /// Where the operation is now.
    pub kept: Kept,
}

/// Why a call failed for good.
#[derive(Debug, PartialEq)]
pub enum Why<E> {
    /// The error of the last attempt, unchanged.
    Error(E),
    /// The last attempt took longer than this.
    TimedOut(Span),
    /// The last attempt panicked with these words.
    Panicked(String),
    /// The breaker is open: it was not executed at all.
    Open {
        /// When it may be tried again; nothing when that depends on others that are trying now.
        until: Option<Time>,
    },
    /// There is no such policy, or the operation is not one that could be kept. It was not executed.
    Refused(Refusal),
}

/// Where a failed operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// A dead letter with this id.
    Stored(MessageId),
    /// In this process: the store cannot be written at the moment. It will be a dead letter with this id.
    Buffered(MessageId),
    /// Nowhere: the store cannot be written and there is no room. Counted in the executor's state, and logged.
    Dropped(MessageId),
    /// Nowhere, because it was not executed and is not to be kept.
    Nowhere,
}

impl Kept {
    /// The id of the dead letter, when there is or will be one.
    #[must_use]
    pub const fn id(&self) -> Option<MessageId> {
        match self {
            Self::Stored(id) | Self::Buffered(id) => Some(*id),
            Self::Dropped(_) | Self::Nowhere => None,
        }
    }
}

impl<E> Failed<E> {
    /// The error of the last attempt, when it ended with one.
    pub fn error(&self) -> Option<&E> {
        match &self.why {
            Why::Error(error) => Some(error),
            Why::TimedOut(_) | Why::Panicked(_) | Why::Open { .. } | Why::Refused(_) => None,
        }
    }

    /// The same, by value.
    #[must_use]
    pub fn into_error(self) -> Option<E> {
        match self.why {
            Why::Error(error) => Some(error),
            Why::TimedOut(_) | Why::Panicked(_) | Why::Open { .. } | Why::Refused(_) => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for Failed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::Error(error) => error.fmt(f),
            Why::TimedOut(limit) => write!(f, "no answer within {limit}"),
            Why::Panicked(words) => write!(f, "it panicked: {words}"),
            Why::Open { until: Some(until) } => {
                write!(f, "the breaker is open until {until}; it was not executed")
            }
            Why::Open { until: None } => {
                f.write_str("the breaker is trying whether it works again; it was not executed")
            }
            Why::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl<E: StdError + 'static> StdError for Failed<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.why {
            Why::Error(error) => error.source(),
            Why::TimedOut(_) | Why::Panicked(_) | Why::Open { .. } | Why::Refused(_) => None,
        }
    }
}

/// What an executor reads from a caller's error without taking it: every error type of the standard kind, and
/// [`HandlerError`], which can say more (a code, permanent, retry after).
pub trait Describe {
    /// The error, as it is filed.
    fn describe(&self) -> HandlerError;
}

impl<E: StdError> Describe for E {
    fn describe(&self) -> HandlerError {
        HandlerError::of(&short_name_of::<E>(), self)
    }
}

impl Describe for HandlerError {
    fn describe(&self) -> HandlerError {
        self.clone()
    }
}
