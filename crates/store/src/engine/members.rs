//! The members of an operation: acting on them in order, undoing that, and storing the outcome of each in the commit
//! that brings it about.

use super::Engine;
use super::tables::{FrozenMember, Letter, MemberUpdate, TableResult, Tables};
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Act, ActRequest, Actor};
use redrive_core::error::{CallError, Refusal, StoreResult};
use redrive_core::ids::{LeafId, OperationId};
use redrive_core::limits;
use redrive_core::message::MessageMeta;
use redrive_core::operation::{GONE, HaltReason, MemberOutcome, reverse, short_reason};
use redrive_core::time::Time;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Members processed between two checks for waiting jobs: about half a millisecond of work.
const SLICE: usize = 16;
/// How long a step goes on if other jobs have waited recently; its commit takes time on top.
const SHORT_STEP: Duration = Duration::from_millis(1);
/// How long after a job has waited another one is expected.
const RECENTLY: Duration = Duration::from_millis(100);

/// How far one step came with the members of an operation.
struct StepProgress {
    /// The position of the last member that was processed.
    position: u64,
    /// Whether no members are left.
    none_left: bool,
    /// Whether other jobs had to wait for the step.
    others_waited: bool,
}

/// What became of one member in a step.
enum MemberStep {
    /// It has a new outcome.
    Updated(MemberUpdate),
    /// It keeps waiting, because its queue is full.
    QueueFull(String),
    /// The operation halts, because the breaker of the member's queue is open.
    BreakerOpen(String),
}

impl<T: Tables> Engine<T> {
    /// Whether a job waits for this commit to end.
    pub(super) fn others_wait(&self) -> bool {
        self.waiting_writers.load(Ordering::Relaxed) > 0
    }

    /// Whether a step that began at `began` has done enough: a job waits, or one waited a moment ago and the next one
    /// would have to wait for everything in this commit.
    pub(super) fn should_yield(&mut self, began: Instant) -> bool {
        if self.others_wait() {
            self.contended_at = Some(Instant::now());
            return true;
        }
        self.contended_at.is_some_and(|at| at.elapsed() < RECENTLY) && began.elapsed() >= SHORT_STEP
    }

    /// Calls `one` for members with an outcome, in order, within a range of positions (exclusive, inclusive), until
    /// it breaks. Handles up to `room` members, a slice at a time, and begins no further slice once other jobs wait.
    fn for_each_member(
        &mut self,
        id: OperationId,
        outcome: MemberOutcome,
        (after, up_to): (u64, u64),
        room: usize,
        mut one: impl FnMut(&mut Self, &FrozenMember) -> StoreResult<ControlFlow<()>>,
    ) -> StoreResult<StepProgress> {
        let mut progress = StepProgress { position: after, none_left: false, others_waited: false };
        let (mut left, began) = (room, Instant::now());
        while left > 0 {
            let slice = left.min(SLICE);
            let due = self.tables.members_with(id, outcome, (progress.position, up_to), slice)?;
            for frozen in &due {
                if one(self, frozen)?.is_break() {
                    return Ok(progress);
                }
                progress.position = frozen.position;
            }
            progress.none_left = due.len() < slice;
            progress.others_waited = self.others_wait();
            if self.should_yield(began) || progress.none_left {
                break;
            }
            left -= slice;
        }
        Ok(progress)
    }

