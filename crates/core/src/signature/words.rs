//! The words of a template as the tree compares them, and how much evidence each gives about its position in a line: a
//! name or a number means that the position varies, a verb or a state means that it does not.
//!
//! Only the words count. There is no dictionary here, just the shapes of words and the few common words of every log.

use super::MARKS;
use std::collections::HashSet;
use std::sync::LazyLock;

/// Stands for any varying part.
pub(super) const WILD: &str = "<*>";
/// How many words of a template are compared; what follows does not distinguish failures.
const WORDS_MAX: usize = 64;
/// The maximum length, in words, of a repeated list item.
const ITEM_WORDS_MAX: usize = 6;

/// A word of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// The word in the template.
    pub shown: String,
    /// The word as it is compared: without the kinds of its marks.
    pub plain: String,
    /// The text it was made from, if that is known.
    pub source: String,
}

impl Word {
    /// A word of a template whose source is not known.
    pub(super) fn of(shown: &str) -> Self {
        Self { shown: shown.to_owned(), plain: plain(shown), source: String::new() }
    }
}

/// The words of a template. A list of varying parts counts as one item, however long it is.
pub(super) fn words(template: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    for shown in template.split(' ').filter(|word| !word.is_empty()) {
        words.push(Word::of(shown));
        fold_list(&mut words);
        if words.len() >= WORDS_MAX {
            break;
        }
    }
    words
}

/// Drops the previous item of a list if the end repeats it and varies.
pub(super) fn fold_list(words: &mut Vec<Word>) {
    for len in 1..=ITEM_WORDS_MAX {
        let Some(start) = words.len().checked_sub(2 * len) else { return };
        let (Some(first), Some(second)) = (words.get(start..start + len), words.get(start + len..)) else {
            return;
        };
        let same = |(a, b): (&Word, &Word)| item(&a.plain) == item(&b.plain);
        let varies = second.iter().any(|word| word.plain.contains(WILD));
        if varies && first.iter().zip(second).all(same) {
            words.drain(start..start + len);
            return;
        }
    }
}

/// A list item without the punctuation after it.
fn item(word: &str) -> &str {
    word.trim_end_matches([',', ';', ']', ')', '.'])
}

/// A word without the kinds of its marks. Marks with only punctuation between them become one.
fn plain(shown: &str) -> String {
    let mut plain = String::with_capacity(shown.len());
    let mut rest = shown;
    // The number of bytes of punctuation since the last mark, if there is nothing else.
    let mut since_mark: Option<usize> = None;
    while let Some(first) = rest.chars().next() {
        let mark = if first == '<' { MARKS.iter().find(|mark| rest.starts_with(**mark)) } else { None };
        if let Some(mark) = mark {
            match since_mark {
                Some(len) => plain.truncate(plain.len() - len),
                None => {
                    if plain.ends_with('/') {
                        plain.pop();
                    }
                    plain.push_str(WILD);
                }
            }
            since_mark = Some(0);
            rest = rest.get(mark.len()..).unwrap_or_default();
        } else {
            let joint =
                matches!(first, '.' | ':' | '-' | '/' | '_' | '+' | '#' | ',' | '~' | '@' | 'x' | '*' | '|');
            since_mark = since_mark.filter(|_| joint).map(|len| len + first.len_utf8());
            plain.push(first);
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
        }
    }
    if matches!(plain.trim_end_matches([',', ';', ':', '.']), "()" | "[]" | "<>") {
        plain.insert_str(1, WILD);
        return plain;
    }
    // A missing value is a value.
    let body = plain.trim_end_matches([',', ';', ')', ']']);
    if body.len() > 1 && body.ends_with('=') && body.chars().next().is_some_and(char::is_alphanumeric) {
        let end = plain.get(body.len()..).unwrap_or_default().to_owned();
        plain.truncate(body.len());
        plain.push_str(WILD);
        plain.push_str(&end);
    }
    plain
}

/// The shape of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Only marks and punctuation.
    Wild,
    /// A word with a mark or a digit in it.
    Marked,
    /// `true`, `null` and the like.
    Literal,
    /// Joined by dots, slashes or colons.
    Joined,
    /// Lower case letters joined by underscores.
    Snake,
    /// A word in its own brackets.
    Bracketed,
    /// Mixed case, with capitals inside.
    Camel,
    /// Lower case.
    Lower,
    /// One capital at the beginning.
    Capital,
    /// A verb, by its ending.
    Verb,
    /// A function word or a state.
    Small,
    /// Upper case.
    Upper,
    /// An error, by its ending.
    Failure,
    /// No letter and no mark.
    Sign,
}

