//! Workers that wait for messages. Each waits at its queues, in memory, and costs the writer one look when it begins.
//!
//! A commit that makes messages due wakes as many waiters as there are such messages, the latest ones first: workers
//! that were busy a moment ago get the next message, and the others sleep on. A woken worker that leases and leaves due
//! messages behind wakes the next (`Holder::leased`). One of the waiters, the leader, also watches the time on behalf of
//! all: it asks the store when a message that waits for its time is due, and looks again while due messages are left
//! lying, so that nothing waits for a worker that was woken and went away.

use super::Holder;
use crate::access::{Access, WriteCost};
use crate::engine::lease::{Due, check_wait};
use crate::engine::touched::Available;
use redrive_core::error::StoreResult;
use redrive_core::ids::QueueName;
use redrive_core::time::{Span, Time};
use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// How long the leader leaves due messages to those it has woken before it wakes another. Also how often a worker that
/// may not lease a suspect asks again because of one.
const LOOK_AGAIN: Span = Span::from_millis(250);
/// Waiters that the leader wakes at a time for messages that are left lying.
const WOKEN_MAX: usize = 64;
/// Waiters that are asked at a time whether they may have a suspect.
const ASKED_FOR_SUSPECT: usize = 4;
/// The shortest sleep of the leader, because the store's clock may lag behind.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// Everybody who waits.
#[derive(Debug, Default)]
pub(super) struct Waits {
    registry: Mutex<Registry>,
    /// Held by the leader.
    leader: tokio::sync::Mutex<()>,
    /// Tells the leader that a queue has to be looked at earlier than planned.
    replan: Notify,
    count: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Registry {
    next: u64,
    waiters: HashMap<u64, Waiter>,
    /// The waiters of each queue, in the order in which they came.
    queues: HashMap<QueueName, QueueWaits>,
}

#[derive(Debug)]
struct Waiter {
    wake: oneshot::Sender<()>,
    queues: Vec<QueueName>,
}

#[derive(Debug, Default)]
struct QueueWaits {
    waiters: BTreeSet<u64>,
    /// When the leader looks at the queue. `None` if nothing waits for its time there.
    look_at: Option<Time>,
    /// How many the leader woke at its last look, because due messages were left lying.
    woken: usize,
}

/// Which waiters of a queue are woken first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    /// Those who came last.
    Latest,
    /// Those who have waited longest, so that everybody gets a turn.
    Longest,
}

impl Registry {
    fn add(&mut self, queues: &[QueueName], wake: oneshot::Sender<()>) -> u64 {
        self.next += 1;
        let mut queues = queues.to_vec();
        queues.sort();
        queues.dedup();
        for queue in &queues {
            self.queues.entry(queue.clone()).or_default().waiters.insert(self.next);
        }
        self.waiters.insert(self.next, Waiter { wake, queues });
        self.next
    }

    fn remove(&mut self, id: u64) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        for queue in &waiter.queues {
            if let Some(waits) = self.queues.get_mut(queue) {
                waits.waiters.remove(&id);
                if waits.waiters.is_empty() {
                    self.queues.remove(queue);
                }
            }
        }
        Some(waiter)
    }

    /// Wakes up to `count` waiters of a queue. Returns how many.
    fn wake(&mut self, queue: &QueueName, count: usize, first: First) -> usize {
        let mut woken = 0;
        while woken < count {
            let Some(waits) = self.queues.get(queue) else { break };
            let next = match first {
                First::Latest => waits.waiters.last(),
                First::Longest => waits.waiters.first(),
            };
            let Some(waiter) = next.copied().and_then(|id| self.remove(id)) else { break };
            // One that has just stopped waiting does not count.
            woken += usize::from(waiter.wake.send(()).is_ok());
        }
        woken
    }

    /// Plans a look at a queue, unless an earlier one is planned. Returns whether the plan changed.
    fn plan(&mut self, queue: &QueueName, at: Time) -> bool {
        let Some(waits) = self.queues.get_mut(queue) else { return false };
        let earlier = waits.look_at.is_none_or(|planned| at < planned);
        if earlier {
            waits.look_at = Some(at);
        }
        earlier
    }

    /// When the next look is due.
    fn next_look(&self) -> Option<Time> {
        self.queues.values().filter_map(|waits| waits.look_at).min()
    }
}

