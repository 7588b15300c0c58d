//! What a script is made of, and how one step is done to a store: any store, so that the reference model takes
//! the same steps as the embedded one. Messages are named by number, tokens are kept by whoever was given them.

use super::rng::payload;
use redrive::core::backoff::{Backoff, Growth, Jitter};
use redrive::core::dead_letter::{Act, ActRequest, Actor};
use redrive::core::error::{Error, Outcome, StoreError};
use redrive::core::failure::{ErrorInfo, Report};
use redrive::core::filter::Filter;
use redrive::core::ids::{LeaseToken, MessageId, QueueName};
use redrive::core::message::{NewMessage, Payload, Priority};
use redrive::core::operation::OperationSpec;
use redrive::core::policy::QueuePolicy;
use redrive::core::progress::Progress;
use redrive::core::store::{
    Each, LeaseRequest, LetterLeaseRequest, LetterSettle, LetterSettlement, Settle, Settlement, Store,
};
use redrive::core::time::{Span, Time};
use redrive_testkit::clock::START;
use redrive_testkit::ids::{message_id, operation_id};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};

/// The queues of every script.
pub const QUEUES: [&str; 3] = ["alpha", "beta", "gamma"];
/// Small durable values that a script writes.
pub const KV_KEYS: [&str; 2] = ["marker", "rules"];
/// Idempotency keys that a script uses.
pub const KEYS: u64 = 6;
/// How long the value of a bulk step is.
const BULK_BYTES: usize = 200 * 1024;
/// Time that passes from one step to the next.
const STEP: Span = Span::from_millis(500);

/// A message to send.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Its number.
    pub n: u64,
    /// Which queue. Each has one priority: what a scheduler remembers does not outlive a process.
    pub queue: usize,
    /// Which idempotency key.
    pub key: Option<u64>,
    /// Which ordering key.
    pub order: Option<u64>,
    /// Seconds of delay.
    pub delay: u64,
}

/// What is said about a delivery.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Say {
    /// Done.
    Ack,
    /// Done, with an answer.
    Reply,
    /// Failed, with one of a few errors.
    Fail(u8),
    /// Failed for good.
    Hopeless(u8),
    /// Back.
    Release,
    /// Later, by seconds.
    Snooze(u64),
    /// Longer, by seconds.
    Extend(u64),
    /// This far.
    Progress(u64),
}

/// What is done to a letter.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Deed {
    /// Back to work.
    Retry,
    /// A person must look.
    Review,
    /// Set aside for seconds.
    Quarantine(u64),
    /// Back to pending.
    Release,
    /// Close.
    Resolve,
    /// Close.
    Abandon,
    /// Open again.
    Reopen,
    /// Say something.
    Note,
    /// Remove.
    Purge,
}

/// One step of a script: one call, one commit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Step {
    /// Send a batch.
    Enqueue(Vec<Entry>),
    /// Lease from a queue, at most so many, for seconds.
    Lease(usize, usize, u64),
    /// Settle deliveries.
    Settle(Vec<(u64, Say)>),
    /// Act on letters.
    Act(Vec<(u64, Deed)>),
    /// Lease letters of a queue.
    Draw(usize, usize),
    /// Settle leased letters; nothing said means that the consumer failed.
    Return(Vec<(u64, Option<Deed>)>),
    /// Take messages back.
    Cancel(Vec<u64>),
    /// Empty a queue.
    Purge(usize),
    /// Halt or resume a queue.
    Pause(usize, bool),
    /// Give a queue rules: so many attempts.
    Configure(usize, u32),
    /// Write a small value.
    Kv(usize, u8),
    /// Write a value of fifty pages: the log grows, the store does not.
    Bulk(u8),
    /// Start an operation on the letters of a queue.
    Start(u64, Deed, usize),
    /// Do a chunk of an operation.
    Go(u64),
    /// Maintain.
    Reap,
    /// Close the store and open it again. The only step that is no call.
    Reopen,
}

/// When the n-th step is taken.
#[must_use]
pub fn time_of(n: usize) -> Time {
    START.plus(Span::from_millis(STEP.as_millis().saturating_mul(n as u64 + 1)))
}

