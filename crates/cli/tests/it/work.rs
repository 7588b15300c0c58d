//! `redrive work`: how the exit of the command decides about its message, how workers end, and how several processes
//! work on one directory.

use crate::support::{RunResult, Workspace, has_entry, text, until};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

/// Works until the queues are empty and returns the summary.
fn drain(workspace: &Workspace, args: &[&str]) -> Value {
    let args: Vec<&str> = ["work", "q", "--drain"].iter().chain(args).copied().collect();
    let dashes = args.iter().position(|arg| *arg == "--").unwrap_or(args.len());
    let (flags, rest) = args.split_at(dashes);
    let args: Vec<&str> = flags.iter().copied().chain(["-o", "json"]).chain(rest.iter().copied()).collect();
    workspace.run(&args).ok().json()
}

/// The error of every dead letter, by payload.
fn errors(workspace: &Workspace) -> BTreeMap<String, Value> {
    let letters = workspace.items(&["dlq", "list", "--all"]);
    letters.iter().map(|letter| (text(&letter["payload"]), letter.clone())).collect()
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn exit_codes_decide_about_a_message() {
    let workspace = Workspace::new();
    workspace.hasty_queue("q");
    for payload in ["0", "3", "65", "75", "kill"] {
        workspace.enqueue("q", payload);
    }
    let script =
        "read what; [ \"$what\" = kill ] && kill -SEGV $$; echo \"because of $what\" >&2; exit \"$what\"";
    let counts = drain(&workspace, &["--", "sh", "-c", script]);
    assert_eq!((&counts["done"], &counts["dead"], &counts["retried"]), (&1.into(), &4.into(), &3.into()));
    let errors = errors(&workspace);
    let found: Vec<_> = errors
        .iter()
        .map(|(payload, l)| {
            let error = &l["error"];
            (
                payload.as_str(),
                text(&error["type"]),
                text(&error["code"]),
                text(&l["reason"]),
                l["attempts"].clone(),
            )
        })
        .collect();
    let row = |payload, kind: &str, code: &str, reason: &str, attempts: u32| {
        (payload, kind.to_owned(), code.to_owned(), reason.to_owned(), attempts.into())
    };
    let expected = vec![
        row("3", "CommandFailed", "3", "max_attempts", 2),
        row("65", "Rejected", "65", "permanent", 1),
        row("75", "RetryLater", "75", "max_attempts", 2),
        row("kill", "CommandKilled", "SIGSEGV", "max_attempts", 2),
    ];
    assert_eq!(found, expected);
    assert_eq!(errors["3"]["error"]["message"], "because of 3");
}

#[test]
fn commands_that_misbehave_cost_one_failure_each() {
    let workspace = Workspace::new();
    let fails_once = ["queue", "set", "q", "--max-attempts", "1"];
    workspace.run(&fails_once).ok();
    let one = |args: &[&str]| {
        let id = workspace.enqueue("q", "x");
        (drain(&workspace, args), id)
    };
    let error_of = |id: &str| workspace.json(&["dlq", "show", id])["error"].clone();
    let (_, id) = one(&["--", "redrive-no-such-command"]);
    assert_eq!(error_of(&id)["type"], "CommandNotFound");
    let (_, id) =
        one(&["--timeout", "1s", "--shell", "trap '' TERM; for i in $(seq 12000); do sleep 0.05; done"]);
    assert_eq!(error_of(&id)["type"], "Timeout");
    let (counts, _) = one(&["--shell", "head -c 200000000 /dev/zero; head -c 200000000 /dev/zero >&2"]);
    assert_eq!(counts["done"], 1);
    let (counts, _) = one(&["--shell", "sleep 3600 & sleep 3600 & exit 0"]);
    assert_eq!(counts["done"], 1);
    let (counts, _) = one(&["--shell", "exec <&- >&- 2>&-; exit 0"]);
    assert_eq!(counts["done"], 1);
    let (counts, _) = one(&["--payload", "file", "--", "grep", "-q", "^x$", "{payload_file}"]);
    assert_eq!(counts["done"], 1);
}

#[test]
fn invalid_flags_are_refused_before_anything_is_leased() {
    let workspace = Workspace::new();
    workspace.enqueue("q", "x");
    workspace.run(&["work", "q"]).code(2).says("has no target").says("queue set q --target");
    workspace.run(&["work", "q", "--exec", "http"]).code(2).says("needs one URL");
    workspace
        .run(&["work", "q", "--exec", "http", "--", "ftp://example.com"])
        .code(2)
        .says("only http and https");
    workspace.run(&["work", "q", "--payload", "file"]).code(2).says("they do not change the queue's target");
    workspace.run(&["work", "q", "--shell", "true", "--", "true"]).code(2);
    workspace.run(&["work", "q", "--rate", "fast", "--", "true"]).code(2).says("not a rate");
    workspace.run(&["work", "q", "--concurrency", "0", "--", "true"]).code(2).says("concurrency");
    workspace.run(&["work", "q", "--timeout", "0", "--", "true"]).code(2).says("timeout");
    workspace.run(&["work", "q-dlq", "--drain", "--", "true"]).code(5);
    assert_eq!(workspace.json(&["queue", "show", "q"])["leased"], 0);
}

#[test]
fn a_queue_can_have_its_own_target() {
    let workspace = Workspace::new();
    let file = workspace.path("seen");
    let line = format!("cat >> {}", file.display());
    workspace.run(&["queue", "set", "q", "--target-shell", &line, "--target-timeout", "30s"]).ok();
    let shown = workspace.json(&["queue", "show", "q"]);
    assert_eq!(shown["policy"]["target"]["type"], "command", "{shown}");
    assert!(workspace.run(&["queue", "show", "q"]).ok().text().contains("target.timeout = 30s"));
    workspace.run(&["queue", "set", "q", "--target", "ftp://x"]).code(2).says("target.url");
    workspace.enqueue("q", "hello");
    assert_eq!(drain(&workspace, &[])["done"], 1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "hello");
    // The same from a configuration file, for a queue that the store does not have yet.
    let target = "[queues.r.target]\ntype = \"command\"\nargv = [\"true\"]\ntimeout = \"5s\"\n";
    let config = workspace.file("redrive.toml", target);
    workspace.run(&["enqueue", "r", "--payload", "x", "--config", &config]).ok();
    workspace.run(&["work", "r", "--drain", "--config", &config]).ok();
    assert_eq!(workspace.json(&["queue", "show", "r"])["done"], 1);
    let wrong = workspace.file("wrong.toml", "[queues.r.target]\ntype = \"command\"\nargw = [\"true\"]\n");
    workspace.run(&["queue", "list", "--config", &wrong]).code(2).says("did you mean `argv`?");
}

#[test]
fn a_request_per_message() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"hello") {
            let mut piece = [0; 1024];
            let n = stream.read(&mut piece).unwrap();
            assert!(n > 0, "{}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&piece[..n]);
        }
        stream.write_all(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n").unwrap();
        String::from_utf8(seen).unwrap()
    });
    let workspace = Workspace::new();
    workspace.run(&["queue", "set", "q", "--max-attempts", "1"]).ok();
    let id = workspace.enqueue("q", "blocked");
    assert_eq!(drain(&workspace, &["--exec", "http", "--", &url])["dead"], 1);
    assert_eq!(workspace.json(&["dlq", "show", &id])["error"]["type"], "AddressBlocked");
    workspace.enqueue("q", "hello");
    assert_eq!(drain(&workspace, &["--exec", "http", "--allow-private", "--", &url])["done"], 1);
    assert!(server.join().unwrap().starts_with("POST /hook HTTP/1.1\r\n"));
}

