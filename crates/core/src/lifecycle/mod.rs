//! The life of a message. This diagram is the law; `docs/lifecycle.md` carries the same one and a test keeps
//! them equal. Nothing outside [`transition`] changes a state.
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
//! `scheduled` and `ready` are one persisted phase, waiting, seen before and after `ready_at`: becoming due
//! is not a write and cannot be forgotten. A message is in exactly one of scheduled, ready, leased and dead,
//! or it is a final count: done, cancelled, expired, purged (I11).

mod command;
mod state;
mod transition;

#[cfg(test)]
mod tests;

pub use command::{Command, Effect, Transition};
pub use state::{Final, Lease, Life, Phase, State};
pub use transition::transition;
