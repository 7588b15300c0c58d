//! Converts data of the store to what the screen shows: rows, the details of one letter with its timeline, operations.
//! Pure; it leaves out what does not fit on a screen.

use super::state::{
    GroupFacts, GroupRow, LetterRow, LetterView, OperationRow, Overview, Sample, TimelineRow,
};
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

/// The maximum number of characters of a row's text.
const ROW_CHARS: usize = 300;
/// The maximum number of characters of an error in the timeline, and of a stack.
const TEXT_CHARS: usize = 4_000;

fn cut(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

/// The row of a group.
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

/// The row of a letter.
pub(super) fn letter_row(letter: &DeadLetter, rules: &Rules) -> LetterRow {
    LetterRow {
        id: letter.id(),
        death: letter.death,
        version: letter.record.version,
        queue: letter.message.envelope.queue.to_string(),
        dlq: letter.record.dlq.to_string(),
        status: letter.record.status,
        reason: letter.record.reason.to_string(),
        attempts: letter.message.attempts,
        redrives: letter.record.redrives,
        dead_at: letter.record.dead_at,
        error: cut(&rules.mask_text(&error_text(&letter.error)), ROW_CHARS),
    }
}

/// The masked details of a letter; `redrive dlq show --reveal` shows what is masked here.
pub(super) fn sheet(letter: &DeadLetter, rules: &Rules) -> LetterView {
    let size = letter.message.envelope.payload.bytes.len();
    let letter = rules.letter(letter);
    let (envelope, record) = (&letter.message.envelope, &letter.record);
    let payload = &envelope.payload;
    let mut fields = vec![
        ("error", cut(&error_text(&letter.error), TEXT_CHARS)),
        ("queue", format!("{} -> {}", envelope.queue, record.dlq)),
        ("reason", format!("{}, {}, {}", record.reason, record.category, record.route)),
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
    more("owner", record.owner.clone());
    more("labels", Some(record.labels.iter().cloned().collect::<Vec<_>>().join(", ")));
    more("held", record.held.then(|| "yes, it never expires".to_owned()));
    more("code", letter.error.code.clone());
    more("cause", letter.error.cause.clone());
    LetterView {
        id: letter.id(),
        version: record.version,
        status: record.status,
        fields,
        timeline: letter.timeline().into_iter().map(moment).collect(),
        payload: payload_text(payload),
        stack: cut(letter.error.stack.as_deref().unwrap_or_default(), TEXT_CHARS),
    }
}

/// A timeline entry as text.
fn moment(moment: dead_letter::TimelineEntry) -> TimelineRow {
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
    let details = [moment.detail, moment.why.unwrap_or_default()];
    let details: Vec<String> = details.into_iter().filter(|text| !text.is_empty()).collect();
    TimelineRow { at: moment.at, what, more: cut(&details.join(": "), TEXT_CHARS) }
}

/// The number of hours of a group to draw.
const HOURS: u64 = 48;

/// The details of the group under the cursor.
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

/// An operation in one line.
pub(super) fn operation_row(operation: &Operation) -> OperationRow {
    let outcomes = &operation.outcomes;
    let mut problems = Vec::new();
    for (n, what) in [
        (outcomes.running, "running"),
        (outcomes.failed_same + outcomes.failed_other, "came back"),
        (outcomes.skipped + outcomes.conflict, "left alone"),
    ] {
        if n > 0 {
            problems.push(format!("{n} {what}"));
        }
    }
    problems.extend(operation.halt.as_ref().map(|halt| halt.text.clone()));
    problems.extend(operation.delayed.as_ref().map(|held| held.text.clone()));
    OperationRow {
        id: operation.id,
        act: operation.act.name().to_owned(),
        stage: operation.stage.to_string(),
        active: !operation.stage.is_over(),
        members: operation.members,
        done: outcomes.ended(),
        problems: cut(&problems.join(", "), ROW_CHARS),
    }
}

/// The number of parts of a breakdown to show.
const PARTS: usize = 3;

/// The lines of a preview: letters by queue, number of groups, duration, warnings, and a sample.
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

/// The overview of the store, and a sample of its counters.
pub(super) fn overview(
    stats: &Stats,
    queues: &[Queue],
    breakers: &[BreakerView],
    degraded: Vec<String>,
) -> (Overview, Sample) {
    let summary = stats.summary();
    let overview = Overview {
        open: summary.letters_open,
        waiting: stats.queues.iter().map(|queue| queue.waiting).sum(),
        leased: stats.queues.iter().map(|queue| queue.leased).sum(),
        oldest: stats.oldest_open_at,
        breakers_open: breakers.iter().filter(|breaker| breaker.state.name() == "open").count(),
        paused: queues.iter().filter(|queue| queue.paused).count(),
        degraded,
    };
    (overview, Sample { at: stats.now, dead: summary.dead, done: summary.acked })
}
