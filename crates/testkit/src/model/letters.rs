//! Dead letters in the reference model: acts, consumers and import.

use super::{Letter, ModelState};
use redrive_core::audit::{AuditEntry, fingerprint};
use redrive_core::dead_letter::{
    Act, ActRequest, Actor, CONSUMER_LEASE, DeadLetter, LetterRecord, Retry, Status,
};
use redrive_core::error::Refusal;
use redrive_core::ids::{LeaseToken, MessageId, OperationId, QueueName};
use redrive_core::lifecycle::{Command, Final, Lifecycle, Phase, State, transition};
use redrive_core::limits;
use redrive_core::message::{Envelope, StoredMessage};
use redrive_core::metrics::Event;
use redrive_core::operation::MemberOutcome;
use redrive_core::poison::Release;
use redrive_core::progress::Progress;
use redrive_core::store::{
    HandOver, KeyState, LetterLeaseRequest, LetterSettle, LetterSettlement, LetterState, Reaped, check_lease,
    check_snooze,
};
use redrive_core::time::Time;
use redrive_core::transfer::{check_import, death_of_import};
use std::collections::{BTreeMap, BTreeSet};

impl ModelState {
    /// Replaces the record of a letter, and counts what that opens or closes.
    pub(super) fn replace_record(&mut self, at: usize, record: LetterRecord, now: Time) {
        let Letter { stored, record: before, .. } = self.letters[at].clone();
        let opened = i64::from(before.status.is_closed()) - i64::from(record.status.is_closed());
        if opened != 0 {
            self.count_leaf(&stored.envelope, record.leaf, [opened, 0, 0], now);
        }
        if opened < 0 {
            self.note_close(record.leaf, now);
        }
        self.letters[at].record = record;
        self.send_owed_reply_if_due(at, now);
    }

    /// Removes a letter for good. A purged letter was already counted as gone when it was purged.
    fn remove_letter(&mut self, at: usize, now: Time) {
        let envelope = if self.letters[at].record.status == Status::Purged {
            let envelope = self.letters.remove(at).stored.envelope;
            self.histories.remove(&envelope.id);
            self.contents.remove(&envelope.id);
            envelope
        } else {
            self.remove_letter_record(at, "retention", now)
        };
        self.record_key_outcome(&envelope, State::Purged);
    }

    /// Removes a letter without changing the state of its key.
    fn remove_letter_record(&mut self, at: usize, what: &str, now: Time) -> Envelope {
        if self.letters[at].record.owes_reply {
            self.send_owed_reply(at, now);
        }
        let Letter { stored, record, .. } = self.letters.remove(at);
        self.count_event(Event::Discarded, &stored.envelope.queue, &[what], 0, now);
        if !record.status.is_closed() {
            self.count_leaf(&stored.envelope, record.leaf, [-1, 0, 0], now);
        }
        let counts = self.counts(&stored.envelope.queue);
        counts.leave(&Phase::Dead, 0);
        counts.enter(&Phase::Over(Final::Purged), 0);
        self.histories.remove(&stored.envelope.id);
        self.contents.remove(&stored.envelope.id);
        stored.envelope
    }

    /// Applies one act, without its audit row.
    fn apply_act(
        &mut self,
        record: &LetterRecord,
        request: &ActRequest,
        now: Time,
    ) -> Result<LetterState, Refusal> {
        self.act_for_operation(record, request, None, now)
    }

