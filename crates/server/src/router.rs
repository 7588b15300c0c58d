//! The router: which path leads where, and what every request passes before and after.

use crate::access::check_origin;
use crate::api;
use crate::app::App;
use crate::config::Config;
use crate::problem::Problem;
use crate::request_log;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use redrive_core::store::Store;
use std::sync::Arc;

/// The headers of every reply: nothing is kept, guessed, framed or run.
const SAFETY: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
];

/// The routes of a server over this store.
pub fn router(store: Arc<dyn Store>, config: Config) -> Router {
    let app = Arc::new(App::new(store, config));
    Router::new()
        .route("/healthz", get(api::health::live))
        .route("/readyz", get(api::health::ready))
        .merge(api::routes())
        .fallback(no_such_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard))
        .layer(middleware::from_fn(request_log::log))
        .with_state(app)
}

async fn no_such_route() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "no_such_route", "there is nothing here; /docs lists the routes")
}

async fn wrong_method() -> Problem {
    let what = "this route does not take this method; /docs lists the routes";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", what)
}

/// The size of all headers of a request, in bytes.
const HEADERS_BYTES_MAX: usize = 16 * 1024;
/// The number of header lines of a request.
const HEADER_LINES_MAX: usize = 64;

/// Refuses requests with more headers than any honest client sends.
fn check_size(headers: &HeaderMap) -> Result<(), Problem> {
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() <= HEADER_LINES_MAX && bytes <= HEADERS_BYTES_MAX {
        return Ok(());
    }
    let what =
        format!("a request has at most {HEADER_LINES_MAX} header lines of {HEADERS_BYTES_MAX} bytes in all");
    Err(Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large", what))
}

/// What every request passes: the checks of where it comes from before, the headers of safety after.
async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let checked = check_size(request.headers())
        .and_then(|()| check_origin(&app.config, request.method(), request.uri(), request.headers()));
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            tracing::warn!(code = problem.code(), "refused a request before routing");
            problem.into_response()
        }
    };
    let headers = response.headers_mut();
    for (name, value) in SAFETY {
        headers.entry(HeaderName::from_static(name)).or_insert(HeaderValue::from_static(value));
    }
    headers.remove(header::SERVER);
    response
}

/// The paths of the API and the methods that each takes, for tests and documents.
#[must_use]
pub fn routes() -> Vec<(&'static str, &'static [&'static str])> {
    api::table().into_iter().map(|(path, methods, _)| (path, methods)).collect()
}
