//! How much of what may run at once and how fast, inside one worker. Counts and rates only; what does not fit
//! is parked by the dispatcher, which keeps its lease alive.

use super::stage::Entered;
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

/// Finds the key whose messages share a limit.
pub(super) type KeyOf = Arc<dyn Fn(&Envelope) -> Option<String> + Send + Sync>;

/// The limits as they were asked for.
#[derive(Default)]
pub(super) struct Limits {
    pub(super) by_kind: BTreeMap<String, usize>,
    pub(super) by_key: Option<(usize, KeyOf)>,
    pub(super) rate: Option<f64>,
    pub(super) rates: BTreeMap<String, f64>,
}

impl Limits {
    /// Refuses limits that let nothing through, or are not numbers.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        let counts = self.by_kind.values().chain(self.by_key.iter().map(|(limit, _)| limit));
        if counts.into_iter().any(|limit| *limit == 0) {
            return Err(Refusal::invalid("concurrency", "a limit of 0 would never run anything"));
        }
        for rate in self.rate.iter().chain(self.rates.values()) {
            if !(*rate >= RATE_MIN && *rate <= RATE_MAX) {
                let why = format!("{rate} a second is outside {RATE_MIN} to {RATE_MAX}");
                return Err(Refusal::invalid("rate", why));
            }
        }
        Ok(())
    }
}

/// One in a day; slower is a schedule, not a rate.
const RATE_MIN: f64 = 1.0 / 86_400.0;
/// Beyond what one worker can do.
const RATE_MAX: f64 = 1e6;

/// The runtime's clock, which the rest of the worker reads too: where a test moves it, rates follow.
#[derive(Clone, Debug)]
struct RuntimeClock;

impl Clock for RuntimeClock {
    type Instant = std::time::Instant;

    fn now(&self) -> Self::Instant {
        Instant::now().into_std()
    }
}

/// Messages let through at the pace that was asked for.
struct Pace {
    burst: usize,
    limiter: RateLimiter<NotKeyed, InMemoryState, RuntimeClock, NoOpMiddleware<std::time::Instant>>,
}

impl Pace {
    fn new(per_second: f64) -> Option<Self> {
        let period = Duration::try_from_secs_f64(1.0 / per_second).ok()?;
        // A tenth of a second's worth at once: a timer cannot wake more often than every millisecond.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be 1 to 1e5")]
        let burst = (per_second / 10.0).clamp(1.0, 1e5) as u32;
        let quota = Quota::with_period(period)?.allow_burst(NonZeroU32::new(burst)?);
        let limiter = RateLimiter::direct_with_clock(quota, RuntimeClock);
        Some(Self { burst: usize::try_from(burst).ok()?, limiter })
    }

    /// Lets one through, or says how long to wait.
    fn take(&self) -> Result<(), Duration> {
        self.limiter.check().map_err(|later| later.wait_time_from(RuntimeClock.now()))
    }
}

/// Why a delivery cannot begin now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocked {
    /// Too many of its kind or key are running; when one ends there is room.
    Full,
    /// Too soon after the others of its kind.
    Until(Instant),
}

/// The limits and what is running under them.
pub(super) struct Throttle {
    by_kind: BTreeMap<String, usize>,
    by_key: Option<(usize, KeyOf)>,
    pace: Option<Pace>,
    paces: BTreeMap<String, Pace>,
    kinds: HashMap<String, usize>,
    keys: HashMap<String, usize>,
    /// Begins the pace has let through that no delivery has used yet.
    credit: usize,
}

