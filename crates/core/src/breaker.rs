//! The circuit breaker: it decides when to stop sending messages to a dependency that is down, and when to try
//! it again. Pure: a store keeps one [`Breaker`] per key, tells it about every lease and every result, and asks
//! it whether messages may be leased.
//!
//! ```text
//!              N failures in a row, or more than half of the window
//!      closed ────────────────────────────────────────────────────> open <──┐
//!        ▲                                                           │      │
//!        │ ceil(k/2) probes succeed          its time is over        │      │ one probe fails:
//!        └───────────────────────── half-open <──────────────────────┘      │ open twice as long
//!                                       └───────────────────────────────────┘
//! ```
//!
//! Every change of state starts a new epoch. A lease carries the epoch in which it was granted as its permit,
//! so the result of a delivery that started before the change is stale and ignored (I28). An operator can force
//! a breaker open; it stays open until an operator closes it.

use crate::dead_letter::Actor;
use crate::error::Refusal;
use crate::failure::{Route, named};
use crate::filter;
use crate::ids::QueueName;
use crate::limits;
use crate::message::{MessageMeta, Payload, check_span};
use crate::time::{Span, Time};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr;

/// Which messages share a breaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakerKey {
    /// All messages of the queue.
    Queue,
    /// Messages of the same kind.
    Kind,
    /// Messages with the same value of a header: `header:region`.
    Header(String),
    /// Messages with the same value at a path of their JSON payload: `payload.customer.id`.
    Payload(Vec<String>),
}

impl BreakerKey {
    /// Reads the part of the key that comes from headers or payload. This happens at enqueue, because no later
    /// step reads them again. The result is the key and the value, separated by a newline, so that a value that
    /// was read for another key is recognised. A message without the value has no breaker.
    #[must_use]
    pub fn read(&self, headers: &BTreeMap<String, String>, payload: &Payload) -> Option<String> {
        let value = match self {
            Self::Queue | Self::Kind => None,
            Self::Header(name) => headers.get(name).cloned(),
            Self::Payload(path) => filter::text_at(&payload.bytes, path),
        };
        value.map(shortened).filter(|value| !value.is_empty()).map(|value| format!("{self}\n{value}"))
    }

    /// The key value of a message. `None` if no breaker guards it.
    #[must_use]
    pub fn of(&self, meta: &MessageMeta) -> Option<String> {
        match self {
            Self::Queue => Some(meta.queue.to_string()),
            Self::Kind => Some(meta.kind.clone()).filter(|kind| !kind.is_empty()),
            Self::Header(_) | Self::Payload(_) => {
                let (key, value) = meta.breaker.as_deref()?.split_once('\n')?;
                (key == self.to_string()).then(|| value.to_owned())
            }
        }
    }
}

/// Cuts a key value to the length that is kept.
fn shortened(mut text: String) -> String {
    let mut end = text.len().min(limits::KEY_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.replace(char::is_control, " ")
}

impl fmt::Display for BreakerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue => f.write_str("queue"),
            Self::Kind => f.write_str("kind"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Payload(path) => write!(f, "payload.{}", path.join(".")),
        }
    }
}

impl FromStr for BreakerKey {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!(
                "{text:?} is not a breaker key: queue, kind, header:NAME or payload.PATH, such as payload.host"
            )
        };
        match text {
            "queue" => return Ok(Self::Queue),
            "kind" => return Ok(Self::Kind),
            _ => {}
        }
        if text.len() > limits::LABEL_BYTES_MAX || text.chars().any(char::is_control) {
            return Err(wrong());
        }
        if let Some(name) = text.strip_prefix("header:").filter(|name| !name.is_empty()) {
            return Ok(Self::Header(name.to_owned()));
        }
        let path = text.strip_prefix("payload.").ok_or_else(wrong)?;
        let parts: Vec<String> = path.split('.').map(str::to_owned).collect();
        if parts.iter().any(String::is_empty) { Err(wrong()) } else { Ok(Self::Payload(parts)) }
    }
}
crate::ids::serde_as_text!(BreakerKey);

