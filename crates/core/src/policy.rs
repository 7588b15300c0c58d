//! The rules of a queue, and [`judge`]: the one place that turns a failure into a verdict. Workers report,
//! stores apply; nobody else retries.

use crate::auto_redrive::AutoRedrive;
use crate::backoff::{Backoff, Roll};
use crate::breaker::BreakerPolicy;
use crate::error::Refusal;
use crate::failure::{Analysed, Category, Reason, Route, UNDECODABLE};
use crate::handling::{self, Handling, Strategy};
use crate::ids::QueueName;
use crate::lifecycle::Life;
use crate::limits;
use crate::message::{Priority, Terms, sane};
use crate::poison::{Finding, PoisonPolicy};
use crate::target::Target;
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
    /// Whether failures are retried by the queue's backoff or by their category.
    pub strategy: Strategy,
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
    /// What is done about a route, where it is not the usual.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub handling: BTreeMap<Route, Handling>,
    /// When work is held because what it needs is down; never when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerPolicy>,
    /// What is done about messages that break whoever touches them.
    pub poison: PoisonPolicy,
    /// When dead letters are sent back by themselves; never when not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_redrive: Option<AutoRedrive>,
    /// Letters that were sent back this often, by anybody, are for a person: they wait for review, and are sent back
    /// only by force.
    pub max_redrives: u32,
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
    /// Whether the payloads of dead letters are in the text index; their errors always are.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub search_payload: bool,
    /// What delivers its messages, when no handler of the user's own does.
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
    /// The default rules with a strategy per category, and no ceiling below what the categories ask for.
    #[must_use]
    pub fn by_category() -> Self {
        Self {
            strategy: Strategy::ByCategory,
            max_attempts: handling::attempts_of_any_category(),
            ..Self::default()
        }
    }

    /// What is done about failures of a route: what the queue says, else what suits the route, for queues
    /// that go by category; poison is always handled as such.
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

    /// For how long a letter of this route is set aside when it dies; nothing when it is not.
    #[must_use]
    pub fn quarantine(&self, route: Route) -> Option<Span> {
        match self.handling(route) {
            Handling::Quarantine => Some(handling::QUARANTINE),
            Handling::LongQuarantine => Some(self.poison.quarantine),
            Handling::Backoff | Handling::Breaker | Handling::FastRetry | Handling::Alert => None,
        }
    }

    /// Whether somebody is to be told of a death of this kind.
    #[must_use]
    pub fn alerts(&self, category: Category, route: Route) -> bool {
        let systematic = self.strategy == Strategy::ByCategory && category == Category::Systematic;
        systematic || self.handling(route) == Handling::Alert
    }

    /// The delay before the next attempt, and how many executions are allowed in all.
    fn pace(&self, terms: &Terms, failure: &Analysed, n: u32, last: Option<Span>, roll: Roll) -> (Span, u32) {
        let ceiling = terms.max_attempts(self);
        let (by_category, retries) = handling::strategy_of(failure.category);
        let (backoff, limit) = match self.strategy {
            Strategy::Queue => (&self.backoff, ceiling),
            Strategy::ByCategory => (&by_category, ceiling.min(retries.saturating_add(1))),
        };
        let hint = failure.report.retry_after;
        let delay = if self.handling(failure.route) == Handling::FastRetry {
            let soon = backoff.delay(1, None, None, roll).min(handling::FAST);
            soon.max(hint.unwrap_or(Span::ZERO).min(backoff.cap))
        } else {
            backoff.delay(n, last, hint, roll)
        };
        (delay, limit)
    }

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
        sane("poison.quarantine", self.poison.quarantine, Span::from_millis(1), limits::SPAN_MAX)?;
        sane("lease", self.lease, limits::LEASE_MIN, limits::LEASE_MAX)?;
        sane("retry_for", self.retry_for, Span::from_millis(1), limits::SPAN_MAX)?;
        sane("retention", self.retention, Span::from_millis(1), limits::SPAN_MAX)?;
        for (route, handling) in &self.handling {
            if *handling == Handling::Breaker && matches!(route, Route::Corruption | Route::Poison) {
                let why = format!("{route} failures never count for a breaker; name another handling");
                return Err(Refusal::invalid("handling", why));
            }
        }
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
        if let Some(target) = &self.target {
            target.check()?;
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
    /// Try again when the queue's backoff says, whatever the count says; the time budget still holds.
    Retry,
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

/// A failed delivery before the judge. `life` is as it was during the delivery, so `attempts` counts the
/// execution that just failed.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The rules.
    pub policy: &'a QueuePolicy,
    /// What limits the message.
    pub terms: Terms,
    /// Where it was in its life.
    pub life: &'a Life,
    /// What went wrong.
    pub failure: &'a Analysed,
    /// What its indicators say.
    pub finding: &'a Finding,
    /// A custom policy's word.
    pub said: Option<Override>,
    /// The store's clock.
    pub now: Time,
    /// Chance.
    pub roll: Roll,
}

