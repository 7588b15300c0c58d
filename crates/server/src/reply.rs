//! Replies. What came from outside leaves the server only through [`Caller::show`], which masks it; the other replies
//! hold what the store made itself.

use crate::access::Caller;
use crate::problem::Problem;
use axum::Json;
use axum::http::{HeaderName, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use redrive_core::error::Refusal;
use redrive_core::masking::MaskedView;
use redrive_core::query::{Cursor, Page, PageRequest};
use redrive_core::store::BatchResults;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A view that may leave the server.
pub(crate) struct Shown<T>(T);

impl<T: Serialize> IntoResponse for Shown<T> {
    fn into_response(self) -> Response {
        Json(self.0).into_response()
    }
}

impl<T> Shown<T> {
    /// The view, for replies that add headers to it.
    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}

impl Caller {
    /// The masked view of something from the store.
    pub(crate) fn show<T: MaskedView>(&self, value: &T) -> Shown<T> {
        Shown(value.masked(self.rules()))
    }

    /// A masked page, with a `Link` header to the next one.
    pub(crate) fn page<T: MaskedView + Serialize>(&self, uri: &Uri, page: &Page<T>) -> Response {
        linked(uri, page.next.as_ref(), Json(page.masked(self.rules())))
    }
}

/// Adds the address of the next page to a reply.
pub(crate) fn linked(uri: &Uri, next: Option<&Cursor>, reply: impl IntoResponse) -> Response {
    let mut response = reply.into_response();
    if let Some(next) = next {
        let rest = uri.query().unwrap_or_default().split('&');
        let mut query: Vec<&str> =
            rest.filter(|pair| !pair.is_empty() && !pair.starts_with("cursor=")).collect();
        let cursor = format!("cursor={}", percent(next.as_str()));
        query.push(&cursor);
        let link = format!("<{}?{}>; rel=\"next\"", uri.path(), query.join("&"));
        if let Ok(value) = HeaderValue::from_str(&link) {
            response.headers_mut().insert(header::LINK, value);
        }
    }
    response
}

fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Adds the version of a letter as its entity tag.
pub(crate) fn with_version(version: u64, reply: impl IntoResponse) -> Response {
    let mut response = reply.into_response();
    if let Ok(value) = HeaderValue::from_str(&format!("\"{version}\"")) {
        response.headers_mut().insert(header::ETAG, value);
    }
    response
}

/// The version that `If-Match` asks for.
pub(crate) fn expected_version(headers: &axum::http::HeaderMap) -> Result<Option<u64>, Problem> {
    let name = HeaderName::from_static("if-match");
    let Some(value) = headers.get(&name) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    let number = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).and_then(|n| n.parse().ok());
    let wrong =
        || Problem::bad_request("bad_header", "If-Match must be the ETag of the letter, such as \"7\"");
    number.map(Some).ok_or_else(wrong)
}

/// The parameters of every list.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct PageParams {
    pub(crate) limit: Option<usize>,
    pub(crate) cursor: Option<String>,
}

impl PageParams {
    /// The page that is asked for.
    pub(crate) fn request(self) -> Result<PageRequest, Problem> {
        page_request(self.limit, self.cursor)
    }
}

/// The request for a page: its size, which is checked, and where it begins.
pub(crate) fn page_request(limit: Option<usize>, cursor: Option<String>) -> Result<PageRequest, Problem> {
    const MAX: usize = 200;
    if limit.is_some_and(|limit| limit == 0 || limit > MAX) {
        return Err(Refusal::invalid("limit", format!("ask for 1 to {MAX} items a page")).into());
    }
    Ok(PageRequest { limit, cursor: cursor.map(Cursor::from_text) })
}

/// The results of a batch, in its order.
#[derive(Serialize)]
pub(crate) struct Items<T> {
    items: Vec<Item<T>>,
}

/// What one entry of a batch gave, or its problem.
#[derive(Serialize)]
#[serde(untagged)]
enum Item<T> {
    Done(T),
    Refused { error: Value },
}

/// The results of a batch, in its order: each is what one entry gave, or its problem under `error`.
pub(crate) fn batch<T: Serialize>(results: BatchResults<T>) -> Json<Items<T>> {
    let item = |result: Result<T, Refusal>| match result {
        Ok(done) => Item::Done(done),
        Err(refusal) => Item::Refused { error: Problem::from(refusal).document() },
    };
    Json(Items { items: results.into_iter().map(item).collect() })
}

/// The only result of a batch of one.
pub(crate) fn only<T>(results: BatchResults<T>) -> Result<T, Problem> {
    let missing = || Problem::from(Refusal::invalid("batch", "the store answered nothing"));
    Ok(results.into_iter().next().ok_or_else(missing)??)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_keeps_the_query() {
        let uri: Uri = "/api/v1/dlq?filter=status%3Apending&cursor=old&limit=5".parse().unwrap();
        let response = linked(&uri, Some(&Cursor::from_text("d.1f/+")), "");
        let link = response.headers().get(header::LINK).unwrap().to_str().unwrap();
        assert_eq!(link, "</api/v1/dlq?filter=status%3Apending&limit=5&cursor=d.1f%2F%2B>; rel=\"next\"");
    }
}