/// When the breakers of a queue open and close. A queue has breakers only if its policy sets one of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BreakerPolicy {
    /// Which messages share a breaker.
    pub key: BreakerKey,
    /// The number of failures in a row that opens the breaker.
    #[serde(default = "defaults::failures")]
    pub failures: u32,
    /// The number of results in the window.
    #[serde(default = "defaults::window")]
    pub window: u32,
    /// How long a result counts.
    #[serde(default = "defaults::within", rename = "within_ms", alias = "within")]
    pub within: Span,
    /// The number of results that the window needs before the share of failures counts.
    #[serde(default = "defaults::sample")]
    pub sample: u32,
    /// The share of failures in the window above which the breaker opens.
    #[serde(default = "defaults::ratio")]
    pub ratio: f64,
    /// How long the breaker stays open the first time.
    #[serde(default = "defaults::open_for", rename = "open_for_ms", alias = "open_for")]
    pub open_for: Span,
    /// The upper bound of that time, which doubles each time a probe fails.
    #[serde(default = "defaults::open_max", rename = "open_max_ms", alias = "open_max")]
    pub open_max: Span,
    /// The number of deliveries let through while half open, over all workers.
    #[serde(default = "defaults::probes")]
    pub probes: u32,
}

/// The default numbers; serde and [`BreakerPolicy::new`] share them.
mod defaults {
    use crate::time::Span;

    pub(super) const fn failures() -> u32 {
        5
    }
    pub(super) const fn window() -> u32 {
        20
    }
    pub(super) const fn within() -> Span {
        Span::from_secs(60)
    }
    pub(super) const fn sample() -> u32 {
        10
    }
    pub(super) const fn ratio() -> f64 {
        0.5
    }
    pub(super) const fn open_for() -> Span {
        Span::from_secs(30)
    }
    pub(super) const fn open_max() -> Span {
        Span::from_secs(300)
    }
    pub(super) const fn probes() -> u32 {
        3
    }
}

impl BreakerPolicy {
    /// A policy with the default numbers for this key.
    #[must_use]
    pub const fn new(key: BreakerKey) -> Self {
        Self {
            key,
            failures: defaults::failures(),
            window: defaults::window(),
            within: defaults::within(),
            sample: defaults::sample(),
            ratio: defaults::ratio(),
            open_for: defaults::open_for(),
            open_max: defaults::open_max(),
            probes: defaults::probes(),
        }
    }

    /// Checks every setting against its bounds.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] for the first setting that is out of bounds.
    pub fn check(&self) -> Result<(), Refusal> {
        for (field, n, most) in [
            ("breaker.failures", self.failures, limits::ATTEMPTS_MAX),
            ("breaker.window", self.window, limits::BREAKER_WINDOW_MAX),
            ("breaker.sample", self.sample, self.window),
            ("breaker.probes", self.probes, limits::BREAKER_PROBES_MAX),
        ] {
            if n == 0 || n > most {
                return Err(Refusal::invalid(field, format!("{n} is outside 1 to {most}")));
            }
        }
        if !(self.ratio > 0.0 && self.ratio <= 1.0) {
            let why = format!("{} is not a share: more than 0, at most 1", self.ratio);
            return Err(Refusal::invalid("breaker.ratio", why));
        }
        check_span("breaker.within", self.within, Span::from_millis(1), limits::SPAN_MAX)?;
        check_span("breaker.open_for", self.open_for, Span::from_millis(1), limits::SPAN_MAX)?;
        check_span("breaker.open_max", self.open_max, self.open_for, limits::SPAN_MAX)
    }

    /// Checks that a breaker of this queue can have this key value.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] if the value is empty, too long or not printable, or if all messages of the
    /// queue share one breaker and the value is not the name of the queue.
    pub fn check_key(&self, queue: &QueueName, key: &str) -> Result<(), Refusal> {
        if key.is_empty() || key.len() > limits::KEY_BYTES_MAX || key.contains(char::is_control) {
            let why = format!("1 to {} printable bytes", limits::KEY_BYTES_MAX);
            return Err(Refusal::invalid("key", why));
        }
        if self.key == BreakerKey::Queue && key != queue.as_str() {
            let why = format!("queue {queue} has one breaker for all its messages; its key is {queue}");
            return Err(Refusal::invalid("key", why));
        }
        Ok(())
    }

