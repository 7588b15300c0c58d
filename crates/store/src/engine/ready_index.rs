//! The ready index: finds the next message without reading the tables.
//!
//! It holds one small entry per waiting message, ordered by (`ready_at`, `seq`) within each queue and priority level.
//! Messages blocked by an ordering key or a breaker are parked with that key, so that they never hide eligible work.
//! Suspects are kept apart, because not every worker may have them. Beyond a cap, the tail of each level stays on disk
//! and is refilled by id. The index holds nothing that the tables do not: it can be dropped and rebuilt at any time.
//!
//! An entry passes up to three layers: it is the front of its ordering key, if it has one; its breaker lets it through,
//! if it has one (`breaker_queue.rs`); then it stands among the ordinary or the suspect messages of its level.

use super::breaker_queue::{BreakerQueue, Mode};
use redrive_core::breaker::BreakerKey;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::lifecycle::{Lifecycle, Phase};
use redrive_core::message::{MessageMeta, Priority};
use redrive_core::poison::WorkerLoad;
use redrive_core::scheduler::Head;
use redrive_core::store::WaitingFor;
use redrive_core::time::Time;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

/// The position of a waiting message in its level: `ready_at`, then `seq`.
pub(super) type ReadyPosition = (Time, u64);

/// One priority level of one queue.
#[derive(Debug, Default)]
struct Level {
    waiting: BTreeMap<ReadyPosition, MessageId>,
    /// Messages without an ordering key are not in memory from this id on.
    spilled_from: Option<MessageId>,
}

/// The live messages of one ordering key, in order, and the dead letters that hold the key.
#[derive(Debug, Default)]
struct KeyQueue {
    messages: BTreeMap<u64, IndexEntry>,
    /// How many of the messages are leased: never more than one.
    leased: usize,
    /// The sequence numbers of dead letters that hold the key. Each blocks the messages behind it.
    held_by: BTreeSet<u64>,
}

/// What the index knows of one message.
#[derive(Clone, Debug)]
pub(super) struct IndexEntry {
    pub(super) id: MessageId,
    pub(super) priority: Priority,
    pub(super) ready_at: Time,
    deadline: Option<Time>,
    leased: bool,
    suspect: bool,
    breaker: Option<String>,
}

impl IndexEntry {
    fn new(meta: &MessageMeta, lifecycle: &Lifecycle, leased: bool, breaker: Option<String>) -> Self {
        Self {
            id: meta.id,
            priority: meta.priority,
            ready_at: lifecycle.ready_at,
            deadline: meta.limits.in_generation(lifecycle.generation).deadline,
            leased,
            suspect: lifecycle.indicators.is_suspect(),
            breaker,
        }
    }
}

impl KeyQueue {
    /// The only message of this key that may be leased next, if there is one; it may not be ready yet.
    fn front(&self) -> Option<(u64, IndexEntry)> {
        let (seq, first) = self.messages.first_key_value()?;
        let free = self.leased == 0 && self.held_by.first().is_none_or(|letter| letter >= seq);
        free.then(|| (*seq, first.clone()))
    }

    fn insert(&mut self, seq: u64, entry: IndexEntry) {
        self.leased += usize::from(entry.leased);
        self.messages.insert(seq, entry);
    }

    fn remove(&mut self, seq: u64) {
        if let Some(entry) = self.messages.remove(&seq) {
            self.leased -= usize::from(entry.leased);
        }
    }

    fn is_idle(&self) -> bool {
        self.messages.is_empty() && self.held_by.is_empty()
    }

    /// How many messages wait without being next.
    fn blocked(&self) -> usize {
        self.messages.len().saturating_sub(self.leased).saturating_sub(usize::from(self.front().is_some()))
    }
}

/// The part of the index for one queue.
#[derive(Debug, Default)]
struct ReadyQueue {
    levels: [Level; 5],
    /// Suspects that could be leased.
    suspects: [BTreeMap<ReadyPosition, MessageId>; 5],
    /// Messages with a deadline that could be leased: ordinary ones, then suspects.
    deadlines: DeadlineIndex,
    suspect_deadlines: DeadlineIndex,
    key_queues: HashMap<String, KeyQueue>,
    /// What the queue's breakers are keyed by, if it has any.
    breaker: Option<BreakerKey>,
    breaker_queues: HashMap<String, BreakerQueue>,
    /// How many messages wait behind each breaker key, in memory or not.
    behind_breaker: HashMap<String, u64>,
    /// How many messages wait behind another message of their ordering key, or behind a dead letter that holds it.
    behind_keys: usize,
    /// Messages whose retry was put off because they look like poison.
    throttled: BTreeSet<(Time, MessageId)>,
}

