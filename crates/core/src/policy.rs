//! The rules of a queue, and [`judge`]: the one place that turns a failure into a verdict. Workers report,
//! stores apply; nobody else retries.

use crate::backoff::{Backoff, Roll};
use crate::error::Refusal;
use crate::failure::{Analysed, Category, Reason, Route};
use crate::ids::QueueName;
use crate::lifecycle::Life;
use crate::limits;
use crate::message::{Priority, Terms, sane};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// What happens to a message whose time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExpire {
    /// It becomes a dead letter.
    #[default]
    DeadLetter,
    /// It is dropped and counted.
    Drop,
}

/// What happens to an ordering key when one of its messages dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDead {
    /// The next message of the key proceeds.
    #[default]
    Continue,
    /// The key is held until the letter is closed.
    Hold,
}

/// What an include or exclude rule looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorMatch {
    /// The category: `category:resource`.
    Category(Category),
    /// The error type, with `*` for any run of characters.
    Type(String),
}

impl ErrorMatch {
    /// Whether this failure is meant.
    #[must_use]
    pub fn matches(&self, failure: &Analysed) -> bool {
        match self {
            Self::Category(category) => failure.category == *category,
            Self::Type(glob) => glob_matches(glob, &failure.report.error.error_type),
        }
    }
}

/// `*` stands for any run of characters. Linear: each star is matched at its first possible place.
pub(crate) fn glob_matches(glob: &str, text: &str) -> bool {
    let mut parts = glob.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(previous) = last.replace(part) {
            match rest.split_once(previous) {
                Some((_, after)) => rest = after,
                None => return false,
            }
        }
    }
    last.map_or(rest.is_empty(), |end| rest.ends_with(end))
}

impl fmt::Display for ErrorMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Category(c) => write!(f, "category:{c}"),
            Self::Type(glob) => f.write_str(glob),
        }
    }
}

impl FromStr for ErrorMatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(category) = text.strip_prefix("category:") {
            return category.parse().map(Self::Category);
        }
        if text.is_empty() || text.len() > limits::LABEL_BYTES_MAX {
            return Err(format!("{text:?} is not an error type, a glob such as `Http*`, or `category:NAME`"));
        }
        Ok(Self::Type(text.into()))
    }
}
crate::ids::serde_as_text!(ErrorMatch);
use serde::{Deserializer, Serializer};

/// The rules of one queue. The store holds the authority; a configuration file only proposes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueuePolicy {
    /// Executions allowed, the first included.
    pub max_attempts: u32,
    /// When to try again.
    pub backoff: Backoff,
    /// These are dead-lettered at once.
    pub include: Vec<ErrorMatch>,
    /// These are never dead-lettered by count, only by [`Self::retry_for`]. Beats include.
    pub exclude: Vec<ErrorMatch>,
    /// Time budget for excluded failures, from the first failure of the generation.
    #[serde(rename = "retry_for_ms", alias = "retry_for")]
    pub retry_for: Span,
    /// How long a message is useful, when it does not say itself.
    #[serde(rename = "ttl_ms", alias = "ttl", skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,
    /// What happens when its time is over.
    pub on_expire: OnExpire,
    /// What happens to an ordering key when a message of it dies.
    pub on_dead: OnDead,
    /// How long a lease lasts, when the worker does not say.
    #[serde(rename = "lease_ms", alias = "lease")]
    pub lease: Span,
    /// The priority of messages that do not say.
    pub priority: Priority,
    /// Where dead letters lie; `{queue}-dlq` when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dlq: Option<QueueName>,
    /// Drawers by route; beats [`Self::dlq`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub routes: BTreeMap<Route, QueueName>,
    /// How long closed letters are kept, from closing.
    #[serde(rename = "retention_ms", alias = "retention")]
    pub retention: Span,
    /// How long open letters are kept, from death; for ever when not said.
    #[serde(rename = "open_ttl_ms", alias = "open_ttl", skip_serializing_if = "Option::is_none")]
    pub open_ttl: Option<Span>,
    /// Live messages the queue holds at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_messages: Option<u64>,
    /// Payload bytes of live messages the queue holds at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

