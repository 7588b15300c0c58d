//! `group`: failures by cause, with exact counts, and how people triage them.

mod show;

use super::{dlq, marker, pages, print_results};
use crate::args::PageArgs;
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::id_arg::{self, IdArg};
use crate::output::eprint_line;
use crate::policy_flags::Maybe;
use clap::{Args, Subcommand};
use redrive::core::error::{CallError, Refusal};
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
  redrive group list --new-since 'deploy 1.4.2'     a marker, see `redrive help marker`
  redrive group list --new-since 24h --queue payments";

/// The commands under `group`.
#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List groups, most open dead letters first
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Show everything about one group; list its letters with `redrive dlq list group:ID`
    Show {
        /// The id of the group, or its last digits
        #[arg(value_name = "ID")]
        id: IdArg<GroupId>,
        /// How many values to show for each variable part of the message, from the latest dead letters; at most 10
        #[arg(long, value_name = "N", default_value_t = 3)]
        top: usize,
    },
    /// Acknowledge groups: somebody has seen them
    Ack(GroupSelection),
    /// Resolve groups whose cause is fixed; the next dead letter reopens them as regressed
    Resolve {
        #[command(flatten)]
        selection: GroupSelection,
        /// Also resolve their open dead letters, with one operation per group
        #[arg(long)]
        letters: bool,
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
    },
    /// Ignore groups until a time, for a number of dead letters, or until they are reopened
    Ignore {
        #[command(flatten)]
        selection: GroupSelection,
        /// Ignore for this long
        #[arg(long = "for", value_name = "DURATION", conflicts_with = "until")]
        span: Option<Span>,
        /// Ignore until this time, such as 2026-01-31T12:00:00Z
        #[arg(long, value_name = "TIME")]
        until: Option<Time>,
        /// Ignore until this many more messages have died of it
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
    /// Reopen groups that are acknowledged, resolved or ignored
    Reopen(GroupSelection),
    /// Assign a group to an owner
    Assign {
        /// The id of the group, or its last digits
        #[arg(value_name = "ID")]
        id: IdArg<GroupId>,
        /// The owner, or `none` to remove it
        #[arg(value_name = "NAME")]
        to: Maybe<String>,
        /// The reason, recorded in the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Set the note of a group, replacing the previous one
    Note {
        /// The id of the group, or its last digits
        #[arg(value_name = "ID")]
        id: IdArg<GroupId>,
        /// The text of the note, or `none` to remove it
        #[arg(value_name = "TEXT")]
        text: Maybe<String>,
    },
    /// Link a group to an issue or a runbook
    Link {
        /// The id of the group, or its last digits
        #[arg(value_name = "ID")]
        id: IdArg<GroupId>,
        /// An http or https URL, or `none` to remove it
        #[arg(value_name = "URL")]
        url: Maybe<String>,
        /// The reason, recorded in the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Set the category of a group, overriding the statistics
    Label {
        /// The id of the group, or its last digits
        #[arg(value_name = "ID")]
        id: IdArg<GroupId>,
        /// The category: transient, persistent, systematic or resource, or `none` to remove it
        #[arg(value_name = "CATEGORY")]
        category: Maybe<Category>,
        /// The reason, recorded in the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Merge groups with the same cause into the oldest; this cannot be undone
    Merge {
        /// The ids of the groups, or their last digits
        #[arg(value_name = "ID", required_unless_present = "matching", num_args = 2..)]
        ids: Vec<IdArg<GroupId>>,
        /// Merge all groups with this text in the template, error type or note
        #[arg(long, value_name = "TEXT", conflicts_with = "ids")]
        matching: Option<String>,
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
        /// Only show which groups would be merged
        #[arg(long)]
        dry_run: bool,
        /// The reason, recorded in the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

impl GroupCommand {
    /// Whether the command only reads.
    pub(crate) const fn is_read_only(&self) -> bool {
        matches!(self, Self::List(_) | Self::Show { .. })
    }
}

/// The flags of `group list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Only groups with one of these statuses: new, acknowledged, resolved, ignored, regressed
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    status: Vec<GroupStatus>,
    /// Only groups with failures in this queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<QueueName>,
    /// Only groups with this owner; `none` for groups without an owner
    #[arg(long, value_name = "NAME")]
    owner: Option<Maybe<String>>,
    /// Only groups first seen since a marker (its text, its number or `last`), a time, or a duration ago
    #[arg(long, value_name = "MARKER|TIME")]
    new_since: Option<String>,
    /// Only groups with this text in the template, error type or note
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// The order: count, impact (open letters weighted by age) or last_seen
    #[arg(long, value_name = "ORDER")]
    sort: Option<GroupSort>,
    #[command(flatten)]
    page: PageArgs,
}

/// The groups to act on, and the reason.
#[derive(Args, Debug)]
pub(crate) struct GroupSelection {
    /// The ids of the groups, or their last digits
    #[arg(value_name = "ID", required = true)]
    ids: Vec<IdArg<GroupId>>,
    /// The reason, recorded in the groups' history and the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Runs a `group` command.
pub(crate) async fn run(app: &App, command: GroupCommand) -> CommandResult {
    match command {
        GroupCommand::List(args) => list(app, args).await,
        GroupCommand::Show { id, top } => show(app, id.group(app).await?, top).await,
        GroupCommand::Ack(selection) => act_on_groups(app, selection, |_| GroupAct::Acknowledge).await,
        GroupCommand::Resolve { selection, letters: false, .. } => {
            act_on_groups(app, selection, |_| GroupAct::Resolve).await
        }
        GroupCommand::Resolve { selection, letters: true, yes } => {
            resolve_with_letters(app, selection, yes).await
        }
        GroupCommand::Ignore { selection, span, until, count } => {
            if let Some(span) = span.filter(|span| *span > limits::SPAN_MAX) {
                return Err(CliError::usage(format!("--for: {span} is more than {}", limits::SPAN_MAX)));
            }
            act_on_groups(app, selection, |now| GroupAct::Ignore {
                until: until.or(span.map(|span| now.plus(span))),
                count,
            })
            .await
        }
        GroupCommand::Reopen(selection) => act_on_groups(app, selection, |_| GroupAct::Reopen).await,
        GroupCommand::Assign { id, to, reason } => {
            let to = to.into_option();
            act_on_groups(app, GroupSelection { ids: vec![id], reason }, |_| GroupAct::Assign { to }).await
        }
        GroupCommand::Note { id, text } => {
            let text = text.into_option();
            act_on_groups(app, GroupSelection { ids: vec![id], reason: None }, |_| GroupAct::Note { text })
                .await
        }
        GroupCommand::Link { id, url, reason } => {
            let url = url.into_option();
            act_on_groups(app, GroupSelection { ids: vec![id], reason }, |_| GroupAct::Link { url }).await
        }
        GroupCommand::Label { id, category, reason } => {
            let id = id.group(app).await?;
            let store = app.open(Access::Existing, Hold::Moment).await?;
            app.out.one(&store.label_group(id, category.into_option(), app.actor(reason)).await?)?;
            Ok(ExitCode::Ok)
        }
        GroupCommand::Merge { ids, matching, yes, dry_run, reason } => {
            let ids = id_arg::groups(app, &ids).await?;
            let store = app.open(Access::Existing, Hold::Moment).await?;
            let (groups, ids) = match matching {
                Some(text) => {
                    let groups = groups_with_text(&*store, text, dry_run).await?;
                    let ids = groups.iter().map(|group| group.id).collect();
                    (groups, ids)
                }
                None => (groups_by_id(&*store, &ids).await?, ids),
            };
            if !confirm_merge(app, &groups, yes, dry_run).await? {
                return Ok(ExitCode::Ok);
            }
            app.out.one(&store.merge_groups(ids, app.actor(reason)).await?)?;
            Ok(ExitCode::Ok)
        }
    }
}

async fn list(app: &App, args: ListArgs) -> CommandResult {
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
        trend: false,
        page: PageRequest::default(),
    };
    let fetch =
        async |store: &dyn Store, page: PageRequest| store.groups(GroupQuery { page, ..query.clone() }).await;
    pages(app, store, &args.page, fetch).await
}

async fn show(app: &App, id: GroupId, top: usize) -> CommandResult {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let mut detail = store.group_detail(id).await?;
    detail.variables.iter_mut().for_each(|variable| variable.top.truncate(top));
    if top == 0 {
        detail.variables.clear();
    }
    let now = store.info().await?.now;
    app.out.one(&show::GroupView { detail, now })?;
    app.out.note(&format!("to list its letters: redrive dlq list group:{id}"));
    Ok(ExitCode::Ok)
}

/// Applies the same act to some groups.
async fn act_on_groups(
    app: &App,
    selection: GroupSelection,
    act: impl FnOnce(Time) -> GroupAct,
) -> CommandResult {
    let ids = id_arg::groups(app, &selection.ids).await?;
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let act = act(store.info().await?.now);
    let actor = app.actor(selection.reason);
    if let [id] = ids.as_slice() {
        app.out.one(&store.act_on_group(*id, act, actor).await?)?;
        return Ok(ExitCode::Ok);
    }
    let mut results: Vec<Result<Group, Refusal>> = Vec::new();
    for id in ids {
        results.push(match store.act_on_group(id, act.clone(), actor.clone()).await {
            Ok(group) => Ok(group),
            Err(CallError::Refused(refusal)) => Err(refusal),
            Err(CallError::Store(error)) => return Err(CallError::Store(error).into()),
        });
    }
    print_results(app, results)
}

/// Resolves groups and their open letters. Letters come first, so that a user who declines changes nothing.
async fn resolve_with_letters(app: &App, selection: GroupSelection, yes: bool) -> CommandResult {
    let mut code = ExitCode::Ok;
    for id in id_arg::groups(app, &selection.ids).await? {
        let store = app.open(Access::Existing, Hold::Moment).await?;
        let group = store.group(id).await?;
        drop(store);
        if group.open > 0 {
            let done =
                dlq::resolve_matching(app, &format!("group:{}", group.id), yes, selection.reason.clone())
                    .await?;
            code = if done == ExitCode::Ok { code } else { done };
        }
        let store = app.open(Access::Existing, Hold::Moment).await?;
        if store.group(id).await?.status != GroupStatus::Resolved {
            store.act_on_group(id, GroupAct::Resolve, app.actor(selection.reason.clone())).await?;
        }
        app.out.note(&format!("group {id} is resolved"));
    }
    Ok(code)
}

/// Finds the groups with this text. Fails if there are fewer than two, unless it is a dry run.
async fn groups_with_text(store: &dyn Store, text: String, dry_run: bool) -> Result<Vec<Group>, CliError> {
    let page = PageRequest::first(limits::MERGE_MAX + 1);
    let groups =
        store.groups(GroupQuery { text: Some(text.clone()), page, ..GroupQuery::default() }).await?.items;
    if groups.len() < 2 && !dry_run {
        let what = format!("{} groups have the text {text:?}; a merge needs at least two", groups.len());
        return Err(CliError::new(ExitCode::NotFound, what).hint("redrive group list --text TEXT"));
    }
    Ok(groups)
}

/// Fetches the groups with these ids.
async fn groups_by_id(store: &dyn Store, ids: &[GroupId]) -> Result<Vec<Group>, CliError> {
    let mut groups = Vec::new();
    for id in ids {
        groups.push(store.group(*id).await?);
    }
    Ok(groups)
}

/// Shows the groups and asks for confirmation; returns `false` for a dry run.
async fn confirm_merge(app: &App, groups: &[Group], yes: bool, dry_run: bool) -> Result<bool, CliError> {
    if dry_run {
        app.out.all(groups)?;
        return Ok(false);
    }
    if !(app.out.quiet && yes) {
        eprint_line(&format!("to merge: {} groups:", groups.len()));
        app.out.sample(groups);
    }
    confirm(&format!("merge {} groups? This cannot be undone.", groups.len()), yes).await?;
    Ok(true)
}