#[test]
fn a_worker_that_is_stopped_finishes_running_messages() {
    let workspace = Workspace::new();
    for n in 0..20 {
        workspace.enqueue("q", &n.to_string());
    }
    let begun = workspace.path("begun");
    let script = format!("echo $REDRIVE_ID >> {}; sleep 0.5; cat > /dev/null", begun.display());
    let args = ["work", "q", "--concurrency", "2", "-o", "json", "--shell", &script];
    let worker = workspace.spawn(&args, Stdio::null());
    until("work has begun", || begun.exists());
    signal(&worker, "-TERM");
    let counts = RunResult::of(&args, worker.wait_with_output().unwrap()).ok().json();
    assert_eq!((&counts["failed"], &counts["lost"]), (&0.into(), &0.into()), "{counts}");
    let queue = workspace.json(&["queue", "show", "q"]);
    assert_eq!(queue["done"].as_u64().unwrap() + queue["ready"].as_u64().unwrap(), 20, "{queue}");
    assert_eq!(queue["done"], counts["done"]);
    assert!(workspace.items(&["message", "list", "--all"]).iter().all(|m| m["attempts"] == 0));
}

/// Some supervisors ignore SIGCHLD, and the processes they start inherit that.
#[test]
fn exit_codes_are_known_under_a_parent_that_ignores_sigchld() {
    let workspace = Workspace::new();
    workspace.enqueue("q", "x");
    let args = ["work", "q", "--drain", "-o", "json", "--shell", "exit 0"];
    let plain = workspace.command(&args);
    // A shell cannot be used here: most shells do not keep this signal ignored.
    let mut ignoring = Command::new("env");
    ignoring.arg("--ignore-signal=CHLD").arg(plain.get_program()).args(plain.get_args());
    ignoring.current_dir(workspace.path("")).stdin(Stdio::null());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => ignoring.env(name, value),
            None => ignoring.env_remove(name),
        };
    }
    let counts = RunResult::of(&args, ignoring.output().unwrap()).ok().json();
    assert_eq!((&counts["done"], &counts["failed"]), (&Value::from(1), &Value::from(0)), "{counts}");
}

