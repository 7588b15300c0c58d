//! `dlq`: dead letters. Look at them, decide about them, send them back. The verbs that change letters share
//! one path, in [`act`]; what they may do is decided by the status table of the core.

mod act;
mod consume;
mod diff;
mod edit;
pub(crate) mod erase;
mod patch;
mod redriving;
mod stats;
mod timeline;
mod transfer;
mod verbs;

pub(super) use act::resolve_matching;
pub(super) use consume::require_dlq;

use super::{error_text, listed, narrowed, only, within};
use crate::args::{ListArgs, RevealArgs};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{Done, ExitCode};
use crate::given::{self, Given};
use crate::output::{Column, Look, Revealed, Sheet, Show, escape, rules};
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
        /// Which: `queue:payments error:timeout attempts>3 age>2h`; everything when not said
        #[arg(value_name = "FILTER", default_value = "")]
        filter: String,
        /// Only this drawer
        #[arg(long, value_name = "DRAWER")]
        dlq: Option<QueueName>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Show one dead letter with all its kept failures
    Show {
        /// The letter: the id of its message, or the last digits of it
        #[arg(value_name = "ID")]
        id: Given<MessageId>,
        /// Only the payload; with --reveal its exact bytes in a pipe, made harmless on a terminal
        #[arg(long)]
        payload: bool,
        #[command(flatten)]
        reveal: RevealArgs,
    },
    /// Show the life of one dead letter, moment by moment
    Timeline {
        /// The letter
        #[arg(value_name = "ID")]
        id: Given<MessageId>,
    },
    /// Count dead letters by drawer and status
    Stats(stats::StatsArgs),
    /// Take dead letters for a consumer, with a lease and a token each
    Lease(consume::LeaseArgs),
    /// Say what is to become of a leased dead letter
    Settle(consume::SettleArgs),
    /// Send dead letters back carefully: preview, canary, ramp, rate, and a halt when the cause is still there
    Redrive(Box<redriving::RedriveArgs>),
    /// Send dead letters back to work
    Retry(Box<verbs::RetryArgs>),
    /// Take letters back that were sent to work, if nobody has leased them yet
    Undo(act::Selection),
    /// Close dead letters as dealt with
    Resolve(act::Selection),
    /// Close dead letters as given up
    Abandon(act::Selection),
    /// Ask for a person to look
    Review(act::Selection),
    /// Set dead letters aside until a time
    Quarantine(verbs::UntilArgs),
    /// Take dead letters out of quarantine or review
    Release(act::Selection),
    /// Put dead letters into another drawer
    Move(verbs::MoveArgs),
    /// Hide dead letters from consumers and automatic redrives until a time
    Snooze(verbs::UntilArgs),
    /// Say whose dead letters are
    Assign(verbs::AssignArgs),
    /// Put labels on dead letters, or take them off
    Label(verbs::LabelArgs),
    /// Keep dead letters: they never expire and cannot be purged
    Hold(act::Selection),
    /// Let go of dead letters that were held
    Unhold(act::Selection),
    /// Open closed dead letters again
    Reopen(act::Selection),
    /// Give a dead letter other content; what it said is kept
    Edit(Box<edit::EditArgs>),
    /// Change the JSON payload of dead letters by a JSON patch (RFC 6902); all other bytes stay
    Patch(patch::PatchArgs),
    /// Show how the content of a dead letter changed
    Diff(diff::DiffArgs),
    /// Say something about a dead letter
    Note {
        /// The letter
        #[arg(value_name = "ID")]
        id: Given<MessageId>,
        /// What to say
        #[arg(value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
        text: String,
    },
    /// Write dead letters as lines of JSON, as CSV or as a directory of files; masked unless --full
    Export(transfer::ExportArgs),
    /// File dead letters from an export or, with a mapping, from other JSON; those that are here stay as they are
    Import(transfer::ImportArgs),
    /// Remove closed dead letters; `unpurge` takes them back for a day
    Purge(act::Selection),
    /// Take purged dead letters back
    Unpurge(act::Selection),
}

