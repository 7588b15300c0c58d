//! Runs one child process with care. It gets its own process group, so that what it forks ends with it; its
//! output is read to the end and kept within bounds, so that it never blocks on a full pipe; and whatever it
//! does, [`Process::run`] returns: after the time limit and two short waits at the latest. Nothing here knows
//! about messages.
//!
//! What is not caught: a process that leaves the group on purpose (`setsid`) lives on, but is not waited for;
//! and children outlive this process when it is killed with SIGKILL. A program that reaps children it did not
//! start (`waitpid(-1)`) or ignores SIGCHLD takes away how they ended: that is reported as a failure, and what
//! they left behind in their group is not ended, because its number may be a stranger's by then.

use super::output::{Captured, Keep, Lines};
use redrive_core::time::Span;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use wait4::Wait4 as _;

/// How long a child whose time is over has between SIGTERM and SIGKILL, when nobody says.
const LATE_GRACE: Span = Span::from_secs(5);
/// The same for one that is cancelled: whoever cancels waits, and a worker does so for two seconds.
const CANCEL_GRACE: Span = Span::from_secs(1);
/// How long output is read after the child has ended. It matters only when something left the process group
/// and still holds the pipes.
const DRAIN: Span = Span::from_secs(1);
/// How long a child that was killed may take to be gone. Longer ones hang in the kernel; they are left alone.
const GONE: Span = Span::from_secs(10);
/// Bytes a log file gets: beyond it the disk is worth more than the log.
const LOG_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Bytes read at once: what a pipe holds.
const READ_BYTES: usize = 64 * 1024;
/// The stack of the thread that starts a child and waits for it.
const STACK_BYTES: usize = 256 * 1024;

/// One of the two streams of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Is given every line as it is printed. Must not block.
pub type OnLine = Arc<dyn Fn(Stream, &str) + Send + Sync>;

/// What to run, and how.
#[derive(Clone)]
pub struct Process {
    argv: Vec<OsString>,
    stdin: Vec<u8>,
    set: Vec<(OsString, OsString)>,
    unset: Vec<OsString>,
    inherit: bool,
    directory: Option<PathBuf>,
    limit: Option<Span>,
    grace: Option<Span>,
    keep_stdout: Keep,
    keep_stderr: Keep,
    on_line: Option<OnLine>,
    log: Option<PathBuf>,
}

impl std::fmt::Debug for Process {
    // Arguments, environment and stdin may carry secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("program", &self.argv.first()).finish_non_exhaustive()
    }
}