    /// How long the breaker stays open after it was reopened this many times.
    fn open_span(&self, reopened: u32) -> Span {
        self.open_for.times(1_u64 << reopened.min(32)).min(self.open_max)
    }
}

named! {
    /// The state of a breaker.
    BreakerState, "breaker state", {
        /// Messages are leased.
        Closed = "closed",
        /// Messages are held back.
        Open = "open",
        /// A few deliveries probe whether the dependency works again.
        HalfOpen = "half_open",
    }
}

/// Whether messages of a key may be leased now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerGate {
    /// Yes, without a limit.
    Free,
    /// Yes, but only this many more.
    Probing(u32),
    /// No, until this time; `None` if an operator forced the breaker open.
    Held(Option<Time>),
}

/// What the result of a delivery says about the dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerSignal {
    /// The dependency works.
    Success,
    /// The dependency does not work.
    Failure,
    /// The result says nothing: the message was given back, or failed for a reason of its own.
    Neutral,
}

impl BreakerSignal {
    /// The signal of a failure by its route. A message that is corrupt or poison says nothing about the
    /// dependency.
    #[must_use]
    pub const fn of(route: Route) -> Self {
        match route {
            Route::Network | Route::Timeout | Route::Agent | Route::System => Self::Failure,
            Route::Corruption | Route::Poison => Self::Neutral,
        }
    }
}

/// A change of state, kept for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerEvent {
    /// When the state changed.
    pub at: Time,
    /// The new state.
    pub to: BreakerState,
    /// Why the state changed.
    pub why: String,
    /// The operator who forced the change. `None` if the breaker changed by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// The breaker of one key, as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    state: BreakerState,
    /// When this state began.
    since: Time,
    /// When an open breaker may be probed. `None` if an operator forced it open.
    #[serde(default)]
    until: Option<Time>,
    /// Incremented with every change of state. Leases granted in this state carry it as their permit.
    epoch: u64,
    /// Failures since the last success.
    #[serde(default)]
    in_a_row: u32,
    /// The latest results, oldest first: the time, and whether the delivery failed.
    #[serde(default)]
    window: VecDeque<(Time, bool)>,
    /// How often a probe failed since the breaker was last closed.
    #[serde(default)]
    reopened: u32,
    /// Probes granted in this half-open state, without those that ended neutrally.
    #[serde(default)]
    probes: u32,
    /// Probes that succeeded.
    #[serde(default)]
    succeeded: u32,
    #[serde(default)]
    events: VecDeque<BreakerEvent>,
}

impl Breaker {
    /// A new breaker, which is closed.
    #[must_use]
    pub const fn new(now: Time) -> Self {
        Self {
            state: BreakerState::Closed,
            since: now,
            until: None,
            // Later than every epoch of an earlier breaker for this key, so that its permits are stale.
            epoch: now.as_millis().cast_unsigned(),
            in_a_row: 0,
            window: VecDeque::new(),
            reopened: 0,
            probes: 0,
            succeeded: 0,
            events: VecDeque::new(),
        }
    }

    /// Whether the breaker must be kept when memory is short. One that is closed and has no recent result
    /// behaves like a new one.
    #[must_use]
    pub fn worth_keeping(&self, policy: &BreakerPolicy, now: Time) -> bool {
        let recent = self.window.back().is_some_and(|(at, _)| now.since(*at) <= policy.within);
        self.state != BreakerState::Closed || recent
    }

    /// The state at `now`. An open breaker whose time has passed counts as half open even before it is written.
    #[must_use]
    pub fn state(&self, now: Time) -> BreakerState {
        match self.state {
            BreakerState::Open if self.until.is_some_and(|until| until <= now) => BreakerState::HalfOpen,
            state @ (BreakerState::Closed | BreakerState::Open | BreakerState::HalfOpen) => state,
        }
    }

