//! [`Batch`], and the course of a run: take the right to it, read the input, go on where the last process stopped,
//! enqueue what is missing, work until nothing is left, reduce, sum up.

use super::error::BatchError;
use super::input;
use super::ledger::{FailureGroup, Ledger};
use super::mapping::{Run, Worked};
use super::select::{Selected, select};
use super::spec::Job;
use super::state::{Hold, Kept, RunState, Stage};
use super::template::Values;
use redrive_core::dead_letter::{Act, ActRequest, Actor};
use redrive_core::error::{Error, Refusal};
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

/// How a run begins when there may be an earlier one of the same job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// Go on if there is one and nothing changed, else begin.
    #[default]
    Auto,
    /// Go on; it is an error when there is none.
    Resume,
    /// Forget it and its results, and begin anew.
    Restart,
    /// Go on although the job or its input changed: what is done stays done, what is new is added, what is no
    /// longer in the input is taken back.
    AcceptChanges,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BatchProgress {
    /// Items of the run.
    pub total: u64,
    /// Items put in the queue by this process, while it does so.
    pub enqueued: u64,
    /// Items that are done.
    pub done: u64,
    /// Items that are dead or skipped.
    pub failed: u64,
    /// Attempts that failed and will be made again.
    pub retried: u64,
    /// Items being worked on.
    pub running: u64,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BatchSummary {
    /// The job.
    pub job: String,
    /// The run.
    pub run: String,
    /// Items of the run.
    pub total: u64,
    /// Items that are done.
    pub done: u64,
    /// Items that lie in the drawer.
    pub dead: u64,
    /// Items that were given up: by `on_item_failure`, by somebody who closed or removed them, or by retention.
    pub skipped: u64,
    /// Items that are still to be done.
    pub left: u64,
    /// Rows of the input that could not be read and were left out.
    pub bad_rows: u64,
    /// The first of those.
    pub bad_row_samples: Vec<String>,
    /// Why it stopped before its end, if it did.
    pub stopped: Option<String>,
    /// It was told to stop.
    pub interrupted: bool,
    /// There was nothing to do: an earlier process had done it all.
    pub already_finished: bool,
    /// What failed, by cause, most first.
    pub groups: Vec<FailureGroup>,
    /// What the last step of reduce printed.
    pub output: Option<String>,
    /// Where the results are, one JSON document a line, in the order of the items; only after a reduce.
    pub results_file: Option<PathBuf>,
    /// How long this process worked on it.
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

/// Stops a run from elsewhere.
#[derive(Clone, Debug, Default)]
pub struct BatchHandle {
    pub(super) stop: CancellationToken,
    pub(super) hurry: CancellationToken,
}

impl BatchHandle {
    /// Begin no more items, let those that run finish within the grace time, give the rest back.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// The same without the grace time: commands are ended and their items given back, which costs no attempt.
    pub fn stop_now(&self) {
        self.hurry.cancel();
        self.stop.cancel();
    }
}

type OnProgress = Arc<dyn Fn(BatchProgress) + Send + Sync>;

/// Runs a job. The same job may be run again and again: what is done is not done again.
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
    begin: Begin,
    retry_dead: bool,
    pub(super) actor: String,
    pub(super) grace: Span,
    pub(super) handle: BatchHandle,
    pub(super) on_progress: Option<OnProgress>,
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({}, {:?})", self.job.name(), self.begin)
    }
}

