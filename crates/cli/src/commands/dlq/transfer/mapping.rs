//! Maps the records of other systems to letters with dotted paths. User-written and built-in mappings use the same
//! code. Records are untrusted: times, ids and sizes are checked like any other input.

use crate::config::Config;
use crate::exit_code::CliError;
use redrive::core::dead_letter::{Captured, DeadLetter, Note, Status};
use redrive::core::failure::{ErrorInfo, Failure, FailureReport, Reason};
use redrive::core::ids::{MessageId, QueueName};
use redrive::core::json_input;
use redrive::core::message::{NewMessage, Payload};
use redrive::core::time::{Span, Time};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// A mapping from a record to a letter. Fields are dotted paths; `a.0.b` is the `b` of the first item of `a`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Mapping {
    /// The queue all letters belong to.
    queue: Option<QueueName>,
    /// The kind of all letters.
    kind: Option<String>,
    /// The content type of the payloads. Defaults to JSON, or to plain text for a string.
    content_type: Option<String>,
    fields: Fields,
    failures: Option<Failures>,
}

/// The paths of the fields of a letter.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Fields {
    id: Option<String>,
    queue: Option<String>,
    kind: Option<String>,
    payload: Option<String>,
    key: Option<String>,
    headers: Option<String>,
    context: Option<String>,
    first_failed_at: Option<String>,
    dead_at: Option<String>,
    attempts: Option<String>,
    review: Option<String>,
    retryable: Option<String>,
    note: Option<String>,
    artifacts: Option<String>,
}

/// The paths of the list of failures and of the fields of each. Without a list they are paths into the record.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Failures {
    list: Option<String>,
    at: Option<String>,
    attempt: Option<String>,
    r#type: Option<String>,
    message: Option<String>,
    code: Option<String>,
    stack: Option<String>,
    cause: Option<String>,
    context: Option<String>,
    worker: Option<String>,
    host: Option<String>,
    version: Option<String>,
    step: Option<String>,
    duration_ms: Option<String>,
    log: Option<String>,
}

/// The built-in mapping for the item files of a MapReduce job.
const MAPREDUCE: &str = r#"
content_type = "application/json"
kind = "map"
[fields]
id = "item_id"
key = "item_id"
payload = "item_data"
first_failed_at = "first_attempt"
dead_at = "last_attempt"
attempts = "failure_count"
review = "manual_review_required"
retryable = "reprocess_eligible"
artifacts = "worktree_artifacts"
[failures]
list = "failure_history"
at = "timestamp"
attempt = "attempt_number"
type = "error_type"
message = "error_message"
context = "error_context"
stack = "stack_trace"
worker = "agent_id"
step = "step_failed"
duration_ms = "duration_ms"
log = "json_log_location"
"#;

/// A JSON value of a record, kept as written.
#[derive(Clone, Copy)]
struct Record<'a>(&'a RawValue);

impl<'a> Record<'a> {
    /// The value at a path; `None` if the path is not set, or leads to nothing or to `null`.
    fn at(self, path: Option<&String>) -> Option<Self> {
        let found = path?.split('.').try_fold(self, |at, part| {
            let text = at.0.get();
            if text.starts_with('[') {
                let list: Vec<&'a RawValue> = serde_json::from_str(text).ok()?;
                return list.get(part.parse::<usize>().ok()?).copied().map(Record);
            }
            let map: BTreeMap<String, &'a RawValue> = serde_json::from_str(text).ok()?;
            map.get(part).copied().map(Record)
        })?;
        (found.0.get() != "null").then_some(found)
    }

    fn value(self) -> Value {
        serde_json::from_str(self.0.get()).unwrap_or(Value::Null)
    }

