//! A proxy in front of PostgreSQL that cuts one connection at a chosen message of the protocol.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// Where a connection is cut: the number counts the messages of all connections, in both directions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    /// The message with this number is not passed on.
    Request(usize),
    /// The message with this number is passed on, and nothing after it.
    Reply(usize),
}

/// State shared by the connections of a proxy.
#[derive(Debug, Default)]
struct Shared {
    messages: AtomicUsize,
    cut: Option<Cut>,
    is_cut: AtomicBool,
}

/// A running proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Starts a proxy in front of the server on this port.
    pub(crate) async fn start(server: u16, cut: Option<Cut>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared { cut, ..Shared::default() });
        let of_task = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await.unwrap();
                tokio::spawn(connection(client, server, Arc::clone(&of_task)));
            }
        });
        Self { port, shared, task }
    }

    /// The same address through this proxy.
    pub(crate) fn url(&self, direct: &str) -> String {
        let (before, rest) = direct.split_once("127.0.0.1:").unwrap();
        let (_, after) = rest.split_once('/').unwrap();
        format!("{before}127.0.0.1:{}/{after}", self.port)
    }

    /// How many messages it has passed on.
    pub(crate) fn messages(&self) -> usize {
        self.shared.messages.load(Ordering::SeqCst)
    }
}

/// Passes messages on in both directions until one side hangs up or the connection is cut.
async fn connection(client: TcpStream, server: TcpStream, shared: Arc<Shared>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let end = Arc::new(Notify::new());
    let there = tokio::spawn(pass(from_client, to_server, true, Arc::clone(&shared), Arc::clone(&end)));
    let back = tokio::spawn(pass(from_server, to_client, false, shared, Arc::clone(&end)));
    end.notified().await;
    // Both halves of both connections are dropped: each side finds its connection closed.
    there.abort();
    back.abort();
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    greets: bool,
    shared: Arc<Shared>,
    end: Arc<Notify>,
) {
    let mut first = greets;
    loop {
        // The first message of a client has no type.
        let Some(message) = read(&mut from, std::mem::take(&mut first)).await else { break };
        let n = shared.messages.fetch_add(1, Ordering::SeqCst) + 1;
        let here = |at: usize| n >= at && !shared.is_cut.swap(true, Ordering::SeqCst);
        match shared.cut {
            Some(Cut::Request(at)) if here(at) => break,
            Some(Cut::Reply(at)) if here(at) => {
                let _ = to.write_all(&message).await;
                break;
            }
            Some(_) | None => {}
        }
        if to.write_all(&message).await.is_err() {
            break;
        }
    }
    end.notify_one();
}

/// Reads one message.
async fn read(from: &mut OwnedReadHalf, untyped: bool) -> Option<Vec<u8>> {
    let mut head = vec![0; if untyped { 4 } else { 5 }];
    from.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes(head[head.len() - 4..].try_into().unwrap()) as usize;
    let mut rest = vec![0; length - 4];
    from.read_exact(&mut rest).await.ok()?;
    head.extend(rest);
    Some(head)
}
