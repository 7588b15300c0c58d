//! Bad input gets a problem with a stable code, and nothing is half done.

use super::{Config, Server};
use axum::body::Body;
use axum::http::Request;

#[tokio::test]
async fn every_mistake_has_its_code() {
    let server = Server::start().await;
    let send = "/api/v1/queues/q/messages";
    let deep = format!("{{\"payload\":\"x\",\"context\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let many = format!("{{\"messages\":[{}]}}", vec!["{\"payload\":\"\"}"; 10_001].join(","));
    for (method, path, body, status, code, says) in [
        ("POST", send, "{\"payload\":", 400, "bad_body", "ends too early"),
        ("POST", send, "[1]", 400, "bad_body", "not a JSON object"),
        (
            "POST",
            send,
            "{\"payload\":\"x\",\"priorty\":\"high\"}",
            400,
            "bad_body",
            "did you mean `priority`",
        ),
        ("POST", send, "{\"kind\":\"x\"}", 422, "invalid", "payload"),
        ("POST", send, "{\"payload\":\"x\",\"queue\":\"other\"}", 400, "two_queues", "other"),
        ("POST", send, &deep, 400, "too_deep", "64 levels"),
        ("POST", send, &many, 400, "bad_batch", "10000"),
        ("POST", send, "{\"messages\":[]}", 400, "bad_batch", ""),
        ("POST", "/api/v1/queues/a%2Fb/messages", "{\"payload\":\"x\"}", 400, "bad_path", "queue name"),
        ("POST", "/api/v1/queues/../messages", "{\"payload\":\"x\"}", 400, "bad_path", ""),
        ("POST", "/api/v1/queues/a%00b/messages", "{\"payload\":\"x\"}", 400, "bad_path", "queue name"),
        ("POST", "/api/v1/queues/a%0d%0ab/messages", "{\"payload\":\"x\"}", 400, "bad_path", "queue name"),
        ("POST", "/api/v1/queues/%ff/messages", "{\"payload\":\"x\"}", 400, "bad_path", ""),
        ("POST", "/api/v1//queues/q/messages", "{\"payload\":\"x\"}", 404, "no_such_route", ""),
        ("POST", "/api/v1/queues/%2e%2e/%2e%2e/messages", "{\"payload\":\"x\"}", 404, "no_such_route", ""),
        ("GET", "/api/v1/queues/nowhere", "", 404, "no_such_queue", "nowhere"),
        ("GET", "/api/v1/dlq?filter=statsu:pending", "", 400, "bad_filter", "status"),
        ("GET", "/api/v1/dlq?limit=5000", "", 422, "invalid", "limit"),
        ("GET", "/api/v1/dlq?limt=5", "", 400, "bad_query", "limit"),
        ("GET", "/api/v1/dlq?cursor=garbage", "", 422, "invalid", "cursor"),
        ("GET", "/api/v1/dlq/7", "", 400, "bad_path", "message id"),
        ("POST", "/api/v1/dlq/01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00/explode", "{}", 404, "no_such_route", ""),
        ("POST", "/api/v1/deliveries/zz/ack", "{}", 400, "bad_path", "lease token"),
        ("PATCH", "/api/v1/queues/q", "{\"max_attemps\":3}", 422, "invalid", "max_attempts"),
        ("GET", "/api/v1/nowhere", "", 404, "no_such_route", "/docs"),
        ("PUT", "/api/v1/groups", "{}", 405, "wrong_method", ""),
        ("POST", "/api/v1/tokens", "{\"name\":\"x\",\"roles\":[\"king\"]}", 400, "bad_body", "king"),
    ] {
        let reply = server.ask(method, path, (method != "GET").then_some(body)).await;
        let detail = reply.body["detail"].as_str().unwrap_or_default().to_owned();
        assert_eq!(
            (reply.status.as_u16(), reply.body["code"].as_str()),
            (status, Some(code)),
            "{method} {path}: {detail}"
        );
        let all = reply.body.to_string();
        assert!(all.contains(says), "{method} {path}: {all}");
        assert_eq!(reply.headers["content-type"], "application/problem+json", "{method} {path}");
    }
    assert!(server.get("/api/v1/messages").await["items"].as_array().unwrap().is_empty());
    assert!(server.get("/api/v1/queues").await["items"].as_array().unwrap().is_empty());
}

/// A message with a payload of this size.
fn message(bytes: usize) -> Vec<u8> {
    format!(r#"{{"payload":"{}"}}"#, "x".repeat(bytes)).into_bytes()
}

#[tokio::test]
async fn bodies_of_the_wrong_kind_are_refused() {
    let server = Server::start().await;
    let post = |headers: &[(&str, &str)], body: Vec<u8>| {
        let mut request =
            Request::builder().method("POST").uri("/api/v1/queues/q/messages").header("host", "localhost");
        request = request.header("authorization", format!("Bearer {}", server.admin));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        server.send(request.body(Body::from(body)).unwrap())
    };
    let json = ("content-type", "application/json");
    for (headers, body, status, code) in [
        (vec![("content-type", "text/plain")], b"{}".to_vec(), 415, "wrong_content_type"),
        (vec![], b"{}".to_vec(), 415, "wrong_content_type"),
        (vec![json, ("content-encoding", "gzip")], vec![0x1f, 0x8b], 415, "compressed_body"),
        (vec![json], b"{\"payload\":\"\xff\"}".to_vec(), 400, "bad_body"),
        (vec![json], vec![b' '; 17 * 1024 * 1024], 413, "body_too_large"),
        (vec![json], message(1024 * 1024), 413, "body_too_large"),
    ] {
        let reply = post(&headers, body).await;
        assert_eq!((reply.status.as_u16(), reply.body["code"].as_str()), (status, Some(code)), "{headers:?}");
    }
    assert_eq!(post(&[json], message(1000 * 1024)).await.status.as_u16(), 201);
    let (first, second) = (message(900 * 1024), message(900 * 1024));
    let batch = [b"{\"messages\":[", first.as_slice(), b",", &second, b"]}"].concat();
    let reply = post(&[json], batch).await;
    assert_eq!(reply.status.as_u16(), 200, "a batch may be larger than a message: {}", reply.body);
}

#[tokio::test]
async fn the_limits_of_bodies_can_be_set() {
    let config = Config { body_bytes_max: 2_000, batch_bytes_max: 4_000, ..Config::default() };
    let server = Server::with(config).await;
    let send = async |body: &[u8]| {
        let body = std::str::from_utf8(body).unwrap();
        server.ask("POST", "/api/v1/queues/q/messages", Some(body)).await
    };
    assert_eq!(send(&message(1_500)).await.status.as_u16(), 201);
    let refused = send(&message(2_500)).await;
    assert_eq!((refused.status.as_u16(), &refused.body["limit"]), (413, &2_000.into()));
    let batch = |each: usize| [b"{\"messages\":[", message(each).as_slice(), b"]}"].concat();
    assert_eq!(send(&batch(2_500)).await.status.as_u16(), 200);
    let refused = send(&batch(5_000)).await;
    assert_eq!((refused.status.as_u16(), &refused.body["limit"]), (413, &4_000.into()));
    let marker = format!(r#"{{"text":"{}"}}"#, "x".repeat(2_500));
    assert_eq!(server.ask("POST", "/api/v1/markers", Some(&marker)).await.status.as_u16(), 413);
}

#[tokio::test]
async fn a_call_of_another_version_is_refused_with_the_reason() {
    let server = Server::start().await;
    let body = r#"{"verb":"queues","with":{}}"#;
    for version in [None, Some("0"), Some("99"), Some("x")] {
        let mut request = Server::request("POST", "/api/v1/call", &server.admin, Some(body));
        if let Some(version) = version {
            request.headers_mut().insert("redrive-call-version", version.parse().unwrap());
        }
        let reply = server.send(request).await;
        assert_eq!((reply.status.as_u16(), reply.body["code"].as_str()), (409, Some("wrong_version")));
    }
}

#[tokio::test]
async fn a_token_that_has_expired_or_changed_is_no_token() {
    let server = Server::start().await;
    let body = r#"{"name":"short","roles":["viewer"],"expires_in":"1h"}"#;
    let made = server.post("/api/v1/tokens", body).await;
    let token = made["token"].as_str().unwrap().to_owned();
    server.clock.advance(redrive_core::time::Span::from_hours(2));
    let reply = server.send(Server::request("GET", "/api/v1/queues", &token, None)).await;
    assert_eq!((reply.status.as_u16(), reply.body["code"].as_str()), (401, Some("unauthenticated")));
    assert!(reply.body["detail"].as_str().unwrap().contains("expired"), "{}", reply.body);
    assert_eq!(reply.headers["www-authenticate"], "Bearer realm=\"redrive\"");
}

#[tokio::test]
async fn a_body_that_breaks_off_changes_nothing() {
    let server = Server::start().await;
    let parts: Vec<Result<&str, std::io::Error>> =
        vec![Ok("{\"payload\":\"x\"}"), Err(std::io::Error::other("the client is gone"))];
    let body = Body::from_stream(futures_util::stream::iter(parts));
    let mut request = Server::request("POST", "/api/v1/queues/q/messages", &server.admin, Some(""));
    *request.body_mut() = body;
    let reply = server.send(request).await;
    assert_eq!((reply.status.as_u16(), reply.body["code"].as_str()), (400, Some("body_cut_short")));
    assert!(server.get("/api/v1/messages").await["items"].as_array().unwrap().is_empty());
}
