//! Leasing: chooses the next message for a worker.
//!
//! A lease call first deals with expired leases and overdue messages, in the same commit (I19). Then, for each message
//! to hand out, the scheduler picks a priority level and the ready index names the next message of that level.

use super::Engine;
use super::ready_index::{Next, ReadyIndex, Refill};
use super::settle::SideEffects;
use super::tables::{Live, TableResult, Tables, unless_damaged};
use crate::holder::{FoundLease, Workers};
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::failure::AnalysedFailure;
use redrive_core::ids::{LeaseToken, MessageId, QueueName};
use redrive_core::lifecycle::{Command, Phase};
use redrive_core::limits;
use redrive_core::message::{Delivery, Priority, StoredMessage};
use redrive_core::poison::Admission;
use redrive_core::policy::{QueuePolicy, overdue, too_late};
use redrive_core::scheduler::{Heads, PickReason, Scheduler};
use redrive_core::store::{LeaseRequest, WaitingFor};
use redrive_core::time::Time;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Rows read from disk per refill of a spilled level.
const REFILL_ROWS: usize = 65_536;
/// The maximum number of refills before one pick.
const REFILLS_PER_CALL: usize = 64;
/// A spilled level is refilled when fewer entries than this are in memory.
const REFILL_BELOW: usize = limits::LEASE_BATCH_MAX;

/// A granted lease. The delivery is completed with the message's body outside the commit, by [`deliver`].
pub(crate) struct Grant {
    pub(crate) live: Live,
    pub(crate) token: LeaseToken,
    pub(crate) policy: Arc<QueuePolicy>,
}

impl<T: Tables> Engine<T> {
    /// Leases the messages that are due, at most as many as the request allows, without their bodies.
    pub(crate) fn lease(&mut self, request: &LeaseRequest, now: Time) -> StoreResult<Vec<Grant>> {
        request.check()?;
        let mut queues = request.queues.clone();
        queues.sort();
        queues.dedup();
        let mut policies: HashMap<QueueName, Arc<QueuePolicy>> = HashMap::new();
        let mut unpaused = Vec::new();
        for name in &queues {
            let row = self.queue(name)?;
            policies.insert(name.clone(), row.policy.clone());
            if row.paused_by.is_none() {
                unpaused.push(name.clone());
            }
        }
        self.reap_messages(limits::REAP_MAX, now)?;
        self.end_quarantines(limits::REAP_MAX, now)?;
        self.tick_breakers(now)?;
        let mut admission = self.admit(&request.worker, &unpaused, now)?;
        if admission == Admission::Nothing {
            return Ok(Vec::new());
        }
        let mut scheduler = self.schedulers.remove(&queues).unwrap_or_default();
        let (mut grants, mut bytes) = (Vec::new(), 0);
        while grants.len() < request.max && bytes < limits::LEASE_BYTES_MAX {
            self.refill(&unpaused)?;
            let mut starved = false;
            let ready_index = self.ready_index()?;
            let next = match admission {
                Admission::SuspectFirst => {
                    ready_index.oldest_suspect(&unpaused, now).map(|(_, id)| Next { id, suspect: true })
                }
                Admission::Anything | Admission::NoSuspects | Admission::Nothing => {
                    let suspects = admission == Admission::Anything && grants.is_empty();
                    let picked = pick(&mut scheduler, ready_index, &unpaused, suspects, now);
                    starved = picked
                        .as_ref()
                        .is_some_and(|(_, reason)| *reason == PickReason::StarvationPrevention);
                    picked.map(|(next, _)| next)
                }
            };
            if starved {
                self.after_commit.starvation();
            }
            let Some(Next { id, suspect }) = next else { break };
            let Some(live) = unless_damaged(self.tables.live(id))?.flatten() else {
                // The index disagrees with the tables, or the row was damaged meanwhile: rebuild the index.
                self.ready_index = None;
                continue;
            };
            let Some(policy) = policies.get(&live.meta.queue) else { break };
            if overdue(live.meta.limits.in_generation(live.lifecycle.generation), now).is_some() {
                self.time_out(live, now)?;
                admission = self.admit(&request.worker, &unpaused, now)?;
                continue;
            }
            bytes += live.meta.size;
            grants.push(self.grant(live, policy, request, now)?);
            if suspect {
                // A suspect runs alone: its worker gets nothing else with it.
                break;
            }
        }
        if self.schedulers.len() >= limits::SCHEDULERS_MAX {
            self.schedulers.clear();
        }
        self.schedulers.insert(queues, scheduler);
        Ok(grants)
    }

