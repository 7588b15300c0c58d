//! The verbs of dead letters: acts, the leases of dead-letter consumers, import.

use super::Engine;
use super::settle::leaf_key;
use super::tables::{Kept, Letter, Live, Tables};
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{
    Act, ActRequest, Acted, Actor, CONSUMER_BACKOFF, CONSUMER_LEASE, DeadLetter, File, Note, Status,
};
use redrive_core::error::{Error, Outcome, Refusal};
use redrive_core::failure::Failure;
use redrive_core::ids::{LeaseToken, MessageId};
use redrive_core::lifecycle::{Command, Final, Life, Phase, transition};
use redrive_core::limits;
use redrive_core::message::{NewMessage, Slip};
use redrive_core::metrics::{self, Event, Timer};
use redrive_core::policy::QueuePolicy;
use redrive_core::progress::Progress;
use redrive_core::revision::{Content, check_lineage};
use redrive_core::store::{
    Each, LetterLeaseRequest, LetterSettle, LetterSettlement, LetterState, check_lease, check_snooze,
};
use redrive_core::time::Time;

/// Turns per-entry outcomes into results; an error of the store ends the batch.
pub(super) fn each<I, R>(batch: Vec<I>, mut one: impl FnMut(I) -> Outcome<R>) -> Outcome<Each<R>> {
    let mut results = Vec::with_capacity(batch.len());
    for entry in batch {
        results.push(match one(entry) {
            Ok(result) => Ok(result),
            Err(Error::Refused(refusal)) => Err(refusal),
            Err(Error::Store(error)) => return Err(error.into()),
        });
    }
    Ok(results)
}

impl<T: Tables> Engine<T> {
    /// Acts on single letters, each with its audit row.
    pub(crate) fn act(&mut self, batch: Vec<ActRequest>, now: Time) -> Outcome<Each<LetterState>> {
        super::enqueue::check_batch(batch.len(), 0)?;
        each(batch, |request| {
            let letter = self.letter_of(request.id)?;
            let state = self.act_on(&letter, &request, now)?;
            self.record(AuditEntry::new(now, &request.actor, request.act.name(), request.id, 1))?;
            Ok(state)
        })
    }

    pub(super) fn letter_of(&mut self, id: MessageId) -> Outcome<Letter> {
        self.tables.letter(id)?.ok_or_else(|| Refusal::NoSuchLetter { id }.into())
    }

    /// One act on one letter, without its audit row.
    pub(super) fn act_on(
        &mut self,
        letter: &Letter,
        request: &ActRequest,
        now: Time,
    ) -> Outcome<LetterState> {
        if request.act.is_content() {
            return self.change_content(letter, request, now);
        }
        let id = letter.slip.id;
        let policy = self.queue(&letter.slip.queue)?.policy.clone();
        match letter.file.act(id, request, &policy, now)? {
            Acted::Purged => {
                self.remove_letter(letter, "letter", now)?;
                Ok(LetterState { id, status: None, version: letter.file.version })
            }
            Acted::Changed(file) => {
                if let Act::Retry(retry) = &request.act {
                    self.revive(letter, retry.at.unwrap_or(now), now)?;
                }
                match &request.act {
                    Act::Resolve => self.learn(letter, |lessons| lessons.resolved += 1)?,
                    Act::Abandon => self.learn(letter, |lessons| lessons.abandoned += 1)?,
                    Act::Retry { .. }
                    | Act::Review
                    | Act::Quarantine { .. }
                    | Act::Release
                    | Act::Reopen
                    | Act::Note
                    | Act::Purge
                    | Act::Edit(_)
                    | Act::Patch(_)
                    | Act::Restore { .. }
                    | Act::Erase => {}
                }
                self.count_act(&letter.slip, &letter.file, &request.act, now)?;
                let letter = self.replace_letter(letter, *file, now)?;
                Ok(LetterState { id, status: Some(letter.file.status), version: letter.file.version })
            }
        }
    }

    /// Puts the message of a letter back into its queue as a new generation.
    fn revive(&mut self, letter: &Letter, at: Time, now: Time) -> Outcome<()> {
        let t = transition(letter.slip.id, &letter.life, &Command::Redrive { at }, now)?;
        self.move_count(&letter.slip, Some(&Phase::Dead), &Phase::Waiting)?;
        let live = Live { slip: letter.slip.clone(), life: t.next };
        self.tables.add_live(&live)?;
        if let Some(hot) = &mut self.hot {
            hot.add(&live.slip, &live.life);
        }
        self.woke = true;
        Ok(())
    }

    /// Removes a letter for good; its key remembers that.
    pub(super) fn remove_letter(&mut self, letter: &Letter, what: &str, now: Time) -> Outcome<()> {
        self.end_key(&letter.slip, Final::Purged)?;
        self.take_out_letter(letter, what, now)
    }

