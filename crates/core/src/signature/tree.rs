//! The template tree: which leaves form a group. Two leaves are together if they differ only in words whose position is
//! known to vary, and a position is known to vary once enough different words have been seen there with the rest of the
//! line being the same (`slots`). What is known about a position only ever grows, and all its consequences are drawn at
//! once, so the groups depend on the set of leaves and not on their order.
//!
//! The tree must not forget a leaf that it accepted, split a group, or grow beyond its limits. Beyond them, failures
//! are assigned to an existing leaf or to a catch-all leaf.

use super::slots::Slots;
use super::words::{WILD, Word, words};
use super::{Signature, VERSION, hashed};
use crate::group::Leaf;
use crate::ids::{GroupId, LeafId};
use crate::limits;
use std::collections::HashMap;

/// The leaf to which a failure was assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafPlacement {
    /// The leaf of the failure: its own, that of a full group it matches, or the catch-all leaf.
    pub leaf: LeafId,
    /// The leaf as it has to be stored, if it is new to the tree.
    pub new: Option<Leaf>,
    /// Leaves whose group changed, with their present group. The new leaf is not among them.
    pub moved: Vec<(LeafId, GroupId)>,
}

/// A line or a pattern. Its group is found by following `parent`.
#[derive(Debug)]
struct Node {
    /// The node that stands for this one, or itself.
    parent: u32,
    /// The oldest leaf below, with its position in the order of first sight. Only valid in a root.
    oldest: Option<(u64, LeafId)>,
    /// All leaves below. Only valid in a root.
    leaves: Vec<LeafId>,
}

/// A leaf in the tree.
#[derive(Debug)]
struct KnownLeaf {
    node: u32,
    template: Box<str>,
}

/// The words that all leaves of a full group have in common; `None` where they differ.
#[derive(Debug)]
struct FullGroup {
    words: Vec<Option<String>>,
    leaf: LeafId,
    node: u32,
}

/// All leaves and their groups, in memory.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    slots: Slots,
    leaves: HashMap<LeafId, KnownLeaf>,
    /// Full groups by bucket and number of words; at most [`limits::LEAVES_MAX`] divided by
    /// [`limits::GROUP_LEAVES_MAX`] of them.
    full_groups: HashMap<(u64, usize), Vec<FullGroup>>,
    /// Leaves to join to a leaf that has not been restored yet, by that leaf.
    pending_joins: HashMap<LeafId, Vec<LeafId>>,
    /// Signatures that were assigned to another leaf, so that the next one need not be matched again.
    assigned: HashMap<LeafId, LeafId>,
    /// The position of the next leaf in the order of first sight.
    next_position: u64,
}

impl Tree {
    /// An empty tree.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Inserts a stored leaf together with its group.
    pub fn restore(&mut self, leaf: &Leaf) {
        if self.leaves.contains_key(&leaf.id) {
            return;
        }
        self.next_position = self.next_position.max(leaf.n.saturating_add(1));
        let compared = leaf.version == VERSION && !leaf.fixed;
        let bucket = bucket(&leaf.error_type, leaf.code.as_deref(), leaf.frame.as_deref());
        let mut moved = Vec::new();
        self.insert(leaf.id, leaf.n, &leaf.template, compared.then_some(bucket), &mut moved);
        for to in [Some(leaf.group), leaf.pinned].into_iter().flatten().filter(|to| *to != leaf.id) {
            match self.leaves.get(&to).map(|known| known.node) {
                Some(node) => self.join_leaf(leaf.id, node, &mut moved),
                None => self.pending_joins.entry(to).or_default().push(leaf.id),
            }
        }
        let node = self.leaves.get(&leaf.id).map_or(0, |known| known.node);
        for other in self.pending_joins.remove(&leaf.id).unwrap_or_default() {
            self.join_leaf(other, node, &mut moved);
        }
    }

    /// The position of the next leaf in the order of first sight.
    #[must_use]
    pub const fn next_position(&self) -> u64 {
        self.next_position
    }

