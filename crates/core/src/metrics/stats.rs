//! What was counted, and what follows from it: rates, averages, the highest. A store keeps one small row per
//! event, queue and labels; the number of rows is bounded.

use super::Event;
use super::open::{OpenKey, OpenLetters};
use super::registry::Snapshot;
use crate::ids::QueueName;
use crate::limits;
use crate::priority::Priority;
use crate::store::Drawer;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// What parts the values of labels in a key: not printable, so it is in none of them.
const SEPARATOR: char = '\u{1f}';
/// What stands for the values beyond the bound.
pub(super) const OTHER: &str = "other";

/// One counted thing: an event, in a queue, with the values of its labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TallyKey {
    /// The event.
    pub event: Event,
    /// The queue of the message.
    pub queue: QueueName,
    /// The values of the event's labels, after `queue`, as a store keeps them.
    pub label: String,
}

impl TallyKey {
    /// A key. Values are cut and printable, whatever they were.
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

    /// The key that is counted when there are too many of this queue and event: the first value is folded.
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

/// How often, how much in all, and the most at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// How often.
    pub count: u64,
    /// The sum of the amounts.
    pub sum: u64,
    /// The highest amount.
    pub max: u64,
    /// Since when it is counted.
    pub since: Time,
}

impl Tally {
    /// One more.
    pub fn add(&mut self, amount: u64, now: Time) {
        if self.count == 0 {
            self.since = now;
        }
        self.count = self.count.saturating_add(1);
        self.sum = self.sum.saturating_add(amount);
        self.max = self.max.max(amount);
    }
}

/// The tallies of a store: what every backend counts by, so that all fold alike.
#[derive(Clone, Debug, Default)]
pub struct Tallies {
    rows: BTreeMap<TallyKey, Tally>,
    /// How many of each event and queue there are: counting them anew for every event that is folded is a walk.
    known: HashMap<(Event, QueueName), usize>,
}

impl Tallies {
    /// Those that were kept.
    pub fn new(rows: impl IntoIterator<Item = (TallyKey, Tally)>) -> Self {
        let mut tallies = Self { rows: rows.into_iter().collect(), known: HashMap::new() };
        for key in tallies.rows.keys() {
            *tallies.known.entry((key.event, key.queue.clone())).or_default() += 1;
        }
        tallies
    }

    /// Counts one event, and says under which key. Beyond [`limits::TALLIES_MAX`] of an event and queue the
    /// first label's new values are counted as `other`.
    pub fn add(&mut self, key: TallyKey, amount: u64, now: Time) -> TallyKey {
        if let Some(tally) = self.rows.get_mut(&key) {
            tally.add(amount, now);
            return key;
        }
        let known = self.known.entry((key.event, key.queue.clone())).or_default();
        let key = if *known >= limits::TALLIES_MAX { key.folded() } else { key };
        let tally = self.rows.entry(key.clone()).or_insert_with(|| {
            *known += 1;
            Tally::default()
        });
        tally.add(amount, now);
        key
    }

    /// One of them.
    #[must_use]
    pub fn get(&self, key: &TallyKey) -> Option<&Tally> {
        self.rows.get(key)
    }

    /// All of them, as people see them.
    #[must_use]
    pub fn counted(&self) -> Vec<Counted> {
        let show = |(key, tally): (&TallyKey, &Tally)| Counted {
            event: key.event,
            queue: key.queue.clone(),
            labels: key.labels(),
            tally: *tally,
        };
        self.rows.iter().map(show).collect()
    }
}

/// One counter as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// What happened.
    pub event: Event,
    /// In which queue.
    pub queue: QueueName,
    /// With which labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// How often and how much.
    #[serde(flatten)]
    pub tally: Tally,
}

/// One queue as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStats {
    /// The name.
    pub queue: QueueName,
    /// Scheduled or ready.
    pub waiting: u64,
    /// With workers.
    pub leased: u64,
    /// Payload bytes of both.
    pub bytes: u64,
    /// Dead letters that are not closed.
    pub letters_open: u64,
    /// Most messages it ever held.
    pub peak: u64,
    /// Most dead letters it ever had, closed ones included.
    pub letters_peak: u64,
    /// How many it may hold, if that is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
}

impl QueueStats {
    /// How full it is, if that is limited.
    #[must_use]
    pub fn utilisation(&self) -> Option<f64> {
        ratio(self.waiting.saturating_add(self.leased), self.capacity?)
    }
}

/// Everything counted and measured, at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// The moment, by the store's clock.
    pub now: Time,
    /// What a store counted, in commits; survives a restart.
    pub counters: Vec<Counted>,
    /// The queues as they stand, by name.
    pub queues: Vec<QueueStats>,
    /// Letters that are not closed, by queue, kind and priority.
    #[serde(default)]
    pub open: Vec<OpenLetters>,
    /// All letters, by dead letter queue and status.
    #[serde(default)]
    pub drawers: Vec<Drawer>,
    /// Most messages the store held at once, in all its queues.
    #[serde(default)]
    pub messages_peak: u64,
    /// Most dead letters the store held at once, closed ones included.
    #[serde(default)]
    pub letters_peak: u64,
    /// When the oldest letter that is not closed died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_open_at: Option<Time>,
    /// What the process that holds the store measured about itself.
    pub process: Snapshot,
}

