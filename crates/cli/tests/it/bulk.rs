//! Acts on more than one letter: they are previewed, confirmed and frozen, and change only what was shown.

use crate::support::{Workspace, text};
use crate::terminal::Terminal;
use rustix::process::Signal;

fn workspace_with_letters(count: usize) -> (Workspace, Vec<String>) {
    let workspace = Workspace::new();
    let ids = (0..count).map(|n| workspace.dead_letter("q", &n.to_string(), "timed out")).collect();
    (workspace, ids)
}

#[test]
fn acts_on_many_letters_need_confirmation() {
    let (workspace, ids) = workspace_with_letters(3);
    for verb in ["retry", "resolve", "abandon", "review"] {
        let refused = workspace.run(&["dlq", verb, "--all"]).code(5);
        let asked = refused.says(&format!("{verb} 3 dead letters?")).says(&ids[0]).says("--yes");
        assert!(asked.stdout.is_empty());
        workspace.run(&["dlq", verb, &ids[0], &ids[1]]).code(5).says(&format!("{verb} 2 dead letters?"));
        workspace.run(&["dlq", verb, "--filter", "queue:q"]).code(5);
        let dry = workspace.json(&["dlq", verb, "--filter", "queue:q", "--dry-run"]);
        assert_eq!((&dry["act"], &dry["count"], &dry["more"]), (&verb.into(), &3.into(), &false.into()));
        let named: Vec<String> = dry["ids"].as_array().unwrap().iter().map(text).collect();
        assert!(ids.iter().all(|id| named.contains(id)), "exactly those it would touch: {named:?}");
        assert_eq!(workspace.json(&["dlq", verb, "--filter", "queue:none", "--dry-run"])["count"], 0);
        workspace.run(&["dlq", verb, "--all", "--yes", "--max", "2"]).code(5).says("--max allows 2");
    }
    assert_eq!(workspace.items(&["dlq", "list", "status:pending"]).len(), 3);
    assert_eq!(workspace.acts(), [""; 0]);
}

#[test]
fn a_dry_run_over_ids_tries_each() {
    let (workspace, ids) = workspace_with_letters(2);
    workspace.run(&["dlq", "resolve", &ids[0]]).ok();
    let unknown = "0192f0c1-0000-7000-8000-000000000000";
    let ran = workspace.run(&["dlq", "retry", &ids[0], &ids[1], unknown, "--dry-run", "-o", "json"]).code(4);
    let dry = ran.json();
    assert_eq!((&dry["count"], &dry["ids"]), (&1.into(), &vec![ids[1].clone()].into()));
    let refused: Vec<String> = dry["refused"].as_array().unwrap().iter().map(|r| text(&r["id"])).collect();
    assert!(refused.contains(&ids[0]) && refused.contains(&unknown.to_owned()), "{refused:?}");
    assert_eq!(workspace.items(&["dlq", "list", "status:pending"]).len(), 1, "nothing was done");
}

#[test]
fn a_filter_changes_only_what_it_matches() {
    let (workspace, _) = workspace_with_letters(3);
    let other = workspace.dead_letter("other", "x", "refused");
    let done = workspace.json(&["dlq", "retry", "--filter", "queue:q", "--yes", "--reason", "fixed"]);
    assert_eq!(
        (&done["stage"], &done["running"], &done["skipped"]),
        (&"settling".into(), &3.into(), &0.into())
    );
    assert_eq!(workspace.json(&["dlq", "show", &other])["status"], "pending");
    assert_eq!(workspace.items(&["dlq", "list", "status:retrying"]).len(), 3);
    // Letters that are being retried cannot be retried again: the same command has nothing to do.
    workspace.run(&["dlq", "retry", "--filter", "queue:q", "--yes"]).ok().says("nothing to retry");
    workspace.run(&["dlq", "retry", "--filter", "queue:q", "--yes", "--fail-empty"]).code(3);
    workspace.run(&["dlq", "retry", "--filter", " ", "--yes"]).code(2).says("say --all");
    workspace.run(&["dlq", "retry", "--resume", &text(&done["id"])]).ok();
    workspace.run(&["dlq", "resolve", "--resume", &text(&done["id"])]).code(2).says("dlq retry --resume");
}

