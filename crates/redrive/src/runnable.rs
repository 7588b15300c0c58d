//! What can be run beside others until it is told to stop: workers, dead-letter consumers, processors,
//! maintenance. One contract for starting, stopping and being watched.

use async_trait::async_trait;
use redrive_core::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A loop that runs until it is told to stop.
#[async_trait]
pub trait Runnable: Send + Sync {
    /// What people call it, in logs and in the health report.
    fn name(&self) -> String;

    /// Runs until `stop`, then ends what it has begun within its own grace time and returns. Must call
    /// [`Heartbeat::beat`] at least every minute while it is well.
    ///
    /// # Errors
    /// Whatever makes going on impossible. A failed message is not one.
    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), Error>;

    /// What somebody should look at although it runs, in words; part of the health report.
    fn degraded(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The sign of life of a loop. Cheap to clone and to beat.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    born: Instant,
    beaten_ms: Arc<AtomicU64>,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self { born: Instant::now(), beaten_ms: Arc::default() }
    }
}

impl Heartbeat {
    /// Still there.
    pub fn beat(&self) {
        let age = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.beaten_ms.fetch_max(age, Ordering::Relaxed);
    }

    /// How long ago the last beat was.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.born.elapsed().saturating_sub(Duration::from_millis(self.beaten_ms.load(Ordering::Relaxed)))
    }
}
