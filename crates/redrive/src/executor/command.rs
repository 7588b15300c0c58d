//! Runs a command for each message. Its exit code decides the outcome: 0 done, 75 try again later, 65 dead letter, any
//! other a failure. Whatever the command does, the message gets an outcome and no process of the command is left
//! behind.

use super::output::OutputLimit;
use super::process::{NotStarted, NotStartedKind, Process, ProcessEnd, ProcessOutput};
use crate::handler::{Context, Handler, HandlerError, Outcome};
use async_trait::async_trait;
use redrive_core::error::Refusal;
use redrive_core::limits;
use redrive_core::message::{Envelope, Payload};
use redrive_core::target::{CommandTarget, PayloadBy, Target};
use redrive_core::traceback::Traceback;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;
use tempfile::NamedTempFile;

/// The exit code that asks for another attempt later: `EX_TEMPFAIL` of `sysexits.h`.
pub const EXIT_LATER: i32 = 75;
/// The exit code that says that this message can never be handled: `EX_DATAERR` of `sysexits.h`.
pub const EXIT_DEAD_LETTER: i32 = 65;
/// The maximum length of the error message taken from the output of the command, in bytes.
const MESSAGE_BYTES: usize = 2 * 1024;
/// The number of bytes of each stream that are kept with a failure, so that they fit into a note.
const ARTIFACT_BYTES: usize = limits::NOTE_BYTES_MAX - 64;
/// The placeholder for the path of the payload file in an argument.
const PAYLOAD_FILE: &str = "{payload_file}";

/// A [`Handler`] that runs a command for each message.
///
/// Environment variables describe the message: `REDRIVE_ID`, `REDRIVE_QUEUE`, `REDRIVE_KIND`,
/// `REDRIVE_ATTEMPT`, `REDRIVE_MAX_ATTEMPTS`, `REDRIVE_PRIORITY`, `REDRIVE_CONTENT_TYPE`, and where the message
/// has them `REDRIVE_KEY`, `REDRIVE_ORDERING_KEY`, `REDRIVE_REPLY_TO`, `REDRIVE_TRACE` (also as `TRACEPARENT`)
/// and `REDRIVE_HEADER_…` for each header. If the message has a `reply_to`, the command's output is the reply.
#[derive(Clone, Debug)]
pub struct CommandExecutor {
    target: CommandTarget,
}

impl CommandExecutor {
    /// Creates an executor for this command.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] with the setting that is invalid.
    pub fn new(target: CommandTarget) -> Result<Self, Refusal> {
        Target::Command(target.clone()).check()?;
        Ok(Self { target })
    }
}

/// Prepares the process of a command with these variables. `bytes` go to standard input unless there is a payload file.
pub(super) fn prepared(
    target: &CommandTarget,
    variables: Vec<(String, String)>,
    bytes: Vec<u8>,
    file: Option<&Path>,
) -> Process {
    let CommandTarget { argv, shell, payload: _, env, unset, directory, timeout } = target;
    let mut process = match shell {
        Some(line) => Process::shell(line),
        None => Process::argv(argv.iter().map(|argument| with_file(argument, file))),
    };
    for name in unset {
        process = process.env_remove(name);
    }
    for (name, value) in env {
        process = process.env(name, value);
    }
    for (name, value) in variables {
        // No variable can hold a NUL. Leave out a header that has one rather than fail the message.
        if !value.contains('\0') {
            process = process.env(name, value);
        }
    }
    process = match file {
        Some(file) => process.env("REDRIVE_PAYLOAD_FILE", file),
        None => process.stdin(bytes),
    };
    if let Some(directory) = directory {
        process = process.directory(directory);
    }
    if let Some(timeout) = timeout {
        process = process.limit(*timeout);
    }
    process
}

