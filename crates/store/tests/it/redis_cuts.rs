//! A store in Redis whose connection is cut at every command of a workload, before the command arrives or before its reply
//! does: whoever got an answer got the truth.

use redrive_core::dead_letter::Actor;
use redrive_core::error::{CallError, StoreErrorKind};
use redrive_core::failure::FailureReport;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::message::{NewMessage, Payload};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{
    LeaseRequest, Letters as _, Settle, Settlement, Store as _, VerifyRequest, Work as _,
};
use redrive_store::redis::{Options, RedisStore};
use redrive_testkit::redis::shared;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Where the connection is cut, once.
#[derive(Debug)]
struct Cut {
    /// How many more parcels reach the server before the cut.
    left: AtomicI64,
    /// Whether the parcel itself still arrives and only its reply is lost.
    loses_reply: bool,
    swallow: AtomicBool,
    happened: AtomicBool,
}

impl Cut {
    async fn to_server(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Option<()> {
        let mut parcel = vec![0; 1 << 16];
        loop {
            let size = from.read(&mut parcel).await.ok().filter(|size| *size > 0)?;
            if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.happened.store(true, Ordering::SeqCst);
                self.swallow.store(self.loses_reply, Ordering::SeqCst);
                if !self.loses_reply {
                    return None;
                }
            }
            to.write_all(&parcel[..size]).await.ok()?;
        }
    }

    async fn to_client(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> Option<()> {
        let mut parcel = vec![0; 1 << 16];
        loop {
            let size = from.read(&mut parcel).await.ok().filter(|size| *size > 0)?;
            if self.swallow.swap(false, Ordering::SeqCst) {
                return None;
            }
            to.write_all(&parcel[..size]).await.ok()?;
        }
    }

    /// Stands between a store and its server. Returns the port to connect to.
    async fn stand_before(self: Arc<Self>, server: u16) -> u16 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await.unwrap();
                let cut = Arc::clone(&self);
                tokio::spawn(async move {
                    let ((client_in, client_out), (server_in, server_out)) =
                        (client.into_split(), server.into_split());
                    tokio::select! {
                        _ = cut.to_server(client_in, server_out) => {}
                        _ = cut.to_client(server_in, client_out) => {}
                    }
                });
            }
        });
        port
    }
}

fn q() -> QueueName {
    "q".parse().unwrap()
}

/// The result of a call, or `None` if it says that the connection was lost.
fn unless_lost<T>(result: Result<T, CallError>) -> Option<Result<T, CallError>> {
    match result {
        Err(CallError::Store(error)) => {
            assert!(matches!(error.kind, StoreErrorKind::Undone | StoreErrorKind::Unreachable), "{error:?}");
            None
        }
        result => Some(result),
    }
}

/// Whether the message is live. There is only one cut, so the second read gets through.
async fn is_live(store: &RedisStore, id: MessageId) -> bool {
    match unless_lost(store.message(id).await) {
        Some(result) => result.is_ok(),
        None => store.message(id).await.is_ok(),
    }
}

/// Enqueues, leases, acknowledges and buries. Everything that is answered is checked at once.
async fn work(store: &RedisStore) {
    let policy = || store.configure(q(), QueuePolicy::default(), Actor::new("test", "test"));
    if unless_lost(policy().await).is_none() {
        policy().await.unwrap();
    }
    for _ in 0..4 {
        let new = NewMessage::new(redrive_store::new_id(), q(), Payload::json("x").unwrap());
        if unless_lost(store.enqueue(vec![new.clone()]).await).is_none() {
            assert!(!is_live(store, new.id).await, "the call failed and the message is there");
            store.enqueue(vec![new.clone()]).await.unwrap().remove(0).unwrap();
        }
        assert!(is_live(store, new.id).await, "the call succeeded and the message is gone");
    }
    for n in 0..4 {
        let request =
            || LeaseRequest { queues: vec![q()], max: 1, worker: "w".into(), ..LeaseRequest::default() };
        // If the answer to a lease is lost after its commit, its message stays leased until its time is over.
        let leased = match unless_lost(store.lease(request()).await) {
            Some(leased) => leased.unwrap(),
            None => store.lease(request()).await.unwrap(),
        };
        let Some(delivery) = leased.into_iter().next() else { continue };
        let id = delivery.token.id;
        let settle = || {
            let failure = Box::new(FailureReport { permanent: true, ..FailureReport::default() }.analyse());
            let fail = Settle::Fail { failure, policy_override: None };
            let what = if n % 2 == 0 { Settle::Ack } else { fail };
            store.settle(vec![Settlement { token: delivery.token, what }])
        };
        if unless_lost(settle().await).is_none() {
            assert!(is_live(store, id).await, "the call failed and the message is settled");
            settle().await.unwrap().remove(0).unwrap();
        }
        assert!(!is_live(store, id).await, "the call succeeded and the message is live");
        let letter = match unless_lost(store.letter(id).await) {
            Some(letter) => letter,
            None => store.letter(id).await,
        };
        assert_eq!(letter.is_ok(), n % 2 == 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_true_wherever_the_connection_is_cut() {
    let server = shared();
    for loses_reply in [false, true] {
        for place in 1.. {
            let cut = Arc::new(Cut {
                left: AtomicI64::new(i64::MAX),
                loses_reply,
                swallow: AtomicBool::new(false),
                happened: AtomicBool::new(false),
            });
            let port = Arc::clone(&cut).stand_before(server.port()).await;
            let url = server.prefix().replace(&format!(":{}/", server.port()), &format!(":{port}/"));
            let store = RedisStore::open(&url, Options::default()).await.unwrap();
            cut.left.store(place, Ordering::SeqCst);
            work(&store).await;
            if !cut.happened.load(Ordering::SeqCst) {
                println!("{} cuts, loses_reply {loses_reply}", place - 1);
                assert!(place > 20, "the workload has more commands than that");
                break;
            }
            let found = store.verify(VerifyRequest { deep: true, repair: false }).await.unwrap();
            assert_eq!(found.findings, Vec::new(), "cut at {place}, loses_reply {loses_reply}");
        }
    }
}
