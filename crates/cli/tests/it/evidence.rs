//! The evidence of a failure: reported with every flag, kept, and shown in a readable form.

use crate::support::{Workspace, text};
use serde_json::json;

#[test]
fn all_reported_facts_are_kept_and_shown() {
    let workspace = Workspace::new();
    let id = workspace.enqueue("payments", "{}");
    let token = text(&workspace.lease("payments")["token"]);
    let message =
        "the gateway did not answer in time although it was asked three times in a row, and hung up";
    let error = ["fail", &token, "--error-type", "HttpError", "--message", message, "--code", "504"];
    let fail = [
        error.as_slice(),
        &["--cause", "connection reset by peer", "--context", "charge order 4411"],
        &["--context", "POST /charges", "--duration", "1500ms", "--step", "charge"],
        &["--log", "/var/log/charge.log", "--artifact", "/tmp/work/4411", "--artifact", "core.4411"],
        &["--host", "box-3", "--handler-version", "1.4.2", "--dead-letter"],
    ];
    workspace.run(&fail.concat()).ok();
    let letter = workspace.json(&["dlq", "show", &id]);
    let failure = &letter["failures"][0];
    assert_eq!(failure["error"]["cause"], "connection reset by peer");
    assert_eq!(failure["error"]["context"], json!(["charge order 4411", "POST /charges"]));
    assert_eq!(failure["artifacts"], json!(["/tmp/work/4411", "core.4411"]));
    assert_eq!((&failure["duration_ms"], &failure["log"]), (&json!(1500), &json!("/var/log/charge.log")));
    assert_eq!((&failure["host"], &failure["version"]), (&json!("box-3"), &json!("1.4.2")));
    let shown = workspace.run(&["dlq", "show", &id, "--time", "relative"]).ok().text();
    let start = shown.find("\nfailures:\n").unwrap();
    let failures = shown[start..].trim_start().split("\n\n").next().unwrap();
    for part in [
        "on box-3, version 1.4.2, in step charge, after 1",
        "HttpError: the gateway did not answer",
        "(504)",
        "cause: connection reset by peer",
        "trail: charge order 4411 > POST /charges",
        "log: /var/log/charge.log",
        "artifact: /tmp/work/4411",
        "artifact: core.4411",
    ] {
        assert!(failures.contains(part), "{part}: {failures}");
    }
    assert!(failures.lines().all(|line| line.chars().count() <= 80), "{failures}");
}

#[test]
fn the_end_of_a_command_is_described() {
    let workspace = Workspace::new();
    let job = "name: x\ninput: {command: 'echo 1'}\nmap: {steps: [{run: 'echo hello; exit 3'}], retry: {max_attempts: 1}}\n\
               on_item_failure: {custom: {command: 'exit 4'}}\n";
    workspace.file("job.yaml", job);
    workspace.run(&["run", "job.yaml"]).code(4);
    let letter = &workspace.items(&["dlq", "list"])[0];
    let shown = workspace.run(&["dlq", "show", &text(&letter["id"])]).ok().text();
    assert!(shown.contains("it ended with exit code 4"), "{shown}");
    let log = text(&letter["failures"][0]["log"]);
    let log = std::fs::read_to_string(&log).unwrap_or_else(|error| panic!("{log}: {error}"));
    assert!(log.contains("ended with exit code 3 after"), "{log}");
    for text in [&shown, &log] {
        assert!(!text.contains("Exited("), "{text}");
    }
}

#[test]
fn a_dry_run_shows_each_command_on_its_own_line() {
    let workspace = Workspace::new();
    let job = "name: x\ninput: {command: 'seq 1 2'}\nmap:\n  steps:\n    - run: |\n        echo ${item}\n        echo again\n";
    workspace.file("job.yaml", job);
    let shown = workspace.run(&["run", "job.yaml", "--dry-run"]).ok().text();
    assert!(!shown.contains("\\n"), "{shown}");
    let expected =
        "items:\n  0: 1\n    $ echo '1'\n      echo again\n  1: 2\n    $ echo '2'\n      echo again\n";
    assert!(shown.contains(expected), "{shown}");
}
