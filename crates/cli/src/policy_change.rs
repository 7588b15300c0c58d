//! What somebody wants to be different about a queue's policy: the flags of `queue set` and the
//! `[queues.NAME]` tables of `redrive.toml` are the same list, so they are one type. It proposes; the store
//! checks and decides.

use crate::target_change::TargetChange;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use redrive::core::auto_redrive::AutoRedrive;
use redrive::core::backoff::{Backoff, Growth, Jitter};
use redrive::core::breaker::{BreakerKey, BreakerPolicy};
use redrive::core::failure::Route;
use redrive::core::handling::{Handling, Strategy as RetryBy};
use redrive::core::ids::QueueName;
use redrive::core::message::Priority;
use redrive::core::poison::Release;
use redrive::core::policy::{ErrorMatch, OnDead, OnExpire, QueuePolicy};
use redrive::core::target::Target;
use redrive::core::time::Span;
use serde::de::{DeserializeOwned, IntoDeserializer as _, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::str::FromStr;

/// A setting that can also be taken away: `none` on the command line and in `redrive.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Maybe<T>(Option<T>);

impl<T> Maybe<T> {
    /// What was given, unless that was `none`.
    pub(crate) fn into_option(self) -> Option<T> {
        self.0
    }
}

impl<T: FromStr> FromStr for Maybe<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" { Ok(Self(None)) } else { text.parse().map(|value| Self(Some(value))) }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Maybe<T> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(ValueOrNone(PhantomData))
    }
}

/// Reads a value, or the word `none`.
struct ValueOrNone<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ValueOrNone<T> {
    type Value = Maybe<T>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value, or \"none\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Maybe<T>, E> {
        if text == "none" {
            return Ok(Maybe(None));
        }
        T::deserialize(text.into_deserializer()).map(|value| Maybe(Some(value)))
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Maybe<T>, E> {
        T::deserialize(number.into_deserializer()).map(|value| Maybe(Some(value)))
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Maybe<T>, E> {
        T::deserialize(number.into_deserializer()).map(|value| Maybe(Some(value)))
    }
}

/// Reads a word that serde knows, with the list of such words for help and completion.
pub(crate) fn word<T>(words: &'static [&'static str]) -> impl clap::builder::TypedValueParser<Value = T>
where
    T: DeserializeOwned + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words)
        .try_map(|word| serde_json::from_value::<T>(serde_json::Value::String(word)))
}

/// One `ROUTE=DRAWER`; `ROUTE=none` takes the route back to the queue's own drawer.
fn route(text: &str) -> Result<(Route, Maybe<QueueName>), String> {
    let (route, drawer) = text.split_once('=').ok_or("write ROUTE=DRAWER, such as network=payments-net")?;
    Ok((route.parse()?, drawer.parse().map_err(|e: redrive::core::ids::IdError| e.to_string())?))
}

/// One `ROUTE=HANDLING`; `ROUTE=none` is the usual again.
fn handling(text: &str) -> Result<(Route, Maybe<Handling>), String> {
    let (route, handling) = text.split_once('=').ok_or("write ROUTE=HANDLING, such as timeout=fast_retry")?;
    Ok((route.parse()?, handling.parse()?))
}

