//! The steps of a script, and how to run them on a store: on any store, so that the reference model and the
//! embedded store run the same steps. Messages are identified by number.

use super::rng::payload;
use redrive::core::backoff::{Backoff, Growth, Jitter};
use redrive::core::dead_letter::{Act, ActRequest, Actor};
use redrive::core::error::{CallError, StoreError, StoreResult};
use redrive::core::failure::{ErrorInfo, FailureReport};
use redrive::core::filter::Filter;
use redrive::core::ids::{LeaseToken, MessageId, QueueName};
use redrive::core::message::{NewMessage, Payload, Priority};
use redrive::core::operation::OperationSpec;
use redrive::core::policy::QueuePolicy;
use redrive::core::progress::Progress;
use redrive::core::store::{
    BatchResults, LeaseRequest, LetterLeaseRequest, LetterSettle, LetterSettlement, Settle, Settlement, Store,
};
use redrive::core::time::{Span, Time};
use redrive_testkit::clock::START;
use redrive_testkit::ids::{message_id, operation_id};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};

/// The queues of every script.
pub const QUEUES: [&str; 3] = ["alpha", "beta", "gamma"];
/// The keys of the key-value entries that a script writes.
pub const KV_KEYS: [&str; 2] = ["marker", "rules"];
/// The number of idempotency keys that a script uses.
pub const KEYS: u64 = 6;
/// The size of the value of a bulk step.
const BULK_BYTES: usize = 200 * 1024;
/// The time between two steps.
const STEP: Span = Span::from_millis(500);

/// A message to enqueue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The number of the message.
    pub n: u64,
    /// Index of the queue. Each queue has one priority, because the scheduler's state does not survive a
    /// restart.
    pub queue: usize,
    /// Index of the idempotency key.
    pub key: Option<u64>,
    /// Index of the ordering key.
    pub order: Option<u64>,
    /// The delay in seconds.
    pub delay: u64,
}

/// How to settle a delivery.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum SettleOp {
    /// Acknowledge it.
    Ack,
    /// Acknowledge it with a reply.
    Reply,
    /// Fail it with one of a few errors.
    Fail(u8),
    /// Fail it permanently.
    FailPermanently(u8),
    /// Release it.
    Release,
    /// Snooze it for this many seconds.
    Snooze(u64),
    /// Extend its lease by this many seconds.
    Extend(u64),
    /// Report this much progress.
    Progress(u64),
}

/// An act on a letter.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum LetterAct {
    /// Retry it.
    Retry,
    /// Request a review.
    Review,
    /// Quarantine it for this many seconds.
    Quarantine(u64),
    /// Set it back to pending.
    Release,
    /// Close it as resolved.
    Resolve,
    /// Close it as abandoned.
    Abandon,
    /// Reopen it.
    Reopen,
    /// Add a note.
    Note,
    /// Purge it.
    Purge,
}

/// One step of a script: one call and one commit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Step {
    /// Enqueue a batch.
    Enqueue(Vec<Entry>),
    /// Lease from a queue: index of the queue, maximum number of messages, seconds.
    Lease(usize, usize, u64),
    /// Settle deliveries.
    Settle(Vec<(u64, SettleOp)>),
    /// Act on letters.
    Act(Vec<(u64, LetterAct)>),
    /// Lease letters from the dead letter queue of a queue.
    LeaseLetters(usize, usize),
    /// Settle leased letters. `None` means that the consumer failed.
    SettleLetters(Vec<(u64, Option<LetterAct>)>),
    /// Cancel messages.
    Cancel(Vec<u64>),
    /// Purge a queue.
    Purge(usize),
    /// Pause or resume a queue.
    Pause(usize, bool),
    /// Configure a queue with this many attempts.
    Configure(usize, u32),
    /// Write a small key-value entry.
    Kv(usize, u8),
    /// Write a value of fifty pages: the log grows, the database does not.
    Bulk(u8),
    /// Start an operation on the letters of a queue.
    Start(u64, LetterAct, usize),
    /// Run one step of an operation.
    StepOperation(u64),
    /// Reap.
    Reap,
    /// Close the store and open it again. The only step that is not a call.
    Reopen,
}

/// The time of the n-th step.
#[must_use]
pub fn time_of(n: usize) -> Time {
    START.plus(Span::from_millis(STEP.as_millis().saturating_mul(n as u64 + 1)))
}

/// The queue with this index.
#[must_use]
pub fn queue(n: usize) -> QueueName {
    let name = QUEUES.get(n % QUEUES.len()).copied().unwrap_or("alpha");
    #[expect(clippy::expect_used, reason = "the three names above are names")]
    name.parse().expect("a queue name")
}

fn actor() -> Actor {
    Actor { reason: Some("because".into()), ..Actor::new("torture", "script") }
}

