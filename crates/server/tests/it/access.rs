//! Who may do what: every role on every route, with every kind of credential.

use super::Server;
use redrive_core::access::Grant;
use redrive_core::store::Role;
use redrive_server::{Route, routes};

/// A path with something plausible for every variable.
pub(super) fn concrete(path: &str) -> String {
    let id = match path {
        groups if groups.contains("/groups/") => "00000000000000ff",
        tokens if tokens.contains("/tokens/") => "0123456789ab",
        _ => "01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00",
    };
    path.replace("{queue}", "orders")
        .replace("{token}", &"ab".repeat(32))
        .replace("{id}", id)
        .replace("{dlq}", "orders-dlq")
        .replace("{control}", "pause")
        .replace("{key}", "k")
        .replace("{state}", "open")
}

/// The routes that need no credential: they show no data, or are how somebody gets or gives one up.
const OPEN: [&str; 6] =
    ["/api/v1/session", "/healthz", "/readyz", "/openapi.json", "/docs", "/docs/style.css"];

#[tokio::test]
async fn no_route_answers_without_a_credential() {
    let server = Server::start().await;
    let revoked = server.token(&[Grant::Admin], &[]).await;
    let tokens = server.get("/api/v1/tokens").await;
    let id = tokens["items"][1]["id"].as_str().unwrap().to_owned();
    assert!(server.ask("DELETE", &format!("/api/v1/tokens/{id}"), None).await.status.is_success());
    let mut forged = server.admin.clone();
    let last = if forged.pop() == Some('0') { '1' } else { '0' };
    forged.push(last);
    let mut count = 0;
    for Route { method, path, needs } in routes() {
        assert_eq!(OPEN.contains(&path), needs == "no token", "{path}");
        if OPEN.contains(&path) {
            continue;
        }
        let path = concrete(path);
        for token in ["", "nonsense", &forged, &revoked] {
            let reply = server.send(Server::request(method, &path, token, None)).await;
            let status = reply.status.as_u16();
            assert!(status == 401 || status == 429, "{method} {path}: {status}");
            count += 1;
        }
    }
    assert!(count > 250, "{count}");
}

/// Which routes each role may use at all. Everything else must answer 403.
fn allowed(grant: Grant, method: &str, path: &str) -> bool {
    let tasks = path.contains("/orchestration/");
    let exports = path.ends_with("/export");
    let reads = method == "GET" && !path.contains("/tokens") && !tasks && !exports;
    let sends = path.ends_with("/messages") && method == "POST";
    let works = path.ends_with("/lease") || path.contains("deliveries/");
    let admins = path.contains("/tokens")
        || tasks
        || path.ends_with("/purge")
        || path.ends_with("/import")
        || path.ends_with("/erase")
        || (path == "/api/v1/queues/{queue}" && method != "GET")
        || (path == "/api/v1/dlq/{id}" && method == "DELETE");
    let edits = ["/edit", "/patch", "/restore"].iter().any(|act| path.ends_with(act));
    let reveals = path.ends_with("/reveal");
    let operates = !reads && !sends && !works && !admins && !edits;
    match grant {
        Grant::MaskedViewer => reads,
        Grant::Viewer => reads || reveals,
        Grant::Producer => sends,
        Grant::Worker => works,
        Grant::Operator => reads || operates,
        Grant::Editor => reads || operates || edits,
        Grant::Admin => true,
    }
}

/// The words of the document for who may use a route.
fn documented(grant: Grant, needs: &str) -> bool {
    let role = |role: Role| grant.includes(role) && needs == role.to_string();
    let roles = [Role::Viewer, Role::Producer, Role::Worker, Role::Operator, Role::Editor, Role::Admin];
    roles.into_iter().any(role) || (needs == "viewer who may reveal" && grant.reveals())
}

/// Routes whose body decides about the role.
fn by_body(path: &str) -> bool {
    path == "/api/v1/letter-deliveries/settle"
}

