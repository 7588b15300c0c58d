//! One directory, many processes: whoever comes first holds it, whoever comes later talks to them.

use crate::remote::server::{Server, serve};
use crate::remote::{Heir, RemoteStore};
use crate::sqlite::{Options, SqliteStore};
use crate::trust::SOCKET;
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// How often a directory that is held for a moment is tried again.
const TRY_EVERY: Duration = Duration::from_millis(10);

/// Opens a data directory, or connects to the process that holds it. Who means to hold it for long (`serve`)
/// takes the holder's place when that goes away: with the first call that finds nobody there.
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
                let place = directory.to_owned();
                let take_over = Box::new(move || {
                    let place = place.clone();
                    Box::pin(async move { open_here(&place, false, true).await }) as Pin<Box<_>>
                });
                return Ok(Arc::new(remote.inherit(Heir::new(take_over, patience.to_std()))));
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

/// Makes a store shareable, and serves it on its directory's socket if asked.
fn share(store: SqliteStore, serving: bool) -> Result<Arc<dyn Store>, StoreError> {
    let socket = store.directory().join(SOCKET);
    let store = Arc::new(store);
    if serving {
        let seen: Arc<dyn Store> = Arc::clone(&store) as Arc<dyn Store>;
        let server: Server = serve(&seen, &socket)?;
        store.keep_serving(server);
    }
    Ok(store)
}

/// Opens a directory with these options and serves it; for tests that bring their own clock.
///
/// # Errors
/// A [`StoreError`] as [`open`] gives.
pub fn open_serving(directory: &Path, options: Options) -> Result<Arc<dyn Store>, StoreError> {
    share(SqliteStore::open(directory, options)?, true)
}

/// Makes a new data directory from a backup; refuses to write over an existing one. Gives the bytes copied.
///
/// # Errors
/// A [`StoreError`] when the backup is damaged or the target exists.
pub async fn restore(backup: &Path, directory: &Path) -> Result<u64, StoreError> {
    let (backup, directory) = (backup.to_owned(), directory.to_owned());
    let panicked = |_| StoreError::new(StoreErrorKind::Stopped, "restoring panicked");
    tokio::task::spawn_blocking(move || crate::sqlite::restore(&backup, &directory))
        .await
        .map_err(panicked)?
}
