//! The counters of a store, and what follows from them: rates, averages, maxima. A store keeps one small row per event,
//! queue and labels; the number of rows is bounded.

use super::Event;
use super::measured::Snapshot;
use super::open::{OpenKey, OpenLetters};
use crate::ids::QueueName;
use crate::limits;
use crate::priority::Priority;
use crate::store::Dlq;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// Separates the label values in a key. It is a control character, so no value contains it.
const SEPARATOR: char = '\u{1f}';
/// The label value that stands for all values beyond the limit.
pub(super) const OTHER: &str = "other";

/// The key of a counter: an event in a queue, with the values of its labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterKey {
    /// The event.
    pub event: Event,
    /// The queue of the message.
    pub queue: QueueName,
    /// The values of the event's labels after `queue`, joined as in the store.
    pub label: String,
}

impl CounterKey {
    /// A key. Values are cut to the maximum length, and control characters are removed.
    #[must_use]
    pub fn new(event: Event, queue: &QueueName, values: &[&str]) -> Self {
        let mut label = String::new();
        for (n, value) in values.iter().enumerate() {
            if n > 0 {
                label.push(SEPARATOR);
            }
            label.extend(value.chars().filter(|c| !c.is_control()).take(limits::TALLY_VALUE_CHARS_MAX));
        }
        Self { event, queue: queue.clone(), label }
    }

    /// The key that is counted instead when this queue and event have too many: the first value becomes `other`.
    #[must_use]
    pub fn folded(&self) -> Self {
        let rest = self.label.split_once(SEPARATOR).map_or("", |(_, rest)| rest);
        let label = if rest.is_empty() { OTHER.to_owned() } else { format!("{OTHER}{SEPARATOR}{rest}") };
        Self { label, ..self.clone() }
    }

    /// The values of its labels, by name.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, String> {
        let names = self.event.number().labels.iter().skip(1);
        names.zip(self.label.split(SEPARATOR)).map(|(name, value)| ((*name).into(), value.into())).collect()
    }
}

/// The totals of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterTotals {
    /// The number of events.
    pub count: u64,
    /// The sum of the amounts.
    pub sum: u64,
    /// The highest amount.
    pub max: u64,
    /// When the first event was counted.
    pub since: Time,
}

impl CounterTotals {
    /// Adds one event.
    pub fn add(&mut self, amount: u64, now: Time) {
        if self.count == 0 {
            self.since = now;
        }
        self.count = self.count.saturating_add(1);
        self.sum = self.sum.saturating_add(amount);
        self.max = self.max.max(amount);
    }
}

/// The counters of a store. All backends count with this type, so that all fold alike.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    rows: BTreeMap<CounterKey, CounterTotals>,
    /// The number of counters by event and queue, which would be expensive to recount for every folded event.
    known: HashMap<(Event, QueueName), usize>,
}

impl Counters {
    /// The counters that were stored.
    pub fn new(rows: impl IntoIterator<Item = (CounterKey, CounterTotals)>) -> Self {
        let mut counters = Self { rows: rows.into_iter().collect(), known: HashMap::new() };
        for key in counters.rows.keys() {
            *counters.known.entry((key.event, key.queue.clone())).or_default() += 1;
        }
        counters
    }

    /// Counts one event and returns the key of the counter. Beyond [`limits::TALLIES_MAX`] counters of an event and
    /// queue, new values of the first label are counted as `other`.
    pub fn add(&mut self, key: CounterKey, amount: u64, now: Time) -> CounterKey {
        if let Some(totals) = self.rows.get_mut(&key) {
            totals.add(amount, now);
            return key;
        }
        let known = self.known.entry((key.event, key.queue.clone())).or_default();
        let key = if *known >= limits::TALLIES_MAX { key.folded() } else { key };
        let totals = self.rows.entry(key.clone()).or_insert_with(|| {
            *known += 1;
            CounterTotals::default()
        });
        totals.add(amount, now);
        key
    }

    /// The totals of one counter.
    #[must_use]
    pub fn get(&self, key: &CounterKey) -> Option<&CounterTotals> {
        self.rows.get(key)
    }

    /// The public view of all counters.
    #[must_use]
    pub fn views(&self) -> Vec<CounterView> {
        let view = |(key, totals): (&CounterKey, &CounterTotals)| CounterView {
            event: key.event,
            queue: key.queue.clone(),
            labels: key.labels(),
            totals: *totals,
        };
        self.rows.iter().map(view).collect()
    }
}

/// The public view of a counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterView {
    /// The event.
    pub event: Event,
    /// The queue.
    pub queue: QueueName,
    /// The values of its labels, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Its totals.
    #[serde(flatten)]
    pub totals: CounterTotals,
}

/// The current state of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStats {
    /// The name.
    pub queue: QueueName,
    /// Messages that are scheduled or ready.
    pub waiting: u64,
    /// Messages that are leased.
    pub leased: u64,
    /// Payload bytes of both.
    pub bytes: u64,
    /// Dead letters that are not closed.
    pub letters_open: u64,
    /// The most messages it ever held.
    pub peak: u64,
    /// The most dead letters it ever had, including closed ones.
    pub letters_peak: u64,
    /// How many messages it may hold, if that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
}

