//! Breakers, poison and groups as an operator sees them. Every command is a separate process, so everything that one
//! knows about another has been on disk in between.

use crate::support::{Workspace, text};
use serde_json::Value;

/// Fails a delivery as if its dependency were down.
fn refused(workspace: &Workspace, token: &str) {
    let message = "connect to 10.0.0.7:443 failed: connection refused";
    workspace.run(&["fail", token, "--error-type", "ConnectionError", "--message", message]).ok();
}

fn tokens(deliveries: &[Value]) -> Vec<String> {
    deliveries.iter().map(|d| text(&d["token"])).collect()
}

#[test]
fn a_breaker_holds_probes_and_closes_over_restarts() {
    let workspace = Workspace::new();
    let lines: String = (0..12).map(|n| format!("{{\"payload\":{n},\"kind\":\"a\"}}\n")).collect();
    // One queue whose breaker stays open during the test, and one whose breaker is soon half open.
    for (queue, open_for) in [("q", "1h"), ("soon", "100ms")] {
        let set = ["queue", "set", queue, "--max-attempts", "50", "--breaker", "kind", "--lease", "1h"];
        let waits = ["--breaker-open-for", open_for, "--backoff", "fixed", "--initial", "0"];
        workspace.run(&[set.as_slice(), &waits].concat()).ok();
        workspace.feed(lines.as_bytes(), &["enqueue", queue, "--ndjson"]).ok();
    }
    // Seven messages are leased when the dependency fails; five failures in a row open the breaker.
    let out = tokens(&workspace.items(&["lease", "q", "--max", "7", "--worker", "w1"]));
    assert_eq!(out.len(), 7);
    out[..5].iter().for_each(|token| refused(&workspace, token));
    let open = workspace.items(&["breaker", "list"]).remove(0);
    assert_eq!((&open["state"], &open["key"], &open["held"]), (&"open".into(), &"a".into(), &10.into()));
    // Another key is not affected, and failures of messages leased before change nothing.
    let other = text(&workspace.json(&["enqueue", "q", "--payload", "x", "--kind", "b"])["id"]);
    let now = workspace.items(&["lease", "q", "--max", "50", "--worker", "w2"]);
    assert_eq!(now.iter().map(|d| text(&d["id"])).collect::<Vec<_>>(), [other]);
    out[5..].iter().for_each(|token| refused(&workspace, token));
    let held = workspace.items(&["message", "list", "queue:q kind:a attempts:0"]);
    assert_eq!(held.len(), 5, "what was held has used no attempt");
    // When the open time is over, three probes are allowed in total, whichever process leases.
    let out = tokens(&workspace.items(&["lease", "soon", "--max", "5", "--worker", "w1"]));
    out.iter().for_each(|token| refused(&workspace, token));
    let first = workspace.items(&["lease", "soon", "--wait", "10m", "--max", "2", "--worker", "w3"]);
    let more = workspace.items(&["lease", "soon", "--max", "50", "--worker", "w4"]);
    assert_eq!((first.len(), more.len()), (2, 1));
    assert_eq!(workspace.items(&["breaker", "list", "soon"])[0]["state"], "half_open");
    assert_eq!(workspace.items(&["lease", "soon", "--max", "50", "--worker", "w5"]).len(), 0);
    tokens(&first).iter().for_each(|token| drop(workspace.run(&["ack", token]).ok()));
    let closed = workspace.items(&["breaker", "list", "soon"]).remove(0);
    assert_eq!((&closed["state"], &closed["failures_in_a_row"]), (&"closed".into(), &0.into()));
    assert_eq!(workspace.items(&["lease", "soon", "--max", "50", "--worker", "w5"]).len(), 9);
    workspace.run(&["doctor", "--deep"]).ok();
}

#[test]
fn an_operator_opens_a_breaker_by_hand() {
    let workspace = Workspace::new();
    workspace.run(&["queue", "set", "q"]).ok();
    workspace.run(&["breaker", "open", "q"]).code(2).says("has no breaker; name its key first");
    workspace.run(&["queue", "set", "q", "--breaker", "queue"]).ok();
    workspace.enqueue("q", "x");
    let open = workspace.json(&["breaker", "open", "q", "--reason", "bank holiday"]);
    assert_eq!((&open["forced"], &open["held"], &open["until"]), (&true.into(), &1.into(), &Value::Null));
    assert_eq!(workspace.items(&["lease", "q"]).len(), 0);
    let table = text(&Value::from(workspace.run(&["breaker", "list"]).ok().text()));
    assert!(table.contains("bank holiday (tester)"), "{table}");
    workspace.run(&["breaker", "close", "q"]).ok();
    assert_eq!(workspace.items(&["lease", "q"]).len(), 1);
    workspace.run(&["breaker", "list", "nope"]).code(7);
    workspace.run(&["queue", "set", "q", "--breaker", "none"]).ok();
    workspace.run(&["breaker", "list", "--fail-empty"]).code(3);
}

