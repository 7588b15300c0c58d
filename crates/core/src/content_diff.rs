//! What changed between two contents of a letter, as text. JSON is first formatted token by token, so that numbers and
//! keys appear exactly as written. Secrets are masked before anything is compared.

use crate::masking::Rules;
use crate::payload::Payload;
use crate::revision::{Content, Revision};
use crate::time::Time;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// The number of unchanged lines to show around a change.
const CONTEXT: usize = 3;

/// A revision without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevisionSummary {
    /// The number of the revision; 0 is the original.
    pub n: u32,
    /// Since when the letter has this content.
    pub at: Time,
    /// The author.
    pub by: String,
    /// The reason of the change.
    pub reason: Option<String>,
    /// The number of payload bytes.
    pub bytes: usize,
    /// A digest of the content.
    pub digest: String,
}

impl From<&Revision> for RevisionSummary {
    fn from(revision: &Revision) -> Self {
        Self {
            n: revision.n,
            at: revision.at,
            by: revision.by.clone(),
            reason: revision.reason.clone(),
            bytes: revision.content.payload.bytes.len(),
            digest: revision.content.digest(),
        }
    }
}

impl RevisionSummary {
    /// The summary with secrets in the reason masked.
    #[must_use]
    pub fn masked(&self, rules: &Rules) -> Self {
        let reason = self.reason.as_ref().map(|reason| rules.mask_text(reason).into_owned());
        Self { reason, ..self.clone() }
    }
}

/// What changed between two contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentDiff {
    /// The changes, as a unified diff; empty if there are none that may be shown.
    pub text: String,
    /// Whether something changed, but only in masked parts.
    pub masked_only: bool,
}

impl ContentDiff {
    /// Compares two contents after masking. `names` stand at the top of the diff.
    #[must_use]
    pub fn between(from: &Content, to: &Content, names: (&str, &str), rules: &Rules) -> Self {
        let text = shown_changes(&masked(from, rules), &masked(to, rules), names);
        let masked_only = text.is_empty() && from != to;
        Self { text, masked_only }
    }
}

/// The content with secrets masked.
fn masked(content: &Content, rules: &Rules) -> Content {
    if !rules.is_on() {
        return content.clone();
    }
    let bytes = &content.payload.bytes;
    let bytes = match std::str::from_utf8(bytes) {
        Ok(_) => rules.mask_payload(bytes).text.into_bytes(),
        // Binary payloads are not shown, so there is nothing to mask.
        Err(_) => bytes.clone(),
    };
    let payload = Payload { bytes, content_type: content.payload.content_type.clone() };
    Content { payload, headers: rules.mask_headers(&content.headers) }
}

fn shown_changes(from: &Content, to: &Content, names: (&str, &str)) -> String {
    let mut text = String::new();
    let mut field = |name: &str, before: Option<&str>, after: Option<&str>| {
        if before != after {
            text.extend(before.map(|value| format!("-{name}: {value}\n")));
            text.extend(after.map(|value| format!("+{name}: {value}\n")));
        }
    };
    let (before, after) = (&from.payload, &to.payload);
    field("content_type", Some(&before.content_type), Some(&after.content_type));
    let headers: std::collections::BTreeSet<&String> = from.headers.keys().chain(to.headers.keys()).collect();
    for header in headers {
        let value = |content: &'_ Content| content.headers.get(header).cloned();
        field(&format!("header {header}"), value(from).as_deref(), value(to).as_deref());
    }
    if before.bytes != after.bytes {
        text.push_str(&payloads(&before.bytes, &after.bytes, names));
    }
    text
}

fn payloads(before: &[u8], after: &[u8], names: (&str, &str)) -> String {
    let (Ok(before), Ok(after)) = (std::str::from_utf8(before), std::str::from_utf8(after)) else {
        return format!("-{} bytes that are not all text\n+{} bytes\n", before.len(), after.len());
    };
    if is_json(before) && is_json(after) {
        let (laid_out, other) = (lay_out(before), lay_out(after));
        // If only the whitespace differs, compare the original text instead.
        if laid_out != other {
            return unified(&laid_out, &other, names);
        }
    }
    unified(before, after, names)
}

fn unified(before: &str, after: &str, (from, to): (&str, &str)) -> String {
    let diff = similar::TextDiff::from_lines(before, after);
    diff.unified_diff().context_radius(CONTEXT).header(from, to).to_string()
}

/// Whether the text is a single JSON document.
#[must_use]
pub fn is_json(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Formats JSON over several lines, keeping each token as written.
fn lay_out(json: &str) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    let mut rest = json.chars().peekable();
    let line = |text: &mut String, depth: usize| {
        text.push('\n');
        text.extend(std::iter::repeat_n("  ", depth));
    };
    while let Some(c) = rest.next() {
        if quoted {
            text.push(c);
            quoted = escaped || c != '"';
            escaped = c == '\\' && !escaped;
            continue;
        }
        match c {
            ' ' | '\t' | '\n' | '\r' => {}
            '{' | '[' => {
                text.push(c);
                while rest.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                if let Some(close) = rest.next_if(|c| matches!(c, '}' | ']')) {
                    text.push(close);
                } else {
                    depth += 1;
                    line(&mut text, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut text, depth);
                text.push(c);
            }
            ',' => {
                text.push(c);
                line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            c => {
                text.push(c);
                quoted = c == '"';
            }
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(bytes: &[u8], header: &str) -> Content {
        let payload = Payload { bytes: bytes.to_vec(), content_type: String::new() };
        Content { payload, headers: [("h".to_owned(), header.to_owned())].into() }
    }

    #[test]
    fn json_is_laid_out_token_by_token() {
        let json = r#" {"a":[1.50,{ },[ ]],"b\"{":12345678901234567890123,"c":"x,y:\\"} "#;
        let expected = "{\n  \"a\": [\n    1.50,\n    {},\n    []\n  ],\n  \"b\\\"{\": 12345678901234567890123,\n  \"c\": \"x,y:\\\\\"\n}\n";
        assert_eq!(lay_out(json), expected);
        assert_eq!(lay_out(&lay_out(json)), expected);
    }

    #[test]
    fn a_diff_shows_changes_and_is_empty_without_any() {
        let (a, b) = (content(br#"{"a":1,"b":2}"#, "x"), content(br#"{"a":1,"b":3}"#, "y"));
        let off = Rules::off();
        let changes = |from: &Content, to: &Content, names| ContentDiff::between(from, to, names, &off).text;
        let text = changes(&a, &b, ("old", "new"));
        assert!(text.starts_with("-header h: x\n+header h: y\n--- old\n+++ new\n"), "{text}");
        assert!(text.contains("\n-  \"b\": 2\n+  \"b\": 3\n"), "{text}");
        assert_eq!(changes(&a, &a, ("old", "new")), "");
        let spaced = content(br#"{"a": 1,"b":2}"#, "x");
        assert!(changes(&a, &spaced, ("old", "new")).contains("+{\"a\": 1,\"b\":2}"));
        let secret = |word: &str| content(format!(r#"{{"password":"{word}"}}"#).as_bytes(), "x");
        let hidden = ContentDiff::between(&secret("one"), &secret("two"), ("old", "new"), &Rules::default());
        assert_eq!(hidden, ContentDiff { text: String::new(), masked_only: true });
        let binary = content(&[0xff, 0], "x");
        assert!(changes(&a, &binary, ("old", "new")).contains("-13 bytes that are not all text\n+2 bytes\n"));
    }
}
