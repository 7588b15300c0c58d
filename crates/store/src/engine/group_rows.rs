//! The rows of groups: sums of their leaves' counters, triage state, activity, and markers. The core
//! ([`redrive_core::group`]) decides what follows from an event; this file asks it and stores the result in the commit.

use super::Engine;
use super::tables::{Letter, TableResult, Tables, unless_damaged};
use redrive_core::audit::AuditEntry;
use redrive_core::changes::Area;
use redrive_core::dead_letter::Actor;
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::failure::AnalysedFailure;
use redrive_core::group::triage::{CAME_BACK, RESOLVED, SYSTEM};
use redrive_core::group::{
    self, GroupAct, GroupActivity, GroupRow, Leaf, LeafCount, LeafKey, Marker, check_marker,
};
use redrive_core::ids::{GroupId, LeafId, OperationId};
use redrive_core::time::Time;
use std::collections::{BTreeSet, HashMap};

/// Cached rows of groups, as stored or as they will be after this commit. A default row is stored as no row.
#[derive(Default)]
pub(super) struct Groups {
    rows: HashMap<GroupId, GroupRow>,
    rows_changed: BTreeSet<GroupId>,
    facts: HashMap<GroupId, GroupActivity>,
    facts_changed: BTreeSet<GroupId>,
}

/// Rows kept in memory between commits. Above this number the cache is emptied and read again.
const CACHE_MAX: usize = 20_000;

impl Groups {
    /// Writes the rows that this commit changed.
    pub(super) fn flush<T: Tables>(&mut self, tables: &mut T, areas: &mut BTreeSet<Area>) -> TableResult<()> {
        for id in std::mem::take(&mut self.rows_changed) {
            areas.insert(Area::Group(id));
            if let Some(row) = self.rows.get(&id) {
                tables.put_group_row(id, Some(row).filter(|row| **row != GroupRow::default()))?;
            }
        }
        for id in std::mem::take(&mut self.facts_changed) {
            areas.insert(Area::Group(id));
            if let Some(facts) = self.facts.get(&id) {
                tables
                    .put_group_facts(id, Some(facts).filter(|facts| **facts != GroupActivity::default()))?;
            }
        }
        if self.rows.len() > CACHE_MAX {
            self.rows.clear();
        }
        if self.facts.len() > CACHE_MAX {
            self.facts.clear();
        }
        Ok(())
    }
}

impl<T: Tables> Engine<T> {
    /// A group's row, for changing. It is written with this commit.
    fn group_row(&mut self, id: GroupId) -> TableResult<&mut GroupRow> {
        if !self.cache.groups.rows.contains_key(&id) {
            let row = match unless_damaged(self.tables.group_row(id))? {
                Some(row) => row.unwrap_or_default(),
                // A damaged row is recount_group; what people entered is lost, and `doctor` reports it.
                None => self.recount_group(id)?,
            };
            self.cache.groups.rows.insert(id, row);
        }
        self.cache.groups.rows_changed.insert(id);
        Ok(self.cache.groups.rows.entry(id).or_default())
    }

    /// A group's row computed from the counters of its leaves, before this commit's changes to them.
    fn recount_group(&mut self, id: GroupId) -> TableResult<GroupRow> {
        let mut sums = group::sum(&self.tables.leaves()?, &self.tables.leaf_counts()?);
        Ok(GroupRow { sums: sums.remove(&id).unwrap_or_default(), ..GroupRow::default() })
    }

    /// The activity of a group, for changing. It is written with this commit.
    fn group_facts(&mut self, id: GroupId) -> TableResult<&mut GroupActivity> {
        self.cache.groups.facts_changed.insert(id);
        self.cached_facts(id)
    }

    fn cached_facts(&mut self, id: GroupId) -> TableResult<&mut GroupActivity> {
        if !self.cache.groups.facts.contains_key(&id) {
            // A damaged row starts afresh; `doctor` reports the loss.
            let facts = unless_damaged(self.tables.group_facts(id))?.unwrap_or_default();
            self.cache.groups.facts.insert(id, facts);
        }
        Ok(self.cache.groups.facts.entry(id).or_default())
    }

    /// Adds the change of a leaf's counter to the sums of its group (I15).
    pub(super) fn count_group(
        &mut self,
        key: &LeafKey,
        before: LeafCount,
        after: LeafCount,
    ) -> TableResult<()> {
        // A missing leaf is in no group; `doctor` reports it.
        let Some(group) = self.group_of(key.leaf)? else { return Ok(()) };
        let change = [after.open - before.open, after.total - before.total, after.failures - before.failures];
        self.group_row(group)?.sums.add(key, change, &after);
        Ok(())
    }

    /// Updates the template of a group after it gained leaves, and its error type and code if a leaf is given.
    pub(super) fn update_template(&mut self, group: GroupId, founder: Option<&Leaf>) -> TableResult<()> {
        let template = self.tree()?.template_of(group);
        let row = self.group_row(group)?;
        if let Some(template) = template {
            row.sums.template = template;
        }
        if let Some(leaf) = founder {
            row.sums.error_type.clone_from(&leaf.error_type);
            row.sums.code.clone_from(&leaf.code);
        }
        Ok(())
    }

