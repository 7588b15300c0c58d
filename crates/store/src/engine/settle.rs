//! Settling: reporting the outcome of a delivery, and the one way a live message changes.
//!
//! [`Engine::change`] applies a command to a message together with everything that follows from it: counters, failure
//! history, ready index, dead letter, idempotency key and reply. Leasing, settling, cancelling, purging and expiring
//! all go through it. Acts on letters do not: a redrive makes the message live again in `letters.rs`.
//!
//! `faults::is(…)` is false except in builds with the feature `faults`, whose deliberate bugs prove that the tests
//! notice them.

use super::Engine;
use super::replies::Answer;
use super::tables::{Letter, Live, TableResult, Tables, unless_damaged};
use crate::faults::{self, Fault};
use redrive_core::breaker::BreakerSignal;
use redrive_core::dead_letter::{LetterRecord, Status};
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::failure::{AnalysedFailure, Reason, displaced_by};
use redrive_core::group::LeafKey;
use redrive_core::ids::{MessageId, QueueName, Secret};
use redrive_core::lifecycle::{Command, Effect, Final, Lifecycle, Phase, State, Transition, transition};
use redrive_core::limits;
use redrive_core::message::MessageMeta;
use redrive_core::metrics::Event;
use redrive_core::operation::MemberOutcome;
use redrive_core::poison::Indicators;
use redrive_core::policy::{Override, QueuePolicy};
use redrive_core::review::{FailedDelivery, Review, review};
use redrive_core::store::{BatchResults, LetterState, Settle, Settled, Settlement};
use redrive_core::time::{Span, Time};

/// A failure to record with a change, and the message's indicators after it if the failure was reviewed.
pub(super) struct FailureToRecord {
    failure: AnalysedFailure,
    indicators: Option<Indicators>,
}

impl From<Review> for FailureToRecord {
    fn from(review: Review) -> Self {
        Self { failure: review.failure, indicators: Some(review.indicators) }
    }
}

impl From<AnalysedFailure> for FailureToRecord {
    fn from(failure: AnalysedFailure) -> Self {
        Self { failure, indicators: None }
    }
}

/// Where a dead letter was put.
struct BuriedLetter {
    /// The dead letter queue it is in.
    dlq: QueueName,
    /// Whether the reply to the sender is put off because an automatic redrive will follow.
    owes_reply: bool,
}

/// What accompanies a command: a failure to record and an answer to send.
pub(super) struct SideEffects<P> {
    pub(super) failure: Option<FailureToRecord>,
    pub(super) answer: Option<Answer<P>>,
}

impl<P> SideEffects<P> {
    /// No failure and no answer.
    pub(super) const NONE: Self = Self { failure: None, answer: None };

    /// A failure without an answer.
    pub(super) fn failure(failure: impl Into<FailureToRecord>) -> Self {
        Self { failure: Some(failure.into()), answer: None }
    }
}

/// A settlement whose answer was encoded outside the commit.
pub(crate) struct PackedSettlement<P> {
    pub(crate) settlement: Settlement,
    pub(crate) answer: Option<Answer<P>>,
}

/// The result of [`Engine::change`].
pub(super) struct ChangeResult {
    pub(super) lifecycle: Lifecycle,
    pub(super) effect: Effect,
    /// The dead letter queue the message went to, if it died.
    pub(super) dlq: Option<QueueName>,
    /// The id of the reply, if one was sent.
    pub(super) reply: Option<MessageId>,
}

impl<T: Tables> Engine<T> {
    /// Settles deliveries, each entry on its own.
    pub(crate) fn settle(
        &mut self,
        batch: Vec<PackedSettlement<T::Payload>>,
        now: Time,
    ) -> StoreResult<BatchResults<Settled>> {
        self.run_batch(batch, |engine, packed| engine.settle_one(packed, now))
    }

