//! `op`: operations, the durable bulk acts. Look at them, watch them, steer them.

mod drive;
mod shown;

pub(crate) use drive::{Until, drive};
pub(crate) use shown::show_preview;

use super::pages;
use crate::args::PageArgs;
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold, Link};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::given::Given;
use clap::{Args, Subcommand};
use redrive::core::error::Outcome;
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
    /// Show one operation: its stage, pace and what became of its members
    Show {
        /// The operation: its id, or the last digits of it
        #[arg(value_name = "ID")]
        id: Given<OperationId>,
    },
    /// Watch an operation to its end, and drive it if nobody else does
    Watch {
        /// The operation: its id, or the last digits of it
        #[arg(value_name = "ID")]
        id: Given<OperationId>,
    },
    /// Halt an operation
    Pause(SteerArgs),
    /// Let a paused operation go on; after a halt because failures came back, with a canary anew
    Resume(SteerArgs),
    /// Stop an operation for good; what was done stays done
    Cancel(SteerArgs),
    /// Take an operation back: what has not begun, or has not been touched since
    Undo {
        #[command(flatten)]
        which: SteerArgs,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Change how many are sent per second
    Rate {
        /// The operation: its id, or the last digits of it
        #[arg(value_name = "ID")]
        id: Given<OperationId>,
        /// Such as 50/s or 600/m; `none` for no limit
        #[arg(value_name = "RATE")]
        rate: RateArg,
        /// Why, for the audit trail
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// List the members of an operation and what became of each
    Members {
        /// The operation: its id, or the last digits of it
        #[arg(value_name = "ID")]
        id: Given<OperationId>,
        /// Only those with this outcome, such as skipped or failed_same
        #[arg(long, value_name = "OUTCOME")]
        outcome: Option<MemberOutcome>,
        #[command(flatten)]
        page: PageArgs,
    },
}

impl OpCommand {
    /// Whether it only looks.
    pub(crate) const fn looks(&self) -> bool {
        matches!(self, Self::List { .. } | Self::Show { .. } | Self::Members { .. })
    }
}

/// Which operation, and why.
#[derive(Args, Debug)]
pub(crate) struct SteerArgs {
    /// The operation: its id, or the last digits of it
    #[arg(value_name = "ID")]
    id: Given<OperationId>,
    /// Why, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Members per second, whole; nothing is no limit.
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

/// Runs one of them.
pub(crate) async fn run(app: &App, command: OpCommand) -> Done {
    match command {
        OpCommand::List { page } => {
            let store = app.open(Access::Existing, Hold::Moment).await?;
            pages(app, store, &page, async |store, page| store.operations(page).await).await
        }
        OpCommand::Show { id } => {
            let (id, store) = named(app, id, Hold::Moment).await?;
            app.out.one(&store.operation(id).await?)?;
            Ok(ExitCode::Ok)
        }
        OpCommand::Watch { id } => {
            let (id, mut store) = named(app, id, Hold::Long).await?;
            drive(app, &mut store, id, Until::Over).await
        }
        OpCommand::Pause(args) => steer(app, args, Control::Pause).await.map(|_| ExitCode::Ok),
        OpCommand::Resume(args) => {
            let id = steer(app, args, Control::Resume).await?;
            app.out.note(&format!(
                "a worker or server that holds the data goes on with it, and so does `redrive op watch {id}`"
            ));
            Ok(ExitCode::Ok)
        }
        OpCommand::Cancel(args) => steer(app, args, Control::Cancel).await.map(|_| ExitCode::Ok),
        OpCommand::Rate { id, rate, reason } => {
            steer(app, SteerArgs { id, reason }, Control::Rate(rate.0)).await.map(|_| ExitCode::Ok)
        }
        OpCommand::Undo { which: SteerArgs { id, reason }, yes } => {
            let (id, mut store) = named(app, id, Hold::Long).await?;
            let operation = store.operation(id).await?;
            let outcomes = &operation.outcomes;
            let able = if operation.is_redrive() { outcomes.running } else { outcomes.succeeded };
            if able > 1 {
                let act = operation.act.name();
                confirm(&format!("take back to {act} what still can be of {able} dead letters?"), yes)
                    .await?;
            }
            let actor = app.actor(reason);
            store.control(id, Control::Undo, actor).await?;
            drive(app, &mut store, id, Until::Sent).await
        }
        OpCommand::Members { id, outcome, page } => {
            let (id, store) = named(app, id, Hold::Moment).await?;
            pages(app, store, &page, async |store, page| members(store, id, outcome, page).await).await
        }
    }
}

/// The operation that is meant, and the store it is in.
async fn named(
    app: &App,
    given: Given<OperationId>,
    hold: Hold,
) -> Result<(OperationId, Link<'_>), CliError> {
    let id = given.operation(app).await?;
    Ok((id, app.open(Access::Existing, hold).await?))
}

/// Steers an operation, shows it as it is now, and says which one it was.
async fn steer(app: &App, args: SteerArgs, control: Control) -> Result<OperationId, CliError> {
    let (id, store) = named(app, args.id, Hold::Moment).await?;
    let operation = store.control(id, control, app.actor(args.reason)).await?;
    app.out.one(&operation)?;
    Ok(id)
}

/// A page of members, looking on for those that are wanted.
async fn members(
    store: &dyn Store,
    id: OperationId,
    outcome: Option<MemberOutcome>,
    mut request: PageRequest,
) -> Outcome<Page<Member>> {
    let wanted = request.limit();
    let mut items = Vec::new();
    loop {
        request.limit = Some(wanted - items.len());
        let page = store.members(id, request.clone()).await?;
        let of_it = |member: &Member| outcome.is_none_or(|outcome| member.outcome == outcome);
        items.extend(page.items.into_iter().filter(of_it));
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
