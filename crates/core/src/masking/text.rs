//! Secrets in free text: what follows a secret name (`password=…`, `"token": "…"`, `--secret …`, `<pin>…</pin>`), and
//! what looks like a secret by itself. The scan is one pass from left to right that consumes what it finds and judges
//! nothing twice, so it takes linear time.

use super::detect::{
    card, domain, iban, is_aws, is_base64, is_basic, is_bearer, is_card_before, is_caseless, is_hex_id,
    is_jwt, is_letter, is_random, is_ssn, is_token, is_token_behind_something, is_word, pem, run,
};
use super::keys::Secrecy;
use super::{Detector, Edit, MARK, Rules, lines, mark_of};
use crate::signature::MARKS;

/// The maximum number of blanks between a name and its value.
const BLANKS_MAX: usize = 8;
/// The maximum length of a name; a longer run of letters is not a name.
const NAME_MAX: usize = 128;
/// The maximum length of the attributes of a tag.
const TAG_MAX: usize = 256;
/// How many bytes of a word are searched for the start of a token inside it.
const PREFIX_MAX: usize = 64;
/// How many letters and digits beside a card number are examined.
const BESIDE_MAX: usize = 64;
/// How a PEM key begins.
const PEM_BEGIN: &str = "-----BEGIN";

/// The edits that mask a text, in order.
pub(super) fn edits(rules: &Rules, text: &str) -> Vec<Edit> {
    let bytes = text.as_bytes();
    // Most texts contain no email address, and then none is searched for.
    let local_to = if bytes.contains(&b'@') { 0 } else { usize::MAX };
    let mut scan = Scan { rules, text, bytes, at: 0, local_to, run_to: 0, client: false, edits: Vec::new() };
    scan.run();
    scan.edits
}

struct Scan<'a> {
    rules: &'a Rules,
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    /// Up to here no local part of an email address remains to be found.
    local_to: usize,
    /// Up to here nothing random remains to be found.
    run_to: usize,
    /// Whether this is the command line of a program that takes its password directly after `-p`.
    client: bool,
    edits: Vec<Edit>,
}

