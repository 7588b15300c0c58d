//! The report: the queues, the summary and the alerts of the built-in rules. The same stats always give the same
//! alerts.

use super::stats::{QueueStats, Stats, Summary};
use super::{HistogramSnapshot, Timer};
use crate::failure::named;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// A 95th percentile of the enqueue latency above this raises a warning.
const SLOW_ENQUEUE_US: u64 = 10_000;
/// A utilisation above this is critical.
const UTILISATION_MAX: f64 = 0.9;
/// More deaths per second than this raise a warning.
const DEATHS_PER_SECOND: f64 = 10.0;
/// A queue with this many open letters raises a warning.
const OPEN_LETTERS: u64 = 100;

named! {
    /// How urgent an alert is.
    AlertLevel, "alert level", {
        /// Look soon.
        Warning = "warning",
        /// Look now.
        Critical = "critical",
    }
}

/// A problem that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// The name of the rule.
    pub rule: String,
    /// How urgent it is.
    pub level: AlertLevel,
    /// What it is about: a queue, or the store.
    pub subject: String,
    /// A description, with numbers.
    pub text: String,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// When it was made, by the store's clock.
    pub time: Time,
    /// The current state of the queues.
    pub queues: Vec<QueueStats>,
    /// What follows from the counters.
    pub summary: Summary,
    /// Latencies in the process that holds the store.
    pub latency: BTreeMap<String, HistogramSnapshot>,
    /// The alerts; empty if all is well.
    pub alerts: Vec<Alert>,
}

/// Makes the report.
#[must_use]
pub fn report(stats: &Stats) -> Report {
    let mut alerts = Vec::new();
    let mut alert = |rule: &str, level, subject: &str, text: String| {
        alerts.push(Alert { rule: rule.into(), level, subject: subject.into(), text });
    };
    if let Some(enqueue) = stats.process.timer(Timer::Enqueue).filter(|h| h.p95_us > SLOW_ENQUEUE_US) {
        let text = format!("95% of enqueues take up to {} ms; the limit is 10 ms", enqueue.p95_us / 1_000);
        alert("slow_enqueue", AlertLevel::Warning, "store", text);
    }
    let deaths = stats.process.dead_per_second;
    if deaths > DEATHS_PER_SECOND {
        let text = format!("{deaths:.1} messages die per second; the limit is 10");
        alert("dead_letter_rate", AlertLevel::Warning, "store", text);
    }
    for queue in &stats.queues {
        if let Some(full) = queue.utilisation().filter(|full| *full > UTILISATION_MAX) {
            let text = format!("it is {:.0}% full; the limit is 90%", full * 100.0);
            alert("utilisation", AlertLevel::Critical, queue.queue.as_str(), text);
        }
        if queue.letters_open >= OPEN_LETTERS {
            let text = format!("{} dead letters are open; the limit is {OPEN_LETTERS}", queue.letters_open);
            alert("depth", AlertLevel::Warning, queue.queue.as_str(), text);
        }
    }
    Report {
        time: stats.now,
        queues: stats.queues.clone(),
        summary: stats.summary(),
        latency: stats.process.timers.clone(),
        alerts,
    }
}
