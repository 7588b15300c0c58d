//! Two kinds of "no". A [`Refusal`] is the domain speaking: the request is understood and the answer is no,
//! and nothing was changed. A [`StoreError`] is the ground giving way. They are never mixed, and both are
//! mapped exhaustively to exit codes and, later, to HTTP problems.

use crate::dead_letter::Status;
use crate::group::GroupStatus;
use crate::ids::{LeafId, MessageId, OperationId, QueueName};
use crate::lifecycle::State;
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// The request is understood and refused; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum Refusal {
    /// No live message and no dead letter has this id.
    #[error("message {id} is not here: it was never accepted, or it is finished")]
    NoSuchMessage {
        /// The id asked for.
        id: MessageId,
    },
    /// No dead letter has this id.
    #[error("no dead letter has the id {id}")]
    NoSuchLetter {
        /// The id asked for.
        id: MessageId,
    },
    /// No queue has this name.
    #[error("there is no queue {queue:?}; `redrive queue list` shows the known ones")]
    NoSuchQueue {
        /// The name asked for.
        queue: QueueName,
    },
    /// No group has this id.
    #[error("there is no group {group}; `redrive group list` shows the known ones")]
    NoSuchGroup {
        /// The group asked for.
        group: LeafId,
    },
    /// No operation has this id.
    #[error("there is no operation {id}")]
    NoSuchOperation {
        /// The operation asked for.
        id: OperationId,
    },
    /// The token is not the one of the live lease; somebody else owns the message now, or nobody does.
    #[error("the token for message {id} is not of its live lease; nothing was changed")]
    StaleToken {
        /// The message named by the token.
        id: MessageId,
    },
    /// The lease ran out before its holder settled.
    #[error("the lease on message {id} ran out at {expired_at}; nothing was changed")]
    LeaseExpired {
        /// The message named by the token.
        id: MessageId,
        /// When the lease ended.
        expired_at: Time,
    },
    /// The message is in a state that does not allow this.
    #[error("cannot {command} message {id} while it is {state}")]
    WrongState {
        /// The message.
        id: MessageId,
        /// The state it is in.
        state: State,
        /// What was asked.
        command: String,
    },
    /// The dead letter is in a status that does not allow this.
    #[error("cannot {act} dead letter {id} while it is {status}; {hint}")]
    WrongStatus {
        /// The letter.
        id: MessageId,
        /// The status it is in.
        status: Status,
        /// What was asked.
        act: String,
        /// What would work.
        hint: String,
    },
    /// The group is in a status that does not allow this.
    #[error("cannot {act} group {group} while it is {status}; {hint}")]
    WrongGroupStatus {
        /// The group.
        group: LeafId,
        /// The status it is in.
        status: GroupStatus,
        /// What was asked.
        act: String,
        /// What would work.
        hint: String,
    },
    /// A dead-letter consumer is working on this letter.
    #[error("dead letter {id} is leased by {worker:?} until {until}; try again after that")]
    LetterLeased {
        /// The letter.
        id: MessageId,
        /// Who holds it.
        worker: String,
        /// Until when.
        until: Time,
    },
    /// The letter changed since the caller looked at it.
    #[error(
        "dead letter {id} is at version {actual}, not {expected}: it changed since you looked; show it again"
    )]
    VersionConflict {
        /// The letter.
        id: MessageId,
        /// What the caller had seen.
        expected: u64,
        /// What it is now.
        actual: u64,
    },
    /// The patch does not fit this letter's payload.
    #[error("the patch does not fit dead letter {id}: {why}; nothing was changed")]
    PatchFailed {
        /// The letter.
        id: MessageId,
        /// Which step, and why; places, never what stands there.
        why: String,
    },
    /// The letter says that already.
    #[error("the content of dead letter {id} is that already; nothing was changed")]
    NoChange {
        /// The letter.
        id: MessageId,
    },
    /// The letter's content was erased.
    #[error("cannot {act} dead letter {id}: its content was erased; it can only be closed and purged")]
    Erased {
        /// The letter.
        id: MessageId,
        /// What was asked.
        act: String,
    },
    /// The idempotency key was used for a different body within its window.
    #[error("key {key:?} was used in queue {queue} for message {id} with other content; use a new key")]
    KeyConflict {
        /// The queue.
        queue: QueueName,
        /// The key.
        key: String,
        /// The message that has it.
        id: MessageId,
    },
    /// Other work with the letter's idempotency key is on its way.
    #[error(
        "dead letter {id} was not sent back: message {by} has the same key {key:?} and is on its way; wait for it, \
         or send it back with force"
    )]
    KeyInUse {
        /// The letter.
        id: MessageId,
        /// The key.
        key: String,
        /// The message that is on its way.
        by: MessageId,
    },
    /// The letter came back as often as its queue allows.
    #[error(
        "dead letter {id} was sent back {redrives} times already and its queue allows {allowed}; find out why it \
         comes back, then send it back with force"
    )]
    RedrivenTooOften {
        /// The letter.
        id: MessageId,
        /// How often it was sent back.
        redrives: u32,
        /// How often its queue allows it.
        allowed: u32,
    },
    /// The same id was used for a different body.
    #[error("message {id} exists with other content; use a new id")]
    IdConflict {
        /// The id.
        id: MessageId,
    },
    /// A limit of the queue is reached.
    #[error(
        "queue {queue} is full: {limit} is {allowed}, now {actual}; wait for workers or raise it with `queue set`"
    )]
    QueueFull {
        /// The queue.
        queue: QueueName,
        /// The name of the limit.
        limit: String,
        /// What is allowed.
        allowed: u64,
        /// What the queue holds.
        actual: u64,
    },
    /// Drawers cannot be enqueued to.
    #[error(
        "{queue:?} is the drawer of queue {owner:?}; dead letters lie there, work is enqueued to the queue"
    )]
    IsDrawer {
        /// The drawer.
        queue: QueueName,
        /// A queue whose letters lie there.
        owner: QueueName,
    },
    /// A value is outside what is allowed.
    #[error("{field}: {why}")]
    Invalid {
        /// The offending field.
        field: String,
        /// What is wrong with it and what would be right.
        why: String,
    },
    /// A record that is needed for this is damaged; it was left as it is.
    #[error("{what}")]
    Damaged {
        /// Which record, and what to do.
        what: String,
    },
    /// The operation is in a stage that does not allow this.
    #[error("cannot {command} operation {id} while it is {stage}")]
    WrongStage {
        /// The operation.
        id: OperationId,
        /// Where it is.
        stage: String,
        /// What was asked.
        command: String,
    },
    /// A key-value entry changed since the caller read it.
    #[error("{namespace}/{key} changed since you read it")]
    KvConflict {
        /// The namespace.
        namespace: String,
        /// The key.
        key: String,
    },
}

