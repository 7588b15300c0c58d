//! Settling: the one way a live message changes. [`Engine::change`] applies a command to a message and does
//! everything that follows from it: counters, history, index, letter, key. Every other verb goes through it.

use super::Engine;
use super::replies::Answer;
use super::tables::{Kept, Letter, Live, Tables, unless_damaged};
use crate::faults::{self, Fault};
use redrive_core::breaker::Signal;
use redrive_core::dead_letter::{File, Status};
use redrive_core::error::{Outcome, Refusal};
use redrive_core::failure::{Analysed, Reason, displaced_by};
use redrive_core::group::LeafKey;
use redrive_core::ids::{MessageId, QueueName, Secret};
use redrive_core::lifecycle::{Command, Effect, Final, Life, Phase, State, Transition, transition};
use redrive_core::limits;
use redrive_core::message::Slip;
use redrive_core::metrics::Event;
use redrive_core::operation::MemberOutcome;
use redrive_core::poison::Indicators;
use redrive_core::policy::{Override, QueuePolicy};
use redrive_core::review::{Failed, Review, review};
use redrive_core::store::{Each, LetterState, Settle, Settled, Settlement};
use redrive_core::time::{Span, Time};

/// A failure to be filed with a change, and what it leaves on the message.
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

/// Where a dead letter was filed.
struct Buried {
    /// The dead letter queue it lies in.
    dlq: QueueName,
    /// Whether the reply to whoever waits is put off, because an automatic redrive will follow.
    owes_reply: bool,
}

/// What comes along with a change: a failure to be filed, an answer to be sent.
pub(super) struct Along<P> {
    pub(super) filing: Option<Filing>,
    pub(super) answer: Option<Answer<P>>,
}

impl<P> Along<P> {
    /// Nothing.
    pub(super) const NONE: Self = Self { filing: None, answer: None };

    /// A failure.
    pub(super) fn filing(failure: impl Into<Filing>) -> Self {
        Self { filing: Some(failure.into()), answer: None }
    }
}

/// A settlement on its way in; the bytes of its answer are packed outside the commit.
pub(crate) struct Said<P> {
    pub(crate) settlement: Settlement,
    pub(crate) answer: Option<Answer<P>>,
}

/// A life changed: what it is now and what that means.
pub(super) struct Changed {
    pub(super) life: Life,
    pub(super) effect: Effect,
    /// The dead letter queue it went to.
    pub(super) dlq: Option<QueueName>,
    pub(super) reply: Option<MessageId>,
}

impl<T: Tables> Engine<T> {
    /// Takes the outcome of deliveries, entry by entry.
    pub(crate) fn settle(&mut self, batch: Vec<Said<T::Payload>>, now: Time) -> Outcome<Each<Settled>> {
        self.each(batch, |engine, said| engine.settle_one(said, now))
    }

