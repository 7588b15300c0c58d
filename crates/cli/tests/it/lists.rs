//! Lists as a person sees them, in a terminal of 80 columns, and the short ids they show.

use crate::support::{Office, text};
use crate::terminal::Terminal;
use unicode_width::UnicodeWidthStr as _;

const QUEUE: &str = "payments-eu-central-1";
const GATEWAY: &str =
    "POST https://gateway.example.com/v2/charges/ch_83fa timed out after 30000 ms waiting for the bank";

/// A dead letter of this cause.
fn die(office: &Office, queue: &str, error_type: &str, code: &str, message: &str) -> String {
    let payload = r#"{"order":{"id":4411,"card":"4111111111111111"},"customer":"日本商事株式会社"}"#;
    let sent = ["enqueue", queue, "--payload", payload, "--kind", "charge.capture.v2"];
    let id = text(&office.json(&sent)["id"]);
    let token = text(&office.lease(queue)["token"]);
    let failed = ["fail", &token, "--error-type", error_type, "--message", message, "--dead-letter"];
    let failed: Vec<&str> = failed.into_iter().chain(["--code", code]).collect();
    let failed = if code.is_empty() { &failed[..7] } else { &failed };
    assert_eq!(office.json(failed)["state"], "dead");
    id
}

/// Three causes, two of them alike but for their code, and something of everything that can be listed.
fn busy_office() -> (Office, Vec<String>) {
    let office = Office::new();
    let ids = vec![
        die(&office, QUEUE, "GatewayTimeoutError", "504", GATEWAY),
        die(&office, QUEUE, "GatewayTimeoutError", "504", GATEWAY),
        die(&office, QUEUE, "GatewayTimeoutError", "502", GATEWAY),
        die(
            &office,
            "mail",
            "TemplateMissing",
            "",
            "the template 日本語のテンプレート/welcome-mail.v7.html is not there",
        ),
    ];
    for n in 0..3 {
        let (key, kind) = (format!("invoice-{n}"), "render.invoice.with.attachments");
        office
            .run(&["enqueue", QUEUE, "--payload", "{}", "--kind", kind, "--key", &key, "--delay", "1h"])
            .ok();
    }
    let why = "the bank says that it is back since half past nine, and that it was the certificate again";
    office.run(&["dlq", "redrive", &ids[0], "--yes", "--reason", why]).ok();
    office.run(&["dlq", "note", &ids[1], why]).ok();
    office.run(&["marker", "deploy 1.4.2 with the new gateway client and longer timeouts for captures"]).ok();
    office.run(&["queue", "set", QUEUE, "--breaker", "queue"]).ok();
    office.run(&["breaker", "open", QUEUE, "--reason", why]).ok();
    (office, ids)
}

