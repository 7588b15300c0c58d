//! The concurrency and rate limits inside one worker. This module only counts; the dispatcher parks a delivery that
//! has to wait and keeps its lease alive.

use super::messages::LimitKeys;
use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};
use redrive_core::error::Refusal;
use redrive_core::message::Envelope;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Returns the key of a message. Messages with the same key share a limit.
pub(super) type KeyOf = Arc<dyn Fn(&Envelope) -> Option<String> + Send + Sync>;

/// The limits of a worker, as configured.
#[derive(Default)]
pub(super) struct Limits {
    pub(super) concurrency_by_kind: BTreeMap<String, usize>,
    pub(super) concurrency_by_key: Option<(usize, KeyOf)>,
    pub(super) rate: Option<f64>,
    pub(super) rate_by_kind: BTreeMap<String, f64>,
}

impl Limits {
    /// Checks that every limit lets something through and every rate is a number within bounds.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        let counts =
            self.concurrency_by_kind.values().chain(self.concurrency_by_key.iter().map(|(limit, _)| limit));
        if counts.into_iter().any(|limit| *limit == 0) {
            return Err(Refusal::invalid("concurrency", "a limit of 0 would never run anything"));
        }
        for rate in self.rate.iter().chain(self.rate_by_kind.values()) {
            if !(*rate >= RATE_MIN && *rate <= RATE_MAX) {
                let why = format!("{rate} a second is outside {RATE_MIN} to {RATE_MAX}");
                return Err(Refusal::invalid("rate", why));
            }
        }
        Ok(())
    }
}

/// One message a day. Anything slower is a schedule, not a rate.
const RATE_MIN: f64 = 1.0 / 86_400.0;
/// More than one worker can do.
const RATE_MAX: f64 = 1e6;

/// The clock of the tokio runtime, which the rest of the worker uses too. When a test moves it, rates follow.
#[derive(Clone, Debug)]
struct RuntimeClock;

impl Clock for RuntimeClock {
    type Instant = std::time::Instant;

    fn now(&self) -> Self::Instant {
        Instant::now().into_std()
    }
}

/// Limits how many deliveries start per second.
struct StartRate {
    burst: usize,
    limiter: RateLimiter<NotKeyed, InMemoryState, RuntimeClock, NoOpMiddleware<std::time::Instant>>,
}

impl StartRate {
    fn new(per_second: f64) -> Option<Self> {
        let period = Duration::try_from_secs_f64(1.0 / per_second).ok()?;
        // Allow a burst of a tenth of a second's worth: a timer cannot wake more often than every millisecond.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be 1 to 1e5")]
        let burst = (per_second / 10.0).clamp(1.0, 1e5) as u32;
        let quota = Quota::with_period(period)?.allow_burst(NonZeroU32::new(burst)?);
        let limiter = RateLimiter::direct_with_clock(quota, RuntimeClock);
        Some(Self { burst: usize::try_from(burst).ok()?, limiter })
    }

    /// Lets one delivery start, or returns how long to wait.
    fn try_start(&self) -> Result<(), Duration> {
        self.limiter.check().map_err(|later| later.wait_time_from(RuntimeClock.now()))
    }
}

/// Why a delivery cannot start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocked {
    /// Its kind or key is at its concurrency limit. It can start when another one ends.
    Full,
    /// The rate of its kind does not allow it to start before this instant.
    Until(Instant),
}

/// The limits, and the number of handlers that run under each of them.
pub(super) struct Throttle {
    concurrency_by_kind: BTreeMap<String, usize>,
    concurrency_by_key: Option<(usize, KeyOf)>,
    rate: Option<StartRate>,
    rate_by_kind: BTreeMap<String, StartRate>,
    running_by_kind: HashMap<String, usize>,
    running_by_key: HashMap<String, usize>,
    /// Starts that the rate has allowed and no delivery has used yet.
    credit: usize,
}

