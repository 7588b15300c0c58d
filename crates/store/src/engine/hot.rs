//! The hot index: which message is next, without asking the tables. One small entry per waiting message,
//! ordered by (`ready_at`, `seq`) in each queue and level; what an ordering key or a breaker blocks is parked
//! with its key, so that eligible work is never hidden behind it, and suspects stand apart, since not every
//! worker may have them. Beyond a cap each level's tail stays on disk and is refilled by id. It knows nothing
//! that the tables do not: it can be dropped and built again at any time.
//!
//! A message is shown in three layers: the front of its ordering key, if it has one; what its breaker lets
//! through, if it has one (`lines.rs`); then its place among the ordinary or the suspect messages of its level.

use super::lines::{Line, Mode};
use redrive_core::breaker::BreakerKey;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::lifecycle::{Life, Phase};
use redrive_core::message::{Priority, Slip};
use redrive_core::poison::Hands;
use redrive_core::scheduler::Head;
use redrive_core::store::WaitingFor;
use redrive_core::time::Time;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Where a waiting message stands in its level.
pub(super) type Place = (Time, u64);

/// One level of one queue.
#[derive(Debug, Default)]
struct Level {
    waiting: BTreeMap<Place, MessageId>,
    /// Messages without an ordering key from this id on are not in memory.
    spilled_from: Option<MessageId>,
}

/// The live messages of one ordering key, in order, and the dead letters that hold it.
#[derive(Debug, Default)]
struct Key {
    line: BTreeMap<u64, Parked>,
    /// How many of the line are leased: never more than one.
    leased: usize,
    /// Dead letters that hold the key, by their place in it: each holds those behind it.
    held_by: BTreeSet<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Parked {
    pub(super) id: MessageId,
    pub(super) priority: Priority,
    pub(super) ready_at: Time,
    deadline: Option<Time>,
    leased: bool,
    suspect: bool,
    breaker: Option<String>,
}

impl Parked {
    fn new(slip: &Slip, life: &Life, leased: bool, breaker: Option<String>) -> Self {
        Self {
            id: slip.id,
            priority: slip.priority,
            ready_at: life.ready_at,
            deadline: slip.terms.in_generation(life.generation).deadline,
            leased,
            suspect: life.indicators.is_suspect(),
            breaker,
        }
    }
}

impl Key {
    /// The one message of this key that may be leased now or later, if there is one.
    fn front(&self) -> Option<(u64, Parked)> {
        let (seq, first) = self.line.first_key_value()?;
        let free = self.leased == 0 && self.held_by.first().is_none_or(|letter| letter >= seq);
        free.then(|| (*seq, first.clone()))
    }

    fn join(&mut self, seq: u64, m: Parked) {
        self.leased += usize::from(m.leased);
        self.line.insert(seq, m);
    }

    fn leave(&mut self, seq: u64) {
        if let Some(m) = self.line.remove(&seq) {
            self.leased -= usize::from(m.leased);
        }
    }

    fn is_idle(&self) -> bool {
        self.line.is_empty() && self.held_by.is_empty()
    }

    /// How many wait and are not next.
    fn blocked(&self) -> usize {
        self.line.len().saturating_sub(self.leased).saturating_sub(usize::from(self.front().is_some()))
    }
}

#[derive(Debug, Default)]
struct HotQueue {
    levels: [Level; 5],
    /// Suspects that could be leased.
    suspects: [BTreeMap<Place, MessageId>; 5],
    /// Messages with a deadline that could be leased, and among them the suspects.
    dated: Dated,
    dated_suspects: Dated,
    keys: HashMap<String, Key>,
    /// What the queue's breakers go by, if it has any.
    breaker: Option<BreakerKey>,
    lines: HashMap<String, Line>,
    /// How many messages of each breaker wait, in memory or not.
    behind: HashMap<String, u64>,
    /// How many wait behind another message of their ordering key, or behind a dead letter that holds it.
    behind_keys: usize,
    /// Messages whose retry was put off because they look like poison.
    throttled: BTreeSet<(Time, MessageId)>,
}

/// What a message with a deadline goes by: deadline, then level, then sequence.
type Urgency = (Time, usize, u64);

/// Messages with a deadline. Those that wait out a backoff stand apart, so that a look for the most urgent one never
/// passes them by.
#[derive(Debug, Default)]
struct Dated {
    ready: BTreeMap<Urgency, MessageId>,
    /// By when they are ready, then sequence.
    coming: BTreeMap<Place, (Urgency, MessageId)>,
}

impl Dated {
    fn put(&mut self, place: Place, urgency: Urgency, id: MessageId) {
        self.coming.insert(place, (urgency, id));
    }

