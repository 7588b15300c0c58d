//! The error of a call that failed for good: the caller's own error, unchanged, and where the operation is captured.

use crate::handler::{HandlerError, short_name_of};
use redrive_core::error::Refusal;
use redrive_core::ids::MessageId;
use redrive_core::time::{Span, Time};
use std::error::Error as StdError;
use std::fmt;

/// A call that failed for good.
#[derive(Debug, PartialEq)]
pub struct Failed<E> {
    /// Why it failed.
    pub cause: FailureCause<E>,
    /// The number of attempts made.
    pub attempts: u32,
    /// Where the operation is captured.
    pub capture: CaptureStatus,
}

/// Why a call failed for good.
#[derive(Debug, PartialEq)]
pub enum FailureCause<E> {
    /// The error of the last attempt, unchanged.
    Error(E),
    /// The last attempt took longer than this.
    TimedOut(Span),
    /// The last attempt panicked with this message.
    Panicked(String),
    /// The breaker is open; the operation was not executed.
    BreakerOpen {
        /// When it may be tried again. `None` if that depends on probes that are running now.
        until: Option<Time>,
    },
    /// There is no such policy, or the operation could not be captured. It was not executed.
    Refused(Refusal),
}

/// Where a failed operation is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureStatus {
    /// It is a dead letter with this id.
    Stored(MessageId),
    /// It is in the memory of this process because the store cannot be written now. It will be a dead letter with this
    /// id.
    Buffered(MessageId),
    /// Nowhere: the store cannot be written and there is no room. Counted in the executor's state, and logged.
    Dropped(MessageId),
    /// NotCaptured, because it was not executed and is not to be kept.
    NotCaptured,
}

impl CaptureStatus {
    /// The id of the dead letter, if there is one or will be one.
    #[must_use]
    pub const fn id(&self) -> Option<MessageId> {
        match self {
            Self::Stored(id) | Self::Buffered(id) => Some(*id),
            Self::Dropped(_) | Self::NotCaptured => None,
        }
    }
}

impl<E> Failed<E> {
    /// The error of the last attempt, if it returned one.
    pub fn error(&self) -> Option<&E> {
        match &self.cause {
            FailureCause::Error(error) => Some(error),
            FailureCause::TimedOut(_)
            | FailureCause::Panicked(_)
            | FailureCause::BreakerOpen { .. }
            | FailureCause::Refused(_) => None,
        }
    }

    /// Converts this into the error of the last attempt, if it returned one.
    #[must_use]
    pub fn into_error(self) -> Option<E> {
        match self.cause {
            FailureCause::Error(error) => Some(error),
            FailureCause::TimedOut(_)
            | FailureCause::Panicked(_)
            | FailureCause::BreakerOpen { .. }
            | FailureCause::Refused(_) => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for Failed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            FailureCause::Error(error) => error.fmt(f),
            FailureCause::TimedOut(limit) => write!(f, "no answer within {limit}"),
            FailureCause::Panicked(message) => write!(f, "it panicked: {message}"),
            FailureCause::BreakerOpen { until: Some(until) } => {
                write!(f, "the breaker is open until {until}; the operation was not executed")
            }
            FailureCause::BreakerOpen { until: None } => f.write_str(
                "the breaker is probing whether the dependency is back; the operation was not executed",
            ),
            FailureCause::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl<E: StdError + 'static> StdError for Failed<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match &self.cause {
            FailureCause::Error(error) => error.source(),
            FailureCause::TimedOut(_)
            | FailureCause::Panicked(_)
            | FailureCause::BreakerOpen { .. }
            | FailureCause::Refused(_) => None,
        }
    }
}

/// Describes a caller's error for the history of the dead letter, without consuming it. Implemented for every
/// `std::error::Error`, and for [`HandlerError`], which can carry more (a code, permanent, retry after).
pub trait Describe {
    /// The error, as it is recorded.
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
