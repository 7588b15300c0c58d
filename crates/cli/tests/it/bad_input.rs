//! Invalid input is refused with the right exit code, the error says what to do, and nothing is changed.

use crate::support::{Workspace, text};

const UNKNOWN_ID: &str = "01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00";

/// A workspace with one ready message in queue `q` and one dead letter in its dead letter queue.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    workspace.dead_letter("q", "dead", "timed out");
    workspace.enqueue("q", "ready");
    workspace
}

#[test]
fn invalid_arguments_are_named_in_the_error() {
    let workspace = workspace();
    let token = "0".repeat(64);
    let fail = ["fail", &token, "--error-type", "E", "--message", "m"];
    for (args, code, says) in [
        (["lease", "nope"].as_slice(), 7, "there is no queue"),
        (&["queue", "show", "nope"], 7, "redrive queue list"),
        (&["queue", "pause", "nope"], 7, "no queue"),
        (&["queue", "purge", "nope", "--yes"], 7, "no queue"),
        (&["lease", "a b"], 2, "is not a queue name"),
        (&["dlq", "show", "123"], 2, "is not a message id"),
        (&["dlq", "show", "../../etc/passwd"], 2, "is not a message id"),
        (&["dlq", "show", UNKNOWN_ID], 7, "no dead letter"),
        (&["dlq", "retry", UNKNOWN_ID], 7, "redrive dlq list"),
        (&["dlq", "retry"], 2, "required"),
        (&["dlq", "retry", UNKNOWN_ID, "--all"], 2, "cannot be used with"),
        (&["dlq", "retry", "--resume", UNKNOWN_ID], 7, "no operation"),
        (&["message", "show", UNKNOWN_ID], 7, "never accepted"),
        (&["message", "cancel", UNKNOWN_ID], 7, "never accepted"),
        (&["group", "show", "zz"], 2, "is not a group id"),
        (&["group", "show", "0123456789abcdef"], 7, "no group"),
        (&["ack", "zz"], 2, "is not a lease token"),
        (&["ack", &token], 6, "does not belong to its live lease"),
        (&fail, 6, "redrive lease"),
        (&["audit", "verify", "--head", "zz"], 2, "64 hexadecimal digits"),
        (&["dlq", "list", "stauts:pending"], 2, "did you mean \"status\"?"),
        (&["dlq", "list", "attempts>many"], 2, "^"),
        (&["dlq", "list", "(queue:q"], 2, "column"),
        (&["dlq", "export", "quue:x"], 2, "column 1"),
        (&["dlq", "retry", "--filter", "quue:x", "--yes"], 2, "column 1"),
        (&["message", "list", "status:pending"], 2, "only dead letters have"),
        (&["dlq", "list", "--cursor", "zz"], 2, "cursor"),
        (&["dlq", "list", "--limit", "0"], 2, "at least 1"),
        (&["dlq", "stats", "--fail-if", "opn>0"], 2, "is not a status"),
        (&["lease", "q", "--max", "0"], 2, "ask for 1 to"),
        (&["lease", "q", "--lease", "1ms"], 2, "outside 100ms"),
        (&["lease", "q", "--lease", "13h"], 2, "to 12h"),
        (&["frobnicate"], 2, "unrecognized subcommand"),
        (&["--server", "http://127.0.0.1:1", "queue", "list"], 9, "no server answers"),
        (&["dlq", "import", "no-such-file"], 7, "no-such-file"),
        (&["--config", "no-such.toml", "queue", "list"], 2, "redrive init"),
    ] {
        workspace.run(args).code(code).says(says);
    }
    assert_eq!(workspace.items(&["message", "list"]).len(), 1, "nothing was leased or removed");
}

#[test]
fn invalid_message_fields_are_named_in_the_error() {
    let workspace = workspace();
    let one = |more: &[&str]| workspace.run(&[&["enqueue", "q", "--payload", "x"], more].concat());
    for (more, says) in [
        (["--delay=-5s"].as_slice(), "is not a duration"),
        (&["--delay", "99999999999999999999s"], "is not a duration"),
        (&["--delay", "4000d"], "delay: "),
        (&["--ttl", "0"], "ttl: "),
        (&["--deadline", "soon"], "RFC 3339"),
        (&["--max-attempts", "0"], "max_attempts: 0 is outside"),
        (&["--max-attempts", "many"], "invalid value"),
        (&["--priority", "urgent"], "is not a priority"),
        (&["--header", "novalue"], "NAME=VALUE"),
        (&["--context", "{half"], "not valid JSON"),
        (&["--key", ""], "key: is empty"),
        (&["--kind", "a\u{1b}[31m"], "control character"),
        (&["--reply-to", "a b"], "is not a queue name"),
        (&["--ndjson"], "cannot be used with"),
    ] {
        one(more).code(2).says(says);
    }
    workspace.run(&["enqueue", "-", "--payload", "x"]).code(2).says("name the queue");
    workspace.run(&["enqueue", "q"]).code(2).says("stdin was empty");
    workspace.run(&["enqueue", "q-dlq", "--payload", "x"]).code(5).says("is the dead letter queue of");
    let big = workspace.file("big", vec![b'x'; 8 * 1024 * 1024 + 1]);
    workspace.run(&["enqueue", "q", "--payload-file", &big]).code(2).says("longer than 8388608 bytes");
    workspace.run(&["enqueue", "q", "--payload-file", "missing"]).code(7).says("missing");
    workspace.run(&["queue", "set", "full", "--max-messages", "1"]).ok();
    workspace.enqueue("full", "1");
    workspace.run(&["enqueue", "full", "--payload", "2"]).code(5).says("max_messages is 1");
    assert_eq!(workspace.items(&["message", "list", "--queue", "q"]).len(), 1);
}

