//! Opens a store: a data directory, directly or through the process that holds it, or a store in a database. Callers only
//! see a `dyn Store` and need not know which it is.

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

/// Opens a store: a data directory, or a store in a database if the place is a `postgres://` or `redis://` URL. If another
/// process holds it, connects to that process; a store in Redis is used by one process at a time, so there this waits.
///
/// # Errors
/// Returns a [`StoreError`] that says what is wrong and what to do.
pub async fn open(place: impl AsRef<Path>, options: OpenOptions) -> Result<Arc<dyn Store>, StoreError> {
    let place = place.as_ref();
    let scheme = place.to_str().and_then(|text| text.split_once("://"));
    match scheme.map(|(scheme, _)| scheme) {
        Some("postgres" | "postgresql") => open_postgres(&place.to_string_lossy(), options).await,
        Some("redis" | "rediss") => open_redis(&place.to_string_lossy(), options).await,
        Some(_) | None => redrive_store::open(place, options.create, options.serve, options.patience).await,
    }
}

/// How this process is called in messages to people on other machines.
#[cfg(any(feature = "postgres", feature = "redis"))]
fn node() -> String {
    let host = crate::host::host().unwrap_or_else(|| "localhost".into());
    format!("{host}, process {}", std::process::id())
}

#[cfg(feature = "postgres")]
async fn open_postgres(url: &str, options: OpenOptions) -> Result<Arc<dyn Store>, StoreError> {
    use redrive_store::postgres::{NodeOptions, Options, join};
    let store = Options { create: options.create, node: node(), ..Options::default() };
    join(url, NodeOptions { store, ..NodeOptions::default() }).await
}

#[cfg(not(feature = "postgres"))]
async fn open_postgres(_: &str, _: OpenOptions) -> Result<Arc<dyn Store>, StoreError> {
    Err(not_built("PostgreSQL", "postgres"))
}

#[cfg(feature = "redis")]
async fn open_redis(url: &str, options: OpenOptions) -> Result<Arc<dyn Store>, StoreError> {
    use redrive_store::redis::{Options, RedisStore};
    let wait = std::time::Duration::from_millis(options.patience.as_millis());
    let options = Options { create: options.create, node: node(), wait, ..Options::default() };
    Ok(Arc::new(RedisStore::open(url, options).await?))
}

#[cfg(not(feature = "redis"))]
async fn open_redis(_: &str, _: OpenOptions) -> Result<Arc<dyn Store>, StoreError> {
    Err(not_built("Redis", "redis"))
}

/// The error for a store that this program was built without.
#[cfg(not(all(feature = "postgres", feature = "redis")))]
fn not_built(database: &str, feature: &str) -> StoreError {
    let text = format!(
        "this program was built without stores in {database}; use a release, or build it with `cargo build --release \
         --features {feature}`"
    );
    StoreError::new(redrive_core::error::StoreErrorKind::Unsupported, text)
}

/// The URL of a store without its password, for people to read.
#[must_use]
pub fn without_password(url: &str) -> String {
    let hidden = || {
        let (scheme, rest) = url.split_once("://")?;
        let (user, host) = rest.split_once('@')?;
        let (name, _) = user.split_once(':')?;
        Some(format!("{scheme}://{name}@{host}"))
    };
    hidden().unwrap_or_else(|| url.to_owned())
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
