//! The main loop of a worker. It owns every lease and every counter. Executors and store calls run in tasks of
//! their own and only send their results here, so this file needs no locks and events have one order.
//!
//! Each turn of [`Dispatcher::run`] does what is possible now: start deliveries, send settlements, extend leases,
//! lease more. Then it sleeps until a task ends, somebody stops the worker, or the next deadline is reached.

use super::messages::{Execution, ExecutionResult, HeldLease, LimitKeys, RunningHandler, Stage};
use super::shutdown::ShutdownTimes;
use super::throttle::{Blocked, Throttle};
use super::{Counters, WorkerConfig, WorkerHandle, executor};
use crate::handler::ProgressSlot;
use crate::metrics::{Gauge, GaugeGuard};
use crate::runnable::Heartbeat;
use redrive_core::error::{CallError, StoreError, StoreErrorKind};
use redrive_core::ids::{LeaseToken, MessageId};
use redrive_core::message::Delivery;
use redrive_core::priority_queue::{Dequeued, PriorityQueue};
use redrive_core::store::{BatchResults, Settle, Settled, Settlement};
use redrive_core::time::{Span, Time};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The longest time a worker waits for work before it asks again. An idle worker beats its heartbeat this often.
pub(super) const POLL: Span = Span::from_secs(20);
/// How often a worker that is past its shutdown deadline checks whether its last store call was answered.
const EXIT_POLL: Duration = Duration::from_millis(50);
/// The shortest and the longest pause after a failed store call. The pause doubles with each failure.
pub(super) const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// The result of a store call.
pub(super) enum CallResult {
    Leased {
        requested: usize,
        requested_at: Instant,
        result: Result<Vec<Delivery>, CallError>,
    },
    Settled {
        batch: Vec<Settlement>,
        result: Result<BatchResults<Settled>, CallError>,
    },
    Extended {
        batch: Vec<Settlement>,
        requested_at: Instant,
        result: Result<BatchResults<Settled>, CallError>,
    },
    /// A call that waited for work has returned; `true` if a message is due.
    Woken(Result<bool, CallError>),
    /// The number of messages that remain in the queues.
    Remaining(Result<u64, CallError>),
}

/// The store calls that are under way: at most one of each kind.
#[derive(Default)]
pub(super) struct CallsInFlight {
    pub(super) leasing: bool,
    pub(super) settling: bool,
    pub(super) extending: bool,
    pub(super) counting: bool,
    pub(super) waiting: Option<AbortHandle>,
}

/// The growing pause between retries of a store call.
pub(super) struct Backoff {
    pause: Duration,
    pub(super) until: Instant,
}

impl Backoff {
    fn new() -> Self {
        Self { pause: Duration::ZERO, until: Instant::now() }
    }

    pub(super) fn failed(&mut self) {
        self.pause = (self.pause * 2).clamp(RETRY_PAUSE.0, RETRY_PAUSE.1);
        self.until = Instant::now() + self.pause;
    }

    pub(super) fn succeeded(&mut self) {
        self.pause = Duration::ZERO;
    }
}