    /// Leases one message to the worker of the request.
    fn grant(
        &mut self,
        live: Live,
        policy: &Arc<QueuePolicy>,
        request: &LeaseRequest,
        now: Time,
    ) -> StoreResult<Grant> {
        let token = LeaseToken { id: live.meta.id, secret: self.entropy.secret() };
        let permit = self.grant_permit(&live.meta, policy, now)?;
        let command = Command::Lease {
            secret: token.secret,
            worker: request.worker.clone(),
            lease_for: request.lease_for.unwrap_or(policy.lease),
            permit,
        };
        let meta = live.meta.clone();
        let changed = self.change(live, &command, SideEffects::NONE, policy, now)?;
        Ok(Grant { live: Live { meta, lifecycle: changed.lifecycle }, token, policy: Arc::clone(policy) })
    }

    /// Which messages this worker may be given now.
    fn admit(&mut self, worker: &str, queues: &[QueueName], now: Time) -> TableResult<Admission> {
        let ready_index = self.ready_index()?;
        let load = ready_index.worker_load(worker);
        let oldest = ready_index.oldest_suspect(queues, now).map(|(since, _)| since);
        Ok(self.isolation.admit(worker, load, oldest, now))
    }

    /// Deals with expired leases, then with overdue messages, at most `limit` of each (I23). Returns both counts.
    pub(super) fn reap_messages(&mut self, limit: usize, now: Time) -> StoreResult<(u64, u64)> {
        let mut lost = 0;
        for id in self.ready_index()?.expired_leases(now, limit) {
            let Some(live) = self.live_from_index(id)? else { continue };
            let policy = self.queue(&live.meta.queue)?.policy.clone();
            let Some(lease) = live.lifecycle.lease() else { continue };
            let failure = AnalysedFailure::lease_lost(now.since(lease.granted_at));
            let review = self.review(&live, failure, None, &policy, now)?;
            let command = Command::LoseLease { verdict: review.verdict };
            self.change(live, &command, SideEffects::failure(review), &policy, now)?;
            lost += 1;
        }
        let mut timed_out = 0;
        for id in self.ready_index()?.overdue(now, limit) {
            let Some(live) = self.live_from_index(id)? else { continue };
            self.time_out(live, now)?;
            timed_out += 1;
        }
        Ok((lost, timed_out))
    }

    /// Reads a message that the index knows. If its row is damaged,
    /// leaves it alone and has the index rebuilt without it.
    fn live_from_index(&mut self, id: MessageId) -> TableResult<Option<Live>> {
        let live = unless_damaged(self.tables.live(id))?;
        if live.is_none() {
            self.ready_index = None;
        }
        Ok(live.flatten())
    }

    /// Ends an overdue message as its queue's policy says.
    fn time_out(&mut self, live: Live, now: Time) -> StoreResult<()> {
        let terms = live.meta.limits.in_generation(live.lifecycle.generation);
        let Some(reason) = overdue(terms, now) else { return Ok(()) };
        let policy = self.queue(&live.meta.queue)?.policy.clone();
        let verdict = too_late(&policy, reason);
        let failure = AnalysedFailure::too_late(reason);
        self.change(live, &Command::TimeOut { verdict }, SideEffects::failure(failure), &policy, now)?;
        Ok(())
    }

    /// Builds the ready index from the tables: one pass over the live messages and the letters that hold a key.
    pub(super) fn build_ready_index(&mut self) -> TableResult<ReadyIndex> {
        let mut ready_index = ReadyIndex::new(self.ready_index_max);
        for (name, row) in self.queues()?.iter() {
            ready_index.set_breaker_key(name, row.policy.breaker.as_ref().map(|rules| &rules.key));
        }
        for ((queue, key), mode) in self.breaker_modes()? {
            ready_index.set_breaker_mode(&queue, &key, mode);
        }
        let mut after = None;
        loop {
            let page = self.tables.live_after(after, REFILL_ROWS)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(*last);
            // A message with a damaged row is leased to nobody; `doctor` reports it.
            for live in page.iter().filter_map(|(_, live)| live.as_ref().ok()) {
                ready_index.add(&live.meta, &live.lifecycle);
            }
        }
        for meta in self.tables.letters_holding_keys()? {
            ready_index.set_key_held(&meta, true);
        }
        Ok(ready_index)
    }

