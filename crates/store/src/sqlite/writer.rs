//! The writer: one thread, one connection. It takes what is waiting, applies it in one
//! transaction, commits with one fsync and only then answers. After a failed write it answers nothing but that
//! it has stopped (I6).

use super::checkpoint::{Checkpointer, PASSIVE, Pass, TRUNCATE, checkpoint};
use super::errors::kept;
use super::mark::Mark;
use super::open::StoreClock;
use super::reads::SqlTables;
use super::reserve::Reserve;
use crate::engine::Engine;
use crate::engine::tables::{Kept, Tables as _};
use crate::faults::{self, Fault};
use crate::verbs::Load;
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::limits;
use redrive_core::time::Time;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use tokio::sync::{Notify, mpsc};

/// Told how the commit went; sends the reply.
pub(super) type Answer = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// A verb waiting for its commit: applies itself and gives its answer, and the error that spoils the commit.
pub(super) type Apply = Box<dyn FnOnce(&mut Engine<SqlTables>, Time) -> (Answer, Option<StoreError>) + Send>;

/// What is sent to the writer.
pub(super) struct Job {
    pub(super) load: Load,
    pub(super) apply: Apply,
    /// Counted as long as it is there. Long work is not: nothing makes room for it.
    pub(super) place: Option<Place>,
}

/// A place among those who wait for a commit.
pub(super) struct Place(Arc<AtomicUsize>);

impl Place {
    pub(super) fn among(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(waiting))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Log pages after which a checkpoint is made as soon as nobody waits.
const CHECKPOINT_WHEN_IDLE: i32 = 4_000;
/// Log pages after which a checkpoint is made in any case.
pub(super) const CHECKPOINT_ALWAYS: i32 = 8_000;
/// Log pages beyond which commits wait for it: the disk is slower than they are.
const LOG_MAX: i32 = 32_000;
/// Pages that came into the log during a pass beside the writer, up to which the writer moves them itself: about a
/// millisecond. Where it were more there is another pass first, and that is a shorter one.
const LEFT_FOR_WRITER: i32 = 250;

/// Log pages after which a checkpoint is made when the disk is nearly full: a long log would take the room that
/// acks need.
const CHECKPOINT_WHEN_TIGHT: i32 = 250;

/// What the writer shares with those who send to it.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) bell: Notify,
    /// Jobs that were sent and are not answered, but for the long ones: those look whether anybody waits.
    pub(super) waiting: Arc<AtomicUsize>,
    /// The disk is full: what grows is refused.
    pub(super) full: AtomicBool,
    /// A write failed: nothing is acknowledged any more.
    pub(super) stopped: AtomicBool,
}

pub(super) struct Writer {
    pub(super) engine: Engine<SqlTables>,
    pub(super) clock: StoreClock,
    pub(super) shared: Arc<Shared>,
    pub(super) mark: Mark,
    pub(super) reserve: Reserve,
    pub(super) commits: u64,
    /// Pages in the log, as SQLite's commit hook last said.
    pub(super) log_pages: Arc<AtomicI32>,
    pub(super) checkpointer: Checkpointer,
    /// How long the log has to be for another try to move it: a reader was in the way of the last.
    pub(super) try_again_at: i32,
}

