//! Leasing: who gets which message next. Run-out leases and overdue messages are dealt with first, in the
//! same commit (I19); then the scheduler picks levels and the hot index says which message that is.

use super::Engine;
use super::hot::{Hot, Next, Refill};
use super::settle::Along;
use super::tables::{Kept, Live, Tables, unless_damaged};
use redrive_core::error::{Outcome, Refusal};
use redrive_core::failure::Analysed;
use redrive_core::ids::{LeaseToken, MessageId, QueueName};
use redrive_core::lifecycle::{Command, Phase};
use redrive_core::limits;
use redrive_core::message::{Delivery, Priority, Record};
use redrive_core::metrics::{self, Counter};
use redrive_core::poison::Admission;
use redrive_core::policy::{QueuePolicy, overdue, too_late};
use redrive_core::scheduler::{Heads, PickReason, Scheduler};
use redrive_core::store::{LeaseRequest, WaitingFor};
use redrive_core::time::Time;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Rows looked at per refill of a spilled level.
const REFILL_ROWS: usize = 65_536;
/// Refills before one pick.
const REFILLS_PER_CALL: usize = 64;
/// A spilled level is refilled when it has fewer entries than this in memory.
const REFILL_BELOW: usize = limits::LEASE_BATCH_MAX;

/// A granted lease whose message still has to be put together.
pub(crate) struct Grant {
    pub(crate) live: Live,
    pub(crate) token: LeaseToken,
    pub(crate) policy: Arc<QueuePolicy>,
}

impl<T: Tables> Engine<T> {
    /// Hands out due work, without its payloads.
    pub(crate) fn lease(&mut self, request: &LeaseRequest, now: Time) -> Outcome<Vec<Grant>> {
        request.check()?;
        let mut queues = request.queues.clone();
        queues.sort();
        queues.dedup();
        let mut policies: HashMap<QueueName, Arc<QueuePolicy>> = HashMap::new();
        let mut open = Vec::new();
        for name in &queues {
            let row = self.queue(name)?;
            policies.insert(name.clone(), row.policy.clone());
            if row.paused_by.is_none() {
                open.push(name.clone());
            }
        }
        self.reap_messages(limits::REAP_MAX, now)?;
        self.end_quarantines(limits::REAP_MAX, now)?;
        self.tick_breakers(now)?;
        let mut admission = self.admit(&request.worker, &open, now)?;
        if admission == Admission::Nothing {
            return Ok(Vec::new());
        }
        let mut scheduler = self.schedulers.remove(&queues).unwrap_or_default();
        let (mut grants, mut bytes) = (Vec::new(), 0);
        while grants.len() < request.max && bytes < limits::LEASE_BYTES_MAX {
            self.refill(&open)?;
            let hot = self.hot()?;
            let next = match admission {
                Admission::SuspectFirst => {
                    hot.oldest_suspect(&open, now).map(|(_, id)| Next { id, suspect: true })
                }
                Admission::Anything | Admission::NoSuspects | Admission::Nothing => {
                    let suspects = admission == Admission::Anything && grants.is_empty();
                    pick(&mut scheduler, hot, &open, suspects, now)
                }
            };
            let Some(Next { id, suspect }) = next else { break };
            let Some(live) = unless_damaged(self.tables.live(id))?.flatten() else {
                // The index is ahead of the tables, or the row was damaged since: build it again rather than hand out
                // what is not there.
                self.hot = None;
                continue;
            };
            let Some(policy) = policies.get(&live.slip.queue) else { break };
            if overdue(live.slip.terms.in_generation(live.life.generation), now).is_some() {
                self.time_out(live, now)?;
                admission = self.admit(&request.worker, &open, now)?;
                continue;
            }
            bytes += live.slip.size;
            grants.push(self.grant(live, policy, request, now)?);
            if suspect {
                break;
            }
        }
        if self.schedulers.len() >= limits::SCHEDULERS_MAX {
            self.schedulers.clear();
        }
        self.schedulers.insert(queues, scheduler);
        Ok(grants)
    }

    fn grant(
        &mut self,
        live: Live,
        policy: &Arc<QueuePolicy>,
        request: &LeaseRequest,
        now: Time,
    ) -> Outcome<Grant> {
        let token = LeaseToken { id: live.slip.id, secret: self.entropy.secret() };
        let permit = self.permit(&live.slip, policy, now)?;
        let command = Command::Lease {
            secret: token.secret,
            worker: request.worker.clone(),
            lease_for: request.lease_for.unwrap_or(policy.lease),
            permit,
        };
        let slip = live.slip.clone();
        let changed = self.change(live, &command, Along::NONE, policy, now)?;
        Ok(Grant { live: Live { slip, life: changed.life }, token, policy: Arc::clone(policy) })
    }

