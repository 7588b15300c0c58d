//! The command line: the global flags, the list of commands and the pieces that several commands share. Each
//! command's own flags stand with the command.

use crate::commands::{
    audit, backup, breaker, classify, completions, dlq, doctor, enqueue, group, lease, marker, message, op,
    queue, run, settle, signature, work,
};
use crate::output::choice::{self, Template};
use crate::output::{ColorWhen, Format, TimeStyle, complain, escape};
use crate::progress::ProgressWhen;
use clap::builder::TypedValueParser as _;
use clap::{Args, FromArgMatches as _, Parser, Subcommand};
use redrive::core::query::Cursor;
use redrive::core::time::{Span, Time};
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

/// The dead letter office for background work.
#[derive(Debug, Parser)]
#[command(name = "redrive", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Flags every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags every command takes.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The data directory [default: ./redrive-data if it is there, else the user's own]
    #[arg(long, global = true, env = "REDRIVE_DATA", hide_env_values = true, value_name = "DIR", value_parser = any_path())]
    pub data: Option<PathBuf>,
    /// The configuration file [default: ./redrive.toml if it is there]
    #[arg(long, global = true, env = "REDRIVE_CONFIG", hide_env_values = true, value_name = "FILE", value_parser = any_path())]
    pub config: Option<PathBuf>,
    /// A server instead of a data directory; not in this version
    #[arg(long, global = true, env = "REDRIVE_URL", hide_env_values = true, value_name = "URL")]
    pub server: Option<String>,
    /// How data is written to stdout [default: table]
    #[arg(long, short, global = true, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// Which columns, in order: names of the table's or paths such as payload.order.id; for table, wide and csv
    #[arg(long, global = true, value_name = "NAMES")]
    pub columns: Option<Named>,
    /// One line per item, with {path} for a field: '{id} {error.message}'; means -o template
    #[arg(long, global = true, value_name = "TEXT")]
    pub template: Option<Template>,
    /// Show it again and again, every 2s when not said; for commands that only look
    #[arg(long, global = true, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub watch: Option<Span>,
    /// How tables show times [default: relative on a terminal, else iso]
    #[arg(long, global = true, value_enum, value_name = "STYLE")]
    pub time: Option<TimeStyle>,
    /// Who acts, for the audit trail [default: $USER, or the user that runs it]
    #[arg(long, global = true, value_name = "NAME")]
    pub actor: Option<String>,
    /// When to use colour [default: auto]
    #[arg(long, global = true, value_enum, value_name = "WHEN")]
    pub color: Option<ColorWhen>,
    /// No colour, as with NO_COLOR set
    #[arg(long, global = true, conflicts_with = "color")]
    pub no_color: bool,
    /// No notes and no progress on stderr, only errors
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// How progress is shown on stderr [default: auto]
    #[arg(long, global = true, value_enum, value_name = "HOW")]
    pub progress_as: Option<ProgressWhen>,
}

/// The columns that were named.
#[derive(Clone, Debug)]
pub(crate) struct Named(pub(crate) Vec<String>);

impl std::str::FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        choice::columns(text).map(Self)
    }
}

/// A path that may be empty, since a variable may be set to nothing.
fn any_path() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    clap::builder::OsStringValueParser::new().map(PathBuf::from)
}

