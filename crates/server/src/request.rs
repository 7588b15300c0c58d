//! Reads requests: bodies and query strings, within their limits. Whatever is wrong with one is said with its place.

use crate::app::App;
use crate::problem::Problem;
use crate::request_key::note_body;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use redrive_core::json_input;
use redrive_core::limits;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;

/// How long a client may take to send a body.
const BODY_WITHIN: Duration = Duration::from_secs(30);

/// The size of a call with the largest batch of payloads, which are base64 in it.
const CALL_BYTES_MAX: usize = limits::BATCH_BYTES_MAX * 2;

/// A JSON object in the body.
pub(crate) struct JsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        check_json(&parts.headers)?;
        let bytes = read(body, app.config.body_bytes_max).await?;
        note_body(&parts, &bytes);
        parse(&bytes).map(Self)
    }
}

/// A JSON object that may be as large as the calls between processes are: a whole batch of messages. Only for routes that
/// have found out who is calling before they read it.
pub(crate) struct LargeJson<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for LargeJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        check_json(&parts.headers)?;
        let bytes = read(body, app.config.body_bytes_max.max(CALL_BYTES_MAX)).await?;
        note_body(&parts, &bytes);
        parse(&bytes).map(Self)
    }
}

/// A JSON object with a batch, which may be larger than one thing. Only for routes that have found out who is calling
/// before they read it.
pub(crate) struct BatchBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for BatchBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        RawJson::from_request(request, app).await?.parse().map(Self)
    }
}

/// A body that says it is JSON, byte for byte: what it holds must not be written anew. It may be as large as a batch.
pub(crate) struct RawJson(pub(crate) Bytes);

impl FromRequest<Arc<App>> for RawJson {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        check_json(&parts.headers)?;
        let bytes = read(body, app.config.batch_bytes_max.max(app.config.body_bytes_max)).await?;
        note_body(&parts, &bytes);
        Ok(Self(bytes))
    }
}

impl RawJson {
    /// Reads it as a JSON object.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        parse(&self.0)
    }

    /// Refuses a body that is too large for one thing.
    pub(crate) fn check_single(&self, app: &App) -> Result<(), Problem> {
        let max = app.config.body_bytes_max;
        if self.0.len() > max { Err(too_large(max)) } else { Ok(()) }
    }
}

/// A JSON object in the body, or its default if there is no body.
pub(crate) struct OptionalBody<T>(pub(crate) T);

impl<T: DeserializeOwned + Default> FromRequest<Arc<App>> for OptionalBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read(body, app.config.body_bytes_max).await?;
        note_body(&parts, &bytes);
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        check_json(&parts.headers)?;
        parse(&bytes).map(Self)
    }
}

/// Reads a JSON object.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    check_depth(bytes)?;
    json_input::parse(bytes).map_err(|what| Problem::bad_request("bad_body", format!("the body is {what}")))
}

/// The number of levels to which JSON may nest.
const DEPTH_MAX: usize = 64;

/// Refuses JSON that nests too deep, before anything walks down into it.
fn check_depth(bytes: &[u8]) -> Result<(), Problem> {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            // Most of a body is text, which is skipped many bytes at a time.
            b'"' => at = end_of_text(bytes, at + 1),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            let what = format!("the JSON nests deeper than {DEPTH_MAX} levels, at byte {}", at + 1);
            let problem = Problem::bad_request("too_deep", what);
            return Err(problem.with("limit", DEPTH_MAX).with("position", at));
        }
        at += 1;
    }
    Ok(())
}

/// Where the quotation mark is that ends a text, or the end of everything if there is none.
fn end_of_text(bytes: &[u8], mut at: usize) -> usize {
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes.get(at) == Some(&b'"') {
            return at;
        }
        // What follows a backslash is not looked at.
        at += 2;
    }
    bytes.len()
}

/// Refuses a body that is not plain JSON.
pub(crate) fn check_json(headers: &HeaderMap) -> Result<(), Problem> {
    check_encoding(headers)?;
    let kind = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    let essence = kind.map(|kind| kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    match essence.as_deref() {
        Some("application/json") => Ok(()),
        Some(_) | None => {
            let what = "send the body as `Content-Type: application/json`";
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_content_type", what))
        }
    }
}

/// Refuses compressed bodies: a small one can become a very large one.
pub(crate) fn check_encoding(headers: &HeaderMap) -> Result<(), Problem> {
    match headers.get(header::CONTENT_ENCODING) {
        Some(value) if value != "identity" => {
            let what = "compressed bodies are not accepted; send it as it is";
            Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "compressed_body", what))
        }
        Some(_) | None => Ok(()),
    }
}

/// Reads a whole body, up to a limit of bytes and of time.
pub(crate) async fn read(body: Body, max: usize) -> Result<Bytes, Problem> {
    let whole = tokio::time::timeout(BODY_WITHIN, Limited::new(body, max).collect()).await;
    match whole {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large(max)),
        Ok(Err(_)) => Err(Problem::bad_request("body_cut_short", "the body ended before it was complete")),
        Err(_) => {
            let what = "the body took too long to arrive";
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "slow_body", what))
        }
    }
}

pub(crate) fn too_large(max: usize) -> Problem {
    let what =
        format!("the body has more than {max} bytes; send less at a time, or raise the limit of the server");
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", what).with("limit", max)
}

/// The query string.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Problem> {
        let query = axum::extract::Query::<T>::try_from_uri(&parts.uri).map_err(|error| {
            let text = error.body_text();
            let text = text.rsplit_once("query string: ").map_or(text.as_str(), |(_, what)| what);
            Problem::bad_request("bad_query", format!("the query string: {}", json_input::explain(text)))
        })?;
        Ok(Self(query.0))
    }
}

/// The variables of the path.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<App>> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        match axum::extract::Path::<T>::from_request_parts(parts, app).await {
            Ok(axum::extract::Path(variables)) => Ok(Self(variables)),
            Err(error) => {
                let text = error.body_text();
                let text = text.strip_prefix("Invalid URL: ").unwrap_or(&text);
                Err(Problem::bad_request("bad_path", format!("the path: {text}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_brackets_outside_of_text_count_as_depth() {
        let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
        assert!(check_depth(nested(64).as_bytes()).is_ok());
        assert_eq!(check_depth(nested(65).as_bytes()).unwrap_err().code(), "too_deep");
        let text = format!(r#"{{"a":"\"{}","b":[]}}"#, "[".repeat(100));
        assert!(check_depth(text.as_bytes()).is_ok());
        assert!(check_depth(&[b']'; 100]).is_ok());
    }
}
