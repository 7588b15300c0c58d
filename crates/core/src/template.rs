//! Text with placeholders for values of a message: `{"order": ${payload.order.id}}`. This module only fills in;
//! the caller supplies the values. A value can never end the string, field or header that contains it.

use serde_json::Value;
use std::fmt::Write as _;

/// A placeholder in a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// The id of the message.
    Id,
    /// The queue of the message.
    Queue,
    /// The kind of the message.
    Kind,
    /// The idempotency key of the message.
    Key,
    /// The number of the execution.
    Attempt,
    /// The payload, or the value at this path in it.
    Payload(Vec<String>),
    /// The context, or the value at this path in it.
    Context(Vec<String>),
    /// A header of the message.
    Header(String),
    /// An environment variable of the worker.
    Env(String),
}

/// The known placeholders, for error texts.
const KNOWN: &str =
    "id, queue, kind, key, attempt, payload, payload.PATH, context, context.PATH, header.NAME, env.NAME";

impl Placeholder {
    fn parse(text: &str) -> Result<Self, String> {
        let (first, rest) = match text.split_once('.') {
            Some((first, rest)) => (first, Some(rest)),
            None => (text, None),
        };
        let path = |rest: &str| rest.split('.').map(str::to_owned).collect::<Vec<_>>();
        let whole = rest.is_none_or(|rest| rest.split('.').all(|step| !step.is_empty()));
        match (first, rest) {
            ("id", None) => Ok(Self::Id),
            ("queue", None) => Ok(Self::Queue),
            ("kind", None) => Ok(Self::Kind),
            ("key", None) => Ok(Self::Key),
            ("attempt", None) => Ok(Self::Attempt),
            ("payload", rest) if whole => Ok(Self::Payload(rest.map(path).unwrap_or_default())),
            ("context", rest) if whole => Ok(Self::Context(rest.map(path).unwrap_or_default())),
            ("header", Some(name)) if !name.is_empty() => Ok(Self::Header(name.to_owned())),
            ("env", Some(name)) if !name.is_empty() => Ok(Self::Env(name.to_owned())),
            _ => Err(format!("${{{text}}} is not known; known are {KNOWN}")),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(Placeholder),
}

/// The format of the text, which decides how a value is written into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFormat {
    /// JSON: a value inside quotes becomes part of the string, a value outside is written as JSON.
    Json,
    /// `a=b&c=d`: values are percent-encoded.
    Urlencoded,
    /// Anything else: values are written as they are.
    Plain,
}

/// Text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

impl Template {
    /// Parses a template. `$${` stands for a literal `${`.
    ///
    /// # Errors
    /// Returns a message about the placeholder that is not closed or not known.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            if let Some(before) = before.strip_suffix('$') {
                plain.push_str(before);
                plain.push_str("${");
                rest = after;
                continue;
            }
            plain.push_str(before);
            let (name, after) = after.split_once('}').ok_or("a ${ is not closed by }")?;
            parts.push(Part::Text(std::mem::take(&mut plain)));
            parts.push(Part::Value(Placeholder::parse(name)?));
            rest = after;
        }
        plain.push_str(rest);
        parts.push(Part::Text(plain));
        Ok(Self { parts })
    }

    /// The placeholders in this template.
    pub fn placeholders(&self) -> impl Iterator<Item = &Placeholder> {
        self.parts.iter().filter_map(|part| match part {
            Part::Value(name) => Some(name),
            Part::Text(_) => None,
        })
    }

    /// The text with every placeholder filled in. A missing value is `null` in JSON and empty elsewhere.
    pub fn render(&self, form: TextFormat, mut value: impl FnMut(&Placeholder) -> Option<Value>) -> String {
        let mut text = String::new();
        let mut quotes = Quotes::default();
        for part in &self.parts {
            match part {
                Part::Text(plain) => {
                    quotes.read(plain);
                    text.push_str(plain);
                }
                Part::Value(name) => fill(&mut text, form, quotes.open, value(name)),
            }
        }
        text
    }
}