#[test]
fn a_delayed_retry_waits() {
    let (workspace, ids) = workspace_with_letters(1);
    workspace.run(&["dlq", "retry", &ids[0], "--delay", "1h"]).ok();
    assert_eq!(workspace.json(&["message", "show", &ids[0]])["state"], "scheduled");
    workspace.run(&["dlq", "retry", "--all", "--at", "tomorrow"]).code(2).says("RFC 3339");
    workspace.run(&["dlq", "retry", "--all", "--delay", "99999d"]).code(2).says("--delay");
}

#[test]
fn letters_are_closed_reopened_noted_and_purged() {
    let (workspace, ids) = workspace_with_letters(2);
    workspace.run(&["dlq", "note", &ids[0], "asked the bank"]).ok();
    workspace.run(&["dlq", "review", &ids[0]]).ok();
    let done = workspace.json(&["dlq", "resolve", "--all", "--yes", "--reason", "paid by hand"]);
    assert_eq!(done["succeeded"], 2);
    let letter = workspace.json(&["dlq", "show", &ids[0]]);
    assert_eq!((&letter["resolution"], &letter["closed_by"]), (&"paid by hand".into(), &"tester".into()));
    assert_eq!(letter["notes"][0]["text"], "asked the bank");
    workspace.run(&["dlq", "reopen", &ids[0]]).ok();
    workspace.run(&["dlq", "purge", &ids[0]]).code(6).says("resolve or abandon it first");
    let purged = workspace.json(&["dlq", "purge", "--all", "--yes"]);
    assert_eq!(purged["succeeded"], 1);
    assert_eq!(workspace.json(&["dlq", "show", &ids[1]])["status"], "purged");
    assert_eq!(workspace.items(&["dlq", "list"]).len(), 1, "it is in no list that does not name it");
    assert_eq!(workspace.items(&["dlq", "list", "status:purged"]).len(), 1);
    workspace.run(&["dlq", "resolve", &ids[1]]).code(6).says("unpurge");
    assert_eq!(workspace.json(&["dlq", "unpurge", "--all", "--yes"])["succeeded"], 1);
    assert_eq!(workspace.json(&["dlq", "show", &ids[1]])["resolution"], "paid by hand");
    workspace.run(&["doctor"]).ok();
}

#[test]
fn several_ids_have_separate_results() {
    let (workspace, ids) = workspace_with_letters(3);
    workspace.run(&["dlq", "resolve", &ids[0]]).ok();
    let ran = workspace.run(&["dlq", "resolve", &ids[0], &ids[1], &ids[2], "--yes", "-o", "json"]).code(4);
    assert_eq!(ran.json()["items"].as_array().unwrap().len(), 2);
    assert!(ran.stderr.contains("while it is resolved"), "{}", ran.stderr);
    let missing = "01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00";
    workspace.run(&["dlq", "reopen", missing, &ids[1], "--yes"]).code(7);
}

#[test]
fn ctrl_c_at_a_question_ends_the_command() {
    let (workspace, _) = workspace_with_letters(2);
    let asked = Terminal::start(&workspace, &["dlq", "resolve", "--all"]);
    asked.shows("resolve 2 dead letters? [y/N]");
    asked.signal(Signal::INT);
    assert_eq!(asked.exited(), Some(130));
    assert_eq!(workspace.items(&["dlq", "list", "status:pending"]).len(), 2);
}

#[test]
fn progress_can_be_read_by_a_program() {
    let (workspace, _) = workspace_with_letters(3);
    let ran = workspace.run(&["dlq", "resolve", "--all", "--yes", "-q", "--progress-as", "json"]).ok();
    let last: serde_json::Value = serde_json::from_str(ran.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["doing"], &last["done"], &last["total"]),
        (&"resolve".into(), &3.into(), &3.into()),
        "{last}"
    );
    let silent = workspace.run(&["dlq", "reopen", "--all", "--yes", "-q", "--progress-as", "none"]).ok();
    assert_eq!(silent.stderr, "");
}
