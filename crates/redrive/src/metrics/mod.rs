//! Metrics of the process and of the store. Every process has one recorder, and each component records to it
//! directly; [`prometheus`] renders it as text. The metrics are defined in `redrive_core::metrics`. Counters that must
//! survive a restart are kept by the store.

mod exposition;

pub use exposition::{CONTENT_TYPE, render_open_ended};
use redrive_core::error::StoreResult;
pub use redrive_core::metrics::{
    Alert, AlertLevel, Counter, Event, Gauge, HistogramSnapshot, QueueStats, Report, Snapshot, Stats,
    Summary, Timer, definitions, report,
};
use redrive_core::store::Store;
pub use redrive_store::metrics::{Recorder, process};
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

/// Renders the counters of a store and the metrics of this process as OpenMetrics text, which Prometheus reads; it is
/// to be served as [`CONTENT_TYPE`].
///
/// # Errors
/// Returns the error of the store.
pub async fn prometheus(store: &dyn Store) -> StoreResult<String> {
    let (stats, info) = (store.stats().await?, store.info().await?);
    Ok(exposition::render(stats, &info))
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::dead_letter::Status;
    use redrive_core::metrics::{CounterTotals, CounterView, OpenKey, OpenLetters, STORE_GAUGES};
    use redrive_core::priority::Priority;
    use redrive_core::store::Dlq;
    use redrive_core::time::Time;
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    /// Statistics with something of everything.
    async fn stats() -> Stats {
        let queue: redrive_core::ids::QueueName = "pay".parse().unwrap();
        let counter = |event, labels: &[(&str, &str)], count, sum| CounterView {
            event,
            queue: queue.clone(),
            labels: labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            totals: CounterTotals { count, sum, max: sum, since: Time::ZERO },
        };
        let key = OpenKey { queue: queue.clone(), kind: "charge".into(), priority: Priority::High };
        Stats {
            counters: vec![
                counter(Event::Enqueued, &[("kind", "say \"hi\"\n\\"), ("priority", "high")], 1, 9),
                counter(Event::RedriveSucceeded, &[], 3, 9),
                counter(Event::RedriveFailed, &[], 1, 0),
            ],
            queues: vec![QueueStats {
                queue: queue.clone(),
                waiting: 95,
                leased: 0,
                bytes: 7,
                letters_open: 100,
                peak: 99,
                letters_peak: 120,
                capacity: Some(100),
            }],
            open: vec![OpenLetters { key, open: 100 }],
            dlqs: vec![Dlq { dlq: "pay-dlq".parse().unwrap(), by_status: [(Status::Review, 10)].into() }],
            messages_peak: 150,
            ..crate::memory().stats().await.unwrap()
        }
    }

    #[tokio::test]
    async fn the_text_has_every_name_of_the_table_and_no_other() {
        process().record(Timer::LetterAge, Duration::from_millis(61_000));
        let info = crate::memory().info().await.unwrap();
        let text = exposition::render(stats().await, &info);
        let known: BTreeSet<&str> = definitions().iter().map(|d| d.name).collect();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let endings = ["_bucket", "_sum", "_count"];
            let base = endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
            assert!(known.contains(base), "{line}");
        }
        for wanted in [
            "# TYPE redrive_enqueued counter",
            r#"redrive_enqueued_total{queue="pay",kind="say \"hi\"\n\\",priority="high"} 1"#,
            r#"redrive_enqueued_bytes_total{queue="pay",kind="say \"hi\"\n\\",priority="high"} 9"#,
            r#"redrive_queue_messages{queue="pay",state="waiting"} 95"#,
            r#"redrive_queue_utilisation{queue="pay"} 0.95"#,
            r#"redrive_letters_open_by_kind{queue="pay",kind="charge",priority="high"} 100"#,
            r#"redrive_dlq_letters{dlq="pay-dlq",status="review"} 10"#,
            r#"redrive_retry_success_rate{queue="pay"} 0.75"#,
            "redrive_store_messages_peak 150",
            "redrive_store_degraded 0",
            "# TYPE redrive_letter_age_seconds histogram",
            concat!(r#"redrive_build_info{version=""#, env!("CARGO_PKG_VERSION"), r#""} 1"#),
        ] {
            assert!(text.lines().any(|line| line == wanted), "{wanted} is missing in\n{text}");
        }
        for definition in STORE_GAUGES {
            assert!(text.contains(definition.name), "{} is not rendered", definition.name);
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    /// The buckets of one distribution in a text, by their bounds.
    fn buckets(text: &str, name: &str) -> Vec<(String, u64)> {
        let start = format!("{name}_bucket{{le=\"");
        let lines = text.lines().filter_map(|line| line.strip_prefix(&start)?.split_once("\"} "));
        lines.map(|(bound, count)| (bound.to_owned(), count.parse().unwrap())).collect()
    }

    #[tokio::test]
    async fn buckets_are_cumulative_and_end_with_the_count() {
        let store = crate::memory();
        let before = buckets(&prometheus(&*store).await.unwrap(), "redrive_resolution_time_seconds");
        for seconds in [1, 59, 60, 61, 4_000_000] {
            process().record(Timer::ResolutionTime, Duration::from_secs(seconds));
        }
        let after = buckets(&prometheus(&*store).await.unwrap(), "redrive_resolution_time_seconds");
        let before: BTreeMap<String, u64> = before.into_iter().collect();
        let more: Vec<(&str, u64)> = after.iter().map(|(le, n)| (le.as_str(), n - before[le])).collect();
        let at = |le: &str| more.iter().find(|(bound, _)| *bound == le).unwrap().1;
        assert_eq!([at("1.0"), at("10.0"), at("60.0"), at("600.0"), at("+Inf")], [1, 1, 3, 4, 5]);
        assert!(more.is_sorted_by_key(|(_, n)| *n) && more.last().unwrap().0 == "+Inf", "{more:?}");
    }

    #[tokio::test]
    async fn metrics_of_the_process_that_holds_the_store_are_not_rendered() {
        let mut stats = stats().await;
        stats.process.dead_per_second = 7.5;
        stats.process.gauges.insert(Gauge::CapturedBuffered.definition().name.into(), 77_777);
        let text = exposition::render(stats, &crate::memory().info().await.unwrap());
        assert!(!text.contains(" 7.5") && !text.contains(" 77777"), "{text}");
    }

    #[tokio::test]
    async fn counters_and_timers_are_rendered() {
        use redrive_core::message::{NewMessage, Payload};
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
        assert!(!text.contains("redrive_letter_handler_seconds_count 0"), "{text}");
        assert!(!text.contains("redrive_worker_slots 0"), "{text}");
        assert!(text.contains("redrive_enqueue_seconds_bucket{le=\"0.01\"}"), "{text}");
    }
}
