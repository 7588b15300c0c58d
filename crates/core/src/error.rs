//! The two kinds of errors. A [`Refusal`] comes from the domain: the request was understood, the answer is no,
//! and nothing changed. A [`StoreError`] comes from the machinery below: the disk, the socket or the process
//! that holds the data directory. The two are never mixed, and both map exhaustively to exit codes.

use crate::dead_letter::Status;
use crate::group::GroupStatus;
use crate::ids::{LeafId, MessageId, OperationId, QueueName};
use crate::lifecycle::State;
use crate::time::Time;
use serde::{Deserialize, Serialize};

/// The request was understood and refused. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "refusal", rename_all = "snake_case")]
pub enum Refusal {
    /// No live message and no dead letter has this id.
    #[error("there is no message {id}: it was never accepted, or it has ended")]
    NoSuchMessage {
        /// The requested id.
        id: MessageId,
    },
    /// No dead letter has this id.
    #[error("there is no dead letter {id}")]
    NoSuchLetter {
        /// The requested id.
        id: MessageId,
    },
    /// No queue has this name.
    #[error("there is no queue {queue:?}; `redrive queue list` shows the known ones")]
    NoSuchQueue {
        /// The requested name.
        queue: QueueName,
    },
    /// No group has this id.
    #[error("there is no group {group}; `redrive group list` shows the known ones")]
    NoSuchGroup {
        /// The requested group.
        group: LeafId,
    },
    /// No operation has this id.
    #[error("there is no operation {id}")]
    NoSuchOperation {
        /// The requested operation.
        id: OperationId,
    },
    /// The token does not belong to the live lease: another worker holds the message now, or no worker does.
    #[error("the token for message {id} does not belong to its live lease; nothing was changed")]
    StaleToken {
        /// The message that the token names.
        id: MessageId,
    },
    /// The lease expired before its worker settled the message.
    #[error("the lease on message {id} expired at {expired_at}; nothing was changed")]
    LeaseExpired {
        /// The message that the token names.
        id: MessageId,
        /// When the lease expired.
        expired_at: Time,
    },
    /// The state of the message does not allow this.
    #[error("cannot {command} message {id} while it is {state}")]
    WrongState {
        /// The message.
        id: MessageId,
        /// The state of the message.
        state: State,
        /// The command that was refused.
        command: String,
    },
    /// The status of the dead letter does not allow this.
    #[error("cannot {act} dead letter {id} while it is {status}; {hint}")]
    WrongStatus {
        /// The letter.
        id: MessageId,
        /// The status of the letter.
        status: Status,
        /// The act that was refused.
        act: String,
        /// What the caller can do instead.
        hint: String,
    },
    /// The status of the group does not allow this.
    #[error("cannot {act} group {group} while it is {status}; {hint}")]
    WrongGroupStatus {
        /// The group.
        group: LeafId,
        /// The status of the group.
        status: GroupStatus,
        /// The act that was refused.
        act: String,
        /// What the caller can do instead.
        hint: String,
    },
    /// A dead letter consumer has leased this letter.
    #[error("dead letter {id} is leased by {worker:?} until {until}; try again after that")]
    LetterLeased {
        /// The letter.
        id: MessageId,
        /// The name of the consumer that holds the lease.
        worker: String,
        /// When the lease ends.
        until: Time,
    },
    /// The letter changed since the caller read it.
    #[error(
        "dead letter {id} is at version {actual}, not {expected}: it changed since you read it; show it again"
    )]
    VersionConflict {
        /// The letter.
        id: MessageId,
        /// The version that the caller expected.
        expected: u64,
        /// The current version.
        actual: u64,
    },
    /// The patch does not fit the payload of this letter.
    #[error("the patch does not fit dead letter {id}: {why}; nothing was changed")]
    PatchFailed {
        /// The letter.
        id: MessageId,
        /// Which step failed, and why. Names paths in the payload, never the values there.
        why: String,
    },
    /// The letter already has this content.
    #[error("dead letter {id} already has this content; nothing was changed")]
    NoChange {
        /// The letter.
        id: MessageId,
    },
    /// The content of the letter was erased.
    #[error("cannot {act} dead letter {id}: its content was erased; it can only be closed and purged")]
    Erased {
        /// The letter.
        id: MessageId,
        /// The act that was refused.
        act: String,
    },
    /// The idempotency key was used for a different body within its window.
    #[error("key {key:?} was used in queue {queue} for message {id} with different content; use a new key")]
    KeyConflict {
        /// The queue.
        queue: QueueName,
        /// The key.
        key: String,
        /// The message that used the key.
        id: MessageId,
    },
    /// A live message has the idempotency key of this letter.
    #[error(
        "dead letter {id} was not sent back: message {by} has the same key {key:?} and is still live; wait for it, \
         or send it back with force"
    )]
    KeyInUse {
        /// The letter.
        id: MessageId,
        /// The key.
        key: String,
        /// The live message with the same key.
        by: MessageId,
    },
    /// The letter was redriven as often as its queue allows.
    #[error(
        "dead letter {id} was sent back {redrives} times already and its queue allows {allowed}; find out why it \
         fails again, then send it back with force"
    )]
    RedrivenTooOften {
        /// The letter.
        id: MessageId,
        /// How often the letter was redriven.
        redrives: u32,
        /// The `max_redrives` of its queue.
        allowed: u32,
    },
    /// The id was used for a different body.
    #[error("message {id} exists with different content; use a new id")]
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
        /// The limit.
        allowed: u64,
        /// What the queue holds now.
        actual: u64,
    },
    /// The queue is a dead letter queue, which takes no new messages.
    #[error(
        "{queue:?} is the dead letter queue of {owner:?} and takes no new messages; use {owner:?} instead"
    )]
    #[serde(rename = "is_drawer")]
    IsDlq {
        /// The dead letter queue.
        queue: QueueName,
        /// A queue whose dead letters it holds.
        owner: QueueName,
    },
    /// A value is out of bounds.
    #[error("{field}: {why}")]
    Invalid {
        /// The offending field.
        field: String,
        /// What is wrong with the value, and what would be right.
        why: String,
    },
    /// A record that the request needs is damaged. It was left as it is.
    #[error("{what}")]
    Damaged {
        /// Which record, and what to do.
        what: String,
    },
    /// The stage of the operation does not allow this.
    #[error("cannot {command} operation {id} while it is {stage}")]
    WrongStage {
        /// The operation.
        id: OperationId,
        /// The stage the operation is in.
        stage: String,
        /// The command that was refused.
        command: String,
    },
    /// The caller's token does not allow this.
    #[error("{who} may not call {verb}: {why}")]
    NotAllowed {
        /// The name of the token.
        who: String,
        /// The verb that was refused.
        verb: String,
        /// What is missing.
        why: String,
    },
    /// The request key was used for another request of the same actor.
    #[error("the request key {key:?} was used for another request; nothing was done: choose a new key")]
    RequestConflict {
        /// The request key.
        key: String,
    },
    /// A key-value entry changed since the caller read it.
    #[error("{namespace}/{key} changed since you read it")]
    KvConflict {
        /// The namespace of the entry.
        namespace: String,
        /// The key of the entry.
        key: String,
    },
}

