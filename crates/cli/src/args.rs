//! The command line: the global flags, the list of commands, and the flags that several commands share. The flags
//! of a single command are defined with that command.

use crate::commands::{
    alert, audit, backup, breaker, classify, completions, demo, dlq, doctor, enqueue, group, lease, marker,
    message, op, queue, run, serve, settle, signature, token, work, worker,
};
use crate::output::choice::{self, Template};
use crate::output::{ColorWhen, Format, TimeStyle, eprint_line, escape};
use crate::progress::ProgressWhen;
use clap::builder::TypedValueParser as _;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches as _, Parser, Subcommand};
use redrive::core::query::Cursor;
use redrive::core::time::{Span, Time};
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

/// The dead letter office for background work.
#[derive(Debug, Parser)]
#[command(name = "redrive", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Flags that every command accepts.
    #[command(flatten)]
    pub global: Global,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags that every command accepts.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// The data directory [default: ./redrive-data if it exists, else the user's data directory]
    #[arg(long, global = true, env = "REDRIVE_DATA", hide_env_values = true, value_name = "DIR", value_parser = any_path())]
    pub data: Option<PathBuf>,
    /// A store in PostgreSQL or Redis instead of a data directory: postgres://USER@HOST/DATABASE (see docs/postgres.md)
    #[arg(long, global = true, env = "REDRIVE_STORE", hide_env_values = true, value_name = "URL")]
    pub store: Option<String>,
    /// The configuration file [default: ./redrive.toml if it exists]
    #[arg(long, global = true, env = "REDRIVE_CONFIG", hide_env_values = true, value_name = "FILE", value_parser = any_path())]
    pub config: Option<PathBuf>,
    /// A server to use instead of a data directory: its URL, or the name of a context (see docs/server.md)
    #[arg(long, global = true, env = "REDRIVE_URL", hide_env_values = true, value_name = "URL")]
    pub server: Option<String>,
    /// The file with the token for the server [default: the token in REDRIVE_TOKEN]
    #[arg(long, global = true, env = "REDRIVE_TOKEN_FILE", hide_env_values = true, value_name = "FILE", value_parser = any_path())]
    pub token_file: Option<PathBuf>,
    /// Whether the command changes something, takes a reason and was given none.
    #[arg(skip)]
    pub lacks_reason: bool,
    /// The output format for data on stdout [default: table]
    #[arg(long, short, global = true, value_enum, value_name = "FORMAT")]
    pub output: Option<Format>,
    /// The columns to show, in order: column names, or paths such as payload.order.id; for table, wide and csv
    #[arg(long, global = true, value_name = "NAMES")]
    pub columns: Option<ColumnNames>,
    /// Print one line per item, with {path} for a field: '{id} {error.message}'; implies -o template
    #[arg(long, global = true, value_name = "TEXT")]
    pub template: Option<Template>,
    /// Repeat the command at this interval, every 2s by default; only for commands that change nothing
    #[arg(long, global = true, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub watch: Option<Span>,
    /// How tables show times [default: relative on a terminal, otherwise iso]
    #[arg(long, global = true, value_enum, value_name = "STYLE")]
    pub time: Option<TimeStyle>,
    /// The name to record in the audit trail [default: $USER, or the name of the current user]
    #[arg(long, global = true, value_name = "NAME")]
    pub actor: Option<String>,
    /// When to use colours [default: auto]
    #[arg(long, global = true, value_enum, value_name = "WHEN")]
    pub color: Option<ColorWhen>,
    /// Do not use colours, as if NO_COLOR were set
    #[arg(long, global = true, conflicts_with = "color")]
    pub no_color: bool,
    /// Print only errors on stderr: no notes and no progress
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// How to show progress on stderr [default: auto]
    #[arg(long, global = true, value_enum, value_name = "HOW")]
    pub progress_as: Option<ProgressWhen>,
}

/// The environment variable that names a context.
const CONTEXT_VARIABLE: &str = "REDRIVE_CONTEXT";

/// The names given with `--columns`.
#[derive(Clone, Debug)]
pub(crate) struct ColumnNames(pub(crate) Vec<String>);

impl std::str::FromStr for ColumnNames {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        choice::columns(text).map(Self)
    }
}

/// Parses a path that may be empty, because an environment variable may be set to an empty string.
fn any_path() -> impl clap::builder::TypedValueParser<Value = PathBuf> {
    clap::builder::OsStringValueParser::new().map(PathBuf::from)
}

