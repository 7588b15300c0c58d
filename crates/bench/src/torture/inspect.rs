//! Looking at a directory after the fact: does it open, does it add up, what does it show, does it still work.
//! And counting what was found.

use super::Outcome;
use super::oracle::{View, Wrong};
use super::script::options;
use redrive::core::message::{NewMessage, Payload};
use redrive::core::store::{LeaseRequest, Settle, Settlement, Store as _, VerifyRequest, Work as _};
use redrive::core::time::{Span, Time};
use redrive_store::sqlite::SqliteStore;
use redrive_testkit::clock::TestClock;
use redrive_testkit::ids::message_id;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tokio::runtime::Runtime;

/// The queue that only the inspector uses.
const PROBE: &str = "probe";

/// Opens a store that was cut off, lets it verify itself, and reads all it shows at this time. Then it must
/// still do its work: take a message, hand it out, let it go.
///
/// # Errors
/// What is wrong with it.
pub fn look(runtime: &Runtime, data: &Path, time: Time) -> Result<View, Wrong> {
    let clock = TestClock::shared();
    clock.set(time);
    let opened = catch_unwind(AssertUnwindSafe(|| SqliteStore::open(data, options(&clock, 9, false))));
    let store = match opened {
        Ok(Ok(store)) => store,
        Ok(Err(error)) => return Err(Wrong::Unopenable(error.to_string())),
        Err(_) => return Err(Wrong::Unopenable("opening panicked".into())),
    };
    let looked = catch_unwind(AssertUnwindSafe(|| runtime.block_on(looked_at(&store))));
    looked.unwrap_or_else(|_| Err(Wrong::Broken("reading the store panicked".into())))
}

async fn looked_at(store: &SqliteStore) -> Result<View, Wrong> {
    let broken = |what: &str, why: String| Wrong::Broken(format!("{what}: {why}"));
    let verified = store.verify(VerifyRequest { deep: true, repair: false }).await;
    let verified = verified.map_err(|e| broken("verify", e.to_string()))?;
    if !verified.is_clean() {
        return Err(broken("verify", format!("{:?}", verified.findings)));
    }
    let view = View::of(store).await.map_err(|e| broken("read", e.to_string()))?;
    probe(store).await.map_err(|e| broken("work", e.to_string()))?;
    Ok(view)
}

/// Sends a message through.
async fn probe(store: &SqliteStore) -> Outcome<()> {
    let payload = Payload { bytes: b"still there?".to_vec(), content_type: String::new() };
    let message = NewMessage::new(message_id(u64::MAX >> 8), PROBE.parse()?, payload);
    store.enqueue(vec![message]).await?;
    let lease_for = Some(Span::from_secs(10));
    let request = LeaseRequest { queues: vec![PROBE.parse()?], max: 1, lease_for, worker: PROBE.into() };
    let delivery = store.lease(request).await?.pop().ok_or("a message that was sent is not handed out")?;
    let settled = store.settle(vec![Settlement { token: delivery.token, what: Settle::Ack }]).await?;
    match settled.into_iter().next() {
        Some(Ok(_)) => Ok(()),
        other => Err(format!("an ack was answered with {other:?}").into()),
    }
}

/// Most failures that are printed in full.
const SHOWN_MAX: usize = 20;

/// What a driver found.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Things that were acknowledged and are not there.
    pub lost: u64,
    /// Things that were finished and are live.
    pub resurrected: u64,
    /// States that did not open.
    pub unopenable: u64,
    /// Everything else.
    pub other: u64,
    /// The first of them in words, each with what it takes to have it again.
    pub shown: Vec<String>,
}

impl Tally {
    /// Takes note of a finding and how to have it again.
    pub fn note(&mut self, wrong: &Wrong, again: &str) {
        let (count, kind, text) = match wrong {
            Wrong::Lost(text) => (&mut self.lost, "lost", text),
            Wrong::Resurrected(text) => (&mut self.resurrected, "resurrected", text),
            Wrong::Unopenable(text) => (&mut self.unopenable, "unopenable", text),
            Wrong::Broken(text) => (&mut self.other, "broken", text),
        };
        *count += 1;
        if self.shown.len() < SHOWN_MAX {
            let text: String = text.chars().take(600).collect();
            self.shown.push(format!("{kind}: {text}\n    again: {again}"));
        }
    }

    /// Adds what another found.
    pub fn add(&mut self, other: Self) {
        self.lost += other.lost;
        self.resurrected += other.resurrected;
        self.unopenable += other.unopenable;
        self.other += other.other;
        let room = SHOWN_MAX.saturating_sub(self.shown.len());
        self.shown.extend(other.shown.into_iter().take(room));
    }

    /// Whether nothing was found.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.lost == 0 && self.resurrected == 0 && self.unopenable == 0 && self.other == 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.shown {
            writeln!(f, "  {line}")?;
        }
        let Self { lost, resurrected, unopenable, other, .. } = self;
        write!(f, "lost={lost} resurrected={resurrected} unopenable={unopenable} other={other}")
    }
}
