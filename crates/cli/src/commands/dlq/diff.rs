//! `dlq diff`: shows what changed between two revisions of a letter. JSON is first formatted token by token, so that
//! numbers and keys appear exactly as written.

use crate::args::RevealArgs;
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::id_arg::IdArg;
use crate::output::{Column, Format, Show, ValueFormat, escape, rules};
use clap::Args;
use redrive::core::disclosure::{Disclosed, Disclosure};
use redrive::core::ids::MessageId;
use redrive::core::masking::Rules;
use redrive::core::message::Payload;
use redrive::core::revision::{Content, Revision};
use redrive::core::time::Time;
use serde::Serialize;
use serde::de::IgnoredAny;

/// The number of unchanged lines to show around a change.
const CONTEXT: usize = 3;

/// The flags of `dlq diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// The id of the message, or its last digits
    #[arg(value_name = "ID")]
    id: IdArg<MessageId>,
    /// The revision to compare from; 0 is the original
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u32,
    /// The revision to compare to [default: the current one]
    #[arg(long, value_name = "N")]
    to: Option<u32>,
    /// List the revisions instead
    #[arg(long, conflicts_with_all = ["from", "to"])]
    list: bool,
    #[command(flatten)]
    reveal: RevealArgs,
}

/// A revision without its content.
#[derive(Clone, Serialize)]
struct RevisionSummary {
    n: u32,
    at: Time,
    by: String,
    reason: Option<String>,
    bytes: usize,
    digest: String,
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

impl Show for RevisionSummary {
    const COLUMNS: &'static [Column] = &[
        Column::number("n"),
        Column::whole("at"),
        Column::text("by"),
        Column::number("bytes"),
        Column::whole("digest").optional(1),
        Column::main("reason"),
    ];

    fn masked(&self, rules: &Rules) -> Option<Self> {
        let reason = self.reason.as_ref().map(|reason| rules.mask_text(reason).into_owned());
        Some(Self { reason, ..self.clone() })
    }

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        vec![
            self.n.to_string(),
            fmt.time(self.at),
            self.by.clone(),
            self.bytes.to_string(),
            self.digest.clone(),
            self.reason.clone().unwrap_or_default(),
        ]
    }
}

/// The differences between two revisions.
#[derive(Serialize)]
struct Difference {
    id: MessageId,
    from: RevisionSummary,
    to: RevisionSummary,
    diff: String,
}

impl Show for Difference {
    const COLUMNS: &'static [Column] =
        &[Column::whole("id"), Column::number("from"), Column::number("to"), Column::text("diff")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![self.id.to_string(), self.from.n.to_string(), self.to.n.to_string(), self.diff.clone()]
    }
}

/// Runs `dlq diff`.
pub(crate) async fn run(app: &App, args: DiffArgs) -> CommandResult {
    let id = args.id.letter(app).await?;
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let mut revisions = store.revisions(id).await?;
    if args.list {
        let summaries: Vec<RevisionSummary> = revisions.iter().map(RevisionSummary::from).collect();
        app.out.all(&summaries)?;
        return Ok(ExitCode::Ok);
    }
    if args.reveal.reveal && !revisions.is_empty() {
        // Record the disclosure before showing anything.
        let shown = Disclosure::of(Disclosed::Payload, id);
        store.disclose(shown, app.actor(args.reveal.reason.clone())).await?;
        // A server masks what it has not disclosed, so only this reading is whole.
        revisions = store.revisions(id).await?;
    }
    let Some(present) = revisions.last() else {
        let what = format!("the content of dead letter {id} was erased, with all revisions");
        return Err(CliError::new(ExitCode::NotFound, what));
    };
    let find = |n: u32| {
        revisions.iter().find(|revision| revision.n == n).ok_or_else(|| {
            let what = format!("dead letter {id} has no revision {n}");
            CliError::new(ExitCode::NotFound, what).hint(format!("redrive dlq diff {id} --list"))
        })
    };
    let (from, to) = (find(args.from)?, find(args.to.unwrap_or(present.n))?);
    let names = (format!("revision {}", from.n), format!("revision {}", to.n));
    let rules = if args.reveal.reveal { &Rules::off() } else { rules() };
    let diff = changes(&from.content, &to.content, (&names.0, &names.1), rules);
    if app.out.format != Format::Table {
        let head = |revision: &Revision| {
            let head = RevisionSummary::from(revision);
            head.masked(rules).unwrap_or(head)
        };
        app.out.one(&Difference { id, from: head(from), to: head(to), diff })?;
    } else if diff.is_empty() {
        app.out.note("the revisions are the same");
    } else {
        app.out.raw(escape::lines(&diff).as_bytes())?;
    }
    Ok(ExitCode::Ok)
}

/// The differences between two masked contents; empty if there are none.
pub(super) fn changes(from: &Content, to: &Content, names: (&str, &str), rules: &Rules) -> String {
    let text = shown_changes(&masked(from, rules), &masked(to, rules), names);
    if text.is_empty() && from != to {
        return "only masked parts changed; use --reveal to show them\n".to_owned();
    }
    text
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
pub(super) fn is_json(text: &str) -> bool {
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
        let changes = |from: &Content, to: &Content, names| changes(from, to, names, &off);
        let text = changes(&a, &b, ("old", "new"));
        assert!(text.starts_with("-header h: x\n+header h: y\n--- old\n+++ new\n"), "{text}");
        assert!(text.contains("\n-  \"b\": 2\n+  \"b\": 3\n"), "{text}");
        assert_eq!(changes(&a, &a, ("old", "new")), "");
        let spaced = content(br#"{"a": 1,"b":2}"#, "x");
        assert!(changes(&a, &spaced, ("old", "new")).contains("+{\"a\": 1,\"b\":2}"));
        let secret = |word: &str| content(format!(r#"{{"password":"{word}"}}"#).as_bytes(), "x");
        let hidden = super::changes(&secret("one"), &secret("two"), ("old", "new"), &Rules::default());
        assert_eq!(hidden, "only masked parts changed; use --reveal to show them\n");
        let binary = content(&[0xff, 0], "x");
        assert!(changes(&a, &binary, ("old", "new")).contains("-13 bytes that are not all text\n+2 bytes\n"));
    }
}