impl Throttle {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            concurrency_by_kind: limits.concurrency_by_kind.clone(),
            concurrency_by_key: limits.concurrency_by_key.clone(),
            rate: limits.rate.and_then(StartRate::new),
            rate_by_kind: limits
                .rate_by_kind
                .iter()
                .filter_map(|(k, r)| Some((k.clone(), StartRate::new(*r)?)))
                .collect(),
            running_by_kind: HashMap::new(),
            running_by_key: HashMap::new(),
            credit: 0,
        }
    }

    /// How many of `wanted` messages the rate allows to lease now. If none, returns when to ask again.
    pub(super) fn allowance(&mut self, wanted: usize, now: Instant) -> Result<usize, Instant> {
        let Some(rate) = &self.rate else { return Ok(wanted) };
        // Unused starts are kept, but never more than one burst.
        let wanted = wanted.min(rate.burst);
        while self.credit < wanted {
            match rate.try_start() {
                Ok(()) => self.credit += 1,
                Err(wait) if self.credit == 0 => return Err(now + wait),
                Err(_) => break,
            }
        }
        Ok(wanted.min(self.credit))
    }

    /// Uses up the starts of `n` leased messages.
    pub(super) fn leased(&mut self, n: usize) {
        self.credit = self.credit.saturating_sub(n);
    }

    /// The key whose limit this message shares. Calls user code: if that panics, the message has no key.
    pub(super) fn key_of(&self, message: &Envelope) -> Option<String> {
        let (_, key) = self.concurrency_by_key.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| key(message))).unwrap_or_else(|_| {
            tracing::warn!(message = %message.id, "the key function panicked; no limit by key applies");
            None
        })
    }

    /// Counts a delivery as running, unless it has to wait.
    pub(super) fn enter(&mut self, limit_keys: &LimitKeys, now: Instant) -> Result<(), Blocked> {
        let (kind, key) = (limit_keys.kind.as_str(), limit_keys.key.as_deref());
        let full = |running: Option<&usize>, limit: Option<usize>| {
            limit.is_some_and(|limit| running.copied().unwrap_or(0) >= limit)
        };
        let key_limit = self.concurrency_by_key.as_ref().map(|(limit, _)| *limit);
        if full(self.running_by_kind.get(kind), self.concurrency_by_kind.get(kind).copied())
            || key.is_some_and(|key| full(self.running_by_key.get(key), key_limit))
        {
            return Err(Blocked::Full);
        }
        if let Some(rate) = self.rate_by_kind.get(kind) {
            rate.try_start().map_err(|wait| Blocked::Until(now + wait))?;
        }
        if self.concurrency_by_kind.contains_key(kind) {
            *self.running_by_kind.entry(kind.into()).or_default() += 1;
        }
        if let Some(key) = key {
            *self.running_by_key.entry(key.into()).or_default() += 1;
        }
        Ok(())
    }

    /// Counts a delivery as ended. Removes kinds and keys that have nothing running.
    pub(super) fn leave(&mut self, limit_keys: &LimitKeys) {
        let (kind, key) = (Some(limit_keys.kind.as_str()), limit_keys.key.as_deref());
        for (map, name) in [(&mut self.running_by_kind, kind), (&mut self.running_by_key, key)] {
            let Some(name) = name else { continue };
            if let Some(running) = map.get_mut(name) {
                *running = running.saturating_sub(1);
                if *running == 0 {
                    map.remove(name);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_keys_have_limits_and_are_forgotten() {
        let mut limits =
            Limits { concurrency_by_kind: BTreeMap::from([("mail".into(), 2)]), ..Limits::default() };
        limits.concurrency_by_key = Some((1, Arc::new(|m: &Envelope| m.headers.get("tenant").cloned())));
        let mut throttle = Throttle::new(&limits);
        let now = Instant::now();
        let of = |kind: &str, key: Option<&str>| LimitKeys { kind: kind.into(), key: key.map(Into::into) };
        assert_eq!(throttle.enter(&of("mail", Some("a")), now), Ok(()));
        assert_eq!(throttle.enter(&of("sms", Some("a")), now), Err(Blocked::Full));
        assert_eq!(throttle.enter(&of("mail", Some("b")), now), Ok(()));
        assert_eq!(throttle.enter(&of("mail", None), now), Err(Blocked::Full));
        assert_eq!(throttle.enter(&of("sms", None), now), Ok(()));
        throttle.leave(&of("mail", Some("a")));
        throttle.leave(&of("mail", Some("b")));
        throttle.leave(&of("sms", None));
        assert!(throttle.running_by_kind.is_empty() && throttle.running_by_key.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_lets_through_as_many_as_it_allows() {
        let mut throttle = Throttle::new(&Limits { rate: Some(1.0), ..Limits::default() });
        let now = Instant::now();
        assert_eq!(throttle.allowance(10, now), Ok(1));
        assert_eq!(throttle.allowance(10, now), Ok(1), "an unused start is kept");
        throttle.leased(1);
        assert_eq!(throttle.allowance(10, now), Err(now + Duration::from_secs(1)));
        tokio::time::advance(Duration::from_millis(999)).await;
        assert!(throttle.allowance(10, Instant::now()).is_err(), "not a moment too early");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(throttle.allowance(10, Instant::now()), Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_worker_does_not_save_up_for_a_burst() {
        let mut throttle = Throttle::new(&Limits { rate: Some(50.0), ..Limits::default() });
        for _ in 0..300 {
            let _ = throttle.allowance(100, Instant::now());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(throttle.allowance(100, Instant::now()), Ok(5), "a tenth of a second's worth");
    }

    #[test]
    fn invalid_limits_are_refused() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(Limits { rate: Some(rate), ..Limits::default() }.check().is_err(), "{rate}");
        }
        assert!(
            Limits { concurrency_by_kind: BTreeMap::from([("a".into(), 0)]), ..Limits::default() }
                .check()
                .is_err()
        );
        assert!(Limits::default().check().is_ok());
    }
}