/// The settings to change; a setting that is not named stays as it is. A list and a target are one setting each.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PolicyChange {
    /// Executions allowed, the first included
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Retries allowed after the first execution; the same as --max-attempts N+1
    #[arg(long, value_name = "N", conflicts_with = "max_attempts")]
    max_retries: Option<u32>,
    /// How long a lease lasts when the worker does not say
    #[arg(long, value_name = "DURATION")]
    #[serde(alias = "lease_ms")]
    lease: Option<Span>,
    /// How long a message is useful when it does not say; `none` for ever
    #[arg(long, value_name = "DURATION")]
    #[serde(alias = "ttl_ms")]
    ttl: Option<Maybe<Span>>,
    /// What happens to a message whose time is over
    #[arg(long, value_name = "WHAT", value_parser = word::<OnExpire>(&["dead_letter", "drop"]))]
    on_expire: Option<OnExpire>,
    /// What happens to an ordering key when one of its messages dies
    #[arg(long, value_name = "WHAT", value_parser = word::<OnDead>(&["continue", "hold"]))]
    on_dead: Option<OnDead>,
    /// The priority of messages that do not say: critical, high, normal, low, background
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<Priority>,
    /// The drawer dead letters lie in; `none` for QUEUE-dlq
    #[arg(long, value_name = "DRAWER")]
    dlq: Option<Maybe<QueueName>>,
    /// Times a dead letter may be sent back; then it waits for review and goes back only by force
    #[arg(long, value_name = "N")]
    max_redrives: Option<u32>,
    /// How long closed dead letters are kept
    #[arg(long, value_name = "DURATION")]
    #[serde(alias = "retention_ms")]
    retention: Option<Span>,
    /// How long open dead letters are kept; `none` for ever
    #[arg(long, value_name = "DURATION")]
    #[serde(alias = "open_ttl_ms")]
    open_ttl: Option<Maybe<Span>>,
    /// Live messages the queue holds at most; `none` for no limit
    #[arg(long, value_name = "N")]
    max_messages: Option<Maybe<u64>>,
    /// Payload bytes of live messages the queue holds at most; `none` for no limit
    #[arg(long, value_name = "BYTES")]
    max_bytes: Option<Maybe<u64>>,
    /// Whether a text search finds what payloads of dead letters say by the index: true or false
    #[arg(long, value_name = "BOOL")]
    search_payload: Option<bool>,
    /// Time budget for excluded errors, from the first failure
    #[arg(long, value_name = "DURATION")]
    #[serde(alias = "retry_for_ms")]
    retry_for: Option<Span>,
    /// Dead-letter these errors at once: a type, a glob or category:NAME; repeatable, `none` for no rule
    #[arg(long, value_name = "ERROR")]
    include: Option<Vec<Maybe<ErrorMatch>>>,
    /// Never dead-letter these by count; repeatable, `none` for no rule
    #[arg(long, value_name = "ERROR")]
    exclude: Option<Vec<Maybe<ErrorMatch>>>,
    /// Give a route its own drawer; repeatable, ROUTE=none takes it back
    #[arg(long = "route", value_name = "ROUTE=DRAWER", value_parser = route)]
    #[serde(rename = "routes", deserialize_with = "by_route")]
    route: Vec<(Route, Maybe<QueueName>)>,
    #[command(flatten)]
    backoff: BackoffChange,
    /// Whether failures are retried by the queue's backoff or by their category
    #[arg(long, value_name = "WHOSE", value_parser = word::<RetryBy>(&["queue", "by_category"]))]
    strategy: Option<RetryBy>,
    /// What is done about failures of a route; repeatable, ROUTE=none is the usual
    #[arg(long = "handling", value_name = "ROUTE=HANDLING", value_parser = handling)]
    #[serde(rename = "handling", deserialize_with = "by_route")]
    handle: Vec<(Route, Maybe<Handling>)>,
    #[command(flatten)]
    breaker: BreakerChange,
    #[command(flatten)]
    poison: PoisonChange,
    #[command(flatten)]
    auto_redrive: AutoRedriveChange,
    #[command(flatten)]
    #[serde(skip)]
    targeted: TargetChange,
    #[arg(skip)]
    target: Option<Target>,
}

/// The part of the settings that says when dead letters are sent back by themselves.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AutoRedriveChange {
    /// Times a dead letter is sent back by itself, 1 to 10; `none` for never
    #[arg(id = "auto_redrive_limit", long = "auto-redrive", value_name = "LIMIT")]
    limit: Option<Maybe<u32>>,
    /// How long after its death; every redrive doubles it, 1h when not said
    #[arg(id = "auto_redrive_backoff", long = "auto-redrive-backoff", value_name = "DURATION")]
    #[serde(alias = "backoff_ms")]
    backoff: Option<Span>,
}

impl AutoRedriveChange {
    fn apply(&self, old: Option<AutoRedrive>) -> Result<Option<AutoRedrive>, String> {
        let limit = match &self.limit {
            Some(Maybe(limit)) => *limit,
            None => old.map(|old| old.limit),
        };
        let was = old.map_or(AutoRedrive::BACKOFF, |old| old.backoff);
        match limit {
            Some(limit) => Ok(Some(AutoRedrive { limit, backoff: self.backoff.unwrap_or(was) })),
            None if self.backoff.is_some() => {
                Err("an automatic redrive needs a limit: how often a dead letter is sent back".into())
            }
            None => Ok(None),
        }
    }
}

