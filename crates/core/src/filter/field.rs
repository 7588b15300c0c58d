//! The fields a filter may name, what kind of value each has, and which known word a wrong one comes nearest
//! to. Nothing in here reads a message: `eval` knows where a field's value lies.

use crate::dead_letter::Status;
use crate::failure::{Category, Reason, Recoverability, Route, Severity};
use crate::lifecycle::State;
use crate::message::Priority;

/// A field of the filter language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// `id`: the message's id.
    Id,
    /// `queue`: the queue's name.
    Queue,
    /// `dlq`: the drawer of a letter.
    Dlq,
    /// `kind`: the operation type.
    Kind,
    /// `state`: where the message is.
    State,
    /// `status`: where the letter stands.
    Status,
    /// `reason`: why it died.
    Reason,
    /// `route`: which part of the world failed.
    Route,
    /// `category`: what kind of failure.
    Category,
    /// `severity`: how bad.
    Severity,
    /// `signature`: text in the template, or the leaf as 16 hex digits.
    Signature,
    /// `group`: the group's id.
    Group,
    /// `priority`: how urgent.
    Priority,
    /// `attempts`: executions of this generation.
    Attempts,
    /// `deliveries`: leases granted ever.
    Deliveries,
    /// `generation`: one more for every redrive.
    Generation,
    /// `redrives`: how often the letter was sent back.
    Redrives,
    /// `failures`: failed deliveries ever.
    Failures,
    /// `age`: how long a letter is dead, how long ago a message was enqueued.
    Age,
    /// `owner`: whose the letter is.
    Owner,
    /// `held`: whether somebody keeps the letter from expiring, `yes` or `no`.
    Held,
    /// `snoozed`: whether the letter is hidden from consumers now, `yes` or `no`.
    Snoozed,
    /// `died`: when the letter died.
    Died,
    /// `failed`: when it last failed.
    Failed,
    /// `enqueued`: when it was first accepted.
    Enqueued,
    /// `first_failed`: when it first failed.
    FirstFailed,
    /// `closed`: when the letter was closed; open ones have no such time.
    Closed,
    /// `closed_by`: who closed the letter.
    ClosedBy,
    /// `resolution`: how the letter was closed, in the words of whoever closed it.
    Resolution,
    /// `recoverability`: what it takes to mend it.
    Recoverability,
    /// `eligible`: whether the letter may be sent back as it stands, `yes` or `no`.
    Eligible,
    /// `review_required`: whether a person is asked for, `yes` or `no`.
    ReviewRequired,
    /// `alert`: whether somebody is to be told of the letter, `yes` or `no`.
    Alert,
    /// `erased`: whether what the letter said is gone for good, `yes` or `no`.
    Erased,
    /// `operation`: the id of an operation that changed the letter.
    Operation,
    /// `step`: the step in which a kept failure happened.
    Step,
    /// `edited`: whether what the letter says was changed, `yes` or `no`.
    Edited,
    /// `worker`: whoever holds it, or worked on a kept failure.
    Worker,
    /// `host`: where a kept failure happened.
    Host,
    /// `version`: the worker's version at a kept failure.
    Version,
    /// `tag`: any of the tags, and of a letter's labels.
    Tag,
    /// `key`: the idempotency key.
    Key,
    /// `ordering_key`: the ordering key.
    OrderingKey,
    /// `trace`: the trace context.
    Trace,
    /// `type`: the last error's type.
    Type,
    /// `code`: the last error's code.
    Code,
    /// `error`, or no field at all: text in the last error's type or message.
    Error,
    /// `header.NAME`: one header.
    Header(String),
    /// `payload`, without a path: text in the payload.
    PayloadText,
    /// `payload.path`: a place in the payload, read as JSON.
    Payload(Vec<String>),
    /// `context.path`: a place in the free JSON context.
    Context(Vec<String>),
}

