//! The processor: redrives captured operations when they are due, and executes them by kind. A due letter goes back
//! through an ordinary redrive, its execution is an ordinary delivery, and the store resolves the letter or appends to
//! its history. There are never more executions per interval than `batch`, and never more at once than `concurrency`.

use super::rerun::{RerunResult, RerunTask};
use crate::handler::{Handler, IntoHandler};
use crate::runnable::{Heartbeat, Runnable};
use async_trait::async_trait;
use redrive_core::backoff::{Backoff, Growth, Jitter, JitterSeed};
use redrive_core::dead_letter::{Act, Actor, DeadLetter};
use redrive_core::error::{CallError, Refusal, StoreResult};
use redrive_core::ids::QueueName;
use redrive_core::limits;
use redrive_core::store::{
    LeaseRequest, LetterLeaseRequest, LetterSettle, LetterSettlement, Store, check_worker,
};
use redrive_core::time::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// What to do with an operation that was redriven as often as allowed and failed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSpent {
    /// Closes the letter as abandoned. Retention removes it in the end.
    #[default]
    Abandon,
    /// Marks the letter for review by a person.
    Review,
}

/// How much a processor does, how often, and how long it waits.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessorLimits {
    /// The maximum number of executions per interval.
    pub batch: usize,
    /// How often it looks for due operations.
    pub interval: Duration,
    /// The maximum number of executions at once.
    pub concurrency: usize,
    /// The maximum number of redrives of an operation, including those that others made.
    pub max_redrives: u32,
    /// How long after each death an operation is due again.
    pub backoff: Backoff,
    /// How long one execution may take.
    pub timeout: Duration,
    /// What to do with operations that were redriven as often as allowed.
    pub on_spent: OnSpent,
    /// How long executions may continue after the processor was stopped.
    pub grace: Duration,
}

impl Default for ProcessorLimits {
    fn default() -> Self {
        Self {
            batch: 10,
            interval: Duration::from_secs(30),
            concurrency: 3,
            max_redrives: 5,
            backoff: Backoff {
                initial: Span::from_secs(60),
                cap: Span::from_hours(1),
                floor: Span::ZERO,
                growth: Growth::Exponential { multiplier: 2.0 },
                jitter: Jitter::Equal,
            },
            timeout: Duration::from_secs(300),
            on_spent: OnSpent::Abandon,
            grace: Duration::from_secs(30),
        }
    }
}

impl ProcessorLimits {
    fn check(&self) -> Result<(), Refusal> {
        for (field, n) in [("batch", self.batch), ("concurrency", self.concurrency)] {
            if n == 0 || n > limits::PROCESSOR_BATCH_MAX {
                let why = format!("{n} is outside 1 to {}", limits::PROCESSOR_BATCH_MAX);
                return Err(Refusal::invalid(field, why));
            }
        }
        for (field, time) in [("interval", self.interval), ("timeout", self.timeout)] {
            if time.is_zero() {
                return Err(Refusal::invalid(field, "is zero; name a time such as 30 s"));
            }
        }
        self.backoff.check()
    }

    /// When a letter is due: as long after its death as the backoff says.
    fn due_at(&self, letter: &DeadLetter) -> Time {
        let redrives = letter.record.redrives;
        let jitter_seed = JitterSeed::of(letter.id(), redrives);
        let delay = self.backoff.delay(redrives.saturating_add(1), None, None, jitter_seed);
        letter.record.dead_at.plus(delay)
    }
}

/// What to do with one pending letter.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    /// Redrive it now.
    Due,
    /// It is due after this time.
    Later(Span),
    /// This processor does not handle it. Look at it again after this time.
    NotOurs(Span),
    /// A person has to decide, for this reason.
    Review(String),
    /// It was redriven as often as allowed.
    Spent(String),
}

/// What a processor did in one interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processed {
    /// Letters redriven.
    pub sent_back: u64,
    /// Executions that succeeded; their letters are resolved.
    pub succeeded: u64,
    /// Executions that failed; their letters are pending again, with one more failure in their history.
    pub failed: u64,
    /// Executions that ended without a result: snoozed, released, or their lease was lost.
    pub returned: u64,
    /// Letters abandoned because they were redriven as often as allowed.
    pub abandoned: u64,
    /// Letters marked for review by a person.
    pub review: u64,
}

