//! Reads the recording that the shim makes of everything a child did in its data directory.

use super::ToolResult;
use std::path::Path;

/// Something that happened to a file. Names are relative to the data directory; `.` is the directory itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A file was opened.
    Open {
        /// The descriptor.
        fd: i64,
        /// The name of the file.
        name: String,
        /// Whether the call created the file.
        created: bool,
        /// Whether the call truncated the file.
        truncated: bool,
    },
    /// A descriptor was closed.
    Close {
        /// The descriptor.
        fd: i64,
    },
    /// Bytes were written.
    Write {
        /// The descriptor.
        fd: i64,
        /// The offset.
        at: u64,
        /// The bytes.
        data: Vec<u8>,
    },
    /// Many zeros were written.
    Zeros {
        /// The descriptor.
        fd: i64,
        /// The offset.
        at: u64,
        /// The number of zeros.
        length: u64,
    },
    /// A sync returned.
    Sync {
        /// The descriptor.
        fd: i64,
        /// Whether the sync succeeded.
        ok: bool,
    },
    /// The length of a file was changed.
    Truncate {
        /// The descriptor.
        fd: i64,
        /// The new length.
        length: u64,
    },
    /// A file was renamed.
    Rename {
        /// The old name.
        from: String,
        /// The new name.
        to: String,
    },
    /// A file was removed.
    Unlink {
        /// The name of the file.
        name: String,
    },
    /// A line was appended to the log of replies.
    LogLine(
        /// The line.
        String,
    ),
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> ToolResult<&'a [u8]> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or("the trace ends in the middle of a record")?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> ToolResult<i64> {
        Ok(i64::from_ne_bytes(self.take(8)?.try_into()?))
    }

    fn text(&mut self, length: i64) -> ToolResult<String> {
        Ok(String::from_utf8(self.take(usize::try_from(length)?)?.to_vec())?)
    }
}

/// The number of zeros from which a write of zeros is recorded as [`Event::Zeros`].
const MANY: usize = 64 * 1024;

/// The number of zeros at the end of these bytes.
#[must_use]
pub fn zeros_at_end(bytes: &[u8]) -> usize {
    const ZEROS: [u8; 4_096] = [0; 4_096];
    // Compares whole blocks at once: a preallocated log has eight thousand of them.
    let (head, blocks) = bytes.as_rchunks::<4_096>();
    let whole = blocks.iter().rev().take_while(|block| **block == ZEROS).count();
    let rest = match blocks.len().checked_sub(whole + 1).and_then(|at| blocks.get(at)) {
        Some(block) => block.as_slice(),
        None => head,
    };
    whole * 4_096 + rest.iter().rev().take_while(|byte| **byte == 0).count()
}

/// Reads a recording. Log lines that were written in pieces are joined.
///
/// # Errors
/// If the recording is incomplete, or contains a call that is not modelled.
pub fn read(path: &Path) -> ToolResult<Vec<Event>> {
    let bytes = std::fs::read(path)?;
    let mut rest = Bytes(&bytes);
    let mut events = Vec::new();
    while !rest.0.is_empty() {
        let (kind, fd) = (rest.number()?, rest.number()?);
        let (a, b, result) = (rest.number()?, rest.number()?, rest.number()?);
        let (name_bytes, data_bytes) = (rest.number()?, rest.number()?);
        let name = rest.text(name_bytes)?;
        let data = rest.take(usize::try_from(data_bytes)?)?;
        events.push(match kind {
            1 => Event::Open { fd, name, created: a == 1, truncated: b == 1 },
            2 => Event::Close { fd },
            3 if data.len() > MANY && zeros_at_end(data) == data.len() => {
                Event::Zeros { fd, at: u64::try_from(a)?, length: data.len() as u64 }
            }
            3 => Event::Write { fd, at: u64::try_from(a)?, data: data.to_vec() },
            4 => Event::Sync { fd, ok: result == 0 },
            5 => Event::Truncate { fd, length: u64::try_from(a)? },
            6 => Event::Rename { from: name, to: String::from_utf8(data.to_vec())? },
            7 => Event::Unlink { name },
            9 => Event::LogLine(String::from_utf8(data.to_vec())?.trim_end().to_owned()),
            _ => return Err(format!("the trace has a call of kind {kind}, which is not modelled").into()),
        });
    }
    Ok(events)
}