impl Process {
    /// A program and its arguments; no shell looks at them. A program without a slash is looked for in `PATH`.
    pub fn argv(argv: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            stdin: Vec::new(),
            set: Vec::new(),
            unset: Vec::new(),
            inherit: true,
            directory: None,
            limit: None,
            grace: None,
            keep_stdout: Keep::default(),
            keep_stderr: Keep::default(),
            on_line: None,
            log: None,
        }
    }

    /// A line for `/bin/sh`. Whatever is put into it must be quoted by the caller.
    #[must_use]
    pub fn shell(line: impl Into<OsString>) -> Self {
        Self::argv([OsString::from("/bin/sh"), "-c".into(), line.into()])
    }

    /// Gives it these bytes on standard input; nothing when not said. A child may end without reading them.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.set.push((name.into(), value.into()));
        self
    }

    /// Takes a variable out of its environment.
    #[must_use]
    pub fn env_remove(mut self, name: impl Into<OsString>) -> Self {
        self.unset.push(name.into());
        self
    }

    /// Starts with an empty environment instead of this process's own.
    #[must_use]
    pub fn env_clear(mut self) -> Self {
        self.inherit = false;
        self
    }

    /// Runs it in this directory. A program given by a relative path is looked for from there.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Ends it after this long.
    #[must_use]
    pub fn limit(mut self, limit: Span) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Gives it this long between SIGTERM and SIGKILL; by default 5 s when its time is over, 1 s when cancelled.
    #[must_use]
    pub fn grace(mut self, grace: Span) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Keeps this much of standard output.
    #[must_use]
    pub fn keep_stdout(mut self, keep: Keep) -> Self {
        self.keep_stdout = keep;
        self
    }

    /// Keeps this much of standard error.
    #[must_use]
    pub fn keep_stderr(mut self, keep: Keep) -> Self {
        self.keep_stderr = keep;
        self
    }

    /// Calls this with every line it prints.
    #[must_use]
    pub fn on_line(mut self, each: OnLine) -> Self {
        self.on_line = Some(each);
        self
    }

    /// Appends both streams to this file as they come, up to 64 MiB per run.
    #[must_use]
    pub fn log(mut self, file: impl Into<PathBuf>) -> Self {
        self.log = Some(file.into());
        self
    }

    /// Runs it to its end. When `cancel` fires or the time limit passes, its process group gets SIGTERM, and
    /// SIGKILL after the grace time. When this future is dropped, the group gets SIGKILL at once.
    pub async fn run(self, cancel: &CancellationToken) -> Finished {
        let begun = Instant::now();
        let mut stdout = Captured::new(self.keep_stdout);
        let mut stderr = Captured::new(self.keep_stderr);
        let (ended, usage) = match self.run_into(cancel, &mut stdout, &mut stderr).await {
            Ok(done) => done,
            Err(not_started) => (Ended::NotStarted(not_started), None),
        };
        let elapsed = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        Finished {
            ended,
            duration: Span::from_millis(elapsed),
            stdout,
            stderr,
            cpu: usage.map(|u| u.cpu),
            memory: usage.and_then(|u| u.memory),
        }
    }

    async fn run_into(
        self,
        cancel: &CancellationToken,
        stdout: &mut Captured,
        stderr: &mut Captured,
    ) -> Result<(Ended, Option<Usage>), NotStarted> {
        let log = self.log.as_deref().map(Log::open).transpose()?.map(Mutex::new);
        let Started { group, exited, pipes } = start(&self).await?;
        let waited = wait(exited, &group.0, self.limit, self.grace, cancel);
        let on_line = self.on_line.as_ref();
        let pump = async {
            let (input, output, errors) = pipes;
            tokio::join!(
                feed(input, &self.stdin),
                read(output, stdout, Stream::Stdout, on_line, log.as_ref()),
                read(errors, stderr, Stream::Stderr, on_line, log.as_ref()),
            );
        };
        let (mut waited, mut pump) = (pin!(waited), pin!(pump));
        let first = tokio::select! {
            biased;
            end = &mut waited => Some(end),
            () = &mut pump => None,
        };
        Ok(match first {
            Some(end) => {
                // What is in the pipes is read at once; only what left the group can keep them open longer.
                let _ = tokio::time::timeout(DRAIN.to_std(), pump).await;
                end
            }
            None => waited.await,
        })
    }

    fn command(&self) -> Result<Command, NotStarted> {
        let (program, args) = self
            .argv
            .split_first()
            .ok_or_else(|| NotStarted { kind: NotStartedKind::Other, why: "no command was given".into() })?;
        let mut command = Command::new(program);
        command.args(args).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if !self.inherit {
            command.env_clear();
        }
        for name in &self.unset {
            command.env_remove(name);
        }
        command.envs(self.set.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        Ok(command)
    }
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this exit code.
    Exited(i32),
    /// By this signal, which was not ours.
    Signalled(i32),
    /// By us, when its time was over.
    TimedOut,
    /// By us, because the caller said so.
    Cancelled,
    /// It never began.
    NotStarted(NotStarted),
}

impl std::fmt::Display for Ended {
    /// Goes on after the name of what ended: "git ended with exit code 1".
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "ended with exit code {code}"),
            Self::Signalled(signal) => write!(f, "was ended by signal {signal}"),
            Self::TimedOut => f.write_str("took too long and was stopped"),
            Self::Cancelled => f.write_str("was stopped"),
            Self::NotStarted(not) => write!(f, "could not be started: {}", not.why),
        }
    }
}

/// Why a child could not be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotStarted {
    /// What kind of reason.
    pub kind: NotStartedKind,
    /// For people.
    pub why: String,
}

/// What kind of reason kept a child from being started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStartedKind {
    /// There is no such program, interpreter or working directory.
    NotFound,
    /// It may not be run.
    NotAllowed,
    /// Anything else: too many processes, arguments too long, not a program.
    Other,
}

/// Everything about a child that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finished {
    /// How it ended.
    pub ended: Ended,
    /// How long it took.
    pub duration: Span,
    /// What it printed.
    pub stdout: Captured,
    /// What it complained about.
    pub stderr: Captured,
    /// Processor seconds of the child and of those of its children it waited for, user and system together;
    /// exact to what the kernel counts. Nothing when it could not be waited for.
    pub cpu: Option<f64>,
    /// Peak memory in bytes of the largest single process among them. Linux counts the moment between fork and
    /// exec, when a child still has the memory of its parent; a child that never needed more than this process
    /// itself has therefore no figure.
    pub memory: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Usage {
    cpu: f64,
    memory: Option<u64>,
}

