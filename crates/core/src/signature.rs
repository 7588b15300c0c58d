//! The stable form of an error: what stays the same when the same cause strikes another message. It masks
//! the varying parts of the text, finds the function of the top own frame and hashes both into a leaf.
//!
//! It must not panic on any input, look at more than a bounded part of it, or depend on anything but the
//! error itself: the same error has the same leaf on every host and in every run. It does not judge the
//! error (that is `classify`) and it does not redact: the constant parts of a message are kept as they are.

use crate::failure::ErrorInfo;
use crate::ids::LeafId;
use crate::limits;
use core::net::{Ipv4Addr, Ipv6Addr};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Bytes of a message that are looked at. What tells two causes apart stands near the beginning.
const SCAN_BYTES_MAX: usize = 2 * 1024;
/// Bytes of a template. Less than is looked at, so that where the scan ends rarely shows in the template.
const TEMPLATE_BYTES_MAX: usize = 1024;
/// Goes into every leaf: raising it when the masking changes keeps old and new leaves apart.
const VERSION: u8 = 1;

/// What failures of the same cause have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The hash of all the rest.
    pub leaf: LeafId,
    /// The message with its varying parts replaced by `<kind>`.
    pub template: String,
    /// The type or class name of the error.
    pub error_type: String,
    /// The code of the error, if it has one that is not empty.
    pub code: Option<String>,
    /// The function of the top own frame, without file, line and address.
    pub frame: Option<String>,
}

impl Signature {
    /// The signature of an error.
    #[must_use]
    pub fn of(error: &ErrorInfo) -> Self {
        let template = mask(&error.message);
        let error_type = label(&error.error_type);
        let code = error.code.as_deref().map(label).filter(|code| !code.is_empty());
        let frame = error.stack.as_deref().and_then(own_function);
        let (code_text, frame_text) = (code.as_deref().unwrap_or(""), frame.as_deref().unwrap_or(""));
        // No part can hold a zero byte, so no two different lists of parts are hashed alike.
        let mut hash = Sha256::new_with_prefix([VERSION, 0]);
        for part in [error_type.as_str(), code_text, template.as_str(), frame_text] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let first_eight = hash.finalize().iter().take(8).fold(0, |n: u64, byte| (n << 8) | u64::from(*byte));
        Self { leaf: LeafId::new(first_eight), template, error_type, code, frame }
    }
}

/// The longest beginning of a text that fits, ending between two characters.
pub(crate) fn head(text: &str, bytes_max: usize) -> &str {
    (0..=bytes_max.min(text.len())).rev().find_map(|end| text.get(..end)).unwrap_or_default()
}

/// The longest ending of a text that fits, starting between two characters.
pub(crate) fn tail(text: &str, bytes_max: usize) -> &str {
    (text.len().saturating_sub(bytes_max)..=text.len()).find_map(|at| text.get(at..)).unwrap_or_default()
}

/// A name, bounded and on one line.
fn label(text: &str) -> String {
    head(text, limits::LABEL_BYTES_MAX).replace(char::is_control, " ").trim().to_owned()
}

/// The template of a message: its constant parts as they are, its varying parts replaced by `<kind>`, runs
/// of white space and control characters by one space.
#[must_use]
pub fn mask(text: &str) -> String {
    let mut template = String::new();
    let mut rest = head(text, SCAN_BYTES_MAX);
    let mut before = ' ';
    while template.len() < TEMPLATE_BYTES_MAX
        && let Some(first) = rest.chars().next()
    {
        let (len, mark) = step(rest, before);
        let Some((piece, after)) = rest.split_at_checked(len.max(first.len_utf8())) else { break };
        let room = TEMPLATE_BYTES_MAX - template.len();
        match mark {
            Some(mark) if mark.len() > room => break,
            Some(mark) => template.push_str(mark),
            None if !first.is_whitespace() && !first.is_control() => template.push_str(head(piece, room)),
            None if template.is_empty() || template.ends_with(' ') => {}
            None => template.push(' '),
        }
        before = piece.chars().next_back().unwrap_or(first);
        rest = after;
    }
    template.truncate(template.trim_end().len());
    template
}

/// Says how long a varying part is that begins here, if one does. It is told the character before.
type Recognise = fn(&str, char) -> Option<usize>;

