//! From what the store says to what a person is shown: rows, the sheet of one letter with its timeline, operations.
//! Pure. It leaves out what has no place on a screen; it decides nothing.

use super::state::{GroupRow, LetterRow, Moment, OperationRow, Pulse, Sample, Sheet};
use crate::commands::error_text;
use redrive::core::breaker::BreakerView;
use redrive::core::dead_letter::DeadLetter;
use redrive::core::failure::Failure;
use redrive::core::group::Group;
use redrive::core::ids::QueueName;
use redrive::core::metrics::Stats;
use redrive::core::operation::Operation;
use redrive::core::store::Queue;

/// Most characters of an error that a row keeps; a screen is not wider.
const ROW_CHARS: usize = 300;
/// Most characters of an error in the timeline, and of a stack.
const TEXT_CHARS: usize = 4_000;

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// A group as a row.
pub(super) fn group_row(group: &Group) -> GroupRow {
    let queues: Vec<&str> = group.queues.iter().map(QueueName::as_str).collect();
    GroupRow {
        id: group.id,
        open: group.open,
        total: group.total,
        status: group.status.to_string(),
        owner: group.owner.clone().unwrap_or_default(),
        first_seen: group.first_seen,
        last_seen: group.last_seen,
        queues: cut(&queues.join(", "), ROW_CHARS),
        error: cut(&format!("{}: {}", group.error_type, group.template), ROW_CHARS),
    }
}

/// A letter as a row.
pub(super) fn letter_row(letter: &DeadLetter) -> LetterRow {
    LetterRow {
        id: letter.id(),
        death: letter.death,
        version: letter.file.version,
        queue: letter.message.envelope.queue.to_string(),
        status: letter.file.status,
        reason: letter.file.reason.to_string(),
        attempts: letter.message.attempts,
        redrives: letter.file.redrives,
        dead_at: letter.file.dead_at,
        error: cut(&error_text(&letter.error), ROW_CHARS),
    }
}

/// A letter whole, but for its payload: that is shown by `redrive dlq show`.
pub(super) fn sheet(letter: &DeadLetter) -> Sheet {
    let (envelope, file) = (&letter.message.envelope, &letter.file);
    let payload = &envelope.payload;
    let mut fields = vec![
        ("error", cut(&error_text(&letter.error), TEXT_CHARS)),
        ("queue", format!("{} -> {}", envelope.queue, file.dlq)),
        ("reason", format!("{}, {}, {}", file.reason, file.category, file.route)),
        ("group", format!("{}  {}", letter.group, letter.signature)),
        ("payload", format!("{} bytes, {}", payload.bytes.len(), payload.content_type)),
    ];
    let mut more = |name, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            fields.push((name, cut(&value, ROW_CHARS)));
        }
    };
    more("kind", Some(envelope.kind.clone()));
    more("key", envelope.key.clone());
    more("tags", Some(envelope.tags.iter().cloned().collect::<Vec<_>>().join(", ")));
    more("code", letter.error.code.clone());
    more("cause", letter.error.cause.clone());
    Sheet {
        id: letter.id(),
        version: file.version,
        status: file.status,
        fields,
        timeline: timeline(letter),
        payload: String::new(),
        stack: cut(letter.error.stack.as_deref().unwrap_or_default(), TEXT_CHARS),
    }
}

/// What happened to a letter, in order, and what is to come.
fn timeline(letter: &DeadLetter) -> Vec<Moment> {
    let (envelope, file) = (&letter.message.envelope, &letter.file);
    let moment = |at, what: String, more: String| Moment { at, what, more };
    let by = |who: &Option<String>| who.as_ref().map(|who| format!(" by {who}")).unwrap_or_default();
    let none = String::new;
    let mut all =
        vec![moment(envelope.enqueued_at, format!("enqueued{}", by(&envelope.enqueued_by)), none())];
    all.extend(
        letter.message.first_received_at.map(|at| moment(at, "first taken by a worker".into(), none())),
    );
    all.extend(letter.message.failures.iter().map(failed));
    all.push(moment(file.dead_at, format!("DEAD: {}", file.reason), none()));
    all.extend(
        file.review_requested_at
            .map(|at| moment(at, format!("review asked for{}", by(&file.review_requested_by)), none())),
    );
    all.extend(file.reviewed_at.map(|at| moment(at, format!("reviewed{}", by(&file.reviewed_by)), none())));
    all.extend(
        file.notes
            .iter()
            .map(|note| moment(note.at, format!("{} said", note.by), cut(&note.text, TEXT_CHARS))),
    );
    all.extend(file.closed_at.map(|at| {
        let how = file.resolution.clone().unwrap_or_default();
        moment(at, format!("{}{}", file.status, by(&file.closed_by)), how)
    }));
    all.extend(file.quarantined_until.map(|at| moment(at, "quarantine ends".into(), none())));
    all.extend(file.expires_at.map(|at| moment(at, "removed by retention".into(), none())));
    all.sort_by_key(|moment| moment.at);
    all
}

fn failed(failure: &Failure) -> Moment {
    let Failure { generation, attempt, .. } = failure;
    let mut what = format!("attempt {generation}.{attempt} failed");
    if let Some(took) = failure.duration {
        what.push_str(&format!(" after {took}"));
    }
    if let Some(worker) = &failure.worker {
        what.push_str(&format!(", worker {worker}"));
    }
    for (name, value) in [("host", &failure.host), ("version", &failure.version), ("step", &failure.step)] {
        if let Some(value) = value {
            what.push_str(&format!(", {name} {value}"));
        }
    }
    Moment { at: failure.at, what, more: cut(&error_text(&failure.error), TEXT_CHARS) }
}

/// An operation as a line.
pub(super) fn operation_row(operation: &Operation) -> OperationRow {
    let but = if operation.skipped > 0 { format!("{} skipped", operation.skipped) } else { String::new() };
    OperationRow {
        id: operation.id,
        act: operation.act.name().to_owned(),
        stage: operation.stage.to_string(),
        active: operation.finished_at.is_none(),
        members: operation.members,
        done: operation.succeeded + operation.skipped,
        but,
    }
}

/// The counters, and the state of the whole.
pub(super) fn pulse(
    stats: &Stats,
    queues: &[Queue],
    breakers: &[BreakerView],
    degraded: Vec<String>,
) -> (Pulse, Sample) {
    let summary = stats.summary();
    let pulse = Pulse {
        open: summary.letters_open,
        waiting: stats.queues.iter().map(|queue| queue.waiting).sum(),
        leased: stats.queues.iter().map(|queue| queue.leased).sum(),
        oldest: stats.oldest_open_at,
        breakers_open: breakers.iter().filter(|breaker| breaker.state.name() == "open").count(),
        paused: queues.iter().filter(|queue| queue.paused).count(),
        degraded,
    };
    (pulse, Sample { at: stats.now, dead: summary.dead, done: summary.acked })
}
