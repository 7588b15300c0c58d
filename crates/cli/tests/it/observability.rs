//! The files of `deploy/`: they parse, they use only metrics that exist, and the server starts with the arguments that
//! they give, outside of any container. And what a server says about itself: its health, its metrics and its log.

use crate::support::Workspace;
use saphyr_parser::{Event, Parser};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All files under a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The words of a text that look like metrics, without the endings of histograms.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let metrics = words.filter(|word| word.starts_with("redrive_"));
    let endings = ["_bucket", "_sum", "_count"];
    metrics.map(|word| endings.iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word)).collect()
}

#[test]
fn every_file_parses_and_every_metric_is_documented() {
    let page = read("docs/observability.md");
    let documented: BTreeSet<&str> =
        page.split('`').skip(1).step_by(2).filter(|word| word.starts_with("redrive_")).collect();
    let (mut parsed, mut used) = (0, BTreeSet::new());
    for path in files(&root().join("deploy")) {
        let text = std::fs::read_to_string(&path).unwrap();
        let at = path.display();
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => {
                drop(serde_json::from_str::<Value>(&text).unwrap_or_else(|e| panic!("{at}: {e}")))
            }
            Some("yml") => Parser::new_from_str(&text).for_each(|event| {
                event.unwrap_or_else(|error| panic!("{at}: {error}"));
            }),
            Some(_) | None => continue,
        }
        parsed += 1;
        for metric in metrics_in(&text) {
            assert!(
                documented.contains(metric),
                "{at} uses {metric}, which docs/observability.md does not have"
            );
            used.insert(metric.to_owned());
        }
    }
    assert!(parsed >= 4 && used.len() > 20, "{parsed} files with {used:?}");
}

/// The arguments in the unit, the image and the pod, each with the file it is from.
fn arguments() -> Vec<(&'static str, Vec<String>)> {
    let unit = "deploy/systemd/redrive.service";
    let text = read(unit);
    let start = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let of_unit = start.split_whitespace().skip(1).map(str::to_owned).collect();
    let image = "deploy/docker/Dockerfile";
    let text = read(image);
    let start = text.lines().find_map(|line| line.strip_prefix("CMD ")).unwrap();
    let pod = "deploy/kubernetes/redrive.yml";
    vec![
        (unit, of_unit),
        (image, serde_json::from_str(start).unwrap()),
        (pod, list_after(&read(pod), "args")),
    ]
}

/// The list that is the value of a key in a YAML text.
fn list_after(text: &str, key: &str) -> Vec<String> {
    let mut events = Parser::new_from_str(text).map(|event| event.unwrap().0);
    events.find(|event| matches!(event, Event::Scalar(value, ..) if value == key)).unwrap();
    assert!(matches!(events.next(), Some(Event::SequenceStart(..))), "{key} is a list");
    let texts = events
        .map_while(|event| if let Event::Scalar(text, ..) = event { Some(text.into_owned()) } else { None });
    texts.collect()
}

#[test]
fn every_command_is_one_that_the_binary_takes() {
    let workspace = Workspace::new();
    for (at, arguments) in arguments() {
        let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        arguments.push("--help");
        assert_eq!(workspace.run(&arguments).code, Some(0), "{at}: {arguments:?}");
        arguments.insert(arguments.len() - 1, "--no-such-flag");
        assert_eq!(workspace.run(&arguments).code, Some(2), "{at}: a wrong flag would not be noticed");
    }
}

/// A server that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server with these arguments. Returns it with its address and its first token.
fn serve(workspace: &Workspace, arguments: &[&str], stderr: Stdio) -> (Running, String, String) {
    let mut command = workspace.command(arguments);
    let mut server =
        Running(command.args(["-o", "json"]).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let started: Value =
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {line}"));
    let url = started["url"].as_str().unwrap().split_once("//").unwrap().1.trim_end_matches('/');
    (server, url.to_owned(), started["token"].as_str().unwrap().to_owned())
}

/// The status and the body of a reply.
fn get(address: &str, path: &str, headers: &[&str]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Connection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[test]
fn the_server_starts_with_each_of_them_and_is_healthy_and_measured() {
    for (at, arguments) in arguments() {
        let workspace = Workspace::new();
        workspace.enqueue("orders", "1");
        let data = workspace.data().to_str().unwrap().to_owned();
        let mut arguments = arguments;
        let mut replace = |flag: &str, value: &str| {
            if let Some(at) = arguments.iter().position(|argument| argument == flag) {
                arguments[at + 1] = value.to_owned();
            }
        };
        // This machine has no such directory, and tests take a free port of loopback.
        replace("--data", &data);
        replace("--listen", "127.0.0.1:0");
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (_server, address, token) = serve(&workspace, &arguments, Stdio::null());
        for probe in ["/healthz", "/readyz"] {
            assert_eq!(get(&address, probe, &[]).0, 200, "{at}: {probe}");
        }
        assert_eq!(get(&address, "/metrics", &[]).0, 401, "{at}");
        let (status, text) = get(&address, "/metrics", &[&format!("Authorization: Bearer {token}")]);
        assert_eq!(status, 200, "{at}: {text}");
        for wanted in [
            "redrive_enqueued_total{queue=\"orders\",kind=\"\",priority=\"normal\"} 1",
            "redrive_store_degraded 0",
            "redrive_http_requests_total{route=\"/metrics\",method=\"GET\",status=\"4xx\"} 1",
            "redrive_build_info{version=",
            "redrive_enqueue_seconds_bucket{le=\"0.01\"}",
            "# EOF",
        ] {
            assert!(text.contains(wanted), "{at}: {wanted} is missing in\n{text}");
        }
    }
}

#[test]
fn lines_about_a_request_have_its_ids_and_no_secret() {
    let workspace = Workspace::new();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--log", "json"];
    let (mut server, address, token) = serve(&workspace, &arguments, Stdio::piped());
    let ids = [
        "X-Request-Id: order-1",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        &format!("Authorization: Bearer {token}"),
    ];
    assert_eq!(get(&address, "/api/v1/queues?limit=hush", &ids).0, 200);
    assert_eq!(get(&address, "/api/v1/queues", &[ids[0], "Authorization: Bearer hush"]).0, 401);
    server.0.kill().unwrap();
    let mut log = String::new();
    server.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(!log.contains("hush") && !log.contains(&token), "{log}");
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines: Vec<Value> = lines.filter(|line| line["request_id"] == "order-1").collect();
    let about =
        |status: u64| lines.iter().find(|line| line["event"] == "request" && line["status"] == status);
    let done = about(200).unwrap_or_else(|| panic!("{log}"));
    assert_eq!(done["trace_id"], "0af7651916cd43dd8448eb211c80319c", "{log}");
    assert_eq!((&done["level"], &done["route"]), (&"info".into(), &"/api/v1/queues".into()), "{log}");
    assert!(
        done["time"].is_string() && done["target"].as_str().unwrap().starts_with("redrive_server"),
        "{log}"
    );
    assert!(about(401).is_some_and(|line| line.get("trace_id").is_none()), "{log}");
}
