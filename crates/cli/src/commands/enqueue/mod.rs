//! `enqueue`: adds one message from flags, or many as NDJSON from stdin. It generates the message ids itself, so that
//! retrying a request is harmless. It never changes a payload.

mod line;

use super::only;
use crate::connect::{Access, App, Hold, Link};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::input;
use crate::ndjson;
use crate::output::{Column, Show, ValueFormat};
use clap::Args;
use redrive::core::ids::QueueName;
use redrive::core::json_input;
use redrive::core::lifecycle::State;
use redrive::core::limits;
use redrive::core::message::{NewMessage, Payload, Priority};
use redrive::core::store::Enqueued;
use redrive::core::time::{Span, Time};
use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  redrive enqueue payments --payload '{\"order\":4411}' --kind charge
  redrive enqueue payments --payload-file invoice.pdf --key invoice-4411 --delay 10m
  redrive enqueue payments --payload hi --wait --timeout 1m     wait until it is done or dead
  redrive enqueue payments < messages.ndjson                    one JSON object per line
  redrive enqueue - --ndjson --keep-going < mixed.ndjson        each line names its queue

An NDJSON line has the field names of a message: {\"payload\": …, \"kind\": …, \"priority\": …, \"key\": …}.
A payload that is a JSON string is stored as its bytes, any other JSON exactly as written. Use payload_base64
for binary payloads.";

/// The destination of messages: a queue, or `None` if each line names its own.
#[derive(Clone, Debug)]
pub(crate) struct Destination(Option<QueueName>);

impl FromStr for Destination {
    type Err = redrive::core::ids::IdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "-" { Ok(Self(None)) } else { text.parse().map(|queue| Self(Some(queue))) }
    }
}

/// The flags of `enqueue`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EnqueueArgs {
    /// The queue, or `-` if every NDJSON line names its own
    #[arg(value_name = "QUEUE")]
    queue: Destination,
    /// The payload, as text
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with_all = ["payload_file", "ndjson"])]
    payload: Option<String>,
    /// Read the payload from this file; `-` for stdin
    #[arg(long, value_name = "FILE", conflicts_with = "ndjson")]
    payload_file: Option<PathBuf>,
    /// Read messages from stdin, one JSON object per line; flags apply to lines that do not set the field. This is the
    /// default if no payload is given and stdin is not a terminal
    #[arg(long)]
    ndjson: bool,
    /// Skip and report invalid NDJSON lines, and exit with 4 if there were any
    #[arg(long, conflicts_with_all = ["payload", "payload_file"])]
    keep_going: bool,
    /// The kind of work, which selects the handler
    #[arg(long, value_name = "KIND", default_value = "")]
    kind: String,
    /// The priority: critical, high, normal, low or background
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<Priority>,
    /// A header for the handler; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// A tag for finding the message; repeatable
    #[arg(long, value_name = "TAG")]
    tag: Vec<String>,
    /// An idempotency key: the same key and content within 24 h is the same message
    #[arg(long, value_name = "KEY", conflicts_with = "ndjson")]
    key: Option<String>,
    /// Messages with the same ordering key run one at a time, in order
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,
    /// Do not deliver the message before this long from now
    #[arg(long, value_name = "DURATION")]
    delay: Option<Span>,
    /// Expire the message this long from now
    #[arg(long, value_name = "DURATION")]
    ttl: Option<Span>,
    /// The time by which the work must be done, such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    deadline: Option<Time>,
    /// The maximum number of attempts, including the first
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// The queue to send the reply to
    #[arg(long, value_name = "QUEUE")]
    reply_to: Option<QueueName>,
    /// The W3C trace context
    #[arg(long, value_name = "TRACEPARENT")]
    trace: Option<String>,
    /// JSON to keep with the message, such as task, repository or tenant
    #[arg(long, value_name = "JSON", value_parser = json)]
    context: Option<serde_json::Value>,
    /// The content type of the payload
    #[arg(long, value_name = "TYPE", default_value = "")]
    content_type: String,
    /// Wait until the message is settled; exit with 0 if it is done, with 4 if it is dead, cancelled or expired
    #[arg(long, conflicts_with = "ndjson")]
    wait: bool,
    /// With --wait: stop waiting after this long and exit with 9
    #[arg(long, value_name = "DURATION", requires = "wait")]
    timeout: Option<Span>,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    if name.is_empty() {
        return Err("the name is empty; write NAME=VALUE".into());
    }
    Ok((name.to_owned(), value.to_owned()))
}

