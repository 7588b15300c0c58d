//! Groups in the model. They are computed from all leaves and all events on every read; only triage decisions
//! are stored.

use super::ModelState;
use super::pages::latest;
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Actor, Status};
use redrive_core::error::Refusal;
use redrive_core::failure::AnalysedFailure;
use redrive_core::group::query::DetailParts;
use redrive_core::group::{
    Group, GroupAct, GroupActivity, GroupDetail, GroupRow, GroupSample, GroupTrend, Hour, LeafCount, LeafKey,
    Marker, NameCount, check_marker, sum,
};
use redrive_core::ids::{GroupId, LeafId, OperationId};
use redrive_core::limits;
use redrive_core::time::{Span, Time};
use std::collections::BTreeMap;

/// What happened to a group: a failed delivery, a death, or a letter that was closed.
pub(super) struct Event {
    leaf: LeafId,
    at: Time,
    what: Happened,
    worker: Option<String>,
    version: Option<String>,
    host: Option<String>,
}

/// The kind of an [`Event`].
#[derive(Clone, Copy)]
enum Happened {
    Failed,
    Died,
    Closed,
}

impl ModelState {
    pub(super) fn note_failure(&mut self, failure: &AnalysedFailure, worker: Option<&str>, at: Time) {
        self.events.push(Event {
            leaf: failure.signature.leaf,
            at,
            what: Happened::Failed,
            worker: worker.map(str::to_owned),
            version: failure.report.version.clone(),
            host: failure.report.host.clone(),
        });
    }

    fn note_event(&mut self, leaf: LeafId, what: Happened, at: Time) {
        self.events.push(Event { leaf, at, what, worker: None, version: None, host: None });
    }

    pub(super) fn note_close(&mut self, leaf: LeafId, now: Time) {
        self.note_event(leaf, Happened::Closed, now);
    }

    pub(super) fn note_death(&mut self, leaf: LeafId, now: Time) {
        self.note_event(leaf, Happened::Died, now);
        let group = self.group_of(leaf);
        if self.triage.entry(group).or_default().record_death(now) {
            self.log(now, &Actor::new("system", "system"), "group came back", group, 1);
        }
    }

    /// Called when a success closes a letter. Resolves the group if none of its letters is open any more.
    pub(super) fn note_success(&mut self, leaf: LeafId, now: Time) {
        let group = self.group_of(leaf);
        let open = self.letters.iter().filter(|l| !l.record.status.is_closed());
        let left = open.filter(|l| self.group_of(l.record.leaf) == group).count();
        if left == 0 && self.triage.entry(group).or_default().record_emptied(now) {
            self.log(now, &Actor::new("system", "system"), "resolve group", group, 1);
        }
    }

    fn all_counts(&self) -> Vec<(LeafKey, LeafCount)> {
        self.leaf_counts.iter().map(|(k, c)| (k.clone(), *c)).collect()
    }

    pub(super) fn view_groups(&self, now: Time) -> Vec<Group> {
        let sums = sum(&self.leaves, &self.all_counts()).into_iter();
        let triage = |id: GroupId| self.triage.get(&id).cloned().unwrap_or_default();
        sums.map(|(id, sums)| GroupRow { sums, triage: triage(id) }.view(id, now)).collect()
    }

    pub(super) fn view_group(&self, id: GroupId, now: Time) -> Result<Group, Refusal> {
        let found = self.view_groups(now).into_iter().find(|g| g.id == self.group_of(id));
        found.ok_or(Refusal::NoSuchGroup { group: id })
    }

    pub(super) fn group_detail(&self, id: GroupId, now: Time) -> Result<GroupDetail, Refusal> {
        let group = self.view_group(id, now)?;
        let mine = |leaf: LeafId| self.group_of(leaf) == group.id;
        let mut letters: Vec<_> = self.letters.iter().filter(|l| mine(l.record.leaf)).collect();
        letters.sort_by_key(|l| latest(l.death));
        letters.truncate(limits::GROUP_LETTERS_READ);
        letters.retain(|l| l.record.status != Status::Purged);
        let sample = |letter: &&super::Letter| {
            let envelope = &letter.stored.envelope;
            let last = self.failures(envelope.id).pop();
            GroupSample {
                id: envelope.id,
                queue: envelope.queue.clone(),
                kind: envelope.kind.clone(),
                status: letter.record.status,
                dead_at: letter.record.dead_at,
                message: last.map(|f| f.error.message).unwrap_or_default(),
            }
        };
        let mut counts = self.all_counts();
        counts.retain(|(key, _)| mine(key.leaf));
        let parts = DetailParts {
            triage: self.triage.get(&group.id).cloned().unwrap_or_default(),
            activity: GroupActivity::default(),
            counts,
            letters: letters.iter().map(sample).collect(),
            all: self.view_groups(now),
            operations: Vec::new(),
            outcomes: self.group_histories.get(&group.id).map(|s| s.outcome_stats).unwrap_or_default(),
            group: group.clone(),
        };
        let top = |of: fn(&Event) -> &Option<String>| self.most_frequent(group.id, of);
        let touched = self.operations_on(group.id).into_iter();
        let known =
            |id: OperationId| self.operations.iter().find(|(op, _)| op.id == id).map(|(op, _)| op.clone());
        Ok(GroupDetail {
            hours: self.hours(group.id, now),
            workers: top(|event| &event.worker),
            versions: top(|event| &event.version),
            hosts: top(|event| &event.host),
            operations: touched.filter_map(known).collect(),
            ..GroupDetail::assemble(parts, now)
        })
    }

