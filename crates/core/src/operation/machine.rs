//! The stages of an operation. [`next_stage`] is the only place that says what follows on what; the rest is what
//! an [`Operation`] keeps on record, so that every step, outcome and word of an operator is one pure change.

use super::{
    Bucket, Control, Halt, HeldUp, MemberOutcome, Operation, OperationSpec, Outcomes, Pace, Stage, Why,
    check_rate, reverse,
};
use crate::dead_letter::{Act, Actor};
use crate::error::Refusal;
use crate::limits;
use crate::time::{Span, Time};

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// No death up to the bound is left.
    Frozen,
    /// The canary is out.
    CanarySent,
    /// The canary has its outcomes and was looked at for long enough.
    Observed,
    /// The ramp has reached the rate.
    RampOver,
    /// No member waits.
    AllSent,
    /// No member is under way.
    AllSettled,
    /// It must not go on by itself.
    Halt,
    /// Somebody halts it.
    Pause,
    /// Somebody lets it go on.
    Resume,
    /// Somebody stops it.
    Cancel,
    /// Somebody changes its rate.
    Rate,
    /// Somebody takes it back.
    Undo,
    /// What could be taken back is.
    TakenBack,
}

impl Event {
    /// Every one.
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
        Self::TakenBack,
    ];
}

/// Where an operation of this pace is after an event; nothing when the event makes no sense there. Resuming leads
/// to `resume_to`.
#[must_use]
pub const fn next_stage(from: Stage, event: Event, pace: &Pace, resume_to: Stage) -> Option<Stage> {
    let full = if pace.ramp.is_some() { Stage::Ramping } else { Stage::Running };
    match (from, event) {
        (Stage::Freezing, Event::Frozen) => Some(if pace.canary.is_some() { Stage::Canary } else { full }),
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
        (Stage::Undoing, Event::TakenBack) => Some(Stage::Undone),
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
            | Event::TakenBack,
        ) => None,
    }
}

/// Members that must have settled before a share of them says something, if there are as many.
const SAMPLE: u64 = 10;

