//! Acts on a single dead letter from the command line, and how the letter records them.

use crate::support::{Workspace, text};

#[test]
fn a_letter_goes_to_another_queue_and_comes_back() {
    let workspace = Workspace::new();
    workspace.hasty_queue("payments");
    workspace.run(&["queue", "set", "debug", "--max-attempts", "1", "--dlq", "bench"]).ok();
    let id = workspace.dead_letter("payments", "{}", "no answer");
    let sent =
        ["dlq", "retry", &id, "--to", "debug", "--priority", "high", "--attempts", "3", "--reason", "look"];
    assert_eq!(workspace.json(&sent)["status"], "retrying");
    let message = workspace.json(&["message", "show", &id]);
    assert_eq!((&message["queue"], &message["origin"]), (&"debug".into(), &"payments".into()));
    assert_eq!((&message["priority"], &message["max_attempts"]), (&"high".into(), &3.into()));
    let letter = workspace.json(&["dlq", "show", &id]);
    assert_eq!((&letter["queue"], &letter["redriven"]["to"]), (&"payments".into(), &"debug".into()));

    assert_eq!(workspace.json(&["dlq", "undo", &id])["status"], "pending");
    workspace.run(&["message", "show", &id]).code(7);
    workspace.run(&["dlq", "undo", &id]).code(6).says("it is not being retried").says("it is pending now");
    assert_eq!(workspace.json(&["dlq", "show", &id])["redrives"], 0);

    workspace.run(&["dlq", "retry", &id, "--to", "nowhere"]).code(7).says("no queue");
    workspace.run(&["dlq", "retry", &id, "--to", "bench"]).code(5).says("dead letter queue of");
    workspace.run(&["dlq", "retry", &id, "--attempts", "0"]).code(2);
    workspace.run(&["dlq", "retry", &id, "--to", "debug"]).ok();
    assert_eq!(workspace.fail("debug", "broken here too")["state"], "dead");
    let letter = workspace.json(&["dlq", "show", &id]);
    assert_eq!((&letter["queue"], &letter["dlq"]), (&"debug".into(), &"bench".into()));
    let audit = workspace.items(&["audit", "list"]);
    assert!(
        audit.iter().any(|row| row["detail"] == "to queue debug, priority high, 3 attempts"),
        "{audit:?}"
    );
    workspace.run(&["doctor", "--deep"]).ok().says("everything holds");
}

#[test]
fn a_letter_is_kept_hidden_assigned_labelled_and_moved() {
    let workspace = Workspace::new();
    workspace.run(&["queue", "set", "q", "--route", "network=unreachable"]).ok();
    let id = workspace.dead_letter("q", "{}", "no answer");
    workspace.run(&["dlq", "hold", &id]).ok();
    workspace.run(&["dlq", "snooze", &id, "--for", "2h"]).ok();
    workspace.run(&["dlq", "snooze", &id]).code(2);
    workspace.run(&["dlq", "assign", &id, "--to", "ada"]).ok();
    workspace.run(&["dlq", "label", &id, "--add", "bug-7", "--add", "late"]).ok();
    workspace.run(&["dlq", "label", &id, "--remove", "late"]).ok();
    workspace.run(&["dlq", "move", &id, "--to", "q"]).code(2).says("is a queue");
    let current_dlq = text(&workspace.json(&["dlq", "show", &id])["dlq"]);
    let other = if current_dlq == "q-dlq" { "unreachable" } else { "q-dlq" };
    workspace.run(&["dlq", "move", &id, "--to", other]).ok();
    let letter = workspace.json(&["dlq", "show", &id]);
    assert_eq!((&letter["held"], &letter["owner"]), (&true.into(), &"ada".into()));
    assert_eq!((&letter["labels"][0], &letter["dlq"]), (&"bug-7".into(), &other.into()));
    for filter in ["held:yes", "snoozed:yes", "owner:ada", "tag:bug-7"] {
        assert_eq!(workspace.items(&["dlq", "list", filter]).len(), 1, "{filter}");
    }
    workspace.run(&["dlq", "list", "held:maybe"]).code(2).says("yes");
    workspace.run(&["dlq", "quarantine", &id, "--for", "1h"]).ok();
    assert_eq!(workspace.json(&["dlq", "release", &id])["status"], "pending");
    assert_eq!(workspace.items(&["dlq", "list", "snoozed:yes"]).len(), 0, "a decision wakes it");
    workspace.run(&["dlq", "abandon", &id]).ok();
    workspace.run(&["dlq", "purge", &id]).code(6).says("unhold");
    workspace.run(&["dlq", "unhold", &id]).ok();
    workspace.run(&["dlq", "purge", &id]).ok();
    assert_eq!(workspace.json(&["dlq", "unpurge", &id])["status"], "abandoned");
    workspace.run(&["doctor"]).ok();
}

