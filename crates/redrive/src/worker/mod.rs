//! The worker: leases messages from queues, runs a handler for each, and tells the store what came of it. It
//! never decides about retries: it reports, and the store's judge has the word.
//!
//! One task, the [dispatcher], owns every count and every lease; each delivery runs in a task of its own, the
//! [executor]. Between the two stands the core's [`PriorityQueue`](crate::PriorityQueue). Leases are taken for
//! free slots only, so that a crash costs an attempt of nothing but what was really being worked on.

mod dispatcher;
mod ending;
mod executor;
mod leases;
mod stage;
mod taking;
mod telling;
mod throttle;

use crate::dead_letter_policy::DeadLetterPolicy;
use crate::handler::{Handler, IntoHandler};
use crate::here;
use crate::pace::{Pace, is_final, pause};
use crate::runnable::{Heartbeat, Runnable};
use async_trait::async_trait;
use dispatcher::Dispatcher;
use redrive_core::dead_letter::Actor;
use redrive_core::error::{Error, Refusal};
use redrive_core::failure::Knowledge;
use redrive_core::ids::QueueName;
use redrive_core::limits;
use redrive_core::message::Envelope;
use redrive_core::store::{LeaseRequest, Store, check_lease};
use redrive_core::time::Span;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use throttle::{KeyOf, Limits};
use tokio_util::sync::CancellationToken;

/// Everything a worker was told; never changes while it runs.
pub(crate) struct Plan {
    store: Arc<dyn Store>,
    queues: Vec<QueueName>,
    name: String,
    host: Option<String>,
    version: Option<String>,
    concurrency: usize,
    prefetch: usize,
    handlers: BTreeMap<String, Arc<dyn Handler>>,
    fallback: Option<Arc<dyn Handler>>,
    timeout: Option<Span>,
    timeouts: BTreeMap<String, Span>,
    lease: Option<Span>,
    grace: Span,
    limits: Limits,
    knowledge: Knowledge,
    dead_letters: Option<DeadLetterPolicy>,
    at_most: Option<u64>,
    until_empty: bool,
}

/// Runs handlers over the messages of some queues. Cheap to clone; a clone is the same worker.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::{Outcome, Worker};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Charge {
///     cents: u64,
/// }
///
/// let store = redrive::memory();
/// redrive::send(&store, "payments", "charge", &Charge { cents: 1200 }).await?;
///
/// let worker = Worker::builder(store.clone())
///     .queue("payments")
///     .concurrency(32)
///     .handler("charge", |charge: Charge| async move {
///         match charge.cents {
///             0 => Outcome::dead_letter("nothing to charge"),
///             _ => Outcome::Done,
///         }
///     })
///     .until_empty()
///     .build()?;
/// assert_eq!(worker.run().await?.done, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Worker {
    plan: Arc<Plan>,
    handle: WorkerHandle,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Plan { name, queues, concurrency, .. } = &*self.plan;
        write!(f, "Worker({name}, {queues:?}, {concurrency} at a time)")
    }
}

impl Worker {
    /// A worker over this store.
    #[must_use]
    pub fn builder(store: Arc<dyn Store>) -> WorkerBuilder {
        WorkerBuilder::new(store)
    }

    /// To stop it and to see how it is doing, from elsewhere.
    #[must_use]
    pub fn handle(&self) -> WorkerHandle {
        self.handle.clone()
    }

    /// What it is called in leases and failures.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// Works until [`WorkerHandle::stop`], then drains within the grace time and gives the rest back. A queue
    /// that is not known yet is made, so that a worker may be there before its first message.
    ///
    /// # Errors
    /// When the store says that this request can never succeed, such as a queue that is a drawer. A store that
    /// cannot be reached for a while is waited for.
    pub async fn run(&self) -> Result<Counts, Error> {
        self.run_watched(self.handle.stop.clone(), Heartbeat::default()).await
    }

    async fn run_watched(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<Counts, Error> {
        let policy = self.plan.dead_letters.clone().unwrap_or_default();
        let mut pace = Pace::new(Duration::from_millis(50), Duration::from_secs(5));
        for queue in &self.plan.queues {
            let propose =
                || policy.propose(self.plan.store.as_ref(), queue, Actor::new(self.name(), "library"));
            while let Err(error) = propose().await {
                if matches!(error, Error::Refused(_)) || is_final(&error) {
                    return Err(error);
                }
                tracing::warn!(worker = self.name(), %error, "the store cannot be reached yet");
                self.handle.in_trouble(Some(error.to_string()));
                heartbeat.beat();
                if pause(&stop, pace.wait()).await {
                    return Ok(self.handle.counts());
                }
            }
        }
        Dispatcher::new(Arc::clone(&self.plan), self.handle.clone(), heartbeat).run(stop).await?;
        Ok(self.handle.counts())
    }
}

#[async_trait]
impl Runnable for Worker {
    fn name(&self) -> String {
        format!("worker {}", self.plan.name)
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), Error> {
        let either = self.handle.stop.child_token();
        let forward = either.clone();
        let watched = self.run_watched(either, heartbeat);
        tokio::pin!(watched);
        tokio::select! {
            done = &mut watched => done.map(drop),
            () = stop.cancelled() => {
                forward.cancel();
                watched.await.map(drop)
            }
        }
    }
}

/// Stops a worker and says how it is doing.
#[derive(Clone, Debug, Default)]
pub struct WorkerHandle {
    stop: CancellationToken,
    hurry: CancellationToken,
    trouble: Arc<Mutex<Option<String>>>,
    tally: Arc<Tally>,
}

impl WorkerHandle {
    /// Take no more work, finish what is being worked on within the grace time, give the rest back.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// The same without the grace time: handlers are told to stop and their messages given back at once.
    pub fn stop_now(&self) {
        self.hurry.cancel();
        self.stop.cancel();
    }