    /// Applies one act on behalf of an operation, without its audit row.
    pub(super) fn act_for_operation(
        &mut self,
        record: &LetterRecord,
        request: &ActRequest,
        operation: Option<OperationId>,
        now: Time,
    ) -> Result<LetterState, Refusal> {
        let id = request.id;
        let at = self.letter_at(id).ok_or(Refusal::NoSuchLetter { id })?;
        if request.act.changes_content() {
            return self.change_content(at, record, request, operation, now);
        }
        let letter = self.letters[at].clone();
        let queue = letter.stored.envelope.queue.clone();
        let mut next = record.act(id, request, self.policy(&queue), now)?;
        match &request.act {
            Act::Retry(retry) => {
                if retry.runs(&(&letter.stored).into(), self.key_holder(&letter.stored.envelope, now))? {
                    self.redrive(&letter.stored, retry, now)?;
                    next.operation = operation;
                } else {
                    next = record.already_done(self.policy(&queue), &request.actor, now);
                }
            }
            Act::PullBack => {
                self.pull_back(at, now)?;
                if let Some(operation) = record.operation {
                    self.settle_member(operation, letter.death, MemberOutcome::Undone, None, now);
                }
            }
            Act::Move { dlq } => self.check_dlq(dlq)?,
            Act::Purge => {
                self.count_event(Event::Discarded, &queue, &["letter"], 0, now);
                let counts = self.counts(&queue);
                (counts.dead, counts.purged) = (counts.dead - 1, counts.purged + 1);
            }
            Act::Unpurge => {
                let counts = self.counts(&queue);
                (counts.dead, counts.purged) = (counts.dead + 1, counts.purged - 1);
                self.note_peaks(&queue);
            }
            Act::Resolve => self.record_outcome(&letter, |l| l.resolved += 1),
            Act::Abandon => self.record_outcome(&letter, |l| l.abandoned += 1),
            Act::Review | Act::Quarantine { .. } | Act::Release | Act::Reopen | Act::Note => {}
            Act::Hold { .. } | Act::Snooze { .. } | Act::Assign { .. } | Act::Label { .. } => {}
            Act::Edit(_) | Act::Patch(_) | Act::Restore { .. } | Act::Erase => {}
        }
        let unrun = matches!(request.act, Act::Retry(_)) && next.status == Status::Resolved;
        self.count_act(&letter, if unrun { &Act::Resolve } else { &request.act }, now);
        next.set_operation(operation);
        let state = LetterState { id, status: Some(next.status), version: next.version };
        self.dlqs.insert(next.dlq.clone());
        self.replace_record(at, next, now);
        Ok(state)
    }

    /// The message that holds the idempotency key of this one, and its state.
    fn key_holder(&self, envelope: &Envelope, now: Time) -> Option<KeyState> {
        let key = self.keys.get(&(envelope.home().clone(), envelope.key.clone()?))?;
        if key.created_at.plus(limits::KEY_WINDOW) <= now {
            return None;
        }
        let live = self.live_at(key.id).map(|at| self.live[at].lifecycle.state(now));
        Some(KeyState { id: key.id, state: live.or(key.over).unwrap_or(State::Dead) })
    }

    /// Puts the message of a letter back into a queue, as the retry asks.
    fn redrive(&mut self, dead: &StoredMessage, retry: &Retry, now: Time) -> Result<(), Refusal> {
        let mut stored = dead.clone();
        let envelope = &mut stored.envelope;
        let at = retry.at.unwrap_or(now);
        stored.lifecycle = transition(envelope.id, &dead.lifecycle, &Command::Redrive { at }, now)?.next;
        if let Some(queue) = &retry.queue {
            envelope.origin = (queue != dead.envelope.home()).then(|| dead.envelope.home().clone());
            envelope.queue = queue.clone();
        }
        envelope.priority = retry.priority.unwrap_or(envelope.priority);
        envelope.max_attempts = retry.max_attempts.or(envelope.max_attempts);
        let (queue, size) = (envelope.queue.clone(), envelope.size());
        if !self.queues.contains_key(&queue) {
            let owner =
                self.queues.iter().find(|(name, queue_state)| queue_state.policy.dlqs(name).contains(&queue));
            let owner = owner.map(|(name, _)| name.clone());
            return Err(owner.map_or(Refusal::NoSuchQueue { queue: queue.clone() }, |owner| {
                Refusal::IsDlq { queue: queue.clone(), owner }
            }));
        }
        if self
            .queues
            .get(&queue)
            .and_then(|queue_state| queue_state.policy.max_bytes)
            .is_some_and(|most| size > most)
        {
            return Err(Refusal::invalid("payload", "larger than the queue may ever hold"));
        }
        self.check_capacity(&queue, size)?;
        if queue != dead.envelope.queue {
            let rules = self.policy(&queue).breaker.as_ref();
            let value = rules.and_then(|rules| rules.key.read(&envelope.headers, &envelope.payload));
            let breaker_key = (envelope.id, queue.clone());
            self.breaker_values.remove(&breaker_key);
            self.breaker_values.extend(value.map(|value| (breaker_key, value)));
        }
        self.counts(&dead.envelope.queue).leave(&Phase::Dead, 0);
        self.change_queue(&dead.envelope.queue, &queue);
        self.counts(&queue).enter(&Phase::Waiting, size);
        self.note_peaks(&queue);
        self.live.push(stored);
        Ok(())
    }

