//! Nonsense on every route: whatever comes in, the answer is a documented one and never a failure of the server. The
//! seed is fixed; a longer run is a matter of the count.

use super::Server;
use super::access::concrete;
use axum::body::Body;
use axum::http::Request;
use redrive_server::{Route, routes};

/// A small generator of numbers that are the same in every run.
struct Rng(u64);

impl Rng {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

const BODIES: &[&str] = &[
    "",
    "{}",
    "[]",
    "null",
    "0",
    "\"x\"",
    "{",
    "{\"a\":",
    "{\"payload\":\"x\"}",
    "{\"filter\":\"((\"}",
    "{\"reason\":null}",
    "{\"reason\":7}",
    "{\"until\":\"soon\"}",
    "{\"until\":\"9999-12-31T23:59:59Z\"}",
    "{\"act\":{\"act\":\"retry\"}}",
    "{\"act\":\"resolve\"}",
    "{\"settle\":[]}",
    "{\"settle\":[{}]}",
    "{\"acts\":[{\"id\":\"x\"}]}",
    "{\"groups\":[]}",
    "{\"max\":0}",
    "{\"max\":18446744073709551616}",
    "{\"max\":-1}",
    "{\"lease\":\"99999999999d\"}",
    "{\"delay\":1e308}",
    "{\"name\":\"\",\"roles\":[]}",
    "{\"token\":\"\"}",
    "{\"a\":1,\"a\":2}",
    "{\"\\ud800\":1}",
    "{\"messages\":[{\"payload\":null}]}",
    "{\"max_attempts\":0}",
    "{\"backoff\":{\"initial\":\"-1s\"}}",
    "{\"dlq\":\"q\"}",
    "{\"text\":\"\\u0000\"}",
    "{\"patch\":\"[\"}",
    "{\"n\":4294967295}",
    "{\"verb\":\"queues\",\"with\":{}}",
    "\u{feff}{}",
    "{\"x\":NaN}",
];

const QUERIES: &[&str] = &[
    "",
    "limit=0",
    "limit=-1",
    "limit=1",
    "limit=99999999999999999999",
    "cursor=",
    "cursor=x",
    "cursor=d.1",
    "cursor=a.ffffffffffffffffffff",
    "filter=(",
    "filter=%00",
    "filter=queue%3A%22",
    "filter=age%3E2h",
    "since=x",
    "since=2h",
    "until=0",
    "status=new",
    "status=x",
    "sort=impact",
    "text=%ff",
    "from=9",
    "to=-1",
    "full=maybe",
    "full=true",
    "head=x",
    "taskType=%22",
    "limit=1&limit=2",
    "a=b",
    "%",
    "=&=&",
    "filter=payload.a.b%3A1",
];

fn odd_path(rng: &mut Rng, path: &str) -> String {
    let odd = [
        "..",
        "%2e%2e",
        "%00",
        "%2F",
        "a%0d%0ab",
        "%ff",
        "",
        "x",
        "0000",
        "ffffffffffff",
        "%F0%9F%92%A9",
        "-",
        "CON",
    ];
    let pick = |rng: &mut Rng| odd[usize::try_from(rng.below(odd.len() as u64)).unwrap()].to_owned();
    let parts = path.split('/').map(|part| {
        if part.starts_with('{') && rng.below(2) == 0 { pick(rng) } else { concrete_part(part, path) }
    });
    parts.collect::<Vec<_>>().join("/")
}

fn concrete_part(part: &str, path: &str) -> String {
    if part.starts_with('{') {
        // The ids of some paths have other forms, so the whole path is asked.
        let whole = concrete(path);
        let at = path.split('/').position(|known| known == part).unwrap();
        return whole.split('/').nth(at).unwrap().to_owned();
    }
    part.to_owned()
}

#[tokio::test]
async fn nonsense_is_answered_and_changes_nothing_it_should_not() {
    let server = Server::start().await;
    server.letter(r#"{"payload":{"a":1},"kind":"k"}"#).await;
    let mut rng = Rng::new(14);
    let kinds = ["application/json", "application/x-ndjson", "text/plain", "application/json; charset=utf-8"];
    let mut count = 0;
    for round in 0..12 {
        for Route { method, path, .. } in routes() {
            let pick = |rng: &mut Rng, all: &[&str]| {
                all[usize::try_from(rng.below(all.len() as u64)).unwrap()].to_owned()
            };
            let query = pick(&mut rng, QUERIES);
            let path = if round % 2 == 0 { concrete(path) } else { odd_path(&mut rng, path) };
            // Logging in with nonsense slows everybody down, which is another test.
            if path == "/api/v1/session" {
                continue;
            }
            let uri = if query.is_empty() { path.clone() } else { format!("{path}?{query}") };
            let Ok(uri) = uri.parse::<axum::http::Uri>() else { continue };
            let request = Request::builder().method(method).uri(uri).header("host", "localhost");
            let request = request.header("authorization", format!("Bearer {}", server.admin));
            let request = request.header("content-type", pick(&mut rng, &kinds));
            let body = if method == "GET" { String::new() } else { pick(&mut rng, BODIES) };
            let reply = server.send(request.body(Body::from(body.clone())).unwrap()).await;
            assert!(!reply.status.is_server_error(), "{method} {path}?{query} {body}: {}", reply.text);
            count += 1;
        }
    }
    assert!(count > 800, "{count}");
    assert!(
        server.store.verify(redrive_core::store::VerifyRequest::default()).await.unwrap().findings.is_empty()
    );
}

/// Cursors, preview tokens and lease tokens that somebody has changed are never taken for the right ones.
#[tokio::test]
async fn changed_tokens_and_cursors_are_refused() {
    let server = Server::start().await;
    server.letter(r#"{"payload":"x"}"#).await;
    let preview = server.post("/api/v1/operations/preview", r#"{"filter":"queue:q"}"#).await;
    let right = preview["token"].as_str().unwrap();
    server.post("/api/v1/queues/q/messages", r#"{"payload":"y"}"#).await;
    let leased = server.post("/api/v1/queues/q/lease", "{}").await;
    let lease = leased["items"][0]["token"].as_str().unwrap();
    let changed = |text: &str, at: usize, bit: u8| {
        let mut bytes = text.as_bytes().to_vec();
        bytes[at] ^= 1 << bit;
        String::from_utf8(bytes).ok().filter(|t| t.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
    };
    let mut count = 0;
    for bit in 0..7 {
        for forged in (0..right.len()).filter_map(|at| changed(right, at, bit)) {
            let body = serde_json::json!({"filter": "queue:q", "bound": preview["bound"], "token": forged});
            let reply = server.ask("POST", "/api/v1/operations", Some(&body.to_string())).await;
            assert!(reply.status.is_client_error(), "{forged}: {}", reply.body);
            count += 1;
        }
        for forged in (0..lease.len()).filter_map(|at| changed(lease, at, bit)) {
            // Upper case digits are the same number.
            if forged.eq_ignore_ascii_case(lease) {
                continue;
            }
            let reply = server.ask("POST", &format!("/api/v1/deliveries/{forged}/ack"), Some("{}")).await;
            assert!(reply.status.is_client_error(), "{forged}: {}", reply.body);
            count += 1;
        }
    }
    assert!(count > 300, "{count}");
    for cut in 0..lease.len() {
        let reply =
            server.ask("POST", &format!("/api/v1/deliveries/{}/ack", &lease[..cut]), Some("{}")).await;
        assert!(reply.status.is_client_error(), "{cut}");
    }
    for path in ["/api/v1/dlq", "/api/v1/messages", "/api/v1/audit", "/api/v1/markers", "/api/v1/groups"] {
        for cursor in ["x", "d.", "d.zz", "z.1", "%00", "d.1.1", "-1", "d.-1"] {
            let reply = server.ask("GET", &format!("{path}?cursor={cursor}"), None).await;
            assert!(!reply.status.is_server_error(), "{path} {cursor}: {}", reply.text);
        }
    }
    let done = server.post(&format!("/api/v1/deliveries/{lease}/ack"), "{}").await;
    assert_eq!(done["state"], "done", "the right one still works");
}
