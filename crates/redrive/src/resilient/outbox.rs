//! The buffer of captured operations that are still to be written to the store: ordered and bounded, and its state is
//! public. One task writes them batch by batch, and retries with a growing delay while the store cannot be written. An
//! operation leaves the buffer only when the store has it. An operation that does not fit is counted and logged.

use super::failed::CaptureStatus;
use crate::metrics::{Counter, Gauge, process};
use redrive_core::backoff::{Backoff, Growth, Jitter, JitterSeed};
use redrive_core::dead_letter::{Actor, Captured};
use redrive_core::error::{CallError, Refusal};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::limits;
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{BatchResults, Store};
use redrive_core::time::{Clock, Span, Time};
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// The state of an executor's captured operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutboxState {
    /// Operations in memory that are still to be written.
    pub buffered: usize,
    /// Roughly how many bytes they take.
    pub bytes: usize,
    /// Since when writing fails. `None` if it does not.
    pub since: Option<Time>,
    /// The last error of the store.
    pub last_error: Option<String>,
    /// Operations written since the executor was built.
    pub stored: u64,
    /// Operations lost because the buffer was full, since the executor was built.
    pub dropped: u64,
    /// Calls whose future was dropped before they ended, since the executor was built. They are not captured.
    pub withdrawn: u64,
}

/// The capacity of the buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct BufferLimits {
    pub(super) operations: usize,
    pub(super) bytes: usize,
}

impl Default for BufferLimits {
    fn default() -> Self {
        Self { operations: limits::CAPTURED_MAX, bytes: limits::CAPTURED_BYTES_MAX }
    }
}

struct Item {
    captured: Arc<Captured>,
    size: usize,
    on_stored: Option<oneshot::Sender<CaptureStatus>>,
}

impl Item {
    fn id(&self) -> MessageId {
        self.captured.message.id
    }

    fn tell(&mut self, capture: CaptureStatus) {
        if let Some(on_stored) = self.on_stored.take() {
            // The caller may have gone; the letter is stored all the same.
            let _ = on_stored.send(capture);
        }
    }
}

#[derive(Default)]
struct Buffer {
    waiting: VecDeque<Item>,
    bytes: usize,
    /// A writer task runs.
    writing: bool,
    /// The last write failed as a whole.
    failing: bool,
    /// [`Outbox::drain`] waits until everything is written.
    draining: bool,
    failed_writes: u32,
    since: Option<Time>,
    last_error: Option<String>,
    stored: u64,
    dropped: u64,
}

/// The buffer, and what is needed to write it to the store.
pub(super) struct Outbox {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    actor: Actor,
    capacity: BufferLimits,
    buffer: Mutex<Buffer>,
    changed: Notify,
    write_now: Notify,
}

/// The result of handing an operation to the outbox.
pub(super) enum Accepted {
    /// It is being written; the receiver gets the result.
    Writing(oneshot::Receiver<CaptureStatus>),
    /// It is buffered or dropped.
    Settled(CaptureStatus),
}

/// How long the store may take for one batch before the write counts as failed.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest delay between retries while [`Outbox::drain`] waits.
const DRAIN_RETRY: Span = Span::from_millis(100);

/// How long to wait after this number of failed writes in a row.
fn delay(failed_writes: u32, jitter_seed: JitterSeed) -> Span {
    let backoff = Backoff {
        initial: Span::from_millis(250),
        cap: Span::from_secs(30),
        floor: Span::from_millis(100),
        growth: Growth::Exponential { multiplier: 2.0 },
        jitter: Jitter::Equal,
    };
    backoff.delay(failed_writes, None, None, jitter_seed)
}

