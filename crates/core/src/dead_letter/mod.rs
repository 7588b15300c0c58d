//! A dead letter: a message that is not delivered again without a decision, with everything needed to make one.
//! Only [`next_status`] changes the status of a letter; [`LetterRecord::act`] applies an operator's act to the
//! rest of its record.

use crate::error::Refusal;
use crate::failure::{
    AnalysedFailure, Category, ErrorInfo, Failure, Reason, Recoverability, Route, Severity,
};
use crate::ids::{GroupId, LeafId, LeaseToken, MessageId, OperationId, QueueName};
use crate::lifecycle::Lifecycle;
use crate::limits;
use crate::message::{Message, MessageMeta, Priority, check_printable};
use crate::patch::Patch;
use crate::policy::{OnDead, QueuePolicy};
use crate::revision::{Edit, EditRecord, Erased, Revision};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

mod acting;
mod capture;
mod history;
mod status;
mod timeline;

pub use acting::ALREADY_DONE;
pub use capture::Captured;
pub use status::{Status, StatusChange, next_status};
pub use timeline::{TimelineEntry, TimelineEvent};

/// How a letter is redriven.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// The earliest time of the next attempt. Defaults to now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// The queue to send it to. Defaults to the message's own queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// The priority from now on. Defaults to the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// The number of executions allowed from now on. Defaults to the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Whether to redrive even if a message with the same key is done already or live, or if the letter was
    /// redriven too often.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// An act of an operator, a policy or a consumer on one letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "act")]
pub enum Act {
    /// Redrive it: send it back to its queue.
    Retry(Retry),
    /// Request a review by a person.
    Review,
    /// Put it in quarantine.
    Quarantine {
        /// When the quarantine ends.
        until: Time,
    },
    /// Take it out of quarantine or review, back to pending.
    Release,
    /// Close it as dealt with.
    Resolve,
    /// Close it as given up.
    Abandon,
    /// Open it again.
    Reopen,
    /// Add a note. The text is the actor's reason.
    Note,
    /// Remove it. A purge can be undone for [`limits::PURGE_UNDO`].
    Purge,
    /// Undo a purge.
    Unpurge,
    /// Undo a redrive while the message still waits and no attempt of the new generation counts.
    PullBack,
    /// Move it to another dead letter queue.
    Move {
        /// The dead letter queue to move it to.
        dlq: QueueName,
    },
    /// Hold it, or release the hold. A held letter never expires and cannot be purged.
    Hold {
        /// Whether the letter is held from now on.
        on: bool,
    },
    /// Hide it from dead letter consumers and automatic redrives. Every other decision wakes it.
    Snooze {
        /// When the snooze ends. A time in the past wakes the letter.
        until: Time,
    },
    /// Assign it to an owner.
    Assign {
        /// The owner. `None` assigns it to nobody.
        #[serde(default)]
        to: Option<String>,
    },
    /// Add and remove labels.
    Label {
        /// The labels to add.
        #[serde(default)]
        add: BTreeSet<String>,
        /// The labels to remove.
        #[serde(default)]
        remove: BTreeSet<String>,
    },
    /// Replace its content. The earlier content is kept as a revision.
    Edit(Box<Edit>),
    /// Patch its JSON payload. Bytes that the patch does not touch stay as they are.
    Patch(Box<Patch>),
    /// Restore the content of an earlier revision.
    Restore {
        /// The number of the revision; 0 is the original.
        n: u32,
    },
    /// Erase payload, headers, context and all earlier revisions for good, and keep the rest as a tombstone.
    Erase,
}

impl Act {
    /// Redrive it at once, unchanged.
    #[must_use]
    pub fn retry() -> Self {
        Self::Retry(Retry::default())
    }

    /// Redrive it, but not before `at`.
    #[must_use]
    pub fn retry_at(at: Time) -> Self {
        Self::Retry(Retry { at: Some(at), ..Retry::default() })
    }

