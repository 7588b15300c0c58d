//! The domain model of Redrive, a dead letter queue system: every rule about messages, failures, dead letters
//! and redrives, as pure functions and plain data.
//!
//! This crate decides and never acts: it does no I/O, reads no clock and draws no random numbers. [`store`]
//! defines the contract of the stores that act on its decisions.
//!
//! # From enqueue to redrive
//!
//! The main modules, in the order in which a failing message meets them:
//!
//! 1. A producer enqueues a [`message::NewMessage`]. It becomes a [`message::StoredMessage`]: an envelope that
//!    never changes and a [`lifecycle::Lifecycle`] that does.
//! 2. The [`scheduler`] picks the priority to serve next, and a store leases a message to a worker.
//! 3. The worker fails and sends a [`failure::FailureReport`]. The worker's own process analyses the report:
//!    [`signature`] decides which failures are the same, and [`classify`] decides their category (how likely a retry
//!    helps) and their route (which part of the system failed).
//! 4. Inside its commit the store calls [`review`], which weighs the history of the message and of its group
//!    ([`classify::with_history`], [`poison`]) and then calls [`policy::judge`]. The verdict is a retry, at a
//!    time that [`backoff`] computes, or death. While a [`breaker`] is open, messages that depend on the failing
//!    service are not leased at all.
//! 5. [`lifecycle::transition()`] turns the verdict into the next state of the message. No other code decides a state.
//! 6. After its last attempt the message is a [`dead_letter`]: it has a status of its own, lies in a dead letter
//!    queue, and counts towards a [`group`] of letters with the same cause.
//! 7. An operator finds the letter with a [`filter`], inspects it and acts on it, or starts an [`operation`] that
//!    acts on every match. The [`audit`] trail records every act. A redriven message starts a new generation
//!    at step 2. A sender that asked for a [`reply`] gets one, even if its message died.
//! 8. At any step, [`masking`] hides secrets in everything that is shown, and in error texts before they are stored.
//! 9. [`invariants`] states what must hold at all times, and verifies it by recounting.

pub mod access;
pub mod address;
pub mod alert;
pub mod audit;
pub mod auto_redrive;
pub mod backoff;
pub mod breaker;
pub mod changes;
pub mod classify;
pub mod content_diff;
pub mod dead_letter;
pub mod disclosure;
pub mod error;
pub mod failure;
pub mod filter;
pub mod group;
pub mod handling;
pub mod ids;
pub mod invariants;
pub mod json_input;
pub mod lifecycle;
pub mod limits;
pub mod masking;
pub mod message;
pub mod message_spec;
pub mod metrics;
pub mod operation;
pub mod orchestration;
pub mod patch;
pub mod payload;
pub mod poison;
pub mod policy;
pub mod policy_change;
pub mod priority;
pub mod priority_queue;
pub mod progress;
pub mod query;
pub mod recording;
pub mod reply;
pub mod review;
pub mod revision;
pub mod scheduler;
pub mod settlement;
pub mod short_id;
pub mod signature;
pub mod store;
pub mod survey;
mod sync;
pub mod target;
pub mod template;
pub mod time;
pub mod trace;
pub mod traceback;
pub mod transfer;
pub mod waiting;
pub mod webhook;
pub mod workers;
