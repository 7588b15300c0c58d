//! Bulk operations in the reference model: members are frozen, acted on in the order of their deaths, and
//! given an outcome. The stages and the pace are decided by the core.

use super::{AUDIT_KEY, ModelState};
use redrive_core::audit::AuditEntry;
use redrive_core::breaker::{BreakerGate, BreakerKey, BreakerState};
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter, LetterRecord};
use redrive_core::error::Refusal;
use redrive_core::ids::{LeafId, MessageId, OperationId, QueueName};
use redrive_core::lifecycle::State;
use redrive_core::limits::OPERATION_CHUNK;
use redrive_core::message::MessageMeta;
use redrive_core::operation::{
    Destination, GONE, HaltReason, Member, MemberOutcome, Operation, OperationSpec, Preview, PreviewRequest,
    Stage, possible_from, reverse, short_reason, token,
};
use redrive_core::survey::{LetterFacts, Survey};
use redrive_core::time::Time;
use std::collections::BTreeMap;

impl ModelState {
    pub(super) fn operation(&self, id: OperationId) -> Result<usize, Refusal> {
        self.operations.iter().position(|(op, _)| op.id == id).ok_or(Refusal::NoSuchOperation { id })
    }

    pub(super) fn preview(&self, request: &PreviewRequest, now: Time) -> Preview {
        let filter = self.with_current_groups(&request.filter);
        let possible = possible_from(&request.act);
        let mut matching: Vec<DeadLetter> = self.view_letters(now);
        matching.retain(|l| possible.contains(&l.record.status) && filter.matches_letter(l, now));
        let mut survey = Survey::default();
        for letter in &matching {
            let envelope = &letter.message.envelope;
            let facts = LetterFacts {
                group: letter.group,
                queue: &envelope.queue,
                status: letter.record.status,
                reason: letter.record.reason,
                dead_at: letter.record.dead_at,
                redrives: letter.record.redrives,
                bytes: envelope.size(),
                keyed: envelope.key.is_some(),
                ordered: envelope.ordering_key.is_some(),
            };
            survey.add(&facts, now);
        }
        let retry = if let Act::Retry(retry) = &request.act { Some(retry) } else { None };
        let mut destinations = BTreeMap::new();
        for letter in matching.iter().filter(|_| retry.is_some()) {
            let own = &letter.message.envelope.queue;
            let queue = retry.and_then(|retry| retry.queue.as_ref()).unwrap_or(own);
            let to = self.destination(queue, now);
            destinations.entry(queue.clone()).or_insert(to).count += 1;
        }
        let taken = |letter: &&DeadLetter| {
            let envelope = &letter.message.envelope;
            let key = envelope.key.clone().and_then(|key| self.keys.get(&(envelope.home().clone(), key)));
            key.is_some_and(|key| key.id != envelope.id || key.over == Some(State::Done))
        };
        let minds = retry.is_some_and(|retry| !retry.force);
        let conflicts = if minds { matching.iter().filter(taken).count() as u64 } else { 0 };
        let preview = Preview::of(request, &survey, &destinations, conflicts, self.deaths, &AUDIT_KEY);
        matching.truncate(request.sample);
        Preview { sample: matching, ..preview }
    }

    fn destination(&self, queue: &QueueName, now: Time) -> Destination {
        let Some(queue_state) = self.queues.get(queue) else { return Destination::default() };
        let held = (queue_state.counts.waiting + queue_state.counts.leased).unsigned_abs();
        let theirs =
            self.breakers.iter().filter(|((of, _), _)| of == queue && queue_state.policy.breaker.is_some());
        Destination {
            count: 0,
            paused: queue_state.paused_by.is_some(),
            room: queue_state.policy.max_messages.map(|most| most.saturating_sub(held)),
            open: theirs
                .filter(|(_, b)| b.state(now) == BreakerState::Open)
                .map(|((_, key), _)| key.clone())
                .collect(),
        }
    }

    pub(super) fn start(&mut self, spec: &OperationSpec, now: Time) -> Result<Operation, Refusal> {
        spec.actor.check()?;
        if let Ok(at) = self.operation(spec.id) {
            return Ok(self.operations[at].0.clone());
        }
        spec.check()?;
        let bound = spec.bound.unwrap_or(0);
        if spec.token.as_ref().is_some_and(|t| *t != token(&AUDIT_KEY, &spec.act, &spec.filter, bound)) {
            return Err(Refusal::invalid("token", "does not belong to this preview"));
        }
        let op = Operation::start(spec, self.deaths, now);
        self.operations.push((op.clone(), Vec::new()));
        self.seal(AuditEntry::new(now, &spec.actor, "start", spec.id, 0).with_detail(&spec.filter));
        Ok(op)
    }

