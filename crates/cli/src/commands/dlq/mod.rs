//! `dlq`: lists, inspects and acts on dead letters. The commands that change letters share one path, in [`act`]; the
//! core's status table decides what is allowed.

mod act;
mod consume;
mod diff;
mod edit;
pub(crate) mod erase;
mod patch;
mod redrive_letters;
mod stats;
mod timeline;
mod transfer;
mod verbs;

pub(super) use act::resolve_matching;
pub(super) use consume::require_dlq;

use super::{error_text, narrowed, only, sorted_pages, with_time_bounds};
use crate::args::{ListArgs, RevealArgs};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CommandResult, ExitCode};
use crate::id_arg::{self, IdArg};
use crate::output::{Column, Revealed, Sheet, Show, ValueFormat, escape, rules};
use clap::Subcommand;
use redrive::core::dead_letter::{Act, ActRequest, DeadLetter};
use redrive::core::disclosure::{Disclosed, Disclosure};
use redrive::core::ids::{MessageId, QueueName};
use redrive::core::masking::Rules;
use redrive::core::query::Query;
use redrive::core::short_id::IdKind;
use redrive::core::store::Store;

/// The commands under `dlq`.
#[derive(Debug, Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, latest death first
    List {
        /// A filter such as `queue:payments error:timeout attempts>3 age>2h`; lists everything by default
        #[arg(value_name = "FILTER", default_value = "")]
        filter: String,
        /// Only letters of this dead letter queue
        #[arg(long, value_name = "DLQ")]
        dlq: Option<QueueName>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show one dead letter with its kept failures
    Show {
        /// The id of the message, or its last digits
        #[arg(value_name = "ID")]
        id: IdArg<MessageId>,
        /// Print only the payload; with --reveal its exact bytes, except on a terminal
        #[arg(long)]
        payload: bool,
        #[command(flatten)]
        reveal: RevealArgs,
    },
    /// Show the history of one dead letter
    Timeline {
        /// The id of the message, or its last digits
        #[arg(value_name = "ID")]
        id: IdArg<MessageId>,
    },
    /// Count dead letters by dead letter queue and status
    Stats(stats::StatsArgs),
    /// Lease dead letters for a consumer, with a token for each
    Lease(consume::LeaseArgs),
    /// Settle a leased dead letter
    Settle(consume::SettleArgs),
    /// Redrive dead letters gradually: preview, canary, ramp, rate, and a halt if the cause persists
    Redrive(Box<redrive_letters::RedriveArgs>),
    /// Send dead letters back to their queue at once
    Retry(Box<verbs::RetryArgs>),
    /// Undo a retry: take back letters whose message has not been leased yet
    Undo(act::Selection),
    /// Close dead letters as resolved
    Resolve(act::Selection),
    /// Close dead letters as abandoned
    Abandon(act::Selection),
    /// Put dead letters up for review by a person
    Review(act::Selection),
    /// Quarantine dead letters until a time
    Quarantine(verbs::UntilArgs),
    /// Release dead letters from quarantine or review
    Release(act::Selection),
    /// Move dead letters to another dead letter queue
    Move(verbs::MoveArgs),
    /// Hide dead letters from consumers and automatic redrives until a time
    Snooze(verbs::UntilArgs),
    /// Assign dead letters to an owner
    Assign(verbs::AssignArgs),
    /// Add or remove labels of dead letters
    Label(verbs::LabelArgs),
    /// Hold dead letters: they do not expire and cannot be purged
    Hold(act::Selection),
    /// Remove the hold from dead letters
    Unhold(act::Selection),
    /// Reopen closed dead letters
    Reopen(act::Selection),
    /// Edit the content of a dead letter; earlier revisions are kept
    Edit(Box<edit::EditArgs>),
    /// Change the JSON payload of dead letters with a JSON Patch (RFC 6902); all other bytes stay the same
    Patch(patch::PatchArgs),
    /// Show how the content of a dead letter changed
    Diff(diff::DiffArgs),
    /// Add a note to a dead letter
    Note {
        /// The id of the message, or its last digits
        #[arg(value_name = "ID")]
        id: IdArg<MessageId>,
        /// The text of the note
        #[arg(value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
        text: String,
    },
    /// Export dead letters as NDJSON, CSV or a directory of files; masked unless --full is given
    Export(transfer::ExportArgs),
    /// Import dead letters from an export or, with a mapping, from other JSON; existing letters are not changed
    Import(transfer::ImportArgs),
    /// Remove closed dead letters; `unpurge` restores them within a day
    Purge(act::Selection),
    /// Restore purged dead letters
    Unpurge(act::Selection),
}

