//! The one loop of a worker. It owns every lease and every count; executors and store calls run in tasks of
//! their own and only send their results here, so nothing in this file needs a lock and everything happens in
//! one order.

use super::ending::Ending;
use super::stage::{Ended, Entered, Held, Running, Stage, Unit};
use super::throttle::{Blocked, Throttle};
use super::{Plan, Tally, WorkerHandle, executor};
use crate::handler::Reported;
use crate::metrics::{Gauge, Raised};
use crate::runnable::Heartbeat;
use redrive_core::error::{Error, StoreError, StoreErrorKind};
use redrive_core::ids::{LeaseToken, MessageId};
use redrive_core::message::Delivery;
use redrive_core::priority_queue::{Dequeued, PriorityQueue};
use redrive_core::store::{Each, Settle, Settled, Settlement};
use redrive_core::time::{Span, Time};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The longest a worker waits for work before it looks again; also how often an idle one shows it is alive.
pub(super) const POLL: Span = Span::from_secs(20);
/// How often a worker that should be gone looks whether its last call was answered.
const ENDING_LOOK: Duration = Duration::from_millis(50);
/// How long to wait after a store call that failed, doubling.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// What a store call came back with.
pub(super) enum Answer {
    Leased {
        asked: usize,
        asked_at: Instant,
        result: Result<Vec<Delivery>, Error>,
    },
    Settled {
        batch: Vec<Settlement>,
        result: Result<Each<Settled>, Error>,
    },
    Beaten {
        batch: Vec<Settlement>,
        asked_at: Instant,
        result: Result<Each<Settled>, Error>,
    },
    Woken(Result<bool, Error>),
    /// Messages left in the queues.
    Left(Result<u64, Error>),
}

/// Which calls are under way: at most one of each kind.
#[derive(Default)]
pub(super) struct Calls {
    pub(super) leasing: bool,
    pub(super) settling: bool,
    pub(super) beating: bool,
    pub(super) counting: bool,
    pub(super) waiting: Option<AbortHandle>,
}

/// A retry of store calls with growing pauses.
pub(super) struct Backoff {
    pause: Duration,
    pub(super) until: Instant,
}

impl Backoff {
    fn new() -> Self {
        Self { pause: Duration::ZERO, until: Instant::now() }
    }

    pub(super) fn failed(&mut self) {
        self.pause = (self.pause * 2).clamp(RETRY.0, RETRY.1);
        self.until = Instant::now() + self.pause;
    }

    pub(super) fn succeeded(&mut self) {
        self.pause = Duration::ZERO;
    }
}

pub(super) struct Dispatcher {
    pub(super) plan: Arc<Plan>,
    pub(super) handle: WorkerHandle,
    pub(super) heartbeat: Heartbeat,
    pub(super) throttle: Throttle,
    /// Every lease this worker holds.
    pub(super) held: HashMap<LeaseToken, Held>,
    /// Messages whose lease was lost while their handler ran, and runs still.
    pub(super) lost_running: HashSet<MessageId>,
    /// Leased and not begun, most urgent first.
    pub(super) hand_off: PriorityQueue<Delivery>,
    /// Leased, and their kind or key is at its limit, oldest first.
    pub(super) parked: VecDeque<Delivery>,
    /// Whether something changed that may let a parked one begin.
    pub(super) room: bool,
    pub(super) parked_until: Option<Instant>,
    pub(super) running: usize,
    pub(super) units: JoinSet<Ended>,
    pub(super) stragglers: JoinSet<Entered>,
    pub(super) calls: Calls,
    pub(super) answers: JoinSet<Answer>,
    pub(super) unsettled: Vec<Settlement>,
    pub(super) settle_backoff: Backoff,
    /// Nothing was due at the last look; ask again when woken.
    pub(super) dry: bool,
    pub(super) woken_for_nothing: Duration,
    pub(super) woken: bool,
    pub(super) lease_not_before: Instant,
    pub(super) lease_backoff: Backoff,
    pub(super) next_beat: Option<Instant>,
    pub(super) told: Arc<Notify>,
    pub(super) progress_due: Option<Instant>,
    pub(super) progress_kept: Instant,
    /// The store's clock, as of an instant of ours.
    pub(super) store_time: Option<(Time, Instant)>,
    pub(super) taken: u64,
    /// Whether something has happened since the queues were last found not to be empty.
    pub(super) recount: bool,
    pub(super) ending: Option<Ending>,
    pub(super) cancelled: bool,
    pub(super) aborted: bool,
    pub(super) failed: Option<Error>,
}