    fn take(&mut self, place: Place, urgency: Urgency) {
        self.coming.remove(&place);
        self.ready.remove(&urgency);
    }

    /// The most urgent of those that are ready by now.
    fn first(&mut self, now: Time) -> Option<(Urgency, MessageId)> {
        while let Some(entry) = self.coming.first_entry().filter(|entry| entry.key().0 <= now) {
            let (urgency, id) = entry.remove();
            self.ready.insert(urgency, id);
        }
        self.ready.first_key_value().map(|(urgency, id)| (*urgency, *id))
    }
}

/// What is next in a level, or by its deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) id: MessageId,
    pub(crate) suspect: bool,
}

impl HotQueue {
    /// Counts a waiting message of a breaker.
    fn count(&mut self, slip: &Slip, by: i64) {
        let Some(key) = self.breaker.as_ref().and_then(|key| key.of(slip)) else { return };
        let count = self.behind.get(&key).copied().unwrap_or(0).saturating_add_signed(by);
        if count == 0 {
            self.behind.remove(&key);
        } else {
            self.behind.insert(key, count);
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

    fn places(&mut self, m: &Parked) -> &mut BTreeMap<Place, MessageId> {
        if m.suspect {
            let [critical, high, normal, low, background] = &mut self.suspects;
            return match m.priority {
                Priority::Critical => critical,
                Priority::High => high,
                Priority::Normal => normal,
                Priority::Low => low,
                Priority::Background => background,
            };
        }
        &mut self.level(m.priority).waiting
    }

    fn dated(&mut self, m: &Parked) -> &mut Dated {
        if m.suspect { &mut self.dated_suspects } else { &mut self.dated }
    }

    /// The last layer: where leasing looks.
    fn put(&mut self, seq: u64, m: &Parked) {
        self.places(m).insert((m.ready_at, seq), m.id);
        if let Some(deadline) = m.deadline {
            self.dated(m).put((m.ready_at, seq), (deadline, m.priority.level(), seq), m.id);
        }
    }

    fn take(&mut self, seq: u64, m: &Parked) -> bool {
        if let Some(deadline) = m.deadline {
            self.dated(m).take((m.ready_at, seq), (deadline, m.priority.level(), seq));
        }
        self.places(m).remove(&(m.ready_at, seq)).is_some()
    }

    fn show(&mut self, seq: u64, m: &Parked) {
        match &m.breaker {
            Some(key) => self.with_line(key, |line| line.join(seq, m.clone())),
            None => self.put(seq, m),
        }
    }

    /// Says whether it was there.
    fn hide(&mut self, seq: u64, m: &Parked) -> bool {
        match &m.breaker {
            Some(key) => {
                let mut was_there = false;
                self.with_line(key, |line| was_there = line.leave(seq, m));
                was_there
            }
            None => self.take(seq, m),
        }
    }

    /// Changes the line of a breaker and shows or hides what that changes.
    fn with_line(&mut self, key: &str, change: impl FnOnce(&mut Line)) {
        let mut line = self.lines.remove(key).unwrap_or_default();
        change(&mut line);
        let (gone, come) = line.settle();
        if !line.is_idle() {
            self.lines.insert(key.to_owned(), line);
        }
        for (seq, m) in &gone {
            self.take(*seq, m);
        }
        for (seq, m) in &come {
            self.put(*seq, m);
        }
    }

    /// Changes a key's line and shows or hides its front accordingly.
    fn with_key(&mut self, key: &str, change: impl FnOnce(&mut Key)) {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.to_owned(), Key::default());
        }
        let Some(line) = self.keys.get_mut(key) else { return };
        let (before, blocked) = (line.front(), line.blocked());
        change(line);
        let after = line.front();
        self.behind_keys = (self.behind_keys + line.blocked()).saturating_sub(blocked);
        if line.is_idle() {
            self.keys.remove(key);
        }
        if let Some((seq, m)) = before {
            self.hide(seq, &m);
        }
        if let Some((seq, m)) = after {
            self.show(seq, &m);
        }
    }
}

