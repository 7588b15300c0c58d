//! Where captured operations wait to be written: in order, bounded, seen by everybody. One task writes them while
//! there are any, batch by batch, and tries again with a growing delay while the store cannot be written. An
//! operation leaves only when the store has it; whatever is not let in for want of room is counted and logged.

use super::failed::Kept;
use redrive_core::backoff::{Backoff, Growth, Jitter, Roll};
use redrive_core::dead_letter::{Actor, Captured};
use redrive_core::error::{Error, Refusal};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::limits;
use redrive_core::metrics::{Counter, Gauge, process};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{Each, Store};
use redrive_core::time::{Clock, Span, Time};
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// How the operations stand that failed and are to be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Operations in memory, to be written.
    pub buffered: usize,
    /// Roughly the bytes they take.
    pub bytes: usize,
    /// Since when the store has refused them; nothing when it takes them.
    pub since: Option<Time>,
    /// What it said last.
    pub last_error: Option<String>,
    /// Operations written, ever.
    pub stored: u64,
    /// Operations lost because there was no room for them, ever.
    pub dropped: u64,
    /// Calls whose caller went away before they ended, ever. Nothing is kept of them.
    pub withdrawn: u64,
}

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) operations: usize,
    pub(super) bytes: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { operations: limits::CAPTURED_MAX, bytes: limits::CAPTURED_BYTES_MAX }
    }
}

struct Item {
    captured: Arc<Captured>,
    size: usize,
    told: Option<oneshot::Sender<Kept>>,
}

impl Item {
    fn id(&self) -> MessageId {
        self.captured.message.id
    }

    fn tell(&mut self, kept: Kept) {
        if let Some(told) = self.told.take() {
            // Nobody is there when the caller has gone; the letter does not need it.
            let _ = told.send(kept);
        }
    }
}

#[derive(Default)]
struct Inside {
    waiting: VecDeque<Item>,
    bytes: usize,
    /// A task is writing.
    writing: bool,
    /// The store itself failed last time.
    failing: bool,
    /// Somebody waits for all of it to be written.
    draining: bool,
    rounds_failed: u32,
    since: Option<Time>,
    last_error: Option<String>,
    stored: u64,
    dropped: u64,
}

/// The operations that wait, and who writes them.
pub(super) struct Outbox {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    actor: Actor,
    room: Room,
    inside: Mutex<Inside>,
    changed: Notify,
    hurry: Notify,
}

/// What became of an operation that was handed in.
pub(super) enum Accepted {
    /// It is being written; this is told how that ends.
    Writing(oneshot::Receiver<Kept>),
    /// This, for now.
    Settled(Kept),
}

/// How long the store may take for one batch before it counts as failed.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is tried while somebody waits for the end.
const DRAINING: Span = Span::from_millis(100);

/// How long to wait after so many failed rounds.
fn delay(rounds: u32, roll: Roll) -> Span {
    let backoff = Backoff {
        initial: Span::from_millis(250),
        cap: Span::from_secs(30),
        floor: Span::from_millis(100),
        growth: Growth::Exponential { multiplier: 2.0 },
        jitter: Jitter::Equal,
    };
    backoff.delay(rounds, None, None, roll)
}

