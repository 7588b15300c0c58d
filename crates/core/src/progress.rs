//! The progress that a handler reports. It is stored with the message and survives retries, so that the next
//! attempt can continue where the last one stopped. No rule depends on it.

use crate::limits;
use serde::{Deserialize, Serialize};

/// How far a handler is with its message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Units done.
    pub done: u64,
    /// Units in all, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// What the handler is doing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Progress {
    /// A progress report. A note that is too long is cut, and control characters are removed, because notes are
    /// shown in terminals.
    #[must_use]
    pub fn new(done: u64, total: Option<u64>, note: impl Into<String>) -> Self {
        let mut note = note.into();
        note.retain(|c| !c.is_control());
        crate::failure::cut(&mut note, limits::LABEL_BYTES_MAX);
        Self { done, total, note }
    }

    /// The report with its note within the limits. Applied to reports from outside.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self::new(self.done, self.total, self.note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_short_and_printable() {
        let progress = Progress::new(1, Some(2), format!("\u{1b}[31m{}", "é".repeat(300)));
        assert!(progress.note.len() <= limits::LABEL_BYTES_MAX);
        assert!(!progress.note.contains('\u{1b}'));
        assert_eq!(progress.clone().bounded(), progress);
    }
}
