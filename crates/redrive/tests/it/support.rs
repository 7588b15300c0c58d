//! What the tests share: stores, messages, and waiting for something to become true.

use redrive::core::backoff::Backoff;
use redrive::core::dead_letter::{Actor, DeadLetter};
use redrive::core::error::{Error, Refusal};
use redrive::core::message::{NewMessage, Payload};
use redrive::core::policy::QueuePolicy;
use redrive::core::query::Query;
use redrive::core::store::{Queue, Store};
use redrive::core::time::Span;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Long enough for a busy machine; nothing waits this long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A store on disk that vanishes with the test.
pub(crate) struct OnDisk {
    pub(crate) store: Arc<dyn Store>,
    _directory: tempfile::TempDir,
}

pub(crate) async fn on_disk() -> OnDisk {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("data");
    let store = redrive::open(&path, redrive::OpenOptions::default()).await.expect("a new store");
    OnDisk { store, _directory: directory }
}

/// Rules under which a failed message is tried again at once.
pub(crate) fn eager(max_attempts: u32) -> QueuePolicy {
    let backoff = Backoff { initial: Span::from_millis(1), cap: Span::from_millis(1), ..Backoff::default() };
    QueuePolicy { max_attempts, backoff, ..QueuePolicy::default() }
}

pub(crate) async fn configure(store: &Arc<dyn Store>, queue: &str, policy: QueuePolicy) {
    let actor = Actor::new("test", "library");
    store.configure(queue.parse().expect("a name"), policy, actor).await.expect("configured");
}

pub(crate) fn message(queue: &str, kind: &str, payload: &str) -> NewMessage {
    let payload = Payload { bytes: payload.into(), content_type: "application/json".into() };
    let mut message = NewMessage::new(redrive::new_id(), queue.parse().expect("a name"), payload);
    message.kind = kind.into();
    message
}

pub(crate) async fn enqueue(store: &Arc<dyn Store>, batch: Vec<NewMessage>) {
    for accepted in store.enqueue(batch).await.expect("the store answers") {
        accepted.expect("accepted");
    }
}

pub(crate) async fn queue(store: &Arc<dyn Store>, name: &str) -> Queue {
    store.queue(name.parse().expect("a name")).await.expect("the queue is there")
}

/// Every letter, with its history.
pub(crate) async fn letters(store: &Arc<dyn Store>) -> Vec<DeadLetter> {
    let page = store.letters(Query::default()).await.expect("a page");
    let mut all = Vec::new();
    for letter in page.items {
        all.push(store.letter(letter.message.envelope.id).await.expect("the letter"));
    }
    all
}

/// Work that takes this long.
pub(crate) async fn lasting(time: Duration) {
    let _over = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

/// Looks again and again until it is so.
pub(crate) async fn eventually<F: AsyncFnMut() -> bool>(what: &str, mut is_so: F) {
    let begun = Instant::now();
    let mut pause = tokio::time::interval(Duration::from_millis(5));
    while !is_so().await {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        pause.tick().await;
    }
}

/// Which field a refusal names.
pub(crate) fn field_of(error: Error) -> String {
    let Error::Refused(Refusal::Invalid { field, .. }) = error else {
        panic!("not a refusal that names a field: {error}");
    };
    field
}
