//! `message`: live messages, from enqueue to the last attempt. Dead letters are under `dlq`.

use super::{evidence, narrowed, payload_text, print_results, sorted_pages, with_time_bounds};
use crate::args::{ListArgs, RevealArgs};
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::id_arg::{self, IdArg};
use crate::output::{Column, Revealed, Sheet, Show, ValueFormat};
use clap::Subcommand;
use redrive::core::disclosure::{Disclosed, Disclosure};
use redrive::core::ids::{MessageId, QueueName};
use redrive::core::masking::Rules;
use redrive::core::message::Message;
use redrive::core::poison::Suspicion;
use redrive::core::query::Query;
use redrive::core::short_id::IdKind;
use redrive::core::store::Store;
use serde::Serialize;

/// The commands under `message`.
#[derive(Debug, Subcommand)]
pub(crate) enum MessageCommand {
    /// List live messages in the order they were enqueued
    List {
        /// A filter such as `kind:charge attempts>1 age>5m`; lists everything by default
        #[arg(value_name = "FILTER", default_value = "")]
        filter: String,
        /// Only messages of this queue
        #[arg(long, value_name = "QUEUE")]
        queue: Option<QueueName>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show one live message with its failures so far
    Show {
        /// The id of the message, or its last digits
        #[arg(value_name = "ID")]
        id: IdArg<MessageId>,
        #[command(flatten)]
        reveal: RevealArgs,
    },
    /// Cancel waiting messages; leased messages are refused
    Cancel {
        /// The ids of the messages, or their last digits
        #[arg(required = true, value_name = "ID")]
        ids: Vec<IdArg<MessageId>>,
        /// The reason, recorded in the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Do not ask for confirmation when cancelling more than one message
        #[arg(long, short)]
        yes: bool,
    },
}

impl MessageCommand {
    /// Whether the command only reads.
    pub(crate) const fn is_read_only(&self) -> bool {
        matches!(self, Self::List { .. } | Self::Show { .. })
    }
}

impl Show for Message {
    const COLUMNS: &'static [Column] = &[
        Column::id("id"),
        Column::whole("queue"),
        Column::main("kind"),
        Column::whole("priority").optional(2),
        Column::state("state"),
        Column::number("attempts"),
        Column::whole("ready_at").optional(1),
        Column::whole("enqueued_at").optional(3),
    ];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        Some(rules.message(self))
    }

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        let envelope = &self.envelope;
        vec![
            envelope.id.to_string(),
            envelope.queue.to_string(),
            envelope.kind.clone(),
            envelope.priority.to_string(),
            self.state.to_string(),
            self.attempts.to_string(),
            fmt.time(self.ready_at),
            fmt.time(envelope.enqueued_at),
        ]
    }

    const MORE: &'static [Column] = &[
        Column::number("deliveries"),
        Column::number("generation"),
        Column::text("leased_by"),
        Column::whole("lease_expires_at"),
        Column::text("key"),
    ];

    fn more(&self, fmt: &ValueFormat) -> Vec<String> {
        vec![
            self.deliveries.to_string(),
            self.generation.to_string(),
            self.leased_by.clone().unwrap_or_default(),
            fmt.maybe(self.lease_expires_at),
            self.envelope.key.clone().unwrap_or_default(),
        ]
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        let e = &self.envelope;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let limit = e.max_attempts.map(|n| format!(" of {n}")).unwrap_or_default();
        let headers: Vec<String> = e.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let tags: Vec<&str> = e.tags.iter().map(String::as_str).collect();
        Sheet::default()
            .field("id", e.id)
            .field("queue", &e.queue)
            .field("kind", &e.kind)
            .field("state", self.state)
            .field("priority", e.priority)
            .field("attempts", format!("{}{limit}", self.attempts))
            .field("deliveries", self.deliveries)
            .field("generation", self.generation)
            .field("enqueued_at", fmt.time(e.enqueued_at))
            .field("enqueued_by", text(&e.enqueued_by))
            .field("ready_at", fmt.time(self.ready_at))
            .field("leased_by", text(&self.leased_by))
            .field("lease_expires_at", fmt.maybe(self.lease_expires_at))
            .field("poison", self.poison.as_ref().map(suspicion).unwrap_or_default())
            .field("deadline", fmt.maybe(e.deadline))
            .field("expires_at", fmt.maybe(e.expires_at()))
            .field("key", text(&e.key))
            .field("ordering_key", text(&e.ordering_key))
            .field("reply_to", e.reply_to.as_ref().map(ToString::to_string).unwrap_or_default())
            .field("trace", text(&e.trace))
            .field("tags", tags.join(", "))
            .field("context", e.context.as_ref().map(ToString::to_string).unwrap_or_default())
            .field("content_type", &e.payload.content_type)
            .block("headers", headers.join("\n"))
            .block("payload", payload_text(&e.payload))
            .block("failures", evidence::failure_lines(&self.failures, self.failed, fmt))
    }
}

/// How close a message is to being treated as poison, and the consequences.
fn suspicion(seen: &Suspicion) -> String {
    let mut follows = Vec::new();
    if seen.throttled {
        follows.push("retries are throttled");
    }
    if seen.runs_alone {
        follows.push("given only to an idle worker");
    }
    let follows = if follows.is_empty() { "watched".to_owned() } else { follows.join(", ") };
    format!("score {:.2} of 1, {follows}: {}", seen.score, seen.reason)
}

/// A cancelled message.
#[derive(Serialize)]
struct Cancelled {
    id: MessageId,
    state: &'static str,
}

impl Show for Cancelled {
    const COLUMNS: &'static [Column] = &[Column::id("id"), Column::state("state")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![self.id.to_string(), self.state.to_owned()]
    }
}

/// Runs a `message` command.
pub(crate) async fn run(app: &App, command: MessageCommand) -> CommandResult {
    match command {
        MessageCommand::List { filter: text, queue, list } => {
            let filter = id_arg::filter(app, &text, IdKind::Message).await?;
            filter.check_for_messages().map_err(|error| CliError::usage(format!("filter: {error}")))?;
            let filter = with_time_bounds(narrowed(filter, "queue", queue.as_ref())?, &list, "enqueued")?;
            let store = app.open(Access::Existing, Hold::Moment).await?;
            let fetch = async |s: &dyn Store, page| s.messages(Query { filter: filter.clone(), page }).await;
            sorted_pages(app, store, &list, fetch).await
        }
        MessageCommand::Show { id, reveal } => {
            let id = id.message(app).await?;
            let store = app.open(Access::Existing, Hold::Moment).await?;
            let message = store.message(id).await?;
            if !reveal.reveal {
                app.out.one(&message)?;
                return Ok(ExitCode::Ok);
            }
            // Record the disclosure before showing anything.
            store.disclose(Disclosure::of(Disclosed::Message, id), app.actor(reveal.reason)).await?;
            // A server masks what it has not disclosed, so only this reading is whole.
            app.out.one(&Revealed(store.message(id).await?))?;
            Ok(ExitCode::Ok)
        }
        MessageCommand::Cancel { ids, reason, yes } => {
            let mut whole = Vec::with_capacity(ids.len());
            for id in &ids {
                whole.push(id.message(app).await?);
            }
            if ids.len() > 1 {
                confirm(&format!("cancel {} messages?", ids.len()), yes).await?;
            }
            let store = app.open(Access::Existing, Hold::Moment).await?;
            let results = store.cancel(whole, app.actor(reason)).await?;
            print_results(
                app,
                results.into_iter().map(|r| r.map(|id| Cancelled { id, state: "cancelled" })).collect(),
            )
        }
    }
}