/// The part of the settings that says when work is held because what it needs is down.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct BreakerChange {
    /// What messages share a breaker: queue, kind, header:NAME or payload.PATH; `none` for no breaker
    #[arg(id = "breaker_key", long = "breaker", value_name = "KEY")]
    key: Option<Maybe<BreakerKey>>,
    /// Failures in a row that open it
    #[arg(id = "breaker_failures", long = "breaker-failures", value_name = "N")]
    failures: Option<u32>,
    /// Results in its window
    #[arg(id = "breaker_window", long = "breaker-window", value_name = "N")]
    window: Option<u32>,
    /// Results older than this do not count
    #[arg(id = "breaker_within", long = "breaker-within", value_name = "DURATION")]
    #[serde(alias = "within_ms")]
    within: Option<Span>,
    /// Results the window needs before its share of failures counts
    #[arg(id = "breaker_sample", long = "breaker-sample", value_name = "N")]
    sample: Option<u32>,
    /// The share of failures in the window above which it opens
    #[arg(id = "breaker_ratio", long = "breaker-ratio", value_name = "SHARE")]
    ratio: Option<f64>,
    /// How long it is open the first time; each reopening doubles it
    #[arg(id = "breaker_open_for", long = "breaker-open-for", value_name = "DURATION")]
    #[serde(alias = "open_for_ms")]
    open_for: Option<Span>,
    /// How long it is open at most
    #[arg(id = "breaker_open_max", long = "breaker-open-max", value_name = "DURATION")]
    #[serde(alias = "open_max_ms")]
    open_max: Option<Span>,
    /// Deliveries let through while half open, over all workers
    #[arg(id = "breaker_probes", long = "breaker-probes", value_name = "N")]
    probes: Option<u32>,
}

impl BreakerChange {
    fn apply(&self, old: Option<BreakerPolicy>) -> Result<Option<BreakerPolicy>, String> {
        let mut rules = match (&self.key, old) {
            (Some(Maybe(None)), _) => return Ok(None),
            (Some(Maybe(Some(key))), Some(old)) => BreakerPolicy { key: key.clone(), ..old },
            (Some(Maybe(Some(key))), None) => BreakerPolicy::new(key.clone()),
            (None, Some(old)) => old,
            (None, None) if self.says_numbers() => {
                return Err("a breaker needs a key: queue, kind, header:NAME or payload.PATH".into());
            }
            (None, None) => return Ok(None),
        };
        set(&mut rules.failures, self.failures.as_ref());
        set(&mut rules.window, self.window.as_ref());
        set(&mut rules.within, self.within.as_ref());
        set(&mut rules.sample, self.sample.as_ref());
        set(&mut rules.ratio, self.ratio.as_ref());
        set(&mut rules.open_for, self.open_for.as_ref());
        // Whoever wants it open for longer than the most there is means the most to be as long.
        rules.open_max = self.open_max.unwrap_or(rules.open_max.max(rules.open_for));
        set(&mut rules.probes, self.probes.as_ref());
        Ok(Some(rules))
    }

    fn says_numbers(&self) -> bool {
        let counts = [self.failures, self.window, self.sample, self.probes];
        let spans = [self.within, self.open_for, self.open_max];
        counts.iter().any(Option::is_some) || spans.iter().any(Option::is_some) || self.ratio.is_some()
    }
}

/// The part of the settings that says what is done about messages that break whoever touches them.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PoisonChange {
    /// Whether poison messages are looked for
    #[arg(id = "poison_detect", long = "poison", value_name = "true|false")]
    detect: Option<bool>,
    /// How long a poison message is set aside
    #[arg(id = "poison_quarantine", long = "quarantine", value_name = "DURATION")]
    #[serde(alias = "quarantine_ms")]
    quarantine: Option<Span>,
    /// Where it goes when that time is over
    #[arg(id = "poison_release", long = "release", value_name = "WHERE",
        value_parser = word::<Release>(&["review", "queue"]))]
    release: Option<Release>,
}

/// How the delay grows; the names of [`Growth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Strategy {
    /// Always the initial delay
    Fixed,
    /// The initial delay times the number of the retry
    Linear,
    /// The initial delay times the multiplier for every retry
    Exponential,
    /// The initial delay times 1, 1, 2, 3, 5…
    Fibonacci,
    /// The delays of --delays; the last one repeats
    List,
}

