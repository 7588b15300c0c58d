//! The queue suite: the in-memory priority queue beside one bare bounded ring of the same capacity, on the
//! same threads, in the same run. One operation is one enqueue or one dequeue. It does not use the disk.

use super::printer::{Printer, Row};
use super::{BenchArgs, BenchError, BenchResult};
use crossbeam_queue::ArrayQueue;
use hdrhistogram::Histogram;
use redrive::core::limits;
use redrive::core::priority::Priority;
use redrive::core::time::{Span, Time};
use redrive::{Dequeued, PriorityQueue};
use serde::Serialize;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The numbers of producers, each with as many consumers.
const SIDES: [usize; 3] = [1, 2, 4];
/// One in this many operations is timed.
const SAMPLE_ONE_IN: u64 = 64;
/// One in this many messages has a deadline, in the mix with deadlines.
const DEADLINE_ONE_IN: u64 = 16;
/// The number of failed attempts that spin before the thread yields.
const SPINS: u32 = 16;

/// The result of an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Done,
    /// The queue is full or empty: the other side has to move first.
    Wait,
    /// Another thread was faster; try again.
    Again,
}

/// A queue to measure.
trait BenchQueue: Sync {
    fn put(&self, n: u64) -> Attempt;
    fn take(&self) -> Attempt;
    fn tick(&self, since_start: Duration);
}

struct BareRing(ArrayQueue<u64>);

impl BenchQueue for BareRing {
    fn put(&self, n: u64) -> Attempt {
        self.0.push(n).map_or(Attempt::Wait, |()| Attempt::Done)
    }

    fn take(&self) -> Attempt {
        self.0.pop().map_or(Attempt::Wait, |_| Attempt::Done)
    }

    fn tick(&self, _: Duration) {}
}

/// The priorities of the messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PriorityMix {
    /// Levels in proportion to their share of the picks, so that all levels have work.
    ByWeight,
    /// Like `ByWeight`, and one message in [`DEADLINE_ONE_IN`] has a deadline. One in four of these is urgent
    /// at once.
    WithDeadlines,
    /// The same number of messages on each level: the lower levels are always full, the upper ones nearly
    /// empty, and the producers wait for room on the lowest.
    Even,
}

impl PriorityMix {
    const ALL: [Self; 3] = [Self::ByWeight, Self::WithDeadlines, Self::Even];

    const fn name(self) -> &'static str {
        match self {
            Self::ByWeight => "priority queue",
            Self::WithDeadlines => "priority queue, 1 in 16 dated",
            Self::Even => "priority queue, even levels",
        }
    }

    fn priority(self, mixed: u64) -> Priority {
        match self {
            Self::Even => Priority::from_level(usize::try_from(mixed % 5).unwrap_or(0)),
            Self::ByWeight | Self::WithDeadlines => match mixed % 31 {
                0..16 => Priority::Critical,
                16..24 => Priority::High,
                24..28 => Priority::Normal,
                28..30 => Priority::Low,
                _ => Priority::Background,
            },
        }
    }
}

struct PriorityQueueBench {
    queue: PriorityQueue<u64>,
    mix: PriorityMix,
}

impl BenchQueue for PriorityQueueBench {
    fn put(&self, n: u64) -> Attempt {
        // Levels in an order that a branch predictor cannot learn.
        let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let priority = self.mix.priority(mixed);
        let result = if self.mix == PriorityMix::WithDeadlines && n.is_multiple_of(DEADLINE_ONE_IN) {
            let deadline = self.queue.now().plus(Span::from_millis(1_000 + mixed % 16_000));
            self.queue.enqueue_by(n, priority, deadline)
        } else {
            self.queue.enqueue(n, priority)
        };
        result.map_or(Attempt::Wait, |_| Attempt::Done)
    }

    fn take(&self) -> Attempt {
        match self.queue.dequeue() {
            Dequeued::Item(_) | Dequeued::Expired(_) => Attempt::Done,
            Dequeued::Empty | Dequeued::Held => Attempt::Wait,
            Dequeued::LostRace => Attempt::Again,
        }
    }

    fn tick(&self, since_start: Duration) {
        let ms = i64::try_from(since_start.as_millis()).unwrap_or(i64::MAX);
        self.queue.tick(Time::from_millis(ms));
    }
}

