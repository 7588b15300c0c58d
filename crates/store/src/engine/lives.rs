//! The rows of groups: their sums, kept in step with the counters of their leaves; their lives; what is counted of
//! them beside; and markers. What follows from an event is decided by the core ([`redrive_core::group`]); here it is
//! only asked at the right moment and written with the commit.

use super::Engine;
use super::tables::{Kept, Letter, Tables, unless_damaged};
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::Actor;
use redrive_core::error::{Outcome, Refusal};
use redrive_core::failure::Analysed;
use redrive_core::group::life::{CAME_BACK, RESOLVED, SYSTEM};
use redrive_core::group::{self, Facts, GroupAct, GroupRow, Leaf, LeafCount, LeafKey, Marker, check_marker};
use redrive_core::ids::{GroupId, LeafId, OperationId};
use redrive_core::time::Time;
use std::collections::{BTreeSet, HashMap};

/// Rows of groups as they are in the tables or will be with this commit. A default row is none.
#[derive(Default)]
pub(super) struct Groups {
    rows: HashMap<GroupId, GroupRow>,
    rows_changed: BTreeSet<GroupId>,
    facts: HashMap<GroupId, Facts>,
    facts_changed: BTreeSet<GroupId>,
}

/// Rows kept in memory between commits; beyond it they are read again.
const CACHE_MAX: usize = 20_000;

