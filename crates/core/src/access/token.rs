//! Tokens: how somebody proves to a server who they are. A store keeps only the hash of the secret, so that nobody who
//! reads the store can use the tokens in it. The secret has 256 random bits, so a plain hash is enough.

use super::Access;
use crate::ids::{IdError, serde_as_text};
use crate::time::Time;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use std::fmt::{self, Write as _};
use std::str::FromStr;

/// What every token begins with, so that scanners for leaked secrets can recognise it.
const PREFIX: &str = "rdt_";

/// The public part of a token: 48 random bits, by which it is listed and revoked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId([u8; 6]);

impl TokenId {
    /// An id of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 6]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenId({self})")
    }
}

impl FromStr for TokenId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || IdError::new(text, "the id of a token (12 hexadecimal digits)");
        unhex(text).map(Self).ok_or_else(wrong)
    }
}
serde_as_text!(TokenId);

/// A whole token, with its secret. It exists only in the hands of its bearer and while it is being checked.
#[derive(Clone, Copy)]
pub struct Token {
    /// The public part.
    pub id: TokenId,
    secret: [u8; 32],
}

impl Token {
    /// A token of these random bytes.
    #[must_use]
    pub const fn new(id: [u8; 6], secret: [u8; 32]) -> Self {
        Self { id: TokenId::new(id), secret }
    }

    /// The hash that a store keeps.
    #[must_use]
    pub fn hash(&self) -> String {
        hex(&Sha256::digest(self.secret))
    }

    /// The text to hand to the bearer, once.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}", self.id, hex(&self.secret))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}, …)", self.id)
    }
}

impl FromStr for Token {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The text of a wrong token may be a right one with a typing error, so the error does not repeat it.
        let wrong = || IdError::new("…", "a token (rdt_…, as printed by `redrive token create`)");
        let (id, secret) =
            text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_')).ok_or_else(wrong)?;
        Ok(Self { id: id.parse().map_err(|_| wrong())?, secret: unhex(secret).ok_or_else(wrong)? })
    }
}

/// What a store keeps about a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// The public part.
    pub id: TokenId,
    /// The name, roles and queues.
    #[serde(flatten)]
    pub access: Access,
    /// The hash of the secret.
    hash: String,
    /// When it was created.
    pub created_at: Time,
    /// Who created it.
    pub created_by: String,
    /// When it stops being accepted.
    #[serde(default)]
    pub expires_at: Option<Time>,
    /// When it was last used, to within a minute.
    #[serde(default)]
    pub last_used_at: Option<Time>,
}

impl TokenRecord {
    /// The record of a new token.
    #[must_use]
    pub fn new(token: &Token, access: Access, by: String, now: Time, expires_at: Option<Time>) -> Self {
        let (id, hash) = (token.id, token.hash());
        Self { id, access, hash, created_at: now, created_by: by, expires_at, last_used_at: None }
    }

    /// Whether this is the record of the token. Takes the same time wherever the first difference is.
    #[must_use]
    pub fn is_of(&self, token: &Token) -> bool {
        let (kept, given) = (self.hash.as_bytes(), token.hash());
        let differs = kept.iter().zip(given.as_bytes()).fold(0_u8, |acc, (a, b)| acc | (a ^ b));
        kept.len() == given.len() && differs == 0 && self.id == token.id
    }

    /// Whether it is no longer accepted.
    #[must_use]
    pub fn has_expired(&self, now: Time) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != N * 2 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    Some(bytes)
}
