//! Compares replies with the document about the API. A field that the document does not mention fails the test, so the
//! document cannot fall behind.

use super::Reply;
use redrive_server::openapi_document;
use serde_json::Value;

/// Fails unless the reply is one that the document describes.
pub(super) fn check(method: &str, path: &str, reply: &Reply) {
    if let Err(what) = compare(method, path, reply) {
        panic!("{method} {path} answered {}: {what}\n{}", reply.status, reply.text);
    }
}

fn compare(method: &str, path: &str, reply: &Reply) -> Result<(), String> {
    let status = reply.status.as_u16();
    assert!(reply.headers.contains_key("x-request-id"), "no request id");
    let kind = reply.headers.get("content-type").map(|kind| kind.to_str().unwrap()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default();
    if status >= 400 {
        return Checker.problem(reply, kind).and_then(|()| match operation(method, path) {
            Some(operation) => Checker.documented(operation, status).map(|_| ()),
            None => Ok(()),
        });
    }
    // HEAD and OPTIONS follow from the other methods.
    let Some(operation) = operation(method, path) else {
        return if matches!(method, "HEAD" | "OPTIONS") {
            Ok(())
        } else {
            Err("it is not in the document".into())
        };
    };
    let response = Checker.documented(operation, status)?;
    let Some(contents) = response.get("content").and_then(Value::as_object) else {
        return if reply.text.is_empty() { Ok(()) } else { Err("the document says that it is empty".into()) };
    };
    let schema = contents.get(kind).ok_or_else(|| format!("{kind} is not documented"))?;
    let schema = &schema["schema"];
    match kind {
        "application/json" => Checker.value(schema, &reply.body, "body"),
        "application/x-ndjson" => {
            reply.lines().iter().try_for_each(|line| Checker.value(schema, line, "line"))
        }
        _ => Ok(()),
    }
}

/// The operation of the document that a request belongs to.
fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let paths = openapi_document()["paths"].as_object().unwrap();
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |template: &str| {
        let wanted: Vec<&str> = template.split('/').collect();
        let same = |(want, have): (&&str, &&str)| want.starts_with('{') || want == have;
        wanted.len() == parts.len() && wanted.iter().zip(&parts).all(same)
    };
    let variables = |template: &str| template.matches('{').count();
    let mut found: Vec<&String> = paths.keys().filter(|template| fits(template)).collect();
    found.sort_by_key(|template| variables(template));
    paths.get(*found.first()?)?.get(method.to_ascii_lowercase())
}

struct Checker;

impl Checker {
    fn documented(&self, operation: &'static Value, status: u16) -> Result<&'static Value, String> {
        let responses = &operation["responses"];
        let range = format!("{}XX", status / 100);
        let found = responses.get(status.to_string()).or_else(|| responses.get(range));
        found.ok_or_else(|| format!("the status {status} is not documented"))
    }

    fn problem(&self, reply: &Reply, kind: &str) -> Result<(), String> {
        if kind != "application/problem+json" {
            return Err(format!("a problem of the type {kind}"));
        }
        let schema = &openapi_document()["components"]["schemas"]["Problem"];
        let same = reply.headers["x-request-id"].to_str().unwrap() == reply.body["request_id"];
        if !same {
            return Err("the id of the request is not in the problem".into());
        }
        self.value(schema, &reply.body, "problem")
    }

    fn value(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{at} {what}: {value}"));
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            let target = openapi_document().pointer(target.trim_start_matches('#')).unwrap();
            return self.value(target, value, at);
        }
        if let Some(choices) = schema.get("anyOf").and_then(Value::as_array) {
            let failures: Vec<String> =
                choices.iter().filter_map(|choice| self.value(choice, value, at).err()).collect();
            return if failures.len() < choices.len() { Ok(()) } else { Err(failures.join("; ")) };
        }
        if let Some(words) = schema.get("enum").and_then(Value::as_array)
            && !words.contains(value)
        {
            return wrong("is not one of the words");
        }
        let kinds: Vec<&str> = match schema.get("type") {
            None => return Ok(()),
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            Some(kind) => kind.as_str().into_iter().collect(),
        };
        let is = |kind: &&str| match *kind {
            "string" => value.is_string(),
            "integer" => value.is_u64() || value.is_i64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            "null" => value.is_null(),
            other => panic!("{other}"),
        };
        if !kinds.iter().any(is) {
            return wrong(&format!("is not {kinds:?}"));
        }
        match value {
            Value::Array(items) => {
                items.iter().try_for_each(|item| self.value(&schema["items"], item, &format!("{at}[]")))
            }
            Value::Object(_) => self.object(schema, value, at),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
        }
    }

    fn object(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        for name in required.filter_map(Value::as_str) {
            if value.get(name).is_none() {
                return Err(format!("{at} lacks {name}"));
            }
        }
        let (fields, rest) = (schema.get("properties"), schema.get("additionalProperties"));
        for (name, field) in value.as_object().unwrap() {
            let at = format!("{at}.{name}");
            match (fields.and_then(|fields| fields.get(name)), rest) {
                (Some(schema), _) => self.value(schema, field, &at)?,
                (None, Some(schema)) if schema.is_object() => self.value(schema, field, &at)?,
                (None, Some(Value::Bool(true))) => {}
                (None, _) if fields.is_none() => {}
                (None, _) => return Err(format!("{at} is not in the document")),
            }
        }
        Ok(())
    }
}

#[test]
fn a_reply_that_differs_from_the_document_is_noticed() {
    let schema = serde_json::json!({
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": ["string", "null"]}},
        "required": ["a"],
    });
    for (value, ok) in [
        (serde_json::json!({"a": 1}), true),
        (serde_json::json!({"a": 1, "b": null}), true),
        (serde_json::json!({"b": "x"}), false),
        (serde_json::json!({"a": "1"}), false),
        (serde_json::json!({"a": 1, "c": 1}), false),
        (serde_json::json!([]), false),
    ] {
        assert_eq!(Checker.value(&schema, &value, "value").is_ok(), ok, "{value}");
    }
}
