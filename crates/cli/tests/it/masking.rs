//! Secrets are not shown in any view, format or export unless requested, and every request is recorded.

use crate::support::{Workspace, text};
use serde_json::Value;
use std::path::Path;

/// Secrets that are found by field name or by format, one for each place where they can occur.
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

/// A letter full of secrets, and a live message with the same content.
fn workspace() -> (Workspace, String, String) {
    let workspace = Workspace::new();
    let binary = workspace.file("binary", [0xff, b'c', b'a', b'n', b'a', b'r', b'y']);
    let dead = fail(&workspace, &line());
    workspace.run(&["enqueue", "other", "--payload-file", &binary]).ok();
    let token = text(&workspace.lease("other")["token"]);
    workspace.run(&["fail", &token, "--error-type", "E", "--message", "x", "--permanent"]).ok();
    let live = enqueue(&workspace, &line().replace("canary9@example.org", "other"));
    (workspace, dead, live)
}

fn enqueue(workspace: &Workspace, line: &str) -> String {
    let ran = workspace.feed(line.as_bytes(), &["enqueue", "-", "-o", "ndjson"]).ok();
    text(&ran.ndjson()[0]["id"])
}

fn fail(workspace: &Workspace, line: &str) -> String {
    let id = enqueue(workspace, line);
    let token = text(&workspace.lease("q")["token"]);
    let stack = workspace.file("stack", "at login (auth.js:3)\n  token=canaryStack8\n");
    let message = "login with password=canaryError7 was refused";
    let step = "curl --password canaryStep12";
    let fail =
        ["fail", &token, "--error-type", "Denied", "--message", message, "--stack", &stack, "--step", step];
    workspace.run(&[&fail[..], &["--permanent"]].concat()).ok();
    id
}

#[track_caller]
fn clean(what: &str, text: &str) {
    for canary in CANARIES {
        assert!(!text.contains(canary), "{what} shows {canary}:\n{text}");
    }
}

