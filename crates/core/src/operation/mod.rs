//! Operations: durable bulk acts on a fixed set of dead letters. A redrive is the operation that sends letters back
//! to their queues.
//!
//! The members of an operation are frozen (written down) before the first of them is touched. A letter that dies
//! while the operation runs is therefore never swept in, and every step can safely be repeated. [`Operation`] is a
//! pure state machine: in the same commit in which it freezes, sends or settles members, a store records that here,
//! and the operation derives its stage from it.
//!
//! ```text
//!   freezing ──> canary ──> observing ──> ramping ──> running ──> settling ──> done
//!       └───────────┴────────────┴───────────┴────────────┘
//!   any of these ── pause, or automatic halt ──> paused ── resume ──> the stage before
//!   any of these, or paused ── cancel ──> cancelled
//!   any stage after freezing, also done and cancelled ── undo ──> undoing ──> undone
//! ```
//!
//! Stages that the [`Rollout`] does not ask for are skipped. At every commit the counters are the sum of the members'
//! outcomes (I36). The outcome of a redriven message is recorded when the message settles, whichever stage the
//! operation is in by then.

mod machine;
mod preview;
mod rollout;
#[cfg(test)]
mod tests;

pub use machine::{Event, next_stage};
pub use preview::{BreakdownEntry, Destination, Preview, PreviewRequest, Warning, WarningKind, token};
pub use rollout::{Allowance, Bucket, Canary, Rollout, check_rate};

use crate::dead_letter::{ALREADY_DONE, Act, Actor, Status};
use crate::error::Refusal;
use crate::failure::named;
use crate::filter::Filter;
use crate::ids::{MessageId, OperationId};
use crate::limits;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

named! {
    /// How far an operation has come.
    Stage, "stage", {
        /// The members are being selected and written down.
        Freezing = "freezing",
        /// The first few members are being sent.
        Canary = "canary",
        /// The canary was sent; the operation waits for its outcomes.
        Observing = "observing",
        /// Members are being acted on, at a rising rate.
        Ramping = "ramping",
        /// Members are being acted on, at the full rate.
        Running = "running",
        /// Every member was acted on; some have no outcome yet.
        Settling = "settling",
        /// Halted, by an operator or by the operation itself.
        Paused = "paused",
        /// The members that were acted on are being undone.
        Undoing = "undoing",
        /// Every member has an outcome.
        Done = "done",
        /// Stopped for good; members that were acted on stay as they are.
        Cancelled = "cancelled",
        /// Undone as far as possible.
        Undone = "undone",
    }
}

impl Stage {
    /// Whether the operation needs further steps to make progress.
    #[must_use]
    pub const fn is_moving(self) -> bool {
        match self {
            Self::Freezing
            | Self::Canary
            | Self::Observing
            | Self::Ramping
            | Self::Running
            | Self::Undoing => true,
            Self::Settling | Self::Paused | Self::Done | Self::Cancelled | Self::Undone => false,
        }
    }

    /// Whether the operation has ended. Only an undo can set it in motion again.
    #[must_use]
    pub const fn is_over(self) -> bool {
        match self {
            Self::Done | Self::Cancelled | Self::Undone => true,
            Self::Freezing
            | Self::Canary
            | Self::Observing
            | Self::Ramping
            | Self::Running
            | Self::Settling
            | Self::Paused
            | Self::Undoing => false,
        }
    }
}

named! {
    /// Why an operation halted.
    HaltReason, "halt reason", {
        /// An operator paused it.
        Operator = "operator",
        /// Too many members died again of the failure they had before.
        SameFailure = "same_failure",
        /// A breaker is open: the dependency that the members need is considered down.
        BreakerOpen = "breaker_open",
    }
}

/// A halt: why, by whom and when an operation was paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halt {
    /// What caused the halt.
    #[serde(rename = "why")]
    pub reason: HaltReason,
    /// The operator who paused it, or `system`.
    pub by: String,
    /// When it halted.
    pub at: Time,
    /// The cause in words, with the numbers; for a pause, the reason that the operator gave.
    pub text: String,
}

/// A temporary obstacle, such as a full queue. The operation tries again by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delayed {
    /// When the operation last ran into it.
    pub at: Time,
    /// A description of the obstacle.
    pub text: String,
}

