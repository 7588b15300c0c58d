//! Goes on with operations that nobody moves: whoever began one may be gone, and a redrive at a rate takes hours.
//! What a person paused stays paused; whoever wants one to stop says so.

use super::{Chore, Done};
use crate::pace::ask;
use async_trait::async_trait;
use redrive_core::error::Error;
use redrive_core::ids::OperationId;
use redrive_core::operation::{Operation, Stage};
use redrive_core::query::PageRequest;
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How far an operation was driven when it was last seen. What workers settle meanwhile is nobody driving it.
type Standing = (Stage, u64, u64, u64);

/// Drives operations that stood still from one look to the next. A step is one commit, takes the members that wait
/// and keeps to the rate that is on record, so going on beside somebody who is only slow does nothing twice.
#[derive(Debug)]
pub struct ResumeOperations {
    every: Span,
    seen: Mutex<BTreeMap<OperationId, Standing>>,
    /// Whether all there are were looked at once.
    looked: AtomicBool,
}

impl Default for ResumeOperations {
    /// Looks every two seconds: that is how long a redrive stands still when its driver is gone.
    fn default() -> Self {
        Self::every(Span::from_secs(2))
    }
}

impl ResumeOperations {
    /// Looks this often; what moved since the last look is left to whoever moves it.
    #[must_use]
    pub fn every(every: Span) -> Self {
        Self { every, seen: Mutex::default(), looked: AtomicBool::new(false) }
    }

    /// Remembers where the operations are, and names those that have not moved.
    fn still(&self, operations: &[Operation]) -> Vec<OperationId> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *seen);
        let mut still = Vec::new();
        for operation in operations {
            if before.get(&operation.id) == Some(&standing(operation)) {
                still.push(operation.id);
            }
            seen.insert(operation.id, standing(operation));
        }
        still
    }

    /// Every operation that somebody has to move: the latest, and those that were moving when they were last seen. The
    /// first look goes through all there are.
    async fn moving(&self, store: &dyn Store) -> Result<Vec<Operation>, Error> {
        let known: BTreeSet<OperationId> =
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
        let mut page = ask(store.operations(PageRequest::first(LATEST))).await?;
        let mut found = page.items;
        if !self.looked.swap(true, Ordering::Relaxed) {
            while let Some(cursor) = page.next.take() {
                page =
                    ask(store.operations(PageRequest { limit: Some(LATEST), cursor: Some(cursor) })).await?;
                found.append(&mut page.items);
            }
        }
        let young: BTreeSet<OperationId> = found.iter().map(|operation| operation.id).collect();
        for id in known.difference(&young) {
            found.push(ask(store.operation(*id)).await?);
        }
        found.retain(|operation| operation.stage.is_moving());
        Ok(found)
    }

    fn remember(&self, operation: &Operation) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(operation.id, standing(operation));
    }
}

fn standing(operation: &Operation) -> Standing {
    (operation.stage, operation.frozen_to, operation.undone_to, operation.outcomes.waiting)
}

/// Operations on one page of a look.
const LATEST: usize = 200;
/// How long one pass drives before it looks around again.
const TURN: Duration = Duration::from_secs(1);

#[async_trait]
impl Chore for ResumeOperations {
    fn name(&self) -> &'static str {
        "resume operations"
    }

    fn every(&self) -> Span {
        self.every
    }

    async fn pass(&self, store: &dyn Store) -> Result<Done, Error> {
        let latest = self.moving(store).await?;
        let mut still = self.still(&latest);
        let (end, mut did) = (Instant::now() + TURN, 0);
        while !still.is_empty() && Instant::now() < end {
            let mut nap = TURN;
            let mut going = Vec::new();
            for id in still {
                let operation = ask(store.step(id)).await?;
                did += 1;
                self.remember(&operation);
                if operation.stage.is_moving() {
                    nap = nap.min(operation.next_in.map_or(TURN, Span::to_std));
                    going.push(id);
                }
            }
            still = going;
            if !still.is_empty() {
                tokio::time::sleep_until(end.min(Instant::now() + nap)).await;
            }
        }
        Ok(Done { did, more: !still.is_empty() })
    }
}
