//! Moving letters from one store to another: exports, imports, backups.

use crate::support::{Workspace, text};
use serde_json::Value;

/// The parts of a letter that must be the same on both sides; order numbers belong to each store.
fn essence(letter: &Value) -> Value {
    let mut essence = letter.as_object().unwrap().clone();
    for own in ["seq", "death"] {
        essence.remove(own);
    }
    Value::Object(essence)
}

#[test]
fn an_export_is_imported_completely_and_once() {
    let from = Workspace::new();
    let bytes = [0xff, 0x00, 0x1b, b'\n', 0xc3, 0x28];
    let binary = from.file("binary", bytes);
    let id = text(&from.json(&["enqueue", "q", "--payload-file", &binary, "--tag", "t", "--key", "k"])["id"]);
    let token = text(&from.lease("q")["token"]);
    from.run(&["fail", &token, "--error-type", "E", "--message", "no", "--permanent"]).ok();
    let closed = from.dead_letter("q", "{\"a\": 1}", "late");
    from.run(&["dlq", "resolve", &closed, "--reason", "done by hand"]).ok();
    let export = from.path("letters.ndjson");
    let export = export.to_str().unwrap();
    from.run(&["dlq", "export", "--full", "--out", export]).ok().says("2 dead letters exported");
    from.run(&["dlq", "export", "--full", "--out", export]).code(5).says("is there already");
    assert_eq!(from.run(&["dlq", "export", "status:pending"]).ok().ndjson().len(), 1);
    assert_eq!(std::fs::read(export).unwrap(), from.run(&["dlq", "export", "--full"]).ok().stdout);

    let to = Workspace::new();
    let report = to.json(&["dlq", "import", export, "--reason", "moved"]);
    assert_eq!(report, serde_json::json!({"imported": 2, "skipped": 0, "failed": 0}));
    for id in [&id, &closed] {
        let show = ["dlq", "show", id, "--reveal"];
        assert_eq!(essence(&to.json(&show)), essence(&from.json(&show)));
    }
    assert_eq!(to.run(&["dlq", "show", &id, "--payload", "--reveal"]).ok().stdout, bytes);
    let again = to.json(&["dlq", "import", export]);
    assert_eq!(again, serde_json::json!({"imported": 0, "skipped": 2, "failed": 0}));
    assert_eq!(to.items(&["audit", "list"]).iter().filter(|row| row["act"] == "import").count(), 2);
    to.run(&["dlq", "retry", &id]).ok();
    assert_eq!(to.lease("q")["id"], id.as_str());
    to.run(&["doctor", "--deep"]).ok();
}