/// Every field that is named by one word.
pub(super) const NAMED: [Field; 47] = [
    Field::Id,
    Field::Queue,
    Field::Dlq,
    Field::Kind,
    Field::State,
    Field::Status,
    Field::Reason,
    Field::Route,
    Field::Category,
    Field::Severity,
    Field::Signature,
    Field::Group,
    Field::Priority,
    Field::Attempts,
    Field::Deliveries,
    Field::Generation,
    Field::Redrives,
    Field::Failures,
    Field::Age,
    Field::Owner,
    Field::Held,
    Field::Snoozed,
    Field::Edited,
    Field::FirstFailed,
    Field::Closed,
    Field::ClosedBy,
    Field::Resolution,
    Field::Recoverability,
    Field::Eligible,
    Field::ReviewRequired,
    Field::Alert,
    Field::Erased,
    Field::Operation,
    Field::Step,
    Field::Died,
    Field::Failed,
    Field::Enqueued,
    Field::Worker,
    Field::Host,
    Field::Version,
    Field::Tag,
    Field::Key,
    Field::OrderingKey,
    Field::Trace,
    Field::Type,
    Field::Code,
    Field::Error,
];

/// The words before a dot, with an example of what they need.
pub(super) const DOTTED: [(&str, &str); 3] =
    [("header", "header.tenant"), ("payload", "payload.order.id"), ("context", "context.repository")];

/// Names that messages and letters have in JSON, where the filter has a shorter one.
const LONG_NAMES: [(&str, &str); 8] = [
    ("dead_at", "died"),
    ("last_failed_at", "failed"),
    ("first_failed_at", "first_failed"),
    ("closed_at", "closed"),
    ("enqueued_at", "enqueued"),
    ("error_type", "type"),
    ("leased_by", "worker"),
    ("message", "error"),
];

/// What kind of value a field has, and so which operators and values it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A message id.
    Id,
    /// A group id.
    Leaf,
    /// The name of a queue or drawer.
    QueueName,
    /// Text that is compared whole.
    Text,
    /// Text that is looked into.
    Inside,
    /// Text that is looked into, or a leaf.
    Signature,
    /// One of these names.
    OneOf(Vec<&'static str>),
    /// A whole number.
    Number,
    /// A length of time.
    Span,
    /// An instant.
    Time,
    /// A place in a JSON document.
    Json,
}