/// The evidence at which a position is considered to vary.
pub(super) const EVIDENCE_MIN: u32 = 1_000;

impl Shape {
    /// The shape of a word.
    pub(super) fn of(word: &str) -> Self {
        if word.contains(WILD) {
            let letters = word.replace(WILD, "").chars().filter(|c| c.is_alphanumeric()).count();
            return if letters == 0 { Self::Wild } else { Self::Marked };
        }
        let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
        if bare.is_empty() {
            return Self::Sign;
        }
        let lower = bare.to_lowercase();
        if matches!(lower.as_str(), "true" | "false" | "null" | "none" | "nil" | "yes" | "no") {
            return Self::Literal;
        }
        if ["exception", "error", "errors", "failure"].iter().any(|end| lower.ends_with(end)) {
            return Self::Failure;
        }
        if SMALL.contains(lower.as_str()) {
            return Self::Small;
        }
        if bare.chars().all(|c| c.is_ascii_lowercase() || c == '_') && bare.contains('_') {
            return Self::Snake;
        }
        if bare.contains(['.', '/', '_', ':', '\\', '@', '$', '=', '~', '#'])
            && bare.chars().any(char::is_lowercase)
        {
            return Self::Joined;
        }
        if word.starts_with(['(', '<']) && word.contains([')', '>']) {
            return Self::Bracketed;
        }
        if bare.chars().any(|c| c.is_ascii_digit()) {
            return Self::Marked;
        }
        let capitals = bare.chars().filter(|c| c.is_uppercase()).count();
        let starts = bare.starts_with(char::is_uppercase);
        if capitals > 1 || (capitals == 1 && !starts) {
            return if bare.chars().any(char::is_lowercase) { Self::Camel } else { Self::Upper };
        }
        if lower.len() > 4 && (lower.ends_with("ed") || lower.ends_with("ing")) {
            return Self::Verb;
        }
        if starts { Self::Capital } else { Self::Lower }
    }

    /// The evidence that one word of this shape adds for its position being one that varies.
    pub(super) fn weight(self) -> u32 {
        match self {
            Self::Wild | Self::Marked | Self::Bracketed => 500,
            Self::Literal => 400,
            Self::Joined | Self::Camel => 400,
            Self::Snake | Self::Lower | Self::Capital => 334,
            Self::Sign => 250,
            Self::Upper | Self::Failure => 100,
            Self::Verb => 90,
            Self::Small => 40,
        }
    }

    /// Whether a repetition of the word in another line is evidence that the lines belong together.
    pub(super) fn is_solid(self, word: &str) -> bool {
        match self {
            Self::Wild | Self::Sign => false,
            Self::Marked => word.replace(WILD, "").chars().filter(|c| c.is_alphabetic()).count() >= 3,
            Self::Literal
            | Self::Joined
            | Self::Snake
            | Self::Bracketed
            | Self::Camel
            | Self::Lower
            | Self::Capital
            | Self::Failure
            | Self::Verb
            | Self::Upper
            | Self::Small => true,
        }
    }
}

/// By how many percent the previous word scales the evidence.
pub(super) fn context(before: &str) -> u32 {
    let bare = before.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    if NAMING.contains(bare.as_str()) {
        return 230;
    }
    if before.ends_with('=') {
        return 230;
    }
    if PREPOSITIONS.contains(bare.as_str()) {
        return 140;
    }
    if before.ends_with(':') { 120 } else { 100 }
}

/// The key of `key:value` and the like: what comes before the last such sign in a word.
pub(super) fn key(word: &str) -> Option<&str> {
    let body = word.trim_end_matches(|c: char| !c.is_alphanumeric() && c != '>');
    let at = body.rfind([':', '=', '(', '[', '{'])?;
    let key = word.get(..=at)?;
    key.starts_with(char::is_alphanumeric).then_some(key)
}

