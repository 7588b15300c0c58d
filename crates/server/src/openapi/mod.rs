//! The document about the API (OpenAPI 3.1), made from the table of routes and the table of shapes. It shows no data,
//! so it needs no token.

mod shapes;

use crate::api::endpoint::{Content, Endpoint, Needs};
use crate::api::endpoints;
use crate::ndjson;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};
use shapes::{schema, schemas};
use std::sync::LazyLock;

/// The document. It is the same for as long as the process lives.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| build(&endpoints()));
/// Its text.
static TEXT: LazyLock<String> = LazyLock::new(|| DOCUMENT.to_string());

/// The document about the API.
#[must_use]
pub fn document() -> &'static Value {
    &DOCUMENT
}

/// `GET /openapi.json`
pub(crate) async fn serve() -> Response {
    let mut response = TEXT.as_str().into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn build(endpoints: &[Endpoint]) -> Value {
    let shapes = schemas();
    let mut paths: Map<String, Value> = Map::new();
    for endpoint in endpoints {
        let item = paths.entry(endpoint.path).or_insert_with(|| json!({}));
        if let Some(item) = item.as_object_mut() {
            item.insert(endpoint.method.to_ascii_lowercase(), operation(endpoint, &shapes));
        }
    }
    let mut tags: Vec<&str> = endpoints.iter().map(|endpoint| endpoint.tag).collect();
    tags.dedup();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Redrive",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A dead letter office for background work. Fields that are not described here may be added \
                            to replies; requests with unknown fields are refused.",
            "license": {"name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": tags.iter().map(|tag| json!({"name": tag})).collect::<Vec<_>>(),
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": shapes,
            "headers": headers(),
            "responses": {
                "Problem": {
                    "description": "Why the request has no result. The code says what is wrong.",
                    "headers": headers_named(COMMON.into_iter().chain(["Retry-After"])),
                    "content": {"application/problem+json": {"schema": schema("Problem")}},
                },
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of `redrive token create`."},
                "session": {"type": "apiKey", "in": "cookie", "name": "redrive-session"},
            },
        },
    })
}

/// The headers that replies may carry.
fn headers() -> Value {
    let number = |about: &str| json!({"description": about, "schema": {"type": "integer"}});
    let text = |about: &str| json!({"description": about, "schema": {"type": "string"}});
    json!({
        "X-Request-Id": text("The id of the request."),
        "RateLimit-Limit": number("Requests a second, if there is a limit."),
        "RateLimit-Remaining": number("Requests that are left now."),
        "RateLimit-Reset": number("Seconds until there is room again."),
        "Retry-After": number("Seconds after which it makes sense to try again."),
        "Link": text("The next page."),
        "ETag": text("The version, for `If-Match`."),
    })
}

/// References to headers.
fn headers_named<'a>(names: impl IntoIterator<Item = &'a str>) -> Value {
    let reference = |name: &str| (name.to_owned(), json!({"$ref": format!("#/components/headers/{name}")}));
    Value::Object(names.into_iter().map(reference).collect())
}