/// A workspace with one letter of every kind.
fn rich() -> Workspace {
    let workspace = Workspace::new();
    let set = ["queue", "set", "hard", "--max-attempts", "25", "--backoff", "fixed", "--initial", "0"];
    workspace.run(&set).ok();
    let binary = workspace.file("binary", [0xff, 0x00, 0x1b, b'\n', 0xc3, 0x28]);
    workspace
        .run(&["enqueue", "hard", "--payload-file", &binary, "--header", "Authorization=x", "--key", "k"])
        .ok();
    for n in 0..25 {
        let token = text(&workspace.lease("hard")["token"]);
        let message = format!("attempt {n} of bob@example.org: password=hunter{n}");
        // Alternate between two kinds: the same failure again and again would be poison.
        let kind = if n % 2 == 0 { "Even" } else { "Odd" };
        workspace.run(&["fail", &token, "--error-type", kind, "--message", &message, "--code", "7"]).ok();
    }
    let context =
        r#"{"payload":{"b":1.0,"a":12345678901234567890123},"context":{"x":0.30000000000000004,"y":1e300}}"#;
    workspace.feed(context.as_bytes(), &["enqueue", "q", "-o", "ndjson"]).ok();
    let token = text(&workspace.lease("q")["token"]);
    workspace
        .run(&["fail", &token, "--error-type", "E", "--message", "odd \u{202e} \u{9b}", "--permanent"])
        .ok();
    let id = |n: u32| {
        workspace.dead_letter(
            "q",
            &format!("{{\"n\": {n}}}"),
            &format!("cause {}", ["a", "b"][n as usize % 2]),
        )
    };
    let (resolved, abandoned, review, noted, again) = (id(1), id(2), id(3), id(4), id(5));
    workspace.run(&["dlq", "resolve", &resolved, "--reason", "by hand"]).ok();
    workspace.run(&["dlq", "abandon", &abandoned]).ok();
    workspace.run(&["dlq", "review", &review]).ok();
    workspace.run(&["dlq", "note", &noted, "a note — with \"quotes\""]).ok();
    let (held, labelled, snoozed, assigned, moved, aside) = (id(6), id(7), id(8), id(9), id(10), id(11));
    workspace.run(&["queue", "set", "annex", "--max-attempts", "1"]).ok();
    workspace.run(&["dlq", "hold", &held]).ok();
    workspace.run(&["dlq", "label", &labelled, "--add", "urgent", "--add", "vip"]).ok();
    workspace.run(&["dlq", "snooze", &snoozed, "--for", "2h"]).ok();
    workspace.run(&["dlq", "assign", &assigned, "--to", "ada"]).ok();
    workspace.run(&["dlq", "move", &moved, "--to", "annex-dlq"]).ok();
    workspace.run(&["dlq", "quarantine", &aside, "--for", "3h"]).ok();
    // Retried in another queue, and dead there.
    let sent = id(12);
    workspace.run(&["dlq", "retry", &sent, "--to", "annex", "--priority", "high", "--attempts", "3"]).ok();
    let token = text(&workspace.lease("annex")["token"]);
    workspace.run(&["fail", &token, "--error-type", "G", "--message", "there too", "--permanent"]).ok();
    // One letter edited twice and restored, and one that was erased.
    let (edited, restored) = (id(13), id(14));
    for (n, letter) in [(1, &edited), (2, &edited), (3, &restored)] {
        let file = workspace.file("edited", format!("{{\"n\":  {n}}}"));
        workspace
            .run(&["dlq", "edit", letter, "--payload", &file, "--header", "x=y", "--reason", "typo", "--yes"])
            .ok();
    }
    workspace.run(&["dlq", "edit", &restored, "--restore", "0", "--yes"]).ok();
    workspace.run(&["enqueue", "q", "--payload", "secret", "--key", "gone"]).ok();
    let token = text(&workspace.lease("q")["token"]);
    workspace.run(&["fail", &token, "--error-type", "E", "--message", "no", "--permanent"]).ok();
    workspace.run(&["erase", "--key", "gone", "--yes", "--reason", "asked to"]).ok();
    // Retried and dead again: a second generation, and a later death.
    workspace.run(&["dlq", "retry", &again]).ok();
    let token = text(&workspace.lease("q")["token"]);
    workspace.run(&["fail", &token, "--error-type", "F", "--message", "again", "--permanent"]).ok();
    // Two merged groups, the first of which has no letter left.
    let first = workspace.dead_letter("q", "1", "completely different words here");
    let group = |id: &str| text(&workspace.json(&["dlq", "show", id])["group"]);
    workspace.run(&["group", "merge", &group(&first), &group(&review), "--yes"]).ok();
    let second = workspace.dead_letter("q", "2", "entirely unlike that other one");
    let third = workspace.dead_letter("q", "3", "nobody said such things before");
    workspace.run(&["group", "merge", &group(&second), &group(&third), "--yes"]).ok();
    workspace.run(&["dlq", "abandon", &second]).ok();
    workspace.run(&["dlq", "purge", &second]).ok();
    workspace
}