impl DlqCommand {
    /// Whether it only looks.
    pub(crate) const fn looks(&self) -> bool {
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

    fn cells(&self, look: &Look) -> Vec<String> {
        vec![
            self.id().to_string(),
            self.message.envelope.queue.to_string(),
            self.file.status.to_string(),
            self.file.reason.to_string(),
            self.message.attempts.to_string(),
            look.time(self.file.dead_at),
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

    fn more(&self, look: &Look) -> Vec<String> {
        vec![
            self.message.envelope.kind.clone(),
            self.file.dlq.to_string(),
            self.file.category.to_string(),
            self.file.redrives.to_string(),
            self.group.to_string(),
            self.file.owner.clone().unwrap_or_default(),
            self.file.labels.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
            look.maybe(self.file.expires_at),
            if self.file.alert { "yes".into() } else { String::new() },
        ]
    }

    fn sheet(&self, look: &Look) -> Sheet {
        let file = &self.file;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let labels: Vec<&str> = file.labels.iter().map(String::as_str).collect();
        let redriven = file.redriven.as_ref().map(|redriven| {
            let to = redriven.to.as_ref().map(|queue| format!(" to {queue}")).unwrap_or_default();
            format!("{} by {}{to}", look.time(redriven.at), redriven.by)
        });
        let redriven = redriven.unwrap_or_default();
        let head = Sheet::default()
            .field("status", file.status)
            .field("reason", file.reason)
            .field("dlq", &file.dlq)
            .field("group", self.group)
            .field("error", error_text(&self.error))
            .field("code", text(&self.error.code))
            .field("category", file.category)
            .field("route", file.route)
            .field("severity", file.severity)
            .field("alert", if file.alert { "yes" } else { "" })
            .field("recoverability", file.recoverability)
            .field("dead_at", look.time(file.dead_at))
            .field("first_failed_at", look.maybe(file.first_failed_at))
            .field("redrives", file.redrives)
            .field("redriven", redriven)
            .field("owner", text(&file.owner))
            .field("labels", labels.join(", "))
            .field("held", if file.held { "yes" } else { "" })
            .field("snoozed_until", look.maybe(file.snoozed_until))
            .field("eligible", self.eligible)
            .field("review_requested_by", text(&file.review_requested_by))
            .field("quarantined_until", look.maybe(file.quarantined_until))
            .field("resolution", text(&file.resolution))
            .field("closed_at", look.maybe(file.closed_at))
            .field("closed_by", text(&file.closed_by))
            .field("expires_at", look.maybe(file.expires_at))
            .field("version", file.version);
        let notes: Vec<String> = file
            .notes
            .iter()
            .map(|note| format!("{} {}: {}", look.time(note.at), note.by, escape::line(&note.text)))
            .collect();
        let edits: Vec<String> = file
            .edits
            .iter()
            .map(|mark| {
                let why = mark.reason.as_deref().unwrap_or_default();
                format!("{} {} {}: {}", mark.n, look.time(mark.at), mark.by, escape::line(why))
            })
            .collect();
        let head = match &file.erased {
            Some(erased) => {
                let gone = format!("{} by {}, {} bytes", look.time(erased.at), erased.by, erased.bytes);
                head.field("erased", gone)
            }
            None => head,
        };
        self.message
            .sheet(look)
            .and(head)
            .block("edits", edits.join("\n"))
            .block("stack", text(&self.error.stack))
            .block("notes", notes.join("\n"))
    }
}

/// Runs one of them.
pub(crate) async fn run(app: &App, command: DlqCommand) -> Done {
    match command {
        DlqCommand::List { filter: text, dlq, list } => {
            let filter = given::filter(app, &text, IdKind::Letter).await?;
            let filter = within(narrowed(filter, "dlq", dlq.as_ref())?, &list, "died")?;
            let store = app.open(Access::Existing, Hold::Moment).await?;
            let fetch = async |s: &dyn Store, page| s.letters(Query { filter: filter.clone(), page }).await;
            listed(app, store, &list, fetch).await
        }
        DlqCommand::Show { id, payload, reveal } => show(app, id.letter(app).await?, payload, reveal).await,
        DlqCommand::Stats(args) => stats::run(app, args).await,
        DlqCommand::Lease(args) => consume::lease(app, args).await,
        DlqCommand::Settle(args) => consume::settle(app, args).await,
        DlqCommand::Timeline { id } => timeline::run(app, id.letter(app).await?).await,
        DlqCommand::Redrive(args) => redriving::run(app, *args).await,
        DlqCommand::Retry(args) => verbs::retry(app, *args).await,
        DlqCommand::Undo(which) => act::run(app, which, |_| Act::PullBack).await,
        DlqCommand::Quarantine(args) => verbs::until(app, args, |until| Act::Quarantine { until }).await,
        DlqCommand::Release(which) => act::run(app, which, |_| Act::Release).await,
        DlqCommand::Move(args) => verbs::shift(app, args).await,
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

async fn show(app: &App, id: MessageId, payload: bool, reveal: RevealArgs) -> Done {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let mut letter = store.letter(id).await?;
    if reveal.reveal {
        // First it is on record, then it is shown.
        let what = if payload { Disclosed::Payload } else { Disclosed::Letter };
        store.disclose(Disclosure::of(what, id), app.actor(reveal.reason)).await?;
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
