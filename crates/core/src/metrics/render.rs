//! Renders stats in the Prometheus text format, version 0.0.4.

use super::open::{OpenKey, OpenLetters};
use super::stats::{CounterTotals, QueueStats, Stats};
use super::{Counter, Definition, Event, Gauge, STORE_GAUGES, Timer};
use crate::dead_letter::Status;
use std::fmt::Write as _;

/// Renders all metrics, with the names and labels of the table.
#[must_use]
pub fn render(stats: &Stats) -> String {
    let mut text = String::new();
    for event in Event::ALL {
        series(&mut text, event.number(), events(stats, *event, |totals| totals.count));
        if let Some(amount) = event.amount() {
            series(&mut text, amount.total, events(stats, *event, |totals| totals.sum));
            series(&mut text, amount.max, events(stats, *event, |totals| totals.max));
        }
    }
    for definition in STORE_GAUGES {
        series(&mut text, definition, store_gauge(stats, definition.name));
    }
    for timer in Timer::ALL {
        let definition = timer.definition();
        let Some(h) = stats.process.timer(*timer) else { continue };
        head(&mut text, definition);
        let seconds = |us: u64| format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
        for (quantile, us) in [("0.5", h.p50_us), ("0.95", h.p95_us), ("0.99", h.p99_us)] {
            let _ = writeln!(text, "{}{{quantile=\"{quantile}\"}} {}", definition.name, seconds(us));
        }
        let _ = writeln!(text, "{}_sum {}", definition.name, seconds(h.sum_us));
        let _ = writeln!(text, "{}_count {}", definition.name, h.count);
    }
    let plain = |n: Option<&u64>| n.map(|n| (Vec::new(), n.to_string())).into_iter().collect();
    for definition in Counter::ALL.iter().map(|counter| counter.definition()) {
        series(&mut text, definition, plain(stats.process.counters.get(definition.name)));
    }
    for definition in Gauge::ALL.iter().map(|gauge| gauge.definition()) {
        series(&mut text, definition, plain(stats.process.gauges.get(definition.name)));
    }
    text
}

/// The values of the labels, and the number.
type Sample = (Vec<String>, String);

fn events(stats: &Stats, event: Event, part: impl Fn(&CounterTotals) -> u64) -> Vec<Sample> {
    let of_event = stats.counters.iter().filter(|counter| counter.event == event);
    let sample = of_event.map(|counter| {
        let names = event.number().labels.iter().skip(1);
        let rest = names.map(|name| counter.labels.get(*name).cloned().unwrap_or_default());
        let values = std::iter::once(counter.queue.to_string()).chain(rest).collect();
        (values, part(&counter.totals).to_string())
    });
    sample.collect()
}

fn store_gauge(stats: &Stats, name: &str) -> Vec<Sample> {
    let each = |value: &dyn Fn(&QueueStats) -> Option<String>| -> Vec<Sample> {
        let samples = stats.queues.iter().filter_map(|q| Some((vec![q.queue.to_string()], value(q)?)));
        samples.collect()
    };
    match name {
        "redrive_queue_messages" => {
            let states = |q: &QueueStats| [("waiting", q.waiting), ("leased", q.leased)];
            let samples = stats.queues.iter().flat_map(|q| {
                states(q).map(|(state, n)| (vec![q.queue.to_string(), state.to_owned()], n.to_string()))
            });
            samples.collect()
        }
        "redrive_queue_bytes" => each(&|q| Some(q.bytes.to_string())),
        "redrive_queue_peak" => each(&|q| Some(q.peak.to_string())),
        "redrive_queue_utilisation" => each(&|q| q.utilisation().map(|full| format!("{full:.4}"))),
        "redrive_letters_open" => each(&|q| Some(q.letters_open.to_string())),
        "redrive_letters_peak" => each(&|q| Some(q.letters_peak.to_string())),
        "redrive_letters_open_by_kind" => {
            let sample = |o: &OpenLetters| {
                let OpenKey { queue, kind, priority } = &o.key;
                (vec![queue.to_string(), kind.clone(), priority.to_string()], o.open.to_string())
            };
            stats.open.iter().map(sample).collect()
        }
        "redrive_dlq_letters" => {
            let samples = stats.dlqs.iter().flat_map(|d| {
                let of = |(status, n): (&Status, &u64)| {
                    (vec![d.dlq.to_string(), status.to_string()], n.to_string())
                };
                d.by_status.iter().map(of)
            });
            samples.collect()
        }
        "redrive_store_messages_peak" => vec![(Vec::new(), stats.messages_peak.to_string())],
        "redrive_store_letters_peak" => vec![(Vec::new(), stats.letters_peak.to_string())],
        "redrive_oldest_open_letter_seconds" => {
            let age = stats.oldest_open().map_or(0, |span| span.as_millis() / 1_000);
            vec![(Vec::new(), age.to_string())]
        }
        "redrive_dead_per_second" => vec![(Vec::new(), format!("{:.1}", stats.process.dead_per_second))],
        _ => Vec::new(),
    }
}

fn head(text: &mut String, definition: Definition) {
    let _ = writeln!(text, "# HELP {} {}", definition.name, definition.help.trim());
    let _ = writeln!(text, "# TYPE {} {}", definition.name, definition.kind.name());
}

fn series(text: &mut String, definition: Definition, samples: Vec<Sample>) {
    if samples.is_empty() {
        return;
    }
    head(text, definition);
    for (values, number) in samples {
        text.push_str(definition.name);
        let pairs: Vec<String> = definition
            .labels
            .iter()
            .zip(values)
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(&value)))
            .collect();
        if !pairs.is_empty() {
            let _ = write!(text, "{{{}}}", pairs.join(","));
        }
        let _ = writeln!(text, " {number}");
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
