//! The dead letter consumer: a loop that leases the letters of a dead letter queue, asks a handler what to do with
//! each, and does that. If the handler fails, the failure is noted on the letter, and no consumer leases the letter
//! for an hour. The consumer decides nothing itself and never removes a letter.

use crate::handler::HandlerError;
use crate::metrics::{Timer, process};
use crate::runnable::{Heartbeat, Runnable};
use crate::waiting::{GrowingDelay, is_fatal, with_timeout};
use async_trait::async_trait;
use redrive_core::dead_letter::{Act, Actor, CONSUMER_LEASE, DeadLetter, LetterDelivery};
use redrive_core::error::{CallError, Refusal};
use redrive_core::ids::{LeaseToken, QueueName};
use redrive_core::limits;
use redrive_core::store::{LetterLeaseRequest, LetterSettle, LetterSettlement, Store};
use redrive_core::time::{Span, Time};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What to do with a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Closes the letter as resolved.
    Resolve {
        /// How it was resolved, for the letter and the audit trail.
        note: String,
    },
    /// Sends the message back to its queue at once, as a new generation that keeps its id, reply-to and history.
    Replay,
    /// Sends the message back as [`Self::Replay`] does, due after this time.
    ReplayAfter(Span),
    /// Closes the letter as abandoned. It is kept until its retention is over.
    Discard {
        /// Why, for the letter and the audit trail.
        reason: String,
    },
    /// Marks the letter for review by a person. No consumer leases it any more.
    Review {
        /// Why, for the letter and the audit trail.
        reason: String,
    },
    /// Sets the letter aside for a time. After that, the policy of its queue decides.
    Quarantine {
        /// How long.
        span: Span,
        /// Why, for the letter and the audit trail.
        reason: String,
    },
    /// Leaves the letter unchanged. No consumer leases it for [`DeadLetterConsumerBuilder::leave_for`].
    Leave,
}

/// A return type of a letter handler: a [`Disposition`], or a `Result` with one.
pub trait IntoDisposition {
    /// Converts the returned value into a disposition.
    ///
    /// # Errors
    /// Returns the error of the handler, which is noted on the letter.
    fn into_disposition(self) -> Result<Disposition, HandlerError>;
}

impl IntoDisposition for Disposition {
    fn into_disposition(self) -> Result<Disposition, HandlerError> {
        Ok(self)
    }
}

impl<E: Into<HandlerError>> IntoDisposition for Result<Disposition, E> {
    fn into_disposition(self) -> Result<Disposition, HandlerError> {
        self.map_err(Into::into)
    }
}

/// User code that handles one dead letter at a time. Async functions of [`DeadLetter`] are letter handlers.
#[async_trait]
pub trait LetterHandler: Send + Sync {
    /// Decides what to do with one letter.
    ///
    /// # Errors
    /// The error is noted on the letter, and no consumer leases the letter for an hour.
    async fn handle(&self, letter: DeadLetter) -> Result<Disposition, HandlerError>;
}

#[async_trait]
impl<F, Fut, D> LetterHandler for F
where
    F: Fn(DeadLetter) -> Fut + Send + Sync,
    Fut: Future<Output = D> + Send,
    D: IntoDisposition,
{
    async fn handle(&self, letter: DeadLetter) -> Result<Disposition, HandlerError> {
        self(letter).await.into_disposition()
    }
}

/// A loop over the letters of a dead letter queue.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::core::dead_letter::DeadLetter;
/// use redrive::{DeadLetterConsumer, Disposition, Heartbeat, Runnable as _};
///
/// let consumer = DeadLetterConsumer::builder(redrive::memory())
///     .dlq("payments-dlq")
///     .concurrency(4)
///     .handler(async |letter: DeadLetter| match letter.error.error_type.as_str() {
///         "Timeout" if letter.record.redrives < 3 => Disposition::Replay,
///         "Duplicate" => Disposition::Resolve { note: "paid already".into() },
///         _ => Disposition::Review { reason: "unknown".into() },
///     })
///     .build()?;
/// let stop = redrive::CancellationToken::new();
/// stop.cancel(); // this example ends at once
/// consumer.run(stop, Heartbeat::default()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DeadLetterConsumer {
    config: Arc<ConsumerConfig>,
}

/// The configuration of a consumer, shared by the tasks that handle letters.
struct ConsumerConfig {
    store: Arc<dyn Store>,
    dlq: QueueName,
    handler: Arc<dyn LetterHandler>,
    actor: Actor,
    concurrency: usize,
    lease: Span,
    timeout: Span,
    leave_for: Span,
    grace: Duration,
    idle: Duration,
    until_empty: bool,
    at_most: Option<usize>,
    stop_now: CancellationToken,
}

impl std::fmt::Debug for DeadLetterConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetterConsumer").field("dlq", &self.config.dlq).finish_non_exhaustive()
    }
}

