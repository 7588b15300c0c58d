//! The contract of loops that run side by side: workers, dead letter consumers, processors, maintenance. It covers
//! starting, stopping and monitoring.

use async_trait::async_trait;
use redrive_core::error::CallError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A loop that runs until it is stopped.
#[async_trait]
pub trait Runnable: Send + Sync {
    /// The name of the loop in logs and in the health report.
    fn name(&self) -> String;

    /// Runs until `stop` is cancelled, then finishes what it has started within its own grace time and returns. It
    /// must call [`Heartbeat::beat`] at least once a minute while it works normally.
    ///
    /// # Errors
    /// Returns an error if the loop cannot continue. A failed message is no such error.
    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError>;

    /// Problems that need attention although the loop runs. They are part of the health report.
    fn degraded(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The heartbeat of a loop. Cheap to clone and to beat; clones share one heartbeat.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    created: Instant,
    /// When the last beat was, in milliseconds after `created`.
    last_beat_ms: Arc<AtomicU64>,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self { created: Instant::now(), last_beat_ms: Arc::default() }
    }
}

impl Heartbeat {
    /// Records that the loop is alive.
    pub fn beat(&self) {
        let now_ms = u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_beat_ms.fetch_max(now_ms, Ordering::Relaxed);
    }

    /// How long ago the last beat was.
    #[must_use]
    pub fn age(&self) -> Duration {
        let last_beat = Duration::from_millis(self.last_beat_ms.load(Ordering::Relaxed));
        self.created.elapsed().saturating_sub(last_beat)
    }
}