    /// What this worker may be given now.
    fn admit(&mut self, worker: &str, queues: &[QueueName], now: Time) -> Kept<Admission> {
        let hot = self.hot()?;
        let (hands, oldest) = (hot.hands(worker), hot.oldest_suspect(queues, now).map(|(since, _)| since));
        Ok(self.isolation.admit(worker, hands, oldest, now))
    }

    /// Deals with run-out leases, then with overdue messages; at most `limit` of each (I23). Says how many.
    pub(super) fn reap_messages(&mut self, limit: usize, now: Time) -> Outcome<(u64, u64)> {
        let mut lost = 0;
        for id in self.hot()?.run_out(now, limit) {
            let Some(live) = self.indexed(id)? else { continue };
            let policy = self.queue(&live.slip.queue)?.policy.clone();
            let Some(lease) = live.life.lease() else { continue };
            let failure = Analysed::lease_lost(now.since(lease.granted_at));
            let found = self.review(&live, failure, None, &policy, now)?;
            let command = Command::LoseLease { verdict: found.verdict };
            self.change(live, &command, Along::filing(found), &policy, now)?;
            lost += 1;
        }
        let mut timed_out = 0;
        for id in self.hot()?.overdue(now, limit) {
            let Some(live) = self.indexed(id)? else { continue };
            self.time_out(live, now)?;
            timed_out += 1;
        }
        Ok((lost, timed_out))
    }

    /// A message that the index knows. One whose row is damaged is not touched: the index is built again without it.
    fn indexed(&mut self, id: MessageId) -> Kept<Option<Live>> {
        let live = unless_damaged(self.tables.live(id))?;
        if live.is_none() {
            self.hot = None;
        }
        Ok(live.flatten())
    }

    fn time_out(&mut self, live: Live, now: Time) -> Outcome<()> {
        let terms = live.slip.terms.in_generation(live.life.generation);
        let Some(reason) = overdue(terms, now) else { return Ok(()) };
        let policy = self.queue(&live.slip.queue)?.policy.clone();
        let verdict = too_late(&policy, reason);
        let failure = Analysed::too_late(reason);
        self.change(live, &Command::TimeOut { verdict }, Along::filing(failure), &policy, now)?;
        Ok(())
    }

    /// Builds the hot index from the tables: one pass over the live messages and the letters that hold a key.
    pub(super) fn build_hot(&mut self) -> Kept<Hot> {
        let mut hot = Hot::new(self.hot_entries_max);
        for (name, row) in self.queues()?.iter() {
            hot.go_by(name, row.policy.breaker.as_ref().map(|rules| &rules.key));
        }
        for ((queue, key), mode) in self.breaker_modes()? {
            hot.set_mode(&queue, &key, mode);
        }
        let mut after = None;
        loop {
            let page = self.tables.live_after(after, REFILL_ROWS)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(*last);
            // A message whose row is damaged is handed to nobody; `doctor` names it.
            for live in page.iter().filter_map(|(_, live)| live.as_ref().ok()) {
                hot.add(&live.slip, &live.life);
            }
        }
        for slip in self.tables.holding_keys()? {
            hot.hold(&slip, true);
        }
        Ok(hot)
    }

    /// Brings in the next part of levels whose tail is on disk.
    fn refill(&mut self, queues: &[QueueName]) -> Kept<()> {
        // A long stretch of disk without anything leasable is crossed over several calls, not in one commit.
        for _ in 0..REFILLS_PER_CALL {
            let Some(refill) = self.hot()?.wants_refill(queues, REFILL_BELOW) else { break };
            self.refill_level(&refill)?;
        }
        Ok(())
    }

    fn refill_level(&mut self, refill: &Refill) -> Kept<()> {
        let page = self.tables.live_from(refill.from, REFILL_ROWS)?;
        let rest = if page.len() < REFILL_ROWS { None } else { page.last().map(|(id, _)| next_id(*id)) };
        // The boundary moves first, so that what is added now is not turned away as spilled.
        self.hot()?.refilled(refill, rest);
        let of_level = |l: &&Live| {
            l.slip.queue == refill.queue
                && l.slip.priority == refill.priority
                && l.slip.ordering_key.is_none()
                && !l.life.indicators.is_suspect()
        };
        let whole = page.iter().filter_map(|(_, live)| live.as_ref().ok());
        for live in whole.filter(of_level).filter(|l| l.life.phase == Phase::Waiting) {
            self.hot()?.add_refilled(&live.slip, &live.life);
        }
        Ok(())
    }

