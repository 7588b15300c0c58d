//! A dead letter: a message that will not be delivered again by itself, with everything a person needs to
//! decide. [`next_status`] is the only place where a status changes; [`File::act`], in `acting`, is what an
//! operator's act does to the rest of the file.

use crate::error::Refusal;
use crate::failure::{Analysed, Category, ErrorInfo, Failure, Reason, Recoverability, Route, Severity};
use crate::ids::{GroupId, LeafId, LeaseToken, MessageId, OperationId, QueueName};
use crate::lifecycle::Life;
use crate::limits;
use crate::message::{Message, Priority, Slip};
use crate::patch::Patch;
use crate::policy::{OnDead, QueuePolicy};
use crate::revision::{Edit, EditMark, Erased, Revision};
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
pub use status::{Move, Status, next_status};
pub use timeline::{Happening, Moment};

/// How a letter is sent back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// Not before then; at once when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// To this queue; to its own when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueName>,
    /// This urgent from now on; as before when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// So many executions from now on; as before when not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Also when work with its key is done already, or it came back too often.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// What an operator, a policy or a consumer does to one letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "act")]
pub enum Act {
    /// Send it back to work.
    Retry(Retry),
    /// Ask for a person.
    Review,
    /// Set aside until a time.
    Quarantine {
        /// Until when.
        until: Time,
    },
    /// Back to pending.
    Release,
    /// Close as dealt with.
    Resolve,
    /// Close as given up.
    Abandon,
    /// Open again.
    Reopen,
    /// Say something.
    Note,
    /// Remove. It can be taken back for [`limits::PURGE_UNDO`].
    Purge,
    /// Take back what was removed.
    Unpurge,
    /// Take a redrive back, if nobody has leased the message yet.
    PullBack,
    /// Put it into another drawer.
    Move {
        /// Which.
        dlq: QueueName,
    },
    /// Keep it, or let go of it: while it is held it never expires and cannot be purged.
    Hold {
        /// Keep it.
        on: bool,
    },
    /// Hide it from dead-letter consumers and from redrives that nobody asked for. Every other decision wakes it.
    Snooze {
        /// Until then; a time that is over wakes it.
        until: Time,
    },
    /// Say whose it is.
    Assign {
        /// Whose; nobody's when not said.
        #[serde(default)]
        to: Option<String>,
    },
    /// Put labels on it and take labels off.
    Label {
        /// On.
        #[serde(default)]
        add: BTreeSet<String>,
        /// Off.
        #[serde(default)]
        remove: BTreeSet<String>,
    },
    /// Give it other content; what it said before is kept.
    Edit(Box<Edit>),
    /// Change its JSON payload; what the patch does not name keeps its bytes.
    Patch(Box<Patch>),
    /// Give it the content it had in an earlier revision.
    Restore {
        /// Which; 0 is the original.
        n: u32,
    },
    /// Remove payload, headers, context and every earlier content for good, and keep the rest as a tombstone.
    Erase,
}

impl Act {
    /// Back to work at once, as it was.
    #[must_use]
    pub fn retry() -> Self {
        Self::Retry(Retry::default())
    }

    /// Back to work, not before then.
    #[must_use]
    pub fn retry_at(at: Time) -> Self {
        Self::Retry(Retry { at: Some(at), ..Retry::default() })
    }

    /// The move this act makes, if it makes one.
    #[must_use]
    pub const fn as_move(&self) -> Option<Move> {
        match self {
            Self::Retry { .. } => Some(Move::Retry),
            Self::Review => Some(Move::Review),
            Self::Quarantine { .. } => Some(Move::Quarantine),
            Self::Release => Some(Move::Release),
            Self::Resolve => Some(Move::Resolve),
            Self::Abandon => Some(Move::Abandon),
            Self::Reopen => Some(Move::Reopen),
            Self::Purge => Some(Move::Purge),
            Self::Unpurge => Some(Move::Unpurge),
            Self::PullBack => Some(Move::Undo),
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

    /// The verb in audit, CLI and API.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match (self.as_move(), self) {
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
    /// The person or program.
    pub name: String,
    /// Through what: cli, library, api.
    pub source: String,
    /// Why, in their words.
    #[serde(default)]
    pub reason: Option<String>,
}

impl Actor {
    /// An actor without a reason.
    #[must_use]
    pub fn new(name: impl Into<String>, source: impl Into<String>) -> Self {
        Self { name: name.into(), source: source.into(), reason: None }
    }

    /// Refuses names and reasons that are too long.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming the field.
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
        Ok(())
    }
}

/// Something a person said about a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When.
    pub at: Time,
    /// Who.
    pub by: String,
    /// What.
    pub text: String,
}

