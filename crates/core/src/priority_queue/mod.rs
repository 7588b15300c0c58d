//! An in-memory priority queue for many producers and many consumers: the hand-off inside one process. It has
//! no clock of its own (the caller ticks it), starts no thread and never blocks.
//!
//! Five bounded lock-free rings hold the messages, one per level, and the [`crate::scheduler`] decides which
//! level is next. Enqueueing is lock-free. Dequeueing takes the lock of the dispenser, which is tried once and
//! never waited for: a consumer that finds it taken gets [`Dequeued::LostRace`] and may try again. Picks
//! therefore happen one after the other and each sees the true heads, so that with any number of consumers the
//! rule is exactly that of [`crate::scheduler::Scheduler`]: with all levels non-empty each gets its weight in
//! any 31 picks, the k-th background message is served within 35k picks that were not urgent, and aged heads
//! get one pick in nine.
//!
//! Messages with a deadline travel beside the rings and keep their position in the order of arrival. Within
//! five seconds of its deadline a message is urgent: earliest deadline first, then priority, then arrival. A
//! message whose deadline has passed is returned as [`Dequeued::Expired`] and does not count as a pick.

mod dispenser;
mod lane;
mod level;

use crate::limits;
use crate::priority::Priority;
use crate::scheduler::{Decision, Load, LoadWatch, PickReason};
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, TryLockError};
use crate::time::{Span, Time};
use crossbeam_utils::CachePadded;
use dispenser::{Dispensed, Dispenser};
use level::{Exit, Level, Reservation};

pub use level::LevelStats;

/// A message in the queue, without its deadline.
#[derive(Debug)]
struct Waiting<T> {
    item: T,
    ready_at: Time,
    /// The position in the order of arrival of its level.
    seq: u64,
}

/// The queue accepted the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Whether the level is at least 80 % full. The producer should send less, or elsewhere.
    pub back_pressure: bool,
}

/// The queue rejected the message and returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected<T> {
    /// The level is full.
    Full(T),
    /// It is a background message and there is an emergency.
    Emergency(T),
}

impl<T> Rejected<T> {
    /// The rejected message.
    pub fn into_item(self) -> T {
        match self {
            Self::Full(item) | Self::Emergency(item) => item,
        }
    }
}

/// A message to be processed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Picked<T> {
    /// The message.
    pub item: T,
    /// Why this message was picked.
    pub decision: Decision,
    /// How long it was in the queue, by the ticked clock.
    pub waited: Span,
    /// Its deadline, if it has one.
    pub deadline: Option<Time>,
}

/// A message that is returned because its deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue<T> {
    /// The message.
    pub item: T,
    /// Its level.
    pub level: Priority,
    /// The deadline.
    pub deadline: Time,
    /// How long it was in the queue, by the ticked clock.
    pub waited: Span,
}

/// The result of a dequeue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dequeued<T> {
    /// A message to process.
    Item(Picked<T>),
    /// A message whose deadline has passed. It should not be processed.
    Expired(Overdue<T>),
    /// The queue is empty.
    Empty,
    /// The queue has messages, but serves none of them in this emergency.
    Held,
    /// Another consumer is picking. Yield to another thread, then try again.
    LostRace,
}

/// A bounded priority queue for many threads. See the [module](self).
///
/// ```
/// use redrive_core::priority::Priority;
/// use redrive_core::priority_queue::{Dequeued, PriorityQueue};
/// use redrive_core::time::Time;
///
/// let queue = PriorityQueue::new();
/// queue.tick(Time::from_millis(1_000));
/// queue.enqueue("sweep the floor", Priority::Background).unwrap();
/// queue.enqueue("put out the fire", Priority::Critical).unwrap();
/// let Dequeued::Item(picked) = queue.dequeue() else { panic!("two messages wait") };
/// assert_eq!(picked.item, "put out the fire");
/// ```
#[derive(Debug)]
pub struct PriorityQueue<T> {
    levels: [Level<T>; 5],
    dispenser: CachePadded<Mutex<Dispenser<T>>>,
    /// Read by all threads, written by ticks and load reports.
    now_ms: CachePadded<AtomicU64>,
    emergency: AtomicBool,
    capacity: u64,
    pressure_at: u64,
    watch: Mutex<LoadWatch>,
}

