//! Text that must stand in a letter for a filter to match it, and the document a text index keeps of a letter.
//! Both are made here and folded alike, so that a letter that matches is always found: an index by these only
//! narrows, and the evaluator decides. Three letters in a row are the unit, because that is what indexes of
//! substrings are made of.

use super::Filter;
use super::field::Field;
use super::json::{Decimal, Want};
use super::parser::{Expr, Term, Test};
use super::pattern::{Pattern, fold};
use crate::failure::ErrorInfo;
use crate::limits;

/// In the document of a letter whose payload is not in it, or not whole.
const PAYLOAD_MISSING: &str = "\u{2}\u{2}\u{2}";
/// In the document of a letter whose payload may say a thing in other letters than one would search for: escapes in
/// strings, whole numbers with a fraction or an exponent.
const PAYLOAD_ODD: &str = "\u{3}\u{3}\u{3}";
/// In the document of a letter that could not be read: whoever searches must meet it.
const UNREADABLE: &str = "\u{4}\u{4}\u{4}";

/// What a document must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wording {
    /// All of them.
    All(Vec<Self>),
    /// Any of them.
    Any(Vec<Self>),
    /// Three letters in a row, folded.
    Letters(String),
}

/// The document of a letter: what an index of its text is made from. `payload` where its queue wants it searched.
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
    plain_letters(&text)
}

/// The document of a letter that cannot be read.
#[must_use]
pub fn unreadable() -> String {
    UNREADABLE.to_owned()
}

/// Indexes end a text at a NUL; a blank does as well for narrowing.
fn plain_letters(text: &str) -> String {
    text.replace('\0', " ")
}

/// Whether what a JSON payload says stands in it as one would write it.
fn is_plain(bytes: &[u8]) -> bool {
    if bytes.contains(&b'\\') || std::str::from_utf8(bytes).is_err() {
        return false;
    }
    // Without escapes every quote begins or ends a string: numbers are in every other part.
    let outside = bytes.split(|b| *b == b'"').step_by(2);
    let is_of_number = |b: &u8| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    let mut numbers = outside.flat_map(|part| part.split(|b| !is_of_number(b)));
    numbers.all(|number| {
        let written_so = number.iter().all(|b| b.is_ascii_digit() || *b == b'-');
        let text = std::str::from_utf8(number).unwrap_or_default();
        written_so || Decimal::parse(text).is_none_or(|n| !n.is_whole())
    })
}

impl Filter {
    /// What the document of every letter that matches holds; nothing when that cannot be said. `payloads` is whether
    /// payloads are in any documents at all: where they are not, looking for them there would find every letter.
    #[must_use]
    pub fn wording(&self, payloads: bool) -> Option<Wording> {
        let found = self.expr.as_ref().and_then(|expr| of_expr(expr, payloads))?;
        if found.count() > limits::WORDING_MAX {
            return None;
        }
        Some(Wording::Any(vec![found, Wording::Letters(UNREADABLE.into())]))
    }
}

impl Wording {
    /// How many things are looked for.
    fn count(&self) -> usize {
        match self {
            Self::All(parts) | Self::Any(parts) => parts.iter().map(Self::count).sum(),
            Self::Letters(_) => 1,
        }
    }
}

fn of_expr(expr: &Expr, payloads: bool) -> Option<Wording> {
    match expr {
        Expr::All(parts) => all(parts.iter().filter_map(|part| of_expr(part, payloads)).collect()),
        Expr::Any(parts) => any(parts.iter().map(|part| of_expr(part, payloads))),
        Expr::Not(_) => None,
        Expr::Term(term) => of_term(term, payloads),
    }
}

fn of_term(term: &Term, payloads: bool) -> Option<Wording> {
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
        (Field::Payload(_), Test::Json(wants)) if payloads => {
            or_marked(any(wants.iter().map(of_want))?, &[PAYLOAD_MISSING, PAYLOAD_ODD])
        }
        (_, _) => None,
    }
}

fn or_marked(found: Wording, marks: &[&str]) -> Option<Wording> {
    let marks = marks.iter().map(|mark| Wording::Letters((*mark).to_owned()));
    Some(Wording::Any(std::iter::once(found).chain(marks).collect()))
}

fn of_want(want: &Want) -> Option<Wording> {
    match want {
        Want::Text(pattern) | Want::Reads(pattern, None) => of_pattern(pattern),
        // The same number may be written in other ways; a whole one is only in payloads that are marked.
        Want::Reads(pattern, Some(number)) if number.is_whole() => {
            let text = pattern.as_exact()?;
            let plainly = text.bytes().all(|b| b.is_ascii_digit() || b == b'-');
            if plainly { of_pattern(pattern) } else { None }
        }
        Want::Reads(_, Some(_)) | Want::Between(..) => None,
    }
}

