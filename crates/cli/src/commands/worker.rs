//! `worker list`: who leases, and what is in their hands.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CommandResult, ExitCode};
use crate::output::{Column, Show, ValueFormat};
use clap::Subcommand;
use redrive::core::ids::QueueName;
use redrive::core::workers::WorkerView;

/// The commands under `worker`.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerCommand {
    /// List workers: where they run, when they were last seen, and what they have leased
    List {
        /// Only workers of this queue or dead letter queue
        #[arg(value_name = "QUEUE")]
        queue: Option<QueueName>,
        /// Exit with 3 if there is no worker
        #[arg(long)]
        fail_empty: bool,
    },
}

impl Show for WorkerView {
    const COLUMNS: &'static [Column] = &[
        Column::main("worker"),
        Column::number("in_hand"),
        Column::number("done"),
        Column::number("failed"),
        Column::whole("queues"),
        Column::whole("last_seen"),
        Column::whole("first_seen").optional(1),
        Column::whole("host").optional(2),
        Column::whole("version").optional(3),
    ];

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        let queues: Vec<&str> = self.queues.iter().map(QueueName::as_str).collect();
        vec![
            self.worker.clone(),
            self.in_hand.to_string(),
            self.done.to_string(),
            self.failed.to_string(),
            queues.join(", "),
            fmt.time(self.last_seen),
            fmt.time(self.first_seen),
            self.host.clone().unwrap_or_default(),
            self.version.clone().unwrap_or_default(),
        ]
    }
}

/// Runs a `worker` command.
pub(crate) async fn run(app: &App, command: WorkerCommand) -> CommandResult {
    let WorkerCommand::List { queue, fail_empty } = command;
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let mut all = store.workers().await?;
    all.retain(|worker| queue.as_ref().is_none_or(|queue| worker.queues.contains(queue)));
    app.out.all(&all)?;
    Ok(if all.is_empty() && fail_empty { ExitCode::NothingMatched } else { ExitCode::Ok })
}
