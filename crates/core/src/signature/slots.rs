//! Positions that may vary. A slot is a line with one or two of its words left out; it collects the different words
//! seen there. With enough evidence the position is known to vary, and the line without the word becomes a pattern that
//! all its lines belong to. A pattern is a line again, so variation within patterns is found too.
//!
//! More words only add evidence, and a pattern only adds lines: the final result does not depend on the order of the
//! lines. This module knows nothing about leaves and groups.

use super::words::{EVIDENCE_MIN, Shape, WILD, Word, context, key};
use crate::limits;
use std::collections::HashMap;

/// The number of a word in the table of words; 0 stands for any word.
type WordId = u32;

/// What is known about a word.
#[derive(Debug)]
struct WordInfo {
    weight: u32,
    context: u32,
    key: u64,
    solid: bool,
}

/// A line as the numbers of its words.
#[derive(Clone, Debug)]
pub(super) struct Line {
    bucket: u64,
    ids: Vec<WordId>,
    key: u64,
}

/// The lines and words seen in a slot.
#[derive(Debug)]
enum Slot {
    One(LineIndex),
    Many(Box<SlotLines>),
}

/// The index of a line in the list of lines.
type LineIndex = u32;

/// The contents of a slot with more than one line.
#[derive(Debug, Default)]
struct SlotLines {
    /// The lines, until all of them have become patterns.
    lines: Vec<LineIndex>,
    /// The different words at each of the one or two positions.
    words: [Vec<WordId>; 2],
    /// Which of the positions are known to vary.
    varies: [bool; 2],
}

/// All slots of all lines.
#[derive(Debug)]
pub(super) struct Slots {
    numbers: HashMap<Box<str>, WordId>,
    infos: Vec<WordInfo>,
    /// Lines and patterns, each with its node in the tree.
    lines: Vec<(Line, u32)>,
    by_key: HashMap<u64, LineIndex>,
    slots: HashMap<u64, Slot>,
}

/// A pattern that was found, and the nodes that belong to it.
pub(super) type FoundPattern = (Line, Vec<u32>);

impl Default for Slots {
    fn default() -> Self {
        let mut slots = Self {
            numbers: HashMap::new(),
            infos: Vec::new(),
            lines: Vec::new(),
            by_key: HashMap::new(),
            slots: HashMap::new(),
        };
        slots.number(WILD);
        slots
    }
}

