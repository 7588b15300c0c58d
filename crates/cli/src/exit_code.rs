//! The exit codes that scripts rely on, and the error type that carries one. Every refusal and every store error is
//! mapped here without a catch-all, so that new ones must be considered.

use redrive::core::error::{CallError, Refusal, StoreError, StoreErrorKind};

/// The exit codes. They are an interface: a number never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitCode {
    /// Success.
    Ok = 0,
    /// An error that is none of the others.
    Error = 1,
    /// The command line, the configuration or the input is invalid.
    Usage = 2,
    /// Nothing matched, and `--fail-empty` was given.
    NothingMatched = 3,
    /// Some items succeeded and some did not.
    Partial = 4,
    /// Refused for safety: not confirmed, over `--max`, or the queue is full.
    Refused = 5,
    /// The state does not allow it, or another process changed it first.
    Conflict = 6,
    /// The named item does not exist.
    NotFound = 7,
    /// The server does not know the token, or the token does not allow it.
    NotAllowed = 8,
    /// The store does not answer, or not in time.
    Unreachable = 9,
    /// A check failed.
    CheckFailed = 10,
    /// Interrupted with Ctrl-C.
    Interrupted = 130,
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code as u8)
    }
}

/// Why a command ended early: the exit code, the error text, and a hint.
#[derive(Debug)]
pub(crate) struct CliError {
    /// The exit code of the process.
    pub code: ExitCode,
    /// What went wrong and why, without payloads. Empty if nothing should be printed.
    pub what: String,
    /// What to do next.
    pub hint: Option<String>,
}

/// The result of a command: its exit code, or why it ended early.
pub(crate) type CommandResult = Result<ExitCode, CliError>;

impl CliError {
    /// Creates an error with this code.
    pub(crate) fn new(code: ExitCode, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), hint: None }
    }

    /// Creates an error about the command line or the input.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(ExitCode::Usage, what)
    }

    /// Adds a hint about what to do next.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Creates an error about a file or stream.
    pub(crate) fn io(doing: impl std::fmt::Display, error: &std::io::Error) -> Self {
        let code =
            if error.kind() == std::io::ErrorKind::NotFound { ExitCode::NotFound } else { ExitCode::Error };
        Self::new(code, format!("failed to {doing}: {error}"))
    }

    /// The reader of our output has closed the pipe: end quietly.
    pub(crate) fn reader_gone() -> Self {
        Self::new(ExitCode::Ok, "")
    }
}

/// The exit code of a refusal, and a hint if its text has none.
pub(crate) fn refusal_code(refusal: &Refusal) -> (ExitCode, Option<&'static str>) {
    match refusal {
        Refusal::NoSuchMessage { .. } => {
            (ExitCode::NotFound, Some("if it is a dead letter, use `redrive dlq show ID`"))
        }
        Refusal::NoSuchLetter { .. } => {
            (ExitCode::NotFound, Some("run `redrive dlq list` to list dead letters"))
        }
        Refusal::NoSuchQueue { .. } | Refusal::NoSuchGroup { .. } | Refusal::NoSuchOperation { .. } => {
            (ExitCode::NotFound, None)
        }
        Refusal::StaleToken { .. } | Refusal::LeaseExpired { .. } => {
            (ExitCode::Conflict, Some("run `redrive lease` again; the message is redelivered when it is due"))
        }
        Refusal::WrongState { .. }
        | Refusal::WrongStatus { .. }
        | Refusal::LetterLeased { .. }
        | Refusal::VersionConflict { .. }
        | Refusal::PatchFailed { .. }
        | Refusal::NoChange { .. }
        | Refusal::Erased { .. }
        | Refusal::KeyConflict { .. }
        | Refusal::RequestConflict { .. }
        | Refusal::KeyInUse { .. }
        | Refusal::RedrivenTooOften { .. }
        | Refusal::IdConflict { .. }
        | Refusal::WrongStage { .. }
        | Refusal::WrongGroupStatus { .. }
        | Refusal::KvConflict { .. } => (ExitCode::Conflict, None),
        Refusal::QueueFull { .. } | Refusal::IsDlq { .. } => (ExitCode::Refused, None),
        Refusal::NotAllowed { .. } => (
            ExitCode::NotAllowed,
            Some("ask an administrator for a token with that role (`redrive token create`)"),
        ),
        Refusal::Invalid { .. } => (ExitCode::Usage, None),
        Refusal::Damaged { .. } => (ExitCode::Error, None),
    }
}

