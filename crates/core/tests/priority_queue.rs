//! The priority queue from outside: its rule against the pure scheduler, every distinct answer, the counters, and many
//! threads. What is asserted here holds for the types that ship; schedules that threads rarely take are explored in
//! `shuttle.rs`.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a failed step in a test is a failed test; clippy.toml exempts only the test functions"
)]

#[path = "priority_queue/model.rs"]
mod model;
#[path = "priority_queue/threads.rs"]
mod threads;

use proptest::prelude::*;
use redrive_core::priority::Priority;
use redrive_core::priority_queue::{Accepted, Dequeued, Overdue, Picked, PriorityQueue, Rejected};
use redrive_core::scheduler::{Load, PickReason, WEIGHTS};
use redrive_core::time::{Span, Time};
use std::sync::Arc;

const NOW: Time = Time::from_millis(10_000_000);

fn queue<T>(capacity: usize) -> PriorityQueue<T> {
    let queue = PriorityQueue::with_capacity(capacity);
    queue.tick(NOW);
    queue
}

fn picked<T: std::fmt::Debug>(queue: &PriorityQueue<T>) -> Picked<T> {
    match queue.dequeue() {
        Dequeued::Item(picked) => picked,
        other @ (Dequeued::Expired(_) | Dequeued::Empty | Dequeued::Held | Dequeued::LostRace) => {
            panic!("expected an item, got {other:?}")
        }
    }
}

#[test]
fn i29_with_all_levels_waiting_any_31_picks_hold_exactly_the_weights() {
    let q = queue(4_096);
    for n in 0..2_000 {
        for p in Priority::ALL {
            q.enqueue(n, p).unwrap();
        }
    }
    let picks: Vec<usize> = (0..1_240).map(|_| picked(&q).decision.level.level()).collect();
    for window in picks.windows(31) {
        let mut counts = [0_u64; 5];
        for level in window {
            counts[*level] += 1;
        }
        assert_eq!(counts, WEIGHTS);
    }
}

#[test]
fn each_level_is_first_in_first_out_with_and_without_deadlines() {
    let q = queue(16);
    let far = NOW.plus(Span::from_hours(1));
    for n in 0..12 {
        let put = if n % 3 == 0 {
            // The deadlines contradict the order of arrival, but do not matter until they are near.
            q.enqueue_by(n, Priority::Low, far.minus(Span::from_secs(n)))
        } else {
            q.enqueue(n, Priority::Low)
        };
        put.unwrap();
    }
    let order: Vec<u64> = (0..12).map(|_| picked(&q).item).collect();
    assert_eq!(order, (0..12).collect::<Vec<_>>());
    assert_eq!(q.dequeue(), Dequeued::Empty);
}

#[test]
fn urgent_messages_come_by_deadline_then_priority_then_arrival() {
    let q = queue(16);
    let at = |s: u64| NOW.plus(Span::from_secs(s));
    q.enqueue("plain", Priority::Critical).unwrap();
    q.enqueue_by("4 s, low", Priority::Low, at(4)).unwrap();
    q.enqueue_by("4 s, high, first", Priority::High, at(4)).unwrap();
    q.enqueue_by("4 s, high, second", Priority::High, at(4)).unwrap();
    q.enqueue_by("3 s, background", Priority::Background, at(3)).unwrap();
    q.enqueue_by("6 s", Priority::High, at(6)).unwrap();
    for expected in ["3 s, background", "4 s, high, first", "4 s, high, second", "4 s, low"] {
        let next = picked(&q);
        assert_eq!(next.item, expected);
        assert_eq!(next.decision.reason, PickReason::DeadlineApproaching);
        assert_eq!(next.decision.preempted, Some(Priority::Critical).filter(|p| *p < next.decision.level));
    }
    let next = picked(&q);
    assert_eq!((next.item, next.decision.reason), ("plain", PickReason::PriorityOrder));
    assert_eq!(next.deadline, None);
    q.tick(at(1));
    let next = picked(&q);
    assert_eq!((next.item, next.decision.reason), ("6 s", PickReason::DeadlineApproaching));
    assert_eq!((next.deadline, next.waited), (Some(at(6)), Span::from_secs(1)));
    assert_eq!(q.stats(Priority::High).urgent, 3);
}