impl<T> Default for PriorityQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> PriorityQueue<T> {
    /// A queue with a capacity of 4,096 messages per level.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(limits::RING_DEFAULT)
    }

    /// A queue with this capacity per level: at least one, at most [`limits::RING_MAX`].
    #[must_use]
    pub fn with_capacity(per_level: usize) -> Self {
        let per_level = per_level.clamp(1, limits::RING_MAX);
        let capacity = per_level as u64;
        Self {
            levels: std::array::from_fn(|_| Level::new(per_level)),
            dispenser: CachePadded::new(Mutex::new(Dispenser::new())),
            now_ms: CachePadded::new(AtomicU64::new(0)),
            emergency: AtomicBool::new(false),
            capacity,
            pressure_at: (capacity * 4).div_ceil(5),
            watch: Mutex::new(LoadWatch::default()),
        }
    }

    /// Sets the time. The clock of the queue stands still between ticks and never goes back. The interval of
    /// the ticks is the resolution of ages and deadlines.
    pub fn tick(&self, now: Time) {
        self.now_ms.fetch_max(u64::try_from(now.as_millis()).unwrap_or(0), Ordering::Relaxed);
    }

    /// The time of the last tick.
    pub fn now(&self) -> Time {
        Time::from_millis(i64::try_from(self.now_ms.load(Ordering::Relaxed)).unwrap_or(i64::MAX))
    }

    /// Reports the load and returns whether there is an emergency now. Enters the emergency at once and leaves
    /// it after ten seconds of relief by the ticked clock.
    pub fn observe(&self, load: Load) -> bool {
        let now = self.now();
        let mut watch = self.watch.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        watch.observe(load, now);
        let emergency = watch.in_emergency();
        // Stored inside the lock, so that two reports take effect in their order.
        self.emergency.store(emergency, Ordering::Relaxed);
        emergency
    }

    /// Whether only critical and high are served and background is rejected.
    pub fn in_emergency(&self) -> bool {
        self.emergency.load(Ordering::Relaxed)
    }

    /// Enqueues a message.
    ///
    /// # Errors
    ///
    /// Returns the message if its level is full, or if it is a background message in an emergency.
    pub fn enqueue(&self, item: T, priority: Priority) -> Result<Accepted, Rejected<T>> {
        let level = self.level(priority);
        let (message, accepted) = self.admit(level, item, priority)?;
        match level.push(message) {
            Ok(()) => Ok(accepted),
            // Cannot happen, since the ring has a slot for every reservation. If it does, nothing is lost.
            Err(back) => {
                level.cancel_reservation();
                Err(Rejected::Full(back.item))
            }
        }
    }

    /// Enqueues a message with a deadline. From five seconds before its deadline the message is urgent; from
    /// its deadline on it is returned as expired, even if the deadline has passed already.
    ///
    /// # Errors
    ///
    /// As for [`Self::enqueue`].
    pub fn enqueue_by(&self, item: T, priority: Priority, deadline: Time) -> Result<Accepted, Rejected<T>> {
        let level = self.level(priority);
        let (message, accepted) = self.admit(level, item, priority)?;
        level.push_dated(message, deadline);
        Ok(accepted)
    }

    fn admit(
        &self,
        level: &Level<T>,
        item: T,
        priority: Priority,
    ) -> Result<(Waiting<T>, Accepted), Rejected<T>> {
        if priority == Priority::Background && self.in_emergency() {
            level.count_refused();
            return Err(Rejected::Emergency(item));
        }
        let Some(Reservation { seq, depth }) = level.reserve(self.capacity, self.pressure_at) else {
            return Err(Rejected::Full(item));
        };
        let accepted = Accepted { back_pressure: depth >= self.pressure_at };
        Ok((Waiting { item, ready_at: self.now(), seq }, accepted))
    }

    /// Dequeues the next message, together with the reason why it was picked.
    pub fn dequeue(&self) -> Dequeued<T> {
        let Some(mut dispenser) = self.try_lock_dispenser() else { return Dequeued::LostRace };
        dispenser.refill(&self.levels);
        let now = self.now();
        match dispenser.dispense(now, self.in_emergency()) {
            Dispensed::Picked(message, deadline, decision) => {
                let exit = match decision.reason {
                    PickReason::DeadlineApproaching => Exit::Urgent,
                    PickReason::StarvationPrevention => Exit::Aged,
                    PickReason::PriorityOrder | PickReason::LoadBalancing | PickReason::EmergencyMode => {
                        Exit::Ordinary
                    }
                };
                dispenser.release(self.level(decision.level), decision.level, exit);
                drop(dispenser);
                let Waiting { item, ready_at, .. } = message;
                Dequeued::Item(Picked { item, decision, waited: now.since(ready_at), deadline })
            }
            Dispensed::Expired(message, deadline, level) => {
                dispenser.release(self.level(level), level, Exit::Expired);
                drop(dispenser);
                let Waiting { item, ready_at, .. } = message;
                Dequeued::Expired(Overdue { item, level, deadline, waited: now.since(ready_at) })
            }
            Dispensed::Held => Dequeued::Held,
            Dispensed::Empty => Dequeued::Empty,
        }
    }

    /// Locks the dispenser unless another consumer holds it.
    fn try_lock_dispenser(&self) -> Option<MutexGuard<'_, Dispenser<T>>> {
        match self.dispenser.try_lock() {
            Ok(dispenser) => Some(dispenser),
            // No code under this lock panics half way, and none of it is the caller's.
            Err(TryLockError::Poisoned(dispenser)) => Some(dispenser.into_inner()),
            // Only one try: a consumer that keeps trying takes the dispenser's cache lines from the one that is
            // picking, and both get slower than one alone.
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn level(&self, priority: Priority) -> &Level<T> {
        let [.., last] = &self.levels;
        self.levels.get(priority.level()).unwrap_or(last)
    }

    /// The number of messages in all levels.
    pub fn len(&self) -> u64 {
        self.levels.iter().map(|level| level.depth(self.capacity)).sum()
    }

    /// Whether the queue has no messages.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The capacity of each level.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// How full the fullest level is, from 0 to 1.
    pub fn utilisation(&self) -> f64 {
        let fullest = self.levels.iter().map(|level| level.depth(self.capacity)).max().unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "both are at most 2^24")]
        let share = fullest as f64 / self.capacity as f64;
        share
    }

    /// The counters of a level. They are exact: while no call is in progress, `enqueued` is the sum of
    /// `dequeued`, `expired` and `depth`. During calls, a message counts as enqueued from the moment it
    /// reserved its place.
    pub fn stats(&self, priority: Priority) -> LevelStats {
        self.level(priority).stats(self.capacity)
    }
}
