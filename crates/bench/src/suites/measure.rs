//! Measurements: many tasks repeat the same call for a while, which gives a rate and a histogram of call
//! durations. Runs are repeated; the report shows the median and the spread.

use super::printer::Row;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::{Duration, Instant};

/// One run of one measurement.
pub(super) struct Run {
    pub(super) items: u64,
    pub(super) took: Duration,
    pub(super) calls: Histogram<u64>,
    /// The rate of the bare limit in the same run.
    pub(super) bare: Option<f64>,
    /// The processor time of this process, which other processes on the machine change less than the rate.
    pub(super) processor: Option<Duration>,
}

/// The durations of the calls of one task.
pub(super) struct Stopwatch {
    calls: Histogram<u64>,
}

impl Stopwatch {
    pub(super) fn new() -> Self {
        // Up to a minute in microseconds, at three digits. The bounds are constants and always valid.
        Self { calls: new_histogram() }
    }

    /// The number of recorded calls.
    pub(super) fn count(&self) -> u64 {
        self.calls.len()
    }

    /// The recorded durations.
    pub(super) fn into_calls(self) -> Histogram<u64> {
        self.calls
    }

    /// Records one call that began at this instant.
    pub(super) fn lap(&mut self, began: Instant) {
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.calls.saturating_record(micros.max(1));
    }
}

pub(super) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).unwrap_or_else(|_| {
        // Falls back to a histogram that resizes itself, should the library ever reject these bounds.
        let mut any = Histogram::new(3).unwrap_or_else(|_| unreachable_histogram());
        any.auto(true);
        any
    })
}

#[expect(clippy::panic, reason = "three digits are always a legal precision")]
fn unreachable_histogram() -> Histogram<u64> {
    panic!("failed to create a histogram of three digits")
}

/// Combines the measurements of several tasks.
pub(super) fn run_of(items: u64, took: Duration, watches: Vec<Stopwatch>) -> Run {
    let mut calls = new_histogram();
    for watch in watches {
        let _ = calls.add(&watch.calls);
    }
    Run { items, took, calls, bare: None, processor: None }
}

/// The processor time that this process has used so far, as the system counts it: in hundredths of a second.
pub(super) fn processor_time() -> Option<Duration> {
    const TICKS_PER_SECOND: u64 = 100;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program, in parentheses, may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |n: usize| fields.get(n)?.parse::<u64>().ok();
    Some(Duration::from_millis((ticks(11)? + ticks(12)?) * 1_000 / TICKS_PER_SECOND))
}

impl Run {
    /// The processor time for each item, in microseconds.
    fn processor_us(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
        let items = self.items.max(1) as f64;
        self.processor.map(|time| time.as_secs_f64() * 1e6 / items)
    }

    pub(super) fn rate(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
        let items = self.items as f64;
        items / self.took.as_secs_f64().max(1e-9)
    }
}

/// One row of the report.
#[derive(Serialize)]
pub(super) struct Figure {
    what: String,
    /// What an acknowledged call guarantees.
    durability: String,
    batch: usize,
    runs: usize,
    per_second: f64,
    per_second_min: f64,
    per_second_max: f64,
    /// The median over the runs of this rate divided by the bare limit of the same run.
    of_bare: Option<f64>,
    /// The median over the runs of the processor time for each item, of this process.
    processor_us: Option<f64>,
    p50_us: u64,
    p95_us: u64,
    p99_us: u64,
}

impl Figure {
    pub(super) fn of(what: &str, durability: &str, batch: usize, runs: &[Run]) -> Self {
        let mut rates: Vec<f64> = runs.iter().map(Run::rate).collect();
        rates.sort_by(f64::total_cmp);
        let mut ratios: Vec<f64> = runs.iter().filter_map(|r| r.bare.map(|bare| r.rate() / bare)).collect();
        ratios.sort_by(f64::total_cmp);
        let mut processor: Vec<f64> = runs.iter().filter_map(Run::processor_us).collect();
        processor.sort_by(f64::total_cmp);
        let middle = |sorted: &[f64]| sorted.get(sorted.len() / 2).copied();
        let mut calls = new_histogram();
        for run in runs {
            let _ = calls.add(&run.calls);
        }
        Self {
            what: what.into(),
            durability: durability.into(),
            batch,
            runs: runs.len(),
            per_second: middle(&rates).unwrap_or(0.0),
            per_second_min: rates.first().copied().unwrap_or(0.0),
            per_second_max: rates.last().copied().unwrap_or(0.0),
            of_bare: middle(&ratios),
            processor_us: middle(&processor),
            p50_us: calls.value_at_quantile(0.50),
            p95_us: calls.value_at_quantile(0.95),
            p99_us: calls.value_at_quantile(0.99),
        }
    }
}

impl Row for Figure {
    const HEADINGS: &'static [&'static str] = &[
        "what",
        "durability",
        "batch",
        "items/s",
        "min..max",
        "of bare",
        "cpu us",
        "p50 us",
        "p95 us",
        "p99 us",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.what.clone(),
            self.durability.clone(),
            self.batch.to_string(),
            format!("{:.0}", self.per_second),
            format!("{:.0}..{:.0}", self.per_second_min, self.per_second_max),
            self.of_bare.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
            self.processor_us.map_or_else(|| "-".into(), |time| format!("{time:.1}")),
            self.p50_us.to_string(),
            self.p95_us.to_string(),
            self.p99_us.to_string(),
        ]
    }
}
