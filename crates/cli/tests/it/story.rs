//! The life of a message that keeps failing, as somebody at a terminal lives through it.

use crate::support::{Office, Ran, text, until};
use std::process::Stdio;

#[test]
fn a_message_is_worked_on_dies_is_sent_back_and_succeeds() {
    let office = Office::new();
    office.hasty_queue("payments");
    let payload = "{\"order\": 4411,  \"note\": \"žluť\"}";
    let enqueue = ["enqueue", "payments", "--payload", payload, "--kind", "charge", "--header", "tenant=a"];
    let enqueued = office.json(&enqueue);
    assert_eq!((&enqueued["state"], &enqueued["duplicate"]), (&"ready".into(), &false.into()));
    let id = text(&enqueued["id"]);

    let delivery = office.lease("payments");
    assert_eq!((&delivery["id"], &delivery["attempt"]), (&id.clone().into(), &1.into()));
    assert_eq!((&delivery["payload"], &delivery["kind"]), (&payload.into(), &"charge".into()));
    let token = text(&delivery["token"]);
    let fail = ["fail", &token, "--error-type", "HttpError", "--message", "gateway timeout", "--code", "504"];
    assert_eq!(office.json(&fail)["state"], "ready");
    let second = office.fail("payments", "no answer after 30 s");
    assert_eq!((&second["state"], &second["reason"]), (&"dead".into(), &"max_attempts".into()));

    let letters = office.items(&["dlq", "list", "queue:payments status:pending"]);
    assert_eq!(letters.len(), 1);
    let letter = office.json(&["dlq", "show", &id]);
    assert_eq!((&letter["dlq"], &letter["attempts"]), (&"payments-dlq".into(), &2.into()));
    assert_eq!(letter["failures"].as_array().unwrap().len(), 2);
    assert_eq!(letter["failures"][0]["error"]["code"], "504");
    assert_eq!(letter["headers"]["tenant"], "a");
    assert_eq!(office.run(&["dlq", "show", &id, "--payload", "--reveal"]).ok().stdout, payload.as_bytes());
    assert_eq!(office.items(&["group", "list"])[0]["open"], 1);
    office.run(&["dlq", "stats", "--fail-if", "open>0"]).code(10).says("open>0 holds: it is 1");
    office.run(&["message", "show", &id]).code(7);

    let retried = office.json(&["dlq", "retry", &id, "--reason", "gateway is back"]);
    assert_eq!(retried["status"], "retrying");
    office.run(&["dlq", "resolve", &id]).code(6).says("while it is retrying");
    let delivery = office.lease("payments");
    assert_eq!((&delivery["generation"], &delivery["attempt"]), (&2.into(), &1.into()));
    office.run(&["ack", &text(&delivery["token"])]).ok();

    let letter = office.json(&["dlq", "show", &id]);
    assert_eq!((&letter["status"], &letter["resolution"]), (&"resolved".into(), &"retried".into()));
    office.run(&["dlq", "stats", "--fail-if", "open>0"]).ok();
    let acts: Vec<String> = office.items(&["audit", "list"]).iter().map(|row| text(&row["act"])).collect();
    assert_eq!(acts, ["resolve group", "retry", "reveal", "configure"]);
    let head = text(&office.json(&["audit", "verify"])["head"]);
    office.run(&["audit", "verify", "--head", &head]).ok();
    office.run(&["audit", "verify", "--head", &"1".repeat(64)]).code(10);
    office.run(&["doctor", "--deep"]).ok().says("everything holds");
    let queue = office.json(&["queue", "show", "payments"]);
    // A message is counted in one place: its closed letter, until that is purged.
    assert_eq!((&queue["done"], &queue["dead"]), (&0.into(), &1.into()));
}

#[test]
fn a_worker_extends_releases_and_snoozes() {
    let office = Office::new();
    let id = office.enqueue("q", "x");
    let token = text(&office.lease("q")["token"]);
    let extended = office.json(&["extend", &token, "--by", "5m"]);
    assert_eq!(extended["state"], "leased");
    assert_eq!(office.json(&["release", &token])["state"], "ready");
    let delivery = office.lease("q");
    assert_eq!((&delivery["attempt"], &delivery["deliveries"]), (&1.into(), &2.into()));
    let token = text(&delivery["token"]);
    assert_eq!(office.json(&["release", &token, "--delay", "1h"])["state"], "scheduled");
    office.run(&["lease", "q", "--fail-empty"]).code(3);
    assert_eq!(office.json(&["message", "show", &id])["attempts"], 0);
    office.run(&["message", "cancel", &id]).ok();
    office.run(&["message", "show", &id]).code(7);
}

