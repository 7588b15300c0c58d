//! Redrives with the real command: from a broken dependency through the canary to an empty dead letter queue,
//! detaching and controlling operations, and a redrive whose driver is killed at random points.

use crate::support::{Workspace, text, until};
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};

/// Enqueues this many messages at once.
fn enqueue(workspace: &Workspace, count: usize, extra: &Value) {
    let mut lines = String::new();
    for n in 0..count {
        let mut line = json!({"queue": "q", "payload": {"n": n}});
        line.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        lines.push_str(&line.to_string());
        lines.push('\n');
    }
    workspace.feed(lines.as_bytes(), &["enqueue", "q", "--ndjson", "-q"]).ok();
}

/// A separate worker that fails every message permanently until the file `fixed` exists.
struct Bank {
    child: Child,
}

impl Bank {
    fn open(workspace: &Workspace) -> Self {
        let script = "[ -e fixed ] || { echo 'connection to the bank refused' >&2; exit 65; }";
        let args = ["work", "q", "--concurrency", "4", "--", "sh", "-c", script];
        let mut command = workspace.command(&args);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child }
    }
}

impl Drop for Bank {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

fn dead(workspace: &Workspace) -> u64 {
    workspace.json(&["queue", "show", "q"])["dead"].as_u64().unwrap()
}

fn counts(operation: &Value) -> [u64; 6] {
    ["waiting", "running", "succeeded", "failed_same", "failed_other", "skipped"]
        .map(|name| operation[name].as_u64().unwrap())
}

#[test]
fn a_canary_must_succeed_before_the_rest_is_sent() {
    let workspace = Workspace::new();
    workspace.run(&["queue", "set", "q", "--max-attempts", "1"]).ok();
    enqueue(&workspace, 40, &json!({}));
    let bank = Bank::open(&workspace);
    until("all are dead", || dead(&workspace) == 40);
    let group = text(&workspace.items(&["group", "list"])[0]["id"]);
    let which =
        ["dlq", "redrive", "--group", &group, "--canary", "10%", "--rate", "500/s", "--yes", "-o", "json"];

    // The preview, and nothing is done without confirmation.
    let seen = workspace.json(&["dlq", "redrive", "--group", &group, "--rate", "20/s", "--dry-run"]);
    assert_eq!((&seen["count"], &seen["estimate_ms"]), (&40.into(), &2_000.into()));
    assert_eq!((&seen["by_queue"][0]["of"], &seen["by_queue"][0]["count"]), (&"q".into(), &40.into()));
    workspace.run(&["dlq", "redrive", "--group", &group]).code(5).says("--dry-run");
    workspace
        .run(&["dlq", "redrive", "--group", &group, "--yes", "--max", "39"])
        .code(5)
        .says("--max allows 39");
    assert_eq!(workspace.items(&["op", "list"]), [] as [Value; 0]);

    // Still broken: the canary comes back, and nothing else is sent.
    let halted = workspace.run(&which).code(4).says("came back with the failure they had").json();
    let id = text(&halted["id"]);
    assert_eq!((&halted["stage"], &halted["halt"]["why"]), (&"paused".into(), &"same_failure".into()));
    let settled = || workspace.json(&["op", "show", &id]);
    until("the canary has its outcomes", || settled()["running"] == 0);
    assert_eq!(counts(&settled()), [36, 0, 0, 4, 0, 0]);
    assert_eq!(workspace.items(&["dlq", "list", "status:pending", "--all"]).len(), 40);
    workspace.run(&["op", "pause", &id]).code(6).says("cannot pause");

    // Fixed: a canary first, then all the others.
    workspace.file("fixed", "");
    workspace.run(&["op", "resume", &id, "--reason", "the bank is back"]).ok();
    let done = workspace.run(&["op", "watch", &id, "-o", "json"]).code(4).json();
    assert_eq!((text(&done["stage"]), counts(&done)), ("done".into(), [0, 0, 36, 4, 0, 0]));
    let back = workspace.items(&["op", "members", &id, "--outcome", "failed_same"]);
    assert_eq!(back.len(), 4);
    let rest =
        ["dlq", "redrive", "--all", "--ramp", "1s", "--rate", "500/s", "--yes", "--wait", "-o", "json"];
    let rest = workspace.run(&rest).ok().json();
    assert_eq!((text(&rest["stage"]), counts(&rest)), ("done".into(), [0, 0, 4, 0, 0, 0]));
    assert_eq!(workspace.items(&["dlq", "list", "status:resolved", "--all"]).len(), 40);
    drop(bank);
    workspace.run(&["audit", "verify"]).ok();
    workspace.run(&["doctor"]).ok();
    let acts: Vec<String> =
        workspace.items(&["audit", "list", "--all"]).iter().map(|r| text(&r["act"])).collect();
    for act in ["start", "retry", "pause", "resume"] {
        assert!(acts.iter().any(|known| known == act), "{act} is on record: {acts:?}");
    }
}

/// Creates letters without a worker: their messages expired before anybody leased them.
fn expired(workspace: &Workspace, count: usize) {
    workspace.run(&["queue", "set", "q", "--max-attempts", "1", "--lease", "1s"]).ok();
    enqueue(workspace, count, &json!({"ttl_ms": 1}));
    until("all are dead", || {
        workspace.run(&["lease", "q", "-q"]).ok();
        dead(workspace) == count as u64
    });
}

#[test]
fn an_operation_is_controlled_and_undone() {
    let workspace = Workspace::new();
    expired(&workspace, 30);
    let args = ["dlq", "redrive", "--all", "--rate", "2/s", "--yes", "--detach", "-o", "json"];
    let id = text(&workspace.run(&args).ok().json()["id"]);
    assert_eq!(text(&workspace.json(&["op", "pause", &id, "--reason", "wait"])["stage"]), "paused");
    let paused =
        workspace.run(&["op", "watch", &id, "-o", "json"]).code(4).says("paused by tester: wait").json();
    assert_eq!(text(&paused["stage"]), "paused");
    assert_eq!(workspace.json(&["op", "rate", &id, "none"])["pace"]["rate"], Value::Null);
    workspace.run(&["op", "rate", &id, "0/s"]).code(2).says("rate");
    workspace.run(&["op", "resume", &id]).ok();
    // Nobody works: all are sent, none has an outcome, and undo takes every one back.
    let mut watch = workspace.spawn(&["op", "watch", &id], Stdio::null());
    until("all are sent", || workspace.json(&["op", "show", &id])["running"] == 30);
    watch.kill().unwrap();
    watch.wait().unwrap();
    workspace.run(&["op", "undo", &id]).code(5).says("undo the retry of up to 30 dead letters?");
    let undone = workspace.json(&["op", "undo", &id, "--yes", "--reason", "wrong queue"]);
    assert_eq!((text(&undone["stage"]), &undone["undone"]), ("undone".into(), &30.into()));
    assert_eq!(workspace.items(&["dlq", "list", "status:pending", "--all"]).len(), 30);
    workspace.run(&["op", "cancel", &id]).code(6).says("undone");
    let resolved = workspace.json(&["dlq", "resolve", "--all", "--yes"]);
    assert_eq!((text(&resolved["stage"]), &resolved["succeeded"]), ("done".into(), &30.into()));
    workspace.run(&["op", "undo", &text(&resolved["id"]), "--yes"]).ok();
    assert_eq!(workspace.items(&["dlq", "list", "status:pending", "--all"]).len(), 30);
    workspace.run(&["op", "show", "019a8d3e-0b6e-7d01-a9a5-6f3f5e0f7c11"]).code(7);
    workspace.run(&["doctor"]).ok();
}

/// A number from the environment, for longer campaigns, or the default.
fn setting(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

/// A random number below a limit.
fn jitter_seed(random: &mut u64, below: u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*random >> 40) % below
}

/// Fault: kill -9 of the process that drives a redrive, holds the store, and works, at random points. Symptom: a
/// letter sent back twice, an operation that never ends, or outcomes that do not add up. Guarantee: I36. What is
/// asserted is read from an export, not from the operation's own counters.
#[test]
fn i36_a_redrive_survives_kill_9_at_any_point() {
    let letters = setting("REDRIVE_KILL_LETTERS", 400);
    let kills = setting("REDRIVE_KILLS", 12);
    let mut random = setting("REDRIVE_KILL_SEED", 7) as u64;
    let workspace = Workspace::new();
    expired(&workspace, letters);
    // Slow enough that letters are still being sent when the last kill comes.
    let rate = format!("{}/s", (letters * 4 / kills.max(1)).max(50));
    let args = ["dlq", "redrive", "--all", "--rate", &rate, "--yes", "--detach", "-o", "json"];
    let id = text(&workspace.run(&args).ok().json()["id"]);
    let show = || workspace.json(&["op", "show", &id]);
    for n in 0..kills {
        // Every other time a worker holds the directory and drives the operation; otherwise a watcher does.
        let work = ["work", "q", "--concurrency", "2", "--", "true"];
        let watch = ["op", "watch", &id];
        let mut holder = workspace.spawn(if n % 2 == 0 { &watch } else { &work }, Stdio::null());
        // The kill comes after another process has polled a random number of times, possibly none, so that the holder
        // makes progress however slow the machine is.
        for _ in 0..jitter_seed(&mut random, 8) {
            show();
        }
        holder.kill().unwrap();
        holder.wait().unwrap();
    }
    let mut worker = workspace.spawn(&["work", "q", "--concurrency", "8", "--", "true"], Stdio::null());
    let mut watch = workspace.spawn(&["op", "watch", &id], Stdio::null());
    until("the operation ends", || text(&show()["stage"]) == "done");
    worker.kill().unwrap();
    worker.wait().unwrap();
    let _ = watch.kill();
    watch.wait().unwrap();
    let operation = show();
    assert_eq!(operation["members"], letters);
    let members = workspace.items(&["op", "members", &id, "--all"]);
    let mut by_outcome = std::collections::BTreeMap::new();
    for member in &members {
        *by_outcome.entry(text(&member["outcome"])).or_insert(0_u64) += 1;
    }
    assert_eq!(members.len(), letters);
    for (outcome, count) in &by_outcome {
        assert_eq!(operation[outcome], *count, "{outcome}: {by_outcome:?}");
    }
    // A killed worker costs its message a lease, and perhaps its only attempt, so that it died again. Either way it was
    // sent back once, by this operation.
    let exported = workspace.run(&["dlq", "export"]).ok().ndjson();
    assert_eq!(exported.len(), letters);
    for letter in exported {
        let sent = (&letter["redrives"], &letter["generation"], &letter["operation"]);
        assert_eq!(sent, (&1.into(), &2.into(), &id.as_str().into()), "{letter}");
    }
    workspace.run(&["doctor"]).ok();
    workspace.run(&["audit", "verify"]).ok();
}
