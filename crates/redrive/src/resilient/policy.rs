//! How a call is tried: how often, how far apart, for how long. Pure: [`Policy::delay`] is arithmetic, and whether
//! there is another attempt is decided by the same judge that decides for queues.

use redrive_core::backoff::{Backoff, Growth, Jitter, Roll};
use redrive_core::breaker::BreakerPolicy;
use redrive_core::error::Refusal;
use redrive_core::failure::{Analysed, Reason};
use redrive_core::ids::QueueName;
use redrive_core::lifecycle::Life;
use redrive_core::limits;
use redrive_core::message::Terms;
use redrive_core::poison::Finding;
use redrive_core::policy::{Case, QueuePolicy, Verdict, judge};
use redrive_core::time::{Span, Time};

/// What happens to a call whose breaker is open before it was tried at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnOpen {
    /// It is kept like one that failed, so that it is executed when the dependency is back.
    #[default]
    Capture,
    /// The caller is told, and that is all.
    Refuse,
}

/// How a call is tried.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Executions, the first included.
    pub attempts: u32,
    /// How far apart.
    pub backoff: Backoff,
    /// Each delay is spread by so many percent to both sides, within floor and cap.
    pub spread_percent: u8,
    /// How long one attempt may take.
    pub timeout: Option<Span>,
    /// When the other side is left alone; never when not said.
    pub breaker: Option<BreakerPolicy>,
    /// What happens to calls that its open breaker holds back.
    pub on_open: OnOpen,
    /// The queue that failed calls are kept under; the policy's name when not said.
    pub queue: Option<QueueName>,
}

/// How long one attempt may take when nobody says: long enough for slow models and tools, so that its only task
/// is that nothing hangs for ever.
const TIMEOUT: Span = Span::from_secs(300);

impl Default for Policy {
    fn default() -> Self {
        Self::exponential(3, Span::from_secs(1), Span::from_secs(30), 10)
    }
}

impl Policy {
    /// So many attempts, with delays that start at `initial`, double up to `cap` and are spread by so many
    /// percent to both sides. Five minutes per attempt, no breaker.
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

    /// The delay before retry `n` (1 is the first): the backoff's, spread to both sides, no shorter than what a
    /// server asked for, all within floor and cap. `last` is the delay before the previous retry.
    #[must_use]
    pub fn delay(&self, n: u32, last: Option<Span>, retry_after: Option<Span>, roll: Roll) -> Span {
        self.spread(self.backoff.delay(n, last, retry_after, roll), retry_after, roll)
    }

    fn spread(&self, delay: Span, retry_after: Option<Span>, roll: Roll) -> Span {
        let (whole, percent) = (delay.as_millis(), u64::from(self.spread_percent.min(100)));
        let width = whole / 100 * percent + whole % 100 * percent / 100;
        // The backoff's own jitter looks at the high bits; these are as good, and not the same.
        let roll = Roll(roll.0.rotate_left(32));
        let spread = Span::from_millis(roll.between(whole - width, whole.saturating_add(width)));
        spread.max(retry_after.unwrap_or(Span::ZERO)).max(self.backoff.floor).min(self.backoff.cap)
    }

    /// What follows from a failed attempt; `life` counts it already.
    pub(super) fn next(&self, life: &Life, failure: &Analysed, now: Time, roll: Roll) -> Next {
        let rules = QueuePolicy {
            max_attempts: self.attempts,
            backoff: self.backoff.clone(),
            ..QueuePolicy::default()
        };
        let (finding, terms) = (&Finding::Continue, Terms::default());
        let case = Case { policy: &rules, terms, life, failure, finding, said: None, now, roll };
        match judge(&case) {
            Verdict::Retry { at } => Next::Wait(self.spread(at.since(now), failure.report.retry_after, roll)),
            Verdict::Dead { reason } => Next::Stop(reason),
            Verdict::Drop => Next::Stop(Reason::Expired),
        }
    }

