//! The lifecycle of a message. The diagram shows the main paths; [`transition()`] has all of them, and only it decides
//! the next state of a message. `docs/lifecycle.md` carries the same diagram, and a test keeps the two equal. Numbers
//! such as I11 name guarantees, which `docs/guarantees.md` lists with their tests.
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
//!
//! Paths that the diagram leaves out: a snoozed message is released but stays scheduled until its time; a message that
//! was released too often, or whose lease is lost at its last attempt, dies; a redrive may name a later time and then
//! leads to scheduled, and it can be undone until an attempt counts. `closed` is a status of the dead letter, not a
//! state of its message: a message that succeeds after a redrive closes its letter and keeps counting as dead until
//! retention removes the letter.

mod command;
mod state;
mod transition;

#[cfg(test)]
mod tests;

pub use command::{Command, Effect, Transition};
pub use state::{Final, Lease, Lifecycle, Phase, State};
pub use transition::transition;
