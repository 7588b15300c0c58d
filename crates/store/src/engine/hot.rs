//! The hot index: which message is next, without asking the tables. One small entry per waiting message,
//! ordered by (`ready_at`, `seq`) in each queue and level; what an ordering key blocks is parked with its key,
//! so that eligible work is never hidden behind it. Beyond a cap each level's tail stays on disk and is
//! refilled by id. It knows nothing that the tables do not: it can be dropped and built again at any time.

use redrive_core::ids::{MessageId, QueueName};
use redrive_core::lifecycle::{Life, Phase};
use redrive_core::message::{Priority, Slip};
use redrive_core::scheduler::Head;
use redrive_core::time::Time;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Where a waiting message stands in its level.
type Place = (Time, u64);

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

#[derive(Clone, Copy, Debug)]
struct Parked {
    id: MessageId,
    priority: Priority,
    ready_at: Time,
    deadline: Option<Time>,
    leased: bool,
}

impl Key {
    /// The one message of this key that may be leased now or later, if there is one.
    fn front(&self) -> Option<(u64, Parked)> {
        let (seq, first) = self.line.first_key_value()?;
        let free = self.leased == 0 && self.held_by.first().is_none_or(|letter| letter >= seq);
        free.then_some((*seq, *first))
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
}

#[derive(Debug, Default)]
struct HotQueue {
    levels: [Level; 5],
    /// Waiting messages with a deadline that could be leased: by deadline, then level, then sequence.
    deadlines: BTreeMap<(Time, usize, u64), (MessageId, Time)>,
    keys: HashMap<String, Key>,
}

impl HotQueue {
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

    fn show(&mut self, seq: u64, m: Parked) {
        self.level(m.priority).waiting.insert((m.ready_at, seq), m.id);
        if let Some(deadline) = m.deadline {
            self.deadlines.insert((deadline, m.priority.level(), seq), (m.id, m.ready_at));
        }
    }

    fn hide(&mut self, seq: u64, m: Parked) {
        self.level(m.priority).waiting.remove(&(m.ready_at, seq));
        if let Some(deadline) = m.deadline {
            self.deadlines.remove(&(deadline, m.priority.level(), seq));
        }
    }

    /// Changes a key's line and shows or hides its front accordingly.
    fn with_key(&mut self, key: &str, change: impl FnOnce(&mut Key)) {
        if !self.keys.contains_key(key) {
            self.keys.insert(key.to_owned(), Key::default());
        }
        let Some(line) = self.keys.get_mut(key) else { return };
        let before = line.front();
        change(line);
        let after = line.front();
        if line.is_idle() {
            self.keys.remove(key);
        }
        if let Some((seq, m)) = before {
            self.hide(seq, m);
        }
        if let Some((seq, m)) = after {
            self.show(seq, m);
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
                self.add_entry(slip, life, false);
            }
            Phase::Leased(lease) => {
                self.leases.insert((lease.expires_at, slip.id));
                if slip.ordering_key.is_some() {
                    self.add_entry(slip, life, true);
                }
            }
            Phase::Dead | Phase::Over(_) => {}
        }
    }

    fn add_entry(&mut self, slip: &Slip, life: &Life, leased: bool) {
        let m = Parked {
            id: slip.id,
            priority: slip.priority,
            ready_at: life.ready_at,
            deadline: slip.terms.in_generation(life.generation).deadline,
            leased,
        };
        let full = self.entries >= self.entries_max;
        let seq = slip.seq;
        if let Some(key) = &slip.ordering_key {
            // A key's line is always whole in memory: its order could not be kept otherwise.
            self.queue(&slip.queue).with_key(key, |line| line.join(seq, m));
        } else {
            let level = self.queue(&slip.queue).level(slip.priority);
            match level.spilled_from {
                Some(from) if slip.id >= from => return,
                None if full => {
                    level.spilled_from = Some(slip.id);
                    return;
                }
                Some(_) | None => {}
            }
            self.queue(&slip.queue).show(seq, m);
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
                false
            }
            Phase::Leased(lease) => {
                self.leases.remove(&(lease.expires_at, slip.id));
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
            let shown = queue.level(slip.priority).waiting.remove(&(life.ready_at, seq)).is_some();
            if let Some(deadline) = terms.deadline {
                queue.deadlines.remove(&(deadline, slip.priority.level(), seq));
            }
            if shown {
                self.entries = self.entries.saturating_sub(1);
            }
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

    /// The first message of a level, ready or not.
    pub(crate) fn head(&self, queue: &QueueName, priority: Priority) -> Option<(Head, MessageId)> {
        let level = self.queues.get(queue)?.levels.get(priority.level())?;
        let ((ready_at, seq), id) = level.waiting.first_key_value()?;
        Some((Head { ready_at: *ready_at, seq: *seq }, *id))
    }

    /// The ready message with the earliest deadline: its deadline, level, sequence and id.
    pub(crate) fn urgent(&self, queue: &QueueName, now: Time) -> Option<((Time, usize, u64), MessageId)> {
        let queue = self.queues.get(queue)?;
        let ready = queue.deadlines.iter().find(|(_, (_, ready_at))| *ready_at <= now);
        ready.map(|(place, (id, _))| (*place, *id))
    }

    /// When the next message of a queue is due, if one waits.
    pub(crate) fn next_due(&self, queue: &QueueName) -> Option<Time> {
        let queue = self.queues.get(queue)?;
        queue.levels.iter().filter_map(|l| l.waiting.keys().next().map(|(at, _)| *at)).min()
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

    /// Adds a message that was on disk; the cap was checked when the refill was planned.
    pub(crate) fn add_refilled(&mut self, slip: &Slip, life: &Life) {
        let m = Parked {
            id: slip.id,
            priority: slip.priority,
            ready_at: life.ready_at,
            deadline: slip.terms.in_generation(life.generation).deadline,
            leased: false,
        };
        self.queue(&slip.queue).show(slip.seq, m);
        self.entries += 1;
    }
}
