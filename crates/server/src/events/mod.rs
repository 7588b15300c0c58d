//! Live events: what changed, as small typed events with names and counts, for whoever watches. One feeder per server
//! reads the change feed of the store and writes each event once, into a ring from which all clients read; how many
//! there are does not matter to the store. A client that falls behind the ring is told to start over.

mod feeder;

use crate::problem::Problem;
use axum::body::Bytes;
use axum::http::StatusCode;
use redrive_core::access::{Access, QueuePattern};
use redrive_core::changes::FeedPosition;
use redrive_core::ids::QueueName;
use redrive_core::store::Store;
use redrive_core::time::Span;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Events that can be read again.
pub(crate) const RING_MAX: usize = 4_096;
/// How long events are collected after the last client has gone, so that it can come back.
pub(crate) const KEPT_FOR: Duration = Duration::from_secs(120);
/// The number of clients that may listen at the same time.
const CLIENTS_MAX: usize = 512;
/// Events that are sent to a client at once.
const CHUNK: usize = 64;

/// Whom an event concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// One queue, under any of these names.
    Queue(Vec<QueueName>),
    /// More than one queue: those named, and perhaps others. Not for callers that are limited to some queues.
    Store(Vec<QueueName>),
    /// Everybody.
    Everybody,
}

/// What one client wants and may see.
pub(crate) struct Interest {
    /// What the client may see.
    pub(crate) access: Arc<Access>,
    /// The queues that it asked for. `None` is all.
    pub(crate) queues: Option<QueuePattern>,
}

impl Interest {
    fn covers(&self, scope: &Scope) -> bool {
        let wanted = |names: &[QueueName]| {
            self.queues.as_ref().is_none_or(|pattern| names.iter().any(|name| pattern.matches(name)))
        };
        match scope {
            Scope::Queue(names) => wanted(names) && names.iter().any(|name| self.access.covers(name)),
            Scope::Store(names) => wanted(names) && self.access.queues.is_empty(),
            Scope::Everybody => true,
        }
    }
}

/// An event before it has a number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Draft {
    pub(crate) kind: &'static str,
    pub(crate) scope: Scope,
    pub(crate) data: Value,
}

/// An event as it is sent.
struct Event {
    scope: Scope,
    text: Bytes,
}

#[derive(Default)]
struct Ring {
    /// Changes whenever the feeder starts over, so that old positions are recognised.
    epoch: u64,
    /// The number of the first event in the ring. The first event ever has number 1.
    first: u64,
    events: VecDeque<Event>,
    clients: usize,
    /// When the last client left.
    alone_since: Option<Instant>,
    fed: bool,
}

impl Ring {
    /// The position after the last event.
    fn end(&self) -> FeedPosition {
        FeedPosition { epoch: self.epoch, version: self.first + self.events.len() as u64 - 1 }
    }

    fn push(&mut self, draft: &Draft) {
        let id = FeedPosition { version: self.end().version + 1, ..self.end() };
        let text = Bytes::from(block(draft.kind, id, &draft.data));
        self.events.push_back(Event { scope: draft.scope.clone(), text });
        if self.events.len() > RING_MAX {
            self.events.pop_front();
            self.first += 1;
        }
    }

    /// The events after a position that are of interest, as text, and the position after them. `None` if events between
    /// the two are gone.
    fn after(&self, position: FeedPosition, interest: &Interest) -> Option<(Vec<u8>, FeedPosition)> {
        let end = self.end();
        if position.epoch != end.epoch || position.version > end.version || position.version + 1 < self.first
        {
            return None;
        }
        let skip = usize::try_from(position.version + 1 - self.first).unwrap_or(usize::MAX);
        let (mut text, mut at, mut taken) = (Vec::new(), position, 0);
        for event in self.events.iter().skip(skip) {
            if taken >= CHUNK {
                break;
            }
            at.version += 1;
            if interest.covers(&event.scope) {
                text.extend_from_slice(&event.text);
                taken += 1;
            }
        }
        Some((text, at))
    }
}

/// One event in the form of the protocol.
fn block(kind: &str, id: FeedPosition, data: &Value) -> String {
    format!("event: {kind}\nid: {id}\ndata: {data}\n\n")
}

/// The events of a server.
pub(crate) struct Events {
    ring: Mutex<Ring>,
    news: watch::Sender<()>,
}

impl Default for Events {
    fn default() -> Self {
        Self { ring: Mutex::default(), news: watch::Sender::new(()) }
    }
}

impl Events {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds events and wakes the clients.
    fn publish(&self, drafts: &[Draft]) {
        let mut ring = self.ring();
        for draft in drafts {
            ring.push(draft);
        }
        drop(ring);
        if !drafts.is_empty() {
            self.news.send_replace(());
        }
    }

    /// Whether nobody has listened for so long that the feeder stops. It starts again with the next client.
    fn rests(&self) -> bool {
        let mut ring = self.ring();
        let rests = ring.clients == 0 && ring.alone_since.is_some_and(|since| since.elapsed() > KEPT_FOR);
        if rests {
            ring.fed = false;
        }
        rests
    }

