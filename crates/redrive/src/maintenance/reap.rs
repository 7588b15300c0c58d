//! What time does to messages and letters, where nobody comes by to see it: run-out leases, overdue messages,
//! ended quarantines, letters past their retention, forgotten keys. One verb of the store does them all in one
//! bounded pass; this says what it did.

use super::{Chore, Done};
use crate::pace::ask;
use async_trait::async_trait;
use redrive_core::error::Error;
use redrive_core::store::{Reaped, Store};
use redrive_core::time::Span;

/// Reaps, a page at a time, as long as there is more.
#[derive(Clone, Copy, Debug)]
pub struct Reap {
    /// How often.
    pub every: Span,
    /// Items of each kind per pass.
    pub page: usize,
}

impl Default for Reap {
    /// Every 5 s: a lost lease in a queue that nobody leases from is seen within that.
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

    async fn pass(&self, store: &dyn Store) -> Result<Done, Error> {
        let reaped = ask(store.reap(self.page)).await?;
        say(&reaped);
        Ok(Done { did: reaped.total(), more: reaped.may_have_left_some(self.page) })
    }
}

/// Never silent: what time and retention took away is said.
pub(super) fn say(reaped: &Reaped) {
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
