//! What is secret is not shown unasked: in no view, no format, no export; and who asked is on record.

use crate::support::{Office, text};
use serde_json::Value;
use std::path::Path;

/// Secrets that are found by their names or by their looks, one for each place they can stand in.
const CANARIES: [&str; 16] = [
    "canaryPayload1",
    "canaryNested2",
    "canary3@example.org",
    "canaryInner4",
    "canaryHeader5",
    "canaryHeader6x",
    "canaryError7",
    "canaryStack8",
    "canary9@example.org",
    "canaryContext10",
    "4111111111111111",
    "canaryStep12",
    "canary13@example.org",
    "canaryNumber14",
    "canaryTag15",
    "Y2FuYXJ5",
];

fn line() -> String {
    let payload = r#"{"password":"canaryPayload1","nested":{"list":[1,{"apiKey":"canaryNested2"}],"order":12345678901234567890},
        "text":"write to canary3@example.org","body":"{\"secret\":\"canaryInner4\"}","card":{"no":"canaryNumber14"},
        "pan_number":4111111111111111,"canary13@example.org":true,"shown":"as it is"}"#;
    let mut line = serde_json::json!({
        "queue": "q",
        "kind": "charge",
        "headers": {"Authorization": "Bearer canaryHeader5", "x-info": "token=canaryHeader6x", "lang": "de"},
        "key": "canary9@example.org",
        "tags": ["plain", "password=canaryTag15"],
        "context": {"credentials": {"user": "canaryContext10"}, "task": "kept"},
        "content_type": "application/json",
    })
    .to_string();
    line.pop();
    format!("{line},\"payload\":{}}}\n", payload.replace('\n', " "))
}

/// A letter full of secrets, and the same message alive.
fn office() -> (Office, String, String) {
    let office = Office::new();
    let binary = office.file("binary", [0xff, b'c', b'a', b'n', b'a', b'r', b'y']);
    let dead = fail(&office, &line());
    office.run(&["enqueue", "other", "--payload-file", &binary]).ok();
    let token = text(&office.lease("other")["token"]);
    office.run(&["fail", &token, "--error-type", "E", "--message", "x", "--permanent"]).ok();
    let live = enqueue(&office, &line().replace("canary9@example.org", "other"));
    (office, dead, live)
}

fn enqueue(office: &Office, line: &str) -> String {
    let ran = office.feed(line.as_bytes(), &["enqueue", "-", "-o", "ndjson"]).ok();
    text(&ran.ndjson()[0]["id"])
}

fn fail(office: &Office, line: &str) -> String {
    let id = enqueue(office, line);
    let token = text(&office.lease("q")["token"]);
    let stack = office.file("stack", "at login (auth.js:3)\n  token=canaryStack8\n");
    let message = "login with password=canaryError7 was refused";
    let step = "curl --password canaryStep12";
    let fail =
        ["fail", &token, "--error-type", "Denied", "--message", message, "--stack", &stack, "--step", step];
    office.run(&[&fail[..], &["--permanent"]].concat()).ok();
    id
}

#[track_caller]
fn clean(what: &str, text: &str) {
    for canary in CANARIES {
        assert!(!text.contains(canary), "{what} shows {canary}:\n{text}");
    }
}

