//! The life of a letter as a list of moments, oldest first, put together from what the letter carries: the kept
//! failures and the recorded deaths and acts. Other fields of its file only add what an older format did not record.
//! Pure. The audit trail is not asked: the timeline is as complete after that was trimmed.

use super::DeadLetter;
use crate::failure::{Failure, named};
use crate::ids::OperationId;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

named! {
    /// What happened at a moment.
    Happening, "moment", {
        /// It was accepted.
        Enqueued = "enqueued",
        /// It was leased for the first time.
        FirstLeased = "first_leased",
        /// A worker began an attempt that failed.
        Started = "started",
        /// An attempt failed.
        Failed = "failed",
        /// Failures, deaths or acts that are counted, not kept.
        Omitted = "omitted",
        /// It died.
        Died = "died",
        /// Somebody said something.
        Noted = "noted",
        /// Somebody changed what it says.
        Edited = "edited",
        /// Somebody erased what it said.
        Erased = "erased",
        /// It was put up for review.
        ReviewRequested = "review_requested",
        /// The review ended.
        Reviewed = "reviewed",
        /// It was sent back to work.
        Redriven = "redriven",
        /// It was taken out of its queue again before anybody leased it.
        PulledBack = "pulled_back",
        /// It was closed: resolved, abandoned, or done at last.
        Closed = "closed",
        /// It was opened again.
        Reopened = "reopened",
        /// It was set aside.
        Quarantined = "quarantined",
        /// It came out of quarantine or review.
        Released = "released",
        /// It was put into another dead letter queue.
        Moved = "moved",
        /// It was hidden from consumers and automatic redrives for a while.
        Snoozed = "snoozed",
        /// Somebody wants it kept.
        Held = "held",
        /// Nobody wants it kept any longer.
        Unheld = "unheld",
        /// It was given to somebody, or to nobody.
        Assigned = "assigned",
        /// Its labels were changed.
        Labelled = "labelled",
        /// It was removed, and can be taken back for a day.
        Purged = "purged",
        /// It was taken back after it was removed.
        Unpurged = "unpurged",
        /// A dead-letter consumer worked on it and failed.
        ConsumerFailed = "consumer_failed",
        /// Its message may be leased.
        Ready = "ready",
        /// Its quarantine ends.
        QuarantineEnds = "quarantine_ends",
        /// Its snooze ends.
        SnoozeEnds = "snooze_ends",
        /// It is removed.
        Expires = "expires",
    }
}

/// One moment in the life of a letter; some are still to come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// When.
    pub at: Time,
    /// What.
    pub what: Happening,
    /// Which generation, for attempts and deaths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// Which execution of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Who.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// How long: the wait before it, or the attempt.
    #[serde(default, rename = "took_ms", skip_serializing_if = "Option::is_none")]
    pub took: Option<Span>,
    /// What else there is to say.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// Why, in the words of whoever did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The operation that did it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationId>,
}

impl Moment {
    /// A moment with nothing to add to it yet.
    #[must_use]
    pub const fn new(at: Time, what: Happening) -> Self {
        let (generation, attempt, by, took, why, operation) = (None, None, None, None, None, None);
        Self { at, what, generation, attempt, by, took, detail: String::new(), why, operation }
    }

    /// The same with who did it.
    #[must_use]
    pub fn by(self, who: Option<&str>) -> Self {
        Self { by: who.map(str::to_owned), ..self }
    }

    /// The same with what else there is to say.
    #[must_use]
    pub fn saying(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }

    /// The same with why it was done.
    #[must_use]
    pub fn because(self, why: Option<&str>) -> Self {
        Self { why: why.map(str::to_owned), ..self }
    }

    fn of(self, failure: &Failure) -> Self {
        let (generation, attempt) = (Some(failure.generation), Some(failure.attempt));
        Self { generation, attempt, ..self }.by(failure.worker.as_deref())
    }
}

/// Moments with what orders those of the same time: attempts come after what began their generation and before what
/// ended it.
type Ordered = Vec<(u32, Moment)>;

