//! The effect of an act on the record of a letter, and what can be done with the letter in its current status.
//! Pure: [`crate::lifecycle::transition()`] makes the message's own part of a redrive, and the store looks up
//! which message holds the letter's idempotency key.

use super::status::UNPURGE_FIRST;
use super::{
    Act, ActRequest, Actor, CONSUMER_BACKOFF, LetterRecord, Note, RedriveRecord, Retry, Status, StatusChange,
    TimelineEntry, TimelineEvent, next_status,
};
use crate::error::Refusal;
use crate::failure::Reason;
use crate::ids::MessageId;
use crate::lifecycle::State;
use crate::limits;
use crate::message::{MessageMeta, check_printable, check_span};
use crate::poison::Release;
use crate::policy::QueuePolicy;
use crate::revision::check_content_change;
use crate::store::KeyState;
use crate::time::{Span, Time};
use std::collections::BTreeSet;

/// The resolution of a letter that is closed because a message with the same key is done already.
pub const ALREADY_DONE: &str = "already done";
/// The actor of changes that time brings about.
const SYSTEM: &str = "system";

impl Retry {
    /// Checks that the numbers are plausible.
    fn check(&self, now: Time) -> Result<(), Refusal> {
        if let Some(at) = self.at {
            check_span("at", at.since(now), Span::ZERO, limits::SPAN_MAX)?;
        }
        match self.max_attempts {
            Some(n) if n == 0 || n > limits::ATTEMPTS_MAX => {
                let why = format!("{n} is outside 1 to {}; it counts executions", limits::ATTEMPTS_MAX);
                Err(Refusal::invalid("max_attempts", why))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Whether the redriven message must run. It must not if a message with the same key is done already.
    /// `holder` is the message that holds the key, with its state.
    ///
    /// # Errors
    /// Returns [`Refusal::KeyInUse`] if another live message holds the key.
    pub fn runs(&self, meta: &MessageMeta, holder: Option<KeyState>) -> Result<bool, Refusal> {
        let (Some(holder), Some(key), false) = (holder, &meta.key, self.force) else { return Ok(true) };
        match holder.state {
            State::Done => Ok(false),
            State::Scheduled | State::Ready | State::Leased if holder.id != meta.id => {
                Err(Refusal::KeyInUse { id: meta.id, key: key.clone(), by: holder.id })
            }
            State::Scheduled
            | State::Ready
            | State::Leased
            | State::Dead
            | State::Cancelled
            | State::Expired
            | State::Purged => Ok(true),
        }
    }
}

impl Act {
    /// The status of a letter after this act. Unchanged if the act only changes the record.
    ///
    /// # Errors
    /// Returns [`Refusal::WrongStatus`] if the status does not allow the act, with a hint at what to do
    /// instead.
    pub fn next_status(&self, id: MessageId, from: Status) -> Result<Status, Refusal> {
        let refuse = |hint: &str| {
            let act = self.name().to_owned();
            Err(Refusal::WrongStatus { id, status: from, act, hint: hint.to_owned() })
        };
        if let Some(change) = self.status_change() {
            return next_status(id, from, change);
        }
        if self.changes_content() {
            return check_content_change(id, from, self).map(|()| from);
        }
        match (self, from) {
            (Self::Note, _) => Ok(from),
            (_, Status::Purged) => refuse(UNPURGE_FIRST),
            (Self::Snooze { .. }, Status::Retrying | Status::Resolved | Status::Abandoned) => {
                refuse("only a letter that waits for a decision can be snoozed")
            }
            (Self::Move { .. }, Status::Retrying) => {
                refuse("it was sent back to work; wait until the message is done or dies again")
            }
            (_, _) => Ok(from),
        }
    }

    /// Checks that the values of the act are plausible.
    fn check(&self, now: Time) -> Result<(), Refusal> {
        match self {
            Self::Retry(retry) => retry.check(now),
            Self::Snooze { until } => check_span("until", until.since(now), Span::ZERO, limits::SPAN_MAX),
            Self::Assign { to: Some(owner) } if owner.is_empty() => {
                Err(Refusal::invalid("to", "is empty; leave it out to assign it to nobody"))
            }
            Self::Assign { to: Some(owner) } => check_printable("to", owner, limits::LABEL_BYTES_MAX),
            Self::Label { add, .. } => {
                add.iter().try_for_each(|label| check_printable("add", label, limits::TAG_BYTES_MAX))
            }
            Self::Assign { to: None }
            | Self::Review
            | Self::Quarantine { .. }
            | Self::Release
            | Self::Resolve
            | Self::Abandon
            | Self::Reopen
            | Self::Note
            | Self::Purge
            | Self::Unpurge
            | Self::PullBack
            | Self::Move { .. }
            | Self::Hold { .. }
            | Self::Edit(_)
            | Self::Patch(_)
            | Self::Restore { .. }
            | Self::Erase => Ok(()),
        }
    }

    /// Whether this act is allowed while a dead letter consumer holds the letter, because it only adds to the
    /// record.
    const fn only_annotates(&self) -> bool {
        matches!(self, Self::Note | Self::Hold { .. } | Self::Assign { .. } | Self::Label { .. })
    }

    /// What the audit trail records beside the verb. `None` if the verb says it all.
    #[must_use]
    pub fn detail(&self) -> Option<String> {
        match self {
            Self::Retry(retry) => {
                let parts = [
                    retry.queue.as_ref().map(|queue| format!("to queue {queue}")),
                    retry.priority.map(|priority| format!("priority {priority}")),
                    retry.max_attempts.map(|n| format!("{n} attempts")),
                    retry.at.map(|at| format!("not before {at}")),
                    retry.force.then(|| "by force".to_owned()),
                ];
                let given: Vec<String> = parts.into_iter().flatten().collect();
                (!given.is_empty()).then(|| given.join(", "))
            }
            Self::Move { dlq } => Some(format!("to dead letter queue {dlq}")),
            Self::Snooze { until } | Self::Quarantine { until } => Some(format!("until {until}")),
            Self::Assign { to } => Some(to.as_ref().map_or("to nobody".to_owned(), |to| format!("to {to}"))),
            Self::Label { add, remove } => {
                let (on, off) = (add.iter().map(|l| format!("+{l}")), remove.iter().map(|l| format!("-{l}")));
                Some(on.chain(off).collect::<Vec<_>>().join(" "))
            }
            Self::Patch(patch) => Some(patch.summary()),
            Self::Restore { n } => Some(format!("of revision {n}")),
            Self::Review
            | Self::Release
            | Self::Resolve
            | Self::Abandon
            | Self::Reopen
            | Self::Note
            | Self::Purge
            | Self::Unpurge
            | Self::PullBack
            | Self::Hold { .. }
            | Self::Edit(_)
            | Self::Erase => None,
        }
    }
}

impl LetterRecord {
    /// The record after an act. Pure. [`crate::lifecycle::transition()`] makes the message's own part of a
    /// redrive.
    ///
    /// # Errors
    /// Returns a refusal if the status does not allow the act, if a consumer holds the letter, if the version
    /// has changed, or if the letter was redriven too often.
    pub fn act(
        &self,
        id: MessageId,
        request: &ActRequest,
        policy: &QueuePolicy,
        now: Time,
    ) -> Result<Self, Refusal> {
        let ActRequest { act, actor, .. } = request;
        self.check_act(id, request, now)?;
        if act.changes_content() {
            return Err(Refusal::invalid("act", format!("{} needs the content too", act.name())));
        }
        if self.erased.is_some() && matches!(act, Act::Retry(_)) {
            return Err(Refusal::Erased { id, act: act.name().into() });
        }
        let status = act.next_status(id, self.status)?;
        let mut next = match act.status_change() {
            Some(StatusChange::Purge) => self.purged(id, now)?,
            Some(StatusChange::Unpurge) => self.unpurged(id, policy, now)?,
            Some(_) => self.with_status(status, policy, &actor.name, now),
            None => Self { version: self.version + 1, ..self.clone() },
        };
        next.apply(id, self, request, policy, now)?;
        if self.status == Status::Review && status != Status::Review {
            next.reviewed_by = Some(actor.name.clone());
            next.reviewed_at = Some(now);
        }
        if actor.reason.is_some() || *act == Act::Note {
            next.add_note(actor, now);
        }
        next.record_act(self, request, now);
        Ok(next)
    }

    /// Checks that the letter has the version the actor expects and that no consumer holds it.
    pub(crate) fn check_act(&self, id: MessageId, request: &ActRequest, now: Time) -> Result<(), Refusal> {
        if let Some(expected) = request.expected_version
            && expected != self.version
        {
            return Err(Refusal::VersionConflict { id, expected, actual: self.version });
        }
        request.actor.check()?;
        request.act.check(now)?;
        if let (Some(worker), Some(until)) = (&self.consumer, self.consumer_until)
            && until > now
            && !request.act.only_annotates()
        {
            return Err(Refusal::LetterLeased { id, worker: worker.clone(), until });
        }
        Ok(())
    }

    /// Applies what an act changes beside the status.
    fn apply(
        &mut self,
        id: MessageId,
        before: &Self,
        request: &ActRequest,
        policy: &QueuePolicy,
        now: Time,
    ) -> Result<(), Refusal> {
        let by = &request.actor;
        match &request.act {
            Act::Retry(retry) => {
                let (redrives, allowed) = (before.redrives, policy.max_redrives);
                if redrives >= allowed && !retry.force {
                    return Err(Refusal::RedrivenTooOften { id, redrives, allowed });
                }
                self.redrives = redrives.saturating_add(1);
                self.redriven = Some(RedriveRecord { at: now, by: by.name.clone(), to: retry.queue.clone() });
                self.operation = None;
            }
            Act::PullBack => {
                self.operation = None;
                self.redrives = before.redrives.saturating_sub(1);
                self.redriven = None;
            }
            Act::Review => {
                self.review_requested_by = Some(by.name.clone());
                self.review_requested_at = Some(now);
            }
            Act::Quarantine { until } => self.quarantined_until = Some(*until),
            Act::Resolve | Act::Abandon => self.resolution.clone_from(&by.reason),
            Act::Move { dlq } if *dlq == before.dlq => {
                let hint = "it is there already".to_owned();
                return Err(Refusal::WrongStatus { id, status: before.status, act: "move".into(), hint });
            }
            Act::Move { dlq } => self.dlq = dlq.clone(),
            Act::Hold { on } => {
                self.held = *on;
                self.expires_at = self.expiry(policy).map(|at| at.max(now.plus(limits::PURGE_UNDO)));
            }
            Act::Snooze { until } => self.snoozed_until = Some(*until).filter(|until| *until > now),
            Act::Assign { to } => self.owner.clone_from(to),
            Act::Label { add, remove } => {
                let labels: BTreeSet<String> = before.labels.union(add).cloned().collect();
                self.labels = labels.difference(remove).cloned().collect();
                if self.labels.len() > limits::TAGS_MAX {
                    let why = format!("a letter has at most {} labels", limits::TAGS_MAX);
                    return Err(Refusal::invalid("add", why));
                }
            }
            Act::Release | Act::Reopen | Act::Note | Act::Purge | Act::Unpurge => {}
            Act::Edit(_) | Act::Patch(_) | Act::Restore { .. } | Act::Erase => {}
        }
        Ok(())
    }

    /// The record with a new status and everything that follows from the status alone.
    #[must_use]
    pub fn with_status(&self, status: Status, policy: &QueuePolicy, by: &str, now: Time) -> Self {
        let closed = status.is_closed();
        let mut next = Self {
            status,
            quarantined_until: None,
            snoozed_until: None,
            resolution: None,
            closed_at: closed.then_some(now),
            closed_by: closed.then(|| by.to_owned()),
            version: self.version + 1,
            holds_key: self.holds_key && !closed,
            available_at: if self.erased.is_some() { Time::NEVER } else { now },
            consumer: None,
            consumer_until: None,
            ..self.clone()
        };
        next.expires_at = next.expiry(policy);
        next
    }

    /// When retention removes the letter: a closed one some time after it was closed, an open one never or some
    /// time after death.
    fn expiry(&self, policy: &QueuePolicy) -> Option<Time> {
        let after = match (self.status.is_closed(), self.closed_at) {
            (true, Some(closed_at)) => Some(closed_at.plus(policy.retention)),
            (true, None) => Some(self.dead_at.plus(policy.retention)),
            (false, _) => policy.open_ttl.map(|ttl| self.dead_at.plus(ttl)),
        };
        after.filter(|_| !self.held)
    }

    /// The record of a purged letter, which stays until the purge can no longer be undone.
    fn purged(&self, id: MessageId, now: Time) -> Result<Self, Refusal> {
        if self.held {
            let hint = "it is held; release the hold with unhold first".to_owned();
            return Err(Refusal::WrongStatus { id, status: self.status, act: "purge".into(), hint });
        }
        Ok(Self {
            status: Status::Purged,
            purged_from: Some(self.status),
            expires_at: Some(now.plus(limits::PURGE_UNDO)),
            version: self.version + 1,
            consumer: None,
            consumer_until: None,
            ..self.clone()
        })
    }

    /// The record after a purge was undone: closed as it was before.
    fn unpurged(&self, id: MessageId, policy: &QueuePolicy, now: Time) -> Result<Self, Refusal> {
        if self.expires_at.is_some_and(|until| until <= now) {
            let hint = "the time to undo the purge is over".to_owned();
            return Err(Refusal::WrongStatus { id, status: self.status, act: "unpurge".into(), hint });
        }
        let mut next = Self {
            status: self.purged_from.unwrap_or(Status::Resolved),
            purged_from: None,
            version: self.version + 1,
            ..self.clone()
        };
        next.expires_at = next.expiry(policy).map(|at| at.max(now.plus(limits::PURGE_UNDO)));
        Ok(next)
    }

    /// The record of a letter that is not redriven, because a message with the same key is done already.
    #[must_use]
    pub fn already_done(&self, policy: &QueuePolicy, actor: &Actor, now: Time) -> Self {
        let mut next = self.with_status(Status::Resolved, policy, &actor.name, now);
        next.resolution = Some(ALREADY_DONE.into());
        // No error reply goes out: the work is done.
        next.owes_reply = false;
        if self.status == Status::Review {
            next.reviewed_by = Some(actor.name.clone());
            next.reviewed_at = Some(now);
        }
        if actor.reason.is_some() {
            next.add_note(actor, now);
        }
        let closed =
            TimelineEntry::new(now, TimelineEvent::Closed).by(Some(&actor.name)).with_detail(ALREADY_DONE);
        next.record(closed.with_reason(actor.reason.as_deref()));
        next
    }

    /// The record after the quarantine ended and the letter waits for review.
    #[must_use]
    pub fn released_to_review(&self, policy: &QueuePolicy, now: Time) -> Self {
        let mut next = self.with_status(Status::Review, policy, SYSTEM, now);
        let released =
            TimelineEntry::new(now, TimelineEvent::Released).by(Some(SYSTEM)).with_detail("to review");
        next.record(released.with_reason(Some("the quarantine ended")));
        next
    }

    /// The record after a dead letter consumer failed. The letter is unavailable for a while and carries the
    /// consumer's note.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] if the note is too long.
    pub fn consumer_failed(&self, consumer: &str, note: String, now: Time) -> Result<Self, Refusal> {
        if note.len() > limits::NOTE_BYTES_MAX {
            return Err(Refusal::invalid("note", format!("at most {} bytes", limits::NOTE_BYTES_MAX)));
        }
        let mut next = Self {
            consumer: None,
            consumer_until: None,
            available_at: now.plus(CONSUMER_BACKOFF),
            version: self.version + 1,
            ..self.clone()
        };
        let failed = TimelineEntry::new(now, TimelineEvent::ConsumerFailed).by(Some(consumer));
        next.record(failed.with_reason(Some(&note)));
        next.add_note(&Actor { reason: Some(note), ..Actor::new(consumer, "") }, now);
        Ok(next)
    }

    /// The record after the redriven message was acknowledged.
    ///
    /// # Errors
    /// Returns a refusal if the letter is not being retried.
    pub fn succeeded(
        &self,
        id: MessageId,
        policy: &QueuePolicy,
        by: &str,
        now: Time,
    ) -> Result<Self, Refusal> {
        next_status(id, self.status, StatusChange::Succeeded)?;
        let mut next = Self {
            resolution: Some("retried".into()),
            ..self.with_status(Status::Resolved, policy, by, now)
        };
        // The worker that acknowledged the message has sent the reply.
        next.owes_reply = false;
        next.record(TimelineEntry::new(now, TimelineEvent::Closed).by(Some(by)).with_detail("retried"));
        Ok(next)
    }

    /// Where the letter goes when its quarantine ends. Only poison returns to its queue automatically, if the
    /// policy says so, and only [`limits::AUTO_RELEASES_MAX`] times.
    #[must_use]
    pub fn released_to(&self, policy: &QueuePolicy) -> Release {
        let again = self.redrives < limits::AUTO_RELEASES_MAX && self.erased.is_none();
        match (policy.poison.release, self.reason) {
            (Release::Queue, Reason::Poison) if again => Release::Queue,
            (Release::Queue | Release::Review, _) => Release::Review,
        }
    }

    /// Whether the queue sends the letter back without a person, by an automatic redrive or because its
    /// quarantine ends in the queue.
    #[must_use]
    pub fn returns_by_itself(&self, policy: &QueuePolicy) -> bool {
        let redriven = policy.auto_redrive.is_some_and(|rule| rule.due(self).is_some());
        let released = self.status == Status::Quarantined && self.released_to(policy) == Release::Queue;
        (redriven || released) && self.redrives < policy.max_redrives
    }

    /// Whether the owed reply must go out now, because only a person can still bring the letter back.
    #[must_use]
    pub fn reply_is_due(&self, policy: &QueuePolicy) -> bool {
        self.owes_reply && self.status != Status::Retrying && !self.returns_by_itself(policy)
    }

    /// Checks that the letter can be handed over to another store: no consumer holds it and nothing here waits
    /// for it.
    ///
    /// # Errors
    /// Returns a refusal that names the obstacle.
    pub fn check_hand_over(&self, id: MessageId, version: u64, now: Time) -> Result<(), Refusal> {
        if self.version != version {
            return Err(Refusal::VersionConflict { id, expected: version, actual: self.version });
        }
        if let (Some(worker), Some(until)) = (&self.consumer, self.consumer_until)
            && until > now
        {
            return Err(Refusal::LetterLeased { id, worker: worker.clone(), until });
        }
        let refuse = |hint: &str| {
            let act = "hand over".to_owned();
            Err(Refusal::WrongStatus { id, status: self.status, act, hint: hint.to_owned() })
        };
        match self.status {
            Status::Retrying => {
                refuse("it was sent back to work; wait until the message is done or dies again")
            }
            Status::Pending | Status::Review | Status::Quarantined if self.holds_key => {
                refuse("its ordering key is held here until it is closed")
            }
            Status::Purged => refuse(UNPURGE_FIRST),
            Status::Pending | Status::Review | Status::Quarantined | Status::Resolved | Status::Abandoned => {
                Ok(())
            }
        }
    }

    /// The state of the message, provided that it is not being retried.
    #[must_use]
    pub const fn state(&self) -> State {
        match self.status {
            Status::Purged => State::Purged,
            Status::Pending
            | Status::Retrying
            | Status::Review
            | Status::Quarantined
            | Status::Resolved
            | Status::Abandoned => State::Dead,
        }
    }

    /// Whether maintenance removes the letter, because its retention or the time to undo its purge has ended. A
    /// letter that is being retried is never removed.
    #[must_use]
    pub fn is_past_retention(&self, now: Time) -> bool {
        self.status != Status::Retrying && self.expires_at.is_some_and(|expires| expires <= now)
    }

    /// Whether a dead letter consumer may lease the letter now.
    #[must_use]
    pub fn leasable(&self, now: Time) -> bool {
        let open = match self.status {
            Status::Pending => true,
            Status::Retrying
            | Status::Review
            | Status::Quarantined
            | Status::Resolved
            | Status::Abandoned
            | Status::Purged => false,
        };
        let awake = self.available_at <= now && self.snoozed_until.is_none_or(|until| until <= now);
        open && awake && self.erased.is_none() && self.consumer_until.is_none_or(|until| until <= now)
    }

    /// Whether the letter can be redriven as it is.
    #[must_use]
    pub const fn eligible(&self) -> bool {
        match self.status {
            Status::Pending => {
                self.erased.is_none() && !matches!(self.reason, Reason::Permanent | Reason::Undecodable)
            }
            Status::Retrying
            | Status::Review
            | Status::Quarantined
            | Status::Resolved
            | Status::Abandoned
            | Status::Purged => false,
        }
    }

    fn add_note(&mut self, actor: &Actor, now: Time) {
        let text = actor.reason.clone().unwrap_or_default();
        self.notes.push(Note { at: now, by: actor.name.clone(), text });
        if self.notes.len() > limits::NOTES_MAX {
            self.notes.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::QueueName;
    use crate::message::{NewMessage, Payload, Priority};

    const NOW: Time = Time::from_millis(1_000_000);

    fn meta(key: Option<&str>) -> MessageMeta {
        let new = NewMessage::new(MessageId::new(1, [1; 10]), "a".parse().unwrap(), Payload::default());
        let new = NewMessage { key: key.map(str::to_owned), ..new };
        (&new.accept(&QueuePolicy::default(), 1, NOW)).into()
    }

    #[test]
    fn the_holder_of_the_key_decides_whether_a_letter_runs() {
        let (own, other) = (MessageId::new(1, [1; 10]), MessageId::new(2, [2; 10]));
        for state in State::ALL {
            for id in [own, other] {
                let holder = Some(KeyState { id, state: *state });
                let result = Retry::default().runs(&meta(Some("k")), holder);
                let live = matches!(state, State::Scheduled | State::Ready | State::Leased);
                match (state, live && id == other) {
                    (State::Done, _) => assert_eq!(result, Ok(false), "{state}"),
                    (_, true) => {
                        assert_eq!(result, Err(Refusal::KeyInUse { id: own, key: "k".into(), by: other }));
                    }
                    (_, false) => assert_eq!(result, Ok(true), "{state}"),
                }
                let force = Retry { force: true, ..Retry::default() };
                assert_eq!(force.runs(&meta(Some("k")), holder), Ok(true), "{state}");
                assert_eq!(Retry::default().runs(&meta(None), holder), Ok(true), "{state}");
            }
        }
        assert_eq!(Retry::default().runs(&meta(Some("k")), None), Ok(true), "no message holds the key");
    }

    #[test]
    fn the_home_of_a_message_is_the_queue_of_its_first_enqueue() {
        let to = |name: &str| Retry { queue: Some(name.parse().unwrap()), ..Retry::default() };
        let name = |name: &str| -> QueueName { name.parse().unwrap() };
        let b = meta(None).sent_back(&to("b"));
        assert_eq!((&b.queue, b.home()), (&name("b"), &name("a")));
        let c = b.sent_back(&to("c"));
        assert_eq!((&c.queue, c.home()), (&name("c"), &name("a")));
        let again = c.sent_back(&Retry::default());
        assert_eq!((&again.queue, again.home()), (&name("c"), &name("a")));
        let home = c.sent_back(&to("a"));
        assert_eq!((&home.queue, &home.origin), (&name("a"), &None));
        let urgent = Retry { priority: Some(Priority::High), max_attempts: Some(7), ..Retry::default() };
        let changed = meta(None).sent_back(&urgent);
        assert_eq!((changed.priority, changed.limits.max_attempts), (Priority::High, Some(7)));
        let kept = changed.sent_back(&Retry::default());
        assert_eq!((kept.priority, kept.limits.max_attempts), (Priority::High, Some(7)));
    }

    #[test]
    fn an_act_reads_back_from_its_json() {
        let until = NOW.plus(Span::from_secs(5));
        let acts = [
            (Act::retry(), r#"{"act":"retry"}"#),
            (Act::PullBack, r#"{"act":"pull_back"}"#),
            (Act::Hold { on: true }, r#"{"act":"hold","on":true}"#),
            (Act::Snooze { until }, r#"{"act":"snooze","until":"1970-01-01T00:16:45.000Z"}"#),
            (Act::Assign { to: None }, r#"{"act":"assign","to":null}"#),
            (Act::Move { dlq: "d".parse().unwrap() }, r#"{"act":"move","dlq":"d"}"#),
        ];
        for (act, json) in acts {
            assert_eq!(serde_json::to_string(&act).unwrap(), json);
            assert_eq!(serde_json::from_str::<Act>(json).unwrap(), act);
        }
        let old = r#"{"act":"retry","at":"1970-01-01T00:16:45.000Z"}"#;
        assert_eq!(
            serde_json::from_str::<Act>(old).unwrap(),
            Act::retry_at(until),
            "as older versions wrote it"
        );
    }
}
