//! The page about the API, rendered from the document on the server: no script, nothing inline, nothing fetched from
//! elsewhere. All text goes through [`escape`]. It shows no data, so it needs no token.

use crate::openapi;
use crate::problem_codes::CODES;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::sync::LazyLock;

static PAGE: LazyLock<String> = LazyLock::new(|| render(openapi::document()));

/// `GET /docs`
pub(crate) async fn page() -> Response {
    with_type(PAGE.as_str(), "text/html; charset=utf-8")
}

/// `GET /docs/style.css`
pub(crate) async fn style() -> Response {
    with_type(include_str!("style.css"), "text/css; charset=utf-8")
}

fn with_type(text: &'static str, kind: &'static str) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// Text that is safe between tags and in attributes.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// Text in which words between backticks are code.
fn prose(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts
        .map(|(n, part)| if n % 2 == 0 { escape(part) } else { format!("<code>{}</code>", escape(part)) })
        .collect()
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn members<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    value.pointer(path).and_then(Value::as_object).into_iter().flatten()
}

/// An anchor in the page.
fn anchor(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' }).collect()
}

fn render(document: &Value) -> String {
    let mut body = String::new();
    let tags: Vec<&str> =
        document["tags"].as_array().into_iter().flatten().map(|tag| text(tag, "name")).collect();
    let _ = write!(
        body,
        "<h1>Redrive</h1><p>{} This page is made from <a href=\"/openapi.json\">openapi.json</a>.</p><nav><ul>",
        prose(document.pointer("/info/description").and_then(Value::as_str).unwrap_or_default()),
    );
    for section in tags.iter().copied().chain(["Problems", "Shapes"]) {
        let _ = write!(body, "<li><a href=\"#{}\">{}</a></li>", anchor(section), escape(section));
    }
    body.push_str("</ul></nav>");
    for tag in tags {
        let _ = write!(body, "<h2 id=\"{}\">{}</h2>", anchor(tag), escape(tag));
        for (path, item) in members(document, "/paths") {
            for (method, operation) in item.as_object().into_iter().flatten() {
                if operation.pointer("/tags/0").and_then(Value::as_str) == Some(tag) {
                    body.push_str(&route(path, method, operation, document));
                }
            }
        }
    }
    body.push_str(&problems());
    body.push_str(&shapes(document));
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Redrive API</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><link rel=\"stylesheet\" href=\"/docs/style.css\">\
         </head><body>{body}</body></html>"
    )
}

fn route(path: &str, method: &str, operation: &Value, document: &Value) -> String {
    let mut out = format!(
        "<h3 id=\"{}\"><code class=\"method\">{}</code><code>{}</code></h3><p>{}</p>",
        escape(text(operation, "operationId")),
        escape(&method.to_ascii_uppercase()),
        escape(path),
        prose(text(operation, "description")),
    );
    let parameters = operation["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !parameters.is_empty() {
        out.push_str("<table><caption>Parameters</caption>");
        for parameter in parameters {
            let _ = write!(
                out,
                "<tr><th><code>{}</code></th><td class=\"type\">{} in {}</td><td>{}</td></tr>",
                escape(text(parameter, "name")),
                type_of(&parameter["schema"]),
                escape(text(parameter, "in")),
                prose(text(parameter, "description")),
            );
        }
        out.push_str("</table>");
    }
    for (kind, content) in members(operation, "/requestBody/content") {
        let _ = write!(out, "<p>Takes <code>{}</code>: {}</p>", escape(kind), type_of(&content["schema"]));
    }
    for (status, reply) in members(operation, "/responses") {
        for (kind, content) in members(reply, "/content") {
            let (status, kind) = (escape(status), escape(kind));
            let _ = write!(out, "<p>Gives {status} <code>{kind}</code>: {}</p>", type_of(&content["schema"]));
        }
    }
    let problems = members(operation, "/responses").filter(|(_, reply)| reply.get("$ref").is_some());
    let problems: Vec<String> = problems.map(|(status, _)| escape(status)).collect();
    let _ = write!(out, "<p>Or a <a href=\"#problems\">problem</a>: {}.</p>", problems.join(", "));
    let _ = write!(out, "<pre>{}</pre>", escape(&curl(path, method, operation, document)));
    out
}

/// A command that calls the route.
fn curl(path: &str, method: &str, operation: &Value, document: &Value) -> String {
    let path = path
        .replace("{queue}", "payments")
        .replace("{dlq}", "payments-dlq")
        .replace("{control}", "pause")
        .replace("{state}", "open")
        .replace(['{', '}'], "")
        .replace("/id", "/$ID")
        .replace("/token/", "/$TOKEN/")
        .replace("/key", "/$KEY");
    let mut command = "curl".to_owned();
    if !method.eq_ignore_ascii_case("get") {
        let _ = write!(command, " -X {}", method.to_ascii_uppercase());
    }
    if operation.get("security").is_none() {
        command.push_str(" -H \"Authorization: Bearer $REDRIVE_TOKEN\"");
    }
    let json = operation.pointer("/requestBody/content/application~1json/schema");
    if let Some(schema) = json {
        let example = Value::Object(example(schema, document));
        let _ = write!(command, " --json '{example}'");
    } else if operation.get("requestBody").is_some() {
        command.push_str(" -H 'Content-Type: application/x-ndjson' -T letters.ndjson");
    }
    let _ = write!(command, " http://127.0.0.1:7373{path}");
    command
}