impl Waits {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.count)
    }

    fn register(&self, queues: &[QueueName]) -> Ticket<'_> {
        let (wake, woken) = oneshot::channel();
        // Counted before the first look: a commit that this look does not see must see the waiter.
        self.count.fetch_add(1, Ordering::SeqCst);
        let id = self.registry().add(queues, wake);
        Ticket { waits: self, id, queues: queues.to_vec(), woken, over: false }
    }

    /// Wakes waiters of a queue for work that a commit made available.
    pub(super) fn offer(&self, work: &Available) {
        if work.due > 0 {
            self.wake(&work.queue, work.due, work.at);
        }
        if let Some(at) = work.later {
            self.plan(&work.queue, at);
        }
    }

    /// Wakes up to `count` waiters of a queue that has due messages, and plans a look at what they leave.
    pub(super) fn wake(&self, queue: &QueueName, count: usize, now: Time) {
        self.registry().wake(queue, count, First::Latest);
        self.plan(queue, now.plus(LOOK_AGAIN));
    }

    /// Plans a look at a queue if somebody waits there, unless an earlier one is planned.
    fn plan(&self, queue: &QueueName, at: Time) {
        if self.registry().plan(queue, at) {
            self.replan.notify_one();
        }
    }

    /// Acts on what the store said about a queue: wakes waiters if messages are due, and plans the next look.
    fn consider(&self, queue: &QueueName, due: Due, now: Time) {
        let mut registry = self.registry();
        let ordinary = due.ordinary.is_some_and(|at| at <= now);
        let suspect = due.suspect.is_some_and(|at| at <= now);
        let mut woken = 0;
        if ordinary {
            // Twice as many each time: those who were woken first may all be gone.
            let before = registry.queues.get(queue).map_or(0, |waits| waits.woken);
            woken = registry.wake(queue, (2 * before).clamp(1, WOKEN_MAX), First::Latest);
        }
        if suspect {
            registry.wake(queue, ASKED_FOR_SUSPECT, First::Longest);
        }
        if let Some(waits) = registry.queues.get_mut(queue) {
            waits.woken = woken;
            let again = (ordinary || suspect).then(|| now.plus(LOOK_AGAIN));
            let later = [due.ordinary, due.suspect, again].into_iter().flatten().filter(|at| *at > now);
            waits.look_at = later.min();
        }
    }
}

/// A place among the waiters. Giving it up passes on a wake-up that was not used.
struct Ticket<'a> {
    waits: &'a Waits,
    id: u64,
    queues: Vec<QueueName>,
    woken: oneshot::Receiver<()>,
    /// Whether the waiter was told that there is work.
    over: bool,
}

impl Ticket<'_> {
    fn take(mut self) -> bool {
        self.over = true;
        true
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.waits.count.fetch_sub(1, Ordering::SeqCst);
        let mut registry = self.waits.registry();
        let still_waited = registry.remove(self.id).is_some();
        if !still_waited && !self.over {
            for queue in &self.queues {
                if registry.wake(queue, 1, First::Latest) > 0 {
                    break;
                }
            }
        }
    }
}

/// Waits until one of the queues may have due messages.
pub(crate) async fn wait<A: Access>(access: &A, queues: Vec<QueueName>, at_most: Span) -> StoreResult<bool> {
    check_wait(&queues)?;
    let end = Instant::now() + at_most.to_std();
    let waits = &access.holder().waits;
    // A place first, then a look: what is committed before the look is seen by it, and the rest wakes the place.
    let mut ticket = waits.register(&queues);
    let look = access.write(WriteCost::FREES, move |engine, now| engine.next_due(&queues, now));
    let dues = look.await?;
    let now = access.now();
    if dues.iter().any(|(_, due)| due.ordinary.is_some_and(|at| at <= now)) {
        return Ok(ticket.take());
    }
    for (queue, due) in dues {
        // Whether this worker may have a suspect is not known here: it may ask, but not in a tight circle.
        let suspect = due.suspect.map(|at| at.max(now.plus(LOOK_AGAIN)));
        if let Some(at) = due.ordinary.into_iter().chain(suspect).min() {
            waits.plan(&queue, at);
        }
    }
    tokio::select! {
        biased;
        _ = &mut ticket.woken => Ok(ticket.take()),
        () = tokio::time::sleep_until(end) => Ok(false),
        ended = lead(access, access.holder()) => ended.map(|never| match never {}),
    }
}