/// The headers of every reply.
const COMMON: [&str; 4] = ["X-Request-Id", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"];

fn operation(endpoint: &Endpoint, shapes: &Map<String, Value>) -> Value {
    let mut operation = json!({
        "operationId": endpoint.operation_id(),
        "tags": [endpoint.tag],
        "summary": endpoint.about.split_inclusive(". ").next().unwrap_or_default().trim(),
        "description": format!("{} Needs: {}.", endpoint.about, endpoint.needs.text()),
        "x-needs": endpoint.needs.text(),
        "parameters": parameters(endpoint, shapes),
        "responses": responses(endpoint),
    });
    if let Some(members) = operation.as_object_mut() {
        if !endpoint.bodies.is_empty() {
            let body = json!({"required": endpoint.body_required, "content": contents(&endpoint.bodies)});
            members.insert("requestBody".into(), body);
        }
        if endpoint.needs == Needs::Nothing {
            members.insert("security".into(), json!([]));
        }
    }
    operation
}

fn parameters(endpoint: &Endpoint, shapes: &Map<String, Value>) -> Vec<Value> {
    let path = endpoint.variables().map(|name| {
        let (schema, about) = variable(name, endpoint.path);
        json!({"name": name, "in": "path", "required": true, "schema": schema, "description": about})
    });
    let shape = endpoint.query.and_then(|name| shapes.get(name)?.get("properties")?.as_object());
    let query = shape.into_iter().flatten().map(|(name, field)| {
        let mut field = field.clone();
        let about =
            field.as_object_mut().and_then(|members| members.remove("description")).unwrap_or_default();
        json!({"name": name, "in": "query", "required": false, "schema": field, "description": about})
    });
    let headers = endpoint.headers.iter().map(|(name, about)| {
        json!({"name": name, "in": "header", "required": false, "schema": {"type": "string"}, "description": about})
    });
    path.chain(query).chain(headers).collect()
}

/// What a variable in a path may be.
fn variable(name: &str, path: &str) -> (Value, &'static str) {
    match name {
        "queue" => (schema("QueueName"), "The name of the queue."),
        "dlq" => (schema("QueueName"), "The name of the dead letter queue."),
        "token" => (schema("LeaseToken"), "The token of the delivery."),
        "key" => (schema("Text"), "The key."),
        "control" => {
            (json!({"type": "string", "enum": ["pause", "resume", "cancel", "rate", "undo"]}), "What to do.")
        }
        "state" => (json!({"type": "string", "enum": ["open", "close"]}), "What to do."),
        _ if path.contains("/groups/") => (schema("GroupId"), "The id of the group."),
        _ if path.contains("/tokens/") => (schema("Text"), "The id of the token."),
        _ if path.contains("/operations/") => (schema("Id"), "The id of the operation."),
        _ => (schema("Text"), "The id, or its last 4 or more digits."),
    }
}

/// The contents of a body by their media types. Several of one type are alternatives.
fn contents(all: &[Content]) -> Value {
    let mut by_type: Map<String, Value> = Map::new();
    for content in all {
        let (kind, schema) = match content {
            Content::Json(shape) => ("application/json", schema(shape)),
            Content::Page(shape) => ("application/json", page(shape)),
            Content::Results(shape) => ("application/json", results(shape)),
            Content::Lines(shape) => (ndjson::MEDIA_TYPE, schema(shape)),
            Content::Text("text/event-stream") => ("text/event-stream", schema("StreamEvent")),
            Content::Text(kind) => (*kind, schema("Text")),
            Content::Empty => continue,
        };
        match by_type.get_mut(kind).and_then(|known| known.get_mut("schema")) {
            Some(known) => *known = json!({"anyOf": [known.clone(), schema]}),
            None => {
                by_type.insert(kind.to_owned(), json!({"schema": schema}));
            }
        }
    }
    Value::Object(by_type)
}

fn page(shape: &str) -> Value {
    json!({
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": schema(shape)},
            "next": {"type": ["string", "null"], "description": "The cursor of the next page."},
            "damaged": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Records that cannot be read, in words.",
            },
        },
        "required": ["items", "next"],
    })
}

fn results(shape: &str) -> Value {
    json!({
        "type": "object",
        "properties": {"items": {"type": "array", "items": schema(shape)}},
        "required": ["items"],
    })
}

fn responses(endpoint: &Endpoint) -> Value {
    let mut responses: Map<String, Value> = Map::new();
    let mut statuses: Vec<u16> = endpoint.replies.iter().map(|(status, _)| *status).collect();
    statuses.dedup();
    statuses.sort_unstable();
    statuses.dedup();
    for status in statuses {
        let contents_of =
            endpoint.replies.iter().filter(|(of, _)| *of == status).map(|(_, content)| *content);
        let all: Vec<Content> = contents_of.collect();
        let pages = all.iter().any(|content| matches!(content, Content::Page(_)));
        let versions =
            all.iter().any(|content| matches!(content, Content::Json("LetterState" | "DeadLetter")));
        let more = [pages.then_some("Link"), versions.then_some("ETag")].into_iter().flatten();
        let headers = headers_named(COMMON.into_iter().chain(more));
        let mut response = json!({"description": "It worked.", "headers": headers});
        if let (Some(members), false) = (response.as_object_mut(), matches!(all.as_slice(), [Content::Empty]))
        {
            members.insert("content".into(), contents(&all));
        }
        responses.insert(status.to_string(), response);
    }
    for status in problems(endpoint) {
        responses.insert((*status).to_owned(), json!({"$ref": "#/components/responses/Problem"}));
    }
    Value::Object(responses)
}

/// The statuses of the problems that a route may answer with.
fn problems(endpoint: &Endpoint) -> &'static [&'static str] {
    match (endpoint.needs, endpoint.method) {
        (Needs::Nothing, "GET") => &["400", "403", "405", "414", "421", "431", "5XX"],
        (_, "GET") => &["400", "401", "403", "404", "405", "409", "414", "421", "422", "429", "431", "5XX"],
        (_, _) => &[
            "400", "401", "403", "404", "405", "408", "409", "412", "413", "414", "415", "421", "422", "428",
            "429", "431", "5XX",
        ],
    }
}
