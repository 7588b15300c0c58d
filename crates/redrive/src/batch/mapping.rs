//! One process's part in a run: enqueues missing items, works until none is left or the run must stop, and counts the
//! results. A run is only stopped for a failure that the store has recorded.

use super::dead_items::{FailureCounts, handle_dead_items};
use super::error::BatchError;
use super::item::ItemHandler;
use super::ledger::{DeadItems, ItemTag, Ledger, written};
use super::run::{Batch, BatchProgress, BatchSummary};
use super::select::Item;
use super::spec::Job;
use super::state::{RunLock, RunState};
use crate::worker::{Worker, WorkerHandle};
use redrive_core::dead_letter::Act;
use redrive_core::ids::MessageId;
use redrive_core::limits;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::time::Span;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Payload bytes enqueued in one commit.
const CHUNK_BYTES: usize = 16 * 1024 * 1024;
/// How often progress is told.
const PROGRESS_EVERY: std::time::Duration = std::time::Duration::from_millis(250);

/// How the work on the items ended.
#[derive(Debug, Default)]
pub(super) struct MapResult {
    pub(super) stopped: Option<String>,
    pub(super) interrupted: bool,
}

/// One process's part in a run.
pub(super) struct Run<'a> {
    pub(super) batch: &'a Batch,
    pub(super) state: &'a RunState,
    pub(super) items: &'a [Item],
    /// The hash of each item by its key.
    pub(super) bodies: &'a HashMap<String, String>,
}

