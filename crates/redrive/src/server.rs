//! A store behind a server, reached over HTTP. It carries calls there and replies back, over connections that are kept
//! open for the next call, and says plainly why that did not work.

use crate::executor::client_config;
use async_trait::async_trait;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use redrive_core::error::{Refusal, StoreError, StoreErrorKind, StoreResult};
use redrive_core::limits;
use redrive_core::store::{CALL_VERSION, CALL_VERSION_HEADER, Call, Caller, Reaped, encode_reply};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde::Deserialize;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;
use url::{Host, Url};

/// How long it may take to connect, with TLS.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// How long a reply may take, in addition to the time that the call itself waits. A deep check of a large store takes
/// this long.
const REPLY_WITHIN: Duration = Duration::from_secs(300);
/// How long an unused connection is kept. Less than a server keeps it, so that the two rarely end it at the same moment.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// The number of unused connections that are kept.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// The path of the route that carries calls.
const CALL_PATH: &str = "/api/v1/call";

/// Connects to a server. Nothing is sent before the first call, so a server that cannot be reached is reported then.
/// The result is a store like any other, for example for [`crate::Worker`].
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = redrive::connect("https://redrive.example", std::env::var("REDRIVE_TOKEN").ok().as_deref())?;
/// let worker = redrive::Worker::builder(store).queue("payments");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Refusal::Invalid`] as a [`StoreError`] of kind [`StoreErrorKind::Unsupported`] if the URL or the token is malformed.
pub fn connect(url: &str, token: Option<&str>) -> Result<Arc<ServerStore>, StoreError> {
    connect_trusting(url, token, None)
}

/// Connects to a server as [`connect`] does, and trusts the certificates in a file beside those of the system.
///
/// # Errors
/// Those of [`connect`], and [`StoreErrorKind::Io`] if the file cannot be read.
pub fn connect_trusting(
    url: &str,
    token: Option<&str>,
    ca_file: Option<&Path>,
) -> Result<Arc<ServerStore>, StoreError> {
    let wrong =
        |why: String| StoreError::new(StoreErrorKind::Unsupported, format!("the URL of the server: {why}"));
    let parsed = Url::parse(url).map_err(|error| wrong(format!("{url:?}: {error}")))?;
    if !["http", "https"].contains(&parsed.scheme()) || parsed.host().is_none() {
        return Err(wrong(format!("{url:?} does not begin with http:// or https:// and a host")));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(wrong("it has a user name; give the token in REDRIVE_TOKEN or in a file".into()));
    }
    let authorization = match token.map(str::trim).filter(|token| !token.is_empty()) {
        None => None,
        Some(token) => {
            let malformed = |_| {
                StoreError::new(StoreErrorKind::Unsupported, "the token has characters that no token has")
            };
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(malformed)?;
            value.set_sensitive(true);
            Some(value)
        }
    };
    let extra_roots = match ca_file {
        None => Vec::new(),
        Some(file) => certificates(file)?,
    };
    let host = parsed.host_str().unwrap_or_default().to_owned();
    let authority = parsed.port().map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
    Ok(Arc::new(ServerStore {
        shown: parsed.as_str().trim_end_matches('/').to_owned(),
        path: parsed.path().trim_end_matches('/').to_owned(),
        host: authority,
        url: parsed,
        authorization,
        extra_roots,
        tls: OnceCell::new(),
        idle: Mutex::default(),
    }))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let wrong = |why: String| StoreError::new(StoreErrorKind::Io, format!("{}: {why}", file.display()));
    let found = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(error.to_string()))?;
    if found.is_empty() {
        return Err(wrong("there is no certificate in it; it must be in PEM form".into()));
    }
    Ok(found)
}

/// A store that a server holds. Cheap to share; see [`connect`].
pub struct ServerStore {
    url: Url,
    /// The URL as it is shown in errors.
    shown: String,
    /// What the paths of the API are appended to.
    path: String,
    host: String,
    authorization: Option<HeaderValue>,
    extra_roots: Vec<CertificateDer<'static>>,
    tls: OnceCell<Arc<ClientConfig>>,
    idle: Mutex<Vec<Connection>>,
}

