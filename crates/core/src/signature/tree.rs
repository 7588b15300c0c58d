//! The template tree: which leaves are one group. Two leaves are together when they differ only in words whose
//! place is known to vary, and a place is known to vary when enough different words have been seen there with
//! the rest of the line the same (`slots`). What is known of a place only ever grows, and what follows from it
//! is followed to the end, so the groups depend on the set of leaves and not on their order.
//!
//! It must not forget a leaf it has accepted, split a group, or grow beyond its bounds: beyond them failures
//! are filed under a leaf that is there, or under one that says that it holds the rest.

use super::slots::Slots;
use super::words::{WILD, Word, words};
use super::{Signature, VERSION, hashed};
use crate::group::Leaf;
use crate::ids::{GroupId, LeafId};
use crate::limits;
use std::collections::HashMap;

/// Where a failure was filed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The leaf to file it under: its own, or that of a pattern it matches, or that of the rest.
    pub leaf: LeafId,
    /// The leaf as it has to be stored, if the tree did not know it.
    pub new: Option<Leaf>,
    /// Leaves whose group changed, with the group they are in now. The new leaf is not among them.
    pub moved: Vec<(LeafId, GroupId)>,
}

/// A line or a pattern; its group is found by following `up`.
#[derive(Debug)]
struct Node {
    /// The node that stands for this one, or itself.
    up: u32,
    /// The oldest leaf beneath, with its place in the order of first sight. Only a root's counts.
    oldest: Option<(u64, LeafId)>,
    /// All leaves beneath. Only a root's counts.
    leaves: Vec<LeafId>,
}

/// A leaf as the tree keeps it.
#[derive(Debug)]
struct Known {
    node: u32,
    template: Box<str>,
}

/// All leaves and their groups, in memory.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    slots: Slots,
    leaves: HashMap<LeafId, Known>,
    /// Pins to leaves that have not been restored yet.
    waiting: HashMap<LeafId, Vec<LeafId>>,
    /// Signatures that were filed under another leaf, so that the next one need not be matched again.
    filed: HashMap<LeafId, LeafId>,
    /// The place of the next leaf in the order of first sight.
    next: u64,
}

impl Tree {
    /// A tree that knows nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a known leaf back in, in the order of first sight, with the group it was stored with.
    pub fn restore(&mut self, leaf: &Leaf) {
        if self.leaves.contains_key(&leaf.id) {
            return;
        }
        self.next = self.next.max(leaf.n.saturating_add(1));
        let compared = leaf.version == VERSION && !leaf.fixed;
        let bucket = bucket(&leaf.error_type, leaf.code.as_deref(), leaf.frame.as_deref());
        let mut moved = Vec::new();
        self.take(leaf.id, leaf.n, &leaf.template, compared.then_some(bucket), &mut moved);
        for to in [Some(leaf.group), leaf.pinned].into_iter().flatten().filter(|to| *to != leaf.id) {
            match self.leaves.get(&to).map(|known| known.node) {
                Some(node) => self.join_leaf(leaf.id, node, &mut moved),
                None => self.waiting.entry(to).or_default().push(leaf.id),
            }
        }
        let node = self.leaves.get(&leaf.id).map_or(0, |known| known.node);
        for other in self.waiting.remove(&leaf.id).unwrap_or_default() {
            self.join_leaf(other, node, &mut moved);
        }
    }

    /// Learns a signature: says under which leaf to file the failure, and which leaves changed group.
    pub fn learn(&mut self, signature: &Signature) -> Placed {
        if let Some(leaf) = self.learned(signature.leaf) {
            return Placed { leaf, new: None, moved: Vec::new() };
        }
        self.learn_new(signature)
    }

    /// The leaf a signature has been filed under, if it has been.
    #[must_use]
    pub fn learned(&self, signature: LeafId) -> Option<LeafId> {
        if self.leaves.contains_key(&signature) {
            Some(signature)
        } else {
            self.filed.get(&signature).copied()
        }
    }

    /// Learns a signature that has no leaf yet.
    fn learn_new(&mut self, signature: &Signature) -> Placed {
        let compared = signature.rule.is_none();
        let bucket = bucket(&signature.error_type, signature.code.as_deref(), signature.frame.as_deref());
        if compared && let Some(leaf) = self.full_group(bucket, &signature.template) {
            self.remember(signature.leaf, leaf);
            return Placed { leaf, new: None, moved: Vec::new() };
        }
        let mut moved = Vec::new();
        let n = self.next;
        let mut leaf = Leaf {
            id: signature.leaf,
            group: signature.leaf,
            template: signature.template.clone(),
            error_type: signature.error_type.clone(),
            code: signature.code.clone(),
            frame: signature.frame.clone(),
            version: VERSION,
            n,
            pinned: None,
            fixed: !compared,
        };
        if self.leaves.len() >= limits::LEAVES_MAX {
            leaf = self.rest(leaf);
            self.remember(signature.leaf, leaf.id);
            if self.leaves.contains_key(&leaf.id) {
                return Placed { leaf: leaf.id, new: None, moved };
            }
        }
        self.next = self.next.saturating_add(1);
        self.take(leaf.id, n, &leaf.template, (!leaf.fixed).then_some(bucket), &mut moved);
        leaf.group = self.group_of(leaf.id).unwrap_or(leaf.id);
        moved.retain(|(moved, _)| *moved != leaf.id);
        Placed { leaf: leaf.id, new: Some(leaf), moved }
    }

