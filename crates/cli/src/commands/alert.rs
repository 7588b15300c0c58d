//! `alert`: shows the alerts that hold, the rules and the channels, tests a channel, and silences rules and subjects.
//! The rules themselves are evaluated by a process that stays, such as a server.

use super::token::understood;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::{Column, Show, ValueFormat};
use clap::{Args, Subcommand};
use redrive::ServerStore;
use redrive::alerts::{no_such_channel, test_channel};
use redrive::core::alert::{ActiveAlert, ChannelView, Rule, RuleView, Silence, kv};
use redrive::core::error::{CallError, Refusal};
use redrive::core::failure::Failure;
use redrive::core::ids::MessageId;
use redrive::core::json_input::nearest;
use redrive::core::store::{Letters as _, Store as _, Work as _};
use redrive::core::time::Span;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::time::{Duration, Instant};

/// Where a server has its alerts.
const PATH: &str = "/api/v1/alerts";
/// How long to wait for the first delivery of a test by a server.
const TESTED_WITHIN: Duration = Duration::from_secs(60);

const EXAMPLES: &str = "\
Examples:
  redrive alert list                          what is wrong now, as of the last evaluation
  redrive alert list --rules                  every rule with its limit, from redrive.toml
  redrive alert test ops                      sends a test to the channel ops of redrive.toml
  redrive alert silence depth --for 2h        nobody is told about any queue's depth
  redrive alert silence payments --for 30m --reason 'bank maintenance'
  redrive alert unsilence payments";

/// The commands under `alert`.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum AlertCommand {
    /// List the alerts that hold, or the rules, the channels or what is silenced
    List(ListArgs),
    /// Send a test to a channel now, and say whether it worked
    Test {
        /// The name of the channel in [alerts.channels] of redrive.toml
        #[arg(value_name = "CHANNEL")]
        channel: String,
    },
    /// Tell nobody about a rule or a subject for a while; what still holds then is told afterwards
    Silence(SilenceArgs),
    /// End a silence
    Unsilence {
        /// The rule or subject
        #[arg(value_name = "RULE|SUBJECT")]
        name: String,
    },
}

impl AlertCommand {
    /// Whether the command only reads.
    pub(crate) const fn is_read_only(&self) -> bool {
        matches!(self, Self::List(_))
    }
}

/// What to list.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// List the rules with their limits
    #[arg(long, conflicts_with_all = ["channels", "silenced"])]
    rules: bool,
    /// List the channels
    #[arg(long, conflicts_with = "silenced")]
    channels: bool,
    /// List what is silenced
    #[arg(long)]
    silenced: bool,
    /// Exit with 3 if the list is empty
    #[arg(long)]
    fail_empty: bool,
}

/// What to silence.
#[derive(Args, Debug)]
pub(crate) struct SilenceArgs {
    /// A rule, or the subject of alerts: a queue, a group, an operation, QUEUE/KEY of a breaker, or `store`
    #[arg(value_name = "RULE|SUBJECT")]
    name: String,
    /// For how long
    #[arg(long = "for", value_name = "DURATION")]
    span: Span,
    /// Why; shown in the list
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Show for ActiveAlert {
    const COLUMNS: &'static [Column] = &[
        Column::whole("alert"),
        Column::state("level"),
        Column::whole("subject"),
        Column::whole("since"),
        Column::whole("told").optional(1),
        Column::main("text"),
    ];

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        vec![
            self.rule.to_string(),
            self.level.to_string(),
            self.subject.clone(),
            fmt.time(self.since),
            self.told.map_or("not yet".into(), |number| format!("#{number}")),
            self.text.clone(),
        ]
    }
}

impl Show for ChannelView {
    const COLUMNS: &'static [Column] = &[Column::whole("channel"), Column::whole("type"), Column::main("to")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![self.name.clone(), self.kind.clone(), self.to.clone()]
    }
}

impl Show for Silence {
    const COLUMNS: &'static [Column] =
        &[Column::whole("silenced"), Column::whole("until"), Column::whole("by"), Column::main("reason")];

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        let reason = self.reason.clone().unwrap_or_default();
        vec![self.name().to_owned(), fmt.time(self.until), self.by.clone(), reason]
    }
}

