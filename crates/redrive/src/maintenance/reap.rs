//! Applies what the passing of time does to messages and letters: expired leases, overdue messages, ended quarantines,
//! letters past their retention, idempotency keys past theirs. One call of the store does all of it in one bounded
//! pass; this chore makes that call and logs the result.

use super::{Chore, PassReport};
use crate::waiting::with_timeout;
use async_trait::async_trait;
use redrive_core::error::CallError;
use redrive_core::store::{Reaped, Store};
use redrive_core::time::Span;

/// Reaps one page at a time, as long as there is more.
#[derive(Clone, Copy, Debug)]
pub struct Reap {
    /// How often it runs.
    pub every: Span,
    /// Items of each kind per pass.
    pub page: usize,
}

impl Default for Reap {
    /// Runs every 5 s, so an expired lease in a queue that nobody leases from is noticed within that time.
    fn default() -> Self {
        Self { every: Span::from_secs(5), page: 1_000 }
    }
}

#[async_trait]
impl Chore for Reap {
    fn name(&self) -> &'static str {
        "reap"
    }

    fn every(&self) -> Span {
        self.every
    }

    async fn pass(&self, store: &dyn Store) -> Result<PassReport, CallError> {
        let reaped = with_timeout(store.reap(self.page)).await?;
        log_reaped(&reaped);
        Ok(PassReport { changed: reaped.total(), more: reaped.may_have_left_some(self.page) })
    }
}

/// Logs what was reaped, so that nothing is removed silently.
pub(super) fn log_reaped(reaped: &Reaped) {
    let Reaped {
        leases_lost,
        timed_out,
        released,
        replies_sent,
        letters_expired,
        letters_gone,
        keys_forgotten,
    } = *reaped;
    if reaped.total() > keys_forgotten {
        tracing::info!(
            leases_lost,
            timed_out,
            released,
            replies_sent,
            letters_expired,
            letters_gone,
            keys_forgotten,
            "reaped"
        );
    }
}
