//! The words between the dispatcher and the executors, and what the dispatcher knows about each lease.

use crate::handler::{Handler, Outcome, Reported};
use redrive_core::ids::{LeaseToken, QueueName};
use redrive_core::message::Delivery;
use redrive_core::store::Settle;
use redrive_core::time::Span;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// One delivery to be executed.
pub(super) struct Unit {
    pub(super) delivery: Arc<Delivery>,
    /// None where no handler is registered for its kind.
    pub(super) handler: Option<Arc<dyn Handler>>,
    pub(super) timeout: Option<Span>,
    pub(super) cancel: CancellationToken,
    pub(super) reported: Arc<Reported>,
    pub(super) entered: Entered,
}

/// What a delivery counts under while its handler runs.
#[derive(Clone)]
pub(super) struct Entered {
    pub(super) kind: String,
    pub(super) key: Option<String>,
}

/// What came of it.
pub(super) struct Ended {
    pub(super) token: LeaseToken,
    pub(super) entered: Entered,
    pub(super) said: Settle,
    /// The handler, where it was told to stop and has not: its slot is taken until it ends.
    pub(super) straggler: Option<AbortOnDropHandle<Outcome>>,
}

/// A lease the worker holds.
pub(super) struct Held {
    pub(super) token: LeaseToken,
    pub(super) queue: QueueName,
    pub(super) attempt: u32,
    /// How long it is extended for.
    pub(super) lease_for: Span,
    /// When it is to be extended.
    pub(super) beat_at: Instant,
    /// When it runs out unless it is extended.
    pub(super) expires_at: Instant,
    /// Where its delivery is.
    pub(super) stage: Stage,
}

/// Where a delivery is inside the worker.
pub(super) enum Stage {
    /// Leased, handed off, not begun.
    Waiting,
    /// Leased; its kind or key is at its limit.
    Parked,
    /// With a handler.
    Running(Running),
    /// Its handler has spoken; the store has not confirmed.
    Settling,
}

/// A delivery with a handler.
pub(super) struct Running {
    pub(super) cancel: CancellationToken,
    pub(super) reported: Arc<Reported>,
    pub(super) abort: AbortHandle,
    pub(super) entered: Entered,
}

impl Held {
    /// A lease as it was granted. `asked_at` is from before the call, so that the worker never thinks it has
    /// longer than it has.
    pub(super) fn granted(delivery: &Delivery, asked_at: Instant) -> Self {
        let message = &delivery.message;
        let lease_for = message.lease_expires_at.map_or(Span::ZERO, |end| end.since(message.updated_at));
        let mut held = Self {
            token: delivery.token,
            queue: message.envelope.queue.clone(),
            attempt: delivery.attempt,
            lease_for,
            beat_at: asked_at,
            expires_at: asked_at,
            stage: Stage::Waiting,
        };
        held.extended(asked_at);
        held
    }

    /// It was extended by a call that began at `asked_at`. Next time after a third of it.
    pub(super) fn extended(&mut self, asked_at: Instant) {
        let whole: Duration = self.lease_for.to_std();
        self.beat_at = asked_at + whole / 3;
        self.expires_at = asked_at + whole;
    }

    /// Whether it needs extending while it is in this stage.
    pub(super) fn beats(&self) -> bool {
        !matches!(self.stage, Stage::Settling)
    }
}
