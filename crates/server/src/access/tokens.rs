//! The tokens in a store: made, listed, revoked and verified. They are in the store's small durable values, so that
//! the command line can manage them without a server, and backups contain them (as hashes).

use super::{FailedLogins, Identity};
use crate::problem::Problem;
use axum::http::StatusCode;
use redrive_core::access::{Access, Token, TokenId, TokenRecord};
use redrive_core::dead_letter::Actor;
use redrive_core::error::{Refusal, StoreError, StoreErrorKind, StoreResult};
use redrive_core::recording::{KvWrite, OutsideAct, RecordRequest};
use redrive_core::store::Store;
use redrive_core::time::{Span, Time};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Where the records of tokens are.
const NAMESPACE: &str = "tokens";
/// The list of all ids.
const INDEX: &str = "index";
/// The number of tokens in a store.
const TOKENS_MAX: usize = 1_000;
/// How long a verified token is believed without looking again, which bounds how long a revoked one still works.
pub(super) const BELIEVED_FOR: Duration = Duration::from_secs(1);
/// How exact the time of the last use is.
const USE_NOTED_EVERY: Span = Span::from_secs(60);

/// Creates a token, which the audit trail records. Returns it with its record; the text of the token cannot be had again.
///
/// # Errors
/// Those of the store, and [`Refusal::Invalid`] if there are too many tokens already.
pub async fn create_token(
    store: &dyn Store,
    access: Access,
    by: &Actor,
    lifetime: Option<Span>,
) -> StoreResult<(Token, TokenRecord)> {
    let (mut id, mut secret) = ([0; 6], [0; 32]);
    getrandom::fill(&mut id).and_then(|()| getrandom::fill(&mut secret)).map_err(|error| {
        StoreError::new(StoreErrorKind::Io, format!("the system has no randomness for a token: {error}"))
    })?;
    let token = Token::new(id, secret);
    let now = store.info().await?.now;
    let expires_at = lifetime.map(|span| now.plus(span));
    let record = TokenRecord::new(&token, access, by.name.clone(), now, expires_at);
    loop {
        let (mut ids, index_version) = index(store).await?;
        if ids.len() >= TOKENS_MAX {
            let why = format!("there are {TOKENS_MAX} already; revoke some first");
            return Err(Refusal::invalid("tokens", why).into());
        }
        ids.push(token.id);
        let request = RecordRequest::new(OutsideAct::CreateToken, by.clone(), token.id.to_string())
            .with_detail(described(&record))
            .writing(write_of(INDEX, Some(encode(&ids)?), index_version))
            .writing(write_of(&token.id.to_string(), Some(encode(&record)?), 0));
        if recorded(store, request).await? {
            return Ok((token, record));
        }
    }
}

/// What the audit trail says about a new token.
fn described(record: &TokenRecord) -> String {
    let Access { name, roles, queues } = &record.access;
    let words = |words: Vec<String>| words.join(", ");
    let roles = words(roles.iter().map(ToString::to_string).collect());
    let queues = match queues.as_slice() {
        [] => "all queues".to_owned(),
        some => words(some.iter().map(ToString::to_string).collect()),
    };
    let until = record.expires_at.map(|at| format!(" until {at}")).unwrap_or_default();
    format!("for {name}: {roles} on {queues}{until}")
}

fn write_of(key: &str, value: Option<Vec<u8>>, expected: u64) -> KvWrite {
    KvWrite { namespace: NAMESPACE.into(), key: key.into(), value, expected }
}

/// Records an act with its values. False if somebody else changed one of them meanwhile.
async fn recorded(store: &dyn Store, request: RecordRequest) -> StoreResult<bool> {
    match store.record(vec![request]).await?.into_iter().next() {
        Some(Err(Refusal::KvConflict { .. })) => Ok(false),
        Some(Err(refusal)) => Err(refusal.into()),
        Some(Ok(())) | None => Ok(true),
    }
}

/// Lists the tokens, oldest first.
///
/// # Errors
/// Those of the store.
pub async fn list_tokens(store: &dyn Store) -> StoreResult<Vec<TokenRecord>> {
    let mut records = Vec::new();
    for id in index(store).await?.0 {
        if let Some((record, _)) = read(store, id).await? {
            records.push(record);
        }
    }
    Ok(records)
}

/// Revokes a token, which the audit trail records. Returns its record, or `None` if there is no such token. A server
/// that has verified the token lately notices within a second.
///
/// # Errors
/// Those of the store.
pub async fn revoke_token(store: &dyn Store, id: TokenId, by: &Actor) -> StoreResult<Option<TokenRecord>> {
    loop {
        let Some((record, version)) = read(store, id).await? else { return Ok(None) };
        let (mut ids, index_version) = index(store).await?;
        ids.retain(|other| *other != id);
        let request = RecordRequest::new(OutsideAct::RevokeToken, by.clone(), id.to_string())
            .with_detail(format!("of {}", record.access.name))
            .writing(write_of(INDEX, Some(encode(&ids)?), index_version))
            .writing(write_of(&id.to_string(), None, version));
        if recorded(store, request).await? {
            return Ok(Some(record));
        }
    }
}

async fn index(store: &dyn Store) -> StoreResult<(Vec<TokenId>, u64)> {
    Ok(match store.kv_get(NAMESPACE.into(), INDEX.into()).await? {
        Some(entry) => (decode(&entry.value)?, entry.version),
        None => (Vec::new(), 0),
    })
}

