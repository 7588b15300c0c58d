//! Opening a data directory: directly, or, when another process holds it, through that process. Callers only
//! ever see `dyn Store` and need not know which it was.

use redrive_core::error::StoreError;
use redrive_core::ids::MessageId;
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::path::Path;
use std::sync::Arc;

/// How to open a data directory.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Make it when it is not there.
    pub create: bool,
    /// Serve other processes on the directory's socket while this one holds it. For everybody who holds it
    /// longer than a moment.
    pub serve: bool,
    /// How long to wait for somebody who holds it for a moment.
    pub patience: Span,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { create: true, serve: true, patience: Span::from_secs(10) }
    }
}

/// Opens the directory, or connects to the process that holds it.
///
/// # Errors
/// A [`StoreError`] that says what is wrong with the directory and what to do.
pub async fn open(directory: &Path, options: OpenOptions) -> Result<Arc<dyn Store>, StoreError> {
    redrive_store::open(directory, options.create, options.serve, options.patience).await
}

/// Makes a new data directory from a backup; refuses to write over an existing one. Returns the bytes copied.
///
/// # Errors
/// A [`StoreError`] when the backup is damaged or the target exists.
pub async fn restore(backup: &Path, directory: &Path) -> Result<u64, StoreError> {
    redrive_store::restore(backup, directory).await
}

/// A store in memory, for tests and throw-away work.
#[cfg(feature = "memory")]
#[must_use]
pub fn memory() -> Arc<dyn Store> {
    Arc::new(redrive_store::memory::MemoryStore::new())
}

/// A fresh message id: a UUIDv7 from the wall clock and the operating system's randomness.
#[must_use]
pub fn new_id() -> MessageId {
    redrive_store::new_id()
}
