//! Letters as CSV: every cell is quoted, and no cell starts a spreadsheet formula.

use crate::exit_code::{CliError, ExitCode};
use crate::output::escape;
use redrive::core::dead_letter::DeadLetter;
use redrive::core::time::Time;

/// The columns of the CSV.
const COLUMNS: [&str; 27] = [
    "id",
    "queue",
    "kind",
    "dlq",
    "status",
    "reason",
    "category",
    "route",
    "severity",
    "priority",
    "attempts",
    "failed",
    "redrives",
    "generation",
    "enqueued_at",
    "dead_at",
    "closed_at",
    "expires_at",
    "group",
    "error_type",
    "error_message",
    "error_code",
    "key",
    "tags",
    "content_type",
    "headers",
    "payload",
];

fn cells(letter: &DeadLetter) -> [String; COLUMNS.len()] {
    let (record, message) = (&letter.record, &letter.message);
    let e = &message.envelope;
    let time = |at: Option<Time>| at.map(|at| at.to_string()).unwrap_or_default();
    let headers: Vec<String> = e.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let tags: Vec<&str> = e.tags.iter().map(String::as_str).collect();
    let payload = match std::str::from_utf8(&e.payload.bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("{} bytes that are not text", e.payload.bytes.len()),
    };
    [
        e.id.to_string(),
        e.queue.to_string(),
        e.kind.clone(),
        record.dlq.to_string(),
        record.status.to_string(),
        record.reason.to_string(),
        record.category.to_string(),
        record.route.to_string(),
        record.severity.to_string(),
        e.priority.to_string(),
        message.attempts.to_string(),
        message.failed.to_string(),
        record.redrives.to_string(),
        message.generation.to_string(),
        e.enqueued_at.to_string(),
        record.dead_at.to_string(),
        time(record.closed_at),
        time(record.expires_at),
        letter.group.to_string(),
        letter.error.error_type.clone(),
        letter.error.message.clone(),
        letter.error.code.clone().unwrap_or_default(),
        e.key.clone().unwrap_or_default(),
        tags.join(", "),
        e.payload.content_type.clone(),
        headers.join("\n"),
        payload,
    ]
}

fn to_csv(rows: impl Iterator<Item = Vec<String>>) -> Result<String, CliError> {
    let broken = |e: csv::Error| CliError::new(ExitCode::Error, format!("failed to write csv: {e}"));
    let mut writer = csv::WriterBuilder::new().quote_style(csv::QuoteStyle::Always).from_writer(Vec::new());
    for row in rows {
        writer.write_record(row).map_err(broken)?;
    }
    let bytes = writer.into_inner().map_err(|e| broken(e.into_error().into()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The header row.
pub(super) fn header() -> Result<String, CliError> {
    to_csv(std::iter::once(COLUMNS.map(str::to_owned).to_vec()))
}

/// One row per letter. A file keeps every character; for a terminal control characters are escaped.
pub(super) fn rows(letters: &[DeadLetter], terminal: bool) -> Result<String, CliError> {
    let safe = |cell: String| {
        let plain = if terminal { escape::line(&cell).into_owned() } else { cell };
        escape::cell(&plain).into_owned()
    };
    to_csv(letters.iter().map(|letter| cells(letter).into_iter().map(safe).collect()))
}
