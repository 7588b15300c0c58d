//! Alerts: evaluates the rules of [`redrive_core::alert`] again and again and sends what they say through Redrive's own
//! queue `redrive-alerts`, so that a failed delivery is tried again and can die visibly. This loop decides nothing.
//!
//! Nobody is told twice, also over a crash, a restart or a second process. What was decided is first written to the
//! state, together with the notices (the outbox), if the state is still the one the decision was made from. Then the
//! notices are enqueued, each with a key of its own, and only then the outbox is emptied. A crash before the first write
//! leaves everything to the next evaluation; a crash after it leaves the outbox, which is enqueued again under the same
//! keys.

mod gather;
mod mail;
mod send;

pub use send::{Channels, no_such_channel, test_channel};

use crate::handler::Handler;
use crate::runnable::{Heartbeat, Runnable};
use crate::waiting::{GrowingDelay, is_fatal, jittered, pause, with_timeout};
use crate::worker::Worker;
use async_trait::async_trait;
use gather::RetentionWatch;
use redrive_core::alert::kv;
use redrive_core::alert::{
    AlertRecord, AlertSettings, AlertState, KIND, Notice, QUEUE, RECORD_KEY, STATE_KEY, evaluate,
};
use redrive_core::backoff::Backoff;
use redrive_core::dead_letter::Actor;
use redrive_core::error::{CallError, Refusal, StoreError, StoreErrorKind};
use redrive_core::ids::QueueName;
use redrive_core::policy::QueuePolicy;
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often one evaluation begins again because another process changed the state at the same time.
const CONFLICTS_MAX: usize = 10;

/// Evaluates the rules and sends alerts until it is stopped. Several processes may run one on the same store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::alerts::AlertLoop;
/// use redrive::core::alert::AlertSettings;
///
/// let settings: AlertSettings =
///     serde_json::from_str(r#"{"channels": {"log": {"type": "log"}}, "rules": {"depth": {"limit": 10}}}"#)?;
/// let alerts = AlertLoop::new(redrive::memory(), settings)?.links("https://redrive.example.com");
/// assert_eq!(alerts.check().await?, 0); // a `LoopGroup` does this every ten seconds
/// # Ok(())
/// # }
/// ```
pub struct AlertLoop {
    store: Arc<dyn Store>,
    settings: AlertSettings,
    links: Option<String>,
    channels: Arc<Channels>,
    retention: RetentionWatch,
    shown: Mutex<Option<AlertRecord>>,
}

impl fmt::Debug for AlertLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlertLoop").field("every", &self.settings.every).finish_non_exhaustive()
    }
}

impl AlertLoop {
    /// Creates the loop. Secrets of the channels are read from the environment now.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming the setting that cannot work.
    pub fn new(store: Arc<dyn Store>, settings: AlertSettings) -> Result<Self, Refusal> {
        settings.check()?;
        let channels = Arc::new(Channels::new(&settings));
        let (retention, shown) = (RetentionWatch::default(), Mutex::default());
        Ok(Self { store, settings, links: None, channels, retention, shown })
    }

    /// The address of the server, for links in alerts.
    #[must_use]
    pub fn links(mut self, url: impl Into<String>) -> Self {
        self.links = Some(url.into());
        self
    }

    /// Evaluates the rules once and enqueues what they say. Returns the number of notices.
    ///
    /// # Errors
    /// Those of the store. What was decided before one is sent by the next call.
    pub async fn check(&self) -> Result<usize, CallError> {
        let store = &*self.store;
        for _ in 0..CONFLICTS_MAX {
            let (state, version) = with_timeout(kv::read::<AlertState>(store, STATE_KEY)).await?;
            if !state.outbox.is_empty() {
                self.send_outbox(state, version).await?;
                continue;
            }
            let (facts, now) = self.gather(&state).await?;
            let silences = with_timeout(kv::silences(store)).await?;
            let done = evaluate(&self.settings, &facts, &silences, self.links.as_deref(), &state, now);
            let notices = done.notices.len();
            let record = AlertRecord {
                active: done.active,
                channels: self.channels.views(),
                told: done.state.told.clone(),
                rules: self.settings.rule_views(),
            };
            let next = AlertState { outbox: done.notices, ..done.state };
            if next != state {
                let Some(version) = with_timeout(kv::write(store, STATE_KEY, &next, version)).await? else {
                    continue;
                };
                next.outbox.iter().for_each(log);
                self.show(record).await?;
                if notices > 0 {
                    self.send_outbox(next, version).await?;
                }
            } else {
                self.show(record).await?;
            }
            return Ok(notices);
        }
        let why = "other processes evaluate the rules at the same time; trying again";
        Err(StoreError::new(StoreErrorKind::Busy, why).into())
    }

