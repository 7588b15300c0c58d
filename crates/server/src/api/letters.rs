//! Dead letters: looking at them, and acting on them one by one.

use super::messages::FilterParams;
use super::queues::Reason;
use crate::access::Caller;
use crate::problem::Problem;
use crate::reply::{expected_version, only, with_version};
use crate::request::{OptionalBody, Params, Path};
use axum::Json;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use redrive_core::dead_letter::{Act, ActRequest, Retry};
use redrive_core::disclosure::{Disclosed, Disclosure};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::message::Priority;
use redrive_core::store::{Letters as _, Store as _};
use redrive_core::time::{Span, Time};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::str::FromStr;

/// How long a quarantine lasts unless its end is named.
const QUARANTINE: Span = Span::from_hours(24);

/// `GET /api/v1/dlq`
pub(crate) async fn list(
    caller: Caller,
    uri: Uri,
    Params(params): Params<FilterParams>,
) -> Result<Response, Problem> {
    Ok(caller.page(&uri, &caller.store.letters(params.query()?).await?))
}

/// `GET /api/v1/dlq/{id}`
pub(crate) async fn show(caller: Caller, Path(id): Path<MessageId>) -> Result<Response, Problem> {
    let letter = caller.store.letter(id).await?;
    Ok(with_version(letter.record.version, caller.show(&letter)))
}

/// `GET /api/v1/dlq/{id}/timeline`
pub(crate) async fn timeline(caller: Caller, Path(id): Path<MessageId>) -> Result<Json<Value>, Problem> {
    let letter = caller.show(&caller.store.letter(id).await?).into_inner();
    Ok(Json(json!({"items": letter.timeline(), "next": null})))
}

/// `GET /api/v1/dlq/{id}/revisions`
pub(crate) async fn revisions(caller: Caller, Path(id): Path<MessageId>) -> Result<Json<Value>, Problem> {
    let revisions = caller.show(&caller.store.revisions(id).await?).into_inner();
    Ok(Json(json!({"items": revisions, "next": null})))
}

/// `POST /api/v1/dlq/{id}/reveal`: the letter as it is, which the audit trail records first.
pub(crate) async fn reveal(
    caller: Caller,
    Path(id): Path<MessageId>,
    OptionalBody(body): OptionalBody<Reason>,
) -> Result<Response, Problem> {
    let letter = caller.store.letter(id).await?;
    let disclosure = Disclosure::of(Disclosed::Letter, id);
    caller.store.disclose(disclosure, caller.actor(body.reason)).await?;
    Ok(with_version(letter.record.version, Json(letter)))
}

/// What an act may carry. Each act uses what it needs and refuses the rest.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct ActBody {
    /// Why. It becomes a note on the letter.
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
    #[serde(rename = "to")]
    owner: Option<String>,
    add: Option<Vec<String>>,
    remove: Option<Vec<String>>,
    /// The rest of an edit, a patch or a restore, in the core's own form.
    #[serde(flatten)]
    content: Map<String, Value>,
}

/// The acts that have a route of their own: `POST /api/v1/dlq/{id}/{act}`.
#[derive(Clone, Copy)]
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

impl FromStr for Verb {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        Ok(match text {
            "retry" => Self::Retry,
            "resolve" => Self::Resolve,
            "abandon" => Self::Abandon,
            "review" => Self::Review,
            "quarantine" => Self::Quarantine,
            "release" => Self::Release,
            "reopen" => Self::Reopen,
            "notes" => Self::Notes,
            "move" => Self::Move,
            "snooze" => Self::Snooze,
            "assign" => Self::Assign,
            "labels" => Self::Labels,
            "hold" => Self::Hold,
            "unhold" => Self::Unhold,
            "unpurge" => Self::Unpurge,
            "pull-back" => Self::PullBack,
            "edit" => Self::Edit,
            "patch" => Self::Patch,
            "restore" => Self::Restore,
            "erase" => Self::Erase,
            _ => {
                let what = "there is no such act on a dead letter; /docs lists them";
                return Err(Problem::new(StatusCode::NOT_FOUND, "no_such_route", what));
            }
        })
    }
}

/// `POST /api/v1/dlq/{id}/{act}`
pub(crate) async fn act(
    caller: Caller,
    Path((id, act)): Path<(MessageId, String)>,
    headers: HeaderMap,
    OptionalBody(body): OptionalBody<ActBody>,
) -> Result<Response, Problem> {
    let verb: Verb = act.parse()?;
    let expected_version = expected_version(&headers)?;
    let now = caller.store.info().await?.now;
    let actor = caller.actor(body.reason.clone());
    let act = act_of(verb, body, now)?;
    let request = ActRequest { id, act, actor, expected_version };
    let state = only(caller.store.act(vec![request]).await?)?;
    Ok(with_version(state.version, Json(state)))
}

/// The act of a route with its body.
fn act_of(verb: Verb, body: ActBody, now: Time) -> Result<Act, Problem> {
    let needs = |field: &str| Problem::bad_request("bad_body", format!("the body needs `{field}`"));
    if !matches!(verb, Verb::Edit | Verb::Patch | Verb::Restore)
        && let Some(unknown) = body.content.keys().next()
    {
        return Err(Problem::bad_request("bad_body", format!("unknown key `{unknown}`")));
    }
    let content = |act: &str| -> Result<Act, Problem> {
        let mut written = Map::from_iter([("act".to_owned(), Value::from(act))]);
        written.extend(body.content.clone());
        serde_json::from_value(Value::Object(written))
            .map_err(|error| Problem::bad_request("bad_body", redrive_core::json_input::describe(&error)))
    };
    Ok(match verb {
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
        Verb::Assign => Act::Assign { to: body.owner },
        Verb::Labels => Act::Label {
            add: body.add.unwrap_or_default().into_iter().collect(),
            remove: body.remove.unwrap_or_default().into_iter().collect(),
        },
        Verb::Hold => Act::Hold { on: true },
        Verb::Unhold => Act::Hold { on: false },
        Verb::Unpurge => Act::Unpurge,
        Verb::PullBack => Act::PullBack,
        Verb::Edit => content("edit")?,
        Verb::Patch => content("patch")?,
        Verb::Restore => content("restore")?,
        Verb::Erase => Act::Erase,
    })
}

/// `DELETE /api/v1/dlq/{id}`: a purge, which can be undone for a day.
pub(crate) async fn purge(
    caller: Caller,
    Path(id): Path<MessageId>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let expected_version = expected_version(&headers)?;
    let request = ActRequest { id, act: Act::Purge, actor: caller.actor(None), expected_version };
    let state = only(caller.store.act(vec![request]).await?)?;
    Ok(with_version(state.version, Json(state)))
}