impl Slots {
    /// The number of a word, which is assigned if the word is new.
    fn number(&mut self, word: &str) -> WordId {
        if let Some(number) = self.numbers.get(word) {
            return *number;
        }
        let number = WordId::try_from(self.infos.len()).unwrap_or(WordId::MAX);
        let shape = Shape::of(word);
        self.infos.push(WordInfo {
            // The last word inside brackets is usually a detail.
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

    /// Converts words to a line.
    pub(super) fn line(&mut self, bucket: u64, words: &[Word]) -> Line {
        let ids: Vec<WordId> = words.iter().map(|word| self.number(&word.plain)).collect();
        Line::new(bucket, ids)
    }

    /// The node of a known line.
    pub(super) fn node_of(&self, line: &Line) -> Option<u32> {
        self.lines.get(usize::try_from(*self.by_key.get(&line.key)?).ok()?).map(|(_, node)| *node)
    }

    /// The node of a pattern that a line would belong to, without adding the line.
    pub(super) fn matching(&self, bucket: u64, words: &[Word]) -> Option<u32> {
        // A word that was never seen differs from all others.
        let number = |word: &Word| self.numbers.get(word.plain.as_str()).copied().unwrap_or(WordId::MAX);
        let line = Line::new(bucket, words.iter().map(number).collect());
        if line.ids.iter().filter(|id| **id == WordId::MAX).count() > 2 {
            return None;
        }
        let known = |key: &u64| self.by_key.contains_key(key);
        let mut positions = line.positions();
        positions.find_map(|(a, b)| {
            let slot = match self.slots.get(&line.without(a, b))? {
                Slot::Many(many) => many,
                Slot::One(..) => return None,
            };
            let [first, second] = slot.varies;
            let pattern = match (first, second, b) {
                (true, _, _) => line.with_wild(a),
                (false, true, Some(b)) => line.with_wild(b),
                _ => return None,
            };
            known(&pattern.key).then(|| self.node_of(&pattern)).flatten()
        })
    }

    /// Adds a line. Returns the patterns that it reveals, with the nodes that belong to them.
    pub(super) fn add(&mut self, line: Line, node: u32) -> Vec<FoundPattern> {
        let at = LineIndex::try_from(self.lines.len()).unwrap_or(LineIndex::MAX);
        self.by_key.insert(line.key, at);
        let solid: Vec<bool> = line.ids.iter().map(|id| self.is_solid(*id)).collect();
        let all = solid.iter().filter(|s| **s).count();
        let mut found = Vec::new();
        let positions: Vec<_> = line.positions().collect();
        let key = line.clone();
        self.lines.push((line, node));
        if self.slots.len() >= limits::SLOTS_MAX {
            return found;
        }
        let is_solid = |at: usize| usize::from(solid.get(at).copied().unwrap_or(false));
        for (a, b) in positions {
            let rest = all - is_solid(a) - b.map_or(0, is_solid);
            // The more of the line is the same, the more likely a difference is a variable.
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
        self.info(id).is_some_and(|info| info.solid)
    }

    fn info(&self, id: WordId) -> Option<&WordInfo> {
        self.infos.get(usize::try_from(id).ok()?)
    }

    /// Adds a line to one of its slots.
    fn add_to_slot(
        &mut self,
        line: &Line,
        at: LineIndex,
        (a, b): (usize, Option<usize>),
        share: u32,
        found: &mut Vec<FoundPattern>,
    ) {
        let slot_key = line.without(a, b);
        let mut many = match self.slots.remove(&slot_key) {
            None => {
                self.slots.insert(slot_key, Slot::One(at));
                return;
            }
            Some(Slot::One(first)) => {
                let mut many = Box::<SlotLines>::default();
                self.record(&mut many, first, (a, b));
                many
            }
            Some(Slot::Many(many)) => many,
        };
        self.record(&mut many, at, (a, b));
        for (side, position) in [Some(a), b].into_iter().enumerate() {
            let Some(position) = position else { continue };
            let other = if side == 0 { b } else { Some(a) };
            let words = many.words.get(side).map(Vec::as_slice).unwrap_or_default();
            let varies = many.varies.get(side).copied().unwrap_or(false);
            if varies {
                found.extend(self.pattern(at, position));
            } else if self.evidence(line, position, other, words) * share / 100 >= EVIDENCE_MIN {
                if let Some(varies) = many.varies.get_mut(side) {
                    *varies = true;
                }
                let lines: Vec<LineIndex> = many.lines.clone();
                found.extend(lines.into_iter().filter_map(|line| self.pattern(line, position)));
            }
        }
        if many.varies == [true, b.is_some()] {
            many.lines = Vec::new();
        }
        self.slots.insert(slot_key, Slot::Many(many));
    }

    /// Records a line and its words in a slot.
    fn record(&self, many: &mut SlotLines, at: LineIndex, (a, b): (usize, Option<usize>)) {
        let Some((line, _)) = usize::try_from(at).ok().and_then(|at| self.lines.get(at)) else { return };
        let [first, second] = &mut many.words;
        for (position, words) in [(Some(a), first), (b, second)] {
            let word = position.and_then(|position| line.ids.get(position));
            if let Some(word) =
                word.filter(|word| words.len() < limits::SLOT_WORDS_MAX && !words.contains(word))
            {
                words.push(*word);
            }
        }
        if many.varies != [true, b.is_some()] {
            many.lines.push(at);
        }
    }

    /// The pattern that a line becomes if one of its words varies.
    fn pattern(&self, at: LineIndex, position: usize) -> Option<FoundPattern> {
        let (line, node) = self.lines.get(usize::try_from(at).ok()?)?;
        if line.ids.get(position) == Some(&0) {
            return None;
        }
        Some((line.with_wild(position), vec![*node]))
    }

    /// How much evidence there is that a position varies.
    fn evidence(&self, line: &Line, position: usize, other: Option<usize>, words: &[WordId]) -> u32 {
        if words.len() < 2 {
            return 0;
        }
        let before = position.checked_sub(1).filter(|before| Some(*before) != other);
        let context = match before.and_then(|before| line.ids.get(before)) {
            Some(id) => self.info(*id).map_or(100, |info| info.context),
            None => 100,
        };
        let keys: Vec<u64> = words.iter().filter_map(|id| self.info(*id)).map(|info| info.key).collect();
        let weight = |id: &WordId| {
            let Some(info) = self.info(*id) else { return 0 };
            let keyed = info.key != 0 && keys.iter().filter(|key| **key == info.key).count() > 1;
            let weight = if keyed { (info.weight * 2).min(500) } else { info.weight };
            // The beginning of a line says what it is about, unless it is a number or in brackets.
            if position == 0 && weight < 500 { weight * 80 / 100 } else { weight }
        };
        words.iter().map(weight).sum::<u32>() * context / 100
    }
}

impl Line {
    fn new(bucket: u64, ids: Vec<WordId>) -> Self {
        let mut line = Self { bucket, ids, key: 0 };
        line.key = line.hash();
        line
    }

    /// The hash of the line; equal lines have equal hashes.
    fn hash(&self) -> u64 {
        let words = self.ids.iter().enumerate().map(|(at, id)| term(at, u64::from(*id)));
        words.fold(mix(self.bucket ^ mix(wide(self.ids.len()))), u64::wrapping_add)
    }

    /// The hash of the line with one or two words left out.
    fn without(&self, a: usize, b: Option<usize>) -> u64 {
        let word = |at: usize| term(at, self.ids.get(at).map_or(0, |id| u64::from(*id)));
        let gap = |at: usize| term(at, u64::MAX);
        let one = self.key.wrapping_sub(word(a)).wrapping_add(gap(a));
        b.map_or(one, |b| one.wrapping_sub(word(b)).wrapping_add(gap(b)))
    }

    /// The line with a wildcard at this position.
    fn with_wild(&self, position: usize) -> Self {
        let mut ids = self.ids.clone();
        if let Some(id) = ids.get_mut(position) {
            *id = 0;
        }
        Self::new(self.bucket, ids)
    }

    /// The positions to leave out: each one alone, and pairs that are not too far apart.
    fn positions(&self) -> impl Iterator<Item = (usize, Option<usize>)> + use<> {
        let len = self.ids.len();
        let window = (limits::LINE_PAIRS_MAX / len.max(1)).max(1);
        let pairs = move |a: usize| (a + 1..len.min(a + 1 + window)).map(move |b| (a, Some(b)));
        (0..len).map(|a| (a, None)).chain((0..len).flat_map(pairs))
    }
}

fn wide(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// What a word at a position adds to the hash of its line.
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

/// The hash of a text, with a seed.
pub(super) fn hash_text(seed: u64, text: &str) -> u64 {
    let eight = |bytes: &[u8]| bytes.iter().fold(0_u64, |n, byte| (n << 8) | u64::from(*byte));
    text.as_bytes().chunks(8).fold(mix(seed ^ wide(text.len())), |hash, bytes| mix(hash ^ eight(bytes)))
}
