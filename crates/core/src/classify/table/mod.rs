//! The table of known errors: phrases and codes with what they mean, grouped by where they come from. The
//! files beside this one are the table; here is how it is searched.
//!
//! A phrase is found in any spelling (`disk full`, `DiskFull`, `DISK_FULL`, `diskfull`), and, more weakly, when
//! its words are misspelt or stand in another order. Several may be found: the surest wins, among equals the
//! longest. The table must not say *systematic* or *poison*: those are seen only in many failures.

mod cloud;
mod codes;
mod databases;
mod languages;
mod platforms;
mod transport;

use super::tokens::{Kind, Place, Word, Words, hash, hash_on};
use crate::failure::{Category, Route};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::LazyLock;

pub(super) use codes::coded;

/// How much a rule is trusted against others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strength {
    /// It leans that way, when nothing else is said.
    Hint,
    /// It usually means that.
    Likely,
    /// It means that, whatever else is said.
    Sure,
    /// The same, even if something sure is said besides: the more special case of it.
    Certain,
}

impl Strength {
    /// What it adds to a score; the model's scores are of the same kind and rarely differ by more than 6.
    const fn weight(self) -> f32 {
        match self {
            Self::Hint => 1.5,
            Self::Likely => 4.0,
            Self::Sure => 7.5,
            Self::Certain => 12.5,
        }
    }
}

/// Phrases with one meaning. In front of a phrase, `type:` or `code:` says where alone it counts.
#[derive(Debug)]
pub(super) struct Rule {
    pub strength: Strength,
    pub category: Option<Category>,
    pub route: Option<Route>,
    /// For people: `says "…": <means>`.
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

/// A line that tells only the one or the other.
const fn lean(
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

/// How a rule was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Word for word, in any spelling of names.
    Exactly,
    /// With a misspelt word, or the words in another order.
    Similarly,
}

/// A rule that applies.
#[derive(Clone, Debug)]
pub(super) struct Hit {
    pub category: Option<Category>,
    pub route: Option<Route>,
    /// What it adds to the score of its category and route.
    pub weight: f32,
    /// For people.
    pub reason: Reason,
}

/// Why a rule applies; written out only for those that are told.
#[derive(Clone, Debug)]
pub(super) enum Reason {
    /// A phrase of the table.
    Says(&'static str, Found, &'static str),
    /// A code of the table: what kind of code, the code, what it means.
    Coded(&'static str, String, &'static str),
}

impl Reason {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Says(phrase, Found::Exactly, means) => format!("says \"{phrase}\": {means}"),
            Self::Says(phrase, Found::Similarly, means) => format!("says nearly \"{phrase}\": {means}"),
            Self::Coded(kind, code, means) => format!("{kind} {code}: {means}"),
        }
    }
}

struct Phrase {
    words: Vec<u64>,
    /// Which of the words is looked up.
    key: usize,
    place: Option<Place>,
    /// Whether its words are telling enough to be looked for in another order.
    loose: bool,
    rule: &'static Rule,
    text: &'static str,
}

/// Word hashes are hashes already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
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

type ByHash<V> = HashMap<u64, V, BuildHasherDefault<AsItIs>>;

struct Index {
    phrases: Vec<Phrase>,
    /// Phrases by their key word.
    by_word: ByHash<Vec<usize>>,
    /// Phrases by their words written as one.
    glued: ByHash<usize>,
    /// Words of the table by themselves with one letter left out, for misspelt ones.
    misspelt: ByHash<u64>,
    /// All words of the table.
    known: ByHash<()>,
}

static INDEX: LazyLock<Index> = LazyLock::new(Index::build);

/// Letters from which on a word can be recognised although a letter is wrong.
const SPELT_FROM: usize = 6;
/// Words beside a phrase's length within which its words may stand.
const SLACK: usize = 1;
/// Unknown words that are tried for spelling, so that the time is bounded.
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
        let (place, text) = stripped(text);
        let words = Words::of_phrase(text);
        let hashes: Vec<u64> = words.list.iter().map(|word| word.hash).collect();
        let rarity = |at: &usize| hashes.get(*at).and_then(|hash| counts.get(hash)).copied();
        let Some(key) = (0..hashes.len()).min_by_key(rarity) else { return };
        let number = self.phrases.len();
        let letters: Vec<&str> = words.list.iter().map(|word| words.text(word)).collect();
        if letters.len() > 1 && place.is_none() {
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
        self.phrases.push(Phrase { words: hashes, key, place, loose, rule, text });
    }

    /// A word of the table that this one probably is: one letter too many, too few, or another.
    fn respelt(&self, letters: &str) -> Option<u64> {
        let fits = |hash: &u64| self.misspelt.get(hash).copied();
        fits(&hash(letters)).or_else(|| without_one_letter(letters).find_map(|shorter| fits(&shorter)))
    }
}

