//! One bounded pass of maintenance, for a process that opens a directory only for a moment: removes what is past its
//! retention and puts dead letters into the text index, even where no worker ever runs. It does nothing that
//! [`super::Maintenance`] would not do.

use super::reap;
use crate::waiting::with_timeout;
use redrive_core::error::CallError;
use redrive_core::store::{Indexed, Reaped, Store};
use std::time::{Duration, Instant};

/// Items of each kind per commit, few enough to keep commits short.
const PAGE: usize = 200;

/// The result of [`tidy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TidyReport {
    /// What was reaped: expired leases, overdue messages, letters past their retention and the like.
    pub reaped: Reaped,
    /// Letters put into the text index.
    pub indexed: u64,
}

/// Does what is due in small commits, at least one, until nothing is left or the time is over. Does nothing on a
/// connection to another process: the process that holds the store maintains it.
///
/// # Errors
/// Returns the error of the store. Commits made before it remain.
pub async fn tidy(store: &dyn Store, within: Duration) -> Result<TidyReport, CallError> {
    let started = Instant::now();
    let mut tidied = TidyReport::default();
    loop {
        let Some(reaped) = with_timeout(store.tidy(PAGE)).await? else { return Ok(tidied) };
        tidied.reaped = tidied.reaped.and(&reaped);
        if !reaped.may_have_left_some(PAGE) || started.elapsed() >= within {
            break;
        }
    }
    reap::log_reaped(&tidied.reaped);
    while started.elapsed() < within {
        let Indexed { indexed, more } = with_timeout(store.index_text(PAGE)).await?;
        tidied.indexed += indexed;
        if !more {
            break;
        }
    }
    Ok(tidied)
}
