//! Operations on dead letters: actions, the leases of dead letter consumers, import.

use super::Engine;
use super::settle::leaf_key;
use super::tables::{Letter, Live, TableResult, Tables, unless_damaged};
use redrive_core::audit::{AuditEntry, fingerprint};
use redrive_core::breaker::BreakerKey;
use redrive_core::dead_letter::{
    Act, ActRequest, Actor, CONSUMER_LEASE, DeadLetter, LetterRecord, Retry, Status,
};
use redrive_core::error::{CallError, Refusal, StoreResult};
use redrive_core::failure::Failure;
use redrive_core::filter::LetterParts;
use redrive_core::ids::{LeaseToken, MessageId, OperationId};
use redrive_core::lifecycle::{Command, Final, Lifecycle, Phase, State, transition};
use redrive_core::limits;
use redrive_core::message::{MessageMeta, NewMessage};
use redrive_core::metrics::{Event, Timer};
use redrive_core::operation::MemberOutcome;
use redrive_core::policy::QueuePolicy;
use redrive_core::progress::Progress;
use redrive_core::store::{
    BatchResults, KeyState, LetterLeaseRequest, LetterSettle, LetterSettlement, LetterState, check_lease,
    check_snooze,
};
use redrive_core::time::Time;
use redrive_core::transfer::{self, death_of_import};

impl<T: Tables> Engine<T> {
    /// Applies actions to single letters, each with its audit row.
    pub(crate) fn act(
        &mut self,
        batch: Vec<ActRequest>,
        now: Time,
    ) -> StoreResult<BatchResults<LetterState>> {
        super::enqueue::check_batch(batch.len(), 0)?;
        self.run_batch(batch, |engine, request| {
            let letter = engine.require_letter(request.id)?;
            let state = engine.act_on(&letter, &request, now)?;
            engine.record_act(&letter.record, &request, now)?;
            Ok(state)
        })
    }

    /// Records an action in the audit trail, with fingerprints of the letter's record before and after it.
    fn record_act(&mut self, before: &LetterRecord, request: &ActRequest, now: Time) -> TableResult<()> {
        let after = self.tables.letter(request.id)?.map(|letter| fingerprint(&letter.record));
        let entry = AuditEntry::new(now, &request.actor, request.act.name(), request.id, 1)
            .with_change(Some(fingerprint(before)), after);
        self.append_audit(match request.act.detail() {
            Some(detail) => entry.with_detail(detail),
            None => entry,
        })
    }

    pub(super) fn require_letter(&mut self, id: MessageId) -> StoreResult<Letter> {
        self.tables.letter(id)?.ok_or_else(|| Refusal::NoSuchLetter { id }.into())
    }

    /// Applies an action to a letter, without its audit row. All checks come before the first write.
    pub(super) fn act_on(
        &mut self,
        letter: &Letter,
        request: &ActRequest,
        now: Time,
    ) -> StoreResult<LetterState> {
        self.act_on_behalf(letter, request, None, now)
    }

