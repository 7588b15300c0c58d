//! The report: the queues, the summary and what is wrong by the built-in rules. Pure: the same stats give the
//! same alerts wherever they are looked at.

use super::stats::{QueueStats, Stats, Summary};
use super::{HistogramSnapshot, Timer};
use crate::failure::named;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Enqueues slower than this at the 95th percentile warn.
const SLOW_ENQUEUE_US: u64 = 10_000;
/// A queue fuller than this is critical.
const FULL: f64 = 0.9;
/// More deaths per second than this warn.
const DEATHS_PER_SECOND: f64 = 10.0;
/// So many open letters of a queue warn.
const DEPTH: u64 = 100;

named! {
    /// How bad an alert is.
    AlertLevel, "alert level", {
        /// Look soon.
        Warning = "warning",
        /// Look now.
        Critical = "critical",
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// The rule, by name.
    pub rule: String,
    /// How bad.
    pub level: AlertLevel,
    /// What it is about: a queue, or the store.
    pub subject: String,
    /// What is the case, with numbers.
    pub text: String,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// When, by the store's clock.
    pub time: Time,
    /// The queues as they stand.
    pub queues: Vec<QueueStats>,
    /// What follows from the counters.
    pub summary: Summary,
    /// How long things took in the process that holds the store.
    pub latency: BTreeMap<String, HistogramSnapshot>,
    /// What is wrong; empty is good.
    pub alerts: Vec<Alert>,
}

/// Puts the report together.
#[must_use]
pub fn report(stats: &Stats) -> Report {
    let mut alerts = Vec::new();
    let mut alert = |rule: &str, level, subject: &str, text: String| {
        alerts.push(Alert { rule: rule.into(), level, subject: subject.into(), text });
    };
    if let Some(enqueue) = stats.process.timer(Timer::Enqueue).filter(|h| h.p95_us > SLOW_ENQUEUE_US) {
        let text = format!("95 of 100 enqueues take up to {} ms; 10 ms is the mark", enqueue.p95_us / 1_000);
        alert("slow_enqueue", AlertLevel::Warning, "store", text);
    }
    let deaths = stats.process.dead_per_second;
    if deaths > DEATHS_PER_SECOND {
        let text = format!("{deaths:.1} messages die per second; 10 is the mark");
        alert("dead_letter_rate", AlertLevel::Warning, "store", text);
    }
    for queue in &stats.queues {
        if let Some(full) = queue.utilisation().filter(|full| *full > FULL) {
            let text = format!("it holds {:.0} % of what it may; 90 % is the mark", full * 100.0);
            alert("utilisation", AlertLevel::Critical, queue.queue.as_str(), text);
        }
        if queue.letters_open >= DEPTH {
            let text = format!("{} dead letters are open; {DEPTH} is the mark", queue.letters_open);
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