/// The order of messages with a deadline: deadline, then level, then sequence number.
type Urgency = (Time, usize, u64);

/// Messages with a deadline. Those that are not ready yet are kept apart, so that finding the most urgent ready one
/// never has to skip over them.
#[derive(Debug, Default)]
struct DeadlineIndex {
    ready: BTreeMap<Urgency, MessageId>,
    /// Messages that are not ready yet, by `ready_at`, then sequence number.
    not_ready: BTreeMap<ReadyPosition, (Urgency, MessageId)>,
}

impl DeadlineIndex {
    fn insert(&mut self, position: ReadyPosition, urgency: Urgency, id: MessageId) {
        self.not_ready.insert(position, (urgency, id));
    }

    fn remove(&mut self, position: ReadyPosition, urgency: Urgency) {
        self.not_ready.remove(&position);
        self.ready.remove(&urgency);
    }

    /// The most urgent message that is ready.
    fn first(&mut self, now: Time) -> Option<(Urgency, MessageId)> {
        while let Some(entry) = self.not_ready.first_entry().filter(|entry| entry.key().0 <= now) {
            let (urgency, id) = entry.remove();
            self.ready.insert(urgency, id);
        }
        self.ready.first_key_value().map(|(urgency, id)| (*urgency, *id))
    }
}

/// A message that may be leased next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) id: MessageId,
    pub(crate) suspect: bool,
}

impl ReadyQueue {
    /// Adjusts the number of messages that wait behind this message's breaker key.
    fn count(&mut self, meta: &MessageMeta, by: i64) {
        let Some(key) = self.breaker.as_ref().and_then(|key| key.of(meta)) else { return };
        let count = self.behind_breaker.get(&key).copied().unwrap_or(0).saturating_add_signed(by);
        if count == 0 {
            self.behind_breaker.remove(&key);
        } else {
            self.behind_breaker.insert(key, count);
        }
    }

    fn level(&mut self, priority: Priority) -> &mut Level {
        let [critical, high, normal, low, background] = &mut self.levels;
        match priority {
            Priority::Critical => critical,
            Priority::High => high,
            Priority::Normal => normal,
            Priority::Low => low,
            Priority::Background => background,
        }
    }

    /// The ordered entries that this one belongs to: by level, with suspects apart.
    fn entries_like(&mut self, entry: &IndexEntry) -> &mut BTreeMap<ReadyPosition, MessageId> {
        if entry.suspect {
            let [critical, high, normal, low, background] = &mut self.suspects;
            return match entry.priority {
                Priority::Critical => critical,
                Priority::High => high,
                Priority::Normal => normal,
                Priority::Low => low,
                Priority::Background => background,
            };
        }
        &mut self.level(entry.priority).waiting
    }

    fn deadlines_for(&mut self, entry: &IndexEntry) -> &mut DeadlineIndex {
        if entry.suspect { &mut self.suspect_deadlines } else { &mut self.deadlines }
    }

    /// Adds an entry to the last layer, where leasing looks.
    fn insert_leasable(&mut self, seq: u64, entry: &IndexEntry) {
        self.entries_like(entry).insert((entry.ready_at, seq), entry.id);
        if let Some(deadline) = entry.deadline {
            self.deadlines_for(entry).insert(
                (entry.ready_at, seq),
                (deadline, entry.priority.level(), seq),
                entry.id,
            );
        }
    }

    fn remove_leasable(&mut self, seq: u64, entry: &IndexEntry) -> bool {
        if let Some(deadline) = entry.deadline {
            self.deadlines_for(entry).remove((entry.ready_at, seq), (deadline, entry.priority.level(), seq));
        }
        self.entries_like(entry).remove(&(entry.ready_at, seq)).is_some()
    }

    /// Adds an entry, by way of its breaker if it has one.
    fn insert(&mut self, seq: u64, entry: &IndexEntry) {
        match &entry.breaker {
            Some(key) => self.update_breaker_queue(key, |queue| queue.insert(seq, entry.clone())),
            None => self.insert_leasable(seq, entry),
        }
    }

