//! `audit`: lists the audit trail and verifies that it is complete.

use super::pages;
use crate::args::PageArgs;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::{Column, Show, ValueFormat};
use clap::{Args, Subcommand};
use redrive::core::audit::{AuditFilter, AuditReport, AuditRow};
use redrive::core::masking::{MaskedView, Rules};
use redrive::core::store::Store;
use redrive::core::time::TimeBound;

/// The commands under `audit`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// List recorded actions, latest first
    List {
        #[command(flatten)]
        which: AuditArgs,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Verify the whole audit chain and print its head; exit with 10 if it is broken
    Verify {
        /// A head noted earlier, which must still be in the chain
        #[arg(long, value_name = "HEAD", value_parser = head)]
        head: Option<String>,
    },
}

impl AuditCommand {
    /// Whether the command only reads.
    pub(crate) const fn is_read_only(&self) -> bool {
        matches!(self, Self::List { .. })
    }
}

/// Flags that select rows.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AuditArgs {
    /// Only this action, such as `resolve` or `reveal`
    #[arg(long, value_name = "ACT")]
    act: Option<String>,
    /// Only actions by this person or program
    #[arg(long = "by", value_name = "NAME")]
    by: Option<String>,
    /// Only actions on this target: an id, a queue or an operation
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
    /// Only actions since this time, or within this duration
    #[arg(long, value_name = "TIME|DURATION")]
    since: Option<TimeBound>,
    /// Only actions before this time, or longer ago than this duration
    #[arg(long, value_name = "TIME|DURATION")]
    until: Option<TimeBound>,
}

impl From<AuditArgs> for AuditFilter {
    fn from(args: AuditArgs) -> Self {
        let AuditArgs { act, by, target, since, until } = args;
        Self { act, by, target, since, until }
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
        Column::id("target"),
        Column::number("count").optional(2),
        Column::main("reason"),
        Column::text("filter").optional(3),
        Column::text("result").optional(4),
        Column::text("detail").optional(1),
    ];

    // The seal covers the row as written; what is shown has no secrets, such as those in a target's headers.
    fn masked(&self, rules: &Rules) -> Option<Self> {
        Some(MaskedView::masked(self, rules))
    }

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        let entry = &self.entry;
        vec![
            self.n.to_string(),
            fmt.time(entry.at),
            entry.actor.clone(),
            entry.act.clone(),
            entry.target.clone(),
            entry.count.to_string(),
            entry.reason.clone().unwrap_or_default(),
            entry.filter.clone().unwrap_or_default(),
            entry.result.clone().unwrap_or_default(),
            entry.detail.clone().unwrap_or_default(),
        ]
    }
}

impl Show for AuditReport {
    const COLUMNS: &'static [Column] =
        &[Column::number("rows"), Column::number("trimmed"), Column::whole("head"), Column::text("broken")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![
            self.rows.to_string(),
            self.trimmed.to_string(),
            self.head.clone(),
            self.broken.clone().unwrap_or_default(),
        ]
    }
}

/// Runs an `audit` command.
pub(crate) async fn run(app: &App, command: AuditCommand) -> CommandResult {
    let store = app.open(Access::Existing, Hold::Moment).await?;
    match command {
        AuditCommand::List { which, page } => {
            let (which, now) = (AuditFilter::from(which), store.info().await?.now);
            let fetch = async |store: &dyn Store, page| Ok(which.filter_page(store.audit(page).await?, now));
            pages(app, store, &page, fetch).await
        }
        AuditCommand::Verify { head } => {
            let report = store.audit_verify(head).await?;
            app.out.one(&report)?;
            match report.broken {
                None => Ok(ExitCode::Ok),
                Some(what) => {
                    Err(CliError::new(ExitCode::CheckFailed, format!("the audit trail is broken: {what}"))
                        .hint("keep a copy of the directory as it is now, and compare it with a backup"))
                }
            }
        }
    }
}
