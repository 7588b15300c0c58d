//! What laws say often, said once: short names for sending, taking, failing and looking.

use super::Stage;
use crate::ids::message_id;
use crate::observe::{Seen, walk};
use redrive_core::audit::AuditEntry;
use redrive_core::backoff::{Backoff, Growth, Jitter};
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter};
use redrive_core::error::{Error, Outcome, Refusal};
use redrive_core::failure::{Analysed, ErrorInfo, Report};
use redrive_core::ids::{LeaseToken, MessageId, QueueName};
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::message::{Delivery, Envelope, Message, NewMessage, Payload};
use redrive_core::poison::PoisonPolicy;
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{PageRequest, Query};
use redrive_core::store::{Enqueued, LeaseRequest, LetterState, Queue, Settle, Settled, Settlement};
use redrive_core::time::{Clock as _, Span, Time};
use std::fmt::Debug;

/// A queue's name.
pub(super) fn q(name: &str) -> QueueName {
    name.parse().expect("a queue name")
}

/// The n-th message of a test, to this queue.
pub(super) fn new(n: u64, queue: &str) -> NewMessage {
    let payload = Payload { bytes: format!("payload {n}").into_bytes(), content_type: "text/plain".into() };
    NewMessage::new(message_id(n), q(queue), payload)
}

/// The same with as much payload as a message may have.
pub(super) fn large(n: u64, queue: &str) -> NewMessage {
    let bytes = vec![b'x'; limits::PAYLOAD_BYTES_MAX];
    NewMessage { payload: Payload { bytes, content_type: String::new() }, ..new(n, queue) }
}

/// Seconds, the unit of most laws.
pub(super) fn secs(n: u64) -> Span {
    Span::from_secs(n)
}

/// One millisecond: the difference between early and due.
pub(super) const MS: Span = Span::from_millis(1);

/// How long a retry waits under [`rules`].
pub(super) const BACKOFF: Span = Span::from_secs(10);

/// Rules without chance: this many executions, ten seconds between them.
pub(super) fn rules(max_attempts: u32) -> QueuePolicy {
    QueuePolicy {
        max_attempts,
        backoff: Backoff {
            initial: BACKOFF,
            growth: Growth::Fixed,
            jitter: Jitter::None,
            ..Backoff::default()
        },
        ..QueuePolicy::default()
    }
}

/// The same for a queue that does not look for poison.
pub(super) fn unwatched(max_attempts: u32) -> QueuePolicy {
    let poison = PoisonPolicy { detect: false, ..PoisonPolicy::default() };
    QueuePolicy { poison, ..rules(max_attempts) }
}

/// A failure of this error type; equal types are equal causes.
pub(super) fn failure(error_type: &str) -> Analysed {
    let error = ErrorInfo {
        error_type: error_type.into(),
        message: "the other side said no".into(),
        ..ErrorInfo::default()
    };
    Report { error, ..Report::default() }.analyse()
}

/// What a worker says when it failed like that.
pub(super) fn failed(error_type: &str) -> Settle {
    Settle::Fail { failure: Box::new(failure(error_type)), said: None }
}

/// What a worker says when trying again is useless.
pub(super) fn hopeless(error_type: &str) -> Settle {
    let mut failure = failure(error_type);
    failure.report.permanent = true;
    Settle::Fail { failure: Box::new(failure), said: None }
}

/// Who acts in laws.
pub(super) fn operator() -> Actor {
    Actor::new("ada", "law")
}

/// The refusal of a whole call.
pub(super) fn refused<T: Debug>(outcome: Outcome<T>) -> Refusal {
    match outcome {
        Err(Error::Refused(refusal)) => refusal,
        other => panic!("a refusal was due, not {other:?}"),
    }
}

/// The field that a refusal names.
pub(super) fn field(refusal: Refusal) -> String {
    let Refusal::Invalid { field, .. } = refusal else { panic!("a field should be named, not {refusal:?}") };
    field
}

/// The message as everybody must see it right after its enqueue, written out by hand.
pub(super) fn fresh(new: &NewMessage, policy: &QueuePolicy, seq: u64, now: Time) -> Message {
    let ready_at = now.plus(new.delay.unwrap_or(Span::ZERO));
    let sent = new.clone();
    Message {
        envelope: Envelope {
            id: sent.id,
            seq,
            queue: sent.queue,
            origin: None,
            kind: sent.kind,
            priority: sent.priority.unwrap_or(policy.priority),
            payload: sent.payload,
            headers: sent.headers,
            tags: sent.tags,
            key: sent.key,
            ordering_key: sent.ordering_key,
            reply_to: sent.reply_to,
            trace: sent.trace,
            context: sent.context,
            max_attempts: Some(sent.max_attempts.unwrap_or(policy.max_attempts)),
            delay: sent.delay,
            ttl: sent.ttl.or(policy.ttl),
            deadline: sent.deadline,
            enqueued_by: sent.enqueued_by,
            enqueued_at: now,
        },
        state: if ready_at > now { State::Scheduled } else { State::Ready },
        attempts: 0,
        deliveries: 0,
        generation: 1,
        failed: 0,
        ready_at,
        first_received_at: None,
        updated_at: now,
        leased_by: None,
        lease_expires_at: None,
        progress: None,
        poison: None,
        masked: false,
        failures: Vec::new(),
    }
}

