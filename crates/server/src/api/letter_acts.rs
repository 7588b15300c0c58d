//! Acts on dead letters, one by one or a few at once. Every act has a route of its own; [`ACTS`] is the table of them.

use super::endpoint::Endpoint;
use super::ids::IdInPath;
use crate::access::Caller;
use crate::problem::Problem;
use crate::reply::{Items, batch, expected_version, only, with_version};
use crate::request::{BatchBody, OptionalBody, Path};
use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::post;
use redrive_core::dead_letter::{Act, ActRequest, Retry};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::json_input;
use redrive_core::message::Priority;
use redrive_core::store::{LetterState, Letters as _, Role};
use redrive_core::time::{Span, Time};
use serde::Deserialize;
use serde_json::{Map, Value};

/// How long a quarantine lasts unless its end is named.
const QUARANTINE: Span = Span::from_hours(24);
/// The number of acts in one request. More are an operation, which has a preview.
const ACTS_MAX: usize = 100;

/// An act that has a route.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Retry,
    Resolve,
    Abandon,
    Review,
    Quarantine,
    Release,
    Reopen,
    Notes,
    Move,
    Snooze,
    Assign,
    Labels,
    Hold,
    Unhold,
    Unpurge,
    PullBack,
    Edit,
    Patch,
    Restore,
    Erase,
}

/// A row of the table of acts.
struct ActRoute {
    verb: Verb,
    path: &'static str,
    /// The shape of the body.
    body: &'static str,
    /// The fields of the body. An act refuses all others.
    fields: &'static [&'static str],
    role: Role,
    about: &'static str,
}

const REASON: &[&str] = &["reason"];

const fn plain(verb: Verb, path: &'static str, about: &'static str) -> ActRoute {
    ActRoute { verb, path, body: "NoteBody", fields: REASON, role: Role::Operator, about }
}

/// The acts and their routes.
const ACTS: [ActRoute; 20] = [
    ActRoute {
        body: "RetryBody",
        fields: &["reason", "queue", "priority", "max_attempts", "at", "delay", "force"],
        ..plain(Verb::Retry, "/api/v1/dlq/{id}/retry", "Sends the letter back to its queue.")
    },
    plain(Verb::Resolve, "/api/v1/dlq/{id}/resolve", "Closes the letter as dealt with."),
    plain(Verb::Abandon, "/api/v1/dlq/{id}/abandon", "Closes the letter as given up."),
    plain(Verb::Review, "/api/v1/dlq/{id}/review", "Asks for a review by a person."),
    ActRoute {
        body: "QuarantineBody",
        fields: &["reason", "until"],
        ..plain(Verb::Quarantine, "/api/v1/dlq/{id}/quarantine", "Puts the letter in quarantine.")
    },
    plain(Verb::Release, "/api/v1/dlq/{id}/release", "Takes the letter out of quarantine or review."),
    plain(Verb::Reopen, "/api/v1/dlq/{id}/reopen", "Opens a closed letter again."),
    ActRoute {
        body: "NewNoteBody",
        fields: &["reason", "note", "notes"],
        ..plain(Verb::Notes, "/api/v1/dlq/{id}/notes", "Adds a note.")
    },
    ActRoute {
        body: "MoveBody",
        fields: &["reason", "dlq"],
        ..plain(Verb::Move, "/api/v1/dlq/{id}/move", "Moves the letter to another dead letter queue.")
    },
    ActRoute {
        body: "SnoozeBody",
        fields: &["reason", "until"],
        ..plain(
            Verb::Snooze,
            "/api/v1/dlq/{id}/snooze",
            "Hides the letter from consumers and automatic redrives.",
        )
    },
    ActRoute {
        body: "AssignBody",
        fields: &["reason", "to"],
        ..plain(Verb::Assign, "/api/v1/dlq/{id}/assign", "Assigns the letter to an owner, or to nobody.")
    },
    ActRoute {
        body: "LabelsBody",
        fields: &["reason", "add", "remove"],
        ..plain(Verb::Labels, "/api/v1/dlq/{id}/labels", "Adds and removes labels.")
    },
    plain(Verb::Hold, "/api/v1/dlq/{id}/hold", "Holds the letter: it never expires and cannot be purged."),
    plain(Verb::Unhold, "/api/v1/dlq/{id}/unhold", "Ends the hold."),
    plain(Verb::Unpurge, "/api/v1/dlq/{id}/unpurge", "Undoes a purge, for a day."),
    plain(
        Verb::PullBack,
        "/api/v1/dlq/{id}/pull-back",
        "Undoes a redrive, while no worker has started the message.",
    ),
    ActRoute {
        body: "EditBody",
        fields: &["reason", "payload", "headers"],
        role: Role::Editor,
        ..plain(
            Verb::Edit,
            "/api/v1/dlq/{id}/edit",
            "Replaces the content. The earlier content is kept as a revision.",
        )
    },
    ActRoute {
        body: "PatchBody",
        fields: &["reason", "patch"],
        role: Role::Editor,
        ..plain(
            Verb::Patch,
            "/api/v1/dlq/{id}/patch",
            "Patches the JSON payload. Bytes it does not name stay.",
        )
    },
    ActRoute {
        body: "RestoreBody",
        fields: &["reason", "n"],
        role: Role::Editor,
        ..plain(Verb::Restore, "/api/v1/dlq/{id}/restore", "Restores the content of an earlier revision.")
    },
    ActRoute {
        role: Role::Admin,
        ..plain(Verb::Erase, "/api/v1/dlq/{id}/erase", "Erases the content for good, and keeps a tombstone.")
    },
];

