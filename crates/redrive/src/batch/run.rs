//! [`Batch`], and the course of a run: lock the job, read the input, continue where the last process stopped, enqueue
//! missing items, work until none is left, reduce, and summarise.

use super::error::BatchError;
use super::input;
use super::ledger::{FailureGroup, Ledger};
use super::mapping::{MapResult, Run};
use super::select::{Selected, select};
use super::spec::Job;
use super::state::{RunLock, RunState, Stage, Versioned};
use super::template::Values;
use redrive_core::dead_letter::{Act, ActRequest, Actor};
use redrive_core::error::{CallError, Refusal};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::store::Store;
use redrive_core::time::Span;
use serde::Serialize;
use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How a run starts if there may be an earlier one of the same job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StartMode {
    /// Continue an earlier run if there is one and nothing changed, otherwise start a new one.
    #[default]
    Auto,
    /// Continue an earlier run. It is an error if there is none.
    Resume,
    /// Discard the earlier run and its results, and start a new one.
    Restart,
    /// Continue although the job or its input changed: finished items stay finished, new items are added, and items
    /// that are no longer in the input are removed.
    AcceptChanges,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BatchProgress {
    /// Items of the run.
    pub total: u64,
    /// Items that this process has enqueued so far.
    pub enqueued: u64,
    /// Items that are done.
    pub done: u64,
    /// Items that are dead or skipped.
    pub failed: u64,
    /// Failed attempts whose item will be tried again.
    pub retried: u64,
    /// Items that are running.
    pub running: u64,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchSummary {
    /// The name of the job.
    pub job: String,
    /// The id of the run.
    pub run: String,
    /// Items of the run.
    pub total: u64,
    /// Items that are done.
    pub done: u64,
    /// Items that are open dead letters.
    pub dead: u64,
    /// Items that were given up: by `on_item_failure`, by a person who closed or removed them, or by retention.
    pub skipped: u64,
    /// Items that are still to be done.
    pub left: u64,
    /// Rows of the input that could not be read and were left out.
    pub bad_rows: u64,
    /// The first of these rows.
    pub bad_row_samples: Vec<String>,
    /// Why the run stopped early, if one of the job's limits was reached.
    pub stopped: Option<String>,
    /// The run was stopped from outside.
    pub interrupted: bool,
    /// There was nothing to do: an earlier process had finished the run.
    pub already_finished: bool,
    /// The failures by cause, largest group first.
    pub groups: Vec<FailureGroup>,
    /// The output of the last reduce step.
    pub output: Option<String>,
    /// The file with the results, one JSON document per line, in the order of the items. `None` without a reduce.
    pub results_file: Option<PathBuf>,
    /// How long this process worked on the run.
    #[serde(rename = "elapsed_ms")]
    pub elapsed: Span,
}

impl BatchSummary {
    /// Whether every item is done.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.done == self.total && self.dead == 0 && self.skipped == 0 && self.left == 0
    }
}

/// Stops a run from another task.
#[derive(Clone, Debug, Default)]
pub struct BatchHandle {
    pub(super) stop: CancellationToken,
    pub(super) stop_now: CancellationToken,
}

impl BatchHandle {
    /// Starts no more items, lets running items finish within the grace time, and releases the others.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Stops without the grace time: commands are stopped and their items released, which uses up no attempt.
    pub fn stop_now(&self) {
        self.stop_now.cancel();
        self.stop.cancel();
    }
}

type OnProgress = Arc<dyn Fn(BatchProgress) + Send + Sync>;

/// Runs a job. The same job can be run again and again: finished items are not run again.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::{Batch, Job};
///
/// let here = tempfile::tempdir()?;
/// let job = Job::parse("
/// name: greet
/// input: {command: 'printf \"1\\n2\\n3\\n\"'}
/// map: [{run: 'echo hello ${item}'}]
/// reduce: [{run: 'wc -l < ${results_file}'}]
/// ").map_err(|problems| format!("{problems:?}"))?;
/// let summary = Batch::new(redrive::memory(), job).work_directory(here.path()).run().await?;
/// assert!(summary.is_complete());
/// assert_eq!(summary.output.as_deref().map(str::trim), Some("3"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Batch {
    pub(super) store: Arc<dyn Store>,
    pub(super) job: Arc<Job>,
    pub(super) directory: PathBuf,
    pub(super) work: PathBuf,
    pub(super) trees: PathBuf,
    start_mode: StartMode,
    retry_dead: bool,
    pub(super) actor: String,
    pub(super) grace: Span,
    pub(super) handle: BatchHandle,
    pub(super) on_progress: Option<OnProgress>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({}, {:?})", self.job.name(), self.start_mode)
    }
}

