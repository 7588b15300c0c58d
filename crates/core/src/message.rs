//! A message in its forms: as handed in ([`NewMessage`]), its immutable part ([`Envelope`]), as a store keeps
//! it ([`StoredMessage`]) and as users see it ([`Message`]). Payload bytes are opaque and never re-encoded.

use crate::dead_letter::Retry;
use crate::error::Refusal;
use crate::failure::Failure;
use crate::ids::{LeaseToken, MessageId, QueueName};
use crate::lifecycle::{Lifecycle, Phase, State};
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

/// A message to enqueue. The caller chooses the id, so that repeating the enqueue is harmless.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewMessage {
    /// The identity. A second enqueue of the same id with the same body is a repetition, not a new message.
    pub id: MessageId,
    /// The queue to enqueue to.
    pub queue: QueueName,
    /// The type of the work.
    #[serde(default)]
    pub kind: String,
    /// The priority. Defaults to the queue's policy.
    #[serde(default)]
    pub priority: Option<Priority>,
    /// The payload.
    #[serde(flatten)]
    pub payload: Payload,
    /// Metadata for handlers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Labels for operators.
    #[serde(default)]
    pub tags: BTreeSet<String>,
    /// The idempotency key.
    #[serde(default)]
    pub key: Option<String>,
    /// The ordering key. Messages with the same key are processed one at a time, in the order of enqueue.
    #[serde(default)]
    pub ordering_key: Option<String>,
    /// The queue that replies go to.
    #[serde(default)]
    pub reply_to: Option<QueueName>,
    /// The W3C trace context.
    #[serde(default)]
    pub trace: Option<String>,
    /// Free JSON about the origin of the work, such as a task, a repository or a tenant.
    #[serde(default)]
    pub context: Option<serde_json::Value>,
    /// How long to wait before the first attempt.
    #[serde(default, rename = "delay_ms", alias = "delay")]
    pub delay: Option<Span>,
    /// How long after enqueue the message expires. Defaults to the queue's policy.
    #[serde(default, rename = "ttl_ms", alias = "ttl")]
    pub ttl: Option<Span>,
    /// The time by which the message must be done.
    #[serde(default)]
    pub deadline: Option<Time>,
    /// The number of executions allowed. Defaults to the queue's policy.
    #[serde(default)]
    pub max_attempts: Option<u32>,
    /// The name of the sender.
    #[serde(default)]
    pub enqueued_by: Option<String>,
}

pub(crate) fn check_length(field: &str, length: usize, max: usize) -> Result<(), Refusal> {
    if length <= max {
        return Ok(());
    }
    Err(Refusal::invalid(field, format!("{length} bytes; at most {max} are allowed")))
}

/// Refuses control characters, because names and labels end up in terminals and logs.
pub(crate) fn check_printable(field: &str, text: &str, max: usize) -> Result<(), Refusal> {
    check_length(field, text.len(), max)?;
    if text.chars().any(char::is_control) {
        return Err(Refusal::invalid(
            field,
            "contains a control character; only check_printable text is allowed",
        ));
    }
    Ok(())
}

/// Refuses too many headers, and headers that are too long.
pub(crate) fn check_headers(headers: &BTreeMap<String, String>) -> Result<(), Refusal> {
    if headers.len() > limits::HEADERS_MAX {
        return Err(Refusal::invalid("headers", format!("more than {} headers", limits::HEADERS_MAX)));
    }
    check_length("headers", headers.iter().map(|(k, v)| k.len() + v.len()).sum(), limits::HEADER_BYTES_MAX)
}

/// Refuses a span that is out of bounds.
pub(crate) fn check_span(field: &str, span: Span, min: Span, max: Span) -> Result<(), Refusal> {
    if span < min || span > max {
        return Err(Refusal::invalid(field, format!("{span} is outside {min} to {max}")));
    }
    Ok(())
}

impl NewMessage {
    /// A message that leaves everything else to the defaults.
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

