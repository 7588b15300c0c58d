//! Every format can be parsed by standard tools, and untrusted text has no effect on a terminal.

use crate::support::{Workspace, text};
use std::collections::BTreeSet;

const HOSTILE: &str = "=1+1\u{1b}[2J\u{9b}31m\u{202e}\r\n\"quoted\", comma\u{7f}\u{200b}";

fn workspace_with_hostile_text() -> (Workspace, String) {
    let workspace = Workspace::new();
    let id = workspace.dead_letter("q", HOSTILE, HOSTILE);
    (workspace, id)
}

fn is_unsafe(c: char) -> bool {
    (c.is_control() && c != '\n') || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}')
}

#[test]
fn no_output_has_an_effect_on_a_terminal() {
    let (workspace, id) = workspace_with_hostile_text();
    for args in [
        ["dlq", "list"].as_slice(),
        &["dlq", "show", &id],
        &["dlq", "retry", "--all", "--dry-run"],
        &["group", "list"],
        &["audit", "list"],
        &["queue", "list"],
    ] {
        for format in ["table", "json", "ndjson", "yaml"] {
            let ran = workspace.run(&[args, &["-o", format]].concat()).ok();
            assert!(!ran.text().chars().any(is_unsafe), "{args:?} -o {format}: {:?}", ran.text());
            assert!(!ran.stderr.chars().any(is_unsafe), "{args:?} -o {format}: {:?}", ran.stderr);
        }
    }
    let ran = workspace.run(&["dlq", "show", "\u{1b}[31m"]).code(2);
    assert!(!ran.stderr.contains('\u{1b}'));
}

#[test]
fn json_and_ndjson_carry_the_same_whole_items() {
    let (workspace, id) = workspace_with_hostile_text();
    let listed = workspace.items(&["dlq", "list"]);
    assert_eq!(listed[0]["error"]["message"], HOSTILE);
    assert_eq!(listed[0]["payload"], HOSTILE);
    let lines = workspace.run(&["dlq", "list", "-o", "ndjson"]).ok().ndjson();
    assert_eq!(lines, listed);
    assert_eq!(workspace.json(&["dlq", "show", &id]), listed[0]);
    let shown = workspace.run(&["dlq", "show", &id, "-o", "ndjson"]).ok().ndjson();
    assert_eq!(shown, listed);
}

#[test]
fn csv_can_be_parsed_and_starts_no_formula() {
    let (workspace, id) = workspace_with_hostile_text();
    let audit = workspace.run(&["dlq", "note", &id, HOSTILE]).ok();
    assert!(audit.stderr.is_empty());
    let ran = workspace.run(&["audit", "list", "-o", "csv"]).ok();
    let mut reader = csv::Reader::from_reader(ran.stdout.as_slice());
    let heads: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
    assert_eq!(heads, ["n", "at", "actor", "act", "target", "count", "reason", "filter", "result", "detail"]);
    let rows: Vec<csv::StringRecord> = reader.records().map(|row| row.unwrap()).collect();
    assert_eq!(&rows[0][6], format!("'{HOSTILE}"));
    assert_eq!(&rows[0][4], id);
    let empty = Workspace::new();
    empty.enqueue("q", "x");
    let heads = empty.run(&["dlq", "list", "-o", "csv"]).ok().text();
    assert!(heads.starts_with("\"id\",\"queue\",") && heads.lines().count() == 1);
}

#[test]
fn empty_lists_are_lists() {
    let workspace = Workspace::new();
    workspace.enqueue("q", "x");
    assert_eq!(
        workspace.run(&["dlq", "list", "-o", "json"]).ok().json(),
        serde_json::json!({"items": [], "next": null})
    );
    assert_eq!(workspace.run(&["dlq", "list", "-o", "yaml"]).ok().text(), "items: []\nnext: null\n");
    assert_eq!(workspace.run(&["dlq", "list", "-o", "ndjson"]).ok().text(), "");
    workspace.run(&["dlq", "list"]).ok().says("nothing to show");
    let quiet = workspace.run(&["dlq", "list", "--quiet"]).ok();
    assert!(quiet.stderr.is_empty() && quiet.stdout.is_empty());
    workspace.run(&["dlq", "list", "--fail-empty"]).code(3);
}

#[test]
fn tables_in_a_pipe_are_whole_and_plain() {
    let (workspace, id) = workspace_with_hostile_text();
    let ran = workspace.run(&["dlq", "list"]).ok();
    let lines: Vec<String> = ran.text().lines().map(str::to_owned).collect();
    assert!(lines[0].starts_with("ID ") && lines[0].ends_with("ERROR"), "{lines:?}");
    assert!(lines[1].starts_with(&id) && lines[1].contains("\\u{1b}[2J") && !lines[1].contains('…'));
    assert!(lines[1].contains("Z  "), "times in a pipe are RFC 3339: {}", lines[1]);
    assert!(workspace.run(&["dlq", "list", "--time", "relative"]).ok().text().contains(" ago"));
    let yaml = workspace.run(&["dlq", "list", "-o", "yaml"]).ok().text();
    assert!(yaml.starts_with("items:\n  - attempts: ") && yaml.ends_with("\nnext: null\n"), "{yaml}");
}