    /// What keeps it from working at the moment: what the store said to the last call that failed, until one
    /// succeeds.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn in_trouble(&self, why: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let t = &self.tally;
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Counts {
            leased: get(&t.leased),
            done: get(&t.done),
            failed: get(&t.failed),
            retried: get(&t.retried),
            dead: get(&t.dead),
            snoozed: get(&t.snoozed),
            released: get(&t.released),
            lost: get(&t.lost),
            running: get(&t.running),
            stuck: get(&t.stuck),
        }
    }
}

#[derive(Debug, Default)]
struct Tally {
    leased: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
    retried: AtomicU64,
    dead: AtomicU64,
    snoozed: AtomicU64,
    released: AtomicU64,
    lost: AtomicU64,
    running: AtomicU64,
    stuck: AtomicU64,
}

/// What a worker has done since it started, and what it is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Deliveries taken.
    pub leased: u64,
    /// Messages done.
    pub done: u64,
    /// Failed deliveries: [`Self::retried`] and [`Self::dead`] together.
    pub failed: u64,
    /// Failed deliveries that will be tried again.
    pub retried: u64,
    /// Failed deliveries that became dead letters.
    pub dead: u64,
    /// Deliveries put off.
    pub snoozed: u64,
    /// Deliveries given back, by their handler or at the end.
    pub released: u64,
    /// Deliveries whose lease was lost before they could be settled; somebody else has them now.
    pub lost: u64,
    /// Handlers running now.
    pub running: u64,
    /// Handlers that were told to stop and have not: each still takes up a slot.
    pub stuck: u64,
}

/// Puts a [`Worker`] together.
pub struct WorkerBuilder {
    plan: Plan,
    wrong: Option<Refusal>,
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerBuilder({:?})", self.plan.queues)
    }
}

impl WorkerBuilder {
    fn new(store: Arc<dyn Store>) -> Self {
        let plan = Plan {
            store,
            queues: Vec::new(),
            name: default_name(),
            host: here::host(),
            version: None,
            concurrency: 16,
            prefetch: 0,
            handlers: BTreeMap::new(),
            fallback: None,
            timeout: None,
            timeouts: BTreeMap::new(),
            lease: None,
            grace: Span::from_secs(30),
            limits: Limits::default(),
            knowledge: Knowledge::default(),
            dead_letters: None,
            at_most: None,
            until_empty: false,
        };
        Self { plan, wrong: None }
    }

    /// Works on this queue, among others if called again.
    #[must_use]
    pub fn queue(mut self, name: impl AsRef<str>) -> Self {
        match name.as_ref().parse() {
            Ok(queue) => self.plan.queues.push(queue),
            Err(why) => self.wrong = self.wrong.or_else(|| Some(Refusal::invalid("queue", why.to_string()))),
        }
        self
    }

