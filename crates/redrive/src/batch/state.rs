//! The state of a run between processes, and the lock of the process that runs it. Both are small values in the store's
//! `run` namespace, written by compare-and-set, so two processes that start at once cannot both win. A lock whose
//! holder has stopped renewing it, or whose process is gone, can be taken over.

use super::error::BatchError;
use redrive_core::error::{CallError, Refusal};
use redrive_core::ids::MessageId;
use redrive_core::store::Store;
use redrive_core::time::{Span, Time};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The namespace of these values.
const NAMESPACE: &str = "run";
/// How long a lock is valid unless it is renewed.
const LOCK_FOR: Span = Span::from_secs(15);
/// How often a lock is renewed: four times before it would expire.
const BEAT: Span = Span::from_secs(3);
/// How long to wait for a process that was killed to be gone.
const EXIT_WAIT: Duration = Duration::from_secs(1);

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
    /// The setup steps have not all succeeded.
    Setup,
    /// Not every item is in the queue.
    Enqueueing,
    /// Items are being worked on.
    Mapping,
    /// The run is finished.
    Finished,
}

/// The stored state of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunState {
    /// The id of the run. `--restart` creates a new one.
    pub(super) run: String,
    pub(super) job_hash: String,
    pub(super) input_hash: String,
    pub(super) total: u64,
    pub(super) started_at: Time,
    pub(super) stage: Stage,
    /// The number of results that the last successful reduce read.
    #[serde(default)]
    pub(super) reduced: Option<u64>,
}

/// A stored value and its version.
#[derive(Debug)]
pub(super) struct Versioned<T> {
    pub(super) value: Option<T>,
    version: u64,
    key: String,
}

impl<T: Serialize + DeserializeOwned + PartialEq> Versioned<T> {
    /// Reads the value.
    pub(super) async fn load(store: &dyn Store, key: String) -> Result<Self, BatchError> {
        let entry = store.kv_get(NAMESPACE.into(), key.clone()).await?;
        let version = entry.as_ref().map_or(0, |entry| entry.version);
        let value = entry.map(|entry| serde_json::from_slice(&entry.value)).transpose().map_err(|e| {
            BatchError::Input(format!("what run/{key} says cannot be read ({e}); --restart begins anew"))
        })?;
        Ok(Self { value, version, key })
    }

    /// Writes the value if nobody else changed it meanwhile. If the store holds this value already, an earlier write
    /// whose answer was lost has succeeded.
    pub(super) async fn save(&mut self, store: &dyn Store, value: Option<T>) -> Result<(), CallError> {
        self.save_over(store, value, |_| false).await
    }

    /// Writes the value if the stored one is unchanged, is this same value, or satisfies `ours`.
    async fn save_over(
        &mut self,
        store: &dyn Store,
        value: Option<T>,
        ours: impl Fn(&T) -> bool,
    ) -> Result<(), CallError> {
        // Strings and numbers can always be serialized.
        let bytes = value.as_ref().map(|value| serde_json::to_vec(value).unwrap_or_default());
        let put = |version| store.kv_put(NAMESPACE.into(), self.key.clone(), bytes.clone(), version);
        let version = match put(self.version).await {
            Err(CallError::Refused(conflict @ Refusal::KvConflict { .. })) => {
                let entry = store.kv_get(NAMESPACE.into(), self.key.clone()).await?;
                let version = entry.as_ref().map_or(0, |entry| entry.version);
                let there = entry.as_ref().and_then(|entry| serde_json::from_slice::<T>(&entry.value).ok());
                if entry.is_some() == there.is_some() && there == value {
                    version
                } else if there.as_ref().is_some_and(ours) {
                    put(version).await?
                } else {
                    return Err(CallError::Refused(conflict));
                }
            }
            written => written?,
        };
        (self.version, self.value) = (version, value);
        Ok(())
    }
}

/// The process that runs a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    who: String,
    host: String,
    pid: u32,
    /// The start time of the process, as the system counts it. A process id is reused, this is not.
    #[serde(default)]
    born: Option<u64>,
    since: Time,
    until: Time,
    /// A unique id, so that a holder recognises its own lock.
    #[serde(default)]
    id: Option<MessageId>,
}

