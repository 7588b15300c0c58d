//! Recognisers of varying parts: for each kind a function that returns the length of such a part at the beginning of a
//! text, or `None`. They look at a bounded part of the text, never panic, and do not know each other; `mask` decides
//! which is tried first.

use super::head;
use core::net::{Ipv4Addr, Ipv6Addr};

/// The number of bytes at the start of a text that are such characters.
pub(super) fn run(text: &str, is_wanted: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_wanted(c)).unwrap_or(text.len())
}

/// The number of ASCII digits at the start of a text.
pub(super) fn digits(text: &str) -> usize {
    run(text, |c| c.is_ascii_digit())
}

/// The length of `.5` or `,5` at the start of a text, or 0.
pub(super) fn decimals(text: &str) -> usize {
    text.strip_prefix(['.', ',']).map(digits).filter(|n| *n > 0).map_or(0, |n| n + 1)
}

/// The text from a byte on; empty if that is not between two characters.
pub(super) fn skip(text: &str, bytes: usize) -> &str {
    text.get(bytes..).unwrap_or_default()
}

/// The length, if no word continues there.
pub(super) fn ends(text: &str, len: usize) -> Option<usize> {
    (!skip(text, len).starts_with(char::is_alphanumeric)).then_some(len)
}

/// The length without the punctuation that belongs to the sentence.
pub(super) fn trimmed(text: &str, len: usize) -> usize {
    head(text, len).trim_end_matches(['.', ',', ';', ':', '!', '?', '=', ']']).len()
}

/// The length of a pattern, if the text begins with it: `d` is a digit, `x` a hexadecimal digit, others are literal.
pub(super) fn shape(text: &str, pattern: &str) -> Option<usize> {
    let fits = |(wanted, found): (u8, u8)| match wanted {
        b'd' => found.is_ascii_digit(),
        b'x' => found.is_ascii_hexdigit(),
        literal => literal == found,
    };
    (text.len() >= pattern.len() && pattern.bytes().zip(text.bytes()).all(fits)).then_some(pattern.len())
}

/// The maximum length of a group in brackets that is taken as one value; a longer one is text.
const BRACKETS_BYTES_MAX: usize = 512;

/// The length of a bracket and what it encloses, nested ones included, if it is closed within the limit.
pub(super) fn brackets(text: &str) -> Option<usize> {
    let open = *text.as_bytes().first()?;
    let close = match open {
        b'(' => b')',
        b'[' => b']',
        b'{' => b'}',
        b'<' => b'>',
        _ => return None,
    };
    let mut depth = 0_usize;
    for (at, byte) in text.bytes().enumerate().take(BRACKETS_BYTES_MAX) {
        if byte == open {
            depth += 1;
        } else if byte == close {
            depth -= 1;
            if depth == 0 {
                return Some(at + 1);
            }
        }
    }
    None
}

/// The length of the value in `key=value`: up to white space or a usual delimiter, with brackets that belong to it.
pub(super) fn value(text: &str) -> usize {
    let is_value = |c: char| is_url(c) && !";[]&".contains(c);
    let mut len = 0;
    if text.starts_with(['<', '{', '[', '(']) {
        // A mark left by an earlier masking stays.
        let mark = super::MARKS.iter().any(|mark| text.starts_with(mark));
        return if mark { 0 } else { brackets(text).unwrap_or(0) };
    }
    if !text.starts_with(|c: char| c.is_alphanumeric() || "-/_.*#%+~\\:@$".contains(c)) {
        return 0;
    }
    loop {
        len += run(skip(text, len), is_value);
        match skip(text, len).starts_with(['(', '{', '[']).then(|| brackets(skip(text, len))).flatten() {
            Some(group) if len > 0 => len += group,
            _ => break,
        }
    }
    let kept = trimmed(text, len);
    if len > 0 && skip(text, len - 1).starts_with(']') { len } else { kept }
}