/// The request to start an operation: what to do, to which letters, and on whose behalf.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationSpec {
    /// Chosen by the caller. Starting an operation twice with the same id starts it once.
    pub id: OperationId,
    /// The act to perform on every member.
    pub act: Act,
    /// Selects the members.
    pub filter: Filter,
    /// Only letters whose death number is at most this become members, usually [`Preview::bound`]. Defaults to every
    /// letter that is dead when the operation starts.
    #[serde(default)]
    pub bound: Option<u64>,
    /// Who starts it, and why.
    pub actor: Actor,
    /// How fast it runs, and when it halts by itself.
    #[serde(default, rename = "pace")]
    pub rollout: Rollout,
    /// The token from a preview. With it, the start is refused unless act, filter and bound are those of the preview.
    #[serde(default)]
    pub token: Option<String>,
}

impl OperationSpec {
    /// An operation without limits on its speed, over all letters that match now.
    #[must_use]
    pub fn new(id: OperationId, act: Act, filter: Filter, actor: Actor) -> Self {
        Self { id, act, filter, bound: None, actor, rollout: Rollout::default(), token: None }
    }

    /// Checks that the act can be done in bulk and that the rollout makes sense for it.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming the field.
    pub fn check(&self) -> Result<(), Refusal> {
        self.actor.check()?;
        if !is_bulk(&self.act) {
            let reason = format!("{} cannot be done in bulk; act on the single letters", self.act.name());
            return Err(Refusal::invalid("act", reason));
        }
        self.rollout.check(&self.act)
    }
}

/// Whether an act can be performed on many letters at once.
#[must_use]
pub const fn is_bulk(act: &Act) -> bool {
    match act {
        Act::Retry(_)
        | Act::Review
        | Act::Quarantine { .. }
        | Act::Release
        | Act::Resolve
        | Act::Abandon
        | Act::Reopen
        | Act::Purge
        | Act::Unpurge
        | Act::Move { .. }
        | Act::Hold { .. }
        | Act::Snooze { .. }
        | Act::Assign { .. }
        | Act::Label { .. }
        | Act::Patch(_)
        | Act::Restore { .. }
        | Act::Erase => true,
        Act::Note | Act::PullBack | Act::Edit(_) => false,
    }
}

/// The statuses from which an act is possible. Letters with another status do not become members.
#[must_use]
pub fn possible_from(act: &Act) -> Vec<Status> {
    let any_id = MessageId::from_bytes([0; 16]);
    Status::ALL.iter().copied().filter(|status| act.next_status(any_id, *status).is_ok()).collect()
}

/// The act that undoes `act`, or `None` if it cannot be undone.
#[must_use]
pub const fn reverse(act: &Act) -> Option<Act> {
    match act {
        Act::Retry(_) => Some(Act::PullBack),
        Act::Resolve | Act::Abandon => Some(Act::Reopen),
        Act::Purge => Some(Act::Unpurge),
        Act::Review
        | Act::Quarantine { .. }
        | Act::Release
        | Act::Reopen
        | Act::Note
        | Act::Unpurge
        | Act::PullBack
        | Act::Move { .. }
        | Act::Hold { .. }
        | Act::Snooze { .. }
        | Act::Assign { .. }
        | Act::Label { .. }
        | Act::Edit(_)
        | Act::Patch(_)
        | Act::Restore { .. }
        | Act::Erase => None,
    }
}

/// A command of an operator to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// Halt until it is resumed.
    Pause,
    /// Continue. If the operation halted because the failure came back, a canary is sent again, if it had one.
    Resume,
    /// Stop for good.
    Cancel,
    /// Change the rate to this many members per second; `None` removes the limit.
    Rate(Option<u32>),
    /// Undo the members without a counted attempt since the redrive that nobody has changed since.
    Undo,
}

impl Control {
    /// The verb in the audit trail, the CLI and the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
            Self::Rate(_) => "rate",
            Self::Undo => "undo",
        }
    }
}

