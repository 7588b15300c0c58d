//! The memory store: a mutex over ordered maps. Nothing is durable; for tests, and for work that may be lost.

mod pick;
mod tables;
mod writes;

use crate::clock::Slewing;
use crate::engine::Engine;
use crate::engine::tables::Reads;
use crate::entropy::{Entropy, System};
use crate::verbs::{Access, EngineStore, Load};
use async_trait::async_trait;
use redrive_core::audit::AuditKey;
use redrive_core::error::{Outcome, StoreError, StoreErrorKind};
use redrive_core::store::StoreInfo;
use redrive_core::time::{Clock, Time};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tables::Maps;
use tokio::sync::Notify;

/// The memory store.
pub type MemoryStore = EngineStore<Memory>;

/// The maps behind their mutex.
pub struct Memory {
    engine: Mutex<Engine<Maps>>,
    clock: Arc<dyn Clock>,
    bell: Notify,
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

    /// An empty store that is told the time and the chances.
    #[must_use]
    pub fn with(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        let mut key = [0; 32];
        entropy.fill(&mut key);
        let engine = Mutex::new(Engine::new(Maps::default(), entropy, AuditKey(key)));
        Self(Memory { engine, clock, bell: Notify::new() })
    }

    /// Makes the index of ready messages spill beyond this many entries; for tests of the spilling.
    #[must_use]
    pub fn with_hot_entries(self, entries: usize) -> Self {
        self.0.engine().hold_at_most(entries);
        self
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// A panic under the mutex can only come from a bug; the maps are whole between calls, so go on.
    fn engine(&self) -> MutexGuard<'_, Engine<Maps>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Access for Memory {
    type Tables = Maps;

    async fn write<R, F>(&self, _: Load, verb: F) -> Outcome<R>
    where
        R: Send + 'static,
        F: FnOnce(&mut Engine<Maps>, Time) -> Outcome<R> + Send + 'static,
    {
        let mut engine = self.engine();
        let before = engine.written();
        let result = verb(&mut engine, self.clock.now());
        let result = engine.only_clean_refusals(before, result);
        engine.flush()?;
        if std::mem::take(&mut engine.woke) {
            self.bell.notify_waiters();
        }
        result
    }

    async fn read<R, F>(&self, verb: F) -> Outcome<R>
    where
        R: Send + 'static,
        F: FnOnce(&dyn Reads, Time) -> Outcome<R> + Send + 'static,
    {
        verb(&self.engine().tables, self.clock.now())
    }

    fn bell(&self) -> &Notify {
        &self.bell
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

    async fn copy_to(&self, _: String) -> Outcome<u64> {
        let why = "the memory store cannot be backed up; use a data directory";
        Err(StoreError::new(StoreErrorKind::Unsupported, why).into())
    }
}
