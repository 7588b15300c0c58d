//! The lifecycle of a message. The diagram below is normative. Only [`transition()`] changes the state of a
//! message. `docs/lifecycle.md` carries the same diagram, and a test keeps the two equal.
//!
//! The lifecycle diagram:
//!
//! ```text
//!            enqueue                 lease                    ack
//!  (new) ───────────────> ready ───────────────> leased ───────────────> done
//!             │ delay       ▲ ▲                    │ │ │
//!             ▼             │ │ release            │ │ └── fail: verdict dead ──┐
//!         scheduled ────────┘ └────────────────────┘ │                         ▼
//!             ▲      due                             │ fail: verdict retry    dead ── redrive ──> ready
//!             └──────────────────────────────────────┘ (also lease expired)    │ resolve / abandon
//!                                                                              ▼
//!   ready or scheduled ── cancel ──> cancelled                                closed ── retention ──> purged
//!   ready or scheduled ── ttl or deadline ──> dead, or expired (dropped and counted, by policy)
//!   ready or scheduled ── purge ──> purged
//! ```
//!
//! `scheduled` and `ready` are one persisted phase, [`Phase::Waiting`], seen before and after `ready_at`: a
//! message becomes due without a write, so no timer can miss it. A message is either scheduled, ready, leased
//! or dead, or it has ended and only counts as done, cancelled, expired or purged (I11).

mod command;
mod state;
mod transition;

#[cfg(test)]
mod tests;

pub use command::{Command, Effect, Transition};
pub use state::{Final, Lease, Lifecycle, Phase, State};
pub use transition::transition;
