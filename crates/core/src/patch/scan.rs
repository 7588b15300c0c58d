//! Scans the text of a JSON document: where strings, values and entries begin and end. It expects JSON, but never
//! panics on other text.

use std::ops::Range;

pub(super) fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// The end of the string that begins at a position.
pub(super) fn string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// The end of the value that begins at a position.
pub(super) fn value_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut depth = 0_usize;
    loop {
        match bytes.get(at)? {
            b'"' => at = string_end(bytes, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                at += 1;
            }
            b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' => at += 1,
            _ => {
                let ends = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r' | b',' | b'}' | b']');
                let rest = bytes.get(at..)?;
                at += rest.iter().position(ends).unwrap_or(rest.len());
            }
        }
        if depth == 0 {
            return Some(at);
        }
    }
}

/// One member of an object or element of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Where the space before it begins: directly after the bracket or the comma.
    pub(super) lead: usize,
    /// The range of the key with its quotes; elements of a list have none.
    pub(super) key: Option<Range<usize>>,
    pub(super) value: Range<usize>,
}

impl Entry {
    pub(super) fn start(&self) -> usize {
        self.key.as_ref().map_or(self.value.start, |key| key.start)
    }
}

/// Iterates over the entries of the object or list whose content begins at `at`.
pub(super) struct Entries<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) keyed: bool,
    pub(super) at: usize,
}

impl Iterator for Entries<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let lead = self.at;
        let start = skip_space(self.bytes, lead);
        if matches!(self.bytes.get(start)?, b'}' | b']') {
            return None;
        }
        let (key, from) = if self.keyed {
            let end = string_end(self.bytes, start)?;
            (Some(start..end), skip_space(self.bytes, skip_space(self.bytes, end) + 1))
        } else {
            (None, start)
        };
        let end = value_end(self.bytes, from)?;
        let after = skip_space(self.bytes, end);
        self.at = if self.bytes.get(after) == Some(&b',') { after + 1 } else { after };
        Some(Entry { lead, key, value: from..end })
    }
}