/// Where a phrase counts, and the phrase.
fn stripped(text: &'static str) -> (Option<Place>, &'static str) {
    if let Some(text) = text.strip_prefix("type:") {
        (Some(Place::Type), text)
    } else if let Some(text) = text.strip_prefix("code:") {
        (Some(Place::Code), text)
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

/// Every rule that applies to these words; phrases that are misspelt only if nothing else is sure.
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

/// Looks again with misspelt words put right.
fn respell(index: &Index, words: &Words, mut hashes: Vec<u64>, hits: &mut Vec<Hit>) {
    let mut changed = Vec::new();
    let unknown = words.list.iter().enumerate().filter(|(_, word)| {
        let letters = words.text(word);
        word.kind == Kind::Plain
            && (SPELT_FROM - 1..=20).contains(&letters.len())
            && !index.known.contains_key(&word.hash)
    });
    for (at, word) in unknown.take(SPELLING_TRIES_MAX) {
        if let (Some(right), Some(slot)) = (index.respelt(words.text(word)), hashes.get_mut(at)) {
            *slot = right;
            changed.push(at);
        }
    }
    for at in changed {
        // The word that is looked up may be a neighbour of the one that was misspelt.
        for near in at.saturating_sub(2)..=at + 2 {
            if let Some(hash) = hashes.get(near) {
                look_up(index, &words.list, &hashes, near, *hash, true, hits);
            }
        }
    }
}

fn look_up(
    index: &Index,
    list: &[Word],
    hashes: &[u64],
    at: usize,
    hash: u64,
    respelt: bool,
    hits: &mut Vec<Hit>,
) {
    let Some(place) = list.get(at).map(|word| word.place) else { return };
    if let Some(phrase) = index.glued.get(&hash).and_then(|number| index.phrases.get(*number)) {
        hits.push(hit(phrase, Found::Exactly, place));
    }
    let keyed = index.by_word.get(&hash).into_iter().flatten();
    for phrase in keyed.filter_map(|number| index.phrases.get(*number)) {
        if phrase.place.is_some_and(|wanted| wanted != place) {
            continue;
        }
        let same_place = |from: usize, len: usize| {
            list.get(from..from + len).is_some_and(|part| part.iter().all(|word| word.place == place))
        };
        let len = phrase.words.len();
        let from = at.checked_sub(phrase.key).filter(|from| same_place(*from, len));
        let exact = from.is_some_and(|from| hashes.get(from..from + len) == Some(phrase.words.as_slice()));
        if exact {
            hits.push(hit(phrase, if respelt { Found::Similarly } else { Found::Exactly }, place));
        } else if phrase.loose {
            let from = at.saturating_sub(len + SLACK - 1);
            let to = (at + len + SLACK).min(list.len());
            let near = hashes.get(from..to).unwrap_or_default();
            if same_place(from, to - from) && phrase.words.iter().all(|word| near.contains(word)) {
                hits.push(hit(phrase, Found::Similarly, place));
            }
        }
    }
}

fn hit(phrase: &Phrase, found: Found, place: Place) -> Hit {
    let (in_code, certain) = (place == Place::Code, phrase.rule.strength == Strength::Certain);
    let rule = phrase.rule;
    // One word alone says less than a phrase, unless it stands where only names and codes do.
    let weight = match (found, phrase.words.len()) {
        (Found::Exactly, 0 | 1) if phrase.place.is_none() && !in_code && !certain => {
            rule.strength.weight() * 0.75
        }
        (Found::Exactly, 0..=2) => rule.strength.weight() + 0.3,
        (Found::Exactly, 3) => rule.strength.weight() + 0.6,
        (Found::Exactly, _) => rule.strength.weight() + 0.9,
        (Found::Similarly, _) => rule.strength.weight() * 0.6,
    };
    let reason = Reason::Says(phrase.text, found, rule.means);
    Hit { category: rule.category, route: rule.route, weight, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_table_says_each_phrase_once_and_never_what_only_statistics_can_say() {
        let mut seen: BTreeMap<(Option<&str>, Vec<u64>), &str> = BTreeMap::new();
        for rule in rules() {
            assert!(!rule.says.is_empty() && !rule.means.is_empty());
            assert!(rule.category.is_some() || rule.route.is_some(), "{:?}", rule.says);
            assert!(!matches!(rule.category, Some(Category::Systematic | Category::Poison)));
            assert_ne!(rule.route, Some(Route::Poison));
            for text in rule.says {
                let (place, phrase) = stripped(text);
                let words: Vec<u64> = Words::of_phrase(phrase).list.iter().map(|w| w.hash).collect();
                assert!((1..=7).contains(&words.len()), "{text}");
                let place = place.map(|p| if p == Place::Type { "type" } else { "code" });
                let before = seen.insert((place, words), text);
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
    fn a_misspelt_or_turned_phrase_is_found_but_counts_less() {
        for text in ["conection refused", "connection refussed by host", "peer refused the connection"] {
            let reasons = found(text);
            assert!(
                reasons.iter().any(|r| r.starts_with("says nearly \"connection refused\"")),
                "{reasons:?}"
            );
        }
    }
}
