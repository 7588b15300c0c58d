//! The priority queue under shuttle: its sources, compiled with a `sync` module in which every step is a point where
//! the schedule may switch threads. Shuttle runs thousands of schedules and prints the one that fails, for replay. It
//! does not model weak memory: orderings are justified in comments in the sources.
//!
//! The lock-free rings are crossbeam's and are not explored. A queue with a lock stands in for them; it panics when it
//! is pushed while full, because a message with a reserved slot must always fit. The sources are included by path, so a
//! normal build knows nothing of shuttle.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a failed step in a test is a failed test; clippy.toml exempts only the test functions"
)]

use redrive_core::{limits, priority, scheduler, time};

#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "part of the library seen from a test: not all of it is used, and it is documented there"
)]
#[path = "../src/priority_queue/mod.rs"]
mod priority_queue;

/// Stands in for `crates/core/src/sync.rs` of the library.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(crate) use shuttle::sync::{Mutex, MutexGuard, TryLockError};
    use std::collections::VecDeque;

    #[derive(Debug)]
    pub(crate) struct Inbox<T>(Mutex<VecDeque<T>>);

    impl<T> Inbox<T> {
        pub(crate) fn new() -> Self {
            Self(Mutex::new(VecDeque::new()))
        }

        pub(crate) fn push(&self, item: T) {
            self.0.lock().unwrap().push_back(item);
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.0.lock().unwrap().pop_front()
        }

        pub(crate) fn len(&self) -> usize {
            self.0.lock().unwrap().len()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.len() == 0
        }
    }

    #[derive(Debug)]
    pub(crate) struct Ring<T> {
        inside: Inbox<T>,
        capacity: usize,
    }

    impl<T> Ring<T> {
        pub(crate) fn new(capacity: usize) -> Self {
            Self { inside: Inbox::new(), capacity }
        }

        #[allow(clippy::unnecessary_wraps, reason = "the ring it stands for can refuse")]
        pub(crate) fn push(&self, item: T) -> Result<(), T> {
            let mut inside = self.inside.0.lock().unwrap();
            assert!(inside.len() < self.capacity, "a slot was reserved that the ring does not have");
            inside.push_back(item);
            Ok(())
        }

        pub(crate) fn pop(&self) -> Option<T> {
            self.inside.pop()
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.inside.is_empty()
        }
    }
}

use priority::Priority;
use priority_queue::{Dequeued, PriorityQueue, Rejected};
use scheduler::Load;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};
use std::sync::Arc;
use time::{Span, Time};

/// The number of random schedules.
const RANDOM: usize = 5_000;
/// The number of schedules with a few forced switches each.
const FORCED: usize = 2_000;
/// The number of forced switches in a PCT schedule: most known races need two or three.
const DEPTH: usize = 3;
const PRODUCERS: u64 = 2;
const EACH: u64 = 3;
const CAPACITY: usize = 2;
const NOW: Time = Time::from_millis(1_000_000);

fn explore(body: fn()) {
    let mut config = Config::new();
    // Unoptimised code moves the queue over the stack a few times, and shuttle's own stacks are small.
    config.stack_size = 256 * 1024;
    Runner::new(RandomScheduler::new(RANDOM), config.clone()).run(body);
    Runner::new(PctScheduler::new(DEPTH, FORCED), config).run(body);
}

/// How a message is enqueued.
type Put = fn(&PriorityQueue<u64>, u64) -> Result<(), Rejected<u64>>;

fn start() -> Arc<PriorityQueue<u64>> {
    let queue = Arc::new(PriorityQueue::with_capacity(CAPACITY));
    queue.tick(NOW);
    queue
}

fn producers(queue: &Arc<PriorityQueue<u64>>, put: Put) -> Vec<thread::JoinHandle<u64>> {
    let produce = |producer: u64| {
        let queue = Arc::clone(queue);
        thread::spawn(move || {
            let mut overflowed = 0;
            for n in 0..EACH {
                while let Err(Rejected::Full(_)) = put(&queue, producer * EACH + n) {
                    overflowed += 1;
                    thread::yield_now();
                }
            }
            overflowed
        })
    };
    (0..PRODUCERS).map(produce).collect()
}

/// Dequeues `wanted` messages. Returns them, and how many of them were expired.
fn consumer(queue: &Arc<PriorityQueue<u64>>, wanted: u64) -> thread::JoinHandle<(Vec<u64>, u64)> {
    let queue = Arc::clone(queue);
    thread::spawn(move || {
        let (mut items, mut expired) = (Vec::new(), 0);
        while (items.len() as u64) < wanted {
            match queue.dequeue() {
                Dequeued::Item(picked) => items.push(picked.item),
                Dequeued::Expired(overdue) => {
                    expired += 1;
                    items.push(overdue.item);
                }
                Dequeued::Empty | Dequeued::Held | Dequeued::LostRace => thread::yield_now(),
            }
        }
        (items, expired)
    })
}

