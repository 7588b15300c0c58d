//! A queue may send its dead letters back by itself, a few times and with patience. This says which letter is
//! due when; whoever looks after the store asks and acts. Pure.

use crate::dead_letter::File;
use crate::error::Refusal;
use crate::limits;
use crate::message::sane;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// When dead letters are sent back by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoRedrive {
    /// Letters that were sent back this often, by anybody, are left to people.
    pub limit: u32,
    /// How long after its first death; every redrive doubles it.
    #[serde(rename = "backoff_ms", alias = "backoff")]
    pub backoff: Span,
}

impl AutoRedrive {
    /// The wait when nobody says: long enough for an outage to be over.
    pub const BACKOFF: Span = Span::from_hours(1);

    /// When this letter is to be sent back; nothing when it is not for this rule: closed, under way, set aside,
    /// sent back often enough, or hopeless as it stands. Not before a snooze is over.
    #[must_use]
    pub fn due(&self, file: &File) -> Option<Time> {
        let wait = self.backoff.times(1 << file.redrives.min(limits::AUTO_REDRIVES_MAX));
        let due = file.dead_at.plus(wait);
        let awake = file.snoozed_until.map_or(due, |until| due.max(until));
        (file.eligible() && file.redrives < self.limit).then_some(awake)
    }

    /// Refuses what cannot be meant, naming the setting.
    ///
    /// # Errors
    /// [`Refusal::Invalid`].
    pub fn check(&self) -> Result<(), Refusal> {
        if self.limit == 0 || self.limit > limits::AUTO_REDRIVES_MAX {
            let why = format!("{} is outside 1 to {}", self.limit, limits::AUTO_REDRIVES_MAX);
            return Err(Refusal::invalid("auto_redrive.limit", why));
        }
        sane("auto_redrive.backoff", self.backoff, Span::from_millis(1), limits::SPAN_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letter::Status;
    use crate::failure::{Reason, Report};
    use crate::ids::MessageId;
    use crate::message::{NewMessage, Payload};
    use crate::policy::QueuePolicy;

    fn file() -> File {
        let new = NewMessage::new(MessageId::new(1, [1; 10]), "q".parse().unwrap(), Payload::default());
        let record = new.accept(&QueuePolicy::default(), 1, Time::from_millis(0));
        let failure = Report::default().analyse();
        let at = Time::from_millis(1_000);
        let policy = QueuePolicy::default();
        File::of_death(&record.envelope, &record.life, &policy, &failure, Reason::MaxAttempts, None, at)
    }

    #[test]
    fn the_wait_doubles_and_ends() {
        let rule = AutoRedrive { limit: 3, backoff: Span::from_secs(10) };
        let due: Vec<_> = (0..4).map(|redrives| rule.due(&File { redrives, ..file() })).collect();
        let at = |ms: i64| Some(Time::from_millis(1_000 + ms));
        assert_eq!(due, [at(10_000), at(20_000), at(40_000), None]);
    }

    #[test]
    fn a_snoozed_letter_is_left_alone_until_then() {
        let rule = AutoRedrive { limit: 3, backoff: Span::from_secs(10) };
        let snoozed = |ms| File { snoozed_until: Some(Time::from_millis(ms)), ..file() };
        assert_eq!(rule.due(&snoozed(50_000)), Some(Time::from_millis(50_000)));
        assert_eq!(rule.due(&snoozed(5_000)), Some(Time::from_millis(11_000)));
    }

    #[test]
    fn what_is_not_pending_or_hopeless_is_left_alone() {
        let rule = AutoRedrive { limit: 1, backoff: Span::from_secs(1) };
        for status in Status::ALL {
            let due = rule.due(&File { status: *status, ..file() }).is_some();
            assert_eq!(due, *status == Status::Pending, "{status}");
        }
        for reason in [Reason::Permanent, Reason::Undecodable] {
            assert_eq!(rule.due(&File { reason, ..file() }), None);
        }
    }

    #[test]
    fn absurd_rules_are_refused() {
        let rule = |limit, backoff| AutoRedrive { limit, backoff }.check().is_ok();
        assert!(rule(1, Span::from_secs(1)) && rule(10, Span::from_hours(24)));
        assert!(!rule(0, Span::from_secs(1)) && !rule(11, Span::from_secs(1)) && !rule(1, Span::ZERO));
    }
}
