//! The worker: leases messages from queues, runs a handler for each, and reports the result to the store. The store
//! decides about retries, by the policy of the queue. A custom [`DeadLetterPolicy`] can send its own decision along with
//! a failure, which the store follows within the limits of [`judge`](redrive_core::policy::judge).
//!
//! One task, the [dispatcher], owns every lease and every counter. Each delivery runs in a task of its own, the
//! [executor]. Leased deliveries wait for the executor in a [`PriorityQueue`](crate::PriorityQueue). By default
//! the worker leases only as many messages as it has free slots, so after a crash
//! only messages whose handlers were running have lost an attempt.
//!
//! | Module | What it does |
//! |---|---|
//! | [dispatcher] | the main loop: starts deliveries, receives results, decides when to wake up next |
//! | [lease_loop] | leases messages for free slots and waits when nothing is due |
//! | [executor] | runs the handler of one delivery and turns its outcome into a settlement |
//! | [settle_loop] | sends settlements to the store in batches and retries them |
//! | [leases] | extends the leases of running deliveries and saves their progress |
//! | [throttle] | limits concurrency and rate by kind and key |
//! | [shutdown] | stops the worker within its grace time |
//! | [messages] | the types that dispatcher and executors exchange |

mod dispatcher;
mod executor;
mod lease_loop;
mod leases;
mod messages;
mod settle_loop;
mod shutdown;
mod throttle;

use crate::dead_letter_policy::DeadLetterPolicy;
use crate::handler::{Handler, IntoHandler};
use crate::host;
use crate::runnable::{Heartbeat, Runnable};
use crate::waiting::{GrowingDelay, is_fatal, pause};
use async_trait::async_trait;
use dispatcher::Dispatcher;
use redrive_core::dead_letter::Actor;
use redrive_core::error::{CallError, Refusal};
use redrive_core::failure::ClassifierRules;
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

/// The configuration of a worker. It never changes while the worker runs.
pub(crate) struct WorkerConfig {
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
    classifier_rules: ClassifierRules,
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
    config: Arc<WorkerConfig>,
    handle: WorkerHandle,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkerConfig { name, queues, concurrency, .. } = &*self.config;
        write!(f, "Worker({name}, {queues:?}, {concurrency} at a time)")
    }
}

impl Worker {
    /// Starts building a worker that takes its messages from `store`.
    #[must_use]
    pub fn builder(store: Arc<dyn Store>) -> WorkerBuilder {
        WorkerBuilder::new(store)
    }

    /// Returns a handle that can stop the worker and read its counters from another task.
    #[must_use]
    pub fn handle(&self) -> WorkerHandle {
        self.handle.clone()
    }

    /// The name of the worker in leases and failures.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Works until [`WorkerHandle::stop`] is called, then lets running handlers finish within the grace time and
    /// releases the messages that remain. Queues that do not exist yet are created, so a worker can be started
    /// before the first message is sent.
    ///
    /// # Errors
    /// Returns an error if the store refuses a request that can never succeed, for example because a queue is a
    /// dead letter queue. If the store cannot be reached, the worker waits and tries again.
    pub async fn run(&self) -> Result<Counts, CallError> {
        self.run_watched(self.handle.stop.clone(), Heartbeat::default()).await
    }

    async fn run_watched(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<Counts, CallError> {
        let policy = self.config.dead_letters.clone().unwrap_or_default();
        let mut delay = GrowingDelay::new(Duration::from_millis(50), Duration::from_secs(5));
        for queue in &self.config.queues {
            let propose =
                || policy.propose(self.config.store.as_ref(), queue, Actor::new(self.name(), "library"));
            while let Err(error) = propose().await {
                if matches!(error, CallError::Refused(_)) || is_fatal(&error) {
                    return Err(error);
                }
                tracing::warn!(worker = self.name(), %error, "the store cannot be reached yet; trying again");
                self.handle.set_store_error(Some(error.to_string()));
                heartbeat.beat();
                if pause(&stop, delay.wait()).await {
                    return Ok(self.handle.counts());
                }
            }
        }
        Dispatcher::new(Arc::clone(&self.config), self.handle.clone(), heartbeat).run(stop).await?;
        Ok(self.handle.counts())
    }
}

#[async_trait]
impl Runnable for Worker {
    fn name(&self) -> String {
        format!("worker {}", self.config.name)
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError> {
        let stop_either = self.handle.stop.child_token();
        let watched = self.run_watched(stop_either.clone(), heartbeat);
        tokio::pin!(watched);
        tokio::select! {
            done = &mut watched => done.map(drop),
            () = stop.cancelled() => {
                stop_either.cancel();
                watched.await.map(drop)
            }
        }
    }
}

/// Stops a worker and reads its counters.
#[derive(Clone, Debug, Default)]
pub struct WorkerHandle {
    stop: CancellationToken,
    stop_now: CancellationToken,
    store_error: Arc<Mutex<Option<String>>>,
    counters: Arc<Counters>,
}

impl WorkerHandle {
    /// Stops leasing, lets running handlers finish within the grace time, and releases the messages that remain.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// Stops without the grace time: handlers are cancelled and their messages released at once.
    pub fn stop_now(&self) {
        self.stop_now.cancel();
        self.stop.cancel();
    }