#[test]
fn a_full_export_of_an_import_into_an_empty_store_is_the_same_bytes() {
    let from = rich();
    let path = |workspace: &Workspace, name: &str| workspace.path(name).to_str().unwrap().to_owned();
    let first = from.run(&["dlq", "export", "--full"]).ok().stdout;
    assert!(first.iter().filter(|b| **b == b'\n').count() >= 9);
    let deaths: Vec<u64> = String::from_utf8(first.clone())
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["death"].as_u64().unwrap())
        .collect();
    assert!(
        deaths.is_sorted() && deaths.windows(2).any(|w| w[1] > w[0] + 1),
        "oldest first, with gaps: {deaths:?}"
    );
    let to = Workspace::new();
    to.feed(&first, &["dlq", "import", "-"]).ok();
    let second = to.run(&["dlq", "export", "--full"]).ok().stdout;
    assert_eq!(String::from_utf8(second).unwrap(), String::from_utf8(first.clone()).unwrap());
    to.run(&["doctor", "--deep"]).ok();
    // The same with a directory.
    from.run(&["dlq", "export", "--full", "--dir", &path(&from, "letters")]).ok();
    let third = Workspace::new();
    third.run(&["dlq", "import", &path(&from, "letters")]).ok();
    assert_eq!(third.run(&["dlq", "export", "--full"]).ok().stdout, first);
    from.run(&["dlq", "export", "--dir", &path(&from, "letters")]).code(5).says("is not empty");
}

#[test]
fn a_masked_export_is_not_imported() {
    let from = Workspace::new();
    from.dead_letter("q", "{\"password\":\"x\"}", "late");
    let masked = from.run(&["dlq", "export"]).ok().says("masked").stdout;
    let to = Workspace::new();
    let ran = to.feed(&masked, &["dlq", "import", "-"]).code(5);
    ran.says("line 1").says("this letter is masked").says("--full");
    let listed = from.run(&["dlq", "list", "-o", "ndjson"]).ok().stdout;
    to.feed(&listed, &["dlq", "import", "-"]).code(5).says("this letter is masked");
    let dir = from.path("dir");
    let dir = dir.to_str().unwrap();
    from.run(&["dlq", "export", "--dir", dir]).ok();
    to.run(&["dlq", "import", dir]).code(5).says("is a masked export");
    assert!(to.items(&["dlq", "list"]).is_empty());
    // An unfinished export has no index; if a file is missing or changed, the error names it.
    std::fs::remove_file(from.path("dir").join("index.json")).unwrap();
    to.run(&["dlq", "import", dir]).code(2).says("the export did not finish");
}

#[test]
fn a_truncated_file_is_imported_up_to_the_cut_and_can_be_continued() {
    let from = Workspace::new();
    for n in 0..20 {
        from.dead_letter("q", &format!("{{\"n\":{n}}}"), "late");
    }
    let whole = from.run(&["dlq", "export", "--full"]).ok().stdout;
    let lines: Vec<usize> =
        whole.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(n, _)| n + 1).collect();
    let to = Workspace::new();
    // In the middle of the eighth line.
    let cut = (lines[6] + lines[7]) / 2;
    let ran = to.feed(&whole[..cut], &["dlq", "import", "-", "-o", "json"]).code(2);
    let ran = ran.says("line 8: the JSON ends too early").says("continue after line 7");
    assert_eq!(ran.json()["imported"], 7);
    assert_eq!(to.run(&["dlq", "export", "--full"]).ok().stdout, whole[..lines[6]]);
    let report = to.feed(&whole, &["dlq", "import", "-", "-o", "json"]).ok().json();
    assert_eq!(report, serde_json::json!({"imported": 13, "skipped": 7, "failed": 0}));
    assert_eq!(to.run(&["dlq", "export", "--full"]).ok().stdout, whole);
    // A directory with a file that is truncated, missing, or has another name.
    let dir = from.path("dir");
    let path = dir.to_str().unwrap();
    from.run(&["dlq", "export", "--full", "--dir", path]).ok();
    let first = text(&from.json(&["dlq", "list", "--limit", "1"])["items"][0]["id"]);
    let file = dir.join(format!("{first}.json"));
    let content = std::fs::read(&file).unwrap();
    std::fs::write(&file, &content[..content.len() / 2]).unwrap();
    let other = Workspace::new();
    other.run(&["dlq", "import", path]).code(2).says(&first).says("ends too early");
    std::fs::remove_file(&file).unwrap();
    other.run(&["dlq", "import", path]).code(7).says(&first);
    let ran = other.run(&["dlq", "import", path, "--keep-going", "-o", "json"]).code(4);
    assert_eq!(ran.json(), serde_json::json!({"imported": 0, "skipped": 19, "failed": 1}));
    let index = std::fs::read_to_string(dir.join("index.json")).unwrap();
    let forged = index.replace(&format!("{first}.json"), "../../etc/passwd");
    std::fs::write(dir.join("index.json"), forged).unwrap();
    other.run(&["dlq", "import", path]).code(2).says("another name than its id");
}

