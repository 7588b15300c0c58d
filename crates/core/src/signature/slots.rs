//! Places that may vary. A slot is a line with one or two of its words left out; it collects the different
//! words seen there. With enough evidence the left-out word is known to vary, and the line without it is a
//! pattern that all of its lines belong to. A pattern is a line again, so what varies in patterns is found too.
//!
//! Evidence only grows with words and a pattern only adds lines: what is found in the end does not depend on
//! the order lines come in. It must not know about leaves and groups.

use super::words::{ENOUGH, Shape, WILD, Word, context, key};
use crate::limits;
use std::collections::HashMap;

/// The number of a word in the table of words; 0 is what stands for any.
type WordId = u32;

/// A word that has been seen.
#[derive(Debug)]
struct Seen {
    weight: u32,
    context: u32,
    key: u64,
    solid: bool,
}

/// A line as its words' numbers.
#[derive(Clone, Debug)]
pub(super) struct NodeWords {
    bucket: u64,
    ids: Vec<WordId>,
    key: u64,
}

/// The lines seen in a slot, and the words.
#[derive(Debug)]
enum Slot {
    One(NodeRef),
    Many(Box<Many>),
}

/// Where a line stands in the list of lines.
type NodeRef = u32;

/// A slot with more than one line.
#[derive(Debug, Default)]
struct Many {
    /// Lines, until all of them have gone into a pattern.
    lines: Vec<NodeRef>,
    /// Different words at each of the one or two places.
    words: [Vec<WordId>; 2],
    /// Which of the places are known to vary.
    free: [bool; 2],
}

/// All slots of all lines.
#[derive(Debug)]
pub(super) struct Slots {
    numbers: HashMap<Box<str>, WordId>,
    seen: Vec<Seen>,
    /// Lines and patterns, with the node of each.
    lines: Vec<(NodeWords, u32)>,
    by_key: HashMap<u64, NodeRef>,
    slots: HashMap<u64, Slot>,
}

/// A pattern that was found, and nodes that belong to it.
pub(super) type Found = (NodeWords, Vec<u32>);

impl Default for Slots {
    fn default() -> Self {
        let mut slots = Self {
            numbers: HashMap::new(),
            seen: Vec::new(),
            lines: Vec::new(),
            by_key: HashMap::new(),
            slots: HashMap::new(),
        };
        slots.number(WILD);
        slots
    }
}

impl Slots {
    /// The number of a word, a new one if it has not been seen.
    fn number(&mut self, word: &str) -> WordId {
        if let Some(number) = self.numbers.get(word) {
            return *number;
        }
        let number = WordId::try_from(self.seen.len()).unwrap_or(WordId::MAX);
        let shape = Shape::of(word);
        self.seen.push(Seen {
            // The last word within brackets is more often a detail than not.
            weight: if word.ends_with([')', ']']) && !word.contains(['(', '[']) {
                shape.weight() * 130 / 100
            } else {
                shape.weight()
            },
            context: context(word),
            key: key(word).map_or(0, |key| hash_text(1, key)),
            solid: shape.is_solid(word),
        });
        self.numbers.insert(word.into(), number);
        number
    }

    /// A line as numbers.
    pub(super) fn line(&mut self, bucket: u64, words: &[Word]) -> NodeWords {
        let ids: Vec<WordId> = words.iter().map(|word| self.number(&word.plain)).collect();
        NodeWords::new(bucket, ids)
    }

    /// The node of a line that is known.
    pub(super) fn node_of(&self, line: &NodeWords) -> Option<u32> {
        self.lines.get(usize::try_from(*self.by_key.get(&line.key)?).ok()?).map(|(_, node)| *node)
    }

