//! Applies one step of a message's lifecycle and all its consequences: history, counters, letter, key and
//! reply. Every call that changes a message ends here.

use super::{Letter, ModelState};
use redrive_core::breaker::BreakerSignal;
use redrive_core::dead_letter::{LetterRecord, Status};
use redrive_core::error::Refusal;
use redrive_core::failure::{AnalysedFailure, Reason, displaced_by};
use redrive_core::group::LeafKey;
use redrive_core::ids::{LeafId, MessageId, QueueName};
use redrive_core::lifecycle::{Command, Effect, Final, Lifecycle, Phase, State, transition};
use redrive_core::message::{Envelope, NewMessage, Payload, StoredMessage};
use redrive_core::metrics::Event;
use redrive_core::operation::MemberOutcome;
use redrive_core::poison::Indicators;
use redrive_core::reply::{self, Reply};
use redrive_core::review::Review;
use redrive_core::time::{Span, Time};

/// A failure to record with a step, and the poison indicators it leaves on the message.
pub(super) struct NewFailure {
    failure: AnalysedFailure,
    indicators: Option<Indicators>,
}

impl From<Review> for NewFailure {
    fn from(found: Review) -> Self {
        Self { failure: found.failure, indicators: Some(found.indicators) }
    }
}

impl From<AnalysedFailure> for NewFailure {
    fn from(failure: AnalysedFailure) -> Self {
        Self { failure, indicators: None }
    }
}

/// The lifecycle after the step, the effect of the step, and the id of the reply that was sent with it.
pub(super) type StepResult = (Lifecycle, Effect, Option<MessageId>);

impl ModelState {
    /// Applies one step to one message, with everything that follows from it.
    pub(super) fn apply(
        &mut self,
        at: usize,
        command: &Command,
        failure: Option<NewFailure>,
        now: Time,
    ) -> Result<StepResult, Refusal> {
        self.apply_with_answer(at, command, failure, None, now)
    }

    /// Applies one step with the worker's reply.
    pub(super) fn apply_with_answer(
        &mut self,
        at: usize,
        command: &Command,
        failure: Option<NewFailure>,
        answer: Option<Payload>,
        now: Time,
    ) -> Result<StepResult, Refusal> {
        let stored = self.live[at].clone();
        let StoredMessage { envelope, lifecycle } = stored.clone();
        let id = envelope.id;
        let step = transition(id, &lifecycle, command, now)?;
        let (mut next, effect) = (step.next, step.effect);
        let (mut failure, indicators) = failure.map_or((None, None), |f| (Some(f.failure), f.indicators));
        let reviewed = indicators.is_some();
        next.indicators = indicators.unwrap_or(next.indicators);
        if next.lease().is_none() {
            let signal = match (command, &failure) {
                (Command::Ack { .. }, _) => BreakerSignal::Success,
                (Command::Fail { .. } | Command::LoseLease { .. }, Some(f)) => BreakerSignal::of(f.route),
                _ => BreakerSignal::Neutral,
            };
            self.signal(&stored, signal, now);
        }
        let error = failure.as_ref().map(|f| &f.report.error);
        let reply = reply::due(&(&stored).into(), &next, effect, answer, error);
        let failed = matches!(command, Command::Fail { .. } | Command::LoseLease { .. });
        failure = failure.filter(|_| failed || matches!(effect, Effect::Died(_)));
        failure = failure.map(|failure| if reviewed { failure } else { self.assign_leaf(failure, now) });
        if let Some(failure) = &failure {
            next.failed = lifecycle.failed + 1;
            let worker = lifecycle.lease().map(|l| l.worker.clone());
            let history = self.histories.entry(id).or_default();
            history.retain(|(ordinal, _)| displaced_by(lifecycle.failed) != Some(*ordinal));
            history.push((
                lifecycle.failed,
                failure.clone().into_failure(lifecycle.generation, lifecycle.attempts, now, worker),
            ));
            let sign = &failure.signature;
            self.count_leaf(&envelope, sign.leaf, [0, 0, 1], now);
            self.note_failure(failure, lifecycle.lease().map(|l| l.worker.as_str()), now);
            let held = lifecycle.lease().map(|l| now.since(l.granted_at));
            let took = failure.report.duration.or(held).map_or(0, Span::as_millis);
            let labels = [failure.route.name(), failure.category.name()];
            self.count_event(Event::Failed, &envelope.queue, &labels, took, now);
        }
        self.count_step(&envelope, (&lifecycle, &next), command, effect, now);
        let letter = self.letter_at(id);
        // A redriven message that is done becomes a closed letter: it is counted as dead in the letter's
        // queue.
        let home = letter.filter(|_| effect == Effect::Ended(Final::Done));
        let home = home.map(|at| self.letters[at].stored.envelope.queue.clone());
        let shown = if home.is_some() { &Phase::Dead } else { &next.phase };
        self.counts(&envelope.queue).leave(&lifecycle.phase, envelope.size());
        let to = home.unwrap_or_else(|| envelope.queue.clone());
        self.change_queue(&envelope.queue, &to);
        self.counts(&to).enter(shown, envelope.size());
        self.note_peaks(&to);
        self.live[at].lifecycle = next.clone();
        let mut owes = false;
        match effect {
            Effect::Died(reason) => {
                let stored = self.live.remove(at);
                owes = self.store_letter(
                    stored,
                    &failure.expect("a message that dies has failed"),
                    reason,
                    letter,
                    now,
                );
            }
            Effect::Ended(how) => {
                self.live.remove(at);
                self.record_key_outcome(&envelope, next.state(now));
                if let (Some(letter), Final::Done) = (letter, how) {
                    let worker = lifecycle.lease().map_or("", |l| l.worker.as_str());
                    let queue = self.letters[letter].stored.envelope.queue.clone();
                    let record =
                        self.letters[letter].record.succeeded(id, self.policy(&queue), worker, now)?;
                    self.letters[letter].stored.lifecycle = Lifecycle { phase: Phase::Dead, ..next.clone() };
                    let age = now.since(self.letters[letter].record.dead_at).as_millis();
                    self.count_event(Event::RedriveSucceeded, &queue, &[], age, now);
                    self.record_outcome(&self.letters[letter].clone(), |l| l.redriven_ok += 1);
                    let (operation, death) = (record.operation, self.letters[letter].death);
                    if let Some(operation) = operation {
                        self.settle_member(operation, death, MemberOutcome::Succeeded, None, now);
                    }
                    self.replace_record(letter, record, now);
                    self.note_success(self.letters[letter].record.leaf, now);
                } else {
                    self.histories.remove(&id);
                }
            }
            Effect::Granted | Effect::Retried | Effect::GivenBack => {}
            Effect::Extended | Effect::Revived | Effect::PulledBack => {}
        }
        let reply = reply.filter(|_| !owes);
        let stored = StoredMessage { envelope, lifecycle: next.clone() };
        let sent = reply.and_then(|due| self.reply(due, &stored, now));
        Ok((next, effect, sent))
    }

