//! How a group is: alive, ready, or why not. Asks the store rarely, so that nobody can keep it busy by asking
//! for the report.

use super::GroupError;
use crate::metrics::prometheus;
use crate::pace::ask;
use crate::runnable::{Heartbeat, Runnable};
use redrive_core::dead_letter::Status;
use redrive_core::error::Error;
use redrive_core::store::Store;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Where a loop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoopState {
    /// Not begun yet.
    Starting,
    /// Under way.
    Running,
    /// Failed, and about to be started again.
    Failed,
    /// Over.
    Ended,
}

/// One word for the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// All is well.
    Ok,
    /// It works, and somebody should look.
    Degraded,
    /// It does not work.
    Failing,
}

/// A loop in the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoopHealth {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub state: LoopState,
    /// How long ago it gave a sign of life.
    pub silent_ms: u64,
    /// How often it was started again.
    pub restarts: u64,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// One word for the whole.
    pub status: HealthStatus,
    /// What is wrong, in words.
    pub reasons: Vec<String>,
    /// The loops.
    pub loops: Vec<LoopHealth>,
    /// Open dead letters; nothing when the store was not asked or did not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_letters: Option<u64>,
}

/// One loop and what is known of it.
pub(super) struct Watched {
    runnable: Arc<dyn Runnable>,
    name: String,
    known: Mutex<Known>,
}

struct Known {
    state: LoopState,
    heartbeat: Heartbeat,
    starts: u64,
    error: Option<String>,
}

impl Watched {
    pub(super) fn new(runnable: Arc<dyn Runnable>) -> Self {
        let (name, heartbeat) = (runnable.name(), Heartbeat::default());
        let known = Known { state: LoopState::Starting, heartbeat, starts: 0, error: None };
        Self { runnable, name, known: Mutex::new(known) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn runnable(&self) -> Arc<dyn Runnable> {
        Arc::clone(&self.runnable)
    }

    fn known<T>(&self, look: impl FnOnce(&mut Known) -> T) -> T {
        look(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn begin(&self, heartbeat: Heartbeat) {
        self.known(|known| {
            known.heartbeat = heartbeat;
            known.state = LoopState::Running;
            known.starts += 1;
        });
    }

    pub(super) fn set(&self, state: LoopState) {
        self.known(|known| known.state = state);
    }

    pub(super) fn failed(&self, error: &Error) {
        self.known(|known| {
            known.state = LoopState::Failed;
            known.error = Some(error.to_string());
        });
    }

    fn show(&self) -> (LoopHealth, Option<String>) {
        self.known(|known| {
            let silent_ms = u64::try_from(known.heartbeat.age().as_millis()).unwrap_or(u64::MAX);
            let (name, restarts) = (self.name.clone(), known.starts.saturating_sub(1));
            (LoopHealth { name, state: known.state, silent_ms, restarts }, known.error.clone())
        })
    }
}

/// How long an answer of the store is good for.
const FRESH: Duration = Duration::from_secs(1);

/// The health of a group.
pub struct Health {
    store: Arc<dyn Store>,
    watched: Vec<Watched>,
    limit: Duration,
    depth: u64,
    last: tokio::sync::Mutex<Option<(Instant, Asked)>>,
    measured: tokio::sync::Mutex<Option<(Instant, String)>>,
}

/// What the store said.
#[derive(Clone, Default)]
struct Asked {
    wrong: Vec<String>,
    open: Option<u64>,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").field("live", &self.live()).finish_non_exhaustive()
    }
}

impl Health {
    pub(super) fn new(store: Arc<dyn Store>, watched: Vec<Watched>, limit: Duration, depth: u64) -> Self {
        let (last, measured) = (tokio::sync::Mutex::default(), tokio::sync::Mutex::default());
        Self { store, watched, limit, depth, last, measured }
    }

    pub(super) fn watched(&self, n: usize) -> Option<&Watched> {
        self.watched.get(n)
    }

    /// The names of loops that are not over.
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
        let shown: Vec<_> = self.watched.iter().map(Watched::show).collect();
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

    /// Whether the process should be left alone: no loop is stuck. Asks nobody.
    #[must_use]
    pub fn live(&self) -> Report {
        let (loops, _) = self.loops();
        let stuck = loops.iter().filter(|one| self.is_stuck(one));
        let words =
            |one: &LoopHealth| format!("{} gave no sign of life for {} s", one.name, one.silent_ms / 1_000);
        let reasons: Vec<String> = stuck.map(words).collect();
        let status = if reasons.is_empty() { HealthStatus::Ok } else { HealthStatus::Failing };
        Report { status, reasons, loops, open_letters: None }
    }

    /// Whether it can work: every loop runs and beats, and the store is well. Many open dead letters, or a loop
    /// that says so, make it degraded.
    pub async fn ready(&self) -> Report {
        let (loops, mut reasons) = self.loops();
        let asked = self.asked().await;
        reasons.extend(asked.wrong);
        let failing = !reasons.is_empty();
        if let Some(open) = asked.open.filter(|open| *open >= self.depth) {
            reasons.push(format!("{open} dead letters are open, {} or more are too many", self.depth));
        }
        reasons.extend(self.watched.iter().flat_map(|one| one.runnable.degraded()));
        let status = match (failing, reasons.is_empty()) {
            (true, _) => HealthStatus::Failing,
            (false, false) => HealthStatus::Degraded,
            (false, true) => HealthStatus::Ok,
        };
        Report { status, reasons, loops, open_letters: asked.open }
    }

    /// Everything measured, in Prometheus' text format.
    ///
    /// # Errors
    /// The store's, when it cannot be asked.
    pub async fn metrics(&self) -> Result<String, Error> {
        let mut last = self.measured.lock().await;
        if let Some((_, text)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(text.clone());
        }
        let text = ask(prometheus(&*self.store)).await?;
        *last = Some((Instant::now(), text.clone()));
        Ok(text)
    }

    /// What the store says about itself; at most once a second, whoever asks.
    async fn asked(&self) -> Asked {
        let mut last = self.last.lock().await;
        if let Some((_, asked)) = last.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return asked.clone();
        }
        let asked = match self.ask_store().await {
            Ok(asked) => asked,
            Err(error) => Asked { wrong: vec![format!("the store cannot be asked: {error}")], open: None },
        };
        *last = Some((Instant::now(), asked.clone()));
        asked
    }

    async fn ask_store(&self) -> Result<Asked, Error> {
        let wrong = ask(self.store.info()).await?.degraded;
        let drawers = ask(self.store.drawers()).await?;
        let open =
            drawers.iter().flat_map(|drawer| &drawer.by_status).filter(|(status, _)| is_open(**status));
        Ok(Asked { wrong, open: Some(open.map(|(_, count)| count).sum()) })
    }
}

/// Letters that wait for somebody; one that is being retried does not.
fn is_open(status: Status) -> bool {
    match status {
        Status::Pending | Status::Review | Status::Quarantined => true,
        Status::Retrying | Status::Resolved | Status::Abandoned | Status::Purged => false,
    }
}