/// Words that are followed by a name.
#[rustfmt::skip]
static NAMING: LazyLock<HashSet<&str>> = LazyLock::new(|| HashSet::from([
    "user", "username", "users", "login", "host", "hostname", "name", "named", "id", "file", "class", "table", "queue",
    "topic", "service", "driver", "device", "interface", "module", "package", "account", "group", "database", "db",
    "schema", "column", "field", "key", "job", "container", "pod", "namespace", "volume", "image", "bucket", "domain",
    "zone", "role", "method", "function", "command", "program", "daemon", "address", "component", "property",
    "attribute", "variable", "plugin", "extension", "action", "channel", "app", "application", "customer", "tenant",
    "index", "collection", "endpoint", "symbol", "library", "directory", "folder", "path", "url", "client", "consumer",
]));

/// Words that are often followed by a name.
#[rustfmt::skip]
static PREPOSITIONS: LazyLock<HashSet<&str>> = LazyLock::new(|| HashSet::from([
    "for", "from", "to", "by", "on", "at", "of", "with", "as", "into", "via", "against", "in", "using", "under", "is",
    "are", "was",
]));

/// Words that are not names: function words and states.
#[rustfmt::skip]
static SMALL: LazyLock<HashSet<&str>> = LazyLock::new(|| HashSet::from([
    "a", "an", "and", "are", "as", "at", "be", "been", "but", "by", "can", "cannot", "could", "did", "do", "does", "due",
    "for", "from", "had", "has", "have", "if", "in", "into", "is", "it", "its", "more", "my", "not", "of", "off", "on",
    "or", "out", "over", "so", "than", "that", "the", "their", "then", "there", "this", "to", "too", "under", "up",
    "was", "were", "when", "which", "while", "will", "with", "without", "would", "you", "your", "after", "before",
    "now", "still", "already", "down", "ok", "success", "successful", "successfully", "succeeded", "failed", "fail",
    "fails", "dead", "alive", "open", "opened", "close", "closed", "start", "stop", "started", "stopped", "start:",
    "available", "unavailable", "idle", "ready", "enabled", "disabled", "enable", "disable", "read", "write",
    "reading", "writing", "send", "sent", "receive", "received", "connect", "disconnect", "connected", "disconnected",
    "add", "added", "remove", "removed", "create", "created", "delete", "deleted", "lost", "found", "new", "old",
    "active", "inactive", "online", "offline", "warning", "info", "debug", "fatal", "critical", "begin", "end", "done",
    "complete", "completed", "incomplete", "valid", "invalid", "high", "low", "min", "max", "first", "last", "enter",
    "exit", "shutdown", "startup", "restart", "timeout", "refused", "denied", "granted", "accepted", "rejected",
    "get", "set", "put", "post", "input", "output", "local", "remote", "source", "target", "parent", "child", "all",
    "any", "every", "some", "only", "other", "another", "same", "next", "previous",
]));

#[cfg(test)]
mod tests {
    use super::*;

    fn plains(template: &str) -> Vec<String> {
        words(template).into_iter().map(|word| word.plain).collect()
    }

    #[test]
    fn kinds_of_marks_and_the_length_of_lists_do_not_matter() {
        for (a, b) in [
            ("at <ip>:<num> now", "at <host> now"),
            ("from /<ip>", "from <path>"),
            ("drop blk_<num>", "drop blk_<num> blk_<num> blk_<num>"),
            ("seen a-<num>, a-<num>, a-<num>.", "seen a-<num>."),
            ("map n<num> <hex> ok n<num> <hex> ok n<num> <hex> ok", "map n<num> <hex> ok"),
            ("name= uid=<num>", "name=<str> uid=<num>"),
        ] {
            assert_eq!(plains(a), plains(b));
        }
        assert_eq!(plains("very very good"), ["very", "very", "good"], "constant words are not a list");
    }

    #[test]
    fn shapes_distinguish_names_from_states() {
        for (word, shape) in [
            ("<*>,", Shape::Wild),
            ("blk_<*>", Shape::Marked),
            ("false", Shape::Literal),
            ("java.io.IOException:", Shape::Failure),
            ("org.acme.Foo", Shape::Joined),
            ("MapTask", Shape::Camel),
            ("webmaster", Shape::Lower),
            ("Oracle", Shape::Capital),
            ("resumed", Shape::Verb),
            ("LOOKING", Shape::Upper),
            ("closed", Shape::Small),
            ("--", Shape::Sign),
        ] {
            assert_eq!(Shape::of(word), shape, "{word}");
        }
    }
}
