//! The dead-letter consumer: a loop that leases the letters of a drawer, asks a handler what is to become of
//! each, and does that. Its own failures never make a letter worse: they are noted on it and it rests for an
//! hour. It decides nothing itself and never removes a letter.

use crate::handler::HandlerError;
use crate::pace::{Pace, ask, is_final};
use crate::runnable::{Heartbeat, Runnable};
use async_trait::async_trait;
use redrive_core::dead_letter::{Act, Actor, CONSUMER_LEASE, DeadLetter, LetterDelivery};
use redrive_core::error::{Error, Refusal};
use redrive_core::ids::{LeaseToken, QueueName};
use redrive_core::limits;
use redrive_core::metrics::{Timer, process};
use redrive_core::store::{LetterLeaseRequest, LetterSettle, LetterSettlement, Store};
use redrive_core::time::{Span, Time};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What is to become of a dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Closed as dealt with; the note says how.
    Resolve {
        /// For the letter and the audit trail.
        note: String,
    },
    /// Back to work at once, as a new generation of the same message: its reply-to, id and history stay.
    Replay,
    /// The same, not before this long from now.
    ReplayAfter(Span),
    /// Closed as given up. It is kept until retention.
    Discard {
        /// For the letter and the audit trail.
        reason: String,
    },
    /// A person must look; no consumer is given it any more.
    Review {
        /// For the letter and the audit trail.
        reason: String,
    },
    /// Set aside for so long; then it goes where its queue says.
    Quarantine {
        /// For how long.
        span: Span,
        /// For the letter and the audit trail.
        reason: String,
    },
    /// Stays as it is, for others. No consumer is given it for [`DeadLetterConsumer`]'s `leave_for`.
    Leave,
}

/// What a letter handler may return: a [`Disposition`], or a `Result` with one.
pub trait IntoDisposition {
    /// The disposition, or what went wrong.
    ///
    /// # Errors
    /// Whatever the handler says; noted on the letter.
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

/// User code run per dead letter. Async functions of [`DeadLetter`] are letter handlers.
#[async_trait]
pub trait LetterHandler: Send + Sync {
    /// Says what is to become of one letter.
    ///
    /// # Errors
    /// Noted on the letter, which then rests for an hour.
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

/// A loop over the dead letters of a drawer.
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
///         "Timeout" if letter.file.redrives < 3 => Disposition::Replay,
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
    desk: Arc<Desk>,
}

/// What every letter in hand needs to know.
struct Desk {
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
    hurry: CancellationToken,
}

impl std::fmt::Debug for DeadLetterConsumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeadLetterConsumer").field("dlq", &self.desk.dlq).finish_non_exhaustive()
    }
}

/// A [`DeadLetterConsumer`] in the making.
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
    /// A consumer on this store, with a lease of 300 s, one letter at a time, ten minutes for each.
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

    /// Ends the handlers that run and gives their letters back, without waiting for the grace time. For after the
    /// consumer was told to stop.
    pub fn stop_now(&self) {
        self.desk.hurry.cancel();
    }
}

impl DeadLetterConsumerBuilder {
    /// The drawer.
    #[must_use]
    pub fn dlq(mut self, drawer: impl AsRef<str>) -> Self {
        let drawer = drawer.as_ref().parse::<QueueName>();
        self.dlq = Some(drawer.map_err(|why| Refusal::invalid("dlq", why.to_string())));
        self
    }

    /// What says what is to become of each letter.
    #[must_use]
    pub fn handler(mut self, handler: impl LetterHandler + 'static) -> Self {
        self.handler = Some(Arc::new(handler));
        self
    }

    /// Who it is, in notes and in the audit trail.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Letters in hand at once.
    #[must_use]
    pub fn concurrency(mut self, letters: usize) -> Self {
        self.concurrency = letters;
        self
    }

    /// How long a lease lasts without a sign of life; it is extended every third of that.
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

    /// How long no consumer is given a letter that was left.
    #[must_use]
    pub fn leave_for(mut self, span: Span) -> Self {
        self.leave_for = span;
        self
    }

    /// How long handlers have to end when the consumer is told to stop; then their letters are given back.
    #[must_use]
    pub fn grace(mut self, span: Span) -> Self {
        self.grace = span;
        self
    }

    /// How long it waits at most before it looks again into an empty drawer.
    #[must_use]
    pub fn idle(mut self, span: Span) -> Self {
        self.idle = span;
        self
    }

    /// Ends when there is no letter to lease and none in hand, instead of waiting for more.
    #[must_use]
    pub fn until_empty(mut self) -> Self {
        self.until_empty = true;
        self
    }