#[test]
fn an_expired_message_is_returned_as_expired_and_does_not_count_as_a_pick() {
    let q = queue(16);
    let deadline = NOW.plus(Span::from_secs(1));
    q.enqueue("plain", Priority::Critical).unwrap();
    q.enqueue_by("late", Priority::Background, deadline).unwrap();
    q.tick(deadline);
    let late = Overdue { item: "late", level: Priority::Background, deadline, waited: Span::from_secs(1) };
    assert_eq!(q.dequeue(), Dequeued::Expired(late));
    let stats = q.stats(Priority::Background);
    assert_eq!((stats.enqueued, stats.dequeued, stats.expired, stats.depth), (1, 0, 1, 0));
    assert_eq!(picked(&q).item, "plain");
    // A message that is late when it is enqueued is treated the same.
    q.enqueue_by("too late", Priority::Low, NOW).unwrap();
    assert!(matches!(q.dequeue(), Dequeued::Expired(Overdue { item: "too late", .. })));
}

#[test]
fn emergency_serves_the_top_two_refuses_background_and_ends_after_lasting_relief() {
    let q = queue(16);
    for p in Priority::ALL {
        q.enqueue(p, p).unwrap();
    }
    q.enqueue_by(Priority::Low, Priority::Low, NOW.plus(Span::from_secs(1))).unwrap();
    q.enqueue_by(Priority::High, Priority::High, NOW.plus(Span::from_secs(2))).unwrap();
    assert!(!q.observe(Load { memory: 0.9, cpu: 0.95 }), "reaching the thresholds is not an emergency");
    assert!(q.observe(Load { memory: 0.1, cpu: 0.951 }));
    assert_eq!(
        q.enqueue(Priority::Background, Priority::Background).map_err(Rejected::into_item),
        Err(Priority::Background)
    );
    let soon = NOW.plus(Span::from_secs(1));
    let refused = q.enqueue_by(Priority::Background, Priority::Background, soon);
    assert_eq!(refused, Err(Rejected::Emergency(Priority::Background)));
    assert_eq!(q.stats(Priority::Background).refused, 2);
    assert_eq!(q.stats(Priority::Background).overflowed, 0);

    let next = picked(&q);
    assert_eq!(
        (next.decision.level, next.decision.reason),
        (Priority::High, PickReason::DeadlineApproaching)
    );
    assert_eq!(picked(&q).decision.level, Priority::Critical);
    let next = picked(&q);
    assert_eq!((next.decision.level, next.decision.reason), (Priority::High, PickReason::EmergencyMode));
    assert_eq!(q.dequeue(), Dequeued::Held);
    q.enqueue(Priority::Normal, Priority::Normal).unwrap();
    assert_eq!(q.dequeue(), Dequeued::Held);

    let calm = Load { memory: 0.79, cpu: 0.84 };
    assert!(q.observe(calm));
    q.tick(NOW.plus(Span::from_millis(9_999)));
    assert!(q.observe(calm));
    assert!(q.observe(Load { memory: 0.8, cpu: 0.1 }), "not below the lower threshold: relief starts again");
    q.tick(NOW.plus(Span::from_millis(10_000)));
    assert!(q.observe(calm));
    q.tick(NOW.plus(Span::from_millis(20_000)));
    assert!(!q.observe(calm));
    assert!(matches!(q.dequeue(), Dequeued::Expired(Overdue { level: Priority::Low, .. })));
    assert_eq!(picked(&q).decision.level, Priority::Normal);
    q.enqueue(Priority::Background, Priority::Background).unwrap();
}

#[test]
fn a_load_that_is_not_a_number_changes_nothing() {
    let q: PriorityQueue<u8> = queue(4);
    let odd = [f32::NAN, f32::NEG_INFINITY];
    for load in odd.into_iter().flat_map(|a| odd.map(|b| Load { memory: a, cpu: b })) {
        assert!(!q.observe(load));
    }
    assert!(q.observe(Load { memory: f32::NAN, cpu: 1.0 }), "the other half still counts");
    q.tick(NOW.plus(Span::from_hours(1)));
    assert!(q.observe(Load { memory: f32::NAN, cpu: f32::NAN }), "no relief without a number");
}

#[test]
fn back_pressure_starts_at_80_percent_and_a_full_queue_returns_the_message() {
    let q = queue(10);
    for n in 1..=10 {
        let expected = Accepted { back_pressure: n >= 8 };
        // A deadline makes no difference to the capacity.
        let put = if n % 2 == 0 {
            q.enqueue(n, Priority::High)
        } else {
            q.enqueue_by(n, Priority::High, Time::NEVER)
        };
        assert_eq!(put, Ok(expected));
    }
    assert_eq!(q.enqueue(11, Priority::High), Err(Rejected::Full(11)));
    assert_eq!(q.enqueue_by(12, Priority::High, Time::NEVER), Err(Rejected::Full(12)));
    assert!((q.utilisation() - 1.0).abs() < f64::EPSILON);
    assert_eq!(q.enqueue(1, Priority::Low).unwrap(), Accepted { back_pressure: false });
    assert_eq!(picked(&q).item, 1);
    assert_eq!(q.enqueue(13, Priority::High).unwrap(), Accepted { back_pressure: true });
    assert_eq!(
        q.enqueue(14, Priority::High),
        Err(Rejected::Full(14)),
        "the head at the dispenser takes a slot too"
    );
    let stats = q.stats(Priority::High);
    assert_eq!((stats.enqueued, stats.dequeued, stats.overflowed, stats.depth), (11, 1, 3, 10));
    while let Dequeued::Item(_) = q.dequeue() {}
    assert!(q.is_empty());
    assert_eq!(q.enqueue(15, Priority::High).unwrap(), Accepted { back_pressure: false });
}

