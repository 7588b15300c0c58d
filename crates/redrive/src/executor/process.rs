//! Runs one child process safely. The child gets its own process group, so that the processes it forks end with it.
//! Its output is read to the end and captured within bounds, so that it never blocks on a full pipe. Whatever the child
//! does, [`Process::run`] returns, at the latest after the time limit and two short waits.
//!
//! Limits: a process that leaves the group on purpose (`setsid`) lives on, but is not waited for. Children outlive this
//! process if it is killed with SIGKILL. If other code in this process reaps the child (`waitpid(-1)`) or ignores
//! SIGCHLD, it is unknown how the child ended: that is reported as a failure, and the rest of its group is not killed,
//! because the group id may belong to another process by then.

use super::output::{CapturedOutput, Lines, OutputLimit};
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

/// The default time between SIGTERM and SIGKILL for a child that reached its time limit.
const TIMEOUT_GRACE: Span = Span::from_secs(5);
/// The default time between SIGTERM and SIGKILL for a child that is cancelled. A worker waits two seconds after it
/// cancels a handler.
const CANCEL_GRACE: Span = Span::from_secs(1);
/// How long output is read after the child has ended. It matters only if a process that left the group still holds the
/// pipes.
const DRAIN_TIMEOUT: Span = Span::from_secs(1);
/// How long a killed child may take to end. One that takes longer hangs in the kernel and is left alone.
const KILL_TIMEOUT: Span = Span::from_secs(10);
/// The maximum number of bytes written to a log file, to protect the disk.
const LOG_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Bytes read at once, the size of a pipe.
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

/// Called with every line as it is printed. Must not block.
pub type OnLine = Arc<dyn Fn(Stream, &str) + Send + Sync>;

