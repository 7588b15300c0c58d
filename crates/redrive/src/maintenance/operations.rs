//! Continues operations that nobody drives any more: a redrive at a rate can take hours, and the process that started
//! it may have ended. An operation that a person paused stays paused.

use super::{Chore, PassReport};
use crate::waiting::with_timeout;
use async_trait::async_trait;
use redrive_core::error::CallError;
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

/// How far an operation was driven when it was last seen: its stage and the counters that only a step changes. Messages
/// that workers settle do not count as driving.
type DrivenPosition = (Stage, u64, u64, u64);

/// Drives operations that made no progress between two passes. A step is one commit that takes waiting members and
/// keeps to the recorded rate, so driving an operation together with a slow process does nothing twice.
#[derive(Debug)]
pub struct ResumeOperations {
    every: Span,
    seen: Mutex<BTreeMap<OperationId, DrivenPosition>>,
    /// Whether every operation was listed once.
    listed_all: AtomicBool,
}

impl Default for ResumeOperations {
    /// Runs every two seconds, so a redrive whose process ended waits about that long.
    fn default() -> Self {
        Self::every(Span::from_secs(2))
    }
}

impl ResumeOperations {
    /// Runs this often. An operation that moved since the last pass is left to the process that drives it.
    #[must_use]
    pub fn every(every: Span) -> Self {
        Self { every, seen: Mutex::default(), listed_all: AtomicBool::new(false) }
    }

    /// Remembers how far the operations were driven, and returns those that have not moved since the last pass.
    fn stalled(&self, operations: &[Operation]) -> Vec<OperationId> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *seen);
        let mut stalled = Vec::new();
        for operation in operations {
            if before.get(&operation.id) == Some(&driven_position(operation)) {
                stalled.push(operation.id);
            }
            seen.insert(operation.id, driven_position(operation));
        }
        stalled
    }

    /// Every operation that needs steps: among the latest, and among those that were moving at the last pass. The first
    /// pass lists all operations.
    async fn moving(&self, store: &dyn Store) -> Result<Vec<Operation>, CallError> {
        let known: BTreeSet<OperationId> =
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
        let mut page = with_timeout(store.operations(PageRequest::first(PAGE))).await?;
        let mut found = page.items;
        if !self.listed_all.swap(true, Ordering::Relaxed) {
            while let Some(cursor) = page.next.take() {
                page =
                    with_timeout(store.operations(PageRequest { limit: Some(PAGE), cursor: Some(cursor) }))
                        .await?;
                found.append(&mut page.items);
            }
        }
        let listed: BTreeSet<OperationId> = found.iter().map(|operation| operation.id).collect();
        for id in known.difference(&listed) {
            found.push(with_timeout(store.operation(*id)).await?);
        }
        found.retain(|operation| operation.stage.is_moving());
        Ok(found)
    }

    fn remember(&self, operation: &Operation) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(operation.id, driven_position(operation));
    }
}

fn driven_position(operation: &Operation) -> DrivenPosition {
    (operation.stage, operation.frozen_to, operation.undone_to, operation.outcomes.waiting)
}

/// Operations per page.
const PAGE: usize = 200;
/// How long one pass drives operations before it lists them again.
const PASS_LENGTH: Duration = Duration::from_secs(1);

#[async_trait]
impl Chore for ResumeOperations {
    fn name(&self) -> &'static str {
        "resume operations"
    }

    fn every(&self) -> Span {
        self.every
    }

    async fn pass(&self, store: &dyn Store) -> Result<PassReport, CallError> {
        let operations = self.moving(store).await?;
        let mut stalled = self.stalled(&operations);
        let (end, mut changed) = (Instant::now() + PASS_LENGTH, 0);
        while !stalled.is_empty() && Instant::now() < end {
            let mut wait = PASS_LENGTH;
            let mut moving = Vec::new();
            for id in stalled {
                let operation = with_timeout(store.step(id)).await?;
                changed += 1;
                self.remember(&operation);
                if operation.stage.is_moving() {
                    wait = wait.min(operation.next_in.map_or(PASS_LENGTH, Span::to_std));
                    moving.push(id);
                }
            }
            stalled = moving;
            if !stalled.is_empty() {
                tokio::time::sleep_until(end.min(Instant::now() + wait)).await;
            }
        }
        Ok(PassReport { changed, more: !stalled.is_empty() })
    }
}
