//! The scanner: one pass over a message that keeps its constant parts and replaces its varying parts by `<kind>`. Most
//! words are plain and are copied whole; only a word with something unusual in it is examined piece by piece, with the
//! recognisers of `kinds`.
//!
//! It must not panic on any input, look at more than [`limits::SCAN_BYTES_MAX`] of it, or depend on anything but the
//! text.

use super::head;
use super::kinds::{
    base64, brackets, calendar, compound, digits, email, hex, host, id, ip, mac, number, path, quoted, run,
    skip, time, url, uuid, value,
};
use crate::limits;

/// Classes of bytes, as bits. A digit.
const DIGIT: u8 = 1;
/// A dot, as in a host name.
const DOT: u8 = 2;
/// Any other character that a varying part may begin with or contain.
const ODD: u8 = 4;
/// White space or a control character, which ends the word.
const SPACE: u8 = 8;

/// The class of each byte.
const CLASS: [u8; 256] = classes();

#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated at compile time, which checks it; there are 256 bytes"
)]
const fn classes() -> [u8; 256] {
    let mut table = [0_u8; 256];
    let mut byte = 0_usize;
    while byte < 256 {
        table[byte] = match byte as u8 {
            0..=b' ' | 0x7f => SPACE,
            b'0'..=b'9' => DIGIT,
            b'.' => DOT,
            b'"'
            | b'\''
            | b'`'
            | b'='
            | b'/'
            | b'\\'
            | b'@'
            | b'('
            | b'{'
            | b'}'
            | b'<'
            | b'['
            | b'~'
            | 0x80..=0xff => ODD,
            _ => 0,
        };
        byte += 1;
    }
    table
}

/// The template of a message: constant parts are kept, varying parts are replaced by `<kind>`, and runs of white space
/// and control characters by one space.
#[must_use]
pub fn mask(text: &str) -> String {
    let mut scan = Scan::new(text, None);
    scan.run();
    scan.template
}

/// The part of a message that is scanned: whole words, unless there is only one.
fn scanned_part(text: &str) -> &str {
    let part = head(text, limits::SCAN_BYTES_MAX);
    if part.len() == text.len() {
        part
    } else {
        part.rsplit_once(char::is_whitespace).map_or(part, |(words, _)| words)
    }
}

/// The words of a template, each with the text it was made from.
pub(super) fn words_and_sources(text: &str) -> Vec<(String, String)> {
    let mut starts = Vec::new();
    let mut scan = Scan::new(text, Some(&mut starts));
    scan.run();
    let template = core::mem::take(&mut scan.template);
    let scanned = scanned_part(text);
    let ends = starts.iter().skip(1).copied().chain([scanned.len()]);
    let source = |(start, end): (usize, usize)| scanned.get(start..end).unwrap_or_default().trim().to_owned();
    template.split(' ').map(str::to_owned).zip(starts.iter().copied().zip(ends).map(source)).collect()
}

/// A message being masked.
struct Scan<'a, 'b> {
    /// The part that is scanned.
    text: &'a str,
    /// The position of the scanner.
    at: usize,
    /// The last character before the position.
    before: char,
    /// The number of JSON objects that are open at the position.
    json: usize,
    /// The template so far.
    template: String,
    /// Where in the text each word of the template begins, if the caller wants to know.
    starts: Option<&'b mut Vec<usize>>,
}

impl<'a, 'b> Scan<'a, 'b> {
    fn new(text: &'a str, starts: Option<&'b mut Vec<usize>>) -> Self {
        let text = scanned_part(text);
        let template = String::with_capacity(text.len().min(limits::TEMPLATE_BYTES_MAX) + 16);
        Self { text, at: 0, before: ' ', json: 0, template, starts }
    }

