//! The recording that the shim makes of everything a child did under its data directory, read back.

use super::Outcome;
use std::path::Path;

/// Something that happened to a file. Names are relative to the data directory; `.` is the directory itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A file was opened under this descriptor.
    Open {
        /// The descriptor.
        fd: i64,
        /// Its name.
        name: String,
        /// Whether that made the file.
        made: bool,
        /// Whether that emptied it.
        emptied: bool,
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
        /// Where.
        at: u64,
        /// What.
        data: Vec<u8>,
    },
    /// Nothing but zeros was written, and a lot of them.
    Zeros {
        /// The descriptor.
        fd: i64,
        /// Where.
        at: u64,
        /// How many.
        length: u64,
    },
    /// A sync returned.
    Sync {
        /// The descriptor.
        fd: i64,
        /// Whether it said success.
        ok: bool,
    },
    /// A file was made shorter or longer.
    Truncate {
        /// The descriptor.
        fd: i64,
        /// Its new length.
        length: u64,
    },
    /// A name was changed.
    Rename {
        /// From this.
        from: String,
        /// To this.
        to: String,
    },
    /// A name was removed.
    Unlink {
        /// The name.
        name: String,
    },
    /// A line was appended to the log of replies.
    Said(
        /// The line.
        String,
    ),
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Outcome<&'a [u8]> {
        let (taken, rest) =
            self.0.split_at_checked(length).ok_or("the trace ends in the middle of a record")?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Outcome<i64> {
        Ok(i64::from_ne_bytes(self.take(8)?.try_into()?))
    }

    fn text(&mut self, length: i64) -> Outcome<String> {
        Ok(String::from_utf8(self.take(usize::try_from(length)?)?.to_vec())?)
    }
}

/// Zeros are worth a record of their own from here on.
const MANY: usize = 64 * 1024;

/// How many zeros these bytes end with.
#[must_use]
pub fn zeros_at_end(bytes: &[u8]) -> usize {
    const ZEROS: [u8; 4_096] = [0; 4_096];
    // Whole blocks at once: a log that was laid out beforehand has eight thousand of them.
    let (head, blocks) = bytes.as_rchunks::<4_096>();
    let whole = blocks.iter().rev().take_while(|block| **block == ZEROS).count();
    let rest = match blocks.len().checked_sub(whole + 1).and_then(|at| blocks.get(at)) {
        Some(block) => block.as_slice(),
        None => head,
    };
    whole * 4_096 + rest.iter().rev().take_while(|byte| **byte == 0).count()
}

/// Reads a recording. The log lines that were written in pieces are put together.
///
/// # Errors
/// When it is not whole, or has something in it that a store does not do.
pub fn read(path: &Path) -> Outcome<Vec<Event>> {
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
            1 => Event::Open { fd, name, made: a == 1, emptied: b == 1 },
            2 => Event::Close { fd },
            3 if data.len() > MANY && zeros_at_end(data) == data.len() => {
                Event::Zeros { fd, at: u64::try_from(a)?, length: data.len() as u64 }
            }
            3 => Event::Write { fd, at: u64::try_from(a)?, data: data.to_vec() },
            4 => Event::Sync { fd, ok: result == 0 },
            5 => Event::Truncate { fd, length: u64::try_from(a)? },
            6 => Event::Rename { from: name, to: String::from_utf8(data.to_vec())? },
            7 => Event::Unlink { name },
            9 => Event::Said(String::from_utf8(data.to_vec())?.trim_end().to_owned()),
            _ => return Err(format!("the trace has a call of kind {kind}, which is not modelled").into()),
        });
    }
    Ok(events)
}
