//! The table of metrics, the folding of labels, the summary and the alert rules.

use super::*;
use crate::dead_letter::Status;
use crate::limits;
use crate::priority::Priority;
use crate::store::Dlq;
use crate::time::Time;
use std::collections::BTreeSet;

const NOW: Time = Time::from_millis(100_000);

fn queue() -> crate::ids::QueueName {
    "pay".parse().unwrap()
}

fn stats(events: &[(Event, &[&str], u64)]) -> Stats {
    let mut counters = Counters::default();
    for (event, labels, amount) in events {
        counters.add(CounterKey::new(*event, &queue(), labels), *amount, Time::from_millis(90_000));
    }
    let queues = vec![QueueStats {
        queue: queue(),
        waiting: 95,
        leased: 0,
        bytes: 7,
        letters_open: 100,
        peak: 99,
        letters_peak: 120,
        capacity: Some(100),
    }];
    let oldest_open_at = Some(Time::from_millis(40_000));
    let key = OpenKey { queue: queue(), kind: "charge".into(), priority: Priority::High };
    let by_status = [(Status::Pending, 90), (Status::Review, 10), (Status::Resolved, 7)].into();
    Stats {
        now: NOW,
        counters: counters.views(),
        queues,
        open: vec![OpenLetters { key, open: 100 }],
        dlqs: vec![Dlq { dlq: "pay-dlq".parse().unwrap(), by_status }],
        messages_peak: 150,
        letters_peak: 130,
        oldest_open_at,
        process: Snapshot::default(),
    }
}

#[test]
fn every_name_is_unique_and_has_a_meaning() {
    let all = definitions();
    let names: BTreeSet<&str> = all.iter().map(|d| d.name).collect();
    assert_eq!(names.len(), all.len());
    for d in all {
        assert!(d.name.starts_with("redrive_") && d.help.trim().ends_with('.'), "{d:?}");
        assert_eq!(d.name.ends_with("_total"), d.kind == Kind::Counter, "{d:?}");
    }
}

/// Every word in backticks that looks like one of our names is one, and every name is documented.
#[test]
fn the_documentation_lists_every_name_and_no_other() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/observability.md");
    let page = std::fs::read_to_string(page).unwrap();
    let named: BTreeSet<&str> =
        page.split('`').skip(1).step_by(2).filter(|w| w.starts_with("redrive_")).collect();
    let known: BTreeSet<&str> = definitions().iter().map(|d| d.name).collect();
    let missing: Vec<_> = known.difference(&named).collect();
    assert!(missing.is_empty(), "docs/observability.md does not document {missing:?}");
    let unknown: Vec<_> = named.difference(&known).collect();
    assert!(unknown.is_empty(), "docs/observability.md documents what does not exist: {unknown:?}");
    for definition in definitions() {
        let row = page.lines().find(|line| line.contains(&format!("`{}`", definition.name))).unwrap();
        for label in definition.labels {
            assert!(row.contains(label), "the row of {} does not name its label {label}", definition.name);
        }
    }
}

#[test]
fn too_many_values_share_a_counter() {
    let mut counters = Counters::default();
    let add = |counters: &mut Counters, kind: &str, priority: &str| {
        counters.add(CounterKey::new(Event::Enqueued, &queue(), &[kind, priority]), 1, NOW)
    };
    for n in 0..limits::TALLIES_MAX {
        add(&mut counters, &format!("kind{n}"), "high");
    }
    assert_eq!(
        add(&mut counters, "kind1", "high").labels()["kind"],
        "kind1",
        "a known kind keeps its own counter"
    );
    for n in 0..50 {
        let labels = add(&mut counters, &format!("new{n}"), "low").labels();
        assert_eq!((labels["kind"].as_str(), labels["priority"].as_str()), ("other", "low"));
    }
    add(&mut counters, "more", "high");
    assert_eq!(counters.views().len(), limits::TALLIES_MAX + 2);
    assert_eq!(counters.views().iter().map(|c| c.totals.count).sum::<u64>(), limits::TALLIES_MAX as u64 + 52);
    let odd = CounterKey::new(Event::DeadByError, &queue(), &["a\u{1f}b\n"]);
    assert_eq!(odd.labels()["error_type"], "ab", "a value cannot contain the separator");
}

