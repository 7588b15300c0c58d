//! The members of an operation: acting on them in order, taking that back, and noting what became of each, in the
//! commit in which it did.

use super::Engine;
use super::tables::{Fate, FrozenMember, Kept, Letter, Tables};
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Act, ActRequest, Actor};
use redrive_core::error::{Error, Outcome, Refusal};
use redrive_core::ids::{LeafId, OperationId};
use redrive_core::limits;
use redrive_core::message::Slip;
use redrive_core::operation::{GONE, MemberOutcome, Why, reason, reverse};
use redrive_core::time::Time;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Members between two looks at whether others wait: about half a millisecond.
const SLICE: usize = 16;
/// How long a step goes on where others have waited lately, with its commit still to come.
const SHORT: Duration = Duration::from_millis(1);
/// How long after somebody has waited another is expected.
const LATELY: Duration = Duration::from_millis(100);

/// How far one step came with the members.
struct Went {
    /// The last that was seen to.
    to: u64,
    /// Whether there are no more.
    none_left: bool,
    /// Whether others had to wait for it.
    disturbed: bool,
}

/// What came of one member.
enum Came {
    /// It has this outcome now.
    Of(Fate),
    /// It waits on: its queue is full.
    Full(String),
    /// Nothing more is sent: the breaker it belongs to is open.
    Held(String),
}

impl<T: Tables> Engine<T> {
    /// Whether somebody waits for this commit to end.
    pub(super) fn others_wait(&self) -> bool {
        self.crowd.load(Ordering::Relaxed) > 0
    }

    /// Whether a step that began then has done enough: somebody waits, or did so a moment ago, and whoever comes now
    /// waits for all that this commit has gathered.
    pub(super) fn done_enough(&mut self, began: Instant) -> bool {
        if self.others_wait() {
            self.waited_at = Some(Instant::now());
            return true;
        }
        self.waited_at.is_some_and(|at| at.elapsed() < LATELY) && began.elapsed() >= SHORT
    }

    /// Goes through members with an outcome, in order, after a position and up to another: as many as there is room for,
    /// a slice at a time, and no further slice once others wait. `one` says whether to go on.
    fn each_member(
        &mut self,
        id: OperationId,
        outcome: MemberOutcome,
        (after, up_to): (u64, u64),
        room: usize,
        mut one: impl FnMut(&mut Self, &FrozenMember) -> Outcome<ControlFlow<()>>,
    ) -> Outcome<Went> {
        let mut went = Went { to: after, none_left: false, disturbed: false };
        let (mut left, began) = (room, Instant::now());
        while left > 0 {
            let slice = left.min(SLICE);
            let due = self.tables.members_with(id, outcome, (went.to, up_to), slice)?;
            for frozen in &due {
                if one(self, frozen)?.is_break() {
                    return Ok(went);
                }
                went.to = frozen.position;
            }
            went.none_left = due.len() < slice;
            went.disturbed = self.others_wait();
            if self.done_enough(began) || went.none_left {
                break;
            }
            left -= slice;
        }
        Ok(went)
    }

    /// Acts on as many members as the operation may now; says whether others had to wait for it.
    pub(super) fn send_members(&mut self, id: OperationId, now: Time) -> Outcome<bool> {
        let operation = self.operation_of(id)?.clone();
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
        let went = self.each_member(id, MemberOutcome::Waiting, range, room, |engine, frozen| {
            request.id = frozen.member.id;
            request.expected_version = Some(frozen.member.version);
            match engine.send_member(id, frozen, &request, operation.pace.stop_on_breaker, now)? {
                Came::Of(fate) => {
                    let count = match fate.outcome {
                        MemberOutcome::Running | MemberOutcome::Succeeded => &mut sent,
                        MemberOutcome::Waiting
                        | MemberOutcome::FailedSame
                        | MemberOutcome::FailedOther
                        | MemberOutcome::Skipped
                        | MemberOutcome::Conflict
                        | MemberOutcome::Undone => &mut refused,
                    };
                    *count += 1;
                    engine.tables.put_member(id, frozen.position, &fate)?;
                    engine.operation_of(id)?.acted(frozen.position, fate.outcome);
                    engine.cache.operations_changed.insert(id);
                    return Ok(ControlFlow::Continue(()));
                }
                Came::Full(text) => {
                    engine.change_operation(id, |operation| operation.hold_up(text, now))?;
                }
                Came::Held(text) => engine.halt(id, Why::BreakerOpen, text, now)?,
            }
            stopped = true;
            Ok(ControlFlow::Break(()))
        })?;
        if sent + refused == 0 && !stopped {
            // The counters say that some wait and none does: only `doctor` can tell, and nobody should spin on it.
            let text = "its members are not what its counters say; run `redrive doctor --repair`".to_owned();
            self.change_operation(id, |operation| operation.hold_up(text, now))?;
            return Ok(false);
        }
        self.change_operation(id, |operation| operation.stepped(sent, now))?;
        if sent + refused > 0 {
            let entry = AuditEntry::new(now, &operation.actor, operation.act.name(), id, sent);
            let left = format!("{refused} left alone");
            self.record(if refused > 0 { entry.with_result(left) } else { entry })?;
        }
        Ok(went.disturbed)
    }

