//! The life cycle of a failing message, as a user at a terminal experiences it.

use crate::support::{RunResult, Workspace, text, until};
use std::process::Stdio;

#[test]
fn a_message_fails_dies_is_retried_and_succeeds() {
    let workspace = Workspace::new();
    workspace.hasty_queue("payments");
    let payload = "{\"order\": 4411,  \"note\": \"žluť\"}";
    let enqueue = ["enqueue", "payments", "--payload", payload, "--kind", "charge", "--header", "tenant=a"];
    let enqueued = workspace.json(&enqueue);
    assert_eq!((&enqueued["state"], &enqueued["duplicate"]), (&"ready".into(), &false.into()));
    let id = text(&enqueued["id"]);

    let delivery = workspace.lease("payments");
    assert_eq!((&delivery["id"], &delivery["attempt"]), (&id.clone().into(), &1.into()));
    assert_eq!((&delivery["payload"], &delivery["kind"]), (&payload.into(), &"charge".into()));
    let token = text(&delivery["token"]);
    let fail = ["fail", &token, "--error-type", "HttpError", "--message", "gateway timeout", "--code", "504"];
    assert_eq!(workspace.json(&fail)["state"], "ready");
    let second = workspace.fail("payments", "no answer after 30 s");
    assert_eq!((&second["state"], &second["reason"]), (&"dead".into(), &"max_attempts".into()));

    let letters = workspace.items(&["dlq", "list", "queue:payments status:pending"]);
    assert_eq!(letters.len(), 1);
    let letter = workspace.json(&["dlq", "show", &id]);
    assert_eq!((&letter["dlq"], &letter["attempts"]), (&"payments-dlq".into(), &2.into()));
    assert_eq!(letter["failures"].as_array().unwrap().len(), 2);
    assert_eq!(letter["failures"][0]["error"]["code"], "504");
    assert_eq!(letter["headers"]["tenant"], "a");
    assert_eq!(workspace.run(&["dlq", "show", &id, "--payload", "--reveal"]).ok().stdout, payload.as_bytes());
    assert_eq!(workspace.items(&["group", "list"])[0]["open"], 1);
    workspace.run(&["dlq", "stats", "--fail-if", "open>0"]).code(10).says("open>0 holds: it is 1");
    workspace.run(&["message", "show", &id]).code(7);

    let retried = workspace.json(&["dlq", "retry", &id, "--reason", "gateway is back"]);
    assert_eq!(retried["status"], "retrying");
    workspace.run(&["dlq", "resolve", &id]).code(6).says("while it is retrying");
    let delivery = workspace.lease("payments");
    assert_eq!((&delivery["generation"], &delivery["attempt"]), (&2.into(), &1.into()));
    workspace.run(&["ack", &text(&delivery["token"])]).ok();

    let letter = workspace.json(&["dlq", "show", &id]);
    assert_eq!((&letter["status"], &letter["resolution"]), (&"resolved".into(), &"retried".into()));
    workspace.run(&["dlq", "stats", "--fail-if", "open>0"]).ok();
    assert_eq!(workspace.acts(), ["resolve group", "retry", "reveal", "configure"]);
    let head = text(&workspace.json(&["audit", "verify"])["head"]);
    workspace.run(&["audit", "verify", "--head", &head]).ok();
    workspace.run(&["audit", "verify", "--head", &"1".repeat(64)]).code(10);
    workspace.run(&["doctor", "--deep"]).ok().says("everything holds");
    let queue = workspace.json(&["queue", "show", "payments"]);
    // A message is counted in one place: its closed letter, until that is purged.
    assert_eq!((&queue["done"], &queue["dead"]), (&0.into(), &1.into()));
}

#[test]
fn a_worker_extends_releases_and_snoozes() {
    let workspace = Workspace::new();
    let id = workspace.enqueue("q", "x");
    let token = text(&workspace.lease("q")["token"]);
    let extended = workspace.json(&["extend", &token, "--by", "5m"]);
    assert_eq!(extended["state"], "leased");
    assert_eq!(workspace.json(&["release", &token])["state"], "ready");
    let delivery = workspace.lease("q");
    assert_eq!((&delivery["attempt"], &delivery["deliveries"]), (&1.into(), &2.into()));
    let token = text(&delivery["token"]);
    assert_eq!(workspace.json(&["release", &token, "--delay", "1h"])["state"], "scheduled");
    workspace.run(&["lease", "q", "--fail-empty"]).code(3);
    assert_eq!(workspace.json(&["message", "show", &id])["attempts"], 0);
    workspace.run(&["message", "cancel", &id]).ok();
    workspace.run(&["message", "show", &id]).code(7);
}

