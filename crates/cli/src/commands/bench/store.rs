//! The store suite. Not measured yet: it says so instead of printing numbers that mean nothing.

use super::BenchArgs;
use crate::connect::App;
use crate::exit_code::{CliError, Done, ExitCode};

/// Runs it.
#[expect(clippy::unused_async, reason = "the suite that measures needs it")]
pub(crate) async fn run(_: &App, args: BenchArgs) -> Done {
    Err(CliError::new(ExitCode::Error, format!("unknown suite: {:?} has no measurements yet", args.suite)))
}
