//! The keys of rows. Keys of one table sort as its rows are read: numbers are written with the most significant byte
//! first, and every text but the last has its length in front.

use redrive_core::ids::{LeafId, OperationId, QueueName};

/// A number.
pub(super) fn number(n: u64) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

/// The number at the beginning of a key.
pub(super) fn to_number(key: &[u8]) -> Option<u64> {
    key.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes))
}

/// A sequence number and an ordinal.
pub(super) fn numbered(seq: u64, n: u32) -> Vec<u8> {
    [seq.to_be_bytes().as_slice(), &n.to_be_bytes()].concat()
}

/// The ordinal at the end of a key.
pub(super) fn to_ordinal(key: &[u8]) -> Option<u32> {
    key.last_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Several texts. Keys with the same first texts sort by the last.
pub(super) fn texts(first: &[&str], last: &str) -> Vec<u8> {
    let mut key = Vec::new();
    for text in first {
        // No text in a key is anywhere near this long.
        let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
        key.extend(length.to_be_bytes());
        key.extend(text.as_bytes());
    }
    key.extend(last.as_bytes());
    key
}

/// The texts of a key that has `first` texts before the last.
pub(super) fn to_texts(mut key: &[u8], first: usize) -> Option<Vec<String>> {
    let mut found = Vec::with_capacity(first + 1);
    for _ in 0..first {
        let (length, rest) = key.split_first_chunk::<2>()?;
        let (text, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        found.push(String::from_utf8(text.to_vec()).ok()?);
        key = rest;
    }
    found.push(String::from_utf8(key.to_vec()).ok()?);
    Some(found)
}

/// The counter of a leaf.
pub(super) fn leaf_count(leaf: LeafId, queue: &QueueName, kind: &str) -> Vec<u8> {
    [number(leaf.get()), texts(&[queue.as_str()], kind)].concat()
}

/// A member of an operation.
pub(super) fn member(operation: OperationId, position: u64) -> Vec<u8> {
    [operation.to_bytes().as_slice(), &position.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_by_their_last_text_and_can_be_read_back() {
        let key = |last: &str| texts(&["space", "a"], last);
        assert!(key("") < key("a") && key("a") < key("ab") && key("ab") < key("b"));
        assert!(texts(&["a"], "z") < texts(&["aa"], "a"), "one namespace is never inside another");
        assert_eq!(to_texts(&key("last"), 2).unwrap(), ["space", "a", "last"]);
        assert_eq!(to_texts(&[0], 1), None);
        assert_eq!(to_number(&numbered(7, 9)), Some(7));
        assert_eq!(to_ordinal(&numbered(7, 9)), Some(9));
    }
}