/// What a command prints in a terminal of 80 columns: as it is, and without its colours.
fn printed(office: &Office, args: &[&str]) -> (String, Vec<String>) {
    let (code, raw) = Terminal::start(office, args).printed();
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
fn nothing_wraps_in_eighty_columns_and_what_matters_is_there() {
    let (office, ids) = busy_office();
    let tail = |n: usize| ids[n][ids[n].len() - 8..].to_owned();
    let operation = text(&office.items(&["op", "list"])[0]["id"]);
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
        let (_, lines) = printed(&office, args);
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
fn states_have_colours_only_where_somebody_wants_them() {
    let (office, ids) = busy_office();
    let (raw, lines) = printed(&office, &["group", "list", "--time", "unix"]);
    assert!(raw.contains("\u{1b}[33mnew\u{1b}[0m"), "{raw:?}");
    let (plain, same) = printed(&office, &["group", "list", "--time", "unix", "--color", "never"]);
    assert!(!plain.contains('\u{1b}'));
    assert_eq!(same, lines, "colours take no room");
    assert!(!office.run(&["group", "list"]).ok().text().contains('\u{1b}'), "a pipe has none");
    // Wide has ids whole and times exact, however long the lines are.
    let (_, wide) = printed(&office, &["dlq", "list", "-o", "wide"]);
    assert!(wide.iter().any(|line| line.contains(&ids[1]) && line.contains('Z')), "{wide:?}");
}

#[test]
fn short_ids_stand_for_whole_ones() {
    let (office, ids) = busy_office();
    let short = |id: &str| id[id.len() - 8..].to_owned();
    let shown = office.json(&["dlq", "show", &short(&ids[1])]);
    assert_eq!(shown["id"], ids[1].as_str());
    office.run(&["dlq", "timeline", &short(&ids[1])]).ok();
    assert_eq!(office.json(&["dlq", "review", &short(&ids[2])])["id"], ids[2].as_str());
    assert_eq!(office.items(&["dlq", "list", &format!("id:{}", short(&ids[2]))]).len(), 1);
    let message = text(&office.items(&["message", "list", "kind:render*"])[0]["id"]);
    assert_eq!(office.json(&["message", "show", &short(&message)])["id"], message.as_str());
    let operation = text(&office.items(&["op", "list"])[0]["id"]);
    assert_eq!(office.json(&["op", "show", &short(&operation)])["id"], operation.as_str());
    let group = text(&office.items(&["group", "list"])[0]["id"]);
    assert_eq!(office.json(&["group", "show", &group[8..]])["id"], group.as_str());
    let mine = office.items(&["dlq", "list", &format!("group:{group}")]);
    assert!(!mine.is_empty());
    assert_eq!(
        office.items(&["dlq", "list", &format!("status:pending,review,retrying group:{}", &group[8..])]),
        mine
    );
    // What is on record is whole.
    let row = office.items(&["audit", "list", "--act", "review"]).remove(0);
    assert_eq!(row["target"], ids[2].as_str());
}

#[test]
fn short_ids_that_do_not_say_which_are_refused() {
    let office = Office::new();
    let line = |n: u32| format!("{{\"id\":\"01981c3e-7d5a-7cc0-8b1f-3a5{n}c0ffee00\",\"payload\":{n}}}\n");
    office.feed((line(1) + &line(2)).as_bytes(), &["enqueue", "q"]).ok();
    let ran = office.run(&["message", "show", "c0ffee00"]).code(5).says("more than one live message's id");
    assert!(ran.stderr.contains("01981c3e-7d5a-7cc0-8b1f-3a51c0ffee00"), "{}", ran.stderr);
    assert!(ran.stderr.contains("01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00"), "{}", ran.stderr);
    office.run(&["message", "cancel", "c0ffee00"]).code(5);
    office.run(&["message", "show", "2c0ffee00"]).ok();
    office.run(&["message", "show", "dead"]).code(7).says("no live message has an id that ends in dead");
    office.run(&["dlq", "show", "c0ffee00"]).code(7).says("no dead letter");
    office.run(&["dlq", "list", "id:c0ffee00"]).code(7).says("no dead letter");
    office.run(&["message", "show", "e00"]).code(2).says("too short");
    office.run(&["message", "show", "nonsense"]).code(2).says("nor the last 4 or more digits");
    // A terminal shows as many digits as tell them apart.
    let (_, lines) = printed(&office, &["message", "list"]);
    assert!(lines.iter().any(|line| line.starts_with("51c0ffee00 ")), "{lines:?}");
}

#[test]
fn columns_and_templates_reach_into_payloads() {
    let (office, ids) = busy_office();
    let named = office.run(&["dlq", "list", "queue:mail", "--columns", "queue,payload.order.id"]).ok();
    assert_eq!(named.text(), "QUEUE  PAYLOAD.ORDER.ID\nmail   4411\n");
    let template = ["--template", "{payload.order.id} {payload.customer}"];
    let listed = office.run(&[&["dlq", "list", "queue:mail"], &template[..]].concat()).ok();
    assert_eq!(listed.text(), "4411 日本商事株式会社\n");
    assert_eq!(office.run(&[&["dlq", "show", &ids[3]], &template[..]].concat()).ok().text(), listed.text());
    let shown = office.run(&["dlq", "show", &ids[3], "--columns", "queue,payload.order.id"]).ok();
    assert_eq!(shown.text(), named.text());
    // Masked as everywhere.
    let card = office.run(&["dlq", "list", "queue:mail", "--columns", "payload.order.card"]).ok();
    assert!(!card.text().contains("4111111111111111"), "{}", card.text());
}

#[test]
fn durations_read_as_people_say_them_and_groups_show_their_code() {
    let (office, _) = busy_office();
    let queue = office.run(&["queue", "show", QUEUE]).ok().text();
    assert!(queue.contains("30d") && !queue.contains("4w2d"), "{queue}");
    let groups = office.items(&["group", "list"]);
    let codes: Vec<Option<&str>> = groups.iter().map(|group| group["code"].as_str()).collect();
    assert!(
        codes.contains(&Some("504")) && codes.contains(&Some("502")) && codes.contains(&None),
        "{codes:?}"
    );
    let of_504 = groups.iter().find(|group| group["code"] == "504").unwrap();
    let shown = office.run(&["group", "show", of_504["id"].as_str().unwrap()]).ok().text();
    assert!(shown.lines().any(|line| line.starts_with("code ") && line.ends_with("504")), "{shown}");
}