fn json(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|error| json_input::describe(&error))
}

impl Show for Enqueued {
    const COLUMNS: &'static [Column] =
        &[Column::id("id"), Column::state("state"), Column::whole("duplicate")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![self.id.to_string(), self.state.to_string(), self.duplicate.to_string()]
    }
}

/// Runs `enqueue`.
pub(crate) async fn run(app: &App, args: EnqueueArgs) -> CommandResult {
    if args.payload.is_some() || args.payload_file.is_some() {
        let Some(queue) = args.queue.0.clone() else {
            return Err(CliError::usage(
                "`-` as the queue is only for NDJSON; name the queue of this message",
            ));
        };
        return one(app, &args, queue).await;
    }
    if !args.ndjson && std::io::stdin().is_terminal() {
        let what = "nothing to enqueue: use --payload or --payload-file, or pipe NDJSON to stdin";
        return Err(CliError::usage(what).hint("redrive enqueue QUEUE --payload '{\"hello\":\"world\"}'"));
    }
    if args.key.is_some() || args.wait {
        return Err(CliError::usage(
            "--key and --wait are for a single message: use --payload or --payload-file",
        ));
    }
    many(app, &args).await
}

impl EnqueueArgs {
    /// The message described by the flags.
    fn message(&self, app: &App, queue: QueueName, payload: Payload) -> NewMessage {
        let mut message = NewMessage::new(redrive::new_id(), queue, payload);
        message.kind.clone_from(&self.kind);
        message.priority = self.priority;
        message.headers = self.header.iter().cloned().collect();
        message.tags = self.tag.iter().cloned().collect();
        message.key.clone_from(&self.key);
        message.ordering_key.clone_from(&self.ordering_key);
        message.reply_to.clone_from(&self.reply_to);
        message.trace.clone_from(&self.trace);
        message.context.clone_from(&self.context);
        message.delay = self.delay;
        message.ttl = self.ttl;
        message.deadline = self.deadline;
        message.max_attempts = self.max_attempts;
        message.enqueued_by = Some(app.user().to_owned());
        message
    }

    async fn payload(&self) -> Result<Payload, CliError> {
        let bytes = match (&self.payload, &self.payload_file) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(path)) => read_payload(path).await?,
            (None, None) => Vec::new(),
        };
        Ok(Payload { bytes, content_type: self.content_type.clone() })
    }
}

/// Reads the payload from a file or from stdin. Reads one byte more than is allowed, to detect a payload that is too
/// long.
pub(crate) async fn read_payload(path: &Path) -> Result<Vec<u8>, CliError> {
    let failed = |error| CliError::io(format_args!("read the payload from {}", path.display()), &error);
    let bytes = input::bytes(path, limits::PAYLOAD_BYTES_MAX as u64 + 1).await.map_err(failed)?;
    if bytes.len() > limits::PAYLOAD_BYTES_MAX {
        let what = format!("payload: {} is longer than {} bytes", path.display(), limits::PAYLOAD_BYTES_MAX);
        return Err(CliError::usage(what).hint("store it elsewhere and enqueue a reference to it"));
    }
    Ok(bytes)
}

async fn one(app: &App, args: &EnqueueArgs, queue: QueueName) -> CommandResult {
    let mut message = args.message(app, queue.clone(), args.payload().await?);
    message.check()?;
    if args.wait && message.key.is_none() {
        // The store remembers the final state of a message by its key, so `--wait` needs one.
        message.key = Some(message.id.to_string());
    }
    let key = message.key.clone();
    let mut store = app.open(Access::Create, if args.wait { Hold::Long } else { Hold::Moment }).await?;
    app.seed(&mut store, &[queue.clone()].into()).await?;
    let mut enqueued = only(store.call(async |store| store.enqueue(vec![message.clone()]).await).await?)?;
    if let (true, Some(key)) = (args.wait, key) {
        app.set_interrupt_hint(format!(
            "message {0} is enqueued; `redrive message show {0}` shows it",
            enqueued.id
        ));
        enqueued.state = settled(&mut store, &queue, &key, args.timeout).await?;
    }
    app.out.one(&enqueued)?;
    Ok(match enqueued.state {
        State::Dead | State::Cancelled | State::Expired | State::Purged if args.wait => ExitCode::Partial,
        State::Dead
        | State::Cancelled
        | State::Expired
        | State::Purged
        | State::Scheduled
        | State::Ready
        | State::Leased
        | State::Done => ExitCode::Ok,
    })
}

