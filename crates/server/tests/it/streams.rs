//! Streams of lines: sending, exporting and importing.

use super::Server;
use axum::body::{Body, Bytes};
use axum::http::Request;
use futures_util::{StreamExt as _, stream};
use redrive_core::access::Grant;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tower::ServiceExt as _;

const SEND: &str = "/api/v1/queues/q/messages";

fn request(path: &str, token: &str, body: Body) -> Request<Body> {
    let request = Request::builder().method("POST").uri(path).header("host", "localhost");
    let request = request.header("authorization", format!("Bearer {token}"));
    request.header("content-type", "application/x-ndjson").body(body).unwrap()
}

#[tokio::test]
async fn every_line_has_its_result_in_order() {
    let server = Server::start().await;
    let text =
        "{\"payload\":\"a\"}\n\n{\"payload\":\n{\"payload\":\"b\",\"queue\":\"other\"}\n{\"payload\":\"c\"}";
    let reply = server.send(request(SEND, &server.admin, Body::from(text))).await;
    assert_eq!(reply.status.as_u16(), 200);
    let lines = reply.lines();
    let numbers: Vec<u64> = lines.iter().map(|line| line["line"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 3, 4, 5]);
    let codes: Vec<Option<&str>> = lines.iter().map(|line| line["error"]["code"].as_str()).collect();
    assert_eq!(codes, [None, Some("bad_body"), Some("two_queues"), None]);
    let listed = server.get("/api/v1/messages").await;
    let ids: Vec<&serde_json::Value> = listed["items"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
    assert_eq!(ids, [&lines[0]["id"], &lines[3]["id"]]);
}

#[tokio::test]
async fn a_stream_that_is_sent_again_with_its_key_sends_nothing_twice() {
    let server = Server::start().await;
    let text: String = (0..1_200).map(|n| format!("{{\"payload\":\"{n}\"}}\n")).collect();
    let send = async |part: &str| {
        let mut request = request(SEND, &server.admin, Body::from(part.to_owned()));
        request.headers_mut().insert("idempotency-key", "nightly".parse().unwrap());
        server.send(request).await.lines()
    };
    let cut = text.lines().take(700).map(|line| format!("{line}\n")).collect::<String>();
    let first = send(&cut).await;
    let again = send(&text).await;
    assert_eq!((first.len(), again.len()), (700, 1_200));
    assert!(again[..700].iter().all(|line| line["duplicate"] == true));
    assert!(again[700..].iter().all(|line| line["duplicate"] == false));
    assert_eq!(server.get("/api/v1/queues/q").await["ready"], 1_200);
}

#[tokio::test]
async fn whoever_may_not_send_is_refused_before_the_stream() {
    let server = Server::start().await;
    let viewer = server.token(&[Grant::Viewer], &[]).await;
    let elsewhere = server.token(&[Grant::Producer], &["other"]).await;
    for token in [viewer, elsewhere] {
        for text in ["", "{\"payload\":\"x\"}\n"] {
            let reply = server.send(request(SEND, &token, Body::from(text))).await;
            assert_eq!((reply.status.as_u16(), reply.body["code"].as_str()), (403, Some("not_allowed")));
        }
    }
}

/// A body that counts how much of it was read.
fn counted(lines: usize, read: &Arc<AtomicUsize>) -> Body {
    let read = Arc::clone(read);
    let parts = stream::iter(0..lines).map(move |n| {
        read.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Infallible>(Bytes::from(format!("{{\"payload\":\"{n}\"}}\n")))
    });
    Body::from_stream(parts)
}

#[tokio::test]
async fn a_reader_that_stops_stops_its_own_stream() {
    let server = Server::start().await;
    let read = Arc::new(AtomicUsize::new(0));
    let request = request(SEND, &server.admin, counted(1_000_000, &read));
    let response = server.router.clone().oneshot(request).await.unwrap();
    assert_eq!(read.load(Ordering::SeqCst), 0, "nothing is read before somebody takes the answers");
    let mut body = response.into_body().into_data_stream();
    let first = body.next().await.unwrap().unwrap();
    assert!(!first.is_empty());
    let taken = read.load(Ordering::SeqCst);
    assert!(taken <= 1_000, "{taken} lines were read for one part of the answers");
    drop(body);
    let kept = server.get("/api/v1/queues/q").await["ready"].as_u64().unwrap();
    assert!((1..=1_000).contains(&kept), "{kept}");
}

#[tokio::test]
async fn a_stream_that_breaks_off_keeps_its_whole_lines() {
    let server = Server::start().await;
    let parts: Vec<Result<Bytes, std::io::Error>> = vec![
        Ok(Bytes::from("{\"payload\":\"a\"}\n{\"payl")),
        Err(std::io::Error::other("the client is gone")),
    ];
    let reply = server.send(request(SEND, &server.admin, Body::from_stream(stream::iter(parts)))).await;
    let lines = reply.lines();
    assert_eq!(lines[0]["line"], 1);
    assert_eq!(lines[1]["error"]["code"], "body_cut_short");
    assert_eq!(server.get("/api/v1/queues/q").await["ready"], 1);
}

#[tokio::test]
async fn an_export_is_masked_and_a_full_one_can_be_imported() {
    let server = Server::start().await;
    let id = server.letter(r#"{"payload":{"password":"hunter22"},"kind":"login"}"#).await;
    let masked = server.ask("GET", "/api/v1/dlq/export", None).await;
    assert_eq!(masked.headers["content-type"], "application/x-ndjson");
    assert!(masked.text.contains(&id) && !masked.text.contains("hunter22"));
    let full = server.ask("GET", "/api/v1/dlq/export?filter=kind%3Alogin&full=true&reason=move", None).await;
    assert!(full.text.contains("hunter22"));
    let audit = server.get("/api/v1/audit?act=reveal").await;
    assert_eq!(
        (audit["items"][0]["reason"].as_str(), audit["items"][0]["filter"].as_str()),
        (Some("move"), Some("kind:login"))
    );
    let other = Server::start().await;
    let import = "/api/v1/dlq/import";
    let text = format!("{}{}oops\n{}", full.text, masked.text, full.text);
    let reply = other.send(request(import, &other.admin, Body::from(text))).await;
    let codes: Vec<(u64, Option<String>)> = reply
        .lines()
        .iter()
        .map(|line| (line["line"].as_u64().unwrap(), line["error"]["code"].as_str().map(str::to_owned)))
        .collect();
    let wanted = [None, Some("invalid"), Some("bad_body"), Some("id_conflict")];
    let wanted: Vec<(u64, Option<String>)> =
        (1..).zip(wanted).map(|(n, code)| (n, code.map(str::to_owned))).collect();
    assert_eq!(codes, wanted, "{}", reply.text);
    let again = other.ask("GET", "/api/v1/dlq/export?full=true", None).await;
    assert_eq!(again.text, full.text);
    let json = other.ask("POST", import, Some("{}")).await;
    assert_eq!((json.status.as_u16(), json.body["code"].as_str()), (415, Some("wrong_content_type")));
}

#[tokio::test]
async fn an_export_of_many_letters_comes_whole() {
    let server = Server::start().await;
    server.ask("PATCH", "/api/v1/queues/q", Some(r#"{"max_attempts":1}"#)).await;
    let messages = vec![r#"{"payload":"x"}"#; 450].join(",");
    server.post(SEND, &format!("{{\"messages\":[{messages}]}}")).await;
    let leased = server.post("/api/v1/queues/q/lease", r#"{"max":1000}"#).await;
    let entries: Vec<String> = leased["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|delivery| format!(r#"{{"token":{},"fail":{{"error_type":"E"}}}}"#, delivery["token"]))
        .collect();
    server.post("/api/v1/deliveries/settle", &format!("{{\"settle\":[{}]}}", entries.join(","))).await;
    let export = server.ask("GET", "/api/v1/dlq/export?filter=queue%3Aq", None).await;
    assert_eq!(export.lines().len(), 450);
}