    /// What a list of groups shows of what happened lately.
    pub(super) fn trend(&self, group: GroupId, now: Time) -> GroupTrend {
        let top = |of: fn(&Event) -> &Option<String>| self.most_frequent(group, of);
        let (versions, hosts) = (top(|event| &event.version), top(|event| &event.host));
        GroupTrend { hours: self.hours(group, now), versions, hosts }
    }

    /// The hourly counts of the last two days.
    fn hours(&self, group: GroupId, now: Time) -> Vec<Hour> {
        let hour = Span::from_hours(1).as_millis();
        let of = |at: Time| at.as_millis().unsigned_abs() / hour;
        let mut hours: BTreeMap<u64, Hour> = BTreeMap::new();
        let lately = |e: &&Event| of(now) - of(e.at) < 48 && self.group_of(e.leaf) == group;
        for event in self.events.iter().filter(lately) {
            let at = Time::ZERO.plus(Span::from_millis(of(event.at) * hour));
            let counted = hours.entry(of(event.at)).or_insert(Hour { at, deaths: 0, failures: 0, closed: 0 });
            *(match event.what {
                Happened::Died => &mut counted.deaths,
                Happened::Failed => &mut counted.failures,
                Happened::Closed => &mut counted.closed,
            }) += 1;
        }
        hours.into_values().collect()
    }

    /// The most frequent names. The counts are exact, so laws and streams must not use more names than a
    /// store keeps.
    fn most_frequent(&self, group: GroupId, of: fn(&Event) -> &Option<String>) -> Vec<NameCount> {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for event in self.events.iter().filter(|e| self.group_of(e.leaf) == group) {
            if let Some(name) = of(event) {
                *counts.entry(name).or_default() += 1;
            }
        }
        let counted = |(name, count): (&str, u64)| NameCount { name: name.to_owned(), count, over: 0 };
        let mut all: Vec<NameCount> = counts.into_iter().map(counted).collect();
        all.sort_by_key(|counted| std::cmp::Reverse(counted.count));
        all
    }

    /// The latest operations that touched letters of a group, latest first.
    fn operations_on(&self, group: GroupId) -> Vec<OperationId> {
        let mut last: BTreeMap<OperationId, Time> = BTreeMap::new();
        for (id, _, at) in self.touched.iter().filter(|(_, leaf, _)| self.group_of(*leaf) == group) {
            last.insert(*id, *at);
        }
        let mut all: Vec<(Time, OperationId)> = last.into_iter().map(|(id, at)| (at, id)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.truncate(limits::GROUP_OPERATIONS_MAX);
        all.into_iter().map(|(_, id)| id).collect()
    }

    pub(super) fn act_on_group(
        &mut self,
        id: GroupId,
        act: &GroupAct,
        actor: &Actor,
        now: Time,
    ) -> Result<Group, Refusal> {
        let group = self.view_group(id, now)?.id;
        let triage = self.triage.entry(group).or_default();
        *triage = triage.act(group, act, actor, now)?;
        self.log(now, actor, act.audit_name(), group, 1);
        self.view_group(group, now)
    }

    pub(super) fn mark(&mut self, text: String, actor: &Actor, now: Time) -> Result<Marker, Refusal> {
        check_marker(&text)?;
        let n = self.markers.last().map_or(0, |marker| marker.n) + 1;
        let marker = Marker { n, at: now, by: actor.name.clone(), text };
        self.markers.push(marker.clone());
        if self.markers.len() > limits::MARKERS_MAX {
            self.markers.remove(0);
        }
        self.seal(AuditEntry::new(now, actor, "mark", n, 1));
        Ok(marker)
    }
}
