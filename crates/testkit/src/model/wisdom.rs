//! What the model knows beside its messages: breakers, what failures say about a message and its group, and who
//! may have a suspect. The decisions are the core's; here is only who is asked when.

use super::{Books, Letter};
use redrive_core::breaker::{Breaker, BreakerPolicy, BreakerView, Signal, Stance};
use redrive_core::dead_letter::{Actor, DeadLetter};
use redrive_core::error::Refusal;
use redrive_core::failure::{Analysed, ErrorInfo, Report};
use redrive_core::filter::Filter;
use redrive_core::group::Leaf;
use redrive_core::ids::{GroupId, LeafId, MessageId, QueueName};
use redrive_core::limits;
use redrive_core::message::{Record, Slip};
use redrive_core::poison::{Admission, Hands};
use redrive_core::policy::Override;
use redrive_core::review::{Failed, Review, review};
use redrive_core::signature::Placed;
use redrive_core::store::LeaseRequest;
use redrive_core::time::Time;
use std::collections::BTreeSet;

impl Books {
    /// A message's slip, with the value its breaker went by when it came to its queue.
    pub(super) fn slip(&self, record: &Record) -> Slip {
        let place = (record.envelope.id, record.envelope.queue.clone());
        let breaker = self.breaker_values.get(&place).cloned();
        Slip { breaker, ..Slip::from(record) }
    }

    fn breaker_of(&self, record: &Record) -> Option<((QueueName, String), BreakerPolicy)> {
        let rules = self.policy(&record.envelope.queue).breaker.clone()?;
        let key = rules.key.of(&self.slip(record))?;
        Some(((record.envelope.queue.clone(), key), rules))
    }

    pub(super) fn permit(&mut self, record: &Record, now: Time) -> Option<u64> {
        let (at, _) = self.breaker_of(record)?;
        Some(self.breakers.entry(at).or_insert_with(|| Breaker::new(now)).grant(now))
    }

    pub(super) fn signal(&mut self, record: &Record, signal: Signal, now: Time) {
        let permit = record.life.lease().and_then(|l| l.permit);
        if let (Some(permit), Some((at, rules))) = (permit, self.breaker_of(record)) {
            self.breakers.entry(at).or_insert_with(|| Breaker::new(now)).settle(permit, signal, &rules, now);
        }
    }

    /// Whether a message's breaker lets it through: all of its line, or the first of each level, or none.
    fn let_through(&self, record: &Record, ready: &[&Record], now: Time) -> bool {
        let Some((at, rules)) = self.breaker_of(record) else { return true };
        let place = |r: &Record| (r.life.ready_at, r.envelope.seq);
        match self.breakers.get(&at).map_or(Stance::Free, |b| b.stance(&rules, now)) {
            Stance::Free => true,
            Stance::Probing(0) | Stance::Held(_) => false,
            Stance::Probing(_) => !ready.iter().any(|other| {
                let level = other.envelope.priority == record.envelope.priority;
                level && place(other) < place(record) && self.breaker_of(other).is_some_and(|(a, _)| a == at)
            }),
        }
    }

    /// What could be leased now by somebody.
    pub(super) fn leasable(&self, queues: &BTreeSet<QueueName>, now: Time) -> Vec<MessageId> {
        let ready: Vec<&Record> = self.live.iter().filter(|r| self.eligible(r, queues, now)).collect();
        let through = ready.iter().filter(|r| self.let_through(r, &ready, now));
        through.map(|r| r.envelope.id).collect()
    }

    /// The suspects among them, longest waiting first.
    fn suspects(&self, queues: &BTreeSet<QueueName>, now: Time) -> Vec<(Time, u64, MessageId)> {
        let leasable = self.leasable(queues, now);
        let suspect = |r: &&Record| r.life.indicators.is_suspect() && leasable.contains(&r.envelope.id);
        let mut found: Vec<_> = self.live.iter().filter(suspect).collect();
        found.sort_by_key(|r| (r.life.ready_at, r.envelope.seq));
        found.iter().map(|r| (r.life.ready_at, r.envelope.seq, r.envelope.id)).collect()
    }