    /// Whether messages may be leased now.
    #[must_use]
    pub fn gate(&self, policy: &BreakerPolicy, now: Time) -> BreakerGate {
        match (self.state(now), self.state) {
            (BreakerState::Closed, _) => BreakerGate::Free,
            (BreakerState::Open, _) => BreakerGate::Held(self.until),
            (BreakerState::HalfOpen, BreakerState::HalfOpen) => {
                BreakerGate::Probing(policy.probes.saturating_sub(self.probes))
            }
            (BreakerState::HalfOpen, BreakerState::Open | BreakerState::Closed) => {
                BreakerGate::Probing(policy.probes)
            }
        }
    }

    /// Records a granted lease and returns its permit.
    pub fn grant(&mut self, now: Time) -> u64 {
        if self.state == BreakerState::Open && self.state(now) == BreakerState::HalfOpen {
            self.enter(BreakerState::HalfOpen, None, "the open time ended; probing".into(), None, now);
        }
        if self.state == BreakerState::HalfOpen {
            self.probes = self.probes.saturating_add(1);
        }
        self.epoch
    }

    /// Records the result of a delivery. A permit of another epoch is stale and changes nothing.
    pub fn settle(&mut self, permit: u64, signal: BreakerSignal, policy: &BreakerPolicy, now: Time) {
        if permit != self.epoch {
            return;
        }
        match self.state {
            BreakerState::Closed => self.observe(signal, policy, now),
            BreakerState::HalfOpen => self.probed(signal, policy, now),
            BreakerState::Open => {}
        }
    }

    fn observe(&mut self, signal: BreakerSignal, policy: &BreakerPolicy, now: Time) {
        let failed = match signal {
            BreakerSignal::Success => false,
            BreakerSignal::Failure => true,
            BreakerSignal::Neutral => return,
        };
        self.in_a_row = if failed { self.in_a_row.saturating_add(1) } else { 0 };
        self.window.push_back((now, failed));
        let room = usize::try_from(policy.window).unwrap_or(usize::MAX);
        while self.window.len() > room
            || self.window.front().is_some_and(|(at, _)| now.since(*at) > policy.within)
        {
            self.window.pop_front();
        }
        let failures = self.window.iter().filter(|(_, failed)| *failed).count();
        let results = self.window.len();
        #[expect(clippy::cast_precision_loss, reason = "a window holds at most a thousand results")]
        let share = failures as f64 / results.max(1) as f64;
        let sampled = results >= usize::try_from(policy.sample).unwrap_or(usize::MAX);
        if self.in_a_row >= policy.failures {
            let why = format!("{} failures in a row", self.in_a_row);
            self.open(policy, why, now);
        } else if failed && sampled && share > policy.ratio {
            let why = format!("{failures} of the last {results} deliveries failed");
            self.open(policy, why, now);
        }
    }

    fn probed(&mut self, signal: BreakerSignal, policy: &BreakerPolicy, now: Time) {
        match signal {
            BreakerSignal::Success => {
                self.succeeded = self.succeeded.saturating_add(1);
                if self.succeeded >= policy.probes.div_ceil(2) {
                    let why = format!("{} probes succeeded", self.succeeded);
                    self.reopened = 0;
                    self.enter(BreakerState::Closed, None, why, None, now);
                }
            }
            BreakerSignal::Failure => {
                self.reopened = self.reopened.saturating_add(1);
                self.open(policy, "a probe failed".into(), now);
            }
            BreakerSignal::Neutral => self.probes = self.probes.saturating_sub(1),
        }
    }

    fn open(&mut self, policy: &BreakerPolicy, why: String, now: Time) {
        let until = now.plus(policy.open_span(self.reopened));
        self.enter(BreakerState::Open, Some(until), why, None, now);
    }

    /// Applies an operator's decision: a forced-open breaker stays open until an operator closes it, and a
    /// forced-closed one starts afresh.
    pub fn force(&mut self, open: bool, actor: &Actor, now: Time) {
        let to = if open { BreakerState::Open } else { BreakerState::Closed };
        let why = actor.reason.clone().unwrap_or_else(|| "forced".into());
        self.reopened = 0;
        self.enter(to, None, why, Some(actor.name.clone()), now);
    }

