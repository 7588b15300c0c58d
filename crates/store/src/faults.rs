//! Deliberate bugs, so that the suite can show that it would catch real ones. They exist only under the
//! feature `faults` and are chosen at run time by `REDRIVE_FAULT`; a release build has none of them.

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Replies go out before the commit.
    AckBeforeCommit,
    /// Commits are not synced.
    MissingFsync,
    /// Any token settles.
    TokenNotChecked,
    /// A retry forgets the attempts.
    CountReset,
    /// A message that goes back to its queue is not indexed.
    IndexNotUpdated,
    /// A failed commit is reported as success.
    EioSwallowed,
    /// The audit row is written after the commit it belongs to.
    AuditOutsideCommit,
    /// A drawer with many letters takes no more, and says nothing.
    FullDrawerDrops,
}

impl Fault {
    /// Every one.
    pub const ALL: [Self; 8] = [
        Self::AckBeforeCommit,
        Self::MissingFsync,
        Self::TokenNotChecked,
        Self::CountReset,
        Self::IndexNotUpdated,
        Self::EioSwallowed,
        Self::AuditOutsideCommit,
        Self::FullDrawerDrops,
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
            Self::FullDrawerDrops => "full-drawer-drops",
        }
    }
}

/// Whether this bug is switched on. Always false without the feature.
#[cfg(not(feature = "faults"))]
pub(crate) const fn is(_: Fault) -> bool {
    false
}

/// Whether this bug is switched on.
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

    /// 0 = ask the environment, 1 = none, n + 2 = the n-th fault.
    static CHOSEN: AtomicUsize = AtomicUsize::new(0);

    /// Switches a bug on, or all off, for this process.
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