impl ActRoute {
    /// The name of the act: the last part of its route.
    fn name(&self) -> &'static str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// The routes of the acts.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    let endpoint = |route: &'static ActRoute| {
        let handler = post(
            move |caller: Caller,
                  Path(id): Path<IdInPath>,
                  headers: HeaderMap,
                  OptionalBody(body): OptionalBody<Map<String, Value>>| {
                perform(route, caller, id, headers, body)
            },
        );
        let endpoint = Endpoint::new(("POST", route.path), route.role, route.about, handler).header(
            "If-Match",
            "The `ETag` of the letter. The act is refused if the letter has changed since.",
        );
        let needs_body =
            matches!(route.verb, Verb::Notes | Verb::Move | Verb::Snooze | Verb::Patch | Verb::Restore);
        let endpoint = if needs_body {
            endpoint.takes(super::endpoint::Content::Json(route.body))
        } else {
            endpoint.may_take(route.body)
        };
        endpoint.shows("LetterState")
    };
    static TABLE: [ActRoute; 20] = ACTS;
    TABLE.iter().map(endpoint).collect()
}

async fn perform(
    route: &ActRoute,
    caller: Caller,
    id: IdInPath,
    headers: HeaderMap,
    body: Map<String, Value>,
) -> Result<Response, Problem> {
    caller.require(route.role, route.name())?;
    let id = id.letter(&caller).await?;
    let expected_version = expected_version(&headers)?;
    if route.verb == Verb::Edit && expected_version.is_none() {
        let what = "an edit replaces what was read before: send the ETag of the letter in If-Match, so that no \
                    other edit is overwritten";
        return Err(Problem::new(StatusCode::PRECONDITION_REQUIRED, "needs_version", what));
    }
    let now = caller.now().await?;
    let (act, reason) = act_of(route, body, now)?;
    let request = ActRequest { id, act, actor: caller.actor(reason), expected_version };
    let state = only(caller.store.act(vec![request]).await?)?;
    Ok(with_version(state.version, Json(state)))
}

/// `DELETE /api/v1/dlq/{id}`: a purge, which can be undone for a day.
pub(crate) async fn purge(
    caller: Caller,
    Path(id): Path<IdInPath>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let id = id.letter(&caller).await?;
    let expected_version = expected_version(&headers)?;
    let request = ActRequest { id, act: Act::Purge, actor: caller.actor(None), expected_version };
    let state = only(caller.store.act(vec![request]).await?)?;
    Ok(with_version(state.version, Json(state)))
}

