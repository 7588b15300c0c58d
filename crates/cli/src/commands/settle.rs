//! The commands that settle a delivery: `ack`, `fail`, `extend` and `release`. A failure is analysed here, in the
//! calling process; the store decides what happens next.

use super::enqueue::read_payload;
use super::{only, print_results};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::input;
use crate::output::{Column, Show, ValueFormat};
use clap::Args;
use redrive::core::failure::{ErrorInfo, FailureReport};
use redrive::core::ids::LeaseToken;
use redrive::core::limits;
use redrive::core::message::Payload;
use redrive::core::policy::Override;
use redrive::core::progress::Progress;
use redrive::core::store::{Settle, Settled, Settlement};
use redrive::core::time::Span;
use std::path::{Path, PathBuf};
use std::str::FromStr;

const FAIL_EXAMPLES: &str = "\
Examples:
  redrive fail \"$token\" --error-type HttpError --message 'timed out after 30 s' --code 504
  redrive fail \"$token\" --error-type BadOrder --message 'no such customer' --permanent
  redrive fail \"$token\" --error-type HttpError --message 'timed out' --cause 'connection reset by peer' \\
    --context 'charge order 4411' --context 'POST /charges' --duration 30s --log /var/log/charge.log
  ./handler 2> stack.txt || redrive fail \"$token\" --error-type Crash --message 'exit 1' --stack stack.txt

The queue's policy decides whether and when the message is retried or becomes a dead letter; the result says
which.";

const ACK_EXAMPLES: &str = "\
Examples:
  redrive ack \"$token\"
  redrive ack \"$token\" --reply '{\"total\":42}' --content-type application/json
  ./handler | redrive ack \"$token\" --reply -";

const EXTEND_EXAMPLES: &str = "\
Examples:
  redrive extend \"$token\" --by 10m
  redrive extend \"$token\" --progress 30/120 --note 'resizing images'";

/// The flags of `ack`.
#[derive(Args, Debug)]
#[command(after_help = ACK_EXAMPLES)]
pub(crate) struct AckArgs {
    /// The tokens printed by `lease`
    #[arg(required = true, value_name = "TOKEN")]
    tokens: Vec<LeaseToken>,
    /// A reply to send to the message's reply_to queue with the ack: text, `@FILE`, or `-` for stdin; ignored if the
    /// message has no reply_to
    #[arg(long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    reply: Option<String>,
    /// The content type of the reply
    #[arg(long, value_name = "TYPE", default_value = "", hide_default_value = true, requires = "reply")]
    content_type: String,
}

/// The flags of `fail`.
#[derive(Args, Debug)]
#[command(after_help = FAIL_EXAMPLES)]
pub(crate) struct FailArgs {
    /// The token printed by `lease`
    #[arg(value_name = "TOKEN")]
    token: LeaseToken,
    /// The type or class name of the error
    #[arg(long, value_name = "TYPE")]
    error_type: String,
    /// The error's message
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    message: String,
    /// The error code: an HTTP status, errno name, SQLSTATE or exit code
    #[arg(long, value_name = "CODE", allow_hyphen_values = true)]
    code: Option<String>,
    /// A file with the stack trace; `-` for stdin
    #[arg(long, value_name = "FILE")]
    stack: Option<PathBuf>,
    /// The error that caused this one
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    cause: Option<String>,
    /// What the handler was doing, outermost first; repeatable
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    context: Vec<String>,
    /// The step that failed
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// How long the work took
    #[arg(long, value_name = "DURATION")]
    duration: Option<Span>,
    /// The location of the log: a path or a URL
    #[arg(long, value_name = "PLACE")]
    log: Option<String>,
    /// Something the attempt left behind, such as a directory, branch or core dump; repeatable
    #[arg(long = "artifact", value_name = "PLACE")]
    artifacts: Vec<String>,
    /// The host the work ran on
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// The version of the handler
    #[arg(long, value_name = "VERSION")]
    handler_version: Option<String>,
    /// Retrying is useless: make it a dead letter at once
    #[arg(long)]
    permanent: bool,
    /// The worker process died: it was killed, aborted or panicked. Three crashes make a message poison
    #[arg(long)]
    crashed: bool,
    /// Retry no earlier than this, as the remote side asked
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["permanent", "dead_letter"])]
    retry_after: Option<Span>,
    /// Make it a dead letter now, regardless of the policy
    #[arg(long, conflicts_with = "permanent")]
    dead_letter: bool,
}

/// The flags of `extend`.
#[derive(Args, Debug)]
#[command(after_help = EXTEND_EXAMPLES)]
pub(crate) struct ExtendArgs {
    /// The token printed by `lease`
    #[arg(value_name = "TOKEN")]
    token: LeaseToken,
    /// How long the lease lasts from now [default: the queue's policy]
    #[arg(long, value_name = "DURATION", conflicts_with = "progress")]
    by: Option<Span>,
    /// The progress so far, kept with the message so that the next attempt can continue from there
    #[arg(long, value_name = "DONE[/TOTAL]")]
    progress: Option<ProgressArg>,
    /// What the worker is doing
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, requires = "progress")]
    note: String,
}

