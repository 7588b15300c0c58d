//! Updates the text index in the background, so that enqueueing and failing never wait for it. It works in small
//! commits with pauses between them, to leave the writer to live work. A search scans letters that are not indexed yet.

use super::{Chore, PassReport};
use crate::waiting::with_timeout;
use async_trait::async_trait;
use redrive_core::error::CallError;
use redrive_core::store::{Indexed, Store};
use redrive_core::time::Span;
use std::time::Duration;
use tokio::time::Instant;

/// Puts dead letters into the text index, a page at a time, as long as there is more.
#[derive(Clone, Copy, Debug)]
pub struct IndexText {
    /// How often it looks for letters to index.
    pub every: Span,
    /// Letters per commit.
    pub page: usize,
    /// How long it rests after each commit, as a multiple of the time it worked. Live work has the writer meanwhile.
    pub rest: u32,
}

impl Default for IndexText {
    /// Runs every 2 s, works for some milliseconds at a time, and at most a third of the time.
    fn default() -> Self {
        Self { every: Span::from_secs(2), page: 200, rest: 2 }
    }
}

/// The longest rest, so that a slow disk does not delay the index for minutes.
const REST_MAX: Duration = Duration::from_secs(1);

#[async_trait]
impl Chore for IndexText {
    fn name(&self) -> &'static str {
        "index text"
    }

    fn every(&self) -> Span {
        self.every
    }

    async fn pass(&self, store: &dyn Store) -> Result<PassReport, CallError> {
        let started = Instant::now();
        let Indexed { indexed, more } = with_timeout(store.index_text(self.page)).await?;
        if more {
            tokio::time::sleep(started.elapsed().saturating_mul(self.rest).min(REST_MAX)).await;
        }
        Ok(PassReport { changed: indexed, more })
    }
}
