//! Calls that are kept when they fail. A [`ResilientExecutor`] runs an operation under a named [`Policy`] (attempts,
//! backoff, time limit, breaker). An operation whose last attempt failed is captured: it is kept as a dead letter with
//! everything needed to run it again, and the caller still gets its own error. A [`Processor`] runs captured operations
//! again, by kind. Captured operations are found where all dead letters are: `store.letters(…)`, `redrive dlq list`.

mod attempt;
mod breakers;
mod executor;
mod failed;
mod operation;
mod outbox;
mod policy;
mod processor;
mod rerun;

pub use executor::{Builder, ResilientExecutor};
pub use failed::{CaptureStatus, Describe, Failed, FailureCause};
pub use operation::{Operation, Repository, Task};
pub use outbox::OutboxState;
pub use policy::{OnOpen, Policy};
pub use processor::{OnSpent, Processed, Processor, ProcessorBuilder, ProcessorLimits};
