//! Breakers in the life of a store: every lease asks the breaker of its key, every settlement tells it, and the
//! hot index shows what it lets through. The decisions are [`redrive_core::breaker`]'s.

use super::Engine;
use super::lines::Mode;
use super::tables::{BreakerAt, Kept, Tables};
use redrive_core::audit::AuditEntry;
use redrive_core::breaker::{Breaker, BreakerPolicy, BreakerView, Signal, Stance};
use redrive_core::dead_letter::Actor;
use redrive_core::error::{Outcome, Refusal};
use redrive_core::ids::QueueName;
use redrive_core::lifecycle::Life;
use redrive_core::limits;
use redrive_core::message::Slip;
use redrive_core::policy::QueuePolicy;
use redrive_core::time::Time;
use std::collections::{BTreeMap, BTreeSet};

/// The breakers of a store, read once and written with the commits that change them.
#[derive(Default)]
pub(super) struct Breakers {
    all: Option<BTreeMap<BreakerAt, Breaker>>,
    changed: BTreeSet<BreakerAt>,
    /// Open ones by when they may be tried again.
    reopen: BTreeSet<(Time, BreakerAt)>,
}

fn mode(stance: Stance) -> Mode {
    match stance {
        Stance::Free => Mode::Free,
        Stance::Probing(left) if left > 0 => Mode::Probing,
        Stance::Probing(_) | Stance::Held(_) => Mode::Held,
    }
}

fn ends(stance: Stance) -> Option<Time> {
    match stance {
        Stance::Held(until) => until,
        Stance::Free | Stance::Probing(_) => None,
    }
}

impl<T: Tables> Engine<T> {
    fn breakers(&mut self) -> Kept<&mut BTreeMap<BreakerAt, Breaker>> {
        if self.breakers.all.is_none() {
            self.breakers.all = Some(self.tables.breakers()?);
        }
        Ok(self.breakers.all.get_or_insert_default())
    }

    /// Writes what this commit changed.
    pub(super) fn flush_breakers(&mut self) -> Kept<()> {
        let Some(all) = &self.breakers.all else { return Ok(()) };
        for at in std::mem::take(&mut self.breakers.changed) {
            self.tables.put_breaker(&at, all.get(&at))?;
        }
        Ok(())
    }

    /// Where the breaker of a message is, if it has one.
    fn breaker_at(slip: &Slip, policy: &QueuePolicy) -> Option<BreakerAt> {
        let key = policy.breaker.as_ref()?.key.of(slip)?;
        Some((slip.queue.clone(), key))
    }

    /// Changes a breaker, and what the index shows of its messages. A key beyond the limit is not watched.
    fn with_breaker<R>(
        &mut self,
        at: &BreakerAt,
        policy: &BreakerPolicy,
        now: Time,
        change: impl FnOnce(&mut Breaker) -> R,
    ) -> Kept<Option<R>> {
        self.make_room(at, policy, now)?;
        let all = self.breakers()?;
        let is_new = !all.contains_key(at);
        if is_new && all.len() >= limits::BREAKERS_MAX {
            return Ok(None);
        }
        let breaker = all.entry(at.clone()).or_insert_with(|| Breaker::new(now));
        let (before, old) = (breaker.stance(policy, now), breaker.clone());
        let result = change(breaker);
        let after = breaker.stance(policy, now);
        // A new one is kept even if nothing has changed yet: permits of its first epoch are out.
        if is_new || old != *breaker {
            self.touched += 1;
            self.breakers.changed.insert(at.clone());
        }
        if let Some(until) = ends(after).filter(|_| before != after) {
            self.breakers.reopen.insert((until, at.clone()));
        }
        if mode(before) != mode(after) {
            self.woke |= mode(after) != Mode::Held;
            if let Some(hot) = &mut self.hot {
                hot.set_mode(&at.0, &at.1, mode(after));
            }
        }
        Ok(Some(result))
    }

    /// Forgets breakers with nothing left to remember when there are too many.
    fn make_room(&mut self, at: &BreakerAt, policy: &BreakerPolicy, now: Time) -> Kept<()> {
        let all = self.breakers()?;
        if all.len() < limits::BREAKERS_MAX || all.contains_key(at) {
            return Ok(());
        }
        let idle = all.iter().filter(|(_, b)| !b.is_remarkable(policy, now));
        let idle: Vec<BreakerAt> = idle.map(|(at, _)| at.clone()).collect();
        for at in idle {
            self.breakers()?.remove(&at);
            self.breakers.changed.insert(at);
        }
        Ok(())
    }

    /// The permit of a lease that is about to be granted.
    pub(super) fn permit(&mut self, slip: &Slip, policy: &QueuePolicy, now: Time) -> Kept<Option<u64>> {
        let (Some(at), Some(rules)) = (Self::breaker_at(slip, policy), &policy.breaker) else {
            return Ok(None);
        };
        self.with_breaker(&at, rules, now, |breaker| breaker.grant(now))
    }

    /// What holds back a message of this slip, in words, if its breaker does.
    pub(super) fn breaker_holds(&mut self, slip: &Slip, now: Time) -> Kept<Option<String>> {
        let row = self.queues()?.get(&slip.queue);
        let Some(rules) = row.and_then(|row| row.policy.breaker.clone()) else { return Ok(None) };
        let Some(at) = rules.key.of(slip).map(|key| (slip.queue.clone(), key)) else { return Ok(None) };
        let stance = self.breakers()?.get(&at).map_or(Stance::Free, |breaker| breaker.stance(&rules, now));
        Ok(match stance {
            Stance::Held(_) => Some(format!("the breaker of queue {} is open for {}", at.0, at.1)),
            Stance::Free | Stance::Probing(_) => None,
        })
    }