/// The part of the settings that says when to try again.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct BackoffChange {
    /// How the delay before a retry grows
    #[arg(id = "backoff_strategy", long = "backoff", value_name = "STRATEGY")]
    strategy: Option<Strategy>,
    /// The delay before the first retry
    #[arg(long, value_name = "DURATION")]
    #[serde(alias = "initial_ms")]
    initial: Option<Span>,
    /// No delay is longer
    #[arg(long, value_name = "DURATION")]
    #[serde(alias = "cap_ms")]
    cap: Option<Span>,
    /// No delay is shorter
    #[arg(long, value_name = "DURATION")]
    #[serde(alias = "floor_ms")]
    floor: Option<Span>,
    /// The factor of exponential backoff
    #[arg(long, value_name = "FACTOR")]
    multiplier: Option<f64>,
    /// The delays of a listed backoff, with commas between
    #[arg(long, value_name = "DURATION,…", value_delimiter = ',')]
    #[serde(alias = "delays_ms")]
    delays: Option<Vec<Span>>,
    /// How chance changes a delay
    #[arg(long, value_name = "JITTER", value_parser = word::<Jitter>(&["none", "full", "equal", "decorrelated"]))]
    jitter: Option<Jitter>,
}

/// A table with a key for each route that is named.
fn by_route<'de, D, T>(d: D) -> Result<Vec<(Route, Maybe<T>)>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    BTreeMap::deserialize(d).map(|table: BTreeMap<Route, Maybe<T>>| table.into_iter().collect())
}

/// Sets a value if one was given.
pub(crate) fn set<T: Clone>(target: &mut T, given: Option<&T>) {
    if let Some(value) = given {
        target.clone_from(value);
    }
}

/// Sets or takes away an optional value if that was asked for.
fn set_maybe<T: Clone>(target: &mut Option<T>, given: Option<&Maybe<T>>) {
    if let Some(Maybe(value)) = given {
        target.clone_from(value);
    }
}

/// A list replaces the old one; `none` alone is the empty list.
fn set_rules(target: &mut Vec<ErrorMatch>, given: Option<&Vec<Maybe<ErrorMatch>>>) {
    if let Some(rules) = given {
        *target = rules.iter().filter_map(|Maybe(rule)| rule.clone()).collect();
    }
}

impl PolicyChange {
    /// The policy with these changes.
    ///
    /// # Errors
    /// Text for settings that contradict each other; whether the numbers make sense is the store's to say.
    pub(crate) fn apply(&self, mut policy: QueuePolicy) -> Result<QueuePolicy, String> {
        set(&mut policy.max_attempts, self.max_attempts.as_ref());
        if let Some(retries) = self.max_retries {
            if self.max_attempts.is_some() {
                return Err("max_attempts and max_retries say the same thing; give one of them".into());
            }
            policy.max_attempts = retries.saturating_add(1);
        }
        set(&mut policy.lease, self.lease.as_ref());
        set(&mut policy.on_expire, self.on_expire.as_ref());
        set(&mut policy.on_dead, self.on_dead.as_ref());
        set(&mut policy.priority, self.priority.as_ref());
        set(&mut policy.max_redrives, self.max_redrives.as_ref());
        set(&mut policy.retention, self.retention.as_ref());
        set(&mut policy.retry_for, self.retry_for.as_ref());
        set_maybe(&mut policy.ttl, self.ttl.as_ref());
        set_maybe(&mut policy.dlq, self.dlq.as_ref());
        set_maybe(&mut policy.open_ttl, self.open_ttl.as_ref());
        set_maybe(&mut policy.max_messages, self.max_messages.as_ref());
        set_maybe(&mut policy.max_bytes, self.max_bytes.as_ref());
        set(&mut policy.search_payload, self.search_payload.as_ref());
        set_rules(&mut policy.include, self.include.as_ref());
        set_rules(&mut policy.exclude, self.exclude.as_ref());
        for (route, Maybe(drawer)) in &self.route {
            match drawer {
                Some(drawer) => policy.routes.insert(*route, drawer.clone()),
                None => policy.routes.remove(route),
            };
        }
        policy.backoff = self.backoff.apply(policy.backoff)?;
        if let Some(strategy) = self.strategy {
            // The default count of one strategy is not meant as a ceiling of the other; what somebody said is.
            let (queue, category) =
                (QueuePolicy::default().max_attempts, QueuePolicy::by_category().max_attempts);
            let (was, now) = match strategy {
                RetryBy::ByCategory => (queue, category),
                RetryBy::Queue => (category, queue),
            };
            let unsaid = self.max_attempts.is_none() && self.max_retries.is_none();
            if strategy != policy.strategy && unsaid && policy.max_attempts == was {
                policy.max_attempts = now;
            }
            policy.strategy = strategy;
        }
        for (route, Maybe(handling)) in &self.handle {
            match handling {
                Some(handling) => policy.handling.insert(*route, *handling),
                None => policy.handling.remove(route),
            };
        }
        policy.breaker = self.breaker.apply(policy.breaker)?;
        set(&mut policy.poison.detect, self.poison.detect.as_ref());
        set(&mut policy.poison.quarantine, self.poison.quarantine.as_ref());
        set(&mut policy.poison.release, self.poison.release.as_ref());
        if self.target.is_some() {
            policy.target.clone_from(&self.target);
        }
        policy.target = self.targeted.apply(policy.target)?;
        policy.auto_redrive = self.auto_redrive.apply(policy.auto_redrive)?;
        Ok(policy)
    }
}

