//! Whoever looks at a page: the caller of the request, with the time by the store's clock, how they want the page to
//! look, and when they were last here. Somebody who is not logged in is sent to the login page.

use crate::access::Caller;
use crate::app::App;
use crate::problem::Problem;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use redrive_core::dead_letter::Actor;
use redrive_core::masking::MaskedView;
use redrive_core::store::Role;
use redrive_core::time::{Span, Time};
use std::sync::Arc;

/// The cookie with the chosen theme.
const THEME: &str = "redrive-theme";
/// The cookie with the times of the visits.
const VISITS: &str = "redrive-visits";
/// A page after this much silence begins a new visit.
const VISIT_ENDS: Span = Span::from_secs(30 * 60);
/// How long a browser keeps a choice.
const YEAR_SECS: u32 = 365 * 24 * 60 * 60;

/// Light, dark, or as the system says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Theme {
    Light,
    Dark,
    #[default]
    System,
}

impl Theme {
    /// The name in cookies, forms and the stylesheet.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
            Self::System => "system",
        }
    }

    /// Reads a name; anything else is the system's choice.
    pub(super) fn named(text: &str) -> Self {
        [Self::Light, Self::Dark].into_iter().find(|theme| theme.name() == text).unwrap_or_default()
    }

    /// The theme that a request asks for.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        cookie(headers, THEME).map(Self::named).unwrap_or_default()
    }

    /// The header that keeps it.
    pub(super) fn cookie(self) -> String {
        format!("{THEME}={}; Path=/; HttpOnly; SameSite=Strict; Max-Age={YEAR_SECS}", self.name())
    }
}

/// The value of a cookie.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// When the last visit ended and when somebody was last seen, as the cookie says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Visits {
    before: Option<Time>,
    seen: Option<Time>,
}

impl Visits {
    fn read(text: Option<&str>) -> Self {
        let time = |text: &str| text.parse().ok().map(Time::from_millis).filter(|at| *at > Time::ZERO);
        let (before, seen) = text.and_then(|text| text.split_once('.')).unwrap_or_default();
        Self { before: time(before), seen: time(seen) }
    }

    /// The visits after a page at this time.
    fn after(self, now: Time) -> Self {
        let is_new = self.seen.is_none_or(|seen| now.since(seen) > VISIT_ENDS);
        Self { before: if is_new { self.seen } else { self.before }, seen: Some(now) }
    }

    fn cookie(self) -> String {
        let ms = |at: Option<Time>| at.map_or(0, Time::as_millis);
        let value = format!("{}.{}", ms(self.before), ms(self.seen));
        format!("{VISITS}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={YEAR_SECS}")
    }
}

/// Whoever looks at a page.
pub(super) struct Visitor {
    /// The caller, with the store behind their gate.
    pub(super) caller: Caller,
    /// The time by the store's clock.
    pub(super) now: Time,
    /// The path and query of this page.
    pub(super) here: Uri,
    /// How the page should look.
    pub(super) theme: Theme,
    visits: Visits,
}

impl Visitor {
    /// Whether their roles include this one.
    pub(super) fn may(&self, role: Role) -> bool {
        self.caller.access.allows(role)
    }

    /// Whether they may look at what concerns all queues.
    pub(super) fn sees_all(&self) -> bool {
        self.caller.access.queues.is_empty()
    }

    /// When their last visit ended.
    pub(super) const fn last_visit(&self) -> Option<Time> {
        self.visits.before
    }

    /// The actor for the audit trail.
    pub(super) fn actor(&self, reason: Option<String>) -> Actor {
        Actor { reason, ..Actor::new(self.caller.access.name.clone(), "dashboard") }
    }

    /// The masked form of something from the store.
    pub(super) fn show<T: MaskedView>(&self, value: &T) -> T {
        self.caller.show(value).into_inner()
    }

    /// The header that remembers this visit.
    pub(super) fn visit_cookie(&self) -> String {
        self.visits.cookie()
    }
}

impl FromRequestParts<Arc<App>> for Visitor {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failure> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let now = app.store().info().await.map_err(Problem::from)?.now;
        let visits = Visits::read(cookie(&parts.headers, VISITS)).after(now);
        let theme = Theme::of(&parts.headers);
        Ok(Self { caller, now, here: parts.uri.clone(), theme, visits })
    }
}

/// Why there is no page. [`super::shell`] turns it into one that says so.
#[derive(Clone, Debug)]
pub(super) struct Failure(pub(super) Problem);

impl<E: Into<Problem>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = self.0.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// A path of this server to go to after a form. Anything that could lead elsewhere is not one.
pub(super) fn local_path(text: &str) -> Option<&str> {
    let mut chars = text.chars();
    let inside = chars.next() == Some('/') && !matches!(chars.next(), Some('/' | '\\'));
    (inside && !text.contains('\\') && !text.chars().any(char::is_control) && text.parse::<Uri>().is_ok())
        .then_some(text)
}

/// A redirect after a form, so that reloading the page does not send the form again.
pub(super) fn see_other(path: &str) -> Response {
    let path = local_path(path).unwrap_or("/groups");
    let place = HeaderValue::from_str(path).unwrap_or_else(|_| HeaderValue::from_static("/groups"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, place)]).into_response()
}

/// Adds a cookie to a reply.
pub(super) fn with_cookie(mut response: Response, cookie: &str) -> Response {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_this_server_are_followed() {
        for path in ["/", "/groups", "/dlq?filter=a%20b", "/groups/00ff#x"] {
            assert_eq!(local_path(path), Some(path));
        }
        for path in [
            "",
            "groups",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "/a\\b",
            "/a\r\nb",
            "javascript:x",
        ] {
            assert_eq!(local_path(path), None, "{path}");
        }
    }

    #[test]
    fn a_visit_begins_after_half_an_hour_of_silence() {
        let at = |minutes: u64| Time::ZERO.plus(Span::from_secs(minutes * 60));
        let first = Visits::read(None).after(at(10));
        assert_eq!(first, Visits { before: None, seen: Some(at(10)) });
        let later = first.after(at(30));
        assert_eq!(later, Visits { before: None, seen: Some(at(30)) });
        let next = later.after(at(90));
        assert_eq!(next, Visits { before: Some(at(30)), seen: Some(at(90)) });
        let cookie = next.cookie();
        let value = cookie.split([';', '=']).nth(1);
        assert_eq!(Visits::read(value), next);
        assert_eq!(Visits::read(Some("nonsense")), Visits::default());
    }
}