impl Dispatcher {
    pub(super) fn new(plan: Arc<Plan>, handle: WorkerHandle, heartbeat: Heartbeat) -> Self {
        let now = Instant::now();
        let room = plan.concurrency.saturating_add(plan.prefetch).max(2);
        Self {
            throttle: Throttle::new(&plan.limits),
            handle,
            heartbeat,
            held: HashMap::new(),
            lost_running: HashSet::new(),
            hand_off: PriorityQueue::with_capacity(room),
            parked: VecDeque::new(),
            room: false,
            parked_until: None,
            running: 0,
            units: JoinSet::new(),
            stragglers: JoinSet::new(),
            calls: Calls::default(),
            answers: JoinSet::new(),
            unsettled: Vec::new(),
            settle_backoff: Backoff::new(),
            dry: false,
            woken_for_nothing: Duration::ZERO,
            woken: false,
            lease_not_before: now,
            lease_backoff: Backoff::new(),
            next_beat: None,
            told: Arc::new(Notify::new()),
            progress_due: None,
            progress_kept: now,
            store_time: None,
            taken: 0,
            recount: true,
            ending: None,
            cancelled: false,
            aborted: false,
            failed: None,
            plan,
        }
    }

    /// Works until `stop`, then ends within the grace time.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        tracing::info!(worker = %self.plan.name, queues = ?self.plan.queues, "worker started");
        let (hurry, mut hurried) = (self.handle.hurry.clone(), false);
        let _slots = Raised::by(Gauge::WorkerSlots, self.plan.concurrency);
        loop {
            self.heartbeat.beat();
            if stop.is_cancelled() || hurried || self.is_through() || self.failed.is_some() {
                self.begin_ending();
            }
            self.advance_ending();
            self.begin_what_fits();
            self.flush_settlements();
            self.extend_leases();
            self.ask_for_work();
            self.show_running();
            if self.is_gone() {
                break;
            }
            let alarm = self.alarm();
            tokio::select! {
                biased;
                Some(answer) = self.answers.join_next(), if !self.answers.is_empty() => {
                    match answer {
                        Ok(answer) => self.take_answer(answer),
                        Err(died) => self.call_died(&died),
                    }
                }
                Some(ended) = self.units.join_next(), if !self.units.is_empty() => self.unit_joined(ended),
                Some(ended) = self.stragglers.join_next(), if !self.stragglers.is_empty() => {
                    // The task only waits; it can neither panic nor be ended from elsewhere.
                    if let Ok(entered) = ended { self.slot_freed(&entered); }
                }
                () = stop.cancelled(), if self.ending.is_none() => {}
                () = hurry.cancelled(), if !hurried => {
                    hurried = true;
                    self.hurry();
                }
                () = self.told.notified() => self.progress_told(),
                () = tokio::time::sleep_until(alarm) => {}
            }
            while let Some(ended) = self.units.try_join_next() {
                self.unit_joined(ended);
            }
        }
        self.units.abort_all();
        self.handle.tally.running.store(0, Ordering::Relaxed);
        tracing::info!(worker = %self.plan.name, unsettled = self.held.len(), "worker stopped");
        self.failed.map_or(Ok(()), Err)
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.handle.tally
    }

    fn show_running(&self) {
        let running = u64::try_from(self.running.saturating_sub(self.stragglers.len())).unwrap_or(u64::MAX);
        self.tally().running.store(running, Ordering::Relaxed);
        let stuck = u64::try_from(self.stragglers.len()).unwrap_or(u64::MAX);
        self.tally().stuck.store(stuck, Ordering::Relaxed);
    }

    /// The next instant something has to be done without anybody saying so.
    fn alarm(&self) -> Instant {
        let now = Instant::now();
        let mut alarm = now + POLL.to_std();
        let ending = self.ending.map(|ending| match (self.cancelled, self.aborted) {
            (false, _) => ending.cancel_at,
            (true, false) => ending.abort_at,
            (true, true) if Instant::now() < ending.gone_at => ending.gone_at,
            (true, true) => now + ENDING_LOOK,
        });
        let settle =
            (!self.unsettled.is_empty() && !self.calls.settling).then_some(self.settle_backoff.until);
        let asking = self.calls.leasing || self.calls.waiting.is_some();
        let lease = (self.ending.is_none() && !asking && self.free() > 0)
            .then(|| self.lease_not_before.max(self.lease_backoff.until));
        let beat = self.next_beat.filter(|_| !self.calls.beating);
        let progress = self.progress_due.filter(|_| !self.calls.beating);
        for at in [ending, settle, lease, beat, progress, self.parked_until].into_iter().flatten() {
            alarm = alarm.min(at);
        }
        alarm
    }

    fn take_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Leased { asked, asked_at, result } => {
                self.calls.leasing = false;
                match result {
                    Ok(deliveries) => self.leased(asked, asked_at, deliveries),
                    Err(error) => self.store_failed("lease", error),
                }
            }
            Answer::Settled { batch, result } => {
                self.calls.settling = false;
                self.settled(batch, result);
            }
            Answer::Beaten { batch, asked_at, result } => {
                self.calls.beating = false;
                self.extended(&batch, asked_at, result);
            }
            Answer::Woken(result) => {
                self.calls.waiting = None;
                match result {
                    Ok(due) => self.woken(due),
                    Err(error) => self.store_failed("wait", error),
                }
            }
            Answer::Left(result) => {
                self.calls.counting = false;
                match result {
                    Ok(0) if self.held.is_empty() && !self.calls.leasing => self.begin_ending(),
                    Ok(_) => {}
                    Err(error) => self.store_failed("count", error),
                }
            }
        }
    }

    fn begin_what_fits(&mut self) {
        let now = Instant::now();
        if self.parked_until.is_some_and(|until| until <= now) {
            (self.parked_until, self.room) = (None, true);
        }
        if self.room {
            self.room = false;
            for _ in 0..self.parked.len() {
                let Some(delivery) = self.parked.pop_front() else { break };
                self.begin_or_park(delivery, now);
            }
        }
        while self.running < self.plan.concurrency {
            match self.hand_off.dequeue() {
                Dequeued::Item(picked) => self.begin_or_park(picked.item, now),
                // The store knows what to do with it once it has it back.
                Dequeued::Expired(overdue) => self.give_back(overdue.item.token),
                Dequeued::Empty | Dequeued::Held | Dequeued::LostRace => break,
            }
        }
    }

    fn begin_or_park(&mut self, delivery: Delivery, now: Instant) {
        let token = delivery.token;
        // Lost while it waited: somebody else has it.
        let Some(held) = self.held.get(&token) else { return };
        let lease_for = held.lease_for;
        let envelope = &delivery.message.envelope;
        let entered = Entered { kind: envelope.kind.clone(), key: self.throttle.key_of(envelope) };
        let blocked = if self.running < self.plan.concurrency {
            self.throttle.enter(&entered, now).err()
        } else {
            Some(Blocked::Full)
        };
        match blocked {
            None => self.begin(delivery, entered),
            // Not within this lease: others may have it by then.
            Some(Blocked::Until(until)) if until > now + lease_for.to_std() => {
                let span = u64::try_from(until.duration_since(now).as_millis()).unwrap_or(u64::MAX);
                self.say(token, Settle::Snooze { span: Span::from_millis(span) });
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

    fn begin(&mut self, delivery: Delivery, entered: Entered) {
        let token = delivery.token;
        let plan = Arc::clone(&self.plan);
        let reported = Arc::new(Reported::telling(Arc::clone(&self.told)));
        let cancel = CancellationToken::new();
        let unit = Unit {
            handler: plan.handlers.get(&entered.kind).or(plan.fallback.as_ref()).cloned(),
            timeout: plan.timeouts.get(&entered.kind).copied().or(plan.timeout),
            delivery: Arc::new(delivery),
            cancel: cancel.clone(),
            reported: Arc::clone(&reported),
            entered: entered.clone(),
        };
        let abort = self.units.spawn(async move { executor::execute(&plan, unit).await });
        self.running += 1;
        if let Some(held) = self.held.get_mut(&token) {
            held.stage = Stage::Running(Running { cancel, reported, abort, entered });
        }
    }

    fn unit_joined(&mut self, ended: Result<Ended, JoinError>) {
        match ended {
            Ok(ended) => self.unit_ended(ended),
            // Given back already, when the worker ended it.
            Err(died) if died.is_cancelled() => {}
            Err(died) => self.unit_died(died.id()),
        }
    }

    fn unit_ended(&mut self, ended: Ended) {
        let Ended { token, entered, said, straggler } = ended;
        match straggler {
            // Its slot, and its place under the limits of kind and key, stay taken until it has really ended:
            // there are never more than allowed.
            Some(task) => {
                tracing::warn!(message = %token.id, "handler goes on after it was told to stop");
                self.stragglers.spawn(async move {
                    let _ = task.await;
                    entered
                });
            }
            None => self.slot_freed(&entered),
        }
        self.lost_running.remove(&token.id);
        self.say(token, said);
    }

    /// The executor itself panicked: its message has failed, nothing else.
    fn unit_died(&mut self, task: tokio::task::Id) {
        let found = self.held.iter().find_map(|(token, held)| match &held.stage {
            Stage::Running(running) if running.abort.id() == task => Some((*token, running.entered.clone())),
            Stage::Running(_) | Stage::Waiting | Stage::Parked | Stage::Settling => None,
        });
        if let Some((token, entered)) = found {
            tracing::error!(message = %token.id, "the executor of a delivery panicked");
            self.slot_freed(&entered);
            self.say(token, executor::broke_down(&self.plan));
        }
    }

    /// A store that panics cannot be relied upon; the worker says so instead of waiting for ever.
    fn call_died(&mut self, died: &JoinError) {
        // A waiting call that was ended from here has nothing to say.
        if died.is_panic() && self.failed.is_none() {
            let why = "a call to the store panicked; start again, and report what was written to stderr";
            self.failed = Some(StoreError::new(StoreErrorKind::Stopped, why).into());
        }
    }

    fn slot_freed(&mut self, entered: &Entered) {
        self.running = self.running.saturating_sub(1);
        self.throttle.leave(entered);
        self.room = true;
    }
}
