//! The timeline of a letter, oldest event first, built from what the letter carries: the kept failures and the
//! recorded deaths and acts. The other fields of the record only add what an older format did not record. Pure.
//! The audit trail is not read, so the timeline is complete even after the trail was trimmed.

use super::DeadLetter;
use crate::failure::{Failure, named};
use crate::ids::OperationId;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

named! {
    /// An event in the life of a letter.
    TimelineEvent, "moment", {
        /// The message was accepted.
        Enqueued = "enqueued",
        /// The message was leased for the first time.
        FirstLeased = "first_leased",
        /// A worker started an attempt that failed.
        Started = "started",
        /// An attempt failed.
        Failed = "failed",
        /// Stands for failures, deaths or acts that are counted, not kept.
        Omitted = "omitted",
        /// The message died.
        Died = "died",
        /// An operator added a note.
        Noted = "noted",
        /// An operator changed the content.
        Edited = "edited",
        /// An operator erased the content.
        Erased = "erased",
        /// A review was requested.
        ReviewRequested = "review_requested",
        /// The review ended.
        Reviewed = "reviewed",
        /// The letter was redriven.
        Redriven = "redriven",
        /// The redrive was undone before an attempt counted.
        PulledBack = "pulled_back",
        /// The letter was closed: resolved, abandoned, or retried with success.
        Closed = "closed",
        /// The letter was opened again.
        Reopened = "reopened",
        /// The letter was put in quarantine.
        Quarantined = "quarantined",
        /// The letter left quarantine or review.
        Released = "released",
        /// The letter was moved to another dead letter queue.
        Moved = "moved",
        /// The letter was hidden from consumers and automatic redrives for a while.
        Snoozed = "snoozed",
        /// An operator holds the letter.
        Held = "held",
        /// The hold was released.
        Unheld = "unheld",
        /// The letter was assigned to an owner, or to nobody.
        Assigned = "assigned",
        /// The labels were changed.
        Labelled = "labelled",
        /// The letter was removed. The purge can be undone for a day.
        Purged = "purged",
        /// The purge was undone.
        Unpurged = "unpurged",
        /// A dead letter consumer failed on the letter.
        ConsumerFailed = "consumer_failed",
        /// The message becomes ready.
        Ready = "ready",
        /// The quarantine ends.
        QuarantineEnds = "quarantine_ends",
        /// The snooze ends.
        SnoozeEnds = "snooze_ends",
        /// Retention removes the letter.
        Expires = "expires",
    }
}

/// One event on the timeline of a letter. Some lie in the future.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEntry {
    /// When it happens.
    pub at: Time,
    /// The event.
    pub what: TimelineEvent,
    /// The generation, for attempts and deaths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// The number of the execution within the generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The worker or operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The wait before the event, or the duration of the attempt.
    #[serde(default, rename = "took_ms", skip_serializing_if = "Option::is_none")]
    pub took: Option<Span>,
    /// Further details.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The reason, in the actor's own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The operation that caused the event. `None` if no operation did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationId>,
}

impl TimelineEntry {
    /// An entry without details.
    #[must_use]
    pub const fn new(at: Time, what: TimelineEvent) -> Self {
        let (generation, attempt, by, took, why, operation) = (None, None, None, None, None, None);
        Self { at, what, generation, attempt, by, took, detail: String::new(), why, operation }
    }

    /// Sets the worker or operator.
    #[must_use]
    pub fn by(self, actor: Option<&str>) -> Self {
        Self { by: actor.map(str::to_owned), ..self }
    }

    /// Sets the details.
    #[must_use]
    pub fn with_detail(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }

    /// Sets the reason.
    #[must_use]
    pub fn with_reason(self, why: Option<&str>) -> Self {
        Self { why: why.map(str::to_owned), ..self }
    }

    fn of(self, failure: &Failure) -> Self {
        let (generation, attempt) = (Some(failure.generation), Some(failure.attempt));
        Self { generation, attempt, ..self }.by(failure.worker.as_deref())
    }
}