    pub(super) fn step(&mut self, id: OperationId, now: Time) -> Result<Operation, Refusal> {
        let at = self.operation(id)?;
        self.operations[at].0.advance(now);
        match self.operations[at].0.stage {
            Stage::Freezing => self.freeze(at, now),
            Stage::Canary | Stage::Ramping | Stage::Running => self.send_members(at, now),
            Stage::Undoing => self.undo_members(at, now),
            Stage::Observing | Stage::Settling | Stage::Paused => {}
            Stage::Done | Stage::Cancelled | Stage::Undone => {}
        }
        Ok(self.operations[at].0.clone())
    }

    fn freeze(&mut self, at: usize, now: Time) {
        let (op, mut members) = self.operations[at].clone();
        let mut next = self.letters.clone();
        next.retain(|l| op.frozen_to < l.death && l.death <= op.bound);
        next.sort_by_key(|l| l.death);
        next.truncate(OPERATION_CHUNK);
        let before = members.len();
        for letter in &next {
            let wanted = self
                .with_current_groups(&op.filter)
                .matches_letter(&self.view_letter(letter, op.created_at), op.created_at);
            if wanted && possible_from(&op.act).contains(&letter.record.status) {
                members
                    .push((letter.death, Member::frozen(letter.stored.envelope.id, letter.record.version)));
            }
        }
        let to = next.last().map_or(op.bound, |l| l.death);
        let frozen = (members.len() - before) as u64;
        self.operations[at].0.record_frozen(frozen, to, next.len() < OPERATION_CHUNK, now);
        self.operations[at].1 = members;
    }

    /// The members with this outcome after a position, in order: the index of each, and the record of its
    /// letter.
    fn members_by_outcome(
        &self,
        at: usize,
        outcome: MemberOutcome,
        after: u64,
    ) -> Vec<(usize, Option<LetterRecord>)> {
        let (_, members) = &self.operations[at];
        let wanted = (0..).zip(members).filter(|(_, (death, m))| m.outcome == outcome && *death > after);
        let record = |death: u64, id: MessageId| {
            let letter = self.letters.iter().find(|l| l.death == death && l.stored.envelope.id == id);
            letter.map(|letter| letter.record.clone())
        };
        wanted.take(OPERATION_CHUNK).map(|(n, (death, m))| (n, record(*death, m.id))).collect()
    }

    fn send_members(&mut self, at: usize, now: Time) {
        let (op, members) = self.operations[at].clone();
        let (mut sent, mut refused) = (0, 0);
        for (n, record) in
            self.members_by_outcome(at, MemberOutcome::Waiting, op.ran_to).into_iter().take(op.chunk(now))
        {
            let (death, member) = &members[n];
            let held = record.as_ref().and_then(|_| self.held_by_breaker(&op, member.id, now));
            if let Some(text) = held {
                if self.operations[at].0.halt(HaltReason::BreakerOpen, text, now) {
                    self.audit_halt(at, now);
                }
                break;
            }
            let (id, expected_version) = (member.id, Some(member.version));
            let request = ActRequest { id, act: op.act.clone(), actor: op.actor.clone(), expected_version };
            let leaf = record.as_ref().map(|record| record.leaf);
            let done = match record {
                Some(record) => self.act_for_operation(&record, &request, Some(op.id), now).map_err(Some),
                None => Err(None),
            };
            let mut updated = member.clone();
            (updated.outcome, updated.why) = match done {
                Ok(state) => {
                    sent += 1;
                    updated.version = state.version;
                    self.touched.extend(leaf.map(|leaf| (op.id, leaf, now)));
                    MemberOutcome::of_act(&op.act, state.status)
                }
                Err(None) => (MemberOutcome::Skipped, Some(GONE.to_owned())),
                Err(Some(refusal)) => match MemberOutcome::of_refusal(&refusal) {
                    Some(outcome) => (outcome, Some(short_reason(&refusal))),
                    None => {
                        self.operations[at].0.delay(short_reason(&refusal), now);
                        break;
                    }
                },
            };
            refused += u64::from(matches!(updated.outcome, MemberOutcome::Skipped | MemberOutcome::Conflict));
            self.operations[at].0.record_acted(*death, updated.outcome);
            self.operations[at].1[n].1 = updated;
        }
        if op.chunk(now) > 0 {
            self.operations[at].0.end_step(sent, now);
        }
        self.audit_chunk(now, &op.actor, op.act.name(), op.id, sent, refused);
    }

