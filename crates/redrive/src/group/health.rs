//! The health of a group of loops: whether it is alive and ready, and if not, why. It asks the store at most once a
//! second, so that requests for the report cannot overload the store.

use super::GroupError;
use crate::metrics::prometheus;
use crate::runnable::{Heartbeat, Runnable};
use crate::waiting::with_timeout;
use redrive_core::dead_letter::Status;
use redrive_core::error::CallError;
use redrive_core::store::Store;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The state of a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopState {
    /// Not started yet.
    Starting,
    /// Running.
    Running,
    /// Failed. It may be restarted.
    Failed,
    /// Ended without an error.
    Ended,
}

/// The overall health of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// Everything works.
    Ok,
    /// It works, but something needs attention.
    Degraded,
    /// Something does not work.
    Failing,
}

/// The health of one loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoopHealth {
    /// The name of the loop.
    pub name: String,
    /// The state of the loop.
    pub state: LoopState,
    /// How long ago its last heartbeat was, in milliseconds.
    pub silent_ms: u64,
    /// How often it was restarted.
    pub restarts: u64,
}

/// A health report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The overall health.
    pub status: HealthStatus,
    /// What is wrong, for people.
    pub reasons: Vec<String>,
    /// The health of each loop.
    pub loops: Vec<LoopHealth>,
    /// The number of open dead letters. `None` if the store was not asked or did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_letters: Option<u64>,
}

/// One loop and its status.
pub(super) struct WatchedLoop {
    runnable: Arc<dyn Runnable>,
    name: String,
    status: Mutex<LoopStatus>,
}

struct LoopStatus {
    state: LoopState,
    heartbeat: Heartbeat,
    starts: u64,
    error: Option<String>,
}

