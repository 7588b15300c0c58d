//! From what the store says to what a person is shown: rows, the sheet of one letter with its timeline, operations.
//! Pure. It leaves out what has no place on a screen; it decides nothing.

use super::state::{GroupFacts, GroupRow, LetterRow, Moment, OperationRow, Pulse, Sample, Sheet};
use crate::commands::{error_text, payload_text};
use redrive::core::breaker::BreakerView;
use redrive::core::dead_letter::{self, DeadLetter};
use redrive::core::group::{Group, GroupDetail};
use redrive::core::ids::QueueName;
use redrive::core::masking::Rules;
use redrive::core::metrics::Stats;
use redrive::core::operation::{Operation, Preview};
use redrive::core::store::Queue;
use redrive::core::time::{Span, Time};

/// Most characters of an error that a row keeps; a screen is not wider.
const ROW_CHARS: usize = 300;
/// Most characters of an error in the timeline, and of a stack.
const TEXT_CHARS: usize = 4_000;

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// A group as a row.
pub(super) fn group_row(group: &Group, rules: &Rules) -> GroupRow {
    let group = rules.group(group);
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
pub(super) fn letter_row(letter: &DeadLetter, rules: &Rules) -> LetterRow {
    LetterRow {
        id: letter.id(),
        death: letter.death,
        version: letter.file.version,
        queue: letter.message.envelope.queue.to_string(),
        dlq: letter.file.dlq.to_string(),
        status: letter.file.status,
        reason: letter.file.reason.to_string(),
        attempts: letter.message.attempts,
        redrives: letter.file.redrives,
        dead_at: letter.file.dead_at,
        error: cut(&rules.mask_text(&error_text(&letter.error)), ROW_CHARS),
    }
}

/// A letter whole, masked; `redrive dlq show --reveal` shows what is not shown here.
pub(super) fn sheet(letter: &DeadLetter, rules: &Rules) -> Sheet {
    let size = letter.message.envelope.payload.bytes.len();
    let letter = rules.letter(letter);
    let (envelope, file) = (&letter.message.envelope, &letter.file);
    let payload = &envelope.payload;
    let mut fields = vec![
        ("error", cut(&error_text(&letter.error), TEXT_CHARS)),
        ("queue", format!("{} -> {}", envelope.queue, file.dlq)),
        ("reason", format!("{}, {}, {}", file.reason, file.category, file.route)),
        ("group", format!("{}  {}", letter.group, letter.signature)),
        ("payload", format!("{size} bytes, {}", payload.content_type)),
    ];
    let mut more = |name, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            fields.push((name, cut(&value, ROW_CHARS)));
        }
    };
    more("kind", Some(envelope.kind.clone()));
    more("key", envelope.key.clone());
    more("tags", Some(envelope.tags.iter().cloned().collect::<Vec<_>>().join(", ")));
    more("owner", file.owner.clone());
    more("labels", Some(file.labels.iter().cloned().collect::<Vec<_>>().join(", ")));
    more("held", file.held.then(|| "yes, it never expires".to_owned()));
    more("code", letter.error.code.clone());
    more("cause", letter.error.cause.clone());
    Sheet {
        id: letter.id(),
        version: file.version,
        status: file.status,
        fields,
        timeline: letter.timeline().into_iter().map(moment).collect(),
        payload: payload_text(payload),
        stack: cut(letter.error.stack.as_deref().unwrap_or_default(), TEXT_CHARS),
    }
}

/// A moment of a letter's life in words.
fn moment(moment: dead_letter::Moment) -> Moment {
    let mut what = moment.what.to_string().replace('_', " ");
    if let (Some(generation), Some(attempt)) = (moment.generation, moment.attempt) {
        what.push_str(&format!(" attempt {generation}.{attempt}"));
    }
    if let Some(took) = moment.took {
        what.push_str(&format!(" after {took}"));
    }
    if let Some(by) = moment.by {
        what.push_str(&format!(" by {by}"));
    }
    if let Some(operation) = moment.operation {
        what.push_str(&format!(" in operation {operation}"));
    }
    let said = [moment.detail, moment.why.unwrap_or_default()];
    let said: Vec<String> = said.into_iter().filter(|text| !text.is_empty()).collect();
    Moment { at: moment.at, what, more: cut(&said.join(": "), TEXT_CHARS) }
}

/// Hours of a group that are drawn.
const HOURS: u64 = 48;

/// What is known about the group under the cursor beside its row.
pub(super) fn facts(detail: &GroupDetail, now: Time) -> GroupFacts {
    let ago = |at: Time| now.since(at).as_millis() / Span::from_hours(1).as_millis();
    let deaths = |hour: u64| detail.hours.iter().filter(|h| ago(h.at) == hour).map(|h| h.deaths).sum();
    let mut words = Vec::new();
    let outcomes = &detail.outcomes;
    let sent = u64::from(outcomes.redriven_ok) + u64::from(outcomes.redriven_failed);
    if sent > 0 {
        words.push(format!(
            "sent back {sent}: {} ok, {} back",
            outcomes.redriven_ok, outcomes.redriven_failed
        ));
    }
    for (name, seen) in [("version", &detail.versions), ("worker", &detail.workers)] {
        if let Some(most) = seen.first() {
            words.push(format!("{name} {} ({})", most.name, most.count));
        }
    }
    GroupFacts {
        id: detail.group.id,
        hours: (0..HOURS).rev().map(deaths).collect(),
        words: cut(&words.join(", "), ROW_CHARS),
    }
}

/// An operation as a line.
pub(super) fn operation_row(operation: &Operation) -> OperationRow {
    let outcomes = &operation.outcomes;
    let mut but = Vec::new();
    for (n, what) in [
        (outcomes.running, "running"),
        (outcomes.failed_same + outcomes.failed_other, "came back"),
        (outcomes.skipped + outcomes.conflict, "left alone"),
    ] {
        if n > 0 {
            but.push(format!("{n} {what}"));
        }
    }
    but.extend(operation.halt.as_ref().map(|halt| halt.text.clone()));
    but.extend(operation.held_up.as_ref().map(|held| held.text.clone()));
    OperationRow {
        id: operation.id,
        act: operation.act.name().to_owned(),
        stage: operation.stage.to_string(),
        active: !operation.stage.is_over(),
        members: operation.members,
        done: outcomes.ended(),
        but: cut(&but.join(", "), ROW_CHARS),
    }
}

/// Parts of a breakdown that are shown.
const PARTS: usize = 3;

/// What a person should know before something big: where the letters are, what to think of, the latest of them.
pub(super) fn preview_lines(preview: &Preview, rules: &Rules) -> Vec<String> {
    let mut lines = Vec::new();
    let queues: Vec<String> =
        preview.by_queue.iter().take(PARTS).map(|part| format!("{} in {}", part.count, part.of)).collect();
    if !queues.is_empty() {
        lines.push(queues.join(", "));
    }
    if preview.by_group.len() > 1 {
        lines.push(format!("{} groups", preview.by_group.len()));
    }
    lines.extend(preview.estimate.map(|span| format!("takes about {span}")));
    lines.extend(preview.warnings.iter().map(|warning| format!("! {}", warning.text)));
    for letter in &preview.sample {
        let row = letter_row(letter, rules);
        lines.push(format!("{} {} {}", row.queue, row.status, row.error));
    }
    lines
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
