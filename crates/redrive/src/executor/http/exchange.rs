//! Sends one request and reads its response, over a connection of its own. The connection uses exactly the address that
//! the guard has checked, so a name that resolves differently a moment later makes no difference.

use super::request::Request;
use super::retry_after;
use crate::handler::HandlerError;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{
    CONNECTION, CONTENT_TYPE, DATE, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, RETRY_AFTER,
};
use hyper_util::rt::TokioIo;
use redrive_core::address::AddressGuard;
use redrive_core::error::Refusal;
use redrive_core::target::HttpTarget;
use redrive_core::time::Span;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;
use url::{Host, Url};

/// The maximum size of the response's head.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The maximum number of addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

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
#[derive(Debug)]
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

impl From<RequestError> for HandlerError {
    fn from(failed: RequestError) -> Self {
        match failed {
            RequestError::Blocked(why) => Self::new("AddressBlocked", why),
            RequestError::Unresolved(why) => Self::new("DnsFailed", why),
            RequestError::Unconnected(why) => Self::new("ConnectFailed", why),
            RequestError::Untrusted(why) => Self::new("TlsFailed", why),
            RequestError::Broken(why) => Self::new("ConnectionBroken", why),
            RequestError::Redirect(why) => Self::new("RedirectRefused", why),
            RequestError::Slow(limit) => {
                Self::new("Timeout", format!("the target did not answer within {limit}"))
            }
        }
    }
}

/// An HTTP client for one target: which addresses are allowed, which certificates are trusted, and the limits.
#[derive(Debug)]
pub(super) struct HttpClient {
    guard: AddressGuard,
    connect_timeout: Span,
    max_body: u64,
    extra_roots: Vec<CertificateDer<'static>>,
    tls: OnceCell<Arc<ClientConfig>>,
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
        Ok(Self {
            guard: target.guard(),
            connect_timeout: target.connect_timeout,
            max_body: target.max_response_bytes,
            extra_roots,
            tls: OnceCell::new(),
        })
    }

    /// Sends the request and reads the response, up to the limit of its body.
    pub(super) async fn exchange(&self, request: &Request) -> Result<Response, RequestError> {
        let (host, addresses) = self.addresses(&request.url).await?;
        let slow =
            |_| RequestError::Unconnected(format!("no connection to {host} within {}", self.connect_timeout));
        let limit = self.connect_timeout.to_std();
        let stream = tokio::time::timeout(limit, connect(&host, &addresses)).await.map_err(slow)??;
        if request.url.scheme() == "https" {
            let secure = tokio::time::timeout(limit, self.secure(&host, &request.url, stream));
            self.converse(secure.await.map_err(slow)??, request).await
        } else {
            self.converse(stream, request).await
        }
    }

    /// Resolves the host. All of its addresses must be allowed: a name with one forbidden address is not trusted.
    async fn addresses(&self, url: &Url) -> Result<(String, Vec<SocketAddr>), RequestError> {
        let port = url.port_or_known_default().unwrap_or(443);
        let found: Vec<SocketAddr> = match url.host() {
            None => Vec::new(),
            Some(Host::Ipv4(address)) => vec![(address, port).into()],
            Some(Host::Ipv6(address)) => vec![(address, port).into()],
            Some(Host::Domain(name)) => {
                let nowhere = |error| RequestError::Unresolved(format!("failed to resolve {name}: {error}"));
                tokio::net::lookup_host((name, port)).await.map_err(nowhere)?.take(ADDRESSES_MAX).collect()
            }
        };
        let host = url.host_str().unwrap_or_default().to_owned();
        if found.is_empty() {
            return Err(RequestError::Unresolved(format!("{host} has no address")));
        }
        for address in &found {
            let ip: IpAddr = address.ip();
            self.guard.check(ip).map_err(|why| {
                RequestError::Blocked(format!(
                    "{host} is at {ip}, a {why} address; allow it in the queue's target if it is meant"
                ))
            })?;
        }
        Ok((host, found))
    }

    async fn secure(
        &self,
        host: &str,
        url: &Url,
        stream: TcpStream,
    ) -> Result<tokio_rustls::client::TlsStream<TcpStream>, RequestError> {
        let untrusted =
            |why: String| RequestError::Untrusted(format!("no trusted connection to {host}: {why}"));
        let config =
            self.tls.get_or_try_init(|| client_config(&self.extra_roots)).await.map_err(untrusted)?;
        let name = match url.host() {
            Some(Host::Ipv4(address)) => ServerName::from(IpAddr::from(address)),
            Some(Host::Ipv6(address)) => ServerName::from(IpAddr::from(address)),
            Some(Host::Domain(_)) | None => {
                ServerName::try_from(host.to_owned()).map_err(|error| untrusted(error.to_string()))?
            }
        };
        let connector = TlsConnector::from(Arc::clone(config));
        connector.connect(name, stream).await.map_err(|error| untrusted(error.to_string()))
    }

    async fn converse<S>(&self, stream: S, request: &Request) -> Result<Response, RequestError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut http = http1::Builder::new();
        http.max_buf_size(HEAD_BYTES_MAX);
        let (mut sender, connection) = http.handshake(TokioIo::new(stream)).await.map_err(|e| broken(&e))?;
        // Errors of the connection also show up in the request and the body.
        let _driven = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
        let response = sender
            .send_request(into_hyper(request).map_err(RequestError::Broken)?)
            .await
            .map_err(|e| broken(&e))?;
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

fn broken(error: &hyper::Error) -> RequestError {
    let mut text = error.to_string();
    let mut beneath = std::error::Error::source(error);
    while let Some(source) = beneath {
        text.push_str(": ");
        text.push_str(&source.to_string());
        beneath = source.source();
    }
    RequestError::Broken(text)
}

fn text_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Converts the request for hyper.
fn into_hyper(request: &Request) -> Result<hyper::Request<Full<Bytes>>, String> {
    let url = &request.url;
    let path = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    let name = url.host_str().unwrap_or_default();
    let host = url.port().map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
    let mut wire = hyper::Request::builder()
        .method(request.method.name())
        .uri(path)
        .body(Full::new(request.body.clone()))
        .map_err(|error| error.to_string())?;
    *wire.headers_mut() = request.headers.clone();
    let host = HeaderValue::from_str(&host).map_err(|error| error.to_string())?;
    wire.headers_mut().insert(HOST, host);
    wire.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(wire)
}

/// Connects to one of the addresses that were checked.
async fn connect(host: &str, addresses: &[SocketAddr]) -> Result<TcpStream, RequestError> {
    let mut why = String::new();
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Only an optimisation for small requests, so errors are ignored.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => why = error.to_string(),
        }
    }
    Err(RequestError::Unconnected(format!("failed to connect to {host}: {why}")))
}

/// A TLS configuration that trusts the system's certificates and some others.
pub(crate) async fn client_config(extra: &[CertificateDer<'static>]) -> Result<Arc<ClientConfig>, String> {
    let system = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs);
    let system = system.await.map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    // Certificates that cannot be parsed are not trusted.
    roots.add_parsable_certificates(system.certs);
    for root in extra {
        roots.add(root.clone()).map_err(|error| format!("a certificate of the given file: {error}"))?;
    }
    if roots.is_empty() {
        return Err("this machine has no trusted certificates; install them or name a file with some".into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
