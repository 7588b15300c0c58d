//! A private PostgreSQL server for tests, with a schema per test.
//!
//! The first test that asks starts the server; the others of the same run share it. A small watcher stops the server and
//! removes its files when the program that runs the tests has ended.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::{CommandExt as _, parent_id};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The user of the database.
const USER: &str = "redrive";

/// A running server.
#[derive(Clone, Debug)]
pub struct Server {
    directory: PathBuf,
    port: u16,
}

/// The server that all tests of this run share.
///
/// # Panics
/// If PostgreSQL is not installed or does not start; `scripts/setup` installs it.
#[must_use]
pub fn shared() -> Server {
    let runner = parent_id();
    let directory = std::env::temp_dir().join(format!("redrive-pg-{runner}"));
    let lock =
        File::create(std::env::temp_dir().join(format!("redrive-pg-{runner}.lock"))).expect("a lock file");
    lock.lock().expect("the lock of the shared server");
    let ready = directory.join("ready");
    if !ready.exists() {
        let server = Server::start(&directory);
        server.stop_with(runner);
        fs::write(&ready, server.port.to_string()).expect("a note that the server runs");
    }
    let port = fs::read_to_string(&ready).expect("the port").parse().expect("a number");
    Server { directory, port }
}

impl Server {
    /// Starts a server in a directory that does not exist yet.
    ///
    /// # Panics
    /// If PostgreSQL is not installed or does not start.
    #[must_use]
    pub fn start(directory: &Path) -> Self {
        fs::create_dir_all(directory).expect("a directory for the server");
        let owner = unprivileged();
        if let Some((uid, gid)) = owner {
            chown(directory, Some(uid), Some(gid)).expect("a directory that the server owns");
        }
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
            .expect("a directory that tests can enter");
        let server = Self { directory: directory.to_owned(), port: free_port() };
        let data = server.data();
        let data = data.to_str().expect("a path in UTF-8");
        let encoding = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"];
        run(server.command("initdb").args(["-D", data, "-U", USER]).args(encoding));
        let settings = format!(
            "listen_addresses = '127.0.0.1'\nport = {}\nunix_socket_directories = '{}'\nmax_connections = 400\n\
             shared_buffers = 64MB\nfsync = on\n",
            server.port,
            server.directory.display()
        );
        let path = server.data().join("postgresql.conf");
        let mut text = fs::read_to_string(&path).expect("the server's settings");
        text.push_str(&settings);
        fs::write(&path, text).expect("the server's settings");
        server.resume();
        server
    }

    /// Starts the server again after [`Server::stop`].
    ///
    /// # Panics
    /// If it does not start.
    pub fn resume(&self) {
        let log = self.directory.join("log");
        run(self
            .command("pg_ctl")
            .arg("-D")
            .arg(self.data())
            .arg("-l")
            .arg(log)
            .args(["-w", "-t", "300", "start"]));
    }

    /// Stops the server: `smart`, `fast` or `immediate`.
    ///
    /// # Panics
    /// If it does not stop.
    pub fn stop(&self, mode: &str) {
        run(self.command("pg_ctl").arg("-D").arg(self.data()).args(["-w", "-t", "300", "-m", mode, "stop"]));
    }

    /// The address of a new schema. Two calls never give the same.
    #[must_use]
    pub fn schema(&self) -> String {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        format!("{}?schema=t_{}_{n}", self.url(), std::process::id())
    }

    /// The address of the server over TCP.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres", self.port)
    }

    /// The port that it listens on.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// One of PostgreSQL's programs, as a user that it agrees to run as.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(binary(program));
        command.current_dir(&self.directory).stdin(Stdio::null()).process_group(0);
        if let Some((uid, gid)) = unprivileged() {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Stops the server and removes its files when another process has ended.
    fn stop_with(&self, process: u32) {
        let script = format!(
            "while [ -e /proc/{process} ]; do sleep 1; done; '{ctl}' -D '{data}' -m immediate stop; \
             rm -rf '{directory}' '{directory}.lock'",
            ctl = binary("pg_ctl").display(),
            data = self.data().display(),
            directory = self.directory.display(),
        );
        let mut watcher = Command::new("sh");
        watcher.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // It belongs to the run, not to the test that happened to start it. As root it may end processes of the other
        // user, but pg_ctl refuses to run as root.
        if let Some((uid, gid)) = unprivileged() {
            watcher.uid(uid).gid(gid);
        }
        let watcher = watcher.process_group(0).current_dir("/").spawn();
        // Nobody waits for it: it outlives this process.
        drop(watcher.expect("a watcher for the server"));
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// A user without rights, if this process is root: PostgreSQL refuses to run as root.
fn unprivileged() -> Option<(u32, u32)> {
    let own = fs::metadata("/proc/self").ok()?;
    if std::os::unix::fs::MetadataExt::uid(&own) != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("the users of this machine");
    let find = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    };
    Some(find("postgres").or_else(|| find("nobody")).expect("a user named postgres or nobody"))
}

/// The path of one of PostgreSQL's programs. Debian keeps them in a directory per version.
fn binary(program: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|version| version.path().join("bin").join(program)).collect();
    found.retain(|path| path.exists());
    found.sort();
    found.pop().unwrap_or_else(|| PathBuf::from(program))
}

/// Runs a program to its end.
fn run(command: &mut Command) {
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let output =
        output.unwrap_or_else(|error| panic!("{command:?}: {error}; ./scripts/setup installs PostgreSQL"));
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {said}{errors}");
}
