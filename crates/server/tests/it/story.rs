//! A message that fails until it is a dead letter, is sent back, and succeeds.

use super::Server;
use redrive_core::time::Span;

#[tokio::test]
async fn a_message_fails_dies_is_sent_back_and_succeeds() {
    let server = Server::start().await;
    let body = r#"{"kind":"charge","payload":{"order": 4411, "big":123456789012345678901234567890}}"#;
    let sent = server.post("/api/v1/queues/payments/messages", body).await;
    let id = sent["id"].as_str().unwrap().to_owned();
    for attempt in 1..=5 {
        server.clock.advance(Span::from_hours(1));
        let leased = server.post("/api/v1/queues/payments/lease", r#"{"worker":"w1"}"#).await;
        let delivery = &leased["items"][0];
        assert_eq!(delivery["attempt"], attempt);
        // Every byte of the payload, also those that a number of most languages could not keep.
        assert_eq!(delivery["payload"], r#"{"order": 4411, "big":123456789012345678901234567890}"#);
        let token = delivery["token"].as_str().unwrap();
        let failure = r#"{"error_type":"HttpError","message":"timed out after 30 s","code":"504"}"#;
        let settled = server.post(&format!("/api/v1/deliveries/{token}/fail"), failure).await;
        assert_eq!(settled["state"], if attempt == 5 { "dead" } else { "scheduled" });
    }
    let letters = server.get("/api/v1/dlq?filter=queue%3Apayments").await;
    assert_eq!(letters["items"][0]["id"], id.as_str());
    assert_eq!(letters["items"][0]["error"]["type"], "HttpError");
    let groups = server.get("/api/v1/groups").await;
    assert_eq!(groups["items"][0]["open"], 1);
    let timeline = server.get(&format!("/api/v1/dlq/{id}/timeline")).await;
    assert!(timeline["items"].as_array().unwrap().len() >= 6, "{timeline}");
    let retried = server.post(&format!("/api/v1/dlq/{id}/retry"), r#"{"reason":"the API is back"}"#).await;
    assert_eq!(retried["status"], "retrying");
    let leased = server.post("/api/v1/queues/payments/lease", "{}").await;
    let token = leased["items"][0]["token"].as_str().unwrap();
    let done = server.post(&format!("/api/v1/deliveries/{token}/ack"), "{}").await;
    assert_eq!(done["state"], "done");
    assert_eq!(server.get(&format!("/api/v1/dlq/{id}")).await["status"], "resolved");
    let audit = server.get("/api/v1/audit").await;
    let retry = audit["items"].as_array().unwrap().iter().find(|row| row["act"] == "retry").unwrap();
    assert_eq!(
        (retry["actor"].as_str(), retry["reason"].as_str()),
        (Some("bearer of [Admin]"), Some("the API is back"))
    );
}

#[tokio::test]
async fn pages_follow_each_other_by_their_link() {
    let server = Server::start().await;
    let messages: Vec<String> = (0..5).map(|n| format!(r#"{{"payload":"{n}"}}"#)).collect();
    let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
    let sent = server.post("/api/v1/queues/q/messages", &body).await;
    assert_eq!(sent["items"].as_array().unwrap().len(), 5);
    let mut path = "/api/v1/messages?limit=2".to_owned();
    let mut seen = Vec::new();
    loop {
        let reply = server.ask("GET", &path, None).await;
        seen.extend(reply.body["items"].as_array().unwrap().iter().map(|m| m["payload"].clone()));
        let Some(link) = reply.headers.get("link") else { break };
        let link = link.to_str().unwrap();
        path = link.split_once('>').unwrap().0.trim_start_matches('<').to_owned();
    }
    assert_eq!(seen, ["0", "1", "2", "3", "4"]);
}

#[tokio::test]
async fn an_idempotency_key_makes_a_repeated_send_harmless() {
    let server = Server::start().await;
    let send = |body: &'static str| {
        let mut request = Server::request("POST", "/api/v1/queues/q/messages", &server.admin, Some(body));
        request.headers_mut().insert("idempotency-key", "order-4411".parse().unwrap());
        server.send(request)
    };
    let first = send(r#"{"payload":"a"}"#).await;
    let again = send(r#"{"payload":"a"}"#).await;
    assert_eq!((first.status.as_u16(), again.status.as_u16()), (201, 200));
    assert_eq!(first.body["id"], again.body["id"]);
    let other = send(r#"{"payload":"b"}"#).await;
    assert_eq!((other.status.as_u16(), other.body["code"].as_str()), (409, Some("key_conflict")));
}

#[tokio::test]
async fn an_operation_starts_only_as_it_was_previewed() {
    let server = Server::start().await;
    server.ask("PATCH", "/api/v1/queues/q", Some(r#"{"max_attempts":1}"#)).await;
    server.post("/api/v1/queues/q/messages", r#"{"payload":"x"}"#).await;
    let leased = server.post("/api/v1/queues/q/lease", "{}").await;
    let token = leased["items"][0]["token"].as_str().unwrap();
    server.post(&format!("/api/v1/deliveries/{token}/fail"), r#"{"error_type":"E"}"#).await;
    let refused = server.ask("POST", "/api/v1/operations", Some(r#"{"filter":"queue:q"}"#)).await;
    assert_eq!(refused.body["code"], "no_preview");
    let preview = server.post("/api/v1/operations/preview", r#"{"filter":"queue:q"}"#).await;
    assert_eq!(preview["count"], 1);
    let start = |filter: &str| {
        let body =
            serde_json::json!({"filter": filter, "bound": preview["bound"], "token": preview["token"]});
        body.to_string()
    };
    let other = server.ask("POST", "/api/v1/operations", Some(&start("queue:*"))).await;
    assert!(other.status.is_client_error(), "{}", other.body);
    let started = server.ask("POST", "/api/v1/operations", Some(&start("queue:q"))).await;
    assert_eq!(started.status.as_u16(), 202, "{}", started.body);
    let id = started.body["id"].as_str().unwrap();
    let paused = server.post(&format!("/api/v1/operations/{id}/pause"), "{}").await;
    assert_eq!(paused["stage"], "paused");
}

#[tokio::test]
async fn an_edit_names_the_version_it_was_made_for() {
    let server = Server::start().await;
    server.ask("PATCH", "/api/v1/queues/q", Some(r#"{"max_attempts":1}"#)).await;
    let sent = server.post("/api/v1/queues/q/messages", r#"{"payload":"old"}"#).await;
    let id = sent["id"].as_str().unwrap();
    let leased = server.post("/api/v1/queues/q/lease", "{}").await;
    let token = leased["items"][0]["token"].as_str().unwrap();
    server.post(&format!("/api/v1/deliveries/{token}/fail"), r#"{"error_type":"E"}"#).await;
    let etag = server.ask("GET", &format!("/api/v1/dlq/{id}"), None).await.headers["etag"].clone();
    let edit = |etag: &str, body: &'static str| {
        let path = format!("/api/v1/dlq/{id}/edit");
        let mut request = Server::request("POST", &path, &server.admin, Some(body));
        request.headers_mut().insert("if-match", etag.parse().unwrap());
        server.send(request)
    };
    let body = r#"{"payload":{"payload":"new","content_type":"text/plain"},"reason":"typo"}"#;
    let done = edit(etag.to_str().unwrap(), body).await;
    assert!(done.status.is_success(), "{}", done.body);
    let stale = edit(etag.to_str().unwrap(), body).await;
    assert_eq!((stale.status.as_u16(), stale.body["code"].as_str()), (412, Some("version_conflict")));
    assert_eq!(stale.body["actual"], done.body["version"]);
    let revisions = server.get(&format!("/api/v1/dlq/{id}/revisions")).await;
    assert_eq!(revisions["items"][0]["payload"], "old");
    assert_eq!(revisions["items"][1]["payload"], "new");
}
