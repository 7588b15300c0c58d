//! Sends one request and reads its response. Connections are kept and used again; every new one is made by the guarded
//! connector. A kept connection leads to an address that the same guard has checked.

use super::connect::GuardedConnector;
use super::request::Request;
use super::retry_after;
use crate::handler::HandlerError;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, LOCATION, RETRY_AFTER};
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use redrive_core::error::Refusal;
use redrive_core::target::HttpTarget;
use redrive_core::time::Span;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use std::error::Error as _;
use std::fmt;
use std::time::{Duration, SystemTime};

/// The maximum size of the response's head.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// How long a connection is kept that nobody uses: shorter than most servers do.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Connections to one host that are kept while nobody uses them.
const IDLE_CONNECTIONS_MAX: usize = 16;

/// A response.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) retry_after: Option<Span>,
    pub(super) location: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
    /// The body is longer than the limit and was cut.
    pub(super) cut: bool,
    /// Why the body is incomplete, if it broke off.
    pub(super) broken: Option<String>,
}

/// Why there is no response.
#[derive(Clone, Debug)]
pub(super) enum RequestError {
    /// The address guard does not allow the address.
    Blocked(String),
    /// The host name could not be resolved.
    Unresolved(String),
    /// No connection could be made.
    Unconnected(String),
    /// The TLS handshake failed.
    Untrusted(String),
    /// The connection broke.
    Broken(String),
    /// A redirect that must not be followed.
    Redirect(String),
    /// There was no response within the time limit.
    Slow(Span),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Blocked(why)
            | Self::Unresolved(why)
            | Self::Unconnected(why)
            | Self::Untrusted(why)
            | Self::Broken(why)
            | Self::Redirect(why) => f.write_str(why),
            Self::Slow(limit) => write!(f, "the target did not answer within {limit}"),
        }
    }
}

impl std::error::Error for RequestError {}

impl RequestError {
    /// The failure that is reported for the message.
    pub(super) fn into_failure(self) -> HandlerError {
        let error_type = match &self {
            Self::Blocked(_) => "AddressBlocked",
            Self::Unresolved(_) => "DnsFailed",
            Self::Unconnected(_) => "ConnectFailed",
            Self::Untrusted(_) => "TlsFailed",
            Self::Broken(_) => "ConnectionBroken",
            Self::Redirect(_) => "RedirectRefused",
            Self::Slow(_) => "Timeout",
        };
        HandlerError::new(error_type, self.to_string())
    }
}

/// An HTTP client for one target: which addresses are allowed, which certificates are trusted, the limits, and the
/// connections that are kept.
#[derive(Debug)]
pub(super) struct HttpClient {
    client: Client<GuardedConnector, Full<Bytes>>,
    max_body: u64,
}

impl HttpClient {
    pub(super) fn new(target: &HttpTarget) -> Result<Self, Refusal> {
        let invalid = |why: String| Refusal::invalid("target.ca_file", why);
        let extra_roots = match &target.ca_file {
            None => Vec::new(),
            Some(file) => CertificateDer::pem_file_iter(file)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| invalid(format!("{file}: {error}")))?,
        };
        if target.ca_file.is_some() && extra_roots.is_empty() {
            return Err(invalid("there is no certificate in it".into()));
        }
        let connector = GuardedConnector::new(target.guard(), target.connect_timeout, extra_roots);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .http1_max_buf_size(HEAD_BYTES_MAX)
            .build(connector);
        Ok(Self { client, max_body: target.max_response_bytes })
    }

    /// Sends the request and reads the response, up to the limit of its body.
    pub(super) async fn exchange(&self, request: &Request) -> Result<Response, RequestError> {
        let wire = into_hyper(request).map_err(RequestError::Broken)?;
        let response = self.client.request(wire).await.map_err(|error| failed(&error))?;
        let (head, body) = response.into_parts();
        let text = |name: HeaderName| text_of(&head.headers, &name);
        let date = text(DATE);
        let mut response = Response {
            status: head.status.as_u16(),
            retry_after: text(RETRY_AFTER)
                .and_then(|value| retry_after(&value, date.as_deref(), SystemTime::now())),
            location: text(LOCATION),
            content_type: text(CONTENT_TYPE),
            body: Vec::new(),
            cut: false,
            broken: None,
        };
        self.read(body, &mut response).await;
        Ok(response)
    }

    /// Reads the body. A connection whose body was not read to its end is not kept.
    async fn read(&self, mut body: Incoming, response: &mut Response) {
        let most = usize::try_from(self.max_body).unwrap_or(usize::MAX);
        while let Some(frame) = body.frame().await {
            let data = match frame {
                Ok(frame) => frame.into_data().unwrap_or_default(),
                Err(error) => {
                    response.broken = Some(error.to_string());
                    return;
                }
            };
            let room = most.saturating_sub(response.body.len());
            response.body.extend(data.iter().take(room));
            if data.len() > room {
                response.cut = true;
                return;
            }
        }
    }
}

/// Why a request failed: what the connector said if it could not connect, and otherwise what broke.
fn failed(error: &Error) -> RequestError {
    let mut text = error.to_string();
    let mut beneath = error.source();
    while let Some(source) = beneath {
        if let Some(said) = source.downcast_ref::<RequestError>() {
            return said.clone();
        }
        text.push_str(": ");
        text.push_str(&source.to_string());
        beneath = source.source();
    }
    RequestError::Broken(text)
}

fn text_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Converts the request for hyper, which adds the `Host`.
fn into_hyper(request: &Request) -> Result<hyper::Request<Full<Bytes>>, String> {
    let mut wire = hyper::Request::builder()
        .method(request.method.name())
        .uri(request.url.as_str())
        .body(Full::new(request.body.clone()))
        .map_err(|error| error.to_string())?;
    *wire.headers_mut() = request.headers.clone();
    Ok(wire)
}
