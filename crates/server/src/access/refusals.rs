//! Refused requests on their way into the audit trail. Anybody can send requests that are refused, so they are counted
//! by who sent them and why they were refused, and a count becomes one row: at once for the first, then at most one a
//! minute. A row is written by a task of its own, so that no reply waits for it.

use redrive_core::dead_letter::Actor;
use redrive_core::recording::{OutsideAct, RecordRequest};
use redrive_core::store::Store;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The time for which the refusals of one caller for one reason are counted together.
const COUNTED_FOR: Duration = Duration::from_secs(60);
/// The number of callers and reasons that are told apart. The others are counted together, by reason.
const KEYS_MAX: usize = 1_000;
/// The name under which callers are counted together.
const OTHERS: &str = "others";

/// The address of whoever sent a request.
#[derive(Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

impl Peer {
    /// A name for somebody of whom only the address is known, if at all.
    pub(crate) fn name(peer: Option<Self>) -> String {
        peer.map_or_else(
            || "unknown peer".to_owned(),
            |Self(address)| format!("peer {}", address.to_canonical()),
        )
    }
}

/// Refused requests that are counted together: who sent them, and the code of the problem.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    who: String,
    code: &'static str,
}

#[derive(Default)]
struct Count {
    /// The number that is not in the audit trail yet.
    count: u64,
    /// What the first of them wanted.
    detail: String,
    /// When a row was last written.
    written: Option<Instant>,
}

impl Count {
    fn is_due(&self, now: Instant) -> bool {
        self.written.is_none_or(|at| now.saturating_duration_since(at) >= COUNTED_FOR)
    }
}

#[derive(Default)]
struct Counts {
    by_key: HashMap<Key, Count>,
    /// Whether a task writes the rows.
    written: bool,
}

#[derive(Default)]
struct Shared {
    counts: Mutex<Counts>,
    /// Tells the task that there is something to write at once.
    first: Notify,
    /// Held while rows are being written.
    writing: tokio::sync::Mutex<()>,
}

/// The refused requests of a server that are not in the audit trail yet. Whoever runs a server keeps a clone and
/// [writes](Self::write) what is left when it has stopped.
#[derive(Clone, Default)]
pub struct Refusals(Arc<Shared>);

impl Refusals {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a refused request. The row is written soon, and when the server stops at the latest.
    pub(crate) fn note(
        &self,
        store: &Arc<dyn Store>,
        stop: &CancellationToken,
        (who, code): (String, &'static str),
        detail: String,
    ) {
        let mut counts = self.counts();
        counts.add(Key { who, code }, 1, detail);
        if counts.written {
            self.0.first.notify_one();
        } else {
            counts.written = true;
            tokio::spawn(self.clone().run(Arc::clone(store), stop.clone()));
        }
    }

    /// Writes rows when they are due, until there is nothing left to count or the server stops.
    async fn run(self, store: Arc<dyn Store>, stop: CancellationToken) {
        loop {
            self.write_rows(store.as_ref(), stop.is_cancelled()).await;
            let next = {
                let mut counts = self.counts();
                let next = counts.next_at().filter(|_| !stop.is_cancelled());
                counts.written = next.is_some();
                next
            };
            let Some(next) = next else { return };
            tokio::select! {
                () = self.0.first.notified() => {}
                () = tokio::time::sleep_until(next.into()) => {}
                () = stop.cancelled() => {}
            }
        }
    }

    /// Writes everything that is not in the audit trail yet.
    pub async fn write(&self, store: &dyn Store) {
        self.write_rows(store, true).await;
    }

    async fn write_rows(&self, store: &dyn Store, all: bool) {
        let _writing = self.0.writing.lock().await;
        let rows = self.counts().take(Instant::now(), all);
        if rows.is_empty() {
            return;
        }
        let batch = rows.iter().map(|(key, count, detail)| request(key, *count, detail)).collect();
        if let Err(error) = store.record(batch).await {
            tracing::warn!(%error, rows = rows.len(), "refused requests are not in the audit trail yet");
            let mut counts = self.counts();
            for (key, count, detail) in rows {
                counts.add(key, count, detail);
            }
        }
    }
}

/// The row about the requests of one caller that were refused for one reason.
fn request(key: &Key, count: u64, detail: &str) -> RecordRequest {
    let row = RecordRequest::new(OutsideAct::Refuse, Actor::new(key.who.clone(), "api"), key.code);
    RecordRequest { count, ..row }.with_detail(detail)
}

impl Counts {
    fn add(&mut self, mut key: Key, count: u64, detail: String) {
        if self.by_key.len() >= KEYS_MAX && !self.by_key.contains_key(&key) {
            key.who = OTHERS.to_owned();
        }
        let counted = self.by_key.entry(key).or_default();
        if counted.count == 0 {
            counted.detail = detail;
        }
        counted.count = counted.count.saturating_add(count);
    }

