//! The writer: one thread that owns the only connection that writes.
//!
//! It takes the jobs that are waiting, applies them in one transaction, commits with one fsync and only then replies.
//! After a failed write nothing more is acknowledged: every later call fails with [`stopped`] (I6).

use super::checkpoint::{Checkpointer, PASSIVE, Pass, TRUNCATE, checkpoint};
use super::commit_mark::CommitMark;
use super::errors::sql_result;
use super::reads::SqlTables;
use super::reserve::Reserve;
use crate::clock::StoreClock;
use crate::engine::Engine;
use crate::engine::tables::{TableResult, Tables as _};
use crate::engine::touched::Touched;
use crate::faults::{self, Fault};
use crate::holder::Holder;
use crate::jobs::Reply;
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::limits;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use tokio::sync::mpsc;

/// A unit of work for the writer.
pub(super) type Job = crate::jobs::Job<SqlTables>;

/// Log pages after which a checkpoint is made as soon as no job waits.
const CHECKPOINT_WHEN_IDLE: i32 = 4_000;
/// Log pages after which a checkpoint is made even if jobs wait.
pub(super) const CHECKPOINT_ALWAYS: i32 = 8_000;
/// Log pages beyond which commits wait for the checkpoint: the disk is slower than the commits.
const LOG_MAX: i32 = 32_000;
/// The writer finishes a checkpoint itself if at most this many pages were appended during the background pass, about
/// a millisecond of work. If there are more, another background pass runs first, and that one is shorter.
const WRITER_FINISHES_PAGES: i32 = 250;

/// Log pages after which a checkpoint is made when the disk is
/// nearly full: a long log would use up the space that acks need.
const CHECKPOINT_WHEN_TIGHT: i32 = 250;

/// State shared by the writer and the handles that send jobs to it.
#[derive(Debug)]
pub(super) struct Shared {
    /// What this process remembers beside the store.
    pub(super) holder: Arc<Holder>,
    /// The number of jobs not answered yet, except long ones. Long jobs look at it to let others in.
    pub(super) waiting: Arc<AtomicUsize>,
    /// Whether the disk is full, so that jobs that need space are refused.
    pub(super) full: AtomicBool,
    /// Whether a write failed, so that nothing is acknowledged any more.
    pub(super) stopped: AtomicBool,
}

impl Shared {
    pub(super) fn new(holder: Arc<Holder>) -> Self {
        Self {
            holder,
            waiting: Arc::default(),
            full: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
        }
    }
}

/// The state of the writer thread.
pub(super) struct Writer {
    pub(super) engine: Engine<SqlTables>,
    pub(super) clock: StoreClock,
    pub(super) shared: Arc<Shared>,
    pub(super) mark: CommitMark,
    pub(super) reserve: Reserve,
    /// The number of commits that changed something, over the life of the store.
    pub(super) commits: u64,
    /// Pages in the log, as last reported by SQLite's commit hook.
    pub(super) log_pages: Arc<AtomicI32>,
    pub(super) checkpointer: Checkpointer,
    /// The log length at which the next checkpoint is tried, after a reader kept the last one from completing.
    pub(super) retry_at_pages: i32,
}

