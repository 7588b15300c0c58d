//! The rules of a queue, and [`judge`], the only function that turns a failure into a verdict. Workers report
//! failures and stores apply verdicts. A message that workers give back too often dies without a failure, in
//! [`crate::lifecycle::transition()`].

use crate::auto_redrive::AutoRedrive;
use crate::backoff::{Backoff, JitterSeed};
use crate::breaker::BreakerPolicy;
use crate::error::Refusal;
use crate::failure::{AnalysedFailure, Category, Reason, Route, UNDECODABLE};
use crate::handling::{self, Handling, Strategy};
use crate::ids::QueueName;
use crate::lifecycle::Lifecycle;
use crate::limits;
use crate::message::{MessageLimits, Priority, check_span};
use crate::poison::{PoisonPolicy, PoisonVerdict};
use crate::target::Target;
use crate::time::{Span, Time};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// What happens to a message whose ttl or deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExpire {
    /// The message becomes a dead letter.
    #[default]
    DeadLetter,
    /// The message is dropped and counted as expired.
    Drop,
}

/// What happens to the messages of an ordering key when one of them dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDead {
    /// The next message of the key can be leased.
    #[default]
    Continue,
    /// The key is held until the dead letter is closed.
    Hold,
}

/// The condition of an include or exclude rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorMatch {
    /// Matches the category of the failure. Written as `category:resource`.
    Category(Category),
    /// Matches the error type, where `*` stands for any run of characters.
    Type(String),
}

impl ErrorMatch {
    /// Whether this condition holds for the failure.
    #[must_use]
    pub fn matches(&self, failure: &AnalysedFailure) -> bool {
        match self {
            Self::Category(category) => failure.category == *category,
            Self::Type(glob) => glob_matches(glob, &failure.report.error.error_type),
        }
    }
}

/// Matches `text` against a pattern where `*` stands for any run of characters. Runs in linear time, because
/// each part after a star is matched at its first occurrence.
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

/// The rules of one queue. The policy in the store is authoritative; a configuration file only proposes one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueuePolicy {
    /// The number of executions allowed, including the first.
    pub max_attempts: u32,
    /// Whether the queue's backoff or the category of the failure decides about retries.
    pub strategy: Strategy,
    /// The delays between attempts.
    pub backoff: Backoff,
    /// Failures that make the message a dead letter at once.
    pub include: Vec<ErrorMatch>,
    /// Failures that are retried regardless of `max_attempts`, [`Self::include`] and signs of poison other than
    /// crashes. [`Self::retry_for`], the ttl and the deadline still apply.
    pub exclude: Vec<ErrorMatch>,
    /// The time budget for excluded failures, counted from the first failure of the generation.
    #[serde(rename = "retry_for_ms", alias = "retry_for")]
    pub retry_for: Span,
    /// How long after enqueue a message expires. A message can set its own ttl.
    #[serde(rename = "ttl_ms", alias = "ttl", skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,
    /// What happens to a message whose ttl or deadline has passed.
    pub on_expire: OnExpire,
    /// What happens to an ordering key when one of its messages dies.
    pub on_dead: OnDead,
    /// How long a lease lasts unless the worker asks for another duration.
    #[serde(rename = "lease_ms", alias = "lease")]
    pub lease: Span,
    /// The priority of messages that do not set one.
    pub priority: Priority,
    /// The dead letter queue. Defaults to `{queue}-dlq`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dlq: Option<QueueName>,
    /// Dead letter queues by route. Takes precedence over [`Self::dlq`].
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub routes: BTreeMap<Route, QueueName>,
    /// How failures of a route are handled, where that differs from the default of the route.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub handling: BTreeMap<Route, Handling>,
    /// When to stop leasing messages because the service they need is down. `None` means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerPolicy>,
    /// What happens to poison: messages that break every worker that runs them.
    pub poison: PoisonPolicy,
    /// When dead letters are redriven automatically. `None` means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_redrive: Option<AutoRedrive>,
    /// How often a letter may be redriven. A letter that dies after this many redrives, automatic or not, waits
    /// for review, and only a forced redrive sends it back.
    pub max_redrives: u32,
    /// How long closed letters are kept after they were closed.
    #[serde(rename = "retention_ms", alias = "retention")]
    pub retention: Span,
    /// How long open letters are kept after death. `None` keeps them for ever.
    #[serde(rename = "open_ttl_ms", alias = "open_ttl", skip_serializing_if = "Option::is_none")]
    pub open_ttl: Option<Span>,
    /// The maximum number of live messages in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_messages: Option<u64>,
    /// The maximum number of payload bytes of live messages in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// Whether the text index covers the payloads of dead letters. It always covers their errors.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub search_payload: bool,
    /// The target that messages are delivered to. `None` if the user's own handlers process them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
}

