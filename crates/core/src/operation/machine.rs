//! The state machine of an operation. [`next_stage`] is the only place that says which stage follows on an event. The
//! methods of [`Operation`] record what happened (members frozen, acted on, settled; commands of an operator) as pure
//! changes of its durable state, and raise the events that follow.

use super::{
    Bucket, Control, Delayed, Halt, HaltReason, MemberOutcome, Operation, OperationSpec, Outcomes, Rollout,
    Stage, check_rate, reverse,
};
use crate::dead_letter::{Act, Actor};
use crate::error::Refusal;
use crate::limits;
use crate::time::{Span, Time};

/// What can happen to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Every letter up to the bound was examined; the members are fixed.
    Frozen,
    /// Every member of the canary was sent.
    CanarySent,
    /// Every member of the canary has an outcome, and the observation time is over.
    Observed,
    /// The ramp has reached the full rate.
    RampOver,
    /// No member is waiting any more.
    AllSent,
    /// No member is running any more.
    AllSettled,
    /// The operation halts by itself.
    Halt,
    /// An operator pauses it.
    Pause,
    /// An operator resumes it.
    Resume,
    /// An operator cancels it.
    Cancel,
    /// An operator changes its rate.
    Rate,
    /// An operator undoes it.
    Undo,
    /// Every member that could be undone was undone.
    Undone,
}

impl Event {
    /// All events, in declaration order.
    pub const ALL: [Self; 13] = [
        Self::Frozen,
        Self::CanarySent,
        Self::Observed,
        Self::RampOver,
        Self::AllSent,
        Self::AllSettled,
        Self::Halt,
        Self::Pause,
        Self::Resume,
        Self::Cancel,
        Self::Rate,
        Self::Undo,
        Self::Undone,
    ];
}

/// The stage after an event, or `None` if the event is not possible in this stage. Resuming leads to `resume_to`.
#[must_use]
pub const fn next_stage(from: Stage, event: Event, rollout: &Rollout, resume_to: Stage) -> Option<Stage> {
    let full = if rollout.ramp.is_some() { Stage::Ramping } else { Stage::Running };
    match (from, event) {
        (Stage::Freezing, Event::Frozen) => Some(if rollout.canary.is_some() { Stage::Canary } else { full }),
        (Stage::Canary, Event::CanarySent) => Some(Stage::Observing),
        (Stage::Observing, Event::Observed) => Some(full),
        (Stage::Ramping, Event::RampOver) => Some(Stage::Running),
        (Stage::Canary | Stage::Observing | Stage::Ramping | Stage::Running, Event::AllSent) => {
            Some(Stage::Settling)
        }
        (Stage::Settling, Event::AllSettled) => Some(Stage::Done),
        (Stage::Canary | Stage::Observing | Stage::Ramping | Stage::Running, Event::Halt)
        | (
            Stage::Freezing | Stage::Canary | Stage::Observing | Stage::Ramping | Stage::Running,
            Event::Pause,
        ) => Some(Stage::Paused),
        (Stage::Paused, Event::Resume) => Some(resume_to),
        (
            Stage::Freezing
            | Stage::Canary
            | Stage::Observing
            | Stage::Ramping
            | Stage::Running
            | Stage::Paused,
            Event::Cancel,
        ) => Some(Stage::Cancelled),
        (
            Stage::Freezing
            | Stage::Canary
            | Stage::Observing
            | Stage::Ramping
            | Stage::Running
            | Stage::Paused,
            Event::Rate,
        ) => Some(from),
        (
            Stage::Canary
            | Stage::Observing
            | Stage::Ramping
            | Stage::Running
            | Stage::Settling
            | Stage::Paused
            | Stage::Done
            | Stage::Cancelled,
            Event::Undo,
        ) => Some(Stage::Undoing),
        (Stage::Undoing, Event::Undone) => Some(Stage::Undone),
        (
            Stage::Freezing
            | Stage::Canary
            | Stage::Observing
            | Stage::Ramping
            | Stage::Running
            | Stage::Settling
            | Stage::Paused
            | Stage::Undoing
            | Stage::Done
            | Stage::Cancelled
            | Stage::Undone,
            Event::Frozen
            | Event::CanarySent
            | Event::Observed
            | Event::RampOver
            | Event::AllSent
            | Event::AllSettled
            | Event::Halt
            | Event::Pause
            | Event::Resume
            | Event::Cancel
            | Event::Rate
            | Event::Undo
            | Event::Undone,
        ) => None,
    }
}