#[test]
fn replies_are_sent_and_progress_is_kept() {
    let workspace = Workspace::new();
    workspace.hasty_queue("sums");
    let ask = ["enqueue", "sums", "--payload", "40+2", "--reply-to", "answers"];
    let id = text(&workspace.json(&ask)["id"]);
    let token = text(&workspace.lease("sums")["token"]);
    let far = workspace.json(&["extend", &token, "--progress", "1/2", "--note", "adding"]);
    assert_eq!(far["state"], "leased");
    workspace.run(&["extend", &token, "--progress", "half"]).code(2).says("is not progress");
    workspace.run(&["release", &token]).ok();
    let delivery = workspace.lease("sums");
    assert_eq!(delivery["progress"], serde_json::json!({"done": 1, "total": 2, "note": "adding"}));
    let from_file = format!("@{}", workspace.file("answer.txt", "42"));
    let acked = workspace.items(&["ack", &text(&delivery["token"]), "--reply", &from_file]).remove(0);
    let answer = workspace.lease("answers");
    assert_eq!((&answer["id"], &answer["payload"]), (&acked["reply"], &"42".into()));
    assert_eq!((&answer["kind"], &answer["headers"]["in-reply-to"]), (&"reply".into(), &id.into()));
    workspace.run(&["ack", &text(&answer["token"])]).ok();

    workspace.run(&ask).ok();
    let token = text(&workspace.lease("sums")["token"]);
    workspace.run(&["fail", &token, "--error-type", "Bad", "--message", "no", "--permanent"]).ok();
    let answer = workspace.lease("answers");
    assert_eq!(answer["headers"]["reply-status"], "dead");
    let reply: serde_json::Value = serde_json::from_str(&text(&answer["payload"])).unwrap();
    assert_eq!((&reply["error"]["type"], &reply["reason"]), (&"Bad".into(), &"permanent".into()));
    workspace
        .run(&["enqueue", "sums", "--payload", "x", "--reply-to", "sums-dlq"])
        .code(5)
        .says("dead letter queue");
}

#[test]
fn events_are_counted_and_reported() {
    let workspace = Workspace::new();
    workspace.hasty_queue("jobs");
    let id = workspace.dead_letter("jobs", "x", "no");
    workspace.run(&["dlq", "retry", &id]).ok();
    workspace.run(&["ack", &text(&workspace.lease("jobs")["token"])]).ok();
    workspace.dead_letter("jobs", "y", "another cause");
    let stats = workspace.json(&["dlq", "stats"]);
    assert_eq!(stats["items"][0]["by_status"]["pending"], 1);
    let summary = &stats["summary"];
    assert_eq!((&summary["enqueued"], &summary["dead"]), (&2.into(), &2.into()));
    assert_eq!((&summary["redriven"], &summary["retry_success_rate"]), (&1.into(), &1.0.into()));
    let shown = workspace.run(&["dlq", "stats"]).ok().text();
    assert!(shown.contains("retry_success_rate") && shown.contains("100.0 %"), "{shown}");
    let report = workspace.json(&["queue", "report"]);
    assert_eq!(
        (&report["queues"][0]["queue"], &report["queues"][0]["letters_open"]),
        (&"jobs".into(), &1.into())
    );
    assert_eq!((&report["summary"]["dead"], &report["alerts"]), (&2.into(), &serde_json::json!([])));
    workspace.run(&["queue", "report", "--check"]).ok().says("no alerts");
    workspace.run(&["queue", "set", "jobs", "--max-messages", "1"]).ok();
    workspace.enqueue("jobs", "z");
    workspace.run(&["queue", "report", "--check"]).code(10).says("alerts: utilisation");
}

#[test]
fn work_behind_an_ordering_key_waits_for_its_turn() {
    let workspace = Workspace::new();
    for payload in ["first", "second"] {
        workspace.run(&["enqueue", "q", "--payload", payload, "--ordering-key", "k"]).ok();
    }
    let first = workspace.lease("q");
    assert_eq!(first["payload"], "first");
    workspace.run(&["lease", "q", "--wait", "100ms", "--fail-empty"]).code(3);
    workspace.run(&["ack", &text(&first["token"])]).ok();
    assert_eq!(workspace.lease("q")["payload"], "second");
}