/// The index of everything that waits, and of when leases and lives run out.
#[derive(Debug)]
pub(crate) struct Hot {
    queues: HashMap<QueueName, HotQueue>,
    /// Leased messages by when the lease runs out.
    leases: BTreeSet<(Time, MessageId)>,
    /// Waiting messages by when they become useless.
    useless: BTreeSet<(Time, MessageId)>,
    /// What each worker has.
    hands: HashMap<String, Hands>,
    entries: usize,
    entries_max: usize,
}

/// A level whose tail is on disk and whose memory part has run low.
pub(crate) struct Refill {
    pub(crate) queue: QueueName,
    pub(crate) priority: Priority,
    pub(crate) from: MessageId,
}

impl Hot {
    pub(crate) fn new(entries_max: usize) -> Self {
        Self {
            queues: HashMap::new(),
            leases: BTreeSet::new(),
            useless: BTreeSet::new(),
            hands: HashMap::new(),
            entries: 0,
            entries_max,
        }
    }

    fn queue(&mut self, name: &QueueName) -> &mut HotQueue {
        if !self.queues.contains_key(name) {
            self.queues.insert(name.clone(), HotQueue::default());
        }
        self.queues.entry(name.clone()).or_default()
    }

    /// Takes note of a live message.
    pub(crate) fn add(&mut self, slip: &Slip, life: &Life) {
        match &life.phase {
            Phase::Waiting => {
                if let Some(at) = slip.terms.in_generation(life.generation).useless_at() {
                    self.useless.insert((at, slip.id));
                }
                let queue = self.queue(&slip.queue);
                queue.count(slip, 1);
                if life.indicators.is_throttled() {
                    queue.throttled.insert((life.ready_at, slip.id));
                }
                self.add_entry(slip, life, false);
            }
            Phase::Leased(lease) => {
                self.leases.insert((lease.expires_at, slip.id));
                self.hold_on(&lease.worker, life.indicators.is_suspect());
                if slip.ordering_key.is_some() {
                    self.add_entry(slip, life, true);
                }
            }
            Phase::Dead | Phase::Over(_) => {}
        }
    }

    fn add_entry(&mut self, slip: &Slip, life: &Life, leased: bool) {
        let breaker = self.queue(&slip.queue).breaker.as_ref().and_then(|key| key.of(slip));
        let m = Parked::new(slip, life, leased, breaker);
        let full = self.entries >= self.entries_max;
        let seq = slip.seq;
        if let Some(key) = &slip.ordering_key {
            // A key's line is always whole in memory: its order could not be kept otherwise.
            self.queue(&slip.queue).with_key(key, |line| line.join(seq, m));
        } else {
            let level = self.queue(&slip.queue).level(slip.priority);
            // Suspects are few and have to be known: who waits for an idle worker is not on disk alone.
            match level.spilled_from {
                Some(from) if slip.id >= from && !m.suspect => return,
                None if full && !m.suspect => {
                    level.spilled_from = Some(slip.id);
                    return;
                }
                Some(_) | None => {}
            }
            self.queue(&slip.queue).show(seq, &m);
        }
        self.entries += 1;
    }

    /// Forgets a live message, as it was.
    pub(crate) fn remove(&mut self, slip: &Slip, life: &Life) {
        let terms = slip.terms.in_generation(life.generation);
        let leased = match &life.phase {
            Phase::Waiting => {
                if let Some(at) = terms.useless_at() {
                    self.useless.remove(&(at, slip.id));
                }
                let queue = self.queue(&slip.queue);
                queue.count(slip, -1);
                queue.throttled.remove(&(life.ready_at, slip.id));
                false
            }
            Phase::Leased(lease) => {
                self.leases.remove(&(lease.expires_at, slip.id));
                self.let_go(&lease.worker, life.indicators.is_suspect());
                true
            }
            Phase::Dead | Phase::Over(_) => return,
        };
        let seq = slip.seq;
        if let Some(key) = &slip.ordering_key {
            self.queue(&slip.queue).with_key(key, |line| line.leave(seq));
            self.entries = self.entries.saturating_sub(1);
        } else if !leased {
            let queue = self.queue(&slip.queue);
            let breaker = queue.breaker.as_ref().and_then(|key| key.of(slip));
            if queue.hide(seq, &Parked::new(slip, life, false, breaker)) {
                self.entries = self.entries.saturating_sub(1);
            }
        }
    }

    fn hold_on(&mut self, worker: &str, suspect: bool) {
        if !self.hands.contains_key(worker) {
            self.hands.insert(worker.to_owned(), Hands::default());
        }
        if let Some(hands) = self.hands.get_mut(worker) {
            hands.leases += 1;
            hands.suspects += usize::from(suspect);
        }
    }

