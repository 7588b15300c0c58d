//! The executor: tries a call as its policy says, and keeps what fails for good. The loop is here, every decision
//! is elsewhere: whether to try again in `policy`, whether the other side is left alone in `breakers`, how a letter
//! looks in the core, how it gets into the store in `outbox`.

use super::attempt::{Attempted, attempt};
use super::breakers::{Breakers, Gate};
use super::failed::{Describe, Failed, Kept, Why};
use super::operation::Operation;
use super::outbox::{Accepted, Outbox, Room, State};
use super::policy::{Next, OnOpen, Policy, unknown};
use crate::handler::HandlerError;
use crate::runnable::{Heartbeat, Runnable};
use async_trait::async_trait;
use redrive_core::backoff::Roll;
use redrive_core::breaker::Signal;
use redrive_core::dead_letter::{Actor, Captured, Note};
use redrive_core::error::{Error, Refusal};
use redrive_core::failure::{Analysed, Failure, Knowledge, Reason, Report};
use redrive_core::ids::QueueName;
use redrive_core::lifecycle::Life;
use redrive_core::limits;
use redrive_core::message::NewMessage;
use redrive_core::store::{Store, check_worker};
use redrive_core::time::{Clock, Span, Time};
use redrive_store::clock::Slewing;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Runs operations under named policies, and keeps what fails for good as dead letters. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::ResilientExecutor;
/// use redrive::core::time::Span;
/// use redrive::resilient::{Kept, Operation, Policy};
///
/// let store = redrive::memory();
/// let fast = Policy::exponential(2, Span::from_millis(1), Span::from_millis(5), 10);
/// let executor = ResilientExecutor::builder(store.clone()).policy("llm", fast).build()?;
///
/// let operation = Operation::new("llm_call")
///     .endpoint("https://models.example.com/v1/complete")
///     .json(&serde_json::json!({"prompt": "hello"}))
///     .task("t-7", "answer the issue", "webhook");
/// let answer = executor
///     .execute("llm", operation, || async { Err::<(), _>(std::io::Error::other("connection reset")) })
///     .await;
///
/// let failed = answer.unwrap_err();
/// let Kept::Stored(id) = failed.kept else { panic!("the store is there") };
/// let letter = store.letter(id).await?;
/// assert_eq!(letter.message.attempts, 2);
/// assert_eq!(letter.file.dlq.as_str(), "llm-dlq");
/// assert_eq!(failed.into_error().unwrap().to_string(), "connection reset"); // the caller's own error
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ResilientExecutor {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    plans: BTreeMap<Arc<str>, Plan>,
    clock: Arc<dyn Clock>,
    knowledge: Knowledge,
    breakers: Breakers,
    outbox: Arc<Outbox>,
    patience: Duration,
    withdrawn: AtomicU64,
}

/// A policy and where its failures go.
struct Plan {
    policy: Policy,
    queue: QueueName,
}

/// How an executor is put together.
pub struct Builder {
    store: Arc<dyn Store>,
    name: String,
    policies: BTreeMap<String, Policy>,
    clock: Option<Arc<dyn Clock>>,
    knowledge: Knowledge,
    room: Room,
    patience: Duration,
}

impl Builder {
    /// With this name in histories and in the audit trail; `resilient` when not said.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// With a policy of this name; it takes the place of a built-in one.
    #[must_use]
    pub fn policy(mut self, name: impl Into<String>, policy: Policy) -> Self {
        self.policies.insert(name.into(), policy);
        self
    }

    /// With what is known better than the built-in tables about errors.
    #[must_use]
    pub fn knowledge(mut self, knowledge: Knowledge) -> Self {
        self.knowledge = knowledge;
        self
    }

    /// With room for so many operations and bytes while the store cannot be written; at most the limits of the
    /// product (10,000 and 64 MiB), which are the default.
    #[must_use]
    pub fn buffer(mut self, operations: usize, bytes: usize) -> Self {
        self.room = Room {
            operations: operations.min(limits::CAPTURED_MAX),
            bytes: bytes.min(limits::CAPTURED_BYTES_MAX),
        };
        self
    }

