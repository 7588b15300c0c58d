//! Several processes on one directory: later ones talk to the first, and nothing is lost.

use crate::support::{RunResult, Workspace, close, has_entry, text, until};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};

#[test]
fn many_producers_at_once_lose_nothing() {
    let workspace = Workspace::new();
    let args = ["enqueue", "q", "--ndjson", "-o", "ndjson"];
    let ids: BTreeSet<String> = std::thread::scope(|scope| {
        let produce = |producer: usize| {
            let workspace = &workspace;
            move || {
                let stdin: String =
                    (0..250).map(|n| format!("{{\"payload\":\"{producer}-{n}\"}}\n")).collect();
                workspace.feed(stdin.as_bytes(), &args).ok().ndjson()
            }
        };
        let producers: Vec<_> = (0..4).map(|producer| scope.spawn(produce(producer))).collect();
        producers.into_iter().flat_map(|p| p.join().unwrap()).map(|item| text(&item["id"])).collect()
    });
    assert_eq!(ids.len(), 1_000);
    let listed = workspace.items(&["message", "list", "--all"]);
    assert_eq!(listed.iter().map(|item| text(&item["id"])).collect::<BTreeSet<_>>(), ids);
    workspace.run(&["doctor", "--deep"]).ok();
}

#[test]
fn a_waiting_worker_is_woken_by_another_process() {
    let workspace = Workspace::new();
    workspace.run(&["queue", "set", "q"]).ok();
    let lease = ["lease", "q", "--wait", "10m", "-o", "json"];
    let worker = workspace.spawn(&lease, Stdio::null());
    until("the worker holds the directory", || has_entry(&workspace.data(), "socket"));
    let id = workspace.enqueue("q", "x");
    let ran = RunResult::of(&lease, worker.wait_with_output().unwrap()).ok();
    assert_eq!(ran.json()["items"][0]["id"], id.as_str());
    workspace.run(&["ack", &text(&ran.json()["items"][0]["token"])]).ok();
}

#[test]
fn two_workers_never_get_the_same_message() {
    let workspace = Workspace::new();
    let stdin: String = (0..40).map(|n| format!("{{\"payload\":{n}}}\n")).collect();
    workspace.feed(stdin.as_bytes(), &["enqueue", "q"]).ok();
    let lease = ["lease", "q", "--max", "20", "--lease", "1h", "-o", "json"];
    let leased: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(|| workspace.run(&lease).ok().json())).collect();
        let documents = workers.into_iter().map(|worker| worker.join().unwrap());
        documents.flat_map(|d| d["items"].as_array().unwrap().clone()).map(|item| text(&item["id"])).collect()
    });
    assert_eq!(leased.len(), 40);
    assert_eq!(leased.iter().collect::<BTreeSet<_>>().len(), 40);
}

#[test]
fn an_interrupt_ends_a_waiting_command_with_its_code() {
    let workspace = Workspace::new();
    workspace.run(&["queue", "set", "q"]).ok();
    let lease = ["lease", "q", "--wait", "10m"];
    let worker = workspace.spawn(&lease, Stdio::null());
    until("the worker holds the directory", || has_entry(&workspace.data(), "socket"));
    let killed = Command::new("kill").args(["-INT", &worker.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let ran = RunResult::of(&lease, worker.wait_with_output().unwrap()).code(130);
    assert!(ran.stderr.contains("interrupted"));
    workspace.run(&["doctor"]).ok();
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let workspace = Workspace::new();
    let stdin = "{\"payload\":\"0123456789012345678901234567890123456789\"}\n".repeat(2_000);
    workspace.feed(stdin.as_bytes(), &["enqueue", "q"]).ok();
    let list = ["message", "list", "--all", "-o", "ndjson"];
    let mut reader = workspace.spawn(&list, Stdio::null());
    drop(reader.stdout.take());
    let ran = RunResult::of(&list, reader.wait_with_output().unwrap()).ok();
    assert!(ran.stderr.is_empty(), "{}", ran.stderr);
}

#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    let workspace = Workspace::new();
    let enqueue = ["enqueue", "q", "--payload", "secret"];
    std::fs::create_dir(workspace.data()).unwrap();
    std::fs::set_permissions(workspace.data(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    workspace.run(&enqueue).code(5).says("can be written by other users").says("chmod 700");
    assert!(!has_entry(&workspace.data(), ""), "nothing was written");
    close(&workspace.data());
    workspace.run(&enqueue).ok();
    let precious = workspace.file("precious", "precious");
    std::fs::remove_file(workspace.data().join("reserve")).unwrap();
    std::os::unix::fs::symlink(&precious, workspace.data().join("reserve")).unwrap();
    workspace.run(&enqueue).code(5).says("symbolic link").says("rm ");
    assert_eq!(std::fs::read_to_string(precious).unwrap(), "precious");
}
