//! A failed delivery: the worker's report ([`FailureReport`]), the analysed report ([`AnalysedFailure`]) and
//! the stored record ([`Failure`]). The analysis runs in the worker's process, before the call to the store.

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

/// Declares an enum whose variants each have one stable name, for JSON, filters, tables and SQL alike.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident, $what:literal, { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vmeta])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// Every variant, in declaration order.
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
    /// The kind of a failure, which decides whether a retry makes sense.
    Category, "category", {
        /// Likely to succeed unchanged if it is tried again soon.
        Transient = "transient",
        /// Fails until code, data, configuration or permissions change.
        Persistent = "persistent",
        /// Many messages fail the same way at once: the system is at fault, not the message.
        Systematic = "systematic",
        /// This message fails on every worker.
        Poison = "poison",
        /// Capacity is exhausted.
        Resource = "resource",
    }
}

named! {
    /// The part of the system that failed. Decides about the handling and the dead letter queue.
    Route, "route", {
        /// Connection, DNS, TLS, transport or rate limits.
        Network = "network",
        /// The handler's own code or process.
        Agent = "agent",
        /// A payload or a reply that cannot be decoded or validated.
        Corruption = "corruption",
        /// A time limit that passed.
        Timeout = "timeout",
        /// The message itself.
        Poison = "poison",
        /// Database, host, permission, configuration or quota.
        System = "system",
    }
}

named! {
    /// How bad a failure is.
    Severity, "severity", {
        /// Expected now and then.
        Low = "low",
        /// Worth a look.
        Medium = "medium",
        /// A person should look soon.
        High = "high",
        /// A person should look now.
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
        /// No remedy is known.
        Unlikely = "unlikely",
    }
}

named! {
    /// Why a message became a dead letter.
    Reason, "reason", {
        /// The message was executed as often as allowed.
        MaxAttempts = "max_attempts",
        /// The handler reported that a retry is useless.
        Permanent = "permanent",
        /// An include rule of the queue's policy matched.
        Rule = "rule",
        /// The failure is excluded from the attempt limit, and the time budget for retries is spent.
        RetryBudget = "retry_budget",
        /// The ttl ended before the message was done.
        Expired = "expired",
        /// The deadline passed before the message was done.
        Deadline = "deadline",
        /// The message breaks every worker that runs it.
        Poison = "poison",
        /// The payload could not be decoded.
        Undecodable = "undecodable",
        /// A custom policy or an operator decided so.
        Manual = "manual",
        /// The letter was imported.
        Imported = "imported",
        /// An executor skipped the call, or its repetition, because the breaker was open.
        BreakerOpen = "breaker_open",
    }
}

/// An error as the worker saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorInfo {
    /// The type or class name.
    #[serde(rename = "type", default)]
    pub error_type: String,
    /// The text of the error.
    #[serde(default)]
    pub message: String,
    /// A code: an HTTP status, an errno name, an SQLSTATE or an exit code.
    #[serde(default)]
    pub code: Option<String>,
    /// The stack, innermost frame first or last, as the language prints it.
    #[serde(default)]
    pub stack: Option<String>,
    /// What the handler was doing, outermost step first.
    #[serde(default)]
    pub context: Vec<String>,
    /// The underlying error.
    #[serde(default)]
    pub cause: Option<String>,
}

/// A worker's report of a failed delivery.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FailureReport {
    /// The error.
    pub error: ErrorInfo,
    /// The step that failed.
    #[serde(default)]
    pub step: Option<String>,
    /// How long the delivery took.
    #[serde(default, rename = "duration_ms")]
    pub duration: Option<Span>,
    /// The host that ran the handler.
    #[serde(default)]
    pub host: Option<String>,
    /// The version of the handler.
    #[serde(default)]
    pub version: Option<String>,
    /// Processor seconds used.
    #[serde(default)]
    pub cpu: Option<f64>,
    /// Peak memory in bytes.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Where to find the log.
    #[serde(default)]
    pub log: Option<String>,
    /// What the handler left behind: directories, branches, captured output.
    #[serde(default)]
    pub artifacts: Vec<String>,
    /// Whether the handler reports that a retry is useless.
    #[serde(default)]
    pub permanent: bool,
    /// Whether the process that ran the handler died: killed, aborted or panicked.
    #[serde(default)]
    pub crashed: bool,
    /// How long the peer asked to wait before the next attempt.
    #[serde(default, rename = "retry_after_ms")]
    pub retry_after: Option<Span>,
}

/// Cuts text at a character boundary so that it fits, and marks the cut.
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

impl FailureReport {
    /// Bounds every text (I49), then determines signature, category and route. Never refuses a report: one that
    /// is too long is cut and marked, because losing it would be worse.
    #[must_use]
    pub fn analyse(self) -> AnalysedFailure {
        self.analyse_with(&ClassifierRules::default())
    }

    /// Analyses the report with the user's own rules.
    #[must_use]
    pub fn analyse_with(mut self, rules: &ClassifierRules) -> AnalysedFailure {
        let signature = Signature::with_rules(&self.error, &rules.rules);
        let class = classify(&self.error, &rules.patterns);
        self.permanent |= class.permanent;
        rules.masking.redact(&mut self);
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
        AnalysedFailure {
            report: self,
            category: class.category,
            route: class.route,
            severity: class.severity,
            recoverability: class.recoverability,
            confidence: class.confidence,
            reasons: class.reasons,
            signature,
        }
        .redacted(&rules.masking)
    }
}