/// Entries with a key that orders those of the same time: the attempts of a generation come after the redrive
/// that started it and before the death that ended it.
type Ordered = Vec<(u32, TimelineEntry)>;

/// The key of a generation's attempts. Its death and the acts after it come next.
const fn attempts_of(generation: u32) -> u32 {
    generation.saturating_mul(2)
}

/// The key of entries that come after everything recorded at the same time.
const LAST: u32 = u32::MAX;

impl DeadLetter {
    /// Everything that is known to have happened, oldest first, followed by what is still to come.
    #[must_use]
    pub fn timeline(&self) -> Vec<TimelineEntry> {
        let (message, record) = (&self.message, &self.record);
        let envelope = &message.envelope;
        let enqueued = TimelineEntry::new(envelope.enqueued_at, TimelineEvent::Enqueued)
            .by(envelope.enqueued_by.as_deref())
            .with_detail(format!("to queue {}", envelope.home()));
        let mut all: Ordered = vec![(0, enqueued)];
        if let Some(at) = message.first_received_at {
            let waited = Some(at.since(envelope.enqueued_at));
            all.push((
                0,
                TimelineEntry { took: waited, ..TimelineEntry::new(at, TimelineEvent::FirstLeased) },
            ));
        }
        self.attempts(&mut all);
        self.recorded_events(&mut all);
        self.unrecorded_events(&mut all);
        let ready = (record.status == super::Status::Retrying).then_some(message.ready_at);
        let reviewed = TimelineEntry::new(record.reviewed_at.unwrap_or_default(), TimelineEvent::Reviewed);
        all.extend(record.reviewed_at.map(|_| (LAST, reviewed.by(record.reviewed_by.as_deref()))));
        for (at, what) in [
            (ready, TimelineEvent::Ready),
            (record.quarantined_until, TimelineEvent::QuarantineEnds),
            (record.snoozed_until, TimelineEvent::SnoozeEnds),
            (record.expires_at, TimelineEvent::Expires),
        ] {
            all.extend(at.map(|at| (LAST, TimelineEntry::new(at, what))));
        }
        // The sort is stable, so events recorded at one time keep their order.
        all.sort_by_key(|(order, entry)| (entry.at, *order));
        all.into_iter().map(|(_, entry)| entry).collect()
    }

    fn attempts(&self, all: &mut Ordered) {
        let failures = &self.message.failures;
        let kept = u32::try_from(failures.len()).unwrap_or(u32::MAX);
        let omitted = self.message.failed.saturating_sub(kept);
        for (n, failure) in (0_u32..).zip(failures) {
            let order = attempts_of(failure.generation);
            if omitted > 0 && n == crate::limits::HISTORY_EDGE {
                let more = format!("{omitted} more failures are counted, not kept");
                all.push((order, TimelineEntry::new(failure.at, TimelineEvent::Omitted).with_detail(more)));
            }
            let error = &failure.error;
            let code = error.code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
            if let Some(took) = failure.duration.filter(|_| failure.attempt > 0) {
                all.push((
                    order,
                    TimelineEntry::new(failure.at.minus(took), TimelineEvent::Started).of(failure),
                ));
            }
            let failed = TimelineEntry {
                took: failure.duration,
                ..TimelineEntry::new(failure.at, TimelineEvent::Failed)
            };
            let detail = format!("{}: {}{code}", error.error_type, error.message);
            all.push((order, failed.of(failure).with_detail(detail)));
        }
    }

    /// Adds the recorded deaths and acts, and the number of those that are not kept.
    fn recorded_events(&self, all: &mut Ordered) {
        let mut order = attempts_of(1);
        for (n, event) in self.record.history.iter().enumerate() {
            if event.what == TimelineEvent::Died {
                order = attempts_of(event.generation.unwrap_or(1)).saturating_add(1);
            }
            if n == crate::limits::LETTER_EVENTS_FIRST && self.record.history_omitted > 0 {
                let more =
                    format!("{} more deaths and acts are counted, not kept", self.record.history_omitted);
                all.push((order, TimelineEntry::new(event.at, TimelineEvent::Omitted).with_detail(more)));
            }
            all.push((order, event.clone()));
        }
    }

