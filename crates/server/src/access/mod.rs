//! Who is calling, and what they may do. A request gets its store only through [`Caller`], which is made here and
//! nowhere else: the token (or the session that was opened with one) says who it is, and a gate in front of the store
//! admits only what the core's table of verbs allows them ([`redrive_core::access`]). So there is no route without a
//! rule.

mod limiter;
mod origin;
mod session;
mod tokens;

pub use tokens::{create_token, list_tokens, revoke_token};

pub(crate) use limiter::{Buckets, FailedLogins, UsageSlot};
pub(crate) use origin::{check_origin, is_local};
pub(crate) use session::{Sessions, cookie_of, set_cookie};
pub(crate) use tokens::Tokens;

use crate::app::App;
use crate::problem::Problem;
use crate::request_key::PendingKey;
use crate::request_log::CallerName;
use async_trait::async_trait;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use redrive_core::access::{Access, Lookup};
use redrive_core::dead_letter::Actor;
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::ids::QueueName;
use redrive_core::masking::Rules;
use redrive_core::store::{Call, Gate, Gated, Role, Store, Work as _};
use redrive_core::time::{Span, Time};
use std::sync::Arc;

/// The caller of a request, with the store as far as they may use it.
#[derive(Clone)]
pub(crate) struct Caller {
    /// What they may do.
    pub(crate) access: Arc<Access>,
    /// The store, behind their gate.
    pub(crate) store: Arc<Gated>,
    /// The application.
    pub(crate) app: Arc<App>,
    /// The key that makes repeating the request harmless.
    request: Option<PendingKey>,
}

impl Caller {
    /// The actor for the audit trail.
    pub(crate) fn actor(&self, reason: Option<String>) -> Actor {
        let request = self.request.as_ref().map(PendingKey::request);
        Actor { reason, request, ..Actor::new(self.access.name.clone(), "api") }
    }

    /// Waits for work, but not longer than the server runs.
    pub(crate) async fn wait(&self, queues: Vec<QueueName>, at_most: Span) -> StoreResult<bool> {
        tokio::select! {
            work = self.store.wait(queues, at_most) => work,
            () = self.app.config.stop.cancelled() => Ok(false),
        }
    }

    /// The time by the store's clock, which is no secret from anybody.
    pub(crate) async fn now(&self) -> Result<Time, Problem> {
        Ok(self.app.store().info().await?.now)
    }

    /// Refuses a caller who lacks a role, where a route asks for more than its verbs do or must know early.
    pub(crate) fn require(&self, role: Role, verb: &str) -> Result<(), Problem> {
        if self.access.allows(role) {
            return Ok(());
        }
        let (who, verb) = (self.access.name.clone(), verb.to_owned());
        Err(Refusal::NotAllowed { who, verb, why: format!("it needs the role {role}") }.into())
    }

    /// Refuses a caller who could not carry out this call, without carrying it out.
    pub(crate) fn may(&self, mut call: Call) -> Result<(), Problem> {
        self.access.admit(&mut call).map(|_| ()).map_err(Problem::from)
    }

    /// The masking rules for what leaves the server.
    pub(crate) fn rules(&self) -> &Rules {
        &self.app.config.masking
    }
}

/// Admits the calls of one caller.
struct Door {
    access: Arc<Access>,
    store: Arc<dyn Store>,
}

#[async_trait]
impl Gate for Door {
    async fn admit(&self, call: &mut Call) -> StoreResult<()> {
        let verb = call.verb();
        let refuse =
            |why: String| Refusal::NotAllowed { who: self.access.name.clone(), verb: verb.to_owned(), why };
        match self.access.admit(call).inspect_err(|refusal| tracing::warn!(%refusal, "refused"))? {
            Lookup::Nothing => {}
            Lookup::QueuesOfMessages(ids) => {
                for id in ids {
                    let message = self.store.message(id).await?;
                    if !self.access.covers(&message.envelope.queue) {
                        return Err(refuse(format!("message {id} is in a queue the token is not for")).into());
                    }
                }
            }
            Lookup::QueuesOfLetters(ids) => {
                for id in ids {
                    let letter = self.store.letter(id).await?;
                    if !self.access.covers(&letter.message.envelope.queue) {
                        return Err(refuse(format!("letter {id} is of a queue the token is not for")).into());
                    }
                }
            }
        }
        Ok(())
    }
}

impl Caller {
    /// A caller who may do this.
    pub(crate) fn new(app: Arc<App>, access: Arc<Access>) -> Self {
        let door = Door { access: Arc::clone(&access), store: app.store() };
        let store = Arc::new(Gated::new(Arc::new(door), app.store()));
        Self { access, store, app, request: None }
    }
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let access = who(parts, app).await?;
        if let Some(noted) = parts.extensions.get::<CallerName>() {
            noted.set(&access.name);
        }
        let taken = app.buckets.take(&access.name);
        if let (Some(usage), Some(slot)) = (&taken.usage, parts.extensions.get::<UsageSlot>()) {
            slot.set(*usage);
        }
        taken.result?;
        let request = PendingKey::of(parts)?;
        Ok(Self { request, ..Self::new(Arc::clone(app), access) })
    }
}

/// Finds out who is calling: by the token in the `Authorization` header, else by the session cookie.
async fn who(parts: &Parts, app: &Arc<App>) -> Result<Arc<Access>, Problem> {
    if let Some(trusted) = &app.config.without_auth {
        return Ok(Arc::clone(trusted));
    }
    let unknown = |detail: &str| Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail);
    if let Some(value) = parts.headers.get(header::AUTHORIZATION) {
        let text = value.to_str().unwrap_or_default();
        let token = text.strip_prefix("Bearer ").map(str::trim);
        let Some(token) = token else {
            return Err(unknown("the Authorization header must be `Bearer` and a token"));
        };
        return app.tokens.verify(app.store().as_ref(), token).await;
    }
    match cookie_of(&parts.headers) {
        Some(cookie) => {
            app.sessions.find(cookie).ok_or_else(|| unknown("the session has ended; log in again"))
        }
        None => Err(unknown(
            "send a token in the Authorization header (`Authorization: Bearer rdt_…`); \
             `redrive token create` makes one",
        )),
    }
}
