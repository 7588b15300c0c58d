//! One execution of a captured operation: an ordinary delivery whose lease is kept alive while its handler works.
//! Whatever happens to the handler, the store is told; what follows from it is the store's to decide.

use super::attempt::caught;
use crate::handler::{Context, Handler, HandlerError, Outcome, Reported};
use crate::metrics::{Timer, Working};
use redrive_core::error::{Error, Refusal};
use redrive_core::failure::Report;
use redrive_core::limits;
use redrive_core::message::Delivery;
use redrive_core::progress::Progress;
use redrive_core::store::{Settle, Settlement, Store};
use redrive_core::time::Span;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// How long a lease lasts; it is extended every third of that.
pub(super) const LEASE: Span = Span::from_secs(30);
const EXTEND: Duration = Duration::from_secs(10);
/// How often the store is told how it ended, when it does not listen.
const TELLS: u32 = 3;
const TELL_AGAIN: Duration = Duration::from_millis(500);

/// How long a handler has for its last word when there is no more time.
const LAST_WORD: Duration = Duration::from_secs(1);

/// One delivery and whatever is needed to execute it.
pub(super) struct Rerun {
    pub(super) store: Arc<dyn Store>,
    pub(super) delivery: Delivery,
    /// Nothing when nobody here knows its kind.
    pub(super) handler: Option<Arc<dyn Handler>>,
    pub(super) timeout: Duration,
    /// How long a message of an unknown kind is put off.
    pub(super) put_off: Duration,
    /// Ends when there is no more time for anything.
    pub(super) over: CancellationToken,
}

/// How an execution ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reran {
    Succeeded,
    Failed,
    /// Without a word on the operation.
    Returned,
}

/// How a handler ended.
enum Ended {
    Said(Outcome),
    Panicked(String),
    TimedOut,
    /// The lease is somebody else's.
    Lost,
    /// There is no more time.
    Over,
}

impl From<Result<Result<Outcome, String>, JoinError>> for Ended {
    fn from(ended: Result<Result<Outcome, String>, JoinError>) -> Self {
        match ended {
            Ok(Ok(outcome)) => Self::Said(outcome),
            Ok(Err(words)) => Self::Panicked(words),
            // Its runtime ends.
            Err(_) => Self::Over,
        }
    }
}

fn span_of(duration: Duration) -> Span {
    Span::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

impl Rerun {
    pub(super) async fn run(self) -> Reran {
        let Some(handler) = self.handler.clone() else {
            tracing::warn!(
                id = %self.delivery.token.id, kind = %self.delivery.message.envelope.kind,
                "no handler for this kind; the message is put off"
            );
            return self.tell(Settle::Snooze { span: span_of(self.put_off) }, Reran::Returned).await;
        };
        let started = Instant::now();
        let _busy = Working::begin(Timer::Handler);
        let ended = self.handle(handler).await;
        let (what, ended) = match ended {
            Ended::Said(Outcome::Done) => (Settle::Ack, Reran::Succeeded),
            Ended::Said(Outcome::Reply(answer)) if answer.bytes.len() > limits::PAYLOAD_BYTES_MAX => {
                let words = "the reply is too large to be sent; the work was done, its answer is lost";
                failure(HandlerError::new("ReplyTooLarge", words).permanent().into_report(), started)
            }
            Ended::Said(Outcome::Reply(payload)) => (Settle::Reply { payload }, Reran::Succeeded),
            Ended::Said(Outcome::Snooze(span)) => {
                (Settle::Snooze { span: span.min(limits::SPAN_MAX) }, Reran::Returned)
            }
            Ended::Said(Outcome::Release) | Ended::Over => (Settle::Release, Reran::Returned),
            Ended::Lost => return Reran::Returned,
            Ended::Said(Outcome::Fail(error)) => failure(error.into_report(), started),
            Ended::Said(Outcome::DeadLetter(error)) => failure(error.permanent().into_report(), started),
            Ended::TimedOut => {
                let words = format!("not done within {}", span_of(self.timeout));
                failure(HandlerError::new("Timeout", words).into_report(), started)
            }
            Ended::Panicked(words) => {
                let report = HandlerError::new("Panic", words).into_report();
                failure(Report { crashed: true, ..report }, started)
            }
        };
        self.tell(what, ended).await
    }

    /// Runs the handler in a task of its own and keeps the lease alive meanwhile, also while it blocks its thread.
    async fn handle(&self, handler: Arc<dyn Handler>) -> Ended {
        let cancelled = CancellationToken::new();
        let reported = Arc::new(Reported::default());
        let context = Context::new(Arc::new(self.delivery.clone()), cancelled.clone(), reported.clone());
        let work = async move { caught(handler.handle(context)).await };
        let mut work = AbortOnDropHandle::new(tokio::spawn(work));
        let mut late = pin!(tokio::time::sleep(self.timeout));
        let mut beat = tokio::time::interval_at(Instant::now() + EXTEND, EXTEND);
        loop {
            tokio::select! {
                biased;
                ended = &mut work => return Ended::from(ended),
                () = self.over.cancelled() => {
                    // A handler that listens may still say what to do.
                    cancelled.cancel();
                    let said = tokio::time::timeout(LAST_WORD, &mut work).await;
                    return match said {
                        Ok(ended) => Ended::from(ended),
                        Err(_) => Ended::Over,
                    };
                }
                () = &mut late => return Ended::TimedOut,
                _ = beat.tick() => if self.extend(reported.take()).await.is_err() { return Ended::Lost },
            }
        }
    }

    /// Keeps the lease, and how far the handler said it is. Fails only when the lease is lost; a store that does
    /// not answer may answer the next time.
    async fn extend(&self, progress: Option<Progress>) -> Result<(), Refusal> {
        let told = match progress {
            Some(progress) => self.settle(Settle::Progress { progress }).await,
            None => Ok(()),
        };
        match told.and(self.settle(Settle::Extend { by: Some(LEASE) }).await) {
            Err(Error::Refused(refusal)) => Err(refusal),
            Ok(()) | Err(Error::Store(_)) => Ok(()),
        }
    }

    async fn settle(&self, what: Settle) -> Result<(), Error> {
        let settled = self.store.settle(vec![Settlement { token: self.delivery.token, what }]).await?;
        settled.into_iter().try_for_each(|each| each.map(|_| ()).map_err(Error::from))
    }

    /// Tells the store how it ended. If it cannot be told, the lease runs out, which counts as a failure.
    async fn tell(&self, what: Settle, ended: Reran) -> Reran {
        for _ in 0..TELLS {
            match self.settle(what.clone()).await {
                Ok(()) => return ended,
                Err(Error::Refused(refusal)) => {
                    tracing::warn!(id = %self.delivery.token.id, %refusal, "an execution was not taken note of");
                    return Reran::Returned;
                }
                Err(Error::Store(error)) => {
                    tracing::warn!(id = %self.delivery.token.id, %error, "the store did not take an outcome");
                    tokio::time::sleep(TELL_AGAIN).await;
                }
            }
        }
        Reran::Returned
    }
}

fn failure(mut report: Report, started: Instant) -> (Settle, Reran) {
    report.duration = report.duration.or(Some(span_of(started.elapsed())));
    (Settle::Fail { failure: Box::new(report.analyse()), said: None }, Reran::Failed)
}
