//! Taking work: asking for as much as there is room for, waiting when nothing is due, and handing on what came.

use super::dispatcher::{Answer, Dispatcher, POLL};
use super::stage::Held;
use super::telling::add;
use redrive_core::error::{Error, Refusal};
use redrive_core::limits;
use redrive_core::message::Delivery;
use redrive_core::store::{LeaseRequest, Settle};
use redrive_core::time::Span;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Work that is held back may look due: being woken for nothing must not become a spin.
const WOKEN_FOR_NOTHING: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// How long a message is put off whose lost execution has not ended yet.
const BESIDE_ITSELF: Span = Span::from_secs(5);
/// How soon a worker that ends with its queues asks again whether they are empty.
const EMPTY_EVERY: Span = Span::from_secs(1);

impl Dispatcher {
    /// How many more may be leased. Parked ones do not take up slots, so that a kind at its limit does not keep
    /// the others waiting; but nothing piles up here: there are never more leases than twice the slots.
    pub(super) fn free(&self) -> usize {
        let slots = self.plan.concurrency.saturating_add(self.plan.prefetch);
        let unbegun_or_running = self.held.len().saturating_sub(self.parked.len()) + self.stragglers.len();
        let by_slots = slots.saturating_sub(unbegun_or_running);
        let by_leases = slots.saturating_add(self.plan.concurrency).saturating_sub(self.held.len());
        let by_count = self.plan.at_most.map_or(u64::MAX, |most| most.saturating_sub(self.taken));
        by_slots
            .min(by_leases)
            .min(usize::try_from(by_count).unwrap_or(usize::MAX))
            .min(limits::LEASE_BATCH_MAX)
    }

    pub(super) fn ask_for_work(&mut self) {
        if self.ending.is_some() || self.calls.leasing {
            return;
        }
        if self.dry {
            if self.plan.until_empty && self.recount && self.held.is_empty() && !self.calls.counting {
                self.count_what_is_left();
            }
            return self.wait_for_work();
        }
        let now = Instant::now();
        let free = self.free();
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
        self.calls.leasing = true;
        let request = LeaseRequest {
            queues: self.plan.queues.clone(),
            max,
            lease_for: self.plan.lease,
            worker: self.plan.name.clone(),
        };
        let store = Arc::clone(&self.plan.store);
        self.answers.spawn(async move {
            let result = store.lease(request).await;
            Answer::Leased { asked: max, asked_at: now, result }
        });
    }

    pub(super) fn wait_for_work(&mut self) {
        if self.calls.waiting.is_some() || self.free() == 0 || Instant::now() < self.lease_backoff.until {
            return;
        }
        let at_most = if self.plan.until_empty { EMPTY_EVERY } else { POLL };
        let (store, queues) = (Arc::clone(&self.plan.store), self.plan.queues.clone());
        let call = self.answers.spawn(async move { Answer::Woken(store.wait(queues, at_most).await) });
        self.calls.waiting = Some(call);
    }

    pub(super) fn count_what_is_left(&mut self) {
        (self.calls.counting, self.recount) = (true, false);
        let (store, queues) = (Arc::clone(&self.plan.store), self.plan.queues.clone());
        self.answers.spawn(async move {
            let mut left = 0;
            for queue in queues {
                match store.queue(queue).await {
                    Ok(queue) => {
                        left +=
                            queue.scheduled + queue.ready + u64::try_from(queue.counts.leased).unwrap_or(0)
                    }
                    // A queue nobody has sent to yet is empty.
                    Err(Error::Refused(Refusal::NoSuchQueue { .. })) => {}
                    Err(error) => return Answer::Left(Err(error)),
                }
            }
            Answer::Left(Ok(left))
        });
    }

    pub(super) fn woken(&mut self, due: bool) {
        (self.dry, self.recount) = (false, true);
        if due {
            self.woken = true;
            self.lease_not_before = Instant::now() + self.woken_for_nothing;
        } else {
            self.woken_for_nothing = Duration::ZERO;
        }
    }

    pub(super) fn leased(&mut self, asked: usize, asked_at: Instant, deliveries: Vec<Delivery>) {
        self.lease_backoff.succeeded();
        self.handle.in_trouble(None);
        self.dry = deliveries.len() < asked;
        if !deliveries.is_empty() {
            self.woken_for_nothing = Duration::ZERO;
        } else if self.woken {
            let (least, most) = WOKEN_FOR_NOTHING;
            self.woken_for_nothing = (self.woken_for_nothing * 2).clamp(least, most);
        }
        self.woken = false;
        self.throttle.leased(deliveries.len());
        let taken = u64::try_from(deliveries.len()).unwrap_or(u64::MAX);
        self.taken += taken;
        add(&self.tally().leased, taken);
        for delivery in deliveries {
            self.hold(delivery, asked_at);
        }
    }

    /// Takes charge of a lease and hands its delivery on.
    pub(super) fn hold(&mut self, delivery: Delivery, asked_at: Instant) {
        let envelope = &delivery.message.envelope;
        let (id, priority, deadline) = (envelope.id, envelope.priority, envelope.deadline);
        let token = delivery.token;
        let held = Held::granted(&delivery, asked_at);
        self.next_beat = Some(self.next_beat.map_or(held.beat_at, |at| at.min(held.beat_at)));
        self.store_time = Some((delivery.message.updated_at, asked_at));
        let redriven = delivery.message.generation > 1;
        self.held.insert(token, held);
        if self.ending.is_some() {
            return self.give_back(token);
        }
        if self.lost_running.contains(&id) {
            // Its last handler is still at it, here: not beside itself.
            return self.say(token, Settle::Snooze { span: BESIDE_ITSELF });
        }
        self.tick();
        let handed = match deadline.filter(|_| !redriven) {
            Some(deadline) => self.hand_off.enqueue_by(delivery, priority, deadline),
            None => self.hand_off.enqueue(delivery, priority),
        };
        // Cannot be full: it has room for every slot on every level.
        if handed.is_err() {
            self.give_back(token);
        }
    }

    /// Sets the hand-off's clock to what the store's must be.
    pub(super) fn tick(&self) {
        if let Some((then, at)) = self.store_time {
            let passed = u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.hand_off.tick(then.plus(Span::from_millis(passed)));
        }
    }
}
