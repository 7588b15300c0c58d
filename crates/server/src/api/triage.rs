//! Groups, operations and breakers.

use super::queues::Reason;
use crate::access::Caller;
use crate::problem::Problem;
use crate::reply::{PageParams, Shown, page_request};
use crate::request::{JsonBody, OptionalBody, Params, Path};
use axum::Json;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use redrive_core::breaker::BreakerView;
use redrive_core::dead_letter::Act;
use redrive_core::failure::Category;
use redrive_core::filter::Filter;
use redrive_core::group::{Group, GroupAct, GroupDetail, GroupQuery, GroupSort, GroupStatus};
use redrive_core::ids::{GroupId, MessageId, OperationId, QueueName};
use redrive_core::operation::{Control, Operation, OperationSpec, Preview, PreviewRequest, Rollout};
use redrive_core::store::{Letters as _, Work as _};
use redrive_core::time::Time;
use serde::Deserialize;
use serde_json::{Value, json};

/// Which groups.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupParams {
    status: Option<GroupStatus>,
    queue: Option<QueueName>,
    owner: Option<String>,
    since: Option<Time>,
    text: Option<String>,
    sort: Option<GroupSort>,
    /// Whether each group comes with what happened to it lately, hour by hour.
    #[serde(default)]
    trend: bool,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// `GET /api/v1/groups`
pub(crate) async fn groups(
    caller: Caller,
    uri: Uri,
    Params(params): Params<GroupParams>,
) -> Result<Response, Problem> {
    let query = GroupQuery {
        status: params.status.into_iter().collect(),
        queue: params.queue,
        owner: params.owner,
        since: params.since,
        text: params.text,
        sort: params.sort,
        trend: params.trend,
        page: page_request(params.limit, params.cursor)?,
    };
    Ok(caller.page(&uri, &caller.store.groups(query).await?))
}

/// `GET /api/v1/groups/{id}`
pub(crate) async fn group(caller: Caller, Path(id): Path<GroupId>) -> Result<Shown<GroupDetail>, Problem> {
    Ok(caller.show(&caller.store.group_detail(id).await?))
}

/// An act on a group, and why.
#[derive(Deserialize)]
pub(crate) struct GroupActBody {
    #[serde(flatten)]
    act: GroupAct,
    reason: Option<String>,
}

/// `POST /api/v1/groups/{id}`: acknowledges, resolves, ignores, reopens, assigns, notes or links a group.
pub(crate) async fn act_on_group(
    caller: Caller,
    Path(id): Path<GroupId>,
    JsonBody(body): JsonBody<GroupActBody>,
) -> Result<Shown<Group>, Problem> {
    Ok(caller.show(&caller.store.act_on_group(id, body.act, caller.actor(body.reason)).await?))
}

/// Groups with one cause, and why somebody thinks so.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MergeBody {
    groups: Vec<GroupId>,
    reason: Option<String>,
}

/// `POST /api/v1/groups/merge`: the oldest id stays, the others become aliases of it.
pub(crate) async fn merge(
    caller: Caller,
    JsonBody(body): JsonBody<MergeBody>,
) -> Result<Shown<Group>, Problem> {
    Ok(caller.show(&caller.store.merge_groups(body.groups, caller.actor(body.reason)).await?))
}

/// The category of a group's failures.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LabelBody {
    category: Option<Category>,
    reason: Option<String>,
}

/// `POST /api/v1/groups/{id}/label`: sets the category of a group's failures, or leaves it to the classifier again.
pub(crate) async fn label(
    caller: Caller,
    Path(id): Path<GroupId>,
    JsonBody(body): JsonBody<LabelBody>,
) -> Result<Shown<Group>, Problem> {
    Ok(caller.show(&caller.store.label_group(id, body.category, caller.actor(body.reason)).await?))
}

/// An operation that is about to be started, or looked at before.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OperationBody {
    id: Option<OperationId>,
    act: Option<Act>,
    filter: String,
    #[serde(default)]
    pace: Rollout,
    sample: Option<usize>,
    bound: Option<u64>,
    token: Option<String>,
    reason: Option<String>,
}

