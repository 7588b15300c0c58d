//! The table of known errors: phrases and codes with their meaning, grouped by where they come from. The other files of
//! this directory are the table; this one searches it.
//!
//! A phrase is found in any spelling (`disk full`, `DiskFull`, `DISK_FULL`, `diskfull`) and, with less weight, if its
//! words are misspelt or in another order. If several are found, the surest wins, and among equals the longest. The
//! table must not contain *systematic* or *poison*: those are seen only in many failures.

mod cloud;
mod codes;
mod databases;
mod languages;
mod platforms;
mod transport;

use super::tokens::{Kind, Part, Word, Words, hash, hash_on};
use crate::failure::{Category, Route};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::LazyLock;

pub(super) use codes::code_hits;

/// How much a rule is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strength {
    /// A tendency, if nothing else is found.
    Hint,
    /// The usual meaning.
    Likely,
    /// The meaning, whatever else is found.
    Sure,
    /// The meaning even beside a sure rule: a more special case of it.
    Certain,
}

impl Strength {
    /// What it adds to a score. Scores of the model are on the same scale and rarely differ by more than 6.
    const fn weight(self) -> f32 {
        match self {
            Self::Hint => 1.5,
            Self::Likely => 4.0,
            Self::Sure => 7.5,
            Self::Certain => 12.5,
        }
    }
}

/// Phrases with the same meaning. With the prefix `type:` or `code:` a phrase counts only there.
#[derive(Debug)]
pub(super) struct Rule {
    pub strength: Strength,
    pub category: Option<Category>,
    pub route: Option<Route>,
    /// The meaning in words, as in `says "…": <means>`.
    pub means: &'static str,
    pub says: &'static [&'static str],
}

/// A line of the table.
const fn rule(
    strength: Strength,
    category: Category,
    route: Route,
    means: &'static str,
    says: &'static [&'static str],
) -> Rule {
    Rule { strength, category: Some(category), route: Some(route), means, says }
}

/// A line of the table with only a category or only a route.
const fn partial(
    strength: Strength,
    category: Option<Category>,
    route: Option<Route>,
    means: &'static str,
    says: &'static [&'static str],
) -> Rule {
    Rule { strength, category, route, means, says }
}

/// The whole table.
fn rules() -> impl Iterator<Item = &'static Rule> {
    [transport::RULES, languages::RULES, databases::RULES, platforms::RULES, cloud::RULES]
        .into_iter()
        .flatten()
}

/// How closely a phrase matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closeness {
    /// Word for word, in any spelling of names.
    Exact,
    /// With a misspelt word, or with the words in another order.
    Similar,
}

/// A rule that applies.
#[derive(Clone, Debug)]
pub(super) struct Hit {
    pub category: Option<Category>,
    pub route: Option<Route>,
    /// What it adds to the score of its category and route.
    pub weight: f32,
    /// Why the rule applies.
    pub reason: Reason,
}

/// Why a rule applies. The text is only made for the reasons that are shown.
#[derive(Clone, Debug)]
pub(super) enum Reason {
    /// A phrase of the table, how closely it matches, and its meaning.
    Says(&'static str, Closeness, &'static str),
    /// A code of the table: its scheme, the code, and its meaning.
    Coded(&'static str, String, &'static str),
}

impl Reason {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Says(phrase, Closeness::Exact, means) => format!("says \"{phrase}\": {means}"),
            Self::Says(phrase, Closeness::Similar, means) => format!("says nearly \"{phrase}\": {means}"),
            Self::Coded(kind, code, means) => format!("{kind} {code}: {means}"),
        }
    }
}

struct Phrase {
    words: Vec<u64>,
    /// The index of the word by which the phrase is looked up.
    key: usize,
    part: Option<Part>,
    /// Whether its words are distinctive enough to be searched in any order.
    loose: bool,
    rule: &'static Rule,
    text: &'static str,
}

/// A hasher that returns its input, because word hashes are hashes already.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 << 8) | u64::from(*byte);
        }
    }
    fn write_u64(&mut self, n: u64) {
        self.0 = n;
    }
}

type ByHash<V> = HashMap<u64, V, BuildHasherDefault<IdentityHasher>>;

struct Index {
    phrases: Vec<Phrase>,
    /// Phrases by their key word.
    by_word: ByHash<Vec<usize>>,
    /// Phrases by their words written together.
    glued: ByHash<usize>,
    /// Words of the table, by themselves and by their spellings with one letter left out.
    misspelt: ByHash<u64>,
    /// All words of the table.
    known: ByHash<()>,
}

static INDEX: LazyLock<Index> = LazyLock::new(Index::build);

/// The length from which on a misspelt word can be recognised.
const SPELT_FROM: usize = 6;
/// How many other words may be among the words of a phrase.
const SLACK: usize = 1;
/// How many unknown words are checked for spelling, so that the time is bounded.
const SPELLING_TRIES_MAX: usize = 16;

