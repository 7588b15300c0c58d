//! Health for load balancers and supervisors. It says nothing about data, so it needs no token.

use crate::app::App;
use crate::problem::Problem;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;

/// `GET /healthz`: the process lives and answers.
pub(crate) async fn live() -> Json<Value> {
    Json(json!({"status": "live"}))
}

/// `GET /readyz`: the store takes calls. A degraded store does too, and says why.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Json<Value>, Problem> {
    let info = app.store().info().await.map_err(|error| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", error.to_string()).retry_after(1)
    })?;
    let status = if info.degraded.is_empty() { "ready" } else { "degraded" };
    Ok(Json(json!({"status": status, "degraded": info.degraded})))
}