/// The value of `--progress`: `30` or `30/120`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProgressArg {
    done: u64,
    total: Option<u64>,
}

impl FromStr for ProgressArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |part: &str| {
            part.trim().parse::<u64>().map_err(|_| format!("{text:?} is not progress such as 30 or 30/120"))
        };
        match text.split_once('/') {
            Some((done, total)) => Ok(Self { done: number(done)?, total: Some(number(total)?) }),
            None => Ok(Self { done: number(text)?, total: None }),
        }
    }
}

/// The flags of `release`.
#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    /// The token printed by `lease`
    #[arg(value_name = "TOKEN")]
    token: LeaseToken,
    /// Do not deliver the message again before this long from now
    #[arg(long, value_name = "DURATION")]
    delay: Option<Span>,
}

impl Show for Settled {
    const COLUMNS: &'static [Column] = &[
        Column::id("id"),
        Column::state("state"),
        Column::whole("ready_at"),
        Column::whole("lease_expires_at"),
        Column::whole("reason"),
        Column::whole("dlq"),
        Column::whole("reply"),
    ];

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.state.to_string(),
            fmt.maybe(self.ready_at),
            fmt.maybe(self.lease_expires_at),
            self.reason.map(|reason| reason.to_string()).unwrap_or_default(),
            self.dlq.as_ref().map(ToString::to_string).unwrap_or_default(),
            self.reply.map(|id| id.to_string()).unwrap_or_default(),
        ]
    }
}

/// Runs `ack`.
pub(crate) async fn ack(app: &App, args: AckArgs) -> CommandResult {
    let payload = match args.reply.as_deref() {
        Some("-") => Some(read_payload(Path::new("-")).await?),
        Some(text) => Some(match text.strip_prefix('@') {
            Some(file) => read_payload(Path::new(file)).await?,
            None => text.as_bytes().to_vec(),
        }),
        None => None,
    };
    let what = payload.map_or(Settle::Ack, |bytes| Settle::Reply {
        payload: Payload { bytes, content_type: args.content_type },
    });
    let all = args.tokens.into_iter().map(|token| Settlement { token, what: what.clone() });
    let batch: Vec<Settlement> = all.collect();
    for settlement in &batch {
        settlement.check()?;
    }
    let store = app.open(Access::Existing, Hold::Moment).await?;
    print_results(app, store.settle(batch).await?)
}

/// Runs `fail`.
pub(crate) async fn fail(app: &App, args: FailArgs) -> CommandResult {
    let stack = match &args.stack {
        Some(path) => Some(read_stack(path).await?),
        None => None,
    };
    let report = FailureReport {
        error: ErrorInfo {
            error_type: args.error_type,
            message: args.message,
            code: args.code,
            stack,
            context: args.context,
            cause: args.cause,
        },
        step: args.step,
        duration: args.duration,
        host: args.host,
        version: args.handler_version,
        log: args.log,
        artifacts: args.artifacts,
        permanent: args.permanent,
        crashed: args.crashed,
        retry_after: args.retry_after,
        ..FailureReport::default()
    };
    let policy_override = args.dead_letter.then_some(Override::DeadLetter);
    settle(
        app,
        args.token,
        Settle::Fail { failure: Box::new(report.analyse_with(&app.config.known)), policy_override },
    )
    .await
}

/// Runs `extend`.
pub(crate) async fn extend(app: &App, args: ExtendArgs) -> CommandResult {
    let what = match args.progress {
        Some(ProgressArg { done, total }) => {
            Settle::Progress { progress: Progress::new(done, total, args.note) }
        }
        None => Settle::Extend { by: args.by },
    };
    settle(app, args.token, what).await
}

/// Runs `release`.
pub(crate) async fn release(app: &App, args: ReleaseArgs) -> CommandResult {
    let what = args.delay.map_or(Settle::Release, |span| Settle::Snooze { span });
    settle(app, args.token, what).await
}

async fn settle(app: &App, token: LeaseToken, what: Settle) -> CommandResult {
    let settlement = Settlement { token, what };
    settlement.check()?;
    let store = app.open(Access::Existing, Hold::Moment).await?;
    app.out.one(&only(store.settle(vec![settlement]).await?)?)?;
    Ok(ExitCode::Ok)
}

/// Reads a stack trace, up to the number of bytes that are kept. Bytes that are not UTF-8 are replaced, because a
/// failure report is worth more than a few bytes.
async fn read_stack(path: &Path) -> Result<String, CliError> {
    let failed = |error| CliError::io(format_args!("read the stack from {}", path.display()), &error);
    let bytes = input::bytes(path, limits::STACK_BYTES_MAX as u64 + 1).await.map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_one_number_or_two() {
        assert_eq!("30".parse(), Ok(ProgressArg { done: 30, total: None }));
        assert_eq!("30 / 120".parse(), Ok(ProgressArg { done: 30, total: Some(120) }));
        for wrong in ["", "/", "3/", "-1", "1/2/3", "half"] {
            assert!(wrong.parse::<ProgressArg>().is_err(), "{wrong}");
        }
    }
}
