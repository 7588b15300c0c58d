//! Somebody is about to be shown what is masked for everybody else. It is on record before it is shown: who, what
//! and why. Whoever shows it asks the store to write that down, and shows nothing when the store refuses.

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
    /// What is shown.
    Disclosed, "disclosure", {
        /// A live message.
        Message = "message",
        /// A dead letter.
        Letter = "letter",
        /// The bytes of a payload alone.
        Payload = "payload",
        /// All that match, into a file or a pipe.
        Export = "export",
    }
}

/// What somebody is about to be shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disclosure {
    /// What.
    pub what: Disclosed,
    /// Of these.
    #[serde(default)]
    pub ids: Vec<MessageId>,
    /// Or of all that match this.
    #[serde(default)]
    pub filter: Option<Filter>,
    /// How many they are.
    pub count: u64,
}

impl Disclosure {
    /// Of one message or letter.
    #[must_use]
    pub fn of(what: Disclosed, id: MessageId) -> Self {
        Self { what, ids: vec![id], filter: None, count: 1 }
    }

    /// Of all letters that match.
    #[must_use]
    pub const fn matching(what: Disclosed, filter: Filter, count: u64) -> Self {
        Self { what, ids: Vec::new(), filter: Some(filter), count }
    }

    /// Refuses what names nothing, or too much one by one.
    ///
    /// # Errors
    /// [`Refusal::Invalid`].
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

    /// The rows of the audit trail: one for each id, or one for the filter.
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
