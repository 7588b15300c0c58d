//! The dead-letter half of the reference model: acts, consumers, import. As plain as `model`.

use super::{Books, Letter};
use redrive_core::audit::{AuditEntry, fingerprint};
use redrive_core::dead_letter::{Act, ActRequest, Actor, CONSUMER_LEASE, DeadLetter, File, Retry, Status};
use redrive_core::error::Refusal;
use redrive_core::ids::{LeaseToken, MessageId, OperationId, QueueName};
use redrive_core::lifecycle::{Command, Final, Life, Phase, State, transition};
use redrive_core::limits;
use redrive_core::message::{Envelope, Record};
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

impl Books {
    /// Puts a new file on a letter; what that opens or closes is counted.
    pub(super) fn refile(&mut self, at: usize, file: File, now: Time) {
        let Letter { record, file: before, .. } = self.letters[at].clone();
        let opened = i64::from(before.status.is_closed()) - i64::from(file.status.is_closed());
        if opened != 0 {
            self.tally(&record.envelope, file.leaf, [opened, 0, 0], now);
        }
        self.letters[at].file = file;
        self.pay_if_due(at, now);
    }

    /// Removes a letter for good. One that was purged has been counted as gone since.
    fn remove_letter(&mut self, at: usize, now: Time) {
        let envelope = if self.letters[at].file.status == Status::Purged {
            let envelope = self.letters.remove(at).record.envelope;
            self.histories.remove(&envelope.id);
            self.contents.remove(&envelope.id);
            envelope
        } else {
            self.take_out_letter(at, "retention", now)
        };
        self.remember(&envelope, State::Purged);
    }

    /// The same for one that is elsewhere now: its key does not change.
    fn take_out_letter(&mut self, at: usize, what: &str, now: Time) -> Envelope {
        if self.letters[at].file.owes_reply {
            self.pay_reply(at, now);
        }
        let Letter { record, file, .. } = self.letters.remove(at);
        self.happened(Event::Discarded, &record.envelope.queue, &[what], 0, now);
        if !file.status.is_closed() {
            self.tally(&record.envelope, file.leaf, [-1, 0, 0], now);
        }
        let counts = self.counts(&record.envelope.queue);
        counts.leave(&Phase::Dead, 0);
        counts.enter(&Phase::Over(Final::Purged), 0);
        self.histories.remove(&record.envelope.id);
        self.contents.remove(&record.envelope.id);
        record.envelope
    }

    /// One act, without its audit row.
    fn act_on(&mut self, file: &File, request: &ActRequest, now: Time) -> Result<LetterState, Refusal> {
        self.act_for(file, request, None, now)
    }

    /// The same on behalf of an operation.
    pub(super) fn act_for(
        &mut self,
        file: &File,
        request: &ActRequest,
        operation: Option<OperationId>,
        now: Time,
    ) -> Result<LetterState, Refusal> {
        let id = request.id;
        let at = self.letter_at(id).ok_or(Refusal::NoSuchLetter { id })?;
        if request.act.is_content() {
            return self.change_content(at, file, request, operation, now);
        }
        let letter = self.letters[at].clone();
        let queue = letter.record.envelope.queue.clone();
        let mut next = file.act(id, request, self.policy(&queue), now)?;
        match &request.act {
            Act::Retry(retry) => {
                if retry.runs(&(&letter.record).into(), self.key_holder(&letter.record.envelope, now))? {
                    self.send_back(&letter.record, retry, now)?;
                    next.operation = operation;
                } else {
                    next = file.already_done(self.policy(&queue), &request.actor, now);
                }
            }
            Act::PullBack => {
                self.pull_back(at, now)?;
                if let Some(operation) = file.operation {
                    self.settle_member(operation, letter.death, MemberOutcome::Undone, None, now);
                }
            }
            Act::Move { dlq } => self.check_drawer(dlq)?,
            Act::Purge => {
                self.happened(Event::Discarded, &queue, &["letter"], 0, now);
                let counts = self.counts(&queue);
                (counts.dead, counts.purged) = (counts.dead - 1, counts.purged + 1);
            }
            Act::Unpurge => {
                let counts = self.counts(&queue);
                (counts.dead, counts.purged) = (counts.dead + 1, counts.purged - 1);
                self.note_peaks(&queue);
            }
            Act::Resolve => self.teach(&letter, |l| l.resolved += 1),
            Act::Abandon => self.teach(&letter, |l| l.abandoned += 1),
            Act::Review | Act::Quarantine { .. } | Act::Release | Act::Reopen | Act::Note => {}
            Act::Hold { .. } | Act::Snooze { .. } | Act::Assign { .. } | Act::Label { .. } => {}
            Act::Edit(_) | Act::Patch(_) | Act::Restore { .. } | Act::Erase => {}
        }
        let unrun = matches!(request.act, Act::Retry(_)) && next.status == Status::Resolved;
        self.count_act(&letter, if unrun { &Act::Resolve } else { &request.act }, now);
        next.done_by(operation);
        let state = LetterState { id, status: Some(next.status), version: next.version };
        self.drawers.insert(next.dlq.clone());
        self.refile(at, next, now);
        Ok(state)
    }