/// A small body: the required fields, or the first one.
fn example(schema: &Value, document: &Value) -> Map<String, Value> {
    let shape = text(schema, "$ref").trim_start_matches('#');
    let shape = document.pointer(shape).unwrap_or(schema);
    let required: Vec<&str> =
        shape["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let fields = members(shape, "/properties");
    let wanted = fields.enumerate().filter(|(n, (name, _))| {
        if required.is_empty() {
            *n == 0 && shape["required"].is_null()
        } else {
            required.contains(&name.as_str())
        }
    });
    wanted.map(|(_, (name, field))| (name.clone(), sample(name, field, document))).collect()
}

/// A plausible value of a field.
fn sample(name: &str, field: &Value, document: &Value) -> Value {
    let target = document.pointer(text(field, "$ref").trim_start_matches('#')).unwrap_or(field);
    if let Some(first) = target.pointer("/enum/0") {
        return first.clone();
    }
    let kind = target["type"].as_str().or_else(|| target.pointer("/type/0").and_then(Value::as_str));
    match (name, kind) {
        ("filter", _) => "queue:payments status:pending".into(),
        ("confirm", _) => "payments".into(),
        (_, Some("integer" | "number")) => 1.into(),
        (_, Some("boolean")) => true.into(),
        (_, Some("array")) => Value::Array(vec![sample(name, &target["items"], document)]),
        (_, Some("object")) => Value::Object(example(target, document)),
        (_, _) => "…".into(),
    }
}

/// The type of a schema, with links to shapes.
fn type_of(schema: &Value) -> String {
    if let Some(name) = text(schema, "$ref").rsplit('/').next().filter(|name| !name.is_empty()) {
        return format!("<a href=\"#shape-{}\">{}</a>", anchor(name), escape(name));
    }
    if let Some(choices) = schema.get("anyOf").and_then(Value::as_array) {
        let choices: Vec<String> = choices.iter().map(type_of).collect();
        return choices.join(" or ");
    }
    if let Some(words) = schema.get("enum").and_then(Value::as_array) {
        let words: Vec<String> = words
            .iter()
            .filter_map(Value::as_str)
            .map(|word| format!("<code>{}</code>", escape(word)))
            .collect();
        return words.join(" or ");
    }
    let named = &schema["type"];
    let kind = match named.as_array() {
        Some(kinds) => kinds.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        None => named.as_str().unwrap_or("any JSON").to_owned(),
    };
    match kind.as_str() {
        "array" => format!("list of {}", type_of(&schema["items"])),
        "object" => match (schema.pointer("/properties/items/items"), schema.get("additionalProperties")) {
            (Some(item), _) => format!("{{items: list of {}}}", type_of(item)),
            (None, Some(value)) if value.is_object() => format!("map of {}", type_of(value)),
            (None, _) => "object".to_owned(),
        },
        _ => escape(schema.get("format").and_then(Value::as_str).unwrap_or(&kind)),
    }
}

fn problems() -> String {
    let mut out = "<h2 id=\"problems\">Problems</h2><p>A request without a result gets \
                   <code>application/problem+json</code>. Decide by <code>code</code>; a code never changes its \
                   meaning.</p><table>"
        .to_owned();
    for (code, status, meaning) in CODES {
        let _ = write!(
            out,
            "<tr id=\"problem-{code}\"><th><code>{code}</code></th><td>{status}</td><td>{}</td></tr>",
            prose(meaning)
        );
    }
    out + "</table>"
}

fn shapes(document: &Value) -> String {
    let mut out = "<h2 id=\"shapes\">Shapes</h2>".to_owned();
    for (name, shape) in members(document, "/components/schemas") {
        let _ = write!(out, "<h3 id=\"shape-{}\">{}</h3>", anchor(name), escape(name));
        if shape.get("enum").is_some() {
            let _ = write!(out, "<p>{}</p>", type_of(shape));
            continue;
        }
        let _ = write!(out, "<p>{}</p><table>", prose(text(shape, "description")));
        let required = shape["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (field, schema) in members(shape, "/properties") {
            let optional = if required.contains(&Value::from(field.as_str())) { "" } else { " (optional)" };
            let _ = write!(
                out,
                "<tr><th><code>{}</code></th><td class=\"type\">{}{optional}</td><td>{}</td></tr>",
                escape(field),
                type_of(schema),
                prose(text(schema, "description")),
            );
        }
        out.push_str("</table>");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_document_becomes_markup() {
        let bad = "<script>alert('x')</script>\"&";
        let document = serde_json::json!({
            "info": {"description": bad},
            "tags": [{"name": bad}],
            "paths": {bad: {"get": {
                "operationId": bad, "tags": [bad], "description": bad,
                "parameters": [{"name": bad, "in": bad, "schema": {"type": bad}, "description": bad}],
                "requestBody": {"content": {bad: {"schema": {"$ref": format!("#/{bad}")}}}},
                "responses": {bad: {"content": {bad: {"schema": {"enum": [bad]}}}}},
            }}},
            "components": {"schemas": {bad: {"description": bad, "properties": {bad: {"description": bad}}}}},
        });
        let page = render(&document);
        assert!(!page.contains("<script") && !page.contains("alert('x')"), "{page}");
        assert!(page.contains("&lt;script&gt;"));
    }

    #[test]
    fn every_problem_has_its_anchor_and_every_link_a_target() {
        let page = &*PAGE;
        for (code, ..) in CODES {
            assert!(page.contains(&format!("id=\"problem-{code}\"")), "{code}");
        }
        for link in page.split("href=\"#").skip(1) {
            let target = link.split('"').next().unwrap();
            assert!(page.contains(&format!("id=\"{target}\"")), "{target}");
        }
        assert!(!page.contains("<script") && !page.contains("style=") && !page.contains("onclick"));
    }
}