    fn settle_one(&mut self, said: Said<T::Payload>, now: Time) -> Outcome<Settled> {
        let Said { settlement, answer } = said;
        settlement.check()?;
        let id = settlement.token.id;
        let Some(live) = self.tables.live(id)? else { return Err(Refusal::StaleToken { id }.into()) };
        let policy = self.queue(&live.slip.queue)?.policy.clone();
        let secret = match live.life.lease() {
            Some(lease) if faults::is(Fault::TokenNotChecked) => lease.secret,
            Some(_) | None => settlement.token.secret,
        };
        let extended = matches!(settlement.what, Settle::Extend { .. } | Settle::Progress { .. });
        let (command, filing) = match settlement.what {
            Settle::Fail { failure, said } => {
                // Who does not hold the message teaches nothing.
                let _ = transition(id, &live.life, &Command::Ack { secret }, now)?;
                let found = self.review(&live, *failure, said, &policy, now)?;
                (Command::Fail { secret, verdict: found.verdict }, Some(found.into()))
            }
            what @ (Settle::Ack
            | Settle::Reply { .. }
            | Settle::Release
            | Settle::Snooze { .. }
            | Settle::Extend { .. }
            | Settle::Progress { .. }) => command_of(what, secret, &live, &policy, now),
        };
        let changed = self.change(live, &command, Along { filing, answer }, &policy, now)?;
        let state = changed.life.state(now);
        Ok(Settled {
            id,
            state,
            ready_at: matches!(state, State::Ready | State::Scheduled).then_some(changed.life.ready_at),
            lease_expires_at: changed.life.lease().filter(|_| extended).map(|l| l.expires_at),
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

    /// Looks at a failed delivery in the light of all that is known.
    pub(super) fn review(
        &mut self,
        live: &Live,
        mut failure: Analysed,
        said: Option<Override>,
        policy: &QueuePolicy,
        now: Time,
    ) -> Kept<Review> {
        let group = self.place(&mut failure, now)?;
        let same = match live.life.indicators.leaf {
            Some(last) => last == failure.signature.leaf || self.group_of(last)? == Some(group),
            None => false,
        };
        let (slip, life) = (&live.slip, &live.life);
        let standing = &self.standing(group)?.clone();
        let found = review(&Failed { slip, life, policy, standing, same, said, now }, failure);
        let worker = life.lease().map(|lease| lease.worker.clone());
        self.teach(group, |standing| standing.saw(slip.id, worker.as_deref(), now))?;
        Ok(found)
    }

    /// Applies one command to one live message, with everything that follows, in this commit.
    pub(super) fn change(
        &mut self,
        live: Live,
        command: &Command,
        along: Along<T::Payload>,
        policy: &QueuePolicy,
        now: Time,
    ) -> Outcome<Changed> {
        let Live { slip, life } = live;
        let Transition { mut next, effect } = transition(slip.id, &life, command, now)?;
        check_end(&slip, &life, command, effect, now)?;
        let (mut failure, reviewed) = match along.filing {
            Some(Filing { failure, indicators: Some(indicators) }) => {
                next.indicators = indicators;
                (Some(failure), true)
            }
            Some(Filing { failure, indicators: None }) => (Some(failure), false),
            None => (None, false),
        };
        if next.lease().is_none() {
            let signal = match (command, &failure) {
                (Command::Ack { .. }, _) => Signal::Success,
                (Command::Fail { .. } | Command::LoseLease { .. }, Some(failure)) => {
                    Signal::of(failure.route)
                }
                (_, _) => Signal::Nothing,
            };
            self.signal(&slip, &life, signal, policy, now)?;
        }
        if faults::is(Fault::CountReset) && effect == Effect::Retried {
            next.attempts = 0;
        }
        // A redriven message that succeeds leaves its letter behind, closed: it counts there, not as done.
        if life.generation == 1 || effect != Effect::Ended(Final::Done) {
            self.move_count(&slip, Some(&life.phase), &next.phase)?;
        }
        if self.hot.is_some() {
            self.hot()?.remove(&slip, &life);
        }
        // A failed delivery has moved `failed`; a message that died without one (its time was over, or it was
        // handed back too often) gets its place in the history here.
        let died = matches!(effect, Effect::Died(_));
        let error = failure.as_ref().map(|failure| &failure.report.error);
        let mut reply = self.due_reply(&slip, &next, effect, along.answer, error)?;
        failure = failure.filter(|_| died || next.failed > life.failed);
        self.count_step(&slip, (&life, &next), command, effect, now)?;
        if let Some(failure) = &mut failure {
            next.failed = life.failed + 1;
            if !reviewed {
                self.place(failure, now)?;
            }
            self.file_failure(&slip, &life, failure, now)?;
        }
        let mut dlq = None;
        match effect {
            Effect::Granted | Effect::Extended => self.keep(&slip, &next)?,
            Effect::Retried | Effect::GivenBack => {
                self.woke = true;
                if faults::is(Fault::IndexNotUpdated) && self.hot.is_some() {
                    self.tables.put_life(&slip, &next)?;
                } else {
                    self.keep(&slip, &next)?;
                }
            }
            Effect::Died(reason) => {
                let failure = failure.unwrap_or_else(|| Analysed::too_late(reason));
                let buried = self.bury(&slip, &next, reason, &failure, policy, now)?;
                reply = reply.filter(|_| !buried.owes_reply);
                dlq = Some(buried.dlq);
            }
            Effect::Ended(how) => {
                let by = life.lease().map_or("system", |l| l.worker.as_str());
                self.end((&slip, &life.phase), &next, how, by, now)?;
            }
            Effect::PulledBack | Effect::Revived => self.tables.drop_live(&slip)?,
        }
        let reply = match reply {
            Some(reply) => self.send_reply(reply, now)?,
            None => None,
        };
        Ok(Changed { life: next, effect, dlq, reply })
    }

    fn keep(&mut self, slip: &Slip, next: &Life) -> Kept<()> {
        self.tables.put_life(slip, next)?;
        if let Some(hot) = &mut self.hot {
            hot.add(slip, next);
        }
        Ok(())
    }

    /// Moves one message between the counters of its queue.
    pub(super) fn move_count(&mut self, slip: &Slip, from: Option<&Phase>, to: &Phase) -> Outcome<()> {
        let row = self.queue_mut(&slip.queue)?;
        let before = row.counts;
        match from {
            Some(phase) => row.counts.leave(phase, slip.size),
            None => row.counts.enqueued += 1,
        }
        row.counts.enter(to, slip.size);
        let after = row.counts;
        row.peak = row.peak.max(after.waiting + after.leased);
        row.dead_peak = row.dead_peak.max(after.dead);
        Ok(self.count_totals(&before, &after)?)
    }

    /// The same for a message and its letter, which may be of different queues: what one queue took in, the other
    /// has now.
    pub(super) fn carry_count(
        &mut self,
        (from, was): (&Slip, &Phase),
        (to, is): (&Slip, &Phase),
    ) -> Outcome<()> {
        if from.queue == to.queue {
            return self.move_count(from, Some(was), is);
        }
        let row = self.queue_mut(&from.queue)?;
        let before = row.counts;
        row.counts.leave(was, from.size);
        row.counts.enqueued -= 1;
        let after = row.counts;
        self.count_totals(&before, &after)?;
        self.move_count(to, None, is)
    }

    /// Adds a failure to the history and to the counters of its leaf.
    fn file_failure(&mut self, slip: &Slip, life: &Life, failure: &Analysed, now: Time) -> Kept<()> {
        let worker = life.lease().map(|l| l.worker.clone());
        self.group_failed(failure, worker.as_deref(), now)?;
        let filed = failure.clone().file(life.generation, life.attempts, now, worker);
        if let Some(victim) = displaced_by(life.failed) {
            self.tables.drop_failure(slip, victim)?;
        }
        self.tables.add_failure(slip, life.failed, &filed)?;
        if life.generation > 1 {
            // A letter says what its message's last failure said, also while the message is tried again.
            self.tables.text_changed(slip.id)?;
        }
        let took = failure.report.duration.or(life.lease().map(|l| now.since(l.granted_at)));
        let labels = [failure.route.name(), failure.category.name()];
        self.tally(Event::Failed, &slip.queue, &labels, took.map_or(0, Span::as_millis), now)?;
        let leaf = failure.signature.leaf;
        self.count_leaf(leaf_key(slip, leaf), |c| c.add(0, 0, 1, now))
    }

    /// Turns a message into a dead letter: out of one table, into the other, in one commit (I32).
    fn bury(
        &mut self,
        slip: &Slip,
        life: &Life,
        reason: Reason,
        failure: &Analysed,
        policy: &QueuePolicy,
        now: Time,
    ) -> Outcome<Buried> {
        self.tables.drop_live(slip)?;
        if faults::is(Fault::FullDrawerDrops) && self.queue_mut(&slip.queue)?.counts.dead > 50 {
            return Ok(Buried { dlq: slip.queue.clone(), owes_reply: false });
        }
        let previous = if life.generation > 1 { self.previous_letter(slip.id, now)? } else { None };
        let file = File::of_death(
            slip.clone(),
            life,
            policy,
            failure,
            reason,
            previous.as_ref().map(|l| &l.file),
            now,
        );
        self.count_death(slip, life, &file, &failure.report.error.error_type, now)?;
        if let Some(old) = previous {
            self.tally(Event::RedriveFailed, &old.slip.queue, &[], 0, now)?;
            self.learn(&old, |lessons| lessons.redriven_failed += 1)?;
            if let Some(id) = old.file.operation {
                let (outcome, why) = self.came_back(old.file.leaf, file.leaf)?;
                self.settle_member(id, old.death, outcome, why, now)?;
            }
            self.count_drawer(&old.file.dlq, old.file.status, -1)?;
            self.count_leaf(leaf_key(&old.slip, old.file.leaf), |c| c.add(-1, 0, 0, now))?;
            self.count_open((&old.slip).into(), -1)?;
            if let Some(hot) = &mut self.hot {
                // It may have been sent to another queue; what it held in this one is free.
                hot.hold(&old.slip, false);
            }
            self.tables.drop_letter(&old)?;
        }
        let heads = self.heads()?;
        heads.death += 1;
        let letter =
            Letter { death: heads.death, slip: slip.clone(), life: life.clone(), file, secret: None };
        self.count_drawer(&letter.file.dlq, letter.file.status, 1)?;
        self.count_leaf(leaf_key(slip, letter.file.leaf), |c| c.add(1, 1, 0, now))?;
        self.count_open(slip.into(), 1)?;
        self.group_died(letter.file.leaf, now)?;
        if let Some(hot) = &mut self.hot {
            hot.hold(slip, letter.file.holds_key);
        }
        self.woke = true;
        self.tables.add_letter(&letter)?;
        Ok(Buried { owes_reply: letter.file.owes_reply, dlq: letter.file.dlq })
    }

    /// The letter of a message that dies again. One that is damaged makes way for the new one: what is left of it is
    /// kept aside, and `doctor` sets the counters right that it was in.
    fn previous_letter(&mut self, id: MessageId, now: Time) -> Kept<Option<Letter>> {
        match unless_damaged(self.tables.letter(id))? {
            Some(letter) => Ok(letter),
            None => self.tables.set_letter_aside(id, now).map(|()| None),
        }
    }

    /// A message is over: its rows go, its key remembers how.
    fn end(
        &mut self,
        (slip, was): (&Slip, &Phase),
        life: &Life,
        how: Final,
        by: &str,
        now: Time,
    ) -> Outcome<()> {
        self.tables.drop_live(slip)?;
        self.woke |= slip.ordering_key.is_some();
        self.end_key(slip, how)?;
        if life.generation > 1 {
            return self.close_letter((slip, was), life, by, now);
        }
        if life.failed > 0 {
            self.tables.drop_failures(slip)?;
        }
        self.tables.drop_body(slip)?;
        Ok(())
    }

    /// The idempotency key of a finished message remembers how it ended (I41).
    pub(super) fn end_key(&mut self, slip: &Slip, how: Final) -> Kept<()> {
        let Some(key) = &slip.key else { return Ok(()) };
        let Some(mut row) = self.tables.key(slip.home(), key)? else { return Ok(()) };
        if row.id == slip.id {
            row.ended = Some(match how {
                Final::Done => State::Done,
                Final::Cancelled => State::Cancelled,
                Final::Expired => State::Expired,
                Final::Purged => State::Purged,
            });
            self.tables.put_key(slip.home(), key, &row)?;
        }
        Ok(())
    }

    /// The redriven message succeeded: its letter is resolved, keeps the lifetime numbers, and counts as dead
    /// until retention. It stays where it lies, also when the message was sent to another queue.
    fn close_letter(
        &mut self,
        (slip, was): (&Slip, &Phase),
        life: &Life,
        by: &str,
        now: Time,
    ) -> Outcome<()> {
        // A damaged letter stays as it is, for `doctor` to name: the work is done.
        let Some(old) = unless_damaged(self.tables.letter(slip.id))?.flatten() else {
            return self.move_count(slip, Some(was), &life.phase);
        };
        let policy = self.queue(&old.slip.queue)?.policy.clone();
        let file = old.file.succeeded(slip.id, &policy, by, now)?;
        self.carry_count((slip, was), (&old.slip, &Phase::Dead))?;
        let age = now.since(old.file.dead_at).as_millis();
        self.tally(Event::RedriveSucceeded, &old.slip.queue, &[], age, now)?;
        self.learn(&old, |lessons| lessons.redriven_ok += 1)?;
        if let Some(id) = old.file.operation {
            self.settle_member(id, old.death, MemberOutcome::Succeeded, None, now)?;
        }
        let life = Life { phase: Phase::Dead, ..life.clone() };
        self.replace_letter(&old, Letter { file, life, ..old.clone() }, now)?;
        self.group_succeeded(old.file.leaf, now)?;
        Ok(())
    }

    /// Writes what has become of a letter and everything that follows from the change of status.
    pub(super) fn replace_letter(
        &mut self,
        old: &Letter,
        mut next: Letter,
        now: Time,
    ) -> Outcome<LetterState> {
        self.pay_if_due(&mut next, now)?;
        let file = &next.file;
        let open = |s: Status| i64::from(!s.is_closed());
        if old.file.status != file.status || old.file.dlq != file.dlq {
            self.count_drawer(&old.file.dlq, old.file.status, -1)?;
            self.count_drawer(&file.dlq, file.status, 1)?;
        }
        let opened = open(file.status) - open(old.file.status);
        if opened != 0 {
            self.count_leaf(leaf_key(&old.slip, file.leaf), |c| c.add(opened, 0, 0, now))?;
            self.count_open((&old.slip).into(), opened)?;
        }
        if old.file.holds_key != file.holds_key
            && let Some(hot) = &mut self.hot
        {
            hot.hold(&old.slip, file.holds_key);
            self.woke = true;
        }
        next.secret = old.secret.filter(|_| next.file.consumer.is_some());
        self.tables.put_letter(old, &next)?;
        Ok(LetterState { id: next.slip.id, status: Some(next.file.status), version: next.file.version })
    }
}

/// A redriven message has a letter, which only success closes: it cannot end in another way.
fn check_end(slip: &Slip, life: &Life, command: &Command, effect: Effect, now: Time) -> Result<(), Refusal> {
    match effect {
        Effect::Ended(Final::Cancelled | Final::Purged | Final::Expired) if life.generation > 1 => {
            Err(Refusal::WrongState { id: slip.id, state: life.state(now), command: command.name().into() })
        }
        Effect::Ended(_)
        | Effect::Granted
        | Effect::Retried
        | Effect::GivenBack
        | Effect::Extended
        | Effect::Died(_)
        | Effect::Revived
        | Effect::PulledBack => Ok(()),
    }
}

/// The key of a message's counters.
pub(super) fn leaf_key(slip: &Slip, leaf: redrive_core::ids::LeafId) -> LeafKey {
    LeafKey { leaf, queue: slip.queue.clone(), kind: slip.kind.clone() }
}

/// What a worker's word means for its message: the command, and the failure that is filed if it comes to that.
fn command_of(
    what: Settle,
    secret: Secret,
    live: &Live,
    policy: &QueuePolicy,
    now: Time,
) -> (Command, Option<Filing>) {
    let held_for = live.life.lease().map_or(Span::ZERO, |l| now.since(l.granted_at));
    let give_back = |until| {
        let max_attempts = live.slip.terms.max_attempts(policy);
        (Command::GiveBack { secret, until, max_attempts }, Some(Analysed::lease_lost(held_for).into()))
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
        Settle::Ack | Settle::Reply { .. } | Settle::Fail { .. } => (Command::Ack { secret }, None),
    }
}
