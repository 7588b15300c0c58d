//! The API as a client sees it, over the reference model of a store.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test may panic")]

mod access;
mod alerts;
mod bad_input;
mod clients;
mod conform;
mod dashboard;
mod dashboard_acts;
mod dashboard_xss;
mod document;
mod events;
mod exchange;
mod fuzz;
mod listen;
mod metrics;
mod orchestration;
mod refusals;
mod request_keys;
mod resources;
mod story;
mod streams;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use redrive_core::access::{Access, Grant};
use redrive_core::dead_letter::Actor;
use redrive_core::store::Store;
use redrive_server::{Config, Refusals, create_token, router};
use redrive_testkit::clock::TestClock;
use redrive_testkit::model::Model;
use serde_json::Value;
use std::sync::Arc;
use tower::ServiceExt as _;

/// A server with an admin, and the clock of its store.
struct Server {
    router: Router,
    store: Arc<dyn Store>,
    clock: Arc<TestClock>,
    admin: String,
    refusals: Refusals,
}

/// A reply: its status, its body as text and as JSON (null if it is not), and its headers.
struct Reply {
    status: StatusCode,
    body: Value,
    text: String,
    headers: axum::http::HeaderMap,
}

impl Reply {
    /// The objects on the lines of the body.
    fn lines(&self) -> Vec<Value> {
        self.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Server {
    async fn start() -> Self {
        Self::with(Config::default()).await
    }

    async fn with(config: Config) -> Self {
        let clock = TestClock::shared();
        let store: Arc<dyn Store> = Arc::new(Model::new(clock.clone()));
        let refusals = config.refusals.clone();
        let router = router(Arc::clone(&store), config);
        let mut server = Self { router, store, clock, admin: String::new(), refusals };
        server.admin = server.token(&[Grant::Admin], &[]).await;
        server
    }

    async fn token(&self, roles: &[Grant], queues: &[&str]) -> String {
        let access = Access {
            name: format!("bearer of {roles:?}"),
            roles: roles.iter().copied().collect(),
            queues: queues.iter().map(|pattern| pattern.parse().unwrap()).collect(),
        };
        let by = Actor::new("test", "test");
        create_token(self.store.as_ref(), access, &by, None).await.unwrap().0.reveal()
    }

    /// Sends a request. Whatever comes back must be as the document about the API says.
    async fn send(&self, request: Request<Body>) -> Reply {
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let reply = self.exchange(request).await;
        conform::check(&method, &path, &reply);
        reply
    }

    /// Sends a request to the API or to the dashboard.
    async fn exchange(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        // A stream of events does not end by itself; its beginning says enough here.
        let streams = parts.headers.get("content-type").is_some_and(|kind| kind == "text/event-stream");
        let bytes = match streams {
            true => Default::default(),
            false => axum::body::to_bytes(body, usize::MAX).await.unwrap(),
        };
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Reply { status: parts.status, body, text, headers: parts.headers }
    }

    /// A dead letter in the queue `q`, and its id.
    async fn letter(&self, message: &str) -> String {
        self.ask("PATCH", "/api/v1/queues/q", Some(r#"{"max_attempts":1}"#)).await;
        let sent = self.post("/api/v1/queues/q/messages", message).await;
        let leased = self.post("/api/v1/queues/q/lease", r#"{"worker":"w1"}"#).await;
        let token = leased["items"][0]["token"].as_str().unwrap();
        let failure = r#"{"error_type":"HttpError","message":"timed out","stack":"at f","cause":"refused"}"#;
        self.post(&format!("/api/v1/deliveries/{token}/fail"), failure).await;
        sent["id"].as_str().unwrap().to_owned()
    }

    fn request(method: &str, path: &str, token: &str, body: Option<&str>) -> Request<Body> {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        match body {
            Some(body) => {
                request.header("content-type", "application/json").body(Body::from(body.to_owned())).unwrap()
            }
            None => request.body(Body::empty()).unwrap(),
        }
    }

    /// Asks as the admin.
    async fn ask(&self, method: &str, path: &str, body: Option<&str>) -> Reply {
        self.send(Self::request(method, path, &self.admin, body)).await
    }

    /// Asks as the admin, and expects success.
    async fn get(&self, path: &str) -> Value {
        let reply = self.ask("GET", path, None).await;
        assert!(reply.status.is_success(), "{path}: {} {}", reply.status, reply.body);
        reply.body
    }

    async fn post(&self, path: &str, body: &str) -> Value {
        let reply = self.ask("POST", path, Some(body)).await;
        assert!(reply.status.is_success(), "{path}: {} {}", reply.status, reply.body);
        reply.body
    }
}