    /// Who has the key of a message, and where that is or how it ended.
    fn key_holder(&self, envelope: &Envelope, now: Time) -> Option<KeyState> {
        let key = self.keys.get(&(envelope.home().clone(), envelope.key.clone()?))?;
        if key.created_at.plus(limits::KEY_WINDOW) <= now {
            return None;
        }
        let live = self.live_at(key.id).map(|at| self.live[at].life.state(now));
        Some(KeyState { id: key.id, state: live.or(key.over).unwrap_or(State::Dead) })
    }

    /// Puts the message of a letter back to work, where and how it was said.
    fn send_back(&mut self, dead: &Record, retry: &Retry, now: Time) -> Result<(), Refusal> {
        let mut record = dead.clone();
        let envelope = &mut record.envelope;
        let at = retry.at.unwrap_or(now);
        record.life = transition(envelope.id, &dead.life, &Command::Redrive { at }, now)?.next;
        if let Some(queue) = &retry.queue {
            envelope.origin = (queue != dead.envelope.home()).then(|| dead.envelope.home().clone());
            envelope.queue = queue.clone();
        }
        envelope.priority = retry.priority.unwrap_or(envelope.priority);
        envelope.max_attempts = retry.max_attempts.or(envelope.max_attempts);
        let (queue, size) = (envelope.queue.clone(), envelope.size());
        if !self.queues.contains_key(&queue) {
            let owner = self.queues.iter().find(|(name, shelf)| shelf.policy.drawers(name).contains(&queue));
            let owner = owner.map(|(name, _)| name.clone());
            return Err(owner.map_or(Refusal::NoSuchQueue { queue: queue.clone() }, |owner| {
                Refusal::IsDrawer { queue: queue.clone(), owner }
            }));
        }
        if self.queues.get(&queue).and_then(|shelf| shelf.policy.max_bytes).is_some_and(|most| size > most) {
            return Err(Refusal::invalid("payload", "never fits"));
        }
        self.check_room(&queue, size)?;
        if queue != dead.envelope.queue {
            let rules = self.policy(&queue).breaker.as_ref();
            let value = rules.and_then(|rules| rules.key.read(&envelope.headers, &envelope.payload));
            let place = (envelope.id, queue.clone());
            self.breaker_values.remove(&place);
            self.breaker_values.extend(value.map(|value| (place, value)));
        }
        self.counts(&dead.envelope.queue).leave(&Phase::Dead, 0);
        self.change_queue(&dead.envelope.queue, &queue);
        self.counts(&queue).enter(&Phase::Waiting, size);
        self.note_peaks(&queue);
        self.live.push(record);
        Ok(())
    }

    /// Takes the message of a letter back out of its queue. The letter is what it was, but a lease that was granted
    /// meanwhile stays counted.
    fn pull_back(&mut self, letter: usize, now: Time) -> Result<(), Refusal> {
        let id = self.letters[letter].record.envelope.id;
        let at = self.live_at(id).expect("it is being retried");
        let life = transition(id, &self.live[at].life, &Command::UndoRedrive, now)?.next;
        let Record { envelope, life: before } = self.live.remove(at);
        let record = &mut self.letters[letter].record;
        record.life.deliveries = life.deliveries;
        record.life.first_received_at = life.first_received_at;
        record.life.progress = life.progress;
        record.life.updated_at = now;
        let home = record.envelope.queue.clone();
        self.counts(&envelope.queue).leave(&before.phase, envelope.size());
        self.change_queue(&envelope.queue, &home);
        self.counts(&home).enter(&Phase::Dead, 0);
        self.note_peaks(&home);
        Ok(())
    }

    /// Letters lie in drawers, and a drawer is some queue's (I38).
    fn check_drawer(&self, dlq: &QueueName) -> Result<(), Refusal> {
        let is_one = self.queues.iter().any(|(name, shelf)| shelf.policy.drawers(name).contains(dlq));
        if self.queues.contains_key(dlq) || !is_one {
            return Err(Refusal::invalid("dlq", "not a drawer"));
        }
        Ok(())
    }