    fn settle_one(&mut self, packed: PackedSettlement<T::Payload>, now: Time) -> StoreResult<Settled> {
        let PackedSettlement { settlement, answer } = packed;
        settlement.check()?;
        let id = settlement.token.id;
        let Some(live) = self.tables.live(id)? else { return Err(Refusal::StaleToken { id }.into()) };
        let policy = self.queue(&live.meta.queue)?.policy.clone();
        let secret = match live.lifecycle.lease() {
            Some(lease) if faults::is(Fault::TokenNotChecked) => lease.secret,
            Some(_) | None => settlement.token.secret,
        };
        let extended = matches!(settlement.what, Settle::Extend { .. } | Settle::Progress { .. });
        let (command, failure) = match settlement.what {
            Settle::Fail { failure, policy_override } => {
                // A dry run that only checks the token: a stale one is refused before the failure can change the
                // history of its group.
                let _ = transition(id, &live.lifecycle, &Command::Ack { secret }, now)?;
                let review = self.review(&live, *failure, policy_override, &policy, now)?;
                (Command::Fail { secret, verdict: review.verdict }, Some(review.into()))
            }
            what @ (Settle::Ack
            | Settle::Reply { .. }
            | Settle::Release
            | Settle::Snooze { .. }
            | Settle::Extend { .. }
            | Settle::Progress { .. }) => command_of(what, secret, &live, &policy, now),
        };
        let changed = self.change(live, &command, SideEffects { failure, answer }, &policy, now)?;
        let state = changed.lifecycle.state(now);
        Ok(Settled {
            id,
            state,
            ready_at: matches!(state, State::Ready | State::Scheduled).then_some(changed.lifecycle.ready_at),
            lease_expires_at: changed.lifecycle.lease().filter(|_| extended).map(|l| l.expires_at),
            reason: match changed.effect {
                Effect::Died(reason) => Some(reason),
                Effect::Granted
                | Effect::Retried
                | Effect::GivenBack
                | Effect::Extended
                | Effect::Ended(_)
                | Effect::Revived
                | Effect::PulledBack => None,
            },
            dlq: changed.dlq,
            reply: changed.reply,
        })
    }

    /// Judges a failed delivery by the message's and its group's history, and adds it to the group's history.
    pub(super) fn review(
        &mut self,
        live: &Live,
        mut failure: AnalysedFailure,
        handler_override: Option<Override>,
        policy: &QueuePolicy,
        now: Time,
    ) -> TableResult<Review> {
        let group = self.assign_group(&mut failure, now)?;
        let same = match live.lifecycle.indicators.leaf {
            Some(last) => last == failure.signature.leaf || self.group_of(last)? == Some(group),
            None => false,
        };
        let (meta, lifecycle) = (&live.meta, &live.lifecycle);
        let history = &self.group_history(group)?.clone();
        let delivery = FailedDelivery {
            meta,
            lifecycle,
            policy,
            group_history: history,
            same_group: same,
            policy_override: handler_override,
            now,
        };
        let reviewed = review(&delivery, failure);
        let worker = lifecycle.lease().map(|lease| lease.worker.clone());
        self.update_group_history(group, |history| history.record_failure(meta.id, worker.as_deref(), now))?;
        Ok(reviewed)
    }

