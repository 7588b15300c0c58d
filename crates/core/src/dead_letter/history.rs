//! What is recorded of a letter's life, on the letter itself: each death and each act, with who and why. This is the
//! one authority for the timeline; the audit trail proves acts to auditors and may be trimmed. Bounded: the first
//! and the last events are kept, those in between are counted. It records and tells nothing.

use super::{Act, ActRequest, File, Happening, Moment, Status};
use crate::error::Refusal;
use crate::ids::{OperationId, QueueName};
use crate::limits::{LETTER_EVENTS_FIRST, LETTER_EVENTS_LAST};
use crate::time::Time;

/// Events kept on one letter.
const KEPT: usize = LETTER_EVENTS_FIRST + LETTER_EVENTS_LAST;

impl Act {
    /// What is recorded of it.
    const fn happening(&self) -> Happening {
        match self {
            Self::Retry(_) => Happening::Redriven,
            Self::Review => Happening::ReviewRequested,
            Self::Quarantine { .. } => Happening::Quarantined,
            Self::Release => Happening::Released,
            Self::Resolve | Self::Abandon => Happening::Closed,
            Self::Reopen => Happening::Reopened,
            Self::Note => Happening::Noted,
            Self::Purge => Happening::Purged,
            Self::Unpurge => Happening::Unpurged,
            Self::PullBack => Happening::PulledBack,
            Self::Move { .. } => Happening::Moved,
            Self::Hold { on: true } => Happening::Held,
            Self::Hold { on: false } => Happening::Unheld,
            Self::Snooze { .. } => Happening::Snoozed,
            Self::Assign { .. } => Happening::Assigned,
            Self::Label { .. } => Happening::Labelled,
            Self::Edit(_) | Self::Patch(_) | Self::Restore { .. } => Happening::Edited,
            Self::Erase => Happening::Erased,
        }
    }
}

impl File {
    /// Records one event.
    pub(crate) fn record(&mut self, event: Moment) {
        self.history.push(event);
        self.forget_the_middle();
    }

    fn forget_the_middle(&mut self) {
        while self.history.len() > KEPT {
            self.history.remove(LETTER_EVENTS_FIRST);
            self.history_omitted = self.history_omitted.saturating_add(1);
        }
    }

    /// Records the death that this file is of, in the queue where it happened.
    pub(super) fn record_death(&mut self, queue: &QueueName, generation: u32) {
        let Self { reason, dlq, redrives, .. } = &*self;
        let then = match (self.status, self.quarantined_until) {
            (Status::Quarantined, Some(until)) => format!(", quarantined until {until}"),
            (Status::Review, _) => format!(", for review because it was sent back {redrives} times"),
            (_, _) => String::new(),
        };
        let died = Moment::new(self.dead_at, Happening::Died)
            .saying(format!("{reason} in queue {queue}, into dead letter queue {dlq}{then}"));
        self.record(Moment { generation: Some(generation), ..died });
    }

    /// Records an act that made this file out of the one before.
    pub(crate) fn record_act(&mut self, before: &Self, request: &ActRequest, now: Time) {
        let ActRequest { act, actor, .. } = request;
        let said = act.detail();
        let reason = actor.reason.as_deref();
        let detail = match act {
            Act::Note => reason.unwrap_or_default().to_owned(),
            Act::Resolve | Act::Abandon => self.status.to_string(),
            Act::Release => format!("from {} to {}", before.status, self.status),
            Act::Move { dlq } => format!("from dead letter queue {} to {dlq}", before.dlq),
            Act::Edit(_) | Act::Patch(_) | Act::Restore { .. } => {
                let more = said.map(|said| format!(", {said}")).unwrap_or_default();
                format!("revision {}{more}", self.revision())
            }
            Act::Erase => {
                let bytes = self.erased.as_ref().map_or(0, |erased| erased.bytes);
                format!("{bytes} bytes")
            }
            Act::Retry(_)
            | Act::Review
            | Act::Quarantine { .. }
            | Act::Reopen
            | Act::Purge
            | Act::Unpurge
            | Act::PullBack
            | Act::Hold { .. }
            | Act::Snooze { .. }
            | Act::Assign { .. }
            | Act::Label { .. } => said.unwrap_or_default(),
        };
        let why = reason.filter(|_| *act != Act::Note);
        let event = Moment::new(now, act.happening()).by(Some(&actor.name)).saying(detail).because(why);
        self.record(event);
    }

    /// Says that an operation did what was recorded last.
    pub fn done_by(&mut self, operation: Option<OperationId>) {
        if let Some(event) = self.history.last_mut() {
            event.operation = operation;
        }
    }

    /// Takes over what an older file of the same message has on record and this one does not.
    pub fn take_over_history(&mut self, older: &Self) {
        let missing: Vec<Moment> =
            older.history.iter().filter(|event| !self.history.contains(event)).cloned().collect();
        self.history.extend(missing);
        self.history.sort_by_key(|event| event.at);
        self.history_omitted = self.history_omitted.max(older.history_omitted);
        self.forget_the_middle();
    }

    /// Refuses a history that is longer than any store would keep.
    ///
    /// # Errors
    /// [`Refusal::Invalid`].
    pub fn check_history(&self) -> Result<(), Refusal> {
        let events = self.history.len();
        if events > KEPT {
            return Err(Refusal::invalid("history", format!("{events} events; at most {KEPT} are kept")));
        }
        Ok(())
    }
}
