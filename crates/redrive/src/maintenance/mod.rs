//! What has to be done from time to time so that a store stays well: [`Chore`]s, one file each, and
//! [`Maintenance`], which runs them beside everything else. Every chore is safe to run on several nodes at once,
//! works in bounded passes and can be interrupted anywhere.
//!
//! What is not here, and why: due work needs nobody to promote it, the embedded store hands it out when its time
//! has come and wakes who waits; it has no counters to fold, every commit writes the counters it changes.

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
pub use tidy::{Tidied, tidy};

use crate::pace::{Pace, is_final, jittered, pause};
use crate::runnable::{Heartbeat, Runnable};
use async_trait::async_trait;
use redrive_core::error::{Error, StoreError, StoreErrorKind};
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// What a pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Items it changed.
    pub did: u64,
    /// Whether there is more to do at once.
    pub more: bool,
}

/// Something that has to be done from time to time.
#[async_trait]
pub trait Chore: Send + Sync {
    /// What people call it, in logs.
    fn name(&self) -> &'static str;

    /// How often.
    fn every(&self) -> Span;

    /// One bounded pass. Called again at once while there is more.
    ///
    /// # Errors
    /// The store's; the pass is tried again later.
    async fn pass(&self, store: &dyn Store) -> Result<Done, Error>;
}

/// Runs chores until it is told to stop. One per process that holds or serves a store is enough, more do no harm.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::core::time::Span;
/// use redrive::maintenance::{Maintenance, TrimAudit};
/// use redrive::{Heartbeat, Runnable as _};
///
/// // Leases, overdue messages, quarantines, retention, keys, automatic redrives, interrupted operations, the text index; and,
/// // because it is asked for, an audit trail of one year.
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
    /// The usual chores. The audit trail is not among them: what is on record goes only when somebody says so.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::bare(store)
            .chore(Reap::default())
            .chore(AutoRedriveLetters::default())
            .chore(ResumeOperations::default())
            .chore(IndexText::default())
    }

    /// No chore at all.
    #[must_use]
    pub fn bare(store: Arc<dyn Store>) -> Self {
        Self { store, chores: Vec::new() }
    }

    /// One more chore.
    #[must_use]
    pub fn chore(mut self, chore: impl Chore + 'static) -> Self {
        self.chores.push(Arc::new(chore));
        self
    }
}

/// A pass that takes longer is given up; whatever it had begun is whole or not done at all.
const PASS_WITHIN: Duration = Duration::from_secs(300);
/// Passes in a row before a chore lets the others breathe.
const PASSES_IN_A_ROW: u32 = 100;
/// A maintenance that is well beats this often.
const BEAT: Duration = Duration::from_secs(10);

#[async_trait]
impl Runnable for Maintenance {
    fn name(&self) -> String {
        "maintenance".into()
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), Error> {
        let mut rounds = JoinSet::new();
        for chore in &self.chores {
            let round =
                Round { store: Arc::clone(&self.store), chore: Arc::clone(chore), stop: stop.clone() };
            rounds.spawn(round.go());
        }
        loop {
            heartbeat.beat();
            tokio::select! {
                () = tokio::time::sleep(BEAT) => {}
                ended = rounds.join_next() => match ended {
                    None => break,
                    Some(Ok(Ok(()))) => {}
                    Some(Ok(Err(error))) => return Err(error),
                    Some(Err(died)) => {
                        let why = format!("a chore panicked: {died}");
                        return Err(StoreError::new(StoreErrorKind::Stopped, why).into());
                    }
                },
            }
        }
        // Nothing to do is no reason to end before one is told to.
        while !pause(&stop, BEAT).await {
            heartbeat.beat();
        }
        Ok(())
    }
}

/// One chore and its clock.
struct Round {
    store: Arc<dyn Store>,
    chore: Arc<dyn Chore>,
    stop: CancellationToken,
}

impl Round {
    async fn go(self) -> Result<(), Error> {
        let every = self.chore.every().to_std();
        let mut down = Pace::new(every.min(Duration::from_secs(1)), Duration::from_secs(60).max(every));
        // Not all at once at the start either.
        let mut wait = jittered(every.min(Duration::from_secs(1)));
        while !pause(&self.stop, wait).await {
            wait = match self.passes().await {
                Ok(()) => {
                    down.reset();
                    jittered(every)
                }
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => {
                    let chore = self.chore.name();
                    tracing::warn!(chore, %error, "maintenance failed; trying again");
                    down.wait()
                }
            };
        }
        Ok(())
    }

    async fn passes(&self) -> Result<(), Error> {
        for _ in 0..PASSES_IN_A_ROW {
            let pass = tokio::time::timeout(PASS_WITHIN, self.chore.pass(&*self.store));
            let done = tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                done = pass => done.unwrap_or_else(|_| Err(too_long()))?,
            };
            if done.did > 0 {
                tracing::debug!(chore = self.chore.name(), did = done.did, more = done.more, "maintenance");
            }
            if !done.more {
                break;
            }
        }
        Ok(())
    }
}

fn too_long() -> Error {
    let why = format!("a pass took longer than {} s", PASS_WITHIN.as_secs());
    StoreError::new(StoreErrorKind::Unreachable, why).into()
}
