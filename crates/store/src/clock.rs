//! The store's clock. It alone decides leases, delays and backoffs, so it must not jump. It continues from the
//! persisted time by the time that has really passed since, as far as the machine knows it. Then it runs with the
//! machine's monotonic clock and slews towards the wall clock: at half speed when it is ahead, at double speed when
//! it is behind (I21, ADR 0030).

use redrive_core::limits;
use redrive_core::time::{Clock, Time};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The machine's wall clock. It jumps when somebody sets it, so it is only used for ids and as the target of slewing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wall;

impl Clock for Wall {
    fn now(&self) -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Time::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }
}

/// How long a machine has been up, including sleep. The difference between two values of one boot is the time that
/// passed between them, whatever happened to the wall clock meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uptime {
    /// Identifies the boot; every boot has another number.
    pub boot: u128,
    /// Milliseconds since the boot.
    pub ms: i64,
}

/// The clocks of a machine.
pub trait Machine: Debug + Send + Sync {
    /// The wall clock.
    fn wall(&self) -> Time;
    /// How long the machine has been up. `None` if the machine cannot tell.
    fn uptime(&self) -> Option<Uptime>;
    /// Milliseconds of a clock that only runs forwards, from an arbitrary start.
    fn monotonic_ms(&self) -> i64;
}

/// The machine that this process runs on.
#[derive(Clone, Copy, Debug)]
pub struct Here {
    started: Instant,
}

impl Default for Here {
    fn default() -> Self {
        Self { started: Instant::now() }
    }
}

impl Machine for Here {
    fn wall(&self) -> Time {
        Wall.now()
    }

    fn uptime(&self) -> Option<Uptime> {
        uptime()
    }

    fn monotonic_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

#[cfg(all(target_os = "linux", feature = "sqlite"))]
fn uptime() -> Option<Uptime> {
    static BOOT: std::sync::OnceLock<Option<u128>> = std::sync::OnceLock::new();
    let read = || {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
    };
    let boot = (*BOOT.get_or_init(read))?;
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Some(Uptime { boot, ms: up.tv_sec * 1_000 + up.tv_nsec / 1_000_000 })
}

#[cfg(not(all(target_os = "linux", feature = "sqlite")))]
fn uptime() -> Option<Uptime> {
    None
}

/// What a store persists about time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The time that the store's clock showed.
    pub time: Time,
    /// The machine's uptime at that moment. `None` in a backup, in older formats, and if the machine cannot tell.
    pub uptime: Option<Uptime>,
}

/// The time at which a store's clock starts, given the last persisted stamp and the machine's current clocks.
///
/// Within one boot the time that passed is known, so a wall clock that was set meanwhile changes the speed and not
/// the time: the clock advances by at least half and at most twice the time that passed. Across boots only the wall
/// clock can tell, and how far it may advance the clock is bounded: a wrong wall clock must not end every delay,
/// lease and retention at once. After a stamp without an uptime, the wall clock is taken as it is.
#[must_use]
pub fn anchor(last: Stamp, wall: Time, uptime: Option<Uptime>) -> Time {
    match (last.uptime, uptime) {
        (None, _) => wall.max(last.time),
        (Some(then), Some(now)) if then.boot == now.boot && then.ms <= now.ms => {
            let passed = now.ms.saturating_sub(then.ms);
            Time::from_millis(slew(last.time.as_millis(), passed, wall.as_millis()))
        }
        (Some(_), _) => wall.clamp(last.time, last.time.plus(limits::CLOCK_LEAP_MAX)),
    }
}

/// The time shown `elapsed` milliseconds after the clock showed `shown`, with the wall clock at `wall`.
const fn slew(shown: i64, elapsed: i64, wall: i64) -> i64 {
    let straight = shown.saturating_add(elapsed);
    if straight > wall {
        // Ahead of the wall: half speed, but no slower than needed to meet the wall.
        let slow = shown.saturating_add(elapsed / 2);
        if slow > wall { slow } else { wall }
    } else {
        let fast = straight.saturating_add(elapsed);
        if fast < wall { fast } else { wall }
    }
}

/// A clock that never jumps and never runs backwards.
#[derive(Debug)]
pub struct Slewing {
    machine: Arc<dyn Machine>,
    last: Mutex<Reading>,
}

/// The last reading: the monotonic clock, and the stamp at that moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    monotonic_ms: i64,
    stamp: Stamp,
}

impl Slewing {
    /// A clock on this machine that starts no earlier than `persisted`.
    #[must_use]
    pub fn starting_at(persisted: Time) -> Self {
        Self::resume(Arc::new(Here::default()), Stamp { time: persisted, uptime: None })
    }

