//! Alerts at the command line: what is listed, tested and silenced, each command in a process of its own.

use crate::support::{Workspace, text};

const CONFIG: &str = r#"
[alerts.channels.ops]
type = "command"
argv = ["cp", "/dev/stdin", "alert.json"]

[alerts.channels.broken]
type = "webhook"
url = "https://example.com/hook/s3cret-path"
secret = "${env.NO_SUCH_SECRET}"

[alerts.rules.depth]
limit = 1
channels = ["ops"]

[server]
url = "https://redrive.example.com"
"#;

#[test]
fn rules_and_channels_are_listed_as_configured_and_without_secrets() {
    let workspace = Workspace::new();
    workspace.file("redrive.toml", CONFIG);
    let rules = workspace.run(&["alert", "list", "--rules", "-o", "json"]).ok().json();
    let rules = rules["items"].as_array().unwrap();
    assert_eq!(rules.len(), 15);
    assert_eq!((&rules[0]["rule"], &rules[0]["limit"]), (&"depth".into(), &1.0.into()));
    let channels = workspace.run(&["alert", "list", "--channels"]).ok().text();
    assert!(channels.contains("https://example.com/…") && !channels.contains("s3cret"), "{channels}");
}

#[test]
fn a_test_says_whether_the_channel_took_it() {
    let workspace = Workspace::new();
    workspace.file("redrive.toml", CONFIG);
    workspace.run(&["alert", "test", "ops"]).ok().says("took the test");
    let told = std::fs::read_to_string(workspace.path("alert.json")).unwrap();
    assert!(told.contains("\"alert.test\"") && told.contains("tester"), "{told}");
    workspace.run(&["alert", "test", "broken"]).code(1).says("NO_SUCH_SECRET");
    workspace.run(&["alert", "test", "opps"]).code(1).says("did you mean `ops`?");
}

#[test]
fn a_silence_is_kept_until_it_is_ended() {
    let workspace = Workspace::new();
    workspace.run(&["enqueue", "payments", "--payload", "{}"]).ok();
    workspace.run(&["alert", "list", "--fail-empty"]).code(3);
    workspace.run(&["alert", "silence", "payments", "--for", "2h", "--reason", "deploy"]).ok();
    workspace.run(&["alert", "silence", "dpth", "--for", "2h"]).ok().says("the rule is depth");
    let silenced = workspace.run(&["alert", "list", "--silenced", "-o", "json"]).ok().json();
    let first = &silenced["items"][0];
    assert_eq!((&first["subject"], &first["by"]), (&"payments".into(), &"tester".into()));
    workspace.run(&["alert", "unsilence", "payments"]).ok();
    workspace.run(&["alert", "unsilence", "payments"]).code(7);
    workspace.run(&["alert", "silence", "payments", "--for", "0s"]).code(2);
}

#[test]
fn the_report_uses_the_limits_of_the_file() {
    let workspace = Workspace::new();
    workspace.run(&["enqueue", "payments", "--payload", "{}"]).ok();
    let token = text(&workspace.lease("payments")["token"]);
    workspace.run(&["fail", &token, "--error-type", "E", "--message", "no", "--permanent"]).ok();
    workspace.run(&["queue", "report", "--check"]).ok();
    workspace.file("redrive.toml", CONFIG);
    workspace.run(&["queue", "report", "--check"]).code(10).says("alerts: depth");
}
