//! The reference model: the simplest implementation of the store contract. Everything is in vectors and maps
//! behind one lock, and everything is found by a full scan. It must stay simple enough to be checked by
//! reading it, and it shares no code with a real store.
//!
//! `transitions` applies one lifecycle step and all its consequences, `failure_analysis` holds breakers,
//! groups of failures and poison detection, `holder` workers and changes, `letters` the dead letter calls, `operations` bulk acts, `pages`
//! the read calls and most of the store traits.

mod content;
mod export;
mod failure_analysis;
mod groups;
mod holder;
mod letter_calls;
mod letters;
mod operations;
mod pages;
mod store;
mod transitions;

use redrive_core::audit::{Anchor, AuditEntry, AuditKey, AuditRow, ORIGIN, seal};
use redrive_core::breaker::Breaker;
use redrive_core::changes::Area;
use redrive_core::dead_letter::{Actor, LetterRecord, Status};
use redrive_core::error::Refusal;
use redrive_core::failure::{AnalysedFailure, Failure};
use redrive_core::group::{GroupTriage, Leaf, LeafCount, LeafKey, Marker};
use redrive_core::ids::{GroupId, LeafId, MessageId, OperationId, QueueName, Secret};
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::{Command, Effect, Phase, State, transition};
use redrive_core::limits;
use redrive_core::message::{Envelope, MessageLimits, NewMessage, StoredMessage};
use redrive_core::metrics::{CounterKey, Counters, Event};
use redrive_core::operation::{Member, Operation};
use redrive_core::poison::{GroupHistory, Isolation};
use redrive_core::policy::{QueuePolicy, overdue, too_late};
use redrive_core::revision::Content;
use redrive_core::scheduler::{Head, Heads, PickReason, Scheduler};
use redrive_core::signature::Tree;
use redrive_core::store::{Enqueued, KvEntry, LeaseRequest, Reaped, Settle, Settled, Settlement};
use redrive_core::time::{Clock, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// The key of the model's audit chain. It is public: the model only has to build the same chain as a store.
const AUDIT_KEY: AuditKey = AuditKey([42; 32]);

/// The reference model of a store.
pub struct Model {
    clock: Arc<dyn Clock>,
    state: Mutex<ModelState>,
}

#[derive(Default)]
struct QueueState {
    policy: QueuePolicy,
    counts: Counts,
    paused_by: Option<String>,
    peak: i64,
    dead_peak: i64,
}

#[derive(Clone)]
struct Letter {
    stored: StoredMessage,
    record: LetterRecord,
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
struct ModelState {
    queues: BTreeMap<QueueName, QueueState>,
    /// The highest numbers of messages and of letters that were stored at the same time.
    peaks: (i64, i64),
    live: Vec<StoredMessage>,
    letters: Vec<Letter>,
    histories: BTreeMap<MessageId, Vec<(u32, Failure)>>,
    /// The earlier contents of edited letters, oldest first.
    contents: BTreeMap<MessageId, Vec<Content>>,
    keys: BTreeMap<(QueueName, String), Key>,
    leaves: Vec<Leaf>,
    tree: Tree,
    leaf_counts: BTreeMap<LeafKey, LeafCount>,
    counted: Counters,
    dlqs: BTreeSet<QueueName>,
    /// Operations with their members; each member comes with the death number it was frozen at.
    operations: Vec<(Operation, Vec<(u64, Member)>)>,
    audit: Vec<AuditRow>,
    /// Where the audit trail begins after it was trimmed.
    anchor: Option<Anchor>,
    kv: BTreeMap<(String, String), KvEntry>,
    schedulers: BTreeMap<BTreeSet<QueueName>, Scheduler>,
    breakers: BTreeMap<(QueueName, String), Breaker>,
    breaker_values: BTreeMap<(MessageId, QueueName), String>,
    group_histories: BTreeMap<GroupId, GroupHistory>,
    /// The triage state of every group that has counters.
    triage: BTreeMap<GroupId, GroupTriage>,
    /// Every failed delivery and every death so far.
    events: Vec<groups::Event>,
    /// The operations that touched letters, with the leaf of the letter and the time.
    touched: Vec<(OperationId, LeafId, Time)>,
    markers: Vec<Marker>,
    workers: BTreeMap<String, holder::Worker>,
    /// Requests that were carried out, by actor and key.
    requests: BTreeMap<(String, String), holder::Request>,
    /// Everything as it was when somebody asked what had changed.
    pictures: Vec<BTreeMap<Area, String>>,
    isolation: Isolation,
    seq: u64,
    deaths: u64,
    secrets: u128,
}

impl ModelState {
    fn policy(&self, queue: &QueueName) -> &QueuePolicy {
        &self.queues[queue].policy
    }

    fn counts(&mut self, queue: &QueueName) -> &mut Counts {
        &mut self.queues.get_mut(queue).expect("the queue holds messages").counts
    }

    fn count_event(&mut self, event: Event, queue: &QueueName, labels: &[&str], amount: u64, now: Time) {
        self.counted.add(CounterKey::new(event, queue, labels), amount, now);
    }

    fn note_peaks(&mut self, queue: &QueueName) {
        let queue_state = self.queues.get_mut(queue).expect("the queue holds messages");
        queue_state.peak = queue_state.peak.max(queue_state.counts.waiting + queue_state.counts.leased);
        queue_state.dead_peak = queue_state.dead_peak.max(queue_state.counts.dead);
        let all = |of: fn(&Counts) -> i64| {
            self.queues.values().map(|queue_state| of(&queue_state.counts)).sum::<i64>()
        };
        let (messages, letters) = (all(|c| c.waiting + c.leased), all(|c| c.dead));
        self.peaks = (self.peaks.0.max(messages), self.peaks.1.max(letters));
    }

    fn live_at(&self, id: MessageId) -> Option<usize> {
        self.live.iter().position(|r| r.envelope.id == id)
    }

    fn letter_at(&self, id: MessageId) -> Option<usize> {
        self.letters.iter().position(|l| l.stored.envelope.id == id)
    }

    fn next_secret(&mut self) -> Secret {
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

    /// A dead letter queue is never a queue (I38): the name must not be a dead letter queue of another queue,
    /// and no dead letter queue of the policy may be a queue.
    fn check_name(&self, name: &QueueName, policy: &QueuePolicy) -> Result<(), Refusal> {
        let owner = self.queues.iter().find(|(q, s)| *q != name && s.policy.dlqs(q).contains(name));
        if let Some((owner, _)) = owner {
            return Err(Refusal::IsDlq { queue: name.clone(), owner: owner.clone() });
        }
        match policy.dlqs(name).iter().find(|dlq| self.queues.contains_key(*dlq)) {
            Some(dlq) => Err(Refusal::invalid("dlq", format!("{dlq} is a queue"))),
            None => Ok(()),
        }
    }

    /// Checks the name of a queue that an enqueue or an import would create.
    fn check_new_queue(&self, name: &QueueName) -> Result<(), Refusal> {
        if self.queues.contains_key(name) { Ok(()) } else { self.check_name(name, &QueuePolicy::default()) }
    }

    /// Returns the state of the message that holds a key. The latest event decides: a reopened letter is dead
    /// again, and a purged letter is purged until it is restored.
    fn key_state(&self, key: &Key, now: Time) -> State {
        let live = self.live_at(key.id).map(|at| self.live[at].lifecycle.state(now));
        let letter = self.letter_at(key.id).map(|at| self.letters[at].record.status);
        let purged = letter == Some(Status::Purged);
        let open = letter.is_some_and(|status| !status.is_closed());
        let letter_state = purged.then_some(State::Purged).or(open.then_some(State::Dead));
        live.or(letter_state).or(key.over).unwrap_or(State::Dead)
    }

    fn enqueue(&mut self, new: NewMessage, now: Time) -> Result<Enqueued, Refusal> {
        new.check()?;
        self.check_new_queue(&new.queue)?;
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
        let live = self.live_at(id).map(|at| (&self.live[at], self.live[at].lifecycle.state(now)));
        let letter = self.letter_at(id).map(|at| &self.letters[at]);
        let letter = letter.map(|l| {
            let purged = l.record.status == Status::Purged;
            (&l.stored, if purged { State::Purged } else { State::Dead })
        });
        if let Some((stored, state)) = live.or(letter) {
            let edited = self.letter_at(id).and_then(|at| self.letters[at].record.is_original_body(&hash));
            let same = edited.unwrap_or(stored.envelope.body_hash() == hash);
            return same.then_some(Enqueued { id, state, duplicate: true }).ok_or(Refusal::IdConflict { id });
        }
        if let Some(reply_to) = &new.reply_to {
            self.check_reply_to(&new.queue, reply_to)?;
        }
        if let Err(full) = self.check_capacity(&new.queue, new.payload.bytes.len() as u64) {
            self.count_event(Event::Overflowed, &new.queue, &[], 0, now);
            return Err(full);
        }
        self.queues.entry(new.queue.clone()).or_default();
        if let Some(reply_to) = &new.reply_to {
            self.queues.entry(reply_to.clone()).or_default();
        }
        Ok(self.accept(new, now))
    }

    /// Checks that a queue has room for one more message of this size. A queue that does not exist yet has
    /// room.
    fn check_capacity(&self, queue: &QueueName, size: u64) -> Result<(), Refusal> {
        let Some(QueueState { policy, counts, .. }) = self.queues.get(queue) else { return Ok(()) };
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

    /// Stores a message that passed every check.
    fn accept(&mut self, new: NewMessage, now: Time) -> Enqueued {
        let (id, hash, policy) = (new.id, new.body_hash(), self.policy(&new.queue).clone());
        let named = new.key.clone().map(|key| (new.queue.clone(), key));
        let breaker = policy.breaker.as_ref().and_then(|rules| rules.key.read(&new.headers, &new.payload));
        self.breaker_values.extend(breaker.map(|value| ((id, new.queue.clone()), value)));
        let stored = new.accept(&policy, self.seq + 1, now);
        self.seq += 1;
        let counts = self.counts(&stored.envelope.queue);
        counts.enqueued += 1;
        counts.enter(&stored.lifecycle.phase, stored.envelope.size());
        self.note_peaks(&stored.envelope.queue);
        let labels = [stored.envelope.kind.as_str(), stored.envelope.priority.name()];
        self.count_event(Event::Enqueued, &stored.envelope.queue, &labels, stored.envelope.size(), now);
        if let Some(key) = named {
            self.keys.insert(key, Key { id, hash, created_at: now, over: None });
        }
        let state = stored.lifecycle.state(now);
        self.live.push(stored);
        Enqueued { id, state, duplicate: false }
    }

    /// Checks that replies may go to this queue, also when the message's own queue is created with it.
    fn check_reply_to(&self, queue: &QueueName, reply_to: &QueueName) -> Result<(), Refusal> {
        self.check_new_queue(reply_to)?;
        if self.queues.contains_key(queue) {
            return Ok(());
        }
        if queue.default_dlq() == *reply_to {
            return Err(Refusal::IsDlq { queue: reply_to.clone(), owner: queue.clone() });
        }
        if reply_to.default_dlq() == *queue && !self.queues.contains_key(reply_to) {
            return Err(Refusal::invalid(
                "reply_to",
                "it would be the dead letter queue of the message's queue",
            ));
        }
        Ok(())
    }

    fn reap_work(&mut self, limit: usize, now: Time) -> Reaped {
        let mut reaped = Reaped::default();
        let lost = |r: &StoredMessage| r.lifecycle.lease().map(|l| l.expires_at).filter(|t| *t <= now);
        for id in self.due(limit, lost) {
            let at = self.live_at(id).expect("just found");
            let granted_at = self.live[at].lifecycle.lease().expect("leased").granted_at;
            let failure = AnalysedFailure::lease_lost(now.since(granted_at));
            let found = self.review(at, failure, None, now);
            let command = Command::LoseLease { verdict: found.verdict };
            self.apply(at, &command, Some(found.into()), now).expect("the lease ran out");
            reaped.leases_lost += 1;
        }
        let waits = |r: &StoredMessage| r.lifecycle.phase == Phase::Waiting;
        let late = |r: &StoredMessage| limits_of(r).useless_at().filter(|t| *t <= now && waits(r));
        for id in self.due(limit, late) {
            let at = self.live_at(id).expect("just found");
            let stored = &self.live[at];
            let reason = overdue(limits_of(stored), now).expect("just found late");
            let verdict = too_late(self.policy(&stored.envelope.queue), reason);
            let failure = AnalysedFailure::too_late(reason);
            self.apply(at, &Command::TimeOut { verdict }, Some(failure.into()), now)
                .expect("the message waited");
            reaped.timed_out += 1;
        }
        reaped
    }

    fn due(&self, limit: usize, when: impl Fn(&StoredMessage) -> Option<Time>) -> Vec<MessageId> {
        let found = self.live.iter().filter_map(|r| when(r).map(|t| (t, r.envelope.id)));
        let ordered: BTreeSet<(Time, MessageId)> = found.collect();
        ordered.into_iter().take(limit).map(|(_, id)| id).collect()
    }

    fn eligible(&self, r: &StoredMessage, queues: &BTreeSet<QueueName>, now: Time) -> bool {
        let due = r.lifecycle.phase == Phase::Waiting && r.lifecycle.ready_at <= now;
        let queue = &r.envelope.queue;
        due && queues.contains(queue) && self.queues[queue].paused_by.is_none() && self.is_first_of_key(r)
    }

    /// Whether the message is first in line for its ordering key.
    fn is_first_of_key(&self, r: &StoredMessage) -> bool {
        let Envelope { queue, ordering_key, seq, id, .. } = &r.envelope;
        let same = |other: &Envelope| other.queue == *queue && other.ordering_key == *ordering_key;
        // A redriven message is first in line again, but a message that is already leased finishes first.
        let ahead = |o: &StoredMessage| o.envelope.seq < *seq || o.lifecycle.lease().is_some();
        let behind = || self.live.iter().any(|o| same(&o.envelope) && o.envelope.id != *id && ahead(o));
        let held =
            |l: &Letter| l.record.holds_key && same(&l.stored.envelope) && l.stored.envelope.seq < *seq;
        ordering_key.is_none() || !behind() && !self.letters.iter().any(held)
    }

    /// Picks the message to deliver next, if there is one.
    fn pick(&mut self, queues: &BTreeSet<QueueName>, suspects: bool, now: Time) -> Option<MessageId> {
        let leasable = self.leasable(queues, now);
        let allowed = |r: &&StoredMessage| {
            leasable.contains(&r.envelope.id) && (suspects || !r.lifecycle.indicators.is_suspect())
        };
        let ready: Vec<&StoredMessage> = self.live.iter().filter(allowed).collect();
        let head = |level: usize| {
            let level = ready.iter().filter(|r| r.envelope.priority.level() == level);
            level.min_by_key(|r| (r.lifecycle.ready_at, r.envelope.seq)).copied()
        };
        let urgent = ready.iter().filter(|r| limits_of(r).deadline.is_some());
        let urgent =
            urgent.min_by_key(|r| (limits_of(r).deadline, r.envelope.priority, r.envelope.seq)).copied();
        let heads = Heads {
            levels: [0, 1, 2, 3, 4].map(|level| {
                head(level).map(|r| Head { ready_at: r.lifecycle.ready_at, seq: r.envelope.seq })
            }),
            urgent: urgent.and_then(|r| limits_of(r).deadline.map(|d| (r.envelope.priority, d))),
        };
        let decision = self.schedulers.entry(queues.clone()).or_default().pick(&heads, now)?;
        let by_deadline = decision.reason == PickReason::DeadlineApproaching;
        let chosen = if by_deadline { urgent } else { head(decision.level.level()) }?;
        Some(chosen.envelope.id)
    }

    fn grant(&mut self, id: MessageId, request: &LeaseRequest, now: Time) {
        let at = self.live_at(id).expect("the message was picked");
        let stored = self.live[at].clone();
        let lease_for = request.lease_for.unwrap_or(self.policy(&stored.envelope.queue).lease);
        let (secret, worker, permit) =
            (self.next_secret(), request.worker.clone(), self.permit(&stored, now));
        let command = Command::Lease { secret, worker, lease_for, permit };
        self.apply(at, &command, None, now).expect("the message was eligible");
    }

    fn settle(&mut self, settlement: Settlement, now: Time) -> Result<Settled, Refusal> {
        settlement.check()?;
        let (id, secret) = (settlement.token.id, settlement.token.secret);
        let at = self.live_at(id).ok_or(Refusal::StaleToken { id })?;
        let stored = &self.live[at];
        let policy = self.policy(&stored.envelope.queue);
        let granted_at = stored.lifecycle.lease().map_or(now, |l| l.granted_at);
        let max_attempts = stored.envelope.max_attempts(policy);
        let lost = || Some(AnalysedFailure::lease_lost(now.since(granted_at)).into());
        let mut answer = None;
        let most = granted_at.plus(limits::LEASE_MAX).since(now);
        let (command, failure) = match settlement.what {
            Settle::Ack => (Command::Ack { secret }, None),
            Settle::Reply { payload } => {
                answer = Some(payload);
                (Command::Ack { secret }, None)
            }
            Settle::Fail { failure, policy_override: said } => {
                let _ = transition(id, &stored.lifecycle, &Command::Ack { secret }, now)?;
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
        let (lifecycle, effect, reply) = self.apply_with_answer(at, &command, failure, answer, now)?;
        Ok(Settled {
            id,
            state: lifecycle.state(now),
            ready_at: (lifecycle.phase == Phase::Waiting).then_some(lifecycle.ready_at),
            lease_expires_at: lifecycle.lease().map(|l| l.expires_at),
            reason: if let Effect::Died(reason) = effect { Some(reason) } else { None },
            dlq: self
                .letter_at(id)
                .filter(|_| matches!(effect, Effect::Died(_)))
                .map(|at| self.letters[at].record.dlq.clone()),
            reply,
        })
    }
}

/// The limits that apply to the message in its current generation.
fn limits_of(stored: &StoredMessage) -> MessageLimits {
    MessageLimits::from(&stored.envelope).in_generation(stored.lifecycle.generation)
}