/// Runs the suite.
pub(super) fn run(printer: &Printer, args: &BenchArgs) -> BenchResult<()> {
    let messages = args.messages.unwrap_or(4_000_000);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    printer.note(&format!(
        "queue suite in memory: {} runs of {messages} messages, {} places per level, {cores} cores; latencies \
         are of one operation in {SAMPLE_ONE_IN} and include reading the clock, about {} ns",
        args.runs,
        limits::RING_DEFAULT,
        clock_cost()
    ));
    let mut figures = Vec::new();
    for side in SIDES {
        printer.note(&format!("{side} producers, {side} consumers"));
        let mut bare = Vec::new();
        let mut mixes = PriorityMix::ALL.map(|mix| (mix, Vec::new()));
        for number in 0..args.runs.max(1) {
            let first = args.seed.wrapping_add(u64::from(number)).wrapping_mul(messages);
            let ring = BareRing(ArrayQueue::new(limits::RING_DEFAULT * 5));
            let limit = drive(&ring, side, messages, first)?;
            let rate = limit.rate;
            bare.push(limit);
            for (mix, runs) in &mut mixes {
                let levels = PriorityQueueBench { queue: PriorityQueue::new(), mix: *mix };
                let run = drive(&levels, side, messages, first)?;
                runs.push(Run { of_bare: Some(run.rate / rate), ..run });
            }
        }
        figures.push(Figure::of("bare ring", side, cores, &bare));
        figures.extend(mixes.iter().map(|(mix, runs)| Figure::of(mix.name(), side, cores, runs)));
    }
    printer.figures(&figures)?;
    Ok(())
}

/// The median time between two readings of the clock.
fn clock_cost() -> u64 {
    let mut costs = nanos();
    for _ in 0..10_000 {
        lap(&mut costs, Instant::now());
    }
    costs.value_at_quantile(0.5)
}

/// One run of one queue.
struct Run {
    rate: f64,
    of_bare: Option<f64>,
    enqueue: Histogram<u64>,
    dequeue: Histogram<u64>,
}

fn nanos() -> Histogram<u64> {
    // Up to ten seconds in nanoseconds, at three digits, with a resizing histogram as fallback.
    Histogram::new_with_bounds(1, 10_000_000_000, 3).unwrap_or_else(|_| super::measure::new_histogram())
}

fn lap(times: &mut Histogram<u64>, began: Instant) {
    let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    times.saturating_record(nanos.max(1));
}

