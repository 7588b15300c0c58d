//! What the model derives from failures: breakers, groups of failures, poison suspects and which worker may
//! lease a suspect. The decisions are made by the core; this module only gathers their input.

use super::{Letter, ModelState};
use redrive_core::breaker::{Breaker, BreakerGate, BreakerPolicy, BreakerSignal, BreakerView};
use redrive_core::dead_letter::{Actor, DeadLetter};
use redrive_core::error::Refusal;
use redrive_core::failure::{AnalysedFailure, ErrorInfo, FailureReport};
use redrive_core::filter::Filter;
use redrive_core::group::Leaf;
use redrive_core::ids::{GroupId, LeafId, MessageId, QueueName};
use redrive_core::limits;
use redrive_core::message::{MessageMeta, StoredMessage};
use redrive_core::poison::{Admission, WorkerLoad};
use redrive_core::policy::Override;
use redrive_core::review::{FailedDelivery, Review, review};
use redrive_core::signature::LeafPlacement;
use redrive_core::store::LeaseRequest;
use redrive_core::time::Time;
use std::collections::BTreeSet;

impl ModelState {
    /// The metadata of a message, with the breaker value that was read when it entered its queue.
    pub(super) fn meta(&self, stored: &StoredMessage) -> MessageMeta {
        let breaker_key = (stored.envelope.id, stored.envelope.queue.clone());
        let breaker = self.breaker_values.get(&breaker_key).cloned();
        MessageMeta { breaker, ..MessageMeta::from(stored) }
    }

    fn breaker_of(&self, stored: &StoredMessage) -> Option<((QueueName, String), BreakerPolicy)> {
        let rules = self.policy(&stored.envelope.queue).breaker.clone()?;
        let key = rules.key.of(&self.meta(stored))?;
        Some(((stored.envelope.queue.clone(), key), rules))
    }

    pub(super) fn permit(&mut self, stored: &StoredMessage, now: Time) -> Option<u64> {
        let (at, _) = self.breaker_of(stored)?;
        Some(self.breakers.entry(at).or_insert_with(|| Breaker::new(now)).grant(now))
    }

    pub(super) fn signal(&mut self, stored: &StoredMessage, signal: BreakerSignal, now: Time) {
        let permit = stored.lifecycle.lease().and_then(|l| l.permit);
        if let (Some(permit), Some((at, rules))) = (permit, self.breaker_of(stored)) {
            self.breakers.entry(at).or_insert_with(|| Breaker::new(now)).settle(permit, signal, &rules, now);
        }
    }

    /// Whether a message's breaker lets it through: every message of the breaker, only the first of each
    /// priority level, or none.
    fn passes_breaker(&self, stored: &StoredMessage, ready: &[&StoredMessage], now: Time) -> bool {
        let Some((at, rules)) = self.breaker_of(stored) else { return true };
        let position = |r: &StoredMessage| (r.lifecycle.ready_at, r.envelope.seq);
        match self.breakers.get(&at).map_or(BreakerGate::Free, |b| b.gate(&rules, now)) {
            BreakerGate::Free => true,
            BreakerGate::Probing(0) | BreakerGate::Held(_) => false,
            BreakerGate::Probing(_) => !ready.iter().any(|other| {
                let level = other.envelope.priority == stored.envelope.priority;
                level
                    && position(other) < position(stored)
                    && self.breaker_of(other).is_some_and(|(a, _)| a == at)
            }),
        }
    }

    /// The messages that some worker could lease now.
    pub(super) fn leasable(&self, queues: &BTreeSet<QueueName>, now: Time) -> Vec<MessageId> {
        let ready: Vec<&StoredMessage> = self.live.iter().filter(|r| self.eligible(r, queues, now)).collect();
        let through = ready.iter().filter(|r| self.passes_breaker(r, &ready, now));
        through.map(|r| r.envelope.id).collect()
    }

