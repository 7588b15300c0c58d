//! The text index: the document that it keeps of a letter, and the trigrams that such a document must contain for a
//! filter to match. Both are folded the same way, so that a letter that matches is always found: the index only narrows
//! the candidates, and the evaluator decides. Trigrams are the unit because substring indexes are made of them.

use super::Filter;
use super::field::Field;
use super::json::{Decimal, JsonTest};
use super::parser::{Expr, Term, Test};
use super::pattern::{Pattern, fold};
use crate::failure::ErrorInfo;
use crate::limits;

/// Marks the document of a letter whose payload is missing from it or incomplete.
const PAYLOAD_MISSING: &str = "\u{2}\u{2}\u{2}";
/// Marks the document of a letter whose payload may spell a value differently from a filter: escapes in strings, or
/// whole numbers with a fraction or an exponent.
const PAYLOAD_ODD: &str = "\u{3}\u{3}\u{3}";
/// Marks the document of a letter that could not be read: every search must find it.
const UNREADABLE: &str = "\u{4}\u{4}\u{4}";

/// What a document must contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrigramQuery {
    /// All of these.
    All(Vec<Self>),
    /// Any of these.
    Any(Vec<Self>),
    /// Three characters in a row, folded.
    Trigram(String),
}

/// The document of a letter, from which the text index is made. `payload` is `None` unless its queue indexes payloads.
#[must_use]
pub fn document(error: &ErrorInfo, payload: Option<&[u8]>) -> String {
    let mut text = String::new();
    for part in [error.error_type.as_str(), error.code.as_deref().unwrap_or_default(), error.message.as_str()]
    {
        text.push_str(&fold(part));
        text.push('\n');
    }
    match payload {
        Some(bytes) if bytes.len() <= limits::INDEX_PAYLOAD_BYTES_MAX => {
            text.push_str(&fold(&String::from_utf8_lossy(bytes)));
            text.push('\n');
            if !is_plain(bytes) {
                text.push_str(PAYLOAD_ODD);
            }
        }
        Some(_) | None => text.push_str(PAYLOAD_MISSING),
    }
    without_nul(&text)
}

/// The document of a letter that cannot be read.
#[must_use]
pub fn unreadable_document() -> String {
    UNREADABLE.to_owned()
}

/// Replaces NULs, at which indexes end a text, by spaces; that is good enough for narrowing.
fn without_nul(text: &str) -> String {
    text.replace('\0', " ")
}

/// Whether the values of a JSON payload are spelled in it as a filter would spell them.
fn is_plain(bytes: &[u8]) -> bool {
    if bytes.contains(&b'\\') || std::str::from_utf8(bytes).is_err() {
        return false;
    }
    // Without escapes every quote begins or ends a string, so numbers are in every other part.
    let outside = bytes.split(|b| *b == b'"').step_by(2);
    let is_of_number = |b: &u8| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    let mut numbers = outside.flat_map(|part| part.split(|b| !is_of_number(b)));
    numbers.all(|number| {
        let is_integer = number.iter().all(|b| b.is_ascii_digit() || *b == b'-');
        let text = std::str::from_utf8(number).unwrap_or_default();
        is_integer || Decimal::parse(text).is_none_or(|n| !n.is_whole())
    })
}

impl Filter {
    /// What the document of every matching letter contains, or `None` if nothing can be required. `payloads` says
    /// whether any documents contain payloads: if none does, searching them would find every letter.
    #[must_use]
    pub fn trigram_query(&self, payloads: bool) -> Option<TrigramQuery> {
        let found = self.expr.as_ref().and_then(|expr| of_expr(expr, payloads))?;
        if found.count() > limits::FILTER_TRIGRAMS_MAX {
            return None;
        }
        Some(TrigramQuery::Any(vec![found, TrigramQuery::Trigram(UNREADABLE.into())]))
    }
}

impl TrigramQuery {
    /// The number of trigrams.
    fn count(&self) -> usize {
        match self {
            Self::All(parts) | Self::Any(parts) => parts.iter().map(Self::count).sum(),
            Self::Trigram(_) => 1,
        }
    }
}

fn of_expr(expr: &Expr, payloads: bool) -> Option<TrigramQuery> {
    match expr {
        Expr::All(parts) => all(parts.iter().filter_map(|part| of_expr(part, payloads)).collect()),
        Expr::Any(parts) => any(parts.iter().map(|part| of_expr(part, payloads))),
        Expr::Not(_) => None,
        Expr::Term(term) => of_term(term, payloads),
    }
}

fn of_term(term: &Term, payloads: bool) -> Option<TrigramQuery> {
    if term.negated {
        return None;
    }
    match (&term.field, &term.test) {
        (Field::Error | Field::Type | Field::Code, Test::Texts(patterns)) => {
            any(patterns.iter().map(of_pattern))
        }
        (Field::PayloadText, Test::Texts(patterns)) if payloads => {
            or_marked(any(patterns.iter().map(of_pattern))?, &[PAYLOAD_MISSING])
        }
        (Field::Payload(_), Test::Json(tests)) if payloads => {
            or_marked(any(tests.iter().map(of_json_test))?, &[PAYLOAD_MISSING, PAYLOAD_ODD])
        }
        (_, _) => None,
    }
}

/// Also accepts documents with one of these marks.
fn or_marked(found: TrigramQuery, marks: &[&str]) -> Option<TrigramQuery> {
    let marks = marks.iter().map(|mark| TrigramQuery::Trigram((*mark).to_owned()));
    Some(TrigramQuery::Any(std::iter::once(found).chain(marks).collect()))
}

