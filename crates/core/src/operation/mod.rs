//! Operations: durable bulk acts over a frozen set of dead letters; a redrive is the one that sends them back to
//! work. The members are fixed before the first one is touched, so what dies again meanwhile is not swept in, and
//! every step can be repeated. [`Operation`] is the whole machine, pure: a store shows it what was frozen, sent and
//! settled, in the commit in which that happened, and it says where the operation is.
//!
//! ```text
//!   freezing ──> canary ──> observing ──> ramping ──> running ──> settling ──> done
//!       └───────────┴────────────┴───────────┴────────────┘ resume
//!                        pause, or stops by itself ──> paused
//!   any of these ──> cancelled         any with something sent ──> undoing ──> undone
//! ```
//!
//! Stages that the [`Pace`] does not ask for are left out. Counters are the sum of the members' outcomes at every
//! commit (I36); what becomes of a message that was sent back is written when it settles, whatever the stage is by
//! then.

mod machine;
mod pace;
mod preview;
#[cfg(test)]
mod tests;

pub use machine::{Event, next_stage};
pub use pace::{Allowance, Bucket, Canary, Pace, check_rate};
pub use preview::{Destination, Part, Preview, PreviewRequest, Warning, WarningKind, token};

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
    /// Where an operation is.
    Stage, "stage", {
        /// Members are being written down.
        Freezing = "freezing",
        /// The first few are being sent.
        Canary = "canary",
        /// They are being looked at.
        Observing = "observing",
        /// Members are being acted upon, faster and faster.
        Ramping = "ramping",
        /// Members are being acted upon.
        Running = "running",
        /// All were sent; some have no outcome yet.
        Settling = "settling",
        /// Halted, by somebody or by itself.
        Paused = "paused",
        /// What was done is being taken back.
        Undoing = "undoing",
        /// Every member has an outcome.
        Done = "done",
        /// Stopped for good; what was done stays done.
        Cancelled = "cancelled",
        /// Taken back as far as possible.
        Undone = "undone",
    }
}

impl Stage {
    /// Whether steps move it on: somebody has to see to it.
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

    /// Whether nothing will move it any more.
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
    Why, "why", {
        /// Somebody said so.
        Operator = "operator",
        /// Too many came back with the failure they had.
        SameFailure = "same_failure",
        /// A breaker is open: the dependency is taken for down.
        BreakerOpen = "breaker_open",
    }
}

/// A halt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halt {
    /// Why.
    pub why: Why,
    /// Who.
    pub by: String,
    /// When.
    pub at: Time,
    /// The same in words, with the numbers.
    pub text: String,
}

/// What keeps an operation from going on for the moment; it tries again by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldUp {
    /// Since when, the last time it tried.
    pub at: Time,
    /// By what.
    pub text: String,
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
    /// How fast, how carefully.
    #[serde(default)]
    pub pace: Pace,
    /// What a preview of just this act, filter and bound gave; with it nothing else can be started.
    #[serde(default)]
    pub token: Option<String>,
}

impl OperationSpec {
    /// An operation as fast as it goes over all that match now.
    #[must_use]
    pub fn new(id: OperationId, act: Act, filter: Filter, actor: Actor) -> Self {
        Self { id, act, filter, bound: None, actor, pace: Pace::default(), token: None }
    }

    /// Refuses what is not done in bulk, and a pace that makes no sense.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming the field.
    pub fn check(&self) -> Result<(), Refusal> {
        self.actor.check()?;
        if !in_bulk(&self.act) {
            let why = format!("{} is not done in bulk; act on single letters", self.act.name());
            return Err(Refusal::invalid("act", why));
        }
        self.pace.check(&self.act)
    }
}

/// Whether an act is one for many letters.
#[must_use]
pub const fn in_bulk(act: &Act) -> bool {
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

/// The statuses from which an act is possible: letters of others are no members.
#[must_use]
pub fn possible_from(act: &Act) -> Vec<Status> {
    let anybody = MessageId::from_bytes([0; 16]);
    Status::ALL.iter().copied().filter(|status| act.next_status(anybody, *status).is_ok()).collect()
}

/// The act that takes one back, where that is possible.
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

/// How an operation is steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// Halt.
    Pause,
    /// Go on. After a halt because the failure came back, with a canary anew if there was one.
    Resume,
    /// Stop for good.
    Cancel,
    /// From now on so many per second; without a number, as fast as it goes.
    Rate(Option<u32>),
    /// Take back what has not been started, or has not been touched since.
    Undo,
}

impl Control {
    /// The verb in audit, CLI and API.
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
        /// Not acted upon yet.
        Waiting = "waiting",
        /// Sent back to work; no outcome yet.
        Running = "running",
        /// Acted upon; of a message that was sent back, done.
        Succeeded = "succeeded",
        /// Died again, of the failure it had.
        FailedSame = "failed_same",
        /// Died again, of another failure.
        FailedOther = "failed_other",
        /// Left alone: it changed since it was frozen, or did not allow the act.
        Skipped = "skipped",
        /// Left alone: another message has its key.
        Conflict = "conflict",
        /// Taken back.
        Undone = "undone",
    }
}