impl Batch {
    /// A run of this job on this store.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, job: Job) -> Self {
        let temporary = std::env::temp_dir();
        Self {
            store,
            directory: ".".into(),
            work: temporary.join("redrive-runs").join(job.name()),
            trees: temporary.join("redrive-worktrees"),
            job: Arc::new(job),
            begin: Begin::Auto,
            retry_dead: false,
            actor: "batch".into(),
            grace: Span::from_secs(30),
            handle: BatchHandle::default(),
            on_progress: None,
        }
    }

    /// Where relative paths of the job begin and its commands run; the current directory when not said.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = directory.into();
        self
    }

    /// Where logs of failed attempts and the file of results go; under the temporary directory when not said.
    #[must_use]
    pub fn work_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.work = directory.into();
        self
    }

    /// Where git work trees are made, for jobs that want one per item. Must not hold the store's directory.
    #[must_use]
    pub fn worktrees(mut self, directory: impl Into<PathBuf>) -> Self {
        self.trees = directory.into();
        self
    }

    /// What to do when there is an earlier run of the job.
    #[must_use]
    pub fn begin(mut self, begin: Begin) -> Self {
        self.begin = begin;
        self
    }

    /// Sends the dead items of the run back to work first.
    #[must_use]
    pub fn retry_dead(mut self, retry: bool) -> Self {
        self.retry_dead = retry;
        self
    }

    /// Who runs it, for the audit trail and for others who want to run it too.
    #[must_use]
    pub fn actor(mut self, name: impl Into<String>) -> Self {
        self.actor = name.into();
        self
    }

    /// How long running items may take to finish after [`BatchHandle::stop`]; 30 s when not said.
    #[must_use]
    pub fn grace(mut self, span: Span) -> Self {
        self.grace = span;
        self
    }

    /// Is told a few times a second how far the run is.
    #[must_use]
    pub fn on_progress(mut self, tell: impl Fn(BatchProgress) + Send + Sync + 'static) -> Self {
        self.on_progress = Some(Arc::new(tell));
        self
    }

    /// To stop it from elsewhere.
    #[must_use]
    pub fn handle(&self) -> BatchHandle {
        self.handle.clone()
    }

    /// Runs the job to its end, or as far as it may.
    ///
    /// # Errors
    /// [`BatchError`] when it cannot begin or go on. Failed items are not errors; the summary counts them.
    pub async fn run(&self) -> Result<BatchSummary, BatchError> {
        let begun = Instant::now();
        let hold = Hold::take(&self.store, self.job.name(), &self.actor).await?;
        let done = self.run_held(&hold, begun).await;
        let taken_over = hold.lost.is_cancelled();
        hold.release().await;
        if taken_over { Err(BatchError::TakenOver(self.job.name().into())) } else { done }
    }

    /// What `setup`, input and reduce may use.
    pub(super) fn values(&self) -> Values<'_> {
        self.job.values()
    }

    async fn run_held(&self, hold: &Hold, begun: Instant) -> Result<BatchSummary, BatchError> {
        let mut kept = Kept::<RunState>::load(self.store.as_ref(), self.job.name().to_owned()).await?;
        if self.begin == Begin::Resume && kept.value.is_none() {
            return Err(BatchError::NothingToResume(self.job.name().into()));
        }
        self.job.check_vars()?;
        let read = input::read(&self.job.input, &self.directory, &self.values()).await?;
        let selected = select(&self.job, read.items)?;
        if self.begin == Begin::Restart {
            self.forget(&mut kept).await?;
        }
        let resumed = kept.value.is_some();
        let mut state = self.state(&kept, &selected).await?;
        let changed = kept.value.as_ref().is_some_and(|old| *old != state);
        kept.save(self.store.as_ref(), Some(state.clone())).await?;

        if state.stage == Stage::Setup {
            self.setup().await?;
            state.stage = Stage::Enqueueing;
            kept.save(self.store.as_ref(), Some(state.clone())).await?;
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
            kept.save(self.store.as_ref(), Some(state.clone())).await?;
        }
        // Somebody may have closed items of it since.
        self.remove_closed_trees(&state.run).await;
        let run = Run { batch: self, state: &state, items: &selected.items, bodies: &bodies };
        let idle = state.stage == Stage::Finished && run.is_idle().await?;
        let worked = if idle { Worked::default() } else { run.map(hold).await? };
        self.remove_closed_trees(&state.run).await;
        let mut summary = run.sum_up(&worked).await?;
        summary.bad_rows = read.bad_rows;
        summary.bad_row_samples = read.bad_samples;
        summary.already_finished = idle;
        if summary.stopped.is_none() && !summary.interrupted && summary.left == 0 {
            run.reduce(&mut summary).await?;
            state.reduced = Some(summary.done);
            state.stage = Stage::Finished;
            kept.save(self.store.as_ref(), Some(state.clone())).await?;
        }
        summary.elapsed = Span::from_millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        Ok(summary)
    }

    /// The state to go on with: the last one, brought up to date, or a new one.
    async fn state(&self, kept: &Kept<RunState>, selected: &Selected) -> Result<RunState, BatchError> {
        let job_hash = self.job.hash();
        let total = selected.items.len() as u64;
        let Some(old) = &kept.value else {
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
        if self.begin != Begin::AcceptChanges {
            return Err(BatchError::Changed { job: self.job.name().into(), what });
        }
        let stage = if old.stage == Stage::Setup { Stage::Setup } else { Stage::Enqueueing };
        let input_hash = selected.hash.clone();
        // As many results as before may be other ones.
        Ok(RunState { job_hash, input_hash, total, stage, reduced: None, ..old.clone() })
    }

    pub(super) fn acting(&self, reason: &str) -> Actor {
        Actor { reason: Some(reason.to_owned()), ..Actor::new(self.actor.clone(), "run") }
    }

    /// Gives the job's queue the job's rules; the results' queue needs none.
    async fn configure(&self) -> Result<(), BatchError> {
        let policy = self.job.policy();
        let known = match self.store.queue(self.job.queue()).await {
            Ok(queue) => Some(queue.policy),
            Err(Error::Refused(Refusal::NoSuchQueue { .. })) => None,
            Err(error) => return Err(error.into()),
        };
        if known.as_ref() != Some(&policy) {
            self.store.configure(self.job.queue(), policy, self.acting("from the job file")).await?;
        }
        Ok(())
    }

    /// Forgets an earlier run: its messages and results are removed, its dead letters given up.
    async fn forget(&self, kept: &mut Kept<RunState>) -> Result<(), BatchError> {
        let Some(old) = kept.value.clone() else { return Ok(()) };
        kept.save(self.store.as_ref(), None).await?;
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
                Ok(_) | Err(Error::Refused(Refusal::NoSuchQueue { .. })) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Does the same to many letters; those that changed meanwhile are left as they are.
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

/// Letters acted on in one commit.
const ACTS_PER_COMMIT: usize = 500;