    /// Removes an entry. Returns whether it was there.
    fn remove(&mut self, seq: u64, entry: &IndexEntry) -> bool {
        match &entry.breaker {
            Some(key) => {
                let mut was_there = false;
                self.update_breaker_queue(key, |queue| was_there = queue.remove(seq, entry));
                was_there
            }
            None => self.remove_leasable(seq, entry),
        }
    }

    /// Changes a breaker's queue, then adds and removes the entries whose visibility changed.
    fn update_breaker_queue(&mut self, key: &str, change: impl FnOnce(&mut BreakerQueue)) {
        let mut queue = self.breaker_queues.remove(key).unwrap_or_default();
        change(&mut queue);
        let (to_remove, to_insert) = queue.take_changes();
        if !queue.is_idle() {
            self.breaker_queues.insert(key.to_owned(), queue);
        }
        for (seq, entry) in &to_remove {
            self.remove_leasable(*seq, entry);
        }
        for (seq, entry) in &to_insert {
            self.insert_leasable(*seq, entry);
        }
    }

    /// Changes the queue of an ordering key, then adds and removes its front accordingly.
    fn update_key_queue(&mut self, key: &str, change: impl FnOnce(&mut KeyQueue)) {
        if !self.key_queues.contains_key(key) {
            self.key_queues.insert(key.to_owned(), KeyQueue::default());
        }
        let Some(queue) = self.key_queues.get_mut(key) else { return };
        let (before, blocked) = (queue.front(), queue.blocked());
        change(queue);
        let after = queue.front();
        self.behind_keys = (self.behind_keys + queue.blocked()).saturating_sub(blocked);
        if queue.is_idle() {
            self.key_queues.remove(key);
        }
        if let Some((seq, entry)) = before {
            self.remove(seq, &entry);
        }
        if let Some((seq, entry)) = after {
            self.insert(seq, &entry);
        }
    }
}

/// The index of all waiting messages, and of the times at which leases and messages expire.
#[derive(Debug)]
pub(crate) struct ReadyIndex {
    queues: HashMap<QueueName, ReadyQueue>,
    /// Leased messages by when their lease expires.
    leases: BTreeSet<(Time, MessageId)>,
    /// Waiting messages by when they become useless: their deadline or time to live is over.
    useless: BTreeSet<(Time, MessageId)>,
    /// What each worker has leased.
    worker_loads: HashMap<String, WorkerLoad>,
    entries: usize,
    entries_max: usize,
}

/// A level whose tail is on disk and that has few entries left in memory.
pub(crate) struct Refill {
    pub(crate) queue: QueueName,
    pub(crate) priority: Priority,
    pub(crate) from: MessageId,
}

impl ReadyIndex {
    pub(crate) fn new(entries_max: usize) -> Self {
        Self {
            queues: HashMap::new(),
            leases: BTreeSet::new(),
            useless: BTreeSet::new(),
            worker_loads: HashMap::new(),
            entries: 0,
            entries_max,
        }
    }

    fn queue(&mut self, name: &QueueName) -> &mut ReadyQueue {
        if !self.queues.contains_key(name) {
            self.queues.insert(name.clone(), ReadyQueue::default());
        }
        self.queues.entry(name.clone()).or_default()
    }

    /// Adds a live message.
    pub(crate) fn add(&mut self, meta: &MessageMeta, lifecycle: &Lifecycle) {
        match &lifecycle.phase {
            Phase::Waiting => {
                if let Some(at) = meta.limits.in_generation(lifecycle.generation).useless_at() {
                    self.useless.insert((at, meta.id));
                }
                let queue = self.queue(&meta.queue);
                queue.count(meta, 1);
                if lifecycle.indicators.is_throttled() {
                    queue.throttled.insert((lifecycle.ready_at, meta.id));
                }
                self.add_entry(meta, lifecycle, false);
            }
            Phase::Leased(lease) => {
                self.leases.insert((lease.expires_at, meta.id));
                self.add_lease_of(&lease.worker, lifecycle.indicators.is_suspect());
                if meta.ordering_key.is_some() {
                    self.add_entry(meta, lifecycle, true);
                }
            }
            Phase::Dead | Phase::Over(_) => {}
        }
    }

