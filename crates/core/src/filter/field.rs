//! The fields that a filter may name, the type of value that each has, and which known word a wrong one was probably
//! meant to be. Nothing here reads a message: `eval` knows where the value of a field is.

use crate::dead_letter::Status;
use crate::failure::{Category, Reason, Recoverability, Route, Severity};
use crate::lifecycle::State;
use crate::message::Priority;

/// A field of the filter language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// `id`: the id of the message.
    Id,
    /// `queue`: the name of the queue.
    Queue,
    /// `dlq`: the dead letter queue of a letter.
    Dlq,
    /// `kind`: the kind of the message.
    Kind,
    /// `state`: the state of the message.
    State,
    /// `status`: the status of the letter.
    Status,
    /// `reason`: why the message died.
    Reason,
    /// `route`: which part of the system failed.
    Route,
    /// `category`: the category of the failure.
    Category,
    /// `severity`: how severe the failure is.
    Severity,
    /// `signature`: text in the template, or the id of the leaf as 16 hex digits.
    Signature,
    /// `group`: the id of the group.
    Group,
    /// `priority`: the priority of the message.
    Priority,
    /// `attempts`: executions in this generation.
    Attempts,
    /// `deliveries`: leases ever granted.
    Deliveries,
    /// `generation`: incremented by every redrive.
    Generation,
    /// `redrives`: how often the letter was redriven.
    Redrives,
    /// `failures`: failed deliveries ever.
    Failures,
    /// `age`: how long ago a letter died or a message was enqueued.
    Age,
    /// `owner`: to whom the letter is assigned.
    Owner,
    /// `held`: whether the letter is kept from expiring, `yes` or `no`.
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
    /// `closed`: when the letter was closed; missing while it is open.
    Closed,
    /// `closed_by`: who closed the letter.
    ClosedBy,
    /// `resolution`: how the letter was closed, in the words of the person who closed it.
    Resolution,
    /// `recoverability`: what it takes to recover.
    Recoverability,
    /// `eligible`: whether the letter may be redriven as it is, `yes` or `no`.
    Eligible,
    /// `review_required`: whether a person has to review the letter, `yes` or `no`.
    ReviewRequired,
    /// `alert`: whether the letter raises an alert, `yes` or `no`.
    Alert,
    /// `erased`: whether the content of the letter was erased for good, `yes` or `no`.
    Erased,
    /// `operation`: the id of an operation that changed the letter.
    Operation,
    /// `step`: the step in which a kept failure happened.
    Step,
    /// `edited`: whether the content of the letter was changed, `yes` or `no`.
    Edited,
    /// `worker`: the worker that holds the lease, or that worked on a kept failure.
    Worker,
    /// `host`: the host on which a kept failure happened.
    Host,
    /// `version`: the version of the worker at a kept failure.
    Version,
    /// `tag`: any of the tags of the message, or of the labels of the letter.
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
    /// `error`, or text without a field: text in the type or message of the last error.
    Error,
    /// `header.NAME`: one header.
    Header(String),
    /// `payload`, without a path: text in the payload.
    PayloadText,
    /// `payload.path`: the value at a path in the payload, read as JSON.
    Payload(Vec<String>),
    /// `context.path`: the value at a path in the JSON context.
    Context(Vec<String>),
}

/// The fields that are named by a single word.
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

/// The names that are followed by a dot and a path, with an example for each.
pub(super) const DOTTED: [(&str, &str); 3] =
    [("header", "header.tenant"), ("payload", "payload.order.id"), ("context", "context.repository")];

/// The names of fields in the JSON of messages and letters, where the filter has a shorter name.
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

/// The type of a field, which decides the operators and values it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FieldType {
    /// A message id.
    Id,
    /// A group id.
    Leaf,
    /// The name of a queue or dead letter queue.
    QueueName,
    /// Text that is compared as a whole.
    Text,
    /// Text that is searched.
    Search,
    /// Text that is searched, or a leaf id.
    Signature,
    /// One of these names.
    OneOf(Vec<&'static str>),
    /// A whole number.
    Number,
    /// A duration.
    Span,
    /// An instant.
    Time,
    /// A value in a JSON document.
    Json,
}

impl Field {
    /// The names of all fields, for completion. Those that take a path are among them without one.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(Self::name).chain(DOTTED.iter().map(|(name, _)| *name))
    }

    /// The name in a filter; for headers, payload and context the word before the first dot.
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

    /// The type of its values.
    pub(super) fn field_type(&self) -> FieldType {
        match self {
            Self::Id => FieldType::Id,
            Self::Group => FieldType::Leaf,
            Self::Queue | Self::Dlq => FieldType::QueueName,
            Self::State => FieldType::OneOf(State::ALL.iter().map(|v| v.name()).collect()),
            Self::Status => FieldType::OneOf(Status::ALL.iter().map(|v| v.name()).collect()),
            Self::Reason => FieldType::OneOf(Reason::ALL.iter().map(|v| v.name()).collect()),
            Self::Route => FieldType::OneOf(Route::ALL.iter().map(|v| v.name()).collect()),
            Self::Category => FieldType::OneOf(Category::ALL.iter().map(|v| v.name()).collect()),
            Self::Severity => FieldType::OneOf(Severity::ALL.iter().map(|v| v.name()).collect()),
            Self::Priority => FieldType::OneOf(Priority::ALL.iter().map(|v| v.name()).collect()),
            Self::Recoverability => FieldType::OneOf(Recoverability::ALL.iter().map(|v| v.name()).collect()),
            Self::Held
            | Self::Snoozed
            | Self::Edited
            | Self::Eligible
            | Self::ReviewRequired
            | Self::Alert
            | Self::Erased => FieldType::OneOf(vec!["yes", "no"]),
            Self::Signature => FieldType::Signature,
            Self::Attempts | Self::Deliveries | Self::Generation | Self::Redrives | Self::Failures => {
                FieldType::Number
            }
            Self::Age => FieldType::Span,
            Self::Died | Self::Failed | Self::FirstFailed | Self::Closed | Self::Enqueued => FieldType::Time,
            Self::Error | Self::PayloadText => FieldType::Search,
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
            | Self::Header(_) => FieldType::Text,
            Self::Payload(_) | Self::Context(_) => FieldType::Json,
        }
    }

    /// Whether only dead letters have this field.
    pub(super) const fn is_letter_only(&self) -> bool {
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

    /// Whether the value for a message comes from its kept failures.
    pub(super) const fn is_from_failures(&self) -> bool {
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

/// The known word that a wrong one was probably meant to be: one that starts with it, or whose edit distance is at most
/// a third of its length. A guess further off would mislead.
pub(super) fn nearest<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let wrong = wrong.to_lowercase();
    // The distance takes time proportional to both lengths, and a word this long is not a typing mistake.
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

/// The field that was probably meant by an unknown name.
pub(super) fn nearest_field(wrong: &str) -> Option<String> {
    let long = LONG_NAMES.iter().find(|(name, _)| *name == wrong).map(|(_, field)| (*field).to_owned());
    long.or_else(|| nearest(wrong, NAMED.iter().map(Field::name).chain(DOTTED.iter().map(|(name, _)| *name))))
}