#[test]
fn an_interrupt_releases_work_after_the_grace_period_and_a_second_one_at_once() {
    let workspace = Workspace::new();
    workspace.enqueue("q", "x");
    let begun = workspace.path("begun");
    let script =
        format!("trap '' TERM; echo $$ > {}; for i in $(seq 12000); do sleep 0.05; done", begun.display());
    for (grace, interrupts) in [("5s", 1), ("10m", 2)] {
        let _ = std::fs::remove_file(&begun);
        let args = ["work", "q", "--grace", grace, "-o", "json", "--shell", &script];
        let worker = workspace.spawn(&args, Stdio::null());
        until("the command runs", || std::fs::read_to_string(&begun).is_ok_and(|pid| pid.ends_with('\n')));
        signal(&worker, "-INT");
        if interrupts == 2 {
            // Two signals at once count as one, so send the second when the first has been handled.
            until("it takes no more work", || {
                signal(&worker, "-INT");
                // The worker holds the directory and may end while it is asked.
                let asked = workspace.run(&["queue", "show", "q", "-o", "json"]);
                asked.code == Some(0) && asked.json()["leased"] == 0
            });
        }
        let counts = RunResult::of(&args, worker.wait_with_output().unwrap()).code(130).json();
        assert_eq!((&counts["released"], &counts["failed"]), (&1.into(), &0.into()), "{counts}");
        let message = &workspace.items(&["message", "list"])[0];
        assert_eq!((&message["state"], &message["attempts"]), (&"ready".into(), &0.into()), "{message}");
        let pid = std::fs::read_to_string(&begun).unwrap();
        until("the command is gone", || !std::path::Path::new(&format!("/proc/{}", pid.trim())).exists());
    }
}