impl Outbox {
    pub(super) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        actor: Actor,
        capacity: BufferLimits,
    ) -> Self {
        let (buffer, changed, write_now) = (Mutex::default(), Notify::new(), Notify::new());
        Self { store, clock, actor, capacity, buffer, changed, write_now }
    }

    fn buffer(&self) -> MutexGuard<'_, Buffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self, withdrawn: u64) -> OutboxState {
        let buffer = self.buffer();
        OutboxState {
            buffered: buffer.waiting.len(),
            bytes: buffer.bytes,
            since: buffer.since,
            last_error: buffer.last_error.clone(),
            stored: buffer.stored,
            dropped: buffer.dropped,
            withdrawn,
        }
    }

    /// Takes in an operation without waiting. From here on the operation does not depend on its caller.
    pub(super) fn accept(self: &Arc<Self>, captured: Captured) -> Accepted {
        let (id, size) = (captured.message.id, captured.size());
        let mut buffer = self.buffer();
        if buffer.waiting.len() >= self.capacity.operations || buffer.bytes + size > self.capacity.bytes {
            buffer.dropped += 1;
            process().count(Counter::CapturedDropped, 1);
            let (dropped, why) = (buffer.dropped, buffer.last_error.clone());
            drop(buffer);
            tracing::error!(
                id = %id, queue = %captured.message.queue, kind = %captured.message.kind, dropped,
                store_error = why.as_deref().unwrap_or("none yet"),
                "a failed operation is lost: the store cannot be written and the buffer in memory is full"
            );
            return Accepted::Settled(CaptureStatus::Dropped(id));
        }
        buffer.bytes += size;
        process().raise(Gauge::CapturedBuffered, 1);
        let (sender, receiver) = oneshot::channel();
        let failing = buffer.failing;
        let sender = (!failing).then_some(sender);
        buffer.waiting.push_back(Item { captured: Arc::new(captured), size, on_stored: sender });
        drop(buffer);
        self.start();
        if failing {
            return Accepted::Settled(CaptureStatus::Buffered(id));
        }
        self.write_now.notify_one();
        Accepted::Writing(receiver)
    }

    /// Starts the writer task if there is something to write and no task runs.
    fn start(self: &Arc<Self>) {
        // Outside a runtime the operation stays in memory until the next one is accepted inside a runtime.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut buffer = self.buffer();
        if !buffer.writing && !buffer.waiting.is_empty() {
            buffer.writing = true;
            runtime.spawn(WriterTask { outbox: self.clone(), finished: false }.run());
        }
    }

    /// The first waiting operations, as many as fit into one commit. If there are none, the writer task ends.
    fn batch(&self, task: &mut WriterTask) -> Vec<Arc<Captured>> {
        let mut buffer = self.buffer();
        let mut bytes = 0;
        let fits = |item: &&Item| {
            bytes += item.size;
            bytes == item.size || bytes <= limits::CAPTURED_BATCH_BYTES_MAX
        };
        let batch: Vec<Arc<Captured>> = buffer
            .waiting
            .iter()
            .take(limits::CAPTURED_BATCH_MAX)
            .take_while(fits)
            .map(|item| item.captured.clone())
            .collect();
        if batch.is_empty() {
            // Still under the lock, so that an operation that is accepted next starts a new writer task.
            (buffer.writing, task.finished) = (false, true);
        }
        batch
    }

    /// Writes a batch as letters, each by the policy of its queue.
    async fn write(&self, batch: &[Arc<Captured>]) -> Result<BatchResults<MessageId>, CallError> {
        let mut rules: BTreeMap<&QueueName, QueuePolicy> = BTreeMap::new();
        for captured in batch {
            let name = &captured.message.queue;
            if !rules.contains_key(name) {
                let found = match self.store.queue(name.clone()).await {
                    Ok(queue) => queue.policy,
                    Err(CallError::Refused(Refusal::NoSuchQueue { .. })) => QueuePolicy::default(),
                    Err(error) => return Err(error),
                };
                rules.insert(name, found);
            }
        }
        let letters = batch
            .iter()
            .filter_map(|captured| rules.get(&captured.message.queue).map(|policy| captured.letter(policy)));
        self.store.import(letters.collect(), self.actor.clone()).await
    }

    async fn write_in_time(&self, batch: &[Arc<Captured>]) -> Result<BatchResults<MessageId>, String> {
        match tokio::time::timeout(STORE_TIMEOUT, self.write(batch)).await {
            Ok(written) => written.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the store did not answer within {} s", STORE_TIMEOUT.as_secs())),
        }
    }

    /// Records the result of a write. Returns how long to wait before the next one.
    fn on_written(
        &self,
        batch: &[Arc<Captured>],
        written: Result<BatchResults<MessageId>, String>,
    ) -> Option<Span> {
        let mut buffer = self.buffer();
        match written {
            Ok(results) => buffer.on_written(results),
            Err(error) => buffer.on_store_error(error),
        }
        let refused = buffer.last_error.is_some();
        if refused {
            buffer.failed_writes = buffer.failed_writes.saturating_add(1);
            if buffer.since.is_none() {
                buffer.since = Some(self.clock.now());
                tracing::warn!(
                    buffered = buffer.waiting.len(),
                    bytes = buffer.bytes,
                    store_error = buffer.last_error.as_deref().unwrap_or_default(),
                    "failed operations wait in memory: the store cannot be written"
                );
            }
        } else {
            buffer.failed_writes = 0;
            if let Some(since) = buffer.since.take() {
                let waited_ms = self.clock.now().since(since).as_millis();
                tracing::info!(waited_ms, "failed operations can be written to the store again");
            }
        }
        let jitter_seed = batch
            .first()
            .map_or(JitterSeed(0), |first| JitterSeed::of(first.message.id, buffer.failed_writes));
        let wait = delay(buffer.failed_writes, jitter_seed);
        let wait = if buffer.draining { wait.min(DRAIN_RETRY) } else { wait };
        drop(buffer);
        self.changed.notify_waiters();
        refused.then_some(wait)
    }

    /// Writes everything in the buffer. Returns when it is empty or `grace` is over.
    pub(super) async fn drain(self: &Arc<Self>, grace: Duration) {
        self.buffer().draining = true;
        self.start();
        self.write_now.notify_one();
        let empty = async {
            loop {
                let mut changed = pin!(self.changed.notified());
                changed.as_mut().enable();
                if self.buffer().waiting.is_empty() {
                    return;
                }
                changed.await;
            }
        };
        // After a timeout, the state shows what is left.
        let _ = tokio::time::timeout(grace, empty).await;
        self.buffer().draining = false;
    }
}