    fn audit_chunk(&mut self, now: Time, by: &Actor, act: &str, id: OperationId, acted: u64, left: u64) {
        if acted + left > 0 {
            let entry = AuditEntry::new(now, by, act, id, acted);
            self.seal(if left > 0 { entry.with_result(format!("{left} left alone")) } else { entry });
        }
    }

    fn audit_halt(&mut self, at: usize, now: Time) {
        let op = &self.operations[at].0;
        let (id, reason) = (op.id, op.halt.as_ref().map(|halt| halt.text.clone()));
        self.log(now, &Actor { reason, ..Actor::new("system", "system") }, "pause", id, 0);
    }

    /// Explains which breaker holds a member back, if the operation stops on breakers and one does.
    fn held_by_breaker(&self, op: &Operation, id: MessageId, now: Time) -> Option<String> {
        let Act::Retry(retry) = op.act.clone() else { return None };
        if !op.rollout.stop_on_breaker {
            return None;
        }
        let stored = &self.letters[self.letter_at(id)?].stored;
        let mut meta = self.meta(stored);
        let queue = retry.queue.unwrap_or(meta.queue.clone());
        let rules = self.queues.get(&queue)?.policy.breaker.clone()?;
        if queue != meta.queue {
            meta.breaker = match &rules.key {
                key @ (BreakerKey::Header(_) | BreakerKey::Payload(_)) => {
                    key.read(&stored.envelope.headers, &stored.envelope.payload)
                }
                BreakerKey::Queue | BreakerKey::Kind => None,
            };
        }
        let key = rules.key.of(&MessageMeta { queue: queue.clone(), ..meta })?;
        let breaker = self.breakers.get(&(queue.clone(), key.clone()))?;
        let held = matches!(breaker.gate(&rules, now), BreakerGate::Held(_));
        held.then(|| format!("the breaker of queue {queue} is open for {key}"))
    }

    /// Records the outcome of a letter that an operation redrove.
    pub(super) fn settle_member(
        &mut self,
        id: OperationId,
        death: u64,
        outcome: MemberOutcome,
        why: Option<String>,
        now: Time,
    ) {
        let Ok(at) = self.operation(id) else { return };
        let halted = self.operations[at].0.record_settled(outcome, now);
        let member = self.operations[at].1.iter_mut().find(|(at_death, _)| *at_death == death);
        let (_, member) = member.expect("a letter redriven by an operation is its member");
        assert_eq!(member.outcome, MemberOutcome::Running, "a member that settles was running");
        (member.outcome, member.why) = (outcome, why);
        if halted {
            self.audit_halt(at, now);
        }
    }

    /// The outcome of a member that failed again: in the same group or in another one.
    pub(super) fn failed_outcome(&self, before: LeafId, after: LeafId) -> (MemberOutcome, Option<String>) {
        let group = |leaf| self.tree.group_of(leaf).unwrap_or(leaf);
        match group(after) {
            now if now == group(before) => (MemberOutcome::FailedSame, None),
            now => (MemberOutcome::FailedOther, Some(format!("group {now}"))),
        }
    }

    fn undo_members(&mut self, at: usize, now: Time) {
        let (op, members) = self.operations[at].clone();
        let Some(act) = reverse(&op.act) else { return };
        let actor = op.undone_by.clone().expect("an undone operation has an actor");
        let outcome = if op.is_redrive() { MemberOutcome::Running } else { MemberOutcome::Succeeded };
        let due = self.members_by_outcome(at, outcome, op.undone_to);
        let exhausted = due.len() < OPERATION_CHUNK;
        let (mut to, mut undone, mut stays) = (op.undone_to, 0, 0);
        for (n, record) in due {
            let (death, member) = &members[n];
            to = *death;
            let redrive = op.is_redrive();
            let (id, expected_version) = (member.id, (!redrive).then_some(member.version));
            let request = ActRequest { id, act: act.clone(), actor: actor.clone(), expected_version };
            let ours = record.filter(|record| !redrive || record.operation == Some(op.id));
            let done =
                ours.is_some_and(|record| self.act_for_operation(&record, &request, None, now).is_ok());
            *(if done { &mut undone } else { &mut stays }) += 1;
            if done && !op.is_redrive() {
                self.operations[at].0.outcomes.shift(outcome, MemberOutcome::Undone);
                let updated = Member { outcome: MemberOutcome::Undone, why: None, ..member.clone() };
                self.operations[at].1[n].1 = updated;
            }
        }
        self.operations[at].0.record_undone(to, exhausted, now);
        self.audit_chunk(now, &actor, act.name(), op.id, undone, stays);
    }
}