/// A failure rate is judged on at least this many members, or on all that are planned if they are fewer.
const SAMPLE_MIN: u64 = 10;

impl Operation {
    /// A new operation. `last_death` is the latest death number, which limits the bound.
    #[must_use]
    pub fn start(spec: &OperationSpec, last_death: u64, now: Time) -> Self {
        Self {
            id: spec.id,
            act: spec.act.clone(),
            filter: spec.filter.clone(),
            actor: spec.actor.clone().without_request(),
            rollout: spec.rollout.clone(),
            stage: Stage::Freezing,
            resume_to: None,
            halt: None,
            delayed: None,
            bound: spec.bound.unwrap_or(last_death).min(last_death),
            frozen_to: 0,
            ran_to: 0,
            members: 0,
            outcomes: Outcomes::default(),
            since: now,
            canary_to: 0,
            judged_from: (0, 0),
            bucket: Bucket::default(),
            undone_by: None,
            undone_to: 0,
            created_at: now,
            finished_at: None,
            next_in: None,
        }
    }

    /// Whether the members go back to their queues, so that their outcomes come later.
    #[must_use]
    pub const fn is_redrive(&self) -> bool {
        matches!(self.act, Act::Retry(_))
    }

    /// Moves to the stage that follows on an event. Returns `false`, and changes nothing, if the event is not possible
    /// in the present stage.
    fn raise(&mut self, event: Event, now: Time) -> bool {
        let resume_to = self.resume_to.unwrap_or(Stage::Freezing);
        let Some(stage) = next_stage(self.stage, event, &self.rollout, resume_to) else { return false };
        if stage != self.stage {
            self.since = now;
            self.fill(now);
        }
        self.stage = stage;
        if stage.is_over() {
            self.finished_at = Some(now);
        }
        true
    }

    /// Records a chunk of frozen members. `frozen_to` is the death number examined last; `exhausted` says that no
    /// letter up to the bound is left.
    pub fn record_frozen(&mut self, members: u64, frozen_to: u64, exhausted: bool, now: Time) {
        self.members += members;
        self.outcomes.waiting += members;
        self.frozen_to = frozen_to;
        if exhausted {
            self.frozen_to = self.bound;
            self.raise(Event::Frozen, now);
            self.canary_to = self.canary_size();
            self.advance(now);
        }
    }

    fn canary_size(&self) -> u64 {
        self.rollout.canary.map_or(0, |canary| canary.size(self.members))
    }

    /// Raises every event that is due at `now`.
    pub fn advance(&mut self, now: Time) {
        while let Some(event) = self.due_event(now) {
            if !self.raise(event, now) {
                return;
            }
        }
    }

    /// The event that follows from the recorded state and the time, if any.
    fn due_event(&self, now: Time) -> Option<Event> {
        let Outcomes { waiting, running, .. } = self.outcomes;
        match self.stage {
            Stage::Canary | Stage::Observing | Stage::Ramping | Stage::Running if waiting == 0 => {
                Some(Event::AllSent)
            }
            Stage::Canary => (self.outcomes.sent() >= self.canary_to).then_some(Event::CanarySent),
            Stage::Observing => {
                let observed = self.since.plus(self.rollout.observe) <= now;
                (observed && running == 0).then_some(Event::Observed)
            }
            Stage::Ramping => {
                let over = self.rollout.ramp.is_none_or(|ramp| self.since.plus(ramp) <= now);
                over.then_some(Event::RampOver)
            }
            Stage::Settling => (running == 0).then_some(Event::AllSettled),
            Stage::Freezing
            | Stage::Running
            | Stage::Paused
            | Stage::Undoing
            | Stage::Done
            | Stage::Cancelled
            | Stage::Undone => None,
        }
    }

