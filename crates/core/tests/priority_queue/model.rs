//! The queue against a simple model: a list of messages and the pure scheduler. Both get the same calls and must give
//! the same answers, pick for pick, including the record of each decision.

use proptest::prelude::*;
use redrive_core::priority::Priority;
use redrive_core::priority_queue::{Accepted, Dequeued, Overdue, Picked, PriorityQueue, Rejected};
use redrive_core::scheduler::{Head, Heads, Load, PickReason, Scheduler};
use redrive_core::time::{Span, Time};

#[derive(Clone, Debug)]
enum Step {
    Enqueue { level: usize, due_in: Option<u64> },
    Dequeue,
    Tick(u64),
    Observe { memory: f32 },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    n: u64,
    ready_at: Time,
    deadline: Option<Time>,
}

struct Model {
    capacity: usize,
    now: Time,
    levels: [Vec<Entry>; 5],
    scheduler: Scheduler,
}

impl Model {
    fn enqueue(&mut self, entry: Entry, level: usize) -> Result<Accepted, Rejected<u64>> {
        if level == 4 && self.scheduler.in_emergency() {
            return Err(Rejected::Emergency(entry.n));
        }
        if self.levels[level].len() == self.capacity {
            return Err(Rejected::Full(entry.n));
        }
        self.levels[level].push(entry);
        Ok(Accepted { back_pressure: self.levels[level].len() * 10 >= self.capacity * 8 })
    }

    /// The message with the earliest deadline among some levels: its deadline, level and index.
    fn earliest(&self, levels: usize) -> Option<(Time, usize, usize)> {
        let all = self.levels.iter().take(levels).enumerate().flat_map(|(level, entries)| {
            let dated = entries.iter().enumerate().filter_map(|(i, e)| e.deadline.map(|d| (d, i)));
            dated.map(move |(deadline, i)| (deadline, level, i))
        });
        all.min()
    }

    fn dequeue(&mut self) -> Dequeued<u64> {
        let now = self.now;
        if let Some((deadline, level, i)) = self.earliest(5).filter(|(d, ..)| *d <= now) {
            let entry = self.levels[level].remove(i);
            let waited = now.since(entry.ready_at);
            let level = Priority::from_level(level);
            return Dequeued::Expired(Overdue { item: entry.n, level, deadline, waited });
        }
        let urgent = self.earliest(if self.scheduler.in_emergency() { 2 } else { 5 });
        let heads = Heads {
            levels: std::array::from_fn(|level| {
                self.levels[level].first().map(|e| Head { ready_at: e.ready_at, seq: 0 })
            }),
            urgent: urgent.map(|(deadline, level, _)| (Priority::from_level(level), deadline)),
        };
        let Some(decision) = self.scheduler.pick(&heads, now) else {
            let empty = self.levels.iter().all(Vec::is_empty);
            return if empty { Dequeued::Empty } else { Dequeued::Held };
        };
        let at = match decision.reason {
            PickReason::DeadlineApproaching => urgent.unwrap().2,
            PickReason::PriorityOrder
            | PickReason::StarvationPrevention
            | PickReason::LoadBalancing
            | PickReason::EmergencyMode => 0,
        };
        let entry = self.levels[decision.level.level()].remove(at);
        let waited = now.since(entry.ready_at);
        Dequeued::Item(Picked { item: entry.n, decision, waited, deadline: entry.deadline })
    }
}

fn step() -> impl Strategy<Value = Step> {
    let due_in = prop_oneof![2 => Just(None), 1 => (0_u64..20_000).prop_map(Some)];
    prop_oneof![
        8 => (0_usize..5, due_in).prop_map(|(level, due_in)| Step::Enqueue { level, due_in }),
        7 => Just(Step::Dequeue),
        2 => (0_u64..6_000).prop_map(Step::Tick),
        1 => prop_oneof![Just(0.95_f32), Just(0.1), Just(0.1), Just(0.85)].prop_map(|memory| Step::Observe { memory }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// I29: with one consumer the queue is the pure scheduler, pick for pick.
    #[test]
    fn i29_the_queue_is_the_pure_scheduler_pick_for_pick(
        steps in proptest::collection::vec(step(), 1..600),
        capacity in 1_usize..80,
    ) {
        let queue = PriorityQueue::with_capacity(capacity);
        let mut model = Model {
            capacity,
            now: Time::ZERO,
            levels: std::array::from_fn(|_| Vec::new()),
            scheduler: Scheduler::new(),
        };
        let (mut handed_out, mut expired, mut overflowed, mut refused) = (0, 0, 0, 0);
        for (n, step) in (0_u64..).zip(&steps) {
            match *step {
                Step::Enqueue { level, due_in } => {
                    let deadline = due_in.map(|ms| model.now.plus(Span::from_millis(ms)));
                    let expected = model.enqueue(Entry { n, ready_at: model.now, deadline }, level);
                    let priority = Priority::from_level(level);
                    let got = match deadline {
                        Some(deadline) => queue.enqueue_by(n, priority, deadline),
                        None => queue.enqueue(n, priority),
                    };
                    overflowed += u64::from(matches!(got, Err(Rejected::Full(_))));
                    refused += u64::from(matches!(got, Err(Rejected::Emergency(_))));
                    prop_assert_eq!(got, expected);
                }
                Step::Dequeue => {
                    let got = queue.dequeue();
                    handed_out += u64::from(matches!(got, Dequeued::Item(_)));
                    expired += u64::from(matches!(got, Dequeued::Expired(_)));
                    prop_assert_eq!(got, model.dequeue());
                }
                Step::Tick(ms) => {
                    model.now = model.now.plus(Span::from_millis(ms));
                    queue.tick(model.now);
                }
                Step::Observe { memory } => {
                    let load = Load { memory, cpu: 0.0 };
                    model.scheduler.observe(load, model.now);
                    prop_assert_eq!(queue.observe(load), model.scheduler.in_emergency());
                }
            }
        }
        let stats = Priority::ALL.map(|p| queue.stats(p));
        for (level, s) in stats.iter().enumerate() {
            prop_assert_eq!(s.depth, model.levels[level].len() as u64);
            prop_assert_eq!(s.enqueued, s.dequeued + s.expired + s.depth);
        }
        prop_assert_eq!(stats.iter().map(|s| s.dequeued).sum::<u64>(), handed_out);
        prop_assert_eq!(stats.iter().map(|s| s.expired).sum::<u64>(), expired);
        prop_assert_eq!(stats.iter().map(|s| s.overflowed).sum::<u64>(), overflowed);
        prop_assert_eq!(stats.iter().map(|s| s.refused).sum::<u64>(), refused);
    }
}