/// A queue by number.
#[must_use]
pub fn queue(n: usize) -> QueueName {
    let name = QUEUES.get(n % QUEUES.len()).copied().unwrap_or("alpha");
    #[expect(clippy::expect_used, reason = "the three names above are names")]
    name.parse().expect("a queue name")
}

/// Who acts in scripts.
fn actor() -> Actor {
    Actor { name: "torture".into(), source: "script".into(), reason: Some("because".into()) }
}

/// Rules without chance.
#[must_use]
pub fn rules(max_attempts: u32, lease: Span, wait: Span) -> QueuePolicy {
    let backoff = Backoff {
        initial: wait,
        floor: Span::ZERO,
        growth: Growth::Fixed,
        jitter: Jitter::None,
        ..Backoff::default()
    };
    QueuePolicy { max_attempts, backoff, lease, ..QueuePolicy::default() }
}

/// A failure; equal numbers are equal causes.
#[must_use]
pub fn failure(which: u8, permanent: bool) -> Settle {
    let error = ErrorInfo {
        error_type: format!("Error{}", which % 4),
        message: format!("connection {which} to 10.0.0.{which} was refused"),
        stack: which.is_multiple_of(2).then(|| "at send (src/net.rs:10)\nat main (src/main.rs:3)".to_owned()),
        ..ErrorInfo::default()
    };
    let report = Report { error, permanent, ..Report::default() };
    Settle::Fail { failure: Box::new(report.analyse()), said: None }
}

