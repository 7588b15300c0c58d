//! `redrive serve` as people and scripts use it: who gets in, what ends, and that commands do by a server what they do
//! on a directory.

use crate::support::{ServeProcess, Workspace, http, read_reply, text, until};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

/// The part of the README that shows the life of a message with curl alone.
fn story_in_the_readme() -> &'static str {
    const README: &str = include_str!("../../../../README.md");
    let from = README.find("api=\"$url/api/v1\"").expect("the README has the story");
    let story = &README[from..];
    &story[..story.find("```").unwrap()]
}

#[test]
fn the_curl_story_of_the_readme_ends_with_a_resolved_letter() {
    let workspace = Workspace::new();
    let server = workspace.serve(&[]);
    let ran = Command::new("sh")
        .args(["-euc", story_in_the_readme()])
        .env("url", &server.url)
        .env("token", server.token.as_deref().unwrap())
        .output()
        .unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{out}\n{err}\n{}", server.log());
    assert!(out.trim_end().ends_with("resolved"), "{out}\n{err}");
}

#[test]
fn the_first_token_is_shown_once_and_works() {
    let workspace = Workspace::new();
    let mut first = workspace.serve(&[]);
    let token = first.token.clone().unwrap();
    assert!(token.starts_with("rdt_"), "{token}");
    assert_eq!(first.ask("GET", "/api/v1/queues", "").0, 200);
    assert!(first.log().contains("shown only now"), "{}", first.log());
    first.signal("-TERM");
    assert_eq!(first.wait(), Some(0));
    let second = workspace.serve(&[]);
    assert_eq!(second.token, None);
    assert!(!second.log().contains(&token), "the log never has the token");
    let authorization = format!("authorization: Bearer {token}");
    assert_eq!(http(second.address(), "GET", "/api/v1/queues", &[&authorization], "").unwrap().status, 200);
    assert_eq!(http(second.address(), "GET", "/api/v1/queues", &[], "").unwrap().status, 401);
    let data = std::fs::read_dir(workspace.data()).unwrap().flatten();
    for file in data.filter(|entry| entry.metadata().unwrap().is_file()) {
        let bytes = std::fs::read(file.path()).unwrap();
        let found = bytes.windows(token.len()).any(|window| window == token.as_bytes());
        assert!(!found, "{} has the token", file.path().display());
    }
}

#[test]
fn people_see_the_url_and_the_token_as_text() {
    let workspace = Workspace::new();
    let mut child = workspace.spawn(&["serve", "--listen", "127.0.0.1:0"], Stdio::null());
    let (mut out, mut seen) = (child.stdout.take().unwrap(), String::new());
    until("the server is announced", || {
        let mut buffer = [0; 512];
        let count = out.read(&mut buffer).unwrap();
        seen.push_str(&String::from_utf8_lossy(&buffer[..count]));
        assert!(count > 0, "{seen}");
        seen.contains("url") && seen.contains("token") && seen.contains("rdt_")
    });
    assert!(seen.contains("http://127.0.0.1:") && !seen.contains(":0\n"), "{seen}");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0), "Ctrl-C is a clean end");
}

