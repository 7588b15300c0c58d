//! Makes guarded connections for the client's pool: resolves the host, checks every address, and connects to exactly
//! the address that was checked, so a name that resolves differently a moment later makes no difference.

use super::exchange::RequestError;
use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use redrive_core::address::AddressGuard;
use redrive_core::time::Span;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use url::{Host, Url};

/// The maximum number of addresses of one name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Connects to hosts that the guard allows. Cheap to clone; clones share the TLS configuration.
#[derive(Clone, Debug)]
pub(super) struct GuardedConnector(Arc<Rules>);

#[derive(Debug)]
struct Rules {
    guard: AddressGuard,
    timeout: Span,
    extra_roots: Vec<CertificateDer<'static>>,
    tls: OnceCell<Arc<ClientConfig>>,
}

impl GuardedConnector {
    pub(super) fn new(guard: AddressGuard, timeout: Span, extra_roots: Vec<CertificateDer<'static>>) -> Self {
        Self(Arc::new(Rules { guard, timeout, extra_roots, tls: OnceCell::new() }))
    }
}

impl tower_service::Service<Uri> for GuardedConnector {
    type Response = Stream;
    type Error = RequestError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, RequestError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), RequestError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let rules = Arc::clone(&self.0);
        Box::pin(async move { rules.connect(&uri).await })
    }
}

impl Rules {
    async fn connect(&self, uri: &Uri) -> Result<Stream, RequestError> {
        let url = Url::parse(&uri.to_string())
            .map_err(|error| RequestError::Unconnected(format!("{uri} is not a URL: {error}")))?;
        let (host, addresses) = self.addresses(&url).await?;
        let slow = |_| RequestError::Unconnected(format!("no connection to {host} within {}", self.timeout));
        let limit = self.timeout.to_std();
        let stream = tokio::time::timeout(limit, connect(&host, &addresses)).await.map_err(slow)??;
        if url.scheme() != "https" {
            return Ok(Stream::Plain(TokioIo::new(stream)));
        }
        let secured = tokio::time::timeout(limit, self.secure(&host, &url, stream)).await.map_err(slow)??;
        Ok(Stream::Tls(Box::new(TokioIo::new(secured))))
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
    ) -> Result<TlsStream<TcpStream>, RequestError> {
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

/// A connection, with or without TLS.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(TokioIo<TcpStream>),
    Tls(Box<TokioIo<TlsStream<TcpStream>>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_read(context, buffer),
        }
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, data),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_write(context, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}