impl Global {
    /// A variable that is set to nothing is not set.
    pub(crate) fn without_empty(mut self) -> Self {
        self.data = self.data.filter(|path| !path.as_os_str().is_empty());
        self.config = self.config.filter(|path| !path.as_os_str().is_empty());
        self.server = self.server.filter(|url| !url.is_empty());
        self
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hand in work: one message, or many as NDJSON on stdin
    Enqueue(Box<enqueue::EnqueueArgs>),
    /// Take due work from queues, with a lease on each message
    Lease(lease::LeaseArgs),
    /// Say that leased messages are done
    Ack(settle::AckArgs),
    /// Say that a leased message failed; its queue's policy decides what follows
    Fail(Box<settle::FailArgs>),
    /// Make a lease longer
    Extend(settle::ExtendArgs),
    /// Give a leased message back; the attempt does not count
    Release(settle::ReleaseArgs),
    /// Run a command, or the queue's target, for every message
    Work(Box<work::WorkArgs>),
    /// Run a job over many items: retries, a drawer for what fails, resume after a crash
    Run(run::RunArgs),
    /// Look at live messages and take them back
    #[command(subcommand)]
    Message(message::MessageCommand),
    /// Look at queues and change their rules
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    /// Dead letters: look, decide, send back
    #[command(subcommand)]
    Dlq(dlq::DlqCommand),
    /// Remove what dead letters say, for good, and keep their tombstones
    Erase(Box<dlq::erase::EraseArgs>),
    /// Operations: the durable bulk acts on dead letters
    #[command(subcommand)]
    Op(op::OpCommand),
    /// Groups of failures with one cause
    #[command(subcommand)]
    Group(group::GroupCommand),
    /// Note a moment, such as a deploy, to ask later what is new since
    Marker(marker::MarkerArgs),
    /// Circuit breakers: what is taken for down, and what waits
    #[command(subcommand)]
    Breaker(breaker::BreakerCommand),
    /// Watch groups, letters and timelines as they change, and act on them if allowed
    Top(crate::top::TopArgs),
    /// Who did what
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Copy the store to a new directory while work goes on
    Backup(backup::BackupArgs),
    /// Make a new data directory from a backup
    Restore(backup::RestoreArgs),
    /// Recount everything and compare with what is shown
    Doctor(doctor::DoctorArgs),
    /// Say how error lines on stdin would be grouped
    Signature(signature::SignatureArgs),
    /// Say what kind of failure errors are: NDJSON in, NDJSON out
    Classify(classify::ClassifyArgs),
    /// Write a commented redrive.toml
    Init,
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// Whether it ends in its own time when it is interrupted.
    pub(crate) fn drains(&self) -> bool {
        matches!(self, Self::Work(_))
    }

    /// Whether it only looks, so that it may be run again and again.
    pub(crate) const fn looks(&self) -> bool {
        match self {
            Self::Message(command) => command.looks(),
            Self::Queue(command) => command.looks(),
            Self::Dlq(command) => command.looks(),
            Self::Group(command) => command.looks(),
            Self::Breaker(command) => command.looks(),
            Self::Audit(command) => command.looks(),
            Self::Op(command) => command.looks(),
            Self::Enqueue(_)
            | Self::Lease(_)
            | Self::Ack(_)
            | Self::Fail(_)
            | Self::Extend(_)
            | Self::Release(_)
            | Self::Work(_)
            | Self::Run(_)
            | Self::Top(_)
            | Self::Marker(_)
            | Self::Erase(_)
            | Self::Backup(_)
            | Self::Restore(_)
            | Self::Doctor(_)
            | Self::Signature(_)
            | Self::Classify(_)
            | Self::Init
            | Self::Completions(_) => false,
        }
    }
}

/// Which part of a list.
#[derive(Args, Clone, Debug)]
pub(crate) struct PageArgs {
    /// Items at most
    #[arg(long, value_name = "N", default_value_t = redrive::core::limits::PAGE_ITEMS_DEFAULT)]
    pub limit: usize,
    /// Everything, however long it is
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Go on after an earlier page: its `next`
    #[arg(long, value_name = "CURSOR", value_parser = |text: &str| Ok::<_, String>(Cursor::from_text(text)))]
    pub cursor: Option<Cursor>,
    /// Exit with 3 when there is nothing
    #[arg(long)]
    pub fail_empty: bool,
}

/// A moment: a time, or so long ago.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// Then.
    At(Time),
    /// So long ago.
    Ago(Span),
}

