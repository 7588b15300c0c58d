//! The life of a group on the command line.

use crate::support::{Office, text};
use serde_json::{Value, json};

fn group_of(office: &Office, letter: &str) -> String {
    text(&office.json(&["dlq", "show", letter])["group"])
}

fn status(office: &Office, group: &str) -> Value {
    office.json(&["group", "show", group])["status"].clone()
}

/// Sends a letter back and lets it succeed.
fn redeem(office: &Office, letter: &str) {
    office.run(&["dlq", "retry", letter]).ok();
    let token = text(&office.lease("q")["token"]);
    office.run(&["ack", &token]).ok();
}

#[test]
fn a_group_lives() {
    let office = Office::new();
    office.hasty_queue("q");
    let first = office.dead_letter("q", "1", "the bank said no");
    let second = office.dead_letter("q", "2", "the bank said no");
    let group = group_of(&office, &first);
    assert_eq!(status(&office, &group), "new");
    office.run(&["group", "ack", &group, "--reason", "on it"]).ok();
    let again = office.run(&["group", "ack", &group]);
    assert_eq!(again.code, Some(6), "{again:?}");
    assert!(again.stderr.contains("it is that already"), "{again:?}");
    office.run(&["group", "assign", &group, "bob"]).ok();
    office.run(&["group", "note", &group, "bank is down"]).ok();
    office.run(&["group", "link", &group, "https://example.org/7"]).ok();
    assert_eq!(office.run(&["group", "link", &group, "javascript:x"]).code, Some(2));
    let shown = office.json(&["group", "show", &group]);
    assert_eq!(shown["status"], "acknowledged");
    assert_eq!([&shown["owner"], &shown["note"]], [&json!("bob"), &json!("bank is down")]);
    assert_eq!(shown["history"][0]["text"], "on it");
    assert_eq!(shown["samples"].as_array().unwrap().len(), 2);
    assert_eq!(shown["hours"][0]["deaths"], 2);
    redeem(&office, &first);
    assert_eq!(status(&office, &group), "acknowledged");
    redeem(&office, &second);
    assert_eq!(status(&office, &group), "resolved", "the last one succeeded");
    office.dead_letter("q", "3", "the bank said no");
    assert_eq!(status(&office, &group), "regressed", "and it came back");
    let stats = office.json(&["dlq", "stats"]);
    assert_eq!(stats["groups"]["regressed"], 1);
    let alerts = office.json(&["queue", "report"])["alerts"].clone();
    assert_eq!(
        alerts[0]["alert"].as_str().or(alerts[0]["rule"].as_str()),
        Some("regressed_groups"),
        "{alerts}"
    );
    let acts: Vec<String> =
        office.items(&["audit", "list", "--all"]).iter().rev().map(|row| text(&row["act"])).collect();
    let told: Vec<&str> = acts.iter().map(String::as_str).filter(|act| act.contains("group")).collect();
    let wanted =
        ["acknowledge group", "assign group", "note group", "link group", "resolve group", "group came back"];
    assert_eq!(told, wanted);
    office.run(&["doctor", "--deep"]).ok();
    let sheet = office.run(&["group", "show", &group]).ok();
    let page = String::from_utf8(sheet.stdout).unwrap();
    for part in ["regressed", "2: 2 ok, 0 back", "most", "history", "by queue", "bank is down"] {
        assert!(page.contains(part), "{part} is missing in {page}");
    }
}

#[test]
fn resolving_leaves_letters_alone_unless_asked() {
    let office = Office::new();
    office.hasty_queue("q");
    let first = office.dead_letter("q", "1", "no");
    let group = group_of(&office, &first);
    office.run(&["group", "resolve", &group]).ok();
    assert_eq!(office.json(&["dlq", "show", &first])["status"], "pending");
    let unasked = office.run(&["group", "resolve", &group, "--letters"]);
    assert_eq!(unasked.code, Some(5), "nobody is there to say yes: {unasked:?}");
    office.run(&["group", "resolve", &group, "--letters", "--yes", "--reason", "fixed"]).ok();
    assert_eq!(office.json(&["dlq", "show", &first])["status"], "resolved");
    let shown = office.json(&["group", "show", &group]);
    assert_eq!([&shown["status"], &shown["open"]], [&json!("resolved"), &json!(0)]);
    assert_eq!(shown["operations"].as_array().unwrap().len(), 1);
}

#[test]
fn groups_are_ignored_found_and_merged() {
    let office = Office::new();
    office.hasty_queue("q");
    let old = group_of(&office, &office.dead_letter("q", "1", "the bank said no"));
    let marker = office.json(&["marker", "deploy 1.4.2"]);
    assert_eq!(marker["n"], 1);
    let young = group_of(&office, &office.dead_letter("q", "2", "the shop is shut today"));
    let list = |args: &[&str]| -> Vec<String> {
        let args: Vec<&str> = ["group", "list"].iter().chain(args).copied().collect();
        office.items(&args).iter().map(|group| text(&group["id"])).collect()
    };
    for since in ["deploy 1.4.2", "last", "1"] {
        assert_eq!(list(&["--new-since", since]), [young.as_str()], "{since}");
    }
    assert_eq!(list(&["--new-since", "1h"]).len(), 2);
    assert_eq!(office.run(&["group", "list", "--new-since", "deploy 9"]).code, Some(7));
    assert_eq!(office.items(&["marker", "--list"]).len(), 1);
    assert_eq!(office.json(&["dlq", "stats"])["groups"]["new_since_marker"], 1);
    office.run(&["group", "ignore", &old, &young, "--count", "1"]).ok();
    assert_eq!(list(&["--status", "ignored"]).len(), 2);
    office.dead_letter("q", "3", "the bank said no");
    assert_eq!(list(&["--status", "new,regressed"]), [old.as_str()], "the count is over");
    office.run(&["group", "reopen", &young]).ok();
    office.run(&["group", "assign", &young, "eve"]).ok();
    assert_eq!(list(&["--owner", "eve"]), [young.as_str()]);
    assert_eq!(list(&["--owner", "none"]), [old.as_str()]);
    assert_eq!(list(&["--text", "SHOP"]), [young.as_str()]);
    assert_eq!(
        office.run(&["group", "merge", "--matching", "the"]).code,
        Some(5),
        "nobody is there to say yes"
    );
    assert_eq!(office.items(&["group", "merge", "--matching", "the", "--dry-run"]).len(), 2);
    let merged = office.json(&["group", "merge", "--matching", "the", "--yes"]);
    assert_eq!([&merged["id"], &merged["open"]], [&json!(old), &json!(3)]);
    assert_eq!(office.run(&["group", "merge", "--matching", "nobody says this", "--yes"]).code, Some(7));
    office.run(&["doctor"]).ok();
}