#[test]
fn who_asked_is_answered_and_progress_is_kept() {
    let office = Office::new();
    office.hasty_queue("sums");
    let ask = ["enqueue", "sums", "--payload", "40+2", "--reply-to", "answers"];
    let id = text(&office.json(&ask)["id"]);
    let token = text(&office.lease("sums")["token"]);
    let far = office.json(&["extend", &token, "--progress", "1/2", "--note", "adding"]);
    assert_eq!(far["state"], "leased");
    office.run(&["extend", &token, "--progress", "half"]).code(2).says("is not progress");
    office.run(&["release", &token]).ok();
    let delivery = office.lease("sums");
    assert_eq!(delivery["progress"], serde_json::json!({"done": 1, "total": 2, "note": "adding"}));
    let from_file = format!("@{}", office.file("answer.txt", "42"));
    let acked = office.items(&["ack", &text(&delivery["token"]), "--reply", &from_file]).remove(0);
    let answer = office.lease("answers");
    assert_eq!((&answer["id"], &answer["payload"]), (&acked["reply"], &"42".into()));
    assert_eq!((&answer["kind"], &answer["headers"]["in-reply-to"]), (&"reply".into(), &id.into()));
    office.run(&["ack", &text(&answer["token"])]).ok();

    office.run(&ask).ok();
    let token = text(&office.lease("sums")["token"]);
    office.run(&["fail", &token, "--error-type", "Bad", "--message", "no", "--permanent"]).ok();
    let answer = office.lease("answers");
    assert_eq!(answer["headers"]["reply-status"], "dead");
    let said: serde_json::Value = serde_json::from_str(&text(&answer["payload"])).unwrap();
    assert_eq!((&said["error"]["type"], &said["reason"]), (&"Bad".into(), &"permanent".into()));
    office.run(&["enqueue", "sums", "--payload", "x", "--reply-to", "sums-dlq"]).code(5).says("drawer");
}

#[test]
fn what_happened_is_counted_and_reported() {
    let office = Office::new();
    office.hasty_queue("jobs");
    let id = office.dead_letter("jobs", "x", "no");
    office.run(&["dlq", "retry", &id]).ok();
    office.run(&["ack", &text(&office.lease("jobs")["token"])]).ok();
    office.dead_letter("jobs", "y", "another cause");
    let stats = office.json(&["dlq", "stats"]);
    assert_eq!(stats["items"][0]["by_status"]["pending"], 1);
    let summary = &stats["summary"];
    assert_eq!((&summary["enqueued"], &summary["dead"]), (&2.into(), &2.into()));
    assert_eq!((&summary["redriven"], &summary["retry_success_rate"]), (&1.into(), &1.0.into()));
    let shown = office.run(&["dlq", "stats"]).ok().text();
    assert!(shown.contains("retry_success_rate") && shown.contains("100.0 %"), "{shown}");
    let report = office.json(&["queue", "report"]);
    assert_eq!(
        (&report["queues"][0]["queue"], &report["queues"][0]["letters_open"]),
        (&"jobs".into(), &1.into())
    );
    assert_eq!((&report["summary"]["dead"], &report["alerts"]), (&2.into(), &serde_json::json!([])));
    office.run(&["queue", "report", "--check"]).ok().says("no alerts");
    office.run(&["queue", "set", "jobs", "--max-messages", "1"]).ok();
    office.enqueue("jobs", "z");
    office.run(&["queue", "report", "--check"]).code(10).says("alerts: utilisation");
}

#[test]
fn work_behind_an_ordering_key_waits_for_its_turn() {
    let office = Office::new();
    for payload in ["first", "second"] {
        office.run(&["enqueue", "q", "--payload", payload, "--ordering-key", "k"]).ok();
    }
    let first = office.lease("q");
    assert_eq!(first["payload"], "first");
    office.run(&["lease", "q", "--wait", "100ms", "--fail-empty"]).code(3);
    office.run(&["ack", &text(&first["token"])]).ok();
    assert_eq!(office.lease("q")["payload"], "second");
}

