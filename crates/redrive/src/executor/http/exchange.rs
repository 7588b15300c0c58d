//! One request and its answer over a connection of its own. The address that is connected to is the very
//! address the guard has looked at: a name that resolves to something else a moment later changes nothing.

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
use redrive_core::address::Guard;
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

/// Bytes of the answer's head: more is not a head.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// What came back.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) retry_after: Option<Span>,
    pub(super) location: Option<String>,
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
    /// There was more of the body than is read.
    pub(super) cut: bool,
    /// Why the body is not whole, if it broke off.
    pub(super) broken: Option<String>,
}

/// Why nothing came back.
#[derive(Debug)]
pub(super) enum Failed {
    /// The guard says no.
    Blocked(String),
    /// The name leads nowhere.
    Unresolved(String),
    /// Nobody there.
    Unconnected(String),
    /// The other side is not who it should be.
    Untrusted(String),
    /// The connection broke.
    Broken(String),
    /// A redirect that must not be followed.
    Redirect(String),
    /// Not in time.
    Slow(Span),
}

impl From<Failed> for HandlerError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Blocked(why) => Self::new("AddressBlocked", why),
            Failed::Unresolved(why) => Self::new("DnsFailed", why),
            Failed::Unconnected(why) => Self::new("ConnectFailed", why),
            Failed::Untrusted(why) => Self::new("TlsFailed", why),
            Failed::Broken(why) => Self::new("ConnectionBroken", why),
            Failed::Redirect(why) => Self::new("RedirectRefused", why),
            Failed::Slow(limit) => Self::new("Timeout", format!("the target did not answer within {limit}")),
        }
    }
}

/// The way to targets: what may be reached, whom to trust, and how long things may take.
#[derive(Debug)]
pub(super) struct Line {
    guard: Guard,
    connect_timeout: Span,
    max_body: u64,
    extra_roots: Vec<CertificateDer<'static>>,
    tls: OnceCell<Arc<ClientConfig>>,
}

impl Line {
    pub(super) fn new(target: &HttpTarget) -> Result<Self, Refusal> {
        let wrong = |why: String| Refusal::invalid("target.ca_file", why);
        let extra_roots = match &target.ca_file {
            None => Vec::new(),
            Some(file) => CertificateDer::pem_file_iter(file)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| wrong(format!("{file}: {error}")))?,
        };
        if target.ca_file.is_some() && extra_roots.is_empty() {
            return Err(wrong("there is no certificate in it".into()));
        }
        Ok(Self {
            guard: target.guard(),
            connect_timeout: target.connect_timeout,
            max_body: target.max_response_bytes,
            extra_roots,
            tls: OnceCell::new(),
        })
    }

    /// Sends the request and reads the answer, up to the limit of its body.
    pub(super) async fn exchange(&self, request: &Request) -> Result<Answer, Failed> {
        let (host, addresses) = self.addresses(&request.url).await?;
        let slow =
            |_| Failed::Unconnected(format!("no connection to {host} within {}", self.connect_timeout));
        let limit = self.connect_timeout.to_std();
        let stream = tokio::time::timeout(limit, connect(&host, &addresses)).await.map_err(slow)??;
        if request.url.scheme() == "https" {
            let secure = tokio::time::timeout(limit, self.secure(&host, &request.url, stream));
            self.converse(secure.await.map_err(slow)??, request).await
        } else {
            self.converse(stream, request).await
        }
    }

    /// Where the host is. All of it must be allowed: a name with one foot inside is not to be trusted.
    async fn addresses(&self, url: &Url) -> Result<(String, Vec<SocketAddr>), Failed> {
        let port = url.port_or_known_default().unwrap_or(443);
        let found: Vec<SocketAddr> = match url.host() {
            None => Vec::new(),
            Some(Host::Ipv4(address)) => vec![(address, port).into()],
            Some(Host::Ipv6(address)) => vec![(address, port).into()],
            Some(Host::Domain(name)) => {
                let nowhere = |error| Failed::Unresolved(format!("failed to resolve {name}: {error}"));
                tokio::net::lookup_host((name, port)).await.map_err(nowhere)?.take(ADDRESSES_MAX).collect()
            }
        };
        let host = url.host_str().unwrap_or_default().to_owned();
        if found.is_empty() {
            return Err(Failed::Unresolved(format!("{host} has no address")));
        }
        for address in &found {
            let ip: IpAddr = address.ip();
            self.guard.check(ip).map_err(|why| {
                Failed::Blocked(format!(
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
    ) -> Result<tokio_rustls::client::TlsStream<TcpStream>, Failed> {
        let untrusted = |why: String| Failed::Untrusted(format!("no trusted connection to {host}: {why}"));
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

    async fn converse<S>(&self, stream: S, request: &Request) -> Result<Answer, Failed>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut http = http1::Builder::new();
        http.max_buf_size(HEAD_BYTES_MAX);
        let (mut sender, connection) = http.handshake(TokioIo::new(stream)).await.map_err(|e| broken(&e))?;
        // Its errors reach the request and the body as well.
        let _driven = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
        let answer =
            sender.send_request(written(request).map_err(Failed::Broken)?).await.map_err(|e| broken(&e))?;
        let (head, body) = answer.into_parts();
        let text = |name: HeaderName| text_of(&head.headers, &name);
        let date = text(DATE);
        let mut answer = Answer {
            status: head.status.as_u16(),
            retry_after: text(RETRY_AFTER)
                .and_then(|value| retry_after(&value, date.as_deref(), SystemTime::now())),
            location: text(LOCATION),
            content_type: text(CONTENT_TYPE),
            body: Vec::new(),
            cut: false,
            broken: None,
        };
        self.read(body, &mut answer).await;
        Ok(answer)
    }

    async fn read(&self, mut body: Incoming, answer: &mut Answer) {
        let most = usize::try_from(self.max_body).unwrap_or(usize::MAX);
        while let Some(frame) = body.frame().await {
            let data = match frame {
                Ok(frame) => frame.into_data().unwrap_or_default(),
                Err(error) => {
                    answer.broken = Some(error.to_string());
                    return;
                }
            };
            let room = most.saturating_sub(answer.body.len());
            answer.body.extend(data.iter().take(room));
            if data.len() > room {
                answer.cut = true;
                return;
            }
        }
    }
}

fn broken(error: &hyper::Error) -> Failed {
    let mut text = error.to_string();
    let mut beneath = std::error::Error::source(error);
    while let Some(source) = beneath {
        text.push_str(": ");
        text.push_str(&source.to_string());
        beneath = source.source();
    }
    Failed::Broken(text)
}

fn text_of(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// The request as it goes over the wire.
fn written(request: &Request) -> Result<hyper::Request<Full<Bytes>>, String> {
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
async fn connect(host: &str, addresses: &[SocketAddr]) -> Result<TcpStream, Failed> {
    let mut why = String::new();
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Without it small requests wait for nothing; that it cannot be set is no reason to fail.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => why = error.to_string(),
        }
    }
    Err(Failed::Unconnected(format!("failed to connect to {host}: {why}")))
}

/// Trusts what the system trusts, and the target's own certificates.
async fn client_config(extra: &[CertificateDer<'static>]) -> Result<Arc<ClientConfig>, String> {
    let system = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs);
    let system = system.await.map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    // One that cannot be read is one that is not trusted.
    roots.add_parsable_certificates(system.certs);
    for root in extra {
        roots.add(root.clone()).map_err(|error| format!("a certificate of ca_file: {error}"))?;
    }
    if roots.is_empty() {
        return Err("this machine has no trusted certificates; install them or name a ca_file".into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
