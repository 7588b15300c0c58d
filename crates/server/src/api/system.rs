//! The store itself: markers, counters, the audit trail, tokens and sessions.

use crate::access::{Caller, Peer, create_token, list_tokens, revoke_token, set_cookie};
use crate::app::App;
use crate::problem::Problem;
use crate::reply::{PageParams, Shown, page_request};
use crate::request::{JsonBody, Params, Path};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use redrive_core::access::{Access, Grant, QueuePattern, TokenId, TokenRecord};
use redrive_core::audit::{AuditFilter, AuditReport};
use redrive_core::group::Marker;
use redrive_core::metrics::{Report, Stats, report_with};
use redrive_core::store::{Letters as _, Store as _};
use redrive_core::time::{Span, TimeBound, TimeError};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// `GET /api/v1/stats`
pub(crate) async fn stats(caller: Caller) -> Result<Json<Stats>, Problem> {
    Ok(Json(caller.store.stats().await?))
}

/// `GET /api/v1/stats/report`
pub(crate) async fn stats_report(caller: Caller) -> Result<Json<Report>, Problem> {
    Ok(Json(report_with(&caller.store.stats().await?, &caller.app.config.alerts)))
}

/// `GET /api/v1/markers`
pub(crate) async fn markers(
    caller: Caller,
    uri: Uri,
    Params(params): Params<PageParams>,
) -> Result<Response, Problem> {
    Ok(caller.page(&uri, &caller.store.markers(params.request()?).await?))
}

/// The text of a marker.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MarkerBody {
    text: String,
}

/// `POST /api/v1/markers`
pub(crate) async fn mark(
    caller: Caller,
    JsonBody(body): JsonBody<MarkerBody>,
) -> Result<(StatusCode, Shown<Marker>), Problem> {
    let marker = caller.store.mark(body.text, caller.actor(None)).await?;
    Ok((StatusCode::CREATED, caller.show(&marker)))
}

/// Which rows of the audit trail.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditParams {
    act: Option<String>,
    by: Option<String>,
    target: Option<String>,
    since: Option<String>,
    until: Option<String>,
    limit: Option<usize>,
    cursor: Option<String>,
}

/// `GET /api/v1/audit`: the rows that match. A page may be empty and still have a next one, as with any filter.
pub(crate) async fn audit(
    caller: Caller,
    uri: Uri,
    Params(params): Params<AuditParams>,
) -> Result<Response, Problem> {
    let bound = |text: Option<String>| -> Result<Option<TimeBound>, Problem> {
        let parsed = text.map(|text| text.parse()).transpose();
        parsed.map_err(|error: TimeError| Problem::bad_request("bad_query", error.to_string()))
    };
    let filter = AuditFilter {
        act: params.act,
        by: params.by,
        target: params.target,
        since: bound(params.since)?,
        until: bound(params.until)?,
    };
    let page = caller.store.audit(page_request(params.limit, params.cursor)?).await?;
    let now = caller.now().await?;
    Ok(caller.page(&uri, &filter.filter_page(page, now)))
}

/// The head of the chain that somebody noted earlier.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct HeadParams {
    head: Option<String>,
}

/// `GET /api/v1/audit/verify`
pub(crate) async fn audit_verify(
    caller: Caller,
    Params(params): Params<HeadParams>,
) -> Result<Json<AuditReport>, Problem> {
    Ok(Json(caller.store.audit_verify(params.head).await?))
}

/// A token as it is shown: without the hash of its secret.
fn shown(record: &TokenRecord) -> Value {
    json!({
        "id": record.id,
        "name": record.access.name,
        "roles": record.access.roles,
        "queues": record.access.queues,
        "created_at": record.created_at,
        "created_by": record.created_by,
        "expires_at": record.expires_at,
        "last_used_at": record.last_used_at,
    })
}

/// `GET /api/v1/tokens`
pub(crate) async fn tokens(caller: Caller) -> Result<Json<Value>, Problem> {
    let records = list_tokens(caller.store.as_ref()).await?;
    Ok(Json(json!({"items": records.iter().map(shown).collect::<Vec<_>>(), "next": null})))
}

/// A token to create.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenBody {
    name: String,
    roles: Vec<Grant>,
    #[serde(default)]
    queues: Vec<QueuePattern>,
    expires_in: Option<Span>,
}

/// `POST /api/v1/tokens`: the reply is the only place where the token appears.
pub(crate) async fn new_token(
    caller: Caller,
    JsonBody(body): JsonBody<TokenBody>,
) -> Result<Response, Problem> {
    if body.name.trim().is_empty() || body.roles.is_empty() {
        return Err(Problem::bad_request("bad_body", "a token needs a name and at least one role"));
    }
    let access = Access { name: body.name, roles: body.roles.into_iter().collect(), queues: body.queues };
    let by = caller.actor(None);
    let (token, record) = create_token(caller.store.as_ref(), access, &by, body.expires_in).await?;
    let mut reply = shown(&record);
    if let Some(members) = reply.as_object_mut() {
        members.insert("token".into(), token.reveal().into());
    }
    Ok((StatusCode::CREATED, Json(reply)).into_response())
}

/// `DELETE /api/v1/tokens/{id}`
pub(crate) async fn revoke(caller: Caller, Path(id): Path<TokenId>) -> Result<Json<Value>, Problem> {
    let gone = revoke_token(caller.store.as_ref(), id, &caller.actor(None)).await?;
    caller.app.revoked(id);
    let missing = || Problem::new(StatusCode::NOT_FOUND, "no_such_token", format!("there is no token {id}"));
    Ok(Json(shown(&gone.ok_or_else(missing)?)))
}

/// The token to log in with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoginBody {
    token: String,
}

/// `POST /api/v1/session`: opens a session for a browser, known by a cookie.
pub(crate) async fn login(
    State(app): State<Arc<App>>,
    peer: Option<Extension<Peer>>,
    JsonBody(body): JsonBody<LoginBody>,
) -> Result<Response, Problem> {
    let identity = app.log_in(body.token.trim(), peer.map(|Extension(peer)| peer)).await?;
    let name = identity.access.name.clone();
    let value = app.sessions.open(identity).map_err(|error| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no_randomness", error.to_string()).retry_after(1)
    })?;
    Ok(with_cookie(&set_cookie(&value, app.config.tls), Json(json!({"name": name}))))
}

/// `DELETE /api/v1/session`
pub(crate) async fn logout(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    if let Some(value) = crate::access::cookie_of(&headers) {
        app.sessions.close(value);
    }
    with_cookie(&set_cookie("", app.config.tls), StatusCode::NO_CONTENT)
}

fn with_cookie(cookie: &str, reply: impl axum::response::IntoResponse) -> Response {
    let mut response = reply.into_response();
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}