impl Run<'_> {
    /// What the store says about the items of this input.
    pub(super) fn ledger(&self) -> Ledger<'_> {
        Ledger { only: Some(self.bodies), ..self.whole_ledger() }
    }

    /// What it says about every item the run ever had.
    fn whole_ledger(&self) -> Ledger<'_> {
        Ledger { store: self.batch.store.as_ref(), job: &self.batch.job, run: &self.state.run, only: None }
    }

    /// Whether nothing is in the queue.
    pub(super) async fn is_idle(&self) -> Result<bool, BatchError> {
        let queue = self.batch.store.queue(self.batch.job.queue()).await?;
        Ok(queue.counts.waiting == 0 && queue.counts.leased == 0)
    }

    /// Sends the dead items back to work.
    pub(super) async fn retry_dead(&self) -> Result<(), BatchError> {
        let ledger = self.ledger();
        let ids = ledger.dead(&ledger.done().await?).await?.ids;
        self.batch.act(&ids, &Act::retry(), "the run was asked to retry its dead items").await
    }

    /// Puts the items in the queue that are nowhere yet, and takes back what is no longer in the input.
    pub(super) async fn enqueue(&self, resumed: bool) -> Result<(), BatchError> {
        let mut known: HashSet<String> = HashSet::new();
        if resumed {
            let bodies = self.bodies;
            let ledger = self.whole_ledger();
            let done = ledger.done().await?;
            let mut stale = Vec::new();
            for (id, tag) in ledger.waiting().await? {
                if bodies.get(&tag.item) == Some(&tag.body) {
                    known.insert(tag.item);
                } else {
                    stale.push(id);
                }
            }
            for chunk in stale.chunks(limits::RUN_CHUNK) {
                // Those that a worker still has are refused, run once more, and are nobody's result.
                self.batch.store.cancel(chunk.to_vec(), self.batch.acting("no longer in the input")).await?;
            }
            let mut stale = Vec::new();
            for (key, (body, id, status)) in ledger.dead(&done).await?.keys {
                if bodies.get(&key) == Some(&body) {
                    known.insert(key);
                } else if !status.is_closed() {
                    stale.push(id);
                }
            }
            known.extend(done);
            self.batch.act(&stale, &Act::Abandon, "no longer in the input").await?;
        }
        let mut enqueued = 0;
        let mut chunk = Vec::new();
        let mut bytes = 0;
        for (index, item) in self.items.iter().enumerate() {
            if known.contains(&written(&item.key)) {
                continue;
            }
            bytes += item.json.len();
            chunk.push(self.message(index as u64, item));
            if chunk.len() >= limits::RUN_CHUNK || bytes >= CHUNK_BYTES {
                enqueued += self.send(std::mem::take(&mut chunk)).await?;
                bytes = 0;
                self.batch.tell(BatchProgress {
                    total: self.state.total,
                    enqueued,
                    ..BatchProgress::default()
                });
            }
        }
        self.send(chunk).await?;
        Ok(())
    }

    async fn send(&self, chunk: Vec<NewMessage>) -> Result<u64, BatchError> {
        let sent = chunk.len() as u64;
        if sent > 0 {
            for result in self.batch.store.enqueue(chunk).await? {
                result?;
            }
        }
        Ok(sent)
    }

    fn message(&self, index: u64, item: &Item) -> NewMessage {
        let (job, key, body) = (&self.batch.job, written(&item.key), written(&item.body));
        let tag = ItemTag {
            job: job.name().to_owned(),
            run: self.state.run.clone(),
            index,
            item: key.clone(),
            body: body.clone(),
        };
        let payload =
            Payload { bytes: item.json.clone().into_bytes(), content_type: "application/json".into() };
        NewMessage {
            kind: "item".into(),
            key: Some(format!("{}.{key}.{body}", self.state.run)),
            reply_to: Some(job.results()),
            // Texts and numbers can always be written.
            context: serde_json::to_value(&tag).ok(),
            enqueued_by: Some(format!("run {}", job.name())),
            ..NewMessage::new(crate::new_id(), job.queue(), payload)
        }
    }

    /// Works until the queue is empty, somebody says stop, or the job's own limits do.
    pub(super) async fn map(&self, hold: &RunLock) -> Result<MapResult, BatchError> {
        let batch = self.batch;
        let job = &batch.job;
        let repository = if job.worktree { Some(batch.repository(&self.state.run).await?) } else { None };
        let over = Arc::new(OnceLock::new());
        let handler = ItemHandler {
            over: Arc::clone(&over),
            job: Arc::clone(job),
            run: self.state.run.clone(),
            directory: batch.directory.clone(),
            work: batch.work.clone(),
            repository,
        };
        let worker = Worker::builder(Arc::clone(&batch.store))
            .queue(job.queue().as_str())
            .concurrency(job.max_parallel)
            .handler("item", handler)
            .lease(super::LEASE)
            .grace(batch.grace)
            .until_empty()
            .build()?;
        let done = self.ledger().done().await?;
        let dead = self.ledger().dead(&done).await?;
        let limits = FailureLimits {
            done: done.len() as u64,
            failed: dead.open + dead.skipped,
            worker: worker.handle(),
            foreign: Mutex::default(),
        };
        let limits = over.get_or_init(|| limits);
        let handle = worker.handle();
        let ended = CancellationToken::new();
        let work = async {
            let working = worker.run();
            tokio::pin!(working);
            let worked = tokio::select! {
                done = &mut working => done.map(|_| MapResult::default()),
                worked = self.watch(limits, hold) => {
                    handle.stop();
                    tokio::select! {
                        done = &mut working => done.map(|_| worked),
                        () = batch.handle.stop_now.cancelled() => {
                            handle.stop_now();
                            working.await.map(|_| worked)
                        }
                    }
                }
            };
            ended.cancel();
            worked
        };
        let (worked, letters) = tokio::join!(work, handle_dead_items(batch, &self.state.run, &ended));
        let mut worked = worked?;
        letters?;
        // The last failure may be the one too many, and the worker was done before anybody looked.
        if worked.stopped.is_none() && !worked.interrupted {
            worked.stopped = limits.stops(job);
        }
        self.tell(limits);
        Ok(worked)
    }

    /// Tells how far it is, and ends when the run is to stop.
    async fn watch(&self, limits: &FailureLimits, hold: &RunLock) -> MapResult {
        let mut told = Instant::now();
        loop {
            tokio::select! {
                () = self.batch.handle.stop.cancelled() => return MapResult { interrupted: true, ..MapResult::default() },
                () = hold.lost.cancelled() => return MapResult { interrupted: true, ..MapResult::default() },
                () = tokio::time::sleep(LIMITS_EVERY) => {}
            }
            if let Some(why) = limits.stops(&self.batch.job) {
                return MapResult { stopped: Some(why), ..MapResult::default() };
            }
            if told.elapsed() >= PROGRESS_EVERY {
                told = Instant::now();
                self.tell(limits);
            }
        }
    }

    fn tell(&self, limits: &FailureLimits) {
        let counts = limits.worker.counts();
        self.batch.tell(BatchProgress {
            total: self.state.total,
            enqueued: self.state.total,
            done: limits.done + counts.done,
            failed: limits.failed + limits.died(),
            retried: counts.retried,
            running: counts.running,
        });
    }

    /// Counts the items again from the store, and groups the failures. An item that is neither done nor waiting nor an
    /// open dead letter was closed or removed, by somebody or by retention. It counts as skipped, otherwise the run would
    /// wait for it for ever.
    pub(super) async fn sum_up(&self, worked: &MapResult) -> Result<BatchSummary, BatchError> {
        let ledger = self.ledger();
        let keys = ledger.done().await?;
        let DeadItems { open, groups, .. } = ledger.dead(&keys).await?;
        let waiting = ledger.waiting().await?.into_iter().map(|(_, tag)| tag);
        let waiting = waiting.filter(|tag| self.bodies.get(&tag.item) == Some(&tag.body));
        let waiting: HashSet<String> =
            waiting.map(|tag| tag.item).filter(|key| !keys.contains(key)).collect();
        let (done, left) = (keys.len() as u64, waiting.len() as u64);
        Ok(BatchSummary {
            job: self.batch.job.name().to_owned(),
            run: self.state.run.clone(),
            total: self.state.total,
            done,
            dead: open,
            skipped: self.state.total.saturating_sub(done + open + left),
            left,
            bad_rows: 0,
            bad_row_samples: Vec::new(),
            stopped: worked.stopped.clone(),
            interrupted: worked.interrupted,
            already_finished: false,
            groups,
            output: None,
            results_file: None,
            elapsed: Span::ZERO,
        })
    }
}

/// How often the limits are looked at: a failure more or less does not matter, a second does.
const LIMITS_EVERY: std::time::Duration = std::time::Duration::from_millis(20);

/// What was done and dead before this process began, and what its worker did since.
#[derive(Debug)]
pub(super) struct FailureLimits {
    done: u64,
    failed: u64,
    worker: WorkerHandle,
    /// Messages that are no items of the run: that they die is no failure of it.
    foreign: Mutex<HashSet<MessageId>>,
}

impl FailureLimits {
    /// This message is about to die, and is no item of the run.
    pub(super) fn ignore_foreign(&self, id: MessageId) {
        self.foreign.lock().unwrap_or_else(PoisonError::into_inner).insert(id);
    }

    /// Items that died since.
    fn died(&self) -> u64 {
        let foreign = self.foreign.lock().unwrap_or_else(PoisonError::into_inner).len() as u64;
        self.worker.counts().dead.saturating_sub(foreign)
    }

    /// Why the run must stop, if it must. The worker counts what the store has recorded.
    pub(super) fn stops(&self, job: &Job) -> Option<String> {
        let (done, new) = (self.done + self.worker.counts().done, self.died());
        FailureCounts { done, failed: self.failed + new, new }.stops(job)
    }
}
