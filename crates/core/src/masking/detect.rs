//! What secrets look like, whatever their names. Each function returns the length of such a secret at the beginning of
//! a text, or whether a word is one. Each looks at a bounded part of the text, or only at what the caller consumes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The number of bytes at the start that satisfy the predicate.
pub(super) fn run(bytes: &[u8], is_wanted: impl Fn(u8) -> bool) -> usize {
    bytes.iter().position(|b| !is_wanted(*b)).unwrap_or(bytes.len())
}

/// Whether a byte can be part of a name or a token.
pub(super) fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-')
}

/// Whether a byte belongs to base64, in either alphabet.
pub(super) fn is_base64(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'_' | b'-' | b'=')
}

fn at(bytes: &[u8], n: usize) -> u8 {
    bytes.get(n).copied().unwrap_or(0)
}

/// Whether a word is a JSON web token: a header that is base64 of `{"`, and two more parts.
pub(super) fn is_jwt(word: &str) -> bool {
    let mut parts = word.split('.');
    let (head, body, seal) = (parts.next(), parts.next(), parts.next());
    let fits =
        |part: Option<&str>, min: usize| part.is_some_and(|p| p.len() >= min && p.bytes().all(is_base64));
    head.is_some_and(|h| h.starts_with("eyJ")) && fits(head, 8) && fits(body, 2) && fits(seal, 0)
}

/// Whether a word is an access key of Amazon Web Services: four known letters and sixteen more.
pub(super) fn is_aws(word: &str) -> bool {
    const KINDS: [&str; 7] = ["AKIA", "ASIA", "AGPA", "AIDA", "AROA", "ANPA", "ANVA"];
    word.len() == 20
        && KINDS.iter().any(|kind| word.starts_with(kind))
        && word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
}

/// Whether a word has the prefix of a known kind of token and its minimum length.
pub(super) fn is_token(word: &str) -> bool {
    token_prefix(word).is_some()
}

fn token_prefix(word: &str) -> Option<&'static str> {
    const PREFIXES: [(&str, usize); 24] = [
        ("ghp_", 20),
        ("gho_", 20),
        ("ghu_", 20),
        ("ghs_", 20),
        ("ghr_", 20),
        ("github_pat_", 30),
        ("glpat-", 20),
        ("xoxb-", 20),
        ("xoxp-", 20),
        ("xoxa-", 20),
        ("xoxs-", 20),
        ("xapp-", 20),
        ("sk-", 20),
        ("sk_live_", 16),
        ("sk_test_", 16),
        ("rk_live_", 16),
        ("whsec_", 16),
        ("AIza", 35),
        ("ya29.", 20),
        ("npm_", 30),
        ("hf_", 20),
        ("SG.", 30),
        ("shpat_", 20),
        ("dop_v1_", 30),
    ];
    let fits = |(prefix, min): &&(&str, usize)| word.len() >= *min && word.starts_with(prefix);
    PREFIXES.iter().find(fits).map(|(prefix, _)| *prefix)
}

/// Whether a token follows something else, as in `old_ghp_…`. Parts of ordinary names look like a prefix
/// (`my-sk-service-in-production`), so what follows it has to look random.
pub(super) fn is_token_behind_something(word: &str) -> bool {
    const RUN_MIN: usize = 16;
    let Some(prefix) = token_prefix(word) else { return false };
    let body = word.get(prefix.len()..).unwrap_or_default();
    body.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| {
        let has = |kind: fn(&u8) -> bool| part.bytes().any(|b| kind(&b));
        let kinds = [has(u8::is_ascii_digit), has(u8::is_ascii_lowercase), has(u8::is_ascii_uppercase)];
        part.len() >= RUN_MIN && kinds.into_iter().filter(|kind| *kind).count() > 1
    })
}

/// The length of a private key in PEM: to its end, or to the end of the text if it was cut.
pub(super) fn pem(text: &str) -> Option<usize> {
    const LINE_MAX: usize = 64;
    let rest = text.strip_prefix("-----BEGIN ")?;
    let line = rest.as_bytes().get(..rest.len().min(LINE_MAX)).unwrap_or_default();
    let head = run(line, |b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b' ');
    if !rest.get(..head)?.ends_with("PRIVATE KEY") && !rest.get(..head)?.ends_with("PRIVATE KEY BLOCK") {
        return None;
    }
    let Some(end) = text.find("-----END ") else { return Some(text.len()) };
    let tail = text.get(end + "-----END ".len()..)?;
    let name = run(tail.as_bytes().get(..tail.len().min(LINE_MAX)).unwrap_or_default(), |b| {
        b.is_ascii_uppercase() || b.is_ascii_digit() || b == b' '
    });
    let dashes = run(tail.as_bytes().get(name..tail.len().min(name + 5)).unwrap_or_default(), |b| b == b'-');
    Some(end + "-----END ".len() + name + dashes)
}