    /// Applies one command to one live message and does everything that follows, in this commit.
    pub(super) fn change(
        &mut self,
        live: Live,
        command: &Command,
        side_effects: SideEffects<T::Payload>,
        policy: &QueuePolicy,
        now: Time,
    ) -> StoreResult<ChangeResult> {
        let Live { meta, lifecycle } = live;
        let Transition { mut next, effect } = transition(meta.id, &lifecycle, command, now)?;
        let (mut failure, reviewed) = match side_effects.failure {
            Some(FailureToRecord { failure, indicators: Some(indicators) }) => {
                next.indicators = indicators;
                (Some(failure), true)
            }
            Some(FailureToRecord { failure, indicators: None }) => (Some(failure), false),
            None => (None, false),
        };
        if next.lease().is_none() {
            let signal = match (command, &failure) {
                (Command::Ack { .. }, _) => BreakerSignal::Success,
                (Command::Fail { .. } | Command::LoseLease { .. }, Some(failure)) => {
                    BreakerSignal::of(failure.route)
                }
                (_, _) => BreakerSignal::Neutral,
            };
            self.signal_breaker(&meta, &lifecycle, signal, policy, now)?;
        }
        if faults::is(Fault::CountReset) && effect == Effect::Retried {
            next.attempts = 0;
        }
        // A redriven message that succeeds is counted with its closed letter, not as done.
        if lifecycle.generation == 1 || effect != Effect::Ended(Final::Done) {
            self.move_count(&meta, Some(&lifecycle.phase), &next.phase)?;
        }
        if self.ready_index.is_some() {
            self.ready_index()?.remove(&meta, &lifecycle);
        }
        let died = matches!(effect, Effect::Died(_));
        let error = failure.as_ref().map(|failure| &failure.report.error);
        let mut reply = self.due_reply(&meta, &next, effect, side_effects.answer, error)?;
        // Record the failure only if it counts: the delivery failed, or the message died.
        failure = failure.filter(|_| died || next.failed > lifecycle.failed);
        self.count_step(&meta, (&lifecycle, &next), command, effect, now)?;
        if let Some(failure) = &mut failure {
            // `transition` counts a failed delivery. A message that dies without one, because it expired or was released
            // too often, counts its death here.
            next.failed = lifecycle.failed + 1;
            if !reviewed {
                self.assign_group(failure, now)?;
            }
            self.record_failure(&meta, &lifecycle, failure, now)?;
        }
        let mut dlq = None;
        match effect {
            Effect::Granted | Effect::Extended => self.store_live(&meta, &next)?,
            Effect::Retried | Effect::GivenBack => {
                self.work_available(&meta.queue, next.ready_at, now);
                if faults::is(Fault::IndexNotUpdated) && self.ready_index.is_some() {
                    self.tables.put_lifecycle(&meta, &next)?;
                } else {
                    self.store_live(&meta, &next)?;
                }
            }
            Effect::Died(reason) => {
                let failure = failure.unwrap_or_else(|| AnalysedFailure::too_late(reason));
                let buried = self.bury(&meta, &next, reason, &failure, policy, now)?;
                reply = reply.filter(|_| !buried.owes_reply);
                dlq = Some(buried.dlq);
            }
            Effect::Ended(how) => {
                let by = lifecycle.lease().map_or("system", |l| l.worker.as_str());
                self.finish((&meta, &lifecycle.phase), &next, how, by, now)?;
            }
            // An undone redrive: the letter, which is still there, takes the place of the live message again. Only a dead
            // message is revived, so a live one never is.
            Effect::PulledBack | Effect::Revived => self.tables.drop_live(&meta)?,
        }
        let reply = match reply {
            Some(reply) => self.send_reply(reply, now)?,
            None => None,
        };
        Ok(ChangeResult { lifecycle: next, effect, dlq, reply })
    }

    /// Stores the new lifecycle of a live message and adds it to the index again.
    fn store_live(&mut self, meta: &MessageMeta, next: &Lifecycle) -> TableResult<()> {
        self.tables.put_lifecycle(meta, next)?;
        if let Some(ready_index) = &mut self.ready_index {
            ready_index.add(meta, next);
        }
        Ok(())
    }

    /// Moves one message from one counter of its queue to another.
    pub(super) fn move_count(
        &mut self,
        meta: &MessageMeta,
        from: Option<&Phase>,
        to: &Phase,
    ) -> StoreResult<()> {
        let row = self.queue_mut(&meta.queue)?;
        let before = row.counts;
        match from {
            Some(phase) => row.counts.leave(phase, meta.size),
            None => row.counts.enqueued += 1,
        }
        row.counts.enter(to, meta.size);
        let after = row.counts;
        row.peak = row.peak.max(after.waiting + after.leased);
        row.dead_peak = row.dead_peak.max(after.dead);
        Ok(self.count_totals(&before, &after)?)
    }