    /// Ends after this many letters.
    #[must_use]
    pub fn at_most(mut self, letters: usize) -> Self {
        self.at_most = Some(letters);
        self
    }

    /// The consumer.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming what is missing or cannot be meant.
    pub fn build(self) -> Result<DeadLetterConsumer, Refusal> {
        let dlq = self.dlq.ok_or_else(|| Refusal::invalid("dlq", "name the drawer to look after"))??;
        let handler = self.handler;
        let handler = handler.ok_or_else(|| Refusal::invalid("handler", "say what to do with letters"))?;
        let request = LetterLeaseRequest {
            dlq: dlq.clone(),
            max: self.concurrency,
            lease_for: Some(self.lease),
            worker: self.name.clone(),
        };
        request.check()?;
        redrive_core::store::check_snooze(self.leave_for)?;
        let desk = Desk {
            store: self.store,
            dlq,
            handler,
            actor: Actor::new(self.name, "library"),
            concurrency: self.concurrency,
            lease: self.lease,
            timeout: self.timeout,
            leave_for: self.leave_for,
            grace: self.grace.to_std(),
            idle: self.idle.to_std().max(SHORTEST),
            until_empty: self.until_empty,
            at_most: self.at_most,
            hurry: CancellationToken::new(),
        };
        Ok(DeadLetterConsumer { desk: Arc::new(desk) })
    }
}

/// The first wait before an empty drawer is looked into again.
const SHORTEST: Duration = Duration::from_millis(50);
/// A loop that waits for its handlers beats this often.
const BEAT: Duration = Duration::from_secs(10);
/// How long what was decided is tried to be written when the store does not answer.
const SETTLE_TRIES: u32 = 5;