/// The length of a payment card number: 13 to 19 digits with single blanks or dashes between them, in a range that
/// cards have, with a valid check digit. Letters may follow it: see [`is_card_before`].
pub(super) fn card(bytes: &[u8]) -> Option<usize> {
    const DIGITS_MAX: usize = 19;
    if !matches!(at(bytes, 0), b'2'..=b'6') {
        return None;
    }
    let mut digits = Vec::with_capacity(DIGITS_MAX);
    let (mut n, mut group, mut joint, mut found) = (0, 0, None, None);
    loop {
        let b = at(bytes, n);
        if b.is_ascii_digit() {
            if digits.len() == DIGITS_MAX {
                return found;
            }
            digits.push(b - b'0');
            n += 1;
            group += 1;
            let ends = !at(bytes, n).is_ascii_digit() && at(bytes, n) != b'_';
            let whole = joint.is_none() || (3..=6).contains(&group);
            if ends && whole && is_issued(&digits) && luhn(&digits) {
                found = Some(n);
            }
        } else if matches!(b, b' ' | b'-')
            && at(bytes, n + 1).is_ascii_digit()
            && joint.is_none_or(|joint| joint == b && (3..=6).contains(&group))
            && (joint.is_some() || group == 4)
        {
            joint = Some(b);
            group = 0;
            n += 1;
        } else {
            return found;
        }
    }
}

/// Whether digits followed by these letters and digits can be a card number: not with a unit, as in `4111…ns`.
pub(super) fn is_card_before(behind: &str) -> bool {
    const UNITS: [&str; 22] = [
        "ns", "us", "ms", "s", "sec", "b", "kb", "mb", "gb", "kib", "mib", "gib", "bytes", "n", "l", "ul",
        "ull", "f", "d", "u64", "i64", "u128",
    ];
    let exponent = behind.strip_prefix(['e', 'E']).is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    !exponent && !UNITS.iter().any(|unit| behind.eq_ignore_ascii_case(unit))
}

/// Whether a run of letters and digits is hexadecimal and long enough to be an id or a digest.
pub(super) fn is_hex_id(run: &[u8]) -> bool {
    const LENGTH_MIN: usize = 24;
    run.len() >= LENGTH_MIN && run.iter().all(u8::is_ascii_hexdigit)
}

/// Whether there are cards with this length and prefix. A tenth of all other numbers has a valid check digit.
fn is_issued(digits: &[u8]) -> bool {
    let (Some(first), Some(second)) = (digits.first(), digits.get(1)) else { return false };
    let two = first * 10 + second;
    match digits.len() {
        13 => *first == 4,
        14 => matches!(two, 30 | 36 | 38 | 39),
        15 => matches!(two, 34 | 37),
        16 => matches!(two, 22..=27 | 35 | 40..=49 | 50..=58 | 60 | 62..=65 | 67),
        17 | 18 => matches!(two, 50 | 56..=58 | 60 | 62..=65 | 67),
        19 => matches!(two, 40..=49 | 50 | 56..=58 | 60 | 62..=65 | 67),
        _ => false,
    }
}

/// Whether the check digit of a card number is valid.
fn luhn(digits: &[u8]) -> bool {
    let doubled = |d: u8| if d > 4 { d * 2 - 9 } else { d * 2 };
    let sum: u32 = digits
        .iter()
        .rev()
        .enumerate()
        .map(|(n, d)| u32::from(if n % 2 == 1 { doubled(*d) } else { *d }))
        .sum();
    // Repetitions of one digit add up as well, but are not card numbers.
    sum.is_multiple_of(10) && digits.iter().any(|d| Some(d) != digits.first())
}

/// The length of a bank account number: two letters, two digits, 11 to 30 more characters with single blanks between
/// them, and valid check digits.
pub(super) fn iban(bytes: &[u8]) -> Option<usize> {
    const LENGTH_MAX: usize = 34;
    let country = at(bytes, 0).is_ascii_uppercase() && at(bytes, 1).is_ascii_uppercase();
    if !country || !at(bytes, 2).is_ascii_digit() || !at(bytes, 3).is_ascii_digit() {
        return None;
    }
    let mut plain = Vec::with_capacity(LENGTH_MAX);
    let (mut n, mut found) = (0, None);
    loop {
        let b = at(bytes, n);
        if b.is_ascii_uppercase() || b.is_ascii_digit() {
            if plain.len() == LENGTH_MAX {
                return found;
            }
            plain.push(b);
            n += 1;
            let ends = !at(bytes, n).is_ascii_alphanumeric();
            if ends && plain.len() >= 15 && mod_97(&plain) == 1 {
                found = Some(n);
            }
        } else if b == b' ' && (at(bytes, n + 1).is_ascii_uppercase() || at(bytes, n + 1).is_ascii_digit()) {
            n += 1;
        } else {
            return found;
        }
    }
}