impl Outbox {
    pub(super) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, actor: Actor, room: Room) -> Self {
        let (inside, changed, hurry) = (Mutex::default(), Notify::new(), Notify::new());
        Self { store, clock, actor, room, inside, changed, hurry }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self, withdrawn: u64) -> State {
        let inside = self.inside();
        State {
            buffered: inside.waiting.len(),
            bytes: inside.bytes,
            since: inside.since,
            last_error: inside.last_error.clone(),
            stored: inside.stored,
            dropped: inside.dropped,
            withdrawn,
        }
    }

    /// Takes an operation in, at once and without waiting: from here on it does not depend on its caller.
    pub(super) fn accept(self: &Arc<Self>, captured: Captured) -> Accepted {
        let (id, size) = (captured.message.id, captured.size());
        let mut inside = self.inside();
        if inside.waiting.len() >= self.room.operations || inside.bytes + size > self.room.bytes {
            inside.dropped += 1;
            process().count(Counter::CapturedDropped, 1);
            let (dropped, why) = (inside.dropped, inside.last_error.clone());
            drop(inside);
            tracing::error!(
                id = %id, queue = %captured.message.queue, kind = %captured.message.kind, dropped,
                store_error = why.as_deref().unwrap_or("none yet"),
                "a failed operation is lost: the store cannot be written and there is no room in memory"
            );
            return Accepted::Settled(Kept::Dropped(id));
        }
        inside.bytes += size;
        process().raise(Gauge::CapturedBuffered, 1);
        let (tell, told) = oneshot::channel();
        let failing = inside.failing;
        let tell = (!failing).then_some(tell);
        inside.waiting.push_back(Item { captured: Arc::new(captured), size, told: tell });
        drop(inside);
        self.start();
        if failing {
            return Accepted::Settled(Kept::Buffered(id));
        }
        self.hurry.notify_one();
        Accepted::Writing(told)
    }

    /// Sees to it that somebody writes while there is something to write.
    fn start(self: &Arc<Self>) {
        // Without a runtime it stays in memory until the next one comes along inside one.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut inside = self.inside();
        if !inside.writing && !inside.waiting.is_empty() {
            inside.writing = true;
            runtime.spawn(Turn { outbox: self.clone(), over: false }.write());
        }
    }

    /// The first operations that wait, as many as go into one commit; none ends the turn.
    fn batch(&self, turn: &mut Turn) -> Vec<Arc<Captured>> {
        let mut inside = self.inside();
        let mut bytes = 0;
        let fits = |item: &&Item| {
            bytes += item.size;
            bytes == item.size || bytes <= limits::CAPTURED_BATCH_BYTES_MAX
        };
        let batch: Vec<Arc<Captured>> = inside
            .waiting
            .iter()
            .take(limits::CAPTURED_BATCH_MAX)
            .take_while(fits)
            .map(|item| item.captured.clone())
            .collect();
        if batch.is_empty() {
            // In the same breath, so that whoever comes now starts a new turn.
            (inside.writing, turn.over) = (false, true);
        }
        batch
    }

    /// Files a batch as letters, each by the rules of its queue.
    async fn file(&self, batch: &[Arc<Captured>]) -> Result<Each<MessageId>, Error> {
        let mut rules: BTreeMap<&QueueName, QueuePolicy> = BTreeMap::new();
        for captured in batch {
            let name = &captured.message.queue;
            if !rules.contains_key(name) {
                let found = match self.store.queue(name.clone()).await {
                    Ok(queue) => queue.policy,
                    Err(Error::Refused(Refusal::NoSuchQueue { .. })) => QueuePolicy::default(),
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

    async fn file_in_time(&self, batch: &[Arc<Captured>]) -> Result<Each<MessageId>, String> {
        match tokio::time::timeout(PATIENCE, self.file(batch)).await {
            Ok(filed) => filed.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the store did not answer within {} s", PATIENCE.as_secs())),
        }
    }

    /// Takes note of how a batch went; says how long to wait before the next one.
    fn note(&self, batch: &[Arc<Captured>], filed: Result<Each<MessageId>, String>) -> Option<Span> {
        let mut inside = self.inside();
        match filed {
            Ok(each) => inside.filed(each),
            Err(error) => inside.failed(error),
        }
        let refused = inside.last_error.is_some();
        if refused {
            inside.rounds_failed = inside.rounds_failed.saturating_add(1);
            if inside.since.is_none() {
                inside.since = Some(self.clock.now());
                tracing::warn!(
                    buffered = inside.waiting.len(),
                    bytes = inside.bytes,
                    store_error = inside.last_error.as_deref().unwrap_or_default(),
                    "failed operations wait in memory: the store cannot be written"
                );
            }
        } else {
            inside.rounds_failed = 0;
            if let Some(since) = inside.since.take() {
                let waited_ms = self.clock.now().since(since).as_millis();
                tracing::info!(waited_ms, "the store takes failed operations again");
            }
        }
        let roll = batch.first().map_or(Roll(0), |first| Roll::of(first.message.id, inside.rounds_failed));
        let wait = delay(inside.rounds_failed, roll);
        let wait = if inside.draining { wait.min(DRAINING) } else { wait };
        drop(inside);
        self.changed.notify_waiters();
        refused.then_some(wait)
    }

    /// Writes what waits, for so long at most. Returns when there is nothing left, or the time is over.
    pub(super) async fn drain(self: &Arc<Self>, at_most: Duration) {
        self.inside().draining = true;
        self.start();
        self.hurry.notify_one();
        let empty = async {
            loop {
                let mut changed = pin!(self.changed.notified());
                changed.as_mut().enable();
                if self.inside().waiting.is_empty() {
                    return;
                }
                changed.await;
            }
        };
        // Over or not, what is left is in the state.
        let _ = tokio::time::timeout(at_most, empty).await;
        self.inside().draining = false;
    }
}

impl Inside {
    /// Each of the first operations was filed, or refused. Those that are here already were filed by a write
    /// whose answer was lost. The refused ones go to the end, so that they are in nobody's way.
    fn filed(&mut self, each: Each<MessageId>) {
        self.failing = false;
        self.last_error = None;
        for result in each {
            let Some(mut item) = self.waiting.pop_front() else { return };
            match result {
                Ok(_) | Err(Refusal::IdConflict { .. }) => {
                    self.bytes -= item.size;
                    process().lower(Gauge::CapturedBuffered, 1);
                    self.stored += 1;
                    item.tell(Kept::Stored(item.id()));
                }
                Err(refusal) => {
                    self.last_error = Some(refusal.to_string());
                    item.tell(Kept::Buffered(item.id()));
                    self.waiting.push_back(item);
                }
            }
        }
    }

    /// The store failed: whoever waits need not wait for it.
    fn failed(&mut self, error: String) {
        self.failing = true;
        self.last_error = Some(error);
        for item in &mut self.waiting {
            item.tell(Kept::Buffered(item.id()));
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if !self.waiting.is_empty() {
            process().lower(Gauge::CapturedBuffered, self.waiting.len() as u64);
            tracing::error!(
                operations = self.waiting.len(),
                store_error = self.last_error.as_deref().unwrap_or("none"),
                "failed operations are lost: the process ends before its store could be written"
            );
        }
    }
}

/// The one task that writes. Ended before its time, for instance with its runtime, it makes room for another.
struct Turn {
    outbox: Arc<Outbox>,
    over: bool,
}

impl Turn {
    async fn write(mut self) {
        let outbox = self.outbox.clone();
        loop {
            let batch = outbox.batch(&mut self);
            if batch.is_empty() {
                return;
            }
            let filed = outbox.file_in_time(&batch).await;
            if let Some(wait) = outbox.note(&batch, filed) {
                tokio::select! {
                    () = tokio::time::sleep(wait.to_std()) => {}
                    () = outbox.hurry.notified() => {}
                }
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.over {
            self.outbox.inside().writing = false;
        }
    }
}
