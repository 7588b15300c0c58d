//! The log of replies: what a store said to its callers, written outside of it. One line is one write, made
//! after the reply arrived, so a line that is there was promised. Intentions are written before the call, in
//! small letters, so that it is known what may have happened without a reply.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

/// A log that is written to.
#[derive(Debug)]
pub struct Log(File);

impl Log {
    /// Opens it to append.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().create(true).append(true).open(path).map(Self)
    }

    /// Appends a line with one write; a line that is cut short would be no promise at all.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn say(&self, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        let written = (&self.0).write(line.as_bytes())?;
        if written == line.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// A log that is read while it grows.
#[derive(Debug, Default)]
pub struct Reader {
    at: u64,
    rest: String,
}

impl Reader {
    /// The whole lines that were appended since the last time; none when nobody has written yet.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn more(&mut self, path: &Path) -> io::Result<Vec<String>> {
        let mut file = match File::open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        file.seek(SeekFrom::Start(self.at))?;
        self.at += file.read_to_string(&mut self.rest)? as u64;
        let end = self.rest.rfind('\n').map_or(0, |at| at + 1);
        let lines = self.rest.drain(..end).collect::<String>();
        Ok(lines.lines().map(str::to_owned).collect())
    }
}

/// All lines of a log; none when it is not there.
///
/// # Errors
/// What the operating system says.
pub fn lines(path: &Path) -> io::Result<Vec<String>> {
    Reader::default().more(path)
}
