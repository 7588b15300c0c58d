//! A workspace: a temporary directory, and the command run in it.

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long anything may take before the test fails. Only a hang takes this long, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// If this variable is set, every workspace starts a server on its data directory, and commands use it instead of the
/// directory: `scripts/campaign cli-http`.
const BY_SERVER: &str = "REDRIVE_TEST_SERVER";

/// A temporary directory, with a data directory that does not exist yet.
pub(crate) struct Workspace {
    /// The server that commands use, and a token of the user `tester`. Ends before the directory is removed.
    server: OnceLock<(ServeProcess, String)>,
    dir: tempfile::TempDir,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        Self { server: OnceLock::new(), dir: tempfile::tempdir().unwrap() }
    }

    /// A path in the workspace.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file to the workspace and returns its path.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.path("data")
    }

    /// The command, with an environment that is the same everywhere.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command.current_dir(self.dir.path()).args(args);
        for name in ["REDRIVE_CONFIG", "COLUMNS"].iter().chain(&SERVER_VARIABLES) {
            command.env_remove(name);
        }
        command.env("REDRIVE_DATA", self.data()).env("USER", "tester").stdin(Stdio::null());
        let here = ["serve", "demo", "restore", "init", "completions", "help", "--help", "--version"];
        if std::env::var_os(BY_SERVER).is_some() && !args.iter().any(|arg| here.contains(arg)) {
            let (server, token) = self.server.get_or_init(|| self.start_server());
            command.env("REDRIVE_URL", &server.url).env("REDRIVE_TOKEN", token);
        }
        command
    }

    /// Starts a server for the commands of this workspace, with a token in the name that they act in on a directory.
    fn start_server(&self) -> (ServeProcess, String) {
        let server = self.serve(&[]);
        let args = ["token", "create", "tester", "--role", "admin", "-o", "json"];
        let mut create = Command::new(env!("CARGO_BIN_EXE_redrive"));
        create.current_dir(self.dir.path()).args(args).env("REDRIVE_DATA", self.data());
        for name in SERVER_VARIABLES {
            create.env_remove(name);
        }
        let token = text(&RunResult::of(&args, create.output().unwrap()).ok().json()["token"]);
        (server, token)
    }

    /// Starts a server on a free port of this machine, with these flags, and waits until it is there.
    pub(crate) fn serve(&self, flags: &[&str]) -> ServeProcess {
        let args: Vec<&str> = ["serve", "--listen", "127.0.0.1:0", "-o", "json"]
            .into_iter()
            .chain(flags.iter().copied())
            .collect();
        ServeProcess::start(self.command(&args), self.path("serve.log"))
    }

    /// Runs the command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> RunResult {
        RunResult::of(args, self.command(args).output().unwrap())
    }

    /// Runs the command with this input on stdin.
    pub(crate) fn feed(&self, stdin: &[u8], args: &[&str]) -> RunResult {
        let mut child = self.spawn(args, Stdio::piped());
        let mut input = child.stdin.take().unwrap();
        // Write on a separate thread: a command that prints while it reads would otherwise deadlock with us. It may
        // stop reading at an invalid line, which is not an error here.
        let output = std::thread::scope(|scope| {
            scope.spawn(move || input.write_all(stdin));
            child.wait_with_output().unwrap()
        });
        RunResult::of(args, output)
    }

    /// Starts the command.
    pub(crate) fn spawn(&self, args: &[&str], stdin: Stdio) -> Child {
        let mut command = self.command(args);
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs the command, requires success, and parses the document it prints.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["-o", "json"]).collect();
        self.run(&args).ok().json()
    }

    /// The items of a list command.
    pub(crate) fn items(&self, args: &[&str]) -> Vec<Value> {
        self.json(args)["items"].as_array().unwrap().clone()
    }

    /// The acts in the audit trail, latest first, without those that started the server of these commands.
    pub(crate) fn acts(&self) -> Vec<String> {
        let acts = self.items(&["audit", "list"]).into_iter().map(|row| text(&row["act"]));
        acts.filter(|act| act != "create token").collect()
    }

    /// Creates a queue that gives up after the second attempt and never waits.
    pub(crate) fn hasty_queue(&self, queue: &str) {
        let set = ["queue", "set", queue, "--max-attempts", "2", "--backoff", "fixed", "--initial", "0"];
        self.run(&set).ok();
    }

    /// Enqueues one message and returns its id.
    pub(crate) fn enqueue(&self, queue: &str, payload: &str) -> String {
        text(&self.json(&["enqueue", queue, "--payload", payload])["id"])
    }

    /// Leases one message, for longer than any test takes, and returns the delivery.
    pub(crate) fn lease(&self, queue: &str) -> Value {
        let mut items = self.items(&["lease", queue, "--lease", "1h", "--wait", "10m"]);
        assert_eq!(items.len(), 1);
        items.remove(0)
    }

    /// Leases one message, fails it, and returns the result.
    pub(crate) fn fail(&self, queue: &str, message: &str) -> Value {
        let token = text(&self.lease(queue)["token"]);
        self.json(&["fail", &token, "--error-type", "Timeout", "--message", message])
    }

    /// Enqueues a message and fails it until it is a dead letter; returns its id.
    pub(crate) fn dead_letter(&self, queue: &str, payload: &str, message: &str) -> String {
        let id = self.enqueue(queue, payload);
        let token = text(&self.lease(queue)["token"]);
        let fail = ["fail", &token, "--error-type", "Timeout", "--message", message, "--dead-letter"];
        assert_eq!(self.json(&fail)["state"], "dead");
        id
    }
}

