//! A message: what was handed in ([`NewMessage`]), what never changes about it ([`Envelope`]), what a store
//! keeps ([`Record`]) and what people see ([`Message`]). Payload bytes are opaque and never re-encoded.

use crate::dead_letter::Retry;
use crate::error::Refusal;
use crate::failure::Failure;
use crate::ids::{LeaseToken, MessageId, QueueName};
use crate::lifecycle::{Life, Phase, State};
use crate::limits;
pub use crate::payload::Payload;
use crate::poison::Suspicion;
use crate::policy::QueuePolicy;
pub use crate::priority::Priority;
use crate::progress::Progress;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Work as it is handed in. The id is made by whoever accepts it, so that asking again is harmless.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewMessage {
    /// The identity; the same id with the same body is the same message.
    pub id: MessageId,
    /// Where it goes.
    pub queue: QueueName,
    /// The operation type.
    #[serde(default)]
    pub kind: String,
    /// How urgent; the queue's default when not said.
    #[serde(default)]
    pub priority: Option<Priority>,
    /// The bytes.
    #[serde(flatten)]
    pub payload: Payload,
    /// Metadata for handlers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Labels for people.
    #[serde(default)]
    pub tags: BTreeSet<String>,
    /// Idempotency key.
    #[serde(default)]
    pub key: Option<String>,
    /// Messages with the same ordering key are worked on one at a time, in order.
    #[serde(default)]
    pub ordering_key: Option<String>,
    /// Where replies go.
    #[serde(default)]
    pub reply_to: Option<QueueName>,
    /// W3C trace context.
    #[serde(default)]
    pub trace: Option<String>,
    /// Free JSON: task, repository, tenant.
    #[serde(default)]
    pub context: Option<serde_json::Value>,
    /// Not before this long from now.
    #[serde(default, rename = "delay_ms", alias = "delay")]
    pub delay: Option<Span>,
    /// Useless this long after enqueue; the queue's default when not said.
    #[serde(default, rename = "ttl_ms", alias = "ttl")]
    pub ttl: Option<Span>,
    /// Must be done by then.
    #[serde(default)]
    pub deadline: Option<Time>,
    /// Executions allowed; the queue's default when not said.
    #[serde(default)]
    pub max_attempts: Option<u32>,
    /// Who sent it.
    #[serde(default)]
    pub enqueued_by: Option<String>,
}

pub(crate) fn bounded(field: &str, length: usize, max: usize) -> Result<(), Refusal> {
    if length <= max {
        return Ok(());
    }
    Err(Refusal::invalid(field, format!("{length} bytes; at most {max} are allowed")))
}

/// Names and labels end up in terminals and logs: no control characters.
pub(crate) fn printable(field: &str, text: &str, max: usize) -> Result<(), Refusal> {
    bounded(field, text.len(), max)?;
    if text.chars().any(char::is_control) {
        return Err(Refusal::invalid(field, "contains a control character; only printable text is allowed"));
    }
    Ok(())
}

/// Refuses too many headers, and too long ones.
pub(crate) fn check_headers(headers: &BTreeMap<String, String>) -> Result<(), Refusal> {
    if headers.len() > limits::HEADERS_MAX {
        return Err(Refusal::invalid("headers", format!("more than {} headers", limits::HEADERS_MAX)));
    }
    bounded("headers", headers.iter().map(|(k, v)| k.len() + v.len()).sum(), limits::HEADER_BYTES_MAX)
}

/// Refuses spans that are a typing mistake.
pub(crate) fn sane(field: &str, span: Span, min: Span, max: Span) -> Result<(), Refusal> {
    if span < min || span > max {
        return Err(Refusal::invalid(field, format!("{span} is outside {min} to {max}")));
    }
    Ok(())
}

impl NewMessage {
    /// A message with everything else left to the defaults.
    #[must_use]
    pub fn new(id: MessageId, queue: QueueName, payload: Payload) -> Self {
        Self {
            id,
            queue,
            kind: String::new(),
            priority: None,
            payload,
            headers: BTreeMap::new(),
            tags: BTreeSet::new(),
            key: None,
            ordering_key: None,
            reply_to: None,
            trace: None,
            context: None,
            delay: None,
            ttl: None,
            deadline: None,
            max_attempts: None,
            enqueued_by: None,
        }
    }

