//! `dlq diff`: shows what changed between two revisions of a letter.

use crate::args::RevealArgs;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::id_arg::IdArg;
use crate::output::{Column, Format, Show, ValueFormat, escape, rules};
use clap::Args;
use redrive::core::content_diff::{ContentDiff, RevisionSummary};
use redrive::core::disclosure::{Disclosed, Disclosure};
use redrive::core::ids::MessageId;
use redrive::core::masking::Rules;
use redrive::core::revision::{Content, Revision};
use serde::Serialize;

/// The flags of `dlq diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// The id of the message, or its last digits
    #[arg(value_name = "ID")]
    id: IdArg<MessageId>,
    /// The revision to compare from; 0 is the original
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u32,
    /// The revision to compare to [default: the current one]
    #[arg(long, value_name = "N")]
    to: Option<u32>,
    /// List the revisions instead
    #[arg(long, conflicts_with_all = ["from", "to"])]
    list: bool,
    #[command(flatten)]
    reveal: RevealArgs,
}

impl Show for RevisionSummary {
    const COLUMNS: &'static [Column] = &[
        Column::number("n"),
        Column::whole("at"),
        Column::text("by"),
        Column::number("bytes"),
        Column::whole("digest").optional(1),
        Column::main("reason"),
    ];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        Some(Self::masked(self, rules))
    }

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        vec![
            self.n.to_string(),
            fmt.time(self.at),
            self.by.clone(),
            self.bytes.to_string(),
            self.digest.clone(),
            self.reason.clone().unwrap_or_default(),
        ]
    }
}

/// The differences between two revisions.
#[derive(Serialize)]
struct Difference {
    id: MessageId,
    from: RevisionSummary,
    to: RevisionSummary,
    diff: String,
}

impl Show for Difference {
    const COLUMNS: &'static [Column] =
        &[Column::whole("id"), Column::number("from"), Column::number("to"), Column::text("diff")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![self.id.to_string(), self.from.n.to_string(), self.to.n.to_string(), self.diff.clone()]
    }
}

/// Runs `dlq diff`.
pub(crate) async fn run(app: &App, args: DiffArgs) -> CommandResult {
    let id = args.id.letter(app).await?;
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let mut revisions = store.revisions(id).await?;
    if args.list {
        let summaries: Vec<RevisionSummary> = revisions.iter().map(RevisionSummary::from).collect();
        app.out.all(&summaries)?;
        return Ok(ExitCode::Ok);
    }
    if args.reveal.reveal && !revisions.is_empty() {
        // Record the disclosure before showing anything.
        let shown = Disclosure::of(Disclosed::Payload, id);
        store.disclose(shown, app.actor(args.reveal.reason.clone())).await?;
        // A server masks what it has not disclosed, so only this reading is whole.
        revisions = store.revisions(id).await?;
    }
    let Some(present) = revisions.last() else {
        let what = format!("the content of dead letter {id} was erased, with all revisions");
        return Err(CliError::new(ExitCode::NotFound, what));
    };
    let find = |n: u32| {
        revisions.iter().find(|revision| revision.n == n).ok_or_else(|| {
            let what = format!("dead letter {id} has no revision {n}");
            CliError::new(ExitCode::NotFound, what).hint(format!("redrive dlq diff {id} --list"))
        })
    };
    let (from, to) = (find(args.from)?, find(args.to.unwrap_or(present.n))?);
    let names = (format!("revision {}", from.n), format!("revision {}", to.n));
    let rules = if args.reveal.reveal { &Rules::off() } else { rules() };
    let diff = changes(&from.content, &to.content, (&names.0, &names.1), rules);
    if app.out.format != Format::Table {
        let head = |revision: &Revision| RevisionSummary::from(revision).masked(rules);
        app.out.one(&Difference { id, from: head(from), to: head(to), diff })?;
    } else if diff.is_empty() {
        app.out.note("the revisions are the same");
    } else {
        app.out.raw(escape::lines(&diff).as_bytes())?;
    }
    Ok(ExitCode::Ok)
}

/// The differences between two masked contents; empty if there are none.
pub(super) fn changes(from: &Content, to: &Content, names: (&str, &str), rules: &Rules) -> String {
    let diff = ContentDiff::between(from, to, names, rules);
    if diff.masked_only {
        return "only masked parts changed; use --reveal to show them\n".to_owned();
    }
    diff.text
}
