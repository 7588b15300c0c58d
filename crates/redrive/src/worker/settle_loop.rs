//! Sends the settlements of deliveries to the store: all that are waiting in one call, repeated until the store has
//! confirmed them or the lease has expired. Each delivery is settled once.

use super::dispatcher::{CallResult, Dispatcher};
use super::messages::{HeldLease, Stage};
use crate::waiting::is_fatal;
use redrive_core::error::CallError;
use redrive_core::failure::{AnalysedFailure, ErrorInfo};
use redrive_core::ids::LeaseToken;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::store::{BatchResults, Settle, Settled, Settlement};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;

impl Dispatcher {
    /// Queues the settlement of a delivery. A second settlement of the same delivery is ignored.
    pub(super) fn queue_settlement(&mut self, token: LeaseToken, what: Settle) {
        if let Some(held) = self.held.get_mut(&token)
            && held.needs_extending()
        {
            // The next attempt should know how far this one got.
            if let Stage::Running(running) = &held.stage
                && !matches!(what, Settle::Ack | Settle::Reply { .. })
                && let Some(progress) = running.progress_slot.take()
            {
                self.unsettled.push(Settlement { token, what: Settle::Progress { progress } });
            }
            held.stage = Stage::Settling;
            self.unsettled.push(Settlement { token, what });
        }
    }

    /// Puts a message back into its queue without using up an attempt.
    pub(super) fn release(&mut self, token: LeaseToken) {
        self.queue_settlement(token, Settle::Release);
    }

    pub(super) fn flush_settlements(&mut self) {
        if self.in_flight.settling || self.unsettled.is_empty() || Instant::now() < self.settle_backoff.until
        {
            return;
        }
        self.in_flight.settling = true;
        let batch = cut_batch(&mut self.unsettled);
        let store = Arc::clone(&self.config.store);
        self.store_calls.spawn(async move {
            let result = store.settle(batch.clone()).await;
            CallResult::Settled { batch, result }
        });
    }

    pub(super) fn on_settled(
        &mut self,
        mut batch: Vec<Settlement>,
        result: Result<BatchResults<Settled>, CallError>,
    ) {
        let results = match result {
            Ok(results) => results,
            Err(error) => {
                // It is not known whether the call took effect. Repeating it is harmless: a token works once.
                self.settle_backoff.failed();
                let now = Instant::now();
                batch.retain(|settlement| {
                    let token = settlement.token;
                    let expired = self.held.get(&token).is_none_or(|held| held.expires_at <= now);
                    if expired {
                        tracing::error!(message = %token.id, "the lease expired before the delivery was settled");
                        if self.held.remove(&token).is_some() {
                            add(&self.handle.counters.lost, 1);
                        }
                    }
                    !expired
                });
                batch.append(&mut self.unsettled);
                self.unsettled = batch;
                return self.on_store_error("settle", error);
            }
        };
        self.settle_backoff.succeeded();
        self.handle.set_store_error(None);
        self.count_due = true;
        for (settlement, result) in batch.into_iter().zip(results) {
            if matches!(settlement.what, Settle::Progress { .. }) {
                continue;
            }
            let held = self.held.remove(&settlement.token);
            match result {
                Ok(settled) => {
                    self.count(&settlement.what, &settled);
                    if let (Some(held), Settle::Fail { failure, .. }) = (&held, &settlement.what) {
                        log_failure(held, failure, &settled);
                    }
                }
                Err(refusal) => {
                    tracing::warn!(message = %settlement.token.id, %refusal, "settlement refused");
                    add(&self.counters().lost, 1);
                }
            }
        }
    }

    fn count(&self, settle: &Settle, settled: &Settled) {
        let counters = self.counters();
        tracing::debug!(message = %settled.id, state = %settled.state, "settled");
        match settle {
            Settle::Ack | Settle::Reply { .. } => add(&counters.done, 1),
            Settle::Release => add(&counters.released, 1),
            Settle::Snooze { .. } => add(&counters.snoozed, 1),
            Settle::Extend { .. } | Settle::Progress { .. } => {}
            Settle::Fail { .. } => {
                add(&counters.failed, 1);
                let dead = settled.state == State::Dead;
                add(if dead { &counters.dead } else { &counters.retried }, 1);
            }
        }
    }

    /// A store call failed. The worker tries again later, or stops if no retry can succeed.
    pub(super) fn on_store_error(&mut self, call: &str, error: CallError) {
        let fatal = matches!(error, CallError::Refused(_)) || is_fatal(&error);
        tracing::warn!(worker = %self.config.name, call, %error, fatal, "store call failed");
        self.lease_backoff.failed();
        self.handle.set_store_error(Some(error.to_string()));
        if fatal && self.fatal_error.is_none() {
            self.fatal_error = Some(error);
        }
    }
}

/// Logs what failed, why, and what happens next. Secrets in the text of the error were masked by the failure analysis.
fn log_failure(held: &HeldLease, failure: &AnalysedFailure, settled: &Settled) {
    let (queue, id, attempt) = (&held.queue, settled.id, held.attempt);
    let ErrorInfo { error_type, message: error, .. } = &failure.report.error;
    let category = failure.category;
    let trace_id = held.trace_id.as_deref();
    match settled.state {
        State::Dead => {
            let reason = settled.reason.map(tracing::field::display);
            let dlq = settled.dlq.as_ref().map(tracing::field::display);
            tracing::error!(
                %queue, %id, trace_id, attempt, error_type, error, %category, reason, dlq,
                "delivery failed; the message is a dead letter"
            );
        }
        State::Scheduled | State::Ready => {
            let retry_at = settled.ready_at.map(tracing::field::display);
            tracing::warn!(
                %queue, %id, trace_id, attempt, error_type, error, %category, retry_at,
                "delivery failed; it will be tried again"
            );
        }
        State::Leased | State::Done | State::Cancelled | State::Expired | State::Purged => tracing::warn!(
            %queue, %id, trace_id, attempt, error_type, error, %category, state = %settled.state,
            "delivery failed; the message will not be tried again"
        ),
    }
}

/// Removes as many settlements from the front as one store call may carry.
fn cut_batch(unsettled: &mut Vec<Settlement>) -> Vec<Settlement> {
    let mut bytes = 0_usize;
    let fits = unsettled
        .iter()
        .take(limits::BATCH_ENTRIES_MAX)
        .take_while(|settlement| {
            if let Settle::Reply { payload } = &settlement.what {
                bytes = bytes.saturating_add(payload.bytes.len());
            }
            bytes <= limits::BATCH_BYTES_MAX
        })
        .count();
    if fits == unsettled.len() {
        return std::mem::take(unsettled);
    }
    // At least one always fits: no payload is larger than a batch.
    unsettled.drain(..fits.max(1)).collect()
}

pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
