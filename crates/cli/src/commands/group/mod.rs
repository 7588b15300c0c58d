//! `group`: failures by cause, with exact counts, and what people say about them.

mod show;

use super::{dlq, each, marker, pages};
use crate::args::PageArgs;
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::given::{self, Given};
use crate::output::complain;
use crate::policy_change::Maybe;
use clap::{Args, Subcommand};
use redrive::core::error::{Error, Refusal};
use redrive::core::failure::Category;
use redrive::core::group::{Group, GroupAct, GroupQuery, GroupSort, GroupStatus};
use redrive::core::ids::{GroupId, QueueName};
use redrive::core::limits;
use redrive::core::query::PageRequest;
use redrive::core::store::Store;
use redrive::core::time::{Span, Time};

const LIST_EXAMPLES: &str = "\
Examples:
  redrive group list --status new,regressed --sort impact
  redrive group list --new-since 'deploy 1.4.2'     a marker, see `redrive marker`
  redrive group list --new-since 24h --queue payments";

/// The commands under `group`.
#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List groups, most open dead letters first
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Show everything about one group; its letters are `redrive dlq list group:ID`
    Show {
        /// The group: its id, or the last digits of it
        #[arg(value_name = "ID")]
        id: Given<GroupId>,
        /// How many values to show of each place that varies, from the latest dead letters; at most 10
        #[arg(long, value_name = "N", default_value_t = 3)]
        top: usize,
    },
    /// Say that somebody has seen these groups
    Ack(SaidOf),
    /// Say that the cause of these groups is gone; the next death brings them back as regressed
    Resolve {
        #[command(flatten)]
        of: SaidOf,
        /// Resolve their open dead letters too, by an operation each
        #[arg(long)]
        letters: bool,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Say that these groups are not worth a look; they come back when the time or the count is over
    Ignore {
        #[command(flatten)]
        of: SaidOf,
        /// For so long
        #[arg(long = "for", value_name = "DURATION", conflicts_with = "until")]
        span: Option<Span>,
        /// Until then, such as 2026-01-31T12:00:00Z
        #[arg(long, value_name = "TIME")]
        until: Option<Time>,
        /// Until so many more messages have died of it
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
    /// Take back that a group is acknowledged, resolved or ignored
    Reopen(SaidOf),
    /// Say who looks after a group
    Assign {
        /// The group: its id, or the last digits of it
        #[arg(value_name = "ID")]
        id: Given<GroupId>,
        /// Who; `none` takes it back
        #[arg(value_name = "NAME")]
        to: Maybe<String>,
        /// Why, for the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Say what is known about a group; takes the place of what was said before
    Note {
        /// The group: its id, or the last digits of it
        #[arg(value_name = "ID")]
        id: Given<GroupId>,
        /// What; `none` takes it back
        #[arg(value_name = "TEXT")]
        text: Maybe<String>,
    },
    /// Say where more is written about a group: an issue, a runbook
    Link {
        /// The group: its id, or the last digits of it
        #[arg(value_name = "ID")]
        id: Given<GroupId>,
        /// An http or https address; `none` takes it back
        #[arg(value_name = "URL")]
        url: Maybe<String>,
        /// Why, for the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Say what kind of failure a group is; it goes before what statistics say
    Label {
        /// The group: its id, or the last digits of it
        #[arg(value_name = "ID")]
        id: Given<GroupId>,
        /// transient, persistent, systematic or resource; `none` takes it back
        #[arg(value_name = "CATEGORY")]
        category: Maybe<Category>,
        /// Why, for the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Say that groups have one cause; the oldest name stays, the others lead to it
    Merge {
        /// The groups
        #[arg(value_name = "ID", required_unless_present = "matching", num_args = 2..)]
        ids: Vec<Given<GroupId>>,
        /// All groups with this text in template, error type or note
        #[arg(long, value_name = "TEXT", conflicts_with = "ids")]
        matching: Option<String>,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
        /// Only show which groups would be merged
        #[arg(long)]
        dry_run: bool,
        /// Why, for the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

impl GroupCommand {
    /// Whether it only looks.
    pub(crate) const fn looks(&self) -> bool {
        matches!(self, Self::List(_) | Self::Show { .. })
    }
}

/// Which groups to list.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// With one of these statuses: new, acknowledged, resolved, ignored, regressed
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    status: Vec<GroupStatus>,
    /// With failures in this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<QueueName>,
    /// Looked after by this one; `none` for nobody
    #[arg(long, value_name = "NAME")]
    owner: Option<Maybe<String>>,
    /// First seen since a marker (its text, its number or `last`), a time, or so long ago
    #[arg(long, value_name = "MARKER|TIME")]
    new_since: Option<String>,
    /// With this text in template, error type or note
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// In which order: count, impact (open letters by age) or last_seen
    #[arg(long, value_name = "ORDER")]
    sort: Option<GroupSort>,
    #[command(flatten)]
    page: PageArgs,
}

/// Which groups something is said of.
#[derive(Args, Debug)]
pub(crate) struct SaidOf {
    /// The groups
    #[arg(value_name = "ID", required = true)]
    ids: Vec<Given<GroupId>>,
    /// Why, for the groups' history and the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Runs one of them.
pub(crate) async fn run(app: &App, command: GroupCommand) -> Done {
    match command {
        GroupCommand::List(args) => list(app, args).await,
        GroupCommand::Show { id, top } => show(app, id.group(app).await?, top).await,
        GroupCommand::Ack(of) => say(app, of, |_| GroupAct::Acknowledge).await,
        GroupCommand::Resolve { of, letters: false, .. } => say(app, of, |_| GroupAct::Resolve).await,
        GroupCommand::Resolve { of, letters: true, yes } => resolve_with_letters(app, of, yes).await,
        GroupCommand::Ignore { of, span, until, count } => {
            if let Some(span) = span.filter(|span| *span > limits::SPAN_MAX) {
                return Err(CliError::usage(format!("--for: {span} is more than {}", limits::SPAN_MAX)));
            }
            say(app, of, |now| GroupAct::Ignore { until: until.or(span.map(|span| now.plus(span))), count })
                .await
        }
        GroupCommand::Reopen(of) => say(app, of, |_| GroupAct::Reopen).await,
        GroupCommand::Assign { id, to, reason } => {
            let to = to.into_option();
            say(app, SaidOf { ids: vec![id], reason }, |_| GroupAct::Assign { to }).await
        }
        GroupCommand::Note { id, text } => {
            let text = text.into_option();
            say(app, SaidOf { ids: vec![id], reason: None }, |_| GroupAct::Note { text }).await
        }
        GroupCommand::Link { id, url, reason } => {
            let url = url.into_option();
            say(app, SaidOf { ids: vec![id], reason }, |_| GroupAct::Link { url }).await
        }
        GroupCommand::Label { id, category, reason } => {
            let id = id.group(app).await?;
            let store = app.open(Access::Existing, Hold::Moment).await?;
            app.out.one(&store.label_group(id, category.into_option(), app.actor(reason)).await?)?;
            Ok(ExitCode::Ok)
        }
        GroupCommand::Merge { ids, matching, yes, dry_run, reason } => {
            let ids = given::groups(app, &ids).await?;
            let store = app.open(Access::Existing, Hold::Moment).await?;
            let (groups, ids) = match matching {
                Some(text) => {
                    let groups = alike(&*store, text, dry_run).await?;
                    let ids = groups.iter().map(|group| group.id).collect();
                    (groups, ids)
                }
                None => (named(&*store, &ids).await?, ids),
            };
            if !agreed(app, &groups, yes, dry_run).await? {
                return Ok(ExitCode::Ok);
            }
            app.out.one(&store.merge_groups(ids, app.actor(reason)).await?)?;
            Ok(ExitCode::Ok)
        }
    }
}

async fn list(app: &App, args: ListArgs) -> Done {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let since = match &args.new_since {
        Some(text) => Some(marker::since(&*store, text).await?),
        None => None,
    };
    let query = GroupQuery {
        status: args.status,
        queue: args.queue,
        owner: args.owner.map(|owner| owner.into_option().unwrap_or_default()),
        since,
        text: args.text,
        sort: args.sort,
        page: PageRequest::default(),
    };
    let fetch =
        async |store: &dyn Store, page: PageRequest| store.groups(GroupQuery { page, ..query.clone() }).await;
    pages(app, store, &args.page, fetch).await
}

async fn show(app: &App, id: GroupId, top: usize) -> Done {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let mut detail = store.group_detail(id).await?;
    detail.variables.iter_mut().for_each(|variable| variable.top.truncate(top));
    if top == 0 {
        detail.variables.clear();
    }
    let now = store.info().await?.now;
    app.out.one(&show::Shown { detail, now })?;
    app.out.note(&format!("its letters: redrive dlq list group:{id}"));
    Ok(ExitCode::Ok)
}

/// Says the same of some groups.
async fn say(app: &App, of: SaidOf, act: impl FnOnce(Time) -> GroupAct) -> Done {
    let ids = given::groups(app, &of.ids).await?;
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let act = act(store.info().await?.now);
    let actor = app.actor(of.reason);
    if let [id] = ids.as_slice() {
        app.out.one(&store.act_on_group(*id, act, actor).await?)?;
        return Ok(ExitCode::Ok);
    }
    let mut results: Vec<Result<Group, Refusal>> = Vec::new();
    for id in ids {
        results.push(match store.act_on_group(id, act.clone(), actor.clone()).await {
            Ok(group) => Ok(group),
            Err(Error::Refused(refusal)) => Err(refusal),
            Err(Error::Store(error)) => return Err(Error::Store(error).into()),
        });
    }
    each(app, results)
}

/// Resolves groups and their open letters, letters first: whoever is asked about them can still say no.
async fn resolve_with_letters(app: &App, of: SaidOf, yes: bool) -> Done {
    let mut code = ExitCode::Ok;
    for id in given::groups(app, &of.ids).await? {
        let store = app.open(Access::Existing, Hold::Moment).await?;
        let group = store.group(id).await?;
        drop(store);
        if group.open > 0 {
            let done =
                dlq::resolve_matching(app, &format!("group:{}", group.id), yes, of.reason.clone()).await?;
            code = if done == ExitCode::Ok { code } else { done };
        }
        let store = app.open(Access::Existing, Hold::Moment).await?;
        if store.group(id).await?.status != GroupStatus::Resolved {
            store.act_on_group(id, GroupAct::Resolve, app.actor(of.reason.clone())).await?;
        }
        app.out.note(&format!("group {id} is resolved"));
    }
    Ok(code)
}

/// The groups with this text: at least two, unless it is only a look.
async fn alike(store: &dyn Store, text: String, dry_run: bool) -> Result<Vec<Group>, CliError> {
    let page = PageRequest::first(limits::MERGE_MAX + 1);
    let groups =
        store.groups(GroupQuery { text: Some(text.clone()), page, ..GroupQuery::default() }).await?.items;
    if groups.len() < 2 && !dry_run {
        let what = format!("{} groups have the text {text:?}; two or more can be merged", groups.len());
        return Err(CliError::new(ExitCode::NotFound, what).hint("redrive group list --text TEXT"));
    }
    Ok(groups)
}

/// The groups with these names.
async fn named(store: &dyn Store, ids: &[GroupId]) -> Result<Vec<Group>, CliError> {
    let mut groups = Vec::new();
    for id in ids {
        groups.push(store.group(*id).await?);
    }
    Ok(groups)
}

/// Whether somebody has agreed that these groups are one; not when it was only a look.
async fn agreed(app: &App, groups: &[Group], yes: bool, dry_run: bool) -> Result<bool, CliError> {
    if dry_run {
        app.out.all(groups)?;
        return Ok(false);
    }
    if !(app.out.quiet && yes) {
        complain(&format!("to merge: {} groups:", groups.len()));
        app.out.sample(groups);
    }
    confirm(&format!("merge {} groups? It cannot be taken back.", groups.len()), yes).await?;
    Ok(true)
}
