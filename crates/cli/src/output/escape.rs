//! Escapes untrusted text before it reaches a terminal, a spreadsheet or a log. Only this module decides which
//! characters are dangerous. It never drops a character; it writes it as an escape sequence.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a character has an effect instead of being visible: control characters (C0, DEL, C1), bidirectional marks
/// and overrides, separators, and invisible characters that make different texts look alike.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Escapes text for one line of a terminal.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            '\t' => safe.push_str("\\t"),
            c if is_unsafe(c) => {
                // Writing to a string cannot fail.
                let _ = write!(safe, "\\u{{{:x}}}", u32::from(c));
            }
            c => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// Escapes text of several lines, keeping only the line breaks.
pub(crate) fn lines(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for (index, one) in text.split('\n').enumerate() {
        if index > 0 {
            safe.push('\n');
        }
        safe.push_str(&line(one));
    }
    safe
}

/// Escapes JSON for a terminal. JSON itself allows DEL, C1 and bidirectional overrides unescaped; they occur only
/// inside strings, where `\u` means the same.
pub(crate) fn json(text: String) -> String {
    if !text.chars().any(|c| is_unsafe(c) && c != '\n') {
        return text;
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unsafe(c) && c != '\n' {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Escapes text for a spreadsheet cell: an apostrophe marks formulas as text. Text that begins with an apostrophe gets
/// another one, so that the original can be recovered.
pub(crate) fn cell(text: &str) -> Cow<'_, str> {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '\'', '＝', '＋', '－', '＠']) {
        Cow::Owned(format!("'{text}"))
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_characters_are_escaped() {
        for (text, safe) in [
            ("plain, Grüße, 日本 🎉", "plain, Grüße, 日本 🎉"),
            ("\u{1b}[31mred\u{1b}[0m", "\\u{1b}[31mred\\u{1b}[0m"),
            ("\u{1b}]52;c;aGk=\u{7}", "\\u{1b}]52;c;aGk=\\u{7}"),
            ("a\r\nb\tc", "a\\r\\nb\\tc"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("\u{7f}\u{0}", "\\u{7f}\\u{0}"),
            ("user\u{202e}gpj.exe", "user\\u{202e}gpj.exe"),
            ("\u{2066}x\u{2069}\u{200f}", "\\u{2066}x\\u{2069}\\u{200f}"),
            ("zero\u{200b}width\u{feff}", "zero\\u{200b}width\\u{feff}"),
        ] {
            assert_eq!(line(text), safe);
            assert!(!line(text).chars().any(is_unsafe));
        }
        assert_eq!(lines("a\n\u{1b}b\n"), "a\n\\u{1b}b\n");
    }

    #[test]
    fn json_stays_the_same_json() {
        let value = serde_json::json!({"k\u{9b}": "a\u{202e}\u{e0041}\u{7f}\n\u{1b}"});
        for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let safe = json(text);
            assert!(!safe.chars().any(|c| is_unsafe(c) && c != '\n'), "{safe}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
        }
    }

    #[test]
    fn formulas_become_text() {
        for text in ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "＝1", "＠x"] {
            assert_eq!(cell(text), format!("'{text}"));
        }
        assert_eq!(cell("a=1"), "a=1");
    }
}
