//! The timeline of a letter as sentences. What happened comes from the core; here it only gets its words.

use super::text::{When, span};
use redrive_core::dead_letter::{DeadLetter, TimelineEntry, TimelineEvent};
use redrive_core::time::{Span, Time};

/// A moment on the timeline.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) tone: &'static str,
    pub(super) what: String,
    pub(super) rest: String,
    pub(super) under: String,
    pub(super) when: When,
    /// The operation that caused it.
    pub(super) operation: Option<String>,
}

/// The moments of a letter, oldest first. An attempt is one moment: when it started follows from how long it took.
pub(super) fn moments(letter: &DeadLetter, now: Time) -> Vec<Moment> {
    let entries = letter.timeline();
    let near = letter.record.dead_at;
    let shown = entries.iter().filter(|entry| entry.what != TimelineEvent::Started);
    let waits = waits(&entries);
    shown.map(|entry| moment(entry, letter, &waits, near, now)).collect()
}

/// How long it took after each failed attempt until the next one started.
fn waits(entries: &[TimelineEntry]) -> Vec<(Time, Span)> {
    let failed = entries.iter().filter(|entry| entry.what == TimelineEvent::Failed);
    let wait = |entry: &TimelineEntry| {
        // An attempt can fail in the millisecond in which it started, so the times alone do not tell which is next.
        let is_next = |later: &&TimelineEntry| {
            later.what == TimelineEvent::Started
                && later.generation == entry.generation
                && later.attempt > entry.attempt
        };
        entries.iter().find(is_next).map(|next| (entry.at, next.at.since(entry.at)))
    };
    failed.filter_map(wait).collect()
}

fn moment(
    entry: &TimelineEntry,
    letter: &DeadLetter,
    waits: &[(Time, Span)],
    near: Time,
    now: Time,
) -> Moment {
    let by = entry.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let (tone, what, rest) = match entry.what {
        TimelineEvent::Enqueued => ("", "Enqueued".into(), by),
        TimelineEvent::FirstLeased => ("", "First taken".into(), waited(entry)),
        TimelineEvent::Started => ("", "Started".into(), String::new()),
        TimelineEvent::Failed => {
            let attempt =
                entry.attempt.map(|n| format!("Attempt {n} failed")).unwrap_or_else(|| "Failed".into());
            let took = entry.took.map(|took| format!(" after {}", span(took))).unwrap_or_default();
            ("red", attempt, took)
        }
        TimelineEvent::Omitted => ("", "Left out".into(), String::new()),
        TimelineEvent::Died => ("red", "Died".into(), String::new()),
        TimelineEvent::Noted => ("", "Note".into(), by),
        TimelineEvent::Edited => ("blue", "Edited".into(), by),
        TimelineEvent::Erased => ("amber", "Erased".into(), by),
        TimelineEvent::ReviewRequested => ("amber", "Review requested".into(), by),
        TimelineEvent::Reviewed => ("blue", "Reviewed".into(), by),
        TimelineEvent::Redriven => ("blue", "Sent back".into(), by),
        TimelineEvent::PulledBack => ("", "Taken back".into(), by),
        TimelineEvent::Closed => ("green", "Closed".into(), by),
        TimelineEvent::Reopened => ("amber", "Opened again".into(), by),
        TimelineEvent::Quarantined => ("amber", "Put in quarantine".into(), by),
        TimelineEvent::Released => ("blue", "Released".into(), by),
        TimelineEvent::Moved => ("", "Moved".into(), by),
        TimelineEvent::Snoozed => ("", "Snoozed".into(), by),
        TimelineEvent::Held => ("", "Held".into(), by),
        TimelineEvent::Unheld => ("", "Hold released".into(), by),
        TimelineEvent::Assigned => ("", "Assigned".into(), by),
        TimelineEvent::Labelled => ("", "Labelled".into(), by),
        TimelineEvent::Purged => ("amber", "Purged".into(), by),
        TimelineEvent::Unpurged => ("", "Purge undone".into(), by),
        TimelineEvent::ConsumerFailed => ("red", "A consumer failed on it".into(), by),
        TimelineEvent::Ready => ("future", "Becomes ready".into(), String::new()),
        TimelineEvent::QuarantineEnds => ("future", "Quarantine ends".into(), String::new()),
        TimelineEvent::SnoozeEnds => ("future", "Snooze ends".into(), String::new()),
        TimelineEvent::Expires => ("future", "Is removed".into(), String::new()),
    };
    Moment {
        tone: if entry.at > now { "future" } else { tone },
        what,
        rest,
        under: under(entry, letter, waits),
        when: When::clock(entry.at, near),
        operation: entry.operation.map(|id| id.to_string()),
    }
}

fn waited(entry: &TimelineEntry) -> String {
    entry.took.map(|took| format!(" after {}", span(took))).unwrap_or_default()
}

/// The second line: what else is known of the moment.
fn under(entry: &TimelineEntry, letter: &DeadLetter, waits: &[(Time, Span)]) -> String {
    let mut parts: Vec<String> = Vec::new();
    if entry.what == TimelineEvent::Enqueued {
        let envelope = &letter.message.envelope;
        parts.push(format!("queue {}, priority {}", envelope.home(), envelope.priority));
        parts.extend(envelope.key.as_ref().map(|key| format!("key {key}")));
        return parts.join(", ");
    }
    if entry.what == TimelineEvent::Failed {
        let failure = letter.message.failures.iter().find(|f| {
            f.at == entry.at && Some(f.attempt) == entry.attempt && Some(f.generation) == entry.generation
        });
        if let Some(failure) = failure {
            let version = failure.version.as_ref().map(|version| format!(" ({version})")).unwrap_or_default();
            parts.extend(failure.worker.as_ref().map(|worker| format!("worker {worker}{version}")));
            parts.extend(failure.step.as_ref().map(|step| format!("step {step}")));
        }
        parts.push(entry.detail.clone());
        let wait = waits.iter().find(|(at, _)| *at == entry.at);
        parts.extend(wait.map(|(_, wait)| format!("the next one {} later", span(*wait))));
        return parts.join(" · ");
    }
    if !entry.detail.is_empty() {
        parts.push(entry.detail.replace('_', " "));
    }
    parts.extend(entry.why.as_ref().map(|why| format!("“{why}”")));
    parts.join(" · ")
}