impl DlqCommand {
    /// Whether the command only reads.
    pub(crate) const fn is_read_only(&self) -> bool {
        matches!(self, Self::List { .. } | Self::Show { .. } | Self::Timeline { .. } | Self::Stats(_))
    }
}

impl Show for DeadLetter {
    const COLUMNS: &'static [Column] = &[
        Column::id("id"),
        Column::whole("queue"),
        Column::state("status"),
        Column::whole("reason").optional(2),
        Column::number("attempts").optional(1),
        Column::whole("dead_at"),
        Column::main("error"),
    ];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        Some(rules.letter(self))
    }

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        vec![
            self.id().to_string(),
            self.message.envelope.queue.to_string(),
            self.record.status.to_string(),
            self.record.reason.to_string(),
            self.message.attempts.to_string(),
            fmt.time(self.record.dead_at),
            error_text(&self.error),
        ]
    }

    const MORE: &'static [Column] = &[
        Column::whole("kind"),
        Column::whole("dlq"),
        Column::whole("category"),
        Column::number("redrives"),
        Column::id("group"),
        Column::whole("owner"),
        Column::text("labels"),
        Column::whole("expires_at"),
        Column::whole("alert"),
    ];

    fn more(&self, fmt: &ValueFormat) -> Vec<String> {
        vec![
            self.message.envelope.kind.clone(),
            self.record.dlq.to_string(),
            self.record.category.to_string(),
            self.record.redrives.to_string(),
            self.group.to_string(),
            self.record.owner.clone().unwrap_or_default(),
            self.record.labels.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
            fmt.maybe(self.record.expires_at),
            if self.record.alert { "yes".into() } else { String::new() },
        ]
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        let record = &self.record;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let labels: Vec<&str> = record.labels.iter().map(String::as_str).collect();
        let redriven = record.redriven.as_ref().map(|redriven| {
            let to = redriven.to.as_ref().map(|queue| format!(" to {queue}")).unwrap_or_default();
            format!("{} by {}{to}", fmt.time(redriven.at), redriven.by)
        });
        let redriven = redriven.unwrap_or_default();
        let head = Sheet::default()
            .field("status", record.status)
            .field("reason", record.reason)
            .field("dlq", &record.dlq)
            .field("group", self.group)
            .field("error", error_text(&self.error))
            .field("code", text(&self.error.code))
            .field("category", record.category)
            .field("route", record.route)
            .field("severity", record.severity)
            .field("alert", if record.alert { "yes" } else { "" })
            .field("recoverability", record.recoverability)
            .field("dead_at", fmt.time(record.dead_at))
            .field("first_failed_at", fmt.maybe(record.first_failed_at))
            .field("redrives", record.redrives)
            .field("redriven", redriven)
            .field("owner", text(&record.owner))
            .field("labels", labels.join(", "))
            .field("held", if record.held { "yes" } else { "" })
            .field("snoozed_until", fmt.maybe(record.snoozed_until))
            .field("eligible", self.eligible)
            .field("review_requested_by", text(&record.review_requested_by))
            .field("quarantined_until", fmt.maybe(record.quarantined_until))
            .field("resolution", text(&record.resolution))
            .field("closed_at", fmt.maybe(record.closed_at))
            .field("closed_by", text(&record.closed_by))
            .field("expires_at", fmt.maybe(record.expires_at))
            .field("version", record.version);
        let notes: Vec<String> = record
            .notes
            .iter()
            .map(|note| format!("{} {}: {}", fmt.time(note.at), note.by, escape::line(&note.text)))
            .collect();
        let edits: Vec<String> = record
            .edits
            .iter()
            .map(|mark| {
                let why = mark.reason.as_deref().unwrap_or_default();
                format!("{} {} {}: {}", mark.n, fmt.time(mark.at), mark.by, escape::line(why))
            })
            .collect();
        let head = match &record.erased {
            Some(erased) => {
                let gone = format!("{} by {}, {} bytes", fmt.time(erased.at), erased.by, erased.bytes);
                head.field("erased", gone)
            }
            None => head,
        };
        self.message
            .sheet(fmt)
            .and(head)
            .block("edits", edits.join("\n"))
            .block("stack", text(&self.error.stack))
            .block("notes", notes.join("\n"))
    }
}