    /// Like [`Self::act_on`], on behalf of an operation if one is given.
    pub(super) fn act_on_behalf(
        &mut self,
        letter: &Letter,
        request: &ActRequest,
        operation: Option<OperationId>,
        now: Time,
    ) -> StoreResult<LetterState> {
        if request.act.changes_content() {
            return self.change_content(letter, request, operation, now);
        }
        let (id, meta) = (letter.meta.id, &letter.meta);
        let policy = self.queue(&meta.queue)?.policy.clone();
        let mut record = letter.record.act(id, request, &policy, now)?;
        let mut next = letter.clone();
        match &request.act {
            Act::Retry(retry) => {
                if retry.runs(meta, self.key_holder(meta, now)?)? {
                    record.operation = operation;
                    self.revive(letter, retry, now)?;
                } else {
                    record = letter.record.already_done(&policy, &request.actor, now);
                }
            }
            Act::PullBack => {
                next.lifecycle = self.pull_back(letter, now)?;
                if let Some(operation) = letter.record.operation {
                    self.settle_member(operation, letter.death, MemberOutcome::Undone, None, now)?;
                }
            }
            Act::Move { dlq } => self.check_dlq(dlq)?,
            Act::Purge => {
                self.move_count(meta, Some(&Phase::Dead), &Phase::Over(Final::Purged))?;
                self.count_event(Event::Discarded, &meta.queue, &["letter"], 0, now)?;
            }
            Act::Unpurge => self.move_count(meta, Some(&Phase::Over(Final::Purged)), &Phase::Dead)?,
            Act::Resolve => self.update_outcomes(letter, |outcome_stats| outcome_stats.resolved += 1)?,
            Act::Abandon => self.update_outcomes(letter, |outcome_stats| outcome_stats.abandoned += 1)?,
            Act::Review
            | Act::Quarantine { .. }
            | Act::Release
            | Act::Reopen
            | Act::Note
            | Act::Hold { .. }
            | Act::Snooze { .. }
            | Act::Assign { .. }
            | Act::Label { .. }
            | Act::Edit(_)
            | Act::Patch(_)
            | Act::Restore { .. }
            | Act::Erase => {}
        }
        self.count_act(&letter.meta, &letter.record, &request.act, record.status, now)?;
        record.set_operation(operation);
        next.record = record;
        self.replace_letter(letter, next, now)
    }

    /// The message that holds a letter's idempotency key, with its state, while the key is remembered.
    fn key_holder(&mut self, meta: &MessageMeta, now: Time) -> TableResult<Option<KeyState>> {
        let Some(key) = &meta.key else { return Ok(None) };
        let row = self.tables.key(meta.home(), key)?;
        let Some(row) = row.filter(|row| row.created_at.plus(limits::KEY_WINDOW) > now) else {
            return Ok(None);
        };
        let live = self.tables.live(row.id)?.map(|live| live.lifecycle.state(now));
        Ok(Some(KeyState { id: row.id, state: live.or(row.ended).unwrap_or(State::Dead) }))
    }

    /// Puts the message of a letter back into its queue, or into another, as a new generation.
    fn revive(&mut self, letter: &Letter, retry: &Retry, now: Time) -> StoreResult<()> {
        let at = retry.at.unwrap_or(now);
        let t = transition(letter.meta.id, &letter.lifecycle, &Command::Redrive { at }, now)?;
        let mut meta = letter.meta.sent_back(retry);
        self.check_destination(&meta)?;
        if meta.queue != letter.meta.queue {
            meta.breaker = self.breaker_value_in(&meta)?;
        }
        self.move_count_across((&letter.meta, &Phase::Dead), (&meta, &Phase::Waiting))?;
        let live = Live { meta, lifecycle: t.next };
        self.tables.add_live(&live)?;
        if let Some(ready_index) = &mut self.ready_index {
            ready_index.add(&live.meta, &live.lifecycle);
        }
        self.work_available(&live.meta.queue, live.lifecycle.ready_at, now);
        Ok(())
    }

    /// The value of a message's breaker key in a queue that it was not enqueued to.
    pub(super) fn breaker_value_in(&mut self, meta: &MessageMeta) -> StoreResult<Option<String>> {
        let key = self.queue(&meta.queue)?.policy.breaker.as_ref().map(|rules| rules.key.clone());
        match key {
            Some(key @ (BreakerKey::Header(_) | BreakerKey::Payload(_))) => {
                // A message that cannot be read has no breaker; its worker will find out.
                let envelope = unless_damaged(self.tables.envelope(meta))?;
                Ok(envelope.and_then(|envelope| key.read(&envelope.headers, &envelope.payload)))
            }
            Some(BreakerKey::Queue | BreakerKey::Kind) | None => Ok(None),
        }
    }

