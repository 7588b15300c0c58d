//! A distribution made of atomics: eight buckets per power of two, so a quantile is off by at most an eighth. Recording
//! neither allocates nor waits, so it can be done from anywhere.

use crate::sync::{AtomicU64, Ordering};
use crate::time::Span;
use serde::{Deserialize, Serialize};

/// The number of buckets per power of two.
const STEPS: u64 = 8;
/// The number of buckets: microseconds up to half a year. Longer durations count as that.
const BUCKETS: usize = 336;

/// A distribution of durations.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
    max_us: AtomicU64,
}

/// The state of a distribution at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistogramSnapshot {
    /// The number of durations recorded.
    pub count: u64,
    /// Their sum, in microseconds.
    pub sum_us: u64,
    /// The median: half of the durations were at most this long.
    pub p50_us: u64,
    /// 95% of the durations were at most this long.
    pub p95_us: u64,
    /// 99% of the durations were at most this long.
    pub p99_us: u64,
    /// The longest duration.
    pub max_us: u64,
}

impl HistogramSnapshot {
    /// The average, in microseconds.
    #[must_use]
    pub fn mean_us(&self) -> u64 {
        self.sum_us.checked_div(self.count).unwrap_or(0)
    }
}

/// The bucket of a value.
fn bucket(us: u64) -> usize {
    let index = if us < STEPS {
        us
    } else {
        let power = u64::from(us.ilog2());
        // The three bits below the highest one select the eighth.
        (power - 2) * STEPS + ((us >> (power - 3)) & (STEPS - 1))
    };
    usize::try_from(index).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// The highest value of a bucket.
fn top(bucket: usize) -> u64 {
    let index = bucket as u64;
    if index < STEPS {
        return index;
    }
    let power = index / STEPS + 2;
    let step = index % STEPS;
    ((STEPS + step + 1) << (power - 3)) - 1
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    /// An empty distribution.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum_us: AtomicU64::new(0),
            max_us: AtomicU64::new(0),
        }
    }

    /// Records one duration.
    pub fn record(&self, duration: std::time::Duration) {
        self.record_us(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX));
    }

    /// Records one span of the store's clock.
    pub fn record_span(&self, span: Span) {
        self.record_us(span.as_millis().saturating_mul(1_000));
    }

    fn record_us(&self, us: u64) {
        if let Some(bucket) = self.buckets.get(bucket(us)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_us.fetch_add(us, Ordering::Relaxed);
        self.max_us.fetch_max(us, Ordering::Relaxed);
    }

    /// The present state.
    #[must_use]
    pub fn snapshot(&self) -> HistogramSnapshot {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let max_us = self.max_us.load(Ordering::Relaxed);
        let quantile = |percent: u64| {
            let wanted = (count * percent).div_ceil(100);
            let mut seen = 0;
            for (at, n) in counts.iter().enumerate() {
                seen += n;
                if seen >= wanted && seen > 0 {
                    return top(at).min(max_us);
                }
            }
            0
        };
        HistogramSnapshot {
            count,
            sum_us: self.sum_us.load(Ordering::Relaxed),
            p50_us: quantile(50),
            p95_us: quantile(95),
            p99_us: quantile(99),
            max_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_value_is_within_an_eighth_of_its_bucket() {
        for us in (0..100_000).chain((17..42).map(|power| (1 << power) + 12_345)) {
            let top = top(bucket(us));
            assert!(top >= us && top - us <= us / 8, "{us} is in a bucket up to {top}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_near_what_was_recorded() {
        let histogram = Histogram::new();
        assert_eq!(histogram.snapshot(), HistogramSnapshot::default());
        for ms in 1..=1_000 {
            histogram.record(Duration::from_millis(ms));
        }
        let seen = histogram.snapshot();
        assert_eq!((seen.count, seen.mean_us(), seen.max_us), (1_000, 500_500, 1_000_000));
        for (got, wanted) in [(seen.p50_us, 500_000), (seen.p95_us, 950_000), (seen.p99_us, 990_000)] {
            assert!(got >= wanted && got <= wanted + wanted / 8, "{got} instead of {wanted}");
        }
    }
}