/// A redrive of one letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redriven {
    /// When.
    pub at: Time,
    /// By whom.
    pub by: String,
    /// To which queue, when one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<QueueName>,
}

const fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// What is written on the outside of a letter: everything but the message and its failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// The drawer it lies in.
    pub dlq: QueueName,
    /// Where it stands.
    pub status: Status,
    /// Why it died.
    pub reason: Reason,
    /// Which part of the world failed.
    pub route: Route,
    /// What kind of failure.
    pub category: Category,
    /// How bad.
    pub severity: Severity,
    /// What it takes.
    pub recoverability: Recoverability,
    /// Somebody is to be told of it: the handling of its route, or a systematic cause.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alert: bool,
    /// The leaf it was filed under; never changes for a death.
    pub leaf: LeafId,
    /// How often it was sent back.
    pub redrives: u32,
    /// The last time it was, if that was not taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redriven: Option<Redriven>,
    /// Who asked for review.
    #[serde(default)]
    pub review_requested_by: Option<String>,
    /// When.
    #[serde(default)]
    pub review_requested_at: Option<Time>,
    /// Who ended the review.
    #[serde(default)]
    pub reviewed_by: Option<String>,
    /// When.
    #[serde(default)]
    pub reviewed_at: Option<Time>,
    /// Until when it is set aside.
    #[serde(default)]
    pub quarantined_until: Option<Time>,
    /// How it was closed: `retried`, or what the operator said.
    #[serde(default)]
    pub resolution: Option<String>,
    /// The first failure ever.
    #[serde(default)]
    pub first_failed_at: Option<Time>,
    /// The latest.
    #[serde(default)]
    pub last_failed_at: Option<Time>,
    /// When it died, the last time.
    pub dead_at: Time,
    /// When it was closed.
    #[serde(default)]
    pub closed_at: Option<Time>,
    /// By whom.
    #[serde(default)]
    pub closed_by: Option<String>,
    /// When retention removes it.
    #[serde(default)]
    pub expires_at: Option<Time>,
    /// Somebody wants it kept: it does not expire.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// Neither consumers nor automatic redrives are given it before then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snoozed_until: Option<Time>,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What people put on it; the message's own tags are the message's.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub labels: BTreeSet<String>,
    /// How it was closed before it was purged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purged_from: Option<Status>,
    /// What people said.
    #[serde(default)]
    pub notes: Vec<Note>,
    /// Every death and every act, oldest first: the first [`limits::LETTER_EVENTS_FIRST`] and the last
    /// [`limits::LETTER_EVENTS_LAST`] of them. A letter that an older format filed begins here with what was done
    /// since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<Moment>,
    /// How many were between the first and the last.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub history_omitted: u32,
    /// Changes with every change; acts may insist on it.
    pub version: u64,
    /// Its ordering key is held until it is closed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub holds_key: bool,
    /// A dead-letter consumer may lease it from then on.
    #[serde(default)]
    pub available_at: Time,
    /// The operation that sent it back, the last time it was sent back, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<OperationId>,
    /// Who works on it as a dead-letter consumer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// Until when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer_until: Option<Time>,
    /// How its content was changed, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edits: Vec<EditMark>,
    /// That its content is gone for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erased: Option<Erased>,
    /// Whoever waits for a reply was not told of this death, because the letter goes back to work by itself. The
    /// reply goes out when it turns out that it does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owes_reply: bool,
    /// The hash of the body it was enqueued with, once that is not its body any more: whoever sends the message
    /// again sends that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_hash: Option<String>,
}

