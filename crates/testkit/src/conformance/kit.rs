//! Helpers that most laws use: short functions to send, lease, settle and read.

use super::LawContext;
use crate::ids::message_id;
use crate::observe::{StoreView, read_all};
use redrive_core::audit::AuditEntry;
use redrive_core::backoff::{Backoff, Growth, Jitter};
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter};
use redrive_core::error::{CallError, Refusal, StoreResult};
use redrive_core::failure::{AnalysedFailure, ErrorInfo, FailureReport};
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

/// Parses the name of a queue.
pub(super) fn q(name: &str) -> QueueName {
    name.parse().expect("a queue name")
}

/// The n-th message of a test, for this queue.
pub(super) fn msg(n: u64, queue: &str) -> NewMessage {
    let payload = Payload { bytes: format!("payload {n}").into_bytes(), content_type: "text/plain".into() };
    NewMessage::new(message_id(n), q(queue), payload)
}

/// The n-th message of a test, with the largest payload allowed.
pub(super) fn large_msg(n: u64, queue: &str) -> NewMessage {
    let bytes = vec![b'x'; limits::PAYLOAD_BYTES_MAX];
    NewMessage { payload: Payload { bytes, content_type: String::new() }, ..msg(n, queue) }
}

/// A span of this many seconds.
pub(super) fn secs(n: u64) -> Span {
    Span::from_secs(n)
}

/// One millisecond: the difference between too early and due.
pub(super) const MS: Span = Span::from_millis(1);

/// How long a retry waits under [`max_attempts`].
pub(super) const BACKOFF: Span = Span::from_secs(10);

