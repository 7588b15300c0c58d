//! `lease`: take due work. With `--wait` it holds the directory while it waits and serves the others.

use super::payload_text;
use crate::connect::{Access, App, Hold, Link};
use crate::exit_code::{Done, ExitCode};
use crate::output::{Column, Format, Look, Sheet, Show};
use clap::Args;
use redrive::core::error::Outcome;
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
  redrive lease payments                              one message, for the lease of its queue
  redrive lease payments refunds --max 10 --lease 5m --worker mailer-1
  redrive lease payments --wait 20s -o json           wait until there is work
  token=$(redrive lease payments -o ndjson | jq -r .token)
  redrive ack \"$token\"";

/// How often to look without being woken: leases that ran out come back only when somebody asks for work.
const LOOK_EVERY: Span = Span::from_secs(5);
/// How long to rest after having been woken for nothing, at first and at most.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The flags of `lease`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LeaseArgs {
    /// The queues to take from, as if they were one
    #[arg(required = true, value_name = "QUEUE")]
    queues: Vec<QueueName>,
    /// Messages at most
    #[arg(long, value_name = "N", default_value_t = 1)]
    max: usize,
    /// How long the lease lasts [default: as the queue's policy says]
    #[arg(long, value_name = "DURATION")]
    lease: Option<Span>,
    /// Who works [default: the actor]
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Wait up to this long for work
    #[arg(long, value_name = "DURATION")]
    wait: Option<Span>,
    /// Exit with 3 when there is no work
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

    fn cells(&self, look: &Look) -> Vec<String> {
        let envelope = &self.message.envelope;
        vec![
            self.token.to_string(),
            envelope.id.to_string(),
            envelope.queue.to_string(),
            envelope.kind.clone(),
            self.attempt.to_string(),
            look.maybe(self.message.lease_expires_at),
            payload_text(&envelope.payload),
        ]
    }

    fn sheet(&self, look: &Look) -> Sheet {
        self.message.sheet(look).field("attempt", self.attempt).field("token", self.token)
    }
}

/// Runs it.
pub(crate) async fn run(app: &App, args: LeaseArgs) -> Done {
    let queues = args.queues.clone();
    let request = LeaseRequest {
        queues: args.queues,
        max: args.max,
        lease_for: args.lease,
        worker: args.worker.unwrap_or_else(|| app.user().to_owned()),
    };
    request.check()?;
    let hold = if args.wait.is_some() { Hold::Long } else { Hold::Moment };
    let mut store = app.open(Access::Existing, hold).await?;
    let deliveries = leased(&mut store, request, args.wait.unwrap_or(Span::ZERO)).await?;
    if deliveries.is_empty() {
        explain(app, &*store, &queues).await?;
    }
    match deliveries.as_slice() {
        [] if matches!(app.out.format, Format::Json | Format::Yaml) => {
            app.out.document(&nothing(&*store, &queues).await?)?;
        }
        // On a terminal one message is easier to read as a sheet; a list it is in every other case.
        [only] if app.out.terminal && app.out.format.is_table() => app.out.one(only)?,
        many => app.out.all(many)?,
    }
    Ok(if deliveries.is_empty() && args.fail_empty { ExitCode::NothingMatched } else { ExitCode::Ok })
}

/// An empty answer, and why it is empty.
#[derive(Serialize)]
struct Nothing {
    items: [(); 0],
    next: Option<Cursor>,
    /// Queues that were asked for and are paused.
    paused: Vec<QueueName>,
    /// What messages of the queues that were asked for wait for; absent where it is not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_for: Option<BTreeMap<QueueName, WaitingFor>>,
}

async fn nothing(store: &dyn Store, asked: &[QueueName]) -> Outcome<Nothing> {
    let queues = store.queues().await?;
    let paused = queues.into_iter().filter(|queue| queue.paused && asked.contains(&queue.name));
    let mut waiting_for = store.waiting_for().await?;
    if let Some(waits) = &mut waiting_for {
        waits.retain(|queue, _| asked.contains(queue));
    }
    Ok(Nothing { items: [], next: None, paused: paused.map(|queue| queue.name).collect(), waiting_for })
}

/// Says why there was nothing to lease, where something keeps messages back.
async fn explain(app: &App, store: &dyn Store, asked: &[QueueName]) -> Outcome<()> {
    let Nothing { paused, waiting_for, .. } = nothing(store, asked).await?;
    for queue in &paused {
        app.out.note(&format!("{queue} is paused; `redrive queue resume {queue}` goes on"));
    }
    for (queue, waits) in waiting_for.unwrap_or_default() {
        let others = WaitingFor { pause: 0, ..waits };
        if others != WaitingFor::default() {
            app.out.note(&format!("messages of {queue} wait for: {}", super::queue::waits(&others)));
        }
    }
    Ok(())
}

/// Leases at once, or as soon as there is something within the time.
async fn leased(store: &mut Link<'_>, request: LeaseRequest, wait: Span) -> Outcome<Vec<Delivery>> {
    let began = Instant::now();
    let mut pause = Duration::ZERO;
    loop {
        let deliveries = store.lease(request.clone()).await?;
        let waited = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let left = Span::from_millis(wait.as_millis().saturating_sub(waited));
        if !deliveries.is_empty() || left == Span::ZERO {
            return Ok(deliveries);
        }
        // Work that an ordering key holds back may look due: being woken for nothing must not become a spin.
        tokio::time::sleep(pause.min(left.to_std())).await;
        let queues = &request.queues;
        let woken = store.ask(async |store| store.wait(queues.clone(), left.min(LOOK_EVERY)).await).await?;
        pause = if woken { (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX) } else { Duration::ZERO };
    }
}
