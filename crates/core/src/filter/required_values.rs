//! What a store can know about a filter before it reads a row: values that every match has, so that an index finds the
//! candidates, and which parts of a letter the evaluator looks at. It knows nothing about how a store keeps them.

use super::Filter;
use super::field::Field;
use super::parser::{Expr, Term, Test};
use crate::ids::{GroupId, LeafId, MessageId};

/// Values of one field. Every letter that matches has one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequiredValues {
    /// Ids of messages.
    Ids(Vec<MessageId>),
    /// Idempotency keys.
    Keys(Vec<String>),
    /// Leaves.
    Leaves(Vec<LeafId>),
    /// Groups.
    Groups(Vec<GroupId>),
    /// Names of statuses.
    Statuses(Vec<&'static str>),
}

/// The parts of a letter, beside its row, that a filter looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LetterParts {
    /// Payload, headers, tags, trace, context and the time it was enqueued.
    pub body: bool,
    /// The kept failures.
    pub failures: bool,
}

impl Filter {
    /// The values that every matching letter has, in the order of the text. Empty if there are none.
    #[must_use]
    pub fn required_values(&self) -> Vec<RequiredValues> {
        let parts = match &self.expr {
            Some(Expr::All(parts)) => parts.as_slice(),
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        parts.iter().filter_map(required_by).collect()
    }

    /// The parts of a letter that [`Filter::matches_letter`] looks at; the others may be left empty.
    #[must_use]
    pub fn letter_parts(&self) -> LetterParts {
        self.terms().into_iter().fold(LetterParts::default(), |parts, term| {
            let (body, failures) = parts_of(&term.field);
            LetterParts { body: parts.body || body, failures: parts.failures || failures }
        })
    }
}

fn required_by(part: &Expr) -> Option<RequiredValues> {
    let Expr::Term(Term { field, negated: false, test, .. }) = part else { return None };
    match (field, test) {
        (_, Test::Ids(ids)) => Some(RequiredValues::Ids(ids.clone())),
        (_, Test::Leaves(groups)) => Some(RequiredValues::Groups(groups.clone())),
        (_, Test::Signature(leaves, templates)) if templates.is_empty() => {
            Some(RequiredValues::Leaves(leaves.clone()))
        }
        (Field::Status, Test::Names(names)) => Some(RequiredValues::Statuses(names.clone())),
        (Field::Key, Test::Texts(patterns)) => {
            let exact = |p: &super::pattern::Pattern| p.as_exact().map(str::to_owned);
            patterns.iter().map(exact).collect::<Option<_>>().map(RequiredValues::Keys)
        }
        (_, _) => None,
    }
}

/// Whether the value of a field is in the body of a letter, and whether it is in its failures.
const fn parts_of(field: &Field) -> (bool, bool) {
    match field {
        Field::Id
        | Field::Queue
        | Field::Dlq
        | Field::Kind
        | Field::State
        | Field::Status
        | Field::Reason
        | Field::Route
        | Field::Category
        | Field::Severity
        | Field::Group
        | Field::Priority
        | Field::Attempts
        | Field::Deliveries
        | Field::Generation
        | Field::Redrives
        | Field::Owner
        | Field::Held
        | Field::Snoozed
        | Field::Edited
        | Field::FirstFailed
        | Field::Closed
        | Field::ClosedBy
        | Field::Resolution
        | Field::Recoverability
        | Field::Eligible
        | Field::ReviewRequired
        | Field::Alert
        | Field::Erased
        | Field::Operation
        | Field::Failures
        | Field::Age
        | Field::Died
        | Field::Failed
        | Field::Key
        | Field::OrderingKey => (false, false),
        Field::Enqueued
        | Field::Tag
        | Field::Trace
        | Field::Header(_)
        | Field::PayloadText
        | Field::Payload(_)
        | Field::Context(_) => (true, false),
        Field::Signature
        | Field::Worker
        | Field::Host
        | Field::Version
        | Field::Step
        | Field::Type
        | Field::Code
        | Field::Error => (false, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_values_that_every_match_has_are_required() {
        let required = |text: &str| Filter::parse(text).unwrap().required_values();
        let key = |k: &str| RequiredValues::Keys(vec![k.into()]);
        assert_eq!(required("key:a"), [key("a")]);
        assert_eq!(
            required("queue:q key:a,b status:review"),
            [RequiredValues::Keys(vec!["a".into(), "b".into()]), RequiredValues::Statuses(vec!["review"])]
        );
        assert_eq!(required("group:00000000000000ff"), [RequiredValues::Groups(vec![GroupId::new(255)])]);
        assert_eq!(required("signature:00000000000000ff"), [RequiredValues::Leaves(vec![LeafId::new(255)])]);
        for text in ["", "key:a or queue:b", "not key:a", "key!=a", "key:a*", "signature:ff,text", "timeout"]
        {
            assert_eq!(required(text), [], "{text}");
        }
    }

    #[test]
    fn a_filter_knows_the_parts_it_looks_at() {
        for (text, body, failures) in [
            ("", false, false),
            ("queue:a attempts>3 group:00000000000000ff", false, false),
            ("queue:a or not tag:x", true, false),
            ("timeout", false, true),
            ("payload.a:1 worker:w", true, true),
        ] {
            assert_eq!(Filter::parse(text).unwrap().letter_parts(), LetterParts { body, failures }, "{text}");
        }
    }
}
