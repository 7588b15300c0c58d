//! Alerts: what is wrong now, tests of channels, and silences. The process that evaluates the rules writes what is shown
//! here into the store's small durable values, which only administrators may read directly. So these routes say
//! themselves whom they serve: they concern the whole store, and a token that is limited to some queues gets nothing.

use crate::access::Caller;
use crate::problem::Problem;
use crate::request::JsonBody;
use axum::Json;
use axum::http::StatusCode;
use redrive_core::alert::{AlertRecord, Notice, Silence, kv};
use redrive_core::dead_letter::Actor;
use redrive_core::ids::MessageId;
use redrive_core::store::{Role, Store};
use redrive_core::time::Span;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;

/// The store, for callers who have this role for all queues.
fn whole_store(caller: &Caller, role: Role, verb: &str) -> Result<Arc<dyn Store>, Problem> {
    caller.require(role, verb)?;
    if !caller.access.queues.is_empty() {
        return Err(caller.refuse(verb, "it concerns all queues, and the token is for some of them".into()));
    }
    Ok(caller.app.store())
}

/// The alerts, the channels, the rules, and what is silenced.
#[derive(Serialize)]
pub(crate) struct AlertsView {
    #[serde(flatten)]
    pub(crate) record: AlertRecord,
    pub(crate) silenced: Vec<Silence>,
}

/// What is shown of alerts to this caller.
pub(crate) async fn view(caller: &Caller) -> Result<AlertsView, Problem> {
    let store = whole_store(caller, Role::Viewer, "alerts")?;
    let now = store.info().await?.now;
    let silenced = kv::silences(&*store).await?.at(now).cloned().collect();
    let mut record = kv::record(&*store).await?;
    let texts = record.active.iter_mut().map(|alert| &mut alert.text);
    for text in texts.chain(record.told.iter_mut().map(|notice| &mut notice.text)) {
        *text = caller.rules().mask_text(text).into_owned();
    }
    if record.rules.is_empty() {
        // No process has evaluated the rules yet: those of this server are the ones that will be.
        record.rules = caller.app.config.alerts.rule_views();
    }
    Ok(AlertsView { record, silenced })
}

/// `GET /api/v1/alerts`
pub(crate) async fn list(caller: Caller) -> Result<Json<AlertsView>, Problem> {
    view(&caller).await.map(Json)
}

/// The channel to test.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestBody {
    channel: String,
}

/// Enqueues a test for a channel, and returns the id of its message. Whoever sends the alerts sends it.
pub(crate) async fn send_test(caller: &Caller, name: &str) -> Result<MessageId, Problem> {
    let store = whole_store(caller, Role::Operator, "test_alert")?;
    let channels = kv::record(&*store).await?.channels;
    if !channels.iter().any(|channel| channel.name == name) {
        let known: Vec<&str> = channels.iter().map(|channel| channel.name.as_str()).collect();
        let what = format!("there is no channel {name:?}; there are: {}", known.join(", "));
        return Err(Problem::new(StatusCode::NOT_FOUND, "no_such_channel", what));
    }
    let now = store.info().await?.now;
    let notice = Notice::test(name, &caller.access.name, now, None);
    let message = kv::message(super::messages::new_id()?, &notice, name)?;
    Ok(crate::reply::only(store.enqueue(vec![message]).await?)?.id)
}

/// `POST /api/v1/alerts/test`
pub(crate) async fn test(
    caller: Caller,
    JsonBody(body): JsonBody<TestBody>,
) -> Result<(StatusCode, Json<Value>), Problem> {
    let id = send_test(&caller, &body.channel).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({"message": id, "channel": body.channel}))))
}

/// What to silence.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SilenceBody {
    name: String,
    #[serde(rename = "for")]
    span: Option<Span>,
    reason: Option<String>,
}

/// Silences a rule or a subject for a while.
pub(crate) async fn set_silence(
    caller: &Caller,
    name: &str,
    span: Span,
    actor: Actor,
) -> Result<Silence, Problem> {
    let store = whole_store(caller, Role::Operator, "silence_alert")?;
    let now = store.info().await?.now;
    let silence = Silence::of(name, span, actor.name.clone(), actor.reason.clone(), now)?;
    kv::silence(&*store, &silence, actor).await?;
    tracing::info!(name, until = %silence.until, by = silence.by, "alerts are silenced");
    Ok(silence)
}

/// Ends a silence. Returns whether there was one.
pub(crate) async fn end_silence(caller: &Caller, name: &str, actor: Actor) -> Result<bool, Problem> {
    let store = whole_store(caller, Role::Operator, "silence_alert")?;
    Ok(kv::unsilence(&*store, name, actor).await?)
}

/// `POST /api/v1/alerts/silence`: silences a rule or a subject for a while, or ends that if no time is given.
pub(crate) async fn silence(
    caller: Caller,
    JsonBody(body): JsonBody<SilenceBody>,
) -> Result<Json<Value>, Problem> {
    let Some(span) = body.span else {
        let ended = end_silence(&caller, &body.name, caller.actor(body.reason)).await?;
        return Ok(Json(json!({"name": body.name, "ended": ended})));
    };
    let silence = set_silence(&caller, &body.name, span, caller.actor(body.reason)).await?;
    Ok(Json(serde_json::to_value(silence).unwrap_or_default()))
}