    /// Loads the next part of levels whose tail is on disk.
    fn refill(&mut self, queues: &[QueueName]) -> TableResult<()> {
        // The number of refills is bounded: a long stretch of disk
        // without leasable messages is read over several calls.
        for _ in 0..REFILLS_PER_CALL {
            let Some(refill) = self.ready_index()?.next_refill(queues, REFILL_BELOW) else { break };
            self.refill_level(&refill)?;
        }
        Ok(())
    }

    /// Reads the next rows of a level and adds its waiting messages to the index.
    fn refill_level(&mut self, refill: &Refill) -> TableResult<()> {
        let page = self.tables.live_from(refill.from, REFILL_ROWS)?;
        let rest = if page.len() < REFILL_ROWS { None } else { page.last().map(|(id, _)| next_id(*id)) };
        // The boundary moves first; otherwise the index would turn the messages away as spilled.
        self.ready_index()?.set_spill_start(refill, rest);
        let in_level = |l: &&Live| {
            l.meta.queue == refill.queue
                && l.meta.priority == refill.priority
                && l.meta.ordering_key.is_none()
                && !l.lifecycle.indicators.is_suspect()
        };
        let readable = page.iter().filter_map(|(_, live)| live.as_ref().ok());
        for live in readable.filter(in_level).filter(|l| l.lifecycle.phase == Phase::Waiting) {
            self.ready_index()?.add_refilled(&live.meta, &live.lifecycle);
        }
        Ok(())
    }

    /// Counts, for each queue, the waiting messages that cannot be leased now, by what they wait for. Queues without
    /// such messages are left out. Returns `None` if the ready index would first have to be built from many messages.
    pub(crate) fn waiting_for(&mut self, now: Time) -> StoreResult<Option<BTreeMap<QueueName, WaitingFor>>> {
        let live: i64 = self.queues()?.values().map(|row| row.counts.waiting + row.counts.leased).sum();
        if self.ready_index.is_none() && live > limits::TIDY_MESSAGES_MAX {
            return Ok(None);
        }
        self.tick_breakers(now)?;
        let queues = self.queues()?.iter();
        let queues: Vec<(QueueName, bool, i64)> =
            queues.map(|(name, row)| (name.clone(), row.paused_by.is_some(), row.counts.waiting)).collect();
        let mut by_queue = BTreeMap::new();
        for (name, paused, waiting) in queues {
            let mut waiting_for = self.ready_index()?.waiting_for(&name, now);
            if paused {
                let waiting = u64::try_from(waiting).unwrap_or(0);
                waiting_for.pause = waiting.saturating_sub(self.tables.scheduled(&name, now)?);
            }
            if waiting_for != WaitingFor::default() {
                by_queue.insert(name, waiting_for);
            }
        }
        Ok(Some(by_queue))
    }

    /// When the next message of each of these queues is due. Nothing is due in a queue that nobody has sent to yet.
    pub(crate) fn next_due(&mut self, queues: &[QueueName], now: Time) -> StoreResult<Vec<(QueueName, Due)>> {
        self.tick_breakers(now)?;
        let mut all = Vec::with_capacity(queues.len());
        for name in queues {
            let mut due = Due::default();
            if self.queues()?.get(name).is_some_and(|row| row.paused_by.is_none()) {
                let (ordinary, suspect) = self.ready_index()?.next_due(name);
                let probe = self.next_breaker_probe(name)?;
                due = Due { ordinary: ordinary.into_iter().chain(probe).min(), suspect };
            }
            all.push((name.clone(), due));
        }
        Ok(all)
    }

    /// The messages that a lease from these queues may take, and those whose lease or time has run out.
    #[cfg(any(feature = "postgres", feature = "redis"))]
    pub(crate) fn next_in_line(
        &mut self,
        queues: &[QueueName],
        max: usize,
        now: Time,
    ) -> TableResult<Vec<MessageId>> {
        let index = self.ready_index()?;
        let mut ids: Vec<MessageId> = queues.iter().flat_map(|queue| index.heads_of(queue, max)).collect();
        ids.truncate(limits::REAP_MAX);
        ids.extend(index.expired_leases(now, limits::REAP_MAX));
        ids.extend(index.overdue(now, limits::REAP_MAX));
        Ok(ids)
    }