impl Global {
    /// Treats flags and environment variables that are set to an empty string as not set.
    pub(crate) fn without_empty(mut self) -> Self {
        self.data = self.data.filter(|path| !path.as_os_str().is_empty());
        self.config = self.config.filter(|path| !path.as_os_str().is_empty());
        self.server = self.server.filter(|url| !url.is_empty());
        self.store = self.store.filter(|url| !url.is_empty());
        self.token_file = self.token_file.filter(|path| !path.as_os_str().is_empty());
        self
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Add one message to a queue, or many messages as NDJSON from stdin
    Enqueue(Box<enqueue::EnqueueArgs>),
    /// Lease ready messages from queues
    Lease(lease::LeaseArgs),
    /// Mark leased messages as done
    Ack(settle::AckArgs),
    /// Report that a leased message failed; the queue's policy decides what happens next
    Fail(Box<settle::FailArgs>),
    /// Extend a lease
    Extend(settle::ExtendArgs),
    /// Return a leased message to its queue without counting the attempt
    Release(settle::ReleaseArgs),
    /// Run a command, or the queue's target, for every message
    Work(Box<work::WorkArgs>),
    /// Run a command for every item of a batch job, with retries, a dead letter queue and resume
    Run(run::RunArgs),
    /// Answer over HTTP: the API for workers, senders and people on other machines
    Serve(Box<serve::ServeArgs>),
    /// Show the dashboard on a live, failing workload
    Demo(demo::DemoArgs),
    /// List, show and cancel live messages
    #[command(subcommand)]
    Message(message::MessageCommand),
    /// List queues and change their policies
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    /// List, inspect, redrive and close dead letters
    #[command(subcommand)]
    Dlq(dlq::DlqCommand),
    /// Permanently remove the content of dead letters, leaving tombstones
    Erase(Box<dlq::erase::EraseArgs>),
    /// Watch and control operations, the durable bulk actions on dead letters
    #[command(subcommand)]
    Op(op::OpCommand),
    /// List and manage groups of failures with the same cause
    #[command(subcommand)]
    Group(group::GroupCommand),
    /// Record a moment, such as a deploy, to find what is new since then
    Marker(marker::MarkerArgs),
    /// List and control circuit breakers
    #[command(subcommand)]
    Breaker(breaker::BreakerCommand),
    /// List alerts, test channels, and silence rules or subjects
    #[command(subcommand)]
    Alert(alert::AlertCommand),
    /// List workers and what they have leased
    #[command(subcommand)]
    Worker(worker::WorkerCommand),
    /// Watch groups, dead letters and timelines in a terminal, and act on them with --act
    Top(crate::top::TopArgs),
    /// List and verify the audit trail
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Create, list and revoke the tokens of a server
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Copy the store to a new directory while work continues
    Backup(backup::BackupArgs),
    /// Create a new data directory from a backup
    Restore(backup::RestoreArgs),
    /// Check the store: recount everything and compare it with the stored counters
    Doctor(doctor::DoctorArgs),
    /// Show how error lines from stdin would be grouped
    Signature(signature::SignatureArgs),
    /// Classify errors: NDJSON in, NDJSON out
    Classify(classify::ClassifyArgs),
    /// Write a redrive.toml with comments
    Init,
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// Whether the command handles interrupts itself and finishes what it has begun.
    pub(crate) fn handles_interrupts(&self) -> bool {
        matches!(self, Self::Work(_) | Self::Serve(_) | Self::Demo(_))
    }

    /// Whether the command only reads, so that `--watch` may repeat it.
    pub(crate) const fn is_read_only(&self) -> bool {
        match self {
            Self::Message(command) => command.is_read_only(),
            Self::Queue(command) => command.is_read_only(),
            Self::Dlq(command) => command.is_read_only(),
            Self::Group(command) => command.is_read_only(),
            Self::Breaker(command) => command.is_read_only(),
            Self::Alert(command) => command.is_read_only(),
            Self::Worker(worker::WorkerCommand::List { .. }) => true,
            Self::Audit(command) => command.is_read_only(),
            Self::Op(command) => command.is_read_only(),
            Self::Token(command) => command.is_read_only(),
            Self::Enqueue(_)
            | Self::Lease(_)
            | Self::Ack(_)
            | Self::Fail(_)
            | Self::Extend(_)
            | Self::Release(_)
            | Self::Work(_)
            | Self::Run(_)
            | Self::Serve(_)
            | Self::Demo(_)
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

/// Flags that select a part of a list.
#[derive(Args, Clone, Debug)]
pub(crate) struct PageArgs {
    /// The maximum number of items to show
    #[arg(long, value_name = "N", default_value_t = redrive::core::limits::PAGE_ITEMS_DEFAULT)]
    pub limit: usize,
    /// Show all items
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Continue after an earlier page: the value of its `next`
    #[arg(long, value_name = "CURSOR", value_parser = |text: &str| Ok::<_, String>(Cursor::from_text(text)))]
    pub cursor: Option<Cursor>,
    /// Exit with 3 if the list is empty
    #[arg(long)]
    pub fail_empty: bool,
}

/// A moment in time: absolute, or relative to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeBound {
    /// An absolute time.
    At(Time),
    /// This long before now.
    Ago(Span),
}

impl std::str::FromStr for TimeBound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let ago = text.parse().map(Self::Ago);
        ago.or_else(|_| text.parse().map(Self::At)).map_err(|_| {
            format!("{text:?} is neither a duration such as 2h nor a time such as 2026-01-31T12:00:00Z")
        })
    }
}

/// Flags that select a part of a list by page and time, and set its order.
#[derive(Args, Clone, Debug)]
pub(crate) struct ListArgs {
    /// The page of the list.
    #[command(flatten)]
    pub page: PageArgs,
    /// Only items since this time, or not older than this duration
    #[arg(long, value_name = "WHEN")]
    pub since: Option<TimeBound>,
    /// Only items until this time, or at least as old as this duration
    #[arg(long, value_name = "WHEN")]
    pub until: Option<TimeBound>,
    /// Sort by this field, such as attempts; use -attempts for descending order
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true, conflicts_with = "cursor")]
    pub sort: Option<Order>,
}