    /// Enqueues the notices that were decided, then empties the outbox. Another process may do the same: the keys make
    /// the messages the same, and whoever comes second finds the outbox changed.
    async fn send_outbox(&self, mut state: AlertState, version: u64) -> Result<(), CallError> {
        let mut batch = Vec::new();
        for notice in &state.outbox {
            for channel in self.channels.of(notice) {
                batch.push(kv::message(crate::new_id(), notice, &channel)?);
            }
        }
        if !batch.is_empty() {
            self.create_queue().await?;
            for result in with_timeout(self.store.enqueue(batch)).await? {
                match result {
                    // A known key is a notice that was enqueued before a crash.
                    Ok(_) | Err(Refusal::KeyConflict { .. }) => {}
                    Err(refusal) => return Err(refusal.into()),
                }
            }
        }
        state.outbox.clear();
        with_timeout(kv::write(&*self.store, STATE_KEY, &state, version)).await.map(drop)
    }

    /// Creates the queue of alerts with a policy that tries for hours, unless it is there.
    async fn create_queue(&self) -> Result<(), CallError> {
        let queue = queue_name()?;
        match with_timeout(self.store.queue(queue.clone())).await {
            Ok(_) => Ok(()),
            Err(CallError::Refused(Refusal::NoSuchQueue { .. })) => {
                let actor = Actor::new("redrive", "alerts");
                with_timeout(self.store.configure(queue, queue_policy(), actor)).await.map(drop)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the record for those who look, if it has changed.
    async fn show(&self, record: AlertRecord) -> Result<(), CallError> {
        if self.shown.lock().unwrap_or_else(PoisonError::into_inner).as_ref() == Some(&record) {
            return Ok(());
        }
        let (old, version) = with_timeout(kv::read::<AlertRecord>(&*self.store, RECORD_KEY)).await?;
        if old != record {
            // If another process wrote one at the same time, that one is as good.
            with_timeout(kv::write(&*self.store, RECORD_KEY, &record, version)).await?;
        }
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
        Ok(())
    }

    /// Delivers what was enqueued until it is stopped. Without channels there is nothing to do.
    fn sending(
        &self,
        stop: CancellationToken,
    ) -> Result<impl Future<Output = Result<(), CallError>> + Send + 'static, CallError> {
        let worker = if self.channels.is_empty() { None } else { Some(self.worker()?) };
        Ok(async move {
            match worker {
                Some(worker) => Runnable::run(&worker, stop, Heartbeat::default()).await,
                None => {
                    stop.cancelled().await;
                    Ok(())
                }
            }
        })
    }

    /// The worker that delivers what was enqueued.
    ///
    /// # Errors
    /// Does not happen with the fixed settings it is built with.
    pub fn worker(&self) -> Result<Worker, CallError> {
        let handler: Arc<dyn Handler> = Arc::clone(&self.channels) as Arc<dyn Handler>;
        Worker::builder(Arc::clone(&self.store)).queue(QUEUE).concurrency(4).handler(KIND, handler).build()
    }
}

fn queue_name() -> Result<QueueName, CallError> {
    QUEUE.parse().map_err(|error: redrive_core::ids::IdError| {
        CallError::Store(StoreError::new(StoreErrorKind::Protocol, error.to_string()))
    })
}

/// Receivers of alerts are down for minutes, sometimes for hours, and an alert of yesterday is still worth reading.
fn queue_policy() -> QueuePolicy {
    let backoff = Backoff { initial: Span::from_secs(5), cap: Span::from_secs(600), ..Backoff::default() };
    QueuePolicy { max_attempts: 30, backoff, ..QueuePolicy::default() }
}

fn log(notice: &Notice) {
    let Notice { number, rule, level, subject, text, status, .. } = notice;
    tracing::warn!(number, %rule, %level, subject, text, %status, "alert");
}

#[async_trait]
impl Runnable for AlertLoop {
    fn name(&self) -> String {
        "alerts".into()
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError> {
        let every = self.settings.every.to_std();
        let mut retry =
            GrowingDelay::new(every.min(Duration::from_secs(1)), Duration::from_secs(60).max(every));
        if self.channels.is_empty() {
            tracing::debug!("there are no channels for alerts; they are only listed and logged");
        } else {
            // Before the worker, which would create the queue with the default policy.
            while let Err(error) = self.create_queue().await {
                heartbeat.beat();
                tracing::warn!(%error, "the queue of the alerts could not be created; trying again");
                if is_fatal(&error) {
                    return Err(error);
                }
                if pause(&stop, retry.wait()).await {
                    return Ok(());
                }
            }
        }
        let sender_stop = stop.child_token();
        let sending = tokio::spawn(self.sending(sender_stop.clone())?);
        let ended = loop {
            heartbeat.beat();
            let wait = match self.check().await {
                Ok(_) => {
                    retry.reset();
                    jittered(every)
                }
                Err(error) if is_fatal(&error) => break Err(error),
                Err(error) => {
                    tracing::warn!(%error, "the rules of the alerts could not be evaluated; trying again");
                    retry.wait()
                }
            };
            if pause(&stop, wait).await || sending.is_finished() {
                break Ok(());
            }
        };
        sender_stop.cancel();
        let sent = sending.await.unwrap_or_else(|error| {
            let why = format!("the worker of the alerts panicked: {error}");
            Err(StoreError::new(StoreErrorKind::Stopped, why).into())
        });
        ended.and(sent)
    }

    fn degraded(&self) -> Vec<String> {
        self.channels.problems()
    }
}
