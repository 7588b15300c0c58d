//! A failed delivery: what the worker reports ([`Report`]), what analysis makes of it ([`Analysed`]) and what
//! is kept ([`Failure`]). Analysis runs in the caller, before the store is asked; the store only files it.

use crate::classify::{Class, Patterns, classify};
use crate::error::Refusal;
use crate::ids::LeafId;
use crate::limits;
use crate::masking::Rules;
use crate::signature::{Signature, SignatureRules};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Declares an enum whose variants have one stable name each, for JSON, filters, tables and SQL alike.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident, $what:literal, { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vmeta])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// Every one, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in every interface.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::ALL.iter().copied().find(|v| v.name() == text).ok_or_else(|| {
                    let known: Vec<&str> = Self::ALL.iter().map(|v| v.name()).collect();
                    format!("{text:?} is not a {}: {}", $what, known.join(", "))
                })
            }
        }
    };
}
pub(crate) use named;

named! {
    /// What kind of failure it is, and so whether trying again makes sense.
    Category, "category", {
        /// Likely to succeed unchanged if tried again soon.
        Transient = "transient",
        /// Fails until code, data, configuration or permission changes.
        Persistent = "persistent",
        /// Many messages fail the same way at once: the system, not the message.
        Systematic = "systematic",
        /// This message fails wherever it goes.
        Poison = "poison",
        /// Capacity is exhausted.
        Resource = "resource",
    }
}

named! {
    /// Which part of the world failed; chooses handling and drawer.
    Route, "route", {
        /// Connection, DNS, TLS, transport, rate limits.
        Network = "network",
        /// The handler's own code or process.
        Agent = "agent",
        /// The payload or a reply cannot be decoded or validated.
        Corruption = "corruption",
        /// A time limit passed.
        Timeout = "timeout",
        /// The message itself.
        Poison = "poison",
        /// Database, host, permission, configuration, quota.
        System = "system",
    }
}

named! {
    /// How bad it is.
    Severity, "severity", {
        /// Expected now and then.
        Low = "low",
        /// Worth a look.
        Medium = "medium",
        /// Somebody should look soon.
        High = "high",
        /// Somebody should look now.
        Critical = "critical",
    }
}

named! {
    /// What it takes to make the message succeed.
    Recoverability, "recoverability", {
        /// Time alone.
        Automatic = "automatic",
        /// A person.
        Manual = "manual",
        /// Nothing is known that would.
        Unlikely = "unlikely",
    }
}

named! {
    /// Why a message became a dead letter.
    Reason, "reason", {
        /// As many executions as allowed.
        MaxAttempts = "max_attempts",
        /// The handler said that trying again is useless.
        Permanent = "permanent",
        /// An include rule of the queue's policy matched.
        Rule = "rule",
        /// Excluded from the attempt limit, and the time budget for retries ran out.
        RetryBudget = "retry_budget",
        /// The ttl ended first.
        Expired = "expired",
        /// The deadline came first.
        Deadline = "deadline",
        /// It breaks whoever touches it.
        Poison = "poison",
        /// The payload could not be decoded.
        Undecodable = "undecodable",
        /// A custom policy or an operator said so.
        Manual = "manual",
        /// It came in by import.
        Imported = "imported",
        /// An executor did not call it, or did not call it again, because the breaker was open.
        BreakerOpen = "breaker_open",
    }
}

/// An error as the worker saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorInfo {
    /// The type or class name.
    #[serde(rename = "type", default)]
    pub error_type: String,
    /// The message.
    #[serde(default)]
    pub message: String,
    /// A code: HTTP status, errno name, SQLSTATE, exit code.
    #[serde(default)]
    pub code: Option<String>,
    /// The stack, innermost frame first or last as the language prints it.
    #[serde(default)]
    pub stack: Option<String>,
    /// What was being done, outermost first.
    #[serde(default)]
    pub context: Vec<String>,
    /// The error beneath.
    #[serde(default)]
    pub cause: Option<String>,
}

/// What a worker reports about a failed delivery.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The error.
    pub error: ErrorInfo,
    /// The step that failed.
    #[serde(default)]
    pub step: Option<String>,
    /// How long the delivery took.
    #[serde(default, rename = "duration_ms")]
    pub duration: Option<Span>,
    /// Where it ran.
    #[serde(default)]
    pub host: Option<String>,
    /// What version ran.
    #[serde(default)]
    pub version: Option<String>,
    /// Processor seconds used.
    #[serde(default)]
    pub cpu: Option<f64>,
    /// Peak memory in bytes.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Where the log is.
    #[serde(default)]
    pub log: Option<String>,
    /// What was left behind: directories, branches, captured output.
    #[serde(default)]
    pub artifacts: Vec<String>,
    /// The handler says trying again is useless.
    #[serde(default)]
    pub permanent: bool,
    /// The process that worked on it died: killed, aborted, panicked.
    #[serde(default)]
    pub crashed: bool,
    /// The other side said when to come back.
    #[serde(default, rename = "retry_after_ms")]
    pub retry_after: Option<Span>,
}

