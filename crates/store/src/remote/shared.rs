//! The connection that all callers of a client share: kept while it is open, and made anew by the first caller who finds it
//! closed.

use super::connection::Connection;
use redrive_core::error::StoreError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A connection that is made when it is needed.
#[derive(Debug, Default)]
pub(super) struct SharedConnection {
    kept: Mutex<Option<Arc<Connection>>>,
    /// Held while a new connection is made, so that callers who find none do not each make their own. Contains why the
    /// last attempt failed.
    dialing: tokio::sync::Mutex<Option<StoreError>>,
    failed_dials: AtomicU64,
    last_call: AtomicU64,
}

impl SharedConnection {
    /// An id for a call.
    pub(super) fn next_id(&self) -> u64 {
        self.last_call.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether there is an open connection.
    #[cfg(feature = "nodes")]
    pub(super) fn is_open(&self) -> bool {
        self.kept().is_some()
    }

    fn kept(&self) -> Option<Arc<Connection>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().filter(|connection| connection.is_open()).map(Arc::clone)
    }

    /// Lets no further caller use this connection. Those who wait for a reply on it still get theirs.
    pub(super) fn give_up(&self, connection: &Arc<Connection>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, connection)) {
            *kept = None;
        }
    }

    /// The open connection, or a new one. Callers who wait while an attempt fails share its error.
    pub(super) async fn get<F>(&self, dial: impl FnOnce() -> F) -> Result<Arc<Connection>, StoreError>
    where
        F: Future<Output = Result<Connection, StoreError>>,
    {
        if let Some(connection) = self.kept() {
            return Ok(connection);
        }
        let failed_before = self.failed_dials.load(Ordering::Relaxed);
        let mut dialing = self.dialing.lock().await;
        // Somebody else may have made one meanwhile, or may have failed to.
        if let Some(connection) = self.kept() {
            return Ok(connection);
        }
        let failed_meanwhile = self.failed_dials.load(Ordering::Relaxed) != failed_before;
        if let Some(error) = dialing.as_ref().filter(|_| failed_meanwhile) {
            return Err(error.clone());
        }
        match dial().await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&connection));
                Ok(connection)
            }
            Err(error) => {
                self.failed_dials.fetch_add(1, Ordering::Relaxed);
                *dialing = Some(error.clone());
                Err(error)
            }
        }
    }
}