impl Holder {
    /// Whether it is the same lock, possibly renewed.
    fn is_same(&self, other: &Self) -> bool {
        self.id.is_some() && self.id == other.id
    }

    fn is_gone(&self, now: Time) -> bool {
        self.until <= now || (self.host == host() && !is_alive(self.pid, self.born))
    }
}

/// The lock on a job. Released by [`RunLock::release`]; if it is only dropped, it is no longer renewed and expires.
pub(super) struct RunLock {
    saved: Arc<tokio::sync::Mutex<Versioned<Holder>>>,
    store: Arc<dyn Store>,
    _beat: AbortOnDropHandle<()>,
    /// Cancelled when another process took the lock.
    pub(super) lost: CancellationToken,
}

impl RunLock {
    /// Takes the lock, or returns who holds it.
    pub(super) async fn take(store: &Arc<dyn Store>, job: &str, who: &str) -> Result<Self, BatchError> {
        let asked = Instant::now();
        let (mut saved, now) = loop {
            let saved = Versioned::<Holder>::load(store.as_ref(), format!("{job}.holder")).await?;
            let now = store.info().await?.now;
            match saved.value.as_ref().filter(|other| !other.is_gone(now)) {
                None => break (saved, now),
                // A killed process may take a moment to be gone.
                Some(_) if asked.elapsed() < EXIT_WAIT => tokio::time::sleep(EXIT_WAIT / 20).await,
                Some(other) => return Err(busy(job, other)),
            }
        };
        let pid = std::process::id();
        let holder = Holder {
            who: who.to_owned(),
            host: host(),
            pid,
            born: born(pid),
            since: now,
            until: now.plus(LOCK_FOR),
            id: Some(crate::new_id()),
        };
        match saved.save(store.as_ref(), Some(holder)).await {
            Ok(()) => {}
            Err(CallError::Refused(Refusal::KvConflict { .. })) => {
                let saved = Versioned::<Holder>::load(store.as_ref(), format!("{job}.holder")).await?;
                return Err(saved
                    .value
                    .as_ref()
                    .map_or_else(|| BatchError::TakenOver(job.into()), |h| busy(job, h)));
            }
            Err(error) => return Err(error.into()),
        }
        let saved = Arc::new(tokio::sync::Mutex::new(saved));
        let lost = CancellationToken::new();
        let beat = tokio::spawn(beat(Arc::clone(store), Arc::clone(&saved), lost.clone()));
        Ok(Self { saved, store: Arc::clone(store), _beat: AbortOnDropHandle::new(beat), lost })
    }

    /// Releases the lock.
    pub(super) async fn release(self) {
        let mut saved = self.saved.lock().await;
        let Some(holder) = saved.value.clone() else { return };
        // If this fails, the lock expires.
        let _ = saved.save_over(self.store.as_ref(), None, |there| there.is_same(&holder)).await;
    }
}

/// Renews the lock until it is dropped or lost.
async fn beat(
    store: Arc<dyn Store>,
    saved: Arc<tokio::sync::Mutex<Versioned<Holder>>>,
    lost: CancellationToken,
) {
    loop {
        tokio::time::sleep(BEAT.to_std()).await;
        // After any other error the next renewal tries again.
        if let Err(CallError::Refused(Refusal::KvConflict { .. })) =
            beat_once(store.as_ref(), &mut *saved.lock().await).await
        {
            lost.cancel();
            return;
        }
    }
}

/// Renews the lock once. The last renewal may have succeeded although its answer was lost.
async fn beat_once(store: &dyn Store, saved: &mut Versioned<Holder>) -> Result<(), CallError> {
    let Some(holder) = saved.value.clone() else { return Ok(()) };
    let until = store.info().await?.now.plus(LOCK_FOR);
    let next = Holder { until, ..holder.clone() };
    saved.save_over(store, Some(next), |there| there.is_same(&holder)).await
}

fn busy(job: &str, other: &Holder) -> BatchError {
    let holder = format!("{} on {} (process {})", other.who, other.host, other.pid);
    BatchError::Busy { job: job.to_owned(), holder, since: other.since }
}

fn host() -> String {
    crate::host::host().unwrap_or_else(|| "this machine".into())
}