/// Cuts text at a character boundary so that it fits, marking the cut.
pub(crate) fn cut(text: &mut String, max: usize) {
    const MARK: &str = "… [cut]";
    if text.len() <= max {
        return;
    }
    let mut end = max.saturating_sub(MARK.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.push_str(MARK);
}

impl Report {
    /// Bounds every text (I49), then finds signature, category and route. Nothing is refused: a failure
    /// report that is too long is cut and says so, because losing it would be worse.
    #[must_use]
    pub fn analyse(self) -> Analysed {
        self.analyse_with(&Knowledge::default())
    }

    /// The same with what the user knows better.
    #[must_use]
    pub fn analyse_with(mut self, known: &Knowledge) -> Analysed {
        let signature = Signature::of_with(&self.error, &known.rules);
        let class = classify(&self.error, &known.patterns);
        self.permanent |= class.permanent;
        known.masking.redact(&mut self);
        cut(&mut self.error.message, limits::ERROR_MESSAGE_BYTES_MAX);
        cut(&mut self.error.error_type, limits::LABEL_BYTES_MAX);
        for (text, max) in [
            (&mut self.error.code, limits::LABEL_BYTES_MAX),
            (&mut self.error.stack, limits::STACK_BYTES_MAX),
            (&mut self.error.cause, limits::ERROR_MESSAGE_BYTES_MAX),
            (&mut self.step, limits::LABEL_BYTES_MAX),
            (&mut self.host, limits::LABEL_BYTES_MAX),
            (&mut self.version, limits::LABEL_BYTES_MAX),
            (&mut self.log, limits::NOTE_BYTES_MAX),
        ] {
            if let Some(text) = text {
                cut(text, max);
            }
        }
        for trail in [&mut self.error.context, &mut self.artifacts] {
            trail.truncate(limits::TRAIL_ENTRIES_MAX);
            for text in trail {
                cut(text, limits::NOTE_BYTES_MAX);
            }
        }
        Analysed {
            report: self,
            category: class.category,
            route: class.route,
            severity: class.severity,
            recoverability: class.recoverability,
            confidence: class.confidence,
            reasons: class.reasons,
            signature,
        }
        .redacted(&known.masking)
    }
}

/// Refuses words about a group that only a message's own history can say.
///
/// # Errors
/// [`Refusal::Invalid`] for poison.
pub fn check_label(category: Option<Category>) -> Result<(), Refusal> {
    match category {
        Some(Category::Poison) => Err(Refusal::invalid(
            "category",
            "a message is poison, not a group; quarantine its letters instead",
        )),
        Some(Category::Transient | Category::Persistent | Category::Systematic | Category::Resource)
        | None => Ok(()),
    }
}

/// The error type of a delivery whose worker never came back.
pub const LEASE_EXPIRED: &str = "LeaseExpired";
/// The error type of a message that was not delivered in time.
pub const TOO_LATE: &str = "TooLate";

/// The error type of a payload that is not what the handler expects.
pub const UNDECODABLE: &str = "Undecodable";

/// What the user knows better than the built-in tables.
#[derive(Clone, Debug, Default)]
pub struct Knowledge {
    /// Which failures are the same.
    pub rules: SignatureRules,
    /// What kind they are; a pattern may call a failure permanent.
    pub patterns: Patterns,
    /// What is secret in the text of errors, and not stored.
    pub masking: Rules,
}

/// A report with what analysis found; what `settle` is given.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Analysed {
    /// What the worker said.
    pub report: Report,
    /// What kind of failure.
    pub category: Category,
    /// Which part of the world.
    pub route: Route,
    /// How bad.
    pub severity: Severity,
    /// What it takes.
    pub recoverability: Recoverability,
    /// How sure that is, 0 to 1.
    #[serde(default)]
    pub confidence: f32,
    /// Why, for people.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// Its stable form.
    pub signature: Signature,
}

impl Analysed {
    /// Whether the worker died with it, or was never heard of again.
    #[must_use]
    pub fn crashed(&self) -> bool {
        self.report.crashed || self.report.error.error_type == LEASE_EXPIRED
    }

    /// What is thought of it.
    #[must_use]
    pub fn class(&self) -> Class {
        Class {
            category: self.category,
            route: self.route,
            severity: self.severity,
            recoverability: self.recoverability,
            confidence: self.confidence,
            reasons: self.reasons.clone(),
            permanent: self.report.permanent,
        }
    }

    /// The failure with another opinion of it.
    #[must_use]
    pub fn seen_as(self, class: Class) -> Self {
        Self {
            category: class.category,
            route: class.route,
            severity: class.severity,
            recoverability: class.recoverability,
            confidence: class.confidence,
            reasons: class.reasons,
            ..self
        }
    }

    /// The failure of a delivery whose worker never came back: crash, OOM and lease loss count alike.
    #[must_use]
    pub fn lease_lost(held_for: Span) -> Self {
        Report {
            error: ErrorInfo {
                error_type: LEASE_EXPIRED.into(),
                message: "the worker did not settle before its lease ran out".into(),
                ..ErrorInfo::default()
            },
            duration: Some(held_for),
            ..Report::default()
        }
        .analyse()
    }

