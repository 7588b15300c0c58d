//! The flags of the commands that need more than a selection of letters, such as a queue, a time or an owner. Each
//! only builds an act; [`super::act`] runs it.

use super::act::{Selection, run};
use crate::connect::App;
use crate::exit_code::{CliError, CommandResult};
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
    /// Do not deliver before this time, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    at: Option<Time>,
    /// Do not deliver before this long from now
    #[arg(long, value_name = "DURATION")]
    delay: Option<Span>,
    /// Send to this queue instead of the original one; the policy of this queue applies
    #[arg(long, value_name = "QUEUE")]
    to: Option<QueueName>,
    /// The priority: critical, high, normal, low or background
    #[arg(long, value_name = "LEVEL")]
    priority: Option<Priority>,
    /// The maximum number of attempts, overriding the queue's policy
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(limits::ATTEMPTS_MAX)))]
    attempts: Option<u32>,
    /// Retry even if work with the same key is done or under way, or if the letter came back too often
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    which: Selection,
}

/// The flags of `dlq quarantine` and `dlq snooze`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("end").required(true).args(["until", "span"]))]
pub(crate) struct UntilArgs {
    /// Until this time, such as 2026-01-31T12:00:00Z
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
    /// The dead letter queue to move to; it must belong to a queue
    #[arg(long, value_name = "DLQ")]
    to: QueueName,
    #[command(flatten)]
    which: Selection,
}

/// The flags of `dlq assign`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("owner").required(true).args(["to", "nobody"]))]
pub(crate) struct AssignArgs {
    /// The person or team to assign to
    #[arg(long, value_name = "NAME")]
    to: Option<String>,
    /// Remove the owner
    #[arg(long)]
    nobody: bool,
    #[command(flatten)]
    which: Selection,
}

/// The flags of `dlq label`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("labels").required(true).multiple(true).args(["add", "remove"]))]
pub(crate) struct LabelArgs {
    /// Add this label; repeatable
    #[arg(long, value_name = "LABEL")]
    add: Vec<String>,
    /// Remove this label; repeatable
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
pub(crate) async fn retry(app: &App, args: RetryArgs) -> CommandResult {
    let RetryArgs { at, delay, to, priority, attempts, force, which } = args;
    bounded("--delay", delay)?;
    run(app, which, |now| {
        let at = at.or(delay.map(|delay| now.plus(delay)));
        Act::Retry(Retry { at, queue: to, priority, max_attempts: attempts, force })
    })
    .await
}

/// Runs `dlq quarantine` or `dlq snooze`; `act` builds the act from its end time.
pub(crate) async fn until(app: &App, args: UntilArgs, act: fn(Time) -> Act) -> CommandResult {
    let UntilArgs { until, span, which } = args;
    bounded("--for", span)?;
    run(app, which, |now| act(until.unwrap_or(now.plus(span.unwrap_or(Span::ZERO))))).await
}

/// Runs `dlq move`.
pub(crate) async fn move_letters(app: &App, MoveArgs { to, which }: MoveArgs) -> CommandResult {
    run(app, which, |_| Act::Move { dlq: to }).await
}

/// Runs `dlq assign`.
pub(crate) async fn assign(app: &App, args: AssignArgs) -> CommandResult {
    run(app, args.which, |_| Act::Assign { to: args.to }).await
}

/// Runs `dlq label`.
pub(crate) async fn label(app: &App, LabelArgs { add, remove, which }: LabelArgs) -> CommandResult {
    let (add, remove) = (add.into_iter().collect(), remove.into_iter().collect());
    run(app, which, |_| Act::Label { add, remove }).await
}