    /// Like [`Self::move_count`], for a change that may also take the
    /// message to another queue: it then counts as enqueued there instead.
    pub(super) fn move_count_across(
        &mut self,
        (from, from_phase): (&MessageMeta, &Phase),
        (to, to_phase): (&MessageMeta, &Phase),
    ) -> StoreResult<()> {
        if from.queue == to.queue {
            return self.move_count(from, Some(from_phase), to_phase);
        }
        let row = self.queue_mut(&from.queue)?;
        let before = row.counts;
        row.counts.leave(from_phase, from.size);
        row.counts.enqueued -= 1;
        let after = row.counts;
        self.count_totals(&before, &after)?;
        self.move_count(to, None, to_phase)
    }

    /// Adds a failure to the message's history and to the counters of its leaf.
    fn record_failure(
        &mut self,
        meta: &MessageMeta,
        lifecycle: &Lifecycle,
        failure: &AnalysedFailure,
        now: Time,
    ) -> TableResult<()> {
        let worker = lifecycle.lease().map(|l| l.worker.clone());
        self.group_failed(failure, worker.as_deref(), now)?;
        let filed = failure.clone().into_failure(lifecycle.generation, lifecycle.attempts, now, worker);
        if let Some(victim) = displaced_by(lifecycle.failed) {
            self.tables.drop_failure(meta, victim)?;
        }
        self.tables.add_failure(meta, lifecycle.failed, &filed)?;
        if lifecycle.generation > 1 {
            // The letter's text includes the latest failure, also while the message is being redriven.
            self.tables.text_changed(meta.id)?;
        }
        let took = failure.report.duration.or(lifecycle.lease().map(|l| now.since(l.granted_at)));
        let labels = [failure.route.name(), failure.category.name()];
        self.count_event(Event::Failed, &meta.queue, &labels, took.map_or(0, Span::as_millis), now)?;
        let leaf = failure.signature.leaf;
        self.count_leaf(leaf_key(meta, leaf), |c| c.add(0, 0, 1, now))
    }

    /// Turns a message into a dead letter: out of one table and into the other, in one commit (I32).
    fn bury(
        &mut self,
        meta: &MessageMeta,
        lifecycle: &Lifecycle,
        reason: Reason,
        failure: &AnalysedFailure,
        policy: &QueuePolicy,
        now: Time,
    ) -> StoreResult<BuriedLetter> {
        self.tables.drop_live(meta)?;
        if faults::is(Fault::FullDlqDrops) && self.queue_mut(&meta.queue)?.counts.dead > 50 {
            return Ok(BuriedLetter { dlq: meta.queue.clone(), owes_reply: false });
        }
        let previous = if lifecycle.generation > 1 { self.previous_letter(meta.id, now)? } else { None };
        let record = LetterRecord::of_death(
            meta.clone(),
            lifecycle,
            policy,
            failure,
            reason,
            previous.as_ref().map(|l| &l.record),
            now,
        );
        self.count_death(meta, lifecycle, &record, &failure.report.error.error_type, now)?;
        if let Some(old) = previous {
            self.count_event(Event::RedriveFailed, &old.meta.queue, &[], 0, now)?;
            self.update_outcomes(&old, |outcome_stats| outcome_stats.redriven_failed += 1)?;
            if let Some(id) = old.record.operation {
                let (outcome, why) = self.failed_again_outcome(old.record.leaf, record.leaf)?;
                self.settle_member(id, old.death, outcome, why, now)?;
            }
            self.count_dlq(&old.record.dlq, old.record.status, -1)?;
            self.count_leaf(leaf_key(&old.meta, old.record.leaf), |c| c.add(-1, 0, 0, now))?;
            self.count_open((&old.meta).into(), -1)?;
            if let Some(ready_index) = &mut self.ready_index {
                // The message may have died in another queue; it no longer holds its key in this one.
                ready_index.set_key_held(&old.meta, false);
            }
            self.work_available(&old.meta.queue, now, now);
            self.drop_letter(&old)?;
        }
        let heads = self.heads()?;
        heads.death += 1;
        let letter = Letter {
            death: heads.death,
            meta: meta.clone(),
            lifecycle: lifecycle.clone(),
            record,
            secret: None,
        };
        self.count_dlq(&letter.record.dlq, letter.record.status, 1)?;
        self.count_leaf(leaf_key(meta, letter.record.leaf), |c| c.add(1, 1, 0, now))?;
        self.count_open(meta.into(), 1)?;
        self.group_died(letter.record.leaf, now)?;
        if let Some(ready_index) = &mut self.ready_index {
            ready_index.set_key_held(meta, letter.record.holds_key);
        }
        self.work_available(&meta.queue, now, now);
        self.add_letter(&letter)?;
        Ok(BuriedLetter { owes_reply: letter.record.owes_reply, dlq: letter.record.dlq })
    }

