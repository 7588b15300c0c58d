//! The filter language: one strict parser for CLI, API and dashboard (docs/filters.md).
//!
//! `queue:payments error:"timeout" attempts>3 age>2h status:pending payload.order.id:4411`
//!
//! - Terms side by side must all match; `and`, `or`, `not` and parentheses combine them, and `or` binds least.
//! - `field:value` and `field=value` mean the same: the field equals the value. In an unquoted value of a text field
//!   `*` stands for anything, `a,b` is either of the two, and `a..b` is the range from a to b, both included; either
//!   end may be left out.
//! - `field!=value` requires the field to be present and different; `not field:value` also matches when the field is
//!   missing.
//! - `>`, `>=`, `<`, `<=` compare numbers, durations, times and numbers in JSON.
//! - `died:2h` means "within the last two hours", for every field that is a time.
//! - A word or quoted text without a field is searched in the type and message of the last error, ignoring case.
//!   `payload:"text"`, without a path, searches the first 64 KiB of the payload.
//! - In JSON an unquoted value matches a string, number, `true`, `false` or `null` that is written that way; a quoted
//!   one matches only a string. Numbers are compared exactly at any size. `payload.x:*` matches any value that is
//!   present. A key with a dot or space is quoted: `payload."order.id":7`.
//!
//! A filter with a mistake is an error that says where it is, and touches nothing. This module must not guess what was
//! meant, run code from a filter, or know how a store lays out its data: [`sql`] only narrows what a store reads;
//! [`Filter::matches_letter`] and [`Filter::matches_message`] decide.

mod eval;
mod field;
mod item;
mod json;
mod lexer;
mod parser;
mod pattern;
mod required_values;
pub mod sql;
#[cfg(test)]
mod tests;
mod trigrams;

pub use field::Field;
pub use item::ItemFilter;
pub(crate) use json::Decimal;
pub use required_values::{LetterParts, RequiredValues};
pub use trigrams::{TrigramQuery, document, unreadable_document};

use crate::dead_letter::{DeadLetter, Status};
use crate::ids::{GroupId, serde_as_text};
use crate::limits;
use crate::message::Message;
use crate::short_id::{IdKind, IdSuffix};
use crate::time::Time;
use parser::{Expr, Term};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The value at a path of a JSON document as text, if it is a string, a number, `true` or `false`.
pub(crate) fn text_at(bytes: &[u8], path: &[String]) -> Option<String> {
    match json::in_bytes(bytes, path)? {
        json::JsonValue::Text(text) | json::JsonValue::Number(text) => Some(text.into_owned()),
        json::JsonValue::Word("null") | json::JsonValue::Nested => None,
        json::JsonValue::Word(word) => Some(word.to_owned()),
    }
}

/// A parsed filter. The empty filter matches everything. It is written and stored as its text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    text: String,
    expr: Option<Expr>,
}