impl Throttle {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            by_kind: limits.by_kind.clone(),
            by_key: limits.by_key.clone(),
            pace: limits.rate.and_then(Pace::new),
            paces: limits.rates.iter().filter_map(|(k, r)| Some((k.clone(), Pace::new(*r)?))).collect(),
            kinds: HashMap::new(),
            keys: HashMap::new(),
            credit: 0,
        }
    }

    /// How many of `wanted` may be leased now; if none, until when to wait.
    pub(super) fn allowance(&mut self, wanted: usize, now: Instant) -> Result<usize, Instant> {
        let Some(pace) = &self.pace else { return Ok(wanted) };
        // What is not used is kept, but never more than comes at once anyway.
        let wanted = wanted.min(pace.burst);
        while self.credit < wanted {
            match pace.take() {
                Ok(()) => self.credit += 1,
                Err(wait) if self.credit == 0 => return Err(now + wait),
                Err(_) => break,
            }
        }
        Ok(wanted.min(self.credit))
    }

    /// So many were leased under the allowance.
    pub(super) fn leased(&mut self, n: usize) {
        self.credit = self.credit.saturating_sub(n);
    }

    /// The key this message shares a limit by. The user's code runs here: if it panics, the message has none.
    pub(super) fn key_of(&self, message: &Envelope) -> Option<String> {
        let (_, key) = self.by_key.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| key(message))).unwrap_or_else(|_| {
            tracing::warn!(message = %message.id, "the function for the key panicked; no limit by key");
            None
        })
    }

    /// Counts a delivery in, unless it has to wait.
    pub(super) fn enter(&mut self, entered: &Entered, now: Instant) -> Result<(), Blocked> {
        let (kind, key) = (entered.kind.as_str(), entered.key.as_deref());
        let full = |running: Option<&usize>, limit: Option<usize>| {
            limit.is_some_and(|limit| running.copied().unwrap_or(0) >= limit)
        };
        let by_key = self.by_key.as_ref().map(|(limit, _)| *limit);
        if full(self.kinds.get(kind), self.by_kind.get(kind).copied())
            || key.is_some_and(|key| full(self.keys.get(key), by_key))
        {
            return Err(Blocked::Full);
        }
        if let Some(pace) = self.paces.get(kind) {
            pace.take().map_err(|wait| Blocked::Until(now + wait))?;
        }
        if self.by_kind.contains_key(kind) {
            *self.kinds.entry(kind.into()).or_default() += 1;
        }
        if let Some(key) = key {
            *self.keys.entry(key.into()).or_default() += 1;
        }
        Ok(())
    }

    /// Counts it out. Keys without anything running are forgotten.
    pub(super) fn leave(&mut self, entered: &Entered) {
        let (kind, key) = (Some(entered.kind.as_str()), entered.key.as_deref());
        for (map, name) in [(&mut self.kinds, kind), (&mut self.keys, key)] {
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
        let mut limits = Limits { by_kind: BTreeMap::from([("mail".into(), 2)]), ..Limits::default() };
        limits.by_key = Some((1, Arc::new(|m: &Envelope| m.headers.get("tenant").cloned())));
        let mut throttle = Throttle::new(&limits);
        let now = Instant::now();
        let of = |kind: &str, key: Option<&str>| Entered { kind: kind.into(), key: key.map(Into::into) };
        assert_eq!(throttle.enter(&of("mail", Some("a")), now), Ok(()));
        assert_eq!(throttle.enter(&of("sms", Some("a")), now), Err(Blocked::Full));
        assert_eq!(throttle.enter(&of("mail", Some("b")), now), Ok(()));
        assert_eq!(throttle.enter(&of("mail", None), now), Err(Blocked::Full));
        assert_eq!(throttle.enter(&of("sms", None), now), Ok(()));
        throttle.leave(&of("mail", Some("a")));
        throttle.leave(&of("mail", Some("b")));
        throttle.leave(&of("sms", None));
        assert!(throttle.kinds.is_empty() && throttle.keys.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_lets_through_what_it_says() {
        let mut throttle = Throttle::new(&Limits { rate: Some(1.0), ..Limits::default() });
        let now = Instant::now();
        assert_eq!(throttle.allowance(10, now), Ok(1));
        assert_eq!(throttle.allowance(10, now), Ok(1), "unused room stays");
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
    fn senseless_limits_are_refused() {
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(Limits { rate: Some(rate), ..Limits::default() }.check().is_err(), "{rate}");
        }
        assert!(Limits { by_kind: BTreeMap::from([("a".into(), 0)]), ..Limits::default() }.check().is_err());
        assert!(Limits::default().check().is_ok());
    }
}