    /// Sends a reply and counts it.
    fn reply(&mut self, due: Reply, stored: &StoredMessage, now: Time) -> Option<MessageId> {
        let status = due.status.name();
        let message = due.message(&stored.into(), &stored.lifecycle, stored.envelope.trace.clone());
        let sent = self.send_reply(message, now);
        let status = if sent.is_some() { status } else { "left_out" };
        self.count_event(Event::Replied, &stored.envelope.queue, &[status], 0, now);
        sent
    }

    /// Sends the error reply that a letter owes.
    pub(super) fn send_owed_reply(&mut self, at: usize, now: Time) {
        self.letters[at].record.owes_reply = false;
        let Letter { stored, record, .. } = self.letters[at].clone();
        let failures = self.histories.get(&stored.envelope.id);
        let error = failures.and_then(|all| all.last()).map(|(_, failure)| &failure.error);
        let effect = Effect::Died(record.reason);
        if let Some(due) = reply::due(&(&stored).into(), &stored.lifecycle, effect, None, error) {
            self.reply(due, &stored, now);
        }
    }

    /// Sends the owed reply if no automatic redrive is planned for the letter.
    pub(super) fn send_owed_reply_if_due(&mut self, at: usize, now: Time) -> bool {
        let Letter { stored, record, .. } = &self.letters[at];
        let due = record.reply_is_due(self.policy(&stored.envelope.queue));
        if due {
            self.send_owed_reply(at, now);
        }
        due
    }

    /// Counts a message that moves to another queue as enqueued there.
    pub(super) fn change_queue(&mut self, from: &QueueName, to: &QueueName) {
        self.counts(from).enqueued -= 1;
        self.counts(to).enqueued += 1;
    }