    /// The earlier letter of a message that dies again. A damaged one is set aside to make room for the new letter;
    /// `doctor` then corrects the counters that included it.
    fn previous_letter(&mut self, id: MessageId, now: Time) -> TableResult<Option<Letter>> {
        match unless_damaged(self.tables.letter(id))? {
            Some(letter) => Ok(letter),
            None => self.tables.set_letter_aside(id, now).map(|()| None),
        }
    }

    /// Removes a message that has ended; its idempotency key remembers how.
    fn finish(
        &mut self,
        (meta, old_phase): (&MessageMeta, &Phase),
        lifecycle: &Lifecycle,
        how: Final,
        by: &str,
        now: Time,
    ) -> StoreResult<()> {
        self.tables.drop_live(meta)?;
        if meta.ordering_key.is_some() {
            self.work_available(&meta.queue, now, now);
        }
        self.end_idempotency_key(meta, how)?;
        if lifecycle.generation > 1 {
            return self.close_letter((meta, old_phase), lifecycle, by, now);
        }
        if lifecycle.failed > 0 {
            self.tables.drop_failures(meta)?;
        }
        self.tables.drop_body(meta)?;
        Ok(())
    }

    /// Stores under the message's idempotency key how the message ended (I41).
    pub(super) fn end_idempotency_key(&mut self, meta: &MessageMeta, how: Final) -> TableResult<()> {
        let Some(key) = &meta.key else { return Ok(()) };
        let Some(mut row) = self.tables.key(meta.home(), key)? else { return Ok(()) };
        if row.id == meta.id {
            row.ended = Some(match how {
                Final::Done => State::Done,
                Final::Cancelled => State::Cancelled,
                Final::Expired => State::Expired,
                Final::Purged => State::Purged,
            });
            self.tables.put_key(meta.home(), key, &row)?;
        }
        Ok(())
    }

