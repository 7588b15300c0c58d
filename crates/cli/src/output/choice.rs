//! The columns and the template that the user chose. A column is one of the table's or a path into the item's JSON, so
//! data that is hidden or masked cannot be reached this way either.

use super::escape;
use super::table::Column;
use super::{Show, ValueFormat, value};
use crate::exit_code::CliError;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The maximum number of columns that can be named.
const COLUMNS_MAX: usize = 64;

/// The choice for this process; its names are never freed.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// The columns, in order; `None` for the default columns.
    columns: Option<Vec<String>>,
    /// The template for each line.
    template: Option<Template>,
    /// Whether to clear the screen before the next output.
    wipe: AtomicBool,
}

impl Choice {
    /// The choice for this process. Only the first call has an effect, because there is one command line.
    pub(crate) fn global(columns: Option<Vec<String>>, template: Option<Template>) -> &'static Self {
        static CHOICE: OnceLock<Choice> = OnceLock::new();
        CHOICE.get_or_init(|| Self { columns, template, wipe: AtomicBool::new(false) })
    }

    /// Clears the screen before the next output.
    pub(super) fn wipe_next(&self) {
        self.wipe.store(true, Ordering::Relaxed);
    }

    /// Whether to clear the screen now; resets the flag.
    pub(super) fn take_wipe(&self) -> bool {
        self.wipe.swap(false, Ordering::Relaxed)
    }

    /// The template, or an error if there is none.
    pub(super) fn template(&self) -> Result<&Template, CliError> {
        self.template.as_ref().ok_or_else(|| {
            CliError::usage("-o template needs --template TEXT, such as --template '{id} {queue}'")
        })
    }

    /// Whether the user named the columns.
    pub(super) const fn names_columns(&self) -> bool {
        self.columns.is_some()
    }

    /// The columns of a table.
    pub(super) fn columns<T: Show>(&'static self, wide: bool) -> Vec<Column> {
        let known = || T::COLUMNS.iter().chain(T::MORE);
        match &self.columns {
            None if wide => known().copied().collect(),
            None => T::COLUMNS.to_vec(),
            Some(names) => {
                let column = |name: &'static String| {
                    known().find(|column| column.name == name).copied().unwrap_or(Column::text(name))
                };
                names.iter().map(column).collect()
            }
        }
    }

    /// The cells of an item for these columns.
    pub(super) fn row<T: Show>(
        &self,
        item: &T,
        columns: &[Column],
        fmt: &ValueFormat,
    ) -> Result<Vec<String>, CliError> {
        let mut cells = item.cells(fmt);
        if self.columns.is_none() && columns.len() <= cells.len() {
            return Ok(cells);
        }
        cells.extend(item.more(fmt));
        let known: Vec<&str> = T::COLUMNS.iter().chain(T::MORE).map(|column| column.name).collect();
        let mut whole = None;
        let mut row = Vec::with_capacity(columns.len());
        for column in columns {
            let place = known.iter().position(|name| *name == column.name);
            match place.and_then(|place| cells.get(place)) {
                Some(cell) => row.push(cell.clone()),
                None => {
                    let whole = match &whole {
                        Some(whole) => whole,
                        None => whole.insert(value(item)?),
                    };
                    row.push(text_at(whole, column.name).unwrap_or_default());
                }
            }
        }
        Ok(row)
    }

    /// Named columns that neither the table nor any of these items has, most likely because of a typo.
    pub(super) fn unknown<T: Show>(&self, items: &[T]) -> Result<Vec<&str>, CliError> {
        let known = |name: &str| T::COLUMNS.iter().chain(T::MORE).any(|column| column.name == name);
        let mut missing: Vec<&str> = self.columns.iter().flatten().map(String::as_str).collect();
        missing.retain(|name| !known(name));
        for item in items {
            if missing.is_empty() {
                break;
            }
            let whole = value(item)?;
            missing.retain(|name| text_at(&whole, name).is_none());
        }
        Ok(missing)
    }
}

/// Parses the value of `--columns`, such as `a,b,payload.order.id`.
pub(crate) fn columns(text: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    if names.len() > COLUMNS_MAX {
        return Err(format!("{} columns are too many; name at most {COLUMNS_MAX}", names.len()));
    }
    match names.iter().find(|name| name.is_empty()) {
        Some(_) => Err("a name is missing; write names such as id,queue,payload.order.id".into()),
        None => Ok(names),
    }
}

/// The text at a path such as `error.message`, `tags.0` or `payload.order.id`; `None` if the path leads nowhere.
pub(super) fn text_at(item: &Value, path: &str) -> Option<String> {
    let (value, written) = match payload_at(item, path) {
        Some(raw) => (serde_json::from_str(raw.get()).ok()?, Some(raw.get())),
        None => (field_at(item, path)?.clone(), None),
    };
    Some(match value {
        Value::Null => String::new(),
        Value::String(text) => text,
        // Numbers in a payload may have any size, so keep them as written.
        Value::Number(number) => written.map_or_else(|| number.to_string(), str::to_owned),
        other @ (Value::Bool(_) | Value::Array(_) | Value::Object(_)) => other.to_string(),
    })
}

