//! Edits with the real binary: with a real editor process, with a patch, restored, and erased.

use crate::support::{RunResult, Workspace, text};
use serde_json::Value;

/// JSON with whitespace and digits that no serializer would write.
const ODD: &str = "{ \"z\":1.50 ,\"id\": 12345678901234567890123, \"to\" : \"a\" }";

/// An editor: a script that gets the file as its argument.
fn editor(workspace: &Workspace, name: &str, script: &str) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let path = workspace.file(name, format!("#!/bin/sh\nset -e\n{script}\n"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn edit(workspace: &Workspace, editor: &str, args: &[&str]) -> RunResult {
    let args: Vec<&str> = ["dlq", "edit"].into_iter().chain(args.iter().copied()).collect();
    let mut command = workspace.command(&args);
    command.env_remove("VISUAL").env("EDITOR", editor).env("TMPDIR", workspace.path("."));
    RunResult::of(&args, command.output().unwrap())
}

fn payload(workspace: &Workspace, id: &str) -> Vec<u8> {
    workspace.run(&["dlq", "show", id, "--payload", "--reveal"]).ok().stdout
}

/// Draft files that were left behind.
fn drafts(workspace: &Workspace) -> Vec<String> {
    let entries = std::fs::read_dir(workspace.path(".")).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("redrive-edit-")).collect()
}

#[test]
fn an_editor_changes_what_is_delivered_and_the_original_can_be_restored() {
    let workspace = Workspace::new();
    let id = workspace.dead_letter("mail", ODD, "no such host");
    // Like most editors, this one adds a final line break.
    let fix = editor(&workspace, "fix", r#"sed -i 's/"a"/"b"/' "$1"; echo >> "$1"; stat -c %a "$1" > mode"#);
    let asked = edit(&workspace, &fix, &[&id]).code(5);
    asked.says("-  \"to\": \"a\"").says("+  \"to\": \"b\"").says("change dead letter");
    let kept = drafts(&workspace);
    assert_eq!(kept.len(), 1, "a text that was not used is not lost");
    std::fs::remove_file(workspace.path(&kept[0])).unwrap();
    assert_eq!(std::fs::read_to_string(workspace.path("mode")).unwrap(), "600\n", "nobody else reads it");
    let result = edit(&workspace, &format!("{fix} --ignored"), &[&id, "--yes"]);
    assert_eq!(result.code, Some(1), "the arguments are passed to the editor: {}", result.stderr);
    let done = edit(&workspace, &fix, &[&id, "--yes", "--reason", "moved", "--retry", "-o", "json"]).ok();
    assert_eq!(done.json()["status"], "retrying");
    assert_eq!(drafts(&workspace), Vec::<String>::new());
    let delivery = workspace.lease("mail");
    assert_eq!(text(&delivery["payload"]), ODD.replace("\"a\"", "\"b\""), "every other byte is as it was");
    let token = text(&delivery["token"]);
    workspace.run(&["fail", &token, "--error-type", "Again", "--message", "no", "--dead-letter"]).ok();
    let revisions = workspace.items(&["dlq", "diff", &id, "--list"]);
    let revision = |n: usize, field: &str| revisions[n][field].clone();
    assert_eq!((revision(0, "n"), revision(1, "n")), (0.into(), 1.into()));
    assert_eq!((revision(1, "by"), revision(1, "reason")), ("tester".into(), "moved".into()));
    workspace.run(&["dlq", "edit", &id, "--restore", "0", "--yes"]).ok();
    assert_eq!(payload(&workspace, &id), ODD.as_bytes(), "bit for bit");
    let letter = workspace.json(&["dlq", "show", &id]);
    assert_eq!(letter["edits"].as_array().unwrap().len(), 2);
    let acts = workspace.acts();
    assert_eq!(acts.iter().filter(|act| *act != "reveal").collect::<Vec<_>>(), ["restore", "retry", "edit"]);
    assert_eq!(acts.last().unwrap(), "reveal", "who edits sees everything, and that is on record first");
    workspace.run(&["doctor", "--deep"]).ok();
}

#[test]
fn two_operators_edit_one_letter_and_the_second_is_shown_the_first() {
    let workspace = Workspace::new();
    let id = workspace.dead_letter("mail", ODD, "no such host");
    let other = format!(
        "{} dlq edit {id} --payload faster.json --yes --actor eve > /dev/null 2>&1",
        env!("CARGO_BIN_EXE_redrive")
    );
    workspace.file("faster.json", r#"{"to":"eve"}"#);
    // The second user finishes while the first one types: the directory is not held.
    let slow = editor(&workspace, "slow", &format!("{other}\nprintf '{{\"to\":\"ada\"}}' > \"$1\""));
    let late = edit(&workspace, &slow, &[&id, "--yes"]).code(6);
    let late =
        late.says("version 2, edited by eve").says("+  \"to\": \"eve\"").says("is at version 2, not 1");
    assert_eq!(payload(&workspace, &id), br#"{"to":"eve"}"#, "nothing of the second got in");
    let kept = drafts(&workspace);
    assert_eq!(std::fs::read(workspace.path(&kept[0])).unwrap(), br#"{"to":"ada"}"#, "nor was it lost");
    late.says(&kept[0]);
    let draft = workspace.path(&kept[0]);
    workspace
        .run(&["dlq", "edit", &id, "--payload", draft.to_str().unwrap(), "--yes", "--if-version", "1"])
        .code(6);
    workspace
        .run(&["dlq", "edit", &id, "--payload", draft.to_str().unwrap(), "--yes", "--if-version", "2"])
        .ok();
    assert_eq!(payload(&workspace, &id), br#"{"to":"ada"}"#);
    assert_eq!(workspace.items(&["dlq", "diff", &id, "--list"]).len(), 3, "and nobody's work is gone");
}

#[test]
fn an_unusable_edit_changes_nothing() {
    let workspace = Workspace::new();
    let id = workspace.dead_letter("mail", ODD, "no such host");
    let broken = editor(&workspace, "broken", r#"printf '{"to":' > "$1""#);
    edit(&workspace, &broken, &[&id, "--yes"]).code(2).says("not JSON any more").says("your text is kept");
    let failing = editor(&workspace, "failing", "exit 3");
    edit(&workspace, &failing, &[&id, "--yes"]).code(1).says("ended with");
    edit(&workspace, "true", &[&id, "--yes"]).ok().says("nothing changed");
    edit(&workspace, "", &[&id, "--yes"]).code(2).says("neither VISUAL nor EDITOR");
    let large = workspace.file("large", vec![b'x'; 8 * 1024 * 1024 + 1]);
    workspace.run(&["dlq", "edit", &id, "--payload", &large, "--yes"]).code(2).says("longer than");
    workspace.run(&["dlq", "edit", &id, "--payload", "missing", "--yes"]).code(7).says("missing");
    workspace.run(&["dlq", "edit", &id, "--restore", "1", "--yes"]).code(7).says("has no revision 1");
    workspace.run(&["dlq", "edit", &id, "--header", "novalue"]).code(2).says("NAME=VALUE");
    let shown = workspace.run(&["dlq", "edit", &id, "--content-type", "text/x", "--dry-run"]).ok().text();
    assert_eq!(shown, "-content_type: \n+content_type: text/x\n");
    assert_eq!(payload(&workspace, &id), ODD.as_bytes());
    assert_eq!(workspace.json(&["dlq", "show", &id])["version"], 1);
    let binary = workspace.file("binary", [0xff, 0, 1]);
    workspace.run(&["dlq", "edit", &id, "--payload", &binary, "--yes"]).code(2).says("not UTF-8");
    workspace
        .run(&["dlq", "edit", &id, "--payload", &binary, "--yes", "--unchecked", "--header", "k=v"])
        .ok();
    assert_eq!(payload(&workspace, &id), [0xff, 0, 1]);
    edit(&workspace, "true", &[&id]).code(5).says("not text");
    let diff = workspace.run(&["dlq", "diff", &id]).ok().text();
    assert!(diff.starts_with("+header k: v\n-"), "{diff}");
    workspace.run(&["dlq", "diff", &id, "--from", "9"]).code(7).says("--list");
}

/// This many letters, each with its number in the payload, and one whose payload the patch does not fit.
fn many(workspace: &Workspace, count: usize, odd: usize) {
    let id = workspace.dead_letter("mail", ODD, "no such host");
    let mut letter = workspace.json(&["dlq", "show", &id, "--reveal"]);
    letter["death"] = 0.into();
    workspace.run(&["dlq", "abandon", &id]).ok();
    workspace.run(&["dlq", "purge", &id]).ok();
    let mut lines = String::new();
    for n in 1..=count {
        letter["id"] = format!("01981c3e-7d5a-7cc0-8b1f-{n:012x}").into();
        letter["payload"] =
            if n == odd { "no document".into() } else { format!("{{ \"n\":{n} ,\"host\": \"a\"}}").into() };
        lines.push_str(&letter.to_string());
        lines.push('\n');
    }
    let file = workspace.file("letters.ndjson", lines);
    assert_eq!(workspace.json(&["dlq", "import", &file])["imported"], count);
}

#[test]
fn a_patch_that_fails_on_item_4711_of_10000() {
    let workspace = Workspace::new();
    many(&workspace, 10_000, 4_711);
    let bad = "01981c3e-7d5a-7cc0-8b1f-000000001267";
    let patch = workspace.file("patch.json", r#"[{"op":"replace","path":"/host","value":"b"}]"#);
    let dry = workspace.run(&[
        "dlq",
        "patch",
        "--filter",
        "queue:mail",
        "--patch",
        &patch,
        "--dry-run",
        "-o",
        "json",
    ]);
    let dry = dry.code(4).says("fits 9999 dead letters and does not fit 1");
    let misfits = dry.json()["items"].as_array().unwrap().clone();
    assert_eq!((misfits.len(), text(&misfits[0]["id"])), (1, bad.to_owned()));
    assert!(text(&misfits[0]["why"]).contains("not JSON"), "{misfits:?}");
    assert!(workspace.items(&["dlq", "list", "payload.host:b"]).is_empty(), "a dry run changes nothing");
    let ran =
        workspace.run(&["dlq", "patch", "--filter", "queue:mail", "--patch", &patch, "--yes", "-o", "json"]);
    let done = ran.code(4).says("does not fit 1 of 10000").says(bad).json();
    assert_eq!(
        (&done["members"], &done["succeeded"], &done["skipped"]),
        (&10_000.into(), &9_999.into(), &1.into())
    );
    let out = workspace.path("after.ndjson");
    workspace.run(&["dlq", "export", "--full", "--out", out.to_str().unwrap()]).ok();
    let mut seen = std::collections::BTreeSet::new();
    for line in std::fs::read_to_string(out).unwrap().lines() {
        let letter: Value = serde_json::from_str(line).unwrap();
        let id = text(&letter["id"]);
        let n = usize::from_str_radix(&id[24..], 16).unwrap();
        let edits = letter["edits"].as_array().map_or(0, Vec::len);
        if id == bad {
            assert_eq!((text(&letter["payload"]), edits), ("no document".into(), 0), "left as it was");
        } else {
            assert_eq!(text(&letter["payload"]), format!("{{ \"n\":{n} ,\"host\": \"b\"}}"));
            assert_eq!(edits, 1, "once");
        }
        assert!(seen.insert(id), "nothing double");
    }
    assert_eq!(seen.len(), 10_000, "nothing lost");
    let again = workspace.run(&["dlq", "patch", "--all", "--patch", &patch, "--dry-run"]);
    again.code(4).says("fits 0 dead letters and does not fit 10000");
    workspace.run(&["doctor"]).ok();
}

#[test]
fn patches_are_checked_before_anything_is_opened() {
    let workspace = Workspace::new();
    for (patch, why) in [
        ("[", "--patch: not a JSON patch"),
        ("[]", "--patch: a patch has 1 to 100 steps"),
        (r#"[{"op":"drop","path":"/a"}]"#, "--patch: step 1"),
    ] {
        workspace.run(&["dlq", "patch", "--all", "--patch", patch]).code(2).says(why);
    }
    workspace.run(&["dlq", "patch", "--all", "--patch", "nowhere.json"]).code(7).says("nowhere.json");
    workspace.run(&["dlq", "patch", "--all"]).code(2).says("--patch");
    let id = workspace.dead_letter("mail", ODD, "no such host");
    let steps = r#"[{"op":"add","path":"/n","value":98765432109876543210987}]"#;
    let fed = workspace.feed(steps.as_bytes(), &["dlq", "patch", &id, "--patch", "-"]);
    fed.ok();
    assert_eq!(payload(&workspace, &id), ODD.replace(" }", ", \"n\" : 98765432109876543210987 }").as_bytes());
    workspace
        .run(&["dlq", "patch", &id, "--patch", r#"[{"op":"remove","path":"/x"}]"#])
        .code(6)
        .says("step 1");
}

#[test]
fn erase_removes_the_content_of_letters_and_reports_what_it_could_not_reach() {
    let workspace = Workspace::new();
    let secret = |n: usize| format!(r#"{{"customer":{{"email":"ada@example.com"}},"n":{n}}}"#);
    let ids: Vec<String> = (0..4).map(|n| workspace.dead_letter("mail", &secret(n), "no")).collect();
    let other = workspace.dead_letter("mail", r#"{"customer":{"email":"bob@example.com"}}"#, "no");
    workspace.run(&["dlq", "resolve", &ids[1]]).ok();
    workspace.run(&["dlq", "edit", &ids[2], "--header", "who=ada", "--yes"]).ok();
    workspace.run(&["dlq", "retry", &ids[3]]).ok();
    let waiting = workspace.enqueue("later", &secret(9));
    let by = ["erase", "--payload", "customer.email=ada@example.com"];
    let with = |more: &[&'static str]| by.iter().copied().chain(more.iter().copied()).collect::<Vec<_>>();
    let found = workspace.json(&with(&["--dry-run"]));
    assert_eq!((&found["letters"], &found["retrying"]), (&3.into(), &1.into()));
    assert_eq!((&found["waiting"], &found["leased"]), (&1.into(), &0.into()));
    workspace.run(&with(&[])).code(5).says("erase 3 dead letters, for good?");
    workspace.run(&with(&["--yes", "--max", "2"])).code(5).says("--max allows 2");
    let partial = workspace.run(&with(&["--yes", "--reason", "ticket 4411"])).code(4);
    partial.says("1 matching dead letters are being retried").says("--cancel-waiting");
    for id in &ids[..3] {
        let letter = workspace.json(&["dlq", "show", id]);
        assert_eq!((&letter["payload"], &letter["headers"]), (&"".into(), &serde_json::json!({})));
        assert_eq!(letter["erased"]["reason"], "ticket 4411");
        assert!(letter["erased"]["sha256"].as_str().unwrap().len() == 64);
        assert_eq!(workspace.items(&["dlq", "diff", id, "--list"]).len(), 0);
    }
    workspace.run(&["dlq", "diff", &ids[0]]).code(7).says("was erased");
    workspace.run(&["dlq", "retry", &ids[0]]).code(6).says("was erased");
    workspace.run(&["dlq", "edit", &ids[0], "--header", "a=b", "--yes"]).code(6).says("was erased");
    assert!(
        workspace.json(&["dlq", "show", &other, "--reveal"])["payload"].as_str().unwrap().contains("bob")
    );
    workspace.run(&with(&["--yes", "--cancel-waiting"])).code(4).says("are being retried");
    workspace.run(&["message", "show", &waiting]).code(7);
    let token = text(&workspace.lease("mail")["token"]);
    workspace.run(&["ack", &token]).ok();
    workspace.run(&with(&["--yes"])).ok();
    let hay = workspace.run(&["dlq", "export", "--full"]).ok().text();
    assert!(!hay.contains("ada@example.com") && hay.contains("bob@example.com"), "{hay}");
    workspace.run(&["erase", "--yes"]).code(2);
    workspace.run(&["erase", "--key", "k", "--tag", "t"]).code(2);
    workspace.run(&["erase", "--payload", "novalue"]).code(2).says("PATH=VALUE");
    workspace.run(&["doctor", "--deep"]).ok();
}
