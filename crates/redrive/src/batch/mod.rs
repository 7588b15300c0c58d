//! Batch runs: a command for each item, N at a time, with durable retries, a dead letter queue for failed items, and
//! resume after a crash. `redrive run job.yaml` is a thin shell around [`Batch`].
//!
//! Items are messages in the queue `run.JOB`. The results of finished items are replies in `run.JOB.results`, which
//! nobody leases: an item that has a result there is never run again. The store retries items by the policy of the
//! queue, which is made from the job. The state of a run, and which process runs it, are in the store too. See
//! `docs/batch.md` for the job file and `docs/adr/0019-a-run-is-messages-and-replies.md` for the reasons.

mod dead_items;
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
pub use run::{Batch, BatchHandle, BatchProgress, BatchSummary, StartMode};
pub use spec::Job;
pub use yaml::Problem;

use redrive_core::time::Span;

/// How long an item's lease lasts unless it is extended. After a crash, items that were running wait this long.
const LEASE: Span = Span::from_secs(15);