fn of_json_test(test: &JsonTest) -> Option<TrigramQuery> {
    match test {
        JsonTest::Text(pattern) | JsonTest::Unquoted(pattern, None) => of_pattern(pattern),
        // The same number may be written in other ways; payloads in which a whole number is are marked.
        JsonTest::Unquoted(pattern, Some(number)) if number.is_whole() => {
            let text = pattern.as_exact()?;
            let is_integer = text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
            if is_integer { of_pattern(pattern) } else { None }
        }
        JsonTest::Unquoted(_, Some(_)) | JsonTest::Between(..) => None,
    }
}

fn of_pattern(pattern: &Pattern) -> Option<TrigramQuery> {
    all(pattern.pieces().iter().filter_map(|piece| of_piece(&without_nul(&fold(piece)))).collect())
}

/// Some trigrams of a piece, spread over it: further ones cost more than they rule out.
fn of_piece(piece: &str) -> Option<TrigramQuery> {
    let chars: Vec<char> = piece.chars().collect();
    let mut trigrams: Vec<String> = chars.windows(3).map(|three| three.iter().collect()).collect();
    trigrams.dedup();
    let step = trigrams.len().div_ceil(limits::TEXT_TRIGRAMS_MAX).max(1);
    all(trigrams.into_iter().step_by(step).map(TrigramQuery::Trigram).collect())
}

fn all(mut parts: Vec<TrigramQuery>) -> Option<TrigramQuery> {
    match parts.len() {
        0 => None,
        1 => parts.pop(),
        _ => Some(TrigramQuery::All(parts)),
    }
}

fn any(parts: impl Iterator<Item = Option<TrigramQuery>>) -> Option<TrigramQuery> {
    let mut parts: Vec<TrigramQuery> = parts.collect::<Option<_>>()?;
    if parts.len() > 1 { Some(TrigramQuery::Any(parts)) } else { parts.pop() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(document: &str, query: &TrigramQuery) -> bool {
        match query {
            TrigramQuery::All(parts) => parts.iter().all(|part| contains(document, part)),
            TrigramQuery::Any(parts) => parts.iter().any(|part| contains(document, part)),
            TrigramQuery::Trigram(trigram) => document.contains(trigram.as_str()),
        }
    }

    fn error(message: &str) -> ErrorInfo {
        ErrorInfo { error_type: "HttpError".into(), message: message.into(), ..ErrorInfo::default() }
    }

    fn finds(filter: &str, message: &str, payload: Option<&[u8]>) -> bool {
        let query = Filter::parse(filter).unwrap().trigram_query(true).unwrap_or_else(|| panic!("{filter}"));
        contains(&document(&error(message), payload), &query)
    }

    #[test]
    fn every_match_is_found_and_little_else() {
        assert!(finds("TIMED*out", "upstream timed out\0 after", None));
        assert!(finds("\"out\0 af\"", "upstream timed out\0 after", None));
        assert!(!finds("refused", "upstream timed out", None));
        assert!(finds("type:Http*", "x", None) && !finds("type:Grpc*", "x", None));
        assert!(finds("refused or timed", "upstream timed out", None));
        assert!(finds("timed not refused queue:x", "upstream timed out", None));
        let query = Filter::parse("refused").unwrap().trigram_query(true).unwrap();
        assert!(contains(&unreadable_document(), &query));
    }

    #[test]
    fn payloads_are_found_however_they_are_written() {
        let order = r#"{"order":{"id":4411,"note":"Grün"}}"#.as_bytes();
        assert!(finds("payload.order.id:4411", "x", Some(order)));
        assert!(!finds("payload.order.id:4412", "x", Some(order)));
        assert!(finds("payload.order.note:Grün payload:grün", "x", Some(order)));
        assert!(!finds("payload:blau", "x", Some(order)));
        for odd in [&br#"{"id":4412.0}"#[..], br#"{"id":44.12e2}"#, br#"{"id":"\u0034412"}"#, b"\xff 4412"] {
            assert!(finds("payload.id:4412", "x", Some(odd)), "{odd:?}");
        }
        assert!(!finds("payload.id:4412", "x", Some(br#"{"id":7,"price":12.5}"#)));
        let long = vec![b'a'; limits::INDEX_PAYLOAD_BYTES_MAX + 1];
        assert!(finds("payload:zzz", "x", None) && finds("payload.id:4412 payload:zzz", "x", Some(&long)));
    }

    #[test]
    fn filters_that_require_no_trigram_have_no_query() {
        for text in
            ["", "queue:a", "ab", "a*b", "not timeout", "error!=timeout", "timeout or queue:a", "payload.a>3"]
        {
            assert_eq!(Filter::parse(text).unwrap().trigram_query(true), None, "{text}");
        }
        for text in ["payload.a:1.50", "payload.a:1e4", "payload.a:*", "payload.a:12*", "payload.a:..7"] {
            assert_eq!(Filter::parse(text).unwrap().trigram_query(true), None, "{text}");
        }
        assert_eq!(Filter::parse("payload:abc").unwrap().trigram_query(false), None);
        let many: Vec<String> = (0..100).map(|n| format!("abcdefghijklmnopqrstuvwxyz{n}")).collect();
        assert_eq!(Filter::parse(&many.join(" or ")).unwrap().trigram_query(true), None);
    }
}