/// Several acts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ActsBody {
    acts: Vec<Map<String, Value>>,
}

/// `POST /api/v1/dlq/acts`: acts on a few letters in one commit, with a result for each.
pub(crate) async fn acts(
    caller: Caller,
    BatchBody(body): BatchBody<ActsBody>,
) -> Result<Json<Items<LetterState>>, Problem> {
    if body.acts.is_empty() || body.acts.len() > ACTS_MAX {
        let what =
            format!("send 1 to {ACTS_MAX} acts; more are an operation: POST /api/v1/operations/preview");
        return Err(Problem::bad_request("bad_batch", what));
    }
    let now = caller.now().await?;
    let mut requests = Vec::with_capacity(body.acts.len());
    for (n, mut entry) in body.acts.into_iter().enumerate() {
        let wrong = |what: String| Problem::bad_request("bad_body", format!("act {}: {what}", n + 1));
        let id = entry.remove("id").ok_or_else(|| wrong("it needs the `id` of a letter".into()))?;
        let id: MessageId = read(id).map_err(wrong)?;
        let version = entry.remove("expected_version").unwrap_or_default();
        let expected_version: Option<u64> = read(version).map_err(wrong)?;
        let (act, reason) = named_act(entry, now).map_err(|problem| wrong(problem.detail().to_owned()))?;
        if act.role() == Role::Admin {
            let what = format!("{} many letters with an operation, which has a preview", act.name());
            return Err(Problem::bad_request("bad_batch", what));
        }
        requests.push(ActRequest { id, act, actor: caller.actor(reason), expected_version });
    }
    Ok(batch(caller.store.act(requests).await?))
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| json_input::describe(&error))
}

/// An act by its name, with the fields that its route takes.
pub(super) fn named_act(mut entry: Map<String, Value>, now: Time) -> Result<(Act, Option<String>), Problem> {
    let name = entry.remove("act").unwrap_or_default();
    let name = name.as_str().unwrap_or_default();
    let known: Vec<&str> = ACTS.iter().map(ActRoute::name).collect();
    let route = ACTS.iter().find(|route| route.name() == name).ok_or_else(|| {
        let near = json_input::nearest(name, &known).map(|near| format!("; did you mean `{near}`?"));
        let what = near.unwrap_or_else(|| format!("; the acts are {}", known.join(", ")));
        Problem::bad_request("bad_body", format!("`act` must be the name of an act{what}"))
    })?;
    act_of(route, entry, now)
}

/// What acts may carry.
#[derive(Deserialize, Default)]
#[serde(default)]
struct ActBody {
    #[serde(alias = "note", alias = "notes")]
    reason: Option<String>,
    queue: Option<QueueName>,
    priority: Option<Priority>,
    max_attempts: Option<u32>,
    at: Option<Time>,
    delay: Option<Span>,
    force: Option<bool>,
    until: Option<Time>,
    dlq: Option<QueueName>,
    to: Option<String>,
    add: Option<Vec<String>>,
    remove: Option<Vec<String>>,
}