    /// How long a caller whose call has failed waits to hear that it is in the store; 5 s when not said. It is
    /// kept in either case.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// With another clock than the machine's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The executor.
    ///
    /// # Errors
    /// A [`Refusal`] that names the policy and the setting that cannot be meant.
    pub fn build(self) -> Result<ResilientExecutor, Refusal> {
        check_worker(&self.name)?;
        let mut plans = BTreeMap::new();
        for (name, policy) in self.policies {
            let wrong = |why: String| Refusal::invalid(format!("policy {name}"), why);
            policy.check().map_err(|refusal| wrong(refusal.to_string()))?;
            let queue = match &policy.queue {
                Some(queue) => queue.clone(),
                None => name.parse().map_err(|_| wrong("is no queue name; name its queue".into()))?,
            };
            plans.insert(name.into(), Plan { policy, queue });
        }
        let clock = self.clock.unwrap_or_else(|| Arc::new(Slewing::starting_at(Time::ZERO)));
        let actor = Actor::new(self.name.clone(), "library");
        Ok(ResilientExecutor {
            inner: Arc::new(Inner {
                name: self.name,
                plans,
                breakers: Breakers::new(clock.clone()),
                outbox: Arc::new(Outbox::new(self.store, clock.clone(), actor, self.room)),
                clock,
                knowledge: self.knowledge,
                patience: self.patience,
                withdrawn: AtomicU64::new(0),
            }),
        })
    }
}

impl ResilientExecutor {
    /// An executor that keeps its failures in this store, with the built-in policies.
    #[must_use]
    pub fn builder(store: Arc<dyn Store>) -> Builder {
        let policies = Policy::profiles().map(|(name, policy)| (name.to_owned(), policy));
        Builder {
            store,
            name: "resilient".into(),
            policies: policies.into(),
            clock: None,
            knowledge: Knowledge::default(),
            room: Room::default(),
            patience: Duration::from_secs(5),
        }
    }

