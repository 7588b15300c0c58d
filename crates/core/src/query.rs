//! Pages: a bounded piece of a list and an opaque cursor to the next. Cursors are positions, not offsets, so
//! a page never repeats or skips an item because others came or went.

use crate::error::Refusal;
use crate::filter::Filter;
use crate::ids::MessageId;
use crate::limits;
use serde::{Deserialize, Serialize};

/// An opaque position. Only the store that made it reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(String);

impl Cursor {
    /// The cursor after the item at this position of this list.
    #[must_use]
    pub fn after(list: &str, position: u64) -> Self {
        Self(format!("{list}.{position:x}"))
    }

    /// The cursor after the item with this id, for lists in the order of ids.
    #[must_use]
    pub fn after_id(list: &str, id: MessageId) -> Self {
        Self(format!("{list}.{id}"))
    }

    /// The id, if the cursor is of this list.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for text that is not a cursor of this list.
    pub fn id(&self, list: &str) -> Result<MessageId, Refusal> {
        let text = self.0.strip_prefix(list).and_then(|rest| rest.strip_prefix('.'));
        text.and_then(|id| id.parse().ok()).ok_or_else(not_a_cursor)
    }

    /// Takes text from outside; it is checked when it is used.
    #[must_use]
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The position, if the cursor is of this list.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for text that is not a cursor of this list.
    pub fn position(&self, list: &str) -> Result<u64, Refusal> {
        let text = self.0.strip_prefix(list).and_then(|rest| rest.strip_prefix('.'));
        text.and_then(|hex| u64::from_str_radix(hex, 16).ok()).ok_or_else(not_a_cursor)
    }
}

fn not_a_cursor() -> Refusal {
    Refusal::invalid("cursor", "not a cursor of this list; use the `next` of a page as it is")
}

/// Which page is wanted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageRequest {
    /// Items at most; the default when not said.
    #[serde(default)]
    pub limit: Option<usize>,
    /// Where to go on.
    #[serde(default)]
    pub cursor: Option<Cursor>,
}

impl PageRequest {
    /// The first page with this many items.
    #[must_use]
    pub fn first(limit: usize) -> Self {
        Self { limit: Some(limit), cursor: None }
    }

    /// How many items the page has at most.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.unwrap_or(limits::PAGE_ITEMS_DEFAULT).clamp(1, limits::PAGE_ITEMS_MAX)
    }

    /// The position to go on after, if this is not the first page.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for a cursor of another list.
    pub fn position(&self, list: &str) -> Result<Option<u64>, Refusal> {
        self.cursor.as_ref().map(|c| c.position(list)).transpose()
    }
}

impl PageRequest {
    /// The id to go on after, if this is not the first page of a list in the order of ids.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for a cursor of another list.
    pub fn id(&self, list: &str) -> Result<Option<MessageId>, Refusal> {
        self.cursor.as_ref().map(|c| c.id(list)).transpose()
    }
}

/// A bounded piece of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the rest begins; nothing when this was the end. A page may have fewer items than asked for and
    /// still a next one, when a filter looked at as much as one page may.
    pub next: Option<Cursor>,
    /// Records that belong into this part of the list and are damaged: what is wrong with each. They are set aside,
    /// never shown as if they were whole; whether a filter would have matched them cannot be known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
}

impl<T> Page<T> {
    /// The end of a list.
    #[must_use]
    pub fn last(items: Vec<T>) -> Self {
        Self { items, next: None, damaged: Vec::new() }
    }
}

/// Which items of a list, and which page of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Query {
    /// The filter; everything when not said.
    #[serde(default)]
    pub filter: Filter,
    /// The page.
    #[serde(default)]
    pub page: PageRequest,
}
