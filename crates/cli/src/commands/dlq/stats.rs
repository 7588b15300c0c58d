//! `dlq stats`: counts by drawer and status, the summary of what was counted ever, and a check that a cron job can
//! fail on.

use super::consume::require_dlq;
use crate::commands::marker;
use crate::commands::report::{News, Totals, fitted};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::output::{Column, Format, Look, Show};
use clap::Args;
use redrive::core::dead_letter::Status;
use redrive::core::group::GroupNews;
use redrive::core::ids::QueueName;
use redrive::core::metrics::Summary;
use redrive::core::query::Cursor;
use redrive::core::store::Drawer;
use serde::Serialize;
use std::str::FromStr;

const EXAMPLES: &str = "\
Examples:
  redrive dlq stats
  redrive dlq stats --fail-if 'open>0'                        for cron: exits with 10
  redrive dlq stats --dlq payments-dlq --fail-if 'pending>=100' --fail-if 'review>0'";

/// The flags of `dlq stats`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatsArgs {
    /// Only this drawer
    #[arg(long, value_name = "DRAWER")]
    dlq: Option<QueueName>,
    /// Exit with 10 when this holds for the sum: a status, `open`, `closed` or `total`, compared with a
    /// number; repeatable
    #[arg(long, value_name = "COUNT>N")]
    fail_if: Vec<Limit>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Status(Status),
    Open,
    Closed,
    Total,
}

impl Count {
    fn of(self, drawer: &Drawer) -> u64 {
        let wanted = |status: &Status| match self {
            Self::Status(one) => *status == one,
            Self::Open => !status.is_closed(),
            // What is purged is counted apart, as gone.
            Self::Closed => status.is_closed() && *status != Status::Purged,
            Self::Total => *status != Status::Purged,
        };
        drawer.by_status.iter().filter(|(status, _)| wanted(status)).map(|(_, count)| count).sum()
    }
}

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "open" => Ok(Self::Open),
            "closed" => Ok(Self::Closed),
            "total" => Ok(Self::Total),
            status => {
                status.parse().map(Self::Status).map_err(|error| format!("{error}, open, closed, total"))
            }
        }
    }
}

/// A comparison that fails the command.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Limit {
    text: String,
    count: Count,
    /// Which orderings of count and number fail.
    fails: &'static [std::cmp::Ordering],
    number: u64,
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let wrong = || format!("{text:?} is not a comparison such as open>0 or pending>=100");
        let signs: [(&str, &'static [std::cmp::Ordering]); 6] = [
            (">=", &[Greater, Equal]),
            ("<=", &[Less, Equal]),
            ("!=", &[Less, Greater]),
            (">", &[Greater]),
            ("<", &[Less]),
            ("=", &[Equal]),
        ];
        let found = signs.iter().find_map(|(sign, fails)| text.split_once(sign).map(|split| (split, *fails)));
        let ((count, number), fails) = found.ok_or_else(wrong)?;
        let number = number.trim().parse().map_err(|_| wrong())?;
        Ok(Self { text: text.to_owned(), count: count.trim().parse()?, fails, number })
    }
}

impl Show for Drawer {
    const COLUMNS: &'static [Column] = &[
        Column::main("dlq"),
        Column::number("pending"),
        Column::number("retrying").optional(1),
        Column::number("review"),
        Column::number("quarantined"),
        Column::number("resolved").optional(2),
        Column::number("abandoned").optional(3),
        Column::number("purged").optional(4),
        Column::number("open"),
        Column::number("total"),
    ];

    fn cells(&self, _: &Look) -> Vec<String> {
        let statuses = Status::ALL.iter().map(|status| Count::Status(*status));
        let counts = statuses.chain([Count::Open, Count::Total]).map(|count| count.of(self).to_string());
        std::iter::once(self.dlq.to_string()).chain(counts).collect()
    }
}

/// The drawers as a list, with the summary beside it.
#[derive(Serialize)]
struct Counted<'a> {
    items: &'a [Drawer],
    next: Option<Cursor>,
    summary: &'a Summary,
    groups: &'a GroupNews,
}

/// Runs it.
pub(crate) async fn run(app: &App, args: StatsArgs) -> Done {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let mut drawers = store.drawers().await?;
    drawers.retain(|drawer| args.dlq.as_ref().is_none_or(|wanted| drawer.dlq == *wanted));
    if let Some(wanted) = args.dlq.as_ref().filter(|_| drawers.is_empty()) {
        // One without letters is there as long as a queue has it; a check on a wrong name would always pass.
        require_dlq(&*store, wanted).await?;
    }
    let summary = store.stats().await?.summary();
    let groups = marker::news(&*store).await?;
    match app.out.format {
        Format::Table | Format::Wide if !app.out.names_columns() => {
            app.out.all(&drawers)?;
            app.out.raw(b"\n")?;
            app.out.one(&Totals(&summary))?;
            app.out.raw(b"\n")?;
            app.out.one(&News(&fitted(&app.out, &groups)))?;
        }
        Format::Json | Format::Yaml => {
            app.out.document(&Counted { items: &drawers, next: None, summary: &summary, groups: &groups })?
        }
        Format::Table | Format::Wide | Format::Ndjson | Format::Csv | Format::Template | Format::None => {
            app.out.all(&drawers)?
        }
    }
    for limit in &args.fail_if {
        let sum: u64 = drawers.iter().map(|drawer| limit.count.of(drawer)).sum();
        if limit.fails.contains(&sum.cmp(&limit.number)) {
            return Err(CliError::new(ExitCode::CheckFailed, format!("{} holds: it is {sum}", limit.text)));
        }
    }
    Ok(ExitCode::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(text: &str, sum: u64) -> bool {
        let limit: Limit = text.parse().unwrap();
        limit.fails.contains(&sum.cmp(&limit.number))
    }

    #[test]
    fn comparisons_mean_what_they_say() {
        for (text, failing, passing) in [
            ("open>0", 1, 0),
            ("pending >= 100", 100, 99),
            ("total<5", 4, 5),
            ("closed<=5", 5, 6),
            ("review=0", 0, 1),
            ("abandoned!=2", 3, 2),
        ] {
            assert!(fails(text, failing) && !fails(text, passing), "{text}");
        }
        for wrong in ["open", "open>", "opn>0", "open>-1", ">0", "open>1.5"] {
            assert!(wrong.parse::<Limit>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn counts_are_sums_over_statuses() {
        let by_status =
            [(Status::Pending, 3), (Status::Retrying, 2), (Status::Resolved, 7), (Status::Purged, 1)].into();
        let drawer = Drawer { dlq: "q-dlq".parse().unwrap(), by_status };
        let of = |text: &str| text.parse::<Count>().unwrap().of(&drawer);
        assert_eq!([of("open"), of("closed"), of("total"), of("pending"), of("review")], [5, 7, 12, 3, 0]);
    }
}