impl Default for QueuePolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            backoff: Backoff::default(),
            include: Vec::new(),
            exclude: Vec::new(),
            retry_for: Span::from_hours(24),
            ttl: None,
            on_expire: OnExpire::DeadLetter,
            on_dead: OnDead::Continue,
            lease: Span::from_secs(30),
            priority: Priority::Normal,
            dlq: None,
            routes: BTreeMap::new(),
            retention: Span::from_days(30),
            open_ttl: None,
            max_messages: None,
            max_bytes: None,
        }
    }
}

impl QueuePolicy {
    /// The drawer a death of this route goes to.
    #[must_use]
    pub fn drawer(&self, queue: &QueueName, route: Route) -> QueueName {
        let named = self.routes.get(&route).or(self.dlq.as_ref());
        named.cloned().unwrap_or_else(|| queue.default_drawer())
    }

    /// Every drawer this policy can file into.
    #[must_use]
    pub fn drawers(&self, queue: &QueueName) -> Vec<QueueName> {
        let mut all: Vec<QueueName> = self.routes.values().cloned().collect();
        all.push(self.dlq.clone().unwrap_or_else(|| queue.default_drawer()));
        all.sort();
        all.dedup();
        all
    }

    /// Refuses what cannot be meant, naming the setting.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for the first setting that is out of bounds.
    pub fn check(&self, queue: &QueueName) -> Result<(), Refusal> {
        if self.max_attempts == 0 || self.max_attempts > limits::ATTEMPTS_MAX {
            return Err(Refusal::invalid(
                "max_attempts",
                format!(
                    "{} is outside 1 to {}; it counts executions, the first included",
                    self.max_attempts,
                    limits::ATTEMPTS_MAX
                ),
            ));
        }
        self.backoff.check()?;
        sane("lease", self.lease, limits::LEASE_MIN, limits::LEASE_MAX)?;
        sane("retry_for", self.retry_for, Span::from_millis(1), limits::SPAN_MAX)?;
        sane("retention", self.retention, Span::from_millis(1), limits::SPAN_MAX)?;
        for (name, span) in [("ttl", self.ttl), ("open_ttl", self.open_ttl)] {
            if let Some(span) = span {
                sane(name, span, Span::from_millis(1), limits::SPAN_MAX)?;
            }
        }
        for (name, rules) in [("include", &self.include), ("exclude", &self.exclude)] {
            if rules.len() > limits::RULES_MAX {
                return Err(Refusal::invalid(name, format!("more than {} rules", limits::RULES_MAX)));
            }
        }
        if self.drawers(queue).contains(queue) {
            return Err(Refusal::invalid("dlq", format!("{queue} would be its own drawer; name another")));
        }
        Ok(())
    }
}

/// What becomes of a failed delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Try again, not before then.
    Retry {
        /// When.
        at: Time,
    },
    /// It becomes a dead letter.
    Dead {
        /// Why.
        reason: Reason,
    },
    /// It is dropped and counted as expired.
    Drop,
}

/// What a custom `should_dead_letter` may say instead of the queue's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Override {
    /// Dead-letter now.
    DeadLetter,
    /// Try again after this long, whatever the count says; the time budget still holds.
    RetryAfter(Span),
}

/// The verdict on a message whose time is over.
#[must_use]
pub fn too_late(policy: &QueuePolicy, reason: Reason) -> Verdict {
    match policy.on_expire {
        OnExpire::DeadLetter => Verdict::Dead { reason },
        OnExpire::Drop => Verdict::Drop,
    }
}

/// Why this message's time is over at `at`, if it is. The deadline is named first: it is the harder promise.
#[must_use]
pub fn overdue(terms: impl Into<Terms>, at: Time) -> Option<Reason> {
    let terms = terms.into();
    if terms.deadline.is_some_and(|d| d <= at) {
        return Some(Reason::Deadline);
    }
    terms.expires_at.is_some_and(|e| e <= at).then_some(Reason::Expired)
}

