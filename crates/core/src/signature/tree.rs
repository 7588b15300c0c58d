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

/// What the leaves of a full group have in common: a word, or any.
#[derive(Debug)]
struct Face {
    words: Vec<Option<String>>,
    leaf: LeafId,
    group: u32,
}

/// All leaves and their groups, in memory.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: Vec<Node>,
    slots: Slots,
    leaves: HashMap<LeafId, Known>,
    /// Full groups by bucket and number of words; there are at most [`limits::LEAVES_MAX`] by
    /// [`limits::GROUP_LEAVES_MAX`] of them.
    faces: HashMap<(u64, usize), Vec<Face>>,
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

    /// The place of the next leaf in the order of first sight.
    #[must_use]
    pub const fn next_place(&self) -> u64 {
        self.next
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
        if compared {
            self.note_face(bucket, leaf.id);
        }
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

    /// The leaf of a group that has enough leaves already and that a line belongs to: by a pattern the line
    /// belongs to, or by what all leaves of such a group have in common.
    fn full_group(&self, bucket: u64, template: &str) -> Option<LeafId> {
        let words = words(template);
        if let Some(root) = self.slots.matching(bucket, &words).map(|node| self.root(node))
            && let Some(root) = self.nodes.get(index(root))
            && root.leaves.len() >= limits::GROUP_LEAVES_MAX
        {
            return root.oldest.map(|(_, leaf)| leaf);
        }
        let fits = |face: &&Face| {
            face.words
                .iter()
                .zip(&words)
                .all(|(face, word)| face.as_ref().is_none_or(|face| *face == word.plain))
        };
        let face = self.faces.get(&(bucket, words.len()))?.iter().find(fits)?;
        self.group_of(face.leaf)
    }

    /// Keeps what all leaves of a group have in common, once it has as many as it may. Of groups with hardly
    /// anything in common nothing is kept: they would take in what is not theirs.
    fn note_face(&mut self, bucket: u64, leaf: LeafId) {
        let Some(node) = self.leaves.get(&leaf).map(|known| self.root(known.node)) else { return };
        let Some(root) = self.nodes.get(index(node)).filter(|n| n.leaves.len() >= limits::GROUP_LEAVES_MAX)
        else {
            return;
        };
        let of = |leaf: &LeafId| self.leaves.get(leaf).map(|known| words(&known.template));
        let Some(first) = of(&leaf) else { return };
        let known = self.faces.get(&(bucket, first.len()));
        if known.is_some_and(|faces| faces.iter().any(|face| face.group == node)) {
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
            let face = Face { words: common, leaf, group: node };
            self.faces.entry((bucket, face.words.len())).or_default().push(face);
        }
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
        let leaves = self.leaves_of(group);
        let others = leaves.iter().filter_map(|leaf| self.leaves.get(leaf)).map(|known| &*known.template);
        Some(common_template(&face.template, others))
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

/// The template that a group's face and its other leaves have in common, with differing words as `<*>`.
#[must_use]
pub fn common_template<'a>(face: &str, others: impl Iterator<Item = &'a str>) -> String {
    let mut others = others.filter(|other| *other != face).peekable();
    if others.peek().is_none() {
        return face.to_owned();
    }
    let mut shown = words(face);
    let (mut varied, length) = (false, shown.len());
    for other in others.map(words).filter(|other| other.len() == length) {
        varied = true;
        shown.iter_mut().zip(&other).for_each(|(shown, other)| widen(shown, other));
    }
    // Groups that an operator put together may have nothing in common: the oldest wording says more then.
    if !varied || shown.iter().all(|word| word.shown == WILD) {
        return face.to_owned();
    }
    let shown: Vec<String> = shown.into_iter().map(|word| word.shown).collect();
    shown.join(" ")
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
    fn partition(tree: &Tree, filed: &[LeafId]) -> BTreeSet<BTreeSet<usize>> {
        let mut groups: BTreeMap<LeafId, BTreeSet<usize>> = BTreeMap::new();
        for (at, leaf) in filed.iter().enumerate() {
            groups.entry(tree.group_of(*leaf).unwrap()).or_default().insert(at);
        }
        groups.into_values().collect()
    }

    fn learned(messages: &[String]) -> (Tree, Vec<LeafId>) {
        let mut tree = Tree::new();
        let filed = messages.iter().map(|message| tree.learn(&signature(message)).leaf).collect();
        (tree, filed)
    }

    /// Lines of the kinds services write, by group. Lines of one list belong together, lists apart.
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
        let (tree, filed) = learned(&lines);
        let mut wanted = BTreeSet::new();
        let mut at = 0;
        for group in &corpus {
            wanted.insert((at..at + group.len()).collect::<BTreeSet<usize>>());
            at += group.len();
        }
        let found = partition(&tree, &filed);
        let wrong: Vec<Vec<&String>> =
            found.difference(&wanted).map(|group| group.iter().map(|at| &lines[*at]).collect()).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn a_group_is_named_by_its_oldest_leaf_and_says_who_moved() {
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
                assert_eq!(tree.group_of(*leaf), Some(*group), "what was told is what holds");
            }
            assert_eq!(tree.learn(line), Placed { leaf: line.leaf, new: None, moved: Vec::new() });
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
                let placed = tree.learn(&Signature::of_with(&error, &rules));
                assert_eq!(placed.moved, []);
                assert_eq!(tree.group_of(placed.leaf), Some(placed.leaf));
            }
        }
    }

    #[test]
    fn an_operators_merge_lasts_and_other_versions_are_left_alone() {
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

    /// Twenty thousand different lines: those of one pattern fill a group, those of none fill the tree.
    #[test]
    fn the_tree_is_bounded_and_says_what_it_took_together() {
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
        let mut rest = 0;
        for n in 0..kinds {
            let line =
                format!("{} {} {}", name(n), name(n.wrapping_mul(7_919)), name(n.wrapping_mul(104_729)));
            let error = ErrorInfo { error_type: name(n % 300), message: line, ..ErrorInfo::default() };
            let placed = tree.learn(&Signature::of(&error));
            rest += u32::from(placed.leaf != Signature::of(&error).leaf);
            assert!(tree.group_of(placed.leaf).is_some());
        }
        assert!(tree.len() <= limits::LEAVES_MAX + limits::REST_LEAVES_MAX + 1, "{}", tree.len());
        assert!(rest > 4_000, "{rest}");
        let more = tree.learn(&signature("something else entirely happened here"));
        assert!(tree.template_of(more.leaf).unwrap().contains("too many different"), "{more:?}");
    }

    #[test]
    fn nothing_is_too_strange_for_the_tree() {
        let strange = ["", " ", "\u{0}", "<*>", "<num>", "<*> <*>", "=", "()", "a=", "((((", "<", "日本 語"];
        let mut lines: Vec<String> = strange.iter().map(|s| (*s).to_owned()).collect();
        for a in strange {
            lines.push(a.repeat(3_000));
            lines.push(format!("{a} ").repeat(3_000));
            lines.extend(strange.iter().map(|b| format!("x {a} y {b} z")));
        }
        lines.push("x".repeat(1 << 20));
        lines.push("x 1 ".repeat(1 << 18));
        let (tree, filed) = learned(&lines);
        for leaf in filed {
            assert!(tree.template_of(leaf).unwrap().len() <= 4 * limits::TEMPLATE_BYTES_MAX);
        }
    }

    /// Lines from few words, so that many of them differ in one or two.
    fn line() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec![
            "open", "closed", "user", "for", "ann", "bob", "cyd", "dan", "eve", "fay", "A1", "x=3",
            "10.0.0.1", "FooBar", "a.b.C", "UP", "DOWN", "failed", "retry", "(x)", "true", "false",
        ]);
        prop::collection::vec(word, 3..7).prop_map(|words| words.join(" "))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Any order, and a restart in between, give the same groups.
        #[test]
        fn groups_do_not_depend_on_the_order(
            lines in prop::collection::vec(line(), 1..80),
            seed in any::<u64>(),
            restart in 0_usize..80,
        ) {
            let (tree, filed) = learned(&lines);
            let expected = partition(&tree, &filed);
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
            prop_assert_eq!(partition(&other, &filed), expected);
            for leaf in rows.values() {
                prop_assert_eq!(other.group_of(leaf.id), Some(leaf.group));
            }
        }

        /// What is masked stays masked: a template is its own template.
        #[test]
        fn masking_a_template_changes_nothing(line in line()) {
            let once = crate::signature::mask(&line);
            prop_assert_eq!(crate::signature::mask(&once), once);
        }
    }

    #[test]
    fn a_noisy_cause_does_not_use_up_the_room_of_others() {
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