impl QueueStats {
    /// How full it is, from 0 to 1, if its capacity is limited.
    #[must_use]
    pub fn utilisation(&self) -> Option<f64> {
        ratio(self.waiting.saturating_add(self.leased), self.capacity?)
    }
}

/// Everything that is counted and measured, at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// The time, by the store's clock.
    pub now: Time,
    /// What the store counted in its commits; it survives a restart.
    pub counters: Vec<CounterView>,
    /// The current state of the queues, by name.
    pub queues: Vec<QueueStats>,
    /// Letters that are not closed, by queue, kind and priority.
    #[serde(default)]
    pub open: Vec<OpenLetters>,
    /// All letters, by dead letter queue and status.
    #[serde(default, rename = "drawers")]
    pub dlqs: Vec<Dlq>,
    /// The most messages the store held at once, in all its queues.
    #[serde(default)]
    pub messages_peak: u64,
    /// The most dead letters the store held at once, including closed ones.
    #[serde(default)]
    pub letters_peak: u64,
    /// When the oldest letter that is not closed died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_open_at: Option<Time>,
    /// What the process that holds the store measured about itself.
    pub process: Snapshot,
}

/// What follows from the counters. Rates are between 0 and 1, and `None` if there is nothing to divide by.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// When the first event was counted.
    pub since: Option<Time>,
    /// Messages accepted.
    pub enqueued: u64,
    /// Their payload bytes.
    pub enqueued_bytes: u64,
    /// Deliveries handed out.
    pub leased: u64,
    /// Messages done.
    pub acked: u64,
    /// Failed deliveries.
    pub failed: u64,
    /// Retries.
    pub retried: u64,
    /// Deaths.
    pub dead: u64,
    /// Letters that were redriven.
    pub redriven: u64,
    /// Redriven messages that were done.
    pub redrive_succeeded: u64,
    /// Redriven messages that died again.
    pub redrive_failed: u64,
    /// Letters that were resolved, including those that succeeded after a redrive.
    pub resolved: u64,
    /// Letters that were abandoned.
    pub abandoned: u64,
    /// Letters that were put up for review.
    pub reviews: u64,
    /// Letters that were quarantined.
    pub quarantined: u64,
    /// Messages and letters that were removed.
    pub discarded: u64,
    /// Letters among these that retention removed.
    #[serde(default)]
    pub removed_by_retention: u64,
    /// Messages that were dropped because their time was over.
    pub expired: u64,
    /// Replies that were sent.
    pub replies: u64,
    /// Replies that were left out because there was no place for them.
    pub replies_left_out: u64,
    /// Enqueues that were refused because the queue was full.
    pub overflows: u64,
    /// Letters that are not closed now.
    pub letters_open: u64,
    /// Open letters by priority.
    #[serde(default)]
    pub open_by_priority: BTreeMap<Priority, u64>,
    /// Open letters by kind.
    #[serde(default)]
    pub open_by_kind: BTreeMap<String, u64>,
    /// Open letters by dead letter queue.
    #[serde(default)]
    pub open_by_dlq: BTreeMap<QueueName, u64>,
    /// The most letters the store held at once, including closed ones.
    pub letters_peak: u64,
    /// The most messages the store held at once.
    pub messages_peak: u64,
    /// The age of the oldest open letter, in milliseconds.
    pub oldest_open_ms: Option<u64>,
    /// The share of ended redrives that succeeded.
    pub retry_success_rate: Option<f64>,
    /// The share of deaths that were abandoned.
    pub abandonment_rate: Option<f64>,
    /// The share of ended messages that died.
    pub dead_letter_rate: Option<f64>,
    /// The average number of retries of a message that ended.
    pub retries_average: Option<f64>,
    /// The maximum number of retries of a message that ended.
    pub retries_max: u64,
    /// The average delay before a retry.
    pub backoff_average_ms: Option<u64>,
    /// The average time from death to close.
    pub dead_age_average_ms: Option<u64>,
    /// The longest time from death to close.
    pub dead_age_max_ms: u64,
    /// Messages accepted per second since the counters began.
    pub messages_per_second: Option<f64>,
    /// Payload bytes accepted per second since the counters began.
    pub bytes_per_second: Option<f64>,
    /// Messages done per second since the counters began.
    pub done_per_second: Option<f64>,
}

