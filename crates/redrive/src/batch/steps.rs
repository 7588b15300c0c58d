//! Running the steps of an item, of setup and of reduce, and saying what went wrong in the words of a failure.
//! Each step is a process; nothing here retries or settles.

use super::spec::{Command, Job, Step};
use super::template::Values;
use crate::executor::output::OutputLimit;
use crate::executor::process::{NotStartedKind, Process, ProcessEnd, ProcessOutput};
use redrive_core::failure::{ErrorInfo, FailureReport};
use redrive_core::limits;
use redrive_core::time::Span;
use std::path::{Path, PathBuf};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The types of failures a run has of its own; what a handler may fail with in general comes on top.
pub(super) mod kinds {
    pub(in super::super) const TIMEOUT: &str = "Timeout";
    pub(in super::super) const COMMAND_FAILED: &str = "CommandFailed";
    pub(in super::super) const VALIDATION_FAILED: &str = "ValidationFailed";
    pub(in super::super) const RESOURCE_EXHAUSTED: &str = "ResourceExhausted";
    pub(in super::super) const TEMPLATE_ERROR: &str = "TemplateError";
    pub(in super::super) const WORKTREE_ERROR: &str = "WorktreeError";
    pub(in super::super) const MERGE_CONFLICT: &str = "MergeConflict";
    pub(in super::super) const COMMIT_MISSING: &str = "CommitMissing";
}

/// What the processes of a stage have in common.
pub(super) struct Stage<'a> {
    pub(super) job: &'a Job,
    pub(super) directory: &'a Path,
    pub(super) values: Values<'a>,
    /// When the stage began and how long it may take.
    pub(super) started: Instant,
    pub(super) limit: Option<Span>,
    pub(super) cancel: &'a CancellationToken,
}

/// What the steps of a stage printed.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Standard output of the last step that does not validate.
    pub(super) stdout: Vec<u8>,
    /// Everything, for the log.
    pub(super) log: String,
    pub(super) cpu: f64,
    pub(super) memory: Option<u64>,
}

/// How a step failed.
#[derive(Debug)]
pub(super) enum StepError {
    /// It did.
    Failed(Box<FailureReport>),
    /// It was told to stop before it was done.
    Stopped,
}

/// Environment of every step.
fn process(stage: &Stage<'_>, argv: Process) -> Process {
    let mut process = argv.directory(stage.directory).env("REDRIVE_JOB", stage.job.name());
    for (name, value) in &stage.job.env {
        process = process.env(name, value);
    }
    for name in ["index", "attempt"] {
        if let Some(value) = stage.values.named.get(name) {
            process = process.env(format!("REDRIVE_{}", name.to_uppercase()), value);
        }
    }
    process
}

/// The process of a command with its values.
pub(super) fn prepare(command: &Command, values: &Values<'_>) -> Result<Process, String> {
    Ok(match command {
        Command::Shell(template) => Process::shell(template.fill(values)?),
        Command::Argv(words) => {
            let words: Result<Vec<String>, String> = words.iter().map(|word| word.fill(values)).collect();
            Process::argv(words?)
        }
    })
}

/// A command with its values, for people.
pub(super) fn show(command: &Command, values: &Values<'_>) -> Result<String, String> {
    match command {
        Command::Shell(template) => template.fill(values),
        Command::Argv(words) => {
            let words: Result<Vec<String>, String> = words.iter().map(|word| word.fill(values)).collect();
            Ok(words?.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" "))
        }
    }
}

impl Stage<'_> {
    /// Runs one step and adds what it printed to the output.
    pub(super) async fn run(&self, step: &Step, output: &mut Output) -> Result<(), StepError> {
        let broken = |what: String| fail(step, kinds::TEMPLATE_ERROR, what, None, true);
        let mut process = process(self, prepare(&step.command, &self.values).map_err(broken)?);
        if let Some(stdin) = &step.stdin {
            process = process.stdin(stdin.fill(&self.values).map_err(broken)?);
        }
        let left = self.limit.map(|limit| limit.to_std().saturating_sub(self.started.elapsed()));
        let left = left.map(|left| Span::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)));
        if left == Some(Span::ZERO) {
            let limit = self.limit.unwrap_or(Span::ZERO);
            return Err(fail(
                step,
                kinds::TIMEOUT,
                format!("the steps did not end within {limit}"),
                None,
                false,
            ));
        }
        let whole_limit = left.is_some_and(|left| step.timeout.is_none_or(|own| left < own));
        if let Some(limit) = if whole_limit { left } else { step.timeout } {
            process = process.limit(limit);
        }
        let keep =
            OutputLimit { head: limits::RUN_OUTPUT_BYTES_MAX / 2, tail: limits::RUN_OUTPUT_BYTES_MAX / 2 };
        let done = process.keep_stdout(keep).run(self.cancel).await;
        output.cpu += done.cpu.unwrap_or(0.0);
        output.memory = output.memory.max(done.memory);
        output.log.push_str(&log_of(step, &done));
        let said = if whole_limit { self.limit } else { step.timeout };
        judge(step, &done, said)?;
        if !step.validates {
            output.stdout = done.stdout.kept();
        }
        Ok(())
    }
}

