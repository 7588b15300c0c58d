//! `GET /api/v1/events`: live events as a stream (Server-Sent Events).

use crate::access::Caller;
use crate::events::{Client, Interest};
use crate::problem::Problem;
use crate::request::Params;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use redrive_core::access::QueuePattern;
use redrive_core::store::Store as _;
use serde::Deserialize;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long one stream lasts. A client comes back where it was, and has to show its token again.
const STREAM_MAX: Duration = Duration::from_secs(15 * 60);

/// What is asked for.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventParams {
    /// Only events about these queues.
    queue: Option<QueuePattern>,
}

/// `GET /api/v1/events`
pub(crate) async fn stream(
    caller: Caller,
    Params(params): Params<EventParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    // The gate decides whether the caller may look at the store at all; each event is then checked by its scope.
    caller.store.info().await?;
    let interest = Interest { access: Arc::clone(&caller.access), queues: params.queue };
    let last_seen = headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default());
    let app = Arc::clone(&caller.app);
    let client = app.events.subscribe(app.store(), &app.config.stop, interest, last_seen).await?;
    let mut response = Response::new(Body::from_stream(chunks(caller, client)));
    let reply = response.headers_mut();
    reply.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Proxies that collect replies before they pass them on would hold events back.
    reply.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// The stream of a client, which ends with its token.
fn chunks(caller: Caller, client: Client) -> impl stream::Stream<Item = Result<Bytes, Infallible>> {
    let greeting = Some(client.greeting());
    let end = Instant::now() + STREAM_MAX;
    stream::unfold((caller, client, greeting), move |(caller, mut client, greeting)| async move {
        if let Some(greeting) = greeting {
            return Some((Ok(greeting), (caller, client, None)));
        }
        let next = tokio::select! {
            next = tokio::time::timeout_at(end, client.next()) => next.ok()??,
            () = caller.revoked() => return None,
        };
        // The token may have been revoked on the store itself, or have expired.
        caller.is_still_known().await.then_some((Ok(next), (caller, client, None)))
    })
}
