//! The high-water mark: how many commits were acknowledged, in a file of its own. SQLite drops what follows a
//! damaged byte of its log without a word; this tells (I46). It is written after a commit is durable and never
//! before, so it can only be behind the truth, and it is synced when the writer ends a checkpoint and on closing.

use crate::trust;
use redrive_core::error::{StoreError, StoreErrorKind};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The open mark file.
#[derive(Debug)]
pub(super) struct Mark {
    file: File,
}

impl Mark {
    /// Opens or makes the mark and compares it with what the database says it has.
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

    /// The number, if it is whole: the same eight bytes twice.
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

    /// Notes that this many commits are durable. Losing the note loses nothing.
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
