//! Inspects a data directory after a fault: whether it opens, verifies, shows the right state and still
//! works. Also counts the findings.

use super::ToolResult;
use super::oracle::{View, Violation};
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

/// The queue that only the inspection uses.
const PROBE: &str = "probe";

/// Opens a store that was interrupted, verifies it, and reads everything it shows at this time. Then sends
/// one message through it.
///
/// # Errors
/// Describes what is wrong with the store.
pub fn inspect_store(runtime: &Runtime, data: &Path, time: Time) -> Result<View, Violation> {
    let clock = TestClock::shared();
    clock.set(time);
    let opened = catch_unwind(AssertUnwindSafe(|| SqliteStore::open(data, options(&clock, 9, false))));
    let store = match opened {
        Ok(Ok(store)) => store,
        Ok(Err(error)) => return Err(Violation::Unopenable(error.to_string())),
        Err(_) => return Err(Violation::Unopenable("opening panicked".into())),
    };
    let inspected = catch_unwind(AssertUnwindSafe(|| runtime.block_on(verify_read_and_probe(&store))));
    inspected.unwrap_or_else(|_| Err(Violation::Broken("reading the store panicked".into())))
}

async fn verify_read_and_probe(store: &SqliteStore) -> Result<View, Violation> {
    let broken = |what: &str, why: String| Violation::Broken(format!("{what}: {why}"));
    let verified = store.verify(VerifyRequest { deep: true, repair: false }).await;
    let verified = verified.map_err(|e| broken("verify", e.to_string()))?;
    if !verified.is_clean() {
        return Err(broken("verify", format!("{:?}", verified.findings)));
    }
    let view = View::of(store).await.map_err(|e| broken("read", e.to_string()))?;
    probe(store).await.map_err(|e| broken("work", e.to_string()))?;
    Ok(view)
}

/// Enqueues, leases and acknowledges one message.
async fn probe(store: &SqliteStore) -> ToolResult<()> {
    let payload = Payload { bytes: b"still there?".to_vec(), content_type: String::new() };
    let message = NewMessage::new(message_id(u64::MAX >> 8), PROBE.parse()?, payload);
    store.enqueue(vec![message]).await?;
    let lease_for = Some(Span::from_secs(10));
    let request = LeaseRequest {
        queues: vec![PROBE.parse()?],
        max: 1,
        lease_for,
        worker: PROBE.into(),
        ..LeaseRequest::default()
    };
    let delivery = store.lease(request).await?.pop().ok_or("an enqueued message was not leased")?;
    let settled = store.settle(vec![Settlement { token: delivery.token, what: Settle::Ack }]).await?;
    match settled.into_iter().next() {
        Some(Ok(_)) => Ok(()),
        other => Err(format!("an ack returned {other:?}").into()),
    }
}

/// The maximum number of findings that are described in full.
const SHOWN_MAX: usize = 20;

/// What a driver found.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Acknowledged changes that are missing.
    pub lost: u64,
    /// Finished messages that are live again.
    pub resurrected: u64,
    /// States that did not open.
    pub unopenable: u64,
    /// Everything else.
    pub other: u64,
    /// Descriptions of the first findings, each with the arguments that reproduce it.
    pub shown: Vec<String>,
}

impl Findings {
    /// Records a violation and the arguments that reproduce it.
    pub fn record(&mut self, violation: &Violation, repro: &str) {
        let (count, kind, text) = match violation {
            Violation::Lost(text) => (&mut self.lost, "lost", text),
            Violation::Resurrected(text) => (&mut self.resurrected, "resurrected", text),
            Violation::Unopenable(text) => (&mut self.unopenable, "unopenable", text),
            Violation::Broken(text) => (&mut self.other, "broken", text),
        };
        *count += 1;
        if self.shown.len() < SHOWN_MAX {
            let text: String = text.chars().take(600).collect();
            self.shown.push(format!("{kind}: {text}\n    repro: {repro}"));
        }
    }

    /// Adds the findings of another run.
    pub fn merge(&mut self, other: Self) {
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

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.shown {
            writeln!(f, "  {line}")?;
        }
        let Self { lost, resurrected, unopenable, other, .. } = self;
        write!(f, "lost={lost} resurrected={resurrected} unopenable={unopenable} other={other}")
    }
}
