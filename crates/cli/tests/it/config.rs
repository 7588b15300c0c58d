//! `redrive.toml`: proposes, is checked whole, and the store stays the authority.

use crate::support::{Office, text};

#[test]
fn a_configuration_seeds_new_queues_and_apply_writes_the_rest() {
    let office = Office::new();
    office.file("redrive.toml", "[queues.q]\nmax_attempts = 3\n[queues.other]\nlease = \"45s\"\n");
    office.enqueue("q", "x");
    assert_eq!(office.json(&["queue", "show", "q"])["policy"]["max_attempts"], 3);
    office.run(&["queue", "set", "q", "--max-attempts", "7"]).ok();
    office.enqueue("q", "y");
    let policy = office.json(&["queue", "show", "q"])["policy"].clone();
    assert_eq!(policy["max_attempts"], 7, "the store has the authority");

    let drift = office.items(&["queue", "apply", "--dry-run"]);
    let of_q: Vec<_> = drift.iter().filter(|d| d["queue"] == "q").collect();
    assert_eq!(of_q.len(), 1);
    assert_eq!((&of_q[0]["store"], &of_q[0]["config"]), (&"7".into(), &"3".into()));
    assert_eq!(office.json(&["queue", "show", "q"])["policy"], policy, "a dry run changes nothing");
    office.run(&["queue", "apply"]).ok().says("2 of 2 queues changed");
    assert!(office.items(&["queue", "apply"]).is_empty());
    assert_eq!(office.json(&["queue", "show", "other"])["policy"]["lease_ms"], 45_000);

    // What the file does not name stays as somebody set it.
    office.run(&["queue", "set", "q", "--ttl", "1h", "--max-messages", "9", "--route", "network=net"]).ok();
    office.file("redrive.toml", "[queues.q]\nlease = \"50s\"\nroutes = { timeout = \"slow\" }\n");
    let settings: Vec<String> =
        office.items(&["queue", "apply"]).iter().map(|drift| text(&drift["setting"])).collect();
    assert_eq!(settings, ["lease", "routes.timeout"]);
    let policy = office.json(&["queue", "show", "q"])["policy"].clone();
    assert_eq!((&policy["lease_ms"], &policy["max_attempts"]), (&50_000.into(), &3.into()));
    assert_eq!((&policy["ttl_ms"], &policy["max_messages"]), (&3_600_000.into(), &9.into()));
    assert_eq!((&policy["routes"]["network"], &policy["routes"]["timeout"]), (&"net".into(), &"slow".into()));
    office.file("redrive.toml", "[queues.q]\nttl = \"none\"\n");
    office.run(&["queue", "apply"]).ok();
    let policy = office.json(&["queue", "show", "q"])["policy"].clone();
    assert!(policy["ttl_ms"].is_null() && policy["max_messages"] == 9, "{policy}");
}

#[test]
fn a_wrong_configuration_stops_every_command_and_names_the_line() {
    let office = Office::new();
    office.file("redrive.toml", "# mine\n[queues.q]\nmax_atempts = 3\n");
    let ran = office.run(&["enqueue", "q", "--payload", "x"]).code(2);
    ran.says("line 3: unknown key `max_atempts`; did you mean `max_attempts`?");
    assert!(!office.data().exists());
    office.run(&["completions", "bash"]).ok();
}

#[test]
fn init_writes_a_file_that_works_and_never_writes_over_one() {
    let office = Office::new();
    office.run(&["init"]).ok().says("wrote redrive.toml");
    let written = std::fs::read_to_string(office.path("redrive.toml")).unwrap();
    assert!(written.contains("# [queues.payments]"));
    office.enqueue("q", "x");
    office.run(&["init"]).code(5).says("is there already");
    office.run(&["init", "--config", "other.toml"]).ok();
    office.run(&["queue", "apply"]).code(2).says("proposes nothing");
}

#[test]
fn flags_beat_the_environment_and_the_environment_beats_the_file() {
    let office = Office::new();
    office.file("redrive.toml", "data = \"from-file\"\noutput = \"ndjson\"\nactor = \"from-file\"\n");
    office.enqueue("q", "x");
    assert!(office.data().exists() && !office.path("from-file").exists());
    let mut without = office.command(&["enqueue", "q", "--payload", "x"]);
    let output = without.env_remove("REDRIVE_DATA").output().unwrap();
    assert!(output.status.success() && office.path("from-file").exists());
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["state"], "ready");
    let from_file = office.path("from-file");
    let shown = office.items(&["message", "list", "--data", from_file.to_str().unwrap()]);
    assert_eq!(text(&shown[0]["enqueued_by"]), "from-file");
    let mut nothing = office.command(&["queue", "list", "--data", from_file.to_str().unwrap()]);
    for name in ["REDRIVE_DATA", "REDRIVE_CONFIG", "REDRIVE_URL"] {
        nothing.env(name, "");
    }
    assert!(nothing.output().unwrap().status.success(), "a variable set to nothing is not set");
    office.run(&["queue", "pause", "q", "--actor", "me"]).ok();
    assert_eq!(office.items(&["audit", "list"])[0]["actor"], "me");
}

#[test]
fn automatic_redrives_are_set_shown_and_taken_back() {
    let office = Office::new();
    office.file("redrive.toml", "[queues.q]\nauto_redrive = { limit = 2, backoff = \"30m\" }\n");
    office.enqueue("q", "x");
    let rule = || office.json(&["queue", "show", "q"])["policy"]["auto_redrive"].clone();
    assert_eq!(rule(), serde_json::json!({"limit": 2, "backoff_ms": 1_800_000}));
    office.run(&["queue", "set", "q", "--auto-redrive", "3"]).ok();
    assert_eq!(rule(), serde_json::json!({"limit": 3, "backoff_ms": 1_800_000}));
    office.run(&["queue", "set", "q", "--auto-redrive", "11"]).code(2).says("outside 1 to 10");
    office.run(&["queue", "set", "q", "--auto-redrive", "none"]).ok();
    assert!(rule().is_null());
}
