//! Lists on a terminal of 80 columns, and the short ids they show.

use crate::support::{Workspace, text};
use crate::terminal::Terminal;
use unicode_width::UnicodeWidthStr as _;

const QUEUE: &str = "payments-eu-central-1";
const GATEWAY: &str =
    "POST https://gateway.example.com/v2/charges/ch_83fa timed out after 30000 ms waiting for the bank";

/// Creates a dead letter with this error.
fn die(workspace: &Workspace, queue: &str, error_type: &str, code: &str, message: &str) -> String {
    let payload = r#"{"order":{"id":4411,"card":"4111111111111111"},"customer":"日本商事株式会社"}"#;
    let sent = ["enqueue", queue, "--payload", payload, "--kind", "charge.capture.v2"];
    let id = text(&workspace.json(&sent)["id"]);
    let token = text(&workspace.lease(queue)["token"]);
    let failed = ["fail", &token, "--error-type", error_type, "--message", message, "--dead-letter"];
    let failed: Vec<&str> = failed.into_iter().chain(["--code", code]).collect();
    let failed = if code.is_empty() { &failed[..7] } else { &failed };
    assert_eq!(workspace.json(failed)["state"], "dead");
    id
}

/// A workspace with three causes, two of them different only in their code, and an item of every kind that can be
/// listed.
fn busy_workspace() -> (Workspace, Vec<String>) {
    let workspace = Workspace::new();
    let ids = vec![
        die(&workspace, QUEUE, "GatewayTimeoutError", "504", GATEWAY),
        die(&workspace, QUEUE, "GatewayTimeoutError", "504", GATEWAY),
        die(&workspace, QUEUE, "GatewayTimeoutError", "502", GATEWAY),
        die(
            &workspace,
            "mail",
            "TemplateMissing",
            "",
            "the template 日本語のテンプレート/welcome-mail.v7.html is not there",
        ),
    ];
    for n in 0..3 {
        let (key, kind) = (format!("invoice-{n}"), "render.invoice.with.attachments");
        workspace
            .run(&["enqueue", QUEUE, "--payload", "{}", "--kind", kind, "--key", &key, "--delay", "1h"])
            .ok();
    }
    let why = "the bank says that it is back since half past nine, and that it was the certificate again";
    workspace.run(&["dlq", "redrive", &ids[0], "--yes", "--reason", why]).ok();
    workspace.run(&["dlq", "note", &ids[1], why]).ok();
    workspace
        .run(&["marker", "deploy 1.4.2 with the new gateway client and longer timeouts for captures"])
        .ok();
    workspace.run(&["queue", "set", QUEUE, "--breaker", "queue"]).ok();
    workspace.run(&["breaker", "open", QUEUE, "--reason", why]).ok();
    (workspace, ids)
}

/// The output of a command on a terminal of 80 columns: as printed, and without colours.
fn printed(workspace: &Workspace, args: &[&str]) -> (String, Vec<String>) {
    let (code, raw) = Terminal::start(workspace, args).printed();
    assert_eq!(code, Some(0), "{args:?}: {raw}");
    let mut plain = String::new();
    let mut rest = raw.as_str();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        plain.push_str(before);
        rest = after.split_once('m').expect("only colours are asked for").1;
    }
    plain.push_str(rest);
    (raw, plain.lines().map(str::to_owned).collect())
}

#[test]
fn lists_fit_eighty_columns_and_show_the_important_columns() {
    let (workspace, ids) = busy_workspace();
    let tail = |n: usize| ids[n][ids[n].len() - 8..].to_owned();
    let operation = text(&workspace.items(&["op", "list"])[0]["id"]);
    let dlq = format!("{QUEUE}-dlq");
    let lists: [(&[&str], &[&str]); 12] = [
        (
            &["group", "list"],
            &["504", "502", "GatewayT", "POST <url> timed out", "TemplateM", "new", " ago", "ID"],
        ),
        (&["dlq", "list"], &[&tail(1), &tail(3), "pending", "GatewayTimeoutError: POST", "mail"]),
        (&["dlq", "list", "queue:mail"], &[&tail(3), "TemplateMissing: the template 日本語"]),
        (&["dlq", "stats"], &[&dlq, "mail-dlq", "PENDING", "OPEN", "TOTAL"]),
        (&["dlq", "timeline", &ids[1]], &["GatewayTimeoutError", "the bank says"]),
        (&["queue", "list"], &[QUEUE, "READY", "DEAD", "PAUSED"]),
        (&["op", "list"], &[&operation[28..], "retry", "MEMBERS", "id:"]),
        (&["op", "members", &operation], &[&tail(0), "running"]),
        (&["message", "list"], &["render.invoice.with.attachments", "scheduled", "payments-eu"]),
        (&["breaker", "list"], &["payments-eu", "open", "closed by", "the bank says"]),
        (&["audit", "list"], &["note", "tester", &tail(1), "the bank says"]),
        (&["marker", "--list"], &["deploy 1.4.2 with the new gateway client"]),
    ];
    for (args, wanted) in lists {
        let (_, lines) = printed(&workspace, args);
        let whole = lines.join("\n");
        for line in &lines {
            assert!(line.width() <= 80, "{args:?} is {} wide: {line}\n{whole}", line.width());
        }
        for what in wanted {
            assert!(whole.contains(what), "{args:?} should show {what:?}:\n{whole}");
        }
    }
}