    fn send_member(
        &mut self,
        id: OperationId,
        frozen: &FrozenMember,
        request: &ActRequest,
        mind_breaker: bool,
        now: Time,
    ) -> Outcome<Came> {
        let Some(letter) = &frozen.letter else {
            let why = Some(GONE.to_owned());
            return Ok(Came::Of(Fate { outcome: MemberOutcome::Skipped, version: None, why }));
        };
        if mind_breaker && let Act::Retry(retry) = &request.act {
            let mut slip = letter.slip.clone();
            // Another queue has other rules: what they go by is read from the message itself.
            if let Some(queue) = retry.queue.as_ref().filter(|queue| **queue != slip.queue)
                && self.queues()?.contains_key(queue)
            {
                slip = Slip { queue: queue.clone(), ..slip };
                slip.breaker = self.breaker_in(&slip)?;
            }
            if let Some(text) = self.breaker_holds(&slip, now)? {
                return Ok(Came::Held(text));
            }
        }
        let refusal = match self.entry(|engine| engine.act_for(letter, request, Some(id), now))? {
            Ok(state) => {
                self.group_operated(letter, id, now)?;
                let (outcome, why) = MemberOutcome::of_act(&request.act, state.status);
                return Ok(Came::Of(Fate { outcome, version: Some(state.version), why }));
            }
            Err(refusal) => refusal,
        };
        Ok(match MemberOutcome::of_refusal(&refusal) {
            Some(outcome) => Came::Of(Fate { outcome, version: None, why: Some(reason(&refusal)) }),
            None => Came::Full(reason(&refusal)),
        })
    }

    /// Halts an operation, on record.
    fn halt(&mut self, id: OperationId, why: Why, text: String, now: Time) -> Outcome<()> {
        if self.change_operation(id, |operation| operation.halt(why, text, now))? {
            self.record_halt(id, now)?;
        }
        Ok(())
    }

    fn record_halt(&mut self, id: OperationId, now: Time) -> Outcome<()> {
        let said = self.operation_of(id)?.halt.as_ref().map(|halt| halt.text.clone());
        let system = Actor { reason: said, ..Actor::new("system", "system") };
        self.record(AuditEntry::new(now, &system, "pause", id, 0))?;
        Ok(())
    }

    /// Notes what became of a letter that an operation had sent back, in the commit in which it did (I36).
    pub(super) fn settle_member(
        &mut self,
        id: OperationId,
        position: u64,
        outcome: MemberOutcome,
        why: Option<String>,
        now: Time,
    ) -> Outcome<()> {
        let halted = match self.change_operation(id, |operation| operation.settled(outcome, now)) {
            // The letter came from another store with the name of an operation there.
            Err(Error::Refused(Refusal::NoSuchOperation { .. })) => return Ok(()),
            halted => halted?,
        };
        self.tables.put_member(id, position, &Fate { outcome, version: None, why })?;
        if halted {
            self.record_halt(id, now)?;
        }
        Ok(())
    }

    /// Whether what came back is what there was: the same group.
    pub(super) fn came_back(
        &mut self,
        before: LeafId,
        after: LeafId,
    ) -> Kept<(MemberOutcome, Option<String>)> {
        let then = self.group_of(before)?.unwrap_or(before);
        let now = self.group_of(after)?.unwrap_or(after);
        Ok(if then == now {
            (MemberOutcome::FailedSame, None)
        } else {
            (MemberOutcome::FailedOther, Some(format!("group {now}")))
        })
    }

    /// Takes back a chunk of what was done; what cannot be stays as it is.
    pub(super) fn take_back(&mut self, id: OperationId, now: Time) -> Outcome<bool> {
        let operation = self.operation_of(id)?.clone();
        let Some(act) = reverse(&operation.act) else { return Ok(false) };
        let actor = operation.undone_by.clone().unwrap_or_else(|| operation.actor.clone());
        let outcome = if operation.is_redrive() { MemberOutcome::Running } else { MemberOutcome::Succeeded };
        let (mut undone, mut stays) = (0, 0);
        let room = limits::OPERATION_CHUNK;
        // What can be taken back may stand far apart: so the look is bounded too.
        let up_to = self.tables.member_after(id, operation.undone_to, room)?;
        let range = (operation.undone_to, up_to.unwrap_or(u64::MAX));
        let mut went = self.each_member(id, outcome, range, room, |engine, frozen| {
            // What people wrote on a letter meanwhile is no reason to let it run; what started is refused anyway.
            let expected_version = (!operation.is_redrive()).then_some(frozen.member.version);
            let request =
                ActRequest { id: frozen.member.id, act: act.clone(), actor: actor.clone(), expected_version };
            let ours = |letter: &&Letter| !operation.is_redrive() || letter.file.operation == Some(id);
            let taken = match frozen.letter.as_ref().filter(ours) {
                Some(letter) => engine.entry(|engine| engine.act_for(letter, &request, None, now))?,
                None => Err(Refusal::NoSuchLetter { id: frozen.member.id }),
            };
            match taken {
                Ok(_) => {
                    undone += 1;
                    if !operation.is_redrive() {
                        let fate = Fate { outcome: MemberOutcome::Undone, version: None, why: None };
                        engine.tables.put_member(id, frozen.position, &fate)?;
                        let undone = MemberOutcome::Undone;
                        engine.change_operation(id, |o| o.outcomes.shift(outcome, undone))?;
                    }
                }
                Err(_) => stays += 1,
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if let Some(up_to) = up_to.filter(|_| went.none_left) {
            (went.to, went.none_left) = (up_to, false);
        }
        self.change_operation(id, |operation| operation.took_back(went.to, went.none_left, now))?;
        if undone + stays > 0 {
            let entry = AuditEntry::new(now, &actor, act.name(), id, undone);
            let left = format!("{stays} left alone");
            self.record(if stays > 0 { entry.with_result(left) } else { entry })?;
        }
        Ok(went.disturbed)
    }
}
