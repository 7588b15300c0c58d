//! The policy of a call: how many attempts, how far apart, how long each may take. There is no I/O here:
//! [`Policy::delay`] is arithmetic, and [`judge`], which decides for queues, also decides about another attempt here.

use redrive_core::backoff::{Backoff, Growth, Jitter, JitterSeed};
use redrive_core::breaker::BreakerPolicy;
use redrive_core::error::Refusal;
use redrive_core::failure::{AnalysedFailure, Reason};
use redrive_core::ids::QueueName;
use redrive_core::lifecycle::Lifecycle;
use redrive_core::limits;
use redrive_core::message::MessageLimits;
use redrive_core::poison::PoisonVerdict;
use redrive_core::policy::{FailureCase, QueuePolicy, Verdict, judge};
use redrive_core::time::{Span, Time};

/// What happens to a call whose breaker is open before its first attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnOpen {
    /// It is captured like a failed call, so that it is executed when the dependency is back.
    #[default]
    Capture,
    /// It fails and is not captured.
    Refuse,
}

/// How an executor makes a call: attempts, delays, time limit, breaker.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The maximum number of attempts, including the first.
    pub attempts: u32,
    /// The delays between attempts.
    pub backoff: Backoff,
    /// By how many percent each delay is spread to both sides, within floor and cap.
    pub spread_percent: u8,
    /// How long one attempt may take.
    pub timeout: Option<Span>,
    /// When to stop calling a dependency that fails. Defaults to never.
    pub breaker: Option<BreakerPolicy>,
    /// What happens to calls whose breaker is open.
    pub on_open: OnOpen,
    /// The queue of captured calls. Defaults to the name of the policy.
    pub queue: Option<QueueName>,
}

/// The default time limit of an attempt. It is long enough for slow models and tools, and only prevents calls that hang
/// for ever.
const TIMEOUT: Span = Span::from_secs(300);

impl Default for Policy {
    fn default() -> Self {
        Self::exponential(3, Span::from_secs(1), Span::from_secs(30), 10)
    }
}

impl Policy {
    /// Creates a policy whose delays start at `initial`, double up to `cap`, and are spread by `spread_percent` to both
    /// sides. An attempt may take five minutes, and there is no breaker.
    #[must_use]
    pub const fn exponential(attempts: u32, initial: Span, cap: Span, spread_percent: u8) -> Self {
        let growth = Growth::Exponential { multiplier: 2.0 };
        Self {
            attempts,
            backoff: Backoff { initial, cap, floor: Span::ZERO, growth, jitter: Jitter::None },
            spread_percent,
            timeout: Some(TIMEOUT),
            breaker: None,
            on_open: OnOpen::Capture,
            queue: None,
        }
    }

    /// The built-in profiles: `llm`, `github`, `tool` and `verification`.
    #[must_use]
    pub const fn profiles() -> [(&'static str, Self); 4] {
        let ms = Span::from_millis;
        [
            ("llm", Self::exponential(3, ms(1_000), ms(30_000), 10)),
            ("github", Self::exponential(5, ms(1_000), ms(60_000), 20)),
            ("tool", Self::exponential(3, ms(500), ms(10_000), 15)),
            ("verification", Self::exponential(3, ms(2_000), ms(30_000), 0)),
        ]
    }

    /// The delay before retry `n`, where 1 is the first: the backoff's delay, spread to both sides, no shorter than
    /// `retry_after`, and within floor and cap. `last` is the delay before the previous retry.
    #[must_use]
    pub fn delay(
        &self,
        n: u32,
        last: Option<Span>,
        retry_after: Option<Span>,
        jitter_seed: JitterSeed,
    ) -> Span {
        self.spread(self.backoff.delay(n, last, retry_after, jitter_seed), retry_after, jitter_seed)
    }

    fn spread(&self, delay: Span, retry_after: Option<Span>, jitter_seed: JitterSeed) -> Span {
        let (whole, percent) = (delay.as_millis(), u64::from(self.spread_percent.min(100)));
        let width = whole / 100 * percent + whole % 100 * percent / 100;
        // The backoff's own jitter uses the high bits of the seed; rotating it gives an independent value.
        let jitter_seed = JitterSeed(jitter_seed.0.rotate_left(32));
        let spread = Span::from_millis(jitter_seed.between(whole - width, whole.saturating_add(width)));
        spread.max(retry_after.unwrap_or(Span::ZERO)).max(self.backoff.floor).min(self.backoff.cap)
    }

    /// Decides what follows a failed attempt, which `lifecycle` already counts.
    pub(super) fn next(
        &self,
        lifecycle: &Lifecycle,
        failure: &AnalysedFailure,
        now: Time,
        jitter_seed: JitterSeed,
    ) -> Next {
        let rules = QueuePolicy {
            max_attempts: self.attempts,
            backoff: self.backoff.clone(),
            ..QueuePolicy::default()
        };
        let (poison_verdict, limits) = (&PoisonVerdict::Continue, MessageLimits::default());
        let case = FailureCase {
            policy: &rules,
            limits,
            lifecycle,
            failure,
            poison_verdict,
            policy_override: None,
            now,
            jitter_seed,
        };
        match judge(&case) {
            Verdict::Retry { at } => {
                Next::Wait(self.spread(at.since(now), failure.report.retry_after, jitter_seed))
            }
            Verdict::Dead { reason } => Next::Stop(reason),
            Verdict::Drop => Next::Stop(Reason::Expired),
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] with the first setting that is out of bounds.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.attempts == 0 || self.attempts > limits::ATTEMPTS_MAX {
            let why = format!(
                "{} is outside 1 to {}; it counts attempts, including the first",
                self.attempts,
                limits::ATTEMPTS_MAX
            );
            return Err(Refusal::invalid("attempts", why));
        }
        if self.spread_percent > 100 {
            let why = format!("{} is more than the whole delay; at most 100", self.spread_percent);
            return Err(Refusal::invalid("spread_percent", why));
        }
        if self.timeout.is_some_and(|timeout| timeout == Span::ZERO || timeout > limits::SPAN_MAX) {
            let why = format!("is outside 1ms to {}; leave it out for none", limits::SPAN_MAX);
            return Err(Refusal::invalid("timeout", why));
        }
        self.backoff.check()?;
        self.breaker.as_ref().map_or(Ok(()), BreakerPolicy::check)
    }
}

/// What follows a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another attempt after this delay.
    Wait(Span),
    /// No other attempt, for this reason.
    Stop(Reason),
}