impl BackoffChange {
    fn apply(&self, mut backoff: Backoff) -> Result<Backoff, String> {
        set(&mut backoff.initial, self.initial.as_ref());
        set(&mut backoff.cap, self.cap.as_ref());
        set(&mut backoff.floor, self.floor.as_ref());
        set(&mut backoff.jitter, self.jitter.as_ref());
        backoff.growth = self.growth(backoff.growth)?;
        Ok(backoff)
    }

    fn growth(&self, now: Growth) -> Result<Growth, String> {
        let (old_multiplier, old_delays, old_strategy) = match now {
            Growth::Exponential { multiplier } => (Some(multiplier), None, Strategy::Exponential),
            Growth::List { delays } => (None, Some(delays), Strategy::List),
            Growth::Fixed => (None, None, Strategy::Fixed),
            Growth::Linear => (None, None, Strategy::Linear),
            Growth::Fibonacci => (None, None, Strategy::Fibonacci),
        };
        // Delays say clearly enough that the backoff is a list of them.
        let implied = if self.delays.is_some() { Strategy::List } else { old_strategy };
        let strategy = self.strategy.unwrap_or(implied);
        if self.multiplier.is_some() && strategy != Strategy::Exponential {
            return Err("multiplier belongs to the exponential backoff".into());
        }
        if self.delays.is_some() && strategy != Strategy::List {
            return Err("delays belong to the backoff `list`".into());
        }
        Ok(match strategy {
            Strategy::Fixed => Growth::Fixed,
            Strategy::Linear => Growth::Linear,
            Strategy::Fibonacci => Growth::Fibonacci,
            Strategy::Exponential => {
                Growth::Exponential { multiplier: self.multiplier.or(old_multiplier).unwrap_or(2.0) }
            }
            Strategy::List => {
                let delays = self.delays.clone().or(old_delays);
                Growth::List { delays: delays.ok_or("the backoff `list` needs delays, such as 1s,10s,1m")? }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        change: PolicyChange,
    }

    fn applied(flags: &str, to: QueuePolicy) -> Result<QueuePolicy, String> {
        let words = std::iter::once("set").chain(flags.split_whitespace());
        Flags::try_parse_from(words).map_err(|e| e.to_string())?.change.apply(to)
    }

    #[test]
    fn an_automatic_redrive_is_set_changed_and_taken_away() {
        let auto = |flags, to: &QueuePolicy| applied(flags, to.clone());
        let rule = |limit, backoff| Some(AutoRedrive { limit, backoff });
        let set = auto("--auto-redrive 3", &QueuePolicy::default()).unwrap();
        assert_eq!(set.auto_redrive, rule(3, Span::from_hours(1)));
        let slower = auto("--auto-redrive-backoff 2h", &set).unwrap();
        assert_eq!(slower.auto_redrive, rule(3, Span::from_hours(2)));
        assert_eq!(auto("--auto-redrive 1", &slower).unwrap().auto_redrive, rule(1, Span::from_hours(2)));
        assert_eq!(auto("--auto-redrive none", &slower).unwrap().auto_redrive, None);
        assert!(auto("--auto-redrive-backoff 2h", &QueuePolicy::default()).unwrap_err().contains("limit"));
        let toml: PolicyChange = toml::from_str("auto_redrive = { limit = 2, backoff = \"30m\" }").unwrap();
        let applied = toml.apply(QueuePolicy::default()).unwrap();
        assert_eq!(applied.auto_redrive, rule(2, Span::from_secs(1_800)));
    }

    #[test]
    fn what_is_not_said_stays() {
        let old = QueuePolicy { max_attempts: 9, ttl: Some(Span::from_secs(5)), ..QueuePolicy::default() };
        assert_eq!(applied("", old.clone()).unwrap(), old);
        let new = applied("--lease 45s --ttl none --max-messages 10", old.clone()).unwrap();
        let expected = QueuePolicy { lease: Span::from_secs(45), ttl: None, max_messages: Some(10), ..old };
        assert_eq!(new, expected);
    }

    #[test]
    fn retries_are_attempts_less_one() {
        assert_eq!(applied("--max-retries 2", QueuePolicy::default()).unwrap().max_attempts, 3);
        assert!(applied("--max-retries 2 --max-attempts 3", QueuePolicy::default()).is_err());
    }

    #[test]
    fn by_category_has_no_ceiling_unless_one_is_said() {
        let policy = applied("--strategy by_category", QueuePolicy::default()).unwrap();
        assert_eq!(policy, QueuePolicy::by_category());
        assert_eq!(
            applied("--strategy by_category --max-attempts 4", QueuePolicy::default()).unwrap().max_attempts,
            4
        );
        assert_eq!(applied("--strategy queue", policy).unwrap(), QueuePolicy::default());
        let three = QueuePolicy { max_attempts: 3, ..QueuePolicy::default() };
        assert_eq!(applied("--strategy by_category", three).unwrap().max_attempts, 3, "what was said stays");
    }

    #[test]
    fn a_breaker_is_named_by_its_key_and_changed_in_part() {
        let policy = applied("--breaker header:region --breaker-failures 3", QueuePolicy::default()).unwrap();
        let rules = policy.breaker.clone().unwrap();
        assert_eq!((rules.key.to_string().as_str(), rules.failures, rules.probes), ("header:region", 3, 3));
        let policy = applied("--breaker-open-for 5s", policy).unwrap();
        let rules = policy.breaker.clone().unwrap();
        assert_eq!((rules.failures, rules.open_for), (3, Span::from_secs(5)));
        assert_eq!(applied("--breaker none", policy).unwrap().breaker, None);
        assert!(applied("--breaker-failures 3", QueuePolicy::default()).unwrap_err().contains("needs a key"));
        assert!(applied("--breaker host", QueuePolicy::default()).is_err());
        let policy =
            applied("--handling timeout=fast_retry --poison false --release queue", QueuePolicy::default());
        let policy = applied("--handling timeout=none", policy.unwrap()).unwrap();
        assert!(policy.handling.is_empty() && !policy.poison.detect);
    }

    #[test]
    fn lists_replace_and_none_empties() {
        let policy = applied("--include Bad* --include category:poison", QueuePolicy::default()).unwrap();
        assert_eq!(policy.include.len(), 2);
        assert!(applied("--include none", policy).unwrap().include.is_empty());
        let policy = applied("--route network=net --route timeout=slow", QueuePolicy::default()).unwrap();
        let policy = applied("--route network=none", policy).unwrap();
        assert_eq!(policy.routes.keys().collect::<Vec<_>>(), [&Route::Timeout]);
    }

    #[test]
    fn backoffs_change_in_part_and_contradictions_are_told() {
        let policy = applied("--backoff exponential --multiplier 3", QueuePolicy::default()).unwrap();
        let policy = applied("--initial 2s --jitter none", policy).unwrap();
        assert_eq!(policy.backoff.growth, Growth::Exponential { multiplier: 3.0 });
        assert_eq!(policy.backoff.initial, Span::from_secs(2));
        let listed = applied("--delays 1s,10s", policy).unwrap();
        assert_eq!(listed.backoff.base(5), Span::from_secs(10));
        let fixed = applied("--backoff fixed --initial 0", listed).unwrap();
        assert_eq!(fixed.backoff.base(7), Span::ZERO);
        for wrong in ["--backoff list", "--backoff fixed --multiplier 2", "--backoff linear --delays 1s"] {
            assert!(applied(wrong, QueuePolicy::default()).is_err(), "{wrong}");
        }
        for wrong in
            ["--jitter some", "--on-dead wait", "--route net=x", "--route network=-x", "--priority urgent"]
        {
            assert!(applied(wrong, QueuePolicy::default()).is_err(), "{wrong}");
        }
    }
}
