//! A priority queue in memory for many producers and many consumers: the hand-off inside one process. It keeps
//! no clock (the caller ticks it), starts no thread and never blocks.
//!
//! Five bounded lock-free rings hold the messages, one per level; the [`crate::scheduler`] says which level is
//! next. To enqueue is lock-free. To dequeue takes the desk, a lock that is tried and never waited for: a
//! consumer that finds another one picking is told [`Dequeued::LostRace`] and may try again. Picks are thus one
//! after the other and each sees true heads, so with any number of consumers the rule is exactly that of
//! [`crate::scheduler::Scheduler`]: with all levels non-empty each gets its weight in any 31 picks, the k-th
//! background message is served within 35k picks that were not urgent, aged heads get one pick in nine.
//!
//! Messages with a deadline travel beside the rings and keep their place in the order of arrival. Within five
//! seconds of its deadline a message is urgent: earliest deadline first, then priority, then arrival. A message
//! whose deadline has passed is handed back as [`Dequeued::Expired`] and counts as no pick.

mod desk;
mod lane;
mod level;

use crate::limits;
use crate::priority::Priority;
use crate::scheduler::{Decision, Load, LoadWatch, PickReason};
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, TryLockError};
use crate::time::{Span, Time};
use crossbeam_utils::CachePadded;
use desk::{Desk, Given};
use level::{Exit, Level, Place};

pub use level::LevelStats;

/// A message inside, without its deadline.
#[derive(Debug)]
struct Waiting<T> {
    item: T,
    ready_at: Time,
    /// Its place among the arrivals of its level.
    seq: u64,
}

/// The message is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The level is at least 80 % full: send less, or elsewhere.
    pub back_pressure: bool,
}

/// The message is not in; here it is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected<T> {
    /// Its level is full.
    Full(T),
    /// It is background work and there is an emergency.
    Emergency(T),
}

impl<T> Rejected<T> {
    /// The message.
    pub fn into_item(self) -> T {
        match self {
            Self::Full(item) | Self::Emergency(item) => item,
        }
    }
}

/// A message handed out to be worked on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Picked<T> {
    /// The message.
    pub item: T,
    /// Why it and not another.
    pub decision: Decision,
    /// How long it was inside, as the ticked clock saw it.
    pub waited: Span,
    /// Its deadline, if it has one.
    pub deadline: Option<Time>,
}

/// A message handed back because its deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue<T> {
    /// The message.
    pub item: T,
    /// Its level.
    pub level: Priority,
    /// When it should have been done.
    pub deadline: Time,
    /// How long it was inside.
    pub waited: Span,
}

