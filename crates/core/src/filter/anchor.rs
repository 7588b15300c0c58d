//! What a store can know of a filter before it reads a row: values that every match has, so that an index finds
//! the candidates, and which parts of a letter the evaluator will look at. Says nothing about where a store keeps
//! anything.

use super::Filter;
use super::field::Field;
use super::parser::{Expr, Term, Test};
use crate::ids::{GroupId, LeafId, MessageId};

/// Values of one field, one of which every letter that matches has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// The message's id.
    Ids(Vec<MessageId>),
    /// The idempotency key.
    Keys(Vec<String>),
    /// The leaf.
    Leaves(Vec<LeafId>),
    /// The group.
    Groups(Vec<GroupId>),
    /// The name of the status.
    Statuses(Vec<&'static str>),
}

/// Which parts of a letter, beside its row, a filter looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Payload, headers, tags, trace, context, when it was enqueued.
    pub body: bool,
    /// The kept failures.
    pub failures: bool,
}

impl Filter {
    /// What every letter that matches has, in the order of the text. Empty when nothing can be said.
    #[must_use]
    pub fn anchors(&self) -> Vec<Anchor> {
        let parts = match &self.expr {
            Some(Expr::All(parts)) => parts.as_slice(),
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        parts.iter().filter_map(anchor).collect()
    }

    /// What of a letter [`Filter::matches_letter`] looks at; the rest may be left empty.
    #[must_use]
    pub fn needs(&self) -> Needs {
        self.terms().into_iter().fold(Needs::default(), |needs, term| {
            let (body, failures) = parts_of(&term.field);
            Needs { body: needs.body || body, failures: needs.failures || failures }
        })
    }
}

fn anchor(part: &Expr) -> Option<Anchor> {
    let Expr::Term(Term { field, negated: false, test, .. }) = part else { return None };
    match (field, test) {
        (_, Test::Ids(ids)) => Some(Anchor::Ids(ids.clone())),
        (_, Test::Leaves(groups)) => Some(Anchor::Groups(groups.clone())),
        (_, Test::Signature(leaves, templates)) if templates.is_empty() => {
            Some(Anchor::Leaves(leaves.clone()))
        }
        (Field::Status, Test::Names(names)) => Some(Anchor::Statuses(names.clone())),
        (Field::Key, Test::Texts(patterns)) => {
            let exact = |p: &super::pattern::Pattern| p.as_exact().map(str::to_owned);
            patterns.iter().map(exact).collect::<Option<_>>().map(Anchor::Keys)
        }
        (_, _) => None,
    }
}

/// Whether a letter's value of a field lies in its body, and whether in its failures.
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
    fn only_what_every_match_has_is_an_anchor() {
        let anchors = |text: &str| Filter::parse(text).unwrap().anchors();
        let key = |k: &str| Anchor::Keys(vec![k.into()]);
        assert_eq!(anchors("key:a"), [key("a")]);
        assert_eq!(
            anchors("queue:q key:a,b status:review"),
            [Anchor::Keys(vec!["a".into(), "b".into()]), Anchor::Statuses(vec!["review"])]
        );
        assert_eq!(anchors("group:00000000000000ff"), [Anchor::Groups(vec![GroupId::new(255)])]);
        assert_eq!(anchors("signature:00000000000000ff"), [Anchor::Leaves(vec![LeafId::new(255)])]);
        for text in ["", "key:a or queue:b", "not key:a", "key!=a", "key:a*", "signature:ff,text", "timeout"]
        {
            assert_eq!(anchors(text), [], "{text}");
        }
    }

    #[test]
    fn a_filter_says_what_it_looks_at() {
        for (text, body, failures) in [
            ("", false, false),
            ("queue:a attempts>3 group:00000000000000ff", false, false),
            ("queue:a or not tag:x", true, false),
            ("timeout", false, true),
            ("payload.a:1 worker:w", true, true),
        ] {
            assert_eq!(Filter::parse(text).unwrap().needs(), Needs { body, failures }, "{text}");
        }
    }
}