/// Two producers and two consumers move six messages through a queue with two slots. Every message comes out once, and
/// the counters agree.
fn all_come_out_once(put: Put) {
    let queue = start();
    let consumers = [consumer(&queue, EACH), consumer(&queue, PRODUCERS * EACH - EACH)];
    let overflowed: u64 = producers(&queue, put).into_iter().map(|p| p.join().unwrap()).sum();
    let (mut items, mut expired) = (Vec::new(), 0);
    for consumer in consumers {
        let (some, late) = consumer.join().unwrap();
        items.extend(some);
        expired += late;
    }
    items.sort_unstable();
    assert_eq!(items, (0..PRODUCERS * EACH).collect::<Vec<_>>());
    let stats = Priority::ALL.map(|p| queue.stats(p));
    assert!(stats.iter().all(|s| s.depth == 0 && s.enqueued == s.dequeued + s.expired), "{stats:?}");
    assert_eq!(stats.iter().map(|s| s.enqueued).sum::<u64>(), PRODUCERS * EACH);
    assert_eq!(stats.iter().map(|s| s.expired).sum::<u64>(), expired);
    assert_eq!(stats.iter().map(|s| s.overflowed).sum::<u64>(), overflowed);
}

#[test]
fn every_message_of_one_level_comes_out_once() {
    explore(|| all_come_out_once(|q, n| q.enqueue(n, Priority::High).map(drop)));
}

#[test]
fn every_message_with_or_without_a_deadline_comes_out_once() {
    explore(|| {
        all_come_out_once(|q, n| {
            match n % 3 {
                0 => q.enqueue(n, Priority::High),
                1 => q.enqueue_by(n, Priority::High, NOW.plus(Span::from_secs(n))),
                _ => q.enqueue_by(n, Priority::Low, NOW),
            }
            .map(drop)
        });
    });
}

#[test]
fn counters_read_in_the_middle_are_never_impossible() {
    explore(|| {
        let queue = start();
        let watched = Arc::clone(&queue);
        let watcher = thread::spawn(move || {
            for _ in 0..4 {
                let s = watched.stats(Priority::High);
                assert!(s.dequeued + s.expired <= s.enqueued && s.depth <= CAPACITY as u64, "{s:?}");
                thread::yield_now();
            }
        });
        let consumers = [consumer(&queue, EACH), consumer(&queue, EACH)];
        let put: Put = |q, n| q.enqueue(n, Priority::High).map(drop);
        for producer in producers(&queue, put) {
            producer.join().unwrap();
        }
        watcher.join().unwrap();
        for consumer in consumers {
            consumer.join().unwrap();
        }
    });
}

#[test]
fn an_emergency_that_comes_and_goes_loses_nothing() {
    explore(|| {
        let queue = start();
        let loaded = Arc::clone(&queue);
        let observer = thread::spawn(move || {
            loaded.observe(Load { memory: 1.0, cpu: 0.0 });
            loaded.observe(Load::default());
            loaded.tick(NOW.plus(Span::from_secs(10)));
            loaded.observe(Load::default());
        });
        let enqueuing = Arc::clone(&queue);
        let producer = thread::spawn(move || {
            let mut refused = 0;
            for n in 0..EACH {
                loop {
                    match enqueuing.enqueue(n, Priority::Background) {
                        Ok(_) => break,
                        Err(Rejected::Emergency(_)) => refused += 1,
                        Err(Rejected::Full(_)) => {}
                    }
                    thread::yield_now();
                }
            }
            refused
        });
        let consumer = consumer(&queue, EACH);
        observer.join().unwrap();
        let refused: u64 = producer.join().unwrap();
        assert_eq!(consumer.join().unwrap().0, (0..EACH).collect::<Vec<_>>());
        assert!(!queue.in_emergency());
        assert_eq!(queue.stats(Priority::Background).refused, refused);
    });
}

/// A distant deadline does not change the order, although such messages take another way to the dispenser.
#[test]
fn a_producers_messages_stay_in_order_with_or_without_a_deadline() {
    explore(|| {
        let queue = start();
        let consumer = consumer(&queue, PRODUCERS * EACH);
        let put: Put = |q, n| {
            let plain = (n / EACH + n % EACH).is_multiple_of(2);
            let put = if plain {
                q.enqueue(n, Priority::Normal)
            } else {
                q.enqueue_by(n, Priority::Normal, Time::NEVER)
            };
            put.map(drop)
        };
        for producer in producers(&queue, put) {
            producer.join().unwrap();
        }
        let (items, _) = consumer.join().unwrap();
        for producer in 0..PRODUCERS {
            let own: Vec<u64> = items.iter().copied().filter(|n| n / EACH == producer).collect();
            assert!(own.is_sorted(), "{items:?}");
        }
    });
}
