//! What is kept of alerts for people to look at: the alerts that hold now, what was told lately, the rules, the channels,
//! and what is silenced. Whoever evaluates the rules writes the record; whoever shows it reads it from the store's small
//! durable values.

use super::{AlertLevel, Notice, Rule, RuleView};
use crate::error::Refusal;
use crate::limits;
use crate::message::check_span;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// An alert that holds now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActiveAlert {
    /// The rule.
    pub rule: Rule,
    /// How urgent it is.
    pub level: AlertLevel,
    /// What it is about.
    pub subject: String,
    /// A description, with numbers.
    pub text: String,
    /// Since when it holds.
    pub since: Time,
    /// The number of the notice that told it. `None` if it is silenced or these are quiet hours.
    pub told: Option<u64>,
    /// Where to look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
}

/// A channel as it is shown: without its secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelView {
    /// The name.
    pub name: String,
    /// The kind of channel: `slack`, `email` and so on.
    #[serde(rename = "type")]
    pub kind: String,
    /// Where it leads.
    pub to: String,
}

/// The alerts and channels as of the last evaluation that changed something.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AlertRecord {
    /// The alerts that hold, oldest first.
    pub active: Vec<ActiveAlert>,
    /// The channels, by name.
    pub channels: Vec<ChannelView>,
    /// What was told lately, oldest first.
    #[serde(default)]
    pub told: Vec<Notice>,
    /// The rules.
    #[serde(default)]
    pub rules: Vec<RuleView>,
}

/// Something that nobody is told about for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// The rule. `None` for every rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<Rule>,
    /// The subject. `None` for every subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// When it ends.
    pub until: Time,
    /// Who asked for it.
    pub by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Silence {
    /// A silence of what `name` stands for: a rule if there is one of that name, and otherwise a subject.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if the name is empty or too long, or the time is too long.
    pub fn of(
        name: &str,
        span: Span,
        by: String,
        reason: Option<String>,
        now: Time,
    ) -> Result<Self, Refusal> {
        check_span("for", span, Span::from_secs(1), limits::SPAN_MAX)?;
        if name.is_empty() || name.len() > limits::KEY_BYTES_MAX || name.contains(char::is_control) {
            return Err(Refusal::invalid("silence", "name a rule, or the subject of an alert"));
        }
        let (rule, subject) = match name.parse::<Rule>() {
            Ok(rule) => (Some(rule), None),
            Err(_) => (None, Some(name.to_owned())),
        };
        Ok(Self { rule, subject, until: now.plus(span), by, reason })
    }

    /// The name under which it was asked for.
    #[must_use]
    pub fn name(&self) -> &str {
        match self.rule {
            Some(rule) => rule.name(),
            None => self.subject.as_deref().unwrap_or_default(),
        }
    }
}

/// Everything that is silenced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Silences(Vec<Silence>);

impl Silences {
    /// Whether nobody is told about this now.
    #[must_use]
    pub fn cover(&self, rule: Rule, subject: &str, now: Time) -> bool {
        self.0.iter().any(|silence| {
            silence.until > now
                && silence.rule.is_none_or(|silenced| silenced == rule)
                && silence.subject.as_ref().is_none_or(|silenced| silenced == subject)
        })
    }

    /// Those that have not ended.
    pub fn at(&self, now: Time) -> impl Iterator<Item = &Silence> {
        self.0.iter().filter(move |silence| silence.until > now)
    }

    /// Adds one, instead of an earlier one of the same name, and drops those that have ended.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if there are too many.
    pub fn add(&mut self, silence: Silence, now: Time) -> Result<(), Refusal> {
        self.0.retain(|other| other.until > now && other.name() != silence.name());
        if self.0.len() >= limits::SILENCES_MAX {
            let why = format!("there are {} already; end some first", limits::SILENCES_MAX);
            return Err(Refusal::invalid("silence", why));
        }
        self.0.push(silence);
        Ok(())
    }

    /// Ends those of this name and returns whether there was one.
    pub fn end(&mut self, name: &str, now: Time) -> bool {
        self.0.retain(|silence| silence.until > now);
        let before = self.0.len();
        self.0.retain(|silence| silence.name() != name);
        self.0.len() < before
    }
}
