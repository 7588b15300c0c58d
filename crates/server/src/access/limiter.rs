//! Limits on how often somebody may call, and on how often somebody may guess a token.

use crate::problem::Problem;
use axum::http::StatusCode;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The number of callers that are remembered. Beyond it, those with a full bucket are forgotten.
const CALLERS_MAX: usize = 10_000;

/// A bucket of requests for each caller. It fills at a rate, and a request takes one.
pub(crate) struct Buckets {
    per_second: Option<f64>,
    burst: f64,
    callers: Mutex<HashMap<String, (f64, Instant)>>,
}

impl Buckets {
    /// Buckets that fill at this rate and hold one second's worth, or no limit at all.
    pub(crate) fn new(per_second: Option<u32>) -> Self {
        let burst = f64::from(per_second.unwrap_or(1).max(1));
        Self { per_second: per_second.map(f64::from), burst, callers: Mutex::default() }
    }

    /// Takes a request from the caller's bucket.
    pub(crate) fn take(&self, caller: &str) -> Taken {
        match self.per_second {
            Some(rate) => self.take_at(caller, rate, Instant::now()),
            None => Taken { result: Ok(()), usage: None },
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a bucket holds a small positive number"
    )]
    fn take_at(&self, caller: &str, rate: f64, now: Instant) -> Taken {
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if callers.len() >= CALLERS_MAX && !callers.contains_key(caller) {
            callers.retain(|_, (left, since)| *left + since.elapsed().as_secs_f64() * rate < self.burst);
        }
        let (left, since) = callers.entry(caller.to_owned()).or_insert((self.burst, now));
        *left = (*left + now.saturating_duration_since(*since).as_secs_f64() * rate).min(self.burst);
        *since = now;
        let usage = |left: f64| Some(Usage { limit: rate as u64, remaining: left as u64 });
        if *left < 1.0 {
            let what = format!("more than {rate} requests a second; slow down, or send batches");
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", what);
            return Taken { result: Err(problem.with("limit", rate).retry_after(1)), usage: usage(0.0) };
        }
        *left -= 1.0;
        Taken { result: Ok(()), usage: usage(*left) }
    }
}

/// Whether a request may go on, and how much of the limit is used.
pub(crate) struct Taken {
    pub(crate) result: Result<(), Problem>,
    pub(crate) usage: Option<Usage>,
}

/// How much of a limit is used.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// The number of requests a second.
    pub(crate) limit: u64,
    /// The number that is left at the moment.
    pub(crate) remaining: u64,
}

/// Carries the usage from where the caller is known to where the headers of the reply are written.
#[derive(Clone, Default)]
pub(crate) struct UsageSlot(Arc<OnceLock<Usage>>);

impl UsageSlot {
    /// Notes the usage of this request.
    pub(crate) fn set(&self, usage: Usage) {
        // The first note of a request is the right one.
        let _ = self.0.set(usage);
    }

    /// The usage, if the caller has a limit.
    pub(crate) fn get(&self) -> Option<Usage> {
        self.0.get().copied()
    }
}

/// Slows down whoever guesses tokens. After a few wrong ones, none is looked at for a while, which doubles.
#[derive(Default)]
pub(crate) struct FailedLogins(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    count: u32,
    until: Option<Instant>,
}

/// The number of wrong tokens that have no consequence.
const FREE_FAILURES: u32 = 5;
/// The longest time for which no token is looked at.
const BACK_OFF_MAX: Duration = Duration::from_secs(30);

impl FailedLogins {
    /// Refuses while the wait lasts.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        self.check_at(Instant::now())
    }

    fn check_at(&self, now: Instant) -> Result<(), Problem> {
        let failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match failures.until {
            Some(until) if until > now => {
                let seconds = until.saturating_duration_since(now).as_secs() + 1;
                let what = format!("too many wrong tokens; try again in {seconds} s");
                Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_logins", what).retry_after(seconds))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Records a wrong token.
    pub(crate) fn failed(&self) {
        self.failed_at(Instant::now());
    }

    fn failed_at(&self, now: Instant) {
        let mut failures = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        failures.count = failures.count.saturating_add(1);
        if let Some(over) = failures.count.checked_sub(FREE_FAILURES) {
            let wait = Duration::from_secs(1 << over.min(5)).min(BACK_OFF_MAX);
            failures.until = Some(now + wait);
        }
    }

    /// Forgets the wrong tokens, because a right one came.
    pub(crate) fn succeeded(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Failures::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_fills_again() {
        let buckets = Buckets::new(Some(2));
        let start = Instant::now();
        for _ in 0..2 {
            buckets.take_at("a", 2.0, start).result.unwrap();
        }
        let refused = buckets.take_at("a", 2.0, start);
        assert_eq!(refused.result.unwrap_err().code(), "rate_limited");
        assert_eq!(refused.usage.unwrap().remaining, 0);
        let other = buckets.take_at("b", 2.0, start);
        assert_eq!(other.usage.map(|usage| (usage.limit, usage.remaining)), Some((2, 1)));
        buckets.take_at("a", 2.0, start + Duration::from_millis(500)).result.unwrap();
    }

    #[test]
    fn whoever_guesses_waits_longer_each_time() {
        let logins = FailedLogins::default();
        let start = Instant::now();
        for _ in 1..FREE_FAILURES {
            logins.failed_at(start);
            logins.check_at(start).unwrap();
        }
        logins.failed_at(start);
        assert_eq!(logins.check_at(start).unwrap_err().code(), "too_many_logins");
        logins.check_at(start + Duration::from_secs(2)).unwrap();
        logins.failed_at(start);
        assert!(logins.check_at(start + Duration::from_millis(1500)).is_err());
        logins.succeeded();
        logins.check_at(start).unwrap();
    }
}
