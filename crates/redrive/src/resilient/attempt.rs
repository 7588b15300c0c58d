//! One attempt at a call: its time limit, and a panic caught. Knows nothing of policies.

use redrive_core::time::Span;
use std::future::Future;

/// How an attempt failed.
#[derive(Debug, PartialEq)]
pub(super) enum Attempted<E> {
    /// With the caller's error.
    Error(E),
    /// It took longer than this.
    TimedOut(Span),
    /// It panicked with these words.
    Panicked(String),
}

/// Makes one attempt. A call that took too long is dropped at its next await; one that blocks its thread cannot
/// be stopped by anybody.
pub(super) async fn attempt<T, E, F, Fut>(run: &mut F, limit: Option<Span>) -> Result<T, Attempted<E>>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    let called = async { run().await };
    let caught = caught(called);
    let ended = match limit {
        None => caught.await,
        Some(limit) => match tokio::time::timeout(limit.to_std(), caught).await {
            Ok(ended) => ended,
            Err(_) => return Err(Attempted::TimedOut(limit)),
        },
    };
    match ended {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(Attempted::Error(error)),
        Err(words) => Err(Attempted::Panicked(words)),
    }
}

/// The future's own output, or the words it panicked with.
pub(super) async fn caught<Fut: Future>(future: Fut) -> Result<Fut::Output, String> {
    let ended = crate::panics::caught(future).await;
    ended.map_err(|panicked| panicked.words.unwrap_or_else(|| "without words".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[tokio::test]
    async fn a_panic_is_caught_with_its_words_wherever_it_happens() {
        let made = attempt(&mut || async { panic!("{} broke", "it") }, None).await;
        assert_eq!(made, Err::<(), _>(Attempted::<Infallible>::Panicked("it broke".into())));
        let mut early = || -> std::future::Ready<Result<(), Infallible>> { panic!("early") };
        assert_eq!(attempt(&mut early, None).await, Err(Attempted::Panicked("early".into())));
        let strange = attempt(&mut || async { std::panic::panic_any(7) }, None).await;
        assert_eq!(strange, Err::<(), _>(Attempted::<Infallible>::Panicked("without words".into())));
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_is_dropped_when_its_time_is_over() {
        let limit = Span::from_secs(5);
        let made = attempt(&mut std::future::pending::<Result<(), Infallible>>, Some(limit)).await;
        assert_eq!(made, Err(Attempted::TimedOut(limit)));
    }
}