impl Refusal {
    /// Refuses the value of one field.
    #[must_use]
    pub fn invalid(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), why: why.into() }
    }
}

/// The cause of a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreErrorKind {
    /// No space is left. Writes are refused; reads and settling continue.
    Full,
    /// A write or fsync failed. The process acknowledges nothing from then on (I6).
    Stopped,
    /// A fault in Redrive itself rolled the commit back. Nothing in it took effect.
    Undone,
    /// Stored bytes differ from what was written (I46).
    Damaged,
    /// A newer version wrote the data.
    Newer,
    /// The path is not a Redrive store.
    NotAStore,
    /// Another process holds the directory and does not answer.
    Locked,
    /// The operating system refused: a missing permission, a read-only file system or a missing directory.
    Io,
    /// This backend does not support the request.
    Unsupported,
    /// The process that holds the store cannot be reached, or went away before it answered.
    Unreachable,
    /// The peer does not speak this protocol.
    Protocol,
    /// The directory, something in it, or the process on its socket does not belong to this user.
    Untrusted,
    /// The server does not know who is calling: there is no token, or it is wrong, revoked or expired.
    Unauthenticated,
    /// The process that holds the store serves as many connections as it accepts.
    Busy,
    /// The process that was asked does not hold the store any more. Nothing was done; the one that holds it now can be
    /// asked.
    NotHolder,
}

/// A failure below the domain. Whether the request took effect depends on the kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{text}")]
pub struct StoreError {
    /// The cause.
    pub kind: StoreErrorKind,
    /// What failed, why, and what to do next.
    pub text: String,
}

impl StoreError {
    /// An error of this kind.
    #[must_use]
    pub fn new(kind: StoreErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

/// Why a call to a store has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallError {
    /// The domain refused the request.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store could not carry out the request.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The result of a call to a store.
pub type StoreResult<T> = Result<T, CallError>;
