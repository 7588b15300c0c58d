//! One execution of a captured operation: an ordinary delivery whose lease is extended while its handler runs. However
//! the handler ends, the delivery is settled, and the store decides what follows.

use super::attempt::catch_panic_message;
use crate::handler::{Context, Handler, HandlerError, Outcome, ProgressSlot};
use crate::metrics::{BusyGuard, Timer};
use redrive_core::error::{CallError, Refusal};
use redrive_core::failure::FailureReport;
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

/// How long a lease lasts. It is extended after a third of this time.
pub(super) const LEASE: Span = Span::from_secs(30);
const EXTEND: Duration = Duration::from_secs(10);
/// How often a settlement is tried when the store does not answer.
const SETTLE_ATTEMPTS: u32 = 3;
const SETTLE_RETRY: Duration = Duration::from_millis(500);

/// How long a cancelled handler may take to return an outcome.
const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// One delivery and what is needed to execute it.
pub(super) struct RerunTask {
    pub(super) store: Arc<dyn Store>,
    pub(super) delivery: Delivery,
    /// `None` if the processor has no handler for its kind.
    pub(super) handler: Option<Arc<dyn Handler>>,
    pub(super) timeout: Duration,
    /// How long a message of an unknown kind is snoozed.
    pub(super) snooze_for: Duration,
    /// Cancelled when the grace time of the processor is over.
    pub(super) grace_over: CancellationToken,
}

/// How an execution ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RerunResult {
    Succeeded,
    Failed,
    /// Without a result.
    Returned,
}

/// How a handler ended.
enum HandlerEnd {
    Returned(Outcome),
    Panicked(String),
    TimedOut,
    /// The lease is lost.
    LeaseLost,
    /// The processor stops, and the handler returned no outcome in time.
    Stopped,
}

impl From<Result<Result<Outcome, String>, JoinError>> for HandlerEnd {
    fn from(ended: Result<Result<Outcome, String>, JoinError>) -> Self {
        match ended {
            Ok(Ok(outcome)) => Self::Returned(outcome),
            Ok(Err(message)) => Self::Panicked(message),
            // The runtime shuts down.
            Err(_) => Self::Stopped,
        }
    }
}