/// Two workers, other commands at the same time, and the worker that holds the directory is killed in the middle.
#[test]
fn workers_share_a_directory_and_one_takes_over_when_the_other_is_killed() {
    const MESSAGES: usize = 120;
    let workspace = Workspace::new();
    workspace
        .run(&["queue", "set", "q", "--max-attempts", "100", "--backoff", "fixed", "--initial", "0"])
        .ok();
    let stdin: String = (0..MESSAGES).map(|n| format!("{{\"payload\":\"{n}\"}}\n")).collect();
    workspace.feed(stdin.as_bytes(), &["enqueue", "q"]).ok();
    let log = workspace.path("log");
    // The parent of the shell is the worker, so the log shows which worker ran what.
    let script = format!("echo \"$PPID $REDRIVE_ID\" >> {}; sleep 0.05; cat > /dev/null", log.display());
    let args = ["work", "q", "--concurrency", "2", "--lease", "5s", "-o", "json", "--shell", &script];
    let mut first = workspace.spawn(&args, Stdio::null());
    until("the first worker holds the directory", || has_entry(&workspace.data(), "socket") && log.exists());
    let second = workspace.spawn(&args, Stdio::null());
    let lines = || -> Vec<(String, String)> {
        let all = std::fs::read_to_string(&log).unwrap_or_default();
        let pairs = all.lines().filter_map(|line| line.split_once(' '));
        pairs.map(|(worker, id)| (worker.to_owned(), id.to_owned())).collect()
    };
    let (first_pid, second_pid) = (first.id().to_string(), second.id().to_string());
    until("both work", || lines().iter().any(|(worker, _)| *worker == second_pid));
    // Commands from other terminals.
    let id = workspace.enqueue("q", "one more");
    workspace.dead_letter("other", "y", "bad");
    assert_eq!(workspace.items(&["dlq", "list"]).len(), 1);
    workspace.run(&["dlq", "retry", "--all", "--yes"]).ok();
    signal(&first, "-KILL");
    first.wait().unwrap();
    let total = u64::try_from(MESSAGES).unwrap() + 1;
    until("everything is done", || workspace.json(&["queue", "show", "q"])["done"] == total);
    signal(&second, "-TERM");
    let counts = RunResult::of(&args, second.wait_with_output().unwrap()).ok().json();
    assert!(counts["done"].as_u64().unwrap() > 0, "{counts}");
    let runs: BTreeSet<String> = lines().into_iter().map(|(_, id)| id).collect();
    assert!(runs.contains(&id));
    assert_eq!(runs.len(), MESSAGES + 1, "every message ran");
    // A shell that starts just when its worker is killed has another parent by then.
    let workers: BTreeSet<String> = lines().into_iter().map(|(worker, _)| worker).collect();
    assert!(workers.contains(&first_pid) && workers.contains(&second_pid), "{workers:?}");
    workspace.run(&["doctor"]).ok();
}

#[test]
fn a_command_decides_about_every_dead_letter() {
    let workspace = Workspace::new();
    workspace.hasty_queue("q");
    let payloads = ["0", "75", "65", "3"];
    let ids = payloads.map(|payload| workspace.dead_letter("q", payload, "no"));
    let script = "read what; echo \"$REDRIVE_DLQ $REDRIVE_ERROR_TYPE $what\"; exit \"$what\"";
    let work = ["work", "--dlq", "q-dlq", "--drain", "-o", "json", "--", "sh", "-c", script];
    let summary = workspace.run(&work).ok().says("the handler of a dead letter failed").json();
    let counted = ["resolved", "replayed", "review", "failed"].map(|name| summary[name].clone());
    assert_eq!(counted, [1, 1, 1, 1].map(Value::from));
    let letters = ids.map(|id| workspace.json(&["dlq", "show", &id]));
    let statuses = [0, 1, 2, 3].map(|n: usize| text(&letters[n]["status"]));
    assert_eq!(statuses, ["resolved", "retrying", "review", "pending"]);
    assert!(text(&letters[0]["resolution"]).contains("q-dlq Timeout 0"), "{}", letters[0]);
    assert!(text(&letters[3]["notes"][0]["text"]).contains("q-dlq Timeout 3"), "{}", letters[3]);
    // The letter is hidden from consumers: the next pass finds nothing.
    let summary = workspace.run(&work).ok().json();
    assert_eq!((&summary["resolved"], &summary["failed"]), (&0.into(), &0.into()));
}

#[test]
fn a_command_can_get_the_whole_letter_and_needs_a_known_queue() {
    let workspace = Workspace::new();
    workspace.hasty_queue("q");
    for payload in ["a", "b"] {
        workspace.dead_letter("q", payload, "no");
    }
    let save = "cat > letter.json";
    workspace.run(&["work", "--dlq", "q-dlq", "--letter", "--once", "--shell", save]).ok();
    let letter: Value =
        serde_json::from_slice(&std::fs::read(workspace.path("letter.json")).unwrap()).unwrap();
    assert_eq!((&letter["payload"], &letter["error"]["type"]), (&"a".into(), &"Timeout".into()));
    assert_eq!(workspace.items(&["dlq", "list", "status:pending"]).len(), 1, "one was asked for");
    workspace
        .run(&["work", "--dlq", "other-dlq", "--drain", "--", "true"])
        .code(7)
        .says("no dead letter queue other-dlq");
    workspace.run(&["work", "--dlq", "q-dlq", "--drain"]).code(2).says("needs a command");
    workspace.run(&["work", "q", "--dlq", "q-dlq", "--", "true"]).code(2);
}

