//! Children that misbehave, each with a stated result: the runner always returns, never keeps more than it was
//! asked to, and leaves nobody of the process group behind.

use crate::support::{PATIENCE, StoppedClock};
use redrive::core::time::Span;
use redrive::executor::output::OutputLimit;
use redrive::executor::process::{NotStartedKind, Process, ProcessEnd, ProcessOutput, Stream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

async fn run(process: Process) -> ProcessOutput {
    // A runner that hangs is a failed test, not a stuck one.
    let finished = tokio::time::timeout(PATIENCE, process.run(&CancellationToken::new())).await;
    finished.expect("the runner returns")
}

/// Starts it, and waits for its first line: it is set up by then.
async fn once_up(process: Process) -> tokio::task::JoinHandle<ProcessOutput> {
    let up = Arc::new(Notify::new());
    let told = Arc::clone(&up);
    let process = process.on_line(Arc::new(move |_, _| told.notify_one()));
    let running = tokio::spawn(async move { process.run(&CancellationToken::new()).await });
    up.notified().await;
    running
}

fn exited(code: i32) -> ProcessEnd {
    ProcessEnd::Exited(code)
}

/// Waits until the process with this number is gone.
async fn gone(pid: &str) {
    let proc = format!("/proc/{pid}/stat");
    let dead = || match std::fs::read_to_string(&proc) {
        // Orphans are reaped by whoever inherits them, which may take its time; a zombie does nothing any more.
        Ok(stat) => stat.rsplit(") ").next().is_none_or(|rest| rest.starts_with(['Z', 'X'])),
        Err(_) => true,
    };
    let begun = Instant::now();
    while !dead() {
        assert!(begun.elapsed() < PATIENCE, "process {pid} lives on");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn it_says_how_the_child_ended_and_what_it_printed() {
    let done = run(Process::shell("cat; echo oops >&2; exit 7").stdin("hello")).await;
    assert_eq!(done.ended, exited(7));
    assert_eq!(done.stdout.whole().as_deref(), Some(&b"hello"[..]));
    assert_eq!(done.stderr.text(), "oops\n");
    assert!(done.cpu.is_some());
    assert_eq!(run(Process::shell("kill -SEGV $$")).await.ended, ProcessEnd::Signalled(11));
}

#[tokio::test]
async fn arguments_environment_and_directory_are_exact() {
    let directory = tempfile::tempdir().unwrap();
    let process =
        Process::argv(["sh", "-c", r#"printf '%s|%s|%s|%s' "$1" "$A" "${B-unset}" "$(pwd -P)""#, "sh"]);
    assert_eq!(run(process.clone()).await.stdout.text().split('|').next(), Some(""));
    let process = Process::argv([
        "sh",
        "-c",
        r#"printf '%s|%s|%s|%s' "$1" "$A" "${B-unset}" "$(pwd -P)""#,
        "sh",
        "a 'b' $c \n d",
    ])
    .env("A", "1 2")
    .env("B", "x")
    .env_remove("HOME")
    .directory(directory.path());
    let place = directory.path().canonicalize().unwrap();
    let expected = format!("a 'b' $c \n d|1 2|x|{}", place.display());
    assert_eq!(run(process).await.stdout.text(), expected);
    let bare = Process::argv(["/usr/bin/env"]).env_clear().env("ONLY", "this");
    assert_eq!(run(bare).await.stdout.text(), "ONLY=this\n");
}

#[tokio::test]
async fn what_does_not_exist_or_may_not_run_says_so() {
    let absent = run(Process::argv(["redrive-no-such-command"])).await;
    assert!(
        matches!(&absent.ended, ProcessEnd::NotStarted(n) if n.kind == NotStartedKind::NotFound
        && n.why.contains("redrive-no-such-command")),
        "{absent:?}"
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("data.txt");
    std::fs::write(&file, "not a program").unwrap();
    let forbidden = run(Process::argv([file.clone()])).await;
    assert!(matches!(&forbidden.ended, ProcessEnd::NotStarted(n) if n.kind == NotStartedKind::NotAllowed));
    let nowhere = run(Process::argv(["true"]).directory(directory.path().join("absent"))).await;
    assert!(matches!(&nowhere.ended, ProcessEnd::NotStarted(n) if n.why.contains("no working directory")));
    let nothing = run(Process::argv(Vec::<String>::new())).await;
    assert!(matches!(nothing.ended, ProcessEnd::NotStarted(_)));
    let nul = run(Process::argv(["echo", "a\0b"])).await;
    assert!(matches!(nul.ended, ProcessEnd::NotStarted(n) if n.kind == NotStartedKind::Other));
    let unlogged = run(Process::argv(["true"]).log(directory.path().join("absent/log"))).await;
    assert!(matches!(unlogged.ended, ProcessEnd::NotStarted(n) if n.why.contains("log file")));
}

#[tokio::test]
async fn a_child_that_takes_too_long_gets_sigterm_and_may_clean_up() {
    let script = "trap 'echo cleaned; exit 0' TERM; echo up; for i in $(seq 12000); do sleep 0.05; done";
    let process = Process::shell(script).limit(Span::from_secs(2));
    let clock = StoppedClock::new();
    let running = once_up(process).await;
    clock.advance(Duration::from_secs(2)).await;
    let done = running.await.unwrap();
    assert_eq!(done.ended, ProcessEnd::TimedOut);
    assert_eq!(done.stdout.text(), "up\ncleaned\n");
    assert!(done.duration >= Span::from_secs(2) && done.cpu.is_some());
}

#[tokio::test]
async fn a_child_that_ignores_sigterm_is_killed_with_its_group() {
    let script = "trap '' TERM; (trap '' TERM; for i in $(seq 12000); do sleep 0.05; done) & echo $! ; \
                  for i in $(seq 12000); do sleep 0.05; done";
    let process = Process::shell(script).limit(Span::from_secs(2)).grace(Span::from_millis(200));
    let clock = StoppedClock::new();
    let running = once_up(process).await;
    clock.advance(Duration::from_secs(2)).await;
    assert!(!running.is_finished(), "it has its grace time");
    clock.advance(Duration::from_millis(200)).await;
    let done = running.await.unwrap();
    assert_eq!(done.ended, ProcessEnd::TimedOut);
    gone(done.stdout.text().trim()).await;
}

#[tokio::test]
async fn cancelling_ends_it() {
    let cancel = CancellationToken::new();
    let heard = cancel.clone();
    let process = Process::shell("echo up; exec sleep 3600").on_line(Arc::new(move |_, _| heard.cancel()));
    let done = process.run(&cancel).await;
    assert_eq!(done.ended, ProcessEnd::Cancelled);
}

#[tokio::test]
async fn dropping_the_run_kills_the_group() {
    let pid = Arc::new(Mutex::new(String::new()));
    let (seen, cancel) = (Arc::clone(&pid), CancellationToken::new());
    let up = Arc::new(Notify::new());
    let told = Arc::clone(&up);
    let process = Process::shell("trap '' TERM; echo $$; for i in $(seq 12000); do sleep 0.05; done")
        .on_line(Arc::new(move |_, line| {
            *seen.lock().unwrap() = line.to_owned();
            told.notify_one();
        }));
    tokio::select! {
        _ = process.run(&cancel) => panic!("it runs until it is killed"),
        () = up.notified() => {}
    }
    let pid = pid.lock().unwrap().clone();
    gone(&pid).await;
}

#[tokio::test]
async fn forks_that_hold_the_pipes_end_with_the_child() {
    let done = run(Process::shell("sleep 3600 & echo $!; exit 0")).await;
    assert_eq!(done.ended, exited(0));
    gone(done.stdout.text().trim()).await;
}

#[tokio::test]
async fn a_daemon_that_leaves_the_group_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let stop = directory.path().join("stop");
    // It keeps the pipes and lives until it is told to stop; the run is over while it lives. When nobody is left to
    // tell it, it goes with the directory.
    let script = r#"setsid sh -c 'echo $$ > "$STOP.up"
                        while [ ! -e "$STOP" ] && [ -d "${STOP%/*}" ]; do sleep 0.05; done' &
                    while ! [ -s "$STOP.up" ]; do sleep 0.05; done; echo main; exit 3"#;
    let done = run(Process::shell(script).env("STOP", &stop)).await;
    assert_eq!(done.ended, exited(3));
    assert!(done.stdout.text().contains("main\n"), "{}", done.stdout.text());
    let daemon = read(&directory.path().join("stop.up"));
    assert!(Path::new(&format!("/proc/{}", daemon.trim())).exists(), "it lives on");
    std::fs::write(&stop, "").unwrap();
    gone(daemon.trim()).await;
}

#[tokio::test]
async fn a_child_that_closes_its_pipes_early_is_still_waited_for() {
    let done = run(Process::shell("exec <&- >&- 2>&-; sleep 0.3; exit 9").stdin(vec![b'x'; 1 << 20])).await;
    assert_eq!(done.ended, exited(9));
    assert!(done.duration >= Span::from_millis(300));
}

#[tokio::test]
async fn a_child_that_never_reads_its_input_is_no_error() {
    let done = run(Process::argv(["true"]).stdin(vec![b'x'; 8 << 20])).await;
    assert_eq!(done.ended, exited(0));
    let all = run(Process::argv(["wc", "-c"]).stdin(vec![b'x'; 8 << 20])).await;
    assert_eq!(all.stdout.text().trim(), (8 << 20).to_string());
}

#[tokio::test]
async fn a_gigabyte_of_output_is_read_and_not_kept() {
    const GIGABYTE: u64 = 1 << 30;
    let keep = OutputLimit { head: 100, tail: 100 };
    let script = format!("echo begin; head -c {GIGABYTE} /dev/zero; echo; echo end; echo bad >&2; exit 4");
    let done = run(Process::shell(script).keep_stdout(keep)).await;
    assert_eq!(done.ended, exited(4));
    assert_eq!(done.stdout.total(), GIGABYTE + 11);
    assert_eq!(done.stdout.kept().len(), 200);
    assert!(done.stdout.text().starts_with("begin\n") && done.stdout.text().ends_with("end\n"));
    assert_eq!(done.stderr.last_lines(1, 100), "bad");
}

#[tokio::test]
async fn lines_and_a_log_file_follow_the_output() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("run.log");
    let lines = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&lines);
    let process = Process::shell("echo one; echo two >&2; printf three")
        .log(&log)
        .on_line(Arc::new(move |stream, line| seen.lock().unwrap().push((stream, line.to_owned()))));
    assert_eq!(run(process).await.ended, exited(0));
    let lines = lines.lock().unwrap();
    let of = |wanted| lines.iter().filter(|l| l.0 == wanted).map(|l| l.1.as_str()).collect::<Vec<_>>();
    assert_eq!(of(Stream::Stdout), ["one", "three"]);
    assert_eq!(of(Stream::Stderr), ["two"]);
    let logged = read(&log);
    assert!(logged.contains("one\n") && logged.contains("two\n") && logged.contains("three"), "{logged}");
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[tokio::test]
async fn use_of_processor_and_memory_is_counted_for_the_child() {
    let idle = run(Process::argv(["true"])).await;
    let script = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; head -c 100000000 /dev/zero | tail -c 99999999 | wc -c";
    let busy = run(Process::shell(script)).await;
    assert_eq!(busy.stdout.text().trim(), "99999999");
    assert!(busy.cpu.unwrap() > idle.cpu.unwrap(), "{:?} {:?}", busy.cpu, idle.cpu);
    // `tail` holds what it is to print.
    assert!(busy.memory.unwrap() > 90_000_000, "{:?}", busy.memory);
}
