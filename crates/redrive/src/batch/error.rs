//! Errors that keep a run from starting or continuing. A failed item is no such error: it becomes a dead letter.

use super::yaml::Problem;
use redrive_core::error::{CallError, Refusal, StoreError};
use redrive_core::time::Time;
use std::path::Path;
use thiserror::Error as ThisError;

/// Why a run could not start or continue.
#[derive(Debug, ThisError)]
pub enum BatchError {
    /// The job file is invalid. Holds every problem with its line.
    #[error("{}", listed(.0))]
    Job(Vec<Problem>),
    /// The input cannot be read, or does not fit the job.
    #[error("{0}")]
    Input(String),
    /// Another process runs this job.
    #[error("job {job} is being run by {holder} since {since}; wait for it, or stop it first")]
    Busy {
        /// The job.
        job: String,
        /// The user, host and process that run it.
        holder: String,
        /// When they started.
        since: Time,
    },
    /// The job or its input changed since the run started.
    #[error(
        "{what} changed since the run of job {job} began; --restart begins anew and forgets its results, --accept-changes goes on with what is new and keeps what is done"
    )]
    Changed {
        /// The job.
        job: String,
        /// What changed: the job file, the input, or both.
        what: &'static str,
    },
    /// There is no run to resume.
    #[error("there is no run of job {0} to go on with; leave --resume out to begin one")]
    NothingToResume(String),
    /// A step of setup or reduce failed.
    #[error("{stage} failed in step {step:?}: {why}")]
    Stage {
        /// `setup` or `reduce`.
        stage: &'static str,
        /// The name of the step.
        step: String,
        /// What went wrong.
        why: String,
    },
    /// Git cannot be used as the job requires.
    #[error("{0}")]
    Git(String),
    /// Another process took over the run while this one was suspended.
    #[error(
        "job {0} was taken over by another process while this one was stopped; nothing is lost, let that one go on"
    )]
    TakenOver(String),
    /// The store refused a call or failed.
    #[error(transparent)]
    Store(#[from] CallError),
}

fn listed(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

impl BatchError {
    pub(super) fn io(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        Self::Input(format!("failed to {doing} {}: {error}", path.display()))
    }
}

impl From<Refusal> for BatchError {
    fn from(refusal: Refusal) -> Self {
        Self::Store(refusal.into())
    }
}

impl From<StoreError> for BatchError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.into())
    }
}
