//! Which letters a filter can be asked for in SQL. This only narrows: every candidate is looked at by the
//! filter's own evaluator, which alone decides.

use redrive_core::filter::sql::{Columns, Param, narrow as compile};
use redrive_core::filter::{Field, Filter};
use redrive_core::time::Time;
use rusqlite::types::Value;

/// The columns of `letters` that hold exactly what a field means.
struct LetterColumns;

impl Columns for LetterColumns {
    fn column(&self, field: &Field) -> Option<&str> {
        match field {
            Field::Id => Some("id"),
            Field::Queue => Some("queue"),
            Field::Dlq => Some("dlq"),
            Field::Kind => Some("kind"),
            Field::Status => Some("status"),
            Field::Reason => Some("reason"),
            Field::Route => Some("route"),
            Field::Category => Some("category"),
            Field::Severity => Some("severity"),
            Field::Redrives => Some("redrives"),
            Field::Owner => Some("owner"),
            Field::Held => Some("CASE held WHEN 0 THEN 'no' ELSE 'yes' END"),
            Field::Died | Field::Age => Some("dead_at"),
            Field::Failed => Some("last_failed_at"),
            Field::Key => Some("key"),
            Field::OrderingKey => Some("ordering_key"),
            // Counts of a retried message are its live row's, state and snooze are by the clock, groups merge, and the
            // rest lies in bodies and failures: the evaluator looks at those.
            Field::State
            | Field::Snoozed
            | Field::Signature
            | Field::Group
            | Field::Priority
            | Field::Attempts
            | Field::Deliveries
            | Field::Generation
            | Field::Failures
            | Field::Enqueued
            | Field::Worker
            | Field::Tag
            | Field::Trace
            | Field::Type
            | Field::Code
            | Field::Error
            | Field::Header(_)
            | Field::Payload(_)
            | Field::Context(_) => None,
        }
    }
}

/// A condition and what to bind to it.
pub(super) struct Narrowed {
    pub(super) sql: String,
    pub(super) params: Vec<Value>,
}

/// Compiles what can be compiled.
pub(super) fn narrow(filter: &Filter, now: Time) -> Narrowed {
    let compiled = compile(filter, &LetterColumns, now);
    let params = compiled.params.into_iter().map(|param| match param {
        Param::Int(n) => Value::Integer(n),
        Param::Text(text) => Value::Text(text),
        Param::Blob(bytes) => Value::Blob(bytes),
    });
    // Purged letters are left out of everything that does not ask for them, as the evaluator does.
    let sql = if filter.names_purged() {
        compiled.sql
    } else {
        format!("status <> 'purged' AND ({})", compiled.sql)
    };
    Narrowed { sql, params: params.collect() }
}
