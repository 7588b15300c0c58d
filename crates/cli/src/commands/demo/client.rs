//! How the demo's handlers call the services: one HTTP request on a connection of its own.

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, HOST, RETRY_AFTER};
use http_body_util::{BodyExt as _, Limited};
use hyper_util::rt::TokioIo;
use redrive::HandlerError;
use redrive::core::time::Span;
use serde::Serialize;
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// The largest reply that is read.
const REPLY_BYTES_MAX: usize = 64 * 1024;

/// Posts JSON and returns the body of a successful reply. Other replies are errors that say what was asked of whom.
pub(super) async fn post(
    service: SocketAddr,
    path: &str,
    body: &impl Serialize,
) -> Result<Bytes, HandlerError> {
    let stream = TcpStream::connect(service).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = hyper::Request::post(path)
        .header(HOST, service.to_string())
        .header(CONTENT_TYPE, "application/json")
        .body(Body::from(serde_json::to_vec(body)?))?;
    let reply = sender.send_request(request).await?;
    let status = reply.status();
    let retry_after = reply.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let body =
        Limited::new(reply.into_body(), REPLY_BYTES_MAX).collect().await.map_err(HandlerError::boxed)?;
    let body = body.to_bytes();
    if status.is_success() {
        return Ok(body);
    }
    let error = HandlerError::new(
        if status.as_u16() == 429 { "RateLimited" } else { "ServiceUnavailable" },
        format!("POST http://{service}{path} answered {status}: {}", String::from_utf8_lossy(&body)),
    );
    let error = error.code(status.as_u16()).step("http");
    Err(match retry_after {
        Some(seconds) => error.retry_after(Span::from_secs(seconds)),
        None => error,
    })
}
