//! The world outside: three services that the demo's handlers call over HTTP on loopback. They fail the way such services
//! do, each for a reason that a person can find out: one is down for a while, one limits its callers, one answers with
//! something other than what was promised.

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use serde::Deserialize;
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::Instant;

/// When the payment service goes down, counted from the start of the demo.
const PAYMENTS_DOWN_AFTER: Duration = Duration::from_secs(8);
/// When the payment service is back, at the earliest.
const PAYMENTS_BACK_AFTER: Duration = Duration::from_secs(50);
/// The outage also lasts until so many payments were refused, and a little longer, so that the breaker opens on slow
/// machines, too.
const PAYMENTS_REFUSED_MIN: u32 = super::shop::BREAKER_FAILURES;
const PAYMENTS_BACK_LATER: Duration = Duration::from_secs(5);
/// The number of mails a second that the mail service accepts.
const MAILS_PER_SECOND: f64 = 6.0;

/// The services and what they remember.
pub(super) struct World {
    began: Instant,
    /// The number of payments that were refused, and when it had become enough.
    refused: Mutex<(u32, Option<Instant>)>,
    mail_bucket: Mutex<(f64, Instant)>,
}

impl World {
    /// Starts the services on a free port of this machine and returns their address.
    pub(super) async fn start() -> std::io::Result<SocketAddr> {
        let began = Instant::now();
        let mail_bucket = Mutex::new((MAILS_PER_SECOND, began));
        let world = Arc::new(Self { began, refused: Mutex::default(), mail_bucket });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let services = Router::new()
            .route("/v1/charges", post(charge))
            .route("/v1/mails", post(mail))
            .route("/v1/completions", post(complete))
            .with_state(world);
        tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, services).await {
                tracing::warn!(%error, "the demo's services ended");
            }
        });
        Ok(address)
    }
}

fn failure(status: StatusCode, what: &str) -> Response {
    (status, Json(json!({"error": what}))).into_response()
}

/// The payment service, which is down for a while.
async fn charge(State(world): State<Arc<World>>) -> Response {
    let age = world.began.elapsed();
    let mut refused = world.refused.lock().unwrap_or_else(PoisonError::into_inner);
    let (count, enough_at) = &mut *refused;
    let is_enough = enough_at.is_some_and(|at| at.elapsed() > PAYMENTS_BACK_LATER);
    if age >= PAYMENTS_DOWN_AFTER && !(age >= PAYMENTS_BACK_AFTER && is_enough) {
        *count += 1;
        if *count >= PAYMENTS_REFUSED_MIN {
            enough_at.get_or_insert_with(Instant::now);
        }
        return failure(StatusCode::SERVICE_UNAVAILABLE, "no healthy upstream");
    }
    Json(json!({"status": "charged"})).into_response()
}

/// The mail service, which refuses callers that send too fast.
async fn mail(State(world): State<Arc<World>>) -> Response {
    let mut bucket = world.mail_bucket.lock().unwrap_or_else(PoisonError::into_inner);
    let (left, since) = &mut *bucket;
    *left = (*left + since.elapsed().as_secs_f64() * MAILS_PER_SECOND).min(MAILS_PER_SECOND);
    *since = Instant::now();
    if *left < 1.0 {
        let refused = failure(StatusCode::TOO_MANY_REQUESTS, "rate limit exceeded");
        return ([(header::RETRY_AFTER, "1")], refused).into_response();
    }
    *left -= 1.0;
    Json(json!({"status": "sent"})).into_response()
}

/// What the model is asked.
#[derive(Deserialize)]
struct Prompt {
    ticket: u64,
    language: String,
}

/// The model, which breaks off its answers in one language, every time.
async fn complete(Json(prompt): Json<Prompt>) -> Response {
    let Prompt { ticket, language } = prompt;
    let whole = json!({"ticket": ticket, "summary": "the customer asks for a refund"}).to_string();
    let answer = if language == "fi" { whole.split_at(whole.len() / 2).0.to_owned() } else { whole };
    ([(header::CONTENT_TYPE, "application/json")], answer).into_response()
}
