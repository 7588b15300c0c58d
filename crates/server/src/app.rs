//! What all requests share. The store in it is private: a request reaches it only through the gate of its caller.

use crate::access::{Buckets, Sessions, Tokens};
use crate::api::verbs::Lifted;
use crate::config::Config;
use crate::events::Events;
use crate::metrics::HttpMetrics;
use crate::problem::Problem;
use axum::http::StatusCode;
use redrive_core::store::Store;
use std::sync::Arc;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The number of callers that may wait for work at the same time.
const WAITS_MAX: usize = 4_096;

/// The state of a server.
pub(crate) struct App {
    store: Arc<dyn Store>,
    pub(crate) config: Config,
    pub(crate) tokens: Tokens,
    pub(crate) sessions: Sessions,
    pub(crate) buckets: Buckets,
    pub(crate) lifted: Lifted,
    /// What is measured about requests.
    pub(crate) metrics: HttpMetrics,
    pub(crate) events: Arc<Events>,
    /// Room for callers that wait for work, so that they never use up what others need.
    waits: Semaphore,
}

impl App {
    /// A server over this store.
    pub(crate) fn new(store: Arc<dyn Store>, config: Config) -> Self {
        let buckets = Buckets::new(config.rate_per_token);
        Self {
            store,
            config,
            tokens: Tokens::default(),
            sessions: Sessions::default(),
            buckets,
            lifted: Lifted::default(),
            metrics: HttpMetrics::default(),
            events: Arc::default(),
            waits: Semaphore::new(WAITS_MAX),
        }
    }

    /// Room for one more caller that waits.
    pub(crate) fn room_to_wait(&self) -> Result<SemaphorePermit<'_>, Problem> {
        self.waits.try_acquire().map_err(|_| {
            let what =
                format!("{WAITS_MAX} callers wait for work already; ask again without waiting, or later");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_waits", what).retry_after(1)
        })
    }

    /// How many callers wait for work.
    pub(crate) fn long_polls(&self) -> usize {
        WAITS_MAX.saturating_sub(self.waits.available_permits())
    }

    /// The store without a gate. Only for [`crate::access`], for health checks, which show no data, and for the feeder of
    /// the events, which are checked one by one.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }
}