#[test]
fn a_stale_version_is_a_conflict_that_names_the_current_one() {
    let workspace = Workspace::new();
    let id = workspace.dead_letter("q", "{}", "no answer");
    workspace.run(&["dlq", "review", &id, "--if-version", "1"]).ok();
    let stale = workspace.run(&["dlq", "resolve", &id, "--if-version", "1"]).code(6);
    stale.says("at version 2, not 1").says("it is review now, at version 2");
    workspace.run(&["dlq", "resolve", "--all", "--if-version", "1"]).code(2);
    workspace.run(&["dlq", "resolve", &id, &id, "--if-version", "1"]).code(2).says("one letter");
}

#[test]
fn letters_whose_work_is_done_are_closed_and_redrive_loops_end_in_review() {
    let workspace = Workspace::new();
    workspace.run(&["queue", "set", "q", "--max-attempts", "1", "--max-redrives", "1"]).ok();
    let keyed = ["enqueue", "q", "--payload", "x", "--key", "k"];
    let id = text(&workspace.json(&keyed)["id"]);
    assert_eq!(workspace.fail("q", "no")["state"], "dead");
    workspace.run(&["dlq", "retry", &id]).ok();
    assert_eq!(workspace.fail("q", "no")["state"], "dead");
    assert_eq!(workspace.json(&["dlq", "show", &id])["status"], "review");
    workspace.run(&["dlq", "retry", &id]).code(6).says("sent back 1 times already").says("force");
    workspace.run(&["dlq", "retry", &id, "--force"]).ok();
    workspace.run(&["ack", &text(&workspace.lease("q")["token"])]).ok();
    workspace.run(&["dlq", "reopen", &id]).ok();
    workspace.run(&["queue", "set", "q", "--max-redrives", "5"]).ok();
    workspace.run(&["dlq", "retry", &id]).ok().says("with the same key is done");
    assert_eq!(workspace.json(&["dlq", "show", &id])["resolution"], "already done");
}

#[test]
fn the_timeline_is_in_order() {
    let workspace = Workspace::new();
    workspace.hasty_queue("q");
    let id = workspace.enqueue("q", "x");
    workspace.fail("q", "first");
    workspace.fail("q", "second");
    workspace.run(&["dlq", "note", &id, "asked the bank"]).ok();
    workspace.run(&["dlq", "retry", &id]).ok();
    workspace.run(&["ack", &text(&workspace.lease("q")["token"])]).ok();
    let timeline = workspace.items(&["dlq", "timeline", &id]);
    let what: Vec<String> =
        timeline.iter().map(|m| text(&m["what"])).filter(|what| what != "started").collect();
    let expected =
        ["enqueued", "first_leased", "failed", "failed", "died", "noted", "redriven", "closed", "expires"];
    assert_eq!(what, expected);
    assert!(timeline.iter().any(|m| m["detail"] == "Timeout: second" && m["attempt"] == 2), "{timeline:?}");
    let table = workspace.run(&["dlq", "timeline", &id]).ok().text();
    assert!(table.contains("asked the bank") && table.contains("retried"), "{table}");
}

#[test]
fn the_timeline_has_every_act_and_death_without_the_audit_trail() {
    let workspace = Workspace::new();
    workspace.hasty_queue("q");
    workspace.hasty_queue("other");
    let id = workspace.enqueue("q", "x");
    let die = |queue: &str| {
        workspace.fail(queue, "first");
        workspace.fail(queue, "second");
    };
    die("q");
    workspace.run(&["dlq", "move", &id, "--to", "other-dlq", "--reason", "their letter"]).ok();
    workspace.run(&["dlq", "quarantine", &id, "--for", "1h"]).ok();
    workspace.run(&["dlq", "release", &id]).ok();
    workspace.run(&["dlq", "resolve", &id, "--reason", "fixed"]).ok();
    workspace.run(&["dlq", "reopen", &id]).ok();
    workspace.run(&["dlq", "retry", "--filter", "queue:q", "--yes", "--reason", "deployed"]).ok();
    die("q");
    let timeline = workspace.items(&["dlq", "timeline", &id]);
    let acts: Vec<(String, String)> = timeline
        .iter()
        .map(|m| (text(&m["what"]), m["detail"].as_str().unwrap_or_default().to_owned()))
        .filter(|(what, _)| !["enqueued", "first_leased", "started", "failed"].contains(&what.as_str()))
        .collect();
    let what: Vec<&str> = acts.iter().map(|(what, _)| what.as_str()).collect();
    let expected = ["died", "moved", "quarantined", "released", "closed", "reopened", "redriven", "died"];
    assert_eq!(what, expected);
    assert!(
        acts[0].1.ends_with("in queue q, into dead letter queue q-dlq"),
        "it did not die where it was moved: {acts:?}"
    );
    assert_eq!(acts[1].1, "from dead letter queue q-dlq to other-dlq");
    let redriven = timeline.iter().find(|m| m["what"] == "redriven").unwrap();
    assert_eq!(redriven["why"], "deployed");
    assert_eq!(redriven["operation"], workspace.items(&["op", "list"])[0]["id"]);
    let trail = workspace.items(&["audit", "list", "--target", &id]);
    assert_eq!(trail.len(), 5, "{trail:?}");
    for row in &trail {
        assert!(
            timeline.iter().any(|m| m["at"] == row["at"] && m["by"] == row["actor"]),
            "{row} in {timeline:?}"
        );
    }
}
