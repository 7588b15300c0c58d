//! Selecting rows from maps as a database would.

use crate::engine::tables::{Letter, Rows};
use redrive_core::error::{StoreError, StoreErrorKind};

/// The first of the wanted letters, in the order of a key.
pub(super) fn first_of<'a, K: Ord>(
    letters: impl Iterator<Item = &'a Letter>,
    wanted: impl Fn(&Letter) -> bool,
    key: impl Fn(&Letter) -> K,
    limit: usize,
) -> Vec<Letter> {
    let mut all: Vec<Letter> = letters.filter(|letter| wanted(letter)).cloned().collect();
    all.sort_by_key(key);
    all.truncate(limit);
    all
}

/// Rows of a map with their keys. None of them is ever damaged.
pub(super) fn undamaged<'a, K: Copy + 'a, T: Clone + 'a>(
    rows: impl Iterator<Item = (&'a K, &'a T)>,
) -> Rows<K, T> {
    rows.map(|(at, row)| (*at, Ok(row.clone()))).collect()
}

/// The error for a row that is missing although another row refers to it.
pub(super) fn missing(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Damaged, format!("{what} is missing"))
}