    /// Resolves the letter of a redriven message that succeeded. The letter keeps the lifetime numbers, counts as dead
    /// until its retention ends, and stays in its dead letter queue even if the message was sent to another queue.
    fn close_letter(
        &mut self,
        (meta, old_phase): (&MessageMeta, &Phase),
        lifecycle: &Lifecycle,
        by: &str,
        now: Time,
    ) -> StoreResult<()> {
        // The work is done. A damaged letter stays as it is; `doctor` reports it.
        let Some(old) = unless_damaged(self.tables.letter(meta.id))?.flatten() else {
            return self.move_count(meta, Some(old_phase), &lifecycle.phase);
        };
        let policy = self.queue(&old.meta.queue)?.policy.clone();
        let record = old.record.succeeded(meta.id, &policy, by, now)?;
        self.move_count_across((meta, old_phase), (&old.meta, &Phase::Dead))?;
        let age = now.since(old.record.dead_at).as_millis();
        self.count_event(Event::RedriveSucceeded, &old.meta.queue, &[], age, now)?;
        self.update_outcomes(&old, |outcome_stats| outcome_stats.redriven_ok += 1)?;
        if let Some(id) = old.record.operation {
            self.settle_member(id, old.death, MemberOutcome::Succeeded, None, now)?;
        }
        let lifecycle = Lifecycle { phase: Phase::Dead, ..lifecycle.clone() };
        self.replace_letter(&old, Letter { record, lifecycle, ..old.clone() }, now)?;
        self.group_succeeded(old.record.leaf, now)?;
        Ok(())
    }

    /// Writes a changed letter and everything that follows from its new status.
    pub(super) fn replace_letter(
        &mut self,
        old: &Letter,
        mut next: Letter,
        now: Time,
    ) -> StoreResult<LetterState> {
        self.send_owed_reply_if_due(&mut next, now)?;
        let record = &next.record;
        let open = |s: Status| i64::from(!s.is_closed());
        if old.record.status != record.status || old.record.dlq != record.dlq {
            self.count_dlq(&old.record.dlq, old.record.status, -1)?;
            self.count_dlq(&record.dlq, record.status, 1)?;
        }
        let opened = open(record.status) - open(old.record.status);
        if opened != 0 {
            self.count_leaf(leaf_key(&old.meta, record.leaf), |c| c.add(opened, 0, 0, now))?;
            self.count_open((&old.meta).into(), opened)?;
        }
        if opened < 0 {
            self.group_closed(record.leaf, now)?;
        }
        if old.record.holds_key != record.holds_key
            && let Some(ready_index) = &mut self.ready_index
        {
            ready_index.set_key_held(&old.meta, record.holds_key);
            self.work_available(&old.meta.queue, now, now);
        }
        next.secret = old.secret.filter(|_| next.record.consumer.is_some());
        self.put_letter(old, &next)?;
        Ok(LetterState { id: next.meta.id, status: Some(next.record.status), version: next.record.version })
    }
}

/// The key of the leaf counter for a message.
pub(super) fn leaf_key(meta: &MessageMeta, leaf: redrive_core::ids::LeafId) -> LeafKey {
    LeafKey { leaf, queue: meta.queue.clone(), kind: meta.kind.clone() }
}

/// The command for a settlement, and the failure to record if the command makes the message die.
fn command_of(
    what: Settle,
    secret: Secret,
    live: &Live,
    policy: &QueuePolicy,
    now: Time,
) -> (Command, Option<FailureToRecord>) {
    let held_for = live.lifecycle.lease().map_or(Span::ZERO, |l| now.since(l.granted_at));
    let give_back = |until| {
        let max_attempts = live.meta.limits.max_attempts(policy);
        (
            Command::GiveBack { secret, until, max_attempts },
            Some(AnalysedFailure::lease_lost(held_for).into()),
        )
    };
    let extend = |by: Option<Span>, progress| {
        let longest = limits::LEASE_MAX.as_millis().saturating_sub(held_for.as_millis());
        let lease_for = by.unwrap_or(policy.lease).as_millis().min(longest);
        (Command::Extend { secret, lease_for: Span::from_millis(lease_for), progress }, None)
    };
    match what {
        Settle::Release => give_back(None),
        Settle::Snooze { span } => give_back(Some(now.plus(span))),
        Settle::Extend { by } => extend(by, None),
        Settle::Progress { progress } => extend(None, Some(progress.bounded())),
        // A failure never gets here: `settle_one` reviews it and makes its command.
        Settle::Ack | Settle::Reply { .. } | Settle::Fail { .. } => (Command::Ack { secret }, None),
    }
}