    /// Takes a redriven message back out of its queue. Returns the lifecycle for its letter.
    fn pull_back(&mut self, letter: &Letter, now: Time) -> StoreResult<Lifecycle> {
        let id = letter.meta.id;
        let Some(live) = self.tables.live(id)? else { return Err(Refusal::NoSuchMessage { id }.into()) };
        let t = transition(id, &live.lifecycle, &Command::UndoRedrive, now)?;
        self.move_count_across((&live.meta, &live.lifecycle.phase), (&letter.meta, &Phase::Dead))?;
        if let Some(ready_index) = &mut self.ready_index {
            ready_index.remove(&live.meta, &live.lifecycle);
        }
        self.tables.drop_live(&live.meta)?;
        if live.meta.ordering_key.is_some() {
            self.work_available(&live.meta.queue, now, now);
        }
        Ok(t.next.pulled_back(&letter.lifecycle))
    }

    /// Removes a letter for good and notes that in its idempotency key.
    pub(super) fn expire_letter(&mut self, letter: &Letter, now: Time) -> StoreResult<()> {
        self.end_idempotency_key(&letter.meta, Final::Purged)?;
        if letter.record.status == Status::Purged {
            // It was counted as removed when it was purged.
            return Ok(self.drop_letter_rows(letter)?);
        }
        self.delete_letter(letter, "retention", now)
    }

    /// Removes a letter and its rows, counted as purged. Its idempotency key stays as it is.
    pub(super) fn delete_letter(&mut self, letter: &Letter, what: &str, now: Time) -> StoreResult<()> {
        let meta = &letter.meta;
        if letter.record.owes_reply {
            self.send_owed_reply(&mut letter.clone(), now)?;
        }
        self.count_event(Event::Discarded, &meta.queue, &[what], 0, now)?;
        if !letter.record.status.is_closed() {
            self.count_leaf(leaf_key(meta, letter.record.leaf), |c| c.add(-1, 0, 0, now))?;
            self.count_open(meta.into(), -1)?;
        }
        if letter.record.holds_key
            && let Some(ready_index) = &mut self.ready_index
        {
            ready_index.set_key_held(meta, false);
        }
        self.move_count(meta, Some(&Phase::Dead), &Phase::Over(Final::Purged))?;
        Ok(self.drop_letter_rows(letter)?)
    }

    /// Deletes the rows that belong to one letter alone.
    fn drop_letter_rows(&mut self, letter: &Letter) -> TableResult<()> {
        self.count_dlq(&letter.record.dlq, letter.record.status, -1)?;
        self.drop_letter(letter)?;
        self.tables.drop_failures(&letter.meta)?;
        if letter.record.revision() > 0 {
            self.tables.drop_revisions(&letter.meta)?;
        }
        self.tables.drop_body(&letter.meta)
    }

    /// Leases pending letters to a consumer.
    pub(crate) fn lease_letters(
        &mut self,
        request: &LetterLeaseRequest,
        now: Time,
    ) -> StoreResult<Vec<(Letter, LeaseToken)>> {
        request.check()?;
        let (mut leased, mut bytes) = (Vec::new(), 0);
        for stored in self.tables.leasable_letters(&request.dlq, request.max, now)? {
            let mut letter = stored.clone();
            if bytes >= limits::LEASE_BYTES_MAX {
                break;
            }
            bytes += letter.meta.size;
            let token = LeaseToken { id: letter.meta.id, secret: self.entropy.secret() };
            letter.record.consumer = Some(request.worker.clone());
            letter.record.consumer_until = Some(now.plus(request.lease_for.unwrap_or(CONSUMER_LEASE)));
            letter.secret = Some(token.secret);
            self.put_letter(&stored, &letter)?;
            self.after_commit.span(Timer::LetterAge, now.since(letter.record.dead_at));
            leased.push((letter, token));
        }
        Ok(leased)
    }

    /// A letter with everything that belongs to it, using the cached policy of its queue.
    pub(crate) fn assemble(&mut self, letter: &Letter, now: Time) -> TableResult<DeadLetter> {
        let policy = self.queues()?.get(&letter.meta.queue).map(|row| row.policy.clone()).unwrap_or_default();
        let whole = LetterParts { body: true, failures: true };
        super::reads::assemble_with(&self.tables, &policy, letter, whole, now)
    }