/// The place of a generation's attempts in that order; its death and what was done then comes next.
const fn attempts_of(generation: u32) -> u32 {
    generation.saturating_mul(2)
}

/// What comes after everything that was recorded at the same time.
const LAST: u32 = u32::MAX;

impl DeadLetter {
    /// Everything that is known to have happened, oldest first, and what is still to come.
    #[must_use]
    pub fn timeline(&self) -> Vec<Moment> {
        let (message, file) = (&self.message, &self.file);
        let envelope = &message.envelope;
        let enqueued = Moment::new(envelope.enqueued_at, Happening::Enqueued)
            .by(envelope.enqueued_by.as_deref())
            .saying(format!("to queue {}", envelope.home()));
        let mut all: Ordered = vec![(0, enqueued)];
        if let Some(at) = message.first_received_at {
            let waited = Some(at.since(envelope.enqueued_at));
            all.push((0, Moment { took: waited, ..Moment::new(at, Happening::FirstLeased) }));
        }
        self.attempts(&mut all);
        self.recorded(&mut all);
        self.not_recorded(&mut all);
        let ready = (file.status == super::Status::Retrying).then_some(message.ready_at);
        let reviewed = Moment::new(file.reviewed_at.unwrap_or_default(), Happening::Reviewed);
        all.extend(file.reviewed_at.map(|_| (LAST, reviewed.by(file.reviewed_by.as_deref()))));
        for (at, what) in [
            (ready, Happening::Ready),
            (file.quarantined_until, Happening::QuarantineEnds),
            (file.snoozed_until, Happening::SnoozeEnds),
            (file.expires_at, Happening::Expires),
        ] {
            all.extend(at.map(|at| (LAST, Moment::new(at, what))));
        }
        // The sort is stable: what was recorded at one time keeps its order.
        all.sort_by_key(|(order, moment)| (moment.at, *order));
        all.into_iter().map(|(_, moment)| moment).collect()
    }

    fn attempts(&self, all: &mut Ordered) {
        let failures = &self.message.failures;
        let kept = u32::try_from(failures.len()).unwrap_or(u32::MAX);
        let omitted = self.message.failed.saturating_sub(kept);
        for (n, failure) in (0_u32..).zip(failures) {
            let order = attempts_of(failure.generation);
            if omitted > 0 && n == crate::limits::HISTORY_EDGE {
                let more = format!("{omitted} more failures are counted, not kept");
                all.push((order, Moment::new(failure.at, Happening::Omitted).saying(more)));
            }
            let error = &failure.error;
            let code = error.code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
            if let Some(took) = failure.duration.filter(|_| failure.attempt > 0) {
                all.push((order, Moment::new(failure.at.minus(took), Happening::Started).of(failure)));
            }
            let failed = Moment { took: failure.duration, ..Moment::new(failure.at, Happening::Failed) };
            let said = format!("{}: {}{code}", error.error_type, error.message);
            all.push((order, failed.of(failure).saying(said)));
        }
    }

    /// The deaths and acts on record, and how many are not kept.
    fn recorded(&self, all: &mut Ordered) {
        let mut order = attempts_of(1);
        for (n, event) in self.file.history.iter().enumerate() {
            if event.what == Happening::Died {
                order = attempts_of(event.generation.unwrap_or(1)).saturating_add(1);
            }
            if n == crate::limits::LETTER_EVENTS_FIRST && self.file.history_omitted > 0 {
                let more =
                    format!("{} more deaths and acts are counted, not kept", self.file.history_omitted);
                all.push((order, Moment::new(event.at, Happening::Omitted).saying(more)));
            }
            all.push((order, event.clone()));
        }
    }