    fn enter(&mut self, to: BreakerState, until: Option<Time>, why: String, by: Option<String>, now: Time) {
        (self.state, self.since, self.until) = (to, now, until);
        self.epoch = self.epoch.saturating_add(1);
        self.window.clear();
        (self.in_a_row, self.probes, self.succeeded) = (0, 0, 0);
        self.events.push_back(BreakerEvent { at: now, to, why, by });
        if self.events.len() > limits::BREAKER_EVENTS_MAX {
            self.events.pop_front();
        }
    }

    /// The public view of the breaker.
    #[must_use]
    pub fn view(&self, queue: &QueueName, key: &str, held: u64, now: Time) -> BreakerView {
        let state = self.state(now);
        BreakerView {
            queue: queue.clone(),
            key: key.to_owned(),
            state,
            since: if state == self.state { self.since } else { self.until.unwrap_or(self.since) },
            until: self.until.filter(|_| state == BreakerState::Open),
            forced: state == BreakerState::Open && self.until.is_none(),
            held: if state == BreakerState::Closed { 0 } else { held },
            failures_in_a_row: self.in_a_row,
            results: self.window.len(),
            failed: self.window.iter().filter(|(_, failed)| *failed).count(),
            probes_out: self.probes.saturating_sub(self.succeeded),
            probes_ok: self.succeeded,
            events: self.events.iter().cloned().collect(),
        }
    }
}