/// What a dequeue found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dequeued<T> {
    /// A message to work on.
    Item(Picked<T>),
    /// A message that nobody should work on any more.
    Expired(Overdue<T>),
    /// No message is inside.
    Empty,
    /// Messages are inside, but in this emergency none of them is served.
    Held,
    /// Another consumer was picking: let another thread run, then try again.
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
    desk: CachePadded<Mutex<Desk<T>>>,
    /// Read by everybody, written by ticks and observations.
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
    /// A queue with room for 4,096 messages in each level.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(limits::RING_DEFAULT)
    }

    /// A queue with room for that many messages in each level; at least one, at most
    /// [`limits::RING_MAX`].
    #[must_use]
    pub fn with_capacity(per_level: usize) -> Self {
        let per_level = per_level.clamp(1, limits::RING_MAX);
        let capacity = per_level as u64;
        Self {
            levels: std::array::from_fn(|_| Level::new(per_level)),
            desk: CachePadded::new(Mutex::new(Desk::new())),
            now_ms: CachePadded::new(AtomicU64::new(0)),
            emergency: AtomicBool::new(false),
            capacity,
            pressure_at: (capacity * 4).div_ceil(5),
            watch: Mutex::new(LoadWatch::default()),
        }
    }

    /// Tells the time. The queue's clock stands still between ticks and never goes back; how finely it is
    /// ticked is how finely ages and deadlines are seen.
    pub fn tick(&self, now: Time) {
        self.now_ms.fetch_max(u64::try_from(now.as_millis()).unwrap_or(0), Ordering::Relaxed);
    }

    /// The time of the last tick.
    pub fn now(&self) -> Time {
        Time::from_millis(i64::try_from(self.now_ms.load(Ordering::Relaxed)).unwrap_or(i64::MAX))
    }

    /// Tells the load. Enters emergency at once, leaves it after ten seconds of relief by the ticked clock.
    /// Gives whether there is an emergency now.
    pub fn observe(&self, load: Load) -> bool {
        let now = self.now();
        let mut watch = self.watch.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        watch.observe(load, now);
        let emergency = watch.in_emergency();
        // Inside the lock, so that two observations end in the order they were made.
        self.emergency.store(emergency, Ordering::Relaxed);
        emergency
    }

    /// Whether only critical and high are served and background is refused.
    pub fn in_emergency(&self) -> bool {
        self.emergency.load(Ordering::Relaxed)
    }

    /// Takes a message in.
    ///
    /// # Errors
    ///
    /// Gives the message back when its level is full, or when it is background work in an emergency.
    pub fn enqueue(&self, item: T, priority: Priority) -> Result<Accepted, Rejected<T>> {
        let level = self.level(priority);
        let (message, accepted) = self.admit(level, item, priority)?;
        match level.push(message) {
            Ok(()) => Ok(accepted),
            // Cannot happen, since the ring has a slot for every place; if it does, nothing is lost.
            Err(back) => {
                level.give_up();
                Err(Rejected::Full(back.item))
            }
        }
    }

    /// Takes in a message that must be done by then. From five seconds before its deadline it is urgent; from
    /// its deadline on it is handed back as expired, also when that is already so.
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
        let Some(Place { seq, depth }) = level.reserve(self.capacity, self.pressure_at) else {
            return Err(Rejected::Full(item));
        };
        let accepted = Accepted { back_pressure: depth >= self.pressure_at };
        Ok((Waiting { item, ready_at: self.now(), seq }, accepted))
    }

    /// Takes the next message out, with the record of why it was next.
    pub fn dequeue(&self) -> Dequeued<T> {
        let Some(mut desk) = self.sit_down() else { return Dequeued::LostRace };
        desk.refill(&self.levels);
        let now = self.now();
        match desk.give(now, self.in_emergency()) {
            Given::Picked(message, deadline, decision) => {
                let exit = match decision.reason {
                    PickReason::DeadlineApproaching => Exit::Urgent,
                    PickReason::StarvationPrevention => Exit::Aged,
                    PickReason::PriorityOrder | PickReason::LoadBalancing | PickReason::EmergencyMode => {
                        Exit::Ordinary
                    }
                };
                desk.release(self.level(decision.level), decision.level, exit);
                drop(desk);
                let Waiting { item, ready_at, .. } = message;
                Dequeued::Item(Picked { item, decision, waited: now.since(ready_at), deadline })
            }
            Given::Expired(message, deadline, level) => {
                desk.release(self.level(level), level, Exit::Expired);
                drop(desk);
                let Waiting { item, ready_at, .. } = message;
                Dequeued::Expired(Overdue { item, level, deadline, waited: now.since(ready_at) })
            }
            Given::Held => Dequeued::Held,
            Given::Empty => Dequeued::Empty,
        }
    }

    /// Takes the desk if nobody has it.
    fn sit_down(&self) -> Option<MutexGuard<'_, Desk<T>>> {
        match self.desk.try_lock() {
            Ok(desk) => Some(desk),
            // Nothing at the desk panics half way, and nothing there is the caller's code.
            Err(TryLockError::Poisoned(desk)) => Some(desk.into_inner()),
            // Once and no more: a consumer that keeps trying takes the desk's cache lines from the one that is
            // picking, and both get slower than one alone.
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn level(&self, priority: Priority) -> &Level<T> {
        let [.., last] = &self.levels;
        self.levels.get(priority.level()).unwrap_or(last)
    }

    /// Messages inside, in all levels.
    pub fn len(&self) -> u64 {
        self.levels.iter().map(|level| level.depth(self.capacity)).sum()
    }

    /// Whether no message is inside.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Messages a level has room for.
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

    /// The counters of a level. Exact: when nobody is in the middle of a call, `enqueued` is `dequeued`,
    /// `expired` and `depth` together. In the middle of calls a message counts as inside from the moment its
    /// place was reserved.
    pub fn stats(&self, priority: Priority) -> LevelStats {
        self.level(priority).stats(self.capacity)
    }
}
