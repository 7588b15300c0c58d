//! Runs a command per dead letter and reads from its exit code what is to become of the letter: 0 resolved, 75 back to
//! work, 65 a person must look. Any other end is the consumer's own failure and changes nothing about the letter.

use super::command::{EXIT_DEAD_LETTER, EXIT_LATER, last_words, message_variables, payload_file, prepared};
use super::process::{Ended, Finished, NotStarted};
use crate::consumer::{Disposition, LetterHandler};
use crate::handler::HandlerError;
use async_trait::async_trait;
use redrive_core::dead_letter::DeadLetter;
use redrive_core::error::Refusal;
use redrive_core::target::{CommandTarget, PayloadBy, Target};
use tempfile::NamedTempFile;
use tokio_util::sync::CancellationToken;

/// A [`LetterHandler`] that runs a command per dead letter.
///
/// The command gets the payload as [`super::CommandExecutor`] gives it, or the whole letter as JSON on standard input. It is
/// told about the letter by the variables that tell about a message, and by `REDRIVE_DLQ`, `REDRIVE_REASON`,
/// `REDRIVE_CATEGORY`, `REDRIVE_GROUP`, `REDRIVE_ATTEMPTS`, `REDRIVE_REDRIVES`, `REDRIVE_DEAD_AT`, `REDRIVE_ERROR_TYPE`,
/// `REDRIVE_ERROR_MESSAGE` and, where the error has one, `REDRIVE_ERROR_CODE`.
#[derive(Clone, Debug)]
pub struct LetterCommand {
    target: CommandTarget,
    whole_letter: bool,
}

impl LetterCommand {
    /// A handler for this command, which gets the payload.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for the setting that cannot be meant.
    pub fn new(target: CommandTarget) -> Result<Self, Refusal> {
        Target::Command(target.clone()).check()?;
        Ok(Self { target, whole_letter: false })
    }

    /// The same with the whole letter as JSON on standard input, instead of the payload.
    #[must_use]
    pub fn whole_letter(mut self) -> Self {
        self.whole_letter = true;
        self
    }
}

#[async_trait]
impl LetterHandler for LetterCommand {
    async fn handle(&self, letter: DeadLetter) -> Result<Disposition, HandlerError> {
        let payload = &letter.message.envelope.payload.bytes;
        let file = match self.target.payload {
            PayloadBy::File if !self.whole_letter => {
                let written = payload_file(payload.clone()).await;
                Some(written.map_err(|error| {
                    let why = format!("failed to write the payload to a file: {error}");
                    HandlerError::new("PayloadFile", why)
                })?)
            }
            PayloadBy::File | PayloadBy::Stdin => None,
        };
        let bytes = if self.whole_letter {
            let json = serde_json::to_vec(&letter);
            json.map_err(|error| HandlerError::new("LetterJson", error.to_string()))?
        } else {
            payload.clone()
        };
        let file = file.as_ref().map(NamedTempFile::path);
        let process = prepared(&self.target, variables(&letter), bytes, file);
        // Whoever stops waiting for it ends it.
        disposition(&self.target, &process.run(&CancellationToken::new()).await)
    }
}

fn variables(letter: &DeadLetter) -> Vec<(String, String)> {
    let DeadLetter { message, file, error, .. } = letter;
    let of_letter = [
        ("REDRIVE_DLQ", file.dlq.to_string()),
        ("REDRIVE_REASON", file.reason.to_string()),
        ("REDRIVE_CATEGORY", file.category.to_string()),
        ("REDRIVE_GROUP", letter.group.to_string()),
        ("REDRIVE_ATTEMPTS", message.attempts.to_string()),
        ("REDRIVE_REDRIVES", file.redrives.to_string()),
        ("REDRIVE_DEAD_AT", file.dead_at.to_string()),
        ("REDRIVE_ERROR_TYPE", error.error_type.clone()),
        ("REDRIVE_ERROR_MESSAGE", error.message.clone()),
    ];
    let code = error.code.iter().map(|code| ("REDRIVE_ERROR_CODE", code.clone()));
    let all = of_letter.into_iter().chain(code).map(|(name, value)| (name.to_owned(), value));
    message_variables(&message.envelope).into_iter().chain(all).collect()
}

/// What the way it ended says about the letter.
fn disposition(target: &CommandTarget, finished: &Finished) -> Result<Disposition, HandlerError> {
    let said = last_words(finished);
    let or = |otherwise: String| if said.is_empty() { otherwise } else { said.clone() };
    Err(match &finished.ended {
        Ended::Exited(0) => {
            return Ok(Disposition::Resolve { note: or("the command ended with exit code 0".into()) });
        }
        Ended::Exited(EXIT_LATER) => return Ok(Disposition::Replay),
        Ended::Exited(EXIT_DEAD_LETTER) => {
            return Ok(Disposition::Review { reason: or("the command asks for a person".into()) });
        }
        Ended::Exited(code) => {
            HandlerError::new("CommandFailed", or(format!("the command ended with exit code {code}")))
        }
        Ended::Signalled(signal) => {
            HandlerError::new("CommandKilled", format!("the command was killed by signal {signal}"))
        }
        Ended::TimedOut => {
            let limit = target.timeout.unwrap_or(finished.duration);
            HandlerError::new("Timeout", format!("the command did not end within {limit}"))
        }
        Ended::Cancelled => HandlerError::new("CommandKilled", "the command was told to stop"),
        Ended::NotStarted(NotStarted { why, .. }) => HandlerError::new("CommandNotStarted", why),
    })
}
