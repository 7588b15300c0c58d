//! `redrive demo --headless`, as a script uses it: it fails in all the ways it promises, and ends clean.

use crate::support::{ServeProcess, Workspace, has_entry, until};
use serde_json::Value;

/// Starts a demo with its temporary files in a directory of the workspace.
fn start(workspace: &Workspace, flags: &[&str]) -> ServeProcess {
    let args: Vec<&str> =
        ["demo", "--headless", "-o", "json"].into_iter().chain(flags.iter().copied()).collect();
    std::fs::create_dir_all(workspace.path("tmp")).unwrap();
    let mut command = workspace.command(&args);
    command.env("TMPDIR", workspace.path("tmp"));
    ServeProcess::start(command, workspace.path("demo.log"))
}

fn items(demo: &ServeProcess, path: &str) -> Vec<Value> {
    let (status, reply) = demo.ask("GET", path, "");
    assert_eq!(status, 200, "{path}: {reply}");
    reply["items"].as_array().unwrap().clone()
}

#[test]
fn the_demo_fails_as_it_promises_and_what_it_keeps_is_sound() {
    let workspace = Workspace::new();
    let kept = workspace.path("kept");
    let kept = kept.to_str().unwrap();
    let mut demo = start(&workspace, &["--keep", kept]);
    for cause in ["ServiceUnavailable", "KeyError", "RateLimited", "MalformedReply", "Panic"] {
        until(cause, || items(&demo, "/api/v1/groups").iter().any(|group| group["error_type"] == cause));
    }
    until("the breaker of payments opened", || {
        let mut breakers = items(&demo, "/api/v1/breakers").into_iter();
        breakers.any(|b| b["queue"] == "payments" && b["events"].to_string().contains("\"open\""))
    });
    until("a poison message is in quarantine", || {
        !items(&demo, "/api/v1/dlq?filter=reason%3Apoison%20status%3Aquarantined").is_empty()
    });
    until("the deploy is marked", || !items(&demo, "/api/v1/markers").is_empty());
    until("alerts are told", || {
        demo.ask("GET", "/api/v1/alerts", "").1["told"].to_string().contains("new_group")
    });
    demo.signal("-TERM");
    assert_eq!(demo.wait(), Some(0), "{}", demo.log());
    workspace.run(&["--data", kept, "doctor", "--deep"]).ok();
    let groups = workspace.items(&["--data", kept, "group", "list"]);
    assert!(groups.len() >= 5, "{groups:?}");
    workspace.run(&["demo", "--headless", "--keep", kept]).code(5).says("needs a directory of its own");
}

#[test]
fn a_demo_that_is_not_kept_leaves_nothing_behind() {
    let workspace = Workspace::new();
    let mut demo = start(&workspace, &[]);
    assert!(has_entry(&workspace.path("tmp"), ""), "the store is in the temporary directory");
    demo.signal("-TERM");
    assert_eq!(demo.wait(), Some(0), "{}", demo.log());
    assert!(!has_entry(&workspace.path("tmp"), ""), "and gone");
    workspace
        .run(&["demo", "--headless", "--listen", "0.0.0.0:0"])
        .code(5)
        .says("not an address of this machine");
}
