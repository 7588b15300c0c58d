//! The command executor on a worker: every exit code and every misbehaviour has the outcome that is stated.

use crate::support::{StoppedClock, configure, eager, enqueue, letters, memory, message, queue};
use redrive::core::message::Payload;
use redrive::core::store::{LeaseRequest, Store};
use redrive::core::target::{CommandTarget, PayloadBy};
use redrive::core::time::Span;
use redrive::executor::CommandExecutor;
use redrive::{Counts, Handler, Worker};
use std::sync::Arc;
use std::time::Duration;

/// Runs one message of `q` through a handler until nothing is left.
async fn run(store: &Arc<dyn Store>, handler: impl Handler + 'static) -> Counts {
    let worker = Worker::builder(store.clone()).queue("q").fallback(handler).until_empty();
    worker.build().unwrap().run().await.unwrap()
}

fn command(target: CommandTarget) -> CommandExecutor {
    CommandExecutor::new(target).unwrap()
}

/// Two attempts, and the dead letter's last failure as JSON.
async fn failure(target: CommandTarget) -> (Counts, serde_json::Value, String) {
    let store = redrive::memory();
    configure(&store, "q", eager(2)).await;
    enqueue(&store, vec![message("q", "k", "{}")]).await;
    let counts = run(&store, command(target)).await;
    let letters = letters(&store).await;
    assert_eq!(letters.len(), 1, "{counts:?}");
    let last = serde_json::to_value(letters[0].message.failures.last().unwrap()).unwrap();
    (counts, last, letters[0].record.reason.to_string())
}

#[tokio::test]
async fn exit_codes_are_verdicts() {
    let store = redrive::memory();
    configure(&store, "q", eager(2)).await;
    enqueue(&store, vec![message("q", "k", "{}")]).await;
    let counts = run(&store, command(CommandTarget::argv(["true"]))).await;
    assert_eq!((counts.done, counts.failed), (1, 0));

    let (counts, last, reason) = failure(CommandTarget::shell("echo 'no such order 5' >&2; exit 3")).await;
    assert_eq!((counts.retried, counts.dead, reason.as_str()), (1, 1, "max_attempts"));
    assert_eq!(last["error"]["type"], "CommandFailed");
    assert_eq!((&last["error"]["code"], &last["error"]["message"]), (&"3".into(), &"no such order 5".into()));
    assert_eq!(last["step"], "command");
    assert!(last["cpu"].as_f64().is_some() && last["duration_ms"].as_u64().is_some(), "{last}");
    assert!(last["artifacts"][0].as_str().unwrap().contains("no such order 5"));

    let (counts, last, reason) = failure(CommandTarget::shell("echo busy; exit 75")).await;
    assert_eq!((counts.retried, counts.dead, reason.as_str()), (1, 1, "max_attempts"));
    assert_eq!((&last["error"]["type"], &last["error"]["message"]), (&"RetryLater".into(), &"busy".into()));

    let (counts, last, reason) = failure(CommandTarget::shell("exit 65")).await;
    assert_eq!((counts.retried, counts.dead, reason.as_str()), (0, 1, "permanent"));
    assert_eq!(last["error"]["type"], "Rejected");

    let (_, last, _) = failure(CommandTarget::shell("kill -KILL $$")).await;
    assert_eq!(
        (&last["error"]["type"], &last["error"]["code"]),
        (&"CommandKilled".into(), &"SIGKILL".into())
    );
}

#[tokio::test]
async fn a_traceback_on_stderr_is_the_error() {
    let script = "printf 'starting\\nTraceback (most recent call last):\\n  File \"/app/a.py\", line 3, in charge\\n    x()\\nshop.Declined: no funds\\n' >&2; exit ";
    for (code, reason) in [(1, "max_attempts"), (65, "permanent")] {
        let (_, last, why) = failure(CommandTarget::shell(format!("{script}{code}"))).await;
        let error = &last["error"];
        assert_eq!(
            (&error["type"], &error["message"]),
            (&"shop.Declined".into(), &"no funds".into()),
            "{last}"
        );
        assert_eq!((error["code"].as_str(), why.as_str()), (Some(code.to_string().as_str()), reason));
        assert!(error["stack"].as_str().unwrap().contains("line 3, in charge"), "{last}");
    }
    let (_, last, _) = failure(CommandTarget::shell(format!("{script}75"))).await;
    assert_eq!(last["error"]["type"], "RetryLater", "the command handled it");
}

#[tokio::test]
async fn a_command_that_cannot_run_is_a_failure_like_any_other() {
    let (counts, last, reason) = failure(CommandTarget::argv(["redrive-no-such-command"])).await;
    assert_eq!((counts.retried, counts.dead, reason.as_str()), (1, 1, "max_attempts"));
    assert_eq!(last["error"]["type"], "CommandNotFound");
    let (_, last, _) = failure(CommandTarget::argv(["/"])).await;
    assert_eq!(last["error"]["type"], "CommandNotFound", "a directory may not be run");
}

#[tokio::test]
async fn a_command_that_ignores_its_time_limit_is_killed() {
    let target = CommandTarget {
        timeout: Some(Span::from_millis(200)),
        ..CommandTarget::shell("trap '' TERM; for i in $(seq 12000); do sleep 0.05; done")
    };
    let (counts, last, _) = failure(target).await;
    assert_eq!((counts.dead, &last["error"]["type"]), (1, &"Timeout".into()));
    assert!(last["error"]["message"].as_str().unwrap().contains("200ms"), "{last}");
}