/// Turns one failed delivery into a verdict. Order matters and is the order of PRODUCT.md: what the handler or
/// a custom policy says, then crashes, then exclude, then include, then poison, then the count, then the clock.
#[must_use]
pub fn judge(case: &Case<'_>) -> Verdict {
    let Case { policy, life, failure, said, now, .. } = *case;
    let terms = case.terms.in_generation(life.generation);
    if said == Some(Override::DeadLetter) {
        return Verdict::Dead { reason: Reason::Manual };
    }
    if failure.report.permanent {
        let undecodable = failure.report.error.error_type == UNDECODABLE;
        let reason = if undecodable { Reason::Undecodable } else { Reason::Permanent };
        return Verdict::Dead { reason };
    }
    let poison = match case.finding {
        Finding::Quarantine { crashed, .. } if policy.poison.detect => Some(*crashed),
        Finding::Quarantine { .. }
        | Finding::Continue
        | Finding::Monitor
        | Finding::Throttle(_)
        | Finding::Systematic => None,
    };
    if poison == Some(true) {
        return Verdict::Dead { reason: Reason::Poison };
    }
    let (delay, limit) = policy.pace(&terms, failure, life.attempts, life.last_delay, case.roll);
    if said.is_some() || policy.exclude.iter().any(|rule| rule.matches(failure)) {
        let since = life.failing_since.unwrap_or(now);
        if now.since(since) >= policy.retry_for {
            return Verdict::Dead { reason: Reason::RetryBudget };
        }
    } else if policy.include.iter().any(|rule| rule.matches(failure)) {
        return Verdict::Dead { reason: Reason::Rule };
    } else if poison.is_some() {
        return Verdict::Dead { reason: Reason::Poison };
    } else if life.attempts >= limit {
        return Verdict::Dead { reason: Reason::MaxAttempts };
    }
    let delay = match (said, case.finding) {
        (Some(Override::RetryAfter(span)), _) => span.min(policy.retry_for),
        (Some(Override::DeadLetter | Override::Retry) | None, Finding::Throttle(at_least))
            if policy.poison.detect =>
        {
            delay.max(*at_least)
        }
        (Some(Override::DeadLetter | Override::Retry) | None, _) => delay,
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

    fn judge(
        policy: &QueuePolicy,
        envelope: &Envelope,
        life: &Life,
        failure: &Analysed,
        said: Option<Override>,
        now: Time,
        roll: Roll,
    ) -> Verdict {
        let (terms, finding) = (envelope.into(), &Finding::Continue);
        super::judge(&Case { policy, terms, life, failure, finding, said, now, roll })
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
        let over = Life { attempts: 9, ..life };
        policy.exclude.clear();
        assert_eq!(judge(&policy, &envelope, &over, &failure("E"), None, NOW, Roll(0)), DEAD_BY_COUNT);
        let v = judge(&policy, &envelope, &over, &failure("E"), Some(Override::Retry), NOW, Roll(0));
        assert_eq!(v, Verdict::Retry { at: NOW.plus(policy.backoff.delay(9, None, None, Roll(0))) });
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
    fn by_category_the_latest_failure_says_how_often_and_how_long() {
        let (_, envelope, mut life) = fixture();
        let policy = QueuePolicy::by_category();
        let of = |category| Analysed { category, ..failure("E") };
        for (category, executions) in [
            (Category::Transient, 11),
            (Category::Persistent, 6),
            (Category::Resource, 4),
            (Category::Poison, 3),
            (Category::Systematic, 4),
        ] {
            life.attempts = executions - 1;
            let v = judge(&policy, &envelope, &life, &of(category), None, NOW, Roll(u64::MAX));
            assert!(matches!(v, Verdict::Retry { .. }), "{category}: {v:?}");
            life.attempts = executions;
            let v = judge(&policy, &envelope, &life, &of(category), None, NOW, Roll(0));
            assert_eq!(v, DEAD_BY_COUNT, "{category}");
        }
        life.attempts = 3;
        let capped = QueuePolicy { max_attempts: 3, ..policy };
        let v = judge(&capped, &envelope, &life, &of(Category::Transient), None, NOW, Roll(0));
        assert_eq!(v, DEAD_BY_COUNT, "an explicit number is a ceiling");
    }

    #[test]
    fn a_timeout_is_retried_fast_where_routes_are_handled() {
        let (_, envelope, mut life) = fixture();
        life.attempts = 4;
        let slow = Analysed { route: Route::Timeout, category: Category::Persistent, ..failure("E") };
        let at =
            |policy: &QueuePolicy| match judge(policy, &envelope, &life, &slow, None, NOW, Roll(u64::MAX)) {
                Verdict::Retry { at } => at.since(NOW),
                other @ (Verdict::Dead { .. } | Verdict::Drop) => panic!("{other:?}"),
            };
        assert_eq!(at(&QueuePolicy::by_category()), Span::from_secs(1));
        assert_eq!(at(&QueuePolicy::default()), Span::from_secs(8), "not unless the queue says so");
        let handling = [(Route::Timeout, Handling::FastRetry)].into();
        assert_eq!(at(&QueuePolicy { handling, ..QueuePolicy::default() }), Span::from_secs(1));
    }

    #[test]
    fn poison_comes_before_the_count_and_exclude_excuses_all_but_crashes() {
        let (policy, envelope, mut life) = fixture();
        life.attempts = 1;
        let failure = failure("E");
        let verdict = |policy: &QueuePolicy, finding: Finding| {
            let (terms, roll) = ((&envelope).into(), Roll(0));
            super::judge(&Case {
                policy,
                terms,
                life: &life,
                failure: &failure,
                finding: &finding,
                said: None,
                now: NOW,
                roll,
            })
        };
        let bad = |crashed| Finding::Quarantine { why: String::new(), crashed };
        let poison = Verdict::Dead { reason: Reason::Poison };
        assert_eq!(verdict(&policy, bad(false)), poison);
        let excused = QueuePolicy { exclude: vec!["*".parse().unwrap()], ..policy.clone() };
        assert!(matches!(verdict(&excused, bad(false)), Verdict::Retry { .. }));
        assert_eq!(verdict(&excused, bad(true)), poison);
        let blind = PoisonPolicy { detect: false, ..PoisonPolicy::default() };
        let blind = QueuePolicy { poison: blind, ..policy.clone() };
        assert!(matches!(verdict(&blind, bad(true)), Verdict::Retry { .. }));
        let wait = Span::from_secs(180);
        assert_eq!(verdict(&policy, Finding::Throttle(wait)), Verdict::Retry { at: NOW.plus(wait) });
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
