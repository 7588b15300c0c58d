//! The worker's words about a delivery: `ack`, `fail`, `extend`, `release`. A failure is analysed here, in the
//! caller; what follows from it is the store's to decide.

use super::enqueue::read_payload;
use super::{each, only};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::input;
use crate::output::{Column, Look, Show};
use clap::Args;
use redrive::core::failure::{ErrorInfo, Report};
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

The queue's policy decides whether the message is tried again, and when, or becomes a dead letter; the answer
says which.";

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
    /// The tokens, as `lease` printed them
    #[arg(required = true, value_name = "TOKEN")]
    tokens: Vec<LeaseToken>,
    /// The answer for whoever the message names in reply_to, sent with the ack: text, `@FILE`, or `-` for stdin.
    /// The same as without when nobody asked
    #[arg(long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    reply: Option<String>,
    /// What the answer claims to be
    #[arg(long, value_name = "TYPE", default_value = "", hide_default_value = true, requires = "reply")]
    content_type: String,
}

/// The flags of `fail`.
#[derive(Args, Debug)]
#[command(after_help = FAIL_EXAMPLES)]
pub(crate) struct FailArgs {
    /// The token, as `lease` printed it
    #[arg(value_name = "TOKEN")]
    token: LeaseToken,
    /// The type or class name of the error
    #[arg(long, value_name = "TYPE")]
    error_type: String,
    /// The error's message
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    message: String,
    /// A code: HTTP status, errno name, SQLSTATE, exit code
    #[arg(long, value_name = "CODE", allow_hyphen_values = true)]
    code: Option<String>,
    /// A file with the stack; `-` is stdin
    #[arg(long, value_name = "FILE")]
    stack: Option<PathBuf>,
    /// The error beneath this one
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    cause: Option<String>,
    /// What was being done, from the outside in; repeatable
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    context: Vec<String>,
    /// The step that failed
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// How long the work took
    #[arg(long, value_name = "DURATION")]
    duration: Option<Span>,
    /// Where the log is: a path or a URL
    #[arg(long, value_name = "PLACE")]
    log: Option<String>,
    /// What was left behind, such as a directory, a branch or a core dump; repeatable
    #[arg(long = "artifact", value_name = "PLACE")]
    artifacts: Vec<String>,
    /// The machine it ran on
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// The version of the handler
    #[arg(long, value_name = "VERSION")]
    handler_version: Option<String>,
    /// Trying again is useless: a dead letter at once
    #[arg(long)]
    permanent: bool,
    /// The process that worked on it died: killed, aborted, panicked. Three of these are poison
    #[arg(long)]
    crashed: bool,
    /// The other side said to come back after this long
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["permanent", "dead_letter"])]
    retry_after: Option<Span>,
    /// Make it a dead letter now, whatever the policy says
    #[arg(long, conflicts_with = "permanent")]
    dead_letter: bool,
}

/// The flags of `extend`.
#[derive(Args, Debug)]
#[command(after_help = EXTEND_EXAMPLES)]
pub(crate) struct ExtendArgs {
    /// The token, as `lease` printed it
    #[arg(value_name = "TOKEN")]
    token: LeaseToken,
    /// How long from now [default: the lease of the queue]
    #[arg(long, value_name = "DURATION", conflicts_with = "progress")]
    by: Option<Span>,
    /// How far the work is; kept with the message, so that the next attempt can go on from there
    #[arg(long, value_name = "DONE[/TOTAL]")]
    progress: Option<Far>,
    /// What is being done
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true, requires = "progress")]
    note: String,
}

/// How far the work is: `30` or `30/120`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Far {
    done: u64,
    total: Option<u64>,
}

impl FromStr for Far {
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
    /// The token, as `lease` printed it
    #[arg(value_name = "TOKEN")]
    token: LeaseToken,
    /// Not before this long from now
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

    fn cells(&self, look: &Look) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.state.to_string(),
            look.maybe(self.ready_at),
            look.maybe(self.lease_expires_at),
            self.reason.map(|reason| reason.to_string()).unwrap_or_default(),
            self.dlq.as_ref().map(ToString::to_string).unwrap_or_default(),
            self.reply.map(|id| id.to_string()).unwrap_or_default(),
        ]
    }
}

/// Runs `ack`.
pub(crate) async fn ack(app: &App, args: AckArgs) -> Done {
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
    each(app, store.settle(batch).await?)
}

/// Runs `fail`.
pub(crate) async fn fail(app: &App, args: FailArgs) -> Done {
    let stack = match &args.stack {
        Some(path) => Some(read_stack(path).await?),
        None => None,
    };
    let report = Report {
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
        ..Report::default()
    };
    let said = args.dead_letter.then_some(Override::DeadLetter);
    settle(app, args.token, Settle::Fail { failure: Box::new(report.analyse_with(&app.config.known)), said })
        .await
}

/// Runs `extend`.
pub(crate) async fn extend(app: &App, args: ExtendArgs) -> Done {
    let what = match args.progress {
        Some(Far { done, total }) => Settle::Progress { progress: Progress::new(done, total, args.note) },
        None => Settle::Extend { by: args.by },
    };
    settle(app, args.token, what).await
}

/// Runs `release`.
pub(crate) async fn release(app: &App, args: ReleaseArgs) -> Done {
    let what = args.delay.map_or(Settle::Release, |span| Settle::Snooze { span });
    settle(app, args.token, what).await
}

async fn settle(app: &App, token: LeaseToken, what: Settle) -> Done {
    let settlement = Settlement { token, what };
    settlement.check()?;
    let store = app.open(Access::Existing, Hold::Moment).await?;
    app.out.one(&only(store.settle(vec![settlement]).await?)?)?;
    Ok(ExitCode::Ok)
}

/// Reads a stack, as far as it will be kept. Whatever is not text becomes a mark: a failure report is worth
/// more than its last byte.
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
        assert_eq!("30".parse(), Ok(Far { done: 30, total: None }));
        assert_eq!("30 / 120".parse(), Ok(Far { done: 30, total: Some(120) }));
        for wrong in ["", "/", "3/", "-1", "1/2/3", "half"] {
            assert!(wrong.parse::<Far>().is_err(), "{wrong}");
        }
    }
}
