//! The shapes of bodies and replies as JSON Schema, made from `shapes.txt`. A test compares every reply of every test
//! with its shape, and the fields that a body accepts with the shape of the body.

use serde_json::{Map, Value, json};

/// The table of shapes.
const TABLE: &str = include_str!("shapes.txt");

/// Every shape by its name, as schemas that refer to each other.
pub(crate) fn schemas() -> Map<String, Value> {
    let mut schemas = Map::new();
    for block in
        TABLE.split("\n\n").map(str::trim).filter(|block| !block.is_empty() && !block.starts_with('#'))
    {
        if let Some((name, words)) = block.split_once(" = ").filter(|(name, _)| !name.contains([':', '\n'])) {
            let words: Vec<&str> = words.split_whitespace().collect();
            schemas.insert(name.to_owned(), json!({"type": "string", "enum": words}));
            continue;
        }
        let (head, fields) = block.split_once('\n').unwrap_or((block, ""));
        let (name, about) = head.split_once(": ").unwrap_or((head, ""));
        schemas.insert(name.to_owned(), object(about, fields, &schemas));
    }
    schemas
}

/// The schema of an object with these fields, one on each line: its name (with `?` if it may be missing), its type and
/// what it means. `..Other` stands for the fields of a shape above, and `..` allows any other field.
fn object(about: &str, fields: &str, known: &Map<String, Value>) -> Value {
    let mut properties = Map::new();
    let mut required: Vec<Value> = Vec::new();
    let mut open = false;
    for line in fields.lines().map(str::trim) {
        if let Some(other) = line.strip_prefix("..") {
            open |= other.is_empty();
            let other = known.get(other);
            let own = |name: &str| other.and_then(|shape| shape.get(name)).cloned();
            properties.extend(own("properties").and_then(|own| own.as_object().cloned()).unwrap_or_default());
            required.extend(own("required").and_then(|own| own.as_array().cloned()).unwrap_or_default());
            continue;
        }
        let (name, rest) = line.split_once(' ').unwrap_or((line, "Any"));
        let (kind, about) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
        let (name, optional) = name.strip_suffix('?').map_or((name, false), |name| (name, true));
        let mut schema = schema(kind);
        if let (Some(members), false) = (schema.as_object_mut(), about.trim().is_empty()) {
            members.insert("description".into(), about.trim().into());
        }
        properties.insert(name.to_owned(), schema);
        if !optional {
            required.push(name.into());
        }
    }
    let mut shape = json!({"type": "object", "description": about, "properties": properties});
    if let Some(members) = shape.as_object_mut() {
        if !required.is_empty() {
            members.insert("required".into(), required.into());
        }
        if open {
            members.insert("additionalProperties".into(), true.into());
        }
    }
    shape
}

/// The schema of a type: one of the basic ones below, the name of a shape, `[T]` for a list, `{T}` for a map by name,
/// and `T|null`.
pub(crate) fn schema(kind: &str) -> Value {
    if let Some(inner) = kind.strip_suffix("|null") {
        let inner = schema(inner);
        return match inner.get("type").and_then(Value::as_str) {
            Some(name) => {
                let mut both = inner.clone();
                if let Some(members) = both.as_object_mut() {
                    members.insert("type".into(), json!([name, "null"]));
                }
                both
            }
            None if inner.as_object().is_some_and(Map::is_empty) => inner,
            None => json!({"anyOf": [inner, {"type": "null"}]}),
        };
    }
    if let Some(item) = kind.strip_prefix('[').and_then(|kind| kind.strip_suffix(']')) {
        return json!({"type": "array", "items": schema(item)});
    }
    if let Some(value) = kind.strip_prefix('{').and_then(|kind| kind.strip_suffix('}')) {
        return json!({"type": "object", "additionalProperties": schema(value)});
    }
    match kind {
        "Text" => json!({"type": "string"}),
        "Flag" => json!({"type": "boolean"}),
        "Count" | "Milliseconds" => json!({"type": "integer", "minimum": 0}),
        "Integer" => json!({"type": "integer"}),
        "Number" => json!({"type": "number"}),
        "Any" => json!({}),
        "Object" => json!({"type": "object"}),
        "Time" => json!({"type": "string", "format": "date-time"}),
        "Id" => json!({"type": "string", "format": "uuid"}),
        "Duration" => json!({
            "description": "A duration such as 500ms, 30s, 15m, 2h or 7d, or a number of milliseconds.",
            "anyOf": [{"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"}, {"type": "integer", "minimum": 0}],
        }),
        "QueueName" => json!({"type": "string", "minLength": 1, "maxLength": 128}),
        "GroupId" => json!({"type": "string", "pattern": "^[0-9a-f]{16}$"}),
        "LeaseToken" => json!({"type": "string"}),
        shape => json!({"$ref": format!("#/components/schemas/{shape}")}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every name that a schema refers to.
    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(target)) = members.get("$ref") {
                    found.push(target.trim_start_matches("#/components/schemas/").to_owned());
                }
                members.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn every_shape_that_is_named_exists() {
        let schemas = schemas();
        assert!(schemas.len() > 60, "{}", schemas.len());
        let mut found = Vec::new();
        schemas.values().for_each(|schema| references(schema, &mut found));
        let missing: Vec<&String> = found.iter().filter(|name| !schemas.contains_key(*name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_shape_includes_the_fields_of_another() {
        let schemas = schemas();
        let required = schemas["Delivery"]["required"].as_array().unwrap();
        assert!(required.contains(&"id".into()) && required.contains(&"token".into()));
        assert!(!required.contains(&"payload".into()));
        assert_eq!(schema("Text|null"), json!({"type": ["string", "null"]}));
        assert_eq!(schema("[Count]"), json!({"type": "array", "items": {"type": "integer", "minimum": 0}}));
    }
}