#[test]
fn invalid_policies_are_refused_and_the_old_one_stays() {
    let workspace = workspace();
    let before = workspace.json(&["queue", "show", "q"]);
    for (more, says) in [
        (["--max-attempts", "0"].as_slice(), "max_attempts: 0 is outside"),
        (&["--lease", "1ms"], "lease: "),
        (&["--lease", "forever"], "is not a duration"),
        (&["--backoff", "list"], "needs delays"),
        (&["--backoff", "fixed", "--multiplier", "2"], "belongs to the exponential"),
        (&["--multiplier", "0.5"], "outside 1 to 100"),
        (&["--backoff", "random"], "possible values"),
        (&["--dlq", "q"], "its own dead letter queue"),
        (&["--route", "net=x"], "is not a route"),
        (&["--include", "category:none"], "is not a category"),
    ] {
        workspace.run(&[&["queue", "set", "q"], more].concat()).code(2).says(says);
    }
    workspace.run(&["queue", "set", "q-dlq", "--lease", "5s"]).code(5).says("is the dead letter queue of");
    assert_eq!(workspace.json(&["queue", "show", "q"]), before);
}

#[test]
fn a_token_is_good_for_its_own_lease_only() {
    let workspace = Workspace::new();
    workspace.enqueue("q", "1");
    workspace.enqueue("q", "2");
    let first = text(&workspace.lease("q")["token"]);
    let second = text(&workspace.lease("q")["token"]);
    let mixed = format!("{}{}", &first[..32], &second[32..]);
    for args in [["ack", &mixed].as_slice(), &["release", &mixed], &["extend", &mixed]] {
        workspace.run(args).code(6).says("nothing was changed");
    }
    let ran = workspace.run(&["ack", &mixed, &second, "-o", "json"]).code(4);
    assert_eq!(ran.json()["items"].as_array().unwrap().len(), 1);
    workspace.run(&["ack", &first]).ok();
    workspace.run(&["ack", &first]).code(6);
    workspace.run(&["ack", &first, &second]).code(6);
}

#[test]
fn an_invalid_line_is_named_and_the_lines_before_it_are_kept() {
    for (bad, says) in [
        (b"{\"payload\": \"secret\"".as_slice(), "line 3: the JSON ends too early"),
        (b"{\"payload\": \"\xff\xfe\"}", "line 3: not valid UTF-8 at byte 14"),
        (b"\"secret\"", "line 3: not a JSON object"),
        (
            b"{\"payload\":\"secret\",\"priorty\":\"low\"}",
            "line 3: unknown key `priorty`; did you mean `priority`?",
        ),
        (b"{\"payload\":\"secret\",\"queue\":\"a b\"}", "line 3: \"a b\" is not a queue name"),
        (b"{\"payload\":\"secret\",\"delay\":\"-1s\"}", "line 3: \"-1s\" is not a duration"),
        (b"{\"kind\":\"secret\"}", "line 3: payload: missing; give `payload` or `payload_base64`"),
    ] {
        let workspace = Workspace::new();
        let stdin =
            [b"{\"payload\":\"a\"}\n{\"payload\":\"b\"}\n".as_slice(), bad, b"\n{\"payload\":\"d\"}\n"]
                .concat();
        let ran = workspace.feed(&stdin, &["enqueue", "q", "-o", "json"]).code(2).says(says);
        let ran = ran.says("2 lines were accepted; continue after line 2");
        assert!(!ran.stderr.contains("secret"), "{}", ran.stderr);
        assert_eq!(ran.json()["items"].as_array().unwrap().len(), 2);
        assert_eq!(workspace.items(&["message", "list"]).len(), 2);
        let ran = workspace.feed(&stdin, &["enqueue", "q", "--keep-going", "-o", "json"]).code(4).says(says);
        assert_eq!(ran.json()["items"].as_array().unwrap().len(), 3);
        assert_eq!(workspace.items(&["message", "list"]).len(), 5);
    }
}

#[test]
fn a_directory_of_something_else_is_not_touched() {
    let workspace = Workspace::new();
    workspace.run(&["dlq", "list"]).code(7).says("no data directory at").says("--data");
    assert!(!workspace.data().exists(), "looking must not make a directory");
    std::fs::create_dir(workspace.path("empty")).unwrap();
    workspace.run(&["dlq", "list", "--data", "empty"]).code(7).says("no data directory at empty");
    let file = workspace.file("a-file", "hello");
    for args in
        [["enqueue", "q", "--payload", "x", "--data", &file].as_slice(), &["queue", "list", "--data", &file]]
    {
        workspace.run(args).code(1).says("a-file");
    }
    assert_eq!(std::fs::read(&file).unwrap(), b"hello");
    // Nobody can create a directory there, not even root.
    workspace
        .run(&["enqueue", "q", "--payload", "x", "--data", "/proc/no-such/data"])
        .code(1)
        .says("no-such");
    workspace.enqueue("q", "x");
    let database = workspace.data().join("redrive.db");
    std::fs::write(&database, "this is no database, and long enough to be looked at as one".repeat(100))
        .unwrap();
    workspace.run(&["queue", "list"]).code(1);
    workspace.run(&["doctor"]).code(10);
    assert!(std::fs::read(&database).unwrap().starts_with(b"this is no database"));
}