/// What tells the command about servers.
const SERVER_VARIABLES: [&str; 6] = [
    "REDRIVE_URL",
    "REDRIVE_TOKEN",
    "REDRIVE_TOKEN_FILE",
    "REDRIVE_CONTEXT",
    "REDRIVE_CA",
    "XDG_CONFIG_HOME",
];

/// A running `redrive serve`, killed when it is dropped.
pub(crate) struct ServeProcess {
    child: Child,
    pub(crate) url: String,
    /// The admin token, if this start created it.
    pub(crate) token: Option<String>,
    log: PathBuf,
}

impl ServeProcess {
    /// Starts the command, whose output must be one line of JSON, and keeps its stderr in a file.
    pub(crate) fn start(mut command: Command, log: PathBuf) -> Self {
        let stderr = std::fs::File::options().create(true).append(true).open(&log).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let Ok(started) = serde_json::from_str::<Value>(&line) else {
            let _ = child.wait();
            panic!("the server did not start: {}", std::fs::read_to_string(&log).unwrap());
        };
        Self { child, url: text(&started["url"]), token: started["token"].as_str().map(str::to_owned), log }
    }

    /// The host and port.
    pub(crate) fn address(&self) -> &str {
        self.url.split_once("://").unwrap().1
    }

    /// What the server has written to stderr.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.id().to_string()]).status().unwrap().success());
    }

    /// Waits for the end and returns the exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    /// Sends a request with the admin token and returns the status and the JSON of the reply.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let authorization = format!("authorization: Bearer {}", self.token.as_deref().unwrap());
        let reply = http(self.address(), method, path, &[&authorization], body).unwrap();
        (reply.status, reply.json())
    }
}

impl Drop for ServeProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A reply to an HTTP request.
#[derive(Debug)]
pub(crate) struct HttpReply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl HttpReply {
    /// The body as JSON; null if it is not.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Sends one HTTP/1.1 request on a connection of its own, as plainly as possible. A Host header among `headers` takes the
/// place of the usual one.
pub(crate) fn http(
    address: &str,
    method: &str,
    path: &str,
    headers: &[&str],
    body: &str,
) -> std::io::Result<HttpReply> {
    let mut stream = TcpStream::connect(address)?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|line| line.to_ascii_lowercase().starts_with("host:")) {
        head.push_str(&format!("host: {address}\r\n"));
    }
    if !body.is_empty() {
        head.push_str("content-type: application/json\r\n");
    }
    headers.iter().for_each(|line| head.push_str(&format!("{line}\r\n")));
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    read_reply(stream)
}

/// Reads a reply: as many bytes as it promises, or up to the end of the connection.
pub(crate) fn read_reply(mut stream: TcpStream) -> std::io::Result<HttpReply> {
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 * 1024]);
    let broken = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    loop {
        let read = stream.read(&mut chunk)?;
        bytes.extend_from_slice(&chunk[..read]);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let head = end.map(|end| String::from_utf8_lossy(&bytes[..end]).into_owned());
        let length = head.as_deref().and_then(promised_length);
        let body = end.map(|end| &bytes[end + 4..]);
        let is_whole = body.zip(length).is_some_and(|(body, length)| body.len() >= length);
        if read > 0 && !is_whole {
            continue;
        }
        let (head, body) = head.zip(body).ok_or_else(broken)?;
        // A reply that was cut off is no reply.
        if length.is_some_and(|length| length != body.len()) {
            return Err(broken());
        }
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(broken)?;
        return Ok(HttpReply { status, body: body.to_vec(), head });
    }
}

/// The length that a head promises for its body.
fn promised_length(head: &str) -> Option<usize> {
    head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    })
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct RunResult {
    args: Vec<String>,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl RunResult {
    pub(crate) fn of(args: &[&str], output: Output) -> Self {
        Self {
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            code: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
        }
    }

    /// Requires this exit code.
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        let text = self.text();
        assert_eq!(self.code, Some(code), "{:?}\nstdout: {text}\nstderr: {}", self.args, self.stderr);
        self
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        self.code(0)
    }

    /// Requires this text on stderr.
    #[track_caller]
    pub(crate) fn says(self, what: &str) -> Self {
        assert!(self.stderr.contains(what), "{:?} should say {what:?}\nstderr: {}", self.args, self.stderr);
        self
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|error| panic!("{:?} printed no JSON: {error}\n{}", self.args, self.text()))
    }

    /// Parses one document per line.
    #[track_caller]
    pub(crate) fn ndjson(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The text of a JSON string.
#[track_caller]
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string")).to_owned()
}

/// Polls until the condition is true, because a process that is starting gives no signal to wait for.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "never came true: {what}");
        std::thread::yield_now();
    }
}

/// Restricts a directory to its owner, whatever the umask was when it was created.
pub(crate) fn close(directory: &Path) {
    std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
}

/// Whether a directory has an entry whose name has this ending.
pub(crate) fn has_entry(directory: &Path, ending: &str) -> bool {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().ends_with(ending))
}
