//! A whole outage with the real command: thousands of failures of four causes become four groups, a canary shows that
//! nothing is fixed yet, a second one that it is, the rest follows at a rate, and later failures of the same cause are
//! noticed. All of it is recorded.

use crate::support::{Workspace, text, until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

/// The error of each dependency while it is broken; `$n` differs between messages.
const CAUSES: [(&str, &str); 4] = [
    ("bank", "connection to bank host 10.0.0.$((n % 200)):5432 refused"),
    ("card", "card of customer $n was declined by its issuer"),
    ("disk", "no space left on volume vol-$n"),
    ("quota", "tenant $n is over its quota of requests"),
];

/// The number of messages of each cause.
const EACH: usize = 1_250;

/// A worker that fails every message whose dependency has no file `fixed-NAME`.
struct Worker(Child);

impl Worker {
    fn start(workspace: &Workspace) -> Self {
        let arms: Vec<String> =
            CAUSES.iter().map(|(name, error)| format!("{name}) s=\"{error}\";;")).collect();
        let script = format!(
            "IFS=: read -r cause n; [ -e fixed-$cause ] && exit 0; case $cause in {} esac; echo \"$s\" >&2; exit 1",
            arms.join(" ")
        );
        let mut command = workspace.command(&["work", "q", "--concurrency", "4", "--shell", &script]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        let _ = self.0.wait();
    }
}

fn dead(workspace: &Workspace) -> usize {
    usize::try_from(workspace.json(&["queue", "show", "q"])["dead"].as_u64().unwrap()).unwrap()
}

/// The groups by a word of their template.
fn groups(workspace: &Workspace) -> BTreeMap<&'static str, Value> {
    let words = ["bank", "card", "volume", "tenant"];
    let all = workspace.items(&["group", "list", "--all"]);
    assert_eq!(all.len(), words.len(), "one group per cause: {all:#?}");
    let find = |word: &str| {
        let found = all.iter().find(|group| text(&group["template"]).contains(word));
        found.cloned().unwrap_or_else(|| panic!("no group says {word}: {all:#?}"))
    };
    words.into_iter().zip(CAUSES).map(|(word, (name, _))| (name, find(word))).collect()
}

#[test]
fn an_outage_from_the_first_failure_to_the_last_resolution() {
    let workspace = Workspace::new();
    workspace.run(&["queue", "set", "q", "--max-attempts", "1"]).ok();
    let lines =
        (0..EACH).flat_map(|n| CAUSES.map(|(name, _)| format!("{{\"payload\":\"{name}:{n}\\n\"}}\n")));
    workspace.feed(lines.collect::<String>().as_bytes(), &["enqueue", "q", "--ndjson", "-q"]).ok();
    let all = EACH * CAUSES.len();
    let worker = Worker::start(&workspace);
    until("all are dead", || dead(&workspace) == all);

    // Four causes, with exact counts.
    let found = groups(&workspace);
    for (name, group) in &found {
        assert_eq!(
            (&group["open"], &group["total"], &group["status"]),
            (&EACH.into(), &EACH.into(), &"new".into()),
            "{name}"
        );
    }
    let bank = text(&found["bank"]["id"]);

    // Still broken: ten letters are tried, and nothing else is sent.
    let canary =
        ["dlq", "redrive", "--group", &bank, "--canary", "10", "--yes", "--reason", "try", "-o", "json"];
    let halted = workspace.run(&canary).code(4).json();
    let first = text(&halted["id"]);
    assert_eq!((&halted["stage"], &halted["halt"]["why"]), (&"paused".into(), &"same_failure".into()));
    until("the canary has its outcomes", || workspace.json(&["op", "show", &first])["running"] == 0);
    let tried = workspace.json(&["op", "show", &first]);
    assert_eq!((&tried["failed_same"], &tried["waiting"]), (&10.into(), &(EACH - 10).into()));
    let touched = workspace.items(&["dlq", "list", "redrives>0", "--all"]);
    assert_eq!(touched.len(), 10);
    assert!(touched.iter().all(|letter| letter["group"] == bank.as_str() && letter["status"] == "pending"));
    workspace.run(&["op", "cancel", &first, "--reason", "not mended yet"]).ok();

    // Fixed: a canary again, then the rest at a rate, up to the last.
    workspace.file("fixed-bank", "");
    let redrive =
        ["dlq", "redrive", "--group", &bank, "--canary", "10", "--ramp", "1s", "--rate", "500/s", "--yes"];
    let redrive: Vec<&str> =
        redrive.into_iter().chain(["--wait", "--reason", "the bank is back", "-o", "json"]).collect();
    let done = workspace.run(&redrive).ok().json();
    assert_eq!(
        (&done["stage"], &done["members"], &done["succeeded"]),
        (&"done".into(), &EACH.into(), &EACH.into())
    );
    assert_eq!(
        workspace.items(&["dlq", "list", &format!("group:{bank} not status:resolved"), "--all"]).len(),
        0
    );
    assert_eq!(workspace.items(&["dlq", "list", "status:pending", "--all"]).len(), all - EACH);
    let show = || workspace.json(&["group", "show", &bank]);
    assert_eq!((&show()["status"], &show()["open"]), (&"resolved".into(), &0.into()));
    assert_eq!(
        (&show()["outcomes"]["redriven_ok"], &show()["outcomes"]["redriven_failed"]),
        (&EACH.into(), &10.into())
    );

    // One more failure of the same cause reopens the group.
    std::fs::remove_file(workspace.path("fixed-bank")).unwrap();
    workspace.enqueue("q", "bank:9\n");
    until("it died", || dead(&workspace) == all + 1);
    assert_eq!((&show()["status"], &show()["open"]), (&"regressed".into(), &1.into()));
    drop(worker);

    let rows = workspace.items(&["audit", "list", "--all"]);
    let on_record = |act: &str| rows.iter().any(|row| row["act"] == act);
    for act in ["start", "retry", "pause", "cancel", "resolve group", "group came back"] {
        assert!(
            on_record(act),
            "{act} is on record: {:?}",
            rows.iter().map(|r| text(&r["act"])).collect::<Vec<_>>()
        );
    }
    workspace.run(&["audit", "verify"]).ok();
    workspace.run(&["doctor"]).ok();
}
