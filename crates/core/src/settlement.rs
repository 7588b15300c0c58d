//! How a worker settles its delivery, and the state of the message afterwards. Part of the contract in
//! [`crate::store`]; nothing is decided here.

use crate::error::Refusal;
use crate::failure::{AnalysedFailure, Reason};
use crate::ids::{LeaseToken, MessageId, QueueName};
use crate::lifecycle::State;
use crate::message::Payload;
use crate::policy::Override;
use crate::progress::Progress;
use crate::store::{check_lease, check_snooze};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// How a worker settles its delivery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "settle")]
pub enum Settle {
    /// The message is done.
    Ack,
    /// The message is done, and this is the reply. It is enqueued to the message's `reply_to` in the same
    /// commit. If the message has no `reply_to`, this equals an ack.
    Reply {
        /// The payload of the reply.
        #[serde(flatten)]
        payload: Payload,
    },
    /// The attempt failed.
    Fail {
        /// The failure, already analysed.
        failure: Box<AnalysedFailure>,
        /// The decision of a custom dead letter policy, if it made one.
        #[serde(default, rename = "said")]
        policy_override: Option<Override>,
    },
    /// The message goes back to the queue at once. The attempt does not count.
    Release,
    /// The message goes back to the queue and becomes ready later. The attempt does not count.
    Snooze {
        /// How long the message waits.
        #[serde(rename = "for_ms")]
        span: Span,
    },
    /// The worker needs a longer lease.
    Extend {
        /// How long the lease lasts from now. Defaults to the queue's policy.
        #[serde(default, rename = "by_ms")]
        by: Option<Span>,
    },
    /// The worker is still busy and reports its progress. The lease is extended by the queue's lease time, and
    /// the report is kept with the message.
    Progress {
        /// The progress so far.
        progress: Progress,
    },
}

/// The settlement of one delivery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settlement {
    /// The token of the lease.
    pub token: LeaseToken,
    /// How the delivery ends or goes on.
    #[serde(flatten)]
    pub what: Settle,
}

impl Settlement {
    /// The number of payload bytes that this settlement carries.
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

    /// Checks the spans and the size of a reply.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] if a value is out of bounds.
    pub fn check(&self) -> Result<(), Refusal> {
        match &self.what {
            Settle::Extend { by } => check_lease(*by),
            Settle::Snooze { span } => check_snooze(*span),
            Settle::Reply { payload } => payload.check("reply"),
            Settle::Ack | Settle::Fail { .. } | Settle::Release | Settle::Progress { .. } => Ok(()),
        }
    }
}

/// The state of a message after its settlement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// The message.
    pub id: MessageId,
    /// The state of the message.
    pub state: State,
    /// When the message becomes ready, if it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Time>,
    /// When the lease ends, if it was extended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Time>,
    /// Why the message died, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// The dead letter queue of the letter, if the message died.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dlq: Option<QueueName>,
    /// The id of the reply, if one was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<MessageId>,
}