#[async_trait]
impl Handler for CommandExecutor {
    async fn handle(&self, context: Context) -> Outcome {
        let file = match self.target.payload {
            PayloadBy::Stdin => None,
            PayloadBy::File => match payload_file(context.bytes().to_vec()).await {
                Ok(file) => Some(file),
                Err(error) => {
                    let why = format!("failed to write the payload to a file: {error}");
                    return Outcome::Fail(HandlerError::new("PayloadFile", why));
                }
            },
        };
        let file = file.as_ref().map(NamedTempFile::path);
        let mut process = prepared(&self.target, variables(&context), context.bytes().to_vec(), file);
        if context.message().reply_to.is_some() {
            process = process
                .keep_stdout(OutputLimit { head: limits::PAYLOAD_BYTES_MAX, ..OutputLimit::default() });
        }
        let output = process.run(context.cancellation()).await;
        outcome(&self.target, context.message().reply_to.is_some(), &output)
    }
}

/// Puts the path of the payload file into an argument. The path may not be valid UTF-8, so the pieces are joined.
fn with_file(argument: &str, file: Option<&Path>) -> OsString {
    let Some(file) = file else { return argument.into() };
    let mut whole = OsString::new();
    for (n, piece) in argument.split(PAYLOAD_FILE).enumerate() {
        if n > 0 {
            whole.push(file);
        }
        whole.push(piece);
    }
    whole
}

/// Writes the payload to a file that only this user can read. It is removed when it is dropped.
pub(super) async fn payload_file(bytes: Vec<u8>) -> io::Result<NamedTempFile> {
    let written = tokio::task::spawn_blocking(move || {
        let mut file = NamedTempFile::with_prefix("redrive-")?;
        file.write_all(&bytes)?;
        file.flush()?;
        Ok(file)
    });
    written.await.map_err(io::Error::other)?
}

fn variables(context: &Context) -> Vec<(String, String)> {
    let mut all = message_variables(context.message());
    all.push(("REDRIVE_ATTEMPT".to_owned(), context.attempt().to_string()));
    all
}

