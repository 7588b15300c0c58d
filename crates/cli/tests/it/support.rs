//! A workspace: a temporary directory, and the command run in it.

use serde_json::Value;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take before the test fails. Only a hang takes this long, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

/// A temporary directory, with a data directory that does not exist yet.
pub(crate) struct Workspace {
    dir: tempfile::TempDir,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
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
        for name in ["REDRIVE_CONFIG", "REDRIVE_URL", "COLUMNS"] {
            command.env_remove(name);
        }
        command.env("REDRIVE_DATA", self.data()).env("USER", "tester").stdin(Stdio::null());
        command
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