/// Executes captured operations again, by kind. Run it beside workers, or call [`Self::step`] on a schedule of your
/// own. Several processors with the same handlers may serve the same queues.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::resilient::{Operation, Processor, ProcessorLimits};
/// use redrive::Context;
///
/// async fn call_again(context: Context) -> redrive::Result {
///     let operation = Operation::of(context.message());
///     println!("{:?} with {} bytes", operation.endpoint, operation.payload.bytes.len());
///     Ok(())
/// }
///
/// let processor = Processor::builder(redrive::memory())
///     .queue("llm")
///     .handler("llm_call", call_again)
///     .limits(ProcessorLimits { batch: 5, concurrency: 2, ..ProcessorLimits::default() })
///     .build()?;
/// let done = processor.step().await?; // or LoopGroup, or Runnable::run
/// assert_eq!(done.succeeded, 0); // nothing was captured here
/// # Ok(())
/// # }
/// ```
pub struct Processor {
    store: Arc<dyn Store>,
    name: String,
    queues: Vec<QueueName>,
    handlers: BTreeMap<String, Arc<dyn Handler>>,
    limits: ProcessorLimits,
}

/// Builds a [`Processor`].
pub struct ProcessorBuilder {
    store: Arc<dyn Store>,
    name: String,
    queues: BTreeSet<String>,
    handlers: BTreeMap<String, Arc<dyn Handler>>,
    limits: ProcessorLimits,
}

impl ProcessorBuilder {
    /// The name of the processor in leases and in the audit trail. Defaults to `processor`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a queue of captured operations: the name of a policy, unless the policy names another queue. No processor
    /// with handlers for other kinds should serve the same dead letter queues.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.insert(queue.into());
        self
    }

    /// Adds a handler for operations of this kind: a function or a [`Handler`].
    #[must_use]
    pub fn handler<Marker>(mut self, kind: impl Into<String>, handler: impl IntoHandler<Marker>) -> Self {
        self.handlers.insert(kind.into(), handler.into_handler());
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: ProcessorLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Builds the processor.
    ///
    /// # Errors
    /// Returns a [`Refusal`] that names what is missing or invalid.
    pub fn build(self) -> Result<Processor, Refusal> {
        check_worker(&self.name)?;
        self.limits.check()?;
        if self.queues.is_empty() || self.queues.len() > limits::LEASE_QUEUES_MAX {
            let why = format!("name 1 to {} queues", limits::LEASE_QUEUES_MAX);
            return Err(Refusal::invalid("queues", why));
        }
        if self.handlers.is_empty() {
            return Err(Refusal::invalid("handlers", "there is none; register one per kind"));
        }
        let parsed = self.queues.iter().map(|queue| queue.parse());
        let queues: Result<Vec<QueueName>, _> = parsed.collect();
        let queues = queues.map_err(|error| Refusal::invalid("queues", error.to_string()))?;
        let Self { store, name, handlers, limits, .. } = self;
        Ok(Processor { store, name, queues, handlers, limits })
    }
}

impl Processor {
    /// Starts building a processor for the captured operations in this store.
    #[must_use]
    pub fn builder(store: Arc<dyn Store>) -> ProcessorBuilder {
        ProcessorBuilder {
            store,
            name: "processor".into(),
            queues: BTreeSet::new(),
            handlers: BTreeMap::new(),
            limits: ProcessorLimits::default(),
        }
    }

    /// Does the work of one interval: redrives what is due and executes it, within the limits. Returns when every
    /// execution that it started has ended.
    ///
    /// # Errors
    /// Returns the error of the store. Failed operations are no errors.
    pub async fn step(&self) -> StoreResult<Processed> {
        self.pass(&CancellationToken::new(), &Heartbeat::default()).await
    }