/// The state of a running worker.
pub(super) struct Dispatcher {
    pub(super) config: Arc<WorkerConfig>,
    pub(super) handle: WorkerHandle,
    pub(super) heartbeat: Heartbeat,
    pub(super) throttle: Throttle,
    /// Every lease this worker holds.
    pub(super) held: HashMap<LeaseToken, HeldLease>,
    /// Messages whose lease was lost while their handler was running, and whose handler still runs.
    pub(super) lost_running: HashSet<MessageId>,
    /// Leased deliveries that have not started, most urgent first.
    pub(super) hand_off: PriorityQueue<Delivery>,
    /// Leased deliveries whose kind or key is at its limit, oldest first.
    pub(super) parked: VecDeque<Delivery>,
    /// Whether something changed that may allow a parked delivery to start.
    pub(super) recheck_parked: bool,
    /// When the rate limit of a kind allows a parked delivery to start.
    pub(super) parked_until: Option<Instant>,
    /// Occupied slots, including those of stragglers.
    pub(super) running: usize,
    pub(super) executions: JoinSet<ExecutionResult>,
    /// Handlers that were cancelled and still run.
    pub(super) stragglers: JoinSet<LimitKeys>,
    pub(super) in_flight: CallsInFlight,
    pub(super) store_calls: JoinSet<CallResult>,
    /// Settlements that the store has not been sent yet, in order.
    pub(super) unsettled: Vec<Settlement>,
    pub(super) settle_backoff: Backoff,
    /// The last lease call returned fewer messages than requested; lease again when the store wakes the worker.
    pub(super) nothing_due: bool,
    /// How long to wait before leasing after a wake-up, because earlier wake-ups found no work.
    pub(super) false_wake_delay: Duration,
    /// The store woke the worker, and no lease call has returned since.
    pub(super) woken_by_store: bool,
    pub(super) lease_not_before: Instant,
    pub(super) lease_backoff: Backoff,
    /// When the first lease has to be extended.
    pub(super) next_extension: Option<Instant>,
    /// Notified whenever a handler reports progress.
    pub(super) progress_reported: Arc<Notify>,
    pub(super) progress_due: Option<Instant>,
    pub(super) progress_saved_at: Instant,
    /// The store's time, and the local instant at which it was that time.
    pub(super) store_time: Option<(Time, Instant)>,
    pub(super) leased_total: u64,
    /// Whether the queues may have become empty since the remaining messages were last counted.
    pub(super) count_due: bool,
    /// Set once the worker is shutting down.
    pub(super) shutdown: Option<ShutdownTimes>,
    pub(super) handlers_cancelled: bool,
    pub(super) handlers_aborted: bool,
    /// The error that stops the worker.
    pub(super) fatal_error: Option<CallError>,
}

impl Dispatcher {
    pub(super) fn new(config: Arc<WorkerConfig>, handle: WorkerHandle, heartbeat: Heartbeat) -> Self {
        let now = Instant::now();
        let capacity = config.concurrency.saturating_add(config.prefetch).max(2);
        Self {
            throttle: Throttle::new(&config.limits),
            handle,
            heartbeat,
            held: HashMap::new(),
            lost_running: HashSet::new(),
            hand_off: PriorityQueue::with_capacity(capacity),
            parked: VecDeque::new(),
            recheck_parked: false,
            parked_until: None,
            running: 0,
            executions: JoinSet::new(),
            stragglers: JoinSet::new(),
            in_flight: CallsInFlight::default(),
            store_calls: JoinSet::new(),
            unsettled: Vec::new(),
            settle_backoff: Backoff::new(),
            nothing_due: false,
            false_wake_delay: Duration::ZERO,
            woken_by_store: false,
            lease_not_before: now,
            lease_backoff: Backoff::new(),
            next_extension: None,
            progress_reported: Arc::new(Notify::new()),
            progress_due: None,
            progress_saved_at: now,
            store_time: None,
            leased_total: 0,
            count_due: true,
            shutdown: None,
            handlers_cancelled: false,
            handlers_aborted: false,
            fatal_error: None,
            config,
        }
    }

