//! `lease`: leases ready messages. With `--wait` it holds the data directory while it waits and serves other processes.

use super::payload_text;
use crate::connect::{Access, App, Hold, Link};
use crate::exit_code::{CommandResult, ExitCode};
use crate::output::{Column, Format, Sheet, Show, ValueFormat};
use clap::Args;
use redrive::core::error::StoreResult;
use redrive::core::ids::QueueName;
use redrive::core::message::Delivery;
use redrive::core::query::Cursor;
use redrive::core::store::{LeaseRequest, Store, WaitingFor};
use redrive::core::time::Span;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  redrive lease payments                              one message, for the queue's default lease
  redrive lease payments refunds --max 10 --lease 5m --worker mailer-1
  redrive lease payments --wait 20s -o json           wait until there is a message
  token=$(redrive lease payments -o ndjson | jq -r .token)
  redrive ack \"$token\"";

/// How often to try without being woken: expired leases return to the queue only when somebody leases.
const POLL_EVERY: Span = Span::from_secs(5);
/// The shortest and longest pause after being woken without getting a message.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The flags of `lease`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LeaseArgs {
    /// The queues to lease from, treated as one queue
    #[arg(required = true, value_name = "QUEUE")]
    queues: Vec<QueueName>,
    /// The maximum number of messages to lease
    #[arg(long, value_name = "N", default_value_t = 1)]
    max: usize,
    /// How long the lease lasts [default: the queue's policy]
    #[arg(long, value_name = "DURATION")]
    lease: Option<Span>,
    /// The name of the worker [default: the actor]
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Wait up to this long for a message
    #[arg(long, value_name = "DURATION")]
    wait: Option<Span>,
    /// Exit with 3 if there is no message
    #[arg(long)]
    fail_empty: bool,
}

impl Show for Delivery {
    const COLUMNS: &'static [Column] = &[
        Column::token("token"),
        Column::id("id").optional(5),
        Column::whole("queue").optional(2),
        Column::whole("kind").optional(3),
        Column::number("attempt"),
        Column::whole("lease_expires_at").optional(4),
        Column::main("payload").optional(1),
    ];

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        let envelope = &self.message.envelope;
        vec![
            self.token.to_string(),
            envelope.id.to_string(),
            envelope.queue.to_string(),
            envelope.kind.clone(),
            self.attempt.to_string(),
            fmt.maybe(self.message.lease_expires_at),
            payload_text(&envelope.payload),
        ]
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        self.message.sheet(fmt).field("attempt", self.attempt).field("token", self.token)
    }
}

/// Runs `lease`.
pub(crate) async fn run(app: &App, args: LeaseArgs) -> CommandResult {
    let queues = args.queues.clone();
    let request = LeaseRequest {
        queues: args.queues,
        max: args.max,
        lease_for: args.lease,
        worker: args.worker.unwrap_or_else(|| app.user().to_owned()),
        ..LeaseRequest::default()
    };
    request.check()?;
    let hold = if args.wait.is_some() { Hold::Long } else { Hold::Moment };
    let mut store = app.open(Access::Existing, hold).await?;
    let deliveries = lease_or_wait(&mut store, request, args.wait.unwrap_or(Span::ZERO)).await?;
    if deliveries.is_empty() {
        explain(app, &*store, &queues).await?;
    }
    match deliveries.as_slice() {
        [] if matches!(app.out.format, Format::Json | Format::Yaml) => {
            app.out.document(&empty_lease(&*store, &queues).await?)?;
        }
        // On a terminal a single message is easier to read as a sheet than as a row.
        [only] if app.out.terminal && app.out.format.is_table() => app.out.one(only)?,
        many => app.out.all(many)?,
    }
    Ok(if deliveries.is_empty() && args.fail_empty { ExitCode::NothingMatched } else { ExitCode::Ok })
}

/// An empty result and the reasons why it is empty.
#[derive(Serialize)]
struct EmptyLease {
    items: [(); 0],
    next: Option<Cursor>,
    /// The requested queues that are paused.
    paused: Vec<QueueName>,
    /// What the messages of the requested queues wait for; absent if it was not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<BTreeMap<QueueName, WaitingFor>>,
}

async fn empty_lease(store: &dyn Store, requested: &[QueueName]) -> StoreResult<EmptyLease> {
    let queues = store.queues().await?;
    let paused = queues.into_iter().filter(|queue| queue.paused && requested.contains(&queue.name));
    let mut waiting_for = store.waiting_for().await?;
    if let Some(waits) = &mut waiting_for {
        waits.retain(|queue, _| requested.contains(queue));
    }
    Ok(EmptyLease { items: [], next: None, paused: paused.map(|queue| queue.name).collect(), waiting_for })
}

/// Notes why there was nothing to lease, if something holds messages back.
async fn explain(app: &App, store: &dyn Store, requested: &[QueueName]) -> StoreResult<()> {
    let EmptyLease { paused, waiting_for, .. } = empty_lease(store, requested).await?;
    for queue in &paused {
        app.out.note(&format!("{queue} is paused; run `redrive queue resume {queue}` to resume it"));
    }
    for (queue, waits) in waiting_for.unwrap_or_default() {
        let others = WaitingFor { pause: 0, ..waits };
        if others != WaitingFor::default() {
            app.out.note(&format!("messages of {queue} wait for: {}", super::queue::waiting_text(&others)));
        }
    }
    Ok(())
}

/// Leases at once, or waits for messages up to `wait`.
async fn lease_or_wait(
    store: &mut Link<'_>,
    request: LeaseRequest,
    wait: Span,
) -> StoreResult<Vec<Delivery>> {
    let began = Instant::now();
    let mut pause = Duration::ZERO;
    loop {
        let deliveries = store.lease(request.clone()).await?;
        let waited = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let left = Span::from_millis(wait.as_millis().saturating_sub(waited));
        if !deliveries.is_empty() || left == Span::ZERO {
            return Ok(deliveries);
        }
        // A message held back by its ordering key may look ready; without a pause this would spin.
        tokio::time::sleep(pause.min(left.to_std())).await;
        let queues = &request.queues;
        let woken = store.call(async |store| store.wait(queues.clone(), left.min(POLL_EVERY)).await).await?;
        pause = if woken { (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX) } else { Duration::ZERO };
    }
}