#[test]
fn other_hosts_and_other_sites_are_refused_and_nothing_happens() {
    let workspace = Workspace::new();
    let server = workspace.serve(&["--host", "redrive.example"]);
    let authorization = format!("authorization: Bearer {}", server.token.as_deref().unwrap());
    let send = |headers: &[&str]| {
        let headers: Vec<&str> =
            [authorization.as_str()].into_iter().chain(headers.iter().copied()).collect();
        let reply =
            http(server.address(), "POST", "/api/v1/queues/q/messages", &headers, r#"{"payload":"x"}"#)
                .unwrap();
        (reply.status, reply.json()["code"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(send(&["host: evil.example"]), (421, "wrong_host".into()));
    assert_eq!(send(&["host: evil.example:80"]), (421, "wrong_host".into()));
    assert_eq!(send(&["sec-fetch-site: cross-site"]), (403, "cross_site".into()));
    assert_eq!(send(&["origin: https://evil.example"]), (403, "cross_site".into()));
    assert_eq!(server.ask("GET", "/api/v1/messages", "").1["items"], json!([]));
    assert_eq!(send(&["host: redrive.example"]).0, 201);
    assert_eq!(send(&[]).0, 201);
    let many: Vec<String> = (0..100).map(|n| format!("x-{n}: y")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(send(&many), (431, "headers_too_large".into()));
    let far_too_many: Vec<String> = (0..10_000).map(|n| format!("x-{n}: y")).collect();
    let far_too_many: Vec<&str> = far_too_many.iter().map(String::as_str).collect();
    // The server may hang up before it has read everything; it must not do anything with it.
    if let Ok(reply) = http(server.address(), "GET", "/healthz", &far_too_many, "") {
        assert_eq!(reply.status, 431);
    }
    let log = server.log();
    assert!(log.contains("code=wrong_host") && log.contains("code=cross_site"), "{log}");
}

#[test]
fn a_server_that_would_let_strangers_in_does_not_start() {
    let workspace = Workspace::new();
    for (flags, code, says) in [
        (&["--listen", "0.0.0.0:0"][..], 5, "--tls-cert"),
        (&["--listen", "[::]:0"], 5, "--behind-proxy"),
        (&["--listen", "127.0.0.1:0", "--listen", "10.0.0.1:0"], 5, "--tls-cert"),
        (&["--listen", "0.0.0.0:0", "--no-auth"], 5, "--no-auth"),
        (&["--listen", "0.0.0.0:0", "--no-auth", "--behind-proxy"], 5, "--no-auth"),
        (&["--listen", "127.0.0.1:0", "--no-auth", "--behind-proxy"], 5, "--no-auth"),
        (&["--listen", "127.0.0.1:0", "--tls-cert", "c.pem"], 2, "--tls-key"),
        (&["--listen", "127.0.0.1:0", "--tls-cert", "c.pem", "--tls-key", "k.pem"], 2, "c.pem"),
        (&["--listen", "localhost"], 2, "--listen"),
        (&["--host", "https://redrive.example"], 2, "not a host name"),
        (&["--server", "http://localhost:1"], 2, "opens the store itself"),
    ] {
        let args: Vec<&str> = ["serve"].into_iter().chain(flags.iter().copied()).collect();
        workspace.run(&args).code(code).says(says);
    }
    assert!(!workspace.data().exists(), "nothing was created for a server that may not start");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    workspace.run(&["serve", "--listen", &address]).code(1).says("listen on").says("port 0");
}

#[test]
fn a_trial_without_authentication_says_so() {
    let workspace = Workspace::new();
    let server = workspace.serve(&["--no-auth", "-q"]);
    assert_eq!(server.token, None);
    assert!(server.log().contains("no authentication"), "{}", server.log());
    assert_eq!(http(server.address(), "GET", "/api/v1/queues", &[], "").unwrap().status, 200);
}

/// A certificate for localhost that is its own authority, as two files.
fn certificate(workspace: &Workspace) -> String {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    // Replaced as tools for certificates do it: at once, by renaming.
    for (name, content) in [("cert.pem", made.cert.pem()), ("key.pem", made.signing_key.serialize_pem())] {
        let new = workspace.file(&format!("new-{name}"), content);
        std::fs::rename(new, workspace.path(name)).unwrap();
    }
    made.cert.pem()
}

#[test]
fn a_renewed_certificate_is_used_without_a_restart() {
    let workspace = Workspace::new();
    let first = workspace.file("first-ca.pem", certificate(&workspace));
    let paths = ["cert.pem", "key.pem"].map(|name| workspace.path(name).to_str().unwrap().to_owned());
    let flags = ["--host", "localhost", "--tls-cert", &paths[0], "--tls-key", &paths[1]];
    let server = workspace.serve(&flags);
    assert!(server.url.starts_with("https://localhost:"), "{}", server.url);
    let list = |ca: &str| {
        let mut command = workspace.command(&["queue", "list", "--server", &server.url]);
        command.env("REDRIVE_TOKEN", server.token.as_deref().unwrap()).env("REDRIVE_CA", ca);
        command.output().unwrap().status.code()
    };
    assert_eq!(list(&first), Some(0));
    let second = workspace.file("second-ca.pem", certificate(&workspace));
    assert_eq!(list(&first), Some(9), "the old certificate is no longer shown");
    assert_eq!(list(&second), Some(0));
    // Half of a renewal changes nothing.
    std::fs::write(workspace.path("key.pem"), "not a key").unwrap();
    assert_eq!(list(&second), Some(0));
    assert!(server.log().contains("previous certificate is still used"), "{}", server.log());
    // HTTP/2 is offered within TLS.
    let protocol = ["-s", "-o", "/dev/null", "-w", "%{http_version}", "--cacert", &second];
    let url = format!("{}/healthz", server.url);
    let version = Command::new("curl").args(protocol).arg(&url).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&version.stdout), "2");
}

#[test]
fn a_stopped_server_finishes_what_has_begun_and_sends_waiting_callers_away() {
    let workspace = Workspace::new();
    let mut server = workspace.serve(&[]);
    assert_eq!(server.ask("PATCH", "/api/v1/queues/empty", r#"{"max_attempts":3}"#).0, 200);
    let authorization = format!("authorization: Bearer {}", server.token.as_deref().unwrap());
    // A message whose body has only partly arrived. The interim reply shows that the server is reading it.
    let body = r#"{"payload":"late"}"#;
    let mut sending = TcpStream::connect(server.address()).unwrap();
    let head = format!(
        "POST /api/v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\n{authorization}\r\nexpect: 100-continue\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    sending.write_all(head.as_bytes()).unwrap();
    let mut interim = [0; 25];
    sending.read_exact(&mut interim).unwrap();
    assert!(interim.starts_with(b"HTTP/1.1 100 Continue"));
    // A worker that waits for an hour.
    let (address, bearer) = (server.address().to_owned(), authorization.clone());
    let waiting = std::thread::spawn(move || {
        http(&address, "POST", "/api/v1/queues/empty/lease", &[&bearer], r#"{"wait":"1h"}"#).unwrap()
    });
    await_waiting(&server);
    server.signal("-TERM");
    until("no new connections are accepted", || TcpStream::connect(server.address()).is_err());
    let reply = waiting.join().unwrap();
    assert_eq!((reply.status, reply.json()), (200, json!({"items": []})));
    sending.write_all(body.as_bytes()).unwrap();
    let reply = read_reply(sending).unwrap();
    assert_eq!(reply.status, 201, "{}", reply.head);
    assert_eq!(server.wait(), Some(0));
    assert!(workspace.run(&["message", "show", &text(&reply.json()["id"])]).ok().text().contains("late"));
}

/// Waits until one caller waits for work.
fn await_waiting(server: &ServeProcess) {
    let authorization = format!("authorization: Bearer {}", server.token.as_deref().unwrap());
    until("a worker waits", || {
        let metrics = http(server.address(), "GET", "/metrics", &[&authorization], "").unwrap();
        String::from_utf8_lossy(&metrics.body).contains("redrive_http_long_polls 1\n")
    });
}

/// Runs a command by a server with a token.
fn by(workspace: &Workspace, server: &ServeProcess, token: &str, args: &[&str]) -> crate::support::RunResult {
    let mut command = workspace.command(args);
    command.env("REDRIVE_URL", &server.url).env("REDRIVE_TOKEN", token);
    crate::support::RunResult::of(args, command.output().unwrap())
}

#[test]
fn tokens_are_managed_on_the_directory_and_by_the_server_alike() {
    let workspace = Workspace::new();
    let made = workspace.json(&["token", "create", "ada", "--role", "operator", "--expires", "30d"]);
    let server = workspace.serve(&[]);
    assert_eq!(server.token, None, "there is a token already");
    let admin = text(&workspace.json(&["token", "create", "boss", "--role", "admin"])["token"]);
    let here = workspace.items(&["token", "list"]);
    let there = by(&workspace, &server, &admin, &["token", "list", "-o", "json"]).ok().json();
    let names = |items: &[Value]| items.iter().map(|item| text(&item["name"])).collect::<Vec<_>>();
    assert_eq!(names(&here), ["ada", "boss"]);
    assert_eq!(there["items"].as_array().unwrap().len(), 2);
    assert!(!there.to_string().contains("hash"), "{there}");
    assert_eq!(here[0]["expires_at"], made["expires_at"]);
    // What a role does not include is refused with 8, and so are tokens that are wrong or gone.
    let ada = text(&made["token"]);
    by(&workspace, &server, &ada, &["dlq", "list"]).ok();
    by(&workspace, &server, &ada, &["enqueue", "q", "--payload", "x"])
        .code(8)
        .says("it needs the role producer");
    by(&workspace, &server, &ada, &["token", "list"]).code(8);
    by(&workspace, &server, "rdt_nonsense", &["dlq", "list"]).code(8).says("REDRIVE_TOKEN");
    by(&workspace, &server, "", &["dlq", "list"]).code(8).says("send a token");
    let create = ["token", "create", "ci", "--role", "producer", "--queue", "pay*", "-o", "json"];
    let ci = text(&by(&workspace, &server, &admin, &create).ok().json()["token"]);
    by(&workspace, &server, &ci, &["enqueue", "payments", "--payload", "x"]).ok();
    by(&workspace, &server, &ci, &["enqueue", "orders", "--payload", "x"]).code(8);
    let id = &ci["rdt_".len()..][..12];
    by(&workspace, &server, &admin, &["token", "revoke", id]).ok();
    by(&workspace, &server, &admin, &["token", "revoke", id]).code(7).says("redrive token list");
    until("the revoked token is refused", || {
        by(&workspace, &server, &ci, &["enqueue", "payments", "--payload", "x"]).code == Some(8)
    });
    workspace.run(&["token", "create", "x", "--role", "boss"]).code(2).says("operator");
}

#[test]
fn a_viewer_who_tries_to_redrive_is_refused_and_the_letter_stays() {
    let workspace = Workspace::new();
    let id = workspace.dead_letter("q", r#"{"password":"hunter22"}"#, "no");
    let server = workspace.serve(&[]);
    let admin = server.token.clone().unwrap();
    let create = |role: &str| {
        let args = ["token", "create", role, "--role", role, "-o", "json"];
        text(&by(&workspace, &server, &admin, &args).ok().json()["token"])
    };
    let (masked, viewer) = (create("masked_viewer"), create("viewer"));
    for token in [&masked, &viewer] {
        by(&workspace, &server, token, &["dlq", "retry", &id]).code(8).says("it needs the role operator");
        let shown = by(&workspace, &server, token, &["dlq", "show", &id, "-o", "json"]).ok();
        assert!(
            !shown.text().contains("hunter22") && shown.json()["status"] == "pending",
            "{}",
            shown.text()
        );
    }
    let reveal = ["dlq", "show", &id, "--reveal", "--reason", "ticket 7", "-o", "json"];
    by(&workspace, &server, &masked, &reveal).code(8).says("masked");
    assert!(by(&workspace, &server, &viewer, &reveal).ok().text().contains("hunter22"));
    let audit =
        by(&workspace, &server, &admin, &["audit", "list", "--act", "reveal", "-o", "json"]).ok().json();
    assert_eq!(
        (&audit["items"][0]["actor"], audit["items"].as_array().unwrap().len()),
        (&json!("viewer"), 1)
    );
    // A server that stops leaves no refusal behind.
    let mut server = server;
    server.signal("-TERM");
    assert_eq!(server.wait(), Some(0));
    let refused = workspace.items(&["audit", "list", "--act", "refuse"]);
    let of = |who: &str| {
        let rows = refused.iter().filter(|row| row["actor"] == who && row["target"] == "not_allowed");
        rows.map(|row| row["count"].as_u64().unwrap()).sum::<u64>()
    };
    // Retrying is refused once to each, and revealing to one. A command may ask for more than one thing.
    assert!(of("masked_viewer") >= 2 && of("viewer") >= 1, "{refused:?}");
    assert!(text(&refused[0]["detail"]).ends_with("from peer 127.0.0.1"), "{refused:?}");
    let created = workspace.items(&["audit", "list", "--act", "create token"]);
    assert_eq!(created.len(), 3, "the first token and those of the test: {created:?}");
}

#[test]
fn a_worker_that_comes_before_its_first_message_waits_for_it() {
    let workspace = Workspace::new();
    let server = workspace.serve(&[]);
    let (status, missing) = server.ask("POST", "/api/v1/queues/later/lease", "{}");
    assert_eq!((status, &missing["code"]), (404, &json!("no_such_queue")));
    let (status, empty) = server.ask("POST", "/api/v1/queues/later/lease", r#"{"wait":"1ms"}"#);
    assert_eq!((status, &empty["items"]), (200, &json!([])));
    let leased = std::thread::scope(|scope| {
        // A worker asks again when it got nothing.
        let worker = scope.spawn(|| {
            let ask = || server.ask("POST", "/api/v1/queues/later/lease", r#"{"wait":"1m"}"#);
            std::iter::repeat_with(ask).find(|(_, reply)| reply["items"] != json!([])).unwrap()
        });
        await_waiting(&server);
        let (status, _) = server.ask("POST", "/api/v1/queues/later/messages", r#"{"payload":"x"}"#);
        assert_eq!(status, 201);
        worker.join().unwrap()
    });
    assert_eq!((leased.0, &leased.1["items"][0]["payload"]), (200, &json!("x")));
}

#[test]
fn a_worker_by_a_server_is_a_whole_worker() {
    let workspace = Workspace::new();
    let server = workspace.serve(&[]);
    let admin = server.token.clone().unwrap();
    let run = |args: &[&str]| by(&workspace, &server, &admin, args);
    run(&["queue", "set", "q", "--max-attempts", "2", "--backoff", "fixed", "--initial", "0"]).ok();
    let args = ["token", "create", "w", "--role", "worker", "--role", "viewer", "-o", "json"];
    let worker = text(&run(&args).ok().json()["token"]);
    // It waits for work in a long poll before there is any.
    let mut command = workspace.command(&["work", "q", "--", "sh", "-c", "cat >> done; echo >> done"]);
    let mut working = command
        .env("REDRIVE_URL", &server.url)
        .env("REDRIVE_TOKEN", &worker)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    for n in 0..3 {
        run(&["enqueue", "q", "--payload", &n.to_string()]).ok();
    }
    let done = || run(&["queue", "show", "q", "-o", "json"]).ok().json()["done"].clone();
    until("all are done", || done() == 3);
    assert!(Command::new("kill").args(["-TERM", &working.id().to_string()]).status().unwrap().success());
    assert_eq!(working.wait().unwrap().code(), Some(0));
    let mut lines: Vec<String> =
        std::fs::read_to_string(workspace.path("done")).unwrap().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0", "1", "2"]);
    // A lease that waits gets what is sent meanwhile.
    let mut command = workspace.command(&["lease", "q", "--wait", "1h", "-o", "json"]);
    let leasing = command
        .env("REDRIVE_URL", &server.url)
        .env("REDRIVE_TOKEN", &worker)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    run(&["enqueue", "q", "--payload", "late"]).ok();
    let leased: Value = serde_json::from_slice(&leasing.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(leased["items"][0]["payload"], "late");
    run(&["ack", &text(&leased["items"][0]["token"])]).ok();
    assert_eq!(done(), 4);
}

#[test]
fn an_unreachable_server_and_a_stranger_are_told_apart() {
    let workspace = Workspace::new();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let nobody = format!("http://{free}");
    workspace.run(&["queue", "list", "--server", &nobody]).code(9).says("no server answers at");
    workspace.run(&["queue", "list", "--server", "localhost:7373"]).code(7).says("http://");
    workspace.run(&["queue", "list", "--server", "ftp://localhost"]).code(2).says("http://");
    workspace.run(&["queue", "list", "--server", &nobody, "--data", "d"]).code(2).says("--data and --server");
    workspace.run(&["queue", "list", "--server", "prod"]).code(7).says("[contexts.NAME]");
    workspace.run(&["queue", "list", "--server", &nobody, "--token-file", "gone"]).code(7).says("gone");
    let stranger = reply_once("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello".into());
    workspace.run(&["queue", "list", "--server", &stranger]).code(9).says("cannot be read");
    let stranger = reply_once("HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nhello".into());
    workspace.run(&["queue", "list", "--server", &stranger]).code(1).says("not a Redrive server");
    assert!(!workspace.data().exists());
}

/// Gives the same reply to one request, and returns the URL to ask.
fn reply_once(reply: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut seen = Vec::new();
        let mut buffer = [0; 4096];
        while !seen.windows(4).any(|four| four == b"\r\n\r\n") {
            let count = stream.read(&mut buffer).unwrap();
            seen.extend_from_slice(&buffer[..count]);
        }
        stream.write_all(reply.as_bytes()).unwrap();
    });
    url
}

#[test]
fn another_version_is_refused_with_what_to_do() {
    let workspace = Workspace::new();
    let server = workspace.serve(&[]);
    let authorization = format!("authorization: Bearer {}", server.token.as_deref().unwrap());
    let call = |version: &[&str]| {
        let headers: Vec<&str> =
            [authorization.as_str()].into_iter().chain(version.iter().copied()).collect();
        http(server.address(), "POST", "/api/v1/call", &headers, r#"{"verb":"queues","with":{}}"#).unwrap()
    };
    assert_eq!(call(&["redrive-call-version: 1"]).status, 200);
    for version in [&["redrive-call-version: 999"][..], &["redrive-call-version: x"], &[]] {
        assert_eq!(
            (call(version).status, text(&call(version).json()["code"])),
            (409, "wrong_version".into())
        );
    }
    // A command that hears exactly this from a server says it, and what to do.
    let refused = call(&["redrive-call-version: 999"]);
    let reply = format!("{}\r\n\r\n{}", refused.head, String::from_utf8_lossy(&refused.body));
    let url = reply_once(reply);
    let said = workspace.run(&["queue", "list", "--server", &url]).code(1);
    said.says("version 1 of the calls").says("use the same release of Redrive on both sides");
}

#[test]
fn a_context_names_a_server_and_production_asks_for_a_reason() {
    let workspace = Workspace::new();
    let server = workspace.serve(&[]);
    std::fs::create_dir_all(workspace.path("config/redrive")).unwrap();
    workspace.file("config/redrive/admin.token", format!("{}\n", server.token.as_deref().unwrap()));
    let contexts = format!(
        "[contexts.prod]\nurl = \"{url}\"\ntoken_file = \"admin.token\"\nproduction = true\n\
         [contexts.open]\nurl = \"{url}\"\n",
        url = server.url
    );
    workspace.file("config/redrive/redrive.toml", contexts);
    let run = |args: &[&str]| {
        let mut command = workspace.command(args);
        command.env("XDG_CONFIG_HOME", workspace.path("config")).env("REDRIVE_CONTEXT", "prod");
        crate::support::RunResult::of(args, command.output().unwrap())
    };
    run(&["enqueue", "q", "--payload", "x"]).ok();
    run(&["queue", "pause", "q"]).code(5).says("--reason");
    run(&["queue", "pause", "q", "--reason", "maintenance"]).ok();
    run(&["queue", "list"]).ok();
    run(&["marker", "--list"]).ok();
    run(&["queue", "list", "--server", "prd"]).code(7).says("open, prod");
    run(&["queue", "list", "--server", "open"]).code(8);
    // A directory that is named by a flag overrides the environment.
    run(&["queue", "list", "--data", "nowhere"]).code(7).says("no data directory at nowhere");
}

#[test]
fn the_log_has_one_line_per_request_and_no_secrets() {
    let workspace = Workspace::new();
    let server = workspace.serve(&["--log", "json"]);
    let canary = "cAnArY4411";
    let authorization = format!("authorization: Bearer {}", server.token.as_deref().unwrap());
    let headers = [authorization.as_str(), "x-secret: cAnArY4411", "x-request-id: my-request-1"];
    let path = format!("/api/v1/messages?filter=key%3A{canary}");
    assert_eq!(http(server.address(), "GET", &path, &headers, "").unwrap().status, 200);
    let body = format!(r#"{{"payload":"{canary}","key":"{canary}"}}"#);
    assert_eq!(server.ask("POST", "/api/v1/queues/q/messages", &body).0, 201);
    server.ask("POST", &format!("/api/v1/deliveries/{canary}/ack"), "");
    server.ask("GET", &format!("/{canary}"), "");
    until("all requests are in the log", || server.log().matches("\"event\":\"request\"").count() == 4);
    let log = server.log();
    assert!(!log.contains(canary) && !log.contains(server.token.as_deref().unwrap()), "{log}");
    let line: Value = log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find(|line| line["request_id"] == "my-request-1")
        .unwrap();
    assert_eq!(
        (&line["method"], &line["route"], &line["status"], &line["token"]),
        (&json!("GET"), &json!("/api/v1/messages"), &json!(200), &json!("admin"))
    );
    assert!(line["ms"].is_number());
}

/// The tests of acts on letters and of lists once more, with every command sent to a server. `scripts/campaign cli-http`
/// does this with all tests.
#[test]
fn acts_and_lists_by_a_server_are_those_on_a_directory() {
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["acts::", "lists::", "--test-threads", "2"])
        .env("REDRIVE_TEST_SERVER", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success() && !said.contains(" 0 passed"), "{said}");
}

#[test]
fn commands_on_the_directory_of_a_server_go_through_it() {
    let workspace = Workspace::new();
    workspace.file("redrive.toml", "[server]\ninstance = \"t\"\n[queues.seeded]\nmax_attempts = 9\n");
    let server = workspace.serve(&[]);
    workspace.run(&["enqueue", "q", "--payload", "x"]).ok();
    let (status, queue) = server.ask("GET", "/api/v1/queues/seeded", "");
    assert_eq!((status, &queue["policy"]["max_attempts"]), (200, &json!(9)), "{queue}");
    assert_eq!(server.ask("GET", "/api/v1/messages", "").1["items"].as_array().unwrap().len(), 1);
    workspace.run(&["doctor"]).ok();
}