impl Buffer {
    /// Each operation of the batch was stored or refused. An id conflict means that an earlier write, whose answer was
    /// lost, has stored it. Refused operations go to the end, so that they do not block the others.
    fn on_written(&mut self, results: BatchResults<MessageId>) {
        self.failing = false;
        self.last_error = None;
        for result in results {
            let Some(mut item) = self.waiting.pop_front() else { return };
            match result {
                Ok(_) | Err(Refusal::IdConflict { .. }) => {
                    self.bytes -= item.size;
                    process().lower(Gauge::CapturedBuffered, 1);
                    self.stored += 1;
                    item.tell(CaptureStatus::Stored(item.id()));
                }
                Err(refusal) => {
                    self.last_error = Some(refusal.to_string());
                    item.tell(CaptureStatus::Buffered(item.id()));
                    self.waiting.push_back(item);
                }
            }
        }
    }

    /// The write failed as a whole. Callers stop waiting for it.
    fn on_store_error(&mut self, error: String) {
        self.failing = true;
        self.last_error = Some(error);
        for item in &mut self.waiting {
            item.tell(CaptureStatus::Buffered(item.id()));
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.waiting.is_empty() {
            process().lower(Gauge::CapturedBuffered, self.waiting.len() as u64);
            tracing::error!(
                operations = self.waiting.len(),
                store_error = self.last_error.as_deref().unwrap_or("none"),
                "failed operations are lost: the process ends before they could be written to the store"
            );
        }
    }
}

/// The one task that writes. HandlerEnd before its time, for instance with its runtime, it makes room for another.
struct WriterTask {
    outbox: Arc<Outbox>,
    /// The task ended by itself and has cleared `writing`.
    finished: bool,
}

impl WriterTask {
    async fn run(mut self) {
        let outbox = self.outbox.clone();
        loop {
            let batch = outbox.batch(&mut self);
            if batch.is_empty() {
                return;
            }
            let written = outbox.write_in_time(&batch).await;
            if let Some(wait) = outbox.on_written(&batch, written) {
                tokio::select! {
                    () = tokio::time::sleep(wait.to_std()) => {}
                    () = outbox.write_now.notified() => {}
                }
            }
        }
    }
}

impl Drop for WriterTask {
    fn drop(&mut self) {
        if !self.finished {
            self.outbox.buffer().writing = false;
        }
    }
}
