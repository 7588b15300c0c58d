//! `alert`: shows the alerts that hold, the rules and the channels, tests a channel, and silences rules and subjects.
//! The rules themselves are evaluated by a process that stays, such as a server.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::{Column, Show, ValueFormat};
use clap::{Args, Subcommand};
use redrive::alerts::test_channel;
use redrive::core::alert::{ActiveAlert, ChannelView, Rule, Silence, kv};
use redrive::core::json_input::nearest;
use redrive::core::time::Span;
use serde::Serialize;

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

/// A rule as it is listed.
#[derive(Serialize)]
struct RuleView {
    rule: Rule,
    enabled: bool,
    level: String,
    limit: f64,
    clear: f64,
    channels: Vec<String>,
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
            self.level.clone(),
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

/// Runs an `alert` command.
pub(crate) async fn run(app: &App, command: AlertCommand) -> CommandResult {
    match command {
        AlertCommand::List(args) => list(app, &args).await,
        AlertCommand::Test { channel } => test(app, &channel).await,
        AlertCommand::Silence(args) => silence(app, args).await,
        AlertCommand::Unsilence { name } => {
            let store = app.open(Access::Existing, Hold::Moment).await?;
            if !kv::unsilence(&*store, &name, app.actor(None)).await? {
                let what = format!("nothing is silenced as {name:?}");
                let hint = "`redrive alert list --silenced` shows what is";
                return Err(CliError::new(ExitCode::NotFound, what).hint(hint));
            }
            app.out.note(&format!("{name} is not silenced any more"));
            Ok(ExitCode::Ok)
        }
    }
}

async fn list(app: &App, args: &ListArgs) -> CommandResult {
    let settings = &app.config.alerts;
    let count = if args.rules {
        let view = |rule: &Rule| {
            let of = settings.rule(*rule);
            let (limit, clear) = (of.limit.0, of.clear.0);
            let (enabled, level) = (of.enabled, of.level.to_string());
            RuleView { rule: *rule, enabled, level, limit, clear, channels: of.channels }
        };
        let rules: Vec<RuleView> = Rule::ALL.iter().map(view).collect();
        app.out.all(&rules)?;
        rules.len()
    } else if args.channels {
        let channels: Vec<ChannelView> =
            settings.channels.iter().map(|(name, channel)| channel.view(name)).collect();
        app.out.all(&channels)?;
        channels.len()
    } else {
        let store = app.open(Access::Existing, Hold::Moment).await?;
        if args.silenced {
            let now = store.info().await?.now;
            let silences: Vec<Silence> = kv::silences(&*store).await?.at(now).cloned().collect();
            app.out.all(&silences)?;
            silences.len()
        } else {
            let active = kv::record(&*store).await?.active;
            app.out.all(&active)?;
            active.len()
        }
    };
    Ok(if count == 0 && args.fail_empty { ExitCode::NothingMatched } else { ExitCode::Ok })
}

async fn test(app: &App, channel: &str) -> CommandResult {
    let links = app.config.server.url.clone();
    test_channel(&app.config.alerts, channel, app.user(), links)
        .await
        .map_err(|why| CliError::new(ExitCode::Error, format!("the test failed: {why}")))?;
    app.out.note(&format!("the channel {channel} took the test"));
    Ok(ExitCode::Ok)
}

async fn silence(app: &App, args: SilenceArgs) -> CommandResult {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let now = store.info().await?.now;
    let silence = Silence::of(&args.name, args.span, app.user().to_owned(), args.reason.clone(), now)?;
    kv::silence(&*store, &silence, app.actor(args.reason)).await?;
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
