//! The verbs of dead letters: acts, the leases of dead-letter consumers, import.

use super::Engine;
use super::settle::leaf_key;
use super::tables::{Kept, Letter, Live, Tables, unless_damaged};
use redrive_core::audit::{AuditEntry, fingerprint};
use redrive_core::breaker::BreakerKey;
use redrive_core::dead_letter::{Act, ActRequest, Actor, CONSUMER_LEASE, DeadLetter, File, Retry, Status};
use redrive_core::error::{Error, Outcome, Refusal};
use redrive_core::failure::Failure;
use redrive_core::filter::Needs;
use redrive_core::ids::{LeaseToken, MessageId, OperationId};
use redrive_core::lifecycle::{Command, Final, Life, Phase, State, transition};
use redrive_core::limits;
use redrive_core::message::{NewMessage, Slip};
use redrive_core::metrics::{self, Event, Timer};
use redrive_core::operation::MemberOutcome;
use redrive_core::policy::QueuePolicy;
use redrive_core::progress::Progress;
use redrive_core::store::{
    Each, KeyState, LetterLeaseRequest, LetterSettle, LetterSettlement, LetterState, check_lease,
    check_snooze,
};
use redrive_core::time::Time;
use redrive_core::transfer::{self, death_of_import};

impl<T: Tables> Engine<T> {
    /// Acts on single letters, each with its audit row.
    pub(crate) fn act(&mut self, batch: Vec<ActRequest>, now: Time) -> Outcome<Each<LetterState>> {
        super::enqueue::check_batch(batch.len(), 0)?;
        self.each(batch, |engine, request| {
            let letter = engine.letter_of(request.id)?;
            let state = engine.act_on(&letter, &request, now)?;
            engine.record_act(&letter.file, &request, now)?;
            Ok(state)
        })
    }

    /// One row for one act, with what tells the file before it from the file after it.
    fn record_act(&mut self, before: &File, request: &ActRequest, now: Time) -> Kept<()> {
        let after = self.tables.letter(request.id)?.map(|letter| fingerprint(&letter.file));
        let entry = AuditEntry::new(now, &request.actor, request.act.name(), request.id, 1)
            .with_change(Some(fingerprint(before)), after);
        self.record(match request.act.detail() {
            Some(detail) => entry.with_detail(detail),
            None => entry,
        })
    }

    pub(super) fn letter_of(&mut self, id: MessageId) -> Outcome<Letter> {
        self.tables.letter(id)?.ok_or_else(|| Refusal::NoSuchLetter { id }.into())
    }

    /// One act on one letter, without its audit row. Everything that may refuse comes before the first write.
    pub(super) fn act_on(
        &mut self,
        letter: &Letter,
        request: &ActRequest,
        now: Time,
    ) -> Outcome<LetterState> {
        self.act_for(letter, request, None, now)
    }