/// The kinds of varying parts. The order matters: a date begins like a number, an address like a date.
#[rustfmt::skip]
const KINDS: [(&str, Recognise); 10] = [
    ("<str>", quoted), ("<url>", url), ("<email>", email), ("<uuid>", uuid), ("<time>", time), ("<ip>", ip),
    ("<path>", path), ("<num>", number), ("<hex>", hex), ("<id>", id),
];

/// The length of the next piece of a text, and its mark if it varies.
fn step(rest: &str, before: char) -> (usize, Option<&'static str>) {
    let figures = digits(rest);
    if before.is_alphabetic() && figures > 0 {
        // Only a word with a number at its end is left in the middle, see below: the word has been kept.
        return (number(rest, before).unwrap_or(figures), Some("<num>"));
    }
    if !before.is_alphanumeric() {
        // A value is masked as a whole, whatever it begins with; its key has been kept already.
        let value = if before == '=' { value(rest) } else { 0 };
        let found = |(mark, recognise): &(&'static str, Recognise)| {
            recognise(rest, before).filter(|len| *len >= value).map(|len| (len, Some(*mark)))
        };
        if let Some(masked) = KINDS.iter().find_map(found).or((value > 0).then_some((value, Some("<str>")))) {
            return masked;
        }
    }
    let word = run(rest, char::is_alphanumeric);
    let letters = run(rest, char::is_alphabetic);
    let numbered = letters > 0 && letters + digits(skip(rest, letters)) == word;
    (if numbered { letters } else { word }, None)
}

/// The bytes at the start of a text that are such characters.
fn run(text: &str, is_wanted: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_wanted(c)).unwrap_or(text.len())
}

/// The ASCII digits at the start of a text.
fn digits(text: &str) -> usize {
    run(text, |c| c.is_ascii_digit())
}

/// The length of `.5` or `,5` at the start of a text, or nothing.
fn decimals(text: &str) -> usize {
    text.strip_prefix(['.', ',']).map(digits).filter(|n| *n > 0).map_or(0, |n| n + 1)
}

/// The text from a byte on; nothing when that is not between two characters.
fn skip(text: &str, bytes: usize) -> &str {
    text.get(bytes..).unwrap_or_default()
}

/// The length again, if the text does not go on as a word there.
fn ends(text: &str, len: usize) -> Option<usize> {
    (!skip(text, len).starts_with(char::is_alphanumeric)).then_some(len)
}

/// The length without the punctuation that belongs to the sentence.
fn trimmed(text: &str, len: usize) -> usize {
    head(text, len).trim_end_matches(['.', ',', ';', ':', '!', '?', '=', ']']).len()
}

/// Whether a text begins with a shape: `d` is a digit, `x` a hexadecimal digit, the rest stands for itself.
fn shape(text: &str, pattern: &str) -> Option<usize> {
    let fits = |(wanted, found): (u8, u8)| match wanted {
        b'd' => found.is_ascii_digit(),
        b'x' => found.is_ascii_hexdigit(),
        literal => literal == found,
    };
    (text.len() >= pattern.len() && pattern.bytes().zip(text.bytes()).all(fits)).then_some(pattern.len())
}

/// The value of `key=value`: up to white space or to what usually follows one.
fn value(text: &str) -> usize {
    let len = run(text, |c| is_url(c) && !";[]&".contains(c));
    if text.starts_with(char::is_alphanumeric) { trimmed(text, len) } else { 0 }
}

/// `'…'`, `"…"`, `` `…` ``, `` `…' `` and their typographic sisters, on one line. The closing one is not
/// followed by a letter, so that an apostrophe does not close; one that is never closed opens nothing.
fn quoted(text: &str, _before: char) -> Option<usize> {
    let mut chars = text.char_indices();
    let closing = match chars.next()?.1 {
        '\'' => "'",
        '"' => "\"",
        '`' => "`'",
        '‘' => "’",
        '“' => "”",
        _ => return None,
    };
    while let Some((at, c)) = chars.next() {
        let end = at + c.len_utf8();
        match c {
            '\n' => return None,
            '\\' => drop(chars.next()),
            _ if closing.contains(c) && ends(text, end).is_some() => return Some(end),
            _ => {}
        }
    }
    None
}