    /// Calls itself so in leases and failures. By default host, process and a random part: two workers that
    /// share a name count as one where poison messages are told from bad workers.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.plan.name = name.into();
        self
    }

    /// The version of the code that runs, to be kept with failures.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.plan.version = Some(version.into());
        self
    }

    /// So many handlers at once; 16 by default.
    #[must_use]
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.plan.concurrency = handlers;
        self
    }

    /// Leases so many more than there are free slots. None by default: what is leased ahead loses an attempt
    /// when the process dies.
    #[must_use]
    pub fn prefetch(mut self, deliveries: usize) -> Self {
        self.plan.prefetch = deliveries;
        self
    }

    /// Runs this for messages of this kind.
    #[must_use]
    pub fn handler<How>(mut self, kind: impl Into<String>, handler: impl IntoHandler<How>) -> Self {
        let kind = kind.into();
        if self.plan.handlers.insert(kind.clone(), handler.into_handler()).is_some() {
            let why = format!("two handlers for {kind:?}; which one?");
            self.wrong = self.wrong.or_else(|| Some(Refusal::invalid("handler", why)));
        }
        self
    }

    /// Runs this for messages of every kind without a handler of its own. Without it such a message fails, is
    /// retried like any other failure, and ends as a dead letter.
    #[must_use]
    pub fn fallback<How>(mut self, handler: impl IntoHandler<How>) -> Self {
        self.plan.fallback = Some(handler.into_handler());
        self
    }

    /// A handler that takes longer has failed. No limit by default: leases are extended while it runs.
    #[must_use]
    pub fn timeout(mut self, span: Span) -> Self {
        self.plan.timeout = Some(span);
        self
    }

    /// The same for one kind.
    #[must_use]
    pub fn timeout_of(mut self, kind: impl Into<String>, span: Span) -> Self {
        self.plan.timeouts.insert(kind.into(), span);
        self
    }

    /// Leases for this long instead of what the queue says; extended every third of it.
    #[must_use]
    pub fn lease(mut self, span: Span) -> Self {
        self.plan.lease = Some(span);
        self
    }

    /// How long a stopped worker waits for its handlers before it gives their messages back; 30 s by default.
    #[must_use]
    pub fn grace(mut self, span: Span) -> Self {
        self.plan.grace = span;
        self
    }

    /// At most so many handlers of this kind at once. What has to wait for its kind or key keeps its lease, so a
    /// kind that is far slower than the others is better off in a queue of its own.
    #[must_use]
    pub fn concurrency_of(mut self, kind: impl Into<String>, handlers: usize) -> Self {
        self.plan.limits.by_kind.insert(kind.into(), handlers);
        self
    }

    /// At most so many handlers at once for messages with the same key, such as a tenant in a header.
    #[must_use]
    pub fn concurrency_per_key<F>(mut self, handlers: usize, key: F) -> Self
    where
        F: Fn(&Envelope) -> Option<String> + Send + Sync + 'static,
    {
        self.plan.limits.by_key = Some((handlers, Arc::new(key) as KeyOf));
        self
    }

    /// Begins at most so many messages a second.
    #[must_use]
    pub fn rate(mut self, per_second: f64) -> Self {
        self.plan.limits.rate = Some(per_second);
        self
    }

    /// Begins at most so many messages of this kind a second.
    #[must_use]
    pub fn rate_of(mut self, kind: impl Into<String>, per_second: f64) -> Self {
        self.plan.limits.rates.insert(kind.into(), per_second);
        self
    }

    /// When failing messages become dead letters. Its rules are proposed to the worker's queues when it starts;
    /// its custom `should_dead_letter` has the word on each failure.
    #[must_use]
    pub fn dead_letters(mut self, policy: DeadLetterPolicy) -> Self {
        self.plan.dead_letters = Some(policy);
        self
    }

    /// What you know better about errors: signature rules and classification patterns.
    #[must_use]
    pub fn knowledge(mut self, knowledge: Knowledge) -> Self {
        self.plan.knowledge = knowledge;
        self
    }

    /// Ends by itself after so many deliveries.
    #[must_use]
    pub fn at_most(mut self, deliveries: u64) -> Self {
        self.plan.at_most = Some(deliveries);
        self
    }

    /// Ends by itself when its queues hold nothing any more: nothing ready, nothing waiting for its time,
    /// nothing with a worker.
    #[must_use]
    pub fn until_empty(mut self) -> Self {
        self.plan.until_empty = true;
        self
    }

    /// The worker.
    ///
    /// # Errors
    /// What is missing or cannot be meant, by field.
    pub fn build(self) -> Result<Worker, Error> {
        let Self { plan, wrong } = self;
        if let Some(wrong) = wrong {
            return Err(wrong.into());
        }
        let request = LeaseRequest {
            queues: plan.queues.clone(),
            max: plan.concurrency.saturating_add(plan.prefetch),
            lease_for: plan.lease,
            worker: plan.name.clone(),
        };
        if plan.concurrency == 0 {
            return Err(Refusal::invalid("concurrency", "at least one handler must run at a time").into());
        }
        request.check()?;
        check_lease(plan.lease)?;
        if plan.handlers.is_empty() && plan.fallback.is_none() {
            return Err(Refusal::invalid("handler", "a worker needs at least one handler").into());
        }
        for span in plan.timeout.iter().chain(plan.timeouts.values()) {
            if *span == Span::ZERO || *span > limits::LEASE_MAX {
                let why = format!("{span} is outside 1ms to {}", limits::LEASE_MAX);
                return Err(Refusal::invalid("timeout", why).into());
            }
        }
        plan.limits.check()?;
        plan.dead_letters.as_ref().map_or(Ok(()), DeadLetterPolicy::check)?;
        Ok(Worker { plan: Arc::new(plan), handle: WorkerHandle::default() })
    }
}

/// Host, process, and a random part: the process id alone comes back after a restart in a container.
fn default_name() -> String {
    let host = here::host().unwrap_or_else(|| "worker".into());
    let id = crate::new_id().to_string();
    let tail = id.get(id.len().saturating_sub(6)..).unwrap_or_default();
    format!("{host}-{}-{tail}", std::process::id())
}
