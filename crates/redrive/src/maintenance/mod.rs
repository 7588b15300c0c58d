//! Periodic maintenance of a store: [`Chore`]s, one file each, and [`Maintenance`], which runs them in the background.
//! Every chore is safe to run in several processes at once, works in bounded passes and can be interrupted anywhere.
//!
//! Two things need no chore: the embedded store delivers scheduled messages when they are due and wakes the workers
//! that wait, and every commit writes the counters it changes.

mod audit;
mod auto_redrive;
mod index;
mod operations;
mod reap;
mod tidy;

pub use audit::TrimAudit;
pub use auto_redrive::AutoRedriveLetters;
pub use index::IndexText;
pub use operations::ResumeOperations;
pub use reap::Reap;
pub use tidy::{TidyReport, tidy};

use crate::runnable::{Heartbeat, Runnable};
use crate::waiting::{GrowingDelay, is_fatal, jittered, pause};
use async_trait::async_trait;
use redrive_core::error::{CallError, StoreError, StoreErrorKind};
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The result of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassReport {
    /// The number of items changed.
    pub changed: u64,
    /// Whether there is more to do right away.
    pub more: bool,
}

/// A periodic task of maintenance.
#[async_trait]
pub trait Chore: Send + Sync {
    /// The name of the chore in logs.
    fn name(&self) -> &'static str;

    /// How often it runs.
    fn every(&self) -> Span;

    /// Runs one bounded pass. Called again at once while there is more to do.
    ///
    /// # Errors
    /// Returns the error of the store. The pass is tried again later.
    async fn pass(&self, store: &dyn Store) -> Result<PassReport, CallError>;
}

/// Runs chores until it is stopped. One per process that holds or serves a store is enough; more do no harm.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::core::time::Span;
/// use redrive::maintenance::{Maintenance, TrimAudit};
/// use redrive::{Heartbeat, Runnable as _};
///
/// // The default chores (leases, overdue messages, quarantines, retention, keys, automatic redrives, interrupted
/// // operations, the text index), and an audit trail that keeps one year.
/// let maintenance = Maintenance::new(redrive::memory()).chore(TrimAudit::keeping(Span::from_days(365)));
/// let stop = redrive::CancellationToken::new();
/// stop.cancel(); // this example ends at once
/// maintenance.run(stop, Heartbeat::default()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Maintenance {
    store: Arc<dyn Store>,
    chores: Vec<Arc<dyn Chore>>,
}

impl std::fmt::Debug for Maintenance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.chores.iter().map(|chore| chore.name()).collect();
        f.debug_struct("Maintenance").field("chores", &names).finish_non_exhaustive()
    }
}

impl Maintenance {
    /// Creates maintenance with the default chores. Trimming the audit trail is not among them: its rows are removed
    /// only where that was asked for.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::bare(store)
            .chore(Reap::default())
            .chore(AutoRedriveLetters::default())
            .chore(ResumeOperations::default())
            .chore(IndexText::default())
    }

    /// Creates maintenance without any chore.
    #[must_use]
    pub fn bare(store: Arc<dyn Store>) -> Self {
        Self { store, chores: Vec::new() }
    }

    /// Adds a chore.
    #[must_use]
    pub fn chore(mut self, chore: impl Chore + 'static) -> Self {
        self.chores.push(Arc::new(chore));
        self
    }
}

/// The time limit of a pass. Each commit of a pass that is given up was made completely or not at all.
const PASS_TIMEOUT: Duration = Duration::from_secs(300);
/// How many passes a chore runs in a row before it waits for its next turn.
const PASSES_IN_A_ROW: u32 = 100;
/// How often maintenance beats its heartbeat.
const BEAT: Duration = Duration::from_secs(10);

#[async_trait]
impl Runnable for Maintenance {
    fn name(&self) -> String {
        "maintenance".into()
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError> {
        let mut loops = JoinSet::new();
        for chore in &self.chores {
            let chore_loop =
                ChoreLoop { store: Arc::clone(&self.store), chore: Arc::clone(chore), stop: stop.clone() };
            loops.spawn(chore_loop.run());
        }
        loop {
            heartbeat.beat();
            tokio::select! {
                () = tokio::time::sleep(BEAT) => {}
                ended = loops.join_next() => match ended {
                    None => break,
                    Some(Ok(Ok(()))) => {}
                    Some(Ok(Err(error))) => return Err(error),
                    Some(Err(error)) => {
                        let why = format!("a chore panicked: {error}");
                        return Err(StoreError::new(StoreErrorKind::Stopped, why).into());
                    }
                },
            }
        }
        // Without chores, wait to be stopped all the same.
        while !pause(&stop, BEAT).await {
            heartbeat.beat();
        }
        Ok(())
    }
}

/// The loop that runs one chore.
struct ChoreLoop {
    store: Arc<dyn Store>,
    chore: Arc<dyn Chore>,
    stop: CancellationToken,
}

impl ChoreLoop {
    async fn run(self) -> Result<(), CallError> {
        let every = self.chore.every().to_std();
        let mut retry =
            GrowingDelay::new(every.min(Duration::from_secs(1)), Duration::from_secs(60).max(every));
        // Jitter also spreads the first passes.
        let mut wait = jittered(every.min(Duration::from_secs(1)));
        while !pause(&self.stop, wait).await {
            wait = match self.run_passes().await {
                Ok(()) => {
                    retry.reset();
                    jittered(every)
                }
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    let chore = self.chore.name();
                    tracing::warn!(chore, %error, "a maintenance pass failed; trying again");
                    retry.wait()
                }
            };
        }
        Ok(())
    }

    async fn run_passes(&self) -> Result<(), CallError> {
        for _ in 0..PASSES_IN_A_ROW {
            let pass = tokio::time::timeout(PASS_TIMEOUT, self.chore.pass(&*self.store));
            let report = tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                report = pass => report.unwrap_or_else(|_| Err(pass_timed_out()))?,
            };
            if report.changed > 0 {
                let PassReport { changed, more } = report;
                tracing::debug!(chore = self.chore.name(), changed, more, "maintenance pass");
            }
            if !report.more {
                break;
            }
        }
        Ok(())
    }
}

fn pass_timed_out() -> CallError {
    let why = format!("a pass took longer than {} s", PASS_TIMEOUT.as_secs());
    StoreError::new(StoreErrorKind::Unreachable, why).into()
}