/// A policy without randomness.
#[must_use]
pub fn fixed_policy(max_attempts: u32, lease: Span, wait: Span) -> QueuePolicy {
    let backoff = Backoff {
        initial: wait,
        floor: Span::ZERO,
        growth: Growth::Fixed,
        jitter: Jitter::None,
        ..Backoff::default()
    };
    QueuePolicy { max_attempts, backoff, lease, ..QueuePolicy::default() }
}

/// A failure. Equal numbers have equal causes.
#[must_use]
pub fn failure(which: u8, permanent: bool) -> Settle {
    let error = ErrorInfo {
        error_type: format!("Error{}", which % 4),
        message: format!("connection {which} to 10.0.0.{which} was refused"),
        stack: which.is_multiple_of(2).then(|| "at send (src/net.rs:10)\nat main (src/main.rs:3)".to_owned()),
        ..ErrorInfo::default()
    };
    let report = FailureReport { error, permanent, ..FailureReport::default() };
    Settle::Fail { failure: Box::new(report.analyse()), policy_override: None }
}

impl LetterAct {
    fn at(self, now: Time) -> Act {
        match self {
            Self::Retry => Act::retry(),
            Self::Review => Act::Review,
            Self::Quarantine(seconds) => Act::Quarantine { until: now.plus(Span::from_secs(seconds)) },
            Self::Release => Act::Release,
            Self::Resolve => Act::Resolve,
            Self::Abandon => Act::Abandon,
            Self::Reopen => Act::Reopen,
            Self::Note => Act::Note,
            Self::Purge => Act::Purge,
        }
    }
}

impl Entry {
    fn message(&self) -> NewMessage {
        let payload = Payload { bytes: payload(self.n), content_type: "application/octet-stream".into() };
        NewMessage {
            kind: format!("kind{}", self.n % 3),
            priority: Some(Priority::from_level(self.queue % 5)),
            key: self.key.map(|key| format!("key{key}")),
            ordering_key: self.order.map(|key| format!("order{key}")),
            delay: (self.delay > 0).then(|| Span::from_secs(self.delay)),
            reply_to: (self.n % 2 == 1).then(|| "answers".parse().ok()).flatten(),
            ..NewMessage::new(message_id(self.n), queue(self.queue), payload)
        }
    }
}

/// Runs steps on one store and keeps the lease tokens it was granted.
#[derive(Debug, Default)]
pub struct StepRunner {
    tokens: BTreeMap<MessageId, LeaseToken>,
    letters: BTreeMap<MessageId, LeaseToken>,
    versions: [u64; KV_KEYS.len()],
}

/// The result of a step.
pub enum StepOutcome {
    /// The store replied; this is the reply without secrets.
    Answered(String),
    /// The step was skipped because its token was never granted.
    Skipped,
    /// The store failed.
    Failed(StoreError),
}

fn outcome_of<T: Debug>(reply: StoreResult<T>) -> StepOutcome {
    match reply {
        Ok(reply) => StepOutcome::Answered(format!("{reply:?}")),
        Err(CallError::Refused(_)) => StepOutcome::Answered("refused".into()),
        Err(CallError::Store(error)) => StepOutcome::Failed(error),
    }
}

/// All refusals count as equal, because stores may word them differently.
fn batch_outcome<T: Debug>(reply: StoreResult<BatchResults<T>>) -> StepOutcome {
    outcome_of(reply.map(|all| all.into_iter().map(Result::ok).collect::<Vec<Option<T>>>()))
}

impl StepRunner {
    /// Whether the runner holds the token of this message.
    #[must_use]
    pub fn holds(&self, n: u64) -> bool {
        self.tokens.contains_key(&message_id(n))
    }

    /// Whether the runner holds the token of this letter.
    #[must_use]
    pub fn holds_letter(&self, n: u64) -> bool {
        self.letters.contains_key(&message_id(n))
    }

