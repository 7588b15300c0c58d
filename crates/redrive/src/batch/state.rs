//! What a run remembers between processes, and who runs it now. Both are small values in the store's `run`
//! namespace, written by compare-and-set: two processes that begin at once cannot both win. A holder that stops
//! giving signs of life, or whose process is gone, is replaced.

use super::error::BatchError;
use redrive_core::error::{Error, Refusal};
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

/// Where these values are kept.
const NAMESPACE: &str = "run";
/// How long a holder is believed without a sign of life.
const HOLD_FOR: Span = Span::from_secs(15);
/// How often it gives one: four chances before it is given up.
const BEAT: Span = Span::from_secs(3);
/// How long a process that was killed may take to be gone.
const GOING: Duration = Duration::from_secs(1);

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
    /// The setup steps have not all succeeded.
    Setup,
    /// Not every item is in the queue.
    Enqueueing,
    /// Items are worked on.
    Mapping,
    /// Everything is done that will be.
    Finished,
}

/// What a run remembers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunState {
    /// The run's own name; `--restart` makes a new one.
    pub(super) run: String,
    pub(super) job_hash: String,
    pub(super) input_hash: String,
    pub(super) total: u64,
    pub(super) started_at: Time,
    pub(super) stage: Stage,
    /// Results that the last successful reduce saw.
    #[serde(default)]
    pub(super) reduced: Option<u64>,
}

/// A value and its version.
#[derive(Debug)]
pub(super) struct Kept<T> {
    pub(super) value: Option<T>,
    version: u64,
    key: String,
}

impl<T: Serialize + DeserializeOwned + PartialEq> Kept<T> {
    /// Reads it.
    pub(super) async fn load(store: &dyn Store, key: String) -> Result<Self, BatchError> {
        let entry = store.kv_get(NAMESPACE.into(), key.clone()).await?;
        let version = entry.as_ref().map_or(0, |entry| entry.version);
        let value = entry.map(|entry| serde_json::from_slice(&entry.value)).transpose().map_err(|e| {
            BatchError::Input(format!("what run/{key} says cannot be read ({e}); --restart begins anew"))
        })?;
        Ok(Self { value, version, key })
    }

    /// Writes it, if nobody else did meanwhile. What is there already was written by an attempt whose answer was
    /// lost.
    pub(super) async fn save(&mut self, store: &dyn Store, value: Option<T>) -> Result<(), Error> {
        self.save_over(store, value, |_| false).await
    }

    /// Writes it, if what is there is what was read, or is this same value, or is `ours` as well.
    async fn save_over(
        &mut self,
        store: &dyn Store,
        value: Option<T>,
        ours: impl Fn(&T) -> bool,
    ) -> Result<(), Error> {
        // Texts and numbers can always be written.
        let bytes = value.as_ref().map(|value| serde_json::to_vec(value).unwrap_or_default());
        let put = |version| store.kv_put(NAMESPACE.into(), self.key.clone(), bytes.clone(), version);
        let version = match put(self.version).await {
            Err(Error::Refused(conflict @ Refusal::KvConflict { .. })) => {
                let entry = store.kv_get(NAMESPACE.into(), self.key.clone()).await?;
                let version = entry.as_ref().map_or(0, |entry| entry.version);
                let there = entry.as_ref().and_then(|entry| serde_json::from_slice::<T>(&entry.value).ok());
                if entry.is_some() == there.is_some() && there == value {
                    version
                } else if there.as_ref().is_some_and(ours) {
                    put(version).await?
                } else {
                    return Err(Error::Refused(conflict));
                }
            }
            written => written?,
        };
        (self.version, self.value) = (version, value);
        Ok(())
    }
}

/// Who runs a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    who: String,
    host: String,
    pid: u32,
    /// When the process began, as the system counts it: a process id comes back, this does not.
    #[serde(default)]
    born: Option<u64>,
    since: Time,
    until: Time,
    /// One of a kind, so that a holder knows its own hand.
    #[serde(default)]
    id: Option<MessageId>,
}

impl Holder {
    /// Whether it is the same hold, maybe with another sign of life.
    fn is_same(&self, other: &Self) -> bool {
        self.id.is_some() && self.id == other.id
    }

    fn is_gone(&self, now: Time) -> bool {
        self.until <= now || (self.host == host() && !is_alive(self.pid, self.born))
    }
}

/// The right to run a job. Given up by [`Hold::release`]; when it is only dropped, the signs of life stop.
pub(super) struct Hold {
    kept: Arc<tokio::sync::Mutex<Kept<Holder>>>,
    store: Arc<dyn Store>,
    _beat: AbortOnDropHandle<()>,
    /// Fires when somebody else took it.
    pub(super) lost: CancellationToken,
}

