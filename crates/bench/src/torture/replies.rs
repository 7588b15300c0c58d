//! The log of replies, written outside the store. Each line is one write that is made after the reply
//! arrived, so every line in the log was acknowledged. Intended calls are logged before they are made, with
//! lowercase letters, to know what may have happened without a reply.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

/// Ends a line that a kill cut short.
const CUT: &str = "\u{18}\n";

/// A log that is open for writing.
#[derive(Debug)]
pub struct Log(File);

impl Log {
    /// Opens the log for appending. A process that was killed may have written the beginning of a line: such a line is
    /// no promise, so it is marked and readers skip it.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        if std::fs::read(path)?.last().is_some_and(|last| *last != b'\n') {
            (&file).write_all(CUT.as_bytes())?;
        }
        Ok(Self(file))
    }

    /// Appends a line with a single write. Only a kill in the middle of it cuts the line short.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn append(&self, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        let written = (&self.0).write(line.as_bytes())?;
        if written == line.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

/// Reads a log while it grows.
#[derive(Debug, Default)]
pub struct Reader {
    at: u64,
    rest: String,
}

impl Reader {
    /// The complete lines that were appended since the last call; empty if the log does not exist yet.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn read_new_lines(&mut self, path: &Path) -> io::Result<Vec<String>> {
        let mut file = match File::open(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        file.seek(SeekFrom::Start(self.at))?;
        self.at += file.read_to_string(&mut self.rest)? as u64;
        let end = self.rest.rfind('\n').map_or(0, |at| at + 1);
        let lines = self.rest.drain(..end).collect::<String>();
        Ok(lines
            .lines()
            .filter(|line| !line.ends_with(CUT.trim_end_matches('\n')))
            .map(str::to_owned)
            .collect())
    }
}

/// All lines of a log; empty if it does not exist.
///
/// # Errors
/// Any error of the file system.
pub fn lines(path: &Path) -> io::Result<Vec<String>> {
    Reader::default().read_new_lines(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_a_kill_cut_short_is_skipped_and_harms_no_other() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("log");
        let mut reader = Reader::default();
        Log::open(&path).unwrap().append("E one").unwrap();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"E tw").unwrap();
        assert_eq!(reader.read_new_lines(&path).unwrap(), ["E one"]);
        Log::open(&path).unwrap().append("E three").unwrap();
        assert_eq!(reader.read_new_lines(&path).unwrap(), ["E three"]);
        assert_eq!(lines(&path).unwrap(), ["E one", "E three"]);
    }
}
