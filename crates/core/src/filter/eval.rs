//! Decides whether a letter or message is meant. This is the authority: stores may read less because of
//! `sql`, never answer differently. Pure; the payload is looked at only for a term that names it.

use super::field::Field;
use super::json::{self, Place};
use super::parser::{Expr, Reach, Term, Test};
use super::pattern::Pattern;
use crate::dead_letter::{DeadLetter, Status};
use crate::failure::{ErrorInfo, Failure};
use crate::ids::{LeafId, MessageId};
use crate::limits;
use crate::message::Message;
use crate::time::Time;
use std::borrow::Cow;

/// What a filter is held against.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    message: &'a Message,
    letter: Option<&'a DeadLetter>,
    now: Time,
}

/// The value of a field.
enum Found<'a> {
    /// There is none.
    Missing,
    Id(MessageId),
    Leaf(LeafId),
    Signature(LeafId, &'a str),
    Name(&'static str),
    Text(&'a str),
    /// Text that had to be made.
    Made(Cow<'a, str>),
    /// Several texts, any of which counts.
    Texts(Vec<&'a str>),
    /// The same, of texts that had to be made.
    Several(Vec<String>),
    Number(i64),
    Json(Place<'a>),
}

impl<'a> Found<'a> {
    fn text(text: Option<&'a String>) -> Self {
        text.map_or(Self::Missing, |text| Self::Text(text))
    }

    fn time(time: Option<Time>) -> Self {
        time.map_or(Self::Missing, |time| Self::Number(time.as_millis()))
    }

    fn json(place: Option<Place<'a>>) -> Self {
        place.map_or(Self::Missing, Self::Json)
    }
}

impl<'a> Subject<'a> {
    pub(super) fn letter(letter: &'a DeadLetter, now: Time) -> Self {
        Self { message: &letter.message, letter: Some(letter), now }
    }

    pub(super) fn message(message: &'a Message, now: Time) -> Self {
        Self { message, letter: None, now }
    }

    /// Whether the expression is true of it.
    pub(super) fn satisfies(&self, expr: &Expr) -> bool {
        match expr {
            Expr::All(parts) => parts.iter().all(|part| self.satisfies(part)),
            Expr::Any(parts) => parts.iter().any(|part| self.satisfies(part)),
            Expr::Not(inner) => !self.satisfies(inner),
            Expr::Term(term) => self.passes(term),
        }
    }

    /// A missing field passes no test, not even `!=`.
    fn passes(&self, term: &Term) -> bool {
        let fits = |patterns: &[Pattern], text: &str| patterns.iter().any(|p| p.matches(text));
        let hit = match (&term.test, self.find(&term.field)) {
            (Test::Ids(ids), Found::Id(id)) => ids.contains(&id),
            (Test::Leaves(leaves), Found::Leaf(leaf)) => leaves.contains(&leaf),
            (Test::Signature(leaves, templates), Found::Signature(leaf, template)) => {
                leaves.contains(&leaf) || fits(templates, template)
            }
            (Test::Names(names), Found::Name(name)) => names.contains(&name),
            (Test::Texts(patterns), Found::Text(text)) => fits(patterns, text),
            (Test::Texts(patterns), Found::Made(text)) => fits(patterns, &text),
            (Test::Texts(patterns), Found::Texts(texts)) => {
                if texts.is_empty() {
                    return false;
                }
                texts.iter().any(|text| fits(patterns, text))
            }
            (Test::Texts(patterns), Found::Several(texts)) => {
                if texts.is_empty() {
                    return false;
                }
                texts.iter().any(|text| fits(patterns, text))
            }
            (Test::Reaches(reaches), Found::Number(n)) => {
                reaches.iter().any(|reach| reach.holds(n, self.now))
            }
            (Test::Json(wants), Found::Json(place)) => wants.iter().any(|want| want.matches(&place)),
            // Whatever is missing; the parser lets no other pair of test and field come into being.
            (_, _) => return false,
        };
        hit != term.negated
    }

    /// Where each field's value lies.
    fn find(&self, field: &Field) -> Found<'a> {
        let message = self.message;
        let envelope = &message.envelope;
        let number = |n: u32| Found::Number(i64::from(n));
        match field {
            Field::Id => Found::Id(envelope.id),
            Field::Queue => Found::Text(envelope.queue.as_str()),
            Field::Kind => Found::Text(&envelope.kind),
            Field::State => Found::Name(message.state.name()),
            Field::Priority => Found::Name(envelope.priority.name()),
            Field::Attempts => number(message.attempts),
            Field::Deliveries => number(message.deliveries),
            Field::Generation => number(message.generation),
            Field::Failures => number(message.failed),
            Field::Age => {
                let born = self.letter.map_or(envelope.enqueued_at, |letter| letter.file.dead_at);
                Found::Number(i64::try_from(self.now.since(born).as_millis()).unwrap_or(i64::MAX))
            }
            Field::Failed => Found::time(match self.letter {
                Some(letter) => letter.file.last_failed_at,
                None => message.failures.last().map(|failure| failure.at),
            }),
            Field::Enqueued => Found::time(Some(envelope.enqueued_at)),
            Field::Worker => {
                let past = message.failures.iter().filter_map(|failure| failure.worker.as_deref());
                Found::Texts(past.chain(message.leased_by.as_deref()).collect())
            }
            Field::Host => self.of_failures(|failure| failure.host.as_deref()),
            Field::Step => self.of_failures(|failure| failure.step.as_deref()),
            Field::Version => self.of_failures(|failure| failure.version.as_deref()),
            Field::Tag => {
                let labels = self.letter.into_iter().flat_map(|letter| &letter.file.labels);
                Found::Texts(envelope.tags.iter().chain(labels).map(String::as_str).collect())
            }
            Field::Key => Found::text(envelope.key.as_ref()),
            Field::OrderingKey => Found::text(envelope.ordering_key.as_ref()),
            Field::Trace => Found::text(envelope.trace.as_ref()),
            Field::Type => Found::text(self.error().map(|error| &error.error_type)),
            Field::Code => Found::text(self.error().and_then(|error| error.code.as_ref())),
            Field::Error => self.error().map_or(Found::Missing, |error| {
                Found::Texts(vec![error.error_type.as_str(), error.message.as_str()])
            }),
            Field::Header(name) => Found::text(envelope.headers.get(name)),
            Field::PayloadText => {
                let bytes = &envelope.payload.bytes;
                let first = bytes.get(..limits::SEARCH_PAYLOAD_BYTES_MAX).unwrap_or(bytes);
                Found::Made(String::from_utf8_lossy(first))
            }
            Field::Payload(path) => Found::json(json::in_bytes(&envelope.payload.bytes, path)),
            Field::Context(path) => {
                Found::json(envelope.context.as_ref().and_then(|context| json::in_value(context, path)))
            }
            Field::Dlq => self.on_file(|l| Found::Text(l.file.dlq.as_str())),
            Field::Status => self.on_file(|l| Found::Name(l.file.status.name())),
            Field::Reason => self.on_file(|l| Found::Name(l.file.reason.name())),
            Field::Route => self.on_file(|l| Found::Name(l.file.route.name())),
            Field::Category => self.on_file(|l| Found::Name(l.file.category.name())),
            Field::Severity => self.on_file(|l| Found::Name(l.file.severity.name())),
            Field::Signature => self.on_file(|l| Found::Signature(l.file.leaf, &l.signature)),
            Field::Group => self.on_file(|l| Found::Leaf(l.group)),
            Field::Redrives => self.on_file(|l| Found::Number(i64::from(l.file.redrives))),
            Field::Owner => self.on_file(|l| Found::text(l.file.owner.as_ref())),
            Field::Held => self.on_file(|l| Found::Name(yes_or_no(l.file.held))),
            Field::Snoozed => {
                let asleep = |l: &DeadLetter| l.file.snoozed_until.is_some_and(|until| until > self.now);
                self.on_file(|l| Found::Name(yes_or_no(asleep(l))))
            }
            Field::Edited => self.on_file(|l| Found::Name(yes_or_no(!l.file.edits.is_empty()))),
            Field::FirstFailed => self.on_file(|l| Found::time(l.file.first_failed_at)),
            Field::Closed => self.on_file(|l| Found::time(l.file.closed_at)),
            Field::ClosedBy => self.on_file(|l| Found::text(l.file.closed_by.as_ref())),
            Field::Resolution => self.on_file(|l| Found::text(l.file.resolution.as_ref())),
            Field::Recoverability => self.on_file(|l| Found::Name(l.file.recoverability.name())),
            Field::Eligible => self.on_file(|l| Found::Name(yes_or_no(l.file.eligible()))),
            Field::ReviewRequired => {
                self.on_file(|l| Found::Name(yes_or_no(l.file.status == Status::Review)))
            }
            Field::Alert => self.on_file(|l| Found::Name(yes_or_no(l.file.alert))),
            Field::Erased => self.on_file(|l| Found::Name(yes_or_no(l.file.erased.is_some()))),
            Field::Operation => self.on_file(|l| Found::Several(operations_of(l))),
            Field::Died => self.on_file(|l| Found::time(Some(l.file.dead_at))),
        }
    }

    /// What kept failures say, as far as they do.
    fn of_failures(&self, value: impl Fn(&'a Failure) -> Option<&'a str>) -> Found<'a> {
        Found::Texts(self.message.failures.iter().filter_map(value).collect())
    }

    /// What only letters have.
    fn on_file(&self, value: impl Fn(&'a DeadLetter) -> Found<'a>) -> Found<'a> {
        self.letter.map_or(Found::Missing, value)
    }

    /// The last failure's error.
    fn error(&self) -> Option<&'a ErrorInfo> {
        match self.letter {
            Some(letter) => Some(&letter.error),
            None => self.message.failures.last().map(|failure| &failure.error),
        }
    }
}

/// The operations that changed a letter, as far as it has them on record.
fn operations_of(letter: &DeadLetter) -> Vec<String> {
    let recorded = letter.file.history.iter().filter_map(|event| event.operation);
    recorded.chain(letter.file.operation).map(|id| id.to_string()).collect()
}

/// How a filter names what is or is not so.
const fn yes_or_no(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

impl Reach {
    fn holds(self, n: i64, now: Time) -> bool {
        match self {
            Self::Between(from, to) => (from..=to).contains(&n),
            Self::Last(ms) => n >= now.as_millis().saturating_sub(ms),
        }
    }
}
