//! Ready-made handlers for a dead-letter consumer: tell somebody, send back a few times, give up. They only decide; the
//! consumer settles.

use crate::consumer::{Disposition, LetterHandler};
use crate::handler::HandlerError;
use redrive_core::dead_letter::DeadLetter;
use std::future::Future;

/// A handler that says in the log that a letter is there, tells somebody, and asks for a person. When `tell`
/// fails, it is tried again after an hour.
pub fn alert<F, Fut, E>(tell: F) -> impl LetterHandler + use<F, Fut, E>
where
    F: Fn(DeadLetter) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), E>> + Send,
    E: Into<HandlerError> + Send + 'static,
{
    move |letter: DeadLetter| {
        log_letter(&letter);
        let told = tell(letter);
        async move {
            told.await.map_err(Into::into)?;
            Ok::<_, HandlerError>(Disposition::Review { reason: "somebody was told".into() })
        }
    }
}

fn log_letter(letter: &DeadLetter) {
    let DeadLetter { message, file, error, .. } = letter;
    tracing::error!(
        message = %message.envelope.id,
        queue = %message.envelope.queue,
        dlq = %file.dlq,
        error_type = error.error_type,
        error = error.message,
        attempts = message.attempts,
        redrives = file.redrives,
        "dead letter"
    );
}

/// A handler that sends letters back to work, each at most this often over all its life; the others, and those
/// that are hopeless as they stand, are for a person.
pub fn replay_each(at_most: u32) -> impl LetterHandler {
    move |letter: DeadLetter| {
        let again = letter.eligible && letter.file.redrives < at_most;
        let why = if letter.eligible { "sent back often enough" } else { "trying again is useless" };
        std::future::ready(if again {
            Disposition::Replay
        } else {
            Disposition::Review { reason: why.into() }
        })
    }
}

/// A handler that gives letters up, for this reason. They are kept until retention.
pub fn discard(reason: impl Into<String>) -> impl LetterHandler {
    let reason = reason.into();
    move |_: DeadLetter| std::future::ready(Disposition::Discard { reason: reason.clone() })
}
