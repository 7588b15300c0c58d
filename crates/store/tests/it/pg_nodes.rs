//! Several nodes on one store in PostgreSQL: every node answers, one of them holds the store, and another takes it over.

use redrive_core::dead_letter::Actor;
use redrive_core::error::{CallError, StoreErrorKind};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::message::{NewMessage, Payload};
use redrive_core::policy::QueuePolicy;
use redrive_core::query::Query;
use redrive_core::store::{LeaseRequest, Settle, Settlement, Store, VerifyRequest};
use redrive_core::time::Span;
use redrive_store::postgres::{NodeOptions, Options, join};
use redrive_testkit::ids::message_id;
use redrive_testkit::pg;
use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

async fn node(url: &str, name: &str) -> Arc<dyn Store> {
    let store = Options { node: name.into(), ..Options::default() };
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    join(url, NodeOptions { store, listen, ..NodeOptions::default() }).await.unwrap()
}

fn queue() -> QueueName {
    "work".parse().unwrap()
}

fn message(n: u64) -> NewMessage {
    let payload = Payload { bytes: n.to_string().into_bytes(), content_type: "text/plain".into() };
    NewMessage { key: Some(format!("key {n}")), ..NewMessage::new(message_id(n), queue(), payload) }
}

fn request(max: usize) -> LeaseRequest {
    LeaseRequest {
        queues: vec![queue()],
        max,
        lease_for: None,
        worker: "w".into(),
        version: None,
        host: None,
    }
}

async fn ids(store: &dyn Store) -> BTreeSet<MessageId> {
    let page = store.messages(Query::default()).await.unwrap();
    page.items.iter().map(|message| message.envelope.id).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_start_together_on_an_empty_database_share_one_store() {
    let url = pg::shared().schema();
    let starting = (0..6).map(|n| {
        let url = url.clone();
        tokio::spawn(async move { node(&url, &format!("node {n}")).await })
    });
    let starting: Vec<_> = starting.collect();
    let mut nodes = Vec::new();
    for start in starting {
        nodes.push(start.await.unwrap());
    }
    for (n, by) in (0..).zip(&nodes) {
        by.enqueue(vec![message(n)]).await.unwrap()[0].as_ref().unwrap();
    }
    assert_eq!(ids(nodes[0].as_ref()).await.len(), nodes.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_node_writes_every_node_reads_at_once() {
    let url = pg::shared().schema();
    let nodes = [node(&url, "a").await, node(&url, "b").await, node(&url, "c").await];
    let mut sent = BTreeSet::new();
    for n in 0..9 {
        let by = &nodes[n % 3];
        by.enqueue(vec![message(n as u64)]).await.unwrap()[0].as_ref().unwrap();
        sent.insert(message_id(n as u64));
        for reader in &nodes {
            assert_eq!(ids(reader.as_ref()).await, sent);
        }
    }
    let leased = nodes[2].lease(request(1)).await.unwrap();
    let acks = vec![Settlement { token: leased[0].token, what: Settle::Ack }];
    nodes[1].settle(acks).await.unwrap()[0].as_ref().unwrap();
    assert_eq!(ids(nodes[0].as_ref()).await.len(), 8);
    let actor = Actor::new("ada", "test");
    nodes[2]
        .configure(queue(), QueuePolicy { max_attempts: 7, ..QueuePolicy::default() }, actor)
        .await
        .unwrap();
    assert_eq!(nodes[1].queue(queue()).await.unwrap().policy.max_attempts, 7);
    let v = nodes[1].verify(VerifyRequest { deep: true, repair: false }).await.unwrap();
    assert!(v.is_clean(), "{:?}", v.findings);
}

/// Sends messages with keys until each is stored, whatever happens to the holder meanwhile.
async fn send_all(store: Arc<dyn Store>, numbers: std::ops::Range<u64>) {
    for n in numbers {
        // A call whose outcome is not known is repeated with its key.
        while let Err(error) = store.enqueue(vec![message(n)]).await {
            let CallError::Store(error) = error else { unreachable!("nothing is refused") };
            let passes = [StoreErrorKind::Unreachable, StoreErrorKind::NotHolder, StoreErrorKind::Undone];
            assert!(passes.contains(&error.kind) || error.kind == StoreErrorKind::Stopped, "{error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i45_when_the_holder_ends_another_node_goes_on_and_nothing_is_lost() {
    let url = pg::shared().schema();
    let holder = node(&url, "first").await;
    let others = [node(&url, "second").await, node(&url, "third").await];
    let senders: Vec<_> = (0..4)
        .map(|n| {
            let by = Arc::clone(&others[n % 2]);
            let first = 1_000 * n as u64;
            tokio::spawn(send_all(by, first..first + 60))
        })
        .collect();
    while ids(others[0].as_ref()).await.len() < 20 {
        tokio::task::yield_now().await;
    }
    drop(holder);
    for sender in senders {
        sender.await.unwrap();
    }
    // Each message is there once: a repeated call finds its key.
    let all: BTreeSet<MessageId> = (0..4).flat_map(|n| (1_000 * n..1_000 * n + 60).map(message_id)).collect();
    let mut there = BTreeSet::new();
    loop {
        let leased = others[1].lease(request(100)).await.unwrap();
        if leased.is_empty() {
            break;
        }
        for delivery in &leased {
            assert!(there.insert(delivery.message.envelope.id), "nothing is doubled");
        }
    }
    assert_eq!(there, all);
    assert!(!others[0].wait(vec![queue()], Span::from_millis(1)).await.unwrap(), "nothing is left to do");
    let v = others[0].verify(VerifyRequest { deep: true, repair: false }).await.unwrap();
    assert!(v.is_clean(), "{:?}", v.findings);
}