impl Show for RuleView {
    const COLUMNS: &'static [Column] = &[
        Column::main("rule"),
        Column::whole("enabled"),
        Column::state("level"),
        Column::number("limit"),
        Column::number("clear"),
        Column::whole("channels"),
    ];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let channels = if self.channels.is_empty() { "all".into() } else { self.channels.join(", ") };
        vec![
            self.rule.to_string(),
            self.enabled.to_string(),
            self.level.to_string(),
            amount(self.rule, self.limit),
            amount(self.rule, self.clear),
            channels,
        ]
    }
}

/// A limit with its unit.
fn amount(rule: Rule, value: f64) -> String {
    match rule {
        Rule::OldestAge => {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a checked setting")]
            let ms = value as u64;
            Span::from_millis(ms).to_string()
        }
        Rule::SlowEnqueue => format!("{value} ms"),
        Rule::Utilisation | Rule::Disk => format!("{:.0}%", value * 100.0),
        Rule::DeadLetterRate => format!("{value}/s"),
        Rule::Depth
        | Rule::Growth
        | Rule::NewGroup
        | Rule::RegressedGroup
        | Rule::BreakerOpen
        | Rule::Poison
        | Rule::OperationHalted
        | Rule::Retention
        | Rule::Abandoned
        | Rule::StoreDegraded => value.to_string(),
    }
}

/// Runs an `alert` command: on the store and the configuration, or by the routes of a server.
pub(crate) async fn run(app: &App, command: AlertCommand) -> CommandResult {
    match command {
        AlertCommand::List(args) => list(app, &args).await,
        AlertCommand::Test { channel } => {
            match app.server() {
                Some(server) => test_by_server(&server.store, &channel).await?,
                None => test_here(app, &channel).await?,
            }
            app.out.note(&format!("the channel {channel} took the test"));
            Ok(ExitCode::Ok)
        }
        AlertCommand::Silence(args) => silence(app, args).await,
        AlertCommand::Unsilence { name } => {
            if !unsilence(app, &name).await? {
                let what = format!("nothing is silenced as {name:?}");
                let hint = "`redrive alert list --silenced` shows what is";
                return Err(CliError::new(ExitCode::NotFound, what).hint(hint));
            }
            app.out.note(&format!("{name} is not silenced any more"));
            Ok(ExitCode::Ok)
        }
    }
}

/// What a server shows of its alerts.
#[derive(Deserialize)]
struct ServerAlerts {
    active: Vec<ActiveAlert>,
    channels: Vec<ChannelView>,
    silenced: Vec<Silence>,
    rules: Vec<RuleView>,
}

async fn alerts_of(server: &ServerStore) -> Result<ServerAlerts, CliError> {
    understood(server.request("GET", PATH, None).await?.unwrap_or_default())
}

async fn list(app: &App, args: &ListArgs) -> CommandResult {
    let count = match app.server() {
        Some(server) => {
            let alerts = alerts_of(&server.store).await?;
            if args.rules {
                print(app, &alerts.rules)?
            } else if args.channels {
                print(app, &alerts.channels)?
            } else if args.silenced {
                print(app, &alerts.silenced)?
            } else {
                print(app, &alerts.active)?
            }
        }
        None if args.rules => print(app, &app.config.alerts.rule_views())?,
        None if args.channels => {
            let channels = app.config.alerts.channels.iter().map(|(name, channel)| channel.view(name));
            print(app, &channels.collect::<Vec<_>>())?
        }
        None => {
            let store = app.open(Access::Existing, Hold::Moment).await?;
            if args.silenced {
                let now = store.info().await?.now;
                print(app, &kv::silences(&*store).await?.at(now).cloned().collect::<Vec<_>>())?
            } else {
                print(app, &kv::record(&*store).await?.active)?
            }
        }
    };
    Ok(if count == 0 && args.fail_empty { ExitCode::NothingMatched } else { ExitCode::Ok })
}

