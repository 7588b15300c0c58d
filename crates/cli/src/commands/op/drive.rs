//! Driving an operation from the command line: steps, a line of progress, and what an interruption means. The first
//! Ctrl-C detaches, and the operation stays as it is for whoever goes on with it; a second one, at once, cancels it.

use crate::connect::{App, Link};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::output::complain;
use crate::progress::Progress;
use redrive::core::ids::OperationId;
use redrive::core::operation::{Control, Operation, Stage};
use redrive::core::time::Span;
use std::time::Duration;

/// Until when to stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// All are sent, or taken back: nobody has to see to it any more.
    Sent,
    /// Every member has an outcome.
    Over,
}

/// The longest wait between two looks: somebody may have steered it meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How often to look at one that settles.
const SETTLING: Duration = Duration::from_millis(300);
/// A second Ctrl-C within this time cancels.
const TWICE_WITHIN: Duration = Duration::from_secs(2);

/// Drives an operation and shows how far it is; prints it in the end.
pub(crate) async fn drive(app: &App, store: &mut Link<'_>, id: OperationId, until: Until) -> Done {
    let interrupted = app.on_interrupt_drain();
    let mut operation = store.ask(async |store| store.operation(id).await).await?;
    let mut progress = Progress::new(&app.out, operation.act.name(), None);
    let mut told = (operation.stage, String::new());
    let mut nap = Duration::ZERO;
    loop {
        show(&mut progress, &operation);
        tell(app, &operation, &mut told);
        let stays = match until {
            Until::Sent => operation.stage.is_moving(),
            Until::Over => !operation.stage.is_over() && operation.stage != Stage::Paused,
        };
        if !stays {
            break;
        }
        // A timer takes a millisecond even when it is set to none.
        let rest = async {
            if !nap.is_zero() {
                tokio::time::sleep(nap).await;
            }
        };
        tokio::select! {
            biased;
            () = interrupted.notified() => {
                drop(progress);
                return detach(app, store, &operation, &interrupted).await;
            }
            () = rest => {}
        }
        let moving = operation.stage.is_moving();
        let step =
            store.ask(async |store| if moving { store.step(id).await } else { store.operation(id).await });
        let step = step
            .await
            .map_err(|error| CliError::from(error).hint(format!("`redrive op watch {id}` goes on with it")));
        operation = step?;
        nap = if operation.stage == Stage::Settling {
            SETTLING
        } else {
            operation.next_in.map_or(LOOK_AGAIN, Span::to_std).min(LOOK_AGAIN)
        };
    }
    drop(progress);
    finish(app, &operation)
}

fn show(progress: &mut Progress, operation: &Operation) {
    let (outcomes, members) = (&operation.outcomes, operation.members);
    if operation.stage == Stage::Freezing {
        progress.at(0, None);
    } else if operation.stage == Stage::Settling {
        progress.at(outcomes.ended(), Some(members));
    } else {
        progress.at(members.saturating_sub(outcomes.waiting), Some(members));
    }
}

/// Says what changed that a bar does not show: a new stage, and what holds it up.
fn tell(app: &App, operation: &Operation, told: &mut (Stage, String)) {
    if operation.stage != told.0 && operation.is_redrive() {
        let o = &operation.outcomes;
        let how = format!("{} sent, {} done, {} back", o.sent(), o.succeeded, o.failed_same + o.failed_other);
        app.out.note(&format!("{}: {how}", operation.stage));
    }
    told.0 = operation.stage;
    let held = operation.held_up.as_ref().map(|held| held.text.clone()).unwrap_or_default();
    if held != told.1 && !held.is_empty() {
        app.out.note(&format!("waiting: {held}"));
    }
    told.1 = held;
}

async fn detach(
    app: &App,
    store: &mut Link<'_>,
    operation: &Operation,
    interrupted: &tokio::sync::Notify,
) -> Done {
    let id = operation.id;
    complain(&format!(
        "detached from operation {id}, which is {}; press Ctrl-C again to cancel it",
        operation.stage
    ));
    let again = tokio::time::timeout(TWICE_WITHIN, interrupted.notified()).await.is_ok();
    if again {
        let actor = app.actor(Some("Ctrl-C".to_owned()));
        let cancelled = store.ask(async |s| s.control(id, Control::Cancel, actor.clone()).await).await?;
        app.out.one(&cancelled)?;
        return Err(CliError::new(ExitCode::Interrupted, format!("operation {id} was cancelled")));
    }
    let hint = format!("`redrive op watch {id}` goes on with it, `redrive op cancel {id}` stops it");
    Err(CliError::new(ExitCode::Interrupted, "interrupted").hint(hint))
}

/// Prints an operation as it was left, says what was left alone, and makes an exit code of it.
fn finish(app: &App, operation: &Operation) -> Done {
    app.out.one(operation)?;
    let (id, o) = (operation.id, &operation.outcomes);
    let left = o.skipped + o.conflict;
    if left > 0 {
        app.out.note(&format!(
            "{left} were left as they are; `redrive op members {id} --outcome skipped` says why"
        ));
    }
    if let Some(halt) = &operation.halt {
        app.out.note(&format!("paused by {}: {}", halt.by, halt.text));
        app.out.note(&format!(
            "`redrive op resume {id}` goes on, `redrive op undo {id}` pulls back what has not begun"
        ));
    }
    let clean = left + o.failed_same + o.failed_other == 0;
    let sent = matches!(operation.stage, Stage::Done | Stage::Settling);
    let well = (sent && clean) || operation.stage == Stage::Undone;
    Ok(if well { ExitCode::Ok } else { ExitCode::Partial })
}
