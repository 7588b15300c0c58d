//! How a backend runs the verbs of an engine: writes inside a commit, reads on a view of their own.

use crate::engine::Engine;
use crate::engine::requests::Once;
use crate::engine::tables::{Reads, Tables};
use crate::holder::Holder;
use async_trait::async_trait;
use redrive_core::audit::AuditKey;
use redrive_core::error::{StoreError, StoreErrorKind, StoreResult};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::store::StoreInfo;
use redrive_core::time::Time;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex, PoisonError};

/// What committing a write costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteCost {
    /// Whether it needs disk space: such writes are refused while the disk is full.
    pub(crate) grows: bool,
    /// Whether it may take long: such writes have a commit of their own, after those that wait.
    pub(crate) long: bool,
}

impl WriteCost {
    /// A write that needs disk space.
    pub(crate) const GROWS: Self = Self { grows: true, long: false };
    /// A write that needs next to no disk space, or frees some.
    pub(crate) const FREES: Self = Self { grows: false, long: false };

    /// The same cost for a write that may take long.
    pub(crate) const fn long(self) -> Self {
        Self { long: true, ..self }
    }
}

/// Rows that a write will ask for. A store on a network reads those of a whole group at once; the others ignore it.
#[derive(Clone, Debug, Default)]
#[cfg_attr(
    not(any(feature = "postgres", feature = "redis")),
    expect(dead_code, reason = "only stores on a network read ahead")
)]
pub(crate) struct Wants {
    /// Messages that may be live.
    pub(crate) messages: Vec<MessageId>,
    /// Messages that may be dead letters.
    pub(crate) letters: Vec<MessageId>,
    /// Idempotency keys.
    pub(crate) keys: Vec<(QueueName, String)>,
    /// The messages that a lease from these queues would take, up to this many.
    pub(crate) lease: Option<(Vec<QueueName>, usize)>,
}

impl Wants {
    /// Messages of which it is not known whether they are live or dead.
    pub(crate) fn ids(ids: impl Iterator<Item = MessageId>) -> Self {
        let messages: Vec<MessageId> = ids.collect();
        Self { letters: messages.clone(), messages, ..Self::default() }
    }
}

/// A write without the type of its result, so that the code around a commit is compiled once and not for every verb.
pub(crate) type WriteVerb<T> = Box<dyn FnOnce(&mut Engine<T>, Time) -> StoreResult<()> + Send>;
/// A read without the type of its result.
pub(crate) type ReadVerb = Box<dyn FnOnce(&dyn Reads, Time) -> StoreResult<()> + Send>;

/// How a backend runs verbs: writes inside a commit, reads on a view of their own.
#[async_trait]
pub(crate) trait Access: Send + Sync + 'static {
    type Tables: Tables + 'static;

    /// Runs a write inside a commit and returns when the commit is durable.
    async fn commit(&self, cost: WriteCost, wants: Wants, verb: WriteVerb<Self::Tables>) -> StoreResult<()>;

    /// Runs a read on a consistent view.
    async fn view(&self, verb: ReadVerb) -> StoreResult<()>;

    /// Runs a write inside a commit and returns its result when the commit is durable.
    fn write<R, F>(&self, cost: WriteCost, verb: F) -> impl Future<Output = StoreResult<R>> + Send
    where
        R: Send + 'static,
        F: FnOnce(&mut Engine<Self::Tables>, Time) -> StoreResult<R> + Send + 'static,
    {
        self.write_wanting(cost, Wants::default(), verb)
    }

    /// Like [`Access::write`], for a write that knows which rows it will ask for.
    fn write_wanting<R, F>(
        &self,
        cost: WriteCost,
        wants: Wants,
        verb: F,
    ) -> impl Future<Output = StoreResult<R>> + Send
    where
        R: Send + 'static,
        F: FnOnce(&mut Engine<Self::Tables>, Time) -> StoreResult<R> + Send + 'static,
    {
        let (slot, result) = ResultSlot::new();
        let commit = self.commit(cost, wants, Box::new(move |engine, now| slot.fill(verb(engine, now))));
        async move {
            commit.await?;
            result.take()
        }
    }

    /// Runs a write that is carried out once for each request key. A repetition returns the recorded result.
    fn once<R, F>(
        &self,
        once: Option<Once>,
        cost: WriteCost,
        verb: F,
    ) -> impl Future<Output = StoreResult<R>> + Send
    where
        R: Serialize + DeserializeOwned + Send + 'static,
        F: FnOnce(&mut Engine<Self::Tables>, Time) -> StoreResult<R> + Send + 'static,
    {
        self.write(cost, move |engine, now| engine.once(once.as_ref(), now, |engine| verb(engine, now)))
    }

    /// Runs a read on a consistent view and returns its result.
    fn read<R, F>(&self, verb: F) -> impl Future<Output = StoreResult<R>> + Send
    where
        R: Send + 'static,
        F: FnOnce(&dyn Reads, Time) -> StoreResult<R> + Send + 'static,
    {
        let (slot, result) = ResultSlot::new();
        let view = self.view(Box::new(move |tables, now| slot.fill(verb(tables, now))));
        async move {
            view.await?;
            result.take()
        }
    }

    /// What this process remembers beside the store.
    fn holder(&self) -> &Arc<Holder>;
    fn now(&self) -> Time;
    fn audit_key(&self) -> AuditKey;
    fn describe(&self) -> StoreInfo;
    async fn copy_to(&self, target: String) -> StoreResult<u64>;
}

/// Where a verb leaves its result for the caller that waits for it.
struct ResultSlot<R>(Arc<Mutex<Option<R>>>);

impl<R> ResultSlot<R> {
    fn new() -> (Self, Self) {
        let slot = Arc::new(Mutex::new(None));
        (Self(Arc::clone(&slot)), Self(slot))
    }

    fn fill(&self, result: StoreResult<R>) -> StoreResult<()> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(result?);
        Ok(())
    }

    fn take(&self) -> StoreResult<R> {
        let result = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let lost = || StoreError::new(StoreErrorKind::Stopped, "the result of a call to the store was lost");
        Ok(result.ok_or_else(lost)?)
    }
}
