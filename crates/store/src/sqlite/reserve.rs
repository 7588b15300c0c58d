//! A few megabytes kept in reserve, so that operations that free space still work on a full disk: acks, leases and
//! purges need space in the log before they free any (I43).

use crate::trust;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The size of the reserve: enough for some thousands of acks in the log.
const BYTES: usize = 4 * 1024 * 1024;
/// With this much free space the reserve is created, and new work is accepted again.
const PLENTY_BYTES: u64 = 16 * 1024 * 1024;
/// Below this much free space the disk counts as nearly full.
const TIGHT_BYTES: u64 = 256 * 1024 * 1024;
/// How often to try again on a full disk.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// The free space, in bytes, on the file system of this path.
pub(super) fn free_bytes(path: &Path) -> u64 {
    rustix::fs::statvfs(path).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// The reserve file.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    tried: Instant,
}

impl Reserve {
    /// Creates the reserve if it does not exist. Failing to create it is no error: the disk may be full.
    pub(super) fn new(path: PathBuf) -> Self {
        let reserve = Self { path, tried: Instant::now() };
        reserve.fill();
        reserve
    }

    /// Whether the reserve exists.
    pub(super) fn is_filled(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|m| m.len() >= BYTES as u64)
    }

    /// Creates the reserve if there is plenty of space: on a nearly full disk the space is better left to the acks
    /// it is meant for.
    fn fill(&self) -> bool {
        if self.is_filled() {
            return true;
        }
        if self.free_bytes() < PLENTY_BYTES {
            return false;
        }
        let opened = trust::private().create(true).truncate(true).write(true).open(&self.path);
        let written =
            opened.and_then(|mut file| file.write_all(&vec![0xA5; BYTES]).and_then(|()| file.sync_data()));
        if written.is_err() {
            self.release();
        }
        written.is_ok()
    }

    /// Whether a log of full length would take a large part of the free space.
    pub(super) fn disk_is_tight(&self) -> bool {
        self.free_bytes() < TIGHT_BYTES
    }

    /// The free space beside the reserve, in bytes.
    pub(super) fn free_bytes(&self) -> u64 {
        free_bytes(self.path.parent().unwrap_or(Path::new(".")))
    }

    /// Deletes the reserve to free its space.
    pub(super) fn release(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Whether there is space again: at least enough for the reserve itself.
    pub(super) fn has_space_again(&mut self) -> bool {
        if self.tried.elapsed() < TRY_EVERY {
            return false;
        }
        self.tried = Instant::now();
        self.fill()
    }
}
