//! Metrics of the process and of the store. Every process has one registry, and each component records to it
//! directly; [`prometheus`] renders it as text. The metrics are defined in `redrive_core::metrics`. Counters that must
//! survive a restart are kept by the store.

use redrive_core::error::StoreResult;
pub use redrive_core::metrics::{
    Alert, AlertLevel, Counter, Event, Gauge, HistogramSnapshot, QueueStats, Registry, Report, Snapshot,
    Stats, Summary, Timer, definitions, process, render, report,
};
use redrive_core::store::Store;
use tokio::time::Instant;

/// Raises a gauge until it is dropped, for example by the slots of a worker or by one running handler.
#[derive(Debug)]
pub struct GaugeGuard {
    gauge: Gauge,
    by: u64,
}

impl GaugeGuard {
    /// Raises `gauge` by this amount.
    #[must_use = "the gauge is lowered when this guard is dropped"]
    pub fn by(gauge: Gauge, by: usize) -> Self {
        let by = by as u64;
        process().raise(gauge, by);
        Self { gauge, by }
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        process().lower(self.gauge, self.by);
    }
}

/// Counts a delivery as busy until it is dropped, and records how long that took.
#[derive(Debug)]
pub struct BusyGuard {
    timer: Timer,
    started: Instant,
    _busy: GaugeGuard,
}

impl BusyGuard {
    /// Starts timing: with [`Timer::Handler`] for a message, with [`Timer::LetterHandler`] for a dead letter.
    #[must_use = "the time is recorded when this guard is dropped"]
    pub fn begin(timer: Timer) -> Self {
        Self { timer, started: Instant::now(), _busy: GaugeGuard::by(Gauge::WorkerBusy, 1) }
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        process().record(self.timer, self.started.elapsed());
    }
}

/// Renders the counters of a store and the metrics of this process in Prometheus' text format.
///
/// # Errors
/// Returns the error of the store.
pub async fn prometheus(store: &dyn Store) -> StoreResult<String> {
    Ok(with_own_measures(store.stats().await?))
}

/// Renders the statistics of a store with the metrics of this process. If another process holds the store, `stats`
/// carries the metrics of that process; they are replaced, because that process publishes them on a port of its own.
fn with_own_measures(stats: Stats) -> String {
    let process = process().snapshot(stats.now);
    render(&Stats { process, ..stats })
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::message::{NewMessage, Payload};

    #[tokio::test]
    async fn metrics_of_the_process_that_holds_the_store_are_not_rendered() {
        let mut stats = crate::memory().stats().await.unwrap();
        stats.process.dead_per_second = 7.0;
        stats.process.gauges.insert(Gauge::CapturedBuffered.definition().name.into(), 77);
        let text = with_own_measures(stats);
        assert!(text.contains("redrive_dead_per_second 0.0"), "{text}");
        assert!(!text.contains(" 77"), "{text}");
    }

    #[tokio::test]
    async fn counters_and_timers_are_rendered() {
        let store = crate::memory();
        let new = NewMessage::new(crate::new_id(), "texts".parse().unwrap(), Payload::default());
        store.enqueue(vec![new]).await.unwrap();
        let slots = GaugeGuard::by(Gauge::WorkerSlots, 3);
        drop(BusyGuard::begin(Timer::LetterHandler));
        let text = prometheus(&*store).await.unwrap();
        assert!(
            text.contains("redrive_enqueued_total{queue=\"texts\",kind=\"\",priority=\"normal\"} 1"),
            "{text}"
        );
        drop(slots);
        assert!(text.contains("redrive_letter_handler_seconds_count"), "{text}");
        assert!(!text.contains("redrive_worker_slots 0"), "{text}");
        assert!(text.contains("redrive_enqueue_seconds{quantile=\"0.95\"}"), "{text}");
    }
}