/// `'…'`, `"…"`, `` `…` ``, `` `…' `` and their typographic variants, on one line. A closing quote is not followed by a
/// letter, so that an apostrophe does not close; a quote that is never closed is not one.
pub(super) fn quoted(text: &str, _before: char) -> Option<usize> {
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

/// `scheme://…`, up to a character that is not part of a URL.
pub(super) fn url(text: &str, _before: char) -> Option<usize> {
    let scheme = run(head(text, 32), |c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    let address = skip(text, scheme).strip_prefix("://").filter(|_| scheme > 0)?;
    let len = trimmed(address, run(address, is_url));
    (len > 0).then_some(scheme + 3 + len)
}

/// Whether a character may be part of a URL inside a sentence.
pub(super) fn is_url(c: char) -> bool {
    !c.is_whitespace() && !c.is_control() && !"\"'`<>(){}|,".contains(c)
}

/// `name@host.domain`.
pub(super) fn email(text: &str, _before: char) -> Option<usize> {
    let name = run(head(text, 65), |c| c.is_alphanumeric() || "._%+-".contains(c));
    let host = skip(text, name).strip_prefix('@').filter(|_| text.starts_with(char::is_alphanumeric))?;
    let len = trimmed(host, run(host, |c| c.is_alphanumeric() || ".-".contains(c)));
    let (_, domain) = head(host, len).rsplit_once('.')?;
    domain.starts_with(char::is_alphabetic).then_some(name + 1 + len)
}

/// A UUID in its usual form.
pub(super) fn uuid(text: &str, _before: char) -> Option<usize> {
    ends(text, shape(text, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx")?)
}

/// Top-level domains and common last labels of host names. Those that are words as well ("in", "is", "id") are left
/// out.
#[rustfmt::skip]
const DOMAINS: [&str; 44] = [
    "com", "net", "org", "edu", "gov", "mil", "info", "biz", "arpa", "local", "lan", "internal", "localdomain",
    "svc", "intranet", "corp", "io", "dev", "app", "cloud", "cn", "de", "uk", "jp", "kr", "ru", "fr", "br", "nl", "au",
    "ca", "hk", "tw", "mx", "pl", "se", "ch", "es", "eu", "om", "vn", "tr", "ua", "cz",
];

/// A host name with its domain, with or without a port. Names of packages and files do not count.
pub(super) fn host(text: &str) -> Option<usize> {
    let run = run(head(text, 254), |c| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c));
    let len = head(text, run).trim_end_matches(['.', '-']).len();
    let name = head(text, len);
    let (rest, domain) = name.rsplit_once('.')?;
    let first = name.split('.').next().unwrap_or_default();
    let foreign =
        matches!(first, "java" | "javax" | "com" | "org" | "net" | "io" | "sun" | "edu" | "gov" | "this");
    if !DOMAINS.contains(&domain) || rest.is_empty() || foreign || name.contains("..") {
        return None;
    }
    if !rest.contains('.') && matches!(domain, "io" | "app" | "dev" | "local" | "internal" | "info" | "svc") {
        return None;
    }
    let next = skip(text, len).chars().next();
    if next.is_some_and(|c| c.is_alphanumeric() || "_$(/\\@".contains(c)) {
        return None;
    }
    Some(len + port(skip(text, len)))
}

/// A MAC address.
pub(super) fn mac(text: &str) -> Option<usize> {
    ends(text, shape(text, "xx:xx:xx:xx:xx:xx").or_else(|| shape(text, "xx-xx-xx-xx-xx-xx"))?)
}

/// An identifier of several numbers and words, such as `R62-M0-L0-U22` or `201706_0024_m_000003`: the length of a
/// leading word that is kept, and the length of the whole.
pub(super) fn compound(text: &str) -> Option<(usize, usize)> {
    let all = run(head(text, 256), |c| c.is_ascii_alphanumeric() || "_-".contains(c));
    let len = head(text, all).trim_end_matches(['_', '-']).len();
    let name = head(text, len);
    let (mut groups, mut joints, mut before) = (0, 0, b' ');
    for byte in name.bytes() {
        groups += usize::from(byte.is_ascii_digit() && !before.is_ascii_digit());
        joints += usize::from(byte == b'_' || byte == b'-');
        before = byte;
    }
    if groups < 3 || joints < 2 || ends(text, len).is_none() {
        return None;
    }
    let letters = run(name, |c| c.is_ascii_alphabetic());
    let kept = letters >= 3 && skip(name, letters).starts_with(['_', '-']);
    Some((if kept { letters + 1 } else { 0 }, len))
}

/// Base64, also in its URL-safe form: long, with upper and lower case letters and digits.
pub(super) fn base64(text: &str) -> Option<usize> {
    let is_base64 = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'_' | b'-');
    let len = text.bytes().take_while(|b| is_base64(*b)).count();
    let padding = skip(text, len).bytes().take(2).take_while(|b| *b == b'=').count();
    let all = head(text, len).as_bytes();
    let upper = all.iter().filter(|b| b.is_ascii_uppercase()).count();
    let lower = all.iter().filter(|b| b.is_ascii_lowercase()).count();
    let figures = all.iter().filter(|b| b.is_ascii_digit()).count();
    let joints = len - upper - lower - figures;
    let mixed = upper * 8 >= len && lower * 8 >= len && (figures > 1 || padding > 0) && joints * 16 <= len;
    (len >= 20 && mixed).then_some(len + padding).and_then(|len| ends(text, len))
}

/// Abbreviations of months and weekdays.
#[rustfmt::skip]
const CALENDAR: [&str; 19] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun",
];

/// `Sat Jun 18 02:08:10 2005`, `Jun 18 02:08:10`, `Sat, 18 Jun 2005 02:08:10 GMT`: months, weekdays and numbers, one of
/// which is a time of day.
pub(super) fn calendar(text: &str) -> Option<usize> {
    let (mut len, mut end, mut clock, mut parts) = (0, 0, false, 0);
    while parts < 7 {
        let rest = skip(text, len);
        let word = run(head(rest, 16), |c| c.is_ascii_alphanumeric() || ":.+".contains(c));
        let piece = head(rest, word).trim_end_matches('.');
        let is_clock = shape(piece, "dd:dd:dd").or_else(|| shape(piece, "d:dd:dd")).is_some();
        let is_number = !piece.is_empty() && digits(piece) == piece.len() && piece.len() <= 4;
        let is_zone = clock
            && (matches!(piece, "UTC" | "GMT" | "CET" | "EST" | "PST" | "PDT") || piece.starts_with('+'));
        if !(CALENDAR.contains(&piece) || is_clock || is_number || is_zone) || (parts == 0 && is_number) {
            break;
        }
        clock |= is_clock;
        parts += 1;
        end = len + piece.len();
        len += word;
        let gap = skip(text, len);
        let gap = gap.len() - gap.trim_start_matches(',').trim_start_matches(' ').len();
        if gap == 0 || gap > 3 {
            break;
        }
        len += gap;
    }
    (clock && parts >= 3).then_some(end)
}

/// A date, with or without a time of day and a zone, or a time of day.
pub(super) fn time(text: &str, before: char) -> Option<usize> {
    const DATES: [&str; 10] = [
        "dddd-dd-dd",
        "dddd/dd/dd",
        "dddd/d/dd",
        "dddd/dd/d",
        "dddd/d/d",
        "dd/dd/dddd",
        "d/dd/dddd",
        "dd/d/dddd",
        "dd.dd.dddd",
        "dd/dd/dd",
    ];
    const ZONES: [&str; 10] =
        ["Z", "z", "+dd:dd", "-dd:dd", "+dddd", "-dddd", " +dddd", " -dddd", " UTC", " GMT"];
    let fraction = |at: usize| at + decimals(skip(text, at));
    let log_date = shape(text, "dd/").filter(|at| CALENDAR.contains(&head(skip(text, *at), 3)));
    let log_date = log_date.and_then(|at| shape(skip(text, at + 3), "/dddd")).map(|year| year + 6);
    let Some(date) = log_date.or_else(|| DATES.iter().find_map(|date| shape(text, date))) else {
        let seconds =
            shape(text, "dd:dd:dd").or_else(|| shape(text, "d:dd:dd")).or_else(|| shape(text, "ddd:dd:dd"));
        let minutes = || shape(text, "dd:dd").filter(|at| before != ':' && !skip(text, *at).starts_with(':'));
        return ends(text, fraction(seconds.or_else(minutes)?));
    };
    let clock = skip(text, date).strip_prefix(['T', 't', ' ', '_', ':', '-']);
    let Some(clock) = clock.and_then(|t| shape(t, "dd:dd:dd").or_else(|| shape(t, "dd:dd"))) else {
        return ends(text, date);
    };
    let len = fraction(date + 1 + clock);
    ends(text, len + ZONES.iter().find_map(|zone| shape(skip(text, len), zone)).unwrap_or(0))
}

/// An IPv4 or IPv6 address, with or without a port.
pub(super) fn ip(text: &str, _before: char) -> Option<usize> {
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

/// The length of `:port`, or 0.
pub(super) fn port(text: &str) -> usize {
    let digits = text.strip_prefix(':').map_or(0, digits);
    if (1..=5).contains(&digits) && ends(text, digits + 1).is_some() { digits + 1 } else { 0 }
}

/// A file path or the path of a URL. A relative one needs an extension or two slashes, because of "and/or"; one with
/// backslashes needs a drive or a server, because of "\n".
pub(super) fn path(text: &str, before: char) -> Option<usize> {
    let is_path = |c: char| c.is_alphanumeric() || "._-~%+@/$#".contains(c);
    let mut chars = text.chars();
    let (first, second, third) = (chars.next()?, chars.next()?, chars.next());
    let drive = first.is_ascii_alphabetic() && second == ':' && matches!(third, Some('\\' | '/'));
    let server = (first, second) == ('\\', '\\') && third.is_some_and(char::is_alphanumeric);
    if drive || server {
        return Some(trimmed(text, 2 + run(skip(text, 2), |c| is_path(c) || c == '\\')));
    }
    // Closing tags and Java's "/10.0.0.1:80" are not paths.
    let rooted =
        first == '/' && before != '<' && second != '/' && is_path(second) && ip(skip(text, 1), '/').is_none();
    if rooted || ["./", "../", "~/"].iter().any(|start| text.starts_with(start)) {
        let len = run(text, is_path);
        let query = skip(text, len).strip_prefix('?').map_or(0, |query| 1 + run(query, is_url));
        return Some(trimmed(text, len + query));
    }
    // A first part longer than any name is not examined again and again.
    if !first.is_alphabetic() || !head(text, 128).contains('/') {
        return None;
    }
    let len = trimmed(text, run(text, is_path));
    let (folder, file) = head(text, len).rsplit_once('/')?;
    let has_extension = file.rsplit_once('.').is_some_and(|(_, ext)| ext.starts_with(char::is_alphabetic));
    (folder.contains('/') || has_extension).then_some(len)
}

/// Units that depend on the size of the number and so vary with it, even after a space.
#[rustfmt::skip]
const UNITS: [&str; 28] = [
    "B", "kB", "KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB", "Kb", "Mb", "Gb", "K", "M", "G", "ns", "us", "µs",
    "μs", "ms", "s", "sec", "secs", "min", "m", "h", "%",
];

/// A number: sign, digit groups and decimals, exponent, unit. `1h30m`, `1,2,3` and `1.2.3` are one number each.
pub(super) fn number(text: &str, before: char) -> Option<usize> {
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
        // "12abcdef" is not a number with a unit.
        if ends(text, end).is_none() || !(unit.is_empty() || known || hex(text, before).is_none()) {
            return ends(text, whole);
        }
        let spaced = skip(text, end).strip_prefix(' ').filter(|_| unit.is_empty());
        let unit = spaced.map_or("", |after| head(after, run(after, |c| c.is_alphanumeric() || c == '%')));
        return Some(if UNITS.contains(&unit) { end + 1 + unit.len() } else { end });
    }
}

/// `0x…`, or at least eight hexadecimal digits, some of them letters and some not; five after an `@`, where Java prints
/// the identity of an object.
pub(super) fn hex(text: &str, before: char) -> Option<usize> {
    if let Some(after) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        let len = run(after, |c| c.is_ascii_hexdigit());
        return ends(text, len + 2).filter(|_| len > 0);
    }
    let len = run(text, |c| c.is_ascii_hexdigit());
    let digits = head(text, len).bytes().filter(u8::is_ascii_digit).count();
    let mixed = len >= 8 && digits > 0 && digits < len;
    ends(text, len).filter(|_| mixed || (before == '@' && len >= 5))
}

/// A generated name such as `9a8f7` or `3MqLiJLkdIwHu7ix0`, in which letters and digits alternate. A word with digits
/// in one position, such as `k8s` or `base64url`, is a word.
pub(super) fn id(text: &str, _before: char) -> Option<usize> {
    let len = ends(text, run(text, |c| c.is_ascii_alphanumeric()))?;
    let word = head(text, len).as_bytes();
    let turns = word.windows(2).filter(|w| matches!(w, [a, b] if a.is_ascii_digit() != b.is_ascii_digit()));
    let enough = if text.starts_with(|c: char| c.is_ascii_digit()) || len >= 20 { 2 } else { 3 };
    (turns.count() >= enough).then_some(len)
}
