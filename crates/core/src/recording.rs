//! What happens beside the verbs of a store and still belongs into its audit trail: the management of tokens and alerts,
//! and requests that a server refused. The acts are a closed list, so that nobody can write a row that looks like another
//! act. Small durable values that change with an act change in the same commit.

use crate::audit::AuditEntry;
use crate::dead_letter::Actor;
use crate::error::Refusal;
use crate::failure::named;
use crate::limits;
use crate::message::check_printable;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

named! {
    /// An act that no other verb of the store records.
    OutsideAct, "act", {
        /// Somebody created a token. The target is its id.
        CreateToken = "create token",
        /// Somebody revoked a token. The target is its id.
        RevokeToken = "revoke token",
        /// Somebody silenced a rule or the subject of alerts, which is the target.
        SilenceAlert = "silence alert",
        /// Somebody ended a silence.
        UnsilenceAlert = "unsilence alert",
        /// A server refused requests. The target is the code of the problem, the count is the number of requests.
        Refuse = "refuse",
    }
}

/// A change of a small durable value, if it still has the version `expected` (0 means that there is none).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvWrite {
    /// The namespace.
    pub namespace: String,
    /// The key.
    pub key: String,
    /// The new value; `None` removes it.
    pub value: Option<Vec<u8>>,
    /// The version that the value must have.
    pub expected: u64,
}

/// A request to record one act, with the values that it changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordRequest {
    /// What was done.
    pub act: OutsideAct,
    /// Who did it.
    pub actor: Actor,
    /// What it was done to.
    pub target: String,
    /// How often it happened.
    pub count: u64,
    /// Further details in words.
    #[serde(default)]
    pub detail: Option<String>,
    /// The values that change with it.
    #[serde(default)]
    pub writes: Vec<KvWrite>,
}

impl RecordRequest {
    /// The record of one act that changes no values.
    #[must_use]
    pub fn new(act: OutsideAct, actor: Actor, target: impl Into<String>) -> Self {
        Self { act, actor, target: target.into(), count: 1, detail: None, writes: Vec::new() }
    }

    /// Adds details in words.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds a value that changes with the act.
    #[must_use]
    pub fn writing(mut self, write: KvWrite) -> Self {
        self.writes.push(write);
        self
    }

    /// Checks the lengths of its parts. The store checks the values as it does for a single one.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] names the field.
    pub fn check(&self) -> Result<(), Refusal> {
        self.actor.check()?;
        check_printable("target", &self.target, limits::KEY_BYTES_MAX)?;
        check_printable("detail", self.detail.as_deref().unwrap_or_default(), limits::NOTE_BYTES_MAX)?;
        if self.writes.len() > limits::RECORD_WRITES_MAX {
            return Err(Refusal::invalid("writes", format!("at most {}", limits::RECORD_WRITES_MAX)));
        }
        let mut places: Vec<_> = self.writes.iter().map(|write| (&write.namespace, &write.key)).collect();
        places.sort_unstable();
        places.dedup();
        if places.len() < self.writes.len() {
            return Err(Refusal::invalid("writes", "a value changes at most once"));
        }
        Ok(())
    }

    /// The bytes of the values that change with it.
    #[must_use]
    pub fn value_bytes(&self) -> usize {
        self.writes.iter().filter_map(|write| write.value.as_ref()).map(Vec::len).sum()
    }

    /// Whether recording it tak disk space beyond that of a row about an act of a person. A flood of refused requests
    /// must not use up what is kept in reserve for a full disk, but a token can be revoked on one.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.act == OutsideAct::Refuse || self.writes.iter().any(|write| write.value.is_some())
    }

    /// The row for the audit trail.
    #[must_use]
    pub fn entry(&self, now: Time) -> AuditEntry {
        let actor = self.actor.clone().without_request();
        let entry = AuditEntry::new(now, &actor, self.act.name(), &self.target, self.count);
        AuditEntry { detail: self.detail.clone(), ..entry }
    }
}