    /// The status change that this act makes. `None` if it only changes the record.
    #[must_use]
    pub const fn status_change(&self) -> Option<StatusChange> {
        match self {
            Self::Retry { .. } => Some(StatusChange::Retry),
            Self::Review => Some(StatusChange::Review),
            Self::Quarantine { .. } => Some(StatusChange::Quarantine),
            Self::Release => Some(StatusChange::Release),
            Self::Resolve => Some(StatusChange::Resolve),
            Self::Abandon => Some(StatusChange::Abandon),
            Self::Reopen => Some(StatusChange::Reopen),
            Self::Purge => Some(StatusChange::Purge),
            Self::Unpurge => Some(StatusChange::Unpurge),
            Self::PullBack => Some(StatusChange::Undo),
            Self::Note
            | Self::Move { .. }
            | Self::Hold { .. }
            | Self::Snooze { .. }
            | Self::Assign { .. }
            | Self::Label { .. }
            | Self::Edit(_)
            | Self::Patch(_)
            | Self::Restore { .. }
            | Self::Erase => None,
        }
    }

    /// The verb of this act in audit trail, CLI and API.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match (self.status_change(), self) {
            (Some(by), _) => by.name(),
            (None, Self::Move { .. }) => "move",
            (None, Self::Hold { on: true }) => "hold",
            (None, Self::Hold { on: false }) => "unhold",
            (None, Self::Snooze { .. }) => "snooze",
            (None, Self::Assign { .. }) => "assign",
            (None, Self::Label { .. }) => "label",
            (None, Self::Edit(_)) => "edit",
            (None, Self::Patch(_)) => "patch",
            (None, Self::Restore { .. }) => "restore",
            (None, Self::Erase) => "erase",
            (None, _) => "note",
        }
    }
}

/// Who acts, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// The name of the person or program.
    pub name: String,
    /// The interface: cli, library or api.
    pub source: String,
    /// The reason, in the actor's own words.
    #[serde(default)]
    pub reason: Option<String>,
    /// Makes repeating the call harmless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestKey>,
}

/// The key that a caller gives to a call so that repeating it is harmless. Within [`limits::KEY_WINDOW`], a call of the
/// same actor with the same key and fingerprint is carried out once and returns the recorded result; the same key with
/// another fingerprint is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestKey {
    /// The key, which is unique among the calls of its actor. The audit row of the call shows it.
    pub key: String,
    /// Identifies what was asked for: a hash of the request, for example.
    pub fingerprint: String,
}

impl Actor {
    /// An actor without a reason.
    #[must_use]
    pub fn new(name: impl Into<String>, source: impl Into<String>) -> Self {
        Self { name: name.into(), source: source.into(), reason: None, request: None }
    }

    /// The actor of what follows from the call, which is not the call itself.
    #[must_use]
    pub fn without_request(self) -> Self {
        Self { request: None, ..self }
    }

    /// Checks the lengths of name, source, reason and request key.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`], which names the field.
    pub fn check(&self) -> Result<(), Refusal> {
        let reason = self.reason.as_deref().unwrap_or("");
        for (field, text, max) in [
            ("actor", self.name.as_str(), limits::LABEL_BYTES_MAX),
            ("source", self.source.as_str(), limits::LABEL_BYTES_MAX),
            ("reason", reason, limits::NOTE_BYTES_MAX),
        ] {
            if text.len() > max {
                return Err(Refusal::invalid(field, format!("{} bytes; at most {max}", text.len())));
            }
        }
        let Some(request) = &self.request else { return Ok(()) };
        check_printable("request key", &request.key, limits::KEY_BYTES_MAX)?;
        check_printable("fingerprint", &request.fingerprint, limits::LABEL_BYTES_MAX)?;
        if request.key.is_empty() {
            return Err(Refusal::invalid("request key", "is empty; leave it out or choose one"));
        }
        Ok(())
    }
}

/// A note of a person about a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When the note was written.
    pub at: Time,
    /// Who wrote it.
    pub by: String,
    /// The text.
    pub text: String,
}

/// One redrive of a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedriveRecord {
    /// When the letter was redriven.
    pub at: Time,
    /// Who redrove it.
    pub by: String,
    /// The queue it was sent to, if the act named one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<QueueName>,
}

const fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// The record of a dead letter: everything except the message and its failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterRecord {
    /// The dead letter queue that holds the letter.
    pub dlq: QueueName,
    /// The status.
    pub status: Status,
    /// Why the message died.
    pub reason: Reason,
    /// The part of the system that failed.
    pub route: Route,
    /// The category of the last failure.
    pub category: Category,
    /// The severity.
    pub severity: Severity,
    /// What it takes to make the message succeed.
    pub recoverability: Recoverability,
    /// Whether the death raises an alert, because of the handling of its route or a systematic cause.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alert: bool,
    /// The leaf of the signature tree that the last failure belongs to. It does not change until the next
    /// death.
    pub leaf: LeafId,
    /// How often the letter was redriven.
    pub redrives: u32,
    /// The last redrive, unless it was undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redriven: Option<RedriveRecord>,
    /// Who requested the review.
    #[serde(default)]
    pub review_requested_by: Option<String>,
    /// When the review was requested.
    #[serde(default)]
    pub review_requested_at: Option<Time>,
    /// Who ended the review.
    #[serde(default)]
    pub reviewed_by: Option<String>,
    /// When the review ended.
    #[serde(default)]
    pub reviewed_at: Option<Time>,
    /// When the quarantine ends.
    #[serde(default)]
    pub quarantined_until: Option<Time>,
    /// How the letter was closed: `retried`, or the operator's reason.
    #[serde(default)]
    pub resolution: Option<String>,
    /// The time of the first failure.
    #[serde(default)]
    pub first_failed_at: Option<Time>,
    /// The time of the latest failure.
    #[serde(default)]
    pub last_failed_at: Option<Time>,
    /// When the message last died.
    pub dead_at: Time,
    /// When the letter was closed.
    #[serde(default)]
    pub closed_at: Option<Time>,
    /// Who closed it.
    #[serde(default)]
    pub closed_by: Option<String>,
    /// When retention removes the letter.
    #[serde(default)]
    pub expires_at: Option<Time>,
    /// Whether the letter is held: a held letter does not expire.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// When the snooze ends. Until then neither consumers nor automatic redrives get the letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snoozed_until: Option<Time>,
    /// The owner that the letter is assigned to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Labels that operators added. The tags of the message are separate.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub labels: BTreeSet<String>,
    /// The status before the purge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purged_from: Option<Status>,
    /// The notes, oldest first.
    #[serde(default)]
    pub notes: Vec<Note>,
    /// Deaths and acts, oldest first: the first [`limits::LETTER_EVENTS_FIRST`] and the last
    /// [`limits::LETTER_EVENTS_LAST`]. For a letter written in an older format this starts with the first event
    /// recorded since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<TimelineEntry>,
    /// How many events between the first and the last were dropped.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub history_omitted: u32,
    /// Increases with every change. An act can require a certain version.
    pub version: u64,
    /// Whether the letter holds its ordering key until it is closed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holds_key: bool,
    /// When a dead letter consumer may lease the letter.
    #[serde(default)]
    pub available_at: Time,
    /// The operation that made the last redrive. `None` if no operation did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationId>,
    /// The dead letter consumer that holds a lease on the letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// When that lease ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer_until: Option<Time>,
    /// The edits of the content, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<EditRecord>,
    /// Set once the content was erased for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erased: Option<Erased>,
    /// Whether a reply about this death is still owed. It was held back because the letter returns to its queue
    /// automatically, and goes out once it turns out that the letter does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owes_reply: bool,
    /// The hash of the body that was enqueued, once an edit has changed the body. A repeated enqueue is
    /// compared with this hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_hash: Option<String>,
}