    /// Learns a signature. Returns the leaf to which the failure is assigned, and the leaves whose group changed.
    pub fn learn(&mut self, signature: &Signature) -> LeafPlacement {
        if let Some(leaf) = self.leaf_of(signature.leaf) {
            return LeafPlacement { leaf, new: None, moved: Vec::new() };
        }
        self.learn_new(signature)
    }

    /// The leaf to which a signature was assigned, if it was learned.
    #[must_use]
    pub fn leaf_of(&self, signature: LeafId) -> Option<LeafId> {
        if self.leaves.contains_key(&signature) {
            Some(signature)
        } else {
            self.assigned.get(&signature).copied()
        }
    }

    /// Learns a signature without a leaf.
    fn learn_new(&mut self, signature: &Signature) -> LeafPlacement {
        let compared = signature.rule.is_none();
        let bucket = bucket(&signature.error_type, signature.code.as_deref(), signature.frame.as_deref());
        if compared && let Some(leaf) = self.full_group(bucket, &signature.template) {
            self.remember(signature.leaf, leaf);
            return LeafPlacement { leaf, new: None, moved: Vec::new() };
        }
        let mut moved = Vec::new();
        let n = self.next_position;
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
            leaf = self.catch_all(leaf);
            self.remember(signature.leaf, leaf.id);
            if self.leaves.contains_key(&leaf.id) {
                return LeafPlacement { leaf: leaf.id, new: None, moved };
            }
        }
        self.next_position = self.next_position.saturating_add(1);
        self.insert(leaf.id, n, &leaf.template, (!leaf.fixed).then_some(bucket), &mut moved);
        leaf.group = self.group_of(leaf.id).unwrap_or(leaf.id);
        if compared {
            self.note_if_full(bucket, leaf.id);
        }
        moved.retain(|(moved, _)| *moved != leaf.id);
        LeafPlacement { leaf: leaf.id, new: Some(leaf), moved }
    }

    /// The catch-all leaf for a leaf that does not fit any more: one for each error type while there is space for
    /// these, then one for all types.
    fn catch_all(&self, leaf: Leaf) -> Leaf {
        let of_type = hashed(0, &["rest", &leaf.error_type]);
        let has_space = self.leaves.len() < limits::LEAVES_MAX + limits::REST_LEAVES_MAX;
        let (id, error_type) = if has_space || self.leaves.contains_key(&of_type) {
            (of_type, leaf.error_type)
        } else {
            (hashed(0, &["rest"]), String::new())
        };
        let template = "(failures of any wording: there are too many different ones)".to_owned();
        Leaf { id, group: id, template, error_type, code: None, frame: None, fixed: true, ..leaf }
    }

    /// Remembers to which leaf a signature was assigned, within a limit.
    fn remember(&mut self, signature: LeafId, leaf: LeafId) {
        if self.assigned.len() >= limits::FILED_MAX {
            self.assigned.clear();
        }
        self.assigned.insert(signature, leaf);
    }

    /// The leaf of a full group that a line belongs to: by a pattern that the line matches, or by the words that all
    /// leaves of the group have in common.
    fn full_group(&self, bucket: u64, template: &str) -> Option<LeafId> {
        let words = words(template);
        if let Some(root) = self.slots.matching(bucket, &words).map(|node| self.root(node))
            && let Some(root) = self.nodes.get(index(root))
            && root.leaves.len() >= limits::GROUP_LEAVES_MAX
        {
            return root.oldest.map(|(_, leaf)| leaf);
        }
        let fits = |group: &&FullGroup| {
            group
                .words
                .iter()
                .zip(&words)
                .all(|(common, word)| common.as_ref().is_none_or(|common| *common == word.plain))
        };
        let group = self.full_groups.get(&(bucket, words.len()))?.iter().find(fits)?;
        self.group_of(group.leaf)
    }

    /// Notes the words that all leaves of a group have in common once the group is full. A group with hardly any common
    /// words is not noted, because it would absorb failures that do not belong to it.
    fn note_if_full(&mut self, bucket: u64, leaf: LeafId) {
        let Some(node) = self.leaves.get(&leaf).map(|known| self.root(known.node)) else { return };
        let Some(root) = self.nodes.get(index(node)).filter(|n| n.leaves.len() >= limits::GROUP_LEAVES_MAX)
        else {
            return;
        };
        let of = |leaf: &LeafId| self.leaves.get(leaf).map(|known| words(&known.template));
        let Some(first) = of(&leaf) else { return };
        let known = self.full_groups.get(&(bucket, first.len()));
        if known.is_some_and(|groups| groups.iter().any(|group| group.node == node)) {
            return;
        }
        let mut common: Vec<Option<String>> = first.into_iter().map(|word| Some(word.plain)).collect();
        for other in root.leaves.iter().take(limits::GROUP_LEAVES_MAX).filter_map(of) {
            if other.len() == common.len() {
                for (common, word) in common.iter_mut().zip(other) {
                    if common.as_ref().is_some_and(|common| *common != word.plain) {
                        *common = None;
                    }
                }
            }
        }
        if common.iter().flatten().count() >= 2 {
            let group = FullGroup { words: common, leaf, node };
            self.full_groups.entry((bucket, group.words.len())).or_default().push(group);
        }
    }

    /// Inserts a leaf and draws all consequences.
    fn insert(
        &mut self,
        id: LeafId,
        n: u64,
        template: &str,
        bucket: Option<u64>,
        moved: &mut Vec<(LeafId, GroupId)>,
    ) {
        let Some(bucket) = bucket else {
            let node = self.add_node(Some((n, id)));
            self.leaves.insert(id, KnownLeaf { node, template: template.into() });
            return;
        };
        let line = self.slots.line(bucket, &words(template));
        let own = self.add_node(Some((n, id)));
        self.leaves.insert(id, KnownLeaf { node: own, template: template.into() });
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
        self.nodes.push(Node { parent: node, oldest, leaves });
        node
    }

    /// The node that stands for the group of a node.
    fn root(&self, mut node: u32) -> u32 {
        while let Some(parent) =
            self.nodes.get(index(node)).map(|n| n.parent).filter(|parent| *parent != node)
        {
            node = parent;
        }
        node
    }

    fn join_leaf(&mut self, leaf: LeafId, node: u32, moved: &mut Vec<(LeafId, GroupId)>) {
        if let Some(own) = self.leaves.get(&leaf).map(|known| known.node) {
            self.join(own, node, moved);
        }
    }

    /// Joins two groups. The id of the older one stays, and `moved` gets the leaves whose group has another id now.
    fn join(&mut self, a: u32, b: u32, moved: &mut Vec<(LeafId, GroupId)>) {
        let (a, b) = (self.root(a), self.root(b));
        if a == b {
            return;
        }
        let size = |node: u32| self.nodes.get(index(node)).map_or(0, |n| n.leaves.len());
        let (large, small) = if size(a) >= size(b) { (a, b) } else { (b, a) };
        let Some(node) = self.nodes.get_mut(index(small)) else { return };
        node.parent = large;
        let (mut leaves, oldest) = (core::mem::take(&mut node.leaves), node.oldest.take());
        let Some(root) = self.nodes.get_mut(index(large)) else { return };
        let older = match (root.oldest, oldest) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let id = older.map(|(_, leaf)| leaf);
        if let Some(id) = id {
            if root.oldest.is_some() && root.oldest != older {
                moved.extend(root.leaves.iter().map(|leaf| (*leaf, id)));
            }
            if oldest.is_some() && oldest != older {
                moved.extend(leaves.iter().map(|leaf| (*leaf, id)));
            }
        }
        root.oldest = older;
        root.leaves.append(&mut leaves);
    }

    /// The group of a leaf. The id of any leaf of a group leads to the group.
    #[must_use]
    pub fn group_of(&self, leaf: LeafId) -> Option<GroupId> {
        let known = self.leaves.get(&leaf)?;
        self.nodes.get(index(self.root(known.node)))?.oldest.map(|(_, leaf)| leaf)
    }

    /// The leaves of a group, in no particular order.
    #[must_use]
    pub fn leaves_of(&self, group: GroupId) -> Vec<LeafId> {
        let root = self.leaves.get(&group).and_then(|known| self.nodes.get(index(self.root(known.node))));
        root.map(|root| root.leaves.clone()).unwrap_or_default()
    }

    /// The number of known leaves.
    #[must_use]
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Whether no leaf is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// The template of a group; words that differ are `<*>`.
    #[must_use]
    pub fn template_of(&self, group: GroupId) -> Option<String> {
        let first = self.leaves.get(&self.group_of(group)?)?;
        let leaves = self.leaves_of(group);
        let others = leaves.iter().filter_map(|leaf| self.leaves.get(leaf)).map(|known| &*known.template);
        Some(common_template(&first.template, others))
    }

    /// Merges groups for an operator, under the oldest id. Returns the leaves whose group changed. The merge survives a
    /// restart if these leaves are stored with `pinned` set to that id.
    pub fn merge(&mut self, groups: &[GroupId]) -> Vec<(LeafId, GroupId)> {
        let mut moved = Vec::new();
        let mut nodes = groups.iter().filter_map(|group| self.leaves.get(group)).map(|known| known.node);
        let Some(first) = nodes.next() else { return moved };
        for node in nodes.collect::<Vec<u32>>() {
            self.join(first, node, &mut moved);
        }
        let id = groups.first().and_then(|group| self.group_of(*group));
        // A leaf that moved twice is listed once, with its final group.
        moved.retain(|(_, to)| Some(*to) == id);
        moved
    }
}

