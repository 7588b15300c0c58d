//! The settings of alerts: the `[alerts]` section of `redrive.toml`. Every rule has defaults, and a file names only what
//! differs.

use super::channel::ChannelSettings;
use super::{AlertLevel, QuietHours, Rule};
use crate::error::Refusal;
use crate::limits;
use crate::time::Span;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// A threshold: a number, or a duration in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Limit(pub f64);

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum NumberOrSpan {
            Number(f64),
            Span(String),
        }
        match NumberOrSpan::deserialize(d) {
            Ok(NumberOrSpan::Number(number)) => Ok(Self(number)),
            Ok(NumberOrSpan::Span(text)) => {
                let span: Span = text.parse().map_err(serde::de::Error::custom)?;
                Ok(span.into())
            }
            Err(_) => Err(serde::de::Error::custom("not a number or a duration such as 10ms or 7d")),
        }
    }
}

impl From<Span> for Limit {
    #[expect(clippy::cast_precision_loss, reason = "thresholds need no more than 53 bits")]
    fn from(span: Span) -> Self {
        Self(span.as_millis() as f64)
    }
}

/// The settings of one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSettings {
    /// Whether the rule is used.
    pub enabled: bool,
    /// How urgent its alerts are.
    pub level: AlertLevel,
    /// The value from which on it fires.
    pub limit: Limit,
    /// The value below which it may end. Between the two nothing changes.
    pub clear: Limit,
    /// How long the value must stay below [`Self::clear`] before the alert is over.
    pub clear_after: Span,
    /// How long nobody is told again about the same subject, for rules that count events.
    pub again_after: Span,
    /// The time over which growth is measured, and how long before its end a letter counts as about to be dropped.
    pub window: Span,
    /// Whether people are told when it is over.
    pub tell_end: bool,
    /// The channels that are told. All of them if empty.
    pub channels: Vec<String>,
}

impl RuleSettings {
    /// The default settings of a rule.
    #[must_use]
    pub fn of(rule: Rule) -> Self {
        let (level, limit, clear, tell_end) = match rule {
            Rule::Depth => (AlertLevel::Warning, 100.0, 80.0, true),
            Rule::Growth => (AlertLevel::Warning, 100.0, 10.0, true),
            Rule::OldestAge => (AlertLevel::Warning, 604_800_000.0, 604_800_000.0, true),
            Rule::NewGroup | Rule::RegressedGroup => (AlertLevel::Warning, 1.0, 1.0, false),
            Rule::BreakerOpen | Rule::OperationHalted => (AlertLevel::Warning, 1.0, 1.0, true),
            Rule::Poison | Rule::Abandoned => (AlertLevel::Warning, 1.0, 1.0, false),
            Rule::Retention => (AlertLevel::Critical, 1.0, 1.0, true),
            Rule::SlowEnqueue => (AlertLevel::Warning, 10.0, 8.0, true),
            Rule::Utilisation => (AlertLevel::Critical, 0.9, 0.8, true),
            Rule::DeadLetterRate => (AlertLevel::Warning, 10.0, 5.0, true),
            Rule::Disk => (AlertLevel::Critical, 0.9, 0.85, true),
            Rule::StoreDegraded => (AlertLevel::Critical, 1.0, 1.0, true),
        };
        let window = if rule == Rule::Retention { Span::from_hours(24) } else { Span::from_hours(1) };
        Self {
            enabled: true,
            level,
            limit: Limit(limit),
            clear: Limit(clear),
            clear_after: Span::from_secs(60),
            again_after: Span::from_hours(1),
            window,
            tell_end,
            channels: Vec::new(),
        }
    }

    /// Whether a value fires. Rates and latencies may reach their limit; the others may not.
    #[must_use]
    pub fn fires(&self, rule: Rule, value: f64) -> bool {
        self.enabled && if is_exclusive(rule) { value > self.limit.0 } else { value >= self.limit.0 }
    }

    /// Whether a value is low enough for the alert to end.
    #[must_use]
    pub fn ends(&self, rule: Rule, value: f64) -> bool {
        value < self.clear.0 || (is_exclusive(rule) && value <= self.clear.0)
    }
}

/// Whether the limit of a rule is the highest value that is still well.
const fn is_exclusive(rule: Rule) -> bool {
    match rule {
        Rule::SlowEnqueue | Rule::Utilisation | Rule::DeadLetterRate | Rule::Disk => true,
        Rule::Depth
        | Rule::Growth
        | Rule::OldestAge
        | Rule::NewGroup
        | Rule::RegressedGroup
        | Rule::BreakerOpen
        | Rule::Poison
        | Rule::OperationHalted
        | Rule::Retention
        | Rule::Abandoned
        | Rule::StoreDegraded => false,
    }
}

/// A rule as it is listed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleView {
    /// The rule.
    pub rule: Rule,
    /// Whether the rule is used.
    pub enabled: bool,
    /// How urgent its alerts are.
    pub level: AlertLevel,
    /// The value from which on it fires; durations in milliseconds.
    pub limit: f64,
    /// The value below which it may end.
    pub clear: f64,
    /// The channels that are told. All of them if empty.
    pub channels: Vec<String>,
}

/// What a file says about a rule.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RuleChange {
    enabled: Option<bool>,
    level: Option<AlertLevel>,
    limit: Option<Limit>,
    clear: Option<Limit>,
    clear_after: Option<Span>,
    again_after: Option<Span>,
    window: Option<Span>,
    tell_end: Option<bool>,
    channels: Option<Vec<String>>,
}