/// What follows from the counters. Rates are parts of one; nothing when there is nothing to divide by.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Since when there are counters.
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
    /// Letters sent back.
    pub redriven: u64,
    /// Of these, done.
    pub redrive_succeeded: u64,
    /// Of these, dead again.
    pub redrive_failed: u64,
    /// Letters closed as dealt with, those that succeeded included.
    pub resolved: u64,
    /// Letters given up.
    pub abandoned: u64,
    /// Letters put up for review.
    pub reviews: u64,
    /// Letters set aside.
    pub quarantined: u64,
    /// Messages and letters removed.
    pub discarded: u64,
    /// Of these, the letters that retention removed.
    #[serde(default)]
    pub removed_by_retention: u64,
    /// Messages dropped because their time was over.
    pub expired: u64,
    /// Replies sent.
    pub replies: u64,
    /// Replies that had no place.
    pub replies_left_out: u64,
    /// Enqueues refused by a full queue.
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
    /// Most letters the store held at once, closed ones included.
    pub letters_peak: u64,
    /// Most messages the store held at once.
    pub messages_peak: u64,
    /// How long the oldest open letter lies there.
    pub oldest_open_ms: Option<u64>,
    /// Of the redriven messages that ended, those that were done.
    pub retry_success_rate: Option<f64>,
    /// Of the deaths, those given up.
    pub abandonment_rate: Option<f64>,
    /// Of the messages that ended, those that died.
    pub dead_letter_rate: Option<f64>,
    /// Retries per message that ended, on average.
    pub retries_average: Option<f64>,
    /// The most retries of one message that ended.
    pub retries_max: u64,
    /// The average delay before a retry.
    pub backoff_average_ms: Option<u64>,
    /// The average time from death to close.
    pub dead_age_average_ms: Option<u64>,
    /// The longest.
    pub dead_age_max_ms: u64,
    /// Messages accepted per second since the counters began.
    pub messages_per_second: Option<f64>,
    /// Their bytes.
    pub bytes_per_second: Option<f64>,
    /// Messages done per second since the counters began.
    pub done_per_second: Option<f64>,
}

/// A part of a whole; nothing when there is no whole.
#[expect(clippy::cast_precision_loss, reason = "shown to people; 53 bits are enough")]
pub(super) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl Stats {
    /// All tallies of an event, added up.
    #[must_use]
    pub fn sum(&self, event: Event) -> Tally {
        self.sum_where(event, |_| true)
    }

    fn sum_where(&self, event: Event, wanted: impl Fn(&Counted) -> bool) -> Tally {
        let mut all = Tally::default();
        for counted in self.counters.iter().filter(|c| c.event == event && wanted(c)) {
            all.count = all.count.saturating_add(counted.tally.count);
            all.sum = all.sum.saturating_add(counted.tally.sum);
            all.max = all.max.max(counted.tally.max);
        }
        all
    }

    /// What follows from it.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let [enqueued, leased, acked, retried] =
            [Event::Enqueued, Event::Leased, Event::Acked, Event::Retried].map(|event| self.sum(event));
        let [dead, resolved, abandoned, succeeded] =
            [Event::Dead, Event::Resolved, Event::Abandoned, Event::RedriveSucceeded].map(|e| self.sum(e));
        let count = |event| self.sum(event).count;
        let redrive_failed = count(Event::RedriveFailed);
        let left_out = |c: &Counted| c.labels.get("status").is_some_and(|status| status == "left_out");
        let by_retention = |c: &Counted| c.labels.values().any(|what| what == "retention");
        let replies_left_out = self.sum_where(Event::Replied, left_out).count;
        let ended = acked.count.saturating_add(dead.count);
        let attempts = acked.sum.saturating_add(dead.sum);
        let closed = resolved.count.saturating_add(abandoned.count).saturating_add(succeeded.count);
        let age = resolved.sum.saturating_add(abandoned.sum).saturating_add(succeeded.sum);
        let since = self.counters.iter().map(|c| c.tally.since).min();
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
            open_by_dlq: self.drawers.iter().map(|drawer| (drawer.dlq.clone(), drawer.open())).collect(),
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
        for counted in &self.open {
            let sum = sums.entry(part(&counted.key)).or_default();
            *sum = sum.saturating_add(counted.open);
        }
        sums
    }

    /// How long the oldest open letter lies there.
    #[must_use]
    pub fn oldest_open(&self) -> Option<Span> {
        self.oldest_open_at.map(|at| self.now.since(at))
    }
}