    /// The error of the last store call, if that call failed. `None` as soon as a call succeeds again.
    #[must_use]
    pub fn store_error(&self) -> Option<String> {
        self.store_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_store_error(&self, error: Option<String>) {
        *self.store_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    /// The current values of the worker's counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let counters = &self.counters;
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Counts {
            leased: get(&counters.leased),
            done: get(&counters.done),
            failed: get(&counters.failed),
            retried: get(&counters.retried),
            dead: get(&counters.dead),
            snoozed: get(&counters.snoozed),
            released: get(&counters.released),
            lost: get(&counters.lost),
            running: get(&counters.running),
            stuck: get(&counters.stuck),
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
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

/// How many deliveries a worker has handled since it started, and how many it is handling now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Deliveries leased.
    pub leased: u64,
    /// Deliveries whose handler succeeded.
    pub done: u64,
    /// Failed deliveries: [`Self::retried`] and [`Self::dead`] together.
    pub failed: u64,
    /// Failed deliveries whose message will be tried again.
    pub retried: u64,
    /// Failed deliveries whose message became a dead letter.
    pub dead: u64,
    /// Deliveries postponed by their handler or by a limit of the worker.
    pub snoozed: u64,
    /// Deliveries released, by their handler or when the worker stopped.
    pub released: u64,
    /// Deliveries whose lease was lost before they could be settled. The store judges them as failed.
    pub lost: u64,
    /// Handlers that are running now.
    pub running: u64,
    /// Handlers that were cancelled and still run. Each of them still occupies a slot.
    pub stuck: u64,
}

/// Builds a [`Worker`].
pub struct WorkerBuilder {
    config: WorkerConfig,
    invalid: Option<Refusal>,
}

impl fmt::Debug for WorkerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkerBuilder({:?})", self.config.queues)
    }
}

impl WorkerBuilder {
    fn new(store: Arc<dyn Store>) -> Self {
        let config = WorkerConfig {
            store,
            queues: Vec::new(),
            name: default_name(),
            host: host::host(),
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
            classifier_rules: ClassifierRules::default(),
            dead_letters: None,
            at_most: None,
            until_empty: false,
        };
        Self { config, invalid: None }
    }

    /// Adds a queue to work on. Can be called more than once.
    #[must_use]
    pub fn queue(mut self, name: impl AsRef<str>) -> Self {
        match name.as_ref().parse() {
            Ok(queue) => self.config.queues.push(queue),
            Err(error) => {
                self.invalid = self.invalid.or_else(|| Some(Refusal::invalid("queue", error.to_string())))
            }
        }
        self
    }

    /// The name of the worker in leases and failures. Defaults to the host, the process id and a random part.
    /// Two workers that share a name count as one when the store decides whether a message or its worker is at fault.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = name.into();
        self
    }

    /// The version of the code that runs. It is recorded with every failure.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.config.version = Some(version.into());
        self
    }

    /// The maximum number of handlers that run at once. Defaults to 16.
    #[must_use]
    pub fn concurrency(mut self, handlers: usize) -> Self {
        self.config.concurrency = handlers;
        self
    }

    /// The number of messages to lease beyond the free slots. Defaults to 0, because a message that was leased
    /// ahead loses an attempt when the process dies.
    #[must_use]
    pub fn prefetch(mut self, deliveries: usize) -> Self {
        self.config.prefetch = deliveries;
        self
    }

    /// The handler for messages of this kind.
    #[must_use]
    pub fn handler<Marker>(mut self, kind: impl Into<String>, handler: impl IntoHandler<Marker>) -> Self {
        let kind = kind.into();
        if self.config.handlers.insert(kind.clone(), handler.into_handler()).is_some() {
            let why = format!("the kind {kind:?} has two handlers; register only one");
            self.invalid = self.invalid.or_else(|| Some(Refusal::invalid("handler", why)));
        }
        self
    }

    /// The handler for messages whose kind has no handler of its own. Without a fallback such a message fails,
    /// is retried like any other failure, and ends as a dead letter.
    #[must_use]
    pub fn fallback<Marker>(mut self, handler: impl IntoHandler<Marker>) -> Self {
        self.config.fallback = Some(handler.into_handler());
        self
    }

    /// How long a handler may run before its delivery fails. Unlimited by default: the lease is extended while
    /// the handler runs.
    #[must_use]
    pub fn timeout(mut self, span: Span) -> Self {
        self.config.timeout = Some(span);
        self
    }