impl Field {
    /// The word in a filter; for headers, payload and context the word before the first dot.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Queue => "queue",
            Self::Dlq => "dlq",
            Self::Kind => "kind",
            Self::State => "state",
            Self::Status => "status",
            Self::Reason => "reason",
            Self::Route => "route",
            Self::Category => "category",
            Self::Severity => "severity",
            Self::Signature => "signature",
            Self::Group => "group",
            Self::Priority => "priority",
            Self::Attempts => "attempts",
            Self::Deliveries => "deliveries",
            Self::Generation => "generation",
            Self::Redrives => "redrives",
            Self::Failures => "failures",
            Self::Age => "age",
            Self::Owner => "owner",
            Self::Held => "held",
            Self::Snoozed => "snoozed",
            Self::Edited => "edited",
            Self::FirstFailed => "first_failed",
            Self::Closed => "closed",
            Self::ClosedBy => "closed_by",
            Self::Resolution => "resolution",
            Self::Recoverability => "recoverability",
            Self::Eligible => "eligible",
            Self::ReviewRequired => "review_required",
            Self::Alert => "alert",
            Self::Erased => "erased",
            Self::Operation => "operation",
            Self::Step => "step",
            Self::Died => "died",
            Self::Failed => "failed",
            Self::Enqueued => "enqueued",
            Self::Worker => "worker",
            Self::Host => "host",
            Self::Version => "version",
            Self::Tag => "tag",
            Self::Key => "key",
            Self::OrderingKey => "ordering_key",
            Self::Trace => "trace",
            Self::Type => "type",
            Self::Code => "code",
            Self::Error => "error",
            Self::Header(_) => "header",
            Self::PayloadText | Self::Payload(_) => "payload",
            Self::Context(_) => "context",
        }
    }

    /// What kind of value it has.
    pub(super) fn shape(&self) -> Shape {
        match self {
            Self::Id => Shape::Id,
            Self::Group => Shape::Leaf,
            Self::Queue | Self::Dlq => Shape::QueueName,
            Self::State => Shape::OneOf(State::ALL.iter().map(|v| v.name()).collect()),
            Self::Status => Shape::OneOf(Status::ALL.iter().map(|v| v.name()).collect()),
            Self::Reason => Shape::OneOf(Reason::ALL.iter().map(|v| v.name()).collect()),
            Self::Route => Shape::OneOf(Route::ALL.iter().map(|v| v.name()).collect()),
            Self::Category => Shape::OneOf(Category::ALL.iter().map(|v| v.name()).collect()),
            Self::Severity => Shape::OneOf(Severity::ALL.iter().map(|v| v.name()).collect()),
            Self::Priority => Shape::OneOf(Priority::ALL.iter().map(|v| v.name()).collect()),
            Self::Recoverability => Shape::OneOf(Recoverability::ALL.iter().map(|v| v.name()).collect()),
            Self::Held
            | Self::Snoozed
            | Self::Edited
            | Self::Eligible
            | Self::ReviewRequired
            | Self::Alert
            | Self::Erased => Shape::OneOf(vec!["yes", "no"]),
            Self::Signature => Shape::Signature,
            Self::Attempts | Self::Deliveries | Self::Generation | Self::Redrives | Self::Failures => {
                Shape::Number
            }
            Self::Age => Shape::Span,
            Self::Died | Self::Failed | Self::FirstFailed | Self::Closed | Self::Enqueued => Shape::Time,
            Self::Error | Self::PayloadText => Shape::Inside,
            Self::Kind
            | Self::Owner
            | Self::ClosedBy
            | Self::Resolution
            | Self::Operation
            | Self::Step
            | Self::Worker
            | Self::Host
            | Self::Version
            | Self::Tag
            | Self::Key
            | Self::OrderingKey
            | Self::Trace
            | Self::Type
            | Self::Code
            | Self::Header(_) => Shape::Text,
            Self::Payload(_) | Self::Context(_) => Shape::Json,
        }
    }

    /// Whether it stands on a letter's file and nowhere else.
    pub(super) const fn is_of_letters(&self) -> bool {
        matches!(
            self,
            Self::Dlq
                | Self::Status
                | Self::Reason
                | Self::Route
                | Self::Category
                | Self::Severity
                | Self::Signature
                | Self::Group
                | Self::Redrives
                | Self::Owner
                | Self::Held
                | Self::Snoozed
                | Self::Edited
                | Self::FirstFailed
                | Self::Closed
                | Self::ClosedBy
                | Self::Resolution
                | Self::Recoverability
                | Self::Eligible
                | Self::ReviewRequired
                | Self::Alert
                | Self::Erased
                | Self::Operation
                | Self::Died
        )
    }

    /// Whether a message's value of it is found in its kept failures.
    pub(super) const fn is_of_failures(&self) -> bool {
        matches!(
            self,
            Self::Worker
                | Self::Host
                | Self::Version
                | Self::Step
                | Self::Type
                | Self::Code
                | Self::Error
                | Self::Failed
        )
    }
}

/// The known word that a wrong one was probably meant to be: one that it begins, or that is a third of its
/// letters away at most. Further off a guess would mislead.
pub(super) fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let wrong = wrong.to_lowercase();
    // The distance takes time in both lengths, and a word this long is not a slip of the finger.
    if wrong.len() > 40 {
        return None;
    }
    let bound = (wrong.chars().count() / 3).max(1);
    let distance = |word: &str| {
        let begun = wrong.len() > 1 && word.starts_with(&wrong);
        let letters = strsim::damerau_levenshtein(&wrong, word);
        if begun { letters.min(bound) } else { letters }
    };
    let near = known.into_iter().map(|word| (distance(word), word)).filter(|(d, _)| *d <= bound);
    near.min_by_key(|(d, _)| *d).map(|(_, word)| word.to_owned())
}

/// The field that was probably meant by an unknown one.
pub(super) fn nearest_field(wrong: &str) -> Option<String> {
    let long = LONG_NAMES.iter().find(|(name, _)| *name == wrong).map(|(_, field)| (*field).to_owned());
    long.or_else(|| nearest(wrong, NAMED.iter().map(Field::name).chain(DOTTED.iter().map(|(name, _)| *name))))
}
