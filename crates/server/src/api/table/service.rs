//! The rows of the table of routes that are about the store as a whole, alerts, access and the API itself.

use super::super::endpoint::Content::{Empty, Json, Text};
use super::super::endpoint::{Endpoint, Needs};
use super::super::{alerts, events, health, orchestration, system, verbs};
use crate::{docs, metrics, openapi};
use axum::routing::{delete, get, post};
use redrive_core::store::Role::{Admin, Operator, Viewer};

pub(super) fn orchestrating() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            ("GET", "/api/v1/orchestration/dlq"),
            Admin,
            "Lists failed tasks, latest first: the pending ones, unless another status is asked for.",
            get(orchestration::list),
        )
        .query("TaskParams")
        .lists("Task"),
        Endpoint::new(
            ("GET", "/api/v1/orchestration/dlq/{id}"),
            Admin,
            "Shows a failed task.",
            get(orchestration::show),
        )
        .shows("Task"),
        Endpoint::new(
            ("POST", "/api/v1/orchestration/dlq/{id}/retry"),
            Admin,
            "Sends a failed task back. A task that has succeeded meanwhile is closed instead.",
            post(orchestration::retry),
        )
        .may_take("ResolveTask")
        .shows("Task"),
        Endpoint::new(
            ("POST", "/api/v1/orchestration/dlq/{id}/resolve"),
            Admin,
            "Marks a failed task as resolved by hand, with notes.",
            post(orchestration::resolve),
        )
        .may_take("ResolveTask")
        .shows("Task"),
        Endpoint::new(
            ("POST", "/api/v1/orchestration/dlq/{id}/abandon"),
            Admin,
            "Gives a failed task up, with a reason.",
            post(orchestration::abandon),
        )
        .may_take("AbandonTask")
        .shows("Task"),
    ]
}

pub(super) fn maintaining() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            ("GET", "/api/v1/events"),
            Viewer,
            "Streams events about what changes, with names and counts only (`docs/events.md`).",
            get(events::stream),
        )
        .query("EventParams")
        .header("Last-Event-ID", "The id of the last event that was seen. The stream continues after it.")
        .gives(200, Text("text/event-stream")),
        Endpoint::new(("GET", "/api/v1/stats"), Viewer, "Shows everything that is counted and measured.", get(system::stats))
            .shows("Stats"),
        Endpoint::new(
            ("GET", "/api/v1/stats/report"),
            Viewer,
            "Shows the performance report: queues, summary, latencies and alerts.",
            get(system::stats_report),
        )
        .shows("Report"),
        Endpoint::new(
            ("GET", "/api/v1/audit"),
            Viewer,
            "Lists the audit trail, latest first. With a filter, a page may be empty and still have a next one.",
            get(system::audit),
        )
        .query("AuditParams")
        .lists("AuditRow"),
        Endpoint::new(
            ("GET", "/api/v1/audit/verify"),
            Viewer,
            "Verifies the audit chain, and that it contains a head that was noted earlier.",
            get(system::audit_verify),
        )
        .query("HeadParams")
        .shows("AuditReport"),
        Endpoint::new(
            ("POST", "/api/v1/call"),
            Needs::ByBody,
            "Carries out a verb of the store for another Redrive process, such as `redrive --server`. The form of the \
             calls may change with every release.",
            post(verbs::call),
        )
        .header("Redrive-Call-Version", "The version of the calls that the caller speaks.")
        .takes(Json("Call"))
        .gives(200, Json("Any")),
    ]
}

pub(super) fn alerting() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            ("GET", "/api/v1/alerts"),
            Viewer,
            "Shows the alerts that hold, the channels they are sent to, and what is silenced.",
            get(alerts::list),
        )
        .shows("Alerts"),
        Endpoint::new(("POST", "/api/v1/alerts/test"), Operator, "Tests a channel.", post(alerts::test))
            .takes(Json("AlertTestBody"))
            .gives(202, Json("AlertTest")),
        Endpoint::new(
            ("POST", "/api/v1/alerts/silence"),
            Operator,
            "Silences a rule or a subject for a while, or ends that if no time is given.",
            post(alerts::silence),
        )
        .takes(Json("SilenceBody"))
        .shows("SilenceResult"),
    ]
}

pub(super) fn admitting() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            ("GET", "/api/v1/tokens"),
            Admin,
            "Lists the tokens, oldest first.",
            get(system::tokens),
        )
        .lists("Token"),
        Endpoint::new(
            ("POST", "/api/v1/tokens"),
            Admin,
            "Makes a token. The reply is the only place where it appears.",
            post(system::new_token),
        )
        .takes(Json("TokenBody"))
        .gives(201, Json("NewToken")),
        Endpoint::new(("DELETE", "/api/v1/tokens/{id}"), Admin, "Revokes a token.", delete(system::revoke))
            .shows("Token"),
        Endpoint::new(
            ("POST", "/api/v1/session"),
            Needs::Nothing,
            "Opens a session for a browser with a token. The cookie in the reply stands for it.",
            post(system::login),
        )
        .takes(Json("LoginBody"))
        .shows("LoggedIn"),
        Endpoint::new(
            ("DELETE", "/api/v1/session"),
            Needs::Nothing,
            "Ends the session.",
            delete(system::logout),
        )
        .gives(204, Empty),
    ]
}

pub(super) fn explaining() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            ("GET", "/healthz"),
            Needs::Nothing,
            "Says that the process answers.",
            get(health::live),
        )
        .shows("Live"),
        Endpoint::new(
            ("GET", "/readyz"),
            Needs::Nothing,
            "Says whether the store takes calls, and what is wrong with it.",
            get(health::ready),
        )
        .shows("Ready"),
        Endpoint::new(
            ("GET", "/metrics"),
            Viewer,
            "Shows the metrics of the store, of this process and of its requests, as OpenMetrics text.",
            get(metrics::show),
        )
        .gives(200, Text("application/openmetrics-text")),
        Endpoint::new(("GET", "/openapi.json"), Needs::Nothing, "This document.", get(openapi::serve))
            .gives(200, Json("Any")),
        Endpoint::new(("GET", "/docs"), Needs::Nothing, "This document as a page.", get(docs::page))
            .gives(200, Text("text/html")),
        Endpoint::new(
            ("GET", "/docs/style.css"),
            Needs::Nothing,
            "The style of that page.",
            get(docs::style),
        )
        .gives(200, Text("text/css")),
    ]
}
