//! `breaker`: which dependencies are taken for down, what waits behind them, and an operator's word on it.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::output::{Column, Look, Show};
use clap::{Args, Subcommand};
use redrive::core::breaker::{BreakerKey, BreakerView};
use redrive::core::ids::QueueName;
use redrive::core::store::Store;

/// The commands under `breaker`.
#[derive(Debug, Subcommand)]
pub(crate) enum BreakerCommand {
    /// List breakers: state, since when, until when, and how many messages wait
    List {
        /// Only those of this queue
        #[arg(value_name = "QUEUE")]
        queue: Option<QueueName>,
        /// Exit with 3 when there is none
        #[arg(long)]
        fail_empty: bool,
    },
    /// Hold all work of a key until it is closed again
    Open(ForceArgs),
    /// Let work through again and start counting afresh
    Close(ForceArgs),
}

impl BreakerCommand {
    /// Whether it only looks.
    pub(crate) const fn looks(&self) -> bool {
        matches!(self, Self::List { .. })
    }
}

/// Which breaker, and why.
#[derive(Args, Debug)]
pub(crate) struct ForceArgs {
    /// The queue
    #[arg(value_name = "QUEUE")]
    queue: QueueName,
    /// The value of its key: a kind, a header's or payload's value [default: the queue, where that is the key]
    #[arg(value_name = "KEY")]
    key: Option<String>,
    /// Why, for the breaker's events and the audit trail
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

    fn cells(&self, look: &Look) -> Vec<String> {
        let until = if self.forced { "closed by hand".into() } else { look.maybe(self.until) };
        let why = self.events.last().map(|event| match &event.by {
            Some(by) => format!("{} ({by})", event.why),
            None => event.why.clone(),
        });
        vec![
            self.queue.to_string(),
            self.key.clone(),
            self.state.to_string(),
            self.held.to_string(),
            look.time(self.since),
            until,
            why.unwrap_or_default(),
        ]
    }
}

/// Runs one of them.
pub(crate) async fn run(app: &App, command: BreakerCommand) -> Done {
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

async fn force(app: &App, store: &dyn Store, args: ForceArgs, open: bool) -> Done {
    let key = match args.key {
        Some(key) => key,
        None => default_key(store, &args.queue).await?,
    };
    let forced = store.force_breaker(args.queue, key, open, app.actor(args.reason)).await?;
    app.out.one(&forced)?;
    Ok(ExitCode::Ok)
}

/// A queue that is one breaker needs no key.
async fn default_key(store: &dyn Store, queue: &QueueName) -> Result<String, CliError> {
    let policy = store.queue(queue.clone()).await?.policy;
    match policy.breaker.map(|rules| rules.key) {
        None | Some(BreakerKey::Queue) => Ok(queue.to_string()),
        Some(key @ (BreakerKey::Kind | BreakerKey::Header(_) | BreakerKey::Payload(_))) => {
            Err(CliError::usage(format!("queue {queue} has a breaker for each value of {key}; say which")))
        }
    }
}
