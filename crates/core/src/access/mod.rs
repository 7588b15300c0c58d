//! Who may do what through a server. A token grants roles, and may be limited to some queues. [`Access::admit`] is the
//! only place that decides whether a call may be carried out for somebody; the table of verbs says which role a verb
//! needs ([`Call::role`]), and `scope` says which queues it touches.

mod scope;
mod token;

pub use scope::{Lookup, QueuePattern};
pub use token::{Token, TokenId, TokenRecord};

use crate::error::Refusal;
use crate::failure::named;
use crate::store::{Call, Role};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

named! {
    /// What a token allows its bearer to do.
    Grant, "role", {
        /// Looks at everything, always masked.
        MaskedViewer = "masked_viewer",
        /// Looks at everything, and may reveal what is masked, which is audited.
        Viewer = "viewer",
        /// Enqueues messages.
        Producer = "producer",
        /// Leases and settles messages and letters.
        Worker = "worker",
        /// Looks, reveals, and decides about letters, groups, breakers and operations.
        Operator = "operator",
        /// Does what an operator does, and changes what letters contain.
        Editor = "editor",
        /// Does everything.
        Admin = "admin",
    }
}

impl Grant {
    /// Whether this grant includes a role. Producers and workers need not see letters, so they are no viewers.
    #[must_use]
    pub const fn includes(self, role: Role) -> bool {
        match self {
            Self::MaskedViewer | Self::Viewer => matches!(role, Role::Viewer),
            Self::Producer => matches!(role, Role::Producer),
            Self::Worker => matches!(role, Role::Worker),
            Self::Operator => matches!(role, Role::Viewer | Role::Operator),
            Self::Editor => matches!(role, Role::Viewer | Role::Operator | Role::Editor),
            Self::Admin => true,
        }
    }

    /// Whether this grant allows to see what is masked for others.
    #[must_use]
    pub const fn reveals(self) -> bool {
        match self {
            Self::Viewer | Self::Operator | Self::Editor | Self::Admin => true,
            Self::MaskedViewer | Self::Producer | Self::Worker => false,
        }
    }
}

/// What somebody who calls a server may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// The name that the audit trail records.
    pub name: String,
    /// The roles.
    pub roles: BTreeSet<Grant>,
    /// The queues that it is limited to. Empty means all queues.
    #[serde(default)]
    pub queues: Vec<QueuePattern>,
}

impl Access {
    /// Everything, everywhere, in the name of `name`.
    #[must_use]
    pub fn everything(name: impl Into<String>) -> Self {
        Self { name: name.into(), roles: BTreeSet::from([Grant::Admin]), queues: Vec::new() }
    }

    /// Whether one of the roles includes this one.
    #[must_use]
    pub fn allows(&self, role: Role) -> bool {
        self.roles.iter().any(|grant| grant.includes(role))
    }

    /// Whether the bearer may see what is masked for others.
    #[must_use]
    pub fn reveals(&self) -> bool {
        self.roles.iter().any(|grant| grant.reveals())
    }

    /// Decides whether a call may be carried out. Puts the bearer's name into it wherever it says who acts, and narrows
    /// its filter to the bearer's queues. Returns what else must be looked up before it may be carried out.
    ///
    /// # Errors
    /// [`Refusal::NotAllowed`] says what is missing.
    pub fn admit(&self, call: &mut Call) -> Result<Lookup, Refusal> {
        let needs = call.role();
        if !self.allows(needs) {
            return Err(self.refuse(call.verb(), format!("it needs the role {needs}")));
        }
        if matches!(call, Call::Disclose { .. }) && !self.reveals() {
            return Err(self.refuse(call.verb(), "it may only see masked data"));
        }
        for actor in call.actors_mut() {
            actor.name.clone_from(&self.name);
        }
        if self.queues.is_empty() {
            return Ok(Lookup::Nothing);
        }
        scope::within(self, call)
    }

    /// Whether a queue is among those that the bearer is limited to.
    #[must_use]
    pub fn covers(&self, queue: &crate::ids::QueueName) -> bool {
        self.queues.is_empty() || self.queues.iter().any(|pattern| pattern.matches(queue))
    }

    /// The refusal of a call.
    fn refuse(&self, verb: &str, why: impl Into<String>) -> Refusal {
        Refusal::NotAllowed { who: self.name.clone(), verb: verb.to_owned(), why: why.into() }
    }
}

#[cfg(test)]
mod tests;