    /// Grants what a worker may have, most deserving first.
    pub(super) fn hand_out(&mut self, request: &LeaseRequest, now: Time) -> Vec<MessageId> {
        let queues: BTreeSet<QueueName> = request.queues.iter().cloned().collect();
        let mut hands = Hands::default();
        for r in self.live.iter().filter(|r| r.life.lease().is_some_and(|l| l.worker == request.worker)) {
            hands.leases += 1;
            hands.suspects += usize::from(r.life.indicators.is_suspect());
        }
        let first = self.suspects(&queues, now).first().copied();
        let admission = self.isolation.admit(&request.worker, hands, first.map(|(since, _, _)| since), now);
        let mut granted = Vec::new();
        match (admission, first) {
            (Admission::Nothing, _) => return granted,
            (Admission::SuspectFirst, Some((_, _, id))) => {
                self.grant(id, request, now);
                return vec![id];
            }
            (Admission::SuspectFirst | Admission::Anything | Admission::NoSuspects, _) => {}
        }
        let mut bytes = 0;
        while granted.len() < request.max && bytes < limits::LEASE_BYTES_MAX {
            let suspects = admission == Admission::Anything && granted.is_empty();
            let Some(id) = self.pick(&queues, suspects, now) else { break };
            let picked = &self.live[self.live_at(id).expect("picked")];
            let suspect = picked.life.indicators.is_suspect();
            bytes += picked.envelope.size();
            self.grant(id, request, now);
            granted.push(id);
            if suspect {
                break;
            }
        }
        granted
    }

    /// A filter with merged groups called by their present name.
    pub(super) fn present(&self, filter: &Filter) -> Filter {
        filter.with_groups(|id| self.group_of(id))
    }

    /// The group a leaf is in.
    pub(super) fn group_of(&self, leaf: LeafId) -> GroupId {
        self.leaves.iter().find(|l| l.id == leaf).map_or(leaf, |l| l.group)
    }

    /// The failure under the leaf it belongs to; leaves that turn out to be one group are.
    pub(super) fn place(&mut self, mut failure: Analysed, now: Time) -> Analysed {
        let Placed { leaf, new, moved } = self.tree.learn(&failure.signature);
        self.leaves.extend(new);
        self.regroup(moved, now);
        failure.signature.leaf = leaf;
        failure
    }

    fn regroup(&mut self, moved: Vec<(LeafId, GroupId)>, now: Time) {
        for (leaf, group) in moved {
            let known = self.leaves.iter_mut().find(|l| l.id == leaf).expect("only known leaves move");
            let old = std::mem::replace(&mut known.group, group);
            if let Some(standing) = self.standings.remove(&old).filter(|_| old != group) {
                let both = self.standings.remove(&group).unwrap_or_default().joined(standing);
                self.standings.insert(group, both);
            }
            if let Some(life) = self.lives.remove(&old) {
                let both = match self.lives.remove(&group) {
                    Some(mine) if old != group => mine.joined(life, now),
                    _ => life,
                };
                self.lives.insert(group, both);
            }
        }
    }

    pub(super) fn merge_groups(
        &mut self,
        groups: &[GroupId],
        actor: &Actor,
        now: Time,
    ) -> Result<GroupId, Refusal> {
        for group in groups {
            self.tree.group_of(*group).ok_or(Refusal::NoSuchGroup { group: *group })?;
        }
        let moved = self.tree.merge(groups);
        let (name, count) = (self.tree.group_of(groups[0]).expect("just found"), moved.len() as u64);
        self.regroup(moved, now);
        self.log(now, actor, "merge groups", name, count);
        Ok(name)
    }

    /// Takes in a leaf that was filed elsewhere.
    pub(super) fn adopt(&mut self, leaf: LeafId, template: &str, error: &ErrorInfo, now: Time) -> LeafId {
        let report = Report { error: error.clone(), ..Report::default() };
        let failure = report.analyse();
        if failure.signature.leaf == leaf {
            return self.place(failure, now).signature.leaf;
        } else if !self.leaves.iter().any(|l| l.id == leaf) {
            self.know(leaf, template, error);
        }
        leaf
    }

