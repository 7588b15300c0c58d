//! Who is calling, and what they may do. A request gets its store only through [`Caller`], which is made here and
//! nowhere else: the token (or the session that was opened with one) says who it is, and a gate in front of the store
//! admits only what the core's table of verbs allows them ([`redrive_core::access`]). So there is no route without a
//! rule.

mod limiter;
mod origin;
mod refusals;
mod session;
mod tokens;

pub use refusals::Refusals;
pub use tokens::{create_token, list_tokens, revoke_token};

pub(crate) use limiter::{Buckets, FailedLogins, UsageSlot};
pub(crate) use origin::{check_origin, is_local};
pub(crate) use refusals::Peer;
pub(crate) use session::{Sessions, cookie_of, set_cookie};
use tokens::BELIEVED_FOR;
pub(crate) use tokens::Tokens;

use crate::app::App;
use crate::problem::Problem;
use crate::request_key::PendingKey;
use crate::request_log::CallerName;
use async_trait::async_trait;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use redrive_core::access::{Access, Lookup, TokenId};
use redrive_core::dead_letter::Actor;
use redrive_core::error::{CallError, Refusal, StoreError, StoreErrorKind, StoreResult};
use redrive_core::ids::QueueName;
use redrive_core::masking::Rules;
use redrive_core::store::{Call, Gate, Gated, Role, Work as _};
use redrive_core::time::{Span, Time};
use std::sync::Arc;
use std::time::Instant;

/// Who somebody is, and how they proved it.
#[derive(Clone)]
pub(crate) struct Identity {
    /// What they may do.
    pub(crate) access: Arc<Access>,
    /// The token with which they proved it. `None` if no token was asked for, or a login code took its place.
    pub(crate) token: Option<TokenId>,
}

/// The caller of a request, with the store as far as they may use it.
#[derive(Clone)]
pub(crate) struct Caller {
    /// What they may do.
    pub(crate) access: Arc<Access>,
    /// The store, behind their gate.
    pub(crate) store: Arc<Gated>,
    door: Arc<Door>,
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

    /// Waits for work, but not longer than the server runs and the token is valid.
    pub(crate) async fn wait(&self, queues: Vec<QueueName>, at_most: Span) -> StoreResult<bool> {
        tokio::select! {
            work = self.store.wait(queues, at_most) => work,
            () = self.app.config.stop.cancelled() => Ok(false),
            // The gate refuses what follows.
            () = self.revoked() => Ok(false),
        }
    }

    /// The time by the store's clock, which is no secret from anybody.
    pub(crate) async fn now(&self) -> Result<Time, Problem> {
        Ok(self.app.store().info().await?.now)
    }

    /// Refuses a caller who lacks a role, where a route asks for more than its verbs do or must know early.
    pub(crate) fn require(&self, role: Role, verb: &str) -> Result<(), Problem> {
        if self.access.allows(role) {
            Ok(())
        } else {
            Err(self.refuse(verb, format!("it needs the role {role}")))
        }
    }

    /// The refusal of a request, on its way into the audit trail.
    pub(crate) fn refuse(&self, verb: &str, why: String) -> Problem {
        let (who, verb) = (self.access.name.clone(), verb.to_owned());
        let refusal = Refusal::NotAllowed { who, verb, why };
        self.app.note_not_allowed(&refusal, self.door.peer);
        refusal.into()
    }

    /// Refuses a caller who could not carry out this call, without carrying it out.
    pub(crate) fn may(&self, mut call: Call) -> Result<(), Problem> {
        let admitted = self.access.admit(&mut call).inspect_err(|refusal| {
            self.app.note_not_allowed(refusal, self.door.peer);
        });
        admitted.map(|_| ()).map_err(Problem::from)
    }

    /// Whether the token of a request that takes long is still valid. The gate asks by itself before every call.
    pub(crate) async fn is_still_known(&self) -> bool {
        self.door.check_token().await.is_ok()
    }

    /// The problem of a caller whose token is not valid any more.
    pub(crate) fn no_longer_known(&self) -> Problem {
        no_longer_known().into()
    }

    /// Completes when the token of the request is revoked through this server.
    pub(crate) async fn revoked(&self) {
        let mut revocations = self.app.tokens.revocations();
        while self.is_still_known().await {
            // The sender lives as long as the application, which the caller holds.
            let _ = revocations.changed().await;
        }
    }

    /// The masking rules for what leaves the server.
    pub(crate) fn rules(&self) -> &Rules {
        &self.app.config.masking
    }
}

fn no_longer_known() -> StoreError {
    let what = "the token was revoked or has expired since the request began";
    StoreError::new(StoreErrorKind::Unauthenticated, what)
}

