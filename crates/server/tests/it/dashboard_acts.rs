//! Everything a person does in the dashboard, by its links and forms alone.

use super::Server;
use super::dashboard::{Browser, Office, count, start, text};
use redrive_core::access::Grant;
use redrive_core::ids::{MessageId, OperationId};

/// Lets an operation go on until it is over or waits.
async fn drive(server: &Server, place: &str) {
    let id: MessageId = place.rsplit('/').next().unwrap().parse().unwrap();
    let id = OperationId::new(id);
    while server.store.operation(id).await.unwrap().stage.is_moving() {
        server.store.step(id).await.unwrap();
    }
}

#[tokio::test]
async fn a_letter_is_retried_resolved_opened_again_and_abandoned() {
    let office = Office::open().await;
    let mut browser = Browser::with(&office.server, &[Grant::Operator], &[]).await;
    let path = format!("/dlq/{}", office.letter);
    let page = browser.page(&path).await;
    assert!(text(&page, "#story b").starts_with("It died because its only attempt failed."));
    let status = async |browser: &mut Browser<'_>| text(&browser.page(&path).await, "#file .pill");
    assert_eq!(browser.submit(&path, &[("act", "resolve"), ("reason", "done by hand")]).await, path);
    assert_eq!(status(&mut browser).await, "Resolved");
    browser.submit(&path, &[("act", "reopen")]).await;
    browser.submit(&path, &[("act", "assign"), ("to", "lin")]).await;
    browser.submit(&path, &[("act", "note"), ("reason", "asked the bank")]).await;
    let page = browser.page(&path).await;
    assert!(page.contains("asked the bank") && text(&page, "#file").contains("lin"));
    browser.submit(&path, &[("act", "abandon"), ("reason", "too old")]).await;
    assert_eq!(status(&mut browser).await, "Abandoned");
    let refused = browser.post(&path, &[("act", "retry")]).await;
    assert_eq!(refused.status.as_u16(), 409);
    assert!(text(&refused.text, "main").contains("reopen it first"), "{}", refused.text);
    let page = browser.page(&path).await;
    assert_eq!(count(&page, "button[value=retry]"), 0, "what is not legal is not offered");
    browser.submit(&path, &[("act", "reopen")]).await;
    browser.submit(&path, &[("act", "retry"), ("delay", "30m"), ("priority", "high")]).await;
    assert_eq!(status(&mut browser).await, "Retrying");
    browser.submit(&path, &[("act", "pull-back")]).await;
    assert_eq!(status(&mut browser).await, "Pending");
    let purge = browser.post(&path, &[("act", "purge")]).await;
    assert_eq!(purge.status.as_u16(), 403, "an operator does not purge");
}

#[tokio::test]
async fn an_act_for_another_version_changes_nothing() {
    let office = Office::open().await;
    let mut browser = Browser::admin(&office.server).await;
    let path = format!("/dlq/{}", office.letter);
    browser.submit(&path, &[("act", "note"), ("reason", "first")]).await;
    let stale = browser.post(&path, &[("act", "resolve"), ("reason", "second"), ("version", "1")]).await;
    assert_eq!(stale.status.as_u16(), 412);
    assert_ne!(text(&browser.page(&path).await, "#file .pill"), "Resolved");
}

#[tokio::test]
async fn a_group_is_sent_back_seen_to_succeed_and_proved_in_the_audit() {
    let office = Office::open().await;
    let server = &office.server;
    let mut browser = Browser::with(server, &[Grant::Operator], &[]).await;
    let group = format!("/groups/{}", office.group);
    browser.submit(&group, &[("act", "acknowledge")]).await;
    browser.submit(&group, &[("act", "assign"), ("to", "ada")]).await;
    browser.submit(&group, &[("act", "note"), ("text", "the bank is down")]).await;
    let page = browser.page(&group).await;
    assert!(page.contains("the bank is down") && text(&page, "#story").contains("Acknowledged"));
    let canary = count(&page, "a.primary[href^='/act?act=retry']");
    assert_eq!(canary, 1, "one primary button");
    let place = start(&mut browser, "retry", &format!("group:{}", office.group)).await;
    drive(server, &place).await;
    assert!(text(&browser.page(&place).await, "#progress").contains("1 under way"));
    let leased = server.post("/api/v1/queues/q/lease", "{}").await;
    let token = leased["items"][0]["token"].as_str().unwrap();
    server.post(&format!("/api/v1/deliveries/{token}/ack"), "{}").await;
    let page = browser.page(&place).await;
    assert!(text(&page, "#progress").contains("1 succeeded"), "{}", text(&page, "#progress"));
    assert!(text(&browser.page(&group).await, "#story").contains("Its cause is gone"));
    assert!(browser.page("/operations").await.contains("1 ok"));
    let audit = browser.page("/audit?verify=1").await;
    assert!(text(&audit, "[role=status]").starts_with("Whole."));
    assert!(audit.contains("“because”"), "the reason is there");
}

