//! How the loops wait: longer and longer while there is nothing to do or nobody answers, never in step with
//! other processes, and never longer than one answer of the store may take.

use redrive_core::error::{Error, Outcome, StoreError, StoreErrorKind};
use std::future::Future;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// No verb of a store takes this long; one that does will not answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// The outcome of a call, or that nobody answered in time. Then it is not known whether it took effect.
pub(crate) async fn ask<T>(call: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    tokio::time::timeout(ANSWER_WITHIN, call).await.unwrap_or_else(|_| {
        let why = format!("the store did not answer within {} s", ANSWER_WITHIN.as_secs());
        Err(StoreError::new(StoreErrorKind::Unreachable, why).into())
    })
}

/// Whether going on is useless: the store cannot be used any more by this process.
pub(crate) fn is_final(error: &Error) -> bool {
    match error {
        Error::Refused(_) => false,
        Error::Store(error) => match error.kind {
            StoreErrorKind::Stopped
            | StoreErrorKind::Newer
            | StoreErrorKind::NotAStore
            | StoreErrorKind::Unsupported
            | StoreErrorKind::Protocol
            | StoreErrorKind::Untrusted => true,
            StoreErrorKind::Full
            | StoreErrorKind::Undone
            | StoreErrorKind::Damaged
            | StoreErrorKind::Locked
            | StoreErrorKind::Io
            | StoreErrorKind::Unreachable
            | StoreErrorKind::Busy => false,
        },
    }
}

/// A wait that doubles up to a longest one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    shortest: Duration,
    longest: Duration,
    next: Duration,
}

impl Pace {
    pub(crate) fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest, next: shortest }
    }

    /// There was something to do.
    pub(crate) fn reset(&mut self) {
        self.next = self.shortest;
    }

    /// How long to wait now: up to a fifth shorter than planned, so that processes do not run in step.
    pub(crate) fn wait(&mut self) -> Duration {
        let now = self.next;
        self.next = (now * 2).min(self.longest);
        jittered(now)
    }
}

/// Up to a fifth shorter. The chance is that of a fresh id.
pub(crate) fn jittered(span: Duration) -> Duration {
    let [.., chance] = redrive_store::new_id().to_bytes();
    span.mul_f64(1.0 - f64::from(chance) / 255.0 / 5.0)
}

/// Waits, unless it is time to stop; says whether it is.
pub(crate) async fn pause(stop: &CancellationToken, span: Duration) -> bool {
    tokio::select! {
        () = stop.cancelled() => true,
        () = tokio::time::sleep(span) => stop.is_cancelled(),
    }
}
