//! How numbers, times and names are written for people. Pure: the caller passes the time.

use askama::Template;
use askama::filters::HtmlSafe;
use redrive_core::time::{Span, Time};

/// A number with separated thousands.
pub(super) fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number that the store counts with a sign and that is never below 0.
pub(super) fn count(n: i64) -> String {
    number(u64::try_from(n).unwrap_or(0))
}

/// A number and its noun: `1 letter`, `3,914 letters`.
pub(super) fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", number(n), if n == 1 { one } else { many })
}

/// A share in percent. What is little but not nothing is never shown as nothing.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0 %".into();
    }
    match part.saturating_mul(100) / whole {
        0 => "< 1 %".into(),
        100 if part < whole => "> 99 %".into(),
        share => format!("{share} %"),
    }
}

const UNITS: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")];

/// A span to the nearest unit that matters: `4 min`, `3 h`, `2 d`.
pub(super) fn rough(span: Span) -> String {
    let ms = span.as_millis();
    match UNITS.into_iter().find(|(unit, _)| ms >= *unit) {
        Some((unit, name)) => format!("{} {name}", ms / unit),
        None => "0 s".into(),
    }
}

/// A span with two units: `4 min 12 s`, `2 d 4 h`; short ones exactly: `3.2 s`, `140 ms`.
pub(super) fn span(span: Span) -> String {
    let ms = span.as_millis();
    if ms < 1_000 {
        return format!("{ms} ms");
    }
    if ms < 10_000 {
        return format!("{}.{} s", ms / 1_000, ms % 1_000 / 100);
    }
    let at = UNITS.iter().position(|(unit, _)| ms >= *unit).unwrap_or(3);
    let part = |at: usize, ms: u64| UNITS.get(at).map_or((0, ""), |(unit, name)| (ms / unit, *name));
    let (first, name) = part(at, ms);
    let rest = UNITS.get(at).map_or(0, |(unit, _)| ms % unit);
    match part(at + 1, rest) {
        (0, _) => format!("{first} {name}"),
        (second, next) => format!("{first} {name} {second} {next}"),
    }
}

/// A number of bytes.
pub(super) fn bytes(n: u64) -> String {
    match n {
        0..10_240 => plural(n, "byte", "bytes"),
        10_240..10_485_760 => format!("{} KiB", number(n / 1024)),
        _ => format!("{} MiB", number(n / 1_048_576)),
    }
}

/// A time as people write it: `2026-01-31 12:00:04 UTC`.
pub(super) fn exact(at: Time) -> String {
    let text = at.to_string();
    let (date, rest) = text.split_once('T').unwrap_or((&text, ""));
    format!("{date} {} UTC", rest.get(..8).unwrap_or_default())
}

/// The time of day: `12:00:04`.
pub(super) fn clock(at: Time) -> String {
    at.to_string().get(11..19).unwrap_or_default().to_owned()
}

/// The hour of the day: `12:00`.
pub(super) fn hour(at: Time) -> String {
    at.to_string().get(11..16).unwrap_or_default().to_owned()
}

/// How long ago or in how long, as words: `4 min ago`, `in 2 h`, `now`.
pub(super) fn ago(at: Time, now: Time) -> String {
    if at > now {
        return format!("in {}", rough(at.since(now)));
    }
    match now.since(at) {
        gone if gone < Span::from_secs(1) => "now".into(),
        gone => format!("{} ago", rough(gone)),
    }
}

/// The ends of an id, which people compare.
pub(super) fn short_id(id: &str) -> String {
    match (id.get(..8), id.get(id.len().saturating_sub(6)..)) {
        (Some(start), Some(end)) if id.len() > 18 => format!("{start}…{end}"),
        _ => id.to_owned(),
    }
}

/// The beginning of a long text.
pub(super) fn beginning(text: &str, chars: usize) -> String {
    let mut shown: String = text.chars().take(chars).collect();
    if text.chars().nth(chars).is_some() {
        shown.push('…');
    }
    shown
}