/// The exit code of a store error.
pub(crate) const fn store_error_code(kind: StoreErrorKind) -> ExitCode {
    match kind {
        StoreErrorKind::Full
        | StoreErrorKind::Stopped
        | StoreErrorKind::Undone
        | StoreErrorKind::Damaged
        | StoreErrorKind::Newer
        | StoreErrorKind::NotAStore
        | StoreErrorKind::Io
        | StoreErrorKind::Unsupported => ExitCode::Error,
        StoreErrorKind::Untrusted => ExitCode::Refused,
        StoreErrorKind::Unauthenticated => ExitCode::NotAllowed,
        StoreErrorKind::Locked
        | StoreErrorKind::Unreachable
        | StoreErrorKind::Protocol
        | StoreErrorKind::Busy
        | StoreErrorKind::NotHolder => ExitCode::Unreachable,
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        Self::io("read the input", &error)
    }
}

impl From<Refusal> for CliError {
    fn from(refusal: Refusal) -> Self {
        let (code, hint) = refusal_code(&refusal);
        Self { code, what: refusal.to_string(), hint: hint.map(str::to_owned) }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        let hint = (error.kind == StoreErrorKind::Unauthenticated).then(|| {
            "set REDRIVE_TOKEN, or name a file with --token-file; `redrive token create` makes a token".into()
        });
        Self { code: store_error_code(error.kind), what: error.text, hint }
    }
}

impl From<CallError> for CliError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(refusal) => refusal.into(),
            CallError::Store(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive::core::dead_letter::Status;
    use redrive::core::group::GroupStatus;
    use redrive::core::ids::{LeafId, OperationId};
    use redrive::core::lifecycle::State;
    use redrive::core::time::Time;

    /// The table in docs/cli.md.
    #[test]
    fn every_refusal_has_the_code_it_is_documented_with() {
        let id = redrive::new_id();
        let queue: redrive::core::ids::QueueName = "q".parse().unwrap();
        let text = String::new;
        let at = Time::ZERO;
        for (refusal, code) in [
            (Refusal::NoSuchMessage { id }, 7),
            (Refusal::NoSuchLetter { id }, 7),
            (Refusal::NoSuchQueue { queue: queue.clone() }, 7),
            (Refusal::NoSuchGroup { group: LeafId::new(1) }, 7),
            (Refusal::NoSuchOperation { id: OperationId::new(id) }, 7),
            (Refusal::StaleToken { id }, 6),
            (Refusal::LeaseExpired { id, expired_at: at }, 6),
            (Refusal::WrongState { id, state: State::Leased, command: text() }, 6),
            (Refusal::WrongStatus { id, status: Status::Retrying, act: text(), hint: text() }, 6),
            (Refusal::LetterLeased { id, worker: text(), until: at }, 6),
            (Refusal::VersionConflict { id, expected: 1, actual: 2 }, 6),
            (Refusal::PatchFailed { id, why: text() }, 6),
            (Refusal::NoChange { id }, 6),
            (Refusal::Erased { id, act: text() }, 6),
            (Refusal::KeyConflict { queue: queue.clone(), key: text(), id }, 6),
            (Refusal::KeyInUse { id, key: text(), by: id }, 6),
            (Refusal::RedrivenTooOften { id, redrives: 10, allowed: 10 }, 6),
            (Refusal::IdConflict { id }, 6),
            (Refusal::QueueFull { queue: queue.clone(), limit: text(), allowed: 1, actual: 1 }, 5),
            (Refusal::IsDlq { queue: queue.clone(), owner: queue }, 5),
            (Refusal::invalid("f", "w"), 2),
            (Refusal::WrongStage { id: OperationId::new(id), stage: text(), command: text() }, 6),
            (Refusal::RequestConflict { key: text() }, 6),
            (Refusal::KvConflict { namespace: text(), key: text() }, 6),
            (Refusal::NotAllowed { who: text(), verb: text(), why: text() }, 8),
            (
                Refusal::WrongGroupStatus {
                    group: LeafId::new(1),
                    status: GroupStatus::New,
                    act: text(),
                    hint: text(),
                },
                6,
            ),
        ] {
            let error = CliError::from(refusal.clone());
            assert_eq!(error.code as u8, code, "{refusal}");
            assert!(!error.what.is_empty());
        }
    }

    #[test]
    fn every_store_error_has_the_code_it_is_documented_with() {
        for (kind, code) in [
            (StoreErrorKind::Full, 1),
            (StoreErrorKind::Stopped, 1),
            (StoreErrorKind::Damaged, 1),
            (StoreErrorKind::Newer, 1),
            (StoreErrorKind::NotAStore, 1),
            (StoreErrorKind::Locked, 9),
            (StoreErrorKind::Io, 1),
            (StoreErrorKind::Unsupported, 1),
            (StoreErrorKind::Unreachable, 9),
            (StoreErrorKind::Protocol, 9),
            (StoreErrorKind::Untrusted, 5),
            (StoreErrorKind::Unauthenticated, 8),
            (StoreErrorKind::Busy, 9),
            (StoreErrorKind::NotHolder, 9),
        ] {
            assert_eq!(CliError::from(StoreError::new(kind, "x")).code as u8, code, "{kind:?}");
        }
    }
}
