//! `dlq redrive`: sends letters back to work gradually, as a durable operation. It shows a preview with warnings,
//! starts with a canary, ramps up the rate, and pauses by itself if the cause of the failures persists.

use super::super::filter;
use super::super::op::{RateArg, Until, drive, show_preview};
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::id_arg::{self, IdArg};
use crate::output::{Column, Show, ValueFormat};
use clap::{ArgGroup, Args};
use redrive::core::dead_letter::{Act, Retry};
use redrive::core::filter::Filter;
use redrive::core::ids::{GroupId, MessageId, OperationId, QueueName};
use redrive::core::limits;
use redrive::core::masking::{MaskedView, Rules};
use redrive::core::message::Priority;
use redrive::core::operation::{Canary, OperationSpec, Preview, PreviewRequest, Rollout};
use redrive::core::short_id::IdKind;
use redrive::core::time::{Span, Time};
use std::str::FromStr;

const EXAMPLES: &str = "\
Examples:
  redrive dlq redrive --group 5f3a9c21b7d4e680 --canary 10 --observe 5m --rate 50/s --reason 'bank is back'
  redrive dlq redrive --filter 'queue:payments error:timeout age<2h' --dry-run
  redrive dlq redrive --filter 'queue:mail' --canary 5% --rate 500/s --ramp 2m --in-flight 1000 --yes --wait
  redrive dlq redrive --all --to debug --priority low --attempts 1 --max 100 --detach";

/// The number of letters to show before asking for confirmation.
const SAMPLE: usize = 5;
/// The maximum number of letters that can be named by id; more would make the filter too long.
const IDS_MAX: usize = 100;

/// The flags of `dlq redrive`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("which").required(true).args(["ids", "group", "filter", "all"]))]
pub(crate) struct RedriveArgs {
    /// The ids of the messages, or their last digits
    #[arg(value_name = "ID")]
    ids: Vec<IdArg<MessageId>>,
    /// Select the letters of this group
    #[arg(long, value_name = "ID")]
    group: Option<IdArg<GroupId>>,
    /// Select letters that match, such as 'queue:payments error:timeout age<2h'
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
    /// Select all letters
    #[arg(long)]
    all: bool,
    /// Send this many first, such as 10 or 5%, and the rest once those have an outcome
    #[arg(long, value_name = "N|N%")]
    canary: Option<Canary>,
    /// The minimum time to observe the canary, such as 5m
    #[arg(long, value_name = "DURATION", default_value = "0s", requires = "canary")]
    observe: Span,
    /// The maximum number of letters to send per second, such as 50/s
    #[arg(long, value_name = "RATE")]
    rate: Option<RateArg>,
    /// Increase the rate from a tenth to the full rate within this time
    #[arg(long, value_name = "DURATION", requires = "rate")]
    ramp: Option<Span>,
    /// The maximum number of messages in flight
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    in_flight: Option<u32>,
    /// Pause if more than this share fails the same way again; `never` to continue in any case
    #[arg(long, value_name = "PERCENT", default_value = "20%")]
    stop_on_failure: Share,
    /// Continue while a breaker is open; the breaker holds what is sent
    #[arg(long)]
    ignore_breaker: bool,
    /// Send to this queue instead of the original ones
    #[arg(long, value_name = "QUEUE")]
    to: Option<QueueName>,
    /// The priority: critical, high, normal, low or background
    #[arg(long, value_name = "LEVEL")]
    priority: Option<Priority>,
    /// Do not deliver before this long from now
    #[arg(long, value_name = "DURATION")]
    delay: Option<Span>,
    /// The maximum number of attempts, overriding the queue's policy
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::ATTEMPTS_MAX)))]
    attempts: Option<u32>,
    /// Include letters whose work is done under the same key, and letters that came back too often
    #[arg(long)]
    force: bool,
    /// The reason, recorded in the letters' notes and the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// Refuse to send more than this many letters
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// Only start the operation; it continues in a worker that holds the data directory, or with `op watch`
    #[arg(long, conflicts_with = "wait")]
    detach: bool,
    /// Wait until every message is done or dead again
    #[arg(long)]
    wait: bool,
    /// Exit with 3 if nothing matches
    #[arg(long)]
    fail_empty: bool,
}

/// A percentage, or `None` for `never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(Option<u8>);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "never" {
            return Ok(Self(None));
        }
        match text.strip_suffix('%').unwrap_or(text).parse() {
            Ok(percent @ 0..=100) => Ok(Self(Some(percent))),
            Ok(_) | Err(_) => Err(format!("{text:?} is not a percentage such as 20%, nor `never`")),
        }
    }
}

