//! `group`: failures by cause, with exact counts.

use super::pages;
use crate::args::PageArgs;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::output::{Column, Look, Sheet, Show};
use crate::policy_change::Maybe;
use clap::Subcommand;
use redrive::core::failure::Category;
use redrive::core::group::Group;
use redrive::core::ids::{GroupId, QueueName};
use redrive::core::query::{PageRequest, Query};
use redrive::core::signature::{Variable, variables};
use redrive::core::store::Store;
use serde::Serialize;

/// The commands under `group`.
#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List groups, most open dead letters first
    List {
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show one group; its letters are `redrive dlq list group:ID`
    Show {
        /// The group
        #[arg(value_name = "ID")]
        id: GroupId,
        /// How many values to show of each place that varies, from the latest dead letters
        #[arg(long, value_name = "N", default_value_t = 3)]
        top: usize,
    },
    /// Say what kind of failure a group is; it goes before what statistics say
    Label {
        /// The group
        #[arg(value_name = "ID")]
        id: GroupId,
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
        #[arg(value_name = "ID", required = true, num_args = 2..)]
        ids: Vec<GroupId>,
        /// Why, for the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

impl GroupCommand {
    /// Whether it only looks.
    pub(crate) const fn looks(&self) -> bool {
        matches!(self, Self::List { .. } | Self::Show { .. })
    }
}

/// Dead letters that are looked at for the values of a group's variables.
const SAMPLE: usize = 1_000;

/// A group with what stood in the places that vary.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    group: Group,
    variables: Vec<Variable>,
}

impl Show for Shown {
    const COLUMNS: &'static [Column] = Group::COLUMNS;

    fn cells(&self, look: &Look) -> Vec<String> {
        self.group.cells(look)
    }

    fn sheet(&self, look: &Look) -> Sheet {
        let lines: Vec<String> = self.variables.iter().map(variable_line).collect();
        let sheet = self.group.sheet(look);
        if lines.is_empty() { sheet } else { sheet.block("values", lines.join("\n")) }
    }
}

fn variable_line(variable: &Variable) -> String {
    let top: Vec<String> = variable.top.iter().map(|(value, n)| format!("{value} ({n})")).collect();
    let more = variable.distinct.saturating_sub(top.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("word {} {}: {}{more}", variable.place, variable.shown, top.join(", "))
}

/// The most frequent values of a group's variables, among its latest dead letters.
async fn with_values(store: &dyn Store, group: Group, top: usize) -> Result<Shown, CliError> {
    let filter = super::filter(&format!("group:{}", group.id))?;
    let page = PageRequest { limit: Some(SAMPLE), cursor: None };
    let letters = if top == 0 { Vec::new() } else { store.letters(Query { filter, page }).await?.items };
    let messages = letters.iter().map(|letter| letter.error.message.as_str());
    let variables = variables(&group.template, messages, top);
    Ok(Shown { group, variables })
}

impl Show for Group {
    const COLUMNS: &'static [Column] = &[
        Column::whole("id"),
        Column::number("open"),
        Column::number("total"),
        Column::number("failures"),
        Column::whole("status"),
        Column::whole("last_seen"),
        Column::text("queues"),
        Column::text("error_type"),
        Column::text("template"),
    ];

    fn cells(&self, look: &Look) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.open.to_string(),
            self.total.to_string(),
            self.failures.to_string(),
            self.status.to_string(),
            look.time(self.last_seen),
            queues(self),
            self.error_type.clone(),
            self.template.clone(),
        ]
    }

    const MORE: &'static [Column] =
        &[Column::whole("first_seen"), Column::text("kinds"), Column::text("owner")];

    fn more(&self, look: &Look) -> Vec<String> {
        let kinds: Vec<&str> = self.kinds.iter().map(String::as_str).collect();
        vec![look.time(self.first_seen), kinds.join(", "), self.owner.clone().unwrap_or_default()]
    }

    fn sheet(&self, look: &Look) -> Sheet {
        let kinds: Vec<&str> = self.kinds.iter().map(String::as_str).collect();
        Sheet::default()
            .field("id", self.id)
            .field("status", self.status)
            .field("error_type", &self.error_type)
            .field("open", self.open)
            .field("total", self.total)
            .field("failures", self.failures)
            .field("first_seen", look.time(self.first_seen))
            .field("last_seen", look.time(self.last_seen))
            .field("queues", queues(self))
            .field("kinds", kinds.join(", "))
            .field("owner", self.owner.clone().unwrap_or_default())
            .field("note", self.note.clone().unwrap_or_default())
            .block("template", &self.template)
    }
}

fn queues(group: &Group) -> String {
    group.queues.iter().map(QueueName::as_str).collect::<Vec<_>>().join(", ")
}

/// Runs one of them.
pub(crate) async fn run(app: &App, command: GroupCommand) -> Done {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    match command {
        GroupCommand::List { page } => {
            pages(app, store, &page, async |store: &dyn Store, page| store.groups(page).await).await
        }
        GroupCommand::Label { id, category, reason } => {
            app.out.one(&store.label_group(id, category.into_option(), app.actor(reason)).await?)?;
            Ok(ExitCode::Ok)
        }
        GroupCommand::Merge { ids, reason } => {
            let merged = store.merge_groups(ids, app.actor(reason)).await?;
            app.out.one(&merged)?;
            Ok(ExitCode::Ok)
        }
        GroupCommand::Show { id, top } => {
            let group = store.group(id).await?;
            app.out.one(&with_values(&*store, group, top).await?)?;
            app.out.note(&format!("its letters: redrive dlq list group:{id}"));
            Ok(ExitCode::Ok)
        }
    }
}