    fn let_go(&mut self, worker: &str, suspect: bool) {
        if let Some(hands) = self.hands.get_mut(worker) {
            hands.leases = hands.leases.saturating_sub(1);
            hands.suspects = hands.suspects.saturating_sub(usize::from(suspect));
            if hands.leases == 0 {
                self.hands.remove(worker);
            }
        }
    }

    /// What a worker has.
    pub(crate) fn hands(&self, worker: &str) -> Hands {
        self.hands.get(worker).copied().unwrap_or_default()
    }

    /// Says what a queue's breakers go by; before any of its messages is added.
    pub(crate) fn go_by(&mut self, queue: &QueueName, key: Option<&BreakerKey>) {
        self.queue(queue).breaker = key.cloned();
    }

    /// Lets the messages of a breaker through, or some, or none.
    pub(crate) fn set_mode(&mut self, queue: &QueueName, key: &str, mode: Mode) {
        let hot = self.queue(queue);
        let mut on_disk = None;
        hot.with_line(key, |line| {
            line.mode = mode;
            if mode != Mode::Held {
                on_disk = line.on_disk_from.take();
            }
        });
        // What was passed over on disk while it was held is looked for again.
        if let Some(from) = on_disk {
            for level in &mut hot.levels {
                level.spilled_from = Some(level.spilled_from.map_or(from, |at| at.min(from)));
            }
        }
    }

    /// How many messages wait behind a breaker.
    pub(crate) fn held(&self, queue: &QueueName, key: &str) -> u64 {
        self.queues.get(queue).and_then(|q| q.behind.get(key)).copied().unwrap_or(0)
    }

    /// How many waiting messages of a queue cannot be leased now, and why; that it is paused is not known here.
    pub(crate) fn waiting_for(&self, queue: &QueueName, now: Time) -> WaitingFor {
        let Some(queue) = self.queues.get(queue) else { return WaitingFor::default() };
        let held = queue.lines.iter().filter(|(_, line)| line.mode != Mode::Free);
        let breaker = held.filter_map(|(key, _)| queue.behind.get(key)).sum();
        let due = |places: &BTreeMap<Place, MessageId>| places.range(..=(now, u64::MAX)).count() as u64;
        WaitingFor {
            pause: 0,
            breaker,
            ordering_key: queue.behind_keys as u64,
            idle_worker: queue.suspects.iter().map(due).sum(),
            throttle: queue.throttled.iter().filter(|(at, _)| *at > now).count() as u64,
        }
    }

    /// A dead letter holds its ordering key, or lets go of it.
    pub(crate) fn hold(&mut self, slip: &Slip, held: bool) {
        let Some(key) = &slip.ordering_key else { return };
        let seq = slip.seq;
        self.queue(&slip.queue).with_key(key, |line| {
            if held {
                line.held_by.insert(seq);
            } else {
                line.held_by.remove(&seq);
            }
        });
    }

    /// The first message of a level, ready or not, among the ordinary ones or all.
    pub(crate) fn head(&self, queue: &QueueName, priority: Priority, suspects: bool) -> Option<(Head, Next)> {
        let queue = self.queues.get(queue)?;
        let ordinary = queue.levels.get(priority.level())?.waiting.first_key_value();
        let suspect = queue.suspects.get(priority.level())?.first_key_value().filter(|_| suspects);
        let candidates = [(ordinary, false), (suspect, true)];
        let first = candidates.into_iter().filter_map(|(first, suspect)| first.map(|f| (f, suspect)));
        let (((ready_at, seq), id), suspect) = first.min_by_key(|((place, _), _)| **place)?;
        Some((Head { ready_at: *ready_at, seq: *seq }, Next { id: *id, suspect }))
    }

    /// The ready message with the earliest deadline: its deadline, level and sequence.
    pub(crate) fn urgent(
        &mut self,
        queue: &QueueName,
        suspects: bool,
        now: Time,
    ) -> Option<((Time, usize, u64), Next)> {
        let queue = self.queues.get_mut(queue)?;
        let ordinary = queue.dated.first(now).map(|(urgency, id)| (urgency, Next { id, suspect: false }));
        let suspect = queue.dated_suspects.first(now).filter(|_| suspects);
        let suspect = suspect.map(|(urgency, id)| (urgency, Next { id, suspect: true }));
        ordinary.into_iter().chain(suspect).min_by_key(|(urgency, _)| *urgency)
    }

