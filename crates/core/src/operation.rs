//! Operations: durable bulk acts over a frozen set of dead letters. The members are fixed before the first
//! one is touched, so what dies again meanwhile is not swept in, and every step can be repeated.

use crate::dead_letter::{Act, Actor, DeadLetter};
use crate::error::Refusal;
use crate::failure::named;
use crate::filter::Filter;
use crate::ids::{MessageId, OperationId};
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

named! {
    /// Where an operation is.
    Stage, "stage", {
        /// Members are being written down.
        Freezing = "freezing",
        /// Members are being acted upon.
        Running = "running",
        /// Halted by somebody.
        Paused = "paused",
        /// Every member has an outcome.
        Done = "done",
        /// Stopped for good; what was done stays done.
        Cancelled = "cancelled",
    }
}

/// What is to be done, to which letters, by whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationSpec {
    /// Made by the caller; starting the same one twice starts it once.
    pub id: OperationId,
    /// What to do.
    pub act: Act,
    /// To which.
    pub filter: Filter,
    /// Only letters that died up to here; from a preview. Everything until now when not said.
    #[serde(default)]
    pub bound: Option<u64>,
    /// Who, and why.
    pub actor: Actor,
}

/// What an operation would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preview {
    /// How many letters.
    pub count: u64,
    /// Some of them.
    pub sample: Vec<DeadLetter>,
    /// The last death that was looked at; goes into the spec.
    pub bound: u64,
}

/// An operation as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// The identity.
    pub id: OperationId,
    /// What is done.
    pub act: Act,
    /// To which.
    pub filter: Filter,
    /// By whom, and why.
    pub actor: Actor,
    /// Where it is.
    pub stage: Stage,
    /// Where it was when it was paused.
    pub resume_to: Option<Stage>,
    /// Only letters that died up to here.
    pub bound: u64,
    /// Deaths looked at while freezing.
    pub frozen_to: u64,
    /// Letters in it.
    pub members: u64,
    /// Acted upon.
    pub succeeded: u64,
    /// Changed since they were frozen, and left alone.
    pub skipped: u64,
    /// When it was started.
    pub created_at: Time,
    /// When it ended.
    pub finished_at: Option<Time>,
}

/// How an operation is steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// Halt.
    Pause,
    /// Go on.
    Resume,
    /// Stop for good.
    Cancel,
}

named! {
    /// What became of one member.
    MemberOutcome, "outcome", {
        /// Not acted upon yet.
        Waiting = "waiting",
        /// Acted upon.
        Succeeded = "succeeded",
        /// It changed since it was frozen.
        Skipped = "skipped",
    }
}

/// One letter of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The letter.
    pub id: MessageId,
    /// Its version when it was frozen.
    pub version: u64,
    /// What became of it.
    pub outcome: MemberOutcome,
}

impl Operation {
    /// An operation that has just been started.
    #[must_use]
    pub fn start(spec: &OperationSpec, last_death: u64, now: Time) -> Self {
        Self {
            id: spec.id,
            act: spec.act.clone(),
            filter: spec.filter.clone(),
            actor: spec.actor.clone(),
            stage: Stage::Freezing,
            resume_to: None,
            bound: spec.bound.unwrap_or(last_death).min(last_death),
            frozen_to: 0,
            members: 0,
            succeeded: 0,
            skipped: 0,
            created_at: now,
            finished_at: None,
        }
    }

    /// Notes a chunk of members written; `exhausted` when no death up to the bound is left.
    pub fn froze(&mut self, members: u64, frozen_to: u64, exhausted: bool) {
        self.members += members;
        self.frozen_to = frozen_to;
        if exhausted {
            self.frozen_to = self.bound;
            self.stage = Stage::Running;
        }
    }

    /// Notes a chunk of members acted upon; ends the operation with the last one.
    pub fn ran(&mut self, succeeded: u64, skipped: u64, now: Time) {
        self.succeeded += succeeded;
        self.skipped += skipped;
        if self.succeeded + self.skipped >= self.members {
            self.stage = Stage::Done;
            self.finished_at = Some(now);
        }
    }

    /// Steers it.
    ///
    /// # Errors
    /// [`Refusal::WrongStage`] when it cannot be steered that way from where it is.
    pub fn control(&mut self, control: Control, now: Time) -> Result<(), Refusal> {
        let wrong = |command: &str| Refusal::WrongStage {
            id: self.id,
            stage: self.stage.name().into(),
            command: command.into(),
        };
        match (control, self.stage) {
            (Control::Pause, Stage::Freezing | Stage::Running) => {
                self.resume_to = Some(self.stage);
                self.stage = Stage::Paused;
            }
            (Control::Resume, Stage::Paused) => {
                self.stage = self.resume_to.take().unwrap_or(Stage::Freezing);
            }
            (Control::Cancel, Stage::Freezing | Stage::Running | Stage::Paused) => {
                self.stage = Stage::Cancelled;
                self.finished_at = Some(now);
            }
            (Control::Pause, Stage::Paused | Stage::Done | Stage::Cancelled) => return Err(wrong("pause")),
            (Control::Resume, Stage::Freezing | Stage::Running | Stage::Done | Stage::Cancelled) => {
                return Err(wrong("resume"));
            }
            (Control::Cancel, Stage::Done | Stage::Cancelled) => return Err(wrong("cancel")),
        }
        Ok(())
    }
}