    fn add_entry(&mut self, meta: &MessageMeta, lifecycle: &Lifecycle, leased: bool) {
        let breaker = self.queue(&meta.queue).breaker.as_ref().and_then(|key| key.of(meta));
        let entry = IndexEntry::new(meta, lifecycle, leased, breaker);
        let full = self.entries >= self.entries_max;
        let seq = meta.seq;
        if let Some(key) = &meta.ordering_key {
            // All messages of a key stay in memory: otherwise their order could not be kept.
            self.queue(&meta.queue).update_key_queue(key, |queue| queue.insert(seq, entry));
        } else {
            let level = self.queue(&meta.queue).level(meta.priority);
            // Suspects are few and always stay in memory: isolation has to know whether one waits.
            match level.spilled_from {
                Some(from) if meta.id >= from && !entry.suspect => return,
                None if full && !entry.suspect => {
                    level.spilled_from = Some(meta.id);
                    return;
                }
                Some(_) | None => {}
            }
            self.queue(&meta.queue).insert(seq, &entry);
        }
        self.entries += 1;
    }

    /// Removes a live message; `lifecycle` is the one it was added with.
    pub(crate) fn remove(&mut self, meta: &MessageMeta, lifecycle: &Lifecycle) {
        let terms = meta.limits.in_generation(lifecycle.generation);
        let leased = match &lifecycle.phase {
            Phase::Waiting => {
                if let Some(at) = terms.useless_at() {
                    self.useless.remove(&(at, meta.id));
                }
                let queue = self.queue(&meta.queue);
                queue.count(meta, -1);
                queue.throttled.remove(&(lifecycle.ready_at, meta.id));
                false
            }
            Phase::Leased(lease) => {
                self.leases.remove(&(lease.expires_at, meta.id));
                self.remove_lease_of(&lease.worker, lifecycle.indicators.is_suspect());
                true
            }
            Phase::Dead | Phase::Over(_) => return,
        };
        let seq = meta.seq;
        if let Some(key) = &meta.ordering_key {
            self.queue(&meta.queue).update_key_queue(key, |queue| queue.remove(seq));
            self.entries = self.entries.saturating_sub(1);
        } else if !leased {
            let queue = self.queue(&meta.queue);
            let breaker = queue.breaker.as_ref().and_then(|key| key.of(meta));
            if queue.remove(seq, &IndexEntry::new(meta, lifecycle, false, breaker)) {
                self.entries = self.entries.saturating_sub(1);
            }
        }
    }

    fn add_lease_of(&mut self, worker: &str, suspect: bool) {
        if !self.worker_loads.contains_key(worker) {
            self.worker_loads.insert(worker.to_owned(), WorkerLoad::default());
        }
        if let Some(load) = self.worker_loads.get_mut(worker) {
            load.leases += 1;
            load.suspects += usize::from(suspect);
        }
    }

    fn remove_lease_of(&mut self, worker: &str, suspect: bool) {
        if let Some(load) = self.worker_loads.get_mut(worker) {
            load.leases = load.leases.saturating_sub(1);
            load.suspects = load.suspects.saturating_sub(usize::from(suspect));
            if load.leases == 0 {
                self.worker_loads.remove(worker);
            }
        }
    }

    /// What a worker has leased.
    pub(crate) fn worker_load(&self, worker: &str) -> WorkerLoad {
        self.worker_loads.get(worker).copied().unwrap_or_default()
    }

    /// The messages with a live lease, by when it expires.
    pub(crate) fn live_leases(&self, now: Time) -> impl Iterator<Item = MessageId> {
        let expired = (now, MessageId::from_bytes([255; 16]));
        self.leases.range((Bound::Excluded(expired), Bound::Unbounded)).map(|(_, id)| *id)
    }

    /// Sets what a queue's breakers are keyed by. Must be called before any of its messages is added.
    pub(crate) fn set_breaker_key(&mut self, queue: &QueueName, key: Option<&BreakerKey>) {
        self.queue(queue).breaker = key.cloned();
    }

