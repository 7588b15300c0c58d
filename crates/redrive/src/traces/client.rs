//! Carries the exporter's requests to the collector: one connection for each batch, on the runtime of the program. The
//! exporter runs on a thread of its own, which only waits.

use crate::executor::client_config;
use async_trait::async_trait;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use rustls::pki_types::ServerName;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

/// How long a batch may take to be sent and acknowledged.
const EXCHANGE_WITHIN: Duration = Duration::from_secs(10);
/// The longest reply that is read, in bytes.
const REPLY_BYTES_MAX: usize = 64 * 1024;

/// The client of the exporter.
#[derive(Debug)]
pub(super) struct OtlpClient {
    runtime: Handle,
}

impl OtlpClient {
    pub(super) const fn new(runtime: Handle) -> Self {
        Self { runtime }
    }
}

#[async_trait]
impl HttpClient for OtlpClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let exchange = async move { tokio::time::timeout(EXCHANGE_WITHIN, exchange(request)).await };
        self.runtime.spawn(exchange).await??
    }
}

async fn exchange(request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let uri = request.uri().clone();
    let host =
        uri.host().ok_or("the address of the collector has no host")?.trim_matches(['[', ']']).to_owned();
    let secure = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let stream = TcpStream::connect((host.as_str(), port)).await?;
    if !secure {
        return converse(stream, request).await;
    }
    let connector = TlsConnector::from(client_config(&[]).await?);
    converse(connector.connect(ServerName::try_from(host)?, stream).await?, request).await
}

async fn converse<S>(stream: S, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let _driven = AbortOnDropHandle::new(tokio::spawn(async move { drop(connection.await) }));
    let uri = request.uri().clone();
    if let Some(authority) = uri.authority() {
        request.headers_mut().insert(hyper::header::HOST, authority.as_str().parse()?);
    }
    // HTTP/1.1 wants the path alone in the request line.
    *request.uri_mut() = uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
    let (head, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
    let body = Limited::new(body, REPLY_BYTES_MAX).collect().await?.to_bytes();
    Ok(Response::from_parts(head, body))
}