    /// The same on behalf of an operation.
    pub(super) fn act_for(
        &mut self,
        letter: &Letter,
        request: &ActRequest,
        operation: Option<OperationId>,
        now: Time,
    ) -> Outcome<LetterState> {
        if request.act.is_content() {
            return self.change_content(letter, request, operation, now);
        }
        let (id, slip) = (letter.slip.id, &letter.slip);
        let policy = self.queue(&slip.queue)?.policy.clone();
        let mut file = letter.file.act(id, request, &policy, now)?;
        let mut next = letter.clone();
        match &request.act {
            Act::Retry(retry) => {
                if retry.runs(slip, self.key_holder(slip, now)?)? {
                    file.operation = operation;
                    self.revive(letter, retry, now)?;
                } else {
                    file = letter.file.already_done(&policy, &request.actor, now);
                }
            }
            Act::PullBack => {
                next.life = self.pull_back(letter, now)?;
                if let Some(operation) = letter.file.operation {
                    self.settle_member(operation, letter.death, MemberOutcome::Undone, None, now)?;
                }
            }
            Act::Move { dlq } => self.check_drawer(dlq)?,
            Act::Purge => {
                self.move_count(slip, Some(&Phase::Dead), &Phase::Over(Final::Purged))?;
                self.tally(Event::Discarded, &slip.queue, &["letter"], 0, now)?;
            }
            Act::Unpurge => self.move_count(slip, Some(&Phase::Over(Final::Purged)), &Phase::Dead)?,
            Act::Resolve => self.learn(letter, |lessons| lessons.resolved += 1)?,
            Act::Abandon => self.learn(letter, |lessons| lessons.abandoned += 1)?,
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
        self.count_act(&letter.slip, &letter.file, &request.act, file.status, now)?;
        file.done_by(operation);
        next.file = file;
        self.replace_letter(letter, next, now)
    }

    /// The message that has a letter's key, and where it is or how it ended, while the key is remembered.
    fn key_holder(&mut self, slip: &Slip, now: Time) -> Kept<Option<KeyState>> {
        let Some(key) = &slip.key else { return Ok(None) };
        let row = self.tables.key(slip.home(), key)?;
        let Some(row) = row.filter(|row| row.created_at.plus(limits::KEY_WINDOW) > now) else {
            return Ok(None);
        };
        let live = self.tables.live(row.id)?.map(|live| live.life.state(now));
        Ok(Some(KeyState { id: row.id, state: live.or(row.ended).unwrap_or(State::Dead) }))
    }

    /// Puts the message of a letter into its queue, or into another, as a new generation.
    fn revive(&mut self, letter: &Letter, retry: &Retry, now: Time) -> Outcome<()> {
        let at = retry.at.unwrap_or(now);
        let t = transition(letter.slip.id, &letter.life, &Command::Redrive { at }, now)?;
        let mut slip = letter.slip.sent_back(retry);
        self.check_destination(&slip)?;
        if slip.queue != letter.slip.queue {
            slip.breaker = self.breaker_in(&slip)?;
        }
        self.carry_count((&letter.slip, &Phase::Dead), (&slip, &Phase::Waiting))?;
        let live = Live { slip, life: t.next };
        self.tables.add_live(&live)?;
        if let Some(hot) = &mut self.hot {
            hot.add(&live.slip, &live.life);
        }
        self.woke = true;
        Ok(())
    }

    /// The value a message's breaker goes by in a queue that it was not enqueued to.
    pub(super) fn breaker_in(&mut self, slip: &Slip) -> Outcome<Option<String>> {
        let key = self.queue(&slip.queue)?.policy.breaker.as_ref().map(|rules| rules.key.clone());
        match key {
            Some(key @ (BreakerKey::Header(_) | BreakerKey::Payload(_))) => {
                // What cannot be read has no breaker; the worker that gets it will see.
                let envelope = unless_damaged(self.tables.envelope(slip))?;
                Ok(envelope.and_then(|envelope| key.read(&envelope.headers, &envelope.payload)))
            }
            Some(BreakerKey::Queue | BreakerKey::Kind) | None => Ok(None),
        }
    }

    /// Takes a redriven message back out of its queue; gives the life of its letter.
    fn pull_back(&mut self, letter: &Letter, now: Time) -> Outcome<Life> {
        let id = letter.slip.id;
        let Some(live) = self.tables.live(id)? else { return Err(Refusal::NoSuchMessage { id }.into()) };
        let t = transition(id, &live.life, &Command::UndoRedrive, now)?;
        self.carry_count((&live.slip, &live.life.phase), (&letter.slip, &Phase::Dead))?;
        if let Some(hot) = &mut self.hot {
            hot.remove(&live.slip, &live.life);
        }
        self.tables.drop_live(&live.slip)?;
        self.woke |= live.slip.ordering_key.is_some();
        Ok(t.next.pulled_back(&letter.life))
    }

    /// Removes a letter for good; its key remembers that.
    pub(super) fn remove_letter(&mut self, letter: &Letter, now: Time) -> Outcome<()> {
        self.end_key(&letter.slip, Final::Purged)?;
        if letter.file.status == Status::Purged {
            // It was counted as gone when it was purged.
            return Ok(self.drop_rows(letter)?);
        }
        self.take_out_letter(letter, "retention", now)
    }

    /// Takes a letter out with all that is of it alone, counted as purged. Its key keeps what it says.
    pub(super) fn take_out_letter(&mut self, letter: &Letter, what: &str, now: Time) -> Outcome<()> {
        let slip = &letter.slip;
        if letter.file.owes_reply {
            self.pay_reply(&mut letter.clone(), now)?;
        }
        self.tally(Event::Discarded, &slip.queue, &[what], 0, now)?;
        if !letter.file.status.is_closed() {
            self.count_leaf(leaf_key(slip, letter.file.leaf), |c| c.add(-1, 0, 0, now))?;
            self.count_open(slip.into(), -1)?;
        }
        if letter.file.holds_key
            && let Some(hot) = &mut self.hot
        {
            hot.hold(slip, false);
        }
        self.move_count(slip, Some(&Phase::Dead), &Phase::Over(Final::Purged))?;
        Ok(self.drop_rows(letter)?)
    }

    /// The rows that are of one letter alone.
    fn drop_rows(&mut self, letter: &Letter) -> Kept<()> {
        self.count_drawer(&letter.file.dlq, letter.file.status, -1)?;
        self.tables.drop_letter(letter)?;
        self.tables.drop_failures(&letter.slip)?;
        if letter.file.revision() > 0 {
            self.tables.drop_revisions(&letter.slip)?;
        }
        self.tables.drop_body(&letter.slip)
    }

    /// Hands pending letters to a consumer.
    pub(crate) fn lease_letters(
        &mut self,
        request: &LetterLeaseRequest,
        now: Time,
    ) -> Outcome<Vec<(Letter, LeaseToken)>> {
        request.check()?;
        let (mut leased, mut bytes) = (Vec::new(), 0);
        for was in self.tables.leasable_letters(&request.dlq, request.max, now)? {
            let mut letter = was.clone();
            if bytes >= limits::LEASE_BYTES_MAX {
                break;
            }
            bytes += letter.slip.size;
            let token = LeaseToken { id: letter.slip.id, secret: self.entropy.secret() };
            letter.file.consumer = Some(request.worker.clone());
            letter.file.consumer_until = Some(now.plus(request.lease_for.unwrap_or(CONSUMER_LEASE)));
            letter.secret = Some(token.secret);
            self.tables.put_letter(&was, &letter)?;
            metrics::process().spanned(Timer::LetterAge, now.since(letter.file.dead_at));
            leased.push((letter, token));
        }
        Ok(leased)
    }

    /// A letter with everything that belongs to it; the policy of its queue is at hand.
    pub(crate) fn assemble(&mut self, letter: &Letter, now: Time) -> Kept<DeadLetter> {
        let policy = self.queues()?.get(&letter.slip.queue).map(|row| row.policy.clone()).unwrap_or_default();
        let whole = Needs { body: true, failures: true };
        super::reads::assemble_with(&self.tables, &policy, letter, whole, now)
    }

    /// Takes a consumer's word.
    pub(crate) fn settle_letters(
        &mut self,
        batch: Vec<LetterSettlement>,
        now: Time,
    ) -> Outcome<Each<LetterState>> {
        super::enqueue::check_batch(batch.len(), 0)?;
        self.each(batch, |engine, settlement| engine.settle_letter(settlement, now))
    }

    fn settle_letter(&mut self, settlement: LetterSettlement, now: Time) -> Outcome<LetterState> {
        let id = settlement.token.id;
        let stale = || Error::Refused(Refusal::StaleToken { id });
        let letter = self.tables.letter(id)?.ok_or_else(stale)?;
        let (Some(secret), Some(until)) = (letter.secret, letter.file.consumer_until) else {
            return Err(stale());
        };
        if secret != settlement.token.secret {
            return Err(stale());
        }
        if until <= now {
            return Err(Refusal::LeaseExpired { id, expired_at: until }.into());
        }
        let consumer = letter.file.consumer.clone().unwrap_or_default();
        let free = File { consumer: None, consumer_until: None, ..letter.file.clone() };
        let outcome = match &settlement.what {
            LetterSettle::Fail { .. } => Some("failed"),
            LetterSettle::Release | LetterSettle::Snooze { .. } => Some("released"),
            LetterSettle::Do { .. } | LetterSettle::Extend { .. } => None,
        };
        let file = match settlement.what {
            LetterSettle::Do { act, actor } => {
                // Nobody else changes what it says while the consumer has it.
                let request = ActRequest { id, act, actor, expected_version: Some(free.version) };
                let freed = Letter { file: free, ..letter.clone() };
                let state = self.act_on(&freed, &request, now)?;
                self.tally(Event::Processed, &freed.slip.queue, &["done"], 0, now)?;
                self.record_act(&letter.file, &request, now)?;
                return Ok(state);
            }
            LetterSettle::Fail { note } => free.consumer_failed(&consumer, note, now)?,
            LetterSettle::Release => File { available_at: now, ..free },
            LetterSettle::Snooze { span } => {
                check_snooze(span)?;
                File { available_at: now.plus(span), ..free }
            }
            LetterSettle::Extend { by } => {
                check_lease(by)?;
                let longer = until.max(now.plus(by.unwrap_or(CONSUMER_LEASE)));
                File { consumer_until: Some(longer), ..letter.file.clone() }
            }
        };
        if let Some(outcome) = outcome {
            self.tally(Event::Processed, &letter.slip.queue, &[outcome], 0, now)?;
        }
        self.replace_letter(&letter, Letter { file, ..letter.clone() }, now)
    }

    /// Files letters from an export.
    pub(crate) fn import(
        &mut self,
        batch: Vec<(DeadLetter, T::Body)>,
        actor: &Actor,
        now: Time,
    ) -> Outcome<Each<MessageId>> {
        super::enqueue::check_batch(batch.len(), 0)?;
        actor.check()?;
        self.each(batch, |engine, (letter, body)| {
            let id = letter.id();
            engine.import_one(letter, body, now)?;
            engine.record(AuditEntry::new(now, actor, "import", id, 1))?;
            Ok(id)
        })
    }

    fn import_one(&mut self, mut letter: DeadLetter, body: T::Body, now: Time) -> Outcome<()> {
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
        let slip = Slip { seq, breaker, ..Slip::from(envelope) };
        let ttl = letter.message.envelope.ttl;
        self.tables.put_body(seq, body, ttl, letter.message.envelope.enqueued_at)?;
        let template = letter.signature.clone();
        self.expect_group(&letter)?;
        letter.file.leaf = self.adopt(letter.file.leaf, &template, &letter.error, now)?;
        self.import_history(&slip, &letter, now)?;
        self.put_into_group(letter.file.leaf, letter.group, now)?;
        for revision in std::mem::take(&mut letter.revisions) {
            self.tables.add_revision(&slip, revision.n, &revision.content)?;
        }
        let row = imported(letter, slip, death);
        let open = i64::from(!row.file.status.is_closed());
        self.count_leaf(leaf_key(&row.slip, row.file.leaf), |c| c.add(open, 1, 0, now))?;
        self.count_open((&row.slip).into(), open)?;
        self.count_drawer(&row.file.dlq, row.file.status, 1)?;
        let counted_as =
            if row.file.status == Status::Purged { Phase::Over(Final::Purged) } else { Phase::Dead };
        self.move_count(&row.slip, None, &counted_as)?;
        self.tally(Event::Imported, &row.slip.queue, &[], 0, now)?;
        if let Some(hot) = &mut self.hot {
            hot.hold(&row.slip, row.file.holds_key);
        }
        self.tables.add_letter(&row)?;
        Ok(())
    }

    /// Files the kept failures at the ordinals they had: the first ones from 0, the last ones up to the end.
    fn import_history(&mut self, slip: &Slip, letter: &DeadLetter, now: Time) -> Kept<()> {
        let kept = u32::try_from(letter.message.failures.len()).unwrap_or(u32::MAX);
        let gap = letter.message.failed.saturating_sub(kept);
        for (n, failure) in (0..).zip(&letter.message.failures) {
            let ordinal = if n < limits::HISTORY_EDGE { n } else { n + gap };
            let leaf = self.adopt(failure.leaf, &failure.signature, &failure.error, now)?;
            self.tables.add_failure(slip, ordinal, &Failure { leaf, ..failure.clone() })?;
            self.count_leaf(leaf_key(slip, leaf), |c| c.add(0, 0, 1, now))?;
        }
        Ok(())
    }
}

/// The row of an imported letter: at rest, whatever it was in the middle of.
fn imported(letter: DeadLetter, slip: Slip, death: u64) -> Letter {
    let message = letter.message;
    let status = match letter.file.status {
        Status::Retrying => Status::Pending,
        Status::Pending
        | Status::Review
        | Status::Quarantined
        | Status::Resolved
        | Status::Abandoned
        | Status::Purged => letter.file.status,
    };
    let life = Life {
        phase: Phase::Dead,
        ready_at: message.ready_at,
        attempts: message.attempts,
        deliveries: message.deliveries,
        generation: message.generation.max(1),
        failed: message.failed,
        first_received_at: message.first_received_at,
        progress: message.progress.map(Progress::bounded),
        ..Life::new(message.ready_at, message.updated_at)
    };
    let file = File { status, consumer: None, consumer_until: None, ..letter.file };
    Letter { death, slip, life, file, secret: None }
}

/// Refuses an imported letter that no enqueue would have let in, and takes it apart for packing.
pub(crate) fn check_import(letter: &DeadLetter) -> Result<NewMessage, Refusal> {
    let new = super::edit::as_new(&letter.message.envelope);
    transfer::check_import(letter)?;
    new.check()?;
    let kept = letter.message.failures.len();
    if kept > 2 * limits::HISTORY_EDGE as usize || kept > letter.message.failed as usize {
        return Err(Refusal::invalid("failures", format!("{kept} failures do not fit the count")));
    }
    Ok(new)
}
