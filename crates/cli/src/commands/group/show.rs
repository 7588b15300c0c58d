//! Output of groups and of the details of one group.

use crate::output::{Column, Sheet, Show, ValueFormat, escape};
use redrive::core::group::{Group, GroupDetail, Hour, NameCount};
use redrive::core::ids::QueueName;
use redrive::core::masking::{MaskedView as _, Rules};
use redrive::core::signature::Variable;
use redrive::core::time::{Span, Time};
use serde::Serialize;

impl Show for Group {
    const COLUMNS: &'static [Column] = &[
        Column::id("id"),
        Column::number("open"),
        Column::number("total").optional(1),
        Column::number("failures").optional(3),
        Column::state("status"),
        Column::whole("last_seen"),
        Column::text("queues").optional(2),
        Column::text("error_type"),
        Column::text("code"),
        Column::main("template"),
    ];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        Some(rules.group(self))
    }

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.open.to_string(),
            self.total.to_string(),
            self.failures.to_string(),
            self.status.to_string(),
            fmt.time(self.last_seen),
            queues(self),
            self.error_type.clone(),
            self.code.clone().unwrap_or_default(),
            self.template.clone(),
        ]
    }

    const MORE: &'static [Column] =
        &[Column::whole("first_seen"), Column::text("kinds"), Column::text("owner")];

    fn more(&self, fmt: &ValueFormat) -> Vec<String> {
        let kinds: Vec<&str> = self.kinds.iter().map(String::as_str).collect();
        vec![fmt.time(self.first_seen), kinds.join(", "), self.owner.clone().unwrap_or_default()]
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        let kinds: Vec<&str> = self.kinds.iter().map(String::as_str).collect();
        Sheet::default()
            .field("id", self.id)
            .field("status", self.status)
            .field("error_type", &self.error_type)
            .field("code", self.code.clone().unwrap_or_default())
            .field("open", self.open)
            .field("total", self.total)
            .field("failures", self.failures)
            .field("first_seen", fmt.time(self.first_seen))
            .field("last_seen", fmt.time(self.last_seen))
            .field("queues", queues(self))
            .field("kinds", kinds.join(", "))
            .field("owner", self.owner.clone().unwrap_or_default())
            .field("note", self.note.clone().unwrap_or_default())
            .field("link", self.link.clone().unwrap_or_default())
            .block("template", &self.template)
    }
}

fn queues(group: &Group) -> String {
    group.queues.iter().map(QueueName::as_str).collect::<Vec<_>>().join(", ")
}

/// The details of one group at a point in time.
#[derive(Debug, Serialize)]
pub(super) struct GroupView {
    #[serde(flatten)]
    pub(super) detail: GroupDetail,
    #[serde(skip)]
    pub(super) now: Time,
}

impl Show for GroupView {
    const COLUMNS: &'static [Column] = Group::COLUMNS;

    fn masked(&self, rules: &Rules) -> Option<Self> {
        Some(Self { detail: self.detail.masked(rules), now: self.now })
    }

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        self.detail.group.cells(fmt)
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        let detail = &self.detail;
        let outcome_stats = &detail.outcomes;
        let retried = outcome_stats.redriven_ok.saturating_add(outcome_stats.redriven_failed);
        let outcomes = match retried {
            0 => String::new(),
            _ => {
                format!("{retried}: {} ok, {} back", outcome_stats.redriven_ok, outcome_stats.redriven_failed)
            }
        };
        let ignored = detail.ignored.map(|ignored| {
            let until = ignored.until.map(|until| format!("until {}", fmt.time(until)));
            let deaths = ignored.deaths.map(|deaths| format!("for {deaths} more deaths"));
            let ends: Vec<String> = until.into_iter().chain(deaths).collect();
            if ends.is_empty() { "until it is reopened".to_owned() } else { ends.join(" or ") }
        });
        let head = Sheet::default()
            .field("since", fmt.maybe(detail.since))
            .field("ignored", ignored.unwrap_or_default())
            .field("retried", outcomes)
            .field(
                "said",
                outcome_stats.operator_category.map(|category| category.to_string()).unwrap_or_default(),
            )
            .field("last_48h", sparkline(&detail.hours, self.now))
            .field("workers", counted(&detail.workers))
            .field("versions", counted(&detail.versions))
            .field("hosts", counted(&detail.hosts));
        let sheet = detail.group.sheet(fmt).and(head);
        self.blocks(fmt)
            .into_iter()
            .filter(|(_, lines)| !lines.is_empty())
            .fold(sheet, |sheet, (name, lines)| sheet.block(name, lines.join("\n")))
    }
}