    /// Scans the text word by word.
    fn run(&mut self) {
        while self.template.len() < limits::TEMPLATE_BYTES_MAX {
            self.gap();
            if self.rest().is_empty() {
                break;
            }
            if !self.plain_word() && !self.odd_word() {
                break;
            }
        }
        let full = self.template.len() > limits::TEMPLATE_BYTES_MAX || !self.rest().trim_end().is_empty();
        let kept = head(&self.template, limits::TEMPLATE_BYTES_MAX);
        // If there was not enough space, the last word may be incomplete.
        let kept = if full { kept.rsplit_once(' ').map_or(kept, |(kept, _)| kept) } else { kept };
        self.template.truncate(kept.trim_end().len());
    }

    fn rest(&self) -> &'a str {
        skip(self.text, self.at)
    }

    /// Skips white space and control characters, which become one space.
    fn gap(&mut self) {
        let rest = self.rest();
        let gap = run(rest, |c| c.is_whitespace() || c.is_control());
        if gap > 0 || self.at == 0 {
            self.at += gap;
            self.before = ' ';
            if !self.template.is_empty() && gap < rest.len() {
                self.template.push(' ');
            }
            if let Some(starts) = self.starts.as_deref_mut().filter(|_| gap < rest.len()) {
                starts.push(self.at);
            }
        }
    }

    /// Copies the word at the position if nothing in it can vary.
    fn plain_word(&mut self) -> bool {
        let rest = self.rest();
        let mut classes = 0;
        let mut len = 0;
        for byte in rest.bytes() {
            let class = CLASS.get(usize::from(byte)).copied().unwrap_or(ODD);
            if class >= ODD {
                classes |= class;
                break;
            }
            classes |= class;
            len += 1;
        }
        if classes & (ODD | DIGIT) != 0 || self.json > 0 || !self.before.is_whitespace() {
            return false;
        }
        let word = head(rest, len);
        let may_be_date = len <= 4 && word.as_bytes().first().is_some_and(u8::is_ascii_uppercase);
        if may_be_date && calendar(rest).is_some() {
            return false;
        }
        if classes & DOT != 0 && host(word).is_some() {
            return false;
        }
        self.literal(len);
        true
    }

    /// Scans a word piece by piece, to its end. Returns `false` if the template is full.
    fn odd_word(&mut self) -> bool {
        while let Some(first) = self.rest().chars().next().filter(|c| !c.is_whitespace() && !c.is_control()) {
            let (len, mark) = self.step(first);
            let len = len.max(first.len_utf8());
            if self.template.len() >= limits::TEMPLATE_BYTES_MAX {
                return false;
            }
            match mark {
                Some(mark) if self.template.len() + mark.len() > limits::TEMPLATE_BYTES_MAX => return false,
                Some(mark) => {
                    self.template.push_str(mark);
                    if let Some(starts) = self.starts.as_deref_mut() {
                        // A mark of two words comes from one piece, which becomes the source of the first word.
                        starts.extend(mark.matches(' ').map(|_| self.at + len));
                    }
                    self.pass(len);
                }
                None => self.literal(len),
            }
        }
        true
    }

    /// Keeps a piece as it is.
    fn literal(&mut self, len: usize) {
        let piece = head(self.rest(), len);
        self.template.push_str(piece);
        self.pass(len);
    }

    /// Moves on after a piece.
    fn pass(&mut self, len: usize) {
        self.before = head(self.rest(), len).chars().next_back().unwrap_or(self.before);
        self.at += len;
    }

    /// The length of the next piece, and its mark if it varies.
    fn step(&mut self, first: char) -> (usize, Option<&'static str>) {
        let rest = self.rest();
        match first {
            '"' if self.json > 0 || rest.starts_with("\"") => {
                if let Some(found) = self.double_quoted(rest) {
                    return found;
                }
            }
            '{' => {
                if rest.starts_with("{\"") || rest.starts_with("{ \"") {
                    self.json += 1;
                } else if self.before.is_alphanumeric()
                    && let Some(len) = brackets(rest).filter(|len| *len > 2 && head(rest, *len) != "{<str>}")
                {
                    return (len, Some("{<str>}"));
                }
            }
            '}' => self.json = self.json.saturating_sub(1),
            '(' => {
                let len = brackets(rest).unwrap_or(0);
                let inside = head(rest, len);
                if inside.contains("(/") || inside.contains(" /") && !inside.contains(" / ") {
                    return (len, Some("(<path>)"));
                }
            }
            '<' => {
                let after = skip(rest, 1);
                if let Some(len) = number(after, '<').filter(|len| !skip(after, *len).starts_with('>')) {
                    return (len + 1, Some("<num>"));
                }
                if let Some(mark) = super::MARKS.iter().find(|mark| rest.starts_with(**mark)) {
                    return (mark.len(), None);
                }
            }
            _ => {}
        }
        let figures = digits(rest);
        if self.before.is_alphabetic() && figures > 0 {
            // This is the number at the end of a word; the word itself has been kept already, see below.
            return (number(rest, self.before).unwrap_or(figures), Some("<num>"));
        }
        if !self.before.is_alphanumeric()
            && let Some(found) = self.varying(rest, first)
        {
            return found;
        }
        let word = run(rest, char::is_alphanumeric);
        let letters = run(rest, char::is_alphabetic);
        let numbered = letters > 0 && letters + digits(skip(rest, letters)) == word;
        (if numbered { letters } else { word }, None)
    }

    /// The varying part at the position, if there is one: its length, and its mark unless it is kept.
    fn varying(&self, rest: &str, first: char) -> Option<(usize, Option<&'static str>)> {
        // A value is masked as a whole, whatever it begins with; its key has been kept already.
        let value = if self.before == '=' { value(rest) } else { 0 };
        let whole = |len: Option<usize>, mark: &'static str| {
            len.filter(|len| *len >= value).map(|len| (len, Some(mark)))
        };
        let before = self.before;
        let found = match first {
            '0'..='9' => self.figure(rest, whole),
            c if c.is_alphabetic() => {
                if self.json > 0 && (before == ':' || before == ' ') {
                    let word = head(rest, run(rest, |c| c.is_ascii_alphabetic()));
                    if matches!(word, "true" | "false" | "null") {
                        return Some((word.len(), Some("<str>")));
                    }
                }
                named(rest, before, whole)
            }
            '\'' | '"' | '`' | '‘' | '“' => whole(quoted(rest, before), "<str>"),
            '/' | '.' | '~' | '\\' => {
                whole(path(rest, before), "<path>").or_else(|| whole(number(rest, before), "<num>"))
            }
            '[' | ':' => whole(ip(rest, before), "<ip>"),
            '-' | '+' => {
                let dashed = before == '-' || before == '+';
                let number = if dashed { None } else { number(rest, before) };
                whole(number, "<num>")
            }
            _ => None,
        };
        if found.is_none()
            && value == 0
            && first.is_ascii_alphabetic()
            && let Some((kept, len)) = compound(rest)
        {
            return Some(if kept > 0 { (kept, None) } else { (len, Some("<id>")) });
        }
        found.or((value > 0).then_some((value, Some("<str>"))))
    }

    /// A varying part that begins with a digit.
    fn figure(
        &self,
        rest: &str,
        whole: impl Fn(Option<usize>, &'static str) -> Option<(usize, Option<&'static str>)>,
    ) -> Option<(usize, Option<&'static str>)> {
        let before = self.before;
        let alone = digits(rest);
        // The most common case is just a number.
        if matches!(rest.as_bytes().get(alone), None | Some(b',' | b')' | b']' | b';'))
            && rest.as_bytes().get(alone + 1).is_none_or(|b| !b.is_ascii_digit())
        {
            return whole(Some(alone), "<num>");
        }
        let compound = || compound(rest).filter(|(kept, _)| *kept == 0).map(|(_, len)| len);
        let signs = signs(rest);
        let when = |sign: u8, find: &dyn Fn() -> Option<usize>| if signs & sign == 0 { None } else { find() };
        whole(when(JOINT, &|| uuid(rest, before)), "<uuid>")
            .or_else(|| whole(when(COLON | JOINT | SLASH | POINT, &|| time(rest, before)), "<time>"))
            .or_else(|| whole(when(COLON | JOINT, &|| mac(rest)), "<mac>"))
            .or_else(|| whole(when(POINT, &|| host(rest)), "<host>"))
            .or_else(|| whole(when(COLON | POINT, &|| ip(rest, before)), "<ip>"))
            .or_else(|| whole(when(AT, &|| email(rest, before)), "<email>"))
            .or_else(|| whole(when(JOINT, &compound), "<id>"))
            .or_else(|| whole(sized(rest, before), "<num> bytes"))
            .or_else(|| whole(number(rest, before), "<num>"))
            .or_else(|| whole(hex(rest, before), "<hex>"))
            .or_else(|| whole(base64(rest), "<base64>"))
            .or_else(|| whole(id(rest, before), "<id>"))
    }

    /// A text in double quotes. JSON keys and the methods of requests are kept, everything else is masked.
    fn double_quoted(&self, rest: &str) -> Option<(usize, Option<&'static str>)> {
        if self.before.is_alphanumeric() {
            return None;
        }
        let request = REQUESTS.iter().find(|(start, _)| rest.starts_with(start));
        if let Some((_, mark)) = request {
            return quoted(rest, self.before).map(|len| (len, Some(*mark)));
        }
        if self.json > 0 {
            let len = quoted(rest, self.before)?;
            let key = skip(rest, len).trim_start_matches(' ').starts_with(':');
            let short = len <= 66 && !head(rest, len).contains(char::is_control);
            return Some(if key && short { (len, None) } else { (len, Some("<str>")) });
        }
        None
    }
}

