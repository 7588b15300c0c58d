//! One NDJSON line of a bulk enqueue: the message's field names, a payload that is a string or any JSON, and
//! the command line's flags for what the line does not say.

use crate::exit_code::CliError;
use crate::ndjson;
use redrive::core::ids::{MessageId, QueueName};
use redrive::core::message::{NewMessage, Payload, Priority};
use redrive::core::time::{Span, Time};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::collections::{BTreeMap, BTreeSet};

/// A line as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: Option<MessageId>,
    queue: Option<QueueName>,
    kind: Option<String>,
    priority: Option<Priority>,
    #[serde(default, deserialize_with = "even_null")]
    payload: Option<Box<RawValue>>,
    payload_base64: Option<String>,
    content_type: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    tags: Option<BTreeSet<String>>,
    key: Option<String>,
    ordering_key: Option<String>,
    reply_to: Option<QueueName>,
    trace: Option<String>,
    context: Option<serde_json::Value>,
    #[serde(alias = "delay_ms")]
    delay: Option<Span>,
    #[serde(alias = "ttl_ms")]
    ttl: Option<Span>,
    deadline: Option<Time>,
    max_attempts: Option<u32>,
    enqueued_by: Option<String>,
}

/// `null` is a payload like any other; only a missing one is none.
fn even_null<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(d).map(Some)
}

/// The message of a line. `like` has the flags: what the line does not say is as there. `queue` is where it
/// goes unless the line says so itself.
pub(crate) fn message(
    bytes: &[u8],
    like: &NewMessage,
    queue: Option<&QueueName>,
) -> Result<NewMessage, CliError> {
    let line: Written = ndjson::json(bytes).map_err(CliError::usage)?;
    let queue = line.queue.clone().or_else(|| queue.cloned());
    let queue = queue.ok_or_else(|| CliError::usage("no `queue`, and the command line names none"))?;
    let payload = payload(&line, &like.payload.content_type).map_err(CliError::usage)?;
    let mut message = NewMessage::new(line.id.unwrap_or_else(redrive::new_id), queue, payload);
    message.kind = line.kind.unwrap_or_else(|| like.kind.clone());
    message.priority = line.priority.or(like.priority);
    message.headers = line.headers.unwrap_or_else(|| like.headers.clone());
    message.tags = line.tags.unwrap_or_else(|| like.tags.clone());
    message.key = line.key;
    message.ordering_key = line.ordering_key.or_else(|| like.ordering_key.clone());
    message.reply_to = line.reply_to.or_else(|| like.reply_to.clone());
    message.trace = line.trace.or_else(|| like.trace.clone());
    message.context = line.context.or_else(|| like.context.clone());
    message.delay = line.delay.or(like.delay);
    message.ttl = line.ttl.or(like.ttl);
    message.deadline = line.deadline.or(like.deadline);
    message.max_attempts = line.max_attempts.or(like.max_attempts);
    message.enqueued_by = line.enqueued_by.or_else(|| like.enqueued_by.clone());
    // What no store would take is found before anything of its batch is sent.
    message.check()?;
    Ok(message)
}

/// A string is its own bytes, any other JSON its exact text.
fn payload(line: &Written, content_type: &str) -> Result<Payload, String> {
    let given = line.content_type.clone();
    let or_flag = |default: &str| {
        let flag = if content_type.is_empty() { default } else { content_type };
        given.clone().unwrap_or_else(|| flag.to_owned())
    };
    match (&line.payload, &line.payload_base64) {
        (Some(_), Some(_)) => Err("give payload or payload_base64, not both".into()),
        (None, None) => Err("no `payload` and no `payload_base64`".into()),
        (None, Some(base64)) => {
            let written = serde_json::json!({"payload_base64": base64, "content_type": or_flag("")});
            serde_json::from_value(written).map_err(|error| error.to_string())
        }
        (Some(raw), None) if raw.get().starts_with('"') => {
            let text: String = serde_json::from_str(raw.get()).map_err(|error| ndjson::complaint(&error))?;
            Ok(Payload { bytes: text.into_bytes(), content_type: or_flag("") })
        }
        (Some(raw), None) => {
            Ok(Payload { bytes: raw.get().as_bytes().to_vec(), content_type: or_flag("application/json") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[u8]) -> Result<NewMessage, String> {
        let queue: QueueName = "q".parse().unwrap();
        let mut like = NewMessage::new(redrive::new_id(), queue.clone(), Payload::default());
        like.kind = "from-flag".into();
        message(line, &like, Some(&queue)).map_err(|error| error.what)
    }

    #[test]
    fn payloads_are_kept_byte_for_byte() {
        for (line, bytes, content_type) in [
            (r#"{"payload":"a\nb"}"#, "a\nb".as_bytes(), ""),
            (
                r#"{"payload": {"n": 1.0,  "big":123456789012345678901234567890} }"#,
                br#"{"n": 1.0,  "big":123456789012345678901234567890}"#,
                "application/json",
            ),
            (r#"{"payload":null}"#, b"null", "application/json"),
            (r#"{"payload":[1, 2],"content_type":"x/y"}"#, b"[1, 2]", "x/y"),
            (r#"{"payload_base64":"wyg="}"#, &[0xc3, 0x28], ""),
            (r#"{"payload":""}"#, b"", ""),
        ] {
            let message = read(line.as_bytes()).unwrap();
            assert_eq!(message.payload.bytes, bytes, "{line}");
            assert_eq!(message.payload.content_type, content_type, "{line}");
        }
    }

    #[test]
    fn the_line_says_more_than_the_flags() {
        let message = read(br#"{"payload":"x"}"#).unwrap();
        assert_eq!((message.queue.as_str(), message.kind.as_str()), ("q", "from-flag"));
        let line = br#"{"payload":"x","queue":"other","kind":"own","delay":"5s","ttl_ms":1000,"tags":["t"],"key":"k"}"#;
        let message = read(line).unwrap();
        assert_eq!((message.queue.as_str(), message.kind.as_str()), ("other", "own"));
        assert_eq!((message.delay, message.ttl), (Some(Span::from_secs(5)), Some(Span::from_secs(1))));
    }

    #[test]
    fn a_bad_line_says_why() {
        for (line, says) in [
            (br#"{"payload":"x","priorty":"high"}"#.as_slice(), "did you mean `priority`?"),
            (br#"{"payload":"x","priority":"urgent"}"#, "unknown word `urgent`"),
            (br#"{"payload":"x","payload_base64":""}"#, "not both"),
            (br#"{"kind":"x"}"#, "no `payload`"),
            (br#"{"payload_base64":"*"}"#, "not base64"),
            (br#"{"payload":"x","id":"7"}"#, "is not a message id"),
            (br#"{"payload":"x","queue":"a b"}"#, "is not a queue name"),
            (br#"{"payload":"x","delay":"-5s"}"#, "is not a duration"),
            (br#"{"payload":"x","max_attempts":0}"#, "max_attempts: 0 is outside"),
            (br#"{"payload":"x","kind":5}"#, "a value is not a string"),
            (br#"{"payload":"x""#, "ends too early"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_queue_must_be_named_somewhere() {
        let like = NewMessage::new(redrive::new_id(), "unused".parse().unwrap(), Payload::default());
        let error = message(br#"{"payload":"x"}"#, &like, None).unwrap_err();
        assert!(error.what.contains("no `queue`"));
    }
}