/// The public view of a breaker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerView {
    /// The queue.
    pub queue: QueueName,
    /// The value of its key: the name of the queue, a kind, or the value of a header or payload field.
    pub key: String,
    /// The state.
    pub state: BreakerState,
    /// Since when the breaker is in this state.
    pub since: Time,
    /// When an open breaker will be probed.
    pub until: Option<Time>,
    /// Whether an operator forced it open.
    pub forced: bool,
    /// The number of messages that wait because of this breaker.
    pub held: u64,
    /// Failures since the last success, while closed.
    pub failures_in_a_row: u32,
    /// Results in the window, while closed.
    pub results: usize,
    /// How many of these results are failures.
    pub failed: usize,
    /// Probes that have no result yet, while half open.
    pub probes_out: u32,
    /// Probes that succeeded.
    pub probes_ok: u32,
    /// The latest changes of state, oldest first.
    pub events: Vec<BreakerEvent>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const START: Time = Time::from_millis(1_000_000);

    fn rules() -> BreakerPolicy {
        BreakerPolicy::new(BreakerKey::Queue)
    }

    #[test]
    fn keys_read_back_and_wrong_ones_name_the_right_forms() {
        for text in ["queue", "kind", "header:x-region", "payload.a.b.0"] {
            assert_eq!(text.parse::<BreakerKey>().unwrap().to_string(), text);
        }
        for text in ["", "Queue", "header:", "payload.", "payload.a..b", "host", "header:a\u{7}"] {
            assert!(text.parse::<BreakerKey>().unwrap_err().contains("queue, kind, header:NAME"), "{text}");
        }
    }

    #[test]
    fn a_key_is_read_from_header_and_payload_and_cut_to_its_limit() {
        let payload = |text: &str| Payload { bytes: text.into(), content_type: String::new() };
        let read = |key: &str, body: &str| {
            let headers = [("r".to_owned(), "é".repeat(600))].into();
            key.parse::<BreakerKey>().unwrap().read(&headers, &payload(body))
        };
        assert_eq!(read("payload.a.1", r#"{"a":[0,42]}"#).as_deref(), Some("payload.a.1\n42"));
        for (key, body) in [
            ("payload.a", "{"),
            ("payload.a", r#"{"a":{}}"#),
            ("payload.a", r#"{"a":null}"#),
            ("header:x", ""),
        ] {
            assert_eq!(read(key, body), None, "{key} {body}");
        }
        let long = read("header:r", "").unwrap();
        let long = long.strip_prefix("header:r\n").unwrap();
        assert!(long.len() <= limits::KEY_BYTES_MAX && long.chars().all(|c| c == 'é'));
    }

    #[test]
    fn absurd_rules_are_refused_by_name() {
        let wrong = |change: fn(&mut BreakerPolicy), field: &str| {
            let mut policy = rules();
            change(&mut policy);
            assert!(policy.check().unwrap_err().to_string().contains(field), "{field}");
        };
        assert_eq!(rules().check(), Ok(()));
        wrong(|p| p.failures = 0, "breaker.failures");
        wrong(|p| p.sample = 21, "breaker.sample");
        wrong(|p| p.probes = 0, "breaker.probes");
        wrong(|p| p.ratio = f64::NAN, "breaker.ratio");
        wrong(|p| p.ratio = 1.5, "breaker.ratio");
        wrong(|p| p.open_max = Span::from_secs(1), "breaker.open_max");
    }

    /// What can happen to a breaker: a lease, the result of the n-th open lease, the passing of time, an
    /// operator.
    #[derive(Clone, Debug)]
    enum Step {
        Grant,
        Settle(usize, BreakerSignal),
        Wait(u64),
        Force(bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        let signal = prop_oneof![3 => Just(BreakerSignal::Failure), 2 => Just(BreakerSignal::Success), 1 => Just(BreakerSignal::Neutral)];
        prop_oneof![
            6 => Just(Step::Grant),
            6 => (0_usize..8, signal).prop_map(|(n, s)| Step::Settle(n, s)),
            2 => (0_u64..40_000).prop_map(Step::Wait),
            1 => proptest::bool::weighted(0.3).prop_map(Step::Force),
        ]
    }

    proptest! {
        /// In every sequence of steps, no lease is granted while the breaker is open, at most k probes are out
        /// in one half-open state, the breaker moves only along the arrows of the diagram, and it survives
        /// serialization.
        #[test]
        fn i28_the_breaker_keeps_its_promises(steps in proptest::collection::vec(step(), 0..200)) {
            let (policy, mut now) = (rules(), START);
            let mut breaker = Breaker::new(now);
            let mut out: Vec<u64> = Vec::new();
            let mut granted_in: BTreeMap<u64, u32> = BTreeMap::new();
            for step in steps {
                let (before, epoch) = (breaker.state(now), breaker.epoch);
                match step {
                    Step::Grant => match breaker.gate(&policy, now) {
                        BreakerGate::Free => out.push(breaker.grant(now)),
                        BreakerGate::Probing(left) if left > 0 => {
                            let permit = breaker.grant(now);
                            *granted_in.entry(permit).or_default() += 1;
                            out.push(permit);
                        }
                        BreakerGate::Probing(_) | BreakerGate::Held(_) => {}
                    },
                    Step::Settle(n, signal) if !out.is_empty() => {
                        let permit = out.remove(n % out.len());
                        if signal == BreakerSignal::Neutral && permit == breaker.epoch {
                            granted_in.entry(permit).and_modify(|n| *n = n.saturating_sub(1));
                        }
                        let copy = breaker.clone();
                        breaker.settle(permit, signal, &policy, now);
                        if permit != epoch {
                            prop_assert_eq!(&copy, &breaker, "a stale result changed something");
                        }
                    }
                    Step::Settle(..) => {}
                    Step::Wait(ms) => now = now.plus(Span::from_millis(ms)),
                    Step::Force(open) => {
                        breaker.force(open, &Actor::new("ada", "test"), now);
                        let wanted = if open { BreakerState::Open } else { BreakerState::Closed };
                        prop_assert_eq!(breaker.state(now), wanted);
                        continue;
                    }
                }
                let after = breaker.state(now);
                let legal = before == after || matches!(
                    (before, after),
                    (BreakerState::Closed | BreakerState::HalfOpen, BreakerState::Open)
                        | (BreakerState::Open, BreakerState::HalfOpen)
                        | (BreakerState::HalfOpen, BreakerState::Closed)
                );
                prop_assert!(legal, "{:?} to {:?}", before, after);
                prop_assert!(breaker.window.len() <= 20 && breaker.events.len() <= limits::BREAKER_EVENTS_MAX);
                prop_assert!(granted_in.values().all(|n| *n <= policy.probes));
                let text = serde_json::to_string(&breaker).unwrap();
                prop_assert_eq!(&serde_json::from_str::<Breaker>(&text).unwrap(), &breaker);
            }
        }
    }
}