impl Writer {
    /// Processes jobs until every sender is gone. Each round commits the short jobs as one group and replies to them,
    /// then commits one long job by itself.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut long = VecDeque::new();
        loop {
            let first = match long.is_empty() {
                true => jobs.blocking_recv(),
                false => None,
            };
            if first.is_none() && long.is_empty() {
                break;
            }
            let arrived = first.into_iter().chain(std::iter::from_fn(|| jobs.try_recv().ok()));
            let mut group = Vec::new();
            for job in arrived.take(limits::GROUP_COMMANDS_MAX) {
                if job.cost.long { long.push_back(job) } else { group.push(job) }
            }
            self.commit_group(group);
            self.commit_group(long.pop_front().into_iter().collect());
            self.checkpoint_if_due(jobs.is_empty() && long.is_empty());
        }
        self.close();
    }

    /// Applies a group of jobs in one commit, then replies to them. Jobs that need space are dropped on a full disk.
    fn commit_group(&mut self, group: Vec<Job>) {
        if self.shared.stopped.load(Ordering::SeqCst) {
            // Dropping a job closes its reply channel; its sender then reports why.
            return;
        }
        if self.shared.full.load(Ordering::SeqCst) && self.reserve.has_space_again() {
            self.shared.full.store(false, Ordering::SeqCst);
        }
        let full = self.shared.full.load(Ordering::SeqCst);
        let group: Vec<Job> = group.into_iter().filter(|job| !(full && job.cost.grows)).collect();
        if group.is_empty() {
            return;
        }
        let mut replies = Vec::with_capacity(group.len());
        match self.apply(group, &mut replies) {
            Ok(changed) => {
                self.note_commit(changed);
                let Touched { areas, available } = self.engine.take_touched();
                self.shared.holder.publish(areas);
                // A sync that failed in the background meanwhile may have been the one this commit depends on.
                let stopped = self.shared.stopped.load(Ordering::SeqCst);
                for reply in replies {
                    reply(if stopped { Err(self::stopped()) } else { Ok(()) });
                }
                self.shared.holder.offer(&available);
            }
            Err(error) => self.roll_back(&error, replies),
        }
    }

    /// Applies a group and commits it. Returns whether anything changed. On error, nothing of the group has happened.
    fn apply(&mut self, group: Vec<Job>, replies: &mut Vec<Reply>) -> TableResult<bool> {
        sql_result(self.engine.tables.connection.execute_batch("BEGIN IMMEDIATE"))?;
        let before = self.engine.tables.connection.total_changes();
        let stamp = self.clock.stamp();
        let now = stamp.time;
        let (mut first_error, mut guards) = (None, Vec::with_capacity(group.len()));
        for job in group {
            // A job that has been applied still waits for the commit, so it stays counted.
            guards.push(job.waiting);
            let (reply, error) = (job.apply)(&mut self.engine, now);
            replies.push(reply);
            if let Some(error) = error {
                first_error = first_error.or(Some(error));
            }
        }
        if let Some(error) = first_error {
            return Err(error);
        }
        self.engine.flush()?;
        if self.engine.tables.connection.total_changes() == before {
            // An empty lease or a look at what is due: there is nothing to make durable, so no sync is needed.
            return sql_result(self.engine.tables.connection.execute_batch("COMMIT")).map(|()| false);
        }
        let sql =
            "UPDATE head SET commits = ?1, clock = max(clock, ?2), boot = ?3, uptime = ?4 WHERE one = 1";
        let (boot, up) = (stamp.uptime.map(|u| format!("{:032x}", u.boot)), stamp.uptime.map(|u| u.ms));
        self.engine.tables.run(sql, &[&super::rows::int(self.commits + 1), &now.as_millis(), &boot, &up])?;
        if faults::is(Fault::AckBeforeCommit) {
            for reply in replies.drain(..) {
                reply(Ok(()));
            }
        }
        match sql_result(self.engine.tables.connection.execute_batch("COMMIT")) {
            Err(error) if faults::is(Fault::EioSwallowed) => {
                let _ = error;
                let _ = self.engine.tables.connection.execute_batch("ROLLBACK");
                Ok(true)
            }
            result => result.map(|()| true),
        }
    }

    /// Does what follows a commit before its replies: notes it in the commit mark and records its measurements.
    fn note_commit(&mut self, changed: bool) {
        if changed {
            self.commits += 1;
            // The mark only helps the next open; failing to write it breaks no promise.
            let _ = self.mark.note(self.commits);
        }
        self.engine.after_commit.record();
        for row in std::mem::take(&mut self.engine.late_audit) {
            let _ = self.engine.tables.add_audit(&row);
        }
    }

    /// Rolls a failed group back and reports the error to its jobs. A full disk is remembered, so that jobs that need
    /// space are refused from now on; any other error of the disk stops the writer for good.
    fn roll_back(&mut self, error: &StoreError, replies: Vec<Reply>) {
        let _ = self.engine.tables.connection.execute_batch("ROLLBACK");
        self.engine.forget();
        match error.kind {
            StoreErrorKind::Full => {
                self.reserve.release();
                self.shared.full.store(true, Ordering::SeqCst);
            }
            // The commit was undone, but nothing is wrong with the disk: the writer goes on.
            StoreErrorKind::Undone => {}
            StoreErrorKind::Stopped
            | StoreErrorKind::Damaged
            | StoreErrorKind::Newer
            | StoreErrorKind::NotAStore
            | StoreErrorKind::Locked
            | StoreErrorKind::Io
            | StoreErrorKind::Unsupported
            | StoreErrorKind::Unreachable
            | StoreErrorKind::Protocol
            | StoreErrorKind::Untrusted
            | StoreErrorKind::Unauthenticated
            | StoreErrorKind::Busy
            | StoreErrorKind::NotHolder => self.shared.stopped.store(true, Ordering::SeqCst),
        }
        for reply in replies {
            reply(Err(error.clone()));
        }
    }

    /// Makes a checkpoint if the log is long. A background thread copies nearly all of the log into the database file
    /// while commits go on; the writer copies the last part, after which the log starts over.
    fn checkpoint_if_due(&mut self, idle: bool) {
        let pages = self.log_pages.load(Ordering::Relaxed);
        self.checkpointer.note_log_length(pages);
        let tight = pages >= CHECKPOINT_WHEN_TIGHT && self.reserve.disk_is_tight();
        let due = tight || (idle && pages >= CHECKPOINT_WHEN_IDLE) || pages >= CHECKPOINT_ALWAYS;
        if !due || pages < self.retry_at_pages || self.shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        // On a full disk the remaining space is for the log of leases and acks. A checkpoint lets the log start
        // over, so that they can go on indefinitely, but is only made if the database file hardly has to grow for it.
        if self.shared.full.load(Ordering::SeqCst) && !self.file_hardly_grows() {
            return;
        }
        match self.step_checkpoint(pages, tight || pages >= LOG_MAX) {
            Ok(()) => {}
            Err(error) if error.kind == StoreErrorKind::Full => {
                self.reserve.release();
                self.shared.full.store(true, Ordering::SeqCst);
            }
            Err(_) => self.shared.stopped.store(true, Ordering::SeqCst),
        }
    }

    /// Takes the next step of a checkpoint of a log of `pages` pages. `at_once` completes it while commits wait.
    fn step_checkpoint(&mut self, pages: i32, at_once: bool) -> TableResult<()> {
        if at_once {
            self.checkpointer.wait()?;
        } else {
            match self.checkpointer.state()? {
                Pass::Running => return Ok(()),
                Pass::Over { from } if pages.saturating_sub(from) <= WRITER_FINISHES_PAGES => {}
                Pass::Over { .. } | Pass::None => {
                    // If the background thread cannot be started, the writer does all the work.
                    if self.checkpointer.begin(pages).is_ok() {
                        return Ok(());
                    }
                }
            }
        }
        if checkpoint(&self.engine.tables.connection, PASSIVE)?.is_complete() {
            self.log_pages.store(0, Ordering::Relaxed);
            self.retry_at_pages = 0;
            let _ = self.mark.sync();
        } else {
            // A reader still needs the old pages: trying again with every commit is no use.
            self.retry_at_pages = pages.saturating_add(CHECKPOINT_WHEN_IDLE);
        }
        Ok(())
    }

    /// Whether a checkpoint now would grow the database file by at most half of the free space.
    fn file_hardly_grows(&self) -> bool {
        let connection = &self.engine.tables.connection;
        let pragma = |what: &str| {
            connection
                .query_row(&format!("PRAGMA {what}"), [], |row| row.get::<_, i64>(0))
                .unwrap_or(i64::MAX)
        };
        let full_length =
            u64::try_from(pragma("page_count").saturating_mul(pragma("page_size"))).unwrap_or(u64::MAX);
        let path = connection.path().map(std::path::Path::new);
        let length = path.and_then(|path| std::fs::metadata(path).ok()).map_or(0, |file| file.len());
        full_length.saturating_sub(length) <= self.reserve.free_bytes() / 2
    }

    /// Empties the log before the thread ends.
    fn close(mut self) {
        // On a full disk the remaining space is for the next process to open the store with.
        if self.shared.stopped.load(Ordering::SeqCst) || self.shared.full.load(Ordering::SeqCst) {
            return;
        }
        if self.checkpointer.wait().is_err() {
            return;
        }
        let _ = checkpoint(&self.engine.tables.connection, TRUNCATE);
        let _ = self.mark.sync();
    }
}

/// The error of every call after a failed write.
pub(super) fn stopped() -> StoreError {
    let why = "a write to this store failed earlier; nothing more is acknowledged: check the disk, then start again";
    StoreError::new(StoreErrorKind::Stopped, why)
}

/// The error of calls that need space on a full disk.
pub(super) fn disk_full() -> StoreError {
    let why = "no space is left on the disk: new work is refused until 16 MiB are free; leases, acks and purge go on";
    StoreError::new(StoreErrorKind::Full, why)
}