impl fmt::Debug for ServerStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerStore").field("url", &self.shown).finish_non_exhaustive()
    }
}

/// A connection that is not being used.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    since: Instant,
    /// Moves the bytes; the connection ends with it.
    _driver: AbortOnDropHandle<()>,
}

/// A reply with its status.
struct Reply {
    status: StatusCode,
    body: Bytes,
}

impl ServerStore {
    /// The URL of the server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.shown
    }

    /// Asks for a route of the API that is not a verb of the store, such as `/api/v1/tokens`, and returns the JSON of
    /// the reply, or `None` if the server does not have what the path names.
    ///
    /// # Errors
    /// The problem that the server reports, or why it cannot be reached.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&serde_json::Value>,
    ) -> StoreResult<Option<serde_json::Value>> {
        let method = Method::from_bytes(method.as_bytes()).map_err(|_| {
            StoreError::new(StoreErrorKind::Unsupported, format!("{method:?} is not a method"))
        })?;
        let body = body.map(|body| Bytes::from(body.to_string()));
        let reply = self.exchange(&method, path, body.unwrap_or_default(), REPLY_WITHIN).await?;
        if reply.status == StatusCode::NOT_FOUND && Problem::read(&reply.body).is_some() {
            return Ok(None);
        }
        let bytes = self.checked(reply)?;
        serde_json::from_slice(&bytes).map(Some).map_err(|error| self.not_redrive(&error.to_string()).into())
    }

    /// Sends a request and reads the reply.
    async fn exchange(
        &self,
        method: &Method,
        path: &str,
        body: Bytes,
        within: Duration,
    ) -> Result<Reply, StoreError> {
        let mut request = self.build(method, path, &body)?;
        // A connection that was kept may have been ended by the server. If nothing of the request was sent yet, it is
        // sent on another one.
        while let Some(mut connection) = self.take_idle() {
            if connection.sender.ready().await.is_err() {
                continue;
            }
            let sent = self.timed(within, connection.sender.try_send_request(request)).await?;
            match sent {
                Ok(response) => return self.read(connection, response, within).await,
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.broken(error.error())),
                },
            }
        }
        let mut connection = self.dial().await?;
        let response = self.timed(within, connection.sender.send_request(request)).await?;
        let response = response.map_err(|error| self.broken(&error))?;
        self.read(connection, response, within).await
    }

    fn build(&self, method: &Method, path: &str, body: &Bytes) -> Result<Request<Full<Bytes>>, StoreError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.path))
            .header(HOST, &self.host)
            .header(CALL_VERSION_HEADER, CALL_VERSION);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(value) = &self.authorization {
            request = request.header(AUTHORIZATION, value);
        }
        request
            .body(Full::new(body.clone()))
            .map_err(|error| StoreError::new(StoreErrorKind::Unsupported, format!("the request: {error}")))
    }

    async fn read(
        &self,
        connection: Connection,
        response: hyper::Response<hyper::body::Incoming>,
        within: Duration,
    ) -> Result<Reply, StoreError> {
        let status = response.status();
        let whole = Limited::new(response.into_body(), limits::FRAME_BYTES_MAX).collect();
        let body = self.timed(within, whole).await?.map_err(|error| {
            let text = format!("the reply of {} broke off: {error}; {UNKNOWN_OUTCOME}", self.shown);
            StoreError::new(StoreErrorKind::Unreachable, text)
        })?;
        self.put_back(connection);
        Ok(Reply { status, body: body.to_bytes() })
    }

    async fn timed<T>(&self, within: Duration, what: impl Future<Output = T>) -> Result<T, StoreError> {
        tokio::time::timeout(within, what).await.map_err(|_| {
            let text =
                format!("{} did not answer within {} s; {UNKNOWN_OUTCOME}", self.shown, within.as_secs());
            StoreError::new(StoreErrorKind::Unreachable, text)
        })
    }

    fn broken(&self, error: &hyper::Error) -> StoreError {
        let text = format!("the connection to {} broke: {error}; {UNKNOWN_OUTCOME}", self.shown);
        StoreError::new(StoreErrorKind::Unreachable, text)
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| connection.since.elapsed() < IDLE_MAX && !connection.sender.is_closed());
        idle.pop()
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_CONNECTIONS_MAX {
            idle.push(Connection { since: Instant::now(), ..connection });
        }
    }

    async fn dial(&self) -> Result<Connection, StoreError> {
        let slow = |_| self.unreachable(&format!("no connection within {} s", CONNECT_WITHIN.as_secs()));
        tokio::time::timeout(CONNECT_WITHIN, self.dial_patiently()).await.map_err(slow)?
    }

    async fn dial_patiently(&self) -> Result<Connection, StoreError> {
        let port = self.url.port_or_known_default().unwrap_or(443);
        let stream = match self.url.host() {
            Some(Host::Ipv4(ip)) => TcpStream::connect((ip, port)).await,
            Some(Host::Ipv6(ip)) => TcpStream::connect((ip, port)).await,
            Some(Host::Domain(name)) => TcpStream::connect((name, port)).await,
            None => Err(std::io::ErrorKind::InvalidInput.into()),
        };
        let stream = stream.map_err(|error| self.unreachable(&error.to_string()))?;
        // Only an optimisation for small requests, so errors are ignored.
        let _ = stream.set_nodelay(true);
        if self.url.scheme() == "http" {
            return self.handshake(stream).await;
        }
        let untrusted = |why: String| self.unreachable(&format!("no trusted connection: {why}"));
        let tls = self.tls.get_or_try_init(|| client_config(&self.extra_roots)).await.map_err(untrusted)?;
        let name = match self.url.host() {
            Some(Host::Ipv4(ip)) => ServerName::from(IpAddr::from(ip)),
            Some(Host::Ipv6(ip)) => ServerName::from(IpAddr::from(ip)),
            Some(Host::Domain(name)) => {
                ServerName::try_from(name.to_owned()).map_err(|error| untrusted(error.to_string()))?
            }
            None => return Err(untrusted("it names no host".into())),
        };
        let connected = TlsConnector::from(Arc::clone(tls)).connect(name, stream).await;
        self.handshake(connected.map_err(|error| untrusted(error.to_string()))?).await
    }

    async fn handshake<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
    ) -> Result<Connection, StoreError> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unreachable(&error.to_string()))?;
        // Errors of the connection also show up in the request and the body.
        let driver = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
        Ok(Connection { sender, since: Instant::now(), _driver: driver })
    }

    fn unreachable(&self, why: &str) -> StoreError {
        let text = format!("no server answers at {}: {why}", self.shown);
        StoreError::new(StoreErrorKind::Unreachable, text)
    }

    fn not_redrive(&self, why: &str) -> StoreError {
        let text = format!("what answers at {} is not a Redrive server: {why}", self.shown);
        StoreError::new(StoreErrorKind::Unsupported, text)
    }

    /// The body of a reply that reports success, or the error that the server reports.
    fn checked(&self, reply: Reply) -> StoreResult<Bytes> {
        if reply.status.is_success() {
            return Ok(reply.body);
        }
        let Some(problem) = Problem::read(&reply.body) else {
            return Err(self.not_redrive(&format!("it answered {}", reply.status)).into());
        };
        let error = |kind| StoreError::new(kind, problem.detail.clone()).into();
        Err(match reply.status {
            StatusCode::UNAUTHORIZED => error(StoreErrorKind::Unauthenticated),
            StatusCode::FORBIDDEN => Refusal::NotAllowed {
                who: "the token".into(),
                verb: problem.code.clone(),
                why: problem.detail.clone(),
            }
            .into(),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => error(StoreErrorKind::Busy),
            StatusCode::CONFLICT | StatusCode::MISDIRECTED_REQUEST | StatusCode::METHOD_NOT_ALLOWED => {
                error(StoreErrorKind::Unsupported)
            }
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => error(StoreErrorKind::Unreachable),
            status if status.is_client_error() => {
                Refusal::invalid(problem.code, problem.detail.clone()).into()
            }
            _ => error(StoreErrorKind::Io),
        })
    }
}