impl MemberOutcome {
    /// What an act that was done means for the member, and why where there is something to say. Only a redrive waits
    /// for the message to settle; any other act is over once it is done, even on a letter that is being retried.
    #[must_use]
    pub fn of_act(act: &Act, status: Option<Status>) -> (Self, Option<String>) {
        match (matches!(act, Act::Retry(_)), status == Some(Status::Retrying)) {
            (true, true) => (Self::Running, None),
            (true, false) => (Self::Succeeded, Some(ALREADY_DONE.to_owned())),
            (false, _) => (Self::Succeeded, None),
        }
    }

    /// What a refused act means for the member; nothing when it is to be tried again later.
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
            | Refusal::IsDrawer { .. }
            | Refusal::Invalid { .. }
            | Refusal::Damaged { .. }
            | Refusal::WrongStage { .. }
            | Refusal::WrongGroupStatus { .. }
            | Refusal::KvConflict { .. } => Some(Self::Skipped),
        }
    }
}

/// A reason short enough to be kept with a member.
#[must_use]
pub fn reason(why: &impl fmt::Display) -> String {
    let mut text = why.to_string();
    let end = (0..=limits::REASON_BYTES_MAX.min(text.len())).rfind(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text
}

/// Why a member whose letter is not where it was frozen is left alone.
pub const GONE: &str = "it is gone, or died again since it was frozen";

/// One letter of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The letter.
    pub id: MessageId,
    /// Its version when it was frozen; once it was acted upon, the version that made.
    pub version: u64,
    /// What became of it.
    pub outcome: MemberOutcome,
    /// Why, where there is something to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Member {
    /// A letter as it was frozen.
    #[must_use]
    pub const fn frozen(id: MessageId, version: u64) -> Self {
        Self { id, version, outcome: MemberOutcome::Waiting, why: None }
    }
}

/// Members by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcomes {
    /// Not acted upon yet.
    #[serde(default)]
    pub waiting: u64,
    /// Sent back to work; no outcome yet.
    #[serde(default)]
    pub running: u64,
    /// Acted upon, or done.
    #[serde(default)]
    pub succeeded: u64,
    /// Died again, of the failure they had.
    #[serde(default)]
    pub failed_same: u64,
    /// Died again, of another failure.
    #[serde(default)]
    pub failed_other: u64,
    /// Left alone.
    #[serde(default)]
    pub skipped: u64,
    /// Left alone, because another message has the key.
    #[serde(default)]
    pub conflict: u64,
    /// Taken back.
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
    /// The number of one kind.
    pub fn of(&mut self, outcome: MemberOutcome) -> &mut u64 {
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

    /// Moves one member.
    pub fn shift(&mut self, from: MemberOutcome, to: MemberOutcome) {
        let from = self.of(from);
        *from = from.saturating_sub(1);
        *self.of(to) += 1;
    }

    /// All members.
    #[must_use]
    pub const fn sum(&self) -> u64 {
        self.waiting + self.sent() + self.skipped + self.conflict
    }

    /// Those that were acted upon, whatever became of them.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.running + self.settled() + self.undone
    }

    /// Those that are done or died again.
    #[must_use]
    pub const fn settled(&self) -> u64 {
        self.succeeded + self.failed_same + self.failed_other
    }

    /// Those with an outcome.
    #[must_use]
    pub const fn ended(&self) -> u64 {
        self.settled() + self.skipped + self.conflict + self.undone
    }

    /// How many of a hundred that settled succeeded; nothing while none has.
    #[must_use]
    pub const fn success_percent(&self) -> Option<u64> {
        (self.succeeded * 100).checked_div(self.settled())
    }
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
    /// How fast, how carefully.
    #[serde(default)]
    pub pace: Pace,
    /// Where it is.
    pub stage: Stage,
    /// Where it was when it was paused.
    pub resume_to: Option<Stage>,
    /// Why it halted, while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt: Option<Halt>,
    /// What keeps it for the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_up: Option<HeldUp>,
    /// Only letters that died up to here.
    pub bound: u64,
    /// Deaths looked at while freezing.
    pub frozen_to: u64,
    /// Members up to this position were acted upon.
    #[serde(default)]
    pub ran_to: u64,
    /// Letters in it.
    pub members: u64,
    /// What became of them.
    #[serde(flatten)]
    pub outcomes: Outcomes,
    /// When the present stage began.
    #[serde(default)]
    pub since: Time,
    /// The canary ends with so many sent.
    #[serde(default)]
    pub canary_to: u64,
    /// What had settled, and come back the same, when it was last resumed: what comes back is judged from there.
    #[serde(default)]
    pub judged_from: (u64, u64),
    /// What the rate has left over.
    #[serde(default)]
    pub bucket: Bucket,
    /// Who takes it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_by: Option<Actor>,
    /// Members up to this position were taken back, if that was possible.
    #[serde(default)]
    pub undone_to: u64,
    /// When it was started.
    pub created_at: Time,
    /// When it ended.
    pub finished_at: Option<Time>,
    /// A step makes sense after this; only a person moves it when there is nothing. Said by steps, not kept.
    #[serde(default, rename = "next_in_ms", skip_serializing_if = "Option::is_none")]
    pub next_in: Option<Span>,
}
