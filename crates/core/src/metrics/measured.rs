//! What one process measures about itself: the names of these metrics, and their values as plain data. The store records
//! them and workers do; nothing is recorded here. What must survive the process is an [`Event`](super::Event).

use super::{Definition, Kind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Declares metrics of a process: a name and its meaning.
macro_rules! measured {
    ($(#[$meta:meta])* $name:ident, $kind:ident, $unit:literal,
        { $($(#[doc = $help:literal])+ $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[doc = $help])+ $variant),+ }

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
        }
    };
}

measured! {
    /// Distributions of durations.
    Timer, Histogram, "seconds", {
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
        /// The time from the death of a message until its letter was resolved, by a person or by a redrive that worked.
        ResolutionTime = "redrive_resolution_time_seconds",
    }
}

measured! {
    /// Counters of one process.
    Counter, Counter, "events", {
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
    Gauge, Gauge, "items", {
        /// Deliveries the workers of this process can work on at once.
        WorkerSlots = "redrive_worker_slots",
        /// Deliveries they are working on.
        WorkerBusy = "redrive_worker_busy",
        /// Captured operations in memory that wait for the store.
        CapturedBuffered = "redrive_captured_buffered",
    }
}

impl Timer {
    /// The upper bounds of the buckets it is exported with, in microseconds. Each has two significant digits, which is
    /// how finely durations are recorded, so that no bucket has to be estimated.
    #[must_use]
    pub const fn bounds_us(self) -> &'static [u64] {
        match self {
            Self::Enqueue | Self::Lease | Self::Settle => &CALL_BOUNDS_US,
            Self::Handler | Self::LetterHandler => &WORK_BOUNDS_US,
            Self::LetterAge | Self::ResolutionTime => &AGE_BOUNDS_US,
        }
    }
}

const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;

/// From 100 microseconds to 10 seconds.
const CALL_BOUNDS_US: [u64; 16] = [
    100,
    250,
    500,
    MS,
    2_500,
    5 * MS,
    10 * MS,
    25 * MS,
    50 * MS,
    100 * MS,
    250 * MS,
    500 * MS,
    SECOND,
    2_500 * MS,
    5 * SECOND,
    10 * SECOND,
];

/// From a millisecond to an hour.
const WORK_BOUNDS_US: [u64; 14] = [
    MS,
    5 * MS,
    10 * MS,
    50 * MS,
    100 * MS,
    500 * MS,
    SECOND,
    5 * SECOND,
    10 * SECOND,
    30 * SECOND,
    60 * SECOND,
    300 * SECOND,
    1_800 * SECOND,
    3_600 * SECOND,
];

/// From a second to 30 days: a minute, an hour, ten hours, just over a day, a week and a month among them.
const AGE_BOUNDS_US: [u64; 10] = [
    SECOND,
    10 * SECOND,
    60 * SECOND,
    600 * SECOND,
    3_600 * SECOND,
    36_000 * SECOND,
    90_000 * SECOND,
    260_000 * SECOND,
    610_000 * SECOND,
    2_600_000 * SECOND,
];

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

impl Snapshot {
    /// One distribution, if it has values.
    #[must_use]
    pub fn timer(&self, timer: Timer) -> Option<&HistogramSnapshot> {
        self.timers.get(timer.definition().name)
    }
}