    /// The value as text: the content of a string, or the JSON of anything else.
    fn text(self) -> String {
        match self.value() {
            Value::String(text) => text,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                self.0.get().to_owned()
            }
        }
    }

    /// The value as lines: the items of a list, the entries of an object, or a single value.
    fn lines(self) -> Vec<String> {
        match self.value() {
            Value::Array(items) => items.into_iter().map(plain).collect(),
            Value::Object(map) => map
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| format!("{name}: {}", plain(value)))
                .collect(),
            Value::Null => Vec::new(),
            other @ (Value::Bool(_) | Value::Number(_) | Value::String(_)) => vec![plain(other)],
        }
    }

    /// The value as a time: RFC 3339, or seconds or milliseconds since 1970.
    fn time(self, field: &str) -> Result<Time, String> {
        let wrong = || format!("{field}: not a time such as 2026-01-31T12:00:00Z");
        match self.value() {
            Value::String(text) => text.parse().map_err(|_| wrong()),
            Value::Number(n) => {
                let n = n.as_i64().ok_or_else(wrong)?;
                Ok(Time::from_millis(if n.abs() < 100_000_000_000 { n.saturating_mul(1_000) } else { n }))
            }
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(wrong()),
        }
    }

    fn number(self, field: &str) -> Result<u64, String> {
        self.value().as_u64().ok_or_else(|| format!("{field}: not a number"))
    }

    /// The value as an error type: text, or `{"Name": {"code": 1}}`, which also has a code.
    fn error_type(self) -> (String, Option<String>) {
        let Value::Object(map) = self.value() else { return (self.text(), None) };
        let Some((name, inner)) = map.into_iter().next() else { return (String::new(), None) };
        let code = ["exit_code", "code", "status"].iter().find_map(|field| inner.get(field));
        let code = code.map(|code| plain(code.clone()));
        (name, code)
    }
}

/// A value as text: the content of a string, or the JSON of anything else.
fn plain(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            other.to_string()
        }
    }
}

