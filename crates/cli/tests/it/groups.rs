//! The life cycle of a group on the command line.

use crate::support::{Workspace, text};
use serde_json::{Value, json};

fn group_of(workspace: &Workspace, letter: &str) -> String {
    text(&workspace.json(&["dlq", "show", letter])["group"])
}

fn status(workspace: &Workspace, group: &str) -> Value {
    workspace.json(&["group", "show", group])["status"].clone()
}

/// Retries a letter and lets it succeed.
fn redeem(workspace: &Workspace, letter: &str) {
    workspace.run(&["dlq", "retry", letter]).ok();
    let token = text(&workspace.lease("q")["token"]);
    workspace.run(&["ack", &token]).ok();
}

#[test]
fn a_group_is_acknowledged_resolved_and_regresses() {
    let workspace = Workspace::new();
    workspace.hasty_queue("q");
    let first = workspace.dead_letter("q", "1", "the bank said no");
    let second = workspace.dead_letter("q", "2", "the bank said no");
    let group = group_of(&workspace, &first);
    assert_eq!(status(&workspace, &group), "new");
    workspace.run(&["group", "ack", &group, "--reason", "on it"]).ok();
    let again = workspace.run(&["group", "ack", &group]);
    assert_eq!(again.code, Some(6), "{again:?}");
    assert!(again.stderr.contains("it is that already"), "{again:?}");
    workspace.run(&["group", "assign", &group, "bob"]).ok();
    workspace.run(&["group", "note", &group, "bank is down"]).ok();
    workspace.run(&["group", "link", &group, "https://example.org/7"]).ok();
    assert_eq!(workspace.run(&["group", "link", &group, "javascript:x"]).code, Some(2));
    let shown = workspace.json(&["group", "show", &group]);
    assert_eq!(shown["status"], "acknowledged");
    assert_eq!([&shown["owner"], &shown["note"]], [&json!("bob"), &json!("bank is down")]);
    assert_eq!(shown["history"][0]["text"], "on it");
    assert_eq!(shown["samples"].as_array().unwrap().len(), 2);
    assert_eq!(shown["hours"][0]["deaths"], 2);
    redeem(&workspace, &first);
    assert_eq!(status(&workspace, &group), "acknowledged");
    redeem(&workspace, &second);
    assert_eq!(status(&workspace, &group), "resolved", "the last one succeeded");
    workspace.dead_letter("q", "3", "the bank said no");
    assert_eq!(status(&workspace, &group), "regressed", "and it came back");
    let stats = workspace.json(&["dlq", "stats"]);
    assert_eq!(stats["groups"]["regressed"], 1);
    let alerts = workspace.json(&["queue", "report"])["alerts"].clone();
    // A busy machine may have another alert, about slow enqueues.
    let regressed = |alert: &Value| alert["rule"] == "regressed_groups";
    assert!(alerts.as_array().unwrap().iter().any(regressed), "{alerts}");
    let acts: Vec<String> =
        workspace.items(&["audit", "list", "--all"]).iter().rev().map(|row| text(&row["act"])).collect();
    let group_acts: Vec<&str> = acts.iter().map(String::as_str).filter(|act| act.contains("group")).collect();
    let wanted =
        ["acknowledge group", "assign group", "note group", "link group", "resolve group", "group came back"];
    assert_eq!(group_acts, wanted);
    workspace.run(&["doctor", "--deep"]).ok();
    let sheet = workspace.run(&["group", "show", &group]).ok();
    let page = String::from_utf8(sheet.stdout).unwrap();
    for part in ["regressed", "2: 2 ok, 0 back", "most", "history", "by queue", "bank is down"] {
        assert!(page.contains(part), "{part} is missing in {page}");
    }
}

#[test]
fn resolving_leaves_letters_alone_unless_asked() {
    let workspace = Workspace::new();
    workspace.hasty_queue("q");
    let first = workspace.dead_letter("q", "1", "no");
    let group = group_of(&workspace, &first);
    workspace.run(&["group", "resolve", &group]).ok();
    assert_eq!(workspace.json(&["dlq", "show", &first])["status"], "pending");
    let unasked = workspace.run(&["group", "resolve", &group, "--letters"]);
    assert_eq!(unasked.code, Some(5), "nobody is there to say yes: {unasked:?}");
    workspace.run(&["group", "resolve", &group, "--letters", "--yes", "--reason", "fixed"]).ok();
    assert_eq!(workspace.json(&["dlq", "show", &first])["status"], "resolved");
    let shown = workspace.json(&["group", "show", &group]);
    assert_eq!([&shown["status"], &shown["open"]], [&json!("resolved"), &json!(0)]);
    assert_eq!(shown["operations"].as_array().unwrap().len(), 1);
}

#[test]
fn groups_are_ignored_found_and_merged() {
    let workspace = Workspace::new();
    workspace.hasty_queue("q");
    let old = group_of(&workspace, &workspace.dead_letter("q", "1", "the bank said no"));
    let marker = workspace.json(&["marker", "deploy 1.4.2"]);
    assert_eq!(marker["n"], 1);
    let young = group_of(&workspace, &workspace.dead_letter("q", "2", "the shop is shut today"));
    let list = |args: &[&str]| -> Vec<String> {
        let args: Vec<&str> = ["group", "list"].iter().chain(args).copied().collect();
        workspace.items(&args).iter().map(|group| text(&group["id"])).collect()
    };
    for since in ["deploy 1.4.2", "last", "1"] {
        assert_eq!(list(&["--new-since", since]), [young.as_str()], "{since}");
    }
    assert_eq!(list(&["--new-since", "1h"]).len(), 2);
    assert_eq!(workspace.run(&["group", "list", "--new-since", "deploy 9"]).code, Some(7));
    assert_eq!(workspace.items(&["marker", "--list"]).len(), 1);
    assert_eq!(workspace.json(&["dlq", "stats"])["groups"]["new_since_marker"], 1);
    workspace.run(&["group", "ignore", &old, &young, "--count", "1"]).ok();
    assert_eq!(list(&["--status", "ignored"]).len(), 2);
    workspace.dead_letter("q", "3", "the bank said no");
    assert_eq!(list(&["--status", "new,regressed"]), [old.as_str()], "the count is over");
    workspace.run(&["group", "reopen", &young]).ok();
    workspace.run(&["group", "assign", &young, "eve"]).ok();
    assert_eq!(list(&["--owner", "eve"]), [young.as_str()]);
    assert_eq!(list(&["--owner", "none"]), [old.as_str()]);
    assert_eq!(list(&["--text", "SHOP"]), [young.as_str()]);
    assert_eq!(
        workspace.run(&["group", "merge", "--matching", "the"]).code,
        Some(5),
        "nobody is there to say yes"
    );
    assert_eq!(workspace.items(&["group", "merge", "--matching", "the", "--dry-run"]).len(), 2);
    let merged = workspace.json(&["group", "merge", "--matching", "the", "--yes"]);
    assert_eq!([&merged["id"], &merged["open"]], [&json!(old), &json!(3)]);
    assert_eq!(workspace.run(&["group", "merge", "--matching", "nobody says this", "--yes"]).code, Some(7));
    workspace.run(&["doctor"]).ok();
}
