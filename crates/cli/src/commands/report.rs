//! Totals and alerts: the summary of `dlq stats`, and `queue report`.

use super::marker;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::{Column, Format, Output, Sheet, Show, ValueFormat, table};
use clap::Args;
use redrive::core::group::GroupNews;
use redrive::core::metrics::{Alert, HistogramSnapshot, QueueStats, Report, Summary, report_with};
use redrive::core::time::Span;
use serde::Serialize;
use std::collections::BTreeMap;

const EXAMPLES: &str = "\
Examples:
  redrive queue report
  redrive queue report --check                     for cron: exits with 10 if there is an alert
  redrive queue report -o json | jq .alerts

Latencies and the rate of dead letters cover the process that holds the data directory; the counters are kept in
the store and survive a restart.";

/// The flags of `queue report`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReportArgs {
    /// Exit with 10 if there is an alert
    #[arg(long)]
    check: bool,
}

/// The totals as a sheet.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct SummaryView<'a>(pub(super) &'a Summary);

/// What is new among groups, as a sheet.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct NewsView<'a>(pub(super) &'a GroupNews);

/// The width of a marker's text beside the field names of the sheet.
const MARKER_WIDTH: usize = 40;

/// Shortens the marker's text if the output is a terminal, which would wrap it.
pub(super) fn shorten_marker(out: &Output, news: &GroupNews) -> GroupNews {
    let mut news = news.clone();
    if out.terminal
        && let Some(marker) = &mut news.marker
    {
        marker.text = table::shortened(&marker.text, MARKER_WIDTH);
    }
    news
}

impl Show for NewsView<'_> {
    const COLUMNS: &'static [Column] = &[
        Column::number("groups_open"),
        Column::number("groups_new"),
        Column::number("groups_regressed"),
        Column::number("groups_new_since_marker"),
    ];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let GroupNews { open, new, regressed, new_since_marker, .. } = self.0;
        let since = new_since_marker.map(|n| n.to_string()).unwrap_or_default();
        vec![open.to_string(), new.to_string(), regressed.to_string(), since]
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        let since = self.0.marker.as_ref().map(|marker| format!("{} ({})", marker.text, fmt.time(marker.at)));
        let fields = Self::COLUMNS.iter().zip(self.cells(fmt));
        let sheet = fields.fold(Sheet::default(), |sheet, (column, cell)| sheet.field(column.name, cell));
        sheet.field("marker", since.unwrap_or_default())
    }
}

/// The largest counts as text.
fn counts<K: std::fmt::Display>(all: &BTreeMap<K, u64>) -> String {
    const SHOWN: usize = 8;
    let mut all: Vec<(&K, u64)> = all.iter().map(|(key, n)| (key, *n)).filter(|(_, n)| *n > 0).collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let more = all.len().saturating_sub(SHOWN);
    let words = |(key, n): &(&K, u64)| match key.to_string() {
        name if name.is_empty() => format!("none {n}"),
        name => format!("{name} {n}"),
    };
    let mut text: Vec<String> = all.iter().take(SHOWN).map(words).collect();
    if more > 0 {
        text.push(format!("and {more} more"));
    }
    text.join(", ")
}

fn percent(rate: Option<f64>) -> String {
    rate.map(|rate| format!("{:.1} %", rate * 100.0)).unwrap_or_default()
}

fn decimal(number: Option<f64>) -> String {
    number.map(|number| format!("{number:.2}")).unwrap_or_default()
}

fn span(ms: Option<u64>) -> String {
    ms.map(|ms| Span::from_millis(ms).to_string()).unwrap_or_default()
}