/// What to say when a request may or may not have been carried out.
const UNKNOWN_OUTCOME: &str = "whether the request took effect is not known: look, then ask again";

/// The part of a problem document that this side needs.
#[derive(Deserialize)]
struct Problem {
    code: String,
    detail: String,
}

impl Problem {
    fn read(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }
}

#[async_trait]
#[expect(clippy::wildcard_enum_match_arm, reason = "a new verb needs nothing special here")]
impl Caller for ServerStore {
    async fn call(&self, call: Call) -> StoreResult<Vec<u8>> {
        let within = match &call {
            // The server maintains the store.
            Call::Tidy { .. } => {
                let mut reply = Vec::new();
                encode_reply(&mut reply, &StoreResult::Ok(None::<Reaped>))?;
                return Ok(reply);
            }
            Call::Wait { at_most, .. } => REPLY_WITHIN + at_most.to_std(),
            _ => REPLY_WITHIN,
        };
        let unwritable =
            |error: serde_json::Error| StoreError::new(StoreErrorKind::Protocol, error.to_string());
        let body = Bytes::from(serde_json::to_vec(&call).map_err(unwritable)?);
        let reply = self.exchange(&Method::POST, CALL_PATH, body, within).await?;
        Ok(self.checked(reply)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_url_is_refused_before_anything_is_sent() {
        for url in
            ["", "redrive.example", "ftp://a", "https://", "https://token@redrive.example", "unix:/tmp/x"]
        {
            assert_eq!(connect(url, None).unwrap_err().kind, StoreErrorKind::Unsupported, "{url}");
        }
        assert!(
            connect("http://localhost", Some("rdt_\n")).is_ok(),
            "a newline at the end of a file is no secret"
        );
        assert!(connect("http://localhost", Some("a\nb")).is_err());
    }

    #[test]
    fn a_token_does_not_appear_in_debug_output() {
        let store = connect("https://redrive.example/prefix/", Some("rdt_secret")).unwrap();
        assert_eq!(format!("{store:?}"), "ServerStore { url: \"https://redrive.example/prefix\", .. }");
        assert!(!format!("{:?}", store.build(&Method::GET, "/x", &Bytes::new()).unwrap()).contains("secret"));
    }

    #[test]
    fn problems_become_errors_with_the_words_of_the_server() {
        let store = connect("http://localhost", None).unwrap();
        let checked = |status: u16, body: &'static str| {
            let status = StatusCode::from_u16(status).unwrap();
            store.checked(Reply { status, body: Bytes::from_static(body.as_bytes()) }).unwrap_err()
        };
        let problem = r#"{"code":"c","detail":"the detail","status":0}"#;
        for (status, kind) in [
            (401, StoreErrorKind::Unauthenticated),
            (409, StoreErrorKind::Unsupported),
            (421, StoreErrorKind::Unsupported),
            (429, StoreErrorKind::Busy),
            (500, StoreErrorKind::Io),
            (503, StoreErrorKind::Busy),
        ] {
            let expected = StoreError::new(kind, "the detail");
            assert_eq!(checked(status, problem), expected.into(), "{status}");
        }
        assert_eq!(checked(413, problem), Refusal::invalid("c", "the detail").into());
        assert!(matches!(
            checked(403, problem),
            redrive_core::error::CallError::Refused(Refusal::NotAllowed { .. })
        ));
        assert!(checked(404, "<html>").to_string().contains("not a Redrive server"));
    }
}
