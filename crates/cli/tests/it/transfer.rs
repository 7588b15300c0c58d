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
    from.run(&["dlq", "export", "--full", "--out", export]).ok().says("2 dead letters exported");
    from.run(&["dlq", "export", "--full", "--out", export]).code(5).says("is there already");
    assert_eq!(from.run(&["dlq", "export", "status:pending"]).ok().ndjson().len(), 1);
    assert_eq!(std::fs::read(export).unwrap(), from.run(&["dlq", "export", "--full"]).ok().stdout);

    let to = Office::new();
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

/// An office with one letter of every kind there is.
fn rich() -> Office {
    let office = Office::new();
    let set = ["queue", "set", "hard", "--max-attempts", "25", "--backoff", "fixed", "--initial", "0"];
    office.run(&set).ok();
    let binary = office.file("binary", [0xff, 0x00, 0x1b, b'\n', 0xc3, 0x28]);
    office
        .run(&["enqueue", "hard", "--payload-file", &binary, "--header", "Authorization=x", "--key", "k"])
        .ok();
    for n in 0..25 {
        let token = text(&office.lease("hard")["token"]);
        let message = format!("attempt {n} of bob@example.org: password=hunter{n}");
        // Two kinds in turn: the same failure again and again would be poison.
        let kind = if n % 2 == 0 { "Even" } else { "Odd" };
        office.run(&["fail", &token, "--error-type", kind, "--message", &message, "--code", "7"]).ok();
    }
    let context =
        r#"{"payload":{"b":1.0,"a":12345678901234567890123},"context":{"x":0.30000000000000004,"y":1e300}}"#;
    office.feed(context.as_bytes(), &["enqueue", "q", "-o", "ndjson"]).ok();
    let token = text(&office.lease("q")["token"]);
    office
        .run(&["fail", &token, "--error-type", "E", "--message", "odd \u{202e} \u{9b}", "--permanent"])
        .ok();
    let id = |n: u32| {
        office.dead_letter("q", &format!("{{\"n\": {n}}}"), &format!("cause {}", ["a", "b"][n as usize % 2]))
    };
    let (resolved, abandoned, review, noted, again) = (id(1), id(2), id(3), id(4), id(5));
    office.run(&["dlq", "resolve", &resolved, "--reason", "by hand"]).ok();
    office.run(&["dlq", "abandon", &abandoned]).ok();
    office.run(&["dlq", "review", &review]).ok();
    office.run(&["dlq", "note", &noted, "a note — with \"quotes\""]).ok();
    let (held, labelled, snoozed, assigned, moved, aside) = (id(6), id(7), id(8), id(9), id(10), id(11));
    office.run(&["queue", "set", "annex", "--max-attempts", "1"]).ok();
    office.run(&["dlq", "hold", &held]).ok();
    office.run(&["dlq", "label", &labelled, "--add", "urgent", "--add", "vip"]).ok();
    office.run(&["dlq", "snooze", &snoozed, "--for", "2h"]).ok();
    office.run(&["dlq", "assign", &assigned, "--to", "ada"]).ok();
    office.run(&["dlq", "move", &moved, "--to", "annex-dlq"]).ok();
    office.run(&["dlq", "quarantine", &aside, "--for", "3h"]).ok();
    // Sent back to another queue, and dead there.
    let sent = id(12);
    office.run(&["dlq", "retry", &sent, "--to", "annex", "--priority", "high", "--attempts", "3"]).ok();
    let token = text(&office.lease("annex")["token"]);
    office.run(&["fail", &token, "--error-type", "G", "--message", "there too", "--permanent"]).ok();
    // Edited twice, and edited back; and one of which only the name is left.
    let (edited, restored) = (id(13), id(14));
    for (n, letter) in [(1, &edited), (2, &edited), (3, &restored)] {
        let file = office.file("edited", format!("{{\"n\":  {n}}}"));
        office
            .run(&["dlq", "edit", letter, "--payload", &file, "--header", "x=y", "--reason", "typo", "--yes"])
            .ok();
    }
    office.run(&["dlq", "edit", &restored, "--restore", "0", "--yes"]).ok();
    office.run(&["enqueue", "q", "--payload", "secret", "--key", "gone"]).ok();
    let token = text(&office.lease("q")["token"]);
    office.run(&["fail", &token, "--error-type", "E", "--message", "no", "--permanent"]).ok();
    office.run(&["erase", "--key", "gone", "--yes", "--reason", "asked to"]).ok();
    // Sent back, and dead again: a second generation, and a later death.
    office.run(&["dlq", "retry", &again]).ok();
    let token = text(&office.lease("q")["token"]);
    office.run(&["fail", &token, "--error-type", "F", "--message", "again", "--permanent"]).ok();
    // Two causes that somebody put together, the first of which has no letter left.
    let first = office.dead_letter("q", "1", "completely different words here");
    let group = |id: &str| text(&office.json(&["dlq", "show", id])["group"]);
    office.run(&["group", "merge", &group(&first), &group(&review), "--yes"]).ok();
    let second = office.dead_letter("q", "2", "entirely unlike that other one");
    let third = office.dead_letter("q", "3", "nobody said such things before");
    office.run(&["group", "merge", &group(&second), &group(&third), "--yes"]).ok();
    office.run(&["dlq", "abandon", &second]).ok();
    office.run(&["dlq", "purge", &second]).ok();
    office
}