    /// Takes a letter out with all that is of it alone, counted as purged. Its key keeps what it says.
    pub(super) fn take_out_letter(&mut self, letter: &Letter, what: &str, now: Time) -> Outcome<()> {
        let slip = &letter.slip;
        self.tally(Event::Discarded, &slip.queue, &[what], 0, now)?;
        self.count_drawer(&letter.file.dlq, letter.file.status, -1)?;
        if !letter.file.status.is_closed() {
            self.count_leaf(leaf_key(slip, letter.file.leaf), |c| c.add(-1, 0, 0, now))?;
        }
        if letter.file.holds_key
            && let Some(hot) = &mut self.hot
        {
            hot.hold(slip, false);
        }
        self.move_count(slip, Some(&Phase::Dead), &Phase::Over(Final::Purged))?;
        self.tables.drop_letter(letter)?;
        self.tables.drop_failures(slip)?;
        if letter.file.revision() > 0 {
            self.tables.drop_revisions(slip)?;
        }
        self.tables.drop_body(slip)?;
        Ok(())
    }

    /// Hands pending letters to a consumer.
    pub(crate) fn lease_letters(
        &mut self,
        request: &LetterLeaseRequest,
        now: Time,
    ) -> Outcome<Vec<(Letter, LeaseToken)>> {
        request.check()?;
        let (mut leased, mut bytes) = (Vec::new(), 0);
        for mut letter in self.tables.leasable_letters(&request.dlq, request.max, now)? {
            if bytes >= limits::LEASE_BYTES_MAX {
                break;
            }
            bytes += letter.slip.size;
            let token = LeaseToken { id: letter.slip.id, secret: self.entropy.secret() };
            letter.file.consumer = Some(request.worker.clone());
            letter.file.consumer_until = Some(now.plus(request.lease_for.unwrap_or(CONSUMER_LEASE)));
            letter.secret = Some(token.secret);
            self.tables.put_letter(&letter)?;
            metrics::process().spanned(Timer::LetterAge, now.since(letter.file.dead_at));
            leased.push((letter, token));
        }
        Ok(leased)
    }

    /// Takes a consumer's word.
    pub(crate) fn settle_letters(
        &mut self,
        batch: Vec<LetterSettlement>,
        now: Time,
    ) -> Outcome<Each<LetterState>> {
        super::enqueue::check_batch(batch.len(), 0)?;
        each(batch, |settlement| self.settle_letter(settlement, now))
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
                let freed = Letter { file: free, ..letter };
                let state = self.act_on(&freed, &request, now)?;
                self.tally(Event::Processed, &freed.slip.queue, &["done"], 0, now)?;
                self.record(AuditEntry::new(now, &request.actor, request.act.name(), id, 1))?;
                return Ok(state);
            }
            LetterSettle::Fail { note } => {
                if note.len() > limits::NOTE_BYTES_MAX {
                    return Err(Refusal::invalid(
                        "note",
                        format!("at most {} bytes", limits::NOTE_BYTES_MAX),
                    )
                    .into());
                }
                let mut file =
                    File { available_at: now.plus(CONSUMER_BACKOFF), version: free.version + 1, ..free };
                file.notes.push(Note { at: now, by: consumer, text: note });
                if file.notes.len() > limits::NOTES_MAX {
                    file.notes.remove(0);
                }
                file
            }
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
        let letter = self.replace_letter(&letter, file, now)?;
        Ok(LetterState { id, status: Some(letter.file.status), version: letter.file.version })
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
        each(batch, |(letter, body)| {
            let id = letter.id();
            self.import_one(letter, body, now)?;
            self.record(AuditEntry::new(now, actor, "import", id, 1))?;
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
        heads.death += 1;
        let (seq, death) = (heads.seq, heads.death);
        let envelope = &letter.message.envelope;
        let rules = self.queue(&envelope.queue)?.policy.breaker.clone();
        let breaker = rules.and_then(|rules| rules.key.read(&envelope.headers, &envelope.payload));
        let slip = Slip { seq, breaker, ..Slip::from(envelope) };
        let ttl = letter.message.envelope.ttl;
        self.tables.put_body(seq, body, ttl, letter.message.envelope.enqueued_at)?;
        let template = letter.signature.clone();
        letter.file.leaf = self.adopt(letter.file.leaf, &template, &letter.error)?;
        self.import_history(&slip, &letter, now)?;
        for revision in std::mem::take(&mut letter.revisions) {
            self.tables.add_revision(&slip, revision.n, &revision.content)?;
        }
        let row = imported(letter, slip, death);
        let open = i64::from(!row.file.status.is_closed());
        self.count_leaf(leaf_key(&row.slip, row.file.leaf), |c| c.add(open, 1, 0, now))?;
        self.count_drawer(&row.file.dlq, row.file.status, 1)?;
        self.move_count(&row.slip, None, &Phase::Dead)?;
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
            let leaf = self.adopt(failure.leaf, &failure.signature, &failure.error)?;
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
        Status::Pending | Status::Review | Status::Quarantined | Status::Resolved | Status::Abandoned => {
            letter.file.status
        }
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
    check_lineage(&letter.file, &Content::of(&letter.message.envelope), &letter.revisions)?;
    new.check()?;
    let kept = letter.message.failures.len();
    if kept > 2 * limits::HISTORY_EDGE as usize || kept > letter.message.failed as usize {
        return Err(Refusal::invalid("failures", format!("{kept} failures do not fit the count")));
    }
    Ok(new)
}