impl Mapping {
    /// Parses a mapping that a user wrote.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mapping: Self = toml::from_str(text).map_err(|error| json_input::explain(error.message()))?;
        if mapping.fields.payload.is_none() {
            return Err("[fields] has no payload; name the path of the payload".into());
        }
        Ok(mapping)
    }

    /// The built-in mapping for the item files of MapReduce jobs.
    pub(super) fn mapreduce() -> Self {
        // A test checks that the built-in mapping parses.
        Self::parse(MAPREDUCE).unwrap_or_default()
    }

    /// Converts one record to a letter.
    pub(super) fn letter(
        &self,
        bytes: &[u8],
        queue: Option<&QueueName>,
        config: &Config,
    ) -> Result<DeadLetter, CliError> {
        json_input::object(bytes).map_err(CliError::usage)?;
        let raw: &RawValue =
            serde_json::from_slice(bytes).map_err(|error| CliError::usage(json_input::describe(&error)))?;
        self.read(Record(raw), queue, config).map_err(CliError::usage)
    }

    fn read(
        &self,
        record: Record<'_>,
        queue: Option<&QueueName>,
        config: &Config,
    ) -> Result<DeadLetter, String> {
        let fields = &self.fields;
        let mapped = record
            .at(fields.queue.as_ref())
            .map(|name| name.text().parse::<QueueName>().map_err(|error| format!("queue: {error}")));
        let queue = mapped.transpose()?.or_else(|| self.queue.clone()).or_else(|| queue.cloned());
        let queue = queue.ok_or("no queue: name one in the mapping, or with --queue")?;
        let failures = self.failures(record, config)?;
        let first = failures.first().map(|f| f.failure.at);
        let last = failures.last().map(|f| f.failure.at);
        let time =
            |path: &Option<String>, name: &str| record.at(path.as_ref()).map(|at| at.time(name)).transpose();
        let dead_at = time(&fields.dead_at, "dead_at")?.or(last).ok_or("no time of death; map dead_at")?;
        let began_at =
            time(&fields.first_failed_at, "first_failed_at")?.or(first).unwrap_or(dead_at).min(dead_at);
        let attempts = record.at(fields.attempts.as_ref()).map(|n| n.number("attempts")).transpose()?;
        let kept = u32::try_from(failures.len()).unwrap_or(u32::MAX);
        let attempts = attempts.map_or(kept, |n| u32::try_from(n).unwrap_or(u32::MAX)).max(kept);
        let mut history = Vec::new();
        let mut last = None;
        for (n, mut one) in (0_u32..).zip(failures) {
            // The artifacts belong to the last attempt.
            if n + 1 == kept {
                one.failure.artifacts =
                    record.at(fields.artifacts.as_ref()).map(Record::lines).unwrap_or_default();
            }
            Captured::remember(&mut history, n, one.failure);
            last = Some(one.analysed);
        }
        let flag = |path: &Option<String>| record.at(path.as_ref()).and_then(|flag| flag.value().as_bool());
        let note = record.at(fields.note.as_ref()).map(Record::text);
        let captured = Captured {
            message: self.message(record, queue.clone(), began_at)?,
            began_at,
            attempts,
            failed: attempts,
            failures: history,
            last: last.unwrap_or_else(|| FailureReport::default().analyse()),
            dead_at,
            reason: if flag(&fields.retryable) == Some(false) { Reason::Permanent } else { Reason::Imported },
            note: note.map(|text| Note { at: dead_at, by: "import".into(), text }),
        };
        let policy = config.queues.get(&queue).map(|proposal| proposal.fresh.clone()).unwrap_or_default();
        let mut letter = captured.letter(&policy);
        if flag(&fields.review) == Some(true) {
            letter.record.status = Status::Review;
            letter.record.review_requested_by = Some("import".into());
            letter.record.review_requested_at = Some(dead_at);
        }
        Ok(letter)
    }

    fn message(&self, record: Record<'_>, queue: QueueName, at: Time) -> Result<NewMessage, String> {
        let fields = &self.fields;
        let payload = record.at(fields.payload.as_ref()).ok_or("there is no payload")?;
        let text = payload.0.get().starts_with('"');
        let content_type = match (&self.content_type, text) {
            (Some(content_type), _) => content_type.clone(),
            (None, true) => "text/plain".into(),
            (None, false) => "application/json".into(),
        };
        let payload = Payload { bytes: payload.text().into_bytes(), content_type };
        let name = record.at(fields.id.as_ref()).map(Record::text);
        let id = name.as_deref().and_then(|name| name.parse().ok());
        let kind = record.at(fields.kind.as_ref()).map(Record::text).or_else(|| self.kind.clone());
        let headers = match record.at(fields.headers.as_ref()).map(Record::value) {
            None => BTreeMap::new(),
            Some(Value::Object(map)) => map
                .into_iter()
                .map(|(name, value)| {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    (name, text)
                })
                .collect(),
            Some(_) => return Err("headers: not an object".into()),
        };
        Ok(NewMessage {
            kind: kind.unwrap_or_default(),
            key: record.at(fields.key.as_ref()).map(Record::text),
            headers,
            context: record.at(fields.context.as_ref()).map(Record::value),
            ..NewMessage::new(
                id.unwrap_or_else(|| id_of(&queue, name.as_deref(), record, at)),
                queue,
                payload,
            )
        })
    }

    fn failures(&self, record: Record<'_>, config: &Config) -> Result<Vec<MappedFailure>, String> {
        let Some(map) = &self.failures else { return Ok(Vec::new()) };
        let list: Vec<Record<'_>> = match &map.list {
            None => vec![record],
            Some(path) => match record.at(Some(path)) {
                None => Vec::new(),
                Some(list) => {
                    let items: Vec<&RawValue> =
                        serde_json::from_str(list.0.get()).map_err(|_| format!("{path}: not a list"))?;
                    items.into_iter().map(Record).collect()
                }
            },
        };
        (1..).zip(list).map(|(n, one)| map.failure(n, one, &self.fields, record, config)).collect()
    }
}

/// A failure and its analysis.
struct MappedFailure {
    failure: Failure,
    analysed: redrive::core::failure::AnalysedFailure,
}