    /// Acts on as many members as the operation may now. Returns whether other jobs had to wait.
    pub(super) fn act_on_members(&mut self, id: OperationId, now: Time) -> StoreResult<bool> {
        let operation = self.operation_mut(id)?.clone();
        let room = operation.chunk(now);
        if room == 0 {
            return Ok(false);
        }
        let (mut sent, mut refused) = (0, 0);
        let mut request = ActRequest {
            id: redrive_core::ids::MessageId::from_bytes([0; 16]),
            act: operation.act.clone(),
            actor: operation.actor.clone(),
            expected_version: None,
        };
        let (range, mut stopped) = ((operation.ran_to, u64::MAX), false);
        let progress = self.for_each_member(id, MemberOutcome::Waiting, range, room, |engine, frozen| {
            request.id = frozen.member.id;
            request.expected_version = Some(frozen.member.version);
            match engine.act_on_member(id, frozen, &request, operation.rollout.stop_on_breaker, now)? {
                MemberStep::Updated(update) => {
                    let count = match update.outcome {
                        MemberOutcome::Running | MemberOutcome::Succeeded => &mut sent,
                        MemberOutcome::Waiting
                        | MemberOutcome::FailedSame
                        | MemberOutcome::FailedOther
                        | MemberOutcome::Skipped
                        | MemberOutcome::Conflict
                        | MemberOutcome::Undone => &mut refused,
                    };
                    *count += 1;
                    engine.tables.put_member(id, frozen.position, &update)?;
                    engine.operation_mut(id)?.record_acted(frozen.position, update.outcome);
                    engine.cache.operations_changed.insert(id);
                    return Ok(ControlFlow::Continue(()));
                }
                MemberStep::QueueFull(text) => {
                    engine.change_operation(id, |operation| operation.delay(text, now))?;
                }
                MemberStep::BreakerOpen(text) => engine.halt(id, HaltReason::BreakerOpen, text, now)?,
            }
            stopped = true;
            Ok(ControlFlow::Break(()))
        })?;
        if sent + refused == 0 && !stopped {
            // The counters claim waiting members, but there are none. Only `doctor` can tell; do not retry in a loop.
            let text = "its counters do not match its members; run `redrive doctor --repair`".to_owned();
            self.change_operation(id, |operation| operation.delay(text, now))?;
            return Ok(false);
        }
        self.change_operation(id, |operation| operation.end_step(sent, now))?;
        if sent + refused > 0 {
            let entry = AuditEntry::new(now, &operation.actor, operation.act.name(), id, sent);
            let left = format!("{refused} left alone");
            self.append_audit(if refused > 0 { entry.with_result(left) } else { entry })?;
        }
        Ok(progress.others_waited)
    }

    fn act_on_member(
        &mut self,
        id: OperationId,
        frozen: &FrozenMember,
        request: &ActRequest,
        stop_on_breaker: bool,
        now: Time,
    ) -> StoreResult<MemberStep> {
        let Some(letter) = &frozen.letter else {
            let why = Some(GONE.to_owned());
            return Ok(MemberStep::Updated(MemberUpdate {
                outcome: MemberOutcome::Skipped,
                version: None,
                why,
            }));
        };
        if stop_on_breaker && let Act::Retry(retry) = &request.act {
            let mut meta = letter.meta.clone();
            // Another queue has other breaker rules: take the key from the message itself.
            if let Some(queue) = retry.queue.as_ref().filter(|queue| **queue != meta.queue)
                && self.queues()?.contains_key(queue)
            {
                meta = MessageMeta { queue: queue.clone(), ..meta };
                meta.breaker = self.breaker_value_in(&meta)?;
            }
            if let Some(text) = self.breaker_holds(&meta, now)? {
                return Ok(MemberStep::BreakerOpen(text));
            }
        }
        let refusal = match self.run_entry(|engine| engine.act_on_behalf(letter, request, Some(id), now))? {
            Ok(state) => {
                self.group_operated(letter, id, now)?;
                let (outcome, why) = MemberOutcome::of_act(&request.act, state.status);
                return Ok(MemberStep::Updated(MemberUpdate { outcome, version: Some(state.version), why }));
            }
            Err(refusal) => refusal,
        };
        Ok(match MemberOutcome::of_refusal(&refusal) {
            Some(outcome) => MemberStep::Updated(MemberUpdate {
                outcome,
                version: None,
                why: Some(short_reason(&refusal)),
            }),
            None => MemberStep::QueueFull(short_reason(&refusal)),
        })
    }

    /// Halts an operation and records that in the audit trail.
    fn halt(&mut self, id: OperationId, why: HaltReason, text: String, now: Time) -> StoreResult<()> {
        if self.change_operation(id, |operation| operation.halt(why, text, now))? {
            self.record_halt(id, now)?;
        }
        Ok(())
    }