impl Groups {
    /// Writes what this commit changed.
    pub(super) fn flush<T: Tables>(&mut self, tables: &mut T) -> Kept<()> {
        for id in std::mem::take(&mut self.rows_changed) {
            if let Some(row) = self.rows.get(&id) {
                tables.put_group_row(id, Some(row).filter(|row| **row != GroupRow::default()))?;
            }
        }
        for id in std::mem::take(&mut self.facts_changed) {
            if let Some(facts) = self.facts.get(&id) {
                tables.put_group_facts(id, Some(facts).filter(|facts| **facts != Facts::default()))?;
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
    /// A group's row for changing; it is written with this commit.
    fn group_row(&mut self, id: GroupId) -> Kept<&mut GroupRow> {
        if !self.cache.groups.rows.contains_key(&id) {
            let row = match unless_damaged(self.tables.group_row(id))? {
                Some(row) => row.unwrap_or_default(),
                // What cannot be read is counted again; what people said is lost, and `doctor` says so.
                None => self.recounted(id)?,
            };
            self.cache.groups.rows.insert(id, row);
        }
        self.cache.groups.rows_changed.insert(id);
        Ok(self.cache.groups.rows.entry(id).or_default())
    }

    /// A group's row as its leaves have it, before this commit's changes to them.
    fn recounted(&mut self, id: GroupId) -> Kept<GroupRow> {
        let mut sums = group::sum(&self.tables.leaves()?, &self.tables.leaf_counts()?);
        Ok(GroupRow { sums: sums.remove(&id).unwrap_or_default(), ..GroupRow::default() })
    }

    /// What is counted of a group, for changing; it is written with this commit.
    fn group_facts(&mut self, id: GroupId) -> Kept<&mut Facts> {
        self.cache.groups.facts_changed.insert(id);
        self.known_facts(id)
    }

    fn known_facts(&mut self, id: GroupId) -> Kept<&mut Facts> {
        if !self.cache.groups.facts.contains_key(&id) {
            // What cannot be read is counted afresh; `doctor` says that it was lost.
            let facts = unless_damaged(self.tables.group_facts(id))?.unwrap_or_default();
            self.cache.groups.facts.insert(id, facts);
        }
        Ok(self.cache.groups.facts.entry(id).or_default())
    }

    /// Keeps the sums of a group in step with a counter of one of its leaves (I15).
    pub(super) fn count_group(&mut self, key: &LeafKey, before: LeafCount, after: LeafCount) -> Kept<()> {
        // A leaf that is gone is for `doctor` to report; it is in no group.
        let Some(group) = self.group_of(key.leaf)? else { return Ok(()) };
        let change = [after.open - before.open, after.total - before.total, after.failures - before.failures];
        self.group_row(group)?.sums.add(key, change, &after);
        Ok(())
    }

    /// A leaf came to a group, or groups have become one: the template says what all have in common.
    pub(super) fn show_template(&mut self, group: GroupId, face: Option<&Leaf>) -> Kept<()> {
        let template = self.tree()?.template_of(group);
        let row = self.group_row(group)?;
        if let Some(template) = template {
            row.sums.template = template;
        }
        if let Some(leaf) = face {
            row.sums.error_type.clone_from(&leaf.error_type);
            row.sums.code.clone_from(&leaf.code);
        }
        Ok(())
    }

    /// One group goes into another, with all that is known of it.
    pub(super) fn join_group(&mut self, from: GroupId, into: GroupId, now: Time) -> Kept<()> {
        let old = std::mem::take(self.group_row(from)?);
        // It has gone already with the first of its leaves, or nobody has ever seen it.
        if !old.sums.is_counted() {
            return Ok(());
        }
        let row = self.group_row(into)?;
        row.life = match row.sums.is_counted() {
            true => std::mem::take(&mut row.life).joined(old.life, now),
            false => old.life,
        };
        row.sums.join(&old.sums);
        let old = std::mem::take(self.group_facts(from)?);
        let facts = self.group_facts(into)?;
        *facts = std::mem::take(facts).joined(old);
        Ok(())
    }

    /// A delivery failed with a leaf.
    pub(super) fn group_failed(&mut self, failure: &Analysed, worker: Option<&str>, now: Time) -> Kept<()> {
        let Some(group) = self.group_of(failure.signature.leaf)? else { return Ok(()) };
        let (version, host) = (failure.report.version.as_deref(), failure.report.host.as_deref());
        self.group_facts(group)?.failed(worker, version, host, now);
        Ok(())
    }

    /// A message died of a leaf: a resolved group comes back, an ignored one counts.
    pub(super) fn group_died(&mut self, leaf: LeafId, now: Time) -> Kept<()> {
        let Some(group) = self.group_of(leaf)? else { return Ok(()) };
        self.group_facts(group)?.died(now);
        if self.group_row(group)?.life.died(now) {
            return self.record_change(group, CAME_BACK, now);
        }
        Ok(())
    }

    /// A letter of a leaf was closed by a success: with the last open one the group is resolved.
    pub(super) fn group_succeeded(&mut self, leaf: LeafId, now: Time) -> Kept<()> {
        let Some(group) = self.group_of(leaf)? else { return Ok(()) };
        let row = self.group_row(group)?;
        if row.sums.open == 0 && row.life.emptied(now) {
            return self.record_change(group, RESOLVED, now);
        }
        Ok(())
    }

    /// What happens to a group by itself is in the audit trail too: its story is told there whole.
    fn record_change(&mut self, group: GroupId, what: &str, now: Time) -> Kept<()> {
        self.record(AuditEntry::new(now, &Actor::new(SYSTEM, SYSTEM), what, group, 1))
    }

    /// An operation touched a letter: its group remembers which.
    pub(super) fn group_operated(&mut self, letter: &Letter, id: OperationId, now: Time) -> Kept<()> {
        let Some(group) = self.group_of(letter.file.leaf)? else { return Ok(()) };
        if self.known_facts(group)?.operated(id, now) {
            self.cache.groups.facts_changed.insert(group);
        }
        Ok(())
    }

    /// An operator's word on a group.
    pub(crate) fn act_on_group(
        &mut self,
        id: GroupId,
        act: &GroupAct,
        actor: &Actor,
        now: Time,
    ) -> Outcome<GroupId> {
        actor.check()?;
        let unknown = || Refusal::NoSuchGroup { group: id };
        let group = self.group_of(id)?.ok_or_else(unknown)?;
        let row = self.group_row(group)?;
        if !row.sums.is_counted() {
            return Err(unknown().into());
        }
        row.life = row.life.act(group, act, actor, now)?;
        let entry = AuditEntry::new(now, actor, act.audit_name(), group, 1);
        self.record(match act.detail() {
            Some(detail) => entry.with_detail(detail),
            None => entry,
        })?;
        Ok(group)
    }

    /// Notes a moment.
    pub(crate) fn mark(&mut self, text: String, actor: &Actor, now: Time) -> Outcome<Marker> {
        actor.check()?;
        check_marker(&text)?;
        let last = self.tables.markers_before(u64::MAX, 1)?.pop();
        let n = last.map_or(0, |marker| marker.n) + 1;
        let marker = Marker { n, at: now, by: actor.name.clone(), text };
        self.tables.add_marker(&marker)?;
        self.record(AuditEntry::new(now, actor, "mark", n, 1).with_detail(marker.text.clone()))?;
        Ok(marker)
    }

    /// Sets the sums of all groups right; says how many were wrong.
    pub(super) fn repair_groups(&mut self) -> Kept<u64> {
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