#[test]
fn pages_walk_the_whole_list_once() {
    let workspace = Workspace::new();
    let stdin: String = (0..7).map(|n| format!("{{\"payload\":{n}}}\n")).collect();
    assert_eq!(workspace.feed(stdin.as_bytes(), &["enqueue", "q"]).ok().text(), "7 messages enqueued\n");
    let each = Workspace::new().feed(stdin.as_bytes(), &["enqueue", "q", "-o", "ndjson"]).ok();
    assert_eq!(each.says("7 messages enqueued").ndjson().len(), 7, "other formats list each message");
    let all: Vec<String> =
        workspace.items(&["message", "list", "--all"]).iter().map(|item| text(&item["id"])).collect();
    assert_eq!(all.len(), 7);
    let (mut walked, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let mut args = vec!["message", "list", "--limit", "3"];
        if let Some(cursor) = &cursor {
            args.extend(["--cursor", cursor]);
        }
        let page = workspace.json(&args);
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 3);
        walked.extend(items.iter().map(|item| text(&item["id"])));
        match page["next"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(walked, all);
    assert_eq!(walked.iter().collect::<BTreeSet<_>>().len(), 7);
    workspace.run(&["message", "list", "--limit", "3"]).ok().says("there is more: add --cursor");
}

#[test]
fn help_and_completions_are_there() {
    let workspace = Workspace::new();
    let help = workspace.run(&["--help"]).ok().text();
    assert!(help.contains("enqueue") && help.lines().count() <= 24, "{help}");
    assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    let options = workspace.run(&["help", "options"]).ok().text();
    assert!(options.contains("--data <DIR>") && options.contains("Exit codes: 0 ok"), "{options}");
    let list = workspace.run(&["dlq", "list", "--help"]).ok().text();
    assert!(list.contains("Example: redrive dlq list") && !list.contains("--no-color"), "{list}");
    assert!(list.trim_end().ends_with("redrive help options"), "{list}");
    workspace.run(&[]).code(2);
    for command in ["enqueue", "lease", "fail", "doctor"] {
        assert!(workspace.run(&[command, "--help"]).ok().text().contains("Examples:"), "{command}");
    }
    assert!(workspace.run(&["dlq", "retry", "--help"]).ok().text().contains("Examples:"));
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(workspace.run(&["completions", shell]).ok().text().contains("redrive"), "{shell}");
    }
    assert!(workspace.run(&["--version"]).ok().text().starts_with("redrive "));
}

/// Four letters with the same number of attempts, but different payloads and queues.
fn four_letters() -> Workspace {
    let workspace = Workspace::new();
    for (queue, n) in [("a", 30), ("b", 4), ("a", 100), ("b", 7)] {
        workspace.dead_letter(
            queue,
            &format!("{{\"n\":{n},\"who\":{{\"name\":\"x{n}\"}}}}"),
            "gateway timeout",
        );
    }
    workspace
}

fn lines(workspace: &Workspace, args: &[&str]) -> Vec<String> {
    workspace.run(args).ok().text().lines().map(str::to_owned).collect()
}

#[test]
fn wide_tables_have_more_and_chosen_columns_are_in_order() {
    let workspace = four_letters();
    let table = lines(&workspace, &["dlq", "list"]);
    let wide = lines(&workspace, &["dlq", "list", "-o", "wide"]);
    assert!(wide[0].starts_with(&table[0]) && wide[0].contains("CATEGORY") && wide.len() == 5, "{wide:?}");
    let chosen = lines(&workspace, &["dlq", "list", "--columns", "queue,dlq,error.type,status"]);
    assert_eq!(chosen[0], "QUEUE  DLQ    ERROR.TYPE  STATUS");
    assert_eq!(chosen[1], "b      b-dlq  Timeout     pending");
    let csv = lines(&workspace, &["dlq", "list", "--columns", "queue,attempts", "-o", "csv"]);
    assert_eq!(csv[..2], ["\"queue\",\"attempts\"", "\"b\",\"1\""]);
    workspace
        .run(&["dlq", "list", "--columns", "queue,colour"])
        .ok()
        .says("nothing here has colour; columns are id,");
    workspace.run(&["dlq", "list", "--columns", "queue,,id"]).code(2).says("a name is missing");
}