    /// Refuses what is over a limit, naming the field (I49).
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for the first field that is out of bounds.
    pub fn check(&self) -> Result<(), Refusal> {
        self.payload.check("payload")?;
        printable("kind", &self.kind, limits::NAME_BYTES_MAX)?;
        check_headers(&self.headers)?;
        if self.tags.len() > limits::TAGS_MAX {
            return Err(Refusal::invalid("tags", format!("more than {} tags", limits::TAGS_MAX)));
        }
        for tag in &self.tags {
            printable("tags", tag, limits::TAG_BYTES_MAX)?;
        }
        for (field, value) in [("key", &self.key), ("ordering_key", &self.ordering_key)] {
            if let Some(value) = value {
                printable(field, value, limits::KEY_BYTES_MAX)?;
                if value.is_empty() {
                    return Err(Refusal::invalid(field, "is empty; leave it out instead"));
                }
            }
        }
        for (field, value) in [("trace", &self.trace), ("enqueued_by", &self.enqueued_by)] {
            if let Some(value) = value {
                printable(field, value, limits::LABEL_BYTES_MAX)?;
            }
        }
        if let Some(context) = &self.context {
            bounded("context", context.to_string().len(), limits::CONTEXT_BYTES_MAX)?;
        }
        if let Some(delay) = self.delay {
            sane("delay", delay, Span::ZERO, limits::SPAN_MAX)?;
        }
        if let Some(ttl) = self.ttl {
            sane("ttl", ttl, Span::from_millis(1), limits::SPAN_MAX)?;
        }
        match self.max_attempts {
            Some(n) if n == 0 || n > limits::ATTEMPTS_MAX => Err(Refusal::invalid(
                "max_attempts",
                format!(
                    "{n} is outside 1 to {}; it counts executions, the first included",
                    limits::ATTEMPTS_MAX
                ),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// What makes two messages the same for idempotency: everything that reaches the handler.
    #[must_use]
    pub fn body_hash(&self) -> [u8; 32] {
        body_hash(&self.queue, &self.kind, &self.payload, &self.headers, self.ordering_key.as_deref())
    }

    /// Fills in the queue's defaults: the record as it stands in the store from now on.
    #[must_use]
    pub fn accept(self, policy: &QueuePolicy, seq: u64, now: Time) -> Record {
        let ready_at = now.plus(self.delay.unwrap_or(Span::ZERO));
        let ttl = self.ttl.or(policy.ttl);
        Record {
            life: Life::new(ready_at, now),
            envelope: Envelope {
                id: self.id,
                seq,
                queue: self.queue,
                origin: None,
                kind: self.kind,
                priority: self.priority.unwrap_or(policy.priority),
                payload: self.payload,
                headers: self.headers,
                tags: self.tags,
                key: self.key,
                ordering_key: self.ordering_key,
                reply_to: self.reply_to,
                trace: self.trace,
                context: self.context,
                max_attempts: self.max_attempts,
                delay: self.delay,
                ttl,
                deadline: self.deadline,
                enqueued_by: self.enqueued_by,
                enqueued_at: now,
            },
        }
    }
}

/// Each part is closed by a byte that cannot be in it, or is last, so that no two bodies read the same.
fn body_hash(
    queue: &QueueName,
    kind: &str,
    payload: &Payload,
    headers: &BTreeMap<String, String>,
    ordering_key: Option<&str>,
) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [queue.as_str(), kind, &payload.content_type, ordering_key.unwrap_or("")] {
        hash.update(part);
        hash.update([0]);
    }
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hash.update([0]);
    hash.update(&payload.bytes);
    hash.finalize().into()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn no_place(seq: &u64) -> bool {
    *seq == 0
}

/// What never changes about a message, from enqueue to purge; only a redrive may send it to another queue, with
/// another priority or number of attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// The identity.
    pub id: MessageId,
    /// The place in the order of enqueues; stays through retry and redrive, so ordering keys keep their order.
    /// Each store has its own: exports leave it out.
    #[serde(default, skip_serializing_if = "no_place")]
    pub seq: u64,
    /// The queue.
    pub queue: QueueName,
    /// The queue it was first enqueued to, when it was sent back to another one since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<QueueName>,
    /// The operation type; may be empty.
    #[serde(default)]
    pub kind: String,
    /// How urgent.
    #[serde(default)]
    pub priority: Priority,
    /// The exact bytes.
    #[serde(flatten)]
    pub payload: Payload,
    /// Metadata for handlers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Labels for people.
    #[serde(default)]
    pub tags: BTreeSet<String>,
    /// Idempotency key.
    #[serde(default)]
    pub key: Option<String>,
    /// Ordering key.
    #[serde(default)]
    pub ordering_key: Option<String>,
    /// Where replies go.
    #[serde(default)]
    pub reply_to: Option<QueueName>,
    /// W3C trace context.
    #[serde(default)]
    pub trace: Option<String>,
    /// Free JSON.
    #[serde(default)]
    pub context: Option<serde_json::Value>,
    /// Executions allowed for this message alone; the queue's policy rules when nothing is said.
    #[serde(default)]
    pub max_attempts: Option<u32>,
    /// The delay it was enqueued with.
    #[serde(default, rename = "delay_ms")]
    pub delay: Option<Span>,
    /// How long after enqueue it is useless.
    #[serde(default, rename = "ttl_ms")]
    pub ttl: Option<Span>,
    /// When it must be done.
    #[serde(default)]
    pub deadline: Option<Time>,
    /// Who sent it.
    #[serde(default)]
    pub enqueued_by: Option<String>,
    /// When it was first accepted.
    pub enqueued_at: Time,
}

impl Envelope {
    /// When the ttl ends, if there is one.
    #[must_use]
    pub fn expires_at(&self) -> Option<Time> {
        self.ttl.map(|ttl| self.enqueued_at.plus(ttl))
    }

    /// Executions allowed under this policy.
    #[must_use]
    pub fn max_attempts(&self, policy: &QueuePolicy) -> u32 {
        Terms::from(self).max_attempts(policy)
    }

    /// The queue it was first enqueued to; its idempotency key is looked up there.
    #[must_use]
    pub fn home(&self) -> &QueueName {
        self.origin.as_ref().unwrap_or(&self.queue)
    }

    /// The hash of the message it came from; see [`NewMessage::body_hash`].
    #[must_use]
    pub fn body_hash(&self) -> [u8; 32] {
        body_hash(self.home(), &self.kind, &self.payload, &self.headers, self.ordering_key.as_deref())
    }

    /// What the message counts against a queue's byte limit.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.payload.bytes.len() as u64
    }
}

/// What limits a message's life, by count and by clock: all that judging needs of an envelope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Executions allowed for this message alone.
    pub max_attempts: Option<u32>,
    /// When the ttl ends.
    pub expires_at: Option<Time>,
    /// When it must be done.
    pub deadline: Option<Time>,
}

impl Terms {
    /// Executions allowed under this policy.
    #[must_use]
    pub fn max_attempts(&self, policy: &QueuePolicy) -> u32 {
        self.max_attempts.unwrap_or(policy.max_attempts)
    }

