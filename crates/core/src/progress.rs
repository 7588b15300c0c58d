//! How far the work on a message is, in the words of its handler. Kept with the message through retries, so
//! that the next attempt can go on where the last one stopped; never looked at by any rule.

use crate::limits;
use serde::{Deserialize, Serialize};

/// How far the work on a message is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Units done.
    pub done: u64,
    /// Units in all, when that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// What is being done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Progress {
    /// A progress report. A note that is too long is cut, and control characters go: it is shown in terminals.
    #[must_use]
    pub fn new(done: u64, total: Option<u64>, note: impl Into<String>) -> Self {
        let mut note = note.into();
        note.retain(|c| !c.is_control());
        crate::failure::cut(&mut note, limits::LABEL_BYTES_MAX);
        Self { done, total, note }
    }

    /// The report within its bounds, wherever it came from.
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