async fn read(store: &dyn Store, id: TokenId) -> StoreResult<Option<(TokenRecord, u64)>> {
    match store.kv_get(NAMESPACE.into(), id.to_string()).await? {
        Some(entry) => Ok(Some((decode(&entry.value)?, entry.version))),
        None => Ok(None),
    }
}

async fn write(store: &dyn Store, record: &TokenRecord, version: u64) -> StoreResult<u64> {
    store.kv_put(NAMESPACE.into(), record.id.to_string(), Some(encode(record)?), version).await
}

fn encode<T: serde::Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(|error| StoreError::new(StoreErrorKind::Protocol, error.to_string()))
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(bytes).map_err(|error| {
        StoreError::new(StoreErrorKind::Damaged, format!("the record of a token is damaged: {error}"))
    })
}

/// A token that was right when it was last looked at.
struct Believed {
    identity: Identity,
    since: Instant,
}

impl Believed {
    fn is_fresh(&self) -> bool {
        self.since.elapsed() < BELIEVED_FOR
    }
}

/// Verifies tokens, and remembers for a moment which ones were right.
#[derive(Default)]
pub(crate) struct Tokens {
    believed: Mutex<HashMap<String, Believed>>,
    /// When the tokens behind sessions and streams were last found valid.
    valid: Mutex<HashMap<TokenId, Instant>>,
    failed: FailedLogins,
    /// How many tokens were revoked through this server.
    revoked: watch::Sender<u64>,
}

impl Tokens {
    /// Who a token belongs to. Wrong tokens of all callers together are slowed down. A right one is accepted all the same,
    /// so that nobody can lock others out by guessing; the secret of a token is too long to be guessed.
    pub(crate) async fn verify(&self, store: &dyn Store, text: &str) -> Result<Identity, Problem> {
        if let Some(identity) = self.remembered(text) {
            return Ok(identity);
        }
        let wrong = |detail: &str| {
            self.failed.check()?;
            self.failed.failed();
            Err(Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail))
        };
        let Ok(token) = text.parse::<Token>() else {
            return wrong("that is not a token of this kind of server");
        };
        let now = store.info().await?.now;
        match read(store, token.id).await? {
            Some((record, _)) if record.is_of(&token) && record.has_expired(now) => {
                wrong("the token has expired; ask for a new one")
            }
            Some((record, version)) if record.is_of(&token) => {
                self.failed.succeeded();
                let access = Arc::new(record.access.clone());
                let identity = Identity { access, token: Some(token.id) };
                note_use(store, record, version, now).await;
                let mut believed = self.believed.lock().unwrap_or_else(PoisonError::into_inner);
                believed.retain(|_, believed| believed.is_fresh());
                let fresh = Believed { identity: identity.clone(), since: Instant::now() };
                believed.insert(text.to_owned(), fresh);
                Ok(identity)
            }
            Some(_) | None => wrong("the token is not known; it may have been revoked"),
        }
    }

    fn remembered(&self, text: &str) -> Option<Identity> {
        let believed = self.believed.lock().unwrap_or_else(PoisonError::into_inner);
        believed.get(text).filter(|believed| believed.is_fresh()).map(|believed| believed.identity.clone())
    }

    /// Whether a token that was verified earlier is still valid, as of a moment ago at most.
    pub(crate) async fn is_valid(&self, store: &dyn Store, id: TokenId) -> StoreResult<bool> {
        let fresh = |since: &Instant| since.elapsed() < BELIEVED_FOR;
        if self.valid.lock().unwrap_or_else(PoisonError::into_inner).get(&id).is_some_and(fresh) {
            return Ok(true);
        }
        let Some((record, _)) = read(store, id).await? else { return Ok(false) };
        if record.expires_at.is_some() && record.has_expired(store.info().await?.now) {
            return Ok(false);
        }
        let mut valid = self.valid.lock().unwrap_or_else(PoisonError::into_inner);
        valid.retain(|_, since| fresh(since));
        valid.insert(id, Instant::now());
        Ok(true)
    }

    /// Forgets that a token was right, because it was revoked.
    pub(crate) fn forget(&self, id: TokenId) {
        let mut believed = self.believed.lock().unwrap_or_else(PoisonError::into_inner);
        believed.retain(|_, believed| believed.identity.token != Some(id));
        self.valid.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        self.revoked.send_modify(|count| *count += 1);
    }

    /// How many tokens were revoked through this server.
    pub(super) fn revoked_so_far(&self) -> u64 {
        *self.revoked.borrow()
    }

    /// Tells when a token is revoked through this server.
    pub(super) fn revocations(&self) -> watch::Receiver<u64> {
        self.revoked.subscribe()
    }
}

/// Notes that a token was used. A store that is full or read by somebody else at the moment does not matter.
async fn note_use(store: &dyn Store, mut record: TokenRecord, version: u64, now: Time) {
    let noted_lately = record.last_used_at.is_some_and(|at| now.since(at) < USE_NOTED_EVERY);
    if !noted_lately {
        record.last_used_at = Some(now);
        if let Err(error) = write(store, &record, version).await {
            tracing::debug!(%error, "the use of a token was not noted");
        }
    }
}