impl RedriveArgs {
    async fn matching(&self, app: &App) -> Result<Filter, CliError> {
        if let Some(group) = &self.group {
            return filter(&format!("group:{}", group.group(app).await?));
        }
        if self.ids.len() > IDS_MAX {
            return Err(CliError::usage(format!(
                "at most {IDS_MAX} letters can be named by id; use --filter for more"
            )));
        }
        if !self.ids.is_empty() {
            let ids = id_arg::letters(app, &self.ids).await?;
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            return filter(&format!("id:{}", ids.join(",")));
        }
        let Some(text) = &self.filter else { return Ok(Filter::default()) };
        let found = id_arg::filter(app, text, IdKind::Letter).await?;
        if found.is_all() {
            let what = "the filter is empty and would match everything; say --all if you mean that";
            return Err(CliError::usage(what));
        }
        Ok(found)
    }

    fn rollout(&self) -> Rollout {
        Rollout {
            canary: self.canary,
            observe: self.observe,
            rate: self.rate.and_then(|rate| rate.0),
            ramp: self.ramp,
            in_flight: self.in_flight,
            stop_at: self.stop_on_failure.0,
            stop_on_breaker: !self.ignore_breaker,
        }
    }

    fn act(&self, now: Time) -> Act {
        Act::Retry(Retry {
            at: self.delay.map(|delay| now.plus(delay)),
            queue: self.to.clone(),
            priority: self.priority,
            max_attempts: self.attempts,
            force: self.force,
        })
    }
}

impl Show for Preview {
    const COLUMNS: &'static [Column] = &[
        Column::number("count"),
        Column::number("groups"),
        Column::number("queues"),
        Column::text("warnings"),
    ];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        Some(MaskedView::masked(self, rules))
    }

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let warnings: Vec<&str> = self.warnings.iter().map(|warning| warning.kind.name()).collect();
        vec![
            self.count.to_string(),
            self.by_group.len().to_string(),
            self.by_queue.len().to_string(),
            warnings.join(" "),
        ]
    }
}

/// Runs `dlq redrive`.
pub(crate) async fn run(app: &App, args: RedriveArgs) -> CommandResult {
    // A filter that does not parse must not even open the store.
    let filter = args.matching(app).await?;
    if args.delay.is_some_and(|delay| delay > limits::SPAN_MAX) {
        return Err(CliError::usage(format!("--delay: at most {}", limits::SPAN_MAX)));
    }
    let hold = if args.detach || args.dry_run { Hold::Moment } else { Hold::Long };
    let mut store = app.open(Access::Existing, hold).await?;
    let (act, rollout) = (args.act(store.info().await?.now), args.rollout());
    let request =
        PreviewRequest { act: act.clone(), filter: filter.clone(), rollout: rollout.clone(), sample: SAMPLE };
    let preview = store.call(async |store| store.preview(request.clone()).await).await?;
    if !(app.out.quiet && (args.yes || args.dry_run)) {
        show_preview(&app.out, "redrive", &preview);
    }
    if args.dry_run {
        app.out.one(&preview)?;
        return Ok(if preview.count == 0 && args.fail_empty {
            ExitCode::NothingMatched
        } else {
            ExitCode::Ok
        });
    }
    if preview.count == 0 {
        app.out.note("there is nothing to redrive");
        return Ok(if args.fail_empty { ExitCode::NothingMatched } else { ExitCode::Ok });
    }
    if let Some(max) = args.max
        && preview.count > max
    {
        let what = format!("would redrive {} dead letters, and --max allows {max}", preview.count);
        return Err(CliError::new(ExitCode::Refused, what).hint("narrow the filter, or raise --max"));
    }
    confirm(&format!("redrive {} dead letters?", preview.count), args.yes).await?;
    let spec = OperationSpec {
        bound: Some(preview.bound),
        token: Some(preview.token),
        rollout,
        ..OperationSpec::new(OperationId::new(redrive::new_id()), act, filter, app.actor(args.reason.clone()))
    };
    let operation = store.call(async |store| store.start(spec.clone()).await).await?;
    let id = operation.id;
    app.out.note(&format!("operation {id}"));
    if args.detach {
        app.out.note(&format!("started; run `redrive op watch {id}` to watch and drive it"));
        app.out.one(&operation)?;
        return Ok(ExitCode::Ok);
    }
    let until = if args.wait { Until::Over } else { Until::Sent };
    drive(app, &mut store, id, until).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_a_hundred() {
        for (text, share) in [("20%", Some(20)), ("0", Some(0)), ("100%", Some(100)), ("never", None)] {
            assert_eq!(text.parse(), Ok(Share(share)), "{text}");
        }
        for text in ["101%", "-1%", "", "x", "20%%"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }
}
