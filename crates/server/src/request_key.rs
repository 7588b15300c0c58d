//! `Idempotency-Key` on acts, operations and configuration: the key, with a hash of the request, goes into the call to
//! the store, which carries it out once and remembers the result for 24 hours. On a send the key is that of the message,
//! and a settlement is repeated by its token.

use crate::problem::Problem;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use redrive_core::dead_letter::RequestKey;
use redrive_core::limits;
use sha2::{Digest as _, Sha256};
use std::sync::{Arc, OnceLock};

/// The value of the `Idempotency-Key` header.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    match value.to_str() {
        Ok(text) if !text.is_empty() && text.len() < limits::KEY_BYTES_MAX => Ok(Some(text.to_owned())),
        Ok(_) | Err(_) => {
            let what = format!("Idempotency-Key must be 1 to {} printable bytes", limits::KEY_BYTES_MAX - 1);
            Err(Problem::bad_request("bad_header", what))
        }
    }
}

/// The key of a request, with the hash of what has been read of it. The body is read after the caller is known.
#[derive(Clone)]
pub(crate) struct PendingKey {
    key: String,
    /// The hash of everything but the body.
    head: Sha256,
    /// The hash of the whole request, once the body has been read.
    whole: Arc<OnceLock<String>>,
}

impl PendingKey {
    /// The key of a request, if it has one. Notes it for whoever reads the body.
    pub(crate) fn of(parts: &mut Parts) -> Result<Option<Self>, Problem> {
        let Some(key) = idempotency_key(&parts.headers)? else { return Ok(None) };
        let mut head = Sha256::new();
        let version = parts.headers.get(header::IF_MATCH).map(|value| value.as_bytes());
        let target = parts.uri.path_and_query().map(|target| target.as_str().as_bytes());
        for part in [Some(parts.method.as_str().as_bytes()), target, version] {
            let part = part.unwrap_or_default();
            head.update((part.len() as u64).to_be_bytes());
            head.update(part);
        }
        let pending = Self { key, head, whole: Arc::default() };
        parts.extensions.insert(pending.clone());
        Ok(Some(pending))
    }

    fn hash(&self, body: &[u8]) -> String {
        let whole = self.head.clone().chain_update(body);
        whole.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The key for the store.
    pub(crate) fn request(&self) -> RequestKey {
        let fingerprint = self.whole.get_or_init(|| self.hash(&[])).clone();
        RequestKey { key: self.key.clone(), fingerprint }
    }
}

/// Notes the body of a request that has a key.
pub(crate) fn note_body(parts: &Parts, body: &[u8]) {
    if let Some(pending) = parts.extensions.get::<PendingKey>() {
        let _ = pending.whole.set(pending.hash(body));
    }
}