fn fill(text: &mut String, form: TextFormat, quoted: bool, value: Option<Value>) {
    match form {
        TextFormat::Json if !quoted => text.push_str(&value.unwrap_or(Value::Null).to_string()),
        TextFormat::Json => {
            let written = Value::String(plain(value)).to_string();
            let inside = written.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            text.push_str(inside.unwrap_or_default());
        }
        TextFormat::Urlencoded => {
            for byte in plain(value).bytes() {
                if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                    text.push(char::from(byte));
                } else {
                    // Writing into a string cannot fail.
                    let _ = write!(text, "%{byte:02X}");
                }
            }
        }
        TextFormat::Plain => text.push_str(&plain(value)),
    }
}

fn plain(value: Option<Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text,
        Some(other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_))) => {
            other.to_string()
        }
    }
}

/// Tracks whether the text so far ends inside a JSON string.
#[derive(Default)]
struct Quotes {
    open: bool,
    escaped: bool,
}

impl Quotes {
    fn read(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' if self.open => self.escaped = true,
                '"' => self.open = !self.open,
                _ => {}
            }
        }
    }
}

/// The value at a path: names select in objects, numbers in lists.
#[must_use]
pub fn at_path<'a>(value: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, step| match value {
        Value::Object(map) => map.get(step),
        Value::Array(list) => list.get(step.parse::<usize>().ok()?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendered(template: &str, form: TextFormat) -> String {
        let payload =
            json!({"n": 7, "s": "a\"b\\c\n", "list": [{"x": true}], "big": 12345678901234567890_u64});
        Template::parse(template).unwrap().render(form, |name| match name {
            Placeholder::Payload(path) => at_path(&payload, path).cloned(),
            Placeholder::Id => Some(json!("0198")),
            Placeholder::Header(name) => (name == "x-team").then(|| json!("a&b c")),
            Placeholder::Queue
            | Placeholder::Kind
            | Placeholder::Key
            | Placeholder::Attempt
            | Placeholder::Context(_)
            | Placeholder::Env(_) => None,
        })
    }

    #[test]
    fn values_stand_as_json_or_become_part_of_a_string() {
        let text = rendered(
            r#"{"n":${payload.n},"s":${payload.s},"in":"<${payload.s}> \"${payload.n}\"","x":${payload.list.0.x},"no":${payload.no},"none":"${payload.no}","big":${payload.big}}"#,
            TextFormat::Json,
        );
        let expected = json!({"n": 7, "s": "a\"b\\c\n", "in": "<a\"b\\c\n> \"7\"", "x": true, "no": null,
            "none": "", "big": 12345678901234567890_u64});
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        assert_eq!(rendered(r#""${payload.list}""#, TextFormat::Json), r#""[{\"x\":true}]""#);
    }

    #[test]
    fn forms_are_percent_encoded_and_text_is_plain() {
        assert_eq!(
            rendered("team=${header.x-team}&id=${id}", TextFormat::Urlencoded),
            "team=a%26b%20c&id=0198"
        );
        assert_eq!(
            rendered("${id}: ${payload.s}|$${id}|${header.none}|", TextFormat::Plain),
            "0198: a\"b\\c\n|${id}||"
        );
    }

    #[test]
    fn unknown_placeholders_are_errors() {
        for (wrong, says) in [
            ("${", "not closed"),
            ("${id", "not closed"),
            ("${}", "known are id, queue"),
            ("${ids}", "${ids} is not known"),
            ("${id.x}", "not known"),
            ("${payload..a}", "not known"),
            ("${payload.}", "not known"),
            ("${header}", "not known"),
            ("${env.}", "not known"),
        ] {
            assert!(Template::parse(wrong).unwrap_err().contains(says), "{wrong}");
        }
        assert_eq!(Template::parse("$ {id} $$ }").unwrap().placeholders().count(), 0);
    }
}
