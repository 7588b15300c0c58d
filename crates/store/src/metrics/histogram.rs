//! A distribution made of atomics. Durations are counted by their two leading decimal digits, so a quantile is off by at
//! most a tenth, and every bound with two significant digits is the exact end of a bucket. Recording neither allocates
//! nor waits, so it can be done from anywhere.

use redrive_core::metrics::HistogramSnapshot;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The first hundred buckets are one microsecond wide.
const SMALL: usize = 100;
/// Buckets per power of ten above that: the leading digits 10 to 99.
const STEPS: usize = 90;
/// The number of buckets: up to three years. Longer durations count as that.
const BUCKETS: usize = SMALL + 12 * STEPS;

/// A distribution of durations.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
    max_us: AtomicU64,
}

/// The bucket of a value. A bucket includes its end, as the bounds of Prometheus do.
fn bucket(us: u64) -> usize {
    let below = us.saturating_sub(1);
    let Some(power) = below.checked_ilog10().filter(|power| *power >= 2) else {
        return usize::try_from(below).unwrap_or(usize::MAX);
    };
    let leading = usize::try_from(below / 10_u64.pow(power - 1)).unwrap_or(STEPS);
    (SMALL + (power as usize - 2) * STEPS + leading - 10).min(BUCKETS - 1)
}

/// The end of a bucket: the highest value in it.
fn end(bucket: usize) -> u64 {
    match bucket.checked_sub(SMALL) {
        None => bucket as u64 + 1,
        Some(above) => {
            let power = u32::try_from(above / STEPS).unwrap_or(0) + 1;
            (above % STEPS + 11) as u64 * 10_u64.pow(power)
        }
    }
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
    pub fn record(&self, duration: Duration) {
        let us = u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX);
        if let Some(bucket) = self.buckets.get(bucket(us)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_us.fetch_add(us, Ordering::Relaxed);
        self.max_us.fetch_max(us, Ordering::Relaxed);
    }

    /// How many durations were recorded up to each of these ascending bounds, in microseconds, and above the one before
    /// it; at the end, how many were above them all.
    #[must_use]
    pub fn counts_up_to(&self, bounds_us: &[u64]) -> Vec<u64> {
        let mut counts = vec![0; bounds_us.len() + 1];
        for (at, held) in self.buckets.iter().enumerate() {
            let end = end(at);
            let slot = bounds_us.partition_point(|bound| *bound < end);
            if let Some(count) = counts.get_mut(slot) {
                *count += held.load(Ordering::Relaxed);
            }
        }
        counts
    }

    /// The sum of all durations, in microseconds.
    #[must_use]
    pub fn sum_us(&self) -> u64 {
        self.sum_us.load(Ordering::Relaxed)
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
                    return end(at).min(max_us);
                }
            }
            0
        };
        HistogramSnapshot {
            count,
            sum_us: self.sum_us(),
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

    #[test]
    fn every_value_is_within_a_tenth_of_the_end_of_its_bucket() {
        for us in (1..100_000).chain((17..46).map(|power| (1 << power) + 12_345)) {
            let end = end(bucket(us));
            assert!(end >= us && end - us <= us / 10, "{us} is in a bucket up to {end}");
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
        let ends: Vec<u64> = (0..BUCKETS).map(end).collect();
        assert!(ends.is_sorted_by(|a, b| a < b), "{ends:?}");
    }

    #[test]
    fn a_bound_with_two_digits_splits_exactly() {
        let histogram = Histogram::new();
        for us in [9_999, 10_000, 10_001, 25_000, 26_000] {
            histogram.record(Duration::from_micros(us));
        }
        histogram.record(Duration::from_nanos(10_000_001));
        assert_eq!(histogram.counts_up_to(&[10_000, 25_000]), [2, 3, 1]);
        assert_eq!(Histogram::new().counts_up_to(&[]), [0]);
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
            assert!(got >= wanted && got <= wanted + wanted / 10, "{got} instead of {wanted}");
        }
    }
}
