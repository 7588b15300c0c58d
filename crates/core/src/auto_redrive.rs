//! The policy for automatic redrives: which dead letters a queue sends back without a person, and when. Pure;
//! the maintenance loop asks and acts.

use crate::dead_letter::LetterRecord;
use crate::error::Refusal;
use crate::limits;
use crate::message::check_span;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// When dead letters are redriven automatically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoRedrive {
    /// The number of redrives, automatic or not, after which a letter is left to a person.
    pub limit: u32,
    /// How long after its death a letter is redriven the first time. Doubles with every redrive.
    #[serde(rename = "backoff_ms", alias = "backoff")]
    pub backoff: Span,
}

impl AutoRedrive {
    /// The default backoff: long enough for an outage to end.
    pub const BACKOFF: Span = Span::from_hours(1);

    /// When this letter is redriven. Returns `None` if the rule does not apply: the letter is closed, being
    /// retried, in quarantine or under review, was redriven often enough, or cannot succeed as it is. A snooze
    /// postpones the redrive.
    #[must_use]
    pub fn due(&self, record: &LetterRecord) -> Option<Time> {
        let wait = self.backoff.times(1 << record.redrives.min(limits::AUTO_REDRIVES_MAX));
        let due = record.dead_at.plus(wait);
        let awake = record.snoozed_until.map_or(due, |until| due.max(until));
        (record.eligible() && record.redrives < self.limit).then_some(awake)
    }

    /// Checks every setting against its bounds.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`], which names the setting.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.limit == 0 || self.limit > limits::AUTO_REDRIVES_MAX {
            let why = format!("{} is outside 1 to {}", self.limit, limits::AUTO_REDRIVES_MAX);
            return Err(Refusal::invalid("auto_redrive.limit", why));
        }
        check_span("auto_redrive.backoff", self.backoff, Span::from_millis(1), limits::SPAN_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letter::Status;
    use crate::failure::{FailureReport, Reason};
    use crate::ids::MessageId;
    use crate::message::{NewMessage, Payload};
    use crate::policy::QueuePolicy;

    fn record() -> LetterRecord {
        let new = NewMessage::new(MessageId::new(1, [1; 10]), "q".parse().unwrap(), Payload::default());
        let stored = new.accept(&QueuePolicy::default(), 1, Time::from_millis(0));
        let failure = FailureReport::default().analyse();
        let at = Time::from_millis(1_000);
        let policy = QueuePolicy::default();
        LetterRecord::of_death(
            &stored.envelope,
            &stored.lifecycle,
            &policy,
            &failure,
            Reason::MaxAttempts,
            None,
            at,
        )
    }

    #[test]
    fn the_wait_doubles_and_ends() {
        let rule = AutoRedrive { limit: 3, backoff: Span::from_secs(10) };
        let due: Vec<_> = (0..4).map(|redrives| rule.due(&LetterRecord { redrives, ..record() })).collect();
        let at = |ms: i64| Some(Time::from_millis(1_000 + ms));
        assert_eq!(due, [at(10_000), at(20_000), at(40_000), None]);
    }

    #[test]
    fn a_snoozed_letter_is_left_alone_until_then() {
        let rule = AutoRedrive { limit: 3, backoff: Span::from_secs(10) };
        let snoozed = |ms| LetterRecord { snoozed_until: Some(Time::from_millis(ms)), ..record() };
        assert_eq!(rule.due(&snoozed(50_000)), Some(Time::from_millis(50_000)));
        assert_eq!(rule.due(&snoozed(5_000)), Some(Time::from_millis(11_000)));
    }

    #[test]
    fn a_letter_that_is_not_pending_or_is_hopeless_is_left_alone() {
        let rule = AutoRedrive { limit: 1, backoff: Span::from_secs(1) };
        for status in Status::ALL {
            let due = rule.due(&LetterRecord { status: *status, ..record() }).is_some();
            assert_eq!(due, *status == Status::Pending, "{status}");
        }
        for reason in [Reason::Permanent, Reason::Undecodable] {
            assert_eq!(rule.due(&LetterRecord { reason, ..record() }), None);
        }
    }

    #[test]
    fn absurd_rules_are_refused() {
        let rule = |limit, backoff| AutoRedrive { limit, backoff }.check().is_ok();
        assert!(rule(1, Span::from_secs(1)) && rule(10, Span::from_hours(24)));
        assert!(!rule(0, Span::from_secs(1)) && !rule(11, Span::from_secs(1)) && !rule(1, Span::ZERO));
    }
}
