//! Measurements: many tasks do the same thing for a while; what comes out is a rate and a histogram of how
//! long each call took. Runs are repeated, the median is what is reported and the spread stands beside it.

use super::printer::Row;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::{Duration, Instant};

/// One run of one measurement.
pub(super) struct Run {
    pub(super) items: u64,
    pub(super) took: Duration,
    pub(super) calls: Histogram<u64>,
    /// Bare-limit rate of the same run, for the ratio.
    pub(super) bare: Option<f64>,
}

/// Calls measured by one task.
pub(super) struct Stopwatch {
    calls: Histogram<u64>,
}

impl Stopwatch {
    pub(super) fn new() -> Self {
        // Up to a minute in microseconds at three digits; the bounds are constants and cannot be wrong.
        Self { calls: new_histogram() }
    }

    /// How many calls were noted.
    pub(super) fn count(&self) -> u64 {
        self.calls.len()
    }

    /// What was noted.
    pub(super) fn into_calls(self) -> Histogram<u64> {
        self.calls
    }

    /// Notes one call that began then.
    pub(super) fn lap(&mut self, began: Instant) {
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.calls.saturating_record(micros.max(1));
    }
}

pub(super) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).unwrap_or_else(|_| {
        // The widest histogram there is, should the library ever change its mind about these bounds.
        let mut any = Histogram::new(3).unwrap_or_else(|_| unreachable_histogram());
        any.auto(true);
        any
    })
}

#[expect(clippy::panic, reason = "three digits are always a legal precision")]
fn unreachable_histogram() -> Histogram<u64> {
    panic!("a histogram of three digits cannot be made")
}

/// Puts the work of several tasks together.
pub(super) fn run_of(items: u64, took: Duration, watches: Vec<Stopwatch>) -> Run {
    let mut calls = new_histogram();
    for watch in watches {
        let _ = calls.add(&watch.calls);
    }
    Run { items, took, calls, bare: None }
}

impl Run {
    pub(super) fn rate(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
        let items = self.items as f64;
        items / self.took.as_secs_f64().max(1e-9)
    }
}

/// One line of the report.
#[derive(Serialize)]
pub(super) struct Figure {
    what: String,
    /// What success meant.
    durability: String,
    batch: usize,
    runs: usize,
    per_second: f64,
    per_second_min: f64,
    per_second_max: f64,
    /// Median over the runs of this figure divided by the bare limit of the same run.
    of_bare: Option<f64>,
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
            p50_us: calls.value_at_quantile(0.50),
            p95_us: calls.value_at_quantile(0.95),
            p99_us: calls.value_at_quantile(0.99),
        }
    }
}

impl Row for Figure {
    const HEADINGS: &'static [&'static str] =
        &["what", "durability", "batch", "items/s", "min..max", "of bare", "p50 us", "p95 us", "p99 us"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.what.clone(),
            self.durability.clone(),
            self.batch.to_string(),
            format!("{:.0}", self.per_second),
            format!("{:.0}..{:.0}", self.per_second_min, self.per_second_max),
            self.of_bare.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
            self.p50_us.to_string(),
            self.p95_us.to_string(),
            self.p99_us.to_string(),
        ]
    }
}
