//! Ends operations that code began and did not live to end. Those of people are left alone: whoever pressed
//! Ctrl-C may have meant it, and is told how to go on.

use super::{Chore, Done};
use crate::pace::ask;
use crate::replay::SOURCE;
use async_trait::async_trait;
use redrive_core::error::Error;
use redrive_core::ids::OperationId;
use redrive_core::operation::{Operation, Stage};
use redrive_core::query::PageRequest;
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// How far an operation was when it was last seen.
type Standing = (u64, u64, u64);

/// Goes on with operations of the library that stood still from one look to the next. A step is one commit and
/// takes the members that wait, so going on beside somebody who is only slow does nothing twice.
#[derive(Debug)]
pub struct ResumeOperations {
    every: Span,
    seen: Mutex<BTreeMap<OperationId, Standing>>,
}

impl Default for ResumeOperations {
    /// Looks every minute.
    fn default() -> Self {
        Self::every(Span::from_secs(60))
    }
}

impl ResumeOperations {
    /// Looks this often; what moved since the last look is left to whoever moves it.
    #[must_use]
    pub fn every(every: Span) -> Self {
        Self { every, seen: Mutex::default() }
    }

    /// Remembers where the operations are, and names those that have not moved.
    fn still(&self, operations: &[Operation]) -> Vec<OperationId> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *seen);
        let mut still = Vec::new();
        for operation in operations {
            let standing = (operation.frozen_to, operation.members, operation.succeeded + operation.skipped);
            if before.get(&operation.id) == Some(&standing) {
                still.push(operation.id);
            }
            seen.insert(operation.id, standing);
        }
        still
    }
}

/// Operations that are looked at: the latest; older ones that still run were seen when they were young.
const LATEST: usize = 200;

fn is_ours(operation: &Operation) -> bool {
    operation.actor.source == SOURCE && matches!(operation.stage, Stage::Freezing | Stage::Running)
}

#[async_trait]
impl Chore for ResumeOperations {
    fn name(&self) -> &'static str {
        "resume operations"
    }

    fn every(&self) -> Span {
        self.every
    }

    async fn pass(&self, store: &dyn Store) -> Result<Done, Error> {
        let mut latest = ask(store.operations(PageRequest::first(LATEST))).await?.items;
        latest.retain(is_ours);
        let mut did = 0;
        for id in self.still(&latest) {
            tracing::info!(operation = %id, "going on with an operation that nobody moves");
            loop {
                did += 1;
                if !is_ours(&ask(store.step(id)).await?) {
                    break;
                }
            }
        }
        Ok(Done { did, more: false })
    }
}