#[test]
fn no_view_and_no_export_shows_a_secret_unasked() {
    let (office, dead, live) = office();
    let group = text(&office.json(&["dlq", "show", &dead])["group"]);
    office.run(&["message", "cancel", &live]).ok();
    let other = fail(&office, &line().replace("canary9@example.org", "another"));
    let live = enqueue(&office, &line().replace("canary9@example.org", "other2"));
    let views: Vec<Vec<&str>> = vec![
        vec!["dlq", "list"],
        vec!["dlq", "show", &dead],
        vec!["dlq", "timeline", &dead],
        vec!["dlq", "stats"],
        vec!["dlq", "retry", &dead, "--dry-run"],
        vec!["dlq", "retry", "--all", "--dry-run"],
        vec!["dlq", "export"],
        vec!["message", "list"],
        vec!["message", "show", &live],
        vec!["group", "list"],
        vec!["group", "show", &group],
        vec!["queue", "list"],
        vec!["queue", "show", "q"],
        vec!["queue", "report"],
        vec!["marker", "--list"],
        vec!["breaker", "list"],
        vec!["audit", "list"],
        vec!["doctor"],
    ];
    for view in &views {
        for format in ["table", "json", "ndjson", "csv", "yaml"] {
            let ran = office.run(&[view.as_slice(), &["-o", format]].concat()).ok();
            clean(&format!("{view:?} as {format}"), &(ran.text() + &ran.stderr));
        }
    }
    clean("the payload", &office.run(&["dlq", "show", &dead, "--payload"]).ok().text());
    let path = |name: &str| office.path(name).to_str().unwrap().to_owned();
    office.run(&["dlq", "export", "--dir", &path("dir")]).ok();
    for entry in std::fs::read_dir(office.path("dir")).unwrap() {
        clean("a file", &std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    office.run(&["dlq", "export", "--format", "csv", "--out", &path("letters.csv")]).ok();
    clean("the sheet", &std::fs::read_to_string(office.path("letters.csv")).unwrap());
    let edit = office.file("edit.json", r#"{"password":"canaryNested2","shown":"as it is"}"#);
    let edit = ["dlq", "edit", &other, "--payload", &edit, "--yes"];
    let ran = office.run(&[&edit[..], &["--dry-run"]].concat()).ok();
    clean("an edit", &(ran.text() + &ran.stderr));
    let ran = office.run(&edit).ok();
    clean("an edit", &(ran.text() + &ran.stderr));
    let patch = r#"[{"op":"add","path":"/apiKey","value":"canaryPayload1"}]"#;
    let ran =
        office.run(&["dlq", "patch", "--filter", "queue:q", "--patch", patch, "--yes", "-o", "json"]).ok();
    clean("a patch", &(ran.text() + &ran.stderr));
    for format in ["table", "json", "csv"] {
        for view in
            [vec!["op", "list"], vec!["dlq", "redrive", "--all", "--dry-run"], vec!["dlq", "diff", &other]]
        {
            let ran = office.run(&[view.as_slice(), &["-o", format]].concat()).ok();
            clean(&format!("{view:?} as {format}"), &(ran.text() + &ran.stderr));
        }
    }
    for view in [vec!["dlq", "diff", &other], vec!["dlq", "timeline", &other], vec!["dlq", "list"]] {
        let ran = office.run(&view).ok();
        clean(&format!("{view:?}"), &(ran.text() + &ran.stderr));
    }
    // What nobody has to hide is as it was.
    let shown = office.json(&["dlq", "show", &dead]);
    let payload = text(&shown["payload"]);
    for kept in
        ["12345678901234567890", "\"shown\":\"as it is\"", "\"password\":\"[masked]\"", "[masked:email]"]
    {
        assert!(payload.contains(kept), "{payload}");
    }
    assert_eq!((&shown["headers"]["lang"], &shown["context"]["task"]), (&"de".into(), &"kept".into()));
    assert_eq!(shown["masked"], true);
    assert!(text(&shown["error"]["stack"]).starts_with("at login (auth.js:3)"));
    assert!(office.items(&["audit", "list", "--act", "reveal"]).is_empty());
}

/// Every file of a directory that holds these bytes.
fn holds(directory: &Path, what: &str) -> bool {
    let files =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).filter(|p| p.is_file());
    let found = |path| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(what.len()).any(|window| window == what.as_bytes())
    };
    let mut files = files;
    files.any(found)
}

#[test]
fn error_text_is_stored_without_its_secrets_and_grouped_with_them() {
    let office = Office::new();
    let dead = fail(&office, &line());
    for secret in ["canaryError7", "canaryStack8", "canaryStep12"] {
        assert!(!holds(&office.data(), secret), "{secret} is in the data directory");
    }
    let letter = office.json(&["dlq", "show", &dead, "--reveal"]);
    assert_eq!(letter["error"]["message"], "login with password=[masked] was refused");
    // The same cause with another secret is the same group.
    let other = fail(&office, &line().replace("canary9@example.org", "k2"));
    assert_eq!(office.json(&["dlq", "show", &other])["group"], letter["group"]);
}

#[test]
fn a_reveal_shows_everything_and_is_on_record_first() {
    let (office, dead, live) = office();
    let letter = office.json(&["dlq", "show", &dead, "--reveal", "--reason", "ticket 7"]);
    assert!(text(&letter["payload"]).contains("canaryPayload1"));
    assert_eq!(
        (&letter["headers"]["Authorization"], &letter["masked"]),
        (&"Bearer canaryHeader5".into(), &Value::Null)
    );
    let message = office.json(&["message", "show", &live, "--reveal"]);
    assert_eq!(message["context"]["credentials"]["user"], "canaryContext10");
    let exact = office.run(&["dlq", "show", &dead, "--payload", "--reveal"]).ok().text();
    assert_eq!(exact, text(&letter["payload"]));
    let full = office.run(&["dlq", "export", "queue:q", "--full", "--reason", "move"]).ok().text();
    assert!(full.contains("canaryPayload1") && !full.contains("\"masked\""));
    let rows = office.items(&["audit", "list", "--act", "reveal"]);
    let said: Vec<[&str; 4]> = rows
        .iter()
        .map(|row| ["target", "detail", "filter", "reason"].map(|field| row[field].as_str().unwrap_or("-")))
        .collect();
    let expected = [
        ["letters", "export", "queue:q", "move"],
        [&dead, "payload", "-", "-"],
        [&live, "message", "-", "-"],
        [&dead, "letter", "-", "ticket 7"],
    ];
    assert_eq!(said, expected);
    assert_eq!(rows[0]["count"], 1);
    office.run(&["audit", "verify"]).ok();
    office.run(&["dlq", "show", &dead, "--reason", "no"]).code(2).says("--reveal");
}

#[test]
fn the_configuration_says_what_is_masked() {
    let office = Office::new();
    let dead =
        office.dead_letter("q", r#"{"customer_no":7,"email":"bob@example.org","password":"x"}"#, "late");
    let payload = |config: &str| {
        let path = office.file("own.toml", config);
        text(&office.json(&["dlq", "show", &dead, "--config", &path])["payload"])
    };
    let own = "[masking]\nkeys = [\"customer*\"]\nshown = [\"email\"]\nwithout = [\"email\"]\n";
    assert_eq!(payload(own), r#"{"customer_no":"[masked]","email":"bob@example.org","password":"[masked]"}"#);
    assert_eq!(
        payload("[masking]\non = false\n"),
        r#"{"customer_no":7,"email":"bob@example.org","password":"x"}"#
    );
    let bad = office.file("bad.toml", "[masking]\nkeys = [\"*\"]\n");
    office.run(&["dlq", "list", "--config", &bad]).code(2).says("names no field");
}

#[test]
fn the_trail_is_searched() {
    let office = Office::new();
    let ids: Vec<String> = (0..3).map(|n| office.dead_letter("q", &n.to_string(), "late")).collect();
    office.run(&["dlq", "resolve", &ids[0], "--actor", "ada"]).ok();
    office.run(&["dlq", "abandon", &ids[1], "--actor", "bob"]).ok();
    office.run(&["dlq", "resolve", &ids[2], "--actor", "bob"]).ok();
    let rows = |args: &[&str]| office.items(&[&["audit", "list"], args].concat()).len();
    assert_eq!(rows(&[]), 3);
    assert_eq!(rows(&["--act", "resolve"]), 2);
    assert_eq!(rows(&["--by", "bob"]), 2);
    assert_eq!(rows(&["--by", "bob", "--act", "resolve"]), 1);
    assert_eq!(rows(&["--target", &ids[1]]), 1);
    assert_eq!(rows(&["--since", "1h"]), 3);
    assert_eq!(rows(&["--until", "1h"]), 0);
    assert_eq!(rows(&["--since", "2020-01-01T00:00:00Z", "--until", "2100-01-01T00:00:00Z"]), 3);
    assert_eq!(rows(&["--act", "resolve", "--limit", "1"]), 1);
    office.run(&["audit", "list", "--since", "soon"]).code(2).says("neither a time");
}