/// The process group of a child. Emptied right before the child is reaped, since its number may be given to
/// somebody else after that.
#[derive(Debug)]
struct Group(Mutex<Option<Pid>>);

impl Group {
    /// Sends a signal to everybody in the group.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // A group that is gone already is what was wanted.
            let _ = kill_process_group(pid, signal);
        }
    }

    fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Whoever holds this answers for the child: without it, the child goes.
struct KillOnDrop(Arc<Group>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.signal(Signal::KILL);
    }
}

type Exit = io::Result<(ExitStatus, Usage)>;
type Pipes = (Option<pipe::Sender>, Option<pipe::Receiver>, Option<pipe::Receiver>);

struct Started {
    group: KillOnDrop,
    exited: oneshot::Receiver<Exit>,
    pipes: Pipes,
}

/// Starts the child on a thread of its own, which then waits for it: starting blocks for a moment, and waiting
/// with the figures of use cannot be done from outside.
async fn start(process: &Process) -> Result<Started, NotStarted> {
    let mut command = process.command()?;
    let (begin, begun) = oneshot::channel();
    let (end, exited) = oneshot::channel();
    let thread = std::thread::Builder::new().name("redrive-child".into()).stack_size(STACK_BYTES);
    let spawned = thread.spawn(move || match command.spawn() {
        Err(error) => drop(begin.send(Err(error))),
        Ok(child) => attend(child, begin, end),
    });
    let not_started = |error: &io::Error| explain(error, process);
    spawned.map_err(|e| not_started(&e))?;
    let child = begun.await.map_err(|_| not_started(&io::Error::other("its thread died")))?;
    let Born { group, stdin, stdout, stderr } = child.map_err(|e| not_started(&e))?;
    let pipes = (
        stdin.map(pipe::Sender::from_owned_fd).transpose().map_err(|e| not_started(&e))?,
        stdout.map(pipe::Receiver::from_owned_fd).transpose().map_err(|e| not_started(&e))?,
        stderr.map(pipe::Receiver::from_owned_fd).transpose().map_err(|e| not_started(&e))?,
    );
    Ok(Started { group, exited, pipes })
}

struct Born {
    group: KillOnDrop,
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

/// Hands the child's pipes over, waits for its end, ends what it left behind in its group, and reaps it.
fn attend(mut child: Child, begin: oneshot::Sender<io::Result<Born>>, end: oneshot::Sender<Exit>) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let group = Arc::new(Group(Mutex::new(pid)));
    let own_peak = own_peak();
    let born = Born {
        group: KillOnDrop(Arc::clone(&group)),
        stdin: child.stdin.take().map(OwnedFd::from),
        stdout: child.stdout.take().map(OwnedFd::from),
        stderr: child.stderr.take().map(OwnedFd::from),
    };
    // When nobody waits for it any more, dropping it kills it.
    drop(begin.send(Ok(born)));
    if let Some(pid) = pid {
        let left = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        // Not reaped yet: until then the number of the group cannot mean anybody else. Where others reap in this
        // process, or the system does because SIGCHLD is ignored, it may by now.
        if rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), left)).is_ok() {
            group.signal(Signal::KILL);
        }
    }
    group.forget();
    let exit = child.wait4().map(|used| {
        let cpu = used.rusage.utime.saturating_add(used.rusage.stime).as_secs_f64();
        let memory = (used.rusage.maxrss > own_peak).then_some(used.rusage.maxrss);
        (used.status, Usage { cpu, memory })
    });
    // Nobody listens when the run was dropped.
    let _ = end.send(exit);
}

/// The peak of this process's own memory, which Linux counts for every child; a little more, because its
/// counters lag behind by some pages per thread.
#[cfg(target_os = "linux")]
fn own_peak() -> u64 {
    const LAG: u64 = 1024 * 1024;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|l| l.trim().trim_end_matches("kB").trim_end().parse::<u64>().ok());
    kilobytes.unwrap_or(0).saturating_mul(1024).saturating_add(LAG)
}

#[cfg(not(target_os = "linux"))]
fn own_peak() -> u64 {
    0
}

