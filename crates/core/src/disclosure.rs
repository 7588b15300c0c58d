//! The disclosure of masked data to an operator. The store records who sees what and why before anything is
//! shown; if it refuses to, nothing is shown.

use crate::audit::AuditEntry;
use crate::dead_letter::Actor;
use crate::error::Refusal;
use crate::failure::named;
use crate::filter::Filter;
use crate::ids::MessageId;
use crate::limits;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

named! {
    /// What is disclosed.
    Disclosed, "disclosure", {
        /// A live message.
        Message = "message",
        /// A dead letter.
        Letter = "letter",
        /// The bytes of a payload only.
        Payload = "payload",
        /// Every match, written to a file or a pipe.
        Export = "export",
    }
}

/// A request to disclose masked data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disclosure {
    /// What is disclosed.
    pub what: Disclosed,
    /// The messages or letters, if they are named one by one.
    #[serde(default)]
    pub ids: Vec<MessageId>,
    /// The filter that selects them otherwise.
    #[serde(default)]
    pub filter: Option<Filter>,
    /// The number of messages or letters.
    pub count: u64,
}

impl Disclosure {
    /// The disclosure of one message or letter.
    #[must_use]
    pub fn of(what: Disclosed, id: MessageId) -> Self {
        Self { what, ids: vec![id], filter: None, count: 1 }
    }

    /// The disclosure of every letter that matches a filter.
    #[must_use]
    pub const fn matching(what: Disclosed, filter: Filter, count: u64) -> Self {
        Self { what, ids: Vec::new(), filter: Some(filter), count }
    }

    /// Checks that the request names either ids, and not too many, or a filter.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] otherwise.
    pub fn check(&self) -> Result<(), Refusal> {
        match (self.ids.len(), &self.filter) {
            (0, Some(_)) => Ok(()),
            (1..=limits::DISCLOSE_MAX, None) => Ok(()),
            _ => {
                let why = format!("name 1 to {} ids, or a filter", limits::DISCLOSE_MAX);
                Err(Refusal::invalid("disclosure", why))
            }
        }
    }

    /// The rows for the audit trail: one per id, or one for the filter.
    #[must_use]
    pub fn entries(&self, actor: &Actor, now: Time) -> Vec<AuditEntry> {
        let row = |target: String, count| {
            AuditEntry::new(now, actor, "reveal", target, count).with_detail(self.what.name())
        };
        match &self.filter {
            Some(filter) => vec![row("letters".into(), self.count).with_filter(filter)],
            None => self.ids.iter().map(|id| row(id.to_string(), 1)).collect(),
        }
    }
}