    /// Refuses what cannot be meant, naming the setting.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for the first setting that is out of bounds.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.attempts == 0 || self.attempts > limits::ATTEMPTS_MAX {
            let why = format!(
                "{} is outside 1 to {}; it counts executions, the first included",
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

/// What follows from a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another, after this long.
    Wait(Span),
    /// None, for this reason.
    Stop(Reason),
}

/// The refusal of a policy name that nobody knows.
pub(super) fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str> + Clone) -> Refusal {
    let shown: String = name.chars().take(64).collect();
    let nearest = known.clone().min_by_key(|word| strsim::damerau_levenshtein(&shown, word));
    let meant = nearest.map(|word| format!("; did you mean {word:?}?")).unwrap_or_default();
    let all = known.collect::<Vec<_>>().join(", ");
    Refusal::invalid("policy", format!("there is no policy {shown:?}{meant} Known: {all}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use redrive_core::failure::{ErrorInfo, Report};

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
            (0..1_024_u64).map(|n| policy.delay(1, None, None, Roll(n << 22)).as_millis()).collect();
        assert_eq!((all.iter().min(), all.iter().max()), (Some(&900), Some(&1_100)));
    }

    #[test]
    fn without_jitter_delays_double_up_to_the_cap() {
        let [.., (_, verification)] = Policy::profiles();
        let delays: Vec<u64> =
            (1..=6).map(|n| verification.delay(n, None, None, Roll(7)).as_millis() / 1_000).collect();
        assert_eq!(delays, [2, 4, 8, 16, 30, 30]);
    }

    fn failure(permanent: bool, retry_after: Option<Span>) -> Analysed {
        let error = ErrorInfo { error_type: "E".into(), message: "no".into(), ..ErrorInfo::default() };
        Report { error, permanent, retry_after, ..Report::default() }.analyse()
    }

    #[test]
    fn the_judge_of_the_queues_decides() {
        let policy = Policy { spread_percent: 0, ..Policy::default() };
        let life = |attempts| Life { attempts, ..Life::new(NOW, NOW) };
        let next = |attempts, failure: &Analysed| policy.next(&life(attempts), failure, NOW, Roll(0));
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
    fn absurd_policies_are_refused_by_name() {
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
    fn an_unknown_policy_is_told_the_nearest() {
        let text = unknown("lmm", ["github", "llm", "tool"].into_iter()).to_string();
        assert!(
            text.contains("\"lmm\"") && text.contains("\"llm\"") && text.contains("github, llm"),
            "{text}"
        );
    }

    proptest! {
        /// Within floor and cap, at most so many percent from the backoff's own, never sooner than asked for.
        #[test]
        fn every_delay_is_within_its_stated_range(
            initial in 0_u64..10_000_000,
            cap in 1_u64..u64::MAX / 2,
            floor in 0_u64..1_000,
            percent in 0_u8..=100,
            n in prop_oneof![1_u32..200, Just(u32::MAX)],
            hint in proptest::option::of(0_u64..u64::MAX),
            roll in any::<u64>(),
            jitter in prop_oneof![Just(Jitter::None), Just(Jitter::Full), Just(Jitter::Decorrelated)],
            last in proptest::option::of(0_u64..u64::MAX),
        ) {
            let floor = floor.min(cap);
            let mut policy = Policy::exponential(3, Span::from_millis(initial), Span::from_millis(cap), percent);
            policy.backoff.floor = Span::from_millis(floor);
            policy.backoff.jitter = jitter;
            let (last, hint) = (last.map(Span::from_millis), hint.map(Span::from_millis));
            let plain = policy.backoff.delay(n, last, None, Roll(roll)).as_millis();
            let d = policy.delay(n, last, None, Roll(roll)).as_millis();
            prop_assert!((floor..=cap).contains(&d));
            let width = u128::from(plain) * u128::from(percent) / 100;
            let (low, high) = (u128::from(plain) - width, u128::from(plain) + width);
            prop_assert!(u128::from(d) + 1 >= low.min(u128::from(cap)), "{d} below {low}");
            prop_assert!(u128::from(d) <= high.max(u128::from(floor)), "{d} above {high}");
            let hinted = policy.delay(n, last, hint, Roll(roll));
            prop_assert!(hinted.as_millis() <= cap);
            prop_assert!(hinted >= hint.unwrap_or(Span::ZERO).min(Span::from_millis(cap)));
        }

        /// However an error is, a policy never asks for more executions than it allows.
        #[test]
        fn there_are_never_more_attempts_than_allowed(
            attempts in 1_u32..50,
            permanent in proptest::collection::vec(proptest::bool::weighted(0.05), 50),
            roll in any::<u64>(),
        ) {
            let policy = Policy { attempts, ..Policy::default() };
            let mut made = 0;
            for permanent in permanent {
                made += 1;
                let life = Life { attempts: made, ..Life::new(NOW, NOW) };
                match policy.next(&life, &failure(permanent, None), NOW, Roll(roll)) {
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
