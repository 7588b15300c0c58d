//! Keeping leases: those of running handlers are extended every third of their length, in one call for all,
//! and never shortened. A lease that is lost is not fought for: somebody else has the message.

use super::dispatcher::{Answer, Dispatcher, RETRY};
use super::stage::Stage;
use super::telling::add;
use redrive_core::error::Error;
use redrive_core::limits;
use redrive_core::store::{Each, Settle, Settled, Settlement};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Progress is written at most so often.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

impl Dispatcher {
    pub(super) fn progress_told(&mut self) {
        self.progress_due = Some(self.progress_kept + PROGRESS_EVERY);
    }

    /// Extends what is due, in one call, and writes what handlers have reported.
    pub(super) fn extend_leases(&mut self) {
        let now = Instant::now();
        let reporting = self.progress_due.is_some_and(|at| at <= now);
        if self.calls.beating || !(reporting || self.next_beat.is_some_and(|at| at <= now)) {
            return;
        }
        let mut batch = Vec::new();
        self.next_beat = None;
        for held in self.held.values_mut().filter(|held| held.beats()) {
            let report = match &held.stage {
                Stage::Running(running) if reporting => running.reported.take(),
                Stage::Running(_) | Stage::Waiting | Stage::Parked | Stage::Settling => None,
            };
            if let Some(progress) = report {
                batch.push(Settlement { token: held.token, what: Settle::Progress { progress } });
            }
            // Those that are nearly due come along.
            if held.beat_at <= now + held.lease_for.to_std() / 12 {
                let by = Some(held.lease_for);
                batch.push(Settlement { token: held.token, what: Settle::Extend { by } });
                held.beat_at = now + held.lease_for.to_std() / 3;
            }
            self.next_beat = Some(self.next_beat.map_or(held.beat_at, |at| at.min(held.beat_at)));
        }
        if reporting {
            self.progress_due = None;
            self.progress_kept = now;
        }
        if batch.is_empty() {
            return;
        }
        self.calls.beating = true;
        let store = Arc::clone(&self.plan.store);
        self.answers.spawn(async move {
            let result = store.settle(batch.clone()).await;
            Answer::Beaten { batch, asked_at: now, result }
        });
    }

    pub(super) fn extended(
        &mut self,
        batch: &[Settlement],
        asked_at: Instant,
        result: Result<Each<Settled>, Error>,
    ) {
        let results = match result {
            Ok(results) => results,
            Err(error) => {
                let soon = Instant::now() + RETRY.0 * 4;
                for settlement in batch {
                    if let Some(held) = self.held.get_mut(&settlement.token) {
                        held.beat_at = soon;
                    }
                }
                self.next_beat = Some(soon);
                return self.store_failed("extend", error);
            }
        };
        for (settlement, result) in batch.iter().zip(results) {
            let token = settlement.token;
            let Some(held) = self.held.get_mut(&token) else { continue };
            match result {
                Ok(_) if matches!(settlement.what, Settle::Extend { .. }) => held.extended(asked_at),
                // A report extends by the queue's lease, which may be shorter than ours.
                Ok(_) => {}
                Err(refusal) => {
                    tracing::warn!(message = %token.id, %refusal, "lease lost; the handler is told to stop");
                    // What its handler says in the end is refused by the store.
                    held.beat_at = asked_at + limits::LEASE_MAX.to_std();
                    match &held.stage {
                        Stage::Running(running) => {
                            running.cancel.cancel();
                            self.lost_running.insert(token.id);
                        }
                        Stage::Settling => {}
                        Stage::Waiting | Stage::Parked => {
                            self.held.remove(&token);
                            self.parked.retain(|parked| parked.token != token);
                            add(&self.tally().lost, 1);
                        }
                    }
                }
            }
        }
    }
}
