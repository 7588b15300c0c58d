//! Logging in and out. A person brings a token, or a code that the program printed on this machine; either opens a
//! session, and the browser gets its cookie. Codes work once, for a minute, and only on this machine.

use super::fields::{Asked, Fields, Sent};
use super::frame::Frame;
use super::visitor::{Failure, Theme, local_path, see_other, with_cookie};
use crate::access::{Identity, Peer, cookie_of, is_local, set_cookie};
use crate::app::App;
use crate::problem::Problem;
use askama::Template;
use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse as _, Response};
use redrive_core::access::Access;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a code works.
const CODE_LIFE: Duration = Duration::from_secs(60);
/// The number of codes that are kept at the same time.
const CODES_MAX: usize = 100;

/// One-time codes with which a browser on this machine logs in: `/login?code=…`. Whoever starts a server keeps a clone
/// of the [`LoginCodes`] in its [`crate::Config`] and issues a code to print or to open in a browser.
#[derive(Clone, Default)]
pub struct LoginCodes(Arc<Mutex<HashMap<[u8; 32], Issued>>>);

/// Whom a code lets in, and when it was issued.
type Issued = (Arc<Access>, Instant);

impl LoginCodes {
    /// Issues a code that logs its bearer in with this access. It works once, within a minute.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn issue(&self, access: Arc<Access>) -> Result<String, getrandom::Error> {
        let mut random = [0; 24];
        getrandom::fill(&mut random)?;
        let code: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut codes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        codes.retain(|_, (_, issued)| issued.elapsed() < CODE_LIFE);
        if codes.len() >= CODES_MAX {
            codes.clear();
        }
        codes.insert(Sha256::digest(&code).into(), (access, Instant::now()));
        Ok(code)
    }

    /// Takes a code, which is used up by that.
    fn redeem(&self, code: &str, now: Instant) -> Option<Arc<Access>> {
        let key: [u8; 32] = Sha256::digest(code).into();
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        let (access, issued) = taken?;
        (now.saturating_duration_since(issued) < CODE_LIFE).then_some(access)
    }
}

/// The login page.
#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage {
    frame: Frame,
    next: String,
    wrong: Option<String>,
    /// Only reload: the browser kept its cookie back because the link came from another site.
    reload: bool,
}

fn page(app: &App, theme: Theme, next: &str, wrong: Option<String>) -> Response {
    let frame = Frame::bare(&app.config, theme, "/login", "Log in");
    let status = if wrong.is_some() { StatusCode::UNAUTHORIZED } else { StatusCode::OK };
    let page = LoginPage { frame, next: next.to_owned(), wrong, reload: false };
    (status, Html(page.render().unwrap_or_default())).into_response()
}

/// A page that opens the same address again. A link on another site leads here without the cookie of the session,
/// which browsers send only from our own pages; from this one they send it.
pub(super) fn again(app: &App, theme: Theme, here: &str) -> Response {
    let Some(here) = local_path(here) else { return see_other("/login") };
    let frame = Frame::bare(&app.config, theme, here, "One moment");
    let page = LoginPage { frame, next: here.to_owned(), wrong: None, reload: true };
    Html(page.render().unwrap_or_default()).into_response()
}

/// Where to go after the login.
fn next_of(fields: &Fields) -> &str {
    let next = fields.get("next").and_then(local_path);
    next.filter(|next| !next.starts_with("/login") && !next.starts_with("/logout")).unwrap_or("/groups")
}

/// `GET /login`, also with a one-time code.
pub(super) async fn show(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Asked(fields): Asked,
) -> Result<Response, Failure> {
    let theme = Theme::of(&headers);
    let Some(code) = fields.get("code") else { return Ok(page(&app, theme, next_of(&fields), None)) };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let access = is_local(host).then(|| app.config.login_codes.redeem(code, Instant::now())).flatten();
    match access {
        Some(access) => open(&app, Identity { access, token: None }, next_of(&fields)),
        None => {
            let problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", "the code does not work");
            let who = Peer::name(peer.map(|Extension(peer)| peer));
            app.note_refused(who, &problem, problem.detail().to_owned());
            let why = "The code in this link does not work any more: it works once, within a minute, on the machine \
                       of the server. Ask for a new one, or log in with a token.";
            Ok(page(&app, theme, next_of(&fields), Some(why.into())))
        }
    }
}

/// `POST /login`
pub(super) async fn enter(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Sent(fields): Sent,
) -> Result<Response, Failure> {
    let token = fields.get("token").unwrap_or_default();
    match app.log_in(token, peer.map(|Extension(peer)| peer)).await {
        Ok(identity) => open(&app, identity, next_of(&fields)),
        Err(problem) => {
            let why = format!("That did not work: {}.", problem.detail());
            Ok(page(&app, Theme::of(&headers), next_of(&fields), Some(why)))
        }
    }
}

fn open(app: &App, identity: Identity, next: &str) -> Result<Response, Failure> {
    let value = app.sessions.open(identity).map_err(|error| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no_randomness", error.to_string()).retry_after(1)
    })?;
    Ok(with_cookie(see_other(next), &set_cookie(&value, app.config.tls)))
}

/// `POST /logout`
pub(super) async fn leave(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    if let Some(value) = cookie_of(&headers) {
        app.sessions.close(value);
    }
    with_cookie(see_other("/login"), &set_cookie("", app.config.tls))
}

/// `POST /theme`
pub(super) async fn choose_theme(Sent(fields): Sent) -> Response {
    let theme = Theme::named(fields.get("theme").unwrap_or_default());
    with_cookie(see_other(fields.get("back").unwrap_or_default()), &theme.cookie())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_works_once_and_not_for_long() {
        let codes = LoginCodes::default();
        let code = codes.issue(Arc::new(Access::everything("ada"))).unwrap();
        assert!(codes.redeem("guess", Instant::now()).is_none());
        assert_eq!(codes.redeem(&code, Instant::now()).unwrap().name, "ada");
        assert!(codes.redeem(&code, Instant::now()).is_none(), "only once");
        let code = codes.issue(Arc::new(Access::everything("ada"))).unwrap();
        assert!(codes.redeem(&code, Instant::now() + CODE_LIFE).is_none(), "not later");
    }
}
