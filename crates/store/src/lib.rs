//! Stores keep messages and dead letters and apply what `redrive-core` decides.
//!
//! Every operation is implemented once, in `engine`, over a small set of table traits. `memory` implements the tables
//! with maps, `sqlite` with a database file and group commit. `remote` talks to a store that another process holds.
//! Opening a directory yields one or the other, and the caller need not know which.

mod access;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
mod body;
pub mod clock;
#[cfg(all(feature = "sqlite", feature = "remote"))]
mod directory;
mod engine;
pub mod entropy;
pub mod faults;
mod holder;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
mod jobs;
#[cfg(feature = "memory")]
pub mod memory;
pub mod metrics;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod staged;
#[cfg(any(feature = "sqlite", feature = "remote"))]
mod trust;
mod verbs;

#[cfg(all(feature = "sqlite", feature = "remote"))]
pub use directory::{open, open_serving, restore};

use redrive_core::ids::MessageId;
use redrive_core::time::Clock as _;

/// A fresh message id: a UUIDv7 from the wall clock and the operating system's randomness.
#[must_use]
pub fn new_id() -> MessageId {
    entropy::new_id(&entropy::System, clock::Wall.now())
}
