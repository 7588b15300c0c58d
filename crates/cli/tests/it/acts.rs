//! What a person does to one dead letter at a terminal, and what the letter says of it afterwards.

use crate::support::{Office, text};

#[test]
fn a_letter_goes_to_another_queue_and_comes_back() {
    let office = Office::new();
    office.hasty_queue("payments");
    office.run(&["queue", "set", "debug", "--max-attempts", "1", "--dlq", "bench"]).ok();
    let id = office.dead_letter("payments", "{}", "no answer");
    let sent =
        ["dlq", "retry", &id, "--to", "debug", "--priority", "high", "--attempts", "3", "--reason", "look"];
    assert_eq!(office.json(&sent)["status"], "retrying");
    let message = office.json(&["message", "show", &id]);
    assert_eq!((&message["queue"], &message["origin"]), (&"debug".into(), &"payments".into()));
    assert_eq!((&message["priority"], &message["max_attempts"]), (&"high".into(), &3.into()));
    let letter = office.json(&["dlq", "show", &id]);
    assert_eq!((&letter["queue"], &letter["redriven"]["to"]), (&"payments".into(), &"debug".into()));

    assert_eq!(office.json(&["dlq", "undo", &id])["status"], "pending");
    office.run(&["message", "show", &id]).code(7);
    office.run(&["dlq", "undo", &id]).code(6).says("it is not being retried").says("it is pending now");
    assert_eq!(office.json(&["dlq", "show", &id])["redrives"], 0);

    office.run(&["dlq", "retry", &id, "--to", "nowhere"]).code(7).says("no queue");
    office.run(&["dlq", "retry", &id, "--to", "bench"]).code(5).says("drawer of queue");
    office.run(&["dlq", "retry", &id, "--attempts", "0"]).code(2);
    office.run(&["dlq", "retry", &id, "--to", "debug"]).ok();
    assert_eq!(office.fail("debug", "broken here too")["state"], "dead");
    let letter = office.json(&["dlq", "show", &id]);
    assert_eq!((&letter["queue"], &letter["dlq"]), (&"debug".into(), &"bench".into()));
    let audit = office.items(&["audit", "list"]);
    assert!(
        audit.iter().any(|row| row["detail"] == "to queue debug, priority high, 3 attempts"),
        "{audit:?}"
    );
    office.run(&["doctor", "--deep"]).ok().says("everything holds");
}

#[test]
fn a_letter_is_kept_hidden_assigned_labelled_and_moved() {
    let office = Office::new();
    office.run(&["queue", "set", "q", "--route", "network=unreachable"]).ok();
    let id = office.dead_letter("q", "{}", "no answer");
    office.run(&["dlq", "hold", &id]).ok();
    office.run(&["dlq", "snooze", &id, "--for", "2h"]).ok();
    office.run(&["dlq", "snooze", &id]).code(2);
    office.run(&["dlq", "assign", &id, "--to", "ada"]).ok();
    office.run(&["dlq", "label", &id, "--add", "bug-7", "--add", "late"]).ok();
    office.run(&["dlq", "label", &id, "--remove", "late"]).ok();
    office.run(&["dlq", "move", &id, "--to", "q"]).code(2).says("is a queue");
    let lies = text(&office.json(&["dlq", "show", &id])["dlq"]);
    let other = if lies == "q-dlq" { "unreachable" } else { "q-dlq" };
    office.run(&["dlq", "move", &id, "--to", other]).ok();
    let letter = office.json(&["dlq", "show", &id]);
    assert_eq!((&letter["held"], &letter["owner"]), (&true.into(), &"ada".into()));
    assert_eq!((&letter["labels"][0], &letter["dlq"]), (&"bug-7".into(), &other.into()));
    for filter in ["held:yes", "snoozed:yes", "owner:ada", "tag:bug-7"] {
        assert_eq!(office.items(&["dlq", "list", filter]).len(), 1, "{filter}");
    }
    office.run(&["dlq", "list", "held:maybe"]).code(2).says("yes");
    office.run(&["dlq", "quarantine", &id, "--for", "1h"]).ok();
    assert_eq!(office.json(&["dlq", "release", &id])["status"], "pending");
    assert_eq!(office.items(&["dlq", "list", "snoozed:yes"]).len(), 0, "a decision wakes it");
    office.run(&["dlq", "abandon", &id]).ok();
    office.run(&["dlq", "purge", &id]).code(6).says("unhold");
    office.run(&["dlq", "unhold", &id]).ok();
    office.run(&["dlq", "purge", &id]).ok();
    assert_eq!(office.json(&["dlq", "unpurge", &id])["status"], "abandoned");
    office.run(&["doctor"]).ok();
}