/// Lines of a log that say which step printed what.
fn log_of(step: &Step, done: &ProcessOutput) -> String {
    let mut log = format!("== {} {} after {}\n", step.name, done.ended, done.duration);
    for (stream, text) in [("stdout", done.stdout.text()), ("stderr", done.stderr.text())] {
        if !text.is_empty() {
            log.push_str(&format!("-- {stream}\n{text}"));
            if !text.ends_with('\n') {
                log.push('\n');
            }
        }
    }
    log
}

/// What the end of a process means.
fn judge(step: &Step, done: &ProcessOutput, limit: Option<Span>) -> Result<(), StepError> {
    let stderr = done.stderr.last_lines(3, 1_000);
    let complaint = if stderr.is_empty() { done.stdout.last_lines(1, 400) } else { stderr };
    let with = |what: String| if complaint.is_empty() { what } else { format!("{what}: {complaint}") };
    let failed = if step.validates { kinds::VALIDATION_FAILED } else { kinds::COMMAND_FAILED };
    let error = match &done.ended {
        ProcessEnd::Exited(0) => return Ok(()),
        ProcessEnd::Cancelled => StepError::Stopped,
        ProcessEnd::Exited(code) => {
            let kind = if is_exhausted(&complaint) { kinds::RESOURCE_EXHAUSTED } else { failed };
            fail(step, kind, with(format!("exit code {code}")), Some(code.to_string()), false)
        }
        ProcessEnd::Signalled(9) => {
            let what = with("killed by signal 9, as systems do that run out of memory".into());
            fail(step, kinds::RESOURCE_EXHAUSTED, what, Some("SIGKILL".into()), false)
        }
        ProcessEnd::Signalled(signal) => {
            let code = Some(format!("signal {signal}"));
            fail(step, failed, with(format!("ended by signal {signal}")), code, false)
        }
        ProcessEnd::TimedOut => {
            let limit = limit.unwrap_or(done.duration);
            fail(step, kinds::TIMEOUT, with(format!("did not end within {limit}")), None, false)
        }
        ProcessEnd::NotStarted(not) => {
            let kind = match not.kind {
                NotStartedKind::NotFound | NotStartedKind::NotAllowed => failed,
                NotStartedKind::Other => kinds::RESOURCE_EXHAUSTED,
            };
            fail(step, kind, format!("could not be started: {}", not.why), None, false)
        }
    };
    Err(described(error, done))
}

/// A command that failed with a traceback failed in its own words.
fn described(error: StepError, done: &ProcessOutput) -> StepError {
    let StepError::Failed(mut report) = error else { return error };
    if report.error.error_type == kinds::COMMAND_FAILED
        && let Some(traceback) = done.stderr.traceback()
    {
        traceback.apply_to(&mut report.error);
    }
    StepError::Failed(report)
}

/// Whether a program says that something ran out.
fn is_exhausted(complaint: &str) -> bool {
    let text = complaint.to_lowercase();
    ["no space left on device", "cannot allocate memory", "out of memory", "disk quota exceeded"]
        .iter()
        .any(|words| text.contains(words))
}

/// The failure of a step.
pub(super) fn fail(
    step: &Step,
    kind: &str,
    what: String,
    code: Option<String>,
    permanent: bool,
) -> StepError {
    StepError::Failed(Box::new(FailureReport {
        error: ErrorInfo { error_type: kind.to_owned(), message: what, code, ..ErrorInfo::default() },
        step: Some(step.name.clone()),
        permanent,
        ..FailureReport::default()
    }))
}

/// Writes what an attempt printed beside the data, and says where. A log that cannot be written is not worth
/// failing for.
pub(super) async fn write_log(directory: &Path, name: String, log: String) -> Option<PathBuf> {
    let path = directory.join("logs").join(name);
    let written = tokio::task::spawn_blocking(move || {
        std::fs::create_dir_all(path.parent()?).ok()?;
        std::fs::write(&path, log).ok()?;
        Some(path)
    });
    written.await.ok().flatten()
}
