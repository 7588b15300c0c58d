//! The embedded store: SQLite with group commit and an in-memory index of what is ready. One writer thread
//! owns the file; readers have connections of their own. Success means fsynced.

mod aside;
pub(crate) mod body;
mod check;
mod checkpoint;
mod counters;
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
mod statements;
mod sums;
mod tables;
mod text;
mod writer;

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
use redrive_core::time::Time;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use writer::{Answer, Job, Place, Shared};

/// The embedded store.
pub type SqliteStore = EngineStore<Sqlite>;

/// What is needed to reach the writer and to read beside it.
pub struct Sqlite {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
    readers: Arc<Mutex<Vec<SqlTables>>>,
    /// A place for every reader there may be: each has a cache of 16 MiB.
    places: Arc<Semaphore>,
    shared: Arc<Shared>,
    directory: PathBuf,
    clock: open::StoreClock,
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
            let before = engine.written();
            let result = verb(engine, now);
            let result = engine.only_clean_refusals(before, result);
            let untouched = engine.written() == before;
            let spoils = match &result {
                // A record that cannot be read is the trouble of whoever asked for it, and of nobody else (I46).
                Err(Error::Store(error)) if error.kind == StoreErrorKind::Damaged && untouched => None,
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
        // Who finds no place waits for one; it is given back with the reader, also when nobody waits for the answer.
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| self.unanswered())?;
        let (readers, directory, now) = (Arc::clone(&self.readers), self.directory.clone(), self.clock.now());
        let work = move || {
            let _place = place;
            let idle = readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let reader = idle.map_or_else(|| open::reader(&directory), Ok)?;
            kept(reader.connection.execute_batch("BEGIN"))?;
            let result = verb(&reader, now);
            kept(reader.connection.execute_batch("COMMIT"))?;
            readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
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
            skew_ms: self.clock.skew_ms(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::dead_letter::Actor;
    use redrive_core::error::Refusal;
    use redrive_core::limits;
    use redrive_core::policy::QueuePolicy;
    use redrive_core::store::{Store as _, VerifyRequest, Work as _};
    use std::sync::Condvar;

    fn block<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.unwrap().block_on(work)
    }

    #[test]
    fn a_refusal_after_a_write_takes_the_commit_back_and_the_store_goes_on() {
        let home = tempfile::TempDir::new().unwrap();
        let (queue, actor) = ("q".parse().unwrap(), Actor::new("ada", "test"));
        block(async {
            let store = SqliteStore::open(home.path(), Options::default()).unwrap();
            let by = actor.clone();
            let refused = store.0.write(Load::GROWS, move |engine, now| {
                engine.configure(&"half".parse().unwrap(), QueuePolicy::default(), &by, now)?;
                Err::<(), Error>(Refusal::invalid("test", "refused too late").into())
            });
            let error = refused.await.unwrap_err();
            let undone =
                |e: &StoreError| e.kind == StoreErrorKind::Undone && e.text.contains("refused too late");
            assert!(matches!(&error, Error::Store(e) if undone(e)), "{error}");
            assert!(store.queues().await.unwrap().is_empty(), "nothing is left of it");
            store.configure(queue, QueuePolicy::default(), actor).await.unwrap();
            let v = store.verify(VerifyRequest { deep: true, repair: false }).await.unwrap();
            assert!(v.is_clean(), "{:?}", v.findings);
        });
    }

    #[derive(Default)]
    struct Gate {
        running: usize,
        most: usize,
        open: bool,
    }

    #[test]
    fn there_are_never_more_readers_than_places() {
        let home = tempfile::TempDir::new().unwrap();
        let gate = Arc::new((Mutex::new(Gate::default()), Condvar::new()));
        block(async {
            let store = Arc::new(SqliteStore::open(home.path(), Options::default()).unwrap());
            let mut reads = Vec::new();
            for _ in 0..3 * limits::READERS_MAX {
                let (store, gate) = (Arc::clone(&store), Arc::clone(&gate));
                reads.push(tokio::spawn(async move {
                    let read = store.0.read(move |_, _| {
                        let mut state = gate.0.lock().unwrap();
                        state.running += 1;
                        state.most = state.most.max(state.running);
                        gate.1.notify_all();
                        let mut state = gate.1.wait_while(state, |state| !state.open).unwrap();
                        state.running -= 1;
                        drop(state);
                        Ok(())
                    });
                    read.await.unwrap();
                }));
            }
            let full = Arc::clone(&gate);
            let filled = move || {
                let state = full.0.lock().unwrap();
                drop(full.1.wait_while(state, |state| state.running < limits::READERS_MAX).unwrap());
            };
            tokio::task::spawn_blocking(filled).await.unwrap();
            assert_eq!(store.0.places.available_permits(), 0);
            gate.0.lock().unwrap().open = true;
            gate.1.notify_all();
            for read in reads {
                read.await.unwrap();
            }
            assert_eq!(gate.0.lock().unwrap().most, limits::READERS_MAX);
            assert!(store.0.readers.lock().unwrap().len() <= limits::READERS_MAX);
        });
    }
}
