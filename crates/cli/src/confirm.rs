//! Asks for confirmation before changing more than one item. Without a terminal nobody can answer, so the command is
//! refused unless `--yes` is given.

use crate::exit_code::{CliError, ExitCode};
use std::io::{self, BufRead, IsTerminal as _, Write};

/// Asks for confirmation; an error means no. Ctrl-C interrupts the question.
pub(crate) async fn confirm(question: &str, yes: bool) -> Result<(), CliError> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(CliError::new(
            ExitCode::Refused,
            format!("not confirmed, and there is no terminal to ask on: {question}"),
        )
        .hint("check with --dry-run, then add --yes"));
    }
    let question = question.to_owned();
    // Do not lock stderr while waiting, because an interrupt must be able to print to it.
    let asking = move || ask(&question, &mut io::stdin().lock(), &mut io::stderr());
    tokio::task::spawn_blocking(asking).await.unwrap_or_else(|_| Err(refused()))
}

fn refused() -> CliError {
    CliError::new(ExitCode::Refused, "not confirmed; nothing was changed")
}

fn ask(question: &str, answers: &mut impl BufRead, prompt: &mut impl Write) -> Result<(), CliError> {
    let mut answer = String::new();
    let asked = write!(prompt, "{question} [y/N] ").and_then(|()| prompt.flush());
    asked.and_then(|()| answers.read_line(&mut answer)).map_err(|_| refused())?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for (answer, agreed) in
            [("y\n", true), ("YES\n", true), ("n\n", false), ("\n", false), ("", false), ("yo\n", false)]
        {
            let mut prompt = Vec::new();
            let asked = ask("retry 3 dead letters?", &mut answer.as_bytes(), &mut prompt);
            assert_eq!(asked.is_ok(), agreed, "{answer:?}");
            assert_eq!(prompt, b"retry 3 dead letters? [y/N] ");
            if let Err(error) = asked {
                assert_eq!(error.code, ExitCode::Refused);
            }
        }
    }
}
