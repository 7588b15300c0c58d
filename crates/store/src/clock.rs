//! The store's clock. Leases, delays and backoffs are decided by it alone, so it must not jump: it starts at
//! the later of what was last persisted and the wall, runs with the machine's monotonic clock, and slews
//! towards the wall: at half speed when it is ahead, at double speed when it is behind (I21).

use redrive_core::time::{Clock, Time};
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The machine's wall clock; jumps when somebody sets it. Only for ids and for slewing towards.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wall;

impl Clock for Wall {
    fn now(&self) -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

/// A clock that never jumps and never runs backwards.
#[derive(Debug)]
pub struct Slewing<W: Clock = Wall> {
    wall: W,
    started: Instant,
    last: Mutex<Reading>,
}

/// The last reading: milliseconds of the monotonic clock, and what was shown then.
#[derive(Clone, Copy, Debug)]
struct Reading {
    monotonic_ms: i64,
    shown_ms: i64,
}

impl Slewing {
    /// A clock that starts no earlier than `persisted`.
    #[must_use]
    pub fn starting_at(persisted: Time) -> Self {
        Self::with_wall(Wall, persisted)
    }
}

impl<W: Clock> Slewing<W> {
    fn with_wall(wall: W, persisted: Time) -> Self {
        let shown_ms = wall.now().max(persisted).as_millis();
        Self { wall, started: Instant::now(), last: Mutex::new(Reading { monotonic_ms: 0, shown_ms }) }
    }

    /// How far this clock is ahead of the wall, in milliseconds.
    pub fn skew_ms(&self) -> i64 {
        self.now().as_millis() - self.wall.now().as_millis()
    }

    fn read(&self, monotonic_ms: i64) -> Time {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = monotonic_ms - last.monotonic_ms;
        if elapsed <= 0 {
            return Time::from_millis(last.shown_ms);
        }
        let shown = slew(last.shown_ms, elapsed, self.wall.now().as_millis());
        // A half-speed step of one millisecond rounds to nothing; it is kept for the next reading.
        if shown > last.shown_ms {
            *last = Reading { monotonic_ms, shown_ms: shown };
        }
        Time::from_millis(shown)
    }
}

/// Where the clock stands `elapsed` milliseconds after it stood at `shown`, with the wall at `wall`.
const fn slew(shown: i64, elapsed: i64, wall: i64) -> i64 {
    let straight = shown + elapsed;
    if straight > wall {
        // Ahead: half speed, but no slower than needed to meet the wall.
        let slow = shown + elapsed / 2;
        if slow > wall { slow } else { wall }
    } else {
        let fast = shown + 2 * elapsed;
        if fast < wall { fast } else { wall }
    }
}

impl<W: Clock> Clock for Slewing<W> {
    fn now(&self) -> Time {
        self.read(i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicI64, Ordering};

    struct Hand(AtomicI64);
    impl Clock for Hand {
        fn now(&self) -> Time {
            Time::from_millis(self.0.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn i21_a_jump_of_the_wall_is_a_slope_not_a_step() {
        let clock = Slewing::with_wall(Hand(AtomicI64::new(1_000_000)), Time::ZERO);
        assert_eq!(clock.read(100).as_millis(), 1_000_050, "the wall stood still: ahead of it, half speed");
        clock.wall.0.store(5_000_000, Ordering::Relaxed);
        assert_eq!(clock.read(200).as_millis(), 1_000_250, "forward jump: double speed");
        clock.wall.0.store(10, Ordering::Relaxed);
        assert_eq!(clock.read(300).as_millis(), 1_000_300, "backward jump: half speed");
        assert_eq!(clock.read(250).as_millis(), 1_000_300, "never backwards");
    }

    #[test]
    fn i21_persisted_time_is_a_floor() {
        let clock = Slewing::with_wall(Hand(AtomicI64::new(1_000)), Time::from_millis(9_000));
        assert_eq!(clock.now().as_millis(), 9_000);
        assert!(clock.skew_ms() >= 8_000 - 10);
    }

    #[test]
    fn i21_a_million_jumps_never_run_backwards() {
        let clock = Slewing::with_wall(Hand(AtomicI64::new(1_000_000)), Time::ZERO);
        let mut before = clock.read(0);
        let mut x: u64 = 7;
        for tick in 0..1_000_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if x >> 60 == 0 {
                clock.wall.0.store(i64::try_from((x >> 20) % 10_000_000).unwrap(), Ordering::Relaxed);
            }
            let now = clock.read(tick * 3);
            assert!(now >= before && now.since(before).as_millis() <= 6);
            before = now;
        }
    }
}
