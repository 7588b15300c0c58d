//! The health port: a few fixed answers to `GET` and `HEAD`, over HTTP/1.1 with one request per connection.
//! Written by hand because it must stay small and bounded: no body is read, no header is interpreted, and
//! nothing here can change anything.

use super::health::{Health, HealthStatus, Report};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// What Prometheus calls its text format.
const METRICS: &str = "text/plain; version=0.0.4";
/// Connections at once; more wait to be accepted.
const CONNECTIONS: usize = 32;
/// Bytes of a request's line and headers.
const HEAD_BYTES: usize = 8 * 1024;
/// How long a request may take to arrive, and its answer to be taken.
const WITHIN: Duration = Duration::from_secs(5);

/// Answers until it is dropped.
pub(super) async fn serve(listener: TcpListener, health: Arc<Health>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut visitors = JoinSet::new();
    loop {
        while visitors.try_join_next().is_some() {}
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let health = Arc::clone(&health);
                visitors.spawn(async move {
                    // Whoever is slow or hangs up has only themselves to blame.
                    let _ = tokio::time::timeout(WITHIN, answer(stream, &health)).await;
                    drop(place);
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
            Ok(text) => send(&mut stream, "200 OK", METRICS, &text, with_body).await,
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

/// Reads up to the end of the headers; nothing when the visitor hangs up before.
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

/// The method and the path without its query, if this is a request.
fn parse(request: &[u8]) -> Option<(&str, &str)> {
    let line = request.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let whole = words.next().is_none() && matches!(version, "HTTP/1.0" | "HTTP/1.1");
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