    /// What the file says of itself and its history does not: it was filed before there was one, or that part of
    /// it is not kept.
    fn not_recorded(&self, all: &mut Ordered) {
        let file = &self.file;
        let history = &file.history;
        let mut told = vec![Moment::new(file.dead_at, Happening::Died).saying(file.reason.name())];
        for mark in &file.edits {
            let edited = Moment::new(mark.at, Happening::Edited).by(Some(&mark.by));
            told.push(edited.saying(format!("revision {}", mark.n)).because(mark.reason.as_deref()));
        }
        if let Some(erased) = &file.erased {
            let moment = Moment::new(erased.at, Happening::Erased).by(Some(&erased.by));
            told.push(moment.saying(format!("{} bytes", erased.bytes)).because(erased.reason.as_deref()));
        }
        if let Some(redriven) = &file.redriven {
            let to = redriven.to.as_ref().map(|queue| format!("to queue {queue}")).unwrap_or_default();
            told.push(Moment::new(redriven.at, Happening::Redriven).by(Some(&redriven.by)).saying(to));
        }
        let resolution = file.resolution.as_deref().unwrap_or("");
        for (at, what, by, detail) in [
            (file.review_requested_at, Happening::ReviewRequested, &file.review_requested_by, ""),
            (file.closed_at, Happening::Closed, &file.closed_by, resolution),
        ] {
            told.extend(at.map(|at| Moment::new(at, what).by(by.as_deref()).saying(detail)));
        }
        let is_new = |moment: &Moment| !history.iter().any(|e| (e.at, e.what) == (moment.at, moment.what));
        all.extend(told.into_iter().filter(is_new).map(|moment| (LAST, moment)));
        for note in &file.notes {
            let text = note.text.as_str();
            let said = |e: &Moment| e.at == note.at && (e.detail == text || e.why.as_deref() == Some(text));
            if !history.iter().any(said) {
                let noted = Moment::new(note.at, Happening::Noted).by(Some(&note.by));
                all.push((LAST, noted.saying(text)));
            }
        }
        let first = history.first();
        let from_the_start = first.is_some_and(|e| e.what == Happening::Died && e.generation == Some(1));
        if !from_the_start && file.version > 1 {
            let at = first.map_or(file.dead_at, |event| event.at);
            let more = "what was done to it before format 5 was not recorded on it; \
                        the audit trail may still have it";
            all.push((0, Moment::new(at, Happening::Omitted).saying(more)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letter::{Act, ActRequest, Actor, Captured, Note, Redriven, Status};
    use crate::failure::{ErrorInfo, Reason, Report};
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
        let last = Report { error, duration, ..Report::default() }.analyse();
        let failures = (1..=failed.min(20)).map(|n| {
            let failure = last.clone().file(1, n, at(u64::from(n) * 10), Some("w".into()));
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
    fn a_life_is_told_in_order() {
        let mut letter = letter(2);
        letter.file.notes.push(Note { at: at(30), by: "ada".into(), text: "hm".into() });
        letter.file.redriven =
            Some(Redriven { at: at(40), by: "ada".into(), to: Some("b".parse().unwrap()) });
        letter.file.status = Status::Retrying;
        letter.message.ready_at = at(60);
        let told: Vec<_> = letter.timeline().into_iter().map(|m| (m.at, m.what.name(), m.attempt)).collect();
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
        assert_eq!(told, expected);
    }

    #[test]
    fn what_is_not_kept_is_said_to_be_missing() {
        let mut letter = letter(50);
        let told = letter.timeline();
        let gap = told.iter().position(|m| m.what == Happening::Omitted).unwrap();
        assert_eq!(told[gap].detail, "30 more failures are counted, not kept");
        assert_eq!(told[..gap].iter().filter(|m| m.what == Happening::Failed).count(), 10);
        letter.file.closed_at = Some(at(900));
        letter.file.resolution = Some("fixed".into());
        letter.file.expires_at = Some(at(9_000));
        let told = letter.timeline();
        assert_eq!(told.last().map(|m| m.what), Some(Happening::Expires), "what is to come is last");
        assert!(told.iter().any(|m| m.what == Happening::Closed && m.detail == "fixed"));
    }

    fn ada(act: Act, reason: &str) -> ActRequest {
        let actor = Actor { reason: Some(reason.into()), ..Actor::new("ada", "cli") };
        ActRequest { id: MessageId::new(1, [1; 10]), act, actor, expected_version: None }
    }

    /// The letter after acts, one each second from then on.
    fn acted(mut letter: DeadLetter, acts: &[(Act, &str)], from: u64) -> DeadLetter {
        for (n, (act, reason)) in (from..).zip(acts) {
            let request = ada(act.clone(), reason);
            letter.file =
                letter.file.act(letter.id(), &request, &QueuePolicy::default(), at(n)).expect("legal");
        }
        letter
    }

    #[test]
    fn each_act_is_told_once_with_who_and_why() {
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
        let told: Vec<_> = letter.timeline().into_iter().filter(|m| m.at >= at(10)).collect();
        let told: Vec<_> = told
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
        assert_eq!(told, expected);
    }

    #[test]
    fn earlier_deaths_stay_and_attempts_come_between_redrive_and_death_at_one_instant() {
        let mut letter = acted(letter(1), &[(Act::retry(), "again")], 10);
        let operation = OperationId::new(MessageId::new(7, [7; 10]));
        letter.file.done_by(Some(operation));
        let last = Report::default().analyse();
        letter.message.failures.push(last.clone().file(2, 1, at(10), None));
        letter.message.failed = 2;
        let record = NewMessage::new(letter.id(), "q".parse().unwrap(), Payload::default());
        let mut record = record.accept(&QueuePolicy::default(), 1, START);
        record.life.generation = 2;
        let policy = QueuePolicy { dlq: Some("other-dlq".parse().unwrap()), ..QueuePolicy::default() };
        let before = letter.file.clone();
        letter.file = crate::dead_letter::File::of_death(
            &record,
            &record.life,
            &policy,
            &last,
            Reason::Permanent,
            Some(&before),
            at(10),
        );
        let told: Vec<_> = letter.timeline().into_iter().filter(|m| m.at == at(10)).collect();
        let shown: Vec<_> = told.iter().map(|m| (m.what.name(), m.generation)).collect();
        let expected = [
            ("failed", Some(1)),
            ("died", Some(1)),
            ("redriven", None),
            ("failed", Some(2)),
            ("died", Some(2)),
        ];
        assert_eq!(shown, expected);
        assert_eq!((told[2].operation, told[2].why.as_deref()), (Some(operation), Some("again")));
        assert_eq!(told[4].detail, "permanent in queue q, into dead letter queue other-dlq");
    }

    #[test]
    fn a_long_life_keeps_its_two_ends_and_says_what_is_missing() {
        let many: Vec<(Act, &str)> = (0..100).map(|_| (Act::Note, "seen")).collect();
        let letter = acted(letter(1), &many, 100);
        let kept = limits::LETTER_EVENTS_FIRST + limits::LETTER_EVENTS_LAST;
        assert_eq!((letter.file.history.len(), letter.file.history_omitted), (kept, 51));
        let told = letter.timeline();
        let gap = told.iter().find(|m| m.what == Happening::Omitted).expect("it says so");
        assert_eq!(gap.detail, "51 more deaths and acts are counted, not kept");
        assert_eq!(told.iter().filter(|m| m.what == Happening::Noted).count(), 100, "notes are kept longer");
    }

    #[test]
    fn a_letter_of_an_older_format_says_that_its_record_begins_late() {
        let mut old = acted(letter(1), &[(Act::Move { dlq: "b-dlq".parse().unwrap() }, "x")], 50);
        old.file.history.clear();
        let old = acted(old, &[(Act::Resolve, "fixed")], 100);
        let told = old.timeline();
        let died = told.iter().find(|m| m.what == Happening::Died).expect("its last death is known");
        assert_eq!(died.detail, "max_attempts", "where it fell is not known");
        assert!(told.iter().any(|m| m.what == Happening::Omitted && m.detail.contains("before format 5")));
        assert_eq!(told.iter().filter(|m| m.what == Happening::Closed).count(), 1);
    }
}