#[test]
fn the_handler_can_override_the_policy() {
    let workspace = Workspace::new();
    let fail = |more: &[&str]| {
        workspace.enqueue("q", "x");
        let token = text(&workspace.lease("q")["token"]);
        let base = ["fail", &token, "--error-type", "E", "--message", "no"];
        workspace.json(&[&base, more].concat())
    };
    assert_eq!(fail(&["--permanent"])["reason"], "permanent");
    assert_eq!(fail(&["--dead-letter"])["reason"], "manual");
    let stack = workspace.file("stack.txt", "at charge (src/pay.rs:7)\nat main\n");
    let later = fail(&["--retry-after", "5m", "--stack", &stack, "--step", "charge"]);
    assert_eq!(later["state"], "scheduled");
    let message = workspace.json(&["message", "show", &text(&later["id"])]);
    assert_eq!(message["failures"][0]["step"], "charge");
    assert!(text(&message["failures"][0]["error"]["stack"]).contains("src/pay.rs:7"));
}

#[test]
fn waiting_for_a_message_returns_its_final_state() {
    for (settle, code, state) in [(["ack"].as_slice(), 0, "done"), (&["fail"], 4, "dead")] {
        let workspace = Workspace::new();
        workspace.hasty_queue("q");
        let wait = ["enqueue", "q", "--payload", "x", "--wait", "-o", "json"];
        let waiting = workspace.spawn(&wait, Stdio::null());
        until("the message is there", || !workspace.items(&["message", "list", "--queue", "q"]).is_empty());
        let token = text(&workspace.lease("q")["token"]);
        let how = ["--error-type", "E", "--message", "m", "--dead-letter"];
        let more: &[&str] = if settle == ["fail"] { &how } else { &[] };
        workspace.run(&[settle, &[token.as_str()], more].concat()).ok();
        let ran = RunResult::of(&wait, waiting.wait_with_output().unwrap()).code(code);
        assert_eq!(ran.json()["state"], state);
    }
    let workspace = Workspace::new();
    let wait = ["enqueue", "q", "--payload", "x", "--wait", "--timeout", "50ms"];
    workspace.run(&wait).code(9).says("is still ready after the timeout");
}

#[test]
fn the_same_key_is_the_same_message() {
    let workspace = Workspace::new();
    let once = workspace.json(&["enqueue", "q", "--payload", "x", "--key", "k"]);
    let twice = workspace.json(&["enqueue", "q", "--payload", "x", "--key", "k"]);
    assert_eq!((&twice["id"], &twice["duplicate"]), (&once["id"], &true.into()));
    workspace.run(&["enqueue", "q", "--payload", "y", "--key", "k"]).code(6).says("use a new key");
}

#[test]
fn queues_are_paused_resumed_and_purged() {
    let workspace = Workspace::new();
    for n in 0..3 {
        workspace.enqueue("q", &n.to_string());
    }
    let paused = workspace.json(&["queue", "pause", "q", "--reason", "deploy"]);
    assert_eq!(paused["paused"], true);
    workspace.run(&["lease", "q", "--fail-empty"]).code(3);
    workspace.run(&["queue", "resume", "q"]).ok();
    workspace.lease("q");
    workspace.run(&["queue", "purge", "q"]).code(5).says("remove 2 waiting messages");
    assert_eq!(workspace.json(&["queue", "purge", "q", "--dry-run"])["purged"], 0);
    assert_eq!(workspace.json(&["queue", "purge", "q", "--yes"])["purged"], 2);
    let queue = workspace.json(&["queue", "show", "q"]);
    assert_eq!((&queue["leased"], &queue["purged"]), (&1.into(), &2.into()));
}

#[test]
fn retention_is_applied_and_recorded_without_a_worker() {
    let workspace = Workspace::new();
    workspace.hasty_queue("jobs");
    let closed = workspace.dead_letter("jobs", "x", "no");
    let open = workspace.dead_letter("jobs", "y", "no");
    workspace.run(&["dlq", "resolve", &closed]).ok();
    assert_eq!(workspace.items(&["dlq", "list", "status:resolved"]).len(), 1, "30 days have not passed");
    workspace.run(&["dlq", "reopen", &closed]).ok();
    workspace.run(&["queue", "set", "jobs", "--retention", "1ms"]).ok();
    workspace.run(&["dlq", "resolve", &closed]).ok();
    // Commands that only read, without a worker: the millisecond is over before the next process has started.
    let listed: Vec<_> = workspace.items(&["dlq", "list"]).iter().map(|letter| text(&letter["id"])).collect();
    assert_eq!(listed, [open]);
    workspace.run(&["dlq", "show", &closed]).code(7);
    let queue = workspace.json(&["queue", "show", "jobs"]);
    assert_eq!((&queue["dead"], &queue["purged"]), (&1.into(), &1.into()));
    assert_eq!(workspace.json(&["dlq", "stats"])["summary"]["removed_by_retention"], 1);
    let rows = workspace.items(&["audit", "list", "--act", "retention"]);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((&rows[0]["count"], &rows[0]["detail"]), (&1.into(), &"jobs-dlq: 1".into()));
    workspace.run(&["doctor"]).ok();
}

