//! A few megabytes kept back, so that on a full disk what frees space can still be written: acks, leases and
//! purge need room in the log before they give any back (I43).

use crate::trust;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Enough for some thousands of acks in the log.
const BYTES: usize = 4 * 1024 * 1024;
/// With this much free room there is plenty: the reserve is made, and new work is taken again.
const PLENTY_BYTES: u64 = 16 * 1024 * 1024;
/// Below this much free room the disk counts as nearly full.
const TIGHT_BYTES: u64 = 256 * 1024 * 1024;
/// How often a full disk is tried again.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// Bytes that can still be written where this path is.
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
    /// Makes the reserve if it is not there. That it cannot be made now is no error: the disk may be full.
    pub(super) fn at(path: PathBuf) -> Self {
        let reserve = Self { path, tried: Instant::now() };
        reserve.fill();
        reserve
    }

    /// Whether the room is kept back.
    pub(super) fn is_filled(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|m| m.len() >= BYTES as u64)
    }

    /// Writes the reserve, where there is plenty of room: on a disk that is nearly full the room is better left
    /// to the acks it is meant for.
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

    /// Whether a full-length log would be a large part of what is left.
    pub(super) fn disk_is_tight(&self) -> bool {
        self.free_bytes() < TIGHT_BYTES
    }

    /// Bytes that can still be written beside it.
    pub(super) fn free_bytes(&self) -> u64 {
        free_bytes(self.path.parent().unwrap_or(Path::new(".")))
    }

    /// Gives the room back to the disk.
    pub(super) fn release(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Whether there is room again: enough for the reserve itself.
    pub(super) fn room_again(&mut self) -> bool {
        if self.tried.elapsed() < TRY_EVERY {
            return false;
        }
        self.tried = Instant::now();
        self.fill()
    }
}