/// A body that the route accepts.
fn body(path: &str) -> &'static str {
    match path {
        "/api/v1/queues/{queue}/messages" => r#"{"payload":"x"}"#,
        "/api/v1/deliveries/{token}/fail" => r#"{"error_type":"E"}"#,
        "/api/v1/operations/preview" => r#"{"filter":""}"#,
        "/api/v1/operations" => r#"{"filter":"","token":"t","bound":1}"#,
        "/api/v1/alerts/test" => r#"{"channel":"ops"}"#,
        "/api/v1/alerts/silence" => r#"{"name":"depth","for":"2h"}"#,
        "/api/v1/markers" => r#"{"text":"deploy"}"#,
        "/api/v1/tokens" => r#"{"name":"n","roles":["viewer"]}"#,
        "/api/v1/groups/{id}" => r#"{"act":"resolve"}"#,
        "/api/v1/groups/merge" => r#"{"groups":["00000000000000ff","00000000000000fe"]}"#,
        "/api/v1/dlq/acts" => r#"{"acts":[{"id":"01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00","act":"resolve"}]}"#,
        "/api/v1/letter-deliveries/settle" => {
            r#"{"settle":[{"token":"abababababababababababababababababababababababababababababababab","release":{}}]}"#
        }
        "/api/v1/dlq/{id}/notes" => r#"{"note":"n"}"#,
        "/api/v1/dlq/{id}/move" => r#"{"dlq":"orders-dlq"}"#,
        "/api/v1/dlq/{id}/snooze" => r#"{"until":"2030-01-01T00:00:00Z"}"#,
        "/api/v1/dlq/{id}/edit" => r#"{"headers":{}}"#,
        "/api/v1/dlq/{id}/patch" => r#"{"patch":"[{\"op\":\"remove\",\"path\":\"/a\"}]"}"#,
        "/api/v1/dlq/{id}/restore" => r#"{"n":0}"#,
        "/api/v1/queues/{queue}/purge" => r#"{"confirm":"orders"}"#,
        "/api/v1/deliveries/settle" => {
            r#"{"settle":[{"token":"abababababababababababababababababababababababababababababababab","ack":{}}]}"#
        }
        _ => "{}",
    }
}

#[tokio::test]
async fn every_role_reaches_exactly_its_routes() {
    let server = Server::start().await;
    for grant in Grant::ALL {
        let token = server.token(&[*grant], &[]).await;
        for Route { method, path, needs } in routes() {
            if OPEN.contains(&path) || path == "/api/v1/call" {
                continue;
            }
            let body = (method != "GET").then(|| body(path));
            let reply = server.send(Server::request(method, &concrete(path), &token, body)).await;
            let refused = reply.status.as_u16() == 403;
            // A letter that is not there is noticed before the right to reveal it is needed.
            let missing = path.ends_with("/reveal") && reply.status.as_u16() == 404;
            let what = format!("{grant} {method} {path}: {} {}", reply.status, reply.body);
            assert_eq!(!refused, allowed(*grant, method, path) || missing, "{what}");
            assert!(missing || by_body(path) || documented(*grant, &needs) != refused, "{what}");
            assert!(!reply.status.is_server_error(), "{what}");
        }
    }
}