impl Default for QueuePolicy {
    fn default() -> Self {
        Self {
            max_attempts: 5,
            strategy: Strategy::Queue,
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
            handling: BTreeMap::new(),
            breaker: None,
            poison: PoisonPolicy::default(),
            auto_redrive: None,
            max_redrives: limits::REDRIVES_DEFAULT,
            retention: Span::from_days(30),
            open_ttl: None,
            max_messages: None,
            max_bytes: None,
            search_payload: false,
            target: None,
        }
    }
}

impl QueuePolicy {
    /// The default rules with a retry strategy per category. `max_attempts` is high enough for every category.
    #[must_use]
    pub fn by_category() -> Self {
        Self {
            strategy: Strategy::ByCategory,
            max_attempts: handling::attempts_of_any_category(),
            ..Self::default()
        }
    }

    /// How failures of a route are handled: as [`Self::handling`] says. Otherwise the route's default applies, but only
    /// under [`Strategy::ByCategory`]; poison has its default under either strategy.
    #[must_use]
    pub fn handling(&self, route: Route) -> Handling {
        let usual = match (self.strategy, route) {
            (Strategy::ByCategory, _) | (Strategy::Queue, Route::Poison) => Handling::of(route),
            (
                Strategy::Queue,
                Route::Network | Route::Agent | Route::Corruption | Route::Timeout | Route::System,
            ) => Handling::Backoff,
        };
        self.handling.get(&route).copied().unwrap_or(usual)
    }

    /// How long a letter of this route stays in quarantine after its death. `None` if it is not quarantined.
    #[must_use]
    pub fn quarantine(&self, route: Route) -> Option<Span> {
        match self.handling(route) {
            Handling::Quarantine => Some(handling::QUARANTINE),
            Handling::LongQuarantine => Some(self.poison.quarantine),
            Handling::Backoff | Handling::Breaker | Handling::FastRetry | Handling::Alert => None,
        }
    }

    /// Whether the death of a message raises an alert.
    #[must_use]
    pub fn alerts(&self, category: Category, route: Route) -> bool {
        let systematic = self.strategy == Strategy::ByCategory && category == Category::Systematic;
        systematic || self.handling(route) == Handling::Alert
    }

    /// The delay before the next attempt, and the number of executions allowed.
    fn retry_plan(
        &self,
        limits: &MessageLimits,
        failure: &AnalysedFailure,
        attempt: u32,
        last_delay: Option<Span>,
        jitter_seed: JitterSeed,
    ) -> (Span, u32) {
        let ceiling = limits.max_attempts(self);
        let (by_category, retries) = handling::strategy_of(failure.category);
        let (backoff, limit) = match self.strategy {
            Strategy::Queue => (&self.backoff, ceiling),
            Strategy::ByCategory => (&by_category, ceiling.min(retries.saturating_add(1))),
        };
        let hint = failure.report.retry_after;
        let delay = if self.handling(failure.route) == Handling::FastRetry {
            let soon = backoff.delay(1, None, None, jitter_seed).min(handling::FAST);
            soon.max(hint.unwrap_or(Span::ZERO).min(backoff.cap))
        } else {
            backoff.delay(attempt, last_delay, hint, jitter_seed)
        };
        (delay, limit)
    }

    /// The dead letter queue for deaths of this route.
    #[must_use]
    pub fn dlq(&self, queue: &QueueName, route: Route) -> QueueName {
        let named = self.routes.get(&route).or(self.dlq.as_ref());
        named.cloned().unwrap_or_else(|| queue.default_dlq())
    }

    /// Every dead letter queue that this policy can name.
    #[must_use]
    pub fn dlqs(&self, queue: &QueueName) -> Vec<QueueName> {
        let mut all: Vec<QueueName> = self.routes.values().cloned().collect();
        all.push(self.dlq.clone().unwrap_or_else(|| queue.default_dlq()));
        all.sort();
        all.dedup();
        all
    }