#[test]
fn the_summary_follows_from_the_counters() {
    let seen = stats(&[
        (Event::Enqueued, &["a", "high"], 100),
        (Event::Enqueued, &["b", "low"], 300),
        (Event::Acked, &["a"], 1),
        (Event::Acked, &["a"], 4),
        (Event::Dead, &["max_attempts", "network", "transient"], 5),
        (Event::Dead, &["permanent", "agent", "persistent"], 2),
        (Event::Retried, &[], 1_000),
        (Event::Retried, &[], 3_000),
        (Event::RedriveSucceeded, &[], 10_000),
        (Event::RedriveFailed, &[], 0),
        (Event::Abandoned, &[], 30_000),
        (Event::Replied, &["done"], 0),
        (Event::Replied, &["left_out"], 0),
    ])
    .summary();
    assert_eq!((seen.enqueued, seen.enqueued_bytes, seen.acked, seen.dead), (2, 400, 2, 2));
    assert_eq!((seen.retry_success_rate, seen.abandonment_rate), (Some(0.5), Some(0.5)));
    assert_eq!((seen.dead_letter_rate, seen.retries_average, seen.retries_max), (Some(0.5), Some(2.0), 4));
    assert_eq!((seen.backoff_average_ms, seen.dead_age_average_ms), (Some(2_000), Some(20_000)));
    assert_eq!((seen.dead_age_max_ms, seen.oldest_open_ms), (30_000, Some(60_000)));
    assert_eq!((seen.messages_per_second, seen.bytes_per_second), (Some(0.2), Some(40.0)));
    assert_eq!((seen.replies, seen.replies_left_out, seen.letters_open), (1, 1, 100));
    let empty = Stats { counters: Vec::new(), queues: Vec::new(), ..stats(&[]) }.summary();
    assert_eq!((empty.retry_success_rate, empty.messages_per_second, empty.since), (None, None, None));
}

#[test]
fn the_alert_rules_find_problems_and_nothing_else() {
    let healthy = Stats { queues: Vec::new(), ..stats(&[]) };
    assert_eq!(report(&healthy).alerts, []);
    let slow = HistogramSnapshot { count: 10, p95_us: 20_000, ..HistogramSnapshot::default() };
    let process = Snapshot {
        timers: [(Timer::Enqueue.definition().name.to_owned(), slow)].into(),
        dead_per_second: 10.1,
        ..Snapshot::default()
    };
    let ill = Stats { process, ..stats(&[]) };
    let rules: Vec<_> = report(&ill).alerts.into_iter().map(|a| (a.rule, a.level)).collect();
    let expected = [
        ("slow_enqueue", AlertLevel::Warning),
        ("dead_letter_rate", AlertLevel::Warning),
        ("utilisation", AlertLevel::Critical),
        ("depth", AlertLevel::Warning),
    ];
    assert_eq!(rules, expected.map(|(rule, level)| (rule.to_owned(), level)));
}

#[test]
fn the_rate_of_successful_redrives_is_known_per_queue() {
    let seen = stats(&[
        (Event::RedriveSucceeded, &[], 1),
        (Event::RedriveSucceeded, &[], 1),
        (Event::RedriveSucceeded, &[], 1),
        (Event::RedriveFailed, &[], 0),
    ]);
    assert_eq!(seen.retry_success_rates(), [(&queue(), 0.75)].into());
    assert!(stats(&[(Event::Redriven, &[], 1)]).retry_success_rates().is_empty());
}

#[test]
fn the_bounds_of_a_timer_grow_and_have_two_significant_digits() {
    for timer in Timer::ALL {
        let bounds = timer.bounds_us();
        assert!(bounds.is_sorted_by(|a, b| a < b), "{timer:?}");
        for bound in bounds {
            let digits = bound.to_string();
            assert!(digits.len() < 3 || digits[2..].chars().all(|c| c == '0'), "{timer:?}: {bound}");
        }
    }
}