impl Deed {
    fn act(self, now: Time) -> Act {
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

/// Takes steps on one store and remembers what it was given.
#[derive(Debug, Default)]
pub struct Stepper {
    tokens: BTreeMap<MessageId, LeaseToken>,
    letters: BTreeMap<MessageId, LeaseToken>,
    versions: [u64; KV_KEYS.len()],
}

/// What a step came to.
pub enum Came {
    /// The store answered; this is what it said, without secrets.
    Said(String),
    /// There was nothing to say it with: the token was never given.
    Skipped,
    /// The store did not answer.
    Failed(StoreError),
}

fn said<T: Debug>(reply: Outcome<T>) -> Came {
    match reply {
        Ok(reply) => Came::Said(format!("{reply:?}")),
        Err(Error::Refused(_)) => Came::Said("refused".into()),
        Err(Error::Store(error)) => Came::Failed(error),
    }
}

/// Refusals are compared as such: their words are the store's own.
fn each<T: Debug>(reply: Outcome<Each<T>>) -> Came {
    said(reply.map(|all| all.into_iter().map(Result::ok).collect::<Vec<Option<T>>>()))
}

impl Stepper {
    /// The messages whose token this one holds.
    #[must_use]
    pub fn holds(&self, n: u64) -> bool {
        self.tokens.contains_key(&message_id(n))
    }

    /// The letters whose token this one holds.
    #[must_use]
    pub fn holds_letter(&self, n: u64) -> bool {
        self.letters.contains_key(&message_id(n))
    }

    /// Takes a step at this time.
    pub async fn take(&mut self, store: &dyn Store, step: &Step, now: Time) -> Came {
        match step {
            Step::Enqueue(all) => each(store.enqueue(all.iter().map(Entry::message).collect()).await),
            Step::Lease(from, max, seconds) => self.lease(store, *from, *max, *seconds).await,
            Step::Settle(all) => self.settle(store, all).await,
            Step::Act(all) => {
                let batch = all.iter().map(|(n, deed)| ActRequest {
                    id: message_id(*n),
                    act: deed.act(now),
                    actor: actor(),
                    expected_version: None,
                });
                each(store.act(batch.collect()).await)
            }
            Step::Draw(from, max) => self.draw(store, *from, *max).await,
            Step::Return(all) => self.give_back(store, all, now).await,
            Step::Cancel(all) => {
                each(store.cancel(all.iter().map(|n| message_id(*n)).collect(), actor()).await)
            }
            Step::Purge(n) => said(store.purge(queue(*n), actor()).await),
            Step::Pause(n, on) => said(store.pause(queue(*n), *on, actor()).await.map(|q| q.paused)),
            Step::Configure(n, attempts) => {
                let policy = rules(*attempts, Span::from_secs(30), Span::from_secs(1));
                said(store.configure(queue(*n), policy, actor()).await.map(|q| q.policy))
            }
            Step::Kv(key, value) => self.kv(store, *key, vec![*value; 3 + usize::from(*value)]).await,
            Step::Bulk(value) => self.kv(store, 1, vec![*value; BULK_BYTES]).await,
            Step::Start(n, deed, of) => {
                let text = format!("queue:{}", queue(*of));
                let filter = Filter::parse(&text).unwrap_or_default();
                let id = operation_id(*n);
                let spec = OperationSpec::new(id, deed.act(now), filter, actor());
                said(store.start(spec).await)
            }
            Step::Go(n) => said(store.step(operation_id(*n)).await),
            Step::Reap => said(store.reap(1_000).await),
            Step::Reopen => Came::Said("reopened".into()),
        }
    }

    async fn lease(&mut self, store: &dyn Store, from: usize, max: usize, seconds: u64) -> Came {
        let lease_for = Some(Span::from_secs(seconds));
        let request =
            LeaseRequest { queues: vec![queue(from)], max, lease_for, worker: format!("worker{from}") };
        let reply = store.lease(request).await.map(|all| {
            let mut text = String::new();
            for delivery in all {
                let message = &delivery.message;
                let _ = write!(text, "{:?}x{} ", message.envelope, message.deliveries);
                self.tokens.insert(message.envelope.id, delivery.token);
            }
            text
        });
        said(reply)
    }

    async fn settle(&mut self, store: &dyn Store, all: &[(u64, Say)]) -> Came {
        let mut batch = Vec::new();
        for (n, say) in all {
            let Some(token) = self.tokens.get(&message_id(*n)).copied() else { continue };
            let what = match say {
                Say::Ack => Settle::Ack,
                Say::Reply => Settle::Reply {
                    payload: Payload {
                        bytes: payload(n + 1),
                        content_type: "application/octet-stream".into(),
                    },
                },
                Say::Progress(done) => Settle::Progress { progress: Progress::new(*done, Some(9), "at it") },
                Say::Fail(which) => failure(*which, false),
                Say::Hopeless(which) => failure(*which, true),
                Say::Release => Settle::Release,
                Say::Snooze(seconds) => Settle::Snooze { span: Span::from_secs(*seconds) },
                Say::Extend(seconds) => Settle::Extend { by: Some(Span::from_secs(*seconds)) },
            };
            batch.push(Settlement { token, what });
        }
        if batch.is_empty() {
            return Came::Skipped;
        }
        each(store.settle(batch).await)
    }

    async fn draw(&mut self, store: &dyn Store, from: usize, max: usize) -> Came {
        let dlq = queue(from).default_drawer();
        let request = LetterLeaseRequest { dlq, max, lease_for: None, worker: "reader".into() };
        let reply = store.lease_letters(request).await.map(|all| {
            let mut text = String::new();
            for delivery in all {
                let _ = write!(text, "{} ", delivery.letter.id());
                self.letters.insert(delivery.letter.id(), delivery.token);
            }
            text
        });
        said(reply)
    }

    async fn give_back(&mut self, store: &dyn Store, all: &[(u64, Option<Deed>)], now: Time) -> Came {
        let mut batch = Vec::new();
        for (n, deed) in all {
            let Some(token) = self.letters.get(&message_id(*n)).copied() else { continue };
            let what = match deed {
                Some(deed) => LetterSettle::Do { act: deed.act(now), actor: actor() },
                None => LetterSettle::Fail { note: "the reader broke".into() },
            };
            batch.push(LetterSettlement { token, what });
        }
        if batch.is_empty() {
            return Came::Skipped;
        }
        each(store.settle_letters(batch).await)
    }

    async fn kv(&mut self, store: &dyn Store, key: usize, value: Vec<u8>) -> Came {
        let Some((name, version)) = KV_KEYS.get(key).zip(self.versions.get_mut(key)) else {
            return Came::Skipped;
        };
        let reply = store.kv_put("torture".into(), (*name).into(), Some(value), *version).await;
        if let Ok(written) = &reply {
            *version = *written;
        }
        said(reply)
    }
}