#[test]
fn states_have_colours_only_if_colours_are_on() {
    let (workspace, ids) = busy_workspace();
    let (raw, lines) = printed(&workspace, &["group", "list", "--time", "unix"]);
    assert!(raw.contains("\u{1b}[33mnew\u{1b}[0m"), "{raw:?}");
    let (plain, same) = printed(&workspace, &["group", "list", "--time", "unix", "--color", "never"]);
    assert!(!plain.contains('\u{1b}'));
    assert_eq!(same, lines, "colours take no room");
    assert!(!workspace.run(&["group", "list"]).ok().text().contains('\u{1b}'), "a pipe has none");
    // The wide format has complete ids and exact times, without a width limit.
    let (_, wide) = printed(&workspace, &["dlq", "list", "-o", "wide"]);
    assert!(wide.iter().any(|line| line.contains(&ids[1]) && line.contains('Z')), "{wide:?}");
}

#[test]
fn short_ids_stand_for_whole_ones() {
    let (workspace, ids) = busy_workspace();
    let short = |id: &str| id[id.len() - 8..].to_owned();
    let shown = workspace.json(&["dlq", "show", &short(&ids[1])]);
    assert_eq!(shown["id"], ids[1].as_str());
    workspace.run(&["dlq", "timeline", &short(&ids[1])]).ok();
    assert_eq!(workspace.json(&["dlq", "review", &short(&ids[2])])["id"], ids[2].as_str());
    assert_eq!(workspace.items(&["dlq", "list", &format!("id:{}", short(&ids[2]))]).len(), 1);
    let message = text(&workspace.items(&["message", "list", "kind:render*"])[0]["id"]);
    assert_eq!(workspace.json(&["message", "show", &short(&message)])["id"], message.as_str());
    let operation = text(&workspace.items(&["op", "list"])[0]["id"]);
    assert_eq!(workspace.json(&["op", "show", &short(&operation)])["id"], operation.as_str());
    let group = text(&workspace.items(&["group", "list"])[0]["id"]);
    assert_eq!(workspace.json(&["group", "show", &group[8..]])["id"], group.as_str());
    let mine = workspace.items(&["dlq", "list", &format!("group:{group}")]);
    assert!(!mine.is_empty());
    assert_eq!(
        workspace.items(&["dlq", "list", &format!("status:pending,review,retrying group:{}", &group[8..])]),
        mine
    );
    // The audit trail has complete ids.
    let row = workspace.items(&["audit", "list", "--act", "review"]).remove(0);
    assert_eq!(row["target"], ids[2].as_str());
}

#[test]
fn ambiguous_short_ids_are_refused() {
    let workspace = Workspace::new();
    let line = |n: u32| format!("{{\"id\":\"01981c3e-7d5a-7cc0-8b1f-3a5{n}c0ffee00\",\"payload\":{n}}}\n");
    workspace.feed((line(1) + &line(2)).as_bytes(), &["enqueue", "q"]).ok();
    let ran = workspace.run(&["message", "show", "c0ffee00"]).code(5).says("more than one live message's id");
    assert!(ran.stderr.contains("01981c3e-7d5a-7cc0-8b1f-3a51c0ffee00"), "{}", ran.stderr);
    assert!(ran.stderr.contains("01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00"), "{}", ran.stderr);
    workspace.run(&["message", "cancel", "c0ffee00"]).code(5);
    workspace.run(&["message", "show", "2c0ffee00"]).ok();
    workspace.run(&["message", "show", "dead"]).code(7).says("no live message has an id that ends in dead");
    workspace.run(&["dlq", "show", "c0ffee00"]).code(7).says("no dead letter");
    workspace.run(&["dlq", "list", "id:c0ffee00"]).code(7).says("no dead letter");
    workspace.run(&["message", "show", "e00"]).code(2).says("too short");
    workspace.run(&["message", "show", "nonsense"]).code(2).says("nor the last 4 or more digits");
    // A terminal shows as many digits as distinguish them.
    let (_, lines) = printed(&workspace, &["message", "list"]);
    assert!(lines.iter().any(|line| line.starts_with("51c0ffee00 ")), "{lines:?}");
}

#[test]
fn columns_and_templates_reach_into_payloads() {
    let (workspace, ids) = busy_workspace();
    let named = workspace.run(&["dlq", "list", "queue:mail", "--columns", "queue,payload.order.id"]).ok();
    assert_eq!(named.text(), "QUEUE  PAYLOAD.ORDER.ID\nmail   4411\n");
    let template = ["--template", "{payload.order.id} {payload.customer}"];
    let listed = workspace.run(&[&["dlq", "list", "queue:mail"], &template[..]].concat()).ok();
    assert_eq!(listed.text(), "4411 日本商事株式会社\n");
    assert_eq!(
        workspace.run(&[&["dlq", "show", &ids[3]], &template[..]].concat()).ok().text(),
        listed.text()
    );
    let shown = workspace.run(&["dlq", "show", &ids[3], "--columns", "queue,payload.order.id"]).ok();
    assert_eq!(shown.text(), named.text());
    // Values are masked here too.
    let card = workspace.run(&["dlq", "list", "queue:mail", "--columns", "payload.order.card"]).ok();
    assert!(!card.text().contains("4111111111111111"), "{}", card.text());
}

#[test]
fn durations_are_readable_and_groups_show_their_code() {
    let (workspace, _) = busy_workspace();
    let queue = workspace.run(&["queue", "show", QUEUE]).ok().text();
    assert!(queue.contains("30d") && !queue.contains("4w2d"), "{queue}");
    let groups = workspace.items(&["group", "list"]);
    let codes: Vec<Option<&str>> = groups.iter().map(|group| group["code"].as_str()).collect();
    assert!(
        codes.contains(&Some("504")) && codes.contains(&Some("502")) && codes.contains(&None),
        "{codes:?}"
    );
    let of_504 = groups.iter().find(|group| group["code"] == "504").unwrap();
    let shown = workspace.run(&["group", "show", of_504["id"].as_str().unwrap()]).ok().text();
    assert!(shown.lines().any(|line| line.starts_with("code ") && line.ends_with("504")), "{shown}");
}