/// A child process to run, and its settings.
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
    keep_stdout: OutputLimit,
    keep_stderr: OutputLimit,
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
    /// A program and its arguments, without a shell. A program name without a slash is looked up in `PATH`.
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
            keep_stdout: OutputLimit::default(),
            keep_stderr: OutputLimit::default(),
            on_line: None,
            log: None,
        }
    }

    /// A command line for `/bin/sh`. The caller must quote values that it puts into the line.
    #[must_use]
    pub fn shell(line: impl Into<OsString>) -> Self {
        Self::argv([OsString::from("/bin/sh"), "-c".into(), line.into()])
    }

    /// The bytes for standard input. Empty by default. A child may end without reading them.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = bytes.into();
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.set.push((name.into(), value.into()));
        self
    }

    /// Removes an environment variable.
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

    /// The working directory. A program with a relative path is looked up from there.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// The time limit of the child.
    #[must_use]
    pub fn limit(mut self, limit: Span) -> Self {
        self.limit = Some(limit);
        self
    }

    /// The time between SIGTERM and SIGKILL. Defaults to 5 s after the time limit and 1 s after a cancellation.
    #[must_use]
    pub fn grace(mut self, grace: Span) -> Self {
        self.grace = Some(grace);
        self
    }

    /// How much of standard output to keep.
    #[must_use]
    pub fn keep_stdout(mut self, keep: OutputLimit) -> Self {
        self.keep_stdout = keep;
        self
    }

    /// How much of standard error to keep.
    #[must_use]
    pub fn keep_stderr(mut self, keep: OutputLimit) -> Self {
        self.keep_stderr = keep;
        self
    }

    /// A callback for every line that the child prints.
    #[must_use]
    pub fn on_line(mut self, each: OnLine) -> Self {
        self.on_line = Some(each);
        self
    }

    /// Appends both streams to this file as they are printed, up to 64 MiB per run.
    #[must_use]
    pub fn log(mut self, file: impl Into<PathBuf>) -> Self {
        self.log = Some(file.into());
        self
    }

    /// Runs the child to its end. When `cancel` fires or the time limit passes, its process group gets SIGTERM, and
    /// SIGKILL after the grace time. If this future is dropped, the group gets SIGKILL at once.
    pub async fn run(self, cancel: &CancellationToken) -> ProcessOutput {
        let started = Instant::now();
        let mut stdout = CapturedOutput::new(self.keep_stdout);
        let mut stderr = CapturedOutput::new(self.keep_stderr);
        let (ended, usage) = match self.run_into(cancel, &mut stdout, &mut stderr).await {
            Ok(done) => done,
            Err(not_started) => (ProcessEnd::NotStarted(not_started), None),
        };
        let elapsed = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        ProcessOutput {
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
        stdout: &mut CapturedOutput,
        stderr: &mut CapturedOutput,
    ) -> Result<(ProcessEnd, Option<Usage>), NotStarted> {
        let log = self.log.as_deref().map(Log::open).transpose()?.map(Mutex::new);
        let StartedChild { group, exited, pipes } = start(&self).await?;
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
                // The rest in the pipes is read at once; only a process that left the group can keep them open.
                let _ = tokio::time::timeout(DRAIN_TIMEOUT.to_std(), pump).await;
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
pub enum ProcessEnd {
    /// It exited with this code.
    Exited(i32),
    /// It was killed by this signal, which this module did not send.
    Signalled(i32),
    /// It was stopped because it reached its time limit.
    TimedOut,
    /// It was stopped because the caller cancelled it.
    Cancelled,
    /// It could not be started.
    NotStarted(NotStarted),
}

impl std::fmt::Display for ProcessEnd {
    /// Continues a sentence after the name of the program: "git ended with exit code 1".
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
    /// The kind of the reason.
    pub kind: NotStartedKind,
    /// The reason, for people.
    pub why: String,
}

/// The kind of reason why a child could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStartedKind {
    /// There is no such program, interpreter or working directory.
    NotFound,
    /// There is no permission to run it.
    NotAllowed,
    /// Anything else: too many processes, arguments too long, not a program.
    Other,
}

/// The result of a child process: how it ended, its output and its resource use.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessOutput {
    /// How it ended.
    pub ended: ProcessEnd,
    /// How long it took.
    pub duration: Span,
    /// What it printed on standard output.
    pub stdout: CapturedOutput,
    /// What it printed on standard error.
    pub stderr: CapturedOutput,
    /// CPU seconds, user and system together, of the child and of those of its children that it waited for. `None` if
    /// it could not be waited for.
    pub cpu: Option<f64>,
    /// Peak memory in bytes of the largest single process among them. Linux includes the moment between fork and exec,
    /// when a child still has the memory of its parent, so this is `None` for a child that never needed more memory
    /// than this process.
    pub memory: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Usage {
    cpu: f64,
    memory: Option<u64>,
}

/// The process group of a child. Cleared right before the child is reaped, because its id may be reused after that.
#[derive(Debug)]
struct ProcessGroup(Mutex<Option<Pid>>);

impl ProcessGroup {
    /// Sends a signal to every process in the group.
    fn signal(&self, signal: Signal) {
        if let Some(pid) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // It is fine if the group is gone already.
            let _ = kill_process_group(pid, signal);
        }
    }

    fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Kills the process group when it is dropped.
struct KillOnDrop(Arc<ProcessGroup>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.signal(Signal::KILL);
    }
}

type Exit = io::Result<(ExitStatus, Usage)>;
type Pipes = (Option<pipe::Sender>, Option<pipe::Receiver>, Option<pipe::Receiver>);

struct StartedChild {
    group: KillOnDrop,
    exited: oneshot::Receiver<Exit>,
    pipes: Pipes,
}

/// Starts the child on a thread of its own, which then waits for it: starting blocks for a moment, and `wait4`, which
/// reports resource use, blocks too.
async fn start(process: &Process) -> Result<StartedChild, NotStarted> {
    let mut command = process.command()?;
    let (send_started, started) = oneshot::channel();
    let (end, exited) = oneshot::channel();
    let thread = std::thread::Builder::new().name("redrive-child".into()).stack_size(STACK_BYTES);
    let spawned = thread.spawn(move || match command.spawn() {
        Err(error) => drop(send_started.send(Err(error))),
        Ok(child) => supervise_child(child, send_started, end),
    });
    let not_started = |error: &io::Error| explain(error, process);
    spawned.map_err(|e| not_started(&e))?;
    let child = started.await.map_err(|_| not_started(&io::Error::other("its thread died")))?;
    let SpawnedChild { group, stdin, stdout, stderr } = child.map_err(|e| not_started(&e))?;
    let pipes = (
        stdin.map(pipe::Sender::from_owned_fd).transpose().map_err(|e| not_started(&e))?,
        stdout.map(pipe::Receiver::from_owned_fd).transpose().map_err(|e| not_started(&e))?,
        stderr.map(pipe::Receiver::from_owned_fd).transpose().map_err(|e| not_started(&e))?,
    );
    Ok(StartedChild { group, exited, pipes })
}

