//! Maps SQLite's errors to the store's: disk full, damaged, access denied, or a failure that stops this process.

use redrive_core::error::{StoreError, StoreErrorKind};
use rusqlite::{Error, ErrorCode};

/// Converts the error of a SQLite result.
pub(super) fn sql_result<T>(result: Result<T, Error>) -> Result<T, StoreError> {
    result.map_err(|error| from_sqlite(&error))
}

/// Converts an SQLite error.
pub(super) fn from_sqlite(error: &Error) -> StoreError {
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreErrorKind::Full,
        Some(ErrorCode::DatabaseCorrupt) => StoreErrorKind::Damaged,
        Some(ErrorCode::NotADatabase) => StoreErrorKind::NotAStore,
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => StoreErrorKind::Io,
        Some(_) | None => StoreErrorKind::Stopped,
    };
    let advice = match kind {
        StoreErrorKind::Full => {
            "no space is left on the disk: new work is refused until 16 MiB are free; leases, acks and purge go on"
        }
        StoreErrorKind::Damaged => "the data file is damaged: stop, keep a copy, and restore the last backup",
        StoreErrorKind::NotAStore => "the file is not a Redrive store; name another directory with --data",
        StoreErrorKind::Io => {
            "the operating system refused access: check permissions and that the disk is writable"
        }
        StoreErrorKind::Stopped
        | StoreErrorKind::Undone
        | StoreErrorKind::Newer
        | StoreErrorKind::Locked
        | StoreErrorKind::Unsupported
        | StoreErrorKind::Unreachable
        | StoreErrorKind::Protocol
        | StoreErrorKind::Untrusted
        | StoreErrorKind::Unauthenticated
        | StoreErrorKind::Busy
        | StoreErrorKind::NotHolder => {
            "a read or write failed; nothing more is acknowledged by this process: check the disk, then start again"
        }
    };
    StoreError::new(kind, format!("{advice} ({error})"))
}
