//! Runs one delivery: calls the handler, enforces its time limit, catches its panics, and turns the outcome into a
//! settlement. The executor never calls the store; the dispatcher does.

use super::WorkerConfig;
use super::messages::{Execution, ExecutionResult};
use crate::handler::{Context, HandlerError, Outcome};
use crate::metrics::{BusyGuard, Timer};
use crate::panics::{CaughtPanic, catch_panic};
use redrive_core::failure::FailureReport;
use redrive_core::limits;
use redrive_core::store::Settle;
use redrive_core::time::Span;
use std::time::Duration;
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// How long a cancelled handler may take to return an outcome of its own.
const CANCEL_GRACE: Duration = Duration::from_secs(2);

/// Runs the handler of a delivery. Returns when the handler has ended, or when it has ignored its cancellation.
pub(super) async fn execute(config: &WorkerConfig, execution: Execution) -> ExecutionResult {
    let started = Instant::now();
    let busy = BusyGuard::begin(Timer::Handler);
    #[cfg(feature = "otel")]
    let span = crate::traces::DeliverySpan::begin(&execution.delivery);
    let (outcome, straggler) = run(&execution).await;
    drop(busy);
    let duration = Span::from_millis(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
    let settle = into_settle(config, &execution, outcome, duration);
    #[cfg(feature = "otel")]
    span.end(&settle);
    ExecutionResult { token: execution.delivery.token, limit_keys: execution.limit_keys, settle, straggler }
}

/// Runs the handler in a task of its own, so that a panic or a blocked thread affects only this delivery. The second
/// value is the handler's task if it still runs.
async fn run(execution: &Execution) -> (Outcome, Option<AbortOnDropHandle<Outcome>>) {
    let Some(handler) = execution.handler.clone() else { return (no_handler_outcome(execution), None) };
    let context =
        Context::new(execution.delivery.clone(), execution.cancel.clone(), execution.progress_slot.clone());
    let mut task = AbortOnDropHandle::new(tokio::spawn(async move {
        let handled = catch_panic(async move { handler.handle(context).await }).await;
        handled.unwrap_or_else(|panicked| panic_outcome(&panicked))
    }));
    let time_limit = async {
        match execution.timeout {
            Some(limit) => tokio::time::sleep(limit.to_std()).await,
            None => std::future::pending().await,
        }
    };
    let timed_out = tokio::select! {
        joined = &mut task => return (joined.unwrap_or_else(join_error_outcome), None),
        () = execution.cancel.cancelled() => None,
        () = time_limit => execution.timeout,
    };
    execution.cancel.cancel();
    let stopped = tokio::time::timeout(CANCEL_GRACE, &mut task).await;
    match (timed_out, stopped) {
        // Cancelled by the dispatcher: the handler's own outcome counts.
        (None, Ok(joined)) => (joined.unwrap_or_else(join_error_outcome), None),
        (None, Err(_)) => (Outcome::Release, still_running(task)),
        (Some(limit), Ok(_)) => (timed_out_outcome(limit), None),
        (Some(limit), Err(_)) => (timed_out_outcome(limit), still_running(task)),
    }
}

/// Aborts a handler that did not stop by itself. A handler that never yields runs until it does.
fn still_running(task: AbortOnDropHandle<Outcome>) -> Option<AbortOnDropHandle<Outcome>> {
    task.abort();
    Some(task)
}

fn no_handler_outcome(execution: &Execution) -> Outcome {
    let kind = &execution.delivery.message.envelope.kind;
    Outcome::Fail(HandlerError::new("NoHandler", format!("this worker has no handler for the kind {kind:?}")))
}

fn timed_out_outcome(limit: Span) -> Outcome {
    Outcome::Fail(HandlerError::new("Timeout", format!("the handler did not end within {limit}")))
}

/// The settlement of a delivery whose executor panicked.
pub(super) fn executor_panicked(config: &WorkerConfig) -> Settle {
    let mut report =
        HandlerError::new("Panic", "the worker panicked while it processed the handler's outcome")
            .into_report();
    (report.crashed, report.host) = (true, config.host.clone());
    Settle::Fail { failure: Box::new(report.analyse()), policy_override: None }
}

/// The outcome of a handler whose task was aborted, or panicked while its values were dropped.
fn join_error_outcome(error: JoinError) -> Outcome {
    match error.try_into_panic() {
        Ok(panic) => panic_outcome(&CaughtPanic::from_payload(&*panic)),
        Err(_) => Outcome::Release,
    }
}

fn panic_outcome(panic: &CaughtPanic) -> Outcome {
    let message = panic.message.as_deref().unwrap_or("the handler panicked without a message");
    let mut error = HandlerError::new("Panic", message);
    let report = error.report_mut();
    report.crashed = true;
    report.error.stack = panic.location.as_ref().map(|location| format!("panicked at {location}"));
    Outcome::Fail(error)
}

/// Converts the outcome of a handler into a settlement for the store.
fn into_settle(config: &WorkerConfig, execution: &Execution, outcome: Outcome, duration: Span) -> Settle {
    match outcome {
        Outcome::Done => Settle::Ack,
        Outcome::Reply(reply) if reply.bytes.len() > limits::PAYLOAD_BYTES_MAX => {
            let message = format!(
                "the reply has {} bytes; at most {} are allowed. The work was done, its answer is lost",
                reply.bytes.len(),
                limits::PAYLOAD_BYTES_MAX
            );
            failed(config, execution, HandlerError::new("ReplyTooLarge", message).permanent(), duration)
        }
        Outcome::Reply(payload) => Settle::Reply { payload },
        Outcome::Fail(error) => failed(config, execution, error, duration),
        Outcome::DeadLetter(error) => failed(config, execution, error.permanent(), duration),
        Outcome::Snooze(span) => Settle::Snooze { span: span.min(limits::SPAN_MAX) },
        Outcome::Release => Settle::Release,
    }
}

fn failed(config: &WorkerConfig, execution: &Execution, error: HandlerError, duration: Span) -> Settle {
    let report = error.into_report();
    let report = FailureReport {
        duration: report.duration.or(Some(duration)),
        host: report.host.or_else(|| config.host.clone()),
        version: report.version.or_else(|| config.version.clone()),
        ..report
    };
    let failure = report.analyse_with(&config.classifier_rules);
    let said = config.dead_letters.as_ref().and_then(|policy| policy.decide(&execution.delivery, &failure));
    Settle::Fail { failure: Box::new(failure), policy_override: said }
}
