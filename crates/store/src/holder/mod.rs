//! What the process that holds a store keeps in memory beside it: which areas changed, who waits for work, and who the
//! workers are. Nothing here is durable, and no commit depends on it. The writer hands over what a commit touched once
//! per commit: what changed before the replies, and who can be woken after them.

mod feed;
mod waits;
mod workers;

pub(crate) use feed::changes;
pub(crate) use waits::wait;
pub(crate) use workers::{FoundLease, LetterSettlements, Settlements, Workers};

use crate::engine::touched::Available;
use crate::entropy::{Entropy as _, System};
use feed::Feed;
use redrive_core::changes::Area;
use redrive_core::ids::QueueName;
use redrive_core::message::Delivery;
use redrive_core::store::LeaseRequest;
use redrive_core::time::Time;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use waits::Waits;

/// The memory of the holder.
#[derive(Debug)]
pub(crate) struct Holder {
    feed: Feed,
    waits: Waits,
    workers: Workers,
}

impl Holder {
    /// An empty memory. No two have the same epoch, not even in tests with a source of randomness of their own.
    pub(crate) fn new() -> Self {
        let mut epoch = [0; 8];
        System.fill(&mut epoch);
        Self {
            feed: Feed::new(u64::from_be_bytes(epoch)),
            waits: Waits::default(),
            workers: Workers::default(),
        }
    }

    /// The number of callers that wait for work.
    pub(crate) fn waiting(&self) -> Arc<AtomicUsize> {
        self.waits.count()
    }

    /// Publishes what a commit changed. Whoever has the reply of a call finds its change in the feed.
    pub(crate) fn publish(&self, areas: BTreeSet<Area>) {
        if !areas.is_empty() {
            self.feed.publish(areas);
        }
    }

    /// Wakes those who wait for work that a commit made available.
    pub(crate) fn offer(&self, available: &[Available]) {
        for work in available {
            self.waits.offer(work);
        }
    }

    /// Notes who leased what, and wakes another worker if there is more to lease.
    pub(crate) fn leased(
        &self,
        request: &LeaseRequest,
        deliveries: &[Delivery],
        more: Option<&QueueName>,
        now: Time,
    ) {
        if self.workers.leased(request, deliveries, now) {
            self.feed.publish([Area::Workers]);
        }
        if let Some(queue) = more {
            self.waits.wake(queue, 1, now);
        }
    }

    /// The workers.
    pub(crate) fn workers(&self) -> &Workers {
        &self.workers
    }

    /// Publishes that the workers changed, if they did.
    pub(crate) fn workers_changed(&self, changed: bool) {
        if changed {
            self.feed.publish([Area::Workers]);
        }
    }
}
