//! Redrive, the dead letter office for background work: the library people add.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use redrive::core::message::{NewMessage, Payload};
//! use redrive::core::store::{LeaseRequest, Settle, Settlement, Work as _};
//!
//! let store = redrive::memory();
//! let payload = Payload { bytes: b"{\"n\":1}".to_vec(), content_type: "application/json".into() };
//! store.enqueue(vec![NewMessage::new(redrive::new_id(), "demo".parse()?, payload)]).await?;
//!
//! let queues = vec!["demo".parse()?];
//! let wanted = LeaseRequest { queues, max: 1, worker: "me".into(), ..LeaseRequest::default() };
//! let delivery = store.lease(wanted).await?.remove(0);
//! store.settle(vec![Settlement { token: delivery.token, what: Settle::Ack }]).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Inside one process, [`PriorityQueue`] hands work from threads to threads without a store:
//!
//! ```
//! use redrive::core::{priority::Priority, time::{Span, Time}};
//! use redrive::{Dequeued, PriorityQueue, Rejected};
//!
//! let queue = PriorityQueue::new();
//! let now = Time::from_millis(1_000_000);
//! queue.tick(now); // it has no clock of its own
//! queue.enqueue("report", Priority::Background).unwrap();
//! queue.enqueue_by("reply", Priority::Low, now.plus(Span::from_secs(2))).unwrap();
//! match queue.enqueue("page", Priority::Critical) {
//!     Ok(accepted) if accepted.back_pressure => println!("send less"),
//!     Ok(_) => {}
//!     Err(Rejected::Full(item) | Rejected::Emergency(item)) => println!("not now: {item}"),
//! }
//! let mut order = Vec::new();
//! loop {
//!     match queue.dequeue() {
//!         Dequeued::Item(picked) => order.push(picked.item), // picked.decision says why
//!         Dequeued::Expired(overdue) => println!("too late for {}", overdue.item),
//!         Dequeued::LostRace => std::thread::yield_now(), // another consumer was picking
//!         Dequeued::Held | Dequeued::Empty => break,
//!     }
//! }
//! assert_eq!(order, ["reply", "page", "report"]); // the deadline is near, then by priority
//! ```

pub mod alerts;
mod batch;
mod consumer;
mod dead_letter_policy;
mod directory;
mod eval;
pub mod executor;
mod group;
mod handler;
pub mod host;
mod letter_handlers;
pub mod maintenance;
pub mod metrics;
mod operate;
mod panics;
pub mod push;
mod replay;
mod replies;
pub mod resilient;
mod runnable;
mod send;
mod server;
mod split;
#[cfg(feature = "otel")]
pub mod traces;
mod waiting;
mod worker;

pub use async_trait::async_trait;
pub use batch::{
    Batch, BatchError, BatchHandle, BatchProgress, BatchSummary, DryRun, DryRunItem, FailureGroup, Job,
    Problem, PrunedTree, StartMode,
};
pub use consumer::{
    DeadLetterConsumer, DeadLetterConsumerBuilder, Disposition, IntoDisposition, LetterHandler,
};
pub use dead_letter_policy::{DeadLetterPolicy, Difference, Drift, IntoOverride};
#[cfg(feature = "memory")]
pub use directory::memory;
pub use directory::{OpenOptions, new_id, open, restore, without_password};
pub use eval::{EvalHandler, EvalRequest, EvalResult, Evaluator, Score, exact_match, json_subset};
pub use group::{
    BoundGroup, GroupError, Health, HealthReport, HealthStatus, LoopGroup, LoopHealth, LoopState, OnFailure,
    OnStuck,
};
pub use handler::{
    Context, FromContext, FromHandler, FromPayload, FromPayloadAndContext, Handler, HandlerError,
    IntoHandler, IntoOutcome, Outcome, Result,
};
pub use letter_handlers::{alert, discard, replay_each};
pub use operate::{operate, operate_while};
pub use redrive_core as core;
pub use redrive_core::priority_queue::{Accepted, Dequeued, Overdue, Picked, PriorityQueue, Rejected};
pub use redrive_store as store;
pub use replay::{OnDuplicate, ReplayReport, replay, replay_distinct, replay_if, replay_where, resume};
pub use replies::{ReplyForwarder, ReplyResolver, ReplyTarget};
pub use resilient::{Processor, ResilientExecutor};
pub use runnable::{Heartbeat, Runnable};
pub use send::send;
pub use server::{ServerStore, connect, connect_trusting};
pub use split::{LetterMover, MoveReport, ReturnReport, replay_between};
pub use tokio_util::sync::CancellationToken;
pub use worker::{Counts, Worker, WorkerBuilder, WorkerHandle};