#[tokio::test]
async fn a_token_for_some_queues_reaches_no_others() {
    let server = Server::start().await;
    let token = server.token(&[Grant::Admin], &["payments*"]).await;
    for (queue, status) in [("payments", 201), ("payments-eu", 201), ("orders", 403)] {
        let path = format!("/api/v1/queues/{queue}/messages");
        let reply = server.send(Server::request("POST", &path, &token, Some(r#"{"payload":"x"}"#))).await;
        assert_eq!(reply.status.as_u16(), status, "{queue}: {}", reply.body);
    }
    server.post("/api/v1/queues/orders/messages", r#"{"payload":"theirs"}"#).await;
    let listed = server.send(Server::request("GET", "/api/v1/messages", &token, None)).await;
    assert_eq!(listed.body["items"].as_array().unwrap().len(), 2);
    let all = server.get("/api/v1/messages?filter=queue%3Aorders").await;
    let theirs = all["items"][0]["id"].as_str().unwrap();
    let reply =
        server.send(Server::request("GET", &format!("/api/v1/messages/{theirs}"), &token, None)).await;
    assert_eq!(reply.status.as_u16(), 403);
}

#[tokio::test]
async fn a_live_message_is_revealed_to_a_token_for_its_queue_only() {
    let server = Server::start().await;
    for (queue, status) in [("payments", 200), ("orders", 403)] {
        let path = format!("/api/v1/queues/{queue}/messages");
        let sent = server.post(&path, r#"{"payload":{"password":"hunter22"}}"#).await;
        let token = server.token(&[Grant::Viewer], &["payments*"]).await;
        let path = format!("/api/v1/messages/{}/reveal", sent["id"].as_str().unwrap());
        let reply = server.send(Server::request("POST", &path, &token, Some("{}"))).await;
        assert_eq!(reply.status.as_u16(), status, "{queue}: {}", reply.body);
        assert_eq!(reply.body.to_string().contains("hunter22"), status == 200);
    }
    let audit = server.get("/api/v1/audit?act=reveal").await;
    assert_eq!(audit["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn what_leaves_the_server_is_masked_until_it_is_revealed() {
    let server = Server::start().await;
    server.ask("PATCH", "/api/v1/queues/q", Some(r#"{"max_attempts":1}"#)).await;
    let sent = server.post("/api/v1/queues/q/messages", r#"{"payload":{"password":"hunter22"}}"#).await;
    let id = sent["id"].as_str().unwrap();
    let leased = server.post("/api/v1/queues/q/lease", "{}").await;
    assert!(leased.to_string().contains("hunter22"), "a worker needs the payload");
    let token = leased["items"][0]["token"].as_str().unwrap();
    server.post(&format!("/api/v1/deliveries/{token}/fail"), r#"{"error_type":"E"}"#).await;
    for path in ["/api/v1/dlq", &format!("/api/v1/dlq/{id}"), &format!("/api/v1/dlq/{id}/revisions")] {
        assert!(!server.get(path).await.to_string().contains("hunter22"), "{path}");
    }
    let call = format!(r#"{{"verb":"letter","with":{{"id":"{id}"}}}}"#);
    let call = async || {
        let mut request = Server::request("POST", "/api/v1/call", &server.admin, Some(&call));
        request.headers_mut().insert("redrive-call-version", "1".parse().unwrap());
        server.send(request).await.body.to_string()
    };
    assert!(!call().await.contains("hunter22"));
    let masked = server.token(&[Grant::MaskedViewer], &[]).await;
    let path = format!("/api/v1/dlq/{id}/reveal");
    let refused = server.send(Server::request("POST", &path, &masked, Some("{}"))).await;
    assert_eq!(refused.status.as_u16(), 403);
    assert!(server.post(&path, r#"{"reason":"ticket 7"}"#).await.to_string().contains("hunter22"));
    let audit = server.get("/api/v1/audit").await;
    assert_eq!(
        (audit["items"][0]["act"].as_str(), audit["items"][0]["reason"].as_str()),
        (Some("reveal"), Some("ticket 7"))
    );
}

#[tokio::test]
async fn a_session_is_as_good_as_its_token_and_ends() {
    let server = Server::start().await;
    let login = format!(r#"{{"token":"{}"}}"#, server.admin);
    let reply = server.send(Server::request("POST", "/api/v1/session", "", Some(&login))).await;
    assert!(reply.status.is_success(), "{}", reply.body);
    let cookie = reply.headers["set-cookie"].to_str().unwrap();
    for wanted in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(wanted), "{cookie}");
    }
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let ask = async |method: &str, path: &str| {
        let mut request = Server::request(method, path, "", None);
        request.headers_mut().insert("cookie", cookie.parse().unwrap());
        server.send(request).await.status.as_u16()
    };
    assert_eq!(ask("GET", "/api/v1/queues").await, 200);
    assert_eq!(ask("DELETE", "/api/v1/session").await, 204);
    assert_eq!(ask("GET", "/api/v1/queues").await, 401);
}

#[tokio::test]
async fn other_sites_and_other_hosts_are_kept_out() {
    let server = Server::start().await;
    for (name, value, code) in [
        ("host", "evil.example", "wrong_host"),
        ("sec-fetch-site", "cross-site", "cross_site"),
        ("origin", "https://evil.example", "cross_site"),
    ] {
        let mut request =
            Server::request("POST", "/api/v1/queues/q/messages", &server.admin, Some(r#"{"payload":"x"}"#));
        request.headers_mut().insert(name, value.parse().unwrap());
        let reply = server.send(request).await;
        assert_eq!(reply.body["code"], code);
        assert!(reply.headers.contains_key("content-security-policy"));
        assert!(!reply.headers.contains_key("access-control-allow-origin"));
    }
    assert!(server.get("/api/v1/messages").await["items"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn no_route_that_changes_something_takes_a_request_of_another_site() {
    let server = Server::start().await;
    let forged: [&[(&str, &str)]; 8] = [
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
        &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")],
        &[("sec-fetch-site", "nonsense")],
        &[("origin", "null")],
        &[("origin", "https://evil.example")],
        &[("origin", "http://localhost.evil.example")],
        &[("origin", "http://localhost:81"), ("sec-fetch-site", "same-origin")],
    ];
    let mut count = 0;
    for Route { method, path, .. } in routes().into_iter().filter(|route| route.method != "GET") {
        for headers in forged {
            for kind in ["application/json", "text/plain", "application/x-www-form-urlencoded"] {
                let mut request = Server::request(method, &concrete(path), &server.admin, Some(body(path)));
                request.headers_mut().insert("content-type", kind.parse().unwrap());
                for (name, value) in headers {
                    request.headers_mut().insert(*name, value.parse().unwrap());
                }
                let reply = server.send(request).await;
                let (status, code) = (reply.status.as_u16(), reply.body["code"].as_str());
                assert_eq!((status, code), (403, Some("cross_site")), "{method} {path} {headers:?}");
                count += 1;
            }
        }
    }
    assert!(count > 1_200, "{count}");
}

#[tokio::test]
async fn whoever_guesses_tokens_does_not_lock_others_out() {
    let server = Server::start().await;
    let guess = |n: u32| format!("rdt_0123456789ab_{n:064x}");
    let mut slowed = 0;
    for n in 0..20 {
        let reply = server.send(Server::request("GET", "/api/v1/queues", &guess(n), None)).await;
        slowed += u32::from(reply.status.as_u16() == 429);
    }
    assert!(slowed >= 10, "{slowed}");
    let honest = server.token(&[Grant::Viewer], &[]).await;
    let reply = server.send(Server::request("GET", "/api/v1/queues", &honest, None)).await;
    assert_eq!(reply.status.as_u16(), 200, "{}", reply.body);
}
