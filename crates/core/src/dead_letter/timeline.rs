//! The life of a letter as a list of moments, oldest first, put together from what it carries: the kept failures,
//! the file and the notes. Pure, and no second history: what is not written down there does not appear.

use super::DeadLetter;
use crate::failure::{Failure, named};
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
        /// Failures that are counted, not kept.
        Omitted = "omitted",
        /// It died, the last time.
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
        /// It was sent back, the last time.
        Redriven = "redriven",
        /// It was closed.
        Closed = "closed",
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
    /// Which generation, for attempts.
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
}

impl Moment {
    fn new(at: Time, what: Happening) -> Self {
        Self { at, what, generation: None, attempt: None, by: None, took: None, detail: String::new() }
    }

    fn by(self, who: Option<&str>) -> Self {
        Self { by: who.map(str::to_owned), ..self }
    }

    fn saying(self, detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), ..self }
    }

    fn of(self, failure: &Failure) -> Self {
        let (generation, attempt) = (Some(failure.generation), Some(failure.attempt));
        Self { generation, attempt, ..self }.by(failure.worker.as_deref())
    }
}

impl DeadLetter {
    /// Everything that is known to have happened, oldest first, and what is still to come.
    #[must_use]
    pub fn timeline(&self) -> Vec<Moment> {
        let (message, file) = (&self.message, &self.file);
        let envelope = &message.envelope;
        let mut all = vec![
            Moment::new(envelope.enqueued_at, Happening::Enqueued)
                .by(envelope.enqueued_by.as_deref())
                .saying(format!("to queue {}", envelope.home())),
        ];
        if let Some(at) = message.first_received_at {
            let waited = Some(at.since(envelope.enqueued_at));
            all.push(Moment { took: waited, ..Moment::new(at, Happening::FirstLeased) });
        }
        self.attempts(&mut all);
        let died = format!("{}, into drawer {}", file.reason, file.dlq);
        all.push(Moment::new(file.dead_at, Happening::Died).saying(died));
        for note in &file.notes {
            all.push(Moment::new(note.at, Happening::Noted).by(Some(&note.by)).saying(&note.text));
        }
        for mark in &file.edits {
            let why = mark.reason.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            let said = format!("revision {}{why}", mark.n);
            all.push(Moment::new(mark.at, Happening::Edited).by(Some(&mark.by)).saying(said));
        }
        if let Some(erased) = &file.erased {
            let said = format!("{} bytes", erased.bytes);
            all.push(Moment::new(erased.at, Happening::Erased).by(Some(&erased.by)).saying(said));
        }
        if let Some(redriven) = &file.redriven {
            let to = redriven.to.as_ref().map(|queue| format!("to queue {queue}")).unwrap_or_default();
            all.push(Moment::new(redriven.at, Happening::Redriven).by(Some(&redriven.by)).saying(to));
        }
        let ready = (file.status == super::Status::Retrying).then_some(message.ready_at);
        for (at, what, by, detail) in [
            (file.review_requested_at, Happening::ReviewRequested, &file.review_requested_by, ""),
            (file.reviewed_at, Happening::Reviewed, &file.reviewed_by, ""),
            (ready, Happening::Ready, &None, ""),
            (file.closed_at, Happening::Closed, &file.closed_by, file.resolution.as_deref().unwrap_or("")),
            (file.quarantined_until, Happening::QuarantineEnds, &None, ""),
            (file.snoozed_until, Happening::SnoozeEnds, &None, ""),
            (file.expires_at, Happening::Expires, &None, ""),
        ] {
            all.extend(at.map(|at| Moment::new(at, what).by(by.as_deref()).saying(detail)));
        }
        // Equal times keep the order of a life: the sort is stable.
        all.sort_by_key(|moment| moment.at);
        all
    }

    fn attempts(&self, all: &mut Vec<Moment>) {
        let failures = &self.message.failures;
        let kept = u32::try_from(failures.len()).unwrap_or(u32::MAX);
        let omitted = self.message.failed.saturating_sub(kept);
        for (n, failure) in (0_u32..).zip(failures) {
            if omitted > 0 && n == crate::limits::HISTORY_EDGE {
                let more = format!("{omitted} more failures are counted, not kept");
                all.push(Moment::new(failure.at, Happening::Omitted).saying(more));
            }
            let error = &failure.error;
            let code = error.code.as_ref().map(|code| format!(" ({code})")).unwrap_or_default();
            if let Some(took) = failure.duration.filter(|_| failure.attempt > 0) {
                all.push(Moment::new(failure.at.minus(took), Happening::Started).of(failure));
            }
            let failed = Moment { took: failure.duration, ..Moment::new(failure.at, Happening::Failed) };
            all.push(failed.of(failure).saying(format!("{}: {}{code}", error.error_type, error.message)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letter::{Captured, Note, Redriven, Status};
    use crate::failure::{ErrorInfo, Reason, Report};
    use crate::ids::MessageId;
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
}
