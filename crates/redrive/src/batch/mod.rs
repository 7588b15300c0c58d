//! Batch runs: a command per item, N at a time, with durable retries, a drawer for what fails and resume after a
//! crash. `redrive run job.yaml` is a thin shell around [`Batch`].
//!
//! Items are messages in the queue `run.JOB`; the results of those that are done are replies in `run.JOB.results`,
//! which nobody leases: what is there is done for ever and is never run again. Retries are the store's, by the
//! queue's policy, which is made from the job. How far a run is, and who runs it, stands in the store too. See
//! `docs/batch.md` for the job file and `docs/adr/0019-a-run-is-messages-and-replies.md` for why.

mod after;
mod error;
mod git;
mod input;
mod item;
mod ledger;
mod mapping;
mod path;
mod plan;
mod prune;
mod read;
mod reduce;
mod run;
mod script;
mod select;
mod spec;
mod state;
mod steps;
mod template;
mod yaml;

pub use error::BatchError;
pub use ledger::FailureGroup;
pub use plan::{DryRun, DryRunItem};
pub use prune::PrunedTree;
pub use run::{Batch, BatchHandle, BatchProgress, BatchSummary, Begin};
pub use spec::Job;
pub use yaml::Problem;

use redrive_core::time::Span;

/// How long an item's lease lasts without a sign of life. After a crash nobody works on the items that were being
/// worked on for this long.
const LEASE: Span = Span::from_secs(15);
