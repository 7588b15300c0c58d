//! Workers as the process that holds a store knows them: from the calls that they make. Nothing of this is durable; a
//! worker is known for as long as it reports.

use crate::ids::{MessageId, QueueName};
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// A worker: whoever leases messages or letters under one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerView {
    /// The name that it leases under.
    pub worker: String,
    /// The version that it reported of itself.
    #[serde(default)]
    pub version: Option<String>,
    /// The host that it reported.
    #[serde(default)]
    pub host: Option<String>,
    /// The queues and dead letter queues that it leased from, by name.
    pub queues: Vec<QueueName>,
    /// When it was first seen by the process that holds the store.
    pub first_seen: Time,
    /// When it last leased or settled something.
    pub last_seen: Time,
    /// The number of messages and letters in its hands.
    pub in_hand: u64,
    /// The first of them, oldest lease first ([`crate::limits::WORKER_LEASES_LISTED_MAX`]).
    pub leases: Vec<LeaseView>,
    /// The number of deliveries that it acknowledged, and of letters that it decided about, since it was first seen.
    pub done: u64,
    /// The number of failures that it reported since it was first seen.
    pub failed: u64,
}

/// A message or a letter in the hands of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// The message or letter.
    pub id: MessageId,
    /// The queue or dead letter queue that it was leased from.
    pub queue: QueueName,
    /// When it was leased.
    pub since: Time,
    /// When the lease ends unless it is extended.
    pub lease_expires_at: Time,
}