    /// Counts the step itself. Failures and deaths are counted where they are recorded.
    fn count_step(
        &mut self,
        envelope: &Envelope,
        (lifecycle, next): (&Lifecycle, &Lifecycle),
        command: &Command,
        effect: Effect,
        now: Time,
    ) {
        let queue = &envelope.queue;
        let attempts = u64::from(next.attempts);
        if matches!(command, Command::LoseLease { .. }) {
            self.count_event(Event::LeasesLost, queue, &[], 0, now);
        }
        match effect {
            Effect::Granted => {
                self.count_event(Event::Leased, queue, &[], now.since(lifecycle.ready_at).as_millis(), now);
            }
            Effect::Retried => {
                self.count_event(Event::Retried, queue, &[], next.ready_at.since(now).as_millis(), now);
            }
            Effect::GivenBack => self.count_event(Event::GivenBack, queue, &[], 0, now),
            Effect::Ended(Final::Done) => {
                self.count_event(Event::Acked, queue, &[&envelope.kind], attempts, now);
            }
            Effect::Ended(Final::Expired) => self.count_event(Event::Expired, queue, &[], 0, now),
            Effect::Ended(Final::Cancelled) => self.count_event(Event::Cancelled, queue, &[], 0, now),
            Effect::Ended(Final::Purged) => self.count_event(Event::Discarded, queue, &["message"], 0, now),
            Effect::Died(_) | Effect::Extended | Effect::Revived | Effect::PulledBack => {}
        }
    }

    /// Sends a reply regardless of limits, unless it was already sent or its destination is not a queue.
    fn send_reply(&mut self, message: NewMessage, now: Time) -> Option<MessageId> {
        let known = self.live_at(message.id).is_some() || self.letter_at(message.id).is_some();
        if known || self.check_new_queue(&message.queue).is_err() {
            return None;
        }
        self.queues.entry(message.queue.clone()).or_default();
        Some(self.accept(message, now).id)
    }

    /// Stores the letter of a message that died. A second death replaces the record and keeps the identity.
    /// Returns whether the error reply is deferred.
    fn store_letter(
        &mut self,
        stored: StoredMessage,
        failure: &AnalysedFailure,
        reason: Reason,
        before: Option<usize>,
        now: Time,
    ) -> bool {
        if let Some(at) = before {
            let letter = self.letters[at].clone();
            self.count_event(Event::RedriveFailed, &letter.stored.envelope.queue, &[], 0, now);
            self.record_outcome(&letter, |l| l.redriven_failed += 1);
            if let Some(operation) = letter.record.operation {
                let (outcome, why) = self.failed_outcome(letter.record.leaf, failure.signature.leaf);
                self.settle_member(operation, letter.death, outcome, why, now);
            }
        }
        let before = before.map(|at| self.letters.remove(at));
        let policy = self.policy(&stored.envelope.queue);
        let old = before.as_ref().map(|l| &l.record);
        let record = LetterRecord::of_death(&stored, &stored.lifecycle, policy, failure, reason, old, now);
        let (queue, attempts) = (stored.envelope.queue.clone(), u64::from(stored.lifecycle.attempts));
        let labels = [record.reason.name(), record.route.name(), record.category.name()];
        self.count_event(Event::Dead, &queue, &labels, attempts, now);
        let labels = [stored.envelope.kind.as_str(), stored.envelope.priority.name(), record.dlq.as_str()];
        self.count_event(Event::DeadByKind, &queue, &labels, 0, now);
        self.count_event(Event::DeadByError, &queue, &[&failure.report.error.error_type], 0, now);
        if record.status == Status::Quarantined {
            self.count_event(Event::Quarantined, &queue, &[], 0, now);
        }
        let sign = &failure.signature;
        if let Some(before) = before {
            self.count_leaf(&before.stored.envelope, before.record.leaf, [-1, 0, 0], now);
        }
        self.count_leaf(&stored.envelope, sign.leaf, [1, 1, 0], now);
        self.note_death(sign.leaf, now);
        self.deaths += 1;
        self.dlqs.insert(record.dlq.clone());
        let owes = record.owes_reply;
        self.letters.push(Letter { stored, record, death: self.deaths, secret: None });
        owes
    }

    /// Counts open letters, deaths and failures of a leaf.
    pub(super) fn count_leaf(
        &mut self,
        envelope: &Envelope,
        leaf: LeafId,
        [open, total, failures]: [i64; 3],
        now: Time,
    ) {
        let key = LeafKey { leaf, queue: envelope.queue.clone(), kind: envelope.kind.clone() };
        self.leaf_counts.entry(key).or_default().add(open, total, failures, now);
        self.triage.entry(self.group_of(leaf)).or_default();
    }

    /// Records the final state of the message that holds a key.
    pub(super) fn record_key_outcome(&mut self, envelope: &Envelope, state: State) {
        let key = envelope.key.clone().and_then(|key| self.keys.get_mut(&(envelope.home().clone(), key)));
        if let Some(key) = key.filter(|key| key.id == envelope.id) {
            key.over = Some(state);
        }
    }
}
