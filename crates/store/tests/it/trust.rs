//! A data directory belongs to its owner alone: what another user created, may write or listens on is refused, with
//! the command that fixes it, before anything is read from it or sent to it.

use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::time::Span;
use redrive_store::remote::RemoteStore;
use redrive_store::sqlite::{Options, SqliteStore};
use rustix::process::{Uid, geteuid};
use std::fs::{self, File, Permissions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use tempfile::TempDir;

/// The id of a user other than root, on every system.
const NOBODY: u32 = 65_534;

fn open(at: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(at, Options::default())
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Asserts that the error is a refusal that names this command.
#[track_caller]
fn assert_refused<T>(outcome: Result<T, StoreError>, command: &str) {
    let error = outcome.err().unwrap();
    assert_eq!(error.kind, StoreErrorKind::Untrusted, "{error}");
    assert!(error.text.contains(command), "{error} should name {command:?}");
}

/// Runs something as another user, in a thread of its own. Only root can.
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let switched = move || {
        let nobody = Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(switched).join().unwrap())
}

#[test]
fn a_directory_that_others_may_write_is_refused_until_it_is_closed() {
    let home = TempDir::new().unwrap();
    let (data, copy) = (home.path().join("data"), home.path().join("copy"));
    let command = format!("`chmod 700 {}`", data.display());
    for (mode, holds) in [(0o777, 0), (0o702, 0), (0o775, 1), (0o720, 1)] {
        fs::create_dir(&data).unwrap();
        (0..holds).for_each(|_| fs::write(data.join("lock"), "").unwrap());
        set_mode(&data, mode);
        assert_refused(open(&data), &command);
        assert_eq!(fs::read_dir(&data).unwrap().count(), holds, "nothing was written");
        set_mode(&data, 0o700);
        drop(open(&data).unwrap());
        fs::remove_dir_all(&data).unwrap();
    }
    // An empty directory made under a umask of 002 is restricted, not refused.
    fs::create_dir(&data).unwrap();
    set_mode(&data, 0o775);
    drop(open(&data).unwrap());
    assert_eq!(fs::metadata(&data).unwrap().permissions().mode() & 0o777, 0o700);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    fs::create_dir(&copy).unwrap();
    set_mode(&copy, 0o777);
    assert_refused(runtime.block_on(redrive_store::restore(&data, &copy)), "chmod 700");
}

#[test]
fn no_symbolic_link_in_a_directory_is_followed() {
    let home = TempDir::new().unwrap();
    let precious = home.path().join("precious");
    for name in [
        "redrive.db",
        "redrive.db-wal",
        "redrive.db-shm",
        "redrive.db-journal",
        "lock",
        "audit.key",
        "audit.part",
        "commits",
        "reserve",
        "restoring",
    ] {
        fs::write(&precious, "precious").unwrap();
        let data = TempDir::new().unwrap();
        let link = data.path().join(name);
        symlink(&precious, &link).unwrap();
        assert_refused(open(data.path()), &format!("`rm {}`", link.display()));
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious", "{name}");
        fs::remove_file(&link).unwrap();
        fs::create_dir(&link).unwrap();
        assert_refused(open(data.path()), &format!("`mv {0} {0}.aside`", link.display()));
    }
}

#[test]
fn a_file_that_others_can_write_is_refused() {
    let data = TempDir::new().unwrap();
    set_mode(data.path(), 0o700);
    drop(open(data.path()).unwrap());
    let key = data.path().join("audit.key");
    set_mode(&key, 0o666);
    drop(open(data.path()).unwrap());
    set_mode(data.path(), 0o755);
    assert_refused(open(data.path()), &format!("`chmod 600 {}`", key.display()));
}

#[tokio::test]
async fn a_file_that_is_not_a_socket_is_refused() {
    let data = TempDir::new().unwrap();
    let held = open(data.path()).unwrap();
    let socket = data.path().join("socket");
    fs::write(&socket, "").unwrap();
    let patience = Span::from_hours(1);
    assert_refused(redrive_store::open(data.path(), false, false, patience).await, ".aside`");
    fs::remove_file(&socket).unwrap();
    symlink("/dev/null", &socket).unwrap();
    assert_refused(redrive_store::open(data.path(), false, true, patience).await, "`rm ");
    drop(held);
}

#[tokio::test]
async fn a_directory_of_another_user_is_refused() {
    if !geteuid().is_root() {
        // To every user but root, the root directory belongs to another user.
        assert_refused(open(Path::new("/")), "sudo chown -R");
        return;
    }
    let home = TempDir::new().unwrap();
    let data = home.path().join("data");
    drop(open(&data).unwrap());
    let command = format!("`chown -R 0:0 {}`", data.display());
    chown(&data, Some(NOBODY), None).unwrap();
    assert_refused(open(&data), &command);
    assert_refused(RemoteStore::connect(&data).await, &command);
    assert_refused(redrive_store::open(&data, true, true, Span::from_hours(1)).await, &command);
    chown(&data, Some(0), None).unwrap();
    let mark = data.join("commits");
    chown(&mark, Some(NOBODY), None).unwrap();
    assert_refused(open(&data), &format!("`chown -R 0:0 {}`", mark.display()));
    chown(&mark, Some(0), None).unwrap();
    drop(open(&data).unwrap());
    let link = home.path().join("link");
    symlink(&data, &link).unwrap();
    drop(open(&link).unwrap());
    std::os::unix::fs::lchown(&link, Some(NOBODY), None).unwrap();
    assert_refused(open(&link), "symbolic link that user 65534 made");
}

#[tokio::test]
async fn a_holder_that_runs_as_another_user_receives_nothing() {
    if !geteuid().is_root() {
        println!("only root can have another user listen");
        return;
    }
    let data = TempDir::new().unwrap();
    let held = open(data.path()).unwrap();
    let socket = data.path().join("socket");
    // The socket and its directory look right; only the process behind them gives it away.
    let here = File::open(data.path()).unwrap();
    chown(data.path(), Some(NOBODY), None).unwrap();
    let path = format!("/proc/self/fd/{}/socket", here.as_raw_fd());
    let listener = as_nobody(move || UnixListener::bind(path).unwrap());
    chown(data.path(), Some(0), None).unwrap();
    chown(&socket, Some(0), None).unwrap();
    assert_refused(
        redrive_store::open(data.path(), true, false, Span::from_hours(1)).await,
        &format!("`fuser -v {}`", socket.display()),
    );
    let mut received = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_caller_that_runs_as_another_user_is_refused_by_the_holder() {
    if !geteuid().is_root() {
        println!("only root can have another user call");
        return;
    }
    let data = TempDir::new().unwrap();
    let store = redrive_store::open_serving(data.path(), Options::default()).unwrap();
    set_mode(data.path(), 0o755);
    set_mode(&data.path().join("socket"), 0o777);
    let here = File::open(data.path()).unwrap();
    let path = format!("/proc/self/fd/{}/socket", here.as_raw_fd());
    let reply = as_nobody(move || {
        let mut stream = UnixStream::connect(path).unwrap();
        let hello = br#"{"redrive":4}"#;
        let _ = stream.write_all(&[&[0, 0, 0, 13], hello.as_slice()].concat());
        let mut reply = Vec::new();
        let _ = stream.read_to_end(&mut reply);
        String::from_utf8_lossy(&reply).into_owned()
    });
    assert!(reply.contains(r#""kind":"untrusted""#) && reply.contains("user 65534"), "{reply}");
    set_mode(data.path(), 0o700);
    set_mode(&data.path().join("socket"), 0o700);
    RemoteStore::connect(data.path()).await.unwrap();
    drop(store);
}
