//! Why a run did not begin or could not go on. A failed item is not one of these: it is counted, kept and shown.

use super::yaml::Problem;
use redrive_core::error::{Error, Refusal, StoreError};
use redrive_core::time::Time;
use std::path::Path;
use thiserror::Error as ThisError;

/// Why a run did not begin or could not go on.
#[derive(Debug, ThisError)]
pub enum BatchError {
    /// The job file is wrong; everything that is, by line.
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
        /// Who: user, host and process.
        holder: String,
        /// Since when.
        since: Time,
    },
    /// The job or its input is not what it was when the run began.
    #[error(
        "{what} changed since the run of job {job} began; --restart begins anew and forgets its results, --accept-changes goes on with what is new and keeps what is done"
    )]
    Changed {
        /// The job.
        job: String,
        /// The job file, the input, or both.
        what: &'static str,
    },
    /// A run was asked to go on, and there is none.
    #[error("there is no run of job {0} to go on with; leave --resume out to begin one")]
    NothingToResume(String),
    /// A step of setup or reduce failed.
    #[error("{stage} failed in step {step:?}: {why}")]
    Stage {
        /// setup or reduce.
        stage: &'static str,
        /// Which step.
        step: String,
        /// What went wrong.
        why: String,
    },
    /// Git cannot be used as the job asks.
    #[error("{0}")]
    Git(String),
    /// The run was taken over while this process was not looking.
    #[error(
        "job {0} was taken over by another process while this one was stopped; nothing is lost, let that one go on"
    )]
    TakenOver(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] Error),
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