    /// A clock that continues from the last persisted stamp.
    #[must_use]
    pub fn resume(machine: Arc<dyn Machine>, last: Stamp) -> Self {
        let (uptime, monotonic_ms) = (machine.uptime(), machine.monotonic_ms());
        let stamp = Stamp { time: anchor(last, machine.wall(), uptime), uptime };
        Self { machine, last: Mutex::new(Reading { monotonic_ms, stamp }) }
    }

    /// How far this clock is ahead of the wall clock, in milliseconds.
    pub fn skew_ms(&self) -> i64 {
        self.now().as_millis() - self.machine.wall().as_millis()
    }

    /// The current time, with what another process needs to continue from it.
    pub fn stamp(&self) -> Stamp {
        let monotonic_ms = self.machine.monotonic_ms();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = monotonic_ms - last.monotonic_ms;
        if elapsed > 0 {
            let shown = slew(last.stamp.time.as_millis(), elapsed, self.machine.wall().as_millis());
            // A half-speed step of one millisecond rounds to zero; the elapsed time is kept for the next reading.
            if shown > last.stamp.time.as_millis() {
                let stamp = Stamp { time: Time::from_millis(shown), uptime: self.machine.uptime() };
                *last = Reading { monotonic_ms, stamp };
            }
        }
        last.stamp
    }
}

impl Clock for Slewing {
    fn now(&self) -> Time {
        self.stamp().time
    }
}

/// The clock of a store: its own, or one given by the caller.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
#[derive(Clone)]
pub(crate) enum StoreClock {
    Own(Arc<Slewing>),
    Given(Arc<dyn Clock>),
}

#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
impl StoreClock {
    pub(crate) fn now(&self) -> Time {
        self.stamp().time
    }

    /// The time to persist with a commit.
    pub(crate) fn stamp(&self) -> Stamp {
        match self {
            Self::Own(clock) => clock.stamp(),
            Self::Given(clock) => Stamp { time: clock.now(), uptime: None },
        }
    }

