//! Cuts an error into words, in the same way for the table, for the trained model and for its training. A name gives
//! the same words in any spelling: `ConnectionRefused`, `CONNECTION_REFUSED`, `connection-refused`.
//!
//! It must not look at more than a bounded part of the error, fail on any input, or judge anything.

use crate::failure::ErrorInfo;
use crate::signature::{head, tail};

/// How many bytes are read from the beginning of each text, where the cause is usually named.
const HEAD_BYTES_MAX: usize = 768;
/// How many bytes are read from the end of a longer text: chained errors name the innermost cause last.
const TAIL_BYTES_MAX: usize = 256;
/// How many bytes of a type or code are read: they are names, not texts.
const NAME_BYTES_MAX: usize = 160;
/// The maximum number of words of each part, so that the time for one error is bounded.
const WORDS_MAX: usize = 160;
/// The length from which on the stem of a word is a feature of its own.
const STEM_FROM: usize = 6;
/// The length of that stem: `decode`, `decoder` and `decoding` share it.
const STEM: usize = 5;

/// The part of an error that a word comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The type or class name.
    Type,
    /// The code.
    Code,
    /// The message.
    Message,
    /// The underlying error.
    Cause,
}

/// The kind of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Letters, possibly with a few digits.
    Plain,
    /// Digits only.
    Number,
    /// A value: hexadecimal, or letters and digits mixed like an id.
    Id,
    /// A path or a URL, whatever it contains.
    Path,
}

/// One word, in lower case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    /// The hash of its letters.
    pub hash: u64,
    start: usize,
    end: usize,
    /// The part of the error it comes from.
    pub part: Part,
    /// Its kind.
    pub kind: Kind,
}

/// The words of an error.
#[derive(Debug, Default)]
pub(super) struct Words {
    letters: String,
    /// The words, in order: type, code, message, cause.
    pub list: Vec<Word>,
}

impl Words {
    /// The words of an error.
    pub(super) fn of(error: &ErrorInfo) -> Self {
        let mut words = Self { letters: String::with_capacity(512), list: Vec::with_capacity(64) };
        words.add(head(&error.error_type, NAME_BYTES_MAX), Part::Type);
        words.add(head(error.code.as_deref().unwrap_or_default(), NAME_BYTES_MAX), Part::Code);
        words.add_long(&error.message, Part::Message);
        words.add_long(error.cause.as_deref().unwrap_or_default(), Part::Cause);
        words
    }

    /// The words of a phrase of the table.
    pub(super) fn of_phrase(text: &str) -> Self {
        let mut words = Self::default();
        words.add(text, Part::Message);
        words
    }

    /// The text of a word.
    pub(super) fn text(&self, word: &Word) -> &str {
        self.letters.get(word.start..word.end).unwrap_or_default()
    }

    fn add_long(&mut self, text: &str, part: Part) {
        if text.len() <= HEAD_BYTES_MAX + TAIL_BYTES_MAX {
            self.add(text, part);
        } else {
            self.add(head(text, HEAD_BYTES_MAX), part);
            self.add(tail(text, TAIL_BYTES_MAX), part);
        }
    }

    fn add(&mut self, text: &str, part: Part) {
        let mut chars = text.char_indices().peekable();
        let mut start = self.letters.len();
        let mut before = ' ';
        let words_max = self.list.len() + WORDS_MAX;
        // A path is skipped as a whole up to here: its words are arbitrary names.
        let mut skip_to = 0;
        while let Some((at, c)) = chars.next() {
            if at < skip_to {
                continue;
            }
            let next = chars.peek().map_or(' ', |(_, next)| *next);
            if c == '/' && starts_path(before, next) {
                self.close(start, part);
                let rest = text.get(at..).unwrap_or_default();
                skip_to = at + rest.find(ends_path).unwrap_or(rest.len());
                self.push_path(part);
                start = self.letters.len();
            } else if c.is_alphanumeric() {
                let hump = before.is_lowercase() && c.is_uppercase();
                let acronym = before.is_uppercase() && c.is_uppercase() && next.is_lowercase();
                if hump || acronym {
                    self.close(start, part);
                    start = self.letters.len();
                }
                if c.is_ascii() {
                    self.letters.push(c.to_ascii_lowercase());
                } else {
                    self.letters.extend(c.to_lowercase());
                }
            } else if !((c == '\'' || c == '’') && before.is_alphabetic() && next.is_alphabetic()) {
                // An apostrophe inside a word is left out, so that "can't" and "cant" are one word.
                self.close(start, part);
                start = self.letters.len();
            }
            before = c;
            if self.list.len() >= words_max {
                return;
            }
        }
        self.close(start, part);
    }

    /// Ends the word that began at `start`, if it is not empty.
    fn close(&mut self, start: usize, part: Part) {
        let end = self.letters.len();
        let Some(text) = self.letters.get(start..end).filter(|text| !text.is_empty()) else { return };
        let (kind, hash) = (kind(text), hash(text));
        self.list.push(Word { hash, start, end, part, kind });
    }

    fn push_path(&mut self, part: Part) {
        let at = self.letters.len();
        self.list.push(Word { hash: PATH, start: at, end: at, part, kind: Kind::Path });
    }