/// The start time of a process: field 22 of its `stat` line, counted after the name, which may contain spaces.
fn born(pid: u32) -> Option<u64> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    line.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Whether the process has ended and only waits to be reaped by its parent.
fn is_over(pid: u32) -> bool {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = line.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    matches!(state, Some("Z" | "X"))
}

/// Whether the process with this id and start time is alive.
fn is_alive(pid: u32, since: Option<u64>) -> bool {
    let Some(id) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else { return true };
    match rustix::process::test_kill_process(id) {
        Err(rustix::io::Errno::SRCH) => false,
        Ok(()) | Err(_) if is_over(pid) => false,
        Ok(()) | Err(_) => since.is_none() || born(pid).is_none() || born(pid) == since,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_is_one_holder_at_a_time_and_a_dead_one_is_replaced() {
        let store = crate::memory();
        let first = RunLock::take(&store, "j", "eve").await.unwrap();
        let refused = RunLock::take(&store, "j", "bob").await.err().unwrap().to_string();
        assert!(refused.contains("job j is being run by eve on"), "{refused}");
        RunLock::take(&store, "k", "bob").await.unwrap();
        first.release().await;
        let mut saved = Versioned::<Holder>::load(store.as_ref(), "j.holder".into()).await.unwrap();
        let gone = Holder {
            who: "eve".into(),
            host: host(),
            pid: std::process::id(),
            born: Some(1),
            since: Time::ZERO,
            until: store.info().await.unwrap().now.plus(Span::from_hours(1)),
            id: None,
        };
        saved.save(store.as_ref(), Some(gone)).await.unwrap();
        RunLock::take(&store, "j", "bob").await.unwrap();
    }

    /// Writes the stored value once more, like a write whose answer is lost.
    async fn write_unanswered(store: &dyn Store, key: &str, change: impl Fn(&mut serde_json::Value)) {
        let entry = store.kv_get(NAMESPACE.into(), key.into()).await.unwrap().unwrap();
        let mut value = serde_json::from_slice(&entry.value).unwrap();
        change(&mut value);
        let bytes = serde_json::to_vec(&value).unwrap();
        store.kv_put(NAMESPACE.into(), key.into(), Some(bytes), entry.version).await.unwrap();
    }

    #[tokio::test]
    async fn a_lost_answer_is_no_takeover() {
        let store = crate::memory();
        let hold = RunLock::take(&store, "j", "eve").await.unwrap();
        write_unanswered(store.as_ref(), "j.holder", |holder| holder["who"] = "adam".into()).await;
        beat_once(store.as_ref(), &mut *hold.saved.lock().await).await.unwrap();
        beat_once(store.as_ref(), &mut *hold.saved.lock().await).await.unwrap();
        write_unanswered(store.as_ref(), "j.holder", |holder| holder["who"] = "adam".into()).await;
        hold.release().await;
        let saved = Versioned::<Holder>::load(store.as_ref(), "j.holder".into()).await.unwrap();
        assert_eq!(saved.value, None, "what was written without an answer is given up too");

        let hold = RunLock::take(&store, "j", "eve").await.unwrap();
        let other = serde_json::to_value(crate::new_id()).unwrap();
        write_unanswered(store.as_ref(), "j.holder", |holder| holder["id"] = other.clone()).await;
        let lost = beat_once(store.as_ref(), &mut *hold.saved.lock().await).await.unwrap_err();
        assert!(matches!(lost, CallError::Refused(Refusal::KvConflict { .. })), "{lost}");
        hold.release().await;
        let saved = Versioned::<Holder>::load(store.as_ref(), "j.holder".into()).await.unwrap();
        assert!(saved.value.is_some(), "another's hold is left alone");
    }

    #[tokio::test]
    async fn a_value_that_is_stored_already_counts_as_written() {
        let store = crate::memory();
        let mut saved = Versioned::<u64>::load(store.as_ref(), "j".into()).await.unwrap();
        saved.save(store.as_ref(), Some(1)).await.unwrap();
        write_unanswered(store.as_ref(), "j", |value| *value = 2.into()).await;
        saved.save(store.as_ref(), Some(2)).await.unwrap();
        saved.save(store.as_ref(), Some(3)).await.unwrap();
        write_unanswered(store.as_ref(), "j", |value| *value = 9.into()).await;
        saved.save(store.as_ref(), Some(4)).await.unwrap_err();
    }
}
