//! One bounded pass of maintenance, for a process that opens a directory for a moment: what is past its retention
//! goes and what died is put into the text index, also where no worker ever runs. It decides nothing that
//! [`super::Maintenance`] would not do.

use super::reap;
use crate::pace::ask;
use redrive_core::error::Error;
use redrive_core::store::{Indexed, Reaped, Store};
use std::time::{Duration, Instant};

/// Items of each kind per commit: a commit stays short.
const PAGE: usize = 200;

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tidied {
    /// What time did to messages and letters.
    pub reaped: Reaped,
    /// Letters put into the text index.
    pub indexed: u64,
}

/// Does what is due, in small commits, until nothing is left or the time is over; at least one commit of it. Does
/// nothing on a connection to another process: whoever holds the store looks after it.
///
/// # Errors
/// The store's. What was done before stays done.
pub async fn tidy(store: &dyn Store, within: Duration) -> Result<Tidied, Error> {
    let began = Instant::now();
    let mut tidied = Tidied::default();
    loop {
        let Some(reaped) = ask(store.tidy(PAGE)).await? else { return Ok(tidied) };
        tidied.reaped = tidied.reaped.and(&reaped);
        if !reaped.may_have_left_some(PAGE) || began.elapsed() >= within {
            break;
        }
    }
    reap::say(&tidied.reaped);
    while began.elapsed() < within {
        let Indexed { indexed, more } = ask(store.index_text(PAGE)).await?;
        tidied.indexed += indexed;
        if !more {
            break;
        }
    }
    Ok(tidied)
}
