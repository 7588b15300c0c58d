//! Which leaf a failure is filed under and which group that leaf is in. The decisions are the template tree's
//! ([`redrive_core::signature`]); here is only the map from leaf to group, written with the commit that changes it.

use super::Engine;
use super::tables::{Kept, Letter, Tables};
use redrive_core::audit::AuditEntry;
use redrive_core::classify::Lessons;
use redrive_core::dead_letter::{Actor, DeadLetter};
use redrive_core::error::{Outcome, Refusal};
use redrive_core::failure::{Analysed, Category, ErrorInfo, check_label};
use redrive_core::group::Leaf;
use redrive_core::ids::{GroupId, LeafId};
use redrive_core::poison::Standing;
use redrive_core::signature::{Signature, Tree};
use redrive_core::time::Time;
use std::collections::BTreeSet;

impl<T: Tables> Engine<T> {
    /// The tree of all leaves, read once.
    pub(super) fn tree(&mut self) -> Kept<&mut Tree> {
        if self.tree.is_none() {
            let mut tree = Tree::new();
            for leaf in self.tables.leaves()? {
                tree.restore(&leaf);
            }
            self.tree = Some(tree);
        }
        Ok(self.tree.get_or_insert_default())
    }

    /// Finds the leaf and the group of a failure, making them if they are new.
    pub(super) fn place(&mut self, failure: &mut Analysed, now: Time) -> Kept<GroupId> {
        let leaf = self.learn_leaf(&failure.signature, now)?;
        failure.signature.leaf = leaf;
        Ok(self.group_of(leaf)?.unwrap_or(leaf))
    }

    /// The leaf of a signature, made if it is new.
    fn learn_leaf(&mut self, signature: &Signature, now: Time) -> Kept<LeafId> {
        let placed = self.tree()?.learn(signature);
        if let Some(leaf) = &placed.new {
            self.add_leaf(leaf)?;
        }
        self.regroup(placed.moved, None, now)?;
        Ok(placed.leaf)
    }

    /// Writes down a leaf that the tree has just taken in.
    fn add_leaf(&mut self, leaf: &Leaf) -> Kept<()> {
        self.tables.put_leaf(leaf)?;
        self.show_template(leaf.group, (leaf.group == leaf.id).then_some(leaf))
    }

    /// Writes down where leaves are now, and what is known of groups that have become one.
    fn regroup(&mut self, moved: Vec<(LeafId, GroupId)>, pinned: Option<GroupId>, now: Time) -> Kept<()> {
        let grown: BTreeSet<GroupId> = moved.iter().map(|(_, group)| *group).collect();
        for (id, group) in moved {
            // A leaf that is gone is for `doctor` to report; its group is no reason to stop the store.
            let Some(leaf) = self.tables.leaf(id)? else { continue };
            if leaf.group != group {
                let old = self.standing(leaf.group)?.clone();
                self.cache.standings.insert(leaf.group, Standing::default());
                self.cache.standings_changed.insert(leaf.group);
                self.teach(group, |standing| *standing = std::mem::take(standing).joined(old))?;
                self.join_group(leaf.group, group, now)?;
            }
            self.tables.put_leaf(&Leaf { group, pinned: pinned.or(leaf.pinned), ..leaf })?;
        }
        for group in grown {
            // One that has gone on into another has no template of its own any more.
            if self.group_of(group)? == Some(group) {
                self.show_template(group, None)?;
            }
        }
        Ok(())
    }

    /// The group a leaf is in now.
    pub(super) fn group_of(&mut self, leaf: LeafId) -> Kept<Option<GroupId>> {
        Ok(self.tree()?.group_of(leaf))
    }

    /// An operator says that these groups have one cause. It lasts: what is pinned is never parted.
    pub(crate) fn merge_groups(&mut self, groups: &[GroupId], actor: &Actor, now: Time) -> Outcome<GroupId> {
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
        self.record(AuditEntry::new(now, actor, "merge groups", name, count).with_detail(names.join(" ")))?;
        Ok(name)
    }

    /// An operator says what kind of failure a group is.
    pub(crate) fn label_group(
        &mut self,
        id: GroupId,
        category: Option<Category>,
        actor: &Actor,
        now: Time,
    ) -> Outcome<GroupId> {
        actor.check()?;
        check_label(category)?;
        let group = self.group_of(id)?.ok_or(Refusal::NoSuchGroup { group: id })?;
        self.teach(group, |standing| standing.lessons.said = category)?;
        let detail = category.map_or("none", Category::name);
        self.record(AuditEntry::new(now, actor, "label group", group, 1).with_detail(detail.to_owned()))?;
        Ok(group)
    }

    /// What an outcome teaches about the group of a letter.
    pub(super) fn learn(&mut self, letter: &Letter, lesson: impl FnOnce(&mut Lessons)) -> Kept<()> {
        let group = self.group_of(letter.file.leaf)?.unwrap_or(letter.file.leaf);
        self.teach(group, |standing| lesson(&mut standing.lessons))
    }

    /// Takes in the name of the group that a letter was in elsewhere, before its leaf, so that it is the older one.
    pub(super) fn expect_group(&mut self, letter: &DeadLetter) -> Kept<()> {
        let known = self.group_of(letter.group)?.is_some() || self.group_of(letter.file.leaf)?.is_some();
        if known || letter.group == letter.file.leaf {
            return Ok(());
        }
        self.put_alone(letter.group, &letter.signature, &letter.error)
    }

    /// Puts a leaf into the group it was in elsewhere. Groups only ever grow: what is together here stays together.
    pub(super) fn put_into_group(&mut self, leaf: LeafId, group: GroupId, now: Time) -> Kept<()> {
        let (Some(here), Some(there)) = (self.group_of(leaf)?, self.group_of(group)?) else { return Ok(()) };
        if here == there {
            return Ok(());
        }
        let moved = self.tree()?.merge(&[there, here]);
        let name = self.group_of(leaf)?;
        self.regroup(moved, name, now)
    }

    /// A leaf of which no more than this is known.
    fn put_alone(&mut self, id: LeafId, template: &str, error: &ErrorInfo) -> Kept<()> {
        let n = self.tree()?.next_place();
        let leaf = Leaf { n, ..Leaf::alone(id, template.to_owned(), error.error_type.clone()) };
        self.tree()?.restore(&leaf);
        self.add_leaf(&leaf)
    }

    /// Takes in a failure that was filed elsewhere, under the name it has there unless the tree knows better.
    pub(super) fn adopt(&mut self, id: LeafId, template: &str, error: &ErrorInfo, now: Time) -> Kept<LeafId> {
        let sign = Signature::of(error);
        if sign.leaf == id {
            return self.learn_leaf(&sign, now);
        }
        if self.group_of(id)?.is_none() {
            self.put_alone(id, template, error)?;
        }
        Ok(id)
    }
}
