//! The workers that a holder knows, from the calls that they make. It counts after the commit, so what is shown here has
//! happened.

use redrive_core::dead_letter::{CONSUMER_LEASE, LetterDelivery};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::limits;
use redrive_core::message::Delivery;
use redrive_core::store::{
    BatchResults, LeaseRequest, LetterLeaseRequest, LetterSettle, LetterSettlement, LetterState, Settle,
    Settled, Settlement,
};
use redrive_core::time::Time;
use redrive_core::workers::{LeaseView, WorkerView};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Everybody who leased or settled something lately.
#[derive(Debug, Default)]
pub(crate) struct Workers(Mutex<Registry>);

#[derive(Debug, Default)]
struct Registry {
    workers: HashMap<Arc<str>, Known>,
    leases: HashMap<MessageId, Lease>,
    /// The number of leases at which those that have expired are removed.
    sweep_at: usize,
}

#[derive(Debug)]
struct Known {
    version: Option<String>,
    host: Option<String>,
    queues: BTreeSet<QueueName>,
    first_seen: Time,
    last_seen: Time,
    done: u64,
    failed: u64,
}

#[derive(Debug)]
struct Lease {
    worker: Arc<str>,
    queue: QueueName,
    since: Time,
    until: Time,
}

/// A lease that the store knows and the list of workers does not, because another process held the store when it began.
pub(crate) struct FoundLease {
    pub(crate) id: MessageId,
    pub(crate) worker: String,
    pub(crate) queue: QueueName,
    pub(crate) since: Time,
    pub(crate) until: Time,
}

/// How a delivery ended, as far as the list of workers is concerned.
#[derive(Clone, Copy, Debug)]
enum End {
    Done,
    Failed,
    GivenBack,
    /// Not over: the lease lasts until then, or as long as the store said.
    Extended(Option<Time>),
}

/// What is remembered of settlements until the store has carried them out.
pub(crate) struct Settlements(Vec<(MessageId, End)>);

impl Settlements {
    pub(crate) fn of(batch: &[Settlement]) -> Self {
        let end = |settlement: &Settlement| match &settlement.what {
            Settle::Ack | Settle::Reply { .. } => End::Done,
            Settle::Fail { .. } => End::Failed,
            Settle::Release | Settle::Snooze { .. } => End::GivenBack,
            Settle::Extend { .. } | Settle::Progress { .. } => End::Extended(None),
        };
        Self(batch.iter().map(|settlement| (settlement.token.id, end(settlement))).collect())
    }
}

/// The same for letters.
pub(crate) struct LetterSettlements(Vec<(MessageId, End)>);

impl LetterSettlements {
    pub(crate) fn of(batch: &[LetterSettlement], now: Time) -> Self {
        let end = |settlement: &LetterSettlement| match &settlement.what {
            LetterSettle::Do { .. } => End::Done,
            LetterSettle::Fail { .. } => End::Failed,
            LetterSettle::Release | LetterSettle::Snooze { .. } => End::GivenBack,
            LetterSettle::Extend { by } => End::Extended(Some(now.plus(by.unwrap_or(CONSUMER_LEASE)))),
        };
        Self(batch.iter().map(|settlement| (settlement.token.id, end(settlement))).collect())
    }
}

impl Registry {
    /// Notes a sign of life. Returns the name to keep, and whether the worker is new; `None` if there are too many.
    fn seen(&mut self, name: &str, now: Time) -> Option<(Arc<str>, bool)> {
        if let Some((name, _)) = self.workers.get_key_value(name) {
            let name = Arc::clone(name);
            if let Some(known) = self.workers.get_mut(&name) {
                known.last_seen = known.last_seen.max(now);
            }
            return Some((name, false));
        }
        if self.workers.len() >= limits::WORKERS_MAX {
            self.forget(now);
            if self.workers.len() >= limits::WORKERS_MAX {
                return None;
            }
        }
        let name: Arc<str> = name.into();
        let known = Known {
            version: None,
            host: None,
            queues: BTreeSet::new(),
            first_seen: now,
            last_seen: now,
            done: 0,
            failed: 0,
        };
        self.workers.insert(Arc::clone(&name), known);
        Some((name, true))
    }

    fn add_queues<'a>(&mut self, worker: &str, queues: impl IntoIterator<Item = &'a QueueName>) {
        let Some(known) = self.workers.get_mut(worker) else { return };
        for queue in queues {
            if known.queues.len() < limits::LEASE_QUEUES_MAX && !known.queues.contains(queue) {
                known.queues.insert(queue.clone());
            }
        }
    }

    fn add_lease(&mut self, id: MessageId, lease: Lease, now: Time) {
        if self.leases.len() >= self.sweep_at.max(1_024) {
            self.leases.retain(|_, lease| lease.until > now);
            self.sweep_at = 2 * self.leases.len();
        }
        self.leases.insert(id, lease);
    }

    /// Applies the end of a delivery. `said_until` is the end of the lease that the store replied.
    fn end(&mut self, id: MessageId, end: End, said_until: Option<Time>, now: Time) -> bool {
        let Some(lease) = self.leases.get_mut(&id) else { return false };
        let worker = Arc::clone(&lease.worker);
        if let End::Extended(until) = end {
            lease.until = lease.until.max(said_until.or(until).unwrap_or(lease.until));
        } else {
            self.leases.remove(&id);
        }
        let Some(known) = self.workers.get_mut(&worker) else { return false };
        known.last_seen = known.last_seen.max(now);
        match end {
            End::Done => known.done += 1,
            End::Failed => known.failed += 1,
            End::GivenBack => {}
            End::Extended(_) => return false,
        }
        true
    }

    /// Forgets leases that have expired, and workers that were not seen for long and hold nothing.
    fn forget(&mut self, now: Time) {
        self.leases.retain(|_, lease| lease.until > now);
        let busy: BTreeSet<Arc<str>> = self.leases.values().map(|lease| Arc::clone(&lease.worker)).collect();
        self.workers.retain(|name, known| {
            known.last_seen.plus(limits::WORKER_KNOWN_FOR) > now || busy.contains(name)
        });
    }
}

