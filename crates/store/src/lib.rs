//! Stores: they apply what the core decides. The verbs are written once, in `engine`, over a small seam of
//! tables; `memory` keeps the tables in maps, `sqlite` in a file with group commit. `remote` is a store that
//! another process holds. Whoever opens a directory gets one or the other and need not know which.

pub mod clock;
#[cfg(all(feature = "sqlite", feature = "remote"))]
mod directory;
mod engine;
pub mod entropy;
pub mod faults;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "remote")]
pub mod remote;
#[cfg(feature = "sqlite")]
pub mod sqlite;
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