impl Batch {
    /// Prepares a run of this job on this store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, job: Job) -> Self {
        let temporary = std::env::temp_dir();
        Self {
            store,
            directory: ".".into(),
            work: temporary.join("redrive-runs").join(job.name()),
            trees: temporary.join("redrive-worktrees"),
            job: Arc::new(job),
            start_mode: StartMode::Auto,
            retry_dead: false,
            actor: "batch".into(),
            grace: Span::from_secs(30),
            handle: BatchHandle::default(),
            on_progress: None,
        }
    }

    /// The directory in which the job's commands run and to which its paths are relative. Defaults to the current
    /// directory.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// The directory for logs of failed attempts and the results file. Defaults to a directory under the temporary one.
    #[must_use]
    pub fn work_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.work = directory.into();
        self
    }

    /// The directory for git work trees, for jobs that use one per item. It must not contain the store's directory.
    #[must_use]
    pub fn worktrees(mut self, directory: impl Into<PathBuf>) -> Self {
        self.trees = directory.into();
        self
    }

    /// What to do if there is an earlier run of the job.
    #[must_use]
    pub fn start_mode(mut self, mode: StartMode) -> Self {
        self.start_mode = mode;
        self
    }

    /// Whether to redrive the dead items of the run first.
    #[must_use]
    pub fn retry_dead(mut self, retry: bool) -> Self {
        self.retry_dead = retry;
        self
    }

    /// The name of the person or program that runs the job, for the audit trail and for others who try to run it too.
    #[must_use]
    pub fn actor(mut self, name: impl Into<String>) -> Self {
        self.actor = name.into();
        self
    }

    /// How long running items may take to finish after [`BatchHandle::stop`]. Defaults to 30 s.
    #[must_use]
    pub fn grace(mut self, span: Span) -> Self {
        self.grace = span;
        self
    }

    /// A callback that is called a few times a second with the progress of the run.
    #[must_use]
    pub fn on_progress(mut self, tell: impl Fn(BatchProgress) + Send + Sync + 'static) -> Self {
        self.on_progress = Some(Arc::new(tell));
        self
    }

    /// Returns a handle that can stop the run from another task.
    #[must_use]
    pub fn handle(&self) -> BatchHandle {
        self.handle.clone()
    }

    /// Runs the job until it is finished, is stopped, or reaches one of its limits.
    ///
    /// # Errors
    /// Returns a [`BatchError`] if the run cannot start or continue. Failed items are not errors; the summary counts
    /// them.
    pub async fn run(&self) -> Result<BatchSummary, BatchError> {
        let started = Instant::now();
        let hold = RunLock::take(&self.store, self.job.name(), &self.actor).await?;
        let done = self.run_held(&hold, started).await;
        let taken_over = hold.lost.is_cancelled();
        hold.release().await;
        if taken_over { Err(BatchError::TakenOver(self.job.name().into())) } else { done }
    }

    /// The values for placeholders in `setup`, input and reduce.
    pub(super) fn values(&self) -> Values<'_> {
        self.job.values()
    }

    async fn run_held(&self, hold: &RunLock, started: Instant) -> Result<BatchSummary, BatchError> {
        let mut saved = Versioned::<RunState>::load(self.store.as_ref(), self.job.name().to_owned()).await?;
        if self.start_mode == StartMode::Resume && saved.value.is_none() {
            return Err(BatchError::NothingToResume(self.job.name().into()));
        }
        self.job.check_vars()?;
        let read = input::read(&self.job.input, &self.directory, &self.values()).await?;
        let selected = select(&self.job, read.items)?;
        if self.start_mode == StartMode::Restart {
            self.forget(&mut saved).await?;
        }
        let resumed = saved.value.is_some();
        let mut state = self.state(&saved, &selected).await?;
        let changed = saved.value.as_ref().is_some_and(|old| *old != state);
        saved.save(self.store.as_ref(), Some(state.clone())).await?;

        if state.stage == Stage::Setup {
            self.setup().await?;
            state.stage = Stage::Enqueueing;
            saved.save(self.store.as_ref(), Some(state.clone())).await?;
        }
        self.configure().await?;
        let bodies = selected.bodies();
        let run = Run { batch: self, state: &state, items: &selected.items, bodies: &bodies };
        if self.retry_dead {
            run.retry_dead().await?;
        }
        if state.stage == Stage::Enqueueing || changed {
            run.enqueue(resumed).await?;
            state.stage = Stage::Mapping;
            saved.save(self.store.as_ref(), Some(state.clone())).await?;
        }
        // Somebody may have closed items of the run since.
        self.remove_closed_trees(&state.run).await;
        let run = Run { batch: self, state: &state, items: &selected.items, bodies: &bodies };
        let idle = state.stage == Stage::Finished && run.is_idle().await?;
        let worked = if idle { MapResult::default() } else { run.map(hold).await? };
        self.remove_closed_trees(&state.run).await;
        let mut summary = run.sum_up(&worked).await?;
        summary.bad_rows = read.bad_rows;
        summary.bad_row_samples = read.bad_samples;
        summary.already_finished = idle;
        if summary.stopped.is_none() && !summary.interrupted && summary.left == 0 {
            run.reduce(&mut summary).await?;
            state.reduced = Some(summary.done);
            state.stage = Stage::Finished;
            saved.save(self.store.as_ref(), Some(state.clone())).await?;
        }
        summary.elapsed = Span::from_millis(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
        Ok(summary)
    }

    /// The state to continue with: the last one, brought up to date, or a new one.
    async fn state(&self, saved: &Versioned<RunState>, selected: &Selected) -> Result<RunState, BatchError> {
        let job_hash = self.job.hash();
        let total = selected.items.len() as u64;
        let Some(old) = &saved.value else {
            return Ok(RunState {
                run: crate::new_id().to_string(),
                job_hash,
                input_hash: selected.hash.clone(),
                total,
                started_at: self.store.info().await?.now,
                stage: Stage::Setup,
                reduced: None,
            });
        };
        let what = match (old.job_hash == job_hash, old.input_hash == selected.hash) {
            (true, true) => return Ok(old.clone()),
            (false, true) => "the job file",
            (true, false) => "the input",
            (false, false) => "the job file and the input",
        };
        if self.start_mode != StartMode::AcceptChanges {
            return Err(BatchError::Changed { job: self.job.name().into(), what });
        }
        let stage = if old.stage == Stage::Setup { Stage::Setup } else { Stage::Enqueueing };
        let input_hash = selected.hash.clone();
        // The results may differ even if their number is the same.
        Ok(RunState { job_hash, input_hash, total, stage, reduced: None, ..old.clone() })
    }

    pub(super) fn acting(&self, reason: &str) -> Actor {
        Actor { reason: Some(reason.to_owned()), ..Actor::new(self.actor.clone(), "run") }
    }

    /// Sets the policy of the job's queue. The results queue needs none.
    async fn configure(&self) -> Result<(), BatchError> {
        let policy = self.job.policy();
        let known = match self.store.queue(self.job.queue()).await {
            Ok(queue) => Some(queue.policy),
            Err(CallError::Refused(Refusal::NoSuchQueue { .. })) => None,
            Err(error) => return Err(error.into()),
        };
        if known.as_ref() != Some(&policy) {
            self.store.configure(self.job.queue(), policy, self.acting("from the job file")).await?;
        }
        Ok(())
    }

    /// Discards an earlier run: removes its messages and results, and abandons its dead letters.
    async fn forget(&self, saved: &mut Versioned<RunState>) -> Result<(), BatchError> {
        let Some(old) = saved.value.clone() else { return Ok(()) };
        saved.save(self.store.as_ref(), None).await?;
        for queue in [self.job.queue(), self.job.results()] {
            self.empty(queue).await?;
        }
        let ledger = Ledger { store: self.store.as_ref(), job: &self.job, run: &old.run, only: None };
        let ids = ledger.dead(&HashSet::new()).await?.ids;
        self.act(&ids, &Act::Abandon, "the job was restarted").await?;
        self.remove_trees_of(&old.run).await;
        Ok(())
    }

    async fn empty(&self, queue: QueueName) -> Result<(), BatchError> {
        loop {
            match self.store.purge(queue.clone(), self.acting("the job was restarted")).await {
                Ok(purged) if purged.more => {}
                Ok(_) | Err(CallError::Refused(Refusal::NoSuchQueue { .. })) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Applies an act to many letters. Letters that do not allow it are left unchanged.
    pub(super) async fn act(&self, ids: &[MessageId], act: &Act, reason: &str) -> Result<(), BatchError> {
        for chunk in ids.chunks(ACTS_PER_COMMIT) {
            let actor = self.acting(reason);
            let one = |id: &MessageId| ActRequest {
                id: *id,
                act: act.clone(),
                actor: actor.clone(),
                expected_version: None,
            };
            self.store.act(chunk.iter().map(one).collect()).await?;
        }
        Ok(())
    }

    pub(super) fn tell(&self, progress: BatchProgress) {
        if let Some(tell) = &self.on_progress {
            tell(progress);
        }
    }
}

/// Letters changed in one commit.
const ACTS_PER_COMMIT: usize = 500;
