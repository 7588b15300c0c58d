//! The delay before the next attempt. This is pure arithmetic: the caller passes the randomness in as a number,
//! so that the same failure gets the same delay in the model, in a replay and on every backend.

use crate::error::Refusal;
use crate::ids::MessageId;
use crate::limits;
use crate::message::check_span;
use crate::time::Span;
use serde::{Deserialize, Serialize};

/// The source of randomness for jitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JitterSeed(pub u64);

impl JitterSeed {
    /// The seed of one delivery of a message. Message ids carry at least 62 random bits, so messages that fail
    /// together get different delays, while the same delivery always gets the same one.
    #[must_use]
    pub fn of(id: MessageId, deliveries: u32) -> Self {
        let bytes = id.to_bytes();
        let (high, low) = bytes.split_at(8);
        let word = |half: &[u8]| half.iter().fold(0_u64, |acc, b| (acc << 8) | u64::from(*b));
        let mut x = word(high) ^ word(low).rotate_left(32) ^ (u64::from(deliveries) << 17);
        // splitmix64: three rounds of multiply and shift spread every input bit over the whole word.
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(x ^ (x >> 31))
    }

    /// A number from `low` to `high`, both inclusive.
    #[must_use]
    pub fn between(self, low: u64, high: u64) -> u64 {
        let Some(width) = high.checked_sub(low) else { return low };
        let range = u128::from(width) + 1;
        let scaled = (u128::from(self.0) * range) >> 64;
        low + u64::try_from(scaled).unwrap_or(width)
    }
}

/// How the delay grows with the number of the retry `n`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "strategy")]
pub enum Growth {
    /// Always `initial`.
    Fixed,
    /// `initial * n`.
    Linear,
    /// `initial * multiplier^(n-1)`.
    Exponential {
        /// The growth factor, at least 1.
        multiplier: f64,
    },
    /// `initial * F(n)` with F = 1, 1, 2, 3, 5…
    Fibonacci,
    /// The n-th entry of a list; the last entry repeats.
    List {
        /// The delays, in the order of the retries.
        #[serde(rename = "delays_ms", alias = "delays")]
        delays: Vec<Span>,
    },
}

/// How randomness changes a delay `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Jitter {
    /// `d`.
    None,
    /// `rand(0, d)`.
    Full,
    /// `d/2 + rand(0, d/2)`.
    Equal,
    /// `min(cap, rand(initial, 3 * last))`.
    Decorrelated,
}

/// The delays between the attempts of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Backoff {
    /// The delay before the first retry.
    #[serde(rename = "initial_ms", alias = "initial")]
    pub initial: Span,
    /// The longest delay.
    #[serde(rename = "cap_ms", alias = "cap")]
    pub cap: Span,
    /// The shortest delay, even after jitter.
    #[serde(rename = "floor_ms", alias = "floor")]
    pub floor: Span,
    /// How the delay grows.
    #[serde(flatten)]
    pub growth: Growth,
    /// How randomness changes the delay.
    pub jitter: Jitter,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial: Span::from_secs(1),
            cap: Span::from_secs(15 * 60),
            floor: Span::ZERO,
            growth: Growth::Exponential { multiplier: 2.0 },
            jitter: Jitter::Full,
        }
    }
}

/// The n-th Fibonacci number, with F(1) = F(2) = 1. Saturates at the largest one that fits.
fn fibonacci(n: u32) -> u64 {
    let (mut a, mut b) = (0_u64, 1_u64);
    // F(94) does not fit any more; further rounds would only repeat the maximum.
    for _ in 0..n.min(94) {
        (a, b) = (b, a.saturating_add(b));
    }
    a
}

