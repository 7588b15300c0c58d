//! `message`: live messages, from enqueue to the last attempt. What died is under `dlq`.

use super::{each, evidence, listed, narrowed, payload_text, within};
use crate::args::{ListArgs, RevealArgs};
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::given::{self, Given};
use crate::output::{Column, Look, Revealed, Sheet, Show};
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
        /// Which: `kind:charge attempts>1 age>5m`; everything when not said
        #[arg(value_name = "FILTER", default_value = "")]
        filter: String,
        /// Only this queue
        #[arg(long, value_name = "QUEUE")]
        queue: Option<QueueName>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show one live message with its failures so far
    Show {
        /// The message: its id, or the last digits of it
        #[arg(value_name = "ID")]
        id: Given<MessageId>,
        #[command(flatten)]
        reveal: RevealArgs,
    },
    /// Take waiting messages back; leased ones are refused
    Cancel {
        /// The messages: their ids, or the last digits of each
        #[arg(required = true, value_name = "ID")]
        ids: Vec<Given<MessageId>>,
        /// Why, for the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Do not ask when there is more than one
        #[arg(long, short)]
        yes: bool,
    },
}

impl MessageCommand {
    /// Whether it only looks.
    pub(crate) const fn looks(&self) -> bool {
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

    fn cells(&self, look: &Look) -> Vec<String> {
        let envelope = &self.envelope;
        vec![
            envelope.id.to_string(),
            envelope.queue.to_string(),
            envelope.kind.clone(),
            envelope.priority.to_string(),
            self.state.to_string(),
            self.attempts.to_string(),
            look.time(self.ready_at),
            look.time(envelope.enqueued_at),
        ]
    }

    const MORE: &'static [Column] = &[
        Column::number("deliveries"),
        Column::number("generation"),
        Column::text("leased_by"),
        Column::whole("lease_expires_at"),
        Column::text("key"),
    ];

    fn more(&self, look: &Look) -> Vec<String> {
        vec![
            self.deliveries.to_string(),
            self.generation.to_string(),
            self.leased_by.clone().unwrap_or_default(),
            look.maybe(self.lease_expires_at),
            self.envelope.key.clone().unwrap_or_default(),
        ]
    }

    fn sheet(&self, look: &Look) -> Sheet {
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
            .field("enqueued_at", look.time(e.enqueued_at))
            .field("enqueued_by", text(&e.enqueued_by))
            .field("ready_at", look.time(self.ready_at))
            .field("leased_by", text(&self.leased_by))
            .field("lease_expires_at", look.maybe(self.lease_expires_at))
            .field("poison", self.poison.as_ref().map(suspicion).unwrap_or_default())
            .field("deadline", look.maybe(e.deadline))
            .field("expires_at", look.maybe(e.expires_at()))
            .field("key", text(&e.key))
            .field("ordering_key", text(&e.ordering_key))
            .field("reply_to", e.reply_to.as_ref().map(ToString::to_string).unwrap_or_default())
            .field("trace", text(&e.trace))
            .field("tags", tags.join(", "))
            .field("context", e.context.as_ref().map(ToString::to_string).unwrap_or_default())
            .field("content_type", &e.payload.content_type)
            .block("headers", headers.join("\n"))
            .block("payload", payload_text(&e.payload))
            .block("failures", evidence::of(&self.failures, self.failed, look))
    }
}

/// How close a message is to being taken for poison, and what follows from that.
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

/// A message that was taken back.
#[derive(Serialize)]
struct Cancelled {
    id: MessageId,
    state: &'static str,
}

impl Show for Cancelled {
    const COLUMNS: &'static [Column] = &[Column::id("id"), Column::state("state")];

    fn cells(&self, _: &Look) -> Vec<String> {
        vec![self.id.to_string(), self.state.to_owned()]
    }
}

/// Runs one of them.
pub(crate) async fn run(app: &App, command: MessageCommand) -> Done {
    match command {
        MessageCommand::List { filter: text, queue, list } => {
            let filter = given::filter(app, &text, IdKind::Message).await?;
            filter.check_for_messages().map_err(|error| CliError::usage(format!("filter: {error}")))?;
            let filter = within(narrowed(filter, "queue", queue.as_ref())?, &list, "enqueued")?;
            let store = app.open(Access::Existing, Hold::Moment).await?;
            let fetch = async |s: &dyn Store, page| s.messages(Query { filter: filter.clone(), page }).await;
            listed(app, store, &list, fetch).await
        }
        MessageCommand::Show { id, reveal } => {
            let id = id.message(app).await?;
            let store = app.open(Access::Existing, Hold::Moment).await?;
            let message = store.message(id).await?;
            if !reveal.reveal {
                app.out.one(&message)?;
                return Ok(ExitCode::Ok);
            }
            // First it is on record, then it is shown.
            store.disclose(Disclosure::of(Disclosed::Message, id), app.actor(reveal.reason)).await?;
            app.out.one(&Revealed(message))?;
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
            each(app, results.into_iter().map(|r| r.map(|id| Cancelled { id, state: "cancelled" })).collect())
        }
    }
}
