//! Batch runs from the command line: killed and resumed, interrupted, refused, and the example jobs.

use crate::support::{RunResult, Workspace, close, text, until};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The number of items of the killed run.
const ITEMS: usize = 300;

const JOB: &str = "
name: numbers
input: {command: 'seq 1 300'}
map:
  steps:
    - run: |
        echo ${item} >> effects
        case ${item} in
          *[05]7|1*3) [ -e mended ] || { echo \"upstream ${item} gave no answer\" >&2; exit 3; };;
        esac
        echo done
  max_parallel: 4
  retry: {max_attempts: 3, backoff: {strategy: fixed, initial: 0s, jitter: none}}
reduce: ['wc -l < ${results_file}']
";

fn effects(workspace: &Workspace) -> BTreeMap<usize, usize> {
    let content = std::fs::read_to_string(workspace.path("effects")).unwrap_or_default();
    let mut counts = BTreeMap::new();
    // The last line may be incomplete while the run continues.
    for line in content.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        *counts.entry(line.parse().unwrap()).or_insert(0) += 1;
    }
    counts
}

fn total(workspace: &Workspace) -> usize {
    effects(workspace).values().sum()
}

/// The items that the store has recorded as done.
fn completed(workspace: &Workspace) -> BTreeSet<usize> {
    let list = ["message", "list", "queue:run.numbers.results header.reply-status:done", "--all"];
    let index = |item: &Value| {
        let result: Value = serde_json::from_str(&text(&item["payload"])).unwrap();
        usize::try_from(result["index"].as_u64().unwrap()).unwrap() + 1
    };
    workspace.items(&list).iter().map(index).collect()
}

/// Fault: the process is killed, twice, at any instruction. Guarantee: every item ends done or dead exactly once, and
/// items that were done before a kill are not executed after it.
#[test]
fn killed_twice_and_resumed_every_item_ends_once() {
    let workspace = Workspace::new();
    workspace.file("job.yaml", JOB);
    let mut before = Vec::new();
    for kill_at in [ITEMS / 4, ITEMS * 2 / 3] {
        let mut child = workspace.spawn(&["run", "job.yaml"], Stdio::null());
        until("the run is under way", || total(&workspace) >= kill_at);
        child.kill().unwrap();
        child.wait().unwrap();
        // Commands that the killed process left running end by themselves.
        until("its commands are over", || {
            let now = total(&workspace);
            std::thread::yield_now();
            now == total(&workspace)
        });
        before.push((completed(&workspace), effects(&workspace)));
    }
    let summary = workspace.run(&["run", "job.yaml", "-o", "json"]).code(4).json();
    let after = effects(&workspace);
    for (done, counts) in &before {
        assert!(!done.is_empty(), "the kill came too early to show anything");
        for item in done {
            assert_eq!(after[item], counts[item], "item {item} was done and ran again");
        }
    }
    let dead: BTreeSet<String> = workspace
        .items(&["dlq", "list", "queue:run.numbers", "--all"])
        .iter()
        .map(|l| text(&l["payload"]))
        .collect();
    let done = completed(&workspace);
    assert_eq!(done.len() + dead.len(), ITEMS);
    assert!(dead.iter().all(|item| !done.contains(&item.parse().unwrap())));
    assert_eq!(summary["done"], done.len());
    assert_eq!(summary["dead"], dead.len());
    assert_eq!(summary["left"], 0);
    assert_eq!(summary["output"], format!("{}\n", done.len()));
    let grouped: u64 =
        summary["groups"].as_array().unwrap().iter().map(|g| g["count"].as_u64().unwrap()).sum();
    assert_eq!(grouped, u64::try_from(dead.len()).unwrap());
    assert_eq!(summary["groups"].as_array().unwrap().len(), 1, "{}", summary["groups"]);
    workspace.run(&["doctor", "--deep"]).ok();

    workspace.file("mended", "");
    let healed = workspace.run(&["run", "job.yaml", "--retry-dead", "-o", "json"]).ok().json();
    assert_eq!((&healed["done"], &healed["dead"]), (&Value::from(ITEMS), &Value::from(0)));
    assert!(workspace.items(&["dlq", "list", "queue:run.numbers status:pending"]).is_empty());
    for item in &done {
        assert_eq!(effects(&workspace)[item], after[item]);
    }
}

