//! The processor: sends captured operations back to work when they are due, and executes them by kind. It decides
//! nothing about retries on its own: a due letter goes back through a redrive, its execution is an ordinary
//! delivery, and the store closes the letter or appends to its history. Never more executions per interval than
//! the batch, never more at once than its concurrency.

use super::rerun::{Reran, Rerun};
use crate::handler::{Handler, IntoHandler};
use crate::runnable::{Heartbeat, Runnable};
use async_trait::async_trait;
use redrive_core::backoff::{Backoff, Growth, Jitter, Roll};
use redrive_core::dead_letter::{Act, Actor, DeadLetter};
use redrive_core::error::{Error, Outcome, Refusal};
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

/// What becomes of an operation that was sent back as often as allowed and failed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnSpent {
    /// It is given up; retention removes it in the end.
    #[default]
    Abandon,
    /// A person is asked.
    Review,
}

/// How much a processor does, and how patient it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Executions per interval at most.
    pub batch: usize,
    /// How often it looks.
    pub interval: Duration,
    /// Executions at once at most.
    pub concurrency: usize,
    /// How often an operation is sent back at most, by whomever.
    pub max_redrives: u32,
    /// How long after each death an operation is due again.
    pub backoff: Backoff,
    /// How long one execution may take.
    pub timeout: Duration,
    /// What becomes of those that were sent back as often as allowed.
    pub on_spent: OnSpent,
    /// How long executions may go on after the end was asked for.
    pub grace: Duration,
}

impl Default for Rules {
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

impl Rules {
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

    /// When a letter is to be sent back: so long after its death as the backoff says.
    fn due_at(&self, letter: &DeadLetter) -> Time {
        let redrives = letter.file.redrives;
        let roll = Roll::of(letter.id(), redrives);
        let delay = self.backoff.delay(redrives.saturating_add(1), None, None, roll);
        letter.file.dead_at.plus(delay)
    }
}

/// What is to be done with one pending letter.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    /// Send it back.
    Due,
    /// Not for so long.
    Later(Span),
    /// Not by this processor, and not again for so long.
    NotOurs(Span),
    /// A person decides: this is why.
    Ask(String),
    /// It was sent back as often as allowed.
    Spent(String),
}

/// What one interval came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Processed {
    /// Letters sent back to work.
    pub sent_back: u64,
    /// Executions that succeeded; their letters are resolved.
    pub succeeded: u64,
    /// Executions that failed; their letters are pending again, with one more failure in their history.
    pub failed: u64,
    /// Executions that ended without a word on the operation: put off, given back, or lost to somebody else.
    pub returned: u64,
    /// Letters closed because they were sent back as often as allowed.
    pub abandoned: u64,
    /// Letters handed to a person.
    pub review: u64,
}

/// Executes captured operations again, by kind. Run it beside workers, or call [`Self::step`] from a schedule of
/// your own. Several with the same handlers may serve the same queues.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::resilient::{Operation, Processor, Rules};
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
///     .rules(Rules { batch: 5, concurrency: 2, ..Rules::default() })
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
    rules: Rules,
}

/// How a processor is put together.
pub struct ProcessorBuilder {
    store: Arc<dyn Store>,
    name: String,
    queues: BTreeSet<String>,
    handlers: BTreeMap<String, Arc<dyn Handler>>,
    rules: Rules,
}

impl ProcessorBuilder {
    /// Under this name in leases and in the audit trail; `processor` when not said.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// For what was captured under this queue: a policy's name, unless the policy says otherwise. Their drawers
    /// should have no other processor with other kinds.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queues.insert(queue.into());
        self
    }

    /// With a handler for operations of this kind: a function, or whatever implements [`Handler`].
    #[must_use]
    pub fn handler<How>(mut self, kind: impl Into<String>, handler: impl IntoHandler<How>) -> Self {
        self.handlers.insert(kind.into(), handler.into_handler());
        self
    }

    /// With other numbers than the usual.
    #[must_use]
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = rules;
        self
    }

    /// The processor.
    ///
    /// # Errors
    /// A [`Refusal`] that names what is missing or cannot be meant.
    pub fn build(self) -> Result<Processor, Refusal> {
        check_worker(&self.name)?;
        self.rules.check()?;
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
        let Self { store, name, handlers, rules, .. } = self;
        Ok(Processor { store, name, queues, handlers, rules })
    }
}

impl Processor {
    /// A processor for what is kept in this store.
    #[must_use]
    pub fn builder(store: Arc<dyn Store>) -> ProcessorBuilder {
        ProcessorBuilder {
            store,
            name: "processor".into(),
            queues: BTreeSet::new(),
            handlers: BTreeMap::new(),
            rules: Rules::default(),
        }
    }