/// What the template of a group's first leaf and those of its other leaves have in common; words that differ are `<*>`.
#[must_use]
pub fn common_template<'a>(first: &str, others: impl Iterator<Item = &'a str>) -> String {
    let mut others = others.filter(|other| *other != first).peekable();
    if others.peek().is_none() {
        return first.to_owned();
    }
    let mut shown = words(first);
    let (mut varied, length) = (false, shown.len());
    for other in others.map(words).filter(|other| other.len() == length) {
        varied = true;
        shown.iter_mut().zip(&other).for_each(|(shown, other)| widen(shown, other));
    }
    // Groups that an operator merged may have nothing in common; the oldest template is more telling then.
    if !varied || shown.iter().all(|word| word.shown == WILD) {
        return first.to_owned();
    }
    let shown: Vec<String> = shown.into_iter().map(|word| word.shown).collect();
    shown.join(" ")
}

/// The index of a node.
fn index(node: u32) -> usize {
    usize::try_from(node).unwrap_or(usize::MAX)
}

/// The hash of what leaves must have in common to be compared at all.
fn bucket(error_type: &str, code: Option<&str>, frame: Option<&str>) -> u64 {
    let parts = [error_type, code.unwrap_or(""), frame.unwrap_or("")];
    parts.iter().fold(0, |seed, part| super::slots::hash_text(seed, part))
}

