//! `redrive.toml` is checked as a whole and proposes policies; the store stays authoritative.

use crate::support::{Workspace, text};

#[test]
fn a_configuration_seeds_new_queues_and_apply_writes_the_rest() {
    let workspace = Workspace::new();
    workspace.file("redrive.toml", "[queues.q]\nmax_attempts = 3\n[queues.other]\nlease = \"45s\"\n");
    workspace.enqueue("q", "x");
    assert_eq!(workspace.json(&["queue", "show", "q"])["policy"]["max_attempts"], 3);
    workspace.run(&["queue", "set", "q", "--max-attempts", "7"]).ok();
    workspace.enqueue("q", "y");
    let policy = workspace.json(&["queue", "show", "q"])["policy"].clone();
    assert_eq!(policy["max_attempts"], 7, "the store has the authority");

    let drift = workspace.items(&["queue", "apply", "--dry-run"]);
    let of_q: Vec<_> = drift.iter().filter(|d| d["queue"] == "q").collect();
    assert_eq!(of_q.len(), 1);
    assert_eq!((&of_q[0]["store"], &of_q[0]["config"]), (&"7".into(), &"3".into()));
    assert_eq!(workspace.json(&["queue", "show", "q"])["policy"], policy, "a dry run changes nothing");
    workspace.run(&["queue", "apply"]).ok().says("2 of 2 queues changed");
    assert!(workspace.items(&["queue", "apply"]).is_empty());
    assert_eq!(workspace.json(&["queue", "show", "other"])["policy"]["lease_ms"], 45_000);

    // Settings that the file does not name keep their values.
    workspace
        .run(&["queue", "set", "q", "--ttl", "1h", "--max-messages", "9", "--route", "network=net"])
        .ok();
    workspace.file("redrive.toml", "[queues.q]\nlease = \"50s\"\nroutes = { timeout = \"slow\" }\n");
    let settings: Vec<String> =
        workspace.items(&["queue", "apply"]).iter().map(|drift| text(&drift["setting"])).collect();
    assert_eq!(settings, ["lease", "routes.timeout"]);
    let policy = workspace.json(&["queue", "show", "q"])["policy"].clone();
    assert_eq!((&policy["lease_ms"], &policy["max_attempts"]), (&50_000.into(), &3.into()));
    assert_eq!((&policy["ttl_ms"], &policy["max_messages"]), (&3_600_000.into(), &9.into()));
    assert_eq!((&policy["routes"]["network"], &policy["routes"]["timeout"]), (&"net".into(), &"slow".into()));
    workspace.file("redrive.toml", "[queues.q]\nttl = \"none\"\n");
    workspace.run(&["queue", "apply"]).ok();
    let policy = workspace.json(&["queue", "show", "q"])["policy"].clone();
    assert!(policy["ttl_ms"].is_null() && policy["max_messages"] == 9, "{policy}");
}

#[test]
fn an_invalid_configuration_stops_every_command_and_names_the_line() {
    let workspace = Workspace::new();
    workspace.file("redrive.toml", "# mine\n[queues.q]\nmax_atempts = 3\n");
    let ran = workspace.run(&["enqueue", "q", "--payload", "x"]).code(2);
    ran.says("line 3: unknown key `max_atempts`; did you mean `max_attempts`?");
    assert!(!workspace.data().exists());
    workspace.run(&["completions", "bash"]).ok();
}

#[test]
fn init_writes_a_valid_file_and_never_overwrites_one() {
    let workspace = Workspace::new();
    workspace.run(&["init"]).ok().says("wrote redrive.toml");
    let written = std::fs::read_to_string(workspace.path("redrive.toml")).unwrap();
    assert!(written.contains("# [queues.payments]"));
    workspace.enqueue("q", "x");
    workspace.run(&["init"]).code(5).says("is there already");
    workspace.run(&["init", "--config", "other.toml"]).ok();
    workspace.run(&["queue", "apply"]).code(2).says("proposes nothing");
}

#[test]
fn flags_beat_the_environment_and_the_environment_beats_the_file() {
    let workspace = Workspace::new();
    workspace.file("redrive.toml", "data = \"from-file\"\noutput = \"ndjson\"\nactor = \"from-file\"\n");
    workspace.enqueue("q", "x");
    assert!(workspace.data().exists() && !workspace.path("from-file").exists());
    let mut without = workspace.command(&["enqueue", "q", "--payload", "x"]);
    let output = without.env_remove("REDRIVE_DATA").output().unwrap();
    assert!(output.status.success() && workspace.path("from-file").exists());
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["state"], "ready");
    let from_file = workspace.path("from-file");
    let shown = workspace.items(&["message", "list", "--data", from_file.to_str().unwrap()]);
    assert_eq!(text(&shown[0]["enqueued_by"]), "from-file");
    let mut nothing = workspace.command(&["queue", "list", "--data", from_file.to_str().unwrap()]);
    for name in ["REDRIVE_DATA", "REDRIVE_CONFIG", "REDRIVE_URL"] {
        nothing.env(name, "");
    }
    assert!(nothing.output().unwrap().status.success(), "a variable set to nothing is not set");
    workspace.run(&["queue", "pause", "q", "--actor", "me"]).ok();
    assert_eq!(workspace.items(&["audit", "list"])[0]["actor"], "me");
}

#[test]
fn automatic_redrives_are_set_shown_and_removed() {
    let workspace = Workspace::new();
    workspace.file("redrive.toml", "[queues.q]\nauto_redrive = { limit = 2, backoff = \"30m\" }\n");
    workspace.enqueue("q", "x");
    let rule = || workspace.json(&["queue", "show", "q"])["policy"]["auto_redrive"].clone();
    assert_eq!(rule(), serde_json::json!({"limit": 2, "backoff_ms": 1_800_000}));
    workspace.run(&["queue", "set", "q", "--auto-redrive", "3"]).ok();
    assert_eq!(rule(), serde_json::json!({"limit": 3, "backoff_ms": 1_800_000}));
    workspace.run(&["queue", "set", "q", "--auto-redrive", "11"]).code(2).says("outside 1 to 10");
    workspace.run(&["queue", "set", "q", "--auto-redrive", "none"]).ok();
    assert!(rule().is_null());
}