/// Runs a `dlq` command.
pub(crate) async fn run(app: &App, command: DlqCommand) -> CommandResult {
    match command {
        DlqCommand::List { filter: text, dlq, list } => {
            let filter = id_arg::filter(app, &text, IdKind::Letter).await?;
            let filter = with_time_bounds(narrowed(filter, "dlq", dlq.as_ref())?, &list, "died")?;
            let store = app.open(Access::Existing, Hold::Moment).await?;
            let fetch = async |s: &dyn Store, page| s.letters(Query { filter: filter.clone(), page }).await;
            sorted_pages(app, store, &list, fetch).await
        }
        DlqCommand::Show { id, payload, reveal } => show(app, id.letter(app).await?, payload, reveal).await,
        DlqCommand::Stats(args) => stats::run(app, args).await,
        DlqCommand::Lease(args) => consume::lease(app, args).await,
        DlqCommand::Settle(args) => consume::settle(app, args).await,
        DlqCommand::Timeline { id } => timeline::run(app, id.letter(app).await?).await,
        DlqCommand::Redrive(args) => redrive_letters::run(app, *args).await,
        DlqCommand::Retry(args) => verbs::retry(app, *args).await,
        DlqCommand::Undo(which) => act::run(app, which, |_| Act::PullBack).await,
        DlqCommand::Quarantine(args) => verbs::until(app, args, |until| Act::Quarantine { until }).await,
        DlqCommand::Release(which) => act::run(app, which, |_| Act::Release).await,
        DlqCommand::Move(args) => verbs::move_letters(app, args).await,
        DlqCommand::Snooze(args) => verbs::until(app, args, |until| Act::Snooze { until }).await,
        DlqCommand::Assign(args) => verbs::assign(app, args).await,
        DlqCommand::Label(args) => verbs::label(app, args).await,
        DlqCommand::Hold(which) => act::run(app, which, |_| Act::Hold { on: true }).await,
        DlqCommand::Unhold(which) => act::run(app, which, |_| Act::Hold { on: false }).await,
        DlqCommand::Unpurge(which) => act::run(app, which, |_| Act::Unpurge).await,
        DlqCommand::Resolve(which) => act::run(app, which, |_| Act::Resolve).await,
        DlqCommand::Abandon(which) => act::run(app, which, |_| Act::Abandon).await,
        DlqCommand::Review(which) => act::run(app, which, |_| Act::Review).await,
        DlqCommand::Reopen(which) => act::run(app, which, |_| Act::Reopen).await,
        DlqCommand::Purge(which) => act::run(app, which, |_| Act::Purge).await,
        DlqCommand::Edit(args) => edit::run(app, *args).await,
        DlqCommand::Patch(args) => patch::run(app, args).await,
        DlqCommand::Diff(args) => diff::run(app, args).await,
        DlqCommand::Note { id, text } => {
            let id = id.letter(app).await?;
            let store = app.open(Access::Existing, Hold::Moment).await?;
            let actor = app.actor(Some(text));
            let note = ActRequest { id, act: Act::Note, actor, expected_version: None };
            app.out.one(&only(store.act(vec![note]).await?)?)?;
            Ok(ExitCode::Ok)
        }
        DlqCommand::Export(args) => transfer::export(app, args).await,
        DlqCommand::Import(args) => transfer::import(app, args).await,
    }
}

async fn show(app: &App, id: MessageId, payload: bool, reveal: RevealArgs) -> CommandResult {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let mut letter = store.letter(id).await?;
    if reveal.reveal {
        // Record the disclosure before showing anything.
        let what = if payload { Disclosed::Payload } else { Disclosed::Letter };
        store.disclose(Disclosure::of(what, id), app.actor(reveal.reason)).await?;
        // A server masks what it has not disclosed, so only this reading is whole.
        letter = store.letter(id).await?;
    } else {
        letter = rules().letter(&letter);
    }
    let bytes = &letter.message.envelope.payload.bytes;
    if !payload {
        app.out.one(&Revealed(letter))?;
    } else if app.out.terminal {
        app.out.raw((escape::lines(&String::from_utf8_lossy(bytes)) + "\n").as_bytes())?;
    } else {
        app.out.raw(bytes)?;
    }
    Ok(ExitCode::Ok)
}