/// Refuses categories that an operator cannot give to a group, because only the history of a single message
/// can.
///
/// # Errors
/// Returns [`Refusal::Invalid`] for poison.
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

/// The error type of a delivery whose lease expired.
pub const LEASE_EXPIRED: &str = "LeaseExpired";
/// The error type of a message whose ttl or deadline passed.
pub const TOO_LATE: &str = "TooLate";

/// The error type of a payload that the handler cannot decode.
pub const UNDECODABLE: &str = "Undecodable";

/// The user's own rules, which take precedence over the built-in tables.
#[derive(Clone, Debug, Default)]
pub struct ClassifierRules {
    /// Rules that decide which failures are the same.
    pub rules: SignatureRules,
    /// Patterns that decide about the category. A pattern can declare a failure permanent.
    pub patterns: Patterns,
    /// Rules for secrets in error texts, which are not stored.
    pub masking: Rules,
}

/// A report with the results of its analysis. This is what a worker settles with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AnalysedFailure {
    /// The worker's report.
    pub report: FailureReport,
    /// The category.
    pub category: Category,
    /// The part of the system that failed.
    pub route: Route,
    /// The severity.
    pub severity: Severity,
    /// What it takes to make the message succeed.
    pub recoverability: Recoverability,
    /// The confidence in category and route, from 0 to 1.
    #[serde(default)]
    pub confidence: f32,
    /// Why the failure was classified this way, for operators.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// The signature, which is the same for the same cause.
    pub signature: Signature,
}

impl AnalysedFailure {
    /// Whether the worker crashed or its lease expired.
    #[must_use]
    pub fn crashed(&self) -> bool {
        self.report.crashed || self.report.error.error_type == LEASE_EXPIRED
    }

    /// The classification of the failure.
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

    /// The failure with another classification.
    #[must_use]
    pub fn reclassified(self, class: Class) -> Self {
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

    /// The failure of a delivery whose worker did not settle in time. Crash, OOM and lost lease count alike.
    #[must_use]
    pub fn lease_lost(held_for: Span) -> Self {
        FailureReport {
            error: ErrorInfo {
                error_type: LEASE_EXPIRED.into(),
                message: "the worker did not settle before its lease ran out".into(),
                ..ErrorInfo::default()
            },
            duration: Some(held_for),
            ..FailureReport::default()
        }
        .analyse()
    }

    /// The failure of a message whose ttl or deadline passed.
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
        FailureReport {
            error: ErrorInfo { error_type: TOO_LATE.into(), message: message.into(), ..ErrorInfo::default() },
            ..FailureReport::default()
        }
        .analyse()
    }

    /// The record that is stored with the message.
    #[must_use]
    pub fn into_failure(self, generation: u32, attempt: u32, at: Time, worker: Option<String>) -> Failure {
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

/// One failed delivery, as it is stored with its message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The generation. Attempt numbers restart with each.
    pub generation: u32,
    /// The number of the execution within the generation; 0 if the message was never executed.
    pub attempt: u32,
    /// When the delivery failed.
    pub at: Time,
    /// The name of the worker.
    #[serde(default)]
    pub worker: Option<String>,
    /// The host that ran the handler.
    #[serde(default)]
    pub host: Option<String>,
    /// The version of the handler.
    #[serde(default)]
    pub version: Option<String>,
    /// The step that failed.
    #[serde(default)]
    pub step: Option<String>,
    /// How long the delivery took.
    #[serde(default, rename = "duration_ms")]
    pub duration: Option<Span>,
    /// The error.
    pub error: ErrorInfo,
    /// The category.
    pub category: Category,
    /// The part of the system that failed.
    pub route: Route,
    /// The severity.
    pub severity: Severity,
    /// What it takes to make the message succeed.
    pub recoverability: Recoverability,
    /// The confidence in category and route, from 0 to 1.
    #[serde(default)]
    pub confidence: f32,
    /// Why the failure was classified this way, for operators.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// The template of the signature.
    pub signature: String,
    /// The leaf of the signature tree.
    pub leaf: LeafId,
    /// Processor seconds used.
    #[serde(default)]
    pub cpu: Option<f64>,
    /// Peak memory in bytes.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Where to find the log.
    #[serde(default)]
    pub log: Option<String>,
    /// What the handler left behind.
    #[serde(default)]
    pub artifacts: Vec<String>,
}

/// Returns the ordinal of the failure that a new one displaces from the history, which keeps the first and the
/// last [`limits::HISTORY_EDGE`] failures. `ordinal` is that of the new failure; the first is 0.
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
        let report = FailureReport {
            error: ErrorInfo {
                message: "é".repeat(limits::ERROR_MESSAGE_BYTES_MAX),
                stack: Some("x".repeat(1_000_000)),
                context: vec!["y".into(); 1_000],
                ..ErrorInfo::default()
            },
            ..FailureReport::default()
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
