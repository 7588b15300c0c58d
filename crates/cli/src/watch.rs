//! `--watch`: a command that only looks, run again and again, each picture in the place of the one before. It stops
//! for errors, except that nobody answers: that may pass, and is said meanwhile.

use crate::args::{self, Command};
use crate::commands;
use crate::connect::App;
use crate::exit_code::{CliError, Done, ExitCode};
use crate::output::report;
use redrive::core::time::Span;

/// How often at most, and at least.
const EVERY_MIN: Span = Span::from_millis(100);
const EVERY_MAX: Span = Span::from_days(1);

/// Runs a command: once, or as often as is asked for.
pub(crate) async fn run(app: &App, command: Command, every: Option<Span>) -> Done {
    let Some(every) = every else { return commands::run(app, command).await };
    if !command.looks() {
        return Err(CliError::usage("--watch: only commands that look can be run again and again"));
    }
    if every < EVERY_MIN || every > EVERY_MAX {
        return Err(CliError::usage(format!("--watch: from {EVERY_MIN} to {EVERY_MAX}")));
    }
    app.out.wipe_next();
    go_on(app, commands::run(app, command).await)?;
    loop {
        tokio::time::sleep(every.to_std()).await;
        // The same words again: times are told from a new now, and whatever the configuration says by then holds.
        let cli = args::parse().map_err(|_| CliError::usage("--watch: the command line changed"))?;
        let app = commands::surroundings(cli.global, &cli.command)?;
        app.out.wipe_next();
        go_on(&app, commands::run(&app, cli.command).await)?;
    }
}

/// Ends the watching when there is no point in going on.
fn go_on(app: &App, done: Done) -> Result<(), CliError> {
    // A picture of nothing takes the place of the one before, too.
    app.out.raw(b"")?;
    match done {
        Ok(_) => Ok(()),
        Err(error) if error.code == ExitCode::Unreachable => {
            report(&error);
            Ok(())
        }
        Err(error) => Err(error),
    }
}