    /// Takes the message of a letter back out of its queue. The letter is as before, except that leases
    /// granted in the meantime stay counted.
    fn pull_back(&mut self, letter: usize, now: Time) -> Result<(), Refusal> {
        let id = self.letters[letter].stored.envelope.id;
        let at = self.live_at(id).expect("it is being retried");
        let lifecycle = transition(id, &self.live[at].lifecycle, &Command::UndoRedrive, now)?.next;
        let StoredMessage { envelope, lifecycle: before } = self.live.remove(at);
        let stored = &mut self.letters[letter].stored;
        stored.lifecycle.deliveries = lifecycle.deliveries;
        stored.lifecycle.first_received_at = lifecycle.first_received_at;
        stored.lifecycle.progress = lifecycle.progress;
        stored.lifecycle.updated_at = now;
        let home = stored.envelope.queue.clone();
        self.counts(&envelope.queue).leave(&before.phase, envelope.size());
        self.change_queue(&envelope.queue, &home);
        self.counts(&home).enter(&Phase::Dead, 0);
        self.note_peaks(&home);
        Ok(())
    }

    /// A letter can only be in a dead letter queue that belongs to some queue (I38).
    fn check_dlq(&self, dlq: &QueueName) -> Result<(), Refusal> {
        let is_one =
            self.queues.iter().any(|(name, queue_state)| queue_state.policy.dlqs(name).contains(dlq));
        if self.queues.contains_key(dlq) || !is_one {
            return Err(Refusal::invalid("dlq", "not a dead letter queue"));
        }
        Ok(())
    }

    fn count_act(&mut self, letter: &Letter, act: &Act, now: Time) {
        let age = now.since(letter.record.dead_at).as_millis();
        let (event, amount) = match act {
            Act::Retry { .. } => (Event::Redriven, 0),
            Act::PullBack => (Event::PulledBack, 0),
            Act::Resolve => (Event::Resolved, age),
            Act::Abandon => (Event::Abandoned, age),
            Act::Review => (Event::Reviewed, 0),
            Act::Quarantine { .. } => (Event::Quarantined, 0),
            Act::Release | Act::Reopen | Act::Note | Act::Purge | Act::Unpurge => return,
            Act::Move { .. } | Act::Hold { .. } | Act::Snooze { .. } => return,
            Act::Assign { .. } | Act::Label { .. } => return,
            Act::Edit(_) | Act::Patch(_) | Act::Restore { .. } | Act::Erase => return,
        };
        self.count_event(event, &letter.stored.envelope.queue, &[], amount, now);
    }

    pub(super) fn act(&mut self, request: &ActRequest, now: Time) -> Result<LetterState, Refusal> {
        let at = self.letter_at(request.id).ok_or(Refusal::NoSuchLetter { id: request.id })?;
        let before = self.letters[at].record.clone();
        let state = self.apply_act(&before, request, now)?;
        self.audit_act(&before, request, now);
        Ok(state)
    }

    /// Writes the audit row of an act, with fingerprints of the record before and after.
    fn audit_act(&mut self, before: &LetterRecord, request: &ActRequest, now: Time) {
        let after = self.letter_at(request.id).map(|at| fingerprint(&self.letters[at].record));
        let mut entry = AuditEntry::new(now, &request.actor, request.act.name(), request.id, 1);
        (entry.before, entry.after, entry.detail) = (Some(fingerprint(before)), after, request.act.detail());
        self.seal(entry);
    }

    pub(super) fn hand_over(
        &mut self,
        HandOver { id, version }: HandOver,
        actor: &Actor,
        now: Time,
    ) -> Result<MessageId, Refusal> {
        let at = self.letter_at(id).ok_or(Refusal::NoSuchLetter { id })?;
        self.letters[at].record.check_hand_over(id, version, now)?;
        self.remove_letter_record(at, "hand_over", now);
        self.log(now, actor, "hand over", id, 1);
        Ok(id)
    }

    pub(super) fn lease_letters(&mut self, request: &LetterLeaseRequest, now: Time) -> Vec<LeaseToken> {
        let pending = self.letters.iter().filter(|l| l.record.dlq == request.dlq && l.record.leasable(now));
        let oldest: BTreeSet<(u64, MessageId)> = pending.map(|l| (l.death, l.stored.envelope.id)).collect();
        let (mut tokens, mut bytes) = (Vec::new(), 0);
        for (_, id) in oldest.into_iter().take(request.max) {
            if bytes >= limits::LEASE_BYTES_MAX {
                break;
            }
            let secret = self.next_secret();
            let at = self.letter_at(id).expect("just found");
            bytes += self.letters[at].stored.envelope.size();
            let letter = &mut self.letters[at];
            letter.secret = Some(secret);
            letter.record.consumer = Some(request.worker.clone());
            letter.record.consumer_until = Some(now.plus(request.lease_for.unwrap_or(CONSUMER_LEASE)));
            tokens.push(LeaseToken { id, secret });
        }
        tokens
    }