#[test]
fn the_next_command_notices_an_expired_lease() {
    let workspace = Workspace::new();
    let id = workspace.enqueue("jobs", "x");
    let lease = ["lease", "jobs", "--lease", "100ms"];
    assert_eq!(workspace.items(&lease).len(), 1);
    until("the lease has run out", || workspace.json(&["message", "show", &id])["failed"] == 1);
    assert_eq!(workspace.json(&["queue", "show", "jobs"])["leased"], 0);
}

#[test]
fn the_reasons_why_ready_messages_wait_are_shown() {
    let workspace = Workspace::new();
    workspace.enqueue("q", "plain");
    assert_eq!(workspace.json(&["queue", "show", "q"])["waiting_for"], serde_json::json!({}));
    workspace.run(&["queue", "pause", "q", "--reason", "bank holiday"]).ok();
    assert_eq!(workspace.json(&["queue", "show", "q"])["waiting_for"], serde_json::json!({"pause": 1}));
    let empty = workspace.run(&["lease", "q", "-o", "json"]).ok().says("q is paused").json();
    assert_eq!((&empty["items"], &empty["paused"]), (&serde_json::json!([]), &serde_json::json!(["q"])));
    workspace.run(&["queue", "resume", "q"]).ok();
    workspace.run(&["ack", &text(&workspace.lease("q")["token"])]).ok();

    for payload in ["1", "2", "3"] {
        workspace.run(&["enqueue", "q", "--payload", payload, "--ordering-key", "k"]).ok();
    }
    let first = workspace.lease("q");
    assert_eq!(workspace.items(&["queue", "list"])[0]["waiting_for"], serde_json::json!({"ordering_key": 2}));
    let empty = workspace.run(&["lease", "q", "-o", "json"]).ok().says("2 ordering key").json();
    assert_eq!(empty["waiting_for"]["q"]["ordering_key"], 2);
    workspace.run(&["ack", &text(&first["token"])]).ok();
    assert_eq!(
        workspace.json(&["queue", "show", "q"])["waiting_for"],
        serde_json::json!({"ordering_key": 1})
    );

    workspace.run(&["queue", "set", "held", "--breaker", "queue"]).ok();
    workspace.enqueue("held", "x");
    workspace.run(&["breaker", "open", "held"]).ok();
    assert_eq!(workspace.json(&["queue", "show", "held"])["waiting_for"], serde_json::json!({"breaker": 1}));
    let shown = workspace.run(&["queue", "list"]).ok().text();
    assert!(shown.contains("1 breaker") && shown.contains("1 ordering key"), "{shown}");
    workspace.run(&["lease", "held"]).ok().says("1 breaker");
}

#[test]
fn a_message_close_to_poison_is_marked() {
    let workspace = Workspace::new();
    let set = "queue set q --max-attempts 50 --backoff fixed --initial 0";
    workspace.run(&set.split(' ').collect::<Vec<_>>()).ok();
    let id = workspace.enqueue("q", "x");
    // Three workers, four types of errors: 0.24 + 0.25 + 0.20 is more than 0.6.
    for (worker, kind) in [("a", "One"), ("b", "Two"), ("c", "Three"), ("a", "Four")] {
        let leased = workspace.items(&["lease", "q", "--worker", worker, "--wait", "30s"]);
        let token = text(&leased[0]["token"]);
        workspace.run(&["fail", &token, "--error-type", kind, "--message", kind]).ok();
    }
    let message = workspace.json(&["message", "show", &id]);
    let poison = &message["poison"];
    assert_eq!((&message["state"], &poison["throttled"]), (&"scheduled".into(), &true.into()), "{message}");
    assert_eq!(poison["score"], 0.69);
    assert!(text(&poison["reason"]).contains("4 failures in a row on 3 workers"), "{poison}");
    let shown = workspace.run(&["message", "show", &id]).ok().text();
    assert!(shown.contains("score 0.69 of 1, retries are throttled"), "{shown}");
    assert_eq!(workspace.json(&["queue", "show", "q"])["waiting_for"], serde_json::json!({"throttle": 1}));
}