fn span_of(duration: Duration) -> Span {
    Span::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

impl RerunTask {
    pub(super) async fn run(self) -> RerunResult {
        let Some(handler) = self.handler.clone() else {
            tracing::warn!(
                id = %self.delivery.token.id, kind = %self.delivery.message.envelope.kind,
                "no handler for this kind; the message is put off"
            );
            return self
                .settle_with_retries(Settle::Snooze { span: span_of(self.snooze_for) }, RerunResult::Returned)
                .await;
        };
        let started = Instant::now();
        let _busy = BusyGuard::begin(Timer::Handler);
        let ended = self.handle(handler).await;
        let (what, ended) = match ended {
            HandlerEnd::Returned(Outcome::Done) => (Settle::Ack, RerunResult::Succeeded),
            HandlerEnd::Returned(Outcome::Reply(answer))
                if answer.bytes.len() > limits::PAYLOAD_BYTES_MAX =>
            {
                let message = "the reply is too large to be sent; the work was done, its answer is lost";
                failure(HandlerError::new("ReplyTooLarge", message).permanent().into_report(), started)
            }
            HandlerEnd::Returned(Outcome::Reply(payload)) => {
                (Settle::Reply { payload }, RerunResult::Succeeded)
            }
            HandlerEnd::Returned(Outcome::Snooze(span)) => {
                (Settle::Snooze { span: span.min(limits::SPAN_MAX) }, RerunResult::Returned)
            }
            HandlerEnd::Returned(Outcome::Release) | HandlerEnd::Stopped => {
                (Settle::Release, RerunResult::Returned)
            }
            HandlerEnd::LeaseLost => return RerunResult::Returned,
            HandlerEnd::Returned(Outcome::Fail(error)) => failure(error.into_report(), started),
            HandlerEnd::Returned(Outcome::DeadLetter(error)) => {
                failure(error.permanent().into_report(), started)
            }
            HandlerEnd::TimedOut => {
                let message = format!("not done within {}", span_of(self.timeout));
                failure(HandlerError::new("Timeout", message).into_report(), started)
            }
            HandlerEnd::Panicked(message) => {
                let report = HandlerError::new("Panic", message).into_report();
                failure(FailureReport { crashed: true, ..report }, started)
            }
        };
        self.settle_with_retries(what, ended).await
    }

    /// Runs the handler in a task of its own and extends the lease meanwhile, even if the handler blocks its thread.
    async fn handle(&self, handler: Arc<dyn Handler>) -> HandlerEnd {
        let cancelled = CancellationToken::new();
        let progress_slot = Arc::new(ProgressSlot::default());
        let context = Context::new(Arc::new(self.delivery.clone()), cancelled.clone(), progress_slot.clone());
        let work = async move { catch_panic_message(handler.handle(context)).await };
        let mut work = AbortOnDropHandle::new(tokio::spawn(work));
        let mut timeout = pin!(tokio::time::sleep(self.timeout));
        let mut extension = tokio::time::interval_at(Instant::now() + EXTEND, EXTEND);
        loop {
            tokio::select! {
                biased;
                ended = &mut work => return HandlerEnd::from(ended),
                () = self.grace_over.cancelled() => {
                    // A handler that observes its cancellation may still return an outcome.
                    cancelled.cancel();
                    let stopped = tokio::time::timeout(CANCEL_GRACE, &mut work).await;
                    return match stopped {
                        Ok(ended) => HandlerEnd::from(ended),
                        Err(_) => HandlerEnd::Stopped,
                    };
                }
                () = &mut timeout => return HandlerEnd::TimedOut,
                _ = extension.tick() => if self.extend(progress_slot.take()).await.is_err() { return HandlerEnd::LeaseLost },
            }
        }
    }

    /// Extends the lease and saves the progress of the handler. Fails only if the lease is lost; if the store does not
    /// answer, the next extension tries again.
    async fn extend(&self, progress: Option<Progress>) -> Result<(), Refusal> {
        let saved = match progress {
            Some(progress) => self.settle(Settle::Progress { progress }).await,
            None => Ok(()),
        };
        match saved.and(self.settle(Settle::Extend { by: Some(LEASE) }).await) {
            Err(CallError::Refused(refusal)) => Err(refusal),
            Ok(()) | Err(CallError::Store(_)) => Ok(()),
        }
    }

    async fn settle(&self, what: Settle) -> Result<(), CallError> {
        let settled = self.store.settle(vec![Settlement { token: self.delivery.token, what }]).await?;
        settled.into_iter().try_for_each(|each| each.map(|_| ()).map_err(CallError::from))
    }

    /// Settles the delivery. If the store cannot be reached, the lease expires, which counts as a failure.
    async fn settle_with_retries(&self, what: Settle, ended: RerunResult) -> RerunResult {
        for _ in 0..SETTLE_ATTEMPTS {
            match self.settle(what.clone()).await {
                Ok(()) => return ended,
                Err(CallError::Refused(refusal)) => {
                    tracing::warn!(id = %self.delivery.token.id, %refusal, "settlement refused");
                    return RerunResult::Returned;
                }
                Err(CallError::Store(error)) => {
                    tracing::warn!(id = %self.delivery.token.id, %error, "settling failed; trying again");
                    tokio::time::sleep(SETTLE_RETRY).await;
                }
            }
        }
        RerunResult::Returned
    }
}

fn failure(mut report: FailureReport, started: Instant) -> (Settle, RerunResult) {
    report.duration = report.duration.or(Some(span_of(started.elapsed())));
    (Settle::Fail { failure: Box::new(report.analyse()), policy_override: None }, RerunResult::Failed)
}
