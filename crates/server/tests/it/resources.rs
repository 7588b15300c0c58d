//! The resources of the API, one by one.

use super::Server;
use redrive_core::access::Grant;
use redrive_core::time::Span;

#[tokio::test]
async fn acts_on_several_letters_have_their_own_results() {
    let server = Server::start().await;
    let (a, b) = (server.letter(r#"{"payload":"a"}"#).await, server.letter(r#"{"payload":"b"}"#).await);
    let body = format!(
        r#"{{"acts":[
            {{"id":"{a}","act":"resolve","reason":"fixed"}},
            {{"id":"{b}","act":"retry","expected_version":99}},
            {{"id":"{b}","act":"labels","add":["late"]}}]}}"#
    );
    let done = server.post("/api/v1/dlq/acts", &body).await;
    assert_eq!(done["items"][0]["status"], "resolved");
    assert_eq!(done["items"][1]["error"]["code"], "version_conflict");
    assert_eq!(done["items"][2]["status"], "pending");
    assert_eq!(server.get(&format!("/api/v1/dlq/{b}")).await["labels"], serde_json::json!(["late"]));
    for (body, says) in [
        (r#"{"acts":[]}"#.to_owned(), "1 to 100"),
        (format!(r#"{{"acts":[{{"id":"{a}","act":"resolv"}}]}}"#), "`resolve`"),
        (format!(r#"{{"acts":[{{"id":"{a}","act":"erase"}}]}}"#), "operation"),
        (format!(r#"{{"acts":[{{"id":"{a}","act":"resolve","until":"2030-01-01T00:00:00Z"}}]}}"#), "until"),
        (r#"{"acts":[{"act":"resolve"}]}"#.to_owned(), "id"),
    ] {
        let reply = server.ask("POST", "/api/v1/dlq/acts", Some(&body)).await;
        assert_eq!(reply.status.as_u16(), 400, "{body}");
        assert!(reply.body["detail"].as_str().unwrap().contains(says), "{}", reply.body);
    }
}

#[tokio::test]
async fn a_consumer_leases_letters_and_says_what_it_did() {
    let server = Server::start().await;
    let id = server.letter(r#"{"payload":"a"}"#).await;
    let worker = server.token(&[Grant::Worker], &[]).await;
    let lease = async |token: &str| {
        let request = Server::request("POST", "/api/v1/dlqs/q-dlq/lease", token, Some(r#"{"worker":"c"}"#));
        server.send(request).await.body["items"][0].clone()
    };
    let settle = async |token: &str, entry: String| {
        let body = format!(r#"{{"settle":[{entry}]}}"#);
        server.send(Server::request("POST", "/api/v1/letter-deliveries/settle", token, Some(&body))).await
    };
    let leased = lease(&worker).await;
    assert_eq!((leased["id"].as_str(), leased["consumer"].as_str()), (Some(id.as_str()), Some("c")));
    let key = leased["token"].as_str().unwrap().to_owned();
    let extended = settle(&worker, format!(r#"{{"token":"{key}","extend":{{"by":"10m"}}}}"#)).await;
    assert_eq!(extended.body["items"][0]["status"], "pending");
    let refused = settle(&worker, format!(r#"{{"token":"{key}","act":{{"act":"resolve"}}}}"#)).await;
    assert_eq!(refused.status.as_u16(), 403, "a worker is no operator: {}", refused.body);
    let two = settle(&worker, format!(r#"{{"token":"{key}","release":{{}},"extend":{{}}}}"#)).await;
    assert_eq!(two.body["code"], "bad_batch");
    let released = settle(&worker, format!(r#"{{"token":"{key}","release":{{}}}}"#)).await;
    assert_eq!(released.body["items"][0]["status"], "pending");
    let both = server.token(&[Grant::Worker, Grant::Operator], &[]).await;
    let leased = lease(&both).await;
    let key = leased["token"].as_str().unwrap();
    let act = format!(r#"{{"token":"{key}","act":{{"act":"resolve","reason":"refunded"}}}}"#);
    assert_eq!(settle(&both, act.clone()).await.body["items"][0]["status"], "resolved");
    assert_eq!(settle(&both, act).await.body["items"][0]["error"]["code"], "stale_token");
    assert!(
        server.get(&format!("/api/v1/dlq/{id}")).await["resolution"].as_str().unwrap().contains("refunded")
    );
}

#[tokio::test]
async fn a_diff_shows_what_an_edit_changed_and_hides_secrets() {
    let server = Server::start().await;
    let id = server.letter(r#"{"payload":{"n":1.50,"password":"hunter22"}}"#).await;
    let edit = async |patch: &str| {
        let body = serde_json::json!({"patch": patch, "reason": "typo"}).to_string();
        server.post(&format!("/api/v1/dlq/{id}/patch"), &body).await
    };
    edit(r#"[{"op":"replace","path":"/n","value":2.50}]"#).await;
    let diff = server.get(&format!("/api/v1/dlq/{id}/diff")).await;
    let text = diff["diff"].as_str().unwrap();
    assert!(text.contains("-  \"n\": 1.50") && text.contains("+  \"n\": 2.50"), "{text}");
    assert!(!text.contains("hunter22"));
    assert_eq!(
        (&diff["from"]["n"], &diff["to"]["n"], &diff["to"]["reason"]),
        (&0.into(), &1.into(), &"typo".into())
    );
    edit(r#"[{"op":"replace","path":"/password","value":"hunter23"}]"#).await;
    let hidden = server.get(&format!("/api/v1/dlq/{id}/diff?from=1&to=2")).await;
    assert_eq!((&hidden["masked_only"], &hidden["diff"]), (&true.into(), &"".into()));
    let missing = server.ask("GET", &format!("/api/v1/dlq/{id}/diff?to=9"), None).await;
    assert_eq!((missing.status.as_u16(), missing.body["code"].as_str()), (404, Some("no_such_revision")));
}

#[tokio::test]
async fn groups_are_merged_and_labelled() {
    let server = Server::start().await;
    server.ask("PATCH", "/api/v1/queues/q", Some(r#"{"max_attempts":1}"#)).await;
    for error in ["Alpha", "Beta"] {
        server.post("/api/v1/queues/q/messages", r#"{"payload":"x"}"#).await;
        let leased = server.post("/api/v1/queues/q/lease", "{}").await;
        let token = leased["items"][0]["token"].as_str().unwrap();
        let body = format!(r#"{{"error_type":"{error}","message":"{error} broke in its own way"}}"#);
        server.post(&format!("/api/v1/deliveries/{token}/fail"), &body).await;
    }
    let groups = server.get("/api/v1/groups").await;
    let ids: Vec<&str> =
        groups["items"].as_array().unwrap().iter().map(|group| group["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 2);
    let body = serde_json::json!({"groups": ids, "reason": "one cause"}).to_string();
    let merged = server.post("/api/v1/groups/merge", &body).await;
    assert_eq!(merged["open"], 2);
    let id = merged["id"].as_str().unwrap();
    let path = format!("/api/v1/groups/{id}/label");
    server.post(&path, r#"{"category":"persistent"}"#).await;
    assert_eq!(server.get(&format!("/api/v1/groups/{id}")).await["outcomes"]["said"], "persistent");
    server.post(&path, "{}").await;
    assert!(server.get(&format!("/api/v1/groups/{id}")).await["outcomes"]["said"].is_null());
    let wrong = server.ask("POST", &path, Some(r#"{"category":"evil"}"#)).await;
    assert_eq!(wrong.body["code"], "bad_body");
}

#[tokio::test]
async fn the_audit_trail_is_filtered() {
    let server = Server::start().await;
    let id = server.letter(r#"{"payload":"a"}"#).await;
    server.post(&format!("/api/v1/dlq/{id}/notes"), r#"{"note":"one"}"#).await;
    server.clock.advance(Span::from_hours(5));
    server.post(&format!("/api/v1/dlq/{id}/resolve"), r#"{"reason":"two"}"#).await;
    let acts = async |query: &str| -> Vec<String> {
        let page = server.get(&format!("/api/v1/audit{query}")).await;
        page["items"].as_array().unwrap().iter().map(|row| row["act"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(acts("?act=note").await, ["note"]);
    assert_eq!(acts(&format!("?target={id}")).await, ["resolve", "note"]);
    assert_eq!(acts(&format!("?target={id}&since=2h")).await, ["resolve"]);
    assert_eq!(acts(&format!("?target={id}&until=2h")).await, ["note"]);
    assert!(acts("?by=nobody").await.is_empty());
    let wrong = server.ask("GET", "/api/v1/audit?since=yesterday", None).await;
    assert_eq!((wrong.status.as_u16(), wrong.body["code"].as_str()), (400, Some("bad_query")));
}

#[tokio::test]
async fn a_purge_needs_the_name_of_the_queue() {
    let server = Server::start().await;
    for _ in 0..3 {
        server.post("/api/v1/queues/q/messages", r#"{"payload":"x"}"#).await;
    }
    for body in ["", "{}", r#"{"confirm":"p"}"#, r#"{"confirm":true}"#] {
        let reply = server.ask("POST", "/api/v1/queues/q/purge", Some(body)).await;
        assert_eq!(reply.status.as_u16(), 400, "{body}");
    }
    let asked = server.ask("POST", "/api/v1/queues/q/purge", Some("{}")).await;
    assert_eq!(
        (asked.body["code"].as_str(), asked.body["waiting"].as_i64()),
        (Some("needs_confirmation"), Some(3))
    );
    let purged = server.post("/api/v1/queues/q/purge", r#"{"confirm":"q","reason":"test data"}"#).await;
    assert_eq!(purged["purged"], 3);
}

#[tokio::test]
async fn letters_and_messages_are_found_by_their_last_digits() {
    let server = Server::start().await;
    let id = server.letter(r#"{"payload":"a"}"#).await;
    let tail = &id[id.len() - 8..];
    assert_eq!(server.get(&format!("/api/v1/dlq/{tail}")).await["id"], id.as_str());
    server.post(&format!("/api/v1/dlq/{tail}/notes"), r#"{"note":"by its tail"}"#).await;
    let live = server.post("/api/v1/queues/q/messages", r#"{"payload":"x"}"#).await;
    let live = live["id"].as_str().unwrap();
    let tail = &live[live.len() - 12..];
    assert_eq!(server.get(&format!("/api/v1/messages/{tail}")).await["id"], live);
    for (path, status, code) in [
        ("/api/v1/dlq/ffffffffffff", 404, "no_such_letter"),
        ("/api/v1/messages/ffffffffffff", 404, "no_such_message"),
        ("/api/v1/dlq/fff", 400, "bad_path"),
        ("/api/v1/dlq/zzzz", 400, "bad_path"),
    ] {
        let reply = server.ask("GET", path, None).await;
        assert_eq!((reply.status.as_u16(), reply.body["code"].as_str()), (status, Some(code)), "{path}");
    }
}

#[tokio::test]
async fn keys_waiting_and_reports_can_be_looked_at() {
    let server = Server::start().await;
    let sent = server.post("/api/v1/queues/q/messages", r#"{"payload":"x","key":"order-1"}"#).await;
    assert_eq!(server.get("/api/v1/queues/q/keys/order-1").await["id"], sent["id"]);
    assert!(server.get("/api/v1/queues/q/keys/order-2").await["id"].is_null());
    server.post("/api/v1/queues/q/pause", r#"{"reason":"deploy"}"#).await;
    // The reference model keeps no index to count this from; a real store does.
    assert!(server.get("/api/v1/waiting").await["queues"].is_null());
    let report = server.get("/api/v1/stats/report").await;
    assert_eq!(report["queues"][0]["waiting"], 1);
    for part in ["time", "queues", "summary", "alerts"] {
        assert!(report.get(part).is_some(), "{part}");
    }
    let id = sent["id"].as_str().unwrap();
    let revealed = server.post(&format!("/api/v1/messages/{id}/reveal"), r#"{"reason":"ticket 7"}"#).await;
    assert_eq!(revealed["payload"], "x");
    assert_eq!(server.get("/api/v1/audit?act=reveal").await["items"][0]["reason"], "ticket 7");
}

/// Every kind of reply at least once, so that each is compared with the document.
#[tokio::test]
async fn every_list_and_detail_is_as_documented() {
    let server = Server::start().await;
    let id = server
        .letter(
            r#"{"payload":{"a":1},"kind":"k","tags":["t"],"headers":{"h":"v"},"context":{"x":[1]},
        "ordering_key":"o","reply_to":"answers","deadline":"2200-01-01T00:00:00Z"}"#,
        )
        .await;
    for act in ["review", "release", "quarantine", "release", "hold", "unhold", "abandon", "reopen"] {
        server.post(&format!("/api/v1/dlq/{id}/{act}"), r#"{"reason":"r"}"#).await;
    }
    let edit = (format!("/api/v1/dlq/{id}/edit"), r#"{"payload":{"payload":"{\"a\":2}"},"reason":"r"}"#);
    let blind = server.ask("POST", &edit.0, Some(edit.1)).await;
    assert_eq!((blind.status.as_u16(), blind.body["code"].as_str()), (428, Some("needs_version")));
    let etag = server.ask("GET", &format!("/api/v1/dlq/{id}"), None).await.headers["etag"].clone();
    let mut request = Server::request("POST", &edit.0, &server.admin, Some(edit.1));
    request.headers_mut().insert("if-match", etag);
    assert!(server.send(request).await.status.is_success());
    server.post(&format!("/api/v1/dlq/{id}/restore"), r#"{"n":0}"#).await;
    server.post(&format!("/api/v1/dlq/{id}/snooze"), r#"{"until":"2030-01-01T00:00:00Z"}"#).await;
    server.post(&format!("/api/v1/dlq/{id}/assign"), r#"{"to":"ada"}"#).await;
    server.ask("PUT", "/api/v1/queues/other", Some(r#"{"dlq":"other-dlq"}"#)).await;
    server.post(&format!("/api/v1/dlq/{id}/move"), r#"{"dlq":"other-dlq"}"#).await;
    server.post(&format!("/api/v1/dlq/{id}/retry"), r#"{"delay":"1h","priority":"high"}"#).await;
    server.get(&format!("/api/v1/messages/{id}")).await;
    server.post(&format!("/api/v1/dlq/{id}/pull-back"), "{}").await;
    server.post(&format!("/api/v1/dlq/{id}/resolve"), "{}").await;
    let purged = server.ask("DELETE", &format!("/api/v1/dlq/{id}"), None).await;
    assert!(purged.status.is_success(), "{}", purged.body);
    server.post(&format!("/api/v1/dlq/{id}/unpurge"), "{}").await;
    server.post(&format!("/api/v1/dlq/{id}/reopen"), "{}").await;
    let marker = server.ask("POST", "/api/v1/markers", Some(r#"{"text":"deploy 7"}"#)).await;
    assert_eq!(marker.status.as_u16(), 201);
    let policy = r#"{"max_attempts":3,"strategy":"by_category","backoff":{"initial":"2s","strategy":"list","delays":["1s","2s"]},
        "breaker":{"key":"kind"},"auto_redrive":{"limit":2,"backoff":"1h"},"ttl":"1h","open_ttl":"7d",
        "routes":{"network":"net-dlq"},"handling":{"timeout":"alert"},"max_messages":10,"max_bytes":1000,
        "search_payload":true,"target":{"type":"command","argv":["true"]}}"#;
    let put = server.ask("PUT", "/api/v1/queues/full", Some(policy)).await;
    assert!(put.status.is_success(), "{}", put.body);
    let group = server.get("/api/v1/groups").await["items"][0]["id"].as_str().unwrap().to_owned();
    for act in [
        r#"{"act":"acknowledge"}"#,
        r#"{"act":"ignore","count":3}"#,
        r#"{"act":"reopen"}"#,
        r#"{"act":"assign","to":"ada"}"#,
        r#"{"act":"note","text":"n"}"#,
        r#"{"act":"link","url":"https://example.com/1"}"#,
    ] {
        server.post(&format!("/api/v1/groups/{group}"), act).await;
    }
    let preview =
        server.post("/api/v1/operations/preview", r#"{"filter":"queue:q","pace":{"rate":5}}"#).await;
    let start = serde_json::json!({
        "filter": "queue:q", "bound": preview["bound"], "token": preview["token"],
        "pace": {"rate": 5, "canary": "1", "observe_ms": 1000, "ramp_ms": 1000}, "reason": "r",
    });
    let started = server.ask("POST", "/api/v1/operations", Some(&start.to_string())).await;
    let op = started.body["id"].as_str().unwrap().to_owned();
    server.post(&format!("/api/v1/operations/{op}/rate"), r#"{"rate":7}"#).await;
    server.post(&format!("/api/v1/operations/{op}/pause"), r#"{"reason":"look"}"#).await;
    for path in [
        "/api/v1/queues",
        "/api/v1/queues/full",
        "/api/v1/dlqs",
        "/api/v1/messages",
        "/api/v1/dlq",
        &format!("/api/v1/dlq/{id}"),
        &format!("/api/v1/dlq/{id}/timeline"),
        &format!("/api/v1/dlq/{id}/revisions"),
        "/api/v1/groups?sort=impact",
        &format!("/api/v1/groups/{group}"),
        "/api/v1/operations",
        &format!("/api/v1/operations/{op}"),
        &format!("/api/v1/operations/{op}/members"),
        "/api/v1/markers",
        "/api/v1/breakers",
        "/api/v1/stats",
        "/api/v1/stats/report",
        "/api/v1/audit",
        "/api/v1/audit/verify",
        "/api/v1/tokens",
        "/healthz",
        "/readyz",
    ] {
        server.get(path).await;
    }
    let breaker = server.post("/api/v1/breakers/full/k/open", r#"{"reason":"down"}"#).await;
    assert_eq!(breaker["forced"], true);
}
