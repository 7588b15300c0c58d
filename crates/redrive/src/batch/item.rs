//! The handler of items: runs the steps of one, answers with its result, or fails in words that say which step,
//! why, for how long and where the log is. The store decides about another attempt.

use super::git::{Repository, Tree};
use super::ledger::{ItemResult, ItemTag};
use super::mapping::FailureLimits;
use super::prune::item_name;
use super::spec::Job;
use super::steps::{Output, Stage, StepError, kinds, write_log};
use super::template::Values;
use crate::handler::{Context, Handler, HandlerError, Outcome};
use async_trait::async_trait;
use redrive_core::failure::FailureReport;
use redrive_core::ids::MessageId;
use redrive_core::time::Span;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokio::time::Instant;

/// Runs items of one run.
pub(super) struct ItemHandler {
    pub(super) job: Arc<Job>,
    pub(super) run: String,
    /// Where commands run.
    pub(super) directory: PathBuf,
    /// Where logs go.
    pub(super) work: PathBuf,
    /// Where work trees are made, if the job wants one per item.
    pub(super) repository: Option<Repository>,
    /// Whether the run is over its limits: then nothing more begins, not even what was leased already.
    pub(super) over: Arc<OnceLock<FailureLimits>>,
}

#[async_trait]
impl Handler for ItemHandler {
    async fn handle(&self, context: Context) -> Outcome {
        let tag = ItemTag::of(context.message().context.as_ref());
        let Some(tag) = tag.filter(|tag| tag.run == self.run) else {
            return self.not_ours(context.message().id);
        };
        if self.over.get().is_some_and(|limits| limits.stops(&self.job).is_some()) {
            // Not given back at once: it would come again until the worker has been told.
            return Outcome::Snooze(Span::from_secs(1));
        }
        let started = Instant::now();
        let mut output = Output::default();
        match self.steps(&context, &tag, started, &mut output).await {
            Ok(()) => Outcome::reply(&ItemResult {
                run: tag.run,
                item: tag.item,
                index: tag.index,
                attempt: context.attempt(),
                duration_ms: millis(started),
                output: String::from_utf8_lossy(&output.stdout).into_owned(),
            }),
            Err(StepError::Stopped) => Outcome::Release,
            Err(StepError::Failed(report)) => {
                let report = self.complete(&context, &tag, started, output, *report).await;
                Outcome::Fail(HandlerError::from_report(report))
            }
        }
    }
}

impl ItemHandler {
    /// What somebody put in the queue by hand, or sent back although the job was restarted since. It is not run:
    /// this run has its own message for each of its items, and would do the same twice. It is not lost either.
    fn not_ours(&self, id: MessageId) -> Outcome {
        if let Some(limits) = self.over.get() {
            limits.ignore_foreign(id);
        }
        Outcome::dead_letter(format!(
            "not an item of this run of job {}: enqueued by hand, or of an earlier run; it was not executed, abandon it \
             or send it elsewhere",
            self.job.name()
        ))
    }

    async fn steps(
        &self,
        context: &Context,
        tag: &ItemTag,
        started: Instant,
        output: &mut Output,
    ) -> Result<(), StepError> {
        let message = &context.delivery().message;
        let item = item_name(tag.index, message.envelope.id);
        let attempt = format!("{}.{}", message.generation, context.attempt());
        let tree = match &self.repository {
            Some(repository) => Some(repository.tree(&item, &attempt).await.map_err(StepError::Failed)?),
            None => None,
        };
        let done = self.steps_in(context, tag, started, output, tree.as_ref()).await;
        let Some(tree) = tree else { return done };
        let merged = match done {
            Ok(()) => tree.merge().await.map_err(StepError::Failed),
            Err(error) => Err(error),
        };
        // Only the last failed attempt is worth looking at, and none once the item is done.
        if !matches!(merged, Err(StepError::Stopped)) && message.deliveries > 1 {
            tree.remove_earlier().await;
        }
        match merged {
            Ok(()) => {
                tree.remove().await;
                Ok(())
            }
            Err(StepError::Failed(mut report)) => {
                report.artifacts.extend(tree.artifacts().await);
                Err(StepError::Failed(report))
            }
            Err(StepError::Stopped) => {
                tree.remove().await;
                Err(StepError::Stopped)
            }
        }
    }

    async fn steps_in(
        &self,
        context: &Context,
        tag: &ItemTag,
        started: Instant,
        output: &mut Output,
        tree: Option<&Tree>,
    ) -> Result<(), StepError> {
        let item = std::str::from_utf8(context.bytes()).unwrap_or_default();
        let mut values = Values { item: Some(item), vars: Some(&self.job.vars), ..Values::default() };
        values.named.insert("index", tag.index.to_string());
        values.named.insert("job", self.job.name().to_owned());
        values.named.insert("attempt", context.attempt().to_string());
        if let Some(tree) = tree {
            values.named.insert("worktree", tree.path().display().to_string());
        }
        let stage = Stage {
            job: &self.job,
            directory: tree.map_or(self.directory.as_path(), Tree::path),
            values,
            started,
            limit: Some(self.job.timeout),
            cancel: context.cancellation(),
        };
        for step in &self.job.map {
            let before = match tree.filter(|_| step.commit_required) {
                Some(tree) => Some((tree, tree.head().await.map_err(StepError::Failed)?)),
                None => None,
            };
            stage.run(step, output).await?;
            if let Some((tree, before)) = before
                && tree.head().await.map_err(StepError::Failed)? == before
            {
                let what = "the step ended well but made no commit, which commit_required asks for";
                return Err(super::steps::fail(step, kinds::COMMIT_MISSING, what.into(), None, false));
            }
        }
        Ok(())
    }

    /// Everything a person needs to know about a failed attempt.
    async fn complete(
        &self,
        context: &Context,
        tag: &ItemTag,
        started: Instant,
        output: Output,
        mut report: FailureReport,
    ) -> FailureReport {
        let message = &context.delivery().message;
        let step = report.step.clone().unwrap_or_default();
        report.error.context =
            vec![format!("job {}", self.job.name()), format!("item {}", tag.index), format!("step {step}")];
        report.duration = Some(Span::from_millis(millis(started)));
        report.cpu = Some(output.cpu);
        report.memory = output.memory;
        if !output.log.is_empty() {
            let name = format!("{}-{}.{}.log", message.envelope.id, message.generation, context.attempt());
            let log = write_log(&self.work, name, output.log).await.map(|path| path.display().to_string());
            report.log = log.clone();
            report.artifacts.extend(log.map(|path| format!("output: {path}")));
        }
        report
    }
}

fn millis(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)
}