#[test]
fn the_smallest_queue_holds_one_message_per_level() {
    let q = queue(0);
    assert_eq!(q.capacity(), 1);
    for round in 0..100 {
        assert!(q.enqueue(round, Priority::Normal).unwrap().back_pressure);
        assert_eq!(q.enqueue(round, Priority::Normal), Err(Rejected::Full(round)));
        assert_eq!(picked(&q).item, round);
    }
}

#[test]
fn the_clock_never_goes_back() {
    let q = queue(4);
    q.enqueue((), Priority::High).unwrap();
    q.tick(NOW.minus(Span::from_hours(1)));
    assert_eq!(q.now(), NOW);
    q.tick(NOW.plus(Span::from_secs(2)));
    assert_eq!(picked(&q).waited, Span::from_secs(2));
}

#[test]
fn an_aged_head_gets_one_pick_in_nine_and_is_counted() {
    let q = queue(4_096);
    for n in 0..200 {
        q.enqueue(n, Priority::Background).unwrap();
    }
    q.tick(NOW.plus(Span::from_millis(10_001)));
    for n in 0..900 {
        q.enqueue(n, Priority::Critical).unwrap();
    }
    let picks: Vec<_> = (0..900).map(|_| picked(&q).decision).collect();
    assert!(picks.iter().all(|d| (d.starvation_risk - 1.0).abs() < 1e-6 || d.level == Priority::Background));
    let aged = picks.iter().filter(|d| d.reason == PickReason::StarvationPrevention).count() as u64;
    assert_eq!(aged, 100);
    assert_eq!(q.stats(Priority::Background).starvation_events, aged);
}

#[test]
fn messages_left_inside_are_dropped_with_the_queue() {
    let item = Arc::new(());
    let q = queue(8);
    for p in Priority::ALL {
        q.enqueue(Arc::clone(&item), p).unwrap();
        q.enqueue_by(Arc::clone(&item), p, Time::NEVER).unwrap();
    }
    drop(picked(&q));
    assert_eq!(Arc::strong_count(&item), 10);
    drop(q);
    assert_eq!(Arc::strong_count(&item), 1);
}

proptest! {
    /// I29 with an hour of backlog on every level and arbitrary arrivals: the k-th background message comes out within
    /// 35k picks.
    #[test]
    fn i29_background_work_has_a_bounded_wait_with_an_hour_of_backlog(
        backlog in proptest::array::uniform4(0_u64..600),
        arrivals in proptest::collection::vec((0_usize..4, 0_u64..40), 1..200),
        step in 0_u64..200,
        aged in proptest::bool::ANY,
    ) {
        let q = queue(8_192);
        for (level, count) in backlog.into_iter().enumerate() {
            for n in 0..count {
                q.enqueue(n, Priority::from_level(level)).unwrap();
            }
        }
        let background = 60;
        let hour = NOW.plus(Span::from_hours(1));
        if !aged {
            // The worst case: all others are older, so no aged pick goes to background.
            q.tick(hour);
        }
        for n in 0..background {
            q.enqueue(n, Priority::Background).unwrap();
        }
        q.tick(hour);
        let mut served = 0;
        for pick in 1..=35 * background {
            let (level, count) = arrivals[usize::try_from(pick).unwrap() % arrivals.len()];
            for n in 0..count {
                let _ = q.enqueue(n, Priority::from_level(level));
            }
            q.tick(hour.plus(Span::from_millis(pick * step)));
            match q.dequeue() {
                Dequeued::Item(p) if p.decision.level == Priority::Background => {
                    prop_assert_eq!(p.item, served, "in order of arrival");
                    served += 1;
                }
                Dequeued::Item(_) | Dequeued::Empty => {}
                Dequeued::Expired(_) | Dequeued::Held | Dequeued::LostRace => prop_assert!(false),
            }
            prop_assert!(served >= (pick / 35).min(background), "{} background in {} picks", served, pick);
        }
    }
}
