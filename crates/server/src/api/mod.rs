//! The API. There is no rule about roles here: a handler reaches the store only through its
//! [`crate::access::Caller`], whose gate asks the table of verbs.

pub(crate) mod alerts;
pub(crate) mod endpoint;
mod events;
mod health;
mod ids;
mod letter_acts;
mod letter_work;
mod letters;
mod messages;
mod orchestration;
mod queues;
mod system;
mod table;
mod transfer;
mod triage;
pub(crate) mod verbs;

pub(crate) use messages::new_id;
pub(crate) use table::endpoints;

use crate::app::App;
use axum::Router;
use std::sync::Arc;

/// The routes of the table.
pub(crate) fn routes() -> Router<Arc<App>> {
    endpoints().into_iter().fold(Router::new(), |router, route| router.route(route.path, route.handler))
}