    pub(super) fn settle_letter(
        &mut self,
        said: LetterSettlement,
        now: Time,
    ) -> Result<LetterState, Refusal> {
        let LeaseToken { id, secret } = said.token;
        match &said.what {
            LetterSettle::Extend { by } => check_lease(*by)?,
            LetterSettle::Snooze { span } => check_snooze(*span)?,
            LetterSettle::Do { .. } | LetterSettle::Fail { .. } | LetterSettle::Release => {}
        }
        let at = self.letter_at(id).ok_or(Refusal::StaleToken { id })?;
        let Letter { record, secret: held, stored, .. } = self.letters[at].clone();
        let outcome = match &said.what {
            LetterSettle::Do { .. } => Some("done"),
            LetterSettle::Fail { .. } => Some("failed"),
            LetterSettle::Release | LetterSettle::Snooze { .. } => Some("released"),
            LetterSettle::Extend { .. } => None,
        };
        let (Some(worker), Some(until)) = (record.consumer.clone(), record.consumer_until) else {
            return Err(Refusal::StaleToken { id });
        };
        if held != Some(secret) {
            return Err(Refusal::StaleToken { id });
        }
        if until <= now {
            return Err(Refusal::LeaseExpired { id, expired_at: until });
        }
        let free = LetterRecord { consumer: None, consumer_until: None, ..record.clone() };
        let next = match said.what {
            LetterSettle::Do { act, actor } => {
                let request = ActRequest { id, act, actor, expected_version: Some(record.version) };
                let state = self.apply_act(&free, &request, now)?;
                self.count_event(Event::Processed, &stored.envelope.queue, &["done"], 0, now);
                self.audit_act(&record, &request, now);
                return Ok(state);
            }
            LetterSettle::Fail { note } => free.consumer_failed(&worker, note, now)?,
            LetterSettle::Release => LetterRecord { available_at: now, ..free },
            LetterSettle::Snooze { span } => LetterRecord { available_at: now.plus(span), ..free },
            LetterSettle::Extend { by } => LetterRecord {
                consumer_until: Some(until.max(now.plus(by.unwrap_or(CONSUMER_LEASE)))),
                ..record
            },
        };
        if let Some(outcome) = outcome {
            self.count_event(Event::Processed, &stored.envelope.queue, &[outcome], 0, now);
        }
        let state = LetterState { id, status: Some(next.status), version: next.version };
        self.letters[at].record = next;
        self.send_owed_reply_if_due(at, now);
        Ok(state)
    }

    pub(super) fn end_quarantines(&mut self, limit: usize, now: Time) -> u64 {
        let mut released = 0;
        let quarantined =
            |f: &LetterRecord| f.quarantined_until.filter(|t| *t <= now && f.status == Status::Quarantined);
        for id in self.due_letters(limit, quarantined) {
            let at = self.letter_at(id).expect("just found");
            let Letter { stored, record, .. } = self.letters[at].clone();
            let policy = self.policy(&stored.envelope.queue);
            let to_queue = record.released_to(policy) == Release::Queue;
            // A letter that cannot go back to its queue goes to review.
            if !to_queue || self.apply_act(&record, &ActRequest::release_to_queue(id), now).is_err() {
                let policy = self.policy(&stored.envelope.queue);
                let next = record.released_to_review(policy, now);
                self.count_act(&self.letters[at].clone(), &Act::Review, now);
                self.replace_record(at, next, now);
            }
            released += 1;
        }
        released
    }