    /// One interval's work: sends back what is due and executes it, within the limits. Returns when every
    /// execution it began has ended.
    ///
    /// # Errors
    /// Whatever the store says. Failed operations are no errors.
    pub async fn step(&self) -> Outcome<Processed> {
        self.pass(&CancellationToken::new(), &Heartbeat::default()).await
    }

    async fn pass(&self, stop: &CancellationToken, heartbeat: &Heartbeat) -> Outcome<Processed> {
        let mut done = Processed::default();
        let (mut waiting, mut known, mut drawers) = (0, Vec::new(), BTreeSet::new());
        for name in &self.queues {
            match self.store.queue(name.clone()).await {
                Ok(queue) => {
                    waiting += usize::try_from(queue.ready).unwrap_or(usize::MAX);
                    drawers.extend(queue.policy.drawers(name));
                    known.push(name.clone());
                }
                // Nothing was ever captured there.
                Err(Error::Refused(Refusal::NoSuchQueue { .. })) => {}
                Err(error) => return Err(error),
            }
        }
        if known.is_empty() {
            return Ok(done);
        }
        // What waits already, from a crash or an operator, comes out of the same batch.
        let mut room = self.rules.batch.saturating_sub(waiting);
        for drawer in drawers {
            self.send_back(&drawer, &mut room, &mut done).await?;
        }
        self.execute(&known, stop, heartbeat, &mut done).await?;
        Ok(done)
    }

    /// Goes through the letters of a drawer, oldest death first, and sends back those that are due.
    async fn send_back(&self, drawer: &QueueName, room: &mut usize, done: &mut Processed) -> Outcome<()> {
        let now = self.store.info().await?.now;
        for _ in 0..limits::PROCESSOR_LOOKS_MAX {
            if *room == 0 {
                return Ok(());
            }
            let request = LetterLeaseRequest {
                dlq: drawer.clone(),
                max: limits::PROCESSOR_LOOK_MAX,
                lease_for: None,
                worker: self.name.clone(),
            };
            let leased = self.store.lease_letters(request).await?;
            let looked_at = leased.len();
            if looked_at == 0 {
                return Ok(());
            }
            let decided = leased.into_iter().map(|delivery| {
                let mut decision = self.decide(&delivery.letter, now);
                if decision == Decision::Due {
                    match room.checked_sub(1) {
                        Some(left) => *room = left,
                        None => decision = Decision::Later(Span::ZERO),
                    }
                }
                (LetterSettlement { token: delivery.token, what: self.said(&decision) }, decision)
            });
            let (batch, decisions): (Vec<_>, Vec<_>) = decided.unzip();
            let settled = self.store.settle_letters(batch).await?;
            for (result, decision) in settled.into_iter().zip(decisions) {
                self.tally(result.is_ok(), &decision, done);
            }
            if looked_at < limits::PROCESSOR_LOOK_MAX {
                return Ok(());
            }
        }
        Ok(())
    }

    fn tally(&self, settled: bool, decision: &Decision, done: &mut Processed) {
        match decision {
            // Somebody else was faster, or the lease ran out: the letter is where it was.
            _ if !settled => {}
            Decision::Due => done.sent_back += 1,
            Decision::Ask(_) => done.review += 1,
            Decision::Spent(_) => match self.rules.on_spent {
                OnSpent::Abandon => done.abandoned += 1,
                OnSpent::Review => done.review += 1,
            },
            Decision::Later(_) | Decision::NotOurs(_) => {}
        }
    }

    /// What is to be done with a pending letter; pure.
    fn decide(&self, letter: &DeadLetter, now: Time) -> Decision {
        let message = &letter.message.envelope;
        let interval = Span::from_millis(u64::try_from(self.rules.interval.as_millis()).unwrap_or(u64::MAX));
        let put_off = interval.times(PUT_OFF_INTERVALS).min(limits::SPAN_MAX);
        if !self.queues.contains(&message.queue) || !self.handlers.contains_key(&message.kind) {
            return Decision::NotOurs(put_off);
        }
        // It says so once per death; whoever sets a letter to pending again knows better.
        let said = letter.file.notes.iter().any(|n| n.by == self.name && n.at >= letter.file.dead_at);
        let spent = letter.file.redrives >= self.rules.max_redrives;
        if said && (spent || !letter.file.eligible()) {
            return Decision::NotOurs(put_off);
        }
        if !letter.file.eligible() {
            return Decision::Ask(format!("not sent back by itself: its reason is {}", letter.file.reason));
        }
        if spent {
            return Decision::Spent(format!("sent back {} times and failed again", letter.file.redrives));
        }
        let due = self.rules.due_at(letter);
        if due <= now { Decision::Due } else { Decision::Later(due.since(now)) }
    }