    /// The ready suspect that has waited longest.
    pub(crate) fn oldest_suspect(&self, queues: &[QueueName], now: Time) -> Option<(Time, MessageId)> {
        let queues = queues.iter().filter_map(|name| self.queues.get(name));
        let firsts = queues.flat_map(|q| q.suspects.iter().filter_map(BTreeMap::first_key_value));
        let ready = firsts.filter(|((at, _), _)| *at <= now);
        ready.min_by_key(|(place, _)| **place).map(|((at, _), id)| (*at, *id))
    }

    /// When the next message of a queue is due that any worker may have, and when the next suspect, if one waits.
    pub(crate) fn next_due(&self, queue: &QueueName) -> (Option<Time>, Option<Time>) {
        let Some(queue) = self.queues.get(queue) else { return (None, None) };
        let first = |places: &BTreeMap<Place, MessageId>| places.keys().next().map(|(at, _)| *at);
        // A level whose rest is on disk may have something due; whoever asks will see.
        let due = |level: &Level| match level.spilled_from {
            Some(_) if level.waiting.is_empty() => Some(Time::ZERO),
            Some(_) | None => first(&level.waiting),
        };
        let ordinary = queue.levels.iter().filter_map(due).min();
        (ordinary, queue.suspects.iter().filter_map(first).min())
    }

    /// Leases that have run out, earliest first.
    pub(crate) fn run_out(&self, now: Time, limit: usize) -> Vec<MessageId> {
        self.leases.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| *id).collect()
    }

    /// Waiting messages whose time is over, earliest first.
    pub(crate) fn overdue(&self, now: Time, limit: usize) -> Vec<MessageId> {
        self.useless.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, id)| *id).collect()
    }

    /// A level of these queues that should be refilled before anything is picked from it.
    pub(crate) fn wants_refill(&self, queues: &[QueueName], low_water: usize) -> Option<Refill> {
        queues.iter().find_map(|name| {
            let queue = self.queues.get(name)?;
            Priority::ALL.into_iter().find_map(|priority| {
                let level = queue.levels.get(priority.level())?;
                let from = level.spilled_from.filter(|_| level.waiting.len() < low_water)?;
                Some(Refill { queue: name.clone(), priority, from })
            })
        })
    }

    /// Takes the refilled part of a level; `rest` is where the disk part begins now.
    pub(crate) fn refilled(&mut self, refill: &Refill, rest: Option<MessageId>) {
        self.queue(&refill.queue).level(refill.priority).spilled_from = rest;
    }

    /// Adds a message that was on disk, unless it is here already or may stay there. A level is refilled only when
    /// it has run low, so what is added is bounded by what one look at the disk brings.
    pub(crate) fn add_refilled(&mut self, slip: &Slip, life: &Life) {
        let queue = self.queue(&slip.queue);
        let breaker = queue.breaker.as_ref().and_then(|key| key.of(slip));
        if let Some(line) = breaker.as_ref().and_then(|key| queue.lines.get_mut(key))
            && (line.has(slip, life) || line.leaves_on_disk(slip.id))
        {
            return;
        }
        let m = Parked::new(slip, life, false, breaker);
        if queue.places(&m).contains_key(&(m.ready_at, slip.seq)) {
            return;
        }
        queue.show(slip.seq, &m);
        self.entries += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_for_the_most_urgent_passes_by_nobody_who_waits_out_a_backoff() {
        let mut dated = Dated::default();
        let at = Time::from_millis;
        let id = |n: u64| MessageId::new(n, [0; 10]);
        for n in 1..=1_000 {
            dated.put((at(500), n), (at(600), 2, n), id(n));
        }
        dated.put((at(10), 2_000), (at(900), 2, 2_000), id(2_000));
        assert_eq!(dated.first(at(5)), None);
        assert_eq!(dated.first(at(20)), Some(((at(900), 2, 2_000), id(2_000))), "the only one that is ready");
        assert_eq!((dated.ready.len(), dated.coming.len()), (1, 1_000), "the others were not touched");
        assert_eq!(dated.first(at(500)).map(|(urgency, _)| urgency), Some((at(600), 2, 1)));
        dated.take((at(500), 1), (at(600), 2, 1));
        assert_eq!(dated.first(at(500)).map(|(urgency, _)| urgency), Some((at(600), 2, 2)));
    }
}