impl WatchedLoop {
    pub(super) fn new(runnable: Arc<dyn Runnable>) -> Self {
        let (name, heartbeat) = (runnable.name(), Heartbeat::default());
        let status = LoopStatus { state: LoopState::Starting, heartbeat, starts: 0, error: None };
        Self { runnable, name, status: Mutex::new(status) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn runnable(&self) -> Arc<dyn Runnable> {
        Arc::clone(&self.runnable)
    }

    fn status<T>(&self, look: impl FnOnce(&mut LoopStatus) -> T) -> T {
        look(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn begin(&self, heartbeat: Heartbeat) {
        self.status(|status| {
            status.heartbeat = heartbeat;
            status.state = LoopState::Running;
            status.starts += 1;
        });
    }

    pub(super) fn set(&self, state: LoopState) {
        self.status(|status| status.state = state);
    }

    pub(super) fn failed(&self, error: &CallError) {
        self.status(|status| {
            status.state = LoopState::Failed;
            status.error = Some(error.to_string());
        });
    }

    fn show(&self) -> (LoopHealth, Option<String>) {
        self.status(|status| {
            let silent_ms = u64::try_from(status.heartbeat.age().as_millis()).unwrap_or(u64::MAX);
            let (name, restarts) = (self.name.clone(), status.starts.saturating_sub(1));
            (LoopHealth { name, state: status.state, silent_ms, restarts }, status.error.clone())
        })
    }
}

/// How long an answer of the store is reused.
const CACHE_FOR: Duration = Duration::from_secs(1);

/// The health of a group.
pub struct Health {
    store: Arc<dyn Store>,
    watched: Vec<WatchedLoop>,
    limit: Duration,
    degraded_at: u64,
    last: tokio::sync::Mutex<Option<(Instant, StoreHealth)>>,
    measured: tokio::sync::Mutex<Option<(Instant, String)>>,
}

/// What the store reports about itself.
#[derive(Clone, Default)]
struct StoreHealth {
    wrong: Vec<String>,
    open: Option<u64>,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").field("live", &self.live()).finish_non_exhaustive()
    }
}

impl Health {
    pub(super) fn new(
        store: Arc<dyn Store>,
        watched: Vec<WatchedLoop>,
        limit: Duration,
        degraded_at: u64,
    ) -> Self {
        let (last, measured) = (tokio::sync::Mutex::default(), tokio::sync::Mutex::default());
        Self { store, watched, limit, degraded_at, last, measured }
    }

    pub(super) fn watched(&self, n: usize) -> Option<&WatchedLoop> {
        self.watched.get(n)
    }

    /// The names of the loops that are running.
    pub(super) fn running(&self) -> Vec<String> {
        let (loops, _) = self.loops();
        loops.into_iter().filter(|one| one.state == LoopState::Running).map(|one| one.name).collect()
    }

    /// The first loop that is stuck.
    pub(super) fn stuck(&self) -> Option<GroupError> {
        let (loops, _) = self.loops();
        let stuck = loops.into_iter().find(|one| self.is_stuck(one))?;
        Some(GroupError::Stuck { name: stuck.name, silent: Duration::from_millis(stuck.silent_ms) })
    }

    fn is_stuck(&self, one: &LoopHealth) -> bool {
        one.state == LoopState::Running && Duration::from_millis(one.silent_ms) > self.limit
    }

    fn loops(&self) -> (Vec<LoopHealth>, Vec<String>) {
        let shown: Vec<_> = self.watched.iter().map(WatchedLoop::show).collect();
        let mut reasons = Vec::new();
        for (one, error) in &shown {
            if self.is_stuck(one) {
                let seconds = one.silent_ms / 1_000;
                reasons.push(format!("{} gave no sign of life for {seconds} s", one.name));
            }
            if one.state == LoopState::Failed {
                let error = error.as_deref().unwrap_or("it failed");
                reasons.push(format!("{} is not running: {error}", one.name));
            }
        }
        (shown.into_iter().map(|(one, _)| one).collect(), reasons)
    }

    /// Whether the process is alive: no loop is stuck. Does not call the store.
    #[must_use]
    pub fn live(&self) -> Report {
        let (loops, _) = self.loops();
        let stuck = loops.iter().filter(|one| self.is_stuck(one));
        let parts =
            |one: &LoopHealth| format!("{} gave no sign of life for {} s", one.name, one.silent_ms / 1_000);
        let reasons: Vec<String> = stuck.map(parts).collect();
        let status = if reasons.is_empty() { HealthStatus::Ok } else { HealthStatus::Failing };
        Report { status, reasons, loops, open_letters: None }
    }

    /// Whether the group can work: every loop runs and beats, and the store is healthy. Many open dead letters, or a
    /// loop that reports problems, make it degraded.
    pub async fn ready(&self) -> Report {
        let (loops, mut reasons) = self.loops();
        let store_health = self.store_health().await;
        reasons.extend(store_health.wrong);
        let failing = !reasons.is_empty();
        if let Some(open) = store_health.open.filter(|open| *open >= self.degraded_at) {
            reasons.push(format!("{open} dead letters are open, {} or more are too many", self.degraded_at));
        }
        reasons.extend(self.watched.iter().flat_map(|one| one.runnable.degraded()));
        let status = match (failing, reasons.is_empty()) {
            (true, _) => HealthStatus::Failing,
            (false, false) => HealthStatus::Degraded,
            (false, true) => HealthStatus::Ok,
        };
        Report { status, reasons, loops, open_letters: store_health.open }
    }

    /// The metrics of the store and of this process, as OpenMetrics text.
    ///
    /// # Errors
    /// Returns the error of the store.
    pub async fn metrics(&self) -> Result<String, CallError> {
        let mut last = self.measured.lock().await;
        if let Some((_, text)) = last.as_ref().filter(|(at, _)| at.elapsed() < CACHE_FOR) {
            return Ok(text.clone());
        }
        let text = with_timeout(prometheus(&*self.store)).await?;
        *last = Some((Instant::now(), text.clone()));
        Ok(text)
    }

    /// The health of the store, asked for at most once a second.
    async fn store_health(&self) -> StoreHealth {
        let mut last = self.last.lock().await;
        if let Some((_, store_health)) = last.as_ref().filter(|(at, _)| at.elapsed() < CACHE_FOR) {
            return store_health.clone();
        }
        let store_health = match self.ask_store().await {
            Ok(store_health) => store_health,
            Err(error) => {
                StoreHealth { wrong: vec![format!("the store does not answer: {error}")], open: None }
            }
        };
        *last = Some((Instant::now(), store_health.clone()));
        store_health
    }

    async fn ask_store(&self) -> Result<StoreHealth, CallError> {
        let wrong = with_timeout(self.store.info()).await?.degraded;
        let dlqs = with_timeout(self.store.dlqs()).await?;
        let open = dlqs.iter().flat_map(|dlq| &dlq.by_status).filter(|(status, _)| is_open(**status));
        Ok(StoreHealth { wrong, open: Some(open.map(|(_, count)| count).sum()) })
    }
}

/// Whether a letter waits for a decision. One that is being retried does not.
fn is_open(status: Status) -> bool {
    match status {
        Status::Pending | Status::Review | Status::Quarantined => true,
        Status::Retrying | Status::Resolved | Status::Abandoned | Status::Purged => false,
    }
}
