//! Ready-made handlers for a dead letter consumer: alert, replay a few times, discard. They only decide; the consumer
//! settles.

use crate::consumer::{Disposition, LetterHandler};
use crate::handler::HandlerError;
use redrive_core::dead_letter::DeadLetter;
use std::future::Future;

/// A handler that logs each letter, calls `notify`, and marks the letter for review. If `notify` fails, the letter is
/// handled again after an hour.
pub fn alert<F, Fut, E>(notify: F) -> impl LetterHandler + use<F, Fut, E>
where
    F: Fn(DeadLetter) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), E>> + Send,
    E: Into<HandlerError> + Send + 'static,
{
    move |letter: DeadLetter| {
        log_letter(&letter);
        let notified = notify(letter);
        async move {
            notified.await.map_err(Into::into)?;
            Ok::<_, HandlerError>(Disposition::Review { reason: "an alert was sent".into() })
        }
    }
}

fn log_letter(letter: &DeadLetter) {
    let DeadLetter { message, record, error, .. } = letter;
    tracing::error!(
        message = %message.envelope.id,
        queue = %message.envelope.queue,
        dlq = %record.dlq,
        error_type = error.error_type,
        error = error.message,
        attempts = message.attempts,
        redrives = record.redrives,
        "dead letter"
    );
}

/// A handler that replays letters, each at most `at_most` times in total. Letters that were replayed that often, and
/// letters that are not eligible for a redrive, are marked for review.
pub fn replay_each(at_most: u32) -> impl LetterHandler {
    move |letter: DeadLetter| {
        let replay = letter.eligible && letter.record.redrives < at_most;
        let reason =
            if letter.eligible { "redriven as often as allowed" } else { "another attempt is useless" };
        std::future::ready(if replay {
            Disposition::Replay
        } else {
            Disposition::Review { reason: reason.into() }
        })
    }
}

/// A handler that discards every letter for this reason. The letters are kept until their retention is over.
pub fn discard(reason: impl Into<String>) -> impl LetterHandler {
    let reason = reason.into();
    move |_: DeadLetter| std::future::ready(Disposition::Discard { reason: reason.clone() })
}
