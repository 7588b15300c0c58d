//! What one process measures about itself: latencies, utilisation, back-pressure. It is gone when the process ends;
//! what must survive is an [`Event`](super::Event). There is one registry per process, [`process`], so that every part
//! records at the source and nothing has to be passed around.

use super::histogram::{Histogram, HistogramSnapshot};
use super::{Definition, Kind};
use crate::sync::{AtomicU64, Ordering};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Declares metrics of a process: a name and its meaning.
macro_rules! measured {
    ($(#[$meta:meta])* $name:ident, $kind:ident, $unit:literal, $count:ident,
        { $($(#[doc = $help:literal])+ $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[doc = $help])+ $variant),+ }

        /// The number of these metrics.
        const $count: usize = [$($text),+].len();

        impl $name {
            /// All of them, in declaration order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its name and meaning.
            #[must_use]
            pub const fn definition(self) -> Definition {
                match self { $(Self::$variant => Definition {
                    name: $text,
                    kind: Kind::$kind,
                    unit: $unit,
                    labels: &[],
                    help: concat!($($help),+),
                }),+ }
            }

            fn at(self) -> usize {
                Self::ALL.iter().position(|one| *one == self).unwrap_or(0)
            }
        }
    };
}

measured! {
    /// Distributions of durations.
    Timer, Histogram, "seconds", TIMERS, {
        /// From the call of enqueue to its durable answer.
        Enqueue = "redrive_enqueue_seconds",
        /// From the call of lease to its durable answer.
        Lease = "redrive_lease_seconds",
        /// From the call of settle to its durable answer.
        Settle = "redrive_settle_seconds",
        /// A handler's work on one message.
        Handler = "redrive_handler_seconds",
        /// A consumer's work on one dead letter.
        LetterHandler = "redrive_letter_handler_seconds",
        /// The age of a dead letter when a consumer gets it.
        LetterAge = "redrive_letter_age_seconds",
    }
}

measured! {
    /// Counters of one process.
    Counter, Counter, "events", COUNTERS, {
        /// Calls that had to wait because the store's writer had too many before them.
        BackPressure = "redrive_backpressure_total",
        /// Picks made out of turn because a message had waited too long.
        Starvation = "redrive_starvation_total",
        /// Captured operations lost because the store could not be written and there was no room for them.
        CapturedDropped = "redrive_captured_dropped_total",
    }
}

measured! {
    /// Gauges of one process.
    Gauge, Gauge, "items", GAUGES, {
        /// Deliveries the workers of this process can work on at once.
        WorkerSlots = "redrive_worker_slots",
        /// Deliveries they are working on.
        WorkerBusy = "redrive_worker_busy",
        /// Captured operations in memory that wait for the store.
        CapturedBuffered = "redrive_captured_buffered",
    }
}

/// How many seconds a meter remembers.
const SECONDS: usize = 16;

/// The rate of an event over the last few seconds.
#[derive(Debug)]
pub struct Meter {
    /// The second that each slot counts, above [`COUNT_BITS`], and its count below.
    slots: [AtomicU64; SECONDS],
}

/// The number of bits of a slot that count.
const COUNT_BITS: u32 = 24;

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
    pub fn per_second(&self, now: Time) -> f64 {
        const OVER: u64 = 10;
        let now = second(now);
        let recent = |held: &u64| (1..=OVER).contains(&now.saturating_sub(held >> COUNT_BITS));
        let slots = self.slots.iter().map(|slot| slot.load(Ordering::Relaxed));
        let counted: u64 = slots.filter(recent).map(|held| held & ((1 << COUNT_BITS) - 1)).sum();
        super::stats::ratio(counted, OVER).unwrap_or(0.0)
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
pub struct Registry {
    timers: [Histogram; TIMERS],
    counters: [AtomicU64; COUNTERS],
    gauges: [AtomicU64; GAUGES],
    /// Deaths of messages.
    pub deaths: Meter,
}

/// What a process measured, at one moment, by the names of the table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Distributions by name; empty ones are left out.
    pub timers: BTreeMap<String, HistogramSnapshot>,
    /// Counters by name.
    pub counters: BTreeMap<String, u64>,
    /// Gauges by name.
    pub gauges: BTreeMap<String, u64>,
    /// Deaths per second over the last ten seconds.
    pub dead_per_second: f64,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl Registry {
    /// An empty registry.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            timers: [const { Histogram::new() }; TIMERS],
            counters: [const { AtomicU64::new(0) }; COUNTERS],
            gauges: [const { AtomicU64::new(0) }; GAUGES],
            deaths: Meter::new(),
        }
    }

    /// Records a duration.
    pub fn record(&self, timer: Timer, duration: std::time::Duration) {
        if let Some(histogram) = self.timers.get(timer.at()) {
            histogram.record(duration);
        }
    }

    /// Records a span of the store's clock.
    pub fn record_span(&self, timer: Timer, span: Span) {
        if let Some(histogram) = self.timers.get(timer.at()) {
            histogram.record_span(span);
        }
    }

    /// Adds to a counter.
    pub fn count(&self, counter: Counter, by: u64) {
        if let Some(counter) = self.counters.get(counter.at()) {
            counter.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Raises a gauge.
    pub fn raise(&self, gauge: Gauge, by: u64) {
        if let Some(gauge) = self.gauges.get(gauge.at()) {
            gauge.fetch_add(by, Ordering::Relaxed);
        }
    }

    /// Lowers a gauge, but never below zero.
    pub fn lower(&self, gauge: Gauge, by: u64) {
        if let Some(gauge) = self.gauges.get(gauge.at()) {
            let less = |held: u64| Some(held.saturating_sub(by));
            let _ = gauge.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
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

impl Snapshot {
    /// One distribution, if it has values.
    #[must_use]
    pub fn timer(&self, timer: Timer) -> Option<&HistogramSnapshot> {
        self.timers.get(timer.definition().name)
    }
}

static PROCESS: Registry = Registry::new();

/// The registry of this process.
#[must_use]
pub fn process() -> &'static Registry {
    &PROCESS
}