/// `POST /api/v1/operations/preview`: what the operation would do, and the token that starts it.
pub(crate) async fn preview(
    caller: Caller,
    JsonBody(body): JsonBody<OperationBody>,
) -> Result<Shown<Preview>, Problem> {
    let filter = Filter::parse(&body.filter)?;
    let act = body.act.unwrap_or_else(Act::retry);
    let request = PreviewRequest {
        rollout: body.pace,
        ..PreviewRequest::new(act, filter, body.sample.unwrap_or(10).min(100))
    };
    Ok(caller.show(&caller.store.preview(request).await?))
}

/// `POST /api/v1/operations`: starts what was previewed. The token of the preview is required.
pub(crate) async fn start(
    caller: Caller,
    JsonBody(body): JsonBody<OperationBody>,
) -> Result<(StatusCode, Shown<Operation>), Problem> {
    if body.token.is_none() {
        let what = "an operation needs the `token` and the `bound` of its preview: \
                    POST /api/v1/operations/preview first, and send both with the same act and filter";
        return Err(Problem::bad_request("no_preview", what));
    }
    let id = match body.id {
        Some(id) => id,
        None => OperationId::new(super::messages::new_id()?),
    };
    let spec = OperationSpec {
        bound: body.bound,
        rollout: body.pace,
        token: body.token,
        ..OperationSpec::new(
            id,
            body.act.unwrap_or_else(Act::retry),
            Filter::parse(&body.filter)?,
            caller.actor(body.reason),
        )
    };
    Ok((StatusCode::ACCEPTED, caller.show(&caller.store.start(spec).await?)))
}

/// `GET /api/v1/operations`
pub(crate) async fn operations(
    caller: Caller,
    uri: Uri,
    Params(params): Params<PageParams>,
) -> Result<Response, Problem> {
    Ok(caller.page(&uri, &caller.store.operations(params.request()?).await?))
}

/// `GET /api/v1/operations/{id}`
pub(crate) async fn operation(
    caller: Caller,
    Path(id): Path<MessageId>,
) -> Result<Shown<Operation>, Problem> {
    Ok(caller.show(&caller.store.operation(OperationId::new(id)).await?))
}

/// `GET /api/v1/operations/{id}/members`
pub(crate) async fn members(
    caller: Caller,
    Path(id): Path<MessageId>,
    uri: Uri,
    Params(params): Params<PageParams>,
) -> Result<Response, Problem> {
    Ok(caller.page(&uri, &caller.store.members(OperationId::new(id), params.request()?).await?))
}

/// A rate, and why.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ControlBody {
    rate: Option<u32>,
    reason: Option<String>,
}

/// `POST /api/v1/operations/{id}/{control}`: pause, resume, cancel, rate or undo.
pub(crate) async fn control(
    caller: Caller,
    Path((id, control)): Path<(MessageId, String)>,
    OptionalBody(body): OptionalBody<ControlBody>,
) -> Result<Shown<Operation>, Problem> {
    let control = match control.as_str() {
        "pause" => Control::Pause,
        "resume" => Control::Resume,
        "cancel" => Control::Cancel,
        "rate" => Control::Rate(body.rate),
        "undo" => Control::Undo,
        _ => {
            let what = "steer an operation with pause, resume, cancel, rate or undo";
            return Err(Problem::new(StatusCode::NOT_FOUND, "no_such_route", what));
        }
    };
    let actor = caller.actor(body.reason);
    Ok(caller.show(&caller.store.control(OperationId::new(id), control, actor).await?))
}

/// `GET /api/v1/workers`
pub(crate) async fn workers(caller: Caller) -> Result<Json<Value>, Problem> {
    Ok(Json(json!({"items": caller.store.workers().await?, "next": null})))
}

/// `GET /api/v1/breakers`
pub(crate) async fn breakers(caller: Caller) -> Result<Json<Value>, Problem> {
    Ok(Json(json!({"items": caller.store.breakers().await?, "next": null})))
}

/// `POST /api/v1/breakers/{queue}/{key}/open|close`
pub(crate) async fn force_breaker(
    caller: Caller,
    Path((queue, key, state)): Path<(QueueName, String, String)>,
    OptionalBody(body): OptionalBody<Reason>,
) -> Result<Json<BreakerView>, Problem> {
    let open = match state.as_str() {
        "open" => true,
        "close" => false,
        _ => {
            let what = "open or close a breaker";
            return Err(Problem::new(StatusCode::NOT_FOUND, "no_such_route", what));
        }
    };
    Ok(Json(caller.store.force_breaker(queue, key, open, caller.actor(body.reason)).await?))
}