impl Show for SummaryView<'_> {
    const COLUMNS: &'static [Column] = &[
        Column::number("dead"),
        Column::number("redriven"),
        Column::number("redrive_succeeded"),
        Column::number("abandoned"),
        Column::number("letters_open"),
    ];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let s = self.0;
        [s.dead, s.redriven, s.redrive_succeeded, s.abandoned, s.letters_open].map(|n| n.to_string()).into()
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        let s = self.0;
        Sheet::default()
            .field("since", fmt.maybe(s.since))
            .field("enqueued", s.enqueued)
            .field("enqueued_bytes", s.enqueued_bytes)
            .field("leased", s.leased)
            .field("done", s.acked)
            .field("failed", s.failed)
            .field("retried", s.retried)
            .field("dead", s.dead)
            .field("redriven", s.redriven)
            .field("redrive_succeeded", s.redrive_succeeded)
            .field("redrive_failed", s.redrive_failed)
            .field("resolved", s.resolved)
            .field("abandoned", s.abandoned)
            .field("reviews", s.reviews)
            .field("quarantined", s.quarantined)
            .field("discarded", s.discarded)
            .field("removed_by_retention", s.removed_by_retention)
            .field("expired", s.expired)
            .field("replies", s.replies)
            .field("replies_left_out", s.replies_left_out)
            .field("overflows", s.overflows)
            .field("letters_open", s.letters_open)
            .field("open_by_priority", counts(&s.open_by_priority))
            .field("open_by_kind", counts(&s.open_by_kind))
            .field("open_by_dlq", counts(&s.open_by_dlq))
            .field("letters_peak", s.letters_peak)
            .field("messages_peak", s.messages_peak)
            .field("oldest_open", span(s.oldest_open_ms))
            .field("retry_success_rate", percent(s.retry_success_rate))
            .field("abandonment_rate", percent(s.abandonment_rate))
            .field("dead_letter_rate", percent(s.dead_letter_rate))
            .field("retries_average", decimal(s.retries_average))
            .field("retries_max", s.retries_max)
            .field("backoff_average", span(s.backoff_average_ms))
            .field("dead_age_average", span(s.dead_age_average_ms))
            .field("dead_age_max", span(Some(s.dead_age_max_ms)))
            .field("messages_per_second", decimal(s.messages_per_second))
            .field("bytes_per_second", decimal(s.bytes_per_second))
            .field("done_per_second", decimal(s.done_per_second))
    }
}

impl Show for QueueStats {
    const COLUMNS: &'static [Column] = &[
        Column::main("queue"),
        Column::number("waiting"),
        Column::number("leased"),
        Column::number("bytes").optional(1),
        Column::number("peak").optional(3),
        Column::number("letters_open"),
        Column::number("letters_peak").optional(4),
        Column::number("utilisation").optional(2),
    ];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let numbers =
            [self.waiting, self.leased, self.bytes, self.peak, self.letters_open, self.letters_peak];
        let mut cells = vec![self.queue.to_string()];
        cells.extend(numbers.map(|n| n.to_string()));
        cells.push(percent(self.utilisation()));
        cells
    }
}

impl Show for Alert {
    const COLUMNS: &'static [Column] =
        &[Column::whole("alert"), Column::state("level"), Column::whole("subject"), Column::main("text")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![self.rule.clone(), self.level.to_string(), self.subject.clone(), self.text.clone()]
    }
}

/// A latency distribution with its name.
#[derive(Serialize)]
struct Latency<'a> {
    name: &'a str,
    #[serde(flatten)]
    seen: &'a HistogramSnapshot,
}

impl Show for Latency<'_> {
    const COLUMNS: &'static [Column] = &[
        Column::whole("took"),
        Column::number("count"),
        Column::number("p50_ms"),
        Column::number("p95_ms"),
        Column::number("p99_ms"),
        Column::number("max_ms"),
    ];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let ms = |us: u64| format!("{}.{:03}", us / 1_000, us % 1_000);
        let h = self.seen;
        let times = [h.p50_us, h.p95_us, h.p99_us, h.max_us].map(ms);
        [self.name.to_owned(), h.count.to_string()].into_iter().chain(times).collect()
    }
}

/// The JSON of `queue report`.
#[derive(Serialize)]
struct ReportDocument {
    #[serde(flatten)]
    report: Report,
    groups: GroupNews,
}

/// Runs `queue report`.
pub(super) async fn run(app: &App, args: &ReportArgs) -> CommandResult {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let mut found = report_with(&store.stats().await?, &app.config.alerts);
    let groups = marker::news(&*store).await?;
    found.alerts.extend(groups.alerts());
    let found = ReportDocument { report: found, groups };
    match app.out.format {
        Format::Json | Format::Ndjson | Format::Yaml | Format::Template | Format::None => {
            app.out.document(&found)?;
        }
        Format::Csv => app.out.all(&found.report.queues)?,
        Format::Table | Format::Wide => {
            app.out.all(&found.report.queues)?;
            app.out.raw(b"\n")?;
            app.out.one(&SummaryView(&found.report.summary))?;
            app.out.raw(b"\n")?;
            app.out.one(&NewsView(&shorten_marker(&app.out, &found.groups)))?;
            let latency: Vec<_> =
                found.report.latency.iter().map(|(name, seen)| Latency { name, seen }).collect();
            if !latency.is_empty() {
                app.out.raw(b"\n")?;
                app.out.all(&latency)?;
            }
            if found.report.alerts.is_empty() {
                app.out.note("no alerts");
            } else {
                app.out.raw(b"\n")?;
                app.out.all(&found.report.alerts)?;
            }
        }
    }
    if args.check && !found.report.alerts.is_empty() {
        let rules: Vec<&str> = found.report.alerts.iter().map(|alert| alert.rule.as_str()).collect();
        return Err(CliError::new(ExitCode::CheckFailed, format!("alerts: {}", rules.join(", "))));
    }
    Ok(ExitCode::Ok)
}