    /// Checks every field against its limit (I49).
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] for the first field that is out of bounds.
    pub fn check(&self) -> Result<(), Refusal> {
        self.payload.check("payload")?;
        check_printable("kind", &self.kind, limits::NAME_BYTES_MAX)?;
        check_headers(&self.headers)?;
        if self.tags.len() > limits::TAGS_MAX {
            return Err(Refusal::invalid("tags", format!("more than {} tags", limits::TAGS_MAX)));
        }
        for tag in &self.tags {
            check_printable("tags", tag, limits::TAG_BYTES_MAX)?;
        }
        for (field, value) in [("key", &self.key), ("ordering_key", &self.ordering_key)] {
            if let Some(value) = value {
                check_printable(field, value, limits::KEY_BYTES_MAX)?;
                if value.is_empty() {
                    return Err(Refusal::invalid(field, "is empty; leave it out instead"));
                }
            }
        }
        for (field, value) in [("trace", &self.trace), ("enqueued_by", &self.enqueued_by)] {
            if let Some(value) = value {
                check_printable(field, value, limits::LABEL_BYTES_MAX)?;
            }
        }
        if let Some(context) = &self.context {
            check_length("context", context.to_string().len(), limits::CONTEXT_BYTES_MAX)?;
        }
        if let Some(delay) = self.delay {
            check_span("delay", delay, Span::ZERO, limits::SPAN_MAX)?;
        }
        if let Some(ttl) = self.ttl {
            check_span("ttl", ttl, Span::from_millis(1), limits::SPAN_MAX)?;
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

    /// The hash by which idempotency compares two messages. It covers everything that reaches the handler.
    #[must_use]
    pub fn body_hash(&self) -> [u8; 32] {
        body_hash(&self.queue, &self.kind, &self.payload, &self.headers, self.ordering_key.as_deref())
    }

    /// Turns the message into the record that the store keeps, with the queue's defaults filled in.
    #[must_use]
    pub fn accept(self, policy: &QueuePolicy, seq: u64, now: Time) -> StoredMessage {
        let ready_at = now.plus(self.delay.unwrap_or(Span::ZERO));
        let ttl = self.ttl.or(policy.ttl);
        StoredMessage {
            lifecycle: Lifecycle::new(ready_at, now),
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

/// Hashes a body. A byte that a part cannot contain ends it, a length precedes it, or it comes last, so that
/// different bodies never hash the same input.
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde demands this signature")]
const fn is_unset(seq: &u64) -> bool {
    *seq == 0
}

/// The part of a message that does not change between enqueue and purge. Only a redrive may change the queue,
/// the priority or the number of attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Envelope {
    /// The identity.
    pub id: MessageId,
    /// The position in the order of enqueues. It survives retries and redrives, so that messages of an ordering
    /// key keep their order. Each store assigns its own, so exports omit it.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub seq: u64,
    /// The queue.
    pub queue: QueueName,
    /// The queue of the first enqueue, if a redrive has since sent the message to another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<QueueName>,
    /// The type of the work. May be empty.
    #[serde(default)]
    pub kind: String,
    /// The priority.
    #[serde(default)]
    pub priority: Priority,
    /// The payload, byte for byte.
    #[serde(flatten)]
    pub payload: Payload,
    /// Metadata for handlers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Labels for operators.
    #[serde(default)]
    pub tags: BTreeSet<String>,
    /// The idempotency key.
    #[serde(default)]
    pub key: Option<String>,
    /// The ordering key.
    #[serde(default)]
    pub ordering_key: Option<String>,
    /// The queue that replies go to.
    #[serde(default)]
    pub reply_to: Option<QueueName>,
    /// The W3C trace context.
    #[serde(default)]
    pub trace: Option<String>,
    /// Free JSON about the origin of the work.
    #[serde(default)]
    pub context: Option<serde_json::Value>,
    /// The number of executions allowed for this message. Defaults to the queue's policy.
    #[serde(default)]
    pub max_attempts: Option<u32>,
    /// The delay that the message was enqueued with.
    #[serde(default, rename = "delay_ms")]
    pub delay: Option<Span>,
    /// How long after enqueue the message expires.
    #[serde(default, rename = "ttl_ms")]
    pub ttl: Option<Span>,
    /// The time by which the message must be done.
    #[serde(default)]
    pub deadline: Option<Time>,
    /// The name of the sender.
    #[serde(default)]
    pub enqueued_by: Option<String>,
    /// When the message was first accepted.
    pub enqueued_at: Time,
}

impl Envelope {
    /// When the ttl ends. `None` if the message has no ttl.
    #[must_use]
    pub fn expires_at(&self) -> Option<Time> {
        self.ttl.map(|ttl| self.enqueued_at.plus(ttl))
    }

    /// The number of executions allowed under this policy.
    #[must_use]
    pub fn max_attempts(&self, policy: &QueuePolicy) -> u32 {
        MessageLimits::from(self).max_attempts(policy)
    }

    /// The queue of the first enqueue. Its idempotency key is registered there.
    #[must_use]
    pub fn home(&self) -> &QueueName {
        self.origin.as_ref().unwrap_or(&self.queue)
    }

    /// The hash of the message as it was enqueued; see [`NewMessage::body_hash`].
    #[must_use]
    pub fn body_hash(&self) -> [u8; 32] {
        body_hash(self.home(), &self.kind, &self.payload, &self.headers, self.ordering_key.as_deref())
    }

    /// The number of bytes that count towards the queue's byte limit.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.payload.bytes.len() as u64
    }
}

/// The limits of a message, by count and by clock: the part of an envelope that a verdict depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageLimits {
    /// The number of executions allowed for this message. `None` leaves it to the queue's policy.
    pub max_attempts: Option<u32>,
    /// When the ttl ends.
    pub expires_at: Option<Time>,
    /// The time by which the message must be done.
    pub deadline: Option<Time>,
}

impl MessageLimits {
    /// The number of executions allowed under this policy.
    #[must_use]
    pub fn max_attempts(&self, policy: &QueuePolicy) -> u32 {
        self.max_attempts.unwrap_or(policy.max_attempts)
    }

    /// The limits that apply in a generation. Ttl and deadline bind only the first: a redrive is a decision
    /// that the message shall run although its time has passed.
    #[must_use]
    pub fn in_generation(self, generation: u32) -> Self {
        if generation <= 1 { self } else { Self { expires_at: None, deadline: None, ..self } }
    }

    /// The earlier of the end of the ttl and the deadline. From then on the message is not leased any more.
    #[must_use]
    pub fn useless_at(&self) -> Option<Time> {
        match (self.expires_at, self.deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

impl From<&Envelope> for MessageLimits {
    fn from(e: &Envelope) -> Self {
        Self { max_attempts: e.max_attempts, expires_at: e.expires_at(), deadline: e.deadline }
    }
}

/// The part of an envelope that decisions depend on. It is small enough to be read and written on every call,
/// while the payload, the headers and the rest stay where they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageMeta {
    /// The identity.
    pub id: MessageId,
    /// The position in the order of enqueues.
    pub seq: u64,
    /// The queue.
    pub queue: QueueName,
    /// The queue of the first enqueue, if it is another one.
    pub origin: Option<QueueName>,
    /// The type of the work.
    pub kind: String,
    /// The priority.
    pub priority: Priority,
    /// The number of payload bytes.
    pub size: u64,
    /// The idempotency key.
    pub key: Option<String>,
    /// The ordering key.
    pub ordering_key: Option<String>,
    /// The limits by count and by clock.
    pub limits: MessageLimits,
    /// The value that selects the message's breaker, if it was read from headers or payload at enqueue.
    pub breaker: Option<String>,
    /// The queue that replies go to.
    pub reply_to: Option<QueueName>,
}

impl MessageMeta {
    /// The queue of the first enqueue. Its idempotency key is registered there.
    #[must_use]
    pub fn home(&self) -> &QueueName {
        self.origin.as_ref().unwrap_or(&self.queue)
    }

    /// The metadata of the live message after a redrive with these options. The breaker value is copied: a
    /// caller that redrives to another queue derives it anew from the policy of that queue.
    #[must_use]
    pub fn sent_back(&self, retry: &Retry) -> Self {
        let queue = retry.queue.clone().unwrap_or_else(|| self.queue.clone());
        Self {
            origin: Some(self.home()).filter(|home| **home != queue).cloned(),
            queue,
            priority: retry.priority.unwrap_or(self.priority),
            limits: MessageLimits {
                max_attempts: retry.max_attempts.or(self.limits.max_attempts),
                ..self.limits
            },
            ..self.clone()
        }
    }
}

impl From<&Envelope> for MessageMeta {
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
            limits: e.into(),
            breaker: None,
            reply_to: e.reply_to.clone(),
        }
    }
}

impl From<&StoredMessage> for MessageMeta {
    fn from(record: &StoredMessage) -> Self {
        (&record.envelope).into()
    }
}

/// A message as a store keeps it.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredMessage {
    /// The immutable part.
    pub envelope: Envelope,
    /// The mutable part.
    pub lifecycle: Lifecycle,
}

