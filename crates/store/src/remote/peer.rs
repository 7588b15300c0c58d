//! Who is at the other end of a connection. Error messages name it, and how much a failed write tells depends on it.

use redrive_core::error::{StoreError, StoreErrorKind};
use std::fmt;

/// What to say when a call may or may not have been carried out.
pub(super) const UNKNOWN_OUTCOME: &str = "whether the request took effect is not known: look, then ask again";
/// What to say when a call was certainly not carried out.
pub(super) const NOTHING_DONE: &str = "nothing was done: ask again";

/// The other end of a connection, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// A process of this machine, on the socket of a data directory.
    Process,
    /// A node on any machine, over TCP and TLS.
    #[cfg(feature = "nodes")]
    Node,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "the process that holds the data directory",
            #[cfg(feature = "nodes")]
            Self::Node => "the node that holds the store",
        })
    }
}

impl Peer {
    /// Whether a write that fails has sent nothing. That is so for a system call. A write through TLS may fail after it has
    /// sent a part of what it was given.
    pub(super) const fn failed_writes_send_nothing(self) -> bool {
        match self {
            Self::Process => true,
            #[cfg(feature = "nodes")]
            Self::Node => false,
        }
    }

    /// The error of a connection that broke while a call was on its way.
    pub(super) fn went_away(self, error: Option<&std::io::Error>) -> StoreError {
        let why = error.map(|error| format!(" ({error})")).unwrap_or_default();
        let text = format!("{self} went away before it answered{why}; {UNKNOWN_OUTCOME}");
        StoreError::new(StoreErrorKind::Unreachable, text)
    }

    /// The error of a call to a store that has stopped in the other process.
    pub(super) fn store_stopped(self, error: &StoreError) -> StoreError {
        let text = match self {
            Self::Process => {
                format!("the store stopped in {self} ({error}); {UNKNOWN_OUTCOME}")
            }
            #[cfg(feature = "nodes")]
            Self::Node => format!("the store stopped on {self} ({error}); {UNKNOWN_OUTCOME}"),
        };
        StoreError::new(StoreErrorKind::Unreachable, text)
    }

    /// The error of bytes that are not this protocol.
    pub(super) fn not_our_protocol(self, what: impl fmt::Display) -> StoreError {
        StoreError::new(StoreErrorKind::Protocol, format!("the connection to {self}: {what}"))
    }

    /// The error of a greeting of another version.
    pub(super) fn other_version(self, theirs: u32, ours: u32) -> StoreError {
        let text =
            format!("{self} speaks version {theirs} and this one {ours}; use the same redrive for both");
        StoreError::new(StoreErrorKind::Protocol, text)
    }

    /// The error of a holder that has as many connections as it serves.
    pub(super) fn no_more_connections(self, max: usize) -> StoreError {
        let text = format!(
            "{self} serves {max} connections already and takes no more; try again when some of its callers have ended, \
             or share one connection between them"
        );
        StoreError::new(StoreErrorKind::Busy, text)
    }

    /// The error of a holder that has as many waiting callers as it accepts.
    pub(super) fn no_more_waits(self, max: usize) -> StoreError {
        let text = format!(
            "{max} callers wait for work through {self}, and it takes no more; lease without --wait and ask again later, \
             or let one `redrive work --concurrency N` do the work of many"
        );
        StoreError::new(StoreErrorKind::Busy, text)
    }
}
