//! The memory store: ordered maps behind a mutex. Nothing is durable. For tests, and for work that may be lost.

mod pick;
mod tables;
mod writes;

use crate::access::{Access, ReadVerb, Wants, WriteCost, WriteVerb};
use crate::clock::Slewing;
use crate::engine::Engine;
use crate::engine::touched::Touched;
use crate::entropy::{Entropy, System};
use crate::holder::Holder;
use crate::verbs::EngineStore;
use async_trait::async_trait;
use redrive_core::audit::AuditKey;
use redrive_core::error::{StoreError, StoreErrorKind, StoreResult};
use redrive_core::store::StoreInfo;
use redrive_core::time::{Clock, Time};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tables::Maps;

/// The memory store.
pub type MemoryStore = EngineStore<Memory>;

/// The engine and its maps, behind a mutex.
pub struct Memory {
    engine: Mutex<Engine<Maps>>,
    clock: Arc<dyn Clock>,
    holder: Arc<Holder>,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}

impl MemoryStore {
    /// An empty store on the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Arc::new(Slewing::starting_at(Time::ZERO)), Arc::new(System))
    }

    /// An empty store with the given clock and source of randomness.
    #[must_use]
    pub fn with(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        let mut key = [0; 32];
        entropy.fill(&mut key);
        let holder = Arc::new(Holder::new());
        let mut engine = Engine::new(Maps::default(), entropy, AuditKey(key));
        engine.waiting_workers = holder.waiting();
        Self(Memory { engine: Mutex::new(engine), clock, holder })
    }

    /// Makes the index of ready messages spill above this many entries; for tests of spilling.
    #[must_use]
    pub fn with_hot_entries(self, entries: usize) -> Self {
        self.0.engine().set_ready_index_max(entries);
        self
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// Locks the engine. Only a bug can panic under the mutex, and the maps are consistent between calls, so a
    /// poisoned mutex is used all the same.
    fn engine(&self) -> MutexGuard<'_, Engine<Maps>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Access for Memory {
    type Tables = Maps;

    async fn commit(&self, _: WriteCost, _: Wants, verb: WriteVerb<Maps>) -> StoreResult<()> {
        let mut engine = self.engine();
        let before = engine.write_count();
        let result = verb(&mut engine, self.clock.now());
        let result = engine.forbid_refusal_after_write(before, result);
        engine.flush()?;
        engine.after_commit.record();
        let Touched { areas, available } = engine.take_touched();
        drop(engine);
        self.holder.publish(areas);
        self.holder.offer(&available);
        result
    }

    async fn view(&self, verb: ReadVerb) -> StoreResult<()> {
        verb(&self.engine().tables, self.clock.now())
    }

    fn holder(&self) -> &Arc<Holder> {
        &self.holder
    }

    fn now(&self) -> Time {
        self.clock.now()
    }

    fn audit_key(&self) -> AuditKey {
        self.engine().audit_key().clone()
    }

    fn describe(&self) -> StoreInfo {
        StoreInfo {
            backend: "memory".into(),
            durable: false,
            place: "this process".into(),
            now: self.clock.now(),
            skew_ms: 0,
            degraded: Vec::new(),
        }
    }

    async fn copy_to(&self, _: String) -> StoreResult<u64> {
        let why = "the memory store cannot be backed up; use a data directory";
        Err(StoreError::new(StoreErrorKind::Unsupported, why).into())
    }
}
