//! The history of a letter, recorded on the letter itself: each death and each act, with actor and reason. The
//! timeline is built from this history; the audit trail proves acts to auditors and may be trimmed. The history
//! is bounded: the first and the last events are kept, those in between are counted.

use super::{Act, ActRequest, LetterRecord, Status, TimelineEntry, TimelineEvent};
use crate::error::Refusal;
use crate::ids::{OperationId, QueueName};
use crate::limits::{LETTER_EVENTS_FIRST, LETTER_EVENTS_LAST};
use crate::time::Time;

/// Events kept on one letter.
const KEPT: usize = LETTER_EVENTS_FIRST + LETTER_EVENTS_LAST;

impl Act {
    /// The event that is recorded for this act.
    const fn event(&self) -> TimelineEvent {
        match self {
            Self::Retry(_) => TimelineEvent::Redriven,
            Self::Review => TimelineEvent::ReviewRequested,
            Self::Quarantine { .. } => TimelineEvent::Quarantined,
            Self::Release => TimelineEvent::Released,
            Self::Resolve | Self::Abandon => TimelineEvent::Closed,
            Self::Reopen => TimelineEvent::Reopened,
            Self::Note => TimelineEvent::Noted,
            Self::Purge => TimelineEvent::Purged,
            Self::Unpurge => TimelineEvent::Unpurged,
            Self::PullBack => TimelineEvent::PulledBack,
            Self::Move { .. } => TimelineEvent::Moved,
            Self::Hold { on: true } => TimelineEvent::Held,
            Self::Hold { on: false } => TimelineEvent::Unheld,
            Self::Snooze { .. } => TimelineEvent::Snoozed,
            Self::Assign { .. } => TimelineEvent::Assigned,
            Self::Label { .. } => TimelineEvent::Labelled,
            Self::Edit(_) | Self::Patch(_) | Self::Restore { .. } => TimelineEvent::Edited,
            Self::Erase => TimelineEvent::Erased,
        }
    }
}

impl LetterRecord {
    /// Records an event.
    pub(crate) fn record(&mut self, event: TimelineEntry) {
        self.history.push(event);
        self.trim_history();
    }

    fn trim_history(&mut self) {
        while self.history.len() > KEPT {
            self.history.remove(LETTER_EVENTS_FIRST);
            self.history_omitted = self.history_omitted.saturating_add(1);
        }
    }

    /// Records the death that this record describes, in the queue where it happened.
    pub(super) fn record_death(&mut self, queue: &QueueName, generation: u32) {
        let Self { reason, dlq, redrives, .. } = &*self;
        let then = match (self.status, self.quarantined_until) {
            (Status::Quarantined, Some(until)) => format!(", quarantined until {until}"),
            (Status::Review, _) => format!(", for review because it was sent back {redrives} times"),
            (_, _) => String::new(),
        };
        let died = TimelineEntry::new(self.dead_at, TimelineEvent::Died)
            .with_detail(format!("{reason} in queue {queue}, into dead letter queue {dlq}{then}"));
        self.record(TimelineEntry { generation: Some(generation), ..died });
    }

    /// Records the act that turned the record `before` into this one.
    pub(crate) fn record_act(&mut self, before: &Self, request: &ActRequest, now: Time) {
        let ActRequest { act, actor, .. } = request;
        let act_detail = act.detail();
        let reason = actor.reason.as_deref();
        let detail = match act {
            Act::Note => reason.unwrap_or_default().to_owned(),
            Act::Resolve | Act::Abandon => self.status.to_string(),
            Act::Release => format!("from {} to {}", before.status, self.status),
            Act::Move { dlq } => format!("from dead letter queue {} to {dlq}", before.dlq),
            Act::Edit(_) | Act::Patch(_) | Act::Restore { .. } => {
                let more = act_detail.map(|detail| format!(", {detail}")).unwrap_or_default();
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
            | Act::Label { .. } => act_detail.unwrap_or_default(),
        };
        let why = reason.filter(|_| *act != Act::Note);
        let event =
            TimelineEntry::new(now, act.event()).by(Some(&actor.name)).with_detail(detail).with_reason(why);
        self.record(event);
    }

    /// Attributes the last recorded event to an operation.
    pub fn set_operation(&mut self, operation: Option<OperationId>) {
        if let Some(event) = self.history.last_mut() {
            event.operation = operation;
        }
    }

    /// Adds the events of an older record of the same message that this record lacks.
    pub fn merge_history(&mut self, older: &Self) {
        let missing: Vec<TimelineEntry> =
            older.history.iter().filter(|event| !self.history.contains(event)).cloned().collect();
        self.history.extend(missing);
        self.history.sort_by_key(|event| event.at);
        self.history_omitted = self.history_omitted.max(older.history_omitted);
        self.trim_history();
    }

    /// Refuses a history that is longer than any store would keep.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] if there are too many events.
    pub fn check_history(&self) -> Result<(), Refusal> {
        let events = self.history.len();
        if events > KEPT {
            return Err(Refusal::invalid("history", format!("{events} events; at most {KEPT} are kept")));
        }
        Ok(())
    }
}
