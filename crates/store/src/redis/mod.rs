//! A store under a prefix of a Redis server. One process holds it at a time, under a term that every commit checks. What a
//! group of verbs changes is collected in memory and written by one call of a function, so the engine is the same as
//! everywhere.

mod base;
mod clock;
mod commit;
mod connect;
mod errors;
mod gate;
mod index;
mod open;
mod search;
mod term;
mod writer;

use crate::access::{Access, ReadVerb, Wants, WriteCost, WriteVerb};
use crate::clock::StoreClock;
use crate::holder::Holder;
use crate::jobs::{self, Job};
use crate::staged::Staged;
use crate::verbs::EngineStore;
use async_trait::async_trait;
use base::RedisBase;
use connect::Address;
pub use connect::acl;
pub use open::Options;
use redrive_core::audit::AuditKey;
use redrive_core::error::{CallError, StoreError, StoreErrorKind, StoreResult};
use redrive_core::store::StoreInfo;
use redrive_core::time::Time;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, mpsc};
use writer::{RedisTables, Shared};

/// A store in Redis, held by this process.
pub type RedisStore = EngineStore<Redis>;

/// The handle to the writer and the readers of a store that this process holds.
pub struct Redis {
    jobs: Option<mpsc::Sender<Job<RedisTables>>>,
    thread: Option<std::thread::JoinHandle<()>>,
    readers: Arc<Mutex<Vec<Staged<RedisBase>>>>,
    /// One permit for every connection for reading that may exist.
    reader_permits: Arc<Semaphore>,
    shared: Arc<Shared>,
    address: Address,
    clock: StoreClock,
    audit_key: AuditKey,
    degraded: Vec<String>,
    durable: bool,
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Redis({})", self.address.shown())
    }
}

impl RedisStore {
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

    /// How many commits were made, and how many rows had to be asked for one by one in the middle of a commit.
    #[must_use]
    pub fn round_trips(&self) -> (u64, u64) {
        (self.0.shared.commits.load(Ordering::Relaxed), self.0.shared.misses.load(Ordering::Relaxed))
    }
}

impl Drop for Redis {
    /// Waits for the writer, so that the store is free when this returns.
    fn drop(&mut self) {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Redis {
    /// Why the writer did not take a job or reply to it.
    fn no_reply_error(&self) -> CallError {
        if let Some(why) = self.shared.stopped() {
            return why.into();
        }
        if self.shared.full.load(Ordering::SeqCst) {
            let text = "the Redis server is out of memory or disk: new work is refused until there is room; leases, acks \
                        and purge go on";
            return StoreError::new(StoreErrorKind::Full, text).into();
        }
        let ended = || StoreError::new(StoreErrorKind::Stopped, "the writer of this store has ended");
        self.shared.trouble().unwrap_or_else(ended).into()
    }
}

#[async_trait]
impl Access for Redis {
    type Tables = RedisTables;

    async fn commit(&self, cost: WriteCost, wants: Wants, verb: WriteVerb<RedisTables>) -> StoreResult<()> {
        let Some(jobs) = &self.jobs else { return Err(self.no_reply_error()) };
        jobs::commit(jobs, &self.shared.waiting, (cost, wants), verb, || self.no_reply_error()).await
    }

    async fn view(&self, verb: ReadVerb) -> StoreResult<()> {
        let ended = |_| self.no_reply_error();
        let permit = Arc::clone(&self.reader_permits).acquire_owned().await.map_err(ended)?;
        let (readers, address, now) = (Arc::clone(&self.readers), self.address.clone(), self.clock.now());
        let shared = Arc::clone(&self.shared);
        let work = move || {
            let _permit = permit;
            let idle = readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            // A connection that was kept may have been closed meanwhile; then another is opened.
            let kept = idle.filter(|reader| reader.base.session.run(&redis::cmd("PING")).is_ok());
            let reader = match kept {
                Some(reader) => reader,
                None => open::reader(&address)?,
            };
            let result = shared.gate.read(|| verb(&reader, now));
            // A reply that came too late would be taken for the next one.
            if !matches!(&result, Err(CallError::Store(_))) {
                readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
            }
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
        let mut degraded = self.degraded.clone();
        if let CallError::Store(why) = self.no_reply_error()
            && (self.shared.stopped().is_some() || self.shared.full.load(Ordering::SeqCst))
        {
            degraded.push(why.text);
        }
        StoreInfo {
            backend: "redis".into(),
            durable: self.durable,
            place: self.address.shown(),
            now: self.clock.now(),
            skew_ms: self.clock.skew_ms(),
            degraded,
        }
    }

    async fn copy_to(&self, _: String) -> StoreResult<u64> {
        let why = "a store in Redis is backed up with Redis's own tools, such as a copy of its append only file or a \
                   snapshot made by BGSAVE";
        Err(StoreError::new(StoreErrorKind::Unsupported, why).into())
    }
}
