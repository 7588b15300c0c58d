//! What this process measures about itself: latencies, utilisation, back-pressure. It is gone when the process ends; what
//! must survive is counted in a commit. There is one recorder per process, [`process`], so that every part records at
//! the source and nothing has to be passed around. Recording takes a few atomic additions: it neither allocates nor
//! waits. Rendering is `redrive::metrics`' part.

mod after_commit;
mod histogram;

pub(crate) use after_commit::AfterCommit;
pub use histogram::Histogram;

use redrive_core::metrics::{Counter, Gauge, Snapshot, Timer};
use redrive_core::time::{Span, Time};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How many seconds a meter remembers.
const SECONDS: usize = 16;
/// The number of bits of a slot that count.
const COUNT_BITS: u32 = 24;

/// The rate of an event over the last few seconds.
#[derive(Debug)]
pub struct Meter {
    /// The second that each slot counts, above [`COUNT_BITS`], and its count below.
    slots: [AtomicU64; SECONDS],
}

impl Meter {
    const fn new() -> Self {
        Self { slots: [const { AtomicU64::new(0) }; SECONDS] }
    }

    /// Counts one event.
    pub fn mark(&self, now: Time) {
        let second = second(now);
        let Some(slot) = self.slots.get(slot_of(second)) else { return };
        let fresh = (second << COUNT_BITS) | 1;
        let next =
            |held: u64| Some(if held >> COUNT_BITS == second { held.saturating_add(1) } else { fresh });
        // The closure always returns a value, so this cannot fail.
        let _ = slot.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// The average rate over the last ten whole seconds before `now`.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a count of ten seconds; 53 bits are enough")]
    pub fn per_second(&self, now: Time) -> f64 {
        const OVER: u64 = 10;
        let now = second(now);
        let recent = |held: &u64| (1..=OVER).contains(&now.saturating_sub(held >> COUNT_BITS));
        let slots = self.slots.iter().map(|slot| slot.load(Ordering::Relaxed));
        let counted: u64 = slots.filter(recent).map(|held| held & ((1 << COUNT_BITS) - 1)).sum();
        counted as f64 / OVER as f64
    }
}

fn second(now: Time) -> u64 {
    u64::try_from(now.as_millis() / 1_000).unwrap_or(0)
}

fn slot_of(second: u64) -> usize {
    usize::try_from(second % SECONDS as u64).unwrap_or(0)
}

/// Everything a process measures about itself.
#[derive(Debug)]
pub struct Recorder {
    timers: [Histogram; Timer::ALL.len()],
    counters: [AtomicU64; Counter::ALL.len()],
    gauges: [AtomicU64; Gauge::ALL.len()],
    /// Deaths of messages.
    pub deaths: Meter,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// An empty recorder.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            timers: [const { Histogram::new() }; Timer::ALL.len()],
            counters: [const { AtomicU64::new(0) }; Counter::ALL.len()],
            gauges: [const { AtomicU64::new(0) }; Gauge::ALL.len()],
            deaths: Meter::new(),
        }
    }

    /// Records a duration.
    pub fn record(&self, timer: Timer, duration: Duration) {
        if let Some(histogram) = self.timer(timer) {
            histogram.record(duration);
        }
    }

    /// Records a span of the store's clock.
    pub fn record_span(&self, timer: Timer, span: Span) {
        self.record(timer, span.to_std());
    }

    /// Adds to a counter.
    pub fn count(&self, counter: Counter, by: u64) {
        if let Some(counter) = self.counters.get(counter as usize) {
            counter.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Raises a gauge.
    pub fn raise(&self, gauge: Gauge, by: u64) {
        if let Some(gauge) = self.gauges.get(gauge as usize) {
            gauge.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Lowers a gauge, but never below zero.
    pub fn lower(&self, gauge: Gauge, by: u64) {
        if let Some(gauge) = self.gauges.get(gauge as usize) {
            let less = |held: u64| Some(held.saturating_sub(by));
            let _ = gauge.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// The distribution of a timer.
    #[must_use]
    pub fn timer(&self, timer: Timer) -> Option<&Histogram> {
        self.timers.get(timer as usize)
    }

    /// The present values.
    #[must_use]
    pub fn snapshot(&self, now: Time) -> Snapshot {
        let timers =
            Timer::ALL.iter().zip(&self.timers).map(|(timer, h)| (timer.definition().name, h.snapshot()));
        let counters = Counter::ALL.iter().zip(&self.counters);
        let gauges = Gauge::ALL.iter().zip(&self.gauges);
        Snapshot {
            timers: timers.filter(|(_, h)| h.count > 0).map(|(name, h)| (name.to_owned(), h)).collect(),
            counters: counters
                .map(|(c, n)| (c.definition().name.to_owned(), n.load(Ordering::Relaxed)))
                .collect(),
            gauges: gauges
                .map(|(g, n)| (g.definition().name.to_owned(), n.load(Ordering::Relaxed)))
                .collect(),
            dead_per_second: self.deaths.per_second(now),
        }
    }
}

static PROCESS: Recorder = Recorder::new();

/// The recorder of this process.
#[must_use]
pub fn process() -> &'static Recorder {
    &PROCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_forgets_old_seconds() {
        let recorder = Recorder::new();
        for second in 0..30 {
            recorder.deaths.mark(Time::from_millis(second * 1_000));
        }
        assert!((recorder.deaths.per_second(Time::from_millis(30_000)) - 1.0).abs() < f64::EPSILON);
        assert!(recorder.deaths.per_second(Time::from_millis(300_000)).abs() < f64::EPSILON);
    }

    #[test]
    fn a_snapshot_has_what_was_recorded() {
        let recorder = Recorder::new();
        recorder.record(Timer::Settle, Duration::from_millis(3));
        recorder.record_span(Timer::ResolutionTime, Span::from_secs(60));
        recorder.count(Counter::CapturedDropped, 2);
        recorder.raise(Gauge::WorkerBusy, 2);
        recorder.lower(Gauge::WorkerBusy, 5);
        recorder.raise(Gauge::CapturedBuffered, 7);
        let seen = recorder.snapshot(Time::ZERO);
        let max = |timer| seen.timer(timer).map(|h| h.max_us);
        assert_eq!((max(Timer::Settle), max(Timer::ResolutionTime)), (Some(3_000), Some(60_000_000)));
        assert_eq!((seen.timers.len(), max(Timer::Enqueue)), (2, None));
        let counter = |one: Counter| seen.counters[one.definition().name];
        assert_eq!((counter(Counter::CapturedDropped), counter(Counter::BackPressure)), (2, 0));
        let gauge = |one: Gauge| seen.gauges[one.definition().name];
        assert_eq!([Gauge::WorkerBusy, Gauge::CapturedBuffered, Gauge::WorkerSlots].map(gauge), [0, 7, 0]);
    }
}