#[test]
fn a_full_export_of_an_import_into_an_empty_store_is_the_same_bytes() {
    let from = rich();
    let path = |office: &Office, name: &str| office.path(name).to_str().unwrap().to_owned();
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
    let to = Office::new();
    to.feed(&first, &["dlq", "import", "-"]).ok();
    let second = to.run(&["dlq", "export", "--full"]).ok().stdout;
    assert_eq!(String::from_utf8(second).unwrap(), String::from_utf8(first.clone()).unwrap());
    to.run(&["doctor", "--deep"]).ok();
    // The same by way of a directory.
    from.run(&["dlq", "export", "--full", "--dir", &path(&from, "letters")]).ok();
    let third = Office::new();
    third.run(&["dlq", "import", &path(&from, "letters")]).ok();
    assert_eq!(third.run(&["dlq", "export", "--full"]).ok().stdout, first);
    from.run(&["dlq", "export", "--dir", &path(&from, "letters")]).code(5).says("is not empty");
}

#[test]
fn a_masked_export_is_not_imported() {
    let from = Office::new();
    from.dead_letter("q", "{\"password\":\"x\"}", "late");
    let masked = from.run(&["dlq", "export"]).ok().says("masked").stdout;
    let to = Office::new();
    let ran = to.feed(&masked, &["dlq", "import", "-"]).code(5);
    ran.says("line 1").says("this letter is masked").says("--full");
    let listed = from.run(&["dlq", "list", "-o", "ndjson"]).ok().stdout;
    to.feed(&listed, &["dlq", "import", "-"]).code(5).says("this letter is masked");
    let dir = from.path("dir");
    let dir = dir.to_str().unwrap();
    from.run(&["dlq", "export", "--dir", dir]).ok();
    to.run(&["dlq", "import", dir]).code(5).says("is a masked export");
    assert!(to.items(&["dlq", "list"]).is_empty());
    // An export that did not finish has no index; one with a file gone or changed says which.
    std::fs::remove_file(from.path("dir").join("index.json")).unwrap();
    to.run(&["dlq", "import", dir]).code(2).says("the export did not finish");
}