    /// Moves everything known about one group into another.
    pub(super) fn merge_group_rows(&mut self, from: GroupId, into: GroupId, now: Time) -> TableResult<()> {
        let old = std::mem::take(self.group_row(from)?);
        // The group has already been merged with the first of its leaves, or it never had a failure.
        if !old.sums.is_counted() {
            return Ok(());
        }
        let row = self.group_row(into)?;
        row.triage = match row.sums.is_counted() {
            true => std::mem::take(&mut row.triage).joined(old.triage, now),
            false => old.triage,
        };
        row.sums.join(&old.sums);
        let old = std::mem::take(self.group_facts(from)?);
        let facts = self.group_facts(into)?;
        *facts = std::mem::take(facts).joined(old);
        Ok(())
    }

    /// Notes a failed delivery in the activity of its group.
    pub(super) fn group_failed(
        &mut self,
        failure: &AnalysedFailure,
        worker: Option<&str>,
        now: Time,
    ) -> TableResult<()> {
        let Some(group) = self.group_of(failure.signature.leaf)? else { return Ok(()) };
        let (version, host) = (failure.report.version.as_deref(), failure.report.host.as_deref());
        self.group_facts(group)?.record_failure(worker, version, host, now);
        Ok(())
    }

    /// Notes a death in its group: a resolved group becomes regressed, and an ignored one may have been ignored for
    /// enough deaths.
    pub(super) fn group_died(&mut self, leaf: LeafId, now: Time) -> TableResult<()> {
        let Some(group) = self.group_of(leaf)? else { return Ok(()) };
        self.group_facts(group)?.record_death(now);
        if self.group_row(group)?.triage.record_death(now) {
            return self.record_group_change(group, CAME_BACK, now);
        }
        Ok(())
    }

    /// Notes in the activity of its group that a letter was closed.
    pub(super) fn group_closed(&mut self, leaf: LeafId, now: Time) -> TableResult<()> {
        let Some(group) = self.group_of(leaf)? else { return Ok(()) };
        self.group_facts(group)?.record_close(now);
        Ok(())
    }

    /// Notes that a redrive closed a letter. The group is resolved when its last open letter is closed.
    pub(super) fn group_succeeded(&mut self, leaf: LeafId, now: Time) -> TableResult<()> {
        let Some(group) = self.group_of(leaf)? else { return Ok(()) };
        let row = self.group_row(group)?;
        if row.sums.open == 0 && row.triage.record_emptied(now) {
            return self.record_group_change(group, RESOLVED, now);
        }
        Ok(())
    }

    /// Records an automatic change of a group in the audit trail, so that its whole history is there.
    fn record_group_change(&mut self, group: GroupId, what: &str, now: Time) -> TableResult<()> {
        self.append_audit(AuditEntry::new(now, &Actor::new(SYSTEM, SYSTEM), what, group, 1))
    }

    /// Notes in a letter's group that an operation acted on the letter.
    pub(super) fn group_operated(&mut self, letter: &Letter, id: OperationId, now: Time) -> TableResult<()> {
        let Some(group) = self.group_of(letter.record.leaf)? else { return Ok(()) };
        if self.cached_facts(group)?.record_operation(id, now) {
            self.cache.groups.facts_changed.insert(group);
        }
        Ok(())
    }

    /// Applies an operator's action to a group.
    pub(crate) fn act_on_group(
        &mut self,
        id: GroupId,
        act: &GroupAct,
        actor: &Actor,
        now: Time,
    ) -> StoreResult<GroupId> {
        actor.check()?;
        let unknown = || Refusal::NoSuchGroup { group: id };
        let group = self.group_of(id)?.ok_or_else(unknown)?;
        let row = self.group_row(group)?;
        if !row.sums.is_counted() {
            return Err(unknown().into());
        }
        row.triage = row.triage.act(group, act, actor, now)?;
        let entry = AuditEntry::new(now, actor, act.audit_name(), group, 1);
        self.append_audit(match act.detail() {
            Some(detail) => entry.with_detail(detail),
            None => entry,
        })?;
        Ok(group)
    }

    /// Adds a marker at the current time.
    pub(crate) fn mark(&mut self, text: String, actor: &Actor, now: Time) -> StoreResult<Marker> {
        actor.check()?;
        check_marker(&text)?;
        let last = self.tables.markers_before(u64::MAX, 1)?.pop();
        let n = last.map_or(0, |marker| marker.n) + 1;
        let marker = Marker { n, at: now, by: actor.name.clone(), text };
        self.tables.add_marker(&marker)?;
        self.touched.areas.insert(Area::Markers);
        self.append_audit(AuditEntry::new(now, actor, "mark", n, 1).with_detail(marker.text.clone()))?;
        Ok(marker)
    }

    /// Recounts the sums of all groups. Returns how many were wrong.
    pub(super) fn repair_groups(&mut self) -> TableResult<u64> {
        self.flush()?;
        let mut counted = group::sum(&self.tables.leaves()?, &self.tables.leaf_counts()?);
        let shown: Vec<GroupId> = self.tables.group_ids()?;
        let all: BTreeSet<GroupId> = shown.into_iter().chain(counted.keys().copied()).collect();
        let mut repaired = 0;
        for id in all {
            let row = self.group_row(id)?;
            let right = counted.remove(&id).unwrap_or_default();
            if right.is_counted() && row.sums.difference(&right).is_some() {
                row.sums = right;
                repaired += 1;
            } else if !right.is_counted() && row.sums.is_counted() {
                *row = GroupRow::default();
                repaired += 1;
            }
        }
        Ok(repaired)
    }
}
