//! What follows from one step in a message's life: history, counters, letter, key. Every verb ends here.

use super::{Books, Letter};
use redrive_core::breaker::Signal;
use redrive_core::dead_letter::{File, Status};
use redrive_core::error::Refusal;
use redrive_core::failure::{Analysed, Reason, displaced_by};
use redrive_core::group::LeafKey;
use redrive_core::ids::{LeafId, MessageId, QueueName};
use redrive_core::lifecycle::{Command, Effect, Final, Life, Phase, State, transition};
use redrive_core::message::{Envelope, NewMessage, Payload, Record};
use redrive_core::metrics::Event;
use redrive_core::operation::MemberOutcome;
use redrive_core::poison::Indicators;
use redrive_core::reply::{self, Reply};
use redrive_core::review::Review;
use redrive_core::time::{Span, Time};

/// A failure to be filed with a step, and what it leaves on the message.
pub(super) struct Filing {
    failure: Analysed,
    indicators: Option<Indicators>,
}

impl From<Review> for Filing {
    fn from(found: Review) -> Self {
        Self { failure: found.failure, indicators: Some(found.indicators) }
    }
}

impl From<Analysed> for Filing {
    fn from(failure: Analysed) -> Self {
        Self { failure, indicators: None }
    }
}

/// A life after its step, what the step means, and the reply that went out with it.
pub(super) type Stepped = (Life, Effect, Option<MessageId>);

impl Books {
    /// One step in one message's life, and everything that follows from it.
    pub(super) fn change(
        &mut self,
        at: usize,
        command: &Command,
        filing: Option<Filing>,
        now: Time,
    ) -> Result<Stepped, Refusal> {
        self.change_with(at, command, filing, None, now)
    }

    /// The same with a worker's answer.
    pub(super) fn change_with(
        &mut self,
        at: usize,
        command: &Command,
        filing: Option<Filing>,
        answer: Option<Payload>,
        now: Time,
    ) -> Result<Stepped, Refusal> {
        let record = self.live[at].clone();
        let Record { envelope, life } = record.clone();
        let id = envelope.id;
        let step = transition(id, &life, command, now)?;
        let (mut next, effect) = (step.next, step.effect);
        let (mut failure, indicators) = filing.map_or((None, None), |f| (Some(f.failure), f.indicators));
        let reviewed = indicators.is_some();
        next.indicators = indicators.unwrap_or(next.indicators);
        if next.lease().is_none() {
            let signal = match (command, &failure) {
                (Command::Ack { .. }, _) => Signal::Success,
                (Command::Fail { .. } | Command::LoseLease { .. }, Some(f)) => Signal::of(f.route),
                _ => Signal::Nothing,
            };
            self.signal(&record, signal, now);
        }
        let error = failure.as_ref().map(|f| &f.report.error);
        let reply = reply::due(&(&record).into(), &next, effect, answer, error);
        let failed = matches!(command, Command::Fail { .. } | Command::LoseLease { .. });
        failure = failure.filter(|_| failed || matches!(effect, Effect::Died(_)));
        failure = failure.map(|failure| if reviewed { failure } else { self.place(failure, now) });
        if let Some(failure) = &failure {
            next.failed = life.failed + 1;
            let worker = life.lease().map(|l| l.worker.clone());
            let history = self.histories.entry(id).or_default();
            history.retain(|(ordinal, _)| displaced_by(life.failed) != Some(*ordinal));
            history.push((life.failed, failure.clone().file(life.generation, life.attempts, now, worker)));
            let sign = &failure.signature;
            self.tally(&envelope, sign.leaf, [0, 0, 1], now);
            self.note_failure(failure, life.lease().map(|l| l.worker.as_str()), now);
            let held = life.lease().map(|l| now.since(l.granted_at));
            let took = failure.report.duration.or(held).map_or(0, Span::as_millis);
            let labels = [failure.route.name(), failure.category.name()];
            self.happened(Event::Failed, &envelope.queue, &labels, took, now);
        }
        self.count_step(&envelope, (&life, &next), command, effect, now);
        let letter = self.letter_at(id);
        // A redriven message that is done is a closed letter: it is counted as dead, where the letter lies.
        let home = letter.filter(|_| effect == Effect::Ended(Final::Done));
        let home = home.map(|at| self.letters[at].record.envelope.queue.clone());
        let shown = if home.is_some() { &Phase::Dead } else { &next.phase };
        self.counts(&envelope.queue).leave(&life.phase, envelope.size());
        let to = home.unwrap_or_else(|| envelope.queue.clone());
        self.change_queue(&envelope.queue, &to);
        self.counts(&to).enter(shown, envelope.size());
        self.note_peaks(&to);
        self.live[at].life = next.clone();
        let mut owes = false;
        match effect {
            Effect::Died(reason) => {
                let record = self.live.remove(at);
                owes = self.bury(record, &failure.expect("who dies has failed"), reason, letter, now);
            }
            Effect::Ended(how) => {
                self.live.remove(at);
                self.remember(&envelope, next.state(now));
                if let (Some(letter), Final::Done) = (letter, how) {
                    let worker = life.lease().map_or("", |l| l.worker.as_str());
                    let queue = self.letters[letter].record.envelope.queue.clone();
                    let file = self.letters[letter].file.succeeded(id, self.policy(&queue), worker, now)?;
                    self.letters[letter].record.life = Life { phase: Phase::Dead, ..next.clone() };
                    let age = now.since(self.letters[letter].file.dead_at).as_millis();
                    self.happened(Event::RedriveSucceeded, &queue, &[], age, now);
                    self.teach(&self.letters[letter].clone(), |l| l.redriven_ok += 1);
                    let (operation, place) = (file.operation, self.letters[letter].death);
                    if let Some(operation) = operation {
                        self.settle_member(operation, place, MemberOutcome::Succeeded, None, now);
                    }
                    self.refile(letter, file, now);
                    self.note_success(self.letters[letter].file.leaf, now);
                } else {
                    self.histories.remove(&id);
                }
            }
            Effect::Granted | Effect::Retried | Effect::GivenBack => {}
            Effect::Extended | Effect::Revived | Effect::PulledBack => {}
        }
        let reply = reply.filter(|_| !owes);
        let record = Record { envelope, life: next.clone() };
        let sent = reply.and_then(|due| self.reply(due, &record, now));
        Ok((next, effect, sent))
    }