named! {
    /// What became of one member.
    MemberOutcome, "outcome", {
        /// Not acted on yet.
        Waiting = "waiting",
        /// Sent back to its queue; not settled yet.
        Running = "running",
        /// The act was performed; for a redriven message, it was completed.
        Succeeded = "succeeded",
        /// Died again, of the failure it had before.
        FailedSame = "failed_same",
        /// Died again, of another failure.
        FailedOther = "failed_other",
        /// Left alone: it changed since it was frozen, or its status does not allow the act.
        Skipped = "skipped",
        /// Left alone: another message has its idempotency key.
        Conflict = "conflict",
        /// Undone.
        Undone = "undone",
    }
}

impl MemberOutcome {
    /// The outcome of a member on which the act succeeded, with an explanation if there is one. Only a redrive waits
    /// for the message to settle; any other act is over once it is performed, even on a letter that is being retried.
    #[must_use]
    pub fn of_act(act: &Act, status: Option<Status>) -> (Self, Option<String>) {
        match (matches!(act, Act::Retry(_)), status == Some(Status::Retrying)) {
            (true, true) => (Self::Running, None),
            (true, false) => (Self::Succeeded, Some(ALREADY_DONE.to_owned())),
            (false, _) => (Self::Succeeded, None),
        }
    }

    /// The outcome of a member on which the act was refused, or `None` if it should be tried again later.
    #[must_use]
    pub const fn of_refusal(refusal: &Refusal) -> Option<Self> {
        match refusal {
            Refusal::QueueFull { .. } => None,
            Refusal::KeyConflict { .. } | Refusal::KeyInUse { .. } | Refusal::IdConflict { .. } => {
                Some(Self::Conflict)
            }
            Refusal::NoSuchMessage { .. }
            | Refusal::NoSuchLetter { .. }
            | Refusal::NoSuchQueue { .. }
            | Refusal::NoSuchGroup { .. }
            | Refusal::NoSuchOperation { .. }
            | Refusal::StaleToken { .. }
            | Refusal::LeaseExpired { .. }
            | Refusal::WrongState { .. }
            | Refusal::WrongStatus { .. }
            | Refusal::LetterLeased { .. }
            | Refusal::VersionConflict { .. }
            | Refusal::RedrivenTooOften { .. }
            | Refusal::Erased { .. }
            | Refusal::PatchFailed { .. }
            | Refusal::NoChange { .. }
            | Refusal::IsDlq { .. }
            | Refusal::Invalid { .. }
            | Refusal::Damaged { .. }
            | Refusal::WrongStage { .. }
            | Refusal::WrongGroupStatus { .. }
            | Refusal::NotAllowed { .. }
            | Refusal::RequestConflict { .. }
            | Refusal::KvConflict { .. } => Some(Self::Skipped),
        }
    }
}

/// The text of a reason, cut to the length that is kept with a member.
#[must_use]
pub fn short_reason(reason: &impl fmt::Display) -> String {
    let mut text = reason.to_string();
    let end = (0..=limits::REASON_BYTES_MAX.min(text.len())).rfind(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text
}

/// The reason for skipping a member whose letter is no longer the one that was frozen.
pub const GONE: &str = "it is gone, or died again since it was frozen";

/// One letter of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The id of the letter.
    pub id: MessageId,
    /// The version of the letter when it was frozen; after the act, the version that the act produced.
    pub version: u64,
    /// What became of it.
    pub outcome: MemberOutcome,
    /// An explanation of the outcome, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Member {
    /// A member that was just frozen.
    #[must_use]
    pub const fn frozen(id: MessageId, version: u64) -> Self {
        Self { id, version, outcome: MemberOutcome::Waiting, why: None }
    }
}

/// The number of members with each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcomes {
    /// Not acted on yet.
    #[serde(default)]
    pub waiting: u64,
    /// Sent back to their queues; not settled yet.
    #[serde(default)]
    pub running: u64,
    /// The act was performed; redriven messages were completed.
    #[serde(default)]
    pub succeeded: u64,
    /// Died again, of the failure they had before.
    #[serde(default)]
    pub failed_same: u64,
    /// Died again, of another failure.
    #[serde(default)]
    pub failed_other: u64,
    /// Left alone.
    #[serde(default)]
    pub skipped: u64,
    /// Left alone because another message has their key.
    #[serde(default)]
    pub conflict: u64,
    /// Undone.
    #[serde(default)]
    pub undone: u64,
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { waiting, running, succeeded, failed_same, failed_other, skipped, conflict, undone } = self;
        write!(
            f,
            "{waiting} waiting, {running} running, {succeeded} succeeded, {failed_same} failed the same way, "
        )?;
        write!(
            f,
            "{failed_other} failed otherwise, {skipped} skipped, {conflict} in conflict, {undone} undone"
        )
    }
}

