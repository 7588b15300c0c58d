//! What the tests of the loops share: messages, deaths, and waiting for something to become true.

use redrive::core::dead_letter::{Actor, DeadLetter, Status};
use redrive::core::failure::{ErrorInfo, FailureReport};
use redrive::core::ids::{MessageId, QueueName};
use redrive::core::message::{Delivery, NewMessage, Payload};
use redrive::core::policy::Override;
use redrive::core::query::{PageRequest, Query};
use redrive::core::store::{LeaseRequest, Settle, Settlement, Store};
use redrive::core::time::Span;
use std::future::Future;
use std::time::Duration;

pub(crate) use crate::support::{PATIENCE, memory};

pub(crate) fn name(text: &str) -> QueueName {
    text.parse().expect("a queue name")
}

pub(crate) fn me() -> Actor {
    Actor::new("tester", "library")
}

pub(crate) fn message(queue: &str, payload: &serde_json::Value) -> NewMessage {
    NewMessage::new(redrive::new_id(), name(queue), Payload::json(payload).expect("json"))
}

pub(crate) async fn send(store: &dyn Store, new: NewMessage) -> MessageId {
    store.enqueue(vec![new]).await.expect("enqueue").remove(0).expect("accepted").id
}

/// Leases a message, for longer than any test takes.
pub(crate) async fn take(store: &dyn Store, queue: &str) -> Delivery {
    let lease_for = Some(Span::from_hours(1));
    let request = LeaseRequest {
        queues: vec![name(queue)],
        max: 1,
        lease_for,
        worker: "t".into(),
        ..LeaseRequest::default()
    };
    store.lease(request).await.expect("lease").pop().expect("work")
}

/// Ends the next message of a queue as a dead letter with this error.
pub(crate) async fn bury(store: &dyn Store, queue: &str, error_type: &str) -> MessageId {
    let delivery = take(store, queue).await;
    let error =
        ErrorInfo { error_type: error_type.into(), message: "it broke".into(), ..ErrorInfo::default() };
    let failure = Box::new(FailureReport { error, ..FailureReport::default() }.analyse());
    let what = Settle::Fail { failure, policy_override: Some(Override::DeadLetter) };
    let settled = store.settle(vec![Settlement { token: delivery.token, what }]).await.expect("settle");
    settled.into_iter().next().expect("one").expect("held").id
}

/// Sends a message and buries it.
pub(crate) async fn dead(store: &dyn Store, queue: &str, payload: &serde_json::Value) -> MessageId {
    send(store, message(queue, payload)).await;
    bury(store, queue, "Broken").await
}

pub(crate) async fn status(store: &dyn Store, id: MessageId) -> Status {
    store.letter(id).await.expect("a letter").record.status
}

pub(crate) async fn all_letters(store: &dyn Store) -> Vec<DeadLetter> {
    let query = Query { page: PageRequest::first(1_000), ..Query::default() };
    store.letters(query).await.expect("letters").items
}

/// Waits until it is so; fails when it takes absurdly long.
pub(crate) async fn until<F, Fut>(what: &str, mut so: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let end = tokio::time::Instant::now() + PATIENCE;
    let mut tick = tokio::time::interval(Duration::from_millis(10));
    while !so().await {
        assert!(tokio::time::Instant::now() < end, "waited in vain: {what}");
        tick.tick().await;
    }
}
