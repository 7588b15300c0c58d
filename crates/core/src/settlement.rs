//! What a worker says about its delivery, and where the message is afterwards. Part of the store's contract
//! ([`crate::store`]); nothing is decided here.

use crate::error::Refusal;
use crate::failure::{Analysed, Reason};
use crate::ids::{LeaseToken, MessageId, QueueName};
use crate::lifecycle::State;
use crate::message::Payload;
use crate::policy::Override;
use crate::progress::Progress;
use crate::store::{check_lease, check_snooze};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// What a worker says about its delivery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "settle")]
pub enum Settle {
    /// Done; nobody is told.
    Ack,
    /// Done, and this is the answer for whoever the message names in `reply_to`; it is enqueued there in the
    /// same commit. The same as an ack when nobody asked.
    Reply {
        /// The answer.
        #[serde(flatten)]
        payload: Payload,
    },
    /// Failed.
    Fail {
        /// What went wrong.
        failure: Box<Analysed>,
        /// A custom policy's word.
        #[serde(default)]
        said: Option<Override>,
    },
    /// Back to the queue at once; the attempt does not count.
    Release,
    /// Back to the queue for later; the attempt does not count.
    Snooze {
        /// For how long.
        #[serde(rename = "for_ms")]
        span: Span,
    },
    /// Longer, please.
    Extend {
        /// From now; the queue's policy when not said.
        #[serde(default, rename = "by_ms")]
        by: Option<Span>,
    },
    /// Still at it, and this far: the lease is extended by the queue's, and the report is kept with the message.
    Progress {
        /// How far.
        progress: Progress,
    },
}

/// One settlement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settlement {
    /// The right to settle.
    pub token: LeaseToken,
    /// What is said.
    #[serde(flatten)]
    pub what: Settle,
}

impl Settlement {
    /// How many bytes of payload it brings.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        match &self.what {
            Settle::Reply { payload } => payload.bytes.len(),
            Settle::Ack
            | Settle::Fail { .. }
            | Settle::Release
            | Settle::Snooze { .. }
            | Settle::Extend { .. }
            | Settle::Progress { .. } => 0,
        }
    }

    /// Refuses absurd spans and answers that no message could carry.
    ///
    /// # Errors
    /// [`Refusal::Invalid`].
    pub fn check(&self) -> Result<(), Refusal> {
        match &self.what {
            Settle::Extend { by } => check_lease(*by),
            Settle::Snooze { span } => check_snooze(*span),
            Settle::Reply { payload } => payload.check("reply"),
            Settle::Ack | Settle::Fail { .. } | Settle::Release | Settle::Progress { .. } => Ok(()),
        }
    }
}

/// Where a message is after its settlement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// The message.
    pub id: MessageId,
    /// Where it is now.
    pub state: State,
    /// When it may be leased again, when it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Time>,
    /// Until when the lease lasts, when it was extended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Time>,
    /// Why it died, when it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The dead letter queue its letter lies in, when it died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dlq: Option<QueueName>,
    /// The reply that went out with it, when one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<MessageId>,
}
