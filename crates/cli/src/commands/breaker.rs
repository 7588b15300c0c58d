//! `breaker`: lists circuit breakers with the messages they hold, and opens or closes them by hand.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::{Column, Show, ValueFormat};
use clap::{Args, Subcommand};
use redrive::core::breaker::{BreakerKey, BreakerView};
use redrive::core::ids::QueueName;
use redrive::core::store::Store;

/// The commands under `breaker`.
#[derive(Debug, Subcommand)]
pub(crate) enum BreakerCommand {
    /// List breakers: state, since when, until when, and how many messages they hold
    List {
        /// Only breakers of this queue
        #[arg(value_name = "QUEUE")]
        queue: Option<QueueName>,
        /// Exit with 3 if there is no breaker
        #[arg(long)]
        fail_empty: bool,
    },
    /// Hold all messages of a key until the breaker is closed again
    Open(ForceArgs),
    /// Let messages through again and reset the counts
    Close(ForceArgs),
}

impl BreakerCommand {
    /// Whether the command only reads.
    pub(crate) const fn is_read_only(&self) -> bool {
        matches!(self, Self::List { .. })
    }
}

/// The breaker to force, and the reason.
#[derive(Args, Debug)]
pub(crate) struct ForceArgs {
    /// The queue
    #[arg(value_name = "QUEUE")]
    queue: QueueName,
    /// The value of the breaker key: a kind, a header value or a payload value [default: the queue, if that is the key]
    #[arg(value_name = "KEY")]
    key: Option<String>,
    /// The reason, recorded in the breaker's events and the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Show for BreakerView {
    const COLUMNS: &'static [Column] = &[
        Column::whole("queue"),
        Column::whole("key"),
        Column::state("state"),
        Column::number("held"),
        Column::whole("since").optional(1),
        Column::whole("until"),
        Column::main("why"),
    ];

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        let until = if self.forced { "closed by hand".into() } else { fmt.maybe(self.until) };
        let why = self.events.last().map(|event| match &event.by {
            Some(by) => format!("{} ({by})", event.why),
            None => event.why.clone(),
        });
        vec![
            self.queue.to_string(),
            self.key.clone(),
            self.state.to_string(),
            self.held.to_string(),
            fmt.time(self.since),
            until,
            why.unwrap_or_default(),
        ]
    }
}

/// Runs a `breaker` command.
pub(crate) async fn run(app: &App, command: BreakerCommand) -> CommandResult {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    match command {
        BreakerCommand::List { queue, fail_empty } => {
            if let Some(queue) = &queue {
                store.queue(queue.clone()).await?;
            }
            let mut all = store.breakers().await?;
            all.retain(|breaker| queue.as_ref().is_none_or(|queue| breaker.queue == *queue));
            app.out.all(&all)?;
            Ok(if all.is_empty() && fail_empty { ExitCode::NothingMatched } else { ExitCode::Ok })
        }
        BreakerCommand::Open(args) => force(app, &*store, args, true).await,
        BreakerCommand::Close(args) => force(app, &*store, args, false).await,
    }
}

async fn force(app: &App, store: &dyn Store, args: ForceArgs, open: bool) -> CommandResult {
    let key = match args.key {
        Some(key) => key,
        None => default_key(store, &args.queue).await?,
    };
    let forced = store.force_breaker(args.queue, key, open, app.actor(args.reason)).await?;
    app.out.one(&forced)?;
    Ok(ExitCode::Ok)
}

/// The key of a queue that has a single breaker.
async fn default_key(store: &dyn Store, queue: &QueueName) -> Result<String, CliError> {
    let policy = store.queue(queue.clone()).await?.policy;
    match policy.breaker.map(|rules| rules.key) {
        None | Some(BreakerKey::Queue) => Ok(queue.to_string()),
        Some(key @ (BreakerKey::Kind | BreakerKey::Header(_) | BreakerKey::Payload(_))) => Err(
            CliError::usage(format!("queue {queue} has a breaker for each value of {key}; name the value")),
        ),
    }
}
