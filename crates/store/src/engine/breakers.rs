//! Breakers: granting a lease asks the breaker of the message's key, settling reports the outcome to it, and the
//! ready index offers only what the breaker lets through. The core ([`redrive_core::breaker`]) decides.

use super::Engine;
use super::breaker_queue::Mode;
use super::tables::{BreakerId, TableResult, Tables};
use redrive_core::audit::AuditEntry;
use redrive_core::breaker::{Breaker, BreakerGate, BreakerPolicy, BreakerSignal, BreakerView};
use redrive_core::changes::Area;
use redrive_core::dead_letter::Actor;
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::ids::QueueName;
use redrive_core::lifecycle::Lifecycle;
use redrive_core::limits;
use redrive_core::message::MessageMeta;
use redrive_core::policy::QueuePolicy;
use redrive_core::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// The breakers of a store, read once and written with the commits that change them.
#[derive(Default)]
pub(super) struct Breakers {
    all: Option<BTreeMap<BreakerId, Breaker>>,
    changed: BTreeSet<BreakerId>,
    /// Open breakers by when they may be tried again.
    by_probe_time: BTreeSet<(Time, BreakerId)>,
}

fn mode(gate: BreakerGate) -> Mode {
    match gate {
        BreakerGate::Free => Mode::Free,
        BreakerGate::Probing(left) if left > 0 => Mode::Probing,
        BreakerGate::Probing(_) | BreakerGate::Held(_) => Mode::Held,
    }
}

fn held_until(gate: BreakerGate) -> Option<Time> {
    match gate {
        BreakerGate::Held(until) => until,
        BreakerGate::Free | BreakerGate::Probing(_) => None,
    }
}

impl<T: Tables> Engine<T> {
    fn breakers(&mut self) -> TableResult<&mut BTreeMap<BreakerId, Breaker>> {
        if self.breakers.all.is_none() {
            self.breakers.all = Some(self.tables.breakers()?);
        }
        Ok(self.breakers.all.get_or_insert_default())
    }

    /// Writes the breakers that this commit changed.
    pub(super) fn flush_breakers(&mut self) -> TableResult<()> {
        let Some(all) = &self.breakers.all else { return Ok(()) };
        for id in std::mem::take(&mut self.breakers.changed) {
            self.touched.areas.insert(Area::Breakers);
            self.tables.put_breaker(&id, all.get(&id))?;
        }
        Ok(())
    }

    /// The breaker of a message, if it has one.
    fn breaker_id_of(meta: &MessageMeta, policy: &QueuePolicy) -> Option<BreakerId> {
        let key = policy.breaker.as_ref()?.key.of(meta)?;
        Some((meta.queue.clone(), key))
    }

    /// Changes a breaker, and which of its messages the index offers. Returns `None`, and does nothing, if there are
    /// too many breakers to add another.
    fn with_breaker<R>(
        &mut self,
        id: &BreakerId,
        policy: &BreakerPolicy,
        now: Time,
        change: impl FnOnce(&mut Breaker) -> R,
    ) -> TableResult<Option<R>> {
        self.make_room(id, policy, now)?;
        let all = self.breakers()?;
        let is_new = !all.contains_key(id);
        if is_new && all.len() >= limits::BREAKERS_MAX {
            return Ok(None);
        }
        let breaker = all.entry(id.clone()).or_insert_with(|| Breaker::new(now));
        let (before, old) = (breaker.gate(policy, now), breaker.clone());
        let result = change(breaker);
        let after = breaker.gate(policy, now);
        // A new breaker is stored even if nothing has changed yet: a permit of its first epoch has been given out.
        if is_new || old != *breaker {
            self.cached_writes += 1;
            self.breakers.changed.insert(id.clone());
        }
        if let Some(until) = held_until(after).filter(|_| before != after) {
            self.breakers.by_probe_time.insert((until, id.clone()));
        }
        if mode(before) != mode(after) {
            if mode(after) != Mode::Held {
                self.work_available(&id.0, now, now);
            }
            if let Some(ready_index) = &mut self.ready_index {
                ready_index.set_breaker_mode(&id.0, &id.1, mode(after));
            }
        }
        Ok(Some(result))
    }