impl Operation {
    /// An operation that has just been started.
    #[must_use]
    pub fn start(spec: &OperationSpec, last_death: u64, now: Time) -> Self {
        Self {
            id: spec.id,
            act: spec.act.clone(),
            filter: spec.filter.clone(),
            actor: spec.actor.clone(),
            pace: spec.pace.clone(),
            stage: Stage::Freezing,
            resume_to: None,
            halt: None,
            held_up: None,
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

    /// Whether its members go back to work, so that their outcomes come later.
    #[must_use]
    pub const fn is_redrive(&self) -> bool {
        matches!(self.act, Act::Retry(_))
    }

    fn enter(&mut self, event: Event, now: Time) -> bool {
        let resume_to = self.resume_to.unwrap_or(Stage::Freezing);
        let Some(stage) = next_stage(self.stage, event, &self.pace, resume_to) else { return false };
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

    /// Notes a chunk of members written; `exhausted` when no death up to the bound is left.
    pub fn froze(&mut self, members: u64, frozen_to: u64, exhausted: bool, now: Time) {
        self.members += members;
        self.outcomes.waiting += members;
        self.frozen_to = frozen_to;
        if exhausted {
            self.frozen_to = self.bound;
            self.enter(Event::Frozen, now);
            self.canary_to = self.canary_size();
            self.advance(now);
        }
    }

    fn canary_size(&self) -> u64 {
        self.pace.canary.map_or(0, |canary| canary.of(self.members))
    }

    /// Goes as far as what is on record and the time allow.
    pub fn advance(&mut self, now: Time) {
        while let Some(event) = self.due(now) {
            if !self.enter(event, now) {
                return;
            }
        }
    }

    fn due(&self, now: Time) -> Option<Event> {
        let Outcomes { waiting, running, .. } = self.outcomes;
        match self.stage {
            Stage::Canary | Stage::Observing | Stage::Ramping | Stage::Running if waiting == 0 => {
                Some(Event::AllSent)
            }
            Stage::Canary => (self.outcomes.sent() >= self.canary_to).then_some(Event::CanarySent),
            Stage::Observing => {
                let looked = self.since.plus(self.pace.observe) <= now;
                (looked && running == 0).then_some(Event::Observed)
            }
            Stage::Ramping => {
                let over = self.pace.ramp.is_none_or(|ramp| self.since.plus(ramp) <= now);
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

    /// Notes what came of acting on the member at this position.
    pub fn acted(&mut self, position: u64, outcome: MemberOutcome) {
        self.ran_to = position;
        self.outcomes.shift(MemberOutcome::Waiting, outcome);
        match outcome {
            MemberOutcome::Running | MemberOutcome::Succeeded => self.held_up = None,
            MemberOutcome::Waiting
            | MemberOutcome::FailedSame
            | MemberOutcome::FailedOther
            | MemberOutcome::Skipped
            | MemberOutcome::Conflict
            | MemberOutcome::Undone => {}
        }
    }

    /// Ends a step that sent so many.
    pub fn stepped(&mut self, sent: u64, now: Time) {
        self.spend(sent, now);
        self.advance(now);
    }

    /// Something keeps it for the moment.
    pub fn hold_up(&mut self, text: String, now: Time) {
        self.held_up = Some(HeldUp { at: now, text });
    }

    /// It must not go on by itself. Says whether that halted it.
    pub fn halt(&mut self, why: Why, text: String, now: Time) -> bool {
        let at = self.stage;
        if !self.enter(Event::Halt, now) {
            return false;
        }
        self.resume_to = Some(at);
        self.halt = Some(Halt { why, by: "system".into(), at: now, text });
        true
    }

    /// Notes the outcome of a member that was under way. Says whether that halted the operation.
    pub fn settled(&mut self, outcome: MemberOutcome, now: Time) -> bool {
        self.outcomes.shift(MemberOutcome::Running, outcome);
        let halted = outcome == MemberOutcome::FailedSame && self.came_back(now);
        self.advance(now);
        halted
    }

    /// Halts when too many came back with the failure they had. Few are judged as if they were ten, or as many as
    /// there are to be: one failure of a thousand says nothing, one of a canary of one says all.
    fn came_back(&mut self, now: Time) -> bool {
        let Some(text) = self.too_many_back(self.stage) else { return false };
        self.halt(Why::SameFailure, text, now)
    }

    /// The judgement itself, for an operation in this stage.
    fn too_many_back(&self, stage: Stage) -> Option<String> {
        let percent = self.pace.stop_at?;
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
        let of = settled.max(SAMPLE.min(planned));
        if self.outcomes.waiting == 0 || same * 100 <= u64::from(percent) * of {
            return None;
        }
        Some(format!("{same} of {settled} came back with the failure they had; at most {percent}% may"))
    }

    /// Steers it.
    ///
    /// # Errors
    /// [`Refusal::WrongStage`] when it cannot be steered that way from where it is, [`Refusal::Invalid`] when it
    /// cannot be taken back at all.
    pub fn control(&mut self, control: Control, actor: &Actor, now: Time) -> Result<(), Refusal> {
        let (id, at) = (self.id, self.stage);
        let wrong =
            move || Refusal::WrongStage { id, stage: at.name().into(), command: control.name().into() };
        let legal = |done: bool| if done { Ok(()) } else { Err(wrong()) };
        match control {
            Control::Pause => {
                legal(self.enter(Event::Pause, now))?;
                self.resume_to = Some(at);
                let text = actor.reason.clone().unwrap_or_default();
                self.halt = Some(Halt { why: Why::Operator, by: actor.name.clone(), at: now, text });
            }
            Control::Resume => self.resume(now).then_some(()).ok_or_else(wrong)?,
            Control::Cancel => {
                legal(self.enter(Event::Cancel, now))?;
                self.halt = None;
                self.held_up = None;
            }
            Control::Rate(rate) => {
                check_rate(rate)?;
                legal(self.enter(Event::Rate, now))?;
                self.pace.rate = rate;
                self.fill(now);
            }
            Control::Undo => {
                self.check_undo()?;
                legal(self.enter(Event::Undo, now))?;
                self.halt = None;
                self.held_up = None;
                self.finished_at = None;
                self.undone_by = Some(actor.clone());
            }
        }
        Ok(())
    }

    fn check_undo(&self) -> Result<(), Refusal> {
        if reverse(&self.act).is_none() {
            let why = format!("to {} is not taken back in bulk; act on the letters", self.act.name());
            return Err(Refusal::invalid("undo", why));
        }
        if self.is_redrive() && self.stage == Stage::Done {
            let why = "every message that was sent back is done or dead again; there is nothing to pull back";
            return Err(Refusal::invalid("undo", why));
        }
        Ok(())
    }

    /// Goes on where it was. After a halt because the failure came back, or if it came back while it was paused for
    /// another reason, what came back before is forgiven, and a canary is sent anew: whoever says that the cause is
    /// gone has it proved first.
    fn resume(&mut self, now: Time) -> bool {
        let failed = self.halt.as_ref().is_some_and(|halt| halt.why == Why::SameFailure)
            || self.resume_to.is_some_and(|stage| self.too_many_back(stage).is_some());
        if failed && self.stage == Stage::Paused {
            self.judged_from = (self.outcomes.settled(), self.outcomes.failed_same);
            if self.pace.canary.is_some() {
                self.resume_to = Some(Stage::Canary);
                self.canary_to = self.outcomes.sent() + self.canary_size();
            }
        }
        if !self.enter(Event::Resume, now) {
            return false;
        }
        self.resume_to = None;
        self.halt = None;
        self.advance(now);
        true
    }

    /// Notes how far taking back has come.
    pub fn took_back(&mut self, to: u64, exhausted: bool, now: Time) {
        self.undone_to = to;
        if exhausted {
            self.enter(Event::TakenBack, now);
        }
    }

    /// The operation as a step answers with it: when the next one makes sense. `busy` is how long the store wants
    /// to be left alone for others' sake.
    #[must_use]
    pub fn told(&self, busy: Span, now: Time) -> Self {
        let next_in = self.allowance(now).next_in.map(|next_in| next_in.max(busy));
        Self { next_in, ..self.clone() }
    }

    /// How long what waits will take at the rate in force, if there is one.
    #[must_use]
    pub fn time_left(&self) -> Option<Span> {
        let rate = u64::from(self.pace.rate?.max(1));
        Some(Span::from_millis(self.outcomes.waiting.saturating_mul(1_000).div_ceil(rate)))
    }

    /// Most members that one step takes.
    #[must_use]
    pub fn chunk(&self, now: Time) -> usize {
        let send = usize::try_from(self.allowance(now).send).unwrap_or(usize::MAX);
        send.min(limits::OPERATION_CHUNK)
    }
}
