//! Dead letters as tasks of an orchestrator: the columns of the table `orchestration_dead_letter_queue`, and where each
//! of them comes from. The routes under `/api/v1/orchestration/dlq` show a letter in this form. [`COLUMNS`] is the only
//! mapping; whatever else shows letters in this form reads it from here.

use crate::dead_letter::{DeadLetter, Status};
use crate::filter::{Filter, FilterError};
use crate::ids::MessageId;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use std::str::FromStr;

/// One column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name in the table.
    pub name: &'static str,
    /// Its name in JSON.
    pub json: &'static str,
    /// The field of a dead letter that it comes from.
    pub source: &'static str,
}

const fn column(name: &'static str, json: &'static str, source: &'static str) -> Column {
    Column { name, json, source }
}

/// Every column, in the order of the table.
pub const COLUMNS: [Column; 16] = [
    column("id", "id", "id"),
    column("task_id", "taskId", "id"),
    column("task_type", "taskType", "kind"),
    column("payload", "payload", "payload, as JSON if it is JSON and as text otherwise"),
    column("agent_id", "agentId", "context.agent_id, or the worker of the last failure"),
    column("failure_reason", "failureReason", "error.message, or error.type if there is no message"),
    column("retry_count", "retryCount", "attempts, without the first"),
    column("first_failed_at", "firstFailedAt", "first_failed_at, or dead_at"),
    column("last_failed_at", "lastFailedAt", "last_failed_at, or dead_at"),
    column("error_details", "errorDetails", "error: ExceptionType, StackTrace and InnerException"),
    column("status", "status", "status; review and quarantined are pending"),
    column("manually_resolved", "manuallyResolved", "whether it was resolved other than by a retry"),
    column("resolved_at", "resolvedAt", "closed_at"),
    column("resolved_by", "resolvedBy", "closed_by"),
    column("created_at", "createdAt", "dead_at"),
    column("updated_at", "updatedAt", "the time of the last entry in history"),
];

/// The resolution of a letter that a retry closed.
const RETRIED: &str = "retried";

/// The status of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskStatus {
    /// It waits for a decision. Letters in review and in quarantine do too.
    Pending,
    /// It was sent back and has not ended yet.
    Retrying,
    /// It was dealt with.
    Resolved,
    /// It was given up.
    Abandoned,
}

impl TaskStatus {
    /// The status of a task with this status of its letter, or `None` if the letter was purged.
    #[must_use]
    pub const fn of(status: Status) -> Option<Self> {
        match status {
            Status::Pending | Status::Review | Status::Quarantined => Some(Self::Pending),
            Status::Retrying => Some(Self::Retrying),
            Status::Resolved => Some(Self::Resolved),
            Status::Abandoned => Some(Self::Abandoned),
            Status::Purged => None,
        }
    }

    /// The statuses of letters whose tasks have this status.
    pub fn letters(self) -> impl Iterator<Item = Status> {
        Status::ALL.iter().copied().filter(move |status| Self::of(*status) == Some(self))
    }

    /// The filter for tasks with this status, and with this type if one is given.
    ///
    /// # Errors
    /// A [`FilterError`] if the type is too long to be one.
    pub fn filter(self, task_type: Option<&str>) -> Result<Filter, FilterError> {
        let statuses: Vec<String> = self.letters().map(|status| format!("status:{status}")).collect();
        let statuses = format!("({})", statuses.join(" or "));
        let text = match task_type {
            Some(kind) => {
                let quoted = kind.replace('\\', "\\\\").replace('"', "\\\"");
                format!("{statuses} and kind:\"{quoted}\"")
            }
            None => statuses,
        };
        Filter::parse(&text)
    }
}

impl FromStr for TaskStatus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_lowercase().as_str() {
            "pending" => Ok(Self::Pending),
            "retrying" => Ok(Self::Retrying),
            "resolved" => Ok(Self::Resolved),
            "abandoned" => Ok(Self::Abandoned),
            _ => Err("not a status: pending, retrying, resolved or abandoned".to_owned()),
        }
    }
}

/// The last error of a task.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ErrorDetails {
    /// The type of the error.
    pub exception_type: String,
    /// The stack.
    pub stack_trace: Option<String>,
    /// The underlying error.
    pub inner_exception: Option<String>,
}