impl std::str::FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ago = text.parse().map(Self::Ago);
        ago.or_else(|_| text.parse().map(Self::At)).map_err(|_| {
            format!("{text:?} is neither a duration such as 2h nor a time such as 2026-01-31T12:00:00Z")
        })
    }
}

/// Which part of a list, from when, and in which order.
#[derive(Args, Clone, Debug)]
pub(crate) struct ListArgs {
    /// The page.
    #[command(flatten)]
    pub page: PageArgs,
    /// Not older than this: a duration or a time
    #[arg(long, value_name = "WHEN")]
    pub since: Option<When>,
    /// Not younger than this: a duration or a time
    #[arg(long, value_name = "WHEN")]
    pub until: Option<When>,
    /// In the order of this field, such as attempts; -attempts for the largest first
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true, conflicts_with = "cursor")]
    pub sort: Option<Order>,
}

/// By which field, and which way round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// A path in the JSON of the item.
    pub field: String,
    /// The largest first.
    pub down: bool,
}

impl std::str::FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (field, down) = text.strip_prefix('-').map_or((text, false), |field| (field, true));
        let names = choice::columns(field)?;
        match names.as_slice() {
            [field] => Ok(Self { field: field.clone(), down }),
            _ => Err("one field, such as attempts or -dead_at".into()),
        }
    }
}

/// Whether what is masked is shown.
#[derive(Args, Clone, Debug)]
pub(crate) struct RevealArgs {
    /// Show what is masked: payload, headers and all; that you did is on record
    #[arg(long)]
    pub reveal: bool,
    /// Why, for the audit trail
    #[arg(long, value_name = "TEXT", requires = "reveal")]
    pub reason: Option<String>,
}

/// Reads the command line. Help is printed to stdout; anything wrong with it to stderr, made harmless, since
/// it may quote what a script was given.
pub(crate) fn parse() -> Result<Cli, std::process::ExitCode> {
    let read = crate::help::command().try_get_matches().and_then(|found| Cli::from_arg_matches(&found));
    read.map_err(|error| {
        if error.use_stderr() {
            complain(error.render().to_string().trim_end());
        } else {
            let text = error.render();
            let mut stdout = std::io::stdout().lock();
            let colors = stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
            let text = if colors { text.ansi().to_string() } else { escape::lines(&text.to_string()) };
            // A reader that went away has seen enough.
            let _ = writeln!(stdout, "{}", text.trim_end());
        }
        std::process::ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    /// Every command and every flag says what it does.
    #[test]
    fn nothing_is_left_unexplained() {
        fn check(command: &clap::Command, silent: &mut Vec<String>) {
            if command.get_about().is_none() {
                silent.push(command.get_name().to_owned());
            }
            let quiet = command.get_arguments().filter(|arg| arg.get_help().is_none());
            silent.extend(quiet.map(|arg| format!("{} {}", command.get_name(), arg.get_id())));
            command.get_subcommands().for_each(|sub| check(sub, silent));
        }
        let mut silent = Vec::new();
        check(&Cli::command(), &mut silent);
        assert!(silent.is_empty(), "{silent:?}");
    }

    /// The page names every command and every flag.
    #[test]
    fn the_page_is_complete() {
        fn check(path: &str, command: &clap::Command, missing: &mut Vec<String>) {
            const PAGE: &str = include_str!("../../../docs/cli.md");
            if !PAGE.contains(path) {
                missing.push(path.to_owned());
            }
            for flag in command.get_arguments().filter_map(|arg| arg.get_long()) {
                if !PAGE.contains(&format!("--{flag}")) {
                    missing.push(format!("{path} --{flag}"));
                }
            }
            for sub in command.get_subcommands() {
                check(&format!("{path} {}", sub.get_name()), sub, missing);
            }
        }
        let mut missing = Vec::new();
        check("redrive", &Cli::command(), &mut missing);
        assert!(missing.is_empty(), "docs/cli.md does not name {missing:?}");
    }
}
