//! A private Redis server for tests, with a prefix per test.
//!
//! The first test that asks starts the server; the others of the same run share it. A small watcher stops the server and
//! removes its files when the program that runs the tests has ended. A test that stops or restarts a server starts one of
//! its own.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::{CommandExt as _, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The ports of servers. Systems hand out greater ones to whoever asks for any.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// A running server. It ends with this value, unless it is shared.
#[derive(Debug)]
pub struct Server {
    directory: PathBuf,
    port: u16,
    settings: Vec<(String, String)>,
    process: Option<Child>,
    /// Whether the server outlives this value.
    outlives: bool,
    /// Keeps the port from other tests.
    _reserved: Option<File>,
}

/// The server that all tests of this run share.
///
/// # Panics
/// If Redis is not installed or does not start; `scripts/setup` installs it.
#[must_use]
pub fn shared() -> Server {
    let runner = parent_id();
    let directory = std::env::temp_dir().join(format!("redrive-redis-{runner}"));
    let lock =
        File::create(std::env::temp_dir().join(format!("redrive-redis-{runner}.lock"))).expect("a lock file");
    lock.lock().expect("the lock of the shared server");
    let ready = directory.join("ready");
    if !ready.exists() {
        let mut server = Server::start(&directory, &[]);
        server.stop_with(runner);
        fs::write(&ready, server.port.to_string()).expect("a note that the server runs");
    }
    let port = fs::read_to_string(&ready).expect("the port").parse().expect("a number");
    Server { directory, port, settings: Vec::new(), process: None, outlives: true, _reserved: None }
}

impl Server {
    /// Starts a server that keeps its files in a directory, which may not exist yet. It flushes every write, unless other
    /// settings say otherwise.
    ///
    /// # Panics
    /// If Redis is not installed or does not start.
    #[must_use]
    pub fn start(directory: &Path, settings: &[(&str, &str)]) -> Self {
        fs::create_dir_all(directory).expect("a directory for the server");
        let settings =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (port, reserved) = reserve_port();
        let mut server = Self {
            directory: directory.to_owned(),
            port,
            settings,
            process: None,
            outlives: false,
            _reserved: Some(reserved),
        };
        server.resume();
        server
    }

    /// Starts the server again after [`Server::kill`], with what it had written.
    ///
    /// # Panics
    /// If it does not start.
    pub fn resume(&mut self) {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &self.port.to_string(), "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--dir"]).arg(&self.directory);
        for (name, value) in &self.settings {
            command.arg(format!("--{name}")).arg(value);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let spawned = command.spawn();
        let failed = |error| panic!("redis-server: {error}; ./scripts/setup installs Redis");
        let process = self.process.insert(spawned.unwrap_or_else(failed));
        let mut said = Vec::new();
        for line in BufReader::new(process.stdout.take().expect("what the server says")).lines() {
            said.push(line.expect("a line of the server"));
            if said.last().is_some_and(|line| line.contains("Ready to accept connections")) {
                return;
            }
        }
        panic!("the Redis server did not start: {}", said.join("\n"));
    }

    /// Ends the server as a crash would, in the middle of whatever it does.
    ///
    /// # Panics
    /// If the server is shared or has been ended before.
    pub fn kill(&mut self) {
        let mut process = self.process.take().expect("a server of this test's own");
        process.kill().expect("the server can be ended");
        process.wait().expect("the server has ended");
    }

    /// Sends a command to the server and returns what it says.
    ///
    /// # Panics
    /// If the server cannot be asked.
    pub fn ask(&self, command: &[&str]) -> String {
        let asked = Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(command).output();
        let output =
            asked.unwrap_or_else(|error| panic!("redis-cli: {error}; ./scripts/setup installs Redis"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The address of a new prefix. Two calls never give the same.
    #[must_use]
    pub fn prefix(&self) -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        format!("{}?prefix=t-{}-{n}", self.url(), std::process::id())
    }

    /// The address of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// The file that the server appends every write to.
    #[must_use]
    pub fn append_only_file(&self) -> PathBuf {
        self.directory.join("appendonlydir/appendonly.aof.1.incr.aof")
    }

    /// The port that it listens on.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Stops the server and removes its files when another process has ended, and not with this value.
    fn stop_with(&mut self, process: u32) {
        self.outlives = true;
        let server = self.process.as_ref().expect("a server that was just started").id();
        let script = format!(
            "while [ -e /proc/{process} ]; do sleep 1; done; kill -9 {}; rm -rf '{directory}' '{directory}.lock'",
            server,
            directory = self.directory.display(),
        );
        let mut watcher = Command::new("sh");
        watcher.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // It belongs to the run, not to the test that happened to start it, and outlives this process.
        let watcher = watcher.process_group(0).current_dir("/").spawn();
        drop(watcher.expect("a watcher for the server"));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = self.process.as_mut().filter(|_| !self.outlives) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Reserves a port for as long as the file is open. A server that is killed and started again needs the same port, so it is
/// none of those that the system hands out, and no other test is given it meanwhile.
fn reserve_port() -> (u16, File) {
    let first = std::process::id() % u32::from(PORTS.end - PORTS.start);
    let first = PORTS.start + u16::try_from(first).expect("a number below the number of ports");
    for port in (first..PORTS.end).chain(PORTS.start..first) {
        let path = std::env::temp_dir().join(format!("redrive-redis-port-{port}.lock"));
        let reserved = File::create(path).expect("a file that reserves a port");
        let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        if reserved.try_lock().is_ok() && free() {
            return (port, reserved);
        }
    }
    panic!("no port is free");
}
