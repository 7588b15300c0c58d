//! The types that the dispatcher and the executors exchange, and the dispatcher's record of each lease.

use crate::handler::{Handler, Outcome, ProgressSlot};
use redrive_core::ids::{LeaseToken, QueueName};
use redrive_core::message::Delivery;
use redrive_core::store::Settle;
use redrive_core::time::Span;
use redrive_core::trace::TraceParent;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// One delivery, ready to be executed.
pub(super) struct Execution {
    pub(super) delivery: Arc<Delivery>,
    /// `None` if no handler is registered for its kind.
    pub(super) handler: Option<Arc<dyn Handler>>,
    pub(super) timeout: Option<Span>,
    pub(super) cancel: CancellationToken,
    pub(super) progress_slot: Arc<ProgressSlot>,
    pub(super) limit_keys: LimitKeys,
}

/// The kind and key whose limits a delivery counts towards while its handler runs.
#[derive(Clone)]
pub(super) struct LimitKeys {
    pub(super) kind: String,
    pub(super) key: Option<String>,
}

/// The result of executing one delivery.
pub(super) struct ExecutionResult {
    pub(super) token: LeaseToken,
    pub(super) limit_keys: LimitKeys,
    pub(super) settle: Settle,
    /// The handler, if it was cancelled and still runs. It occupies its slot until it ends.
    pub(super) straggler: Option<AbortOnDropHandle<Outcome>>,
}

/// A lease that the worker holds.
pub(super) struct HeldLease {
    pub(super) token: LeaseToken,
    pub(super) queue: QueueName,
    pub(super) attempt: u32,
    /// The id of the trace that the message belongs to, for the log.
    pub(super) trace_id: Option<String>,
    /// The length of the lease. Each extension lasts as long.
    pub(super) lease_for: Span,
    /// When the lease has to be extended.
    pub(super) extend_at: Instant,
    /// When the lease expires unless it is extended.
    pub(super) expires_at: Instant,
    pub(super) stage: Stage,
}

/// The stage of a delivery inside the worker.
pub(super) enum Stage {
    /// Leased and in the hand-off queue.
    Waiting,
    /// Leased, but its kind or key is at its limit.
    Parked,
    /// Its handler runs.
    Running(RunningHandler),
    /// Its settlement is decided; the store has not confirmed it yet.
    Settling,
}

/// A delivery whose handler runs.
pub(super) struct RunningHandler {
    pub(super) cancel: CancellationToken,
    pub(super) progress_slot: Arc<ProgressSlot>,
    pub(super) abort: AbortHandle,
    pub(super) limit_keys: LimitKeys,
}

impl HeldLease {
    /// Records a lease that the store granted. `requested_at` is the instant before the call, so that the worker
    /// never believes that the lease lasts longer than it does.
    pub(super) fn granted(delivery: &Delivery, requested_at: Instant) -> Self {
        let message = &delivery.message;
        let lease_for = message.lease_expires_at.map_or(Span::ZERO, |end| end.since(message.updated_at));
        let mut held = Self {
            token: delivery.token,
            queue: message.envelope.queue.clone(),
            attempt: delivery.attempt,
            trace_id: message.envelope.trace.as_deref().and_then(TraceParent::id_in),
            lease_for,
            extend_at: requested_at,
            expires_at: requested_at,
            stage: Stage::Waiting,
        };
        held.extended(requested_at);
        held
    }

    /// Records an extension by a call that began at `requested_at`. The next one is due after a third of the lease.
    pub(super) fn extended(&mut self, requested_at: Instant) {
        let length: Duration = self.lease_for.to_std();
        self.extend_at = requested_at + length / 3;
        self.expires_at = requested_at + length;
    }

    /// Whether the lease has to be extended in this stage.
    pub(super) fn needs_extending(&self) -> bool {
        !matches!(self.stage, Stage::Settling)
    }
}
