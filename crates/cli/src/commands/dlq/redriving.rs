//! `dlq redrive`: sends letters back to work as a durable operation, carefully. What would happen is shown first,
//! with what to think of; then a canary, a look at it, a ramp; and it halts by itself when the cause is still there.

use super::super::filter;
use super::super::op::{RateArg, Until, drive, show_preview};
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::given::{self, Given};
use crate::output::{Column, Look, Show};
use clap::{ArgGroup, Args};
use redrive::core::dead_letter::{Act, Retry};
use redrive::core::filter::Filter;
use redrive::core::ids::{GroupId, MessageId, OperationId, QueueName};
use redrive::core::limits;
use redrive::core::masking::Rules;
use redrive::core::message::Priority;
use redrive::core::operation::{Canary, OperationSpec, Pace, Preview, PreviewRequest};
use redrive::core::short_id::IdKind;
use redrive::core::time::{Span, Time};
use std::str::FromStr;

const EXAMPLES: &str = "\
Examples:
  redrive dlq redrive --group 5f3a9c21b7d4e680 --canary 10 --observe 5m --rate 50/s --reason 'bank is back'
  redrive dlq redrive --filter 'queue:payments error:timeout age<2h' --dry-run
  redrive dlq redrive --filter 'queue:mail' --canary 5% --rate 500/s --ramp 2m --in-flight 1000 --yes --wait
  redrive dlq redrive --all --to debug --priority low --attempts 1 --max 100 --detach";

/// How many letters a person is shown before deciding.
const SAMPLE: usize = 5;
/// Letters that can be named one by one: beyond that the filter would be too long.
const IDS_MAX: usize = 100;

/// The flags of `dlq redrive`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("which").required(true).args(["ids", "group", "filter", "all"]))]
pub(crate) struct RedriveArgs {
    /// The letters, by the ids of their messages or the last digits of each
    #[arg(value_name = "ID")]
    ids: Vec<Given<MessageId>>,
    /// Those of this group
    #[arg(long, value_name = "ID")]
    group: Option<Given<GroupId>>,
    /// Those that match, such as 'queue:payments error:timeout age<2h'
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
    /// All of them
    #[arg(long)]
    all: bool,
    /// So many first, such as 10 or 5%; the others when those have an outcome
    #[arg(long, value_name = "N|N%")]
    canary: Option<Canary>,
    /// How long to look at the canary at least, such as 5m
    #[arg(long, value_name = "DURATION", default_value = "0s", requires = "canary")]
    observe: Span,
    /// So many per second, such as 50/s
    #[arg(long, value_name = "RATE")]
    rate: Option<RateArg>,
    /// From a tenth of the rate to all of it within this time
    #[arg(long, value_name = "DURATION", requires = "rate")]
    ramp: Option<Span>,
    /// So many under way at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    in_flight: Option<u32>,
    /// Pause when more than this share comes back with the failure it had; `never` to go on whatever happens
    #[arg(long, value_name = "PERCENT", default_value = "20%")]
    stop_on_failure: Share,
    /// Go on while a breaker is open; what is sent back then is held
    #[arg(long)]
    ignore_breaker: bool,
    /// To this queue instead of their own
    #[arg(long, value_name = "QUEUE")]
    to: Option<QueueName>,
    /// This urgent: critical, high, normal, low, background
    #[arg(long, value_name = "LEVEL")]
    priority: Option<Priority>,
    /// Not before this long from now
    #[arg(long, value_name = "DURATION")]
    delay: Option<Span>,
    /// So many executions, whatever the queue says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::ATTEMPTS_MAX)))]
    attempts: Option<u32>,
    /// Also those whose work is done already under their key, and those that came back too often
    #[arg(long)]
    force: bool,
    /// Why, for the letters' notes and the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// Refuse to touch more than this many
    #[arg(long, value_name = "N")]
    max: Option<u64>,
    /// Only start it; a worker or server that holds the data, or `op watch`, goes on
    #[arg(long, conflicts_with = "wait")]
    detach: bool,
    /// Also wait until every message is done or dead again
    #[arg(long)]
    wait: bool,
    /// Exit with 3 when nothing matches
    #[arg(long)]
    fail_empty: bool,
}

/// A share of a hundred, or none.
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
            Ok(_) | Err(_) => Err(format!("{text:?} is not a share such as 20%, nor `never`")),
        }
    }
}

impl RedriveArgs {
    async fn matching(&self, app: &App) -> Result<Filter, CliError> {
        if let Some(group) = &self.group {
            return filter(&format!("group:{}", group.group(app).await?));
        }
        if self.ids.len() > IDS_MAX {
            return Err(CliError::usage(format!("name at most {IDS_MAX} letters, or a --filter")));
        }
        if !self.ids.is_empty() {
            let ids = given::letters(app, &self.ids).await?;
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            return filter(&format!("id:{}", ids.join(",")));
        }
        let Some(text) = &self.filter else { return Ok(Filter::default()) };
        let found = given::filter(app, text, IdKind::Letter).await?;
        if found.is_all() {
            let what = "the filter is empty and would match everything; say --all if that is meant";
            return Err(CliError::usage(what));
        }
        Ok(found)
    }

    fn pace(&self) -> Pace {
        Pace {
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
        let sample = self.sample.iter().map(|letter| rules.letter(letter)).collect();
        Some(Self { sample, ..self.clone() })
    }

    fn cells(&self, _: &Look) -> Vec<String> {
        let warnings: Vec<&str> = self.warnings.iter().map(|warning| warning.kind.name()).collect();
        vec![
            self.count.to_string(),
            self.by_group.len().to_string(),
            self.by_queue.len().to_string(),
            warnings.join(" "),
        ]
    }
}

/// Runs the command.
pub(crate) async fn run(app: &App, args: RedriveArgs) -> Done {
    // A filter that does not parse must not even open the store.
    let filter = args.matching(app).await?;
    if args.delay.is_some_and(|delay| delay > limits::SPAN_MAX) {
        return Err(CliError::usage(format!("--delay: at most {}", limits::SPAN_MAX)));
    }
    let hold = if args.detach || args.dry_run { Hold::Moment } else { Hold::Long };
    let mut store = app.open(Access::Existing, hold).await?;
    let (act, pace) = (args.act(store.info().await?.now), args.pace());
    let request =
        PreviewRequest { act: act.clone(), filter: filter.clone(), pace: pace.clone(), sample: SAMPLE };
    let preview = store.ask(async |store| store.preview(request.clone()).await).await?;
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
        pace,
        ..OperationSpec::new(OperationId::new(redrive::new_id()), act, filter, app.actor(args.reason.clone()))
    };
    let operation = store.ask(async |store| store.start(spec.clone()).await).await?;
    let id = operation.id;
    app.out.note(&format!("operation {id}"));
    if args.detach {
        app.out.note(&format!("started; `redrive op watch {id}` shows how far it is and drives it"));
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