    /// The node of a pattern that a line would belong to, without taking it in.
    pub(super) fn matching(&self, bucket: u64, words: &[Word]) -> Option<u32> {
        // A word that has never been seen is no other word.
        let number = |word: &Word| self.numbers.get(word.plain.as_str()).copied().unwrap_or(WordId::MAX);
        let line = NodeWords::new(bucket, words.iter().map(number).collect());
        if line.ids.iter().filter(|id| **id == WordId::MAX).count() > 2 {
            return None;
        }
        let known = |key: &u64| self.by_key.contains_key(key);
        let mut places = line.places();
        places.find_map(|(a, b)| {
            let slot = match self.slots.get(&line.without(a, b))? {
                Slot::Many(many) => many,
                Slot::One(..) => return None,
            };
            let [first, second] = slot.free;
            let pattern = match (first, second, b) {
                (true, _, _) => line.with_wild(a),
                (false, true, Some(b)) => line.with_wild(b),
                _ => return None,
            };
            known(&pattern.key).then(|| self.node_of(&pattern)).flatten()
        })
    }

    /// Takes a line in. Says which patterns it shows, with the nodes that belong to them.
    pub(super) fn add(&mut self, line: NodeWords, node: u32) -> Vec<Found> {
        let at = NodeRef::try_from(self.lines.len()).unwrap_or(NodeRef::MAX);
        self.by_key.insert(line.key, at);
        let solid: Vec<bool> = line.ids.iter().map(|id| self.is_solid(*id)).collect();
        let all = solid.iter().filter(|s| **s).count();
        let mut found = Vec::new();
        let places: Vec<_> = line.places().collect();
        let key = line.clone();
        self.lines.push((line, node));
        if self.slots.len() >= limits::SLOTS_MAX {
            return found;
        }
        let is_solid = |at: usize| usize::from(solid.get(at).copied().unwrap_or(false));
        for (a, b) in places {
            let rest = all - is_solid(a) - b.map_or(0, is_solid);
            // The more of the line is the same, the more a difference is one of a variable.
            let share = match (b, rest) {
                (_, 0) | (Some(_), 1) => continue,
                (Some(_), 2) => 50,
                (None, 1) | (Some(_), 3) => 68,
                (None, 2) => 75,
                (None, 3) | (Some(_), 4..=8) => 85,
                (None, 4..=5) | (Some(_), _) => 100,
                (None, 6..=8) => 105,
                (None, _) => 120,
            };
            self.add_to_slot(&key, at, (a, b), share, &mut found);
        }
        found
    }

    fn is_solid(&self, id: WordId) -> bool {
        self.seen_at(id).is_some_and(|seen| seen.solid)
    }

    fn seen_at(&self, id: WordId) -> Option<&Seen> {
        self.seen.get(usize::try_from(id).ok()?)
    }

    /// Notes a line in one of its slots.
    fn add_to_slot(
        &mut self,
        line: &NodeWords,
        at: NodeRef,
        (a, b): (usize, Option<usize>),
        share: u32,
        found: &mut Vec<Found>,
    ) {
        let slot_key = line.without(a, b);
        let mut many = match self.slots.remove(&slot_key) {
            None => {
                self.slots.insert(slot_key, Slot::One(at));
                return;
            }
            Some(Slot::One(first)) => {
                let mut many = Box::<Many>::default();
                self.note(&mut many, first, (a, b));
                many
            }
            Some(Slot::Many(many)) => many,
        };
        self.note(&mut many, at, (a, b));
        for (side, place) in [Some(a), b].into_iter().enumerate() {
            let Some(place) = place else { continue };
            let other = if side == 0 { b } else { Some(a) };
            let words = many.words.get(side).map(Vec::as_slice).unwrap_or_default();
            let free = many.free.get(side).copied().unwrap_or(false);
            if free {
                found.extend(self.pattern(at, place));
            } else if self.evidence(line, place, other, words) * share / 100 >= ENOUGH {
                if let Some(free) = many.free.get_mut(side) {
                    *free = true;
                }
                let lines: Vec<NodeRef> = many.lines.clone();
                found.extend(lines.into_iter().filter_map(|line| self.pattern(line, place)));
            }
        }
        if many.free == [true, b.is_some()] {
            many.lines = Vec::new();
        }
        self.slots.insert(slot_key, Slot::Many(many));
    }

