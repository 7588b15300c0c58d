//! The executor: makes a call as its policy says, and captures it if its last attempt fails. This file holds the loop.
//! Whether to try again is decided in `policy`, whether the breaker allows an attempt in `breakers`; `outbox` writes
//! captured operations to the store.

use super::attempt::{AttemptError, attempt};
use super::breakers::{Breakers, Gate};
use super::failed::{CaptureStatus, Describe, Failed, FailureCause};
use super::operation::Operation;
use super::outbox::{Accepted, BufferLimits, Outbox, OutboxState};
use super::policy::{Next, OnOpen, Policy, unknown};
use crate::handler::HandlerError;
use crate::runnable::{Heartbeat, Runnable};
use async_trait::async_trait;
use redrive_core::backoff::JitterSeed;
use redrive_core::breaker::BreakerSignal;
use redrive_core::dead_letter::{Actor, Captured, Note};
use redrive_core::error::{CallError, Refusal};
use redrive_core::failure::{AnalysedFailure, ClassifierRules, Failure, FailureReport, Reason};
use redrive_core::ids::QueueName;
use redrive_core::lifecycle::Lifecycle;
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

/// Runs operations under named policies, and captures those that fail for good as dead letters. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::ResilientExecutor;
/// use redrive::core::time::Span;
/// use redrive::resilient::{CaptureStatus, Operation, Policy};
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
/// let CaptureStatus::Stored(id) = failed.capture else { panic!("the store is there") };
/// let letter = store.letter(id).await?;
/// assert_eq!(letter.message.attempts, 2);
/// assert_eq!(letter.record.dlq.as_str(), "llm-dlq");
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
    policies: BTreeMap<Arc<str>, PolicyEntry>,
    clock: Arc<dyn Clock>,
    classifier_rules: ClassifierRules,
    breakers: Breakers,
    outbox: Arc<Outbox>,
    patience: Duration,
    withdrawn: AtomicU64,
}

/// A policy, and the queue of the operations captured under it.
struct PolicyEntry {
    policy: Policy,
    queue: QueueName,
}

/// Builds a [`ResilientExecutor`].
pub struct Builder {
    store: Arc<dyn Store>,
    name: String,
    policies: BTreeMap<String, Policy>,
    clock: Option<Arc<dyn Clock>>,
    classifier_rules: ClassifierRules,
    capacity: BufferLimits,
    patience: Duration,
}

impl Builder {
    /// The name of the executor in histories and in the audit trail. Defaults to `resilient`.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a policy. It replaces a built-in policy of the same name.
    #[must_use]
    pub fn policy(mut self, name: impl Into<String>, policy: Policy) -> Self {
        self.policies.insert(name.into(), policy);
        self
    }

    /// Rules that refine how failures are grouped and classified: signature rules and classification patterns.
    #[must_use]
    pub fn classifier_rules(mut self, classifier_rules: ClassifierRules) -> Self {
        self.classifier_rules = classifier_rules;
        self
    }

    /// How many operations and bytes are buffered in memory while the store cannot be written. At most 10,000 and
    /// 64 MiB, which are also the defaults.
    #[must_use]
    pub fn buffer(mut self, operations: usize, bytes: usize) -> Self {
        self.capacity = BufferLimits {
            operations: operations.min(limits::CAPTURED_MAX),
            bytes: bytes.min(limits::CAPTURED_BYTES_MAX),
        };
        self
    }

    /// How long a failed call waits for the store to confirm that the operation is written. Defaults to 5 s. The
    /// operation is captured in either case.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Uses this clock instead of the machine's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the executor.
    ///
    /// # Errors
    /// Returns a [`Refusal`] that names the policy and its invalid setting.
    pub fn build(self) -> Result<ResilientExecutor, Refusal> {
        check_worker(&self.name)?;
        let mut policies = BTreeMap::new();
        for (name, policy) in self.policies {
            let invalid = |why: String| Refusal::invalid(format!("policy {name}"), why);
            policy.check().map_err(|refusal| invalid(refusal.to_string()))?;
            let queue = match &policy.queue {
                Some(queue) => queue.clone(),
                None => name.parse().map_err(|_| invalid("is no queue name; name its queue".into()))?,
            };
            policies.insert(name.into(), PolicyEntry { policy, queue });
        }
        let clock = self.clock.unwrap_or_else(|| Arc::new(Slewing::starting_at(Time::ZERO)));
        let actor = Actor::new(self.name.clone(), "library");
        Ok(ResilientExecutor {
            inner: Arc::new(Inner {
                name: self.name,
                policies,
                breakers: Breakers::new(clock.clone()),
                outbox: Arc::new(Outbox::new(self.store, clock.clone(), actor, self.capacity)),
                clock,
                classifier_rules: self.classifier_rules,
                patience: self.patience,
                withdrawn: AtomicU64::new(0),
            }),
        })
    }
}