    /// Settles letters that a consumer has leased.
    pub(crate) fn settle_letters(
        &mut self,
        batch: Vec<LetterSettlement>,
        now: Time,
    ) -> StoreResult<BatchResults<LetterState>> {
        super::enqueue::check_batch(batch.len(), 0)?;
        self.run_batch(batch, |engine, settlement| engine.settle_letter(settlement, now))
    }

    fn settle_letter(&mut self, settlement: LetterSettlement, now: Time) -> StoreResult<LetterState> {
        let id = settlement.token.id;
        let stale = || CallError::Refused(Refusal::StaleToken { id });
        let letter = self.tables.letter(id)?.ok_or_else(stale)?;
        let (Some(secret), Some(until)) = (letter.secret, letter.record.consumer_until) else {
            return Err(stale());
        };
        if secret != settlement.token.secret {
            return Err(stale());
        }
        if until <= now {
            return Err(Refusal::LeaseExpired { id, expired_at: until }.into());
        }
        let consumer = letter.record.consumer.clone().unwrap_or_default();
        let free = LetterRecord { consumer: None, consumer_until: None, ..letter.record.clone() };
        let outcome = match &settlement.what {
            LetterSettle::Fail { .. } => Some("failed"),
            LetterSettle::Release | LetterSettle::Snooze { .. } => Some("released"),
            LetterSettle::Do { .. } | LetterSettle::Extend { .. } => None,
        };
        let record = match settlement.what {
            LetterSettle::Do { act, actor } => {
                // The consumer holds the letter, so nobody else has changed it: act on its current version.
                let request = ActRequest { id, act, actor, expected_version: Some(free.version) };
                let freed = Letter { record: free, ..letter.clone() };
                let state = self.act_on(&freed, &request, now)?;
                self.count_event(Event::Processed, &freed.meta.queue, &["done"], 0, now)?;
                self.record_act(&letter.record, &request, now)?;
                return Ok(state);
            }
            LetterSettle::Fail { note } => free.consumer_failed(&consumer, note, now)?,
            LetterSettle::Release => LetterRecord { available_at: now, ..free },
            LetterSettle::Snooze { span } => {
                check_snooze(span)?;
                LetterRecord { available_at: now.plus(span), ..free }
            }
            LetterSettle::Extend { by } => {
                check_lease(by)?;
                let longer = until.max(now.plus(by.unwrap_or(CONSUMER_LEASE)));
                LetterRecord { consumer_until: Some(longer), ..letter.record.clone() }
            }
        };
        if let Some(outcome) = outcome {
            self.count_event(Event::Processed, &letter.meta.queue, &[outcome], 0, now)?;
        }
        self.replace_letter(&letter, Letter { record, ..letter.clone() }, now)
    }

    /// Stores letters from an export.
    pub(crate) fn import(
        &mut self,
        batch: Vec<(DeadLetter, T::Body)>,
        actor: &Actor,
        now: Time,
    ) -> StoreResult<BatchResults<MessageId>> {
        super::enqueue::check_batch(batch.len(), 0)?;
        actor.check()?;
        self.run_batch(batch, |engine, (letter, body)| {
            let id = letter.id();
            engine.import_one(letter, body, now)?;
            engine.append_audit(AuditEntry::new(now, actor, "import", id, 1))?;
            Ok(id)
        })
    }