/// Turns one failed delivery into a verdict. `life` is as it was during the delivery, so `attempts` counts
/// the execution that just failed. Order matters and is the order of PRODUCT.md: what the handler or a
/// custom policy says, then exclude, then include, then the count, then the clock.
#[must_use]
pub fn judge(
    policy: &QueuePolicy,
    terms: impl Into<Terms>,
    life: &Life,
    failure: &Analysed,
    said: Option<Override>,
    now: Time,
    roll: Roll,
) -> Verdict {
    let terms = terms.into().in_generation(life.generation);
    if said == Some(Override::DeadLetter) {
        return Verdict::Dead { reason: Reason::Manual };
    }
    if failure.report.permanent {
        return Verdict::Dead { reason: Reason::Permanent };
    }
    let excluded = policy.exclude.iter().any(|rule| rule.matches(failure));
    if excluded || said.is_some() {
        let since = life.failing_since.unwrap_or(now);
        if now.since(since) >= policy.retry_for {
            return Verdict::Dead { reason: Reason::RetryBudget };
        }
    } else if policy.include.iter().any(|rule| rule.matches(failure)) {
        return Verdict::Dead { reason: Reason::Rule };
    } else if life.attempts >= terms.max_attempts(policy) {
        return Verdict::Dead { reason: Reason::MaxAttempts };
    }
    let delay = match said {
        Some(Override::RetryAfter(span)) => span.min(policy.retry_for),
        Some(Override::DeadLetter) | None => {
            policy.backoff.delay(life.attempts, life.last_delay, failure.report.retry_after, roll)
        }
    };
    let at = now.plus(delay);
    match overdue(terms, at) {
        Some(reason) => too_late(policy, reason),
        None => Verdict::Retry { at },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{ErrorInfo, Report};
    use crate::ids::MessageId;
    use crate::message::{Envelope, NewMessage, Payload};

    fn fixture() -> (QueuePolicy, Envelope, Life) {
        let m = NewMessage::new(MessageId::new(1, [1; 10]), "q".parse().unwrap(), Payload::default());
        let policy = QueuePolicy {
            backoff: Backoff { jitter: crate::backoff::Jitter::None, ..Backoff::default() },
            ..QueuePolicy::default()
        };
        let record = m.accept(&policy, 1, Time::from_millis(1_000));
        let mut life = record.life;
        life.attempts = 1;
        (policy, record.envelope, life)
    }

    fn failure(error_type: &str) -> Analysed {
        let error = ErrorInfo { error_type: error_type.into(), message: "no".into(), ..ErrorInfo::default() };
        Report { error, ..Report::default() }.analyse()
    }

    const NOW: Time = Time::from_millis(1_000);
    const DEAD_BY_COUNT: Verdict = Verdict::Dead { reason: Reason::MaxAttempts };

    #[test]
    fn i26_the_count_includes_the_first_execution() {
        let (policy, envelope, mut life) = fixture();
        for attempts in 1..5 {
            life.attempts = attempts;
            let v = judge(&policy, &envelope, &life, &failure("E"), None, NOW, Roll(0));
            let at = NOW.plus(Span::from_secs(1 << (attempts - 1)));
            assert_eq!(v, Verdict::Retry { at }, "attempt {attempts}");
        }
        life.attempts = 5;
        assert_eq!(judge(&policy, &envelope, &life, &failure("E"), None, NOW, Roll(0)), DEAD_BY_COUNT);
        let own = Envelope { max_attempts: Some(1), ..envelope };
        life.attempts = 1;
        assert_eq!(judge(&policy, &own, &life, &failure("E"), None, NOW, Roll(0)), DEAD_BY_COUNT);
    }

    #[test]
    fn include_kills_at_once_and_exclude_beats_it_within_its_budget() {
        let (mut policy, envelope, mut life) = fixture();
        policy.include = vec!["Bad*".parse().unwrap()];
        let v = judge(&policy, &envelope, &life, &failure("BadInput"), None, NOW, Roll(0));
        assert_eq!(v, Verdict::Dead { reason: Reason::Rule });
        policy.exclude = vec!["*Input".parse().unwrap()];
        life.attempts = 5_000;
        life.failing_since = Some(NOW);
        let v = judge(&policy, &envelope, &life, &failure("BadInput"), None, NOW, Roll(0));
        assert!(matches!(v, Verdict::Retry { .. }), "{v:?}");
        let later = NOW.plus(policy.retry_for);
        let v = judge(&policy, &envelope, &life, &failure("BadInput"), None, later, Roll(0));
        assert_eq!(v, Verdict::Dead { reason: Reason::RetryBudget });
    }

    #[test]
    fn permanent_and_override_come_first() {
        let (mut policy, envelope, life) = fixture();
        policy.exclude = vec!["*".parse().unwrap()];
        let mut permanent = failure("E");
        permanent.report.permanent = true;
        let v = judge(&policy, &envelope, &life, &permanent, None, NOW, Roll(0));
        assert_eq!(v, Verdict::Dead { reason: Reason::Permanent });
        let v = judge(&policy, &envelope, &life, &failure("E"), Some(Override::DeadLetter), NOW, Roll(0));
        assert_eq!(v, Verdict::Dead { reason: Reason::Manual });
        let soon = Some(Override::RetryAfter(Span::from_secs(7)));
        let v = judge(&policy, &envelope, &life, &failure("E"), soon, NOW, Roll(0));
        assert_eq!(v, Verdict::Retry { at: NOW.plus(Span::from_secs(7)) });
    }

    #[test]
    fn a_retry_that_would_come_too_late_is_not_made() {
        let (mut policy, mut envelope, life) = fixture();
        envelope.deadline = Some(NOW.plus(Span::from_secs(1)));
        let v = judge(&policy, &envelope, &life, &failure("E"), None, NOW, Roll(0));
        assert_eq!(v, Verdict::Dead { reason: Reason::Deadline });
        envelope.deadline = None;
        envelope.ttl = Some(Span::from_millis(900));
        let v = judge(&policy, &envelope, &life, &failure("E"), None, NOW, Roll(0));
        assert_eq!(v, Verdict::Dead { reason: Reason::Expired });
        policy.on_expire = OnExpire::Drop;
        let v = judge(&policy, &envelope, &life, &failure("E"), None, NOW, Roll(0));
        assert_eq!(v, Verdict::Drop);
        let redriven = Life { generation: 2, ..life };
        let v = judge(&policy, &envelope, &redriven, &failure("E"), None, NOW, Roll(0));
        assert!(matches!(v, Verdict::Retry { .. }), "who redrives it wants it to run: {v:?}");
    }

    #[test]
    fn globs_match_whole_names() {
        for (glob, text, expected) in [
            ("E", "E", true),
            ("E", "EE", false),
            ("*", "", true),
            ("Http*Error", "HttpTimeoutError", true),
            ("Http*Error", "HttpError", true),
            ("Http*Error", "HttpErrors", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "bxa", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(glob_matches(glob, text), expected, "{glob} on {text}");
        }
    }

    #[test]
    fn i38_a_queue_cannot_be_its_own_drawer() {
        let q: QueueName = "q".parse().unwrap();
        let policy = QueuePolicy { dlq: Some(q.clone()), ..QueuePolicy::default() };
        assert!(policy.check(&q).unwrap_err().to_string().contains("its own drawer"));
        assert_eq!(QueuePolicy::default().check(&q), Ok(()));
    }

    #[test]
    fn a_policy_survives_json_and_reads_human_durations() {
        let policy = QueuePolicy::default();
        let json = serde_json::to_value(&policy).unwrap();
        assert_eq!(serde_json::from_value::<QueuePolicy>(json).unwrap(), policy);
        let text = r#"{"lease":"45s","backoff":{"strategy":"fixed","initial":"2s","jitter":"none"}}"#;
        let read: QueuePolicy = serde_json::from_str(text).unwrap();
        assert_eq!(read.lease, Span::from_secs(45));
        assert_eq!(read.backoff.base(9), Span::from_secs(2));
        assert!(serde_json::from_str::<QueuePolicy>(r#"{"leese":"45s"}"#).is_err());
    }
}