impl Backoff {
    /// The delay before retry `n` (the first is 1), before jitter and server hints. Never exceeds the cap.
    #[must_use]
    pub fn base(&self, n: u32) -> Span {
        let n = n.max(1);
        let raw = match &self.growth {
            Growth::Fixed => self.initial,
            Growth::Linear => self.initial.times(u64::from(n)),
            Growth::Fibonacci => self.initial.times(fibonacci(n)),
            Growth::Exponential { multiplier } => {
                // The power of a huge n is infinite. Everything beyond the cap ends at the cap.
                let exponent = i32::try_from(n - 1).unwrap_or(i32::MAX);
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "a delay needs no more than 52 bits of precision"
                )]
                let ms = self.initial.as_millis() as f64 * multiplier.powi(exponent);
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "only compared, and the cap is far below 2^52"
                )]
                let cap = self.cap.as_millis() as f64;
                if ms.is_finite() && ms < cap {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "checked: finite, not negative and below the cap"
                    )]
                    let whole = ms as u64;
                    Span::from_millis(whole)
                } else {
                    self.cap
                }
            }
            Growth::List { delays } => {
                let index = usize::try_from(n - 1).unwrap_or(usize::MAX);
                delays.get(index).or_else(|| delays.last()).copied().unwrap_or(self.initial)
            }
        };
        raw.min(self.cap)
    }

    /// The delay before retry `n`: growth, then jitter, then the server's Retry-After as a lower bound, all
    /// kept between floor and cap. `last` is the delay before the previous retry.
    #[must_use]
    pub fn delay(
        &self,
        n: u32,
        last: Option<Span>,
        retry_after: Option<Span>,
        jitter_seed: JitterSeed,
    ) -> Span {
        let base = self.base(n).as_millis();
        let jittered = match self.jitter {
            Jitter::None => base,
            Jitter::Full => jitter_seed.between(0, base),
            Jitter::Equal => base / 2 + jitter_seed.between(0, base - base / 2),
            Jitter::Decorrelated => {
                let last = last.unwrap_or(self.initial);
                jitter_seed.between(self.initial.as_millis(), last.times(3).min(self.cap).as_millis())
            }
        };
        let at_least = retry_after.unwrap_or(Span::ZERO);
        Span::from_millis(jittered).max(at_least).max(self.floor).min(self.cap)
    }

    /// Checks every setting against its bounds.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`], which names the setting.
    pub fn check(&self) -> Result<(), Refusal> {
        check_span("backoff.initial", self.initial, Span::ZERO, limits::SPAN_MAX)?;
        check_span("backoff.cap", self.cap, Span::from_millis(1), limits::SPAN_MAX)?;
        check_span("backoff.floor", self.floor, Span::ZERO, self.cap)?;
        match &self.growth {
            Growth::Exponential { multiplier } if !(1.0..=100.0).contains(multiplier) => {
                Err(Refusal::invalid("backoff.multiplier", format!("{multiplier} is outside 1 to 100")))
            }
            Growth::List { delays } if delays.is_empty() || delays.len() > limits::BACKOFF_STEPS_MAX => {
                Err(Refusal::invalid(
                    "backoff.delays",
                    format!("needs 1 to {} entries", limits::BACKOFF_STEPS_MAX),
                ))
            }
            Growth::Fixed
            | Growth::Linear
            | Growth::Fibonacci
            | Growth::Exponential { .. }
            | Growth::List { .. } => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(growth: Growth) -> Vec<u64> {
        let b = Backoff { growth, jitter: Jitter::None, ..Backoff::default() };
        (1..=6).map(|n| b.base(n).as_millis() / 1_000).collect()
    }

    #[test]
    fn each_strategy_grows_as_written() {
        assert_eq!(seconds(Growth::Fixed), [1, 1, 1, 1, 1, 1]);
        assert_eq!(seconds(Growth::Linear), [1, 2, 3, 4, 5, 6]);
        assert_eq!(seconds(Growth::Exponential { multiplier: 2.0 }), [1, 2, 4, 8, 16, 32]);
        assert_eq!(seconds(Growth::Fibonacci), [1, 1, 2, 3, 5, 8]);
        let delays = vec![Span::from_secs(3), Span::from_secs(7)];
        assert_eq!(seconds(Growth::List { delays }), [3, 7, 7, 7, 7, 7]);
    }

    #[test]
    fn a_server_hint_is_honoured_but_bounded() {
        let b = Backoff { jitter: Jitter::None, ..Backoff::default() };
        assert_eq!(b.delay(1, None, Some(Span::from_secs(60)), JitterSeed(0)), Span::from_secs(60));
        assert_eq!(b.delay(1, None, Some(Span::from_days(9_000)), JitterSeed(0)), b.cap);
        assert_eq!(b.delay(1, None, Some(Span::ZERO), JitterSeed(0)), Span::from_secs(1));
    }

    #[test]
    fn seeds_of_neighbouring_deliveries_differ() {
        let id = MessageId::new(1, [3; 10]);
        assert_ne!(JitterSeed::of(id, 1), JitterSeed::of(id, 2));
        assert_eq!(JitterSeed::of(id, 1), JitterSeed::of(id, 1));
        assert_ne!(JitterSeed::of(id, 1), JitterSeed::of(MessageId::new(1, [4; 10]), 1));
    }

    fn any_growth() -> impl Strategy<Value = Growth> {
        prop_oneof![
            Just(Growth::Fixed),
            Just(Growth::Linear),
            Just(Growth::Fibonacci),
            (1.0_f64..100.0).prop_map(|multiplier| Growth::Exponential { multiplier }),
            proptest::collection::vec(0_u64..10_000_000, 1..5)
                .prop_map(|v| Growth::List { delays: v.into_iter().map(Span::from_millis).collect() }),
        ]
    }

    proptest! {
        /// I27: within floor and cap, jitter in its stated range, no overflow for any n up to 2^32.
        #[test]
        fn i27_every_delay_is_within_its_stated_range(
            growth in any_growth(),
            initial in 0_u64..10_000_000,
            cap in 1_u64..100_000_000,
            floor in 0_u64..1_000,
            n in prop_oneof![1_u32..200, Just(u32::MAX), Just(1 << 31)],
            last in proptest::option::of(0_u64..u64::MAX),
            hint in proptest::option::of(0_u64..u64::MAX),
            jitter in prop_oneof![
                Just(Jitter::None), Just(Jitter::Full), Just(Jitter::Equal), Just(Jitter::Decorrelated)
            ],
            jitter_seed in any::<u64>(),
        ) {
            let floor = floor.min(cap);
            let b = Backoff {
                initial: Span::from_millis(initial), cap: Span::from_millis(cap), floor: Span::from_millis(floor),
                growth, jitter,
            };
            let base = b.base(n).as_millis();
            prop_assert!(base <= cap);
            let d = b.delay(n, last.map(Span::from_millis), None, JitterSeed(jitter_seed)).as_millis();
            prop_assert!((floor..=cap).contains(&d));
            match jitter {
                Jitter::None => prop_assert_eq!(d, base.max(floor)),
                Jitter::Full => prop_assert!(d <= base.max(floor)),
                Jitter::Equal => prop_assert!(d >= base / 2 && d <= base.max(floor)),
                Jitter::Decorrelated => prop_assert!(d >= initial.min(cap)),
            }
            let hinted = b.delay(n, None, hint.map(Span::from_millis), JitterSeed(jitter_seed)).as_millis();
            prop_assert!(hinted <= cap && hinted >= hint.unwrap_or(0).min(cap));
        }
    }
}