/// Signs that some kinds always contain, as bits. `/` or `\`.
const SLASH: u8 = 1;
const AT: u8 = 2;
const FIGURE: u8 = 4;
const POINT: u8 = 8;
const COLON: u8 = 16;
const JOINT: u8 = 32;
/// How many bytes of a word are searched for signs; a longer word is assumed to contain all of them.
const SIGNS_BYTES_MAX: usize = 128;

/// Which signs the word at the position contains.
fn signs(rest: &str) -> u8 {
    let mut found = 0;
    for (at, byte) in rest.bytes().enumerate() {
        if at >= SIGNS_BYTES_MAX {
            return u8::MAX;
        }
        found |= match byte {
            b' ' | b'\t' | b'\n' | b'\r' => return found,
            b'/' | b'\\' => SLASH,
            b'@' => AT,
            b'0'..=b'9' => FIGURE,
            b'.' => POINT,
            b':' => COLON,
            b'-' | b'_' => JOINT,
            _ => 0,
        };
    }
    found
}

/// How the first line of a request begins, and its mark.
const REQUESTS: [(&str, &str); 7] = [
    ("\"GET ", "\"GET <path>\""),
    ("\"POST ", "\"POST <path>\""),
    ("\"PUT ", "\"PUT <path>\""),
    ("\"DELETE ", "\"DELETE <path>\""),
    ("\"HEAD ", "\"HEAD <path>\""),
    ("\"PATCH ", "\"PATCH <path>\""),
    ("\"OPTIONS ", "\"OPTIONS <path>\""),
];