    /// Checks every setting against its bounds.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] for the first setting that is out of bounds.
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
        if let Some(breaker) = &self.breaker {
            breaker.check()?;
        }
        if let Some(auto) = &self.auto_redrive {
            auto.check()?;
        }
        if self.max_redrives == 0 || self.max_redrives > limits::REDRIVES_MAX {
            let why = format!("{} is outside 1 to {}", self.max_redrives, limits::REDRIVES_MAX);
            return Err(Refusal::invalid("max_redrives", why));
        }
        check_span("poison.quarantine", self.poison.quarantine, Span::from_millis(1), limits::SPAN_MAX)?;
        check_span("lease", self.lease, limits::LEASE_MIN, limits::LEASE_MAX)?;
        check_span("retry_for", self.retry_for, Span::from_millis(1), limits::SPAN_MAX)?;
        check_span("retention", self.retention, Span::from_millis(1), limits::SPAN_MAX)?;
        for (route, handling) in &self.handling {
            if *handling == Handling::Breaker && matches!(route, Route::Corruption | Route::Poison) {
                let why = format!("{route} failures never count for a breaker; name another handling");
                return Err(Refusal::invalid("handling", why));
            }
        }
        for (name, span) in [("ttl", self.ttl), ("open_ttl", self.open_ttl)] {
            if let Some(span) = span {
                check_span(name, span, Span::from_millis(1), limits::SPAN_MAX)?;
            }
        }
        for (name, rules) in [("include", &self.include), ("exclude", &self.exclude)] {
            if rules.len() > limits::RULES_MAX {
                return Err(Refusal::invalid(name, format!("more than {} rules", limits::RULES_MAX)));
            }
        }
        if let Some(target) = &self.target {
            target.check()?;
        }
        if self.dlqs(queue).contains(queue) {
            return Err(Refusal::invalid(
                "dlq",
                format!("{queue} would be its own dead letter queue; name another"),
            ));
        }
        Ok(())
    }
}

/// What happens to a message after a failed delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The message is tried again.
    Retry {
        /// The earliest time of the next attempt.
        at: Time,
    },
    /// The message becomes a dead letter.
    Dead {
        /// Why the message died.
        reason: Reason,
    },
    /// The message is dropped and counted as expired.
    Drop,
}

/// What a custom dead letter policy can decide instead of the queue's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Override {
    /// The message becomes a dead letter now.
    DeadLetter,
    /// The message is tried again after the queue's backoff, regardless of the number of attempts. The time
    /// budget still applies.
    Retry,
    /// The message is tried again after this delay, regardless of the number of attempts. The time budget still
    /// applies.
    RetryAfter(Span),
}

/// The verdict on a message whose ttl or deadline has passed.
#[must_use]
pub fn too_late(policy: &QueuePolicy, reason: Reason) -> Verdict {
    match policy.on_expire {
        OnExpire::DeadLetter => Verdict::Dead { reason },
        OnExpire::Drop => Verdict::Drop,
    }
}

/// Returns why the message is overdue at `at`, or `None` if it is not. The deadline comes before the ttl,
/// because it is the stricter promise.
#[must_use]
pub fn overdue(limits: impl Into<MessageLimits>, at: Time) -> Option<Reason> {
    let limits = limits.into();
    if limits.deadline.is_some_and(|d| d <= at) {
        return Some(Reason::Deadline);
    }
    limits.expires_at.is_some_and(|e| e <= at).then_some(Reason::Expired)
}

/// A failed delivery that awaits its verdict.
#[derive(Clone, Copy, Debug)]
pub struct FailureCase<'a> {
    /// The rules of the queue.
    pub policy: &'a QueuePolicy,
    /// The limits of the message itself.
    pub limits: MessageLimits,
    /// The lifecycle during the delivery, so that `attempts` includes the execution that just failed.
    pub lifecycle: &'a Lifecycle,
    /// The failure, already analysed.
    pub failure: &'a AnalysedFailure,
    /// What the message's history says about poison.
    pub poison_verdict: &'a PoisonVerdict,
    /// The decision of a custom dead letter policy, if it made one.
    pub policy_override: Option<Override>,
    /// The current time of the store.
    pub now: Time,
    /// The source of the jitter.
    pub jitter_seed: JitterSeed,
}

