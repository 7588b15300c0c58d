//! The commit mark: the number of acknowledged commits, in a file of its own. SQLite silently drops what follows a
//! damaged byte of its log; the mark reveals that (I46). It is written only after a commit is durable, so it can lag
//! but never run ahead, and it is synced when the writer completes a checkpoint and when the store closes.

use crate::trust;
use redrive_core::error::{StoreError, StoreErrorKind};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The open mark file.
#[derive(Debug)]
pub(super) struct CommitMark {
    file: File,
}

impl CommitMark {
    /// Opens or creates the mark and compares it with the number of commits in the database.
    pub(super) fn open(path: &Path, commits: u64) -> Result<Self, StoreError> {
        let opened = trust::private().read(true).write(true).create(true).truncate(false).open(path);
        let file = opened.map_err(|e| refused(path, &e))?;
        let mark = Self { file };
        match mark.read().map_err(|e| refused(path, &e))? {
            Some(marked) if marked > commits => Err(StoreError::new(
                StoreErrorKind::Damaged,
                format!(
                    "the write-ahead log lost its end: {marked} commits were acknowledged, {commits} are there. \
                     Restore the last backup; or remove {} to go on without what is lost",
                    path.display()
                ),
            )),
            Some(_) | None => Ok(mark),
        }
    }

    /// The number, if it is intact: the file holds the same eight bytes twice.
    fn read(&self) -> io::Result<Option<u64>> {
        let mut bytes = [0_u8; 16];
        match self.file.read_exact_at(&mut bytes, 0) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(e) => return Err(e),
        }
        let both = u128::from_be_bytes(bytes);
        let (high, low) = (both >> 64, both & u128::from(u64::MAX));
        Ok(u64::try_from(high).ok().filter(|_| high == low))
    }

    /// Notes that this many commits are durable. Losing the note loses no data.
    pub(super) fn note(&self, commits: u64) -> io::Result<()> {
        let both = (u128::from(commits) << 64) | u128::from(commits);
        self.file.write_all_at(&both.to_be_bytes(), 0)
    }

    /// Makes the note durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn refused(path: &Path, error: &io::Error) -> StoreError {
    StoreError::new(StoreErrorKind::Io, format!("cannot use {}: {error}", path.display()))
}