/// `scheme://…`, up to what does not stand in an address.
fn url(text: &str, _before: char) -> Option<usize> {
    let scheme = run(head(text, 32), |c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let address = skip(text, scheme).strip_prefix("://").filter(|_| scheme > 0)?;
    let len = trimmed(address, run(address, is_url));
    (len > 0).then_some(scheme + 3 + len)
}

/// Whether a character may stand in an address within a sentence.
fn is_url(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !"\"'`<>(){}|,".contains(c)
}

/// `name@host.domain`.
fn email(text: &str, _before: char) -> Option<usize> {
    let name = run(head(text, 65), |c| c.is_alphanumeric() || "._%+-".contains(c));
    let host = skip(text, name).strip_prefix('@').filter(|_| text.starts_with(char::is_alphanumeric))?;
    let len = trimmed(host, run(host, |c| c.is_alphanumeric() || ".-".contains(c)));
    let (_, domain) = head(host, len).rsplit_once('.')?;
    domain.starts_with(char::is_alphabetic).then_some(name + 1 + len)
}

/// A UUID in its usual form.
fn uuid(text: &str, _before: char) -> Option<usize> {
    ends(text, shape(text, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")?)
}

/// A date, with or without a time of day and a zone, or a time of day with seconds.
fn time(text: &str, _before: char) -> Option<usize> {
    let fraction = |at: usize| at + decimals(skip(text, at));
    let Some(date) = shape(text, "dddd-dd-dd").or_else(|| shape(text, "dddd/dd/dd")) else {
        return ends(text, fraction(shape(text, "dd:dd:dd").or_else(|| shape(text, "d:dd:dd"))?));
    };
    let clock = skip(text, date).strip_prefix(['T', 't', ' ', '_']);
    let Some(clock) = clock.and_then(|t| shape(t, "dd:dd:dd").or_else(|| shape(t, "dd:dd"))) else {
        return ends(text, date);
    };
    let len = fraction(date + 1 + clock);
    let zones = ["Z", "z", "+dd:dd", "-dd:dd", "+dddd", "-dddd", " +dddd", " -dddd", " UTC", " GMT"];
    ends(text, len + zones.iter().find_map(|zone| shape(skip(text, len), zone)).unwrap_or(0))
}

/// An IPv4 or IPv6 address, with or without a port.
fn ip(text: &str, _before: char) -> Option<usize> {
    // The longest IPv6 address has 45 bytes; one more shows that this is something else.
    let v6 = |t: &str| trimmed(t, run(head(t, 46), |c| c.is_ascii_hexdigit() || ":.".contains(c)));
    let is_v6 = |t: &str| t.contains(|c: char| c.is_ascii_digit()) && t.parse::<Ipv6Addr>().is_ok();
    if let Some(inner) = text.strip_prefix('[') {
        let len = v6(inner);
        let closed = skip(inner, len).starts_with(']') && is_v6(head(inner, len));
        return closed.then(|| len + 2 + port(skip(text, len + 2)));
    }
    let len = trimmed(text, run(head(text, 16), |c| c.is_ascii_digit() || c == '.'));
    if head(text, len).parse::<Ipv4Addr>().is_ok() {
        return ends(text, len + port(skip(text, len)));
    }
    let len = v6(text);
    if is_v6(head(text, len)) { ends(text, len) } else { None }
}

/// The length of `:port`, or nothing.
fn port(text: &str) -> usize {
    let digits = text.strip_prefix(':').map_or(0, digits);
    if (1..=5).contains(&digits) && ends(text, digits + 1).is_some() { digits + 1 } else { 0 }
}

/// A file path or the path of an address. A relative one needs an extension or two slashes, for there is
/// "and/or" as well; one with backslashes needs a drive or a server, for there is "\n" as well.
fn path(text: &str, before: char) -> Option<usize> {
    let is_path = |c: char| c.is_alphanumeric() || "._-~%+@/$#".contains(c);
    let mut chars = text.chars();
    let (first, second, third) = (chars.next()?, chars.next()?, chars.next());
    let drive = first.is_ascii_alphabetic() && second == ':' && matches!(third, Some('\\' | '/'));
    let server = (first, second) == ('\\', '\\') && third.is_some_and(char::is_alphanumeric);
    if drive || server {
        return Some(trimmed(text, 2 + run(skip(text, 2), |c| is_path(c) || c == '\\')));
    }
    // Closing tags and Java's "/10.0.0.1:80" are no paths.
    let rooted =
        first == '/' && before != '<' && second != '/' && is_path(second) && ip(skip(text, 1), '/').is_none();
    if rooted || ["./", "../", "~/"].iter().any(|start| text.starts_with(start)) {
        let len = run(text, is_path);
        let query = skip(text, len).strip_prefix('?').map_or(0, |query| 1 + run(query, is_url));
        return Some(trimmed(text, len + query));
    }
    // A first part longer than any name is not looked at again and again.
    if !first.is_alphabetic() || !head(text, 128).contains('/') {
        return None;
    }
    let len = trimmed(text, run(text, is_path));
    let (folder, file) = head(text, len).rsplit_once('/')?;
    let has_extension = file.rsplit_once('.').is_some_and(|(_, ext)| ext.starts_with(char::is_alphabetic));
    (folder.contains('/') || has_extension).then_some(len)
}

/// Units that change with the size of the number and so vary with it, even after a space.
#[rustfmt::skip]
const UNITS: [&str; 21] = [
    "B", "kB", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB", "ns", "us", "µs", "μs", "ms", "s", "min",
    "m", "h", "d", "%",
];

/// A number: sign, groups and decimals, exponent, unit; `1h30m` is one number, `1,2,3` and `1.2.3` too.
fn number(text: &str, before: char) -> Option<usize> {
    let sign = usize::from(text.starts_with(['-', '+']));
    let whole = sign + Some(digits(skip(text, sign))).filter(|n| *n > 0)?;
    let mut len = whole;
    loop {
        while let more @ 1.. = decimals(skip(text, len)) {
            len += more;
        }
        let exponent = skip(text, len).strip_prefix(['e', 'E']);
        let signed = exponent.and_then(|e| e.strip_prefix(['-', '+'])).map(digits).filter(|n| *n > 0);
        len += signed.map_or(0, |n| n + 2);
        let letters = run(skip(text, len), |c| c.is_alphabetic() || c == '%');
        let unit = head(skip(text, len), letters);
        let known = UNITS.contains(&unit);
        let end = len + letters;
        let more = digits(skip(text, end));
        if known && more > 0 {
            len = end + more;
            continue;
        }
        // "12abcdef" is not twelve of something.
        if ends(text, end).is_none() || !(unit.is_empty() || known || hex(text, before).is_none()) {
            return ends(text, whole);
        }
        let spaced = skip(text, end).strip_prefix(' ').filter(|_| unit.is_empty());
        let unit = spaced.map_or("", |after| head(after, run(after, |c| c.is_alphanumeric() || c == '%')));
        return Some(if UNITS.contains(&unit) { end + 1 + unit.len() } else { end });
    }
}

/// `0x…`, or at least eight hexadecimal digits of which some are letters and some are not; five after an
/// `@`, where Java prints the identity of an object.
fn hex(text: &str, before: char) -> Option<usize> {
    if let Some(after) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let len = run(after, |c| c.is_ascii_hexdigit());
        return ends(text, len + 2).filter(|_| len > 0);
    }
    let len = run(text, |c| c.is_ascii_hexdigit());
    let digits = head(text, len).bytes().filter(u8::is_ascii_digit).count();
    let mixed = len >= 8 && digits > 0 && digits < len;
    ends(text, len).filter(|_| mixed || (before == '@' && len >= 5))
}

/// A made-up name such as `9a8f7` or `3MqLiJLkdIwHu7ix0`: letters and digits that take turns. A word with
/// digits in one place, such as `k8s` or `base64url`, is a word.
fn id(text: &str, _before: char) -> Option<usize> {
    let len = ends(text, run(text, |c| c.is_ascii_alphanumeric()))?;
    let word = head(text, len).as_bytes();
    let turns = word.windows(2).filter(|w| matches!(w, [a, b] if a.is_ascii_digit() != b.is_ascii_digit()));
    let enough = if text.starts_with(|c: char| c.is_ascii_digit()) || len >= 20 { 2 } else { 3 };
    (turns.count() >= enough).then_some(len)
}

/// Beginnings of functions that are not the user's own: the runtime and the great frameworks.
#[rustfmt::skip]
const FOREIGN_NAMES: [&str; 23] = [
    "java.", "javax.", "jakarta.", "jdk.", "sun.", "com.sun.", "kotlin.", "kotlinx.", "scala.", "org.apache.",
    "org.springframework.", "System.", "Microsoft.", "runtime.", "runtime/", "reflect.", "testing.",
    "net/http.", "std::", "core::", "alloc::", "tokio::", "__rustc::",
];

/// Parts of places that the user's own code does not come from.
#[rustfmt::skip]
const FOREIGN_PLACES: [&str; 16] = [
    "node_modules", "node:", "(internal/", "site-packages", "dist-packages", "/lib/python", "<frozen ",
    "/gems/", "/lib/ruby/", "<internal:", "/rustc/", "/.cargo/registry/", "/usr/local/go/src/", "/usr/lib/go",
    "/pkg/mod/", "/vendor/",
];

/// A line of a stack: the function, and the text that tells where it is.
type Frame<'a> = (&'a str, &'a str);

/// The function of the innermost frame that is the user's own.
fn own_function(stack: &str) -> Option<String> {
    let is_own = |(name, place): &Frame<'_>| {
        let bare = name.trim_start_matches(['<', '&', '*', '(']);
        let foreign = FOREIGN_NAMES.iter().any(|start| bare.starts_with(start));
        !foreign && !FOREIGN_PLACES.iter().any(|part| place.contains(part))
    };
    // Python alone prints the innermost frame last.
    let python = tail(stack, limits::STACK_BYTES_MAX).lines().rev().filter_map(python_frame).find(is_own);
    let stack = head(stack, limits::STACK_BYTES_MAX);
    let mut others = stack.lines().zip(stack.lines().skip(1).chain([""])).filter_map(|(line, next)| {
        let frame = at_frame(line).or_else(|| ruby_frame(line));
        frame.or_else(|| rust_frame(line, next)).or_else(|| go_frame(line, next))
    });
    python.or_else(|| others.find(is_own)).map(|(name, _)| label(name)).filter(|name| !name.is_empty())
}

/// `File "x.py", line 3, in func`; groups of exceptions are drawn with bars in front.
fn python_frame(line: &str) -> Option<Frame<'_>> {
    let place = line.trim_start_matches([' ', '\t', '|', '+']).strip_prefix("File \"")?;
    let (place, name) = place.rsplit_once(", in ")?;
    place.contains("\", line ").then_some((name.trim(), place))
}

