//! Replies for senders who live in another store. A reply is written in the same commit as the outcome, into a
//! queue of the work's own store; from there this carries it on. It is leased, enqueued there under the same
//! id, then acknowledged here: a crash in between means only that it is enqueued again, which is harmless.

use crate::pace::{Pace, ask, is_final, pause};
use crate::runnable::{Heartbeat, Runnable};
use async_trait::async_trait;
use redrive_core::error::{Error, Refusal};
use redrive_core::failure::{ErrorInfo, Report};
use redrive_core::ids::QueueName;
use redrive_core::message::{Delivery, Envelope, NewMessage};
use redrive_core::policy::Override;
use redrive_core::store::{LeaseRequest, Settle, Settlement, Store};
use redrive_core::time::Span;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Where the replies of a queue go.
#[derive(Clone)]
pub struct ReplyTarget {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The queue in it.
    pub queue: QueueName,
}

impl std::fmt::Debug for ReplyTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplyTarget").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// Finds the target of a `reply_to`. Closures of the name are resolvers.
pub trait ReplyResolver: Send + Sync {
    /// Where replies to this name go; nothing when the name is not known (yet).
    fn resolve(&self, reply_to: &QueueName) -> Option<ReplyTarget>;
}

impl<F: Fn(&QueueName) -> Option<ReplyTarget> + Send + Sync> ReplyResolver for F {
    fn resolve(&self, reply_to: &QueueName) -> Option<ReplyTarget> {
        self(reply_to)
    }
}

/// Carries the replies of some queues to where their resolver says.
///
/// ```
/// use redrive::{ReplyForwarder, ReplyTarget};
///
/// let (work, theirs) = (redrive::memory(), redrive::memory());
/// let forwarder = ReplyForwarder::new(work, ["answers"], move |name: &redrive::core::ids::QueueName| {
///     Some(ReplyTarget { store: theirs.clone(), queue: name.clone() })
/// })
/// .unwrap(); // run it in a `LoopGroup`
/// # let _: ReplyForwarder = forwarder;
/// ```
#[derive(Clone)]
pub struct ReplyForwarder {
    work: Arc<dyn Store>,
    queues: Vec<QueueName>,
    resolver: Arc<dyn ReplyResolver>,
    trouble: Arc<Mutex<Option<String>>>,
}

impl std::fmt::Debug for ReplyForwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplyForwarder").field("queues", &self.queues).finish_non_exhaustive()
    }
}

/// Replies carried at once.
const BATCH: usize = 100;
/// How long one waits for replies before it beats.
const WAIT: Span = Span::from_secs(20);
/// When a reply that could not be delivered is tried again. After its queue's `retry_for` it is a dead letter.
const AGAIN: Span = Span::from_secs(30);

impl ReplyForwarder {
    /// Carries the replies of these queues of the work's store.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for a name that is not one, or when there is none.
    pub fn new<Q: AsRef<str>>(
        work: Arc<dyn Store>,
        queues: impl IntoIterator<Item = Q>,
        resolver: impl ReplyResolver + 'static,
    ) -> Result<Self, Refusal> {
        let name = |text: Q| {
            let name = text.as_ref().parse::<QueueName>();
            name.map_err(|why| Refusal::invalid("queues", why.to_string()))
        };
        let queues: Vec<QueueName> = queues.into_iter().map(name).collect::<Result<_, _>>()?;
        let forwarder = Self { work, queues, resolver: Arc::new(resolver), trouble: Arc::default() };
        forwarder.request().check()?;
        Ok(forwarder)
    }

    fn request(&self) -> LeaseRequest {
        let worker = "reply forwarder".into();
        LeaseRequest { queues: self.queues.clone(), max: BATCH, lease_for: None, worker }
    }

    /// Carries what is there, once; says how many.
    ///
    /// # Errors
    /// The error of the work's store. One of the others only delays its own replies.
    pub async fn pass(&self) -> Result<u64, Error> {
        let deliveries = ask(self.work.lease(self.request())).await?;
        let mut settlements = Vec::with_capacity(deliveries.len());
        let mut trouble = None;
        for delivery in &deliveries {
            let what = match self.forward(delivery).await {
                Ok(()) => Settle::Ack,
                Err(why) => {
                    let id = delivery.message.envelope.id;
                    tracing::warn!(message = %id, why, "a reply could not be delivered yet");
                    trouble = Some(format!("replies wait to be delivered: {why}"));
                    undelivered(why)
                }
            };
            settlements.push(Settlement { token: delivery.token, what });
        }
        let carried = settlements.iter().filter(|one| one.what == Settle::Ack).count() as u64;
        if !settlements.is_empty() {
            ask(self.work.settle(settlements)).await?;
            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        }
        Ok(carried)
    }

    async fn forward(&self, delivery: &Delivery) -> Result<(), String> {
        let envelope = &delivery.message.envelope;
        let target = self.resolver.resolve(&envelope.queue);
        let target = target.ok_or_else(|| format!("nobody knows where replies to {} go", envelope.queue))?;
        let reply = copy(envelope, target.queue);
        match ask(target.store.enqueue(vec![reply])).await {
            Ok(mut each) => each.pop().map_or(Ok(()), |one| one.map(|_| ()).map_err(|e| e.to_string())),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn undelivered(why: String) -> Settle {
    let error = ErrorInfo { error_type: "ReplyNotDelivered".into(), message: why, ..ErrorInfo::default() };
    let failure = Box::new(Report { error, ..Report::default() }.analyse());
    Settle::Fail { failure, said: Some(Override::RetryAfter(AGAIN)) }
}

/// The same message for another store; under the same id, so that twice is once.
fn copy(envelope: &Envelope, queue: QueueName) -> NewMessage {
    NewMessage {
        kind: envelope.kind.clone(),
        priority: Some(envelope.priority),
        headers: envelope.headers.clone(),
        tags: envelope.tags.clone(),
        key: envelope.key.clone(),
        ordering_key: envelope.ordering_key.clone(),
        reply_to: envelope.reply_to.clone(),
        trace: envelope.trace.clone(),
        context: envelope.context.clone(),
        enqueued_by: envelope.enqueued_by.clone(),
        ..NewMessage::new(envelope.id, queue, envelope.payload.clone())
    }
}

#[async_trait]
impl Runnable for ReplyForwarder {
    fn name(&self) -> String {
        "reply forwarder".into()
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), Error> {
        let mut down = Pace::new(Duration::from_millis(500), Duration::from_secs(30));
        while !stop.is_cancelled() {
            heartbeat.beat();
            let wait = match self.turn(&stop).await {
                Ok(()) => {
                    down.reset();
                    continue;
                }
                // The queue is made by its first reply.
                Err(Error::Refused(Refusal::NoSuchQueue { .. })) => Duration::from_secs(1),
                Err(error) if is_final(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "replies could not be carried; trying again");
                    down.wait()
                }
            };
            pause(&stop, wait).await;
        }
        Ok(())
    }

    fn degraded(&self) -> Vec<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl ReplyForwarder {
    async fn turn(&self, stop: &CancellationToken) -> Result<(), Error> {
        if self.pass().await? == 0 {
            tokio::select! {
                () = stop.cancelled() => {}
                woken = ask(self.work.wait(self.queues.clone(), WAIT)) => { woken?; }
            }
        }
        Ok(())
    }
}
