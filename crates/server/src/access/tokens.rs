//! The tokens in a store: made, listed, revoked and verified. They are in the store's small durable values, so that
//! the command line can manage them without a server, and backups contain them (as hashes).

use super::FailedLogins;
use crate::problem::Problem;
use axum::http::StatusCode;
use redrive_core::access::{Access, Token, TokenId, TokenRecord};
use redrive_core::error::{CallError, Refusal, StoreError, StoreErrorKind, StoreResult};
use redrive_core::store::Store;
use redrive_core::time::{Span, Time};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where the records of tokens are.
const NAMESPACE: &str = "tokens";
/// The list of all ids.
const INDEX: &str = "index";
/// The number of tokens in a store.
const TOKENS_MAX: usize = 1_000;
/// How long a verified token is believed without looking again, which bounds how long a revoked one still works.
const BELIEVED_FOR: Duration = Duration::from_secs(1);
/// How exact the time of the last use is.
const USE_NOTED_EVERY: Span = Span::from_secs(60);

/// Creates a token. Returns it with its record; the text of the token cannot be had again.
///
/// # Errors
/// Those of the store, and [`Refusal::Invalid`] if there are too many tokens already.
pub async fn create_token(
    store: &dyn Store,
    access: Access,
    by: String,
    lifetime: Option<Span>,
) -> StoreResult<(Token, TokenRecord)> {
    let (mut id, mut secret) = ([0; 6], [0; 32]);
    getrandom::fill(&mut id).and_then(|()| getrandom::fill(&mut secret)).map_err(|error| {
        StoreError::new(StoreErrorKind::Io, format!("the system has no randomness for a token: {error}"))
    })?;
    let token = Token::new(id, secret);
    let now = store.info().await?.now;
    let expires_at = lifetime.map(|span| now.plus(span));
    let record = TokenRecord::new(&token, access, by, now, expires_at);
    // First the list, then the record: an id without a record is no token, and the next change drops it.
    change_index(store, |ids| {
        if ids.len() >= TOKENS_MAX {
            return Err(Refusal::invalid(
                "tokens",
                format!("there are {TOKENS_MAX} already; revoke some first"),
            ));
        }
        ids.push(token.id);
        Ok(())
    })
    .await?;
    write(store, &record, 0).await?;
    Ok((token, record))
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

/// Revokes a token. Returns its record, or `None` if there is no such token.
///
/// # Errors
/// Those of the store.
pub async fn revoke_token(store: &dyn Store, id: TokenId) -> StoreResult<Option<TokenRecord>> {
    let Some((record, version)) = read(store, id).await? else { return Ok(None) };
    store.kv_put(NAMESPACE.into(), id.to_string(), None, version).await?;
    change_index(store, |ids| {
        ids.retain(|other| *other != id);
        Ok(())
    })
    .await?;
    Ok(Some(record))
}

async fn index(store: &dyn Store) -> StoreResult<(Vec<TokenId>, u64)> {
    Ok(match store.kv_get(NAMESPACE.into(), INDEX.into()).await? {
        Some(entry) => (decode(&entry.value)?, entry.version),
        None => (Vec::new(), 0),
    })
}

/// Changes the list of ids, again if somebody else changed it meanwhile.
async fn change_index(
    store: &dyn Store,
    change: impl Fn(&mut Vec<TokenId>) -> Result<(), Refusal>,
) -> StoreResult<()> {
    loop {
        let (mut ids, version) = index(store).await?;
        change(&mut ids)?;
        let value = encode(&ids)?;
        match store.kv_put(NAMESPACE.into(), INDEX.into(), Some(value), version).await {
            Err(CallError::Refused(Refusal::KvConflict { .. })) => {}
            result => return result.map(|_| ()),
        }
    }
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

/// Verifies tokens, and remembers for a moment which ones were right.
#[derive(Default)]
pub(crate) struct Tokens {
    believed: Mutex<HashMap<String, (Arc<Access>, Instant)>>,
    failed: FailedLogins,
}

impl Tokens {
    /// Who a token belongs to. Wrong tokens of all callers together are slowed down. A right one is accepted all the same,
    /// so that nobody can lock others out by guessing; the secret of a token is too long to be guessed.
    pub(crate) async fn verify(&self, store: &dyn Store, text: &str) -> Result<Arc<Access>, Problem> {
        if let Some(access) = self.remembered(text) {
            return Ok(access);
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
                note_use(store, record, version, now).await;
                let mut believed = self.believed.lock().unwrap_or_else(PoisonError::into_inner);
                believed.retain(|_, (_, since)| since.elapsed() < BELIEVED_FOR);
                believed.insert(text.to_owned(), (Arc::clone(&access), Instant::now()));
                Ok(access)
            }
            Some(_) | None => wrong("the token is not known; it may have been revoked"),
        }
    }

    fn remembered(&self, text: &str) -> Option<Arc<Access>> {
        let believed = self.believed.lock().unwrap_or_else(PoisonError::into_inner);
        let (access, since) = believed.get(text)?;
        (since.elapsed() < BELIEVED_FOR).then(|| Arc::clone(access))
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