    /// The failure of a message that was not delivered in time.
    #[must_use]
    pub fn too_late(reason: Reason) -> Self {
        let message = match reason {
            Reason::Deadline => "the deadline passed before the message was done",
            Reason::Expired
            | Reason::MaxAttempts
            | Reason::Permanent
            | Reason::Rule
            | Reason::RetryBudget
            | Reason::Poison
            | Reason::Undecodable
            | Reason::Manual
            | Reason::Imported
            | Reason::BreakerOpen => "the ttl ended before the message was done",
        };
        Report {
            error: ErrorInfo { error_type: TOO_LATE.into(), message: message.into(), ..ErrorInfo::default() },
            ..Report::default()
        }
        .analyse()
    }

    /// The record that is kept.
    #[must_use]
    pub fn file(self, generation: u32, attempt: u32, at: Time, worker: Option<String>) -> Failure {
        let r = self.report;
        Failure {
            generation,
            attempt,
            at,
            worker,
            host: r.host,
            version: r.version,
            step: r.step,
            duration: r.duration,
            error: r.error,
            category: self.category,
            route: self.route,
            severity: self.severity,
            recoverability: self.recoverability,
            confidence: self.confidence,
            reasons: self.reasons,
            signature: self.signature.template,
            leaf: self.signature.leaf,
            cpu: r.cpu,
            memory: r.memory,
            log: r.log,
            artifacts: r.artifacts,
        }
    }
}

/// One failed delivery as it is kept with its message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Which generation; attempt numbers start again with each.
    pub generation: u32,
    /// Which execution of that generation; 0 when it was never executed.
    pub attempt: u32,
    /// When.
    pub at: Time,
    /// Who worked on it.
    #[serde(default)]
    pub worker: Option<String>,
    /// Where.
    #[serde(default)]
    pub host: Option<String>,
    /// With what version.
    #[serde(default)]
    pub version: Option<String>,
    /// In which step.
    #[serde(default)]
    pub step: Option<String>,
    /// After how long.
    #[serde(default, rename = "duration_ms")]
    pub duration: Option<Span>,
    /// The error.
    pub error: ErrorInfo,
    /// What kind.
    pub category: Category,
    /// Which part of the world.
    pub route: Route,
    /// How bad.
    pub severity: Severity,
    /// What it takes.
    pub recoverability: Recoverability,
    /// How sure category and route are, 0 to 1.
    #[serde(default)]
    pub confidence: f32,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// The template of its signature.
    pub signature: String,
    /// The leaf it was filed under.
    pub leaf: LeafId,
    /// Processor seconds used.
    #[serde(default)]
    pub cpu: Option<f64>,
    /// Peak memory in bytes.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Where the log is.
    #[serde(default)]
    pub log: Option<String>,
    /// What was left behind.
    #[serde(default)]
    pub artifacts: Vec<String>,
}

/// Which failures of a history to keep: the first and the last [`limits::HISTORY_EDGE`]. Given the ordinal
/// of a new failure (0 is the first), says which older ordinal it displaces.
#[must_use]
pub fn displaced_by(ordinal: u32) -> Option<u32> {
    let victim = ordinal.checked_sub(limits::HISTORY_EDGE)?;
    (victim >= limits::HISTORY_EDGE).then_some(victim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_wrong_ones_list_the_right_ones() {
        for c in Category::ALL {
            assert_eq!(c.name().parse::<Category>(), Ok(*c));
            assert_eq!(serde_json::to_value(c).unwrap(), c.name());
        }
        let error = "transiet".parse::<Category>().unwrap_err();
        assert!(error.contains("transient, persistent"), "{error}");
    }

    #[test]
    fn i49_a_report_that_is_too_long_is_cut_not_lost() {
        let report = Report {
            error: ErrorInfo {
                message: "é".repeat(limits::ERROR_MESSAGE_BYTES_MAX),
                stack: Some("x".repeat(1_000_000)),
                context: vec!["y".into(); 1_000],
                ..ErrorInfo::default()
            },
            ..Report::default()
        };
        let a = report.analyse();
        assert!(a.report.error.message.len() <= limits::ERROR_MESSAGE_BYTES_MAX);
        assert!(a.report.error.message.ends_with("[cut]"));
        assert!(a.report.error.stack.unwrap().len() <= limits::STACK_BYTES_MAX);
        assert_eq!(a.report.error.context.len(), limits::TRAIL_ENTRIES_MAX);
    }

    #[test]
    fn history_keeps_its_two_ends() {
        let mut kept: Vec<u32> = Vec::new();
        for n in 0..50 {
            if let Some(victim) = displaced_by(n) {
                kept.retain(|k| *k != victim);
            }
            kept.push(n);
        }
        let expected: Vec<u32> = (0..10).chain(40..50).collect();
        assert_eq!(kept, expected);
    }
}
