//! The embedded store: SQLite with group commit, and an in-memory index of ready messages. One writer thread owns the
//! database file; readers have connections of their own. Success means that the data has been synced to disk.

mod check;
mod checkpoint;
mod checksums;
mod commit_mark;
mod counters;
mod damaged_records;
mod errors;
mod kv;
mod letter_plan;
mod letter_rows;
mod open;
mod reads;
mod reserve;
mod rows;
mod schema;
mod search;
mod statements;
mod tables;
mod text;
mod writer;

use crate::access::{Access, ReadVerb, Wants, WriteCost, WriteVerb};
use crate::clock::StoreClock;
use crate::holder::Holder;
use crate::verbs::EngineStore;
use async_trait::async_trait;
use errors::sql_result;
pub use open::{Options, restore};
use reads::SqlTables;
use redrive_core::audit::AuditKey;
use redrive_core::error::{CallError, StoreError, StoreErrorKind, StoreResult};
use redrive_core::store::StoreInfo;
use redrive_core::time::Time;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, mpsc};
use writer::{Job, Shared};

/// The embedded store.
pub type SqliteStore = EngineStore<Sqlite>;

/// The handle to the writer and the readers of an open data directory.
pub struct Sqlite {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
    readers: Arc<Mutex<Vec<SqlTables>>>,
    /// One permit for every reader that may exist: each has a cache of 16 MiB.
    reader_permits: Arc<Semaphore>,
    shared: Arc<Shared>,
    directory: PathBuf,
    clock: StoreClock,
    audit_key: AuditKey,
    /// The server on the directory's socket, while it runs.
    #[cfg(feature = "remote")]
    server: Mutex<Option<crate::remote::server::Server>>,
}

impl std::fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sqlite({})", self.directory.display())
    }
}

impl SqliteStore {
    /// Opens a directory that no other process holds.
    ///
    /// # Errors
    /// A [`StoreError`] that says what is wrong and what to do; [`StoreErrorKind::Locked`] if another process holds
    /// it.
    pub fn open(directory: &Path, options: Options) -> Result<Self, StoreError> {
        open::open(directory, options).map(Self)
    }

    /// Keeps a server running until this store is dropped.
    #[cfg(feature = "remote")]
    pub(crate) fn keep_serving(&self, server: crate::remote::server::Server) {
        *self.0.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
    }

    /// The data directory.
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
    /// Why the writer did not take a job or reply to it.
    fn no_reply_error(&self) -> CallError {
        if self.shared.full.load(Ordering::SeqCst) && !self.shared.stopped.load(Ordering::SeqCst) {
            return writer::disk_full().into();
        }
        writer::stopped().into()
    }
}

#[async_trait]
impl Access for Sqlite {
    type Tables = SqlTables;

    async fn commit(&self, cost: WriteCost, wants: Wants, verb: WriteVerb<SqlTables>) -> StoreResult<()> {
        let Some(jobs) = &self.jobs else { return Err(self.no_reply_error()) };
        crate::jobs::commit(jobs, &self.shared.waiting, (cost, wants), verb, || self.no_reply_error()).await
    }

    async fn view(&self, verb: ReadVerb) -> StoreResult<()> {
        // Without a free permit, wait for one. It is released with the reader, even if the caller stops waiting.
        let permit =
            Arc::clone(&self.reader_permits).acquire_owned().await.map_err(|_| self.no_reply_error())?;
        let (readers, directory, now) = (Arc::clone(&self.readers), self.directory.clone(), self.clock.now());
        let work = move || {
            let _permit = permit;
            let idle = readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let reader = idle.map_or_else(|| open::reader(&directory), Ok)?;
            sql_result(reader.connection.execute_batch("BEGIN"))?;
            let result = verb(&reader, now);
            sql_result(reader.connection.execute_batch("COMMIT"))?;
            readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
            result
        };
        let lost =
            |_| CallError::Store(StoreError::new(StoreErrorKind::Stopped, "a reader of the store panicked"));
        tokio::task::spawn_blocking(work).await.map_err(lost)?
    }

    fn holder(&self) -> &Arc<Holder> {
        &self.shared.holder
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
            degraded.push(writer::disk_full().text);
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

    async fn copy_to(&self, target: String) -> StoreResult<u64> {
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
    fn a_refusal_after_a_write_undoes_the_commit_and_the_store_goes_on() {
        let home = tempfile::TempDir::new().unwrap();
        let (queue, actor) = ("q".parse().unwrap(), Actor::new("ada", "test"));
        block(async {
            let store = SqliteStore::open(home.path(), Options::default()).unwrap();
            let by = actor.clone();
            let refused = store.0.write(WriteCost::GROWS, move |engine, now| {
                engine.configure(&"half".parse().unwrap(), QueuePolicy::default(), &by, now)?;
                Err::<(), CallError>(Refusal::invalid("test", "refused too late").into())
            });
            let error = refused.await.unwrap_err();
            let undone =
                |e: &StoreError| e.kind == StoreErrorKind::Undone && e.text.contains("refused too late");
            assert!(matches!(&error, CallError::Store(e) if undone(e)), "{error}");
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
    fn there_are_never_more_readers_than_permits() {
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
            assert_eq!(store.0.reader_permits.available_permits(), 0);
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
