//! What a store's writer thread is given to do: verbs with their costs, and the replies that wait for the commit.

use crate::access::{Wants, WriteCost, WriteVerb};
use crate::engine::Engine;
use crate::engine::tables::Tables;
use crate::metrics;
use redrive_core::error::{CallError, StoreError, StoreErrorKind, StoreResult};
use redrive_core::metrics::Counter;
use redrive_core::time::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot};

/// Called with the result of the commit; sends the reply.
pub(crate) type Reply = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// Applies a job inside the commit. Returns its reply and, if the commit must not happen, the error.
pub(crate) type ApplyFn<T> = Box<dyn FnOnce(&mut Engine<T>, Time) -> (Reply, Option<StoreError>) + Send>;

/// A unit of work for the writer.
pub(crate) struct Job<T> {
    pub(crate) cost: WriteCost,
    /// Rows that the job will ask for.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "redis")),
        expect(dead_code, reason = "only stores on a network read ahead")
    )]
    pub(crate) wants: Wants,
    pub(crate) apply: ApplyFn<T>,
    /// Counts the job as waiting until it is dropped. `None` for long jobs, which nothing makes way for.
    pub(crate) waiting: Option<WaitingGuard>,
}

/// Counts one job as waiting for a commit for as long as it exists.
pub(crate) struct WaitingGuard(Arc<AtomicUsize>);

impl WaitingGuard {
    fn new(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(waiting))
    }
}

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sends a verb to the writer and waits until its commit is durable. `no_reply` says why the writer did not take it or
/// did not answer.
pub(crate) async fn commit<T: Tables + 'static>(
    jobs: &mpsc::Sender<Job<T>>,
    waiting: &Arc<AtomicUsize>,
    (cost, wants): (WriteCost, Wants),
    verb: WriteVerb<T>,
    no_reply: impl Fn() -> CallError,
) -> StoreResult<()> {
    let (reply, replied) = oneshot::channel();
    let apply = Box::new(move |engine: &mut Engine<T>, now: Time| {
        let before = engine.write_count();
        let result = verb(engine, now);
        let result = engine.forbid_refusal_after_write(before, result);
        let untouched = engine.write_count() == before;
        let aborts = match &result {
            // A damaged record fails only the call that needed it (I46).
            Err(CallError::Store(error)) if error.kind == StoreErrorKind::Damaged && untouched => None,
            Err(CallError::Store(error)) => Some(error.clone()),
            Ok(()) | Err(CallError::Refused(_)) => None,
        };
        let reply_after_commit: Reply = Box::new(move |committed: Result<(), StoreError>| {
            // If the caller has stopped waiting, the commit stands all the same.
            let _ = reply.send(committed.map_err(CallError::Store).and(result));
        });
        (reply_after_commit, aborts)
    });
    if jobs.capacity() == 0 {
        metrics::process().count(Counter::BackPressure, 1);
    }
    let waiting = (!cost.long).then(|| WaitingGuard::new(waiting));
    if jobs.send(Job { cost, wants, apply, waiting }).await.is_err() {
        return Err(no_reply());
    }
    replied.await.unwrap_or_else(|_| Err(no_reply()))
}