/// The environment variables that describe a message.
pub(super) fn message_variables(message: &Envelope) -> Vec<(String, String)> {
    let Envelope { id, queue, kind, payload, headers, key, ordering_key, reply_to, trace, .. } = message;
    let mut all: Vec<(String, String)> = [
        ("REDRIVE_ID", id.to_string()),
        ("REDRIVE_QUEUE", queue.to_string()),
        ("REDRIVE_KIND", kind.clone()),
        ("REDRIVE_PRIORITY", message.priority.to_string()),
        ("REDRIVE_CONTENT_TYPE", payload.content_type.clone()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let optional = [
        ("REDRIVE_MAX_ATTEMPTS", message.max_attempts.map(|most| most.to_string())),
        ("REDRIVE_KEY", key.clone()),
        ("REDRIVE_ORDERING_KEY", ordering_key.clone()),
        ("REDRIVE_REPLY_TO", reply_to.as_ref().map(ToString::to_string)),
        ("REDRIVE_TRACE", trace.clone()),
        ("TRACEPARENT", trace.clone()),
    ];
    all.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    all.extend(
        headers.iter().map(|(name, value)| (format!("REDRIVE_HEADER_{}", variable(name)), value.clone())),
    );
    all
}

/// Converts the name of a header: `x-team` becomes `X_TEAM`.
fn variable(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

/// Decides the outcome of the message by how the command ended.
fn outcome(target: &CommandTarget, wants_reply: bool, output: &ProcessOutput) -> Outcome {
    let printed = error_line(output);
    let or = |otherwise: String| if printed.is_empty() { otherwise } else { printed.clone() };
    let error = match &output.ended {
        ProcessEnd::Exited(0) if wants_reply => {
            return match output.stdout.whole() {
                Some(bytes) => Outcome::Reply(reply(bytes)),
                None => Outcome::DeadLetter(too_large(output)),
            };
        }
        ProcessEnd::Exited(0) => return Outcome::Done,
        ProcessEnd::Cancelled => return Outcome::Release,
        ProcessEnd::Exited(code @ EXIT_LATER) => {
            HandlerError::new("RetryLater", or("the command asks for another attempt later".into()))
                .code(code)
        }
        ProcessEnd::Exited(code @ EXIT_DEAD_LETTER) => {
            let why = or("the command says that this message cannot be done".into());
            HandlerError::new("Rejected", why).code(code).permanent()
        }
        ProcessEnd::Exited(code) => {
            HandlerError::new("CommandFailed", or(format!("the command ended with exit code {code}")))
                .code(code)
        }
        ProcessEnd::Signalled(signal) => {
            let name = signal_name(*signal);
            let mut error =
                HandlerError::new("CommandKilled", format!("the command was killed by {name}")).code(name);
            error.report_mut().crashed = true;
            error
        }
        ProcessEnd::TimedOut => {
            let limit = target.timeout.unwrap_or(output.duration);
            HandlerError::new("Timeout", format!("the command did not end within {limit}"))
        }
        ProcessEnd::NotStarted(NotStarted { kind, why }) => match kind {
            NotStartedKind::NotFound | NotStartedKind::NotAllowed => {
                HandlerError::new("CommandNotFound", why)
            }
            NotStartedKind::Other => HandlerError::new("CommandNotStarted", why),
        },
    };
    let mut error = with_report(error, output);
    if let Some(traceback) = traceback(output) {
        traceback.apply_to(&mut error.report_mut().error);
    }
    if error.report().permanent { Outcome::DeadLetter(error) } else { Outcome::Fail(error) }
}

/// The traceback that explains the failure. A command that asked for another attempt, or that was stopped by the
/// executor, did not fail because of a traceback it may have printed.
fn traceback(output: &ProcessOutput) -> Option<Traceback> {
    match output.ended {
        ProcessEnd::Exited(0 | EXIT_LATER)
        | ProcessEnd::Cancelled
        | ProcessEnd::TimedOut
        | ProcessEnd::NotStarted(_) => None,
        ProcessEnd::Exited(_) | ProcessEnd::Signalled(_) => output.stderr.traceback(),
    }
}

fn too_large(output: &ProcessOutput) -> HandlerError {
    let why = format!(
        "the command printed a reply of {} bytes; at most {} are allowed. The work was done, its answer is lost",
        output.stdout.total(),
        limits::PAYLOAD_BYTES_MAX
    );
    with_report(HandlerError::new("ReplyTooLarge", why), output)
}

fn with_report(mut error: HandlerError, output: &ProcessOutput) -> HandlerError {
    let report = error.report_mut();
    report.step = Some("command".into());
    report.duration = Some(output.duration);
    report.cpu = output.cpu;
    report.memory = output.memory;
    for (name, stream) in [("stderr", &output.stderr), ("stdout", &output.stdout)] {
        let text = stream.last_lines(usize::MAX, ARTIFACT_BYTES);
        if !text.is_empty() {
            report.artifacts.push(format!("{name}, {} bytes:\n{text}", stream.total()));
        }
    }
    error
}

/// The last line of standard error, or of standard output if that is empty. Most languages print the error itself on
/// the last line.
pub(super) fn error_line(output: &ProcessOutput) -> String {
    let line = output.stderr.last_lines(1, MESSAGE_BYTES);
    if line.is_empty() { output.stdout.last_lines(1, MESSAGE_BYTES) } else { line }
}

/// The output of the command as a payload: JSON if it is valid JSON, otherwise text or bytes.
fn reply(bytes: Vec<u8>) -> Payload {
    let content_type = if serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok() {
        "application/json"
    } else if std::str::from_utf8(&bytes).is_ok() {
        "text/plain; charset=utf-8"
    } else {
        "application/octet-stream"
    };
    Payload { bytes, content_type: content_type.into() }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        _ => return format!("signal {signal}"),
    };
    name.into()
}
