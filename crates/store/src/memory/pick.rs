//! Picking letters out of a map as an index of a database would. It reads and changes nothing.

use crate::engine::tables::Letter;

/// The first letters of those that are wanted, in the order of a key.
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