#[test]
fn csv_is_safe_and_complete() {
    let workspace = Workspace::new();
    let nasty = ["=cmd|' /C calc'!A0", "+1", "-1+1", "@SUM(A1)", "\t=1", "'=1", "a \"b\",\nc", "＝1", ""];
    for payload in nasty {
        let file = workspace.file("payload", payload);
        workspace.run(&["enqueue", "q", "--payload-file", &file]).ok();
        let token = text(&workspace.lease("q")["token"]);
        workspace.run(&["fail", &token, "--error-type", "=E()", "--message", payload, "--permanent"]).ok();
    }
    let ran = workspace.run(&["dlq", "export", "-o", "csv"]).ok();
    let mut reader = csv::Reader::from_reader(ran.stdout.as_slice());
    let column =
        |name: &str, head: &csv::StringRecord| head.iter().position(|column| column == name).unwrap();
    let head = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), nasty.len());
    for (row, payload) in rows.iter().zip(nasty) {
        for cell in row {
            assert!(!cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝']), "{cell:?}");
        }
        let cell = &row[column("payload", &head)];
        assert_eq!(cell.strip_prefix('\'').unwrap_or(cell), payload, "it can be had back");
        assert_eq!(&row[column("error_type", &head)], "'=E()");
    }
}

#[test]
fn the_files_of_another_system_become_letters() {
    let item = |n: u32| {
        format!(
            r#"{{"item_id":"item-{n}","item_data":{{"file":"src/{n}.rs","big":12345678901234567890}},
            "first_attempt":"2025-01-11T10:25:00Z","last_attempt":"2025-01-11T10:30:0{n}Z","failure_count":3,
            "failure_history":[{{"attempt_number":1,"timestamp":"2025-01-11T10:30:0{n}Z",
            "error_type":{{"CommandFailed":{{"exit_code":101}}}},"error_message":"cargo test failed with exit code 101",
            "agent_id":"agent-1","step_failed":"shell: cargo test","duration_ms":45000}}],
            "error_signature":"x","reprocess_eligible":true,"manual_review_required":{}}}"#,
            n == 2
        )
    };
    let workspace = Workspace::new();
    std::fs::create_dir_all(workspace.path("dlq/items")).unwrap();
    for n in 1..=3 {
        std::fs::write(workspace.path(&format!("dlq/items/item-{n}.json")), item(n)).unwrap();
    }
    std::fs::write(workspace.path("dlq/index.json"), "{}").unwrap();
    let import = ["dlq", "import", "dlq", "--from", "mapreduce", "--queue", "jobs"];
    assert_eq!(workspace.json(&import)["imported"], 3);
    assert_eq!(workspace.json(&import)["skipped"], 3, "the same item is the same letter");
    let letters = workspace.items(&["dlq", "list", "queue:jobs"]);
    assert_eq!(letters[0]["key"], "item-3");
    assert_eq!(letters[1]["status"], "review");
    let payload = workspace.run(&["dlq", "show", &text(&letters[0]["id"]), "--payload"]).ok().text();
    assert_eq!(payload, r#"{"file":"src/3.rs","big":12345678901234567890}"#);
    assert_eq!(workspace.items(&["group", "list"]).len(), 1);
    workspace.run(&["dlq", "retry", &text(&letters[0]["id"])]).ok();
    assert_eq!(workspace.lease("jobs")["attempt"], 1);
    workspace.run(&["doctor", "--deep"]).ok();
    // A user-written mapping, applied to lines.
    let map = workspace.file("map.toml", "queue = \"old\"\n[fields]\npayload = \"args\"\ndead_at = \"at\"\n");
    let lines = "{\"args\":[1, 2],\"at\":1700000000}\n{\"at\":1700000000}\n";
    let ran = workspace.feed(lines.as_bytes(), &["dlq", "import", "-", "--map", &map, "-o", "json"]).code(2);
    assert_eq!(ran.says("line 2: there is no payload").json()["imported"], 1);
    assert_eq!(text(&workspace.items(&["dlq", "list", "queue:old"])[0]["payload"]), "[1, 2]");
    workspace.run(&["dlq", "import", "dlq", "--from", "mapreduce"]).code(2).says("no queue");
    workspace
        .run(&["dlq", "import", "x.ndjson", "--queue", "q"])
        .code(2)
        .says("--queue is for mapped letters");
}