    pub(super) fn reap_letters(&mut self, limit: usize, reaped: &mut Reaped, now: Time) {
        reaped.released = self.end_quarantines(limit, now);
        let mut owing: Vec<_> = self.letters.iter().filter(|l| l.record.owes_reply).collect();
        owing.retain(|l| l.record.status != Status::Quarantined);
        owing.sort_by_key(|l| (l.stored.envelope.queue.clone(), l.record.redrives, l.death));
        let owing: Vec<MessageId> = owing.iter().map(|l| l.stored.envelope.id).collect();
        for id in owing {
            let at = self.letter_at(id).expect("just found");
            if reaped.replies_sent < limit as u64 && self.send_owed_reply_if_due(at, now) {
                reaped.replies_sent += 1;
            }
        }
        let expired = |f: &LetterRecord| f.expires_at.filter(|_| f.is_past_retention(now));
        let mut removed = BTreeMap::new();
        for id in self.due_letters(limit, expired) {
            let at = self.letter_at(id).expect("just found");
            let record = &self.letters[at].record;
            if record.status == Status::Purged {
                reaped.letters_gone += 1;
            } else {
                reaped.letters_expired += 1;
                *removed.entry(record.dlq.clone()).or_default() += 1;
            }
            self.remove_letter(at, now);
        }
        if !removed.is_empty() {
            self.seal(AuditEntry::retention(now, &removed));
        }
        let old = self.keys.iter().filter(|(_, key)| key.created_at.plus(limits::KEY_WINDOW) <= now);
        let old: Vec<_> = old.map(|(name, _)| name.clone()).take(limit).collect();
        for name in old {
            self.keys.remove(&name);
            reaped.keys_forgotten += 1;
        }
        reaped.keys_forgotten += self.forget_requests(limit, now);
    }

    fn due_letters(&self, limit: usize, when: impl Fn(&LetterRecord) -> Option<Time>) -> Vec<MessageId> {
        let found = self.letters.iter().filter_map(|l| when(&l.record).map(|t| (t, l.stored.envelope.id)));
        let ordered: BTreeSet<(Time, MessageId)> = found.collect();
        ordered.into_iter().take(limit).map(|(_, id)| id).collect()
    }

    pub(super) fn import(
        &mut self,
        letter: DeadLetter,
        actor: &Actor,
        now: Time,
    ) -> Result<MessageId, Refusal> {
        let id = letter.id();
        check_import(&letter)?;
        if self.live_at(id).is_some() || self.letter_at(id).is_some() {
            return Err(Refusal::IdConflict { id });
        }
        self.check_new_queue(&letter.message.envelope.queue)?;
        self.import_group(&letter);
        let DeadLetter { mut message, mut record, signature, error, group, death, revisions, .. } = letter;
        let mut envelope = message.envelope;
        let counts = &mut self.queues.entry(envelope.queue.clone()).or_default().counts;
        counts.enqueued += 1;
        *(if record.status == Status::Purged { &mut counts.purged } else { &mut counts.dead }) += 1;
        self.note_peaks(&envelope.queue);
        self.count_event(Event::Imported, &envelope.queue, &[], 0, now);
        self.seq += 1;
        envelope.seq = self.seq;
        if !revisions.is_empty() {
            self.contents.insert(id, revisions.into_iter().map(|r| r.content).collect());
        }
        let rules = self.policy(&envelope.queue).breaker.as_ref();
        let breaker = rules.and_then(|rules| rules.key.read(&envelope.headers, &envelope.payload));
        self.breaker_values.extend(breaker.map(|value| ((id, envelope.queue.clone()), value)));
        for f in &mut message.failures {
            f.leaf = self.import_leaf(f.leaf, &f.signature, &f.error, now);
            self.count_leaf(&envelope, f.leaf, [0, 0, 1], now);
        }
        let open = i64::from(!record.status.is_closed());
        record.leaf = self.import_leaf(record.leaf, &signature, &error, now);
        self.join_group(record.leaf, group, now);
        self.count_leaf(&envelope, record.leaf, [open, 1, 0], now);
        // The stored history is the first and the last ten of `failed` failures. Numbers them so that later
        // failures continue the sequence.
        let kept = u32::try_from(message.failures.len()).expect("bounded");
        let failed = message.failed.max(kept);
        let number = |n: u32| if n < limits::HISTORY_EDGE { n } else { failed - kept + n };
        self.histories.insert(id, (0..).map(number).zip(message.failures).collect());
        let lifecycle = Lifecycle {
            phase: Phase::Dead,
            attempts: message.attempts,
            deliveries: message.deliveries,
            generation: message.generation,
            failed,
            first_received_at: message.first_received_at,
            progress: message.progress.map(Progress::bounded),
            updated_at: message.updated_at,
            ..Lifecycle::new(message.ready_at, now)
        };
        if record.status == Status::Retrying {
            record.status = Status::Pending;
        }
        (record.consumer, record.consumer_until) = (None, None);
        self.deaths = death_of_import(death, self.deaths);
        self.dlqs.insert(record.dlq.clone());
        self.letters.push(Letter {
            stored: StoredMessage { envelope, lifecycle },
            record,
            death: self.deaths,
            secret: None,
        });
        self.log(now, actor, "import", id, 1);
        Ok(id)
    }
}
