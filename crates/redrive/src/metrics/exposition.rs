//! Renders metrics as OpenMetrics text with `prometheus-client`: the counters of a store, its present state, and what
//! this process measured. Names, labels and meanings come from the table in `redrive_core::metrics`.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use redrive_core::metrics::{
    BUILD_INFO, Counter, CounterTotals, Definition, Event, Gauge, Kind, QueueStats, STORE_GAUGES, Stats,
    Timer,
};
use redrive_core::store::StoreInfo;
use redrive_store::metrics::{Histogram, process};
use std::fmt;

/// The content type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Renders the statistics of a store with the metrics of this process, without the line that ends the text, so that a
/// server can add its own. If another process holds the store, `stats` carries the metrics of that process; they are
/// left out, because that process publishes them itself.
#[must_use]
pub fn render_open_ended(stats: Stats, info: &StoreInfo) -> String {
    let own = process().snapshot(stats.now);
    let scrape = Scrape { stats: Stats { process: own, ..stats }, degraded: info.degraded.len() };
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode_registry(&mut text, &registry);
    text
}

/// Renders the statistics of a store with the metrics of this process.
pub(super) fn render(stats: Stats, info: &StoreInfo) -> String {
    let mut text = render_open_ended(stats, info);
    let _ = encode_eof(&mut text);
    text
}

/// What one scrape shows.
#[derive(Debug)]
struct Scrape {
    stats: Stats,
    degraded: usize,
}

/// A value of a counter or gauge.
enum Value {
    Whole(u64),
    Real(f64),
}

/// The values of the labels, in the order of the table, and the number.
type Sample = (Vec<String>, Value);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = &self.stats;
        for event in Event::ALL {
            series(&mut encoder, event.number(), events(stats, *event, |totals| totals.count))?;
            if let Some(amount) = event.amount() {
                series(&mut encoder, amount.total, events(stats, *event, |totals| totals.sum))?;
                series(&mut encoder, amount.max, events(stats, *event, |totals| totals.max))?;
            }
        }
        for definition in STORE_GAUGES {
            series(&mut encoder, definition, self.store_gauge(definition.name))?;
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        series(&mut encoder, BUILD_INFO, vec![(vec![version], Value::Whole(1))])?;
        for timer in Timer::ALL {
            if let Some(histogram) = process().timer(*timer) {
                distribution(&mut encoder, *timer, histogram)?;
            }
        }
        let plain = |n: Option<&u64>| n.map(|n| (Vec::new(), Value::Whole(*n))).into_iter().collect();
        for definition in Counter::ALL.iter().map(|counter| counter.definition()) {
            series(&mut encoder, definition, plain(stats.process.counters.get(definition.name)))?;
        }
        for definition in Gauge::ALL.iter().map(|gauge| gauge.definition()) {
            series(&mut encoder, definition, plain(stats.process.gauges.get(definition.name)))?;
        }
        Ok(())
    }
}

