//! Secrets in free text: what follows a telling name (`password=…`, `"token": "…"`, `--secret …`, `<pin>…</pin>`),
//! and what looks like a secret by itself. One pass from left to right; what is found is consumed, what was judged
//! once is not judged again, so the time is linear in the text.

use super::detect::{
    card, domain, iban, is_aws, is_base64, is_basic, is_bearer, is_jwt, is_random, is_ssn, is_token, is_word,
    pem, run,
};
use super::keys::Sure;
use super::{Detector, Edit, MARK, Rules, mark_of};
use crate::signature::MARKS;

/// Blanks that may stand between a name and its value.
const BLANKS_MAX: usize = 8;
/// Bytes of a name; a longer run of letters is none.
const NAME_MAX: usize = 128;
/// Bytes of the attributes of a tag.
const TAG_MAX: usize = 256;

/// The places to mask, in order.
pub(super) fn edits(rules: &Rules, text: &str) -> Vec<Edit> {
    let bytes = text.as_bytes();
    // Most text has nobody's address in it, and then none is looked for.
    let local_to = if bytes.contains(&b'@') { 0 } else { usize::MAX };
    let mut scan = Scan { rules, text, bytes, at: 0, local_to, run_to: 0, edits: Vec::new() };
    scan.run();
    scan.edits
}

struct Scan<'a> {
    rules: &'a Rules,
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Up to here it is known that no name of a person ends in an `@`.
    local_to: usize,
    /// Up to here it is known that nothing random stands.
    run_to: usize,
    edits: Vec<Edit>,
}

/// Where a value ends and whether it is one.
struct Value {
    start: usize,
    end: usize,
    quoted: bool,
}

impl<'a> Scan<'a> {
    fn byte(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    fn rest(&self, at: usize) -> &'a [u8] {
        self.bytes.get(at..).unwrap_or_default()
    }

