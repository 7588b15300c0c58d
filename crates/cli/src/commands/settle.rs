//! The worker's words about a delivery: `ack`, `fail`, `extend`, `release`. A failure is analysed here, in the
//! caller; what follows from it is the store's to decide.

use super::{each, only};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::output::{Column, Look, Show};
use clap::Args;
use redrive::core::failure::{ErrorInfo, Report};
use redrive::core::ids::LeaseToken;
use redrive::core::limits;
use redrive::core::policy::Override;
use redrive::core::store::{Settle, Settled, Settlement};
use redrive::core::time::Span;
use std::io::Read as _;
use std::path::{Path, PathBuf};

const FAIL_EXAMPLES: &str = "\
Examples:
  redrive fail \"$token\" --error-type HttpError --message 'timed out after 30 s' --code 504
  redrive fail \"$token\" --error-type BadOrder --message 'no such customer' --permanent
  ./handler 2> stack.txt || redrive fail \"$token\" --error-type Crash --message 'exit 1' --stack stack.txt

The queue's policy decides whether the message is tried again, and when, or becomes a dead letter; the answer
says which.";

/// The flags of `ack`.
#[derive(Args, Debug)]
pub(crate) struct AckArgs {
    /// The tokens, as `lease` printed them
    #[arg(required = true, value_name = "TOKEN")]
    tokens: Vec<LeaseToken>,
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
    /// The step that failed
    #[arg(long, value_name = "STEP")]
    step: Option<String>,
    /// Trying again is useless: a dead letter at once
    #[arg(long)]
    permanent: bool,
    /// The other side said to come back after this long
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["permanent", "dead_letter"])]
    retry_after: Option<Span>,
    /// Make it a dead letter now, whatever the policy says
    #[arg(long, conflicts_with = "permanent")]
    dead_letter: bool,
}

/// The flags of `extend`.
#[derive(Args, Debug)]
pub(crate) struct ExtendArgs {
    /// The token, as `lease` printed it
    #[arg(value_name = "TOKEN")]
    token: LeaseToken,
    /// How long from now [default: the lease of the queue]
    #[arg(long, value_name = "DURATION")]
    by: Option<Span>,
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
        Column::whole("id"),
        Column::whole("state"),
        Column::whole("ready_at"),
        Column::whole("lease_expires_at"),
        Column::whole("reason"),
    ];

    fn cells(&self, look: &Look) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.state.to_string(),
            look.maybe(self.ready_at),
            look.maybe(self.lease_expires_at),
            self.reason.map(|reason| reason.to_string()).unwrap_or_default(),
        ]
    }
}

/// Runs `ack`.
pub(crate) async fn ack(app: &App, args: AckArgs) -> Done {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let batch = args.tokens.into_iter().map(|token| Settlement { token, what: Settle::Ack }).collect();
    each(app, store.settle(batch).await?)
}

/// Runs `fail`.
pub(crate) async fn fail(app: &App, args: FailArgs) -> Done {
    let report = Report {
        error: ErrorInfo {
            error_type: args.error_type,
            message: args.message,
            code: args.code,
            stack: args.stack.as_deref().map(read_stack).transpose()?,
            ..ErrorInfo::default()
        },
        step: args.step,
        permanent: args.permanent,
        retry_after: args.retry_after,
        ..Report::default()
    };
    let said = args.dead_letter.then_some(Override::DeadLetter);
    settle(
        app,
        args.token,
        Settle::Fail { failure: Box::new(report.analyse_with(&app.config.patterns)), said },
    )
    .await
}

/// Runs `extend`.
pub(crate) async fn extend(app: &App, args: ExtendArgs) -> Done {
    settle(app, args.token, Settle::Extend { by: args.by }).await
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
fn read_stack(path: &Path) -> Result<String, CliError> {
    let mut bytes = Vec::new();
    let limit = limits::STACK_BYTES_MAX as u64 + 1;
    let read = if path == Path::new("-") {
        std::io::stdin().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    read.map_err(|error| CliError::io(format_args!("read the stack from {}", path.display()), &error))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
