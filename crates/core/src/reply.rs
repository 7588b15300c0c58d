//! Replies: what is sent to the queue that a message names in `reply_to`. An answer, when the worker gives one;
//! an error, when the message has died for good or was dropped; never anything while another attempt is planned, be it
//! a retry or an automatic redrive ([`crate::dead_letter::File::owes_reply`]). A store sends it in the commit of the
//! outcome that causes it. This file says what is in it; it sends nothing.

use crate::failure::{ErrorInfo, Reason, named};
use crate::ids::{MessageId, QueueName};
use crate::lifecycle::{Effect, Final, Life};
use crate::message::{NewMessage, Payload, Slip, Terms};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::str::FromStr;

/// The kind of every reply.
pub const KIND: &str = "reply";
/// The header that names the message a reply is for.
pub const IN_REPLY_TO: &str = "in-reply-to";
/// The header that says how it went.
pub const STATUS: &str = "reply-status";
/// Who is named as the sender of a reply.
pub const SENDER: &str = "redrive";

named! {
    /// How the message ended that a reply is for.
    ReplyStatus, "reply status", {
        /// Done; the payload is the worker's answer.
        Done = "done",
        /// A dead letter; the payload says why. It may be sent back and then answer after all.
        Dead = "dead",
        /// Its time was over and its queue drops such messages.
        Expired = "expired",
    }
}

/// The payload of a reply that is not an answer.
#[derive(Debug, Serialize)]
struct Trouble<'a> {
    id: MessageId,
    status: ReplyStatus,
    error: TroubleError<'a>,
    reason: Reason,
    attempts: u32,
    generation: u32,
}

/// What of an error is for strangers: no stack, no trail.
#[derive(Debug, Serialize)]
struct TroubleError<'a> {
    r#type: &'a str,
    message: &'a str,
    code: Option<&'a str>,
}

/// A reply that is due: everything but where the bytes of an answer come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// The queue it goes to.
    pub to: QueueName,
    /// How the message ended.
    pub status: ReplyStatus,
    /// The payload.
    pub payload: Payload,
}

/// The reply that follows from a change, if one does: the worker's answer when the message is done, an error when
/// it died or was dropped. A bare ack sends nothing, nor do cancel and purge: those who took the message away
/// know it.
#[must_use]
pub fn due(
    slip: &Slip,
    life: &Life,
    effect: Effect,
    answer: Option<Payload>,
    error: Option<&ErrorInfo>,
) -> Option<Reply> {
    let to = slip.reply_to.clone()?;
    let trouble = |status, reason| {
        let unknown = ErrorInfo::default();
        let error = error.unwrap_or(&unknown);
        let trouble = Trouble {
            id: slip.id,
            status,
            error: TroubleError {
                r#type: &error.error_type,
                message: &error.message,
                code: error.code.as_deref(),
            },
            reason,
            attempts: life.attempts,
            generation: life.generation,
        };
        // Text and numbers can always be written; an empty payload would still carry the status in its header.
        (status, Payload::json(&trouble).unwrap_or_default())
    };
    let (status, payload) = match effect {
        Effect::Ended(Final::Done) => (ReplyStatus::Done, answer?),
        Effect::Died(reason) => trouble(ReplyStatus::Dead, reason),
        Effect::Ended(Final::Expired) => trouble(ReplyStatus::Expired, too_late_by(slip.terms)),
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

/// Which of its times a dropped message did not keep: the one that comes first.
fn too_late_by(terms: Terms) -> Reason {
    match (terms.deadline, terms.expires_at) {
        (Some(deadline), Some(ttl)) if ttl < deadline => Reason::Expired,
        (Some(_), _) => Reason::Deadline,
        (None, _) => Reason::Expired,
    }
}

/// The identity of the reply to one outcome of one message: always the same, so that it cannot be sent twice.
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
    /// The message that carries the reply. It is as urgent as what it answers, and belongs to the same trace.
    #[must_use]
    pub fn message(self, slip: &Slip, life: &Life, trace: Option<String>) -> NewMessage {
        let headers = [
            (IN_REPLY_TO.to_owned(), slip.id.to_string()),
            (STATUS.to_owned(), self.status.name().to_owned()),
        ];
        NewMessage {
            kind: KIND.into(),
            priority: Some(slip.priority),
            headers: headers.into(),
            trace,
            enqueued_by: Some(SENDER.into()),
            ..NewMessage::new(id(slip.id, life.generation, life.deliveries), self.to, self.payload)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::QueuePolicy;
    use crate::time::{Span, Time};

    fn asked() -> (Slip, Life) {
        let new = NewMessage {
            reply_to: Some("answers".parse().unwrap()),
            ..NewMessage::new(MessageId::new(7, [1; 10]), "q".parse().unwrap(), Payload::default())
        };
        let record = new.accept(&QueuePolicy::default(), 1, Time::from_millis(5));
        ((&record).into(), record.life)
    }

    fn answer() -> Option<Payload> {
        Some(Payload { bytes: b"42".to_vec(), content_type: "text/plain".into() })
    }

    #[test]
    fn only_ends_are_answered() {
        let (slip, life) = asked();
        let status = |effect, answer| due(&slip, &life, effect, answer, None).map(|reply| reply.status);
        assert_eq!(status(Effect::Ended(Final::Done), answer()), Some(ReplyStatus::Done));
        assert_eq!(status(Effect::Ended(Final::Done), None), None, "a bare ack says nothing");
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
        let alone = Slip { reply_to: None, ..slip.clone() };
        assert_eq!(due(&alone, &life, Effect::Ended(Final::Done), answer(), None), None);
    }

    #[test]
    fn an_error_reply_says_what_and_why() {
        let (slip, life) = asked();
        let life = Life { attempts: 3, generation: 2, ..life };
        let error = ErrorInfo {
            error_type: "HttpError".into(),
            message: "no".into(),
            code: Some("504".into()),
            stack: Some("secret".into()),
            ..ErrorInfo::default()
        };
        let reply = due(&slip, &life, Effect::Died(Reason::MaxAttempts), None, Some(&error)).unwrap();
        let said: serde_json::Value = serde_json::from_slice(&reply.payload.bytes).unwrap();
        let expected = serde_json::json!({
            "id": slip.id, "status": "dead", "reason": "max_attempts", "attempts": 3, "generation": 2,
            "error": {"type": "HttpError", "message": "no", "code": "504"},
        });
        assert_eq!(said, expected);
        let message = reply.message(&slip, &life, Some("00-trace".into()));
        assert_eq!(message.check(), Ok(()));
        assert_eq!(message.headers[IN_REPLY_TO], slip.id.to_string());
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
        assert_eq!(one.to_bytes()[..6], id(one, 1, 3).to_bytes()[..6], "it sorts beside what it answers");
    }

    #[test]
    fn the_first_of_its_times_is_the_one_not_kept() {
        let at = |s| Some(Time::ZERO.plus(Span::from_secs(s)));
        let terms = |deadline, expires_at| Terms { deadline, expires_at, max_attempts: None };
        assert_eq!(too_late_by(terms(at(1), None)), Reason::Deadline);
        assert_eq!(too_late_by(terms(at(1), at(2))), Reason::Deadline);
        assert_eq!(too_late_by(terms(at(2), at(1))), Reason::Expired);
        assert_eq!(too_late_by(terms(None, at(1))), Reason::Expired);
    }
}
