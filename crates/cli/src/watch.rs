//! `--watch`: runs a command that only reads again and again, and replaces the previous output on a terminal. It stops
//! on errors, except when the store is unreachable, which it reports and retries.

use crate::args::{self, Command};
use crate::commands;
use crate::connect::App;
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::report;
use redrive::core::time::Span;

/// The shortest and longest interval.
const EVERY_MIN: Span = Span::from_millis(100);
const EVERY_MAX: Span = Span::from_days(1);

/// Runs a command once, or repeatedly if an interval is given.
pub(crate) async fn run(app: &App, command: Command, every: Option<Span>) -> CommandResult {
    let Some(every) = every else { return commands::run(app, command).await };
    if !command.is_read_only() {
        return Err(CliError::usage(
            "--watch: only commands that look at data without changing it can be repeated",
        ));
    }
    if every < EVERY_MIN || every > EVERY_MAX {
        return Err(CliError::usage(format!("--watch: from {EVERY_MIN} to {EVERY_MAX} is allowed")));
    }
    app.out.wipe_next();
    check_result(app, commands::run(app, command).await)?;
    loop {
        tokio::time::sleep(every.to_std()).await;
        // Parse the arguments again: relative times need a new base, and the configuration may have changed.
        let cli = args::parse().map_err(|_| CliError::usage("--watch: the command line changed"))?;
        let app = commands::load_app(cli.global, &cli.command)?;
        app.out.wipe_next();
        check_result(&app, commands::run(&app, cli.command).await)?;
    }
}

/// Returns an error if watching must stop.
fn check_result(app: &App, done: CommandResult) -> Result<(), CliError> {
    // Write nothing, so that an empty result also clears the previous output.
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