    fn slice(&self, start: usize, end: usize) -> &'a str {
        self.text.get(start..end).unwrap_or_default()
    }

    fn run(&mut self) {
        while self.at < self.bytes.len() {
            let b = self.byte(self.at);
            if b.is_ascii_alphanumeric() || b == b'_' {
                self.word();
            } else if !(b == b'-' && self.private_key()
                || b == b':' && self.login()
                || b == b'[' && self.mark())
            {
                self.at += 1;
            }
        }
    }

    fn put(&mut self, start: usize, end: usize, with: String) {
        self.edits.push(Edit { range: start..end, with });
        self.at = end;
    }

    fn found(&mut self, detector: Detector, start: usize, end: usize) -> bool {
        if !self.rules.uses(detector) || end <= start {
            return false;
        }
        self.put(start, end, mark_of(detector));
        true
    }

    /// What an earlier masking left stays as it is.
    fn mark(&mut self) -> bool {
        let length = mark_length(self.rest(self.at));
        self.at += length;
        length > 0
    }

    fn private_key(&mut self) -> bool {
        match pem(self.slice(self.at, self.bytes.len())) {
            Some(length) => self.found(Detector::Pem, self.at, self.at + length),
            None => false,
        }
    }

    /// `://user:password@host`.
    fn login(&mut self) -> bool {
        if !self.rest(self.at).starts_with(b"://") {
            return false;
        }
        let start = self.at + 3;
        let authority = run(self.rest(start), |b| !b.is_ascii_whitespace() && !b"/?#\"'<>`".contains(&b));
        let Some(end) = self.slice(start, start + authority).rfind('@') else { return false };
        if mark_length(self.rest(start)) == end {
            return false;
        }
        self.found(Detector::Login, start, start + end)
    }

    /// A run of letters, digits and what joins them.
    fn word(&mut self) {
        let start = self.at;
        let end = start + run(self.rest(start), is_word);
        let word = self.slice(start, end);
        if self.pair(start, end) || self.scheme(word, end) || self.person(start) {
            return;
        }
        if self.known(start, end) {
            return;
        }
        if let Some(length) = iban(self.rest(start))
            && self.found(Detector::Iban, start, start + length)
        {
            return;
        }
        if start >= self.run_to {
            self.run_to = start + run(self.rest(start), is_base64);
            if is_random(self.rest(start).get(..self.run_to - start).unwrap_or_default())
                && self.found(Detector::Random, start, self.run_to)
            {
                return;
            }
        }
        if !self.card_in(start, end) {
            self.at = end;
        }
    }

    /// A word that is a secret of a known make.
    fn known(&mut self, start: usize, end: usize) -> bool {
        let word = self.slice(start, end).trim_end_matches(['.', '-']);
        // The shortest of them; most words end here.
        if word.len() < 11 {
            return false;
        }
        let stop = start + word.len();
        let known = [
            (Detector::Jwt, is_jwt(word)),
            (Detector::Aws, is_aws(word)),
            (Detector::Token, is_token(word)),
            (Detector::Ssn, is_ssn(word)),
        ];
        known.into_iter().any(|(detector, is)| is && self.found(detector, start, stop))
    }

    /// A card that begins with one of the digits of a word.
    fn card_in(&mut self, start: usize, end: usize) -> bool {
        let mut before = false;
        for at in start..end {
            let digit = self.byte(at).is_ascii_digit();
            if digit
                && !before
                && let Some(length) = card(self.rest(at))
                && self.found(Detector::Card, at, at + length)
            {
                return true;
            }
            before = digit;
        }
        false
    }

    /// `Bearer …`, `Basic …`: the word after a word that announces one.
    fn scheme(&mut self, word: &str, end: usize) -> bool {
        let bearer = word.eq_ignore_ascii_case("bearer");
        if !bearer && !word.eq_ignore_ascii_case("basic") {
            return false;
        }
        let start = end + run(self.rest(end), |b| b == b' ').min(BLANKS_MAX);
        let length = run(self.rest(start), |b| is_base64(b) || matches!(b, b'.' | b'~'));
        let token = self.slice(start, start + length).trim_end_matches('.');
        let is = start > end && if bearer { is_bearer(token) } else { is_basic(token) };
        is && self.found(Detector::Bearer, start, start + token.len())
    }

    /// `name@domain`.
    fn person(&mut self, start: usize) -> bool {
        if start < self.local_to {
            return false;
        }
        let is_local = |b: u8| is_word(b) || matches!(b, b'+' | b'%' | b'\'' | b'*');
        let local = run(self.rest(start), is_local);
        self.local_to = start + local;
        if self.byte(start + local) != b'@' {
            return false;
        }
        match domain(self.rest(start + local + 1)) {
            Some(length) => self.found(Detector::Email, start, start + local + 1 + length),
            None => false,
        }
    }

    /// A name that tells, and its value.
    fn pair(&mut self, start: usize, end: usize) -> bool {
        if end - start > NAME_MAX {
            return false;
        }
        let name = self.slice(start, end).trim_matches(['.', '-']);
        let flag = start >= 2 && self.slice(start - 2, start) == "--";
        let open = self.opens_tag(start);
        let Some(joint) = self.joint(end, flag, open) else { return false };
        let Some(sure) = self.rules.keys.hides(name) else { return false };
        let Some(value) = self.value(joint, name, open) else { return false };
        if sure == Sure::UnlessProse
            && joint.prose
            && !value.quoted
            && !is_data(self.slice(value.start, value.end))
        {
            return false;
        }
        // The name may be a secret itself.
        let _ = self.known(start, end) || self.card_in(start, end);
        self.put(value.start, value.end, MARK.to_owned());
        true
    }

    fn opens_tag(&self, start: usize) -> bool {
        let before = start.checked_sub(1).map_or(0, |n| self.byte(n));
        // `<ns:name>`: the prefix is short.
        let named = before == b':' && self.slice(start.saturating_sub(32), start).contains('<');
        before == b'<' || named
    }

    /// What joins a name and its value: where the value begins.
    fn joint(&self, end: usize, flag: bool, tag: bool) -> Option<Joint> {
        // The name of a tag ends with the tag or at its first attribute.
        if tag && (self.byte(end) == b'>' || self.byte(end).is_ascii_whitespace()) {
            let attributes = run(self.rest(end), |b| b != b'>' && b != b'<').min(TAG_MAX);
            if self.byte(end + attributes) == b'>' && self.byte(end + attributes - 1) != b'/' {
                return Some(Joint { at: end + attributes + 1, prose: false });
            }
        }
        let mut at = end + run(self.rest(end), |b| matches!(b, b'"' | b'\'' | b'`' | b'\\' | b']')).min(3);
        let quoted = at > end;
        let blanks = run(self.rest(at), |b| b == b' ' || b == b'\t').min(BLANKS_MAX);
        at += blanks;
        let sign = match (self.byte(at), self.byte(at + 1)) {
            (b'=', b'>') | (b':', b'=') => 2,
            (b':', b':') => return None,
            (b'=' | b':', _) => 1,
            _ if flag && blanks > 0 => return Some(Joint { at, prose: false }),
            _ => return None,
        };
        let prose = !quoted && sign == 1 && self.byte(at) == b':';
        at += sign;
        let blanks = run(self.rest(at), |b| b == b' ' || b == b'\t').min(BLANKS_MAX);
        Some(Joint { at: at + blanks, prose: prose && blanks > 0 })
    }

    /// The value at a place; nothing when there is none, or it is masked already.
    fn value(&self, joint: Joint, name: &str, tag: bool) -> Option<Value> {
        let start = joint.at;
        let rest = self.rest(start);
        let first = *rest.first()?;
        if mark_length(rest) > 0 || is_template_mark(rest) {
            return None;
        }
        if tag && self.byte(start - 1) == b'>' {
            let length = run(rest, |b| b != b'<');
            let blank = self.slice(start, start + length).trim().is_empty();
            return (!blank).then_some(Value { start, end: start + length, quoted: true });
        }
        let escaped = first == b'\\' && matches!(self.byte(start + 1), b'"' | b'\'');
        if escaped || matches!(first, b'"' | b'\'' | b'`') {
            return self.quoted(start, escaped);
        }
        if matches!(first, b'{' | b'[' | b'(') {
            return Some(Value { start, end: start + brackets(rest), quoted: true });
        }
        let lower = name.to_ascii_lowercase();
        let whole_line = lower.contains("authorization") || lower.contains("cookie");
        let end = start + if whole_line { line(rest) } else { bare(rest) };
        let kept = self.slice(start, end).trim_end_matches([',', ';', ')', '}', ']', '>', '.', ' ', '\r']);
        (!kept.is_empty()).then_some(Value { start, end: start + kept.len(), quoted: false })
    }

    /// What stands between quotes, or from one that is never closed to the end.
    fn quoted(&self, start: usize, escaped: bool) -> Option<Value> {
        let open = start + usize::from(escaped);
        let quote = self.byte(open);
        let mut at = open + 1;
        while at < self.bytes.len() {
            let b = self.byte(at);
            if b == b'\\' {
                if escaped && self.byte(at + 1) == quote {
                    break;
                }
                at += 2;
            } else if b == quote {
                break;
            } else {
                at += 1;
            }
        }
        let (from, end) = (open + 1, at.min(self.bytes.len()));
        (end > from && mark_length(self.rest(from)) != end - from).then_some(Value {
            start: from,
            end,
            quoted: true,
        })
    }
}

