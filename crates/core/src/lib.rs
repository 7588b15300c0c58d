//! # The life of a message that keeps failing
//!
//! 1. Somebody hands in work: [`message::NewMessage`]. It becomes a [`message::Record`]: an envelope that
//!    never changes and a [`lifecycle::Life`] that does.
//! 2. The [`scheduler`] says which priority is served next; a store leases the message to a worker.
//! 3. The worker fails and reports: [`failure::Report`]. In the worker's own process the report is analysed:
//!    [`signature`] says which failures are the same, [`classify`] what kind they are.
//! 4. Inside its commit the store asks [`review`]: what the history of message and group makes of the failure
//!    ([`classify::with_history`], [`poison`]), and [`policy::judge`]: retry at a time that [`backoff`] gives, or
//!    dead. While a [`breaker`] is open, work that needs what is down is not handed out at all.
//! 5. [`lifecycle::transition`] turns the verdict into the next life. It is the only place that does.
//! 6. After the last attempt the message is a [`dead_letter`]: a file with a status of its own, in a drawer,
//!    counted in a [`group`] by cause.
//! 7. A person finds it with a [`filter`], looks, and acts; or an [`operation`] acts on all that match.
//!    Every act is in the [`audit`] trail. Sent back, the message starts a new generation at step 2.
//!    Whoever asked for an answer gets a [`reply`], also when the answer is that it died.
//! 8. What is shown goes through [`masking`] first, and so does the text of errors before it is kept.
//! 9. [`invariants`] says what must hold at every moment of this, and recounts to see that it does.
//!
//! This crate decides and never acts: no I/O, no clock, no randomness of its own. [`store`] is the contract
//! of those who act.

pub mod address;
pub mod audit;
pub mod auto_redrive;
pub mod backoff;
pub mod breaker;
pub mod classify;
pub mod dead_letter;
pub mod disclosure;
pub mod error;
pub mod failure;
pub mod filter;
pub mod group;
pub mod handling;
pub mod ids;
pub mod invariants;
pub mod lifecycle;
pub mod limits;
pub mod masking;
pub mod message;
pub mod metrics;
pub mod operation;
pub mod patch;
pub mod payload;
pub mod poison;
pub mod policy;
pub mod priority;
pub mod priority_queue;
pub mod progress;
pub mod query;
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
pub mod traceback;
pub mod transfer;
pub mod waiting;
