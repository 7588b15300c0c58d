//! The queue under real threads: every message comes out exactly once, in the order of its producer, and the counters
//! agree with what the threads saw.

use redrive_core::priority::Priority;
use redrive_core::priority_queue::{Dequeued, PriorityQueue, Rejected};
use redrive_core::time::Time;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

const PRODUCERS: u64 = 4;
const CONSUMERS: usize = 4;
const EACH: u64 = 20_000;
/// Small, so that the queue is often full and often empty.
const CAPACITY: usize = 64;

/// What a consumer received.
#[derive(Default)]
struct Received {
    items: Vec<u64>,
    expired: u64,
}

/// Set when its thread panics, so that the others do not wait for it for ever.
struct PanicFlag<'a>(&'a AtomicBool);

impl Drop for PanicFlag<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

fn produce(queue: &PriorityQueue<u64>, producer: u64, overflowed: &AtomicU64, flag: &PanicFlag<'_>) {
    for n in 0..EACH {
        let priority = Priority::from_level(usize::try_from(n % 5).unwrap());
        let mut item = producer * EACH + n;
        loop {
            let put = match n % 7 {
                // Either never near, so that the order of arrival holds, or long over.
                3 => queue.enqueue_by(item, priority, Time::NEVER),
                5 => queue.enqueue_by(item, priority, Time::ZERO),
                _ => queue.enqueue(item, priority),
            };
            match put {
                Ok(_) => break,
                Err(Rejected::Full(back)) => {
                    assert_eq!(back, item);
                    assert!(!flag.0.load(Ordering::Relaxed), "another thread failed");
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

fn consume(queue: &PriorityQueue<u64>, producing: &AtomicUsize, flag: &PanicFlag<'_>) -> Received {
    let mut received = Received::default();
    let mut last: HashMap<(u64, Priority), u64> = HashMap::new();
    loop {
        let over = producing.load(Ordering::Acquire) == 0;
        match queue.dequeue() {
            Dequeued::Item(picked) => {
                let producer = picked.item / EACH;
                let before = last.insert((producer, picked.decision.level), picked.item);
                assert!(before.is_none_or(|b| b < picked.item), "{before:?} before {}", picked.item);
                received.items.push(picked.item);
            }
            Dequeued::Expired(overdue) => {
                received.expired += 1;
                received.items.push(overdue.item);
            }
            Dequeued::Empty if over => return received,
            Dequeued::Empty | Dequeued::LostRace => {
                assert!(!flag.0.load(Ordering::Relaxed), "another thread failed");
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
    let received: Vec<Received> = std::thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let (queue, producing, overflowed, failed) = (&queue, &producing, &overflowed, &failed);
            scope.spawn(move || {
                produce(queue, producer, overflowed, &PanicFlag(failed));
                producing.fetch_sub(1, Ordering::Release);
            });
        }
        let consumers: Vec<_> = (0..CONSUMERS)
            .map(|_| scope.spawn(|| consume(&queue, &producing, &PanicFlag(&failed))))
            .collect();
        consumers.into_iter().map(|c| c.join().unwrap()).collect()
    });
    let mut items: Vec<u64> = received.iter().flat_map(|r| r.items.iter().copied()).collect();
    items.sort_unstable();
    let wrong = items.iter().zip(0..).find(|(got, expected)| **got != *expected);
    assert_eq!((wrong, items.len() as u64), (None, PRODUCERS * EACH), "each exactly once");

    let stats = Priority::ALL.map(|p| queue.stats(p));
    for s in &stats {
        assert_eq!((s.enqueued, s.depth), (s.dequeued + s.expired, 0));
        assert_eq!(s.enqueued, PRODUCERS * EACH / 5);
    }
    assert_eq!(stats.iter().map(|s| s.expired).sum::<u64>(), received.iter().map(|r| r.expired).sum::<u64>());
    assert_eq!(stats.iter().map(|s| s.overflowed).sum::<u64>(), overflowed.into_inner());
    assert!(queue.is_empty());
}