    /// How far the clock is ahead of the wall clock, in milliseconds.
    pub(crate) fn skew_ms(&self) -> i64 {
        match self {
            Self::Own(clock) => clock.skew_ms(),
            Self::Given(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use redrive_core::time::Span;
    use std::sync::atomic::{AtomicI64, Ordering};

    /// A machine whose clocks are set by hand.
    #[derive(Debug, Default)]
    struct Hand {
        wall: AtomicI64,
        monotonic: AtomicI64,
    }

    impl Hand {
        fn at(wall: i64) -> Arc<Self> {
            Arc::new(Self { wall: AtomicI64::new(wall), monotonic: AtomicI64::new(0) })
        }
        fn set(&self, wall: i64) {
            self.wall.store(wall, Ordering::Relaxed);
        }
        fn run_to(&self, monotonic: i64) {
            self.monotonic.store(monotonic, Ordering::Relaxed);
        }
    }

    impl Machine for Hand {
        fn wall(&self) -> Time {
            Time::from_millis(self.wall.load(Ordering::Relaxed))
        }
        fn uptime(&self) -> Option<Uptime> {
            None
        }
        fn monotonic_ms(&self) -> i64 {
            self.monotonic.load(Ordering::Relaxed)
        }
    }

    fn clock_on(machine: &Arc<Hand>, persisted: i64) -> Slewing {
        let last = Stamp { time: Time::from_millis(persisted), uptime: None };
        Slewing::resume(Arc::clone(machine) as Arc<dyn Machine>, last)
    }

    #[test]
    fn i21_a_jump_of_the_wall_is_a_slope_not_a_step() {
        let machine = Hand::at(1_000_000);
        let clock = clock_on(&machine, 0);
        let read = |monotonic| {
            machine.run_to(monotonic);
            clock.now().as_millis()
        };
        assert_eq!(read(100), 1_000_050, "the wall stood still: ahead of it, half speed");
        machine.set(5_000_000);
        assert_eq!(read(200), 1_000_250, "forward jump: double speed");
        machine.set(10);
        assert_eq!(read(300), 1_000_300, "backward jump: half speed");
        assert_eq!(read(250), 1_000_300, "never backwards");
    }

    #[test]
    fn i21_persisted_time_is_a_floor() {
        let clock = clock_on(&Hand::at(1_000), 9_000);
        assert_eq!(clock.now().as_millis(), 9_000);
        assert_eq!(clock.skew_ms(), 8_000);
    }

    #[test]
    fn i21_a_million_jumps_never_run_backwards() {
        let machine = Hand::at(1_000_000);
        let clock = clock_on(&machine, 0);
        let mut before = clock.now();
        let mut x: u64 = 7;
        for tick in 0..1_000_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if x >> 60 == 0 {
                machine.set(i64::try_from((x >> 20) % 10_000_000).unwrap());
            }
            machine.run_to(tick * 3);
            let now = clock.now();
            assert!(now >= before && now.since(before).as_millis() <= 6);
            before = now;
        }
    }

    const HOUR: i64 = 3_600_000;
    const DAY: i64 = 24 * HOUR;
    const START: i64 = 1_767_225_600_000;

    fn stamp(time: i64, boot: u128, ms: i64) -> Stamp {
        Stamp { time: Time::from_millis(time), uptime: Some(Uptime { boot, ms }) }
    }

    #[test]
    fn i21_between_processes_what_the_machine_knows_is_believed_before_the_wall() {
        let leap = i64::try_from(limits::CLOCK_LEAP_MAX.as_millis()).unwrap();
        let before = stamp(START, 1, 5 * HOUR);
        for (what, last, wall, uptime, begins) in [
            ("an hour passed", before, START + HOUR, Some((1, 6 * HOUR)), START + HOUR),
            (
                "a minute passed, the wall jumped a day",
                before,
                START + DAY,
                Some((1, 5 * HOUR + 60_000)),
                START + 120_000,
            ),
            (
                "an hour passed, the wall was set back a day",
                before,
                START - DAY,
                Some((1, 6 * HOUR)),
                START + HOUR / 2,
            ),
            (
                "a store that is ahead meets the wall",
                before,
                START + 50_000,
                Some((1, 5 * HOUR + 60_000)),
                START + 50_000,
            ),
            ("nothing passed", before, START + DAY, Some((1, 5 * HOUR)), START),
            ("another boot", before, START + DAY, Some((2, 60_000)), START + DAY),
            (
                "another boot, the wall a year ahead",
                before,
                START + 365 * DAY,
                Some((2, 60_000)),
                START + leap,
            ),
            ("another boot, the wall behind", before, START - DAY, Some((2, 60_000)), START),
            (
                "the same boot, but earlier: a machine was set back",
                before,
                START + DAY,
                Some((1, HOUR)),
                START + DAY,
            ),
            ("a machine that does not say", before, START + 365 * DAY, None, START + leap),
            (
                "a backup, an older format, a new store",
                Stamp { uptime: None, ..before },
                START + 365 * DAY,
                Some((1, 6 * HOUR)),
                START + 365 * DAY,
            ),
        ] {
            let uptime = uptime.map(|(boot, ms)| Uptime { boot, ms });
            assert_eq!(anchor(last, Time::from_millis(wall), uptime).as_millis(), begins, "{what}");
        }
    }

    proptest! {
        /// Never backwards; within a boot at least half and at most twice the time that passed; across boots bounded.
        #[test]
        fn i21_the_clock_of_the_next_process_is_bounded_by_what_is_known(
            time in 0..2 * START, wall in 0..3 * START, up in 0..DAY, passed in 0..400 * DAY, same_boot: bool,
        ) {
            let last = stamp(time, 1, up);
            let now = Uptime { boot: if same_boot { 1 } else { 2 }, ms: up + passed };
            let begins = anchor(last, Time::from_millis(wall), Some(now));
            let added = begins.as_millis() - time;
            prop_assert!(added >= 0);
            if same_boot {
                prop_assert!((passed / 2..=2 * passed).contains(&added));
            } else {
                prop_assert!(begins.since(last.time) <= limits::CLOCK_LEAP_MAX);
            }
        }

        /// However far off a store is, short-lived processes bring it to the wall clock, even if no process runs
        /// most of the time, and it never overshoots.
        #[test]
        fn i21_a_store_that_is_off_meets_the_wall(off in -DAY..DAY, pauses in prop::collection::vec(2..2 * HOUR, 1..50)) {
            let (mut last, mut wall, mut up) = (stamp(START + off, 1, 0), START, 0);
            for pause in pauses.iter().cycle().take(100_000) {
                let before = last.time.as_millis() - wall;
                wall += pause;
                up += pause;
                let uptime = Uptime { boot: 1, ms: up };
                last = Stamp { time: anchor(last, Time::from_millis(wall), Some(uptime)), uptime: Some(uptime) };
                let after = last.time.as_millis() - wall;
                prop_assert!(after.abs() <= before.abs() && after.signum() * before.signum() >= 0);
                prop_assert!(after == 0 || after.abs() <= before.abs() - pause / 2);
                if after == 0 {
                    return Ok(());
                }
            }
            prop_assert!(pauses.iter().all(|pause| *pause < 10_000), "it never met the wall");
        }
    }

    #[test]
    fn this_machine_knows_how_long_it_has_been_up() {
        let (here, later) = (Here::default(), Here::default());
        if let (Some(first), Some(second)) = (here.uptime(), later.uptime()) {
            assert_eq!(first.boot, second.boot);
            assert!(first.ms <= second.ms && first.ms > 0);
        }
        assert!(
            anchor(Stamp { time: Time::ZERO, uptime: None }, here.wall(), None).since(here.wall())
                == Span::ZERO
        );
    }
}
