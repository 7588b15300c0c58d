//! Measuring, for whoever drives work: one registry per process that every part records to at its source, and the
//! text that Prometheus reads. What is measured is listed in the core's table; what must survive a restart is
//! counted by the store.

use redrive_core::error::Outcome;
pub use redrive_core::metrics::{
    Alert, AlertLevel, Counter, Event, Gauge, HistogramSnapshot, QueueStats, Registry, Report, Snapshot,
    Stats, Summary, Timer, definitions, process, render, report,
};
use redrive_core::store::Store;
use tokio::time::Instant;

/// A gauge that is higher as long as this lives: a worker's slots, a delivery in hand.
#[derive(Debug)]
pub struct Raised {
    gauge: Gauge,
    by: u64,
}

impl Raised {
    /// Raises it.
    #[must_use = "it is lowered when this is dropped"]
    pub fn by(gauge: Gauge, by: usize) -> Self {
        let by = by as u64;
        process().raise(gauge, by);
        Self { gauge, by }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        process().lower(self.gauge, self.by);
    }
}

/// One delivery in hand: counted as busy until it is dropped, and timed, however it ends.
#[derive(Debug)]
pub struct Working {
    timer: Timer,
    began: Instant,
    _busy: Raised,
}

impl Working {
    /// Begins: [`Timer::Handler`] for a message, [`Timer::LetterHandler`] for a dead letter.
    #[must_use = "it is over when this is dropped"]
    pub fn begin(timer: Timer) -> Self {
        Self { timer, began: Instant::now(), _busy: Raised::by(Gauge::WorkerBusy, 1) }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        process().took(self.timer, self.began.elapsed());
    }
}

/// Everything a store counted and this process measured, in Prometheus' text format.
///
/// # Errors
/// Whatever the store says.
pub async fn prometheus(store: &dyn Store) -> Outcome<String> {
    Ok(with_own_measures(store.stats().await?))
}

/// Renders what the store counted with what this process measured. A store that another process holds comes with the
/// measures of that process, which shows them on a port of its own.
fn with_own_measures(stats: Stats) -> String {
    let process = process().snapshot(stats.now);
    render(&Stats { process, ..stats })
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::message::{NewMessage, Payload};

    #[tokio::test]
    async fn what_the_holder_of_the_store_measured_does_not_show() {
        let mut stats = crate::memory().stats().await.unwrap();
        stats.process.dead_per_second = 7.0;
        stats.process.gauges.insert(Gauge::CapturedBuffered.definition().name.into(), 77);
        let text = with_own_measures(stats);
        assert!(text.contains("redrive_dead_per_second 0.0"), "{text}");
        assert!(!text.contains(" 77"), "{text}");
    }

    #[tokio::test]
    async fn what_happens_shows_in_the_text() {
        let store = crate::memory();
        let new = NewMessage::new(crate::new_id(), "texts".parse().unwrap(), Payload::default());
        store.enqueue(vec![new]).await.unwrap();
        let slots = Raised::by(Gauge::WorkerSlots, 3);
        drop(Working::begin(Timer::LetterHandler));
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
