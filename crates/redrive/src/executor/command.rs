//! Runs a command per message and reads its verdict from the exit code: 0 done, 75 later, 65 dead letter, else
//! a failure. Whatever the command does, the message gets an outcome and nothing of the command stays behind.

use super::output::Keep;
use super::process::{Ended, Finished, NotStarted, NotStartedKind, Process};
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

/// The exit code of a command that wants to be run again later, as in `sysexits.h`: `EX_TEMPFAIL`.
pub const EXIT_LATER: i32 = 75;
/// The exit code of a command that will never be able to do this message: `EX_DATAERR`.
pub const EXIT_DEAD_LETTER: i32 = 65;
/// Bytes of the error message taken from what the command printed.
const MESSAGE_BYTES: usize = 2 * 1024;
/// Bytes of each stream that are kept with a failure; a note is not longer.
const ARTIFACT_BYTES: usize = limits::NOTE_BYTES_MAX - 64;
/// Stands for the payload's file in an argument.
const PAYLOAD_FILE: &str = "{payload_file}";

/// A [`Handler`] that runs a command per message.
///
/// The command is told about its message by variables: `REDRIVE_ID`, `REDRIVE_QUEUE`, `REDRIVE_KIND`,
/// `REDRIVE_ATTEMPT`, `REDRIVE_MAX_ATTEMPTS`, `REDRIVE_PRIORITY`, `REDRIVE_CONTENT_TYPE`, and where the message
/// has them `REDRIVE_KEY`, `REDRIVE_ORDERING_KEY`, `REDRIVE_REPLY_TO`, `REDRIVE_TRACE` (also as `TRACEPARENT`)
/// and `REDRIVE_HEADER_…` for each header. What it prints is the reply when the message wants one.
#[derive(Clone, Debug)]
pub struct CommandExecutor {
    target: CommandTarget,
}

impl CommandExecutor {
    /// An executor for this command.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for the setting that cannot be meant.
    pub fn new(target: CommandTarget) -> Result<Self, Refusal> {
        Target::Command(target.clone()).check()?;
        Ok(Self { target })
    }
}

/// The process of a command, told about its message by these variables and given these bytes, on standard input unless
/// they are in a file.
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
        // No variable can hold a NUL; a header that has one is left out rather than the message refused.
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
            process = process.keep_stdout(Keep { head: limits::PAYLOAD_BYTES_MAX, ..Keep::default() });
        }
        let finished = process.run(context.cancellation()).await;
        outcome(&self.target, context.message().reply_to.is_some(), &finished)
    }
}

/// The argument with the payload's file in it. The path may be any bytes, so pieces are put together.
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

/// A file only this user can read, gone when it is dropped.
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

/// What tells a command about a message.
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

/// A header's name as a variable: `x-team` is `X_TEAM`.
fn variable(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

/// What the way it ended says about the message.
fn outcome(target: &CommandTarget, wants_reply: bool, finished: &Finished) -> Outcome {
    let said = last_words(finished);
    let or = |else_: String| if said.is_empty() { else_ } else { said.clone() };
    let error = match &finished.ended {
        Ended::Exited(0) if wants_reply => {
            return match finished.stdout.whole() {
                Some(bytes) => Outcome::Reply(reply(bytes)),
                None => Outcome::DeadLetter(too_large(finished)),
            };
        }
        Ended::Exited(0) => return Outcome::Done,
        Ended::Cancelled => return Outcome::Release,
        Ended::Exited(code @ EXIT_LATER) => {
            HandlerError::new("RetryLater", or("the command asks for another attempt later".into()))
                .code(code)
        }
        Ended::Exited(code @ EXIT_DEAD_LETTER) => {
            let why = or("the command says that this message cannot be done".into());
            HandlerError::new("Rejected", why).code(code).permanent()
        }
        Ended::Exited(code) => {
            HandlerError::new("CommandFailed", or(format!("the command ended with exit code {code}")))
                .code(code)
        }
        Ended::Signalled(signal) => {
            let name = signal_name(*signal);
            let mut error =
                HandlerError::new("CommandKilled", format!("the command was killed by {name}")).code(name);
            error.report_mut().crashed = true;
            error
        }
        Ended::TimedOut => {
            let limit = target.timeout.unwrap_or(finished.duration);
            HandlerError::new("Timeout", format!("the command did not end within {limit}"))
        }
        Ended::NotStarted(NotStarted { kind, why }) => match kind {
            NotStartedKind::NotFound | NotStartedKind::NotAllowed => {
                HandlerError::new("CommandNotFound", why)
            }
            NotStartedKind::Other => HandlerError::new("CommandNotStarted", why),
        },
    };
    let mut error = with_report(error, finished);
    if let Some(traceback) = traceback(finished) {
        traceback.describe(&mut error.report_mut().error);
    }
    if error.report().permanent { Outcome::DeadLetter(error) } else { Outcome::Fail(error) }
}

/// What the command died of in its own words. One that asks for another attempt, or was ended by us, did not die of it.
fn traceback(finished: &Finished) -> Option<Traceback> {
    match finished.ended {
        Ended::Exited(0 | EXIT_LATER) | Ended::Cancelled | Ended::TimedOut | Ended::NotStarted(_) => None,
        Ended::Exited(_) | Ended::Signalled(_) => finished.stderr.traceback(),
    }
}

fn too_large(finished: &Finished) -> HandlerError {
    let why = format!(
        "the command printed a reply of {} bytes; at most {} are allowed. The work was done, its answer is lost",
        finished.stdout.total(),
        limits::PAYLOAD_BYTES_MAX
    );
    with_report(HandlerError::new("ReplyTooLarge", why), finished)
}

fn with_report(mut error: HandlerError, finished: &Finished) -> HandlerError {
    let report = error.report_mut();
    report.step = Some("command".into());
    report.duration = Some(finished.duration);
    report.cpu = finished.cpu;
    report.memory = finished.memory;
    for (name, stream) in [("stderr", &finished.stderr), ("stdout", &finished.stdout)] {
        let text = stream.last_lines(usize::MAX, ARTIFACT_BYTES);
        if !text.is_empty() {
            report.artifacts.push(format!("{name}, {} bytes:\n{text}", stream.total()));
        }
    }
    error
}

/// What the command complained about last; languages print the error itself on the last line.
pub(super) fn last_words(finished: &Finished) -> String {
    let said = finished.stderr.last_lines(1, MESSAGE_BYTES);
    if said.is_empty() { finished.stdout.last_lines(1, MESSAGE_BYTES) } else { said }
}

/// What the command printed, as a message: JSON if it is JSON, else text or bytes.
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