#[test]
fn an_invalid_line_of_an_import_is_named() {
    let from = Workspace::new();
    from.dead_letter("q", "1", "late");
    from.dead_letter("q", "2", "late");
    let mut lines: Vec<String> =
        from.run(&["dlq", "export", "--full"]).ok().text().lines().map(str::to_owned).collect();
    lines.insert(1, lines[0][..lines[0].len() / 2].to_owned());
    let stdin = lines.join("\n");
    let to = Workspace::new();
    let ran = to.feed(stdin.as_bytes(), &["dlq", "import", "-", "-o", "json"]).code(2);
    let ran = ran.says("line 2: the JSON ends too early").says("continue after line 1");
    assert_eq!(ran.json()["imported"], 1);
    let ran = to.feed(stdin.as_bytes(), &["dlq", "import", "-", "--keep-going", "-o", "json"]).code(4);
    assert_eq!(ran.json(), serde_json::json!({"imported": 1, "skipped": 1, "failed": 1}));
    to.feed(b"{\"id\":\"x\"}\n", &["dlq", "import", "-"]).code(2).says("line 1");
}

#[test]
fn a_backup_becomes_a_store_again() {
    let workspace = Workspace::new();
    let dead = workspace.dead_letter("q", "x", "late");
    workspace.enqueue("q", "waiting");
    let copied = workspace.json(&["backup", "copy"]);
    assert!(copied["bytes"].as_u64().unwrap() > 0);
    assert!(workspace.path("copy").is_dir());
    let (backup, data) = (workspace.path("copy"), workspace.path("restored"));
    let (backup, data) = (backup.to_str().unwrap(), data.to_str().unwrap());
    workspace.run(&["restore", backup, "--data", data]).ok();
    let letter = workspace.json(&["dlq", "show", &dead, "--data", data]);
    assert_eq!(letter, workspace.json(&["dlq", "show", &dead]));
    assert_eq!(workspace.items(&["message", "list", "--data", data]).len(), 1);
    workspace.run(&["doctor", "--deep", "--data", data]).ok();
    workspace.run(&["restore", backup, "--data", data]).code(1);
    let nowhere = workspace.path("nowhere");
    workspace
        .run(&["restore", nowhere.to_str().unwrap(), "--data", workspace.path("new").to_str().unwrap()])
        .code(1);
}