    /// A leaf of which only the name is known.
    fn know(&mut self, leaf: LeafId, template: &str, error: &ErrorInfo) {
        let n = self.tree.next_place();
        let alone = Leaf { n, ..Leaf::alone(leaf, template.into(), error.error_type.clone()) };
        self.tree.restore(&alone);
        self.leaves.push(alone);
    }

    /// Takes in the name of a letter's group, unless this store knows it or the letter's leaf.
    pub(super) fn expect_group(&mut self, letter: &DeadLetter) {
        let (leaf, group) = (letter.file.leaf, letter.group);
        if group != leaf && !self.leaves.iter().any(|l| l.id == leaf || l.id == group) {
            self.know(group, &letter.signature, &letter.error);
        }
    }

    /// A letter's leaf and the group it was in elsewhere are one group here.
    pub(super) fn join_group(&mut self, leaf: LeafId, group: GroupId, now: Time) {
        if self.leaves.iter().any(|l| l.id == group) && self.group_of(leaf) != self.group_of(group) {
            let moved = self.tree.merge(&[self.group_of(group), self.group_of(leaf)]);
            self.regroup(moved, now);
        }
    }

    /// Looks at a failed delivery in the light of all that is known.
    pub(super) fn review(
        &mut self,
        at: usize,
        failure: Analysed,
        said: Option<Override>,
        now: Time,
    ) -> Review {
        let record = self.live[at].clone();
        let failure = self.place(failure, now);
        let group = self.group_of(failure.signature.leaf);
        let last = record.life.indicators.leaf;
        let standing = &self.standings.get(&group).cloned().unwrap_or_default();
        let policy = self.policy(&record.envelope.queue);
        let (slip, life) = (&self.slip(&record), &record.life);
        let same = last.is_some_and(|leaf| self.group_of(leaf) == group);
        let found = review(&Failed { slip, life, policy, standing, same, said, now }, failure);
        let worker = record.life.lease().map(|l| l.worker.as_str());
        self.standings.entry(group).or_default().saw(record.envelope.id, worker, now);
        found
    }

    pub(super) fn show_breakers(&self, now: Time) -> Vec<BreakerView> {
        let watched = self.breakers.iter().filter(|((queue, _), _)| self.policy(queue).breaker.is_some());
        watched.map(|((queue, key), b)| b.view(queue, key, self.held(queue, key), now)).collect()
    }

    fn held(&self, queue: &QueueName, key: &str) -> u64 {
        let waits = |r: &&Record| {
            let mine = self.breaker_of(r).is_some_and(|(at, _)| at.0 == *queue && at.1 == key);
            mine && r.life.lease().is_none()
        };
        self.live.iter().filter(waits).count() as u64
    }

    pub(super) fn force_breaker(
        &mut self,
        queue: &QueueName,
        key: &str,
        open: bool,
        actor: &Actor,
        now: Time,
    ) -> Result<BreakerView, Refusal> {
        actor.check()?;
        let shelf = self.queues.get(queue).ok_or(Refusal::NoSuchQueue { queue: queue.clone() })?;
        let none = || Refusal::invalid("breaker", "no breaker");
        shelf.policy.breaker.as_ref().ok_or_else(none)?.check_key(queue, key)?;
        let breaker =
            self.breakers.entry((queue.clone(), key.to_owned())).or_insert_with(|| Breaker::new(now));
        breaker.force(open, actor, now);
        let act = if open { "open breaker" } else { "close breaker" };
        self.log(now, actor, act, format!("{queue}/{key}"), 1);
        let held = self.held(queue, key);
        Ok(self.breakers[&(queue.clone(), key.to_owned())].view(queue, key, held, now))
    }

    /// What a redrive or an operator taught about the group of a letter.
    pub(super) fn teach(
        &mut self,
        letter: &Letter,
        lesson: impl FnOnce(&mut redrive_core::classify::Lessons),
    ) {
        let group = self.group_of(letter.file.leaf);
        lesson(&mut self.standings.entry(group).or_default().lessons);
    }
}