    /// Records the outcome of acting on the member at this position.
    pub fn record_acted(&mut self, position: u64, outcome: MemberOutcome) {
        self.ran_to = position;
        self.outcomes.shift(MemberOutcome::Waiting, outcome);
        match outcome {
            MemberOutcome::Running | MemberOutcome::Succeeded => self.delayed = None,
            MemberOutcome::Waiting
            | MemberOutcome::FailedSame
            | MemberOutcome::FailedOther
            | MemberOutcome::Skipped
            | MemberOutcome::Conflict
            | MemberOutcome::Undone => {}
        }
    }

    /// Ends a step in which `sent` members were sent.
    pub fn end_step(&mut self, sent: u64, now: Time) {
        self.spend(sent, now);
        self.advance(now);
    }

    /// Records an obstacle; the operation tries again after a while.
    pub fn delay(&mut self, text: String, now: Time) {
        self.delayed = Some(Delayed { at: now, text });
    }

    /// Halts the operation on its own account. Returns `false` if it cannot halt in its present stage.
    pub fn halt(&mut self, reason: HaltReason, text: String, now: Time) -> bool {
        let at = self.stage;
        if !self.raise(Event::Halt, now) {
            return false;
        }
        self.resume_to = Some(at);
        self.halt = Some(Halt { reason, by: "system".into(), at: now, text });
        true
    }

    /// Records the outcome of a running member. Returns whether that halted the operation.
    pub fn record_settled(&mut self, outcome: MemberOutcome, now: Time) -> bool {
        self.outcomes.shift(MemberOutcome::Running, outcome);
        let halted = outcome == MemberOutcome::FailedSame && self.halt_on_same_failure(now);
        self.advance(now);
        halted
    }

    /// Halts the operation if too many members died again of the failure they had.
    fn halt_on_same_failure(&mut self, now: Time) -> bool {
        let Some(text) = self.same_failure_text(self.stage) else { return false };
        self.halt(HaltReason::SameFailure, text, now)
    }

    /// Why an operation in this stage should halt, if too many members failed the same way. Small samples are judged
    /// as if at least [`SAMPLE_MIN`] members, or all that are planned, had settled: one failure of a thousand members
    /// proves nothing, one failure of a canary of one is all there is to know.
    fn same_failure_text(&self, stage: Stage) -> Option<String> {
        let percent = self.rollout.stop_at?;
        let same = self.outcomes.failed_same.saturating_sub(self.judged_from.1);
        let settled = self.outcomes.settled().saturating_sub(self.judged_from.0);
        let planned = match stage {
            Stage::Canary | Stage::Observing => self.canary_size(),
            Stage::Ramping | Stage::Running => self.members,
            Stage::Freezing
            | Stage::Settling
            | Stage::Paused
            | Stage::Undoing
            | Stage::Done
            | Stage::Cancelled
            | Stage::Undone => return None,
        };
        let sample = settled.max(SAMPLE_MIN.min(planned));
        if self.outcomes.waiting == 0 || same * 100 <= u64::from(percent) * sample {
            return None;
        }
        Some(format!("{same} of {settled} came back with the failure they had; at most {percent}% may"))
    }