#[tokio::test]
async fn a_bulk_act_is_undone() {
    let office = Office::open().await;
    let mut browser = Browser::admin(&office.server).await;
    let path = format!("/dlq/{}", office.letter);
    let place = start(&mut browser, "abandon", "").await;
    drive(&office.server, &place).await;
    assert_eq!(text(&browser.page(&path).await, "#file .pill"), "Abandoned");
    assert_eq!(browser.submit(&place, &[("control", "undo")]).await, place);
    drive(&office.server, &place).await;
    assert_eq!(text(&browser.page(&path).await, "#file .pill"), "Pending");
    assert!(text(&browser.page(&place).await, "#progress").contains("1 undone"));
}

#[tokio::test]
async fn an_operation_is_paused_given_another_rate_and_cancelled() {
    let office = Office::open().await;
    let mut browser = Browser::admin(&office.server).await;
    let place = start(&mut browser, "retry", &format!("id:{}", office.letter)).await;
    browser.submit(&place, &[("control", "pause"), ("reason", "lunch")]).await;
    let page = browser.page(&place).await;
    assert!(text(&page, "[role=status]").contains("lunch"));
    assert_eq!(count(&page, "button[value=resume]"), 1);
    browser.submit(&place, &[("control", "rate"), ("rate", "7")]).await;
    assert!(browser.page(&place).await.contains("7/s"));
    browser.submit(&place, &[("control", "cancel")]).await;
    assert!(text(&browser.page(&place).await, "#members header").contains("Cancelled"));
    let refused = browser.post(&place, &[("control", "explode")]).await;
    assert_eq!(refused.status.as_u16(), 400);
}