    /// The leaf of the rest, for a leaf there is no room for: one for each error type while there is room for
    /// these, then one for all.
    fn rest(&self, leaf: Leaf) -> Leaf {
        let of_type = hashed(0, &["rest", &leaf.error_type]);
        let room = self.leaves.len() < limits::LEAVES_MAX + limits::REST_LEAVES_MAX;
        let (id, error_type) = if room || self.leaves.contains_key(&of_type) {
            (of_type, leaf.error_type)
        } else {
            (hashed(0, &["rest"]), String::new())
        };
        let template = "(failures of any wording: there are too many different ones)".to_owned();
        Leaf { id, group: id, template, error_type, code: None, frame: None, fixed: true, ..leaf }
    }

    /// Keeps in mind where a signature was filed, as far as there is room.
    fn remember(&mut self, signature: LeafId, leaf: LeafId) {
        if self.filed.len() >= limits::FILED_MAX {
            self.filed.clear();
        }
        self.filed.insert(signature, leaf);
    }

    /// The leaf of a group that has enough leaves already and that a line belongs to.
    fn full_group(&self, bucket: u64, template: &str) -> Option<LeafId> {
        let words = words(template);
        let node = self.slots.matching(bucket, &words)?;
        let root = self.nodes.get(index(self.root(node)))?;
        if root.leaves.len() < limits::GROUP_LEAVES_MAX { None } else { root.oldest.map(|(_, leaf)| leaf) }
    }

    /// Takes a leaf in and follows what it shows to the end.
    fn take(
        &mut self,
        id: LeafId,
        n: u64,
        template: &str,
        bucket: Option<u64>,
        moved: &mut Vec<(LeafId, GroupId)>,
    ) {
        let Some(bucket) = bucket else {
            let node = self.add_node(Some((n, id)));
            self.leaves.insert(id, Known { node, template: template.into() });
            return;
        };
        let line = self.slots.line(bucket, &words(template));
        let own = self.add_node(Some((n, id)));
        self.leaves.insert(id, Known { node: own, template: template.into() });
        let mut queue = vec![(line, Some(own))];
        let mut steps = 0;
        while let Some((line, own)) = queue.pop() {
            steps += 1;
            let (node, is_new) = match (self.slots.node_of(&line), own) {
                (Some(node), own) => {
                    if let Some(own) = own {
                        self.join(own, node, moved);
                    }
                    (node, false)
                }
                (None, Some(own)) => (own, true),
                (None, None) => continue,
            };
            if !is_new || steps > limits::TREE_STEPS_MAX {
                continue;
            }
            for (pattern, members) in self.slots.add(line, node) {
                let known = self.slots.node_of(&pattern);
                let target = known.unwrap_or_else(|| self.add_node(None));
                for member in members {
                    self.join(member, target, moved);
                }
                if known.is_none() {
                    queue.push((pattern, Some(target)));
                }
            }
        }
    }

    fn add_node(&mut self, oldest: Option<(u64, LeafId)>) -> u32 {
        let node = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        let leaves = oldest.iter().map(|(_, leaf)| *leaf).collect();
        self.nodes.push(Node { up: node, oldest, leaves });
        node
    }

    /// The node that stands for a group.
    fn root(&self, mut node: u32) -> u32 {
        while let Some(up) = self.nodes.get(index(node)).map(|n| n.up).filter(|up| *up != node) {
            node = up;
        }
        node
    }

    fn join_leaf(&mut self, leaf: LeafId, node: u32, moved: &mut Vec<(LeafId, GroupId)>) {
        if let Some(own) = self.leaves.get(&leaf).map(|known| known.node) {
            self.join(own, node, moved);
        }
    }