    /// The counts that are due, or all of them. Forgets whoever was not refused for a while.
    fn take(&mut self, now: Instant, all: bool) -> Vec<(Key, u64, String)> {
        self.by_key.retain(|_, counted| counted.count > 0 || !counted.is_due(now));
        let mut rows = Vec::new();
        for (key, counted) in &mut self.by_key {
            if counted.count > 0 && (all || counted.is_due(now)) {
                rows.push((key.clone(), counted.count, std::mem::take(&mut counted.detail)));
                (counted.count, counted.written) = (0, Some(now));
            }
        }
        rows
    }

    /// When a row is next due or somebody is forgotten. `None` if nobody is counted.
    fn next_at(&self) -> Option<Instant> {
        let due = |counted: &Count| counted.written.map_or_else(Instant::now, |at| at + COUNTED_FOR);
        self.by_key.values().map(due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(who: &str) -> Key {
        Key { who: who.into(), code: "not_allowed" }
    }

    fn taken(counts: &mut Counts, now: Instant, all: bool) -> Vec<(String, u64)> {
        let mut rows: Vec<_> =
            counts.take(now, all).into_iter().map(|(key, count, _)| (key.who, count)).collect();
        rows.sort();
        rows
    }

    #[test]
    fn the_first_refusal_is_due_at_once_and_the_rest_once_a_minute() {
        let (mut counts, start) = (Counts::default(), Instant::now());
        counts.add(key("ada"), 1, "first".into());
        assert_eq!(taken(&mut counts, start, false), [("ada".into(), 1)]);
        for _ in 0..50 {
            counts.add(key("ada"), 1, "more".into());
        }
        counts.add(key("bob"), 1, "first".into());
        assert_eq!(taken(&mut counts, start, false), [("bob".into(), 1)], "ada's minute is not over");
        assert_eq!(counts.next_at(), Some(start + COUNTED_FOR));
        let later = start + COUNTED_FOR;
        assert_eq!(taken(&mut counts, later, false), [("ada".into(), 50)]);
        assert!(!counts.by_key.contains_key(&key("bob")), "forgotten after a minute without a refusal");
        counts.add(key("ada"), 2, "last".into());
        assert_eq!(
            taken(&mut counts, later, true),
            [("ada".into(), 2)],
            "a server that stops leaves nothing"
        );
        assert_eq!(taken(&mut counts, later, true), []);
        assert_eq!(taken(&mut counts, later + COUNTED_FOR, false), []);
        assert_eq!(counts.next_at(), None);
    }

    #[test]
    fn many_callers_are_counted_together() {
        let (mut counts, start) = (Counts::default(), Instant::now());
        for n in 0..KEYS_MAX + 500 {
            counts.add(key(&n.to_string()), 1, String::new());
        }
        let rows = taken(&mut counts, start, false);
        assert_eq!(rows.len(), KEYS_MAX + 1);
        assert_eq!(rows.iter().map(|(_, count)| count).sum::<u64>(), KEYS_MAX as u64 + 500);
        assert!(rows.contains(&(OTHERS.to_owned(), 500)));
    }
}