/// Turns a failed delivery into a verdict. The first of these that applies decides: a custom policy that says dead,
/// a failure that the handler calls permanent, repeated crashes, an include rule, other signs of poison, the number of
/// attempts, and the ttl or deadline at the time of the next attempt. An exclude rule, or a custom policy that says
/// retry, replaces the checks between crashes and ttl by one: the time budget `retry_for`.
#[must_use]
pub fn judge(case: &FailureCase<'_>) -> Verdict {
    let FailureCase { policy, lifecycle, failure, policy_override, now, .. } = *case;
    let limits = case.limits.in_generation(lifecycle.generation);
    if policy_override == Some(Override::DeadLetter) {
        return Verdict::Dead { reason: Reason::Manual };
    }
    if failure.report.permanent {
        let undecodable = failure.report.error.error_type == UNDECODABLE;
        let reason = if undecodable { Reason::Undecodable } else { Reason::Permanent };
        return Verdict::Dead { reason };
    }
    let poison = match case.poison_verdict {
        PoisonVerdict::Quarantine { crashed, .. } if policy.poison.detect => Some(*crashed),
        PoisonVerdict::Quarantine { .. }
        | PoisonVerdict::Continue
        | PoisonVerdict::Monitor
        | PoisonVerdict::Throttle(_)
        | PoisonVerdict::Systematic => None,
    };
    if poison == Some(true) {
        return Verdict::Dead { reason: Reason::Poison };
    }
    let (delay, limit) =
        policy.retry_plan(&limits, failure, lifecycle.attempts, lifecycle.last_delay, case.jitter_seed);
    if policy_override.is_some() || policy.exclude.iter().any(|rule| rule.matches(failure)) {
        let since = lifecycle.failing_since.unwrap_or(now);
        if now.since(since) >= policy.retry_for {
            return Verdict::Dead { reason: Reason::RetryBudget };
        }
    } else if policy.include.iter().any(|rule| rule.matches(failure)) {
        return Verdict::Dead { reason: Reason::Rule };
    } else if poison.is_some() {
        return Verdict::Dead { reason: Reason::Poison };
    } else if lifecycle.attempts >= limit {
        return Verdict::Dead { reason: Reason::MaxAttempts };
    }
    let delay = match (policy_override, case.poison_verdict) {
        (Some(Override::RetryAfter(span)), _) => span.min(policy.retry_for),
        (Some(Override::DeadLetter | Override::Retry) | None, PoisonVerdict::Throttle(at_least))
            if policy.poison.detect =>
        {
            delay.max(*at_least)
        }
        (Some(Override::DeadLetter | Override::Retry) | None, _) => delay,
    };
    let at = now.plus(delay);
    match overdue(limits, at) {
        Some(reason) => too_late(policy, reason),
        None => Verdict::Retry { at },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{ErrorInfo, FailureReport};
    use crate::ids::MessageId;
    use crate::message::{Envelope, NewMessage, Payload};

    fn fixture() -> (QueuePolicy, Envelope, Lifecycle) {
        let m = NewMessage::new(MessageId::new(1, [1; 10]), "q".parse().unwrap(), Payload::default());
        let policy = QueuePolicy {
            backoff: Backoff { jitter: crate::backoff::Jitter::None, ..Backoff::default() },
            ..QueuePolicy::default()
        };
        let record = m.accept(&policy, 1, Time::from_millis(1_000));
        let mut lifecycle = record.lifecycle;
        lifecycle.attempts = 1;
        (policy, record.envelope, lifecycle)
    }

    fn failure(error_type: &str) -> AnalysedFailure {
        let error = ErrorInfo { error_type: error_type.into(), message: "no".into(), ..ErrorInfo::default() };
        FailureReport { error, ..FailureReport::default() }.analyse()
    }

    fn judge(
        policy: &QueuePolicy,
        envelope: &Envelope,
        lifecycle: &Lifecycle,
        failure: &AnalysedFailure,
        policy_override: Option<Override>,
        now: Time,
        jitter_seed: JitterSeed,
    ) -> Verdict {
        let (limits, poison_verdict) = (envelope.into(), &PoisonVerdict::Continue);
        super::judge(&FailureCase {
            policy,
            limits,
            lifecycle,
            failure,
            poison_verdict,
            policy_override,
            now,
            jitter_seed,
        })
    }

    const NOW: Time = Time::from_millis(1_000);
    const DEAD_BY_COUNT: Verdict = Verdict::Dead { reason: Reason::MaxAttempts };

    #[test]
    fn i26_the_count_includes_the_first_execution() {
        let (policy, envelope, mut lifecycle) = fixture();
        for attempts in 1..5 {
            lifecycle.attempts = attempts;
            let v = judge(&policy, &envelope, &lifecycle, &failure("E"), None, NOW, JitterSeed(0));
            let at = NOW.plus(Span::from_secs(1 << (attempts - 1)));
            assert_eq!(v, Verdict::Retry { at }, "attempt {attempts}");
        }
        lifecycle.attempts = 5;
        assert_eq!(
            judge(&policy, &envelope, &lifecycle, &failure("E"), None, NOW, JitterSeed(0)),
            DEAD_BY_COUNT
        );
        let own = Envelope { max_attempts: Some(1), ..envelope };
        lifecycle.attempts = 1;
        assert_eq!(judge(&policy, &own, &lifecycle, &failure("E"), None, NOW, JitterSeed(0)), DEAD_BY_COUNT);
    }

    #[test]
    fn include_kills_at_once_and_exclude_beats_it_within_its_budget() {
        let (mut policy, envelope, mut lifecycle) = fixture();
        policy.include = vec!["Bad*".parse().unwrap()];
        let v = judge(&policy, &envelope, &lifecycle, &failure("BadInput"), None, NOW, JitterSeed(0));
        assert_eq!(v, Verdict::Dead { reason: Reason::Rule });
        policy.exclude = vec!["*Input".parse().unwrap()];
        lifecycle.attempts = 5_000;
        lifecycle.failing_since = Some(NOW);
        let v = judge(&policy, &envelope, &lifecycle, &failure("BadInput"), None, NOW, JitterSeed(0));
        assert!(matches!(v, Verdict::Retry { .. }), "{v:?}");
        let later = NOW.plus(policy.retry_for);
        let v = judge(&policy, &envelope, &lifecycle, &failure("BadInput"), None, later, JitterSeed(0));
        assert_eq!(v, Verdict::Dead { reason: Reason::RetryBudget });
    }

    #[test]
    fn permanent_and_override_come_first() {
        let (mut policy, envelope, lifecycle) = fixture();
        policy.exclude = vec!["*".parse().unwrap()];
        let mut permanent = failure("E");
        permanent.report.permanent = true;
        let v = judge(&policy, &envelope, &lifecycle, &permanent, None, NOW, JitterSeed(0));
        assert_eq!(v, Verdict::Dead { reason: Reason::Permanent });
        let v = judge(
            &policy,
            &envelope,
            &lifecycle,
            &failure("E"),
            Some(Override::DeadLetter),
            NOW,
            JitterSeed(0),
        );
        assert_eq!(v, Verdict::Dead { reason: Reason::Manual });
        let soon = Some(Override::RetryAfter(Span::from_secs(7)));
        let v = judge(&policy, &envelope, &lifecycle, &failure("E"), soon, NOW, JitterSeed(0));
        assert_eq!(v, Verdict::Retry { at: NOW.plus(Span::from_secs(7)) });
        let over = Lifecycle { attempts: 9, ..lifecycle };
        policy.exclude.clear();
        assert_eq!(judge(&policy, &envelope, &over, &failure("E"), None, NOW, JitterSeed(0)), DEAD_BY_COUNT);
        let v = judge(&policy, &envelope, &over, &failure("E"), Some(Override::Retry), NOW, JitterSeed(0));
        assert_eq!(v, Verdict::Retry { at: NOW.plus(policy.backoff.delay(9, None, None, JitterSeed(0))) });
    }

    #[test]
    fn a_retry_that_would_come_too_late_is_not_made() {
        let (mut policy, mut envelope, lifecycle) = fixture();
        envelope.deadline = Some(NOW.plus(Span::from_secs(1)));
        let v = judge(&policy, &envelope, &lifecycle, &failure("E"), None, NOW, JitterSeed(0));
        assert_eq!(v, Verdict::Dead { reason: Reason::Deadline });
        envelope.deadline = None;
        envelope.ttl = Some(Span::from_millis(900));
        let v = judge(&policy, &envelope, &lifecycle, &failure("E"), None, NOW, JitterSeed(0));
        assert_eq!(v, Verdict::Dead { reason: Reason::Expired });
        policy.on_expire = OnExpire::Drop;
        let v = judge(&policy, &envelope, &lifecycle, &failure("E"), None, NOW, JitterSeed(0));
        assert_eq!(v, Verdict::Drop);
        let redriven = Lifecycle { generation: 2, ..lifecycle };
        let v = judge(&policy, &envelope, &redriven, &failure("E"), None, NOW, JitterSeed(0));
        assert!(matches!(v, Verdict::Retry { .. }), "a redrive overrules ttl and deadline: {v:?}");
    }

    #[test]
    fn by_category_the_latest_failure_sets_the_attempts_and_the_delay() {
        let (_, envelope, mut lifecycle) = fixture();
        let policy = QueuePolicy::by_category();
        let of = |category| AnalysedFailure { category, ..failure("E") };
        for (category, executions) in [
            (Category::Transient, 11),
            (Category::Persistent, 6),
            (Category::Resource, 4),
            (Category::Poison, 3),
            (Category::Systematic, 4),
        ] {
            lifecycle.attempts = executions - 1;
            let v = judge(&policy, &envelope, &lifecycle, &of(category), None, NOW, JitterSeed(u64::MAX));
            assert!(matches!(v, Verdict::Retry { .. }), "{category}: {v:?}");
            lifecycle.attempts = executions;
            let v = judge(&policy, &envelope, &lifecycle, &of(category), None, NOW, JitterSeed(0));
            assert_eq!(v, DEAD_BY_COUNT, "{category}");
        }
        lifecycle.attempts = 3;
        let capped = QueuePolicy { max_attempts: 3, ..policy };
        let v = judge(&capped, &envelope, &lifecycle, &of(Category::Transient), None, NOW, JitterSeed(0));
        assert_eq!(v, DEAD_BY_COUNT, "an explicit max_attempts is a ceiling");
    }

    #[test]
    fn a_timeout_is_retried_fast_where_routes_are_handled() {
        let (_, envelope, mut lifecycle) = fixture();
        lifecycle.attempts = 4;
        let slow = AnalysedFailure { route: Route::Timeout, category: Category::Persistent, ..failure("E") };
        let at = |policy: &QueuePolicy| match judge(
            policy,
            &envelope,
            &lifecycle,
            &slow,
            None,
            NOW,
            JitterSeed(u64::MAX),
        ) {
            Verdict::Retry { at } => at.since(NOW),
            other @ (Verdict::Dead { .. } | Verdict::Drop) => panic!("{other:?}"),
        };
        assert_eq!(at(&QueuePolicy::by_category()), Span::from_secs(1));
        assert_eq!(at(&QueuePolicy::default()), Span::from_secs(8), "only if the queue's policy asks for it");
        let handling = [(Route::Timeout, Handling::FastRetry)].into();
        assert_eq!(at(&QueuePolicy { handling, ..QueuePolicy::default() }), Span::from_secs(1));
    }

    #[test]
    fn poison_comes_before_the_count_and_exclude_excuses_all_but_crashes() {
        let (policy, envelope, mut lifecycle) = fixture();
        lifecycle.attempts = 1;
        let failure = failure("E");
        let verdict = |policy: &QueuePolicy, poison_verdict: PoisonVerdict| {
            let (limits, jitter_seed) = ((&envelope).into(), JitterSeed(0));
            super::judge(&FailureCase {
                policy,
                limits,
                lifecycle: &lifecycle,
                failure: &failure,
                poison_verdict: &poison_verdict,
                policy_override: None,
                now: NOW,
                jitter_seed,
            })
        };
        let quarantine = |crashed| PoisonVerdict::Quarantine { why: String::new(), crashed };
        let poison = Verdict::Dead { reason: Reason::Poison };
        assert_eq!(verdict(&policy, quarantine(false)), poison);
        let excused = QueuePolicy { exclude: vec!["*".parse().unwrap()], ..policy.clone() };
        assert!(matches!(verdict(&excused, quarantine(false)), Verdict::Retry { .. }));
        assert_eq!(verdict(&excused, quarantine(true)), poison);
        let undetecting = PoisonPolicy { detect: false, ..PoisonPolicy::default() };
        let undetecting = QueuePolicy { poison: undetecting, ..policy.clone() };
        assert!(matches!(verdict(&undetecting, quarantine(true)), Verdict::Retry { .. }));
        let wait = Span::from_secs(180);
        assert_eq!(verdict(&policy, PoisonVerdict::Throttle(wait)), Verdict::Retry { at: NOW.plus(wait) });
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
    fn i38_a_queue_cannot_be_its_own_dlq() {
        let q: QueueName = "q".parse().unwrap();
        let policy = QueuePolicy { dlq: Some(q.clone()), ..QueuePolicy::default() };
        assert!(policy.check(&q).unwrap_err().to_string().contains("its own dead letter queue"));
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
