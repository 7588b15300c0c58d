//! Decides whether a filter matches a letter or message. This is the authority: because of `sql`, a store may read
//! less, but never answer differently. The payload is read only for terms that name it.

use super::field::Field;
use super::json::{self, JsonValue};
use super::parser::{Expr, NumberRange, Term, Test};
use super::pattern::Pattern;
use crate::dead_letter::{DeadLetter, Status};
use crate::failure::{ErrorInfo, Failure};
use crate::ids::{LeafId, MessageId};
use crate::limits;
use crate::message::Message;
use crate::time::Time;
use std::borrow::Cow;

/// What a filter is evaluated against.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    message: &'a Message,
    letter: Option<&'a DeadLetter>,
    now: Time,
}

/// The value of a field.
enum FieldValue<'a> {
    /// The field has no value.
    Missing,
    Id(MessageId),
    Leaf(LeafId),
    Signature(LeafId, &'a str),
    Name(&'static str),
    Text(&'a str),
    /// Text that had to be converted.
    Converted(Cow<'a, str>),
    /// Several texts, any one of which may match.
    Texts(Vec<&'a str>),
    /// The same, with texts that had to be converted.
    ConvertedTexts(Vec<String>),
    Number(i64),
    Json(JsonValue<'a>),
}

impl<'a> FieldValue<'a> {
    fn text(text: Option<&'a String>) -> Self {
        text.map_or(Self::Missing, |text| Self::Text(text))
    }

    fn time(time: Option<Time>) -> Self {
        time.map_or(Self::Missing, |time| Self::Number(time.as_millis()))
    }

    fn json(value: Option<JsonValue<'a>>) -> Self {
        value.map_or(Self::Missing, Self::Json)
    }
}

impl<'a> Subject<'a> {
    pub(super) fn letter(letter: &'a DeadLetter, now: Time) -> Self {
        Self { message: &letter.message, letter: Some(letter), now }
    }

    pub(super) fn message(message: &'a Message, now: Time) -> Self {
        Self { message, letter: None, now }
    }

    /// Whether the expression is true.
    pub(super) fn satisfies(&self, expr: &Expr) -> bool {
        match expr {
            Expr::All(parts) => parts.iter().all(|part| self.satisfies(part)),
            Expr::Any(parts) => parts.iter().any(|part| self.satisfies(part)),
            Expr::Not(inner) => !self.satisfies(inner),
            Expr::Term(term) => self.passes(term),
        }
    }

    /// Whether a term is true. A missing field passes no test, not even `!=`.
    fn passes(&self, term: &Term) -> bool {
        let fits = |patterns: &[Pattern], text: &str| patterns.iter().any(|p| p.matches(text));
        let hit = match (&term.test, self.find(&term.field)) {
            (Test::Ids(ids), FieldValue::Id(id)) => ids.contains(&id),
            (Test::Leaves(leaves), FieldValue::Leaf(leaf)) => leaves.contains(&leaf),
            (Test::Signature(leaves, templates), FieldValue::Signature(leaf, template)) => {
                leaves.contains(&leaf) || fits(templates, template)
            }
            (Test::Names(names), FieldValue::Name(name)) => names.contains(&name),
            (Test::Texts(patterns), FieldValue::Text(text)) => fits(patterns, text),
            (Test::Texts(patterns), FieldValue::Converted(text)) => fits(patterns, &text),
            (Test::Texts(patterns), FieldValue::Texts(texts)) => {
                if texts.is_empty() {
                    return false;
                }
                texts.iter().any(|text| fits(patterns, text))
            }
            (Test::Texts(patterns), FieldValue::ConvertedTexts(texts)) => {
                if texts.is_empty() {
                    return false;
                }
                texts.iter().any(|text| fits(patterns, text))
            }
            (Test::Ranges(ranges), FieldValue::Number(n)) => {
                ranges.iter().any(|range| range.contains(n, self.now))
            }
            (Test::Json(tests), FieldValue::Json(value)) => tests.iter().any(|test| test.matches(&value)),
            // The field is missing. The parser creates no other pair of test and value.
            (_, _) => return false,
        };
        hit != term.negated
    }

    /// The value of a field.
    fn find(&self, field: &Field) -> FieldValue<'a> {
        let message = self.message;
        let envelope = &message.envelope;
        let number = |n: u32| FieldValue::Number(i64::from(n));
        match field {
            Field::Id => FieldValue::Id(envelope.id),
            Field::Queue => FieldValue::Text(envelope.queue.as_str()),
            Field::Kind => FieldValue::Text(&envelope.kind),
            Field::State => FieldValue::Name(message.state.name()),
            Field::Priority => FieldValue::Name(envelope.priority.name()),
            Field::Attempts => number(message.attempts),
            Field::Deliveries => number(message.deliveries),
            Field::Generation => number(message.generation),
            Field::Failures => number(message.failed),
            Field::Age => {
                let since = self.letter.map_or(envelope.enqueued_at, |letter| letter.record.dead_at);
                FieldValue::Number(i64::try_from(self.now.since(since).as_millis()).unwrap_or(i64::MAX))
            }
            Field::Failed => FieldValue::time(match self.letter {
                Some(letter) => letter.record.last_failed_at,
                None => message.failures.last().map(|failure| failure.at),
            }),
            Field::Enqueued => FieldValue::time(Some(envelope.enqueued_at)),
            Field::Worker => {
                let past = message.failures.iter().filter_map(|failure| failure.worker.as_deref());
                FieldValue::Texts(past.chain(message.leased_by.as_deref()).collect())
            }
            Field::Host => self.of_failures(|failure| failure.host.as_deref()),
            Field::Step => self.of_failures(|failure| failure.step.as_deref()),
            Field::Version => self.of_failures(|failure| failure.version.as_deref()),
            Field::Tag => {
                let labels = self.letter.into_iter().flat_map(|letter| &letter.record.labels);
                FieldValue::Texts(envelope.tags.iter().chain(labels).map(String::as_str).collect())
            }
            Field::Key => FieldValue::text(envelope.key.as_ref()),
            Field::OrderingKey => FieldValue::text(envelope.ordering_key.as_ref()),
            Field::Trace => FieldValue::text(envelope.trace.as_ref()),
            Field::Type => FieldValue::text(self.error().map(|error| &error.error_type)),
            Field::Code => FieldValue::text(self.error().and_then(|error| error.code.as_ref())),
            Field::Error => self.error().map_or(FieldValue::Missing, |error| {
                FieldValue::Texts(vec![error.error_type.as_str(), error.message.as_str()])
            }),
            Field::Header(name) => FieldValue::text(envelope.headers.get(name)),
            Field::PayloadText => {
                let bytes = &envelope.payload.bytes;
                let first = bytes.get(..limits::SEARCH_PAYLOAD_BYTES_MAX).unwrap_or(bytes);
                FieldValue::Converted(String::from_utf8_lossy(first))
            }
            Field::Payload(path) => FieldValue::json(json::in_bytes(&envelope.payload.bytes, path)),
            Field::Context(path) => {
                FieldValue::json(envelope.context.as_ref().and_then(|context| json::in_value(context, path)))
            }
            Field::Dlq => self.of_letter(|l| FieldValue::Text(l.record.dlq.as_str())),
            Field::Status => self.of_letter(|l| FieldValue::Name(l.record.status.name())),
            Field::Reason => self.of_letter(|l| FieldValue::Name(l.record.reason.name())),
            Field::Route => self.of_letter(|l| FieldValue::Name(l.record.route.name())),
            Field::Category => self.of_letter(|l| FieldValue::Name(l.record.category.name())),
            Field::Severity => self.of_letter(|l| FieldValue::Name(l.record.severity.name())),
            Field::Signature => self.of_letter(|l| FieldValue::Signature(l.record.leaf, &l.signature)),
            Field::Group => self.of_letter(|l| FieldValue::Leaf(l.group)),
            Field::Redrives => self.of_letter(|l| FieldValue::Number(i64::from(l.record.redrives))),
            Field::Owner => self.of_letter(|l| FieldValue::text(l.record.owner.as_ref())),
            Field::Held => self.of_letter(|l| FieldValue::Name(yes_or_no(l.record.held))),
            Field::Snoozed => {
                let snoozed = |l: &DeadLetter| l.record.snoozed_until.is_some_and(|until| until > self.now);
                self.of_letter(|l| FieldValue::Name(yes_or_no(snoozed(l))))
            }
            Field::Edited => self.of_letter(|l| FieldValue::Name(yes_or_no(!l.record.edits.is_empty()))),
            Field::FirstFailed => self.of_letter(|l| FieldValue::time(l.record.first_failed_at)),
            Field::Closed => self.of_letter(|l| FieldValue::time(l.record.closed_at)),
            Field::ClosedBy => self.of_letter(|l| FieldValue::text(l.record.closed_by.as_ref())),
            Field::Resolution => self.of_letter(|l| FieldValue::text(l.record.resolution.as_ref())),
            Field::Recoverability => self.of_letter(|l| FieldValue::Name(l.record.recoverability.name())),
            Field::Eligible => self.of_letter(|l| FieldValue::Name(yes_or_no(l.record.eligible()))),
            Field::ReviewRequired => {
                self.of_letter(|l| FieldValue::Name(yes_or_no(l.record.status == Status::Review)))
            }
            Field::Alert => self.of_letter(|l| FieldValue::Name(yes_or_no(l.record.alert))),
            Field::Erased => self.of_letter(|l| FieldValue::Name(yes_or_no(l.record.erased.is_some()))),
            Field::Operation => self.of_letter(|l| FieldValue::ConvertedTexts(operations_of(l))),
            Field::Died => self.of_letter(|l| FieldValue::time(Some(l.record.dead_at))),
        }
    }

    /// The values that the kept failures have.
    fn of_failures(&self, value: impl Fn(&'a Failure) -> Option<&'a str>) -> FieldValue<'a> {
        FieldValue::Texts(self.message.failures.iter().filter_map(value).collect())
    }

    /// The value of a field that only letters have.
    fn of_letter(&self, value: impl Fn(&'a DeadLetter) -> FieldValue<'a>) -> FieldValue<'a> {
        self.letter.map_or(FieldValue::Missing, value)
    }

    /// The last failure's error.
    fn error(&self) -> Option<&'a ErrorInfo> {
        match self.letter {
            Some(letter) => Some(&letter.error),
            None => self.message.failures.last().map(|failure| &failure.error),
        }
    }
}

/// The operations that changed a letter, as far as its record names them.
fn operations_of(letter: &DeadLetter) -> Vec<String> {
    let recorded = letter.record.history.iter().filter_map(|event| event.operation);
    recorded.chain(letter.record.operation).map(|id| id.to_string()).collect()
}

const fn yes_or_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

impl NumberRange {
    fn contains(self, n: i64, now: Time) -> bool {
        match self {
            Self::Between(from, to) => (from..=to).contains(&n),
            Self::Last(ms) => n >= now.as_millis().saturating_sub(ms),
        }
    }
}