/// `at …` of JavaScript, of Java and its kin, and of .NET.
fn at_frame(line: &str) -> Option<Frame<'_>> {
    let body = line.trim().strip_prefix("at ")?;
    if let Some((name, place)) = body.split_once(" (").filter(|(name, _)| !name.contains('(')) {
        let name = name.strip_prefix("async ").unwrap_or(name);
        let name = name.split_once(" [as ").map_or(name, |(name, _)| name);
        // What is built in has no place: "<anonymous>", "native", "index 0".
        return place.contains(':').then_some((name, body));
    }
    // What the JVM makes up at run time has a number for a name.
    let is_made_up = |name: &str| name.contains("$$") || name.contains("$Proxy");
    let (name, place) = body.split_once('(').filter(|(name, _)| !is_made_up(name))?;
    let name = name.rsplit_once('/').map_or(name, |(_module, name)| name);
    // The compiler numbers lambdas, and a new one above would rename those below.
    let unnumbered = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let name = unnumbered.strip_suffix('$').unwrap_or(name);
    // An async method of .NET is a made-up class: Type.<Method>d__5.MoveNext.
    let method = name.strip_suffix(".MoveNext").and_then(|name| name.find(">d__"));
    Some((method.map_or(name, |end| head(name, end + 1)), place))
}

