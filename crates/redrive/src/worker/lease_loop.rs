//! Leases messages for free slots, waits when nothing is due, and puts what was leased into the hand-off queue.

use super::dispatcher::{CallResult, Dispatcher, POLL};
use super::messages::HeldLease;
use super::settle_loop::add;
use redrive_core::error::{CallError, Refusal};
use redrive_core::limits;
use redrive_core::message::Delivery;
use redrive_core::store::{LeaseRequest, Settle};
use redrive_core::time::Span;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The shortest and the longest delay before leasing after a wake-up that found no work. A message that is held back
/// may look due, and the worker must not spin on it.
const FALSE_WAKE_DELAY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// How long to snooze a message that was delivered again while the handler of its lost delivery still runs here.
const LOST_RUN_DELAY: Span = Span::from_secs(5);
/// How often a worker that runs until its queues are empty checks whether they are.
const EMPTY_CHECK: Span = Span::from_secs(1);

impl Dispatcher {
    /// How many more messages may be leased. Parked deliveries do not occupy slots, so a kind at its limit does not
    /// hold up the others. They do not pile up either: the worker never holds more leases than twice its concurrency
    /// plus its prefetch.
    pub(super) fn free_slots(&self) -> usize {
        let slots = self.config.concurrency.saturating_add(self.config.prefetch);
        let occupied = self.held.len().saturating_sub(self.parked.len()) + self.stragglers.len();
        let by_slots = slots.saturating_sub(occupied);
        let by_leases = slots.saturating_add(self.config.concurrency).saturating_sub(self.held.len());
        let by_count = self.config.at_most.map_or(u64::MAX, |most| most.saturating_sub(self.leased_total));
        by_slots
            .min(by_leases)
            .min(usize::try_from(by_count).unwrap_or(usize::MAX))
            .min(limits::LEASE_BATCH_MAX)
    }

    /// Leases messages for the free slots, or waits for work if nothing was due at the last lease call.
    pub(super) fn lease_more(&mut self) {
        if self.shutdown.is_some() || self.in_flight.leasing {
            return;
        }
        if self.nothing_due {
            if self.config.until_empty && self.count_due && self.held.is_empty() && !self.in_flight.counting {
                self.count_remaining();
            }
            return self.wait_for_work();
        }
        let now = Instant::now();
        let free = self.free_slots();
        if free == 0 || now < self.lease_not_before || now < self.lease_backoff.until {
            return;
        }
        let max = match self.throttle.allowance(free, now) {
            Ok(max) => max,
            Err(until) => {
                self.lease_not_before = until;
                return;
            }
        };
        self.in_flight.leasing = true;
        let request = LeaseRequest {
            queues: self.config.queues.clone(),
            max,
            lease_for: self.config.lease,
            worker: self.config.name.clone(),
            version: self.config.version.clone(),
            host: self.config.host.clone(),
        };
        let store = Arc::clone(&self.config.store);
        self.store_calls.spawn(async move {
            let result = store.lease(request).await;
            CallResult::Leased { requested: max, requested_at: now, result }
        });
    }

    fn wait_for_work(&mut self) {
        if self.in_flight.waiting.is_some()
            || self.free_slots() == 0
            || Instant::now() < self.lease_backoff.until
        {
            return;
        }
        let at_most = if self.config.until_empty { EMPTY_CHECK } else { POLL };
        let (store, queues) = (Arc::clone(&self.config.store), self.config.queues.clone());
        let call =
            self.store_calls.spawn(async move { CallResult::Woken(store.wait(queues, at_most).await) });
        self.in_flight.waiting = Some(call);
    }

    fn count_remaining(&mut self) {
        (self.in_flight.counting, self.count_due) = (true, false);
        let (store, queues) = (Arc::clone(&self.config.store), self.config.queues.clone());
        self.store_calls.spawn(async move {
            let mut remaining = 0;
            for queue in queues {
                match store.queue(queue).await {
                    Ok(queue) => {
                        remaining +=
                            queue.scheduled + queue.ready + u64::try_from(queue.counts.leased).unwrap_or(0)
                    }
                    // A queue that nobody has sent to yet is empty.
                    Err(CallError::Refused(Refusal::NoSuchQueue { .. })) => {}
                    Err(error) => return CallResult::Remaining(Err(error)),
                }
            }
            CallResult::Remaining(Ok(remaining))
        });
    }

    pub(super) fn on_woken(&mut self, due: bool) {
        (self.nothing_due, self.count_due) = (false, true);
        if due {
            self.woken_by_store = true;
            self.lease_not_before = Instant::now() + self.false_wake_delay;
        } else {
            self.false_wake_delay = Duration::ZERO;
        }
    }

    pub(super) fn on_leased(&mut self, requested: usize, requested_at: Instant, deliveries: Vec<Delivery>) {
        self.lease_backoff.succeeded();
        self.handle.set_store_error(None);
        self.nothing_due = deliveries.len() < requested;
        if !deliveries.is_empty() {
            self.false_wake_delay = Duration::ZERO;
        } else if self.woken_by_store {
            let (shortest, longest) = FALSE_WAKE_DELAY;
            self.false_wake_delay = (self.false_wake_delay * 2).clamp(shortest, longest);
        }
        self.woken_by_store = false;
        self.throttle.leased(deliveries.len());
        let leased = u64::try_from(deliveries.len()).unwrap_or(u64::MAX);
        self.leased_total += leased;
        add(&self.counters().leased, leased);
        for delivery in deliveries {
            self.accept(delivery, requested_at);
        }
    }

    /// Records a new lease and puts its delivery into the hand-off queue.
    fn accept(&mut self, delivery: Delivery, requested_at: Instant) {
        let envelope = &delivery.message.envelope;
        let (id, priority, deadline) = (envelope.id, envelope.priority, envelope.deadline);
        let token = delivery.token;
        let held = HeldLease::granted(&delivery, requested_at);
        self.next_extension = Some(self.next_extension.map_or(held.extend_at, |at| at.min(held.extend_at)));
        self.store_time = Some((delivery.message.updated_at, requested_at));
        let redriven = delivery.message.generation > 1;
        self.held.insert(token, held);
        if self.shutdown.is_some() {
            return self.release(token);
        }
        if self.lost_running.contains(&id) {
            // The handler of its lost delivery still runs in this worker; never run two at once.
            return self.queue_settlement(token, Settle::Snooze { span: LOST_RUN_DELAY });
        }
        self.sync_hand_off_clock();
        let enqueued = match deadline.filter(|_| !redriven) {
            Some(deadline) => self.hand_off.enqueue_by(delivery, priority, deadline),
            None => self.hand_off.enqueue(delivery, priority),
        };
        // The queue cannot be full: each of its levels has room for every slot.
        if enqueued.is_err() {
            self.release(token);
        }
    }

    /// Sets the clock of the hand-off queue to the current time of the store.
    fn sync_hand_off_clock(&self) {
        if let Some((store_time, at)) = self.store_time {
            let elapsed = u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.hand_off.tick(store_time.plus(Span::from_millis(elapsed)));
        }
    }
}
