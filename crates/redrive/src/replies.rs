//! Forwards replies to senders that use another store. A reply is written into a queue of the work store, in the same
//! commit as the outcome. The forwarder leases it, enqueues it in the other store under the same id, then acknowledges
//! it. After a crash in between it is enqueued again, which is harmless because of the id.

use crate::runnable::{Heartbeat, Runnable};
use crate::waiting::{GrowingDelay, is_fatal, pause, with_timeout};
use async_trait::async_trait;
use redrive_core::error::{CallError, Refusal};
use redrive_core::failure::{ErrorInfo, FailureReport};
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
    /// The store of the sender.
    pub store: Arc<dyn Store>,
    /// The queue in that store.
    pub queue: QueueName,
}

impl std::fmt::Debug for ReplyTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplyTarget").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// Finds the target of a `reply_to`. Closures of the queue name are resolvers.
pub trait ReplyResolver: Send + Sync {
    /// Where replies to this queue go. `None` if the name is not known yet.
    fn resolve(&self, reply_to: &QueueName) -> Option<ReplyTarget>;
}

impl<F: Fn(&QueueName) -> Option<ReplyTarget> + Send + Sync> ReplyResolver for F {
    fn resolve(&self, reply_to: &QueueName) -> Option<ReplyTarget> {
        self(reply_to)
    }
}

/// Forwards the replies in some queues to the targets that a resolver returns.
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
    problem: Arc<Mutex<Option<String>>>,
}

impl std::fmt::Debug for ReplyForwarder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplyForwarder").field("queues", &self.queues).finish_non_exhaustive()
    }
}

/// Replies forwarded in one pass.
const BATCH: usize = 100;
/// How long to wait for replies before the next heartbeat.
const WAIT: Span = Span::from_secs(20);
/// When to retry a reply that could not be delivered. After its queue's `retry_for` it becomes a dead letter.
const RETRY_AFTER: Span = Span::from_secs(30);

impl ReplyForwarder {
    /// Creates a forwarder for the replies in these queues of the work store.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] if a queue name is invalid or there is none.
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
        let forwarder = Self { work, queues, resolver: Arc::new(resolver), problem: Arc::default() };
        forwarder.request().check()?;
        Ok(forwarder)
    }

    fn request(&self) -> LeaseRequest {
        let worker = "reply forwarder".into();
        LeaseRequest {
            queues: self.queues.clone(),
            max: BATCH,
            lease_for: None,
            worker,
            ..LeaseRequest::default()
        }
    }

    /// Forwards one batch of replies. Returns how many were delivered.
    ///
    /// # Errors
    /// Returns the error of the work store. An error of a target store only delays its own replies.
    pub async fn pass(&self) -> Result<u64, CallError> {
        let deliveries = with_timeout(self.work.lease(self.request())).await?;
        let mut settlements = Vec::with_capacity(deliveries.len());
        let mut problem = None;
        for delivery in &deliveries {
            let what = match self.forward(delivery).await {
                Ok(()) => Settle::Ack,
                Err(why) => {
                    let id = delivery.message.envelope.id;
                    tracing::warn!(message = %id, why, "a reply could not be delivered yet");
                    problem = Some(format!("replies wait to be delivered: {why}"));
                    undelivered(why)
                }
            };
            settlements.push(Settlement { token: delivery.token, what });
        }
        let forwarded = settlements.iter().filter(|one| one.what == Settle::Ack).count() as u64;
        if !settlements.is_empty() {
            with_timeout(self.work.settle(settlements)).await?;
            *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
        }
        Ok(forwarded)
    }

    async fn forward(&self, delivery: &Delivery) -> Result<(), String> {
        let envelope = &delivery.message.envelope;
        let target = self.resolver.resolve(&envelope.queue);
        let target = target
            .ok_or_else(|| format!("the resolver knows no target for replies to {}", envelope.queue))?;
        let reply = copy(envelope, target.queue);
        match with_timeout(target.store.enqueue(vec![reply])).await {
            Ok(mut each) => each.pop().map_or(Ok(()), |one| one.map(|_| ()).map_err(|e| e.to_string())),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn undelivered(why: String) -> Settle {
    let error = ErrorInfo { error_type: "ReplyNotDelivered".into(), message: why, ..ErrorInfo::default() };
    let failure = Box::new(FailureReport { error, ..FailureReport::default() }.analyse());
    Settle::Fail { failure, policy_override: Some(Override::RetryAfter(RETRY_AFTER)) }
}

/// Copies a message for another store. It keeps its id, so that enqueueing it twice has the effect of once.
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

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError> {
        let mut retry = GrowingDelay::new(Duration::from_millis(500), Duration::from_secs(30));
        while !stop.is_cancelled() {
            heartbeat.beat();
            let wait = match self.pass_or_wait(&stop).await {
                Ok(()) => {
                    retry.reset();
                    continue;
                }
                // The queue is created by its first reply.
                Err(CallError::Refused(Refusal::NoSuchQueue { .. })) => Duration::from_secs(1),
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "replies could not be forwarded; trying again");
                    retry.wait()
                }
            };
            pause(&stop, wait).await;
        }
        Ok(())
    }

    fn degraded(&self) -> Vec<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl ReplyForwarder {
    async fn pass_or_wait(&self, stop: &CancellationToken) -> Result<(), CallError> {
        if self.pass().await? == 0 {
            tokio::select! {
                () = stop.cancelled() => {}
                woken = with_timeout(self.work.wait(self.queues.clone(), WAIT)) => { woken?; }
            }
        }
        Ok(())
    }
}
