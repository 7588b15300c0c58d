//! Telling the store what came of deliveries: all that is waiting in one call, again until it is certain, and
//! only once each.

use super::dispatcher::{Answer, Dispatcher};
use super::stage::{Held, Stage};
use crate::pace::is_final;
use redrive_core::error::Error;
use redrive_core::failure::{Analysed, ErrorInfo};
use redrive_core::ids::LeaseToken;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::store::{Each, Settle, Settled, Settlement};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::time::Instant;

impl Dispatcher {
    /// What is to be settled, once: who has spoken already is not heard again.
    pub(super) fn say(&mut self, token: LeaseToken, what: Settle) {
        if let Some(held) = self.held.get_mut(&token)
            && held.beats()
        {
            // The next attempt should know how far this one came.
            if let Stage::Running(running) = &held.stage
                && !matches!(what, Settle::Ack | Settle::Reply { .. })
                && let Some(progress) = running.reported.take()
            {
                self.unsettled.push(Settlement { token, what: Settle::Progress { progress } });
            }
            held.stage = Stage::Settling;
            self.unsettled.push(Settlement { token, what });
        }
    }

    pub(super) fn give_back(&mut self, token: LeaseToken) {
        self.say(token, Settle::Release);
    }

    pub(super) fn flush_settlements(&mut self) {
        if self.calls.settling || self.unsettled.is_empty() || Instant::now() < self.settle_backoff.until {
            return;
        }
        self.calls.settling = true;
        let batch = cut_batch(&mut self.unsettled);
        let store = Arc::clone(&self.plan.store);
        self.answers.spawn(async move {
            let result = store.settle(batch.clone()).await;
            Answer::Settled { batch, result }
        });
    }

    pub(super) fn settled(&mut self, mut batch: Vec<Settlement>, result: Result<Each<Settled>, Error>) {
        let results = match result {
            Ok(results) => results,
            Err(error) => {
                // Whether it took effect is not known. Saying it again is harmless: a token works once.
                self.settle_backoff.failed();
                let now = Instant::now();
                batch.retain(|settlement| {
                    let token = settlement.token;
                    let hopeless = self.held.get(&token).is_none_or(|held| held.expires_at <= now);
                    if hopeless {
                        tracing::error!(message = %token.id, "lease ran out before the store could be told");
                        if self.held.remove(&token).is_some() {
                            add(&self.handle.tally.lost, 1);
                        }
                    }
                    !hopeless
                });
                batch.append(&mut self.unsettled);
                self.unsettled = batch;
                return self.store_failed("settle", error);
            }
        };
        self.settle_backoff.succeeded();
        self.handle.in_trouble(None);
        self.recount = true;
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
                    add(&self.tally().lost, 1);
                }
            }
        }
    }

    pub(super) fn count(&self, said: &Settle, settled: &Settled) {
        let tally = self.tally();
        tracing::debug!(message = %settled.id, state = %settled.state, "settled");
        match said {
            Settle::Ack | Settle::Reply { .. } => add(&tally.done, 1),
            Settle::Release => add(&tally.released, 1),
            Settle::Snooze { .. } => add(&tally.snoozed, 1),
            Settle::Extend { .. } | Settle::Progress { .. } => {}
            Settle::Fail { .. } => {
                add(&tally.failed, 1);
                let dead = settled.state == State::Dead;
                add(if dead { &tally.dead } else { &tally.retried }, 1);
            }
        }
    }

    /// The store could not. It is asked again, unless that can never help.
    pub(super) fn store_failed(&mut self, doing: &str, error: Error) {
        let hopeless = matches!(error, Error::Refused(_)) || is_final(&error);
        tracing::warn!(worker = %self.plan.name, doing, %error, hopeless, "store call failed");
        self.lease_backoff.failed();
        self.handle.in_trouble(Some(error.to_string()));
        if hopeless && self.failed.is_none() {
            self.failed = Some(error);
        }
    }
}

/// Says what failed, why, and what comes next. The text of the error went through masking before the store was told.
fn log_failure(held: &Held, failure: &Analysed, settled: &Settled) {
    let (queue, id, attempt) = (&held.queue, settled.id, held.attempt);
    let ErrorInfo { error_type, message: error, .. } = &failure.report.error;
    let category = failure.category;
    match settled.state {
        State::Dead => {
            let reason = settled.reason.map(tracing::field::display);
            let dlq = settled.dlq.as_ref().map(tracing::field::display);
            tracing::error!(
                %queue, %id, attempt, error_type, error, %category, reason, dlq,
                "delivery failed; the message is a dead letter"
            );
        }
        State::Scheduled | State::Ready => {
            let retry_at = settled.ready_at.map(tracing::field::display);
            tracing::warn!(
                %queue, %id, attempt, error_type, error, %category, retry_at,
                "delivery failed; it is tried again"
            );
        }
        State::Leased | State::Done | State::Cancelled | State::Expired | State::Purged => tracing::warn!(
            %queue, %id, attempt, error_type, error, %category, state = %settled.state,
            "delivery failed; the message is over"
        ),
    }
}

/// Takes as many settlements as one call may have.
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
    // One always fits: no payload is larger than a batch.
    unsettled.drain(..fits.max(1)).collect()
}

pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