impl Writer {
    /// Serves jobs until nobody can send any more. What takes long has a commit of its own, one in a turn, and those
    /// who came with it are answered before it begins.
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
                if job.load.long { long.push_back(job) } else { group.push(job) }
            }
            self.commit_group(group);
            self.commit_group(long.pop_front().into_iter().collect());
            self.checkpoint_if_due(jobs.is_empty() && long.is_empty());
        }
        self.close();
    }

    fn commit_group(&mut self, group: Vec<Job>) {
        if self.shared.stopped.load(Ordering::SeqCst) {
            // Jobs that are dropped unapplied close their reply; the sender then says that the store stopped.
            return;
        }
        if self.shared.full.load(Ordering::SeqCst) && self.reserve.room_again() {
            self.shared.full.store(false, Ordering::SeqCst);
        }
        let full = self.shared.full.load(Ordering::SeqCst);
        let group: Vec<Job> = group.into_iter().filter(|job| !(full && job.load.grows)).collect();
        if group.is_empty() {
            return;
        }
        let mut answers = Vec::with_capacity(group.len());
        match self.apply(group, &mut answers) {
            Ok(changed) => {
                self.note_commit(changed);
                // A sync that failed beside this commit may have been the one it needed.
                let stopped = self.shared.stopped.load(Ordering::SeqCst);
                for answer in answers {
                    answer(if stopped { Err(self::stopped()) } else { Ok(()) });
                }
            }
            Err(error) => self.give_up(&error, answers),
        }
    }

    /// Applies a group and commits it; says whether it changed anything. On error nothing of it has happened.
    fn apply(&mut self, group: Vec<Job>, answers: &mut Vec<Answer>) -> Kept<bool> {
        kept(self.engine.tables.connection.execute_batch("BEGIN IMMEDIATE"))?;
        let before = self.engine.tables.connection.total_changes();
        let stamp = self.clock.stamp();
        let now = stamp.time;
        let (mut spoiled, mut places) = (None, Vec::with_capacity(group.len()));
        for job in group {
            // Who was served waits for the commit like those who were not.
            places.push(job.place);
            let (answer, error) = (job.apply)(&mut self.engine, now);
            answers.push(answer);
            if let Some(error) = error {
                spoiled = spoiled.or(Some(error));
            }
        }
        if let Some(error) = spoiled {
            return Err(error);
        }
        self.engine.flush()?;
        if self.engine.tables.connection.total_changes() == before {
            // An empty lease or a look at what is due: nothing to make durable, so nothing to sync.
            return kept(self.engine.tables.connection.execute_batch("COMMIT")).map(|()| false);
        }
        let sql =
            "UPDATE head SET commits = ?1, clock = max(clock, ?2), boot = ?3, uptime = ?4 WHERE one = 1";
        let (boot, up) = (stamp.uptime.map(|u| format!("{:032x}", u.boot)), stamp.uptime.map(|u| u.ms));
        self.engine.tables.run(sql, &[&super::rows::int(self.commits + 1), &now.as_millis(), &boot, &up])?;
        if faults::is(Fault::AckBeforeCommit) {
            for answer in answers.drain(..) {
                answer(Ok(()));
            }
        }
        match kept(self.engine.tables.connection.execute_batch("COMMIT")) {
            Err(error) if faults::is(Fault::EioSwallowed) => {
                let _ = error;
                let _ = self.engine.tables.connection.execute_batch("ROLLBACK");
                Ok(true)
            }
            result => result.map(|()| true),
        }
    }

    fn note_commit(&mut self, changed: bool) {
        if changed {
            self.commits += 1;
            // The mark is advice for the next open; that it could not be written breaks no promise.
            let _ = self.mark.note(self.commits);
        }
        for row in std::mem::take(&mut self.engine.late_audit) {
            let _ = self.engine.tables.add_audit(&row);
        }
        if std::mem::take(&mut self.engine.woke) {
            self.shared.bell.notify_waiters();
        }
    }

    /// The group did not happen. A full disk refuses it and what grows from now on; anything else that SQLite
    /// reports about the disk ends this writer.
    fn give_up(&mut self, error: &StoreError, answers: Vec<Answer>) {
        let _ = self.engine.tables.connection.execute_batch("ROLLBACK");
        self.engine.forget();
        match error.kind {
            StoreErrorKind::Full => {
                self.reserve.release();
                self.shared.full.store(true, Ordering::SeqCst);
            }
            // Nothing is wrong with the disk: the commit was taken back, the next one is as good as any.
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
            | StoreErrorKind::Busy => self.shared.stopped.store(true, Ordering::SeqCst),
        }
        for answer in answers {
            answer(Err(error.clone()));
        }
    }

    /// Moves the log into the file when it is long. Nearly all of that is done beside the commits; the last of it,
    /// after which the log begins anew, is done here.
    fn checkpoint_if_due(&mut self, idle: bool) {
        let pages = self.log_pages.load(Ordering::Relaxed);
        self.checkpointer.saw(pages);
        let tight = pages >= CHECKPOINT_WHEN_TIGHT && self.reserve.disk_is_tight();
        let due = tight || (idle && pages >= CHECKPOINT_WHEN_IDLE) || pages >= CHECKPOINT_ALWAYS;
        if !due || pages < self.try_again_at || self.shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        // On a full disk what is left is for the log of acks. Moving the log into the file lets it begin anew, so
        // that leases and acks can go on for as long as they like, but only if the file need not grow much.
        if self.shared.full.load(Ordering::SeqCst) && !self.file_need_not_grow() {
            return;
        }
        match self.move_log(pages, tight || pages >= LOG_MAX) {
            Ok(()) => {}
            Err(error) if error.kind == StoreErrorKind::Full => {
                self.reserve.release();
                self.shared.full.store(true, Ordering::SeqCst);
            }
            Err(_) => self.shared.stopped.store(true, Ordering::SeqCst),
        }
    }

    /// The next step of moving a log of so many pages; `at_once` moves all of it, and commits wait.
    fn move_log(&mut self, pages: i32, at_once: bool) -> Kept<()> {
        if at_once {
            self.checkpointer.wait()?;
        } else {
            match self.checkpointer.look()? {
                Pass::UnderWay => return Ok(()),
                Pass::Over { from } if pages.saturating_sub(from) <= LEFT_FOR_WRITER => {}
                Pass::Over { .. } | Pass::None => {
                    // Where there is nobody to help, the writer does it alone.
                    if self.checkpointer.begin(pages).is_ok() {
                        return Ok(());
                    }
                }
            }
        }
        if checkpoint(&self.engine.tables.connection, PASSIVE)?.is_whole() {
            self.log_pages.store(0, Ordering::Relaxed);
            self.try_again_at = 0;
            let _ = self.mark.sync();
        } else {
            // Somebody still reads what was there before: it is no use to try again with every commit.
            self.try_again_at = pages.saturating_add(CHECKPOINT_WHEN_IDLE);
        }
        Ok(())
    }

    /// Whether the file would take up at most half of what is left, were the log moved into it now.
    fn file_need_not_grow(&self) -> bool {
        let connection = &self.engine.tables.connection;
        let ask = |what: &str| {
            connection
                .query_row(&format!("PRAGMA {what}"), [], |row| row.get::<_, i64>(0))
                .unwrap_or(i64::MAX)
        };
        let whole = u64::try_from(ask("page_count").saturating_mul(ask("page_size"))).unwrap_or(u64::MAX);
        let path = connection.path().map(std::path::Path::new);
        let now = path.and_then(|path| std::fs::metadata(path).ok()).map_or(0, |file| file.len());
        whole.saturating_sub(now) <= self.reserve.free_bytes() / 2
    }

    fn close(mut self) {
        // On a full disk the room that is left is for the next process to open with.
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

pub(super) fn stopped() -> StoreError {
    let why = "a write to this store failed earlier; nothing more is acknowledged: check the disk, then start again";
    StoreError::new(StoreErrorKind::Stopped, why)
}

pub(super) fn no_room() -> StoreError {
    let why = "no space is left on the disk: new work is refused until 16 MiB are free; leases, acks and purge go on";
    StoreError::new(StoreErrorKind::Full, why)
}
