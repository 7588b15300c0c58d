//! Opens a data directory: directly, or through the process that holds it. Callers only see a `dyn Store` and need not
//! know which it is.

use redrive_core::error::StoreError;
use redrive_core::ids::MessageId;
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::path::Path;
use std::sync::Arc;

/// How to open a data directory.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Create the directory if it does not exist.
    pub create: bool,
    /// Serve other processes on the directory's socket while this process holds it. Set it unless the directory is held
    /// only for a moment.
    pub serve: bool,
    /// How long to wait for a process that holds the directory without serving it.
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
/// Returns a [`StoreError`] that says what is wrong with the directory and what to do.
pub async fn open(directory: &Path, options: OpenOptions) -> Result<Arc<dyn Store>, StoreError> {
    redrive_store::open(directory, options.create, options.serve, options.patience).await
}

/// Creates a new data directory from a backup and returns the number of bytes copied. Never overwrites a directory.
///
/// # Errors
/// Returns a [`StoreError`] if the backup is damaged or the target exists.
pub async fn restore(backup: &Path, directory: &Path) -> Result<u64, StoreError> {
    redrive_store::restore(backup, directory).await
}

/// Creates a store in memory, for tests and throw-away work.
#[cfg(feature = "memory")]
#[must_use]
pub fn memory() -> Arc<dyn Store> {
    Arc::new(redrive_store::memory::MemoryStore::new())
}

/// Creates a message id: a UUIDv7 from the wall clock and the operating system's randomness.
#[must_use]
pub fn new_id() -> MessageId {
    redrive_store::new_id()
}