/// ``x.rb:3:in `func'``, with or without `from`; since 3.4 with two equal quotes.
fn ruby_frame(line: &str) -> Option<Frame<'_>> {
    let (place, name) = line.split_once(":in ")?;
    let name = name.trim().strip_prefix(['`', '\''])?.trim_end_matches('\'');
    Some((name.rsplit_once(" in ").map_or(name, |(_block, name)| name), place))
}

/// `3: crate::module::func`, with or without an address before and a hash after; the next line may say where.
fn rust_frame<'a>(line: &'a str, next: &'a str) -> Option<Frame<'a>> {
    let (index, name) = line.trim().split_once(": ").filter(|(_, name)| name.contains("::"))?;
    index.parse::<u16>().ok()?;
    let name = name.trim();
    let name = name.split_once(" - ").filter(|_| name.starts_with("0x")).map_or(name, |(_, name)| name);
    let hashed = name.rsplit_once("::h").filter(|(_, h)| shape(h, "xxxxxxxxxxxxxxxx") == Some(h.len()));
    let name = hashed.map_or(name, |(name, _)| name).trim_end_matches("::{{closure}}");
    Some((name, if next.trim_start().starts_with("at ") { next } else { "" }))
}

/// `main.func(0x…)`, followed by a line that starts with a tab and names a Go file.
fn go_frame<'a>(line: &'a str, next: &'a str) -> Option<Frame<'a>> {
    // "created by" is no call and so does not end with its arguments.
    let is_call = line.ends_with(')') && next.starts_with('\t') && next.contains(".go:");
    let (name, _) = line.rsplit_once('(').filter(|(name, _)| is_call && name.contains('.'))?;
    // Closures are numbered; the function around them is what has a name.
    let closure = name.find(".func").filter(|at| digits(skip(name, at + 5)) > 0);
    Some((closure.map_or(name, |at| head(name, at)), next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(message: &str) -> ErrorInfo {
        ErrorInfo { error_type: "E".into(), message: message.into(), ..ErrorInfo::default() }
    }

    fn frame(stack: &str) -> Option<String> {
        Signature::of(&ErrorInfo { stack: Some(stack.into()), ..ErrorInfo::default() }).frame
    }

    #[test]
    fn each_kind_of_varying_part_has_its_mark() {
        for (text, wanted) in [
            ("no 01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00 here", "no <uuid> here"),
            ("task_01981C3E-7D5A-7CC0-8B1F-3A52C0FFEE00", "task_<uuid>"),
            ("at 0x7ffe, sha 9fceb02d0ae598e95dc970b74767f19372d61af8", "at <hex>, sha <hex>"),
            ("Foo@1b2c3 deadbeef facade 12abcdef", "Foo@<hex> deadbeef facade <hex>"),
            ("3 of -4.5, +6 1,000,000 1e-9 50% [7]", "<num> of <num>, <num> <num> <num> <num> [<num>]"),
            ("took 13 ms or 1h30m, 7.45 GiB of 134217728B", "took <num> or <num>, <num> of <num>"),
            ("v1.2.3 worker12 db-3 k8s p2p 1.2rc1", "v<num> worker<num> db-<num> k8s p2p <num>.<id>"),
            ("10.0.0.1:80 [::1]:443 fe80::1: no", "<ip> <ip> <ip>: no"),
            ("to /10.0.0.1:80, 300.1.1.1, a::b", "to /<ip>, <num>, a::b"),
            ("GET https://a.b/c?d=e#f. jdbc:pg://u:p@h/d", "GET <url>. jdbc:<url>"),
            ("mail a.b+c@example.org, a@b", "mail <email>, a@b"),
            (
                "open /etc/app/x.yaml: no ~/x ./y src/a.rs:4:2",
                "open <path>: no <path> <path> <path>:<num>:<num>",
            ),
            (r"C:\a\b.txt \\srv\share x/y/z GET /v1/i?a=1", "<path> <path> <path> GET <path>"),
            ("read/write and/or I/O 3/4 a / b </p>", "read/write and/or I/O <num>/<num> a / b </p>"),
            ("2026-01-31T12:00:00.5+01:00 2026-01-31 12:00:00,123 UTC", "<time> <time>"),
            ("on 2026-01-31 at 23:59:59.", "on <time> at <time>."),
            ("order-4411 ORDER#7 blk_-38 cus_9a8f7", "order-<num> ORDER#<num> blk_<num> cus_<id>"),
            (
                "user=bob id=a-4 n=5 t= ok (k=v.w): x = y",
                "user=<str> id=<str> n=<num> t= ok (k=<str>): x = y",
            ),
        ] {
            assert_eq!(mask(text), wanted, "{text}");
        }
    }

    #[test]
    fn quotes_mask_what_they_enclose_and_nothing_else() {
        for (text, wanted) in [
            ("no 'a b' \"c\" `d` `e' ‘f’ “g” ''", "no <str> <str> <str> <str> <str> <str> <str>"),
            (r#"f("a \"b\" c", 'it's', k="v")"#, "f(<str>, <str>, k=<str>)"),
            ("can't read users' data of 5", "can't read users' data of <num>"),
            ("an \"open one 17", "an \"open one <num>"),
            ("an 'open one\nand 'another", "an 'open one and 'another"),
            ("'", "'"),
        ] {
            assert_eq!(mask(text), wanted, "{text}");
        }
    }

    #[test]
    fn white_space_and_control_characters_become_one_space() {
        assert_eq!(mask("  a \r\n\t b\u{0}\u{1b}[0m c \n"), "a b [<num> c");
    }

    #[test]
    fn each_language_gives_its_own_top_function() {
        let python = [
            "Traceback (most recent call last):",
            "  File \"/app/main.py\", line 9, in main",
            "    run()",
            "  File \"/app/jobs.py\", line 3, in charge",
            "    get()",
            "  File \"/opt/venv/lib/python3.12/site-packages/requests/api.py\", line 5, in get",
            "E: in x",
        ]
        .join("\n");
        let java = [
            "E: x",
            "\tat java.base/java.util.List.get(List.java:1)",
            "\tat com.acme.Foo$$Lambda$14/0x08.run(Unknown Source)",
            "\tat app//com.acme.Foo.lambda$bar$0(Foo.kt:2)",
            "\tat com.acme.Main.main(Main.java:3)",
        ]
        .join("\n");
        let javascript = [
            "E: x",
            "    at JSON.parse (<anonymous>)",
            "    at get (/app/node_modules/got/i.js:1:2)",
            "    at /app/y.js:3:4",
            "    at async Object.charge [as run] (/app/x.js:1:2)",
            "    at node:internal/main:1:1",
        ]
        .join("\n");
        let go = [
            "goroutine 1 [running]:",
            "runtime/debug.Stack()",
            "\t/usr/local/go/src/runtime/debug/stack.go:24 +0x65",
            "panic({0x1, 0x2})",
            "\t/usr/local/go/src/runtime/panic.go:884",
            "github.com/acme/app.(*Server).Charge.func1(0xc000, 0x1)",
            "\t/app/main.go:12 +0x1d",
            "main.main()",
            "\t/app/main.go:1",
        ]
        .join("\n");
        let rust = [
            "   0: rust_begin_unwind",
            "             at /rustc/1/library/std/src/panicking.rs:1:5",
            "   1: core::panicking::panic_fmt",
            "   2: <alloc::boxed::Box<F> as core::ops::FnOnce<A>>::call_once",
            "   3: serde_json::from_str",
            "             at /srv/.cargo/registry/src/x/de.rs:1:1",
            "   4:     0x55d0c8 - acme::jobs::charge::{{closure}}::h0123456789abcdef",
            "             at ./src/jobs.rs:3:9",
            "   5: acme::main",
        ]
        .join("\n");
        let ruby = [
            "/usr/lib/ruby/gems/3.0/gems/x/y.rb:1:in `get'",
            "\tfrom app.rb:3:in `block (2 levels) in charge'",
            "\tfrom app.rb:9:in `<main>'",
        ]
        .join("\n");
        let dotnet = [
            "   at System.String.Parse(String s)",
            "   at Acme.Jobs.<Charge>d__5.MoveNext() in /src/J.cs:line 3",
        ]
        .join("\n");
        for (stack, wanted) in [
            (python.as_str(), "charge"),
            (java.as_str(), "com.acme.Foo.lambda$bar"),
            (javascript.as_str(), "Object.charge"),
            (go.as_str(), "github.com/acme/app.(*Server).Charge"),
            (rust.as_str(), "acme::jobs::charge"),
            (ruby.as_str(), "charge"),
            ("app.rb:3:in 'Acme::Jobs#charge'", "Acme::Jobs#charge"),
            (dotnet.as_str(), "Acme.Jobs.<Charge>"),
            ("   at Acme.Jobs.Run(String a, Int32 b)", "Acme.Jobs.Run"),
        ] {
            assert_eq!(frame(stack).as_deref(), Some(wanted), "{stack}");
        }
        for stack in [
            "",
            "no stack at all",
            "\tat java.lang.Thread.run(Thread.java:1)",
            "created by main.(*S).x\n\ta.go:1",
        ] {
            assert_eq!(frame(stack), None, "{stack}");
        }
    }

    #[test]
    fn the_same_cause_has_the_same_leaf() {
        let (a, b) =
            (error("order-4411 of 'bob' failed after 3 s"), error("order-9 of 'al x'\n failed after 1.5 ms"));
        assert_eq!(Signature::of(&a), Signature::of(&b));
        let stack = |line: u32| Some(format!("  File \"/app/{line}.py\", line {line}, in charge"));
        let (a, b) = (ErrorInfo { stack: stack(3), ..a }, ErrorInfo { stack: stack(4), ..b });
        assert_eq!(Signature::of(&a).leaf, Signature::of(&b).leaf);
    }

    #[test]
    fn type_code_template_and_frame_each_tell_causes_apart() {
        let base = error("x");
        let others = [
            error("y"),
            ErrorInfo { error_type: "F".into(), ..base.clone() },
            ErrorInfo { code: Some("7".into()), ..base.clone() },
            ErrorInfo { stack: Some("a.rb:1:in `f'".into()), ..base.clone() },
            ErrorInfo {
                error_type: "E\0".into(),
                message: String::new(),
                code: Some("x".into()),
                ..base.clone()
            },
        ];
        let mut leaves: Vec<LeafId> = others.iter().chain([&base]).map(|e| Signature::of(e).leaf).collect();
        leaves.sort_unstable();
        leaves.dedup();
        assert_eq!(leaves.len(), 6);
        let empty = ErrorInfo { code: Some(" ".into()), ..base.clone() };
        assert_eq!(Signature::of(&empty), Signature::of(&base), "an empty code is none");
    }

    /// Leaves stand in stores: when this fails, the masking has changed and `VERSION` must too.
    #[test]
    fn a_leaf_is_for_ever() {
        assert_eq!(Signature::of(&error("order-4411")).leaf.to_string(), "6720c16837f14f25");
    }

    #[test]
    fn long_messages_are_looked_at_in_part_and_still_group() {
        let long = |n: usize, tail: &str| {
            mask(&format!("id {} failed: {} {tail}", "7".repeat(n), "lorem ".repeat(300)))
        };
        assert_eq!(long(1, "a"), long(30, "b"));
        for text in ["é".repeat(5_000), "1 ".repeat(5_000), "a".repeat(5_000), "''".repeat(5_000)] {
            assert!(!mask(&text).is_empty() && mask(&text).len() <= TEMPLATE_BYTES_MAX, "{}", mask(&text));
        }
    }

    #[test]
    fn no_input_is_too_strange() {
        #[rustfmt::skip]
        let seeds = [
            "", "'", "\"", "`", "\\", "'\\", "\u{0}", "\u{7f}", "é", "日本", "\u{202e}", "\u{fffd}", "½", "٣",
            "-", "+", ".", "..", "/", "//", "./", "\\\\", "C:\\", ":", "::", "[", "[::", "@", "a@", "0x",
            "0", "1e", "1e-", "1.", "://", "a://", "=", "a=", "a==", "<", "2026-01-3", "2026-01-31T",
            "12:00:0", "1.2.3.4:", "µ", "5µ", "5é", "at ", "at (", "\tat (", "File \"",
            "File \"\", line , in ", "1: ::", "1: ::h0123456789abcdef", ":in `", "\n\t.go:", "x.(\n\t.go:",
        ];
        let check = |text: String| {
            let (code, stack) = (Some(text.clone()), Some(text.clone()));
            let found = Signature::of(&ErrorInfo { code, stack, ..error(&text) });
            assert!(found.template.len() <= TEMPLATE_BYTES_MAX, "{text:?}");
            assert!(!found.template.contains(char::is_control) && !found.template.contains("  "), "{text:?}");
            assert!(
                found.frame.is_none_or(|f| !f.is_empty() && f.len() <= limits::LABEL_BYTES_MAX),
                "{text:?}"
            );
        };
        for a in seeds {
            check(a.repeat(3_000));
            for b in seeds {
                check(format!("{a}{b}"));
                check(format!("{a} {b}{a}"));
            }
        }
        // Bytes in no order, the same ones in every run.
        let mut state = 1_u32;
        for len in 0..2_000_usize {
            let bytes: Vec<u8> = (0..len % 300)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state.to_be_bytes()[0]
                })
                .collect();
            let text = String::from_utf8_lossy(&bytes);
            assert_eq!(Signature::of(&error(&text)), Signature::of(&error(&text)));
        }
    }
}