/// A policy without randomness: this many attempts, ten seconds apart.
pub(super) fn max_attempts(max_attempts: u32) -> QueuePolicy {
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

/// The policy of [`max_attempts`] without poison detection.
pub(super) fn no_poison_check(attempts: u32) -> QueuePolicy {
    let poison = PoisonPolicy { detect: false, ..PoisonPolicy::default() };
    QueuePolicy { poison, ..max_attempts(attempts) }
}

/// A failure of this error type. Equal types have equal causes.
pub(super) fn failure(error_type: &str) -> AnalysedFailure {
    let error = ErrorInfo {
        error_type: error_type.into(),
        message: "the other side said no".into(),
        ..ErrorInfo::default()
    };
    FailureReport { error, ..FailureReport::default() }.analyse()
}

/// A settlement that reports a failure of this error type.
pub(super) fn fail(error_type: &str) -> Settle {
    Settle::Fail { failure: Box::new(failure(error_type)), policy_override: None }
}

/// A settlement that reports a permanent failure of this error type.
pub(super) fn fail_permanently(error_type: &str) -> Settle {
    let mut failure = failure(error_type);
    failure.report.permanent = true;
    Settle::Fail { failure: Box::new(failure), policy_override: None }
}

/// The actor of most laws.
pub(super) fn operator() -> Actor {
    Actor::new("ada", "law")
}

/// The refusal of a whole call.
pub(super) fn refused<T: Debug>(outcome: StoreResult<T>) -> Refusal {
    match outcome {
        Err(CallError::Refused(refusal)) => refusal,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// The field that a refusal names.
pub(super) fn refused_field(refusal: Refusal) -> String {
    let Refusal::Invalid { field, .. } = refusal else {
        panic!("expected an invalid field, got {refusal:?}")
    };
    field
}

/// The message as it must look right after its enqueue, written out by hand.
pub(super) fn expected_message(new: &NewMessage, policy: &QueuePolicy, seq: u64, now: Time) -> Message {
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

impl LawContext<'_> {
    /// The current time of the store.
    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Enqueues one message.
    pub(super) async fn try_send(&self, new: NewMessage) -> Result<Enqueued, Refusal> {
        let mut each = self.store.enqueue(vec![new]).await.expect("enqueue succeeds");
        assert_eq!(each.len(), 1, "one result per message");
        each.remove(0)
    }

    /// Enqueues one message that must be accepted as new.
    pub(super) async fn send(&self, new: NewMessage) -> MessageId {
        let id = new.id;
        let sent = self.try_send(new).await.expect("the message is accepted");
        assert!(!sent.duplicate && sent.id == id, "{sent:?}");
        id
    }

    /// Sets the policy of a queue.
    pub(super) async fn configure(&self, queue: &str, policy: QueuePolicy) -> Queue {
        self.store.configure(q(queue), policy, operator()).await.expect("the policy is accepted")
    }

    /// Leases up to `max` messages from one queue.
    pub(super) async fn lease(&self, queue: &str, max: usize) -> Vec<Delivery> {
        self.store.lease(self.lease_request(&[queue], max)).await.expect("lease succeeds")
    }

    /// Leases one message; exactly one must be due.
    pub(super) async fn lease_one(&self, queue: &str) -> Delivery {
        let mut taken = self.lease(queue, 1).await;
        assert_eq!(taken.len(), 1, "one message of {queue} is due");
        taken.remove(0)
    }

    /// Leases messages as another worker.
    pub(super) async fn lease_as(&self, worker: &str, queue: &str, max: usize) -> Vec<Delivery> {
        let request = LeaseRequest { worker: worker.into(), ..self.lease_request(&[queue], max) };
        self.store.lease(request).await.expect("lease succeeds")
    }

    /// The lease request of worker `w`.
    pub(super) fn lease_request(&self, queues: &[&str], max: usize) -> LeaseRequest {
        let queues = queues.iter().map(|name| q(name)).collect();
        LeaseRequest { queues, max, lease_for: None, worker: "w".into(), ..LeaseRequest::default() }
    }

    /// Settles one delivery.
    pub(super) async fn settle(&self, token: LeaseToken, what: Settle) -> Result<Settled, Refusal> {
        let batch = vec![Settlement { token, what }];
        let mut each = self.store.settle(batch).await.expect("settle succeeds");
        assert_eq!(each.len(), 1, "one result per settlement");
        each.remove(0)
    }

    /// Acts on one letter.
    pub(super) async fn act(&self, id: MessageId, act: Act) -> Result<LetterState, Refusal> {
        self.act_as(ActRequest { id, act, actor: operator(), expected_version: None }).await
    }

    /// Sends one act request.
    pub(super) async fn act_as(&self, request: ActRequest) -> Result<LetterState, Refusal> {
        let mut each = self.store.act(vec![request]).await.expect("act succeeds");
        assert_eq!(each.len(), 1, "one result per request");
        each.remove(0)
    }

    /// Sends a message and lets it die of this error at once.
    pub(super) async fn dead_letter(&self, new: NewMessage, error_type: &str) -> DeadLetter {
        let queue = new.queue.to_string();
        let id = self.send(new).await;
        self.kill_next(&queue, id, error_type).await
    }

    /// Lets the next message of a queue die of this error.
    pub(super) async fn kill_next(&self, queue: &str, id: MessageId, error_type: &str) -> DeadLetter {
        let delivery = self.lease_one(queue).await;
        assert_eq!(delivery.message.envelope.id, id, "no other message is due");
        self.settle(delivery.token, fail_permanently(error_type)).await.expect("the lease is held");
        self.letter(id).await
    }

    /// Reads one letter, which must exist.
    pub(super) async fn letter(&self, id: MessageId) -> DeadLetter {
        self.store.letter(id).await.expect("the letter exists")
    }

    /// Reads one live message, which must exist.
    pub(super) async fn message(&self, id: MessageId) -> Message {
        self.store.message(id).await.expect("the message is live")
    }

    /// Reads one queue, which must exist.
    pub(super) async fn queue(&self, name: &str) -> Queue {
        self.store.queue(q(name)).await.expect("the queue exists")
    }

    /// The counters of a queue.
    pub(super) async fn counts(&self, name: &str) -> Counts {
        self.queue(name).await.counts
    }

    /// Every letter that matches a filter, latest death first.
    pub(super) async fn letters(&self, filter: &str) -> Vec<DeadLetter> {
        let filter = redrive_core::filter::Filter::parse(filter).expect("a filter");
        let query = |page: PageRequest| Query { filter: filter.clone(), page };
        read_all(|page| self.store.letters(query(page))).await.expect("letters succeeds")
    }

    /// The audit trail, oldest first, without seals and without the fingerprints of changed records.
    pub(super) async fn audit_trail(&self) -> Vec<AuditEntry> {
        let entries = self.audit_entries().await.into_iter();
        entries.map(|entry| AuditEntry { before: None, after: None, ..entry }).collect()
    }

    /// The audit trail, oldest first, without seals.
    pub(super) async fn audit_entries(&self) -> Vec<AuditEntry> {
        let rows = read_all(|page| self.store.audit(page)).await.expect("audit succeeds");
        rows.into_iter().rev().map(|row| row.entry).collect()
    }

    /// Everything the store shows.
    pub(super) async fn view(&self) -> StoreView {
        StoreView::read(self.store).await.expect("the store can be read")
    }
}
