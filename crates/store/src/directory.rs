//! One directory, many processes: the first process to open a directory holds it, and the others talk to that process.

use crate::remote::server::{Server, serve};
use crate::remote::{RemoteStore, Takeover};
use crate::sqlite::{Options, SqliteStore};
use crate::trust::SOCKET;
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// How often to try again to open a directory that another process holds for a moment.
const TRY_EVERY: Duration = Duration::from_millis(10);

/// Opens a data directory, or connects to the process that holds it. With `serve`, the caller means to hold the
/// directory for long: when the holder goes away, the first call that finds nobody there takes over.
///
/// # Errors
/// A [`StoreError`] that says what is wrong with the directory and what to do.
pub async fn open(
    directory: &Path,
    create: bool,
    serve: bool,
    patience: Span,
) -> Result<Arc<dyn Store>, StoreError> {
    let end = tokio::time::Instant::now() + patience.to_std();
    loop {
        let mut held = match open_here(directory, create, serve).await {
            Err(error) if error.kind == StoreErrorKind::Locked => error,
            opened => return opened,
        };
        match RemoteStore::connect(directory).await {
            Ok(remote) if serve => {
                let path = directory.to_owned();
                let take_over = Box::new(move || {
                    let path = path.clone();
                    Box::pin(async move { open_here(&path, false, true).await }) as Pin<Box<_>>
                });
                return Ok(Arc::new(remote.with_takeover(Takeover::new(take_over, patience.to_std()))));
            }
            Ok(remote) => return Ok(Arc::new(remote)),
            Err(error) if matches!(error.kind, StoreErrorKind::Protocol | StoreErrorKind::Untrusted) => {
                return Err(error);
            }
            Err(error) if error.kind == StoreErrorKind::Busy => held = error,
            Err(_) => {}
        }
        if tokio::time::Instant::now() >= end {
            return Err(held);
        }
        tokio::time::sleep(TRY_EVERY).await;
    }
}

async fn open_here(directory: &Path, create: bool, serving: bool) -> Result<Arc<dyn Store>, StoreError> {
    let path = directory.to_owned();
    let options = Options { create, grace: serving, ..Options::default() };
    let panicked = |_| StoreError::new(StoreErrorKind::Stopped, "opening the store panicked");
    let store =
        tokio::task::spawn_blocking(move || SqliteStore::open(&path, options)).await.map_err(panicked)??;
    share(store, serving)
}

/// Makes a store shareable, and serves it on its directory's socket if `serving` is set.
fn share(store: SqliteStore, serving: bool) -> Result<Arc<dyn Store>, StoreError> {
    let socket = store.directory().join(SOCKET);
    let store = Arc::new(store);
    if serving {
        let served: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
        let server: Server = serve(&served, &socket)?;
        store.keep_serving(server);
    }
    Ok(store)
}

/// Opens a directory with these options and serves it; for tests with a clock of their own.
///
/// # Errors
/// A [`StoreError`] as for [`open`].
pub fn open_serving(directory: &Path, options: Options) -> Result<Arc<dyn Store>, StoreError> {
    share(SqliteStore::open(directory, options)?, true)
}

/// Creates a data directory from a backup; refuses to overwrite an existing one. Returns the bytes copied.
///
/// # Errors
/// A [`StoreError`] if the backup is damaged or the target exists.
pub async fn restore(backup: &Path, directory: &Path) -> Result<u64, StoreError> {
    let (backup, directory) = (backup.to_owned(), directory.to_owned());
    let panicked = |_| StoreError::new(StoreErrorKind::Stopped, "restoring panicked");
    tokio::task::spawn_blocking(move || crate::sqlite::restore(&backup, &directory))
        .await
        .map_err(panicked)?
}
