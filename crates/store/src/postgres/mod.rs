//! A store in a PostgreSQL schema. One process holds it at a time, under a term that every commit checks; rows are read
//! and written as [`crate::staged`] describes, so the engine is the same as everywhere.

mod base;
mod clock;
mod connect;
mod errors;
mod flush;
mod node;
mod open;
mod readers;
mod schema;
mod search;
mod term;
mod writer;

use crate::access::{Access, ReadVerb, Wants, WriteCost, WriteVerb};
use crate::clock::StoreClock;
use crate::holder::Holder;
use crate::jobs::{self, Job};
use crate::verbs::EngineStore;
use async_trait::async_trait;
use connect::Address;
pub use node::{NodeOptions, join};
pub use open::Options;
use readers::Readers;
use redrive_core::audit::AuditKey;
use redrive_core::error::{CallError, StoreError, StoreErrorKind, StoreResult};
use redrive_core::store::StoreInfo;
use redrive_core::time::Time;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;
use writer::{PgTables, Shared};

/// A store in PostgreSQL, held by this process.
pub type PostgresStore = EngineStore<Postgres>;

/// The handle to the writer and the readers of a store that this process holds.
pub struct Postgres {
    jobs: Option<mpsc::Sender<Job<PgTables>>>,
    thread: Option<std::thread::JoinHandle<()>>,
    readers: Readers,
    shared: Arc<Shared>,
    address: Address,
    clock: StoreClock,
    audit_key: AuditKey,
    degraded: Vec<String>,
}

impl std::fmt::Debug for Postgres {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Postgres({})", self.address.shown())
    }
}

impl PostgresStore {
    /// Opens a store and takes it.
    ///
    /// # Errors
    /// A [`StoreError`] that says what is wrong and what to do; [`StoreErrorKind::Locked`] if another process holds it.
    pub async fn open(url: &str, options: Options) -> Result<Self, StoreError> {
        let address: Address = url.parse()?;
        let panicked = |_| StoreError::new(StoreErrorKind::Stopped, "opening the store panicked");
        let opened = tokio::task::spawn_blocking(move || open::open(&address, &options)).await;
        opened.map_err(panicked)?.map(Self)
    }

    /// Whether another process holds the store now, or the database could not be reached for too long.
    pub(crate) fn has_lost_the_store(&self) -> bool {
        self.0.shared.stopped().is_some()
    }

    /// How many commits were made, and how many rows had to be asked for one by one in the middle of a commit.
    #[must_use]
    pub fn round_trips(&self) -> (u64, u64) {
        (self.0.shared.commits.load(Ordering::Relaxed), self.0.shared.misses.load(Ordering::Relaxed))
    }
}

impl Drop for Postgres {
    /// Waits for the writer, so that the store is free when this returns.
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Postgres {
    /// Why the writer did not take a job or reply to it.
    fn no_reply_error(&self) -> CallError {
        if let Some(why) = self.shared.stopped() {
            return why.into();
        }
        if self.shared.full.load(Ordering::SeqCst) {
            let text = "no space is left on the database's disk: new work is refused until there is; leases, acks and \
                        purge go on";
            return StoreError::new(StoreErrorKind::Full, text).into();
        }
        StoreError::new(StoreErrorKind::Stopped, "the writer of this store has ended").into()
    }
}

#[async_trait]
impl Access for Postgres {
    type Tables = PgTables;

    async fn commit(&self, cost: WriteCost, wants: Wants, verb: WriteVerb<PgTables>) -> StoreResult<()> {
        let Some(jobs) = &self.jobs else { return Err(self.no_reply_error()) };
        jobs::commit(jobs, &self.shared.waiting, (cost, wants), verb, || self.no_reply_error()).await
    }

    async fn view(&self, verb: ReadVerb) -> StoreResult<()> {
        let now = self.clock.now();
        self.readers.view(move |reader| verb(reader, now)).await
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
        let mut degraded = self.degraded.clone();
        if let CallError::Store(why) = self.no_reply_error()
            && (self.shared.stopped().is_some() || self.shared.full.load(Ordering::SeqCst))
        {
            degraded.push(why.text);
        }
        StoreInfo {
            backend: "postgres".into(),
            durable: true,
            place: self.address.shown(),
            now: self.clock.now(),
            skew_ms: self.clock.skew_ms(),
            degraded,
        }
    }

    async fn copy_to(&self, _: String) -> StoreResult<u64> {
        let why = "a store in PostgreSQL is backed up with PostgreSQL's own tools, such as pg_dump or a base backup";
        Err(StoreError::new(StoreErrorKind::Unsupported, why).into())
    }
}