#[async_trait]
impl Runnable for DeadLetterConsumer {
    fn name(&self) -> String {
        format!("{} ({})", self.desk.actor.name, self.desk.dlq)
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), Error> {
        let mut hands = JoinSet::new();
        let hurry = self.desk.hurry.child_token();
        let mut left = self.desk.at_most.unwrap_or(usize::MAX);
        let mut idle = Pace::new(SHORTEST, self.desk.idle);
        let mut down = Pace::new(Duration::from_millis(200), Duration::from_secs(30));
        let mut ended = Ok(());
        while !stop.is_cancelled() {
            heartbeat.beat();
            let wait = match self.take(&mut hands, &hurry, left).await {
                Ok(0) if hands.is_empty() && (self.desk.until_empty || left == 0) => break,
                Ok(0) if hands.len() >= self.desk.concurrency.min(left.max(1)) => BEAT,
                Ok(0) => idle.wait(),
                Ok(taken) => {
                    left = left.saturating_sub(taken);
                    idle.reset();
                    down.reset();
                    continue;
                }
                Err(error) if is_final(&error) => {
                    ended = Err(error);
                    break;
                }
                Err(error) => {
                    tracing::warn!(dlq = %self.desk.dlq, %error, "dead letters could not be leased; trying again");
                    down.wait()
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                Some(_) = hands.join_next() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.drain(hands, &hurry, &heartbeat).await;
        ended
    }
}

impl DeadLetterConsumer {
    /// Leases letters for the free places, within what is left of the limit. Returns how many it leased.
    async fn take(
        &self,
        hands: &mut JoinSet<()>,
        hurry: &CancellationToken,
        left: usize,
    ) -> Result<usize, Error> {
        while hands.try_join_next().is_some() {}
        let free = self.desk.concurrency.saturating_sub(hands.len()).min(left);
        if free == 0 {
            return Ok(0);
        }
        let request = LetterLeaseRequest {
            dlq: self.desk.dlq.clone(),
            max: free,
            lease_for: Some(self.desk.lease),
            worker: self.desk.actor.name.clone(),
        };
        let letters = ask(self.desk.store.lease_letters(request)).await?;
        let taken = letters.len();
        for letter in letters {
            let (desk, hurry) = (Arc::clone(&self.desk), hurry.clone());
            hands.spawn(async move { desk.handle(letter, hurry).await });
        }
        Ok(taken)
    }

    /// Lets the handlers end within the grace time, then has the rest given back.
    async fn drain(&self, mut hands: JoinSet<()>, hurry: &CancellationToken, heartbeat: &Heartbeat) {
        let end = tokio::time::sleep(self.desk.grace);
        tokio::pin!(end);
        while !hands.is_empty() {
            heartbeat.beat();
            tokio::select! {
                () = &mut end, if !hurry.is_cancelled() => hurry.cancel(),
                _ = hands.join_next() => {}
                () = tokio::time::sleep(BEAT) => {}
            }
        }
    }
}

impl Desk {
    /// One letter from the lease to the settlement.
    async fn handle(self: Arc<Self>, delivery: LetterDelivery, hurry: CancellationToken) {
        let token = delivery.token;
        let (handler, began) = (Arc::clone(&self.handler), Instant::now());
        let mut task = tokio::spawn(async move { handler.handle(delivery.letter).await });
        let what = match self.watch(token, &mut task, &hurry).await {
            Some(what) => what,
            None => {
                task.abort();
                return;
            }
        };
        process().took(Timer::LetterHandler, began.elapsed());
        self.settle(token, what).await;
    }

    /// Waits for the handler and keeps the lease meanwhile; nothing when the lease is lost.
    async fn watch(
        &self,
        token: LeaseToken,
        task: &mut JoinHandle<Result<Disposition, HandlerError>>,
        hurry: &CancellationToken,
    ) -> Option<LetterSettle> {
        let late = tokio::time::sleep(self.timeout.to_std());
        tokio::pin!(late);
        let mut beats = tokio::time::interval(self.lease.to_std() / 3);
        beats.tick().await;
        loop {
            tokio::select! {
                done = &mut *task => return Some(match done {
                    Ok(Ok(disposition)) => self.settlement(disposition).await,
                    Ok(Err(error)) => failed(&error.to_string()),
                    Err(died) if died.is_panic() => failed("the handler panicked"),
                    Err(_) => LetterSettle::Release,
                }),
                () = &mut late => {
                    task.abort();
                    return Some(failed(&format!("the handler took longer than {}", self.timeout)));
                }
                () = hurry.cancelled() => {
                    task.abort();
                    return Some(LetterSettle::Release);
                }
                _ = beats.tick() => {
                    if !self.extend(token).await {
                        return None;
                    }
                }
            }
        }
    }

    /// Asks for more time; says whether the letter is still ours.
    async fn extend(&self, token: LeaseToken) -> bool {
        let what = LetterSettle::Extend { by: Some(self.lease) };
        let said = ask(self.store.settle_letters(vec![LetterSettlement { token, what }])).await;
        match said.map(|mut each| each.pop()) {
            Ok(Some(Ok(_)) | None) => true,
            Ok(Some(Err(refusal))) => {
                tracing::warn!(message = %token.id, %refusal, "the lease on a dead letter is lost");
                false
            }
            // Nobody knows: the lease may still be ours, and the next beat asks again.
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
        let reason = reason.map(|text| fitting(&text));
        LetterSettle::Do { act, actor: Actor { reason, ..self.actor.clone() } }
    }

    async fn now(&self) -> Result<Time, Error> {
        Ok(ask(self.store.info()).await?.now)
    }

    /// Writes what was decided. A letter that cannot be settled comes back when its lease is over.
    async fn settle(&self, token: LeaseToken, what: LetterSettle) {
        let id = token.id;
        if let LetterSettle::Fail { note } = &what {
            tracing::warn!(message = %id, dlq = %self.dlq, note, "the handler of a dead letter failed; it rests for an hour");
        }
        let mut pace = Pace::new(Duration::from_millis(200), Duration::from_secs(5));
        for _ in 0..SETTLE_TRIES {
            let batch = vec![LetterSettlement { token, what: what.clone() }];
            match ask(self.store.settle_letters(batch)).await.map(|mut each| each.pop()) {
                Ok(Some(Ok(state))) => {
                    let status = state.status.map(tracing::field::display);
                    tracing::info!(%id, dlq = %self.dlq, status, "a consumer settled a dead letter");
                    return;
                }
                Ok(None) => return,
                Ok(Some(Err(refusal @ (Refusal::StaleToken { .. } | Refusal::LeaseExpired { .. })))) => {
                    tracing::warn!(message = %id, %refusal, "somebody else has the dead letter now");
                    return;
                }
                Ok(Some(Err(refusal))) => return self.refused(token, &refusal).await,
                Err(error) => tracing::warn!(message = %id, %error, "a dead letter could not be settled yet"),
            }
            tokio::time::sleep(pace.wait()).await;
        }
    }

    /// What the handler wants cannot be done: that is its failure.
    async fn refused(&self, token: LeaseToken, refusal: &Refusal) {
        tracing::warn!(message = %token.id, %refusal, "what a handler wants with a dead letter cannot be done");
        let what = failed(&refusal.to_string());
        if let Err(error) = ask(self.store.settle_letters(vec![LetterSettlement { token, what }])).await {
            tracing::warn!(message = %token.id, %error, "a dead letter could not be settled");
        }
    }
}

fn failed(note: &str) -> LetterSettle {
    LetterSettle::Fail { note: fitting(note) }
}

/// Notes have a bound; what is longer is cut.
fn fitting(text: &str) -> String {
    let mut end = text.len().min(limits::NOTE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}