#[test]
fn the_handlers_verdict_decides() {
    let office = Office::new();
    let fail = |more: &[&str]| {
        office.enqueue("q", "x");
        let token = text(&office.lease("q")["token"]);
        let base = ["fail", &token, "--error-type", "E", "--message", "no"];
        office.json(&[&base, more].concat())
    };
    assert_eq!(fail(&["--permanent"])["reason"], "permanent");
    assert_eq!(fail(&["--dead-letter"])["reason"], "manual");
    let stack = office.file("stack.txt", "at charge (src/pay.rs:7)\nat main\n");
    let later = fail(&["--retry-after", "5m", "--stack", &stack, "--step", "charge"]);
    assert_eq!(later["state"], "scheduled");
    let message = office.json(&["message", "show", &text(&later["id"])]);
    assert_eq!(message["failures"][0]["step"], "charge");
    assert!(text(&message["failures"][0]["error"]["stack"]).contains("src/pay.rs:7"));
}

#[test]
fn whoever_waits_for_a_message_is_told_its_end() {
    for (settle, code, state) in [(["ack"].as_slice(), 0, "done"), (&["fail"], 4, "dead")] {
        let office = Office::new();
        office.hasty_queue("q");
        let wait = ["enqueue", "q", "--payload", "x", "--wait", "-o", "json"];
        let waiting = office.spawn(&wait, Stdio::null());
        until("the message is there", || !office.items(&["message", "list", "--queue", "q"]).is_empty());
        let token = text(&office.lease("q")["token"]);
        let how = ["--error-type", "E", "--message", "m", "--dead-letter"];
        let more: &[&str] = if settle == ["fail"] { &how } else { &[] };
        office.run(&[settle, &[token.as_str()], more].concat()).ok();
        let ran = Ran::of(&wait, waiting.wait_with_output().unwrap()).code(code);
        assert_eq!(ran.json()["state"], state);
    }
    let office = Office::new();
    let wait = ["enqueue", "q", "--payload", "x", "--wait", "--timeout", "50ms"];
    office.run(&wait).code(9).says("is still ready after the timeout");
}

#[test]
fn the_same_key_is_the_same_message() {
    let office = Office::new();
    let once = office.json(&["enqueue", "q", "--payload", "x", "--key", "k"]);
    let twice = office.json(&["enqueue", "q", "--payload", "x", "--key", "k"]);
    assert_eq!((&twice["id"], &twice["duplicate"]), (&once["id"], &true.into()));
    office.run(&["enqueue", "q", "--payload", "y", "--key", "k"]).code(6).says("use a new key");
}

#[test]
fn queues_are_paused_resumed_and_purged() {
    let office = Office::new();
    for n in 0..3 {
        office.enqueue("q", &n.to_string());
    }
    let paused = office.json(&["queue", "pause", "q", "--reason", "deploy"]);
    assert_eq!(paused["paused"], true);
    office.run(&["lease", "q", "--fail-empty"]).code(3);
    office.run(&["queue", "resume", "q"]).ok();
    office.lease("q");
    office.run(&["queue", "purge", "q"]).code(5).says("remove 2 waiting messages");
    assert_eq!(office.json(&["queue", "purge", "q", "--dry-run"])["purged"], 0);
    assert_eq!(office.json(&["queue", "purge", "q", "--yes"])["purged"], 2);
    let queue = office.json(&["queue", "show", "q"]);
    assert_eq!((&queue["leased"], &queue["purged"]), (&1.into(), &2.into()));
}

#[test]
fn retention_is_kept_and_on_record_where_no_worker_runs() {
    let office = Office::new();
    office.hasty_queue("jobs");
    let closed = office.dead_letter("jobs", "x", "no");
    let open = office.dead_letter("jobs", "y", "no");
    office.run(&["dlq", "resolve", &closed]).ok();
    assert_eq!(office.items(&["dlq", "list", "status:resolved"]).len(), 1, "30 days have not passed");
    office.run(&["dlq", "reopen", &closed]).ok();
    office.run(&["queue", "set", "jobs", "--retention", "1ms"]).ok();
    office.run(&["dlq", "resolve", &closed]).ok();
    // Commands that look, no worker: the millisecond is over before the next process has started.
    let listed: Vec<_> = office.items(&["dlq", "list"]).iter().map(|letter| text(&letter["id"])).collect();
    assert_eq!(listed, [open]);
    office.run(&["dlq", "show", &closed]).code(7);
    let queue = office.json(&["queue", "show", "jobs"]);
    assert_eq!((&queue["dead"], &queue["purged"]), (&1.into(), &1.into()));
    assert_eq!(office.json(&["dlq", "stats"])["summary"]["removed_by_retention"], 1);
    let rows = office.items(&["audit", "list", "--act", "retention"]);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((&rows[0]["count"], &rows[0]["detail"]), (&1.into(), &"jobs-dlq: 1".into()));
    office.run(&["doctor"]).ok();
}

