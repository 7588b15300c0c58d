//! The listener's limits, over real connections. The clock is paused where time matters, so a wait ends as soon as
//! nothing else happens.

use super::Server;
use redrive_server::{ListenConfig, Listener, serve};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const REQUEST: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Starts a listener with these limits.
async fn start(config: ListenConfig) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), None).await.unwrap();
    let (address, stop) = (listener.address().unwrap(), CancellationToken::new());
    let router = Server::start().await.router;
    (address, stop.clone(), tokio::spawn(serve(vec![listener], router, config, stop)))
}

/// Reads until the reply is complete or the connection ends.
async fn reply(stream: &mut TcpStream) -> String {
    let mut seen = Vec::new();
    while !seen.ends_with(b"}") && stream.read_buf(&mut seen).await.unwrap() > 0 {}
    String::from_utf8(seen).unwrap()
}

#[tokio::test]
async fn a_connection_beyond_the_limit_waits_for_its_turn() {
    let config = ListenConfig { connections_max: 1, ..ListenConfig::default() };
    let (address, stop, running) = start(config).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(REQUEST).await.unwrap();
    assert!(reply(&mut first).await.starts_with("HTTP/1.1 200"));
    let mut second = TcpStream::connect(address).await.unwrap();
    second.write_all(REQUEST).await.unwrap();
    assert!(second.try_read(&mut [0; 1]).is_err(), "there is no answer while the first connection is open");
    drop(first);
    assert!(reply(&mut second).await.starts_with("HTTP/1.1 200"));
    stop.cancel();
    running.await.unwrap();
    assert_eq!(reply(&mut second).await, "", "an idle connection ends with the server");
}

#[tokio::test(start_paused = true)]
async fn a_slow_head_and_a_silent_connection_are_ended() {
    let (address, stop, running) = start(ListenConfig::default()).await;
    for begun in [&REQUEST[..20], b""] {
        let began = tokio::time::Instant::now();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(begun).await.unwrap();
        let said = reply(&mut stream).await;
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 408"), "{said}");
        assert!(began.elapsed() <= Duration::from_secs(121), "{:?}", began.elapsed());
    }
    stop.cancel();
    running.await.unwrap();
}
