//! What is refused, and what changes who may do what, is in the audit trail. Revoking a token ends all it was used for.

use super::{Reply, Server};
use axum::body::Body;
use axum::http::Request;
use futures_util::StreamExt as _;
use redrive_core::access::Grant;
use serde_json::Value;
use std::collections::BTreeMap;
use tower::ServiceExt as _;

fn with(mut request: Request<Body>, name: &'static str, value: &str) -> Request<Body> {
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

impl Server {
    /// The audit rows of an act, latest first.
    async fn rows(&self, act: &str) -> Vec<Value> {
        self.refusals.write(self.store.as_ref()).await;
        let found = self.get(&format!("/api/v1/audit?act={act}&limit=200")).await;
        found["items"].as_array().unwrap().clone()
    }

    /// The cookie of a session that was opened with a token.
    async fn session(&self, token: &str) -> String {
        let body = format!(r#"{{"token":"{token}"}}"#);
        let reply = self.send(Self::request("POST", "/api/v1/session", "", Some(&body))).await;
        let cookie = reply.headers["set-cookie"].to_str().unwrap();
        cookie.split(';').next().unwrap().to_owned()
    }

    async fn with_cookie(&self, cookie: &str) -> Reply {
        self.send(with(Self::request("GET", "/api/v1/queues", "", None), "cookie", cookie)).await
    }

    /// Revokes the token.
    async fn revoke(&self, token: &str) {
        let id = token.split('_').nth(1).unwrap();
        assert!(self.ask("DELETE", &format!("/api/v1/tokens/{id}"), None).await.status.is_success());
    }
}

#[tokio::test]
async fn refused_requests_are_counted_in_the_audit_trail() {
    let server = Server::start().await;
    let viewer = server.token(&[Grant::Viewer], &[]).await;
    let send =
        || Server::request("POST", "/api/v1/queues/q/messages", &server.admin, Some(r#"{"payload":"x"}"#));
    let retry = "/api/v1/dlq/01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00/retry";
    let wrong = format!("rdt_0123456789ab_{}", "5e".repeat(32));
    for _ in 0..3 {
        assert_eq!(server.send(with(send(), "host", "evil.example")).await.status.as_u16(), 421);
        assert_eq!(server.send(with(send(), "origin", "https://evil.example")).await.status.as_u16(), 403);
        let reply = server.send(Server::request("POST", retry, &viewer, Some("{}"))).await;
        assert_eq!(reply.status.as_u16(), 403);
        let call = Server::request(
            "POST",
            "/api/v1/call",
            &viewer,
            Some(r#"{"verb":"verify","with":{"request":{"deep":false,"repair":false}}}"#),
        );
        server.send(with(call, "redrive-call-version", "1")).await;
        assert_eq!(
            server.send(Server::request("GET", "/api/v1/queues", &wrong, None)).await.status.as_u16(),
            401
        );
    }
    let login = format!(r#"{{"token":"{wrong}"}}"#);
    let login = server.send(Server::request("POST", "/api/v1/session", "", Some(&login))).await;
    assert_eq!(login.status.as_u16(), 401);
    // Somebody who shows no token at all only has to log in.
    server.send(Server::request("GET", "/api/v1/queues", "", None)).await;

    let rows = server.rows("refuse").await;
    let mut counts: BTreeMap<(String, String), (u64, usize)> = BTreeMap::new();
    for row in &rows {
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        let count = counts.entry((text("actor"), text("target"))).or_default();
        *count = (count.0 + row["count"].as_u64().unwrap(), count.1 + 1);
        assert!(!row.to_string().contains("5e5e"), "no secret: {row}");
        assert!(!row.to_string().contains("evil"), "nothing that the request chose: {row}");
    }
    let sums: Vec<_> = counts.iter().map(|((who, why), (n, _))| (who.as_str(), why.as_str(), *n)).collect();
    let expected = [
        ("bearer of [Viewer]", "not_allowed", 6),
        ("unknown peer", "cross_site", 3),
        ("unknown peer", "unauthenticated", 4),
        ("unknown peer", "wrong_host", 3),
    ];
    assert_eq!(sums, expected);
    assert!(rows.iter().any(|row| row["detail"] == "POST /api/v1/queues/{queue}/messages"), "{rows:?}");
    let again = server.rows("refuse").await.len();
    assert_eq!(again, rows.len(), "everything was counted once");
    assert!(server.store.audit_verify(None).await.unwrap().broken.is_none());
}

#[tokio::test]
async fn a_flood_of_refused_requests_is_no_flood_of_rows() {
    let server = Server::start().await;
    let viewer = server.token(&[Grant::Viewer], &[]).await;
    for _ in 0..300 {
        let reply =
            server.send(Server::request("POST", "/api/v1/markers", &viewer, Some(r#"{"text":"x"}"#))).await;
        assert_eq!(reply.status.as_u16(), 403);
    }
    let rows = server.rows("refuse").await;
    let counted: u64 = rows.iter().map(|row| row["count"].as_u64().unwrap()).sum();
    assert_eq!(counted, 300);
    // One at once, one for each minute that this took, and one for the end.
    assert!(rows.len() < 30, "{}", rows.len());
}

#[tokio::test]
async fn who_gave_and_took_away_access_is_on_record() {
    let server = Server::start().await;
    let body = r#"{"name":"ci","roles":["producer","worker"],"queues":["pay-*"],"expires_in":"1h"}"#;
    let made = server.post("/api/v1/tokens", body).await;
    let (id, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    let rows = server.rows("create%20token").await;
    let admin = "bearer of [Admin]";
    assert_eq!((rows[0]["actor"].as_str(), rows[0]["target"].as_str()), (Some(admin), Some(id)));
    let detail = rows[0]["detail"].as_str().unwrap();
    assert!(detail.starts_with("for ci: producer, worker on pay-* until "), "{detail}");
    server.revoke(token).await;
    let rows = server.rows("revoke%20token").await;
    assert_eq!((rows[0]["actor"].as_str(), rows[0]["target"].as_str()), (Some(admin), Some(id)));
    let silence = r#"{"name":"depth","for":"2h","reason":"a deploy"}"#;
    server.post("/api/v1/alerts/silence", silence).await;
    server.post("/api/v1/alerts/silence", r#"{"name":"depth"}"#).await;
    server.post("/api/v1/alerts/silence", r#"{"name":"depth"}"#).await;
    let rows = server.rows("silence%20alert").await;
    assert_eq!((rows[0]["target"].as_str(), rows[0]["reason"].as_str()), (Some("depth"), Some("a deploy")));
    assert_eq!(server.rows("unsilence%20alert").await.len(), 1, "ending nothing is no act");
    let all = [server.admin.as_str(), token].map(|token| token.split('_').nth(2).unwrap());
    let trail = server.get("/api/v1/audit?limit=200").await.to_string();
    assert!(all.iter().all(|secret| !trail.contains(secret)), "no secret of a token is on record");
}

#[tokio::test]
async fn revoking_a_token_ends_its_sessions_and_streams_at_once() {
    let server = Server::start().await;
    let (lost, kept) = (server.token(&[Grant::Admin], &[]).await, server.token(&[Grant::Viewer], &[]).await);
    let (lost_session, kept_session) = (server.session(&lost).await, server.session(&kept).await);
    for cookie in [&lost_session, &kept_session] {
        assert_eq!(server.with_cookie(cookie).await.status.as_u16(), 200);
    }
    let open = async |token: &str| {
        let request = Server::request("GET", "/api/v1/events", token, None);
        let mut events = server.router.clone().oneshot(request).await.unwrap().into_body().into_data_stream();
        assert!(events.next().await.unwrap().unwrap().starts_with(b"retry:"));
        events
    };
    let (mut lost_events, mut kept_events) = (open(&lost).await, open(&kept).await);
    server.revoke(&lost).await;
    assert_eq!(server.with_cookie(&lost_session).await.status.as_u16(), 401);
    assert_eq!(server.with_cookie(&kept_session).await.status.as_u16(), 200);
    let reply = server.send(Server::request("GET", "/api/v1/queues", &lost, None)).await;
    assert_eq!(reply.status.as_u16(), 401, "not believed for another second");
    assert!(lost_events.next().await.is_none(), "the stream ends without another event");
    server.post("/api/v1/queues/q/messages", r#"{"payload":"x"}"#).await;
    assert!(kept_events.next().await.is_some());
}

#[tokio::test]
async fn a_token_that_is_revoked_on_the_store_ends_its_sessions_too() {
    let server = Server::start().await;
    let token = server.token(&[Grant::Viewer], &[]).await;
    let session = server.session(&token).await;
    let id = token.split('_').nth(1).unwrap().parse().unwrap();
    let by = redrive_core::dead_letter::Actor::new("root", "cli");
    redrive_server::revoke_token(server.store.as_ref(), id, &by).await.unwrap().unwrap();
    assert_eq!(server.with_cookie(&session).await.status.as_u16(), 401);
}