#[tokio::test]
async fn nothing_is_started_that_was_not_previewed() {
    let office = Office::open().await;
    let mut browser = Browser::admin(&office.server).await;
    let forged = [
        ("filter", ""),
        ("act_json", r#"{"act":"purge"}"#),
        ("token", "x"),
        ("bound", "99"),
        ("operation", office.letter.as_str()),
    ];
    let reply = browser.post("/act", &forged).await;
    assert!(reply.status.is_client_error(), "{}", reply.status);
    let none = browser.page("/act?act=release&filter=queue%3Anobody").await;
    assert_eq!(text(&none, ".empty h2"), "Nothing to do");
    let wrong = browser.get("/act?act=retry&filter=statsu%3Apending").await;
    assert_eq!(wrong.status.as_u16(), 400);
    let page = browser.get("/dlq?filter=statsu%3Apending").await;
    assert_eq!(page.status.as_u16(), 400);
    assert_eq!(text(&page.text, ".caret"), "statsu");
    assert!(text(&page.text, "#mistake").contains("Did you mean status?"));
    assert_eq!(count(&page.text, "button[name=filter][value='status:pending']"), 1);
}

#[tokio::test]
async fn a_payload_is_edited_with_its_differences_shown_first() {
    let office = Office::open().await;
    let mut browser = Browser::with(&office.server, &[Grant::Editor], &[]).await;
    let path = format!("/dlq/{}", office.letter);
    let edit = format!("{path}/edit");
    let page = browser.page(&edit).await;
    assert_eq!(count(&page, "textarea"), 0, "it holds a password, so it asks for a reason first");
    let page = browser.post(&edit, &[("step", "open"), ("reason", "ticket 9")]).await.text;
    assert!(text(&page, "textarea").contains("hunter22"));
    let version = text_of_value(&page, "input[name=version]");
    let new = "{\"order\": 4412,\r\n\"password\":\"hunter23\"}";
    let with = |step: &'static str, payload: &'static str| {
        vec![
            ("step", step.to_owned()),
            ("payload", payload.to_owned()),
            ("reason", "wrong order".to_owned()),
            ("version", version.clone()),
        ]
    };
    let send = |fields: Vec<(&'static str, String)>| fields;
    let broken = send(with("check", "{\"order\": "));
    let broken: Vec<(&str, &str)> = broken.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let page = browser.post(&edit, &broken).await.text;
    assert!(text(&page, "[role=alert]").contains("is not any more"));
    assert_eq!(count(&page, "button[value=save]"), 0, "broken JSON is not saved by accident");
    let fields = send(with("check", new));
    let fields: Vec<(&str, &str)> = fields.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let page = browser.post(&edit, &fields).await.text;
    assert!(count(&page, "table.diff .del") > 0 && count(&page, "table.diff .ins") > 0);
    let fields = send(with("save", new));
    let fields: Vec<(&str, &str)> = fields.iter().map(|(n, v)| (*n, v.as_str())).collect();
    assert_eq!(browser.submit(&edit, &fields).await, path);
    let kept = office.server.store.letter(office.letter.parse().unwrap()).await.unwrap();
    assert_eq!(kept.message.envelope.payload.bytes, b"{\"order\": 4412,\n\"password\":\"hunter23\"}");
    let diff = browser.page(&format!("{path}/diff")).await;
    assert!(diff.contains("4411") && diff.contains("4412") && !diff.contains("hunter2"));
    let version = kept.record.version.to_string();
    browser.submit(&path, &[("act", "restore"), ("n", "0"), ("version", &version)]).await;
    let kept = office.server.store.letter(office.letter.parse().unwrap()).await.unwrap();
    assert!(String::from_utf8(kept.message.envelope.payload.bytes).unwrap().contains("4411"));
}

/// The value of an input.
fn text_of_value(page: &str, selector: &str) -> String {
    let html = scraper::Html::parse_document(page);
    let input = html.select(&scraper::Selector::parse(selector).unwrap()).next().unwrap();
    input.attr("value").unwrap().to_owned()
}

#[tokio::test]
async fn queues_are_paused_and_purged_and_tokens_made_and_revoked() {
    let office = Office::open().await;
    let server = &office.server;
    let mut browser = Browser::admin(server).await;
    browser.submit("/queues/q", &[("act", "pause"), ("reason", "the bank is down")]).await;
    assert!(text(&browser.page("/queues/q").await, "h1").contains("Paused"));
    browser.submit("/queues/q", &[("act", "resume")]).await;
    server.post("/api/v1/queues/q/messages", r#"{"payload":"x"}"#).await;
    let refused = browser.post("/queues/q", &[("act", "purge"), ("name", "other")]).await;
    assert_eq!(refused.status.as_u16(), 400);
    assert_eq!(server.get("/api/v1/messages").await["items"].as_array().unwrap().len(), 1);
    browser.submit("/queues/q", &[("act", "purge"), ("name", "q"), ("reason", "a test")]).await;
    assert!(server.get("/api/v1/messages").await["items"].as_array().unwrap().is_empty());
    let page = browser
        .post(
            "/settings",
            &[
                ("act", "create"),
                ("name", "bob"),
                ("role", "viewer"),
                ("role", "worker"),
                ("queues", "q, pay-*"),
            ],
        )
        .await
        .text;
    let token = text(&page, ".copy code");
    let mut bob = Browser::new(server);
    assert_eq!(bob.submit("/login", &[("token", &token)]).await, "/groups");
    let id = token.split('_').nth(1).unwrap().to_owned();
    browser.submit("/settings", &[("act", "revoke"), ("id", &id)]).await;
    assert!(!browser.page("/settings").await.contains(&id));
    let check = browser.post("/settings", &[("act", "verify")]).await.text;
    assert!(text(&check, "[role=status]").starts_with("Sound."), "{check}");
}

#[tokio::test]
async fn alerts_are_silenced_and_that_ends() {
    let office = Office::open().await;
    let mut browser = Browser::with(&office.server, &[Grant::Operator], &[]).await;
    let fields = [("act", "silence"), ("name", "depth"), ("for", "4h"), ("reason", "known")];
    browser.submit("/alerts", &fields).await;
    assert!(browser.page("/alerts").await.contains("known"));
    browser.submit("/alerts", &[("act", "end"), ("name", "depth")]).await;
    assert!(browser.page("/alerts").await.contains("Nothing is silenced"));
    let unknown = browser.post("/alerts", &[("act", "test"), ("name", "nowhere")]).await;
    assert_eq!(unknown.status.as_u16(), 404);
    let mut viewer = Browser::with(&office.server, &[Grant::Viewer], &[]).await;
    assert_eq!(viewer.post("/alerts", &fields).await.status.as_u16(), 403);
}