/// The quotient of two numbers, or `None` if the divisor is 0.
#[expect(clippy::cast_precision_loss, reason = "shown to people; 53 bits are enough")]
pub(super) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Stats {
    /// The totals of an event over all queues and labels.
    #[must_use]
    pub fn sum(&self, event: Event) -> CounterTotals {
        self.sum_where(event, |_| true)
    }

    fn sum_where(&self, event: Event, wanted: impl Fn(&CounterView) -> bool) -> CounterTotals {
        let mut all = CounterTotals::default();
        for counter in self.counters.iter().filter(|c| c.event == event && wanted(c)) {
            all.count = all.count.saturating_add(counter.totals.count);
            all.sum = all.sum.saturating_add(counter.totals.sum);
            all.max = all.max.max(counter.totals.max);
        }
        all
    }

    /// Computes the summary.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let [enqueued, leased, acked, retried] =
            [Event::Enqueued, Event::Leased, Event::Acked, Event::Retried].map(|event| self.sum(event));
        let [dead, resolved, abandoned, succeeded] =
            [Event::Dead, Event::Resolved, Event::Abandoned, Event::RedriveSucceeded].map(|e| self.sum(e));
        let count = |event| self.sum(event).count;
        let redrive_failed = count(Event::RedriveFailed);
        let left_out = |c: &CounterView| c.labels.get("status").is_some_and(|status| status == "left_out");
        let by_retention = |c: &CounterView| c.labels.values().any(|what| what == "retention");
        let replies_left_out = self.sum_where(Event::Replied, left_out).count;
        let ended = acked.count.saturating_add(dead.count);
        let attempts = acked.sum.saturating_add(dead.sum);
        let closed = resolved.count.saturating_add(abandoned.count).saturating_add(succeeded.count);
        let age = resolved.sum.saturating_add(abandoned.sum).saturating_add(succeeded.sum);
        let since = self.counters.iter().map(|c| c.totals.since).min();
        let span_ms = since.map_or(0, |since| self.now.since(since).as_millis());
        let per_second = |n: u64| ratio(n.saturating_mul(1_000), span_ms);
        Summary {
            since,
            enqueued: enqueued.count,
            enqueued_bytes: enqueued.sum,
            leased: leased.count,
            acked: acked.count,
            failed: count(Event::Failed),
            retried: retried.count,
            dead: dead.count,
            redriven: count(Event::Redriven),
            redrive_succeeded: succeeded.count,
            redrive_failed,
            resolved: resolved.count.saturating_add(succeeded.count),
            abandoned: abandoned.count,
            reviews: count(Event::Reviewed),
            quarantined: count(Event::Quarantined),
            discarded: count(Event::Discarded),
            removed_by_retention: self.sum_where(Event::Discarded, by_retention).count,
            expired: count(Event::Expired),
            replies: count(Event::Replied).saturating_sub(replies_left_out),
            replies_left_out,
            overflows: count(Event::Overflowed),
            letters_open: self.queues.iter().map(|q| q.letters_open).sum(),
            open_by_priority: self.open_by(|key| key.priority),
            open_by_kind: self.open_by(|key| key.kind.clone()),
            open_by_dlq: self.dlqs.iter().map(|dlq| (dlq.dlq.clone(), dlq.open())).collect(),
            letters_peak: self.letters_peak,
            messages_peak: self.messages_peak,
            oldest_open_ms: self.oldest_open().map(Span::as_millis),
            retry_success_rate: ratio(succeeded.count, succeeded.count.saturating_add(redrive_failed)),
            abandonment_rate: ratio(abandoned.count, dead.count),
            dead_letter_rate: ratio(dead.count, ended),
            retries_average: ratio(attempts.saturating_sub(ended), ended),
            retries_max: acked.max.max(dead.max).saturating_sub(1),
            backoff_average_ms: retried.sum.checked_div(retried.count),
            dead_age_average_ms: age.checked_div(closed),
            dead_age_max_ms: resolved.max.max(abandoned.max).max(succeeded.max),
            messages_per_second: per_second(enqueued.count),
            bytes_per_second: per_second(enqueued.sum),
            done_per_second: per_second(acked.count),
        }
    }

    /// Open letters by a part of their key.
    fn open_by<K: Ord>(&self, part: impl Fn(&OpenKey) -> K) -> BTreeMap<K, u64> {
        let mut sums: BTreeMap<K, u64> = BTreeMap::new();
        for letters in &self.open {
            let sum = sums.entry(part(&letters.key)).or_default();
            *sum = sum.saturating_add(letters.open);
        }
        sums
    }

    /// For each queue with redrives that ended, the share of them that succeeded.
    #[must_use]
    pub fn retry_success_rates(&self) -> BTreeMap<&QueueName, f64> {
        let mut ended: BTreeMap<&QueueName, (u64, u64)> = BTreeMap::new();
        for counter in &self.counters {
            let count = counter.totals.count;
            let succeeded = counter.event == Event::RedriveSucceeded;
            if !succeeded && counter.event != Event::RedriveFailed {
                continue;
            }
            let succeeded = if succeeded { count } else { 0 };
            let sums = ended.entry(&counter.queue).or_default();
            *sums = (sums.0.saturating_add(succeeded), sums.1.saturating_add(count));
        }
        ended.into_iter().filter_map(|(queue, (part, whole))| Some((queue, ratio(part, whole)?))).collect()
    }

    /// The age of the oldest open letter.
    #[must_use]
    pub fn oldest_open(&self) -> Option<Span> {
        self.oldest_open_at.map(|at| self.now.since(at))
    }
}