impl Scrape {
    fn store_gauge(&self, name: &str) -> Vec<Sample> {
        let stats = &self.stats;
        let each = |value: &dyn Fn(&QueueStats) -> Option<Value>| -> Vec<Sample> {
            let samples = stats.queues.iter().filter_map(|q| Some((vec![q.queue.to_string()], value(q)?)));
            samples.collect()
        };
        let one = |value: Value| vec![(Vec::new(), value)];
        match name {
            "redrive_queue_messages" => {
                let states = |q: &QueueStats| [("waiting", q.waiting), ("leased", q.leased)];
                let samples = stats.queues.iter().flat_map(|q| {
                    states(q).map(|(state, n)| (vec![q.queue.to_string(), state.to_owned()], Value::Whole(n)))
                });
                samples.collect()
            }
            "redrive_queue_bytes" => each(&|q| Some(Value::Whole(q.bytes))),
            "redrive_queue_peak" => each(&|q| Some(Value::Whole(q.peak))),
            "redrive_queue_utilisation" => each(&|q| q.utilisation().map(Value::Real)),
            "redrive_letters_open" => each(&|q| Some(Value::Whole(q.letters_open))),
            "redrive_letters_peak" => each(&|q| Some(Value::Whole(q.letters_peak))),
            "redrive_letters_open_by_kind" => {
                let open = stats.open.iter().map(|letters| {
                    let key = &letters.key;
                    let labels = vec![key.queue.to_string(), key.kind.clone(), key.priority.to_string()];
                    (labels, Value::Whole(letters.open))
                });
                open.collect()
            }
            "redrive_dlq_letters" => {
                let samples = stats.dlqs.iter().flat_map(|d| {
                    let by_status = d.by_status.iter();
                    by_status
                        .map(|(status, n)| (vec![d.dlq.to_string(), status.to_string()], Value::Whole(*n)))
                });
                samples.collect()
            }
            "redrive_store_messages_peak" => one(Value::Whole(stats.messages_peak)),
            "redrive_store_letters_peak" => one(Value::Whole(stats.letters_peak)),
            "redrive_oldest_open_letter_seconds" => {
                one(Value::Whole(stats.oldest_open().map_or(0, |span| span.as_millis() / 1_000)))
            }
            "redrive_dead_per_second" => one(Value::Real(stats.process.dead_per_second)),
            "redrive_retry_success_rate" => {
                let rates = stats.retry_success_rates().into_iter();
                rates.map(|(queue, rate)| (vec![queue.to_string()], Value::Real(rate))).collect()
            }
            "redrive_store_degraded" => one(Value::Whole(self.degraded as u64)),
            _ => Vec::new(),
        }
    }
}

fn events(stats: &Stats, event: Event, part: impl Fn(&CounterTotals) -> u64) -> Vec<Sample> {
    let of_event = stats.counters.iter().filter(|counter| counter.event == event);
    let sample = of_event.map(|counter| {
        let names = event.number().labels.iter().skip(1);
        let rest = names.map(|name| counter.labels.get(*name).cloned().unwrap_or_default());
        let values = std::iter::once(counter.queue.to_string()).chain(rest).collect();
        (values, Value::Whole(part(&counter.totals)))
    });
    sample.collect()
}

fn series(encoder: &mut DescriptorEncoder<'_>, definition: Definition, samples: Vec<Sample>) -> fmt::Result {
    if samples.is_empty() {
        return Ok(());
    }
    let (name, kind) = match definition.kind {
        // The encoder adds the ending to each sample.
        Kind::Counter => (definition.name.trim_end_matches("_total"), MetricType::Counter),
        Kind::Gauge => (definition.name, MetricType::Gauge),
        Kind::Histogram => (definition.name, MetricType::Histogram),
    };
    let mut family = encoder.encode_descriptor(name, definition.help.trim(), None, kind)?;
    for (values, value) in samples {
        let labels: Vec<(&str, String)> = definition.labels.iter().copied().zip(values).collect();
        if labels.is_empty() {
            encode_value(&mut family, definition.kind, &value)?;
        } else {
            encode_value(&mut family.encode_family(&labels)?, definition.kind, &value)?;
        }
    }
    Ok(())
}

fn encode_value(metric: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Whole(n)) => metric.encode_counter::<NoLabelSet, u64, u64>(n, None),
        (Kind::Counter, Value::Real(n)) => metric.encode_counter::<NoLabelSet, f64, u64>(n, None),
        (Kind::Gauge | Kind::Histogram, Value::Whole(n)) => metric.encode_gauge(n),
        (Kind::Gauge | Kind::Histogram, Value::Real(n)) => metric.encode_gauge(n),
    }
}

fn distribution(encoder: &mut DescriptorEncoder<'_>, timer: Timer, histogram: &Histogram) -> fmt::Result {
    let counts = histogram.counts_up_to(timer.bounds_us());
    let bounds = timer.bounds_us().iter().map(|us| seconds(*us)).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
    let count = buckets.iter().map(|(_, count)| count).sum();
    let definition = timer.definition();
    encoder
        .encode_descriptor(definition.name, definition.help.trim(), None, MetricType::Histogram)?
        .encode_histogram::<NoLabelSet>(seconds(histogram.sum_us()), count, &buckets, None)
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 285 years")]
fn seconds(us: u64) -> f64 {
    us as f64 / 1_000_000.0
}
