//! Out of one office and into another: exports, imports, backups.

use crate::support::{Office, text};
use serde_json::Value;

/// What must be the same on both sides; order numbers are each store's own.
fn essence(letter: &Value) -> Value {
    let mut essence = letter.as_object().unwrap().clone();
    for own in ["seq", "death"] {
        essence.remove(own);
    }
    Value::Object(essence)
}

#[test]
fn an_export_is_imported_whole_and_once() {
    let from = Office::new();
    let bytes = [0xff, 0x00, 0x1b, b'\n', 0xc3, 0x28];
    let binary = from.file("binary", bytes);
    let id = text(&from.json(&["enqueue", "q", "--payload-file", &binary, "--tag", "t", "--key", "k"])["id"]);
    let token = text(&from.lease("q")["token"]);
    from.run(&["fail", &token, "--error-type", "E", "--message", "no", "--permanent"]).ok();
    let closed = from.dead_letter("q", "{\"a\": 1}", "late");
    from.run(&["dlq", "resolve", &closed, "--reason", "done by hand"]).ok();
    let export = from.path("letters.ndjson");
    let export = export.to_str().unwrap();
    from.run(&["dlq", "export", "--out", export]).ok().says("2 dead letters exported");
    from.run(&["dlq", "export", "--out", export]).code(5).says("is there already");
    assert_eq!(from.run(&["dlq", "export", "status:pending"]).ok().ndjson().len(), 1);
    assert_eq!(std::fs::read(export).unwrap(), from.run(&["dlq", "export"]).ok().stdout);

    let to = Office::new();
    let report = to.json(&["dlq", "import", export, "--reason", "moved"]);
    assert_eq!(report, serde_json::json!({"imported": 2, "skipped": 0, "failed": 0}));
    for id in [&id, &closed] {
        let (theirs, ours) = (from.json(&["dlq", "show", id]), to.json(&["dlq", "show", id]));
        assert_eq!(essence(&ours), essence(&theirs));
    }
    assert_eq!(to.run(&["dlq", "show", &id, "--payload"]).ok().stdout, bytes);
    let again = to.json(&["dlq", "import", export]);
    assert_eq!(again, serde_json::json!({"imported": 0, "skipped": 2, "failed": 0}));
    assert_eq!(to.items(&["audit", "list"]).iter().filter(|row| row["act"] == "import").count(), 2);
    to.run(&["dlq", "retry", &id]).ok();
    assert_eq!(to.lease("q")["id"], id.as_str());
    to.run(&["doctor", "--deep"]).ok();
}

#[test]
fn a_bad_line_of_an_import_is_named() {
    let from = Office::new();
    from.dead_letter("q", "1", "late");
    from.dead_letter("q", "2", "late");
    let mut lines: Vec<String> =
        from.run(&["dlq", "export"]).ok().text().lines().map(str::to_owned).collect();
    lines.insert(1, lines[0][..lines[0].len() / 2].to_owned());
    let stdin = lines.join("\n");
    let to = Office::new();
    let ran = to.feed(stdin.as_bytes(), &["dlq", "import", "-", "-o", "json"]).code(2);
    let ran = ran.says("line 2: the JSON ends too early").says("go on after line 1");
    assert_eq!(ran.json()["imported"], 1);
    let ran = to.feed(stdin.as_bytes(), &["dlq", "import", "-", "--keep-going", "-o", "json"]).code(4);
    assert_eq!(ran.json(), serde_json::json!({"imported": 1, "skipped": 1, "failed": 1}));
    to.feed(b"{\"id\":\"x\"}\n", &["dlq", "import", "-"]).code(2).says("line 1");
}

#[test]
fn a_backup_becomes_a_store_again() {
    let office = Office::new();
    let dead = office.dead_letter("q", "x", "late");
    office.enqueue("q", "waiting");
    let copied = office.json(&["backup", "copy"]);
    assert!(copied["bytes"].as_u64().unwrap() > 0);
    assert!(office.path("copy").is_dir());
    let (backup, data) = (office.path("copy"), office.path("restored"));
    let (backup, data) = (backup.to_str().unwrap(), data.to_str().unwrap());
    office.run(&["restore", backup, "--data", data]).ok();
    let letter = office.json(&["dlq", "show", &dead, "--data", data]);
    assert_eq!(letter, office.json(&["dlq", "show", &dead]));
    assert_eq!(office.items(&["message", "list", "--data", data]).len(), 1);
    office.run(&["doctor", "--deep", "--data", data]).ok();
    office.run(&["restore", backup, "--data", data]).code(1);
    let nowhere = office.path("nowhere");
    office
        .run(&["restore", nowhere.to_str().unwrap(), "--data", office.path("new").to_str().unwrap()])
        .code(1);
}
