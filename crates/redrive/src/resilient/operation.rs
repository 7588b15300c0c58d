//! An operation: a description of a call that is complete enough for another process to make the call again. It
//! converts into the message of a dead letter and back. Its payload is never parsed.

use redrive_core::error::Refusal;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::limits;
use redrive_core::message::{Envelope, NewMessage, Payload, Priority};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The description of a call, which outlives the process that makes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operation {
    /// The type, such as `llm_call` or `github_api`. It selects the handler that executes the operation again.
    pub kind: String,
    /// The HTTP method, or the name of the function.
    pub method: Option<String>,
    /// The URL, or the name of the tool.
    pub endpoint: Option<String>,
    /// The payload of the call, byte for byte.
    pub payload: Payload,
    /// Metadata for the handler that executes it again.
    pub headers: BTreeMap<String, String>,
    /// Anything else that is needed to make the call again.
    pub context: Option<Value>,
    /// The task it is a part of.
    pub task: Option<Task>,
    /// The repository it is about.
    pub repository: Option<Repository>,
    /// Labels for people.
    pub tags: BTreeSet<String>,
    /// A note on the dead letter.
    pub notes: Option<String>,
    /// Who asked for the call. Defaults to the executor's name.
    pub enqueued_by: Option<String>,
    /// How urgent it is. By default it follows from the severity of the last error.
    pub priority: Option<Priority>,
    /// W3C trace context.
    pub trace: Option<String>,
}

/// The task an operation is a part of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Task {
    /// The id of the task in the system it comes from.
    pub id: String,
    /// What the task is about.
    pub description: String,
    /// Where the task came from.
    pub source: String,
}

/// The repository an operation is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Repository {
    /// The owner of the repository.
    pub owner: String,
    /// The name of the repository.
    pub repo: String,
    /// The number of the issue, pull request or comment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity_number: Option<u64>,
    /// What the number refers to: `issue`, `pr` or `comment`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity_type: Option<String>,
}

/// The fields of an operation that a message has no field for. They are stored in the message's context.
#[derive(Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct ContextFields {
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<Task>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repository: Option<Repository>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<Value>,
}

impl Operation {
    /// Creates an operation of this kind, with everything else unset.
    #[must_use]
    pub fn new(kind: impl Into<String>) -> Self {
        Self { kind: kind.into(), ..Self::default() }
    }

    /// Sets the HTTP method or the name of the function.
    #[must_use]
    pub fn method(mut self, method: impl Into<String>) -> Self {
        self.method = Some(method.into());
        self
    }

    /// Sets the URL or the name of the tool.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// Sets the payload of the call.
    #[must_use]
    pub fn payload(mut self, payload: Payload) -> Self {
        self.payload = payload;
        self
    }

    /// Sets the payload of the call to a JSON value.
    #[must_use]
    pub fn json(self, payload: &Value) -> Self {
        let bytes = payload.to_string().into_bytes();
        self.payload(Payload { bytes, content_type: "application/json".into() })
    }

    /// Sets anything else that is needed to make the call again.
    #[must_use]
    pub fn context(mut self, context: Value) -> Self {
        self.context = Some(context);
        self
    }

    /// Sets the task that the operation is a part of.
    #[must_use]
    pub fn task(
        mut self,
        id: impl Into<String>,
        description: impl Into<String>,
        source: impl Into<String>,
    ) -> Self {
        self.task = Some(Task { id: id.into(), description: description.into(), source: source.into() });
        self
    }

    /// Sets the repository that the operation is about.
    #[must_use]
    pub fn repository(mut self, repository: Repository) -> Self {
        self.repository = Some(repository);
        self
    }

