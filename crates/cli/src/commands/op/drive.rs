//! Drives an operation from the command line: executes its steps, shows its progress, and handles interrupts. The
//! first Ctrl-C detaches and leaves the operation for another process; a second one shortly after cancels it.

use crate::connect::{App, Link};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::eprint_line;
use crate::progress::Progress;
use redrive::core::ids::OperationId;
use redrive::core::operation::{Control, Operation, Stage};
use redrive::core::time::Span;
use std::time::Duration;

/// When to stop driving an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// All letters are sent or undone, so that nobody has to drive it any more.
    Sent,
    /// Every member has an outcome.
    Over,
}

/// The longest wait between two steps, because another process may have changed the operation.
const POLL_EVERY_MAX: Duration = Duration::from_secs(1);
/// How often to poll an operation that is settling.
const SETTLING: Duration = Duration::from_millis(300);
/// A second Ctrl-C within this time cancels the operation.
const TWICE_WITHIN: Duration = Duration::from_secs(2);

/// Drives an operation, shows its progress, and prints it at the end.
pub(crate) async fn drive(app: &App, store: &mut Link<'_>, id: OperationId, until: Until) -> CommandResult {
    let interrupted = app.interrupt_notifier();
    let mut operation = store.call(async |store| store.operation(id).await).await?;
    let mut progress = Progress::new(&app.out, operation.act.name(), None);
    let mut noted = (operation.stage, String::new());
    let mut pause = Duration::ZERO;
    loop {
        show(&mut progress, &operation);
        note_changes(app, &operation, &mut noted);
        let continues = match until {
            Until::Sent => operation.stage.is_moving(),
            Until::Over => !operation.stage.is_over() && operation.stage != Stage::Paused,
        };
        if !continues {
            break;
        }
        // Even a zero sleep costs a millisecond.
        let rest = async {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
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
            store.call(async |store| if moving { store.step(id).await } else { store.operation(id).await });
        let step = step.await.map_err(|error| {
            CliError::from(error).hint(format!("run `redrive op watch {id}` to continue it"))
        });
        operation = step?;
        pause = if operation.stage == Stage::Settling {
            SETTLING
        } else {
            operation.next_in.map_or(POLL_EVERY_MAX, Span::to_std).min(POLL_EVERY_MAX)
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

/// Notes changes that a progress bar does not show: a new stage, and what holds the operation up.
fn note_changes(app: &App, operation: &Operation, noted: &mut (Stage, String)) {
    if operation.stage != noted.0 && operation.is_redrive() {
        let o = &operation.outcomes;
        let how = format!("{} sent, {} done, {} back", o.sent(), o.succeeded, o.failed_same + o.failed_other);
        app.out.note(&format!("{}: {how}", operation.stage));
    }
    noted.0 = operation.stage;
    let held = operation.delayed.as_ref().map(|held| held.text.clone()).unwrap_or_default();
    if held != noted.1 && !held.is_empty() {
        app.out.note(&format!("waiting: {held}"));
    }
    noted.1 = held;
}

async fn detach(
    app: &App,
    store: &mut Link<'_>,
    operation: &Operation,
    interrupted: &tokio::sync::Notify,
) -> CommandResult {
    let id = operation.id;
    eprint_line(&format!(
        "detached from operation {id}, which is {}; press Ctrl-C again to cancel it",
        operation.stage
    ));
    let again = tokio::time::timeout(TWICE_WITHIN, interrupted.notified()).await.is_ok();
    if again {
        let actor = app.actor(Some("Ctrl-C".to_owned()));
        let cancelled = store.call(async |s| s.control(id, Control::Cancel, actor.clone()).await).await?;
        app.out.one(&cancelled)?;
        return Err(CliError::new(ExitCode::Interrupted, format!("operation {id} was cancelled")));
    }
    let hint = format!("run `redrive op watch {id}` to continue it, or `redrive op cancel {id}` to stop it");
    Err(CliError::new(ExitCode::Interrupted, "interrupted").hint(hint))
}

/// Prints the final state of an operation and notes about it, and returns the exit code.
fn finish(app: &App, operation: &Operation) -> CommandResult {
    app.out.one(operation)?;
    let (id, o) = (operation.id, &operation.outcomes);
    let left = o.skipped + o.conflict;
    if left > 0 {
        app.out.note(&format!(
            "{left} were left as they are; run `redrive op members {id} --outcome skipped` to see why"
        ));
    }
    if let Some(halt) = &operation.halt {
        app.out.note(&format!("paused by {}: {}", halt.by, halt.text));
        app.out.note(&format!(
            "run `redrive op resume {id}` to continue, or `redrive op undo {id}` to take back what is not leased yet"
        ));
    }
    let clean = left + o.failed_same + o.failed_other == 0;
    let sent = matches!(operation.stage, Stage::Done | Stage::Settling);
    let succeeded = (sent && clean) || operation.stage == Stage::Undone;
    Ok(if succeeded { ExitCode::Ok } else { ExitCode::Partial })
}
