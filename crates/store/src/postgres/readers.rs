//! Connections for reading: a few, kept open, each used by one read at a time.

use super::base::PgBase;
use super::connect::Address;
use crate::engine::tables::TableResult;
use crate::staged::Staged;
use redrive_core::error::{CallError, StoreError, StoreErrorKind, StoreResult};
use redrive_core::limits;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// The connections for reading.
#[derive(Debug)]
pub(super) struct Readers {
    address: Address,
    idle: Arc<Mutex<Vec<Staged<PgBase>>>>,
    /// One permit for every connection that may exist.
    permits: Arc<Semaphore>,
}

/// All reads of one view see the same state.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// A connection with a view that has begun: a kept one, unless it was closed meanwhile.
fn begin(idle: &Mutex<Vec<Staged<PgBase>>>, address: &Address) -> TableResult<Staged<PgBase>> {
    loop {
        let kept = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(reader) = kept else { break };
        if reader.base.session.execute_batch(BEGIN).is_ok() {
            return Ok(reader);
        }
    }
    let reader = Staged::reader(PgBase { session: address.connect()? });
    reader.base.session.execute_batch(BEGIN)?;
    Ok(reader)
}

impl Readers {
    pub(super) fn new(address: &Address) -> Self {
        Self {
            address: address.clone(),
            idle: Arc::default(),
            permits: Arc::new(Semaphore::new(limits::READERS_MAX)),
        }
    }

    /// Runs a read on a consistent view, on a thread where it may block.
    pub(super) async fn view<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Staged<PgBase>) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let closed = |_| StoreError::new(StoreErrorKind::Stopped, "the store is closed");
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(closed)?;
        let (idle, address) = (Arc::clone(&self.idle), self.address.clone());
        let work = move || {
            let _permit = permit;
            let reader = begin(&idle, &address)?;
            let result = read(&reader);
            reader.base.session.execute_batch("COMMIT")?;
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
            result
        };
        let panicked =
            |_| CallError::Store(StoreError::new(StoreErrorKind::Stopped, "a reader of the store panicked"));
        tokio::task::spawn_blocking(work).await.map_err(panicked)?
    }
}
