//! Calls that may fail, and are not forgotten when they do. A [`ResilientExecutor`] runs an operation under a
//! named [`Policy`] (attempts, backoff, time limit, breaker); what fails for good is kept as a dead letter with
//! everything needed to run it again, and the caller still gets its own error. A [`Processor`] runs kept
//! operations again, by kind. What is kept is found where all dead letters are: `store.letters(…)`,
//! `redrive dlq list`. Nothing here has a list of its own.

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
pub use failed::{Describe, Failed, Kept, Why};
pub use operation::{Operation, Repository, Task};
pub use outbox::State;
pub use policy::{OnOpen, Policy};
pub use processor::{OnSpent, Processed, Processor, ProcessorBuilder, Rules};
