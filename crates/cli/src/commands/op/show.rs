//! Output of operations, members and previews.

use crate::output::{Column, Output, Sheet, Show, ValueFormat, eprint_line};
use redrive::core::masking::{MaskedView, Rules};
use redrive::core::operation::{Member, Operation, Preview, Rollout};
use redrive::core::time::Span;

impl Show for Operation {
    const COLUMNS: &'static [Column] = &[
        Column::id("id"),
        Column::whole("act"),
        Column::state("stage"),
        Column::number("members"),
        Column::number("waiting").optional(3),
        Column::number("running").optional(2),
        Column::number("succeeded"),
        Column::number("failed"),
        Column::number("skipped").optional(1),
        Column::main("filter"),
    ];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        Some(rules.operation(self))
    }

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let o = &self.outcomes;
        vec![
            self.id.to_string(),
            self.act.name().to_owned(),
            self.stage.to_string(),
            self.members.to_string(),
            o.waiting.to_string(),
            o.running.to_string(),
            o.succeeded.to_string(),
            (o.failed_same + o.failed_other).to_string(),
            (o.skipped + o.conflict).to_string(),
            self.filter.to_string(),
        ]
    }

    const MORE: &'static [Column] =
        &[Column::whole("by"), Column::whole("created_at"), Column::whole("finished_at")];

    fn more(&self, fmt: &ValueFormat) -> Vec<String> {
        vec![self.actor.name.clone(), fmt.time(self.created_at), fmt.maybe(self.finished_at)]
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        let o = &self.outcomes;
        let halt = self.halt.as_ref().map(|halt| format!("{} ({}): {}", halt.reason, halt.by, halt.text));
        let held = self.delayed.as_ref().map(|held| held.text.clone());
        Sheet::default()
            .field("id", self.id)
            .field("act", self.act.name())
            .field("detail", self.act.detail().unwrap_or_default())
            .field("stage", self.stage)
            .field("paused", halt.unwrap_or_default())
            .field("held up", held.unwrap_or_default())
            .field("filter", &self.filter)
            .field("by", &self.actor.name)
            .field("reason", self.actor.reason.clone().unwrap_or_default())
            .field("pace", rollout(&self.rollout))
            .field("members", self.members)
            .field("waiting", o.waiting)
            .field("running", o.running)
            .field("succeeded", o.succeeded)
            .field("failed the same", o.failed_same)
            .field("failed otherwise", o.failed_other)
            .field("skipped", o.skipped)
            .field("conflict", o.conflict)
            .field("undone", o.undone)
            .field("success", o.success_percent().map(|percent| format!("{percent}%")).unwrap_or_default())
            .field("created_at", fmt.time(self.created_at))
            .field("finished_at", fmt.maybe(self.finished_at))
    }
}

/// The rollout settings in one line.
fn rollout(rollout: &Rollout) -> String {
    let parts = [
        rollout.canary.map(|canary| format!("canary {canary}")),
        (rollout.observe > Span::ZERO).then(|| format!("observed for {}", rollout.observe)),
        rollout.rate.map(|rate| format!("{rate}/s")),
        rollout.ramp.map(|ramp| format!("ramp {ramp}")),
        rollout.in_flight.map(|most| format!("{most} in flight")),
        rollout.stop_at.map(|percent| format!("stops above {percent}% back")),
        rollout.stop_on_breaker.then(|| "stops on an open breaker".to_owned()),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "as fast as it goes".to_owned() } else { parts.join(", ") }
}

impl Show for Member {
    const COLUMNS: &'static [Column] =
        &[Column::id("id"), Column::state("outcome"), Column::number("version"), Column::main("why")];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        Some(MaskedView::masked(self, rules))
    }

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let why = self.why.clone().unwrap_or_default();
        vec![self.id.to_string(), self.outcome.to_string(), self.version.to_string(), why]
    }
}

/// The number of groups and queues to list in a preview.
const PARTS: usize = 5;

/// Prints a preview on stderr: how many letters by group, queue and age, how long it takes, warnings and a sample.
pub(crate) fn show_preview(out: &Output, verb: &str, preview: &Preview) {
    let count = preview.count;
    eprint_line(&format!("to {verb}: {count} dead letters"));
    let listed = |what: &str, all: Vec<String>| {
        let more = all.len().saturating_sub(PARTS);
        let shown: Vec<String> = all.into_iter().take(PARTS).collect();
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        eprint_line(&format!("  by {what}: {}{more}", shown.join(", ")));
    };
    listed("group", preview.by_group.iter().map(|part| format!("{} {}", part.of, part.count)).collect());
    listed("queue", preview.by_queue.iter().map(|part| format!("{} {}", part.of, part.count)).collect());
    let ages = preview.by_age.iter().filter(|age| age.count > 0).map(|age| match age.up_to {
        Some(up_to) => format!("up to {up_to} {}", age.count),
        None => format!("older {}", age.count),
    });
    listed("age", ages.collect());
    if let Some(estimate) = preview.estimate {
        eprint_line(&format!("  takes about {estimate}"));
    }
    for warning in &preview.warnings {
        eprint_line(&format!("  warning: {}", warning.text));
    }
    if !preview.sample.is_empty() {
        let some = if count > preview.sample.len() as u64 { "the latest of them:" } else { "all of them:" };
        eprint_line(&format!("  {some}"));
        out.sample(&preview.sample);
    }
}
