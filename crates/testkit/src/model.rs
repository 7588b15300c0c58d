//! The reference model: the plainest reading of the store contract. Everything is in vectors and maps behind
//! one lock, everything is found by looking at all of it. It must stay short enough to be believed, and must
//! share nothing with a store. `fate` is what follows from
//! a change, `letters` the dead-letter verbs, `operations` bulk acts, `pages` what only reads and the traits themselves.

mod content;
mod export;
mod fate;
mod groups;
mod house;
mod letters;
mod operations;
mod pages;
mod wisdom;

use redrive_core::audit::{Anchor, AuditEntry, AuditKey, AuditRow, ORIGIN, seal};
use redrive_core::breaker::Breaker;
use redrive_core::dead_letter::{Actor, File, Status};
use redrive_core::error::Refusal;
use redrive_core::failure::{Analysed, Failure};
use redrive_core::group::{GroupLife, Leaf, LeafCount, LeafKey, Marker};
use redrive_core::ids::{GroupId, LeafId, MessageId, OperationId, QueueName, Secret};
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::{Command, Effect, Phase, State, transition};
use redrive_core::limits;
use redrive_core::message::{Envelope, NewMessage, Record, Terms};
use redrive_core::metrics::{Event, Tallies, TallyKey};
use redrive_core::operation::{Member, Operation};
use redrive_core::poison::{Isolation, Standing};
use redrive_core::policy::{QueuePolicy, overdue, too_late};
use redrive_core::revision::Content;
use redrive_core::scheduler::{Head, Heads, PickReason, Scheduler};
use redrive_core::signature::Tree;
use redrive_core::store::{Enqueued, KvEntry, LeaseRequest, Reaped, Settle, Settled, Settlement};
use redrive_core::time::{Clock, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// The key of the model's audit chain: known to all, it proves nothing and needs to prove nothing.
const AUDIT_KEY: AuditKey = AuditKey([42; 32]);

/// The reference model of a store.
pub struct Model {
    clock: Arc<dyn Clock>,
    books: Mutex<Books>,
}

#[derive(Default)]
struct Shelf {
    policy: QueuePolicy,
    counts: Counts,
    paused_by: Option<String>,
    peak: i64,
    dead_peak: i64,
}

#[derive(Clone)]
struct Letter {
    record: Record,
    file: File,
    death: u64,
    secret: Option<Secret>,
}

struct Key {
    id: MessageId,
    hash: [u8; 32],
    created_at: Time,
    over: Option<State>,
}

#[derive(Default)]
struct Books {
    queues: BTreeMap<QueueName, Shelf>,
    /// Most messages and most letters there were at once.
    peaks: (i64, i64),
    live: Vec<Record>,
    letters: Vec<Letter>,
    histories: BTreeMap<MessageId, Vec<(u32, Failure)>>,
    /// What edited letters said before, oldest first.
    contents: BTreeMap<MessageId, Vec<Content>>,
    keys: BTreeMap<(QueueName, String), Key>,
    leaves: Vec<Leaf>,
    tree: Tree,
    tallies: BTreeMap<LeafKey, LeafCount>,
    counted: Tallies,
    drawers: BTreeSet<QueueName>,
    /// With the members, each at the death it had.
    operations: Vec<(Operation, Vec<(u64, Member)>)>,
    audit: Vec<AuditRow>,
    /// Where the trail begins, once it was trimmed.
    anchor: Option<Anchor>,
    kv: BTreeMap<(String, String), KvEntry>,
    schedulers: BTreeMap<BTreeSet<QueueName>, Scheduler>,
    breakers: BTreeMap<(QueueName, String), Breaker>,
    breaker_values: BTreeMap<(MessageId, QueueName), String>,
    standings: BTreeMap<GroupId, Standing>,
    /// The lives of groups that something was counted of.
    lives: BTreeMap<GroupId, GroupLife>,
    /// Every failed delivery and every death there ever was.
    events: Vec<groups::Event>,
    /// Which operation touched a letter of which leaf, and when.
    touched: Vec<(OperationId, LeafId, Time)>,
    markers: Vec<Marker>,
    isolation: Isolation,
    seq: u64,
    deaths: u64,
    secrets: u128,
}

impl Books {
    fn policy(&self, queue: &QueueName) -> &QueuePolicy {
        &self.queues[queue].policy
    }

    fn counts(&mut self, queue: &QueueName) -> &mut Counts {
        &mut self.queues.get_mut(queue).expect("its messages are here").counts
    }

    fn happened(&mut self, event: Event, queue: &QueueName, labels: &[&str], amount: u64, now: Time) {
        self.counted.add(TallyKey::new(event, queue, labels), amount, now);
    }

    fn note_peaks(&mut self, queue: &QueueName) {
        let shelf = self.queues.get_mut(queue).expect("its messages are here");
        shelf.peak = shelf.peak.max(shelf.counts.waiting + shelf.counts.leased);
        shelf.dead_peak = shelf.dead_peak.max(shelf.counts.dead);
        let all = |of: fn(&Counts) -> i64| self.queues.values().map(|shelf| of(&shelf.counts)).sum::<i64>();
        let (messages, letters) = (all(|c| c.waiting + c.leased), all(|c| c.dead));
        self.peaks = (self.peaks.0.max(messages), self.peaks.1.max(letters));
    }

    fn live_at(&self, id: MessageId) -> Option<usize> {
        self.live.iter().position(|r| r.envelope.id == id)
    }

    fn letter_at(&self, id: MessageId) -> Option<usize> {
        self.letters.iter().position(|l| l.record.envelope.id == id)
    }

    fn secret(&mut self) -> Secret {
        self.secrets += 1;
        Secret::new(self.secrets.to_be_bytes())
    }

    fn log(&mut self, now: Time, by: &Actor, act: &str, target: impl std::fmt::Display, count: u64) {
        self.seal(AuditEntry::new(now, by, act, target, count));
    }

    fn seal(&mut self, entry: AuditEntry) {
        let head = self.audit.last().map_or(ORIGIN.to_owned(), |row| row.seal.clone());
        let n = self.audit.last().map_or(0, |row| row.n) + 1;
        self.audit.push(seal(&AUDIT_KEY, n, &head, entry));
    }

    /// Drawers are no queues (I38): neither may this name be one, nor may a queue lie where letters will.
    fn check_name(&self, name: &QueueName, policy: &QueuePolicy) -> Result<(), Refusal> {
        let owner = self.queues.iter().find(|(q, s)| *q != name && s.policy.drawers(q).contains(name));
        if let Some((owner, _)) = owner {
            return Err(Refusal::IsDrawer { queue: name.clone(), owner: owner.clone() });
        }
        match policy.drawers(name).iter().find(|drawer| self.queues.contains_key(*drawer)) {
            Some(drawer) => Err(Refusal::invalid("dlq", format!("{drawer} is a queue"))),
            None => Ok(()),
        }
    }

    /// The same for a queue that enqueue or import would make.
    fn check_new(&self, name: &QueueName) -> Result<(), Refusal> {
        if self.queues.contains_key(name) { Ok(()) } else { self.check_name(name, &QueuePolicy::default()) }
    }

    /// Where the message of a key is: what happened last wins, so a reopened letter is dead again, and a purged
    /// one is purged until it is taken back.
    fn key_state(&self, key: &Key, now: Time) -> State {
        let live = self.live_at(key.id).map(|at| self.live[at].life.state(now));
        let letter = self.letter_at(key.id).map(|at| self.letters[at].file.status);
        let purged = letter == Some(Status::Purged);
        let open = letter.is_some_and(|status| !status.is_closed());
        let says = purged.then_some(State::Purged).or(open.then_some(State::Dead));
        live.or(says).or(key.over).unwrap_or(State::Dead)
    }

    fn enqueue(&mut self, new: NewMessage, now: Time) -> Result<Enqueued, Refusal> {
        new.check()?;
        self.check_new(&new.queue)?;
        let (id, hash) = (new.id, new.body_hash());
        let named = new.key.clone().map(|key| (new.queue.clone(), key));
        let known = named.as_ref().and_then(|key| self.keys.get(key));
        if let Some(key) = known.filter(|k| k.created_at.plus(limits::KEY_WINDOW) > now) {
            let (id, state) = (key.id, self.key_state(key, now));
            if key.hash == hash {
                return Ok(Enqueued { id, state, duplicate: true });
            }
            return Err(Refusal::KeyConflict { queue: new.queue, key: new.key.unwrap_or_default(), id });
        }
        let live = self.live_at(id).map(|at| (&self.live[at], self.live[at].life.state(now)));
        let letter = self.letter_at(id).map(|at| &self.letters[at]);
        let letter = letter.map(|l| {
            let purged = l.file.status == Status::Purged;
            (&l.record, if purged { State::Purged } else { State::Dead })
        });
        if let Some((record, state)) = live.or(letter) {
            let edited = self.letter_at(id).and_then(|at| self.letters[at].file.was_sent_as(&hash));
            let same = edited.unwrap_or(record.envelope.body_hash() == hash);
            return same.then_some(Enqueued { id, state, duplicate: true }).ok_or(Refusal::IdConflict { id });
        }
        if let Some(reply_to) = &new.reply_to {
            self.check_reply_to(&new.queue, reply_to)?;
        }
        if let Err(full) = self.check_room(&new.queue, new.payload.bytes.len() as u64) {
            self.happened(Event::Overflowed, &new.queue, &[], 0, now);
            return Err(full);
        }
        self.queues.entry(new.queue.clone()).or_default();
        if let Some(reply_to) = &new.reply_to {
            self.queues.entry(reply_to.clone()).or_default();
        }
        Ok(self.accept(new, now))
    }

    /// Whether a queue has room for one more message of this size; one that is not there yet has.
    fn check_room(&self, queue: &QueueName, size: u64) -> Result<(), Refusal> {
        let Some(Shelf { policy, counts, .. }) = self.queues.get(queue) else { return Ok(()) };
        let (messages, bytes) = (counts.waiting + counts.leased, counts.bytes.unsigned_abs());
        let messages = messages.unsigned_abs();
        let full = |limit: &str, allowed, actual| {
            Err(Refusal::QueueFull { queue: queue.clone(), limit: limit.into(), allowed, actual })
        };
        match (policy.max_messages, policy.max_bytes) {
            (Some(most), _) if messages >= most => full("max_messages", most, messages),
            (_, Some(most)) if bytes + size > most => full("max_bytes", most, bytes),
            _ => Ok(()),
        }
    }

    /// Takes in a message that nothing stands in the way of.
    fn accept(&mut self, new: NewMessage, now: Time) -> Enqueued {
        let (id, hash, policy) = (new.id, new.body_hash(), self.policy(&new.queue).clone());
        let named = new.key.clone().map(|key| (new.queue.clone(), key));
        let breaker = policy.breaker.as_ref().and_then(|rules| rules.key.read(&new.headers, &new.payload));
        self.breaker_values.extend(breaker.map(|value| ((id, new.queue.clone()), value)));
        let record = new.accept(&policy, self.seq + 1, now);
        self.seq += 1;
        let counts = self.counts(&record.envelope.queue);
        counts.enqueued += 1;
        counts.enter(&record.life.phase, record.envelope.size());
        self.note_peaks(&record.envelope.queue);
        let labels = [record.envelope.kind.as_str(), record.envelope.priority.name()];
        self.happened(Event::Enqueued, &record.envelope.queue, &labels, record.envelope.size(), now);
        if let Some(key) = named {
            self.keys.insert(key, Key { id, hash, created_at: now, over: None });
        }
        let state = record.life.state(now);
        self.live.push(record);
        Enqueued { id, state, duplicate: false }
    }

    /// Whether replies may go there, also when the message's own queue is only made with it.
    fn check_reply_to(&self, queue: &QueueName, reply_to: &QueueName) -> Result<(), Refusal> {
        self.check_new(reply_to)?;
        if self.queues.contains_key(queue) {
            return Ok(());
        }
        if queue.default_drawer() == *reply_to {
            return Err(Refusal::IsDrawer { queue: reply_to.clone(), owner: queue.clone() });
        }
        if reply_to.default_drawer() == *queue && !self.queues.contains_key(reply_to) {
            return Err(Refusal::invalid("reply_to", "the queue would be its drawer"));
        }
        Ok(())
    }

    fn reap_work(&mut self, limit: usize, now: Time) -> Reaped {
        let mut reaped = Reaped::default();
        let lost = |r: &Record| r.life.lease().map(|l| l.expires_at).filter(|t| *t <= now);
        for id in self.due(limit, lost) {
            let at = self.live_at(id).expect("just found");
            let granted_at = self.live[at].life.lease().expect("leased").granted_at;
            let failure = Analysed::lease_lost(now.since(granted_at));
            let found = self.review(at, failure, None, now);
            let command = Command::LoseLease { verdict: found.verdict };
            self.change(at, &command, Some(found.into()), now).expect("it ran out");
            reaped.leases_lost += 1;
        }
        let waits = |r: &Record| r.life.phase == Phase::Waiting;
        let late = |r: &Record| terms(r).useless_at().filter(|t| *t <= now && waits(r));
        for id in self.due(limit, late) {
            let at = self.live_at(id).expect("just found");
            let record = &self.live[at];
            let reason = overdue(terms(record), now).expect("just found late");
            let verdict = too_late(self.policy(&record.envelope.queue), reason);
            let failure = Analysed::too_late(reason);
            self.change(at, &Command::TimeOut { verdict }, Some(failure.into()), now).expect("it waited");
            reaped.timed_out += 1;
        }
        reaped
    }

    fn due(&self, limit: usize, when: impl Fn(&Record) -> Option<Time>) -> Vec<MessageId> {
        let found = self.live.iter().filter_map(|r| when(r).map(|t| (t, r.envelope.id)));
        let ordered: BTreeSet<(Time, MessageId)> = found.collect();
        ordered.into_iter().take(limit).map(|(_, id)| id).collect()
    }

    fn eligible(&self, r: &Record, queues: &BTreeSet<QueueName>, now: Time) -> bool {
        let due = r.life.phase == Phase::Waiting && r.life.ready_at <= now;
        let queue = &r.envelope.queue;
        due && queues.contains(queue) && self.queues[queue].paused_by.is_none() && self.is_front(r)
    }

    /// Whether no other message of its ordering key comes first.
    fn is_front(&self, r: &Record) -> bool {
        let Envelope { queue, ordering_key, seq, id, .. } = &r.envelope;
        let same = |other: &Envelope| other.queue == *queue && other.ordering_key == *ordering_key;
        // A redriven message is first in line again, but not before who is leased already is done.
        let ahead = |o: &Record| o.envelope.seq < *seq || o.life.lease().is_some();
        let behind = || self.live.iter().any(|o| same(&o.envelope) && o.envelope.id != *id && ahead(o));
        let held = |l: &Letter| l.file.holds_key && same(&l.record.envelope) && l.record.envelope.seq < *seq;
        ordering_key.is_none() || !behind() && !self.letters.iter().any(held)
    }

    /// The most deserving message, if there is one.
    fn pick(&mut self, queues: &BTreeSet<QueueName>, suspects: bool, now: Time) -> Option<MessageId> {
        let leasable = self.leasable(queues, now);
        let allowed =
            |r: &&Record| leasable.contains(&r.envelope.id) && (suspects || !r.life.indicators.is_suspect());
        let ready: Vec<&Record> = self.live.iter().filter(allowed).collect();
        let head = |level: usize| {
            let level = ready.iter().filter(|r| r.envelope.priority.level() == level);
            level.min_by_key(|r| (r.life.ready_at, r.envelope.seq)).copied()
        };
        let urgent = ready.iter().filter(|r| terms(r).deadline.is_some());
        let urgent = urgent.min_by_key(|r| (terms(r).deadline, r.envelope.priority, r.envelope.seq)).copied();
        let heads = Heads {
            levels: [0, 1, 2, 3, 4]
                .map(|level| head(level).map(|r| Head { ready_at: r.life.ready_at, seq: r.envelope.seq })),
            urgent: urgent.and_then(|r| terms(r).deadline.map(|d| (r.envelope.priority, d))),
        };
        let decision = self.schedulers.entry(queues.clone()).or_default().pick(&heads, now)?;
        let by_deadline = decision.reason == PickReason::DeadlineApproaching;
        let chosen = if by_deadline { urgent } else { head(decision.level.level()) }?;
        Some(chosen.envelope.id)
    }

    fn grant(&mut self, id: MessageId, request: &LeaseRequest, now: Time) {
        let at = self.live_at(id).expect("it was picked");
        let record = self.live[at].clone();
        let lease_for = request.lease_for.unwrap_or(self.policy(&record.envelope.queue).lease);
        let (secret, worker, permit) = (self.secret(), request.worker.clone(), self.permit(&record, now));
        let command = Command::Lease { secret, worker, lease_for, permit };
        self.change(at, &command, None, now).expect("it was eligible");
    }

    fn settle(&mut self, settlement: Settlement, now: Time) -> Result<Settled, Refusal> {
        settlement.check()?;
        let (id, secret) = (settlement.token.id, settlement.token.secret);
        let at = self.live_at(id).ok_or(Refusal::StaleToken { id })?;
        let record = &self.live[at];
        let policy = self.policy(&record.envelope.queue);
        let granted_at = record.life.lease().map_or(now, |l| l.granted_at);
        let max_attempts = record.envelope.max_attempts(policy);
        let lost = || Some(Analysed::lease_lost(now.since(granted_at)).into());
        let mut answer = None;
        let most = granted_at.plus(limits::LEASE_MAX).since(now);
        let (command, failure) = match settlement.what {
            Settle::Ack => (Command::Ack { secret }, None),
            Settle::Reply { payload } => {
                answer = Some(payload);
                (Command::Ack { secret }, None)
            }
            Settle::Fail { failure, said } => {
                let _ = transition(id, &record.life, &Command::Ack { secret }, now)?;
                let found = self.review(at, *failure, said, now);
                (Command::Fail { secret, verdict: found.verdict }, Some(found.into()))
            }
            Settle::Release => (Command::GiveBack { secret, until: None, max_attempts }, lost()),
            Settle::Snooze { span } => {
                (Command::GiveBack { secret, until: Some(now.plus(span)), max_attempts }, lost())
            }
            Settle::Extend { by } => {
                let lease_for = by.unwrap_or(policy.lease).min(most);
                (Command::Extend { secret, lease_for, progress: None }, None)
            }
            Settle::Progress { progress } => {
                let lease_for = policy.lease.min(most);
                (Command::Extend { secret, lease_for, progress: Some(progress.bounded()) }, None)
            }
        };
        let (life, effect, reply) = self.change_with(at, &command, failure, answer, now)?;
        Ok(Settled {
            id,
            state: life.state(now),
            ready_at: (life.phase == Phase::Waiting).then_some(life.ready_at),
            lease_expires_at: life.lease().map(|l| l.expires_at),
            reason: if let Effect::Died(reason) = effect { Some(reason) } else { None },
            dlq: self
                .letter_at(id)
                .filter(|_| matches!(effect, Effect::Died(_)))
                .map(|at| self.letters[at].file.dlq.clone()),
            reply,
        })
    }
}

/// What limits the message now.
fn terms(record: &Record) -> Terms {
    Terms::from(&record.envelope).in_generation(record.life.generation)
}
