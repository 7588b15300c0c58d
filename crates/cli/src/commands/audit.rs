//! `audit`: who did what, and whether the trail is whole.

use super::pages;
use crate::args::PageArgs;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::output::{Column, Look, Show};
use clap::Subcommand;
use redrive::core::audit::{AuditReport, AuditRow};
use redrive::core::store::Store;

/// The commands under `audit`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// List acts, latest first
    List {
        #[command(flatten)]
        page: PageArgs,
    },
    /// Check the whole chain and print its head; exit with 10 when it is broken
    Verify {
        /// A head noted earlier: it must still be in the chain
        #[arg(long, value_name = "HEAD", value_parser = head)]
        head: Option<String>,
    },
}

impl AuditCommand {
    /// Whether it only looks.
    pub(crate) const fn looks(&self) -> bool {
        matches!(self, Self::List { .. })
    }
}

fn head(text: &str) -> Result<String, String> {
    if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(text.to_ascii_lowercase());
    }
    Err("not a head: 64 hexadecimal digits, as printed by `audit verify`".into())
}

impl Show for AuditRow {
    const COLUMNS: &'static [Column] = &[
        Column::number("n"),
        Column::whole("at"),
        Column::text("actor"),
        Column::whole("act"),
        Column::whole("target"),
        Column::number("count"),
        Column::text("reason"),
        Column::text("detail"),
    ];

    fn cells(&self, look: &Look) -> Vec<String> {
        let entry = &self.entry;
        vec![
            self.n.to_string(),
            look.time(entry.at),
            entry.actor.clone(),
            entry.act.clone(),
            entry.target.clone(),
            entry.count.to_string(),
            entry.reason.clone().unwrap_or_default(),
            entry.detail.clone().unwrap_or_default(),
        ]
    }
}

impl Show for AuditReport {
    const COLUMNS: &'static [Column] =
        &[Column::number("rows"), Column::number("trimmed"), Column::whole("head"), Column::text("broken")];

    fn cells(&self, _: &Look) -> Vec<String> {
        vec![
            self.rows.to_string(),
            self.trimmed.to_string(),
            self.head.clone(),
            self.broken.clone().unwrap_or_default(),
        ]
    }
}

/// Runs one of them.
pub(crate) async fn run(app: &App, command: AuditCommand) -> Done {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    match command {
        AuditCommand::List { page } => {
            pages(app, store, &page, async |store: &dyn Store, page| store.audit(page).await).await
        }
        AuditCommand::Verify { head } => {
            let report = store.audit_verify(head).await?;
            app.out.one(&report)?;
            match report.broken {
                None => Ok(ExitCode::Ok),
                Some(what) => {
                    Err(CliError::new(ExitCode::CheckFailed, format!("the audit trail is broken: {what}"))
                        .hint("keep the directory as it is, and compare it with a backup"))
                }
            }
        }
    }
}