impl File {
    /// The file of a message that just died. `previous` is its file from an earlier death, which is reopened.
    #[must_use]
    pub fn of_death(
        slip: impl Into<Slip>,
        life: &Life,
        policy: &QueuePolicy,
        failure: &Analysed,
        reason: Reason,
        previous: Option<&Self>,
        now: Time,
    ) -> Self {
        let slip = slip.into();
        let quarantine = policy.quarantine(failure.route);
        let alert = policy.alerts(failure.category, failure.route);
        let redrives = previous.map_or(0, |before| before.redrives);
        // Whoever comes back that often is for a person.
        let too_often = quarantine.is_none() && redrives >= policy.max_redrives;
        let held = previous.is_some_and(|before| before.held);
        let mut file = Self {
            dlq: policy.drawer(&slip.queue, failure.route),
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
            first_failed_at: life.failing_since.or(Some(now)),
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
            holds_key: slip.ordering_key.is_some() && policy.on_dead == OnDead::Hold,
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
            file.redrives = before.redrives;
            file.operation = before.operation;
            file.redriven.clone_from(&before.redriven);
            file.owner.clone_from(&before.owner);
            file.labels.clone_from(&before.labels);
            file.first_failed_at = before.first_failed_at;
            file.notes.clone_from(&before.notes);
            file.edits.clone_from(&before.edits);
            file.body_hash.clone_from(&before.body_hash);
            file.history.clone_from(&before.history);
            file.history_omitted = before.history_omitted;
            file.version = before.version + 1;
        }
        file.owes_reply = slip.reply_to.is_some() && file.returns_by_itself(policy);
        file.record_death(&slip.queue, life.generation);
        file
    }
}

/// One act on one letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActRequest {
    /// The letter.
    pub id: MessageId,
    /// What to do.
    #[serde(flatten)]
    pub act: Act,
    /// Who, and why.
    pub actor: Actor,
    /// Refuse unless the letter is still at this version.
    #[serde(default)]
    pub expected_version: Option<u64>,
}

impl ActRequest {
    /// What is done with a letter whose quarantine ends in a queue that takes such work back by itself.
    #[must_use]
    pub fn release_to_queue(id: MessageId) -> Self {
        let reason = Some("quarantine ended".to_owned());
        let actor = Actor { name: "system".into(), source: "system".into(), reason };
        Self { id, act: Act::retry(), actor, expected_version: None }
    }
}

/// A dead letter as people see it: the message, the file and the failures, in one flat list of fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeadLetter {
    /// The message.
    #[serde(flatten)]
    pub message: Message,
    /// The file.
    #[serde(flatten)]
    pub file: File,
    /// The template of its last failure's signature.
    pub signature: String,
    /// The group its leaf belongs to.
    pub group: GroupId,
    /// The last failure's error.
    pub error: ErrorInfo,
    /// Whether it may be sent back as it stands.
    pub eligible: bool,
    /// Whether a person is asked for.
    pub review_required: bool,
    /// The order of deaths; a later death has a higher number.
    pub death: u64,
    /// Its earlier contents, oldest first; only where the whole lineage is asked for, as in a full export.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revisions: Vec<Revision>,
}

impl DeadLetter {
    /// Puts the parts together. `failures` is the kept history, oldest first.
    #[must_use]
    pub fn assemble(
        mut message: Message,
        file: File,
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
            eligible: file.eligible(),
            review_required: file.status == Status::Review,
            death,
            revisions: Vec::new(),
            message,
            file,
        }
    }

    /// The identity.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.message.envelope.id
    }
}

/// A letter handed to a dead-letter consumer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LetterDelivery {
    /// The letter.
    #[serde(flatten)]
    pub letter: DeadLetter,
    /// The right to settle it.
    pub token: LeaseToken,
}

/// How long a letter rests after its consumer failed.
pub const CONSUMER_BACKOFF: Span = Span::from_hours(1);
/// How long a consumer's lease lasts when it does not say.
pub const CONSUMER_LEASE: Span = Span::from_secs(300);