/// `1190 bytes (1.16 KB)`: a size, followed by the same in a readable unit.
fn sized(rest: &str, before: char) -> Option<usize> {
    let len = digits(rest);
    let inside = skip(rest, len).strip_prefix(" bytes (")?;
    let again = number(inside, before)?;
    skip(inside, again).starts_with(')').then_some(len + " bytes (".len() + again + 1)
}

/// A varying part that begins with a letter.
fn named(
    rest: &str,
    before: char,
    whole: impl Fn(Option<usize>, &'static str) -> Option<(usize, Option<&'static str>)>,
) -> Option<(usize, Option<&'static str>)> {
    let signs = signs(rest);
    let when = |sign: u8, find: &dyn Fn() -> Option<usize>| if signs & sign == 0 { None } else { find() };
    whole(calendar(rest), "<time>")
        .or_else(|| whole(when(SLASH, &|| url(rest, before)), "<url>"))
        .or_else(|| whole(when(AT, &|| email(rest, before)), "<email>"))
        .or_else(|| whole(when(JOINT, &|| uuid(rest, before)), "<uuid>"))
        .or_else(|| whole(when(COLON | JOINT, &|| mac(rest)), "<mac>"))
        .or_else(|| whole(when(COLON, &|| ip(rest, before)), "<ip>"))
        .or_else(|| whole(when(POINT, &|| host(rest)), "<host>"))
        .or_else(|| whole(when(FIGURE, &|| base64(rest)), "<base64>"))
        .or_else(|| whole(when(SLASH, &|| path(rest, before)), "<path>"))
        .or_else(|| whole(hex(rest, before), "<hex>"))
        .or_else(|| whole(when(FIGURE, &|| id(rest, before)), "<id>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_kinds_have_their_marks() {
        for (text, wanted) in [
            ("on Sat Jun 18 02:08:10 2005 and Jun 8 12:00:01 ok", "on <time> and <time> ok"),
            ("May I go on Mon", "May I go on Mon"),
            ("03/04/2013 17:26 GMT, 18/Jun/2005:02:08:10 +0000, 00:12", "<time>, <time>, <time>"),
            ("via 5c:50:15:36:bc:03 on eth0", "via <mac> on eth<num>"),
            ("at mx1.example.org:25 or java.io or main.rs or a.b", "at <host> or java.io or main.rs or a.b"),
            ("R62-M0-L0-U22 attempt_2017_0024_m_03_1 rdd_2_0", "<id> attempt_<id> rdd_<num>_<num>"),
            ("key QWxhZGRpbjpvcGVuIHNlc2FtZTEyMw== end", "key <base64> end"),
            (
                r#"{"error":"late","n":5, "ok":true, "x": null} y"#,
                r#"{"error":<str>,"n":<num>, "ok":<str>, "x": <str>} y"#,
            ),
            (r#"a "GET /x?y=1 HTTP/1.1" b"#, r#"a "GET <path>" b"#),
            ("sent 12 bytes (1.2 KB), <1 sec, 3 bytes", "sent <num> bytes, <num>, <num> bytes"),
            ("Token{7f of Rec{x y}} left", "Token{<str>} left"),
            ("b=Rect(0, 0 - 1, 2), ws=null p=<a b> q=[1, 2]", "b=<str>, ws=<str> p=<str> q=<str>"),
            ("(root) CMD (run-parts /etc/cron.d)", "(root) CMD (<path>)"),
            ("x=<num> <ip> <*>", "x=<num> <ip> <*>"),
            ("{\"open", "{\"open"),
        ] {
            assert_eq!(mask(text), wanted, "{text}");
        }
    }

    #[test]
    fn each_word_has_its_source() {
        let found = words_and_sources("  sent 5 bytes (1 KB) to\t10.0.0.1  'a b' ");
        let sources: Vec<(&str, &str)> =
            found.iter().map(|(word, source)| (word.as_str(), source.as_str())).collect();
        let wanted = [
            ("sent", "sent"),
            ("<num>", "5 bytes (1 KB)"),
            ("bytes", ""),
            ("to", "to"),
            ("<ip>", "10.0.0.1"),
            ("<str>", "'a b'"),
        ];
        assert_eq!(sources, wanted);
    }

    #[test]
    fn a_long_message_is_cut_between_words() {
        let list = |n: usize| mask(&format!("drop {}", "part_1234567 ".repeat(n)));
        assert!(list(1_000).ends_with("part_<num>"), "{}", list(1_000));
        assert!(mask(&"x".repeat(1 << 20)).len() <= limits::TEMPLATE_BYTES_MAX);
    }
}
