//! The routes of the API. There is no rule about roles here: a handler reaches the store only through its
//! [`crate::access::Caller`], whose gate asks the table of verbs.

mod alerts;
pub(crate) mod health;
mod letters;
mod messages;
mod queues;
mod system;
mod triage;
pub(crate) mod verbs;

use crate::app::App;
use axum::Router;
use axum::routing::{MethodRouter, delete, get, post};
use std::sync::Arc;

/// A route: its path, its methods, and what answers.
type Route = (&'static str, &'static [&'static str], MethodRouter<Arc<App>>);

/// Every route under `/api/v1`.
pub(crate) fn table() -> Vec<Route> {
    vec![
        ("/api/v1/call", &["POST"], post(verbs::call)),
        ("/api/v1/queues", &["GET"], get(queues::list)),
        (
            "/api/v1/queues/{queue}",
            &["GET", "PUT", "PATCH"],
            get(queues::show).put(queues::put).patch(queues::patch),
        ),
        ("/api/v1/queues/{queue}/messages", &["POST"], post(messages::send)),
        ("/api/v1/queues/{queue}/lease", &["POST"], post(messages::lease)),
        ("/api/v1/queues/{queue}/pause", &["POST"], post(queues::pause)),
        ("/api/v1/queues/{queue}/resume", &["POST"], post(queues::resume)),
        ("/api/v1/queues/{queue}/purge", &["POST"], post(queues::purge)),
        ("/api/v1/dlqs", &["GET"], get(queues::dlqs)),
        ("/api/v1/deliveries/settle", &["POST"], post(messages::settle_many)),
        ("/api/v1/deliveries/{token}/ack", &["POST"], post(messages::ack)),
        ("/api/v1/deliveries/{token}/fail", &["POST"], post(messages::fail)),
        ("/api/v1/deliveries/{token}/extend", &["POST"], post(messages::extend)),
        ("/api/v1/deliveries/{token}/release", &["POST"], post(messages::release)),
        ("/api/v1/messages", &["GET"], get(messages::list)),
        ("/api/v1/messages/{id}", &["GET", "DELETE"], get(messages::show).delete(messages::cancel)),
        ("/api/v1/dlq", &["GET"], get(letters::list)),
        ("/api/v1/dlq/{id}", &["GET", "DELETE"], get(letters::show).delete(letters::purge)),
        ("/api/v1/dlq/{id}/timeline", &["GET"], get(letters::timeline)),
        ("/api/v1/dlq/{id}/revisions", &["GET"], get(letters::revisions)),
        ("/api/v1/dlq/{id}/reveal", &["POST"], post(letters::reveal)),
        ("/api/v1/dlq/{id}/{act}", &["POST"], post(letters::act)),
        ("/api/v1/groups", &["GET"], get(triage::groups)),
        ("/api/v1/groups/{id}", &["GET", "POST"], get(triage::group).post(triage::act_on_group)),
        ("/api/v1/operations", &["GET", "POST"], get(triage::operations).post(triage::start)),
        ("/api/v1/operations/preview", &["POST"], post(triage::preview)),
        ("/api/v1/operations/{id}", &["GET"], get(triage::operation)),
        ("/api/v1/operations/{id}/members", &["GET"], get(triage::members)),
        ("/api/v1/operations/{id}/{control}", &["POST"], post(triage::control)),
        ("/api/v1/breakers", &["GET"], get(triage::breakers)),
        ("/api/v1/breakers/{queue}/{key}/{state}", &["POST"], post(triage::force_breaker)),
        ("/api/v1/alerts", &["GET"], get(alerts::list)),
        ("/api/v1/alerts/test", &["POST"], post(alerts::test)),
        ("/api/v1/alerts/silence", &["POST"], post(alerts::silence)),
        ("/api/v1/markers", &["GET", "POST"], get(system::markers).post(system::mark)),
        ("/api/v1/stats", &["GET"], get(system::stats)),
        ("/api/v1/stats/report", &["GET"], get(system::stats_report)),
        ("/api/v1/audit", &["GET"], get(system::audit)),
        ("/api/v1/audit/verify", &["GET"], get(system::audit_verify)),
        ("/api/v1/tokens", &["GET", "POST"], get(system::tokens).post(system::new_token)),
        ("/api/v1/tokens/{id}", &["DELETE"], delete(system::revoke)),
        ("/api/v1/session", &["POST", "DELETE"], post(system::login).delete(system::logout)),
    ]
}

/// The routes under `/api/v1`.
pub(crate) fn routes() -> Router<Arc<App>> {
    table().into_iter().fold(Router::new(), |router, (path, _, methods)| router.route(path, methods))
}
