//! Alerts: which conditions people are told about, when, and when they are told that it is over. This is the only place
//! that decides that. [`evaluate()`] compares [`Facts`] with the [`AlertSettings`] and the [`AlertState`] of the last
//! time, and returns what to tell; the report of the queues compares with the same settings. Nothing here reads a store
//! or sends anything.

pub mod channel;
mod evaluate;
mod facts;
pub mod kv;
mod quiet_hours;
mod record;
mod settings;
#[cfg(test)]
mod tests;

pub use evaluate::{Active, AlertState, Counted, Evaluation, Sample, evaluate};
pub use facts::{CountFact, Facts, LevelFact, facts_of_stats};
pub use quiet_hours::QuietHours;
pub use record::{ActiveAlert, AlertRecord, ChannelView, Silence, Silences};
pub use settings::{AlertSettings, Limit, RuleSettings, RuleView};

use crate::failure::named;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The queue through which alerts are sent, so that a failed delivery is tried again and can die visibly.
pub const QUEUE: &str = "redrive-alerts";
/// The kind of the messages in that queue.
pub const KIND: &str = "alert";
/// The header of such a message that names its channel.
pub const CHANNEL_HEADER: &str = "redrive-channel";
/// The namespace of the small durable values in which the state of alerts is kept.
pub const NAMESPACE: &str = "alerts";
/// The key of the [`AlertState`].
pub const STATE_KEY: &str = "state";
/// The key of the [`Silences`].
pub const SILENCES_KEY: &str = "silences";
/// The key of the [`AlertRecord`]: what is active now and which channels there are, for those who only look.
pub const RECORD_KEY: &str = "record";

named! {
    /// How urgent an alert is.
    AlertLevel, "alert level", {
        /// Look soon.
        Warning = "warning",
        /// Look now.
        Critical = "critical",
    }
}

named! {
    /// What an alert is about.
    Rule, "alert rule", {
        /// A queue has many open dead letters.
        Depth = "depth",
        /// A queue gets many more open dead letters within the window.
        Growth = "growth",
        /// The oldest open dead letter is old.
        OldestAge = "oldest_age",
        /// Failures with a cause that was not seen before made dead letters.
        NewGroup = "new_group",
        /// The cause of a resolved group is back.
        RegressedGroup = "regressed_group",
        /// A breaker holds messages back.
        BreakerOpen = "breaker_open",
        /// Messages were found to be poison.
        Poison = "poison",
        /// An operation halted by itself.
        OperationHalted = "operation_halted",
        /// Open dead letters are about to be dropped because their queue has an `open_ttl`.
        Retention = "retention",
        /// Dead letters were abandoned.
        Abandoned = "abandoned",
        /// Enqueueing is slow.
        SlowEnqueue = "slow_enqueue",
        /// A queue is nearly full.
        Utilisation = "utilisation",
        /// Many messages die per second.
        DeadLetterRate = "dead_letter_rate",
        /// The disk of the store is nearly full.
        Disk = "disk",
        /// The store reports a problem.
        StoreDegraded = "store_degraded",
    }
}

named! {
    /// What a notice says about an alert.
    NoticeStatus, "notice status", {
        /// It is so, or it happened.
        Firing = "firing",
        /// It is over.
        Cleared = "cleared",
        /// Somebody tests a channel.
        Test = "test",
    }
}

/// What people are told: one alert that fires or is over. It never contains payloads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// Counts the notices of a store. Every notice has another number, also over restarts.
    pub number: u64,
    /// The number of the notice that said that the alert fires, which is the same for the end of the alert.
    pub firing: u64,
    /// Whether the alert fires or is over.
    pub status: NoticeStatus,
    /// The rule.
    pub rule: Rule,
    /// How urgent it is.
    pub level: AlertLevel,
    /// What it is about: a queue, a group, an operation, a breaker or the store.
    pub subject: String,
    /// A description, with numbers.
    pub text: String,
    /// When the condition began.
    pub since: Time,
    /// When this was decided.
    pub at: Time,
    /// Where to look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// The channels that are told. All of them if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<String>,
}

impl Notice {
    /// The notice in one line.
    #[must_use]
    pub fn title(&self) -> String {
        let Self { rule, subject, text, .. } = self;
        match self.status {
            NoticeStatus::Firing => format!("[{}] {rule} {subject}: {text}", self.level),
            NoticeStatus::Cleared => format!("[over] {rule} {subject}: {text}"),
            NoticeStatus::Test => format!("[test] {text}"),
        }
    }

    /// The idempotency key of the message that tells this notice to a channel. A notice that is sent again after a
    /// crash is the same message.
    #[must_use]
    pub fn key(&self, channel: &str) -> String {
        let subject: String = self.subject.chars().take(100).collect();
        format!("{}/{subject}/{}/{channel}", self.rule, self.number)
    }

    /// A notice that tests a channel. Tests are not counted with the others.
    #[must_use]
    pub fn test(channel: &str, by: &str, at: Time, link: Option<String>) -> Self {
        Self {
            number: 0,
            firing: 0,
            status: NoticeStatus::Test,
            rule: Rule::StoreDegraded,
            level: AlertLevel::Warning,
            subject: "test".into(),
            text: format!("{by} tests the channel {channel}; nothing is wrong"),
            since: at,
            at,
            link,
            channels: vec![channel.to_owned()],
        }
    }
}
