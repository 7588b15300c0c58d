//! Running one delivery, from its payload to what is said about it: begin, run, classify, decide. Owns its
//! unit and nothing else; it does not talk to the store.

use super::Plan;
use super::stage::{Ended, Unit};
use crate::handler::{Context, HandlerError, Outcome};
use crate::metrics::{Timer, Working};
use crate::panics::{Panicked, caught};
use redrive_core::failure::Report;
use redrive_core::limits;
use redrive_core::store::Settle;
use redrive_core::time::Span;
use std::time::Duration;
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// How long a handler that was told to stop may take to say so itself.
const LEEWAY: Duration = Duration::from_secs(2);

/// Runs the handler of a delivery. Ends when the handler has ended, or when it has ignored its time limit.
pub(super) async fn execute(plan: &Plan, unit: Unit) -> Ended {
    let begun = Instant::now();
    let in_hand = Working::begin(Timer::Handler);
    let (outcome, straggler) = run(&unit).await;
    drop(in_hand);
    let took = Span::from_millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
    let said = decide(plan, &unit, outcome, took);
    Ended { token: unit.delivery.token, entered: unit.entered, said, straggler }
}

/// Runs the handler in a task of its own, so that neither a panic nor a blocked thread takes anything with it.
async fn run(unit: &Unit) -> (Outcome, Option<AbortOnDropHandle<Outcome>>) {
    let Some(handler) = unit.handler.clone() else { return (no_handler(unit), None) };
    let context = Context::new(unit.delivery.clone(), unit.cancel.clone(), unit.reported.clone());
    let mut task = AbortOnDropHandle::new(tokio::spawn(async move {
        let handled = caught(async move { handler.handle(context).await }).await;
        handled.unwrap_or_else(|panicked| crashed(&panicked))
    }));
    let overtime = async {
        match unit.timeout {
            Some(limit) => tokio::time::sleep(limit.to_std()).await,
            None => std::future::pending().await,
        }
    };
    let timed_out = tokio::select! {
        ended = &mut task => return (ended.unwrap_or_else(ended_otherwise), None),
        () = unit.cancel.cancelled() => None,
        () = overtime => unit.timeout,
    };
    unit.cancel.cancel();
    let stopped = tokio::time::timeout(LEEWAY, &mut task).await;
    match (timed_out, stopped) {
        // Told to stop from outside: what it says then is what counts.
        (None, Ok(ended)) => (ended.unwrap_or_else(ended_otherwise), None),
        (None, Err(_)) => (Outcome::Release, still_running(task)),
        (Some(limit), Ok(_)) => (too_slow(limit), None),
        (Some(limit), Err(_)) => (too_slow(limit), still_running(task)),
    }
}

/// Ends a handler that did not stop by itself; one that never yields goes on until it does.
fn still_running(task: AbortOnDropHandle<Outcome>) -> Option<AbortOnDropHandle<Outcome>> {
    task.abort();
    Some(task)
}

fn no_handler(unit: &Unit) -> Outcome {
    let kind = &unit.delivery.message.envelope.kind;
    Outcome::Fail(HandlerError::new("NoHandler", format!("this worker has no handler for the kind {kind:?}")))
}

fn too_slow(limit: Span) -> Outcome {
    Outcome::Fail(HandlerError::new("Timeout", format!("the handler did not end within {limit}")))
}

/// What is said when this file itself panicked over a delivery, which must not take the worker with it.
pub(super) fn broke_down(plan: &Plan) -> Settle {
    let mut report =
        HandlerError::new("Panic", "the worker panicked over what the handler said").into_report();
    (report.crashed, report.host) = (true, plan.host.clone());
    Settle::Fail { failure: Box::new(report.analyse()), said: None }
}

/// A handler that was ended from outside, or panicked while what it held was dropped.
fn ended_otherwise(error: JoinError) -> Outcome {
    match error.try_into_panic() {
        Ok(panic) => crashed(&Panicked::of(&*panic)),
        Err(_) => Outcome::Release,
    }
}

/// A handler that panicked.
fn crashed(panicked: &Panicked) -> Outcome {
    let words = panicked.words.as_deref().unwrap_or("the handler panicked without a message");
    let mut error = HandlerError::new("Panic", words);
    let report = error.report_mut();
    report.crashed = true;
    report.error.stack = panicked.place.as_ref().map(|place| format!("panicked at {place}"));
    Outcome::Fail(error)
}

/// Turns an outcome into what the store is told.
fn decide(plan: &Plan, unit: &Unit, outcome: Outcome, took: Span) -> Settle {
    match outcome {
        Outcome::Done => Settle::Ack,
        Outcome::Reply(answer) if answer.bytes.len() > limits::PAYLOAD_BYTES_MAX => {
            let why = format!(
                "the reply has {} bytes; at most {} are allowed. The work was done, its answer is lost",
                answer.bytes.len(),
                limits::PAYLOAD_BYTES_MAX
            );
            failed(plan, unit, HandlerError::new("ReplyTooLarge", why).permanent(), took)
        }
        Outcome::Reply(payload) => Settle::Reply { payload },
        Outcome::Fail(error) => failed(plan, unit, error, took),
        Outcome::DeadLetter(error) => failed(plan, unit, error.permanent(), took),
        Outcome::Snooze(span) => Settle::Snooze { span: span.min(limits::SPAN_MAX) },
        Outcome::Release => Settle::Release,
    }
}

fn failed(plan: &Plan, unit: &Unit, error: HandlerError, took: Span) -> Settle {
    let report = error.into_report();
    let report = Report {
        duration: report.duration.or(Some(took)),
        host: report.host.or_else(|| plan.host.clone()),
        version: report.version.or_else(|| plan.version.clone()),
        ..report
    };
    let failure = report.analyse_with(&plan.knowledge);
    let said = plan.dead_letters.as_ref().and_then(|policy| policy.said(&unit.delivery, &failure));
    Settle::Fail { failure: Box::new(failure), said }
}
