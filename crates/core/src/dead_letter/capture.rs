//! Dead letters for work that no queue delivered: a caller executed it, it failed for good, and it is kept. The
//! letter is built here, so that it looks like every other letter, and stored with
//! [`crate::store::Letters::import`]. Pure: the times are the caller's, and the store that imports the letter
//! assigns it to a group.

use super::{DeadLetter, LetterRecord, Note};
use crate::failure::{AnalysedFailure, Failure, Reason, Severity, displaced_by};
use crate::lifecycle::{Lifecycle, Phase};
use crate::message::{NewMessage, Priority};
use crate::policy::QueuePolicy;
use crate::time::Time;

/// Work that was executed outside any queue and failed for good.
#[derive(Clone, Debug, PartialEq)]
pub struct Captured {
    /// The work. A message without a priority gets one from the severity of its last failure.
    pub message: NewMessage,
    /// When the first attempt started.
    pub began_at: Time,
    /// Executions started.
    pub attempts: u32,
    /// Failures, including those that are not kept.
    pub failed: u32,
    /// The first and the last ten failures, oldest first.
    pub failures: Vec<Failure>,
    /// The last failure.
    pub last: AnalysedFailure,
    /// When the last failure happened.
    pub dead_at: Time,
    /// Why there is no further attempt.
    pub reason: Reason,
    /// A note of the caller.
    pub note: Option<Note>,
}

impl Captured {
    /// Adds a failure to a history and keeps both ends of it. `failed` is the number of earlier failures.
    pub fn remember(history: &mut Vec<Failure>, failed: u32, failure: Failure) {
        if displaced_by(failed).is_some() {
            // The first ten stay; the oldest of the last ten makes room.
            history.remove(crate::limits::HISTORY_EDGE as usize);
        }
        history.push(failure);
    }

    /// The letter under the policy of its queue, which decides about the dead letter queue, the quarantine and
    /// the retention.
    #[must_use]
    pub fn letter(&self, policy: &QueuePolicy) -> DeadLetter {
        let priority = self.message.priority.unwrap_or_else(|| priority_of(self.last.severity));
        let message = NewMessage { priority: Some(priority), ..self.message.clone() };
        let mut captured = message.accept(policy, 0, self.began_at);
        captured.lifecycle = Lifecycle {
            phase: Phase::Dead,
            attempts: self.attempts,
            deliveries: self.attempts,
            failed: self.failed,
            failing_since: self.failures.first().map(|first| first.at),
            first_received_at: (self.attempts > 0).then_some(self.began_at),
            updated_at: self.dead_at,
            ..captured.lifecycle
        };
        let mut record = LetterRecord::of_death(
            &captured,
            &captured.lifecycle,
            policy,
            &self.last,
            self.reason,
            None,
            self.dead_at,
        );
        record.notes.extend(self.note.clone());
        let view = captured.view(policy, self.dead_at);
        DeadLetter::assemble(view, record, self.last.signature.leaf, 0, self.failures.clone())
    }

    /// The approximate number of bytes that it takes to keep this.
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

/// The priority of work by the severity of its failure, for work without a priority.
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
    use crate::failure::{ErrorInfo, FailureReport};
    use crate::ids::MessageId;
    use crate::lifecycle::State;
    use crate::limits;
    use crate::message::Payload;
    use crate::time::Span;

    const NOW: Time = Time::from_millis(1_000_000);

    fn analysed() -> AnalysedFailure {
        let error = ErrorInfo { error_type: "E".into(), message: "it broke".into(), ..ErrorInfo::default() };
        FailureReport { error, ..FailureReport::default() }.analyse()
    }

    fn captured() -> Captured {
        let id = MessageId::new(1, [1; 10]);
        let payload = Payload { bytes: vec![0xc3, 0x28], content_type: "x/y".into() };
        let failures = (1..=3)
            .map(|n| analysed().into_failure(1, n, NOW.plus(Span::from_secs(n.into())), None))
            .collect();
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
        assert_eq!(letter.record.dlq.as_str(), "llm-dlq");
        assert_eq!((letter.record.status, letter.record.reason), (Status::Pending, Reason::MaxAttempts));
        assert_eq!((letter.message.attempts, letter.message.deliveries, letter.message.failed), (3, 3, 3));
        assert_eq!(letter.message.state, State::Dead);
        assert_eq!(letter.message.envelope.payload.bytes, [0xc3, 0x28]);
        assert_eq!(letter.record.first_failed_at, Some(NOW.plus(Span::from_secs(1))));
        assert_eq!(letter.record.dead_at, NOW.plus(Span::from_secs(3)));
        assert_eq!((letter.error.message.as_str(), letter.signature.as_str()), ("it broke", "it broke"));
        assert!(letter.eligible);
    }

    #[test]
    fn dlq_and_quarantine_follow_the_policy_of_the_queue() {
        let by_category =
            QueuePolicy { dlq: Some("elsewhere".parse().unwrap()), ..QueuePolicy::by_category() };
        let mut corrupt = captured();
        corrupt.last.route = crate::failure::Route::Corruption;
        let letter = corrupt.letter(&by_category);
        assert_eq!((letter.record.dlq.as_str(), letter.record.status), ("elsewhere", Status::Quarantined));
    }

    #[test]
    fn the_priority_is_the_callers_or_follows_from_the_severity() {
        let of = |severity, priority| {
            let mut one = captured();
            (one.last.severity, one.message.priority) = (severity, priority);
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
            Captured::remember(&mut history, n, analysed().into_failure(1, n + 1, NOW, None));
        }
        let kept: Vec<u32> = history.iter().map(|f| f.attempt).collect();
        let expected: Vec<u32> = (1..=10).chain(41..=50).collect();
        assert_eq!(kept, expected);
        assert_eq!(history.len(), 2 * limits::HISTORY_EDGE as usize);
    }
}