/// The order of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// The path of the field in the item's JSON.
    pub field: String,
    /// Whether the largest value comes first.
    pub descending: bool,
}

impl std::str::FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (field, descending) = text.strip_prefix('-').map_or((text, false), |field| (field, true));
        let names = choice::columns(field)?;
        match names.as_slice() {
            [field] => Ok(Self { field: field.clone(), descending }),
            _ => Err("name one field, such as attempts or -dead_at".into()),
        }
    }
}

/// Flags that reveal masked data.
#[derive(Args, Clone, Debug)]
pub(crate) struct RevealArgs {
    /// Show masked data too, such as payloads and headers; this is recorded in the audit trail
    #[arg(long)]
    pub reveal: bool,
    /// The reason, recorded in the audit trail
    #[arg(long, value_name = "TEXT", requires = "reveal")]
    pub reason: Option<String>,
}

impl Global {
    /// Decides between a data directory, a store in a database and a server. The one that is named by a flag overrides the
    /// environment; two flags contradict each other. The environment may also name a context instead of a URL.
    fn choose_place(&mut self, found: &ArgMatches) -> Result<(), clap::Error> {
        let by_flag = |name: &str| found.value_source(name) == Some(ValueSource::CommandLine);
        let named: Vec<&str> = ["data", "store", "server"].into_iter().filter(|name| by_flag(name)).collect();
        match named.as_slice() {
            [] if self.server.as_ref().is_none_or(String::is_empty) => {
                self.server = std::env::var(CONTEXT_VARIABLE).ok();
            }
            [] => {}
            ["data"] => (self.store, self.server) = (None, None),
            ["store"] => self.server = None,
            [first, second, ..] => {
                let what = format!("--{first} and --{second} name different stores; give one of them");
                return Err(crate::help::command().error(clap::error::ErrorKind::ArgumentConflict, what));
            }
            ["server"] | [_] => {}
        }
        Ok(())
    }
}

/// Whether the command takes a reason and was given none. A dry run, a list and a look without `--reveal` need none.
fn lacks_reason(found: &ArgMatches) -> bool {
    let mut leaf = found;
    while let Some((_, inner)) = leaf.subcommand() {
        leaf = inner;
    }
    let is_set = |name: &str| matches!(leaf.try_get_one::<bool>(name), Ok(Some(true)));
    let takes_one = matches!(leaf.try_get_one::<String>("reason"), Ok(None));
    takes_one && !is_set("dry_run") && !is_set("list")
}

/// Parses the command line. Help goes to stdout. Errors go to stderr with control characters escaped, because they
/// may quote untrusted arguments.
pub(crate) fn parse() -> Result<Cli, std::process::ExitCode> {
    let read = crate::help::command().try_get_matches().and_then(|found| {
        let mut cli = Cli::from_arg_matches(&found)?;
        cli.global.choose_place(&found)?;
        cli.global.lacks_reason = !cli.command.is_read_only() && lacks_reason(&found);
        Ok(cli)
    });
    read.map_err(|error| {
        if error.use_stderr() {
            eprint_line(error.render().to_string().trim_end());
        } else {
            let text = error.render();
            let mut stdout = std::io::stdout().lock();
            let colors = stdout.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
            let text = if colors { text.ansi().to_string() } else { escape::lines(&text.to_string()) };
            // A write error means that the reader has closed the pipe, which is not an error here.
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

    /// Every command and every flag has a help text.
    #[test]
    fn nothing_is_left_unexplained() {
        fn check(command: &clap::Command, unexplained: &mut Vec<String>) {
            if command.get_about().is_none() {
                unexplained.push(command.get_name().to_owned());
            }
            let quiet = command.get_arguments().filter(|arg| arg.get_help().is_none());
            unexplained.extend(quiet.map(|arg| format!("{} {}", command.get_name(), arg.get_id())));
            command.get_subcommands().for_each(|sub| check(sub, unexplained));
        }
        let mut unexplained = Vec::new();
        check(&Cli::command(), &mut unexplained);
        assert!(unexplained.is_empty(), "{unexplained:?}");
    }

    /// `docs/cli.md` names every command and every flag.
    #[test]
    fn the_docs_name_every_command_and_flag() {
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
