//! Writes YAML from JSON values. Strings are always double-quoted as in JSON, so that `no`, `1e3` and `~` stay strings.

use super::escape;
use serde_json::Value;

/// Words that some YAML parsers do not read as text.
const RESERVED: [&str; 11] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"];

/// Writes a whole document.
pub(crate) fn document(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => entries(&mut text, map, 0),
        Value::Array(items) if !items.is_empty() => elements(&mut text, items, 0),
        Value::Object(_)
        | Value::Array(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_) => {
            text.push_str(&scalar(value));
            text.push('\n');
        }
    }
    text
}

/// Writes one element of a list that is written in pieces.
pub(crate) fn element(value: &Value, indent: usize) -> String {
    let mut text = String::new();
    elements(&mut text, std::slice::from_ref(value), indent);
    text
}

fn entries(text: &mut String, map: &serde_json::Map<String, Value>, indent: usize) {
    for (index, (name, value)) in map.iter().enumerate() {
        if index > 0 {
            pad(text, indent);
        }
        text.push_str(&key(name));
        text.push(':');
        nested(text, value, indent);
    }
}

fn elements(text: &mut String, items: &[Value], indent: usize) {
    for (index, value) in items.iter().enumerate() {
        if index > 0 {
            pad(text, indent);
        }
        text.push_str("- ");
        match value {
            Value::Object(map) if !map.is_empty() => entries(text, map, indent + 2),
            Value::Array(inner) if !inner.is_empty() => elements(text, inner, indent + 2),
            Value::Object(_)
            | Value::Array(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_) => {
                text.push_str(&scalar(value));
                text.push('\n');
            }
        }
    }
}

/// Writes a value after `name:`, on the same line if it is a scalar, otherwise below it.
fn nested(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            text.push('\n');
            pad(text, indent + 2);
            entries(text, map, indent + 2);
        }
        Value::Array(items) if !items.is_empty() => {
            text.push('\n');
            pad(text, indent + 2);
            elements(text, items, indent + 2);
        }
        Value::Object(_)
        | Value::Array(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_) => {
            text.push(' ');
            text.push_str(&scalar(value));
            text.push('\n');
        }
    }
}

fn pad(text: &mut String, indent: usize) {
    text.extend(std::iter::repeat_n(' ', indent));
}

fn key(name: &str) -> String {
    let plain = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && !RESERVED.contains(&name);
    if plain { name.to_owned() } else { scalar(&Value::String(name.to_owned())) }
}

/// Writes a scalar, or an empty list or map, as in JSON.
fn scalar(value: &Value) -> String {
    escape::json(value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_value_has_its_place() {
        let value = serde_json::json!({
            "id": "no", "n": 1.5, "empty": [], "none": null, "deep": {"list": [1, {"a": true, "b": [[2, 3]]}, "x"]},
            "Key: odd": "line\nbreak \u{9b}", "map": {},
        });
        let expected = concat!(
            "\"Key: odd\": \"line\\nbreak \\u009b\"\n",
            "deep:\n",
            "  list:\n",
            "    - 1\n",
            "    - a: true\n",
            "      b:\n",
            "        - - 2\n",
            "          - 3\n",
            "    - \"x\"\n",
            "empty: []\n",
            "id: \"no\"\n",
            "map: {}\n",
            "\"n\": 1.5\n",
            "none: null\n",
        );
        assert_eq!(document(&value), expected);
    }

    #[test]
    fn a_document_may_be_a_list_or_a_single_value() {
        assert_eq!(document(&serde_json::json!([1, {"a": 2}])), "- 1\n- a: 2\n");
        assert_eq!(document(&serde_json::json!("yes")), "\"yes\"\n");
        assert_eq!(element(&serde_json::json!({"a": 1, "b": 2}), 2), "- a: 1\n    b: 2\n");
    }
}
