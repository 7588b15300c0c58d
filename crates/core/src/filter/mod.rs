//! The filter language: one strict parser for CLI, API and dashboard (PRODUCT.md section 5).
//!
//! `queue:payments error:"timeout" attempts>3 age>2h status:pending payload.order.id:4411`
//!
//! - Terms side by side are all wanted; `and`, `or`, `not` and parentheses combine them, `or` binding least.
//! - `field:value` and `field=value` say the same: equality, `*` in an unquoted value of a text field stands
//!   for anything, `a,b` is any of, `a..b` is from a to b, both included, and either end may be left out.
//! - `field!=value` wants the field to be there and to be something else; `not field:value` is also true when
//!   the field is missing.
//! - `>`, `>=`, `<`, `<=` compare numbers, durations, times and numbers in JSON.
//! - `died:2h` is "within the last two hours", for every field that is a time.
//! - A word or quoted text without a field is text in the last error's type or message, in any case.
//!   `payload:"text"`, without a path, is text in the payload, in its first 64 KiB.
//! - In JSON an unquoted value matches a string, number, `true`, `false` or `null` that reads the same, a
//!   quoted one only a string. Numbers are compared exactly at any size. `payload.x:*` asks for presence.
//!   A key with a dot or space is quoted: `payload."order.id":7`.
//!
//! A filter that is wrong in any way is an error that shows where, and touches nothing. This module must not
//! guess what was meant, run code from a filter, or know how a store lays out its data: [`sql`] only narrows
//! what a store reads, and [`Filter::matches_letter`] and [`Filter::matches_message`] decide.

mod anchor;
mod eval;
mod field;
mod item;
mod json;
mod lexer;
mod parser;
mod pattern;
pub mod sql;
#[cfg(test)]
mod tests;
mod wording;

pub use anchor::{Anchor, Needs};
pub use field::Field;
pub use item::ItemFilter;
pub(crate) use json::Decimal;
pub use wording::{Wording, document, unreadable};

use crate::dead_letter::{DeadLetter, Status};
use crate::ids::{GroupId, serde_as_text};
use crate::limits;
use crate::message::Message;
use crate::short_id::{IdKind, IdTail};
use crate::time::Time;
use parser::{Expr, Term};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// What stands at a path of a JSON document, if that is text, a number, `true` or `false`.
pub(crate) fn text_at(bytes: &[u8], path: &[String]) -> Option<String> {
    match json::in_bytes(bytes, path)? {
        json::Place::Text(text) | json::Place::Number(text) => Some(text.into_owned()),
        json::Place::Word("null") | json::Place::Nested => None,
        json::Place::Word(word) => Some(word.to_owned()),
    }
}

/// A parsed filter; the empty one matches everything. Written and stored as its text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    text: String,
    expr: Option<Expr>,
}

impl Filter {
    /// Reads a filter. Text of nothing but spaces is the filter that matches everything.
    ///
    /// # Errors
    /// [`FilterError`] for one thing that is wrong, with its position; there may be more.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        too_long(text)?;
        let expr = lexer::lex(text).and_then(|tokens| parser::parse(tokens, text.len()));
        Ok(Self { text: text.to_owned(), expr: expr.map_err(|fault| fault.into_error(text))? })
    }

    /// The text it was read from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it says nothing and so matches everything; acts on many items ask for more than that.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.expr.is_none()
    }

    /// The groups it names.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupId> {
        let named = |term: &&Term| match &term.test {
            parser::Test::Leaves(groups) => groups.clone(),
            parser::Test::Ids(_)
            | parser::Test::Signature(..)
            | parser::Test::Names(_)
            | parser::Test::Texts(_)
            | parser::Test::Reaches(_)
            | parser::Test::Json(_) => Vec::new(),
        };
        self.terms().iter().flat_map(named).collect()
    }

    /// The filter with its groups called by the names they have now: merged ones live on under another.
    #[must_use]
    pub fn with_groups(&self, name_of: impl Fn(GroupId) -> GroupId) -> Self {
        let mut filter = self.clone();
        if let Some(expr) = &mut filter.expr {
            expr.rename_groups(&name_of);
        }
        filter
    }

    /// Whether it asks for purged letters. They are left out of everything that does not.
    #[must_use]
    pub fn names_purged(&self) -> bool {
        let purged = |term: &&Term| match &term.test {
            parser::Test::Names(names) => {
                term.field == Field::Status && names.contains(&Status::Purged.name())
            }
            parser::Test::Ids(_)
            | parser::Test::Leaves(_)
            | parser::Test::Signature(..)
            | parser::Test::Texts(_)
            | parser::Test::Reaches(_)
            | parser::Test::Json(_) => false,
        };
        self.terms().iter().any(purged)
    }

    /// Whether this letter is meant, at this instant. A purged one only when the filter asks for such, and one whose
    /// retention has ended never: it is as good as removed, whether or not maintenance has come to it.
    #[must_use]
    pub fn matches_letter(&self, letter: &DeadLetter, now: Time) -> bool {
        if letter.file.status == Status::Purged && !self.names_purged() || letter.file.is_past_retention(now)
        {
            return false;
        }
        self.expr.as_ref().is_none_or(|expr| eval::Subject::letter(letter, now).satisfies(expr))
    }

    /// Whether this message is meant, at this instant. Fields that only letters have do not match.
    #[must_use]
    pub fn matches_message(&self, message: &Message, now: Time) -> bool {
        self.expr.as_ref().is_none_or(|expr| eval::Subject::message(message, now).satisfies(expr))
    }

    /// Refuses fields that only dead letters have, so that a list of messages is not silently empty.
    ///
    /// # Errors
    /// [`FilterError`] at the first such field.
    pub fn check_for_messages(&self) -> Result<(), FilterError> {
        let Some(term) = self.terms().into_iter().find(|term| term.field.is_of_letters()) else {
            return Ok(());
        };
        let name = term.field.name();
        let nearest =
            field::nearest(name, field::NAMED.iter().filter(|f| !f.is_of_letters()).map(Field::name));
        let what = format!("only dead letters have the field {name:?}");
        Err(Fault { nearest, ..Fault::new(term.at, what) }.into_error(&self.text))
    }

    /// Whether [`Filter::matches_message`] looks at the kept failures. Lists leave them out, so a store fills
    /// them in first when this says so.
    #[must_use]
    pub fn needs_failures(&self) -> bool {
        self.terms().iter().any(|term| term.field.is_of_failures())
    }

    /// Every term, in the order of the text.
    fn terms(&self) -> Vec<&Term> {
        let mut found = Vec::new();
        if let Some(expr) = &self.expr {
            expr.collect_terms(&mut found);
        }
        found
    }
}

