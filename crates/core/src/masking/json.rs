//! Secrets in JSON: values of secret names, and strings and numbers that look like secrets. The text is walked once,
//! without recursion and without building a document. The result is a list of edits, so everything else stays bit for
//! bit.

use super::detect::card;
use super::{Detector, Edit, MARK, Rules, mark_of, text};
use std::borrow::Cow;

/// How deep JSON may be nested in strings of JSON; deeper levels are treated as text.
const NESTED_MAX: u8 = 3;

/// The edits that mask a document, in order; `None` if the text is not JSON (or lines of it).
pub(super) fn edits(rules: &Rules, text: &str, nested: u8) -> Option<Vec<Edit>> {
    let mut walk = Walk {
        rules,
        text,
        bytes: text.as_bytes(),
        at: 0,
        nested,
        stack: Vec::new(),
        edits: Vec::new(),
        hidden: None,
    };
    walk.run()?;
    Some(walk.edits)
}

/// What may come next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Value,
    /// The first name of an object, or its end.
    NameOrEnd,
    Name,
    /// The first item of a list, or its end.
    ItemOrEnd,
    /// A comma, or the end of the open object or list.
    Comma,
}

struct Walk<'a> {
    rules: &'a Rules,
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    nested: u8,
    /// The open objects (`true`) and lists (`false`).
    stack: Vec<bool>,
    edits: Vec<Edit>,
    /// The value that is secret as a whole: where it begins, and how many levels were open there.
    hidden: Option<(usize, usize)>,
}

impl<'a> Walk<'a> {
    fn byte(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    fn blanks(&mut self) {
        while matches!(self.byte(), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
    }

    fn run(&mut self) -> Option<()> {
        let (mut next, mut secret) = (Next::Value, false);
        let many = matches!(self.text.trim_start().as_bytes().first(), Some(b'{' | b'['));
        loop {
            self.blanks();
            if self.stack.is_empty() && next == Next::Comma {
                if self.at >= self.bytes.len() {
                    return Some(());
                }
                // Documents may follow each other, but words and numbers side by side are text.
                if !many || !matches!(self.byte(), b'{' | b'[') {
                    return None;
                }
                next = Next::Value;
            }
            if self.at >= self.bytes.len() {
                return None;
            }
            (next, secret) = match (next, self.byte()) {
                (Next::NameOrEnd, b'}') | (Next::ItemOrEnd, b']') => (self.close()?, false),
                (Next::NameOrEnd | Next::Name, b'"') => (Next::Value, self.name()?),
                (Next::NameOrEnd | Next::Name, _) => return None,
                (Next::Comma, b',') => {
                    self.at += 1;
                    (if *self.stack.last()? { Next::Name } else { Next::Value }, false)
                }
                (Next::Comma, b'}' | b']') => (self.close()?, false),
                (Next::Comma, _) => return None,
                (Next::Value | Next::ItemOrEnd, _) => (self.value(secret)?, false),
            };
        }
    }

    /// Handles the end of an object or a list.
    fn close(&mut self) -> Option<Next> {
        let object = self.stack.pop()?;
        if object != (self.byte() == b'}') {
            return None;
        }
        self.at += 1;
        if let Some((start, depth)) = self.hidden
            && self.stack.len() == depth
        {
            self.hidden = None;
            self.put(start, self.at, MARK);
        }
        Some(Next::Comma)
    }

    fn put(&mut self, start: usize, end: usize, mark: &str) {
        if self.hidden.is_none() {
            let with = format!("\"{mark}\"");
            if self.text.get(start..end) != Some(with.as_str()) {
                self.edits.push(Edit { range: start..end, with });
            }
        }
    }

    /// Reads a name and its colon. Returns whether the value is secret.
    fn name(&mut self) -> Option<bool> {
        let start = self.at;
        let string = self.string()?;
        self.mask_string(start, &string);
        self.blanks();
        if self.byte() != b':' {
            return None;
        }
        self.at += 1;
        Some(self.rules.keys.hides(&string.text).is_some())
    }

    fn value(&mut self, secret: bool) -> Option<Next> {
        let start = self.at;
        match self.byte() {
            b @ (b'{' | b'[') => {
                self.at += 1;
                if secret && self.hidden.is_none() && !self.closes_at_once() {
                    self.hidden = Some((start, self.stack.len()));
                }
                self.stack.push(b == b'{');
                return Some(if b == b'{' { Next::NameOrEnd } else { Next::ItemOrEnd });
            }
            b'"' => {
                let string = self.string()?;
                if !secret {
                    self.mask_string(start, &string);
                } else if !string.text.is_empty() {
                    self.put(start, self.at, MARK);
                }
            }
            b'-' | b'0'..=b'9' => {
                self.at += self
                    .rest()
                    .iter()
                    .take_while(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b))
                    .count();
                let number = self.bytes.get(start..self.at).unwrap_or_default();
                if !number.iter().all(|b| b.is_ascii_digit() || b"+-.eE".contains(b)) {
                    return None;
                }
                if secret {
                    self.put(start, self.at, MARK);
                } else if self.rules.uses(Detector::Card) && card(number) == Some(number.len()) {
                    self.put(start, self.at, &mark_of(Detector::Card));
                }
            }
            _ => {
                // `true`, `false` and `null` are not secrets.
                let word =
                    ["true", "false", "null"].into_iter().find(|w| self.rest().starts_with(w.as_bytes()))?;
                self.at += word.len();
            }
        }
        Some(Next::Comma)
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    fn closes_at_once(&self) -> bool {
        let first = self.rest().iter().find(|b| !b.is_ascii_whitespace());
        matches!(first, Some(b'}' | b']'))
    }

    /// Reads a string and moves behind it.
    fn string(&mut self) -> Option<Str<'a>> {
        let start = self.at + 1;
        let mut at = start;
        let mut escaped = false;
        loop {
            match self.bytes.get(at)? {
                b'"' => break,
                b'\\' => {
                    escaped = true;
                    at += 2;
                }
                _ => at += 1,
            }
        }
        self.at = at + 1;
        let raw = self.text.get(start..at)?;
        if escaped { Str::decode(raw) } else { Some(Str { text: Cow::Borrowed(raw), positions: Vec::new() }) }
    }

    /// Masks the secrets in a string that begins at `start`.
    fn mask_string(&mut self, start: usize, string: &Str<'_>) {
        if self.hidden.is_some() {
            return;
        }
        let content = &string.text;
        let inner = (self.nested < NESTED_MAX && content.trim_start().starts_with(['{', '[']))
            .then(|| edits(self.rules, content, self.nested + 1))
            .flatten();
        for edit in inner.unwrap_or_else(|| text::edits(self.rules, content)) {
            let (from, to) = (string.position(edit.range.start), string.position(edit.range.end));
            let range = start + 1 + from..start + 1 + to;
            self.edits.push(Edit { range, with: quoted(&edit.with) });
        }
    }
}

/// Escapes a text for use inside quotes.
fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

/// A decoded string of a document, with the original position of each byte.
struct Str<'a> {
    text: Cow<'a, str>,
    /// The position of each byte of the text and of its end; empty if nothing was escaped.
    positions: Vec<usize>,
}