impl Workers {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a lease call. Returns whether the list changed in more than the time of the last sign.
    pub(super) fn leased(&self, request: &LeaseRequest, deliveries: &[Delivery], now: Time) -> bool {
        let mut registry = self.registry();
        let Some((worker, new)) = registry.seen(&request.worker, now) else { return false };
        registry.add_queues(&worker, &request.queues);
        if let Some(known) = registry.workers.get_mut(&worker) {
            for (kept, said) in [(&mut known.version, &request.version), (&mut known.host, &request.host)] {
                if said.is_some() && kept != said {
                    kept.clone_from(said);
                }
            }
        }
        for delivery in deliveries {
            let Some(until) = delivery.message.lease_expires_at else { continue };
            let queue = delivery.message.envelope.queue.clone();
            let lease = Lease { worker: Arc::clone(&worker), queue, since: now, until };
            registry.add_lease(delivery.token.id, lease, now);
        }
        new || !deliveries.is_empty()
    }

    /// Notes a lease call of a dead-letter consumer.
    pub(crate) fn leased_letters(
        &self,
        request: &LetterLeaseRequest,
        deliveries: &[LetterDelivery],
        now: Time,
    ) -> bool {
        let mut registry = self.registry();
        let Some((worker, new)) = registry.seen(&request.worker, now) else { return false };
        registry.add_queues(&worker, [&request.dlq]);
        let until = now.plus(request.lease_for.unwrap_or(CONSUMER_LEASE));
        for delivery in deliveries {
            let lease = Lease { worker: Arc::clone(&worker), queue: request.dlq.clone(), since: now, until };
            registry.add_lease(delivery.token.id, lease, now);
        }
        new || !deliveries.is_empty()
    }

    /// Notes settlements that the store accepted.
    pub(crate) fn settled(&self, asked: &Settlements, results: &BatchResults<Settled>, now: Time) -> bool {
        let mut registry = self.registry();
        let mut changed = false;
        for ((id, end), result) in asked.0.iter().zip(results) {
            if let Ok(settled) = result {
                changed |= registry.end(*id, *end, settled.lease_expires_at, now);
            }
        }
        changed
    }

    /// Notes what consumers did with their letters.
    pub(crate) fn settled_letters(
        &self,
        asked: &LetterSettlements,
        results: &BatchResults<LetterState>,
        now: Time,
    ) -> bool {
        let mut registry = self.registry();
        let mut changed = false;
        for ((id, end), result) in asked.0.iter().zip(results) {
            changed |= result.is_ok() && registry.end(*id, *end, None, now);
        }
        changed
    }

    /// Which of these leases are not known here.
    pub(crate) fn unknown(&self, leases: impl IntoIterator<Item = MessageId>) -> Vec<MessageId> {
        let registry = self.registry();
        leases.into_iter().filter(|id| !registry.leases.contains_key(id)).collect()
    }

    /// Adds leases that began when another process held the store.
    pub(crate) fn adopt(&self, found: Vec<FoundLease>, now: Time) {
        let mut registry = self.registry();
        for FoundLease { id, worker, queue, since, until } in found {
            // Whoever holds a lease was seen when it began, not now.
            let Some((worker, new)) = registry.seen(&worker, since) else { continue };
            if new && let Some(known) = registry.workers.get_mut(&worker) {
                known.first_seen = since;
            }
            registry.add_queues(&worker, [&queue]);
            registry.add_lease(id, Lease { worker, queue, since, until }, now);
        }
    }

    /// The list, by name.
    pub(crate) fn list(&self, now: Time) -> Vec<WorkerView> {
        let mut registry = self.registry();
        registry.forget(now);
        let mut leases: HashMap<Arc<str>, Vec<LeaseView>> = HashMap::new();
        for (id, lease) in &registry.leases {
            leases.entry(Arc::clone(&lease.worker)).or_default().push(LeaseView {
                id: *id,
                queue: lease.queue.clone(),
                since: lease.since,
                lease_expires_at: lease.until,
            });
        }
        let mut all: Vec<WorkerView> = registry
            .workers
            .iter()
            .map(|(name, known)| {
                let mut leases = leases.remove(name).unwrap_or_default();
                leases.sort_by_key(|lease| (lease.since, lease.id));
                let in_hand = leases.len() as u64;
                leases.truncate(limits::WORKER_LEASES_LISTED_MAX);
                WorkerView {
                    worker: name.to_string(),
                    version: known.version.clone(),
                    host: known.host.clone(),
                    queues: known.queues.iter().cloned().collect(),
                    first_seen: known.first_seen,
                    last_seen: known.last_seen,
                    in_hand,
                    leases,
                    done: known.done,
                    failed: known.failed,
                }
            })
            .collect();
        all.sort_by(|a, b| a.worker.cmp(&b.worker));
        all
    }
}