    /// Adds a label.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.insert(tag.into());
        self
    }

    /// Sets a note on the dead letter.
    #[must_use]
    pub fn notes(mut self, notes: impl Into<String>) -> Self {
        self.notes = Some(notes.into());
        self
    }

    /// Sets the person or program that asked for the call.
    #[must_use]
    pub fn enqueued_by(mut self, who: impl Into<String>) -> Self {
        self.enqueued_by = Some(who.into());
        self
    }

    /// Sets how urgent the operation is.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Converts the message of a captured operation back, for handlers that execute it again.
    #[must_use]
    pub fn of(message: &Envelope) -> Self {
        let fields = message.context.clone().map(serde_json::from_value::<ContextFields>);
        let fields = fields.and_then(Result::ok).unwrap_or_default();
        Self {
            kind: message.kind.clone(),
            method: fields.method,
            endpoint: fields.endpoint,
            payload: message.payload.clone(),
            headers: message.headers.clone(),
            context: fields.context,
            task: fields.task,
            repository: fields.repository,
            tags: message.tags.clone(),
            notes: None,
            enqueued_by: message.enqueued_by.clone(),
            priority: Some(message.priority),
            trace: message.trace.clone(),
        }
    }

    /// Converts the operation into the message of its dead letter, and the note on it. Each redrive of the message is
    /// one attempt: its retries were made before it was captured.
    pub(super) fn into_message(
        self,
        id: MessageId,
        queue: QueueName,
        executor: &str,
    ) -> Result<(NewMessage, Option<String>), Refusal> {
        let fields = ContextFields {
            method: self.method,
            endpoint: self.endpoint,
            task: self.task,
            repository: self.repository,
            context: self.context,
        };
        let has_context = fields != ContextFields::default();
        let message = NewMessage {
            kind: self.kind,
            priority: self.priority,
            headers: self.headers,
            tags: self.tags,
            trace: self.trace,
            context: has_context.then(|| serde_json::to_value(&fields).unwrap_or_default()),
            max_attempts: Some(1),
            enqueued_by: Some(self.enqueued_by.unwrap_or_else(|| executor.to_owned())),
            ..NewMessage::new(id, queue, self.payload)
        };
        message.check()?;
        let notes = self.notes.filter(|notes| !notes.is_empty());
        match &notes {
            Some(notes) if notes.len() > limits::NOTE_BYTES_MAX => {
                let why = format!("{} bytes; at most {} are allowed", notes.len(), limits::NOTE_BYTES_MAX);
                Err(Refusal::invalid("notes", why))
            }
            Some(_) | None => Ok((message, notes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::policy::QueuePolicy;
    use redrive_core::time::Time;
    use serde_json::json;

    fn full_operation() -> Operation {
        Operation::new("github_api")
            .method("POST")
            .endpoint("https://api.example.com/repos/a/b/issues")
            .json(&json!({"title": "x"}))
            .context(json!({"run": 7}))
            .task("t-1", "file an issue", "webhook")
            .repository(Repository {
                owner: "a".into(),
                repo: "b".into(),
                entity_number: Some(12),
                entity_type: Some("pr".into()),
            })
            .tag("bot")
            .enqueued_by("ada")
            .priority(Priority::High)
    }

    #[test]
    fn an_operation_converts_into_a_message_and_back() {
        let id = MessageId::new(1, [1; 10]);
        let (message, note) =
            full_operation().notes("look").into_message(id, "github".parse().unwrap(), "ex").unwrap();
        assert_eq!(note.as_deref(), Some("look"));
        let envelope = message.accept(&QueuePolicy::default(), 1, Time::ZERO).envelope;
        assert_eq!(envelope.context.as_ref().unwrap()["repository"]["entity_number"], 12);
        assert_eq!(Operation::of(&envelope), full_operation());
    }

    #[test]
    fn a_bare_operation_has_no_context_and_a_foreign_context_is_ignored() {
        let id = MessageId::new(1, [1; 10]);
        let (mut message, _) = Operation::new("a").into_message(id, "q".parse().unwrap(), "ex").unwrap();
        assert_eq!((message.context.clone(), message.enqueued_by.as_deref()), (None, Some("ex")));
        message.context = Some(json!([1, 2]));
        let envelope = message.accept(&QueuePolicy::default(), 1, Time::ZERO).envelope;
        assert_eq!(Operation::of(&envelope).context, None);
    }

    #[test]
    fn an_operation_that_cannot_be_captured_is_refused_by_field() {
        let id = MessageId::new(1, [1; 10]);
        let refused = |operation: Operation| {
            operation.into_message(id, "q".parse().unwrap(), "ex").unwrap_err().to_string()
        };
        let big = "x".repeat(limits::CONTEXT_BYTES_MAX);
        assert!(refused(Operation::new("a\u{7}")).starts_with("kind"));
        assert!(refused(Operation::new("a").context(json!(big))).starts_with("context"));
        assert!(refused(Operation::new("a").notes(big)).starts_with("notes"));
    }
}