    /// Sets whether a breaker lets all, some or none of its messages through.
    pub(crate) fn set_breaker_mode(&mut self, queue: &QueueName, key: &str, mode: Mode) {
        let ready_queue = self.queue(queue);
        let mut on_disk = None;
        ready_queue.update_breaker_queue(key, |queue| {
            queue.mode = mode;
            if mode != Mode::Held {
                on_disk = queue.on_disk_from.take();
            }
        });
        // Messages that refills left on disk while the breaker held them are looked for again.
        if let Some(from) = on_disk {
            for level in &mut ready_queue.levels {
                level.spilled_from = Some(level.spilled_from.map_or(from, |at| at.min(from)));
            }
        }
    }

    /// How many messages wait behind a breaker.
    pub(crate) fn waiting_behind(&self, queue: &QueueName, key: &str) -> u64 {
        self.queues.get(queue).and_then(|q| q.behind_breaker.get(key)).copied().unwrap_or(0)
    }

    /// How many waiting messages of a queue cannot be leased now, by reason. Pauses are not known here.
    pub(crate) fn waiting_for(&self, queue: &QueueName, now: Time) -> WaitingFor {
        let Some(queue) = self.queues.get(queue) else { return WaitingFor::default() };
        let held = queue.breaker_queues.iter().filter(|(_, queue)| queue.mode != Mode::Free);
        let breaker = held.filter_map(|(key, _)| queue.behind_breaker.get(key)).sum();
        let due =
            |entries: &BTreeMap<ReadyPosition, MessageId>| entries.range(..=(now, u64::MAX)).count() as u64;
        WaitingFor {
            pause: 0,
            breaker,
            ordering_key: queue.behind_keys as u64,
            idle_worker: queue.suspects.iter().map(due).sum(),
            throttle: queue.throttled.iter().filter(|(at, _)| *at > now).count() as u64,
        }
    }

    /// Notes that a dead letter holds its ordering key, or that it no longer does.
    pub(crate) fn set_key_held(&mut self, meta: &MessageMeta, held: bool) {
        let Some(key) = &meta.ordering_key else { return };
        let seq = meta.seq;
        self.queue(&meta.queue).update_key_queue(key, |queue| {
            if held {
                queue.held_by.insert(seq);
            } else {
                queue.held_by.remove(&seq);
            }
        });
    }

    /// The first message of a level, ready or not. Considers suspects only if `suspects` is set.
    pub(crate) fn head(&self, queue: &QueueName, priority: Priority, suspects: bool) -> Option<(Head, Next)> {
        let queue = self.queues.get(queue)?;
        let ordinary = queue.levels.get(priority.level())?.waiting.first_key_value();
        let suspect = queue.suspects.get(priority.level())?.first_key_value().filter(|_| suspects);
        let candidates = [(ordinary, false), (suspect, true)];
        let first = candidates.into_iter().filter_map(|(first, suspect)| first.map(|f| (f, suspect)));
        let (((ready_at, seq), id), suspect) = first.min_by_key(|((position, _), _)| **position)?;
        Some((Head { ready_at: *ready_at, seq: *seq }, Next { id: *id, suspect }))
    }

    /// The ready message with the earliest deadline. Considers suspects only if `suspects` is set.
    pub(crate) fn most_urgent(
        &mut self,
        queue: &QueueName,
        suspects: bool,
        now: Time,
    ) -> Option<((Time, usize, u64), Next)> {
        let queue = self.queues.get_mut(queue)?;
        let ordinary = queue.deadlines.first(now).map(|(urgency, id)| (urgency, Next { id, suspect: false }));
        let suspect = queue.suspect_deadlines.first(now).filter(|_| suspects);
        let suspect = suspect.map(|(urgency, id)| (urgency, Next { id, suspect: true }));
        ordinary.into_iter().chain(suspect).min_by_key(|(urgency, _)| *urgency)
    }

    /// The ready suspect that has waited longest.
    pub(crate) fn oldest_suspect(&self, queues: &[QueueName], now: Time) -> Option<(Time, MessageId)> {
        let queues = queues.iter().filter_map(|name| self.queues.get(name));
        let firsts = queues.flat_map(|q| q.suspects.iter().filter_map(BTreeMap::first_key_value));
        let ready = firsts.filter(|((at, _), _)| *at <= now);
        ready.min_by_key(|(position, _)| **position).map(|((at, _), id)| (*at, *id))
    }

