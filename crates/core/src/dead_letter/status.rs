//! The status of a dead letter and the table of its changes. Only [`next_status`] changes a status.

use crate::error::Refusal;
use crate::failure::named;
use crate::ids::MessageId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

named! {
    /// The status of a dead letter.
    Status, "status", {
        /// Waits for a decision.
        Pending = "pending",
        /// Redriven and not settled yet. The message counts in its queue.
        Retrying = "retrying",
        /// Waits for a review by a person.
        Review = "review",
        /// In quarantine until a time.
        Quarantined = "quarantined",
        /// Closed as dealt with.
        Resolved = "resolved",
        /// Closed as given up.
        Abandoned = "abandoned",
        /// Removed, but the purge can still be undone. Counts as purged, not as dead.
        Purged = "purged",
    }
}

impl Status {
    /// Whether nobody has to decide about the letter any more. Closed letters are kept until their retention
    /// ends, and change only by reopening or purging.
    #[must_use]
    pub const fn is_closed(self) -> bool {
        match self {
            Self::Resolved | Self::Abandoned | Self::Purged => true,
            Self::Pending | Self::Retrying | Self::Review | Self::Quarantined => false,
        }
    }
}

/// Everything that can change a status: the acts of an operator and the fate of the redriven message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusChange {
    /// The letter is redriven.
    Retry,
    /// A review is requested.
    Review,
    /// The letter goes into quarantine.
    Quarantine,
    /// The letter leaves quarantine or review, back to pending.
    Release,
    /// The letter is closed as dealt with.
    Resolve,
    /// The letter is closed as given up.
    Abandon,
    /// The letter is opened again.
    Reopen,
    /// The letter is removed.
    Purge,
    /// The purge is undone.
    Unpurge,
    /// The redriven message was acknowledged.
    Succeeded,
    /// The redriven message died again.
    DiedAgain,
    /// The redrive was undone before an attempt counted.
    Undo,
}

impl StatusChange {
    /// Every change.
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

    /// The verb of this change in error texts.
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

/// The status after a change, by the table in `docs/lifecycle.md`. A change that the table does not list is
/// refused.
///
/// # Errors
/// Returns [`Refusal::WrongStatus`] with a hint at what to do instead.
pub fn next_status(id: MessageId, from: Status, change: StatusChange) -> Result<Status, Refusal> {
    let refuse = |hint: &str| {
        Err(Refusal::WrongStatus { id, status: from, act: change.name().into(), hint: hint.into() })
    };
    const OPEN_FIRST: &str = "reopen it first";
    const IN_FLIGHT: &str = "it was sent back to work; wait until the message is done or dies again";
    match from {
        Status::Pending | Status::Review | Status::Quarantined => match change {
            StatusChange::Retry => Ok(Status::Retrying),
            StatusChange::Review if from == Status::Review => refuse("it is under review already"),
            StatusChange::Review => Ok(Status::Review),
            StatusChange::Quarantine if from == Status::Quarantined => refuse("it is in quarantine already"),
            StatusChange::Quarantine => Ok(Status::Quarantined),
            StatusChange::Release if from == Status::Pending => {
                refuse("it is neither in quarantine nor under review")
            }
            StatusChange::Release => Ok(Status::Pending),
            StatusChange::Resolve => Ok(Status::Resolved),
            StatusChange::Abandon => Ok(Status::Abandoned),
            StatusChange::Reopen => refuse("it is open"),
            StatusChange::Purge => refuse("it is open; resolve or abandon it first"),
            StatusChange::Unpurge => refuse("it was not purged"),
            StatusChange::Succeeded | StatusChange::DiedAgain | StatusChange::Undo => {
                refuse("it is not being retried")
            }
        },
        Status::Retrying => match change {
            StatusChange::Succeeded => Ok(Status::Resolved),
            StatusChange::DiedAgain | StatusChange::Undo => Ok(Status::Pending),
            StatusChange::Retry
            | StatusChange::Review
            | StatusChange::Quarantine
            | StatusChange::Release
            | StatusChange::Resolve
            | StatusChange::Abandon
            | StatusChange::Reopen
            | StatusChange::Purge => refuse(IN_FLIGHT),
            StatusChange::Unpurge => refuse("it was not purged"),
        },
        Status::Resolved | Status::Abandoned => match change {
            StatusChange::Reopen => Ok(Status::Pending),
            StatusChange::Purge => Ok(Status::Purged),
            StatusChange::Unpurge => refuse("it was not purged"),
            StatusChange::Retry
            | StatusChange::Review
            | StatusChange::Quarantine
            | StatusChange::Release
            | StatusChange::Resolve
            | StatusChange::Abandon
            | StatusChange::Succeeded
            | StatusChange::DiedAgain
            | StatusChange::Undo => refuse(OPEN_FIRST),
        },
        Status::Purged => match change {
            // The record knows the status before the purge; `resolved` stands for it here.
            StatusChange::Unpurge => Ok(Status::Resolved),
            StatusChange::Retry
            | StatusChange::Review
            | StatusChange::Quarantine
            | StatusChange::Release
            | StatusChange::Resolve
            | StatusChange::Abandon
            | StatusChange::Reopen
            | StatusChange::Purge
            | StatusChange::Succeeded
            | StatusChange::DiedAgain
            | StatusChange::Undo => refuse(UNPURGE_FIRST),
        },
    }
}

/// The hint for every act on a purged letter except unpurge.
pub(super) const UNPURGE_FIRST: &str = "it was purged; take it back with unpurge first";

#[cfg(test)]
mod tests {
    use super::*;

    /// The legal changes, written out a second time.
    fn legal(from: Status, change: StatusChange) -> Option<&'static str> {
        match (from, change) {
            (Status::Pending | Status::Review | Status::Quarantined, StatusChange::Retry) => Some("retrying"),
            (Status::Pending | Status::Quarantined, StatusChange::Review) => Some("review"),
            (Status::Pending | Status::Review, StatusChange::Quarantine) => Some("quarantined"),
            (Status::Review | Status::Quarantined, StatusChange::Release)
            | (Status::Retrying, StatusChange::DiedAgain | StatusChange::Undo)
            | (Status::Resolved | Status::Abandoned, StatusChange::Reopen) => Some("pending"),
            (Status::Pending | Status::Review | Status::Quarantined, StatusChange::Resolve)
            | (Status::Retrying, StatusChange::Succeeded) => Some("resolved"),
            (Status::Pending | Status::Review | Status::Quarantined, StatusChange::Abandon) => {
                Some("abandoned")
            }
            (Status::Resolved | Status::Abandoned, StatusChange::Purge) => Some("purged"),
            (Status::Purged, StatusChange::Unpurge) => Some("resolved"),
            (_, _) => None,
        }
    }

    #[test]
    fn the_status_table_allows_exactly_the_listed_changes() {
        let id = MessageId::new(1, [0; 10]);
        let mut cells = 0;
        for from in Status::ALL {
            for change in StatusChange::ALL {
                let got = match next_status(id, *from, change) {
                    Ok(status) => Some(status.name()),
                    Err(refusal) => {
                        let text = refusal.to_string();
                        assert!(text.contains(from.name()) && text.contains(change.name()), "{text}");
                        None
                    }
                };
                assert_eq!(got, legal(*from, change), "{from} x {change:?}");
                cells += 1;
            }
        }
        assert_eq!(cells, 84);
    }
}
