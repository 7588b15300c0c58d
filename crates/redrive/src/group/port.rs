//! The health port: a few fixed responses to `GET` and `HEAD`, over HTTP/1.1 with one request per connection. It is
//! written by hand because it must stay small and bounded: it reads no body, interprets no header, and cannot change
//! anything.

use super::health::{Health, HealthStatus, Report};
use crate::metrics::CONTENT_TYPE;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The maximum number of connections at once. More wait to be accepted.
const CONNECTIONS: usize = 32;
/// The maximum number of bytes of a request's line and headers.
const HEAD_BYTES: usize = 8 * 1024;
/// How long a request may take to arrive and its response to be sent.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves requests until it is dropped.
pub(super) async fn serve(listener: TcpListener, health: Arc<Health>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let health = Arc::clone(&health);
                connections.spawn(async move {
                    // A client that is slow or hangs up is dropped.
                    let _ = tokio::time::timeout(REQUEST_TIMEOUT, answer(stream, &health)).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the health port could not accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut stream: TcpStream, health: &Health) -> std::io::Result<()> {
    let Some(request) = head(&mut stream).await? else { return Ok(()) };
    let Some((method, path)) = parse(&request) else {
        return say(&mut stream, "400 Bad Request", "{\"error\":\"not an HTTP/1 request\"}", true).await;
    };
    if !matches!(method, "GET" | "HEAD") {
        let text = "{\"error\":\"only GET and HEAD\"}";
        return say(&mut stream, "405 Method Not Allowed\r\nallow: GET, HEAD", text, true).await;
    }
    let with_body = method == "GET";
    match path {
        "/health/live" => report(&mut stream, &health.live(), with_body).await,
        "/health/ready" => report(&mut stream, &health.ready().await, with_body).await,
        "/metrics" => match health.metrics().await {
            Ok(text) => send(&mut stream, "200 OK", CONTENT_TYPE, &text, with_body).await,
            Err(error) => {
                let text = serde_json::json!({ "error": error.to_string() }).to_string();
                say(&mut stream, "503 Service Unavailable", &text, with_body).await
            }
        },
        _ => {
            let text = "{\"error\":\"there is /health/live, /health/ready and /metrics\"}";
            say(&mut stream, "404 Not Found", text, with_body).await
        }
    }
}

/// Reads up to the end of the headers. Returns `None` if the client hangs up before, or the headers are too long.
async fn head(stream: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut request = Vec::new();
    let mut some = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > HEAD_BYTES {
            let text = "{\"error\":\"the headers are too long\"}";
            say(stream, "431 Request Header Fields Too Large", text, true).await?;
            return Ok(None);
        }
        match stream.read(&mut some).await? {
            0 => return Ok(None),
            n => request.extend(some.iter().take(n)),
        }
    }
    Ok(Some(request))
}

/// The method and the path without its query, if this is a valid request line.
fn parse(request: &[u8]) -> Option<(&str, &str)> {
    let line = request.split(|byte| *byte == b'\r').next()?;
    let mut parts = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = parts.next().is_none() && matches!(version, "HTTP/1.0" | "HTTP/1.1");
    let path = target.split('?').next()?;
    (whole && path.starts_with('/')).then_some((method, path))
}

async fn report(stream: &mut TcpStream, report: &Report, with_body: bool) -> std::io::Result<()> {
    let status = match report.status {
        HealthStatus::Ok | HealthStatus::Degraded => "200 OK",
        HealthStatus::Failing => "503 Service Unavailable",
    };
    let body = serde_json::to_string(report).unwrap_or_default();
    say(stream, status, &body, with_body).await
}

async fn say(stream: &mut TcpStream, status: &str, body: &str, with_body: bool) -> std::io::Result<()> {
    send(stream, status, "application/json", body, with_body).await
}

async fn send(
    stream: &mut TcpStream,
    status: &str,
    content_type: &str,
    body: &str,
    with_body: bool,
) -> std::io::Result<()> {
    let length = body.len();
    let mut answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\
         cache-control: no-store\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
    );
    if with_body {
        answer.push_str(body);
    }
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}
