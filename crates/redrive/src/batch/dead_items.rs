//! What happens after an item died: whether the run stops, and what `on_item_failure` does with the letter. Both happen
//! after the store has recorded the failure. Letters are leased, as every dead letter consumer does, so that after a
//! crash the next process continues with them.

use super::error::BatchError;
use super::ledger::ItemTag;
use super::run::Batch;
use super::spec::{Command, Job, OnItemFailure};
use super::steps::prepare;
use crate::executor::process::{Process, ProcessEnd};
use redrive_core::dead_letter::{Act, LetterDelivery};
use redrive_core::error::{CallError, Refusal};
use redrive_core::limits;
use redrive_core::store::{LetterLeaseRequest, LetterSettle, LetterSettlement};
use redrive_core::time::Span;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How many items of the run are done and failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailureCounts {
    /// Items that are done.
    pub(super) done: u64,
    /// Items that are dead or skipped.
    pub(super) failed: u64,
    /// Items that died while this process ran.
    pub(super) new: u64,
}

impl FailureCounts {
    /// Why the run must stop, or `None` if it may continue.
    pub(super) fn stops(self, job: &Job) -> Option<String> {
        let Self { done, failed, new } = self;
        if new == 0 {
            return None;
        }
        if job.on_item_failure == OnItemFailure::Stop {
            return Some("an item failed, and on_item_failure says stop".into());
        }
        if !job.continue_on_failure {
            return Some("an item failed, and continue_on_failure is false".into());
        }
        if let Some(most) = job.max_failures.filter(|most| failed >= *most) {
            return Some(format!("{failed} items failed, and max_failures is {most}"));
        }
        let judged = done + failed;
        let share = ratio(failed, judged);
        let over =
            job.failure_threshold.filter(|most| judged >= limits::RUN_THRESHOLD_AFTER && share > *most);
        over.map(|most| format!("{failed} of {judged} items failed, and failure_threshold is {most}"))
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share of at most a million items")]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// How often the dead letter queue is read during the run.
const EVERY: Duration = Duration::from_millis(200);
/// The number of letters to lease at once when they are skipped. A custom command gets one at a time.
const SKIP_BATCH: usize = 100;
/// How long letters are leased while they are skipped.
const SKIP_LEASE: Span = Span::from_secs(10);
/// How long letters that do not belong to this run are snoozed. Other consumers do not get them either.
const NOT_OURS: Span = Span::from_secs(60);
/// How long a custom command may take per letter.
const CUSTOM_LIMIT: Span = Span::from_secs(120);

/// Handles the letters of dead items until the run is over. Returns at once if the job leaves them in the dead letter
/// queue.
pub(super) async fn handle_dead_items(
    batch: &Batch,
    run: &str,
    over: &CancellationToken,
) -> Result<(), BatchError> {
    while handles_letters(&batch.job) && !over.is_cancelled() {
        if let Err(error) = settle_letters(batch, run).await {
            // They stay in the dead letter queue until the next attempt, or the next process.
            tracing::warn!(job = batch.job.name(), %error, "dead items could not be handled; trying again");
        }
        tokio::select! {
            () = over.cancelled() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
    }
    settle_letters(batch, run).await
}

const fn handles_letters(job: &Job) -> bool {
    match job.on_item_failure {
        OnItemFailure::Skip | OnItemFailure::Custom(_) => true,
        OnItemFailure::Dlq | OnItemFailure::Retry | OnItemFailure::Stop => false,
    }
}

/// Handles every letter of this run that can be leased.
async fn settle_letters(batch: &Batch, run: &str) -> Result<(), BatchError> {
    let (max, hold) = match batch.job.on_item_failure {
        OnItemFailure::Custom(_) => (1, CUSTOM_LIMIT.times(2)),
        OnItemFailure::Skip | OnItemFailure::Dlq | OnItemFailure::Retry | OnItemFailure::Stop => {
            (SKIP_BATCH, SKIP_LEASE)
        }
    };
    while handles_letters(&batch.job) && !batch.handle.stop.is_cancelled() {
        let request = LetterLeaseRequest {
            dlq: batch.job.queue().default_dlq(),
            max,
            lease_for: Some(hold),
            worker: format!("run {}", batch.job.name()),
        };
        let letters = match batch.store.lease_letters(request).await {
            Ok(letters) => letters,
            // Nothing has died yet.
            Err(CallError::Refused(Refusal::NoSuchQueue { .. })) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if letters.is_empty() {
            return Ok(());
        }
        let mut settled = Vec::new();
        for letter in letters {
            let tag = ItemTag::of(letter.letter.message.envelope.context.as_ref());
            let what = match tag.filter(|tag| tag.run == run) {
                Some(_) => decide(batch, &letter).await,
                None => LetterSettle::Snooze { span: NOT_OURS },
            };
            settled.push(LetterSettlement { token: letter.token, what });
        }
        batch.store.settle_letters(settled).await?;
    }
    Ok(())
}

async fn decide(batch: &Batch, letter: &LetterDelivery) -> LetterSettle {
    let run = |act, why: String| LetterSettle::Do { act, actor: batch.acting(&why) };
    match &batch.job.on_item_failure {
        OnItemFailure::Custom(command) => match custom(batch, command, letter).await {
            Some((act, why)) => run(act, why),
            None => LetterSettle::Release,
        },
        OnItemFailure::Skip | OnItemFailure::Dlq | OnItemFailure::Retry | OnItemFailure::Stop => {
            run(Act::Abandon, "skipped: on_item_failure says skip".into())
        }
    }
}

/// Runs the job's own command, which gets the letter as JSON. If the command fails, the letter is marked for review and
/// not shown to the command again. Returns `None` if the command was stopped; the next process runs it again.
async fn custom(batch: &Batch, command: &Command, letter: &LetterDelivery) -> Option<(Act, String)> {
    let item = String::from_utf8_lossy(&letter.letter.message.envelope.payload.bytes).into_owned();
    let mut values = batch.values();
    values.item = Some(&item);
    let process: Process = match prepare(command, &values) {
        Ok(process) => process,
        Err(why) => return Some((Act::Review, format!("on_item_failure.custom: {why}"))),
    };
    let json = serde_json::to_vec(&letter.letter).unwrap_or_default();
    let done =
        process.stdin(json).directory(&batch.directory).limit(CUSTOM_LIMIT).run(&batch.handle.stop).await;
    match done.ended {
        ProcessEnd::Exited(0) => {
            Some((Act::Abandon, "skipped: on_item_failure.custom ended with 0".to_owned()))
        }
        ProcessEnd::Cancelled => None,
        ended @ (ProcessEnd::Exited(_)
        | ProcessEnd::Signalled(_)
        | ProcessEnd::TimedOut
        | ProcessEnd::NotStarted(_)) => {
            let said = done.stderr.last_lines(1, 200);
            let said = if said.is_empty() { said } else { format!(": {said}") };
            Some((
                Act::Review,
                format!("on_item_failure.custom left it in the dead letter queue: it {ended}{said}"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops(extra: &str, done: u64, failed: u64) -> Option<String> {
        let job = Job::parse(&format!("name: t\ninput: {{file: x.csv}}\nmap: [true]\n{extra}")).unwrap();
        FailureCounts { done, failed, new: failed }.stops(&job)
    }

    #[test]
    fn each_limit_stops_with_its_reason() {
        assert_eq!(stops("", 1, 1_000), None);
        assert_eq!(stops("max_failures: 3", 1, 2), None);
        assert!(stops("max_failures: 3", 1, 3).unwrap().contains("max_failures is 3"));
        assert_eq!(stops("failure_threshold: 0.2", 0, 9), None, "nine items say little");
        assert!(stops("failure_threshold: 0.2", 7, 3).unwrap().contains("3 of 10"));
        assert_eq!(stops("failure_threshold: 0.2", 8, 2), None, "not above");
        assert!(stops("continue_on_failure: false", 5, 1).is_some());
        assert!(stops("on_item_failure: stop", 5, 1).is_some());
        assert_eq!(stops("on_item_failure: stop", 5, 0), None);
    }
}
