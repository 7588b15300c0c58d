//! Replies: messages to the queue that a message names in `reply_to`. A reply carries the worker's answer, or
//! an error if the message died for good or was dropped. No reply goes out while another attempt is planned,
//! whether a retry or an automatic redrive ([`crate::dead_letter::LetterRecord::owes_reply`]). A store sends
//! the reply in the commit of the outcome that causes it. This module only builds replies.

use crate::failure::{ErrorInfo, Reason, named};
use crate::ids::{MessageId, QueueName};
use crate::lifecycle::{Effect, Final, Lifecycle};
use crate::message::{MessageLimits, MessageMeta, NewMessage, Payload};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// The kind of every reply.
pub const KIND: &str = "reply";
/// The header with the id of the message that a reply answers.
pub const IN_REPLY_TO: &str = "in-reply-to";
/// The header with the status of that message.
pub const STATUS: &str = "reply-status";
/// The sender of every reply.
pub const SENDER: &str = "redrive";

named! {
    /// How the message ended that a reply answers.
    ReplyStatus, "reply status", {
        /// The message is done, and the payload is the worker's answer.
        Done = "done",
        /// The message is a dead letter, and the payload says why. After a redrive it may still be answered.
        Dead = "dead",
        /// The message was dropped because its ttl or deadline passed.
        Expired = "expired",
    }
}

/// The payload of an error reply.
#[derive(Debug, Serialize)]
struct ErrorReply<'a> {
    id: MessageId,
    status: ReplyStatus,
    error: ErrorReplyCause<'a>,
    reason: Reason,
    attempts: u32,
    generation: u32,
}

/// The part of an error that a sender may see, without stack and context.
#[derive(Debug, Serialize)]
struct ErrorReplyCause<'a> {
    r#type: &'a str,
    message: &'a str,
    code: Option<&'a str>,
}

/// A reply that is due.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The queue that the reply goes to.
    pub to: QueueName,
    /// How the message ended.
    pub status: ReplyStatus,
    /// The payload.
    pub payload: Payload,
}

/// The reply that follows from a transition: the worker's answer if the message is done, an error if it died or
/// was dropped. Returns `None` for a plain ack, and for cancel and purge, because those who removed the message
/// know about it.
#[must_use]
pub fn due(
    meta: &MessageMeta,
    lifecycle: &Lifecycle,
    effect: Effect,
    answer: Option<Payload>,
    error: Option<&ErrorInfo>,
) -> Option<Reply> {
    let to = meta.reply_to.clone()?;
    let error_reply = |status, reason| {
        let unknown = ErrorInfo::default();
        let error = error.unwrap_or(&unknown);
        let reply = ErrorReply {
            id: meta.id,
            status,
            error: ErrorReplyCause {
                r#type: &error.error_type,
                message: &error.message,
                code: error.code.as_deref(),
            },
            reason,
            attempts: lifecycle.attempts,
            generation: lifecycle.generation,
        };
        // Text and numbers always serialize. Even an empty payload would carry the status in its header.
        (status, Payload::json(&reply).unwrap_or_default())
    };
    let (status, payload) = match effect {
        Effect::Ended(Final::Done) => (ReplyStatus::Done, answer?),
        Effect::Died(reason) => error_reply(ReplyStatus::Dead, reason),
        Effect::Ended(Final::Expired) => error_reply(ReplyStatus::Expired, missed_limit(meta.limits)),
        Effect::Ended(Final::Cancelled | Final::Purged)
        | Effect::Granted
        | Effect::Retried
        | Effect::GivenBack
        | Effect::Extended
        | Effect::Revived
        | Effect::PulledBack => return None,
    };
    Some(Reply { to, status, payload })
}

/// Which limit a dropped message missed: the one that ended first.
fn missed_limit(limits: MessageLimits) -> Reason {
    match (limits.deadline, limits.expires_at) {
        (Some(deadline), Some(ttl)) if ttl < deadline => Reason::Expired,
        (Some(_), _) => Reason::Deadline,
        (None, _) => Reason::Expired,
    }
}

