//! `/metrics`, `/healthz` and `/readyz`, as Prometheus and a load balancer see them.

use super::Server;
use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use redrive_core::access::Grant;
use redrive_core::error::{StoreError, StoreErrorKind, StoreResult};
use redrive_core::metrics::{Stats, definitions, http};
use redrive_core::store::{Call, Caller, Store, StoreInfo, encode_reply};
use redrive_server::{Config, router};
use std::collections::BTreeSet;
use std::sync::Arc;
use tower::ServiceExt as _;

/// The status, the content type and the text of a reply.
async fn text(router: &Router, path: &str, token: &str) -> (StatusCode, String, String) {
    let response = router.clone().oneshot(Server::request("GET", path, token, None)).await.unwrap();
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    let status = response.status();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, kind, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test]
async fn requests_are_counted_by_route_and_not_by_path() {
    let server = Server::start().await;
    for path in ["/api/v1/queues/a", "/api/v1/queues/b", "/nowhere/1", "/nowhere/2"] {
        server.ask("GET", path, None).await;
    }
    server
        .send(
            Request::builder()
                .method("BREW")
                .uri("/healthz")
                .header("host", "localhost")
                .body(Body::empty())
                .unwrap(),
        )
        .await;
    let (status, kind, text) = text(&server.router, "/metrics", &server.admin).await;
    assert_eq!((status.as_u16(), kind.starts_with("application/openmetrics-text")), (200, true), "{kind}");
    for wanted in [
        r#"redrive_http_requests_total{route="/api/v1/queues/{queue}",method="GET",status="4xx"} 2"#,
        r#"redrive_http_requests_total{route="none",method="GET",status="4xx"} 2"#,
        r#"redrive_http_requests_total{route="/healthz",method="other",status="4xx"} 1"#,
        r#"redrive_http_request_seconds_count{route="/api/v1/queues/{queue}",method="GET"} 2"#,
        // The request for the metrics itself.
        "redrive_http_requests_in_flight 1",
        "redrive_http_long_polls 0",
        "redrive_http_event_streams 0",
    ] {
        assert!(text.lines().any(|line| line == wanted), "{wanted} is missing in\n{text}");
    }
    for definition in http::ALL {
        assert!(text.contains(&format!("\n{}", definition.name)), "{} is missing", definition.name);
    }
    let known: BTreeSet<&str> = definitions().iter().map(|d| d.name).collect();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let endings = ["_bucket", "_sum", "_count"];
        let base = endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
        assert!(known.contains(base), "{line}");
    }
    assert!(text.ends_with("# EOF\n"), "{text}");
}

/// Stands for what the library renders.
#[expect(clippy::needless_pass_by_value, reason = "the type of the setting says so")]
fn rendered(stats: Stats, info: &StoreInfo) -> String {
    format!("# {} queues, {} reasons\n", stats.queues.len(), info.degraded.len())
}

#[tokio::test]
async fn metrics_of_the_process_come_first_and_only_for_who_may_read() {
    let server = Server::start().await;
    server.post("/api/v1/queues/orders/messages", r#"{"payload": 1}"#).await;
    let config = Config { process_metrics: Some(rendered), ..Config::default() };
    let router = router(Arc::clone(&server.store), config);
    let viewer = server.token(&[Grant::MaskedViewer], &[]).await;
    let (status, _, shown) = text(&router, "/metrics", &viewer).await;
    assert_eq!(status, 200, "{shown}");
    assert!(shown.starts_with("# 1 queues, 0 reasons\n") && shown.ends_with("# EOF\n"), "{shown}");
    let producer = server.token(&[Grant::Producer], &[]).await;
    for (token, expected) in [("", 401), ("rdt_wrong", 401), (producer.as_str(), 403)] {
        for router in [&router, &server.router] {
            let (status, _, shown) = text(router, "/metrics", token).await;
            assert_eq!(status, expected, "{shown}");
            assert!(!shown.contains("redrive_http"), "{shown}");
        }
    }
}

#[tokio::test]
async fn health_needs_no_token_and_says_nothing_about_data() {
    let server = Server::start().await;
    for (path, expected) in
        [("/healthz", r#"{"status":"live"}"#), ("/readyz", r#"{"degraded":[],"status":"ready"}"#)]
    {
        let (status, _, shown) = text(&server.router, path, "").await;
        assert_eq!((status.as_u16(), shown.as_str()), (200, expected));
    }
}

/// A store with something wrong: it works and says what, or it does not work any more.
struct Ill {
    store: Arc<dyn Store>,
    works: bool,
}

#[async_trait]
impl Caller for Ill {
    async fn call(&self, call: Call) -> StoreResult<Vec<u8>> {
        let mut reply = Vec::new();
        if !matches!(call, Call::Info {}) {
            call.apply(self.store.as_ref(), &mut reply).await?;
        } else if self.works {
            let info = StoreInfo { degraded: vec!["the disk is full".into()], ..self.store.info().await? };
            encode_reply(&mut reply, &Ok(info))?;
        } else {
            return Err(StoreError::new(StoreErrorKind::Stopped, "a write failed; restart").into());
        }
        Ok(reply)
    }
}

#[tokio::test]
async fn a_store_with_a_problem_is_degraded_with_the_reason_and_one_that_stopped_is_not_ready() {
    let server = Server::start().await;
    let ready = async |works| {
        let store = Arc::clone(&server.store);
        let router = router(Arc::new(Ill { store, works }), Config::default());
        let (status, _, shown) = text(&router, "/readyz", "").await;
        assert_eq!(text(&router, "/healthz", "").await.0, 200, "the process lives");
        (status.as_u16(), shown)
    };
    let (status, shown) = ready(true).await;
    assert_eq!((status, shown.as_str()), (200, r#"{"degraded":["the disk is full"],"status":"degraded"}"#));
    let (status, shown) = ready(false).await;
    assert!(status == 503 && shown.contains("not_ready") && shown.contains("a write failed"), "{shown}");
}