/// A dead letter as a task. See [`COLUMNS`] for where each field comes from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the table of columns explains the fields")]
pub struct Task {
    pub id: MessageId,
    pub task_id: MessageId,
    pub task_type: String,
    pub payload: Box<RawValue>,
    pub agent_id: Option<String>,
    pub failure_reason: String,
    pub retry_count: u32,
    pub first_failed_at: Time,
    pub last_failed_at: Time,
    pub error_details: ErrorDetails,
    pub status: TaskStatus,
    pub manually_resolved: bool,
    pub resolved_at: Option<Time>,
    pub resolved_by: Option<String>,
    pub created_at: Time,
    pub updated_at: Time,
}

impl Task {
    /// The task of a letter, or `None` if the letter was purged.
    #[must_use]
    pub fn of(letter: &DeadLetter) -> Option<Self> {
        let (envelope, record, error) = (&letter.message.envelope, &letter.record, &letter.error);
        let status = TaskStatus::of(record.status)?;
        let named = envelope.context.as_ref().and_then(|context| context.get("agent_id"));
        let agent = named.map(|agent| agent.as_str().map_or_else(|| agent.to_string(), str::to_owned));
        let worker = || letter.message.failures.iter().rev().find_map(|failure| failure.worker.clone());
        let reason = if error.message.is_empty() { &error.error_type } else { &error.message };
        let by_retry = record.resolution.as_deref() == Some(RETRIED);
        Some(Self {
            id: envelope.id,
            task_id: envelope.id,
            task_type: envelope.kind.clone(),
            payload: payload(&envelope.payload.bytes),
            agent_id: agent.or_else(worker),
            failure_reason: reason.clone(),
            retry_count: letter.message.attempts.saturating_sub(1),
            first_failed_at: record.first_failed_at.unwrap_or(record.dead_at),
            last_failed_at: record.last_failed_at.unwrap_or(record.dead_at),
            error_details: ErrorDetails {
                exception_type: error.error_type.clone(),
                stack_trace: error.stack.clone(),
                inner_exception: error.cause.clone(),
            },
            status,
            manually_resolved: status == TaskStatus::Resolved && !by_retry,
            resolved_at: record.closed_at,
            resolved_by: record.closed_by.clone(),
            created_at: record.dead_at,
            updated_at: record.history.last().map_or(record.dead_at, |entry| entry.at),
        })
    }
}

/// The payload as JSON: exactly as written if it is JSON, else as a string.
fn payload(bytes: &[u8]) -> Box<RawValue> {
    let text = String::from_utf8_lossy(bytes);
    let quoted = || Value::from(text.as_ref()).to_string();
    RawValue::from_string(text.clone().into_owned())
        .or_else(|_| RawValue::from_string(quoted()))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_of_a_letter_but_purged_is_one_of_a_task() {
        let all = [TaskStatus::Pending, TaskStatus::Retrying, TaskStatus::Resolved, TaskStatus::Abandoned];
        let mut shown: Vec<Status> = all.into_iter().flat_map(TaskStatus::letters).collect();
        shown.sort();
        let wanted: Vec<Status> = Status::ALL.iter().copied().filter(|s| *s != Status::Purged).collect();
        assert_eq!(shown, wanted);
        assert_eq!("Pending".parse(), Ok(TaskStatus::Pending));
        assert!("open".parse::<TaskStatus>().is_err());
    }

    #[test]
    fn the_type_of_a_task_is_matched_as_a_whole() {
        let filter = TaskStatus::Pending.filter(Some("grade \"essay\"")).unwrap();
        assert_eq!(
            filter.text(),
            r#"(status:pending or status:review or status:quarantined) and kind:"grade \"essay\"""#
        );
    }

    #[test]
    fn a_payload_keeps_its_digits() {
        assert_eq!(payload(br#"{"n": 1.50}"#).get(), r#"{"n": 1.50}"#);
        assert_eq!(payload(b"plain").get(), "\"plain\"");
        assert_eq!(payload(b"").get(), "\"\"");
    }

    #[test]
    fn names_in_json_are_the_names_of_the_columns() {
        for column in COLUMNS {
            let mut words = column.name.split('_');
            let first = words.next().unwrap_or_default().to_owned();
            let camel = words.fold(first, |name, word| {
                let (head, tail) = word.split_at(1);
                name + &head.to_ascii_uppercase() + tail
            });
            assert_eq!(camel, column.json);
        }
    }
}
