//! How operations, members and previews are shown.

use crate::output::{Column, Look, Output, Sheet, Show, complain};
use redrive::core::masking::Rules;
use redrive::core::operation::{Member, Operation, Pace, Preview};
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

    fn cells(&self, _: &Look) -> Vec<String> {
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

    fn more(&self, look: &Look) -> Vec<String> {
        vec![self.actor.name.clone(), look.time(self.created_at), look.maybe(self.finished_at)]
    }

    fn sheet(&self, look: &Look) -> Sheet {
        let o = &self.outcomes;
        let halt = self.halt.as_ref().map(|halt| format!("{} ({}): {}", halt.why, halt.by, halt.text));
        let held = self.held_up.as_ref().map(|held| held.text.clone());
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
            .field("pace", pace(&self.pace))
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
            .field("created_at", look.time(self.created_at))
            .field("finished_at", look.maybe(self.finished_at))
    }
}

/// A pace in one line.
fn pace(pace: &Pace) -> String {
    let parts = [
        pace.canary.map(|canary| format!("canary {canary}")),
        (pace.observe > Span::ZERO).then(|| format!("observed for {}", pace.observe)),
        pace.rate.map(|rate| format!("{rate}/s")),
        pace.ramp.map(|ramp| format!("ramp {ramp}")),
        pace.in_flight.map(|most| format!("{most} in flight")),
        pace.stop_at.map(|percent| format!("stops above {percent}% back")),
        pace.stop_on_breaker.then(|| "stops on an open breaker".to_owned()),
    ];
    let said: Vec<String> = parts.into_iter().flatten().collect();
    if said.is_empty() { "as fast as it goes".to_owned() } else { said.join(", ") }
}

impl Show for Member {
    const COLUMNS: &'static [Column] =
        &[Column::id("id"), Column::state("outcome"), Column::number("version"), Column::main("why")];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        let why = self.why.as_ref().map(|why| rules.mask_text(why).into_owned());
        Some(Self { why, ..self.clone() })
    }

    fn cells(&self, _: &Look) -> Vec<String> {
        let why = self.why.clone().unwrap_or_default();
        vec![self.id.to_string(), self.outcome.to_string(), self.version.to_string(), why]
    }
}

/// Groups and queues that a person is shown before deciding.
const PARTS: usize = 5;

/// Shows a preview to a person, on stderr: what, how much, since when, for how long, and what to think of first.
pub(crate) fn show_preview(out: &Output, verb: &str, preview: &Preview) {
    let count = preview.count;
    complain(&format!("to {verb}: {count} dead letters"));
    let listed = |what: &str, all: Vec<String>| {
        let more = all.len().saturating_sub(PARTS);
        let shown: Vec<String> = all.into_iter().take(PARTS).collect();
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        complain(&format!("  by {what}: {}{more}", shown.join(", ")));
    };
    listed("group", preview.by_group.iter().map(|part| format!("{} {}", part.of, part.count)).collect());
    listed("queue", preview.by_queue.iter().map(|part| format!("{} {}", part.of, part.count)).collect());
    let ages = preview.by_age.iter().filter(|age| age.count > 0).map(|age| match age.up_to {
        Some(up_to) => format!("up to {up_to} {}", age.count),
        None => format!("older {}", age.count),
    });
    listed("age", ages.collect());
    if let Some(estimate) = preview.estimate {
        complain(&format!("  takes about {estimate}"));
    }
    for warning in &preview.warnings {
        complain(&format!("  warning: {}", warning.text));
    }
    if !preview.sample.is_empty() {
        let some = if count > preview.sample.len() as u64 { "the latest of them:" } else { "all of them:" };
        complain(&format!("  {some}"));
        out.sample(&preview.sample);
    }
}