/// Watches the time for everybody who waits, for as long as this waiter waits itself. Only one does so at a time; when
/// it stops waiting, the next one takes over.
async fn lead<A: Access>(access: &A, holder: &Holder) -> StoreResult<Infallible> {
    let waits = &holder.waits;
    let _leader = waits.leader.lock().await;
    loop {
        let now = access.now();
        let due: Vec<QueueName> = {
            let registry = waits.registry();
            let queues = registry.queues.iter();
            let due = queues.filter(|(_, waits)| waits.look_at.is_some_and(|at| at <= now));
            due.map(|(queue, _)| queue.clone()).collect()
        };
        if !due.is_empty() {
            let look = access.write(WriteCost::FREES, move |engine, now| engine.next_due(&due, now));
            let dues = look.await?;
            let now = access.now();
            for (queue, due) in dues {
                waits.consider(&queue, due, now);
            }
            continue;
        }
        let next = waits.registry().next_look();
        let nap = next.map_or(Duration::MAX, |at| at.since(now).to_std().max(SLEEP_MIN));
        let _ = tokio::time::timeout(nap, waits.replan.notified()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn q(name: &str) -> QueueName {
        name.parse().unwrap()
    }

    const NOW: Time = Time::from_millis(1_000);

    fn available(queue: &str, due: usize) -> Available {
        Available { queue: q(queue), at: NOW, due, later: None }
    }

    /// Which of these have been woken.
    fn woken(tickets: &mut [Ticket<'_>]) -> Vec<usize> {
        let woken = tickets.iter_mut().enumerate().filter_map(|(n, t)| t.woken.try_recv().ok().map(|()| n));
        woken.collect()
    }

    #[test]
    fn as_many_are_woken_as_there_is_work_for() {
        let waits = Waits::default();
        let mut all: Vec<Ticket<'_>> = (0..5).map(|_| waits.register(&[q("a"), q("b")])).collect();
        waits.offer(&available("other", 3));
        assert!(woken(&mut all).is_empty());
        waits.offer(&available("a", 2));
        assert_eq!(woken(&mut all), [3, 4], "the latest first");
        waits.offer(&available("b", 100));
        assert_eq!(woken(&mut all), [0, 1, 2]);
        assert!(waits.registry().queues.is_empty());
    }

    #[test]
    fn a_wake_up_that_nobody_used_is_passed_on() {
        let waits = Waits::default();
        let mut stays = [waits.register(&[q("a")])];
        let goes = waits.register(&[q("b"), q("a")]);
        waits.offer(&available("a", 1));
        assert!(woken(&mut stays).is_empty());
        drop(goes);
        assert_eq!(woken(&mut stays), [0]);
    }

    #[test]
    fn a_wake_up_that_was_used_is_not_passed_on() {
        let waits = Waits::default();
        let mut stays = [waits.register(&[q("a")])];
        let goes = waits.register(&[q("a")]);
        waits.offer(&available("a", 1));
        assert!(goes.take());
        let leaves = waits.register(&[q("a")]);
        drop(leaves);
        assert!(woken(&mut stays).is_empty());
        assert_eq!(waits.count.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn due_messages_that_are_left_lying_wake_another_after_a_moment() {
        let waits = Waits::default();
        let mut all: Vec<Ticket<'_>> = (0..5).map(|_| waits.register(&[q("a")])).collect();
        waits.offer(&available("a", 1));
        assert_eq!(woken(&mut all), [4]);
        assert_eq!(waits.registry().next_look(), Some(NOW.plus(LOOK_AGAIN)));
        let due = Due { ordinary: Some(NOW), suspect: None };
        for (round, who, left) in [(1, &[3][..], true), (2, &[1, 2], true), (3, &[0], false)] {
            let now = NOW.plus(Span::from_millis(250 * round));
            waits.consider(&q("a"), due, now);
            assert_eq!(woken(&mut all), who, "more each time");
            assert_eq!(waits.registry().next_look(), left.then(|| now.plus(LOOK_AGAIN)));
        }
    }

    #[test]
    fn a_suspect_is_offered_to_those_who_have_waited_longest() {
        let waits = Waits::default();
        let mut all: Vec<Ticket<'_>> = (0..6).map(|_| waits.register(&[q("a")])).collect();
        waits.consider(&q("a"), Due { ordinary: None, suspect: Some(NOW) }, NOW);
        assert_eq!(woken(&mut all), [0, 1, 2, 3]);
    }

    #[test]
    fn an_earlier_time_changes_the_plan() {
        let waits = Waits::default();
        let _waiter = waits.register(&[q("a")]);
        let at = |ms| Time::from_millis(ms);
        assert!(waits.registry().plan(&q("a"), at(50)));
        assert!(!waits.registry().plan(&q("a"), at(60)));
        assert!(waits.registry().plan(&q("a"), at(40)));
        assert!(!waits.registry().plan(&q("nobody-waits-here"), at(1)));
        assert_eq!(waits.registry().next_look(), Some(at(40)));
    }
}