    /// Runs the operation as the policy says. `run` is called once per attempt.
    ///
    /// Dropping the returned future withdraws the call: the attempt is dropped, there is no other one, and
    /// nothing is kept, because nothing failed for good. From the moment the last attempt has failed the
    /// operation is kept whether or not anybody still waits.
    ///
    /// # Errors
    /// [`Failed`], with the caller's own error inside, and where the operation is kept.
    pub async fn execute<T, E, F, Fut>(
        &self,
        policy: &str,
        operation: Operation,
        run: F,
    ) -> Result<T, Failed<E>>
    where
        E: Describe,
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.execute_with(policy, operation, E::describe, run).await
    }

    /// The same for errors that say nothing about themselves, or not enough: `describe` says what is filed,
    /// whether trying again is useless ([`HandlerError::permanent`]) and when to come back
    /// ([`HandlerError::retry_after`]).
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub async fn execute_with<T, E, F, Fut, D>(
        &self,
        policy: &str,
        operation: Operation,
        describe: D,
        mut run: F,
    ) -> Result<T, Failed<E>>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        D: Fn(&E) -> HandlerError,
    {
        let (name, plan, mut call) = match self.begin(policy, operation) {
            Ok(begun) => begun,
            Err(refusal) => {
                return Err(Failed { why: Why::Refused(refusal), attempts: 0, kept: Kept::Nowhere });
            }
        };
        let inner = &*self.inner;
        let mut withdrawal = Withdrawal { counter: &inner.withdrawn, armed: true };
        let rules = plan.policy.breaker.as_ref();
        let gate = rules.and_then(|rules| inner.breakers.gate(name, rules, &call.message));
        let mut last = None;
        loop {
            let permit = match gate.as_ref().map(Gate::enter).transpose() {
                Ok(permit) => permit,
                Err(until) => {
                    withdrawal.armed = false;
                    return Err(self.held_back(plan, call, last, until).await);
                }
            };
            call.life.attempts += 1;
            let started = Instant::now();
            let attempted = match attempt(&mut run, plan.policy.timeout).await {
                Ok(value) => {
                    if let Some(permit) = permit {
                        permit.settle(Signal::Success);
                    }
                    withdrawal.armed = false;
                    return Ok(value);
                }
                Err(attempted) => attempted,
            };
            let mut report = report(&attempted, &describe);
            report.duration = report.duration.or(Some(span_of(started.elapsed())));
            let failure = report.analyse_with(&inner.knowledge);
            if let Some(permit) = permit {
                permit.settle(Signal::of(failure.route));
            }
            let now = inner.clock.now();
            let next = call.failed(&plan.policy, failure, &inner.name, now);
            let next = match next {
                Next::Wait(delay) if gate.as_ref().is_some_and(|gate| gate.is_held_at(now.plus(delay))) => {
                    call.cut_short(&plan.policy);
                    Next::Stop(Reason::BreakerOpen)
                }
                next @ (Next::Wait(_) | Next::Stop(_)) => next,
            };
            match next {
                Next::Wait(delay) => {
                    call.life.last_delay = Some(delay);
                    tokio::time::sleep(delay.to_std()).await;
                    last = Some(attempted);
                }
                Next::Stop(reason) => {
                    withdrawal.armed = false;
                    return Err(self.keep(call, attempted.into(), reason).await);
                }
            }
        }
    }

    fn begin(&self, policy: &str, operation: Operation) -> Result<(&Arc<str>, &Plan, Call), Refusal> {
        let plans = &self.inner.plans;
        let (name, plan) = plans
            .get_key_value(policy)
            .ok_or_else(|| unknown(policy, plans.keys().map(|name| name.as_ref())))?;
        let now = self.inner.clock.now();
        // The id is made once, so that writing the letter again is harmless.
        let (message, note) =
            operation.into_message(crate::new_id(), plan.queue.clone(), &self.inner.name)?;
        let (life, failures) = (Life::new(now, now), Vec::new());
        Ok((name, plan, Call { message, note, began_at: now, life, failures, last: None }))
    }

    /// The breaker is open. Whoever has been tried fails with the error that it had.
    async fn held_back<E>(
        &self,
        plan: &Plan,
        mut call: Call,
        last: Option<Attempted<E>>,
        until: Option<Time>,
    ) -> Failed<E> {
        if let Some(attempted) = last {
            call.cut_short(&plan.policy);
            return self.keep(call, attempted.into(), Reason::BreakerOpen).await;
        }
        let why = Why::Open { until };
        match plan.policy.on_open {
            OnOpen::Refuse => Failed { why, attempts: 0, kept: Kept::Nowhere },
            OnOpen::Capture => {
                let words = format!("the breaker of {} was open; not executed", call.message.queue);
                let report = HandlerError::new("BreakerOpen", words).into_report();
                let failure = report.analyse_with(&self.inner.knowledge);
                let now = self.inner.clock.now();
                let _ = call.failed(&plan.policy, failure, &self.inner.name, now);
                self.keep(call, why, Reason::BreakerOpen).await
            }
        }
    }

    /// Keeps a call that failed for good, and says where.
    async fn keep<E>(&self, call: Call, why: Why<E>, reason: Reason) -> Failed<E> {
        let attempts = call.life.attempts;
        let id = call.message.id;
        let Some(captured) = call.captured(reason, &self.inner.name) else {
            return Failed { why, attempts, kept: Kept::Nowhere };
        };
        tracing::warn!(
            %id, queue = %captured.message.queue, kind = %captured.message.kind, attempts, reason = %reason,
            "an operation failed for good and is kept"
        );
        let kept = match self.inner.outbox.accept(captured) {
            Accepted::Settled(kept) => kept,
            Accepted::Writing(told) => match tokio::time::timeout(self.inner.patience, told).await {
                Ok(Ok(kept)) => kept,
                Ok(Err(_)) | Err(_) => Kept::Buffered(id),
            },
        };
        Failed { why, attempts, kept }
    }

    /// How the operations stand that failed and are to be kept.
    #[must_use]
    pub fn state(&self) -> State {
        self.inner.outbox.state(self.inner.withdrawn.load(Ordering::Relaxed))
    }

    /// Writes what waits in memory, for so long at most, and says how things stand then. To be called before a
    /// process ends: what is still buffered after it is lost with the process.
    pub async fn shutdown(&self, grace: Duration) -> State {
        self.inner.outbox.drain(grace).await;
        let state = self.state();
        if state.buffered > 0 {
            tracing::error!(
                operations = state.buffered,
                store_error = state.last_error.as_deref().unwrap_or("none"),
                "failed operations could not be written in time"
            );
        }
        state
    }
}

