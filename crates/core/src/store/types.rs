//! The arguments and replies of the store's verbs, with the checks that every backend makes before it carries one out.

use crate::dead_letter::{Act, Actor, Status};
use crate::error::Refusal;
use crate::ids::{LeaseToken, MessageId, QueueName};
use crate::invariants::Counts;
use crate::lifecycle::State;
use crate::limits;
use crate::message::{check_printable, check_span};
use crate::policy::QueuePolicy;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One result for each entry of a batch, in the same order.
pub type BatchResults<T> = Vec<Result<T, Refusal>>;

/// The result of enqueueing one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueued {
    /// The id of the message: the given one, or that of the known message with the same key.
    pub id: MessageId,
    /// The state of that message.
    pub state: State,
    /// Whether the message was known before.
    pub duplicate: bool,
}

/// A request for messages to work on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// The queues to lease from, served as if they were one.
    pub queues: Vec<QueueName>,
    /// The maximum number of messages to lease.
    pub max: usize,
    /// How long the lease lasts. Defaults to the policy of each queue.
    #[serde(default)]
    pub lease_for: Option<Span>,
    /// The name of the worker.
    pub worker: String,
    /// The version of the worker's program, for the list of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The machine that the worker runs on, for the list of workers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl LeaseRequest {
    /// Checks that every number is within its limits.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] names the field.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.queues.is_empty() || self.queues.len() > limits::LEASE_QUEUES_MAX {
            let why = format!("name 1 to {} queues", limits::LEASE_QUEUES_MAX);
            return Err(Refusal::invalid("queues", why));
        }
        if self.max == 0 || self.max > limits::LEASE_BATCH_MAX {
            return Err(Refusal::invalid("max", format!("ask for 1 to {}", limits::LEASE_BATCH_MAX)));
        }
        check_lease(self.lease_for)?;
        check_label("version", self.version.as_deref())?;
        check_label("host", self.host.as_deref())?;
        check_worker(&self.worker)
    }
}

/// Checks a short text that a worker reports about itself.
fn check_label(field: &str, text: Option<&str>) -> Result<(), Refusal> {
    text.map_or(Ok(()), |text| check_printable(field, text, limits::LABEL_BYTES_MAX))
}

/// Checks that a lease is neither too short nor too long.
///
/// # Errors
/// [`Refusal::Invalid`] names the field.
pub fn check_lease(lease_for: Option<Span>) -> Result<(), Refusal> {
    lease_for.map_or(Ok(()), |span| check_span("lease", span, limits::LEASE_MIN, limits::LEASE_MAX))
}

/// Checks that a snooze is not so long that it must be a mistake.
///
/// # Errors
/// [`Refusal::Invalid`] names the field.
pub fn check_snooze(span: Span) -> Result<(), Refusal> {
    check_span("snooze", span, Span::ZERO, limits::SPAN_MAX)
}

/// Checks that a worker's name is neither empty nor too long, and printable.
///
/// # Errors
/// [`Refusal::Invalid`] names the field.
pub fn check_worker(worker: &str) -> Result<(), Refusal> {
    let fits = !worker.is_empty() && worker.len() <= limits::LABEL_BYTES_MAX;
    if fits && !worker.chars().any(char::is_control) {
        return Ok(());
    }
    let why = format!("1 to {} printable bytes", limits::LABEL_BYTES_MAX);
    Err(Refusal::invalid("worker", why))
}

/// What a maintenance pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reaped {
    /// Leases that had expired.
    pub leases_lost: u64,
    /// Messages whose ttl or deadline had passed.
    pub timed_out: u64,
    /// Letters whose quarantine ended.
    pub released: u64,
    /// Error replies sent for letters that automatic redrive no longer covers, because the policy of their queue
    /// changed.
    #[serde(default)]
    pub replies_sent: u64,
    /// Letters removed by retention.
    pub letters_expired: u64,
    /// Purged letters that could no longer be restored and were deleted.
    #[serde(default)]
    pub letters_gone: u64,
    /// Idempotency keys whose window had ended.
    pub keys_forgotten: u64,
}

impl Reaped {
    /// Returns true if there was nothing to do.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }

    /// Adds up two passes.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            leases_lost: self.leases_lost.saturating_add(other.leases_lost),
            timed_out: self.timed_out.saturating_add(other.timed_out),
            replies_sent: self.replies_sent.saturating_add(other.replies_sent),
            released: self.released.saturating_add(other.released),
            letters_expired: self.letters_expired.saturating_add(other.letters_expired),
            letters_gone: self.letters_gone.saturating_add(other.letters_gone),
            keys_forgotten: self.keys_forgotten.saturating_add(other.keys_forgotten),
        }
    }

    /// The number of items changed.
    #[must_use]
    pub fn total(&self) -> u64 {
        let messages = self.leases_lost.saturating_add(self.timed_out);
        let letters = self.released.saturating_add(self.letters_expired).saturating_add(self.letters_gone);
        messages.saturating_add(letters).saturating_add(self.replies_sent).saturating_add(self.keys_forgotten)
    }

    /// Returns true if a pass over at most `limit` items of each kind may have left some for the next one.
    #[must_use]
    pub fn may_have_left_some(&self, limit: usize) -> bool {
        let letters = self.letters_expired.saturating_add(self.letters_gone);
        let messages = self.leases_lost.saturating_add(self.timed_out);
        let parts = [messages, self.released, self.replies_sent, letters, self.keys_forgotten];
        parts.iter().any(|part| *part >= limit as u64)
    }
}