#[test]
fn an_interrupt_lets_running_items_finish_and_explains_how_to_resume() {
    let workspace = Workspace::new();
    workspace.file(
        "job.yaml",
        "name: slow\ninput: {command: 'seq 1 50'}\nmap: ['echo >> begun; timeout --foreground 600 sh -c \"while [ ! -e go ]; do sleep 0.05; done\"; echo >> ended']\n",
    );
    let lines =
        |name: &str| std::fs::read_to_string(workspace.path(name)).unwrap_or_default().lines().count();
    let child = workspace.spawn(&["run", "job.yaml"], Stdio::null());
    until("items are running", || lines("begun") == 4);
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    workspace.file("go", "");
    let ran = RunResult::of(&["run"], child.wait_with_output().unwrap()).code(130);
    assert_eq!((lines("begun"), lines("ended")), (4, 4), "what was begun is finished, nothing more begins");
    ran.says("finishing what was begun").says("46 items are left: redrive run job.yaml");
    workspace.run(&["run", "job.yaml", "--resume"]).ok();
    assert_eq!(lines("ended"), 50);
}

#[test]
fn errors_are_reported_before_anything_runs() {
    let workspace = Workspace::new();
    workspace.file("items.csv", "id\n1\n");
    let job = |text: &str| {
        workspace.file("job.yaml", text);
        workspace.run(&["run", "job.yaml"])
    };
    job("name: x\ninput: {file: items.csv}\nmap: [true]\nmax_failure: 3\n")
        .code(2)
        .says("job.yaml:4: unknown key \"max_failure\"; did you mean \"max_failures\"?");
    job("name: x\ninput: {file: items.csv}\nmap: ['echo ${item.di}']\n")
        .code(1)
        .says("no item has a field di");
    job("name: x\ninput: {file: none.csv}\nmap: [true]\n").code(1).says("none.csv");
    workspace.run(&["run", "nothing.yaml"]).code(7);
    let good = "name: x\ninput: {file: items.csv}\nmap: ['echo ${item.id} ${var.v} >> effects']\n";
    workspace.file("job.yaml", good);
    workspace.run(&["run", "job.yaml", "--resume"]).code(7).says("leave --resume out");
    workspace.run(&["run", "job.yaml", "--var", "v"]).code(2);
    let plan = workspace.json(&["run", "job.yaml", "--dry-run", "--var", "v=a b"]);
    assert_eq!(plan["items"][0]["commands"][0], "echo '1' 'a b' >> effects");
    assert!(!workspace.path("effects").exists());
    workspace.run(&["run", "job.yaml", "--var", "v=1"]).ok();
    workspace.run(&["run", "job.yaml", "--var", "v=2"]).code(5).says("--accept-changes");
    workspace.run(&["run", "job.yaml", "--var", "v=2", "--restart"]).ok();
    assert_eq!(std::fs::read_to_string(workspace.path("effects")).unwrap(), "1 1\n1 2\n");
}

#[test]
fn the_dead_items_of_a_job_are_retried_by_its_name() {
    let workspace = Workspace::new();
    workspace.file(
        "job.yaml",
        "name: x\ninput: {command: 'seq 1 3'}\nmap: {steps: ['test -e mended'], retry: {max_attempts: 1}}\n",
    );
    workspace.dead_letter("other", "1", "boom");
    workspace
        .run(&["run", "job.yaml"])
        .code(4)
        .says("3 x CommandFailed")
        .says("redrive run job.yaml --retry-dead");
    workspace.file("mended", "");
    workspace.run(&["dlq", "retry", "--job", "x", "--yes"]).ok();
    workspace.run(&["dlq", "retry", "--job", "not a job", "--yes"]).code(2);
    workspace.run(&["run", "job.yaml"]).ok();
    let open = workspace.items(&["dlq", "list", "status:pending"]);
    assert_eq!((open.len(), text(&open[0]["queue"])), (1, "other".into()));
}