/// The range of a value.
pub(super) struct Value {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) quoted: bool,
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
            } else if !b.is_ascii() {
                self.letter();
            } else if !(b == b'-' && (self.private_key() || self.password_flag())
                || b == b':' && self.login()
                || b == b'[' && self.mark())
            {
                let continued = b == b'\n' && self.before(self.at) == b'\\';
                self.client &= continued || !b"\n;|&".contains(&b);
                self.at += 1;
            }
        }
    }

    /// The byte before a position.
    fn before(&self, at: usize) -> u8 {
        at.checked_sub(1).map_or(0, |n| self.byte(n))
    }

    /// A letter that is not ASCII: only an email address can begin with it.
    fn letter(&mut self) {
        let c = self.text.get(self.at..).and_then(|rest| rest.chars().next());
        if !(c.is_some_and(is_letter) && self.person(self.at)) {
            self.at += c.map_or(1, char::len_utf8);
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

    /// Skips a mark of an earlier masking.
    fn mark(&mut self) -> bool {
        let length = mark_length(self.rest(self.at));
        self.at += length;
        length > 0
    }

    fn private_key(&mut self) -> bool {
        if !self.rules.uses(Detector::Pem) {
            return false;
        }
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

    /// A run of letters, digits and the characters that join them.
    fn word(&mut self) {
        let start = self.at;
        let whole = self.slice(start, start + run(self.rest(start), is_word));
        // The dashes of a key's first line are not part of the word before them.
        let end = start + whole.find(PEM_BEGIN).unwrap_or(whole.len());
        let word = self.slice(start, end);
        self.client |= self.is_database_client(start, end);
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

    /// Masks a word that is a secret of a known kind, or that ends in one.
    fn known(&mut self, start: usize, end: usize) -> bool {
        let word = self.slice(start, end).trim_end_matches(['.', '-']);
        // No secret is shorter than this, so most words end here.
        if word.len() < 11 {
            return false;
        }
        let stop = start + word.len();
        if is_ssn(word) && self.found(Detector::Ssn, start, stop) {
            return true;
        }
        let escape = self.escape(start);
        let prefix = word.as_bytes().iter().take(PREFIX_MAX).enumerate();
        let joints =
            prefix.filter(|(n, b)| !b.is_ascii_alphanumeric() || n + 1 == escape).map(|(n, _)| n + 1);
        for at in std::iter::once(0).chain(joints) {
            let part = word.get(at..).unwrap_or_default();
            let token = if at == 0 { is_token(part) } else { is_token_behind_something(part) };
            let known =
                [(Detector::Jwt, is_jwt(part)), (Detector::Aws, is_aws(part)), (Detector::Token, token)];
            let known = known.into_iter().find(|(detector, is)| *is && self.rules.uses(*detector));
            if let Some((detector, _)) = known {
                self.cards_in(start, start + at);
                return self.found(detector, start + at, stop);
            }
        }
        false
    }

    /// Masks all card numbers in the rest of a word.
    fn cards_in(&mut self, mut start: usize, end: usize) {
        while self.card_in(start, end) {
            start = self.at;
        }
    }

    /// The number of bytes of a word that belong to an escape before it: one in `\nword`, two in `%3Dword`.
    fn escape(&self, start: usize) -> usize {
        let hex = |at: usize| self.byte(at).is_ascii_hexdigit();
        match self.before(start) {
            b'\\' if matches!(self.byte(start), b'n' | b'r' | b't') => 1,
            b'%' if hex(start) && hex(start + 1) => 2,
            _ => 0,
        }
    }

    /// Masks a card number that begins with one of the digits of a word.
    fn card_in(&mut self, start: usize, end: usize) -> bool {
        let mut before = false;
        for at in start..end {
            let digit = self.byte(at).is_ascii_digit();
            if digit
                && !before
                && let Some(length) = card(self.rest(at))
                && self.is_card_among_letters(at, at + length)
                && self.found(Detector::Card, at, at + length)
            {
                return true;
            }
            before = digit;
        }
        false
    }

    /// Whether the letters around a card number allow it to be one: they are not a unit, and the whole is not a hex id.
    fn is_card_among_letters(&self, start: usize, end: usize) -> bool {
        let after = self.bytes.get(end..self.bytes.len().min(end + BESIDE_MAX)).unwrap_or_default();
        let behind = run(after, |b| b.is_ascii_alphanumeric());
        let near = self.bytes.get(start.saturating_sub(BESIDE_MAX)..start).unwrap_or_default();
        let ahead = near.iter().rev().take_while(|b| b.is_ascii_alphanumeric()).count();
        let all = self.bytes.get(start - ahead..end + behind).unwrap_or_default();
        is_card_before(self.slice(end, end + behind)) && !is_hex_id(all)
    }

    /// `Bearer …`, `Basic …`: the word after the name of an authentication scheme.
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

    /// An email address, `name@domain`.
    fn person(&mut self, start: usize) -> bool {
        if start < self.local_to {
            return false;
        }
        let is_local = |c: char| is_letter(c) || matches!(c, '_' | '.' | '-' | '+' | '%' | '\'' | '*');
        let rest = self.text.get(start..).unwrap_or_default();
        let local = rest.get(..rest.find(|c| !is_local(c)).unwrap_or(rest.len())).unwrap_or_default();
        self.local_to = start + local.len();
        let Some(after) = rest.get(local.len()..).and_then(|rest| rest.strip_prefix('@')) else {
            return false;
        };
        let Some(length) = domain(after) else { return false };
        // In scripts without blanks, words of the sentence may directly precede the name.
        let name = local.trim_start_matches(is_caseless);
        let name = if name.starts_with(|c: char| c.is_ascii_alphanumeric()) { name } else { local };
        self.found(Detector::Email, self.local_to - name.len(), self.local_to + 1 + length)
    }

    /// A secret name and its value.
    fn pair(&mut self, start: usize, end: usize) -> bool {
        if end - start > NAME_MAX {
            return false;
        }
        let name = self.slice(start, end).trim_matches(['.', '-']);
        let flag = start >= 2 && self.slice(start - 2, start) == "--";
        let open = self.opens_tag(start);
        let Some(separator) = self.separator(end, flag, open) else { return false };
        let signs = self.signs_an_address(start, name);
        let Some(secrecy) = self.rules.keys.hides(name).or(signs) else { return false };
        if separator.tag {
            return self.element(start, end, separator.at);
        }
        let Some(value) = self.value(separator, name) else { return false };
        if secrecy == Secrecy::UnlessProse
            && (separator.prose || separator.below)
            && !value.quoted
            && !is_data(self.slice(value.start, value.end))
        {
            return false;
        }
        self.name(start, end);
        self.put(value.start, value.end, MARK.to_owned());
        true
    }

    /// A name may be a secret itself.
    fn name(&mut self, start: usize, end: usize) {
        if !self.known(start, end) {
            self.cards_in(start, end);
        }
    }

    /// A tag with a secret name: its attributes are scanned, and its content is masked.
    fn element(&mut self, start: usize, end: usize, at: usize) -> bool {
        let length = run(self.rest(at), |b| b != b'<');
        if self.slice(at, at + length).trim().is_empty() {
            return false;
        }
        self.name(start, end);
        for Edit { range, with } in edits(self.rules, self.slice(end, at)) {
            self.put(end + range.start, end + range.end, with);
        }
        if mark_length(self.rest(at)) == length {
            self.at = at + length;
        } else {
            self.put(at, at + length, MARK.to_owned());
        }
        true
    }

    /// `?sig=…` and `&Signature=…`: the complete URL grants access.
    fn signs_an_address(&self, start: usize, name: &str) -> Option<Secrecy> {
        let named = name.eq_ignore_ascii_case("sig") || name.eq_ignore_ascii_case("signature");
        (named && matches!(self.before(start), b'?' | b'&')).then_some(Secrecy::Always)
    }

    fn opens_tag(&self, start: usize) -> bool {
        let before = self.before(start);
        // `<ns:name>`: the prefix is short.
        let named = before == b':' && self.slice(start.saturating_sub(32), start).contains('<');
        before == b'<' || named
    }

    /// The separator between a name and its value, with the position where the value begins.
    fn separator(&self, end: usize, flag: bool, tag: bool) -> Option<Separator> {
        // The name of a tag ends with the tag or at its first attribute.
        if tag && (self.byte(end) == b'>' || self.byte(end).is_ascii_whitespace()) {
            let attributes = run(self.rest(end), |b| b != b'>' && b != b'<').min(TAG_MAX);
            if self.byte(end + attributes) == b'>' && self.byte(end + attributes - 1) != b'/' {
                return Some(Separator { at: end + attributes + 1, tag: true, ..Separator::default() });
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
            _ if flag && blanks > 0 => {
                // The command continues on the next line.
                let continued = if self.byte(at) == b'\\' { self.line_break(at + 1) } else { 0 };
                let at = if continued > 0 { self.below(at + 1 + continued) } else { at };
                return Some(Separator { at, ..Separator::default() });
            }
            _ => return None,
        };
        let prose = !quoted && sign == 1 && self.byte(at) == b':';
        at += sign;
        let blanks = run(self.rest(at), |b| b == b' ' || b == b'\t').min(BLANKS_MAX);
        let line_break = self.line_break(at + blanks);
        if line_break > 0 {
            return Some(Separator {
                at: self.below(at + blanks + line_break),
                below: true,
                quoted,
                ..Separator::default()
            });
        }
        Some(Separator { at: at + blanks, prose: prose && blanks > 0, quoted, ..Separator::default() })
    }

    /// The length of the line break at a position, or 0.
    fn line_break(&self, at: usize) -> usize {
        match (self.byte(at), self.byte(at + 1)) {
            (b'\n', _) => 1,
            (b'\r', b'\n') => 2,
            _ => 0,
        }
    }

    /// Where the text of a line begins, after its indentation.
    fn below(&self, at: usize) -> usize {
        at + run(self.rest(at), |b| b == b' ' || b == b'\t')
    }

    /// The value after a separator, or `None` if there is none or it is masked already.
    fn value(&self, separator: Separator, name: &str) -> Option<Value> {
        let start = separator.at;
        let rest = self.rest(start);
        let first = *rest.first()?;
        if mark_length(rest) > 0 || is_template_mark(rest) {
            return None;
        }
        if separator.below {
            let line = self.slice(start, start + run(rest, |b| b != b'\n'));
            return match first {
                b'{' | b'[' if separator.quoted => {
                    Some(Value { start, end: start + brackets(rest), quoted: true })
                }
                _ => lines::alone(start, line),
            };
        }
        let escaped = first == b'\\' && matches!(self.byte(start + 1), b'"' | b'\'');
        if escaped || matches!(first, b'"' | b'\'' | b'`') {
            return self.quoted(start, escaped);
        }
        if matches!(first, b'{' | b'[' | b'(') {
            return Some(Value { start, end: start + brackets(rest), quoted: true });
        }
        if let Some(block) = lines::block(rest) {
            let masked = mark_length(self.rest(start + block.start)) > 0;
            return (!masked).then_some(Value {
                start: start + block.start,
                end: start + block.end,
                quoted: true,
            });
        }
        let lower = name.to_ascii_lowercase();
        let whole_line = lower.contains("authorization") || lower.contains("cookie");
        let end = start + if whole_line { line(rest) } else { bare(rest) };
        if let Some(end) = self.goes_on(start, end) {
            return Some(Value { start, end, quoted: true });
        }
        let kept = self.slice(start, end).trim_end_matches([',', ';', ')', '}', ']', '>', '.', ' ', '\r']);
        (!kept.is_empty()).then_some(Value { start, end: start + kept.len(), quoted: false })
    }

    /// The real end of a value that continues on the lines below: a private key, or a bracket that is still open.
    fn goes_on(&self, start: usize, end: usize) -> Option<usize> {
        if let Some(n) = self.slice(start, end).find(PEM_BEGIN) {
            let length = pem(self.slice(start + n, self.bytes.len()))?;
            return Some(start + n + length);
        }
        let open = end.checked_sub(1).filter(|open| *open >= start)?;
        let opens = matches!(self.byte(open), b'{' | b'[' | b'(') && self.line_break(end) > 0;
        opens.then(|| open + brackets(self.rest(open)))
    }

    /// Whether a word is a client of MySQL that is called as a command. A directory may have the same name.
    fn is_database_client(&self, start: usize, end: usize) -> bool {
        let called = self.before(start) != b'/' || self.slice(start.saturating_sub(4), start) == "bin/";
        let goes_on = matches!(self.byte(end), b' ' | b'\t' | b'"' | b'\'' | b'\\');
        called && goes_on && lines::is_database_client(self.slice(start, end))
    }

    /// `mysql -pPASSWORD`.
    fn password_flag(&mut self) -> bool {
        let (start, before) = (self.at + 2, self.before(self.at));
        let flag =
            self.byte(self.at + 1) == b'p' && (before.is_ascii_whitespace() || b"\"'`".contains(&before));
        let first = self.byte(start);
        // A shell variable is not a secret, and neither is what is masked already.
        if !self.client || !flag || first == b'$' || mark_length(self.rest(start)) > 0 {
            return false;
        }
        let value = if matches!(first, b'"' | b'\'') && first != before {
            self.quoted(start, false)
        } else {
            let end = start + run(self.rest(start), |b| !b.is_ascii_whitespace() && !b"\"'`".contains(&b));
            let kept = self.slice(start, end).trim_end_matches([';', ')', '\\']);
            (!kept.is_empty()).then_some(Value { start, end: start + kept.len(), quoted: false })
        };
        let Some(value) = value else { return false };
        self.put(value.start, value.end, MARK.to_owned());
        true
    }

    /// What is between quotes; to the end if they are never closed.
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

/// What separates a name and its value.
#[derive(Clone, Copy, Default)]
struct Separator {
    /// Where the value begins.
    at: usize,
    /// A colon and a blank, as in a sentence.
    prose: bool,
    /// The name is in quotes.
    quoted: bool,
    /// The value is on the line below.
    below: bool,
    /// The value is between two tags.
    tag: bool,
}

/// The length of the mark at the start, or 0.
pub(super) fn mark_length(bytes: &[u8]) -> usize {
    let Some(rest) = bytes.strip_prefix(b"[masked") else { return 0 };
    let name = run(rest, |b| b.is_ascii_lowercase() || b == b':').min(16);
    if rest.get(name) == Some(&b']') { "[masked".len() + name + 1 } else { 0 }
}

/// Whether there is a mark of a template instead of a value.
fn is_template_mark(bytes: &[u8]) -> bool {
    MARKS.iter().any(|mark| bytes.starts_with(mark.as_bytes())) || bytes.starts_with(b"<*>")
}

/// Whether a word is more likely a value than part of a sentence.
fn is_data(word: &str) -> bool {
    word.len() >= 16 || word.bytes().any(|b| b.is_ascii_digit() || matches!(b, b'@' | b'+' | b'=' | b'$'))
}

/// The length of an unquoted value: up to a blank or an ampersand, including quoted parts.
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

/// The length up to the end of the line, or to a quote around it.
fn line(bytes: &[u8]) -> usize {
    run(bytes, |b| !matches!(b, b'\n' | b'\r' | b'"' | b'\'' | b'`'))
}

/// The length of a bracket and what it encloses; to the end if it is never closed.
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
