//! One log line for each request. It names the route, never what was in the path, the query, the headers or the body:
//! those may hold secrets.

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use redrive_core::trace::TraceParent;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tracing::Instrument as _;

/// The header that carries the id of a request, in both directions.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The number of characters of an id that a client may choose.
const REQUEST_ID_MAX: usize = 64;

/// The id of a request, for what is said about it elsewhere.
#[derive(Clone, Default)]
pub(crate) struct RequestId(pub(crate) String);

/// Where a request's caller is noted for the log once it is known.
#[derive(Clone, Default)]
pub(crate) struct CallerName(Arc<OnceLock<String>>);

impl CallerName {
    /// Notes the name of the caller.
    pub(crate) fn set(&self, name: &str) {
        // A request has one caller; a second look gives the same name.
        let _ = self.0.set(name.to_owned());
    }
}

/// Gives the request an id, has it answered and writes the log line. Every line that is written meanwhile has the ids of
/// the request and of its trace.
pub(crate) async fn log(mut request: Request, next: Next) -> Response {
    let id = request_id(&request);
    let trace = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
    let trace_id = trace.and_then(TraceParent::id_in);
    // The level of an error: the span has to be there for every line that is written at all.
    let span = tracing::error_span!("request", request_id = id, trace_id);
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = answer(request, next).instrument(span).await;
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// Has the request answered and writes the log line.
async fn answer(mut request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let caller = CallerName::default();
    request.extensions_mut().insert(caller.clone());
    let response = next.run(request).await;
    let status = response.status().as_u16();
    let ms = begun.elapsed().as_secs_f64() * 1_000.0;
    let route = route.as_ref().map_or("unknown", MatchedPath::as_str);
    let (method, token) = (method.as_str(), caller.0.get().map_or("", String::as_str));
    if status >= 500 {
        tracing::warn!(method, route, status, ms, token, "request");
    } else if is_probe(route) {
        tracing::debug!(method, route, status, ms, token, "request");
    } else {
        tracing::info!(method, route, status, ms, token, "request");
    }
    response
}

/// Whether machines ask for this route all the time.
fn is_probe(route: &str) -> bool {
    matches!(route, "/healthz" | "/readyz" | "/metrics")
}

/// The id that the client chose, if it is harmless, else a random one.
fn request_id(request: &Request) -> String {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.".contains(&c);
    let chosen = request.headers().get(REQUEST_ID).map(HeaderValue::as_bytes);
    let chosen =
        chosen.filter(|id| (1..=REQUEST_ID_MAX).contains(&id.len()) && id.iter().copied().all(plain));
    if let Some(id) = chosen.and_then(|id| std::str::from_utf8(id).ok()) {
        return id.to_owned();
    }
    // Without randomness the id is of no use, but the request is answered all the same.
    let random = crate::random::bytes::<8>().unwrap_or_default();
    random.iter().fold(String::with_capacity(16), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    #[test]
    fn a_harmless_id_of_the_client_is_kept() {
        let id = |value: &str| {
            let request = Request::builder().header(REQUEST_ID, value).body(Body::empty()).unwrap();
            request_id(&request)
        };
        assert_eq!(id("order-4411.a_b"), "order-4411.a_b");
        for wrong in ["", "a b", "a\"b", &"x".repeat(65)] {
            let made = id(wrong);
            assert!(made != wrong && made.len() == 16, "{made}");
        }
    }
}