/// How long the end of a group of loops may take for what waits in memory.
const GRACE: Duration = Duration::from_secs(30);
/// How often it says that it is there.
const BEAT: Duration = Duration::from_secs(10);

/// In a group of loops an executor does nothing but end well: it writes what waits.
#[async_trait]
impl Runnable for ResilientExecutor {
    fn name(&self) -> String {
        format!("executor {}", self.inner.name)
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), Error> {
        loop {
            heartbeat.beat();
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(BEAT) => {}
            }
        }
        self.shutdown(GRACE).await;
        Ok(())
    }
}

/// Counts a call that was dropped before it ended.
struct Withdrawal<'a> {
    counter: &'a AtomicU64,
    armed: bool,
}

impl Drop for Withdrawal<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A call on its way: what would be kept of it.
struct Call {
    message: NewMessage,
    note: Option<String>,
    began_at: Time,
    life: Life,
    failures: Vec<Failure>,
    last: Option<Analysed>,
}

impl Call {
    /// Notes a failed attempt; says what follows from it.
    fn failed(&mut self, policy: &Policy, failure: Analysed, worker: &str, now: Time) -> Next {
        let roll = Roll::of(self.message.id, self.life.attempts);
        let filed = failure.clone().file(1, self.life.attempts, now, Some(worker.to_owned()));
        Captured::remember(&mut self.failures, self.life.failed, filed);
        self.life.failed += 1;
        self.life.failing_since = self.life.failing_since.or(Some(now));
        let next = policy.next(&self.life, &failure, now, roll);
        tracing::debug!(
            id = %self.message.id, queue = %self.message.queue, kind = %self.message.kind,
            attempt = self.life.attempts, error = %failure.report.error.message, next = ?next,
            "an attempt failed"
        );
        self.last = Some(failure);
        next
    }

    /// Says in its history why there were no more attempts.
    fn cut_short(&mut self, policy: &Policy) {
        let (made, allowed) = (self.life.attempts, policy.attempts);
        if let Some(trail) = self.failures.last_mut().map(|failure| &mut failure.error.context)
            && trail.len() < limits::TRAIL_ENTRIES_MAX
        {
            trail.push(format!("its breaker opened after attempt {made} of {allowed}"));
        }
    }

    fn captured(self, reason: Reason, by: &str) -> Option<Captured> {
        let dead_at = self.failures.last()?.at;
        Some(Captured {
            began_at: self.began_at,
            attempts: self.life.attempts,
            failed: self.life.failed,
            failures: self.failures,
            last: self.last?,
            dead_at,
            reason,
            note: self.note.map(|text| {
                let who = self.message.enqueued_by.clone();
                Note { at: self.began_at, by: who.unwrap_or_else(|| by.to_owned()), text }
            }),
            message: self.message,
        })
    }
}

/// What is filed about a failed attempt.
fn report<E>(attempted: &Attempted<E>, describe: impl Fn(&E) -> HandlerError) -> Report {
    match attempted {
        Attempted::Error(error) => describe(error).into_report(),
        Attempted::TimedOut(limit) => {
            HandlerError::new("Timeout", format!("no answer within {limit}")).into_report()
        }
        Attempted::Panicked(words) => {
            Report { crashed: true, ..HandlerError::new("Panic", words.clone()).into_report() }
        }
    }
}

impl<E> From<Attempted<E>> for Why<E> {
    fn from(attempted: Attempted<E>) -> Self {
        match attempted {
            Attempted::Error(error) => Self::Error(error),
            Attempted::TimedOut(limit) => Self::TimedOut(limit),
            Attempted::Panicked(words) => Self::Panicked(words),
        }
    }
}

fn span_of(duration: Duration) -> Span {
    Span::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