    /// The leasable suspects, longest waiting first.
    fn suspects(&self, queues: &BTreeSet<QueueName>, now: Time) -> Vec<(Time, u64, MessageId)> {
        let leasable = self.leasable(queues, now);
        let suspect =
            |r: &&StoredMessage| r.lifecycle.indicators.is_suspect() && leasable.contains(&r.envelope.id);
        let mut found: Vec<_> = self.live.iter().filter(suspect).collect();
        found.sort_by_key(|r| (r.lifecycle.ready_at, r.envelope.seq));
        found.iter().map(|r| (r.lifecycle.ready_at, r.envelope.seq, r.envelope.id)).collect()
    }

    /// Leases messages to a worker, in the order of the scheduler.
    pub(super) fn lease_for_worker(&mut self, request: &LeaseRequest, now: Time) -> Vec<MessageId> {
        let queues: BTreeSet<QueueName> = request.queues.iter().cloned().collect();
        let mut load = WorkerLoad::default();
        for r in self.live.iter().filter(|r| r.lifecycle.lease().is_some_and(|l| l.worker == request.worker))
        {
            load.leases += 1;
            load.suspects += usize::from(r.lifecycle.indicators.is_suspect());
        }
        let first = self.suspects(&queues, now).first().copied();
        let admission = self.isolation.admit(&request.worker, load, first.map(|(since, _, _)| since), now);
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
            let suspect = picked.lifecycle.indicators.is_suspect();
            bytes += picked.envelope.size();
            self.grant(id, request, now);
            granted.push(id);
            if suspect {
                break;
            }
        }
        granted
    }

    /// The filter with the ids of merged groups replaced by the current ones.
    pub(super) fn with_current_groups(&self, filter: &Filter) -> Filter {
        filter.with_groups(|id| self.group_of(id))
    }

    /// The group that a leaf belongs to.
    pub(super) fn group_of(&self, leaf: LeafId) -> GroupId {
        self.leaves.iter().find(|l| l.id == leaf).map_or(leaf, |l| l.group)
    }

    /// Assigns the failure to its leaf, and merges groups that this failure shows to be one.
    pub(super) fn assign_leaf(&mut self, mut failure: AnalysedFailure, now: Time) -> AnalysedFailure {
        let LeafPlacement { leaf, new, moved } = self.tree.learn(&failure.signature);
        self.leaves.extend(new);
        self.regroup(moved, now);
        failure.signature.leaf = leaf;
        failure
    }

    fn regroup(&mut self, moved: Vec<(LeafId, GroupId)>, now: Time) {
        for (leaf, group) in moved {
            let known = self.leaves.iter_mut().find(|l| l.id == leaf).expect("only known leaves move");
            let old = std::mem::replace(&mut known.group, group);
            if let Some(standing) = self.group_histories.remove(&old).filter(|_| old != group) {
                let both = self.group_histories.remove(&group).unwrap_or_default().joined(standing);
                self.group_histories.insert(group, both);
            }
            if let Some(lifecycle) = self.triage.remove(&old) {
                let both = match self.triage.remove(&group) {
                    Some(mine) if old != group => mine.joined(lifecycle, now),
                    _ => lifecycle,
                };
                self.triage.insert(group, both);
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

    /// Adds a leaf that was created in another store.
    pub(super) fn import_leaf(
        &mut self,
        leaf: LeafId,
        template: &str,
        error: &ErrorInfo,
        now: Time,
    ) -> LeafId {
        let report = FailureReport { error: error.clone(), ..FailureReport::default() };
        let failure = report.analyse();
        if failure.signature.leaf == leaf {
            return self.assign_leaf(failure, now).signature.leaf;
        } else if !self.leaves.iter().any(|l| l.id == leaf) {
            self.add_leaf(leaf, template, error);
        }
        leaf
    }

    /// Adds a leaf about which only the id and the template are known.
    fn add_leaf(&mut self, leaf: LeafId, template: &str, error: &ErrorInfo) {
        let n = self.tree.next_position();
        let alone = Leaf { n, ..Leaf::alone(leaf, template.into(), error.error_type.clone()) };
        self.tree.restore(&alone);
        self.leaves.push(alone);
    }

    /// Adds the group of an imported letter, unless this store already knows the group or the letter's leaf.
    pub(super) fn import_group(&mut self, letter: &DeadLetter) {
        let (leaf, group) = (letter.record.leaf, letter.group);
        if group != leaf && !self.leaves.iter().any(|l| l.id == leaf || l.id == group) {
            self.add_leaf(group, &letter.signature, &letter.error);
        }
    }

    /// Merges a letter's leaf with the group that the letter belonged to in another store.
    pub(super) fn join_group(&mut self, leaf: LeafId, group: GroupId, now: Time) {
        if self.leaves.iter().any(|l| l.id == group) && self.group_of(leaf) != self.group_of(group) {
            let moved = self.tree.merge(&[self.group_of(group), self.group_of(leaf)]);
            self.regroup(moved, now);
        }
    }

    /// Reviews a failed delivery with everything that is known about its message and its group.
    pub(super) fn review(
        &mut self,
        at: usize,
        failure: AnalysedFailure,
        said: Option<Override>,
        now: Time,
    ) -> Review {
        let stored = self.live[at].clone();
        let failure = self.assign_leaf(failure, now);
        let group = self.group_of(failure.signature.leaf);
        let last = stored.lifecycle.indicators.leaf;
        let standing = &self.group_histories.get(&group).cloned().unwrap_or_default();
        let policy = self.policy(&stored.envelope.queue);
        let (meta, lifecycle) = (&self.meta(&stored), &stored.lifecycle);
        let same = last.is_some_and(|leaf| self.group_of(leaf) == group);
        let found = review(
            &FailedDelivery {
                meta,
                lifecycle,
                policy,
                group_history: standing,
                same_group: same,
                policy_override: said,
                now,
            },
            failure,
        );
        let worker = stored.lifecycle.lease().map(|l| l.worker.as_str());
        self.group_histories.entry(group).or_default().record_failure(stored.envelope.id, worker, now);
        found
    }

    pub(super) fn view_breakers(&self, now: Time) -> Vec<BreakerView> {
        let watched = self.breakers.iter().filter(|((queue, _), _)| self.policy(queue).breaker.is_some());
        watched.map(|((queue, key), b)| b.view(queue, key, self.held(queue, key), now)).collect()
    }

    fn held(&self, queue: &QueueName, key: &str) -> u64 {
        let waits = |r: &&StoredMessage| {
            let mine = self.breaker_of(r).is_some_and(|(at, _)| at.0 == *queue && at.1 == key);
            mine && r.lifecycle.lease().is_none()
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
        let queue_state = self.queues.get(queue).ok_or(Refusal::NoSuchQueue { queue: queue.clone() })?;
        let none = || Refusal::invalid("breaker", "no breaker");
        queue_state.policy.breaker.as_ref().ok_or_else(none)?.check_key(queue, key)?;
        let breaker =
            self.breakers.entry((queue.clone(), key.to_owned())).or_insert_with(|| Breaker::new(now));
        breaker.force(open, actor, now);
        let act = if open { "open breaker" } else { "close breaker" };
        self.log(now, actor, act, format!("{queue}/{key}"), 1);
        let held = self.held(queue, key);
        Ok(self.breakers[&(queue.clone(), key.to_owned())].view(queue, key, held, now))
    }

    /// Records what a redrive or an operator showed about the group of a letter.
    pub(super) fn record_outcome(
        &mut self,
        letter: &Letter,
        lesson: impl FnOnce(&mut redrive_core::classify::OutcomeStats),
    ) {
        let group = self.group_of(letter.record.leaf);
        lesson(&mut self.group_histories.entry(group).or_default().outcome_stats);
    }
}