#[test]
fn a_stale_version_is_a_conflict_that_says_what_is_now() {
    let office = Office::new();
    let id = office.dead_letter("q", "{}", "no answer");
    office.run(&["dlq", "review", &id, "--if-version", "1"]).ok();
    let stale = office.run(&["dlq", "resolve", &id, "--if-version", "1"]).code(6);
    stale.says("at version 2, not 1").says("it is review now, at version 2");
    office.run(&["dlq", "resolve", "--all", "--if-version", "1"]).code(2);
    office.run(&["dlq", "resolve", &id, &id, "--if-version", "1"]).code(2).says("one letter");
}

#[test]
fn work_that_is_done_is_closed_and_loops_end_in_review() {
    let office = Office::new();
    office.run(&["queue", "set", "q", "--max-attempts", "1", "--max-redrives", "1"]).ok();
    let keyed = ["enqueue", "q", "--payload", "x", "--key", "k"];
    let id = text(&office.json(&keyed)["id"]);
    assert_eq!(office.fail("q", "no")["state"], "dead");
    office.run(&["dlq", "retry", &id]).ok();
    assert_eq!(office.fail("q", "no")["state"], "dead");
    assert_eq!(office.json(&["dlq", "show", &id])["status"], "review");
    office.run(&["dlq", "retry", &id]).code(6).says("sent back 1 times already").says("force");
    office.run(&["dlq", "retry", &id, "--force"]).ok();
    office.run(&["ack", &text(&office.lease("q")["token"])]).ok();
    office.run(&["dlq", "reopen", &id]).ok();
    office.run(&["queue", "set", "q", "--max-redrives", "5"]).ok();
    office.run(&["dlq", "retry", &id]).ok().says("done already");
    assert_eq!(office.json(&["dlq", "show", &id])["resolution"], "already done");
}

#[test]
fn the_timeline_tells_a_life_in_order() {
    let office = Office::new();
    office.hasty_queue("q");
    let id = office.enqueue("q", "x");
    office.fail("q", "first");
    office.fail("q", "second");
    office.run(&["dlq", "note", &id, "asked the bank"]).ok();
    office.run(&["dlq", "retry", &id]).ok();
    office.run(&["ack", &text(&office.lease("q")["token"])]).ok();
    let told = office.items(&["dlq", "timeline", &id]);
    let what: Vec<String> = told.iter().map(|m| text(&m["what"])).filter(|what| what != "started").collect();
    let expected =
        ["enqueued", "first_leased", "failed", "failed", "died", "noted", "redriven", "closed", "expires"];
    assert_eq!(what, expected);
    assert!(told.iter().any(|m| m["detail"] == "Timeout: second" && m["attempt"] == 2), "{told:?}");
    let table = office.run(&["dlq", "timeline", &id]).ok().text();
    assert!(table.contains("asked the bank") && table.contains("retried"), "{table}");
}

#[test]
fn the_timeline_tells_every_act_and_death_and_needs_no_audit_trail() {
    let office = Office::new();
    office.hasty_queue("q");
    office.hasty_queue("other");
    let id = office.enqueue("q", "x");
    let die = |queue: &str| {
        office.fail(queue, "first");
        office.fail(queue, "second");
    };
    die("q");
    office.run(&["dlq", "move", &id, "--to", "other-dlq", "--reason", "their letter"]).ok();
    office.run(&["dlq", "quarantine", &id, "--for", "1h"]).ok();
    office.run(&["dlq", "release", &id]).ok();
    office.run(&["dlq", "resolve", &id, "--reason", "fixed"]).ok();
    office.run(&["dlq", "reopen", &id]).ok();
    office.run(&["dlq", "retry", "--filter", "queue:q", "--yes", "--reason", "deployed"]).ok();
    die("q");
    let told = office.items(&["dlq", "timeline", &id]);
    let acts: Vec<(String, String)> = told
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
    let redriven = told.iter().find(|m| m["what"] == "redriven").unwrap();
    assert_eq!(redriven["why"], "deployed");
    assert_eq!(redriven["operation"], office.items(&["op", "list"])[0]["id"]);
    let trail = office.items(&["audit", "list", "--target", &id]);
    assert_eq!(trail.len(), 5, "{trail:?}");
    for row in &trail {
        assert!(told.iter().any(|m| m["at"] == row["at"] && m["by"] == row["actor"]), "{row} in {told:?}");
    }
}
