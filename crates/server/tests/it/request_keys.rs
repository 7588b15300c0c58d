//! `Idempotency-Key` on acts, operations and configuration, and the list of workers.

use super::{Reply, Server};
use serde_json::json;

async fn ask(server: &Server, key: &str, method: &str, path: &str, body: Option<&str>) -> Reply {
    let mut request = Server::request(method, path, &server.admin, body);
    request.headers_mut().insert("idempotency-key", key.parse().unwrap());
    server.send(request).await
}

#[tokio::test]
async fn a_repeated_request_is_answered_and_not_repeated() {
    let server = Server::start().await;
    let mark = |body: &'static str| ask(&server, "deploy-7", "POST", "/api/v1/markers", Some(body));
    let first = mark(r#"{"text":"deploy 7"}"#).await;
    let again = mark(r#"{"text":"deploy 7"}"#).await;
    assert_eq!((first.status, &first.body), (again.status, &again.body));
    assert_eq!(server.get("/api/v1/markers").await["items"].as_array().unwrap().len(), 1);
    let other = mark(r#"{"text":"deploy 8"}"#).await;
    assert_eq!((other.status.as_u16(), other.body["code"].as_str()), (409, Some("key_conflict")));
    let elsewhere = ask(&server, "deploy-7", "POST", "/api/v1/queues/q/pause", Some("{}")).await;
    assert!(elsewhere.status.is_client_error(), "{}", elsewhere.body);
    let audit = server.get("/api/v1/audit").await;
    assert_eq!(audit["items"][0]["request"], "deploy-7");
    let rows = audit["items"].as_array().unwrap().iter();
    assert_eq!(rows.filter(|row| row["act"] == "mark").count(), 1);
}

#[tokio::test]
async fn acts_operations_and_policies_take_a_key() {
    let server = Server::start().await;
    let set = |body: &'static str| ask(&server, "set", "PATCH", "/api/v1/queues/q", Some(body));
    assert_eq!(set(r#"{"max_attempts":1}"#).await.status.as_u16(), 200);
    server.ask("PATCH", "/api/v1/queues/q", Some(r#"{"lease":"5m"}"#)).await;
    assert_eq!(set(r#"{"max_attempts":1}"#).await.status.as_u16(), 200, "the same change");
    assert_eq!(set(r#"{"max_attempts":2}"#).await.status.as_u16(), 409);
    let sent = server.post("/api/v1/queues/q/messages", r#"{"payload":"x"}"#).await;
    let id = sent["id"].as_str().unwrap();
    let leased = server.post("/api/v1/queues/q/lease", "{}").await;
    let token = leased["items"][0]["token"].as_str().unwrap();
    server.post(&format!("/api/v1/deliveries/{token}/fail"), r#"{"error_type":"E"}"#).await;
    let path = format!("/api/v1/dlq/{id}/review");
    let first = ask(&server, "act", "POST", &path, None).await;
    let again = ask(&server, "act", "POST", &path, None).await;
    assert_eq!((first.status.as_u16(), &first.body), (200, &again.body));
    let preview = server.post("/api/v1/operations/preview", r#"{"filter":"queue:q"}"#).await;
    let body = json!({"filter": "queue:q", "bound": preview["bound"], "token": preview["token"]}).to_string();
    let first = ask(&server, "start", "POST", "/api/v1/operations", Some(&body)).await;
    let again = ask(&server, "start", "POST", "/api/v1/operations", Some(&body)).await;
    assert_eq!((first.status.as_u16(), &first.body["id"]), (202, &again.body["id"]), "{}", first.body);
    assert_eq!(server.get("/api/v1/operations").await["items"].as_array().unwrap().len(), 1);
    let bad = ask(&server, "", "POST", &path, None).await;
    assert_eq!((bad.status.as_u16(), bad.body["code"].as_str()), (400, Some("bad_header")));
}

#[tokio::test]
async fn workers_are_listed_with_what_they_said_of_themselves() {
    let server = Server::start().await;
    server.post("/api/v1/queues/q/messages", r#"{"payload":"x"}"#).await;
    let body = r#"{"worker":"ada","version":"1.2","host":"web-1"}"#;
    let leased = server.post("/api/v1/queues/q/lease", body).await;
    let workers = server.get("/api/v1/workers").await;
    let ada = &workers["items"][0];
    assert_eq!(ada["worker"], "ada");
    assert_eq!(
        (&ada["version"], &ada["host"], &ada["queues"]),
        (&json!("1.2"), &json!("web-1"), &json!(["q"]))
    );
    assert_eq!((&ada["in_hand"], &ada["leases"][0]["id"]), (&json!(1), &leased["items"][0]["id"]));
    let token = leased["items"][0]["token"].as_str().unwrap();
    server.post(&format!("/api/v1/deliveries/{token}/ack"), "{}").await;
    let workers = server.get("/api/v1/workers").await;
    assert_eq!((&workers["items"][0]["in_hand"], &workers["items"][0]["done"]), (&json!(0), &json!(1)));
}
