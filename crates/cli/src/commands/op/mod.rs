//! `op`: lists, watches and controls operations, the durable bulk actions on dead letters.

mod drive;
mod show;

pub(crate) use drive::{Until, drive};
pub(crate) use show::show_preview;

use super::pages;
use crate::args::PageArgs;
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold, Link};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::id_arg::IdArg;
use clap::{Args, Subcommand};
use redrive::core::error::StoreResult;
use redrive::core::ids::OperationId;
use redrive::core::operation::{Control, Member, MemberOutcome};
use redrive::core::query::{Page, PageRequest};
use redrive::core::store::Store;
use std::str::FromStr;

/// The commands under `op`.
#[derive(Debug, Subcommand)]
pub(crate) enum OpCommand {
    /// List operations, latest first
    List {
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show one operation: its stage, rollout settings and outcomes
    Show {
        /// The id of the operation, or its last digits
        #[arg(value_name = "ID")]
        id: IdArg<OperationId>,
    },
    /// Watch an operation until it ends, and drive it if no other process does
    Watch {
        /// The id of the operation, or its last digits
        #[arg(value_name = "ID")]
        id: IdArg<OperationId>,
    },
    /// Pause an operation
    Pause(ControlArgs),
    /// Resume a paused operation; if it paused because failures came back, it starts with a new canary
    Resume(ControlArgs),
    /// Stop an operation for good; what it has done stays done
    Cancel(ControlArgs),
    /// Undo an operation, as far as nothing has been leased or changed since
    Undo {
        #[command(flatten)]
        which: ControlArgs,
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
    },
    /// Change how many letters are sent per second
    Rate {
        /// The id of the operation, or its last digits
        #[arg(value_name = "ID")]
        id: IdArg<OperationId>,
        /// The rate, such as 50/s or 600/m, or `none` for no limit
        #[arg(value_name = "RATE")]
        rate: RateArg,
        /// The reason, recorded in the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// List the members of an operation and their outcomes
    Members {
        /// The id of the operation, or its last digits
        #[arg(value_name = "ID")]
        id: IdArg<OperationId>,
        /// Only members with this outcome, such as skipped or failed_same
        #[arg(long, value_name = "OUTCOME")]
        outcome: Option<MemberOutcome>,
        #[command(flatten)]
        page: PageArgs,
    },
}

impl OpCommand {
    /// Whether the command only reads.
    pub(crate) const fn is_read_only(&self) -> bool {
        matches!(self, Self::List { .. } | Self::Show { .. } | Self::Members { .. })
    }
}

/// The operation to control, and the reason.
#[derive(Args, Debug)]
pub(crate) struct ControlArgs {
    /// The id of the operation, or its last digits
    #[arg(value_name = "ID")]
    id: IdArg<OperationId>,
    /// The reason, recorded in the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// A whole number of members per second; `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RateArg(pub(crate) Option<u32>);

impl FromStr for RateArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self(None));
        }
        let wrong =
            || format!("{text:?} is not a rate such as 50/s, 600/m or 3600/h, of at least 1 per second");
        let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
        let seconds = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3_600,
            _ => return Err(wrong()),
        };
        match number.parse::<u32>().map(|number| number / seconds) {
            Ok(rate @ 1..) => Ok(Self(Some(rate))),
            Ok(0) | Err(_) => Err(wrong()),
        }
    }
}

/// Runs an `op` command.
pub(crate) async fn run(app: &App, command: OpCommand) -> CommandResult {
    match command {
        OpCommand::List { page } => {
            let store = app.open(Access::Existing, Hold::Moment).await?;
            pages(app, store, &page, async |store, page| store.operations(page).await).await
        }
        OpCommand::Show { id } => {
            let (id, store) = open_operation(app, id, Hold::Moment).await?;
            app.out.one(&store.operation(id).await?)?;
            Ok(ExitCode::Ok)
        }
        OpCommand::Watch { id } => {
            let (id, mut store) = open_operation(app, id, Hold::Long).await?;
            drive(app, &mut store, id, Until::Over).await
        }
        OpCommand::Pause(args) => control(app, args, Control::Pause).await.map(|_| ExitCode::Ok),
        OpCommand::Resume(args) => {
            let id = control(app, args, Control::Resume).await?;
            app.out.note(&format!(
                "it continues in a worker or server that holds the data directory, or with `redrive op watch {id}`"
            ));
            Ok(ExitCode::Ok)
        }
        OpCommand::Cancel(args) => control(app, args, Control::Cancel).await.map(|_| ExitCode::Ok),
        OpCommand::Rate { id, rate, reason } => {
            control(app, ControlArgs { id, reason }, Control::Rate(rate.0)).await.map(|_| ExitCode::Ok)
        }
        OpCommand::Undo { which: ControlArgs { id, reason }, yes } => {
            let (id, mut store) = open_operation(app, id, Hold::Long).await?;
            let operation = store.operation(id).await?;
            let outcomes = &operation.outcomes;
            let undoable = if operation.is_redrive() { outcomes.running } else { outcomes.succeeded };
            if undoable > 1 {
                let act = operation.act.name();
                confirm(&format!("undo the {act} of up to {undoable} dead letters?"), yes).await?;
            }
            let actor = app.actor(reason);
            store.control(id, Control::Undo, actor).await?;
            drive(app, &mut store, id, Until::Sent).await
        }
        OpCommand::Members { id, outcome, page } => {
            let (id, store) = open_operation(app, id, Hold::Moment).await?;
            pages(app, store, &page, async |store, page| members(store, id, outcome, page).await).await
        }
    }
}

/// Resolves the id of an operation and opens the store.
async fn open_operation(
    app: &App,
    id: IdArg<OperationId>,
    hold: Hold,
) -> Result<(OperationId, Link<'_>), CliError> {
    let id = id.operation(app).await?;
    Ok((id, app.open(Access::Existing, hold).await?))
}

/// Controls an operation, prints its new state, and returns its id.
async fn control(app: &App, args: ControlArgs, control: Control) -> Result<OperationId, CliError> {
    let (id, store) = open_operation(app, args.id, Hold::Moment).await?;
    let operation = store.control(id, control, app.actor(args.reason)).await?;
    app.out.one(&operation)?;
    Ok(id)
}

/// Fetches a page of members. Reads on until the page is full of members with the wanted outcome.
async fn members(
    store: &dyn Store,
    id: OperationId,
    outcome: Option<MemberOutcome>,
    mut request: PageRequest,
) -> StoreResult<Page<Member>> {
    let wanted = request.limit();
    let mut items = Vec::new();
    loop {
        request.limit = Some(wanted - items.len());
        let page = store.members(id, request.clone()).await?;
        let wanted_outcome = |member: &Member| outcome.is_none_or(|outcome| member.outcome == outcome);
        items.extend(page.items.into_iter().filter(wanted_outcome));
        match page.next {
            Some(next) if items.len() < wanted => request.cursor = Some(next),
            next => return Ok(Page { next, ..Page::last(items) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_whole_and_per_second() {
        for (text, rate) in [("50", Some(50)), ("50/s", Some(50)), ("600/m", Some(10)), ("7200/h", Some(2))] {
            assert_eq!(text.parse(), Ok(RateArg(rate)), "{text}");
        }
        assert_eq!("none".parse(), Ok(RateArg(None)));
        for text in ["0", "0/s", "59/m", "x", "5/d", "-1", ""] {
            assert!(text.parse::<RateArg>().is_err(), "{text}");
        }
    }
}