    fn count_act(&mut self, letter: &Letter, act: &Act, now: Time) {
        let age = now.since(letter.file.dead_at).as_millis();
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
        self.happened(event, &letter.record.envelope.queue, &[], amount, now);
    }

    pub(super) fn act(&mut self, request: &ActRequest, now: Time) -> Result<LetterState, Refusal> {
        let at = self.letter_at(request.id).ok_or(Refusal::NoSuchLetter { id: request.id })?;
        let before = self.letters[at].file.clone();
        let state = self.act_on(&before, request, now)?;
        self.log_act(&before, request, now);
        Ok(state)
    }

    /// An act's row: what was done, and how the file differs.
    fn log_act(&mut self, before: &File, request: &ActRequest, now: Time) {
        let after = self.letter_at(request.id).map(|at| fingerprint(&self.letters[at].file));
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
        self.letters[at].file.may_leave(id, version, now)?;
        self.take_out_letter(at, "hand_over", now);
        self.log(now, actor, "hand over", id, 1);
        Ok(id)
    }

    pub(super) fn lease_letters(&mut self, request: &LetterLeaseRequest, now: Time) -> Vec<LeaseToken> {
        let pending = self.letters.iter().filter(|l| l.file.dlq == request.dlq && l.file.leasable(now));
        let oldest: BTreeSet<(u64, MessageId)> = pending.map(|l| (l.death, l.record.envelope.id)).collect();
        let (mut tokens, mut bytes) = (Vec::new(), 0);
        for (_, id) in oldest.into_iter().take(request.max) {
            if bytes >= limits::LEASE_BYTES_MAX {
                break;
            }
            let secret = self.secret();
            let at = self.letter_at(id).expect("just found");
            bytes += self.letters[at].record.envelope.size();
            let letter = &mut self.letters[at];
            letter.secret = Some(secret);
            letter.file.consumer = Some(request.worker.clone());
            letter.file.consumer_until = Some(now.plus(request.lease_for.unwrap_or(CONSUMER_LEASE)));
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
        let Letter { file, secret: held, record, .. } = self.letters[at].clone();
        let outcome = match &said.what {
            LetterSettle::Do { .. } => Some("done"),
            LetterSettle::Fail { .. } => Some("failed"),
            LetterSettle::Release | LetterSettle::Snooze { .. } => Some("released"),
            LetterSettle::Extend { .. } => None,
        };
        let (Some(worker), Some(until)) = (file.consumer.clone(), file.consumer_until) else {
            return Err(Refusal::StaleToken { id });
        };
        if held != Some(secret) {
            return Err(Refusal::StaleToken { id });
        }
        if until <= now {
            return Err(Refusal::LeaseExpired { id, expired_at: until });
        }
        let free = File { consumer: None, consumer_until: None, ..file.clone() };
        let next = match said.what {
            LetterSettle::Do { act, actor } => {
                let request = ActRequest { id, act, actor, expected_version: Some(file.version) };
                let state = self.act_on(&free, &request, now)?;
                self.happened(Event::Processed, &record.envelope.queue, &["done"], 0, now);
                self.log_act(&file, &request, now);
                return Ok(state);
            }
            LetterSettle::Fail { note } => free.consumer_failed(&worker, note, now)?,
            LetterSettle::Release => File { available_at: now, ..free },
            LetterSettle::Snooze { span } => File { available_at: now.plus(span), ..free },
            LetterSettle::Extend { by } => {
                File { consumer_until: Some(until.max(now.plus(by.unwrap_or(CONSUMER_LEASE)))), ..file }
            }
        };
        if let Some(outcome) = outcome {
            self.happened(Event::Processed, &record.envelope.queue, &[outcome], 0, now);
        }
        let state = LetterState { id, status: Some(next.status), version: next.version };
        self.letters[at].file = next;
        self.pay_if_due(at, now);
        Ok(state)
    }

    pub(super) fn end_quarantines(&mut self, limit: usize, now: Time) -> u64 {
        let mut released = 0;
        let quarantined =
            |f: &File| f.quarantined_until.filter(|t| *t <= now && f.status == Status::Quarantined);
        for id in self.letters_due(limit, quarantined) {
            let at = self.letter_at(id).expect("just found");
            let Letter { record, file, .. } = self.letters[at].clone();
            let policy = self.policy(&record.envelope.queue);
            let to_queue = file.released_to(policy) == Release::Queue;
            // What cannot go back after all is for a person.
            if !to_queue || self.act_on(&file, &ActRequest::release_to_queue(id), now).is_err() {
                let policy = self.policy(&record.envelope.queue);
                let next = file.released_to_review(policy, now);
                self.count_act(&self.letters[at].clone(), &Act::Review, now);
                self.refile(at, next, now);
            }
            released += 1;
        }
        released
    }

    pub(super) fn reap_letters(&mut self, limit: usize, reaped: &mut Reaped, now: Time) {
        reaped.released = self.end_quarantines(limit, now);
        let mut owing: Vec<_> = self.letters.iter().filter(|l| l.file.owes_reply).collect();
        owing.retain(|l| l.file.status != Status::Quarantined);
        owing.sort_by_key(|l| (l.record.envelope.queue.clone(), l.file.redrives, l.death));
        let owing: Vec<MessageId> = owing.iter().map(|l| l.record.envelope.id).collect();
        for id in owing {
            let at = self.letter_at(id).expect("just found");
            if reaped.replies_sent < limit as u64 && self.pay_if_due(at, now) {
                reaped.replies_sent += 1;
            }
        }
        let expired = |f: &File| f.expires_at.filter(|_| f.is_past_retention(now));
        let mut removed = BTreeMap::new();
        for id in self.letters_due(limit, expired) {
            let at = self.letter_at(id).expect("just found");
            let file = &self.letters[at].file;
            if file.status == Status::Purged {
                reaped.letters_gone += 1;
            } else {
                reaped.letters_expired += 1;
                *removed.entry(file.dlq.clone()).or_default() += 1;
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
    }

    fn letters_due(&self, limit: usize, when: impl Fn(&File) -> Option<Time>) -> Vec<MessageId> {
        let found = self.letters.iter().filter_map(|l| when(&l.file).map(|t| (t, l.record.envelope.id)));
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
        self.check_new(&letter.message.envelope.queue)?;
        self.expect_group(&letter);
        let DeadLetter { mut message, mut file, signature, error, group, death, revisions, .. } = letter;
        let mut envelope = message.envelope;
        let counts = &mut self.queues.entry(envelope.queue.clone()).or_default().counts;
        counts.enqueued += 1;
        *(if file.status == Status::Purged { &mut counts.purged } else { &mut counts.dead }) += 1;
        self.note_peaks(&envelope.queue);
        self.happened(Event::Imported, &envelope.queue, &[], 0, now);
        self.seq += 1;
        envelope.seq = self.seq;
        if !revisions.is_empty() {
            self.contents.insert(id, revisions.into_iter().map(|r| r.content).collect());
        }
        let rules = self.policy(&envelope.queue).breaker.as_ref();
        let breaker = rules.and_then(|rules| rules.key.read(&envelope.headers, &envelope.payload));
        self.breaker_values.extend(breaker.map(|value| ((id, envelope.queue.clone()), value)));
        for f in &mut message.failures {
            f.leaf = self.adopt(f.leaf, &f.signature, &f.error, now);
            self.tally(&envelope, f.leaf, [0, 0, 1], now);
        }
        let open = i64::from(!file.status.is_closed());
        file.leaf = self.adopt(file.leaf, &signature, &error, now);
        self.join_group(file.leaf, group, now);
        self.tally(&envelope, file.leaf, [open, 1, 0], now);
        // The kept history is the first and the last ten of `failed`: number it so that it goes on right.
        let kept = u32::try_from(message.failures.len()).expect("bounded");
        let failed = message.failed.max(kept);
        let number = |n: u32| if n < limits::HISTORY_EDGE { n } else { failed - kept + n };
        self.histories.insert(id, (0..).map(number).zip(message.failures).collect());
        let life = Life {
            phase: Phase::Dead,
            attempts: message.attempts,
            deliveries: message.deliveries,
            generation: message.generation,
            failed,
            first_received_at: message.first_received_at,
            progress: message.progress.map(Progress::bounded),
            updated_at: message.updated_at,
            ..Life::new(message.ready_at, now)
        };
        if file.status == Status::Retrying {
            file.status = Status::Pending;
        }
        (file.consumer, file.consumer_until) = (None, None);
        self.deaths = death_of_import(death, self.deaths);
        self.drawers.insert(file.dlq.clone());
        self.letters.push(Letter {
            record: Record { envelope, life },
            file,
            death: self.deaths,
            secret: None,
        });
        self.log(now, actor, "import", id, 1);
        Ok(id)
    }
}