/// Builds a [`DeadLetterConsumer`].
pub struct DeadLetterConsumerBuilder {
    store: Arc<dyn Store>,
    dlq: Option<Result<QueueName, Refusal>>,
    handler: Option<Arc<dyn LetterHandler>>,
    name: String,
    concurrency: usize,
    lease: Span,
    timeout: Span,
    leave_for: Span,
    grace: Span,
    idle: Span,
    until_empty: bool,
    at_most: Option<usize>,
}

impl std::fmt::Debug for DeadLetterConsumerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetterConsumerBuilder").field("dlq", &self.dlq).finish_non_exhaustive()
    }
}

impl DeadLetterConsumer {
    /// Starts building a consumer. By default it handles one letter at a time, with a lease of 300 s and a time limit
    /// of ten minutes for each.
    #[must_use]
    pub fn builder(store: Arc<dyn Store>) -> DeadLetterConsumerBuilder {
        DeadLetterConsumerBuilder {
            store,
            dlq: None,
            handler: None,
            name: "dead-letter-consumer".into(),
            concurrency: 1,
            lease: CONSUMER_LEASE,
            timeout: Span::from_secs(600),
            leave_for: Span::from_secs(300),
            grace: Span::from_secs(30),
            idle: Span::from_secs(2),
            until_empty: false,
            at_most: None,
        }
    }

    /// Aborts the running handlers and releases their letters, without waiting for the grace time. Call it after the
    /// consumer was stopped.
    pub fn stop_now(&self) {
        self.config.stop_now.cancel();
    }
}

impl DeadLetterConsumerBuilder {
    /// The dead letter queue whose letters the consumer handles.
    #[must_use]
    pub fn dlq(mut self, dlq: impl AsRef<str>) -> Self {
        let dlq = dlq.as_ref().parse::<QueueName>();
        self.dlq = Some(dlq.map_err(|why| Refusal::invalid("dlq", why.to_string())));
        self
    }

    /// The handler that decides what to do with each letter.
    #[must_use]
    pub fn handler(mut self, handler: impl LetterHandler + 'static) -> Self {
        self.handler = Some(Arc::new(handler));
        self
    }

    /// The name of the consumer in leases, notes and the audit trail.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// The maximum number of letters that are handled at once.
    #[must_use]
    pub fn concurrency(mut self, letters: usize) -> Self {
        self.concurrency = letters;
        self
    }

    /// How long a lease lasts. The consumer extends it after a third of this time.
    #[must_use]
    pub fn lease(mut self, span: Span) -> Self {
        self.lease = span;
        self
    }

    /// How long a handler may take for one letter.
    #[must_use]
    pub fn timeout(mut self, span: Span) -> Self {
        self.timeout = span;
        self
    }

    /// How long no consumer leases a letter after [`Disposition::Leave`].
    #[must_use]
    pub fn leave_for(mut self, span: Span) -> Self {
        self.leave_for = span;
        self
    }

    /// How long handlers have to finish when the consumer is stopped. Then their letters are released.
    #[must_use]
    pub fn grace(mut self, span: Span) -> Self {
        self.grace = span;
        self
    }

    /// The longest time between two attempts to lease from an empty dead letter queue.
    #[must_use]
    pub fn idle(mut self, span: Span) -> Self {
        self.idle = span;
        self
    }

    /// Stops the consumer when there is no letter to lease and no handler runs.
    #[must_use]
    pub fn until_empty(mut self) -> Self {
        self.until_empty = true;
        self
    }

    /// Stops the consumer after this number of letters.
    #[must_use]
    pub fn at_most(mut self, letters: usize) -> Self {
        self.at_most = Some(letters);
        self
    }

    /// Builds the consumer.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] with the field that is missing or invalid.
    pub fn build(self) -> Result<DeadLetterConsumer, Refusal> {
        let dlq = self.dlq.ok_or_else(|| Refusal::invalid("dlq", "missing; name a dead letter queue"))??;
        let handler = self.handler;
        let handler = handler.ok_or_else(|| Refusal::invalid("handler", "a consumer needs a handler"))?;
        let request = LetterLeaseRequest {
            dlq: dlq.clone(),
            max: self.concurrency,
            lease_for: Some(self.lease),
            worker: self.name.clone(),
        };
        request.check()?;
        redrive_core::store::check_snooze(self.leave_for)?;
        let config = ConsumerConfig {
            store: self.store,
            dlq,
            handler,
            actor: Actor::new(self.name, "library"),
            concurrency: self.concurrency,
            lease: self.lease,
            timeout: self.timeout,
            leave_for: self.leave_for,
            grace: self.grace.to_std(),
            idle: self.idle.to_std().max(SHORTEST_IDLE),
            until_empty: self.until_empty,
            at_most: self.at_most,
            stop_now: CancellationToken::new(),
        };
        Ok(DeadLetterConsumer { config: Arc::new(config) })
    }
}