    /// Makes room by dropping breakers that have nothing to remember, if there are too many.
    fn make_room(&mut self, id: &BreakerId, policy: &BreakerPolicy, now: Time) -> TableResult<()> {
        let all = self.breakers()?;
        if all.len() < limits::BREAKERS_MAX || all.contains_key(id) {
            return Ok(());
        }
        let idle = all.iter().filter(|(_, b)| !b.worth_keeping(policy, now));
        let idle: Vec<BreakerId> = idle.map(|(id, _)| id.clone()).collect();
        for id in idle {
            self.breakers()?.remove(&id);
            self.breakers.changed.insert(id);
        }
        Ok(())
    }

    /// The permit for a lease that is about to be granted.
    pub(super) fn grant_permit(
        &mut self,
        meta: &MessageMeta,
        policy: &QueuePolicy,
        now: Time,
    ) -> TableResult<Option<u64>> {
        let (Some(id), Some(rules)) = (Self::breaker_id_of(meta, policy), &policy.breaker) else {
            return Ok(None);
        };
        self.with_breaker(&id, rules, now, |breaker| breaker.grant(now))
    }

    /// Says which open breaker holds back a message, if one does.
    pub(super) fn breaker_holds(&mut self, meta: &MessageMeta, now: Time) -> TableResult<Option<String>> {
        let row = self.queues()?.get(&meta.queue);
        let Some(rules) = row.and_then(|row| row.policy.breaker.clone()) else { return Ok(None) };
        let Some(id) = rules.key.of(meta).map(|key| (meta.queue.clone(), key)) else { return Ok(None) };
        let gate = self.breakers()?.get(&id).map_or(BreakerGate::Free, |breaker| breaker.gate(&rules, now));
        Ok(match gate {
            BreakerGate::Held(_) => Some(format!("the breaker of queue {} is open for {}", id.0, id.1)),
            BreakerGate::Free | BreakerGate::Probing(_) => None,
        })
    }

    /// Reports to the breaker how a delivery ended.
    pub(super) fn signal_breaker(
        &mut self,
        meta: &MessageMeta,
        lifecycle: &Lifecycle,
        signal: BreakerSignal,
        policy: &QueuePolicy,
        now: Time,
    ) -> TableResult<()> {
        let Some(permit) = lifecycle.lease().and_then(|lease| lease.permit) else { return Ok(()) };
        let (Some(id), Some(rules)) = (Self::breaker_id_of(meta, policy), &policy.breaker) else {
            return Ok(());
        };
        self.with_breaker(&id, rules, now, |breaker| breaker.settle(permit, signal, rules, now))?;
        Ok(())
    }

    /// Lets probes through open breakers whose time is over.
    pub(super) fn tick_breakers(&mut self, now: Time) -> StoreResult<()> {
        while let Some((until, id)) =
            self.breakers.by_probe_time.first().cloned().filter(|(until, _)| *until <= now)
        {
            self.breakers.by_probe_time.remove(&(until, id.clone()));
            let Ok(row) = self.queue(&id.0) else { continue };
            let Some(rules) = row.policy.breaker.clone() else { continue };
            let Some(gate) = self.breakers()?.get(&id).map(|b| b.gate(&rules, now)) else { continue };
            if let Some(ready_index) = &mut self.ready_index {
                ready_index.set_breaker_mode(&id.0, &id.1, mode(gate));
            }
        }
        Ok(())
    }

    /// When messages of a queue that a breaker holds may be tried again.
    pub(super) fn next_breaker_probe(&mut self, queue: &QueueName) -> TableResult<Option<Time>> {
        let due: Vec<(Time, BreakerId)> =
            self.breakers.by_probe_time.iter().filter(|(_, id)| id.0 == *queue).cloned().collect();
        let ready_index = self.ready_index()?;
        Ok(due
            .into_iter()
            .find(|(_, id)| ready_index.waiting_behind(&id.0, &id.1) > 0)
            .map(|(until, _)| until))
    }

