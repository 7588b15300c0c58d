//! What holds for every request and reply: ids, limits, compression, methods.

use super::Server;
use axum::http::HeaderValue;
use redrive_server::Config;

#[tokio::test]
async fn every_reply_names_its_request() {
    let server = Server::start().await;
    let ask = async |id: Option<&[u8]>| {
        let mut request = Server::request("GET", "/api/v1/queues", &server.admin, None);
        if let Some(id) = id {
            request.headers_mut().insert("x-request-id", HeaderValue::from_bytes(id).unwrap());
        }
        server.send(request).await.headers["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(ask(Some(b"order-4411.7")).await, "order-4411.7");
    let long = [b'x'; 200];
    for bad in [None, Some(b"".as_slice()), Some(b"a b"), Some(b"<b>"), Some(b"\xff"), Some(&long)] {
        let made = ask(bad).await;
        assert!(made.len() == 16 && made.bytes().all(|b| b.is_ascii_hexdigit()), "{made}");
    }
    assert_ne!(ask(None).await, ask(None).await);
}

#[tokio::test]
async fn a_limit_says_how_much_is_left() {
    let server = Server::with(Config { rate_per_token: Some(2), ..Config::default() }).await;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let reply = server.ask("GET", "/api/v1/markers", None).await;
        let number = |name: &str| reply.headers[name].to_str().unwrap().parse::<u64>().unwrap();
        seen.push((reply.status.as_u16(), number("ratelimit-limit"), number("ratelimit-remaining")));
        if reply.status.as_u16() == 429 {
            assert_eq!((reply.headers["retry-after"].to_str().unwrap(), number("ratelimit-reset")), ("1", 1));
        }
    }
    // A slow machine may refill the bucket between two requests, but never hands out more than the limit says.
    assert!(seen.iter().all(|(status, limit, left)| *limit == 2 && *left < 2 && [200, 429].contains(status)));
    assert_eq!(seen[0].0, 200);
    let free = Server::start().await.ask("GET", "/api/v1/markers", None).await;
    assert!(!free.headers.contains_key("ratelimit-limit"));
}

#[tokio::test]
async fn large_replies_are_compressed_for_whoever_asks() {
    let server = Server::start().await;
    let ask = async |path: &str, accept: Option<&str>| {
        let mut request = Server::request("GET", path, &server.admin, None);
        if let Some(accept) = accept {
            request.headers_mut().insert("accept-encoding", accept.parse().unwrap());
        }
        let response = tower::ServiceExt::oneshot(server.router.clone(), request).await.unwrap();
        let (parts, body) = response.into_parts();
        (parts.headers, axum::body::to_bytes(body, usize::MAX).await.unwrap())
    };
    let (headers, plain) = ask("/openapi.json", None).await;
    assert!(!headers.contains_key("content-encoding"));
    let (headers, small) = ask("/openapi.json", Some("gzip")).await;
    assert_eq!(headers["content-encoding"], "gzip");
    assert!(headers["vary"].to_str().unwrap().to_ascii_lowercase().contains("accept-encoding"));
    assert!(
        small.starts_with(&[0x1f, 0x8b]) && small.len() * 5 < plain.len(),
        "{} of {}",
        small.len(),
        plain.len()
    );
    server.letter(r#"{"payload":"x"}"#).await;
    let (headers, export) = ask("/api/v1/dlq/export", Some("gzip")).await;
    assert_eq!(headers["content-encoding"], "gzip");
    assert!(export.starts_with(&[0x1f, 0x8b]));
    let (headers, _) = ask("/healthz", Some("gzip")).await;
    assert!(!headers.contains_key("content-encoding"), "too small to be worth it");
}

#[tokio::test]
async fn head_is_get_without_a_body() {
    let server = Server::start().await;
    let get = server.ask("GET", "/api/v1/queues", None).await;
    let head = server.ask("HEAD", "/api/v1/queues", None).await;
    assert_eq!((head.status, head.text.as_str()), (get.status, ""));
    assert_eq!(head.headers["content-type"], get.headers["content-type"]);
    let options = server.ask("OPTIONS", "/api/v1/queues", None).await;
    assert_eq!(options.headers["allow"], "GET,HEAD");
    assert!(!options.headers.contains_key("access-control-allow-origin"));
    let wrong = server.ask("PUT", "/api/v1/queues", Some("{}")).await;
    assert_eq!((wrong.status.as_u16(), wrong.headers["allow"].to_str().unwrap()), (405, "GET,HEAD"));
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let server = Server::start().await;
    let mut request = Server::request("GET", "/api/v1/queues", &server.admin, None);
    for n in 0..10_000 {
        let name = axum::http::HeaderName::from_bytes(format!("x-{n}").as_bytes()).unwrap();
        request.headers_mut().insert(name, "v".parse().unwrap());
    }
    let reply = server.send(request).await;
    assert_eq!((reply.status.as_u16(), reply.body["code"].as_str()), (431, Some("headers_too_large")));
    let mut request = Server::request("GET", "/api/v1/queues", &server.admin, None);
    request.headers_mut().insert("x-long", "v".repeat(20_000).parse().unwrap());
    assert_eq!(server.send(request).await.body["code"], "headers_too_large");
    let path = format!("/api/v1/dlq?filter={}", "x".repeat(20_000));
    let reply = server.ask("GET", &path, None).await;
    assert_eq!((reply.status.as_u16(), reply.body["code"].as_str()), (414, Some("uri_too_long")));
}