/// Text as part of a query string.
pub(super) fn query(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// Text as one word of a command for a shell.
pub(super) fn shell(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A time, shown relative to now, with the exact one on hover.
#[derive(Clone, Debug, PartialEq, Eq, Template)]
#[template(source = r#"<time datetime="{{ machine }}" title="{{ exact }}">{{ shown }}</time>"#, ext = "html")]
pub(super) struct When {
    machine: String,
    exact: String,
    shown: String,
}

impl HtmlSafe for When {}

impl When {
    fn new(at: Time, shown: String) -> Self {
        Self { machine: at.to_string(), exact: exact(at), shown }
    }

    /// `4 min ago`.
    pub(super) fn ago(at: Time, now: Time) -> Self {
        Self::new(at, ago(at, now))
    }

    /// `4 min`, for a column whose head says that it is past.
    pub(super) fn rough(at: Time, now: Time) -> Self {
        Self::new(at, rough(now.since(at)))
    }

    /// The exact time, for tables of evidence.
    pub(super) fn exact(at: Time) -> Self {
        Self::new(at, exact(at))
    }

    /// The time of day, and the date if it is another day than `near`.
    pub(super) fn clock(at: Time, near: Time) -> Self {
        let same_day = at.to_string().get(..10) == near.to_string().get(..10);
        Self::new(at, if same_day { clock(at) } else { exact(at).trim_end_matches(" UTC").to_owned() })
    }
}

/// A state as a pill with a dot. The tone is a class of the stylesheet.
#[derive(Clone, Debug, PartialEq, Eq, Template)]
#[template(source = r#"<span class="pill {{ tone }}">{{ text }}</span>"#, ext = "html")]
pub(super) struct Pill {
    tone: &'static str,
    text: String,
}

impl HtmlSafe for Pill {}

impl Pill {
    /// A pill with this tone and word.
    pub(super) fn new(tone: &'static str, text: impl Into<String>) -> Self {
        Self { tone, text: text.into() }
    }
}

/// A piece of a template of error messages.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    text: String,
    varies: bool,
}

/// A template of error messages, with the parts that vary marked.
#[derive(Clone, Debug, PartialEq, Eq, Template)]
#[template(
    source = r#"{% for piece in pieces %}{% if piece.varies %}<span class="var">{{ piece.text }}</span>{% else %}{{ piece.text }}{% endif %}{% endfor %}"#,
    ext = "html"
)]
pub(super) struct Marked {
    pieces: Vec<Piece>,
}

impl HtmlSafe for Marked {}

impl Marked {
    /// Marks the placeholders of a template, such as `<num>` and `<*>`.
    pub(super) fn new(template: &str) -> Self {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut rest = template;
        while let Some((before, name, after)) = next_placeholder(rest) {
            if !before.is_empty() {
                pieces.push(Piece { text: before.to_owned(), varies: false });
            }
            let text = if name == "*" { "varies".to_owned() } else { name.to_owned() };
            pieces.push(Piece { text, varies: true });
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece { text: rest.to_owned(), varies: false });
        }
        Self { pieces }
    }
}

/// The first placeholder of a text, and what is before and after it.
fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    while let Some(open) = text.get(from..)?.find('<').map(|at| at + from) {
        let inside = text.get(open + 1..)?;
        let close = inside.find('>')?;
        let name = inside.get(..close)?;
        let is_name = name == "*" || (!name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric()));
        if is_name && name.len() <= 16 {
            return Some((text.get(..open)?, name, inside.get(close + 1..)?));
        }
        from = open + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_shares_never_lie() {
        for (n, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(number(n), text);
        }
        assert_eq!(
            [percent(0, 5), percent(1, 1_000), percent(81, 100), percent(9_999, 10_000), percent(3, 3)],
            ["0 %", "< 1 %", "81 %", "99 %", "100 %"]
        );
    }

    #[test]
    fn spans_have_the_units_that_matter() {
        for (ms, two, one) in [
            (0, "0 ms", "0 s"),
            (140, "140 ms", "0 s"),
            (3_250, "3.2 s", "3 s"),
            (252_000, "4 min 12 s", "4 min"),
            (3_600_000, "1 h", "1 h"),
            (187_200_000, "2 d 4 h", "2 d"),
        ] {
            assert_eq!(
                (span(Span::from_millis(ms)).as_str(), rough(Span::from_millis(ms)).as_str()),
                (two, one)
            );
        }
    }

    #[test]
    fn times_are_relative_with_the_exact_one_beside() {
        let now = Time::from_millis(1_767_225_600_000);
        let when = When::ago(now.minus(Span::from_secs(240)), now);
        assert_eq!(
            when.to_string(),
            r#"<time datetime="2025-12-31T23:56:00.000Z" title="2025-12-31 23:56:00 UTC">4 min ago</time>"#
        );
        assert_eq!(ago(now.plus(Span::from_hours(2)), now), "in 2 h");
        assert_eq!(ago(now, now), "now");
    }

    #[test]
    fn placeholders_are_marked_and_everything_else_is_escaped() {
        let text = Marked::new("GET <url> took <num> ms <script>alert(1)</script> <*> < 5").to_string();
        assert_eq!(
            text,
            "GET <span class=\"var\">url</span> took <span class=\"var\">num</span> ms \
             <span class=\"var\">script</span>alert(1)&#60;/script&#62; <span class=\"var\">varies</span> &#60; 5"
        );
    }

    #[test]
    fn commands_survive_the_shell() {
        assert_eq!(shell("queue:payments"), "queue:payments");
        assert_eq!(shell("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(query("a b&c=ü"), "a%20b%26c%3D%C3%BC");
        assert_eq!(short_id("01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00"), "01981c3e…ffee00");
    }
}
