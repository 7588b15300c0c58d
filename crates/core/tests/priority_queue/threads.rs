//! The queue under real threads: every message exactly once, in order of its producer, and counters that agree
//! with what the threads saw.

use redrive_core::priority::Priority;
use redrive_core::priority_queue::{Dequeued, PriorityQueue, Rejected};
use redrive_core::time::Time;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const PRODUCERS: u64 = 4;
const CONSUMERS: usize = 4;
const EACH: u64 = 20_000;
/// Small, so that full and empty are met all the time.
const CAPACITY: usize = 64;

#[derive(Default)]
struct Seen {
    items: Vec<u64>,
    expired: u64,
}

/// Says so when its thread fails, so that the others do not wait for it for ever.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

fn produce(queue: &PriorityQueue<u64>, producer: u64, overflowed: &AtomicU64, alarm: &Alarm<'_>) {
    for n in 0..EACH {
        let priority = Priority::from_level(usize::try_from(n % 5).unwrap());
        let mut item = producer * EACH + n;
        loop {
            let put = match n % 7 {
                // Never near, so the order of arrival holds; or long over.
                3 => queue.enqueue_by(item, priority, Time::NEVER),
                5 => queue.enqueue_by(item, priority, Time::ZERO),
                _ => queue.enqueue(item, priority),
            };
            match put {
                Ok(_) => break,
                Err(Rejected::Full(back)) => {
                    assert_eq!(back, item);
                    assert!(!alarm.0.load(Ordering::Relaxed), "another thread failed");
                    item = back;
                    overflowed.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                }
                Err(Rejected::Emergency(_)) => panic!("no emergency here"),
            }
        }
        if n % 100 == 0 {
            queue.tick(Time::from_millis(i64::try_from(n).unwrap()));
        }
    }
}

fn consume(queue: &PriorityQueue<u64>, producing: &AtomicUsize, alarm: &Alarm<'_>) -> Seen {
    let mut seen = Seen::default();
    let mut last: HashMap<(u64, Priority), u64> = HashMap::new();
    loop {
        let over = producing.load(Ordering::Acquire) == 0;
        match queue.dequeue() {
            Dequeued::Item(picked) => {
                let producer = picked.item / EACH;
                let before = last.insert((producer, picked.decision.level), picked.item);
                assert!(before.is_none_or(|b| b < picked.item), "{before:?} before {}", picked.item);
                seen.items.push(picked.item);
            }
            Dequeued::Expired(overdue) => {
                seen.expired += 1;
                seen.items.push(overdue.item);
            }
            Dequeued::Empty if over => return seen,
            Dequeued::Empty | Dequeued::LostRace => {
                assert!(!alarm.0.load(Ordering::Relaxed), "another thread failed");
                std::thread::yield_now();
            }
            Dequeued::Held => panic!("no emergency here"),
        }
    }
}

#[test]
fn four_producers_and_four_consumers_move_every_message_exactly_once() {
    let queue = PriorityQueue::with_capacity(CAPACITY);
    let producing = AtomicUsize::new(usize::try_from(PRODUCERS).unwrap());
    let overflowed = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let seen: Vec<Seen> = std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let (queue, producing, overflowed, failed) = (&queue, &producing, &overflowed, &failed);
            scope.spawn(move || {
                produce(queue, producer, overflowed, &Alarm(failed));
                producing.fetch_sub(1, Ordering::Release);
            });
        }
        let consumers: Vec<_> =
            (0..CONSUMERS).map(|_| scope.spawn(|| consume(&queue, &producing, &Alarm(&failed)))).collect();
        consumers.into_iter().map(|c| c.join().unwrap()).collect()
    });
    let mut items: Vec<u64> = seen.iter().flat_map(|s| s.items.iter().copied()).collect();
    items.sort_unstable();
    let wrong = items.iter().zip(0..).find(|(got, expected)| **got != *expected);
    assert_eq!((wrong, items.len() as u64), (None, PRODUCERS * EACH), "each exactly once");

    let stats = Priority::ALL.map(|p| queue.stats(p));
    for s in &stats {
        assert_eq!((s.enqueued, s.depth), (s.dequeued + s.expired, 0));
        assert_eq!(s.enqueued, PRODUCERS * EACH / 5);
    }
    assert_eq!(stats.iter().map(|s| s.expired).sum::<u64>(), seen.iter().map(|s| s.expired).sum::<u64>());
    assert_eq!(stats.iter().map(|s| s.overflowed).sum::<u64>(), overflowed.into_inner());
    assert!(queue.is_empty());
}