    async fn pass(&self, stop: &CancellationToken, heartbeat: &Heartbeat) -> StoreResult<Processed> {
        let mut done = Processed::default();
        let (mut waiting, mut known, mut dlqs) = (0, Vec::new(), BTreeSet::new());
        for name in &self.queues {
            match self.store.queue(name.clone()).await {
                Ok(queue) => {
                    waiting += usize::try_from(queue.ready).unwrap_or(usize::MAX);
                    dlqs.extend(queue.policy.dlqs(name));
                    known.push(name.clone());
                }
                // Nothing was captured there yet.
                Err(CallError::Refused(Refusal::NoSuchQueue { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        if known.is_empty() {
            return Ok(done);
        }
        // Messages that are ready already, after a crash or because of an operator, count towards the same batch.
        let mut remaining = self.limits.batch.saturating_sub(waiting);
        for dlq in dlqs {
            self.send_back(&dlq, &mut remaining, &mut done).await?;
        }
        self.execute(&known, stop, heartbeat, &mut done).await?;
        Ok(done)
    }

    /// Goes through the letters of a dead letter queue, oldest death first, and redrives those that are due.
    async fn send_back(
        &self,
        dlq: &QueueName,
        remaining: &mut usize,
        done: &mut Processed,
    ) -> StoreResult<()> {
        let now = self.store.info().await?.now;
        for _ in 0..limits::PROCESSOR_LOOKS_MAX {
            if *remaining == 0 {
                return Ok(());
            }
            let request = LetterLeaseRequest {
                dlq: dlq.clone(),
                max: limits::PROCESSOR_LOOK_MAX,
                lease_for: None,
                worker: self.name.clone(),
            };
            let leased = self.store.lease_letters(request).await?;
            let leased_count = leased.len();
            if leased_count == 0 {
                return Ok(());
            }
            let decided = leased.into_iter().map(|delivery| {
                let mut decision = self.decide(&delivery.letter, now);
                if decision == Decision::Due {
                    match remaining.checked_sub(1) {
                        Some(left) => *remaining = left,
                        None => decision = Decision::Later(Span::ZERO),
                    }
                }
                (LetterSettlement { token: delivery.token, what: self.settlement(&decision) }, decision)
            });
            let (batch, decisions): (Vec<_>, Vec<_>) = decided.unzip();
            let settled = self.store.settle_letters(batch).await?;
            for (result, decision) in settled.into_iter().zip(decisions) {
                self.count_decision(result.is_ok(), &decision, done);
            }
            if leased_count < limits::PROCESSOR_LOOK_MAX {
                return Ok(());
            }
        }
        Ok(())
    }

    fn count_decision(&self, settled: bool, decision: &Decision, done: &mut Processed) {
        match decision {
            // Somebody else acted on the letter, or the lease expired: this processor did nothing.
            _ if !settled => {}
            Decision::Due => done.sent_back += 1,
            Decision::Review(_) => done.review += 1,
            Decision::Spent(_) => match self.limits.on_spent {
                OnSpent::Abandon => done.abandoned += 1,
                OnSpent::Review => done.review += 1,
            },
            Decision::Later(_) | Decision::NotOurs(_) => {}
        }
    }

    /// Decides what to do with a pending letter. Has no side effects.
    fn decide(&self, letter: &DeadLetter, now: Time) -> Decision {
        let message = &letter.message.envelope;
        let interval = Span::from_millis(u64::try_from(self.limits.interval.as_millis()).unwrap_or(u64::MAX));
        let snooze_for = interval.times(NOT_OURS_INTERVALS).min(limits::SPAN_MAX);
        if !self.queues.contains(&message.queue) || !self.handlers.contains_key(&message.kind) {
            return Decision::NotOurs(snooze_for);
        }
        // It notes that once per death; if somebody sets the letter to pending again after that, their word counts.
        let noted = letter.record.notes.iter().any(|n| n.by == self.name && n.at >= letter.record.dead_at);
        let spent = letter.record.redrives >= self.limits.max_redrives;
        if noted && (spent || !letter.record.eligible()) {
            return Decision::NotOurs(snooze_for);
        }
        if !letter.record.eligible() {
            return Decision::Review(format!(
                "not redriven automatically: its reason is {}",
                letter.record.reason
            ));
        }
        if spent {
            return Decision::Spent(format!("redriven {} times and failed again", letter.record.redrives));
        }
        let due = self.limits.due_at(letter);
        if due <= now { Decision::Due } else { Decision::Later(due.since(now)) }
    }

    /// The settlement that carries out a decision.
    fn settlement(&self, decision: &Decision) -> LetterSettle {
        let act = |act, reason: Option<&String>| {
            let actor = Actor { reason: reason.cloned(), ..Actor::new(self.name.clone(), "library") };
            LetterSettle::Do { act, actor }
        };
        match decision {
            Decision::Due => act(Act::retry(), None),
            Decision::Later(Span::ZERO) => LetterSettle::Release,
            Decision::Later(span) | Decision::NotOurs(span) => LetterSettle::Snooze { span: *span },
            Decision::Review(why) => act(Act::Review, Some(why)),
            Decision::Spent(why) => match self.limits.on_spent {
                OnSpent::Abandon => act(Act::Abandon, Some(why)),
                OnSpent::Review => act(Act::Review, Some(why)),
            },
        }
    }

    /// Executes redriven messages, up to the batch, and waits for all of them. Leases only for free slots.
    async fn execute(
        &self,
        queues: &[QueueName],
        stop: &CancellationToken,
        heartbeat: &Heartbeat,
        done: &mut Processed,
    ) -> StoreResult<()> {
        let mut running: JoinSet<RerunResult> = JoinSet::new();
        let grace_over = CancellationToken::new();
        let mut grace_elapsed = pin!(async {
            stop.cancelled().await;
            tokio::time::sleep(self.limits.grace).await;
        });
        let mut left = self.limits.batch;
        let mut store_error = None;
        loop {
            heartbeat.beat();
            let free = left.min(self.limits.concurrency - running.len().min(self.limits.concurrency));
            let mut leased = Vec::new();
            if free > 0 && !stop.is_cancelled() && store_error.is_none() {
                match self.store.lease(self.lease_request(queues, free)).await {
                    Ok(deliveries) => leased = deliveries,
                    Err(error) => store_error = Some(error),
                }
            }
            left -= leased.len().min(left);
            let leased_count = leased.len();
            for delivery in leased {
                let handler = self.handlers.get(&delivery.message.envelope.kind).cloned();
                let rerun = RerunTask {
                    store: self.store.clone(),
                    delivery,
                    handler,
                    timeout: self.limits.timeout,
                    snooze_for: self.limits.interval,
                    grace_over: grace_over.clone(),
                };
                running.spawn(rerun.run());
            }
            if running.is_empty() {
                return store_error.map_or(Ok(()), Err);
            }
            if leased_count < free || left == 0 || running.len() >= self.limits.concurrency {
                self.wait_for_one(&mut running, grace_elapsed.as_mut(), heartbeat, &grace_over, done).await;
            }
        }
    }

    fn lease_request(&self, queues: &[QueueName], max: usize) -> LeaseRequest {
        let lease_for = Some(super::rerun::LEASE);
        LeaseRequest {
            queues: queues.to_vec(),
            max,
            lease_for,
            worker: self.name.clone(),
            ..LeaseRequest::default()
        }
    }

    /// Waits for an execution to end; after `stop`, no longer than the grace time.
    async fn wait_for_one(
        &self,
        running: &mut JoinSet<RerunResult>,
        mut grace_elapsed: Pin<&mut impl Future<Output = ()>>,
        heartbeat: &Heartbeat,
        grace_over: &CancellationToken,
        done: &mut Processed,
    ) {
        loop {
            tokio::select! {
                ended = running.join_next() => {
                    match ended {
                        Some(Ok(RerunResult::Succeeded)) => done.succeeded += 1,
                        Some(Ok(RerunResult::Failed)) => done.failed += 1,
                        // The task ended without a result; its lease will expire.
                        Some(Ok(RerunResult::Returned) | Err(_)) | None => done.returned += 1,
                    }
                    return;
                }
                () = &mut grace_elapsed, if !grace_over.is_cancelled() => grace_over.cancel(),
                () = tokio::time::sleep(BEAT) => heartbeat.beat(),
            }
        }
    }
}

/// After how many intervals a letter that this processor does not handle is looked at again.
const NOT_OURS_INTERVALS: u64 = 10;
/// How often the processor beats its heartbeat while operations run.
const BEAT: Duration = Duration::from_secs(10);

#[async_trait]
impl Runnable for Processor {
    fn name(&self) -> String {
        format!("processor {}", self.name)
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError> {
        let mut timer = tokio::time::interval(self.limits.interval);
        // After a pass that took long, wait a whole interval instead of catching up.
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut beats = tokio::time::interval(BEAT);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = beats.tick() => { heartbeat.beat(); continue }
                _ = timer.tick() => {}
            }
            match self.pass(&stop, &heartbeat).await {
                Ok(done) if done == Processed::default() => {}
                Ok(done) => tracing::info!(
                    processor = %self.name, sent_back = done.sent_back, succeeded = done.succeeded,
                    failed = done.failed, abandoned = done.abandoned, review = done.review,
                    "captured operations were executed"
                ),
                Err(error) => tracing::warn!(
                    processor = %self.name, %error,
                    "captured operations could not be executed; trying again in the next interval"
                ),
            }
        }
    }
}