impl Refusal {
    /// A refusal of one field's value.
    #[must_use]
    pub fn invalid(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), why: why.into() }
    }
}

/// What went wrong with the ground under the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreErrorKind {
    /// No space left: writes are refused, reads and settling go on.
    Full,
    /// A write or fsync failed; this process acknowledges nothing more (I6).
    Stopped,
    /// The commit was taken back because of a fault in Redrive itself; nothing of it happened.
    Undone,
    /// Bytes are not what was written (I46).
    Damaged,
    /// The data was written by a newer version.
    Newer,
    /// The path is not a Redrive store.
    NotAStore,
    /// Another process holds the directory and does not answer.
    Locked,
    /// The operating system refused: permission, read-only, missing directory.
    Io,
    /// This backend cannot do that.
    Unsupported,
    /// The process that holds the store cannot be reached, or went away before it answered.
    Unreachable,
    /// The other side does not speak our protocol.
    Protocol,
    /// The directory, something in it or whoever answers on its socket is not this user's own.
    Untrusted,
    /// The process that holds the store has as many callers as it takes.
    Busy,
}

/// The ground gave way; whether the request took effect depends on the kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{text}")]
pub struct StoreError {
    /// What kind of failure.
    pub kind: StoreErrorKind,
    /// What, why and what to do next.
    pub text: String,
}

impl StoreError {
    /// An error of this kind.
    #[must_use]
    pub fn new(kind: StoreErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// Why a store verb as a whole gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Error {
    /// The domain said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store could not.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The answer of a store verb.
pub type Outcome<T> = Result<T, Error>;
