//! The router: which path leads where, and what every request passes before and after.

use crate::access::{Peer, UsageSlot, check_origin};
use crate::api;
use crate::app::App;
use crate::config::Config;
use crate::dashboard;
use crate::metrics;
use crate::ndjson::Live;
use crate::problem::Problem;
use crate::request_log::{self, RequestId};
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use redrive_core::store::Store;
use std::sync::Arc;
use tower_http::compression::{CompressionLayer, Predicate};

/// The headers of every reply: nothing is kept, guessed, framed or run.
const SAFETY: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; \
         trusted-types redrive",
    ),
    ("x-content-type-options", "nosniff"),
    // Other sites learn nothing. With `no-referrer` browsers would hide the origin of our own forms from us, too.
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// The routes of a server over this store.
pub fn router(store: Arc<dyn Store>, config: Config) -> Router {
    let app = Arc::new(App::new(store, config));
    Router::new()
        .merge(api::routes())
        .merge(dashboard::routes(&app))
        .fallback(no_such_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard))
        .layer(middleware::from_fn(request_log::log))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), metrics::observe))
        .layer(CompressionLayer::new().compress_when(Compressed))
        .with_state(app)
}

/// Compresses a reply unless it is small, or its reader waits for each line or event.
#[derive(Clone, Copy)]
struct Compressed;

impl Predicate for Compressed {
    fn should_compress<B: HttpBody>(&self, response: &axum::http::Response<B>) -> bool {
        const SMALL: u64 = 1024;
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        response.body().size_hint().exact().is_none_or(|length| length >= SMALL)
            && !kind.unwrap_or_default().starts_with("text/event-stream")
            && response.extensions().get::<Live>().is_none()
    }
}

async fn no_such_route() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_such_route", "there is nothing here; /docs lists the routes")
}

/// The reply to a method that the route does not take. `OPTIONS` is answered with the methods it takes, which the router
/// adds as `Allow`; there are no CORS headers.
async fn wrong_method(method: Method) -> Response {
    if method == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    let what = "this route does not take this method; /docs lists the routes";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", what).into_response()
}

/// The number of headers that a request may have, and of bytes in them.
const HEADERS_MAX: (usize, usize) = (64, 16 * 1024);
/// The number of bytes in the path and the query string of a request.
const URI_BYTES_MAX: usize = 16 * 1024;

/// Refuses a request whose head is too large.
fn check_head(request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() > HEADERS_MAX.0 || bytes > HEADERS_MAX.1 {
        let what = format!("a request has at most {} headers with {} bytes", HEADERS_MAX.0, HEADERS_MAX.1);
        return Err(Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", what));
    }
    let uri = request.uri();
    if uri.path().len() + uri.query().unwrap_or_default().len() > URI_BYTES_MAX {
        let what = format!("path and query string have at most {URI_BYTES_MAX} bytes");
        return Err(Problem::new(StatusCode::URI_TOO_LONG, "uri_too_long", what));
    }
    Ok(())
}

/// Checks the head of a request and where it comes from.
fn check_before_routing(app: &App, request: &Request) -> Result<(), Problem> {
    check_head(request).inspect_err(|problem| {
        tracing::warn!(code = problem.code(), "refused a request before routing");
    })?;
    let checked = check_origin(&app.config, request.method(), request.uri(), request.headers());
    checked.inspect_err(|problem| {
        let peer = request.extensions().get::<Peer>().copied();
        let route = request.extensions().get::<MatchedPath>().map_or("an unknown route", MatchedPath::as_str);
        app.note_refused(Peer::name(peer), problem, format!("{} {route}", request.method()));
    })
}

/// What every request passes: the checks of its head and of where it comes from before, the headers of every reply
/// after.
async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let id = request.extensions().get::<RequestId>().cloned().unwrap_or_default();
    let usage = UsageSlot::default();
    request.extensions_mut().insert(usage.clone());
    let mut response = match check_before_routing(&app, &request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let mut document = problem.document();
        if let Some(members) = document.as_object_mut() {
            members.insert("request_id".into(), id.0.into());
        }
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = Body::from(document.to_string());
    }
    let headers = response.headers_mut();
    if let Some(usage) = usage.get() {
        headers.insert("ratelimit-limit", usage.limit.into());
        headers.insert("ratelimit-remaining", usage.remaining.into());
        headers.insert("ratelimit-reset", u64::from(usage.remaining == 0).into());
    }
    for (name, value) in SAFETY {
        headers.entry(HeaderName::from_static(name)).or_insert(HeaderValue::from_static(value));
    }
    headers.remove(header::SERVER);
    response
}

/// A route as tests and documents know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The method.
    pub method: &'static str,
    /// The path, with variables in braces.
    pub path: &'static str,
    /// What a caller needs, in words.
    pub needs: String,
}

/// Every route, in the order of the document.
#[must_use]
pub fn routes() -> Vec<Route> {
    let route = |endpoint: api::endpoint::Endpoint| Route {
        method: endpoint.method,
        path: endpoint.path,
        needs: endpoint.needs.text(),
    };
    api::endpoints().into_iter().map(route).collect()
}

/// The paths of the dashboard and the methods that each takes.
#[must_use]
pub fn pages() -> Vec<(&'static str, &'static [&'static str])> {
    dashboard::table().into_iter().map(|(path, methods, _)| (path, methods)).collect()
}