/// The refusal of an unknown policy name, with the nearest known one.
pub(super) fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Refusal {
    let shown: String = name.chars().take(64).collect();
    let nearest = known.clone().min_by_key(|word| strsim::damerau_levenshtein(&shown, word));
    let suggestion = nearest.map(|word| format!("; did you mean {word:?}?")).unwrap_or_default();
    let all = known.collect::<Vec<_>>().join(", ");
    Refusal::invalid("policy", format!("there is no policy {shown:?}{suggestion} Known: {all}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use redrive_core::failure::{ErrorInfo, FailureReport};

    const NOW: Time = Time::from_millis(1_000_000);

    #[test]
    fn the_profiles_are_those_of_the_product_page() {
        let numbers = Policy::profiles().map(|(name, p)| {
            assert_eq!(p.check(), Ok(()));
            assert_eq!(p.backoff.growth, Growth::Exponential { multiplier: 2.0 });
            (name, p.attempts, p.backoff.initial.as_millis(), p.backoff.cap.as_millis(), p.spread_percent)
        });
        let expected = [
            ("llm", 3, 1_000, 30_000, 10),
            ("github", 5, 1_000, 60_000, 20),
            ("tool", 3, 500, 10_000, 15),
            ("verification", 3, 2_000, 30_000, 0),
        ];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn a_tenth_of_jitter_is_a_tenth_to_both_sides() {
        let policy = Policy::default();
        let all: Vec<u64> =
            (0..1_024_u64).map(|n| policy.delay(1, None, None, JitterSeed(n << 22)).as_millis()).collect();
        assert_eq!((all.iter().min(), all.iter().max()), (Some(&900), Some(&1_100)));
    }

    #[test]
    fn without_jitter_delays_double_up_to_the_cap() {
        let [.., (_, verification)] = Policy::profiles();
        let delays: Vec<u64> =
            (1..=6).map(|n| verification.delay(n, None, None, JitterSeed(7)).as_millis() / 1_000).collect();
        assert_eq!(delays, [2, 4, 8, 16, 30, 30]);
    }

    fn failure(permanent: bool, retry_after: Option<Span>) -> AnalysedFailure {
        let error = ErrorInfo { error_type: "E".into(), message: "no".into(), ..ErrorInfo::default() };
        FailureReport { error, permanent, retry_after, ..FailureReport::default() }.analyse()
    }

    #[test]
    fn the_judge_of_the_queues_decides() {
        let policy = Policy { spread_percent: 0, ..Policy::default() };
        let lifecycle = |attempts| Lifecycle { attempts, ..Lifecycle::new(NOW, NOW) };
        let next = |attempts, failure: &AnalysedFailure| {
            policy.next(&lifecycle(attempts), failure, NOW, JitterSeed(0))
        };
        let plain = failure(false, None);
        assert_eq!(next(1, &plain), Next::Wait(Span::from_secs(1)));
        assert_eq!(next(2, &plain), Next::Wait(Span::from_secs(2)));
        assert_eq!(next(3, &plain), Next::Stop(Reason::MaxAttempts));
        assert_eq!(next(1, &failure(true, None)), Next::Stop(Reason::Permanent));
        assert_eq!(next(1, &failure(false, Some(Span::from_secs(9)))), Next::Wait(Span::from_secs(9)));
        let absurd = failure(false, Some(Span::from_days(9)));
        assert_eq!(next(1, &absurd), Next::Wait(Span::from_secs(30)), "within the cap");
    }

    #[test]
    fn invalid_policies_are_refused_by_field() {
        let wrong = |change: fn(&mut Policy), field: &str| {
            let mut policy = Policy::default();
            change(&mut policy);
            assert!(policy.check().unwrap_err().to_string().starts_with(field), "{field}");
        };
        wrong(|p| p.attempts = 0, "attempts");
        wrong(|p| p.spread_percent = 101, "spread_percent");
        wrong(|p| p.timeout = Some(Span::ZERO), "timeout");
        wrong(|p| p.backoff.cap = Span::ZERO, "backoff.cap");
    }

    #[test]
    fn an_unknown_policy_name_suggests_the_nearest() {
        let text = unknown("lmm", ["github", "llm", "tool"].into_iter()).to_string();
        assert!(
            text.contains("\"lmm\"") && text.contains("\"llm\"") && text.contains("github, llm"),
            "{text}"
        );
    }

    proptest! {
        /// Within floor and cap, at most `percent` away from the backoff's delay, never sooner than `retry_after`.
        #[test]
        fn every_delay_is_within_its_stated_range(
            initial in 0_u64..10_000_000,
            cap in 1_u64..u64::MAX / 2,
            floor in 0_u64..1_000,
            percent in 0_u8..=100,
            n in prop_oneof![1_u32..200, Just(u32::MAX)],
            hint in proptest::option::of(0_u64..u64::MAX),
            jitter_seed in any::<u64>(),
            jitter in prop_oneof![Just(Jitter::None), Just(Jitter::Full), Just(Jitter::Decorrelated)],
            last in proptest::option::of(0_u64..u64::MAX),
        ) {
            let floor = floor.min(cap);
            let mut policy = Policy::exponential(3, Span::from_millis(initial), Span::from_millis(cap), percent);
            policy.backoff.floor = Span::from_millis(floor);
            policy.backoff.jitter = jitter;
            let (last, hint) = (last.map(Span::from_millis), hint.map(Span::from_millis));
            let plain = policy.backoff.delay(n, last, None, JitterSeed(jitter_seed)).as_millis();
            let d = policy.delay(n, last, None, JitterSeed(jitter_seed)).as_millis();
            prop_assert!((floor..=cap).contains(&d));
            let width = u128::from(plain) * u128::from(percent) / 100;
            let (low, high) = (u128::from(plain) - width, u128::from(plain) + width);
            prop_assert!(u128::from(d) + 1 >= low.min(u128::from(cap)), "{d} below {low}");
            prop_assert!(u128::from(d) <= high.max(u128::from(floor)), "{d} above {high}");
            let hinted = policy.delay(n, last, hint, JitterSeed(jitter_seed));
            prop_assert!(hinted.as_millis() <= cap);
            prop_assert!(hinted >= hint.unwrap_or(Span::ZERO).min(Span::from_millis(cap)));
        }

        /// Whatever the errors are, a policy never makes more attempts than it allows.
        #[test]
        fn there_are_never_more_attempts_than_allowed(
            attempts in 1_u32..50,
            permanent in proptest::collection::vec(proptest::bool::weighted(0.05), 50),
            jitter_seed in any::<u64>(),
        ) {
            let policy = Policy { attempts, ..Policy::default() };
            let mut made = 0;
            for permanent in permanent {
                made += 1;
                let lifecycle = Lifecycle { attempts: made, ..Lifecycle::new(NOW, NOW) };
                match policy.next(&lifecycle, &failure(permanent, None), NOW, JitterSeed(jitter_seed)) {
                    Next::Wait(delay) => prop_assert!(delay <= policy.backoff.cap && !permanent),
                    Next::Stop(reason) => {
                        let expected = if permanent { Reason::Permanent } else { Reason::MaxAttempts };
                        prop_assert_eq!(reason, expected);
                        break;
                    }
                }
            }
            prop_assert!(made <= attempts);
        }
    }
}