#[test]
fn a_lease_that_ran_out_is_seen_by_the_next_command() {
    let office = Office::new();
    let id = office.enqueue("jobs", "x");
    let lease = ["lease", "jobs", "--lease", "100ms"];
    assert_eq!(office.items(&lease).len(), 1);
    until("the lease has run out", || office.json(&["message", "show", &id])["failed"] == 1);
    assert_eq!(office.json(&["queue", "show", "jobs"])["leased"], 0);
}

#[test]
fn what_ready_work_waits_for_is_said() {
    let office = Office::new();
    office.enqueue("q", "plain");
    assert_eq!(office.json(&["queue", "show", "q"])["waiting_for"], serde_json::json!({}));
    office.run(&["queue", "pause", "q", "--reason", "bank holiday"]).ok();
    assert_eq!(office.json(&["queue", "show", "q"])["waiting_for"], serde_json::json!({"pause": 1}));
    let empty = office.run(&["lease", "q", "-o", "json"]).ok().says("q is paused").json();
    assert_eq!((&empty["items"], &empty["paused"]), (&serde_json::json!([]), &serde_json::json!(["q"])));
    office.run(&["queue", "resume", "q"]).ok();
    office.run(&["ack", &text(&office.lease("q")["token"])]).ok();

    for payload in ["1", "2", "3"] {
        office.run(&["enqueue", "q", "--payload", payload, "--ordering-key", "k"]).ok();
    }
    let first = office.lease("q");
    assert_eq!(office.items(&["queue", "list"])[0]["waiting_for"], serde_json::json!({"ordering_key": 2}));
    let empty = office.run(&["lease", "q", "-o", "json"]).ok().says("2 ordering key").json();
    assert_eq!(empty["waiting_for"]["q"]["ordering_key"], 2);
    office.run(&["ack", &text(&first["token"])]).ok();
    assert_eq!(office.json(&["queue", "show", "q"])["waiting_for"], serde_json::json!({"ordering_key": 1}));

    office.run(&["queue", "set", "held", "--breaker", "queue"]).ok();
    office.enqueue("held", "x");
    office.run(&["breaker", "open", "held"]).ok();
    assert_eq!(office.json(&["queue", "show", "held"])["waiting_for"], serde_json::json!({"breaker": 1}));
    let shown = office.run(&["queue", "list"]).ok().text();
    assert!(shown.contains("1 breaker") && shown.contains("1 ordering key"), "{shown}");
    office.run(&["lease", "held"]).ok().says("1 breaker");
}

#[test]
fn a_message_close_to_poison_says_so() {
    let office = Office::new();
    let set = "queue set q --max-attempts 50 --backoff fixed --initial 0";
    office.run(&set.split(' ').collect::<Vec<_>>()).ok();
    let id = office.enqueue("q", "x");
    // Three workers, four types of errors: 0.24 + 0.25 + 0.20 is more than 0.6.
    for (worker, kind) in [("a", "One"), ("b", "Two"), ("c", "Three"), ("a", "Four")] {
        let leased = office.items(&["lease", "q", "--worker", worker, "--wait", "30s"]);
        let token = text(&leased[0]["token"]);
        office.run(&["fail", &token, "--error-type", kind, "--message", kind]).ok();
    }
    let message = office.json(&["message", "show", &id]);
    let poison = &message["poison"];
    assert_eq!((&message["state"], &poison["throttled"]), (&"scheduled".into(), &true.into()), "{message}");
    assert_eq!(poison["score"], 0.69);
    assert!(text(&poison["reason"]).contains("4 failures in a row on 3 workers"), "{poison}");
    let shown = office.run(&["message", "show", &id]).ok().text();
    assert!(shown.contains("score 0.69 of 1, retries are throttled"), "{shown}");
    assert_eq!(office.json(&["queue", "show", "q"])["waiting_for"], serde_json::json!({"throttle": 1}));
}
