//! Pages: a bounded part of a list and an opaque cursor to the next part. Cursors are positions, not offsets,
//! so a page never repeats or skips an item because others came or went.

use crate::error::Refusal;
use crate::filter::Filter;
use crate::ids::MessageId;
use crate::limits;
use serde::{Deserialize, Serialize};

/// An opaque position in a list. Only the store that made it can interpret it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(String);

impl Cursor {
    /// The cursor after the item at this position of the list.
    #[must_use]
    pub fn after(list: &str, position: u64) -> Self {
        Self(format!("{list}.{position:x}"))
    }

    /// The cursor after the item with this id, for lists in the order of ids.
    #[must_use]
    pub fn after_id(list: &str, id: MessageId) -> Self {
        Self(format!("{list}.{id}"))
    }

    /// The cursor after the item with this key, for lists in the order of keys.
    #[must_use]
    pub fn after_key(list: &str, key: &str) -> Self {
        Self(format!("{list}.{key}"))
    }

    /// The key in the cursor.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] if this is not a cursor of the list.
    pub fn key(&self, list: &str) -> Result<&str, Refusal> {
        self.0.strip_prefix(list).and_then(|rest| rest.strip_prefix('.')).ok_or_else(not_a_cursor)
    }

    /// The id in the cursor.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] if this is not a cursor of the list.
    pub fn id(&self, list: &str) -> Result<MessageId, Refusal> {
        let text = self.0.strip_prefix(list).and_then(|rest| rest.strip_prefix('.'));
        text.and_then(|id| id.parse().ok()).ok_or_else(not_a_cursor)
    }

    /// Wraps text from outside. It is checked when it is used.
    #[must_use]
    pub fn from_text(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The position in the cursor.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] if this is not a cursor of the list.
    pub fn position(&self, list: &str) -> Result<u64, Refusal> {
        let text = self.0.strip_prefix(list).and_then(|rest| rest.strip_prefix('.'));
        text.and_then(|hex| u64::from_str_radix(hex, 16).ok()).ok_or_else(not_a_cursor)
    }
}

fn not_a_cursor() -> Refusal {
    Refusal::invalid("cursor", "not a cursor of this list; use the `next` of a page as it is")
}

/// A request for one page.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageRequest {
    /// The maximum number of items. Defaults to [`limits::PAGE_ITEMS_DEFAULT`].
    #[serde(default)]
    pub limit: Option<usize>,
    /// Where to continue. `None` requests the first page.
    #[serde(default)]
    pub cursor: Option<Cursor>,
}

impl PageRequest {
    /// The first page with at most this many items.
    #[must_use]
    pub fn first(limit: usize) -> Self {
        Self { limit: Some(limit), cursor: None }
    }

    /// The maximum number of items on the page, within bounds.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.unwrap_or(limits::PAGE_ITEMS_DEFAULT).clamp(1, limits::PAGE_ITEMS_MAX)
    }

    /// The position to continue after. `None` for the first page.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] for a cursor of another list.
    pub fn position(&self, list: &str) -> Result<Option<u64>, Refusal> {
        self.cursor.as_ref().map(|c| c.position(list)).transpose()
    }
}

impl PageRequest {
    /// The id to continue after, for lists in the order of ids. `None` for the first page.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] for a cursor of another list.
    pub fn id(&self, list: &str) -> Result<Option<MessageId>, Refusal> {
        self.cursor.as_ref().map(|c| c.id(list)).transpose()
    }

    /// The key to continue after, for lists in the order of keys. `None` for the first page.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] for a cursor of another list.
    pub fn key(&self, list: &str) -> Result<Option<&str>, Refusal> {
        self.cursor.as_ref().map(|c| c.key(list)).transpose()
    }
}

/// A bounded part of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the rest starts. `None` at the end of the list. A page may have fewer items than requested and
    /// still a next one, if a filter examined as many candidates as one page may.
    pub next: Option<Cursor>,
    /// Damaged records in this part of the list, with a description of each. They are never shown as if they
    /// were intact, and nobody can know whether a filter would have matched them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
}

impl<T> Page<T> {
    /// The last page of a list.
    #[must_use]
    pub fn last(items: Vec<T>) -> Self {
        Self { items, next: None, damaged: Vec::new() }
    }
}

/// Which items of a list, and which page of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Query {
    /// The filter. The default matches everything.
    #[serde(default)]
    pub filter: Filter,
    /// The page.
    #[serde(default)]
    pub page: PageRequest,
}
