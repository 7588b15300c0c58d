//! The server's clock, as this process knows it: the last reading, and the time that has passed here since.

use crate::clock::{Machine, Uptime};
use redrive_core::time::Time;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

/// A machine whose wall clock is the Redis server's. No node's own wall clock is ever used.
#[derive(Debug)]
pub(super) struct ServerClock {
    started: Instant,
    /// The server's time minus the time since `started`, in milliseconds.
    offset_ms: AtomicI64,
}

impl ServerClock {
    pub(super) fn new(wall_ms: i64) -> Self {
        Self { started: Instant::now(), offset_ms: AtomicI64::new(wall_ms) }
    }

    /// Takes a new reading of the server's clock.
    pub(super) fn set(&self, wall_ms: i64) {
        self.offset_ms.store(wall_ms.saturating_sub(self.monotonic_ms()), Ordering::Relaxed);
    }
}

impl Machine for ServerClock {
    fn wall(&self) -> Time {
        Time::from_millis(self.offset_ms.load(Ordering::Relaxed).saturating_add(self.monotonic_ms()))
    }

    fn uptime(&self) -> Option<Uptime> {
        None
    }

    fn monotonic_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}
