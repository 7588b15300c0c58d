//! Letters as rows of a spreadsheet: every cell quoted, and nothing in it that a spreadsheet would run.

use crate::exit_code::{CliError, ExitCode};
use crate::output::escape;
use redrive::core::dead_letter::DeadLetter;
use redrive::core::time::Time;

/// The columns.
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
    let (file, message) = (&letter.file, &letter.message);
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
        file.dlq.to_string(),
        file.status.to_string(),
        file.reason.to_string(),
        file.category.to_string(),
        file.route.to_string(),
        file.severity.to_string(),
        e.priority.to_string(),
        message.attempts.to_string(),
        message.failed.to_string(),
        file.redrives.to_string(),
        message.generation.to_string(),
        e.enqueued_at.to_string(),
        file.dead_at.to_string(),
        time(file.closed_at),
        time(file.expires_at),
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

fn written(rows: impl Iterator<Item = Vec<String>>) -> Result<String, CliError> {
    let broken = |e: csv::Error| CliError::new(ExitCode::Error, format!("failed to write csv: {e}"));
    let mut writer = csv::WriterBuilder::new().quote_style(csv::QuoteStyle::Always).from_writer(Vec::new());
    for row in rows {
        writer.write_record(row).map_err(broken)?;
    }
    let bytes = writer.into_inner().map_err(|e| broken(e.into_error().into()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The first row.
pub(super) fn head() -> Result<String, CliError> {
    written(std::iter::once(COLUMNS.map(str::to_owned).to_vec()))
}

/// A row for each letter. A file keeps every character; a terminal would act on some.
pub(super) fn rows(letters: &[DeadLetter], terminal: bool) -> Result<String, CliError> {
    let safe = |cell: String| {
        let plain = if terminal { escape::line(&cell).into_owned() } else { cell };
        escape::cell(&plain).into_owned()
    };
    written(letters.iter().map(|letter| cells(letter).into_iter().map(safe).collect()))
}