/// Generalises a shown word to cover another one; what they have in common up to a separator stays.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::ErrorInfo;
    use crate::signature::SignatureRules;
    use crate::signature::rules::SignatureRule;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn signature(message: &str) -> Signature {
        Signature::of(&ErrorInfo { message: message.into(), ..ErrorInfo::default() })
    }

    /// Which messages are together, as sets of their numbers.
    fn partition(tree: &Tree, assigned: &[LeafId]) -> BTreeSet<BTreeSet<usize>> {
        let mut groups: BTreeMap<LeafId, BTreeSet<usize>> = BTreeMap::new();
        for (at, leaf) in assigned.iter().enumerate() {
            groups.entry(tree.group_of(*leaf).unwrap()).or_default().insert(at);
        }
        groups.into_values().collect()
    }

    fn learn_all(messages: &[String]) -> (Tree, Vec<LeafId>) {
        let mut tree = Tree::new();
        let assigned = messages.iter().map(|message| tree.learn(&signature(message)).leaf).collect();
        (tree, assigned)
    }

    /// Lines of the kinds that services write, by group. The lines of one list belong together, those of two lists do
    /// not.
    fn corpus() -> Vec<Vec<&'static str>> {
        vec![
            vec!["door opened for user ann by (uid=0)", "door opened for user bob by (uid=4)"],
            vec!["door closed for user ann by (uid=0)", "door closed for user bob by (uid=4)"],
            vec!["link eth0 is up"],
            vec!["link eth0 is down"],
            vec![
                "unit clock startup of all parts done",
                "unit pager startup of all parts done",
                "unit relay startup of all parts done",
                "unit mixer startup of all parts done",
            ],
            vec!["unit clock shutdown of all parts done", "unit pager shutdown of all parts done"],
            vec!["peer a1 moved from IDLE to SYNCING"],
            vec!["peer a1 moved from SYNCING to SERVING"],
            vec!["drop parts p_1", "drop parts p_7 p_8", "drop parts p_1 p_2 p_3 p_4"],
            vec!["10.0.0.7 \"GET /v1/a HTTP/1.1\" took 3 ms", "10.0.0.8 \"GET /v1/b HTTP/1.1\" took 1.5 s"],
            vec!["10.0.0.7 \"DELETE /v1/a HTTP/1.1\" took 3 ms"],
            vec!["sent 12 bytes (0.1 KB) in <1 sec", "sent 7 bytes in 00:12"],
            vec!["query on table carts failed: syntax", "query on table users failed: syntax"],
            vec!["call failed: java.io.IOException: reset", "call failed: java.io.IOException: reset"],
            vec!["call failed: java.sql.SQLException: reset"],
            vec!["lock held, ws=null, tag=\"a b\"", "lock held, ws=Work{7 of 9}, tag=\"c\""],
            vec!["name= uid=0", "name=bob uid=7"],
            vec!["temperature 41C over limit", "temperature 9C over limit"],
            vec!["no answer from mx1.example.org (10.1.1.1)", "no answer from 10.2.2.2 ()"],
        ]
    }

    #[test]
    fn lines_of_one_cause_are_together_and_others_apart() {
        let corpus = corpus();
        let lines: Vec<String> = corpus.iter().flatten().map(|line| (*line).to_owned()).collect();
        let (tree, assigned) = learn_all(&lines);
        let mut wanted = BTreeSet::new();
        let mut at = 0;
        for group in &corpus {
            wanted.insert((at..at + group.len()).collect::<BTreeSet<usize>>());
            at += group.len();
        }
        let found = partition(&tree, &assigned);
        let wrong: Vec<Vec<&String>> =
            found.difference(&wanted).map(|group| group.iter().map(|at| &lines[*at]).collect()).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn a_group_has_the_id_of_its_oldest_leaf_and_moves_are_reported() {
        let mut tree = Tree::new();
        let names = ["ann", "bob", "cyd", "dan"];
        let lines = names.map(|name| signature(&format!("mail to {name} bounced again today")));
        let mut groups: BTreeMap<LeafId, LeafId> = BTreeMap::new();
        for line in &lines {
            let placed = tree.learn(line);
            let new = placed.new.unwrap();
            assert_eq!((placed.leaf, new.id), (line.leaf, line.leaf));
            groups.insert(new.id, new.group);
            groups.extend(placed.moved);
            for (leaf, group) in &groups {
                assert_eq!(tree.group_of(*leaf), Some(*group), "what was reported is what holds");
            }
            assert_eq!(tree.learn(line), LeafPlacement { leaf: line.leaf, new: None, moved: Vec::new() });
        }
        assert!(groups.values().all(|group| *group == lines[0].leaf), "{groups:?}");
        for line in &lines {
            assert_eq!(tree.template_of(line.leaf).as_deref(), Some("mail to <*> bounced again today"));
        }
        assert_eq!(tree.leaves_of(lines[2].leaf).len(), 4);
        assert_eq!(tree.group_of(LeafId::new(1)), None);
    }

    #[test]
    fn type_code_frame_and_rules_keep_leaves_apart() {
        let rules = SignatureRules::compile(&[SignatureRule {
            pattern: "rule (\\w+)".into(),
            fingerprint: "mail to $1 bounced again today".into(),
        }])
        .unwrap();
        let mut tree = Tree::new();
        for (at, name) in ["ann", "bob", "cyd", "dan", "eve", "fay"].iter().enumerate() {
            let message = format!("mail to {name} bounced again today");
            let error = ErrorInfo { message, error_type: format!("T{at}"), ..ErrorInfo::default() };
            let by_code = ErrorInfo { error_type: "T".into(), code: Some(at.to_string()), ..error.clone() };
            let by_rule = ErrorInfo { message: format!("rule {name}"), ..ErrorInfo::default() };
            for error in [error, by_code, by_rule] {
                let placed = tree.learn(&Signature::with_rules(&error, &rules));
                assert_eq!(placed.moved, []);
                assert_eq!(tree.group_of(placed.leaf), Some(placed.leaf));
            }
        }
    }

    #[test]
    fn an_operators_merge_survives_a_restart_and_other_versions_are_left_alone() {
        let mut tree = Tree::new();
        let (a, b, c) = (signature("disk full"), signature("no space left on device"), signature("quota"));
        let mut stored: Vec<Leaf> = [&a, &b, &c].map(|s| tree.learn(s).new.unwrap()).into();
        let moved = tree.merge(&[b.leaf, a.leaf]);
        assert_eq!(moved, [(b.leaf, a.leaf)]);
        for (leaf, group) in moved {
            let row = stored.iter_mut().find(|row| row.id == leaf).unwrap();
            (row.group, row.pinned) = (group, Some(group));
        }
        stored.push(Leaf { version: 1, n: 9, ..Leaf::alone(LeafId::new(7), "quota".into(), String::new()) });
        stored.push(Leaf { group: LeafId::new(7), ..Leaf::alone(LeafId::new(8), "x".into(), String::new()) });
        for order in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]] {
            let mut again = Tree::new();
            order.iter().for_each(|at| again.restore(&stored[*at]));
            assert_eq!(again.group_of(b.leaf), Some(a.leaf));
            assert_eq!(again.group_of(c.leaf), Some(c.leaf));
            assert_eq!(again.group_of(LeafId::new(7)), again.group_of(LeafId::new(8)));
            assert_ne!(again.group_of(LeafId::new(7)), Some(c.leaf));
            assert_eq!(again.len(), 5);
        }
    }

    /// Twenty thousand different lines: those of one pattern fill a group, the others fill the tree.
    #[test]
    fn the_tree_is_bounded_and_has_a_catch_all() {
        let mut tree = Tree::new();
        let name = |mut n: u32| {
            let mut name = String::new();
            for _ in 0..6 {
                name.push(char::from(b'a' + u8::try_from(n % 20).unwrap()));
                n /= 20;
            }
            name
        };
        for n in 0..5_000 {
            tree.learn(&signature(&format!("mail to {} bounced again today", name(n))));
        }
        assert!(tree.len() <= limits::GROUP_LEAVES_MAX + 1, "{}", tree.len());
        let kinds = 15_000;
        let mut caught = 0;
        for n in 0..kinds {
            let line =
                format!("{} {} {}", name(n), name(n.wrapping_mul(7_919)), name(n.wrapping_mul(104_729)));
            let error = ErrorInfo { error_type: name(n % 300), message: line, ..ErrorInfo::default() };
            let placed = tree.learn(&Signature::of(&error));
            caught += u32::from(placed.leaf != Signature::of(&error).leaf);
            assert!(tree.group_of(placed.leaf).is_some());
        }
        assert!(tree.len() <= limits::LEAVES_MAX + limits::REST_LEAVES_MAX + 1, "{}", tree.len());
        assert!(caught > 4_000, "{caught}");
        let more = tree.learn(&signature("something else entirely happened here"));
        assert!(tree.template_of(more.leaf).unwrap().contains("too many different"), "{more:?}");
    }

    #[test]
    fn no_input_is_too_strange_for_the_tree() {
        let strange = ["", " ", "\u{0}", "<*>", "<num>", "<*> <*>", "=", "()", "a=", "((((", "<", "日本 語"];
        let mut lines: Vec<String> = strange.iter().map(|s| (*s).to_owned()).collect();
        for a in strange {
            lines.push(a.repeat(3_000));
            lines.push(format!("{a} ").repeat(3_000));
            lines.extend(strange.iter().map(|b| format!("x {a} y {b} z")));
        }
        lines.push("x".repeat(1 << 20));
        lines.push("x 1 ".repeat(1 << 18));
        let (tree, assigned) = learn_all(&lines);
        for leaf in assigned {
            assert!(tree.template_of(leaf).unwrap().len() <= 4 * limits::TEMPLATE_BYTES_MAX);
        }
    }

    /// Lines made of few words, so that many of them differ in one or two.
    fn line() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec![
            "open", "closed", "user", "for", "ann", "bob", "cyd", "dan", "eve", "fay", "A1", "x=3",
            "10.0.0.1", "FooBar", "a.b.C", "UP", "DOWN", "failed", "retry", "(x)", "true", "false",
        ]);
        prop::collection::vec(word, 3..7).prop_map(|words| words.join(" "))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Any order, with a restart in between, gives the same groups.
        #[test]
        fn groups_do_not_depend_on_the_order(
            lines in prop::collection::vec(line(), 1..80),
            seed in any::<u64>(),
            restart in 0_usize..80,
        ) {
            let (tree, assigned) = learn_all(&lines);
            let expected = partition(&tree, &assigned);
            let mut order: Vec<usize> = (0..lines.len()).collect();
            order.sort_by_key(|at| (u64::try_from(*at).unwrap() + 1).wrapping_mul(seed | 1).rotate_left(17));
            let mut other = Tree::new();
            let mut rows: BTreeMap<LeafId, Leaf> = BTreeMap::new();
            for (step, at) in order.iter().enumerate() {
                if step == restart {
                    other = Tree::new();
                    let mut kept: Vec<&Leaf> = rows.values().collect();
                    kept.sort_by_key(|leaf| leaf.n);
                    kept.into_iter().for_each(|leaf| other.restore(leaf));
                }
                let placed = other.learn(&signature(&lines[*at]));
                rows.extend(placed.new.map(|leaf| (leaf.id, leaf)));
                for (leaf, group) in placed.moved {
                    rows.get_mut(&leaf).unwrap().group = group;
                }
            }
            prop_assert_eq!(partition(&other, &assigned), expected);
            for leaf in rows.values() {
                prop_assert_eq!(other.group_of(leaf.id), Some(leaf.group));
            }
        }

        /// Masking is idempotent: a template is its own template.
        #[test]
        fn masking_a_template_changes_nothing(line in line()) {
            let once = crate::signature::mask(&line);
            prop_assert_eq!(crate::signature::mask(&once), once);
        }
    }

    #[test]
    fn a_noisy_cause_does_not_use_up_the_space_of_others() {
        let word = |n: usize| {
            let letter = |n: usize| char::from(b'a' + u8::try_from(n % 26).unwrap());
            format!("{}{}{}x{}", letter(n), letter(n / 26), letter(n / 676), letter(n / 17_576))
        };
        let mut tree = Tree::new();
        for n in 0..4_000 {
            tree.learn(&signature(&format!("cannot open {} because {} said so", word(n), word(n * 7 + 3))));
        }
        assert!(tree.len() <= 2 * limits::GROUP_LEAVES_MAX, "{} leaves", tree.len());
        let first = tree.learn(&signature("cannot open zzzz because qqqq said so")).leaf;
        let other = tree.learn(&signature("the printer is on fire")).leaf;
        assert_ne!(tree.group_of(first), tree.group_of(other));
        assert_eq!(tree.template_of(first).unwrap(), "cannot open <*> because <*> said so");
        // The same after a restart.
        let mut again = Tree::new();
        for (id, known) in &tree.leaves {
            let group = tree.group_of(*id).unwrap();
            let alone = Leaf::alone(*id, known.template.to_string(), String::new());
            again.restore(&Leaf { group, version: VERSION, ..alone });
        }
        for n in 4_000..4_100 {
            again.learn(&signature(&format!("cannot open {} because {} said so", word(n), word(n * 7 + 3))));
        }
        assert!(again.len() <= tree.len() + 1, "{} leaves", again.len());
    }
}