    fn record_halt(&mut self, id: OperationId, now: Time) -> StoreResult<()> {
        let reason = self.operation_mut(id)?.halt.as_ref().map(|halt| halt.text.clone());
        let system = Actor { reason, ..Actor::new("system", "system") };
        self.append_audit(AuditEntry::new(now, &system, "pause", id, 0))?;
        Ok(())
    }

    /// Stores the outcome of a letter that an operation had redriven, in the commit that brings it about (I36).
    pub(super) fn settle_member(
        &mut self,
        id: OperationId,
        position: u64,
        outcome: MemberOutcome,
        why: Option<String>,
        now: Time,
    ) -> StoreResult<()> {
        let halted = match self.change_operation(id, |operation| operation.record_settled(outcome, now)) {
            // An imported letter names an operation of its former store.
            Err(CallError::Refused(Refusal::NoSuchOperation { .. })) => return Ok(()),
            halted => halted?,
        };
        self.tables.put_member(id, position, &MemberUpdate { outcome, version: None, why })?;
        if halted {
            self.record_halt(id, now)?;
        }
        Ok(())
    }

    /// The outcome of a member that failed again: in the same group or in another.
    pub(super) fn failed_again_outcome(
        &mut self,
        before: LeafId,
        after: LeafId,
    ) -> TableResult<(MemberOutcome, Option<String>)> {
        let then = self.group_of(before)?.unwrap_or(before);
        let now = self.group_of(after)?.unwrap_or(after);
        Ok(if then == now {
            (MemberOutcome::FailedSame, None)
        } else {
            (MemberOutcome::FailedOther, Some(format!("group {now}")))
        })
    }

    /// Undoes one chunk of what the operation did. Members that cannot be undone stay as they are.
    pub(super) fn undo_members(&mut self, id: OperationId, now: Time) -> StoreResult<bool> {
        let operation = self.operation_mut(id)?.clone();
        let Some(act) = reverse(&operation.act) else { return Ok(false) };
        let actor = operation.undone_by.clone().unwrap_or_else(|| operation.actor.clone());
        let outcome = if operation.is_redrive() { MemberOutcome::Running } else { MemberOutcome::Succeeded };
        let (mut undone, mut unchanged) = (0, 0);
        let room = limits::OPERATION_CHUNK;
        // Members that can be undone may be far apart, so the range to search is bounded as well.
        let up_to = self.tables.member_after(id, operation.undone_to, room)?;
        let range = (operation.undone_to, up_to.unwrap_or(u64::MAX));
        let mut progress = self.for_each_member(id, outcome, range, room, |engine, frozen| {
            // Notes added to a letter meanwhile do not keep its redrive
            // from being undone; one that has started is refused anyway.
            let expected_version = (!operation.is_redrive()).then_some(frozen.member.version);
            let request =
                ActRequest { id: frozen.member.id, act: act.clone(), actor: actor.clone(), expected_version };
            let ours = |letter: &&Letter| !operation.is_redrive() || letter.record.operation == Some(id);
            let undoing = match frozen.letter.as_ref().filter(ours) {
                Some(letter) => {
                    engine.run_entry(|engine| engine.act_on_behalf(letter, &request, None, now))?
                }
                None => Err(Refusal::NoSuchLetter { id: frozen.member.id }),
            };
            match undoing {
                Ok(_) => {
                    undone += 1;
                    if !operation.is_redrive() {
                        let update =
                            MemberUpdate { outcome: MemberOutcome::Undone, version: None, why: None };
                        engine.tables.put_member(id, frozen.position, &update)?;
                        let undone = MemberOutcome::Undone;
                        engine.change_operation(id, |o| o.outcomes.shift(outcome, undone))?;
                    }
                }
                Err(_) => unchanged += 1,
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if let Some(up_to) = up_to.filter(|_| progress.none_left) {
            (progress.position, progress.none_left) = (up_to, false);
        }
        self.change_operation(id, |operation| {
            operation.record_undone(progress.position, progress.none_left, now)
        })?;
        if undone + unchanged > 0 {
            let entry = AuditEntry::new(now, &actor, act.name(), id, undone);
            let left = format!("{unchanged} left alone");
            self.append_audit(if unchanged > 0 { entry.with_result(left) } else { entry })?;
        }
        Ok(progress.others_waited)
    }
}
