//! A clock that only moves when a test moves it.

use redrive_core::time::{Clock, Span, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// The time at which every test begins.
pub const START: Time = Time::from_millis(1_767_225_600_000);

/// A clock that tests move by hand. It starts at 2026-01-01T00:00:00Z.
#[derive(Debug)]
pub struct TestClock {
    ms: AtomicI64,
}

impl TestClock {
    /// Returns a clock set to [`START`], ready to be shared with a store.
    #[must_use]
    pub fn shared() -> Arc<Self> {
        Arc::new(Self { ms: AtomicI64::new(START.as_millis()) })
    }

    /// Moves the clock to this instant. It never goes back: an earlier instant changes nothing.
    pub fn set(&self, to: Time) {
        self.ms.fetch_max(to.as_millis(), Ordering::SeqCst);
    }

    /// Moves the clock forward by a span and returns the new time.
    pub fn advance(&self, by: Span) -> Time {
        self.set(self.now().plus(by));
        self.now()
    }
}

impl Clock for TestClock {
    fn now(&self) -> Time {
        Time::from_millis(self.ms.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_starts_in_2026_and_never_goes_back() {
        let clock = TestClock::shared();
        assert_eq!(clock.now().to_string(), "2026-01-01T00:00:00.000Z");
        assert_eq!(clock.advance(Span::from_secs(1)), START.plus(Span::from_secs(1)));
        clock.set(START);
        assert_eq!(clock.now(), START.plus(Span::from_secs(1)));
    }
}
