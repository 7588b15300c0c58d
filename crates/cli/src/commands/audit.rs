//! `audit`: who did what, and whether the trail is whole.

use super::pages;
use crate::args::PageArgs;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::output::{Column, Look, Show};
use clap::{Args, Subcommand};
use redrive::core::audit::{AuditEntry, AuditReport, AuditRow};
use redrive::core::masking::Rules;
use redrive::core::query::Page;
use redrive::core::store::Store;
use redrive::core::time::{Span, Time};

/// The commands under `audit`.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// List acts, latest first
    List {
        #[command(flatten)]
        which: Which,
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

/// Which acts.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Which {
    /// Only this act, such as `resolve` or `reveal`
    #[arg(long, value_name = "ACT")]
    act: Option<String>,
    /// Only by this person or program
    #[arg(long = "by", value_name = "NAME")]
    by: Option<String>,
    /// Only on this: an id, a queue, an operation
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
    /// Only since then: a time, or how long ago
    #[arg(long, value_name = "TIME|DURATION", value_parser = moment)]
    since: Option<Moment>,
    /// Only before then: a time, or how long ago
    #[arg(long, value_name = "TIME|DURATION", value_parser = moment)]
    until: Option<Moment>,
}

/// A time, or how long ago.
#[derive(Clone, Copy, Debug)]
enum Moment {
    At(Time),
    Ago(Span),
}

fn moment(text: &str) -> Result<Moment, String> {
    let ago = || text.parse().map(Moment::Ago).map_err(|_| ());
    text.parse()
        .map(Moment::At)
        .or_else(|_: redrive::core::time::TimeError| ago())
        .map_err(|()| "neither a time such as 2026-01-31T12:00:00Z nor a duration such as 2h".to_owned())
}

impl Moment {
    fn at(self, now: Time) -> Time {
        match self {
            Self::At(at) => at,
            Self::Ago(span) => now.minus(span),
        }
    }
}

impl Which {
    /// The rows of a page that are wanted. Rows come latest first: none that is older than `since` is looked for.
    fn of(&self, page: Page<AuditRow>, now: Time) -> Page<AuditRow> {
        let (since, until) = (self.since.map(|m| m.at(now)), self.until.map(|m| m.at(now)));
        let over = page.items.last().is_some_and(|row| since.is_some_and(|since| row.entry.at < since));
        let is =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let wanted = |row: &AuditRow| {
            let entry = &row.entry;
            is(&self.act, &entry.act)
                && is(&self.by, &entry.actor)
                && is(&self.target, &entry.target)
                && since.is_none_or(|since| entry.at >= since)
                && until.is_none_or(|until| entry.at < until)
        };
        let next = page.next.filter(|_| !over);
        Page { next, ..Page::last(page.items.into_iter().filter(wanted).collect()) }
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

    // What is sealed is what was written; what is shown has no secrets, such as those of a target's headers.
    fn masked(&self, rules: &Rules) -> Option<Self> {
        let text = |text: &Option<String>| text.as_ref().map(|text| rules.mask_text(text).into_owned());
        let entry = AuditEntry {
            target: rules.mask_text(&self.entry.target).into_owned(),
            reason: text(&self.entry.reason),
            detail: text(&self.entry.detail),
            filter: text(&self.entry.filter),
            ..self.entry.clone()
        };
        Some(Self { n: self.n, entry, seal: self.seal.clone() })
    }

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
            entry.filter.clone().unwrap_or_default(),
            entry.result.clone().unwrap_or_default(),
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
        AuditCommand::List { which, page } => {
            let now = store.info().await?.now;
            let fetch = async |store: &dyn Store, page| Ok(which.of(store.audit(page).await?, now));
            pages(app, store, &page, fetch).await
        }
        AuditCommand::Verify { head } => {
            let report = store.audit_verify(head).await?;
            app.out.one(&report)?;
            match report.broken {
                None => Ok(ExitCode::Ok),
                Some(what) => {
                    Err(CliError::new(ExitCode::CheckFailed, format!("the audit trail is broken: {what}"))
                        .hint("keep a copy of the directory as it is, and compare it with a backup"))
                }
            }
        }
    }
}