/// Admits the calls of one caller.
struct Door {
    access: Arc<Access>,
    token: Option<TokenId>,
    /// When the token was verified, and how many had been revoked by then.
    since: (Instant, u64),
    /// Where the request comes from.
    peer: Option<Peer>,
    app: Arc<App>,
}

#[async_trait]
impl Gate for Door {
    async fn admit(&self, call: &mut Call) -> StoreResult<()> {
        self.check_token().await?;
        let admitted = self.look(call).await;
        if let Err(CallError::Refused(refusal @ Refusal::NotAllowed { .. })) = &admitted {
            self.app.note_not_allowed(refusal, self.peer);
        }
        admitted
    }
}

impl Door {
    /// Refuses a caller whose token was revoked or has expired since the request began: a request may wait for work, or
    /// send and receive a stream.
    async fn check_token(&self) -> StoreResult<()> {
        let (at, revoked) = self.since;
        let is_fresh = at.elapsed() < BELIEVED_FOR && self.app.tokens.revoked_so_far() == revoked;
        let Some(token) = self.token.filter(|_| !is_fresh) else { return Ok(()) };
        if self.app.tokens.is_valid(self.app.store().as_ref(), token).await? {
            return Ok(());
        }
        Err(no_longer_known().into())
    }

    /// Looks at a call, and up what else decides about it.
    async fn look(&self, call: &mut Call) -> StoreResult<()> {
        let verb = call.verb();
        let refuse =
            |why: String| Refusal::NotAllowed { who: self.access.name.clone(), verb: verb.to_owned(), why };
        let store = self.app.store();
        match self.access.admit(call)? {
            Lookup::Nothing => {}
            Lookup::QueuesOfMessages(ids) => {
                for id in ids {
                    let message = store.message(id).await?;
                    if !self.access.covers(&message.envelope.queue) {
                        return Err(refuse(format!("message {id} is in a queue the token is not for")).into());
                    }
                }
            }
            Lookup::QueuesOfLetters(ids) => {
                for id in ids {
                    let letter = store.letter(id).await?;
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
    /// A caller who has proved who they are.
    fn new(app: Arc<App>, identity: Identity, peer: Option<Peer>, request: Option<PendingKey>) -> Self {
        let Identity { access, token } = identity;
        let (since, shared) = ((Instant::now(), app.tokens.revoked_so_far()), Arc::clone(&app));
        let door = Arc::new(Door { access: Arc::clone(&access), token, since, peer, app: shared });
        let gate: Arc<dyn Gate> = door.clone();
        let store = Arc::new(Gated::new(gate, app.store()));
        Self { access, store, door, app, request }
    }
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let identity = who(parts, app).await?;
        let name = &identity.access.name;
        if let Some(noted) = parts.extensions.get::<CallerName>() {
            noted.set(name);
        }
        let taken = app.buckets.take(name);
        if let (Some(usage), Some(slot)) = (&taken.usage, parts.extensions.get::<UsageSlot>()) {
            slot.set(*usage);
        }
        taken.result?;
        let request = PendingKey::of(parts)?;
        let peer = parts.extensions.get::<Peer>().copied();
        Ok(Self::new(Arc::clone(app), identity, peer, request))
    }
}

/// Finds out who is calling: by the token in the `Authorization` header, else by the session cookie.
async fn who(parts: &Parts, app: &Arc<App>) -> Result<Identity, Problem> {
    if let Some(trusted) = &app.config.without_auth {
        return Ok(Identity { access: Arc::clone(trusted), token: None });
    }
    let peer = parts.extensions.get::<Peer>().copied();
    let unknown = |detail: &str| Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail);
    if let Some(value) = parts.headers.get(header::AUTHORIZATION) {
        let text = value.to_str().unwrap_or_default();
        let token = text.strip_prefix("Bearer ").map(str::trim);
        let Some(token) = token else {
            return Err(unknown("the Authorization header must be `Bearer` and a token"));
        };
        return app.log_in(token, peer).await;
    }
    let ended = || unknown("the session has ended; log in again");
    match cookie_of(&parts.headers) {
        Some(cookie) => {
            let identity = app.sessions.find(cookie).ok_or_else(ended)?;
            match identity.token {
                // The token may have been revoked in another process, on the store itself.
                Some(token) if !app.tokens.is_valid(app.store().as_ref(), token).await? => {
                    app.sessions.close_all_of(token);
                    Err(ended())
                }
                Some(_) | None => Ok(identity),
            }
        }
        None => Err(unknown(
            "send a token in the Authorization header (`Authorization: Bearer rdt_…`); \
             `redrive token create` makes one",
        )),
    }
}