/// The first wait after a dead letter queue was found empty.
const SHORTEST_IDLE: Duration = Duration::from_millis(50);
/// How often the consumer beats its heartbeat while it waits for handlers.
const BEAT: Duration = Duration::from_secs(10);
/// How often the consumer tries to settle a letter when the store does not answer.
const SETTLE_ATTEMPTS: u32 = 5;

#[async_trait]
impl Runnable for DeadLetterConsumer {
    fn name(&self) -> String {
        format!("{} ({})", self.config.actor.name, self.config.dlq)
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError> {
        let mut handlers = JoinSet::new();
        let stop_now = self.config.stop_now.child_token();
        let mut remaining = self.config.at_most.unwrap_or(usize::MAX);
        let mut idle = GrowingDelay::new(SHORTEST_IDLE, self.config.idle);
        let mut retry = GrowingDelay::new(Duration::from_millis(200), Duration::from_secs(30));
        let mut result = Ok(());
        while !stop.is_cancelled() {
            heartbeat.beat();
            let wait = match self.lease_letters(&mut handlers, &stop_now, remaining).await {
                Ok(0) if handlers.is_empty() && (self.config.until_empty || remaining == 0) => break,
                Ok(0) if handlers.len() >= self.config.concurrency.min(remaining.max(1)) => BEAT,
                Ok(0) => idle.wait(),
                Ok(leased) => {
                    remaining = remaining.saturating_sub(leased);
                    idle.reset();
                    retry.reset();
                    continue;
                }
                Err(error) if is_fatal(&error) => {
                    result = Err(error);
                    break;
                }
                Err(error) => {
                    tracing::warn!(dlq = %self.config.dlq, %error, "dead letters could not be leased; trying again");
                    retry.wait()
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                Some(_) = handlers.join_next() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.drain(handlers, &stop_now, &heartbeat).await;
        result
    }
}

impl DeadLetterConsumer {
    /// Leases letters for the free slots, at most `remaining`, and starts their handlers. Returns how many it leased.
    async fn lease_letters(
        &self,
        handlers: &mut JoinSet<()>,
        stop_now: &CancellationToken,
        remaining: usize,
    ) -> Result<usize, CallError> {
        while handlers.try_join_next().is_some() {}
        let free = self.config.concurrency.saturating_sub(handlers.len()).min(remaining);
        if free == 0 {
            return Ok(0);
        }
        let request = LetterLeaseRequest {
            dlq: self.config.dlq.clone(),
            max: free,
            lease_for: Some(self.config.lease),
            worker: self.config.actor.name.clone(),
        };
        let letters = with_timeout(self.config.store.lease_letters(request)).await?;
        let leased = letters.len();
        for letter in letters {
            let (config, stop_now) = (Arc::clone(&self.config), stop_now.clone());
            handlers.spawn(async move { config.handle(letter, stop_now).await });
        }
        Ok(leased)
    }

    /// Waits for running handlers. When the grace time is over, the others are aborted and their letters released.
    async fn drain(&self, mut handlers: JoinSet<()>, stop_now: &CancellationToken, heartbeat: &Heartbeat) {
        let end = tokio::time::sleep(self.config.grace);
        tokio::pin!(end);
        while !handlers.is_empty() {
            heartbeat.beat();
            tokio::select! {
                () = &mut end, if !stop_now.is_cancelled() => stop_now.cancel(),
                _ = handlers.join_next() => {}
                () = tokio::time::sleep(BEAT) => {}
            }
        }
    }
}

impl ConsumerConfig {
    /// Handles one leased letter and settles it.
    async fn handle(self: Arc<Self>, delivery: LetterDelivery, stop_now: CancellationToken) {
        let token = delivery.token;
        let (handler, started) = (Arc::clone(&self.handler), Instant::now());
        let mut task = tokio::spawn(async move { handler.handle(delivery.letter).await });
        let what = match self.watch(token, &mut task, &stop_now).await {
            Some(what) => what,
            None => {
                task.abort();
                return;
            }
        };
        process().record(Timer::LetterHandler, started.elapsed());
        self.settle(token, what).await;
    }

    /// Waits for the handler and extends the lease meanwhile. Returns `None` if the lease is lost.
    async fn watch(
        &self,
        token: LeaseToken,
        task: &mut JoinHandle<Result<Disposition, HandlerError>>,
        stop_now: &CancellationToken,
    ) -> Option<LetterSettle> {
        let timeout = tokio::time::sleep(self.timeout.to_std());
        tokio::pin!(timeout);
        let mut extensions = tokio::time::interval(self.lease.to_std() / 3);
        extensions.tick().await;
        loop {
            tokio::select! {
                done = &mut *task => return Some(match done {
                    Ok(Ok(disposition)) => self.settlement(disposition).await,
                    Ok(Err(error)) => failed(&error.to_string()),
                    Err(error) if error.is_panic() => failed("the handler panicked"),
                    Err(_) => LetterSettle::Release,
                }),
                () = &mut timeout => {
                    task.abort();
                    return Some(failed(&format!("the handler took longer than {}", self.timeout)));
                }
                () = stop_now.cancelled() => {
                    task.abort();
                    return Some(LetterSettle::Release);
                }
                _ = extensions.tick() => {
                    if !self.extend(token).await {
                        return None;
                    }
                }
            }
        }
    }

    /// Extends the lease. Returns `false` if the lease is lost.
    async fn extend(&self, token: LeaseToken) -> bool {
        let what = LetterSettle::Extend { by: Some(self.lease) };
        let settled = with_timeout(self.store.settle_letters(vec![LetterSettlement { token, what }])).await;
        match settled.map(|mut results| results.pop()) {
            Ok(Some(Ok(_)) | None) => true,
            Ok(Some(Err(refusal))) => {
                tracing::warn!(message = %token.id, %refusal, "the lease on a dead letter is lost");
                false
            }
            // The lease may still be valid; the next extension will tell.
            Err(error) => {
                tracing::warn!(message = %token.id, %error, "the lease on a dead letter could not be extended");
                true
            }
        }
    }

    async fn settlement(&self, disposition: Disposition) -> LetterSettle {
        let (act, reason) = match disposition {
            Disposition::Leave => return LetterSettle::Snooze { span: self.leave_for },
            Disposition::Resolve { note } => (Act::Resolve, Some(note)),
            Disposition::Replay => (Act::retry(), None),
            Disposition::ReplayAfter(span) => match self.now().await {
                Ok(now) => (Act::retry_at(now.plus(span)), None),
                Err(error) => return failed(&error.to_string()),
            },
            Disposition::Discard { reason } => (Act::Abandon, Some(reason)),
            Disposition::Review { reason } => (Act::Review, Some(reason)),
            Disposition::Quarantine { span, reason } => match self.now().await {
                Ok(now) => (Act::Quarantine { until: now.plus(span) }, Some(reason)),
                Err(error) => return failed(&error.to_string()),
            },
        };
        let reason = reason.map(|text| truncated_note(&text));
        LetterSettle::Do { act, actor: Actor { reason, ..self.actor.clone() } }
    }

    async fn now(&self) -> Result<Time, CallError> {
        Ok(with_timeout(self.store.info()).await?.now)
    }

    /// Settles a letter. If that fails, the letter can be leased again when its lease expires.
    async fn settle(&self, token: LeaseToken, what: LetterSettle) {
        let id = token.id;
        if let LetterSettle::Fail { note } = &what {
            tracing::warn!(message = %id, dlq = %self.dlq, note, "the handler of a dead letter failed");
        }
        let mut delay = GrowingDelay::new(Duration::from_millis(200), Duration::from_secs(5));
        for _ in 0..SETTLE_ATTEMPTS {
            let batch = vec![LetterSettlement { token, what: what.clone() }];
            match with_timeout(self.store.settle_letters(batch)).await.map(|mut results| results.pop()) {
                Ok(Some(Ok(state))) => {
                    let status = state.status.map(tracing::field::display);
                    tracing::info!(%id, dlq = %self.dlq, status, "a consumer settled a dead letter");
                    return;
                }
                Ok(None) => return,
                Ok(Some(Err(refusal @ (Refusal::StaleToken { .. } | Refusal::LeaseExpired { .. })))) => {
                    tracing::warn!(message = %id, %refusal, "the lease on a dead letter is lost; it was not settled");
                    return;
                }
                Ok(Some(Err(refusal))) => return self.refused(token, &refusal).await,
                Err(error) => tracing::warn!(message = %id, %error, "a dead letter could not be settled yet"),
            }
            tokio::time::sleep(delay.wait()).await;
        }
    }

    /// The store refused what the handler decided: notes that as a failure of the handler.
    async fn refused(&self, token: LeaseToken, refusal: &Refusal) {
        tracing::warn!(message = %token.id, %refusal, "the store refused the disposition of a dead letter");
        let what = failed(&refusal.to_string());
        if let Err(error) =
            with_timeout(self.store.settle_letters(vec![LetterSettlement { token, what }])).await
        {
            tracing::warn!(message = %token.id, %error, "a dead letter could not be settled");
        }
    }
}

fn failed(note: &str) -> LetterSettle {
    LetterSettle::Fail { note: truncated_note(note) }
}

/// Cuts a note at the maximum length.
fn truncated_note(text: &str) -> String {
    let mut end = text.len().min(limits::NOTE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}