/// Moves the messages through the queue with `side` producers and as many consumers.
fn drive(queue: &impl BenchQueue, side: usize, messages: u64, first: u64) -> BenchResult<Run> {
    let share = messages / side as u64;
    let begin = Barrier::new(side * 2 + 1);
    let producing = AtomicUsize::new(side);
    let died = |_| BenchError::from("a bench thread panicked");
    std::thread::scope(|scope| {
        let producers: Vec<_> = (0..side as u64)
            .map(|number| {
                let (begin, producing) = (&begin, &producing);
                scope.spawn(move || {
                    begin.wait();
                    let times = produce(queue, first.wrapping_add(number * share), share, number == 0);
                    producing.fetch_sub(1, Ordering::Release);
                    times
                })
            })
            .collect();
        let consumers: Vec<_> = (0..side)
            .map(|_| {
                scope.spawn(|| {
                    begin.wait();
                    consume(queue, &producing)
                })
            })
            .collect();
        begin.wait();
        let began = Instant::now();
        let (mut enqueue, mut dequeue, mut moved) = (nanos(), nanos(), 0);
        for producer in producers {
            let _ = enqueue.add(&producer.join().map_err(died)?);
        }
        for consumer in consumers {
            let (times, count) = consumer.join().map_err(died)?;
            let _ = dequeue.add(&times);
            moved += count;
        }
        let took = began.elapsed().as_secs_f64().max(1e-9);
        if moved != share * side as u64 {
            let text = format!("{} messages went in and {moved} came out", share * side as u64);
            return Err(BenchError::from(text));
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
        let rate = (moved * 2) as f64 / took;
        Ok(Run { rate, of_bare: None, enqueue, dequeue })
    })
}

/// Waits a little longer after each failed attempt.
fn pause(failed: &mut u32) {
    *failed += 1;
    if *failed < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

fn produce(queue: &impl BenchQueue, first: u64, share: u64, ticks: bool) -> Histogram<u64> {
    let mut times = nanos();
    let start = Instant::now();
    for n in 0..share {
        let sampled = n.is_multiple_of(SAMPLE_ONE_IN);
        if sampled && ticks {
            queue.tick(start.elapsed());
        }
        let mut failed = 0;
        let mut began = sampled.then(Instant::now);
        loop {
            match queue.put(first.wrapping_add(n)) {
                Attempt::Done => break,
                Attempt::Again => std::thread::yield_now(),
                Attempt::Wait => {
                    pause(&mut failed);
                    // Waiting for room is not part of the enqueue time.
                    began = sampled.then(Instant::now);
                }
            }
        }
        if let Some(began) = began {
            lap(&mut times, began);
        }
    }
    times
}

fn consume(queue: &impl BenchQueue, producing: &AtomicUsize) -> (Histogram<u64>, u64) {
    let mut times = nanos();
    let mut moved = 0_u64;
    loop {
        let sampled = moved.is_multiple_of(SAMPLE_ONE_IN);
        let mut failed = 0;
        let mut began = sampled.then(Instant::now);
        loop {
            // Reads the flag first: a queue that is empty after the last producer left stays empty.
            let last = producing.load(Ordering::Acquire) == 0;
            match queue.take() {
                Attempt::Done => break,
                Attempt::Again => std::thread::yield_now(),
                Attempt::Wait if last => return (times, moved),
                Attempt::Wait => {
                    pause(&mut failed);
                    began = sampled.then(Instant::now);
                }
            }
        }
        if let Some(began) = began {
            lap(&mut times, began);
        }
        moved += 1;
    }
}

/// One row of the report.
#[derive(Serialize)]
struct Figure {
    what: &'static str,
    producers: usize,
    consumers: usize,
    cores: usize,
    runs: usize,
    /// Enqueues and dequeues per second.
    ops_per_second: f64,
    ops_per_second_min: f64,
    ops_per_second_max: f64,
    /// The median over the runs of this rate divided by the bare ring's in the same run.
    of_bare: Option<f64>,
    enqueue_p50_ns: u64,
    enqueue_p95_ns: u64,
    enqueue_p99_ns: u64,
    dequeue_p50_ns: u64,
    dequeue_p95_ns: u64,
    dequeue_p99_ns: u64,
}

impl Figure {
    fn of(what: &'static str, side: usize, cores: usize, runs: &[Run]) -> Self {
        let sorted = |values: &mut Vec<f64>| values.sort_by(f64::total_cmp);
        let mut rates: Vec<f64> = runs.iter().map(|run| run.rate).collect();
        let mut ratios: Vec<f64> = runs.iter().filter_map(|run| run.of_bare).collect();
        sorted(&mut rates);
        sorted(&mut ratios);
        let middle = |values: &[f64]| values.get(values.len() / 2).copied();
        let (mut enqueue, mut dequeue) = (nanos(), nanos());
        for run in runs {
            let _ = enqueue.add(&run.enqueue);
            let _ = dequeue.add(&run.dequeue);
        }
        Self {
            what,
            producers: side,
            consumers: side,
            cores,
            runs: runs.len(),
            ops_per_second: middle(&rates).unwrap_or(0.0),
            ops_per_second_min: rates.first().copied().unwrap_or(0.0),
            ops_per_second_max: rates.last().copied().unwrap_or(0.0),
            of_bare: middle(&ratios),
            enqueue_p50_ns: enqueue.value_at_quantile(0.50),
            enqueue_p95_ns: enqueue.value_at_quantile(0.95),
            enqueue_p99_ns: enqueue.value_at_quantile(0.99),
            dequeue_p50_ns: dequeue.value_at_quantile(0.50),
            dequeue_p95_ns: dequeue.value_at_quantile(0.95),
            dequeue_p99_ns: dequeue.value_at_quantile(0.99),
        }
    }
}

impl Row for Figure {
    const HEADINGS: &'static [&'static str] = &[
        "what",
        "threads",
        "ops/s",
        "min..max",
        "of bare",
        "enqueue p50/p95/p99 ns",
        "dequeue p50/p95/p99 ns",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.what.into(),
            format!("{}x{}", self.producers, self.consumers),
            format!("{:.0}", self.ops_per_second),
            format!("{:.0}..{:.0}", self.ops_per_second_min, self.ops_per_second_max),
            self.of_bare.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
            format!("{}/{}/{}", self.enqueue_p50_ns, self.enqueue_p95_ns, self.enqueue_p99_ns),
            format!("{}/{}/{}", self.dequeue_p50_ns, self.dequeue_p95_ns, self.dequeue_p99_ns),
        ]
    }
}