    /// Adds a client, and starts the feeder if it does not run. Whatever changes after this returns is told.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        store: Arc<dyn Store>,
        stop: &CancellationToken,
        interest: Interest,
        last_seen: Option<&str>,
    ) -> Result<Client, Problem> {
        // Where a feeder that has to be started begins: before anything that the client sees afterwards.
        let since = store.changes(None, Span::ZERO).await?.at;
        let mut ring = self.ring();
        if ring.clients >= CLIENTS_MAX {
            let what = format!("{CLIENTS_MAX} clients listen already; try again later");
            return Err(
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_clients", what).retry_after(10)
            );
        }
        if !ring.fed {
            let mut epoch = [0; 8];
            getrandom::fill(&mut epoch).map_err(|error| {
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no_randomness", error.to_string())
                    .retry_after(1)
            })?;
            (ring.epoch, ring.first, ring.fed) = (u64::from_be_bytes(epoch), 1, true);
            ring.events.clear();
            tokio::spawn(feeder::run(Arc::clone(self), store, since, stop.clone()));
        }
        ring.clients += 1;
        let end = ring.end();
        // What a client saw of another server, or something that is no position at all, cannot be continued.
        let strange = FeedPosition { epoch: !end.epoch, version: 0 };
        let at = last_seen.map_or(end, |text| text.parse().unwrap_or(strange));
        drop(ring);
        Ok(Client { events: Arc::clone(self), news: self.news.subscribe(), interest, at, stop: stop.clone() })
    }
}

/// One client.
pub(crate) struct Client {
    events: Arc<Events>,
    news: watch::Receiver<()>,
    interest: Interest,
    at: FeedPosition,
    stop: CancellationToken,
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut ring = self.events.ring();
        ring.clients = ring.clients.saturating_sub(1);
        if ring.clients == 0 {
            ring.alone_since = Some(Instant::now());
        }
    }
}

/// How often a client without events gets a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(15);

impl Client {
    /// What a client is told first: when to come back after the connection broke, and where it is.
    pub(crate) fn greeting(&self) -> Bytes {
        Bytes::from(format!("retry: 2000\nid: {}\n\n", self.at))
    }

    /// The next events, or a sign of life if there are none for a while. `None` if the server stops.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        let heartbeat = tokio::time::Instant::now() + HEARTBEAT;
        loop {
            self.news.mark_unchanged();
            let found = {
                let ring = self.events.ring();
                ring.after(self.at, &self.interest).ok_or_else(|| ring.end())
            };
            match found {
                Ok((text, at)) => {
                    let moved = at != self.at;
                    self.at = at;
                    if !text.is_empty() {
                        return Some(Bytes::from(text));
                    }
                    if moved {
                        continue;
                    }
                }
                Err(end) => {
                    self.at = end;
                    return Some(Bytes::from(block("reset", end, &Value::Object(serde_json::Map::new()))));
                }
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
                changed = self.news.changed() => changed.ok()?,
                () = tokio::time::sleep_until(heartbeat) => return Some(Bytes::from_static(b":\n\n")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::access::Grant;

    fn q(name: &str) -> QueueName {
        name.parse().unwrap()
    }

    fn draft(n: usize) -> Draft {
        let scope = Scope::Queue(vec![q("a")]);
        Draft { kind: "queue", scope, data: serde_json::json!({"n": n}) }
    }

    fn interest(limit: &[&str], asked: Option<&str>) -> Interest {
        let access = Access {
            name: "ada".into(),
            roles: [Grant::Viewer].into(),
            queues: limit.iter().map(|pattern| pattern.parse().unwrap()).collect(),
        };
        Interest { access: Arc::new(access), queues: asked.map(|pattern| pattern.parse().unwrap()) }
    }

    #[test]
    fn a_reader_gets_every_event_once_and_is_told_when_it_fell_behind() {
        let mut ring = Ring { epoch: 7, first: 1, ..Ring::default() };
        let (all, begin) = (interest(&[], None), ring.end());
        assert_eq!(ring.after(begin, &all), Some((Vec::new(), begin)));
        for n in 0..CHUNK + 1 {
            ring.push(&draft(n));
        }
        let (text, at) = ring.after(begin, &all).unwrap();
        assert_eq!(String::from_utf8(text).unwrap().matches("event: queue\n").count(), CHUNK);
        let (text, at) = ring.after(at, &all).unwrap();
        let last = format!("event: queue\nid: 0000000000000007-41\ndata: {{\"n\":{CHUNK}}}\n\n");
        assert_eq!(String::from_utf8(text).unwrap(), last);
        assert_eq!(at, ring.end());
        for n in 0..RING_MAX {
            ring.push(&draft(n));
        }
        assert!(ring.after(at, &all).is_some(), "the oldest event that is kept is the next one");
        ring.push(&draft(0));
        assert!(ring.after(at, &all).is_none());
        let other = FeedPosition { epoch: 8, ..ring.end() };
        assert!(ring.after(other, &all).is_none());
        let ahead = FeedPosition { version: ring.end().version + 1, ..ring.end() };
        assert!(ring.after(ahead, &all).is_none());
    }

    #[test]
    fn everybody_sees_only_what_concerns_them() {
        let one = Scope::Queue(vec![q("payments-dlq"), q("payments")]);
        let many = Scope::Store(vec![q("payments"), q("orders")]);
        for (limit, asked, sees_one, sees_many) in [
            (&[][..], None, true, true),
            (&[], Some("payments"), true, true),
            (&[], Some("ord*"), false, true),
            (&[], Some("other"), false, false),
            (&["payments"], None, true, false),
            (&["orders"], None, false, false),
            (&["pay*"], Some("orders"), false, false),
        ] {
            let interest = interest(limit, asked);
            let sees = (interest.covers(&one), interest.covers(&many));
            assert_eq!(sees, (sees_one, sees_many), "{limit:?} {asked:?}");
            assert!(interest.covers(&Scope::Everybody));
        }
    }
}
