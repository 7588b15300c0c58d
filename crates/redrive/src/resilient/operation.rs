//! An operation: a call that can be described well enough to be made again by somebody else. It turns into the
//! message of a dead letter and back; its payload is never looked into.

use redrive_core::error::Refusal;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::limits;
use redrive_core::message::{Envelope, NewMessage, Payload, Priority};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What is executed, in words that outlive the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Operation {
    /// The type, such as `llm_call` or `github_api`: chooses who executes it again.
    pub kind: String,
    /// The HTTP method, or the name of the function.
    pub method: Option<String>,
    /// The URL, or the name of the tool.
    pub endpoint: Option<String>,
    /// What it is called with, bit by bit.
    pub payload: Payload,
    /// Metadata for whoever executes it again.
    pub headers: BTreeMap<String, String>,
    /// Whatever else is needed.
    pub context: Option<Value>,
    /// The task it is a part of.
    pub task: Option<Task>,
    /// The repository it is about.
    pub repository: Option<Repository>,
    /// Labels for people.
    pub tags: BTreeSet<String>,
    /// A note for whoever finds the letter.
    pub notes: Option<String>,
    /// Who asked for it; the executor's name when not said.
    pub enqueued_by: Option<String>,
    /// How urgent; follows from the severity of the last error when not said.
    pub priority: Option<Priority>,
    /// W3C trace context.
    pub trace: Option<String>,
}

/// The task an operation is a part of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Task {
    /// Its identity in its own world.
    pub id: String,
    /// What it is about.
    pub description: String,
    /// Where it came from.
    pub source: String,
}

/// The repository an operation is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Repository {
    /// Whose it is.
    pub owner: String,
    /// Its name.
    pub repo: String,
    /// The number of the issue, pull request or comment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity_number: Option<u64>,
    /// Which of these: `issue`, `pr`, `comment`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity_type: Option<String>,
}

/// How the parts that a message has no field for lie in its context.
#[derive(Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Written {
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
    /// An operation of this kind, with everything else left open.
    #[must_use]
    pub fn new(kind: impl Into<String>) -> Self {
        Self { kind: kind.into(), ..Self::default() }
    }

    /// With the HTTP method or the name of the function.
    #[must_use]
    pub fn method(mut self, method: impl Into<String>) -> Self {
        self.method = Some(method.into());
        self
    }

    /// With the URL or the name of the tool.
    #[must_use]
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// With what it is called with.
    #[must_use]
    pub fn payload(mut self, payload: Payload) -> Self {
        self.payload = payload;
        self
    }

    /// With a JSON value that it is called with.
    #[must_use]
    pub fn json(self, payload: &Value) -> Self {
        let bytes = payload.to_string().into_bytes();
        self.payload(Payload { bytes, content_type: "application/json".into() })
    }

    /// With whatever else is needed to make the call again.
    #[must_use]
    pub fn context(mut self, context: Value) -> Self {
        self.context = Some(context);
        self
    }

    /// As a part of this task.
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

    /// About this repository.
    #[must_use]
    pub fn repository(mut self, repository: Repository) -> Self {
        self.repository = Some(repository);
        self
    }

    /// With a label.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.insert(tag.into());
        self
    }

    /// With a note for whoever finds the letter.
    #[must_use]
    pub fn notes(mut self, notes: impl Into<String>) -> Self {
        self.notes = Some(notes.into());
        self
    }

    /// In the name of this person or program.
    #[must_use]
    pub fn enqueued_by(mut self, who: impl Into<String>) -> Self {
        self.enqueued_by = Some(who.into());
        self
    }

    /// As urgent as this.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// The operation that a message was, for handlers that execute it again.
    #[must_use]
    pub fn of(message: &Envelope) -> Self {
        let written = message.context.clone().map(serde_json::from_value::<Written>);
        let written = written.and_then(Result::ok).unwrap_or_default();
        Self {
            kind: message.kind.clone(),
            method: written.method,
            endpoint: written.endpoint,
            payload: message.payload.clone(),
            headers: message.headers.clone(),
            context: written.context,
            task: written.task,
            repository: written.repository,
            tags: message.tags.clone(),
            notes: None,
            enqueued_by: message.enqueued_by.clone(),
            priority: Some(message.priority),
            trace: message.trace.clone(),
        }
    }

    /// The message that is kept, and the note on it. A redrive of it is worth one execution: its retries were
    /// made, and whoever sends it back decides about the next one.
    pub(super) fn into_message(
        self,
        id: MessageId,
        queue: QueueName,
        executor: &str,
    ) -> Result<(NewMessage, Option<String>), Refusal> {
        let written = Written {
            method: self.method,
            endpoint: self.endpoint,
            task: self.task,
            repository: self.repository,
            context: self.context,
        };
        let said = written != Written::default();
        let message = NewMessage {
            kind: self.kind,
            priority: self.priority,
            headers: self.headers,
            tags: self.tags,
            trace: self.trace,
            context: said.then(|| serde_json::to_value(&written).unwrap_or_default()),
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

    fn whole() -> Operation {
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
    fn an_operation_survives_being_a_message() {
        let id = MessageId::new(1, [1; 10]);
        let (message, note) =
            whole().notes("look").into_message(id, "github".parse().unwrap(), "ex").unwrap();
        assert_eq!(note.as_deref(), Some("look"));
        let envelope = message.accept(&QueuePolicy::default(), 1, Time::ZERO).envelope;
        assert_eq!(envelope.context.as_ref().unwrap()["repository"]["entity_number"], 12);
        assert_eq!(Operation::of(&envelope), whole());
    }

    #[test]
    fn a_bare_operation_has_no_context_and_a_strange_one_is_no_error() {
        let id = MessageId::new(1, [1; 10]);
        let (mut message, _) = Operation::new("a").into_message(id, "q".parse().unwrap(), "ex").unwrap();
        assert_eq!((message.context.clone(), message.enqueued_by.as_deref()), (None, Some("ex")));
        message.context = Some(json!([1, 2]));
        let envelope = message.accept(&QueuePolicy::default(), 1, Time::ZERO).envelope;
        assert_eq!(Operation::of(&envelope).context, None);
    }

    #[test]
    fn what_could_not_be_kept_is_refused_by_field() {
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
