//! Bulk acts in the reference model: members are frozen, acted upon in the order of their deaths, and told what
//! became of them. As plain as `model`; the stages and the pace are the core's.

use super::{AUDIT_KEY, Books};
use redrive_core::audit::AuditEntry;
use redrive_core::breaker::{BreakerKey, BreakerState, Stance};
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter, File};
use redrive_core::error::Refusal;
use redrive_core::ids::{LeafId, MessageId, OperationId, QueueName};
use redrive_core::lifecycle::State;
use redrive_core::limits::OPERATION_CHUNK;
use redrive_core::message::Slip;
use redrive_core::operation::{
    Destination, GONE, Member, MemberOutcome, Operation, OperationSpec, Preview, PreviewRequest, Stage, Why,
    possible_from, reason, reverse, token,
};
use redrive_core::survey::{Facts, Survey};
use redrive_core::time::Time;
use std::collections::BTreeMap;

impl Books {
    pub(super) fn operation(&self, id: OperationId) -> Result<usize, Refusal> {
        self.operations.iter().position(|(op, _)| op.id == id).ok_or(Refusal::NoSuchOperation { id })
    }

    pub(super) fn preview(&self, request: &PreviewRequest, now: Time) -> Preview {
        let filter = self.present(&request.filter);
        let possible = possible_from(&request.act);
        let mut meant: Vec<DeadLetter> = self.show_letters(now);
        meant.retain(|l| possible.contains(&l.file.status) && filter.matches_letter(l, now));
        let mut survey = Survey::default();
        for letter in &meant {
            let envelope = &letter.message.envelope;
            let facts = Facts {
                group: letter.group,
                queue: &envelope.queue,
                status: letter.file.status,
                reason: letter.file.reason,
                dead_at: letter.file.dead_at,
                redrives: letter.file.redrives,
                bytes: envelope.size(),
                keyed: envelope.key.is_some(),
                ordered: envelope.ordering_key.is_some(),
            };
            survey.add(&facts, now);
        }
        let retry = if let Act::Retry(retry) = &request.act { Some(retry) } else { None };
        let mut destinations = BTreeMap::new();
        for letter in meant.iter().filter(|_| retry.is_some()) {
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
        let conflicts = if minds { meant.iter().filter(taken).count() as u64 } else { 0 };
        let preview = Preview::of(request, &survey, &destinations, conflicts, self.deaths, &AUDIT_KEY);
        meant.truncate(request.sample);
        Preview { sample: meant, ..preview }
    }

    fn destination(&self, queue: &QueueName, now: Time) -> Destination {
        let Some(shelf) = self.queues.get(queue) else { return Destination::default() };
        let held = (shelf.counts.waiting + shelf.counts.leased).unsigned_abs();
        let theirs =
            self.breakers.iter().filter(|((of, _), _)| of == queue && shelf.policy.breaker.is_some());
        Destination {
            count: 0,
            paused: shelf.paused_by.is_some(),
            room: shelf.policy.max_messages.map(|most| most.saturating_sub(held)),
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
            return Err(Refusal::invalid("token", "not of this preview"));
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
            Stage::Undoing => self.take_back(at, now),
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
                .present(&op.filter)
                .matches_letter(&self.show_letter(letter, op.created_at), op.created_at);
            if wanted && possible_from(&op.act).contains(&letter.file.status) {
                members.push((letter.death, Member::frozen(letter.record.envelope.id, letter.file.version)));
            }
        }
        let to = next.last().map_or(op.bound, |l| l.death);
        let frozen = (members.len() - before) as u64;
        self.operations[at].0.froze(frozen, to, next.len() < OPERATION_CHUNK, now);
        self.operations[at].1 = members;
    }

    /// The members with an outcome, in order, after a position: where they are in the list, and their letters' files.
    fn members_with(&self, at: usize, outcome: MemberOutcome, after: u64) -> Vec<(usize, Option<File>)> {
        let (_, members) = &self.operations[at];
        let wanted = (0..).zip(members).filter(|(_, (place, m))| m.outcome == outcome && *place > after);
        let file = |place: u64, id: MessageId| {
            let letter = self.letters.iter().find(|l| l.death == place && l.record.envelope.id == id);
            letter.map(|letter| letter.file.clone())
        };
        wanted.take(OPERATION_CHUNK).map(|(n, (place, m))| (n, file(*place, m.id))).collect()
    }

    fn send_members(&mut self, at: usize, now: Time) {
        let (op, members) = self.operations[at].clone();
        let (mut sent, mut refused) = (0, 0);
        for (n, file) in
            self.members_with(at, MemberOutcome::Waiting, op.ran_to).into_iter().take(op.chunk(now))
        {
            let (place, member) = &members[n];
            let held = file.as_ref().and_then(|_| self.held_by_breaker(&op, member.id, now));
            if let Some(text) = held {
                if self.operations[at].0.halt(Why::BreakerOpen, text, now) {
                    self.log_halt(at, now);
                }
                break;
            }
            let (id, expected_version) = (member.id, Some(member.version));
            let request = ActRequest { id, act: op.act.clone(), actor: op.actor.clone(), expected_version };
            let leaf = file.as_ref().map(|file| file.leaf);
            let done = match file {
                Some(file) => self.act_for(&file, &request, Some(op.id), now).map_err(Some),
                None => Err(None),
            };
            let mut told = member.clone();
            (told.outcome, told.why) = match done {
                Ok(state) => {
                    sent += 1;
                    told.version = state.version;
                    self.touched.extend(leaf.map(|leaf| (op.id, leaf, now)));
                    MemberOutcome::of_act(&op.act, state.status)
                }
                Err(None) => (MemberOutcome::Skipped, Some(GONE.to_owned())),
                Err(Some(refusal)) => match MemberOutcome::of_refusal(&refusal) {
                    Some(outcome) => (outcome, Some(reason(&refusal))),
                    None => {
                        self.operations[at].0.hold_up(reason(&refusal), now);
                        break;
                    }
                },
            };
            refused += u64::from(matches!(told.outcome, MemberOutcome::Skipped | MemberOutcome::Conflict));
            self.operations[at].0.acted(*place, told.outcome);
            self.operations[at].1[n].1 = told;
        }
        if op.chunk(now) > 0 {
            self.operations[at].0.stepped(sent, now);
        }
        self.log_chunk(now, &op.actor, op.act.name(), op.id, sent, refused);
    }

    fn log_chunk(&mut self, now: Time, by: &Actor, act: &str, id: OperationId, did: u64, left: u64) {
        if did + left > 0 {
            let entry = AuditEntry::new(now, by, act, id, did);
            self.seal(if left > 0 { entry.with_result(format!("{left} left alone")) } else { entry });
        }
    }

    fn log_halt(&mut self, at: usize, now: Time) {
        let op = &self.operations[at].0;
        let (id, reason) = (op.id, op.halt.as_ref().map(|halt| halt.text.clone()));
        self.log(now, &Actor { reason, ..Actor::new("system", "system") }, "pause", id, 0);
    }

    /// What the breaker of a member says, where the operation minds.
    fn held_by_breaker(&self, op: &Operation, id: MessageId, now: Time) -> Option<String> {
        let Act::Retry(retry) = op.act.clone() else { return None };
        if !op.pace.stop_on_breaker {
            return None;
        }
        let record = &self.letters[self.letter_at(id)?].record;
        let mut slip = self.slip(record);
        let queue = retry.queue.unwrap_or(slip.queue.clone());
        let rules = self.queues.get(&queue)?.policy.breaker.clone()?;
        if queue != slip.queue {
            slip.breaker = match &rules.key {
                key @ (BreakerKey::Header(_) | BreakerKey::Payload(_)) => {
                    key.read(&record.envelope.headers, &record.envelope.payload)
                }
                BreakerKey::Queue | BreakerKey::Kind => None,
            };
        }
        let key = rules.key.of(&Slip { queue: queue.clone(), ..slip })?;
        let breaker = self.breakers.get(&(queue.clone(), key.clone()))?;
        let held = matches!(breaker.stance(&rules, now), Stance::Held(_));
        held.then(|| format!("the breaker of queue {queue} is open for {key}"))
    }

    /// Notes what became of a letter that an operation had sent back.
    pub(super) fn settle_member(
        &mut self,
        id: OperationId,
        place: u64,
        outcome: MemberOutcome,
        why: Option<String>,
        now: Time,
    ) {
        let Ok(at) = self.operation(id) else { return };
        let halted = self.operations[at].0.settled(outcome, now);
        let member = self.operations[at].1.iter_mut().find(|(death, _)| *death == place);
        let (_, member) = member.expect("who is sent for an operation is its member");
        assert_eq!(member.outcome, MemberOutcome::Running, "who settles was under way");
        (member.outcome, member.why) = (outcome, why);
        if halted {
            self.log_halt(at, now);
        }
    }

    /// Whether what came back is what there was: the same group.
    pub(super) fn came_back(&self, before: LeafId, after: LeafId) -> (MemberOutcome, Option<String>) {
        let group = |leaf| self.tree.group_of(leaf).unwrap_or(leaf);
        match group(after) {
            now if now == group(before) => (MemberOutcome::FailedSame, None),
            now => (MemberOutcome::FailedOther, Some(format!("group {now}"))),
        }
    }

    fn take_back(&mut self, at: usize, now: Time) {
        let (op, members) = self.operations[at].clone();
        let Some(act) = reverse(&op.act) else { return };
        let actor = op.undone_by.clone().expect("somebody takes it back");
        let outcome = if op.is_redrive() { MemberOutcome::Running } else { MemberOutcome::Succeeded };
        let due = self.members_with(at, outcome, op.undone_to);
        let exhausted = due.len() < OPERATION_CHUNK;
        let (mut to, mut undone, mut stays) = (op.undone_to, 0, 0);
        for (n, file) in due {
            let (place, member) = &members[n];
            to = *place;
            let redrive = op.is_redrive();
            let (id, expected_version) = (member.id, (!redrive).then_some(member.version));
            let request = ActRequest { id, act: act.clone(), actor: actor.clone(), expected_version };
            let ours = file.filter(|file| !redrive || file.operation == Some(op.id));
            let done = ours.is_some_and(|file| self.act_for(&file, &request, None, now).is_ok());
            *(if done { &mut undone } else { &mut stays }) += 1;
            if done && !op.is_redrive() {
                self.operations[at].0.outcomes.shift(outcome, MemberOutcome::Undone);
                let told = Member { outcome: MemberOutcome::Undone, why: None, ..member.clone() };
                self.operations[at].1[n].1 = told;
            }
        }
        self.operations[at].0.took_back(to, exhausted, now);
        self.log_chunk(now, &actor, act.name(), op.id, undone, stays);
    }
}