impl Index {
    fn build() -> Self {
        let mut index = Self {
            phrases: Vec::new(),
            by_word: ByHash::default(),
            glued: ByHash::default(),
            misspelt: ByHash::default(),
            known: ByHash::default(),
        };
        let mut counts: HashMap<u64, usize> = HashMap::new();
        let phrases: Vec<(&Rule, &'static str)> =
            rules().flat_map(|rule| rule.says.iter().map(move |text| (rule, *text))).collect();
        for (_, text) in &phrases {
            for word in Words::of_phrase(stripped(text).1).list {
                *counts.entry(word.hash).or_default() += 1;
            }
        }
        for (rule, text) in phrases {
            index.add(rule, text, &counts);
        }
        index
    }

    fn add(&mut self, rule: &'static Rule, text: &'static str, counts: &HashMap<u64, usize>) {
        let (part, text) = stripped(text);
        let words = Words::of_phrase(text);
        let hashes: Vec<u64> = words.list.iter().map(|word| word.hash).collect();
        let rarity = |at: &usize| hashes.get(*at).and_then(|hash| counts.get(hash)).copied();
        let Some(key) = (0..hashes.len()).min_by_key(rarity) else { return };
        let number = self.phrases.len();
        let letters: Vec<&str> = words.list.iter().map(|word| words.text(word)).collect();
        if letters.len() > 1 && part.is_none() {
            self.glued.entry(hash(&letters.concat())).or_insert(number);
        }
        for (word, letters) in words.list.iter().zip(&letters) {
            self.known.insert(word.hash, ());
            if letters.len() >= SPELT_FROM {
                self.misspelt.insert(word.hash, word.hash);
                for shorter in without_one_letter(letters) {
                    self.misspelt.entry(shorter).or_insert(word.hash);
                }
            }
        }
        if let Some(hash) = hashes.get(key) {
            self.by_word.entry(*hash).or_default().push(number);
        }
        let telling = letters.iter().filter(|word| word.len() >= 4).count();
        let loose = telling >= 2 && telling == letters.len() && rule.strength > Strength::Hint;
        self.phrases.push(Phrase { words: hashes, key, part, loose, rule, text });
    }

    /// The word of the table that this one probably is, with one letter added, missing or changed.
    fn correct(&self, letters: &str) -> Option<u64> {
        let fits = |hash: &u64| self.misspelt.get(hash).copied();
        fits(&hash(letters)).or_else(|| without_one_letter(letters).find_map(|shorter| fits(&shorter)))
    }
}

/// The part to which a phrase is restricted, and the phrase without its prefix.
fn stripped(text: &'static str) -> (Option<Part>, &'static str) {
    if let Some(text) = text.strip_prefix("type:") {
        (Some(Part::Type), text)
    } else if let Some(text) = text.strip_prefix("code:") {
        (Some(Part::Code), text)
    } else {
        (None, text)
    }
}

/// The hashes of a word with one of its letters left out.
fn without_one_letter(word: &str) -> impl Iterator<Item = u64> {
    word.char_indices().map(|(at, c)| {
        let (before, after) = (word.get(..at), word.get(at + c.len_utf8()..));
        hash_on(hash(before.unwrap_or_default()), after.unwrap_or_default())
    })
}

/// All rules that apply to these words. Misspelt phrases count only if no likely rule was found.
pub(super) fn hits(words: &Words) -> Vec<Hit> {
    let index = &*INDEX;
    let hashes: Vec<u64> = words.list.iter().map(|word| word.hash).collect();
    let mut hits = Vec::new();
    for (at, word) in words.list.iter().enumerate() {
        look_up(index, &words.list, &hashes, at, word.hash, false, &mut hits);
    }
    if hits.iter().all(|hit: &Hit| hit.weight < Strength::Likely.weight()) {
        respell(index, words, hashes, &mut hits);
    }
    hits
}

/// Searches again with misspelt words corrected.
fn respell(index: &Index, words: &Words, mut hashes: Vec<u64>, hits: &mut Vec<Hit>) {
    let mut changed = Vec::new();
    let unknown = words.list.iter().enumerate().filter(|(_, word)| {
        let letters = words.text(word);
        word.kind == Kind::Plain
            && (SPELT_FROM - 1..=20).contains(&letters.len())
            && !index.known.contains_key(&word.hash)
    });
    for (at, word) in unknown.take(SPELLING_TRIES_MAX) {
        if let (Some(right), Some(slot)) = (index.correct(words.text(word)), hashes.get_mut(at)) {
            *slot = right;
            changed.push(at);
        }
    }
    for at in changed {
        // The key word of a phrase may be a neighbour of the misspelt word.
        for near in at.saturating_sub(2)..=at + 2 {
            if let Some(hash) = hashes.get(near) {
                look_up(index, &words.list, &hashes, near, *hash, true, hits);
            }
        }
    }
}

/// Adds the rules whose phrases contain the word at this position.
fn look_up(
    index: &Index,
    list: &[Word],
    hashes: &[u64],
    at: usize,
    hash: u64,
    respelt: bool,
    hits: &mut Vec<Hit>,
) {
    let Some(part) = list.get(at).map(|word| word.part) else { return };
    if let Some(phrase) = index.glued.get(&hash).and_then(|number| index.phrases.get(*number)) {
        hits.push(hit(phrase, Closeness::Exact, part));
    }
    let keyed = index.by_word.get(&hash).into_iter().flatten();
    for phrase in keyed.filter_map(|number| index.phrases.get(*number)) {
        if phrase.part.is_some_and(|wanted| wanted != part) {
            continue;
        }
        let same_part = |from: usize, len: usize| {
            list.get(from..from + len).is_some_and(|words| words.iter().all(|word| word.part == part))
        };
        let len = phrase.words.len();
        let from = at.checked_sub(phrase.key).filter(|from| same_part(*from, len));
        let exact = from.is_some_and(|from| hashes.get(from..from + len) == Some(phrase.words.as_slice()));
        if exact {
            hits.push(hit(phrase, if respelt { Closeness::Similar } else { Closeness::Exact }, part));
        } else if phrase.loose {
            let from = at.saturating_sub(len + SLACK - 1);
            let to = (at + len + SLACK).min(list.len());
            let near = hashes.get(from..to).unwrap_or_default();
            if same_part(from, to - from) && phrase.words.iter().all(|word| near.contains(word)) {
                hits.push(hit(phrase, Closeness::Similar, part));
            }
        }
    }
}

fn hit(phrase: &Phrase, closeness: Closeness, part: Part) -> Hit {
    let (in_code, certain) = (part == Part::Code, phrase.rule.strength == Strength::Certain);
    let rule = phrase.rule;
    // A single word says less than a phrase, unless it is in a type or code.
    let weight = match (closeness, phrase.words.len()) {
        (Closeness::Exact, 0 | 1) if phrase.part.is_none() && !in_code && !certain => {
            rule.strength.weight() * 0.75
        }
        (Closeness::Exact, 0..=2) => rule.strength.weight() + 0.3,
        (Closeness::Exact, 3) => rule.strength.weight() + 0.6,
        (Closeness::Exact, _) => rule.strength.weight() + 0.9,
        (Closeness::Similar, _) => rule.strength.weight() * 0.6,
    };
    let reason = Reason::Says(phrase.text, closeness, rule.means);
    Hit { category: rule.category, route: rule.route, weight, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn phrases_are_unique_and_never_mean_what_only_statistics_show() {
        let mut seen: BTreeMap<(Option<&str>, Vec<u64>), &str> = BTreeMap::new();
        for rule in rules() {
            assert!(!rule.says.is_empty() && !rule.means.is_empty());
            assert!(rule.category.is_some() || rule.route.is_some(), "{:?}", rule.says);
            assert!(!matches!(rule.category, Some(Category::Systematic | Category::Poison)));
            assert_ne!(rule.route, Some(Route::Poison));
            for text in rule.says {
                let (part, phrase) = stripped(text);
                let words: Vec<u64> = Words::of_phrase(phrase).list.iter().map(|w| w.hash).collect();
                assert!((1..=7).contains(&words.len()), "{text}");
                let part = part.map(|p| if p == Part::Type { "type" } else { "code" });
                let before = seen.insert((part, words), text);
                assert!(before.is_none(), "{text} and {before:?} are the same phrase");
            }
        }
        assert!(seen.len() > 600, "{}", seen.len());
    }

    fn found(message: &str) -> Vec<String> {
        let error = crate::failure::ErrorInfo { message: message.into(), ..Default::default() };
        hits(&Words::of(&error)).iter().map(|hit| hit.reason.text()).collect()
    }

    #[test]
    fn a_phrase_is_found_in_every_spelling() {
        for text in
            ["Connection refused", "CONNECTION_REFUSED", "dial: connectionrefused", "ConnectionRefused"]
        {
            assert!(found(text).iter().any(|r| r.starts_with("says \"connection refused\"")), "{text}");
        }
    }

    #[test]
    fn a_misspelt_or_reordered_phrase_is_found_with_less_weight() {
        for text in ["conection refused", "connection refussed by host", "peer refused the connection"] {
            let reasons = found(text);
            assert!(
                reasons.iter().any(|r| r.starts_with("says nearly \"connection refused\"")),
                "{reasons:?}"
            );
        }
    }
}