    /// How the store is told.
    fn said(&self, decision: &Decision) -> LetterSettle {
        let act = |act, why: Option<&String>| {
            let actor = Actor { reason: why.cloned(), ..Actor::new(self.name.clone(), "library") };
            LetterSettle::Do { act, actor }
        };
        match decision {
            Decision::Due => act(Act::retry(), None),
            Decision::Later(Span::ZERO) => LetterSettle::Release,
            Decision::Later(span) | Decision::NotOurs(span) => LetterSettle::Snooze { span: *span },
            Decision::Ask(why) => act(Act::Review, Some(why)),
            Decision::Spent(why) => match self.rules.on_spent {
                OnSpent::Abandon => act(Act::Abandon, Some(why)),
                OnSpent::Review => act(Act::Review, Some(why)),
            },
        }
    }

    /// Leases only for free places, up to the batch, and waits for all of them.
    async fn execute(
        &self,
        queues: &[QueueName],
        stop: &CancellationToken,
        heartbeat: &Heartbeat,
        done: &mut Processed,
    ) -> Outcome<()> {
        let mut running: JoinSet<Reran> = JoinSet::new();
        let over = CancellationToken::new();
        let mut grace_over = pin!(async {
            stop.cancelled().await;
            tokio::time::sleep(self.rules.grace).await;
        });
        let mut left = self.rules.batch;
        let mut trouble = None;
        loop {
            heartbeat.beat();
            let free = left.min(self.rules.concurrency - running.len().min(self.rules.concurrency));
            let mut leased = Vec::new();
            if free > 0 && !stop.is_cancelled() && trouble.is_none() {
                match self.store.lease(self.wish(queues, free)).await {
                    Ok(deliveries) => leased = deliveries,
                    Err(error) => trouble = Some(error),
                }
            }
            left -= leased.len().min(left);
            let came = leased.len();
            for delivery in leased {
                let handler = self.handlers.get(&delivery.message.envelope.kind).cloned();
                let rerun = Rerun {
                    store: self.store.clone(),
                    delivery,
                    handler,
                    timeout: self.rules.timeout,
                    put_off: self.rules.interval,
                    over: over.clone(),
                };
                running.spawn(rerun.run());
            }
            if running.is_empty() {
                return trouble.map_or(Ok(()), Err);
            }
            if came < free || left == 0 || running.len() >= self.rules.concurrency {
                self.wait_for_one(&mut running, grace_over.as_mut(), heartbeat, &over, done).await;
            }
        }
    }

    fn wish(&self, queues: &[QueueName], max: usize) -> LeaseRequest {
        let lease_for = Some(super::rerun::LEASE);
        LeaseRequest { queues: queues.to_vec(), max, lease_for, worker: self.name.clone() }
    }

    /// Waits for an execution to end; once the end is asked for, no longer than the grace time.
    async fn wait_for_one(
        &self,
        running: &mut JoinSet<Reran>,
        mut grace_over: Pin<&mut impl Future<Output = ()>>,
        heartbeat: &Heartbeat,
        over: &CancellationToken,
        done: &mut Processed,
    ) {
        loop {
            tokio::select! {
                ended = running.join_next() => {
                    match ended {
                        Some(Ok(Reran::Succeeded)) => done.succeeded += 1,
                        Some(Ok(Reran::Failed)) => done.failed += 1,
                        // A task of ours that ended without a result leaves its lease to run out.
                        Some(Ok(Reran::Returned) | Err(_)) | None => done.returned += 1,
                    }
                    return;
                }
                () = &mut grace_over, if !over.is_cancelled() => over.cancel(),
                () = tokio::time::sleep(BEAT) => heartbeat.beat(),
            }
        }
    }
}

/// Letters that are not this processor's are looked at again after so many intervals.
const PUT_OFF_INTERVALS: u64 = 10;
/// How often it says that it is there while operations take their time.
const BEAT: Duration = Duration::from_secs(10);

#[async_trait]
impl Runnable for Processor {
    fn name(&self) -> String {
        format!("processor {}", self.name)
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), Error> {
        let mut timer = tokio::time::interval(self.rules.interval);
        // A pass that took long is followed by a whole interval, not by a burst.
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