    /// The features for the trained model: each word, pairs of neighbours, stems of long words, and the part that a
    /// word comes from if that matters. Sorted, without duplicates.
    pub(super) fn features(&self) -> Vec<u32> {
        let mut found = Vec::with_capacity(self.list.len() * 4 + 1);
        found.push(fold(hash("(always)")));
        let mut previous: Option<(u64, Part)> = None;
        for word in &self.list {
            let text = self.text(word);
            let value = value_of(word, text);
            found.push(fold(value));
            match word.part {
                Part::Type => found.push(fold(mix(value, 1))),
                Part::Code => {
                    found.push(fold(mix(value, 2)));
                    found.push(fold(mix(word.hash, 3)));
                }
                Part::Message | Part::Cause => {}
            }
            if word.kind == Kind::Plain
                && text.len() >= STEM_FROM
                && let Some(stem) = text.get(..STEM)
            {
                found.push(fold(mix(hash(stem), 4)));
            }
            if let Some((before, part)) = previous
                && part == word.part
            {
                found.push(fold(mix(before.rotate_left(7) ^ value, 5)));
            }
            previous = Some((value, word.part));
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn starts_path(before: char, next: char) -> bool {
    let opens = before.is_whitespace() || ['"', '\'', '`', '(', '=', ':', '[', '<'].contains(&before);
    opens && (next.is_alphanumeric() || next == '/' || next == '_' || next == '.')
}

fn ends_path(c: char) -> bool {
    c.is_whitespace() || ['"', '\'', '`', ')', ',', ';', ']', '>'].contains(&c)
}

/// The hash that stands for any path.
const PATH: u64 = hash("(path)");

/// The FNV-1a hash of a text: fast for short texts, and the same on every machine.
pub(super) const fn hash(text: &str) -> u64 {
    hash_on(0xcbf2_9ce4_8422_2325, text)
}

/// Continues a hash with another text.
pub(super) const fn hash_on(mut hash: u64, text: &str) -> u64 {
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        hash = (hash ^ *first as u64).wrapping_mul(0x0100_0000_01b3);
        rest = after;
    }
    hash
}

/// The hash of the same word in another role.
const fn mix(hash: u64, role: u64) -> u64 {
    (hash ^ role.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd)
}

/// Combines the upper and the lower half.
const fn fold(hash: u64) -> u32 {
    ((hash ^ (hash >> 32)) & 0xffff_ffff) as u32
}

fn kind(text: &str) -> Kind {
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    if digits == text.len() {
        Kind::Number
    } else if (digits >= 2 && text.len() >= 8) || (text.starts_with("0x") && digits >= 1) {
        Kind::Id
    } else {
        Kind::Plain
    }
}

/// The hash of a word as a feature: numbers by their size and HTTP class, ids and paths only as such.
fn value_of(word: &Word, text: &str) -> u64 {
    match word.kind {
        Kind::Plain => word.hash,
        Kind::Path => PATH,
        Kind::Id => const { hash("(id)") },
        Kind::Number => match (text.len(), text.bytes().next()) {
            (3, Some(b'4')) => const { hash("(4xx)") },
            (3, Some(b'5')) => const { hash("(5xx)") },
            (1..=3, _) => const { hash("(few)") },
            _ => const { hash("(many)") },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let words = Words::of_phrase(text);
        words.list.iter().map(|w| words.text(w).to_owned()).collect()
    }

    #[test]
    fn a_name_gives_the_same_words_in_any_spelling() {
        let wanted = ["connection", "refused", "error"];
        for text in ["ConnectionRefusedError", "CONNECTION_REFUSED_ERROR", "connection-refused  error:"] {
            assert_eq!(words(text), wanted, "{text}");
        }
        assert_eq!(words("HTTPError IOException"), ["http", "error", "io", "exception"]);
        assert_eq!(words("can't ECONNRESET"), ["cant", "econnreset"]);
        assert_eq!(words("java.lang.NullPointerException"), ["java", "lang", "null", "pointer", "exception"]);
    }

    #[test]
    fn paths_and_addresses_are_one_word_each() {
        assert_eq!(words("open '/etc/app/timeout.yaml': denied"), ["open", "", "denied"]);
        assert_eq!(words("disconnect/reset"), ["disconnect", "reset"]);
        let url = words("GET https://api.example.com/v1/timeout failed");
        assert_eq!(url, ["get", "https", "", "failed"]);
    }

    #[test]
    fn any_text_is_cut_into_few_words() {
        for text in ["", "\u{0}\u{1}\u{7f}", "ÄÖÜßİ ŉ", "a b ", "/", "//", "'", "''a''"] {
            let error = ErrorInfo { message: text.repeat(300_000), ..ErrorInfo::default() };
            let words = Words::of(&error);
            assert!(words.list.len() <= 2 * WORDS_MAX + 2);
            assert!(words.features().len() <= 10 * WORDS_MAX + 20);
        }
    }

    #[test]
    fn the_end_of_a_long_text_counts() {
        let message = format!("{} caused by: Connection refused", "frame ".repeat(100_000));
        let words = Words::of(&ErrorInfo { message, ..ErrorInfo::default() });
        assert!(words.list.iter().any(|w| words.text(w) == "refused"));
    }
}
