//! One NDJSON line of a bulk enqueue. It has the field names of a message and a payload that is a string or any JSON.
//! The command line's flags apply to fields that the line does not set.

use crate::exit_code::CliError;
use redrive::core::ids::QueueName;
use redrive::core::json_input;
use redrive::core::message::NewMessage;
use redrive::core::message_spec::MessageSpec;

/// Parses a line into a message. `template` has the values of the flags, which apply to fields that the line does not
/// set. `queue` applies if the line names no queue.
pub(crate) fn message(
    bytes: &[u8],
    template: &NewMessage,
    queue: Option<&QueueName>,
) -> Result<NewMessage, CliError> {
    let line: MessageSpec = json_input::parse(bytes).map_err(CliError::usage)?;
    if line.queue.is_none() && queue.is_none() {
        return Err(CliError::usage("no `queue` in the line, and none on the command line"));
    }
    let queue = queue.cloned().unwrap_or_else(|| template.queue.clone());
    Ok(line.into_message(&NewMessage { id: redrive::new_id(), queue, ..template.clone() })?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive::core::message::Payload;
    use redrive::core::time::Span;

    fn read(line: &[u8]) -> Result<NewMessage, String> {
        let queue: QueueName = "q".parse().unwrap();
        let mut template = NewMessage::new(redrive::new_id(), queue.clone(), Payload::default());
        template.kind = "from-flag".into();
        message(line, &template, Some(&queue)).map_err(|error| error.what)
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
    fn the_line_overrides_the_flags() {
        let message = read(br#"{"payload":"x"}"#).unwrap();
        assert_eq!((message.queue.as_str(), message.kind.as_str()), ("q", "from-flag"));
        let line = br#"{"payload":"x","queue":"other","kind":"own","delay":"5s","ttl_ms":1000,"tags":["t"],"key":"k"}"#;
        let message = read(line).unwrap();
        assert_eq!((message.queue.as_str(), message.kind.as_str()), ("other", "own"));
        assert_eq!((message.delay, message.ttl), (Some(Span::from_secs(5)), Some(Span::from_secs(1))));
    }

    #[test]
    fn an_invalid_line_is_explained() {
        for (line, expected) in [
            (br#"{"payload":"x","priorty":"high"}"#.as_slice(), "did you mean `priority`?"),
            (br#"{"payload":"x","priority":"urgent"}"#, "unknown word `urgent`"),
            (br#"{"payload":"x","payload_base64":""}"#, "not both"),
            (br#"{"kind":"x"}"#, "payload: missing"),
            (br#"{"payload_base64":"*"}"#, "not base64"),
            (br#"{"payload":"x","id":"7"}"#, "is not a message id"),
            (br#"{"payload":"x","queue":"a b"}"#, "is not a queue name"),
            (br#"{"payload":"x","delay":"-5s"}"#, "is not a duration"),
            (br#"{"payload":"x","max_attempts":0}"#, "max_attempts: 0 is outside"),
            (br#"{"payload":"x","kind":5}"#, "a value is not a string"),
            (br#"{"payload":"x""#, "ends too early"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_queue_must_be_named_somewhere() {
        let template = NewMessage::new(redrive::new_id(), "unused".parse().unwrap(), Payload::default());
        let error = message(br#"{"payload":"x"}"#, &template, None).unwrap_err();
        assert!(error.what.contains("no `queue`"));
    }
}