    /// Works until `stop` is cancelled, then shuts down within the grace time.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), CallError> {
        tracing::info!(worker = %self.config.name, queues = ?self.config.queues, "worker started");
        let (stop_now, mut stopping_now) = (self.handle.stop_now.clone(), false);
        let _slots = GaugeGuard::by(Gauge::WorkerSlots, self.config.concurrency);
        loop {
            self.heartbeat.beat();
            if stop.is_cancelled()
                || stopping_now
                || self.reached_max_deliveries()
                || self.fatal_error.is_some()
            {
                self.begin_shutdown();
            }
            self.advance_shutdown();
            self.start_deliveries();
            self.flush_settlements();
            self.extend_leases();
            self.lease_more();
            self.publish_running();
            if self.may_exit() {
                break;
            }
            let wakeup = self.next_wakeup();
            tokio::select! {
                biased;
                Some(joined) = self.store_calls.join_next(), if !self.store_calls.is_empty() => {
                    match joined {
                        Ok(result) => self.on_call_result(result),
                        Err(error) => self.on_call_died(&error),
                    }
                }
                Some(joined) = self.executions.join_next(), if !self.executions.is_empty() => {
                    self.on_execution_joined(joined);
                }
                Some(joined) = self.stragglers.join_next(), if !self.stragglers.is_empty() => {
                    // The task only waits for the handler: it cannot panic, and nobody aborts it.
                    if let Ok(limit_keys) = joined { self.free_slot(&limit_keys); }
                }
                () = stop.cancelled(), if self.shutdown.is_none() => {}
                () = stop_now.cancelled(), if !stopping_now => {
                    stopping_now = true;
                    self.shorten_grace();
                }
                () = self.progress_reported.notified() => self.on_progress_reported(),
                () = tokio::time::sleep_until(wakeup) => {}
            }
            while let Some(joined) = self.executions.try_join_next() {
                self.on_execution_joined(joined);
            }
        }
        self.executions.abort_all();
        self.handle.counters.running.store(0, Ordering::Relaxed);
        tracing::info!(worker = %self.config.name, unsettled = self.held.len(), "worker stopped");
        self.fatal_error.map_or(Ok(()), Err)
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.handle.counters
    }

    fn publish_running(&self) {
        let running = u64::try_from(self.running.saturating_sub(self.stragglers.len())).unwrap_or(u64::MAX);
        self.counters().running.store(running, Ordering::Relaxed);
        let stuck = u64::try_from(self.stragglers.len()).unwrap_or(u64::MAX);
        self.counters().stuck.store(stuck, Ordering::Relaxed);
    }

    /// The next instant at which the loop has to do something even if no task ends before.
    fn next_wakeup(&self) -> Instant {
        let now = Instant::now();
        let mut wakeup = now + POLL.to_std();
        let shutdown = self.shutdown.map(|times| match (self.handlers_cancelled, self.handlers_aborted) {
            (false, _) => times.cancel_at,
            (true, false) => times.abort_at,
            (true, true) if Instant::now() < times.exit_at => times.exit_at,
            (true, true) => now + EXIT_POLL,
        });
        let settle =
            (!self.unsettled.is_empty() && !self.in_flight.settling).then_some(self.settle_backoff.until);
        let lease_pending = self.in_flight.leasing || self.in_flight.waiting.is_some();
        let lease = (self.shutdown.is_none() && !lease_pending && self.free_slots() > 0)
            .then(|| self.lease_not_before.max(self.lease_backoff.until));
        let extend = self.next_extension.filter(|_| !self.in_flight.extending);
        let progress = self.progress_due.filter(|_| !self.in_flight.extending);
        for at in [shutdown, settle, lease, extend, progress, self.parked_until].into_iter().flatten() {
            wakeup = wakeup.min(at);
        }
        wakeup
    }

    fn on_call_result(&mut self, result: CallResult) {
        match result {
            CallResult::Leased { requested, requested_at, result } => {
                self.in_flight.leasing = false;
                match result {
                    Ok(deliveries) => self.on_leased(requested, requested_at, deliveries),
                    Err(error) => self.on_store_error("lease", error),
                }
            }
            CallResult::Settled { batch, result } => {
                self.in_flight.settling = false;
                self.on_settled(batch, result);
            }
            CallResult::Extended { batch, requested_at, result } => {
                self.in_flight.extending = false;
                self.on_extended(&batch, requested_at, result);
            }
            CallResult::Woken(result) => {
                self.in_flight.waiting = None;
                match result {
                    Ok(due) => self.on_woken(due),
                    Err(error) => self.on_store_error("wait", error),
                }
            }
            CallResult::Remaining(result) => {
                self.in_flight.counting = false;
                match result {
                    Ok(0) if self.held.is_empty() && !self.in_flight.leasing => self.begin_shutdown(),
                    Ok(_) => {}
                    Err(error) => self.on_store_error("count", error),
                }
            }
        }
    }

    /// Starts parked and waiting deliveries until the slots are full.
    fn start_deliveries(&mut self) {
        let now = Instant::now();
        if self.parked_until.is_some_and(|until| until <= now) {
            (self.parked_until, self.recheck_parked) = (None, true);
        }
        if self.recheck_parked {
            self.recheck_parked = false;
            for _ in 0..self.parked.len() {
                let Some(delivery) = self.parked.pop_front() else { break };
                self.start_or_park(delivery, now);
            }
        }
        while self.running < self.config.concurrency {
            match self.hand_off.dequeue() {
                Dequeued::Item(picked) => self.start_or_park(picked.item, now),
                // The store expires the message once it is released.
                Dequeued::Expired(overdue) => self.release(overdue.item.token),
                Dequeued::Empty | Dequeued::Held | Dequeued::LostRace => break,
            }
        }
    }

    fn start_or_park(&mut self, delivery: Delivery, now: Instant) {
        let token = delivery.token;
        // The lease was lost while the delivery waited.
        let Some(held) = self.held.get(&token) else { return };
        let lease_for = held.lease_for;
        let envelope = &delivery.message.envelope;
        let limit_keys = LimitKeys { kind: envelope.kind.clone(), key: self.throttle.key_of(envelope) };
        let blocked = if self.running < self.config.concurrency {
            self.throttle.enter(&limit_keys, now).err()
        } else {
            Some(Blocked::Full)
        };
        match blocked {
            None => self.start(delivery, limit_keys),
            // It cannot start within this lease, so it goes back to its queue until then.
            Some(Blocked::Until(until)) if until > now + lease_for.to_std() => {
                let span = u64::try_from(until.duration_since(now).as_millis()).unwrap_or(u64::MAX);
                self.queue_settlement(token, Settle::Snooze { span: Span::from_millis(span) });
            }
            Some(blocked) => {
                if let Blocked::Until(until) = blocked {
                    self.parked_until = Some(self.parked_until.map_or(until, |at| at.min(until)));
                }
                if let Some(held) = self.held.get_mut(&token) {
                    held.stage = Stage::Parked;
                    self.parked.push_back(delivery);
                }
            }
        }
    }

    fn start(&mut self, delivery: Delivery, limit_keys: LimitKeys) {
        let token = delivery.token;
        let config = Arc::clone(&self.config);
        let progress_slot = Arc::new(ProgressSlot::notifying(Arc::clone(&self.progress_reported)));
        let cancel = CancellationToken::new();
        let execution = Execution {
            handler: config.handlers.get(&limit_keys.kind).or(config.fallback.as_ref()).cloned(),
            timeout: config.timeouts.get(&limit_keys.kind).copied().or(config.timeout),
            delivery: Arc::new(delivery),
            cancel: cancel.clone(),
            progress_slot: Arc::clone(&progress_slot),
            limit_keys: limit_keys.clone(),
        };
        let abort = self.executions.spawn(async move { executor::execute(&config, execution).await });
        self.running += 1;
        if let Some(held) = self.held.get_mut(&token) {
            held.stage = Stage::Running(RunningHandler { cancel, progress_slot, abort, limit_keys });
        }
    }

    fn on_execution_joined(&mut self, joined: Result<ExecutionResult, JoinError>) {
        match joined {
            Ok(result) => self.on_execution_ended(result),
            // The worker aborted it during shutdown and has released its message already.
            Err(error) if error.is_cancelled() => {}
            Err(error) => self.on_executor_panicked(error.id()),
        }
    }

    fn on_execution_ended(&mut self, result: ExecutionResult) {
        let ExecutionResult { token, limit_keys, settle, straggler } = result;
        match straggler {
            // The handler keeps its slot, and still counts towards the limits of its kind and key, until it has
            // really ended. Otherwise more handlers could run than allowed.
            Some(task) => {
                tracing::warn!(message = %token.id, "the handler still runs after it was cancelled");
                self.stragglers.spawn(async move {
                    let _ = task.await;
                    limit_keys
                });
            }
            None => self.free_slot(&limit_keys),
        }
        self.lost_running.remove(&token.id);
        self.queue_settlement(token, settle);
    }

    /// The executor itself panicked, outside the handler. Only its delivery fails.
    fn on_executor_panicked(&mut self, task: tokio::task::Id) {
        let found = self.held.iter().find_map(|(token, held)| match &held.stage {
            Stage::Running(running) if running.abort.id() == task => {
                Some((*token, running.limit_keys.clone()))
            }
            Stage::Running(_) | Stage::Waiting | Stage::Parked | Stage::Settling => None,
        });
        if let Some((token, limit_keys)) = found {
            tracing::error!(message = %token.id, "the executor of a delivery panicked");
            self.free_slot(&limit_keys);
            self.queue_settlement(token, executor::executor_panicked(&self.config));
        }
    }

    /// Stops the worker if a store call panicked: its answer will never come. A call that the dispatcher aborted
    /// itself is ignored.
    fn on_call_died(&mut self, error: &JoinError) {
        if error.is_panic() && self.fatal_error.is_none() {
            let why = "a call to the store panicked; start again, and report what was written to stderr";
            self.fatal_error = Some(StoreError::new(StoreErrorKind::Stopped, why).into());
        }
    }

    fn free_slot(&mut self, limit_keys: &LimitKeys) {
        self.running = self.running.saturating_sub(1);
        self.throttle.leave(limit_keys);
        self.recheck_parked = true;
    }
}
