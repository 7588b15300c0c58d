//! Moving the log into the file beside the writer. A checkpoint of a long log takes some tens of milliseconds, and
//! whoever waits for a commit would wait for it too; so a thread with a connection of its own does nearly all of it
//! while commits go on, and only what was appended meanwhile is left for the writer, who lets the log begin anew
//! (ADR 0029).

use super::errors::kept;
use super::open;
use super::writer::Shared;
use crate::engine::tables::Kept;
use redrive_core::error::{StoreError, StoreErrorKind};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

/// The other end of the thread that moves the log; it is started when it is first needed.
#[derive(Debug)]
pub(super) struct Checkpointer {
    directory: PathBuf,
    shared: Arc<Shared>,
    helper: Option<Helper>,
    /// How long the log was, in pages, when the pass began that is under way.
    under_way: Option<i32>,
}

#[derive(Debug)]
struct Helper {
    orders: Option<mpsc::Sender<()>>,
    done: mpsc::Receiver<Kept<()>>,
    thread: Option<JoinHandle<()>>,
}

/// How a pass beside the writer stands.
#[derive(Debug)]
pub(super) enum Pass {
    /// There is none.
    None,
    /// It goes on.
    UnderWay,
    /// It is over; the log was so long when it began.
    Over { from: i32 },
}

impl Checkpointer {
    pub(super) fn of(directory: &Path, shared: &Arc<Shared>) -> Self {
        let (directory, shared) = (directory.to_owned(), Arc::clone(shared));
        Self { directory, shared, helper: None, under_way: None }
    }

    /// Notes how long the log is. One that is shorter than it was has begun anew by itself, after a pass that came to
    /// its end between two commits: what that pass moved says nothing of this log.
    pub(super) fn saw(&mut self, pages: i32) {
        if self.under_way.is_some_and(|from| pages < from) {
            self.under_way = Some(0);
        }
    }

    /// Begins a pass over a log of so many pages.
    pub(super) fn begin(&mut self, pages: i32) -> Kept<()> {
        if self.helper.is_none() {
            self.helper = Some(Helper::start(&self.directory, Arc::clone(&self.shared))?);
        }
        let orders = self.helper.as_ref().and_then(|helper| helper.orders.as_ref());
        orders.ok_or_else(gone)?.send(()).map_err(|_| gone())?;
        self.under_way = Some(pages);
        Ok(())
    }

    /// How the last pass stands; one that is over is told once.
    pub(super) fn look(&mut self) -> Kept<Pass> {
        let (Some(from), Some(helper)) = (self.under_way, &self.helper) else { return Ok(Pass::None) };
        match helper.done.try_recv() {
            Ok(result) => self.ended(result, from),
            Err(mpsc::TryRecvError::Empty) => Ok(Pass::UnderWay),
            Err(mpsc::TryRecvError::Disconnected) => Err(gone()),
        }
    }

    /// Waits until no pass is under way.
    pub(super) fn wait(&mut self) -> Kept<()> {
        let (Some(from), Some(helper)) = (self.under_way, &self.helper) else { return Ok(()) };
        let result = helper.done.recv().map_err(|_| gone())?;
        self.ended(result, from).map(|_| ())
    }

    fn ended(&mut self, result: Kept<()>, from: i32) -> Kept<Pass> {
        self.under_way = None;
        result.map(|()| Pass::Over { from })
    }
}

impl Helper {
    fn start(directory: &Path, shared: Arc<Shared>) -> Kept<Self> {
        let connection = open::checkpointer(directory)?;
        let (orders, ordered) = mpsc::channel();
        let (tell, done) = mpsc::channel();
        let work = move || {
            while ordered.recv().is_ok() {
                let result = checkpoint(&connection, PASSIVE).map(|_| ());
                // Nothing may be acknowledged after a failed sync, also before the writer looks here again (I6).
                if result.as_ref().is_err_and(|error| error.kind != StoreErrorKind::Full) {
                    shared.stopped.store(true, Ordering::SeqCst);
                }
                if tell.send(result).is_err() {
                    break;
                }
            }
        };
        let spawned = std::thread::Builder::new().name("redrive-log".into()).spawn(work);
        let thread = spawned.map_err(|error| {
            StoreError::new(
                StoreErrorKind::Io,
                format!("cannot start the thread that moves the log: {error}"),
            )
        })?;
        Ok(Self { orders: Some(orders), done, thread: Some(thread) })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn gone() -> StoreError {
    StoreError::new(StoreErrorKind::Stopped, "the thread that moves the log is gone")
}

/// Moves what nobody reads any more; nobody waits for anybody.
pub(super) const PASSIVE: &str = "PRAGMA wal_checkpoint(PASSIVE)";
/// Moves everything and empties the log.
pub(super) const TRUNCATE: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

/// How much of the log is in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moved {
    pages: i32,
    moved: i32,
}

impl Moved {
    /// Whether all of it is, so that the log begins anew.
    pub(super) const fn is_whole(self) -> bool {
        self.moved >= self.pages
    }
}

/// Moves what it can of the log into the file. Only the writer and its helper ever do.
pub(super) fn checkpoint(connection: &Connection, mode: &str) -> Kept<Moved> {
    kept(connection.query_row(mode, [], |row| Ok(Moved { pages: row.get(1)?, moved: row.get(2)? })))
}