    /// When the next ordinary message and the next suspect of a queue are due, if any wait.
    pub(crate) fn next_due(&self, queue: &QueueName) -> (Option<Time>, Option<Time>) {
        let Some(queue) = self.queues.get(queue) else { return (None, None) };
        let first = |entries: &BTreeMap<ReadyPosition, MessageId>| entries.keys().next().map(|(at, _)| *at);
        // The part on disk may contain something due; a lease call will find out.
        let due = |level: &Level| match level.spilled_from {
            Some(_) if level.waiting.is_empty() => Some(Time::ZERO),
            Some(_) | None => first(&level.waiting),
        };
        let ordinary = queue.levels.iter().filter_map(due).min();
        (ordinary, queue.suspects.iter().filter_map(first).min())
    }

    /// Messages at the head of each level of a queue, at most this many per level.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn heads_of(&self, queue: &QueueName, at_most: usize) -> impl Iterator<Item = MessageId> {
        let levels = self.queues.get(queue).into_iter().flat_map(|queue| &queue.levels);
        levels.flat_map(move |level| level.waiting.values().copied().take(at_most))
    }

    /// Messages whose lease has expired, earliest first.
    pub(crate) fn expired_leases(&self, now: Time, limit: usize) -> Vec<MessageId> {
        self.leases.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| *id).collect()
    }

    /// Waiting messages whose time is over, earliest first.
    pub(crate) fn overdue(&self, now: Time, limit: usize) -> Vec<MessageId> {
        self.useless.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| *id).collect()
    }

    /// A level of these queues that has to be refilled before anything is picked from it.
    pub(crate) fn next_refill(&self, queues: &[QueueName], low_water: usize) -> Option<Refill> {
        queues.iter().find_map(|name| {
            let queue = self.queues.get(name)?;
            Priority::ALL.into_iter().find_map(|priority| {
                let level = queue.levels.get(priority.level())?;
                let from = level.spilled_from.filter(|_| level.waiting.len() < low_water)?;
                Some(Refill { queue: name.clone(), priority, from })
            })
        })
    }

    /// Moves the boundary of a level before it is refilled: from `rest` on, messages are still on disk.
    pub(crate) fn set_spill_start(&mut self, refill: &Refill, rest: Option<MessageId>) {
        self.queue(&refill.queue).level(refill.priority).spilled_from = rest;
    }

    /// Adds a message read from disk, unless it is in the index already or may stay on disk. Only a level that has
    /// run low is refilled, so one batch of rows bounds what is added.
    pub(crate) fn add_refilled(&mut self, meta: &MessageMeta, lifecycle: &Lifecycle) {
        let queue = self.queue(&meta.queue);
        let breaker = queue.breaker.as_ref().and_then(|key| key.of(meta));
        if let Some(breaker_queue) = breaker.as_ref().and_then(|key| queue.breaker_queues.get_mut(key))
            && (breaker_queue.has(meta, lifecycle) || breaker_queue.leaves_on_disk(meta.id))
        {
            return;
        }
        let entry = IndexEntry::new(meta, lifecycle, false, breaker);
        if queue.entries_like(&entry).contains_key(&(entry.ready_at, meta.seq)) {
            return;
        }
        queue.insert(meta.seq, &entry);
        self.entries += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_the_most_urgent_message_never_scans_those_in_backoff() {
        let mut deadlines = DeadlineIndex::default();
        let at = Time::from_millis;
        let id = |n: u64| MessageId::new(n, [0; 10]);
        for n in 1..=1_000 {
            deadlines.insert((at(500), n), (at(600), 2, n), id(n));
        }
        deadlines.insert((at(10), 2_000), (at(900), 2, 2_000), id(2_000));
        assert_eq!(deadlines.first(at(5)), None);
        assert_eq!(
            deadlines.first(at(20)),
            Some(((at(900), 2, 2_000), id(2_000))),
            "the only one that is ready"
        );
        assert_eq!(
            (deadlines.ready.len(), deadlines.not_ready.len()),
            (1, 1_000),
            "the others were not touched"
        );
        assert_eq!(deadlines.first(at(500)).map(|(urgency, _)| urgency), Some((at(600), 2, 1)));
        deadlines.remove((at(500), 1), (at(600), 2, 1));
        assert_eq!(deadlines.first(at(500)).map(|(urgency, _)| urgency), Some((at(600), 2, 2)));
    }
}