#[test]
fn letters_are_leased_and_settled_by_token() {
    let workspace = Workspace::new();
    workspace.hasty_queue("q");
    for payload in ["a", "b"] {
        workspace.dead_letter("q", payload, "no");
    }
    let taken = workspace.items(&["dlq", "lease", "q-dlq", "--max", "5", "--worker", "triage"]);
    let payloads: Vec<_> = taken.iter().map(|letter| text(&letter["payload"])).collect();
    assert_eq!(payloads, ["a", "b"], "oldest death first");
    workspace.run(&["dlq", "lease", "q-dlq", "--fail-empty"]).code(3);
    let [first, second] = [0, 1].map(|n: usize| text(&taken[n]["token"]));
    workspace.run(&["dlq", "settle", &first, "later"]).code(2).says("--for");
    workspace.run(&["dlq", "settle", &first, "fail"]).code(2).says("--reason");
    workspace.run(&["dlq", "settle", &first, "resolve", "--for", "1h"]).code(2).says("at once");
    assert_eq!(workspace.json(&["dlq", "settle", &first, "extend", "--for", "10m"])["status"], "pending");
    let resolved = workspace.json(&["dlq", "settle", &first, "resolve", "--reason", "paid by hand"]);
    assert_eq!(resolved["status"], "resolved");
    workspace.run(&["dlq", "settle", &first, "resolve"]).code(6);
    workspace.run(&["dlq", "settle", &second, "release"]).ok();
    let again = workspace.items(&["dlq", "lease", "q-dlq"]);
    assert_eq!(again.len(), 1);
    let replayed = workspace.json(&["dlq", "settle", &text(&again[0]["token"]), "replay", "--for", "1h"]);
    assert_eq!(replayed["status"], "retrying");
    let id = text(&taken[1]["id"]);
    assert_eq!(workspace.json(&["message", "show", &id])["state"], "scheduled");
}

#[test]
fn every_failed_delivery_and_every_dead_letter_is_one_log_line() {
    let workspace = Workspace::new();
    workspace.hasty_queue("q");
    let id = workspace.enqueue("q", "x");
    let script = "printf 'no route\\n password=hunter2 to \\033[31mhost\\n' >&2; exit 3";
    let work = ["work", "q", "--drain", "--log", "json", "--", "sh", "-c", script];
    let ran = workspace.run(&work).ok();
    let lines: Vec<Value> = ran
        .stderr
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line["event"].as_str().is_some_and(|event| event.starts_with("delivery failed")))
        .collect();
    assert_eq!(lines.len(), 2, "{}", ran.stderr);
    let [first, second] = [&lines[0], &lines[1]];
    assert_eq!((text(&first["level"]), text(&second["level"])), ("warn".into(), "error".into()));
    for (line, attempt) in [(first, 1), (second, 2)] {
        assert_eq!(
            (&line["queue"], &line["id"], &line["attempt"]),
            (&"q".into(), &id.as_str().into(), &attempt.into())
        );
        assert_eq!(line["error_type"], "CommandFailed");
        let error = text(&line["error"]);
        assert!(error.contains("host") && !error.contains("hunter2"), "{error}");
    }
    assert!(first["retry_at"].is_string() && first["dlq"].is_null(), "{first}");
    assert_eq!((&second["dlq"], &second["reason"]), (&"q-dlq".into(), &"max_attempts".into()));

    workspace.enqueue("q", "y");
    let as_text = workspace.run(&["work", "q", "--drain", "--", "sh", "-c", script]).ok().stderr;
    let death = as_text.lines().find(|line| line.contains(" ERROR delivery failed")).expect("a line");
    assert!(
        death.contains(" queue=q ") && death.contains(" attempt=2 ") && death.contains(" dlq=q-dlq"),
        "{death}"
    );
    assert!(!as_text.contains('\u{1b}'), "{as_text}");
    workspace.enqueue("q", "z");
    let quiet = workspace.run(&["work", "q", "--drain", "--quiet", "--", "false"]).ok().stderr;
    assert_eq!(quiet, "");
}
