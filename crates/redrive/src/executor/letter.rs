//! Runs a command for each dead letter and decides by its exit code what to do with the letter: 0 resolves it, 75
//! replays it, 65 marks it for review. Any other end is a failure of the consumer and does not change the letter.

use super::command::{EXIT_DEAD_LETTER, EXIT_LATER, error_line, message_variables, payload_file, prepared};
use super::process::{NotStarted, ProcessEnd, ProcessOutput};
use crate::consumer::{Disposition, LetterHandler};
use crate::handler::HandlerError;
use async_trait::async_trait;
use redrive_core::dead_letter::DeadLetter;
use redrive_core::error::Refusal;
use redrive_core::target::{CommandTarget, PayloadBy, Target};
use tempfile::NamedTempFile;
use tokio_util::sync::CancellationToken;

/// A [`LetterHandler`] that runs a command for each dead letter.
///
/// The command gets the payload as from [`super::CommandExecutor`], or the whole letter as JSON on standard input. Its
/// environment describes the message as for [`super::CommandExecutor`], and the letter: `REDRIVE_DLQ`,
/// `REDRIVE_REASON`,
/// `REDRIVE_CATEGORY`, `REDRIVE_GROUP`, `REDRIVE_ATTEMPTS`, `REDRIVE_REDRIVES`, `REDRIVE_DEAD_AT`,
/// `REDRIVE_ERROR_TYPE`,
/// `REDRIVE_ERROR_MESSAGE` and, if the error has a code, `REDRIVE_ERROR_CODE`.
#[derive(Clone, Debug)]
pub struct LetterCommand {
    target: CommandTarget,
    whole_letter: bool,
}

impl LetterCommand {
    /// Creates a handler that runs this command with the payload.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] with the setting that is invalid.
    pub fn new(target: CommandTarget) -> Result<Self, Refusal> {
        Target::Command(target.clone()).check()?;
        Ok(Self { target, whole_letter: false })
    }

    /// Gives the command the whole letter as JSON on standard input, instead of the payload.
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
        // Dropping this future kills the command, so no cancellation token is needed.
        disposition(&self.target, &process.run(&CancellationToken::new()).await)
    }
}

fn variables(letter: &DeadLetter) -> Vec<(String, String)> {
    let DeadLetter { message, record, error, .. } = letter;
    let of_letter = [
        ("REDRIVE_DLQ", record.dlq.to_string()),
        ("REDRIVE_REASON", record.reason.to_string()),
        ("REDRIVE_CATEGORY", record.category.to_string()),
        ("REDRIVE_GROUP", letter.group.to_string()),
        ("REDRIVE_ATTEMPTS", message.attempts.to_string()),
        ("REDRIVE_REDRIVES", record.redrives.to_string()),
        ("REDRIVE_DEAD_AT", record.dead_at.to_string()),
        ("REDRIVE_ERROR_TYPE", error.error_type.clone()),
        ("REDRIVE_ERROR_MESSAGE", error.message.clone()),
    ];
    let code = error.code.iter().map(|code| ("REDRIVE_ERROR_CODE", code.clone()));
    let all = of_letter.into_iter().chain(code).map(|(name, value)| (name.to_owned(), value));
    message_variables(&message.envelope).into_iter().chain(all).collect()
}

/// Decides what to do with the letter by how the command ended.
fn disposition(target: &CommandTarget, output: &ProcessOutput) -> Result<Disposition, HandlerError> {
    let printed = error_line(output);
    let or = |otherwise: String| if printed.is_empty() { otherwise } else { printed.clone() };
    Err(match &output.ended {
        ProcessEnd::Exited(0) => {
            return Ok(Disposition::Resolve { note: or("the command ended with exit code 0".into()) });
        }
        ProcessEnd::Exited(EXIT_LATER) => return Ok(Disposition::Replay),
        ProcessEnd::Exited(EXIT_DEAD_LETTER) => {
            return Ok(Disposition::Review { reason: or("the command asks for a person".into()) });
        }
        ProcessEnd::Exited(code) => {
            HandlerError::new("CommandFailed", or(format!("the command ended with exit code {code}")))
        }
        ProcessEnd::Signalled(signal) => {
            HandlerError::new("CommandKilled", format!("the command was killed by signal {signal}"))
        }
        ProcessEnd::TimedOut => {
            let limit = target.timeout.unwrap_or(output.duration);
            HandlerError::new("Timeout", format!("the command did not end within {limit}"))
        }
        ProcessEnd::Cancelled => HandlerError::new("CommandKilled", "the command was told to stop"),
        ProcessEnd::NotStarted(NotStarted { why, .. }) => HandlerError::new("CommandNotStarted", why),
    })
}
