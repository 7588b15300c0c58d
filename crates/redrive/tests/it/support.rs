//! What the tests share: stores, messages, and waiting for something to become true.

use redrive::core::backoff::Backoff;
use redrive::core::dead_letter::{Actor, DeadLetter};
use redrive::core::error::{CallError, Refusal};
use redrive::core::message::{NewMessage, Payload};
use redrive::core::policy::QueuePolicy;
use redrive::core::query::Query;
use redrive::core::store::{Queue, Store};
use redrive::core::time::{Clock, Span, Time};
use redrive::store::entropy::System;
use redrive::store::memory::MemoryStore;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long anything may take before the test has failed. Only a hang takes this long, however busy the machine is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// The runtime's own clock: it stands still, or jumps, as the paused time of a test does.
struct RuntimeClock(Instant);

impl Clock for RuntimeClock {
    fn now(&self) -> Time {
        let elapsed = i64::try_from(self.0.elapsed().as_millis()).unwrap();
        Time::from_millis(1_800_000_000_000 + elapsed)
    }
}

pub(crate) fn runtime_clock() -> Arc<dyn Clock> {
    Arc::new(RuntimeClock(Instant::now()))
}

/// A store in memory on this clock.
pub(crate) fn memory_on(clock: &Arc<dyn Clock>) -> Arc<dyn Store> {
    Arc::new(MemoryStore::with(clock.clone(), Arc::new(System)))
}

/// A store in memory whose leases and delays follow the runtime's clock, paused or not.
pub(crate) fn memory() -> Arc<dyn Store> {
    memory_on(&runtime_clock())
}

/// The runtime's clock, stopped: it moves only when the test moves it. A paused clock alone jumps to the next timer
/// whenever all tasks wait, also when they wait for a process, a socket or a disk.
pub(crate) struct StoppedClock {
    _running: std::sync::mpsc::Sender<()>,
}

impl StoppedClock {
    /// Stops the clock until this is dropped.
    pub(crate) fn new() -> Self {
        tokio::time::pause();
        let (running, ended) = std::sync::mpsc::channel::<()>();
        // The runtime never moves its clock by itself while a blocking task runs.
        tokio::task::spawn_blocking(move || ended.recv());
        Self { _running: running }
    }

    /// Moves the clock, and lets everybody act whose time has come. Timers tick in whole milliseconds, so it moves one
    /// more.
    pub(crate) async fn advance(&self, time: Duration) {
        tokio::time::advance(time + Duration::from_millis(1)).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// Looks again and again until it is so, while no time passes.
    pub(crate) async fn eventually<F: AsyncFnMut() -> bool>(&self, what: &str, mut is_so: F) {
        let begun = std::time::Instant::now();
        while !is_so().await {
            assert!(begun.elapsed() < PATIENCE, "never: {what}");
            tokio::task::yield_now().await;
        }
    }
}

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

/// Work that takes this long on a paused clock. On a running one it would make the test wait, and panics.
pub(crate) async fn virtual_time(time: Duration) {
    tokio::time::advance(Duration::ZERO).await;
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
pub(crate) fn field_of(error: CallError) -> String {
    let CallError::Refused(Refusal::Invalid { field, .. }) = error else {
        panic!("not a refusal that names a field: {error}");
    };
    field
}