    /// What a new index must show of each breaker. An open breaker is held even if its time is over: the next tick
    /// lets its probes through.
    pub(super) fn breaker_modes(&mut self) -> TableResult<Vec<(BreakerId, Mode)>> {
        let rules: BTreeMap<QueueName, BreakerPolicy> = self
            .queues()?
            .iter()
            .filter_map(|(name, row)| row.policy.breaker.clone().map(|rules| (name.clone(), rules)))
            .collect();
        if rules.is_empty() {
            return Ok(Vec::new());
        }
        let mut modes = Vec::new();
        let mut by_probe_time = BTreeSet::new();
        for (id, breaker) in self.breakers()?.iter() {
            let Some(rules) = rules.get(&id.0) else { continue };
            let gate = breaker.gate(rules, Time::ZERO);
            by_probe_time.extend(held_until(gate).map(|until| (until, id.clone())));
            modes.push((id.clone(), mode(gate)));
        }
        self.breakers.by_probe_time = by_probe_time;
        Ok(modes)
    }

    /// Removes the breakers of a queue, because their key has changed.
    pub(super) fn forget_breakers(&mut self, queue: &QueueName) -> TableResult<()> {
        let theirs: Vec<BreakerId> = self.breakers()?.keys().filter(|id| id.0 == *queue).cloned().collect();
        for id in theirs {
            self.breakers()?.remove(&id);
            self.breakers.changed.insert(id);
        }
        self.breakers.by_probe_time.retain(|(_, id)| id.0 != *queue);
        Ok(())
    }

    /// Every breaker, by queue and key.
    pub(crate) fn list_breakers(&mut self, now: Time) -> StoreResult<Vec<BreakerView>> {
        let watched: BTreeSet<QueueName> = self
            .queues()?
            .iter()
            .filter(|(_, row)| row.policy.breaker.is_some())
            .map(|(name, _)| name.clone())
            .collect();
        let all: Vec<(BreakerId, Breaker)> = self
            .breakers()?
            .iter()
            .filter(|(id, _)| watched.contains(&id.0))
            .map(|(id, breaker)| (id.clone(), breaker.clone()))
            .collect();
        if all.is_empty() {
            return Ok(Vec::new());
        }
        let ready_index = self.ready_index()?;
        let held = |id: &BreakerId| ready_index.waiting_behind(&id.0, &id.1);
        Ok(all.iter().map(|(id, breaker)| breaker.view(&id.0, &id.1, held(id), now)).collect())
    }

    /// Opens or closes a breaker by hand.
    pub(crate) fn force_breaker(
        &mut self,
        queue: &QueueName,
        key: &str,
        open: bool,
        actor: &Actor,
        now: Time,
    ) -> StoreResult<BreakerView> {
        actor.check()?;
        let Some(rules) = self.queue(queue)?.policy.breaker.clone() else {
            let why = format!(
                "queue {queue} has no breaker; name its key first: queue set {queue} --breaker queue"
            );
            return Err(Refusal::invalid("breaker", why).into());
        };
        rules.check_key(queue, key)?;
        let id = (queue.clone(), key.to_owned());
        // The index is built first, so that the number of held messages is known.
        self.ready_index()?;
        let forced = self.with_breaker(&id, &rules, now, |breaker| {
            breaker.force(open, actor, now);
            breaker.clone()
        })?;
        let Some(breaker) = forced else {
            let why = format!("there are {} breakers already", limits::BREAKERS_MAX);
            return Err(Refusal::invalid("key", why).into());
        };
        let act = if open { "open breaker" } else { "close breaker" };
        self.append_audit(AuditEntry::new(now, actor, act, format!("{queue}/{key}"), 1))?;
        let held = self.ready_index()?.waiting_behind(queue, key);
        Ok(breaker.view(queue, key, held, now))
    }
}