    fn import_one(&mut self, mut letter: DeadLetter, body: T::Body, now: Time) -> StoreResult<()> {
        let id = letter.id();
        if self.tables.live(id)?.is_some() || self.tables.letter(id)?.is_some() {
            return Err(Refusal::IdConflict { id }.into());
        }
        self.ensure_queue(&letter.message.envelope.queue, &QueuePolicy::default())?;
        let heads = self.heads()?;
        heads.seq += 1;
        heads.death = death_of_import(letter.death, heads.death);
        let (seq, death) = (heads.seq, heads.death);
        let envelope = &letter.message.envelope;
        let rules = self.queue(&envelope.queue)?.policy.breaker.clone();
        let breaker = rules.and_then(|rules| rules.key.read(&envelope.headers, &envelope.payload));
        let meta = MessageMeta { seq, breaker, ..MessageMeta::from(envelope) };
        let ttl = letter.message.envelope.ttl;
        self.tables.put_body(seq, body, ttl, letter.message.envelope.enqueued_at)?;
        let template = letter.signature.clone();
        self.import_group(&letter)?;
        letter.record.leaf = self.adopt_leaf(letter.record.leaf, &template, &letter.error, now)?;
        self.import_history(&meta, &letter, now)?;
        self.join_leaf_to_group(letter.record.leaf, letter.group, now)?;
        for revision in std::mem::take(&mut letter.revisions) {
            self.tables.add_revision(&meta, revision.n, &revision.content)?;
        }
        let row = imported(letter, meta, death);
        let open = i64::from(!row.record.status.is_closed());
        self.count_leaf(leaf_key(&row.meta, row.record.leaf), |c| c.add(open, 1, 0, now))?;
        self.count_open((&row.meta).into(), open)?;
        self.count_dlq(&row.record.dlq, row.record.status, 1)?;
        let counted_as =
            if row.record.status == Status::Purged { Phase::Over(Final::Purged) } else { Phase::Dead };
        self.move_count(&row.meta, None, &counted_as)?;
        self.count_event(Event::Imported, &row.meta.queue, &[], 0, now)?;
        if let Some(ready_index) = &mut self.ready_index {
            ready_index.set_key_held(&row.meta, row.record.holds_key);
        }
        self.add_letter(&row)?;
        Ok(())
    }

    /// Stores the kept failures under their original ordinals: the first ones from 0, the last ones up to the end.
    fn import_history(&mut self, meta: &MessageMeta, letter: &DeadLetter, now: Time) -> TableResult<()> {
        let kept = u32::try_from(letter.message.failures.len()).unwrap_or(u32::MAX);
        let gap = letter.message.failed.saturating_sub(kept);
        for (n, failure) in (0..).zip(&letter.message.failures) {
            let ordinal = if n < limits::HISTORY_EDGE { n } else { n + gap };
            let leaf = self.adopt_leaf(failure.leaf, &failure.signature, &failure.error, now)?;
            self.tables.add_failure(meta, ordinal, &Failure { leaf, ..failure.clone() })?;
            self.count_leaf(leaf_key(meta, leaf), |c| c.add(0, 0, 1, now))?;
        }
        Ok(())
    }
}

/// The row of an imported letter. A redrive that was under way is not continued.
fn imported(letter: DeadLetter, meta: MessageMeta, death: u64) -> Letter {
    let message = letter.message;
    let status = match letter.record.status {
        Status::Retrying => Status::Pending,
        Status::Pending
        | Status::Review
        | Status::Quarantined
        | Status::Resolved
        | Status::Abandoned
        | Status::Purged => letter.record.status,
    };
    let lifecycle = Lifecycle {
        phase: Phase::Dead,
        ready_at: message.ready_at,
        attempts: message.attempts,
        deliveries: message.deliveries,
        generation: message.generation.max(1),
        failed: message.failed,
        first_received_at: message.first_received_at,
        progress: message.progress.map(Progress::bounded),
        ..Lifecycle::new(message.ready_at, message.updated_at)
    };
    let record = LetterRecord { status, consumer: None, consumer_until: None, ..letter.record };
    Letter { death, meta, lifecycle, record, secret: None }
}

/// Refuses a letter that enqueue would not have accepted. Returns its message, ready to be encoded.
pub(crate) fn check_import(letter: &DeadLetter) -> Result<NewMessage, Refusal> {
    let new = super::edit::as_new(&letter.message.envelope);
    transfer::check_import(letter)?;
    new.check()?;
    let kept = letter.message.failures.len();
    if kept > 2 * limits::HISTORY_EDGE as usize || kept > letter.message.failed as usize {
        return Err(Refusal::invalid("failures", format!("{kept} failures do not match the failure count")));
    }
    Ok(new)
}