#[test]
fn a_file_that_is_cut_is_imported_up_to_the_cut_and_again_from_there() {
    let from = Office::new();
    for n in 0..20 {
        from.dead_letter("q", &format!("{{\"n\":{n}}}"), "late");
    }
    let whole = from.run(&["dlq", "export", "--full"]).ok().stdout;
    let lines: Vec<usize> =
        whole.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(n, _)| n + 1).collect();
    let to = Office::new();
    // In the middle of the eighth line.
    let cut = (lines[6] + lines[7]) / 2;
    let ran = to.feed(&whole[..cut], &["dlq", "import", "-", "-o", "json"]).code(2);
    let ran = ran.says("line 8: the JSON ends too early").says("go on after line 7");
    assert_eq!(ran.json()["imported"], 7);
    assert_eq!(to.run(&["dlq", "export", "--full"]).ok().stdout, whole[..lines[6]]);
    let report = to.feed(&whole, &["dlq", "import", "-", "-o", "json"]).ok().json();
    assert_eq!(report, serde_json::json!({"imported": 13, "skipped": 7, "failed": 0}));
    assert_eq!(to.run(&["dlq", "export", "--full"]).ok().stdout, whole);
    // A directory with a file that is cut, gone, or called something else.
    let dir = from.path("dir");
    let path = dir.to_str().unwrap();
    from.run(&["dlq", "export", "--full", "--dir", path]).ok();
    let first = text(&from.json(&["dlq", "list", "--limit", "1"])["items"][0]["id"]);
    let file = dir.join(format!("{first}.json"));
    let content = std::fs::read(&file).unwrap();
    std::fs::write(&file, &content[..content.len() / 2]).unwrap();
    let other = Office::new();
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
fn a_sheet_is_harmless_and_has_everything() {
    let office = Office::new();
    let nasty = ["=cmd|' /C calc'!A0", "+1", "-1+1", "@SUM(A1)", "\t=1", "'=1", "a \"b\",\nc", "＝1", ""];
    for payload in nasty {
        let file = office.file("payload", payload);
        office.run(&["enqueue", "q", "--payload-file", &file]).ok();
        let token = text(&office.lease("q")["token"]);
        office.run(&["fail", &token, "--error-type", "=E()", "--message", payload, "--permanent"]).ok();
    }
    let ran = office.run(&["dlq", "export", "-o", "csv"]).ok();
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
    let office = Office::new();
    std::fs::create_dir_all(office.path("dlq/items")).unwrap();
    for n in 1..=3 {
        std::fs::write(office.path(&format!("dlq/items/item-{n}.json")), item(n)).unwrap();
    }
    std::fs::write(office.path("dlq/index.json"), "{}").unwrap();
    let import = ["dlq", "import", "dlq", "--from", "mapreduce", "--queue", "jobs"];
    assert_eq!(office.json(&import)["imported"], 3);
    assert_eq!(office.json(&import)["skipped"], 3, "the same item is the same letter");
    let letters = office.items(&["dlq", "list", "queue:jobs"]);
    assert_eq!(letters[0]["key"], "item-3");
    assert_eq!(letters[1]["status"], "review");
    let payload = office.run(&["dlq", "show", &text(&letters[0]["id"]), "--payload"]).ok().text();
    assert_eq!(payload, r#"{"file":"src/3.rs","big":12345678901234567890}"#);
    assert_eq!(office.items(&["group", "list"]).len(), 1);
    office.run(&["dlq", "retry", &text(&letters[0]["id"])]).ok();
    assert_eq!(office.lease("jobs")["attempt"], 1);
    office.run(&["doctor", "--deep"]).ok();
    // A mapping of one's own, over lines.
    let map = office.file("map.toml", "queue = \"old\"\n[fields]\npayload = \"args\"\ndead_at = \"at\"\n");
    let lines = "{\"args\":[1, 2],\"at\":1700000000}\n{\"at\":1700000000}\n";
    let ran = office.feed(lines.as_bytes(), &["dlq", "import", "-", "--map", &map, "-o", "json"]).code(2);
    assert_eq!(ran.says("line 2: there is no payload").json()["imported"], 1);
    assert_eq!(text(&office.items(&["dlq", "list", "queue:old"])[0]["payload"]), "[1, 2]");
    office.run(&["dlq", "import", "dlq", "--from", "mapreduce"]).code(2).says("no queue");
    office.run(&["dlq", "import", "x.ndjson", "--queue", "q"]).code(2).says("--queue is for mapped letters");
}

#[test]
fn a_bad_line_of_an_import_is_named() {
    let from = Office::new();
    from.dead_letter("q", "1", "late");
    from.dead_letter("q", "2", "late");
    let mut lines: Vec<String> =
        from.run(&["dlq", "export", "--full"]).ok().text().lines().map(str::to_owned).collect();
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
