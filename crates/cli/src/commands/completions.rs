//! `completions`: prints a shell completion script.

use crate::args::Cli;
use crate::connect::App;
use crate::exit_code::{CommandResult, ExitCode};
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

const EXAMPLES: &str = "\
Examples:
  redrive completions bash > ~/.local/share/bash-completion/completions/redrive
  redrive completions zsh > \"${fpath[1]}/_redrive\"
  redrive completions fish > ~/.config/fish/completions/redrive.fish";

/// The flags of `completions`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell to complete for
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Runs `completions`.
pub(crate) fn run(app: &App, args: &CompletionsArgs) -> CommandResult {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "redrive", &mut script);
    app.out.raw(&script)?;
    Ok(ExitCode::Ok)
}
