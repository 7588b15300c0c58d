//! Maps PostgreSQL's errors to the store's. What a caller can do about an error depends on its SQLSTATE alone.

use redrive_core::error::{StoreError, StoreErrorKind};
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

/// What an error means for the connection and for the statement that it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// The connection is gone or the server is going down: whether the last statement took effect is not known.
    Lost,
    /// The server cannot be written to: it is a standby, or it is recovering.
    ReadOnly,
    /// No space is left where the database is.
    Full,
    /// The values of the statement are to blame, not the server.
    Values,
    /// The schema is not what this program expects, or the role may not use it.
    Setup,
    /// Anything else: the statement did not take effect.
    Other,
}

/// What an error means.
pub(super) fn meaning(error: &Error) -> Meaning {
    let Some(state) = error.code() else {
        // Without an answer of the server, either the connection failed or this program sent nothing.
        let by_io = std::error::Error::source(error).is_some_and(|cause| cause.is::<std::io::Error>());
        return if error.is_closed() || by_io { Meaning::Lost } else { Meaning::Other };
    };
    if *state == SqlState::READ_ONLY_SQL_TRANSACTION {
        return Meaning::ReadOnly;
    }
    if *state == SqlState::DISK_FULL {
        return Meaning::Full;
    }
    match state.code().get(..2) {
        // 57P01 to 57P05: the server ends the session or is starting up.
        Some("57") if state.code().starts_with("57P") => Meaning::Lost,
        Some("08") => Meaning::Lost,
        Some("22" | "23" | "21") => Meaning::Values,
        Some("28" | "3D" | "3F" | "42") => Meaning::Setup,
        Some(_) | None => Meaning::Other,
    }
}

/// The store's error for an error of the database.
pub(super) fn from_postgres(error: &Error) -> StoreError {
    let said = error
        .as_db_error()
        .map_or_else(|| error.to_string(), |db| format!("{}, SQLSTATE {}", db.message(), db.code().code()));
    let (kind, advice) = match meaning(error) {
        Meaning::Lost => (StoreErrorKind::Unreachable, "the connection to PostgreSQL was lost"),
        Meaning::ReadOnly => (
            StoreErrorKind::Unreachable,
            "this PostgreSQL server cannot be written to, it is a standby; name the primary, or all servers with \
             target_session_attrs=read-write",
        ),
        Meaning::Full => (
            StoreErrorKind::Full,
            "no space is left on the database's disk: new work is refused until there is; leases, acks and purge go on",
        ),
        Meaning::Values => {
            (StoreErrorKind::Undone, "PostgreSQL refused a value, and nothing of the commit happened")
        }
        Meaning::Setup => (
            StoreErrorKind::Io,
            "PostgreSQL refused access or lacks a table; check the role's rights and run `redrive migrate`",
        ),
        Meaning::Other => {
            (StoreErrorKind::Undone, "PostgreSQL refused the statement, and nothing of it happened")
        }
    };
    StoreError::new(kind, format!("{advice} ({said})"))
}
