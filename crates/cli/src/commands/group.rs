//! `group`: failures by cause, with exact counts.

use super::pages;
use crate::args::PageArgs;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{Done, ExitCode};
use crate::output::{Column, Look, Sheet, Show};
use clap::Subcommand;
use redrive::core::group::Group;
use redrive::core::ids::{GroupId, QueueName};
use redrive::core::store::Store;

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
    },
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
        GroupCommand::Show { id } => {
            app.out.one(&store.group(id).await?)?;
            app.out.note(&format!("its letters: redrive dlq list group:{id}"));
            Ok(ExitCode::Ok)
        }
    }
}