impl Hold {
    /// Takes the right to run this job, or says who has it.
    pub(super) async fn take(store: &Arc<dyn Store>, job: &str, who: &str) -> Result<Self, BatchError> {
        let asked = Instant::now();
        let (mut kept, now) = loop {
            let kept = Kept::<Holder>::load(store.as_ref(), format!("{job}.holder")).await?;
            let now = store.info().await?.now;
            match kept.value.as_ref().filter(|other| !other.is_gone(now)) {
                None => break (kept, now),
                // A process that was killed takes a moment to be gone.
                Some(_) if asked.elapsed() < GOING => tokio::time::sleep(GOING / 20).await,
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
            until: now.plus(HOLD_FOR),
            id: Some(crate::new_id()),
        };
        match kept.save(store.as_ref(), Some(holder)).await {
            Ok(()) => {}
            Err(Error::Refused(Refusal::KvConflict { .. })) => {
                let kept = Kept::<Holder>::load(store.as_ref(), format!("{job}.holder")).await?;
                return Err(kept
                    .value
                    .as_ref()
                    .map_or_else(|| BatchError::TakenOver(job.into()), |h| busy(job, h)));
            }
            Err(error) => return Err(error.into()),
        }
        let kept = Arc::new(tokio::sync::Mutex::new(kept));
        let lost = CancellationToken::new();
        let beat = tokio::spawn(beat(Arc::clone(store), Arc::clone(&kept), lost.clone()));
        Ok(Self { kept, store: Arc::clone(store), _beat: AbortOnDropHandle::new(beat), lost })
    }

    /// Gives it up.
    pub(super) async fn release(self) {
        let mut kept = self.kept.lock().await;
        let Some(holder) = kept.value.clone() else { return };
        // Whoever cannot be told finds out when the signs of life stop.
        let _ = kept.save_over(self.store.as_ref(), None, |there| there.is_same(&holder)).await;
    }
}

/// Gives signs of life until the hold is dropped, or somebody else has it.
async fn beat(store: Arc<dyn Store>, kept: Arc<tokio::sync::Mutex<Kept<Holder>>>, lost: CancellationToken) {
    loop {
        tokio::time::sleep(BEAT.to_std()).await;
        // A sign that did not arrive is given again.
        if let Err(Error::Refused(Refusal::KvConflict { .. })) =
            beat_once(store.as_ref(), &mut *kept.lock().await).await
        {
            lost.cancel();
            return;
        }
    }
}

/// Gives one sign of life. The last one may have arrived although its answer did not.
async fn beat_once(store: &dyn Store, kept: &mut Kept<Holder>) -> Result<(), Error> {
    let Some(holder) = kept.value.clone() else { return Ok(()) };
    let until = store.info().await?.now.plus(HOLD_FOR);
    let next = Holder { until, ..holder.clone() };
    kept.save_over(store, Some(next), |there| there.is_same(&holder)).await
}

fn busy(job: &str, other: &Holder) -> BatchError {
    let holder = format!("{} on {} (process {})", other.who, other.host, other.pid);
    BatchError::Busy { job: job.to_owned(), holder, since: other.since }
}

fn host() -> String {
    crate::here::host().unwrap_or_else(|| "this machine".into())
}

/// When a process began: the 22nd field of its line in `/proc`, counted after the name, which may hold spaces.
fn born(pid: u32) -> Option<u64> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    line.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Whether it has ended and only waits for its parent to hear of it.
fn is_over(pid: u32) -> bool {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = line.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    matches!(state, Some("Z" | "X"))
}

/// Whether the process of this number is the one that is meant.
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
    async fn one_holder_at_a_time_and_the_dead_are_replaced() {
        let store = crate::memory();
        let first = Hold::take(&store, "j", "eve").await.unwrap();
        let refused = Hold::take(&store, "j", "bob").await.err().unwrap().to_string();
        assert!(refused.contains("job j is being run by eve on"), "{refused}");
        Hold::take(&store, "k", "bob").await.unwrap();
        first.release().await;
        let mut kept = Kept::<Holder>::load(store.as_ref(), "j.holder".into()).await.unwrap();
        let gone = Holder {
            who: "eve".into(),
            host: host(),
            pid: std::process::id(),
            born: Some(1),
            since: Time::ZERO,
            until: store.info().await.unwrap().now.plus(Span::from_hours(1)),
            id: None,
        };
        kept.save(store.as_ref(), Some(gone)).await.unwrap();
        Hold::take(&store, "j", "bob").await.unwrap();
    }

    /// Writes what is there once more, as a write does whose answer is lost on its way back.
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
        let hold = Hold::take(&store, "j", "eve").await.unwrap();
        write_unanswered(store.as_ref(), "j.holder", |holder| holder["who"] = "adam".into()).await;
        beat_once(store.as_ref(), &mut *hold.kept.lock().await).await.unwrap();
        beat_once(store.as_ref(), &mut *hold.kept.lock().await).await.unwrap();
        write_unanswered(store.as_ref(), "j.holder", |holder| holder["who"] = "adam".into()).await;
        hold.release().await;
        let kept = Kept::<Holder>::load(store.as_ref(), "j.holder".into()).await.unwrap();
        assert_eq!(kept.value, None, "what was written without an answer is given up too");

        let hold = Hold::take(&store, "j", "eve").await.unwrap();
        let other = serde_json::to_value(crate::new_id()).unwrap();
        write_unanswered(store.as_ref(), "j.holder", |holder| holder["id"] = other.clone()).await;
        let lost = beat_once(store.as_ref(), &mut *hold.kept.lock().await).await.unwrap_err();
        assert!(matches!(lost, Error::Refused(Refusal::KvConflict { .. })), "{lost}");
        hold.release().await;
        let kept = Kept::<Holder>::load(store.as_ref(), "j.holder".into()).await.unwrap();
        assert!(kept.value.is_some(), "another's hold is left alone");
    }

    #[tokio::test]
    async fn a_state_that_is_there_already_was_written_by_us() {
        let store = crate::memory();
        let mut kept = Kept::<u64>::load(store.as_ref(), "j".into()).await.unwrap();
        kept.save(store.as_ref(), Some(1)).await.unwrap();
        write_unanswered(store.as_ref(), "j", |value| *value = 2.into()).await;
        kept.save(store.as_ref(), Some(2)).await.unwrap();
        kept.save(store.as_ref(), Some(3)).await.unwrap();
        write_unanswered(store.as_ref(), "j", |value| *value = 9.into()).await;
        kept.save(store.as_ref(), Some(4)).await.unwrap_err();
    }
}