/// Prints a list and returns how long it is.
fn print<T: Show + Serialize>(app: &App, items: &[T]) -> Result<usize, CliError> {
    app.out.all(items)?;
    Ok(items.len())
}

fn test_failed(why: impl std::fmt::Display) -> CliError {
    CliError::new(ExitCode::Error, format!("the test failed: {why}"))
}

async fn test_here(app: &App, channel: &str) -> Result<(), CliError> {
    let links = app.config.server.url.clone();
    test_channel(&app.config.alerts, channel, app.user(), links).await.map_err(test_failed)
}

/// Has a server send a test, and waits for its first delivery.
async fn test_by_server(server: &ServerStore, channel: &str) -> Result<(), CliError> {
    let body = json!({"channel": channel});
    let Some(reply) = server.request("POST", &format!("{PATH}/test"), Some(&body)).await? else {
        let known = alerts_of(server).await?.channels;
        let known: Vec<&str> = known.iter().map(|channel| channel.name.as_str()).collect();
        return Err(test_failed(no_such_channel(channel, &known)));
    };
    let id = understood::<TestSent>(reply)?.message;
    let began = Instant::now();
    let mut seen = server.changes(None, Span::ZERO).await?.at;
    while began.elapsed() < TESTED_WITHIN {
        match outcome(server, id).await? {
            Some(result) => return result.map_err(test_failed),
            None => seen = server.changes(Some(seen), Span::from_secs(1)).await?.at,
        }
    }
    let seconds = TESTED_WITHIN.as_secs();
    Err(test_failed(format!("it was not delivered within {seconds} s; the message is {id}")))
}

/// How the first delivery of a test ended. `None` if it has not.
async fn outcome(server: &ServerStore, id: MessageId) -> Result<Option<Result<(), String>>, CliError> {
    let failure = |failures: &[Failure]| failures.last().map(|failure| Err(failure.error.message.clone()));
    match server.message(id).await {
        Ok(message) => Ok(failure(&message.failures)),
        Err(CallError::Refused(Refusal::NoSuchMessage { .. })) => match server.letter(id).await {
            Ok(letter) => Ok(failure(&letter.message.failures)),
            Err(CallError::Refused(Refusal::NoSuchLetter { .. })) => Ok(Some(Ok(()))),
            Err(error) => Err(error.into()),
        },
        Err(error) => Err(error.into()),
    }
}

async fn silence(app: &App, args: SilenceArgs) -> CommandResult {
    let silence = match app.server() {
        Some(server) => {
            let body = json!({"name": args.name, "for": args.span, "reason": args.reason});
            let reply = server.store.request("POST", &format!("{PATH}/silence"), Some(&body)).await?;
            understood(reply.unwrap_or_default())?
        }
        None => {
            let store = app.open(Access::Existing, Hold::Moment).await?;
            let now = store.info().await?.now;
            let by = app.user().to_owned();
            let silence = Silence::of(&args.name, args.span, by, args.reason.clone(), now)?;
            kv::silence(&*store, &silence, app.actor(args.reason)).await?;
            silence
        }
    };
    let known: Vec<&str> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    if silence.rule.is_none()
        && let Some(near) = nearest(&args.name, &known)
    {
        app.out.note(&format!(
            "{} is not a rule and silences a subject of that name; the rule is {near}",
            args.name
        ));
    }
    app.out.one(&silence)?;
    Ok(ExitCode::Ok)
}

/// Ends a silence. Returns whether there was one.
async fn unsilence(app: &App, name: &str) -> Result<bool, CliError> {
    if let Some(server) = app.server() {
        let body = json!({"name": name});
        let reply = server.store.request("POST", &format!("{PATH}/silence"), Some(&body)).await?;
        return Ok(understood::<SilenceEnded>(reply.unwrap_or_default())?.ended);
    }
    let store = app.open(Access::Existing, Hold::Moment).await?;
    Ok(kv::unsilence(&*store, name, app.actor(None)).await?)
}

/// A test that a server sent.
#[derive(Deserialize)]
struct TestSent {
    message: MessageId,
}

/// Whether a silence ended.
#[derive(Deserialize)]
struct SilenceEnded {
    ended: bool,
}