/// The settings of all alerts.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertSettings {
    /// How often the rules are evaluated.
    pub every: Span,
    /// When only critical alerts are told.
    pub quiet_hours: Option<QuietHours>,
    /// The channels by name.
    pub channels: BTreeMap<String, ChannelSettings>,
    rules: BTreeMap<Rule, RuleSettings>,
}

impl Default for AlertSettings {
    fn default() -> Self {
        Self {
            every: Span::from_secs(10),
            quiet_hours: None,
            channels: BTreeMap::new(),
            rules: Rule::ALL.iter().map(|rule| (*rule, RuleSettings::of(*rule))).collect(),
        }
    }
}

/// The TOML of the section.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AlertsToml {
    every: Option<Span>,
    quiet_hours: Option<QuietHours>,
    channels: BTreeMap<String, ChannelSettings>,
    rules: BTreeMap<Rule, RuleChange>,
}

impl<'de> Deserialize<'de> for AlertSettings {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let toml = AlertsToml::deserialize(d)?;
        let mut settings = Self { quiet_hours: toml.quiet_hours, channels: toml.channels, ..Self::default() };
        settings.every = toml.every.unwrap_or(settings.every);
        for (rule, change) in toml.rules {
            settings.change(rule, change);
        }
        Ok(settings)
    }
}

impl AlertSettings {
    /// The settings of one rule.
    #[must_use]
    pub fn rule(&self, rule: Rule) -> RuleSettings {
        self.rules.get(&rule).cloned().unwrap_or_else(|| RuleSettings::of(rule))
    }

    /// Every rule as it is listed.
    #[must_use]
    pub fn rule_views(&self) -> Vec<RuleView> {
        let view = |rule: &Rule| {
            let RuleSettings { enabled, level, limit, clear, channels, .. } = self.rule(*rule);
            RuleView { rule: *rule, enabled, level, limit: limit.0, clear: clear.0, channels }
        };
        Rule::ALL.iter().map(view).collect()
    }

    /// The same settings without the channels, which may have secrets.
    #[must_use]
    pub fn without_channels(&self) -> Self {
        Self { channels: BTreeMap::new(), ..self.clone() }
    }

    /// Replaces the settings of one rule.
    #[must_use]
    pub fn with_rule(mut self, rule: Rule, settings: RuleSettings) -> Self {
        self.rules.insert(rule, settings);
        self
    }

    fn change(&mut self, rule: Rule, change: RuleChange) {
        let old = self.rule(rule);
        let limit = change.limit.unwrap_or(old.limit);
        // A limit that moves without its lower one takes it along.
        let moved = if old.limit.0 == 0.0 { limit.0 } else { old.clear.0 * limit.0 / old.limit.0 };
        let new = RuleSettings {
            enabled: change.enabled.unwrap_or(old.enabled),
            level: change.level.unwrap_or(old.level),
            limit,
            clear: change.clear.unwrap_or(Limit(moved)),
            clear_after: change.clear_after.unwrap_or(old.clear_after),
            again_after: change.again_after.unwrap_or(old.again_after),
            window: change.window.unwrap_or(old.window),
            tell_end: change.tell_end.unwrap_or(old.tell_end),
            channels: change.channels.unwrap_or(old.channels),
        };
        self.rules.insert(rule, new);
    }

    /// Refuses settings that contradict each other.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming the setting.
    pub fn check(&self) -> Result<(), Refusal> {
        let invalid = |field: String, why: String| Err(Refusal::invalid(field, why));
        if self.every < Span::from_millis(1) || self.every > Span::from_hours(24) {
            return invalid("alerts.every".into(), "from 1ms to 24h".into());
        }
        if self.channels.len() > limits::ALERT_CHANNELS_MAX {
            let why = format!("more than {}", limits::ALERT_CHANNELS_MAX);
            return invalid("alerts.channels".into(), why);
        }
        for (name, channel) in &self.channels {
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if name.is_empty() || name.len() > limits::NAME_BYTES_MAX || !name.chars().all(fits) {
                let why = format!("{name:?} is not a name of letters, digits, - and _");
                return invalid("alerts.channels".into(), why);
            }
            channel.check(&format!("alerts.channels.{name}"))?;
        }
        for (rule, settings) in &self.rules {
            let field = |what: &str| format!("alerts.rules.{rule}.{what}");
            let numbers = [("limit", settings.limit), ("clear", settings.clear)];
            for (what, number) in numbers {
                if !number.0.is_finite() || number.0 < 0.0 {
                    return invalid(field(what), "a number from 0 on".into());
                }
            }
            if settings.clear > settings.limit {
                let why = "it is above the limit, so that the alert would end before it begins";
                return invalid(field("clear"), why.into());
            }
            for name in &settings.channels {
                if !self.channels.contains_key(name) {
                    let known: Vec<&str> = self.channels.keys().map(String::as_str).collect();
                    let why = match crate::json_input::nearest(name, &known) {
                        Some(near) => format!("there is no channel {name:?}; did you mean `{near}`?"),
                        None => format!("there is no channel {name:?} in [alerts.channels]"),
                    };
                    return invalid(field("channels"), why);
                }
            }
        }
        Ok(())
    }
}