    /// Sends a reply, and counts it.
    fn reply(&mut self, due: Reply, record: &Record, now: Time) -> Option<MessageId> {
        let status = due.status.name();
        let message = due.message(&record.into(), &record.life, record.envelope.trace.clone());
        let sent = self.send_reply(message, now);
        let status = if sent.is_some() { status } else { "left_out" };
        self.happened(Event::Replied, &record.envelope.queue, &[status], 0, now);
        sent
    }

    /// Sends the error reply that a letter owes.
    pub(super) fn pay_reply(&mut self, at: usize, now: Time) {
        self.letters[at].file.owes_reply = false;
        let Letter { record, file, .. } = self.letters[at].clone();
        let failures = self.histories.get(&record.envelope.id);
        let error = failures.and_then(|all| all.last()).map(|(_, failure)| &failure.error);
        let effect = Effect::Died(file.reason);
        if let Some(due) = reply::due(&(&record).into(), &record.life, effect, None, error) {
            self.reply(due, &record, now);
        }
    }

    /// The same where nothing brings the letter back by itself any more.
    pub(super) fn pay_if_due(&mut self, at: usize, now: Time) -> bool {
        let Letter { record, file, .. } = &self.letters[at];
        let due = file.reply_is_due(self.policy(&record.envelope.queue));
        if due {
            self.pay_reply(at, now);
        }
        due
    }

    /// A message that goes from one queue to another was enqueued to the other.
    pub(super) fn change_queue(&mut self, from: &QueueName, to: &QueueName) {
        self.counts(from).enqueued -= 1;
        self.counts(to).enqueued += 1;
    }