    /// Adds events that the fields of the record imply but its history lacks, because the letter is older than
    /// its history or that part of the history was dropped.
    fn unrecorded_events(&self, all: &mut Ordered) {
        let record = &self.record;
        let history = &record.history;
        let mut implied =
            vec![TimelineEntry::new(record.dead_at, TimelineEvent::Died).with_detail(record.reason.name())];
        for edit in &record.edits {
            let edited = TimelineEntry::new(edit.at, TimelineEvent::Edited).by(Some(&edit.by));
            implied
                .push(edited.with_detail(format!("revision {}", edit.n)).with_reason(edit.reason.as_deref()));
        }
        if let Some(erased) = &record.erased {
            let entry = TimelineEntry::new(erased.at, TimelineEvent::Erased).by(Some(&erased.by));
            implied.push(
                entry.with_detail(format!("{} bytes", erased.bytes)).with_reason(erased.reason.as_deref()),
            );
        }
        if let Some(redriven) = &record.redriven {
            let to = redriven.to.as_ref().map(|queue| format!("to queue {queue}")).unwrap_or_default();
            implied.push(
                TimelineEntry::new(redriven.at, TimelineEvent::Redriven)
                    .by(Some(&redriven.by))
                    .with_detail(to),
            );
        }
        let resolution = record.resolution.as_deref().unwrap_or("");
        for (at, what, by, detail) in [
            (record.review_requested_at, TimelineEvent::ReviewRequested, &record.review_requested_by, ""),
            (record.closed_at, TimelineEvent::Closed, &record.closed_by, resolution),
        ] {
            implied.extend(at.map(|at| TimelineEntry::new(at, what).by(by.as_deref()).with_detail(detail)));
        }
        let is_new =
            |entry: &TimelineEntry| !history.iter().any(|e| (e.at, e.what) == (entry.at, entry.what));
        all.extend(implied.into_iter().filter(is_new).map(|entry| (LAST, entry)));
        for note in &record.notes {
            let text = note.text.as_str();
            let recorded =
                |e: &TimelineEntry| e.at == note.at && (e.detail == text || e.why.as_deref() == Some(text));
            if !history.iter().any(recorded) {
                let noted = TimelineEntry::new(note.at, TimelineEvent::Noted).by(Some(&note.by));
                all.push((LAST, noted.with_detail(text)));
            }
        }
        let first = history.first();
        let from_the_start = first.is_some_and(|e| e.what == TimelineEvent::Died && e.generation == Some(1));
        if !from_the_start && record.version > 1 {
            let at = first.map_or(record.dead_at, |event| event.at);
            let more = "what was done to it before format 5 was not recorded on it; \
                        the audit trail may still have it";
            all.push((0, TimelineEntry::new(at, TimelineEvent::Omitted).with_detail(more)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letter::{Act, ActRequest, Actor, Captured, Note, RedriveRecord, Status};
    use crate::failure::{ErrorInfo, FailureReport, Reason};
    use crate::ids::MessageId;
    use crate::limits;
    use crate::message::{NewMessage, Payload};
    use crate::policy::QueuePolicy;

    const START: Time = Time::from_millis(1_000_000);

    fn at(seconds: u64) -> Time {
        START.plus(Span::from_secs(seconds))
    }

    fn letter(failed: u32) -> DeadLetter {
        let error = ErrorInfo { error_type: "E".into(), message: "it broke".into(), ..ErrorInfo::default() };
        let duration = Some(Span::from_secs(2));
        let last = FailureReport { error, duration, ..FailureReport::default() }.analyse();
        let failures = (1..=failed.min(20)).map(|n| {
            let failure = last.clone().into_failure(1, n, at(u64::from(n) * 10), Some("w".into()));
            Failure { duration, ..failure }
        });
        let message = NewMessage::new(MessageId::new(1, [1; 10]), "q".parse().unwrap(), Payload::default());
        let captured = Captured {
            message,
            began_at: START,
            attempts: failed,
            failed,
            failures: failures.collect(),
            last: last.clone(),
            dead_at: at(u64::from(failed.min(20)) * 10),
            reason: Reason::MaxAttempts,
            note: None,
        };
        captured.letter(&QueuePolicy::default())
    }

    #[test]
    fn the_timeline_is_in_order() {
        let mut letter = letter(2);
        letter.record.notes.push(Note { at: at(30), by: "ada".into(), text: "hm".into() });
        letter.record.redriven =
            Some(RedriveRecord { at: at(40), by: "ada".into(), to: Some("b".parse().unwrap()) });
        letter.record.status = Status::Retrying;
        letter.message.ready_at = at(60);
        let timeline: Vec<_> =
            letter.timeline().into_iter().map(|m| (m.at, m.what.name(), m.attempt)).collect();
        let expected = [
            (at(0), "enqueued", None),
            (at(0), "first_leased", None),
            (at(8), "started", Some(1)),
            (at(10), "failed", Some(1)),
            (at(18), "started", Some(2)),
            (at(20), "failed", Some(2)),
            (at(20), "died", None),
            (at(30), "noted", None),
            (at(40), "redriven", None),
            (at(60), "ready", None),
        ];
        assert_eq!(timeline, expected);
    }

    #[test]
    fn dropped_failures_are_reported_as_missing() {
        let mut letter = letter(50);
        let timeline = letter.timeline();
        let gap = timeline.iter().position(|m| m.what == TimelineEvent::Omitted).unwrap();
        assert_eq!(timeline[gap].detail, "30 more failures are counted, not kept");
        assert_eq!(timeline[..gap].iter().filter(|m| m.what == TimelineEvent::Failed).count(), 10);
        letter.record.closed_at = Some(at(900));
        letter.record.resolution = Some("fixed".into());
        letter.record.expires_at = Some(at(9_000));
        let timeline = letter.timeline();
        assert_eq!(timeline.last().map(|m| m.what), Some(TimelineEvent::Expires), "future events come last");
        assert!(timeline.iter().any(|m| m.what == TimelineEvent::Closed && m.detail == "fixed"));
    }

    fn ada(act: Act, reason: &str) -> ActRequest {
        let actor = Actor { reason: Some(reason.into()), ..Actor::new("ada", "cli") };
        ActRequest { id: MessageId::new(1, [1; 10]), act, actor, expected_version: None }
    }

    /// The letter after these acts, one each second from `from` on.
    fn acted(mut letter: DeadLetter, acts: &[(Act, &str)], from: u64) -> DeadLetter {
        for (n, (act, reason)) in (from..).zip(acts) {
            let request = ada(act.clone(), reason);
            letter.record =
                letter.record.act(letter.id(), &request, &QueuePolicy::default(), at(n)).expect("legal");
        }
        letter
    }

    #[test]
    fn each_act_appears_once_with_actor_and_reason() {
        let name = |name: &str| name.parse().expect("a name");
        let acts = [
            (Act::Move { dlq: name("b-dlq") }, "other team"),
            (Act::Quarantine { until: at(900) }, "not now"),
            (Act::Release, "now"),
            (Act::Review, "look"),
            (Act::Snooze { until: at(800) }, "later"),
            (Act::Note, "asked the bank"),
            (Act::Resolve, "fixed"),
            (Act::Reopen, "not fixed"),
            (Act::Abandon, "give up"),
        ];
        let letter = acted(letter(1), &acts, 100);
        let timeline: Vec<_> = letter.timeline().into_iter().filter(|m| m.at >= at(10)).collect();
        let timeline: Vec<_> = timeline
            .iter()
            .map(|m| (m.what.name(), m.detail.as_str(), m.by.as_deref(), m.why.as_deref()))
            .collect();
        let ada = Some("ada");
        let expected = [
            ("failed", "E: it broke", Some("w"), None),
            ("died", "max_attempts in queue q, into dead letter queue q-dlq", None, None),
            ("moved", "from dead letter queue q-dlq to b-dlq", ada, Some("other team")),
            ("quarantined", "until 1970-01-01T00:31:40.000Z", ada, Some("not now")),
            ("released", "from quarantined to pending", ada, Some("now")),
            ("review_requested", "", ada, Some("look")),
            ("snoozed", "until 1970-01-01T00:30:00.000Z", ada, Some("later")),
            ("noted", "asked the bank", ada, None),
            ("closed", "resolved", ada, Some("fixed")),
            ("reviewed", "", ada, None),
            ("reopened", "", ada, Some("not fixed")),
            ("closed", "abandoned", ada, Some("give up")),
            ("expires", "", None, None),
        ];
        assert_eq!(timeline, expected);
    }

    #[test]
    fn earlier_deaths_stay_and_attempts_come_between_redrive_and_death_at_one_instant() {
        let mut letter = acted(letter(1), &[(Act::retry(), "again")], 10);
        let operation = OperationId::new(MessageId::new(7, [7; 10]));
        letter.record.set_operation(Some(operation));
        let last = FailureReport::default().analyse();
        letter.message.failures.push(last.clone().into_failure(2, 1, at(10), None));
        letter.message.failed = 2;
        let record = NewMessage::new(letter.id(), "q".parse().unwrap(), Payload::default());
        let mut record = record.accept(&QueuePolicy::default(), 1, START);
        record.lifecycle.generation = 2;
        let policy = QueuePolicy { dlq: Some("other-dlq".parse().unwrap()), ..QueuePolicy::default() };
        let before = letter.record.clone();
        letter.record = crate::dead_letter::LetterRecord::of_death(
            &record,
            &record.lifecycle,
            &policy,
            &last,
            Reason::Permanent,
            Some(&before),
            at(10),
        );
        let timeline: Vec<_> = letter.timeline().into_iter().filter(|m| m.at == at(10)).collect();
        let shown: Vec<_> = timeline.iter().map(|m| (m.what.name(), m.generation)).collect();
        let expected = [
            ("failed", Some(1)),
            ("died", Some(1)),
            ("redriven", None),
            ("failed", Some(2)),
            ("died", Some(2)),
        ];
        assert_eq!(shown, expected);
        assert_eq!((timeline[2].operation, timeline[2].why.as_deref()), (Some(operation), Some("again")));
        assert_eq!(timeline[4].detail, "permanent in queue q, into dead letter queue other-dlq");
    }

    #[test]
    fn a_long_history_keeps_its_two_ends_and_counts_the_rest() {
        let many: Vec<(Act, &str)> = (0..100).map(|_| (Act::Note, "seen")).collect();
        let letter = acted(letter(1), &many, 100);
        let kept = limits::LETTER_EVENTS_FIRST + limits::LETTER_EVENTS_LAST;
        assert_eq!((letter.record.history.len(), letter.record.history_omitted), (kept, 51));
        let timeline = letter.timeline();
        let gap = timeline.iter().find(|m| m.what == TimelineEvent::Omitted).expect("the gap is reported");
        assert_eq!(gap.detail, "51 more deaths and acts are counted, not kept");
        assert_eq!(
            timeline.iter().filter(|m| m.what == TimelineEvent::Noted).count(),
            100,
            "notes are kept longer"
        );
    }

    #[test]
    fn a_letter_of_an_older_format_says_that_its_history_starts_late() {
        let mut old = acted(letter(1), &[(Act::Move { dlq: "b-dlq".parse().unwrap() }, "x")], 50);
        old.record.history.clear();
        let old = acted(old, &[(Act::Resolve, "fixed")], 100);
        let timeline = old.timeline();
        let died = timeline.iter().find(|m| m.what == TimelineEvent::Died).expect("its last death is known");
        assert_eq!(died.detail, "max_attempts", "the dead letter queue is not known");
        assert!(
            timeline.iter().any(|m| m.what == TimelineEvent::Omitted && m.detail.contains("before format 5"))
        );
        assert_eq!(timeline.iter().filter(|m| m.what == TimelineEvent::Closed).count(), 1);
    }
}