#[test]
fn the_same_failure_ten_times_is_poison_and_three_crashes_are() {
    let workspace = Workspace::new();
    let set = "queue set q --max-attempts 100 --backoff fixed --initial 0";
    workspace.run(&set.split(' ').collect::<Vec<_>>()).ok();
    let id = workspace.enqueue("q", "x");
    for n in 1..=10 {
        let settled = workspace.fail("q", "cannot render the invoice");
        assert_eq!(settled["state"], if n < 10 { "ready" } else { "dead" }, "failure {n}");
    }
    let letter = workspace.json(&["dlq", "show", &id]);
    assert_eq!((&letter["reason"], &letter["status"]), (&"poison".into(), &"quarantined".into()));
    assert_eq!((&letter["category"], &letter["route"]), (&"poison".into(), &"poison".into()));
    let why = letter["failures"].as_array().unwrap().last().unwrap()["reasons"].to_string();
    assert!(why.contains("10 times in a row"), "{why}");

    let bad = workspace.enqueue("q", "bad");
    let good = workspace.enqueue("q", "good");
    let both = workspace.items(&["lease", "q", "--max", "9", "--lease", "1h"]);
    assert_eq!(both.len(), 2);
    let crash = |token: &str| {
        let fail = ["fail", token, "--error-type", "Crash", "--message", "exit by signal 11", "--crashed"];
        workspace.run(&fail).ok();
    };
    tokens(&both).iter().for_each(|token| crash(token));
    // From here on each message runs alone: the good one succeeds, the bad one crashes twice more.
    for _ in 0..3 {
        let alone = workspace.items(&["lease", "q", "--max", "9", "--lease", "1h", "--wait", "10m"]);
        assert_eq!(alone.len(), 1, "suspects run alone");
        let token = text(&alone[0]["token"]);
        if alone[0]["id"] == good.as_str() {
            workspace.run(&["ack", &token]).ok();
        } else {
            crash(&token);
        }
    }
    assert_eq!(workspace.json(&["dlq", "show", &bad])["reason"], "poison");
    workspace.run(&["dlq", "show", &good]).code(7);
}

#[test]
fn groups_show_what_varies_and_can_be_merged() {
    let workspace = Workspace::new();
    workspace.run(&["queue", "set", "q", "--max-attempts", "1"]).ok();
    for user in ["ann", "bob", "cyd", "dan", "eve"] {
        workspace.dead_letter(
            "q",
            user,
            &format!("no such account for user {user} in the ledger of the bank"),
        );
    }
    workspace.dead_letter("q", "x", "the printer is on fire");
    let groups = workspace.items(&["group", "list"]);
    assert_eq!(groups.len(), 2, "{groups:?}");
    let first = text(&groups[0]["id"]);
    assert_eq!(groups[0]["open"], 5);
    let shown = workspace.json(&["group", "show", &first]);
    assert!(shown["template"].as_str().unwrap().contains("<*>"), "{shown}");
    assert_eq!(shown["variables"][0]["distinct"], 5);
    let second = text(&groups[1]["id"]);
    assert_eq!(workspace.items(&["group", "merge", &first, &second, "--dry-run"]).len(), 2);
    workspace.run(&["group", "merge", &first, &second]).code(5);
    assert_eq!(workspace.items(&["group", "list"]).len(), 2, "nobody said yes");
    let merged = workspace.json(&["group", "merge", &first, &second, "--yes", "--reason", "one cause"]);
    assert_eq!((&merged["open"], &merged["id"]), (&6.into(), &first.as_str().into()));
    assert_eq!(workspace.json(&["group", "show", &second])["id"], first.as_str(), "the old name leads to it");
    assert_eq!(workspace.items(&["dlq", "list", &format!("group:{first}")]).len(), 6);
    workspace.run(&["group", "merge", &first, "00000000000000aa", "--yes"]).code(7);
    workspace.run(&["doctor", "--deep"]).ok();
}

#[test]
fn rules_and_patterns_of_the_configuration_count_when_a_failure_is_reported() {
    let workspace = Workspace::new();
    let toml = "[[signature.rule]]\nmatch = \"printer .* fire\"\nfingerprint = \"printers burn\"\n\
                [[classify.pattern]]\nname = \"fire\"\nmatch = \"on fire\"\npermanent = true\n";
    workspace.file("redrive.toml", toml);
    let id = workspace.enqueue("q", "x");
    let settled = workspace.fail("q", "the printer in room 7 is on fire");
    assert_eq!((&settled["state"], &settled["reason"]), (&"dead".into(), &"permanent".into()));
    assert_eq!(workspace.json(&["dlq", "show", &id])["signature"], "printers burn");
    workspace.file("redrive.toml", "[[signature.rule]]\nmatch = \"(\"\nfingerprint = \"x\"\n");
    workspace.run(&["queue", "list"]).code(2).says("signature rule 1");
}

#[test]
fn workers_are_listed_while_a_process_holds_the_directory() {
    let workspace = Workspace::new();
    workspace.run(&["enqueue", "jobs", "--payload", "x"]).ok();
    workspace.run(&["worker", "list"]).ok();
    workspace.run(&["worker", "list", "--fail-empty"]).code(3);
    workspace.run(&["lease", "jobs", "--worker", "ada"]).ok();
    // Nobody holds the directory between two commands, so that what is known is the lease in the store.
    let ada = workspace.items(&["worker", "list"]).remove(0);
    assert_eq!((&ada["worker"], &ada["in_hand"]), (&Value::from("ada"), &Value::from(1)));
    assert_eq!(ada["leases"][0]["queue"], "jobs");
    assert!(workspace.items(&["worker", "list", "other"]).is_empty());
    let table = workspace.run(&["worker", "list"]).ok().text();
    assert!(table.contains("ada"), "{table}");
}