#[tokio::test]
async fn the_command_is_told_everything_about_its_message() {
    let directory = tempfile::tempdir().unwrap();
    let store = redrive::memory();
    let mut told = message("q", "charge", "{\"n\":1}");
    told.headers = [("x-team".to_owned(), "a b".to_owned()), ("nul".to_owned(), "x\0y".to_owned())].into();
    (told.key, told.trace) = (Some("k1".into()), Some("00-ab-cd-01".into()));
    let id = told.id.to_string();
    enqueue(&store, vec![told]).await;
    let script = "cp \"$REDRIVE_PAYLOAD_FILE\" payload; cp \"$1\" argument; stat -c %a \"$1\" > mode; \
                  env | grep -E '^(REDRIVE_|TRACEPARENT|OWN|GONE)' | grep -v PAYLOAD_FILE | sort > env; cat > stdin";
    let target = CommandTarget {
        payload: PayloadBy::File,
        directory: Some(directory.path().to_str().unwrap().into()),
        env: [("OWN".to_owned(), "1".to_owned())].into(),
        unset: vec!["HOME".into()],
        ..CommandTarget::argv(["sh", "-c", script, "sh", "{payload_file}"])
    };
    assert_eq!(run(&store, command(target)).await.done, 1);
    let read = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap();
    assert_eq!((read("payload"), read("argument")), ("{\"n\":1}".to_owned(), "{\"n\":1}".to_owned()));
    assert_eq!((read("mode").trim(), read("stdin").as_str()), ("600", ""));
    let expected = format!(
        "OWN=1\nREDRIVE_ATTEMPT=1\nREDRIVE_CONTENT_TYPE=application/json\nREDRIVE_HEADER_X_TEAM=a b\n\
         REDRIVE_ID={id}\nREDRIVE_KEY=k1\nREDRIVE_KIND=charge\nREDRIVE_MAX_ATTEMPTS=5\nREDRIVE_PRIORITY=normal\n\
         REDRIVE_QUEUE=q\nREDRIVE_TRACE=00-ab-cd-01\nTRACEPARENT=00-ab-cd-01\n"
    );
    assert_eq!(read("env"), expected);
}

/// What the worker of `q` answered to a message that wants a reply.
async fn replied(line: &str) -> (Counts, Option<Payload>) {
    let store = redrive::memory();
    let mut asking = message("q", "k", "{}");
    asking.reply_to = Some("answers".parse().unwrap());
    configure(&store, "q", eager(2)).await;
    enqueue(&store, vec![asking]).await;
    let counts = run(&store, command(CommandTarget::shell(line))).await;
    let queues = vec!["answers".parse().unwrap()];
    let wanted =
        LeaseRequest { queues, max: 2, lease_for: None, worker: "test".into(), ..LeaseRequest::default() };
    let mut answers = store.lease(wanted).await.unwrap();
    assert!(answers.len() <= 1, "{answers:?}");
    (counts, answers.pop().map(|answer| answer.message.envelope.payload))
}

#[tokio::test]
async fn what_a_command_prints_is_the_reply() {
    let (counts, answer) = replied("echo '{\"sum\":3}'").await;
    let answer = answer.unwrap();
    assert_eq!((counts.done, answer.content_type.as_str()), (1, "application/json"));
    assert_eq!(answer.bytes, b"{\"sum\":3}\n");
    assert_eq!(replied("echo hello").await.1.unwrap().content_type, "text/plain; charset=utf-8");
    assert_eq!(replied("printf '\\377'").await.1.unwrap().content_type, "application/octet-stream");
    assert_eq!(replied("exit 0").await.1.unwrap().bytes, b"");
    // Done, but its answer cannot be kept: trying again would not make it shorter.
    let (counts, answer) = replied("head -c 20000000 /dev/zero").await;
    assert_eq!((counts.dead, counts.retried), (1, 0));
    let text = String::from_utf8(answer.unwrap().bytes).unwrap();
    assert!(text.contains("ReplyTooLarge"), "who asked is told: {text}");
}

#[tokio::test]
async fn stopping_the_worker_gives_the_message_back() {
    let directory = tempfile::tempdir().unwrap();
    let up = directory.path().join("up");
    let clock = StoppedClock::new();
    let store = memory();
    enqueue(&store, vec![message("q", "k", "{}")]).await;
    let target = CommandTarget {
        env: [("UP".to_owned(), up.to_str().unwrap().to_owned())].into(),
        ..CommandTarget::shell("trap '' TERM; : > \"$UP\"; for i in $(seq 12000); do sleep 0.05; done")
    };
    let worker =
        Worker::builder(store.clone()).queue("q").fallback(command(target)).grace(Span::from_secs(10));
    let worker = worker.build().unwrap();
    let handle = worker.handle();
    let running = tokio::spawn(async move { worker.run().await });
    clock.eventually("the command runs", async || up.exists()).await;
    handle.stop();
    clock.advance(Duration::ZERO).await;
    // Commands are told to stop after seven tenths of the grace time, and ended after eight.
    clock.advance(Duration::from_secs(7)).await;
    clock.advance(Duration::from_secs(1)).await;
    let counts = running.await.unwrap().unwrap();
    assert_eq!((counts.released, counts.failed), (1, 0));
    assert_eq!(queue(&store, "q").await.ready, 1);
}
