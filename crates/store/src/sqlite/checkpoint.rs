//! Checkpoints beside the writer. Copying a long log into the database file takes tens of milliseconds, and every job
//! that waits for a commit would wait for it too. So a background thread with its own connection copies nearly all of
//! it while commits go on. The writer copies only what was appended meanwhile and lets the log start over (ADR 0029).

use super::errors::sql_result;
use super::open;
use super::writer::Shared;
use crate::engine::tables::TableResult;
use redrive_core::error::{StoreError, StoreErrorKind};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// The writer's handle to the background thread, which is started when it is first needed.
#[derive(Debug)]
pub(super) struct Checkpointer {
    directory: PathBuf,
    shared: Arc<Shared>,
    background: Option<BackgroundThread>,
    /// The length of the log, in pages, when the current pass began.
    running_from: Option<i32>,
}

#[derive(Debug)]
struct BackgroundThread {
    requests: Option<mpsc::Sender<()>>,
    done: mpsc::Receiver<TableResult<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The state of a background pass.
#[derive(Debug)]
pub(super) enum Pass {
    /// No pass was begun.
    None,
    /// The pass is running.
    Running,
    /// The pass has ended. The log had `from` pages when it began.
    Over { from: i32 },
}

impl Checkpointer {
    pub(super) fn new(directory: &Path, shared: &Arc<Shared>) -> Self {
        let (directory, shared) = (directory.to_owned(), Arc::clone(shared));
        Self { directory, shared, background: None, running_from: None }
    }

    /// Notes the length of the log. If it is shorter than when the pass began, the log has started over by itself,
    /// because the pass completed between two commits: that pass says nothing about the new log.
    pub(super) fn note_log_length(&mut self, pages: i32) {
        if self.running_from.is_some_and(|from| pages < from) {
            self.running_from = Some(0);
        }
    }

    /// Begins a pass over a log of `pages` pages.
    pub(super) fn begin(&mut self, pages: i32) -> TableResult<()> {
        if self.background.is_none() {
            self.background = Some(BackgroundThread::start(&self.directory, Arc::clone(&self.shared))?);
        }
        let requests = self.background.as_ref().and_then(|background| background.requests.as_ref());
        requests.ok_or_else(thread_gone)?.send(()).map_err(|_| thread_gone())?;
        self.running_from = Some(pages);
        Ok(())
    }

    /// The state of the last pass. `Pass::Over` is reported once.
    pub(super) fn state(&mut self) -> TableResult<Pass> {
        let (Some(from), Some(background)) = (self.running_from, &self.background) else {
            return Ok(Pass::None);
        };
        match background.done.try_recv() {
            Ok(result) => self.ended(result, from),
            Err(mpsc::TryRecvError::Empty) => Ok(Pass::Running),
            Err(mpsc::TryRecvError::Disconnected) => Err(thread_gone()),
        }
    }

    /// Waits until no pass is running.
    pub(super) fn wait(&mut self) -> TableResult<()> {
        let (Some(from), Some(background)) = (self.running_from, &self.background) else { return Ok(()) };
        let result = background.done.recv().map_err(|_| thread_gone())?;
        self.ended(result, from).map(|_| ())
    }

    fn ended(&mut self, result: TableResult<()>, from: i32) -> TableResult<Pass> {
        self.running_from = None;
        result.map(|()| Pass::Over { from })
    }
}

impl BackgroundThread {
    fn start(directory: &Path, shared: Arc<Shared>) -> TableResult<Self> {
        let connection = open::checkpointer(directory)?;
        let (requests, requested) = mpsc::channel();
        let (report, done) = mpsc::channel();
        let work = move || {
            while requested.recv().is_ok() {
                let result = checkpoint(&connection, PASSIVE).map(|_| ());
                // Nothing may be acknowledged after a failed sync, even before the writer asks for the result (I6).
                if result.as_ref().is_err_and(|error| error.kind != StoreErrorKind::Full) {
                    shared.stopped.store(true, Ordering::SeqCst);
                }
                if report.send(result).is_err() {
                    break;
                }
            }
        };
        let spawned = std::thread::Builder::new().name("redrive-log".into()).spawn(work);
        let thread = spawned.map_err(|error| {
            StoreError::new(StoreErrorKind::Io, format!("cannot start the checkpoint thread: {error}"))
        })?;
        Ok(Self { requests: Some(requests), done, thread: Some(thread) })
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        drop(self.requests.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn thread_gone() -> StoreError {
    StoreError::new(StoreErrorKind::Stopped, "the checkpoint thread is gone")
}

/// Copies the pages that no reader needs any more, without waiting.
pub(super) const PASSIVE: &str = "PRAGMA wal_checkpoint(PASSIVE)";
/// Copies everything and empties the log.
pub(super) const TRUNCATE: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

/// How much of the log has been copied into the database file.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckpointResult {
    pages: i32,
    moved: i32,
}

impl CheckpointResult {
    /// Whether all of it has, so that the log can start over.
    pub(super) const fn is_complete(self) -> bool {
        self.moved >= self.pages
    }
}

/// Copies what it can of the log into the database file. Only the writer and its background thread do this.
pub(super) fn checkpoint(connection: &Connection, mode: &str) -> TableResult<CheckpointResult> {
    sql_result(
        connection.query_row(mode, [], |row| Ok(CheckpointResult { pages: row.get(1)?, moved: row.get(2)? })),
    )
}