    /// The terms of a generation. Ttl and deadline bind the first one only: a redrive is somebody's decision
    /// that the message shall run although its time is over.
    #[must_use]
    pub fn in_generation(self, generation: u32) -> Self {
        if generation <= 1 { self } else { Self { expires_at: None, deadline: None, ..self } }
    }

    /// The earlier of ttl end and deadline: after it the message is not handed out any more.
    #[must_use]
    pub fn useless_at(&self) -> Option<Time> {
        match (self.expires_at, self.deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

impl From<&Envelope> for Terms {
    fn from(e: &Envelope) -> Self {
        Self { max_attempts: e.max_attempts, expires_at: e.expires_at(), deadline: e.deadline }
    }
}

/// The part of an envelope that decisions look at; small enough to be read and written on every verb, while
/// the payload and what belongs to it stay where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slip {
    /// The identity.
    pub id: MessageId,
    /// The place in the order of enqueues.
    pub seq: u64,
    /// The queue.
    pub queue: QueueName,
    /// The queue it was first enqueued to, when that is another one.
    pub origin: Option<QueueName>,
    /// The operation type.
    pub kind: String,
    /// How urgent.
    pub priority: Priority,
    /// Payload bytes.
    pub size: u64,
    /// Idempotency key.
    pub key: Option<String>,
    /// Ordering key.
    pub ordering_key: Option<String>,
    /// What limits its life.
    pub terms: Terms,
    /// The value its breaker goes by, where that had to be read from headers or payload at enqueue.
    pub breaker: Option<String>,
    /// Where replies go.
    pub reply_to: Option<QueueName>,
}

impl Slip {
    /// The queue it was first enqueued to; its idempotency key is looked up there.
    #[must_use]
    pub fn home(&self) -> &QueueName {
        self.origin.as_ref().unwrap_or(&self.queue)
    }

    /// The slip of the live message when a letter is sent back like this. What its breaker goes by is the new
    /// queue's business.
    #[must_use]
    pub fn sent_back(&self, retry: &Retry) -> Self {
        let queue = retry.queue.clone().unwrap_or_else(|| self.queue.clone());
        Self {
            origin: Some(self.home()).filter(|home| **home != queue).cloned(),
            queue,
            priority: retry.priority.unwrap_or(self.priority),
            terms: Terms { max_attempts: retry.max_attempts.or(self.terms.max_attempts), ..self.terms },
            ..self.clone()
        }
    }
}

impl From<&Envelope> for Slip {
    fn from(e: &Envelope) -> Self {
        Self {
            id: e.id,
            seq: e.seq,
            queue: e.queue.clone(),
            origin: e.origin.clone(),
            kind: e.kind.clone(),
            priority: e.priority,
            size: e.size(),
            key: e.key.clone(),
            ordering_key: e.ordering_key.clone(),
            terms: e.into(),
            breaker: None,
            reply_to: e.reply_to.clone(),
        }
    }
}

impl From<&Record> for Slip {
    fn from(record: &Record) -> Self {
        (&record.envelope).into()
    }
}

/// A message as a store keeps it: what never changes, and where it is in its life.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// What never changes.
    pub envelope: Envelope,
    /// What does.
    pub life: Life,
}

impl Record {
    /// What people see of it at this instant.
    #[must_use]
    pub fn view(&self, policy: &QueuePolicy, now: Time) -> Message {
        let lease = self.life.lease();
        Message {
            envelope: Envelope {
                max_attempts: Some(self.envelope.max_attempts(policy)),
                ..self.envelope.clone()
            },
            state: self.life.state(now),
            attempts: self.life.attempts,
            deliveries: self.life.deliveries,
            generation: self.life.generation,
            failed: self.life.failed,
            ready_at: self.life.ready_at,
            first_received_at: self.life.first_received_at,
            updated_at: self.life.updated_at,
            leased_by: lease.map(|l| l.worker.clone()),
            lease_expires_at: lease.map(|l| l.expires_at),
            progress: self.life.progress.clone(),
            poison: match self.life.phase {
                Phase::Waiting | Phase::Leased(_) => self.life.indicators.suspicion(),
                Phase::Dead | Phase::Over(_) => None,
            },
            failures: Vec::new(),
            masked: false,
        }
    }
}

/// A message as people see it: one field list for CLI, API and exports. Never carries a lease's secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// What never changes; `max_attempts` shows what is allowed, by the message or by its queue.
    #[serde(flatten)]
    pub envelope: Envelope,
    /// Where it is in its life.
    pub state: State,
    /// Executions begun in this generation.
    pub attempts: u32,
    /// Leases granted ever; the fencing number.
    pub deliveries: u32,
    /// 1 at first, one more for every redrive.
    pub generation: u32,
    /// Failed deliveries ever.
    pub failed: u32,
    /// When it may be leased.
    pub ready_at: Time,
    /// When it was first leased.
    pub first_received_at: Option<Time>,
    /// When it last changed.
    pub updated_at: Time,
    /// Who works on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased_by: Option<String>,
    /// Until when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Time>,
    /// How far its handler said it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// How close it is to being taken for poison; nothing while it fails as others do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poison: Option<Suspicion>,
    /// What went wrong so far: the first and last ten. Filled in when one message is shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// Secrets are masked: this is a view of the message, and no store takes it for the message itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub masked: bool,
}

/// One attempt handed to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delivery {
    /// The message; its `lease_expires_at` says when the right ends.
    #[serde(flatten)]
    pub message: Message,
    /// The right to settle it.
    pub token: LeaseToken,
    /// Which execution of this generation this is; 1 is the first.
    pub attempt: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> NewMessage {
        NewMessage::new(MessageId::new(1, [1; 10]), "q".parse().unwrap(), Payload::default())
    }