/// The id of the reply to one outcome of a message. It is always the same, so that the reply cannot be sent
/// twice.
#[must_use]
pub fn id(message: MessageId, generation: u32, deliveries: u32) -> MessageId {
    let bytes = message.to_bytes();
    let mut hash = Sha256::new();
    hash.update(b"reply");
    hash.update(bytes);
    hash.update(generation.to_be_bytes());
    hash.update(deliveries.to_be_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let (mut time, mut random) = ([0; 8], [0; 10]);
    for (to, from) in time.iter_mut().skip(2).zip(bytes) {
        *to = from;
    }
    for (to, from) in random.iter_mut().zip(digest) {
        *to = from;
    }
    MessageId::new(u64::from_be_bytes(time), random)
}

impl Reply {
    /// The message that carries the reply. It has the priority of the message it answers and belongs to the
    /// same trace.
    #[must_use]
    pub fn message(self, meta: &MessageMeta, lifecycle: &Lifecycle, trace: Option<String>) -> NewMessage {
        let headers = [
            (IN_REPLY_TO.to_owned(), meta.id.to_string()),
            (STATUS.to_owned(), self.status.name().to_owned()),
        ];
        NewMessage {
            kind: KIND.into(),
            priority: Some(meta.priority),
            headers: headers.into(),
            trace,
            enqueued_by: Some(SENDER.into()),
            ..NewMessage::new(id(meta.id, lifecycle.generation, lifecycle.deliveries), self.to, self.payload)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::QueuePolicy;
    use crate::time::{Span, Time};

    fn with_reply_to() -> (MessageMeta, Lifecycle) {
        let new = NewMessage {
            reply_to: Some("answers".parse().unwrap()),
            ..NewMessage::new(MessageId::new(7, [1; 10]), "q".parse().unwrap(), Payload::default())
        };
        let record = new.accept(&QueuePolicy::default(), 1, Time::from_millis(5));
        ((&record).into(), record.lifecycle)
    }

    fn answer() -> Option<Payload> {
        Some(Payload { bytes: b"42".to_vec(), content_type: "text/plain".into() })
    }

    #[test]
    fn only_final_outcomes_are_answered() {
        let (meta, lifecycle) = with_reply_to();
        let status = |effect, answer| due(&meta, &lifecycle, effect, answer, None).map(|reply| reply.status);
        assert_eq!(status(Effect::Ended(Final::Done), answer()), Some(ReplyStatus::Done));
        assert_eq!(status(Effect::Ended(Final::Done), None), None, "a plain ack sends no reply");
        assert_eq!(status(Effect::Died(Reason::Poison), None), Some(ReplyStatus::Dead));
        assert_eq!(status(Effect::Ended(Final::Expired), None), Some(ReplyStatus::Expired));
        for silent in [
            Effect::Retried,
            Effect::GivenBack,
            Effect::Granted,
            Effect::Extended,
            Effect::Revived,
            Effect::PulledBack,
            Effect::Ended(Final::Cancelled),
            Effect::Ended(Final::Purged),
        ] {
            assert_eq!(status(silent, answer()), None, "{silent:?}");
        }
        let without_reply_to = MessageMeta { reply_to: None, ..meta.clone() };
        assert_eq!(due(&without_reply_to, &lifecycle, Effect::Ended(Final::Done), answer(), None), None);
    }

    #[test]
    fn an_error_reply_says_what_and_why() {
        let (meta, lifecycle) = with_reply_to();
        let lifecycle = Lifecycle { attempts: 3, generation: 2, ..lifecycle };
        let error = ErrorInfo {
            error_type: "HttpError".into(),
            message: "no".into(),
            code: Some("504".into()),
            stack: Some("secret".into()),
            ..ErrorInfo::default()
        };
        let reply = due(&meta, &lifecycle, Effect::Died(Reason::MaxAttempts), None, Some(&error)).unwrap();
        let payload: serde_json::Value = serde_json::from_slice(&reply.payload.bytes).unwrap();
        let expected = serde_json::json!({
            "id": meta.id, "status": "dead", "reason": "max_attempts", "attempts": 3, "generation": 2,
            "error": {"type": "HttpError", "message": "no", "code": "504"},
        });
        assert_eq!(payload, expected);
        let message = reply.message(&meta, &lifecycle, Some("00-trace".into()));
        assert_eq!(message.check(), Ok(()));
        assert_eq!(message.headers[IN_REPLY_TO], meta.id.to_string());
        assert_eq!((message.headers[STATUS].as_str(), message.kind.as_str()), ("dead", "reply"));
        assert_eq!(message.trace.as_deref(), Some("00-trace"));
    }

    #[test]
    fn each_outcome_has_one_identity() {
        let one = MessageId::new(1_700_000_000_000, [1; 10]);
        assert_eq!(id(one, 1, 3), id(one, 1, 3));
        let others = [id(one, 1, 3), id(one, 2, 3), id(one, 1, 4), id(MessageId::new(1, [1; 10]), 1, 3), one];
        let distinct: std::collections::BTreeSet<_> = others.iter().collect();
        assert_eq!(distinct.len(), others.len());
        assert_eq!(
            one.to_bytes()[..6],
            id(one, 1, 3).to_bytes()[..6],
            "it sorts next to the message it answers"
        );
    }

    #[test]
    fn the_limit_that_ended_first_is_the_one_missed() {
        let at = |s| Some(Time::ZERO.plus(Span::from_secs(s)));
        let limits = |deadline, expires_at| MessageLimits { deadline, expires_at, max_attempts: None };
        assert_eq!(missed_limit(limits(at(1), None)), Reason::Deadline);
        assert_eq!(missed_limit(limits(at(1), at(2))), Reason::Deadline);
        assert_eq!(missed_limit(limits(at(2), at(1))), Reason::Expired);
        assert_eq!(missed_limit(limits(None, at(1))), Reason::Expired);
    }
}