impl Failures {
    fn failure(
        &self,
        n: u32,
        one: Record<'_>,
        fields: &Fields,
        whole: Record<'_>,
        config: &Config,
    ) -> Result<MappedFailure, String> {
        let text = |path: &Option<String>| one.at(path.as_ref()).map(Record::text);
        let number =
            |path: &Option<String>, name: &str| one.at(path.as_ref()).map(|n| n.number(name)).transpose();
        let (error_type, found) = one.at(self.r#type.as_ref()).map(Record::error_type).unwrap_or_default();
        let report = FailureReport {
            error: ErrorInfo {
                error_type,
                message: text(&self.message).unwrap_or_default(),
                code: text(&self.code).or(found),
                stack: text(&self.stack),
                context: one.at(self.context.as_ref()).map(Record::lines).unwrap_or_default(),
                cause: text(&self.cause),
            },
            step: text(&self.step),
            duration: number(&self.duration_ms, "duration_ms")?.map(Span::from_millis),
            host: text(&self.host),
            version: text(&self.version),
            log: text(&self.log),
            ..FailureReport::default()
        };
        let at = one.at(self.at.as_ref()).or_else(|| whole.at(fields.dead_at.as_ref()));
        let at = at.ok_or("a failure has no time")?.time("at")?;
        let attempt = number(&self.attempt, "attempt")?.map_or(n, |n| u32::try_from(n).unwrap_or(u32::MAX));
        let analysed = report.analyse_with(&config.known);
        let failure = analysed.clone().into_failure(1, attempt, at, text(&self.worker));
        Ok(MappedFailure { failure, analysed })
    }
}

/// Derives an id from the record, so that importing the record again is harmless.
fn id_of(queue: &QueueName, name: Option<&str>, record: Record<'_>, at: Time) -> MessageId {
    let mut hash = Sha256::new();
    hash.update(queue.as_str());
    hash.update([0]);
    hash.update(name.unwrap_or_else(|| record.0.get()));
    let digest: [u8; 32] = hash.finalize().into();
    let mut random = [0; 10];
    for (to, from) in random.iter_mut().zip(digest) {
        *to = from;
    }
    MessageId::new(u64::try_from(at.as_millis()).unwrap_or(0), random)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: &str = r#"{
      "item_id": "item-123",
      "item_data": { "file": "src/main.rs",  "priority": 12345678901234567890123 },
      "first_attempt": "2025-01-11T10:25:00Z",
      "last_attempt": "2025-01-11T10:30:00Z",
      "failure_count": 3,
      "failure_history": [
        { "attempt_number": 1, "timestamp": "2025-01-11T10:25:00Z", "error_type": "Timeout",
          "error_message": "no answer", "agent_id": "agent-1", "duration_ms": 10 },
        { "attempt_number": 3, "timestamp": "2025-01-11T10:30:00Z",
          "error_type": { "CommandFailed": { "exit_code": 101 } },
          "error_message": "cargo test failed with exit code 101", "error_context": ["Processing", "Running"],
          "stack_trace": "thread 'main' panicked", "agent_id": "agent-1", "step_failed": "shell: cargo test",
          "duration_ms": 45000, "json_log_location": "/logs/x.json" } ],
      "error_signature": "CommandFailed::cargo test failed with exit",
      "reprocess_eligible": true,
      "manual_review_required": false,
      "worktree_artifacts": { "worktree_path": "/w/agent-1", "branch_name": "agent-1", "uncommitted_changes": null,
        "error_logs": "…" }
    }"#;

    fn read(mapping: &Mapping, text: &str, queue: &str) -> Result<DeadLetter, CliError> {
        mapping.letter(text.as_bytes(), queue.parse().ok().as_ref(), &Config::default())
    }