#[derive(Clone, Copy)]
struct Joint {
    at: usize,
    /// A colon and a blank, as in a sentence.
    prose: bool,
}

/// How long the mark at the start is, if one is there.
fn mark_length(bytes: &[u8]) -> usize {
    let Some(rest) = bytes.strip_prefix(b"[masked") else { return 0 };
    let name = run(rest, |b| b.is_ascii_lowercase() || b == b':').min(16);
    if rest.get(name) == Some(&b']') { "[masked".len() + name + 1 } else { 0 }
}

/// What a template has instead of a value is nobody's secret.
fn is_template_mark(bytes: &[u8]) -> bool {
    MARKS.iter().any(|mark| bytes.starts_with(mark.as_bytes())) || bytes.starts_with(b"<*>")
}

/// Whether a word is more likely a value than a part of a sentence.
fn is_data(word: &str) -> bool {
    word.len() >= 16 || word.bytes().any(|b| b.is_ascii_digit() || matches!(b, b'@' | b'+' | b'=' | b'$'))
}

/// A value without quotes: up to a blank or an ampersand, through what it quotes itself.
fn bare(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(b) = bytes.get(at).copied() {
        if b.is_ascii_whitespace() || b == b'&' {
            return at;
        }
        if matches!(b, b'"' | b'\'' | b'`') {
            let before = at.checked_sub(1).and_then(|n| bytes.get(n)).copied().unwrap_or(b'(');
            if !b"([{=,:".contains(&before) {
                return at;
            }
            let inside = run(bytes.get(at + 1..).unwrap_or_default(), |c| c != b);
            at += inside + 1;
        }
        at += 1;
    }
    bytes.len()
}

/// To the end of the line, or to a quote that ends what the line stands in.
fn line(bytes: &[u8]) -> usize {
    run(bytes, |b| !matches!(b, b'\n' | b'\r' | b'"' | b'\'' | b'`'))
}

/// A bracket and what it encloses; to the end where it is never closed.
fn brackets(bytes: &[u8]) -> usize {
    let (mut depth, mut quote) = (0_usize, None);
    let mut at = 0;
    while let Some(b) = bytes.get(at).copied() {
        match (quote, b) {
            (Some(_), b'\\') => at += 1,
            (Some(q), b) if q == b => quote = None,
            (Some(_), _) => {}
            (None, b'"') => quote = Some(b),
            (None, b'{' | b'[' | b'(') => depth += 1,
            (None, b'}' | b']' | b')') => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            (None, _) => {}
        }
        at += 1;
    }
    bytes.len()
}