    /// Carries out a command of an operator.
    ///
    /// # Errors
    /// [`Refusal::WrongStage`] if the command is not possible in the present stage; [`Refusal::Invalid`] if the act
    /// cannot be undone, or the rate is out of range.
    pub fn control(&mut self, control: Control, actor: &Actor, now: Time) -> Result<(), Refusal> {
        let (id, at) = (self.id, self.stage);
        let wrong_stage =
            move || Refusal::WrongStage { id, stage: at.name().into(), command: control.name().into() };
        let require = |entered: bool| if entered { Ok(()) } else { Err(wrong_stage()) };
        match control {
            Control::Pause => {
                require(self.raise(Event::Pause, now))?;
                self.resume_to = Some(at);
                let text = actor.reason.clone().unwrap_or_default();
                self.halt =
                    Some(Halt { reason: HaltReason::Operator, by: actor.name.clone(), at: now, text });
            }
            Control::Resume => self.resume(now).then_some(()).ok_or_else(wrong_stage)?,
            Control::Cancel => {
                require(self.raise(Event::Cancel, now))?;
                self.halt = None;
                self.delayed = None;
            }
            Control::Rate(rate) => {
                check_rate(rate)?;
                require(self.raise(Event::Rate, now))?;
                self.rollout.rate = rate;
                self.fill(now);
            }
            Control::Undo => {
                self.check_undo()?;
                require(self.raise(Event::Undo, now))?;
                self.halt = None;
                self.delayed = None;
                self.finished_at = None;
                self.undone_by = Some(actor.clone().without_request());
            }
        }
        Ok(())
    }

    fn check_undo(&self) -> Result<(), Refusal> {
        if reverse(&self.act).is_none() {
            let reason = format!("{} cannot be undone in bulk; act on the single letters", self.act.name());
            return Err(Refusal::invalid("undo", reason));
        }
        if self.is_redrive() && self.stage == Stage::Done {
            let reason = "every redriven message is done or dead again; there is nothing to pull back";
            return Err(Refusal::invalid("undo", reason));
        }
        Ok(())
    }

    /// Returns to the stage in which it was paused. If the failure came back, before or during the pause, the failures
    /// so far no longer count and a canary is sent again: the claim that the cause is gone has to be proved first.
    fn resume(&mut self, now: Time) -> bool {
        let failure_came_back = self.halt.as_ref().is_some_and(|halt| halt.reason == HaltReason::SameFailure)
            || self.resume_to.is_some_and(|stage| self.same_failure_text(stage).is_some());
        if failure_came_back && self.stage == Stage::Paused {
            self.judged_from = (self.outcomes.settled(), self.outcomes.failed_same);
            if self.rollout.canary.is_some() {
                self.resume_to = Some(Stage::Canary);
                self.canary_to = self.outcomes.sent() + self.canary_size();
            }
        }
        if !self.raise(Event::Resume, now) {
            return false;
        }
        self.resume_to = None;
        self.halt = None;
        self.advance(now);
        true
    }

    /// Records the position up to which members were undone.
    pub fn record_undone(&mut self, to: u64, exhausted: bool, now: Time) {
        self.undone_to = to;
        if exhausted {
            self.raise(Event::Undone, now);
        }
    }

    /// A copy for the reply to a step, which says when the next step is useful. `busy` is how long the store wants to
    /// serve other callers first.
    #[must_use]
    pub fn with_next_step(&self, busy: Span, now: Time) -> Self {
        let next_in = self.allowance(now).next_in.map(|next_in| next_in.max(busy));
        Self { next_in, ..self.clone() }
    }

    /// How long the waiting members will take at the current rate, or `None` without a rate.
    #[must_use]
    pub fn time_left(&self) -> Option<Span> {
        let rate = u64::from(self.rollout.rate?.max(1));
        Some(Span::from_millis(self.outcomes.waiting.saturating_mul(1_000).div_ceil(rate)))
    }

    /// The maximum number of members that one step may take now.
    #[must_use]
    pub fn chunk(&self, now: Time) -> usize {
        let send = usize::try_from(self.allowance(now).send).unwrap_or(usize::MAX);
        send.min(limits::OPERATION_CHUNK)
    }
}
