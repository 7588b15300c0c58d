//! Finds the leaf and the group of a failure. The template tree ([`redrive_core::signature`]) decides; this file
//! stores the map from leaf to group, in the commit that changes it.

use super::Engine;
use super::tables::{Letter, TableResult, Tables};
use redrive_core::audit::AuditEntry;
use redrive_core::classify::OutcomeStats;
use redrive_core::dead_letter::{Actor, DeadLetter};
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::failure::{AnalysedFailure, Category, ErrorInfo, check_label};
use redrive_core::group::Leaf;
use redrive_core::ids::{GroupId, LeafId};
use redrive_core::poison::GroupHistory;
use redrive_core::signature::{Signature, Tree};
use redrive_core::time::Time;
use std::collections::BTreeSet;

impl<T: Tables> Engine<T> {
    /// The tree of all leaves, loaded once.
    pub(super) fn tree(&mut self) -> TableResult<&mut Tree> {
        if self.tree.is_none() {
            let mut tree = Tree::new();
            for leaf in self.tables.leaves()? {
                tree.restore(&leaf);
            }
            self.tree = Some(tree);
        }
        Ok(self.tree.get_or_insert_default())
    }

    /// Finds the leaf and the group of a failure, and creates them if they are new.
    pub(super) fn assign_group(&mut self, failure: &mut AnalysedFailure, now: Time) -> TableResult<GroupId> {
        let leaf = self.find_or_add_leaf(&failure.signature, now)?;
        failure.signature.leaf = leaf;
        Ok(self.group_of(leaf)?.unwrap_or(leaf))
    }

    /// The leaf of a signature, created if it is new.
    fn find_or_add_leaf(&mut self, signature: &Signature, now: Time) -> TableResult<LeafId> {
        let placed = self.tree()?.learn(signature);
        if let Some(leaf) = &placed.new {
            self.add_leaf(leaf)?;
        }
        self.regroup(placed.moved, None, now)?;
        Ok(placed.leaf)
    }

    /// Stores a leaf that the tree has just added.
    fn add_leaf(&mut self, leaf: &Leaf) -> TableResult<()> {
        self.tables.put_leaf(leaf)?;
        self.update_template(leaf.group, (leaf.group == leaf.id).then_some(leaf))
    }

    /// Stores the new groups of leaves, and merges what is known about groups that have become one.
    fn regroup(
        &mut self,
        moved: Vec<(LeafId, GroupId)>,
        pinned: Option<GroupId>,
        now: Time,
    ) -> TableResult<()> {
        let grown: BTreeSet<GroupId> = moved.iter().map(|(_, group)| *group).collect();
        for (id, group) in moved {
            // A missing leaf is reported by `doctor`; it is no reason to stop the store.
            let Some(leaf) = self.tables.leaf(id)? else { continue };
            if leaf.group != group {
                let old = self.group_history(leaf.group)?.clone();
                self.cache.group_histories.insert(leaf.group, GroupHistory::default());
                self.cache.group_histories_changed.insert(leaf.group);
                self.update_group_history(group, |history| *history = std::mem::take(history).joined(old))?;
                self.merge_group_rows(leaf.group, group, now)?;
            }
            self.tables.put_leaf(&Leaf { group, pinned: pinned.or(leaf.pinned), ..leaf })?;
        }
        for group in grown {
            // A group that was itself merged into another no longer has a template.
            if self.group_of(group)? == Some(group) {
                self.update_template(group, None)?;
            }
        }
        Ok(())
    }

    /// The current group of a leaf.
    pub(super) fn group_of(&mut self, leaf: LeafId) -> TableResult<Option<GroupId>> {
        Ok(self.tree()?.group_of(leaf))
    }

    /// Merges groups that an operator says have one cause. The merge is permanent: pinned leaves are never separated.
    pub(crate) fn merge_groups(
        &mut self,
        groups: &[GroupId],
        actor: &Actor,
        now: Time,
    ) -> StoreResult<GroupId> {
        actor.check()?;
        for id in groups {
            self.group_of(*id)?.ok_or(Refusal::NoSuchGroup { group: *id })?;
        }
        let moved = self.tree()?.merge(groups);
        let group = groups.first().copied().unwrap_or(LeafId::new(0));
        let name = self.group_of(group)?.unwrap_or(group);
        let names: Vec<String> = groups.iter().map(ToString::to_string).collect();
        let count = moved.len() as u64;
        self.regroup(moved, Some(name), now)?;
        self.append_audit(
            AuditEntry::new(now, actor, "merge groups", name, count).with_detail(names.join(" ")),
        )?;
        Ok(name)
    }

    /// Sets the failure category that an operator assigned to a group.
    pub(crate) fn label_group(
        &mut self,
        id: GroupId,
        category: Option<Category>,
        actor: &Actor,
        now: Time,
    ) -> StoreResult<GroupId> {
        actor.check()?;
        check_label(category)?;
        let group = self.group_of(id)?.ok_or(Refusal::NoSuchGroup { group: id })?;
        self.update_group_history(group, |history| history.outcome_stats.operator_category = category)?;
        let detail = category.map_or("none", Category::name);
        self.append_audit(
            AuditEntry::new(now, actor, "label group", group, 1).with_detail(detail.to_owned()),
        )?;
        Ok(group)
    }

    /// Updates the outcome statistics of a letter's group.
    pub(super) fn update_outcomes(
        &mut self,
        letter: &Letter,
        update: impl FnOnce(&mut OutcomeStats),
    ) -> TableResult<()> {
        let group = self.group_of(letter.record.leaf)?.unwrap_or(letter.record.leaf);
        self.update_group_history(group, |history| update(&mut history.outcome_stats))
    }

    /// Creates the group that an imported letter had in its former
    /// store, before its leaf, so that the group is the older.
    pub(super) fn import_group(&mut self, letter: &DeadLetter) -> TableResult<()> {
        let known = self.group_of(letter.group)?.is_some() || self.group_of(letter.record.leaf)?.is_some();
        if known || letter.group == letter.record.leaf {
            return Ok(());
        }
        self.add_bare_leaf(letter.group, &letter.signature, &letter.error)
    }

    /// Puts a leaf into the group it had in its former store. Groups only grow: what is together here stays together.
    pub(super) fn join_leaf_to_group(&mut self, leaf: LeafId, group: GroupId, now: Time) -> TableResult<()> {
        let (Some(here), Some(there)) = (self.group_of(leaf)?, self.group_of(group)?) else { return Ok(()) };
        if here == there {
            return Ok(());
        }
        let moved = self.tree()?.merge(&[there, here]);
        let name = self.group_of(leaf)?;
        self.regroup(moved, name, now)
    }

    /// Creates a leaf from nothing but its id, template and error type.
    fn add_bare_leaf(&mut self, id: LeafId, template: &str, error: &ErrorInfo) -> TableResult<()> {
        let n = self.tree()?.next_position();
        let leaf = Leaf { n, ..Leaf::alone(id, template.to_owned(), error.error_type.clone()) };
        self.tree()?.restore(&leaf);
        self.add_leaf(&leaf)
    }

    /// Finds the leaf of an imported failure: the leaf it had in its former store, unless the tree computes another.
    pub(super) fn adopt_leaf(
        &mut self,
        id: LeafId,
        template: &str,
        error: &ErrorInfo,
        now: Time,
    ) -> TableResult<LeafId> {
        let sign = Signature::of(error);
        if sign.leaf == id {
            return self.find_or_add_leaf(&sign, now);
        }
        if self.group_of(id)?.is_none() {
            self.add_bare_leaf(id, template, error)?;
        }
        Ok(id)
    }
}