impl Stage<'_> {
    /// The store's time.
    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Enqueues one message.
    pub(super) async fn try_send(&self, new: NewMessage) -> Result<Enqueued, Refusal> {
        let mut each = self.store.enqueue(vec![new]).await.expect("enqueue answers");
        assert_eq!(each.len(), 1, "one result per entry");
        each.remove(0)
    }

    /// Enqueues one message that must be accepted as new.
    pub(super) async fn send(&self, new: NewMessage) -> MessageId {
        let id = new.id;
        let sent = self.try_send(new).await.expect("it is accepted");
        assert!(!sent.duplicate && sent.id == id, "{sent:?}");
        id
    }

    /// Sets a queue's rules.
    pub(super) async fn set(&self, queue: &str, policy: QueuePolicy) -> Queue {
        self.store.configure(q(queue), policy, operator()).await.expect("the rules are accepted")
    }

    /// Leases up to `max` from one queue.
    pub(super) async fn take(&self, queue: &str, max: usize) -> Vec<Delivery> {
        self.store.lease(self.wish(&[queue], max)).await.expect("lease answers")
    }

    /// Leases one message that must be there.
    pub(super) async fn take_one(&self, queue: &str) -> Delivery {
        let mut taken = self.take(queue, 1).await;
        assert_eq!(taken.len(), 1, "one message of {queue} is due");
        taken.remove(0)
    }

    /// Leases as another worker.
    pub(super) async fn take_as(&self, worker: &str, queue: &str, max: usize) -> Vec<Delivery> {
        let wish = LeaseRequest { worker: worker.into(), ..self.wish(&[queue], max) };
        self.store.lease(wish).await.expect("lease answers")
    }

    /// A lease request of worker `w`.
    pub(super) fn wish(&self, queues: &[&str], max: usize) -> LeaseRequest {
        let queues = queues.iter().map(|name| q(name)).collect();
        LeaseRequest { queues, max, lease_for: None, worker: "w".into() }
    }

    /// Settles one delivery.
    pub(super) async fn settle(&self, token: LeaseToken, what: Settle) -> Result<Settled, Refusal> {
        let batch = vec![Settlement { token, what }];
        let mut each = self.store.settle(batch).await.expect("settle answers");
        assert_eq!(each.len(), 1, "one result per entry");
        each.remove(0)
    }

    /// Acts on one letter.
    pub(super) async fn act(&self, id: MessageId, act: Act) -> Result<LetterState, Refusal> {
        self.act_as(ActRequest { id, act, actor: operator(), expected_version: None }).await
    }

    /// Acts on one letter as asked.
    pub(super) async fn act_as(&self, request: ActRequest) -> Result<LetterState, Refusal> {
        let mut each = self.store.act(vec![request]).await.expect("act answers");
        assert_eq!(each.len(), 1, "one result per entry");
        each.remove(0)
    }

    /// Sends a message and lets it die of this error at once.
    pub(super) async fn dead(&self, new: NewMessage, error_type: &str) -> DeadLetter {
        let queue = new.queue.to_string();
        let id = self.send(new).await;
        self.die(&queue, id, error_type).await
    }

    /// Lets the message that is next in its queue die of this error.
    pub(super) async fn die(&self, queue: &str, id: MessageId, error_type: &str) -> DeadLetter {
        let delivery = self.take_one(queue).await;
        assert_eq!(delivery.message.envelope.id, id, "nothing else is due");
        self.settle(delivery.token, hopeless(error_type)).await.expect("it holds the lease");
        self.letter(id).await
    }

    /// One letter that must be there.
    pub(super) async fn letter(&self, id: MessageId) -> DeadLetter {
        self.store.letter(id).await.expect("the letter is there")
    }

    /// One live message that must be there.
    pub(super) async fn message(&self, id: MessageId) -> Message {
        self.store.message(id).await.expect("the message is live")
    }

    /// One queue that must be there.
    pub(super) async fn queue(&self, name: &str) -> Queue {
        self.store.queue(q(name)).await.expect("the queue is there")
    }

    /// The counters of a queue.
    pub(super) async fn counts(&self, name: &str) -> Counts {
        self.queue(name).await.counts
    }

    /// Every letter that matches, latest death first.
    pub(super) async fn letters(&self, filter: &str) -> Vec<DeadLetter> {
        let filter = redrive_core::filter::Filter::parse(filter).expect("a filter");
        let query = |page: PageRequest| Query { filter: filter.clone(), page };
        walk(|page| self.store.letters(query(page))).await.expect("letters answers")
    }

    /// The audit trail, oldest first, without seals and without what tells a changed file from the one before.
    pub(super) async fn trail(&self) -> Vec<AuditEntry> {
        let entries = self.entries().await.into_iter();
        entries.map(|entry| AuditEntry { before: None, after: None, ..entry }).collect()
    }

    /// The audit trail, oldest first, without seals.
    pub(super) async fn entries(&self) -> Vec<AuditEntry> {
        let rows = walk(|page| self.store.audit(page)).await.expect("audit answers");
        rows.into_iter().rev().map(|row| row.entry).collect()
    }

    /// Everything the store shows.
    pub(super) async fn seen(&self) -> Seen {
        Seen::of(self.store).await.expect("the store can be read")
    }
}