#[test]
fn without_a_data_directory_the_users_data_directory_is_used() {
    let workspace = Workspace::new();
    workspace.file("job.yaml", "name: x\ninput: {command: 'seq 1 3'}\nmap: [true]\n");
    let run = |args: &[&str]| {
        let mut command = workspace.command(args);
        command.env_remove("REDRIVE_DATA").env("XDG_DATA_HOME", workspace.path("share"));
        RunResult::of(args, command.env("XDG_CACHE_HOME", workspace.path("cache")).output().unwrap())
    };
    run(&["run", "job.yaml"]).ok();
    assert!(workspace.path("share/redrive").is_dir() && !workspace.path("redrive-data").exists());
    workspace.file(
        "bad.yaml",
        "name: bad\ninput: {command: 'seq 1 2'}\nmap: {steps: [{run: 'exit 3'}], retry: {max_attempts: 1}}\n",
    );
    run(&["run", "bad.yaml"]).code(4).says("redrive dlq list 'queue:run.bad'");
    let listed =
        run(&["dlq", "list", "queue:run.bad", "-o", "json"]).ok().says("since there is no ./redrive-data");
    assert_eq!(
        listed.json()["items"].as_array().unwrap().len(),
        2,
        "the other commands look in the same place"
    );
    run(&["enqueue", "q", "--payload", "x"]).ok();
    run(&["doctor"]).ok();
    assert!(!workspace.path("redrive-data").exists());
    let elsewhere = workspace.path("elsewhere");
    let quiet = run(&["dlq", "list", "--data", elsewhere.to_str().unwrap()]).code(7);
    assert!(!quiet.stderr.contains("since there is no"));
    std::fs::create_dir(workspace.path("redrive-data")).unwrap();
    close(&workspace.path("redrive-data"));
    run(&["run", "job.yaml"]).ok();
    assert!(std::fs::read_dir(workspace.path("redrive-data")).unwrap().next().is_some());
    let managed = workspace.path("cache/redrive/worktrees/data");
    run(&["run", "job.yaml", "--data", managed.to_str().unwrap()]).code(5).says("work trees");
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/jobs").join(name)
}

fn run_example(workspace: &Workspace, name: &str, args: &[&str]) -> RunResult {
    let path = example(name);
    let args: Vec<&str> = ["run", path.to_str().unwrap(), "-o", "json"].iter().chain(args).copied().collect();
    workspace.run(&args)
}

#[test]
fn the_example_of_checksums_runs() {
    let workspace = Workspace::new();
    let out = format!("out={}", workspace.path("out").display());
    let summary = run_example(&workspace, "checksums.yaml", &["--var", &out]).code(4).json();
    assert_eq!((&summary["done"], &summary["dead"]), (&Value::from(4), &Value::from(1)));
    assert_eq!(summary["output"], "4 of 5 files\n");
    let results = std::fs::read_to_string(workspace.path("out/results.ndjson")).unwrap();
    let first: Value = serde_json::from_str(results.lines().next().unwrap()).unwrap();
    assert_eq!(first["item"]["label"], "checksums", "sorted by label");
    assert!(workspace.path("out/orders.cksum").exists());
}

#[test]
fn the_example_of_flaky_numbers_runs() {
    let workspace = Workspace::new();
    let summary = run_example(&workspace, "flaky.yaml", &[]).ok().json();
    assert_eq!((&summary["done"], &summary["output"]), (&Value::from(5), &Value::from("10201\n")));
}

#[test]
fn the_example_of_orders_runs() {
    let workspace = Workspace::new();
    let summary = run_example(&workspace, "orders.yaml", &[]).ok().json();
    assert_eq!((&summary["total"], &summary["output"]), (&Value::from(3), &Value::from("3\n")));
    let results = std::fs::read_to_string(text(&summary["results_file"])).unwrap();
    let outputs: Vec<String> =
        results.lines().map(|line| text(&serde_json::from_str::<Value>(line).unwrap()["output"])).collect();
    assert_eq!(
        outputs,
        [
            "dear Dai\nNewline, you owe us 310\n",
            "dear Ann O'Neill, you owe us 120.50\n",
            "dear Fay, you owe us 99.5\n",
        ]
    );
}
