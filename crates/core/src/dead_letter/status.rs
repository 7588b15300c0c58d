//! The status of a dead letter and the table of its changes. [`next_status`] is the only place that changes one.

use crate::error::Refusal;
use crate::failure::named;
use crate::ids::MessageId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

named! {
    /// Where a dead letter stands.
    Status, "status", {
        /// Waiting for a decision.
        Pending = "pending",
        /// Redriven and not settled yet; the message counts in its queue.
        Retrying = "retrying",
        /// Somebody must look.
        Review = "review",
        /// Set aside until a time.
        Quarantined = "quarantined",
        /// Closed: dealt with.
        Resolved = "resolved",
        /// Closed: given up.
        Abandoned = "abandoned",
        /// Removed, and not gone yet: it can be taken back for a while. Counts as purged, not as dead.
        Purged = "purged",
    }
}

impl Status {
    /// Nobody has to decide about it any more. Closed letters are kept until retention and change only by reopening.
    #[must_use]
    pub const fn is_closed(self) -> bool {
        match self {
            Self::Resolved | Self::Abandoned | Self::Purged => true,
            Self::Pending | Self::Retrying | Self::Review | Self::Quarantined => false,
        }
    }
}

/// Everything that can move a status: the operator's acts and the message's own fate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Send it back to work.
    Retry,
    /// Ask for a person.
    Review,
    /// Set aside.
    Quarantine,
    /// Out of quarantine or review, back to pending.
    Release,
    /// Close as dealt with.
    Resolve,
    /// Close as given up.
    Abandon,
    /// Open again.
    Reopen,
    /// Remove.
    Purge,
    /// Take back what was removed.
    Unpurge,
    /// The redriven message was acknowledged.
    Succeeded,
    /// The redriven message died again.
    DiedAgain,
    /// The redrive was taken back before anybody leased the message.
    Undo,
}

impl Move {
    /// Every one.
    pub const ALL: [Self; 12] = [
        Self::Retry,
        Self::Review,
        Self::Quarantine,
        Self::Release,
        Self::Resolve,
        Self::Abandon,
        Self::Reopen,
        Self::Purge,
        Self::Unpurge,
        Self::Succeeded,
        Self::DiedAgain,
        Self::Undo,
    ];

    /// The verb for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Review => "review",
            Self::Quarantine => "quarantine",
            Self::Release => "release",
            Self::Resolve => "resolve",
            Self::Abandon => "abandon",
            Self::Reopen => "reopen",
            Self::Purge => "purge",
            Self::Unpurge => "unpurge",
            Self::Succeeded => "complete",
            Self::DiedAgain => "bury",
            Self::Undo => "pull back",
        }
    }
}

/// The status table of PRODUCT.md section 3, whole, with the purge that can be undone. Anything it does not list is
/// a conflict that says so.
///
/// # Errors
/// [`Refusal::WrongStatus`] with a hint at what would work.
pub fn next_status(id: MessageId, from: Status, by: Move) -> Result<Status, Refusal> {
    let refuse =
        |hint: &str| Err(Refusal::WrongStatus { id, status: from, act: by.name().into(), hint: hint.into() });
    const OPEN_FIRST: &str = "reopen it first";
    const IN_FLIGHT: &str = "it was sent back to work; wait until the message is done or dies again";
    match from {
        Status::Pending | Status::Review | Status::Quarantined => match by {
            Move::Retry => Ok(Status::Retrying),
            Move::Review if from == Status::Review => refuse("it is under review already"),
            Move::Review => Ok(Status::Review),
            Move::Quarantine if from == Status::Quarantined => refuse("it is in quarantine already"),
            Move::Quarantine => Ok(Status::Quarantined),
            Move::Release if from == Status::Pending => {
                refuse("it is neither in quarantine nor under review")
            }
            Move::Release => Ok(Status::Pending),
            Move::Resolve => Ok(Status::Resolved),
            Move::Abandon => Ok(Status::Abandoned),
            Move::Reopen => refuse("it is open"),
            Move::Purge => refuse("it is open; resolve or abandon it first"),
            Move::Unpurge => refuse("it was not purged"),
            Move::Succeeded | Move::DiedAgain | Move::Undo => refuse("it is not being retried"),
        },
        Status::Retrying => match by {
            Move::Succeeded => Ok(Status::Resolved),
            Move::DiedAgain | Move::Undo => Ok(Status::Pending),
            Move::Retry
            | Move::Review
            | Move::Quarantine
            | Move::Release
            | Move::Resolve
            | Move::Abandon
            | Move::Reopen
            | Move::Purge => refuse(IN_FLIGHT),
            Move::Unpurge => refuse("it was not purged"),
        },
        Status::Resolved | Status::Abandoned => match by {
            Move::Reopen => Ok(Status::Pending),
            Move::Purge => Ok(Status::Purged),
            Move::Unpurge => refuse("it was not purged"),
            Move::Retry
            | Move::Review
            | Move::Quarantine
            | Move::Release
            | Move::Resolve
            | Move::Abandon
            | Move::Succeeded
            | Move::DiedAgain
            | Move::Undo => refuse(OPEN_FIRST),
        },
        Status::Purged => match by {
            // Where to is written on its file; resolved is what it was at least.
            Move::Unpurge => Ok(Status::Resolved),
            Move::Retry
            | Move::Review
            | Move::Quarantine
            | Move::Release
            | Move::Resolve
            | Move::Abandon
            | Move::Reopen
            | Move::Purge
            | Move::Succeeded
            | Move::DiedAgain
            | Move::Undo => refuse(UNPURGE_FIRST),
        },
    }
}

/// What a purged letter answers to everything else.
pub(super) const UNPURGE_FIRST: &str = "it was purged; take it back with unpurge first";

#[cfg(test)]
mod tests {
    use super::*;

    /// The transitions of PRODUCT.md section 3, word for word.
    fn legal(from: Status, by: Move) -> Option<&'static str> {
        match (from, by) {
            (Status::Pending | Status::Review | Status::Quarantined, Move::Retry) => Some("retrying"),
            (Status::Pending | Status::Quarantined, Move::Review) => Some("review"),
            (Status::Pending | Status::Review, Move::Quarantine) => Some("quarantined"),
            (Status::Review | Status::Quarantined, Move::Release)
            | (Status::Retrying, Move::DiedAgain | Move::Undo)
            | (Status::Resolved | Status::Abandoned, Move::Reopen) => Some("pending"),
            (Status::Pending | Status::Review | Status::Quarantined, Move::Resolve)
            | (Status::Retrying, Move::Succeeded) => Some("resolved"),
            (Status::Pending | Status::Review | Status::Quarantined, Move::Abandon) => Some("abandoned"),
            (Status::Resolved | Status::Abandoned, Move::Purge) => Some("purged"),
            (Status::Purged, Move::Unpurge) => Some("resolved"),
            (_, _) => None,
        }
    }

    #[test]
    fn the_status_table_is_exactly_the_one_of_the_product() {
        let id = MessageId::new(1, [0; 10]);
        let mut cells = 0;
        for from in Status::ALL {
            for by in Move::ALL {
                let got = match next_status(id, *from, by) {
                    Ok(status) => Some(status.name()),
                    Err(refusal) => {
                        let text = refusal.to_string();
                        assert!(text.contains(from.name()) && text.contains(by.name()), "{text}");
                        None
                    }
                };
                assert_eq!(got, legal(*from, by), "{from} x {by:?}");
                cells += 1;
            }
        }
        assert_eq!(cells, 84);
    }
}