impl ResilientExecutor {
    /// Starts building an executor that captures failed operations in this store. It has the built-in policies.
    #[must_use]
    pub fn builder(store: Arc<dyn Store>) -> Builder {
        let policies = Policy::profiles().map(|(name, policy)| (name.to_owned(), policy));
        Builder {
            store,
            name: "resilient".into(),
            policies: policies.into(),
            clock: None,
            classifier_rules: ClassifierRules::default(),
            capacity: BufferLimits::default(),
            patience: Duration::from_secs(5),
        }
    }

    /// Runs the operation under a policy. `run` is called once per attempt.
    ///
    /// Dropping the returned future withdraws the call: the current attempt is dropped, there is no other, and the
    /// operation is not captured. Once the last attempt has failed, the operation is captured even if the future is
    /// dropped.
    ///
    /// # Errors
    /// Returns [`Failed`], which holds the caller's own error and where the operation is captured.
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

    /// Runs the operation as [`Self::execute`] does, for errors that do not implement [`Describe`] or need more detail.
    /// `describe` returns what is recorded, whether another attempt is useless ([`HandlerError::permanent`]) and when
    /// to try again ([`HandlerError::retry_after`]).
    ///
    /// # Errors
    /// The same as [`Self::execute`].
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
        let (name, entry, mut call) = match self.begin(policy, operation) {
            Ok(started) => started,
            Err(refusal) => {
                return Err(Failed {
                    cause: FailureCause::Refused(refusal),
                    attempts: 0,
                    capture: CaptureStatus::NotCaptured,
                });
            }
        };
        let inner = &*self.inner;
        let mut withdrawal = Withdrawal { counter: &inner.withdrawn, armed: true };
        let rules = entry.policy.breaker.as_ref();
        let gate = rules.and_then(|rules| inner.breakers.gate(name, rules, &call.message));
        let mut last = None;
        loop {
            let permit = match gate.as_ref().map(Gate::enter).transpose() {
                Ok(permit) => permit,
                Err(until) => {
                    withdrawal.armed = false;
                    return Err(self.breaker_open(entry, call, last, until).await);
                }
            };
            call.lifecycle.attempts += 1;
            let started = Instant::now();
            let attempted = match attempt(&mut run, entry.policy.timeout).await {
                Ok(value) => {
                    if let Some(permit) = permit {
                        permit.settle(BreakerSignal::Success);
                    }
                    withdrawal.armed = false;
                    return Ok(value);
                }
                Err(attempted) => attempted,
            };
            let mut report = report(&attempted, &describe);
            report.duration = report.duration.or(Some(span_of(started.elapsed())));
            let failure = report.analyse_with(&inner.classifier_rules);
            if let Some(permit) = permit {
                permit.settle(BreakerSignal::of(failure.route));
            }
            let now = inner.clock.now();
            let next = call.failed(&entry.policy, failure, &inner.name, now);
            let next = match next {
                Next::Wait(delay) if gate.as_ref().is_some_and(|gate| gate.is_held_at(now.plus(delay))) => {
                    call.note_breaker_opened(&entry.policy);
                    Next::Stop(Reason::BreakerOpen)
                }
                next @ (Next::Wait(_) | Next::Stop(_)) => next,
            };
            match next {
                Next::Wait(delay) => {
                    call.lifecycle.last_delay = Some(delay);
                    tokio::time::sleep(delay.to_std()).await;
                    last = Some(attempted);
                }
                Next::Stop(reason) => {
                    withdrawal.armed = false;
                    return Err(self.capture(call, attempted.into(), reason).await);
                }
            }
        }
    }

    fn begin(&self, policy: &str, operation: Operation) -> Result<(&Arc<str>, &PolicyEntry, Call), Refusal> {
        let policies = &self.inner.policies;
        let (name, entry) = policies
            .get_key_value(policy)
            .ok_or_else(|| unknown(policy, policies.keys().map(|name| name.as_ref())))?;
        let now = self.inner.clock.now();
        // The id is created once, so that writing the letter again is harmless.
        let (message, note) =
            operation.into_message(crate::new_id(), entry.queue.clone(), &self.inner.name)?;
        let (lifecycle, failures) = (Lifecycle::new(now, now), Vec::new());
        Ok((name, entry, Call { message, note, began_at: now, lifecycle, failures, last: None }))
    }

    /// The breaker is open. A call that was tried already fails with the error of its last attempt.
    async fn breaker_open<E>(
        &self,
        entry: &PolicyEntry,
        mut call: Call,
        last: Option<AttemptError<E>>,
        until: Option<Time>,
    ) -> Failed<E> {
        if let Some(attempted) = last {
            call.note_breaker_opened(&entry.policy);
            return self.capture(call, attempted.into(), Reason::BreakerOpen).await;
        }
        let cause = FailureCause::BreakerOpen { until };
        match entry.policy.on_open {
            OnOpen::Refuse => Failed { cause, attempts: 0, capture: CaptureStatus::NotCaptured },
            OnOpen::Capture => {
                let message = format!("the breaker of {} was open; not executed", call.message.queue);
                let report = HandlerError::new("BreakerOpen", message).into_report();
                let failure = report.analyse_with(&self.inner.classifier_rules);
                let now = self.inner.clock.now();
                let _ = call.failed(&entry.policy, failure, &self.inner.name, now);
                self.capture(call, cause, Reason::BreakerOpen).await
            }
        }
    }

    /// Captures a call that failed for good, and returns where.
    async fn capture<E>(&self, call: Call, cause: FailureCause<E>, reason: Reason) -> Failed<E> {
        let attempts = call.lifecycle.attempts;
        let id = call.message.id;
        let Some(captured) = call.captured(reason, &self.inner.name) else {
            return Failed { cause, attempts, capture: CaptureStatus::NotCaptured };
        };
        tracing::warn!(
            %id, queue = %captured.message.queue, kind = %captured.message.kind, attempts, reason = %reason,
            "an operation failed for good and is captured"
        );
        let capture = match self.inner.outbox.accept(captured) {
            Accepted::Settled(capture) => capture,
            Accepted::Writing(receiver) => match tokio::time::timeout(self.inner.patience, receiver).await {
                Ok(Ok(capture)) => capture,
                Ok(Err(_)) | Err(_) => CaptureStatus::Buffered(id),
            },
        };
        Failed { cause, attempts, capture }
    }

    /// The state of captured operations: how many are stored, buffered and lost.
    #[must_use]
    pub fn state(&self) -> OutboxState {
        self.inner.outbox.state(self.inner.withdrawn.load(Ordering::Relaxed))
    }

    /// Writes the operations that are buffered in memory, within the grace time, and returns the state after that. Call
    /// it before the process ends: operations that are still buffered then are lost.
    pub async fn shutdown(&self, grace: Duration) -> OutboxState {
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

/// How long an executor in a group of loops may take to write buffered operations when it is stopped.
const GRACE: Duration = Duration::from_secs(30);
/// How often the executor beats its heartbeat.
const BEAT: Duration = Duration::from_secs(10);

/// In a group of loops an executor only waits to be stopped, and then writes its buffered operations.
#[async_trait]
impl Runnable for ResilientExecutor {
    fn name(&self) -> String {
        format!("executor {}", self.inner.name)
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError> {
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

/// A call in progress: everything that is captured if it fails.
struct Call {
    message: NewMessage,
    note: Option<String>,
    began_at: Time,
    lifecycle: Lifecycle,
    failures: Vec<Failure>,
    last: Option<AnalysedFailure>,
}

impl Call {
    /// Records a failed attempt. Returns what follows from it.
    fn failed(&mut self, policy: &Policy, failure: AnalysedFailure, worker: &str, now: Time) -> Next {
        let jitter_seed = JitterSeed::of(self.message.id, self.lifecycle.attempts);
        let recorded = failure.clone().into_failure(1, self.lifecycle.attempts, now, Some(worker.to_owned()));
        Captured::remember(&mut self.failures, self.lifecycle.failed, recorded);
        self.lifecycle.failed += 1;
        self.lifecycle.failing_since = self.lifecycle.failing_since.or(Some(now));
        let next = policy.next(&self.lifecycle, &failure, now, jitter_seed);
        tracing::debug!(
            id = %self.message.id, queue = %self.message.queue, kind = %self.message.kind,
            attempt = self.lifecycle.attempts, error = %failure.report.error.message, next = ?next,
            "an attempt failed"
        );
        self.last = Some(failure);
        next
    }

    /// Notes in the history that the breaker opened, which is why there were no more attempts.
    fn note_breaker_opened(&mut self, policy: &Policy) {
        let (made, allowed) = (self.lifecycle.attempts, policy.attempts);
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
            attempts: self.lifecycle.attempts,
            failed: self.lifecycle.failed,
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

/// The failure report of a failed attempt.
fn report<E>(attempted: &AttemptError<E>, describe: impl Fn(&E) -> HandlerError) -> FailureReport {
    match attempted {
        AttemptError::Error(error) => describe(error).into_report(),
        AttemptError::TimedOut(limit) => {
            HandlerError::new("Timeout", format!("no answer within {limit}")).into_report()
        }
        AttemptError::Panicked(message) => {
            FailureReport { crashed: true, ..HandlerError::new("Panic", message.clone()).into_report() }
        }
    }
}

impl<E> From<AttemptError<E>> for FailureCause<E> {
    fn from(attempted: AttemptError<E>) -> Self {
        match attempted {
            AttemptError::Error(error) => Self::Error(error),
            AttemptError::TimedOut(limit) => Self::TimedOut(limit),
            AttemptError::Panicked(message) => Self::Panicked(message),
        }
    }
}

fn span_of(duration: Duration) -> Span {
    Span::from_millis(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}