    /// Tells the breaker how a delivery ended.
    pub(super) fn signal(
        &mut self,
        slip: &Slip,
        life: &Life,
        signal: Signal,
        policy: &QueuePolicy,
        now: Time,
    ) -> Kept<()> {
        let Some(permit) = life.lease().and_then(|lease| lease.permit) else { return Ok(()) };
        let (Some(at), Some(rules)) = (Self::breaker_at(slip, policy), &policy.breaker) else {
            return Ok(());
        };
        self.with_breaker(&at, rules, now, |breaker| breaker.settle(permit, signal, rules, now))?;
        Ok(())
    }

    /// Lets probes of breakers through whose time is over.
    pub(super) fn tick_breakers(&mut self, now: Time) -> Outcome<()> {
        while let Some((until, at)) = self.breakers.reopen.first().cloned().filter(|(until, _)| *until <= now)
        {
            self.breakers.reopen.remove(&(until, at.clone()));
            let Ok(row) = self.queue(&at.0) else { continue };
            let Some(rules) = row.policy.breaker.clone() else { continue };
            let Some(stance) = self.breakers()?.get(&at).map(|b| b.stance(&rules, now)) else { continue };
            if let Some(hot) = &mut self.hot {
                hot.set_mode(&at.0, &at.1, mode(stance));
            }
        }
        Ok(())
    }

    /// When held messages of a queue may be tried again.
    pub(super) fn breakers_due(&mut self, queue: &QueueName) -> Kept<Option<Time>> {
        let due: Vec<(Time, BreakerAt)> =
            self.breakers.reopen.iter().filter(|(_, at)| at.0 == *queue).cloned().collect();
        let hot = self.hot()?;
        Ok(due.into_iter().find(|(_, at)| hot.held(&at.0, &at.1) > 0).map(|(until, _)| until))
    }

    /// What a new index must show of each breaker. Open ones are held, also when their time is over: the next
    /// tick lets their probes through.
    pub(super) fn breaker_modes(&mut self) -> Kept<Vec<(BreakerAt, Mode)>> {
        let rules: BTreeMap<QueueName, BreakerPolicy> = self
            .queues()?
            .iter()
            .filter_map(|(name, row)| row.policy.breaker.clone().map(|rules| (name.clone(), rules)))
            .collect();
        if rules.is_empty() {
            return Ok(Vec::new());
        }
        let mut modes = Vec::new();
        let mut reopen = BTreeSet::new();
        for (at, breaker) in self.breakers()?.iter() {
            let Some(rules) = rules.get(&at.0) else { continue };
            let stance = breaker.stance(rules, Time::ZERO);
            reopen.extend(ends(stance).map(|until| (until, at.clone())));
            modes.push((at.clone(), mode(stance)));
        }
        self.breakers.reopen = reopen;
        Ok(modes)
    }

    /// A queue's breakers start afresh: what they went by has changed.
    pub(super) fn forget_breakers(&mut self, queue: &QueueName) -> Kept<()> {
        let theirs: Vec<BreakerAt> = self.breakers()?.keys().filter(|at| at.0 == *queue).cloned().collect();
        for at in theirs {
            self.breakers()?.remove(&at);
            self.breakers.changed.insert(at);
        }
        self.breakers.reopen.retain(|(_, at)| at.0 != *queue);
        Ok(())
    }

    /// Every breaker, by queue and key.
    pub(crate) fn list_breakers(&mut self, now: Time) -> Outcome<Vec<BreakerView>> {
        let watched: BTreeSet<QueueName> = self
            .queues()?
            .iter()
            .filter(|(_, row)| row.policy.breaker.is_some())
            .map(|(name, _)| name.clone())
            .collect();
        let all: Vec<(BreakerAt, Breaker)> = self
            .breakers()?
            .iter()
            .filter(|(at, _)| watched.contains(&at.0))
            .map(|(at, breaker)| (at.clone(), breaker.clone()))
            .collect();
        if all.is_empty() {
            return Ok(Vec::new());
        }
        let hot = self.hot()?;
        let held = |at: &BreakerAt| hot.held(&at.0, &at.1);
        Ok(all.iter().map(|(at, breaker)| breaker.view(&at.0, &at.1, held(at), now)).collect())
    }

    /// An operator's word on a breaker.
    pub(crate) fn force_breaker(
        &mut self,
        queue: &QueueName,
        key: &str,
        open: bool,
        actor: &Actor,
        now: Time,
    ) -> Outcome<BreakerView> {
        actor.check()?;
        let Some(rules) = self.queue(queue)?.policy.breaker.clone() else {
            let why = format!(
                "queue {queue} has no breaker; name its key first: queue set {queue} --breaker queue"
            );
            return Err(Refusal::invalid("breaker", why).into());
        };
        rules.check_key(queue, key)?;
        let at = (queue.clone(), key.to_owned());
        // The index must be there, so that what is held is known and shown.
        self.hot()?;
        let forced = self.with_breaker(&at, &rules, now, |breaker| {
            breaker.force(open, actor, now);
            breaker.clone()
        })?;
        let Some(breaker) = forced else {
            let why = format!("there are {} breakers already", limits::BREAKERS_MAX);
            return Err(Refusal::invalid("key", why).into());
        };
        let act = if open { "open breaker" } else { "close breaker" };
        self.record(AuditEntry::new(now, actor, act, format!("{queue}/{key}"), 1))?;
        let held = self.hot()?.held(queue, key);
        Ok(breaker.view(queue, key, held, now))
    }
}
