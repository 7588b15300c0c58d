//! One attempt at a call, with its time limit and its panics caught. Knows nothing about policies.

use redrive_core::time::Span;
use std::future::Future;

/// How an attempt failed.
#[derive(Debug, PartialEq)]
pub(super) enum AttemptError<E> {
    /// It returned the caller's error.
    Error(E),
    /// It took longer than this.
    TimedOut(Span),
    /// It panicked with this message.
    Panicked(String),
}

/// Makes one attempt. A call that takes too long is dropped at its next await; a call that blocks its thread cannot be
/// stopped.
pub(super) async fn attempt<T, E, F, Fut>(run: &mut F, limit: Option<Span>) -> Result<T, AttemptError<E>>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    // `run` itself may panic too, so it is called inside the future.
    let call = catch_panic_message(async { run().await });
    let result = match limit {
        None => call.await,
        Some(limit) => match tokio::time::timeout(limit.to_std(), call).await {
            Ok(result) => result,
            Err(_) => return Err(AttemptError::TimedOut(limit)),
        },
    };
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(AttemptError::Error(error)),
        Err(message) => Err(AttemptError::Panicked(message)),
    }
}

/// Runs the future and returns its output, or the message of the panic it ended with.
pub(super) async fn catch_panic_message<Fut: Future>(future: Fut) -> Result<Fut::Output, String> {
    let result = crate::panics::catch_panic(future).await;
    result.map_err(|panic| panic.message.unwrap_or_else(|| "no message".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[tokio::test]
    async fn a_panic_is_caught_with_its_message_wherever_it_happens() {
        let made = attempt(&mut || async { panic!("{} broke", "it") }, None).await;
        assert_eq!(made, Err::<(), _>(AttemptError::<Infallible>::Panicked("it broke".into())));
        let mut early = || -> std::future::Ready<Result<(), Infallible>> { panic!("early") };
        assert_eq!(attempt(&mut early, None).await, Err(AttemptError::Panicked("early".into())));
        let strange = attempt(&mut || async { std::panic::panic_any(7) }, None).await;
        assert_eq!(strange, Err::<(), _>(AttemptError::<Infallible>::Panicked("no message".into())));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_is_dropped_at_its_time_limit() {
        let limit = Span::from_secs(5);
        let made = attempt(&mut std::future::pending::<Result<(), Infallible>>, Some(limit)).await;
        assert_eq!(made, Err(AttemptError::TimedOut(limit)));
    }
}
