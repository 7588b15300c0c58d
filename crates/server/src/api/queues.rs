//! Queues: policies, pausing, purging.

use crate::access::Caller;
use crate::problem::Problem;
use crate::reply::Shown;
use crate::request::{JsonBody, OptionalBody, Path};
use axum::Json;
use redrive_core::error::{CallError, Refusal};
use redrive_core::ids::QueueName;
use redrive_core::policy::QueuePolicy;
use redrive_core::policy_change::PolicyChange;
use redrive_core::store::{KeyState, Letters as _, Purged, Queue, Role, Work as _};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// `GET /api/v1/queues`
pub(crate) async fn list(caller: Caller) -> Result<Json<Value>, Problem> {
    let queues = caller.show(&caller.store.queues().await?).into_inner();
    Ok(Json(json!({"items": queues, "next": null})))
}

/// `GET /api/v1/queues/{queue}`
pub(crate) async fn show(caller: Caller, Path(name): Path<QueueName>) -> Result<Shown<Queue>, Problem> {
    Ok(caller.show(&caller.store.queue(name).await?))
}

/// `PUT /api/v1/queues/{queue}`: the policy is this and the defaults for the rest.
pub(crate) async fn put(
    caller: Caller,
    Path(name): Path<QueueName>,
    JsonBody(change): JsonBody<Map<String, Value>>,
) -> Result<Shown<Queue>, Problem> {
    let policy = PolicyChange(change).apply(&QueuePolicy::default())?;
    Ok(caller.show(&caller.store.configure(name, policy, caller.actor(None)).await?))
}

/// `PATCH /api/v1/queues/{queue}`: changes only what is named, as `redrive queue set` does.
pub(crate) async fn patch(
    caller: Caller,
    Path(name): Path<QueueName>,
    JsonBody(change): JsonBody<Map<String, Value>>,
) -> Result<Shown<Queue>, Problem> {
    let policy = match caller.store.queue(name.clone()).await {
        Ok(queue) => queue.policy,
        Err(CallError::Refused(Refusal::NoSuchQueue { .. })) => QueuePolicy::default(),
        Err(error) => return Err(error.into()),
    };
    let policy = PolicyChange(change).apply(&policy)?;
    Ok(caller.show(&caller.store.configure(name, policy, caller.actor(None)).await?))
}

/// Why somebody acts.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Reason {
    pub(crate) reason: Option<String>,
}

/// `POST /api/v1/queues/{queue}/pause`
pub(crate) async fn pause(
    caller: Caller,
    Path(name): Path<QueueName>,
    OptionalBody(body): OptionalBody<Reason>,
) -> Result<Shown<Queue>, Problem> {
    Ok(caller.show(&caller.store.pause(name, true, caller.actor(body.reason)).await?))
}

/// `POST /api/v1/queues/{queue}/resume`
pub(crate) async fn resume(
    caller: Caller,
    Path(name): Path<QueueName>,
    OptionalBody(body): OptionalBody<Reason>,
) -> Result<Shown<Queue>, Problem> {
    Ok(caller.show(&caller.store.pause(name, false, caller.actor(body.reason)).await?))
}

/// The confirmation of a purge.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PurgeBody {
    confirm: Option<String>,
    reason: Option<String>,
}

/// `POST /api/v1/queues/{queue}/purge`: removes a bounded number of waiting messages; call it again while `more`. A
/// purge cannot be undone, so the body must name the queue once more.
pub(crate) async fn purge(
    caller: Caller,
    Path(name): Path<QueueName>,
    OptionalBody(body): OptionalBody<PurgeBody>,
) -> Result<Json<Purged>, Problem> {
    caller.require(Role::Admin, "purge")?;
    if body.confirm.as_deref() != Some(name.as_str()) {
        let waiting = caller.store.queue(name.clone()).await?.counts.waiting;
        let what = format!(
            "{waiting} messages of {name} would be removed for good; send {{\"confirm\":\"{name}\"}} to do it"
        );
        return Err(Problem::bad_request("needs_confirmation", what).with("waiting", waiting));
    }
    Ok(Json(caller.store.purge(name, caller.actor(body.reason)).await?))
}

/// `GET /api/v1/dlqs`
pub(crate) async fn dlqs(caller: Caller) -> Result<Json<Value>, Problem> {
    Ok(Json(json!({"items": caller.store.dlqs().await?, "next": null})))
}

/// `GET /api/v1/waiting`: what due messages wait for, by queue.
pub(crate) async fn waiting(caller: Caller) -> Result<Json<Value>, Problem> {
    Ok(Json(json!({"queues": caller.store.waiting_for().await?})))
}

/// `GET /api/v1/queues/{queue}/keys/{key}`: the message that has an idempotency key.
pub(crate) async fn key(
    caller: Caller,
    Path((queue, key)): Path<(QueueName, String)>,
) -> Result<Json<Value>, Problem> {
    let known = caller.store.key_state(queue, key).await?;
    let (id, state) = known.map(|KeyState { id, state }| (id, state)).unzip();
    Ok(Json(json!({"id": id, "state": state})))
}