    /// What is counted of a step; what is filed is counted where it is filed.
    fn count_step(
        &mut self,
        envelope: &Envelope,
        (life, next): (&Life, &Life),
        command: &Command,
        effect: Effect,
        now: Time,
    ) {
        let queue = &envelope.queue;
        let attempts = u64::from(next.attempts);
        if matches!(command, Command::LoseLease { .. }) {
            self.happened(Event::LeasesLost, queue, &[], 0, now);
        }
        match effect {
            Effect::Granted => {
                self.happened(Event::Leased, queue, &[], now.since(life.ready_at).as_millis(), now);
            }
            Effect::Retried => {
                self.happened(Event::Retried, queue, &[], next.ready_at.since(now).as_millis(), now);
            }
            Effect::GivenBack => self.happened(Event::GivenBack, queue, &[], 0, now),
            Effect::Ended(Final::Done) => {
                self.happened(Event::Acked, queue, &[&envelope.kind], attempts, now);
            }
            Effect::Ended(Final::Expired) => self.happened(Event::Expired, queue, &[], 0, now),
            Effect::Ended(Final::Cancelled) => self.happened(Event::Cancelled, queue, &[], 0, now),
            Effect::Ended(Final::Purged) => self.happened(Event::Discarded, queue, &["message"], 0, now),
            Effect::Died(_) | Effect::Extended | Effect::Revived | Effect::PulledBack => {}
        }
    }

    /// Sends a reply past all limits, unless it is here already or its place is no queue.
    fn send_reply(&mut self, message: NewMessage, now: Time) -> Option<MessageId> {
        let known = self.live_at(message.id).is_some() || self.letter_at(message.id).is_some();
        if known || self.check_new(&message.queue).is_err() {
            return None;
        }
        self.queues.entry(message.queue.clone()).or_default();
        Some(self.accept(message, now).id)
    }

    /// Files the letter of a message that died; a second death replaces the file and keeps the identity.
    /// Says whether the reply to whoever waits is put off.
    fn bury(
        &mut self,
        record: Record,
        failure: &Analysed,
        reason: Reason,
        before: Option<usize>,
        now: Time,
    ) -> bool {
        if let Some(at) = before {
            let letter = self.letters[at].clone();
            self.happened(Event::RedriveFailed, &letter.record.envelope.queue, &[], 0, now);
            self.teach(&letter, |l| l.redriven_failed += 1);
            if let Some(operation) = letter.file.operation {
                let (outcome, why) = self.came_back(letter.file.leaf, failure.signature.leaf);
                self.settle_member(operation, letter.death, outcome, why, now);
            }
        }
        let before = before.map(|at| self.letters.remove(at));
        let policy = self.policy(&record.envelope.queue);
        let old = before.as_ref().map(|l| &l.file);
        let file = File::of_death(&record, &record.life, policy, failure, reason, old, now);
        let (queue, attempts) = (record.envelope.queue.clone(), u64::from(record.life.attempts));
        let labels = [file.reason.name(), file.route.name(), file.category.name()];
        self.happened(Event::Dead, &queue, &labels, attempts, now);
        let labels = [record.envelope.kind.as_str(), record.envelope.priority.name(), file.dlq.as_str()];
        self.happened(Event::DeadByKind, &queue, &labels, 0, now);
        self.happened(Event::DeadByError, &queue, &[&failure.report.error.error_type], 0, now);
        if file.status == Status::Quarantined {
            self.happened(Event::Quarantined, &queue, &[], 0, now);
        }
        let sign = &failure.signature;
        if let Some(before) = before {
            self.tally(&before.record.envelope, before.file.leaf, [-1, 0, 0], now);
        }
        self.tally(&record.envelope, sign.leaf, [1, 1, 0], now);
        self.note_death(sign.leaf, now);
        self.deaths += 1;
        self.drawers.insert(file.dlq.clone());
        let owes = file.owes_reply;
        self.letters.push(Letter { record, file, death: self.deaths, secret: None });
        owes
    }

    /// Counts open letters, deaths and failures of a leaf.
    pub(super) fn tally(
        &mut self,
        envelope: &Envelope,
        leaf: LeafId,
        [open, total, failures]: [i64; 3],
        now: Time,
    ) {
        let key = LeafKey { leaf, queue: envelope.queue.clone(), kind: envelope.kind.clone() };
        self.tallies.entry(key).or_default().add(open, total, failures, now);
        self.lives.entry(self.group_of(leaf)).or_default();
    }

    /// Notes how the message of a key ended.
    pub(super) fn remember(&mut self, envelope: &Envelope, state: State) {
        let key = envelope.key.clone().and_then(|key| self.keys.get_mut(&(envelope.home().clone(), key)));
        if let Some(key) = key.filter(|key| key.id == envelope.id) {
            key.over = Some(state);
        }
    }
}