fn explain(error: &io::Error, process: &Process) -> NotStarted {
    let program = process.argv.first().map_or(OsStr::new(""), OsString::as_os_str).display();
    let gone = process.directory.as_deref().filter(|directory| !directory.is_dir());
    let (kind, why) = match (error.kind(), gone) {
        (io::ErrorKind::NotFound, Some(directory)) => {
            let why = format!("there is no working directory {}", directory.display());
            (NotStartedKind::NotFound, why)
        }
        (io::ErrorKind::NotFound, None) => {
            (NotStartedKind::NotFound, format!("there is no command {program}, or no interpreter for it"))
        }
        (io::ErrorKind::PermissionDenied, _) => {
            (NotStartedKind::NotAllowed, format!("{program} may not be run: {error}"))
        }
        _ => (NotStartedKind::Other, format!("failed to start {program}: {error}")),
    };
    NotStarted { kind, why }
}

/// Waits for the end of the child, and brings it about when its time is over or nobody wants it any more.
async fn wait(
    exited: oneshot::Receiver<Exit>,
    group: &Group,
    limit: Option<Span>,
    grace: Option<Span>,
    cancel: &CancellationToken,
) -> (Ended, Option<Usage>) {
    let mut exited = pin!(exited);
    let time_is_over = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit.to_std()).await,
            None => std::future::pending().await,
        }
    };
    let (why, usual) = tokio::select! {
        biased;
        exit = &mut exited => return by_itself(exit),
        () = cancel.cancelled() => (Ended::Cancelled, CANCEL_GRACE),
        () = time_is_over => (Ended::TimedOut, LATE_GRACE),
    };
    for (signal, patience) in [(Signal::TERM, grace.unwrap_or(usual)), (Signal::KILL, GONE)] {
        group.signal(signal);
        if let Ok(exit) = tokio::time::timeout(patience.to_std(), &mut exited).await {
            let usage = exit.ok().and_then(Result::ok).map(|(_, usage)| usage);
            return (why, usage);
        }
    }
    (why, None)
}

fn by_itself(exit: Result<Exit, oneshot::error::RecvError>) -> (Ended, Option<Usage>) {
    let exit = exit.unwrap_or_else(|_| Err(io::Error::other("its thread died")));
    match exit {
        Ok((status, usage)) => match (status.code(), status.signal()) {
            (Some(code), _) => (Ended::Exited(code), Some(usage)),
            (None, signal) => (Ended::Signalled(signal.unwrap_or(0)), Some(usage)),
        },
        // Somebody else in this process has reaped it: how it ended is not known, which is no success.
        Err(_) => (Ended::Signalled(0), None),
    }
}

/// Writes the input and closes the pipe. A child that does not want it is its own business.
async fn feed(pipe: Option<pipe::Sender>, bytes: &[u8]) {
    if let Some(mut pipe) = pipe {
        let _ = pipe.write_all(bytes).await;
    }
}

/// Reads a stream to its end, whatever is kept of it, so that the child never blocks on a full pipe.
async fn read(
    pipe: Option<pipe::Receiver>,
    captured: &mut Captured,
    stream: Stream,
    on_line: Option<&OnLine>,
    log: Option<&Mutex<Log>>,
) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; READ_BYTES];
    let mut lines = Lines::default();
    while let Ok(n @ 1..) = pipe.read(&mut buffer).await {
        let bytes = buffer.get(..n).unwrap_or_default();
        captured.push(bytes);
        if let Some(each) = on_line {
            lines.push(bytes, |line| each(stream, line));
        }
        if let Some(log) = log {
            log.lock().unwrap_or_else(PoisonError::into_inner).write(bytes);
        }
    }
    if let Some(each) = on_line {
        lines.finish(|line| each(stream, line));
    }
}

/// A log file with a bound. Written where the output is read: an append to a file is a copy in memory, and a
/// disk that is slower than that slows the child down instead of filling memory.
struct Log {
    file: File,
    room: u64,
}

impl Log {
    fn open(path: &Path) -> Result<Self, NotStarted> {
        let file = File::options().append(true).create(true).open(path).map_err(|error| NotStarted {
            kind: NotStartedKind::Other,
            why: format!("failed to open the log file {}: {error}", path.display()),
        })?;
        Ok(Self { file, room: LOG_BYTES_MAX })
    }

    fn write(&mut self, bytes: &[u8]) {
        if self.room == 0 {
            return;
        }
        let fits = bytes.len().min(usize::try_from(self.room).unwrap_or(usize::MAX));
        self.room -= u64::try_from(fits).unwrap_or(self.room);
        // A log that cannot be written must not fail the work it is about.
        let _ = self.file.write_all(bytes.get(..fits).unwrap_or_default());
        if self.room == 0 {
            let _ = self.file.write_all(b"\n[the rest is left out: the log is full]\n");
        }
    }
}
