//! Alerts over HTTP: what is shown, tested and silenced.

use super::Server;
use crate::dashboard::{Browser, text};
use redrive_core::access::Grant;
use redrive_core::alert::{
    ActiveAlert, AlertLevel, AlertRecord, AlertSettings, ChannelView, Notice, NoticeStatus, QUEUE,
    RECORD_KEY, Rule, kv,
};
use redrive_core::time::Time;

async fn with_record() -> Server {
    let server = Server::start().await;
    let active = ActiveAlert {
        rule: Rule::Depth,
        level: AlertLevel::Warning,
        subject: "payments".into(),
        text: "150 dead letters are open; ask ada@example.com".into(),
        since: Time::from_millis(1),
        told: Some(3),
        link: None,
    };
    let channel =
        ChannelView { name: "ops".into(), kind: "slack".into(), to: "https://hooks.example/…".into() };
    let notice = Notice {
        status: NoticeStatus::Cleared,
        rule: Rule::BreakerOpen,
        subject: "bank".into(),
        text: "it is over; ada@example.com knows".into(),
        link: Some("https://redrive.example/breakers".into()),
        ..Notice::test("ops", "ada", Time::from_millis(1), None)
    };
    let rules = AlertSettings::default().rule_views();
    let record = AlertRecord { active: vec![active], channels: vec![channel], told: vec![notice], rules };
    kv::write(server.store.as_ref(), RECORD_KEY, &record, 0).await.unwrap().unwrap();
    server
}

#[tokio::test]
async fn what_holds_is_shown_masked_to_those_who_may_see_all_queues() {
    let server = with_record().await;
    let viewer = server.token(&[Grant::MaskedViewer], &[]).await;
    let seen = server.send(Server::request("GET", "/api/v1/alerts", &viewer, None)).await.body;
    assert_eq!((&seen["active"][0]["rule"], &seen["channels"][0]["name"]), (&"depth".into(), &"ops".into()));
    let text = seen["active"][0]["text"].as_str().unwrap();
    assert!(text.contains("150") && !text.contains("ada@example.com"), "{text}");
    let limited = server.token(&[Grant::Admin], &["orders*"]).await;
    let refused = server.send(Server::request("GET", "/api/v1/alerts", &limited, None)).await;
    assert_eq!(refused.status.as_u16(), 403);
}

#[tokio::test]
async fn the_page_shows_what_was_told_and_the_rules() {
    let server = with_record().await;
    let page = Browser::admin(&server).await.page("/alerts").await;
    let told = text(&page, "#told");
    assert!(told.contains("Over") && told.contains("bank") && !told.contains("ada@example.com"), "{told}");
    assert!(
        page.contains("href=\"/breakers\">bank</a>"),
        "the link of a notice leads to a page of this server"
    );
    assert!(page.contains("a queue has 100 open letters"));
}

#[tokio::test]
async fn a_silence_begins_and_ends() {
    let server = with_record().await;
    let body = r#"{"name":"payments","for":"2h","reason":"deploy"}"#;
    let made = server.post("/api/v1/alerts/silence", body).await;
    assert_eq!((&made["subject"], &made["reason"]), (&"payments".into(), &"deploy".into()));
    assert_eq!(server.get("/api/v1/alerts").await["silenced"][0]["subject"], "payments");
    let ended = server.post("/api/v1/alerts/silence", r#"{"name":"payments"}"#).await;
    assert_eq!(ended["ended"], true);
    assert_eq!(server.get("/api/v1/alerts").await["silenced"].as_array().unwrap().len(), 0);
    let wrong = server.ask("POST", "/api/v1/alerts/silence", Some(r#"{"name":"","for":"2h"}"#)).await;
    assert_eq!(wrong.status.as_u16(), 422);
}

#[tokio::test]
async fn a_test_is_a_message_for_the_channel() {
    let server = with_record().await;
    let sent = server.ask("POST", "/api/v1/alerts/test", Some(r#"{"channel":"ops"}"#)).await;
    assert_eq!(sent.status.as_u16(), 202, "{}", sent.body);
    let id = sent.body["message"].as_str().unwrap();
    let message = server.get(&format!("/api/v1/messages/{id}")).await;
    assert_eq!((&message["queue"], &message["headers"]["redrive-channel"]), (&QUEUE.into(), &"ops".into()));
    let absent = server.ask("POST", "/api/v1/alerts/test", Some(r#"{"channel":"pager"}"#)).await;
    assert_eq!((absent.status.as_u16(), &absent.body["code"]), (404, &"no_such_channel".into()));
}

#[tokio::test]
async fn the_rules_and_the_report_are_those_of_the_configuration() {
    let settings = |limit| {
        let rules = serde_json::json!({"rules": {"depth": {"limit": limit}}});
        redrive_server::Config { alerts: serde_json::from_value(rules).unwrap(), ..Default::default() }
    };
    for (limit, alerts) in [(1, 1), (5, 0)] {
        let server = Server::with(settings(limit)).await;
        server.letter(r#"{"payload":"x"}"#).await;
        let report = server.get("/api/v1/stats/report").await;
        assert_eq!(report["alerts"].as_array().unwrap().len(), alerts, "{}", report["alerts"]);
        let rules = server.get("/api/v1/alerts").await["rules"].clone();
        assert_eq!((&rules[0]["rule"], &rules[0]["limit"]), (&"depth".into(), &f64::from(limit).into()));
    }
}