/// The act of a route with its body, and the reason in it.
fn act_of(route: &ActRoute, fields: Map<String, Value>, now: Time) -> Result<(Act, Option<String>), Problem> {
    let bad = |what: String| Problem::bad_request("bad_body", what);
    let takes = |name: &str| route.fields.contains(&name) || matches!(name, "note" | "notes" | "delay_ms");
    if let Some(unknown) = fields.keys().find(|name| !takes(name)) {
        let near = json_input::nearest(unknown, route.fields).map(|near| format!("; did you mean `{near}`?"));
        let known = || format!("; {} takes {}", route.name(), route.fields.join(", "));
        return Err(bad(format!("unknown key `{unknown}`{}", near.unwrap_or_else(known))));
    }
    let content = |act: &str, mut fields: Map<String, Value>| -> Result<Act, Problem> {
        fields.retain(|name, _| !matches!(name.as_str(), "reason" | "note" | "notes"));
        fields.insert("act".to_owned(), act.into());
        read(Value::Object(fields)).map_err(bad)
    };
    if matches!(route.verb, Verb::Edit | Verb::Patch | Verb::Restore) {
        let reason = ["reason", "note", "notes"].into_iter().find_map(|name| fields.get(name)).cloned();
        let reason: Option<String> = read(reason.unwrap_or_default()).map_err(bad)?;
        return Ok((content(route.name(), fields)?, reason));
    }
    let body: ActBody = read(Value::Object(fields)).map_err(bad)?;
    let needs = |field: &str| bad(format!("the body needs `{field}`"));
    let act = match route.verb {
        Verb::Retry => Act::Retry(Retry {
            queue: body.queue,
            priority: body.priority,
            max_attempts: body.max_attempts,
            at: body.at.or_else(|| body.delay.map(|delay| now.plus(delay))),
            force: body.force.unwrap_or(false),
        }),
        Verb::Resolve => Act::Resolve,
        Verb::Abandon => Act::Abandon,
        Verb::Review => Act::Review,
        Verb::Quarantine => Act::Quarantine { until: body.until.unwrap_or_else(|| now.plus(QUARANTINE)) },
        Verb::Release => Act::Release,
        Verb::Reopen => Act::Reopen,
        Verb::Notes if body.reason.is_none() => return Err(needs("note")),
        Verb::Notes => Act::Note,
        Verb::Move => Act::Move { dlq: body.dlq.ok_or_else(|| needs("dlq"))? },
        Verb::Snooze => Act::Snooze { until: body.until.ok_or_else(|| needs("until"))? },
        Verb::Assign => Act::Assign { to: body.to },
        Verb::Labels => Act::Label {
            add: body.add.unwrap_or_default().into_iter().collect(),
            remove: body.remove.unwrap_or_default().into_iter().collect(),
        },
        Verb::Hold => Act::Hold { on: true },
        Verb::Unhold => Act::Hold { on: false },
        Verb::Unpurge => Act::Unpurge,
        Verb::PullBack => Act::PullBack,
        Verb::Erase => Act::Erase,
        Verb::Edit | Verb::Patch | Verb::Restore => return Err(needs("content")),
    };
    Ok((act, body.reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(name: &str, body: &Value) -> Result<Act, String> {
        let route = ACTS.iter().find(|route| route.name() == name).unwrap();
        let fields = body.as_object().unwrap().clone();
        act_of(route, fields, Time::ZERO).map(|(act, _)| act).map_err(|problem| problem.detail().to_owned())
    }

    #[test]
    fn every_act_needs_the_role_that_its_route_documents() {
        for route in &ACTS {
            let body = serde_json::json!({
                "note": "n", "until": "2030-01-01T00:00:00Z", "dlq": "d-dlq",
                "patch": "[{\"op\":\"remove\",\"path\":\"/a\"}]", "n": 0,
            });
            let mut fields = body.as_object().unwrap().clone();
            fields.retain(|name, _| route.fields.contains(&name.as_str()));
            let (act, _) = act_of(route, fields, Time::ZERO).unwrap();
            assert!(act.role() == route.role, "{}", route.name());
        }
    }

    #[test]
    fn an_act_refuses_what_it_does_not_use() {
        assert!(
            act("resolve", &serde_json::json!({"until": "2030-01-01T00:00:00Z"}))
                .unwrap_err()
                .contains("takes reason")
        );
        assert!(act("retry", &serde_json::json!({"prioritty": "high"})).unwrap_err().contains("`priority`"));
        assert!(act("move", &serde_json::json!({})).unwrap_err().contains("dlq"));
        assert_eq!(act("resolve", &serde_json::json!({"notes": "done"})), Ok(Act::Resolve));
    }
}
