//! Sessions of people with a browser: opened with a token, held in memory, known by a random cookie. A restart of the
//! server ends them all, and revoking a token ends those that were opened with it.

use super::Identity;
use axum::http::{HeaderMap, header};
use redrive_core::access::TokenId;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The longest life of a session.
const LIFE: Duration = Duration::from_secs(12 * 60 * 60);
/// How long a session lives without a request.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// The number of sessions that are kept. The oldest give way to new ones.
const SESSIONS_MAX: usize = 10_000;

/// The name of the cookie over plain HTTP on this machine.
const PLAIN: &str = "redrive-session";
/// The name of the cookie over TLS, which browsers then accept from this host only.
const SECURE: &str = "__Host-redrive-session";

struct Session {
    identity: Identity,
    opened: Instant,
    seen: Instant,
}

impl Session {
    fn is_live(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.opened) < LIFE && now.saturating_duration_since(self.seen) < IDLE
    }
}

/// The open sessions, by the hash of their cookie.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<[u8; 32], Session>>);

impl Sessions {
    /// Opens a session and returns the value of its cookie.
    pub(crate) fn open(&self, identity: Identity) -> Result<String, getrandom::Error> {
        let mut random = [0; 32];
        getrandom::fill(&mut random)?;
        let value = random.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let now = Instant::now();
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, session| session.is_live(now));
        if sessions.len() >= SESSIONS_MAX
            && let Some(oldest) = sessions.iter().min_by_key(|(_, s)| s.seen).map(|(key, _)| *key)
        {
            sessions.remove(&oldest);
        }
        sessions.insert(Sha256::digest(&value).into(), Session { identity, opened: now, seen: now });
        Ok(value)
    }

    /// The caller of a session that is still open.
    pub(crate) fn find(&self, value: &str) -> Option<Identity> {
        self.find_at(value, Instant::now())
    }

    fn find_at(&self, value: &str, now: Instant) -> Option<Identity> {
        let key: [u8; 32] = Sha256::digest(value).into();
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get_mut(&key).filter(|session| session.is_live(now))?;
        session.seen = now;
        Some(session.identity.clone())
    }

    /// Ends a session.
    pub(crate) fn close(&self, value: &str) {
        let key: [u8; 32] = Sha256::digest(value).into();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }

    /// Ends the sessions that were opened with a token.
    pub(crate) fn close_all_of(&self, token: TokenId) {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, session| session.identity.token != Some(token));
    }
}

/// The value of the session cookie of a request.
pub(crate) fn cookie_of(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == PLAIN || *name == SECURE).map(|(_, value)| value)
}

/// The header that sets the cookie; an empty value removes it.
pub(crate) fn set_cookie(value: &str, tls: bool) -> String {
    let (name, secure) = if tls { (SECURE, "; Secure") } else { (PLAIN, "") };
    let age = if value.is_empty() { 0 } else { LIFE.as_secs() };
    format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::access::Access;
    use std::sync::Arc;

    #[test]
    fn a_session_ends_when_it_is_idle_old_or_closed() {
        let sessions = Sessions::default();
        let identity = |token| Identity { access: Arc::new(Access::everything("ada")), token };
        let value = sessions.open(identity(None)).unwrap();
        let start = Instant::now();
        assert!(sessions.find(&value).is_some());
        assert!(sessions.find("guess").is_none());
        assert!(sessions.find_at(&value, start + IDLE + Duration::from_secs(1)).is_none());
        let mut at = start;
        while at < start + LIFE {
            at += IDLE / 2;
            let live = sessions.find_at(&value, at).is_some();
            assert_eq!(live, at < start + LIFE, "{at:?}");
        }
        let value = sessions.open(identity(None)).unwrap();
        sessions.close(&value);
        assert!(sessions.find(&value).is_none());
        let [first, second] = [1, 2].map(|n| TokenId::new([n; 6]));
        let values = [Some(first), Some(second), Some(first), None]
            .map(|token| sessions.open(identity(token)).unwrap());
        sessions.close_all_of(first);
        assert_eq!(values.map(|value| sessions.find(&value).is_some()), [false, true, false, true]);
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append("cookie", "a=b; redrive-session=xyz ; c=d".parse().unwrap());
        assert_eq!(cookie_of(&headers), Some("xyz"));
        assert!(
            set_cookie("xyz", true)
                .starts_with("__Host-redrive-session=xyz; Path=/; HttpOnly; SameSite=Strict")
        );
        assert!(set_cookie("xyz", true).ends_with("; Secure"));
    }
}
