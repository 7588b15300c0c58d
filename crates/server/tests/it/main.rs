//! The API as a client sees it, over the reference model of a store.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod alerts;
mod bad_input;
mod story;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use redrive_core::access::{Access, Grant};
use redrive_core::store::Store;
use redrive_server::{Config, create_token, router};
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
}

/// A reply: its status, its body as JSON (null if it is not), and its headers.
struct Reply {
    status: StatusCode,
    body: Value,
    headers: axum::http::HeaderMap,
}

impl Server {
    async fn start() -> Self {
        let clock = TestClock::shared();
        let store: Arc<dyn Store> = Arc::new(Model::new(clock.clone()));
        let router = router(Arc::clone(&store), Config::default());
        let mut server = Self { router, store, clock, admin: String::new() };
        server.admin = server.token(&[Grant::Admin], &[]).await;
        server
    }

    async fn token(&self, roles: &[Grant], queues: &[&str]) -> String {
        let access = Access {
            name: format!("bearer of {roles:?}"),
            roles: roles.iter().copied().collect(),
            queues: queues.iter().map(|pattern| pattern.parse().unwrap()).collect(),
        };
        create_token(self.store.as_ref(), access, "test".into(), None).await.unwrap().0.reveal()
    }

    async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let body = serde_json::from_slice(&bytes).unwrap_or_default();
        Reply { status: parts.status, body, headers: parts.headers }
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