    /// Adds a line and its words to a slot.
    fn note(&self, many: &mut Many, at: NodeRef, (a, b): (usize, Option<usize>)) {
        let Some((line, _)) = usize::try_from(at).ok().and_then(|at| self.lines.get(at)) else { return };
        let [first, second] = &mut many.words;
        for (place, words) in [(Some(a), first), (b, second)] {
            let word = place.and_then(|place| line.ids.get(place));
            if let Some(word) =
                word.filter(|word| words.len() < limits::SLOT_WORDS_MAX && !words.contains(word))
            {
                words.push(*word);
            }
        }
        if many.free != [true, b.is_some()] {
            many.lines.push(at);
        }
    }

    /// The pattern a line becomes when one of its words varies.
    fn pattern(&self, at: NodeRef, place: usize) -> Option<Found> {
        let (line, node) = self.lines.get(usize::try_from(at).ok()?)?;
        if line.ids.get(place) == Some(&0) {
            return None;
        }
        Some((line.with_wild(place), vec![*node]))
    }

    /// How much speaks for a place being one that varies.
    fn evidence(&self, line: &NodeWords, place: usize, other: Option<usize>, words: &[WordId]) -> u32 {
        if words.len() < 2 {
            return 0;
        }
        let before = place.checked_sub(1).filter(|before| Some(*before) != other);
        let context = match before.and_then(|before| line.ids.get(before)) {
            Some(id) => self.seen_at(*id).map_or(100, |seen| seen.context),
            None => 100,
        };
        let keys: Vec<u64> = words.iter().filter_map(|id| self.seen_at(*id)).map(|seen| seen.key).collect();
        let weight = |id: &WordId| {
            let Some(seen) = self.seen_at(*id) else { return 0 };
            let keyed = seen.key != 0 && keys.iter().filter(|key| **key == seen.key).count() > 1;
            let weight = if keyed { (seen.weight * 2).min(500) } else { seen.weight };
            // What a line begins with says what it is about, unless it is a number or in brackets.
            if place == 0 && weight < 500 { weight * 80 / 100 } else { weight }
        };
        words.iter().map(weight).sum::<u32>() * context / 100
    }
}

impl NodeWords {
    fn new(bucket: u64, ids: Vec<WordId>) -> Self {
        let mut line = Self { bucket, ids, key: 0 };
        line.key = line.sum();
        line
    }

    /// A number for the line; equal lines have equal ones.
    fn sum(&self) -> u64 {
        let words = self.ids.iter().enumerate().map(|(at, id)| term(at, u64::from(*id)));
        words.fold(mix(self.bucket ^ mix(wide(self.ids.len()))), u64::wrapping_add)
    }

    /// The number of the line with one or two words left out.
    fn without(&self, a: usize, b: Option<usize>) -> u64 {
        let word = |at: usize| term(at, self.ids.get(at).map_or(0, |id| u64::from(*id)));
        let gap = |at: usize| term(at, u64::MAX);
        let one = self.key.wrapping_sub(word(a)).wrapping_add(gap(a));
        b.map_or(one, |b| one.wrapping_sub(word(b)).wrapping_add(gap(b)))
    }

    /// The line with a word that varies.
    fn with_wild(&self, place: usize) -> Self {
        let mut ids = self.ids.clone();
        if let Some(id) = ids.get_mut(place) {
            *id = 0;
        }
        Self::new(self.bucket, ids)
    }

    /// The places that are left out: each one alone, and pairs that stand not too far from each other.
    fn places(&self) -> impl Iterator<Item = (usize, Option<usize>)> + use<> {
        let len = self.ids.len();
        let window = (limits::LINE_PAIRS_MAX / len.max(1)).max(1);
        let pairs = move |a: usize| (a + 1..len.min(a + 1 + window)).map(move |b| (a, Some(b)));
        (0..len).map(|a| (a, None)).chain((0..len).flat_map(pairs))
    }
}

fn wide(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// What a word at a place adds to the number of its line.
fn term(at: usize, id: u64) -> u64 {
    mix(id.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mix(wide(at)))
}

/// Spreads the bits of a number over all of it.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// A number for a text, after another.
pub(super) fn hash_text(seed: u64, text: &str) -> u64 {
    let eight = |bytes: &[u8]| bytes.iter().fold(0_u64, |n, byte| (n << 8) | u64::from(*byte));
    text.as_bytes().chunks(8).fold(mix(seed ^ wide(text.len())), |hash, bytes| mix(hash ^ eight(bytes)))
}