    #[test]
    fn records_survive_json_with_their_field_names() {
        let mut m = message();
        m.payload.bytes = vec![0xc3, 0x28];
        m.ordering_key = Some("k".into());
        let record = m.accept(&QueuePolicy::default(), 7, Time::from_millis(5));
        let view = record.view(&QueuePolicy::default(), Time::from_millis(5));
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["payload_base64"], "wyg=");
        assert_eq!(json["enqueued_at"], "1970-01-01T00:00:00.005Z");
        assert_eq!(serde_json::from_value::<Message>(json).unwrap(), view);
    }

    #[test]
    fn what_is_over_a_limit_is_refused_by_field() {
        let refused = |change: fn(&mut NewMessage), field: &str| {
            let mut m = message();
            change(&mut m);
            match m.check() {
                Err(Refusal::Invalid { field: f, .. }) => assert_eq!(f, field),
                other => panic!("{field}: {other:?}"),
            }
        };
        refused(|m| m.payload.bytes = vec![0; limits::PAYLOAD_BYTES_MAX + 1], "payload");
        refused(|m| m.kind = "a\u{1b}[31m".into(), "kind");
        refused(|m| m.key = Some(String::new()), "key");
        refused(|m| m.ordering_key = Some("x".repeat(513)), "ordering_key");
        refused(|m| m.tags = (0..33).map(|i| i.to_string()).collect(), "tags");
        refused(|m| m.delay = Some(Span::from_days(4_000)), "delay");
        refused(|m| m.ttl = Some(Span::ZERO), "ttl");
        refused(|m| m.max_attempts = Some(0), "max_attempts");
        assert_eq!(message().check(), Ok(()));
    }

    #[test]
    fn the_body_hash_ignores_identity_and_sees_content() {
        let a = message();
        let mut b = message();
        b.id = MessageId::new(2, [2; 10]);
        b.key = Some("k".into());
        assert_eq!(a.body_hash(), b.body_hash());
        b.payload.bytes.push(1);
        assert_ne!(a.body_hash(), b.body_hash());
    }
}