impl StoredMessage {
    /// The public view of the message at `now`.
    #[must_use]
    pub fn view(&self, policy: &QueuePolicy, now: Time) -> Message {
        let lease = self.lifecycle.lease();
        Message {
            envelope: Envelope {
                max_attempts: Some(self.envelope.max_attempts(policy)),
                ..self.envelope.clone()
            },
            state: self.lifecycle.state(now),
            attempts: self.lifecycle.attempts,
            deliveries: self.lifecycle.deliveries,
            generation: self.lifecycle.generation,
            failed: self.lifecycle.failed,
            ready_at: self.lifecycle.ready_at,
            first_received_at: self.lifecycle.first_received_at,
            updated_at: self.lifecycle.updated_at,
            leased_by: lease.map(|l| l.worker.clone()),
            lease_expires_at: lease.map(|l| l.expires_at),
            progress: self.lifecycle.progress.clone(),
            poison: match self.lifecycle.phase {
                Phase::Waiting | Phase::Leased(_) => self.lifecycle.indicators.suspicion(),
                Phase::Dead | Phase::Over(_) => None,
            },
            failures: Vec::new(),
            masked: false,
        }
    }
}

/// The public view of a message, with the same fields in CLI, API and exports. It never carries the secret of a
/// lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The immutable part, with `max_attempts` as the message or its queue's policy sets it.
    #[serde(flatten)]
    pub envelope: Envelope,
    /// The state at the time of the view.
    pub state: State,
    /// Executions started in this generation.
    pub attempts: u32,
    /// Leases ever granted; the fencing number.
    pub deliveries: u32,
    /// Starts at 1 and increases with every redrive.
    pub generation: u32,
    /// Failed deliveries in all generations.
    pub failed: u32,
    /// When the message becomes ready.
    pub ready_at: Time,
    /// When the message was first leased.
    pub first_received_at: Option<Time>,
    /// When the message last changed.
    pub updated_at: Time,
    /// The name of the worker that holds the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leased_by: Option<String>,
    /// When the lease ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Time>,
    /// The progress that the handler last reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// How close the message is to being classified as poison. `None` while its failures are unsuspicious.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poison: Option<Suspicion>,
    /// The first and last ten failures. Only filled in when a single message is shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
    /// Whether secrets are masked. A store does not accept a masked view as a message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub masked: bool,
}

/// One attempt, leased to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Delivery {
    /// The message. Its `lease_expires_at` is the end of the lease.
    #[serde(flatten)]
    pub message: Message,
    /// The token that settles this delivery.
    pub token: LeaseToken,
    /// The number of this execution within the generation, starting at 1.
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
    fn a_value_over_its_limit_is_refused_by_field() {
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