    /// The time limit for handlers of one kind. Overrides [`Self::timeout`].
    #[must_use]
    pub fn timeout_of(mut self, kind: impl Into<String>, span: Span) -> Self {
        self.config.timeouts.insert(kind.into(), span);
        self
    }

    /// How long a lease lasts. Defaults to the queue's policy. The worker extends a lease after a third of this
    /// time.
    #[must_use]
    pub fn lease(mut self, span: Span) -> Self {
        self.config.lease = Some(span);
        self
    }

    /// How long a stopped worker may take until it has ended. Handlers have most of this time to finish; then
    /// their messages are released. Defaults to 30 s.
    #[must_use]
    pub fn grace(mut self, span: Span) -> Self {
        self.config.grace = span;
        self
    }

    /// The maximum number of handlers of this kind that run at once. A delivery that waits for its kind or key
    /// keeps its lease, so a kind that is much slower than the others is better placed in a queue of its own.
    #[must_use]
    pub fn concurrency_of(mut self, kind: impl Into<String>, handlers: usize) -> Self {
        self.config.limits.concurrency_by_kind.insert(kind.into(), handlers);
        self
    }

    /// The maximum number of handlers that run at once for messages with the same key, such as a tenant in a
    /// header.
    #[must_use]
    pub fn concurrency_per_key<F>(mut self, handlers: usize, key: F) -> Self
    where
        F: Fn(&Envelope) -> Option<String> + Send + Sync + 'static,
    {
        self.config.limits.concurrency_by_key = Some((handlers, Arc::new(key) as KeyOf));
        self
    }

    /// The maximum number of messages to start per second.
    #[must_use]
    pub fn rate(mut self, per_second: f64) -> Self {
        self.config.limits.rate = Some(per_second);
        self
    }

    /// The maximum number of messages of this kind to start per second.
    #[must_use]
    pub fn rate_of(mut self, kind: impl Into<String>, per_second: f64) -> Self {
        self.config.limits.rate_by_kind.insert(kind.into(), per_second);
        self
    }

    /// Sets when failing messages become dead letters. The worker proposes the rules of the policy to its queues when it
    /// starts. A custom `should_dead_letter` is called for each failure, and its decision is sent with the failure.
    #[must_use]
    pub fn dead_letters(mut self, policy: DeadLetterPolicy) -> Self {
        self.config.dead_letters = Some(policy);
        self
    }

    /// Rules that refine how failures are grouped and classified: signature rules and classification patterns.
    #[must_use]
    pub fn classifier_rules(mut self, classifier_rules: ClassifierRules) -> Self {
        self.config.classifier_rules = classifier_rules;
        self
    }

    /// Stops the worker after this number of deliveries.
    #[must_use]
    pub fn at_most(mut self, deliveries: u64) -> Self {
        self.config.at_most = Some(deliveries);
        self
    }

    /// Stops the worker when its queues are empty: no message is ready, scheduled or leased.
    #[must_use]
    pub fn until_empty(mut self) -> Self {
        self.config.until_empty = true;
        self
    }

    /// Builds the worker.
    ///
    /// # Errors
    /// Returns a refusal that names the first field that is missing or invalid.
    pub fn build(self) -> Result<Worker, CallError> {
        let Self { config, invalid } = self;
        if let Some(invalid) = invalid {
            return Err(invalid.into());
        }
        let request = LeaseRequest {
            queues: config.queues.clone(),
            max: config.concurrency.saturating_add(config.prefetch),
            lease_for: config.lease,
            worker: config.name.clone(),
            ..LeaseRequest::default()
        };
        if config.concurrency == 0 {
            return Err(Refusal::invalid("concurrency", "must be at least 1").into());
        }
        request.check()?;
        check_lease(config.lease)?;
        if config.handlers.is_empty() && config.fallback.is_none() {
            return Err(Refusal::invalid("handler", "a worker needs at least one handler").into());
        }
        for span in config.timeout.iter().chain(config.timeouts.values()) {
            if *span == Span::ZERO || *span > limits::LEASE_MAX {
                let why = format!("{span} is outside 1ms to {}", limits::LEASE_MAX);
                return Err(Refusal::invalid("timeout", why).into());
            }
        }
        config.limits.check()?;
        config.dead_letters.as_ref().map_or(Ok(()), DeadLetterPolicy::check)?;
        Ok(Worker { config: Arc::new(config), handle: WorkerHandle::default() })
    }
}

/// The default worker name: host, process id and a random part. In a container, a process id alone is reused after
/// a restart.
fn default_name() -> String {
    let host = host::host().unwrap_or_else(|| "worker".into());
    let id = crate::new_id().to_string();
    let tail = id.get(id.len().saturating_sub(6)..).unwrap_or_default();
    format!("{host}-{}-{tail}", std::process::id())
}
