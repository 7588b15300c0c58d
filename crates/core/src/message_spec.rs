//! A message as people write it in JSON: the field names of a message, every one of them optional, and a payload that is
//! text or any JSON. Bulk enqueues and the API both read it.

use crate::error::Refusal;
use crate::ids::{MessageId, QueueName};
use crate::json_input;
use crate::message::{NewMessage, Payload, Priority};
use crate::time::{Span, Time};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};

/// A message as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageSpec {
    /// The id. Without it, the caller of [`Self::into_message`] chooses one.
    pub id: Option<MessageId>,
    /// The queue.
    pub queue: Option<QueueName>,
    kind: Option<String>,
    priority: Option<Priority>,
    #[serde(default, deserialize_with = "some_even_if_null")]
    payload: Option<Box<RawValue>>,
    payload_base64: Option<String>,
    content_type: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    tags: Option<BTreeSet<String>>,
    /// The idempotency key.
    pub key: Option<String>,
    ordering_key: Option<String>,
    reply_to: Option<QueueName>,
    /// The W3C trace context.
    pub trace: Option<String>,
    context: Option<serde_json::Value>,
    #[serde(alias = "delay_ms")]
    delay: Option<Span>,
    #[serde(alias = "ttl_ms")]
    ttl: Option<Span>,
    deadline: Option<Time>,
    max_attempts: Option<u32>,
    /// The name of the sender.
    pub enqueued_by: Option<String>,
}

/// Keeps `null` as a payload, so that only a missing field is `None`.
fn some_even_if_null<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(d).map(Some)
}

impl MessageSpec {
    /// The message. `template` has the values for fields that are not set, except id and key.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] names the field.
    pub fn into_message(self, template: &NewMessage) -> Result<NewMessage, Refusal> {
        let payload = self.payload(&template.payload.content_type)?;
        let queue = self.queue.unwrap_or_else(|| template.queue.clone());
        let message = NewMessage {
            kind: self.kind.unwrap_or_else(|| template.kind.clone()),
            priority: self.priority.or(template.priority),
            headers: self.headers.unwrap_or_else(|| template.headers.clone()),
            tags: self.tags.unwrap_or_else(|| template.tags.clone()),
            key: self.key,
            ordering_key: self.ordering_key.or_else(|| template.ordering_key.clone()),
            reply_to: self.reply_to.or_else(|| template.reply_to.clone()),
            trace: self.trace.or_else(|| template.trace.clone()),
            context: self.context.or_else(|| template.context.clone()),
            delay: self.delay.or(template.delay),
            ttl: self.ttl.or(template.ttl),
            deadline: self.deadline.or(template.deadline),
            max_attempts: self.max_attempts.or(template.max_attempts),
            enqueued_by: self.enqueued_by.or_else(|| template.enqueued_by.clone()),
            ..NewMessage::new(self.id.unwrap_or(template.id), queue, payload)
        };
        // Invalid messages are found before any message of a batch is sent.
        message.check()?;
        Ok(message)
    }

    /// The payload: the bytes of a JSON string, or the exact text of any other JSON.
    fn payload(&self, content_type: &str) -> Result<Payload, Refusal> {
        let or_default = |default: &str| {
            let otherwise = if content_type.is_empty() { default } else { content_type };
            self.content_type.clone().unwrap_or_else(|| otherwise.to_owned())
        };
        let wrong = |why: String| Refusal::invalid("payload", why);
        match (&self.payload, &self.payload_base64) {
            (Some(_), Some(_)) => Err(wrong("use payload or payload_base64, not both".into())),
            (None, None) => Err(wrong("missing; give `payload` or `payload_base64`".into())),
            (None, Some(base64)) => {
                let written = serde_json::json!({"payload_base64": base64, "content_type": or_default("")});
                serde_json::from_value(written).map_err(|error| wrong(error.to_string()))
            }
            (Some(raw), None) if raw.get().starts_with('"') => {
                let text: String =
                    serde_json::from_str(raw.get()).map_err(|error| wrong(json_input::describe(&error)))?;
                Ok(Payload { bytes: text.into_bytes(), content_type: or_default("") })
            }
            (Some(raw), None) => Ok(Payload {
                bytes: raw.get().as_bytes().to_vec(),
                content_type: or_default("application/json"),
            }),
        }
    }
}