#[test]
fn templates_are_applied_and_none_prints_nothing() {
    let workspace = four_letters();
    let made = lines(&workspace, &["dlq", "list", "--template", "{queue}:{error.type} {{{status}}}"]);
    assert_eq!(made[0], "b:Timeout {pending}");
    assert_eq!(lines(&workspace, &["queue", "list", "--template", "{name}", "-o", "template"]), ["a", "b"]);
    let none = workspace.run(&["dlq", "list", "-o", "none"]).ok();
    assert!(none.stdout.is_empty() && none.stderr.is_empty());
    workspace.run(&["dlq", "list", "-o", "none", "--fail-empty", "queue:z"]).code(3);
    workspace.run(&["dlq", "list", "-o", "template"]).code(2).says("--template TEXT");
    workspace.run(&["dlq", "list", "--template", "{id"]).code(2).says("is no field");
}

#[test]
fn lists_are_sorted_before_they_are_limited() {
    let workspace = four_letters();
    let queues = |args: &[&str]| {
        lines(&workspace, &[&["dlq", "list", "--template", "{queue} {death}"], args].concat())
    };
    let all = queues(&[]);
    let up: Vec<String> = all.iter().rev().cloned().collect();
    assert_eq!(queues(&["--sort", "death"]), up);
    assert_eq!(queues(&["--sort", "-death"]), all);
    assert_eq!(
        queues(&["--sort", "death", "--limit", "1"]),
        up[..1],
        "the first of all, not of the first page"
    );
    assert_eq!(queues(&["--sort", "queue", "--all"])[0][..1], *"a");
    workspace.run(&["dlq", "list", "--sort", "colour"]).ok().says("nothing here has colour");
    workspace.run(&["dlq", "list", "--sort", "a,b"]).code(2).says("one field");
    let newest = workspace.run(&["message", "list", "--sort", "-enqueued_at", "--fail-empty"]).code(3);
    assert!(newest.stdout.is_empty());
}

#[test]
fn lists_are_limited_by_since_and_until() {
    let workspace = four_letters();
    let count = |args: &[&str]| workspace.items(&[&["dlq", "list"], args].concat()).len();
    assert_eq!(count(&["--since", "1h"]), 4);
    assert_eq!(count(&["--until", "1h"]), 0);
    assert_eq!(count(&["--since", "2020-01-01T00:00:00Z", "queue:a"]), 2);
    assert_eq!(count(&["--since", "2020-01-01T00:00:00Z", "--until", "2021-01-01T00:00:00Z"]), 0);
    workspace.enqueue("a", "x");
    assert_eq!(workspace.items(&["message", "list", "--since", "1h"]).len(), 1);
    assert_eq!(workspace.items(&["message", "list", "--until", "2020-01-01T00:00:00Z"]).len(), 0);
    workspace.run(&["dlq", "list", "--since", "yesterday"]).code(2).says("neither a duration");
}

#[test]
fn times_and_colours_follow_the_flags() {
    let workspace = four_letters();
    let unix = lines(&workspace, &["dlq", "list", "--columns", "dead_at", "--time", "unix"]);
    assert!(unix[1].len() == 10 && unix[1].parse::<u64>().is_ok(), "{unix:?}");
    let painted = workspace.run(&["dlq", "list", "--color", "always"]).ok().text();
    assert!(painted.starts_with("\u{1b}[1mID"));
    assert!(!workspace.run(&["dlq", "list", "--color", "never"]).ok().text().contains('\u{1b}'));
    workspace.run(&["dlq", "list", "--color", "never", "--no-color"]).code(2);
    let mut forced = workspace.command(&["dlq", "list"]);
    let forced = forced.env("FORCE_COLOR", "1").env_remove("NO_COLOR").output().unwrap();
    assert!(forced.stdout.starts_with(b"\x1b[1mID"));
}

#[test]
fn watching_repeats_until_it_is_stopped_or_a_check_fails() {
    use std::io::{BufRead as _, BufReader};
    let workspace = Workspace::new();
    workspace.run(&["queue", "set", "q"]).ok();
    let mut watch =
        workspace.spawn(&["queue", "list", "--watch=100ms", "-o", "ndjson"], std::process::Stdio::null());
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<serde_json::Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!((next()["ready"].clone(), next()["ready"].clone()), (0.into(), 0.into()));
    workspace.enqueue("q", "x");
    while next()["ready"] != 1 {}
    watch.kill().unwrap();
    watch.wait().unwrap();
    workspace.run(&["dlq", "stats", "--watch", "--fail-if", "open<1"]).code(10);
    workspace.run(&["queue", "pause", "q", "--watch"]).code(2).says("only commands that look");
    workspace.run(&["queue", "list", "--watch=1ms"]).code(2).says("--watch: from");
}
