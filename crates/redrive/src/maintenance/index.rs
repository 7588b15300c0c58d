//! Feeds the text index behind what happens, so that nobody who produces or fails ever waits for it. Works in small
//! commits with pauses between them: what is live goes first, and a search looks itself at what is not in yet.

use super::{Chore, Done};
use crate::pace::ask;
use async_trait::async_trait;
use redrive_core::error::Error;
use redrive_core::store::{Indexed, Store};
use redrive_core::time::Span;
use std::time::Duration;
use tokio::time::Instant;

/// Puts dead letters into the text index, a page at a time, as long as there is more.
#[derive(Clone, Copy, Debug)]
pub struct IndexText {
    /// How often it looks whether there is anything.
    pub every: Span,
    /// Letters per commit.
    pub page: usize,
    /// It rests so many times as long as it worked: live work has the writer meanwhile.
    pub rest: u32,
}

impl Default for IndexText {
    /// Every 2 s, some milliseconds of work at a time, and at most a third of the time.
    fn default() -> Self {
        Self { every: Span::from_secs(2), page: 200, rest: 2 }
    }
}

/// No rest is longer, or a slow disk would hold the index up for minutes.
const REST_MAX: Duration = Duration::from_secs(1);

#[async_trait]
impl Chore for IndexText {
    fn name(&self) -> &'static str {
        "index text"
    }

    fn every(&self) -> Span {
        self.every
    }

    async fn pass(&self, store: &dyn Store) -> Result<Done, Error> {
        let began = Instant::now();
        let Indexed { indexed, more } = ask(store.index_text(self.page)).await?;
        if more {
            tokio::time::sleep(began.elapsed().saturating_mul(self.rest).min(REST_MAX)).await;
        }
        Ok(Done { did: indexed, more })
    }
}