    /// Runs a step at this time.
    pub async fn run(&mut self, store: &dyn Store, step: &Step, now: Time) -> StepOutcome {
        match step {
            Step::Enqueue(all) => {
                batch_outcome(store.enqueue(all.iter().map(Entry::message).collect()).await)
            }
            Step::Lease(from, max, seconds) => self.lease(store, *from, *max, *seconds).await,
            Step::Settle(all) => self.settle(store, all).await,
            Step::Act(all) => {
                let batch = all.iter().map(|(n, act)| ActRequest {
                    id: message_id(*n),
                    act: act.at(now),
                    actor: actor(),
                    expected_version: None,
                });
                batch_outcome(store.act(batch.collect()).await)
            }
            Step::LeaseLetters(from, max) => self.lease_letters(store, *from, *max).await,
            Step::SettleLetters(all) => self.settle_letters(store, all, now).await,
            Step::Cancel(all) => {
                batch_outcome(store.cancel(all.iter().map(|n| message_id(*n)).collect(), actor()).await)
            }
            Step::Purge(n) => outcome_of(store.purge(queue(*n), actor()).await),
            Step::Pause(n, on) => outcome_of(store.pause(queue(*n), *on, actor()).await.map(|q| q.paused)),
            Step::Configure(n, attempts) => {
                let policy = fixed_policy(*attempts, Span::from_secs(30), Span::from_secs(1));
                outcome_of(store.configure(queue(*n), policy, actor()).await.map(|q| q.policy))
            }
            Step::Kv(key, value) => self.kv(store, *key, vec![*value; 3 + usize::from(*value)]).await,
            Step::Bulk(value) => self.kv(store, 1, vec![*value; BULK_BYTES]).await,
            Step::Start(n, act, of) => {
                let text = format!("queue:{}", queue(*of));
                let filter = Filter::parse(&text).unwrap_or_default();
                let id = operation_id(*n);
                let spec = OperationSpec::new(id, act.at(now), filter, actor());
                outcome_of(store.start(spec).await)
            }
            Step::StepOperation(n) => outcome_of(store.step(operation_id(*n)).await),
            Step::Reap => outcome_of(store.reap(1_000).await),
            Step::Reopen => StepOutcome::Answered("reopened".into()),
        }
    }

    async fn lease(&mut self, store: &dyn Store, from: usize, max: usize, seconds: u64) -> StepOutcome {
        let lease_for = Some(Span::from_secs(seconds));
        let request = LeaseRequest {
            queues: vec![queue(from)],
            max,
            lease_for,
            worker: format!("worker{from}"),
            ..LeaseRequest::default()
        };
        let reply = store.lease(request).await.map(|all| {
            let mut text = String::new();
            for delivery in all {
                let message = &delivery.message;
                let _ = write!(text, "{:?}x{} ", message.envelope, message.deliveries);
                self.tokens.insert(message.envelope.id, delivery.token);
            }
            text
        });
        outcome_of(reply)
    }

    async fn settle(&mut self, store: &dyn Store, all: &[(u64, SettleOp)]) -> StepOutcome {
        let mut batch = Vec::new();
        for (n, say) in all {
            let Some(token) = self.tokens.get(&message_id(*n)).copied() else { continue };
            let what = match say {
                SettleOp::Ack => Settle::Ack,
                SettleOp::Reply => Settle::Reply {
                    payload: Payload {
                        bytes: payload(n + 1),
                        content_type: "application/octet-stream".into(),
                    },
                },
                SettleOp::Progress(done) => {
                    Settle::Progress { progress: Progress::new(*done, Some(9), "at it") }
                }
                SettleOp::Fail(which) => failure(*which, false),
                SettleOp::FailPermanently(which) => failure(*which, true),
                SettleOp::Release => Settle::Release,
                SettleOp::Snooze(seconds) => Settle::Snooze { span: Span::from_secs(*seconds) },
                SettleOp::Extend(seconds) => Settle::Extend { by: Some(Span::from_secs(*seconds)) },
            };
            batch.push(Settlement { token, what });
        }
        if batch.is_empty() {
            return StepOutcome::Skipped;
        }
        batch_outcome(store.settle(batch).await)
    }

    async fn lease_letters(&mut self, store: &dyn Store, from: usize, max: usize) -> StepOutcome {
        let dlq = queue(from).default_dlq();
        let request = LetterLeaseRequest { dlq, max, lease_for: None, worker: "reader".into() };
        let reply = store.lease_letters(request).await.map(|all| {
            let mut text = String::new();
            for delivery in all {
                let _ = write!(text, "{} ", delivery.letter.id());
                self.letters.insert(delivery.letter.id(), delivery.token);
            }
            text
        });
        outcome_of(reply)
    }

    async fn settle_letters(
        &mut self,
        store: &dyn Store,
        all: &[(u64, Option<LetterAct>)],
        now: Time,
    ) -> StepOutcome {
        let mut batch = Vec::new();
        for (n, act) in all {
            let Some(token) = self.letters.get(&message_id(*n)).copied() else { continue };
            let what = match act {
                Some(act) => LetterSettle::Do { act: act.at(now), actor: actor() },
                None => LetterSettle::Fail { note: "the reader broke".into() },
            };
            batch.push(LetterSettlement { token, what });
        }
        if batch.is_empty() {
            return StepOutcome::Skipped;
        }
        batch_outcome(store.settle_letters(batch).await)
    }

    async fn kv(&mut self, store: &dyn Store, key: usize, value: Vec<u8>) -> StepOutcome {
        let Some((name, version)) = KV_KEYS.get(key).zip(self.versions.get_mut(key)) else {
            return StepOutcome::Skipped;
        };
        let reply = store.kv_put("torture".into(), (*name).into(), Some(value), *version).await;
        if let Ok(written) = &reply {
            *version = *written;
        }
        outcome_of(reply)
    }
}