    /// What waits in each queue and for what, where any do; nothing when the index that knows it would take long to
    /// build.
    pub(crate) fn waiting_for(&mut self, now: Time) -> Outcome<Option<BTreeMap<QueueName, WaitingFor>>> {
        let live: i64 = self.queues()?.values().map(|row| row.counts.waiting + row.counts.leased).sum();
        if self.hot.is_none() && live > limits::TIDY_MESSAGES_MAX {
            return Ok(None);
        }
        self.tick_breakers(now)?;
        let queues = self.queues()?.iter();
        let queues: Vec<(QueueName, bool, i64)> =
            queues.map(|(name, row)| (name.clone(), row.paused_by.is_some(), row.counts.waiting)).collect();
        let mut found = BTreeMap::new();
        for (name, paused, waiting) in queues {
            let mut waits = self.hot()?.waiting_for(&name, now);
            if paused {
                let waiting = u64::try_from(waiting).unwrap_or(0);
                waits.pause = waiting.saturating_sub(self.tables.scheduled(&name, now)?);
            }
            if waits != WaitingFor::default() {
                found.insert(name, waits);
            }
        }
        Ok(Some(found))
    }

    /// When one of these queues next has something due; nothing when none waits. Unknown queues are refused.
    pub(crate) fn next_due(&mut self, queues: &[QueueName], now: Time) -> Outcome<Due> {
        self.tick_breakers(now)?;
        let mut next = Due::default();
        let earlier = |a: Option<Time>, b: Option<Time>| a.into_iter().chain(b).min();
        for name in queues {
            if self.queue(name)?.paused_by.is_some() {
                continue;
            }
            let (ordinary, suspect) = self.hot()?.next_due(name);
            let released = self.breakers_due(name)?;
            next.ordinary = earlier(next.ordinary, earlier(ordinary, released));
            next.suspect = earlier(next.suspect, suspect);
        }
        Ok(next)
    }
}

/// When there is something to lease: for anybody, and for a worker with nothing in its hands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Due {
    pub(crate) ordinary: Option<Time>,
    pub(crate) suspect: Option<Time>,
}

/// The id after this one, in the order of bytes.
fn next_id(id: MessageId) -> MessageId {
    MessageId::from_bytes(u128::from_be_bytes(id.to_bytes()).saturating_add(1).to_be_bytes())
}

/// Asks the scheduler for a level and the index for the message.
fn pick(
    scheduler: &mut Scheduler,
    hot: &mut Hot,
    queues: &[QueueName],
    suspects: bool,
    now: Time,
) -> Option<Next> {
    let mut heads = Heads::default();
    let mut ids: [Option<Next>; 5] = [None; 5];
    let slots = heads.levels.iter_mut().zip(ids.iter_mut()).zip(Priority::ALL);
    for ((head, id), priority) in slots {
        let first = queues
            .iter()
            .filter_map(|q| hot.head(q, priority, suspects))
            .filter(|(h, _)| h.ready_at <= now)
            .min_by_key(|(h, _)| (h.ready_at, h.seq));
        if let Some((h, i)) = first {
            (*head, *id) = (Some(h), Some(i));
        }
    }
    let urgent = queues.iter().filter_map(|q| hot.urgent(q, suspects, now)).min_by_key(|(place, _)| *place);
    heads.urgent = urgent.map(|((deadline, level, _), _)| (Priority::from_level(level), deadline));
    let decision = scheduler.pick(&heads, now)?;
    if decision.reason == PickReason::StarvationPrevention {
        metrics::process().count(Counter::Starvation, 1);
    }
    match decision.reason {
        PickReason::DeadlineApproaching => urgent.map(|(_, next)| next),
        PickReason::PriorityOrder
        | PickReason::StarvationPrevention
        | PickReason::LoadBalancing
        | PickReason::EmergencyMode => ids.get(decision.level.level()).copied().flatten(),
    }
}

/// Puts a delivery together.
pub(crate) fn deliver(envelope: redrive_core::message::Envelope, grant: Grant, now: Time) -> Delivery {
    let attempt = grant.live.life.attempts;
    let record = Record { envelope, life: grant.live.life };
    Delivery { message: record.view(&grant.policy, now), token: grant.token, attempt }
}

/// Refuses queues that are not there before anybody waits for them.
pub(crate) fn check_wait(queues: &[QueueName]) -> Result<(), Refusal> {
    if queues.is_empty() || queues.len() > limits::LEASE_QUEUES_MAX {
        let why = format!("name 1 to {} queues", limits::LEASE_QUEUES_MAX);
        return Err(Refusal::invalid("queues", why));
    }
    Ok(())
}