impl Str<'_> {
    fn position(&self, at: usize) -> usize {
        self.positions.get(at).copied().unwrap_or(at)
    }

    /// Decodes what is between the quotes; `None` if an escape is invalid.
    fn decode(raw: &str) -> Option<Self> {
        let mut text = String::with_capacity(raw.len());
        let mut positions = Vec::with_capacity(raw.len() + 1);
        let mut chars = raw.char_indices();
        while let Some((at, c)) = chars.next() {
            let c = if c == '\\' {
                match chars.next()?.1 {
                    'n' => '\n',
                    't' => '\t',
                    'r' => '\r',
                    'b' => '\u{8}',
                    'f' => '\u{c}',
                    'u' => unicode(raw, at, &mut chars)?,
                    c @ ('"' | '\\' | '/') => c,
                    _ => return None,
                }
            } else {
                c
            };
            positions.resize(positions.len() + c.len_utf8(), at);
            text.push(c);
        }
        positions.push(raw.len());
        Some(Self { text: Cow::Owned(text), positions })
    }
}

/// Decodes `\uXXXX`, or a surrogate pair. An unpaired surrogate becomes the replacement character.
fn unicode(raw: &str, at: usize, chars: &mut std::str::CharIndices<'_>) -> Option<char> {
    let unit = |at: usize| {
        let digits = raw.get(at + 2..at + 6)?;
        digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok()).flatten()
    };
    let first = unit(at)?;
    (0..4).try_for_each(|_| chars.next().map(drop))?;
    if (0xd800..0xdc00).contains(&first)
        && raw.get(at + 6..at + 8) == Some("\\u")
        && let Some(second) = unit(at + 6).filter(|second| (0xdc00..0xe000).contains(second))
    {
        (0..6).try_for_each(|_| chars.next().map(drop))?;
        return char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00));
    }
    Some(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
}
