//! The report: the queues, the summary and the alerts that hold by the rules of [`crate::alert`], which alone decides.
//! The same stats always give the same alerts.

use super::HistogramSnapshot;
use super::stats::{QueueStats, Stats, Summary};
use crate::alert::{AlertLevel, AlertSettings, facts_of_stats};
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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

/// Makes the report. The alerts are those that hold by the default settings of the rules; nobody is told about them
/// here.
#[must_use]
pub fn report(stats: &Stats) -> Report {
    report_with(stats, &AlertSettings::default())
}

/// Makes the report with the alerts that hold by these settings.
#[must_use]
pub fn report_with(stats: &Stats, settings: &AlertSettings) -> Report {
    let mut alerts = Vec::new();
    for fact in facts_of_stats(stats).levels {
        let rule = settings.rule(fact.rule);
        if rule.fires(fact.rule, fact.value) {
            let text = fact.text(rule.limit.0);
            let rule_name = fact.rule.name().to_owned();
            alerts.push(Alert { rule: rule_name, level: rule.level, subject: fact.subject, text });
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