/// The value at a path; `None` if the path leads nowhere.
pub(crate) fn at(item: &Value, path: &str) -> Option<Value> {
    match payload_at(item, path) {
        Some(raw) => serde_json::from_str(raw.get()).ok(),
        None => field_at(item, path).cloned(),
    }
}

/// The value inside a payload. The item has the payload as text; if the text is JSON, the path continues in it.
fn payload_at<'a>(item: &'a Value, path: &str) -> Option<&'a RawValue> {
    let inside = path.strip_prefix("payload.")?;
    let Some(Value::String(text)) = item.get("payload") else { return None };
    inside.split('.').try_fold(serde_json::from_str::<&RawValue>(text).ok()?, |value, step| {
        match serde_json::from_str::<HashMap<String, &RawValue>>(value.get()) {
            Ok(map) => map.get(step).copied(),
            Err(_) => {
                let items: Vec<&RawValue> = serde_json::from_str(value.get()).ok()?;
                items.get(step.parse::<usize>().ok()?).copied()
            }
        }
    })
}

fn field_at<'a>(item: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(item, |value, step| match value {
        Value::Object(map) => map.get(step),
        Value::Array(items) => items.get(step.parse::<usize>().ok()?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    })
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Path(String),
}

/// A template for one line per item: text that contains `{path}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template(Vec<Piece>);

impl std::str::FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut pieces, mut plain) = (Vec::new(), String::new());
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '{' if chars.next_if_eq(&'{').is_some() => plain.push('{'),
                '}' if chars.next_if_eq(&'}').is_some() => plain.push('}'),
                '}' => return Err("a } without a {; write }} for the character".into()),
                '{' => {
                    let path: String =
                        std::iter::from_fn(|| chars.next_if(|c| *c != '}' && *c != '{')).collect();
                    if chars.next() != Some('}') || path.trim().is_empty() {
                        return Err(format!(
                            "{{{path} is no field; write {{id}} for a field, or {{{{ for the character"
                        ));
                    }
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    pieces.push(Piece::Path(path.trim().to_owned()));
                }
                '\\' if chars.next_if_eq(&'n').is_some() => plain.push('\n'),
                '\\' if chars.next_if_eq(&'t').is_some() => plain.push('\t'),
                c => plain.push(c),
            }
        }
        pieces.push(Piece::Text(plain));
        Ok(Self(pieces))
    }
}

impl Template {
    /// Formats one item. Values of the item are escaped; the template's own text is not.
    pub(super) fn line(&self, item: &Value) -> String {
        let mut line = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => line.push_str(text),
                Piece::Path(path) => line.push_str(&escape::line(&text_at(item, path).unwrap_or_default())),
            }
        }
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item() -> Value {
        serde_json::json!({"id": "a1", "n": 12, "none": null, "error": {"message": "no\u{1b}[2J"}, "tags": ["x", "y"]})
    }

    #[test]
    fn a_template_is_text_with_fields_in_it() {
        for (template, line) in [
            ("{id} {n}", "a1 12\n"),
            (r"{id}\t{tags.1}\n--", "a1\ty\n--\n"),
            ("{{{id}}} {{}}", "{a1} {}\n"),
            ("{error.message}|{none}|{nothing.there}|{tags}", "no\\u{1b}[2J|||[\"x\",\"y\"]\n"),
            ("", "\n"),
        ] {
            assert_eq!(template.parse::<Template>().unwrap().line(&item()), line, "{template}");
        }
        for wrong in ["{id", "id}", "{}", "{ }", "{a{b}}"] {
            assert!(wrong.parse::<Template>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_continues_inside_a_json_payload() {
        let payload =
            r#"{"order": {"id": 12345678901234567890123, "lines": [{"sku": "a-1"}]}, "note": null}"#;
        let item = serde_json::json!({"id": "a1", "payload": payload});
        for (path, text) in [
            ("payload.order.id", Some("12345678901234567890123")),
            ("payload.order.lines.0.sku", Some("a-1")),
            ("payload.order.lines.0", Some(r#"{"sku":"a-1"}"#)),
            ("payload.note", Some("")),
            ("payload.order.nothing", None),
            ("payload.order.lines.1", None),
            ("payload", Some(payload)),
        ] {
            assert_eq!(text_at(&item, path).as_deref(), text, "{path}");
        }
        assert_eq!(at(&item, "payload.order.lines.0.sku"), Some("a-1".into()));
        let plain = serde_json::json!({"payload": "no json"});
        assert_eq!(text_at(&plain, "payload.order.id"), None);
        let template: Template = "{id} {payload.order.id}".parse().unwrap();
        assert_eq!(template.line(&item), "a1 12345678901234567890123\n");
    }

    #[test]
    fn columns_are_names() {
        assert_eq!(columns("id, queue,payload.order.id").unwrap(), ["id", "queue", "payload.order.id"]);
        for wrong in ["", "a,,b", "a,", &["x"; 65].join(",")] {
            assert!(columns(wrong).is_err(), "{wrong}");
        }
    }
}
