//! `dlq stats`: counts by dead letter queue and status, the totals of the store, and a check for cron jobs.

use super::consume::require_dlq;
use crate::commands::marker;
use crate::commands::report::{NewsView, SummaryView, shorten_marker};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::{Column, Format, Show, ValueFormat};
use clap::Args;
use redrive::core::dead_letter::Status;
use redrive::core::group::GroupNews;
use redrive::core::ids::QueueName;
use redrive::core::metrics::Summary;
use redrive::core::query::Cursor;
use redrive::core::store::Dlq;
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
    /// Only this dead letter queue
    #[arg(long, value_name = "DLQ")]
    dlq: Option<QueueName>,
    /// Exit with 10 if this is true of the sum: a status, `open`, `closed` or `total`, compared with a number;
    /// repeatable
    #[arg(long, value_name = "COUNT>N")]
    fail_if: Vec<FailCondition>,
}

/// A count that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Count {
    Status(Status),
    Open,
    Closed,
    Total,
}

impl Count {
    fn of(self, dlq: &Dlq) -> u64 {
        let wanted = |status: &Status| match self {
            Self::Status(one) => *status == one,
            Self::Open => !status.is_closed(),
            // Purged letters are counted separately, because they are about to be removed.
            Self::Closed => status.is_closed() && *status != Status::Purged,
            Self::Total => *status != Status::Purged,
        };
        dlq.by_status.iter().filter(|(status, _)| wanted(status)).map(|(_, count)| count).sum()
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

/// A condition that fails the command.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FailCondition {
    text: String,
    count: Count,
    /// The results of comparing the count with the number for which the condition is true.
    fails: &'static [std::cmp::Ordering],
    number: u64,
}

impl FromStr for FailCondition {
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

impl Show for Dlq {
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

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let statuses = Status::ALL.iter().map(|status| Count::Status(*status));
        let counts = statuses.chain([Count::Open, Count::Total]).map(|count| count.of(self).to_string());
        std::iter::once(self.dlq.to_string()).chain(counts).collect()
    }
}

/// The JSON of `dlq stats`: the dead letter queues as a list, with the totals beside it.
#[derive(Serialize)]
struct StatsDocument<'a> {
    items: &'a [Dlq],
    next: Option<Cursor>,
    summary: &'a Summary,
    groups: &'a GroupNews,
}

/// Runs `dlq stats`.
pub(crate) async fn run(app: &App, args: StatsArgs) -> CommandResult {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let mut dlqs = store.dlqs().await?;
    dlqs.retain(|dlq| args.dlq.as_ref().is_none_or(|wanted| dlq.dlq == *wanted));
    if let Some(wanted) = args.dlq.as_ref().filter(|_| dlqs.is_empty()) {
        // A queue may have a dead letter queue without letters; but a check on a misspelled name would always pass.
        require_dlq(&*store, wanted).await?;
    }
    let summary = store.stats().await?.summary();
    let groups = marker::news(&*store).await?;
    match app.out.format {
        Format::Table | Format::Wide if !app.out.names_columns() => {
            app.out.all(&dlqs)?;
            app.out.raw(b"\n")?;
            app.out.one(&SummaryView(&summary))?;
            app.out.raw(b"\n")?;
            app.out.one(&NewsView(&shorten_marker(&app.out, &groups)))?;
        }
        Format::Json | Format::Yaml => app.out.document(&StatsDocument {
            items: &dlqs,
            next: None,
            summary: &summary,
            groups: &groups,
        })?,
        Format::Table | Format::Wide | Format::Ndjson | Format::Csv | Format::Template | Format::None => {
            app.out.all(&dlqs)?
        }
    }
    for condition in &args.fail_if {
        let sum: u64 = dlqs.iter().map(|dlq| condition.count.of(dlq)).sum();
        if condition.fails.contains(&sum.cmp(&condition.number)) {
            return Err(CliError::new(
                ExitCode::CheckFailed,
                format!("{} holds: it is {sum}", condition.text),
            ));
        }
    }
    Ok(ExitCode::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(text: &str, sum: u64) -> bool {
        let condition: FailCondition = text.parse().unwrap();
        condition.fails.contains(&sum.cmp(&condition.number))
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
            assert!(wrong.parse::<FailCondition>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn counts_are_sums_over_statuses() {
        let by_status =
            [(Status::Pending, 3), (Status::Retrying, 2), (Status::Resolved, 7), (Status::Purged, 1)].into();
        let dlq = Dlq { dlq: "q-dlq".parse().unwrap(), by_status };
        let of = |text: &str| text.parse::<Count>().unwrap().of(&dlq);
        assert_eq!([of("open"), of("closed"), of("total"), of("pending"), of("review")], [5, 7, 12, 3, 0]);
    }
}
