//! Dead letters as tasks of an orchestrator, under `/api/v1/orchestration/dlq`. The mapping is the core's
//! ([`redrive_core::orchestration`]); only admins may use these routes.

use super::ids::IdInPath;
use crate::access::Caller;
use crate::problem::Problem;
use crate::reply::{linked, only, page_request};
use crate::request::{OptionalBody, Params, Path};
use axum::Json;
use axum::http::Uri;
use axum::response::Response;
use redrive_core::dead_letter::{Act, ActRequest, DeadLetter};
use redrive_core::error::Refusal;
use redrive_core::ids::MessageId;
use redrive_core::orchestration::{Task, TaskStatus};
use redrive_core::query::Query;
use redrive_core::store::{Letters as _, Role};
use serde::Deserialize;
use serde_json::json;

/// The number of tasks in a reply unless the caller asks for another.
const LIMIT: usize = 100;

fn admin(caller: &Caller) -> Result<(), Problem> {
    caller.require(Role::Admin, "orchestration")
}

/// The masked task of a letter.
fn task(caller: &Caller, letter: &DeadLetter) -> Result<Task, Problem> {
    let gone = || Refusal::NoSuchLetter { id: letter.id() };
    Ok(Task::of(&caller.show(letter).into_inner()).ok_or_else(gone)?)
}

/// Which tasks.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct TaskParams {
    task_type: Option<String>,
    status: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// `GET /api/v1/orchestration/dlq`
pub(crate) async fn list(
    caller: Caller,
    uri: Uri,
    Params(params): Params<TaskParams>,
) -> Result<Response, Problem> {
    admin(&caller)?;
    let status = params.status.map_or(Ok(TaskStatus::Pending), |text| text.parse());
    let status = status.map_err(|what| Problem::bad_request("bad_query", what))?;
    let filter = status.filter(params.task_type.as_deref())?;
    let page = page_request(params.limit.or(Some(LIMIT)), params.cursor)?;
    let letters = caller.store.letters(Query { filter, page }).await?;
    let tasks: Vec<Task> = letters.items.iter().filter_map(|letter| task(&caller, letter).ok()).collect();
    Ok(linked(&uri, letters.next.as_ref(), Json(json!({"items": tasks, "next": letters.next}))))
}

/// `GET /api/v1/orchestration/dlq/{id}`
pub(crate) async fn show(caller: Caller, Path(id): Path<IdInPath>) -> Result<Json<Task>, Problem> {
    admin(&caller)?;
    let id = id.letter(&caller).await?;
    Ok(Json(task(&caller, &caller.store.letter(id).await?)?))
}

/// Carries out an act and shows the task after it.
async fn act(
    caller: &Caller,
    id: MessageId,
    act: Act,
    reason: Option<String>,
) -> Result<Json<Task>, Problem> {
    let request = ActRequest { id, act, actor: caller.actor(reason), expected_version: None };
    only(caller.store.act(vec![request]).await?)?;
    Ok(Json(task(caller, &caller.store.letter(id).await?)?))
}

/// What is said about a decision.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Notes {
    notes: Option<String>,
    reason: Option<String>,
}

/// `POST /api/v1/orchestration/dlq/{id}/retry`: sends the task back. A task that has succeeded meanwhile is closed.
pub(crate) async fn retry(
    caller: Caller,
    Path(id): Path<IdInPath>,
    OptionalBody(body): OptionalBody<Notes>,
) -> Result<Json<Task>, Problem> {
    admin(&caller)?;
    act(&caller, id.letter(&caller).await?, Act::retry(), body.notes.or(body.reason)).await
}

/// `POST /api/v1/orchestration/dlq/{id}/resolve`
pub(crate) async fn resolve(
    caller: Caller,
    Path(id): Path<IdInPath>,
    OptionalBody(body): OptionalBody<Notes>,
) -> Result<Json<Task>, Problem> {
    admin(&caller)?;
    act(&caller, id.letter(&caller).await?, Act::Resolve, body.notes.or(body.reason)).await
}

/// `POST /api/v1/orchestration/dlq/{id}/abandon`
pub(crate) async fn abandon(
    caller: Caller,
    Path(id): Path<IdInPath>,
    OptionalBody(body): OptionalBody<Notes>,
) -> Result<Json<Task>, Problem> {
    admin(&caller)?;
    act(&caller, id.letter(&caller).await?, Act::Abandon, body.reason.or(body.notes)).await
}