fn mod_97(plain: &[u8]) -> u32 {
    let (head, tail) = plain.split_at_checked(4).unwrap_or((plain, &[]));
    tail.iter().chain(head).fold(0, |sum, b| {
        let value = if b.is_ascii_digit() { u32::from(b - b'0') } else { u32::from(b - b'A') + 10 };
        (if value > 9 { sum * 100 } else { sum * 10 } + value) % 97
    })
}

/// Whether a word is a US social security number: `ddd-dd-dddd`, in a range that is assigned.
pub(super) fn is_ssn(word: &str) -> bool {
    let b = word.as_bytes();
    let shape = b.len() == 11
        && b.iter().enumerate().all(|(n, b)| if n == 3 || n == 6 { *b == b'-' } else { b.is_ascii_digit() });
    let part = |range: std::ops::Range<usize>| word.get(range).unwrap_or_default();
    shape
        && !matches!(part(0..3), "000" | "666")
        && !word.starts_with('9')
        && part(4..6) != "00"
        && part(7..11) != "0000"
}

/// Whether a character can be part of the name of a person or a place in any script: letters, digits and combining
/// accents.
pub(super) fn is_letter(c: char) -> bool {
    c.is_alphanumeric() || ('\u{300}'..='\u{36f}').contains(&c)
}

/// Whether a letter belongs to a script without capitals, such as Chinese. Sentences in these have no blanks either.
pub(super) fn is_caseless(c: char) -> bool {
    !c.is_ascii() && c.is_alphabetic() && !c.is_lowercase() && !c.is_uppercase()
}

/// The length of the domain of an email address, after the `@`. In a script without blanks, a sentence may continue
/// directly after it.
pub(super) fn domain(text: &str) -> Option<usize> {
    let mut before = '.';
    let end = text.find(|c: char| {
        let goes_on = is_letter(c) && !(is_caseless(c) && before.is_ascii_alphanumeric());
        before = c;
        !goes_on && !matches!(c, '.' | '-')
    });
    let name = text.get(..end.unwrap_or(text.len()))?.trim_end_matches(['.', '-']);
    let (host, top) = name.rsplit_once('.')?;
    let named = top.chars().count() >= 2 && top.contains(char::is_alphabetic);
    (!host.is_empty() && named).then_some(name.len())
}

/// Whether the word after `Basic` is a name and a password.
pub(super) fn is_basic(word: &str) -> bool {
    STANDARD.decode(word).is_ok_and(|plain| plain.contains(&b':'))
}

/// Whether the word after `Bearer` can be a token rather than an ordinary word.
pub(super) fn is_bearer(word: &str) -> bool {
    let b = word.as_bytes();
    let odd = |b: &u8| b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-' | b'+' | b'/' | b'=' | b'~');
    let mixed = b.iter().skip(1).any(u8::is_ascii_uppercase) && b.iter().any(u8::is_ascii_lowercase);
    // The first line of a key file is not a token: the key below it is masked as a key.
    let head = word.starts_with("-----");
    !head && (b.len() >= 20 || b.len() >= 6 && (b.iter().any(odd) || mixed))
}

/// The parts of a word before and after the first UUID in it.
fn around_uuid(word: &[u8]) -> Option<(&[u8], &[u8])> {
    const LENGTH: usize = 36;
    let is_uuid = |part: &[u8]| {
        part.iter().enumerate().all(|(n, b)| match n {
            8 | 13 | 18 | 23 => *b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
    };
    let at = word.windows(LENGTH).position(is_uuid)?;
    Some((word.get(..at)?, word.get(at + LENGTH..)?))
}

/// Whether a run of letters and digits looks random: long, with capitals, lower case letters and digits that alternate
/// all the time. Hexadecimal ids and digests are not taken for secrets, because much that is needed looks like them.
pub(super) fn is_random(word: &[u8]) -> bool {
    const LENGTH_MIN: usize = 20;
    // An id is no sign of a secret. Paths of logs and artifacts have one in them and must stay readable.
    if let Some((before, after)) = around_uuid(word) {
        return is_random(before) || is_random(after);
    }
    let kind = |b: u8| match b {
        b'a'..=b'z' => 1,
        b'A'..=b'Z' => 2,
        b'0'..=b'9' => 3,
        _ => 0,
    };
    let mangled = word.starts_with(b"_ZN") || word.starts_with(b"_R");
    if word.len() < LENGTH_MIN || mangled {
        return false;
    }
    let mut seen = [false; 4];
    let (mut changes, mut last, mut letters) = (0_usize, 0_usize, [false; 128]);
    for b in word {
        let now = kind(*b);
        if let Some(seen) = seen.get_mut(now) {
            *seen = true;
        }
        if let Some(letter) = letters.get_mut(usize::from(*b)) {
            *letter = true;
        }
        if now != last && now != 0 && last != 0 {
            changes += 1;
        }
        last = now;
    }
    let all = seen.iter().skip(1).all(|seen| *seen);
    let different = letters.iter().filter(|seen| **seen).count();
    all && changes * 100 >= word.len().min(400) * 35 && different >= 10
}