/// The public view of a queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// The name.
    pub name: QueueName,
    /// Whether leasing is paused.
    pub paused: bool,
    /// Who paused it, when and why.
    #[serde(default)]
    pub paused_by: Option<String>,
    /// Messages whose time has not come.
    pub scheduled: u64,
    /// Messages that are due.
    pub ready: u64,
    /// The counters.
    #[serde(flatten)]
    pub counts: Counts,
    /// The policy in effect.
    pub policy: QueuePolicy,
}

/// The public view of a dead letter queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dlq {
    /// The name.
    pub dlq: QueueName,
    /// Letters by status.
    pub by_status: BTreeMap<Status, u64>,
}

impl Dlq {
    /// The number of letters in it that are not closed.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.by_status.iter().filter(|(status, _)| !status.is_closed()).map(|(_, n)| n).sum()
    }
}

/// The message that has an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyState {
    /// The message.
    pub id: MessageId,
    /// The state of the message. Finished messages have one too.
    pub state: State,
}

/// The result of one call of a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// Messages removed by this call.
    pub purged: u64,
    /// Whether there is more to remove.
    pub more: bool,
}

/// A request for dead letters to work on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterLeaseRequest {
    /// The dead letter queue to lease from.
    pub dlq: QueueName,
    /// The maximum number of letters to lease.
    pub max: usize,
    /// How long the lease lasts. Defaults to 300 seconds.
    #[serde(default)]
    pub lease_for: Option<Span>,
    /// The name of the consumer.
    pub worker: String,
}

impl LetterLeaseRequest {
    /// Checks that every number is within its limits.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] names the field.
    pub fn check(&self) -> Result<(), Refusal> {
        if self.max == 0 || self.max > limits::LEASE_BATCH_MAX {
            return Err(Refusal::invalid("max", format!("ask for 1 to {}", limits::LEASE_BATCH_MAX)));
        }
        check_lease(self.lease_for)?;
        check_worker(&self.worker)
    }
}

/// What a dead-letter consumer did with its letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "settle")]
pub enum LetterSettle {
    /// It decided on an act.
    Do {
        /// The act.
        act: Act,
        /// Who acts, and why.
        actor: Actor,
    },
    /// It failed. No consumer gets the letter for an hour; the letter itself is not changed by this.
    Fail {
        /// A note about the failure, added to the letter.
        note: String,
    },
    /// It gives the letter back unchanged.
    Release,
    /// It gives the letter back, and no consumer gets it for a while.
    Snooze {
        /// How long no consumer gets the letter.
        #[serde(rename = "for_ms")]
        span: Span,
    },
    /// It needs more time.
    Extend {
        /// How long the lease lasts from now on. Defaults to 300 seconds.
        #[serde(default, rename = "by_ms")]
        by: Option<Span>,
    },
}

/// The end of one delivery of a letter to a consumer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterSettlement {
    /// The token of the lease.
    pub token: LeaseToken,
    /// What the consumer did.
    #[serde(flatten)]
    pub what: LetterSettle,
}

/// A letter that the caller has copied to another store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// The letter.
    pub id: MessageId,
    /// The version that was copied. A letter that has changed since is refused.
    pub version: u64,
}

/// The result of one pass of the text index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Indexed {
    /// The number of letters added.
    pub indexed: u64,
    /// Whether there are more letters to add.
    pub more: bool,
}

/// The state of a letter after an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterState {
    /// The letter.
    pub id: MessageId,
    /// Its status, or `None` if the letter was removed.
    pub status: Option<Status>,
    /// Its version.
    pub version: u64,
}

/// A small durable value and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvEntry {
    /// The value.
    pub value: Vec<u8>,
    /// Changes with every write.
    pub version: u64,
}

/// One entry of a list of small durable values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvItem {
    /// The key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
    /// Changes with every write.
    pub version: u64,
}

/// What a verification checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyRequest {
    /// Also read every payload and check the database file itself.
    pub deep: bool,
    /// Rebuild what can be derived from the rest, and set damaged records aside. Nothing else is ever repaired.
    pub repair: bool,
}

/// A store's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreInfo {
    /// The kind of store: `memory`, `sqlite` or `model`.
    pub backend: String,
    /// Whether success means that the data survives a power cut.
    pub durable: bool,
    /// Where the data is.
    pub place: String,
    /// The time by the store's clock.
    pub now: Time,
    /// How far the store's clock is ahead of the wall clock, in milliseconds.
    pub skew_ms: i64,
    /// What is wrong with the store at the moment, in words. Empty means that nothing is.
    pub degraded: Vec<String>,
}
