//! What all requests share. The store in it is private: a request reaches it only through the gate of its caller.

use crate::access::{Buckets, Identity, Peer, Sessions, Tokens};
use crate::api::verbs::Lifted;
use crate::config::Config;
use crate::events::Events;
use crate::metrics::HttpMetrics;
use crate::problem::Problem;
use axum::http::StatusCode;
use redrive_core::access::TokenId;
use redrive_core::error::Refusal;
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

    /// Who a token belongs to. A wrong one is on its way into the audit trail, without the token.
    pub(crate) async fn log_in(&self, token: &str, peer: Option<Peer>) -> Result<Identity, Problem> {
        let identity = self.tokens.verify(self.store.as_ref(), token).await;
        identity.inspect_err(|problem| match problem.status() {
            StatusCode::UNAUTHORIZED | StatusCode::TOO_MANY_REQUESTS => {
                self.note_refused(Peer::name(peer), problem, problem.detail().to_owned());
            }
            _ => {}
        })
    }

    /// Ends everything that was opened with a token that was revoked: sessions, streams and long polls.
    pub(crate) fn revoked(&self, token: TokenId) {
        self.tokens.forget(token);
        self.sessions.close_all_of(token);
    }

    /// Notes in the log and for the audit trail that somebody asked for what they may not do.
    pub(crate) fn note_not_allowed(&self, refusal: &Refusal, peer: Option<Peer>) {
        tracing::warn!(%refusal, "refused");
        if let Refusal::NotAllowed { who, verb, why } = refusal {
            let detail = format!("{verb}: {why}; from {}", Peer::name(peer));
            self.count_refusal(who.clone(), "not_allowed", detail);
        }
    }

    /// Notes in the log and for the audit trail that a request was refused before anybody knew whose it is.
    pub(crate) fn note_refused(&self, who: String, problem: &Problem, detail: String) {
        tracing::warn!(code = problem.code(), who, "refused");
        self.count_refusal(who, problem.code(), detail);
    }

    fn count_refusal(&self, who: String, code: &'static str, detail: String) {
        self.config.refusals.note(&self.store, &self.config.stop, (who, code), detail);
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
