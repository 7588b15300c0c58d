//! `marker`: records moments such as a deploy, so that users can ask which groups are new since then.

use super::pages;
use crate::args::PageArgs;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::{Column, Show, ValueFormat, rules};
use clap::Args;
use redrive::core::group::{Group, GroupNews, GroupQuery, Marker};
use redrive::core::limits;
use redrive::core::masking::{MaskedView, Rules};
use redrive::core::query::PageRequest;
use redrive::core::store::Store;
use redrive::core::time::{Span, Time};

const EXAMPLES: &str = "\
Examples:
  redrive marker 'deploy 1.4.2'
  redrive marker --list
  redrive group list --new-since 'deploy 1.4.2'
  redrive group list --new-since last";

/// The flags of `marker`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MarkerArgs {
    /// A description of what happens now, such as 'deploy 1.4.2'
    #[arg(value_name = "TEXT", required_unless_present = "list", conflicts_with = "list")]
    text: Option<String>,
    /// List the markers, latest first
    #[arg(long)]
    list: bool,
    /// The reason, recorded in the audit trail
    #[arg(long, value_name = "TEXT", conflicts_with = "list")]
    reason: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

impl Show for Marker {
    const COLUMNS: &'static [Column] =
        &[Column::number("n"), Column::whole("at"), Column::text("by"), Column::main("text")];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        Some(MaskedView::masked(self, rules))
    }

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        vec![self.n.to_string(), fmt.time(self.at), self.by.clone(), self.text.clone()]
    }
}

/// Runs `marker`.
pub(crate) async fn run(app: &App, args: MarkerArgs) -> CommandResult {
    match args.text {
        Some(text) => {
            let store = app.open(Access::Create, Hold::Moment).await?;
            app.out.one(&store.mark(text, app.actor(args.reason)).await?)?;
            Ok(ExitCode::Ok)
        }
        None => {
            let store = app.open(Access::Existing, Hold::Moment).await?;
            pages(app, store, &args.page, async |store: &dyn Store, page| store.markers(page).await).await
        }
    }
}

/// Parses a time, a duration before now, `last`, the number of a marker, or its text into a time.
pub(super) async fn since(store: &dyn Store, text: &str) -> Result<Time, CliError> {
    if let Ok(at) = text.parse::<Time>() {
        return Ok(at);
    }
    if let Ok(ago) = text.parse::<Span>() {
        return Ok(store.info().await?.now.minus(ago));
    }
    let markers = store.markers(PageRequest::first(limits::PAGE_ITEMS_MAX)).await?.items;
    let found = match text {
        "last" => markers.first(),
        text => markers.iter().find(|marker| marker.text == text || marker.n.to_string() == text),
    };
    found.map(|marker| marker.at).ok_or_else(|| {
        let why = format!("{text:?} is neither a time, a duration nor a marker");
        CliError::new(ExitCode::NotFound, why).hint("redrive marker --list")
    })
}

/// Summarises what is new among all groups since the latest marker, with the marker's text masked.
pub(super) async fn news(store: &dyn Store) -> Result<GroupNews, CliError> {
    let mut groups: Vec<Group> = Vec::new();
    let mut page = PageRequest::first(limits::PAGE_ITEMS_MAX);
    loop {
        let found = store.groups(GroupQuery::from(page)).await?;
        groups.extend(found.items);
        match found.next {
            Some(next) => page = PageRequest { limit: Some(limits::PAGE_ITEMS_MAX), cursor: Some(next) },
            None => break,
        }
    }
    let marker = store.markers(PageRequest::first(1)).await?.items.pop();
    let marker = marker.map(|marker| MaskedView::masked(&marker, rules()));
    Ok(GroupNews::of(&groups, marker))
}
