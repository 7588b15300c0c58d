//! Values on the lines below their names, and programs whose command lines contain a password. This module decides
//! whether a line is such a value; the scan of the text finds the line.

use super::text::Value;
use std::ops::Range;

/// The value on the line below its name, if the line is one word or one quoted string. A sentence, the next field, a
/// path or a closing bracket is not a value.
pub(super) fn alone(start: usize, line: &str) -> Option<Value> {
    const LENGTH_MIN: usize = 4;
    let line = line.trim_end().trim_end_matches([',', ';']);
    if let Some(quote) = line.chars().next().filter(|c| matches!(c, '"' | '\'' | '`')) {
        let inside = line.strip_prefix(quote)?.strip_suffix(quote)?;
        let fits = !inside.is_empty() && !inside.contains("[masked");
        return fits.then_some(Value { start: start + 1, end: start + 1 + inside.len(), quoted: true });
    }
    let one_word = line.len() >= LENGTH_MIN && !line.contains(char::is_whitespace);
    let is_other = line.starts_with(['/', '<', '[', '{', '(', '-', '#', '*', '|', '>', '&'])
        || line.starts_with("${")
        || line.starts_with("$(")
        || line.contains("://")
        || line.contains("[masked");
    let has_content = line.contains(|c: char| c.is_alphanumeric()) && !is_nothing(line);
    let value = one_word && !is_other && has_content && !is_field(line) && !is_last_word(line);
    value.then_some(Value { start, end: start + line.len(), quoted: false })
}

/// Whether a word says that there is no value.
fn is_nothing(word: &str) -> bool {
    const NOTHING: [&str; 7] = ["null", "none", "true", "false", "undefined", "empty", "missing"];
    NOTHING.iter().any(|nothing| word.eq_ignore_ascii_case(nothing))
}

/// Whether a word ends a sentence, such as `Aborted.`.
fn is_last_word(word: &str) -> bool {
    word.strip_suffix(['.', '!', '?']).is_some_and(|word| word.chars().all(char::is_alphabetic))
}

/// Whether a word is `NAME=`, `name=value`, `name:value` or a heading. The end of base64 looks like the first of these,
/// but names in an environment are in capitals.
fn is_field(word: &str) -> bool {
    let Some(at) = word.find([':', '=']) else { return false };
    let (name, value) = word.split_at(at);
    let named = name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
    let capitals =
        name.contains('_') || !name.contains(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    let padding = matches!(value, "=" | "==");
    named && (!padding || capitals)
}

/// The range of the content of a YAML block: `|` or `>` at the end of the line, with indented lines below.
pub(super) fn block(bytes: &[u8]) -> Option<Range<usize>> {
    const HEAD_MAX: usize = 8;
    let head = bytes.get(..bytes.len().min(HEAD_MAX))?;
    let first = matches!(head.first(), Some(b'|' | b'>'));
    let end = head.iter().position(|b| *b == b'\n').filter(|_| first)?;
    if !head.get(1..end)?.iter().all(|b| matches!(b, b'+' | b'-' | b' ' | b'\r' | b'1'..=b'9')) {
        return None;
    }
    let blanks = |line: &[u8]| line.iter().take_while(|b| matches!(b, b' ' | b'\t')).count();
    let (mut at, mut depth, mut content) = (end + 1, None, None::<Range<usize>>);
    for line in bytes.get(end + 1..)?.split_inclusive(|b| *b == b'\n') {
        let length = line.trim_ascii_end().len();
        if length > 0 {
            let indent = blanks(line);
            let depth = *depth.get_or_insert(indent);
            if depth == 0 || indent < depth {
                break;
            }
            let from = content.map_or(at + indent, |content| content.start);
            content = Some(from..at + length);
        }
        at += line.len();
    }
    content
}

/// Whether a word is a client of MySQL or MariaDB, all of which take a password directly after `-p`.
pub(super) fn is_database_client(word: &str) -> bool {
    const TOOLS: [&str; 11] =
        ["", "dump", "admin", "import", "show", "check", "binlog", "slap", "pump", "sh", "upgrade"];
    let word = word.strip_suffix(".exe").unwrap_or(word);
    let tool = word.strip_prefix("mysql").or_else(|| word.strip_prefix("mariadb"));
    tool.is_some_and(|tool| TOOLS.contains(&tool.strip_prefix(['-', '_']).unwrap_or(tool)))
}
