//! How loops wait: with growing delays while there is nothing to do or the store fails, with jitter so that processes
//! do not run in step, and with a time limit for every store call.

use redrive_core::error::{CallError, StoreError, StoreErrorKind, StoreResult};
use std::future::Future;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// No call of a store takes this long; one that does will never be answered.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for a store call, and fails if the store does not answer in time. After a timeout it is not known whether the
/// call took effect.
pub(crate) async fn with_timeout<T>(call: impl Future<Output = StoreResult<T>>) -> StoreResult<T> {
    tokio::time::timeout(CALL_TIMEOUT, call).await.unwrap_or_else(|_| {
        let why = format!("the store did not answer within {} s", CALL_TIMEOUT.as_secs());
        Err(StoreError::new(StoreErrorKind::Unreachable, why).into())
    })
}

/// Whether retrying is useless because this process cannot use the store any more.
pub(crate) fn is_fatal(error: &CallError) -> bool {
    match error {
        CallError::Refused(_) => false,
        CallError::Store(error) => match error.kind {
            StoreErrorKind::Stopped
            | StoreErrorKind::Newer
            | StoreErrorKind::NotAStore
            | StoreErrorKind::Unsupported
            | StoreErrorKind::Protocol
            | StoreErrorKind::Unauthenticated
            | StoreErrorKind::Untrusted => true,
            StoreErrorKind::Full
            | StoreErrorKind::Undone
            | StoreErrorKind::Damaged
            | StoreErrorKind::Locked
            | StoreErrorKind::Io
            | StoreErrorKind::Unreachable
            | StoreErrorKind::Busy
            | StoreErrorKind::NotHolder => false,
        },
    }
}

/// A delay that doubles with each wait, up to a maximum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrowingDelay {
    shortest: Duration,
    longest: Duration,
    next: Duration,
}

impl GrowingDelay {
    pub(crate) fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest, next: shortest }
    }

    /// Starts again with the shortest delay.
    pub(crate) fn reset(&mut self) {
        self.next = self.shortest;
    }

    /// Returns how long to wait now, with jitter, and doubles the delay.
    pub(crate) fn wait(&mut self) -> Duration {
        let current = self.next;
        self.next = (current * 2).min(self.longest);
        jittered(current)
    }
}

/// Shortens a delay by a random part of up to a fifth, so that processes do not run in step. The randomness is that of
/// a new id.
pub(crate) fn jittered(span: Duration) -> Duration {
    let [.., random] = redrive_store::new_id().to_bytes();
    span.mul_f64(1.0 - f64::from(random) / 255.0 / 5.0)
}

/// Waits for `span` or until `stop` is cancelled. Returns whether `stop` is cancelled.
pub(crate) async fn pause(stop: &CancellationToken, span: Duration) -> bool {
    tokio::select! {
        () = stop.cancelled() => true,
        () = tokio::time::sleep(span) => stop.is_cancelled(),
    }
}