impl GroupView {
    fn blocks(&self, fmt: &ValueFormat) -> Vec<(&'static str, Vec<String>)> {
        let detail = &self.detail;
        let shares = detail.shares.iter().map(|share| {
            let kind = if share.kind.is_empty() { String::new() } else { format!(" {}", share.kind) };
            format!(
                "{}{kind}: {} open, {} total, {} failures",
                share.queue, share.open, share.total, share.failures
            )
        });
        let samples = detail.samples.iter().map(|sample| {
            let message = escape::line(&sample.message);
            format!("{} {} {} {message}", sample.id, sample.status, fmt.time(sample.dead_at))
        });
        let similar = detail.similar.iter().map(|other| {
            format!(
                "{} {:.2} {} open {}: {}",
                other.id, other.score, other.open, other.error_type, other.template
            )
        });
        let operations = detail.operations.iter().map(|operation| {
            let (act, stage) = (operation.act.name(), operation.stage);
            let outcomes = &operation.outcomes;
            let (done, back) = (outcomes.succeeded, outcomes.failed_same + outcomes.failed_other);
            let (id, members) = (operation.id, operation.members);
            format!("{id} {act} {stage}: {done} of {members} done, {back} back")
        });
        let history = detail.history.iter().map(|mark| {
            let text =
                mark.text.as_deref().map(|text| format!(": {}", escape::line(text))).unwrap_or_default();
            format!("{} {} {} ({}){text}", fmt.time(mark.at), mark.by, mark.what, mark.status)
        });
        vec![
            ("by queue", shares.collect()),
            ("values", detail.variables.iter().map(variable_line).collect()),
            ("latest", samples.collect()),
            ("similar", similar.collect()),
            ("operations", operations.collect()),
            ("history", history.collect()),
        ]
    }
}

fn variable_line(variable: &Variable) -> String {
    let top: Vec<String> = variable.top.iter().map(|(value, n)| format!("{value} ({n})")).collect();
    let more = variable.distinct.saturating_sub(top.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("word {} {}: {}{more}", variable.place, variable.shown, top.join(", "))
}

/// The most frequent names with their counts; counts that may be too high are marked with `~`.
fn counted(all: &[NameCount]) -> String {
    let shown = all.iter().take(5).map(|counted| {
        let about = if counted.over > 0 { "~" } else { "" };
        format!("{} ({about}{})", counted.name, counted.count)
    });
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if all.len() > 5 {
        text.push_str(&format!(" and {} more", all.len() - 5));
    }
    text
}

/// Failures per hour over the last two days as a row of bars, with the current hour last.
fn sparkline(hours: &[Hour], now: Time) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let Some(most) = hours.iter().map(|hour| hour.failures.max(hour.deaths)).max().filter(|most| *most > 0)
    else {
        return String::new();
    };
    let at = |back: u64| now.minus(Span::from_hours(back));
    let count = |back: u64| {
        let in_hour = |hour: &&Hour| hour.at <= at(back) && at(back).since(hour.at) < Span::from_hours(1);
        hours.iter().find(in_hour).map_or(0, |hour| hour.failures.max(hour.deaths))
    };
    let bar = |count: u64| match count {
        0 => ' ',
        _ => {
            let place = usize::try_from((count * 8).div_ceil(most)).unwrap_or(8);
            BARS.get(place.saturating_sub(1)).copied().unwrap_or('█')
        }
    };
    let bars: String = (0..redrive::core::limits::GROUP_HOURS).rev().map(|back| bar(count(back))).collect();
    format!("|{bars}| most {most} an hour")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_has_a_bar_for_each_hour() {
        let now = Time::from_millis(1_767_225_600_000).plus(Span::from_secs(60));
        let hour = |back, failures| Hour {
            at: now.minus(Span::from_secs(60)).minus(Span::from_hours(back)),
            deaths: 0,
            failures,
            closed: 0,
        };
        let line = sparkline(&[hour(47, 1), hour(1, 80), hour(0, 40)], now);
        assert_eq!(line, format!("|▁{}█▄| most 80 an hour", " ".repeat(45)));
        assert_eq!(sparkline(&[], now), "");
    }

    #[test]
    fn names_are_few() {
        let all: Vec<NameCount> =
            (0..7).map(|n| NameCount { name: format!("w{n}"), count: 9 - n, over: n / 4 }).collect();
        assert_eq!(counted(&all), "w0 (9), w1 (8), w2 (7), w3 (6), w4 (~5) and 2 more");
    }
}
