//! How long to wait before the next attempt. Pure arithmetic: the randomness is a number handed in, so the
//! same failure gets the same delay in the model, in a replay and on every backend.

use crate::error::Refusal;
use crate::ids::MessageId;
use crate::limits;
use crate::message::sane;
use crate::time::Span;
use serde::{Deserialize, Serialize};

/// A number that stands in for chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roll(pub u64);

impl Roll {
    /// The roll of one delivery of one message. Ids carry at least 62 random bits, so messages that fail together
    /// spread; the same delivery always rolls the same.
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

    /// A whole number from `low` to `high`, both included.
    #[must_use]
    pub fn between(self, low: u64, high: u64) -> u64 {
        let Some(width) = high.checked_sub(low) else { return low };
        let range = u128::from(width) + 1;
        let scaled = (u128::from(self.0) * range) >> 64;
        low + u64::try_from(scaled).unwrap_or(width)
    }
}

/// How the delay grows with the number of the retry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "strategy")]
pub enum Growth {
    /// Always `initial`.
    Fixed,
    /// `initial * n`.
    Linear,
    /// `initial * multiplier^(n-1)`.
    Exponential {
        /// At least 1.
        multiplier: f64,
    },
    /// `initial * F(n)` with F = 1, 1, 2, 3, 5…
    Fibonacci,
    /// The n-th entry; the last one repeats.
    List {
        /// The delays.
        #[serde(rename = "delays_ms", alias = "delays")]
        delays: Vec<Span>,
    },
}

/// How chance changes a delay `d`.
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

/// When to try again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Backoff {
    /// The delay before the first retry.
    #[serde(rename = "initial_ms", alias = "initial")]
    pub initial: Span,
    /// No delay is longer.
    #[serde(rename = "cap_ms", alias = "cap")]
    pub cap: Span,
    /// No delay is shorter, whatever jitter says.
    #[serde(rename = "floor_ms", alias = "floor")]
    pub floor: Span,
    /// How it grows.
    #[serde(flatten)]
    pub growth: Growth,
    /// How chance changes it.
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

/// The n-th Fibonacci number with F(1) = F(2) = 1, stopping at the largest that fits.
fn fibonacci(n: u32) -> u64 {
    let (mut a, mut b) = (0_u64, 1_u64);
    // F(94) no longer fits; going on would only repeat the maximum.
    for _ in 0..n.min(94) {
        (a, b) = (b, a.saturating_add(b));
    }
    a
}

impl Backoff {
    /// The delay before retry `n` (1 is the first), before chance and server hints, never above the cap.
    #[must_use]
    pub fn base(&self, n: u32) -> Span {
        let n = n.max(1);
        let raw = match &self.growth {
            Growth::Fixed => self.initial,
            Growth::Linear => self.initial.times(u64::from(n)),
            Growth::Fibonacci => self.initial.times(fibonacci(n)),
            Growth::Exponential { multiplier } => {
                // Doubling past the cap is pointless, and the power of a huge n is infinite: both end at the cap.
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

    /// The delay before retry `n`: growth, then chance, then a server's Retry-After as a lower bound, all
    /// within floor and cap. `last` is the delay before the previous retry.
    #[must_use]
    pub fn delay(&self, n: u32, last: Option<Span>, retry_after: Option<Span>, roll: Roll) -> Span {
        let base = self.base(n).as_millis();
        let jittered = match self.jitter {
            Jitter::None => base,
            Jitter::Full => roll.between(0, base),
            Jitter::Equal => base / 2 + roll.between(0, base - base / 2),
            Jitter::Decorrelated => {
                let last = last.unwrap_or(self.initial);
                roll.between(self.initial.as_millis(), last.times(3).min(self.cap).as_millis())
            }
        };
        let asked = retry_after.unwrap_or(Span::ZERO);
        Span::from_millis(jittered).max(asked).max(self.floor).min(self.cap)
    }

    /// Refuses what cannot be meant.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming the setting.
    pub fn check(&self) -> Result<(), Refusal> {
        sane("backoff.initial", self.initial, Span::ZERO, limits::SPAN_MAX)?;
        sane("backoff.cap", self.cap, Span::from_millis(1), limits::SPAN_MAX)?;
        sane("backoff.floor", self.floor, Span::ZERO, self.cap)?;
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
        assert_eq!(b.delay(1, None, Some(Span::from_secs(60)), Roll(0)), Span::from_secs(60));
        assert_eq!(b.delay(1, None, Some(Span::from_days(9_000)), Roll(0)), b.cap);
        assert_eq!(b.delay(1, None, Some(Span::ZERO), Roll(0)), Span::from_secs(1));
    }

    #[test]
    fn rolls_of_neighbouring_deliveries_differ() {
        let id = MessageId::new(1, [3; 10]);
        assert_ne!(Roll::of(id, 1), Roll::of(id, 2));
        assert_eq!(Roll::of(id, 1), Roll::of(id, 1));
        assert_ne!(Roll::of(id, 1), Roll::of(MessageId::new(1, [4; 10]), 1));
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
            roll in any::<u64>(),
        ) {
            let floor = floor.min(cap);
            let b = Backoff {
                initial: Span::from_millis(initial), cap: Span::from_millis(cap), floor: Span::from_millis(floor),
                growth, jitter,
            };
            let base = b.base(n).as_millis();
            prop_assert!(base <= cap);
            let d = b.delay(n, last.map(Span::from_millis), None, Roll(roll)).as_millis();
            prop_assert!((floor..=cap).contains(&d));
            match jitter {
                Jitter::None => prop_assert_eq!(d, base.max(floor)),
                Jitter::Full => prop_assert!(d <= base.max(floor)),
                Jitter::Equal => prop_assert!(d >= base / 2 && d <= base.max(floor)),
                Jitter::Decorrelated => prop_assert!(d >= initial.min(cap)),
            }
            let hinted = b.delay(n, None, hint.map(Span::from_millis), Roll(roll)).as_millis();
            prop_assert!(hinted <= cap && hinted >= hint.unwrap_or(0).min(cap));
        }
    }
}