impl Outcomes {
    /// The counter of one outcome.
    pub fn count_mut(&mut self, outcome: MemberOutcome) -> &mut u64 {
        match outcome {
            MemberOutcome::Waiting => &mut self.waiting,
            MemberOutcome::Running => &mut self.running,
            MemberOutcome::Succeeded => &mut self.succeeded,
            MemberOutcome::FailedSame => &mut self.failed_same,
            MemberOutcome::FailedOther => &mut self.failed_other,
            MemberOutcome::Skipped => &mut self.skipped,
            MemberOutcome::Conflict => &mut self.conflict,
            MemberOutcome::Undone => &mut self.undone,
        }
    }

    /// Moves one member from one outcome to another.
    pub fn shift(&mut self, from: MemberOutcome, to: MemberOutcome) {
        let from = self.count_mut(from);
        *from = from.saturating_sub(1);
        *self.count_mut(to) += 1;
    }

    /// The number of members.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.waiting + self.sent() + self.skipped + self.conflict
    }

    /// Members that were acted on, whatever became of them.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.running + self.settled() + self.undone
    }

    /// Members that succeeded or died again.
    #[must_use]
    pub const fn settled(&self) -> u64 {
        self.succeeded + self.failed_same + self.failed_other
    }

    /// Members with a final outcome.
    #[must_use]
    pub const fn ended(&self) -> u64 {
        self.settled() + self.skipped + self.conflict + self.undone
    }

    /// The percentage of settled members that succeeded, or `None` while none has settled.
    #[must_use]
    pub const fn success_percent(&self) -> Option<u64> {
        (self.succeeded * 100).checked_div(self.settled())
    }
}

/// The durable state of an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// The id of the operation.
    pub id: OperationId,
    /// The act performed on every member.
    pub act: Act,
    /// The filter that selected the members.
    pub filter: Filter,
    /// Who started it, and why.
    pub actor: Actor,
    /// How fast it runs, and when it halts by itself.
    #[serde(default, rename = "pace")]
    pub rollout: Rollout,
    /// How far it has come.
    pub stage: Stage,
    /// While it is paused, the stage to return to.
    pub resume_to: Option<Stage>,
    /// While it is paused, why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt: Option<Halt>,
    /// The obstacle it ran into last, until a member gets through again.
    #[serde(default, rename = "held_up", skip_serializing_if = "Option::is_none")]
    pub delayed: Option<Delayed>,
    /// Only letters whose death number is at most this are members.
    pub bound: u64,
    /// The death number up to which letters were examined while freezing.
    pub frozen_to: u64,
    /// The position up to which members were acted on.
    #[serde(default)]
    pub ran_to: u64,
    /// The number of members.
    pub members: u64,
    /// The number of members with each outcome.
    #[serde(flatten)]
    pub outcomes: Outcomes,
    /// When the current stage began.
    #[serde(default)]
    pub since: Time,
    /// The canary is complete once this many members were sent.
    #[serde(default)]
    pub canary_to: u64,
    /// The baseline of the automatic halt, taken at the last resume after one: the number of settled members, and how
    /// many of them had died of the same failure. Only what is added to it can halt the operation again.
    #[serde(default)]
    pub judged_from: (u64, u64),
    /// What the rate limit has left over.
    #[serde(default)]
    pub bucket: Bucket,
    /// Who undoes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_by: Option<Actor>,
    /// The position up to which members were undone, as far as possible.
    #[serde(default)]
    pub undone_to: u64,
    /// When it was started.
    pub created_at: Time,
    /// When it ended.
    pub finished_at: Option<Time>,
    /// How long to wait before the next step; `None` if only an operator can move it. Filled in by the reply to a
    /// step and never stored.
    #[serde(default, rename = "next_in_ms", skip_serializing_if = "Option::is_none")]
    pub next_in: Option<Span>,
}
