//! Extends the leases of deliveries that are not settled yet, after a third of their length, in one call for all of
//! them. A lease that is lost is given up: the store delivers the message to another worker.

use super::dispatcher::{CallResult, Dispatcher, RETRY_PAUSE};
use super::messages::Stage;
use super::settle_loop::add;
use redrive_core::error::CallError;
use redrive_core::limits;
use redrive_core::store::{BatchResults, Settle, Settled, Settlement};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The shortest time between two writes of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

impl Dispatcher {
    pub(super) fn on_progress_reported(&mut self) {
        self.progress_due = Some(self.progress_saved_at + PROGRESS_EVERY);
    }

    /// Extends the leases that are due and saves the progress that handlers have reported, in one call.
    pub(super) fn extend_leases(&mut self) {
        let now = Instant::now();
        let progress_due = self.progress_due.is_some_and(|at| at <= now);
        if self.in_flight.extending || !(progress_due || self.next_extension.is_some_and(|at| at <= now)) {
            return;
        }
        let mut batch = Vec::new();
        self.next_extension = None;
        for held in self.held.values_mut().filter(|held| held.needs_extending()) {
            let report = match &held.stage {
                Stage::Running(running) if progress_due => running.progress_slot.take(),
                Stage::Running(_) | Stage::Waiting | Stage::Parked | Stage::Settling => None,
            };
            if let Some(progress) = report {
                batch.push(Settlement { token: held.token, what: Settle::Progress { progress } });
            }
            // Leases that are nearly due are extended in the same call.
            if held.extend_at <= now + held.lease_for.to_std() / 12 {
                let by = Some(held.lease_for);
                batch.push(Settlement { token: held.token, what: Settle::Extend { by } });
                held.extend_at = now + held.lease_for.to_std() / 3;
            }
            self.next_extension =
                Some(self.next_extension.map_or(held.extend_at, |at| at.min(held.extend_at)));
        }
        if progress_due {
            self.progress_due = None;
            self.progress_saved_at = now;
        }
        if batch.is_empty() {
            return;
        }
        self.in_flight.extending = true;
        let store = Arc::clone(&self.config.store);
        self.store_calls.spawn(async move {
            let result = store.settle(batch.clone()).await;
            CallResult::Extended { batch, requested_at: now, result }
        });
    }

    pub(super) fn on_extended(
        &mut self,
        batch: &[Settlement],
        requested_at: Instant,
        result: Result<BatchResults<Settled>, CallError>,
    ) {
        let results = match result {
            Ok(results) => results,
            Err(error) => {
                let soon = Instant::now() + RETRY_PAUSE.0 * 4;
                for settlement in batch {
                    if let Some(held) = self.held.get_mut(&settlement.token) {
                        held.extend_at = soon;
                    }
                }
                self.next_extension = Some(soon);
                return self.on_store_error("extend", error);
            }
        };
        for (settlement, result) in batch.iter().zip(results) {
            let token = settlement.token;
            let Some(held) = self.held.get_mut(&token) else { continue };
            match result {
                Ok(_) if matches!(settlement.what, Settle::Extend { .. }) => held.extended(requested_at),
                // Saving progress extends the lease by the queue's length, which may be shorter than `lease_for`.
                Ok(_) => {}
                Err(refusal) => {
                    tracing::warn!(message = %token.id, %refusal, "lease lost; the handler is cancelled");
                    // No more extensions. The store will refuse whatever the handler returns.
                    held.extend_at = requested_at + limits::LEASE_MAX.to_std();
                    match &held.stage {
                        Stage::Running(running) => {
                            running.cancel.cancel();
                            self.lost_running.insert(token.id);
                        }
                        Stage::Settling => {}
                        Stage::Waiting | Stage::Parked => {
                            self.held.remove(&token);
                            self.parked.retain(|parked| parked.token != token);
                            add(&self.counters().lost, 1);
                        }
                    }
                }
            }
        }
    }
}
