//! Injected faults, so that the test suite can show that it would catch real bugs. They exist only with the feature
//! `faults` and are selected at run time by `REDRIVE_FAULT`; a release build has none of them.

/// An injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Replies are sent before the commit.
    AckBeforeCommit,
    /// Commits are not synced.
    MissingFsync,
    /// Any token can settle a message.
    TokenNotChecked,
    /// A retry resets the number of attempts.
    CountReset,
    /// A message that goes back to its queue is not added to the index.
    IndexNotUpdated,
    /// A failed commit is reported as success.
    EioSwallowed,
    /// The audit row is written after the commit it belongs to.
    AuditOutsideCommit,
    /// A dead letter queue with many letters silently drops new ones.
    FullDlqDrops,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Self; 8] = [
        Self::AckBeforeCommit,
        Self::MissingFsync,
        Self::TokenNotChecked,
        Self::CountReset,
        Self::IndexNotUpdated,
        Self::EioSwallowed,
        Self::AuditOutsideCommit,
        Self::FullDlqDrops,
    ];

    /// The name in `REDRIVE_FAULT`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AckBeforeCommit => "ack-before-commit",
            Self::MissingFsync => "missing-fsync",
            Self::TokenNotChecked => "token-not-checked",
            Self::CountReset => "count-reset",
            Self::IndexNotUpdated => "index-not-updated",
            Self::EioSwallowed => "eio-swallowed",
            Self::AuditOutsideCommit => "audit-outside-commit",
            Self::FullDlqDrops => "full-drawer-drops",
        }
    }
}

/// Whether this fault is active. Always false without the feature.
#[cfg(not(feature = "faults"))]
pub(crate) const fn is(_: Fault) -> bool {
    false
}

/// Whether this fault is active.
#[cfg(feature = "faults")]
pub(crate) fn is(fault: Fault) -> bool {
    chosen::current() == Some(fault)
}

#[cfg(feature = "faults")]
pub use chosen::choose;

#[cfg(feature = "faults")]
mod chosen {
    use super::Fault;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// 0: read the environment; 1: no fault; n + 2: the n-th fault.
    static CHOSEN: AtomicUsize = AtomicUsize::new(0);

    /// Activates one fault, or none, for this process.
    pub fn choose(fault: Option<Fault>) {
        let n = fault.and_then(|f| Fault::ALL.iter().position(|g| *g == f)).map_or(1, |n| n + 2);
        CHOSEN.store(n, Ordering::SeqCst);
    }

    pub(super) fn current() -> Option<Fault> {
        match CHOSEN.load(Ordering::SeqCst) {
            0 => {
                let name = std::env::var("REDRIVE_FAULT").unwrap_or_default();
                choose(Fault::ALL.into_iter().find(|f| f.name() == name));
                current()
            }
            n => n.checked_sub(2).and_then(|n| Fault::ALL.get(n).copied()),
        }
    }
}