/// Waits until the message with this key is settled. Polls with a growing pause of up to half a second.
async fn settled(
    store: &mut Link<'_>,
    queue: &QueueName,
    key: &str,
    timeout: Option<Span>,
) -> Result<State, CliError> {
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout.to_std()));
    let mut pause = Duration::from_millis(10);
    loop {
        let known = store.call(async |store| store.key_state(queue.clone(), key.to_owned()).await).await?;
        let Some(known) = known else {
            let what = "the message's key expired while waiting; keys are kept for 24 h";
            return Err(CliError::new(ExitCode::Error, what));
        };
        match known.state {
            State::Done | State::Dead | State::Cancelled | State::Expired | State::Purged => {
                return Ok(known.state);
            }
            State::Scheduled | State::Ready | State::Leased => {}
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            let what = format!("message {} is still {} after the timeout", known.id, known.state);
            return Err(CliError::new(ExitCode::Unreachable, what)
                .hint(format!("it stays enqueued; run `redrive message show {}` to look at it", known.id)));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

async fn many(app: &App, args: &EnqueueArgs) -> CommandResult {
    let queue = args.queue.0.clone();
    let placeholder = Payload { bytes: Vec::new(), content_type: args.content_type.clone() };
    // A placeholder: each message gets its queue from its line or from the command line.
    let any: QueueName =
        "any".parse().map_err(|e: redrive::core::ids::IdError| CliError::usage(e.to_string()))?;
    let template = args.message(app, any, placeholder);
    let mut store = app.open(Access::Create, Hold::Long).await?;
    // A table shows only the number of messages, unless columns are named; the other formats list each message.
    let only_summary = app.out.format.is_table() && !app.out.names_columns();
    let mut list = app.out.list::<Enqueued>();
    let (mut duplicates, mut seeded) = (0_u64, BTreeSet::new());
    let processed = ndjson::process(
        app,
        ndjson::read(std::io::stdin()),
        args.keep_going,
        |bytes| line::message(bytes, &template, queue.as_ref()),
        async |batch: Vec<NewMessage>| {
            let queues: BTreeSet<_> = batch.iter().map(|m| m.queue.clone()).collect();
            let new: BTreeSet<_> = queues.difference(&seeded).cloned().collect();
            app.seed(&mut store, &new).await?;
            seeded.extend(new);
            let results = store.call(async |store| store.enqueue(batch.clone()).await).await?;
            let accepted: Vec<Enqueued> = results.iter().flatten().cloned().collect();
            duplicates += accepted.iter().filter(|enqueued| enqueued.duplicate).count() as u64;
            if !only_summary {
                list.add(&accepted)?;
            }
            Ok(results.into_iter().map(|result| result.map(drop).map_err(CliError::from)).collect())
        },
    )
    .await;
    if matches!(processed, Ok(counts) if counts == ndjson::LineCounts::default()) && !args.ndjson {
        let what = "nothing to enqueue: no --payload, no --payload-file, and stdin was empty";
        return Err(CliError::usage(what));
    }
    // Messages that were accepted before a failure are printed too, and a JSON document must be closed.
    if !only_summary && (processed.is_ok() || !list.is_empty()) {
        list.end(None)?;
    }
    let counts = processed?;
    let again = if duplicates > 0 { format!(", {duplicates} of them duplicates") } else { String::new() };
    let bad = if counts.failed > 0 { format!("; {} lines failed", counts.failed) } else { String::new() };
    let summary = format!("{} messages enqueued{again}{bad}", counts.taken);
    if only_summary {
        app.out.raw((summary + "\n").as_bytes())?;
    } else {
        app.out.note(&summary);
    }
    Ok(counts.code())
}