impl LetterRecord {
    /// The record of a message that just died. `previous` is the record of its earlier death, which is
    /// reopened.
    #[must_use]
    pub fn of_death(
        meta: impl Into<MessageMeta>,
        lifecycle: &Lifecycle,
        policy: &QueuePolicy,
        failure: &AnalysedFailure,
        reason: Reason,
        previous: Option<&Self>,
        now: Time,
    ) -> Self {
        let meta = meta.into();
        let quarantine = policy.quarantine(failure.route);
        let alert = policy.alerts(failure.category, failure.route);
        let redrives = previous.map_or(0, |before| before.redrives);
        // A message that died after that many redrives needs a person.
        let too_often = quarantine.is_none() && redrives >= policy.max_redrives;
        let held = previous.is_some_and(|before| before.held);
        let mut record = Self {
            dlq: policy.dlq(&meta.queue, failure.route),
            status: match quarantine {
                Some(_) => Status::Quarantined,
                None if too_often => Status::Review,
                None => Status::Pending,
            },
            reason,
            route: failure.route,
            category: failure.category,
            severity: if alert { failure.severity.max(Severity::High) } else { failure.severity },
            recoverability: failure.recoverability,
            alert,
            leaf: failure.signature.leaf,
            redrives,
            redriven: None,
            review_requested_by: too_often.then(|| "system".to_owned()),
            review_requested_at: too_often.then_some(now),
            reviewed_by: None,
            reviewed_at: None,
            quarantined_until: quarantine.map(|span| now.plus(span)),
            resolution: None,
            first_failed_at: lifecycle.failing_since.or(Some(now)),
            last_failed_at: Some(now),
            dead_at: now,
            closed_at: None,
            closed_by: None,
            expires_at: policy.open_ttl.filter(|_| !held).map(|ttl| now.plus(ttl)),
            held,
            snoozed_until: None,
            owner: None,
            labels: BTreeSet::new(),
            purged_from: None,
            notes: Vec::new(),
            history: Vec::new(),
            history_omitted: 0,
            version: 1,
            holds_key: meta.ordering_key.is_some() && policy.on_dead == OnDead::Hold,
            available_at: now,
            operation: None,
            consumer: None,
            consumer_until: None,
            edits: Vec::new(),
            erased: None,
            owes_reply: false,
            body_hash: None,
        };
        if let Some(before) = previous {
            record.redrives = before.redrives;
            record.operation = before.operation;
            record.redriven.clone_from(&before.redriven);
            record.owner.clone_from(&before.owner);
            record.labels.clone_from(&before.labels);
            record.first_failed_at = before.first_failed_at;
            record.notes.clone_from(&before.notes);
            record.edits.clone_from(&before.edits);
            record.body_hash.clone_from(&before.body_hash);
            record.history.clone_from(&before.history);
            record.history_omitted = before.history_omitted;
            record.version = before.version + 1;
        }
        record.owes_reply = meta.reply_to.is_some() && record.returns_by_itself(policy);
        record.record_death(&meta.queue, lifecycle.generation);
        record
    }
}

/// An act on one letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActRequest {
    /// The letter.
    pub id: MessageId,
    /// The act.
    #[serde(flatten)]
    pub act: Act,
    /// Who acts, and why.
    pub actor: Actor,
    /// The version that the letter must have. The act is refused if it has another.
    #[serde(default)]
    pub expected_version: Option<u64>,
}

impl ActRequest {
    /// The redrive of a letter whose quarantine ends, in a queue that takes such messages back automatically.
    #[must_use]
    pub fn release_to_queue(id: MessageId) -> Self {
        let reason = Some("quarantine ended".to_owned());
        let actor = Actor { reason, ..Actor::new("system", "system") };
        Self { id, act: Act::retry(), actor, expected_version: None }
    }
}

/// The public view of a dead letter: message, record and failures, as one flat list of fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The message.
    #[serde(flatten)]
    pub message: Message,
    /// The record of the letter.
    #[serde(flatten)]
    pub record: LetterRecord,
    /// The template of the last failure's signature.
    pub signature: String,
    /// The group of the letter.
    pub group: GroupId,
    /// The error of the last failure.
    pub error: ErrorInfo,
    /// Whether the letter can be redriven as it is.
    pub eligible: bool,
    /// Whether the letter waits for review.
    pub review_required: bool,
    /// The position in the order of deaths. Later deaths have higher numbers.
    pub death: u64,
    /// Earlier contents, oldest first. Only filled in on request, as in a full export.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revisions: Vec<Revision>,
}

impl DeadLetter {
    /// Assembles a letter from its parts. `failures` is the stored history, oldest first.
    #[must_use]
    pub fn assemble(
        mut message: Message,
        record: LetterRecord,
        group: GroupId,
        death: u64,
        failures: Vec<Failure>,
    ) -> Self {
        let last = failures.last();
        let signature = last.map(|f| f.signature.clone()).unwrap_or_default();
        let error = last.map(|f| f.error.clone()).unwrap_or_default();
        message.failures = failures;
        Self {
            signature,
            group,
            error,
            eligible: record.eligible(),
            review_required: record.status == Status::Review,
            death,
            revisions: Vec::new(),
            message,
            record,
        }
    }

    /// The identity.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.message.envelope.id
    }
}

/// A letter leased to a dead letter consumer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LetterDelivery {
    /// The letter.
    #[serde(flatten)]
    pub letter: DeadLetter,
    /// The token that settles the letter.
    pub token: LeaseToken,
}

/// How long a letter is unavailable after its consumer failed.
pub const CONSUMER_BACKOFF: Span = Span::from_hours(1);
/// How long a consumer's lease lasts unless it asks for another duration.
pub const CONSUMER_LEASE: Span = Span::from_secs(300);
