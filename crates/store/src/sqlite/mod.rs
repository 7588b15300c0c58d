//! The embedded store: SQLite with group commit and an in-memory index of what is ready. One writer thread
//! owns the file; readers have connections of their own. Success means fsynced.

pub(crate) mod body;
mod check;
mod checkpoint;
mod errors;
mod letter_rows;
mod mark;
mod narrow;
mod open;
mod reads;
mod reserve;
mod rows;
mod schema;
mod search;
mod tables;
mod text;
mod writer;

use crate::clock::Slewing;
use crate::engine::Engine;
use crate::engine::tables::Reads;
use crate::verbs::{Access, EngineStore, Load};
use async_trait::async_trait;
use errors::kept;
pub use open::{Options, restore};
use reads::SqlTables;
use redrive_core::audit::AuditKey;
use redrive_core::error::{Error, Outcome, StoreError, StoreErrorKind};
use redrive_core::metrics::{self, Counter};
use redrive_core::store::StoreInfo;
use redrive_core::time::{Clock, Time};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, mpsc, oneshot};
use writer::{Answer, Job, Place, Shared};

/// The embedded store.
pub type SqliteStore = EngineStore<Sqlite>;

/// Idle readers kept open.
const READERS_MAX: usize = 4;

/// What is needed to reach the writer and to read beside it.
pub struct Sqlite {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
    readers: Arc<Mutex<Vec<SqlTables>>>,
    shared: Arc<Shared>,
    directory: PathBuf,
    clock: Arc<dyn Clock>,
    slewing: Option<Arc<Slewing>>,
    audit_key: AuditKey,
    /// The socket of the directory, while it is served.
    #[cfg(feature = "remote")]
    server: Mutex<Option<crate::remote::server::Server>>,
}

impl std::fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sqlite({})", self.directory.display())
    }
}

impl SqliteStore {
    /// Opens a directory that nobody else holds.
    ///
    /// # Errors
    /// A [`StoreError`] that says what is wrong and what to do; [`StoreErrorKind::Locked`] when it is held.
    pub fn open(directory: &Path, options: Options) -> Result<Self, StoreError> {
        open::open(directory, options).map(Self)
    }

    /// Serves until this store is dropped.
    #[cfg(feature = "remote")]
    pub(crate) fn keep_serving(&self, server: crate::remote::server::Server) {
        *self.0.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
    }

    /// Where the data is.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.0.directory
    }
}

impl Drop for Sqlite {
    /// Waits for the writer, so that the directory is free when this returns.
    fn drop(&mut self) {
        #[cfg(feature = "remote")]
        drop(self.server.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Sqlite {
    /// Why the writer did not take or answer a job.
    fn unanswered(&self) -> Error {
        if self.shared.full.load(Ordering::SeqCst) && !self.shared.stopped.load(Ordering::SeqCst) {
            return writer::no_room().into();
        }
        writer::stopped().into()
    }
}

#[async_trait]
impl Access for Sqlite {
    type Tables = SqlTables;

    async fn write<R, F>(&self, load: Load, verb: F) -> Outcome<R>
    where
        R: Send + 'static,
        F: FnOnce(&mut Engine<SqlTables>, Time) -> Outcome<R> + Send + 'static,
    {
        let (reply, answered) = oneshot::channel();
        let apply = Box::new(move |engine: &mut Engine<SqlTables>, now: Time| {
            let result = verb(engine, now);
            let spoils = match &result {
                Err(Error::Store(error)) => Some(error.clone()),
                Ok(_) | Err(Error::Refused(_)) => None,
            };
            let answer: Answer = Box::new(move |committed: Result<(), StoreError>| {
                // Nobody listening any more is their business; the commit stands.
                let _ = reply.send(committed.map_err(Error::Store).and(result));
            });
            (answer, spoils)
        });
        let Some(jobs) = &self.jobs else { return Err(self.unanswered()) };
        if jobs.capacity() == 0 {
            metrics::process().count(Counter::BackPressure, 1);
        }
        let place = (!load.long).then(|| Place::among(&self.shared.waiting));
        if jobs.send(Job { load, apply, place }).await.is_err() {
            return Err(self.unanswered());
        }
        answered.await.unwrap_or_else(|_| Err(self.unanswered()))
    }

    async fn read<R, F>(&self, verb: F) -> Outcome<R>
    where
        R: Send + 'static,
        F: FnOnce(&dyn Reads, Time) -> Outcome<R> + Send + 'static,
    {
        let (readers, directory, now) = (Arc::clone(&self.readers), self.directory.clone(), self.clock.now());
        let work = move || {
            let idle = readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let reader = idle.map_or_else(|| open::reader(&directory), Ok)?;
            kept(reader.connection.execute_batch("BEGIN"))?;
            let result = verb(&reader, now);
            kept(reader.connection.execute_batch("COMMIT"))?;
            let mut readers = readers.lock().unwrap_or_else(PoisonError::into_inner);
            if readers.len() < READERS_MAX {
                readers.push(reader);
            }
            result
        };
        let lost =
            |_| Error::Store(StoreError::new(StoreErrorKind::Stopped, "a reader of the store panicked"));
        tokio::task::spawn_blocking(work).await.map_err(lost)?
    }

    fn bell(&self) -> &Notify {
        &self.shared.bell
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn audit_key(&self) -> AuditKey {
        self.audit_key.clone()
    }

    fn describe(&self) -> StoreInfo {
        let mut degraded = Vec::new();
        if self.shared.full.load(Ordering::SeqCst) {
            degraded.push(writer::no_room().text);
        }
        if self.shared.stopped.load(Ordering::SeqCst) {
            degraded.push(writer::stopped().text);
        }
        StoreInfo {
            backend: "sqlite".into(),
            durable: true,
            place: self.directory.display().to_string(),
            now: self.clock.now(),
            skew_ms: self.slewing.as_ref().map_or(0, |clock| clock.skew_ms()),
            degraded,
        }
    }

    async fn copy_to(&self, target: String) -> Outcome<u64> {
        let (directory, key) = (self.directory.clone(), self.audit_key.clone());
        let work = move || open::backup(&directory, Path::new(&target), &key);
        let lost = |_| StoreError::new(StoreErrorKind::Stopped, "the backup panicked");
        Ok(tokio::task::spawn_blocking(work).await.map_err(lost)??)
    }
}