#[test]
fn no_view_and_no_export_shows_a_secret_unless_requested() {
    let (workspace, dead, live) = workspace();
    let group = text(&workspace.json(&["dlq", "show", &dead])["group"]);
    workspace.run(&["message", "cancel", &live]).ok();
    let other = fail(&workspace, &line().replace("canary9@example.org", "another"));
    let live = enqueue(&workspace, &line().replace("canary9@example.org", "other2"));
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
            let ran = workspace.run(&[view.as_slice(), &["-o", format]].concat()).ok();
            clean(&format!("{view:?} as {format}"), &(ran.text() + &ran.stderr));
        }
    }
    clean("the payload", &workspace.run(&["dlq", "show", &dead, "--payload"]).ok().text());
    let path = |name: &str| workspace.path(name).to_str().unwrap().to_owned();
    workspace.run(&["dlq", "export", "--dir", &path("dir")]).ok();
    for entry in std::fs::read_dir(workspace.path("dir")).unwrap() {
        clean("a file", &std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    workspace.run(&["dlq", "export", "--format", "csv", "--out", &path("letters.csv")]).ok();
    clean("the sheet", &std::fs::read_to_string(workspace.path("letters.csv")).unwrap());
    let edit = workspace.file("edit.json", r#"{"password":"canaryNested2","shown":"as it is"}"#);
    let edit = ["dlq", "edit", &other, "--payload", &edit, "--yes"];
    let ran = workspace.run(&[&edit[..], &["--dry-run"]].concat()).ok();
    clean("an edit", &(ran.text() + &ran.stderr));
    let ran = workspace.run(&edit).ok();
    clean("an edit", &(ran.text() + &ran.stderr));
    let patch = r#"[{"op":"add","path":"/apiKey","value":"canaryPayload1"}]"#;
    let ran =
        workspace.run(&["dlq", "patch", "--filter", "queue:q", "--patch", patch, "--yes", "-o", "json"]).ok();
    clean("a patch", &(ran.text() + &ran.stderr));
    for format in ["table", "json", "csv"] {
        for view in
            [vec!["op", "list"], vec!["dlq", "redrive", "--all", "--dry-run"], vec!["dlq", "diff", &other]]
        {
            let ran = workspace.run(&[view.as_slice(), &["-o", format]].concat()).ok();
            clean(&format!("{view:?} as {format}"), &(ran.text() + &ran.stderr));
        }
    }
    for view in [vec!["dlq", "diff", &other], vec!["dlq", "timeline", &other], vec!["dlq", "list"]] {
        let ran = workspace.run(&view).ok();
        clean(&format!("{view:?}"), &(ran.text() + &ran.stderr));
    }
    // Everything that is not secret is unchanged.
    let shown = workspace.json(&["dlq", "show", &dead]);
    let payload = text(&shown["payload"]);
    for kept in
        ["12345678901234567890", "\"shown\":\"as it is\"", "\"password\":\"[masked]\"", "[masked:email]"]
    {
        assert!(payload.contains(kept), "{payload}");
    }
    assert_eq!((&shown["headers"]["lang"], &shown["context"]["task"]), (&"de".into(), &"kept".into()));
    assert_eq!(shown["masked"], true);
    assert!(text(&shown["error"]["stack"]).starts_with("at login (auth.js:3)"));
    assert!(workspace.items(&["audit", "list", "--act", "reveal"]).is_empty());
}

/// Whether any file of a directory contains these bytes.
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
    let workspace = Workspace::new();
    let dead = fail(&workspace, &line());
    for secret in ["canaryError7", "canaryStack8", "canaryStep12"] {
        assert!(!holds(&workspace.data(), secret), "{secret} is in the data directory");
    }
    let letter = workspace.json(&["dlq", "show", &dead, "--reveal"]);
    assert_eq!(letter["error"]["message"], "login with password=[masked] was refused");
    // The same cause with another secret belongs to the same group.
    let other = fail(&workspace, &line().replace("canary9@example.org", "k2"));
    assert_eq!(workspace.json(&["dlq", "show", &other])["group"], letter["group"]);
}

#[test]
fn a_reveal_is_recorded_before_it_shows_everything() {
    let (workspace, dead, live) = workspace();
    let letter = workspace.json(&["dlq", "show", &dead, "--reveal", "--reason", "ticket 7"]);
    assert!(text(&letter["payload"]).contains("canaryPayload1"));
    assert_eq!(
        (&letter["headers"]["Authorization"], &letter["masked"]),
        (&"Bearer canaryHeader5".into(), &Value::Null)
    );
    let message = workspace.json(&["message", "show", &live, "--reveal"]);
    assert_eq!(message["context"]["credentials"]["user"], "canaryContext10");
    let exact = workspace.run(&["dlq", "show", &dead, "--payload", "--reveal"]).ok().text();
    assert_eq!(exact, text(&letter["payload"]));
    let full = workspace.run(&["dlq", "export", "queue:q", "--full", "--reason", "move"]).ok().text();
    assert!(full.contains("canaryPayload1") && !full.contains("\"masked\""));
    let rows = workspace.items(&["audit", "list", "--act", "reveal"]);
    let found: Vec<[&str; 4]> = rows
        .iter()
        .map(|row| ["target", "detail", "filter", "reason"].map(|field| row[field].as_str().unwrap_or("-")))
        .collect();
    let expected = [
        ["letters", "export", "queue:q", "move"],
        [&dead, "payload", "-", "-"],
        [&live, "message", "-", "-"],
        [&dead, "letter", "-", "ticket 7"],
    ];
    assert_eq!(found, expected);
    assert_eq!(rows[0]["count"], 1);
    workspace.run(&["audit", "verify"]).ok();
    workspace.run(&["dlq", "show", &dead, "--reason", "no"]).code(2).says("--reveal");
}

#[test]
fn the_configuration_decides_what_is_masked() {
    let workspace = Workspace::new();
    let dead =
        workspace.dead_letter("q", r#"{"customer_no":7,"email":"bob@example.org","password":"x"}"#, "late");
    let payload = |config: &str| {
        let path = workspace.file("own.toml", config);
        text(&workspace.json(&["dlq", "show", &dead, "--config", &path])["payload"])
    };
    let own = "[masking]\nkeys = [\"customer*\"]\nshown = [\"email\"]\nwithout = [\"email\"]\n";
    assert_eq!(payload(own), r#"{"customer_no":"[masked]","email":"bob@example.org","password":"[masked]"}"#);
    assert_eq!(
        payload("[masking]\non = false\n"),
        r#"{"customer_no":7,"email":"bob@example.org","password":"x"}"#
    );
    let bad = workspace.file("bad.toml", "[masking]\nkeys = [\"*\"]\n");
    workspace.run(&["dlq", "list", "--config", &bad]).code(2).says("names no field");
}

#[test]
fn the_trail_is_searched() {
    let workspace = Workspace::new();
    let ids: Vec<String> = (0..3).map(|n| workspace.dead_letter("q", &n.to_string(), "late")).collect();
    workspace.run(&["dlq", "resolve", &ids[0], "--actor", "ada"]).ok();
    workspace.run(&["dlq", "abandon", &ids[1], "--actor", "bob"]).ok();
    workspace.run(&["dlq", "resolve", &ids[2], "--actor", "bob"]).ok();
    let rows = |args: &[&str]| workspace.items(&[&["audit", "list"], args].concat()).len();
    assert_eq!(rows(&[]), 3);
    assert_eq!(rows(&["--act", "resolve"]), 2);
    assert_eq!(rows(&["--by", "bob"]), 2);
    assert_eq!(rows(&["--by", "bob", "--act", "resolve"]), 1);
    assert_eq!(rows(&["--target", &ids[1]]), 1);
    assert_eq!(rows(&["--since", "1h"]), 3);
    assert_eq!(rows(&["--until", "1h"]), 0);
    assert_eq!(rows(&["--since", "2020-01-01T00:00:00Z", "--until", "2100-01-01T00:00:00Z"]), 3);
    assert_eq!(rows(&["--act", "resolve", "--limit", "1"]), 1);
    workspace.run(&["audit", "list", "--since", "soon"]).code(2).says("is not a time such as");
}