    #[test]
    fn an_item_file_becomes_a_letter() {
        let letter = read(&Mapping::mapreduce(), ITEM, "jobs").unwrap();
        let e = &letter.message.envelope;
        assert_eq!(e.payload.bytes, br#"{ "file": "src/main.rs",  "priority": 12345678901234567890123 }"#);
        assert_eq!((e.key.as_deref(), e.kind.as_str(), e.queue.as_str()), (Some("item-123"), "map", "jobs"));
        assert_eq!(
            (letter.message.failed, letter.message.failures.len(), letter.message.attempts),
            (3, 2, 3)
        );
        let last = &letter.message.failures[1];
        assert_eq!(
            (last.error.error_type.as_str(), last.error.code.as_deref()),
            ("CommandFailed", Some("101"))
        );
        assert_eq!((last.attempt, last.duration), (3, Some(Span::from_secs(45))));
        assert_eq!(last.artifacts, ["branch_name: agent-1", "error_logs: …", "worktree_path: /w/agent-1"]);
        assert_eq!((letter.record.reason, letter.record.status), (Reason::Imported, Status::Pending));
        assert_eq!(letter.record.dead_at.to_string(), "2025-01-11T10:30:00.000Z");
        assert_eq!(read(&Mapping::mapreduce(), ITEM, "jobs").unwrap(), letter, "the same every time");
        let asked = ITEM.replace("\"manual_review_required\": false", "\"manual_review_required\": true");
        let asked = asked.replace("\"reprocess_eligible\": true", "\"reprocess_eligible\": false");
        let letter = read(&Mapping::mapreduce(), &asked, "jobs").unwrap();
        assert_eq!((letter.record.reason, letter.record.status), (Reason::Permanent, Status::Review));
    }

    #[test]
    fn a_user_written_mapping_is_applied() {
        let text = r#"
            queue = "old"
            [fields]
            payload = "job.args.0"
            kind = "job.class"
            headers = "meta"
            dead_at = "at"
            note = "why"
            [failures]
            type = "error.name"
            message = "error.text"
        "#;
        let mapping = Mapping::parse(text).unwrap();
        let record = r#"{"job":{"class":"Mail","args":["hello","x"]},"meta":{"a":"b","n":1},"at":1700000000,
            "why":"gave up","error":{"name":"IOError","text":"broken pipe"}}"#;
        let letter = mapping.letter(record.as_bytes(), None, &Config::default()).unwrap();
        let e = &letter.message.envelope;
        assert_eq!(
            (e.payload.bytes.as_slice(), e.payload.content_type.as_str()),
            (b"hello".as_slice(), "text/plain")
        );
        assert_eq!((e.kind.as_str(), e.headers["n"].as_str()), ("Mail", "1"));
        assert_eq!((letter.error.error_type.as_str(), letter.message.failed), ("IOError", 1));
        assert_eq!(letter.record.notes[0].text, "gave up");
        assert_eq!(letter.record.dead_at, Time::from_millis(1_700_000_000_000));
    }

    #[test]
    fn missing_and_invalid_fields_are_named() {
        let mapping = Mapping::mapreduce();
        for (from, to, expected) in [
            ("\"item_data\"", "\"data\"", "there is no payload"),
            (
                "2025-01-11T10:30:00Z\",\n      \"failure_count",
                "yesterday\",\n      \"failure_count",
                "dead_at: not a time",
            ),
            ("\"failure_count\": 3", "\"failure_count\": \"x\"", "attempts: not a number"),
            ("\"failure_history\": [", "\"failure_history\": 5, \"x\": [", "failure_history: not a list"),
        ] {
            assert!(ITEM.contains(from), "{from}");
            let error = read(&mapping, &ITEM.replacen(from, to, 1), "jobs").unwrap_err();
            assert!(error.what.contains(expected), "{}", error.what);
        }
        let error = mapping.letter(ITEM.as_bytes(), None, &Config::default()).unwrap_err();
        assert!(error.what.contains("no queue"), "{}", error.what);
        assert!(read(&mapping, "[1]", "jobs").is_err() && read(&mapping, "{\"a\":", "jobs").is_err());
        assert!(Mapping::parse("[fields]\nid = \"x\"").unwrap_err().contains("payload"));
        assert!(Mapping::parse("[fields]\npaylod = \"x\"").unwrap_err().contains("did you mean `payload`"));
    }
}
