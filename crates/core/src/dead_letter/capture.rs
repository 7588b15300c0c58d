//! The letter of work that no queue ever had: somebody ran it, it failed for good, and it is kept. Made here, so
//! that it looks like every other letter; it is filed through [`crate::store::Letters::import`]. Pure: the times
//! are those of whoever ran it, and what it is filed under is decided again by the store that files it.

use super::{DeadLetter, File, Note};
use crate::failure::{Analysed, Failure, Reason, Severity, displaced_by};
use crate::lifecycle::{Life, Phase};
use crate::message::{NewMessage, Priority};
use crate::policy::QueuePolicy;
use crate::time::Time;

/// Work that was run outside any queue and failed for good.
#[derive(Clone, Debug, PartialEq)]
pub struct Captured {
    /// The work. Without a priority of its own it gets that of the last failure's severity.
    pub message: NewMessage,
    /// When it was first tried.
    pub began_at: Time,
    /// Executions begun.
    pub attempts: u32,
    /// Failures, those that are no longer kept included.
    pub failed: u32,
    /// What went wrong: the first and the last ten, oldest first.
    pub failures: Vec<Failure>,
    /// The last failure.
    pub last: Analysed,
    /// When that was.
    pub dead_at: Time,
    /// Why there is no other attempt.
    pub reason: Reason,
    /// What whoever ran it said about it.
    pub note: Option<Note>,
}

impl Captured {
    /// Adds a failure to a history, keeping its two ends; `failed` is how many came before it.
    pub fn remember(history: &mut Vec<Failure>, failed: u32, failure: Failure) {
        if displaced_by(failed).is_some() {
            // The first ten stay; of the last ten the oldest makes room.
            history.remove(crate::limits::HISTORY_EDGE as usize);
        }
        history.push(failure);
    }

    /// The letter, by the rules of its queue: its drawer, whether it is set aside first, how long it is kept.
    #[must_use]
    pub fn letter(&self, policy: &QueuePolicy) -> DeadLetter {
        let priority = self.message.priority.unwrap_or_else(|| priority_of(self.last.severity));
        let message = NewMessage { priority: Some(priority), ..self.message.clone() };
        let mut record = message.accept(policy, 0, self.began_at);
        record.life = Life {
            phase: Phase::Dead,
            attempts: self.attempts,
            deliveries: self.attempts,
            failed: self.failed,
            failing_since: self.failures.first().map(|first| first.at),
            first_received_at: (self.attempts > 0).then_some(self.began_at),
            updated_at: self.dead_at,
            ..record.life
        };
        let mut file =
            File::of_death(&record, &record.life, policy, &self.last, self.reason, None, self.dead_at);
        file.notes.extend(self.note.clone());
        let view = record.view(policy, self.dead_at);
        DeadLetter::assemble(view, file, self.last.signature.leaf, 0, self.failures.clone())
    }

    /// Roughly the bytes it takes to keep it.
    #[must_use]
    pub fn size(&self) -> usize {
        let m = &self.message;
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let failures = self.failures.iter().map(|f| {
            let e = &f.error;
            let trail: usize = e.context.iter().chain(&f.artifacts).chain(&f.reasons).map(String::len).sum();
            e.message.len() + e.error_type.len() + text(&e.stack) + text(&e.cause) + f.signature.len() + trail
        });
        let context = m.context.as_ref().map_or(0, |context| context.to_string().len());
        let headers: usize = m.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        m.payload.bytes.len() + context + headers + failures.sum::<usize>()
    }
}

/// How urgent work is whose failure was so bad, when nobody says.
const fn priority_of(severity: Severity) -> Priority {
    match severity {
        Severity::Critical => Priority::Critical,
        Severity::High => Priority::High,
        Severity::Medium => Priority::Normal,
        Severity::Low => Priority::Low,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letter::Status;
    use crate::failure::{ErrorInfo, Report};
    use crate::ids::MessageId;
    use crate::lifecycle::State;
    use crate::limits;
    use crate::message::Payload;
    use crate::time::Span;

    const NOW: Time = Time::from_millis(1_000_000);

    fn analysed() -> Analysed {
        let error = ErrorInfo { error_type: "E".into(), message: "it broke".into(), ..ErrorInfo::default() };
        Report { error, ..Report::default() }.analyse()
    }

    fn captured() -> Captured {
        let id = MessageId::new(1, [1; 10]);
        let payload = Payload { bytes: vec![0xc3, 0x28], content_type: "x/y".into() };
        let failures =
            (1..=3).map(|n| analysed().file(1, n, NOW.plus(Span::from_secs(n.into())), None)).collect();
        Captured {
            message: NewMessage::new(id, "llm".parse().unwrap(), payload),
            began_at: NOW,
            attempts: 3,
            failed: 3,
            failures,
            last: analysed(),
            dead_at: NOW.plus(Span::from_secs(3)),
            reason: Reason::MaxAttempts,
            note: None,
        }
    }

    #[test]
    fn the_letter_is_like_one_that_died_in_its_queue() {
        let letter = captured().letter(&QueuePolicy::default());
        assert_eq!(letter.file.dlq.as_str(), "llm-dlq");
        assert_eq!((letter.file.status, letter.file.reason), (Status::Pending, Reason::MaxAttempts));
        assert_eq!((letter.message.attempts, letter.message.deliveries, letter.message.failed), (3, 3, 3));
        assert_eq!(letter.message.state, State::Dead);
        assert_eq!(letter.message.envelope.payload.bytes, [0xc3, 0x28]);
        assert_eq!(letter.file.first_failed_at, Some(NOW.plus(Span::from_secs(1))));
        assert_eq!(letter.file.dead_at, NOW.plus(Span::from_secs(3)));
        assert_eq!((letter.error.message.as_str(), letter.signature.as_str()), ("it broke", "it broke"));
        assert!(letter.eligible);
    }

    #[test]
    fn the_drawer_and_the_quarantine_are_the_queues() {
        let by_category =
            QueuePolicy { dlq: Some("elsewhere".parse().unwrap()), ..QueuePolicy::by_category() };
        let mut corrupt = captured();
        corrupt.last.route = crate::failure::Route::Corruption;
        let letter = corrupt.letter(&by_category);
        assert_eq!((letter.file.dlq.as_str(), letter.file.status), ("elsewhere", Status::Quarantined));
    }

    #[test]
    fn the_priority_is_the_callers_or_follows_from_the_severity() {
        let of = |severity, said| {
            let mut one = captured();
            (one.last.severity, one.message.priority) = (severity, said);
            one.letter(&QueuePolicy::default()).message.envelope.priority
        };
        assert_eq!(of(Severity::Critical, None), Priority::Critical);
        assert_eq!(of(Severity::High, None), Priority::High);
        assert_eq!(of(Severity::Medium, None), Priority::Normal);
        assert_eq!(of(Severity::Low, None), Priority::Low);
        assert_eq!(of(Severity::Critical, Some(Priority::Background)), Priority::Background);
    }

    #[test]
    fn a_long_history_keeps_its_two_ends() {
        let mut history = Vec::new();
        for n in 0..50 {
            Captured::remember(&mut history, n, analysed().file(1, n + 1, NOW, None));
        }
        let kept: Vec<u32> = history.iter().map(|f| f.attempt).collect();
        let expected: Vec<u32> = (1..=10).chain(41..=50).collect();
        assert_eq!(kept, expected);
        assert_eq!(history.len(), 2 * limits::HISTORY_EDGE as usize);
    }
}
