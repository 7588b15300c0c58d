//! The flags of the verbs that say more than which letters: how to send one back, until when to hide it, whose it is.
//! Each only makes an act; what it does is `act`'s path.

use super::act::{Selection, run};
use crate::connect::App;
use crate::exit_code::{CliError, Done};
use clap::{ArgGroup, Args};
use redrive::core::dead_letter::{Act, Retry};
use redrive::core::ids::QueueName;
use redrive::core::limits;
use redrive::core::message::Priority;
use redrive::core::time::{Span, Time};

const EXAMPLES: &str = "\
Examples:
  redrive dlq retry 01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00
  redrive dlq retry 01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00 --to debug --priority high --attempts 1
  redrive dlq retry --filter 'queue:payments error:timeout age<2h' --dry-run
  redrive dlq retry --filter 'queue:payments error:timeout age<2h' --reason 'bank is back' --yes
  redrive dlq retry --all --delay 10m --max 1000
  redrive dlq retry --job resize --yes && redrive run resize.yaml";

/// The flags of `dlq retry`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RetryArgs {
    /// Not before then, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    at: Option<Time>,
    /// Not before this long from now
    #[arg(long, value_name = "DURATION")]
    delay: Option<Span>,
    /// To this queue instead of its own; its rules hold there
    #[arg(long, value_name = "QUEUE")]
    to: Option<QueueName>,
    /// This urgent: critical, high, normal, low, background
    #[arg(long, value_name = "LEVEL")]
    priority: Option<Priority>,
    /// So many executions, whatever the queue says
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::ATTEMPTS_MAX)))]
    attempts: Option<u32>,
    /// Also when work with its key is done already or on its way, and when it came back too often
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    which: Selection,
}

/// The flags of `dlq quarantine` and `dlq snooze`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("end").required(true).args(["until", "span"]))]
pub(crate) struct UntilArgs {
    /// Until then, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    until: Option<Time>,
    /// For this long from now, such as 2h
    #[arg(long = "for", value_name = "DURATION")]
    span: Option<Span>,
    #[command(flatten)]
    which: Selection,
}

/// The flags of `dlq move`.
#[derive(Args, Debug)]
pub(crate) struct MoveArgs {
    /// Into this drawer of a queue
    #[arg(long, value_name = "DRAWER")]
    to: QueueName,
    #[command(flatten)]
    which: Selection,
}

/// The flags of `dlq assign`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("owner").required(true).args(["to", "nobody"]))]
pub(crate) struct AssignArgs {
    /// To this person or team
    #[arg(long, value_name = "NAME")]
    to: Option<String>,
    /// To nobody
    #[arg(long)]
    nobody: bool,
    #[command(flatten)]
    which: Selection,
}

/// The flags of `dlq label`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("labels").required(true).multiple(true).args(["add", "remove"]))]
pub(crate) struct LabelArgs {
    /// Put this label on; may be given more than once
    #[arg(long, value_name = "LABEL")]
    add: Vec<String>,
    /// Take this label off; may be given more than once
    #[arg(long, value_name = "LABEL")]
    remove: Vec<String>,
    #[command(flatten)]
    which: Selection,
}

fn bounded(flag: &str, span: Option<Span>) -> Result<(), CliError> {
    match span {
        Some(span) if span > limits::SPAN_MAX => {
            Err(CliError::usage(format!("{flag}: {span} is more than {}", limits::SPAN_MAX)))
        }
        Some(_) | None => Ok(()),
    }
}

/// Runs `dlq retry`.
pub(crate) async fn retry(app: &App, args: RetryArgs) -> Done {
    let RetryArgs { at, delay, to, priority, attempts, force, which } = args;
    bounded("--delay", delay)?;
    run(app, which, |now| {
        let at = at.or(delay.map(|delay| now.plus(delay)));
        Act::Retry(Retry { at, queue: to, priority, max_attempts: attempts, force })
    })
    .await
}

/// Runs `dlq quarantine` or `dlq snooze`: the act is made of when it ends.
pub(crate) async fn until(app: &App, args: UntilArgs, act: fn(Time) -> Act) -> Done {
    let UntilArgs { until, span, which } = args;
    bounded("--for", span)?;
    run(app, which, |now| act(until.unwrap_or(now.plus(span.unwrap_or(Span::ZERO))))).await
}

/// Runs `dlq move`.
pub(crate) async fn shift(app: &App, MoveArgs { to, which }: MoveArgs) -> Done {
    run(app, which, |_| Act::Move { dlq: to }).await
}

/// Runs `dlq assign`.
pub(crate) async fn assign(app: &App, args: AssignArgs) -> Done {
    run(app, args.which, |_| Act::Assign { to: args.to }).await
}

/// Runs `dlq label`.
pub(crate) async fn label(app: &App, LabelArgs { add, remove, which }: LabelArgs) -> Done {
    let (add, remove) = (add.into_iter().collect(), remove.into_iter().collect());
    run(app, which, |_| Act::Label { add, remove }).await
}