struct SpawnedChild {
    group: KillOnDrop,
    stdin: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
}

/// Hands over the child's pipes, waits for its end, kills the rest of its process group, and reaps it.
fn supervise_child(
    mut child: Child,
    send_started: oneshot::Sender<io::Result<SpawnedChild>>,
    end: oneshot::Sender<Exit>,
) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let group = Arc::new(ProcessGroup(Mutex::new(pid)));
    let own_peak = own_peak();
    let born = SpawnedChild {
        group: KillOnDrop(Arc::clone(&group)),
        stdin: child.stdin.take().map(OwnedFd::from),
        stdout: child.stdout.take().map(OwnedFd::from),
        stderr: child.stderr.take().map(OwnedFd::from),
    };
    // If nobody waits for the child any more, the value is dropped here, which kills the child.
    drop(send_started.send(Ok(born)));
    if let Some(pid) = pid {
        let left = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        // Until the child is reaped, its group id cannot be reused. If this call fails, other code, or the system
        // because SIGCHLD is ignored, has reaped it already, and the id may belong to another process.
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
    // The receiver is gone if the run was dropped.
    let _ = end.send(exit);
}

/// The peak memory of this process, which Linux includes for every child. Slightly more than that, because the
/// kernel's counters lag behind by some pages per thread.
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

/// Waits for the end of the child, and stops it when it reaches its time limit or is cancelled.
async fn wait(
    exited: oneshot::Receiver<Exit>,
    group: &ProcessGroup,
    limit: Option<Span>,
    grace: Option<Span>,
    cancel: &CancellationToken,
) -> (ProcessEnd, Option<Usage>) {
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
        () = cancel.cancelled() => (ProcessEnd::Cancelled, CANCEL_GRACE),
        () = time_is_over => (ProcessEnd::TimedOut, TIMEOUT_GRACE),
    };
    for (signal, patience) in [(Signal::TERM, grace.unwrap_or(usual)), (Signal::KILL, KILL_TIMEOUT)] {
        group.signal(signal);
        if let Ok(exit) = tokio::time::timeout(patience.to_std(), &mut exited).await {
            let usage = exit.ok().and_then(Result::ok).map(|(_, usage)| usage);
            return (why, usage);
        }
    }
    (why, None)
}

fn by_itself(exit: Result<Exit, oneshot::error::RecvError>) -> (ProcessEnd, Option<Usage>) {
    let exit = exit.unwrap_or_else(|_| Err(io::Error::other("its thread died")));
    match exit {
        Ok((status, usage)) => match (status.code(), status.signal()) {
            (Some(code), _) => (ProcessEnd::Exited(code), Some(usage)),
            (None, signal) => (ProcessEnd::Signalled(signal.unwrap_or(0)), Some(usage)),
        },
        // Other code in this process has reaped it. How it ended is unknown, which must not count as success.
        Err(_) => (ProcessEnd::Signalled(0), None),
    }
}

/// Writes the input and closes the pipe. A child may close its input early.
async fn feed(pipe: Option<pipe::Sender>, bytes: &[u8]) {
    if let Some(mut pipe) = pipe {
        let _ = pipe.write_all(bytes).await;
    }
}

/// Reads a stream to its end, however much of it is kept, so that the child never blocks on a full pipe.
async fn read(
    pipe: Option<pipe::Receiver>,
    captured: &mut CapturedOutput,
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

/// A log file of bounded size. It is written by the task that reads the output: if the disk is slow, the child is
/// slowed down instead of memory being filled.
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
        // An error of the log must not fail the work.
        let _ = self.file.write_all(bytes.get(..fits).unwrap_or_default());
        if self.room == 0 {
            let _ = self.file.write_all(b"\n[the rest is left out: the log is full]\n");
        }
    }
}