    /// One of these queues that still has due messages, if somebody waits for them.
    pub(crate) fn more_due(&mut self, queues: &[QueueName], now: Time) -> StoreResult<Option<QueueName>> {
        if self.waiting_workers.load(Ordering::SeqCst) == 0 {
            return Ok(None);
        }
        let mut dues = self.next_due(queues, now)?.into_iter();
        let more = dues.find(|(_, due)| due.ordinary.is_some_and(|at| at <= now));
        Ok(more.map(|(queue, _)| queue))
    }

    /// The leases that the list of workers does not know yet. Empty if the ready index would first have to be built from
    /// many messages.
    pub(crate) fn unlisted_leases(&mut self, workers: &Workers, now: Time) -> StoreResult<Vec<FoundLease>> {
        let live: i64 = self.queues()?.values().map(|row| row.counts.waiting + row.counts.leased).sum();
        if self.ready_index.is_none() && live > limits::TIDY_MESSAGES_MAX {
            return Ok(Vec::new());
        }
        let leased = self.ready_index()?.live_leases(now).take(limits::WORKERS_MAX);
        let mut found = Vec::new();
        for id in workers.unknown(leased) {
            let Some(live) = unless_damaged(self.tables.live(id))?.flatten() else { continue };
            let Some(lease) = live.lifecycle.lease() else { continue };
            found.push(FoundLease {
                id,
                worker: lease.worker.clone(),
                queue: live.meta.queue.clone(),
                since: lease.granted_at,
                until: lease.expires_at,
            });
        }
        Ok(found)
    }
}

/// When the next message is due. Each is `None` if no such message waits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Due {
    /// For any worker.
    pub(crate) ordinary: Option<Time>,
    /// For a worker that may have a suspect.
    pub(crate) suspect: Option<Time>,
}

/// The next id in byte order.
fn next_id(id: MessageId) -> MessageId {
    MessageId::from_bytes(u128::from_be_bytes(id.to_bytes()).saturating_add(1).to_be_bytes())
}

/// Lets the scheduler pick a level and returns the next message of that level, and why it was that level's turn.
fn pick(
    scheduler: &mut Scheduler,
    ready_index: &mut ReadyIndex,
    queues: &[QueueName],
    suspects: bool,
    now: Time,
) -> Option<(Next, PickReason)> {
    let mut heads = Heads::default();
    let mut messages: [Option<Next>; 5] = [None; 5];
    let slots = heads.levels.iter_mut().zip(messages.iter_mut()).zip(Priority::ALL);
    for ((head, message), priority) in slots {
        let first = queues
            .iter()
            .filter_map(|q| ready_index.head(q, priority, suspects))
            .filter(|(h, _)| h.ready_at <= now)
            .min_by_key(|(h, _)| (h.ready_at, h.seq));
        if let Some((first_head, next)) = first {
            (*head, *message) = (Some(first_head), Some(next));
        }
    }
    let urgent = queues.iter().filter_map(|q| ready_index.most_urgent(q, suspects, now));
    let urgent = urgent.min_by_key(|(urgency, _)| *urgency);
    heads.urgent = urgent.map(|((deadline, level, _), _)| (Priority::from_level(level), deadline));
    let decision = scheduler.pick(&heads, now)?;
    let next = match decision.reason {
        PickReason::DeadlineApproaching => urgent.map(|(_, next)| next),
        PickReason::PriorityOrder
        | PickReason::StarvationPrevention
        | PickReason::LoadBalancing
        | PickReason::EmergencyMode => messages.get(decision.level.level()).copied().flatten(),
    };
    Some((next?, decision.reason))
}

/// Completes a delivery with the message's body.
pub(crate) fn deliver(envelope: redrive_core::message::Envelope, grant: Grant, now: Time) -> Delivery {
    let attempt = grant.live.lifecycle.attempts;
    let stored = StoredMessage { envelope, lifecycle: grant.live.lifecycle };
    Delivery { message: stored.view(&grant.policy, now), token: grant.token, attempt }
}

/// Refuses an empty or overlong list of queues before a caller waits on it.
pub(crate) fn check_wait(queues: &[QueueName]) -> Result<(), Refusal> {
    if queues.is_empty() || queues.len() > limits::LEASE_QUEUES_MAX {
        let why = format!("name 1 to {} queues", limits::LEASE_QUEUES_MAX);
        return Err(Refusal::invalid("queues", why));
    }
    Ok(())
}