impl Filter {
    /// Parses a filter. Text that is empty or only whitespace is the filter that matches everything.
    ///
    /// # Errors
    /// [`FilterError`] for the first mistake found, with its position.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        check_length(text)?;
        let expr = lexer::lex(text).and_then(|tokens| parser::parse(tokens, text.len()));
        Ok(Self { text: text.to_owned(), expr: expr.map_err(|fault| fault.into_error(text))? })
    }

    /// The text it was parsed from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it is empty and so matches everything. Bulk acts require explicit consent for that.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        self.expr.is_none()
    }

    /// The ids of the groups that it names.
    #[must_use]
    pub fn groups(&self) -> Vec<GroupId> {
        let named = |term: &&Term| match &term.test {
            parser::Test::Leaves(groups) => groups.clone(),
            parser::Test::Ids(_)
            | parser::Test::Signature(..)
            | parser::Test::Names(_)
            | parser::Test::Texts(_)
            | parser::Test::Ranges(_)
            | parser::Test::Json(_) => Vec::new(),
        };
        self.terms().iter().flat_map(named).collect()
    }

    /// The filter with the ids of its groups replaced by their current ids: a merged group lives on under another id.
    #[must_use]
    pub fn with_groups(&self, current: impl Fn(GroupId) -> GroupId) -> Self {
        let mut filter = self.clone();
        if let Some(expr) = &mut filter.expr {
            expr.replace_groups(&current);
        }
        filter
    }

    /// Whether it names the status `purged`. Filters that do not never match purged letters.
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
            | parser::Test::Ranges(_)
            | parser::Test::Json(_) => false,
        };
        self.terms().iter().any(purged)
    }

    /// Whether the filter matches a letter at this time. A purged letter matches only if the filter names that status.
    /// A letter whose retention has ended never matches, whether or not maintenance has removed it yet.
    #[must_use]
    pub fn matches_letter(&self, letter: &DeadLetter, now: Time) -> bool {
        if letter.record.status == Status::Purged && !self.names_purged()
            || letter.record.is_past_retention(now)
        {
            return false;
        }
        self.expr.as_ref().is_none_or(|expr| eval::Subject::letter(letter, now).satisfies(expr))
    }

    /// Whether the filter matches a message at this time. Fields that only letters have do not match.
    #[must_use]
    pub fn matches_message(&self, message: &Message, now: Time) -> bool {
        self.expr.as_ref().is_none_or(|expr| eval::Subject::message(message, now).satisfies(expr))
    }

    /// Refuses fields that only dead letters have, so that a list of messages is not silently empty.
    ///
    /// # Errors
    /// [`FilterError`] at the first such field.
    pub fn check_for_messages(&self) -> Result<(), FilterError> {
        let Some(term) = self.terms().into_iter().find(|term| term.field.is_letter_only()) else {
            return Ok(());
        };
        let name = term.field.name();
        let nearest =
            field::nearest(name, field::NAMED.iter().filter(|f| !f.is_letter_only()).map(Field::name));
        let what = format!("only dead letters have the field {name:?}");
        Err(Fault { nearest, ..Fault::new(term.at, what) }.into_error(&self.text))
    }

    /// Whether [`Filter::matches_message`] looks at the kept failures. Lists omit them, so a store must fill them in
    /// first if this is true.
    #[must_use]
    pub fn needs_failures(&self) -> bool {
        self.terms().iter().any(|term| term.field.is_from_failures())
    }

    /// All terms, in the order of the text.
    fn terms(&self) -> Vec<&Term> {
        let mut found = Vec::new();
        if let Some(expr) = &self.expr {
            expr.collect_terms(&mut found);
        }
        found
    }
}

/// Refuses a filter that is longer than anybody would write by hand.
fn check_length(text: &str) -> Result<(), FilterError> {
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

/// Why a text is not a filter: the mistake, its position, and the known word that was probably meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// The text of the filter, cut to the maximum length.
    pub text: String,
    /// The byte position of the mistake: the start of a character, or the end of the text.
    pub at: usize,
    /// The mistake in words.
    pub what: String,
    /// The known word that was probably meant.
    pub nearest: Option<String>,
    /// The short id at that position, if there is one. A caller that can look it up replaces it by the full id.
    pub short_id: Option<Box<(IdKind, IdSuffix)>>,
}

impl FilterError {
    /// The text of the filter with the short id replaced by this full id.
    #[must_use]
    pub fn with_whole_id(&self, id: &str) -> Option<String> {
        let (before, after) = self.text.split_at_checked(self.at)?;
        let end = after.find(|c: char| !c.is_ascii_hexdigit() && c != '-').unwrap_or(after.len());
        Some(format!("{before}{id}{}", after.get(end..)?))
    }
}

/// How many characters of the text an error shows before the position.
const SHOWN_BEFORE: usize = 60;
/// How many characters of the text an error shows after the position.
const SHOWN_AFTER: usize = 40;

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (before, after) = self.text.split_at_checked(self.at).unwrap_or((&self.text, ""));
        let column = before.chars().count();
        write!(f, "{} at column {}", self.what, column + 1)?;
        if let Some(word) = &self.nearest {
            write!(f, "; did you mean {word:?}?")?;
        }
        // A tab or an escape sequence would misplace the caret or worse, so each control character becomes a space.
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

/// A [`FilterError`] without the text of the filter, which lexer and parser do not carry around.
#[derive(Debug)]
struct Fault {
    at: usize,
    what: String,
    nearest: Option<String>,
    short_id: Option<Box<(IdKind, IdSuffix)>>,
}

impl Fault {
    fn new(at: usize, what: impl Into<String>) -> Self {
        Self { at, what: what.into(), nearest: None, short_id: None }
    }

    /// Adds the known word that is nearest to a wrong one, if one is near enough.
    fn near<'a>(self, wrong: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        Self { nearest: field::nearest(wrong, known), ..self }
    }

    fn into_error(self, text: &str) -> FilterError {
        let Self { at, what, nearest, short_id } = self;
        FilterError { text: text.to_owned(), at, what, nearest, short_id }
    }
}