fn of_pattern(pattern: &Pattern) -> Option<Wording> {
    all(pattern.pieces().iter().filter_map(|piece| of_piece(&plain_letters(&fold(piece)))).collect())
}

/// The threes of a piece, spread over it: more of them cost more than they rule out.
fn of_piece(piece: &str) -> Option<Wording> {
    let letters: Vec<char> = piece.chars().collect();
    let mut threes: Vec<String> = letters.windows(3).map(|three| three.iter().collect()).collect();
    threes.dedup();
    let step = threes.len().div_ceil(limits::WORDING_THREES).max(1);
    all(threes.into_iter().step_by(step).map(Wording::Letters).collect())
}

fn all(mut parts: Vec<Wording>) -> Option<Wording> {
    match parts.len() {
        0 => None,
        1 => parts.pop(),
        _ => Some(Wording::All(parts)),
    }
}

fn any(parts: impl Iterator<Item = Option<Wording>>) -> Option<Wording> {
    let mut parts: Vec<Wording> = parts.collect::<Option<_>>()?;
    if parts.len() > 1 { Some(Wording::Any(parts)) } else { parts.pop() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(wording: &Wording, document: &str) -> bool {
        match wording {
            Wording::All(parts) => parts.iter().all(|part| holds(part, document)),
            Wording::Any(parts) => parts.iter().any(|part| holds(part, document)),
            Wording::Letters(three) => document.contains(three.as_str()),
        }
    }

    fn error(message: &str) -> ErrorInfo {
        ErrorInfo { error_type: "HttpError".into(), message: message.into(), ..ErrorInfo::default() }
    }

    fn meets(filter: &str, message: &str, payload: Option<&[u8]>) -> bool {
        let wording = Filter::parse(filter).unwrap().wording(true).unwrap_or_else(|| panic!("{filter}"));
        holds(&wording, &document(&error(message), payload))
    }

    #[test]
    fn what_matches_is_met_and_little_else() {
        assert!(meets("TIMED*out", "upstream timed out\0 after", None));
        assert!(meets("\"out\0 af\"", "upstream timed out\0 after", None));
        assert!(!meets("refused", "upstream timed out", None));
        assert!(meets("type:Http*", "x", None) && !meets("type:Grpc*", "x", None));
        assert!(meets("refused or timed", "upstream timed out", None));
        assert!(meets("timed not refused queue:x", "upstream timed out", None));
        assert!(holds(&Filter::parse("refused").unwrap().wording(true).unwrap(), &unreadable()));
    }

    #[test]
    fn payloads_are_met_however_they_are_written() {
        let order = r#"{"order":{"id":4411,"note":"Grün"}}"#.as_bytes();
        assert!(meets("payload.order.id:4411", "x", Some(order)));
        assert!(!meets("payload.order.id:4412", "x", Some(order)));
        assert!(meets("payload.order.note:Grün payload:grün", "x", Some(order)));
        assert!(!meets("payload:blau", "x", Some(order)));
        for odd in [&br#"{"id":4412.0}"#[..], br#"{"id":44.12e2}"#, br#"{"id":"\u0034412"}"#, b"\xff 4412"] {
            assert!(meets("payload.id:4412", "x", Some(odd)), "{odd:?}");
        }
        assert!(!meets("payload.id:4412", "x", Some(br#"{"id":7,"price":12.5}"#)));
        let long = vec![b'a'; limits::INDEX_PAYLOAD_BYTES_MAX + 1];
        assert!(meets("payload:zzz", "x", None) && meets("payload.id:4412 payload:zzz", "x", Some(&long)));
    }

    #[test]
    fn what_cannot_be_said_is_not_said() {
        for text in
            ["", "queue:a", "ab", "a*b", "not timeout", "error!=timeout", "timeout or queue:a", "payload.a>3"]
        {
            assert_eq!(Filter::parse(text).unwrap().wording(true), None, "{text}");
        }
        for text in ["payload.a:1.50", "payload.a:1e4", "payload.a:*", "payload.a:12*", "payload.a:..7"] {
            assert_eq!(Filter::parse(text).unwrap().wording(true), None, "{text}");
        }
        assert_eq!(Filter::parse("payload:abc").unwrap().wording(false), None);
        let many: Vec<String> = (0..100).map(|n| format!("abcdefghijklmnopqrstuvwxyz{n}")).collect();
        assert_eq!(Filter::parse(&many.join(" or ")).unwrap().wording(true), None);
    }
}
