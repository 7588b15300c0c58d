//! What the process says when it ends: the exit codes that scripts rely on, and the error that carries one.
//! Every refusal and every store error has its code here, with no catch-all: a new one has to be looked at.
//! 8 is kept for authentication, which comes with the server.

use redrive::core::error::{Error, Refusal, StoreError, StoreErrorKind};

/// The exit codes. They are an interface: a number never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitCode {
    /// It worked.
    Ok = 0,
    /// Something went wrong that is none of the others.
    Error = 1,
    /// The command line, the configuration or the input is wrong.
    Usage = 2,
    /// Nothing matched, and `--fail-empty` was given.
    NothingMatched = 3,
    /// Some items were done, some were not.
    Partial = 4,
    /// Refused for safety: not confirmed, over `--max`, the queue is full.
    Refused = 5,
    /// The state does not allow it, or somebody else was faster.
    Conflict = 6,
    /// What was named is not there.
    NotFound = 7,
    /// Nobody answers, or not in time.
    Unreachable = 9,
    /// A check found something.
    CheckFailed = 10,
    /// Ctrl-C.
    Interrupted = 130,
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code as u8)
    }
}

/// Why a command ended early: the code, what to say, and what to try next.
#[derive(Debug)]
pub(crate) struct CliError {
    /// How the process ends.
    pub code: ExitCode,
    /// What and why; never a payload. Empty when there is nobody to tell.
    pub what: String,
    /// What to do next.
    pub hint: Option<String>,
}

/// The end of a command: the exit code of one that ran, or why it stopped.
pub(crate) type Done = Result<ExitCode, CliError>;

impl CliError {
    /// An error with this code.
    pub(crate) fn new(code: ExitCode, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), hint: None }
    }

    /// The command line or the input is wrong.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(ExitCode::Usage, what)
    }

    /// The same error with what to do next.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A file or stream could not be read or written.
    pub(crate) fn io(doing: impl std::fmt::Display, error: &std::io::Error) -> Self {
        let code =
            if error.kind() == std::io::ErrorKind::NotFound { ExitCode::NotFound } else { ExitCode::Error };
        Self::new(code, format!("failed to {doing}: {error}"))
    }

    /// Whoever read our output went away: nothing is wrong, and there is nobody to tell.
    pub(crate) fn reader_gone() -> Self {
        Self::new(ExitCode::Ok, "")
    }
}

/// The code of a refusal, and what may help when its text does not say so itself.
pub(crate) fn of_refusal(refusal: &Refusal) -> (ExitCode, Option<&'static str>) {
    match refusal {
        Refusal::NoSuchMessage { .. } => {
            (ExitCode::NotFound, Some("`redrive dlq show ID` if it is a dead letter"))
        }
        Refusal::NoSuchLetter { .. } => (ExitCode::NotFound, Some("`redrive dlq list` shows what is there")),
        Refusal::NoSuchQueue { .. } | Refusal::NoSuchGroup { .. } | Refusal::NoSuchOperation { .. } => {
            (ExitCode::NotFound, None)
        }
        Refusal::StaleToken { .. } | Refusal::LeaseExpired { .. } => {
            (ExitCode::Conflict, Some("`redrive lease` again; the message is redelivered when it is due"))
        }
        Refusal::WrongState { .. }
        | Refusal::WrongStatus { .. }
        | Refusal::LetterLeased { .. }
        | Refusal::VersionConflict { .. }
        | Refusal::PatchFailed { .. }
        | Refusal::NoChange { .. }
        | Refusal::Erased { .. }
        | Refusal::KeyConflict { .. }
        | Refusal::KeyInUse { .. }
        | Refusal::RedrivenTooOften { .. }
        | Refusal::IdConflict { .. }
        | Refusal::WrongStage { .. }
        | Refusal::WrongGroupStatus { .. }
        | Refusal::KvConflict { .. } => (ExitCode::Conflict, None),
        Refusal::QueueFull { .. } | Refusal::IsDrawer { .. } => (ExitCode::Refused, None),
        Refusal::Invalid { .. } => (ExitCode::Usage, None),
        Refusal::Damaged { .. } => (ExitCode::Error, None),
    }
}

/// The code of a store error.
pub(crate) const fn of_store_error(kind: StoreErrorKind) -> ExitCode {
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
        StoreErrorKind::Locked
        | StoreErrorKind::Unreachable
        | StoreErrorKind::Protocol
        | StoreErrorKind::Busy => ExitCode::Unreachable,
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        Self::io("read the input", &error)
    }
}

impl From<Refusal> for CliError {
    fn from(refusal: Refusal) -> Self {
        let (code, hint) = of_refusal(&refusal);
        Self { code, what: refusal.to_string(), hint: hint.map(str::to_owned) }
    }
}

impl From<StoreError> for CliError {
    fn from(error: StoreError) -> Self {
        Self::new(of_store_error(error.kind), error.text)
    }
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(refusal) => refusal.into(),
            Error::Store(error) => error.into(),
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

    /// The table that docs/cli.md promises.
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
            (Refusal::IsDrawer { queue: queue.clone(), owner: queue }, 5),
            (Refusal::invalid("f", "w"), 2),
            (Refusal::WrongStage { id: OperationId::new(id), stage: text(), command: text() }, 6),
            (Refusal::KvConflict { namespace: text(), key: text() }, 6),
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
            (StoreErrorKind::Busy, 9),
        ] {
            assert_eq!(CliError::from(StoreError::new(kind, "x")).code as u8, code, "{kind:?}");
        }
    }
}