    /// Makes two groups one. The older name stays; the leaves of the other are noted.
    fn join(&mut self, a: u32, b: u32, moved: &mut Vec<(LeafId, GroupId)>) {
        let (a, b) = (self.root(a), self.root(b));
        if a == b {
            return;
        }
        let size = |node: u32| self.nodes.get(index(node)).map_or(0, |n| n.leaves.len());
        let (large, small) = if size(a) >= size(b) { (a, b) } else { (b, a) };
        let Some(node) = self.nodes.get_mut(index(small)) else { return };
        node.up = large;
        let (mut leaves, oldest) = (core::mem::take(&mut node.leaves), node.oldest.take());
        let Some(root) = self.nodes.get_mut(index(large)) else { return };
        let older = match (root.oldest, oldest) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        // Those that are called something else now.
        let name = older.map(|(_, leaf)| leaf);
        if let Some(name) = name {
            if root.oldest.is_some() && root.oldest != older {
                moved.extend(root.leaves.iter().map(|leaf| (*leaf, name)));
            }
            if oldest.is_some() && oldest != older {
                moved.extend(leaves.iter().map(|leaf| (*leaf, name)));
            }
        }
        root.oldest = older;
        root.leaves.append(&mut leaves);
    }

    /// The group a leaf is in now. The name of any leaf of a group leads to the group.
    #[must_use]
    pub fn group_of(&self, leaf: LeafId) -> Option<GroupId> {
        let known = self.leaves.get(&leaf)?;
        self.nodes.get(index(self.root(known.node)))?.oldest.map(|(_, leaf)| leaf)
    }

    /// The leaves of a group, oldest name first and then in no order that means anything.
    #[must_use]
    pub fn leaves_of(&self, group: GroupId) -> Vec<LeafId> {
        let root = self.leaves.get(&group).and_then(|known| self.nodes.get(index(self.root(known.node))));
        root.map(|root| root.leaves.clone()).unwrap_or_default()
    }

    /// The leaves known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Whether no leaf is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// The group's template, with differing words shown as `<*>`.
    #[must_use]
    pub fn template_of(&self, group: GroupId) -> Option<String> {
        let face = self.leaves.get(&self.group_of(group)?)?;
        let mut shown = words(&face.template);
        let mut varied = false;
        for leaf in self.leaves_of(group) {
            let Some(known) = self.leaves.get(&leaf).filter(|known| known.template != face.template) else {
                continue;
            };
            let other = words(&known.template);
            if other.len() == shown.len() {
                varied = true;
                shown.iter_mut().zip(&other).for_each(|(shown, other)| widen(shown, other));
            }
        }
        if !varied {
            return Some(face.template.to_string());
        }
        let shown: Vec<String> = shown.into_iter().map(|word| word.shown).collect();
        Some(shown.join(" "))
    }

    /// An operator's merge: these groups are one from now on, under the oldest name. Says which leaves moved;
    /// it lasts when the leaves are stored with `pinned` set to that name.
    pub fn merge(&mut self, groups: &[GroupId]) -> Vec<(LeafId, GroupId)> {
        let mut moved = Vec::new();
        let mut nodes = groups.iter().filter_map(|group| self.leaves.get(group)).map(|known| known.node);
        let Some(first) = nodes.next() else { return moved };
        for node in nodes.collect::<Vec<u32>>() {
            self.join(first, node, &mut moved);
        }
        let name = groups.first().and_then(|group| self.group_of(*group));
        // A leaf that moved twice is told once, with where it ended.
        moved.retain(|(_, to)| Some(*to) == name);
        moved
    }
}

/// A place in a list of nodes.
fn index(node: u32) -> usize {
    usize::try_from(node).unwrap_or(usize::MAX)
}

/// What leaves must have in common to be compared at all.
fn bucket(error_type: &str, code: Option<&str>, frame: Option<&str>) -> u64 {
    let parts = [error_type, code.unwrap_or(""), frame.unwrap_or("")];
    parts.iter().fold(0, |seed, part| super::slots::hash_text(seed, part))
}

/// Makes a shown word fit another one too: what they have in common at a joint stays.
fn widen(shown: &mut Word, other: &Word) {
    if shown.shown == other.shown {
        return;
    }
    if shown.plain == other.plain {
        shown.shown.clone_from(&shown.plain);
        return;
    }
    let same = shown.plain.chars().zip(other.plain.chars()).take_while(|(a, b)| a == b);
    let same: usize = same.map(|(a, _)| a.len_utf8()).sum();
    let common = shown.plain.get(..same).unwrap_or_default();
    let kept = common.rfind([':', '=', '(', '[', '{', '_', '/']).map_or(0, |at| at + 1);
    let end = if item_end(&shown.plain) == item_end(&other.plain) { item_end(&shown.plain) } else { "" };
    let text = format!("{}{WILD}{end}", common.get(..kept).unwrap_or_default());
    shown.plain.clone_from(&text);
    shown.shown = text;
}

/// The punctuation at the end of a word.
fn item_end(word: &str) -> &str {
    word.get(word.trim_end_matches([',', ';', ':', '.', ')', ']', '}']).len()..).unwrap_or_default()
}