/// Refuses a filter that nobody wrote by hand.
fn too_long(text: &str) -> Result<(), FilterError> {
    if text.len() <= limits::FILTER_BYTES_MAX {
        return Ok(());
    }
    let at = (0..=limits::FILTER_BYTES_MAX).rfind(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let what = format!("filter of {} bytes is longer than {}", text.len(), limits::FILTER_BYTES_MAX);
    Err(Fault::new(at, what).into_error(text.get(..at).unwrap_or_default()))
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}
serde_as_text!(Filter);

/// Why a text is not a filter: what, where, and the known word that comes nearest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// The filter's text; of one that is too long, as much as would have been allowed.
    pub text: String,
    /// The byte where it goes wrong; at a character's start or at the end of the text.
    pub at: usize,
    /// What is wrong.
    pub what: String,
    /// The known word that was probably meant.
    pub nearest: Option<String>,
    /// The short id that stands where it goes wrong. Whoever can look it up puts the whole id in its place.
    pub short_id: Option<Box<(IdKind, IdTail)>>,
}

impl FilterError {
    /// The filter's text with this whole id in place of the short one.
    #[must_use]
    pub fn with_whole_id(&self, id: &str) -> Option<String> {
        let (before, after) = self.text.split_at_checked(self.at)?;
        let end = after.find(|c: char| !c.is_ascii_hexdigit() && c != '-').unwrap_or(after.len());
        Some(format!("{before}{id}{}", after.get(end..)?))
    }
}

/// Characters of the text that an error shows before and after the position.
const SHOWN_BEFORE: usize = 60;
const SHOWN_AFTER: usize = 40;

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = self.text.split_at_checked(self.at).unwrap_or((&self.text, ""));
        let column = before.chars().count();
        write!(f, "{} at column {}", self.what, column + 1)?;
        if let Some(word) = &self.nearest {
            write!(f, "; did you mean {word:?}?")?;
        }
        // A tab or an escape sequence would move the caret or worse; every control character is one blank.
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let skipped = column.saturating_sub(SHOWN_BEFORE);
        let shown: String =
            before.chars().skip(skipped).chain(after.chars().take(SHOWN_AFTER)).map(plain).collect();
        let (cut, width) = if skipped > 0 { ("…", column - skipped + 1) } else { ("", column) };
        let more = if after.chars().nth(SHOWN_AFTER).is_some() { "…" } else { "" };
        write!(f, "\n  {cut}{shown}{more}\n  {:width$}^", "")
    }
}

impl std::error::Error for FilterError {}

/// A [`FilterError`] that does not know its text yet; what lexer and parser speak.
#[derive(Debug)]
struct Fault {
    at: usize,
    what: String,
    nearest: Option<String>,
    short_id: Option<Box<(IdKind, IdTail)>>,
}

impl Fault {
    fn new(at: usize, what: impl Into<String>) -> Self {
        Self { at, what: what.into(), nearest: None, short_id: None }
    }

    /// With the known word that comes nearest to a wrong one, if one comes near.
    fn near<'a>(self, wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        Self { nearest: field::nearest(wrong, known), ..self }
    }

    fn into_error(self, text: &str) -> FilterError {
        let Self { at, what, nearest, short_id } = self;
        FilterError { text: text.to_owned(), at, what, nearest, short_id }
    }
}
